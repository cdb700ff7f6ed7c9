//! One node: what it says, how it ends, what its workers may do.

use super::{DEAF, Gate, IDLE, Launch, folder, text, until_gone};
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_job_that_succeeds() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $1 $0";
    let launch = Launch::shell(&["--nproc-per-node", "3"], script).arg("zero").arg("local${local_rank}");
    let ran = launch.run().with(0);
    for rank in 0..3 {
        ran.says(1, &format!("{rank}/3 {rank}/3 0 local{rank} zero"));
    }
    ran.says(1, "rdzv run: start 0: ranks 0 to 2 of 3 run").says(1, "rdzv run: done");
}

#[test]
fn flags_have_two_spellings_and_take_their_defaults_from_the_environment() {
    let script = "echo $TORCHELASTIC_RUN_ID $ROLE_NAME $LOCAL_WORLD_SIZE $TORCHELASTIC_MAX_RESTARTS";
    for launch in [
        Launch::shell(
            &[
                "--nproc_per_node=2",
                "--max_restarts=3",
                "--rdzv_id=x1",
                "--role=r",
                "--rdzv_conf=close_timeout=30",
            ],
            script,
        ),
        Launch::shell(
            &[
                "--nproc-per-node=2",
                "--max-restarts=3",
                "--rdzv-id=x1",
                "--role=r",
                "--rdzv-conf=close_timeout=30",
            ],
            script,
        ),
        Launch::shell(&["--rdzv-id=x1"], script)
            .env("PET_NPROC_PER_NODE", "2")
            .env("PET_MAX_RESTARTS", "3")
            .env("PET_RDZV_ID", "overruled")
            .env("PET_ROLE", "r"),
    ] {
        launch.run().with(0).says(2, "x1 r 2 3");
    }
    let alone = Launch::shell(
        &["--rdzv-id=x1", "--rdzv-endpoint=nowhere.invalid:1"],
        "echo the run is $TORCHELASTIC_RUN_ID",
    );
    alone.env("PET_STANDALONE", "1").run().with(0).says(1, "the run is ").says(0, "the run is x1");
}

#[test]
fn wrong_usage_is_2_and_says_what_is_wrong() {
    for (flags, expected) in [
        (&["--bogus"][..], "--bogus"),
        (&["--nnodes", "3:1"], "0 < MIN <= MAX must hold"),
        (&["--nnodes", "two"], "nnodes=two is not in \"MIN:MAX\" format"),
        (&["--nproc-per-node", "0"], "must be at least 1"),
        (&["--nproc-per-node", "few"], "Unsupported nproc_per_node value: few"),
        (&["--nnodes", "2"], "needs --rdzv-endpoint"),
        (&["--standalone", "--nnodes", "2"], "--standalone is one node"),
        (&["-m", "--no-python"], "-m is for Python"),
        (&["--redirects", "7"], "7"),
        (&["--shutdown-timeout=-1"], "--shutdown-timeout"),
        (&["--max-restarts=-1"], "--max-restarts"),
        (&["--local-ranks-filter", "a"], "--local-ranks-filter"),
        (&["--rdzv-conf", "a"], "must have a value specified"),
        (&["--rdzv-backend", "none-such", "--rdzv-endpoint", "h"], "none-such"),
    ] {
        Launch::of(flags, &["true"]).run().with(2).tells(expected);
    }
    Launch::of(&[], &[]).run().with(2).tells("COMMAND");
}

#[test]
fn a_worker_that_fails_ends_the_job_with_1_and_a_report() {
    let flags = ["--nproc-per-node", "2"];
    let script = "[ $RANK = 1 ] || exec sleep 600; echo the reason >&2; exit 3";
    let ran = Launch::shell(&flags, script).run().with(1);
    ran.says(1, "Root Cause (first observed failure):").says(1, "exitcode  : 3").says(1, "    the reason");
    ran.tells("rank      : 1 (local_rank: 1)").tells("<NO_OTHER_FAILURES>");
    ran.tells("rdzv run: failed: rank 1 (local rank 1) ended with exit code 3");
}

#[test]
fn failures_within_the_budget_are_started_anew() {
    let script =
        "echo attempt $RANK $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0
        [ $RANK = 0 ] && kill -9 $$; exec sleep 600";
    let flags = ["--nproc-per-node", "2", "--max-restarts"];
    let ran = Launch::shell(&[&flags[..], &["2"]].concat(), script).run().with(0);
    ran.says(1, "attempt 0 2")
        .says(1, "attempt 1 2")
        .says(2, "rank 0 (local rank 0), pid ")
        .says(1, "run: done");
    ran.tells("start 2: ranks 0 to 1 of 2 run (detect ").tells("(1 restart left)").tells("(0 restarts left)");
    let ran = Launch::shell(&[&flags[..], &["1"]].concat(), script).run().with(1);
    ran.says(0, "attempt 0 2").tells("exitcode  : -9").tells("(SIGKILL)");
}

#[test]
fn restarts_that_fail_at_once_wait_longer_each_time() {
    let failing = |backoff: &str| {
        Launch::of(&["--max-restarts", "4", "--restart-backoff", backoff], &["false"]).run().with(1)
    };
    // A start that runs for as long as the longest pause counts as the first again: on no machine does `false`.
    let ran = failing("600");
    ran.says(1, "the next start is in 0.1 s").says(1, "the next start is in 0.2 s");
    ran.says(1, "the next start is in 0.4 s").says(3, "the next start is in").tells("start 4");
    failing("0").says(0, "the next start is in").tells("start 4");
    Launch::of(&["--restart-backoff", "soon"], &["true"]).run().with(2).tells("--restart-backoff");
}

#[test]
fn a_program_that_is_not_there_or_may_not_be_run() {
    let folder = folder("programs");
    let file = |name: &str, text: &str, mode: u32| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path
    };
    Launch::of(&[], &["no-such-program"]).run().with(1).tells("there is no program \"no-such-program\"");
    let forbidden = file("forbidden", "#!/bin/sh\n", 0o644);
    Launch::of(&[], &[text(&forbidden)]).run().with(1).tells("forbidden may not be run");
    let nonsense = file("nonsense", "nonsense\n", 0o755);
    let ran = Launch::of(&["--max-restarts", "3"], &[text(&nonsense)]).run().with(1);
    ran.tells("nonsense: running the program: Exec format error").says(0, "start anew");
    let lost = file("lost", "#!/no/such/interpreter\n", 0o755);
    Launch::of(&[], &[text(&lost)]).run().with(1).tells("No such file or directory");
    Launch::of(&[], &[text(&folder)]).run().with(1).tells("programs");
}

#[test]
fn a_log_folder_that_is_a_file() {
    let file = folder("log_file").join("file");
    std::fs::write(&file, "").expect("a file");
    let ran = Launch::of(&["--log-dir", text(&file)], &["true"]).run().with(1);
    ran.tells(&format!("log_dir: {} is a file", file.display()));
}

#[test]
fn output_goes_where_the_flags_say() {
    let logs = folder("logs");
    let flags = ["--nproc-per-node", "2", "--log-dir", text(&logs), "--tee", "0:3", "--redirects", "1:3"];
    let script = "echo out $RANK; echo err $RANK >&2; echo $TORCHELASTIC_ERROR_FILE > $1.$RANK";
    let launch = Launch::shell(&flags, script).arg("sh").arg(logs.join("error_file"));
    launch
        .run()
        .with(0)
        .says(1, "[default0]:out 0")
        .says(1, "[default0]:err 0")
        .says(0, "out 1")
        .says(0, "err 1");
    for rank in ["0", "1"] {
        let error_file = std::fs::read_to_string(logs.join(format!("error_file.{rank}"))).expect("told");
        let folder = std::path::Path::new(error_file.trim()).parent().expect("a folder");
        for (file, expected) in [("stdout.log", "out"), ("stderr.log", "err")] {
            let path = folder.join(file);
            assert_eq!(std::fs::read_to_string(path).expect("a file"), format!("{expected} {rank}\n"));
        }
    }
}

#[test]
fn temporary_folders_stay_only_with_something_in_them() {
    let temporary = folder("temporary");
    let count = || std::fs::read_dir(&temporary).expect("a folder").count();
    for (flags, script, code, left) in [
        (&["--max-restarts=1"][..], "exit $((1 - TORCHELASTIC_RESTART_COUNT))", 0, 0),
        (&[], "exit 1", 1, 0),
        (&[], "echo > $TORCHELASTIC_ERROR_FILE; exit 1", 1, 1),
        (&["--tee=3"], "true", 0, 2),
    ] {
        Launch::shell(flags, script).env("TMPDIR", &temporary).run().with(code);
        assert_eq!(count(), left, "{script}");
    }
    Launch::of(&[], &["no-such-program"]).env("TMPDIR", &temporary).run().with(1);
    assert_eq!(count(), 2);
}

#[test]
fn a_worker_may_close_its_output() {
    let script = "exec >&- 2>&-; exit $RANK";
    Launch::shell(&["--tee", "3"], script).run().with(0);
    Launch::shell(&["--nproc-per-node", "2"], script).run().with(1).tells("exitcode  : 1");
}

#[test]
fn what_a_worker_leaves_behind_ends_with_the_job() {
    for (end, code) in [("exit 0", 0), ("exit 5", 1)] {
        let gate = Gate::new(&format!("left_{code}"));
        let script = format!("setsid sh -c 'echo left $$; exec sleep 600' & {}; {end}", Gate::WAIT);
        let mut launched = Launch::shell(&[], &script).arg(&gate.path).start();
        let left = launched.number("left ");
        gate.open();
        launched.finish().with(code);
        until_gone(left);
    }
}

#[test]
fn error_files_good_and_bad() {
    for (file, expected) in [
        (r#"{"message": "boom", "timestamp": 1}"#, "traceback : boom"),
        (r#"{"message": "#, "the error file is not valid JSON"),
        ("", "the error file is empty"),
        ("[1]", "note      :"),
    ] {
        let launch =
            Launch::shell(&[], "printf %s \"$FILE\" > $TORCHELASTIC_ERROR_FILE; exit 7").env("FILE", file);
        launch.run().with(1).tells(expected).tells("exitcode  : 7");
    }
}

#[test]
fn paths_that_are_no_text_reach_the_workers_as_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let folder = folder("no_text").join(std::ffi::OsStr::from_bytes(b"l\xffgs"));
    std::fs::create_dir_all(&folder).expect("any name will do");
    let script = r#"test -p "$TORCHELASTIC_TIMER_FILE" || exit 9
        printf '{"message": "boom"}' > "$TORCHELASTIC_ERROR_FILE"; exit 7"#;
    let launch = Launch::shell(&[], script).env("PET_LOG_DIR", &folder);
    let launch = launch.env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let ran = launch.env("TORCHELASTIC_TIMER_FILE", folder.join("timers")).run().with(1);
    ran.tells("exitcode  : 7").tells("traceback : boom");
}

#[test]
fn an_agent_hands_the_root_cause_on() {
    let local = folder("handed_on").join("error.json");
    let script = r#"printf '{"message": {"message": "boom", "extraInfo": {"timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE; exit 7"#;
    Launch::shell(&[], script).env("TORCHELASTIC_ERROR_FILE", &local).run().with(1);
    let reported: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&local).expect("an error file")).expect("JSON");
    assert_eq!(
        (&reported["message"]["message"], &reported["message"]["errorCode"]),
        (&"boom".into(), &7.into()),
        "{reported}"
    );
}

#[test]
fn each_start_has_a_store_of_its_own_even_at_a_port_that_is_named() {
    // What the first start leaves in its store, the second one must not find.
    let script = "at=127.0.0.1:$MASTER_PORT; echo at $MASTER_ADDR:$MASTER_PORT; \"$0\" store --endpoint $at list || exit 2
        \"$0\" store --endpoint $at set left$TORCHELASTIC_RESTART_COUNT x || exit 2; exit $((1 - TORCHELASTIC_RESTART_COUNT))";
    let port = super::free_port();
    for flags in [&[][..], &["--master-addr=127.0.0.1"], &["--standalone"]] {
        let local = ["--max-restarts=1", "--master-port", &port];
        let ran =
            Launch::shell(&[&local[..], flags].concat(), script).arg(crate::rdzv::program()).run().with(0);
        ran.says(2, &format!(":{port}")).says(1, "exitcode  : 1").says(0, "left0");
    }
}

/// The local addresses, in the system's own words, at which this process listens.
fn listens_at(pid: u32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let links: Vec<String> = links
        .flatten()
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_string()))
        .collect();
    let lists = ["tcp", "tcp6"].map(|list| std::fs::read_to_string(format!("/proc/net/{list}")));
    let lists = lists.map(Result::unwrap_or_default);
    let fields = lists.iter().flat_map(|list| list.lines()).map(|line| line.split_ascii_whitespace());
    let fields = fields.map(Iterator::collect::<Vec<_>>);
    let local = fields.filter(|fields| fields.len() > 9 && fields[3] == "0A");
    let local = local.filter(|fields| links.contains(&format!("socket:[{}]", fields[9])));
    local.map(|fields| fields[1].to_string()).collect()
}

#[test]
fn a_job_of_one_node_listens_to_nobody_else() {
    for flags in [&[][..], &["--standalone"]] {
        let mut launched = Launch::shell(flags, "echo at $MASTER_ADDR; exec sleep 600").start();
        launched.until(1, "at 127.0.0.1");
        let addresses = listens_at(launched.child.id());
        assert_eq!(addresses.len(), 2, "the rendezvous and the workers' store: {addresses:?}");
        for address in &addresses {
            let loopback = ["0100007F:", "00000000000000000000000001000000:"];
            assert!(loopback.iter().any(|local| address.starts_with(local)), "{addresses:?}");
        }
        launched.signal(libc::SIGTERM);
        launched.finish();
    }
}

#[test]
fn python_runs_scripts_and_modules() {
    let folder = folder("python");
    let script = folder.join("script.py");
    std::fs::write(&script, "import os, sys\nprint('python', os.environ['RANK'], sys.argv[1:])\n")
        .expect("a file");
    Launch::of(&[], &[text(&script), "--flag"]).run().with(0).says(1, "python 0 ['--flag']");
    let mut module = Launch::of(&["-m"], &["script", "x"]);
    module.command.current_dir(&folder);
    module.run().with(0).says(1, "python 0 ['x']");
    let unnamed = folder.join("unnamed");
    std::fs::copy(&script, &unnamed).expect("a copy");
    let flags = ["--run-path", "--no-python", "--start-method", "spawn"];
    Launch::of(&flags, &[text(&unnamed)]).run().with(0).says(1, "python 0 []");
    let mut direct = Launch::of(&["--no-python"], &[text(&script)]);
    direct.command.current_dir(&folder);
    direct.run().with(1).tells("script.py may not be run");
}

#[test]
fn an_agent_that_is_killed_leaves_nothing() {
    // This one's end is not seen by that of its output.
    let script = format!("setsid sh -c 'echo left $$; exec sleep 600 >/dev/null 2>&1' & {IDLE}");
    let mut launched = Launch::shell(&[], &script).start();
    launched.until(1, "idle ");
    let left = launched.number("left ");
    launched.signal(libc::SIGKILL);
    launched.finish();
    until_gone(left);
}

#[test]
fn an_agent_that_is_killed_while_it_stops_its_workers_leaves_nothing() {
    let gate = Gate::new("stops");
    let script = format!("[ $RANK = 0 ] && {{ {}; exit 1; }}; {DEAF}", Gate::WAIT);
    let flags = ["--nproc-per-node", "2", "--max-restarts", "1"];
    let mut launched = Launch::shell(&flags, &script).arg(&gate.path).start();
    launched.until(1, "ready");
    gate.open();
    launched.until(1, "refused");
    launched.signal(libc::SIGKILL);
    launched.finish();
}
