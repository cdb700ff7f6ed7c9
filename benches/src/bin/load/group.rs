//! Many connections to one server, all driven by the calling thread.

mod awaited;
mod line;

pub(super) use awaited::Awaited;
pub(super) use line::Task;

use super::frames::Protocol;
use super::work::Language;
use line::Line;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::time::Instant;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

const EVENTS_MAX: usize = 1024;
const BUFFER_BYTES: usize = 64 * 1024;

/// How a group connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dial {
    /// One connection after another, then all greetings.
    Sequential,
    /// All connects are issued before any is waited for.
    AllAtOnce,
}

/// Why a load cannot go on.
#[derive(Debug)]
pub(super) enum LoadError {
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
    /// How they speak.
    pub(super) protocol: Protocol,
    /// Lines that wait for an answer.
    waiting: usize,
    buffer: Box<[u8]>,
    timeout: Duration,
    clock: Clock,
}

/// One task that is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskDone {
    /// Which connection.
    pub(super) line: usize,
    /// From when it was given to its last byte.
    pub(super) span: Duration,
}

/// What a connection is to do next.
pub(super) type Next = Option<Task>;

/// Whom to connect to, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Door {
    pub(super) address: SocketAddr,
    pub(super) language: Language,
    pub(super) dial: Dial,
    pub(super) timeout: Duration,
}

impl Group {
    /// Opens one connection per greeting and sends the greeting. Calls `greeted` with the time from each connect to
    /// the answer.
    pub(super) fn dial(
        door: &Door,
        greetings: Vec<Task>,
        mut greeted: impl FnMut(Duration),
    ) -> Result<Self, LoadError> {
        let mut group = Self {
            poll: Poll::new().map_err(LoadError::Connect)?,
            events: Events::with_capacity(EVENTS_MAX),
            lines: Vec::with_capacity(greetings.len()),
            protocol: Protocol::new(door.language),
            waiting: 0,
            buffer: vec![0; BUFFER_BYTES].into(),
            timeout: door.timeout,
            clock: Clock::new(),
        };
        let mut connects = Vec::with_capacity(greetings.len());
        for _ in &greetings {
            connects.push(group.clock.now());
            group.connect(door.address).map_err(LoadError::Connect)?;
            if door.dial == Dial::Sequential {
                group.await_connected()?;
            }
        }
        for (line, greeting) in greetings.into_iter().enumerate() {
            group.ask(line, greeting)?;
        }
        let clock = group.clock;
        group.run(|done| {
            greeted(clock.now().since(connects[done.line]));
            None
        })?;
        Ok(group)
    }

    pub(super) const fn len(&self) -> usize {
        self.lines.len()
    }

    /// Ends the last connection, as the end of its process would.
    pub(super) fn close_last(&mut self) {
        self.lines.pop();
    }

    /// Gives a task to a connection that has nothing under way.
    pub(super) fn ask(&mut self, line: usize, task: Task) -> Result<(), LoadError> {
        let at = self.clock.now();
        self.waiting += 1;
        self.lines[line].ask(task, at)
    }

    /// Runs until all that was asked is answered. After each answer, `next` says what its connection asks then.
    pub(super) fn run(&mut self, mut next: impl FnMut(TaskDone) -> Next) -> Result<(), LoadError> {
        let mut last_answer = self.clock.now();
        while self.waiting > 0 {
            self.wait_for_events(last_answer)?;
            let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            for event in &events {
                let index = event.token().0;
                // An event may be of one that was closed.
                let Some(line) = self.lines.get_mut(index) else { continue };
                line.send()?;
                let closing = event.is_read_closed() || event.is_error();
                let Some(sent_at) = line.receive(&mut self.buffer, closing)? else { continue };
                last_answer = self.clock.now();
                self.waiting -= 1;
                let span = last_answer.since(sent_at);
                if let Some(task) = next(TaskDone { line: index, span }) {
                    self.ask(index, task)?;
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
        self.lines.push(Line::new(stream));
        Ok(())
    }

    /// Waits for the newest connection.
    fn await_connected(&mut self) -> Result<(), LoadError> {
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
    fn wait_for_events(&mut self, since: Instant) -> Result<(), LoadError> {
        loop {
            let left = self.timeout.saturating_sub(self.clock.now().since(since));
            match self.poll.poll(&mut self.events, Some(left)) {
                Ok(()) if !self.events.is_empty() => return Ok(()),
                Ok(()) if left.is_zero() => return Err(LoadError::Silent { waiting: self.waiting.max(1) }),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(LoadError::Lost(error)),
            }
        }
    }
}
