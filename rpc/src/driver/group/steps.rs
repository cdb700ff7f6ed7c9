//! Execution of membership steps as store operations.

use crate::membership::{Reply, StoreStep};
use rendezvous_core::driver::native_client::{Branch, Lease, Step, Test, Txn};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::{ErrorKind, Operation};
use rendezvous_core::limits::NATIVE_LIST_MAX;

/// Store for the steps of one worker. When its session has ended, it opens another connection.
#[derive(Debug)]
pub(super) struct StepStore {
    current: Mutex<Arc<Store>>,
    /// Lease of the values that [`StoreStep::SetForSession`] has set over this connection.
    lease: Mutex<Option<(Arc<Store>, Lease)>>,
    /// Ends the steps and the opening of further connections.
    token: CancelToken,
}

impl StepStore {
    /// Makes a store for steps that `token` ends, like the calls of `store`.
    pub(super) fn new(store: Arc<Store>, token: CancelToken) -> Self {
        Self { current: Mutex::new(store), lease: Mutex::default(), token }
    }

    /// Returns the current connection to the store.
    pub(super) fn current(&self) -> Arc<Store> {
        Arc::clone(&self.current.locked())
    }

    /// Cancels the pending step and all later ones, and opens no further connection.
    pub(super) fn cancel(&self) {
        self.token.cancel();
    }

    /// Executes a step, whose times are of this clock. A step that may have been executed before the session ended is
    /// repeated, unless a repetition would change the result.
    pub(super) fn execute(&self, clock: Clock, step: &StoreStep) -> Reply {
        let store = self.current();
        let store = self.renewed(&store).unwrap_or(store);
        if let StoreStep::SetForSession { key, .. } = step {
            self.bind(&store, key.as_bytes());
        }
        match try_step(&store, clock, step) {
            Err(error) => {
                let again = Some(&store).filter(|_| !matches!(step, StoreStep::Add { .. }));
                match again.and_then(|store| self.renewed(store)) {
                    Some(renewed) => execute(&renewed, clock, step),
                    None => failed(&error),
                }
            }
            Ok(reply) => reply,
        }
    }

    /// Binds this key to the session. Without a lease the value stays, as in a store without sessions.
    fn bind(&self, store: &Arc<Store>, key: &[u8]) {
        let mut kept = self.lease.locked();
        if !matches!(&*kept, Some((of, _)) if Arc::ptr_eq(of, store)) {
            let native = store.native(Operation::LeaseGrant);
            let lease = native.ok().and_then(|client| client.lease(Duration::ZERO, Timeout::Default).ok());
            *kept = lease.map(|lease| (Arc::clone(store), lease));
        }
        if let Some((_, lease)) = &*kept {
            lease.attach(&[key], Timeout::Default).ok();
        }
    }

    /// Opens another connection, if the session of this one has ended.
    fn renewed(&self, store: &Store) -> Option<Arc<Store>> {
        let has_ended = store.native(Operation::Connect).is_ok_and(|client| client.is_over());
        if !has_ended {
            return None;
        }
        let renewed = Arc::new(store.duplicate().ok()?.with_token(&self.token));
        *self.current.locked() = Arc::clone(&renewed);
        Some(renewed)
    }
}

fn failed(error: &CallError) -> Reply {
    Reply::Failed(error.to_string().into())
}

/// Executes a step, whose times are of this clock.
pub(super) fn execute(store: &Store, clock: Clock, step: &StoreStep) -> Reply {
    try_step(store, clock, step).unwrap_or_else(|error| failed(&error))
}

fn try_step(store: &Store, clock: Clock, step: &StoreStep) -> Result<Reply, CallError> {
    Ok(match step {
        StoreStep::CompareSet { key, expected, desired } => {
            let mut value = Vec::new();
            let (key, expected, desired) = (key.as_bytes(), expected.as_bytes(), desired.as_bytes());
            store.compare_set(key, expected, desired, &mut value, Timeout::Default)?;
            Reply::Value(value.into())
        }
        StoreStep::Set { key, value } | StoreStep::SetForSession { key, value } => {
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
        StoreStep::Forget { key, expected } => {
            let (key, expected) = (key.as_bytes(), expected.as_bytes());
            if let Ok(client) = store.native(Operation::Txn) {
                let mut txn = Txn::default();
                txn.require(key, Test::Value(expected.into()));
                txn.push(Branch::Then, key, Step::Delete);
                client.commit(&txn, Timeout::Default).map_err(CallError::from)?;
            } else {
                store.compare_set(key, expected, b"", &mut Vec::new(), Timeout::Default)?;
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
                // After a cancellation the wait is over, and another input decides how to continue.
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

/// Reads all at once, which succeeds if all exist, as they mostly do; otherwise one after the other.
fn values_if_there(store: &Store, keys: &[Box<str>]) -> Result<Vec<Box<[u8]>>, CallError> {
    let mut all = Vec::with_capacity(keys.len());
    for keys in keys.chunks(NATIVE_LIST_MAX) {
        let names: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        match store.multi_get(&names, Timeout::Once) {
            Ok(values) => all.extend(values.into_iter().map(Vec::into_boxed_slice)),
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::Unsupported) => {
                for key in keys {
                    all.push(value_if_there(store, key)?);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
