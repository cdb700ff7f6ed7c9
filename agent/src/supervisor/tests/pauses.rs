//! The agent's process is paused, or the server ends its session.

use super::*;

#[test]
fn a_pause_costs_workers_none_of_their_time_to_end() {
    let mut play = Play::new(spec());
    play.running().give(Input::Stop(StopCause::Requested));
    // Half of the time passes, then the process is paused for an hour.
    play.pass(STOP / 2).pause(Duration::from_secs(3600));
    assert!(!play.outputs.contains(&Output::Kill), "{:?}", play.outputs);
    assert_eq!(play.agent.deadline(), Some(play.now + STOP / 2));
    play.pass(STOP / 2);
    assert!(play.outputs.contains(&Output::Kill), "{:?}", play.outputs);
}

#[test]
fn what_comes_after_a_pause_finds_no_deadline_passed() {
    let mut play = Play::new(spec());
    play.running().give(Input::Stop(StopCause::Requested));
    play.now = play.now + Duration::from_secs(3600);
    play.give(Input::Pass { signal: 10 }).pass(Duration::ZERO);
    assert!(!play.outputs.contains(&Output::Kill), "{:?}", play.outputs);
    assert_eq!(play.agent.deadline(), Some(play.now + STOP));
}

fn given_up() -> Input {
    Input::Member(Membership::SessionEnded { message: "heartbeats were missed".into() })
}

#[test]
fn a_node_that_the_server_gave_up_joins_again_and_pays_with_a_restart() {
    let mut play = Play::new(spec());
    play.running().give(given_up());
    assert_eq!((play.agent.phase(), play.agent.restarts_left()), (Phase::Restarting, 0));
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.agent.phase(), Phase::Meeting);
}

#[test]
fn without_a_restart_left_it_ends_alone_and_the_job_goes_on() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().give(given_up());
    assert_eq!(play.agent.phase(), Phase::Ending);
    let reason = Reason::SessionEnded { message: "heartbeats were missed".into() };
    assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason }));
    assert!(
        !play.outputs.iter().any(|output| matches!(output, Output::Announce { .. })),
        "{:?}",
        play.outputs
    );
}

#[test]
fn a_node_whose_workers_have_succeeded_keeps_its_result() {
    let mut play = Play::new(spec());
    play.exit_barrier();
    assert_eq!(play.agent.phase(), Phase::ExitBarrier);
    play.give(given_up());
    assert!(matches!(play.agent.outcome(), Some(Outcome::Succeeded { missing: Some(_) })));
}
