//! Server side of one c10d connection: parses requests and encodes answers. The owner keeps the buffers.

mod long_list;
mod outbox;

pub use long_list::Part;
pub use outbox::{BufferPool, Outbox, POOLED_BYTES_MAX, Writer as OutboxWriter, held_bytes};

use crate::limits::{FrameLimits, PartLimits};
use crate::prelude::*;
use crate::shared::SharedBytes;
use crate::store::engine::{Answer, Readiness};
use crate::store::op::{Key, Request};
use crate::store::value_ref::ValueRef;
use crate::wire::c10d::{
    Frame, FrameError, MAGIC, NOT_READY, READY, STOP_WAITING, Scan, Scanner, WAIT_CANCELED, parse_frame,
};
use crate::wire::sink::Sink;
use long_list::LongList;

/// What a connection's input begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole frame, which [`parse_frame`] reads. Its opcode and lengths are valid; it may be a second VALIDATE.
    Frame {
        /// Length of the frame, in bytes.
        bytes: usize,
    },
    /// A valid greeting.
    Greeting {
        /// Length of the frame, in bytes.
        bytes: usize,
    },
    /// The frame is incomplete; it has at least `bytes` bytes in all.
    Partial {
        /// Lower bound of the frame's length in bytes; greater than the length of the input.
        bytes: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The greeting is expected.
    Greeting,
    /// Requests are served.
    Open,
}

/// Server side of one connection.
#[derive(Debug)]
pub struct ServerConn {
    phase: Phase,
    scanner: Scanner,
    /// Queues whose pushes have woken the client, for an item that it has not popped yet. At most as many as it may
    /// have waits: it gets no more without a request.
    wakes: Vec<Box<[u8]>>,
    /// Whether the client has cancelled its waits after these wake-ups. It may still pop: a CANCEL_WAIT that clears a
    /// stale registration comes in the same write as the QUEUE_POP.
    is_cancelled: bool,
    /// Rest of a long request at the start of the input.
    list: Option<Box<LongList>>,
}

impl Default for ServerConn {
    fn default() -> Self {
        Self {
            phase: Phase::Greeting,
            scanner: Scanner::default(),
            wakes: Vec::new(),
            is_cancelled: false,
            list: None,
        }
    }
}

/// VALIDATE and the magic number.
const GREETING: [u8; 5] = {
    let magic = MAGIC.to_le_bytes();
    [0, magic[0], magic[1], magic[2], magic[3]]
};

impl ServerConn {
    /// Returns whether the peer has sent its greeting.
    pub fn has_greeted(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Finds the end of the frame at the start of `input`. After [`Next::Partial`], call it again with the same bytes and
    /// more after them. A frame whose request has more parts ([`ServerConn::next_part`]) is also the next one.
    ///
    /// # Errors
    /// The violation of the protocol by the peer; the caller must close the connection.
    #[inline]
    pub fn next(&mut self, input: &[u8], limits: &FrameLimits) -> Result<Next, FrameError> {
        if self.phase == Phase::Greeting {
            return self.greet(input);
        }
        if let Some(list) = &self.list {
            return Ok(Next::Frame { bytes: list.frame_bytes });
        }
        Ok(match self.scanner.scan(input, limits)? {
            Scan::Whole { bytes } => Next::Frame { bytes },
            Scan::Partial { bytes } => Next::Partial { bytes },
        })
    }

    /// Returns the next part of a request that is to be executed part by part; `None` if it is to be executed as a whole.
    /// `frame` is the frame of the request. The owner calls it until it has returned the last part.
    #[inline]
    pub fn next_part<'f>(
        &mut self,
        request: &Request<'_>,
        frame: &'f [u8],
        limits: &PartLimits,
    ) -> Option<Part<'f>> {
        let mut list = match self.list.take() {
            Some(list) => list,
            None => Box::new(LongList::of(request, frame.len(), limits)?),
        };
        let part = list.take_part(request, frame);
        self.list = (!part.position.is_last).then_some(list);
        Some(part)
    }

    /// Notes that a push to `queue` has woken the client. A push wakes one client, so the owner has to wake another one
    /// if this one does not pop.
    pub fn note_wake(&mut self, queue: Key<'_>) {
        self.wakes.push(queue.pieces().concat().into());
        self.is_cancelled = false;
    }

    /// Notes that a wait or barrier of the client has ended. Returns whether the client must get that later
    /// ([`Part::releases`]), because it might be taken for a byte of an answer of which a part is still to come.
    #[inline]
    pub fn defers_release(&mut self) -> bool {
        if let Some(list) = &mut self.list {
            list.releases += 1;
        }
        self.list.is_some()
    }

    /// Returns the queues whose wake-ups the client does not use, because `request` is something else than a QUEUE_POP
    /// there. A PING is no request, nor is a further part of one.
    #[inline]
    pub fn unused_wakes(&mut self, request: &Request<'_>) -> Vec<Box<[u8]>> {
        if self.wakes.is_empty() || self.list.is_some() { Vec::new() } else { self.use_wakes(request) }
    }

    #[cold]
    fn use_wakes(&mut self, request: &Request<'_>) -> Vec<Box<[u8]>> {
        match request {
            Request::CancelWait => {
                self.is_cancelled = true;
                return Vec::new();
            }
            Request::QueuePop { key } => {
                if let Some(index) = self.wakes.iter().position(|queue| Key::raw(queue) == *key) {
                    self.wakes.swap_remove(index);
                    return Vec::new();
                }
            }
            _ => {}
        }
        self.take_wakes()
    }

    /// As [`ServerConn::unused_wakes`], when nothing follows the last request.
    #[inline]
    pub fn cancelled_wakes(&mut self) -> Vec<Box<[u8]>> {
        if self.is_cancelled { self.take_wakes() } else { Vec::new() }
    }

    /// As [`ServerConn::unused_wakes`], when the client sends no more requests.
    pub fn take_wakes(&mut self) -> Vec<Box<[u8]>> {
        self.is_cancelled = false;
        core::mem::take(&mut self.wakes)
    }

    /// Returns the number of bytes that the connection holds.
    pub fn held_bytes(&self) -> usize {
        self.wakes.iter().map(|queue| queue.len()).sum()
    }

    fn greet(&mut self, input: &[u8]) -> Result<Next, FrameError> {
        let here = input.len().min(GREETING.len());
        if input[..here] != GREETING[..here] {
            return Err(match parse_frame(&input[..here]) {
                Some(Frame::Validate { magic }) => FrameError::Magic(magic),
                // A wrong magic number that is still incomplete, or another first opcode.
                _ if input[0] == GREETING[0] => {
                    let mut magic = [0; 4];
                    magic[..here - 1].copy_from_slice(&input[1..here]);
                    FrameError::Magic(u32::from_le_bytes(magic))
                }
                _ => FrameError::Opcode(input[0]),
            });
        }
        if here < GREETING.len() {
            return Ok(Next::Partial { bytes: GREETING.len() });
        }
        self.phase = Phase::Open;
        Ok(Next::Greeting { bytes: GREETING.len() })
    }
}

/// Encodes the end of a wait or barrier.
#[inline]
pub fn release(out: &mut impl Sink) {
    out.put(&[STOP_WAITING]);
}

/// Appends an answer to the outbox.
///
/// # Errors
/// The length of the answer in bytes, when it exceeds `reply_bytes_max`.
#[inline]
pub fn answer(
    outbox: &mut Outbox,
    answer: &Answer<'_>,
    reply_bytes_max: usize,
    pool: &mut BufferPool,
) -> Result<(), usize> {
    if let Answer::Value(_) | Answer::Values(_) | Answer::KeyList(_) = answer {
        let mut size = Size::default();
        encode_answer(&mut size, answer);
        if size.bytes > reply_bytes_max {
            return Err(size.bytes);
        }
        outbox.reserve(size.copied_bytes);
    }
    encode_answer(&mut outbox.writer(pool), answer);
    Ok(())
}

/// Counts the bytes of an answer, and those of them that are copied and not shared.
#[derive(Default)]
struct Size {
    bytes: usize,
    copied_bytes: usize,
}

impl Sink for Size {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.copied_bytes = self.copied_bytes.saturating_add(bytes.len());
    }

    fn put_shared(&mut self, bytes: &SharedBytes) {
        self.bytes = self.bytes.saturating_add(bytes.len());
    }
}

/// Encodes a length and bytes.
#[inline]
fn string(out: &mut impl Sink, value: ValueRef<'_>) {
    match value {
        ValueRef::Shared(bytes) => {
            out.put(&(bytes.len() as u64).to_le_bytes());
            out.put_shared(bytes);
        }
        _ => value.read(|bytes| {
            out.put(&(bytes.len() as u64).to_le_bytes());
            out.put(bytes);
        }),
    }
}

/// Encodes an answer in the c10d format.
#[inline]
fn encode_answer(out: &mut impl Sink, answer: &Answer<'_>) {
    match answer {
        Answer::Nothing | Answer::Parked => {}
        Answer::Number(number) => out.put(&number.to_le_bytes()),
        Answer::Value(value) => string(out, *value),
        Answer::Values(values) => values.iter().for_each(|value| string(out, value)),
        Answer::Readiness(Readiness::Ready) => out.put(&[READY]),
        Answer::Readiness(Readiness::NotReady) => out.put(&[NOT_READY]),
        Answer::Released => out.put(&[STOP_WAITING]),
        Answer::WaitCanceled => out.put(&[WAIT_CANCELED]),
        Answer::Popped { length_before, item } => {
            out.put(&length_before.to_le_bytes());
            if let Some(item) = item {
                string(out, ValueRef::Bytes(item));
            }
        }
        Answer::KeyList(list) => {
            out.put(&list.count().to_le_bytes());
            out.put_shared(list.bytes());
        }
    }
}
