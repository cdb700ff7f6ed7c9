//! Requests of operations that every kind of store has.

use crate::op::rdzv_op;
use crate::op_kind::OpKind;
use crate::prelude::*;

/// Makes the operation store `value` under `key`, as `rdzv_store_set` does.
///
/// Errors of this and all functions below that give an operation its request: `RDZV_INVALID_ARGUMENT`,
/// `RDZV_LIMIT_EXCEEDED` (131,072 keys, or 256 MiB), `RDZV_REENTRANT` (it is under way), `RDZV_POISONED`.
/// After an error the operation has no request. Limits of keys and values are checked when it is
/// performed or submitted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_set(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::Set, &[("key", key, key_len), ("value", value, value_len)]))
}

/// Makes the operation wait for `key` and read its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Get, &[("key", key, key_len)]))
}

/// Makes the operation add `delta` to the decimal number under `key`, as `rdzv_store_add` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_add(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    delta: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Add(delta), &[("key", key, key_len)]))
}

/// Makes the operation store `desired` if the value is `expected`, as `rdzv_store_compare_set` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_compare_set(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
    desired: *const u8,
    desired_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(
        OpKind::CompareSet,
        &[("key", key, key_len), ("expected", expected, expected_len), ("desired", desired, desired_len)]
    ))
}

/// Makes the operation append bytes to a value, which is created if missing. Optional for custom stores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_append(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::Append, &[("key", key, key_len), ("value", value, value_len)]))
}

/// Makes the operation delete `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_delete_key(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::DeleteKey, &[("key", key, key_len)]))
}

/// Makes the operation wait until every key has existed, at least once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_wait(
    op: *mut rdzv_op,
    keys: *const rdzv_bytes,
    key_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(Ok(OpKind::Wait), &[], &[("keys", keys, key_count)]))
}

/// Makes the operation check whether every key exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_check(
    op: *mut rdzv_op,
    keys: *const rdzv_bytes,
    key_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(Ok(OpKind::Check), &[], &[("keys", keys, key_count)]))
}

/// Makes the operation wait for several keys and read their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_multi_get(
    op: *mut rdzv_op,
    keys: *const rdzv_bytes,
    key_count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(Ok(OpKind::MultiGet), &[], &[("keys", keys, key_count)]))
}

/// Makes the operation store `values[i]` under `keys[i]` for each `i` below `count`. This library's
/// server applies all of them at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_multi_set(
    op: *mut rdzv_op,
    keys: *const rdzv_bytes,
    values: *const rdzv_bytes,
    count: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        Ok(OpKind::MultiSet),
        &[],
        &[("keys", keys, count), ("values", values, count)]
    ))
}

/// Makes the operation count the keys of the store, including those of other programs and under other
/// prefixes, and, for a file, its two counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_num_keys(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::NumKeys, &[]))
}

/// Makes the operation list the keys, without the prefix of the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_list_keys(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::ListKeys, &[]))
}

/// Makes the operation append an item to a queue. Queues have a namespace separate from that of the
/// values. Files have no queues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_queue_push(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    item: *const u8,
    item_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body
        .prepare(OpKind::QueuePush, &[("key", key, key_len), ("item", item, item_len)]))
}

/// Makes the operation remove the item at the front of a queue and read it. It waits if the queue is
/// empty; with timeout 0, it fails with `RDZV_QUEUE_EMPTY`. So does a c10d client if the key also has
/// a value, because the protocol's WAIT returns for either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_queue_pop(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::QueuePop, &[("key", key, key_len)]))
}

/// Makes the operation count the items of a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_queue_len(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::QueueLen, &[("key", key, key_len)]))
}

/// Makes the operation arrive at a barrier and wait until `world_size` participants have, as
/// `rdzv_store_barrier` does. In an event loop, only stores over the c10d protocol have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_barrier(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    world_size: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare_lists(
        participants(world_size).map(OpKind::Barrier),
        &[("key", key, key_len)],
        &[]
    ))
}

/// Makes the operation check that the store responds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_ping(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Ping, &[]))
}
