//! Called end of a connection.

use super::frames_in::{FramePart, FramesIn};
use super::in_flight::InFlight;
use super::outgoing::{Outgoing, ToWrite};
use super::token::{TokenExchange, hello};
use super::{CallKind, ConnectionError, PoolLoad, Refusal, Status, cut_failure_text};
use crate::handlers::NoCall;
use crate::intake::Load;
use crate::limits::{RPC_FRAME, RpcLimits};
use crate::name::{WorkerInfo, WorkerName};
use crate::wire::{CalleeFrame, CallerFrame, DATA, Header, Splitter, VERSION_MAX, body_error, negotiate};
use alloc::collections::VecDeque;
use rendezvous_core::error::Span;
use rendezvous_core::prelude::*;
use rendezvous_core::proof::Bytes32;
use rendezvous_core::secret::same;

/// Reason why a request ended without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The caller cancelled it.
    Cancelled,
    /// Its deadline passed; the caller was notified.
    Deadline,
    /// The rest of its payload did not arrive in time; the caller was notified.
    Stalled,
    /// The connection ended.
    Lost,
}

/// Events of a [`Callee`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalleeEvent<'b> {
    /// The caller claims to be this worker, of the right group, and wants to call this worker. The driver must call
    /// [`Callee::admit`] or [`Callee::refuse`].
    Claimed(WorkerInfo),
    /// A request begins.
    Request {
        /// Number of the call.
        call: u64,
        /// Name of the handler.
        handler: Box<str>,
        /// Length of its payload in bytes.
        payload_bytes: u64,
        /// Time when the caller gives up.
        deadline: Option<Instant>,
        /// Whether it has a response.
        kind: CallKind,
    },
    /// A request is refused, and its caller notified: its handler and the reason.
    Refused(Box<str>, Status),
    /// A part of a request.
    Bytes(u64, &'b [u8]),
    /// A request is complete.
    Complete(u64),
    /// The caller does not wait for it any more: it need not be executed, and its response is dropped.
    Over(u64, Ending),
    /// A response has been handed out for writing completely.
    Responded(u64),
    /// The caller sent a ping: [`Callee::exhausted`] adds this worker's load to the response.
    Pinged,
    /// The caller makes no further requests.
    PeerLeaving,
    /// The connection can be closed: a goodbye was sent or received, and no request is pending.
    Drained,
    /// The connection has failed, and is to be closed when the pending bytes are written. All its requests have ended.
    Ended(ConnectionError),
    /// The caller has not read the last pending bytes: the connection is to be closed at once.
    Unread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CalleeState {
    Greeting,
    /// The caller was asked to prove the token. Its versions are kept for that.
    Challenged((u16, u16)),
    Claimed,
    Open,
    /// One of the two ends has sent a goodbye.
    Leaving,
    Drained,
    Ended,
}

/// Whether the caller's bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    On,
    /// Not read: there is no capacity for further requests.
    HeldUp,
    /// The caller sends nothing more; what it has sent is read, whatever the capacity.
    ToTheEnd,
}

/// Progress of the last bytes once no request is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaveMode {
    NotYet,
    /// They have been waiting for the caller since this time or longer.
    Since(Instant),
    GivenUp,
}

#[derive(Clone, Debug)]
struct Request {
    kind: CallKind,
    /// Bytes of the payload that are still to arrive, without the part that is arriving.
    left: u64,
    is_complete: bool,
    answer_event: Responded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Responded {
    No,
    /// With a payload of this many bytes.
    Sending(u64),
}

/// State machine of the called end of a connection.
#[derive(Debug)]
pub struct Callee {
    me: WorkerInfo,
    group: Box<[u8]>,
    limits: RpcLimits,
    state: CalleeState,
    incoming: FramesIn,
    outgoing: Outgoing,
    peer: Option<WorkerInfo>,
    /// Token that the caller must prove.
    token: Option<TokenExchange>,
    requests: InFlight<Request>,
    last_id: u64,
    /// Number of requests whose payloads are incomplete.
    unfinished: usize,
    /// Time of the last check whether incomplete requests, and an incomplete frame, make progress.
    looked_at_progress: Instant,
    /// Whether anything but a ping arrived since then, or the connection was not read for a while. Parts of payloads
    /// are interleaved, so the bytes of one request alone prove nothing.
    has_progressed: bool,
    /// The incomplete frame at the last check.
    unfinished_frame: Option<(u64, u32)>,
    /// Payloads of responses that have not been handed out for writing completely, in bytes.
    unread_bytes: u64,
    began: Instant,
    reading: Reading,
    /// Time of the last unsolicited pong.
    ponged: Option<Instant>,
    /// Time of the last [`Callee::tick`].
    looked: Instant,
    leave_mode: LeaveMode,
    events: VecDeque<CalleeEvent<'static>>,
    /// Calls whose last bytes are in the current write.
    out: Vec<u64>,
}

impl Callee {
    /// Creates the end of a connection that worker `me` of `group` has accepted.
    pub fn new(now: Instant, me: WorkerInfo, group: &[u8], limits: RpcLimits) -> Self {
        Self {
            me,
            group: group.into(),
            limits,
            state: CalleeState::Greeting,
            incoming: FramesIn::new(Splitter::from_caller()),
            outgoing: Outgoing::default(),
            peer: None,
            token: None,
            requests: InFlight::new(),
            last_id: 0,
            unfinished: 0,
            looked_at_progress: now,
            has_progressed: false,
            unfinished_frame: None,
            unread_bytes: 0,
            began: now,
            reading: Reading::On,
            ponged: None,
            looked: now,
            leave_mode: LeaveMode::NotYet,
            events: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Requires the caller to prove a token. To be called before the first received bytes.
    pub fn require(&mut self, token: TokenExchange) {
        self.token = Some(token);
    }

    /// Whether the caller is yet to prove a token, over a channel whose binding [`Callee::bind`] needs if it is encrypted.
    pub const fn is_proving(&self) -> bool {
        self.token.is_some() && self.is_greeting()
    }

    /// Sets the binding to an encrypted channel. To be called before the first received bytes.
    pub const fn bind(&mut self, channel: Bytes32) {
        if let Some(token) = &mut self.token {
            token.bind(channel);
        }
    }

    /// Whether the handshake is incomplete.
    const fn is_greeting(&self) -> bool {
        matches!(self.state, CalleeState::Greeting | CalleeState::Challenged(..))
    }

    /// The caller as it identifies itself; `None` before its handshake.
    pub const fn peer(&self) -> Option<&WorkerInfo> {
        self.peer.as_ref()
    }

    /// Number of pending requests.
    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Load of the requests that are incomplete or wait for a response.
    pub fn awaited(&self) -> Load {
        Load { requests: self.requests.len() as u64, bytes: self.requests.bytes_with(0) }
    }

    /// Number of bytes of responses that the caller has not read.
    pub const fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }

    /// Whether a handler may start for this caller: not while the caller does not read its responses.
    pub const fn begins(&self) -> bool {
        self.unread_bytes < self.limits.answer_bytes_max
    }

    /// Whether a response of this many bytes is kept though its handler has returned before.
    pub const fn keeps_late_answer(&self, bytes: u64) -> bool {
        self.unread_bytes == 0 || self.unread_bytes.saturating_add(bytes) <= self.limits.late_answer_bytes_max
    }

    /// Accepts the caller.
    pub fn admit(&mut self) {
        if self.state == CalleeState::Claimed {
            self.state = CalleeState::Open;
            self.outgoing.frame(
                0,
                &CalleeFrame::Welcome {
                    version: VERSION_MAX,
                    callee: self.me.name.as_bytes(),
                    callee_id: self.me.id,
                    requests_max: self.limits.requests_max,
                    bytes_max: self.limits.bytes_max,
                },
            );
        }
    }

    /// Refuses the caller, and sends it the reason.
    pub fn refuse(&mut self, why: Refusal, message: &str) {
        if self.is_greeting() || self.state == CalleeState::Claimed {
            let end = message.floor_char_boundary(1024);
            let message = message.get(..end).unwrap_or_default();
            self.end(ConnectionError::Refused { why, message: message.into() });
            self.outgoing.frame(0, &CalleeFrame::Refused { why: why.number(), message: message.as_bytes() });
        }
    }

    /// Starts the response to a request, of this many bytes; its parts are requested as [`ToWrite::Part`]. Returns
    /// whether the caller waits for it.
    pub fn answer(&mut self, call: u64, payload_bytes: u64) -> bool {
        if payload_bytes > self.limits.payload_bytes_max {
            let bytes_max = self.limits.payload_bytes_max;
            let message = alloc::format!("a response of {payload_bytes} bytes, of at most {bytes_max}");
            return self.fail(call, Status::TooLong, &message);
        }
        let Some(request) = self.waiting(call) else { return false };
        request.answer_event = Responded::Sending(payload_bytes);
        self.unread_bytes += payload_bytes;
        self.outgoing.frame(call, &CalleeFrame::Response { status: 0, payload_bytes, message: b"" });
        self.outgoing.payload(call, payload_bytes);
        true
    }

    /// Fails a request. Returns whether the caller waits for its response.
    pub fn fail(&mut self, call: u64, status: Status, message: &str) -> bool {
        let Some(request) = self.waiting(call) else { return false };
        request.answer_event = Responded::Sending(0);
        self.respond(call, status, message);
        true
    }

    /// Refuses a request that no handler gets. Returns the status and more about the reason, as the caller gets them.
    pub fn refuse_call(&mut self, call: u64, why: NoCall) -> (Status, Box<str>) {
        let (status, message): (_, Box<str>) = match (why, &self.peer) {
            (NoCall::Denied, Some(caller)) => {
                (Status::Denied, format!("{caller} is not in its list of callers").into())
            }
            _ => (Status::NoHandler, "".into()),
        };
        self.fail(call, status, &message);
        (status, message)
    }

    /// Whether the caller waits for the response to this request.
    pub fn waits_for(&self, call: u64) -> bool {
        let waits =
            |request: &Request| request.kind == CallKind::Responded && request.answer_event == Responded::No;
        self.requests.get(call).is_some_and(waits)
    }

    /// Returns the request if it needs a response. A one-way call is not tracked after its arrival.
    fn waiting(&mut self, call: u64) -> Option<&mut Request> {
        if self.waits_for(call) { self.requests.get_mut(call) } else { None }
    }

    fn respond(&mut self, call: u64, status: Status, message: &str) {
        let message = cut_failure_text(message);
        let (status, message) = (status.number(), message.as_bytes());
        self.outgoing.frame(call, &CalleeFrame::Response { status, payload_bytes: 0, message });
        self.outgoing.payload(call, 0);
    }

    /// Reports to a caller that has just sent a ping that no handler thread is free.
    pub fn exhausted(&mut self, PoolLoad { threads, waiting }: PoolLoad) {
        self.outgoing.frame(0, &CalleeFrame::Exhausted { threads, waiting });
    }

    /// Sends a goodbye: no further requests are accepted, and the pending ones continue.
    pub fn goodbye(&mut self) {
        match self.state {
            CalleeState::Open => {
                self.state = CalleeState::Leaving;
                // The number of the first request that is not accepted.
                self.outgoing.frame(self.last_id.saturating_add(1), &CalleeFrame::Goodbye {});
            }
            CalleeState::Greeting | CalleeState::Challenged(..) | CalleeState::Claimed => {
                self.refuse(Refusal::Leaving, "");
            }
            CalleeState::Leaving | CalleeState::Drained | CalleeState::Ended => {}
        }
    }

    /// Fails the connection for this reason.
    pub fn lost(&mut self, why: ConnectionError) {
        self.end(why);
    }

    fn take(&mut self, call: u64) -> Option<Request> {
        let request = self.requests.take(call)?;
        self.outgoing.drop_payload(call);
        self.count_out(&request);
        Some(request)
    }

    /// Updates the counters for a request that has ended.
    fn count_out(&mut self, request: &Request) {
        self.unfinished -= usize::from(!request.is_complete);
        if let Responded::Sending(bytes) = request.answer_event {
            self.unread_bytes -= bytes;
        }
    }

    fn look_for_the_end(&mut self) {
        if self.state == CalleeState::Leaving && self.requests.is_empty() && self.outgoing.is_empty() {
            self.state = CalleeState::Drained;
            self.events.push_back(CalleeEvent::Drained);
        }
    }

    fn end(&mut self, why: ConnectionError) {
        if self.state == CalleeState::Ended {
            return;
        }
        self.state = CalleeState::Ended;
        self.outgoing.clear();
        for call in self.requests.ids() {
            self.take(call);
            self.events.push_back(CalleeEvent::Over(call, Ending::Lost));
        }
        self.events.push_back(CalleeEvent::Ended(why));
    }

    /// Whether the caller's bytes are to be read now: not without capacity for requests, and not while the caller does
    /// not read its responses.
    pub fn is_read(&self) -> bool {
        self.reading != Reading::HeldUp && !self.outgoing.is_backed_up()
    }

    /// Whether the connection is not read for lack of capacity.
    pub fn is_held_up(&self) -> bool {
        self.reading == Reading::HeldUp
    }

    /// Stops reading for lack of capacity. Returns whether that applies to this caller: not before its handshake, until
    /// which it sends no requests, and not after its end. A caller that is held up is sent a pong periodically, since
    /// its pings are not read.
    pub fn hold_up(&mut self, now: Instant) -> bool {
        let is_greeted = matches!(self.state, CalleeState::Open | CalleeState::Leaving);
        if !is_greeted || self.reading == Reading::ToTheEnd {
            return false;
        }
        self.reading = Reading::HeldUp;
        self.live(now);
        true
    }

    /// Resumes reading: there is capacity again.
    pub fn go_on(&mut self) {
        if self.reading == Reading::HeldUp {
            self.reading = Reading::On;
            self.has_progressed = true;
        }
    }

    /// The caller has closed the connection, or its half of it. What it sent before is limited in size, and may be a
    /// one-way call: it is read though there is no capacity.
    pub fn read_to_the_end(&mut self) {
        self.reading = Reading::ToTheEnd;
    }

    /// Time of the next unsolicited pong.
    fn heartbeat_due(&self) -> Option<Instant> {
        let is_due = self.is_held_up() && matches!(self.state, CalleeState::Open | CalleeState::Leaving);
        is_due.then(|| self.ponged.map_or(Instant::ORIGIN, |at| at + self.limits.ping_interval))
    }

    fn live(&mut self, now: Instant) {
        if self.heartbeat_due().is_some_and(|at| at <= now) {
            self.ponged = Some(now);
            // One more pong is of no use to a caller that has not read the last one.
            if self.outgoing.is_flow_controlled() {
                self.outgoing.frame(0, &CalleeFrame::Pong { nonce: 0 });
            }
        }
    }

    /// Time of the check whether the last bytes were read by the caller. That all are handed out is noticed during a
    /// write, where the time is not known, so the check is repeated from the goodbye on.
    fn drain_check_due(&self) -> Option<Instant> {
        let since = match (self.state, self.leave_mode) {
            (CalleeState::Leaving, _) | (CalleeState::Drained | CalleeState::Ended, LeaveMode::NotYet) => {
                self.looked
            }
            (CalleeState::Drained | CalleeState::Ended, LeaveMode::Since(at)) => at,
            _ => return None,
        };
        Some(since + self.limits.ping_timeout)
    }

    fn check_drained(&mut self, now: Instant) {
        let is_due = self.drain_check_due().is_some_and(|at| at <= now);
        self.looked = now;
        match (self.state, self.leave_mode) {
            (CalleeState::Drained | CalleeState::Ended, LeaveMode::NotYet) => {
                self.leave_mode = LeaveMode::Since(now)
            }
            (CalleeState::Drained | CalleeState::Ended, LeaveMode::Since(_)) if is_due => {
                self.leave_mode = LeaveMode::GivenUp;
                self.events.push_back(CalleeEvent::Unread);
            }
            _ => {}
        }
    }

    /// Returns what to write next. To be called when the socket accepts bytes.
    pub fn poll_write(&mut self) -> Option<ToWrite> {
        // Until now the caller was not read.
        self.has_progressed |= self.outgoing.is_backed_up();
        let next = self.outgoing.poll(&mut self.out);
        let mut out = core::mem::take(&mut self.out);
        for call in out.drain(..) {
            if let Some(request) = self.requests.take(call) {
                self.count_out(&request);
                self.events.push_back(CalleeEvent::Responded(call));
            }
        }
        self.out = out;
        self.look_for_the_end();
        next
    }

    /// Time of the next [`Callee::tick`]; `None` if none is needed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let first = self.requests.first_deadline();
        let greeting = self.is_greeting().then(|| self.began + self.limits.greeting_timeout);
        let due = [first, greeting, self.heartbeat_due(), self.drain_check_due(), self.progress_due()];
        due.into_iter().flatten().min()
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        while let Some((call, request)) = self.requests.take_overdue(now) {
            self.outgoing.drop_payload(call);
            self.count_out(&request);
            // A response that has begun is cut off: its caller has given it up.
            if request.kind == CallKind::Responded && request.answer_event == Responded::No {
                self.respond(call, Status::Deadline, "");
            }
            self.events.push_back(CalleeEvent::Over(call, Ending::Deadline));
        }
        if self.is_greeting() && now >= self.began + self.limits.greeting_timeout {
            self.end(ConnectionError::NoGreeting(self.limits.greeting_timeout));
        }
        self.look_at_progress(now);
        self.live(now);
        self.look_for_the_end();
        self.check_drained(now);
    }

    /// Time of the next check whether incomplete requests and frames make progress.
    fn progress_due(&self) -> Option<Instant> {
        let is_unfinished = self.unfinished > 0 || self.incoming.unfinished().is_some();
        let is_looked_at = is_unfinished && matches!(self.state, CalleeState::Open | CalleeState::Leaving);
        is_looked_at.then(|| self.looked_at_progress + self.limits.stall_timeout)
    }

    /// Gives up incomplete requests if nothing arrived since the last check, or the connection if a frame is
    /// incomplete.
    fn look_at_progress(&mut self, now: Instant) {
        let Some(due) = self.progress_due().filter(|&due| due <= now) else { return };
        self.looked_at_progress = now;
        let frame = self.incoming.unfinished();
        let is_frame_as_before = core::mem::replace(&mut self.unfinished_frame, frame) == frame;
        let has_progressed = core::mem::take(&mut self.has_progressed) || !is_frame_as_before;
        // A caller that is not read cannot make progress. If this process was paused, the caller's may have been
        // paused, too.
        if has_progressed || !self.is_read() || now >= due + self.limits.stall_timeout {
            return;
        }
        if frame.is_some() {
            return self.end(ConnectionError::Stalled(self.limits.stall_timeout));
        }
        for call in self.requests.ids() {
            if self.requests.get(call).is_none_or(|request| request.is_complete) {
                continue;
            }
            let Some(request) = self.take(call) else { continue };
            if request.kind == CallKind::Responded && request.answer_event == Responded::No {
                let text = format!("no byte came in {}", Span(self.limits.stall_timeout));
                self.respond(call, Status::Stalled, &text);
            }
            self.events.push_back(CalleeEvent::Over(call, Ending::Stalled));
        }
    }

    /// Returns the request whose bytes come next, and how many at least. The driver may read them to their destination
    /// directly, and report that with [`Callee::filled`].
    pub fn due(&self) -> Option<(u64, u32)> {
        self.incoming.due().filter(|&(call, _)| self.requests.get(call).is_some())
    }

    /// Records that this many bytes of what [`Callee::due`] returned were read to their destination. No event reports
    /// them.
    pub const fn filled(&mut self, bytes: u32) {
        self.has_progressed = true;
        self.incoming.filled(bytes);
    }

    /// Returns the next event, and consumes bytes from the front of `bytes`; `None` when all are consumed. Before a
    /// caller is admitted or refused, nothing more of it is read.
    pub fn next_event<'b>(&mut self, now: Instant, bytes: &mut &'b [u8]) -> Option<CalleeEvent<'b>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            match self.state {
                CalleeState::Ended => {
                    *bytes = &[];
                    return None;
                }
                CalleeState::Claimed => return None,
                _ => {}
            }
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
    ) -> Result<Option<CalleeEvent<'b>>, ConnectionError> {
        match frame_part {
            FramePart::Data(..) if self.is_greeting() => Err(ConnectionError::UnexpectedFrame(DATA)),
            FramePart::Data(call, bytes) => {
                self.has_progressed = true;
                let Some(request) = self.requests.get_mut(call) else {
                    // The request has a response, has ended, or was never accepted.
                    return if call == 0 || call > self.last_id {
                        Err(ConnectionError::UnexpectedFrame(DATA))
                    } else {
                        Ok(None)
                    };
                };
                let left = request.left.checked_sub(u64::from(bytes));
                request.left = left.ok_or(ConnectionError::TooMuchData(call))?;
                Ok(None)
            }
            FramePart::Bytes(call, bytes) => {
                self.has_progressed = true;
                let is_wanted = self.requests.get(call).is_some();
                Ok(is_wanted.then_some(CalleeEvent::Bytes(call, bytes)))
            }
            FramePart::DataEnd(call) => {
                if self.requests.get(call).is_some_and(|request| request.left == 0) {
                    self.complete(call);
                }
                Ok(None)
            }
            FramePart::Frame(Header { id, kind, .. }, body) => {
                match CallerFrame::parse(kind, &body, &RPC_FRAME).map_err(body_error(kind))? {
                    Some(frame) => self.frame(now, id, kind, frame),
                    None => Ok(None),
                }
            }
        }
    }

    fn complete(&mut self, call: u64) {
        self.events.push_back(CalleeEvent::Complete(call));
        if let Some(request) = self.requests.get_mut(call).filter(|request| !request.is_complete) {
            request.is_complete = true;
            self.unfinished -= 1;
        }
        if self.requests.get(call).is_some_and(|request| request.kind == CallKind::OneWay) {
            self.take(call);
            self.look_for_the_end();
        }
    }

    fn frame<'b>(
        &mut self,
        now: Instant,
        id: u64,
        kind: u16,
        frame: CallerFrame<'_>,
    ) -> Result<Option<CalleeEvent<'b>>, ConnectionError> {
        self.has_progressed |= !matches!(frame, CallerFrame::Ping { .. });
        match (frame, self.state) {
            (
                CallerFrame::Hello { version_min, version_max, group, caller, caller_id, callee, callee_id },
                CalleeState::Greeting,
            ) => self.greeted((version_min, version_max), group, (caller, caller_id), (callee, callee_id)),
            (CallerFrame::Proof { token, nonce, proof }, CalleeState::Challenged(versions)) => {
                Ok(self.proven(versions, (token, nonce, &proof)))
            }
            (_, CalleeState::Greeting | CalleeState::Challenged(..))
            | (CallerFrame::Hello { .. } | CallerFrame::Proof { .. }, _) => {
                Err(ConnectionError::UnexpectedFrame(kind))
            }
            (CallerFrame::Ping { nonce }, _) => {
                self.outgoing.frame(0, &CalleeFrame::Pong { nonce });
                Ok(Some(CalleeEvent::Pinged))
            }
            (CallerFrame::Goodbye {}, _) => {
                if self.state == CalleeState::Open {
                    self.state = CalleeState::Leaving;
                    self.events.push_back(CalleeEvent::PeerLeaving);
                }
                self.look_for_the_end();
                Ok(None)
            }
            (CallerFrame::Cancel {}, _) => {
                if self.take(id).is_some() {
                    self.events.push_back(CalleeEvent::Over(id, Ending::Cancelled));
                    self.look_for_the_end();
                }
                Ok(None)
            }
            (CallerFrame::Request { deadline_ms, payload_bytes, handler }, _) => {
                self.request(now, (id, kind), CallKind::Responded, deadline_ms, payload_bytes, handler)
            }
            (CallerFrame::Notice { deadline_ms, payload_bytes, handler }, _) => {
                self.request(now, (id, kind), CallKind::OneWay, deadline_ms, payload_bytes, handler)
            }
        }
    }

    fn greeted<'b>(
        &mut self,
        versions: (u16, u16),
        group: &[u8],
        caller: (&[u8], u16),
        callee: (&[u8], u16),
    ) -> Result<Option<CalleeEvent<'b>>, ConnectionError> {
        let name = core::str::from_utf8(caller.0).ok().and_then(|name| WorkerName::new(name).ok());
        let caller = WorkerInfo { name: name.ok_or(ConnectionError::NoWorker)?, id: caller.1 };
        self.peer = Some(caller.clone());
        let why = if negotiate(versions.0, versions.1).is_none() {
            Refusal::Version
        } else if !same(group, &self.group) {
            Refusal::Group
        } else if callee != (self.me.name.as_bytes(), self.me.id) {
            Refusal::NotMe
        } else if let Some(token) = &self.token {
            self.state = CalleeState::Challenged(versions);
            self.outgoing.frame(0, &CalleeFrame::Challenge { nonce: token.nonce() });
            return Ok(None);
        } else {
            self.state = CalleeState::Claimed;
            return Ok(Some(CalleeEvent::Claimed(caller)));
        };
        let me = format!("this is {}", self.me);
        self.refuse(why, if why == Refusal::NotMe { &me } else { "" });
        Ok(None)
    }

    /// Checks the caller's proof, and proves the token in return.
    fn proven<'b>(
        &mut self,
        versions: (u16, u16),
        proof: (&[u8], Bytes32, &Bytes32),
    ) -> Option<CalleeEvent<'b>> {
        let (token, caller) = (self.token.as_mut()?, self.peer.as_ref()?);
        let hello = hello(versions, &self.group, caller, &self.me);
        let Some(own) = token.verify(proof, &hello) else {
            self.refuse(if proof.0.is_empty() { Refusal::NoToken } else { Refusal::WrongToken }, "");
            return None;
        };
        let caller = caller.clone();
        self.outgoing.frame(0, &CalleeFrame::Proof { proof: own });
        self.state = CalleeState::Claimed;
        Some(CalleeEvent::Claimed(caller))
    }

    fn request<'b>(
        &mut self,
        now: Instant,
        (id, frame_kind): (u64, u16),
        kind: CallKind,
        deadline_ms: u64,
        payload_bytes: u64,
        handler: &[u8],
    ) -> Result<Option<CalleeEvent<'b>>, ConnectionError> {
        if id <= self.last_id {
            return Err(ConnectionError::UnexpectedFrame(frame_kind));
        }
        self.last_id = id;
        let bytes = self.requests.bytes_with(payload_bytes);
        let is_full = self.requests.len() as u64 >= u64::from(self.limits.requests_max)
            || (bytes > self.limits.bytes_max && !self.requests.is_empty());
        let refusal = match () {
            () if self.state != CalleeState::Open => Some(Status::Leaving),
            () if payload_bytes > self.limits.payload_bytes_max => Some(Status::TooLong),
            () if is_full => return Err(ConnectionError::TooManyInFlight),
            () => None,
        };
        if let Some(status) = refusal {
            if kind == CallKind::Responded {
                let bytes_max = self.limits.payload_bytes_max;
                let is_long = status == Status::TooLong;
                let message =
                    is_long.then(|| alloc::format!("{payload_bytes} bytes, of at most {bytes_max}"));
                self.respond(id, status, message.as_deref().unwrap_or_default());
            }
            return Ok(Some(CalleeEvent::Refused(String::from_utf8_lossy(handler).into(), status)));
        }
        let deadline = (deadline_ms > 0).then(|| now + Duration::from_millis(deadline_ms));
        if self.unfinished == 0 {
            self.looked_at_progress = now;
        }
        self.unfinished += 1;
        let request = Request { kind, left: payload_bytes, is_complete: false, answer_event: Responded::No };
        self.requests.insert(id, payload_bytes, deadline, request);
        let handler = String::from_utf8_lossy(handler).into();
        self.events.push_back(CalleeEvent::Request { call: id, handler, payload_bytes, deadline, kind });
        if payload_bytes == 0 {
            self.complete(id);
        }
        Ok(self.events.pop_front())
    }
}
