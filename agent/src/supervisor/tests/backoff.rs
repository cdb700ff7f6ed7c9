//! Restarts that fail at once, one after the other.

use super::*;

/// Lets the workers of a start fail after `ran`. Returns the pause before the next start.
fn fails_after(play: &mut Play, ran: Duration) -> Duration {
    play.joined().assigned().started();
    play.pass(ran)
        .exited(0, ExitStatus::Signal(9))
        .exited(1, ExitStatus::Signal(15))
        .give(Input::Worker(WorkerEvent::Empty));
    let pause = match play.phase() {
        Phase::Meeting => Duration::ZERO,
        phase => {
            assert_eq!(phase, Phase::Restarting);
            play.agent.deadline().expect("a pause").since(play.now)
        }
    };
    play.pass(pause);
    assert_eq!(play.phase(), Phase::Meeting);
    pause
}

fn spec_with(restart_backoff: Duration) -> WorkerSpec {
    WorkerSpec { max_restarts: 60, restart_backoff, ..spec() }
}

#[test]
fn starts_that_fail_at_once_wait_longer_each_time_and_the_first_does_not() {
    let mut play = Play::new(spec_with(Duration::from_secs(1)));
    play.give(Input::Begin);
    let pauses = [0; 8].map(|_| fails_after(&mut play, Duration::from_millis(20)).as_millis());
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000]);
    // A group that has run for as long as the longest pause resets the pauses.
    assert_eq!(fails_after(&mut play, Duration::from_secs(1)), Duration::ZERO);
    assert_eq!(fails_after(&mut play, Duration::ZERO).as_millis(), 100);
}

#[test]
fn failures_before_the_start_leave_no_pause_behind() {
    let mut play = Play::new(spec_with(Duration::from_secs(1)));
    play.give(Input::Begin);
    for _ in 0..5 {
        play.joined();
        let call = play.call;
        play.give(Input::NotAssigned {
            call,
            kind: WaitFailure::Failed,
            message: "the store is full".into(),
        });
    }
    assert_eq!(fails_after(&mut play, Duration::ZERO), Duration::ZERO, "the first start that failed");
}

#[test]
fn without_a_longest_pause_there_is_none() {
    let mut play = Play::new(spec_with(Duration::ZERO));
    play.give(Input::Begin);
    assert_eq!([0; 20].map(|_| fails_after(&mut play, Duration::ZERO).as_millis()), [0; 20]);
}

#[test]
fn who_is_stopped_during_the_pause_ends_at_once() {
    let mut play = Play::new(spec_with(Duration::from_secs(10)));
    play.give(Input::Begin);
    fails_after(&mut play, Duration::ZERO);
    play.joined()
        .assigned()
        .started()
        .exited(0, ExitStatus::Signal(9))
        .give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Restarting);
    play.give(Input::Stop(StopCause::Requested));
    assert_eq!(play.phase(), Phase::Closing);
}

#[test]
fn a_peers_death_that_is_heard_during_the_pause_gives_the_restart_back() {
    let mut play = Play::new(spec_with(Duration::from_secs(10)));
    play.give(Input::Begin);
    fails_after(&mut play, Duration::ZERO);
    let left = play.agent.restarts_left();
    play.joined().assigned().started().exited(0, ExitStatus::Code(1)).exited(1, ExitStatus::Code(1));
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Restarting, left - 1));
    play.give(Input::Member(Membership::PeerDied { message: "b".into() }));
    assert_eq!(play.agent.restarts_left(), left);
}

#[test]
fn a_failure_that_came_of_a_peers_death_does_not_count() {
    let mut play = Play::new(spec_with(Duration::from_secs(10)));
    play.give(Input::Begin);
    fails_after(&mut play, Duration::ZERO);
    play.joined().assigned().started().exited(0, ExitStatus::Code(1));
    play.give(Input::Member(Membership::PeerDied { message: "b".into() }))
        .give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Meeting, "no pause");
    assert_eq!(fails_after(&mut play, Duration::ZERO).as_millis(), 100);
}
