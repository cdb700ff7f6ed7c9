//! Client of other workers.

use super::Payload;
use super::client_state::ClientShared;
pub use super::client_state::RpcClientOptions;
use super::completion::Completion;
use super::io_thread::{IoShared, Target, failure_text};
use super::link::{Driven, Link, Wanted};
use super::reentrancy::{CallSite, Home, may_wait};
use crate::connection::{CallError, CallFailure, CallKind, ConnectionError};
use crate::name::WorkerInfo;
use alloc::sync::Weak;
use rendezvous_core::driver::cancel::CancelGuard;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::server::ServerFailure;

pub use super::completion::CallResult;
pub(in crate::driver) use super::completion::{CallGuard, Mark};

/// Client that calls other workers. Dropping it fails all calls.
#[derive(Debug)]
pub struct RpcClient(Arc<Links>);

/// Connections of a client.
#[derive(Debug)]
struct Links {
    shared: Arc<ClientShared>,
    token: usize,
    links: Mutex<Vec<Weak<Link>>>,
}

impl RpcClient {
    /// Creates a client whose connections this thread drives. Its callbacks are those of the worker `home`.
    pub(super) fn on_thread(options: RpcClientOptions, io: &Arc<IoShared>, home: Home) -> Self {
        let shared = Arc::new(ClientShared { options, home, io: Arc::clone(io), end: OnceLock::new() });
        let links = Arc::new_cyclic(|links: &Weak<Links>| {
            let token = io.add(links.clone());
            Links { shared, token, links: Mutex::default() }
        });
        if let Some(why) = io.failure() {
            Arc::clone(&links).thread_ended(why);
        }
        Self(links)
    }

    /// Returns a handle for calls to the worker at this address, which may be this worker itself. Nothing is sent before
    /// the first call; all handles of the same worker share a connection.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn peer(&self, worker: &WorkerInfo, host: &str, port: u16) -> io::Result<RpcPeer> {
        if let Some(link) = self.links_to(worker, host, port).find(|link| link.takes_calls()) {
            return Ok(RpcPeer(link));
        }
        let link = Link::new(&self.0.shared, worker.clone(), host, port)?;
        let mut links = self.0.links.locked();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        drop(links);
        // A thread that has ended all calls meanwhile may not have seen this link.
        if let Some(why) = self.0.shared.end.get() {
            link.end(why);
        }
        Ok(RpcPeer(link))
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
        self.0.all().into_iter().filter(is_it)
    }

    /// Fails all pending calls of the program with this message. New calls are accepted, and the library's own calls
    /// continue.
    pub fn cut(&self, why: &str) {
        self.0.all().iter().for_each(|link| link.cut(why));
    }

    /// Accepts no further calls, and fails the pending ones with this message.
    pub fn stop(&self, why: &str) {
        self.0.end(&ConnectionError::CallerEnded(why.into()));
    }

    /// Accepts no further calls, and fails the pending ones, because a thread of the worker has panicked.
    pub fn stop_in_panic(&self, message: &str) {
        self.0.end(&ConnectionError::Panicked(message.into()));
    }
}

impl Drop for RpcClient {
    fn drop(&mut self) {
        self.stop("the caller ended");
    }
}

impl Links {
    fn all(&self) -> Vec<Arc<Link>> {
        self.links.locked().iter().filter_map(Weak::upgrade).collect()
    }

    /// Fails all pending and later calls.
    fn end(&self, why: &ConnectionError) {
        self.shared.end.get_or_init(|| why.clone());
        self.all().iter().for_each(|link| link.end(why));
    }
}

impl Target for Links {
    fn thread_ended(self: Arc<Self>, why: &ServerFailure) {
        // No thread reads responses or checks deadlines any more.
        self.end(&match why {
            ServerFailure::Stopped => ConnectionError::CallerEnded("the caller ended".into()),
            other => ConnectionError::Panicked(failure_text(other).into()),
        });
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shared.io.remove(self.token);
    }
}

/// Parameters of a call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Name of the handler.
    pub handler: &'a str,
    /// Timeout; `None` waits as long as the worker responds to pings.
    pub timeout: Option<Duration>,
    /// Token that ends a blocking call.
    pub token: Option<&'a CancelToken>,
}

impl<'a> Call<'a> {
    /// Creates the parameters of a call of this handler without a timeout.
    pub const fn of(handler: &'a str) -> Self {
        Self { handler, timeout: None, token: None }
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
pub struct RpcPeer(Arc<Link>);

impl RpcPeer {
    /// The callee.
    pub fn worker(&self) -> &WorkerInfo {
        &self.0.worker
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
        if call.token.is_some_and(CancelToken::is_cancelled) {
            return Err(CallFailure::Cancelled.of(call.handler, self.worker()));
        }
        let (reply, awaited) = oneshot::channel();
        let (target, driven) =
            self.begin(CallKind::Responded, call, payload, Completion::Waiter(reply), Driven::ByItself)?;
        let guard = call.token.map(|token| {
            let target = target.clone();
            token.on_cancel(move || _ = target.cancel())
        });
        if driven == Driven::ByItself {
            target.link.drive(target.id);
        }
        let result = awaited.recv_timeout(FOREVER);
        // Cancelling a call releases borrowed bytes, which runs the program's code, and that may wait for this thread.
        // The hook of an ended call cancels nothing.
        guard.into_iter().for_each(CancelGuard::let_go);
        result.unwrap_or_else(|_| Err(LOST.of(call.handler, self.worker())))
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
        let home = self.0.shared.home.clone();
        let callback = move |result| home.run(CallSite::Callback, || callback(result));
        let completion = Completion::Callback(Box::new(callback));
        let begun = self.begin(CallKind::Responded, call, payload.into(), completion, Driven::ByThread);
        begun.map(|(target, _)| target)
    }

    /// Makes a one-way call. Its arrival is not reported; `mark` is dropped when its last byte is written.
    ///
    /// # Errors
    /// The call was not made, and nothing of it will be sent.
    pub(in crate::driver) fn notify(
        &self,
        call: Call<'_>,
        payload: impl Into<Payload>,
        mark: Mark,
    ) -> Result<(), CallError> {
        let completion = Completion::Unowned(mark);
        self.begin(CallKind::OneWay, call, payload.into(), completion, Driven::ByThread).map(drop)
    }

    fn begin(
        &self,
        kind: CallKind,
        call: Call<'_>,
        payload: Payload,
        completion: Completion,
        call_mode: Driven,
    ) -> Result<(CallCanceller, Driven), CallError> {
        let Call { handler, timeout, .. } = call;
        let shared = &self.0.shared;
        if let Some(why) = shared.end.get() {
            return Err(CallFailure::Unsent(why.clone()).of(handler, self.worker()));
        }
        let deadline = timeout.map(|timeout| shared.io.clock.now() + timeout);
        let wanted = Wanted { handler, deadline, kind };
        let (id, driven) = self.0.begin(wanted, payload, completion, call_mode)?;
        Ok((CallCanceller { link: Arc::clone(&self.0), id }, driven))
    }
}

/// Failure of a call whose result was dropped.
const LOST: CallFailure = CallFailure::ConnectionLost(ConnectionError::Closed);

/// Practically unlimited; the wait ends with the call's own deadline, or with the worker.
const FOREVER: Duration = Duration::from_secs(1 << 31);

/// Handle that cancels one call, from any thread. It keeps the connection open.
#[derive(Clone, Debug)]
pub struct CallCanceller {
    link: Arc<Link>,
    id: u64,
}

impl CallCanceller {
    /// Cancels the call; returns true if it had not ended.
    pub fn cancel(&self) -> bool {
        self.link.cancel(self.id)
    }
}
