//! The exit barrier, and the ways to leave it.

use super::super::exit_barrier::{ARRIVAL_DELAY_MAX, NEWS_DELAY_MAX};
use super::*;

#[test]
fn who_has_succeeded_does_not_wait_for_the_dead_and_leaves_the_run_open() {
    let mut play = in_phase(Phase::ExitBarrier);
    play.give(Input::Member(Membership::PeerDied { message: "node b died".into() }));
    let call = play.call;
    assert_eq!(play.actions().pop(), Some(Output::Close { call, leave_mode: LeaveMode::Leave }));
    play.give(Input::Closed { call });
    let missing = Some(Reason::PeerDied { message: "node b died".into() });
    assert_eq!(play.agent.outcome(), Some(&Outcome::Succeeded { missing }));
}

#[test]
fn what_ended_the_round_decides_whether_who_has_succeeded_comes_back() {
    let over = |play: &mut Play| {
        let call = play.call;
        play.give(exit_barrier_failed(call, WaitFailure::RoundOver));
        assert_eq!(
            (play.phase(), play.agent.deadline()),
            (Phase::ExitBarrier, Some(play.now + NEWS_DELAY_MAX))
        );
    };
    let mut play = in_phase(Phase::ExitBarrier);
    over(&mut play);
    play.give(Input::Member(Membership::RoundOver { message: "too few".into() }));
    assert_eq!((play.phase(), play.agent.deadline()), (Phase::Meeting, None));
    let mut play = in_phase(Phase::ExitBarrier);
    over(&mut play);
    play.give(Input::Member(Membership::PeerDied { message: "b died".into() }));
    assert_eq!(play.phase(), Phase::Closing);
    // No report follows.
    let mut play = in_phase(Phase::ExitBarrier);
    over(&mut play);
    play.pass(NEWS_DELAY_MAX);
    assert_eq!((play.phase(), play.agent.deadline()), (Phase::Closing, None));
    let missing = Some(Reason::ExitBarrierFailed { message: "round 0 is over".into() });
    assert_eq!(play.agent.outcome(), Some(&Outcome::Succeeded { missing }));
}

#[test]
fn who_leaves_the_exit_barrier_waits_until_it_is_known_whether_the_others_wait_for_it() {
    let leaving = |input: Input| {
        let mut play = in_phase(Phase::ExitBarrier);
        let call = play.call;
        play.outputs.clear();
        play.give(input);
        assert_eq!((play.phase(), play.actions()), (Phase::ExitBarrier, vec![Output::Cancel { call }]));
        assert_eq!(play.agent.deadline(), Some(play.now + ARRIVAL_DELAY_MAX));
        play.outputs.clear();
        // Changes of the round meanwhile concern agents that stay.
        for membership in
            [Membership::NodesWaiting { nodes: 1 }, Membership::PeerDied { message: "b".into() }]
        {
            play.give(Input::Member(membership));
            assert_eq!((play.phase(), play.actions()), (Phase::ExitBarrier, vec![]));
        }
        (play, call)
    };
    let unseen = || Input::Worker(WorkerEvent::GuardLost { message: "gone".into() });
    let stop = || Input::Stop(StopCause::Requested);
    let stopped = Outcome::Stopped { cause: StopCause::Requested };
    let leave = |play: &Play| Output::Close { call: play.call, leave_mode: LeaveMode::Leave };
    // Not counted, or perhaps not, or no answer: a graceful leave alone would leave the others waiting.
    let (mut play, call) = leaving(stop());
    play.give(exit_barrier_failed(call, WaitFailure::Failed));
    assert_eq!((play.actions(), play.agent.outcome()), (vec![Output::Abandon, leave(&play)], Some(&stopped)));
    let (mut play, _) = leaving(stop());
    play.pass(ARRIVAL_DELAY_MAX);
    assert_eq!((play.actions().first(), play.agent.outcome()), (Some(&Output::Abandon), Some(&stopped)));
    let (mut play, _) = leaving(stop());
    play.give(stop());
    assert_eq!((play.actions().first(), play.agent.outcome()), (Some(&Output::Abandon), Some(&stopped)));
    // The first stop counts as such, whatever made the agent leave before.
    let (mut play, call) = leaving(unseen());
    play.give(stop()).give(unseen());
    assert_eq!((play.phase(), play.actions()), (Phase::ExitBarrier, vec![]));
    play.give(Input::Arrived { call });
    assert_eq!((play.actions(), play.agent.outcome()), (vec![leave(&play)], Some(&stopped)));
    // No agent waits in the round any more.
    let (mut play, call) = leaving(stop());
    play.give(exit_barrier_failed(call, WaitFailure::RoundOver));
    assert_eq!((play.actions(), play.agent.outcome()), (vec![leave(&play)], Some(&stopped)));
    // All agents arrived at the same moment.
    let (mut play, call) = leaving(stop());
    play.give(Input::ExitBarrierPassed { call });
    assert_eq!(play.agent.outcome(), Some(&Outcome::Succeeded { missing: None }));
    // An agent that cannot even arrive must not be waited for.
    let mut play = in_phase(Phase::ExitBarrier);
    let call = play.call;
    play.outputs.clear();
    play.give(exit_barrier_failed(call, WaitFailure::Failed));
    assert_eq!(play.actions(), [Output::Abandon, leave(&play)]);
}

#[test]
fn who_was_counted_at_the_exit_barrier_may_leave_it_at_once() {
    let counted = |input: Input| {
        let mut play = in_phase(Phase::ExitBarrier);
        let call = play.call;
        play.give(Input::Arrived { call }).outputs.clear();
        play.give(input);
        let left = [Output::Cancel { call }, Output::Close { call: play.call, leave_mode: LeaveMode::Leave }];
        assert_eq!(play.actions(), left, "no death is announced");
        play.agent.outcome().cloned()
    };
    let cause = StopCause::Requested;
    assert_eq!(counted(Input::Stop(cause)), Some(Outcome::Stopped { cause }));
    // The workers had succeeded before the guard was lost.
    let reason = Reason::GuardLost { message: "gone".into() };
    assert_eq!(
        counted(Input::Worker(WorkerEvent::GuardLost { message: "gone".into() })),
        Some(Outcome::Succeeded { missing: Some(reason) })
    );
    // The arrival at another barrier does not count for this one.
    let mut play = in_phase(Phase::ExitBarrier);
    let call = play.call;
    play.give(Input::Arrived { call }).give(Input::Member(Membership::NodesWaiting { nodes: 1 }));
    play.give(Input::Worker(WorkerEvent::Empty)).joined().assigned().started();
    play.exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    play.outputs.clear();
    play.give(Input::Stop(cause));
    assert_eq!(
        (play.phase(), play.actions()),
        (Phase::ExitBarrier, vec![Output::Cancel { call: play.call }])
    );
}

#[test]
fn who_had_succeeded_and_finds_no_other_round_stands_by_the_last_one() {
    let comes_back = || {
        let mut play = in_phase(Phase::ExitBarrier);
        play.give(Input::Member(Membership::NodesWaiting { nodes: 1 }))
            .give(Input::Worker(WorkerEvent::Empty));
        assert_eq!(play.phase(), Phase::Meeting);
        play
    };
    let closed = |play: &mut Play| {
        let call = play.call;
        play.give(Input::NotJoined { call, kind: NoRound::Closed, message: "by b".into() });
        Some(Reason::NoRound { kind: NoRound::Closed, message: "by b".into() })
    };
    let mut play = comes_back();
    let missing = closed(&mut play);
    assert_eq!(play.agent.outcome(), Some(&Outcome::Succeeded { missing }));
    assert_eq!((play.phase(), play.agent.group().state), (Phase::Closing, WorkerState::Succeeded));
    // The workers' results are still there, too.
    assert_eq!((play.agent.group().workers.len(), play.agent.group().group_rank), (2, Some(0)));
    // An event on the way to the other round changes nothing.
    let mut play = in_phase(Phase::Running);
    play.exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    play.give(Input::Member(Membership::NodesWaiting { nodes: 1 }));
    assert_eq!(play.phase(), Phase::Restarting);
    play.outputs.clear();
    play.give(Input::Member(Membership::ServerLost { message: "gone".into() }));
    assert!(matches!(play.agent.outcome(), Some(Outcome::Succeeded { missing: Some(_) })));
    // Once another start has begun, its result counts.
    let mut play = comes_back();
    play.joined().assigned().started().exited(0, ExitStatus::Code(1)).give(Input::Worker(WorkerEvent::Empty));
    let reason = closed(&mut play).expect("a reason");
    assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason }));
}

#[test]
fn what_lingers_after_success_is_stopped_when_all_have_parted() {
    let mut play = Play::new(spec());
    play.running().exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    let call = play.call;
    play.outputs.clear();
    play.give(Input::ExitBarrierPassed { call });
    assert_eq!(play.actions(), [Output::Signal { signal: 15 }]);
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Closing);
}
