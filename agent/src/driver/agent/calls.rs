//! Threads that make the agent's calls to the rendezvous and to the round's store. The agent itself never blocks.

use super::input::InputSender;
use crate::node::Input;
use crate::node::request::{Answer, CallFailure, JoinedRound, Request, ServeStore, StoreOperation};
use crate::node::rounds::no_round;
use crate::reason::NoRound;
use core::net::IpAddr;
use rendezvous_core::driver::channel::{Receiver, Sender, unbounded};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::rendezvous::{
    HandlerError, HostSecurity, HostedServers, HostingError, NodeStore, RendezvousHandler, full_host_name,
};
use rendezvous_core::driver::resolve;
use rendezvous_core::driver::server::{Server, StartErrorKind};
use rendezvous_core::driver::store::{Store, Timeout};
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use rendezvous_core::sorted::SortedMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Number of calls that the agent makes at a time: one to the rendezvous, and one to the round's store.
const THREADS: usize = 2;
/// Length of one wait for events. Nothing depends on it.
const LISTEN_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the end of the calls when the agent is dropped. A thread in code that cannot be cancelled is detached
/// then.
const THREAD_END_TIMEOUT: Duration = Duration::from_secs(10);

struct Job {
    id: u64,
    request: Request,
    token: CancelToken,
}

/// What the calls use.
struct Shared {
    handler: Arc<dyn RendezvousHandler>,
    /// Store of the last round that was joined.
    store: Mutex<Option<Arc<NodeStore>>>,
    /// The workers' store, if this agent serves it.
    server: Mutex<Option<Arc<Server>>>,
    input_sender: InputSender,
}

/// The agent's handle of its calls. Dropping it cancels them. A call that has not ended after 10 s is detached with
/// everything it holds.
pub(super) struct Calls {
    jobs: Option<Sender<Job>>,
    threads: Vec<Thread>,
    pending: SortedMap<u64, CancelToken>,
    shared: Arc<Shared>,
}

opaque_debug!(Calls);

impl Calls {
    pub(super) fn new(handler: Arc<dyn RendezvousHandler>, input_sender: InputSender) -> io::Result<Self> {
        let (sender, jobs) = unbounded();
        let shared =
            Arc::new(Shared { handler, store: Mutex::default(), server: Mutex::default(), input_sender });
        let start = |_| {
            let (shared, jobs) = (Arc::clone(&shared), jobs.clone());
            threads::spawn("rdzv-agent-call", move || run(&shared, &jobs))
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(sender), threads, pending: SortedMap::new(), shared })
    }

    pub(super) fn begin(&mut self, id: u64, request: Request) {
        let token = CancelToken::new();
        self.pending.insert(id, token.clone());
        if let Some(jobs) = &self.jobs {
            // The threads receive as long as this lives.
            jobs.send(Job { id, request, token }).ok();
        }
    }

    pub(super) fn cancel(&self, id: u64) {
        if let Some(token) = self.pending.get(&id) {
            token.cancel();
        }
    }

    /// Records that a call was answered.
    pub(super) fn answered(&mut self, id: u64) {
        self.pending.remove(&id);
    }

    /// Leaves the round at once.
    pub(super) fn abandon(&self) {
        self.shared.handler.abandon();
    }

    /// Ends the workers' store.
    pub(super) fn end_store(&self) {
        *self.shared.server.locked() = None;
    }

    /// Lets go of the round's store.
    pub(super) fn leave_round(&self) {
        *self.shared.store.locked() = None;
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if self.threads.iter().any(|thread| !thread.is_here()) {
            // In a forked child the threads do not exist, and a lock that they held stays locked for ever.
            core::mem::forget(self.jobs.take());
            return self.threads.drain(..).for_each(Thread::join);
        }
        self.jobs = None;
        self.pending.values().for_each(CancelToken::cancel);
        let clock = Clock::new();
        let until = clock.now() + THREAD_END_TIMEOUT;
        for thread in self.threads.drain(..) {
            thread.join_timeout(until.since(clock.now()), || {});
        }
    }
}

fn run(shared: &Shared, jobs: &Receiver<Job>) {
    while let Ok(Job { id, request, token }) = jobs.recv() {
        let is_of_store = matches!(request, Request::Store { .. } | Request::ServeStore(_));
        if !is_of_store {
            // One call to the rendezvous is made at a time.
            shared.handler.set_token(&token);
        }
        let made = catch_unwind(AssertUnwindSafe(|| shared.make(request, &token)));
        if !is_of_store {
            // The program may use the handler after its agent, so a cancelled token does not stay.
            shared.handler.set_token(&CancelToken::new());
        }
        let answer = made.unwrap_or_else(|panic| {
            Err(failure(None, format!("a thread of the agent panicked: {}", panic_text(&*panic))))
        });
        shared.input_sender.send(Input::Answered { id, answer });
    }
}

impl Shared {
    fn make(&self, request: Request, token: &CancelToken) -> Result<Answer, CallFailure> {
        let handler = &self.handler;
        match request {
            Request::Join => {
                let info = handler.next_rendezvous().map_err(|error| of_handler(&error))?;
                let round = joined(&info);
                *self.store.locked() = Some(info.store);
                Ok(Answer::Joined(round))
            }
            Request::NextEvent => {
                handler.next_event(LISTEN_INTERVAL).map(Answer::Event).map_err(|error| of_handler(&error))
            }
            Request::NodesWaiting => {
                let nodes = handler.num_nodes_waiting().map_err(|error| of_handler(&error))?;
                Ok(Answer::Number(i64::try_from(nodes).unwrap_or(i64::MAX)))
            }
            Request::Fail { message } => done(handler.fail(&message)),
            Request::Close => done(handler.set_closed()),
            Request::Shutdown => {
                handler.shutdown();
                Ok(Answer::Done)
            }
            Request::Store { operation, timeout } => {
                let store = self.store.locked().clone();
                let store = store.ok_or_else(|| failure(None, "there is no round".to_owned()))?;
                let timeout = if timeout.is_zero() { Timeout::Once } else { Timeout::After(timeout) };
                perform(&store.with_token(token), operation, timeout).map_err(|error| of_store(&error))
            }
            Request::ServeStore(serve) => {
                let store = self.store.locked().clone();
                let local = || address_of_this_host(store.as_deref()?, token);
                let served = serve_store(&serve, local, token);
                if token.is_cancelled() {
                    return Err(failure(Some(ErrorKind::Cancelled), "it was cancelled".to_owned()));
                }
                let (info, server) = served.map_err(|error| failure(None, error.to_string()))?;
                *self.server.locked() = Some(server);
                Ok(Answer::Serving(info))
            }
        }
    }
}

fn perform(store: &Store, operation: StoreOperation, timeout: Timeout) -> Result<Answer, CallError> {
    match operation {
        StoreOperation::Set(pairs) => {
            let pairs: Vec<(&[u8], &[u8])> =
                pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_slice())).collect();
            match pairs.as_slice() {
                [(key, value)] => store.set(key, value, timeout)?,
                pairs => store.multi_set(pairs, timeout)?,
            }
            Ok(Answer::Done)
        }
        StoreOperation::SetIfAbsent(key, value) => {
            let mut stored = Vec::new();
            store.compare_set(key.as_bytes(), b"", &value, &mut stored, timeout)?;
            Ok(Answer::Values([stored].into()))
        }
        StoreOperation::Append(key, value) => {
            store.append(key.as_bytes(), &value, timeout)?;
            Ok(Answer::Done)
        }
        StoreOperation::Add(key, delta) => Ok(Answer::Number(store.add(key.as_bytes(), delta, timeout)?)),
        StoreOperation::Get(keys) => {
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            Ok(Answer::Values(match keys.as_slice() {
                [key] => [store.get_owned(key, timeout)?].into(),
                keys => store.multi_get(keys, timeout)?,
            }))
        }
        StoreOperation::Wait(key) => {
            store.wait(&[key.as_bytes()], timeout)?;
            Ok(Answer::Done)
        }
    }
}

/// Serves a store. `local` returns the address of this host on the way to the rendezvous, if that is known.
fn serve_store(
    serve: &ServeStore,
    local: impl FnOnce() -> Option<IpAddr>,
    token: &CancelToken,
) -> Result<(RendezvousStoreInfo, Arc<Server>), HostingError> {
    let master_addr = match &serve.host {
        Some(host) => String::from(&**host),
        None => full_host_name(token),
    };
    let host = |listen: Option<&str>| {
        HostedServers::default().host(&master_addr, serve.port, listen, &HostSecurity::default())
    };
    let server = match &serve.listen_addr {
        Some(listen) => host(Some(listen)),
        None if is_address(&master_addr) => match host(None) {
            // Published for others, and translated on the way here.
            Err(error) if error.cause.kind == StartErrorKind::AddressNotAvailable => match local() {
                Some(local) => host(Some(&local.to_string())),
                None => Err(error),
            },
            hosted => hosted,
        },
        None => {
            // Workers of this host may look for it at a loopback address.
            let local = local().filter(|&local| leads_to(&master_addr, local, token));
            host(local.map(|local| local.to_string()).as_deref())
        }
    }?;
    let master_port = server.local_addr().port();
    Ok((RendezvousStoreInfo { master_addr, master_port }, server))
}

fn is_address(host: &str) -> bool {
    host == "localhost" || resolve::literal(host, 0).is_some()
}

/// Returns whether workers of this host that look for `host` find this address, and no other.
fn leads_to(host: &str, address: IpAddr, token: &CancelToken) -> bool {
    let host = String::from(host);
    let addresses = resolve::within_limit(token, move || resolve::addresses(&host, 0).ok());
    addresses.is_some_and(|found| !found.is_empty() && found.iter().all(|found| found.ip() == address))
}

fn joined(info: &RendezvousInfo<Arc<NodeStore>>) -> JoinedRound {
    JoinedRound {
        rank: info.rank.unsigned_abs(),
        world_size: info.world_size.unsigned_abs(),
        number: info.round,
        store_info: info.bootstrap_store_info.clone(),
        leader: info.position.as_ref().map(|position| position.leader.as_str().into()),
    }
}

/// Returns the address by which the other nodes reach this host, as far as the rendezvous shows it.
fn address_of_this_host(store: &NodeStore, token: &CancelToken) -> Option<IpAddr> {
    match (store.server(), store.endpoint()) {
        (Some(server), _) => Some(server.local_addr().ip()),
        (None, Some((host, port))) => {
            let host = String::from(host);
            resolve::within_limit(token, move || resolve::address_towards(&host, port))
        }
        (None, None) => None,
    }
}

fn done(result: Result<(), HandlerError>) -> Result<Answer, CallFailure> {
    result.map(|()| Answer::Done).map_err(|error| of_handler(&error))
}

fn failure(kind: Option<ErrorKind>, message: String) -> CallFailure {
    CallFailure { kind, no_round: NoRound::Failed, has_no_events: false, message: message.into() }
}

fn of_store(error: &CallError) -> CallFailure {
    failure(Some(error.kind()), error.to_string())
}

fn of_handler(error: &HandlerError) -> CallFailure {
    let no_round = match error {
        HandlerError::Rendezvous(error) => no_round(error.kind()),
        HandlerError::Store(error) => match error.kind() {
            ErrorKind::Closed => NoRound::Closed,
            ErrorKind::Refused | ErrorKind::ServerGone | ErrorKind::Unresolved | ErrorKind::Unreachable => {
                NoRound::NoServer
            }
            _ => NoRound::Failed,
        },
        _ => NoRound::Failed,
    };
    let inner = core::error::Error::source(error).and_then(|inner| inner.downcast_ref::<CallError>());
    let kind = match error {
        _ if error.is_cancelled() => Some(ErrorKind::Cancelled),
        HandlerError::Plugin { kind, .. } => Some(*kind),
        _ => inner.map(CallError::kind),
    };
    let has_no_events = matches!(error, HandlerError::NoEvents { .. });
    CallFailure { kind, no_round, has_no_events, message: error.to_string().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves a store for workers that look for it at `host`. Returns the published host and the address it listens on.
    fn served(host: &str, listen_addr: Option<&str>, local_address: Option<&str>) -> (String, IpAddr) {
        let serve = ServeStore { host: Some(host.into()), listen_addr: listen_addr.map(Into::into), port: 0 };
        let local = || local_address.map(|local| local.parse().expect("an address"));
        let (info, server) = serve_store(&serve, local, &CancelToken::new()).expect("a server");
        assert_eq!(info.master_port, server.local_addr().port());
        (info.master_addr, server.local_addr().ip())
    }

    #[test]
    fn an_address_that_this_host_does_not_have_is_published_and_another_is_bound() {
        let local: IpAddr = "127.0.0.1".parse().expect("an address");
        // An address for documentation, which no host has.
        let foreign = "203.0.113.7";
        assert_eq!(served(foreign, None, Some("127.0.0.1")), (foreign.into(), local));
        assert_eq!(served(foreign, Some("127.0.0.1"), None), (foreign.into(), local));
        assert_eq!(served("127.0.0.1", None, Some("127.0.0.2")), ("127.0.0.1".into(), local));
        assert_eq!(served("localhost", None, Some("127.0.0.2")).0, "localhost");
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_served_on_every_interface() {
        let (host, address) = served("no-such-host.invalid", None, Some("127.0.0.1"));
        assert_eq!((host.as_str(), address.is_unspecified()), ("no-such-host.invalid", true));
    }
}
