//! Threads of the library's own. They take no signals: a program's handlers run on the program's threads.

use crate::driver::clock::Clock;
use crate::time::Duration;
use std::io;
use std::mem::MaybeUninit;
use std::string::{String, ToString};
use std::thread::{Builder, JoinHandle, ThreadId};

/// A thread of the library's own, for whoever ends it. Without that it goes on by itself.
#[derive(Debug)]
pub struct Thread {
    handle: JoinHandle<()>,
    /// The process that has it. A forked child has the memory of its parent, and none of its threads.
    owner: u32,
}

/// How soon it is looked again whether a thread has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

impl Thread {
    /// Which one.
    #[must_use]
    pub fn id(&self) -> ThreadId {
        self.handle.thread().id()
    }

    /// Whether this process has the thread. A forked child has not: nobody there hears what the thread is told.
    #[must_use]
    pub fn is_here(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Whether it has ended, or is not here.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !self.is_here() || self.handle.is_finished()
    }

    /// Waits until it has ended; not in a forked child.
    pub fn join(self) {
        if self.is_here() {
            // A thread that panicked has said so itself.
            self.handle.join().ok();
        } else {
            // The system knows no such thread here.
            core::mem::forget(self.handle);
        }
    }

    /// Waits until it has ended, for so long at most, and calls `interrupt` now and then; whether it has. One that has not is
    /// left behind, with all that it holds; and nobody waits for itself.
    pub fn join_timeout(self, timeout: Duration, mut interrupt: impl FnMut()) -> bool {
        let clock = Clock::new();
        let until = clock.now() + timeout;
        while !self.has_ended() {
            if clock.now() >= until || self.id() == std::thread::current().id() {
                return false;
            }
            interrupt();
            std::thread::park_timeout(LOOK_INTERVAL);
        }
        self.join();
        true
    }
}

/// Starts a thread in which every signal is blocked.
///
/// # Errors
/// The system has no room for one more thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    // A thread inherits the mask of the one that starts it, so this thread blocks all signals for a moment.
    let handle = with_signals_blocked(|| Builder::new().name(name.to_string()).spawn(body))?;
    Ok(Thread { handle, owner: std::process::id() })
}

/// What a panic said.
pub fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// Does `work` while every signal is blocked in this thread. It must not unwind.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
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
        let (notify, event) = mpsc::channel();
        spawn("rdzv-test", move || notify.send(blocked()).expect("awaited")).expect("a thread").join();
        let mask = u64::from_str_radix(&event.recv().expect("told"), 16).expect("hexadecimal");
        let of_the_program = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD];
        // These come from its own writes, and would end the program.
        let of_the_thread = [libc::SIGPIPE, libc::SIGXFSZ];
        for signal in of_the_program.into_iter().chain(of_the_thread) {
            assert!(mask & (1 << (signal - 1)) != 0, "signal {signal} is blocked");
        }
        assert_eq!(blocked(), before);
    }
}
