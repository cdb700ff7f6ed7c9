//! Transactions and batches: what the server does in one turn.

use crate::argument::{bytes, invalid, out_pointer, reference, reference_mut};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::native_store::{native, native_fault};
use crate::sized;
use crate::status::{RDZV_LIMIT_EXCEEDED, RDZV_OK, rdzv_status};
use crate::store::{of_keys, rdzv_store, status_of, timeout};
use rendezvous_core::driver::native_client::{Batch, BatchAnswer, BatchStep, Branch, Step, Test, Txn};
use rendezvous_core::error::Operation;
use rendezvous_core::limits::KEYS_MAX;
use std::ptr::null;

/// A transaction: tests of keys, writes that are done in one turn if all of them hold, and others that are
/// done if not. Nobody sees a part of it. Make one, put together what is to be tested and done, and commit it
/// as often as you like; it copies what it is given. Keys are those of the store that it is committed to. One
/// thread at a time.
#[derive(Debug)]
pub struct rdzv_txn {
    pub(crate) txn: Txn,
    branch: Branch,
    count: u64,
}

/// Requests that are carried out in order in one turn, and answered each for itself: one that fails stops
/// none. Make one, put them together, and send it as often as you like; it copies what it is given. One
/// thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_batch {
    pub(crate) batch: Batch,
    count: u64,
}

/// The answers to a batch. Reusable, like `rdzv_buffer`. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_answers {
    answers: Answers,
}

/// Answers, and the words of those that failed.
#[derive(Debug, Default)]
pub(crate) struct Answers(Vec<(BatchAnswer, String)>);

impl Answers {
    pub(crate) fn new(answers: Vec<BatchAnswer>) -> Self {
        let with_message = |answer| match answer {
            BatchAnswer::Failed(error) => {
                let message = error.to_string();
                (BatchAnswer::Failed(error), message)
            }
            answer => (answer, String::new()),
        };
        Self(answers.into_iter().map(with_message).collect())
    }

    pub(crate) const fn count(&self) -> usize {
        self.0.len()
    }

    /// One of them for C.
    pub(crate) fn view(&self, index: usize) -> Option<rdzv_answer> {
        let (answer, message) = self.0.get(index)?;
        let mut view = rdzv_answer { struct_size: 0, status: RDZV_OK, number: 0, data: null(), len: 0 };
        match answer {
            BatchAnswer::Done | BatchAnswer::Value(None) => {}
            BatchAnswer::Number(number) => view.number = *number,
            BatchAnswer::Outcome(holds) => view.number = i64::from(*holds),
            BatchAnswer::Value(Some(value)) => (view.data, view.len) = (value.as_ptr(), value.len()),
            BatchAnswer::Failed(error) => {
                view.status = status_of(error.kind());
                (view.data, view.len) = (message.as_ptr(), message.len());
            }
        }
        Some(view)
    }
}

/// The answer to one request of a batch. `data` is lent until the answers are filled again or freed, or until
/// the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_answer {
    /// Set it to `sizeof(rdzv_answer)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// How it ended.
    pub status: rdzv_status,
    /// add: the sum; queue_len and delete_prefix: the count; check and delete_key: 1 or 0.
    pub number: i64,
    /// compare_set: what now stands there, NULL without a value; of a failure one sentence.
    pub data: *const u8,
    /// Its length in bytes.
    pub len: usize,
}

pub(crate) const ANSWER_FIRST_SIZE: usize = 32;

/// Counts one more of those that a request may have.
fn count(so_far: &mut u64) -> Result<(), Fault> {
    if *so_far >= KEYS_MAX {
        let message = format!("there are {KEYS_MAX} steps already, and that is the limit");
        return Err(Fault::new(RDZV_LIMIT_EXCEEDED, message));
    }
    *so_far += 1;
    Ok(())
}

/// A value as a step keeps it.
unsafe fn boxed(data: *const u8, len: usize, name: &str) -> Result<Box<[u8]>, Fault> {
    // SAFETY: passed on as it came.
    unsafe { bytes(data, len, name) }.map(Box::from)
}

/// One more test of a transaction.
unsafe fn require(
    txn: *mut rdzv_txn,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    test: impl FnOnce() -> Result<Test, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let (this, key) = (reference_mut(txn, "txn")?, bytes(key, key_len, "key")?);
            let test = test()?;
            count(&mut this.count)?;
            this.txn.require(key, test);
            Ok(())
        })
    }
}

/// One more write of a transaction.
unsafe fn write(
    txn: *mut rdzv_txn,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    step: impl FnOnce() -> Result<Step, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let (this, key) = (reference_mut(txn, "txn")?, bytes(key, key_len, "key")?);
            let step = step()?;
            count(&mut this.count)?;
            this.txn.push(this.branch, key, step);
            Ok(())
        })
    }
}

/// One more request of a batch.
unsafe fn request(
    batch: *mut rdzv_batch,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    step: impl FnOnce() -> Result<BatchStep, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let (this, key) = (reference_mut(batch, "batch")?, bytes(key, key_len, "key")?);
            let step = step()?;
            count(&mut this.count)?;
            this.batch.push(key, step);
            Ok(())
        })
    }
}

/// An empty transaction, yours until `rdzv_txn_free`. Never NULL: a process without memory is aborted.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_txn_new() -> *mut rdzv_txn {
    guard::quiet(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(rdzv_txn { txn: Txn::default(), branch: Branch::Then, count: 0 }))
    })
}

/// Frees a transaction. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_free(txn: *mut rdzv_txn) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(txn) };
}

/// Tests that the key has a value.
///
/// Errors of this and all tests and writes below: `RDZV_INVALID_ARGUMENT`; `RDZV_LIMIT_EXCEEDED` when there
/// are 131,072 of them already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_present(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Present)) }
}

/// Tests that the key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_absent(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Absent)) }
}

/// Tests that the key last changed at this revision of the store; 0 means that it has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_revision(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    revision: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Revision(revision))) }
}

/// Tests that this is the key's value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_value(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Value(boxed(value, value_len, "value")?))) }
}

/// From now on, writes are those that are done when a test does not hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_otherwise(txn: *mut rdzv_txn, error: *mut *mut rdzv_error) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            reference_mut(txn, "txn")?.branch = Branch::Otherwise;
            Ok(())
        })
    }
}

/// Stores a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_set(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        write(txn, (key, key_len), error, || Ok(Step::Set { value: boxed(value, value_len, "value")? }))
    }
}

/// Removes a key, if it is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_delete_key(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { write(txn, (key, key_len), error, || Ok(Step::Delete)) }
}

/// Removes all keys that begin with `prefix`, and queues too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_delete_prefix(
    txn: *mut rdzv_txn,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { write(txn, (prefix, prefix_len), error, || Ok(Step::DeletePrefix)) }
}

/// Adds to the decimal number under a key, as `rdzv_store_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_add(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    delta: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { write(txn, (key, key_len), error, || Ok(Step::Add { delta })) }
}

/// Adds bytes behind a value, which is created if missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_append(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        write(txn, (key, key_len), error, || Ok(Step::Append { value: boxed(value, value_len, "value")? }))
    }
}

/// Commits a transaction to a native store. Whether its tests held, 1 or 0, goes to `*holds`: with 0 the
/// writes behind `rdzv_txn_otherwise` were done. The store's revision behind it goes to `*revision`, which
/// may be NULL. Which test did not hold the server does not tell.
///
/// Errors besides those of `rdzv_store_end_session`: `RDZV_LIMIT_EXCEEDED`, `RDZV_INVALID_ARGUMENT` (a value
/// to add to is not a number), `RDZV_STALE_ROUND`: then nothing was done. When the server is gone, the time
/// is up or the call is cancelled after it was sent, it may have been done all the same, the whole of it; the
/// message tells whether it may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_commit(
    store: *const rdzv_store,
    txn: *const rdzv_txn,
    timeout_ms: i64,
    holds: *mut i32,
    revision: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, || {
            let client = native(reference(store, "store")?, Operation::Txn)?;
            let (txn, holds) = (reference(txn, "txn")?, out_pointer(holds, "holds")?);
            let done = client.commit(&txn.txn, timeout(timeout_ms)?).map_err(|error| {
                let key =
                    error.fault().map(|fault| client.name_of(&fault.text)).filter(|key| !key.is_empty());
                let keys: Vec<&[u8]> = key.iter().map(Vec::as_slice).collect();
                of_keys(native_fault(&error), &keys)
            })?;
            holds.put(i32::from(done.holds));
            if let Ok(revision) = out_pointer(revision, "revision") {
                revision.put(done.revision);
            }
            Ok(())
        })
    }
}

/// An empty batch, yours until `rdzv_batch_free`. Never NULL: a process without memory is aborted.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_batch_new() -> *mut rdzv_batch {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a batch. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_free(batch: *mut rdzv_batch) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(batch) };
}

/// Stores a value. Errors of this and the requests below: as of `rdzv_txn_require_present`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_set(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::Write(Step::Set { value: boxed(value, value_len, "value")? }))
        })
    }
}

/// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty; the answer is
/// what then stands there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_compare_set(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    expected: *const u8,
    expected_len: usize,
    desired: *const u8,
    desired_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        request(batch, (key, key_len), error, || {
            let expected = boxed(expected, expected_len, "expected")?;
            Ok(BatchStep::CompareSet { expected, desired: boxed(desired, desired_len, "desired")? })
        })
    }
}

/// Adds to the decimal number under a key; the answer is the sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_add(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    delta: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Write(Step::Add { delta }))) }
}

/// Asks whether the key is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_check(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Check)) }
}

/// Removes a key; the answer is whether it was there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_delete_key(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Write(Step::Delete))) }
}

/// Removes all keys that begin with `prefix`, and queues too; the answer is how many keys that were.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_delete_prefix(
    batch: *mut rdzv_batch,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { request(batch, (prefix, prefix_len), error, || Ok(BatchStep::Write(Step::DeletePrefix))) }
}

/// Adds bytes behind a value, which is created if missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_append(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::Write(Step::Append { value: boxed(value, value_len, "value")? }))
        })
    }
}

/// Puts an item at the end of a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_queue_push(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    item: *const u8,
    item_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::QueuePush { item: boxed(item, item_len, "item")? })
        })
    }
}

/// Counts the items of a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_queue_len(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on as they came.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::QueueLen)) }
}

/// No answers yet; yours until `rdzv_answers_free`. Never NULL: a process without memory is aborted.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_answers_new() -> *mut rdzv_answers {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees answers. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_free(answers: *mut rdzv_answers) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(answers) };
}

/// How many answers there are. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_count(answers: *const rdzv_answers) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(answers, 0, |answers| answers.answers.count()) }
}

/// Fills `*out`, of which `struct_size` must be set, with the answer at `index` (from 0).
///
/// Errors: `RDZV_INVALID_ARGUMENT` beyond the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_get(
    answers: *const rdzv_answers,
    index: usize,
    out: *mut rdzv_answer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let answers = reference(answers, "answers")?;
            let given = sized::given_size(out, ANSWER_FIRST_SIZE, "out")?;
            let view = answers.answers.view(index);
            sized::put(out, given, &view.ok_or_else(|| invalid("there is no answer of this index"))?);
            Ok(())
        })
    }
}

/// Sends a batch to a native store; the answers, in the order of the requests, replace those in `answers`.
///
/// Errors: those of `rdzv_store_end_session`. What happens to one request is in its answer. When the server
/// is gone, the time is up or the call is cancelled after it was sent, the batch may have been carried out all
/// the same, the whole of it; the message tells whether it may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_batch(
    store: *const rdzv_store,
    batch: *const rdzv_batch,
    timeout_ms: i64,
    answers: *mut rdzv_answers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, || {
            let client = native(reference(store, "store")?, Operation::Batch)?;
            let (batch, answers) = (reference(batch, "batch")?, reference_mut(answers, "answers")?);
            let done = client.batch(&batch.batch, timeout(timeout_ms)?);
            answers.answers = Answers::new(done.map_err(|error| native_fault(&error))?);
            Ok(())
        })
    }
}
