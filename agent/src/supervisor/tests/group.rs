//! Copies of the worker group that a program keeps.

use super::*;

#[test]
fn a_group_can_be_kept_while_the_agent_goes_on() {
    let mut play = in_phase(Phase::Running);
    let group = play.agent.group().clone();
    play.exited(1, ExitStatus::Code(1)).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(group.state, WorkerState::Healthy);
    let worker = Worker {
        local_rank: 1,
        global_rank: 5,
        role_rank: 3,
        world_size: 6,
        role_world_size: 4,
        pid: Some(101),
        exit: None,
    };
    assert_eq!(group.workers[1], worker);
    assert_eq!(play.agent.group().state, WorkerState::Stopped);
}
