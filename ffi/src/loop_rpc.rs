//! Workers of RPC groups in an event loop of the caller's.

use crate::argument::{invalid, out_pointer, reference, text};
use crate::buffer::rdzv_buffer;
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::loop_event::{LastEvent, RDZV_EVENT_COMPLETED, rdzv_event};
use crate::loop_gate::{self, rdzv_loop};
use crate::loop_rpc_event::Happened;
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
use rendezvous_core::driver::canceller::Canceller;
use rendezvous_core::driver::loop_client::{MemberEvent, MemberId};
use rendezvous_rpc::driver::group::CallSpec;
use rendezvous_rpc::driver::loop_member::{RpcAskError, RpcEvent, RpcLoop, RpcRequestQueue};
use std::any::Any;
use std::ptr::null;
use std::sync::Arc;

/// `rdzv_event.kind`: an RPC worker is a member of its group, or, where the status is another one than
/// `RDZV_OK`, is none: then this is the last that is heard of it.
pub const RDZV_EVENT_RPC_JOINED: i32 = 11;
/// `rdzv_event.kind`: something happened to an RPC worker's group, or the worker has ended;
/// `rdzv_loop_rpc_event` tells what.
pub const RDZV_EVENT_RPC: i32 = 12;
/// `rdzv_event.kind`: a handler of the loop's is asked; `rdzv_loop_rpc_request` tells what, and
/// `rdzv_loop_rpc_responder` is the way back.
pub const RDZV_EVENT_RPC_REQUEST: i32 = 13;

impl LastEvent {
    /// Keeps what an event of a worker lends out, and shows the rest; what went wrong comes back.
    pub(crate) fn keep_rpc(&mut self, view: &mut rdzv_event, event: MemberEvent) -> Option<Fault> {
        match *event.downcast().ok()? {
            RpcEvent::Joined(joined) => {
                view.kind = RDZV_EVENT_RPC_JOINED;
                return joined.err().map(|error| init_fault(&error));
            }
            RpcEvent::Completed(call, called, result) => {
                (view.kind, view.operation) = (RDZV_EVENT_COMPLETED, call.0);
                // The names do not move with their owner.
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
                // The bytes do not move with their owner.
                (view.data, view.len) = self.rpc.request.insert(rdzv_rpc_request::of(request)).parts();
                self.rpc.responder = Some(responder);
            }
            RpcEvent::Group(event) => {
                view.kind = RDZV_EVENT_RPC;
                self.rpc.event = Some(Happened::Group(event));
            }
            RpcEvent::Over(end) => {
                view.kind = RDZV_EVENT_RPC;
                self.rpc.event = Some(Happened::Over(describe_end(&end)));
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
            .with(|known| known.os_error = cause.raw_os_error().unwrap_or(0)),
    }
}

/// Begins to make a worker.
unsafe fn init(
    this: &mut rdzv_loop,
    making: impl FnOnce() -> Result<(Arc<Home>, Making), Fault>,
    number: *mut u32,
) -> Result<(), Fault> {
    let number = out_pointer(number, "number")?;
    let (home, making) = making()?;
    let make =
        Box::new(move |queue: &RpcRequestQueue, canceller: Canceller| making.run_for(queue, canceller));
    let made = this.stores.init_rpc(home, make).map_err(|cause| {
        Fault::new(RDZV_EXHAUSTED, format!("no thread to make the RPC worker: {cause}"))
            .with(|known| known.os_error = cause.raw_os_error().unwrap_or(0))
    })?;
    // SAFETY: the place was found to be there.
    unsafe { number.put(made.as_u32()) };
    Ok(())
}

/// Begins to make a worker as `rdzv_rpc_init`, on a thread of the library's, and returns at once. The
/// number that goes to `*number` is in the field `store` of its events: `RDZV_EVENT_RPC_JOINED` first; then
/// what its handlers of kind `RDZV_RPC_LOOP` are asked, what happens to its group, and the ends of its
/// calls, in order; and at last `RDZV_EVENT_RPC`, when it has ended. `options` and `handlers` are copied.
/// `context` is the worker's, which need not be the loop's; a context has one worker at a time.
/// `rdzv_rpc_options_cancel` gives the attempt up, as `rdzv_loop_rpc_shutdown` does.
///
/// Requests that nobody takes out of the loop wait, 65,536 of them and 8 GiB at most; further ones fail at
/// their callers, as all that wait do when the worker ends. Of more than 4,096 things that happened to the
/// group the oldest are lost. A turn of the loop has what was there when it began.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_EXHAUSTED` (no thread); the others of `rdzv_rpc_init` are told by
/// the event.
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
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let making = || {
                let home = home(context)?;
                let named = Named { name, name_len, rank, world_size };
                Ok((Arc::clone(&home), Making::new(home, None, named, options, handlers)?))
            };
            init(this, making, number)
        })
    }
}

/// The same as `rdzv_rpc_init_over_store` makes one, over a store that blocks and is there already.
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
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let making = || {
                let (home, store) = (home(context)?, reference(store, "store")?);
                let named = Named { name, name_len, rank, world_size };
                Ok((Arc::clone(&home), Making::new(home, Some(store), named, options, handlers)?))
            };
            init(this, making, number)
        })
    }
}

/// Adds a worker that is a member already: what happens to its group is told by the loop from now on, and by
/// `rdzv_rpc_next_event` no more. The handle stays yours; freed, it ends the worker, and so does
/// `rdzv_loop_rpc_shutdown`, but not the end of the loop.
///
/// Errors: `RDZV_ALREADY_REGISTERED` (it is in a loop).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_rpc(
    event_loop: *mut rdzv_loop,
    rpc: *const rdzv_rpc,
    number: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
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

/// Forgets a worker: no event of it follows, and what waits to be answered fails at its callers. One that
/// was made for the loop ends abruptly, on a thread of the library's, and its context has it until then:
/// who wants another worker there ends it with `rdzv_loop_rpc_shutdown` and waits for the event. One that
/// was added goes on; its handlers of kind `RDZV_RPC_LOOP` stay, and fail, until `rdzv_rpc_remove_handler`.
/// An unknown worker is ignored. Within code that a call on the loop runs, it happens when that call returns;
/// in another thread meanwhile it is `RDZV_REENTRANT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_rpc(
    event_loop: *mut rdzv_loop,
    number: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { loop_gate::remove(event_loop, error, MemberId::from_u32(number), RpcLoop::remove_rpc) }
}

/// Another handle of a worker, from `RDZV_EVENT_RPC_JOINED` on: for its name, its number, the workers of
/// its group, its devices, and for handlers. On success `*out` is yours until `rdzv_rpc_free`, which leaves
/// the worker where it is.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (no such worker, or not yet).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_handle(
    event_loop: *mut rdzv_loop,
    number: u32,
    out: *mut *mut rdzv_rpc,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let (out, id) = (out_pointer(out, "out")?, MemberId::from_u32(number));
            let home = this.stores.rpc_home(id).map(|home| home as Arc<dyn Any + Send + Sync>);
            let home = home.and_then(|home| home.downcast::<Home>().ok());
            let (Some(agent), Some(home)) = (this.stores.rpc(id), home) else {
                return Err(invalid("the loop has no member of a group of this number"));
            };
            out.put(Box::into_raw(Box::new(rdzv_rpc::new(agent, home, HandleEnd::LeavesWorker))));
            Ok(())
        })
    }
}

/// Runs a call. Bytes that are lent for it are given back also where the loop is none.
unsafe fn call_on(
    event_loop: *mut rdzv_loop,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&mut rdzv_loop, CallSpec<'_>) -> Result<(), Fault>,
) -> rdzv_status {
    // As for a worker that blocks: not within the guard.
    // SAFETY: as the header wants it.
    let read = unsafe { spec(call) };
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let spec = read?;
            let callee = spec.callee;
            body(this, spec).map_err(|fault| naming(fault, callee))
        })
    }
}

/// Calls a worker, and returns at once. `*operation` names the call: its event is `RDZV_EVENT_COMPLETED`
/// with the answer, by its deadline at the latest, and `rdzv_loop_cancel` gives it up. 65,536 calls of a
/// worker may be under way, or have events that nobody has taken.
///
/// Errors: those of `rdzv_rpc_call` that are known at once; the others are those of the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_call(
    event_loop: *mut rdzv_loop,
    number: u32,
    call: *const rdzv_rpc_call_spec,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        call_on(event_loop, call, error, |this, spec| {
            let operation = out_pointer(operation, "operation")?;
            let made = this.stores.rpc_call(MemberId::from_u32(number), spec);
            operation.put(made.map_err(|error| ask_fault(&error))?.0);
            Ok(())
        })
    }
}

/// Calls what nobody answers; no event follows. The limits are those of `rdzv_rpc_notify`.
///
/// Errors: those of `rdzv_rpc_call` that are known at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_notify(
    event_loop: *mut rdzv_loop,
    number: u32,
    call: *const rdzv_rpc_call_spec,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        call_on(event_loop, call, error, |this, spec| {
            this.stores.rpc_notify(MemberId::from_u32(number), spec).map_err(|error| ask_fault(&error))
        })
    }
}

/// Adds a handler of kind `RDZV_RPC_LOOP` to a worker of the loop that is a member. Others may have called
/// it before.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_ALREADY_REGISTERED`, `RDZV_UNSUPPORTED` with a backend of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_add_handler(
    event_loop: *mut rdzv_loop,
    number: u32,
    name: *const u8,
    name_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let (id, name) = (MemberId::from_u32(number), text(name, name_len, "name")?);
            let (Some(agent), Some(queue)) = (this.stores.rpc(id), this.stores.rpc_request_queue(id)) else {
                return Err(invalid("the loop has no member of a group of this number"));
            };
            let tcp = agent.tcp().ok_or_else(|| {
                Fault::new(
                    RDZV_UNSUPPORTED,
                    "a backend of the program's own takes its handlers when it is made",
                )
            })?;
            Entry { name: name.into(), code: Code::RequestQueue(queue) }.register(tcp.handling())
        })
    }
}

/// Begins to end a worker, `RDZV_RPC_GRACEFUL` or `RDZV_RPC_ABRUPT`, and returns at once: when it has
/// ended, the last event of it is `RDZV_EVENT_RPC`, whose status tells how. Meanwhile its handlers are
/// asked still, and calls that wait for a graceful end go on; an abrupt one may follow. A worker that joins
/// gives that up: `RDZV_EVENT_RPC_JOINED` fails, and is the last event; or it had joined, and it ends then.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (also for an unknown worker), `RDZV_EXHAUSTED` (no thread).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_shutdown(
    event_loop: *mut rdzv_loop,
    number: u32,
    how: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let how = shutdown_of(how)?;
            this.stores.rpc_shutdown(MemberId::from_u32(number), how).map_err(|error| ask_fault(&error))
        })
    }
}

/// The call that is over, when the last event was `RDZV_EVENT_COMPLETED` of an RPC worker, else NULL: of its
/// fields `callee` or else `callee_id`, and `handler`, as they were given. Lent until the next call of
/// `rdzv_loop_next_event`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_called(event_loop: *const rdzv_loop) -> *const rdzv_rpc_call_spec {
    // SAFETY: as the header wants it.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| {
            this.last_event.rpc.called.as_ref().map_or_else(null, |(view, _)| std::ptr::from_ref(view))
        })
    })
}

/// What happened, when the last event was `RDZV_EVENT_RPC`, as `rdzv_rpc_next_event` tells it: of `*event`,
/// `struct_size` must be set, and `name` and `why` may be NULL. `RDZV_RPC_EVENT_OVER`: the worker has
/// ended, and nothing more is heard of it; the status of the loop's event tells how.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_event(
    event_loop: *mut rdzv_loop,
    event: *mut rdzv_rpc_event,
    name: *mut rdzv_buffer,
    why: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let last_event = match &this.last_event.rpc.event {
                Some(Happened::Group(event)) => view(Some(event)),
                Some(Happened::Over(message)) => (RDZV_RPC_EVENT_OVER, None, &**message),
                None => return Err(invalid("the last event has none")),
            };
            put_event(last_event, event, given, name, why);
            Ok(())
        })
    }
}

/// What a handler is asked, when the last event was `RDZV_EVENT_RPC_REQUEST`, else NULL. Lent until the
/// next call of `rdzv_loop_next_event`; the bytes may be taken (`rdzv_rpc_request_take`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_request(event_loop: *const rdzv_loop) -> *const rdzv_rpc_request {
    // SAFETY: as the header wants it.
    guard::quiet(null(), || unsafe {
        loop_gate::read(event_loop, null(), |this| {
            this.last_event.rpc.request.as_ref().map_or_else(null, std::ptr::from_ref)
        })
    })
}

/// Gives the way back for the last event, when that was `RDZV_EVENT_RPC_REQUEST`; once. On success `*out`
/// is yours, to answer now or later, from any thread. Where nobody asks for it before the next call of
/// `rdzv_loop_next_event`, the caller hears that there is no answer.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is none, or it was given).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_rpc_responder(
    event_loop: *mut rdzv_loop,
    out: *mut *mut rdzv_rpc_responder,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let out = out_pointer(out, "out")?;
            let responder = this.last_event.rpc.responder.take();
            let responder = responder.ok_or_else(|| invalid("the last event has none, or it was given"))?;
            out.put(Box::into_raw(Box::new(rdzv_rpc_responder::of_caller(responder))));
            Ok(())
        })
    }
}
