//! Transactions and batches: requests that the server executes in one atomic step. Keys are without a scope; encoding
//! adds the scope of the store.

use super::Loss;
use super::session_driver::EncodedRequest;
use crate::error::{Failure, Operation, Phase};
use crate::limits::FrameLimits;
use crate::prelude::*;
use crate::store::op::{Key, Keys};
use crate::store::txn::{Compare, Condition, Write};
use crate::wire::native::{Batched, ClientFrame, List};

/// Condition on a key in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The key is set.
    Present,
    /// The key is absent.
    Absent,
    /// The key last changed at this revision of the store; 0 means that it is absent.
    Revision(u64),
    /// The key has this value.
    Value(Box<[u8]>),
}

/// One write of a transaction or a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum Step {
    /// Stores a value.
    Set { value: Box<[u8]> },
    /// Removes a key, if it is set.
    Delete,
    /// Removes all keys under a prefix.
    DeletePrefix,
    /// Adds to a number.
    Add { delta: i64 },
    /// Appends bytes to a value.
    Append { value: Box<[u8]> },
}

/// One request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum BatchStep {
    /// A write, as in a transaction.
    Write(Step),
    /// Stores a value if the present one is as expected.
    CompareSet { expected: Box<[u8]>, desired: Box<[u8]> },
    /// Checks whether the key is set.
    Check,
    /// Adds an item at the end of a queue.
    QueuePush { item: Box<[u8]> },
    /// Counts the items of a queue.
    QueueLen,
}

/// Keys and the requests on them.
type Steps<S> = Vec<(Box<[u8]>, S)>;

/// Branch of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// The writes that are applied if all tests hold.
    Then,
    /// The writes that are applied if not.
    Otherwise,
}

/// Transaction: tests, the writes if all of them hold, and the writes if not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    tests: Vec<(Box<[u8]>, Test)>,
    then: Steps<Step>,
    otherwise: Steps<Step>,
}

impl Txn {
    /// Adds a test.
    pub fn require(&mut self, key: &[u8], test: Test) {
        self.tests.push((key.into(), test));
    }

    /// Adds a write.
    pub fn push(&mut self, branch: Branch, key: &[u8], step: Step) {
        let steps = match branch {
            Branch::Then => &mut self.then,
            Branch::Otherwise => &mut self.otherwise,
        };
        steps.push((key.into(), step));
    }

    /// Returns an error for a key that is too long with `scope`.
    pub(super) fn check_keys(&self, scope: &[u8], limits: &FrameLimits) -> Result<(), (&[u8], Loss)> {
        let tests = self.tests.iter().map(|(key, _)| &**key);
        let writes = self.then.iter().chain(&self.otherwise).map(|(key, _)| &**key);
        check_keys(&mut tests.chain(writes), scope, limits)
    }

    /// Encodes the request for a store with this scope.
    pub(super) fn encode(&self, scope: &[u8], span: Duration) -> EncodedRequest {
        let compares: Vec<Compare<'_>> =
            self.tests.iter().map(|(key, test)| compare(Key::scoped(scope, key), test)).collect();
        let (then, otherwise) = (writes(scope, &self.then), writes(scope, &self.otherwise));
        let (then, otherwise) = (List::new(&then), List::new(&otherwise));
        let frame = ClientFrame::Txn { compares: List::new(&compares), then, otherwise };
        EncodedRequest::new(Operation::Txn, &frame, span)
    }
}

/// Requests that are executed in order in one step. Each succeeds or fails by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch(Steps<BatchStep>);

impl Batch {
    /// Adds a request.
    pub fn push(&mut self, key: &[u8], step: BatchStep) {
        self.0.push((key.into(), step));
    }

    /// Returns the keys of the requests, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|(key, _)| &**key)
    }

    /// Returns an error for a key that is too long with `scope`.
    pub(super) fn check_keys(&self, scope: &[u8], limits: &FrameLimits) -> Result<(), (&[u8], Loss)> {
        check_keys(&mut self.keys(), scope, limits)
    }

    /// Encodes the request for a store with this scope.
    pub(super) fn encode(&self, scope: &[u8], span: Duration) -> EncodedRequest {
        let steps = self.0.iter().map(|(name, step)| Batched(request(Key::scoped(scope, name), step)));
        let requests: Vec<Batched<ClientFrame<'_>>> = steps.collect();
        EncodedRequest::new(Operation::Batch, &ClientFrame::Batch { requests: List::new(&requests) }, span)
    }
}

pub(super) fn check_keys<'a>(
    keys: &mut dyn Iterator<Item = &'a [u8]>,
    scope: &[u8],
    limits: &FrameLimits,
) -> Result<(), (&'a [u8], Loss)> {
    let mut all_bytes = 0;
    for (key, count) in keys.zip(1..) {
        let key_fits = limits.check_key(scope.len() + key.len(), &mut all_bytes);
        let fits = key_fits.and_then(|()| limits.check_count(count));
        fits.map_err(|limit| (key, Loss::of(Failure::limit(Phase::Sending, limit))))?;
    }
    Ok(())
}

fn compare<'a>(key: Key<'a>, test: &'a Test) -> Compare<'a> {
    let condition = match test {
        Test::Present => Condition::Exists,
        Test::Absent => Condition::Absent,
        Test::Revision(revision) => Condition::Revision(*revision),
        Test::Value(value) => Condition::Value(value),
    };
    Compare { key, condition }
}

fn writes<'a>(scope: &'a [u8], steps: &'a Steps<Step>) -> Vec<Write<'a>> {
    let write = |(name, step): &'a (Box<[u8]>, Step)| {
        let key = Key::scoped(scope, name);
        match step {
            Step::Set { value } => Write::Set { key, value },
            Step::Delete => Write::Delete { key },
            Step::DeletePrefix => Write::DeletePrefix { prefix: key },
            Step::Add { delta } => Write::Add { key, delta: *delta },
            Step::Append { value } => Write::Append { key, value },
        }
    };
    steps.iter().map(write).collect()
}

const fn request<'a>(key: Key<'a>, step: &'a BatchStep) -> ClientFrame<'a> {
    match step {
        BatchStep::Write(step) => write_request(key, step),
        BatchStep::CompareSet { expected, desired } => ClientFrame::CompareSet { key, expected, desired },
        BatchStep::Check => ClientFrame::Check { keys: Keys::one(key) },
        BatchStep::QueuePush { item } => ClientFrame::QueuePush { key, value: item },
        BatchStep::QueueLen => ClientFrame::QueueLen { key },
    }
}

const fn write_request<'a>(key: Key<'a>, step: &'a Step) -> ClientFrame<'a> {
    match step {
        Step::Set { value } => ClientFrame::Set { key, value },
        Step::Delete => ClientFrame::Delete { key },
        Step::DeletePrefix => ClientFrame::DeletePrefix { prefix: key },
        Step::Add { delta } => ClientFrame::Add { key, delta: *delta },
        Step::Append { value } => ClientFrame::Append { key, value },
    }
}
