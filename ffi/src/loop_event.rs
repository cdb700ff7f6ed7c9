//! What happens in an event loop of the caller's.

use crate::agent_event::AgentEventView;
use crate::batch::Answers;
use crate::fault::rdzv_error;
use crate::loop_rpc_event::LastRpcEvent;
use crate::status::rdzv_status;
use rendezvous_core::driver::native_client::{Joined, MemberInfo, RunInfo};
use rendezvous_core::rendezvous::round_event::RoundEvent;

/// `rdzv_event.kind`: nothing has happened that was not told.
pub const RDZV_EVENT_NONE: i32 = 0;
/// `rdzv_event.kind`: an operation is over.
pub const RDZV_EVENT_COMPLETED: i32 = 1;

/// What the last event lends out.
#[derive(Debug, Default)]
pub(crate) struct LastEvent {
    pub(crate) value: Vec<u8>,
    pub(crate) items: Vec<Vec<u8>>,
    pub(crate) error: Option<Box<rdzv_error>>,
    pub(crate) joined_round: Option<Joined>,
    pub(crate) round_event: Option<RoundEvent>,
    pub(crate) run_info: Option<RunInfo>,
    pub(crate) members: Vec<MemberInfo>,
    pub(crate) answers: Answers,
    /// Keys that the removal of a prefix left.
    pub(crate) left: usize,
    pub(crate) agent: Option<AgentEventView>,
    pub(crate) rpc: LastRpcEvent,
}

/// What happened in a loop. All that it points to is lent until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_event {
    /// Set it to `sizeof(rdzv_event)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// `RDZV_EVENT_NONE`, `RDZV_EVENT_COMPLETED`, `RDZV_EVENT_AGENT`, one of a node's: `RDZV_EVENT_NODE_OPEN`
    /// and so on, one of a native store's: `RDZV_EVENT_CHANGE` and so on, or one of an RPC worker's:
    /// `RDZV_EVENT_RPC` and so on.
    pub kind: i32,
    /// The operation, as its submission named it: a number above 0 that this loop gives once.
    pub operation: u64,
    /// The store, the node, the agent or the RPC worker that it was for.
    pub store: u32,
    /// How it ended.
    pub status: rdzv_status,
    /// add: the sum; num_keys, queue_len, delete_prefix and revoke_lease: the count; check, delete_key and
    /// commit: 1 or 0; grant_lease: the lease; a node's barrier: the generation.
    pub number: i64,
    /// get, compare_set and queue_pop: the value; `RDZV_EVENT_ROUND`: a node's name; `RDZV_EVENT_CHANGE`: the
    /// key; an RPC call: the answer; `RDZV_EVENT_RPC_REQUEST`: the bytes. NULL otherwise.
    pub data: *const u8,
    /// Its length in bytes.
    pub len: usize,
    /// multi_get, list_keys and `RDZV_EVENT_CHANGE`: how many items `rdzv_loop_item` has; a node's members:
    /// how many `rdzv_loop_member` has; batch: how many `rdzv_loop_answer` has; delete_prefix: how many keys
    /// of rounds that are over were left.
    pub item_count: usize,
    /// The details when `status` is not `RDZV_OK`, else NULL. Not yours to free.
    pub error: *const rdzv_error,
    /// `RDZV_EVENT_CHANGE`: the revision of the store that it made; commit and the beginning of a watch: the
    /// store's. 0 otherwise.
    pub revision: u64,
}
