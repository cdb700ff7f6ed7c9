//! Ends of a guard's descendants: by a signal, killed, with the agent, with the guard.

use super::*;
use crate::driver::testing::{end_of, in_a_child};
use std::thread;

/// Returns pidfds of living processes, which are readable when those have ended.
fn watch(pids: &[u32]) -> Vec<OwnedFd> {
    let open = |pid: &u32| pidfd_of(pid.cast_signed()).expect("it lives").expect("the system has pidfds");
    pids.iter().map(open).collect()
}

#[track_caller]
fn all_end(watched: &[OwnedFd]) {
    assert!(watched.iter().all(|pidfd| becomes_readable(pidfd.as_raw_fd(), SOON)), "all end");
}

/// Returns whether the process is idle, or about to be.
fn lives(pid: u32) -> bool {
    matches!(process_state(pid), Ok(ProcessState::Running | ProcessState::Sleeping))
}

fn send(pid: u32, signal: i32) {
    // SAFETY: passes numbers only; the process belongs to this test.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
}

/// Plays a scene in worker 1. Returns the IDs that its processes have written.
#[track_caller]
fn play(
    guard: &mut Guard,
    scene: &str,
    ours: &mut PipeReader,
    theirs: &PipeWriter,
    count: usize,
) -> Vec<u32> {
    guard.spawn(1, &playing(&message(&[scene]), theirs)).expect("asked");
    started(guard, 1);
    reported(ours, count)
}

#[test]
fn a_signal_reaches_all_that_is_beneath() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "family", &mut ours, &theirs, 4);
    assert!(!pids.iter().any(|pid| is_dead(*pid)));
    guard.signal(libc::SIGTERM).expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGTERM));
    assert_eq!(next(&mut guard), GuardEvent::Empty);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    // The guard continues to work.
    guard.spawn(1, &Program { arguments: &shell("exit 2"), ..Program::new(at(SHELL)) }).expect("asked");
    started(&mut guard, 1);
    assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(2));
}

#[test]
fn who_does_not_hear_is_named_and_then_killed() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "deaf family", &mut ours, &theirs, 4);
    guard.signal(libc::SIGTERM).expect("asked");
    guard.spawn(2, &Program::new(at(SHELL))).expect("asked");
    match next(&mut guard) {
        GuardEvent::NotStarted { worker: 2, step: SpawnStep::Stopping, errno: libc::ECANCELED } => {}
        other => panic!("nothing starts during a stop: {other:?}"),
    }
    guard.survivors().expect("asked");
    let GuardEvent::Survivors { pids: named, count } = next(&mut guard) else { panic!("they are named") };
    // The worker, and the daemon, which the guard has adopted; its dead parent may still be among them.
    assert!(named.len() == count as usize && (2..=3).contains(&count), "{named:?}");
    assert!(named.iter().filter(|pid| pids.contains(pid)).count() == 2, "{named:?} of {pids:?}");
    assert!(pids.iter().all(|pid| lives(*pid)));
    guard.kill().expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGKILL));
    assert_eq!(next(&mut guard), GuardEvent::Empty);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn who_is_adopted_without_a_word_is_told_to_stop_as_well() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "silent", &mut ours, &theirs, 3);
    guard.survivors().expect("asked");
    let GuardEvent::Survivors { pids: worker, count: 1 } = next(&mut guard) else { panic!("it is alone") };
    let others: Vec<u32> = pids.into_iter().filter(|pid| *pid != worker[0]).collect();
    let watched = watch(&others);
    guard.signal(libc::SIGTERM).expect("asked");
    all_end(&watched);
    assert!(lives(worker[0]));
}

#[test]
fn each_process_gets_a_signal_once() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let other = guard.spawn(2, &playing(&message(&["alone"]), &theirs));
    other.expect("asked");
    let other = started(&mut guard, 2);
    reported(&mut ours, 1);
    play(&mut guard, "counts", &mut ours, &theirs, 1);
    drop(theirs);
    guard.signal(libc::SIGTERM).expect("asked");
    assert_eq!(take(&mut ours, 1), b"t");
    // Each request makes the guard continue its stop.
    assert_eq!(ended(&mut guard, 2).0, killed_by(libc::SIGTERM));
    assert!(is_dead(other));
    for _ in 0..100 {
        guard.survivors().expect("asked");
        assert!(matches!(next(&mut guard), GuardEvent::Survivors { count: 1, .. }));
    }
    guard.kill().expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGKILL));
    assert_eq!(rest(&mut ours), b"");
    // The next stop is another one.
    let (mut ours, theirs) = pipe().expect("a pipe");
    assert_eq!(next(&mut guard), GuardEvent::Empty);
    play(&mut guard, "counts", &mut ours, &theirs, 1);
    drop(theirs);
    // In one stop, a signal is sent once, however often it is requested. A different one is sent in addition.
    guard.signal(libc::SIGTERM).expect("asked");
    assert_eq!(take(&mut ours, 1), b"t");
    guard.signal(libc::SIGTERM).expect("asked");
    guard.signal(libc::SIGKILL).expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGKILL));
    assert_eq!(rest(&mut ours), b"");
}

#[test]
fn passing_a_signal_concerns_groups_of_workers_only_and_is_no_stop() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "family", &mut ours, &theirs, 4);
    let living = || pids.iter().filter(|pid| !is_dead(**pid)).count();
    guard.pass(libc::SIGUSR1).expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGUSR1));
    // The other process of the group gets the signal, too, and may end later.
    let deadline = std::time::Instant::now() + SOON;
    while living() > 2 {
        assert!(std::time::Instant::now() < deadline, "{} live", living());
        std::thread::yield_now();
    }
    guard.spawn(2, &Program { arguments: &shell("exit 2"), ..Program::new(at(SHELL)) }).expect("asked");
    started(&mut guard, 2);
    assert_eq!(ended(&mut guard, 2).0, ExitStatus::Code(2));
    assert_eq!(living(), 2, "those with sessions of their own live");
    guard.kill().expect("asked");
    assert_eq!(next(&mut guard), GuardEvent::Empty);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn a_chain_of_sessions_is_killed_to_its_end() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "chain", &mut ours, &theirs, 20);
    guard.kill().expect("asked");
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGKILL));
    assert_eq!(next(&mut guard), GuardEvent::Empty);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    // Without descendants it is answered, too.
    for _ in 0..2 {
        guard.kill().expect("asked");
        assert_eq!(next(&mut guard), GuardEvent::Empty);
        guard.signal(libc::SIGTERM).expect("asked");
        assert_eq!(next(&mut guard), GuardEvent::Empty);
    }
}

#[test]
fn dropping_the_handle_ends_all_of_it() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "deaf family", &mut ours, &theirs, 4);
    let guard_process = guard.pid();
    drop(guard);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    assert!(is_dead(guard_process), "it was waited for");
}

#[test]
fn threads_that_start_it_and_call_it_may_end() {
    let (mut said, theirs) = pipe().expect("a pipe");
    let (fed, mut feeder) = pipe().expect("a pipe");
    let guard = thread::spawn(start).join().expect("no panic");
    let spawn = move || {
        let mut guard = guard;
        let cat = shell("exec cat");
        let program = Program { stdin: Stdio::Fd(fed.as_fd()), ..saying(&cat, &theirs) };
        guard.spawn(1, &program).expect("asked");
        started(&mut guard, 1);
        guard
    };
    let mut guard = thread::spawn(spawn).join().expect("no panic");
    feeder.write_all(b"still there?").expect("written");
    assert_eq!(take(&mut said, 12), b"still there?");
    drop(feeder);
    assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(0));
}

/// Returns the exit code of a child of the program, as the program sees it.
fn own_child(code: i32) -> libc::c_int {
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends this process.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited == child { libc::WEXITSTATUS(status) } else { -1 }
}

/// Starts workers, gets their exits, and drops the guard.
fn ordinary_life() {
    let mut guard = start();
    for code in [0, 3] {
        let script = shell(&std::format!("exit {code}"));
        guard.spawn(1, &Program { arguments: &script, ..Program::new(at(SHELL)) }).expect("asked");
        started(&mut guard, 1);
        assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(code));
        assert_eq!(next(&mut guard), GuardEvent::Empty);
    }
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "deaf family", &mut ours, &theirs, 4);
    drop(guard);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
}

#[test]
fn the_program_may_ignore_the_ends_of_its_children() {
    let child = in_a_child(|| {
        // SAFETY: passes numbers only.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        ordinary_life();
        // SAFETY: passes an action that lives.
        let ignored = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            libc::sigaction(libc::SIGCHLD, core::ptr::null(), &raw mut action);
            action.sa_sigaction == libc::SIG_IGN
        };
        (ignored && own_child(1) == -1).then_some(())
    });
    assert_eq!(end_of(child), 0);
}

#[test]
fn the_program_may_wait_for_all_of_its_children_itself() {
    let child = in_a_child(|| {
        let (mut ours, theirs) = pipe().expect("a pipe");
        let mut guard = start();
        assert_eq!(own_child(9), 9, "its own children are its own");
        let pids = play(&mut guard, "alone", &mut ours, &theirs, 1);
        let keeper = guard.keeper_pid();
        send(keeper, libc::SIGKILL);
        // The program reaps it before the library does.
        let mut status = 0;
        // SAFETY: `status` is valid for writing.
        let waited = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        assert_eq!((waited.cast_unsigned(), libc::WTERMSIG(status)), (keeper, libc::SIGKILL));
        let lost = next_or_lost(&mut guard).expect_err("it is gone");
        assert_eq!(lost, GuardLost { pid: keeper, signal: None, not_restarted: None });
        drop(guard);
        // SAFETY: no status is requested.
        let waited = unsafe { libc::waitpid(-1, core::ptr::null_mut(), 0) };
        assert_eq!((waited, system::errno()), (-1, libc::ECHILD), "workers are none of its children");
        drop(pids);

        let reaper = thread::spawn(|| {
            // SAFETY: no status is requested.
            while unsafe { libc::waitpid(-1, core::ptr::null_mut(), 0) } > 0 {}
        });
        ordinary_life();
        reaper.join().ok()
    });
    assert_eq!(end_of(child), 0);
}

/// State of an agent when it is killed.
#[derive(Clone, Copy, Debug)]
enum At {
    Idle,
    Stopping,
    /// A child of the agent holds copies of its descriptors.
    Copied,
    /// It does not die: it executes another program.
    Becoming,
    /// It exits without a signal and without cleaning up.
    Leaving,
}

#[test]
fn when_the_agent_is_gone_so_is_all_of_it() {
    for at in [At::Idle, At::Stopping, At::Copied, At::Becoming, At::Leaving] {
        let (mut ours, theirs) = pipe().expect("a pipe");
        let (held, holder) = pipe().expect("a pipe");
        let agent = in_a_child(|| {
            let mut guard = start();
            guard.spawn(1, &playing(&message(&["deaf family"]), &theirs)).ok()?;
            guard.spawn(2, &playing(&message(&["chain"]), &theirs)).ok()?;
            for worker in 1..=2 {
                started(&mut guard, worker);
            }
            let reported = |pid: u32| (&theirs).write_all(&pid.to_le_bytes()).ok();
            if let At::Copied = at {
                // SAFETY: the child only waits for the test's end of the pipe to be closed.
                if unsafe { libc::fork() } == 0 {
                    let mut held = held.try_clone().ok()?;
                    // SAFETY: passes numbers only. The agent's copy, and its own.
                    unsafe { libc::close(holder.as_raw_fd()) };
                    held.read_to_end(&mut Vec::new()).ok();
                    return Some(());
                }
            }
            reported(guard.pid())?;
            if !matches!(at, At::Copied) {
                // All processes have written their IDs.
                (&held).read_exact(&mut [0]).ok()?;
            }
            if let At::Stopping = at {
                guard.signal(libc::SIGTERM).ok()?;
                guard.survivors().ok()?;
                while !matches!(next(&mut guard), GuardEvent::Survivors { .. }) {}
                reported(guard.pid())?;
            }
            match at {
                At::Idle | At::Stopping | At::Copied => scenes::idle(),
                At::Becoming => {
                    // SAFETY: passes a path and lists that are null-terminated.
                    unsafe {
                        let arguments = [c"cat".as_ptr(), core::ptr::null()];
                        libc::dup2(held.as_raw_fd(), 0);
                        libc::execv(c"/bin/cat".as_ptr(), arguments.as_ptr());
                    }
                    None
                }
                At::Leaving => {
                    core::mem::forget(guard);
                    Some(())
                }
            }
        });
        drop(theirs);
        let watched = watch(&reported(&mut ours, 25));
        (&holder).write_all(b"!").expect("written");
        if let At::Stopping = at {
            reported(&mut ours, 1);
        }
        if let At::Idle | At::Stopping | At::Copied = at {
            send(agent.cast_unsigned(), libc::SIGKILL);
        }
        all_end(&watched);
        drop(holder);
        let status = end_of(agent);
        let by_signal = matches!(at, At::Idle | At::Stopping | At::Copied);
        assert_eq!(status, if by_signal { libc::SIGKILL } else { 0 }, "{at:?}");
    }
}

#[test]
fn an_agent_that_dies_while_it_starts_workers_leaves_none() {
    for request in [1, 3, 40, 200] {
        let (mut ours, theirs) = pipe().expect("a pipe");
        let agent = in_a_child(|| {
            let mut guard = start();
            for worker in 0..request {
                let scene = if worker % 2 == 0 { "deaf family" } else { "chain" };
                guard.spawn(worker, &playing(&message(&[scene]), &theirs)).ok()?;
            }
            // SAFETY: passes numbers only.
            unsafe { libc::raise(libc::SIGKILL) };
            None
        });
        drop(theirs);
        assert_eq!(end_of(agent), libc::SIGKILL);
        // Each process holds the pipe open as long as it lives.
        rest(&mut ours);
    }
}

/// Takes all events until no descendant lives; asserts that the guard was lost meanwhile.
#[track_caller]
fn until_lost(guard: &mut Guard, pid: u32) {
    loop {
        match next(guard) {
            GuardEvent::Lost { pid: lost, signal } => {
                assert_eq!((lost, signal), (pid, libc::SIGKILL));
                assert_eq!(next(guard), GuardEvent::Empty);
                return;
            }
            GuardEvent::Started { .. } | GuardEvent::Exited { .. } | GuardEvent::Empty => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_guard_that_is_killed_leaves_nothing_and_is_replaced() {
    let mut guard = start();
    let keeper = guard.keeper_pid();
    for time in 0..3 {
        let (mut ours, theirs) = pipe().expect("a pipe");
        // With descendants in sessions of their own, some of which ignore `SIGTERM`.
        let mut pids = play(&mut guard, "chain", &mut ours, &theirs, 20);
        guard.spawn(2, &playing(&message(&["deaf family"]), &theirs)).expect("asked");
        started(&mut guard, 2);
        pids.extend(reported(&mut ours, 4));
        let watched = watch(&pids);
        let guard_process = guard.pid();
        assert_eq!(parent_of(guard_process).expect("it lives"), keeper);
        send(guard_process, libc::SIGKILL);
        until_lost(&mut guard, guard_process);
        // It is not reported before all have ended.
        assert!(pids.iter().all(|pid| is_dead(*pid)), "time {time}");
        all_end(&watched);
        drop(theirs);
        rest(&mut ours);
        assert!(is_dead(guard_process), "it was waited for");
        assert_eq!(guard.keeper_pid(), keeper);
        // A function sees the same memory as before.
        guard.spawn(1, &Program::new(Entry::Function)).expect("asked");
        started(&mut guard, 1);
        assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(PANICKED));
        assert_eq!(next(&mut guard), GuardEvent::Empty);
        assert_ne!(guard.pid(), guard_process);
    }
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "deaf family", &mut ours, &theirs, 4);
    drop(guard);
    assert!(pids.iter().all(|pid| is_dead(*pid)));
    assert!(is_dead(keeper), "it was waited for");
}

#[test]
fn what_was_asked_of_a_guard_that_is_killed_is_not_done_by_the_next() {
    let mut guard = start();
    for time in 0..20 {
        let (mut ours, theirs) = pipe().expect("a pipe");
        let scene = message(&["alone"]);
        for worker in 0..60 {
            guard.spawn(worker, &playing(&scene, &theirs)).expect("asked");
        }
        let guard_process = guard.pid();
        if time % 2 == 0 {
            started(&mut guard, 0);
        }
        if time % 3 == 0 {
            guard.signal(libc::SIGTERM).expect("asked");
            guard.survivors().expect("asked");
        }
        send(guard_process, libc::SIGKILL);
        loop {
            match next(&mut guard) {
                GuardEvent::Lost { .. } => break,
                // All workers may have ended by the signal before the guard did.
                GuardEvent::Empty => assert_eq!(time % 3, 0, "workers were asked for"),
                _ => {}
            }
        }
        // The same numbers are free, and answered once.
        let script = shell("exit 3");
        for worker in 0..3 {
            let program = Program { arguments: &script, ..Program::new(at(SHELL)) };
            guard.spawn(worker, &program).expect("asked");
        }
        let (mut answered, mut ends) = (0, 0);
        while ends < 3 {
            match next(&mut guard) {
                GuardEvent::Started { .. } => answered += 1,
                GuardEvent::Exited { status, .. } => {
                    assert_eq!(status, ExitStatus::Code(3));
                    ends += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(answered, 3);
        assert_eq!(next(&mut guard), GuardEvent::Empty);
        drop(theirs);
        rest(&mut ours);
    }
}

#[test]
fn when_the_keeper_is_killed_the_guard_ends_all_of_it_and_that_is_told() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let pids = play(&mut guard, "chain", &mut ours, &theirs, 20);
    let watched = watch(&pids);
    let (keeper, guard_process) = (guard.keeper_pid(), guard.pid());
    send(keeper, libc::SIGKILL);
    let lost = GuardLost { pid: keeper, signal: Some(libc::SIGKILL), not_restarted: None };
    assert_eq!(next_or_lost(&mut guard), Err(lost));
    all_end(&watched);
    drop(theirs);
    rest(&mut ours);
    assert_eq!(guard.spawn(3, &Program::new(Entry::Function)), Err(GuardError::Lost(lost)));
    assert_eq!(guard.kill(), Err(GuardError::Lost(lost)));
    assert_eq!(guard.next_event(), Err(lost));
    assert!(is_dead(keeper), "it was waited for");
    assert_ne!(process_state(guard_process).ok(), Some(ProcessState::Running));
    assert_eq!(
        lost.to_string(),
        std::format!(
            "the keeper of the workers' guard has ended (process {keeper}, ended by signal 9); \
             no worker can be started without it"
        )
    );
}

#[test]
fn workers_die_with_the_guard_although_nobody_looks() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    let watched = watch(&play(&mut guard, "deaf", &mut ours, &theirs, 1));
    send(guard.pid(), libc::SIGKILL);
    all_end(&watched);
    drop(guard);
}

#[test]
fn what_was_told_before_the_guard_was_killed_is_heard() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    guard.spawn(1, &saying(&shell("printf x; exit 3"), &theirs)).expect("asked");
    let guard_process = guard.pid();
    take(&mut ours, 1);
    // The guard's answer to this follows the exit.
    let script = shell("cat; printf y");
    let (fed, feeder) = pipe().expect("a pipe");
    guard.spawn(2, &Program { stdin: Stdio::Fd(fed.as_fd()), ..saying(&script, &theirs) }).expect("asked");
    started(&mut guard, 1);
    let (mut ended, mut began) = (false, false);
    while !(ended && began) {
        match next(&mut guard) {
            GuardEvent::Exited { worker: 1, status: ExitStatus::Code(3), .. } => ended = true,
            GuardEvent::Started { worker: 2, .. } => began = true,
            GuardEvent::Empty if ended && !began => panic!("another was asked for"),
            other => panic!("{other:?}"),
        }
    }
    drop(feeder);
    take(&mut ours, 1);
    // The exit was reported, or is about to be. The guard is killed after that, and only then is the report read.
    assert!(becomes_readable(guard.as_raw_fd(), SOON));
    send(guard_process, libc::SIGKILL);
    assert!(matches!(next_or_lost(&mut guard), Ok(GuardEvent::Exited { worker: 2, .. })));
    until_lost(&mut guard, guard_process);
}

#[test]
fn dropping_it_in_a_forked_child_harms_nobody() {
    let mut guard = start();
    let (mut said, theirs) = pipe().expect("a pipe");
    let (fed, mut feeder) = pipe().expect("a pipe");
    let cat = shell("exec cat");
    guard.spawn(1, &Program { stdin: Stdio::Fd(fed.as_fd()), ..saying(&cat, &theirs) }).expect("asked");
    started(&mut guard, 1);
    let mut held = Some(guard);
    let child = in_a_child(|| {
        drop(held.take());
        Some(())
    });
    assert_eq!(end_of(child), 0);
    let mut guard = held.expect("the parent's");
    feeder.write_all(b"still there?").expect("written");
    assert_eq!(take(&mut said, 12), b"still there?");
    drop(feeder);
    assert_eq!(ended(&mut guard, 1).0, ExitStatus::Code(0));
    assert_eq!(next(&mut guard), GuardEvent::Empty);
}
