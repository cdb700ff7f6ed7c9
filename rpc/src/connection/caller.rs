//! Calls of one worker to another: over one connection, and over a new one when that has ended.
//!
//! A connection is opened when there is a call for it. Calls wait until it is open, and while the maximum number is
//! pending. A call that was sent over a connection is never sent over another one: when the connection ends, it is
//! unknown whether the call was executed, and it fails. Waiting calls continue with a new connection.

use super::frames_in::{FramePart, FramesIn};
use super::in_flight::InFlight;
use super::outgoing::{Outgoing, ToWrite};
use super::token::{NO_PROOF, TokenExchange, VERSIONS, hello};
use super::{CallError, CallFailure, CallKind, CallPhase, ConnectionError, PoolLoad, Refusal, Status};
use crate::handlers::{HANDLER_BYTES_MAX, is_of_the_program};
use crate::limits::{RPC_FRAME, RpcLimits};
use crate::name::WorkerInfo;
use crate::wire::{
    CalleeFrame, CallerFrame, DATA, Header, MAGIC, Splitter, VERSION_MAX, VERSION_MIN, body_error,
};
use alloc::collections::VecDeque;
use rendezvous_core::error::Span;
use rendezvous_core::prelude::*;
use rendezvous_core::proof::Bytes32;

/// A call to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCall<'a> {
    /// Name of the handler.
    pub handler: &'a str,
    /// Length of its payload in bytes; its parts are requested as [`ToWrite::Part`].
    pub payload_bytes: u64,
    /// Time when the call fails.
    pub deadline: Option<Instant>,
    /// Whether it has a response.
    pub kind: CallKind,
}

/// Events of a [`Caller`], and requests to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerEvent<'b> {
    /// Open a connection, and report the result by [`Caller::connected`] or [`Caller::unreachable`].
    Connect,
    /// Close the connection, or cancel the attempt to open one, for this reason. All calls that were sent over it have
    /// ended before.
    HangUp(ConnectionError),
    /// A response begins: number of the call, and length in bytes.
    Answer(u64, u64),
    /// A part of a response.
    Bytes(u64, &'b [u8]),
    /// A response is complete, or a one-way call has been written completely.
    Done(u64),
    /// A call has failed.
    Failed(u64, CallError),
}

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Down,
    Connecting,
    Greeting,
    Open,
    /// One of the two ends has sent a goodbye.
    Leaving,
}

#[derive(Clone, Debug)]
struct Call {
    handler: Box<str>,
    payload_bytes: u64,
    deadline: Option<Instant>,
    kind: CallKind,
    began: Instant,
    /// Bytes of the response that are still to arrive, once it has begun.
    left: Option<u64>,
}

/// State of the current connection.
#[derive(Debug)]
struct Line {
    incoming: FramesIn,
    outgoing: Outgoing,
    /// Highest number of a call that was sent over it.
    last_id: u64,
    requests_max: u32,
    bytes_max: u64,
    /// Time when it was requested, or opened.
    began: Instant,
    /// Time of the last received byte, or of the first call since, while a call is pending or was until it was given
    /// up.
    silent_since: Option<Instant>,
    /// Whether a call was given up since then. In that case the callee is pinged though no call is pending.
    has_given_up: bool,
    /// Time of the ping since then.
    pinged: Option<Instant>,
    pings: u64,
    /// The callee's load was requested, and is not requested again before this time.
    ask_again_at: Option<Instant>,
    /// Time when the callee reported that no handler thread was free, and its report.
    load: Option<(Instant, PoolLoad)>,
    /// Token that the callee must prove before it gets calls.
    token: Option<TokenExchange>,
    /// Whether the callee has sent a challenge, which it does once.
    is_challenged: bool,
    /// Whether it has been open, and so has accepted at least one call: each connection that opens reduces the waiting
    /// calls.
    has_opened: bool,
}

impl Line {
    fn new(began: Instant) -> Self {
        Self {
            incoming: FramesIn::new(Splitter::from_callee()),
            outgoing: Outgoing::default(),
            last_id: 0,
            requests_max: 0,
            bytes_max: 0,
            began,
            silent_since: None,
            has_given_up: false,
            pinged: None,
            pings: 0,
            ask_again_at: None,
            load: None,
            token: None,
            is_challenged: false,
            has_opened: false,
        }
    }

    fn ping(&mut self) {
        self.pings += 1;
        self.outgoing.frame(0, &CallerFrame::Ping { nonce: self.pings });
    }
}

/// State machine of the calls to one worker.
#[derive(Debug)]
pub struct Caller {
    me: WorkerInfo,
    peer: WorkerInfo,
    group: Box<[u8]>,
    limits: RpcLimits,
    state: LineState,
    line: Line,
    takes_calls: bool,
    /// Reason why no calls are accepted any more, if it is not a goodbye.
    end: Option<ConnectionError>,
    /// Whether the callee has said goodbye, and no connection to it has been open since.
    has_callee_left: bool,
    /// Calls that were sent over the connection.
    calls: InFlight<Call>,
    /// Sent in the order of their numbers.
    waiting: InFlight<Call>,
    last_id: u64,
    events: VecDeque<CallerEvent<'static>>,
    /// Calls whose last bytes are in the current write.
    out: Vec<u64>,
}

impl NewCall<'_> {
    /// Checks the call against the limits.
    fn check(&self, limits: &RpcLimits) -> Result<(), CallFailure> {
        if self.handler.is_empty() || self.handler.len() > HANDLER_BYTES_MAX {
            return Err(CallFailure::Handler { bytes: self.handler.len() });
        }
        let (bytes, bytes_max) = (self.payload_bytes, limits.payload_bytes_max);
        if bytes <= bytes_max { Ok(()) } else { Err(CallFailure::TooLong { bytes, bytes_max }) }
    }
}

impl Caller {
    /// Creates the state of the calls of worker `me` of `group` to `peer`, without calls and connection.
    pub fn new(me: WorkerInfo, peer: WorkerInfo, group: &[u8], limits: RpcLimits) -> Self {
        Self {
            me,
            peer,
            group: group.into(),
            limits,
            state: LineState::Down,
            line: Line::new(Instant::ORIGIN),
            takes_calls: true,
            end: None,
            has_callee_left: false,
            calls: InFlight::new(),
            waiting: InFlight::new(),
            last_id: 0,
            events: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Whether a call would be sent at once and be the only pending one. It would not while a pong is expected.
    pub fn is_at_rest(&self) -> bool {
        let is_expected = self.in_flight() > 0 || self.line.silent_since.is_some();
        self.state == LineState::Open && !is_expected && self.events.is_empty()
    }

    /// Whether further calls are accepted; if not, that is final.
    pub fn takes_calls(&self) -> bool {
        self.takes_calls
    }

    /// Number of pending and waiting calls.
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.calls.len()
    }

    fn is_up(&self) -> bool {
        matches!(self.state, LineState::Greeting | LineState::Open | LineState::Leaving)
    }

    fn is_greeted(&self) -> bool {
        matches!(self.state, LineState::Open | LineState::Leaving)
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
        if self.state == LineState::Leaving {
            return Err(CallFailure::Leaving);
        }
        let NewCall { handler, payload_bytes, deadline, kind } = call;
        let call = Call { handler: handler.into(), payload_bytes, deadline, kind, began: now, left: None };
        let id = self.last_id + 1;
        if self.waiting.is_empty() && self.has_capacity(payload_bytes) {
            self.last_id = id;
            self.send(now, id, call);
            return Ok(id);
        }
        if self.waiting.len() as u64 >= u64::from(self.limits.waiting_max) {
            return Err(CallFailure::TooMany { count: self.limits.waiting_max });
        }
        let (bytes, bytes_max) = (self.waiting.bytes_with(payload_bytes), self.limits.waiting_bytes_max);
        if bytes > bytes_max && !self.waiting.is_empty() {
            return Err(CallFailure::TooMuch { bytes, bytes_max });
        }
        self.last_id = id;
        self.waiting.insert(id, payload_bytes, deadline, call);
        self.advance(now);
        Ok(id)
    }

    /// Whether the connection accepts a call with a payload of this many bytes now.
    fn has_capacity(&self, payload_bytes: u64) -> bool {
        self.state == LineState::Open
            && (self.calls.len() as u64) < u64::from(self.line.requests_max)
            && (self.calls.bytes_with(payload_bytes) <= self.line.bytes_max || self.calls.is_empty())
    }

    /// Sends a call, or fails it if its deadline has passed while it was waiting.
    fn send(&mut self, now: Instant, id: u64, call: Call) {
        let left = call.deadline.map(|at| at.since(now));
        if left.is_some_and(|left| left.is_zero()) {
            let (elapsed, phase) = (now.since(call.began), CallPhase::Queued);
            return self.failed(id, CallFailure::DeadlinePassed { elapsed, phase }, call.handler);
        }
        self.line.silent_since.get_or_insert(now);
        self.line.last_id = id;
        // Rounded up, so that the callee does not give up before the caller.
        let deadline_ms =
            left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
        let (payload_bytes, handler) = (call.payload_bytes, call.handler.as_bytes());
        let outgoing = &mut self.line.outgoing;
        match call.kind {
            CallKind::Responded => {
                outgoing.frame(id, &CallerFrame::Request { deadline_ms, payload_bytes, handler })
            }
            CallKind::OneWay => {
                outgoing.frame(id, &CallerFrame::Notice { deadline_ms, payload_bytes, handler })
            }
        };
        outgoing.payload(id, payload_bytes);
        self.calls.insert(id, payload_bytes, call.deadline, call);
    }

    /// Sends waiting calls, as far as the connection accepts them, or opens one for them.
    fn advance(&mut self, now: Instant) {
        if self.state == LineState::Down && !self.waiting.is_empty() {
            (self.state, self.line) = (LineState::Connecting, Line::new(now));
            self.events.push_back(CallerEvent::Connect);
        }
        while let Some((id, call)) = self.waiting.first() {
            if !self.has_capacity(call.payload_bytes) {
                return;
            }
            if let Some(call) = self.waiting.take(id) {
                self.send(now, id, call);
            }
        }
    }

    fn phase_of_waiting(&self) -> CallPhase {
        if self.state == LineState::Open { CallPhase::Queued } else { CallPhase::Connecting }
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
        let sent = self.take(id);
        let was_sent = sent.is_some();
        let Some(call) = sent.or_else(|| self.waiting.take(id)) else { return false };
        self.failed(id, why, call.handler);
        if was_sent {
            self.send_cancel(id);
            self.look_for_the_end();
        }
        true
    }

    fn send_cancel(&mut self, id: u64) {
        self.line.has_given_up = true;
        self.line.outgoing.frame(id, &CallerFrame::Cancel {});
    }

    fn failed(&mut self, id: u64, why: CallFailure, handler: Box<str>) {
        self.events.push_back(CallerEvent::Failed(id, why.of(handler, &self.peer)));
    }

    /// The connection is open. With a token, both ends must prove it: no call is sent before the callee has.
    pub fn connected(&mut self, now: Instant, token: Option<TokenExchange>) {
        if self.state != LineState::Connecting {
            return;
        }
        (self.state, self.line) = (LineState::Greeting, Line { token, ..Line::new(now) });
        self.line.outgoing.raw(&MAGIC);
        self.line.outgoing.frame(0, &hello(VERSIONS, &self.group, &self.me, &self.peer));
    }

    /// Whether a token is yet to be proven, over a channel whose binding [`Caller::bind`] needs if it is encrypted.
    pub fn is_proving(&self) -> bool {
        self.state == LineState::Greeting && self.line.token.is_some()
    }

    /// Sets the binding to an encrypted channel. To be called before the first received bytes.
    pub fn bind(&mut self, channel: Bytes32) {
        if let Some(token) = &mut self.line.token {
            token.bind(channel);
        }
    }

    /// Answers the first challenge. Without a token the answer is empty, and the callee says what it requires.
    fn challenged(&mut self, nonce: Bytes32) -> bool {
        let Self { line, group, me, peer, .. } = self;
        let answer = match &mut line.token {
            Some(token) => token.challenged(nonce, &hello(VERSIONS, group, me, peer)),
            None => NO_PROOF,
        };
        !core::mem::replace(&mut line.is_challenged, true) && line.outgoing.frame(0, &answer)
    }

    fn proven(&mut self, proof: &Bytes32) -> bool {
        let Self { line, group, me, peer, .. } = self;
        let hello = hello(VERSIONS, group, me, peer);
        line.token.as_mut().is_some_and(|token| token.proven(proof, &hello))
    }

    /// The connection could not be opened.
    pub fn unreachable(&mut self, why: &ConnectionError) {
        if self.state == LineState::Connecting {
            self.hang_up(why.clone());
            self.fail_waiting(&self.unsent(why));
        }
    }

    /// Returns the failure of calls for which no connection opened. A worker that has said goodbye is not there any
    /// more because it left, not because it died.
    fn unsent(&self, why: &ConnectionError) -> CallFailure {
        match why {
            ConnectionError::Refused { why: Refusal::Leaving, .. } => CallFailure::Leaving,
            ConnectionError::NotListening(_) | ConnectionError::Lost(_) if self.has_callee_left => {
                CallFailure::Leaving
            }
            why => CallFailure::Unsent(why.clone()),
        }
    }

    /// The connection has ended.
    pub fn lost(&mut self, why: ConnectionError) {
        if !self.is_up() {
            return;
        }
        for id in self.calls.ids() {
            if let Some(call) = self.calls.take(id) {
                self.failed(id, why.clone().of_sent(), call.handler);
            }
        }
        let has_opened = self.line.has_opened;
        self.hang_up(why.clone());
        if !has_opened {
            self.fail_waiting(&self.unsent(&why));
        }
    }

    /// Fails all calls, including waiting ones. A later call opens a new connection.
    pub fn abort(&mut self, why: &ConnectionError) {
        self.fail_waiting(&CallFailure::Unsent(why.clone()));
        if self.state == LineState::Connecting {
            self.hang_up(why.clone());
        }
        self.lost(why.clone());
    }

    /// Fails the program's calls with this message. The library's own calls continue, and so does the connection.
    pub fn cut(&mut self, message: &str) {
        for id in self.calls.ids_of(|call| is_of_the_program(&call.handler)) {
            self.give_up(id, CallFailure::CallerEnded(message.into()));
        }
        for id in self.waiting.ids_of(|call| is_of_the_program(&call.handler)) {
            self.give_up(id, CallFailure::Unsent(ConnectionError::CallerEnded(message.into())));
        }
    }

    /// Fails all calls, and later ones, for this reason.
    pub fn end(&mut self, why: &ConnectionError) {
        self.end.get_or_insert_with(|| why.clone());
        if self.takes_calls {
            self.takes_calls = false;
        }
        self.abort(why);
        self.look_for_the_end();
    }

    /// Accepts no further calls. Pending calls continue, waiting ones fail.
    pub fn goodbye(&mut self) {
        if !self.takes_calls {
            return;
        }
        self.takes_calls = false;
        self.fail_waiting(&CallFailure::Leaving);
        match self.state {
            LineState::Open => {
                self.state = LineState::Leaving;
                self.line.outgoing.frame(0, &CallerFrame::Goodbye {});
            }
            LineState::Greeting => self.lost(ConnectionError::Closed),
            LineState::Connecting => self.hang_up(ConnectionError::Closed),
            LineState::Leaving | LineState::Down => {}
        }
        self.look_for_the_end();
    }

    fn hang_up(&mut self, why: ConnectionError) {
        self.state = LineState::Down;
        self.line.outgoing.clear();
        self.line.silent_since = None;
        self.events.push_back(CallerEvent::HangUp(why));
        self.look_for_the_end();
    }

    fn fail_waiting(&mut self, why: &CallFailure) {
        for id in self.waiting.ids() {
            if let Some(call) = self.waiting.take(id) {
                self.failed(id, why.clone(), call.handler);
            }
        }
    }

    /// Fails the calls that crossed the goodbye of the callee, which accepts none from number `first` on; 0 if it does
    /// not say so. They were not executed.
    fn fail_crossing(&mut self, first: u64) {
        for id in self.calls.ids().into_iter().filter(|&id| first > 0 && id >= first) {
            if let Some(call) = self.take(id) {
                self.failed(id, CallFailure::Leaving, call.handler);
            }
        }
        self.look_for_rest();
    }

    fn take(&mut self, id: u64) -> Option<Call> {
        let call = self.calls.take(id)?;
        self.line.outgoing.drop_payload(id);
        Some(call)
    }

    /// Stops the supervision of the callee if nothing is expected from it.
    fn look_for_rest(&mut self) {
        if self.calls.is_empty() && !self.line.has_given_up {
            (self.line.silent_since, self.line.pinged) = (None, None);
        }
    }

    /// Records that bytes were received.
    fn note_received(&mut self, now: Instant) {
        (self.line.silent_since, self.line.pinged, self.line.has_given_up) = (Some(now), None, false);
        self.look_for_rest();
    }

    /// Time since which the callee has been silent, if a response or a pong is expected.
    fn silence(&self) -> Option<Instant> {
        self.line.silent_since.filter(|_| self.is_greeted())
    }

    /// Closes the connection if one end has said goodbye and no call is pending on it.
    fn look_for_the_end(&mut self) {
        if self.state == LineState::Leaving && self.calls.is_empty() {
            self.hang_up(ConnectionError::Closed);
        }
    }

    /// Returns what to write next. To be called when the socket accepts bytes.
    pub fn poll_write(&mut self) -> Option<ToWrite> {
        let next = self.line.outgoing.poll(&mut self.out)?;
        // A one-way call is done when its last bytes are written.
        for id in self.out.drain(..) {
            if self.calls.get(id).is_some_and(|call| call.kind == CallKind::OneWay) {
                self.calls.take(id);
                self.events.push_back(CallerEvent::Done(id));
            }
        }
        self.look_for_rest();
        self.look_for_the_end();
        Some(next)
    }

    /// Returns the time for asking the callee's load, so that the error of the call with the first deadline can report
    /// it: when three quarters of the call's time have passed. Other calls that end soon after share the response.
    fn ask_due(&self) -> Option<Instant> {
        let (deadline, call) = self.calls.first_due()?;
        let due = call.began + deadline.since(call.began) / 4 * 3;
        let due = self.line.ask_again_at.map_or(due, |until| due.max(until));
        (self.is_greeted() && call.kind == CallKind::Responded && due < deadline).then_some(due)
    }

    /// Returns the phase of a call whose deadline has passed. The reported load explains the failure only if the report
    /// is from the second half of the call's time: the callee may have frozen since. Calls that end soon after each
    /// other share it.
    fn late_phase(&self, now: Instant, began: Instant) -> CallPhase {
        let half = began + now.since(began) / 2;
        let load = self.line.load.filter(|&(announced, _)| announced >= half);
        load.map_or(CallPhase::InFlight, |(_, load)| CallPhase::Exhausted(load))
    }

    /// Time of the next [`Caller::tick`]; `None` if none is needed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let opening = matches!(self.state, LineState::Connecting | LineState::Greeting)
            .then(|| self.line.began + self.limits.greeting_timeout);
        let ping = self.silence().map(|since| match self.line.pinged {
            Some(at) => at + self.limits.ping_timeout,
            None => since + self.limits.ping_interval,
        });
        let deadlines = [self.calls.first_deadline(), self.waiting.first_deadline()];
        deadlines.into_iter().chain([opening, ping, self.ask_due()]).flatten().min()
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        while let Some((id, call)) = self.waiting.take_overdue(now) {
            let (elapsed, phase) = (now.since(call.began), self.phase_of_waiting());
            self.failed(id, CallFailure::DeadlinePassed { elapsed, phase }, call.handler);
        }
        while let Some((id, call)) = self.calls.take_overdue(now) {
            self.line.outgoing.drop_payload(id);
            self.send_cancel(id);
            let (elapsed, phase) = (now.since(call.began), self.late_phase(now, call.began));
            self.failed(id, CallFailure::DeadlinePassed { elapsed, phase }, call.handler);
        }
        if self.ask_due().is_some_and(|due| due <= now) {
            self.line.ask_again_at = self.calls.first_deadline();
            self.line.ping();
        }
        self.look_for_the_end();
        let limit = self.limits.greeting_timeout;
        if now >= self.line.began + limit {
            match self.state {
                LineState::Connecting => {
                    let message = format!("no connection in {}", Span(limit));
                    return self.unreachable(&ConnectionError::Unreachable(message.into()));
                }
                LineState::Greeting => return self.lost(ConnectionError::NoGreeting(limit)),
                LineState::Down | LineState::Open | LineState::Leaving => {}
            }
        }
        let Some(since) = self.silence() else { return };
        match self.line.pinged {
            Some(at) if now >= at + self.limits.ping_timeout => {
                self.lost(ConnectionError::Silent(now.since(since)));
            }
            None if now >= since + self.limits.ping_interval => {
                self.line.ping();
                self.line.pinged = Some(now);
            }
            _ => {}
        }
    }

    /// Returns the response whose bytes come next, and how many at least. The driver may read them to their destination
    /// directly, and report that with [`Caller::filled`].
    pub fn due(&self) -> Option<(u64, u32)> {
        let due = self.line.incoming.due().filter(|_| self.is_up());
        due.filter(|&(id, _)| self.calls.get(id).is_some_and(|call| call.left.is_some()))
    }

    /// Records that this many bytes of what [`Caller::due`] returned were read to their destination. No event reports
    /// them.
    pub fn filled(&mut self, now: Instant, bytes: u32) {
        self.note_received(now);
        self.line.incoming.filled(bytes);
    }

    /// Returns the next event, and consumes bytes from the front of `bytes`; `None` when all are consumed.
    pub fn next_event<'b>(&mut self, now: Instant, bytes: &mut &'b [u8]) -> Option<CallerEvent<'b>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if !self.is_up() {
                *bytes = &[];
            } else if !bytes.is_empty() {
                self.note_received(now);
            }
            // The end of a frame has no bytes of its own, so the codec is called even if there are none.
            let frame_part = if self.is_up() { self.line.incoming.next(bytes) } else { Ok(None) };
            match frame_part.map_err(ConnectionError::from) {
                Ok(Some(frame_part)) => match self.frame_part(now, frame_part) {
                    Ok(None) => {}
                    Ok(Some(event)) => return Some(event),
                    Err(error) => self.lost(error),
                },
                Err(error) => self.lost(error),
                Ok(None) => {
                    self.advance(now);
                    return self.events.pop_front();
                }
            }
        }
    }

    fn frame_part<'b>(
        &mut self,
        now: Instant,
        frame_part: FramePart<'b>,
    ) -> Result<Option<CallerEvent<'b>>, ConnectionError> {
        match frame_part {
            FramePart::Data(id, bytes) => {
                let Some(call) = self.calls.get_mut(id) else { return self.late(id, DATA) };
                let left = call.left.ok_or(ConnectionError::UnexpectedFrame(DATA))?;
                let left = left.checked_sub(u64::from(bytes)).ok_or(ConnectionError::TooMuchData(id))?;
                call.left = Some(left);
                Ok(None)
            }
            FramePart::Bytes(id, bytes) => {
                let is_wanted = self.calls.get(id).is_some_and(|call| call.left.is_some());
                Ok(is_wanted.then_some(CallerEvent::Bytes(id, bytes)))
            }
            FramePart::DataEnd(id) => {
                self.look_at_answer(id);
                Ok(None)
            }
            FramePart::Frame(Header { id, kind, .. }, body) => {
                match CalleeFrame::parse(kind, &body, &RPC_FRAME).map_err(body_error(kind))? {
                    Some(frame) => self.frame(now, id, kind, frame),
                    None => Ok(None),
                }
            }
        }
    }

    /// Handles a frame for a call that is not pending: either the call was given up, or it never existed.
    const fn late<'b>(&self, id: u64, kind: u16) -> Result<Option<CallerEvent<'b>>, ConnectionError> {
        if id == 0 || id > self.line.last_id { Err(ConnectionError::UnexpectedFrame(kind)) } else { Ok(None) }
    }

    fn look_at_answer(&mut self, id: u64) {
        if self.calls.get(id).is_some_and(|call| call.left == Some(0)) {
            self.take(id);
            self.look_for_rest();
            self.events.push_back(CallerEvent::Done(id));
            self.look_for_the_end();
        }
    }

    fn frame<'b>(
        &mut self,
        now: Instant,
        id: u64,
        kind: u16,
        frame: CalleeFrame<'_>,
    ) -> Result<Option<CallerEvent<'b>>, ConnectionError> {
        let text = |bytes: &[u8]| -> Box<str> { String::from_utf8_lossy(bytes).into() };
        match (frame, self.state) {
            (CalleeFrame::Refused { why, message }, _) => {
                Err(ConnectionError::Refused { why: Refusal::from_number(why), message: text(message) })
            }
            (
                CalleeFrame::Welcome { version, callee, callee_id, requests_max, bytes_max },
                LineState::Greeting,
            ) => {
                if self.line.token.as_ref().is_some_and(|token| !token.is_proven()) {
                    return Err(ConnectionError::Unproven);
                }
                if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
                    return Err(ConnectionError::UnexpectedFrame(kind));
                }
                if callee != self.peer.name.as_bytes() || callee_id != self.peer.id {
                    let got = format!("{} (id {callee_id})", text(callee)).into();
                    return Err(ConnectionError::Impostor { wanted: self.peer.clone(), got });
                }
                self.line.requests_max = requests_max.min(self.limits.requests_max);
                self.line.bytes_max = bytes_max.min(self.limits.bytes_max);
                if self.line.requests_max == 0 {
                    return Err(ConnectionError::NothingAllowed);
                }
                (self.state, self.line.has_opened, self.has_callee_left) = (LineState::Open, true, false);
                self.advance(now);
                Ok(None)
            }
            (CalleeFrame::Challenge { nonce }, LineState::Greeting) if self.challenged(nonce) => Ok(None),
            (CalleeFrame::Proof { proof }, LineState::Greeting) => {
                self.proven(&proof).then_some(None).ok_or(ConnectionError::Unproven)
            }
            (_, LineState::Greeting)
            | (CalleeFrame::Welcome { .. } | CalleeFrame::Challenge { .. } | CalleeFrame::Proof { .. }, _) => {
                Err(ConnectionError::UnexpectedFrame(kind))
            }
            (CalleeFrame::Pong { .. }, _) => {
                self.line.load = None;
                Ok(None)
            }
            (CalleeFrame::Exhausted { threads, waiting }, _) => {
                self.line.load = Some((now, PoolLoad { threads, waiting }));
                Ok(None)
            }
            (CalleeFrame::Goodbye {}, _) => {
                (self.state, self.has_callee_left) = (LineState::Leaving, true);
                self.fail_waiting(&CallFailure::Leaving);
                self.fail_crossing(id);
                self.look_for_the_end();
                Ok(None)
            }
            (CalleeFrame::Response { status, payload_bytes, message }, _) => {
                self.response(now, (id, kind), status, payload_bytes, message)
            }
        }
    }

    fn response<'b>(
        &mut self,
        now: Instant,
        (id, kind): (u64, u16),
        status: u16,
        bytes: u64,
        message: &[u8],
    ) -> Result<Option<CallerEvent<'b>>, ConnectionError> {
        let Some(call) = self.calls.get_mut(id) else { return self.late(id, kind) };
        if call.left.is_some() || call.kind == CallKind::OneWay {
            return Err(ConnectionError::UnexpectedFrame(kind));
        }
        // The callee needs no more of the request.
        self.line.outgoing.drop_payload(id);
        let bytes_max = self.limits.payload_bytes_max;
        if status != 0 {
            let Some(call) = self.take(id) else { return Ok(None) };
            self.look_for_rest();
            let why = match Status::from_number(status) {
                // The error is the same whichever end detects it first.
                Status::Deadline => {
                    let (elapsed, phase) = (now.since(call.began), self.late_phase(now, call.began));
                    CallFailure::DeadlinePassed { elapsed, phase }
                }
                status => CallFailure::Remote { status, message: String::from_utf8_lossy(message).into() },
            };
            self.failed(id, why, call.handler);
            self.look_for_the_end();
            return Ok(None);
        }
        if bytes > bytes_max {
            self.give_up(id, CallFailure::TooLong { bytes, bytes_max });
            return Ok(None);
        }
        call.left = Some(bytes);
        self.events.push_back(CallerEvent::Answer(id, bytes));
        self.look_at_answer(id);
        Ok(None)
    }
}

#[cfg(test)]
pub(super) mod tests;
