//! Batches and transactions: operations that include other operations.

use crate::op::{OpBody, check_bytes, rdzv_op};
use crate::op_kind::OpKind;
use crate::prelude::*;
use rendezvous_core::driver::native_client::{BatchStep, Branch, Step, Test};
use rendezvous_core::limits::{FrameLimits, NATIVE_LIST_MAX};

/// Makes the operation an empty batch: requests that the server executes in order in one step. Each has
/// its own result; one that fails does not stop the others. It may include `set`, `add`, `compare_set`,
/// `append`, `delete_key`, `delete_prefix`, `check` of one key, `queue_push` and `queue_len`.
///
/// If the connection fails, the timeout passes or the operation is cancelled after the batch was sent,
/// the whole batch may have been executed; the message says whether that is possible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_batch(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Batch, &[]))
}

/// Makes the operation an empty transaction: tests of keys, writes that the server applies atomically if
/// all tests hold, and other writes that it applies atomically otherwise. It may include `set`, `add`,
/// `append`, `delete_key` and `delete_prefix`. If it fails after it was sent, the message says whether it
/// may have been committed; it is never applied in part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_transaction(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| body.prepare(OpKind::Txn, &[]))
}

/// Counts one more test or request; fails at the limits.
fn count(body: &mut OpBody, bytes: usize) -> Result<(), Fault> {
    let included = &mut body.included;
    if included.count >= NATIVE_LIST_MAX as u64 {
        let message = format!("the limit of {NATIVE_LIST_MAX} tests and requests is reached");
        return Err(Fault::new(RDZV_LIMIT_EXCEEDED, message));
    }
    let total = included.bytes.saturating_add(bytes);
    check_bytes(total, &FrameLimits::native())?;
    (included.count, included.bytes) = (included.count + 1, total);
    Ok(())
}

/// Returns the write that an operation is as part of a transaction.
fn write(part: &OpBody) -> Option<Step> {
    let value = || part.arguments.get(1).into();
    Some(match part.kind {
        OpKind::Set => Step::Set { value: value() },
        OpKind::Append => Step::Append { value: value() },
        OpKind::Add(delta) => Step::Add { delta },
        OpKind::DeleteKey => Step::Delete,
        OpKind::DeletePrefix => Step::DeletePrefix,
        _ => return None,
    })
}

/// Returns the request that an operation is as part of a batch.
fn step(part: &OpBody) -> Option<BatchStep> {
    let argument = |index| part.arguments.get(index).into();
    Some(match part.kind {
        OpKind::CompareSet => BatchStep::CompareSet { expected: argument(1), desired: argument(2) },
        OpKind::Check if part.arguments.count() == 1 => BatchStep::Check,
        OpKind::QueuePush => BatchStep::QueuePush { item: argument(1) },
        OpKind::QueueLen => BatchStep::QueueLen,
        _ => BatchStep::Write(write(part)?),
    })
}

/// Adds the request of `part` to a batch or a transaction, which copies it: `part` can be used again at
/// once.
///
/// Errors of this and the functions below: `RDZV_INVALID_ARGUMENT` (`op` is no batch or transaction, or
/// `part` is not allowed in it), `RDZV_LIMIT_EXCEEDED` (32,768 tests and requests, or 32 MiB),
/// `RDZV_REENTRANT`.
///
/// A server refuses with `RDZV_LIMIT_EXCEEDED` a transaction of more than 4,096 tests and writes, and
/// the rest of a batch that would take it longer than about 20 ms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_include(
    op: *mut rdzv_op,
    part: *const rdzv_op,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| {
        let part = reference(part, "part")?.cell.enter()?;
        let refused = |whole| invalid(format!("a {whole} cannot include this operation"));
        body.begin();
        match body.kind {
            OpKind::Batch => {
                let step = step(&part).ok_or_else(|| refused("batch"))?;
                count(body, part.arguments.bytes())?;
                body.included.kinds.push(part.kind);
                body.included.batch.push(part.arguments.get(0), step);
            }
            OpKind::Txn => {
                let write = write(&part).ok_or_else(|| refused("transaction"))?;
                count(body, part.arguments.bytes())?;
                let branch = body.included.branch;
                body.included.txn.push(branch, part.arguments.get(0), write);
            }
            _ => return Err(not("batch or transaction")),
        }
        Ok(())
    })
}

fn not(what: &str) -> Fault {
    invalid(format!("the operation is not a {what}"))
}

impl OpBody {
    /// Adds a test to a transaction.
    unsafe fn require(&mut self, key: *const u8, key_len: usize, test: Test) -> Result<(), Fault> {
        if self.kind != OpKind::Txn {
            return Err(not("transaction"));
        }
        // SAFETY: passed on unchanged.
        let key = unsafe { bytes(key, key_len, "key") }?;
        self.begin();
        let value_len = if let Test::Value(value) = &test { value.len() } else { 0 };
        count(self, key_len.saturating_add(value_len))?;
        self.included.txn.require(key, test);
        Ok(())
    }
}

/// Adds the test that the key has a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_require_present(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.require(key, key_len, Test::Present))
}

/// Adds the test that the key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_require_absent(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.require(key, key_len, Test::Absent))
}

/// Adds the test that the key last changed at this revision of the store; 0 means that it has no value.
/// Revisions begin with the time of the server's start, so those of two servers can be equal if the clock
/// was set back in between: if you keep revisions, compare `rdzv_store_incarnation`, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_require_revision(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    revision: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| body.require(key, key_len, Test::Revision(revision)))
}

/// Adds the test that the key has this value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_require_value(
    op: *mut rdzv_op,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, op, |body| {
        let value = bytes(value, value_len, "value")?;
        check_bytes(value_len, &FrameLimits::native())?;
        body.require(key, key_len, Test::Value(value.into()))
    })
}

/// Starts the second branch of a transaction: writes that it includes from now on are applied if a test
/// does not hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_otherwise(op: *mut rdzv_op, error: *mut *mut rdzv_error) -> rdzv_status {
    guard::on!(error, op, |body| {
        if body.kind != OpKind::Txn {
            return Err(not("transaction"));
        }
        body.included.branch = Branch::Otherwise;
        Ok(())
    })
}
