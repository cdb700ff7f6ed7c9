//! One node's part in a rendezvous.

use crate::argument::{out_pointer, reference, reference_mut, text};
use crate::buffer::{borrowed, rdzv_buffer};
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::rendezvous_event::{EVENT_FIRST_SIZE, projected, rdzv_round_event};
use crate::rendezvous_fault::handler_fault;
use crate::rendezvous_info::{info_handle, rdzv_rendezvous_info};
use crate::rendezvous_parameters::rdzv_rendezvous_parameters;
use crate::sized;
use crate::status::rdzv_status;
use crate::store::span;
use rendezvous_core::driver::rendezvous::{HandlerError, RendezvousHandler};
use rendezvous_core::driver::store::Timeouts;
use std::fmt;
use std::ptr::null;
use std::sync::Arc;

/// One node's part in a rendezvous, of whatever backend. Any thread may use it, several at a time; what
/// waits in one can be cancelled from another. A call ends by the deadline that the backend has for it.
pub struct rdzv_rendezvous_handler {
    poison: Poison,
    pub(crate) handler: Arc<dyn RendezvousHandler>,
    home: Arc<Home>,
}

impl fmt::Debug for rdzv_rendezvous_handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.handler.backend())
    }
}

/// Runs a function of a handler.
unsafe fn operate(
    handler: *const rdzv_rendezvous_handler,
    error: *mut *mut rdzv_error,
    body: impl FnOnce(&rdzv_rendezvous_handler) -> Result<Result<(), HandlerError>, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call_on(handler.as_ref().map(|handler| &handler.poison), error, || {
            let handler = reference(handler, "handler")?;
            handler.home.refuse_sink()?;
            body(handler)?.map_err(|error| handler_fault(&error))
        })
    }
}

/// Makes a handler of the backend that the parameters name: `static`, or another that the context has
/// (`rdzv_context_list_backends`). `context` may be NULL for a fresh one. On success `*out` is yours until
/// `rdzv_rendezvous_handler_free`.
///
/// Errors: `RDZV_NOT_REGISTERED`, `RDZV_BACKEND_MISMATCH` (the handler says that it is of another backend),
/// `RDZV_INVALID_ARGUMENT` (what the backend misses, or makes no sense to it); of a backend in code of yours
/// also what its `create` returns, `RDZV_TIMED_OUT`, and `RDZV_REENTRANT` when it is called from there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_new(
    context: *const rdzv_context,
    parameters: *const rdzv_rendezvous_parameters,
    out: *mut *mut rdzv_rendezvous_handler,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let out = out_pointer(out, "out")?;
            let home = home(context)?;
            let parameters = reference(parameters, "parameters")?;
            let handler = home.rendezvous().create_handler(&parameters.parameters);
            let handler = Arc::from(handler.map_err(|error| handler_fault(&error))?);
            let poison = Poison::default();
            out.put(Box::into_raw(Box::new(rdzv_rendezvous_handler { poison, handler, home })));
            Ok(())
        })
    }
}

/// Frees a handler. No other call on it may be under way: cancel and wait for them first. It says goodbye to
/// nobody: that is `rdzv_rendezvous_handler_shutdown`. A node of `rdzv` that was not shut down leaves its
/// round as if its process had died: its session ends, which the other nodes are told of (with a `grace`, when
/// that has passed), and calls on the stores of its rounds fail with `RDZV_SERVER_GONE`. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_free(handler: *mut rdzv_rendezvous_handler) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(handler) };
}

/// The name of its backend, its length in `*len` unless `len` is NULL. Not NUL-terminated; lives as long as
/// the handler. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_backend(
    handler: *const rdzv_rendezvous_handler,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(handler, null(), |of| borrowed(of.handler.backend().as_bytes(), len)) }
}

/// The run that this rendezvous is for, as `rdzv_rendezvous_handler_backend` gives the name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_run_id(
    handler: *const rdzv_rendezvous_handler,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(handler, null(), |of| borrowed(of.handler.run_id().as_bytes(), len)) }
}

/// Whether the ranks that this node starts shall use the store that the nodes met over, 1 or 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_use_agent_store(
    handler: *const rdzv_rendezvous_handler,
) -> i32 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(handler, 0, |of| i32::from(of.handler.use_agent_store())) }
}

/// Joins, and waits until the group is whole. Joining again is for the next round, to which all nodes have to
/// come; with `static` ranks it gives the same at once if some node is PyTorch's, which knows of no rounds. On
/// success `*out` is yours until `rdzv_rendezvous_info_free`.
///
/// Errors: `RDZV_RENDEZVOUS_CLOSED`, `RDZV_RENDEZVOUS_TIMED_OUT`, `RDZV_RENDEZVOUS_CONNECTION` (what the
/// rendezvous is held over cannot be reached), `RDZV_RENDEZVOUS_STATE`, `RDZV_RENDEZVOUS_GRACEFUL_EXIT`,
/// `RDZV_RENDEZVOUS_REPLACED` (another session has the node's name; until it was shut down, each attempt is
/// told so), `RDZV_CANCELLED`; `RDZV_REENTRANT` (the node joins already, in another thread); where this
/// process hosts the store, those of `rdzv_server_start`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_next_rendezvous(
    handler: *const rdzv_rendezvous_handler,
    out: *mut *mut rdzv_rendezvous_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(handler, error, |of| {
            let out = out_pointer(out, "out")?;
            let joined = of.handler.next_rendezvous();
            Ok(joined.map(|info| out.put(info_handle(info, Arc::clone(of.home.shared())))))
        })
    }
}

/// Whether the rendezvous is closed: 1 or 0 goes to `*closed`. It may be seen late: nothing to synchronize
/// by.
///
/// Errors of this and the functions below: the same as those of joining.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_is_closed(
    handler: *const rdzv_rendezvous_handler,
    closed: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(handler, error, |of| {
            let closed = out_pointer(closed, "closed")?;
            Ok(of.handler.is_closed().map(|is_closed| closed.put(i32::from(is_closed))))
        })
    }
}

/// Closes the rendezvous, for good: nobody may join any more, for as long as the server remembers the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_set_closed(
    handler: *const rdzv_rendezvous_handler,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe { operate(handler, error, |of| Ok(of.handler.set_closed())) }
}

/// Closes the rendezvous because the job has failed. Nodes of the live round get `message` (UTF-8, at most
/// 1,024 bytes) as `RDZV_ROUND_EVENT_JOB_FAILED`; nodes that are refused from now on get it in their error.
/// The first message stays. Backends that cannot pass it on only close the rendezvous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_fail(
    handler: *const rdzv_rendezvous_handler,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        let reason = text(message, message_len, "message");
        operate(handler, error, |of| Ok(of.handler.fail(reason?)))
    }
}

/// How many nodes wait for the next round; the number goes to `*count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_num_nodes_waiting(
    handler: *const rdzv_rendezvous_handler,
    count: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        operate(handler, error, |of| {
            let count = out_pointer(count, "count")?;
            let waiting = of.handler.num_nodes_waiting();
            Ok(waiting.map(|waiting| count.put(i64::try_from(waiting).unwrap_or(i64::MAX))))
        })
    }
}

/// Waits up to `timeout_ms` (0 looks once; -1: 300,000) for the next thing that happens to this node's
/// round, and fills `*event`, of which `struct_size` must be set. Its kind is `RDZV_ROUND_EVENT_NONE` when
/// nothing happened in that time: then the round goes on, since its end is an event as well. The name of the
/// node that it is about replaces the content of `name`, which may be NULL. Each event is told once, to one
/// thread, in the order in which they happened.
///
/// Errors besides: `RDZV_UNSUPPORTED` when the backend has no events, as `static` has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_next_event(
    handler: *const rdzv_rendezvous_handler,
    timeout_ms: i64,
    event: *mut rdzv_round_event,
    name: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        operate(handler, error, |of| {
            let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
            let timeout = span(timeout_ms, Timeouts::default().call)?;
            Ok(of.handler.next_event(timeout).map(|happened| {
                let (reason, about) = projected(happened.as_ref());
                sized::put(event, given, &reason);
                if let Ok(name) = reference_mut(name, "name") {
                    name.put(about.as_bytes());
                }
            }))
        })
    }
}

/// Gives everything back; whether all went well, 1 or 0, goes to `*clean`, unless `clean` is NULL. With the
/// `rdzv` backend, calls under way in other threads end with `RDZV_CANCELLED`, and later ones begin anew.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_shutdown(
    handler: *const rdzv_rendezvous_handler,
    clean: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        operate(handler, error, |of| {
            let is_clean = of.handler.shutdown();
            if let Ok(clean) = out_pointer(clean, "clean") {
                clean.put(i32::from(is_clean));
            }
            Ok(Ok(()))
        })
    }
}

/// Ends every call that is under way in this handler, in whatever thread, with `RDZV_CANCELLED`. Later calls
/// are as ever. Calls on the store that a rendezvous gave are not touched: `rdzv_store_cancel` ends those.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_cancel(handler: *const rdzv_rendezvous_handler) {
    // SAFETY: as the header wants it.
    unsafe { guard::read(handler, (), |of| of.handler.cancel()) };
}
