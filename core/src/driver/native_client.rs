//! Client of a native server: one session, which any thread may use.
//!
//! A thread of the client drives the session's one connection. So heartbeats are sent while no call is in progress,
//! pushes are received while no thread waits for them, and a waiting call delays no other. Calls block until they are
//! answered or their deadline passes.

mod batch;
pub(in crate::driver) mod calls;
mod inbox;
mod node;
pub(in crate::driver) mod ops;
mod options;
mod request;
mod response;
mod session;
pub(in crate::driver) mod session_driver;
mod session_thread;
mod watch;

pub use batch::{Batch, BatchStep, Branch, Step, Test, Txn};
pub use node::NodeEvent;
pub use options::NativeClientOptions;
pub use request::{NativeRequest, participants};
pub(in crate::driver) use response::PendingRequest;
pub use response::{
    BarrierResult, BatchAnswer, Joined, KeysPage, MemberInfo, NativeResponse, RunInfo, SessionInfo,
    TxnResult, Versioned,
};
pub use watch::{Change, Lease, Watch, WatchError};

use crate::driver::cancel::Canceller;
use crate::driver::channel::unbounded;
use crate::driver::last_try::FailedTry;
use crate::driver::prelude::*;
use crate::driver::random::random_seed;
use crate::driver::socket::classify;
use crate::driver::socket::endpoint_text;
use crate::driver::timeout::{Timeout, Timeouts};
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::{FrameLimits, RendezvousLimits};
use crate::node::native_client::Ending;
use crate::node::native_client::fault::{Describe, DescribeEnd, failure_of};
use crate::store::call::WaitMode;
use crate::store::op::Key;
use crate::wire::native::{ClientFrame, Fault, FaultCode, Message, ServerFrame};
use crate::wire::sink::Length;
use core::sync::atomic::Ordering;
use inbox::{Inbox, Last, Weighted};
use session::Session;
use session_driver::EncodedRequest;
use session_thread::{ABANDON_TIMEOUT, ClientShared, Command, SessionThread, THREAD_TIMEOUT};

/// Error response of the server, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFault {
    /// Kind of error.
    pub code: FaultCode,
    /// First number of the response.
    pub first: u64,
    /// Second number of the response.
    pub second: u64,
    /// Text of the response.
    pub text: Box<[u8]>,
}

impl ServerFault {
    fn of(fault: &Fault<'_>) -> Self {
        Self { code: fault.code, first: fault.first, second: fault.second, text: fault.text.into() }
    }

    /// Returns the fault as it was received.
    pub fn as_fault(&self) -> Fault<'_> {
        Fault { code: self.code, first: self.first, second: self.second, text: &self.text }
    }
}

/// Reason why a native call failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call}")]
pub struct NativeError {
    call: CallError,
    fault: Option<Box<ServerFault>>,
}

impl fmt::Debug for NativeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl NativeError {
    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.call.kind()
    }

    /// Returns the failed call.
    pub const fn call(&self) -> &CallError {
        &self.call
    }

    /// Returns the server's response, if the server refused the call.
    pub fn fault(&self) -> Option<&ServerFault> {
        self.fault.as_deref()
    }

    /// Returns the oldest revision that the server still remembers, for [`ErrorKind::Compacted`].
    pub fn oldest_revision(&self) -> Option<u64> {
        self.fault().filter(|fault| fault.code == FaultCode::Compacted).map(|fault| fault.first)
    }
}

impl From<NativeError> for CallError {
    fn from(error: NativeError) -> Self {
        error.call
    }
}

/// Failure of a call, as the session's thread knows it.
#[derive(Clone, Debug)]
pub(in crate::driver) struct Loss {
    pub(in crate::driver) failure: Failure,
    fault: Option<Box<ServerFault>>,
    ending: Option<Box<Ending>>,
}

impl Loss {
    pub(in crate::driver) const fn of(failure: Failure) -> Self {
        Self { failure, fault: None, ending: None }
    }

    pub(in crate::driver) const fn cancelled() -> Self {
        Self::of(plain(ErrorKind::Cancelled))
    }

    /// Makes the failure of a call that the native protocol has no request for.
    pub(in crate::driver) const fn no_operation() -> Self {
        Self::of(Failure::new(ErrorKind::Unsupported, Phase::Sending, Cause::NoOperation))
    }

    /// Makes the failure of a request that the server answered with this fault.
    pub(in crate::driver) fn of_fault(fault: &Fault<'_>) -> Self {
        Self { failure: failure_of(fault), fault: Some(Box::new(ServerFault::of(fault))), ending: None }
    }

    pub(in crate::driver) fn of_ending(ending: Ending) -> Self {
        Self { failure: ending.failure(), fault: None, ending: Some(Box::new(ending)) }
    }

    /// Makes the failure of a wait for a push.
    fn of_last(last: Last) -> Self {
        match last {
            Last::Over(ending) => Self::of_ending(ending),
            Last::Overrun => Self::of(plain(ErrorKind::LimitExceeded)),
            Last::Interrupted => Self::cancelled(),
        }
    }

    /// Makes the failure of a request whose response does not fit: the server violates the protocol. It may have
    /// executed the request.
    pub(in crate::driver) const fn of_wrong_answer(operation: Operation) -> Self {
        let effect = if operation.reads_only() { Effect::None } else { Effect::Possible };
        Self::of(Failure { effect, ..plain(ErrorKind::WrongProtocol) })
    }

    /// Converts this to an error of `operation` on these keys.
    #[cold]
    pub(in crate::driver) fn into_error(
        mut self,
        operation: Operation,
        keys: (Option<Key<'_>>, usize),
        peer: &str,
    ) -> NativeError {
        let mut message = self.message();
        if let Some((bytes, bytes_max)) = self.key_limit().filter(|_| keys.0.is_some()) {
            self.failure.cause = Cause::Limit(LimitError::Key { bytes, bytes_max });
            message = None;
        }
        let call = match (operation, &self.fault) {
            // For a transaction, the server returns the key that caused the error.
            (Operation::Txn, Some(fault)) if !fault.text.is_empty() => {
                message = None;
                CallError::new(operation, (Some(Key::raw(&fault.text)), 1), peer, self.failure)
            }
            _ => CallError::new(operation, keys, peer, self.failure),
        };
        NativeError { call: call.with_message(message), fault: self.fault }
    }

    /// Returns the length of a key that the server found too long, and the limit, in bytes.
    fn key_limit(&self) -> Option<(u64, u64)> {
        let fault = self.fault.as_ref().filter(|fault| fault.code == FaultCode::TooLong)?;
        (fault.second == FrameLimits::default().key_bytes_max).then_some((fault.first, fault.second))
    }

    /// Returns a description of what is known beyond the failure.
    fn message(&self) -> Option<Box<str>> {
        let message = match (&self.fault, self.ending.as_deref()) {
            (Some(fault), _) => Describe(fault.as_fault()).to_string(),
            (None, Some(Ending::Session(end, _))) => DescribeEnd(*end).to_string(),
            (None, Some(Ending::Left)) => "the session was closed".to_string(),
            (None, Some(Ending::Dialling(_)) | None) => String::new(),
        };
        (!message.is_empty()).then(|| message.into())
    }
}

/// Response to a call, or a push: a frame that owns its bytes.
#[derive(Clone, Debug)]
pub(in crate::driver) struct OwnedFrame {
    pub(in crate::driver) id: u64,
    kind: u16,
    body: Vec<u8>,
}

impl OwnedFrame {
    pub(in crate::driver) fn frame<'a>(&'a self, limits: &'a FrameLimits) -> Option<ServerFrame<'a>> {
        // The frame was parsed when it was received, so parsing cannot fail.
        ServerFrame::parse(self.kind, &self.body, limits).ok().flatten()
    }
}

impl Weighted for OwnedFrame {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.body.len()
    }
}

/// Session with a native server, and the keys under a scope. Clones share the session, and a cancel of one ends the
/// calls of all.
///
/// When the last clone is dropped, the connection closes without a goodbye, as when a process dies: a node of a round
/// that unwinds must not look as if it had finished. [`NativeClient::close`] says goodbye.
#[derive(Clone)]
pub struct NativeClient {
    inner: Arc<Inner>,
    view: Arc<View>,
    canceller: Canceller,
}

/// Scope and timeouts of a handle.
struct View {
    /// Prefix of its keys.
    scope: Box<[u8]>,
    /// Default timeouts of its calls.
    timeouts: Timeouts,
}

struct Inner {
    peer: Box<str>,
    host: Box<str>,
    port: u16,
    options: NativeClientOptions,
    answer_limits: FrameLimits,
    clock: Clock,
    thread: SessionThread,
}

impl fmt::Debug for NativeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeClient({})", self.inner.peer)
    }
}

impl Inner {
    /// Makes the canceller of a handle whose calls `token` ends.
    fn canceller(self: &Arc<Self>, token: &CancelToken) -> Canceller {
        let inner = Arc::clone(self);
        Canceller::of(token, Some(Arc::new(move || inner.thread.recheck_cancellation())))
    }
}

/// Maximum number of a session's requests in progress.
const PENDING: usize = 256;
type Machine = crate::node::native_client::NativeClient<PENDING>;

impl NativeClient {
    /// Starts to connect to the server at `host` (a name or an address) and `port` without waiting for it. Without a
    /// grace period, the first calls are sent together with the greeting, in one round trip.
    ///
    /// # Errors
    /// The error of the system: no descriptor is left, or no thread can be started.
    pub fn start(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, NativeError> {
        Self::spawn(host, port, options, None)
    }

    /// As [`NativeClient::start`], and waits until the session is open.
    ///
    /// # Errors
    /// The reason why the session could not be opened, or [`ErrorKind::Cancelled`].
    pub fn connect(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, NativeError> {
        let token = options.token.clone();
        let error = |loss: Loss| loss.into_error(Operation::Connect, (None, 0), &endpoint_text(host, port));
        if token.is_cancelled() {
            return Err(error(Loss::cancelled()));
        }
        let (reply, opened) = oneshot::channel();
        let wait_mode = options.connect_timeout + options.timeouts.answer + THREAD_TIMEOUT;
        let client = Self::spawn(host, port, options, Some(reply))?;
        let given_up = client.clone();
        let _guard = token.on_cancel(move || given_up.hang_up());
        Err(error(match opened.recv_timeout(wait_mode) {
            _ if token.is_cancelled() => Loss::cancelled(),
            Ok(Ok(())) => return Ok(client),
            Ok(Err(ending)) => Loss::of_ending(ending),
            Err(none) => client.inner.thread.no_answer(none),
        }))
    }

    fn spawn(
        host: &str,
        port: u16,
        options: NativeClientOptions,
        opened: Option<oneshot::Sender<Result<(), Ending>>>,
    ) -> Result<Self, NativeError> {
        let peer: Box<str> = endpoint_text(host, port).into();
        let answer_limits = Machine::answer_limits(&options.limits);
        let (shared, (commands, received)) = (Arc::new(ClientShared::new(options.limit())), unbounded());
        let begun =
            Session::new((host, port), &options, random_seed(), Arc::clone(&shared), received, opened)
                .and_then(|mut session| {
                    let clock = session.clock();
                    let thread =
                        SessionThread::start(shared, commands, session.waker(), move || session.run())?;
                    Ok((clock, thread))
                });
        let (clock, thread) = begun.map_err(|error| system_error(&peer, &error))?;
        let view = View { scope: options.scope.clone(), timeouts: options.timeouts };
        let inner = Arc::new(Inner { peer, host: host.into(), port, options, answer_limits, clock, thread });
        let canceller = inner.canceller(&CancelToken::new());
        Ok(Self { inner, view: Arc::new(view), canceller })
    }

    /// Returns a handle of the same session whose calls end when `token` is cancelled, and end at once if it already
    /// is. A cancel of one handle does not affect the calls of the other.
    #[must_use]
    pub fn with_token(&self, token: &CancelToken) -> Self {
        self.with_canceller(&self.inner.canceller(token))
    }

    pub(in crate::driver) fn with_canceller(&self, canceller: &Canceller) -> Self {
        Self { canceller: canceller.clone(), ..self.clone() }
    }

    /// Returns a handle of the same session with another scope and other timeouts. Calls of both handles are
    /// cancelled together.
    #[must_use]
    pub fn with_scope(&self, scope: &[u8], timeouts: Timeouts) -> Self {
        let view = View { scope: scope.into(), timeouts };
        Self { view: Arc::new(view), ..self.clone() }
    }

    /// Returns the server as `host:port`.
    pub fn peer(&self) -> &str {
        &self.inner.peer
    }

    /// Returns the options of the session.
    pub fn options(&self) -> &NativeClientOptions {
        &self.inner.options
    }

    /// Returns the default timeouts of this handle's calls.
    pub fn timeouts(&self) -> Timeouts {
        self.view.timeouts
    }

    /// Returns whether the session is over.
    pub fn is_over(&self) -> bool {
        self.inner.thread.ending().is_some()
    }

    /// Returns whether the server has ever greeted this session. If it has not, the server may not know the session.
    pub fn has_opened(&self) -> bool {
        self.incarnation().is_some()
    }

    /// Returns the number that identifies this start of the server, once it has greeted the session. A server that is
    /// restarted has another one, and knows neither the session nor the rounds and revisions of the one before.
    pub fn incarnation(&self) -> Option<u64> {
        Some(self.inner.thread.shared().incarnation.load(Ordering::Acquire))
            .filter(|&incarnation| incarnation > 0)
    }

    /// Returns the number of this session at the server, once that has greeted it.
    pub fn session(&self) -> Option<u64> {
        Some(self.inner.thread.shared().session.load(Ordering::Acquire)).filter(|&session| session > 0)
    }

    /// Returns the last failed attempt to connect, if there was one and there is no connection.
    pub fn failed_try(&self) -> Option<FailedTry> {
        self.inner.thread.shared().last_try.get()
    }

    /// Wakes the waiting calls, so that they check their tokens.
    pub(in crate::driver) fn wake(&self) {
        self.inner.thread.recheck_cancellation();
    }

    /// Ends the session with a goodbye to the server, so that the node is not considered dead.
    ///
    /// # Errors
    /// The reason why the server did not confirm it.
    pub fn close(&self, timeout: Duration) -> Result<(), NativeError> {
        self.request_within(&NativeRequest::Close, timeout).map(drop)
    }

    /// Ends the session without a goodbye and without waiting. The server considers the node dead when its grace
    /// period is over.
    pub fn hang_up(&self) {
        self.inner.thread.begin_to_stop();
    }

    /// Ends the session without waiting, and notifies the server that the node was stopped with its work undone. Without
    /// a connection the server considers the node dead when its grace period is over.
    pub fn abandon(&self) {
        let frame = ClientFrame::Abandon {};
        let encoded = EncodedRequest::new(Operation::Bye, &frame, ABANDON_TIMEOUT);
        self.inner.thread.send(Command::Abandon(Box::new(encoded)));
    }

    /// Returns host and port of the server.
    pub(in crate::driver) fn endpoint(&self) -> (&str, u16) {
        (&self.inner.host, self.inner.port)
    }

    /// Sends a request and waits for the response. A watch has more than one: see [`NativeClient::watch_key`].
    ///
    /// # Errors
    /// The reason why there is no response. [`crate::error::Failure::effect`] says whether the request may have been
    /// executed. [`ErrorKind::Unsupported`]: the request begins a watch.
    pub fn request(
        &self,
        request: &NativeRequest<'_>,
        timeout: Timeout,
    ) -> Result<NativeResponse, NativeError> {
        if request.operation() == Operation::Watch {
            return Err(self.error(Operation::Watch, (None, 0), Loss::no_operation()));
        }
        Ok(self.exchange_request(request, self.span(timeout), None)?.1)
    }

    fn span(&self, timeout: Timeout) -> (Duration, WaitMode) {
        self.view.timeouts.wait_budget(timeout)
    }

    /// As [`NativeClient::request`], with a time that is not a default and may be zero.
    fn request_within(
        &self,
        request: &NativeRequest<'_>,
        span: Duration,
    ) -> Result<NativeResponse, NativeError> {
        Ok(self.exchange_request(request, (span, WaitMode::Wait), None)?.1)
    }

    /// Sends a request whose pushes go to `inbox`. Returns its id, under which they come, and the response.
    fn exchange_request(
        &self,
        request: &NativeRequest<'_>,
        budget: (Duration, WaitMode),
        inbox: Option<Arc<Inbox<OwnedFrame>>>,
    ) -> Result<(u64, NativeResponse), NativeError> {
        let Inner { options, answer_limits, peer, .. } = &*self.inner;
        let (pending, encoded) = request.encode((&self.view.scope, options, peer), budget)?;
        let began = self.inner.clock.now();
        let answer = self.exchange(encoded, inbox, &self.canceller.token());
        let (id, elapsed) =
            (answer.as_ref().map_or(0, |answer| answer.id), self.inner.clock.now().since(began));
        let response = pending.settle(answer, elapsed, answer_limits, (&self.view.scope, peer))?;
        Ok((id, response))
    }

    fn exchange(
        &self,
        encoded: EncodedRequest,
        inbox: Option<Arc<Inbox<OwnedFrame>>>,
        token: &CancelToken,
    ) -> Result<OwnedFrame, Loss> {
        self.inner.thread.call(encoded, inbox, token, self.inner.options.answer_slack)
    }

    #[cold]
    fn error(&self, operation: Operation, keys: (Option<Key<'_>>, usize), loss: Loss) -> NativeError {
        loss.into_error(operation, keys, &self.inner.peer)
    }

    fn key<'a>(&'a self, name: &'a [u8]) -> Key<'a> {
        Key::scoped(&self.view.scope, name)
    }

    /// Removes this handle's scope from a key of the server.
    pub fn name_of(&self, key: &[u8]) -> Vec<u8> {
        strip_scope(&self.view.scope, &Key::raw(key))
    }

    pub(in crate::driver) fn clock(&self) -> Clock {
        self.inner.clock
    }
}

/// Panics: a response of another operation fails where it is decoded, in [`PendingRequest::settle`].
#[cold]
fn wrong_response() -> ! {
    unreachable!("a response is decoded by the operation of its request")
}

/// Fails if a reason for closing a run is too long.
pub(in crate::driver) fn check_reason(reason: &str) -> Result<(), Loss> {
    let (bytes, bytes_max) = (reason.len() as u64, RendezvousLimits::default().failure_bytes_max as u64);
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Loss::of(Failure::limit(Phase::Sending, LimitError::Reason { bytes, bytes_max })))
}

/// Removes `scope` from a key of the server.
pub(in crate::driver) fn strip_scope(scope: &[u8], key: &Key<'_>) -> Vec<u8> {
    let whole = key.pieces().concat();
    whole.strip_prefix(scope).map(<[u8]>::to_vec).unwrap_or(whole)
}

pub(in crate::driver) const fn plain(kind: ErrorKind) -> Failure {
    Failure::new(kind, Phase::Waiting, Cause::Unknown)
}

fn system_error(peer: &str, error: &io::Error) -> NativeError {
    let (kind, cause) = classify(error);
    let failure = Failure::new(kind, Phase::Connecting, cause);
    NativeError { call: CallError::new(Operation::Connect, (None, 0), peer, failure), fault: None }
}

/// Encodes the body of a frame.
fn body_of(frame: &impl Message) -> Vec<u8> {
    let mut length = Length::default();
    frame.write_body(&mut length);
    let mut body = Vec::with_capacity(length.0);
    frame.write_body(&mut body);
    body
}

pub(in crate::driver) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn text_of(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes).into()
}

#[cfg(test)]
mod auth_tests;
#[cfg(test)]
pub(in crate::driver) mod loopback_tests;
#[cfg(test)]
pub(in crate::driver) mod tests;
