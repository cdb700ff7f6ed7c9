//! Calls between workers of an RPC group.

use crate::argument::{invalid, out_pointer, reference, reference_mut};
use crate::buffer::rdzv_buffer;
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::rpc::{Calls, rdzv_rpc};
use crate::rpc_call_spec::{naming, rdzv_rpc_call_spec, spec};
use crate::rpc_fault::group_call_fault;
use crate::rpc_handlers::{Outcome, listener};
use crate::status::*;
use rendezvous_core::driver::reply::{Awaited, Reply, ask};
use rendezvous_rpc::connection::CallKind;
use rendezvous_rpc::driver::calls::handling::Wanted;
use rendezvous_rpc::driver::calls::reentrancy::may_wait;
use rendezvous_rpc::driver::group::{
    CallCanceller, CallSpec, CalleeName, GroupCallError, GroupResult, OnResult, PendingCall,
};
use rendezvous_rpc::driver::loop_member::Called;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(rpc.as_ref().map(|rpc| &rpc.poison), error, &mut || {
            let rpc = reference(rpc, "rpc")?;
            rpc.home.refuse_sink()?;
            let Some(spec) = read.take().transpose()? else { return Ok(()) };
            let callee = spec.callee;
            body(rpc, spec).map_err(|fault| naming(fault, callee))
        })
    }
}

/// Call in progress. Any thread may use it.
#[derive(Debug)]
pub struct rdzv_rpc_future {
    pub(crate) poison: Poison,
    /// Not locked while a thread waits for the call.
    state: Mutex<FutureState>,
    /// Signalled when the thread that waited has put the state back.
    state_returned: Condvar,
    /// Cancels the call while another thread waits for it.
    canceller: CallAbort,
}

#[derive(Clone, Debug)]
enum CallAbort {
    Tcp(CallCanceller),
    Foreign(Arc<ForeignCall>),
}

impl CallAbort {
    fn end(&self) {
        match self {
            Self::Tcp(call) => _ = call.cancel(),
            Self::Foreign(open) => {
                open.wanted.give_up();
                let call = open.called.to_string().into();
                open.answer(Err(group_call_fault(&GroupCallError::Cancelled { call })));
            }
        }
    }
}

/// Call of a backend in user code. Its first outcome is the one that counts.
struct ForeignCall {
    reply: Mutex<Option<Reply<Outcome>>>,
    called: Called,
    wanted: Wanted,
}

impl ForeignCall {
    fn answer(&self, outcome: Outcome) {
        let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reply) = reply {
            reply.answer(outcome);
        }
    }
}

impl std::fmt::Debug for ForeignCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForeignCall")
    }
}

enum FutureState {
    InFlight(Pending),
    /// A thread waits for the call and has taken it meanwhile.
    Awaited,
    Ended(Outcome),
    Taken,
}

enum Pending {
    Tcp(PendingCall),
    Foreign(Foreign),
}

impl std::fmt::Debug for FutureState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InFlight(_) | Self::Awaited => "in progress",
            Self::Ended(_) => "ended",
            Self::Taken => "taken",
        })
    }
}

/// Waiting side of a call of a backend in user code. Dropping it abandons the call.
struct Foreign {
    awaited: Awaited<Outcome>,
    /// Deadline of the call; `None`: no limit.
    until: Option<Instant>,
    timeout: Duration,
    open: Arc<ForeignCall>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.open.wanted.give_up();
    }
}

/// Stand-in for no limit, about 68 years; the call's own deadline ends the wait.
const FOREVER: Duration = Duration::from_secs(1 << 31);

impl Foreign {
    fn look(&self, wait: Duration) -> Option<Outcome> {
        let left = self.until.map_or(FOREVER, |until| until.saturating_duration_since(now()));
        let outcome = match self.awaited.look(wait.min(left)) {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => {
                Err(Fault::new(RDZV_RPC_HANDLER_FAILED, format!("{}: no answer", self.open.called)))
            }
            None if left <= wait => {
                let (call, elapsed) = (self.open.called.to_string().into(), self.timeout);
                Err(group_call_fault(&GroupCallError::Late { call, elapsed }))
            }
            None => return None,
        };
        Some(outcome.map_err(|fault| naming(fault, self.open.called.callee.callee())))
    }
}

#[expect(clippy::disallowed_methods, reason = "the deadline of a call that user code makes")]
fn now() -> Instant {
    Instant::now()
}

impl Pending {
    /// Waits up to `wait` and returns the outcome if there is one.
    fn look(&mut self, wait: Duration) -> Option<Outcome> {
        match self {
            Self::Tcp(call) => {
                call.look(wait).map(|result| result.map_err(|error| group_call_fault(&error.into())))
            }
            Self::Foreign(call) => call.look(wait),
        }
    }

    /// Waits up to `wait` and returns the resulting state.
    fn after(mut self, wait: Duration) -> FutureState {
        match self.look(wait) {
            Some(outcome) => FutureState::Ended(outcome),
            None => FutureState::InFlight(self),
        }
    }
}

impl rdzv_rpc_future {
    fn lock(&self) -> MutexGuard<'_, FutureState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits up to `wait` and returns the outcome if there is one. The lock is held only briefly, so a
    /// thread that polls or has a short timeout is not delayed by one with a longer timeout.
    fn wait(&self, wait: Duration) -> Result<Option<Outcome>, Fault> {
        let until = now() + wait;
        let is_awaited = |state: &mut FutureState| matches!(state, FutureState::Awaited);
        let waited = self.state_returned.wait_timeout_while(self.lock(), wait, is_awaited);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let FutureState::InFlight(_) = &*state {
            let FutureState::InFlight(pending) = std::mem::replace(&mut *state, FutureState::Awaited) else {
                return Ok(None);
            };
            drop(state);
            let after = pending.after(until.saturating_duration_since(now()));
            state = self.lock();
            *state = after;
            self.state_returned.notify_all();
        }
        match &*state {
            FutureState::InFlight(_) | FutureState::Awaited => return Ok(None),
            FutureState::Taken => return Err(invalid("the outcome of this call was already returned")),
            FutureState::Ended(_) => {}
        }
        match std::mem::replace(&mut *state, FutureState::Taken) {
            FutureState::Ended(outcome) => Ok(Some(outcome)),
            _ => Ok(None),
        }
    }
}

/// Starts a call through either kind of backend.
fn start(of: &rdzv_rpc, spec: CallSpec<'_>) -> Result<rdzv_rpc_future, Fault> {
    let (pending, canceller) = match of.calls()? {
        Calls::Tcp(tcp) => {
            let call = tcp.start_call(spec.callee, spec.handler, spec.payload, spec.timeout);
            let call = call.map_err(|error| group_call_fault(&error))?;
            let canceller = CallAbort::Tcp(call.canceller());
            (Pending::Tcp(call), canceller)
        }
        Calls::Foreign(code) => {
            let (reply, awaited) = ask();
            let called = Called { callee: spec.callee.into(), handler: spec.handler.into() };
            let timeout = spec.timeout.or(code.rpc_timeout());
            let until = timeout.map(|timeout| now() + timeout);
            let wanted = Wanted::new(CallKind::Responded);
            let open =
                Arc::new(ForeignCall { reply: Mutex::new(Some(reply)), called, wanted: wanted.clone() });
            let completion = Arc::clone(&open);
            let on_result = move |result: GroupResult| {
                completion.answer(result.map_err(|error| group_call_fault(&error)));
            };
            code.call(&spec, Some((Box::new(on_result), wanted)))
                .map_err(|error| group_call_fault(&error))?;
            let timeout = timeout.unwrap_or_default();
            let foreign = Foreign { awaited, until, timeout, open: Arc::clone(&open) };
            (Pending::Foreign(foreign), CallAbort::Foreign(open))
        }
    };
    let state = Mutex::new(FutureState::InFlight(pending));
    Ok(rdzv_rpc_future { poison: Poison::default(), state, state_returned: Condvar::new(), canceller })
}

/// Calls a worker and waits for the answer, which replaces the content of `answer`; `answer` may be NULL. A
/// call to the worker itself runs its own handlers. Not allowed in an inline handler or in a callback of
/// any worker, because these block threads that the answer may need.
///
/// Errors: `RDZV_RPC_UNKNOWN_WORKER`, `RDZV_RPC_NO_HANDLER`, `RDZV_RPC_HANDLER_FAILED` (`rdzv_error_cause`
/// has the handler's message), `RDZV_TIMED_OUT`, `RDZV_RPC_PEER_DIED`, `RDZV_RPC_UNREACHED` (there is no
/// connection to the callee; nothing was sent), `RDZV_RPC_LEAVING`, `RDZV_RPC_NO_MEMBER`,
/// `RDZV_LIMIT_EXCEEDED`, `RDZV_EXHAUSTED`, `RDZV_INVALID_ARGUMENT` (for example, the handler's name is
/// empty or too long), `RDZV_CANCELLED` after `rdzv_rpc_cancel`, `RDZV_REENTRANT` (called in an inline
/// handler or a callback; nothing was sent), `RDZV_PANIC` (a library thread panicked); for a backend in
/// user code also the status that it returns, `RDZV_REENTRANT` if the same worker's functions make the
/// call, and `RDZV_UNSUPPORTED` if the backend has no calls for C. `rdzv_error_node` has the name of the
/// callee if it is known, else `rdzv_error_rank` has its id, even if there is no such worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_call(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    answer: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused where it must be.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            let outcome = match of.calls()? {
                Calls::Tcp(tcp) => tcp
                    .call_unless(&of.canceller.token(), spec.callee, spec.handler, spec.payload, spec.timeout)
                    .map_err(|error| group_call_fault(&error)),
                Calls::Foreign(_) if !may_wait() => return Err(vain_wait()),
                Calls::Foreign(_) => {
                    let token = of.canceller.token();
                    let future = start(of, spec)?;
                    let canceller = future.canceller.clone();
                    let _guard = token.on_cancel(move || canceller.end());
                    let unanswered = || Fault::new(RDZV_TIMED_OUT, "the call was not answered");
                    future.wait(FOREVER)?.ok_or_else(unanswered)?
                }
            };
            let bytes = outcome?;
            if let Ok(answer) = reference_mut(answer, "answer") {
                answer.take(bytes);
            }
            Ok(())
        })
    }
}

#[cold]
fn vain_wait() -> Fault {
    Fault::new(RDZV_REENTRANT, "a call cannot be awaited in an inline handler or in a callback")
        .during("call")
}

/// Starts a call to a worker and does not wait for it. On success the caller owns `*out` and frees it with
/// `rdzv_rpc_future_free`.
///
/// Errors: those of `rdzv_rpc_call` that are known at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_start_call(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    out: *mut *mut rdzv_rpc_future,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            let out = out_pointer(out, "out")?;
            out.put(Box::into_raw(Box::new(start(of, spec)?)));
            Ok(())
        })
    }
}

/// Calls a worker and reports the outcome to `done` once: the answer, or a status and an error, which
/// `done` borrows. `done` runs on a library thread or on the calling thread; it must not block or throw. It
/// may free the worker; shutting the worker down or waiting for a call returns `RDZV_REENTRANT` there.
///
/// Errors: those of `rdzv_rpc_call` that are known at once; `done` is then not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_call_with(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    done: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            status: rdzv_status,
            data: *const u8,
            len: usize,
            error: *const rdzv_error,
        ),
    >,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        call_on(rpc, call, error, |of, spec| {
            if done.is_none() {
                return Err(invalid("`done` is NULL"));
            }
            let on_result = listener(done, user_data);
            match of.calls()? {
                Calls::Tcp(tcp) => {
                    let completion = move |result: Result<Vec<u8>, _>| {
                        on_result(result.map_err(|error| group_call_fault(&error)));
                    };
                    tcp.call_with(spec.callee, spec.handler, spec.payload, spec.timeout, completion)
                        .map(drop)
                        .map_err(|error| group_call_fault(&error))
                }
                Calls::Foreign(code) => {
                    let callee_name = CalleeName::from(spec.callee);
                    let named = move |result: GroupResult| {
                        on_result(
                            result.map_err(|error| naming(group_call_fault(&error), callee_name.callee())),
                        );
                    };
                    let completion = Some((Box::new(named) as OnResult, Wanted::new(CallKind::Responded)));
                    code.call(&spec, completion).map_err(|error| group_call_fault(&error))
                }
            }
        })
    }
}

/// Sends a notice: a call without an answer. Whether it arrives is not reported.
///
/// For each caller, the callee accepts at most about 1,024 notices, or 256 MiB of them, that are queued or
/// running. It accepts more as these finish; until then they wait in the caller.
///
/// Errors: those of `rdzv_rpc_call` that are known at once. `RDZV_LIMIT_EXCEEDED`: 65,536 calls and
/// notices, or 8 GiB of them, wait to be sent to this worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_notify(
    rpc: *const rdzv_rpc,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the arguments are forwarded unchanged; NULL is refused.
    unsafe {
        call_on(rpc, call, error, |of, spec| match of.calls()? {
            Calls::Tcp(tcp) => tcp
                .notify(spec.callee, spec.handler, spec.payload, spec.timeout)
                .map_err(|error| group_call_fault(&error)),
            Calls::Foreign(code) => code.call(&spec, None).map_err(|error| group_call_fault(&error)),
        })
    }
}

/// Frees a future. A call that has not ended is cancelled. No other call on the future may be in progress.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_free(future: *mut rdzv_rpc_future) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(future) };
}

/// Waits up to `timeout_ms` (0: poll once; -1: as long as the call may take) for the call to end. `*ended`
/// is 1 if it has ended, else 0; in the first case the answer replaces the content of `answer`, which may
/// be NULL. The outcome is returned once, to one thread; several threads may wait, each with its own
/// timeout. An inline handler or a callback must not wait: if the call has not ended there and `timeout_ms`
/// is not 0, the status is `RDZV_REENTRANT` and the call continues.
///
/// Errors: those of `rdzv_rpc_call`; `RDZV_CANCELLED` after `rdzv_rpc_future_cancel`;
/// `RDZV_INVALID_ARGUMENT` if the outcome was already returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_wait(
    future: *const rdzv_rpc_future,
    timeout_ms: i64,
    ended: *mut i32,
    answer: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call_on(future.as_ref().map(|future| &future.poison), error, &mut || {
            let future = reference(future, "future")?;
            let ended = out_pointer(ended, "ended")?;
            let wait = crate::store::span(timeout_ms, FOREVER)?;
            let waits_in_vain = !wait.is_zero() && !may_wait();
            let waited = future.wait(if waits_in_vain { Duration::ZERO } else { wait })?;
            let Some(outcome) = waited else {
                if waits_in_vain {
                    return Err(vain_wait());
                }
                ended.put(0);
                return Ok(());
            };
            let bytes = outcome?;
            ended.put(1);
            if let Ok(answer) = reference_mut(answer, "answer") {
                answer.take(bytes);
            }
            Ok(())
        })
    }
}

/// Returns 1 if the call has ended, so that `rdzv_rpc_future_wait` returns at once, else 0. Returns 0 while
/// another thread waits, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_is_ready(future: *const rdzv_rpc_future) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(future, 0, |of| {
            let mut state = of.lock();
            if let FutureState::InFlight(pending) = &mut *state
                && let Some(outcome) = pending.look(Duration::ZERO)
            {
                *state = FutureState::Ended(outcome);
            }
            i32::from(matches!(&*state, FutureState::Ended(_) | FutureState::Taken))
        })
    }
}

/// Cancels the call unless it has ended: threads that wait for it get `RDZV_CANCELLED`. The callee is
/// notified; a backend in user code can query it (`rdzv_rpc_responder_is_wanted`). Any thread may call
/// this. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rpc_future_cancel(future: *const rdzv_rpc_future) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe {
        guard::read(future, (), |of| of.canceller.end());
    }
}
