//! Which workers have failed, and which failure is the root cause.

use super::*;

#[test]
fn who_was_killed_is_the_root_cause_although_its_peers_ended_first() {
    let mut play = Play::new(WorkerSpec { local_world_size: 4, ..spec() });
    play.running().pass(Duration::from_millis(10));
    // Its sockets closed before its end was reported.
    play.exited(0, ExitStatus::Code(1)).pass(Duration::from_millis(1)).exited(3, ExitStatus::Signal(9));
    // These end because of the signal, each in its way.
    play.exited(1, ExitStatus::Signal(15))
        .exited(2, ExitStatus::Signal(6))
        .give(Input::Worker(WorkerEvent::Empty));
    let exits = play.outputs.iter().filter_map(|output| match output {
        Output::Notify(Notice::Exited { local_rank, exit, stopped_for }) => {
            Some(Notice::exit_text(ranks(*local_rank), *exit, stopped_for.as_ref()))
        }
        _ => None,
    });
    let stopped = "rank 5 (local rank 1) was stopped: rank 4 (local rank 0) ended with exit code 1";
    assert_eq!(
        exits.collect::<Vec<_>>(),
        [
            "rank 4 (local rank 0) ended with exit code 1",
            "rank 7 (local rank 3) was ended by SIGKILL",
            stopped,
            // An abort is no way to obey.
            "rank 6 (local rank 2) was ended by SIGABRT",
        ]
    );
    let report = play.actions().into_iter().find_map(|output| match output {
        Output::Report { failures, .. } => Some(failures),
        _ => None,
    });
    let ranks = report.expect("a report").iter().map(|failed| failed.local_rank).collect::<Vec<_>>();
    assert_eq!(ranks, [3, 0, 2]);
    assert_eq!(play.agent.restarts_left(), 0, "one restart for both");
}

#[test]
fn who_is_killed_because_it_does_not_stop_has_not_failed() {
    let mut play = Play::new(spec());
    play.running()
        .exited(0, ExitStatus::Code(1))
        .pass(STOP)
        .exited(1, ExitStatus::Signal(9))
        .give(Input::Worker(WorkerEvent::Empty));
    let report = play.actions().into_iter().find_map(|output| match output {
        Output::Report { failures, .. } => Some(failures),
        _ => None,
    });
    assert_eq!(report.expect("a report").len(), 1);
}

#[test]
fn a_worker_that_died_before_the_signal_was_sent_has_failed_too() {
    let mut play = Play::new(WorkerSpec { local_world_size: 3, ..spec() });
    play.running().pass(Duration::from_millis(10));
    let now = play.now;
    // Both died in one millisecond. The second is reported after the first had its consequences.
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 2,
        exit: ExitStatus::Code(1),
        at: at(9),
        was_ending: false,
        returned: None,
    }));
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 0,
        exit: ExitStatus::Code(1),
        at: at(9),
        was_ending: false,
        returned: None,
    }));
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 1,
        exit: ExitStatus::Code(1),
        at: now + Duration::from_millis(1),
        was_ending: false,
        returned: None,
    }));
    play.outputs.clear();
    play.give(Input::Worker(WorkerEvent::Empty));
    let Some(Output::Report { group, failures }) = play.actions().into_iter().next() else {
        panic!("no report")
    };
    assert_eq!(group.workers.len(), 3, "those that failed, although the agent has gone on");
    assert_eq!(failures.iter().map(|failed| failed.local_rank).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(play.agent.restarts_left(), 0, "one restart for both");
}

#[test]
fn a_worker_that_crashes_after_the_signal_is_not_the_root_cause() {
    let mut play = Play::new(WorkerSpec { local_world_size: 4, ..spec() });
    play.running().pass(Duration::from_millis(10));
    let now = play.now;
    play.exited(1, ExitStatus::Code(3)).pass(Duration::from_millis(2));
    // One crashes after the signal. Another had crashed before, which is reported late.
    play.exited(0, ExitStatus::Signal(11));
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 2,
        exit: ExitStatus::Signal(11),
        at: now,
        was_ending: false,
        returned: None,
    }));
    play.exited(3, ExitStatus::Signal(15)).give(Input::Worker(WorkerEvent::Empty));
    let report = play.actions().into_iter().find_map(|output| match output {
        Output::Report { failures, .. } => Some(failures),
        _ => None,
    });
    let ranks = report.expect("a report").iter().map(|failed| failed.local_rank).collect::<Vec<_>>();
    assert_eq!(ranks, [2, 1, 0]);
}

/// Returns the ranks in the report, in its order.
fn named(play: &mut Play) -> Vec<u32> {
    play.give(Input::Worker(WorkerEvent::Empty));
    let report = play.actions().into_iter().find_map(|output| match output {
        Output::Report { failures, .. } => Some(failures),
        _ => None,
    });
    report.expect("a report").iter().map(|failed| failed.local_rank).collect()
}

#[test]
fn a_worker_that_was_ending_before_the_stop_has_failed_whenever_its_end_is_seen() {
    let mut play = Play::new(WorkerSpec { local_world_size: 4, ..spec() });
    play.running().pass(Duration::from_millis(10));
    // Worker 2 had begun to end at 7 ms; worker 1 noticed, and was seen to end at 10 ms.
    play.exited(1, ExitStatus::Code(1)).pass(Duration::from_millis(3));
    let exited = |local_rank, exit, at, was_ending| {
        Input::Worker(WorkerEvent::Exited { local_rank, exit, at, was_ending, returned: None })
    };
    play.give(exited(2, ExitStatus::Code(3), at(7), true));
    // This one was ending when the signal was sent to it, a moment after the stop was requested.
    play.give(exited(0, ExitStatus::Code(1), play.now, true));
    play.give(exited(3, ExitStatus::Code(1), play.now, false));
    assert_eq!(named(&mut play), [2, 1, 0]);
}

#[test]
fn a_worker_that_had_written_an_error_file_has_failed_however_it_ends() {
    for exit in [ExitStatus::Signal(15), ExitStatus::Code(1), ExitStatus::Code(0)] {
        let mut play = Play::new(WorkerSpec { local_world_size: 3, max_restarts: 0, ..spec() });
        play.running().pass(Duration::from_millis(10));
        play.give(Input::Worker(WorkerEvent::ErrorWritten { local_rank: 2, at: at(4) }));
        play.exited(0, ExitStatus::Code(1)).pass(Duration::from_millis(300));
        play.exited(1, ExitStatus::Signal(15)).exited(2, exit);
        assert_eq!(named(&mut play), [2, 0]);
        play.pass(Duration::from_millis(500));
        let reason = Reason::ErrorWritten { worker: ranks(2) };
        assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason }));
    }
    // An error file of its own does not make a crash a consequence of another failure.
    let mut play = Play::new(WorkerSpec { local_world_size: 3, max_restarts: 0, ..spec() });
    play.running().pass(Duration::from_millis(10));
    play.give(Input::Worker(WorkerEvent::ErrorWritten { local_rank: 2, at: at(4) }));
    play.exited(0, ExitStatus::Signal(11)).pass(Duration::from_millis(1));
    play.exited(1, ExitStatus::Signal(15)).exited(2, ExitStatus::Signal(15));
    assert_eq!(named(&mut play), [0, 2]);
}

#[test]
fn an_abort_is_a_failure_and_may_follow_from_another() {
    let mut play = Play::new(WorkerSpec { local_world_size: 3, ..spec() });
    play.running().pass(Duration::from_millis(10));
    let now = play.now;
    play.exited(1, ExitStatus::Signal(6)).pass(Duration::from_millis(3));
    let exit = ExitStatus::Code(3);
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 2,
        exit,
        at: at(9),
        was_ending: true,
        returned: None,
    }));
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 0,
        exit: ExitStatus::Signal(6),
        at: now,
        was_ending: true,
        returned: None,
    }));
    assert_eq!(named(&mut play), [2, 1, 0], "by their times");
}
