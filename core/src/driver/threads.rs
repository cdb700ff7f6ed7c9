//! Threads of the library. They block all signals: a program's handlers run on the program's threads.

use crate::driver::clock::Clock;
use crate::prelude::*;
use std::io;
use std::mem::MaybeUninit;
use std::string::{String, ToString};
use std::thread::{Builder, JoinHandle, ThreadId};

/// Handle of a library thread. Dropping it detaches the thread.
#[derive(Debug)]
pub struct Thread {
    handle: JoinHandle<()>,
    /// Process that owns the thread. A forked child has the memory of its parent, and none of its threads.
    owner: u32,
}

/// Interval at which a join checks whether a thread has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

impl Thread {
    /// Returns the thread's id.
    #[must_use]
    pub fn id(&self) -> ThreadId {
        self.handle.thread().id()
    }

    /// Returns the thread as the C library knows it.
    #[cfg(test)]
    pub(super) fn pthread(&self) -> libc::pthread_t {
        std::os::unix::thread::JoinHandleExt::as_pthread_t(&self.handle)
    }

    /// Returns whether this process has the thread. In a forked child it does not exist, so it receives no messages
    /// there.
    pub fn is_here(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Returns whether the thread has ended, or does not exist in this process.
    pub fn has_ended(&self) -> bool {
        !self.is_here() || self.handle.is_finished()
    }

    /// Waits until the thread has ended; returns at once in a forked child.
    pub fn join(self) {
        if self.is_here() {
            // The panic hook has already reported a panic.
            self.handle.join().ok();
        } else {
            // This process has no such thread to join.
            core::mem::forget(self.handle);
        }
    }

    /// Waits until the thread has ended, at most for `timeout`, and calls `interrupt` at intervals. Returns whether
    /// the thread has ended. A thread that has not is detached with all that it holds. A thread that would join
    /// itself gets false.
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
/// The system cannot start another thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    spawn_boxed(name, Box::new(body))
}

/// [`spawn`] for every type of body: its machine code exists once.
fn spawn_boxed(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<Thread> {
    // A thread inherits the mask of its creator, so this thread blocks all signals for a moment.
    let handle = with_signals_blocked(|| Builder::new().name(name.to_string()).spawn(body))?;
    Ok(Thread { handle, owner: std::process::id() })
}

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn core::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_string())
}

/// Runs `work` while every signal is blocked in this thread. `work` must not unwind.
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

    /// Returns the signal mask of this thread, as the system reports it.
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
        let mask = u64::from_str_radix(&event.recv().expect("received"), 16).expect("hexadecimal");
        let of_the_program = [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD];
        // The thread's own writes raise these signals, which would end the program.
        let of_the_thread = [libc::SIGPIPE, libc::SIGXFSZ];
        for signal in of_the_program.into_iter().chain(of_the_thread) {
            assert!(mask & (1 << (signal - 1)) != 0, "signal {signal} is blocked");
        }
        assert_eq!(blocked(), before);
    }
}
