//! The `rdzv` backend: the server runs the rounds, and notifies each node at once of changes to its round.

use super::handler::{
    CreateHandler, HandlerError, NODE_NAMES_MAX, NodeStore, Progress, RendezvousHandler, Stage, lock_join,
};
use super::host_name::{full_host_name, host_name};
use super::hosting::{HostSecurity, HostedServers, address_of};
use super::last_rounds::LastRounds;
use super::units::with_units;
use crate::driver::cancel::Canceller;
use crate::driver::last_try::{FailedTry, LastTry};
use crate::driver::native_client::{
    Joined, NativeClient, NativeClientOptions, NativeError, NodeEvent, RunInfo, plain,
};
use crate::driver::prelude::*;
use crate::driver::random::random_seed;
use crate::driver::resolve;
use crate::driver::server::{Server, StartErrorKind};
use crate::driver::socket::endpoint_text;
use crate::driver::store::{Store, Timeouts as StoreTimeouts};
use crate::driver::tls::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsError, TlsServerOptions};
use crate::driver::token_file::{ClientToken, ServerTokens};
use crate::error::{ErrorKind, Operation, Span};
use crate::rendezvous::error::{Backing, RendezvousError, RendezvousErrorKind};
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::participant::{Entry, Role};
use crate::rendezvous::rdzv_settings::{Hosting, RDZV_BACKEND, RdzvSettings, Standby, TlsSettings};
use crate::rendezvous::rejoin::{Action, Input, Reason, Rejoin, Waited};
use crate::rendezvous::round_event::RoundEvent;
use crate::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo, RoundPosition};
use crate::store::op::{Key, Pairs};
use crate::wire::native::FaultCode;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Creator of the backend's handlers.
#[derive(Debug)]
pub struct RdzvBackend {
    servers: Arc<HostedServers>,
    rounds: Arc<LastRounds>,
    /// Number of the next handler: each handler is a node of its own. The first number is random, so that nodes of
    /// two contexts have different names. The same holds for two containers on one host whose processes have the same
    /// process id.
    next: AtomicU32,
}

impl RdzvBackend {
    /// Creates the backend with the servers of a context.
    pub fn new(servers: Arc<HostedServers>) -> Self {
        Self { servers, rounds: Arc::default(), next: AtomicU32::new((random_seed() >> 33) as u32) }
    }
}

impl CreateHandler for RdzvBackend {
    fn name(&self) -> &str {
        "RdzvBackend"
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let settings = RdzvSettings::read(&with_units(parameters)?)?;
        tls_connector(&settings)?;
        let local_id = self.next.fetch_add(1, Ordering::Relaxed);
        let (servers, rounds) = (Arc::clone(&self.servers), Arc::clone(&self.rounds));
        Ok(Box::new(RdzvRendezvous::new(settings, local_id, servers, rounds)))
    }
}

/// Time that a goodbye may take to a server that has never answered. It is not 0 because a live server may be about
/// to answer.
const UNANSWERED_GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// One node's part in a rendezvous at a librendezvous server.
#[derive(Debug)]
pub struct RdzvRendezvous {
    settings: RdzvSettings,
    node: String,
    address: String,
    servers: Arc<HostedServers>,
    rounds: Arc<LastRounds>,
    /// Held during a join; a second concurrent join is refused.
    joining: Mutex<()>,
    link: Mutex<Option<Link>>,
    /// Whether the node was in a round. It then rejoins as a member, even if it is configured as a spare, and the run
    /// makes room for it.
    was_member: AtomicBool,
    /// Whether the node leaves with its work undone, so that its session ends without a goodbye.
    is_abandoned: AtomicBool,
    canceller: Canceller,
    /// Failure of the last join attempt that is being retried.
    last_try: LastTry,
    clock: Clock,
}

/// A session with the server, and the server itself if this process hosts it.
#[derive(Clone, Debug)]
struct Link {
    client: NativeClient,
    server: Option<Arc<Server>>,
    port: u16,
}

impl RdzvRendezvous {
    /// Creates a node that has not joined.
    pub fn new(
        settings: RdzvSettings,
        local_id: u32,
        servers: Arc<HostedServers>,
        rounds: Arc<LastRounds>,
    ) -> Self {
        let host = settings.address.clone().unwrap_or_else(host_name);
        let address = settings.address.clone().unwrap_or_else(|| full_host_name(&CancelToken::new()));
        let node = settings.node_name(&host, std::process::id(), local_id);
        Self {
            settings,
            node,
            address,
            servers,
            rounds,
            joining: Mutex::new(()),
            link: Mutex::new(None),
            was_member: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            canceller: Canceller::default(),
            last_try: LastTry::default(),
            clock: Clock::new(),
        }
    }

    /// Returns the session, opening one if there is none.
    fn link(
        &self,
        connect_timeout: Duration,
        operation: Operation,
        token: &CancelToken,
    ) -> Result<Link, HandlerError> {
        // Held while the session starts, so that a node has one session.
        let mut link = self.link.locked();
        match link.as_ref() {
            Some(link) if !link.client.is_over() => return Ok(link.clone()),
            // Another session has the node's name. A new session would take the name back, and the two would replace
            // each other forever.
            Some(link) if link.client.was_replaced() => return Err(self.replaced().into()),
            _ => {}
        }
        // The server of an earlier session is kept until the new session has its own. A cancelled call starts
        // neither.
        self.check_cancelled(operation, token)?;
        let server = self.host(token)?;
        self.check_cancelled(operation, token)?;
        let (host, port) = address_of(server.as_deref(), &self.settings.host, self.settings.port);
        let options = session_options(&self.settings, &self.node, connect_timeout)?;
        let client = NativeClient::start(&host, port, options).map_err(connection)?;
        Ok(link.insert(Link { client, server, port }).clone())
    }

    fn host(&self, token: &CancelToken) -> Result<Option<Arc<Server>>, HandlerError> {
        let RdzvSettings { host, port, hosting, listen_host, .. } = &self.settings;
        let here = match hosting {
            Hosting::Here => true,
            Hosting::Stored => false,
            Hosting::WhereTheEndpointIs => is_local(host, self.settings.timeouts.heartbeat, token),
        };
        if !here {
            return Ok(None);
        }
        let file = self.settings.auth_token_file.as_ref();
        let auth_tokens = file.map(|path| ServerTokens::open(path.as_ref())).transpose()?;
        let security = HostSecurity { tls: tls_acceptor(&self.settings)?, auth_tokens };
        match self.servers.host(host, *port, listen_host.as_deref(), &security) {
            Ok(server) => Ok(Some(server)),
            // Another process of this host was faster: it hosts the server.
            Err(error)
                if *hosting == Hosting::WhereTheEndpointIs
                    && error.cause.kind == StartErrorKind::AddressInUse =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn join(&self, token: &CancelToken) -> Result<(Link, Joined), HandlerError> {
        self.last_try.set(None);
        let mut rejoin = Rejoin::new(self.clock.now(), self.settings.timeouts.join);
        let operation = self.operation();
        let unless_cancelled = |input| if token.is_cancelled() { Input::Cancelled } else { input };
        let mut lost = None;
        loop {
            let now = self.clock.now();
            rejoin.handle(now, unless_cancelled(Input::Tick));
            match rejoin.decide() {
                (Action::Ask, _) => {
                    let link = self.link(rejoin.left(now), operation, token)?;
                    let error = match self
                        .request_join(&link.client.with_token(token), rejoin.left(self.clock.now()))
                    {
                        Ok(joined) => {
                            self.is_abandoned.store(false, Ordering::Release);
                            self.was_member.store(true, Ordering::Release);
                            self.rounds.entered(&self.settings, joined.round);
                            return Ok((link, joined));
                        }
                        Err(error) => error,
                    };
                    let waited = if link.client.was_standby() { Waited::Standby } else { Waited::Counted };
                    let failed = Input::Failed(error.kind(), waited);
                    rejoin.handle(self.clock.now(), unless_cancelled(failed));
                    self.last_try.set(Some(FailedTry::from(&CallError::from(error.clone()))));
                    lost = Some(error);
                }
                (Action::Rest(until), _) => _ = token.wait(until.since(now)),
                (Action::GiveUp, reason) => {
                    return Err(match lost.filter(|_| reason != Reason::Cancelled) {
                        Some(error) => {
                            let taken = rejoin.taken(now);
                            refusal(error, (&self.settings.run_id, &self.node), taken)
                        }
                        None => self.cancelled(operation),
                    });
                }
            }
        }
    }

    fn replaced(&self) -> RendezvousError {
        let (run_id, node) = (self.settings.run_id.as_str().into(), self.node.as_str().into());
        RendezvousError::Replaced { run_id, node }
    }

    const fn operation(&self) -> Operation {
        match self.settings.standby {
            Standby::No => Operation::Join,
            Standby::Only => Operation::Standby,
        }
    }

    /// Returns an error if the call was cancelled.
    fn check_cancelled(&self, operation: Operation, token: &CancelToken) -> Result<(), HandlerError> {
        if token.is_cancelled() { Err(self.cancelled(operation)) } else { Ok(()) }
    }

    fn cancelled(&self, operation: Operation) -> HandlerError {
        let RdzvSettings { host, port, run_id, .. } = &self.settings;
        let (peer, keys) = (endpoint_text(host, *port), (Some(Key::raw(run_id.as_bytes())), 1));
        CallError::new(operation, keys, &peer, plain(ErrorKind::Cancelled)).into()
    }

    fn request_join(&self, client: &NativeClient, timeout: Duration) -> Result<Joined, NativeError> {
        let labels = labels_of(&self.settings);
        let round_min = self.rounds.next(&self.settings);
        let (entry, role) =
            entry_of(&self.settings, (&self.node, &self.address), &labels, (timeout, round_min));
        let role = if self.was_member.load(Ordering::Acquire) { Role::Member } else { role };
        client.join(&entry, role)
    }

    /// Returns the session for one call, opening one if there is none.
    fn client(&self, connect_timeout: Duration, operation: Operation) -> Result<NativeClient, HandlerError> {
        let token = self.canceller.token();
        Ok(self.link(connect_timeout, operation, &token)?.client.with_token(&token))
    }

    fn run_info(&self) -> Result<RunInfo, HandlerError> {
        let timeout = self.settings.timeouts.heartbeat;
        let client = self.client(timeout, Operation::RunInfo)?;
        client.run_info(self.settings.run_id.as_bytes(), timeout).map_err(connection)
    }

    /// Returns the existing session.
    fn joined(&self) -> Result<NativeClient, HandlerError> {
        let link = self.link.locked();
        link.as_ref()
            .map(|link| link.client.clone())
            .ok_or_else(|| HandlerError::NotJoined { run_id: self.settings.run_id.as_str().into() })
    }
}

impl RendezvousHandler for RdzvRendezvous {
    fn backend(&self) -> &str {
        RDZV_BACKEND
    }

    /// All nodes share one store per round, where the nodes met; it does not depend on one rank.
    fn use_agent_store(&self) -> bool {
        true
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        let token = self.canceller.token();
        let _one_at_a_time = lock_join(&self.joining, &self.settings.run_id)?;
        let (link, joined) = self.join(&token)?;
        let store = Store::over(Arc::new(link.client.clone()));
        // The session's store adds a slash before every key, and the prefix store adds one after its prefix.
        let prefix = joined.namespace.strip_prefix(b"/").unwrap_or(&joined.namespace);
        let store = store.with_prefix(prefix.strip_suffix(b"/").unwrap_or(prefix));
        Ok(RendezvousInfo {
            store: Arc::new(NodeStore::new(store, link.server)),
            rank: joined.node_rank.into(),
            world_size: joined.nodes.into(),
            bootstrap_store_info: RendezvousStoreInfo {
                master_addr: self.settings.host.clone(),
                master_port: link.port,
            },
            round: Some(joined.round),
            position: Some(RoundPosition {
                rank_first: joined.rank_first,
                world_size: joined.world_size,
                leader: String::from_utf8_lossy(&joined.leader).into_owned(),
                key_prefix: String::from_utf8_lossy(prefix).into_owned(),
            }),
        })
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        self.run_info().map(|info| info.closed)
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        let timeout = self.settings.timeouts.close;
        let client = self.client(timeout, Operation::Close)?;
        client.close_run(self.settings.run_id.as_bytes(), timeout).map_err(connection)
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let timeout = self.settings.timeouts.close;
        let client = self.client(timeout, Operation::Close)?;
        client.fail_run(self.settings.run_id.as_bytes(), message, timeout).map_err(connection)
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        self.run_info().map(|info| info.nodes_waiting.into())
    }

    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        let client = self.joined()?.with_token(&self.canceller.token());
        let deadline = self.clock.now() + timeout;
        loop {
            let left = deadline.since(self.clock.now());
            let event = client.next_event(left).map_err(connection)?;
            match event.map(NodeEvent::into_round_event) {
                None => return Ok(None),
                Some(Some(event)) => return Ok(Some(event)),
                // Events before a round are not for this function: the pending join handles them.
                Some(None) => {}
            }
        }
    }

    fn reports_deaths(&self) -> bool {
        true
    }

    fn progress(&self) -> Option<Progress> {
        // A thread that opens a session holds the link; this query does not wait for it.
        let client = self.link.try_lock().ok()?.as_ref()?.client.clone();
        let client = client.with_token(&self.canceller.token());
        let run_id = self.settings.run_id.as_bytes();
        let info = client.run_info(run_id, self.settings.timeouts.heartbeat).ok()?;
        let stage = match info.complete {
            _ if client.was_standby() => Stage::Standby,
            true => Stage::Live,
            false => Stage::Forming,
        };
        let last_call = self.settings.last_call_span();
        let waiting_nodes = match stage {
            Stage::Forming => {
                let page = (0, NODE_NAMES_MAX);
                client.members(run_id, info.round, page, self.settings.timeouts.heartbeat).unwrap_or_default()
            }
            Stage::Live | Stage::Standby => Vec::new(),
        };
        let waiting_nodes = waiting_nodes.into_iter().map(|waiting_node| waiting_node.node).collect();
        Some(Progress {
            nodes: info.nodes,
            nodes_waiting: info.nodes_waiting,
            stage,
            last_call,
            waiting_nodes,
        })
    }

    fn failed_try(&self) -> Option<FailedTry> {
        // A thread that opens a session holds the link; this query does not wait for it.
        let client = self.link.try_lock().ok().and_then(|link| Some(link.as_ref()?.client.clone()));
        match client {
            Some(client) if client.has_opened() && !client.is_over() => client.failed_try(),
            client => client.and_then(|client| client.failed_try()).or_else(|| self.last_try.get()),
        }
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    /// Leaves the run, which goes on, and ends the session. To end the run, call [`RendezvousHandler::set_closed`].
    /// Calls in progress are cancelled and open no session any more; later calls begin with a new one. The goodbye
    /// may take the run's close timeout, but only 1 s where the server has never answered. If it is cancelled, the
    /// session ends without it.
    fn shutdown(&self) -> bool {
        self.canceller.cancel();
        self.was_member.store(false, Ordering::Release);
        let token = self.canceller.token();
        let is_abandoned = self.is_abandoned.swap(false, Ordering::AcqRel);
        let Some(Link { client, .. }) = self.link.locked().take() else { return true };
        let timeout = self.settings.timeouts.close;
        let timeout = if client.has_opened() { timeout } else { timeout.min(UNANSWERED_GOODBYE_TIMEOUT) };
        if is_abandoned {
            client.abandon();
            return true;
        }
        // A session that says goodbye leaves its run.
        client.is_over() || client.with_token(&token).close(timeout).is_ok()
    }

    /// Ends the session, and notifies the other nodes that this one was stopped. A node that says goodbye is done
    /// instead, and its round continues without it. If the server cannot be reached, or does not know of nodes that are
    /// stopped, the other nodes see a death once the session's grace is over. A session that is just being opened is in
    /// no round, so the other nodes are not notified of its end.
    fn abandon(&self) {
        // Another thread holds the link only briefly, and this function does not wait.
        self.is_abandoned.store(true, Ordering::Release);
        let link = self.link.try_lock().ok().and_then(|mut link| link.take());
        if let Some(link) = link {
            link.client.abandon();
        }
    }

    /// Does not wait, and does not affect calls on the stores that this handler returned.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    fn set_token(&self, token: &CancelToken) {
        self.canceller.set_parent(token);
    }
}

impl Drop for RdzvRendezvous {
    /// Ends the session without a goodbye: a node that is dropped without a shutdown is dead to the others, even
    /// where a round's store would keep its session.
    fn drop(&mut self) {
        let link = self.link.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(link) = link {
            link.client.hang_up();
        }
    }
}

/// Returns the options of a node's session.
pub(in crate::driver) fn session_options(
    settings: &RdzvSettings,
    node: &str,
    connect_timeout: Duration,
) -> Result<NativeClientOptions, HandlerError> {
    let file = settings.auth_token_file.as_ref();
    Ok(NativeClientOptions {
        node: node.into(),
        grace: settings.grace,
        heartbeat: settings.keep_alive_interval,
        heartbeats_missed_max: settings.keep_alive_max_attempt,
        connect_timeout,
        timeouts: StoreTimeouts { call: settings.read_timeout, ..StoreTimeouts::default() },
        tls: tls_connector(settings)?,
        auth_token: file.map(|path| ClientToken::open(path.as_ref())).transpose()?,
        ..NativeClientOptions::default()
    })
}

/// Returns the TLS of a node's session.
fn tls_connector(settings: &RdzvSettings) -> Result<Option<TlsConnector>, TlsError> {
    let Some(TlsSettings { ca, identity, server_name, .. }) = &settings.tls else { return Ok(None) };
    let identity = identity.as_ref().map(|(cert, key)| (cert.into(), key.into()));
    let server_name = Some(server_name.clone());
    TlsConnector::new(TlsClientOptions { ca_file: ca.into(), identity, server_name }).map(Some)
}

/// Returns the TLS of a server that the node hosts.
fn tls_acceptor(settings: &RdzvSettings) -> Result<Option<TlsAcceptor>, HandlerError> {
    let Some(TlsSettings { identity, client_ca, .. }) = &settings.tls else { return Ok(None) };
    let Some((cert, key)) = identity else { return Err(TlsSettings::NO_IDENTITY.into()) };
    let client_ca_file = client_ca.as_ref().map(Into::into);
    let options = TlsServerOptions { cert_file: cert.into(), key_file: key.into(), client_ca_file };
    Ok(Some(TlsAcceptor::new(options)?))
}

/// Returns a node's labels as bytes.
pub(in crate::driver) fn labels_of(settings: &RdzvSettings) -> Vec<(&[u8], &[u8])> {
    settings.labels.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect()
}

/// Returns the join request of a node that the others reach at `address`. It waits up to `timeout` for a round
/// numbered `round_min` or higher.
pub(in crate::driver) fn entry_of<'a>(
    settings: &'a RdzvSettings,
    (node, address): (&'a str, &'a str),
    labels: &'a [(&'a [u8], &'a [u8])],
    (timeout, round_min): (Duration, u64),
) -> (Entry<'a>, Role) {
    let entry = Entry {
        run_id: settings.run_id.as_bytes(),
        node: node.as_bytes(),
        address: address.as_bytes(),
        local_world_size: settings.local_world_size,
        node_rank: settings.node_rank,
        join_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1),
        terms: settings.terms(),
        labels: Pairs::scoped(b"", labels),
        round_min,
    };
    let role = match settings.standby {
        Standby::No => Role::Member,
        Standby::Only => Role::Spare,
    };
    (entry, role)
}

/// Returns the error for a failed call of this node in this run, which took `elapsed`.
pub fn refusal(error: NativeError, (run_id, node): (&str, &str), elapsed: Duration) -> HandlerError {
    let result = |kind, message: String| RendezvousError::Refused { kind, message: message.into() }.into();
    match error.fault().map(|fault| fault.code) {
        Some(FaultCode::RunClosed) => match error.fault().map(|fault| String::from_utf8_lossy(&fault.text)) {
            // The text says which node closed the run, and why.
            Some(text) if !text.is_empty() => {
                let (first, rest) = text.split_at(text.ceil_char_boundary(1));
                result(RendezvousErrorKind::Closed, format!("{}{rest}.", first.to_uppercase()))
            }
            _ => RendezvousError::Closed { run_id: run_id.into() }.into(),
        },
        Some(FaultCode::Replaced) => {
            RendezvousError::Replaced { run_id: run_id.into(), node: node.into() }.into()
        }
        Some(FaultCode::NotNeeded) => RendezvousError::GracefulExit { run_id: run_id.into() }.into(),
        Some(FaultCode::TimedOut) => result(
            RendezvousErrorKind::Timeout,
            format!(
                "The rendezvous '{run_id}' timed out after {}: {}",
                Span(elapsed),
                error.fault().map(|fault| String::from_utf8_lossy(&fault.text)).unwrap_or_default()
            ),
        ),
        Some(_) => HandlerError::Store(error.into()),
        None => connection(error),
    }
}

/// Returns a connection error, unless the call was cancelled or the caller must change its request.
fn connection(error: NativeError) -> HandlerError {
    let inner = Box::new(CallError::from(error));
    let kind = inner.kind();
    if matches!(kind, ErrorKind::Cancelled | ErrorKind::LimitExceeded | ErrorKind::InvalidArgument) {
        return HandlerError::Store(*inner);
    }
    RendezvousError::Connection { backing: Backing::Server, inner }.into()
}

/// Whether `host` is this host, that is, one of its addresses can be bound here. False when the call is cancelled.
fn is_local(host: &str, timeout: Duration, token: &CancelToken) -> bool {
    let can_bind = |address: &SocketAddr| {
        !address.ip().is_unspecified() && std::net::UdpSocket::bind(SocketAddr::new(address.ip(), 0)).is_ok()
    };
    if let Some(address) = resolve::literal(host, 0) {
        return can_bind(&address);
    }
    let host = String::from(host);
    let addresses = resolve::within(timeout, token, move || resolve::addresses(&host, 0).ok());
    addresses.is_some_and(|addresses| addresses.iter().any(can_bind))
}

#[cfg(test)]
mod tests;
