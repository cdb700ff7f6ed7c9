//! Rendezvous handlers: one node's membership in a rendezvous.

use crate::buffer::borrowed;
use crate::cancel_token::{rdzv_cancel_token, token_of};
use crate::prelude::*;
use crate::rendezvous_event::{projected, rdzv_round_event, texts};
use crate::rendezvous_info::{rdzv_rendezvous, rendezvous_handle};
use crate::rendezvous_parameters::{self, rdzv_rendezvous_parameters};
use crate::store::span;
use rendezvous_core::driver::rendezvous::RendezvousHandler;
use rendezvous_core::driver::store::Timeouts;
use std::fmt;

/// One node's membership in a rendezvous, for any backend. Several threads may use it at the same time,
/// and any thread may cancel the waiting calls of the others. Each call ends by the deadline that the
/// backend sets for it.
pub struct rdzv_rendezvous_handler {
    state: HandleState,
    pub(crate) handler: Arc<dyn RendezvousHandler>,
    home: Arc<Home>,
}
guard::handle!(rdzv_rendezvous_handler, home);

impl fmt::Debug for rdzv_rendezvous_handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.handler.backend())
    }
}

/// Creates a handler of the backend that the parameters name: a built-in one, for example `static`, or
/// another one registered in the context (see `rdzv_context_list_backends`). `context` may be NULL, which
/// creates a new one. On success the caller owns `*out` and frees it with `rdzv_rendezvous_handler_free`.
///
/// Errors: `RDZV_NOT_REGISTERED`; `RDZV_BACKEND_MISMATCH` (the new handler names another backend);
/// `RDZV_INVALID_ARGUMENT` (a parameter or an option is missing or not valid, or the backend does not have
/// it). For a backend in user code also: the status that its `create` returns, `RDZV_TIMED_OUT`, and
/// `RDZV_REENTRANT` when `create` itself makes the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_new(
    context: *const rdzv_context,
    parameters: *const rdzv_rendezvous_parameters,
    out: *mut *mut rdzv_rendezvous_handler,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let home = home(context)?;
        let parameters = rendezvous_parameters::parsed(parameters)?;
        let handler = Arc::from(home.rendezvous().create_handler(&parameters)?);
        Ok(boxed(rdzv_rendezvous_handler { state: HandleState::default(), handler, home }))
    })
}

/// Frees a handler. No other call on it may be in progress: cancel such calls and wait for them first.
/// This does not leave the rendezvous gracefully; `rdzv_rendezvous_handler_shutdown` does. A node of the
/// `rdzv` backend that was not shut down leaves its round as if its process had died: its session ends,
/// the other nodes are notified (after the `grace` period, if one is set), and calls on the stores of its
/// rounds fail with `RDZV_SERVER_GONE`. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_free(handler: *mut rdzv_rendezvous_handler) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(handler, "rdzv_rendezvous_handler_free") };
}

/// Returns the name of the handler's backend and writes its length to `*len` unless `len` is NULL. The
/// string is not NUL-terminated and is valid as long as the handler. Returns NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_backend(
    handler: *const rdzv_rendezvous_handler,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(handler, null(), |of| borrowed(of.handler.backend().as_bytes(), len)) }
}

/// Returns the run id of this rendezvous, in the same form as `rdzv_rendezvous_handler_backend`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_run_id(
    handler: *const rdzv_rendezvous_handler,
    len: *mut usize,
) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(handler, null(), |of| borrowed(of.handler.run_id().as_bytes(), len)) }
}

/// Returns 1 if the worker ranks of this node use the store over which the nodes met, else 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_use_agent_store(
    handler: *const rdzv_rendezvous_handler,
) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(handler, 0, |of| i32::from(of.handler.use_agent_store())) }
}

/// Joins the rendezvous and waits until the round is complete. A further call joins the next round, which
/// all nodes must join. With `static` ranks, a further call returns the same result at once if a node is
/// a PyTorch one, since those have no rounds. On success the caller owns `*out` and frees it with
/// `rdzv_rendezvous_free`.
///
/// Errors: `RDZV_RENDEZVOUS_CLOSED`, `RDZV_RENDEZVOUS_TIMED_OUT`, `RDZV_RENDEZVOUS_CONNECTION` (the
/// rendezvous store cannot be reached), `RDZV_RENDEZVOUS_STATE`, `RDZV_RENDEZVOUS_GRACEFUL_EXIT`,
/// `RDZV_RENDEZVOUS_REPLACED` (another session has the node's name; every attempt returns this until the
/// handler is shut down), `RDZV_CANCELLED`, `RDZV_REENTRANT` (another thread is already joining). If this
/// process hosts the store, also those of `rdzv_server_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_next_rendezvous(
    handler: *const rdzv_rendezvous_handler,
    out: *mut *mut rdzv_rendezvous,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, out, |of| Ok(rendezvous_handle(
        of.handler.next_rendezvous()?,
        Arc::clone(of.home.shared())
    )))
}

/// Writes 1 to `*closed` if the rendezvous is closed, else 0. The answer may be stale; do not use it for
/// synchronization.
///
/// Errors of this and the functions below: those of `rdzv_rendezvous_handler_next_rendezvous`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_is_closed(
    handler: *const rdzv_rendezvous_handler,
    closed: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, closed, |of| Ok(of.handler.is_closed()?.into()))
}

/// Closes the rendezvous permanently: no node can join it as long as the server remembers the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_set_closed(
    handler: *const rdzv_rendezvous_handler,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, |of| Ok(of.handler.set_closed()?))
}

/// Closes the rendezvous because the job has failed. Nodes of the current round receive `message` (UTF-8,
/// at most 1,024 bytes) as `RDZV_ROUND_EVENT_JOB_FAILED`; nodes that try to join later receive it in
/// their error. The first message is kept. Backends that cannot transmit a message only close the
/// rendezvous.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_fail(
    handler: *const rdzv_rendezvous_handler,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, |of| Ok(of.handler.fail(text(message, message_len, "message")?)?))
}

/// Writes the number of nodes that wait for the next round to `*count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_num_nodes_waiting(
    handler: *const rdzv_rendezvous_handler,
    count: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, count, |of| Ok(
        i64::try_from(of.handler.num_nodes_waiting()?).unwrap_or(i64::MAX)
    ))
}

/// Waits up to `timeout_ms` (0: poll once; -1: 300,000) for the next event of this node's round and fills
/// `*event`, whose `struct_size` the caller has set. The kind is `RDZV_ROUND_EVENT_NONE` if no event
/// occurred in that time; the round then continues, since its end is an event, too. The node of the event
/// replaces the content of `node`, and its message that of `message`, to which `*event` then points; both
/// may be NULL. Each event is delivered once, to one thread, in the order of occurrence.
///
/// Also returns: `RDZV_UNSUPPORTED` (the backend, for example `static`, has no events).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_next_event(
    handler: *const rdzv_rendezvous_handler,
    timeout_ms: i64,
    event: *mut rdzv_round_event,
    node: *mut rdzv_buffer,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, event, |of| {
        let happened = of.handler.next_event(span(timeout_ms, Timeouts::default().call)?)?;
        let (mut view, texts) = (projected(happened.as_ref()), texts(happened.as_ref()));
        // The event is dropped at the end of this call.
        view.node = fill_unless_null(node, texts.0);
        view.message = fill_unless_null(message, texts.1);
        Ok(view)
    })
}

/// Leaves the rendezvous and releases its resources. Writes 1 to `*clean` if that succeeded, else 0, unless
/// `clean` is NULL. With the `rdzv` backend, calls in progress on other threads return `RDZV_CANCELLED`,
/// and later calls start a new session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_shutdown(
    handler: *const rdzv_rendezvous_handler,
    clean: *mut i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, |of| {
        put_unless_null(clean, of.handler.shutdown().into());
        Ok(())
    })
}

/// Cancels every call in progress on this handler, on all threads; each returns `RDZV_CANCELLED`. Later
/// calls are not affected. Calls on the store of a rendezvous are not cancelled: use `rdzv_store_cancel`
/// for those. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_cancel(handler: *const rdzv_rendezvous_handler) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::notify(handler, |of| of.handler.cancel()) };
}

/// Sets the token of a handler: calls that begin later return `RDZV_CANCELLED` once `token` is cancelled,
/// and at once if it already is. It replaces an earlier token; an agent that runs with the handler
/// replaces it, too. The caller may free the token. If a call of a backend in user code is in progress
/// then, the function `cancel` of its vtable is called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_handler_set_cancel_token(
    handler: *const rdzv_rendezvous_handler,
    token: *const rdzv_cancel_token,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, handler, |of| {
        of.handler.set_token(&token_of(token)?);
        Ok(())
    })
}
