//! What the server does in one turn, and what a program puts together before: transactions and batches. Keys stand in
//! them as their users know them; what is before them comes with the store that they are for.

use super::Loss;
use super::calls::check;
use super::session_driver::EncodedRequest;
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::store::call::{Call, WaitMode};
use crate::store::op::{Key, Keys, Request};
use crate::store::txn::{Compare, Condition, Write};
use crate::wire::native::{Batched, ClientFrame, List};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What must hold for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It has a value.
    Present,
    /// It has none.
    Absent,
    /// It last changed at this revision of the store; 0 means that it has no value.
    Revision(u64),
    /// This is its value.
    Value(Box<[u8]>),
}

/// One write, in a transaction or a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the requests of the same name")]
pub enum Step {
    /// Stores a value.
    Set { value: Box<[u8]> },
    /// Removes a key, if it is there.
    Delete,
    /// Removes all keys beneath a prefix.
    DeletePrefix,
    /// Adds to a number.
    Add { delta: i64 },
    /// Adds bytes behind a value.
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
    /// Asks whether the key is there.
    Check,
    /// Puts an item at the end of a queue.
    QueuePush { item: Box<[u8]> },
    /// Counts the items of a queue.
    QueueLen,
}

impl From<Step> for BatchStep {
    fn from(step: Step) -> Self {
        Self::Write(step)
    }
}

/// Keys and what is to be done with them.
type Steps<S> = Vec<(Box<[u8]>, S)>;

/// Which writes of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// Those that are done if all tests hold.
    Then,
    /// Those that are done if not.
    Otherwise,
}

/// Tests, and what is to be done when all of them hold, and when not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    tests: Vec<(Box<[u8]>, Test)>,
    then: Steps<Step>,
    otherwise: Steps<Step>,
}

impl Txn {
    /// One more test.
    pub fn require(&mut self, key: &[u8], test: Test) {
        self.tests.push((key.into(), test));
    }

    /// One more write.
    pub fn push(&mut self, branch: Branch, key: &[u8], step: Step) {
        let steps = match branch {
            Branch::Then => &mut self.then,
            Branch::Otherwise => &mut self.otherwise,
        };
        steps.push((key.into(), step));
    }

    /// Finds a key that is too long beneath `scope`.
    pub(in crate::driver) fn check_keys(
        &self,
        scope: &[u8],
        limits: &FrameLimits,
    ) -> Result<(), (&[u8], Loss)> {
        let tests = self.tests.iter().map(|(key, _)| &**key);
        let writes = self.then.iter().chain(&self.otherwise).map(|(key, _)| &**key);
        check_keys(&mut tests.chain(writes), scope, limits)
    }

    /// The request, for a store whose keys stand beneath `scope`.
    pub(in crate::driver) fn encode(&self, scope: &[u8]) -> EncodedRequest {
        let compares: Vec<Compare<'_>> =
            self.tests.iter().map(|(key, test)| compare(Key::scoped(scope, key), test)).collect();
        let (then, otherwise) = (scoped_steps(scope, &self.then), scoped_steps(scope, &self.otherwise));
        let (then, otherwise) = (writes(&then), writes(&otherwise));
        let (then, otherwise) = (List::new(&then), List::new(&otherwise));
        EncodedRequest::new(
            Operation::Txn,
            &ClientFrame::Txn { compares: List::new(&compares), then, otherwise },
        )
    }
}

/// Requests that are carried out in order in one turn, each for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch(Steps<BatchStep>);

impl Batch {
    /// One more request.
    pub fn push(&mut self, key: &[u8], step: impl Into<BatchStep>) {
        self.0.push((key.into(), step.into()));
    }

    /// The key of a request.
    pub(in crate::driver) fn key(&self, index: usize) -> &[u8] {
        self.0.get(index).map_or(b"", |(key, _)| key)
    }

    /// Finds a key that is too long beneath `scope`.
    pub(in crate::driver) fn check_keys(
        &self,
        scope: &[u8],
        limits: &FrameLimits,
    ) -> Result<(), (&[u8], Loss)> {
        check_keys(&mut self.0.iter().map(|(key, _)| &**key), scope, limits)
    }

    /// The request, for a store whose keys stand beneath `scope`.
    pub(in crate::driver) fn encode(&self, scope: &[u8]) -> EncodedRequest {
        let steps = scoped_steps(scope, &self.0);
        let names: Vec<[&[u8]; 1]> = steps.iter().map(|(key, _)| [&**key]).collect();
        let requests: Vec<Batched<ClientFrame<'_>>> =
            steps.iter().zip(&names).map(|(step, name)| Batched(request(step, name))).collect();
        EncodedRequest::new(Operation::Batch, &ClientFrame::Batch { requests: List::new(&requests) })
    }
}

type Scoped<'a, S> = Steps<&'a S>;

fn check_keys<'a>(
    keys: &mut dyn Iterator<Item = &'a [u8]>,
    scope: &[u8],
    limits: &FrameLimits,
) -> Result<(), (&'a [u8], Loss)> {
    for key in keys {
        let look = Call::Store(Request::Get { key: Key::scoped(scope, key) }, WaitMode::Once);
        check(&look, limits).map_err(|loss| (key, loss))?;
    }
    Ok(())
}

/// The steps with whole keys.
fn scoped_steps<'a, S>(scope: &[u8], steps: &'a Steps<S>) -> Scoped<'a, S> {
    steps.iter().map(|(key, step)| ([scope, key].concat().into(), step)).collect()
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

fn writes<'a>(steps: &'a Scoped<'_, Step>) -> Vec<Write<'a>> {
    let write = |(whole, step): &'a (Box<[u8]>, &Step)| {
        let key = Key::raw(whole);
        match step {
            Step::Set { value } => Write::Set { key, value },
            Step::Delete => Write::Delete { key },
            Step::DeletePrefix => Write::DeletePrefix { prefix: whole },
            Step::Add { delta } => Write::Add { key, delta: *delta },
            Step::Append { value } => Write::Append { key, value },
        }
    };
    steps.iter().map(write).collect()
}

fn request<'a>((whole, step): &'a (Box<[u8]>, &BatchStep), name: &'a [&'a [u8]; 1]) -> ClientFrame<'a> {
    let key = Key::raw(whole);
    match step {
        BatchStep::Write(step) => write_request(key, step),
        BatchStep::CompareSet { expected, desired } => ClientFrame::CompareSet { key, expected, desired },
        BatchStep::Check => ClientFrame::Check { keys: Keys::scoped(b"", name) },
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
