//! Failures of calls, without their texts.

use rendezvous_core::error::{Failure, Operation};
use rendezvous_core::store::op::Key;

#[derive(Debug)]
pub struct CallError(pub Failure);

impl CallError {
    pub fn new(_: Operation, _: (Option<Key<'_>>, usize), _: &str, failure: Failure) -> Self {
        Self(failure)
    }
}

#[derive(Debug)]
pub struct Refusal {
    pub failure: Failure,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure }
    }
}
