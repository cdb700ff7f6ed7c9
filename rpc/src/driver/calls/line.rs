//! Socket of a connection: it reads payloads into their destination, and writes them from where they are stored.

use super::Payload;
use super::received::{BufferPool, LONG_BYTES_MIN};
use super::transport::{TLS_REFUSED, Transport};
use crate::connection::{ConnectionError, ToWrite};
use crate::wire::HEADER_BYTES;
use alloc::collections::VecDeque;
use core::mem::MaybeUninit;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::socket::{Idle, classify, look};
use rendezvous_core::error::Cause;
use rendezvous_core::ordered::Map;
use rendezvous_core::proof::Bytes32;
use socket2::MaybeUninitSlice;
use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::string::ToString;

/// Bytes to be written.
#[derive(Debug)]
enum Segment {
    Bytes(Vec<u8>),
    Part { call: u64, payload: Payload, offset: usize, bytes: usize },
}

impl Segment {
    fn into_payload(self) -> Option<Payload> {
        match self {
            Self::Bytes(_) => None,
            Self::Part { payload, .. } => Some(payload),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Part { payload, offset, bytes, .. } => {
                payload.bytes().get(*offset..*offset + *bytes).unwrap_or_default()
            }
        }
    }
}

/// Bytes that a state machine has handed out and the socket has not accepted.
#[derive(Debug, Default)]
struct Unsent {
    segments: VecDeque<Segment>,
    /// Number of bytes of the first segment that the socket has accepted.
    taken: usize,
    bytes: usize,
}

/// Maximum length of a part that is copied to the bytes before it.
const COPIED_BYTES_MAX: usize = 8 * 1024;
/// Number of bytes requested from the state machine before the socket is written to.
const UNSENT_BYTES: usize = 256 * 1024;
const SLICES_PER_WRITE: usize = 16;

impl Unsent {
    /// Appends what a state machine hands out, with the payload of the call to which a part belongs.
    fn put(&mut self, write: ToWrite, payloads: &Map<u64, Payload>) {
        match write {
            ToWrite::Bytes(bytes) => {
                self.bytes += bytes.len();
                match self.segments.back_mut() {
                    Some(Segment::Bytes(last)) => last.extend_from_slice(&bytes),
                    _ => self.segments.push_back(Segment::Bytes(bytes)),
                }
            }
            ToWrite::Part { header, call, offset, bytes } => {
                let (Some(payload), Ok(offset)) = (payloads.get(call), usize::try_from(offset)) else {
                    return;
                };
                let bytes = bytes as usize;
                self.bytes += HEADER_BYTES + bytes;
                if !matches!(self.segments.back(), Some(Segment::Bytes(_))) {
                    self.segments.push_back(Segment::Bytes(Vec::new()));
                }
                let part = Segment::Part { call, payload: payload.clone(), offset, bytes };
                if let Some(Segment::Bytes(last)) = self.segments.back_mut() {
                    last.extend_from_slice(&header);
                    if bytes <= COPIED_BYTES_MAX {
                        last.extend_from_slice(part.bytes());
                        return;
                    }
                }
                self.segments.push_back(part);
            }
        }
    }

    /// Copies the unwritten rest of a call's payload: a part whose header was written must follow completely. That is
    /// little more than one part.
    fn let_go(&mut self, call: u64, released: &mut Vec<Payload>) {
        for segment in &mut self.segments {
            if matches!(segment, Segment::Part { call: of, .. } if *of == call) {
                let copy = Segment::Bytes(segment.bytes().to_vec());
                released.extend(core::mem::replace(segment, copy).into_payload());
            }
        }
    }

    fn took(&mut self, bytes: usize, released: &mut Vec<Payload>) {
        self.bytes -= bytes;
        self.taken += bytes;
        while let Some(first) = self.segments.front().map(|first| first.bytes().len()) {
            if self.taken < first {
                break;
            }
            self.taken -= first;
            released.extend(self.segments.pop_front().and_then(Segment::into_payload));
        }
    }
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// This many bytes are in the target; the others are in the scratch buffer. There may be more to read.
    More(usize),
    /// Like [`Got::More`], and the socket is empty.
    Last(usize),
    /// Nothing for now.
    Nothing,
    /// The peer has closed the connection.
    End,
}

/// Number of bytes that are read after those of the target.
const LOOKAHEAD_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Line {
    transport: Transport,
    unsent: Unsent,
}

impl Line {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, unsent: Unsent::default() }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.transport.socket().as_raw_fd()
    }

    /// Returns whether bytes may be sent: not before the end of the TLS handshake.
    pub(super) fn is_ready(&self) -> bool {
        self.transport.is_ready()
    }

    /// Returns the binding to an encrypted channel, if there is one.
    pub(super) fn binding(&self) -> Option<Bytes32> {
        self.transport.binding()
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.bytes > 0 || self.transport.has_unsent()
    }

    /// Returns whether the connection waits for space in the socket's buffer. Received bytes that were decrypted and not
    /// read count, too: no event but that of a writable socket reports them.
    pub(super) fn wants_write(&self) -> bool {
        let waits = self.unsent.bytes > 0 && self.transport.is_ready();
        waits || self.transport.has_unsent() || self.transport.has_received()
    }

    /// Returns whether the peer has sent bytes that were decrypted and not read.
    pub(super) fn has_received(&self) -> bool {
        self.transport.has_received()
    }

    /// Returns whether the connection uses TLS.
    pub(super) const fn is_secured(&self) -> bool {
        self.transport.is_secured()
    }

    /// The payload of this call is to be released; the unwritten rest of it is copied.
    pub(super) fn let_go(&mut self, call: u64, released: &mut Vec<Payload>) {
        self.unsent.let_go(call, released);
    }

    /// Closes the socket.
    pub(super) fn close(mut self, released: &mut Vec<Payload>) {
        self.transport.end();
        released.extend(self.unsent.segments.into_iter().filter_map(Segment::into_payload));
    }

    /// Returns the condition of an idle connection.
    pub(super) fn look(&self) -> Idle {
        look(self.transport.socket())
    }

    /// Shuts the socket down in both directions, which wakes the thread that polls it.
    pub(super) fn shut_down(&self) {
        // A failure means that the connection has ended already.
        self.transport.socket().shutdown(Shutdown::Both).ok();
    }

    /// Writes as much as the socket accepts. `poll_write` returns the next bytes; the parts of payloads are taken from
    /// `payloads`.
    pub(super) fn flush(
        &mut self,
        payloads: &Map<u64, Payload>,
        released: &mut Vec<Payload>,
        poll_write: &mut dyn FnMut() -> Option<ToWrite>,
    ) -> io::Result<()> {
        let mut is_dry = false;
        loop {
            while !is_dry && self.unsent.bytes < UNSENT_BYTES {
                match poll_write() {
                    Some(write) => self.unsent.put(write, payloads),
                    None => is_dry = true,
                }
            }
            if self.unsent.bytes == 0 || !self.transport.is_ready() {
                return match self.transport.flush() {
                    Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                    _ => Ok(()),
                };
            }
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            let mut skip = self.unsent.taken;
            for (slice, segment) in slices.iter_mut().zip(&self.unsent.segments) {
                *slice = IoSlice::new(segment.bytes().get(skip..).unwrap_or_default());
                skip = 0;
            }
            let count = self.unsent.segments.len().min(SLICES_PER_WRITE);
            match self.transport.write(slices.get(..count).unwrap_or_default()) {
                Ok(bytes) => self.unsent.took(bytes, released),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once: first into `target`, and the rest into `scratch`, which is empty.
    fn read(&mut self, target: &mut [MaybeUninit<u8>], scratch: &mut Vec<u8>) -> io::Result<Got> {
        let target_bytes = target.len();
        // The due bytes are followed by the next header, and perhaps by more bytes that belong into another target.
        let spare_bytes =
            if target.is_empty() { scratch.capacity() } else { LOOKAHEAD_BYTES.min(scratch.capacity()) };
        let total_bytes = target_bytes + spare_bytes;
        let got = loop {
            let spare = scratch.spare_capacity_mut().get_mut(..spare_bytes).unwrap_or_default();
            let spare = MaybeUninitSlice::new(spare);
            let got = match target.is_empty() {
                true => self.transport.read(&mut [spare]),
                false => self.transport.read(&mut [MaybeUninitSlice::new(target), spare]),
            };
            match got {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Got::Nothing),
                got => break got?,
            }
        };
        let in_target = got.min(target_bytes);
        // SAFETY: the system filled the target first, and then this many bytes of the scratch buffer.
        unsafe { scratch.set_len(got - in_target) };
        Ok(match got {
            0 => Got::End,
            // One read of TLS is one record at most.
            _ if got < total_bytes && !self.transport.is_secured() => Got::Last(in_target),
            _ => Got::More(in_target),
        })
    }
}

/// Result of reading the bytes of a payload and those after them.
pub(super) enum ReadResult {
    /// This many bytes were read to the payload, and others may be in the scratch buffer. The flag says whether there may
    /// be more to read.
    Read(u32, bool),
    /// There is no memory for the payload; nothing was read.
    NoMemory,
    /// The connection has ended for this reason.
    Lost(ConnectionError),
}

impl Line {
    /// Reads once. `due` is the payload whose bytes come next, and how many at least.
    pub(super) fn read_payload(
        &mut self,
        due: Option<(&mut Incoming, u32)>,
        scratch: &mut Vec<u8>,
    ) -> ReadResult {
        let (mut payload, due) = due.map_or((None, 0), |(payload, due)| (Some(payload), due));
        let target = match payload.as_mut().map(|payload| payload.target(due)) {
            Some(Ok(target)) => target,
            Some(Err(NoMemory)) => return ReadResult::NoMemory,
            None => &mut [],
        };
        let (bytes, is_more) = match self.read(target, scratch) {
            Ok(Got::More(bytes)) => (bytes, true),
            Ok(Got::Last(bytes)) => (bytes, false),
            Ok(Got::Nothing) => (0, false),
            Ok(Got::End) => return ReadResult::Lost(closed()),
            Err(error) => return ReadResult::Lost(lost(&error)),
        };
        if let (Some(payload), 1..) = (payload, bytes) {
            // SAFETY: the socket has filled this many bytes of the target.
            unsafe { payload.filled(bytes) };
        }
        // The target was not longer than what was due, which is a `u32`.
        ReadResult::Read(u32::try_from(bytes).unwrap_or(due), is_more)
    }
}

/// Converts an error of the socket.
pub(super) fn lost(error: &io::Error) -> ConnectionError {
    let (_, cause) = classify(error);
    match cause {
        Cause::Os(number) => ConnectionError::Lost(io::Error::from_raw_os_error(number).to_string().into()),
        _ if error.kind() == TLS_REFUSED => ConnectionError::TlsRefused(error.to_string().into()),
        _ => ConnectionError::Lost(error.to_string().into()),
    }
}

/// The peer closed the connection without a goodbye.
fn closed() -> ConnectionError {
    ConnectionError::Lost("the other end closed it".into())
}

/// Payload that is being received. It grows with the received bytes, so that a large announced length alone allocates
/// nothing.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    announced: usize,
}

/// First capacity of a long payload, in bytes.
const FIRST_BYTES: usize = 1024 * 1024;
/// Factor between the received bytes and the next capacity. Capacity without received bytes takes no physical memory.
const GROWTH: usize = 8;
const PAGE_BYTES: usize = 4096;
/// Minimum number of bytes that are read to their destination directly.
const IN_TARGET_BYTES_MIN: usize = 32 * 1024;

/// There is no memory for a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

impl Incoming {
    pub(super) fn new(announced: u64) -> Self {
        Self { bytes: Vec::new(), announced: usize::try_from(announced).unwrap_or(usize::MAX) }
    }

    /// Creates a payload in a buffer of the pool, if it has one.
    pub(super) fn with(announced: u64, buffer_pool: &BufferPool, now: Instant) -> Self {
        let incoming = Self::new(announced);
        Self { bytes: buffer_pool.take(now, incoming.announced).unwrap_or_default(), ..incoming }
    }

    /// Returns the number of bytes that have arrived.
    pub(super) fn arrived(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the destination of the next `due` bytes, or of some of them; empty if they are few.
    fn target(&mut self, due: u32) -> Result<&mut [MaybeUninit<u8>], NoMemory> {
        let due = due as usize;
        if due < IN_TARGET_BYTES_MIN {
            return Ok(&mut []);
        }
        self.reserve(due)?;
        let spare = self.bytes.spare_capacity_mut();
        let end = due.min(spare.len());
        Ok(spare.get_mut(..end).unwrap_or_default())
    }

    fn reserve(&mut self, due: usize) -> Result<(), NoMemory> {
        let have = self.bytes.len();
        if self.bytes.capacity() - have >= due {
            return Ok(());
        }
        let at_least = have + due;
        let wanted = have.saturating_mul(GROWTH).max(FIRST_BYTES).min(self.announced).max(at_least);
        self.bytes.try_reserve_exact(wanted - have).map_err(|_| NoMemory)?;
        if self.bytes.capacity() >= LONG_BYTES_MIN {
            self.prefer_large_pages();
        }
        Ok(())
    }

    /// Small pages would fault one by one: to receive 64 MiB into a new buffer would take almost twice as long.
    fn prefer_large_pages(&mut self) {
        let begin = self.bytes.as_mut_ptr();
        // All of its pages: a mapping with mixed flags could not be moved as a whole.
        let before = begin.addr() % PAGE_BYTES;
        // SAFETY: the pages exist; this is a hint, which does not change their contents, and which a system may ignore.
        unsafe {
            let first = begin.wrapping_sub(before);
            libc::madvise(first.cast(), self.bytes.capacity() + before, libc::MADV_HUGEPAGE);
        }
    }

    /// Records that this many bytes of the target were filled.
    ///
    /// # Safety
    /// They were.
    unsafe fn filled(&mut self, bytes: usize) {
        let have = self.bytes.len() + bytes;
        debug_assert!(have <= self.bytes.capacity(), "no more than there was room for");
        // SAFETY: by the caller's contract.
        unsafe { self.bytes.set_len(have) };
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), NoMemory> {
        if self.bytes.capacity() == 0 && self.announced < FIRST_BYTES {
            self.bytes.try_reserve_exact(self.announced).map_err(|_| NoMemory)?;
        }
        self.reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
