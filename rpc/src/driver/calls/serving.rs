//! Server of a worker: it accepts connections, reads them, and passes requests to handlers.

mod conn;

use super::calling::{RpcClient, RpcClientOptions};
use super::handling::{Handling, Held, Holder};
use super::io_thread::{IoShared, IoThread, Target};
use super::received::{BufferPool, LONG_BYTES_MIN};
use super::transport::{GroupToken, RpcTls};
use crate::connection::{ConnectionError, Refusal, RefusalEvent, RefusalObserver};
use crate::intake::{FairIntake, QuotaId, Released};
use crate::limits::{ConnectionLimits, IntakeLimits, RpcLimits};
use crate::name::WorkerInfo;
use alloc::sync::Weak;
use conn::Conn;
use core::net::SocketAddr;
use rendezvous_core::driver::event_loop::{Interest, Ready, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::server::{Listen, ServerFailure, StartError, open_listener};
use rendezvous_core::driver::socket::{KeepAlive, is_newcomers_fault, within_descriptors};
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::ordered::Map;
use rendezvous_core::ungreeted::Ungreeted;
use socket2::Socket;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// Maximum number of connections accepted at once, so that many new ones do not starve the others.
const ACCEPTS_PER_ITERATION: usize = 128;
/// Pause before accepting is tried again after a failure that concerns not only one connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Decides whether a worker that connects is accepted, or returns the reason and a message. It is called on the thread
/// that serves all connections, and must not block.
pub type Admit = dyn Fn(&WorkerInfo) -> Result<(), (Refusal, Box<str>)> + Send + Sync;

/// Options of an [`RpcServer`].
pub struct RpcServerOptions {
    /// Address to listen at.
    pub listen: Listen,
    /// Name and number of this worker.
    pub me: WorkerInfo,
    /// Id of the group that callers must be in.
    pub group: Vec<u8>,
    /// Decides which workers may call.
    pub admit: Box<Admit>,
    /// Limits of each connection.
    pub limits: RpcLimits,
    /// Limits of what all connections together send.
    pub intake: IntakeLimits,
    /// Limits of the connections themselves.
    pub connections: ConnectionLimits,
    /// TCP keep-alive, which detects silent hosts; `None` leaves the system's defaults.
    pub keep_alive: Option<KeepAlive>,
    /// Gets the connections and calls that the worker refuses.
    pub observer: RefusalObserver,
    /// TLS. If set, callers must use it.
    pub tls: Option<RpcTls>,
    /// Token that callers must prove; `None`: none. Those who call with [`RpcServer::client`] require it of callees, too.
    pub token: Option<Arc<GroupToken>>,
}

opaque_debug!(RpcServerOptions);

/// Server of a worker. Dropping it ends it at once.
#[derive(Debug)]
pub struct RpcServer {
    local_addr: SocketAddr,
    shared: Arc<ServerShared>,
    thread: IoThread,
}

impl RpcServer {
    /// Starts to listen, with the handlers of `handling`. When this returns, callers can connect.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn start(options: RpcServerOptions, handling: Arc<Handling>) -> Result<Self, StartError> {
        Self::start_watched(options, handling, |_| ())
    }

    /// Starts a server that calls `failed` on its thread if it ends without having been stopped.
    ///
    /// # Errors
    /// As [`RpcServer::start`].
    pub fn start_watched(
        options: RpcServerOptions,
        handling: Arc<Handling>,
        failed: impl FnOnce(&ServerFailure) + Send + 'static,
    ) -> Result<Self, StartError> {
        let listener = open_listener(&options.listen, options.keep_alive)?;
        let no_system = |cause| StartError::io(&options.listen, cause);
        let local_addr = listener.local_addr().map_err(no_system)?;
        let thread = IoThread::start(failed).map_err(no_system)?;
        let io = Arc::clone(thread.shared());
        let ungreeted = Ungreeted::new(within_descriptors(options.connections.ungreeted));
        let shared = Arc::new_cyclic(|server: &Weak<ServerShared>| ServerShared {
            intake: Mutex::new(FairIntake::new(options.intake)),
            options,
            handling,
            buffer_pool: Arc::default(),
            token: io.add(server.clone()),
            state: Mutex::new(ServerState {
                acceptor: Some(Acceptor { watch: None, listener }),
                conns: Map::new(),
                ungreeted,
                unread: Vec::new(),
                leave_request: None,
                leaving: None,
            }),
            io,
        });
        let is_open = shared.options.token.is_none() && shared.options.tls.is_none();
        if is_open && !local_addr.ip().to_canonical().is_loopback() {
            shared.report(&RefusalEvent::Exposed { addr: local_addr });
        }
        // The first accept watches the listener.
        shared.io.schedule(Instant::ORIGIN, shared.token);
        Ok(Self { local_addr, shared, thread })
    }

    /// Creates a client of the same worker, whose connections are driven by the same thread.
    pub fn client(&self) -> RpcClient {
        let ServerShared {
            options: RpcServerOptions { me, group, limits, keep_alive, tls, token, .. }, ..
        } = &*self.shared;
        let tls = tls.as_ref().map(|tls| tls.connector.clone());
        let (me, group, token) = (me.clone(), group.clone(), token.clone());
        let options = RpcClientOptions { me, group, limits: *limits, keep_alive: *keep_alive, tls, token };
        RpcClient::on_thread(options, &self.shared.io, self.shared.handling.home().clone())
    }

    /// The address it is bound to, with the port that the system chose.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Reason why it has ended; `None` while it runs.
    pub fn failure(&self) -> Option<ServerFailure> {
        self.shared.io.failure().cloned()
    }

    /// Returns the number of accepted requests, their bytes, and the number of connections.
    pub fn held(&self) -> (u64, u64, usize) {
        let (requests, bytes) = self.shared.intake().held();
        (requests, bytes, self.shared.state.locked().conns.len())
    }

    /// Returns a handle that rechecks which workers are admitted.
    pub fn admission(&self) -> Admission {
        Admission(Arc::downgrade(&self.shared))
    }

    /// Accepts no further requests or connections, and waits until the pending requests have their responses. Returns
    /// whether they had within `timeout`; the server completes the others until it is dropped.
    pub fn leave(&self, timeout: Duration) -> bool {
        let (reply, answer) = oneshot::channel();
        self.shared.state.locked().leave_request = Some(reply);
        self.shared.io.schedule(Instant::ORIGIN, self.shared.token);
        if self.failure().is_some() {
            // The thread may not have seen the request.
            self.shared.state.locked().leave_request = None;
        }
        answer.recv_timeout(timeout).is_ok()
    }

    /// Starts to end at once, without waiting.
    pub fn begin_to_stop(&self) {
        self.thread.begin_to_stop();
    }

    /// Ends at once: connections are closed, and requests are given up. If a handler calls this, the thread ends when
    /// the handler has returned.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

/// Handle of a server for code that knows when admission has changed.
#[derive(Clone, Debug)]
pub struct Admission(Weak<ServerShared>);

impl Admission {
    /// Calls [`RpcServerOptions::admit`] again for each connected worker, and closes the connections of those that it
    /// refuses.
    pub fn ask_again(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        for conn in shared.conns() {
            conn.change(shared.io.clock.now(), |state| state.admit_again(&*shared.options.admit));
        }
    }
}

struct ServerShared {
    options: RpcServerOptions,
    intake: Mutex<FairIntake>,
    handling: Arc<Handling>,
    buffer_pool: Arc<BufferPool>,
    io: Arc<IoShared>,
    token: usize,
    /// Never locked while a connection is being locked.
    state: Mutex<ServerState>,
}

struct ServerState {
    acceptor: Option<Acceptor>,
    /// Open connections by their tokens.
    conns: Map<usize, Arc<Conn>>,
    /// Those whose callers have not been admitted.
    ungreeted: Ungreeted,
    /// Connections that are not read until there is capacity.
    unread: Vec<Arc<Conn>>,
    /// The thread is to say goodbye to all callers.
    leave_request: Option<oneshot::Sender<()>>,
    /// It has said goodbye. The reply is due when there are no connections.
    leaving: Option<oneshot::Sender<()>>,
}

struct Acceptor {
    /// `None` while accepting is paused.
    watch: Option<Watch>,
    listener: TcpListener,
}

opaque_debug!(ServerShared);

impl ServerShared {
    fn intake(&self) -> MutexGuard<'_, FairIntake> {
        self.intake.locked()
    }

    fn take_in(self: &Arc<Self>, quota: QuotaId, payload_bytes: u64) -> Held {
        let counted = self.intake().enter(quota, payload_bytes);
        Held { holder: Arc::<Self>::clone(self), quota, payload_bytes, counted }
    }

    /// Schedules the end of the pool of buffers, which a request of this many bytes has just used.
    fn schedule_pool_end(&self, payload_bytes: u64) {
        if let (true, Some(at)) = (payload_bytes >= LONG_BYTES_MIN as u64, self.buffer_pool.until()) {
            self.io.schedule(at, self.token);
        }
    }

    fn report(&self, event: &RefusalEvent) {
        self.options.observer.notify(event);
    }

    fn conns(&self) -> Vec<Arc<Conn>> {
        self.state.locked().conns.iter().map(|(_, conn)| Arc::clone(conn)).collect()
    }

    fn accept(self: &Arc<Self>, now: Instant) {
        for _ in 0..ACCEPTS_PER_ITERATION {
            let mut state = self.state.locked();
            let accepts_at = state.ungreeted.accepts_at().filter(|&at| at > now);
            let Some(Acceptor { watch, listener }) = &mut state.acceptor else { return };
            if let Some(at) = accepts_at {
                *watch = None;
                return self.io.schedule(at, self.token);
            }
            match listener.accept() {
                Ok((stream, peer)) => {
                    drop(state);
                    self.add_conn(now, stream.into(), peer);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if watch.is_none() {
                        *watch = self.io.watch(listener.as_raw_fd(), Interest::Read, self.token).ok();
                    }
                    if watch.is_none() {
                        self.io.schedule(now + ACCEPT_PAUSE, self.token);
                    }
                    return;
                }
                Err(error) if is_newcomers_fault(&error) => {}
                Err(_) => {
                    // No descriptor or memory is left; there may be later. Until then the listener is not watched.
                    *watch = None;
                    self.io.schedule(now + ACCEPT_PAUSE, self.token);
                    let overdue =
                        state.ungreeted.oldest_past_minimum(now).and_then(|token| state.conn(token));
                    drop(state);
                    overdue.inspect(|conn| conn.displace(now));
                    return;
                }
            }
        }
        self.accept_again(&self.state.locked());
    }

    /// Schedules another attempt to accept, if the listener is not watched.
    fn accept_again(&self, state: &ServerState) {
        if state.acceptor.as_ref().is_some_and(|acceptor| acceptor.watch.is_none()) {
            self.io.schedule(Instant::ORIGIN, self.token);
        }
    }

    fn add_conn(self: &Arc<Self>, now: Instant, socket: Socket, peer: SocketAddr) {
        let state = self.state.locked();
        let count_max = self.options.connections.count_max;
        let is_full = state.conns.len() >= count_max;
        let overdue = state.ungreeted.oldest_past_minimum(now).filter(|_| is_full);
        let oldest = state.ungreeted.oldest_if_full().or(overdue).and_then(|token| state.conn(token));
        drop(state);
        if let Some(oldest) = oldest {
            oldest.displace(now);
        } else if is_full {
            let why = ConnectionError::TooManyConnections(count_max);
            return self.report(&RefusalEvent::Connection { peer: Some(peer), caller: None, why });
        }
        if socket.set_nonblocking(true).is_ok() {
            if let Some(tls) = &self.options.tls {
                // Files that cannot be used leave the earlier certificates in use.
                tls.acceptor.renew();
            }
            let conn = Conn::new(self, now, socket, peer);
            let mut state = self.state.locked();
            state.conns.insert(conn.token(), Arc::clone(&conn));
            state.ungreeted.accepted(conn.token() as u64, now);
            drop(state);
            conn.change(now, |_| ());
        }
    }

    /// Notes that the caller of a connection has been admitted.
    fn greeted(&self, conn: &Conn) {
        let mut state = self.state.locked();
        state.ungreeted.remove(conn.token() as u64);
        self.accept_again(&state);
    }

    /// Removes a closed connection.
    fn remove_conn(&self, conn: &Conn) {
        let mut state = self.state.locked();
        state.unread.retain(|held| held.token() != conn.token());
        let removed = state.conns.remove(conn.token());
        state.ungreeted.remove(conn.token() as u64);
        // A descriptor is free again.
        self.accept_again(&state);
        state.finish_leaving();
        drop(state);
        drop(removed);
    }

    /// Reads connections that were held up, as far as there is capacity.
    fn read_on(&self, now: Instant) {
        let unread = core::mem::take(&mut self.state.locked().unread);
        for conn in unread {
            if conn.has_capacity() {
                conn.change(now, |state| state.callee.go_on());
            } else {
                self.state.locked().unread.push(conn);
            }
        }
    }

    fn say_goodbye(self: &Arc<Self>, now: Instant, reply: oneshot::Sender<()>, scratch: &mut Vec<u8>) {
        // Callers whose connections wait to be accepted are refused with the reason, or what they have sent is accepted.
        self.accept(now);
        let mut state = self.state.locked();
        (state.acceptor, state.leaving) = (None, Some(reply));
        drop(state);
        for conn in self.conns() {
            // Available bytes were sent before the goodbye, and may have arrived since the last poll.
            conn.read_ahead(now, scratch);
            conn.change(now, |state| state.callee.goodbye());
        }
        self.state.locked().finish_leaving();
    }
}

impl ServerState {
    fn conn(&self, token: u64) -> Option<Arc<Conn>> {
        usize::try_from(token).ok().and_then(|token| self.conns.get(token)).cloned()
    }

    fn finish_leaving(&mut self) {
        if self.conns.is_empty()
            && let Some(reply) = self.leaving.take()
        {
            reply.send(()).ok();
        }
    }
}

impl Target for ServerShared {
    fn ready(self: Arc<Self>, _: Ready, _: &mut Vec<u8>) {
        self.accept(self.io.clock.now());
    }

    fn tick(self: Arc<Self>, now: Instant, scratch: &mut Vec<u8>) {
        let request = self.state.locked().leave_request.take();
        if let Some(reply) = request {
            self.say_goodbye(now, reply, scratch);
        }
        if self.state.locked().acceptor.as_ref().is_some_and(|acceptor| acceptor.watch.is_none()) {
            self.accept(now);
        }
        if self.intake().take_capacity() {
            self.read_on(now);
        }
        if self.buffer_pool.until().is_some_and(|at| at <= now) {
            self.buffer_pool.close();
        }
    }

    fn thread_ended(self: Arc<Self>, _: &ServerFailure) {
        let mut state = self.state.locked();
        (state.acceptor, state.leave_request, state.leaving) = (None, None, None);
        drop(state);
        self.conns().iter().for_each(|conn| conn.end());
        self.state.locked().unread.clear();
    }
}

impl Drop for ServerShared {
    fn drop(&mut self) {
        self.io.remove(self.token);
    }
}

impl Holder for ServerShared {
    fn let_go(&self, quota: QuotaId, payload_bytes: u64, counted: u64) {
        if self.intake().leave(quota, payload_bytes, counted) == Released::Again {
            self.io.schedule(Instant::ORIGIN, self.token);
        }
    }
}
