//! Worker of a group with the backend `tcp`.

use super::liveness_watcher::LivenessWatcher;
use super::shared::{Callee, GroupCallError, GroupShared};
use super::steps::{StepStore, execute};
use super::store_connection::{auth_token_of, open_store};
use super::worker_threads::GroupThreads;
use super::{
    AlreadyObserved, Begun, CallSpec, GroupResult, Listener, OnResult, PendingCall, RpcInitError, RpcWorker,
};
#[cfg(test)]
use crate::agent::ControlCall;
use crate::agent::{Agent, GroupEvent, HANDLERS, Input, liveness_key};
use crate::connection::{RefusalObserver, Status};
use crate::device::{Device, DeviceKind};
use crate::device_map::{DeviceMaps, NodeDevices};
pub use crate::driver::calls::calling::CallCanceller;
use crate::driver::calls::calling::{Call, CallGuard};
use crate::driver::calls::handling::{Handling, Request, Responder, Run};
use crate::driver::calls::serving::{RpcServer, RpcServerOptions};
use crate::driver::calls::{GroupToken, Payload, RpcTls, failure_text};
use crate::handlers::{Callers, HandlerError, Owner};
use crate::limits::{ConnectionLimits, IntakeLimits, RpcLimits};
use crate::membership::change::WorkerLocation;
use crate::membership::error::{MembershipError, unless_abandoned};
use crate::membership::token::TokenTimes;
use crate::membership::{Liveness, Member, MemberOptions, group_id};
use crate::name::WorkerInfo;
use crate::options::RpcOptions;
use crate::shutdown::Shutdown;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::random::random_seed;
use rendezvous_core::driver::server::{Family, Listen};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::socket::endpoint_text;
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::tls::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsError, TlsServerOptions};
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::tls::Protocol;
use std::net::UdpSocket;

/// Timeout of joining and leaving if calls have none.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time after the state machine's own deadlines when its end is given up.
const END_SLACK: Duration = Duration::from_secs(30);

/// Files of the TLS of a worker, which accepts connections and makes some.
#[derive(Clone, Debug)]
pub struct GroupTls {
    /// TLS of connections that other workers make.
    pub server: TlsServerOptions,
    /// TLS of connections to other workers. It is used for the store, too, but for the name of the server.
    pub client: TlsClientOptions,
}

/// Options of a worker with the backend `tcp`, in addition to [`RpcOptions`].
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Address of this host at which the worker accepts calls. `None` uses the one by which it reaches the store's
    /// host, or the loopback address if the store has no host.
    pub host: Option<String>,
    /// Number of its devices of the group's kind.
    pub device_count: u32,
    /// Kind of device that the group counts.
    pub accelerator: DeviceKind,
    /// Timeout of joining, and of leaving; `None` uses that of a call.
    pub membership_timeout: Option<Duration>,
    /// Handlers that exist before any worker can call.
    pub handling: Option<Arc<Handling>>,
    /// Times of the heartbeats of a worker that changes a dynamic group.
    pub times: TokenTimes,
    /// Gets the connections and calls that the worker refuses.
    pub observer: RefusalObserver,
    /// TLS of the calls between workers; `None`: they are not encrypted. All workers of a group need it.
    pub tls: Option<GroupTls>,
    /// Tokens that the workers prove to each other; `None`: those of the store, if its session proves one. All workers of a
    /// group need the same.
    pub auth_token: Option<ClientToken>,
    /// Ends the call that creates the worker. A cancelled join is undone at the workers that were already notified.
    pub token: CancelToken,
}

impl GroupTls {
    /// Reads the files: for calls, and for the store.
    fn load(&self) -> Result<(RpcTls, TlsConnector), TlsError> {
        let Self { server, client } = self;
        let acceptor = TlsAcceptor::of(server.clone(), Protocol::Rpc)?;
        let connector = TlsConnector::of(client.clone(), Protocol::Rpc)?;
        let of_store = TlsConnector::new(TlsClientOptions { server_name: None, ..client.clone() })?;
        Ok((RpcTls { acceptor, connector }, of_store))
    }
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            host: None,
            device_count: 0,
            accelerator: DeviceKind::CUDA,
            membership_timeout: None,
            handling: None,
            times: TokenTimes::default(),
            observer: RefusalObserver::default(),
            tls: None,
            auth_token: None,
            token: CancelToken::new(),
        }
    }
}

/// Worker of a group. Dropping it ends it abruptly, even within one of its own handlers or callbacks.
#[derive(Debug)]
pub struct RpcAgent {
    me: WorkerInfo,
    address: Box<str>,
    rpc_timeout: Option<Duration>,
    membership_timeout: Duration,
    shared: Arc<GroupShared>,
    handling: Arc<Handling>,
    server: RpcServer,
    store: Arc<StepStore>,
    liveness_watcher: Arc<Mutex<Option<LivenessWatcher>>>,
    group_threads: Mutex<GroupThreads>,
    reserved: Mutex<Option<Reserved>>,
    /// Whether a thread is closing it, or has.
    is_closing: AtomicBool,
}

impl RpcAgent {
    /// Creates a worker, and returns once it is a member of its group. `store` is the group's; the worker uses a
    /// connection of its own.
    ///
    /// # Errors
    /// It is not a member, and nothing is left of it here.
    pub fn start(
        store: &Store,
        me: WorkerInfo,
        world_size: Option<u16>,
        options: &RpcOptions,
        tcp: &TcpOptions,
    ) -> Result<Self, RpcInitError> {
        let rpc_timeout = options.rpc_timeout();
        let membership_timeout = tcp.membership_timeout.or(rpc_timeout).unwrap_or(TIMEOUT);
        let worker_threads = usize::try_from(options.worker_threads()).unwrap_or(usize::MAX);
        let handling = tcp.handling.clone().unwrap_or_else(|| Handling::new(worker_threads));
        let shared = GroupShared::new();
        let (rpc_tls, store_tls) = match tcp.tls.as_ref().map(GroupTls::load).transpose()? {
            Some((rpc_tls, store_tls)) => (Some(rpc_tls), Some(store_tls)),
            None => (None, None),
        };
        let reserved = Reserved::register(&handling, &shared)?;
        let host = tcp.host.clone().unwrap_or_else(|| host_towards(store));
        let scope = store.scope().to_vec();
        // Ends the worker's store operations. While the worker starts, a cancel of that does so, too.
        let (token, starts) = (CancelToken::new(), &tcp.token);
        let ends = token.clone();
        let start_guard = starts.on_cancel(move || ends.cancel());
        // After a cancellation, that is the reason, whatever error the cancelled step has.
        let go_on = || match starts.is_cancelled() {
            true => Err(MembershipError::Cancelled),
            false => Ok(()),
        };
        let local = open_store(store, &me.name, store_tls, &token);
        go_on()?;
        let group_token = tcp.auth_token.clone().or_else(|| auth_token_of(store));
        let group_token = group_token.map(|file| Arc::new(GroupToken::new(file, tcp.observer.clone())));
        let (store, has_session) = local?;
        // A key is deleted with the session that made it.
        let liveness = if has_session { Liveness::Keys } else { Liveness::Unknown };
        store.set_timeout(membership_timeout);
        let store = Arc::new(store);
        let id = execute(&store, shared.clock(), &group_id::ask(random_seed()));
        go_on()?;
        let group = group_id::group_id_from(&scope, id)?;
        let weak = Arc::downgrade(&shared);
        let admit = move |claimed: &WorkerInfo| weak.upgrade().map_or(Ok(()), |shared| shared.admit(claimed));
        let server = RpcServerOptions {
            listen: Listen::Address { host: host.clone(), port: 0, family: Family::AsGiven },
            me: me.clone(),
            group,
            admit: Box::new(admit),
            limits: RpcLimits::default(),
            intake: IntakeLimits::default(),
            connections: ConnectionLimits::default(),
            keep_alive: Some(KeepAlive::default()),
            observer: tcp.observer.clone(),
            tls: rpc_tls,
            token: group_token,
        };
        let weak = Arc::downgrade(&shared);
        let server = RpcServer::start_watched(server, Arc::clone(&handling), move |failure| {
            if let Some(shared) = weak.upgrade() {
                shared.panicked(&failure_text(failure));
            }
        })?;
        let address: Box<str> = endpoint_text(&host, server.local_addr().port()).into();
        let devices = NodeDevices {
            count: tcp.device_count,
            maps: options.device_maps().clone(),
            devices: options.devices().to_vec(),
        };
        let member = Member { worker: me.clone(), address: address.clone(), devices };
        let machine = MemberOptions {
            member,
            accelerator: tcp.accelerator,
            timeout: membership_timeout,
            times: tcp.times,
            liveness,
            nonce: random_seed(),
        };
        let machine = Agent::new(shared.clock().now(), machine, world_size)?;
        let (liveness_key, here) = (machine.liveness_key().key(), liveness_key::here(me.id));
        shared.begin(machine, server.client());
        let liveness_watcher = match liveness {
            Liveness::Keys => {
                let liveness_watcher = LivenessWatcher::begin(&store, (&liveness_key, &here), &shared);
                go_on()?;
                Some(liveness_watcher?)
            }
            Liveness::Unknown => None,
        };
        let liveness_watcher = Arc::new(Mutex::new(liveness_watcher));
        // From here on, a cancel undoes the join, which needs the store.
        drop(start_guard);
        let store = Arc::new(StepStore::new(store, token));
        let group_threads = GroupThreads::start(
            &shared,
            Arc::clone(&store),
            Arc::clone(&liveness_watcher),
            server.admission(),
        )
        .map_err(RpcInitError::System)?;
        let agent = Self {
            me,
            address,
            rpc_timeout,
            membership_timeout,
            shared,
            handling,
            server,
            store,
            liveness_watcher,
            group_threads: Mutex::new(group_threads),
            reserved: Mutex::new(Some(reserved)),
            is_closing: AtomicBool::new(false),
        };
        agent.wait_until_joined(starts)?;
        Ok(agent)
    }

    fn wait_until_joined(&self, token: &CancelToken) -> Result<(), RpcInitError> {
        let cancelled = Arc::clone(&self.shared);
        let _guard = token.on_cancel(move || cancelled.cancel_join());
        let clock = self.shared.clock();
        let until = clock.now() + self.membership_timeout * 2 + END_SLACK;
        // If the state machine's own deadlines have passed, the store does not respond.
        let stuck = || RpcInitError::Stuck { store: self.store.current().peer().into() };
        Ok(self.shared.wait_joined(until).ok_or_else(stuck)??)
    }

    /// Address at which it accepts calls.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Timeout of joining, and of leaving.
    pub(super) const fn membership_timeout(&self) -> Duration {
        self.membership_timeout
    }

    /// Registers a handler. Others may have called it before: [`TcpOptions::handling`] has those that must exist from
    /// the start.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register(
        &self,
        name: &str,
        run: Run,
        call: impl Fn(Request, Responder) + Send + Sync + 'static,
    ) -> Result<(), HandlerError> {
        self.handling.register(name, run, call)
    }

    /// Its handlers.
    #[must_use]
    pub const fn handling(&self) -> &Arc<Handling> {
        &self.handling
    }

    fn method_timeout<'a>(&self, handler: &'a str, timeout: Option<Duration>) -> Call<'a> {
        Call { timeout: timeout.or(self.rpc_timeout), ..Call::of(handler) }
    }

    /// Calls a worker and waits for the response, with the timeout of the options if none is given. Refused in inline
    /// handlers and callbacks, which may not wait.
    ///
    /// # Errors
    /// The call failed.
    pub fn call<'a>(
        &self,
        callee: impl Into<Callee<'a>>,
        handler: &str,
        payload: impl Into<Payload>,
        timeout: Option<Duration>,
    ) -> GroupResult {
        let call = CallSpec { callee: callee.into(), handler, payload: payload.into(), timeout };
        self.call_unless(&CancelToken::new(), call)
    }

    /// As [`RpcAgent::call`], until `token` is cancelled.
    ///
    /// # Errors
    /// The call failed.
    pub fn call_unless(&self, token: &CancelToken, call: CallSpec<'_>) -> GroupResult {
        let (peer, mark) = self.shared.route_to(call.callee)?;
        let method = Call { token: Some(token), ..self.method_timeout(call.handler, call.timeout) };
        let result = peer.call(method, call.payload);
        mark.ended(&result);
        Ok(result?)
    }

    /// Makes a call without waiting for the response.
    ///
    /// # Errors
    /// It was not made.
    pub fn start_call<'a>(
        &self,
        callee: impl Into<Callee<'a>>,
        handler: &str,
        payload: impl Into<Payload>,
        timeout: Option<Duration>,
    ) -> Result<PendingCall, GroupCallError> {
        let call = CallSpec { callee: callee.into(), handler, payload: payload.into(), timeout };
        (self as &dyn RpcWorker).start_call(call)
    }

    /// Returns all workers of the group with their addresses, in the order of their numbers.
    pub fn seen_workers(&self) -> Vec<WorkerLocation> {
        let seen = self.shared.with_agent(|agent| {
            let mut seen: Vec<WorkerLocation> = Vec::with_capacity(agent.members().len());
            for member in agent.members().iter() {
                let index = seen.partition_point(|known| known.worker.id < member.worker.id);
                seen.insert(index, member.location());
            }
            seen
        });
        seen.unwrap_or_default()
    }

    /// Returns the reverse maps of this worker's responses: the inverse of the other workers' maps for this one.
    pub fn reverse_maps(&self) -> DeviceMaps {
        self.shared.with_agent(|agent| agent.group().reverse_maps(&self.me.name)).unwrap_or_default()
    }

    /// Returns the devices that this worker uses, sorted by their indices.
    pub fn devices(&self) -> Vec<Device> {
        self.shared.with_agent(|agent| agent.group().devices(&self.me.name)).unwrap_or_default()
    }

    /// Returns the next event of the group, or `None` after `timeout`, if `token` is cancelled, or if this worker is not
    /// in its group any more. If several threads wait, each gets another event.
    pub fn next_event(&self, timeout: Duration, token: &CancelToken) -> Option<GroupEvent> {
        self.shared.next_event(timeout, token)
    }

    /// Number of events that were dropped because they were not taken.
    pub fn events_lost(&self) -> u64 {
        self.shared.events_lost()
    }

    /// Returns how it ended, if it has and that was not returned before.
    pub fn take_end(&self) -> Option<Result<(), MembershipError>> {
        self.end().filter(|_| self.shared.take_end_once())
    }

    /// Returns how it ended, if it has.
    pub fn end(&self) -> Option<Result<(), MembershipError>> {
        self.shared.wait_over(self.shared.clock().now())
    }

    /// Simulates the end of its session with the store.
    #[cfg(test)]
    pub(super) fn drop_liveness(&self) -> Option<LivenessWatcher> {
        self.liveness_watcher.locked().take()
    }

    /// Calls a member as the state machine does to check whether it is alive, with this timeout.
    #[cfg(test)]
    pub(super) fn suspicion(&self, name: &str, timeout: Duration) {
        let to = self.shared.with_agent(|agent| agent.callee(name).map(Member::location));
        let to = to.expect("a machine").expect("a member");
        let (until, handler) = (self.shared.clock().now() + timeout, crate::agent::REACH_HANDLER);
        let call = ControlCall { number: u64::MAX, to, handler, payload: Box::default(), until };
        self.shared.call(call);
    }

    /// Returns how it ended, or `None` after `timeout`.
    #[cfg(test)]
    pub(in crate::driver) fn await_end(&self, timeout: Duration) -> Option<Result<(), MembershipError>> {
        self.shared.wait_over(self.shared.clock().now() + timeout)
    }

    /// Runs this once while the route of a call is being created.
    #[cfg(test)]
    pub(super) fn between(&self, happen: impl FnOnce() + Send + 'static) {
        self.shared.set_between(happen);
    }

    /// Workers to which there are routes.
    #[cfg(test)]
    pub(super) fn routes(&self) -> Vec<WorkerInfo> {
        self.shared.routes()
    }

    /// Forgets all routes.
    #[cfg(test)]
    pub(super) fn forget_routes(&self) {
        self.shared.forget_routes();
    }

    /// Simulates the panic of a thread of the library.
    #[cfg(test)]
    pub(super) fn panicked(&self, message: &str) {
        self.shared.panicked(message);
    }

    /// Closes everything.
    fn close(&self, how: Shutdown) {
        let now = || self.shared.clock().now();
        // In a graceful end, the requests of others are completed, which may take as long as the steps before.
        let until = match how {
            Shutdown::Graceful => now() + self.membership_timeout,
            Shutdown::Abrupt => now(),
        };
        if how == Shutdown::Graceful {
            let _ = self.server.leave(self.membership_timeout);
        }
        self.shared.parted();
        self.shared.close();
        self.server.begin_to_stop();
        if self.is_closing.swap(true, Ordering::AcqRel) && self.handling.is_around() {
            // Another thread waits for the thread that this code runs on.
            return;
        }
        self.server.stop();
        // What handlers use may be dropped when this returns.
        let _ = self.handling.finish(until.since(now()), END_SLACK);
        self.store.cancel();
        // The thread that holds the lock joins the threads; code that runs on one of them must not wait for that.
        let group_threads = if self.handling.is_around() {
            self.group_threads.try_lock().ok()
        } else {
            Some(self.group_threads.locked())
        };
        if let Some(mut group_threads) = group_threads {
            group_threads.join();
        }
        drop(self.liveness_watcher.locked().take());
        drop(self.reserved.locked().take());
    }
}

impl Drop for RpcAgent {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl RpcWorker for RpcAgent {
    fn me(&self) -> &WorkerInfo {
        &self.me
    }

    fn workers(&self) -> Result<Vec<WorkerInfo>, MembershipError> {
        Ok(self.seen_workers().into_iter().map(|seen| seen.worker).collect())
    }

    /// In a graceful end this worker's calls, its leave, and the requests of others have
    /// [`TcpOptions::membership_timeout`] each. Then requests that have not begun are rejected, and running pooled handlers
    /// are waited for, up to 30 s. A second call changes nothing, and returns how it ended.
    fn shutdown(&self, how: Shutdown) -> Result<(), MembershipError> {
        if self.handling.is_around() {
            return Err(MembershipError::Reentrant);
        }
        let ended_before = self.end();
        if ended_before.is_none() {
            self.shared.push_input(match how {
                Shutdown::Graceful => Input::Leave,
                Shutdown::Abrupt => Input::Abandon,
            });
        }
        // Draining and leaving have a deadline each.
        let until = self.shared.clock().now() + self.membership_timeout * 2 + END_SLACK;
        let end = self.shared.wait_over(until).unwrap_or_else(|| {
            self.shared.push_input(Input::Abandon);
            Err(MembershipError::Stuck { store: self.store.current().peer().into() })
        });
        self.close(how);
        match how {
            Shutdown::Graceful => end,
            Shutdown::Abrupt => unless_abandoned(end),
        }
    }

    fn abandon(&self) {
        if self.end().is_none() {
            self.shared.push_input(Input::Abandon);
        }
        self.close(Shutdown::Abrupt);
    }

    fn is_calling_back(&self) -> bool {
        self.handling.is_around()
    }

    fn end(&self) -> Option<Result<(), MembershipError>> {
        Self::end(self).map(unless_abandoned)
    }

    fn begin_call(&self, call: CallSpec<'_>, on_result: OnResult) -> Result<Begun, GroupCallError> {
        let (peer, mark) = self.shared.route_to(call.callee)?;
        let callback = move |result: Result<Vec<u8>, _>| {
            mark.ended(&result);
            on_result(result.map_err(GroupCallError::from));
            drop(mark);
        };
        let method = self.method_timeout(call.handler, call.timeout);
        Ok(Begun::Kept(peer.start_with(method, call.payload, callback)?))
    }

    fn begin_notify(&self, call: CallSpec<'_>) -> Result<(), GroupCallError> {
        let (peer, mark) = self.shared.route_to(call.callee)?;
        let method = self.method_timeout(call.handler, call.timeout);
        Ok(peer.notify(method, call.payload, Some(Box::new(mark)))?)
    }

    fn listen(&self, group_listener: Arc<dyn Listener>) -> Result<(), AlreadyObserved> {
        self.shared.listen(group_listener)
    }

    fn listen_no_more(&self) {
        self.shared.listen_no_more();
    }

    fn tcp(&self) -> Option<&RpcAgent> {
        Some(self)
    }
}

/// Registration of the library's own handlers.
#[derive(Debug)]
struct Reserved(Arc<Handling>);

impl Reserved {
    fn register(handling: &Arc<Handling>, shared: &Arc<GroupShared>) -> Result<Self, HandlerError> {
        for name in HANDLERS {
            let weak = Arc::downgrade(shared);
            let called = move |request: Request, responder: Responder| match weak.upgrade() {
                Some(shared) => shared.called(request, responder),
                None => responder.decline(Status::Leaving, ""),
            };
            // If another worker uses the handlers, the first name is taken already.
            handling.register_as(
                (Owner::Library, Callers::default()),
                name,
                Run::Inline,
                Box::new(called),
            )?;
        }
        Ok(Self(Arc::clone(handling)))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        for name in HANDLERS {
            self.0.remove_as(Owner::Library, name);
        }
    }
}

/// Returns the address by which this host reaches the store's. Nothing is sent.
fn host_towards(store: &Store) -> String {
    let found = store.endpoint().and_then(|(host, port)| {
        let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0")).ok()?;
        let connected = socket.connect((host, port)).or_else(|_| {
            // A socket for IPv6 may not support IPv4.
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect((host, port))
        });
        connected.ok()?;
        socket.local_addr().ok()
    });
    let address = found.map(|address| address.ip().to_canonical());
    address.filter(|ip| !ip.is_unspecified()).unwrap_or(IpAddr::from([127, 0, 0, 1])).to_string()
}
