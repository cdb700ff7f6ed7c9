//! Codec of the native protocol, version 1: frames with a fixed header, requests with ids, numbered answers and
//! pushes.
//!
//! The protocol is specified in `docs/protocol/native.md`, whose examples are test vectors here. The codec keeps no
//! state and no bytes: it parses frames from borrowed bytes, and writes them into any [`Sink`].

mod fault;
mod field;
mod frames;
mod record;

pub use super::message::Message;
pub use fault::{Fault, FaultCode};
pub use field::{Body, BodyError, Field, List};
pub use frames::{Batched, ClientFrame, SMALL_BYTES_MAX, ServerFrame, Size};
pub use record::{
    BarrierEnd, Change, Entry, Found, LastCall, Member, Participants, RankOrder, SessionEntry, Terms, Why,
};

use crate::limits::FrameLimits;
use crate::wire::sink::{Length, Sink};
use crate::wire::split::{self, Split};
use crate::wire::version::highest_in_common;

/// First bytes of a connection from a client.
pub const MAGIC: [u8; 4] = *b"RDZV";
/// Length of a frame's header, in bytes.
pub const HEADER_BYTES: usize = 24;
/// Oldest supported version.
pub const VERSION_MIN: u16 = 1;
/// Newest supported version.
pub const VERSION_MAX: u16 = 1;
/// Kind of HELLO; the same in every version.
pub const HELLO: u16 = 0x0001;
/// Maximum body of a HELLO, in bytes: all that a server buffers for a client without a session.
pub const HELLO_BYTES_MAX: u64 = 4096;
/// Longest frame that a client accepts from a server before WELCOME, in bytes. The longest is an Error with its text.
pub const GREETING_BYTES_MAX: usize = 8192;

/// Flag: the request may have been sent before, on a connection that has ended.
pub const FLAG_RESENT: u16 = 0x0001;
/// Mask of the flags that the receiver must understand; version 1 has none.
pub const FLAGS_CRITICAL: u16 = 0xff00;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the body, in bytes.
    pub body_bytes: u32,
    /// Kind of the frame.
    pub kind: u16,
    /// Flags; the receiver ignores those that it does not know, except for [`FLAGS_CRITICAL`].
    pub flags: u16,
    /// Id of the request that this frame is, answers, or results from; 0 when there is none.
    pub id: u64,
    /// From a server: the sequence number of this frame in its session, 0 when it has none. From a client: the
    /// highest sequence number that it has received.
    pub sequence: u64,
}

/// Violation of the framing by a peer; the receiver must close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The connection does not begin with the magic.
    #[error("the connection does not begin with RDZV")]
    Magic,
    /// The first frame is not HELLO.
    #[error("a frame of kind {0:#06x} where HELLO is due")]
    NotHello(u16),
    /// The body exceeds the limit of its kind.
    #[error("a body of {bytes} bytes is over the limit of kind {kind:#06x}")]
    TooLong {
        /// Kind of the frame.
        kind: u16,
        /// The announced length, in bytes.
        bytes: u32,
    },
    /// A flag that the receiver must understand is unknown.
    #[error("flags {0:#06x} must be understood and are not")]
    Flags(u16),
}

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A client.
    Client,
    /// A server.
    Server,
}

/// Result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The frame is complete.
    Whole {
        /// The header.
        header: Header,
        /// Length of header and body, in bytes.
        bytes: usize,
    },
    /// The frame is incomplete; it has at least `bytes` bytes in all.
    Partial {
        /// Lower bound of the frame's length, in bytes.
        bytes: usize,
    },
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut fill = crate::wire::sink::Fill::new(&mut bytes);
        self.body_bytes.write(&mut fill);
        self.kind.write(&mut fill);
        self.flags.write(&mut fill);
        self.id.write(&mut fill);
        self.sequence.write(&mut fill);
        bytes
    }

    /// Parses and checks a header, before any of the body is buffered.
    ///
    /// # Errors
    /// The violation of the framing.
    pub fn read(bytes: &[u8; HEADER_BYTES], from: From, limits: &FrameLimits) -> Result<Self, FrameError> {
        let at = |index: usize| bytes[index];
        let u64_at = |index: usize| u64::from_le_bytes(core::array::from_fn(|byte| at(index + byte)));
        let header = Self {
            body_bytes: u32::from_le_bytes(core::array::from_fn(at)),
            kind: u16::from_le_bytes([at(4), at(5)]),
            flags: u16::from_le_bytes([at(6), at(7)]),
            id: u64_at(8),
            sequence: u64_at(16),
        };
        if header.flags & FLAGS_CRITICAL != 0 {
            return Err(FrameError::Flags(header.flags));
        }
        if u64::from(header.body_bytes) > body_bytes_max(header.kind, from, limits) {
            return Err(FrameError::TooLong { kind: header.kind, bytes: header.body_bytes });
        }
        Ok(header)
    }
}

/// Returns the maximum body of a frame of this kind, in bytes.
pub fn body_bytes_max(kind: u16, from: From, limits: &FrameLimits) -> u64 {
    let size = match (from, kind) {
        (From::Client, HELLO) => return HELLO_BYTES_MAX,
        (From::Client, _) => ClientFrame::size_of(kind),
        (From::Server, _) => ServerFrame::size_of(kind),
    };
    size.unwrap_or(Size::Small).bytes_max(limits)
}

/// Scans the frame that starts at `bytes[0]`.
///
/// # Errors
/// The violation of the framing.
pub fn scan(bytes: &[u8], from: From, limits: &FrameLimits) -> Result<Scan, FrameError> {
    let Some(head) = bytes.first_chunk() else { return Ok(Scan::Partial { bytes: HEADER_BYTES }) };
    let header = Header::read(head, from, limits)?;
    let whole = HEADER_BYTES.saturating_add(header.body_bytes as usize);
    Ok(if bytes.len() < whole {
        Scan::Partial { bytes: whole }
    } else {
        Scan::Whole { header, bytes: whole }
    })
}

/// Scans the start of a connection from a client: the magic and HELLO. The result is that of HELLO, which starts
/// after the four bytes of the magic.
///
/// # Errors
/// The violation of the framing.
pub fn scan_opening(bytes: &[u8], limits: &FrameLimits) -> Result<Scan, FrameError> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        return Err(FrameError::Magic);
    }
    Ok(match scan_hello(bytes.get(MAGIC.len()..).unwrap_or_default(), limits)? {
        Scan::Partial { bytes } => Scan::Partial { bytes: MAGIC.len() + bytes },
        whole @ Scan::Whole { .. } => whole,
    })
}

/// Scans a HELLO. Another kind is refused before its body has arrived.
///
/// # Errors
/// The violation of the framing.
pub fn scan_hello(bytes: &[u8], limits: &FrameLimits) -> Result<Scan, FrameError> {
    let scanned = scan(bytes, From::Client, limits)?;
    match bytes.get(4..6).and_then(|kind| kind.first_chunk()).map(|&kind| u16::from_le_bytes(kind)) {
        Some(kind) if kind != HELLO => Err(FrameError::NotHello(kind)),
        _ => Ok(scanned),
    }
}

/// Returns the highest version that both ends support.
///
/// # Errors
/// The fault to send to the client when there is none.
pub const fn negotiate(version_min: u16, version_max: u16) -> Result<u16, Fault<'static>> {
    match highest_in_common((VERSION_MIN, VERSION_MAX), (version_min, version_max)) {
        Some(version) => Ok(version),
        None => Err(Fault::new(FaultCode::VersionUnsupported, VERSION_MIN as u64, VERSION_MAX as u64)),
    }
}

/// Fields of a header other than the kind and the length of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// See [`Header::id`].
    pub id: u64,
    /// See [`Header::sequence`].
    pub sequence: u64,
    /// See [`Header::flags`].
    pub flags: u16,
}

/// Encodes a frame.
///
/// # Errors
/// The length of the body in bytes, when it exceeds 32 bits; nothing was written.
pub fn encode_frame(out: &mut dyn Sink, label: Label, frame: &impl Message) -> Result<(), usize> {
    let mut length = Length::default();
    frame.write_body(&mut length);
    let body_bytes = u32::try_from(length.0).map_err(|_| length.0)?;
    let Label { id, sequence, flags } = label;
    out.put(&Header { body_bytes, kind: frame.kind(), flags, id, sequence }.to_bytes());
    frame.write_body(out);
    Ok(())
}

/// Sink that keeps its bytes, so that a header can be written after its body.
pub trait Buffer: Sink {
    /// Overwrites earlier bytes, from position `at` on.
    fn overwrite(&mut self, at: usize, bytes: &[u8]);

    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Appends a frame to `out`, and encodes its fields only once.
///
/// # Errors
/// The length of the body in bytes, when it exceeds `body_bytes_max`; the caller must then truncate `out`.
pub fn append_frame(
    out: &mut impl Buffer,
    label: Label,
    frame: &impl Message,
    body_bytes_max: usize,
) -> Result<(), usize> {
    let start = out.len();
    out.put(&[0; HEADER_BYTES]);
    frame.write_body(out);
    let length = out.len() - start - HEADER_BYTES;
    let body_bytes = u32::try_from(length).ok().filter(|_| length <= body_bytes_max).ok_or(length)?;
    let Label { id, sequence, flags } = label;
    out.overwrite(start, &Header { body_bytes, kind: frame.kind(), flags, id, sequence }.to_bytes());
    Ok(())
}

/// Part of the byte stream of a connection.
pub type Chunk<'b> = split::Chunk<'b, Header>;

/// Incremental splitter of frames that buffers only the bytes of a header, for a reader without memory for the
/// longest frame.
#[derive(Clone, Copy, Debug)]
pub struct Splitter {
    from: From,
    split: Split<HEADER_BYTES>,
}

impl Splitter {
    /// Creates the splitter of the bytes of one end, after the magic.
    pub const fn new(from: From) -> Self {
        Self { from, split: Split::new() }
    }

    /// Returns the next chunk and removes it from the front of `bytes`; `None` when more bytes are required.
    ///
    /// # Errors
    /// The violation of the framing.
    pub fn next<'b>(
        &mut self,
        bytes: &mut &'b [u8],
        limits: &FrameLimits,
    ) -> Result<Option<Chunk<'b>>, FrameError> {
        let from = self.from;
        self.split
            .next(bytes, |head| Header::read(head, from, limits).map(|header| (header, header.body_bytes)))
    }
}

/// Returns the HELLO of a new session that asks for nothing special.
#[cfg(test)]
pub(crate) const fn plain_hello(node: &[u8]) -> ClientFrame<'_> {
    ClientFrame::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 0,
        heartbeat_ms: 0,
        heartbeats_missed_max: 0,
        node,
        auth: b"",
    }
}

#[cfg(test)]
mod tests;
