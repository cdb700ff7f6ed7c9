//! Events of the caller's event loop.

use crate::agent_event::AgentEventView;
use crate::batch::Answers;
use crate::fault::rdzv_error;
use crate::loop_rpc_event::LastRpcEvent;
use crate::status::rdzv_status;
use rendezvous_core::driver::native_client::{Joined, MemberInfo, RunInfo};
use rendezvous_core::rendezvous::round_event::RoundEvent;

/// `rdzv_event.kind`: no event is pending.
pub const RDZV_EVENT_NONE: i32 = 0;
/// `rdzv_event.kind`: an operation has completed.
pub const RDZV_EVENT_COMPLETED: i32 = 1;

/// Data that the last event points to.
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
    /// Number of keys that a delete of a prefix left.
    pub(crate) left: usize,
    pub(crate) agent: Option<AgentEventView>,
    pub(crate) rpc: LastRpcEvent,
}

/// Event of a loop. Everything that it points to is valid until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_event {
    /// Set this to `sizeof(rdzv_event)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// `RDZV_EVENT_NONE`, `RDZV_EVENT_COMPLETED`, `RDZV_EVENT_AGENT`, an event of a node
    /// (`RDZV_EVENT_NODE_OPEN` and following), of a native store (`RDZV_EVENT_CHANGE` and following) or of an
    /// RPC worker (`RDZV_EVENT_RPC_JOINED` and following).
    pub kind: i32,
    /// Operation number that the submission returned: above 0 and unique within this loop.
    pub operation: u64,
    /// Number of the store, node, agent or RPC worker that the event is of.
    pub store: u32,
    /// Status of the operation.
    pub status: rdzv_status,
    /// add: the sum; num_keys, queue_len, delete_prefix and revoke_lease: the count; check, delete_key and
    /// commit: 1 or 0; grant_lease: the lease; a node's barrier: the generation.
    pub number: i64,
    /// get, compare_set and queue_pop: the value; `RDZV_EVENT_ROUND`: a node's name; `RDZV_EVENT_CHANGE`: the
    /// key; an RPC call: the answer; `RDZV_EVENT_RPC_REQUEST`: the payload. NULL otherwise.
    pub data: *const u8,
    /// Length of `data` in bytes.
    pub len: usize,
    /// multi_get, list_keys and `RDZV_EVENT_CHANGE`: number of items for `rdzv_loop_item`; members of a node's
    /// round: number of members for `rdzv_loop_member`; batch: number of answers for `rdzv_loop_answer`;
    /// delete_prefix: number of keys left because they belong to rounds that are over.
    pub item_count: usize,
    /// Details if `status` is not `RDZV_OK`, else NULL. Do not free it.
    pub error: *const rdzv_error,
    /// `RDZV_EVENT_CHANGE`: the store's revision after that change; commit and start of a watch: the store's
    /// revision. 0 otherwise.
    pub revision: u64,
}
