//! Rendezvous nodes in the caller's event loop.

use crate::argument::{bytes, invalid, list, out_pointer, reference, text};
use crate::batch::Answers;
use crate::fault::{Fault, rdzv_error};
use crate::loop_event::{LastEvent, RDZV_EVENT_COMPLETED};
use crate::loop_gate::{self, rdzv_loop, submit_fault};
use crate::loop_native::{RDZV_EVENT_CHANGE, RDZV_EVENT_LEASE_OVER, RDZV_EVENT_WATCH_OVER};
use crate::native_store::{barrier_end, native_fault};
use crate::rendezvous_event::{EVENT_FIRST_SIZE, projected, rdzv_round_event};
use crate::rendezvous_fault::handler_fault;
use crate::rendezvous_parameters::rdzv_rendezvous_parameters;
use crate::sized;
use crate::status::rdzv_status;
use crate::store::{call_fault, of_keys, timeout};
use crate::watch::watch_fault;
use rendezvous_core::driver::loop_client::{MemberId, Session, SessionEvent, SubmitError};
use rendezvous_core::driver::native_client::{
    NativeError, NativeRequest, NativeResponse, NodeEvent, participants,
};
use rendezvous_core::driver::rendezvous::refusal;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::store::call::CallId;
use rendezvous_core::store::engine::PrefixRemoved;
use std::time::Duration;

/// `rdzv_event.kind`: the node's session is open, for the first time or again after its connection broke.
pub const RDZV_EVENT_NODE_OPEN: i32 = 2;
/// `rdzv_event.kind`: the node has a slot in the round that is forming.
pub const RDZV_EVENT_NODE_SEATED: i32 = 3;
/// `rdzv_event.kind`: the node is a spare, with `number` other spares ahead of it.
pub const RDZV_EVENT_NODE_STANDING_BY: i32 = 4;
/// `rdzv_event.kind`: event of the node's round or of the run, which `rdzv_loop_round_event` returns;
/// `data` and `len` have the name of the node that it is about.
pub const RDZV_EVENT_ROUND: i32 = 5;
/// `rdzv_event.kind`: the node's session has ended; no event of it follows. `status` is `RDZV_OK` if this
/// side shut it down. To continue, add the node again.
pub const RDZV_EVENT_NODE_OVER: i32 = 6;

/// Position of a node in a round. What it points to is valid until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_round {
    /// Set this to `sizeof(rdzv_round)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// Rank of the node among the nodes.
    pub node_rank: u32,
    /// Number of the round; the first is 0.
    pub round: u64,
    /// Number of nodes in the round.
    pub nodes: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Global rank of the node's first worker.
    pub rank_first: u64,
    /// Number of workers of all nodes together.
    pub world_size: u64,
    /// Address of node 0, as that node published it. Not NUL-terminated.
    pub leader: *const u8,
    /// Length of `leader` in bytes.
    pub leader_len: usize,
    /// Prefix for the keys of this round; when the round is over, keys with this prefix cannot be changed.
    pub key_prefix: *const u8,
    /// Length of `key_prefix` in bytes.
    pub key_prefix_len: usize,
}

const ROUND_FIRST_SIZE: usize = 72;

/// State of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_run_info {
    /// Set this to `sizeof(rdzv_run_info)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// 1 if the round is live, else 0.
    pub complete: i32,
    /// Number of the live round, or of the next one.
    pub round: u64,
    /// 1 if the run is closed for good, else 0.
    pub closed: i32,
    /// Number of nodes in the round.
    pub nodes: u32,
    /// Number of nodes that wait for the next round.
    pub nodes_waiting: u32,
    /// Number of spare nodes.
    pub nodes_standby: u32,
}

const RUN_INFO_FIRST_SIZE: usize = 32;

/// Member of a round. What it points to is valid until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_member {
    /// Set this to `sizeof(rdzv_member)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// Rank of the member among the nodes.
    pub node_rank: u32,
    /// Global rank of the member's first worker.
    pub rank_first: u64,
    /// Number of workers of the member.
    pub local_world_size: u32,
    /// Unused; 0.
    pub reserved: u32,
    /// Name of the node. Not NUL-terminated.
    pub node: *const u8,
    /// Length of `node` in bytes.
    pub node_len: usize,
    /// Address of the node, as it published it. Not NUL-terminated.
    pub address: *const u8,
    /// Length of `address` in bytes.
    pub address_len: usize,
}

const MEMBER_FIRST_SIZE: usize = 56;

/// Adds a node of the `rdzv` backend and starts to connect to its server. The options are those of its
/// handlers (docs/handlers.md) except those for hosting: a loop hosts no server. The node's number in this
/// loop, which is above 0, goes to `*node`. The operations of stores (`rdzv_loop_store_set` and so on,
/// except `rdzv_loop_store_barrier`) accept the node as a store; their keys are those of the server.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the parameters are inconsistent, `RDZV_IO` if this host has no name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_node(
    event_loop: *mut rdzv_loop,
    parameters: *const rdzv_rendezvous_parameters,
    node: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (node, parameters) = (out_pointer(node, "node")?, reference(parameters, "parameters")?);
            let added = this.stores.add_node(&parameters.parameters);
            node.put(added.map_err(|error| handler_fault(&error))?.as_u32());
            Ok(())
        })
    }
}

/// Closes a node's connection without notice to the server and removes the node from the loop: the other
/// nodes of its round see it as dead. `rdzv_loop_node_shutdown` leaves in an orderly way. No event of the
/// node follows. An unknown node is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_node(
    event_loop: *mut rdzv_loop,
    node: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            this.stores.remove_session(MemberId::from_u32(node));
            Ok(())
        })
    }
}

/// Result of a submission: the operation's number, the loop's error, or one of the arguments.
type Submitted = Result<Result<CallId, SubmitError>, Fault>;

/// Submits an operation for a node.
unsafe fn submit(
    (event_loop, node): (*mut rdzv_loop, u32),
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
    begin: &mut dyn FnMut(&mut Session<'_>, &[u8], Timeout) -> Submitted,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let (operation, timeout) = (out_pointer(operation, "operation")?, timeout(timeout_ms)?);
            let mut session = this.stores.session(MemberId::from_u32(node));
            let session = session.as_mut().ok_or_else(|| invalid("the loop has no node with this number"))?;
            let run_id = session.run_id().unwrap_or_default().to_string();
            operation.put(begin(session, run_id.as_bytes(), timeout)?.map_err(submit_fault)?.0);
            Ok(())
        })
    }
}

/// Submits a request to join the run's next round. Its event follows when the round is complete;
/// `rdzv_loop_round` then has the node's position. Before it, `RDZV_EVENT_NODE_SEATED` or
/// `RDZV_EVENT_NODE_STANDING_BY` may report the state of the request. Earlier events of the node are no
/// longer reported. A node also uses this to rejoin after a death or after the end of its round. After
/// `rdzv_loop_cancel` it may be called again at once: the new request is sent when the server has answered
/// the cancelled one.
///
/// This function and all submissions below return at once, as those of stores do. They write the
/// operation's number to `*operation`, which `rdzv_loop_cancel` accepts.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if the node already waits for a round or was replaced, and the error
/// with which its session ended. Statuses of the event: as for `rdzv_rendezvous_handler_next_rendezvous`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_next_rendezvous(
    event_loop: *mut rdzv_loop,
    node: u32,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), -1, operation, error, &mut |session, _, _| {
            session.next_round().ok_or_else(|| invalid("the loop has no node with this number"))
        })
    }
}

/// Submits a request to leave the run, which continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_leave(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, run_id, timeout| {
            Ok(session.submit(&NativeRequest::Leave { run_id }, timeout))
        })
    }
}

/// Submits a request to close the run for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_set_closed(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, run_id, timeout| {
            Ok(session.submit(&NativeRequest::CloseRun { run_id }, timeout))
        })
    }
}

/// Submits a report that the job has failed, as `rdzv_rendezvous_handler_fail` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_fail(
    event_loop: *mut rdzv_loop,
    node: u32,
    message: *const u8,
    message_len: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, run_id, timeout| {
            let message = text(message, message_len, "message")?;
            Ok(session.submit(&NativeRequest::FailRun { run_id, message }, timeout))
        })
    }
}

/// Submits an orderly shutdown: the node leaves its run, and its session, or that of a native store, ends.
/// Its event precedes `RDZV_EVENT_NODE_OVER`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_shutdown(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, _, timeout| {
            Ok(session.submit(&NativeRequest::Close, timeout))
        })
    }
}

/// Submits a request for the state of the run; `rdzv_loop_run_info` returns the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_run_info(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, run_id, timeout| {
            Ok(session.submit(&NativeRequest::RunInfo { run_id }, timeout))
        })
    }
}

/// Submits a request for at most `count_max` members of a round, from node rank `first` on. The event's
/// `item_count` is their number; `rdzv_loop_member` returns each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_members(
    event_loop: *mut rdzv_loop,
    node: u32,
    round: u64,
    first: u32,
    count_max: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, run_id, timeout| {
            Ok(session.submit(&NativeRequest::Members { run_id, round, first, count_max }, timeout))
        })
    }
}

/// Submits the node's arrival at a barrier for the nodes with these names, or for `world_size` nodes if
/// `name_count` is 0. The event's number is the barrier's generation. Additional statuses of the event:
/// `RDZV_TIMED_OUT`, whose error names the missing nodes; `RDZV_BARRIER_BROKEN`, whose error names the node
/// that died.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_barrier(
    event_loop: *mut rdzv_loop,
    node: u32,
    key: *const u8,
    key_len: usize,
    world_size: u32,
    names: *const crate::argument::rdzv_bytes,
    name_count: usize,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, &mut |session, _, timeout| {
            let (key, names) = (bytes(key, key_len, "key")?, list(names, name_count, "names")?);
            let participants = participants(world_size, &names);
            let arrival = NativeRequest::Barrier { key, generation: 0, name: b"", participants };
            Ok(session.submit(&arrival, timeout))
        })
    }
}

/// Fills a struct with data of the last event.
unsafe fn show<T: Copy>(
    event_loop: *mut rdzv_loop,
    (out, first_size): (*mut T, usize),
    error: *mut *mut rdzv_error,
    read: impl Fn(&LastEvent) -> Option<T>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, &mut |this| {
            let given = sized::given_size(out, first_size, "out")?;
            let view =
                read(&this.last_event).ok_or_else(|| invalid("the last event has no such information"))?;
            sized::put(out, given, &view);
            Ok(())
        })
    }
}

/// Returns the node's position in its round if the last event completed an
/// `rdzv_loop_node_next_rendezvous`. Set `out->struct_size` first, here and in the functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_round(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_round,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        show(event_loop, (out, ROUND_FIRST_SIZE), error, |last_event| {
            let joined_round = last_event.joined_round.as_ref()?;
            // A node's keys start with a slash, which the loop adds itself.
            let prefix = joined_round.namespace.strip_prefix(b"/").unwrap_or(&joined_round.namespace);
            Some(rdzv_round {
                struct_size: 0,
                node_rank: joined_round.node_rank,
                round: joined_round.round,
                nodes: joined_round.nodes,
                reserved: 0,
                rank_first: joined_round.rank_first,
                world_size: joined_round.world_size,
                leader: joined_round.leader.as_ptr(),
                leader_len: joined_round.leader.len(),
                key_prefix: prefix.as_ptr(),
                key_prefix_len: prefix.len(),
            })
        })
    }
}

/// Returns the event of the round if the last event was `RDZV_EVENT_ROUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_round_event(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_round_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        show(event_loop, (out, EVENT_FIRST_SIZE), error, |last_event| {
            last_event.round_event.as_ref().map(|event| projected(Some(event)).0)
        })
    }
}

/// Returns the state of the run if the last event completed an `rdzv_loop_node_run_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_run_info(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_run_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        show(event_loop, (out, RUN_INFO_FIRST_SIZE), error, |last_event| {
            let info = last_event.run_info?;
            Some(rdzv_run_info {
                struct_size: 0,
                complete: i32::from(info.complete),
                round: info.round,
                closed: i32::from(info.closed),
                nodes: info.nodes,
                nodes_waiting: info.nodes_waiting,
                nodes_standby: info.nodes_standby,
            })
        })
    }
}

/// Returns the member at `index` (from 0) if the last event completed an `rdzv_loop_node_members`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_member(
    event_loop: *mut rdzv_loop,
    index: usize,
    out: *mut rdzv_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        show(event_loop, (out, MEMBER_FIRST_SIZE), error, |last_event| {
            let member = last_event.members.get(index)?;
            Some(rdzv_member {
                struct_size: 0,
                node_rank: member.node_rank,
                rank_first: member.rank_first,
                local_world_size: member.local_world_size,
                reserved: 0,
                node: member.node.as_ptr(),
                node_len: member.node.len(),
                address: member.address.as_ptr(),
                address_len: member.address.len(),
            })
        })
    }
}

/// Fields of a session's event for C, apart from the data that [`LastEvent`] keeps.
pub(crate) struct NodeEventView {
    pub(crate) kind: i32,
    pub(crate) operation: u64,
    pub(crate) number: i64,
    pub(crate) revision: u64,
    pub(crate) fault: Option<Fault>,
}

impl LastEvent {
    /// Stores the data of an event of a node or a native store and returns its fields. Only a node has a run
    /// id.
    pub(crate) fn keep(
        &mut self,
        (run_id, node, peer): (Option<&str>, &str, &str),
        event: SessionEvent,
    ) -> NodeEventView {
        let plain = |kind| NodeEventView { kind, operation: 0, number: 0, revision: 0, fault: None };
        match event {
            SessionEvent::Open => plain(RDZV_EVENT_NODE_OPEN),
            SessionEvent::Node(NodeEvent::Seated) => plain(RDZV_EVENT_NODE_SEATED),
            SessionEvent::Node(NodeEvent::Standby { ahead }) => {
                NodeEventView { number: ahead.into(), ..plain(RDZV_EVENT_NODE_STANDING_BY) }
            }
            SessionEvent::Node(event) => {
                let event = event.into_round_event();
                self.value = event.as_ref().map_or("", |event| projected(Some(event)).1).into();
                self.round_event = event;
                plain(RDZV_EVENT_ROUND)
            }
            SessionEvent::Over(ended) => {
                let fault = ended.err().map(|error| match run_id {
                    Some(run_id) => fault_of(error, (run_id, node)),
                    None => native_fault(&error),
                });
                NodeEventView { fault, ..plain(RDZV_EVENT_NODE_OVER) }
            }
            SessionEvent::Completed { call, operation, key, elapsed, result } => {
                let mut view = NodeEventView { operation: call.0, ..plain(RDZV_EVENT_COMPLETED) };
                match result {
                    Ok(answer) => {
                        self.answered(&mut view, answer, (key.as_deref().unwrap_or(b""), elapsed), peer)
                    }
                    Err(error) if operation.is_of_the_rendezvous() => {
                        view.fault = Some(fault_of(error, (run_id.unwrap_or_default(), node)));
                    }
                    Err(error) => {
                        let keys: Vec<&[u8]> = key.iter().map(Vec::as_slice).collect();
                        view.fault = Some(of_keys(native_fault(&error), &keys));
                    }
                }
                view
            }
            SessionEvent::Changed(call, change) => {
                (self.value, self.items) = (change.key, change.value.into_iter().collect());
                NodeEventView { operation: call.0, revision: change.revision, ..plain(RDZV_EVENT_CHANGE) }
            }
            SessionEvent::WatchOver(call, error) => {
                let fault = Some(watch_fault(&error));
                NodeEventView { operation: call.0, fault, ..plain(RDZV_EVENT_WATCH_OVER) }
            }
            SessionEvent::LeaseOver { call, why, .. } => NodeEventView {
                operation: call.0,
                number: why.number().into(),
                ..plain(RDZV_EVENT_LEASE_OVER)
            },
        }
    }

    fn answered(
        &mut self,
        view: &mut NodeEventView,
        answer: NativeResponse,
        (key, elapsed): (&[u8], Duration),
        peer: &str,
    ) {
        match answer {
            NativeResponse::Done => {}
            NativeResponse::Joined(joined_round) => self.joined_round = Some(joined_round),
            NativeResponse::RunInfo(info) => self.run_info = Some(info),
            NativeResponse::Members(members) => self.members = members,
            NativeResponse::Barrier(end) => match barrier_end(end, key, elapsed, peer) {
                Ok(generation) => view.number = i64::try_from(generation).unwrap_or(i64::MAX),
                Err(fault) => {
                    view.number = i64::try_from(fault.generation).unwrap_or(i64::MAX);
                    view.fault = Some(fault);
                }
            },
            NativeResponse::Watching(revision) => view.revision = revision,
            NativeResponse::Number(number) => view.number = number,
            NativeResponse::Removed(PrefixRemoved { removed, left }) => {
                view.number = i64::try_from(removed).unwrap_or(i64::MAX);
                self.left = usize::try_from(left).unwrap_or(usize::MAX);
            }
            NativeResponse::Txn(done) => {
                (view.number, view.revision) = (i64::from(done.holds), done.revision);
            }
            NativeResponse::Batch(answers) => self.answers = Answers::new(answers),
            // The loop's functions submit no request with such a response.
            NativeResponse::Values(_) | NativeResponse::Page(_) | NativeResponse::Outcome(_) => {}
        }
    }
}

fn fault_of(error: NativeError, (run_id, node): (&str, &str)) -> Fault {
    let fault = call_fault(error.call());
    let elapsed = error.call().elapsed();
    let refused = handler_fault(&refusal(error, (run_id, node), elapsed));
    fault.with(|details| {
        (details.status, details.message, details.cause) =
            (refused.status, refused.message.clone(), refused.cause.clone());
    })
}
