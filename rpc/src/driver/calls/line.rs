//! A connection's socket: what is read goes where it belongs, what is written comes from where it lies.

use super::Payload;
use super::received::{BufferPool, LONG_BYTES_MIN};
use crate::connection::{ConnectionError, ToWrite};
use crate::wire::HEADER_BYTES;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use rendezvous_core::driver::socket::{Idle, classify, look, shut_down};
use rendezvous_core::error::Cause;
use rendezvous_core::time::Instant;
use socket2::{MaybeUninitSlice, SockAddr, Socket};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::string::ToString;

/// What carries the bytes. Whoever encrypts them or asks who the peer is stands here, between socket and frames.
#[derive(Debug)]
pub(super) enum Transport {
    /// The bytes as they are.
    Plain(Socket),
}

/// Send buffer between processes of one host. What is under way between them lies in the processor's cache then, and not in
/// memory: a long payload takes half the time. Over a network, the system finds out for itself how much is to be under way.
const LOCAL_SEND_BYTES: usize = 256 * 1024;

impl Transport {
    pub(super) fn plain(socket: Socket) -> Self {
        let host = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip());
        if host(socket.local_addr()) == host(socket.peer_addr()) {
            // It is a little slower without.
            socket.set_send_buffer_size(LOCAL_SEND_BYTES).ok();
        }
        Self::Plain(socket)
    }

    fn socket(&self) -> &Socket {
        let Self::Plain(socket) = self;
        socket
    }

    fn read(&self, into: &mut [MaybeUninitSlice<'_>]) -> io::Result<usize> {
        match into {
            [one] => self.socket().recv(one),
            several => self.socket().recv_vectored(several).map(|(bytes, _)| bytes),
        }
    }

    fn write(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        // Without the flag, a connection that ended would end a process that does not expect SIGPIPE.
        match from {
            [one] => self.socket().send_with_flags(one, libc::MSG_NOSIGNAL),
            several => self.socket().send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
        }
    }
}

/// Something to write.
#[derive(Debug)]
enum Segment {
    Bytes(Vec<u8>),
    Part { call: u64, payload: Payload, offset: usize, bytes: usize },
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Part { payload, offset, bytes, .. } => {
                payload.bytes().get(*offset..*offset + *bytes).unwrap_or_default()
            }
        }
    }
}

/// What a machine handed out and the socket has not taken.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    segments: VecDeque<Segment>,
    /// Of the first segment, what was taken.
    taken: usize,
    bytes: usize,
}

/// Parts up to this length are put together with what is before them.
const COPIED_BYTES_MAX: usize = 8 * 1024;
/// So much is asked for before the socket is.
const UNSENT_BYTES: usize = 256 * 1024;
const SLICES_PER_WRITE: usize = 16;

impl Unsent {
    /// Takes what a machine wants to have written; `payload` is that of the call that a part is of.
    pub(super) fn put(&mut self, write: ToWrite, payload: Option<&Payload>) {
        match write {
            ToWrite::Bytes(bytes) => {
                self.bytes += bytes.len();
                match self.segments.back_mut() {
                    Some(Segment::Bytes(last)) => last.extend_from_slice(&bytes),
                    _ => self.segments.push_back(Segment::Bytes(bytes)),
                }
            }
            ToWrite::Part { header, call, offset, bytes } => {
                let (Some(payload), Ok(offset)) = (payload, usize::try_from(offset)) else { return };
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

    /// Keeps a copy of what is left of a call's payload: a part that was announced goes out as a whole. That is little more
    /// than one part.
    fn let_go(&mut self, call: u64) {
        for segment in &mut self.segments {
            if matches!(segment, Segment::Part { call: of, .. } if *of == call) {
                *segment = Segment::Bytes(segment.bytes().to_vec());
            }
        }
    }

    fn took(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.taken += bytes;
        while let Some(first) = self.segments.front().map(|first| first.bytes().len()) {
            if self.taken < first {
                break;
            }
            self.taken -= first;
            self.segments.pop_front();
        }
    }
}

/// Whether all is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// It is.
    All,
    /// The socket takes no more for now.
    Full,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// So many bytes where they belong; the others are in the scratch buffer. There may be more to read.
    More(usize),
    /// The same, and the socket is empty.
    Last(usize),
    /// Nothing for now.
    Nothing,
    /// The peer has ended the connection.
    End,
}

/// Bytes that are read behind those that are read to where they belong.
const LOOKAHEAD_BYTES: usize = 1024;
/// Bytes of a scratch buffer.
pub(super) const SCRATCH_BYTES: usize = 64 * 1024;

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

    pub(super) fn has_unsent(&self) -> bool {
        self.unsent.bytes > 0
    }

    /// The payload of this call is needed no more; what is left to write of it is copied.
    pub(super) fn let_go(&mut self, call: u64) {
        self.unsent.let_go(call);
    }

    /// What an idle connection shows.
    pub(super) fn look(&self) -> Idle {
        look(self.fd())
    }

    /// Ends it both ways; whoever waits for it hears of it.
    pub(super) fn shut_down(&self) {
        shut_down(self.fd());
    }

    /// Writes as much as the socket takes. `more` puts the next thing, and tells whether there was one.
    pub(super) fn flush(&mut self, more: &mut dyn FnMut(&mut Unsent) -> bool) -> io::Result<Flushed> {
        let mut is_dry = false;
        loop {
            while !is_dry && self.unsent.bytes < UNSENT_BYTES {
                is_dry = !more(&mut self.unsent);
            }
            if self.unsent.bytes == 0 {
                return Ok(Flushed::All);
            }
            let mut slices = [IoSlice::new(&[]); SLICES_PER_WRITE];
            let mut skip = self.unsent.taken;
            for (slice, segment) in slices.iter_mut().zip(&self.unsent.segments) {
                *slice = IoSlice::new(segment.bytes().get(skip..).unwrap_or_default());
                skip = 0;
            }
            let count = self.unsent.segments.len().min(SLICES_PER_WRITE);
            match self.transport.write(slices.get(..count).unwrap_or_default()) {
                Ok(bytes) => self.unsent.took(bytes),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Flushed::Full),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once: first into `target`, and what is more into `scratch`, which is empty.
    pub(super) fn read(&self, target: &mut [MaybeUninit<u8>], scratch: &mut Vec<u8>) -> io::Result<Got> {
        let target_bytes = target.len();
        // Behind what is due comes the next header, and then perhaps more that should not come here.
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
        // SAFETY: the system filled the place first and then so many bytes of the scratch buffer.
        unsafe { scratch.set_len(got - in_target) };
        Ok(match got {
            0 => Got::End,
            _ if got < total_bytes => Got::Last(in_target),
            _ => Got::More(in_target),
        })
    }
}

/// Why a connection ended, by an error of its socket.
pub(super) fn lost(error: &io::Error) -> ConnectionError {
    let (_, cause) = classify(error);
    match cause {
        Cause::Os(number) => ConnectionError::Lost(io::Error::from_raw_os_error(number).to_string().into()),
        _ => ConnectionError::Lost(error.to_string().into()),
    }
}

/// The peer ended the connection without a word.
pub(super) fn closed() -> ConnectionError {
    ConnectionError::Lost("the other end closed it".into())
}

/// A payload on its way in. It grows with what has come, so that a length alone costs nothing.
#[derive(Debug)]
pub(super) struct Incoming {
    bytes: Vec<u8>,
    announced: usize,
}

/// The first room of a long payload, in bytes.
const FIRST_BYTES: usize = 1024 * 1024;
/// How many times as long as what has come the room becomes. What nothing has come to takes no memory.
const GROWTH: usize = 8;
const PAGE_BYTES: usize = 4096;
/// From this length on, what comes is read to where it belongs.
const IN_TARGET_BYTES_MIN: usize = 32 * 1024;

/// There is no memory for a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

impl Incoming {
    pub(super) fn new(announced: u64) -> Self {
        Self { bytes: Vec::new(), announced: usize::try_from(announced).unwrap_or(usize::MAX) }
    }

    /// The same in a buffer of the shelf's, if it has one.
    pub(super) fn with(announced: u64, buffer_pool: &BufferPool, now: Instant) -> Self {
        let incoming = Self::new(announced);
        Self { bytes: buffer_pool.take(now, incoming.announced).unwrap_or_default(), ..incoming }
    }

    /// Room for the next `due` bytes, or for some of them; none where they are few.
    pub(super) fn target(&mut self, due: u32) -> Result<&mut [MaybeUninit<u8>], NoMemory> {
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

    /// The small ones would be asked for one by one.
    fn prefer_large_pages(&mut self) {
        let begin = self.bytes.as_mut_ptr();
        // All of its pages: where only some were of another kind, the whole could not be moved as one.
        let before = begin.addr() % PAGE_BYTES;
        // SAFETY: pages that exist; it is a hint, which changes nothing that is in them, and which a system may refuse.
        unsafe {
            let first = begin.wrapping_sub(before);
            libc::madvise(first.cast(), self.bytes.capacity() + before, libc::MADV_HUGEPAGE);
        }
    }

    /// So many bytes are in the room that was given.
    ///
    /// # Safety
    /// They are.
    pub(super) unsafe fn filled(&mut self, bytes: usize) {
        let have = self.bytes.len() + bytes;
        debug_assert!(have <= self.bytes.capacity(), "no more than there was room for");
        // SAFETY: the caller's promise.
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
