//! Outgoing bytes: small frames first, then the parts of payloads in turn.

use crate::wire::{DATA_BYTES_MAX, Encoded, HEADER_BYTES, Header, Message, encode_frame};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Next bytes to write, completely and in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToWrite {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A header, followed by a part of the payload of a request or response.
    Part {
        /// The header.
        header: [u8; HEADER_BYTES],
        /// Number of the call.
        call: u64,
        /// Offset of the part in the payload.
        offset: u64,
        /// Length of the part in bytes.
        bytes: u32,
    },
}

const SMALL_CAPACITY_BYTES: usize = 256;
/// Limit of buffered small frames, in bytes. What has been handed out and not accepted by the socket is not counted.
const BACKLOG_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    small: Encoded,
    /// Calls without a payload.
    whole: Vec<u64>,
    /// Calls with the offset of the next part and the end of the payload.
    payloads: VecDeque<(u64, u64, u64)>,
}

impl Outgoing {
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.small.0.extend_from_slice(bytes);
    }

    /// Appends a frame; returns false if it is too long.
    pub(super) fn frame(&mut self, id: u64, frame: &impl Message) -> bool {
        // Capacity for a frame with its header and a short payload after it.
        if self.small.0.capacity() == 0 {
            self.small.0.reserve(SMALL_CAPACITY_BYTES);
        }
        encode_frame(&mut self.small, id, frame).is_ok()
    }

    /// Appends the payload of the last frame; 0 if it has none.
    pub(super) fn payload(&mut self, call: u64, bytes: u64) {
        if bytes > 0 {
            self.payloads.push_back((call, 0, bytes));
        } else {
            self.whole.push(call);
        }
    }

    /// Drops the rest of a payload.
    pub(super) fn drop_payload(&mut self, call: u64) {
        self.payloads.retain(|&(known, ..)| known != call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.small.0.is_empty() && self.payloads.is_empty()
    }

    /// Whether so much is buffered that nothing may be added: the peer does not read.
    pub(super) const fn is_backed_up(&self) -> bool {
        self.small.0.len() > BACKLOG_BYTES_MAX
    }

    /// Whether all small frames have been handed out.
    pub(super) const fn is_flow_controlled(&self) -> bool {
        self.small.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns what to write next, and adds the calls that it completes to `out`.
    pub(super) fn poll(&mut self, out: &mut Vec<u64>) -> Option<ToWrite> {
        if !self.small.0.is_empty() {
            out.append(&mut self.whole);
            return Some(ToWrite::Bytes(core::mem::take(&mut self.small.0)));
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
