//! Timers that a worker sets for itself ([`crate::watchdog`]).

use crate::watchdog::{LINE_BYTES_MAX, timer_line};
use rendezvous_core::driver::clock::since_1970;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Error of setting or removing a timer.
#[derive(Debug, thiserror::Error)]
pub enum WorkerTimerError {
    /// The scope's name is too long.
    #[error("the line of the timer would have more than {LINE_BYTES_MAX} bytes: its scope is too long")]
    TooLong,
    /// The line cannot be written, for example because the agent has ended.
    #[error("the timer cannot be sent to the agent: {0}")]
    Io(#[from] io::Error),
}

/// Sets this process's timer of `scope` through the agent's pipe at `path`, or removes it (`None`). A timer that expires
/// sends `signal` to this process.
///
/// # Errors
/// The scope is too long, or the line cannot be written.
pub fn set_timer(
    path: &Path,
    scope: &str,
    timeout: Option<Duration>,
    signal: i32,
) -> Result<(), WorkerTimerError> {
    let expires = timeout.map(|timeout| since_1970().saturating_add(timeout));
    let line = timer_line(std::process::id(), scope, expires, signal).ok_or(WorkerTimerError::TooLong)?;
    let open = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK).open(path);
    // Fails if no agent reads.
    let mut pipe = open(OpenOptions::new().write(true))?;
    // A reader of our own: without one, the end of the agent before the write would raise SIGPIPE.
    let _reader = open(OpenOptions::new().read(true))?;
    Ok(pipe.write_all(line.as_bytes())?)
}
