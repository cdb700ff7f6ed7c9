//! The load in the c10d language.

use super::{Arrival, Frames, Operation, key};
use rendezvous_core::store::op::{Keys, Request};
use rendezvous_core::wire::c10d::{Frame, MAGIC, READY, STOP_WAITING, encode_frame};
use rendezvous_core::wire::sink::Sink;

/// A number that our greetings and pings carry.
const NONCE: u32 = 0x5244_5a56;

impl Frames {
    pub(super) fn c10d_greeting(&mut self) {
        self.c10d_ask(&Frame::Validate { magic: MAGIC });
        self.c10d_ping();
    }

    pub(super) fn c10d_barrier(&mut self, arrival: Arrival<'_>) {
        let world_size = i64::try_from(arrival.world_size).unwrap_or(i64::MAX);
        self.c10d_ask(&Frame::Request(Request::Barrier { key: key(arrival.key), world_size }));
        self.c10d_due(&[STOP_WAITING]);
    }

    pub(super) fn c10d_set_unanswered(&mut self, name: &str, value: &[u8]) {
        self.c10d_ask(&Frame::Request(Request::Set { key: key(name), value }));
    }

    pub(super) fn c10d_operation(&mut self, operation: Operation<'_>) {
        match operation {
            Operation::Set { name, value } => {
                self.c10d_set_unanswered(name, value);
                // It answers for the SET.
                self.c10d_ping();
            }
            Operation::Get { name, value } => {
                self.c10d_ask(&Frame::Request(Request::Get { key: key(name) }));
                self.c10d_due(&(value.len() as u64).to_le_bytes());
                self.c10d_due(value);
            }
            Operation::Add { name } => {
                self.c10d_ask(&Frame::Request(Request::Add { key: key(name), delta: 1 }));
                self.answers.put(&[0; 8]);
                self.end_answer(Some(0..8));
            }
            Operation::Check { name } => {
                self.c10d_ask(&Frame::Request(Request::Check { keys: Keys::one(key(name)) }));
                self.c10d_due(&[READY]);
            }
            Operation::Wait { name } => {
                self.c10d_ask(&Frame::Request(Request::Wait { keys: Keys::one(key(name)) }));
                self.c10d_due(&[STOP_WAITING]);
            }
        }
    }

    fn c10d_ping(&mut self) {
        self.c10d_ask(&Frame::Ping { nonce: NONCE });
        self.c10d_due(&NONCE.to_le_bytes());
    }

    fn c10d_ask(&mut self, frame: &Frame<'_>) {
        encode_frame(&mut self.requests, frame);
    }

    fn c10d_due(&mut self, bytes: &[u8]) {
        self.answers.put(bytes);
        self.end_answer(None);
    }
}
