//! Steps of the membership machines as calls of a store.

use crate::driver::call_error::CallError;
use crate::driver::clock::Clock;
use crate::driver::store::{Store, Timeout};
use crate::error::ErrorKind;
use crate::rpc::membership::{Reply, StoreStep};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

/// Carries out a step, whose times are of this clock.
pub(super) fn carry_out(store: &Store, clock: Clock, step: &StoreStep) -> Reply {
    try_step(store, clock, step).unwrap_or_else(|error| Reply::Failed(error.to_string().into()))
}

fn try_step(store: &Store, clock: Clock, step: &StoreStep) -> Result<Reply, CallError> {
    Ok(match step {
        StoreStep::CompareSet { key, expected, desired } => {
            let mut value = Vec::new();
            let (key, expected, desired) = (key.as_bytes(), expected.as_bytes(), desired.as_bytes());
            store.compare_set(key, expected, desired, &mut value, Timeout::Default)?;
            Reply::Value(value.into())
        }
        StoreStep::Set { key, value } => {
            store.set(key.as_bytes(), value, Timeout::Default)?;
            Reply::Done
        }
        StoreStep::Get { key } => Reply::Value(value_if_there(store, key)?),
        StoreStep::Peek { keys } => Reply::Values(values_if_there(store, keys)?),
        StoreStep::Delete { keys } => {
            for key in keys {
                match store.delete(key.as_bytes(), Timeout::Default) {
                    Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
                    _ => {}
                }
            }
            Reply::Done
        }
        StoreStep::Add { key, delta } => {
            Reply::Number(store.add(key.as_bytes(), *delta, Timeout::Default)?)
        }
        StoreStep::Wait { key, until } => {
            let left = Timeout::After(until.since(clock.now()));
            match store.wait(&[key.as_bytes()], left) {
                Ok(()) => Reply::Released,
                // Who is cancelled has waited long enough, and hears from elsewhere what is to be done.
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Cancelled) => {
                    Reply::TimedOut
                }
                Err(error) => return Err(error),
            }
        }
    })
}

fn value_if_there(store: &Store, key: &str) -> Result<Box<[u8]>, CallError> {
    match store.get_owned(key.as_bytes(), Timeout::Once) {
        Ok(value) => Ok(value.into()),
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(Box::default()),
        Err(error) => Err(error),
    }
}

/// All at once where all are there, as they mostly are; otherwise one after the other.
fn values_if_there(store: &Store, keys: &[Box<str>]) -> Result<Vec<Box<[u8]>>, CallError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    match store.multi_get(&names, Timeout::Once) {
        Ok(values) => Ok(values.into_iter().map(Vec::into_boxed_slice).collect()),
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unsupported) => {
            keys.iter().map(|key| value_if_there(store, key)).collect()
        }
        Err(error) => Err(error),
    }
}
