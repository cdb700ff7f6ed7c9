//! Results of operations.

use crate::native_store::native_fault;
use crate::op_kind::OpKind;
use crate::prelude::*;
use rendezvous_core::driver::native_client::{
    BatchAnswer, Joined, MemberInfo, NativeResponse, RunInfo, Versioned,
};
use rendezvous_core::driver::take::Take;
use rendezvous_core::store::call::Outcome;

/// Result of an operation. Fields that its request does not have are 0 or NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_result {
    /// Set to `sizeof(rdzv_result)` before the call. The library sets it to the number of bytes it filled.
    pub struct_size: u32,
    /// Status of the operation.
    pub status: rdzv_status,
    /// Details if `status` is not `RDZV_OK`, else NULL. Do not free it.
    pub error: *const rdzv_error,
    /// get and queue_pop: the value; compare_set: the value afterwards, NULL if a batch found none; an
    /// RPC call: the payload of the response.
    pub value: *const u8,
    /// Length of `value` in bytes.
    pub value_len: usize,
    /// multi_get and read: the values in the order of the keys; list_keys and list_page: the keys.
    pub items: *const rdzv_bytes,
    /// Number of items.
    pub item_count: usize,
    /// read: for each item the revision of its last change, 0 if the key has no value. NULL otherwise.
    pub revisions: *const u64,
    /// add: the sum.
    pub sum: i64,
    /// num_keys and queue_len: the number of keys or items.
    pub count: i64,
    /// delete_key, delete_prefix and revoke_lease: number of keys that were deleted.
    pub deleted: i64,
    /// delete_prefix: number of keys that were not deleted because they belong to rounds that are over.
    pub left: i64,
    /// check: 1 if every key exists.
    pub ready: i32,
    /// list_page: 1 if more keys follow.
    pub more: i32,
    /// A transaction: 1 if all its tests held.
    pub holds: i32,
    /// cancel_named_barrier: 1 if any participant was waiting.
    pub was_waiting: i32,
    /// A transaction, and the start of a watch: revision of the store.
    pub revision: u64,
    /// named_barrier: the generation that was released or, if it failed, the one that was not.
    pub generation: u64,
    /// grant_lease: number of the lease.
    pub lease: u64,
    /// A batch: number of results for `rdzv_op_get_part`.
    pub part_count: usize,
}
growing!(rdzv_result: 136);

/// Successful end of an operation.
pub(crate) enum Answer {
    /// Outcome of a request to any kind of store. The values are in the result already.
    Store(Outcome),
    /// Response of a native server. A barrier that failed is a failure instead.
    Native(NativeResponse),
    /// Generation of a named barrier that was released.
    Released(u64),
    /// Payload of the response to an RPC call.
    #[cfg_attr(not(feature = "rpc"), expect(dead_code, reason = "calls need RPC"))]
    Call(Vec<u8>),
}

/// Part of a result that only nodes have.
#[derive(Debug)]
pub(crate) enum NodeResult {
    Joined(Joined),
    RunInfo(RunInfo),
    Members(Vec<MemberInfo>),
}

/// Values of a response. They keep their memory for the next response.
#[derive(Debug, Default)]
pub(crate) struct Values {
    values: Vec<Vec<u8>>,
    used: usize,
}

/// Maximum memory in bytes that is reserved before a value's bytes arrive: the length is a claim of the
/// peer.
const PREALLOCATION_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of values whose memory is kept.
const KEPT_VALUES_MAX: usize = 64;
/// Maximum capacity in bytes of a value whose memory is kept.
const KEPT_BYTES_MAX: usize = 1 << 20;

impl Values {
    fn clear(&mut self) {
        self.values.truncate(KEPT_VALUES_MAX);
        self.values.retain(|value| value.capacity() <= KEPT_BYTES_MAX);
        self.used = 0;
    }

    fn used(&self) -> &[Vec<u8>] {
        &self.values[..self.used]
    }

    pub(crate) fn replace(&mut self, values: Vec<Vec<u8>>) {
        (self.used, self.values) = (values.len(), values);
    }
}

impl Take for Values {
    fn count(&mut self, _count: u64) {}

    fn start(&mut self, bytes: u64) {
        if self.used == self.values.len() {
            self.values.push(Vec::new());
        }
        let value = &mut self.values[self.used];
        value.clear();
        value.reserve(usize::try_from(bytes.min(PREALLOCATION_BYTES_MAX)).unwrap_or_default());
        self.used += 1;
    }

    fn chunk(&mut self, bytes: &[u8]) {
        if let Some(value) = self.used.checked_sub(1).map(|last| &mut self.values[last]) {
            value.extend_from_slice(bytes);
        }
    }

    fn reset(&mut self) {
        self.used = 0;
    }
}

/// Result of an operation and all that it points to.
#[derive(Debug, Default)]
pub(crate) struct OpResult {
    /// Result for C, which points into the other fields.
    view: Option<rdzv_result>,
    pub(crate) values: Values,
    items: Vec<rdzv_bytes>,
    revisions: Vec<u64>,
    error: Option<Box<rdzv_error>>,
    parts: Vec<OpResult>,
    pub(crate) node: Option<NodeResult>,
}

impl OpResult {
    pub(crate) fn clear(&mut self) {
        (self.view, self.error, self.node) = (None, None, None);
        self.values.clear();
        self.items.clear();
        self.revisions.clear();
        self.parts.clear();
    }

    pub(crate) const fn view(&self) -> Option<rdzv_result> {
        self.view
    }

    pub(crate) fn part(&self, index: usize) -> Option<rdzv_result> {
        self.parts.get(index)?.view()
    }

    /// Stores the end of an operation of this kind; `kinds` are the requests of a batch. Returns the
    /// failure.
    pub(crate) fn put(
        &mut self,
        kind: OpKind,
        kinds: &[OpKind],
        answer: Result<Answer, Fault>,
    ) -> Result<(), Fault> {
        let mut view = rdzv_result::default();
        let ended = match answer {
            Ok(answer) => {
                self.keep(&mut view, kind, kinds, answer);
                Ok(())
            }
            Err(fault) => {
                view.generation = fault.generation;
                let error = self.error.insert(Box::new(rdzv_error::new(fault.clone())));
                (view.status, view.error) = (error.status(), &raw const **error);
                Err(fault)
            }
        };
        self.view = Some(view);
        ended
    }

    fn keep(&mut self, view: &mut rdzv_result, kind: OpKind, kinds: &[OpKind], answer: Answer) {
        match answer {
            Answer::Store(Outcome::Number(number)) => *number_of(view, kind) = number,
            Answer::Store(Outcome::Ready) => view.ready = 1,
            Answer::Store(Outcome::Value) => self.show_value(view),
            Answer::Store(Outcome::Values(_)) => self.show_items(view),
            // They have no result, or are failures.
            Answer::Store(_) => {}
            Answer::Released(generation) => view.generation = generation,
            Answer::Call(payload) => {
                self.values.replace(vec![payload]);
                self.show_value(view);
            }
            Answer::Native(response) => self.keep_native(view, kind, kinds, response),
        }
    }

    fn keep_native(
        &mut self,
        view: &mut rdzv_result,
        kind: OpKind,
        kinds: &[OpKind],
        response: NativeResponse,
    ) {
        match response {
            NativeResponse::Done | NativeResponse::Barrier(_) => {}
            NativeResponse::Removed(removed) => {
                let number = |keys| i64::try_from(keys).unwrap_or(i64::MAX);
                (view.deleted, view.left) = (number(removed.removed), number(removed.left));
            }
            NativeResponse::Values(found) => {
                let split = |Versioned { revision, value }| (revision, value);
                let values: Vec<Vec<u8>>;
                (self.revisions, values) = found.into_iter().map(split).unzip();
                self.values.replace(values);
                self.show_items(view);
                view.revisions = self.revisions.as_ptr();
            }
            NativeResponse::Page(page) => {
                self.values.replace(page.keys);
                self.show_items(view);
                view.more = i32::from(page.more);
            }
            NativeResponse::Txn(done) => (view.holds, view.revision) = (done.holds.into(), done.revision),
            NativeResponse::Batch(answers) => {
                self.parts.extend(answers.into_iter().zip(kinds).map(|(answer, &kind)| part(kind, answer)));
                view.part_count = self.parts.len();
            }
            NativeResponse::Outcome(was_waiting) => view.was_waiting = was_waiting.into(),
            NativeResponse::Watching(revision) => view.revision = revision,
            NativeResponse::Number(number) => match kind {
                OpKind::GrantLease(_) => view.lease = number.unsigned_abs(),
                kind => *number_of(view, kind) = number,
            },
            NativeResponse::Joined(joined) => self.node = Some(NodeResult::Joined(joined)),
            NativeResponse::RunInfo(info) => self.node = Some(NodeResult::RunInfo(info)),
            NativeResponse::Members(members) => self.node = Some(NodeResult::Members(members)),
            // No operation of C asks for them.
            NativeResponse::Sessions(..) => {}
        }
    }

    fn show_value(&self, view: &mut rdzv_result) {
        if let [value, ..] = self.values.used() {
            (view.value, view.value_len) = (value.as_ptr(), value.len());
        }
    }

    fn show_items(&mut self, view: &mut rdzv_result) {
        self.items = rdzv_bytes::list(self.values.used());
        (view.items, view.item_count) = (self.items.as_ptr(), self.items.len());
    }
}

/// Returns the field for the number that a request of this kind returns.
fn number_of(view: &mut rdzv_result, kind: OpKind) -> &mut i64 {
    match kind {
        OpKind::Add(_) => &mut view.sum,
        OpKind::DeleteKey | OpKind::DeletePrefix | OpKind::RevokeLease(_) => &mut view.deleted,
        _ => &mut view.count,
    }
}

/// Returns the result of one request of a batch.
fn part(kind: OpKind, answer: BatchAnswer) -> OpResult {
    let mut result = OpResult::default();
    let answer = match answer {
        BatchAnswer::Done | BatchAnswer::Value(None) => Ok(Outcome::Applied),
        BatchAnswer::Number(number) => Ok(Outcome::Number(number)),
        BatchAnswer::Outcome(holds) if kind == OpKind::Check => {
            Ok(if holds { Outcome::Ready } else { Outcome::NotReady })
        }
        BatchAnswer::Outcome(holds) => Ok(Outcome::Number(holds.into())),
        BatchAnswer::Value(Some(value)) => {
            result.values.replace(vec![value]);
            Ok(Outcome::Value)
        }
        BatchAnswer::Failed(error) => Err(native_fault(&error)),
    };
    // The failure is in the result.
    let _ = result.put(kind, &[], answer.map(Answer::Store));
    result
}
