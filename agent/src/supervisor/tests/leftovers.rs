//! Processes that outlive the workers that started them.

use super::*;

#[test]
fn what_workers_leave_behind_is_named_and_has_a_short_time() {
    let mut play = Play::new(spec());
    play.running().outputs.clear();
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(play.actions(), [Output::Abandon, Output::Signal { signal: 2 }]);
    play.exited(0, ExitStatus::Code(0));
    assert_eq!(play.actions(), [], "another worker is still there");
    play.pass(Duration::from_secs(10)).exited(1, ExitStatus::Signal(2));
    assert_eq!(play.actions(), [], "no process gets the signal twice");
    play.pass(Duration::from_millis(99));
    assert_eq!(play.actions(), [], "most of what there is follows by itself");
    play.pass(Duration::from_millis(1));
    assert_eq!(play.actions(), [Output::NameLeftovers]);
    play.outputs.clear();
    play.give(Input::Worker(WorkerEvent::Leftovers { message: "pid 7 (sleep)".into() }));
    let message = "pid 7 (sleep); killed in 2.9 s".into();
    assert_eq!(play.outputs.pop(), Some(Output::Notify(Notice::Remark { message })));
    play.pass(Duration::from_millis(2899));
    assert_eq!(play.actions(), []);
    play.pass(Duration::from_millis(1));
    let killing = Output::Notify(Notice::Killing { reason: Reason::LeftoverTimeout });
    assert_eq!(play.outputs, [killing, Output::Kill]);
}

#[test]
fn what_workers_leave_behind_has_no_longer_than_the_stop() {
    let mut play = Play::new(spec());
    play.running().give(Input::Stop(StopCause::Requested)).pass(Duration::from_secs(28));
    play.outputs.clear();
    play.exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    play.pass(Duration::from_millis(100)).pass(Duration::from_millis(1900));
    assert_eq!(play.actions(), [Output::NameLeftovers, Output::Kill]);
    // Processes that are killed already are not named.
    play.outputs.clear();
    play.give(Input::Worker(WorkerEvent::Leftovers { message: "pid 7 (sleep)".into() }));
    assert_eq!(play.outputs, []);
}

#[test]
fn a_daemon_delays_a_success_for_a_short_time() {
    let mut play = Play::new(spec());
    play.running().exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    let call = play.call;
    play.outputs.clear();
    play.give(Input::ExitBarrierPassed { call });
    assert_eq!(play.actions(), [Output::Signal { signal: 15 }]);
    play.pass(Duration::from_millis(100));
    assert_eq!(play.actions(), [Output::NameLeftovers]);
    play.pass(Duration::from_millis(2900));
    assert_eq!(play.actions(), [Output::Kill]);
}

#[test]
fn what_workers_that_were_stopped_as_they_started_leave_has_a_short_time_too() {
    let mut play = Play::new(spec());
    play.give(Input::Begin).joined().assigned().give(Input::Stop(StopCause::Requested));
    // One of them could not be started.
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 100 })).exited(0, ExitStatus::Code(0));
    play.outputs.clear();
    play.pass(Duration::from_secs(5));
    assert_eq!(play.actions(), [], "the other one may come up yet");
    let message = "a stop was asked for".into();
    play.give(Input::Worker(WorkerEvent::NotStarted {
        local_rank: 1,
        start_failure: StartFailure::Passing,
        message,
    }));
    play.pass(Duration::from_millis(100)).pass(Duration::from_millis(2900));
    assert_eq!(play.actions(), [Output::NameLeftovers, Output::Kill]);
}
