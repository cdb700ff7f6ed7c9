//! RPC workers in the caller's event loop.

use crate::argument::{invalid, out_pointer, reference, text};
use crate::buffer::rdzv_buffer;
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::loop_event::{LastEvent, RDZV_EVENT_COMPLETED, rdzv_event};
use crate::loop_gate::{self, rdzv_loop};
use crate::loop_rpc_event::RpcWorkerEvent;
use crate::rpc::{
    EVENT_FIRST_SIZE, HandleEnd, Making, Named, RDZV_RPC_EVENT_OVER, describe_end, put_event, rdzv_rpc,
    rdzv_rpc_event, view,
};
use crate::rpc_call_spec::{naming, rdzv_rpc_call_spec, spec, spec_of};
use crate::rpc_end::shutdown_of;
use crate::rpc_fault::{agent_fault, group_call_fault, init_fault};
use crate::rpc_handlers::{Code, Entry, rdzv_rpc_handlers, rdzv_rpc_request, rdzv_rpc_responder};
use crate::rpc_options::rdzv_rpc_options;
use crate::sized;
use crate::status::{RDZV_ALREADY_REGISTERED, RDZV_EXHAUSTED, RDZV_UNSUPPORTED, rdzv_status};
use crate::store::rdzv_store;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::loop_client::{MemberEvent, MemberId};
use rendezvous_rpc::driver::group::CallSpec;
use rendezvous_rpc::driver::loop_member::{RpcAskError, RpcEvent, RpcLoop, RpcRequestQueue};
use std::any::Any;
use std::ptr::null;
use std::sync::Arc;

/// `rdzv_event.kind`: an RPC worker has joined its group, or, if `status` is not `RDZV_OK`, has failed to;
/// no event of the worker follows a failure.
pub const RDZV_EVENT_RPC_JOINED: i32 = 11;
/// `rdzv_event.kind`: event of an RPC worker's group, or the worker has ended; `rdzv_loop_rpc_event`
/// returns it.
pub const RDZV_EVENT_RPC: i32 = 12;
/// `rdzv_event.kind`: a request to a handler of the loop. `rdzv_loop_rpc_request` returns it, and
/// `rdzv_loop_rpc_responder` returns the responder that answers it.
pub const RDZV_EVENT_RPC_REQUEST: i32 = 13;

impl LastEvent {
    /// Stores the data of a worker's event and fills the C event; returns the failure that it reports, if any.
    pub(crate) fn keep_rpc(&mut self, view: &mut rdzv_event, event: MemberEvent) -> Option<Fault> {
        match *event.downcast().ok()? {
            RpcEvent::Joined(joined) => {
                view.kind = RDZV_EVENT_RPC_JOINED;
                return joined.err().map(|error| init_fault(&error));
            }
            RpcEvent::Completed(call, called, result) => {
                (view.kind, view.operation) = (RDZV_EVENT_COMPLETED, call.0);
                // Moving the owner does not move the names that the C struct points to.
                self.rpc.called = called.map(|called| (spec_of(&called), called));
                match result {
                    Ok(answer) => self.value = answer,
                    Err(error) => {
                        let fault = group_call_fault(&error);
                        return Some(match &self.rpc.called {
                            Some((_, called)) => naming(fault, called.callee.callee()),
                            None => fault,
                        });
                    }
                }
                (view.data, view.len) = (self.value.as_ptr(), self.value.len());
            }
            RpcEvent::Request(request, responder) => {
                view.kind = RDZV_EVENT_RPC_REQUEST;
                // Moving the owner does not move the bytes that the event points to.
                (view.data, view.len) = self.rpc.request.insert(rdzv_rpc_request::of(request)).parts();
                self.rpc.responder = Some(responder);
            }
            RpcEvent::Group(event) => {
                view.kind = RDZV_EVENT_RPC;
                self.rpc.event = Some(RpcWorkerEvent::Group(event));
            }
            RpcEvent::Over(end) => {
                view.kind = RDZV_EVENT_RPC;
                self.rpc.event = Some(RpcWorkerEvent::Over(describe_end(&end)));
                return end.err().map(|error| agent_fault(&error).during("shutdown"));
            }
        }
        None
    }
}

fn ask_fault(error: &RpcAskError) -> Fault {
    match error {
        RpcAskError::Unknown => invalid(error.to_string()),
        RpcAskError::Call(error) => group_call_fault(error),
        RpcAskError::System(cause) => Fault::new(RDZV_EXHAUSTED, error.to_string())
            .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0)),
    }
}

/// Starts to create a worker.
unsafe fn init(
    this: &mut rdzv_loop,
    making: impl FnOnce() -> Result<(Arc<Home>, Making), Fault>,
    number: *mut u32,
) -> Result<(), Fault> {
    let number = out_pointer(number, "number")?;
    let (home, making) = making()?;
    let make = Box::new(move |queue: &RpcRequestQueue, token: CancelToken| making.run_for(queue, token));
    let made = this.stores.init_rpc(home, make).map_err(|cause| {
        Fault::new(RDZV_EXHAUSTED, format!("cannot create a thread for the RPC worker: {cause}"))
            .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
    })?;
    // SAFETY: the output pointer was checked above.
    unsafe { number.put(made.as_u32()) };
    Ok(())
}

/// Starts to create a worker as `rdzv_rpc_init` does, on a thread of the library, and returns at once. The
/// number that goes to `*number` is in the field `store` of the worker's events. The first event is
/// `RDZV_EVENT_RPC_JOINED`. Then follow, in order, the requests to its handlers of kind `RDZV_RPC_LOOP`,
/// the events of its group and the ends of its calls. The last is `RDZV_EVENT_RPC`, when the worker has
/// ended. `options` and `handlers` are copied. `context` is the worker's context, which may differ from the
/// loop's; a context has one worker at a time. `rdzv_rpc_options_cancel` cancels the attempt, as
/// `rdzv_loop_rpc_shutdown` does.
///
/// Requests that the program has not taken out of the loop are queued, up to 65,536 requests and 8 GiB.
/// Further requests fail at their callers, as do all queued requests when the worker ends. Up to 4,096
/// events of the group are queued, after which the oldest are dropped. One `rdzv_loop_poll` processes what
/// was pending when it began.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_EXHAUSTED` (no thread). The event reports the other errors of
/// `rdzv_rpc_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_init(
    event_loop: *mut rdzv_loop,
    context: *const rdzv_context,
    name: *const u8,
    name_len: usize,
    rank: i32,
    world_size: i32,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let making = || {
                let home = home(context)?;
                let named = Named { name, name_len, rank, world_size };
                Ok((Arc::clone(&home), Making::new(home, None, named, options, handlers)?))
            };
            init(this, making, number)
        })
    }
}

/// Starts to create a worker as `rdzv_rpc_init_over_store` does, over an existing blocking store; otherwise
/// like `rdzv_loop_rpc_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_init_over_store(
    event_loop: *mut rdzv_loop,
    context: *const rdzv_context,
    store: *const rdzv_store,
    name: *const u8,
    name_len: usize,
    rank: i32,
    world_size: i32,
    options: *const rdzv_rpc_options,
    handlers: *const rdzv_rpc_handlers,
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let making = || {
                let (home, store) = (home(context)?, reference(store, "store")?);
                let named = Named { name, name_len, rank, world_size };
                Ok((Arc::clone(&home), Making::new(home, Some(store), named, options, handlers)?))
            };
            init(this, making, number)
        })
    }
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
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (number, rpc) = (out_pointer(number, "number")?, reference(rpc, "rpc")?);
            let home = Arc::clone(&rpc.home);
            let added = this.stores.add_rpc(home, Arc::clone(&rpc.agent)).map_err(|_| {
                Fault::new(RDZV_ALREADY_REGISTERED, format!("{} is in a loop already", rpc.agent.me()))
            })?;
            number.put(added.as_u32());
            Ok(())
        })
    }
}

/// Removes a worker from the loop: no event of it follows, and unanswered requests fail at their callers. A
/// worker that was created for the loop ends abruptly, on a thread of the library, and occupies its context
/// until it has ended; to create another worker in that context, call `rdzv_loop_rpc_shutdown` first and
/// wait for the event. A worker that was added continues; its handlers of kind `RDZV_RPC_LOOP` remain and
/// fail until `rdzv_rpc_remove_handler`. An unknown worker is ignored. Inside user code that a call on the
/// loop runs, the removal happens when that call returns; on another thread at that time, the result is
/// `RDZV_REENTRANT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_rpc(
    event_loop: *mut rdzv_loop,
    number: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { loop_gate::remove(event_loop, error, MemberId::from_u32(number), RpcLoop::remove_rpc) }
}

/// Creates another handle of a worker, from `RDZV_EVENT_RPC_JOINED` on: for its name, its id, the workers
/// of its group, its devices and its handlers. On success the caller owns `*out` and frees it with
/// `rdzv_rpc_free`, which does not end the worker.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no such worker, or it has not joined yet).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_handle(
    event_loop: *mut rdzv_loop,
    number: u32,
    out: *mut *mut rdzv_rpc,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (out, id) = (out_pointer(out, "out")?, MemberId::from_u32(number));
            let home = this.stores.rpc_home(id).map(|home| home as Arc<dyn Any + Send + Sync>);
            let home = home.and_then(|home| home.downcast::<Home>().ok());
            let (Some(agent), Some(home)) = (this.stores.rpc(id), home) else {
                return Err(invalid("the loop has no RPC worker with this number that has joined its group"));
            };
            out.put(Box::into_raw(Box::new(rdzv_rpc::new(agent, home, HandleEnd::LeavesWorker))));
            Ok(())
        })
    }
}

/// Runs a call. Borrowed payload bytes are released even if the loop is invalid.
unsafe fn call_on(
    event_loop: *mut rdzv_loop,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
    body: impl Fn(&mut rdzv_loop, CallSpec<'_>) -> Result<(), Fault>,
) -> rdzv_status {
    // As for a blocking worker, the call is read outside the guard.
    // SAFETY: the pointer is NULL or valid as the header requires; NULL is refused.
    let mut read = Some(unsafe { spec(call) });
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let Some(spec) = read.take().transpose()? else { return Ok(()) };
            let callee = spec.callee;
            body(this, spec).map_err(|fault| naming(fault, callee))
        })
    }
}

/// Calls a worker and returns at once. The call's number goes to `*operation`: its event
/// `RDZV_EVENT_COMPLETED` has the answer and follows by its deadline at the latest; `rdzv_loop_cancel`
/// cancels it. A worker may have 65,536 calls that are in progress or whose events have not been taken.
///
/// Errors: those of `rdzv_rpc_call` that are known at once; the event has the others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_call(
    event_loop: *mut rdzv_loop,
    number: u32,
    call: *const rdzv_rpc_call_spec,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        call_on(event_loop, call, error, |this, spec| {
            let operation = out_pointer(operation, "operation")?;
            let made = this.stores.rpc_call(MemberId::from_u32(number), spec);
            operation.put(made.map_err(|error| ask_fault(&error))?.0);
            Ok(())
        })
    }
}

/// Sends a call that has no answer; no event follows. The limits are those of `rdzv_rpc_notify`.
///
/// Errors: those of `rdzv_rpc_call` that are known at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_notify(
    event_loop: *mut rdzv_loop,
    number: u32,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        call_on(event_loop, call, error, |this, spec| {
            this.stores.rpc_notify(MemberId::from_u32(number), spec).map_err(|error| ask_fault(&error))
        })
    }
}

/// Adds a handler of kind `RDZV_RPC_LOOP` to a worker of the loop that has joined its group. Calls to it
/// that arrived earlier have failed.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_ALREADY_REGISTERED`, `RDZV_UNSUPPORTED` with a custom backend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_add_handler(
    event_loop: *mut rdzv_loop,
    number: u32,
    name: *const u8,
    name_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (id, name) = (MemberId::from_u32(number), text(name, name_len, "name")?);
            let (Some(agent), Some(queue)) = (this.stores.rpc(id), this.stores.rpc_request_queue(id)) else {
                return Err(invalid("the loop has no RPC worker with this number that has joined its group"));
            };
            let tcp = agent.tcp().ok_or_else(|| {
                Fault::new(RDZV_UNSUPPORTED, "a custom backend takes its handlers when it is created")
            })?;
            Entry { name: name.into(), code: Code::RequestQueue(queue) }.register(tcp.handling())
        })
    }
}

/// Starts to end a worker, with `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`, and returns at once. The worker's
/// last event is `RDZV_EVENT_RPC`, whose status is the result. Until then its handlers still receive
/// requests, and calls for which a graceful end waits continue; an abrupt end may follow a graceful one. A
/// worker that is still joining stops: `RDZV_EVENT_RPC_JOINED` fails and is the last event, unless it had
/// already joined, in which case it ends as above.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (also for an unknown worker), `RDZV_EXHAUSTED` (no thread).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_shutdown(
    event_loop: *mut rdzv_loop,
    number: u32,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let how = shutdown_of(how)?;
            this.stores.rpc_shutdown(MemberId::from_u32(number), how).map_err(|error| ask_fault(&error))
        })
    }
}

/// Returns the completed call if the last event was `RDZV_EVENT_COMPLETED` of an RPC worker, else NULL.
/// Only its fields `callee` or else `callee_id`, and `handler`, are set, as they were given. Valid until
/// the next call of `rdzv_loop_next_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_called(event_loop: *const rdzv_loop) -> *const rdzv_rpc_call_spec {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| {
            this.last_event.rpc.called.as_ref().map_or_else(null, |(view, _)| std::ptr::from_ref(view))
        })
    })
}

/// Returns the event as `rdzv_rpc_next_event` does, if the last event was `RDZV_EVENT_RPC`. Set
/// `event->struct_size` first; `name` and `why` may be NULL. `RDZV_RPC_EVENT_OVER` means that the worker
/// has ended and no event of it follows; the status of the loop's event is the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_event(
    event_loop: *mut rdzv_loop,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let last_event = match &this.last_event.rpc.event {
                Some(RpcWorkerEvent::Group(event)) => view(Some(event)),
                Some(RpcWorkerEvent::Over(message)) => (RDZV_RPC_EVENT_OVER, None, &**message),
                None => return Err(invalid("the last event is not RDZV_EVENT_RPC")),
            };
            put_event(last_event, event, given, name, why);
            Ok(())
        })
    }
}

/// Returns the request to a handler if the last event was `RDZV_EVENT_RPC_REQUEST`, else NULL. Valid until
/// the next call of `rdzv_loop_next_event`; the payload may be taken with `rdzv_rpc_request_take`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_request(event_loop: *const rdzv_loop) -> *const rdzv_rpc_request {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| {
            this.last_event.rpc.request.as_ref().map_or_else(null, std::ptr::from_ref)
        })
    })
}

/// Returns the responder for the last event if that was `RDZV_EVENT_RPC_REQUEST`; only once per request. On
/// success the caller owns `*out` and may answer at any time, from any thread. If it is not called before
/// the next call of `rdzv_loop_next_event`, the caller of the RPC gets an error that there is no answer.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no request, or its responder was already returned).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_responder(
    event_loop: *mut rdzv_loop,
    out: *mut *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let out = out_pointer(out, "out")?;
            let responder = this.last_event.rpc.responder.take();
            let responder = responder
                .ok_or_else(|| invalid("the last event has no responder, or it was already returned"))?;
            out.put(Box::into_raw(Box::new(rdzv_rpc_responder::of_caller(responder))));
            Ok(())
        })
    }
}
