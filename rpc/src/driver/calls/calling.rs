//! The worker that calls.

use super::client_state::{Shared, Target};
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

/// Who calls, and how.
#[derive(Debug)]
pub struct RpcClientOptions {
    /// Who it is.
    pub me: WorkerInfo,
    /// Its group.
    pub group: Vec<u8>,
    /// Bounds on each connection.
    pub limits: RpcLimits,
    /// How hosts that fell silent are noticed; `None` leaves it to the system's defaults.
    pub keep_alive: Option<KeepAlive>,
    /// The worker's own handlers, for calls to itself.
    pub local: Option<Arc<Handling>>,
}

/// Makes calls to other workers, and to itself. Dropping it ends all calls.
#[derive(Debug)]
pub struct RpcClient {
    shared: Arc<Shared>,
    links: Mutex<Vec<Weak<Link>>>,
    /// The worker's own handlers.
    local: Option<Arc<Handling>>,
    stop: Arc<AtomicBool>,
    thread: Option<Thread>,
}

/// Workers that had calls under way when nobody waited any longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy(pub Vec<WorkerInfo>);

impl RpcClient {
    /// No connections yet.
    ///
    /// # Errors
    /// The system has no descriptors or threads left.
    pub fn new(options: RpcClientOptions) -> io::Result<Self> {
        Self::new_watched(options, |_| ())
    }

    /// The same; `failed` hears, on the client's thread, that it panicked, and in which words. All calls have failed then.
    ///
    /// # Errors
    /// As [`RpcClient::new`].
    pub fn new_watched(
        options: RpcClientOptions,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let RpcClientOptions { me, group, limits, keep_alive, local } = options;
        let mut events = EventLoop::new()?;
        let shared = Arc::new(Shared {
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
        let (stop_flag, carried) = (Arc::clone(&stop), Arc::clone(&shared));
        let thread = threads::spawn("rdzv-rpc-out", move || {
            let drive = AssertUnwindSafe(|| drive(&mut events, &carried, &stop_flag));
            if let Err(panic) = catch_unwind(drive) {
                let message = format!("the thread of calls panicked: {}", panic_text(&*panic));
                // Nobody reads answers or keeps deadlines any more.
                carried.end_all(&ConnectionError::Panicked(message.as_str().into()));
                failed(&message);
            }
        })?;
        Ok(Self { shared, links: Mutex::default(), local, stop, thread: Some(thread) })
    }

    /// The way to a worker at this address. Nothing is sent before the first call; whoever asks for the same worker again
    /// shares the connection.
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

    /// The same to whoever is at this address, also where it has this worker's own name and number: one that died and came
    /// back looks for the one before.
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

    /// The worker there is gone, for who knows better than the connection: all calls to it fail at once, in these words, and
    /// so do later ones of those who have the way to it. Whoever asks for it anew gets another way.
    pub fn mark_dead(&self, worker: &WorkerInfo, host: &str, port: u16, why: &str) {
        let why = ConnectionError::GivenUp(why.into());
        self.links_to(worker, host, port).for_each(|link| link.end(&why));
    }

    /// The worker there takes no further calls: those under way are waited for, as long as it gives signs of life. Whoever
    /// asks for it anew gets another way.
    pub fn part_with(&self, worker: &WorkerInfo, host: &str, port: u16) {
        self.links_to(worker, host, port).for_each(|link| link.goodbye());
    }

    fn links_to(&self, worker: &WorkerInfo, host: &str, port: u16) -> impl Iterator<Item = Arc<Link>> {
        let is_it =
            move |link: &Arc<Link>| link.worker == *worker && *link.host == *host && link.port == port;
        self.links().into_iter().filter(is_it)
    }

    /// Deadlines that are looked after.
    #[cfg(test)]
    pub(super) fn alarms(&self) -> usize {
        self.shared.timers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn links(&self) -> Vec<Arc<Link>> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.iter().filter_map(Weak::upgrade).collect()
    }

    /// Makes no further calls, and waits until those under way have ended.
    ///
    /// # Errors
    /// Those whose calls had not ended within `timeout`.
    pub fn leave(&self, timeout: Duration) -> Result<(), Busy> {
        let links = self.links();
        links.iter().for_each(Link::goodbye);
        let until = self.shared.clock.now() + timeout;
        let (lock, stop_flag) = &self.shared.left;
        loop {
            // Whoever leaves takes the lock before it tells, so nobody is missed between the look and the wait.
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

    /// All calls of the program's that there are fail at once, in these words, those of the worker to itself among them.
    /// Later ones may be made, and calls of the library's own go on.
    pub fn cut(&self, why: &str) {
        self.shared.all_targets().for_each(|target| target.cut(why));
    }

    /// Makes no further calls; those that there are fail at once, in these words.
    pub fn stop(&self, why: &str) {
        self.shared.end_all(&ConnectionError::CallerEnded(why.into()));
    }

    /// The same, since a thread of the worker's panicked.
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

impl Shared {
    fn all_targets(&self) -> impl Iterator<Item = Arc<dyn Target>> {
        let targets: Vec<_> = self.targets().iter().map(|(_, target)| Weak::clone(target)).collect();
        targets.into_iter().filter_map(|target| target.upgrade())
    }

    /// All calls fail, those that there are and later ones.
    fn end_all(&self, why: &ConnectionError) {
        self.end.get_or_init(|| why.clone());
        self.all_targets().for_each(|target| target.end(why));
    }
}

/// The client's thread.
fn drive(events: &mut EventLoop, shared: &Shared, stop: &AtomicBool) {
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
        // The queue fails only for want of memory; what is left then is time.
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

/// What is called.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The name of the handler.
    pub handler: &'a str,
    /// How long it may take; `None`: as long as it does, while the worker gives signs of life.
    pub timeout: Option<Duration>,
    /// Whoever may end a blocking call from another thread.
    pub canceller: Option<&'a Canceller>,
}

impl<'a> Call<'a> {
    /// A call of this handler that takes as long as it does.
    #[must_use]
    pub const fn of(handler: &'a str) -> Self {
        Self { handler, timeout: None, canceller: None }
    }

    /// The same, for so long at most.
    #[must_use]
    pub const fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }
}

/// The way to one worker. Clones share it; the connection ends with the last of them and of their calls.
#[derive(Clone, Debug)]
pub struct RpcPeer(To);

#[derive(Clone, Debug)]
enum To {
    Link(Arc<Link>),
    Local(Arc<Shared>, Arc<Handling>),
}

impl RpcPeer {
    /// Who is called.
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

    /// Calls, and waits for the answer. Not in an inline handler or a callback ([`may_wait`]): there it is refused.
    ///
    /// # Errors
    /// Why there is none.
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
        // To cancel a call gives lent bytes back, and that code may wait for this thread. An ended call has nothing to end.
        watch.into_iter().for_each(Watch::let_go);
        result.unwrap_or_else(|_| Err(LOST.of(call.handler, self.worker())))
    }

    /// Calls, and does not wait.
    ///
    /// # Errors
    /// It was not made, and nothing of it will be sent.
    pub fn start(&self, call: Call<'_>, payload: impl Into<Payload>) -> Result<PendingCall, CallError> {
        self.start_marked(call, payload.into(), None)
    }

    /// The same; `mark` is dropped when the call has ended, whether or not anybody has looked.
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

    /// Calls, and has what came of it told to `callback`, which must not block: it is called once, on a thread of the
    /// client's, on that of a handler of the same worker's, or on one that uses the same peer. One that panics has been told.
    /// What ends the call before comes back.
    ///
    /// # Errors
    /// It was not made, and nothing of it will be sent.
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

    /// Calls what nobody answers. Nobody hears whether it arrived.
    ///
    /// # Errors
    /// It was not made, and nothing of it will be sent.
    pub fn notify(&self, call: Call<'_>, payload: impl Into<Payload>) -> Result<(), CallError> {
        self.notify_marked(call, payload.into(), None)
    }

    /// The same; `mark` is dropped when the last of it is out.
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

/// What is known of a call that is gone without a word.
const LOST: CallFailure = CallFailure::ConnectionLost(ConnectionError::Closed);

/// Longer than anything lives; what ends a wait is the call's own deadline, or the worker's end.
const FOREVER: Duration = Duration::from_secs(1 << 31);

/// Where a call is.
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

/// A call under way. Dropped before it has ended, it is cancelled.
#[derive(Debug)]
pub struct PendingCall {
    target: CallTarget,
    handler: Box<str>,
    /// `None`: what came of it was told.
    awaited: Option<Awaited<CallResult>>,
}

impl PendingCall {
    /// Waits for the answer. Where nothing may wait ([`may_wait`]), a call that has not ended is given up.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(mut self) -> CallResult {
        self.look(FOREVER)
            .unwrap_or_else(|| Err(self.failed(if may_wait() { LOST } else { CallFailure::Reentrant })))
    }

    fn failed(&self, why: CallFailure) -> CallError {
        why.of(&*self.handler, self.target.peer())
    }

    /// What came of it, if that is known within `timeout`. It is told once; later there is nothing. Where nothing may
    /// wait ([`may_wait`]), it looks once.
    pub fn look(&mut self, timeout: Duration) -> Option<CallResult> {
        let timeout = if may_wait() { timeout } else { Duration::ZERO };
        let result = self.awaited.as_ref()?.look(timeout)?;
        self.awaited = None;
        Some(result.unwrap_or_else(|_| Err(self.failed(LOST))))
    }

    /// Ends it, unless it has ended. Whether it had not.
    pub fn cancel(&self) -> bool {
        self.target.cancel()
    }

    /// Ends it while another thread waits for it.
    #[must_use]
    pub fn canceller(&self) -> CallCanceller {
        CallCanceller(self.target.clone())
    }
}

/// Ends one call, from any thread. It keeps the way to the worker alive.
#[derive(Clone, Debug)]
pub struct CallCanceller(CallTarget);

impl CallCanceller {
    /// Ends the call, unless it has ended. Whether it had not.
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
