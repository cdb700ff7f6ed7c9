//! Transactions and batches: several requests in one step of the server.

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

/// Transaction: tests of keys, writes that the server applies atomically if all tests hold, and other
/// writes that it applies atomically otherwise. Create one, add tests and writes, and commit it as often as
/// needed; it copies its arguments. Keys are relative to the store that it is committed to. One thread at a
/// time.
#[derive(Debug)]
pub struct rdzv_txn {
    pub(crate) txn: Txn,
    branch: Branch,
    count: u64,
}

/// Requests that the server executes in order in one step and answers separately; one that fails does not
/// stop the others. Create one, add requests, and send it as often as needed; it copies its arguments. One
/// thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_batch {
    pub(crate) batch: Batch,
    count: u64,
}

/// Answers to a batch. Reusable, like `rdzv_buffer`. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_answers {
    answers: Answers,
}

/// Answers, each with the message of its failure or an empty string.
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

    /// Returns the answer at `index` as a C struct.
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

/// Answer to one request of a batch. `data` is valid until the answers are refilled or freed, or, for an
/// answer of a loop, until the next call on the loop.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_answer {
    /// Set this to `sizeof(rdzv_answer)` before the call; on return it is the number of bytes filled.
    pub struct_size: u32,
    /// Status of the request.
    pub status: rdzv_status,
    /// add: the sum; queue_len and delete_prefix: the count; check and delete_key: 1 or 0.
    pub number: i64,
    /// compare_set: the value afterwards, NULL if there is none; failed request: the error message.
    pub data: *const u8,
    /// Length of `data` in bytes.
    pub len: usize,
}

pub(crate) const ANSWER_FIRST_SIZE: usize = 32;

/// Counts one more test, write or request; fails at the limit.
fn count(so_far: &mut u64) -> Result<(), Fault> {
    if *so_far >= KEYS_MAX {
        let message = format!("the limit of {KEYS_MAX} tests, writes or requests is reached");
        return Err(Fault::new(RDZV_LIMIT_EXCEEDED, message));
    }
    *so_far += 1;
    Ok(())
}

/// Copies a value for a step.
unsafe fn boxed(data: *const u8, len: usize, name: &str) -> Result<Box<[u8]>, Fault> {
    // SAFETY: passed on unchanged.
    unsafe { bytes(data, len, name) }.map(Box::from)
}

/// Adds a test to a transaction.
unsafe fn require(
    txn: *mut rdzv_txn,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    test: impl Fn() -> Result<Test, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let (this, key) = (reference_mut(txn, "txn")?, bytes(key, key_len, "key")?);
            let test = test()?;
            count(&mut this.count)?;
            this.txn.require(key, test);
            Ok(())
        })
    }
}

/// Adds a write to a transaction.
unsafe fn write(
    txn: *mut rdzv_txn,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    step: impl Fn() -> Result<Step, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let (this, key) = (reference_mut(txn, "txn")?, bytes(key, key_len, "key")?);
            let step = step()?;
            count(&mut this.count)?;
            this.txn.push(this.branch, key, step);
            Ok(())
        })
    }
}

/// Adds a request to a batch.
unsafe fn request(
    batch: *mut rdzv_batch,
    (key, key_len): (*const u8, usize),
    error: *mut *mut rdzv_error,
    step: impl Fn() -> Result<BatchStep, Fault>,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let (this, key) = (reference_mut(batch, "batch")?, bytes(key, key_len, "key")?);
            let step = step()?;
            count(&mut this.count)?;
            this.batch.push(key, step);
            Ok(())
        })
    }
}

/// Creates an empty transaction; the caller frees it with `rdzv_txn_free`. Never NULL: the process is
/// aborted if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_txn_new() -> *mut rdzv_txn {
    guard::quiet(std::ptr::null_mut(), || {
        Box::into_raw(Box::new(rdzv_txn { txn: Txn::default(), branch: Branch::Then, count: 0 }))
    })
}

/// Frees a transaction. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_free(txn: *mut rdzv_txn) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(txn) };
}

/// Adds the test that the key has a value.
///
/// Errors of this and all tests and writes below: `RDZV_INVALID_ARGUMENT`; `RDZV_LIMIT_EXCEEDED` if
/// 131,072 of them were added already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_present(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Present)) }
}

/// Adds the test that the key has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_absent(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Absent)) }
}

/// Adds the test that the key last changed at this revision of the store; 0 means that it has no value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_revision(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    revision: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Revision(revision))) }
}

/// Adds the test that the key has this value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_require_value(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { require(txn, (key, key_len), error, || Ok(Test::Value(boxed(value, value_len, "value")?))) }
}

/// Starts the second branch: writes added from now on are applied if a test does not hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_otherwise(txn: *mut rdzv_txn, error: *mut *mut rdzv_error) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(txn, "txn")?.branch = Branch::Otherwise;
            Ok(())
        })
    }
}

/// Adds a write that stores a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_set(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        write(txn, (key, key_len), error, || Ok(Step::Set { value: boxed(value, value_len, "value")? }))
    }
}

/// Adds a write that deletes a key if it exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_delete_key(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { write(txn, (key, key_len), error, || Ok(Step::Delete)) }
}

/// Adds a write that deletes all keys that start with `prefix`, including queues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_delete_prefix(
    txn: *mut rdzv_txn,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { write(txn, (prefix, prefix_len), error, || Ok(Step::DeletePrefix)) }
}

/// Adds a write that adds to the decimal number under a key, as `rdzv_store_add` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_add(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    delta: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { write(txn, (key, key_len), error, || Ok(Step::Add { delta })) }
}

/// Adds a write that appends bytes to a value, which is created if missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_txn_append(
    txn: *mut rdzv_txn,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        write(txn, (key, key_len), error, || Ok(Step::Append { value: boxed(value, value_len, "value")? }))
    }
}

/// Commits a transaction to a native store. `*holds` is set to 1 if all tests held; with 0, the writes
/// added after `rdzv_txn_otherwise` were applied. The store's revision after the commit goes to
/// `*revision`, which may be NULL. The server does not report which test failed.
///
/// Errors besides those of `rdzv_store_end_session`: `RDZV_LIMIT_EXCEEDED`, `RDZV_INVALID_ARGUMENT` (a
/// value to add to is not a number), `RDZV_STALE_ROUND`; after these, no write was applied. If the
/// connection fails, the timeout passes or the call is cancelled after the request was sent, the whole
/// transaction may have been applied; the message says whether that is possible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_commit(
    store: *const rdzv_store,
    txn: *const rdzv_txn,
    timeout_ms: i64,
    holds: *mut i32,
    revision: *mut u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, &mut || {
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

/// Creates an empty batch; the caller frees it with `rdzv_batch_free`. Never NULL: the process is aborted
/// if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_batch_new() -> *mut rdzv_batch {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a batch. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_free(batch: *mut rdzv_batch) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(batch) };
}

/// Adds a request that stores a value. Errors of this and the requests below: as for
/// `rdzv_txn_require_present`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_set(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::Write(Step::Set { value: boxed(value, value_len, "value")? }))
        })
    }
}

/// Adds a request that stores `desired` if the value is `expected`, or if there is no value and `expected`
/// is empty; the answer is the value afterwards.
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
    // SAFETY: passed on unchanged.
    unsafe {
        request(batch, (key, key_len), error, || {
            let expected = boxed(expected, expected_len, "expected")?;
            Ok(BatchStep::CompareSet { expected, desired: boxed(desired, desired_len, "desired")? })
        })
    }
}

/// Adds a request that adds to the decimal number under a key; the answer is the sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_add(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    delta: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Write(Step::Add { delta }))) }
}

/// Adds a request that checks whether the key exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_check(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Check)) }
}

/// Adds a request that deletes a key; the answer is 1 if it existed, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_delete_key(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::Write(Step::Delete))) }
}

/// Adds a request that deletes all keys that start with `prefix`, including queues; the answer is the
/// number of deleted keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_delete_prefix(
    batch: *mut rdzv_batch,
    prefix: *const u8,
    prefix_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { request(batch, (prefix, prefix_len), error, || Ok(BatchStep::Write(Step::DeletePrefix))) }
}

/// Adds a request that appends bytes to a value, which is created if missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_append(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::Write(Step::Append { value: boxed(value, value_len, "value")? }))
        })
    }
}

/// Adds a request that appends an item to a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_queue_push(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    item: *const u8,
    item_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe {
        request(batch, (key, key_len), error, || {
            Ok(BatchStep::QueuePush { item: boxed(item, item_len, "item")? })
        })
    }
}

/// Adds a request for the number of items in a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_batch_queue_len(
    batch: *mut rdzv_batch,
    key: *const u8,
    key_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: passed on unchanged.
    unsafe { request(batch, (key, key_len), error, || Ok(BatchStep::QueueLen)) }
}

/// Creates an empty set of answers; the caller frees it with `rdzv_answers_free`. Never NULL: the process
/// is aborted if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_answers_new() -> *mut rdzv_answers {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees answers. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_free(answers: *mut rdzv_answers) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(answers) };
}

/// Returns the number of answers; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_count(answers: *const rdzv_answers) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(answers, 0, |answers| answers.answers.count()) }
}

/// Fills `*out` with the answer at `index` (from 0). Set `out->struct_size` first.
///
/// Errors: `RDZV_INVALID_ARGUMENT` if `index` is out of range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_answers_get(
    answers: *const rdzv_answers,
    index: usize,
    out: *mut rdzv_answer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let answers = reference(answers, "answers")?;
            let given = sized::given_size(out, ANSWER_FIRST_SIZE, "out")?;
            let view = answers.answers.view(index);
            sized::put(out, given, &view.ok_or_else(|| invalid("there is no answer with this index"))?);
            Ok(())
        })
    }
}

/// Sends a batch to a native store. The answers, in the order of the requests, replace the content of
/// `answers`.
///
/// Errors: those of `rdzv_store_end_session`. The failure of a single request is in its answer. If the
/// connection fails, the timeout passes or the call is cancelled after the batch was sent, the whole batch
/// may have been executed; the message says whether that is possible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_batch(
    store: *const rdzv_store,
    batch: *const rdzv_batch,
    timeout_ms: i64,
    answers: *mut rdzv_answers,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(store.as_ref().map(|store| &store.poison), error, &mut || {
            let client = native(reference(store, "store")?, Operation::Batch)?;
            let (batch, answers) = (reference(batch, "batch")?, reference_mut(answers, "answers")?);
            let done = client.batch(&batch.batch, timeout(timeout_ms)?);
            answers.answers = Answers::new(done.map_err(|error| native_fault(&error))?);
            Ok(())
        })
    }
}
