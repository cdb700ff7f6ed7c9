//! Store for the state machines of RPC groups: it executes their steps, and knows who waits for a key.

use rendezvous_core::time::Instant;
use rendezvous_rpc::membership::{Reply, StoreStep};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(in crate::sim) struct KeyStore {
    keys: BTreeMap<Box<str>, Box<[u8]>>,
    waits: Vec<(usize, Box<str>)>,
}

/// Result of a step.
#[derive(Debug)]
pub(in crate::sim) enum Executed {
    Replied(Reply),
    /// It waits for this key until this time.
    Waits(Box<str>, Instant),
}

impl KeyStore {
    pub(in crate::sim) fn get(&self, key: &str) -> Box<[u8]> {
        self.keys.get(key).cloned().unwrap_or_default()
    }

    pub(in crate::sim) fn set(&mut self, key: &str, value: &[u8]) {
        self.keys.insert(key.into(), value.into());
    }

    pub(in crate::sim) fn remove(&mut self, key: &str) {
        self.keys.remove(key);
    }

    /// Removes and returns the processes that wait for a key that is present.
    pub(in crate::sim) fn take_released(&mut self) -> Vec<usize> {
        let released = self.waits.extract_if(.., |(_, key)| self.keys.contains_key(key));
        released.map(|(process, _)| process).collect()
    }

    /// Removes a wait. Returns false if it has ended.
    pub(in crate::sim) fn end_wait(&mut self, process: usize, key: &str) -> bool {
        let position = self.waits.iter().position(|(of, known)| *of == process && **known == *key);
        position.map(|at| self.waits.swap_remove(at)).is_some()
    }

    pub(in crate::sim) fn execute(&mut self, process: usize, step: StoreStep) -> Executed {
        Executed::Replied(match step {
            StoreStep::CompareSet { key, expected, desired } => {
                // As PyTorch's server: for an absent key it returns the expected value.
                let known = self.keys.get(&key).cloned();
                if known.as_deref().unwrap_or_default() == expected.as_bytes() {
                    self.set(&key, desired.as_bytes());
                    Reply::Value(desired.as_bytes().into())
                } else {
                    Reply::Value(known.unwrap_or_else(|| expected.as_bytes().into()))
                }
            }
            StoreStep::Set { key, value } | StoreStep::SetForSession { key, value } => {
                self.set(&key, &value);
                Reply::Done
            }
            StoreStep::Get { key } => Reply::Value(self.get(&key)),
            StoreStep::Peek { keys } => Reply::Values(keys.iter().map(|key| self.get(key)).collect()),
            StoreStep::Delete { keys } => {
                keys.iter().for_each(|key| self.remove(key));
                Reply::Done
            }
            StoreStep::Forget { key, expected } => {
                if *self.get(&key) == *expected.as_bytes() {
                    self.remove(&key);
                }
                Reply::Done
            }
            StoreStep::Add { key, delta } => {
                let sum = String::from_utf8_lossy(&self.get(&key)).parse::<i64>().unwrap_or_default() + delta;
                self.set(&key, sum.to_string().as_bytes());
                Reply::Number(sum)
            }
            StoreStep::Wait { key, .. } if self.keys.contains_key(&key) => Reply::Released,
            StoreStep::Wait { key, until } => {
                self.waits.push((process, key.clone()));
                return Executed::Waits(key, until);
            }
        })
    }
}
