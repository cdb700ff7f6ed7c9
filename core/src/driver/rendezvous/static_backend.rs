//! The `static` backend: ranks are given, rank 0 hosts the store, and all wait until all have come. Nodes of PyTorch
//! take part in the same group; without them, nodes meet anew in rounds.

use super::context::CreateHandler;
use super::handler::{HandlerError, NodeStore, Progress, RendezvousHandler, Stage};
use super::hosting::{HostedServers, own_address};
use crate::driver::call_error::CallError;
use crate::driver::canceller::{Cancellable, Canceller, Watch};
use crate::driver::clock::Clock;
use crate::driver::store::{Store, Timeout};
use crate::driver::store_client::StoreOptions;
use crate::error::ErrorKind;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::static_rounds::{
    Attendance, Entry, Outcome, Shortfall, Standing, StaticRounds, Step, log_key, store_prefix, told_key,
};
use crate::rendezvous::static_settings::{STATIC_BACKEND, StaticSettings};
use crate::rendezvous::store_info::RendezvousInfo;
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Makes handlers of the static backend.
#[derive(Debug)]
pub struct StaticBackend(Arc<HostedServers>);

impl StaticBackend {
    /// With the servers of a context.
    #[must_use]
    pub const fn new(servers: Arc<HostedServers>) -> Self {
        Self(servers)
    }
}

impl CreateHandler for StaticBackend {
    fn name(&self) -> &str {
        "StaticBackend"
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let settings = StaticSettings::read(parameters)?;
        Ok(Box::new(StaticRendezvous::new(settings, Arc::clone(&self.0))))
    }
}

/// How long a node that has given up may take to say so.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a look at who waits may take.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);

/// One node's part in a static rendezvous.
#[derive(Debug)]
pub struct StaticRendezvous {
    settings: StaticSettings,
    servers: Arc<HostedServers>,
    /// Held by who joins, one at a time.
    rounds: Mutex<StaticRounds>,
    joined: Mutex<Joined>,
    canceller: Canceller,
}

/// What a node has come to.
#[derive(Debug, Default)]
struct Joined {
    /// The rendezvous' own store, whoever may have a part in it.
    store: Option<Arc<NodeStore>>,
    /// The round that it is in.
    round: Option<u64>,
}

impl StaticRendezvous {
    /// A node that has not joined.
    #[must_use]
    pub fn new(settings: StaticSettings, servers: Arc<HostedServers>) -> Self {
        let StaticSettings { rank, world_size, .. } = settings;
        let rounds = Mutex::new(StaticRounds::new(rank.unsigned_abs(), world_size.unsigned_abs()));
        Self { settings, servers, rounds, joined: Mutex::default(), canceller: Canceller::default() }
    }

    fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, call: &Cancellable) -> Result<NodeStore, HandlerError> {
        let StaticSettings { master, listen_host, rank, world_size, timeout, .. } = &self.settings;
        let place = StorePlace {
            host: &master.master_addr,
            port: master.master_port,
            listen_host: listen_host.as_deref(),
            is_host: *rank == 0,
        };
        let options = StoreOptions {
            timeout: *timeout,
            connect_timeout: *timeout,
            scope: self.settings.scope().into(),
            ..StoreOptions::default()
        };
        place.join(&self.servers, *world_size, options, call)
    }

    /// Does what the machine says, until the node is in a round or there is none.
    fn enter(
        &self,
        rounds: &mut StaticRounds,
        joined: &Store,
        call: &Cancellable,
    ) -> Result<u64, HandlerError> {
        let clock = Clock::new();
        let mut until = clock.now() + self.settings.timeout;
        let mut store = joined.for_one_call();
        let cancelled = joined.for_one_call();
        let mut watch = Some(call.watch(move || cancelled.cancel()));
        let mut trouble = None;
        rounds.begin();
        loop {
            let step = match rounds.next_step() {
                Step::Over(Outcome::Entered { round }) => return Ok(round),
                Step::Over(outcome) => return Err(self.no_round(outcome, trouble)),
                step => step,
            };
            let left = Timeout::After(until.since(clock.now()));
            let Err(error) = self.perform(&step, rounds, &store, left) else { continue };
            if trouble.is_none() {
                // The others hear that this node goes, also when somebody wants it to go.
                drop(watch.take());
                store = joined.for_one_call();
                until = clock.now() + FAREWELL_TIMEOUT;
                trouble = Some(error);
            }
            rounds.gave_up();
        }
    }

    fn perform(
        &self,
        step: &Step,
        rounds: &mut StaticRounds,
        store: &Store,
        timeout: Timeout,
    ) -> Result<(), CallError> {
        match *step {
            Step::Read { round } => {
                rounds.saw(&log(store, round, timeout)?);
                return Ok(());
            }
            Step::Append { round, entry } => self.append(store, round, entry, timeout)?,
            Step::Wait { round } => store.wait(&[told_key(round).as_bytes()], timeout)?,
            Step::Tell { round } => tell(store, round, timeout)?,
            Step::Over(_) => {}
        }
        rounds.done();
        Ok(())
    }

    fn append(&self, store: &Store, round: u64, entry: Entry, timeout: Timeout) -> Result<(), CallError> {
        let text = entry.text(self.settings.rank.unsigned_abs());
        store.append(log_key(round).as_bytes(), text.as_bytes(), timeout)
    }

    fn no_round(&self, outcome: Outcome, trouble: Option<CallError>) -> HandlerError {
        let StaticSettings { world_size, timeout, .. } = self.settings;
        let run_id = self.settings.run_id.as_str().into();
        let was_in_vain = trouble.as_ref().is_none_or(|error| error.kind() == ErrorKind::TimedOut);
        match (outcome, trouble) {
            (Outcome::Short(Shortfall { round, came, missing }), _) if was_in_vain => {
                let nodes = world_size.unsigned_abs();
                RendezvousError::Incomplete { run_id, round, came, nodes, missing, timeout }.into()
            }
            (Outcome::Closed, _) if was_in_vain => RendezvousError::Closed { run_id }.into(),
            (_, Some(error)) => error.into(),
            (_, None) => RendezvousError::Closed { run_id }.into(),
        }
    }

    /// What is known of the round after this node's: nothing before it has joined.
    fn next_round(&self, timeout: Timeout) -> Result<Option<NextRound>, CallError> {
        let (store, round) = {
            let joined = self.joined();
            let (Some(store), Some(round)) = (&joined.store, joined.round) else { return Ok(None) };
            (store.for_one_call(), round + 1)
        };
        let cancelled = store.for_one_call();
        let watch = self.canceller.begin().watch(move || cancelled.cancel());
        let nodes = self.settings.world_size.unsigned_abs();
        let attendance = Attendance::read(&log(&store, round, timeout)?, nodes);
        Ok(Some(NextRound { store, round, attendance, watch }))
    }
}

/// The round that a node has not come to.
struct NextRound {
    store: Store,
    round: u64,
    attendance: Attendance,
    /// As long as it lives, whoever cancels the handler's calls ends those of the store.
    watch: Watch,
}

/// A round's log; one that nobody has begun is empty.
fn log(store: &Store, round: u64, timeout: Timeout) -> Result<Vec<u8>, CallError> {
    let key = log_key(round);
    if store.check(&[key.as_bytes()], timeout)? {
        return store.get_owned(key.as_bytes(), timeout);
    }
    Ok(Vec::new())
}

/// Ends the wait for a round.
fn tell(store: &Store, round: u64, timeout: Timeout) -> Result<(), CallError> {
    store.set(told_key(round).as_bytes(), b"", timeout)
}

impl RendezvousHandler for StaticRendezvous {
    fn backend(&self) -> &str {
        STATIC_BACKEND
    }

    fn use_agent_store(&self) -> bool {
        true
    }

    /// The first time, joins. Later, it meets the other nodes anew, if all of them know of rounds; else it gives the
    /// same again.
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        let call = self.canceller.begin();
        let mut rounds = match self.rounds.try_lock() {
            Ok(rounds) => rounds,
            Err(TryLockError::Poisoned(rounds)) => rounds.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(HandlerError::Joining { run_id: self.settings.run_id.as_str().into() });
            }
        };
        let known = self.joined().store.clone();
        let joined = match known {
            Some(store) => store,
            None => {
                let store = Arc::new(self.join(&call)?);
                self.joined().store = Some(Arc::clone(&store));
                store
            }
        };
        let entered = self.enter(&mut rounds, &joined, &call)?;
        self.joined().round = Some(entered);
        // Nodes of PyTorch have a part in the first round's store, and know of no other.
        let round = Some(entered).filter(|&round| round > 0);
        let store = match round {
            None => joined,
            Some(round) => {
                let store = joined.with_prefix(store_prefix(round).as_bytes());
                Arc::new(NodeStore::new(store, joined.server().cloned()))
            }
        };
        let StaticSettings { master, rank, world_size, .. } = &self.settings;
        Ok(RendezvousInfo {
            store,
            rank: *rank,
            world_size: *world_size,
            bootstrap_store_info: master.clone(),
            round,
            place: None,
        })
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        let next = self.next_round(Timeout::Once)?;
        Ok(next.is_some_and(|next| next.attendance.standing() == Standing::Closed))
    }

    /// Tells those who wait for the next round, or will, that there is none. Nodes of PyTorch know of none, and nothing
    /// is done where they take part, or before this node has joined.
    fn set_closed(&self) -> Result<(), HandlerError> {
        let Some(next) = self.next_round(Timeout::Once)? else { return Ok(()) };
        let NextRound { store, round, watch: _watch, .. } = next;
        let nodes = self.settings.world_size.unsigned_abs();
        if Attendance::read(&log(&store, 0, Timeout::Once)?, nodes).standing() != Standing::Whole {
            return Ok(());
        }
        self.append(&store, round, Entry::Closes, Timeout::Once)?;
        Ok(tell(&store, round, Timeout::Once)?)
    }

    /// A store that is out of reach tells nothing: whoever hosts it may be done, and workers that run may not need it.
    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        match self.next_round(Timeout::Once) {
            Ok(Some(next)) if next.attendance.standing() != Standing::Closed => Ok(next.attendance.came()),
            Ok(_) | Err(_) => Ok(0),
        }
    }

    /// Nothing is known on the way to the first round: there, the nodes count themselves as PyTorch's do.
    fn progress(&self) -> Option<Progress> {
        let next = self.next_round(Timeout::After(PROGRESS_TIMEOUT)).ok()??;
        let nodes = u32::try_from(next.attendance.came()).unwrap_or(u32::MAX);
        Some(Progress { nodes, nodes_waiting: 0, stage: Stage::Forming, last_call: None, comers: Vec::new() })
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    fn shutdown(&self) -> bool {
        true
    }

    fn cancel(&self) {
        self.canceller.cancel();
    }
}

/// Where a store is, and who hosts it.
pub(super) struct StorePlace<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) listen_host: Option<&'a str>,
    pub(super) is_host: bool,
}

impl StorePlace<'_> {
    /// Hosts the store if that is this process's part, connects, and tells the others so. The host waits for all; a
    /// world of unknown size is not counted.
    pub(super) fn join(
        &self,
        servers: &HostedServers,
        world_size: i64,
        options: StoreOptions,
        call: &Cancellable,
    ) -> Result<NodeStore, HandlerError> {
        let server =
            if self.is_host { Some(servers.host(self.host, self.port, self.listen_host)?) } else { None };
        let (host, port): (String, u16) = match &server {
            Some(server) => (own_address(server), server.local_addr().port()),
            None => (self.host.to_string(), self.port),
        };
        let store = Store::connect_within(&host, port, options, call)?;
        if world_size > 0 {
            let (counting, cancelled) = (store.for_one_call(), store.for_one_call());
            let _watch = call.watch(move || cancelled.cancel());
            counting.check_in(Timeout::Default)?;
            if self.is_host {
                counting.wait_for_workers(world_size, Timeout::Default)?;
            }
        }
        Ok(NodeStore::new(store, server))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reserved_port::ReservedPort;
    use super::*;
    use crate::error::{ErrorKind, Operation};
    use core::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::format;
    use std::thread;
    use std::vec::Vec;

    fn free_port() -> u16 {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        ReservedPort::at(any).expect("a port").port()
    }

    fn handler(port: u16, rank: i64, nodes: i64, timeout_s: i64) -> Box<dyn RendezvousHandler> {
        let endpoint = format!("127.0.0.1:{port}");
        let parameters = RendezvousParameters::new("static", &endpoint, "run", 1, nodes).expect("valid");
        let parameters = parameters.with("rank", rank).with("timeout", timeout_s);
        StaticBackend::new(Arc::default()).create(&parameters).expect("whole")
    }

    #[test]
    fn nodes_meet_beneath_the_run() {
        let port = free_port();
        let told: Vec<(i64, i64, Vec<u8>)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        let handler = handler(port, rank, 3, 20);
                        let info = handler.next_rendezvous().expect("all come");
                        assert_eq!(info.bootstrap_store_info.master_addr, "127.0.0.1");
                        assert_eq!(info.bootstrap_store_info.master_port, port);
                        assert_eq!(info.store.server().is_some(), rank == 0);
                        assert_eq!(info.round, None, "to PyTorch's nodes it would be none");
                        if rank == 1 {
                            info.store.set(b"k", b"v", Timeout::Default).expect("applied");
                        }
                        let value = info.store.get_owned(b"k", Timeout::Default).expect("set");
                        info.store.barrier_by_keys(b"done", 3, Timeout::Default).expect("all come");
                        if rank == 0 {
                            // PyTorch's prefix store would use these very keys.
                            let bare = StoreOptions { scope: b""[..].into(), ..StoreOptions::default() };
                            let bare = Store::connect("127.0.0.1", port, bare).expect("connected");
                            let there = bare.check(&[b"/run/k", b"init/"], Timeout::Default).expect("asked");
                            assert!(there);
                            bare.wait(&[b"/run/left/last_member"], Timeout::Default)
                                .expect("the others left");
                        } else if info.store.add(b"left", 1, Timeout::Default).expect("added") == 2 {
                            info.store.set(b"left/last_member", b"1", Timeout::Default).expect("applied");
                        }
                        (info.rank, info.world_size, value)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(told, [0, 1, 2].map(|rank| (rank, 3, b"v".to_vec())));
    }

    type Info = RendezvousInfo<Arc<NodeStore>>;
    type Handlers = Vec<Box<dyn RendezvousHandler>>;

    const SOON: Duration = Duration::from_secs(20);

    /// All of these nodes ask for a round, each in a thread of its own.
    fn meet(nodes: &[Box<dyn RendezvousHandler>]) -> Vec<Result<Info, HandlerError>> {
        thread::scope(|scope| {
            let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| node.next_rendezvous())).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    /// As many nodes in their first round.
    fn group(nodes: i64, timeout_s: i64) -> (Handlers, Vec<Info>) {
        let port = free_port();
        let nodes: Handlers = (0..nodes).map(|rank| handler(port, rank, nodes, timeout_s)).collect();
        let infos = meet(&nodes).into_iter().map(|info| info.expect("all come")).collect();
        (nodes, infos)
    }

    /// Waits until a node hears that so many wait for the next round.
    fn until_waiting(node: &dyn RendezvousHandler, count: u64) {
        let (clock, until) = (Clock::new(), Clock::new().now() + SOON);
        while node.num_nodes_waiting().expect("the store answers") != count {
            assert!(clock.now() < until, "not so many wait");
            thread::yield_now();
        }
    }

    #[test]
    fn nodes_that_meet_again_have_a_round_of_their_own() {
        let (nodes, first) = group(3, 20);
        assert!(first.iter().all(|info| info.round.is_none()));
        first[1].store.set(b"left", b"1", Timeout::Default).expect("applied");
        for round in 1..3 {
            let infos: Vec<Info> = meet(&nodes).into_iter().map(|info| info.expect("all come")).collect();
            for (info, before) in infos.iter().zip(&first) {
                assert_eq!((info.rank, info.world_size), (before.rank, before.world_size));
                assert_eq!((info.round, info.store.server().is_some()), (Some(round), before.rank == 0));
                assert_eq!(info.bootstrap_store_info, before.bootstrap_store_info);
                // Neither the first round's keys are there nor those of the one before.
                assert!(!info.store.check(&[b"left"], Timeout::Default).expect("asked"));
            }
            infos[2].store.set(b"left", b"1", Timeout::Default).expect("applied");
            infos[0].store.get_owned(b"left", Timeout::Default).expect("they share it");
        }
        assert!(nodes.iter().all(|node| node.num_nodes_waiting().expect("asked") == 0));
    }

    #[test]
    fn who_runs_hears_of_those_who_wait() {
        let (nodes, _) = group(3, 20);
        thread::scope(|scope| {
            let wait = |rank: usize| {
                let node = &nodes[rank];
                scope.spawn(|| node.next_rendezvous())
            };
            let first = wait(1);
            until_waiting(&*nodes[0], 1);
            assert!(!first.is_finished());
            let second = wait(2);
            until_waiting(&*nodes[0], 2);
            let progress = nodes[1].progress().expect("it waits");
            assert_eq!((progress.nodes, progress.stage), (2, Stage::Forming));
            assert!(matches!(nodes[1].next_rendezvous(), Err(HandlerError::Joining { .. })));
            assert_eq!(nodes[0].next_rendezvous().expect("all are there").round, Some(1));
            for node in [first, second] {
                assert_eq!(node.join().expect("no panic").expect("all are there").round, Some(1));
            }
        });
        until_waiting(&*nodes[0], 0);
    }

    #[test]
    fn who_does_not_come_is_named_and_may_come_later() {
        let (nodes, _) = group(3, 1);
        for error in meet(&nodes[..1]) {
            let HandlerError::Rendezvous(error) = error.expect_err("nobody else comes") else { panic!() };
            assert_eq!(
                error.to_string(),
                "The rendezvous 'run' timed out: 1 of 3 nodes came to round 1 within 1 s; missing: 1, 2"
            );
        }
        // It does not count as one that waits any more, and nobody meets it where it is not.
        assert_eq!(nodes[1].num_nodes_waiting().expect("asked"), 0);
        let error = nodes[1].next_rendezvous().expect_err("nobody else comes");
        assert!(
            error.to_string().ends_with("1 of 3 nodes came to round 1 within 1 s; missing: 0, 2"),
            "{error}"
        );
        assert!(meet(&nodes).into_iter().all(|info| info.expect("all come").round == Some(1)));
    }

    #[test]
    fn with_nodes_that_do_not_count_there_is_one_round_only() {
        let port = free_port();
        let infos: Vec<(Option<u64>, u64, bool)> = thread::scope(|scope| {
            // As PyTorch's node: it checks in, and does nothing else.
            let other = scope.spawn(move || {
                let store = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
                store.check_in(Timeout::Default).expect("counted");
            });
            let ours: Vec<_> = (0..2)
                .map(|rank| {
                    scope.spawn(move || {
                        let node = handler(port, rank, 3, 20);
                        let first = node.next_rendezvous().expect("all come");
                        // However often: what is counted are nodes.
                        let again: Vec<Info> =
                            (0..3).map(|_| node.next_rendezvous().expect("at once")).collect();
                        node.set_closed().expect("nothing to do");
                        assert!(!node.is_closed().expect("asked"));
                        let same = again.iter().all(|info| Arc::ptr_eq(&info.store, &first.store));
                        let waiting = node.num_nodes_waiting().expect("asked");
                        first.store.barrier_by_keys(b"done", 2, Timeout::Default).expect("both come");
                        (again[2].round, waiting, same)
                    })
                })
                .collect();
            other.join().expect("no panic");
            ours.into_iter().map(|node| node.join().expect("no panic")).collect()
        });
        assert_eq!(infos, [(None, 0, true); 2]);
    }

    #[test]
    fn a_node_that_begins_anew_comes_to_the_next_round() {
        let port = free_port();
        let mut nodes: Handlers = (0..2).map(|rank| handler(port, rank, 2, 20)).collect();
        meet(&nodes).into_iter().for_each(|info| drop(info.expect("all come")));
        meet(&nodes).into_iter().for_each(|info| drop(info.expect("all come")));
        nodes[1] = handler(port, 1, 2, 20);
        thread::scope(|scope| {
            let node = scope.spawn(|| nodes[1].next_rendezvous());
            until_waiting(&*nodes[0], 1);
            assert_eq!(nodes[0].next_rendezvous().expect("both are there").round, Some(2));
            assert_eq!(node.join().expect("no panic").expect("both are there").round, Some(2));
        });
    }

    #[test]
    fn a_run_that_is_closed_ends_the_wait_for_its_next_round() {
        let (nodes, _) = group(3, 600);
        let closed = |error: Result<Info, HandlerError>| {
            let error = error.expect_err("closed");
            assert_eq!(error.to_string(), "The rendezvous 'run' is closed.");
        };
        thread::scope(|scope| {
            let node = scope.spawn(|| nodes[2].next_rendezvous());
            until_waiting(&*nodes[0], 1);
            assert!(!nodes[0].is_closed().expect("asked"));
            nodes[0].set_closed().expect("told");
            closed(node.join().expect("no panic"));
        });
        assert!(nodes[1].is_closed().expect("asked"));
        assert_eq!(nodes[1].num_nodes_waiting().expect("asked"), 0);
        closed(nodes[1].next_rendezvous());
    }

    #[test]
    fn a_wait_for_the_next_round_is_cancelled_and_begun_again() {
        let (nodes, _) = group(2, 600);
        thread::scope(|scope| {
            let node = scope.spawn(|| nodes[1].next_rendezvous());
            until_waiting(&*nodes[0], 1);
            while !node.is_finished() {
                nodes[1].cancel();
                thread::yield_now();
            }
            assert!(node.join().expect("no panic").expect_err("cancelled").is_cancelled());
        });
        // The others do not count on it.
        assert_eq!(nodes[0].num_nodes_waiting().expect("asked"), 0);
        assert!(meet(&nodes).into_iter().all(|info| info.expect("both come").round == Some(1)));
    }

    #[test]
    fn what_else_it_says() {
        let handler = handler(1, 1, 2, 5);
        assert_eq!((handler.backend(), handler.run_id()), ("static", "run"));
        assert!(handler.use_agent_store());
        handler.set_closed().expect("nothing to do");
        assert!(!handler.is_closed().expect("never"));
        assert_eq!(handler.num_nodes_waiting().expect("nobody"), 0);
        assert_eq!(handler.progress(), None);
        assert!(handler.shutdown());
    }

    #[test]
    fn rank_zero_does_not_wait_for_ever() {
        let error = handler(free_port(), 0, 2, 1).next_rendezvous().expect_err("nobody else comes");
        let HandlerError::Store(error) = error else { panic!("{error}") };
        assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Operation::WaitForWorkers));
    }

    #[test]
    fn a_node_that_waits_is_cancelled_wherever_it_is() {
        let port = free_port();
        // Rank 0 waits for the others, rank 1 for a server at a port where there is none.
        for handler in [handler(port, 0, 2, 600), handler(free_port(), 1, 2, 600)] {
            let error = thread::scope(|scope| {
                let node = scope.spawn(|| handler.next_rendezvous());
                while !node.is_finished() {
                    handler.cancel();
                    thread::yield_now();
                }
                node.join().expect("no panic").expect_err("cancelled")
            });
            let HandlerError::Store(error) = error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
    }

    #[test]
    fn a_port_in_use_is_told() {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let reserved = ReservedPort::at(any).expect("a port");
        let error = handler(reserved.port(), 0, 1, 5).next_rendezvous().expect_err("taken");
        let text = format!("cannot host the store at 127.0.0.1:{}: ", reserved.port());
        assert!(error.to_string().starts_with(&text), "{error}");
    }
}
