//! Requests of operations that need the native protocol.

use crate::op::rdzv_op;
use crate::op_kind::OpKind;
use crate::prelude::*;

/// Makes the operation wait for several keys and read their values with their revisions. With timeout 0,
/// a key without a value is not an error: its revision is 0.
///
/// This and all requests below need a native store or, in an event loop, a node: others fail with
/// `RDZV_UNSUPPORTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_read(
    op: *mut rdzv_op,
    keys: *const rdzv_bytes,
    key_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(Ok(OpKind::Read), &[], &[("keys", keys, key_count)]))
}

/// Makes the operation list, in byte order, the first `count_max` keys that begin with `prefix` and sort
/// after `after` (length 0: from the first key). Pass the last key of a page as `after` to get the next
/// one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_list_page(
    op: *mut rdzv_op,
    prefix: *const u8,
    prefix_len: usize,
    after: *const u8,
    after_len: usize,
    count_max: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::ListPage(count_max), &[("prefix", prefix, prefix_len), ("after", after, after_len)]))
}

/// Makes the operation delete all keys and queues whose names begin with `prefix`. Keys of rounds that
/// have ended are not deleted. It fails with `RDZV_STALE_ROUND` if `prefix` itself lies in such a round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_delete_prefix(
    op: *mut rdzv_op,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::DeletePrefix, &[("prefix", prefix, prefix_len)]))
}

/// Makes the operation arrive at a named barrier as participant `name` and wait for the other
/// participants: those in `names`, or any `count` of them if `name_count` is 0. With length 0, `name` is
/// the session's name, set by `rdzv_store_options.node`, or the node's. The first participant to arrive
/// determines the participants and the deadline. A named barrier is not a key and can be reused: its
/// generations are numbered from 1. `generation` 0 means the open generation, or the next one if none is
/// open.
///
/// Failures of the operation: `RDZV_TIMED_OUT` (the error's nodes list the missing participants as far as
/// they are known); `RDZV_BARRIER_BROKEN` (the error's nodes name the participant that died);
/// `RDZV_CANCELLED`, also by `rdzv_op_cancel_named_barrier`; `RDZV_CONFLICT` (the open generation expects
/// other participants), `RDZV_INVALID_ARGUMENT` (`name` is not one of the participants, or the caller has
/// no name), `RDZV_NOT_FOUND` (the generation is no longer remembered, or is still in the future).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_named_barrier(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    generation: u64,
    name: *const u8,
    name_len: usize,
    count: u32,
    names: *const rdzv_bytes,
    name_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        Ok(OpKind::NamedBarrier { generation, count }),
        &[("key", key, key_len), ("name", name, name_len)],
        &[("names", names, name_count)]
    ))
}

/// Makes the operation cancel a named barrier for all its waiting participants, on behalf of `name`
/// (length 0: the session's name).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_cancel_named_barrier(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    name: *const u8,
    name_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::CancelNamedBarrier, &[("key", key, key_len), ("name", name, name_len)]))
}

/// Makes the operation watch a key: it reports each change from `from_revision` on; 0: from now on. The
/// current value is not reported. To know a key and miss no change, watch it first and then read it. Pass
/// it to `rdzv_watch_new`, or submit it to an event loop. It fails with `RDZV_COMPACTED` if the server no
/// longer has that revision, or was restarted and has not reached it; the error's `revision` is the oldest
/// that it has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_watch_key(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    from_revision: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::WatchKey(from_revision), &[("key", key, key_len)]))
}

/// Makes the operation watch all keys that begin with `prefix`, as `rdzv_op_watch_key` watches a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_watch_prefix(
    op: *mut rdzv_op,
    prefix: *const u8,
    prefix_len: usize,
    from_revision: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::WatchPrefix(from_revision), &[("prefix", prefix, prefix_len)]))
}

/// Makes the operation grant a lease that ends `ttl_ms` milliseconds after it was granted or last
/// renewed, or with its session if that ends first; with 0, only with its session. See `rdzv_lease_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_grant_lease(
    op: *mut rdzv_op,
    ttl_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        zero_or_more_ms(ttl_ms, "ttl_ms").map(OpKind::GrantLease),
        &[],
        &[]
    ))
}

/// Makes the operation attach keys to a lease, so that they are deleted when it ends. Attach keys before
/// setting them, so that none remains if this process dies in between. A key is attached to one lease,
/// the last one; deleting the key detaches it. This and the next two operations fail with
/// `RDZV_NOT_FOUND` if the lease has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_attach_lease(
    op: *mut rdzv_op,
    lease: u64,
    keys: *const rdzv_bytes,
    key_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        Ok(OpKind::AttachLease(lease)),
        &[],
        &[("keys", keys, key_count)]
    ))
}

/// Makes the operation renew a lease: it ends its `ttl_ms` from now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_renew_lease(
    op: *mut rdzv_op,
    lease: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::RenewLease(lease), &[]))
}

/// Makes the operation end a lease and delete its keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_revoke_lease(
    op: *mut rdzv_op,
    lease: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::RevokeLease(lease), &[]))
}

/// Makes the operation end the session of a native store or a node gracefully, with everything that
/// belongs to it: leases with their keys, watches and other handles. A node leaves its run. The
/// other nodes get no event: the server does not report a death, and no grace period passes. Later calls
/// fail.
///
/// The store of a round uses the session of its node: ending it makes the node leave the run. The node's
/// handler opens a new session for its next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_end_session(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::EndSession, &[]))
}
