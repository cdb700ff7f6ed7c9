//! Many connections to one server, all driven by the calling thread.

use super::frames::Frames;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::time::Instant;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

const EVENTS_MAX: usize = 1024;
const BUFFER_BYTES: usize = 64 * 1024;

/// How a group connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dial {
    /// One connection after another, then all greetings.
    InTurn,
    /// All connects are issued before any is waited for.
    AllAtOnce,
}

/// Why a load cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// So many connections wait, and no answer came in time.
    Silent { waiting: usize },
    /// The server closed a connection.
    Closed,
    /// The server sent what cannot be an answer.
    Garbage,
    /// No connection could be made.
    Connect(io::Error),
    /// A connection failed.
    Lost(io::Error),
}

/// Connections that have been greeted.
#[derive(Debug)]
pub(super) struct Group {
    poll: Poll,
    events: Events,
    lines: Vec<Line>,
    /// Lines that wait for an answer.
    waiting: usize,
    buffer: Box<[u8]>,
    timeout: Duration,
    clock: Clock,
}

#[derive(Debug)]
struct Line {
    stream: TcpStream,
    state: LineState,
    /// What was asked and is not yet answered.
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Connecting,
    Connected,
}

#[derive(Debug)]
struct Asked {
    frames: Rc<Frames>,
    operations: usize,
    sent: usize,
    received: usize,
    at: Instant,
}

/// One answered batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// Which connection.
    pub(super) line: usize,
    /// From when it was asked to its last byte.
    pub(super) span: Duration,
}

/// What a connection is to ask next: the first so many operations of these.
pub(super) type Next = Option<(Rc<Frames>, usize)>;

impl Group {
    /// Makes and greets `count` connections; `greeted` is told how long each took, from its connect on.
    pub(super) fn dial(
        address: SocketAddr,
        count: usize,
        dial: Dial,
        timeout: Duration,
        mut greeted: impl FnMut(Duration),
    ) -> Result<Self, Trouble> {
        let mut group = Self {
            poll: Poll::new().map_err(Trouble::Connect)?,
            events: Events::with_capacity(EVENTS_MAX),
            lines: Vec::with_capacity(count),
            waiting: 0,
            buffer: vec![0; BUFFER_BYTES].into(),
            timeout,
            clock: Clock::new(),
        };
        let mut connects = Vec::with_capacity(count);
        for _ in 0..count {
            connects.push(group.clock.now());
            group.connect(address).map_err(Trouble::Connect)?;
            if dial == Dial::InTurn {
                group.await_connected()?;
            }
        }
        let greeting = Rc::new(Frames::greeting());
        for line in 0..count {
            group.ask(line, Rc::clone(&greeting), 1)?;
        }
        let clock = group.clock;
        group.run(|answered| {
            greeted(clock.now().since(connects[answered.line]));
            None
        })?;
        Ok(group)
    }

    pub(super) const fn len(&self) -> usize {
        self.lines.len()
    }

    /// Asks the first `operations` of `frames` on a connection that has nothing under way.
    pub(super) fn ask(&mut self, line: usize, frames: Rc<Frames>, operations: usize) -> Result<(), Trouble> {
        let at = self.clock.now();
        let line = &mut self.lines[line];
        line.asked = Some(Asked { frames, operations, sent: 0, received: 0, at });
        self.waiting += 1;
        line.send()
    }

    /// Runs until all that was asked is answered. After each answer, `next` says what its connection asks then.
    pub(super) fn run(&mut self, mut next: impl FnMut(Answered) -> Next) -> Result<(), Trouble> {
        let mut last_answer = self.clock.now();
        while self.waiting > 0 {
            self.wait_for_events(last_answer)?;
            let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            for event in &events {
                let index = event.token().0;
                let line = &mut self.lines[index];
                line.send()?;
                let closing = event.is_read_closed() || event.is_error();
                let Some(asked) = line.receive(&mut self.buffer, closing)? else { continue };
                last_answer = self.clock.now();
                self.waiting -= 1;
                let span = last_answer.since(asked.at);
                if let Some((frames, operations)) = next(Answered { line: index, span }) {
                    self.ask(index, frames, operations)?;
                }
            }
            self.events = events;
        }
        Ok(())
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut stream = TcpStream::connect(address)?;
        let token = Token(self.lines.len());
        self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.lines.push(Line { stream, state: LineState::Connecting, asked: None });
        Ok(())
    }

    /// Waits for the newest connection.
    fn await_connected(&mut self) -> Result<(), Trouble> {
        let began = self.clock.now();
        loop {
            let Some(line) = self.lines.last_mut() else { return Ok(()) };
            if line.is_connected()? {
                return Ok(());
            }
            self.wait_for_events(began)?;
        }
    }

    /// Waits for events, at most until `timeout` after `since`.
    fn wait_for_events(&mut self, since: Instant) -> Result<(), Trouble> {
        loop {
            let left = self.timeout.saturating_sub(self.clock.now().since(since));
            match self.poll.poll(&mut self.events, Some(left)) {
                Ok(()) if !self.events.is_empty() => return Ok(()),
                Ok(()) if left.is_zero() => return Err(Trouble::Silent { waiting: self.waiting.max(1) }),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Lost(error)),
            }
        }
    }
}

impl Line {
    fn is_connected(&mut self) -> Result<bool, Trouble> {
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
    fn send(&mut self) -> Result<(), Trouble> {
        if !self.is_connected()? {
            return Ok(());
        }
        let Some(asked) = &mut self.asked else { return Ok(()) };
        let (requests, _) = asked.frames.first(asked.operations);
        while asked.sent < requests.len() {
            match self.stream.write(&requests[asked.sent..]) {
                Ok(sent) => asked.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Lost(error)),
            }
        }
        Ok(())
    }

    /// Receives what is there, and gives what was asked back when it is answered whole.
    fn receive(&mut self, buffer: &mut [u8], closing: bool) -> Result<Option<Asked>, Trouble> {
        if self.state == LineState::Connecting {
            return Ok(None);
        }
        loop {
            let got = match self.stream.read(buffer) {
                Ok(0) => return Err(Trouble::Closed),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Trouble::Lost(error)),
            };
            let asked = self.asked.as_mut().ok_or(Trouble::Garbage)?;
            let (_, due) = asked.frames.first(asked.operations);
            if got > due - asked.received || !asked.frames.allow(asked.received, &buffer[..got]) {
                return Err(Trouble::Garbage);
            }
            asked.received += got;
            if asked.received == due {
                return Ok(self.asked.take());
            }
            // Events come once for each arrival of bytes. A read that leaves room took all there were, and the next
            // ones are a new event; but an end that came with them is not.
            if got < buffer.len() && !closing {
                return Ok(None);
            }
        }
    }
}
