//! Driver of a session: its socket, its buffers and its state machine. The owner drives it, be that a thread of the
//! session or the program's event loop, and takes the results from [`SessionDriver::next_output`].

use super::calls::frame_of;
use super::node::NodeEvent;
use super::{Loss, Machine, NativeClientOptions, OwnedFrame, ServerFault, body_of};
use crate::driver::ack_watch::AckWatch;
use crate::driver::connection::Connection;
use crate::driver::event_loop::{EventLoop, Ready, Token};
use crate::driver::last_try::FailedTry;
use crate::driver::prelude::*;
use crate::driver::random::random;
use crate::driver::resolve::{Found, HostLookup};
use crate::driver::socket::{KeepAlive, classify, endpoint_text};
use crate::driver::tls::TlsConnector;
use crate::driver::token_file::ClientToken;
use crate::error::{Cause, ErrorKind, Failure, Operation, Phase};
use crate::limits::FrameLimits;
use crate::node::multi_client::OwnedCall;
use crate::node::native_client::{
    BeginError, Ending, Event, Failed, IDENTIFY_NONCE, Input, Output, Taken, ToWrite,
};
use crate::ordered::Map;
use crate::rendezvous::participant::{self, Entry, InvalidState, Part, Role};
use crate::store::call::Call;
use crate::store::op::Key;
use crate::time::Poller;
use crate::wire::c10d;
use crate::wire::native::{ClientFrame, Fault, HEADER_BYTES, MAGIC, Message, ServerFrame, encode_frame};
use crate::wire::sink::{Length, Sink};
use alloc::collections::VecDeque;

/// Size in bytes of the read buffer that an owner passes.
pub(in crate::driver) const READ_BYTES: usize = 64 * 1024;
/// Maximum number of bytes read in one iteration, so that writes and callers are served, too.
const READ_BYTES_PER_STEP: usize = 16 * READ_BYTES;
/// Size in bytes of the last read from a connection that has ended.
const LAST_READ_BYTES: usize = 4096;
/// Number of unsent bytes from which on further requests are held back.
const UNSENT_BYTES_HIGH: usize = 1 << 20;
/// Reason why a host cannot be reached with TLS.
const NO_NAME: &str =
    "no certificate can contain the host's name: give the server's name with --tls-server-name";
/// Maximum capacity in bytes that an empty buffer keeps.
const BYTES_KEPT_MAX: usize = 256 * 1024;

/// Request that owns its bytes.
#[derive(Debug)]
pub(in crate::driver) struct EncodedRequest {
    pub(in crate::driver) operation: Operation,
    content: Content,
    /// Timeout. While a node that joins is a spare, it does not run.
    pub(in crate::driver) span: Duration,
    began: Instant,
    /// Run that it joins.
    run_id: Option<Box<[u8]>>,
}

#[derive(Debug)]
enum Content {
    /// A frame of this kind with this body.
    Frame(u16, Vec<u8>),
    /// A call on the session's store.
    Call(OwnedCall),
}

impl EncodedRequest {
    pub(in crate::driver) fn new(operation: Operation, frame: &ClientFrame<'_>, span: Duration) -> Self {
        let content = Content::Frame(frame.kind(), body_of(frame));
        Self { operation, content, span, began: Instant::ORIGIN, run_id: None }
    }

    /// Makes the request of a node to join a run. The entry contains the timeout.
    pub(super) fn of_join(operation: Operation, entry: &Entry<'_>, role: Role) -> Self {
        let span = Duration::from_millis(entry.join_timeout_ms);
        Self { run_id: Some(entry.run_id.into()), ..Self::new(operation, &entry.frame(role), span) }
    }

    /// Returns `None` for a call that is not one request.
    pub(in crate::driver) fn of_call(call: &Call<'_>, span: Duration) -> Option<Self> {
        frame_of(call, span)?;
        let content = Content::Call(OwnedCall::new(call, Vec::new()));
        Some(Self { operation: call.operation(), content, span, began: Instant::ORIGIN, run_id: None })
    }

    /// Returns the call on the session's store, if it is one.
    pub(in crate::driver) fn call(&self) -> Option<Call<'_>> {
        match &self.content {
            Content::Frame(..) => None,
            Content::Call(owned) => Some(owned.call()),
        }
    }

    /// Returns the time since the request was begun.
    pub(in crate::driver) fn since_begun(&self, now: Instant) -> Duration {
        now.since(self.began)
    }

    /// Returns when the request began.
    pub(in crate::driver) const fn began(&self) -> Instant {
        self.began
    }

    /// Returns whether it joins a run.
    pub(in crate::driver) const fn is_join(&self) -> bool {
        self.run_id.is_some()
    }
}

fn sent_frame(call: &OwnedCall, span: Duration) -> ClientFrame<'_> {
    frame_of(&call.call(), span).expect("EncodedRequest::of_call refuses a call without a request")
}

impl Message for &EncodedRequest {
    fn kind(&self) -> u16 {
        match &self.content {
            Content::Frame(kind, _) => *kind,
            Content::Call(owned) => sent_frame(owned, self.span).kind(),
        }
    }

    fn write_body(&self, out: &mut dyn Sink) {
        match &self.content {
            Content::Frame(_, body) => out.put(body),
            Content::Call(owned) => sent_frame(owned, self.span).write_body(out),
        }
    }
}

/// Output of a session, in the order of the events.
#[derive(Debug)]
pub(in crate::driver) enum SessionOutput {
    /// The session is open.
    Open,
    /// The request with this id was answered, or failed.
    Ended(u64, EncodedRequest, Result<OwnedFrame, Loss>),
    /// A push of a watch or a lease.
    Pushed(OwnedFrame),
    /// The node has an event.
    Node(NodeEvent),
    /// The session is over; nothing follows.
    Over(Ending),
}

/// One session and its connection.
pub(in crate::driver) struct SessionDriver {
    clock: Clock,
    machine: Box<Machine>,
    limits: FrameLimits,
    host: Box<str>,
    port: u16,
    node: Box<str>,
    keep_alive: Option<KeepAlive>,
    tls: Option<TlsConnector>,
    auth_token: Option<ClientToken>,
    token: Token,
    /// Requests that await a response, or that may have to be sent again.
    requests: Map<u64, EncodedRequest>,
    /// Abandoned watches that the server must be asked to end, once there is space for the request.
    unread: VecDeque<u64>,
    /// Run of the Join request that was sent last.
    run_id: Box<[u8]>,
    lookup: HostLookup,
    connection: Option<Connection>,
    ack_watch: AckWatch,
    received: Vec<u8>,
    unsent: Vec<u8>,
    sent: usize,
    output: VecDeque<SessionOutput>,
}

impl fmt::Debug for SessionDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionDriver({}:{})", self.host, self.port)
    }
}

impl SessionDriver {
    /// Makes a driver; the first [`SessionDriver::execute`] starts to connect. The socket is watched under `token`.
    pub(in crate::driver) fn new(
        (host, port): (&str, u16),
        options: &NativeClientOptions,
        (clock, seed): (Clock, u64),
        (token, poller): (Token, Poller),
    ) -> Self {
        Self {
            clock,
            machine: Box::new(Machine::new(clock.now(), options.machine(poller), seed)),
            limits: Machine::answer_limits(&options.limits),
            host: host.into(),
            port,
            node: options.node.as_str().into(),
            keep_alive: options.keep_alive,
            tls: options.tls.clone(),
            auth_token: options.auth_token.clone(),
            token,
            requests: Map::new(),
            unread: VecDeque::new(),
            run_id: Box::default(),
            lookup: HostLookup::new(host, port),
            connection: None,
            ack_watch: AckWatch::default(),
            received: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            output: VecDeque::new(),
        }
    }

    pub(in crate::driver) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the limits on responses.
    pub(in crate::driver) const fn limits(&self) -> &FrameLimits {
        &self.limits
    }

    /// Returns the last failed attempt to connect, if there was one and there is no connection.
    pub(in crate::driver) fn failed_try(&self) -> Option<FailedTry> {
        let failure = self.machine.failed_try(self.clock.now())?;
        Some(FailedTry::new(&endpoint_text(&self.host, self.port), failure))
    }

    /// Returns the reason why the session is over.
    pub(in crate::driver) fn ending(&self) -> Option<Ending> {
        self.machine.ending()
    }

    /// Returns the number of requests in progress.
    pub(in crate::driver) fn pending(&self) -> usize {
        self.requests.len()
    }

    /// Returns the time by which [`SessionDriver::step`] must be called.
    pub(in crate::driver) fn poll_timeout(&self) -> Option<Instant> {
        let due = self.machine.poll_timeout().filter(|&due| due < Instant::MAX);
        [due, self.ack_watch.poll_timeout()].into_iter().flatten().min()
    }

    /// Returns the number of the session, 0 before the server has greeted it.
    pub(in crate::driver) fn session(&self) -> u64 {
        self.machine.identity().session
    }

    /// Returns the incarnation of the server that greeted the session, 0 before.
    pub(in crate::driver) fn incarnation(&self) -> u64 {
        self.machine.identity().incarnation
    }

    /// Returns the next output.
    pub(in crate::driver) fn next_output(&mut self) -> Option<SessionOutput> {
        self.output.pop_front()
    }

    /// Begins a request; [`SessionDriver::execute`] sends it.
    pub(in crate::driver) fn begin(&mut self, encoded: EncodedRequest) -> Result<u64, Loss> {
        let (now, operation, span) = (self.clock.now(), encoded.operation, encoded.span);
        let mut length = Length::default();
        (&encoded).write_body(&mut length);
        let frame = ((&encoded).kind(), length.0);
        let begun = match operation {
            _ if encoded.is_join() => self.machine.begin_join(now, operation, frame, span),
            Operation::Leave => self.machine.begin_leave(now, frame, span),
            Operation::Bye => self.machine.begin_bye(now, span),
            _ => self.machine.begin(now, operation, frame, span),
        };
        match begun {
            Ok(id) => {
                self.requests.insert(id, EncodedRequest { began: now, ..encoded });
                Ok(id)
            }
            Err(BeginError::Limit(limit)) => Err(Loss::of(Failure::limit(Phase::Sending, limit))),
            Err(BeginError::InvalidState(InvalidState(Part::Replaced))) => {
                Err(Loss::of_fault(&Fault::REPLACED))
            }
            Err(BeginError::InvalidState(state)) => {
                let cause = Cause::State(state.reason());
                Err(Loss::of(Failure::new(ErrorKind::InvalidArgument, Phase::Sending, cause)))
            }
            Err(BeginError::Over(ending)) => Err(Loss::of_ending(ending)),
        }
    }

    /// Ends an abandoned watch; [`SessionDriver::execute`] sends the request for it.
    pub(in crate::driver) fn forget(&mut self, request: u64) {
        self.unread.push_back(request);
        self.end_watches();
    }

    fn end_watches(&mut self) {
        let now = self.clock.now();
        while let Some(&request) = self.unread.front() {
            if let Err(BeginError::Limit(_)) = self.machine.end_watch(now, request) {
                return;
            }
            self.unread.pop_front();
        }
    }

    /// Cancels a request.
    pub(in crate::driver) fn cancel(&mut self, id: u64) {
        if let Some(failed) = self.machine.cancel(self.clock.now(), id) {
            self.failed(failed, None);
        }
    }

    /// Returns whether [`SessionDriver::step`] has something to do at `now`.
    pub(in crate::driver) fn is_due(&self, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|due| due <= now) || self.lookup.has_ended()
    }

    /// Notes that the owner has woken up. Must be called before it passes on events.
    pub(in crate::driver) fn wake(&mut self) {
        self.machine.wake(self.clock.now());
    }

    /// Advances the time to `now` and handles a finished look-up. All bytes that had arrived by then must have been
    /// read: a process that was stopped for a while must read the messages of that time before it concludes that
    /// there were none.
    pub(in crate::driver) fn step(&mut self, now: Instant) {
        if let Some(found) = self.lookup.take() {
            self.resolved(&found);
        }
        self.watch_acks(now);
        if self.machine.poll_timeout().is_some_and(|due| due <= now) {
            self.machine.handle(now, Input::Tick);
        }
    }

    /// Looks, if that is due, whether the server's host still acknowledges what is sent.
    fn watch_acks(&mut self, now: Instant) {
        if !self.ack_watch.take_due(now) {
            return;
        }
        match self.connection.as_ref().map(Connection::has_in_flight) {
            Some(Ok(true)) => self.ack_watch.sent(now),
            Some(Err(cause)) => self.lose(cause),
            Some(Ok(false)) | None => {}
        }
    }

    /// Handles the readiness of the socket.
    pub(in crate::driver) fn ready(&mut self, ready: Ready, buffer: &mut [u8]) {
        match &mut self.connection {
            // [`SessionDriver::execute`] handles writability.
            Some(connection) if connection.is_connected() && ready.readable => self.read(buffer),
            Some(connection) if !connection.is_connected() => match connection.finish() {
                Ok(()) => self.machine.handle(self.clock.now(), Input::Connected),
                Err(error) => self.connect_failed(&error),
            },
            _ => {}
        }
    }

    /// Executes the outputs of the machine until there are no more.
    pub(in crate::driver) fn execute(&mut self, events: &EventLoop) {
        loop {
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Resolve => {
                        if let Some(found) = self.lookup.begin(events.waker()) {
                            self.resolved(&found);
                        }
                    }
                    Output::Connect(address) => {
                        self.disconnect();
                        if let Some(auth_token) = &mut self.auth_token {
                            self.machine.set_credentials(auth_token.current().clone());
                        }
                        match Connection::start(address, self.keep_alive.as_ref(), events, self.token) {
                            Ok(connection) => self.started(connection),
                            Err(error) => self.connect_failed(&error),
                        }
                    }
                    Output::Disconnect => self.disconnect(),
                    Output::Over(ending) => self.over(ending),
                }
            }
            self.fail_all();
            self.end_watches();
            self.write();
            if !self.flush() {
                break;
            }
        }
        if let Some(connection) = &mut self.connection {
            connection.update_interest(self.sent < self.unsent.len());
        }
    }

    fn started(&mut self, mut connection: Connection) {
        if let Some(connector) = &self.tls {
            match connector.start(&self.host) {
                Ok(stage) => connection.secure(stage),
                Err(_) => {
                    let (kind, cause) = (ErrorKind::InvalidArgument, Cause::State(NO_NAME));
                    return self.machine.handle(self.clock.now(), Input::ConnectFailed(kind, cause));
                }
            }
        }
        self.connection = Some(connection);
    }

    /// Closes the connection without a goodbye, as when a process dies.
    pub(in crate::driver) fn hang_up(&mut self) {
        self.connection = None;
    }

    /// Drops a connection that cannot be used any more.
    pub(in crate::driver) fn lose(&mut self, cause: Cause) {
        self.disconnect();
        self.machine.handle(self.clock.now(), Input::Ended(cause));
    }

    /// Ends the session and fails all its requests.
    fn over(&mut self, ending: Ending) {
        self.disconnect();
        self.fail_all();
        // The goodbye that ended the session has no response of its own.
        while let Some((id, _)) = self.requests.first() {
            self.report(id, Err(Loss::of_ending(ending)));
        }
        self.output.push_back(SessionOutput::Over(ending));
    }

    fn fail_all(&mut self) {
        let now = self.clock.now();
        while let Some(failed) = self.machine.next_failed(now) {
            self.failed(failed, self.machine.ending());
        }
    }

    fn failed(&mut self, failed: Failed, ending: Option<Ending>) {
        // A cancelled request may have to be skipped by its number. Its bytes are not needed any more.
        let (failure, ending) = (failed.failure, ending.map(Box::new));
        self.report(failed.id, Err(Loss { failure, fault: None, ending }));
    }

    fn report(&mut self, id: u64, mut answer: Result<OwnedFrame, Loss>) {
        let Some(encoded) = self.requests.remove(id) else { return };
        if let Err(loss) = &mut answer {
            loss.failure.elapsed = encoded.since_begun(self.clock.now());
        }
        self.output.push_back(SessionOutput::Ended(id, encoded, answer));
    }

    fn resolved(&mut self, found: &Found) {
        let classified = found.as_deref().map_err(|error| error.classify());
        let input = classified.map_or_else(|(kind, cause)| Input::Unresolved(kind, cause), Input::Resolved);
        self.machine.handle(self.clock.now(), input);
    }

    fn connect_failed(&mut self, error: &io::Error) {
        self.disconnect();
        let (kind, cause) = classify(error);
        self.machine.handle(self.clock.now(), Input::ConnectFailed(kind, cause));
    }

    fn disconnect(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            connection.end();
        }
        self.received.clear();
        self.unsent.clear();
        self.sent = 0;
    }

    fn read(&mut self, buffer: &mut [u8]) {
        let mut budget = READ_BYTES_PER_STEP;
        while budget > 0 {
            let Some(connection) = &mut self.connection else { return };
            match connection.read(buffer, &mut self.received) {
                Ok(0) => return,
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    self.take();
                    // Bytes that arrive meanwhile are read in the next iteration.
                    if count < buffer.len() {
                        return;
                    }
                }
                Err(cause) => return self.lose(cause),
            }
        }
    }

    /// Delivers the whole frames among the received bytes.
    fn take(&mut self) {
        let received = core::mem::take(&mut self.received);
        let (mut at, limits) = (0, self.limits);
        loop {
            let now = self.clock.now();
            match self.machine.receive(now, &limits, &received[at..]) {
                Taken::Partial(_) => break,
                Taken::Over => return,
                Taken::Frame(bytes, event) => {
                    let frame = &received[at..at + bytes];
                    at += bytes;
                    self.deliver(event, frame);
                }
            }
        }
        self.received = received;
        self.received.drain(..at);
        if self.received.is_empty() {
            self.received.shrink_to(BYTES_KEPT_MAX);
        }
    }

    fn deliver(&mut self, event: Event<'_>, frame: &[u8]) {
        let owned = |id| OwnedFrame {
            id,
            kind: u16::from_le_bytes([frame[4], frame[5]]),
            body: frame[HEADER_BYTES..].to_vec(),
        };
        match event {
            Event::Nothing => {}
            Event::Open => self.output.push_back(SessionOutput::Open),
            Event::Completed(id, _) => self.report(id, Ok(owned(id))),
            Event::Failed(failed, fault) => {
                let fault = fault.as_ref().map(|fault| Box::new(ServerFault::of(fault)));
                self.report(failed.id, Err(Loss { failure: failed.failure, fault, ending: None }));
            }
            Event::Pushed(id, _) => self.output.push_back(SessionOutput::Pushed(owned(id))),
            Event::Node(Some(id), event) => {
                let answer = owned(id);
                let fault = match event {
                    participant::Event::Refused(fault) => Some(fault),
                    participant::Event::Closed { .. } | participant::Event::NotNeeded => {
                        match answer.frame(&self.limits) {
                            Some(ServerFrame::Error { fault }) => Some(fault),
                            _ => None,
                        }
                    }
                    _ => None,
                };
                let refused = fault.map(|fault| Loss::of_fault(&fault));
                self.report(id, refused.map_or(Ok(answer), Err));
            }
            Event::Node(None, event) => {
                self.output.extend(NodeEvent::of(&event).map(SessionOutput::Node));
            }
        }
    }

    /// Encodes pending frames, as far as the buffer allows.
    fn write(&mut self) {
        while self.unsent.len() - self.sent < UNSENT_BYTES_HIGH {
            let now = self.clock.now();
            let Some(write) = self.machine.poll_write(now) else { return };
            let out = &mut self.unsent;
            // A body can exceed the length field only beyond the limits that `begin` enforces.
            let encoded = match write {
                ToWrite::Identify => {
                    c10d::encode_frame(out, &c10d::Frame::Validate { magic: c10d::MAGIC });
                    c10d::encode_frame(out, &c10d::Frame::Ping { nonce: IDENTIFY_NONCE });
                    Ok(())
                }
                ToWrite::Opening(label, identity) => {
                    out.put(&MAGIC);
                    let hello = self.machine.hello(identity, self.node.as_bytes(), random());
                    encode_frame(out, label, &hello)
                }
                ToWrite::Proof(label, identity) => {
                    let channel = self.connection.as_ref().map(Connection::binding).unwrap_or_default();
                    encode_frame(out, label, &self.machine.proof(identity, self.node.as_bytes(), channel))
                }
                ToWrite::Request(id, label) => match self.requests.get(id) {
                    Some(encoded) => {
                        if let Some(run_id) = &encoded.run_id {
                            self.run_id.clone_from(run_id);
                        }
                        encode_frame(out, label, &encoded)
                    }
                    // The machine cancels requests that have no caller any more.
                    None => Ok(()),
                },
                ToWrite::Frame(label, frame) => encode_frame(out, label, &frame),
                ToWrite::Leave(label) => {
                    let leave = ClientFrame::Leave { run_id: Key::raw(&self.run_id) };
                    encode_frame(out, label, &leave)
                }
            };
            debug_assert!(encoded.is_ok(), "a frame is shorter than 4 GiB");
        }
    }

    /// Sends until nothing is left or the socket is full. Returns whether there may be more to write.
    fn flush(&mut self) -> bool {
        let mut any = false;
        loop {
            let rest = &self.unsent[self.sent..];
            let connected = |connection: &&mut Connection| connection.is_connected();
            let Some(connection) = self.connection.as_mut().filter(connected) else { break };
            // TLS may have something to send when the session has nothing.
            match connection.write(rest) {
                Ok(_) if rest.is_empty() => break,
                Ok(0) => return false,
                Ok(count) => {
                    self.sent += count;
                    any = true;
                }
                Err(cause) => {
                    // Messages that the server sent before it closed are still to be read.
                    self.read(&mut [0; LAST_READ_BYTES]);
                    if self.connection.is_some() {
                        self.lose(cause);
                    }
                    return true;
                }
            }
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.unsent.shrink_to(BYTES_KEPT_MAX);
            self.sent = 0;
        }
        if any {
            self.ack_watch.sent(self.clock.now());
        }
        any
    }
}
