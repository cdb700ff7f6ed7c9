//! Threads of the library's own. They take no signals: a program's handlers run on the program's threads.

use std::io;
use std::mem::MaybeUninit;
use std::string::ToString;
use std::thread::{Builder, JoinHandle};

/// Starts a thread in which every signal is blocked.
///
/// # Errors
/// The system has no room for one more thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A thread inherits the mask of the one that starts it, so this thread blocks all signals for a moment.
    with_signals_blocked(|| Builder::new().name(name.to_string()).spawn(body))
}

/// Does `work` while every signal is blocked in this thread. It must not unwind.
pub(super) fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are valid for writing, and `sigfillset` initialises the first.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let done = work();
    // SAFETY: `pthread_sigmask` initialised the set above; it cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;
    use std::sync::mpsc;

    /// The blocked signals of a thread, as the system tells them.
    fn blocked() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a thread has a status");
        let line = status.lines().find(|line| line.starts_with("SigBlk:")).expect("a mask");
        format!("{:0>16}", line.trim_start_matches("SigBlk:").trim())
    }

    #[test]
    fn threads_of_the_library_take_no_signals_and_the_starter_keeps_its_own_mask() {
        let before = blocked();
        let (tell, told) = mpsc::channel();
        spawn("rdzv-test", move || tell.send(blocked()).expect("awaited"))
            .expect("a thread")
            .join()
            .expect("ended");
        let mask = u64::from_str_radix(&told.recv().expect("told"), 16).expect("hexadecimal");
        let of_the_program = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD];
        // These come from its own writes, and would end the program.
        let of_the_thread = [libc::SIGPIPE, libc::SIGXFSZ];
        for signal in of_the_program.into_iter().chain(of_the_thread) {
            assert!(mask & (1 << (signal - 1)) != 0, "signal {signal} is blocked");
        }
        assert_eq!(blocked(), before);
    }
}
