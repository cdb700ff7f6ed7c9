//! Timers that a worker sets for itself.

use crate::prelude::*;
use rendezvous_agent::driver::worker_timer::{WorkerTimerError, set_timer};
use std::path::Path;

/// Sets the timer of this process for `scope` (UTF-8, NUL-terminated), which expires in `timeout_ms`
/// (above 0); it replaces the one that the scope has. Each scope has a timer of its own. A timer that
/// expires ends this process: the agent sends it `signal` (1 to 64; 0 stands for SIGKILL) and starts the
/// workers again, if a restart is left. Works in a worker of an agent of this library or of PyTorch, and
/// in processes started by one. The agent names its pipe in the variable `TORCHELASTIC_TIMER_FILE`
/// (`rdzv_agent_options.timer_file`), so no other thread may change the environment during the call.
/// Never blocks.
///
/// Errors: `RDZV_UNSUPPORTED` (the variable is not set: the agent takes no timers), `RDZV_IO` (the agent
/// cannot be reached, for example because it has ended; the timer of the scope is as before),
/// `RDZV_LIMIT_EXCEEDED` (the scope is longer than about 4,000 bytes).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_set_timer(
    scope: *const c_char,
    timeout_ms: i64,
    signal: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let timeout = positive_ms(timeout_ms, "timeout_ms")?;
        let signal = match signal {
            0 => SIGKILL,
            1..=64 => signal,
            _ => {
                return Err(invalid(format!("`signal` is {signal}; it must be 1 to 64, or 0 for SIGKILL")));
            }
        };
        send(scope, Some(timeout), signal)
    })
}

/// Removes the timer of this process for `scope`, if it has one.
///
/// Errors: those of `rdzv_worker_set_timer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_clear_timer(
    scope: *const c_char,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || send(scope, None, SIGKILL))
}

const SIGKILL: i32 = 9;

unsafe fn send(scope: *const c_char, timeout: Option<Duration>, signal: i32) -> Result<(), Fault> {
    // SAFETY: NULL or valid, as the caller says.
    let scope = unsafe { c_text(scope, "scope") }?.ok_or_else(|| invalid("`scope` is NULL"))?;
    #[expect(clippy::disallowed_methods, reason = "that is where agents tell their workers")]
    let path = std::env::var_os("TORCHELASTIC_TIMER_FILE").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| {
        Fault::new(RDZV_UNSUPPORTED, "TORCHELASTIC_TIMER_FILE is not set: the agent takes no timers")
    })?;
    set_timer(Path::new(&path), scope, timeout, signal).map_err(|error| match &error {
        WorkerTimerError::TooLong => Fault::new(RDZV_LIMIT_EXCEEDED, error.to_string()),
        WorkerTimerError::Io(cause) => Fault::os(RDZV_IO, error.to_string(), cause),
    })
}
