//! RPC workers in the caller's event loop.

use crate::last_event::LastEvent;
use crate::loop_event::{
    RDZV_EVENT_RPC, RDZV_EVENT_RPC_JOINED, RDZV_EVENT_RPC_OVER, RDZV_EVENT_RPC_REQUEST, rdzv_event,
};
use crate::loop_gate::{self, rdzv_loop, rdzv_loop_member};
use crate::op::rdzv_op;
use crate::op_kind::OpKind;
use crate::op_result::Answer;
use crate::prelude::*;
use crate::rpc::{HandleEnd, Making, Named, projected, rdzv_rpc, rdzv_rpc_event, view};
use crate::rpc_call_spec::{naming, rdzv_rpc_call_spec, spec};
use crate::rpc_end::shutdown_of;
use crate::rpc_fault::{agent_fault, group_call_fault, init_fault};
use crate::rpc_handlers::{Code, Entry, callers_of, rdzv_rpc_handlers, rdzv_rpc_request, rdzv_rpc_responder};
use crate::rpc_options::rdzv_rpc_options;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::loop_client::MemberEvent;
use rendezvous_rpc::driver::loop_member::{RpcAskError, RpcEvent, RpcLoop, RpcRequestQueue};
use std::any::Any;

impl rdzv_loop {
    /// Stores the data of a worker's event and returns the event for C; `None` for the event of an
    /// operation that was freed.
    pub(crate) fn show_rpc(&mut self, view: rdzv_event, event: MemberEvent) -> Option<rdzv_event> {
        let last = &mut self.last_event;
        let ended = |last: &mut LastEvent, kind, fault: Option<Fault>| {
            let mut view = rdzv_event { kind, ..view };
            if let Some(fault) = fault {
                view.error = last.fail(fault);
            }
            Some(view)
        };
        match *event.downcast().ok()? {
            RpcEvent::Joined(joined) => {
                ended(last, RDZV_EVENT_RPC_JOINED, joined.err().map(|error| init_fault(&error)))
            }
            RpcEvent::Completed(call, called, result) => {
                let answer = result.map(Answer::Call).map_err(|error| {
                    let fault = group_call_fault(&error);
                    match &called {
                        Some(called) => naming(fault, called.callee.callee()),
                        None => fault,
                    }
                });
                self.complete(view, call, answer)
            }
            RpcEvent::Request(request, responder) => {
                last.rpc.request = Some(rdzv_rpc_request::of(request));
                last.rpc.responder = Some(responder);
                Some(rdzv_event { kind: RDZV_EVENT_RPC_REQUEST, ..view })
            }
            RpcEvent::Group(event) => {
                last.rpc.event = Some(event);
                Some(rdzv_event { kind: RDZV_EVENT_RPC, ..view })
            }
            RpcEvent::Over(end) => {
                let fault = end.err().map(|error| agent_fault(&error).during("shutdown"));
                ended(last, RDZV_EVENT_RPC_OVER, fault)
            }
        }
    }
}

faults! { RpcAskError => ask_fault, }

fn ask_fault(error: &RpcAskError) -> Fault {
    match error {
        RpcAskError::Unknown => invalid(error),
        RpcAskError::Call(error) => group_call_fault(error),
        RpcAskError::System(cause) => Fault::os(RDZV_EXHAUSTED, error.to_string(), cause),
    }
}

/// Starts to create a worker as `rdzv_rpc_new` does, on a thread of the library, and returns at once.
/// `user_data` and `*member` are as for `rdzv_loop_add_store`. The first event is
/// `RDZV_EVENT_RPC_JOINED`. Then follow, in order, the requests to its handlers of kind `RDZV_RPC_LOOP`,
/// the events of its group and the ends of its calls. The last is `RDZV_EVENT_RPC_OVER`, when the worker
/// has ended. `options` and `handlers` are copied. `context` is the worker's context, which may differ
/// from the loop's; a context has one worker at a time. The token of the options cancels the attempt, as
/// `rdzv_loop_rpc_shutdown` does.
///
/// Requests that the program has not taken out of the loop are queued, up to 65,536 requests and 8 GiB.
/// Further requests fail at their callers, as do all queued requests when the worker ends. Up to 4,096
/// events of the group are queued, after which the oldest are dropped. One `rdzv_loop_poll` processes
/// what was pending when it began.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_EXHAUSTED` (no thread). The event reports the other errors of
/// `rdzv_rpc_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_new(
    event_loop: *mut rdzv_loop,
    context: *const rdzv_context,
    name: *const u8,
    name_len: usize,
    rank: i32,
    world_size: i32,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let home = home(context)?;
        let named = Named { name, name_len, rank, world_size };
        let making = Making::new(Arc::clone(&home), named, options, handlers)?;
        let make = move |queue: &RpcRequestQueue, token: CancelToken| making.make(Some(queue), token);
        let made = this.stores.init_rpc(home, Box::new(make)).map_err(|cause| {
            let message = format!("cannot create a thread for the RPC worker: {cause}");
            Fault::os(RDZV_EXHAUSTED, message, &cause)
        })?;
        Ok(this.add(made, user_data, RpcLoop::remove_rpc))
    })
}

/// Adds a worker that has already joined its group. From now on the loop reports the events of its group,
/// and `rdzv_rpc_next_event` does not. The caller keeps the handle. Freeing the handle or calling
/// `rdzv_loop_rpc_shutdown` ends the worker; freeing the loop does not.
///
/// Errors: `RDZV_ALREADY_REGISTERED` (it is in a loop).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_rpc(
    event_loop: *mut rdzv_loop,
    rpc: *const rdzv_rpc,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let rpc = reference(rpc, "rpc")?;
        let added =
            this.stores.add_rpc(Arc::clone(&rpc.home) as _, Arc::clone(&rpc.agent)).map_err(|_| {
                Fault::new(RDZV_ALREADY_REGISTERED, format!("{} is in a loop already", rpc.agent.me()))
            })?;
        Ok(this.add(added, user_data, RpcLoop::remove_rpc))
    })
}

/// Creates another handle of a worker, from `RDZV_EVENT_RPC_JOINED` on: for its name, its id, the workers
/// of its group, its devices and its handlers. On success the caller owns `*out` and frees it with
/// `rdzv_rpc_free`, which does not end the worker.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no such worker, or it has not joined yet).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_handle(
    member: *mut rdzv_loop_member,
    out: *mut *mut rdzv_rpc,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, member, out, |(this, id)| {
        let home = this.stores.rpc_home(id).map(|home| home as Arc<dyn Any + Send + Sync>);
        let home = home.and_then(|home| home.downcast::<Home>().ok());
        let (Some(agent), Some(home)) = (this.stores.rpc(id), home) else {
            return Err(invalid("the loop has no RPC worker here that has joined its group"));
        };
        Ok(boxed(rdzv_rpc::new(agent, home, CancelToken::new(), HandleEnd::LeavesWorker)))
    })
}

/// Submits a call to a worker of the group as the operation `op` and returns at once.
/// `RDZV_EVENT_COMPLETED` follows by the call's deadline at the latest, with the payload of the response
/// as the `value` of the result; `rdzv_loop_cancel` cancels it. The request that `op` had is replaced. A
/// worker may have 65,536 calls that are in progress or whose events have not been taken. A borrowed
/// payload is released even if this function fails.
///
/// Errors: those of `rdzv_rpc_call` that are known at once; the result has the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_call(
    member: *mut rdzv_loop_member,
    op: *mut rdzv_op,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // As for a blocking worker, the call is read outside the guard.
    // SAFETY: the pointer is NULL or valid as the header requires; NULL is refused.
    let mut read = Some(unsafe { spec(call) });
    guard::on!(error, member, |(this, id)| {
        let Some(spec) = read.take().transpose()? else { return Ok(()) };
        let cell = &reference(op, "op")?.cell;
        let mut body = cell.enter()?;
        body.prepare(OpKind::Call, &[])?;
        let callee = spec.callee;
        let call = this.stores.rpc_call(id, spec);
        cell.warn_if_free_was_refused(this.home.shared());
        let call = call.map_err(|error| naming(ask_fault(&error), callee))?;
        body.submitted(call);
        this.ops.insert(call.0, (id, Arc::clone(cell)));
        Ok(())
    })
}

/// Adds a handler of kind `RDZV_RPC_LOOP` to a worker of the loop that has joined its group. Calls to it
/// that arrived earlier have failed. `callers` is that of `rdzv_rpc_handlers_add`.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_ALREADY_REGISTERED`, `RDZV_UNSUPPORTED` with a custom backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_add_handler(
    member: *mut rdzv_loop_member,
    name: *const u8,
    name_len: usize,
    callers: *const c_char,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, member, |(this, id)| {
        let (name, callers) = (text(name, name_len, "name")?.into(), callers_of(callers)?);
        let (Some(agent), Some(queue)) = (this.stores.rpc(id), this.stores.rpc_request_queue(id)) else {
            return Err(invalid("the loop has no RPC worker here that has joined its group"));
        };
        let tcp = agent.tcp().ok_or_else(|| {
            Fault::new(RDZV_UNSUPPORTED, "a custom backend takes its handlers when it is created")
        })?;
        Entry { name, callers, code: Code::RequestQueue(queue) }.register(tcp.handling())
    })
}

/// Starts to end a worker, with `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`, and returns at once. The
/// worker's last event is `RDZV_EVENT_RPC_OVER`, whose error is the result. Until then its handlers still
/// receive requests, and calls for which a graceful end waits continue; an abrupt end may follow a
/// graceful one. A worker that is still joining stops: `RDZV_EVENT_RPC_JOINED` fails and is the last
/// event, unless it had already joined, in which case it ends as above.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (also for an unknown worker), `RDZV_EXHAUSTED` (no thread).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_shutdown(
    member: *mut rdzv_loop_member,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, member, |(this, id)| Ok(this.stores.rpc_shutdown(id, shutdown_of(how)?)?))
}

/// Returns the event as `rdzv_rpc_next_event` does, if the last event was `RDZV_EVENT_RPC`. Set
/// `event->struct_size` first; `name` and `why` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_event(
    event_loop: *mut rdzv_loop,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, event, |this| {
        let last_event = this.last_event.rpc.event.as_ref();
        let last_event = last_event.ok_or_else(|| invalid("the last event is not RDZV_EVENT_RPC"))?;
        Ok(projected(view(Some(last_event)), name, why))
    })
}

/// Returns the request to a handler if the last event was `RDZV_EVENT_RPC_REQUEST`, else NULL. Valid
/// until the next call of `rdzv_loop_next_event`; the payload may be taken with `rdzv_rpc_request_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_request(event_loop: *const rdzv_loop) -> *const rdzv_rpc_request {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| {
            this.last_event.rpc.request.as_ref().map_or_else(null, std::ptr::from_ref)
        })
    })
}

/// Returns the responder for the last event if that was `RDZV_EVENT_RPC_REQUEST`; only once per request.
/// On success the caller owns `*out` and may answer at any time, from any thread. If it is not called
/// before the next call of `rdzv_loop_next_event`, the caller of the RPC gets an error that there is no
/// answer.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no request, or its responder was already returned).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_responder(
    event_loop: *mut rdzv_loop,
    out: *mut *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, out, |this| {
        let responder = this.last_event.rpc.responder.take();
        let responder = responder
            .ok_or_else(|| invalid("the last event has no responder, or it was already returned"))?;
        Ok(boxed(rdzv_rpc_responder::of_caller(responder)))
    })
}
