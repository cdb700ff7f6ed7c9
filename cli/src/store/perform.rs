//! From the command line's words to calls of the client.

use super::Operation;
use super::answer::{Answer, AnswerBody};
use super::value::split_pair;
use crate::failure::Failure;
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::error::Operation as Name;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

impl Operation {
    pub(super) fn perform(&self, store: &Store, timeout: Timeout) -> Result<Answer, Failure> {
        let mut value = Vec::new();
        let (name, key, body) = match self {
            Self::Set { key, value } => {
                store.set(key.as_bytes(), value.as_bytes(), timeout)?;
                (Name::Set, Some(key), AnswerBody::Done)
            }
            Self::Get { key } => {
                store.get(key.as_bytes(), &mut value, timeout)?;
                (Name::Get, Some(key), AnswerBody::Value(value))
            }
            Self::Add { key, delta } => {
                let sum = store.add(key.as_bytes(), *delta, timeout)?;
                (Name::Add, Some(key), AnswerBody::Number("value", sum))
            }
            Self::CompareSet { key, expected, desired } => {
                let (expected, desired) = (expected.as_bytes(), desired.as_bytes());
                store.compare_set(key.as_bytes(), expected, desired, &mut value, timeout)?;
                (Name::CompareSet, Some(key), AnswerBody::Value(value))
            }
            Self::Wait { keys } => {
                store.wait(&slices(keys), timeout)?;
                (Name::Wait, None, AnswerBody::Done)
            }
            Self::Check { keys } => {
                let present = store.check(&slices(keys), timeout)?;
                (Name::Check, None, AnswerBody::Present(present))
            }
            Self::Delete { key } => {
                let removed = i64::from(store.delete(key.as_bytes(), timeout)?);
                (Name::Delete, Some(key), AnswerBody::Number("count", removed))
            }
            Self::NumKeys => (Name::NumKeys, None, AnswerBody::Number("count", store.num_keys(timeout)?)),
            Self::List { prefix } => {
                let mut keys = store.list_keys(timeout)?;
                keys.retain(|key| key.starts_with(prefix.as_bytes()));
                keys.sort_unstable();
                (Name::ListKeys, None, AnswerBody::Keys(keys))
            }
            Self::Append { key, value } => {
                store.append(key.as_bytes(), value.as_bytes(), timeout)?;
                (Name::Append, Some(key), AnswerBody::Done)
            }
            Self::MultiGet { keys } => {
                let names = slices(keys);
                let values = store.multi_get(&names, timeout)?;
                let names = names.into_iter().map(<[u8]>::to_vec);
                (Name::MultiGet, None, AnswerBody::Pairs(names.zip(values).collect()))
            }
            Self::MultiSet { pairs } => {
                let pairs: Vec<_> = pairs.iter().map(|pair| split_pair(pair)).collect::<Result<_, _>>()?;
                store.multi_set(&pairs, timeout)?;
                (Name::MultiSet, None, AnswerBody::Done)
            }
            Self::QueuePush { key, value } => {
                store.queue_push(key.as_bytes(), value.as_bytes(), timeout)?;
                (Name::QueuePush, Some(key), AnswerBody::Done)
            }
            Self::QueuePop { key } => {
                store.queue_pop(key.as_bytes(), &mut value, timeout)?;
                (Name::QueuePop, Some(key), AnswerBody::Value(value))
            }
            Self::QueueLen { key } => {
                let count = store.queue_len(key.as_bytes(), timeout)?;
                (Name::QueueLen, Some(key), AnswerBody::Number("count", count))
            }
            Self::Barrier { key, world_size, by_keys: false } => {
                store.barrier(key.as_bytes(), *world_size, timeout)?;
                (Name::Barrier, Some(key), AnswerBody::Done)
            }
            Self::Barrier { key, world_size, by_keys: true } => {
                store.barrier_by_keys(key.as_bytes(), *world_size, timeout)?;
                (Name::BarrierByKeys, Some(key), AnswerBody::Done)
            }
            Self::Ping => {
                store.ping(timeout)?;
                (Name::Ping, None, AnswerBody::Alive)
            }
        };
        Ok(Answer::new(name, key.map(|key| key.as_bytes()), body))
    }
}

fn slices(keys: &[OsString]) -> Vec<&[u8]> {
    keys.iter().map(|key| key.as_bytes()).collect()
}
