//! Calling end of a connection.

use super::frames_in::{FramePart, FramesIn};
use super::in_flight::InFlight;
use super::outgoing::{Outgoing, ToWrite};
use super::{CallError, CallFailure, CallKind, CallPhase, ConnectionError, PoolLoad, Refusal, Status};
use crate::name::WorkerInfo;
use crate::wire::{CalleeFrame, CallerFrame, DATA, MAGIC, Splitter, VERSION_MAX, VERSION_MIN};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use rendezvous_core::limits::{RPC_FRAME, RpcLimits};
use rendezvous_core::time::Instant;

/// Maximum length of a handler's name, in bytes.
pub const HANDLER_BYTES_MAX: usize = 1024;

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

/// Events of a [`Caller`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerEvent<'b> {
    /// The callee has accepted this caller: calls can be made.
    Open,
    /// A response begins: number of the call, and length in bytes.
    Answer(u64, u64),
    /// A part of a response.
    Bytes(u64, &'b [u8]),
    /// A response is complete, or a one-way call has been written completely.
    Done(u64),
    /// A call has failed.
    Failed(u64, CallError),
    /// The callee accepts no further calls.
    PeerLeaving,
    /// The connection can be closed: a goodbye was sent or received, and no call is pending.
    Drained,
    /// The connection has failed and is to be closed. All its calls have failed before.
    Ended(ConnectionError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerState {
    Greeting,
    Open,
    /// One of the two ends has sent a goodbye.
    Leaving,
    Drained,
    Ended,
}

#[derive(Clone, Debug)]
struct Call {
    handler: Box<str>,
    kind: CallKind,
    began: Instant,
    /// Bytes of the response that are still to arrive, once it has begun.
    left: Option<u64>,
}

/// State machine of the calling end of a connection.
#[derive(Debug)]
pub struct Caller {
    peer: WorkerInfo,
    limits: RpcLimits,
    state: CallerState,
    incoming: FramesIn,
    outgoing: Outgoing,
    calls: InFlight<Call>,
    last_id: u64,
    requests_max: u32,
    bytes_max: u64,
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
    events: VecDeque<CallerEvent<'static>>,
    /// Calls whose last bytes are in the current write.
    out: Vec<u64>,
}

impl NewCall<'_> {
    /// Checks the call against the limits.
    ///
    /// # Errors
    /// The handler's name has an invalid length, or the payload is too long.
    pub fn check(&self, limits: &RpcLimits) -> Result<(), CallFailure> {
        if self.handler.is_empty() || self.handler.len() > HANDLER_BYTES_MAX {
            return Err(CallFailure::Handler { bytes: self.handler.len() });
        }
        let (bytes, bytes_max) = (self.payload_bytes, limits.payload_bytes_max);
        if bytes <= bytes_max { Ok(()) } else { Err(CallFailure::TooLong { bytes, bytes_max }) }
    }
}

impl Caller {
    /// Creates the end of a connection that worker `me` of `group` has opened to the address of `peer`.
    #[must_use]
    pub fn new(now: Instant, me: &WorkerInfo, peer: WorkerInfo, group: &[u8], limits: RpcLimits) -> Self {
        let mut outgoing = Outgoing::default();
        outgoing.raw(&MAGIC);
        outgoing.frame(
            0,
            &CallerFrame::Hello {
                version_min: VERSION_MIN,
                version_max: VERSION_MAX,
                group,
                caller: me.name.as_bytes(),
                caller_id: me.id,
                callee: peer.name.as_bytes(),
                callee_id: peer.id,
            },
        );
        Self {
            peer,
            limits,
            state: CallerState::Greeting,
            incoming: FramesIn::new(Splitter::from_callee()),
            outgoing,
            calls: InFlight::new(),
            last_id: 0,
            requests_max: 0,
            bytes_max: 0,
            began: now,
            silent_since: None,
            has_given_up: false,
            pinged: None,
            pings: 0,
            ask_again_at: None,
            load: None,
            events: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Whether calls can be made.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == CallerState::Open
    }

    /// The callee.
    #[must_use]
    pub const fn peer(&self) -> &WorkerInfo {
        &self.peer
    }

    /// Number of pending calls.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Lowest number that a new call may have.
    #[must_use]
    pub const fn next_id(&self) -> u64 {
        self.last_id + 1
    }

    /// Makes a call with a number higher than those before. The caller has waited since `since`.
    ///
    /// # Errors
    /// The call was not made, and nothing of it will be sent.
    pub fn begin(
        &mut self,
        now: Instant,
        id: u64,
        since: Instant,
        call: NewCall<'_>,
    ) -> Result<(), CallFailure> {
        debug_assert!(id > self.last_id, "numbers grow");
        match self.state {
            CallerState::Greeting => return Err(CallFailure::NotOpen),
            CallerState::Leaving | CallerState::Drained => return Err(CallFailure::Leaving),
            CallerState::Ended => return Err(CallFailure::Unsent(ConnectionError::Closed)),
            CallerState::Open => {}
        }
        call.check(&self.limits)?;
        if self.calls.len() as u64 >= u64::from(self.requests_max) {
            return Err(CallFailure::TooMany { count: self.requests_max });
        }
        let (bytes, bytes_max) = (self.calls.bytes_with(call.payload_bytes), self.bytes_max);
        if bytes > bytes_max && !self.calls.is_empty() {
            return Err(CallFailure::TooMuch { bytes, bytes_max });
        }
        let left = call.deadline.map(|at| at.since(now));
        if left.is_some_and(|left| left.is_zero()) {
            let (elapsed, phase) = (now.since(since), CallPhase::Queued);
            return Err(CallFailure::DeadlinePassed { elapsed, phase });
        }
        self.silent_since.get_or_insert(now);
        self.last_id = id;
        // Rounded up, so that the callee does not give up before the caller.
        let deadline_ms =
            left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX).saturating_add(1));
        let (payload_bytes, handler) = (call.payload_bytes, call.handler.as_bytes());
        match call.kind {
            CallKind::Responded => {
                self.outgoing.frame(id, &CallerFrame::Request { deadline_ms, payload_bytes, handler })
            }
            CallKind::OneWay => {
                self.outgoing.frame(id, &CallerFrame::Notice { deadline_ms, payload_bytes, handler })
            }
        };
        self.outgoing.payload(id, payload_bytes);
        let NewCall { handler, payload_bytes, deadline, kind } = call;
        let call = Call { handler: handler.into(), kind, began: since, left: None };
        self.calls.insert(id, payload_bytes, deadline, call);
        Ok(())
    }

    /// Cancels a call: it gets no further event. Returns its handler if the call was pending.
    pub fn cancel(&mut self, id: u64) -> Option<Box<str>> {
        let call = self.take(id)?;
        self.has_given_up = true;
        self.outgoing.frame(id, &CallerFrame::Cancel {});
        self.look_for_the_end();
        Some(call.handler)
    }

    /// Returns the pending calls whose handlers match.
    #[must_use]
    pub fn ids_of(&self, is_it: fn(&str) -> bool) -> Vec<u64> {
        let mut ids = self.calls.ids();
        ids.retain(|&id| self.calls.get(id).is_some_and(|call| is_it(&call.handler)));
        ids
    }

    /// Sends a goodbye: there will be no further calls, and the pending ones continue.
    pub fn goodbye(&mut self) {
        if self.state == CallerState::Open {
            self.state = CallerState::Leaving;
            self.outgoing.frame(0, &CallerFrame::Goodbye {});
            self.look_for_the_end();
        } else if self.state == CallerState::Greeting {
            self.end(ConnectionError::Closed);
        }
    }

    /// Fails the connection for this reason.
    pub fn lost(&mut self, why: ConnectionError) {
        self.end(why);
    }

    fn take(&mut self, id: u64) -> Option<Call> {
        let call = self.calls.take(id)?;
        self.outgoing.drop_payload(id);
        Some(call)
    }

    /// Stops the supervision of the callee if nothing is expected from it.
    fn look_for_rest(&mut self) {
        if self.calls.is_empty() && !self.has_given_up {
            (self.silent_since, self.pinged) = (None, None);
        }
    }

    /// Records that bytes were received.
    fn note_received(&mut self, now: Instant) {
        (self.silent_since, self.pinged, self.has_given_up) = (Some(now), None, false);
        self.look_for_rest();
    }

    /// Time since which the callee has been silent, if a response or a pong is expected.
    fn silence(&self) -> Option<Instant> {
        self.silent_since.filter(|_| matches!(self.state, CallerState::Open | CallerState::Leaving))
    }

    fn look_for_the_end(&mut self) {
        if self.state == CallerState::Leaving && self.calls.is_empty() {
            self.state = CallerState::Drained;
            self.events.push_back(CallerEvent::Drained);
        }
    }

    fn end(&mut self, why: ConnectionError) {
        if self.state == CallerState::Ended {
            return;
        }
        self.state = CallerState::Ended;
        self.outgoing.clear();
        for id in self.calls.ids() {
            let Some(call) = self.calls.take(id) else { continue };
            let error = why.clone().of_sent().of(call.handler, &self.peer);
            self.events.push_back(CallerEvent::Failed(id, error));
        }
        self.events.push_back(CallerEvent::Ended(why));
    }

    /// Returns what to write next. To be called when the socket accepts bytes.
    pub fn poll_write(&mut self) -> Option<ToWrite> {
        let next = self.outgoing.poll(&mut self.out)?;
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
        let is_awaited = matches!(self.state, CallerState::Open | CallerState::Leaving)
            && call.kind == CallKind::Responded;
        let due = call.began + deadline.since(call.began) / 4 * 3;
        let due = self.ask_again_at.map_or(due, |until| due.max(until));
        (is_awaited && due < deadline).then_some(due)
    }

    fn ask(&mut self, now: Instant) {
        if self.ask_due().is_some_and(|due| due <= now) {
            self.ask_again_at = self.calls.first_deadline();
            self.pings += 1;
            self.outgoing.frame(0, &CallerFrame::Ping { nonce: self.pings });
        }
    }

    /// Returns the phase of a call whose deadline has passed. The reported load explains the failure only if the report
    /// is from the second half of the call's time: the callee may have frozen since. Calls that end soon after each
    /// other share it.
    fn late_phase(&self, now: Instant, began: Instant) -> CallPhase {
        let half = began + now.since(began) / 2;
        let load = self.load.filter(|&(announced, _)| announced >= half);
        load.map_or(CallPhase::InFlight, |(_, load)| CallPhase::Exhausted(load))
    }

    /// Time of the next [`Caller::tick`]; `None` if none is needed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = self.calls.first_deadline();
        let greeting =
            (self.state == CallerState::Greeting).then(|| self.began + self.limits.greeting_timeout);
        let ping = self.silence().map(|since| match self.pinged {
            Some(at) => at + self.limits.ping_timeout,
            None => since + self.limits.ping_interval,
        });
        [first, greeting, ping, self.ask_due()].into_iter().flatten().min()
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        while let Some((id, call)) = self.calls.take_overdue(now) {
            self.has_given_up = true;
            self.outgoing.drop_payload(id);
            self.outgoing.frame(id, &CallerFrame::Cancel {});
            let (elapsed, phase) = (now.since(call.began), self.late_phase(now, call.began));
            let why = CallFailure::DeadlinePassed { elapsed, phase };
            self.events.push_back(CallerEvent::Failed(id, why.of(call.handler, &self.peer)));
        }
        self.ask(now);
        self.look_for_the_end();
        if self.state == CallerState::Greeting && now >= self.began + self.limits.greeting_timeout {
            return self.end(ConnectionError::NoGreeting(self.limits.greeting_timeout));
        }
        let Some(since) = self.silence() else { return };
        match self.pinged {
            Some(at) if now >= at + self.limits.ping_timeout => {
                self.end(ConnectionError::Silent(now.since(since)));
            }
            None if now >= since + self.limits.ping_interval => {
                self.pings += 1;
                self.outgoing.frame(0, &CallerFrame::Ping { nonce: self.pings });
                self.pinged = Some(now);
            }
            _ => {}
        }
    }

    /// Returns the response whose bytes come next, and how many at least. The driver may read them to their destination
    /// directly, and report that with [`Caller::filled`].
    #[must_use]
    pub fn due(&self) -> Option<(u64, u32)> {
        self.incoming.due().filter(|&(id, _)| self.calls.get(id).is_some_and(|call| call.left.is_some()))
    }

    /// Records that this many bytes of what [`Caller::due`] returned were read to their destination. No event reports
    /// them.
    pub fn filled(&mut self, now: Instant, bytes: u32) {
        self.note_received(now);
        self.incoming.filled(bytes);
    }

    /// Returns the next event, and consumes bytes from the front of `bytes`; `None` when all are consumed.
    pub fn next_event<'b>(&mut self, now: Instant, bytes: &mut &'b [u8]) -> Option<CallerEvent<'b>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.state == CallerState::Ended {
                *bytes = &[];
                return None;
            }
            if !bytes.is_empty() {
                self.note_received(now);
            }
            // The end of a frame has no bytes of its own, so the codec is called even if there are none.
            match self.incoming.next(bytes) {
                Ok(None) => return self.events.pop_front(),
                Ok(Some(frame_part)) => match self.frame_part(now, frame_part) {
                    Ok(None) => {}
                    Ok(Some(event)) => return Some(event),
                    Err(error) => self.end(error),
                },
                Err(error) => self.end(error.into()),
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
            FramePart::Frame(header, body) => match CalleeFrame::parse(header.kind, &body)? {
                Some(frame) => self.frame(now, header.id, header.kind, frame),
                None => Ok(None),
            },
        }
    }

    /// Handles a frame for a call that is not pending: either the call was given up, or it never existed.
    const fn late<'b>(&self, id: u64, kind: u16) -> Result<Option<CallerEvent<'b>>, ConnectionError> {
        if id == 0 || id > self.last_id { Err(ConnectionError::UnexpectedFrame(kind)) } else { Ok(None) }
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
                CallerState::Greeting,
            ) => {
                if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
                    return Err(ConnectionError::UnexpectedFrame(kind));
                }
                if callee != self.peer.name.as_bytes() || callee_id != self.peer.id {
                    let got = format!("{} (id {callee_id})", text(callee)).into();
                    return Err(ConnectionError::Impostor { wanted: self.peer.clone(), got });
                }
                self.requests_max = requests_max.min(self.limits.requests_max);
                self.bytes_max = bytes_max.min(self.limits.bytes_max);
                if self.requests_max == 0 {
                    return Err(ConnectionError::NothingAllowed);
                }
                self.state = CallerState::Open;
                Ok(Some(CallerEvent::Open))
            }
            (_, CallerState::Greeting) | (CalleeFrame::Welcome { .. }, _) => {
                Err(ConnectionError::UnexpectedFrame(kind))
            }
            (CalleeFrame::Pong { .. }, _) => {
                self.load = None;
                Ok(None)
            }
            (CalleeFrame::Exhausted { threads, waiting }, _) => {
                self.load = Some((now, PoolLoad { threads, waiting }));
                Ok(None)
            }
            (CalleeFrame::Goodbye {}, CallerState::Open) => {
                self.state = CallerState::Leaving;
                self.look_for_the_end();
                Ok(Some(CallerEvent::PeerLeaving))
            }
            (CalleeFrame::Goodbye {}, _) => Ok(None),
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
        self.outgoing.drop_payload(id);
        let bytes_max = self.limits.payload_bytes_max;
        if status != 0 {
            let Some(call) = self.take(id) else { return Ok(None) };
            self.look_for_rest();
            self.look_for_the_end();
            let why = match Status::from_number(status) {
                // The error is the same whichever end detects it first.
                Status::Deadline => {
                    let (elapsed, phase) = (now.since(call.began), self.late_phase(now, call.began));
                    CallFailure::DeadlinePassed { elapsed, phase }
                }
                status => CallFailure::Remote { status, message: String::from_utf8_lossy(message).into() },
            };
            return Ok(Some(CallerEvent::Failed(id, why.of(call.handler, &self.peer))));
        }
        if bytes > bytes_max {
            let handler = self.cancel(id).unwrap_or_default();
            let error = CallFailure::TooLong { bytes, bytes_max }.of(handler, &self.peer);
            return Ok(Some(CallerEvent::Failed(id, error)));
        }
        call.left = Some(bytes);
        self.look_at_answer(id);
        if bytes > 0 {
            return Ok(Some(CallerEvent::Answer(id, bytes)));
        }
        // The event of an empty response comes before that of its end.
        self.events.push_front(CallerEvent::Answer(id, 0));
        Ok(self.events.pop_front())
    }
}

const _: () = assert!(HANDLER_BYTES_MAX as u64 <= RPC_FRAME.value_bytes_max);
