//! Client of other workers.

use super::client_state::{ClientShared, Target};
use super::completion::Completion;
use super::handling::{AnswerTo, CallSource, Handling, Job, Run};
use super::line::SCRATCH_BYTES;
use super::link::{Driven, Link, Wanted};
use super::local_call::{LocalCall, OWN_CALL};
use super::reentrancy::{CallSite, Home, may_wait};
use super::{Payload, Received};
use crate::connection::caller::NewCall;
use crate::connection::{CallError, CallFailure, CallKind, CallPhase, ConnectionError, Status};
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use rendezvous_core::driver::canceller::{Canceller, Watch};
use rendezvous_core::driver::event_loop::EventLoop;
use rendezvous_core::driver::reply::{Awaited, ask};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::limits::RpcLimits;
use rendezvous_core::ordered::Set;
use rendezvous_core::time::{Duration, Instant};
use slab::Slab;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

pub use super::completion::CallResult;
pub(in crate::driver) use super::completion::{CallGuard, Mark};

/// Options of an [`RpcClient`].
#[derive(Debug)]
pub struct RpcClientOptions {
    /// Name and number of this worker.
    pub me: WorkerInfo,
    /// Id of its group.
    pub group: Vec<u8>,
    /// Limits of each connection.
    pub limits: RpcLimits,
    /// TCP keep-alive, which detects silent hosts; `None` leaves the system's defaults.
    pub keep_alive: Option<KeepAlive>,
    /// This worker's own handlers, for calls to itself.
    pub local: Option<Arc<Handling>>,
}

/// Client that calls other workers, and this worker itself. Dropping it fails all calls.
#[derive(Debug)]
pub struct RpcClient {
    shared: Arc<ClientShared>,
    links: Mutex<Vec<Weak<Link>>>,
    /// This worker's own handlers.
    local: Option<Arc<Handling>>,
    stop: Arc<AtomicBool>,
    thread: Option<Thread>,
}

/// Callees of calls that were pending at the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy(pub Vec<WorkerInfo>);

impl RpcClient {
    /// Creates a client without connections.
    ///
    /// # Errors
    /// The system has no descriptors or threads left.
    pub fn new(options: RpcClientOptions) -> io::Result<Self> {
        Self::new_watched(options, |_| ())
    }

    /// Creates a client that calls `failed` on its thread if that thread panics, with the panic's message. All calls
    /// have failed by then.
    ///
    /// # Errors
    /// As [`RpcClient::new`].
    pub fn new_watched(
        options: RpcClientOptions,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let RpcClientOptions { me, group, limits, keep_alive, local } = options;
        let mut events = EventLoop::new()?;
        let shared = Arc::new(ClientShared {
            me,
            group: group.into(),
            limits,
            keep_alive,
            home: local.as_ref().map(|local| local.home().clone()).unwrap_or_default(),
            clock: *events.clock(),
            watcher: events.watcher(),
            waker: events.waker(),
            targets: Mutex::new(Slab::new()),
            timers: Mutex::new(Set::new()),
            sleeps_until: AtomicU64::new(0),
            left: (Mutex::new(()), Condvar::new()),
            end: OnceLock::new(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_flag, thread_shared) = (Arc::clone(&stop), Arc::clone(&shared));
        let thread = threads::spawn("rdzv-rpc-out", move || {
            let drive = AssertUnwindSafe(|| drive(&mut events, &thread_shared, &stop_flag));
            if let Err(panic) = catch_unwind(drive) {
                let message = format!("the thread of calls panicked: {}", panic_text(&*panic));
                // No thread reads responses or checks deadlines any more.
                thread_shared.end_all(&ConnectionError::Panicked(message.as_str().into()));
                failed(&message);
            }
        })?;
        Ok(Self { shared, links: Mutex::default(), local, stop, thread: Some(thread) })
    }

    /// Returns a handle for calls to the worker at this address. Nothing is sent before the first call; all handles of
    /// the same worker share a connection.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn peer(&self, worker: &WorkerInfo, host: &str, port: u16) -> io::Result<RpcPeer> {
        if *worker == self.shared.me
            && let Some(local) = &self.local
        {
            return Ok(RpcPeer(To::Local(Arc::clone(&self.shared), Arc::clone(local))));
        }
        self.peer_at(worker, host, port)
    }

    /// Returns a handle for calls to the worker at this address, even if it has this worker's own name and number: a
    /// restarted worker checks whether its predecessor is alive.
    ///
    /// # Errors
    /// As [`RpcClient::peer`].
    pub fn peer_at(&self, worker: &WorkerInfo, host: &str, port: u16) -> io::Result<RpcPeer> {
        if let Some(peer) = self.known_peer(worker, host, port) {
            return Ok(peer);
        }
        let link = Link::new(&self.shared, worker.clone(), host, port)?;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        drop(links);
        Ok(RpcPeer(To::Link(link)))
    }

    fn known_peer(&self, worker: &WorkerInfo, host: &str, port: u16) -> Option<RpcPeer> {
        let known = self.links_to(worker, host, port).find(|link| link.takes_calls());
        Some(RpcPeer(To::Link(known?)))
    }

    /// Marks the worker there as dead, for callers that know better than the connection: all calls to it fail with this
    /// message, and so do later calls of existing handles. [`RpcClient::peer`] creates a new connection.
    pub fn mark_dead(&self, worker: &WorkerInfo, host: &str, port: u16, why: &str) {
        let why = ConnectionError::GivenUp(why.into());
        self.links_to(worker, host, port).for_each(|link| link.end(&why));
    }

    /// The worker there accepts no further calls: the pending ones continue as long as it responds to pings.
    /// [`RpcClient::peer`] creates a new connection.
    pub fn part_with(&self, worker: &WorkerInfo, host: &str, port: u16) {
        self.links_to(worker, host, port).for_each(|link| link.goodbye());
    }

    fn links_to(&self, worker: &WorkerInfo, host: &str, port: u16) -> impl Iterator<Item = Arc<Link>> {
        let is_it =
            move |link: &Arc<Link>| link.worker == *worker && *link.host == *host && link.port == port;
        self.links().into_iter().filter(is_it)
    }

    /// Number of scheduled deadlines.
    #[cfg(test)]
    pub(super) fn alarms(&self) -> usize {
        self.shared.timers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Accepts no further calls, and waits until the pending ones have ended.
    ///
    /// # Errors
    /// Callees of the calls that had not ended within `timeout`.
    pub fn leave(&self, timeout: Duration) -> Result<(), Busy> {
        let links = self.links();
        links.iter().for_each(Link::goodbye);
        let until = self.shared.clock.now() + timeout;
        let (lock, stop_flag) = &self.shared.left;
        loop {
            // A link takes the lock before it notifies, so no notification is lost between the check and the wait.
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let busy: Vec<_> =
                links.iter().filter(|link| !link.has_left()).map(|link| link.worker.clone()).collect();
            if busy.is_empty() {
                return Ok(());
            }
            let left = until.since(self.shared.clock.now());
            if left.is_zero() {
                return Err(Busy(busy));
            }
            drop(stop_flag.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Fails all pending calls of the program with this message, including those of the worker to itself. New calls are
    /// accepted, and the library's own calls continue.
    pub fn cut(&self, why: &str) {
        self.shared.all_targets().for_each(|target| target.cut(why));
    }

    /// Accepts no further calls, and fails the pending ones with this message.
    pub fn stop(&self, why: &str) {
        self.shared.end_all(&ConnectionError::CallerEnded(why.into()));
    }

    /// Accepts no further calls, and fails the pending ones, because a thread of the worker has panicked.
    pub fn stop_in_panic(&self, message: &str) {
        self.shared.end_all(&ConnectionError::Panicked(message.into()));
    }
}

impl Drop for RpcClient {
    fn drop(&mut self) {
        self.stop("the caller ended");
        self.stop.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take().filter(|thread| thread.id() != std::thread::current().id()) {
            thread.join();
        }
    }
}

impl ClientShared {
    fn all_targets(&self) -> impl Iterator<Item = Arc<dyn Target>> {
        let targets: Vec<_> = self.targets().iter().map(|(_, target)| Weak::clone(target)).collect();
        targets.into_iter().filter_map(|target| target.upgrade())
    }

    /// Fails all pending and later calls.
    fn end_all(&self, why: &ConnectionError) {
        self.end.get_or_init(|| why.clone());
        self.all_targets().for_each(|target| target.end(why));
    }
}

/// Runs the client's thread.
fn drive(events: &mut EventLoop, shared: &ClientShared, stop: &AtomicBool) {
    let mut scratch = Vec::with_capacity(SCRATCH_BYTES);
    let find = |token: usize| {
        let target = shared.targets().get(token).cloned();
        target.and_then(|target| target.upgrade())
    };
    while !stop.load(Ordering::Acquire) {
        let timers = shared.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let until = timers.first().map(|(at, _)| at);
        shared.sleeps_until.store(until.unwrap_or(Instant::MAX).as_nanos(), Ordering::Release);
        drop(timers);
        // Waiting fails only for lack of memory; deadlines are still checked then.
        let ready = events.wait(until);
        shared.sleeps_until.store(0, Ordering::Release);
        for one in ready.into_iter().flatten() {
            if let Some(target) = usize::try_from(one.token.0).ok().and_then(find) {
                target.ready(&mut scratch);
            }
        }
        let now = shared.clock.now();
        loop {
            let mut timers = shared.timers.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((at, token)) = timers.first().filter(|(at, _)| *at <= now) else { break };
            timers.remove((at, token));
            drop(timers);
            if let Some(target) = find(token) {
                target.tick(now);
            }
        }
    }
}

/// Parameters of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Name of the handler.
    pub handler: &'a str,
    /// Timeout; `None` waits as long as the worker responds to pings.
    pub timeout: Option<Duration>,
    /// Token that cancels a blocking call from another thread.
    pub canceller: Option<&'a Canceller>,
}

impl<'a> Call<'a> {
    /// Creates the parameters of a call of this handler without a timeout.
    #[must_use]
    pub const fn of(handler: &'a str) -> Self {
        Self { handler, timeout: None, canceller: None }
    }

    /// Sets the timeout.
    #[must_use]
    pub const fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// Handle for calls to one worker. Clones share the connection, which is closed when the last of them and of their
/// calls has ended.
#[derive(Clone, Debug)]
pub struct RpcPeer(To);

#[derive(Clone, Debug)]
enum To {
    Link(Arc<Link>),
    Local(Arc<ClientShared>, Arc<Handling>),
}

impl RpcPeer {
    /// The callee.
    #[must_use]
    pub fn worker(&self) -> &WorkerInfo {
        match &self.0 {
            To::Link(link) => &link.worker,
            To::Local(shared, _) => &shared.me,
        }
    }

    fn home(&self) -> &Home {
        match &self.0 {
            To::Link(link) => &link.shared.home,
            To::Local(shared, _) => &shared.home,
        }
    }

    /// Makes a call and waits for the response. Refused in an inline handler or a callback ([`may_wait`]).
    ///
    /// # Errors
    /// The call failed.
    pub fn call(&self, call: Call<'_>, payload: impl Into<Payload>) -> CallResult {
        self.call_payload(call, payload.into())
    }

    fn call_payload(&self, call: Call<'_>, payload: Payload) -> CallResult {
        if !may_wait() {
            return Err(CallFailure::Reentrant.of(call.handler, self.worker()));
        }
        let (reply, awaited) = ask();
        let cancellable = call.canceller.map(Canceller::begin);
        let (target, driven) =
            self.begin(call, payload, Completion::Waiter(reply, None), Driven::ByItself)?;
        let watch = cancellable.as_ref().map(|cancellable| {
            let target = target.clone();
            cancellable.watch(move || _ = target.cancel())
        });
        if let (CallTarget::Link(link, id), Driven::ByItself) = (&target, driven) {
            link.drive(*id);
        }
        let result = awaited.wait(FOREVER);
        // Cancelling a call releases borrowed bytes, which runs the program's code, and that may wait for this thread.
        // The watch of an ended call cancels nothing.
        watch.into_iter().for_each(Watch::let_go);
        result.unwrap_or_else(|_| Err(LOST.of(call.handler, self.worker())))
    }

    /// Makes a call without waiting for the response.
    ///
    /// # Errors
    /// The call was not made, and nothing of it will be sent.
    pub fn start(&self, call: Call<'_>, payload: impl Into<Payload>) -> Result<PendingCall, CallError> {
        self.start_marked(call, payload.into(), None)
    }

    /// Makes a call without waiting; `mark` is dropped when the call has ended, whether or not its result was taken.
    pub(in crate::driver) fn start_marked(
        &self,
        call: Call<'_>,
        payload: Payload,
        mark: Mark,
    ) -> Result<PendingCall, CallError> {
        let (reply, awaited) = ask();
        let completion = Completion::Waiter(reply, mark);
        let (target, _) = self.begin(call, payload, completion, Driven::ByThread)?;
        Ok(PendingCall { target, handler: call.handler.into(), awaited: Some(awaited) })
    }

    /// Makes a call and passes its result to `callback`, which must not block. The callback runs once: on a thread of
    /// the client, on that of a handler of the same worker, or on one that uses the same peer. A panic of it is caught.
    /// The returned value cancels the call.
    ///
    /// # Errors
    /// The call was not made, and nothing of it will be sent.
    pub fn start_with(
        &self,
        call: Call<'_>,
        payload: impl Into<Payload>,
        callback: impl FnOnce(CallResult) + Send + 'static,
    ) -> Result<CallCanceller, CallError> {
        let home = self.home().clone();
        let callback = move |result| home.run(CallSite::Callback, || callback(result));
        let completion = Completion::Callback(Box::new(callback));
        let begun = self.begin(call, payload.into(), completion, Driven::ByThread);
        begun.map(|(target, _)| CallCanceller(target))
    }

    /// Makes a one-way call. Its arrival is not reported.
    ///
    /// # Errors
    /// The call was not made, and nothing of it will be sent.
    pub fn notify(&self, call: Call<'_>, payload: impl Into<Payload>) -> Result<(), CallError> {
        self.notify_marked(call, payload.into(), None)
    }

    /// Makes a one-way call; `mark` is dropped when its last byte is written.
    pub(in crate::driver) fn notify_marked(
        &self,
        call: Call<'_>,
        payload: Payload,
        mark: Mark,
    ) -> Result<(), CallError> {
        let completion = Completion::Unowned(mark);
        self.begin_as(CallKind::OneWay, call, payload, completion, Driven::ByThread).map(drop)
    }

    fn begin(
        &self,
        call: Call<'_>,
        payload: Payload,
        completion: Completion,
        call_mode: Driven,
    ) -> Result<(CallTarget, Driven), CallError> {
        self.begin_as(CallKind::Responded, call, payload, completion, call_mode)
    }

    fn begin_as(
        &self,
        kind: CallKind,
        call: Call<'_>,
        payload: Payload,
        completion: Completion,
        call_mode: Driven,
    ) -> Result<(CallTarget, Driven), CallError> {
        let Call { handler, timeout, .. } = call;
        let shared = match &self.0 {
            To::Link(link) => &link.shared,
            To::Local(shared, _) => shared,
        };
        if let Some(why) = shared.end.get() {
            return Err(CallFailure::Unsent(why.clone()).of(handler, self.worker()));
        }
        match &self.0 {
            To::Link(link) => {
                let deadline = timeout.map(|timeout| link.shared.clock.now() + timeout);
                let wanted = Wanted { handler, deadline, kind };
                let (id, driven) = link.begin(wanted, payload, completion, call_mode)?;
                Ok((CallTarget::Link(Arc::clone(link), id), driven))
            }
            To::Local(shared, handling) => {
                let now = shared.clock.now();
                let deadline = timeout.map(|timeout| now + timeout);
                let payload_bytes = payload.bytes().len() as u64;
                let mut begun = NewCall { handler, payload_bytes, deadline, kind }.check(&shared.limits);
                if timeout == Some(Duration::ZERO) {
                    let (elapsed, phase) = (Duration::ZERO, CallPhase::Queued);
                    begun = begun.and(Err(CallFailure::DeadlinePassed { elapsed, phase }));
                }
                begun.map_err(|why| why.of(handler, &shared.me))?;
                let local = LocalCall::new(shared, handler, (now, deadline), completion, handling);
                match handling.get(handler) {
                    _ if !local.is_wanted(OWN_CALL) => {}
                    None => _ = local.fail(OWN_CALL, Status::NoHandler, ""),
                    Some(handler) => {
                        let job = Job {
                            caller: shared.me.clone(),
                            payload: Received::new(payload.into_bytes(), None),
                            kind,
                            time_left: timeout,
                            to: AnswerTo { source: Arc::<LocalCall>::clone(&local), call: OWN_CALL },
                            held: None,
                            handler,
                        };
                        match job.handler.run {
                            Run::Inline => job.run(),
                            Run::Pooled => handling.submit(job),
                        }
                    }
                }
                Ok((CallTarget::Local(local), Driven::ByThread))
            }
        }
    }
}

/// Failure of a call whose result was dropped.
const LOST: CallFailure = CallFailure::ConnectionLost(ConnectionError::Closed);

/// Practically unlimited; the wait ends with the call's own deadline, or with the worker.
const FOREVER: Duration = Duration::from_secs(1 << 31);

/// Target of a call.
#[derive(Clone, Debug)]
enum CallTarget {
    Link(Arc<Link>, u64),
    Local(Arc<LocalCall>),
}

impl CallTarget {
    fn cancel(&self) -> bool {
        match self {
            Self::Link(link, id) => link.cancel(*id),
            Self::Local(local) => local.cancel(),
        }
    }

    fn peer(&self) -> &WorkerInfo {
        match self {
            Self::Link(link, _) => &link.worker,
            Self::Local(local) => local.worker(),
        }
    }
}

/// Pending call. Dropping it before it has ended cancels it.
#[derive(Debug)]
pub struct PendingCall {
    target: CallTarget,
    handler: Box<str>,
    /// `None` once the result was taken.
    awaited: Option<Awaited<CallResult>>,
}

impl PendingCall {
    /// Waits for the response. Where the thread may not wait ([`may_wait`]), a call that has not ended is given up.
    ///
    /// # Errors
    /// The call failed.
    pub fn wait(mut self) -> CallResult {
        self.look(FOREVER)
            .unwrap_or_else(|| Err(self.failed(if may_wait() { LOST } else { CallFailure::Reentrant })))
    }

    fn failed(&self, why: CallFailure) -> CallError {
        why.of(&*self.handler, self.target.peer())
    }

    /// Returns the result if it is available within `timeout`. The result is returned once; later calls return `None`.
    /// Where the thread may not wait ([`may_wait`]), the timeout is 0.
    pub fn look(&mut self, timeout: Duration) -> Option<CallResult> {
        let timeout = if may_wait() { timeout } else { Duration::ZERO };
        let result = self.awaited.as_ref()?.look(timeout)?;
        self.awaited = None;
        Some(result.unwrap_or_else(|_| Err(self.failed(LOST))))
    }

    /// Cancels the call; returns true if it had not ended.
    pub fn cancel(&self) -> bool {
        self.target.cancel()
    }

    /// Returns a handle that cancels the call while another thread waits for it.
    #[must_use]
    pub fn canceller(&self) -> CallCanceller {
        CallCanceller(self.target.clone())
    }
}

/// Handle that cancels one call, from any thread. It keeps the connection open.
#[derive(Clone, Debug)]
pub struct CallCanceller(CallTarget);

impl CallCanceller {
    /// Cancels the call; returns true if it had not ended.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if self.awaited.is_some() {
            self.target.cancel();
        }
    }
}
