//! Help, and what the program says to wrong usage.

use super::process::{rdzv, run};

#[test]
fn help_of_every_command_teaches() {
    for (command, words) in [
        (&["server"][..], &["--bind", "RDZV_BIND", "listening on", "Examples:"][..]),
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
        (&["store", "barrier"], &["--by-keys", "WORLD_SIZE", "--timeout-ms"]),
        (
            &["bench"],
            &[
                "--work",
                "--language",
                "RDZV_BENCH_CONNECTIONS",
                "storm",
                "reform",
                "Examples:",
                "Exit codes:",
                "taskset",
            ],
        ),
    ] {
        let ended = run(rdzv(command).arg("--help"));
        assert_eq!((ended.code, ended.stderr.as_str()), (0, ""), "{command:?}");
        for word in words {
            assert!(ended.text().contains(word), "{command:?}: no {word} in\n{}", ended.text());
        }
        assert!(
            run(rdzv(command).arg("-h")).stdout.len() < ended.stdout.len(),
            "{command:?}: -h is the short form"
        );
    }
}

#[test]
fn without_a_command_it_shows_them() {
    let ended = run(&mut rdzv(&[]));
    assert_eq!(ended.code, 2);
    for command in ["server", "store", "bench"] {
        assert!(ended.stderr.contains(command), "{}", ended.stderr);
    }
}

#[test]
fn it_tells_its_version() {
    let ended = run(&mut rdzv(&["--version"]));
    assert_eq!((ended.code, ended.text()), (0, concat!("rdzv ", env!("CARGO_PKG_VERSION"), "\n")));
}
