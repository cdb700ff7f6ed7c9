//! The client of a native server: one session, which any thread may use.
//!
//! A thread of its own drives the session's one connection: so heartbeats go out while nobody calls, pushes come in
//! while nobody listens, and a call that waits holds up no other. Calls block until they are answered or their deadline
//! passes.

mod batch;
pub(in crate::driver) mod calls;
mod inbox;
mod node;
mod ops;
mod options;
mod session;
pub(in crate::driver) mod session_driver;
mod watch;

pub use batch::{Batch, BatchStep, Branch, Step, Test, Txn};
pub use node::{Joined, MemberInfo, NodeEvent, RunInfo};
pub(in crate::driver) use ops::removed_in;
pub use ops::{BarrierResult, BatchAnswer, KeysPage, TxnResult, Versioned, participants};
pub use options::NativeClientOptions;
pub use watch::{Change, Lease, Watch, WatchError};

use crate::driver::call_error::CallError;
use crate::driver::canceller::{Cancellable, Canceller};
use crate::driver::clock::Clock;
use crate::driver::event_loop::Waker;
use crate::driver::last_try::{FailedTry, LastTry};
use crate::driver::pauses::Pauses;
use crate::driver::random::random_seed;
use crate::driver::reply::{NoAnswer, Reply, ask};
use crate::driver::socket::classify;
use crate::driver::socket::endpoint_text;
use crate::driver::threads;
use crate::driver::timeout::Timeouts;
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::{FrameLimits, RendezvousLimits};
use crate::node::native_client::Ending;
use crate::node::native_client::fault::{Describe, DescribeEnd, failure_of};
use crate::store::op::Key;
use crate::time::Duration;
use crate::wire::native::{ClientFrame, Fault, FaultCode, Message, ServerFrame};
use crate::wire::sink::{Fill, Length};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::{Arc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crossbeam_channel::{Sender, unbounded};
use inbox::{Inbox, InboxLimit, Weighted};
use session::Session;
use session_driver::EncodedRequest;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

/// An error of the server's, word for word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFault {
    /// What kind.
    pub code: FaultCode,
    /// Its first number.
    pub first: u64,
    /// Its second number.
    pub second: u64,
    /// Its text.
    pub text: Box<[u8]>,
}

impl ServerFault {
    fn of(fault: &Fault<'_>) -> Self {
        Self { code: fault.code, first: fault.first, second: fault.second, text: fault.text.into() }
    }

    /// As it stood in its frame.
    #[must_use]
    pub fn as_fault(&self) -> Fault<'_> {
        Fault { code: self.code, first: self.first, second: self.second, text: &self.text }
    }
}

/// Why a native call failed.
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
    /// Which kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.call.kind()
    }

    /// The failed call.
    #[must_use]
    pub const fn call(&self) -> &CallError {
        &self.call
    }

    /// What the server said, if it was the server that refused.
    #[must_use]
    pub fn fault(&self) -> Option<&ServerFault> {
        self.fault.as_deref()
    }

    /// Of [`ErrorKind::Compacted`]: the oldest revision that the server can tell of.
    #[must_use]
    pub fn oldest_revision(&self) -> Option<u64> {
        self.fault().filter(|fault| fault.code == FaultCode::Compacted).map(|fault| fault.first)
    }
}

impl From<NativeError> for CallError {
    fn from(error: NativeError) -> Self {
        error.call
    }
}

/// How a call failed, as the session's thread knows it.
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

    /// A request was answered with this.
    pub(in crate::driver) fn of_fault(fault: &Fault<'_>) -> Self {
        Self { failure: failure_of(fault), fault: Some(Box::new(ServerFault::of(fault))), ending: None }
    }

    pub(in crate::driver) fn of_ending(ending: Ending) -> Self {
        Self { failure: ending.failure(), fault: None, ending: Some(Box::new(ending)) }
    }

    /// The answer is none to this request: the server breaks the protocol. It may have done what it was asked.
    pub(in crate::driver) const fn of_wrong_answer(operation: Operation) -> Self {
        let effect = if operation.reads_only() { Effect::None } else { Effect::Possible };
        Self::of(Failure { effect, ..plain(ErrorKind::WrongProtocol) })
    }

    /// As an error of this operation on these keys.
    #[cold]
    pub(in crate::driver) fn into_error(
        mut self,
        operation: Operation,
        keys: (Option<Key<'_>>, usize),
        peer: &str,
    ) -> NativeError {
        let mut message = self.message();
        if let (Some(limit), Some(key)) = (self.key_limit(), keys.0) {
            // The server counts what stands before the key's name as well.
            let beside = (key.len() - key.name().len()) as u64;
            let (bytes, bytes_max) = (limit.0.saturating_sub(beside), limit.1.saturating_sub(beside));
            self.failure.cause = Cause::Limit(LimitError::Key { bytes, bytes_max });
            message = None;
        }
        let call = match (operation, &self.fault) {
            // Of the keys of a transaction, the server names the one that it is about.
            (Operation::Txn, Some(fault)) if !fault.text.is_empty() => {
                message = None;
                CallError::new(operation, (Some(Key::raw(&fault.text)), 1), peer, self.failure)
            }
            _ => CallError::new(operation, keys, peer, self.failure),
        };
        NativeError { call: call.with_message(message), fault: self.fault }
    }

    /// The length of a key that the server found too long, and the limit.
    fn key_limit(&self) -> Option<(u64, u64)> {
        let fault = self.fault.as_ref().filter(|fault| fault.code == FaultCode::TooLong)?;
        (fault.second == FrameLimits::default().key_bytes_max).then_some((fault.first, fault.second))
    }

    /// What is known beyond the failure.
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

/// The answer to a call: a frame whose bytes are its own.
#[derive(Clone, Debug)]
pub(in crate::driver) struct OwnedFrame {
    pub(in crate::driver) id: u64,
    kind: u16,
    body: Vec<u8>,
}

impl OwnedFrame {
    pub(in crate::driver) fn frame<'a>(&'a self, limits: &'a FrameLimits) -> Option<ServerFrame<'a>> {
        // It was read once when it came, so it can be read again.
        ServerFrame::parse(self.kind, &self.body, limits).ok().flatten()
    }

    fn fault<'a>(&'a self, limits: &'a FrameLimits) -> Option<Fault<'a>> {
        match self.frame(limits)? {
            ServerFrame::Error { fault } => Some(fault),
            _ => None,
        }
    }
}

impl Weighted for OwnedFrame {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.body.len()
    }
}

/// Which part of a session's machine a call goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver) enum SubmitPath {
    Plain,
    Join,
    Leave,
    Bye,
}

/// A call on its way to the session's thread.
struct Submitted {
    encoded: EncodedRequest,
    span: Duration,
    submit_path: SubmitPath,
    /// The number of the calls that it is cancelled with.
    calls: u64,
    /// By which it is cancelled alone.
    ticket: Option<u64>,
    /// Where its pushes go.
    inbox: Option<Arc<Inbox<OwnedFrame>>>,
    reply: Option<Reply<Result<OwnedFrame, Loss>>>,
}

enum Command {
    Call(Box<Submitted>),
    /// The call with this ticket, which was sent before.
    Cancel(u64),
    /// The watch of this request: nobody reads its pushes any more.
    EndWatch(u64),
    /// The lease of this request: it goes on, and nobody asks what becomes of it.
    LeaveLease(u64),
    /// The calls of this number, that were sent before.
    CancelAll(u64),
    Stop,
}

/// What the handle and the session's thread share.
#[derive(Debug)]
struct Shared {
    /// Why the session is over.
    ending_cell: OnceLock<Ending>,
    /// What happens to the node.
    events: Inbox<NodeEvent>,
    /// Whether the node stood by at any time since it last asked to join.
    was_standby: AtomicBool,
    /// Whether another session joined under the node's name.
    was_replaced: AtomicBool,
    /// Whether the server has ever greeted.
    has_opened: AtomicBool,
    /// How the last try to connect failed.
    last_try: LastTry,
    /// Where watches and leases wait; those that are gone are passed over.
    streams: Mutex<Vec<Weak<Inbox<OwnedFrame>>>>,
}

impl Shared {
    fn new(limit: InboxLimit) -> Self {
        Self {
            ending_cell: OnceLock::new(),
            events: Inbox::new(limit),
            was_standby: AtomicBool::new(false),
            was_replaced: AtomicBool::new(false),
            has_opened: AtomicBool::new(false),
            last_try: LastTry::default(),
            streams: Mutex::default(),
        }
    }

    /// Room for the pushes of one more watch or lease.
    fn stream(&self, limit: InboxLimit) -> Arc<Inbox<OwnedFrame>> {
        let inbox = Arc::new(Inbox::new(limit));
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Has those who wait for pushes see whether they are cancelled.
    fn recheck_cancellation(&self) {
        self.events.recheck_cancellation();
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().filter_map(Weak::upgrade).for_each(|stream| stream.recheck_cancellation());
    }
}

struct Thread {
    commands: Sender<Command>,
    waker: Waker,
    handle: Mutex<Option<threads::Thread>>,
}

impl Thread {
    fn send(&self, command: Command) {
        // A session that is over takes no commands; its fate tells why.
        self.commands.send(command).ok();
        self.waker.wake();
    }
}

/// A session with a native server, and the keys beneath a scope. Clones share it, and their calls are cancelled together.
///
/// When the last of them is dropped, the connection ends without a word, as it does when a process dies: whoever takes
/// part in a round, and unwinds, must not look as if it were done. [`NativeClient::close`] says goodbye.
#[derive(Clone)]
pub struct NativeClient(Arc<Inner>, Arc<View>, Arc<Calls>);

/// What a handle shows of a session.
struct View {
    /// What stands before its keys.
    scope: Box<[u8]>,
    /// How long its calls may take.
    timeouts: Timeouts,
}

/// Calls that are cancelled together: those of a handle and its clones.
#[derive(Default)]
struct Calls {
    /// Which of the session's.
    number: u64,
    pauses: Pauses,
}

struct Inner {
    peer: Box<str>,
    host: Box<str>,
    port: u16,
    options: NativeClientOptions,
    answer_limits: FrameLimits,
    clock: Clock,
    /// How many calls had one.
    tickets: AtomicU64,
    /// How many handles are cancelled apart from the first one.
    handles: AtomicU64,
    shared: Arc<Shared>,
    thread: Thread,
}

impl fmt::Debug for NativeClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeClient({})", self.0.peer)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.thread.send(Command::Stop);
        if let Some(thread) = self.thread.handle.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.join();
        }
    }
}

/// Room for a session's requests.
const PENDING: usize = 256;
type Machine = crate::node::native_client::NativeClient<PENDING>;

/// Beyond this, a session's thread that does not answer is taken for dead.
const THREAD_TIMEOUT: Duration = Duration::from_secs(60);

impl NativeClient {
    /// Sets out to the server at `host` (a name or an address) and `port`, and does not wait for it: without a grace,
    /// the first calls leave with the greeting, in one round trip.
    ///
    /// # Errors
    /// That of the system: no more descriptors, or no more threads.
    pub fn start(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, NativeError> {
        Self::spawn(host, port, options, None)
    }

    /// As [`NativeClient::start`], and waits until the session is open.
    ///
    /// # Errors
    /// Why it is not.
    pub fn connect(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, NativeError> {
        Self::connect_cancellable(host, port, options, &Canceller::default().begin())
    }

    /// The same as a part of `call`: whoever cancels that ends the connecting, too.
    ///
    /// # Errors
    /// As [`NativeClient::connect`], or [`ErrorKind::Cancelled`].
    pub fn connect_cancellable(
        host: &str,
        port: u16,
        options: NativeClientOptions,
        call: &Cancellable,
    ) -> Result<Self, NativeError> {
        let (reply, opened) = ask();
        let wait_mode = options.connect_timeout + options.timeouts.answer + THREAD_TIMEOUT;
        let client = Self::spawn(host, port, options, Some(reply))?;
        let given_up = client.clone();
        let _watch = call.watch(move || given_up.abandon());
        let loss = match opened.wait(wait_mode) {
            _ if call.is_cancelled() => return Err(client.cancelled(Operation::Connect)),
            Ok(Ok(())) => return Ok(client),
            Ok(Err(ending)) => Loss::of_ending(ending),
            Err(none) => client.no_answer(none),
        };
        Err(client.error(Operation::Connect, (None, 0), loss))
    }

    fn spawn(
        host: &str,
        port: u16,
        options: NativeClientOptions,
        opened: Option<Reply<Result<(), Ending>>>,
    ) -> Result<Self, NativeError> {
        let peer: Box<str> = endpoint_text(host, port).into();
        let answer_limits = Machine::answer_limits(&options.limits);
        let shared = Arc::new(Shared::new(options.limit()));
        let (commands, inbox) = unbounded();
        let begun = Session::new((host, port), &options, random_seed(), Arc::clone(&shared), inbox, opened)
            .and_then(|mut session| {
                let (waker, clock) = (session.waker(), session.clock());
                let thread = threads::spawn("rdzv-session", move || session.run())?;
                Ok((waker, clock, thread))
            });
        let (waker, clock, thread) = begun.map_err(|error| system_error(&peer, &error))?;
        let thread = Thread { commands, waker, handle: Mutex::new(Some(thread)) };
        let view = View { scope: options.scope.clone(), timeouts: options.timeouts };
        let inner = Inner {
            peer,
            host: host.into(),
            port,
            options,
            answer_limits,
            clock,
            tickets: AtomicU64::new(0),
            handles: AtomicU64::new(0),
            shared,
            thread,
        };
        Ok(Self(Arc::new(inner), Arc::new(view), Arc::default()))
    }

    /// The same session, to be cancelled apart: [`NativeClient::cancel`] of the one leaves the other's calls alone.
    #[must_use]
    pub fn apart(&self) -> Self {
        let number = self.0.handles.fetch_add(1, Ordering::Relaxed) + 1;
        let calls = Calls { number, pauses: Pauses::default() };
        Self(Arc::clone(&self.0), Arc::clone(&self.1), Arc::new(calls))
    }

    /// The same session with the keys beneath another scope, and with other timeouts of its own. Calls of both are
    /// cancelled together.
    #[must_use]
    pub fn with_scope(&self, scope: &[u8], timeouts: Timeouts) -> Self {
        let view = View { scope: scope.into(), timeouts };
        Self(Arc::clone(&self.0), Arc::new(view), Arc::clone(&self.2))
    }

    /// The server as `host:port`.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.0.peer
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &NativeClientOptions {
        &self.0.options
    }

    /// How long this handle's calls may take.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.1.timeouts
    }

    /// Whether the session is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.shared.ending_cell.get().is_some()
    }

    /// Whether the server has ever greeted this session. One that has not may never hear of it.
    #[must_use]
    pub fn has_opened(&self) -> bool {
        self.0.shared.has_opened.load(Ordering::Acquire)
    }

    /// How the last try to connect failed, where there was one and there is no connection.
    #[must_use]
    pub fn failed_try(&self) -> Option<FailedTry> {
        self.0.shared.last_try.get()
    }

    /// Ends all calls of this handle and its clones that are under way, in whatever thread, with
    /// [`ErrorKind::Cancelled`], and so their waits for pushes and events. Later calls are as ever.
    pub fn cancel(&self) {
        self.2.pauses.cancel();
        self.0.shared.recheck_cancellation();
        self.0.thread.send(Command::CancelAll(self.2.number));
    }

    /// Tells whether this handle's calls were cancelled since it was asked for.
    fn cancelled_since(&self) -> impl Fn() -> bool {
        let (calls, epoch) = (&self.2, self.2.pauses.epoch());
        move || calls.pauses.epoch() != epoch
    }

    /// Ends the session with a word to the server, so that nobody takes it for dead.
    ///
    /// # Errors
    /// Why the server did not hear it.
    pub fn close(&self, timeout: Duration) -> Result<(), NativeError> {
        self.close_until(timeout, None)
    }

    /// As [`NativeClient::close`], until `call` is cancelled.
    ///
    /// # Errors
    /// Why the server did not hear it.
    pub fn close_cancellable(&self, timeout: Duration, call: &Cancellable) -> Result<(), NativeError> {
        self.close_until(timeout, Some(call))
    }

    fn close_until(&self, timeout: Duration, call: Option<&Cancellable>) -> Result<(), NativeError> {
        let bye = ClientFrame::Bye {};
        match self.exchange(Operation::Bye, &bye, timeout, SubmitPath::Bye, None, call) {
            Ok(_) => Ok(()),
            Err(loss) if loss.ending.as_deref() == Some(&Ending::Left) => Ok(()),
            Err(loss) => Err(self.error(Operation::Bye, (None, 0), loss)),
        }
    }

    /// Ends the session without a word and without waiting: the server takes the node for dead when its grace is over.
    pub fn abandon(&self) {
        self.0.thread.send(Command::Stop);
    }

    /// Host and port of its server.
    pub(in crate::driver) fn endpoint(&self) -> (&str, u16) {
        (&self.0.host, self.0.port)
    }

    /// A second, independent session with the same server.
    ///
    /// # Errors
    /// Why there is none.
    pub fn duplicate(&self) -> Result<Self, NativeError> {
        self.duplicate_cancellable(&Canceller::default().begin())
    }

    /// As [`NativeClient::duplicate`], until `call` is cancelled.
    ///
    /// # Errors
    /// Why there is none.
    pub fn duplicate_cancellable(&self, call: &Cancellable) -> Result<Self, NativeError> {
        Self::connect_cancellable(&self.0.host, self.0.port, self.0.options.clone(), call)
    }

    /// Asks, and waits for the answer.
    fn ask(
        &self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        span: Duration,
        keys: (Option<Key<'_>>, usize),
    ) -> Result<OwnedFrame, NativeError> {
        self.exchange(operation, frame, span, SubmitPath::Plain, None, None)
            .map_err(|loss| self.error(operation, keys, loss))
    }

    /// As [`NativeClient::ask`], until `call` is cancelled.
    fn ask_cancellable(
        &self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        span: Duration,
        keys: (Option<Key<'_>>, usize),
        call: &Cancellable,
    ) -> Result<OwnedFrame, NativeError> {
        self.exchange(operation, frame, span, SubmitPath::Plain, None, Some(call))
            .map_err(|loss| self.error(operation, keys, loss))
    }

    fn exchange(
        &self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        span: Duration,
        submit_path: SubmitPath,
        inbox: Option<Arc<Inbox<OwnedFrame>>>,
        call: Option<&Cancellable>,
    ) -> Result<OwnedFrame, Loss> {
        self.exchange_encoded(EncodedRequest::new(operation, frame), span, submit_path, inbox, call)
    }

    /// As [`NativeClient::exchange`], of a request that is encoded already.
    fn exchange_encoded(
        &self,
        encoded: EncodedRequest,
        span: Duration,
        submit_path: SubmitPath,
        inbox: Option<Arc<Inbox<OwnedFrame>>>,
        call: Option<&Cancellable>,
    ) -> Result<OwnedFrame, Loss> {
        if let Some(&ending) = self.0.shared.ending_cell.get() {
            return Err(Loss::of_ending(ending));
        }
        let (reply, answer) = ask();
        // A node that stands by waits for as long as it is needed.
        let wait_mode = match submit_path {
            SubmitPath::Join => Duration::MAX,
            _ => span + self.0.options.answer_slack + THREAD_TIMEOUT,
        };
        let ticket = call.map(|_| self.0.tickets.fetch_add(1, Ordering::Relaxed));
        let calls = self.2.number;
        self.submit(Submitted { encoded, span, submit_path, calls, ticket, inbox, reply: Some(reply) });
        // Behind the call in the channel, also when it was cancelled before: so it is never lost.
        let _watch = call.zip(ticket).map(|(call, ticket)| {
            let client = self.clone();
            call.watch(move || client.0.thread.send(Command::Cancel(ticket)))
        });
        match answer.wait(wait_mode) {
            Ok(result) => result,
            Err(none) => Err(self.no_answer(none)),
        }
    }

    fn submit(&self, call: Submitted) {
        self.0.thread.send(Command::Call(Box::new(call)));
    }

    /// The session's thread gave no answer: it is over, or hangs.
    fn no_answer(&self, none: NoAnswer) -> Loss {
        match (none, self.0.shared.ending_cell.get()) {
            (_, Some(&ending)) => Loss::of_ending(ending),
            (none, None) => {
                let kind = if none == NoAnswer::Closed { ErrorKind::ServerGone } else { ErrorKind::TimedOut };
                Loss::of(plain(kind))
            }
        }
    }

    #[cold]
    fn error(&self, operation: Operation, keys: (Option<Key<'_>>, usize), loss: Loss) -> NativeError {
        loss.into_error(operation, keys, &self.0.peer)
    }

    /// Somebody cancelled the call.
    #[cold]
    fn cancelled(&self, operation: Operation) -> NativeError {
        self.error(operation, (None, 0), Loss::of(plain(ErrorKind::Cancelled)))
    }

    #[cold]
    fn odd(&self, operation: Operation) -> NativeError {
        self.error(operation, (None, 0), Loss::of_wrong_answer(operation))
    }

    fn key<'a>(&'a self, name: &'a [u8]) -> Key<'a> {
        Key::scoped(&self.1.scope, name)
    }

    /// What a whole key of the server's is to users of this handle.
    #[must_use]
    pub fn name_of(&self, key: &[u8]) -> Vec<u8> {
        strip_scope(&self.1.scope, &Key::raw(key))
    }

    pub(in crate::driver) fn clock(&self) -> Clock {
        self.0.clock
    }

    pub(in crate::driver) fn pauses(&self) -> &Pauses {
        &self.2.pauses
    }
}

/// The failure of a request with a reason of so many bytes, where that is too long.
pub(in crate::driver) fn check_reason(reason: &str) -> Result<(), Loss> {
    let (bytes, bytes_max) = (reason.len() as u64, RendezvousLimits::default().failure_bytes_max as u64);
    if bytes <= bytes_max {
        return Ok(());
    }
    let (kind, cause) = (ErrorKind::LimitExceeded, Cause::Limit(LimitError::Reason { bytes, bytes_max }));
    Err(Loss::of(Failure { cause, phase: Phase::Sending, ..plain(kind) }))
}

/// What a key of the server's is to those whose keys stand beneath `scope`.
pub(in crate::driver) fn strip_scope(scope: &[u8], key: &Key<'_>) -> Vec<u8> {
    let whole = key.pieces().concat();
    whole.strip_prefix(scope).map(<[u8]>::to_vec).unwrap_or(whole)
}

pub(in crate::driver) const fn plain(kind: ErrorKind) -> Failure {
    Failure {
        kind,
        phase: Phase::Waiting,
        elapsed: Duration::ZERO,
        cause: Cause::Unknown,
        effect: Effect::None,
    }
}

fn system_error(peer: &str, error: &io::Error) -> NativeError {
    let (kind, cause) = classify(error);
    let failure = Failure { cause, phase: Phase::Connecting, ..plain(kind) };
    NativeError { call: CallError::new(Operation::Connect, (None, 0), peer, failure), fault: None }
}

/// The body of a frame.
fn body_of(frame: &impl Message) -> Vec<u8> {
    let mut length = Length::default();
    frame.write_body(&mut length);
    let mut body = vec![0; length.0];
    frame.write_body(&mut Fill::new(&mut body));
    body
}

pub(in crate::driver) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn text_of(bytes: &[u8]) -> Box<str> {
    String::from_utf8_lossy(bytes).into()
}

#[cfg(test)]
pub(in crate::driver) mod loopback_tests;
#[cfg(test)]
pub(in crate::driver) mod tests;
