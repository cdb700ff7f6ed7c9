//! The bytes of a load, made before the time is taken.

use rendezvous_core::store::op::{Key, Keys, Request};
use rendezvous_core::wire::c10d::{Frame, MAGIC, READY, STOP_WAITING, encode_frame};
use rendezvous_core::wire::sink::Sink;
use std::hash::{BuildHasher, Hasher};

/// The names of a run's keys. No other run has the same.
#[derive(Debug)]
pub(super) struct Names {
    run: u32,
    rounds: u64,
}

impl Names {
    pub(super) fn new() -> Self {
        let bytes = std::hash::RandomState::new().build_hasher().finish().to_le_bytes();
        Self { run: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), rounds: 0 }
    }

    /// A new name at each call, all of one length.
    pub(super) fn next_round(&mut self) -> String {
        self.rounds += 1;
        format!("bench/{:08x}/{:010}", self.run, self.rounds)
    }

    pub(super) fn value(&self) -> String {
        format!("bench/{:08x}/value", self.run)
    }

    pub(super) fn count(&self) -> String {
        format!("bench/{:08x}/count", self.run)
    }
}

/// What answers a request.
#[derive(Clone, Copy, Debug)]
enum Due<'a> {
    Nothing,
    Exactly(&'a [u8]),
    /// Behind its length.
    Value(&'a [u8]),
    Number,
}

/// Requests back to back, and the answers that are due.
#[derive(Debug, Default)]
pub(super) struct Frames {
    requests: Bytes,
    answers: Vec<u8>,
    /// All ones for each byte of the answers that is known beforehand, zero for the others.
    known: Vec<u8>,
    /// Where each operation ends: its requests, and their answers.
    ends: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// A number that our greetings and pings carry.
const NONCE: u32 = 0x5244_5a56;

impl Frames {
    pub(super) fn greeting() -> Self {
        let mut frames = Self::default();
        frames.push(&Frame::Validate { magic: MAGIC }, Due::Nothing);
        frames.push(&Frame::Ping { nonce: NONCE }, Due::Exactly(&NONCE.to_le_bytes()));
        frames.end_operation();
        frames
    }

    pub(super) fn barrier(name: &str, world_size: usize) -> Self {
        let world_size = i64::try_from(world_size).unwrap_or(i64::MAX);
        let mut frames = Self::default();
        let request = Request::Barrier { key: key(name), world_size };
        frames.push(&Frame::Request(request), Due::Exactly(&[STOP_WAITING]));
        frames.end_operation();
        frames
    }

    pub(super) fn add(name: &str) -> Self {
        let mut frames = Self::default();
        frames.push_add(name);
        frames
    }

    pub(super) fn wait(name: &str) -> Self {
        let mut frames = Self::default();
        frames.push_wait(name);
        frames.end_operation();
        frames
    }

    /// A SET, and a WAIT for it that answers both.
    pub(super) fn set_and_wait(name: &str) -> Self {
        let mut frames = Self::default();
        frames.push(&Frame::Request(Request::Set { key: key(name), value: b"1" }), Due::Nothing);
        frames.push_wait(name);
        frames.end_operation();
        frames
    }

    fn push_wait(&mut self, name: &str) {
        let request = Request::Wait { keys: Keys::one(key(name)) };
        self.push(&Frame::Request(request), Due::Exactly(&[STOP_WAITING]));
    }

    /// A SET, and a PING that answers for it.
    pub(super) fn push_set(&mut self, name: &str, value: &[u8]) {
        self.push(&Frame::Request(Request::Set { key: key(name), value }), Due::Nothing);
        self.push(&Frame::Ping { nonce: NONCE }, Due::Exactly(&NONCE.to_le_bytes()));
        self.end_operation();
    }

    pub(super) fn push_get(&mut self, name: &str, value: &[u8]) {
        self.push(&Frame::Request(Request::Get { key: key(name) }), Due::Value(value));
        self.end_operation();
    }

    pub(super) fn push_add(&mut self, name: &str) {
        self.push(&Frame::Request(Request::Add { key: key(name), delta: 1 }), Due::Number);
        self.end_operation();
    }

    pub(super) fn push_check(&mut self, name: &str) {
        let request = Request::Check { keys: Keys::one(key(name)) };
        self.push(&Frame::Request(request), Due::Exactly(&[READY]));
        self.end_operation();
    }

    fn push(&mut self, frame: &Frame<'_>, due: Due<'_>) {
        encode_frame(&mut self.requests, frame);
        match due {
            Due::Nothing => {}
            Due::Exactly(bytes) => self.answers.extend_from_slice(bytes),
            Due::Value(bytes) => {
                self.answers.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                self.answers.extend_from_slice(bytes);
            }
            Due::Number => {
                self.known.resize(self.answers.len(), u8::MAX);
                self.answers.extend_from_slice(&0_i64.to_le_bytes());
                self.known.resize(self.answers.len(), 0);
            }
        }
        self.known.resize(self.answers.len(), u8::MAX);
    }

    fn end_operation(&mut self) {
        self.ends.push((self.requests.0.len(), self.answers.len()));
    }

    /// The bytes of the first so many operations, and how many bytes answer them.
    pub(super) fn first(&self, operations: usize) -> (&[u8], usize) {
        let (requests, answers) = self.ends[operations - 1];
        (&self.requests.0[..requests], answers)
    }

    /// Whether these bytes may stand in the answers, from byte `at` on.
    pub(super) fn allow(&self, at: usize, bytes: &[u8]) -> bool {
        let due = self.answers[at..].iter().zip(&self.known[at..]);
        bytes.iter().zip(due).fold(0, |wrong, (byte, (due, known))| wrong | (byte ^ due) & known) == 0
    }
}

fn key(name: &str) -> Key<'_> {
    Key::scoped(b"/", name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_names_of_one_length_and_runs_differ() {
        let mut names = Names::new();
        let (first, second) = (names.next_round(), names.next_round());
        assert_eq!((first.len(), second.len()), (25, 25));
        assert_ne!(first, second);
        let runs: std::collections::BTreeSet<_> = (0..4).map(|_| Names::new().value()).collect();
        assert!(runs.len() > 1);
    }

    #[test]
    fn a_batch_can_be_cut_behind_any_operation() {
        let mut frames = Frames::default();
        frames.push_set("k", b"value");
        frames.push_get("k", b"value");
        let (set, answered) = frames.first(1);
        assert_eq!((set.len(), answered), (1 + 8 + 2 + 8 + 5 + 5, 4));
        let (both, answered) = frames.first(2);
        assert_eq!((both.len(), answered), (set.len() + 1 + 8 + 2, 4 + 8 + 5));
    }

    #[test]
    fn a_wrong_answer_is_seen_where_it_is_known_beforehand() {
        let mut frames = Frames::default();
        frames.push_check("k");
        frames.push_add("k");
        frames.push_check("k");
        assert_eq!(frames.first(3).1, 10);
        assert!(frames.allow(0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 0]));
        assert!(frames.allow(1, &[1, 2, 3]));
        assert!(!frames.allow(0, &[1]));
        assert!(!frames.allow(8, &[9, 1]));
    }
}
