//! Requests of operations for rendezvous nodes in an event loop, and their results.

use crate::op::rdzv_op;
use crate::op_kind::OpKind;
use crate::op_result::NodeResult;
use crate::prelude::*;

/// Position of a node in a round. What it points to is valid until the operation is used again or freed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_round {
    /// Set to `sizeof(rdzv_round)` before the call. The library sets it to the number of bytes it filled.
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
    /// Prefix for the keys of this round; when the round is over, keys with this prefix cannot be
    /// changed.
    pub key_prefix: *const u8,
    /// Length of `key_prefix` in bytes.
    pub key_prefix_len: usize,
}
growing!(rdzv_round: 72);

/// State of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_run_info {
    /// Set to `sizeof(rdzv_run_info)` before the call. The library sets it to the number of bytes it
    /// filled.
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
growing!(rdzv_run_info: 32);

/// Member of a round. What it points to is valid until the operation is used again or freed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_round_member {
    /// Set to `sizeof(rdzv_round_member)` before the call. The library sets it to the number of bytes it
    /// filled.
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
growing!(rdzv_round_member: 56);

/// Makes the operation join the run's next round. It ends when the round is complete; `rdzv_op_get_round`
/// then returns the node's position. Before it ends, `RDZV_EVENT_NODE_SEATED` or
/// `RDZV_EVENT_NODE_STANDING_BY` may report the state of the request. Until the server has accepted the
/// request, events of the last round may still come; ignore them. A node also uses this to rejoin after a
/// death or after the end of its round. After `rdzv_loop_cancel` it may be submitted again at once: the
/// new request is sent when the server has answered the cancelled one. It has no timeout of its own: that
/// of the node's parameters holds.
///
/// This and all requests below are for nodes of an event loop: others fail with `RDZV_UNSUPPORTED`.
/// Statuses are as for `rdzv_rendezvous_handler_next_rendezvous`. `rdzv_loop_submit` fails with
/// `RDZV_INVALID_ARGUMENT` if the node already waits for a round or was replaced, and with the error with
/// which its session ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_next_rendezvous(
    op: *mut rdzv_op,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::NextRendezvous, &[]))
}

/// Makes the operation leave the run, which continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_leave(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Leave, &[]))
}

/// Makes the operation close the run for good.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_set_closed(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::SetClosed, &[]))
}

/// Makes the operation report that the job has failed, as `rdzv_rendezvous_handler_fail` does. `message`
/// is UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_fail(
    op: *mut rdzv_op,
    message: *const u8,
    message_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        text(message, message_len, "message").map(|_| OpKind::Fail),
        &[("message", message, message_len)],
        &[]
    ))
}

/// Makes the operation request the state of the run; `rdzv_op_get_run_info` returns it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_run_info(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::RunInfo, &[]))
}

/// Makes the operation request at most `count_max` members of a round, from node rank `first` on;
/// `rdzv_op_get_member` returns each. Nodes that are gone may be missing. The next page begins after the
/// last rank of this one, and an empty page is the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_members(
    op: *mut rdzv_op,
    round: u64,
    first: u32,
    count_max: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Members { round, first, count_max }, &[]))
}

/// Returns a part of an operation's result.
unsafe fn part_of<T>(op: *const rdzv_op, read: impl FnOnce(&NodeResult) -> Option<T>) -> Result<T, Fault> {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    let body = unsafe { reference(op, "op") }?.cell.lock()?;
    body.result.node.as_ref().and_then(read).ok_or_else(|| invalid("the operation has no such result"))
}

/// Writes the node's position in its round to `*out` if the operation joined one. Set `out->struct_size`
/// first, here and in the functions below.
///
/// Errors of this and the functions below: `RDZV_INVALID_ARGUMENT` (the operation has no such result).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get_round(
    op: *const rdzv_op,
    out: *mut rdzv_round,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        part_of(op, |result| {
            let NodeResult::Joined(joined) = result else { return None };
            // A node's keys start with a slash, which the store of the node adds itself.
            let prefix = joined.namespace.strip_prefix(b"/").unwrap_or(&joined.namespace);
            Some(rdzv_round {
                node_rank: joined.node_rank,
                round: joined.round,
                nodes: joined.nodes,
                rank_first: joined.rank_first,
                world_size: joined.world_size,
                leader: joined.leader.as_ptr(),
                leader_len: joined.leader.len(),
                key_prefix: prefix.as_ptr(),
                key_prefix_len: prefix.len(),
                ..Default::default()
            })
        })
    })
}

/// Writes the state of the run to `*out` if the operation requested it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get_run_info(
    op: *const rdzv_op,
    out: *mut rdzv_run_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        part_of(op, |result| {
            let NodeResult::RunInfo(info) = result else { return None };
            Some(rdzv_run_info {
                complete: i32::from(info.complete),
                round: info.round,
                closed: i32::from(info.closed),
                nodes: info.nodes,
                nodes_waiting: info.nodes_waiting,
                nodes_standby: info.nodes_standby,
                ..Default::default()
            })
        })
    })
}

/// Writes the member at `index` (from 0) to `*out` if the operation requested the members of a round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get_member(
    op: *const rdzv_op,
    index: usize,
    out: *mut rdzv_round_member,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        part_of(op, |result| {
            let NodeResult::Members(members) = result else { return None };
            let member = members.get(index)?;
            Some(rdzv_round_member {
                node_rank: member.node_rank,
                rank_first: member.rank_first,
                local_world_size: member.local_world_size,
                node: member.node.as_ptr(),
                node_len: member.node.len(),
                address: member.address.as_ptr(),
                address_len: member.address.len(),
                ..Default::default()
            })
        })
    })
}
