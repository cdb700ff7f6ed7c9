//! Model of the store, written as plainly as possible: no table of slots, no chains, and no code shared with the
//! engine. Fuzz targets compare the engine and the server with it.

use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{EngineLimits, ITEM_COST_BYTES, KEY_COST_BYTES};
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::wire::c10d::{NOT_READY, READY, STOP_WAITING, WAIT_CANCELED};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes charged for a counter, whatever its digits.
const COUNTER_BYTES: u64 = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Text(Vec<u8>),
    Count(i64),
}

impl Held {
    fn text(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string().into_bytes(),
        }
    }

    fn charge(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Count(_) => COUNTER_BYTES,
        }
    }
}

/// Result of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// The reply on the wire; empty if there is none, or none yet.
    pub answer: Vec<u8>,
    /// Connections whose waits ended, in the order in which these began.
    pub released: Vec<ConnId>,
}

/// The request exceeds a limit, or needs a number where there is none. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

#[derive(Clone, Debug)]
struct Wait {
    conn: ConnId,
    missing: BTreeSet<Vec<u8>>,
}

/// Model of a store.
#[derive(Clone, Debug)]
pub struct Model {
    limits: EngineLimits,
    values: BTreeMap<Vec<u8>, Held>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Oldest first.
    waits: Vec<Wait>,
}

impl Model {
    /// Creates an empty store.
    #[must_use]
    pub fn new(limits: EngineLimits) -> Self {
        Self { limits, values: BTreeMap::new(), queues: BTreeMap::new(), waits: Vec::new() }
    }

    /// Returns the number of keys with a value.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of pending waits.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Returns the number of names in use, of waits, and of keys that are waited for.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.names().len() + self.waits.len() + self.registrations()
    }

    /// Returns the bytes that are charged against the limit on the store's size.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let names: u64 = self.names().iter().map(|name| name.len() as u64 + KEY_COST_BYTES).sum();
        let values: u64 = self.values.values().map(Held::charge).sum();
        let items: u64 = self.queues.values().flatten().map(|item| item.len() as u64 + ITEM_COST_BYTES).sum();
        names + values + items
    }

    /// Ends the waits of a connection.
    pub fn forget(&mut self, conn: ConnId) {
        self.waits.retain(|wait| wait.conn != conn);
    }

    /// Executes one request. It is refused exactly if the store would exceed its limit afterwards.
    ///
    /// # Errors
    /// The request was refused.
    pub fn apply(&mut self, conn: ConnId, request: &Request<'_>) -> Result<Iteration, Refused> {
        let mut next = self.clone();
        let done = next.execute(conn, request)?;
        if next.stored_bytes() > self.limits.stored_bytes_max {
            return Err(Refused);
        }
        *self = next;
        Ok(done)
    }

    fn execute(&mut self, conn: ConnId, request: &Request<'_>) -> Result<Iteration, Refused> {
        let mut poll = Iteration::default();
        match *request {
            Request::Set { key, value } => {
                self.put(joined(key), Held::Text(value.to_vec()), &mut poll);
            }
            Request::MultiSet { pairs } => {
                for (key, value) in pairs.iter() {
                    self.put(joined(key), Held::Text(value.to_vec()), &mut poll);
                }
            }
            Request::CompareSet { key, expected, desired } => {
                let current = self.values.get(&joined(key)).map(Held::text);
                let sets = current.as_deref().unwrap_or_default() == expected && current.is_some()
                    || current.is_none() && expected.is_empty();
                if sets {
                    self.put(joined(key), Held::Text(desired.to_vec()), &mut poll);
                    poll.answer = string(desired);
                } else {
                    poll.answer = string(current.as_deref().unwrap_or(expected));
                }
            }
            Request::Get { key } => poll.answer = string(&self.read(key)),
            Request::MultiGet { keys } => {
                poll.answer = keys.iter().flat_map(|key| string(&self.read(key))).collect();
            }
            Request::Add { key, delta } => {
                let sum = self.count_of(key)?.wrapping_add(delta);
                self.put(joined(key), Held::Count(sum), &mut poll);
                poll.answer = number(sum);
            }
            Request::Append { key, value } => {
                let text = [self.read(key), value.to_vec()].concat();
                self.put(joined(key), Held::Text(text), &mut poll);
            }
            Request::Check { keys } => {
                let ready = keys.iter().all(|key| self.is_ready(&joined(key)));
                poll.answer = vec![if ready { READY } else { NOT_READY }];
            }
            Request::Wait { keys } => {
                let missing: BTreeSet<Vec<u8>> =
                    keys.iter().map(joined).filter(|key| !self.is_ready(key)).collect();
                if missing.is_empty() {
                    poll.answer = vec![STOP_WAITING];
                } else {
                    self.room_to_wait(conn, keys.len())?;
                    self.waits.push(Wait { conn, missing });
                }
            }
            Request::Barrier { key, world_size } => {
                self.room_to_wait(conn, 1)?;
                let arrived = self.count_of(key)?.wrapping_add(1);
                self.values.insert(joined(key), Held::Count(arrived));
                if arrived >= world_size {
                    self.wake_all(&joined(key), &mut poll);
                    poll.answer = vec![STOP_WAITING];
                } else {
                    self.waits.push(Wait { conn, missing: [joined(key)].into() });
                }
            }
            Request::CancelWait => {
                self.forget(conn);
                poll.answer = vec![WAIT_CANCELED];
            }
            Request::NumKeys => poll.answer = number_of(self.values.len()),
            Request::Delete { key } => {
                poll.answer = number(i64::from(self.values.remove(&joined(key)).is_some()));
            }
            Request::QueuePush { key, value } => {
                self.queues.entry(joined(key)).or_default().push_back(value.to_vec());
                self.wake_one(&joined(key), &mut poll);
            }
            Request::QueuePop { key } => {
                let queue = self.queues.entry(joined(key)).or_default();
                poll.answer = number_of(queue.len());
                if let Some(item) = queue.pop_front() {
                    poll.answer.extend(string(&item));
                }
                self.queues.retain(|_, queue| !queue.is_empty());
            }
            Request::QueueLen { key } => {
                poll.answer = number_of(self.queues.get(&joined(key)).map_or(0, VecDeque::len));
            }
            Request::ListKeys => {
                poll.answer = number_of(self.values.len());
                poll.answer.extend(self.values.keys().flat_map(|key| string(key)));
            }
        }
        Ok(poll)
    }

    fn names(&self) -> BTreeSet<&[u8]> {
        let waited_for = self.waits.iter().flat_map(|wait| &wait.missing);
        self.values.keys().chain(self.queues.keys()).chain(waited_for).map(Vec::as_slice).collect()
    }

    fn registrations(&self) -> usize {
        self.waits.iter().map(|wait| wait.missing.len()).sum()
    }

    fn room_to_wait(&self, conn: ConnId, keys: usize) -> Result<(), Refused> {
        let local = self.waits.iter().filter(|wait| wait.conn == conn).count();
        let full = local >= self.limits.waits_per_connection_max
            || self.registrations() + keys > self.limits.registrations_max;
        if full { Err(Refused) } else { Ok(()) }
    }

    fn read(&self, key: Key<'_>) -> Vec<u8> {
        self.values.get(&joined(key)).map(Held::text).unwrap_or_default()
    }

    fn is_ready(&self, key: &[u8]) -> bool {
        self.values.contains_key(key) || self.queues.contains_key(key)
    }

    fn count_of(&self, key: Key<'_>) -> Result<i64, Refused> {
        self.values.get(&joined(key)).map_or(Ok(0), |held| leading_number(&held.text()).ok_or(Refused))
    }

    fn put(&mut self, key: Vec<u8>, held: Held, poll: &mut Iteration) {
        self.wake_all(&key, poll);
        self.values.insert(key, held);
    }

    fn wake_all(&mut self, key: &[u8], poll: &mut Iteration) {
        while self.wake_oldest(key, poll) {}
    }

    /// Wakes the oldest wait that misses nothing else. Waits before it have seen the key, too.
    fn wake_one(&mut self, key: &[u8], poll: &mut Iteration) {
        while poll.released.is_empty() && self.wake_oldest(key, poll) {}
    }

    /// Wakes the next client that waits for an item of a queue that has one. Returns the clients that it woke.
    pub fn pass_on(&mut self, queue: &[u8]) -> Vec<ConnId> {
        let mut poll = Iteration::default();
        if self.queues.contains_key(queue) {
            self.wake_one(queue, &mut poll);
        }
        poll.released
    }

    /// Gives the key to the oldest wait for it. Returns whether there was one.
    fn wake_oldest(&mut self, key: &[u8], poll: &mut Iteration) -> bool {
        let waits_for_key = |wait: &Wait| wait.missing.iter().any(|missing| missing == key);
        let Some(oldest) = self.waits.iter().position(waits_for_key) else { return false };
        self.waits[oldest].missing.retain(|missing| missing != key);
        if self.waits[oldest].missing.is_empty() {
            poll.released.push(self.waits.remove(oldest).conn);
        }
        true
    }
}

fn joined(key: Key<'_>) -> Vec<u8> {
    key.pieces().concat()
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn number(number: i64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn number_of(count: usize) -> Vec<u8> {
    number(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Parses a number as C's `strtoll` does, base 10; `None` without a digit, and outside of 64 bits.
fn leading_number(text: &[u8]) -> Option<i64> {
    let text: Vec<char> = text.iter().map(|&byte| char::from(byte)).collect();
    let behind_blanks = text.iter().skip_while(|character| matches!(character, ' ' | '\t'..='\r'));
    let word: String = behind_blanks.collect();
    let sign_length = usize::from(word.starts_with(['+', '-']));
    let digits = word[sign_length..].chars().take_while(char::is_ascii_digit).count();
    word[..sign_length + digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_strtoll_reads_them() {
        for (text, due) in [
            ("12abc", Some(12)),
            (" \t+7", Some(7)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("- 1", None),
        ] {
            assert_eq!(leading_number(text.as_bytes()), due, "{text:?}");
        }
    }
}
