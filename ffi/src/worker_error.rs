//! Error file that a failed worker leaves for its agent.

use crate::prelude::*;
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
    guard::call!(error, || {
        let message = text(message, message_len, "message")?;
        let callstack = text(callstack, callstack_len, "callstack")?;
        #[expect(clippy::disallowed_methods, reason = "that is where agents tell their workers")]
        let file = std::env::var_os("TORCHELASTIC_ERROR_FILE").filter(|path| !path.is_empty());
        if let Some(path) = &file {
            write_error_file(Path::new(path), message, callstack)
                .map_err(|cause| Fault::new(RDZV_IO, cause.to_string()).with_os_error(cause.errno()))?;
        }
        put_unless_null(recorded, i32::from(file.is_some()));
        Ok(())
    })
}
