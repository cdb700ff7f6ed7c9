//! Command lines: what is refused and how, and what stands for what.

use super::{Launch, folder, text};

#[track_caller]
fn refused(flags: &[&str], message: &str) {
    let ran = Launch::shell(flags, "echo started").run().with(2);
    ran.tells(message).says(0, "started");
}

#[test]
fn a_backend_that_does_not_exist_is_refused_also_for_one_node() {
    for nodes in [&[][..], &["--standalone"], &["--nnodes=2", "--rdzv-endpoint=127.0.0.1:1"]] {
        let with = |backend: &'static str| [nodes, &["--rdzv-backend", backend]].concat();
        refused(
            &with("foo"),
            "--rdzv-backend foo: there is no such backend; there are rdzv, static, and c10d",
        );
        refused(&with(""), "The rendezvous backend name must be a non-empty string");
        for backend in ["etcd", "etcd-v2"] {
            let message =
                format!("The rendezvous backend '{backend}' is not built in: it needs an etcd server");
            refused(&with(backend), &message);
        }
    }
    refused(&["--rdzv-id="], "The run id must be a non-empty string");
    Launch::shell(&["--rdzv-backend=c10d"], "echo started").run().with(0).says(1, "started");
}

#[test]
fn flags_may_be_shortened_as_long_as_they_are_clear() {
    for flag in ["--nproc", "--nproc-per", "--nproc_per", "--nproc_per_node"] {
        Launch::shell(&[flag, "2"], "echo size=$WORLD_SIZE").run().with(0).says(2, "size=2");
    }
    refused(&["--n", "2"], "--n may be short for --nnodes, --nproc-per-node, --no-python");
    refused(
        &["--rdzv_", "2"],
        "--rdzv_ may be short for --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf",
    );
    refused(&["--nodes", "2"], "unexpected argument '--nodes' found");
    for flag in ["--nproc-per-nodd", "--max-restrats"] {
        let ran = Launch::shell(&[flag, "2"], "echo started").run().with(2);
        ran.says(1, "tip: a similar argument exists: '--").says(0, "as a value");
    }
    // What follows COMMAND is the command's.
    let ran = Launch::of(&[], &["sh", "-c", "echo \"$0 $1\"", "--nproc", "2"]).run().with(0);
    ran.says(1, "--nproc 2");
}

#[test]
fn a_negative_number_is_told_as_a_bad_value() {
    for flag in ["--max-restarts", "--node-rank", "--master-port", "--monitor-interval", "--shutdown-timeout"]
    {
        refused(&[flag, "-1"], &format!("invalid value '-1' for '{flag} <"));
    }
    refused(&["--nproc-per-node", "-1"], "nproc_per_node value: -1");
    refused(&["--nnodes", "-1"], "nnodes=-1 is not in \"MIN:MAX\" format");
}

#[test]
fn a_folder_for_temporary_files_that_does_not_exist_is_replaced() {
    let missing = folder("no_temporary").join("missing");
    let script = "[ -f \"$TORCHELASTIC_ERROR_FILE\" ] || [ -d \"${TORCHELASTIC_ERROR_FILE%/*}\" ] && \
                  echo in $TORCHELASTIC_ERROR_FILE";
    for timers in ["0", "1"] {
        let launch = Launch::shell(&[], script).env("TMPDIR", text(&missing));
        let ran = launch.env("TORCHELASTIC_ENABLE_FILE_TIMER", timers).run().with(0);
        ran.says(1, "/torchelastic_").says(0, text(&missing));
        ran.says(usize::from(timers == "1"), "/watchdog_timer_");
    }
}

#[test]
fn a_worker_has_amds_list_of_devices_only_if_its_agent_has() {
    let script = "echo cuda=$CUDA_VISIBLE_DEVICES hip=${HIP_VISIBLE_DEVICES-unset}";
    let flags = ["--virtual-local-rank", "--nproc-per-node=2"];
    let ran = Launch::shell(&flags, script).env("CUDA_VISIBLE_DEVICES", "4,6").run().with(0);
    ran.says(1, "cuda=4 hip=unset").says(1, "cuda=6 hip=unset");
    let ran = Launch::shell(&flags, script).env("HIP_VISIBLE_DEVICES", "1,3").run().with(0);
    ran.says(1, "cuda=1 hip=1").says(1, "cuda=3 hip=3");
}

#[test]
fn durations_have_units_also_in_the_configuration_of_the_rendezvous() {
    let flags = ["--shutdown-timeout=2min", "--monitor-interval", "0.5", "--leftover-timeout=500ms"];
    let config = "--rdzv-conf=join_timeout=1min,keep_alive_interval=250ms,last_call_timeout=0.5,grace=3";
    let flags = [&flags[..], &[config]].concat();
    Launch::shell(&flags, "echo started").run().with(0).says(1, "started");
    refused(&["--monitor-interval", "often"], "not a duration: write a number with a unit, such as 30s");
    refused(&["--rdzv-conf", "join_timeout=soon"], "--rdzv-conf join_timeout=soon: not a duration");
    refused(&["--rdzv-conf", "join_timeout=0s"], "The join timeout (0:00:00) must be positive");
    refused(&["--rdzv-conf", "keep_alive_interval=10us"], "'keep_alive_interval' is 0, not from 1");
}

#[test]
fn an_unknown_key_of_the_configuration_is_refused_with_the_known_ones() {
    let by_hand = ["--rdzv-backend=static", "--nnodes=2", "--master-addr=127.0.0.1"];
    for (flags, known) in
        [(&[][..], "It has: join_timeout, "), (&by_hand, "It has: rank, timeout, listen_host.")]
    {
        let flags = [flags, &["--rdzv-conf=join_timeoutt=3"]].concat();
        refused(&flags, "has no configuration option 'join_timeoutt'");
        refused(&flags, known);
        // It is the only line: nothing has been configured yet.
        let ran = Launch::shell(&flags, "echo started").run().with(2);
        assert_eq!(ran.lines.len(), 1, "{ran:#?}");
    }
    for (key, name) in [("join_timeoutt", "join_timeout"), ("keepalive_interval", "keep_alive_interval")] {
        refused(&[&format!("--rdzv-conf={key}=3")], &format!("Did you mean '{name}'?"));
    }
    let ran = Launch::shell(&["--rdzv-conf=zzz=3"], "echo started").run().with(2);
    ran.says(0, "Did you mean");
}

#[test]
fn an_endpoint_whose_port_only_one_node_would_know_is_refused() {
    for nodes in ["2", "1:2"] {
        for backend in ["rdzv", "static"] {
            let flags = ["--nnodes", nodes, "--rdzv-endpoint=127.0.0.1:0", "--rdzv-backend", backend];
            refused(
                &flags,
                "--rdzv-endpoint 127.0.0.1:0: port 0 is a free port that other nodes cannot know",
            );
        }
    }
    Launch::shell(&["--rdzv-endpoint=127.0.0.1:0"], "echo started").run().with(0).says(1, "started");
}

/// A variable may be meant for other commands on the host, but a flag asks for what this run would not have.
#[test]
fn a_token_for_static_ranks_is_refused_as_a_flag_and_noted_as_a_variable() {
    let folder = folder("static_token");
    let token = folder.join("token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").expect("a token file");
    let token = token.to_str().expect("text");
    let port = super::free_port();
    let flags = ["--rdzv-backend=static", "--master-port", &port];
    refused(
        &[&flags[..], &["--auth-token-file", token]].concat(),
        "--auth-token-file: the store of backend static cannot ask for a token: use --rdzv-backend rdzv",
    );
    let ran = Launch::shell(&flags, "echo started").env("RDZV_TOKEN_FILE", token).run().with(0);
    ran.says(1, "RDZV_TOKEN_FILE is for backend rdzv").says(1, "started");
}

/// The same worker has the same name in every line and in the report, where its two ranks differ.
#[test]
fn a_worker_is_named_by_both_of_its_ranks_everywhere() {
    let port = super::free_port();
    let report = folder("both_ranks").join("report.json");
    let job = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port", &port];
    let script = "[ $RANK = 3 ] && exit 5; exec sleep 600";
    let node =
        |rank: &str, more: &[&str]| Launch::shell(&[&job, more, &["--node-rank", rank]].concat(), script);
    let zero = node("0", &["--monitor-interval=0.1"]).start();
    let one = node("1", &["--report", text(&report)]).run().with(1);
    one.tells("rank 3 (local rank 1), pid ").tells("failed: rank 3 (local rank 1) ended with exit code 5");
    let lines = one.lines.iter().filter(|line| line.contains("exit code 5"));
    assert!(lines.into_iter().all(|line| line.contains("rank 3 (local rank 1)")), "{one:#?}");
    let reported = std::fs::read_to_string(&report).expect("a report");
    assert!(reported.contains("\"rank 3 (local rank 1) ended with exit code 5\""), "{reported}");
    zero.finish().with(1).tells("rank 3 (local rank 1) ended with exit code 5");
}
