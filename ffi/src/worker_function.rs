//! Workers that are functions of the program.

use crate::prelude::*;
use rendezvous_agent::driver::process::Registered;

/// Arguments of a worker function. Valid during the call only.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_worker_call {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Arguments from the agent's options.
    pub arguments: *const *const c_char,
    /// Number of `arguments`.
    pub argument_count: usize,
}

/// Call together with the value that it returns.
#[repr(C)]
struct OwnedCall {
    /// First, so that a pointer to it is one to the whole.
    view: rdzv_worker_call,
    returned: Vec<u8>,
}

/// Worker function. Each worker is a process of its own, forked from the guard process that
/// `rdzv_agent_new` forked from the program. The function sees the program's memory as it was at that
/// fork. Only the function's own thread exists. A lock that another thread held stays locked for ever,
/// except the allocator's. Only descriptors 0 to 2 are open, signals have their default actions, and the
/// environment is that of a worker. When the function returns, the process exits at once; the lowest 8
/// bits of the return value are the exit code. Exit handlers do not run and unflushed output is lost. An
/// exception must not leave the function. A worker may return up to 256 MiB with
/// `rdzv_worker_call_return`. If possible, create the agent before the program starts other threads.
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
            let arguments: Vec<_> = call.arguments().iter().map(|argument| argument.as_ptr()).collect();
            let view = rdzv_worker_call {
                struct_size: struct_size::<rdzv_worker_call>(),
                reserved: 0,
                arguments: arguments.as_ptr(),
                argument_count: arguments.len(),
            };
            let mut call = OwnedCall { view, returned: Vec::new() };
            // SAFETY: the function was supplied for this; its arguments live until it returns.
            let exit_code = unsafe { (code.function)(code.user_data, (&raw mut call).cast()) };
            *returned = call.returned;
            exit_code
        })
    }
}

/// Sets the return value of the function, in addition to its exit code: at most 268,435,456 bytes (256
/// MiB). The data is copied, and the last call counts. The agent has the value when all workers have
/// succeeded. The value is transferred completely or not at all: if it is too long, or the system has no
/// memory for it, the worker fails with exit code 102, and the message of its `rdzv_worker_failure` has
/// the reason. A worker that dies before it has ended returns nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_worker_call_return(
    call: *mut rdzv_worker_call,
    data: *const u8,
    data_len: usize,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the first field of the call in progress; `data` has `data_len` bytes.
        let (call, data) = unsafe { (call.cast::<OwnedCall>().as_mut(), bytes(data, data_len, "data")) };
        if let (Some(call), Ok(data)) = (call, data) {
            call.returned = data.to_vec();
        }
    });
}
