//! Workers that are functions of the program's own.

use crate::argument::bytes;
use crate::buffer::borrowed;
use crate::guard;
use rendezvous_agent::driver::process::Registered;
use std::ffi::c_void;
use std::ptr::null;

/// What a worker function is told, and where it leaves what it returns. Valid during the call only.
#[derive(Debug)]
pub struct rdzv_worker_call {
    arguments: Vec<Vec<u8>>,
    returned: Vec<u8>,
}

/// A function that can be a worker; it gives the exit code. `rdzv_agent_options_set_function` tells in what
/// surroundings it runs.
pub type rdzv_worker_fn =
    Option<unsafe extern "C" fn(user_data: *mut c_void, call: *mut rdzv_worker_call) -> i32>;

/// A function with what it is passed.
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
            // The whole of it, not its two fields.
            let code = &self;
            let arguments = call.arguments().iter().map(|argument| argument.to_bytes().to_vec()).collect();
            let mut call = rdzv_worker_call { arguments, returned: Vec::new() };
            // SAFETY: the function was given for this; what is passed lives until it returns.
            let exit_code = unsafe { (code.function)(code.user_data, &raw mut call) };
            *returned = call.returned;
            exit_code
        })
    }
}

/// The argument at `index` (from 0), its length in `*len` unless `len` is NULL; NULL beyond the last. Not
/// NUL-terminated.
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

/// What the function returns beside its exit code, 268,435,456 bytes (256 MiB) at most; it is copied, and the
/// last one counts. The agent has it when all workers have ended well. It arrives whole or not at all: if it
/// is longer, or the system has no room for it, the worker fails with exit code 102, and the message of its
/// `rdzv_worker_failure` tells why. A worker that dies before it has ended returns nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_call_return(
    call: *mut rdzv_worker_call,
    data: *const u8,
    data_len: usize,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the call that is under way; and as many bytes as are said.
        if let (Some(call), Ok(data)) = unsafe { (call.as_mut(), bytes(data, data_len, "data")) } {
            call.returned = data.to_vec();
        }
    });
}
