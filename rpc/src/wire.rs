//! Wire protocol between workers of an RPC group. `docs/protocol/rpc.md` specifies it.

mod frames;

pub use frames::{CalleeFrame, CallerFrame};
pub use rendezvous_core::wire::message::Message;

use rendezvous_core::wire::native::{BodyError, Field};
use rendezvous_core::wire::sink::{Fill, Length, Sink};
use rendezvous_core::wire::split::{self, Split};
use rendezvous_core::wire::version::highest_in_common;

/// First bytes of a connection, sent by the caller.
pub const MAGIC: [u8; 4] = *b"RRPC";
/// Length of a frame's header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Oldest supported version.
pub const VERSION_MIN: u16 = 1;
/// Newest supported version.
pub const VERSION_MAX: u16 = 1;
/// Maximum length of the body of a frame that is not data, in bytes.
pub const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Maximum length of the body of a data frame, in bytes. Longer payloads are split into several, between which others
/// may be sent.
pub const DATA_BYTES_MAX: u32 = 1024 * 1024;

/// Flag of a request without a response.
pub const FLAG_ONE_WAY: u16 = 0x0001;
/// Mask of the flags that a receiver must understand; version 1 has none.
pub const FLAGS_CRITICAL: u16 = 0xff00;

/// Kind of a request without a response.
const NOTICE: u16 = 0x0003;
/// Kind of a frame with a part of a payload, in both directions: its body has only the payload's bytes.
pub const DATA: u16 = 0x0010;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body in bytes.
    pub body_bytes: u32,
    /// Kind of the frame.
    pub kind: u16,
    /// Flags of the frame.
    pub flags: u16,
    /// Number of the call to which the frame belongs; 0 if none.
    pub id: u64,
}

/// Error of an invalid frame, after which the connection is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The connection does not begin with the magic bytes.
    #[error("the connection does not begin with RRPC")]
    Magic,
    /// The body is longer than its kind allows.
    #[error("a body of {bytes} bytes is over the limit of kind {kind:#06x}")]
    TooLong {
        /// Kind of the frame.
        kind: u16,
        /// The announced length.
        bytes: u32,
    },
    /// A flag that must be understood is unknown.
    #[error("flags {0:#06x} must be understood and are not")]
    Flags(u16),
    /// A body does not have the fields of its kind.
    #[error("a frame of kind {kind:#06x} is malformed: {why}")]
    Body {
        /// Kind of the frame.
        kind: u16,
        /// The error of the body.
        why: BodyError,
    },
}

impl Header {
    /// Creates the header of a part of a payload, whose bytes follow directly from where they are stored.
    pub const fn of_data(id: u64, body_bytes: u32) -> Self {
        Self { body_bytes, kind: DATA, flags: 0, id }
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut fill = Fill::new(&mut bytes);
        self.body_bytes.write(&mut fill);
        self.kind.write(&mut fill);
        self.flags.write(&mut fill);
        self.id.write(&mut fill);
        bytes
    }

    /// Decodes and checks a header, before anything of the body is buffered.
    ///
    /// # Errors
    /// The header is invalid.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [b0, b1, b2, b3, k0, k1, f0, f1, id @ ..] = *bytes;
        let header = Self {
            body_bytes: u32::from_le_bytes([b0, b1, b2, b3]),
            kind: u16::from_le_bytes([k0, k1]),
            flags: u16::from_le_bytes([f0, f1]),
            id: u64::from_le_bytes(id),
        };
        if header.flags & FLAGS_CRITICAL != 0 {
            return Err(FrameError::Flags(header.flags));
        }
        let bytes_max = if header.kind == DATA { DATA_BYTES_MAX } else { SMALL_BYTES_MAX };
        if header.body_bytes > bytes_max {
            return Err(FrameError::TooLong { kind: header.kind, bytes: header.body_bytes });
        }
        Ok(header)
    }
}

/// Writes a frame.
///
/// # Errors
/// The length of the body, if it is over the maximum; nothing was written.
pub fn encode_frame(out: &mut dyn Sink, id: u64, frame: &impl Message) -> Result<(), usize> {
    let mut length = Length::default();
    frame.write_body(&mut length);
    let body_bytes =
        u32::try_from(length.0).ok().filter(|&bytes| bytes <= SMALL_BYTES_MAX).ok_or(length.0)?;
    let kind = frame.kind();
    let flags = if kind == NOTICE { FLAG_ONE_WAY } else { 0 };
    out.put(&Header { body_bytes, kind, flags, id }.to_bytes());
    frame.write_body(out);
    Ok(())
}

/// Bytes that grow while fields are written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoded(pub(crate) alloc::vec::Vec<u8>);

impl Sink for Encoded {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Part of the bytes of a connection.
pub type Chunk<'b> = split::Chunk<'b, Header>;

/// Splits the bytes of a connection into frames as they arrive, and buffers only headers.
#[derive(Clone, Copy, Debug)]
pub struct Splitter {
    split: Split<HEADER_BYTES>,
    /// Number of bytes of the magic that are still to arrive.
    magic: usize,
}

impl Splitter {
    /// Creates a splitter for the bytes of a caller, which begin with the magic.
    pub const fn from_caller() -> Self {
        Self { split: Split::new(), magic: MAGIC.len() }
    }

    /// Creates a splitter for the bytes of a callee.
    pub const fn from_callee() -> Self {
        Self { magic: 0, ..Self::from_caller() }
    }

    /// Number of bytes of the current body that are still to arrive.
    pub const fn body_left(&self) -> u32 {
        self.split.body_left()
    }

    /// Skips bytes of the current body that were received another way, at most [`Splitter::body_left`].
    pub const fn pass_over(&mut self, bytes: u32) {
        self.split.pass_over(bytes);
    }

    /// Returns the next chunk, and consumes it from the front of `bytes`; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The bytes are not a valid frame.
    pub fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Chunk<'b>>, FrameError> {
        while self.magic > 0 {
            let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
            if MAGIC.get(MAGIC.len() - self.magic) != Some(&first) {
                return Err(FrameError::Magic);
            }
            self.magic -= 1;
            *bytes = rest;
        }
        self.split.next(bytes, |head| Header::read(head).map(|header| (header, header.body_bytes)))
    }
}

/// Returns the highest version that both ends support, if there is one.
pub const fn negotiate(version_min: u16, version_max: u16) -> Option<u16> {
    highest_in_common((VERSION_MIN, VERSION_MAX), (version_min, version_max))
}

/// Returns the conversion of an error in the body of a frame of this kind.
pub(crate) fn body_error(kind: u16) -> impl Fn(BodyError) -> FrameError {
    move |why| FrameError::Body { kind, why }
}

#[cfg(test)]
mod tests;
