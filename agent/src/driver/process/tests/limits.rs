//! Many workers, few processes, no descriptors.

use super::*;
use crate::driver::testing::{end_of, in_a_child};
use rendezvous_core::rng::Rng;

const TRUE: &str = "/bin/true";

#[test]
fn two_hundred_workers_in_one_go() {
    let mut guard = start();
    let (mut ours, theirs) = pipe().expect("a pipe");
    for worker in 0..200 {
        let scene = message(&["return", "70000", "1"]);
        let script = shell("printf x; exit 1");
        let program = if worker % 2 == 0 { playing(&scene, &theirs) } else { saying(&script, &theirs) };
        guard.spawn(worker, &program).expect("asked");
    }
    drop(theirs);
    let mut order = Vec::new();
    let mut ended = 0;
    loop {
        match next(&mut guard) {
            GuardEvent::Started { worker, .. } => order.push(worker),
            GuardEvent::Exited { worker, status, returned, .. } => {
                ended += 1;
                assert_eq!(status, ExitStatus::Code(1));
                let bytes = (worker % 2 == 0).then(|| std::vec![7; 70_000]);
                assert!(returned == bytes.map_or(Returned::Nothing, Returned::Bytes), "worker {worker}");
            }
            GuardEvent::Empty => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(order.into_iter().eq(0..200), "in the order in which they were asked for");
    assert_eq!(ended, 200);
    assert_eq!(rest(&mut ours).len(), 100);
}

#[test]
fn a_stop_takes_back_what_was_only_asked_for() {
    let mut guard = start();
    let (_ours, theirs) = pipe().expect("a pipe");
    let scene = message(&["deaf"]);
    for worker in 0..200 {
        guard.spawn(worker, &playing(&scene, &theirs)).expect("asked");
    }
    guard.kill().expect("asked");
    let mut open: Vec<u32> = (0..200).collect();
    let mut refused = 0;
    loop {
        match next(&mut guard) {
            GuardEvent::Started { worker, .. } => assert!(open.contains(&worker)),
            GuardEvent::NotStarted { worker, step, errno } => {
                assert_eq!((step, errno), (SpawnStep::Stopping, libc::ECANCELED));
                open.retain(|other| *other != worker);
                refused += 1;
            }
            GuardEvent::Exited { worker, status, .. } => {
                assert_eq!(status, killed_by(libc::SIGKILL));
                open.retain(|other| *other != worker);
            }
            GuardEvent::Empty => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(open.is_empty(), "each is answered: {open:?}");
    assert!(refused >= 100, "most were not begun: {refused}");
}

#[test]
fn a_stop_that_finds_no_room_is_not_lost() {
    let mut guard = start();
    let (_ours, theirs) = pipe().expect("a pipe");
    let scene = message(&["deaf"]);
    guard.spawn(1, &playing(&scene, &theirs)).expect("asked");
    started(&mut guard, 1);
    // SAFETY: passes the ID of a living process.
    assert_eq!(unsafe { libc::kill(guard_pid(&guard), libc::SIGSTOP) }, 0);
    let mut request = 0;
    while !guard.inner.as_ref().expect("it lives").socket.is_out_of_buffers() {
        guard.pass(libc::SIGCONT).expect("asked");
        request += 1;
        assert!(request < 1_000_000, "the socket is never full");
    }
    guard.kill().expect("asked");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(guard_pid(&guard), libc::SIGCONT) }, 0);
    assert_eq!(ended(&mut guard, 1).0, killed_by(libc::SIGKILL));
    assert_eq!(next(&mut guard), GuardEvent::Empty);
}

fn guard_pid(guard: &Guard) -> libc::pid_t {
    guard.pid().cast_signed()
}

fn open_descriptors(process: &str) -> usize {
    std::fs::read_dir(std::format!("/proc/{process}/fd")).expect("a folder").count()
}

/// Returns the resident pages of a process, without those of its program's file, which grow as code is first run.
fn resident_pages(pid: u32) -> u64 {
    let text = std::fs::read_to_string(std::format!("/proc/{pid}/statm")).expect("it lives");
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse::<u64>().expect("a number"));
    pages.next().zip(pages.next()).map(|(all, of_files)| all - of_files).expect("two numbers")
}

#[test]
fn two_thousand_workers_leak_nothing() {
    // In a process in which no other test opens or closes descriptors.
    let child = in_a_child(|| {
        let mut guard = start();
        let process = guard.pid().to_string();
        let mut memory = 0;
        let mut fds = (0, 0);
        let mut request = 0;
        let (_ours, theirs) = pipe().expect("a pipe");
        let scene = message(&["return", "3", "0"]);
        for round in 0..2 {
            let until = if round == 0 { 50 } else { 2050 };
            loop {
                while request < until && guard.inner.as_ref()?.workers.len() < 8 {
                    let program = match request % 50 {
                        0 => playing(&scene, &theirs),
                        1 => Program::new(at("/nowhere")),
                        _ => Program {
                            stdin: Stdio::Null,
                            stdout: Stdio::Fd(theirs.as_fd()),
                            ..Program::new(at(TRUE))
                        },
                    };
                    guard.spawn(request, &program).expect("asked");
                    request += 1;
                }
                if next(&mut guard) == GuardEvent::Empty && request == until {
                    break;
                }
            }
            if round == 0 {
                fds = (open_descriptors("self"), open_descriptors(&process));
                memory = resident_pages(guard.pid());
            }
        }
        assert_eq!((open_descriptors("self"), open_descriptors(&process)), fds);
        let now = resident_pages(guard.pid());
        assert!(now <= memory + 64, "{memory} pages became {now}");
        Some(())
    });
    assert_eq!(end_of(child), 0);
}

#[test]
fn empty_is_never_told_when_somebody_was_asked_for_since() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut guard = start();
        let mut open = Vec::new();
        for _ in 0..100 {
            let free: Vec<u32> = (0..4).filter(|worker| !open.contains(worker)).collect();
            match rng.below(8) {
                0..3 if !free.is_empty() => {
                    let worker = free[usize::try_from(rng.below(free.len() as u64)).expect("small")];
                    let entry = if rng.below(3) == 0 { at("/nowhere") } else { at(TRUE) };
                    guard.spawn(worker, &Program::new(entry)).expect("asked");
                    open.push(worker);
                }
                3 => guard.kill().expect("asked"),
                4 => guard.pass(libc::SIGCONT).expect("asked"),
                5 => drop(becomes_readable(guard.as_raw_fd(), Duration::from_millis(1))),
                _ => match guard.next_event().expect("the guard lives") {
                    Some(GuardEvent::Exited { worker, .. } | GuardEvent::NotStarted { worker, .. }) => {
                        open.retain(|other| *other != worker);
                    }
                    Some(GuardEvent::Empty) => assert!(open.is_empty(), "seed {seed}: {open:?}"),
                    _ => {}
                },
            }
        }
        guard.kill().expect("asked");
        loop {
            match next(&mut guard) {
                GuardEvent::Exited { worker, .. } | GuardEvent::NotStarted { worker, .. } => {
                    open.retain(|other| *other != worker);
                }
                GuardEvent::Empty => break,
                _ => {}
            }
        }
        assert!(open.is_empty(), "seed {seed}: {open:?}");
    }
}

/// Changes the user: root is not subject to the limit of processes.
fn become_an_ordinary_user() {
    let user = 1_000_000 + std::process::id();
    // SAFETY: passes numbers only.
    unsafe {
        if libc::geteuid() == 0 {
            assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
        }
        assert_ne!(libc::getuid(), 0);
    }
}

/// Prevents new processes of the user, which has one already.
fn forbid_more_processes(of: u32) {
    let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    // SAFETY: passes the ID of a living process, and a limit that lives.
    let set = unsafe {
        libc::prlimit(of.cast_signed(), libc::RLIMIT_NPROC, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn no_room_for_one_more_process_is_told() {
    let child = in_a_child(|| {
        become_an_ordinary_user();
        forbid_more_processes(std::process::id());
        let none = Guard::start(&GuardOptions::default()).expect_err("no room");
        assert_eq!(none, GuardError::NotStarted(StartStep::Fork, libc::EAGAIN));
        Some(())
    });
    assert_eq!(end_of(child), 0);
    let child = in_a_child(|| {
        become_an_ordinary_user();
        let mut guard = start();
        forbid_more_processes(guard.pid());
        let (_ours, theirs) = pipe().expect("a pipe");
        let scene = message(&["alone"]);
        for program in [Program::new(at(TRUE)), playing(&scene, &theirs)] {
            guard.spawn(1, &program).expect("asked");
            assert_eq!(refused(&mut guard, 1), (SpawnStep::Fork, libc::EAGAIN));
        }
        // There is no room for another guard either.
        let (keeper, guard_process) = (guard.keeper_pid(), guard_pid(&guard));
        forbid_more_processes(keeper);
        // SAFETY: passes the ID of a living process.
        assert_eq!(unsafe { libc::kill(guard_process, libc::SIGKILL) }, 0);
        let lost = loop {
            match next_or_lost(&mut guard) {
                Ok(_) => {}
                Err(lost) => break lost,
            }
        };
        let not_restarted = Some((StartStep::Fork, libc::EAGAIN));
        assert_eq!(lost, GuardLost { pid: keeper, signal: None, not_restarted });
        let sentence = lost.to_string();
        assert!(
            sentence.starts_with("the guard of the workers was lost, and no other could be started: fork: ")
        );
        Some(())
    });
    assert_eq!(end_of(child), 0);
}

#[test]
fn no_room_for_one_more_descriptor_is_told() {
    let child = in_a_child(|| {
        let mut guard = start();
        let limit = |count| {
            let limit = libc::rlimit { rlim_cur: count, rlim_max: 4096 };
            // SAFETY: passes numbers, and a limit that lives.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        };
        limit(0);
        let refused = guard.spawn(1, &Program::new(at(TRUE)));
        assert_eq!(refused, Err(GuardError::NotPrepared(libc::EMFILE)));
        let none = Guard::start(&GuardOptions::default()).expect_err("no room");
        assert_eq!(none, GuardError::NotStarted(StartStep::Prepare, libc::EMFILE));
        limit(1024);
        guard.spawn(1, &Program::new(at(TRUE))).expect("asked");
        started(&mut guard, 1);
        Some(())
    });
    assert_eq!(end_of(child), 0);
}

#[test]
fn an_agent_may_have_no_standard_streams() {
    for closed in [&[0, 1, 2][..], &[1], &[0, 2]] {
        let child = in_a_child(|| {
            // SAFETY: passes numbers only; this process does not use them any more.
            closed.iter().for_each(|fd| drop(unsafe { OwnedFd::from_raw_fd(*fd) }));
            let mut guard = start();
            let script = shell("exit 4");
            guard.spawn(1, &Program { arguments: &script, ..Program::new(at(SHELL)) }).ok()?;
            started(&mut guard, 1);
            let inherited = ended(&mut guard, 1).0 == ExitStatus::Code(4);
            // The pipe itself may get the number of a standard stream.
            let (mut ours, theirs) = pipe().ok()?;
            let script = shell("cat; echo said; echo nothing >&2");
            guard.spawn(2, &Program { stdin: Stdio::Null, ..saying(&script, &theirs) }).ok()?;
            drop(theirs);
            let said = rest(&mut ours) == b"said\n";
            (inherited && said).then_some(())
        });
        assert_eq!(end_of(child), 0, "without {closed:?}");
    }
}
