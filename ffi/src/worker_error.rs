//! Error file that a failed worker leaves for its agent.

use crate::argument::{out_pointer, text};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::{RDZV_IO, rdzv_status};
use rendezvous_agent::driver::worker_logs::write_error_file;
use std::path::Path;

/// Writes an error to the file named by the variable `TORCHELASTIC_ERROR_FILE`, in PyTorch's format.
/// Agents of this library and of PyTorch include it in their report. `callstack` may be empty. The
/// previous content is replaced. `*recorded`, which may be NULL, is 1 if the error was written, or 0 if
/// no agent has set the variable. No other thread may change the environment during the call.
///
/// Errors: `RDZV_IO` if the file cannot be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_record_error(
    message: *const u8,
    message_len: usize,
    callstack: *const u8,
    callstack_len: usize,
    recorded: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let message = text(message, message_len, "message")?;
            let callstack = text(callstack, callstack_len, "callstack")?;
            #[expect(clippy::disallowed_methods, reason = "that is where agents tell their workers")]
            let file = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty());
            if let Some(path) = &file {
                write_error_file(Path::new(path), message, callstack).map_err(|cause| {
                    Fault::new(RDZV_IO, cause.to_string()).with(|details| details.os_error = cause.errno())
                })?;
            }
            if let Ok(recorded) = out_pointer(recorded, "recorded") {
                recorded.put(i32::from(file.is_some()));
            }
            Ok(())
        })
    }
}
