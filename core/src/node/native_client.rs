//! Client of a native server: one session over one connection at a time, any number of requests, and a node's part in a
//! run.
//!
//! The client owns no bytes and needs no allocator. The caller keeps each request until it completes, because it may be
//! sent again, and keeps received bytes until they form a frame. After each input, the caller drains
//! [`NativeClient::poll_output`], writes what [`NativeClient::poll_write`] returns, and takes the failed calls from
//! [`NativeClient::next_failed`].
//!
//! A node has one join request at a time at the server. The client holds the next one until the server has answered an
//! earlier one that was given up. If that one led to a round, the client first leaves the round and so frees the slot.
//! The LEAVE names the run, so the caller keeps the run id of the Join that it wrote last.
//!
//! PyTorch's store closes the connection instead of answering the greeting. If the options say so, the client checks a
//! peer that does so with the greeting of c10d.
//!
//! With a grace period, the client connects again and resumes the session, so that each request has its effect once.
//! Without one, the session ends with its connection; in exchange the first requests are sent together with HELLO.

mod event;
pub mod fault;
mod greeting;
mod identify;
mod join_requests;
mod pending;
mod session_end;

pub use event::{BeginError, Ending, Event, Failed, Input, Output, Taken, ToWrite};
use greeting::Authenticated;
use identify::Identification;
pub use identify::{IDENTIFY_NONCE, Unanswered};
use pending::{Awaited, Pending, Stage, SubmitWhen};

use crate::auth::ClientAuth;
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::{FrameLimits, NATIVE_ANSWER_BYTES_MAX};
use crate::rendezvous::participant::{self, Part, Participant};
use crate::session::client::{ClientSession, Due, End, Identity, Received, SessionOptions};
use crate::session::life::ClientState;
use crate::store::dial::{DialInput, DialOptions, DialOutput, DialState, Dialer, Rounds};
use crate::time::{Duration, Instant, PauseDetector, Poller};
use crate::wire::native::{ClientFrame, From, HEADER_BYTES, Header, Label, Scan, ServerFrame, Size, scan};
use fault::{failure_of, failure_of_end};
use heapless::{Deque, Vec};

/// Options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeOptions {
    /// Settings that the client requests for the session.
    pub session: SessionOptions,
    /// Time to establish the first connection, over all attempts. A later connection has the session's grace period.
    pub connect_timeout: Duration,
    /// How often the client tries the list of addresses for the first connection.
    pub rounds: Rounds,
    /// Options of a connection attempt.
    pub dial: DialOptions,
    /// What the client does about a peer that closes the connection instead of answering the greeting.
    pub unanswered: Unanswered,
    /// Limits of a request, until the server announces its own.
    pub limits: FrameLimits,
    /// Time after its deadline at which a call is given up while the server sends heartbeats. The server enforces the
    /// deadline too, and its answer, which names the missing participants, needs time to arrive. With a silent server,
    /// the deadline itself counts.
    pub answer_slack: Duration,
    /// Kind of caller that polls the client.
    pub poller: Poller,
}

impl Default for NativeOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            connect_timeout: Duration::from_secs(300),
            rounds: Rounds::UntilDeadline,
            dial: DialOptions::default(),
            unanswered: Unanswered::Accept,
            limits: FrameLimits::native(),
            answer_slack: Duration::from_secs(2),
            poller: Poller::Thread,
        }
    }
}

/// Client with capacity for `PENDING` requests.
#[derive(Debug)]
pub struct NativeClient<const PENDING: usize> {
    options: NativeOptions,
    limits: FrameLimits,
    seed: u64,
    session: ClientSession<PENDING>,
    participant: Participant,
    dialer: Dialer,
    /// Set while the client finds out what kind of server the peer is.
    identification: Option<Identification>,
    /// In ascending order of their ids.
    pending: Vec<Pending, PENDING>,
    /// Set if the client has a token.
    auth: Option<ClientAuth>,
    opening: Option<(Identity, Label)>,
    /// Whether the opening that is due is the proof of the token.
    is_proof_due: bool,
    heartbeat: Option<u64>,
    /// Whether the node is in a round whose join was given up, and still has to leave it.
    leave_due: bool,
    /// Bytes of the incomplete frame.
    partial_bytes: usize,
    /// Id of the request that sends BYE; 0: there is none.
    bye: u64,
    ending: Option<Ending>,
    pause_detector: PauseDetector,
    outputs: Deque<Output, 8>,
}

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Creates a client that starts connecting at `now`. The first output is [`Output::Resolve`]. `seed` randomizes the
    /// retry delays.
    pub fn new(now: Instant, options: NativeOptions, seed: u64) -> Self {
        let deadline = now + options.connect_timeout;
        let mut client = Self {
            options,
            limits: options.limits,
            seed,
            session: ClientSession::new(options.session),
            participant: Participant::new(),
            dialer: Dialer::new(now, deadline, options.rounds, options.dial, seed),
            identification: None,
            pending: Vec::new(),
            auth: None,
            opening: None,
            is_proof_due: false,
            heartbeat: None,
            leave_due: false,
            partial_bytes: 0,
            bye: 0,
            ending: None,
            pause_detector: PauseDetector::new(now, options.poller),
            outputs: Deque::new(),
        };
        client.follow_dialer(now);
        client
    }

    /// Returns whether the session is open and has a connection.
    pub fn is_live(&self) -> bool {
        self.ending.is_none() && self.session.state() == ClientState::Live
    }

    /// Returns the failure of the last connection attempt, while the client has no connection.
    pub fn failed_try(&self, now: Instant) -> Option<Failure> {
        self.dialer.failed_try(now)
    }

    /// Returns the reason for the client's end; `None` while it works.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Returns the identity of the session at the server.
    pub const fn identity(&self) -> &Identity {
        self.session.identity()
    }

    /// Returns the node's part in its run.
    pub const fn participant(&self) -> &Participant {
        &self.participant
    }

    /// Begins a call whose body has `body_bytes` bytes. The server may let it wait for `span`; 0 means that it does not
    /// wait.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin(
        &mut self,
        now: Instant,
        operation: Operation,
        (kind, body_bytes): (u16, usize),
        span: Duration,
    ) -> Result<u64, BeginError> {
        if let Some(ending) = self.ending {
            return Err(BeginError::Over(ending));
        }
        let bytes_max = ClientFrame::size_of(kind).unwrap_or(Size::Small).bytes_max(&self.limits);
        if body_bytes as u64 > bytes_max {
            return Err(BeginError::Limit(LimitError::Frame { bytes: body_bytes as u64, bytes_max }));
        }
        self.enter(now, operation, span, Awaited::Yes).ok_or(Self::FULL)
    }

    /// Cancels a call. Returns `None` if it has completed already.
    pub fn cancel(&mut self, now: Instant, id: u64) -> Option<Failed> {
        let is_it = |call: &Pending| call.call == id && call.awaited == Awaited::Yes;
        let index = self.pending.iter().position(is_it)?;
        Some(self.give_up(now, index, ErrorKind::Cancelled))
    }

    /// Ends a watch that the server has confirmed: the client notifies the server, now or as soon as it has a
    /// connection again. At most a quarter of the capacity serves this, so that it never keeps calls out.
    ///
    /// # Errors
    /// The client has no capacity for it at the moment; or the client has ended, and the watch with it.
    pub fn end_watch(&mut self, now: Instant, id: u64) -> Result<(), BeginError> {
        if let Some(ending) = self.ending {
            return Err(BeginError::Over(ending));
        }
        let cancels = self.pending.iter().filter(|call| matches!(call.awaited, Awaited::Cancels(_)));
        if cancels.count() >= (PENDING / 4).max(1) {
            return Err(Self::FULL);
        }
        let begun = self.enter(now, Operation::CancelWait, Duration::ZERO, Awaited::Cancels(id));
        begun.map(drop).ok_or(Self::FULL)
    }

    const FULL: BeginError = BeginError::Limit(LimitError::Operations { count: PENDING as u64 });

    /// Records that the caller continues after waiting for [`NativeClient::poll_timeout`] or for an event. To be called
    /// before the event is handled. If the call is much too late, the process was not running. All deadlines move by
    /// that time.
    pub fn wake(&mut self, now: Instant) {
        let mut detector = self.pause_detector;
        let span = detector.on_call(now, || self.poll_timeout());
        self.pause_detector = detector;
        if span.is_zero() {
            return;
        }
        self.session.paused(span);
        self.dialer.paused(span);
        self.identification.iter_mut().for_each(|pending_identification| {
            pending_identification.until = pending_identification.until + span
        });
        self.pending.iter_mut().for_each(|call| call.deadline = call.deadline + span);
    }

    /// Handles an event.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        if self.ending.is_some() || self.identification_takes(now, &input) {
            return;
        }
        let input = match input {
            Input::Resolved(addresses) => DialInput::Resolved(addresses),
            Input::Unresolved(kind, cause) => DialInput::Unresolved(kind, cause),
            Input::Connected => DialInput::Connected,
            Input::ConnectFailed(kind, cause) => DialInput::Failed(kind, cause),
            Input::Ended(cause) => return self.connection_ended(now, cause),
            Input::Tick => {
                if self.dialer.state() == DialState::Ready {
                    return self.tick(now);
                }
                DialInput::Tick
            }
        };
        self.dialer.handle(now, input);
        self.follow_dialer(now);
        self.end_unopened(now);
    }

    /// Returns the next action, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Input::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ending.is_some() {
            return None;
        }
        let awaited = self.pending.iter().filter(|call| call.awaited == Awaited::Yes);
        let deadline = awaited.map(|call| self.given_up_at(call)).min();
        let is_ready = self.dialer.state() == DialState::Ready;
        let session = if is_ready { [self.session.poll_timeout(), self.next_heartbeat()] } else { [None; 2] };
        // During an identification, the dialer's timer waits.
        let dialer = self.identification.map_or_else(
            || self.dialer.poll_timeout(),
            |pending_identification| Some(pending_identification.until),
        );
        [deadline, session[0], session[1], dialer].into_iter().flatten().min()
    }

    /// Returns when a call times out.
    fn given_up_at(&self, call: &Pending) -> Instant {
        let is_ready = self.dialer.state() == DialState::Ready;
        call.given_up_at(
            self.session.last_received_at(),
            if is_ready { self.options.answer_slack } else { Duration::ZERO },
        )
    }

    /// Returns when to ask the server for a heartbeat because the deadline of a call is near.
    fn next_heartbeat(&self) -> Option<Instant> {
        let activity_at = self.session.last_received_at().max(self.session.heartbeat_at());
        let waiting = |call: &&Pending| call.awaited == Awaited::Yes && call.stage == Stage::Sent;
        let due =
            self.pending.iter().filter(waiting).map(Pending::heartbeat_at).filter(|&at| at > activity_at);
        due.min().filter(|_| self.session.state() == ClientState::Live)
    }

    /// Returns the next call that failed without an answer: it timed out, or the client has ended. To be called until
    /// it returns `None`.
    pub fn next_failed(&mut self, now: Instant) -> Option<Failed> {
        if let Some(ending) = self.ending {
            self.pending.retain(|call| call.awaited == Awaited::Yes);
            let call = self.pending.pop()?;
            let failure = Failure { elapsed: now.since(call.began), ..ending.failure() };
            let may_be_applied = matches!(call.stage, Stage::Sent | Stage::Lost(_));
            let effect = if may_be_applied { effect_of(call.operation) } else { failure.effect };
            return Some(Failed {
                id: call.call,
                operation: call.operation,
                failure: Failure { effect, ..failure },
            });
        }
        if let Some(index) = self.held().filter(|_| self.submit_when() == SubmitWhen::Never) {
            let is_replaced = self.participant.part() == Part::Replaced;
            // Otherwise a later request to leave has cancelled it.
            let kind = if is_replaced { ErrorKind::Replaced } else { ErrorKind::Cancelled };
            return Some(self.give_up(now, index, kind));
        }
        if let Some(failed) = self.next_lost(now) {
            return Some(failed);
        }
        let is_due = |call: &Pending| call.awaited == Awaited::Yes && self.given_up_at(call) <= now;
        let index = self.pending.iter().position(is_due)?;
        Some(self.give_up(now, index, ErrorKind::TimedOut))
    }

    /// Returns the next call that was lost with a connection that ended before WELCOME.
    fn next_lost(&mut self, now: Instant) -> Option<Failed> {
        let index = self.pending.iter().position(|call| matches!(call.stage, Stage::Lost(_)))?;
        let Pending { call, operation, began, stage, .. } = self.pending.remove(index);
        let cause = if let Stage::Lost(cause) = stage { cause } else { Cause::Unknown };
        let (kind, phase, effect) = (ErrorKind::ServerGone, Phase::Greeting, effect_of(operation));
        let failure = Failure { kind, phase, elapsed: now.since(began), cause, effect };
        Some(Failed { id: call, operation, failure })
    }

    /// Returns what the caller writes next. It counts as written.
    pub fn poll_write(&mut self, now: Instant) -> Option<ToWrite> {
        if self.ending.is_some() {
            return None;
        }
        if let Some(pending_identification) = &mut self.identification {
            return core::mem::take(&mut pending_identification.is_due).then_some(ToWrite::Identify);
        }
        if let Some((identity, label)) = self.opening.take() {
            let is_proof = core::mem::take(&mut self.is_proof_due);
            return Some(if is_proof { ToWrite::Proof } else { ToWrite::Opening }(label, identity));
        }
        if self.session.owes_acknowledge() {
            return Some(ToWrite::Frame(self.session.label(now, 0), ClientFrame::Acknowledge {}));
        }
        if let Some(nonce) = self.heartbeat.take() {
            return Some(ToWrite::Frame(self.session.label(now, 0), ClientFrame::Heartbeat { nonce }));
        }
        self.release();
        let next = self.session.next_to_send().or_else(|| self.cancellation(now));
        let id = next.or_else(|| self.leave_of_unwanted_round(now))?;
        let index = self.index(id)?;
        let call = &mut self.pending[index];
        call.stage = Stage::Sent;
        let (label, call) = (self.session.label(now, id), *call);
        Some(match call.awaited {
            Awaited::Cancels(request) => ToWrite::Frame(label, ClientFrame::Cancel { request }),
            Awaited::Leaves => ToWrite::Leave(label),
            Awaited::Yes | Awaited::CancelDue | Awaited::No => ToWrite::Request(call.call, label),
        })
    }

    /// Returns the limits of a server's frames. A value, a list, and all keys together may be as long as a frame there,
    /// unlike in a request.
    pub const fn answer_limits(limits: &FrameLimits) -> FrameLimits {
        let bytes_max = NATIVE_ANSWER_BYTES_MAX as u64;
        FrameLimits {
            value_bytes_max: bytes_max,
            keys_max: bytes_max,
            all_key_bytes_max: bytes_max,
            frame_bytes_max: NATIVE_ANSWER_BYTES_MAX,
            ..*limits
        }
    }

    /// Parses the frame at the start of `bytes`. `limits` are those of [`NativeClient::answer_limits`].
    pub fn receive<'b>(&mut self, now: Instant, limits: &'b FrameLimits, bytes: &'b [u8]) -> Taken<'b> {
        let has_connection =
            matches!(self.session.state(), ClientState::Greeting | ClientState::Resuming | ClientState::Live);
        if self.ending.is_some() || !has_connection {
            return Taken::Over;
        }
        if self.identification.is_some() {
            return self.peer_identified(now, bytes);
        }
        let (header, length) = match scan(bytes, From::Server, limits) {
            Ok(Scan::Partial { bytes } | Scan::Whole { bytes, .. }) if self.exceeds_greeting(bytes) => {
                return self.violation(now);
            }
            Ok(Scan::Partial { bytes: whole }) => {
                if bytes.len() > self.partial_bytes {
                    self.session.note_received(now);
                }
                self.partial_bytes = bytes.len();
                return Taken::Partial(whole);
            }
            Ok(Scan::Whole { header, bytes }) => (header, bytes),
            Err(_) => return self.violation(now),
        };
        self.partial_bytes = 0;
        let frame = match ServerFrame::parse(header.kind, &bytes[HEADER_BYTES..length], limits) {
            Ok(frame) => frame,
            Err(_) => return self.violation(now),
        };
        match self.authenticate(now, &header, frame.as_ref()) {
            Authenticated::Refused => return self.session_over(End::Unproven),
            Authenticated::Disconnect => return self.distrust(now),
            Authenticated::Handled => return Taken::Frame(length, Event::Nothing),
            Authenticated::NotConcerned => {}
        }
        let event = match frame {
            None if !ServerFrame::is_numbered(header.kind) => Event::Nothing,
            // The frame is from a later version. It is counted. If it answers a call, the call has failed.
            None => match self.session.receive(now, &header, &ServerFrame::Done { revision: 0 }) {
                Received::Answer(id) => self.unreadable(now, id),
                Received::Over(end) => return self.session_over(end),
                _ => Event::Nothing,
            },
            Some(frame) => match self.frame(now, &header, frame) {
                Some(event) => event,
                None => return Taken::Over,
            },
        };
        if self.ending.is_some() { Taken::Over } else { Taken::Frame(length, event) }
    }

    fn frame<'b>(&mut self, now: Instant, header: &Header, frame: ServerFrame<'b>) -> Option<Event<'b>> {
        Some(match self.session.receive(now, header, &frame) {
            Received::Nothing => Event::Nothing,
            Received::Welcome => {
                self.welcome(now, &frame);
                Event::Open
            }
            Received::Over(end) => {
                self.session_over(end);
                return None;
            }
            Received::Lost => {
                self.emit(Output::Disconnect);
                self.connection_ended(now, Cause::Closed);
                return None;
            }
            Received::Push(id) if self.participant.is_local(id) => match self.participant.push(id, &frame) {
                Some(event) if self.pace(now, id, &event) => Event::Node(None, event),
                _ => Event::Nothing,
            },
            Received::Push(id) => Event::Pushed(id, frame),
            Received::Answer(id) => self.answer(now, id, frame),
        })
    }

    /// Suspends the deadline while the node is a spare and restarts it when the node gets a slot. Returns whether the
    /// caller sees the event: it does not see the position of a join that it gave up.
    fn pace(&mut self, now: Instant, id: u64, event: &participant::Event<'_>) -> bool {
        let Some(index) = self.index(id) else { return true };
        let call = &mut self.pending[index];
        if call.awaited != Awaited::Yes {
            return !matches!(event, participant::Event::Standby { .. } | participant::Event::Seated);
        }
        match event {
            participant::Event::Standby { .. } => call.deadline = Instant::MAX,
            participant::Event::Seated if call.deadline == Instant::MAX => {
                call.deadline = now + call.span;
            }
            _ => {}
        }
        true
    }

    fn answer<'b>(&mut self, now: Instant, id: u64, frame: ServerFrame<'b>) -> Event<'b> {
        let Some(call) = self.settle(id) else { return Event::Nothing };
        let is_awaited = call.awaited == Awaited::Yes;
        if id == self.bye {
            self.over(Ending::Left);
            return Event::Nothing;
        }
        if self.participant.is_local(id) {
            return match self.participant.answer(id, &frame) {
                Ok(Some(event)) => {
                    if matches!(event, participant::Event::Formed(_)) {
                        self.leave_due = !is_awaited;
                    }
                    Event::Node(is_awaited.then_some(call.call), event)
                }
                Ok(None) if is_awaited => Self::failed(now, &call, frame),
                Ok(None) => Event::Nothing,
                Err(_) => self.unanswered(now, &call),
            };
        }
        match frame {
            _ if !is_awaited => Event::Nothing,
            ServerFrame::Error { .. } => Self::failed(now, &call, frame),
            _ => Event::Completed(id, frame),
        }
    }

    fn failed<'b>(now: Instant, call: &Pending, frame: ServerFrame<'b>) -> Event<'b> {
        let Pending { call: id, operation, began, .. } = *call;
        let (failure, fault) = match frame {
            ServerFrame::Error { fault } => (failure_of(&fault), Some(fault)),
            // The server answered the node's request after it had become void.
            _ => {
                let failure = Ending::Left.failure();
                (Failure { kind: ErrorKind::Cancelled, phase: Phase::Waiting, ..failure }, None)
            }
        };
        let failure = Failure { elapsed: now.since(began), ..failure };
        Event::Failed(Failed { id, operation, failure }, fault)
    }

    fn unreadable(&mut self, now: Instant, id: u64) -> Event<'static> {
        match self.settle(id) {
            Some(call) => self.unanswered(now, &call),
            None => Event::Nothing,
        }
    }

    /// Returns the failure of a call to which the server sent a frame that does not answer it.
    fn unanswered(&self, now: Instant, call: &Pending) -> Event<'static> {
        if call.awaited != Awaited::Yes {
            return Event::Nothing;
        }
        let failure = failure_of_end(End::Protocol, Cause::Unknown);
        let effect = effect_of(call.operation);
        let failure = Failure { elapsed: now.since(call.began), effect, ..failure };
        Event::Failed(Failed { id: call.call, operation: call.operation, failure }, None)
    }

    fn welcome(&mut self, now: Instant, frame: &ServerFrame<'_>) {
        self.dialer.handle(now, DialInput::Greeted);
        self.follow_dialer(now);
        if let ServerFrame::Welcome {
            key_bytes_max,
            value_bytes_max,
            list_max,
            frame_bytes_max,
            request_last,
            ..
        } = *frame
        {
            let frame_bytes_max = usize::try_from(frame_bytes_max).unwrap_or(usize::MAX);
            let all_key_bytes_max = self.limits.all_key_bytes_max;
            self.limits = FrameLimits {
                key_bytes_max,
                value_bytes_max,
                keys_max: list_max,
                all_key_bytes_max,
                frame_bytes_max,
            };
            self.withdraw_unwanted(request_last);
        }
    }

    /// Drops requests that the caller gave up and that the server did not receive, but keeps a cancellation of a
    /// request that it did receive. The participant has to know before the next frame is parsed: a join of which the
    /// server knows nothing leaves the node's part as it was.
    fn withdraw_unwanted(&mut self, request_last: u64) {
        let Self { pending, session, participant, .. } = self;
        pending.retain(|call| {
            let is_unwanted = match call.awaited {
                Awaited::Yes | Awaited::Leaves => false,
                Awaited::CancelDue | Awaited::No => true,
                Awaited::Cancels(request) => request > request_last,
            };
            let is_withdrawn = is_unwanted && session.withdraw(call.id);
            if is_withdrawn {
                participant.withdraw(call.id);
            }
            !is_withdrawn
        });
    }

    /// Begins to cancel a request that the caller gave up, once the session has capacity. Returns the id of the new
    /// request.
    fn cancellation(&mut self, now: Instant) -> Option<u64> {
        if self.session.state() != ClientState::Live {
            return None;
        }
        let index = self.pending.iter().position(|call| call.awaited == Awaited::CancelDue)?;
        let cancels = Awaited::Cancels(self.pending[index].id);
        let id = self.enter(now, Operation::CancelWait, Duration::ZERO, cancels)?;
        self.pending[index].awaited = Awaited::No;
        Some(id)
    }

    /// Begins to leave a round whose join had been given up, once the session has capacity, unless the round and its
    /// slot have ended by then. Returns the id of the new request.
    fn leave_of_unwanted_round(&mut self, now: Instant) -> Option<u64> {
        if !self.owes_leave() || self.session.state() != ClientState::Live {
            return None;
        }
        let id = self.enter(now, Operation::Leave, Duration::ZERO, Awaited::Leaves)?;
        self.leave_due = false;
        // `owes_leave` has just checked that the node may leave.
        let _ = self.participant.leave(id);
        Some(id)
    }

    fn enter(&mut self, now: Instant, operation: Operation, span: Duration, awaited: Awaited) -> Option<u64> {
        if self.pending.is_full() {
            return None;
        }
        let id = self.session.begin().ok()?;
        let deadline = now + span;
        // Capacity was checked above.
        let (call, began, stage) = (id, now, Stage::Due);
        let _ = self.pending.push(Pending { id, call, operation, began, deadline, span, awaited, stage });
        Some(id)
    }

    fn index(&self, id: u64) -> Option<usize> {
        self.pending.binary_search_by_key(&id, |call| call.id).ok()
    }

    fn settle(&mut self, id: u64) -> Option<Pending> {
        self.index(id).map(|index| self.pending.remove(index))
    }

    /// Ends a call before its answer. If the server may have received it, its entry stays until the server answers.
    fn give_up(&mut self, now: Instant, index: usize, kind: ErrorKind) -> Failed {
        let Pending { id, call, operation, began, stage, .. } = self.pending[index];
        let withdrawn = stage == Stage::Held || self.session.withdraw(id);
        if withdrawn {
            self.pending.remove(index);
            self.participant.withdraw(id);
        } else {
            self.pending[index].awaited = Awaited::CancelDue;
        }
        let (phase, cause) = match self.dialer.state() {
            DialState::Ready if stage == Stage::Sent => (Phase::Waiting, Cause::NoAnswer),
            DialState::Ready => (Phase::Sending, Cause::Unknown),
            _ => {
                let failure = self.dialer.failure(now);
                (failure.phase, failure.cause)
            }
        };
        let cause = if kind == ErrorKind::TimedOut { cause } else { Cause::Unknown };
        let effect = if withdrawn { Effect::None } else { effect_of(operation) };
        let failure = Failure { kind, phase, elapsed: now.since(began), cause, effect };
        Failed { id: call, operation, failure }
    }

    fn tick(&mut self, now: Instant) {
        if self.next_heartbeat().is_some_and(|due| due <= now) {
            self.heartbeat = self.session.begin_heartbeat(now);
        }
        match self.session.tick(now) {
            Some(Due::Heartbeat(nonce)) => self.heartbeat = Some(nonce),
            Some(Due::ServerSilent) => {
                self.emit(Output::Disconnect);
                self.connection_ended(now, Cause::Silent);
            }
            None => {}
        }
    }

    fn connection_ended(&mut self, now: Instant, cause: Cause) {
        if !self.begin_identification(now, cause) {
            self.connection_lost(now, cause);
        }
    }

    fn connection_lost(&mut self, now: Instant, cause: Cause) {
        match self.dialer.state() {
            DialState::Greeting => {
                self.greeting_lost(cause);
                if self.ending.is_none() {
                    self.dialer.handle(now, DialInput::Failed(ErrorKind::ServerGone, cause));
                    self.follow_dialer(now);
                }
            }
            DialState::Ready => {
                (self.opening, self.heartbeat) = (None, None);
                if self.bye != 0
                    && self.index(self.bye).is_some_and(|index| self.pending[index].stage == Stage::Sent)
                {
                    return self.over(Ending::Left);
                }
                if let Some(end) = self.session.connection_ended() {
                    return self.over(Ending::Session(end, cause));
                }
                let grace = Duration::from_millis(u64::from(self.session.options().grace_ms));
                self.seed = self.seed.wrapping_add(1);
                let (deadline, rounds) = (now + grace, Rounds::UntilDeadline);
                self.dialer = Dialer::new(now, deadline, rounds, self.options.dial, self.seed);
                self.follow_dialer(now);
            }
            _ => {}
        }
    }

    /// Handles the end of a connection before WELCOME. A request that was sent with HELLO and only reads is sent again
    /// on the next connection. If BYE was sent with HELLO, the client has ended.
    fn greeting_lost(&mut self, cause: Cause) {
        self.opening = None;
        // A session that was never opened cannot be lost, and one that was open is resumed.
        let _ = self.session.connection_ended();
        if self.session.state() != ClientState::New {
            return;
        }
        let Self { pending, session, participant, bye, .. } = self;
        let is_bye_sent = pending.iter().any(|call| call.id == *bye && call.stage == Stage::Sent);
        pending.retain_mut(|call| {
            let is_sent = call.stage == Stage::Sent;
            if is_sent && call.awaited == Awaited::Yes && call.operation.reads_only() {
                call.stage = Stage::Due;
            } else if is_sent {
                session.withdraw(call.id);
                participant.withdraw(call.id);
                call.stage = Stage::Lost(cause);
            }
            !is_sent || call.awaited == Awaited::Yes
        });
        if is_bye_sent {
            self.over(Ending::Left);
        }
    }

    fn follow_dialer(&mut self, now: Instant) {
        while let Some(output) = self.dialer.poll_output() {
            match output {
                DialOutput::Resolve => self.emit(Output::Resolve),
                DialOutput::Connect(address) => self.emit(Output::Connect(address)),
                DialOutput::Greet => {
                    self.partial_bytes = 0;
                    self.is_proof_due = false;
                    self.auth.iter_mut().for_each(ClientAuth::restart);
                    self.opening = self.session.hello(now).ok();
                }
                DialOutput::Disconnect => {
                    self.emit(Output::Disconnect);
                    if matches!(self.session.state(), ClientState::Greeting | ClientState::Resuming) {
                        self.greeting_lost(Cause::Silent);
                        if self.ending.is_some() {
                            return;
                        }
                    }
                }
                DialOutput::Ready => {}
                DialOutput::Failed(failure) => {
                    let was_open = self.session.identity().session != 0;
                    let ending = if was_open {
                        Ending::Session(End::GracePassed, failure.cause)
                    } else {
                        Ending::Dialling(failure)
                    };
                    return self.over(ending);
                }
            }
        }
    }

    fn session_over(&mut self, end: End) -> Taken<'static> {
        self.emit(Output::Disconnect);
        self.over(Ending::Session(end, Cause::Unknown));
        Taken::Over
    }

    fn over(&mut self, ending: Ending) {
        if self.ending.is_none() {
            self.ending = Some(ending);
            self.participant.session_ended();
            if ending == Ending::Left {
                self.emit(Output::Disconnect);
            }
            self.emit(Output::Over(ending));
        }
    }

    fn emit(&mut self, output: Output) {
        // An input causes few outputs, and the caller drains them after each one.
        let _ = self.outputs.push_back(output);
    }
}

/// Returns the effect of a request that the server may have received.
const fn effect_of(operation: Operation) -> Effect {
    if operation.reads_only() { Effect::None } else { Effect::Possible }
}

#[cfg(test)]
mod tests;
