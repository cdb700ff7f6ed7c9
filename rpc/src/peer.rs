//! All calls of one worker to another: over one connection, and over a new one when that has ended.
//!
//! A connection is opened when there is a call for it. Calls wait until it is open, and while the maximum number is
//! pending. A call that was passed to a connection is never passed to another one: when the connection ends, it is
//! unknown whether the call was executed, and it fails. Waiting calls continue with a new connection.

use super::connection::caller::{Caller, CallerEvent, NewCall};
use super::connection::in_flight::InFlight;
use super::connection::{CallError, CallFailure, CallKind, CallPhase, ConnectionError, ToWrite};
use super::handlers::is_of_the_program;
use super::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use rendezvous_core::limits::RpcLimits;
use rendezvous_core::time::{Duration, Instant, Seconds};

/// Events of a [`Peer`], and requests to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent<'b> {
    /// Open a connection, and report the result by [`Peer::connected`] or [`Peer::unreachable`].
    Connect,
    /// Close the connection, or cancel the attempt to open one.
    HangUp,
    /// A response begins: number of the call, and length in bytes.
    Answer(u64, u64),
    /// A part of a response.
    Bytes(u64, &'b [u8]),
    /// A response is complete, or a one-way call has been written completely.
    Done(u64),
    /// A call has failed.
    Failed(u64, CallError),
    /// There are no more calls after a goodbye.
    Left,
}

#[derive(Debug)]
enum Line {
    Down,
    Connecting(Instant),
    Up(Box<Caller>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Taking,
    Leaving,
    Left,
}

#[derive(Debug)]
struct Waiting {
    handler: Box<str>,
    payload_bytes: u64,
    deadline: Option<Instant>,
    kind: CallKind,
    began: Instant,
}

/// State machine of the calls to one worker.
#[derive(Debug)]
pub struct Peer {
    me: WorkerInfo,
    peer: WorkerInfo,
    group: Box<[u8]>,
    limits: RpcLimits,
    line: Line,
    /// Whether the current connection has been open, and so has accepted at least one call: each one that opens reduces
    /// the waiting calls.
    has_opened: bool,
    part: Part,
    /// Reason why no calls are accepted any more, if it is not a goodbye.
    end: Option<ConnectionError>,
    /// Sent in the order of their numbers.
    waiting: InFlight<Waiting>,
    last_id: u64,
    events: VecDeque<PeerEvent<'static>>,
}

impl Peer {
    /// Creates the state without calls and connection.
    #[must_use]
    pub fn new(me: WorkerInfo, peer: WorkerInfo, group: &[u8], limits: RpcLimits) -> Self {
        Self {
            me,
            peer,
            group: group.into(),
            limits,
            line: Line::Down,
            has_opened: false,
            part: Part::Taking,
            end: None,
            waiting: InFlight::new(),
            last_id: 0,
            events: VecDeque::new(),
        }
    }

    /// The callee.
    #[must_use]
    pub const fn peer(&self) -> &WorkerInfo {
        &self.peer
    }

    /// Whether a call would be sent at once and be the only pending one. It would not while a pong is expected.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        match &self.line {
            Line::Up(caller) => {
                let is_expected = self.in_flight() > 0 || caller.poll_timeout().is_some();
                caller.is_open() && !is_expected && self.events.is_empty()
            }
            Line::Down | Line::Connecting(_) => false,
        }
    }

    /// Whether further calls are accepted; if not, that is final.
    #[must_use]
    pub fn takes_calls(&self) -> bool {
        self.part == Part::Taking
    }

    /// Number of pending and waiting calls.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.waiting.len()
            + match &self.line {
                Line::Up(caller) => caller.in_flight(),
                Line::Down | Line::Connecting(_) => 0,
            }
    }

    /// Makes a call, and returns its number.
    ///
    /// # Errors
    /// It was not made, and nothing of it will be sent.
    pub fn begin(&mut self, now: Instant, call: NewCall<'_>) -> Result<u64, CallError> {
        self.accept(now, call).map_err(|why| why.of(call.handler, &self.peer))
    }

    fn accept(&mut self, now: Instant, call: NewCall<'_>) -> Result<u64, CallFailure> {
        call.check(&self.limits)?;
        if !self.takes_calls() {
            return Err(self.end.clone().map_or(CallFailure::Leaving, CallFailure::Unsent));
        }
        if call.deadline.is_some_and(|at| at <= now) {
            let (elapsed, phase) = (Duration::ZERO, self.phase_of_waiting());
            return Err(CallFailure::DeadlinePassed { elapsed, phase });
        }
        let id = self.last_id + 1;
        if self.waiting.is_empty()
            && let Line::Up(caller) = &mut self.line
        {
            match caller.begin(now, id, now, call) {
                Ok(()) => {
                    self.last_id = id;
                    return Ok(id);
                }
                Err(why) if can_wait(&why) => {}
                Err(why) => return Err(why),
            }
        }
        if self.waiting.len() as u64 >= u64::from(self.limits.waiting_max) {
            return Err(CallFailure::TooMany { count: self.limits.waiting_max });
        }
        let (bytes, bytes_max) = (self.waiting.bytes_with(call.payload_bytes), self.limits.waiting_bytes_max);
        if bytes > bytes_max && !self.waiting.is_empty() {
            return Err(CallFailure::TooMuch { bytes, bytes_max });
        }
        self.last_id = id;
        let NewCall { handler, payload_bytes, deadline, kind } = call;
        let waiting = Waiting { handler: handler.into(), payload_bytes, deadline, kind, began: now };
        self.waiting.insert(id, payload_bytes, deadline, waiting);
        self.connect(now);
        Ok(id)
    }

    /// Returns the phase of the waiting calls.
    fn phase_of_waiting(&self) -> CallPhase {
        match &self.line {
            Line::Up(caller) if caller.is_open() => CallPhase::Queued,
            Line::Up(_) | Line::Connecting(_) | Line::Down => CallPhase::Connecting,
        }
    }

    fn connect(&mut self, now: Instant) {
        if let Line::Down = self.line {
            self.line = Line::Connecting(now);
            self.events.push_back(PeerEvent::Connect);
        }
    }

    /// Cancels a call. Returns whether it was pending; if so, an event reports its failure.
    pub fn cancel(&mut self, id: u64) -> bool {
        self.give_up(id, CallFailure::Cancelled)
    }

    /// Fails a call for lack of memory for its response. Returns whether it was pending.
    pub fn no_memory(&mut self, id: u64) -> bool {
        self.give_up(id, CallFailure::NoMemory)
    }

    fn give_up(&mut self, id: u64, why: CallFailure) -> bool {
        let in_flight = match &mut self.line {
            Line::Up(caller) => caller.cancel(id),
            Line::Down | Line::Connecting(_) => None,
        };
        let handler = in_flight.or_else(|| self.waiting.take(id).map(|waiting| waiting.handler));
        let was_there = handler.is_some();
        if let Some(handler) = handler {
            self.failed(id, why, handler);
        }
        was_there
    }

    fn failed(&mut self, id: u64, why: CallFailure, handler: Box<str>) {
        self.events.push_back(PeerEvent::Failed(id, why.of(handler, &self.peer)));
    }

    /// The connection is open.
    pub fn connected(&mut self, now: Instant) {
        if let Line::Connecting(_) = self.line {
            let caller = Caller::new(now, &self.me, self.peer.clone(), &self.group, self.limits);
            (self.line, self.has_opened) = (Line::Up(Box::new(caller)), false);
        }
    }

    /// The connection could not be opened.
    pub fn unreachable(&mut self, why: &ConnectionError) {
        if let Line::Connecting(_) = self.line {
            self.hang_up();
            self.fail_waiting(why);
        }
    }

    /// The connection has ended.
    pub fn lost(&mut self, why: ConnectionError) {
        if let Line::Up(caller) = &mut self.line {
            caller.lost(why);
        }
    }

    /// Fails all calls, including waiting ones. A later call opens a new connection.
    pub fn abort(&mut self, why: &ConnectionError) {
        self.fail_waiting(why);
        match &mut self.line {
            Line::Up(caller) => caller.lost(why.clone()),
            Line::Connecting(_) => self.hang_up(),
            Line::Down => {}
        }
    }

    /// Fails the program's calls with this message. The library's own calls continue, and so does the connection.
    pub fn cut(&mut self, message: &str) {
        if let Line::Up(caller) = &self.line {
            for id in caller.ids_of(is_of_the_program) {
                self.give_up(id, CallFailure::CallerEnded(message.into()));
            }
        }
        for id in self.waiting.ids() {
            if self.waiting.get(id).is_some_and(|waiting| is_of_the_program(&waiting.handler)) {
                self.give_up(id, CallFailure::Unsent(ConnectionError::CallerEnded(message.into())));
            }
        }
    }

    /// Fails all calls, and later ones, for this reason.
    pub fn end(&mut self, why: &ConnectionError) {
        self.end.get_or_insert_with(|| why.clone());
        if self.part == Part::Taking {
            self.part = Part::Leaving;
        }
        self.abort(why);
        self.look_for_the_end();
    }

    /// Accepts no further calls. Pending calls continue, waiting ones fail.
    pub fn goodbye(&mut self) {
        if self.part != Part::Taking {
            return;
        }
        self.part = Part::Leaving;
        self.refuse_waiting();
        match &mut self.line {
            Line::Up(caller) => caller.goodbye(),
            Line::Connecting(_) => self.hang_up(),
            Line::Down => {}
        }
        self.look_for_the_end();
    }

    fn hang_up(&mut self) {
        self.line = Line::Down;
        self.events.push_back(PeerEvent::HangUp);
        self.look_for_the_end();
    }

    fn look_for_the_end(&mut self) {
        if let (Part::Leaving, Line::Down) = (self.part, &self.line) {
            self.part = Part::Left;
            self.events.push_back(PeerEvent::Left);
        }
    }

    fn fail_waiting(&mut self, why: &ConnectionError) {
        self.drop_waiting(&CallFailure::Unsent(why.clone()));
    }

    fn refuse_waiting(&mut self) {
        self.drop_waiting(&CallFailure::Leaving);
    }

    fn drop_waiting(&mut self, why: &CallFailure) {
        for id in self.waiting.ids() {
            if let Some(waiting) = self.waiting.take(id) {
                self.failed(id, why.clone(), waiting.handler);
            }
        }
    }

    /// Passes waiting calls to the connection, as far as it accepts them.
    fn advance(&mut self, now: Instant) {
        let Line::Up(caller) = &mut self.line else { return };
        while let Some((id, waiting)) = self.waiting.first() {
            let Waiting { handler, payload_bytes, deadline, kind, began } = waiting;
            let (payload_bytes, deadline, kind) = (*payload_bytes, *deadline, *kind);
            let begun = caller.begin(now, id, *began, NewCall { handler, payload_bytes, deadline, kind });
            if begun.as_ref().is_err_and(can_wait) {
                return;
            }
            let waiting = self.waiting.take(id);
            if let (Err(why), Some(waiting)) = (begun, waiting) {
                self.events.push_back(PeerEvent::Failed(id, why.of(waiting.handler, &self.peer)));
            }
        }
    }

    /// Returns what to write next. To be called when the socket accepts bytes.
    pub fn poll_write(&mut self) -> Option<ToWrite> {
        match &mut self.line {
            Line::Up(caller) => caller.poll_write(),
            Line::Down | Line::Connecting(_) => None,
        }
    }

    /// Time of the next [`Peer::tick`]; `None` if none is needed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let line = match &self.line {
            Line::Up(caller) => caller.poll_timeout(),
            Line::Connecting(since) => Some(*since + self.limits.greeting_timeout),
            Line::Down => None,
        };
        [line, self.waiting.first_deadline()].into_iter().flatten().min()
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        while let Some((id, Waiting { handler, began, .. })) = self.waiting.take_overdue(now) {
            let (elapsed, phase) = (now.since(began), self.phase_of_waiting());
            self.failed(id, CallFailure::DeadlinePassed { elapsed, phase }, handler);
        }
        match &mut self.line {
            Line::Up(caller) => caller.tick(now),
            Line::Connecting(since) if now >= *since + self.limits.greeting_timeout => {
                let span = Seconds(self.limits.greeting_timeout);
                self.unreachable(&ConnectionError::Unreachable(format!("no connection in {span}s").into()));
            }
            Line::Connecting(_) | Line::Down => {}
        }
    }

    /// As [`Caller::due`].
    #[must_use]
    pub fn due(&self) -> Option<(u64, u32)> {
        match &self.line {
            Line::Up(caller) => caller.due(),
            Line::Down | Line::Connecting(_) => None,
        }
    }

    /// As [`Caller::filled`].
    pub fn filled(&mut self, now: Instant, bytes: u32) {
        if let Line::Up(caller) = &mut self.line {
            caller.filled(now, bytes);
        }
    }

    /// Returns the next event, and consumes bytes from the front of `bytes`; `None` when all are consumed.
    pub fn next_event<'b>(&mut self, now: Instant, bytes: &mut &'b [u8]) -> Option<PeerEvent<'b>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let Line::Up(caller) = &mut self.line else {
                *bytes = &[];
                return None;
            };
            let Some(event) = caller.next_event(now, bytes) else {
                // A call that was given up may have freed capacity for waiting ones.
                self.advance(now);
                if self.events.is_empty() {
                    return None;
                }
                continue;
            };
            match event {
                CallerEvent::Open => {
                    self.has_opened = true;
                    self.advance(now);
                }
                CallerEvent::Answer(id, bytes) => return Some(PeerEvent::Answer(id, bytes)),
                CallerEvent::Bytes(id, bytes) => return Some(PeerEvent::Bytes(id, bytes)),
                CallerEvent::Done(id) => {
                    self.advance(now);
                    return Some(PeerEvent::Done(id));
                }
                CallerEvent::Failed(id, error) => {
                    self.advance(now);
                    return Some(PeerEvent::Failed(id, error));
                }
                CallerEvent::PeerLeaving => self.refuse_waiting(),
                CallerEvent::Drained => self.hang_up(),
                CallerEvent::Ended(why) => {
                    self.hang_up();
                    if !self.has_opened {
                        self.fail_waiting(&why);
                    } else if !self.waiting.is_empty() {
                        self.connect(now);
                    }
                }
            }
        }
    }
}

/// Whether a call that was not begun for this reason may be begun later.
const fn can_wait(why: &CallFailure) -> bool {
    matches!(
        why,
        CallFailure::NotOpen
            | CallFailure::TooMany { .. }
            | CallFailure::TooMuch { .. }
            | CallFailure::Unsent(_)
    )
}

#[cfg(test)]
mod tests;
