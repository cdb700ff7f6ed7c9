//! Workers that are functions of the program.

use crate::argument::bytes;
use crate::buffer::borrowed;
use crate::guard;
use rendezvous_agent::driver::process::Registered;
use std::ffi::c_void;
use std::ptr::null;

/// Arguments and return value of a worker function. Valid during the call only.
#[derive(Debug)]
pub struct rdzv_worker_call {
    arguments: Vec<Vec<u8>>,
    returned: Vec<u8>,
}

/// Worker function; returns the exit code. `rdzv_agent_options_set_function` describes the environment in
/// which it runs.
pub type rdzv_worker_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, call: *mut rdzv_worker_call) -> i32>;

/// Function and its user data.
pub(crate) struct FunctionCode {
    function: unsafe extern "C" fn(*mut c_void, *mut rdzv_worker_call) -> i32,
    user_data: *mut c_void,
}

// SAFETY: it is only ever called in a process of its own.
unsafe impl Send for FunctionCode {}
// SAFETY: as above.
unsafe impl Sync for FunctionCode {}

impl FunctionCode {
    pub(crate) const fn new(
        function: unsafe extern "C" fn(*mut c_void, *mut rdzv_worker_call) -> i32,
        user_data: *mut c_void,
    ) -> Self {
        Self { function, user_data }
    }

    pub(crate) fn registered(self) -> Registered {
        Registered::new(move |call, returned| {
            // Captures the whole struct rather than its two fields, since only the struct is `Send`.
            let code = &self;
            let arguments = call.arguments().iter().map(|argument| argument.to_bytes().to_vec()).collect();
            let mut call = rdzv_worker_call { arguments, returned: Vec::new() };
            // SAFETY: the function was supplied for this; its arguments live until it returns.
            let exit_code = unsafe { (code.function)(code.user_data, &raw mut call) };
            *returned = call.returned;
            exit_code
        })
    }
}

/// Returns the argument at `index` (from 0) and writes its length to `*len` unless `len` is NULL. The
/// string is not NUL-terminated and is valid during the worker call. Returns NULL past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_call_argument(
    call: *const rdzv_worker_call,
    index: usize,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(call, null(), |call| call.arguments.get(index).map_or(null(), |text| borrowed(text, len)))
    }
}

/// Sets the return value of the function, in addition to its exit code: at most 268,435,456 bytes (256
/// MiB). The data is copied, and the last call counts. The agent has the value when all workers have
/// succeeded. The value is transferred completely or not at all: if it is too long, or the system has no
/// memory for it, the worker fails with exit code 102, and the message of its `rdzv_worker_failure` has the
/// reason. A worker that dies before it has ended returns nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_call_return(
    call: *mut rdzv_worker_call,
    data: *const u8,
    data_len: usize,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the call in progress; `data` has `len` bytes.
        if let (Some(call), Ok(data)) = unsafe { (call.as_mut(), bytes(data, data_len, "data")) } {
            call.returned = data.to_vec();
        }
    });
}
