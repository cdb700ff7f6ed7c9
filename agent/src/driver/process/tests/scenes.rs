//! Scenes that the tests' function plays as a worker. Each of its processes writes its ID to standard output.

use super::*;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

pub(super) fn play(call: &Call<'_>, returned: &mut Vec<u8>) -> i32 {
    let arguments: Vec<&str> = call.arguments().iter().map(|text| text.to_str().expect("text")).collect();
    let number = |text: &str| text.parse::<usize>().expect("a number");
    match arguments.as_slice() {
        ["return", count, code] => {
            returned.resize(number(count), 7);
            i32::try_from(number(code)).expect("a code")
        }
        ["return to a small file", count] => {
            let limit = libc::rlimit { rlim_cur: 1000, rlim_max: 1000 };
            // SAFETY: passes a number and a limit that lives.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            returned.resize(number(count), 7);
            0
        }
        ["close all and return", count] => {
            // SAFETY: passes numbers only. The path is null-terminated. The descriptors of this process are not used
            // again.
            unsafe {
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                assert_eq!(libc::open(c"/proc/self/comm".as_ptr(), libc::O_RDWR), 3);
            }
            returned.resize(number(count), 7);
            0
        }
        ["die while returning"] => {
            // SAFETY: the text has that many bytes; the signal ends this process.
            unsafe {
                assert_eq!(libc::pwrite(3, b"half".as_ptr().cast(), 4, 16), 4);
                libc::raise(libc::SIGKILL);
            }
            idle()
        }
        ["panic"] => {
            returned.push(1);
            std::panic::set_hook(std::boxed::Box::new(|_| {}));
            panic!("as asked")
        }
        // SAFETY: ends this process at once.
        ["exit", code] => unsafe { libc::_exit(i32::try_from(number(code)).expect("a code")) },
        ["leave"] => {
            fork(|| idle());
            returned.extend_from_slice(b"left");
            0
        }
        ["world", ..] => {
            *returned = world(call, &arguments);
            0
        }
        ["alone"] => {
            notify();
            idle()
        }
        ["deaf"] => {
            ignore_term();
            notify();
            idle()
        }
        ["family"] => family(),
        ["deaf family"] => {
            ignore_term();
            family()
        }
        ["chain"] => chain(),
        ["silent"] => silent(),
        ["counts"] => {
            // SAFETY: the handler is async-signal-safe.
            unsafe { libc::signal(libc::SIGTERM, count as extern "C" fn(libc::c_int) as libc::sighandler_t) };
            notify();
            idle()
        }
        other => panic!("no such scene: {other:?}"),
    }
}

fn world(call: &Call<'_>, arguments: &[&str]) -> Vec<u8> {
    let mut seen = std::format!("{}|{}|", call.worker(), arguments.join(",")).into_bytes();
    for (name, value) in std::env::vars_os() {
        seen.extend_from_slice(&[name.as_bytes(), b"=", value.as_bytes(), b"|"].concat());
    }
    seen.extend(std::env::current_dir().expect("a folder").into_os_string().into_vec());
    let mut fds: Vec<u32> = std::fs::read_dir("/proc/self/fd")
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                .expect("a number")
        })
        .collect();
    fds.sort_unstable();
    let fds: Vec<String> = fds.iter().map(ToString::to_string).collect();
    // SAFETY: passes numbers only.
    let (session, group) = unsafe { (libc::getsid(0), libc::getpgrp()) };
    seen.extend(std::format!("|{}|{session},{group}", fds.join(",")).into_bytes());
    seen
}

/// Writes the ID of this process.
pub(super) fn notify() {
    let number = std::process::id().to_le_bytes();
    // SAFETY: passes four bytes that live.
    unsafe { libc::write(1, number.as_ptr().cast(), number.len()) };
}

pub(super) fn idle() -> ! {
    loop {
        // SAFETY: it has no arguments.
        unsafe { libc::pause() };
    }
}

fn ignore_term() {
    // SAFETY: passes numbers only.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) };
}

extern "C" fn count(_: libc::c_int) {
    // SAFETY: passes one byte that lives.
    unsafe { libc::write(1, b"t".as_ptr().cast(), 1) };
}

fn fork(child: impl FnOnce()) {
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        child();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) }
    }
}

fn leave_session() {
    // SAFETY: it has no arguments.
    unsafe { libc::setsid() };
}

/// Four processes: a worker, a child in its group, one in a session of its own, and a daemon, which writes its ID when
/// its parent has ended.
fn family() -> ! {
    fork(|| {
        notify();
        idle()
    });
    fork(|| {
        leave_session();
        notify();
        idle()
    });
    fork(|| {
        leave_session();
        let parent = std::process::id();
        fork(|| {
            leave_session();
            while std::os::unix::process::parent_id() == parent {
                std::thread::yield_now();
            }
            notify();
            idle()
        });
    });
    notify();
    idle()
}

/// Twenty processes, each the parent of the next, each in a session of its own, all ignoring `SIGTERM`.
fn chain() -> ! {
    ignore_term();
    for _ in 0..19 {
        notify();
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } != 0 {
            idle()
        }
        leave_session();
    }
    notify();
    idle()
}

/// A worker that ignores `SIGTERM`. Its child does not, and has a child in a session of its own that does not either.
/// When the parent of that one ends, the guard gets no event, because the grandparent lives.
fn silent() -> ! {
    fork(|| {
        fork(|| {
            leave_session();
            notify();
            idle()
        });
        notify();
        idle()
    });
    ignore_term();
    notify();
    idle()
}
