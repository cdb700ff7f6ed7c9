//! A MULTI_SET, MULTI_GET or WAIT with a long list, which the server executes part by part.

use crate::limits::PartLimits;
use crate::store::engine::PartPosition;
use crate::store::op::{Keys, Pairs, Request, split_packed};

/// Offset of the list in its frame: the opcode and the number of elements come first.
const LIST_OFFSET: usize = 9;

/// Next part of a request.
#[derive(Debug)]
pub struct Part<'f> {
    /// A request with the same opcode and the keys of this part.
    pub request: Request<'f>,
    /// Length of the part, in bytes.
    pub bytes: usize,
    /// Whether it is the first part, and the last one.
    pub position: PartPosition,
    /// Number of ends of waits that the client gets after this last part.
    pub releases: u32,
}

/// Rest of the list at the start of a connection's input.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongList {
    pub(super) frame_bytes: usize,
    is_begun: bool,
    keys_left: usize,
    bytes_left: usize,
    keys_max: usize,
    bytes_high: usize,
    /// Ends of waits that must not come within the answer.
    pub(super) releases: u32,
}

impl LongList {
    /// Returns the whole list of a request if it is executed in parts. A list that fits into one is executed as a whole.
    #[inline]
    pub(super) fn of(request: &Request<'_>, frame_bytes: usize, limits: &PartLimits) -> Option<Self> {
        let (keys_left, keys_max, bytes_high) = match request {
            Request::Wait { keys } => (keys.len(), limits.keys_max, limits.bytes_high),
            Request::MultiSet { pairs } => (pairs.len(), limits.keys_max, limits.bytes_high),
            Request::MultiGet { keys } => (keys.len(), limits.read_keys_max, usize::MAX),
            _ => return None,
        };
        // With parts of nothing, the request would never end.
        let (keys_max, bytes_high) = (keys_max.max(1), bytes_high.max(1));
        let bytes_left = frame_bytes.saturating_sub(LIST_OFFSET);
        let list =
            Self { frame_bytes, is_begun: false, keys_left, bytes_left, keys_max, bytes_high, releases: 0 };
        (keys_left > keys_max || bytes_left > bytes_high).then_some(list)
    }

    /// Removes the first part of this list of `request`, which is in `frame`.
    pub(super) fn take_part<'f>(&mut self, request: &Request<'_>, frame: &'f [u8]) -> Part<'f> {
        let has_values = matches!(request, Request::MultiSet { .. });
        let left = &frame[frame.len() - self.bytes_left..];
        let (mut after, mut count) = (left, 0);
        while count < self.keys_left.min(self.keys_max) && left.len() - after.len() < self.bytes_high {
            split_packed(&mut after);
            if has_values {
                split_packed(&mut after);
            }
            count += 1;
        }
        let bytes = left.len() - after.len();
        (self.keys_left, self.bytes_left) = (self.keys_left - count, after.len());
        let position = PartPosition { is_first: !self.is_begun, is_last: self.keys_left == 0 };
        self.is_begun = true;
        let list = &left[..bytes];
        let request = match request {
            Request::MultiSet { .. } => Request::MultiSet { pairs: Pairs::packed(count, list) },
            Request::MultiGet { .. } => Request::MultiGet { keys: Keys::packed(count, list) },
            _ => Request::Wait { keys: Keys::packed(count, list) },
        };
        Part { request, bytes, position, releases: if position.is_last { self.releases } else { 0 } }
    }
}
