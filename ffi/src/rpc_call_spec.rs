//! Descriptions of a call between workers of an RPC group.

use crate::prelude::*;
use crate::rpc_payload::payload;
use crate::store::timeout;
use rendezvous_core::driver::store::Timeout;
use rendezvous_rpc::driver::group::{CallSpec, Callee};

/// Description of a call: callee, handler, payload and timeout.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rpc_call_spec {
    /// Set to `sizeof(rdzv_rpc_call_spec)`.
    pub struct_size: u32,
    /// Id of the callee, if `callee` is NULL.
    pub callee_id: i32,
    /// Name of the callee. UTF-8, not NUL-terminated; NULL: `callee_id` selects the callee.
    pub callee: *const u8,
    /// Length of `callee` in bytes.
    pub callee_len: usize,
    /// Name of the handler. UTF-8, not NUL-terminated.
    pub handler: *const u8,
    /// Length of `handler` in bytes.
    pub handler_len: usize,
    /// Payload of the request.
    pub payload: *const u8,
    /// Length of `payload` in bytes.
    pub payload_len: usize,
    /// Timeout of the call in milliseconds: above 0; -1: that of the options; 0: the call times out at
    /// once.
    pub timeout_ms: i64,
    /// NULL: the payload is copied. Otherwise the library borrows it and calls this once with
    /// `user_data`, on any thread, when it no longer needs the payload, whatever the outcome of the call,
    /// even if the function that received it fails. A blocking call releases the payload before it
    /// returns. This function is a callback of all workers: it must not wait for a call, nor shut down or
    /// free a worker.
    pub release: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    /// Passed to `release`.
    pub user_data: *mut c_void,
}
growing!(rdzv_rpc_call_spec: 80);

/// Creates an error like `rdzv_error_new`, for a call: the operation is `call`, and the error names the
/// callee as the library's errors do, by name or else by id. Other fields of `call` are not read and
/// nothing is released. For a caller that cannot decode a response. The caller owns the result and frees
/// it with `rdzv_error_free`. Never returns NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_error_new_of_call(
    status: rdzv_status,
    message: *const u8,
    message_len: usize,
    call: *const rdzv_rpc_call_spec,
) -> *mut rdzv_error {
    // SAFETY: NULL or valid, as the header requires; values that are not valid are ignored.
    guard::quiet(null_mut(), || unsafe {
        let description =
            bytes(message, message_len, "message").map(String::from_utf8_lossy).unwrap_or_default();
        let fault = Fault::new(status, description).during("call");
        let fault = match sized::get(call, "call").and_then(|given| callee_of(&given)) {
            Ok(callee) => naming(fault, callee),
            Err(_) => fault,
        };
        boxed(rdzv_error::new(fault))
    })
}

/// Returns the callee of a call.
unsafe fn callee_of<'a>(given: &rdzv_rpc_call_spec) -> Result<Callee<'a>, Fault> {
    if !given.callee.is_null() {
        // SAFETY: NULL or valid, as the header requires.
        return Ok(Callee::Name(unsafe { text(given.callee, given.callee_len, "callee") }?));
    }
    let id = u16::try_from(given.callee_id).map_err(|_| {
        invalid(format!("the callee has no name, and its id is {}: from 0 to 65535", given.callee_id))
    })?;
    Ok(Callee::Id(id))
}

/// Converts a call and its payload from C. From here on the payload is released in every case.
pub(crate) unsafe fn spec<'a>(given: *const rdzv_rpc_call_spec) -> Result<CallSpec<'a>, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        let given = sized::get(given, "call")?;
        let payload = payload((given.payload, given.payload_len), given.release, given.user_data)?;
        let handler = text(given.handler, given.handler_len, "handler")?;
        let callee = callee_of(&given)
            .map_err(|fault| invalid(format!("{handler}: {}", fault.message)).during("call"))?;
        let timeout = match timeout(given.timeout_ms)? {
            Timeout::Default => None,
            Timeout::Once => Some(Duration::ZERO),
            Timeout::After(timeout) => Some(timeout),
        };
        Ok(CallSpec { callee, handler, payload, timeout })
    }
}

/// Adds the callee to a failure that does not name one yet.
#[cold]
#[inline(never)]
pub(crate) fn naming(fault: Fault, callee: Callee<'_>) -> Fault {
    fault.with(|details| match callee {
        Callee::Name(name) if details.nodes.is_empty() => details.nodes = vec![name.as_bytes().to_vec()],
        Callee::Id(id) if details.nodes.is_empty() && details.ranks.is_empty() => {
            details.ranks = vec![id.into()]
        }
        Callee::Name(_) | Callee::Id(_) => {}
    })
}
