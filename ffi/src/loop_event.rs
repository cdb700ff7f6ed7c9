//! Events of the caller's event loop.

use crate::loop_gate::rdzv_loop_member;
use crate::op::rdzv_op;
use crate::prelude::*;
use crate::rendezvous_event::rdzv_round_event;
use crate::watch::rdzv_change;

/// `rdzv_event.kind`: no event is pending.
pub const RDZV_EVENT_NONE: i32 = 0;
/// `rdzv_event.kind`: the operation `op` is over; `rdzv_op_get_result` returns its result. It can be used
/// again.
pub const RDZV_EVENT_COMPLETED: i32 = 1;
/// `rdzv_event.kind`: the session of a node or a native store is open, for the first time or again after
/// its connection broke.
pub const RDZV_EVENT_SESSION_OPEN: i32 = 2;
/// `rdzv_event.kind`: the node has a slot in the round that is forming.
pub const RDZV_EVENT_NODE_SEATED: i32 = 3;
/// `rdzv_event.kind`: the node is a spare, with `spares_ahead` other spares ahead of it.
pub const RDZV_EVENT_NODE_STANDING_BY: i32 = 4;
/// `rdzv_event.kind`: `round_event` has an event of the node's round or of the run.
pub const RDZV_EVENT_ROUND: i32 = 5;
/// `rdzv_event.kind`: the session of a node or a native store has ended, together with its leases and
/// watches; no event of it follows. `error` is NULL if this side ended it. To continue, remove the member
/// and add it again.
pub const RDZV_EVENT_SESSION_OVER: i32 = 6;
/// `rdzv_event.kind`: the watch `op` has begun; the `revision` of its result is that of the store.
/// `RDZV_EVENT_CHANGE` follows for each change. The watch is over with its `RDZV_EVENT_COMPLETED`.
pub const RDZV_EVENT_WATCHING: i32 = 7;
/// `rdzv_event.kind`: `change` has a change that the watch `op` observed.
pub const RDZV_EVENT_CHANGE: i32 = 8;
/// `rdzv_event.kind`: a lease has ended by itself, and its keys were deleted: see `lease` and
/// `lease_why`.
pub const RDZV_EVENT_LEASE_OVER: i32 = 9;
/// `rdzv_event.kind`: event of an agent; `rdzv_loop_agent_event` returns it.
pub const RDZV_EVENT_AGENT: i32 = 10;
/// `rdzv_event.kind`: an RPC worker has joined its group or, if `error` is not NULL, has failed to; no
/// event of the worker follows a failure.
pub const RDZV_EVENT_RPC_JOINED: i32 = 11;
/// `rdzv_event.kind`: event of an RPC worker's group; `rdzv_loop_rpc_event` returns it.
pub const RDZV_EVENT_RPC: i32 = 12;
/// `rdzv_event.kind`: request to a handler of the loop. `rdzv_loop_rpc_request` returns it, and
/// `rdzv_loop_rpc_responder` its responder.
pub const RDZV_EVENT_RPC_REQUEST: i32 = 13;
/// `rdzv_event.kind`: an RPC worker has ended; no event of it follows. `error` is NULL if it ended as it
/// should.
pub const RDZV_EVENT_RPC_OVER: i32 = 14;

/// Event of a loop. Each kind names the fields that it has; the others are 0 or NULL. All that it points
/// to is valid until the next call of `rdzv_loop_next_event`, but for `member`, which is valid until it
/// is removed, and `op`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_event {
    /// Set to `sizeof(rdzv_event)` before the call. The library sets it to the number of bytes it filled.
    pub struct_size: u32,
    /// One of the `RDZV_EVENT_` numbers; later versions may add more.
    pub kind: i32,
    /// Member that the event is of.
    pub member: *mut rdzv_loop_member,
    /// Pointer of the program that belongs to the member.
    pub member_data: *mut c_void,
    /// Operation that the event is of, if it is of one.
    pub op: *mut rdzv_op,
    /// Pointer of the program that belongs to the operation.
    pub op_data: *mut c_void,
    /// Reason why a session, a worker or its joining ended; NULL if it ended as it should.
    pub error: *const rdzv_error,
    /// `RDZV_EVENT_CHANGE`: the change.
    pub change: *const rdzv_change,
    /// `RDZV_EVENT_ROUND`: the event of the round.
    pub round_event: *const rdzv_round_event,
    /// `RDZV_EVENT_LEASE_OVER`: number of the lease.
    pub lease: u64,
    /// `RDZV_EVENT_LEASE_OVER`: why it ended, such as `RDZV_WHY_DEADLINE`.
    pub lease_why: i32,
    /// `RDZV_EVENT_NODE_STANDING_BY`: number of spares that take a slot before this one.
    pub spares_ahead: u32,
    /// `RDZV_EVENT_SESSION_OPEN`: number that identifies this start of the server, as
    /// `rdzv_store_incarnation` returns it.
    pub incarnation: u64,
}
growing!(rdzv_event: 88);
