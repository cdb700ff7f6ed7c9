//! Nodes of a rendezvous in an event loop of the caller's.

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
use rendezvous_core::driver::loop_client::{Session, SessionAnswer, SessionEvent, SessionId, SubmitError};
use rendezvous_core::driver::native_client::{NativeError, NodeEvent};
use rendezvous_core::driver::rendezvous::refusal;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::store::call::CallId;
use rendezvous_core::store::engine::PrefixRemoved;
use std::time::Duration;

/// `rdzv_event.kind`: the node's session is open, for the first time or again after its connection broke.
pub const RDZV_EVENT_NODE_OPEN: i32 = 2;
/// `rdzv_event.kind`: the node has a seat in the round that forms.
pub const RDZV_EVENT_NODE_SEATED: i32 = 3;
/// `rdzv_event.kind`: the node stands by, behind `number` others.
pub const RDZV_EVENT_NODE_STANDING_BY: i32 = 4;
/// `rdzv_event.kind`: something happened to the node's round, or to the run. `rdzv_loop_round_event` tells
/// what; the name of the node that it is about is in `data` and `len`.
pub const RDZV_EVENT_ROUND: i32 = 5;
/// `rdzv_event.kind`: the node's session is over, and this is the last that is heard of it. `status` is
/// `RDZV_OK` when it was shut down from this side. A node that goes on is added anew.
pub const RDZV_EVENT_NODE_OVER: i32 = 6;

/// A node's place in a round. What it points to is lent until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_round {
    /// Set it to `sizeof(rdzv_round)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// The node's rank among the nodes.
    pub node_rank: u32,
    /// Which round; the first is 0.
    pub round: u64,
    /// How many nodes there are.
    pub nodes: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// The global rank of the node's first worker.
    pub rank_first: u64,
    /// How many workers all nodes have together.
    pub world_size: u64,
    /// Where node 0 is reached, as it said. Not NUL-terminated.
    pub leader: *const u8,
    /// Its length.
    pub leader_len: usize,
    /// What to put before the keys of this round: when it is over, nothing beneath it can be changed.
    pub key_prefix: *const u8,
    /// Its length.
    pub key_prefix_len: usize,
}

const ROUND_FIRST_SIZE: usize = 72;

/// How a run stands.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_run_info {
    /// Set it to `sizeof(rdzv_run_info)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// Whether the round is live, 1 or 0.
    pub complete: i32,
    /// The round that is live, or the next one.
    pub round: u64,
    /// Whether the run is closed, for good, 1 or 0.
    pub closed: i32,
    /// Nodes in the round.
    pub nodes: u32,
    /// Nodes that wait for the next one.
    pub nodes_waiting: u32,
    /// Spares.
    pub nodes_standby: u32,
}

const RUN_INFO_FIRST_SIZE: usize = 32;

/// A member of a round. What it points to is lent until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_member {
    /// Set it to `sizeof(rdzv_member)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// Its rank among the nodes.
    pub node_rank: u32,
    /// The global rank of its first worker.
    pub rank_first: u64,
    /// Its workers.
    pub local_world_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Its name. Not NUL-terminated.
    pub node: *const u8,
    /// Its length.
    pub node_len: usize,
    /// Where it is reached, as it said.
    pub address: *const u8,
    /// Its length.
    pub address_len: usize,
}

const MEMBER_FIRST_SIZE: usize = 56;

/// Adds a node of the `rdzv` backend, and sets out to its server; the options are those of its handlers
/// (docs/handlers.md), but for what they say of hosting: a loop hosts no server. A number above 0 that names
/// the node in this loop goes to `*node`. The operations of stores (`rdzv_loop_store_set` and so on, but for
/// `rdzv_loop_store_barrier`) take it for a store as well: the keys are those of the server.
///
/// Errors: `RDZV_INVALID_ARGUMENT` when the parameters make no sense, `RDZV_IO` when this host has no name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_add_node(
    event_loop: *mut rdzv_loop,
    parameters: *const rdzv_rendezvous_parameters,
    node: *mut u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let (node, parameters) = (out_pointer(node, "node")?, reference(parameters, "parameters")?);
            let added = this.stores.add_node(&parameters.parameters);
            node.put(added.map_err(|error| handler_fault(&error))?.as_u32());
            Ok(())
        })
    }
}

/// Ends a node's connection without a word and forgets it: to the others of its round it has died.
/// `rdzv_loop_node_shutdown` says goodbye. No event of the node follows. An unknown node is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_remove_node(
    event_loop: *mut rdzv_loop,
    node: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            this.stores.remove_session(SessionId::from_u32(node));
            Ok(())
        })
    }
}

/// What is to be begun for a node. No closure behind a pointer, as in [`crate::guard`].
trait OnNode {
    fn run(
        &mut self,
        session: &mut Session<'_>,
        run_id: &str,
        timeout: Timeout,
    ) -> Result<Result<CallId, SubmitError>, Fault>;
}

impl<F: FnOnce(&mut Session<'_>, &str, Timeout) -> Result<Result<CallId, SubmitError>, Fault>> OnNode
    for Option<F>
{
    fn run(
        &mut self,
        session: &mut Session<'_>,
        run_id: &str,
        timeout: Timeout,
    ) -> Result<Result<CallId, SubmitError>, Fault> {
        self.take().map_or(Ok(Ok(CallId(0))), |begin| begin(session, run_id, timeout))
    }
}

/// Submits something for a node.
unsafe fn submit(
    at: (*mut rdzv_loop, u32),
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
    begin: impl FnOnce(&mut Session<'_>, &str, Timeout) -> Result<Result<CallId, SubmitError>, Fault>,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { submitted(at, timeout_ms, operation, error, &mut Some(begin)) }
}

/// Stands once in the library, whatever the number of operations.
#[inline(never)]
unsafe fn submitted(
    (event_loop, node): (*mut rdzv_loop, u32),
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
    begin: &mut dyn OnNode,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let (operation, timeout) = (out_pointer(operation, "operation")?, timeout(timeout_ms)?);
            let mut session = this.stores.session(SessionId::from_u32(node));
            let session = session.as_mut().ok_or_else(|| invalid("the loop has no node of this number"))?;
            let run_id = session.run_id().unwrap_or_default().to_string();
            operation.put(begin.run(session, &run_id, timeout)?.map_err(submit_fault)?.0);
            Ok(())
        })
    }
}

/// Submits the wish to join the run's next round. Its event comes when the round is complete, and
/// `rdzv_loop_round` has the node's place in it; before, `RDZV_EVENT_NODE_SEATED` or
/// `RDZV_EVENT_NODE_STANDING_BY` may tell how it stands. What happened to the node before is told no more.
/// This is also how a node comes back after a death or the end of its round. After `rdzv_loop_cancel` it may
/// follow at once: it goes out when the server has answered the one that was given up.
///
/// This and all submissions below return at once, as those of stores do, and name the operation in
/// `*operation`, which `rdzv_loop_cancel` ends.
///
/// Errors: `RDZV_INVALID_ARGUMENT` when the node waits for a round already or was replaced, and those of
/// its session's end. Statuses of the event: as of `rdzv_rendezvous_handler_next_rendezvous`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_next_rendezvous(
    event_loop: *mut rdzv_loop,
    node: u32,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), -1, operation, error, |session, _, _| {
            session.next_round().ok_or_else(|| invalid("the loop has no node of this number"))
        })
    }
}

/// Submits the wish to leave the run, which goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_leave(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, run_id, timeout| {
            Ok(session.leave(run_id.as_bytes(), timeout))
        })
    }
}

/// Submits the wish to close the run, for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_set_closed(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, run_id, timeout| {
            Ok(session.close_run(run_id.as_bytes(), timeout))
        })
    }
}

/// Submits the news that the job has failed, as `rdzv_rendezvous_handler_fail`.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        let last_event = text(message, message_len, "message");
        submit((event_loop, node), timeout_ms, operation, error, |session, run_id, timeout| {
            Ok(session.fail_run(run_id.as_bytes(), last_event?, timeout))
        })
    }
}

/// Submits the goodbye: the node leaves its run, and its session, or a native store's, ends. Its event comes
/// before `RDZV_EVENT_NODE_OVER`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_shutdown(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, _, timeout| {
            Ok(session.close(timeout))
        })
    }
}

/// Asks how the run stands; `rdzv_loop_run_info` has the answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_node_run_info(
    event_loop: *mut rdzv_loop,
    node: u32,
    timeout_ms: i64,
    operation: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, run_id, timeout| {
            Ok(session.run_info(run_id.as_bytes(), timeout))
        })
    }
}

/// Asks for members of a round, from the node rank `first` on, at most `count_max` of them. The event has
/// their number in `item_count`; `rdzv_loop_member` gives each.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, run_id, timeout| {
            Ok(session.members(run_id.as_bytes(), round, (first, count_max), timeout))
        })
    }
}

/// Submits the node's arrival at a barrier for the nodes of these names, or for `world_size` nodes when
/// `name_count` is 0. The event's number is the barrier's generation. Statuses of the event besides:
/// `RDZV_TIMED_OUT`, with the missing among the error's nodes; `RDZV_BARRIER_BROKEN`, with who died there.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        submit((event_loop, node), timeout_ms, operation, error, |session, _, timeout| {
            let (key, names) = (bytes(key, key_len, "key")?, list(names, name_count, "names")?);
            Ok(session.barrier(key, 0, (world_size, &names), timeout))
        })
    }
}

/// Fills a struct with something of the last event.
unsafe fn show<T: Copy>(
    event_loop: *mut rdzv_loop,
    (out, first_size): (*mut T, usize),
    error: *mut *mut rdzv_error,
    read: impl FnOnce(&LastEvent) -> Option<T>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        loop_gate::operate(event_loop, error, |this| {
            let given = sized::given_size(out, first_size, "out")?;
            let view = read(&this.last_event).ok_or_else(|| invalid("the last event has none"))?;
            sized::put(out, given, &view);
            Ok(())
        })
    }
}

/// The node's place in its round, when the last event was the end of `rdzv_loop_node_next_rendezvous`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_round(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_round,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        show(event_loop, (out, ROUND_FIRST_SIZE), error, |last_event| {
            let joined_round = last_event.joined_round.as_ref()?;
            // Keys of a node stand beneath a slash.
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

/// What happened to the round, when the last event was `RDZV_EVENT_ROUND`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_round_event(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_round_event,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        show(event_loop, (out, EVENT_FIRST_SIZE), error, |last_event| {
            last_event.round_event.as_ref().map(|event| projected(Some(event)).0)
        })
    }
}

/// How the run stands, when the last event was the end of `rdzv_loop_node_run_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_run_info(
    event_loop: *mut rdzv_loop,
    out: *mut rdzv_run_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
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

/// The member at `index` (from 0), when the last event was the end of `rdzv_loop_node_members`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_loop_member(
    event_loop: *mut rdzv_loop,
    index: usize,
    out: *mut rdzv_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
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

/// What there is to tell of a node's event, beside what is kept to be lent out.
pub(crate) struct NodeEventView {
    pub(crate) kind: i32,
    pub(crate) operation: u64,
    pub(crate) number: i64,
    pub(crate) revision: u64,
    pub(crate) fault: Option<Fault>,
}

impl LastEvent {
    /// Keeps what an event of a node or a native store of this server lends out. A node has a run.
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
        answer: SessionAnswer,
        (key, elapsed): (&[u8], Duration),
        peer: &str,
    ) {
        match answer {
            SessionAnswer::Done => {}
            SessionAnswer::Joined(joined_round) => self.joined_round = Some(joined_round),
            SessionAnswer::RunInfo(info) => self.run_info = Some(info),
            SessionAnswer::Members(members) => self.members = members,
            SessionAnswer::Barrier(end) => match barrier_end(end, key, elapsed, peer) {
                Ok(generation) => view.number = i64::try_from(generation).unwrap_or(i64::MAX),
                Err(fault) => {
                    view.number = i64::try_from(fault.generation).unwrap_or(i64::MAX);
                    view.fault = Some(fault);
                }
            },
            SessionAnswer::Watching(revision) => view.revision = revision,
            SessionAnswer::Number(number) => view.number = number,
            SessionAnswer::Removed(PrefixRemoved { removed, left }) => {
                view.number = i64::try_from(removed).unwrap_or(i64::MAX);
                self.left = usize::try_from(left).unwrap_or(usize::MAX);
            }
            SessionAnswer::Txn(done) => {
                (view.number, view.revision) = (i64::from(done.holds), done.revision);
            }
            SessionAnswer::Batch(answers) => self.answers = Answers::new(answers),
        }
    }
}

fn fault_of(error: NativeError, (run_id, node): (&str, &str)) -> Fault {
    let known = call_fault(error.call());
    let elapsed = error.call().elapsed();
    let last_event = handler_fault(&refusal(error, (run_id, node), elapsed));
    known.with(|known| {
        (known.status, known.message, known.cause) =
            (last_event.status, last_event.message.clone(), last_event.cause.clone());
    })
}
