//! What is to be written: small frames first, and then the parts of payloads in turn.

use crate::wire::{DATA_BYTES_MAX, HEADER_BYTES, Header, Message, encode_frame};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use rendezvous_core::wire::sink::Sink;

/// What is to be written next, as a whole and in the order in which it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWrite {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A header, and behind it a part of the payload of a call, or of its answer.
    Part {
        /// The header.
        header: [u8; HEADER_BYTES],
        /// The call.
        call: u64,
        /// Where the part begins in the payload.
        offset: u64,
        /// How long it is.
        bytes: u32,
    },
}

struct Growing<'v>(&'v mut Vec<u8>);

impl Sink for Growing<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

const SMALL_CAPACITY_BYTES: usize = 256;
/// Small frames that nobody asks for, in bytes. Behind them stands what was asked for and the socket has not taken.
const BACKLOG_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    small: Vec<u8>,
    /// Calls of which nothing follows behind their small frame.
    whole: Vec<u64>,
    /// Calls, where the next part of each begins, and where it ends.
    payloads: VecDeque<(u64, u64, u64)>,
}

impl Outgoing {
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
    }

    /// Whether the frame is short enough.
    pub(super) fn frame(&mut self, id: u64, frame: &impl Message) -> bool {
        // Room for a frame with its header and a short payload behind it.
        if self.small.capacity() == 0 {
            self.small.reserve(SMALL_CAPACITY_BYTES);
        }
        encode_frame(&mut Growing(&mut self.small), id, frame).is_ok()
    }

    /// The payload that belongs to the frame before; 0: there is none.
    pub(super) fn payload(&mut self, call: u64, bytes: u64) {
        if bytes > 0 {
            self.payloads.push_back((call, 0, bytes));
        } else {
            self.whole.push(call);
        }
    }

    /// Nothing more of it is to be written.
    pub(super) fn drop_payload(&mut self, call: u64) {
        self.payloads.retain(|&(known, ..)| known != call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.payloads.is_empty()
    }

    /// Whether so much was not asked for that nothing more is to come: whoever is written to does not read.
    pub(super) const fn is_backed_up(&self) -> bool {
        self.small.len() > BACKLOG_BYTES_MAX
    }

    /// Whether all small frames were asked for.
    pub(super) const fn is_flow_controlled(&self) -> bool {
        self.small.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What is next. The calls that are out with it as a whole are put into `out`.
    pub(super) fn poll(&mut self, out: &mut Vec<u64>) -> Option<ToWrite> {
        if !self.small.is_empty() {
            out.append(&mut self.whole);
            return Some(ToWrite::Bytes(core::mem::take(&mut self.small)));
        }
        let (call, offset, end) = self.payloads.pop_front()?;
        let bytes = u32::try_from(end - offset).map_or(DATA_BYTES_MAX, |left| left.min(DATA_BYTES_MAX));
        let next = offset + u64::from(bytes);
        if next < end {
            self.payloads.push_back((call, next, end));
        } else {
            out.push(call);
        }
        let header = Header::of_data(call, bytes).to_bytes();
        Some(ToWrite::Part { header, call, offset, bytes })
    }
}
