//! The bytes of a load, made before the time is taken.

mod c10d;
mod native;

pub(super) use native::{NodeTerms, leave};

use super::work::Language;
use rendezvous_core::store::op::Key;
use rendezvous_core::wire::sink::Sink;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::rc::Rc;

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

/// A request whose answer is checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation<'a> {
    Set {
        name: &'a str,
        value: &'a [u8],
    },
    /// The value is what the answer must hold.
    Get {
        name: &'a str,
        value: &'a [u8],
    },
    Add {
        name: &'a str,
    },
    Check {
        name: &'a str,
    },
    Wait {
        name: &'a str,
    },
}

/// One arrival at a barrier.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) key: &'a str,
    /// Which time the barrier is used; a key of c10d serves once.
    pub(super) generation: u64,
    pub(super) world_size: usize,
    /// Which connection arrives.
    pub(super) line: usize,
}

/// How the connections of a group speak.
#[derive(Debug)]
pub(super) enum Protocol {
    C10d,
    /// Ids grow on each connection. Those of one group count together, so that they can send the same bytes.
    Native {
        last_id: u64,
    },
}

impl Protocol {
    pub(super) const fn new(language: Language) -> Self {
        match language {
            Language::C10d => Self::C10d,
            Language::Native => Self::Native { last_id: 0 },
        }
    }
}

/// Requests back to back, and the answers that are due.
#[derive(Debug, Default)]
pub(super) struct Frames {
    requests: Bytes,
    answers: Bytes,
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

impl Frames {
    pub(super) fn greeting(language: Language) -> Self {
        let mut frames = Self::default();
        match language {
            Language::C10d => frames.c10d_greeting(),
            Language::Native => frames.native_greeting(),
        }
        frames.end_operation();
        frames
    }

    /// One operation.
    pub(super) fn one(protocol: &mut Protocol, operation: Operation<'_>) -> Self {
        let mut frames = Self::default();
        frames.push(protocol, operation);
        frames
    }

    /// A SET and a WAIT for it, as one operation.
    pub(super) fn set_and_wait(protocol: &mut Protocol, name: &str) -> Self {
        let mut frames = Self::default();
        match protocol {
            // The WAIT answers both.
            Protocol::C10d => frames.c10d_set_unanswered(name, b"1"),
            Protocol::Native { .. } => frames.push(protocol, Operation::Set { name, value: b"1" }),
        }
        frames.push(protocol, Operation::Wait { name });
        frames.ends.drain(..frames.ends.len() - 1);
        frames
    }

    /// The arrivals of so many connections, each at the place of its connection; they may send the same.
    pub(super) fn arrivals(
        protocol: &mut Protocol,
        key: &str,
        generation: u64,
        world_size: usize,
    ) -> Vec<Rc<Self>> {
        let arrival = Arrival { key, generation, world_size, line: 0 };
        let one = |push: &dyn Fn(&mut Self)| {
            let mut frames = Self::default();
            push(&mut frames);
            frames.end_operation();
            Rc::new(frames)
        };
        match protocol {
            Protocol::C10d => vec![one(&|frames| frames.c10d_barrier(arrival)); world_size],
            Protocol::Native { last_id } => {
                *last_id += 1;
                let id = *last_id;
                let of_line = |line| one(&|frames| frames.native_barrier(id, Arrival { line, ..arrival }));
                (0..world_size).map(of_line).collect()
            }
        }
    }

    /// One more operation.
    pub(super) fn push(&mut self, protocol: &mut Protocol, operation: Operation<'_>) {
        match protocol {
            Protocol::C10d => self.c10d_operation(operation),
            Protocol::Native { last_id } => {
                *last_id += 1;
                self.native_operation(*last_id, operation);
            }
        }
        self.end_operation();
    }

    /// The answers have become longer: all of the new bytes are known but those of `unknown`.
    fn end_answer(&mut self, unknown: impl IntoIterator<Item = Range<usize>>) {
        let begin = self.known.len();
        self.known.resize(self.answers.0.len(), u8::MAX);
        for range in unknown {
            self.known[begin + range.start..begin + range.end].fill(0);
        }
    }

    fn end_operation(&mut self) {
        self.ends.push((self.requests.0.len(), self.answers.0.len()));
    }

    /// The bytes of the first so many operations, and how many bytes answer them.
    pub(super) fn first(&self, operations: usize) -> (&[u8], usize) {
        let (requests, answers) = self.ends[operations - 1];
        (&self.requests.0[..requests], answers)
    }

    /// Whether these bytes may stand in the answers, from byte `at` on.
    pub(super) fn allow(&self, at: usize, bytes: &[u8]) -> bool {
        let due = self.answers.0[at..].iter().zip(&self.known[at..]);
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
        let mut protocol = Protocol::C10d;
        frames.push(&mut protocol, Operation::Set { name: "k", value: b"value" });
        frames.push(&mut protocol, Operation::Get { name: "k", value: b"value" });
        let (set, done) = frames.first(1);
        assert_eq!((set.len(), done), (1 + 8 + 2 + 8 + 5 + 5, 4));
        let (both, done) = frames.first(2);
        assert_eq!((both.len(), done), (set.len() + 1 + 8 + 2, 4 + 8 + 5));
    }

    #[test]
    fn a_wrong_answer_is_seen_where_it_is_known_beforehand() {
        let mut frames = Frames::default();
        let mut protocol = Protocol::C10d;
        frames.push(&mut protocol, Operation::Check { name: "k" });
        frames.push(&mut protocol, Operation::Add { name: "k" });
        frames.push(&mut protocol, Operation::Check { name: "k" });
        assert_eq!(frames.first(3).1, 10);
        assert!(frames.allow(0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 0]));
        assert!(frames.allow(1, &[1, 2, 3]));
        assert!(!frames.allow(0, &[1]));
        assert!(!frames.allow(8, &[9, 1]));
    }
}
