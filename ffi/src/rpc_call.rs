//! Calls between workers of an RPC group.

use crate::buffer::take_unless_null;
use crate::prelude::*;
use crate::rpc::rdzv_rpc;
use crate::rpc_call_spec::{naming, rdzv_rpc_call_spec, spec};
use crate::rpc_fault::group_call_fault;
use crate::rpc_handlers::{listener, rdzv_rpc_done_fn};
use crate::sized::out_pointer;
use crate::store::span;
use rendezvous_rpc::driver::calls::reentrancy::may_wait;
use rendezvous_rpc::driver::group::{CallSpec, CalleeName, GroupCallError, GroupResult, PendingCall};

/// Runs the body of a call inside the panic guard. Borrowed bytes are released even if the worker is NULL
/// or poisoned.
unsafe fn call_on(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
    body: impl Fn(&rdzv_rpc, CallSpec<'_>) -> Result<(), Fault>,
) -> rdzv_status {
    // Outside the guard, since the bytes are released for a poisoned worker, too; nothing in `spec` panics.
    // SAFETY: NULL or valid, as the header requires.
    let mut read = Some(unsafe { spec(call) });
    guard::on!(error, rpc, |rpc| {
        let Some(spec) = read.take().transpose()? else { return Ok(()) };
        let callee = spec.callee;
        body(rpc, spec).map_err(|fault| naming(fault, callee))
    })
}

/// Call in progress. Any thread may use it.
#[derive(Debug)]
pub struct rdzv_rpc_future {
    pub(crate) state: HandleState,
    call: PendingCall,
}
guard::handle!(rdzv_rpc_future);

/// Stand-in for no limit, about 68 years; the call's own deadline ends the wait.
const FOREVER: Duration = Duration::from_secs(1 << 31);

/// Calls a worker and waits for the response, which replaces the content of `response`; `response` may be
/// NULL. A call to the worker itself runs its own handlers. Not allowed in an inline handler or in a
/// callback of any worker, because these block threads that the response may need.
///
/// Errors: `RDZV_RPC_UNKNOWN_WORKER`, `RDZV_RPC_NO_HANDLER`, `RDZV_RPC_HANDLER_FAILED`
/// (`rdzv_error_info.cause` has the handler's message), `RDZV_PERMISSION_DENIED` (the handler has a list
/// of callers), `RDZV_UNAUTHENTICATED` (the two workers have not proven the same token),
/// `RDZV_TIMED_OUT`, `RDZV_RPC_PEER_DIED`,
/// `RDZV_RPC_UNREACHED` (there is no connection to the callee; nothing was sent), `RDZV_RPC_LEAVING`,
/// `RDZV_RPC_NO_MEMBER`, `RDZV_LIMIT_EXCEEDED`, `RDZV_EXHAUSTED`, `RDZV_INVALID_ARGUMENT` (for example,
/// the handler's name is empty or too long), `RDZV_CANCELLED` (the token of the options),
/// `RDZV_REENTRANT` (called in an inline handler or a callback; nothing was sent), `RDZV_PANIC` (a
/// library thread panicked); for a backend in user code also the status that it returns, and
/// `RDZV_REENTRANT` if the same worker's functions make the call. `rdzv_error_info.nodes` has the name of
/// the callee if it is known, else `rdzv_error_info.ranks` has its id, even if there is no such worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_call(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    response: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            let result = of.agent.call(&of.token, spec);
            take_unless_null(response, result?);
            Ok(())
        })
    }
}

/// Starts a call to a worker and does not wait for it. On success the caller owns `*out` and frees it
/// with `rdzv_rpc_future_free`.
///
/// Errors: those of `rdzv_rpc_call` that are known at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_new(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    out: *mut *mut rdzv_rpc_future,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            let out = out_pointer(out, "out")?;
            let call = of.agent.start_call(spec)?;
            out.put(boxed(rdzv_rpc_future { state: HandleState::default(), call }));
            Ok(())
        })
    }
}

/// Calls a worker and reports the outcome to `done` once: the response, or a status and an error, which
/// `done` borrows. `done` runs on a library thread or on the calling thread; it must not block or throw.
/// Shutting the worker down or waiting for a call returns `RDZV_REENTRANT` there.
///
/// Errors: those of `rdzv_rpc_call` that are known at once; `done` is then not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_call_with(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    done: rdzv_rpc_done_fn,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            if done.is_none() {
                return Err(invalid("`done` is NULL"));
            }
            let (on_done, callee) = (listener(done, user_data), CalleeName::from(spec.callee));
            let on_result = move |result: GroupResult| {
                on_done(result.map_err(|error| naming(group_call_fault(&error), callee.callee())));
            };
            let begun = of.agent.begin_call(spec, Box::new(on_result));
            Ok(begun.map(drop)?)
        })
    }
}

/// Sends a notice: a call without a response. Whether it arrives is not reported.
///
/// For each caller, the callee accepts at most about 1,024 notices, or 256 MiB of them, that are queued
/// or running. It accepts more as these finish; until then they wait in the caller.
///
/// Errors: those of `rdzv_rpc_call` that are known at once. `RDZV_LIMIT_EXCEEDED`: 65,536 calls and
/// notices, or 8 GiB of them, wait to be sent to this worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_notify(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged.
    unsafe { call_on(rpc, call, error, |of, spec| Ok(of.agent.begin_notify(spec)?)) }
}

/// Frees a future. A call that has not ended is cancelled. No other call on the future may be in
/// progress. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_free(future: *mut rdzv_rpc_future) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(future, "rdzv_rpc_future_free") };
}

/// Waits up to `timeout_ms` (0: poll once; -1: as long as the call may take) for the call to end.
/// `*ended` is 1 if it has ended, else 0; in the first case the response replaces the content of
/// `response`, which may be NULL. The outcome is returned once, to one thread; several threads may wait,
/// each with its own timeout. An inline handler or a callback must not wait: if the call has not ended
/// there and `timeout_ms` is not 0, the status is `RDZV_REENTRANT` and the call continues.
///
/// Errors: those of `rdzv_rpc_call`; `RDZV_CANCELLED` after `rdzv_rpc_future_cancel`;
/// `RDZV_INVALID_ARGUMENT` if the outcome was already returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_wait(
    future: *const rdzv_rpc_future,
    timeout_ms: i64,
    ended: *mut i32,
    response: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, future, ended, |future| {
        let wait = span(timeout_ms, FOREVER)?;
        let call = &future.call;
        let Some(result) = call.look(wait) else {
            if call.is_taken() {
                return Err(invalid("the outcome of this call was already returned"));
            }
            if !wait.is_zero() && !may_wait() {
                let call = call.called().to_string().into();
                return Err(group_call_fault(&GroupCallError::Reentrant { call }));
            }
            return Ok(0);
        };
        let bytes =
            result.map_err(|error| naming(group_call_fault(&error), call.called().callee.callee()))?;
        take_unless_null(response, bytes);
        Ok(1)
    })
}

/// Cancels the call unless it has ended: threads that wait for it get `RDZV_CANCELLED`. The callee is
/// notified; a backend in user code can query it (`rdzv_rpc_responder_is_wanted`). Any thread may call
/// this. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_cancel(future: *const rdzv_rpc_future) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::notify(future, |of| _ = of.call.cancel());
    }
}
