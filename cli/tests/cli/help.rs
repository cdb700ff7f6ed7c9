//! Help, and what the program says to wrong usage.

use super::process::{rdzv, run};

#[test]
fn help_of_every_command_teaches() {
    for (command, message) in [
        (
            &["server"][..],
            &[
                "--bind",
                "RDZV_BIND",
                "[default: 127.0.0.1:29400]",
                "[default: 4GiB]",
                "listening on",
                "Examples:",
            ][..],
        ),
        (
            &["store"],
            &[
                "--endpoint",
                "RDZV_ENDPOINT",
                "MASTER_ADDR",
                "RDZV_TIMEOUT_MS",
                "Examples:",
                "Exit codes:",
                "queue-pop",
            ],
        ),
        (
            &["run"],
            &[
                "COMMAND",
                "--nnodes",
                "--nproc-per-node",
                "PET_NPROC_PER_NODE",
                "--rdzv-endpoint",
                "--max-restarts",
                "--signals-to-handle",
                "--log-dir",
                "--report",
                "RDZV_REPORT",
                "Examples:",
                "Exit codes:",
                "MASTER_ADDR",
            ],
        ),
        (
            &["group"],
            &["--scope", "came NAME ID ADDRESS", "went NAME ID", "Exit codes:", "1  there is no group"],
        ),
        (&["store", "barrier"], &["--by-keys", "WORLD_SIZE", "--timeout-ms"]),
        (&["bench"], &["--work", "Examples:", "Exit codes:", "taskset"]),
    ] {
        let ended = run(rdzv(command).arg("--help"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command:?}");
        for word in message {
            assert!(ended.text().contains(word), "{command:?}: no {word} in\n{}", ended.text());
        }
        assert!(
            run(rdzv(command).arg("-h")).text().lines().count() < ended.text().lines().count(),
            "{command:?}: -h is the short form"
        );
    }
}

#[test]
fn help_of_run_leaves_no_flag_unexplained_and_shows_the_exit_codes() {
    let ended = run(rdzv(&["run"]).arg("--help"));
    let text = ended.text();
    let codes = text.split_once("Exit codes:").expect("exit codes").1;
    for code in ["\n  0  ", "\n  1  ", "\n  2  "] {
        assert!(codes.contains(code), "no {code:?} in {codes}");
    }
    let flags = text.split("\n\n").filter(|block| block.trim_start().starts_with('-'));
    let count = flags.inspect(|block| {
        let message = block.lines().nth(1).unwrap_or_default().trim_start();
        assert!(message.starts_with(char::is_alphabetic), "nothing is said of\n{block}");
    });
    assert!(count.count() > 30, "{text}");
    // torchrun's own switch is taken, and not shown as if it did something.
    assert!(!text.contains("--start-method"));
}

#[test]
fn without_a_command_it_shows_them() {
    let ended = run(&mut rdzv(&[]));
    assert_eq!(ended.code, 2);
    for command in ["run", "server", "store", "group", "sessions", "bench"] {
        assert!(ended.stderr.contains(command), "{}", ended.stderr);
    }
}

#[test]
fn it_tells_its_version() {
    let ended = run(&mut rdzv(&["--version"]));
    assert_eq!((ended.code, ended.text()), (0, concat!("rdzv ", env!("CARGO_PKG_VERSION"), "\n")));
}
