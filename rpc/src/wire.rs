//! What workers of an RPC group tell each other. The grammar and its meaning are in `docs/protocol/rpc.md`.

pub mod card;
mod frames;

pub use frames::{CalleeFrame, CallerFrame};

use rendezvous_core::limits::RPC_FRAME;
use rendezvous_core::wire::native::{BodyError, Field};
use rendezvous_core::wire::sink::{Fill, Length, Sink};
use rendezvous_core::wire::split::{self, Split};
use rendezvous_core::wire::version::highest_in_common;

/// The first bytes of a connection from a caller.
pub const MAGIC: [u8; 4] = *b"RRPC";
/// Length of a frame's header.
pub const HEADER_BYTES: usize = 16;
/// The oldest version that is spoken here.
pub const VERSION_MIN: u16 = 1;
/// The newest version that is spoken here.
pub const VERSION_MAX: u16 = 1;
/// Longest body of a frame that is not data, in bytes.
pub const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Longest body of a frame of data, in bytes. Longer payloads come in several, between which others may go.
pub const DATA_BYTES_MAX: u32 = 1024 * 1024;

/// The request is answered by nobody.
pub const FLAG_ONE_WAY: u16 = 0x0001;
/// Flags among these must be understood by whom they reach; version 1 has none.
pub const FLAGS_CRITICAL: u16 = 0xff00;

/// A part of a payload, in both directions: its body is nothing but the bytes.
pub const DATA: u16 = 0x0010;

/// What stands before each body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body, in bytes.
    pub body_bytes: u32,
    /// Number of the kind.
    pub kind: u16,
    /// Marks.
    pub flags: u16,
    /// The call that this is of; 0 when it is of none.
    pub id: u64,
}

/// What no frame may be; the connection is of no use then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The connection begins with something else than the magic.
    #[error("the connection does not begin with RRPC")]
    Magic,
    /// The body is longer than its kind may be.
    #[error("a body of {bytes} bytes is over the limit of kind {kind:#06x}")]
    TooLong {
        /// Number of the kind.
        kind: u16,
        /// The announced length.
        bytes: u32,
    },
    /// A flag that must be understood is not.
    #[error("flags {0:#06x} must be understood and are not")]
    Flags(u16),
    /// A body does not hold what its kind does.
    #[error("a frame of kind {kind:#06x} is malformed: {why}")]
    Body {
        /// Number of the kind.
        kind: u16,
        /// What is wrong.
        why: BodyError,
    },
}

impl Header {
    /// The header of a part of a payload; its bytes come right behind, from where they lie.
    #[must_use]
    pub const fn of_data(id: u64, body_bytes: u32) -> Self {
        Self { body_bytes, kind: DATA, flags: 0, id }
    }

    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut fill = Fill::new(&mut bytes);
        self.body_bytes.write(&mut fill);
        self.kind.write(&mut fill);
        self.flags.write(&mut fill);
        self.id.write(&mut fill);
        bytes
    }

    /// Reads a header and checks it, before anything of the body is kept.
    ///
    /// # Errors
    /// What no frame may be.
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

/// A frame without its header.
pub trait Message {
    /// The number of its kind.
    fn kind(&self) -> u16;
    /// Its marks.
    fn flags(&self) -> u16;
    /// Writes its fields.
    fn write_body(&self, out: &mut impl Sink);
}

/// Writes a frame.
///
/// # Errors
/// The length of the body, when it is longer than a frame may be; nothing was written.
pub fn encode_frame(out: &mut impl Sink, id: u64, frame: &impl Message) -> Result<(), usize> {
    let mut length = Length::default();
    frame.write_body(&mut length);
    let body_bytes =
        u32::try_from(length.0).ok().filter(|&bytes| bytes <= SMALL_BYTES_MAX).ok_or(length.0)?;
    out.put(&Header { body_bytes, kind: frame.kind(), flags: frame.flags(), id }.to_bytes());
    frame.write_body(out);
    Ok(())
}

/// A part of the bytes of a connection.
pub type Chunk<'b> = split::Chunk<'b, Header>;

/// Takes frames apart as their bytes arrive, and keeps none but those of a header.
#[derive(Clone, Copy, Debug)]
pub struct Splitter {
    split: Split<HEADER_BYTES>,
    /// Bytes of the magic that are to come.
    magic: usize,
}

impl Splitter {
    /// For what a caller sends, which begins with the magic.
    #[must_use]
    pub const fn from_caller() -> Self {
        Self { split: Split::new(), magic: MAGIC.len() }
    }

    /// For what a callee sends.
    #[must_use]
    pub const fn from_callee() -> Self {
        Self { magic: 0, ..Self::from_caller() }
    }

    /// How many bytes of a body are to come before anything else.
    #[must_use]
    pub const fn body_left(&self) -> u32 {
        self.split.body_left()
    }

    /// So many bytes of the body have come another way, no more than there are: they are no piece.
    pub const fn pass_over(&mut self, bytes: u32) {
        self.split.pass_over(bytes);
    }

    /// The next piece, taken off the front of `bytes`; `None` when more bytes are needed.
    ///
    /// # Errors
    /// What no frame may be.
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

/// The version that both speak: the highest in common; `None`: there is none.
#[must_use]
pub const fn negotiate(version_min: u16, version_max: u16) -> Option<u16> {
    highest_in_common((VERSION_MIN, VERSION_MAX), (version_min, version_max))
}

fn body_error(kind: u16) -> impl Fn(BodyError) -> FrameError {
    move |why| FrameError::Body { kind, why }
}

/// Bounds on the fields of a frame that is not data.
const fn limits() -> &'static rendezvous_core::limits::FrameLimits {
    &RPC_FRAME
}

#[cfg(test)]
mod tests;
