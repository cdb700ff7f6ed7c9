//! Event loops: members, operations and events, without callbacks and without blocking calls.

use crate::last_event::LastEvent;
use crate::loop_event::{
    RDZV_EVENT_CHANGE, RDZV_EVENT_COMPLETED, RDZV_EVENT_LEASE_OVER, RDZV_EVENT_NODE_SEATED,
    RDZV_EVENT_NODE_STANDING_BY, RDZV_EVENT_ROUND, RDZV_EVENT_SESSION_OPEN, RDZV_EVENT_SESSION_OVER,
    RDZV_EVENT_WATCHING, rdzv_event,
};
use crate::loop_gate::{self, rdzv_loop, rdzv_loop_member};
use crate::native_store::native_fault;
use crate::op::{OpBody, OpRequest, rdzv_op};
use crate::op_perform::for_nodes;
use crate::op_result::Answer;
use crate::prelude::*;
use crate::rendezvous_event::projected;
use crate::rendezvous_fault::fault_of_node;
use crate::rendezvous_parameters::{self, rdzv_rendezvous_parameters};
use crate::store::{call_fault, of_keys, timeout};
use crate::store_options::{native_options, rdzv_store_options, store_options};
use crate::watch::{change_of, watch_fault};
use rendezvous_core::driver::loop_client::{Loop, LoopEvent, MemberId, SessionEvent, SubmitError};
use rendezvous_core::driver::native_client::{NativeError, NativeResponse, NodeEvent};
use rendezvous_core::store::call::CallId;

/// Creates a loop without members. `context` may be NULL, which creates a new one. On success the caller
/// owns `*out` and frees it with `rdzv_loop_free`.
///
/// Errors: `RDZV_EXHAUSTED` if no descriptor is available.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_new(
    context: *const rdzv_context,
    out: *mut *mut rdzv_loop,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let home = home(context)?;
        let stores = Loop::new().map_err(|cause| {
            Fault::os(RDZV_EXHAUSTED, format!("no descriptors for an event loop: {cause}"), &cause)
        })?;
        Ok(boxed(rdzv_loop::new(stores, home)))
    })
}

/// Frees a loop and its members, closes the connections of all its stores, and closes its descriptor.
/// Operations that are under way end without a result and can be used again. RPC workers that were
/// created for the loop end abruptly. This call waits for them up to 5 s in total; workers that take
/// longer, for example because a handler is running, finish without the loop. A handler is certain not to
/// be called again only once its `destroy` was called. Must not be called in a forked child, because
/// workers and requests belong to the parent. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_free(event_loop: *mut rdzv_loop) {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet((), || unsafe { loop_gate::free(event_loop) });
}

/// Returns the descriptor that is readable when `rdzv_loop_poll` has work to do. It stays the same for
/// the life of the loop; do not read or close it. -1 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_fd(event_loop: *const rdzv_loop) -> i32 {
    // SAFETY: NULL or valid, as the header requires.
    guard::quiet(-1, || unsafe { loop_gate::fd_of(event_loop) })
}

/// Processes all pending work without blocking.
///
/// Errors: `RDZV_IO` if the operating system's event queue failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_poll(
    event_loop: *mut rdzv_loop,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, |this| {
        this.stores.poll().map_err(|cause| {
            Fault::os(RDZV_IO, format!("the event queue failed: {cause}"), &cause).during("poll")
        })
    })
}

/// Writes the next event to `*event`; its kind is `RDZV_EVENT_NONE` if there is none. Set
/// `event->struct_size` first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_next_event(
    event_loop: *mut rdzv_loop,
    event: *mut rdzv_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, event, |this| {
        this.last_event = LastEvent::default();
        let view = loop {
            match this.stores.next_event() {
                None => break rdzv_event::default(),
                Some(next) => {
                    if let Some(view) = this.show(next) {
                        break view;
                    }
                }
            }
        };
        Ok(view)
    })
}

/// Adds a store over the c10d protocol; the loop connects to it when its first operation is submitted.
/// `options` are copied. `user_data` is returned with its events and may be NULL. The handle that goes to
/// `*member` belongs to the loop.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the options have no endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_store(
    event_loop: *mut rdzv_loop,
    options: *const rdzv_store_options,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let (host, port, options) = store_options(options)?;
        let id = this.stores.add_store(host, port, options);
        Ok(this.add(id, user_data, Loop::remove_store))
    })
}

/// Adds a store over the native protocol and starts to connect to its server; otherwise like
/// `rdzv_loop_add_store`. It performs all operations but `rdzv_op_barrier` and those of nodes.
/// `RDZV_EVENT_SESSION_OPEN` reports that its session is open, and `RDZV_EVENT_SESSION_OVER` that the
/// session has ended.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the options have no endpoint.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_native_store(
    event_loop: *mut rdzv_loop,
    options: *const rdzv_store_options,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let (host, port, options) = native_options(options)?;
        let id = this.stores.add_session(host, port, options);
        Ok(this.add(id, user_data, Loop::remove_session))
    })
}

/// Adds a node of the `rdzv` backend and starts to connect to its server. The options are those of its
/// handlers (docs/handlers.md), but a loop hosts no server: `is_host` is not true, and there is no
/// `listen_host`. The node performs all operations but `rdzv_op_barrier`; keys are those of the server.
/// `user_data` and `*member` are as for `rdzv_loop_add_store`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the parameters are inconsistent, of another backend, or for a host,
/// `RDZV_IO` if this host has no name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_node(
    event_loop: *mut rdzv_loop,
    parameters: *const rdzv_rendezvous_parameters,
    user_data: *mut c_void,
    member: *mut *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, member, |this| {
        let id = this.stores.add_node(&rendezvous_parameters::parsed(parameters)?)?;
        Ok(this.add(id, user_data, Loop::remove_session))
    })
}

/// Removes a member from its loop and frees its handle; no event of it follows. Its operations that are
/// under way end without a result and can be used again.
///
/// A store or node closes its connections without notice to the server: the other nodes of its round see
/// a node as dead, and a session ends as if the process had died. `rdzv_op_end_session` ends it in an
/// orderly way. An agent makes no progress until it is run or added again; if its handle was freed, its
/// live workers are killed. An RPC worker that was created for the loop ends abruptly, on a thread of the
/// library, and occupies its context until it has ended; call `rdzv_loop_rpc_shutdown` first and wait for
/// the event to create another worker in that context. A worker that was added continues; its handlers of
/// kind `RDZV_RPC_LOOP` remain and fail until `rdzv_rpc_remove_handler`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove(
    member: *mut rdzv_loop_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, member, |(this, id)| {
        let Some(member) = this.members.remove(&id) else { return Ok(()) };
        (member.remove)(&mut this.stores, id);
        let of_member = this.ops.iter().filter(|(_, (of, _))| *of == id);
        for call in of_member.map(|(call, _)| call).collect::<Vec<_>>() {
            if let Some((_, cell)) = this.ops.remove(call) {
                cell.lock_waiting().abandoned();
            }
        }
        Ok(())
    })
}

/// Submits an operation to a store or a node of a loop and returns at once. `RDZV_EVENT_COMPLETED`
/// follows by its deadline at the latest; `timeout_ms` is as for `rdzv_store_perform`. Operations on one
/// store may complete in another order than they were submitted: if an operation depends on another one,
/// wait for the event of that one first.
///
/// Errors: `RDZV_INVALID_ARGUMENT`, `RDZV_LIMIT_EXCEEDED`, `RDZV_REENTRANT` (the operation is under way),
/// `RDZV_UNSUPPORTED` (this member does not have the operation), and for a session that has ended the
/// error with which it ended. No event follows then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_submit(
    member: *mut rdzv_loop_member,
    op: *mut rdzv_op,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, member, |(this, id)| {
        let cell = &reference(op, "op")?.cell;
        let mut body = cell.enter()?;
        body.begin();
        let call = submit(&mut this.stores, id, &body, timeout_ms)?;
        body.submitted(call);
        this.ops.insert(call.0, (id, Arc::clone(cell)));
        Ok(())
    })
}

fn submit(stores: &mut Loop, id: MemberId, body: &OpBody, timeout_ms: i64) -> Result<CallId, Fault> {
    let timeout = timeout(timeout_ms)?;
    let scope = stores.scope(id).map(Box::<[u8]>::from);
    let scope = scope.ok_or_else(|| invalid("the member is neither a store nor a node"))?;
    let run_id = stores.session(id).and_then(|session| session.run_id().map(String::from));
    if run_id.is_none() && body.kind.is_of_nodes() {
        return Err(for_nodes());
    }
    let (run_id, names) = (run_id.unwrap_or_default(), body.names());
    let submitted = match body.request(&names, &scope, run_id.as_bytes())? {
        OpRequest::Store(request) => stores.submit(id, request, timeout),
        OpRequest::Ping => stores.ping(id, timeout),
        OpRequest::Native(request) => {
            let session = stores.native(id, request.operation());
            session.and_then(|mut session| session.submit(&request, timeout))
        }
        OpRequest::NextRendezvous => {
            let joined = stores.session(id).and_then(|mut session| session.next_round());
            joined.unwrap_or(Err(SubmitError::UnknownStore))
        }
    };
    submitted.map_err(|error| match error {
        SubmitError::UnknownStore => invalid("the member has ended"),
        SubmitError::Call(error) => call_fault(&error),
    })
}

/// Cancels an operation that is under way in the loop: its result has status `RDZV_CANCELLED`, unless it
/// has already completed. For a watch, no change is reported any more. An operation that is not under way
/// is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_cancel(
    event_loop: *mut rdzv_loop,
    op: *const rdzv_op,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, event_loop, |this| {
        let cell = &reference(op, "op")?.cell;
        // It stays locked: code of the program that the cancel runs cannot free it.
        let body = cell.lock()?;
        if let Some(call) = body.call()
            && let Some((id, of)) = this.ops.get(call.0)
            && Arc::ptr_eq(of, cell)
        {
            this.stores.cancel(*id, call);
            cell.warn_if_free_was_refused(this.home.shared());
        }
        Ok(())
    })
}

impl rdzv_loop {
    /// Stores the data of an event and returns the event for C; `None` for an event of an operation that
    /// was freed.
    fn show(&mut self, event: LoopEvent) -> Option<rdzv_event> {
        let mut view = rdzv_event::default();
        match event {
            LoopEvent::Store(over) => {
                self.of_member(&mut view, over.store);
                let cell = self.ops.get(over.call.0)?.1.clone();
                let answer = match over.result {
                    Ok(answer) => {
                        cell.lock_waiting().result.values.replace(answer.values);
                        Ok(Answer::Store(answer.outcome))
                    }
                    Err(error) => Err(call_fault(&error).with(|details| details.keys = over.keys)),
                };
                self.complete(view, over.call, answer)
            }
            LoopEvent::Session(id, event) => {
                self.of_member(&mut view, id);
                self.show_session(view, id, event)
            }
            LoopEvent::Member(id, event) => {
                self.of_member(&mut view, id);
                match self.show_agent(view, event) {
                    Ok(view) => Some(view),
                    Err(event) => self.show_rpc(view, event),
                }
            }
        }
    }

    fn of_member(&self, view: &mut rdzv_event, id: MemberId) {
        if let Some(member) = self.members.get(&id) {
            (view.member, view.member_data) = (std::ptr::from_ref(&**member).cast_mut(), member.user_data);
        }
    }

    /// Ends an operation. Returns its event unless the operation was freed.
    pub(crate) fn complete(
        &mut self,
        view: rdzv_event,
        call: CallId,
        answer: Result<Answer, Fault>,
    ) -> Option<rdzv_event> {
        let (_, cell) = self.ops.remove(call.0)?;
        // The failure is in the result.
        let _ = cell.lock_waiting().end(answer);
        let op = cell.handle();
        let op_data = cell.user_data;
        (!op.is_null()).then_some(rdzv_event { kind: RDZV_EVENT_COMPLETED, op, op_data, ..view })
    }

    fn show_session(&mut self, view: rdzv_event, id: MemberId, event: SessionEvent) -> Option<rdzv_event> {
        let of = |kind| Some(rdzv_event { kind, ..view });
        match event {
            SessionEvent::Open => {
                let incarnation = self.stores.session(id).map_or(0, |session| session.incarnation());
                Some(rdzv_event { kind: RDZV_EVENT_SESSION_OPEN, incarnation, ..view })
            }
            SessionEvent::Node(NodeEvent::Seated) => of(RDZV_EVENT_NODE_SEATED),
            SessionEvent::Node(NodeEvent::Standby { ahead }) => {
                Some(rdzv_event { kind: RDZV_EVENT_NODE_STANDING_BY, spares_ahead: ahead, ..view })
            }
            SessionEvent::Node(event) => {
                let event = event.into_round_event()?;
                // The texts are on the heap, so that the event can be moved.
                let (event, _) = self.last_event.round.insert((Box::new(projected(Some(&event))), event));
                Some(rdzv_event { kind: RDZV_EVENT_ROUND, round_event: &raw const **event, ..view })
            }
            SessionEvent::Changed(call, change) => {
                let view = self.of_watch(view, id, call)?;
                let (key, value) = (change.key, change.value);
                let projected = change_of(change.revision, &key, value.as_deref());
                let change = (Box::new(projected), key, value.unwrap_or_default());
                let change = &raw const *self.last_event.change.insert(change).0;
                Some(rdzv_event { kind: RDZV_EVENT_CHANGE, change, ..view })
            }
            SessionEvent::WatchOver(call, error) => {
                let key = self.ops.get(call.0)?.1.lock_waiting().arguments.get(0).to_vec();
                self.complete(view, call, Err(of_keys(watch_fault(&error), &[&key])))
            }
            SessionEvent::LeaseOver { lease, why, .. } => {
                let lease_why = why.number().into();
                Some(rdzv_event { kind: RDZV_EVENT_LEASE_OVER, lease, lease_why, ..view })
            }
            SessionEvent::Over(ended) => {
                let mut view = rdzv_event { kind: RDZV_EVENT_SESSION_OVER, ..view };
                if let Err(error) = ended {
                    let fault = self.session_fault(id, error);
                    view.error = self.last_event.fail(fault);
                }
                Some(view)
            }
            SessionEvent::Completed { call, operation, key, elapsed, result } => {
                let answer = match result {
                    Ok(watching @ NativeResponse::Watching(_)) => {
                        let view = self.of_watch(view, id, call)?;
                        self.ops.get(call.0)?.1.lock_waiting().progress(Answer::Native(watching));
                        return Some(rdzv_event { kind: RDZV_EVENT_WATCHING, ..view });
                    }
                    Ok(response) => {
                        let cell = &self.ops.get(call.0)?.1;
                        let peer =
                            self.stores.session(id).map_or(String::new(), |session| session.peer().into());
                        Answer::of_native(response, &cell.lock_waiting(), elapsed, &peer)
                    }
                    Err(error) if operation.is_of_the_rendezvous() => Err(self.session_fault(id, error)),
                    Err(error) => {
                        let keys: Vec<&[u8]> = key.iter().map(Vec::as_slice).collect();
                        Err(of_keys(native_fault(&error), &keys))
                    }
                };
                self.complete(view, call, answer)
            }
        }
    }

    /// Adds the operation of a watch to its event. A watch whose operation was freed is cancelled.
    fn of_watch(&mut self, view: rdzv_event, id: MemberId, call: CallId) -> Option<rdzv_event> {
        let (_, cell) = self.ops.get(call.0)?;
        let (op, op_data) = (cell.handle(), cell.user_data);
        if op.is_null() {
            self.stores.cancel(id, call);
            return None;
        }
        Some(rdzv_event { op, op_data, ..view })
    }

    /// Returns the failure of a session, or of the run if it is that of a node.
    fn session_fault(&mut self, id: MemberId, error: NativeError) -> Fault {
        let session = self.stores.session(id);
        let names = session.as_ref().and_then(|session| Some((session.run_id()?, session.node())));
        match names {
            Some(names) => fault_of_node(error, names),
            None => native_fault(&error),
        }
    }
}
