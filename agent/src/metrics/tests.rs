use super::*;
use crate::group::ExitStatus;
use crate::observer::stage::Stage;
use crate::reason::{StopCause, WaitFailure};
use crate::supervisor::{Input, Membership};
use crate::worker_event::WorkerEvent;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Returns the metrics of a `play`, one line for each moment that has some.
fn measured(
    max_restarts: u32,
    play: impl FnOnce(&mut Stage<&mut dyn FnMut(Instant, &Supervisor, Happened<'_>)>),
) -> String {
    let mut lines = Vec::<(Instant, String)>::new();
    let mut metrics = Metrics::default();
    let mut watch = |now: Instant, machine: &Supervisor, happened: Happened<'_>| {
        metrics.observe(now, machine, happened, &mut |name: &str, value: i64| {
            if lines.last().is_none_or(|(at, _)| *at != now) {
                lines.push((now, String::new()));
            }
            let (_, line) = lines.last_mut().expect("just pushed");
            let name = name.replace("workers.trainer.", "").replace("ElasticAgent.", "");
            write!(line, " {name}={value}").expect("a string");
        });
    };
    play(&mut Stage::new(max_restarts, &mut watch));
    lines.iter().map(|(at, line)| format!("{}:{line}\n", at.as_nanos() / 1_000_000)).collect()
}

#[test]
fn a_life_with_a_restart() {
    let seen = measured(3, |stage| {
        stage.after(1, Input::Begin).meets(10).numbered(20).starts(30).exits(1000, 1, ExitStatus::Code(3));
        stage.after(5, Input::Worker(WorkerEvent::Empty)).meets(10).numbered(20).starts(30);
        stage.exits(100, 0, ExitStatus::Code(0)).exits(100, 1, ExitStatus::Code(0));
        stage.after(0, Input::Worker(WorkerEvent::Empty)).parts(50).closes(5);
    });
    let wanted = "\
31: Simple_rendezvous.success=1 Simple_rendezvous.duration.ms=30 Simple_assign_worker_ranks.success=1 \
Simple_assign_worker_ranks.duration.ms=20
61: remaining_restarts=3 healthy=1 Local_start_workers.success=1 Local_start_workers.duration.ms=30 \
Simple_initialize_workers.success=1 Simple_initialize_workers.duration.ms=60 start.detect.us=0 start.stop.us=0 \
start.rendezvous.us=10000 start.assign.us=20000 start.start.us=30000 start.total.us=60000
1061: remaining_restarts=2 failed=1
1066: Local_stop_workers.success=1 Local_stop_workers.duration.ms=5
1096: Simple_rendezvous.success=1 Simple_rendezvous.duration.ms=30 Simple_assign_worker_ranks.success=1 \
Simple_assign_worker_ranks.duration.ms=20
1126: remaining_restarts=2 healthy=1 Local_start_workers.success=1 Local_start_workers.duration.ms=30 \
Simple_initialize_workers.success=1 Simple_initialize_workers.duration.ms=60 Simple_restart_workers.success=1 \
Simple_restart_workers.duration.ms=65 restart.detect.us=0 restart.stop.us=5000 restart.rendezvous.us=10000 \
restart.assign.us=20000 restart.start.us=30000 restart.total.us=65000
1326: remaining_restarts=2 succeeded=1
1376: Local_stop_workers.success=1 Local_stop_workers.duration.ms=0
1381: flakiness=25 run_total=1 run_success_with_retries=1 run_success_no_retries=0 run_failed_with_retries=0 \
run_failed_no_retries=0 Simplerun.success=1 Simplerun.duration.ms=1380
";
    assert_eq!(seen, wanted, "\n{seen}");
}

#[test]
fn steps_that_fail_say_so() {
    // No ranks: the agents meet again; then a signal arrives.
    let seen = measured(1, |stage| {
        stage.after(0, Input::Begin).meets(10);
        stage.after(7, Input::NotAssigned { call: 2, kind: WaitFailure::Failed, message: "lost".into() });
        stage.after(3, Input::Stop(StopCause::Signal(15))).closes(1);
    });
    let wanted = "\
17: remaining_restarts=0 failed=1 Simple_rendezvous.failure=1 Simple_rendezvous.duration.ms=17 \
Simple_assign_worker_ranks.failure=1 Simple_assign_worker_ranks.duration.ms=7 Simple_initialize_workers.failure=1 \
Simple_initialize_workers.duration.ms=17
20: Simple_rendezvous.failure=1 Simple_rendezvous.duration.ms=3 Simple_initialize_workers.failure=1 \
Simple_initialize_workers.duration.ms=3 Local_stop_workers.success=1 Local_stop_workers.duration.ms=0
21: flakiness=100 run_total=1 run_success_with_retries=0 run_success_no_retries=0 run_failed_with_retries=1 \
run_failed_no_retries=0 Simplerun.failure=1 Simplerun.duration.ms=21
";
    assert_eq!(seen, wanted, "\n{seen}");
}

#[test]
fn each_state_is_counted() {
    let last = |input: Input| {
        let seen = measured(0, |stage| {
            stage.after(0, Input::Begin).meets(0).numbered(0).starts(0).after(1, input);
        });
        seen.lines().find_map(|line| line.strip_prefix("1: remaining_restarts=0 ")).map(String::from)
    };
    let exit = ExitStatus::Signal(9);
    let states = [
        (
            Input::Worker(WorkerEvent::Exited {
                local_rank: 0,
                exit,
                at: Instant::from_millis(1),
                was_ending: false,
                returned: None,
            }),
            Some("failed=1"),
        ),
        (
            Input::Worker(WorkerEvent::Stuck { local_rank: 0, since: Duration::from_secs(9) }),
            Some("unhealthy=1"),
        ),
        (Input::Worker(WorkerEvent::GuardLost { message: "gone".into() }), Some("unknown=1")),
        (Input::Member(Membership::NodesWaiting { nodes: 1 }), None),
        (Input::Stop(StopCause::Requested), None),
    ];
    for (input, state) in states {
        assert_eq!(last(input.clone()).as_deref(), state, "{input:?}");
    }
}

#[test]
fn a_line_is_pytorchs() {
    let line =
        ConsoleLine { at: Duration::new(1_700_000_000, 250_000_000), name: "workers.a.run_total", value: 1 };
    assert_eq!(format!("{line}"), "[1700000000.250000][torchelastic]: workers.a.run_total=1");
}
