//! One connection under load.

use super::Trouble;
use super::awaited::{Awaited, Judged};
use crate::bench::frames::Frames;
use mio::net::TcpStream;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::time::Instant;
use rendezvous_core::wire::native::{self, From, HEADER_BYTES, Scan};
use std::io::{self, Read, Write};
use std::rc::Rc;

/// What a connection is to send, and what answers it.
#[derive(Clone, Debug)]
pub(in crate::bench) enum Task {
    /// The first so many operations of these; the answers are known to the byte.
    Batch { frames: Rc<Frames>, operations: usize },
    /// Native frames, or none; then one that is awaited comes among others.
    Until { request: Vec<u8>, awaited: Awaited },
}

impl Task {
    /// The first operation.
    pub(in crate::bench) const fn one(frames: Rc<Frames>) -> Self {
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
    asked: Option<Asked>,
    /// Of one that also gets what it did not ask for: the start of a frame.
    inbox: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Connecting,
    Connected,
}

#[derive(Debug)]
struct Asked {
    task: Task,
    sent: usize,
    received: usize,
    at: Instant,
}

impl Line {
    pub(super) const fn new(stream: TcpStream) -> Self {
        Self { stream, state: LineState::Connecting, asked: None, inbox: None }
    }

    pub(super) fn ask(&mut self, task: Task, at: Instant) -> Result<(), Trouble> {
        if let Task::Until { .. } = task {
            self.inbox.get_or_insert_default();
        }
        self.asked = Some(Asked { task, sent: 0, received: 0, at });
        self.send()
    }

    pub(super) fn is_connected(&mut self) -> Result<bool, Trouble> {
        if self.state == LineState::Connecting {
            if let Some(error) = self.stream.take_error().map_err(Trouble::Connect)? {
                return Err(Trouble::Connect(error));
            }
            match self.stream.peer_addr() {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(Trouble::Connect(error)),
            }
            self.stream.set_nodelay(true).map_err(Trouble::Connect)?;
            self.state = LineState::Connected;
        }
        Ok(true)
    }

    /// Sends what the socket takes of what was asked.
    pub(super) fn send(&mut self) -> Result<(), Trouble> {
        if !self.is_connected()? {
            return Ok(());
        }
        let Some(Asked { task, sent, .. }) = &mut self.asked else { return Ok(()) };
        let request = task.request();
        while *sent < request.len() {
            match self.stream.write(&request[*sent..]) {
                Ok(more) => *sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Lost(error)),
            }
        }
        Ok(())
    }

    /// Receives what is there, and tells when what was asked was so when it is answered whole.
    pub(super) fn receive(&mut self, buffer: &mut [u8], closing: bool) -> Result<Option<Instant>, Trouble> {
        if self.state == LineState::Connecting {
            return Ok(None);
        }
        let mut answered = None;
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => return Err(Trouble::Closed),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(answered),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Trouble::Lost(error)),
            };
            answered = answered.or(self.take(&buffer[..got])?);
            // Events come once for each arrival of bytes. A read that leaves room took all there were, and the next
            // ones are a new event; but an end that came with them is not.
            if got < buffer.len() && (answered.is_some() || !closing) {
                return Ok(answered);
            }
        }
    }

    /// Takes bytes in.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<Instant>, Trouble> {
        if let Some(inbox) = &mut self.inbox {
            inbox.extend_from_slice(bytes);
            return self.take_frames();
        }
        match &mut self.asked {
            Some(Asked { task: Task::Batch { frames, operations }, received, .. }) => {
                let (_, due) = frames.first(*operations);
                if bytes.len() > due - *received || !frames.allow(*received, bytes) {
                    return Err(Trouble::Garbage);
                }
                *received += bytes.len();
                let is_whole = *received == due;
                Ok(self.asked.take_if(|_| is_whole).map(|asked| asked.at))
            }
            _ => Err(Trouble::Garbage),
        }
    }

    fn take_frames(&mut self) -> Result<Option<Instant>, Trouble> {
        let Some(inbox) = &mut self.inbox else { return Ok(None) };
        let limits = FrameLimits::default();
        let (mut answered, mut begin) = (None, 0);
        while let Scan::Whole { header, bytes } =
            native::scan(&inbox[begin..], From::Server, &limits).map_err(|_| Trouble::Garbage)?
        {
            let body = &inbox[begin + HEADER_BYTES..begin + bytes];
            let awaited = match &self.asked {
                Some(Asked { task: Task::Until { awaited, .. }, .. }) => awaited,
                Some(_) => return Err(Trouble::Garbage),
                None => &Awaited::Nothing,
            };
            match awaited.judge(header.kind, body, &limits) {
                Judged::Awaited => answered = self.asked.take().map(|asked| asked.at),
                Judged::Other => {}
                Judged::Wrong => return Err(Trouble::Garbage),
            }
            begin += bytes;
        }
        inbox.drain(..begin);
        Ok(answered)
    }
}
