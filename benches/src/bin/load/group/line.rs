//! One connection under load.

use super::LoadError;
use super::awaited::{Awaited, Judged};
use crate::frames::Frames;
use mio::net::TcpStream;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::time::Instant;
use rendezvous_core::wire::native::{self, From, HEADER_BYTES, Scan};
use std::io::{self, Read, Write};
use std::rc::Rc;

/// What a connection is to send, and what answers it.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    /// The first so many operations of these; the answers are known to the byte.
    Batch { frames: Rc<Frames>, operations: usize },
    /// Native frames, or none; then one that is awaited comes among others.
    Until { request: Vec<u8>, awaited: Awaited },
}

impl Task {
    /// The first operation.
    pub(crate) const fn one(frames: Rc<Frames>) -> Self {
        Self::Batch { frames, operations: 1 }
    }

    fn request(&self) -> &[u8] {
        match self {
            Self::Batch { frames, operations } => frames.first(*operations).0,
            Self::Until { request, .. } => request,
        }
    }
}

#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    state: LineState,
    /// What was asked and is not yet answered.
    pending: Option<PendingRequest>,
    /// Of one that also gets what it did not ask for: the start of a frame.
    inbox: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Connecting,
    Connected,
}

#[derive(Debug)]
struct PendingRequest {
    task: Task,
    sent: usize,
    received: usize,
    at: Instant,
}

impl Line {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self { stream, state: LineState::Connecting, pending: None, inbox: None }
    }

    pub(super) fn ask(&mut self, task: Task, at: Instant) -> Result<(), LoadError> {
        if let Task::Until { .. } = task {
            self.inbox.get_or_insert_default();
        }
        self.pending = Some(PendingRequest { task, sent: 0, received: 0, at });
        self.send()
    }

    pub(super) fn is_connected(&mut self) -> Result<bool, LoadError> {
        if self.state == LineState::Connecting {
            if let Some(error) = self.stream.take_error().map_err(LoadError::Connect)? {
                return Err(LoadError::Connect(error));
            }
            match self.stream.peer_addr() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(LoadError::Connect(error)),
            }
            self.stream.set_nodelay(true).map_err(LoadError::Connect)?;
            self.state = LineState::Connected;
        }
        Ok(true)
    }

    /// Sends what the socket takes of what was asked.
    pub(super) fn send(&mut self) -> Result<(), LoadError> {
        if !self.is_connected()? {
            return Ok(());
        }
        let Some(PendingRequest { task, sent, .. }) = &mut self.pending else { return Ok(()) };
        let request = task.request();
        while *sent < request.len() {
            match self.stream.write(&request[*sent..]) {
                Ok(more) => *sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(LoadError::Lost(error)),
            }
        }
        Ok(())
    }

    /// Receives what is there, and tells when what was asked was so when it is answered whole.
    pub(super) fn receive(&mut self, buffer: &mut [u8], closing: bool) -> Result<Option<Instant>, LoadError> {
        if self.state == LineState::Connecting {
            return Ok(None);
        }
        let mut had_reply = None;
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => return Err(LoadError::Closed),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(had_reply),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(LoadError::Lost(error)),
            };
            had_reply = had_reply.or(self.take(&buffer[..got])?);
            // Events come once for each arrival of bytes. A read that leaves room took all there were, and the next
            // ones are a new event; but an end that came with them is not.
            if got < buffer.len() && (had_reply.is_some() || !closing) {
                return Ok(had_reply);
            }
        }
    }

    /// Takes bytes in.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<Instant>, LoadError> {
        if let Some(inbox) = &mut self.inbox {
            inbox.extend_from_slice(bytes);
            return self.take_frames();
        }
        match &mut self.pending {
            Some(PendingRequest { task: Task::Batch { frames, operations }, received, .. }) => {
                let (_, due) = frames.first(*operations);
                if bytes.len() > due - *received || !frames.allow(*received, bytes) {
                    return Err(LoadError::Garbage);
                }
                *received += bytes.len();
                let is_whole = *received == due;
                Ok(self.pending.take_if(|_| is_whole).map(|pending| pending.at))
            }
            _ => Err(LoadError::Garbage),
        }
    }

    fn take_frames(&mut self) -> Result<Option<Instant>, LoadError> {
        let Some(inbox) = &mut self.inbox else { return Ok(None) };
        let limits = FrameLimits::default();
        let (mut had_reply, mut begin) = (None, 0);
        while let Scan::Whole { header, bytes } =
            native::scan(&inbox[begin..], From::Server, &limits).map_err(|_| LoadError::Garbage)?
        {
            let body = &inbox[begin + HEADER_BYTES..begin + bytes];
            let awaited = match &self.pending {
                Some(PendingRequest { task: Task::Until { awaited, .. }, .. }) => awaited,
                Some(_) => return Err(LoadError::Garbage),
                None => &Awaited::Nothing,
            };
            match awaited.judge(header.kind, body, &limits) {
                Judged::Awaited => had_reply = self.pending.take().map(|pending| pending.at),
                Judged::Other => {}
                Judged::Wrong => return Err(LoadError::Garbage),
            }
            begin += bytes;
        }
        inbox.drain(..begin);
        Ok(had_reply)
    }
}
