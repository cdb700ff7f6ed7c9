//! The `static` backend: node ranks are given, node 0 hosts the store, and all nodes wait until all have joined.
//! Nodes of PyTorch can take part in the same group; a group without them can meet again in further rounds.

use super::handler::{
    CreateHandler, HandlerError, NODE_NAMES_MAX, NodeStore, Progress, RendezvousHandler, Stage, lock_join,
};
use super::hosting::{HostSecurity, HostedServers, HostingError, address_of};
use super::process_claim::{process_claim, start_time};
use super::units::with_units;
use crate::driver::cancel::Canceller;
use crate::driver::last_try::{FailedTry, LastTry};
use crate::driver::prelude::*;
use crate::driver::random::random_seed;
use crate::driver::server::StartErrorKind;
use crate::driver::store::{Store, Timeout};
use crate::driver::store_client::StoreOptions;
use crate::error::ErrorKind;
use crate::rendezvous::error::{Backing, RendezvousError, RendezvousErrorKind};
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::static_claim::{Claim, ClaimDecision, ClaimView, claim_key};
use crate::rendezvous::static_rounds::{
    Attendance, Entry, INCARNATION_KEY, Outcome, RoundState, Shortfall, StaticRounds, Step, ended_key,
    incarnation_text, log_key, store_prefix,
};
use crate::rendezvous::static_settings::{STATIC_BACKEND, StaticSettings};
use crate::rendezvous::store_info::RendezvousInfo;

/// Creator of the static backend's handlers.
#[derive(Debug)]
pub struct StaticBackend(Arc<HostedServers>);

impl StaticBackend {
    /// Creates the backend with the servers of a context.
    pub const fn new(servers: Arc<HostedServers>) -> Self {
        Self(servers)
    }
}

impl CreateHandler for StaticBackend {
    fn name(&self) -> &str {
        "StaticBackend"
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let settings = StaticSettings::read(&with_units(parameters)?)?;
        Ok(Box::new(StaticRendezvous::new(settings, Arc::clone(&self.0))))
    }
}

/// Time that a node that has given up may take to report it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a node that waits for the first round checks which nodes have joined.
const SURVEY_INTERVAL: Duration = Duration::from_secs(1);
/// Time that a node 0 whose port is taken spends on finding out whether another node 0 of its run has it.
const PORT_OWNER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that one query of the waiting nodes may take.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);

/// One node's part in a static rendezvous.
#[derive(Debug)]
pub struct StaticRendezvous {
    settings: StaticSettings,
    servers: Arc<HostedServers>,
    /// Held by the thread that joins; a second concurrent join is refused.
    rounds: Mutex<StaticRounds>,
    joined: Mutex<Joined>,
    /// This process's identity for the other nodes.
    claim: Claim,
    /// Failure of the last attempt to reach node 0.
    last_try: LastTry,
    canceller: Canceller,
}

/// What a node has reached so far.
#[derive(Debug, Default)]
struct Joined {
    /// The rendezvous' own store, in which nodes of PyTorch may take part.
    store: Option<Arc<NodeStore>>,
    /// Incarnation of that store.
    incarnation: u64,
    /// Number of the round that the node is in.
    round: Option<u64>,
    /// Whether this process has claimed the node's rank.
    has_claimed: bool,
}

impl StaticRendezvous {
    /// Creates a node that has not joined.
    pub fn new(settings: StaticSettings, servers: Arc<HostedServers>) -> Self {
        let StaticSettings { rank, world_size, .. } = settings;
        let rounds = Mutex::new(StaticRounds::new(rank.unsigned_abs(), world_size.unsigned_abs()));
        Self {
            settings,
            servers,
            rounds,
            joined: Mutex::default(),
            claim: process_claim(),
            last_try: LastTry::default(),
            canceller: Canceller::default(),
        }
    }

    fn joined(&self) -> MutexGuard<'_, Joined> {
        self.joined.locked()
    }

    fn join(&self, token: &CancelToken) -> Result<NodeStore, HandlerError> {
        let StaticSettings { master, listen_host, rank, timeout, .. } = &self.settings;
        let location = StoreLocation {
            host: &master.master_addr,
            port: master.master_port,
            listen_host: listen_host.as_deref(),
            is_host: *rank == 0,
        };
        let options = StoreOptions {
            timeout: *timeout,
            connect_timeout: *timeout,
            scope: self.settings.scope().into(),
            token: token.clone(),
            last_try: self.last_try.clone(),
            ..StoreOptions::default()
        };
        location.connect(&self.servers, options.clone()).map_err(|error| match error {
            HandlerError::Hosting(error) if error.cause.kind == StartErrorKind::AddressInUse => {
                self.port_is_taken(error, options)
            }
            HandlerError::Store(error) if error.kind() != ErrorKind::Cancelled && *rank != 0 => {
                RendezvousError::Connection { backing: Backing::NodeZero, inner: Box::new(error) }.into()
            }
            error => error,
        })
    }

    /// Returns the error of a node 0 that cannot host the store: another process may have the same rank.
    fn port_is_taken(&self, error: HostingError, options: StoreOptions) -> HandlerError {
        let token = options.token.clone();
        let options =
            StoreOptions { timeout: PORT_OWNER_TIMEOUT, connect_timeout: PORT_OWNER_TIMEOUT, ..options };
        let taken = Store::connect(&error.host, error.port, options).ok().and_then(|store| {
            let store = store.with_token(&token);
            let key = claim_key(0);
            store.check(&[key.as_bytes()], Timeout::Default).ok().filter(|has_claim| *has_claim)?;
            let current = store.get_owned(key.as_bytes(), Timeout::Default).ok()?;
            self.judge(&current, RoundState::Whole).err()
        });
        taken.unwrap_or_else(|| error.into())
    }

    /// Decides what this node does about its rank, given the claim `current` on it.
    fn judge(&self, current: &[u8], first_round: RoundState) -> Result<ClaimDecision, HandlerError> {
        let was_local = self.joined().has_claimed;
        let is_complete = first_round == RoundState::Whole;
        let view = ClaimView { local_claim: &self.claim, current, was_local, is_complete };
        match view.decide(|claim| start_time(claim.pid) == Some(claim.started)) {
            ClaimDecision::Refuse(other) => {
                Err(view.refusal(&other, self.settings.rank.unsigned_abs(), &self.settings.run_id).into())
            }
            decision => Ok(decision),
        }
    }

    /// Claims this node's rank, or checks that the node still has it.
    fn claim_rank(&self, store: &Store, timeout: Timeout) -> Result<(), HandlerError> {
        let StaticSettings { rank, world_size, .. } = self.settings;
        let (key, local_claim) = (claim_key(rank.unsigned_abs()), self.claim.text());
        let (mut expected, mut current) = (Vec::new(), Vec::new());
        loop {
            store.compare_set(key.as_bytes(), &expected, local_claim.as_bytes(), &mut current, timeout)?;
            if current == local_claim.as_bytes() {
                break;
            }
            let first_round = self.first_round(store, world_size, timeout)?;
            match self.judge(&current, first_round)? {
                // The claim may change again before it is replaced.
                ClaimDecision::Take => expected.clone_from(&current),
                ClaimDecision::Keep | ClaimDecision::Refuse(_) => break,
            }
        }
        self.joined().has_claimed = true;
        Ok(())
    }

    /// Returns whether all nodes have joined the first round, including those of PyTorch.
    fn first_round(&self, store: &Store, nodes: i64, timeout: Timeout) -> Result<RoundState, CallError> {
        let current = Attendance::read(&log(store, 0, 0, timeout)?, nodes.unsigned_abs()).round_state();
        match current {
            RoundState::Open if all_checked_in(store, nodes, Timeout::Once)? => Ok(RoundState::Whole),
            current => Ok(current),
        }
    }

    /// Runs the steps of the state machine until the node is in a round or there is none.
    fn enter(
        &self,
        rounds: &mut StaticRounds,
        joined: &Store,
        token: &CancelToken,
    ) -> Result<u64, HandlerError> {
        let clock = Clock::new();
        let mut until = clock.now() + self.settings.timeout;
        let mut store = joined.with_token(token);
        let mut problem = None;
        rounds.begin();
        loop {
            let step = match rounds.next_step() {
                Step::Over(Outcome::Entered { round }) => return Ok(round),
                Step::Over(outcome) => return Err(self.no_round(outcome, problem)),
                step => step,
            };
            let left = until.since(clock.now());
            let error = match self.perform(&step, rounds, &store, left) {
                Ok(()) => continue,
                Err(HandlerError::Store(error)) => error,
                // Another process has the rank, and with it the entry in the log.
                Err(error) => return Err(error),
            };
            rounds.failed(error.kind(), error.failure().effect);
            if problem.is_none() {
                // The other nodes are notified that this node leaves, even when its join was cancelled.
                store = joined.with_token(&CancelToken::new());
                until = clock.now() + LEAVE_TIMEOUT;
                problem = Some(error);
            }
        }
    }

    fn perform(
        &self,
        step: &Step,
        rounds: &mut StaticRounds,
        store: &Store,
        left: Duration,
    ) -> Result<(), HandlerError> {
        let (timeout, incarnation) = (Timeout::After(left), rounds.incarnation());
        match *step {
            Step::Identify { may_set } => {
                rounds.identified(&identify(store, may_set, timeout)?);
                // In a store that has replaced the one that this node knows, it claims nothing.
                if !matches!(rounds.next_step(), Step::Over(_)) {
                    self.joined().incarnation = rounds.incarnation();
                    self.claim_rank(store, timeout)?;
                }
                return Ok(());
            }
            Step::Read { round } => {
                rounds.saw(&log(store, incarnation, round, timeout)?);
                return Ok(());
            }
            Step::Gather => {
                let nodes = self.settings.world_size;
                if left <= SURVEY_INTERVAL {
                    store.wait_for_workers(nodes, timeout)?;
                } else if !all_checked_in(store, nodes, Timeout::After(SURVEY_INTERVAL))? {
                    rounds.not_all_yet();
                    return Ok(());
                }
            }
            Step::Append { round, entry } => self.append(store, (incarnation, round), entry, timeout)?,
            Step::CheckIn => drop(store.check_in(timeout)?),
            Step::CheckOut => {
                let others = u64::try_from(store.check_out(timeout)?).unwrap_or(0);
                rounds.checked_out_of(others + 1);
            }
            // A process that takes over the rank inherits the check-in along with the entry in the log.
            Step::KeepClaim => self.claim_rank(store, timeout)?,
            Step::Wait { round } => store.wait(&[ended_key(incarnation, round).as_bytes()], timeout)?,
            Step::Notify { round } => end_wait(store, incarnation, round, timeout)?,
            Step::Over(_) => {}
        }
        rounds.done();
        Ok(())
    }

    fn append(
        &self,
        store: &Store,
        (incarnation, round): (u64, u64),
        entry: Entry,
        timeout: Timeout,
    ) -> Result<(), CallError> {
        let text = entry.text(self.settings.rank.unsigned_abs());
        store.append(log_key(incarnation, round).as_bytes(), text.as_bytes(), timeout)
    }

    /// Returns the error of an attempt that ended without a round, because of `problem` if a step failed.
    fn no_round(&self, outcome: Outcome, problem: Option<CallError>) -> HandlerError {
        let StaticSettings { world_size, timeout, .. } = self.settings;
        let run_id: Box<str> = self.settings.run_id.as_str().into();
        match (outcome, problem) {
            (Outcome::Short(Shortfall { round, arrived, missing }), _) => {
                let nodes = world_size.unsigned_abs();
                RendezvousError::Incomplete { run_id, round, arrived, nodes, missing, timeout }.into()
            }
            (Outcome::HostLeft { missing }, Some(error)) => {
                let kind = RendezvousErrorKind::Connection;
                let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
                let missing = missing.join(", ");
                let message = format!(
                    "Node 0, which hosts the store of run '{run_id}', left before all nodes had joined round 0; missing \
                     node ranks at the last check: {missing}. {error}"
                );
                RendezvousError::Refused { kind, message: message.into() }.into()
            }
            (Outcome::GivenUp, Some(error)) if error.kind() == ErrorKind::Cancelled => error.into(),
            (Outcome::GivenUp, Some(error)) => {
                RendezvousError::Connection { backing: Backing::NodeZero, inner: Box::new(error) }.into()
            }
            _ => RendezvousError::Closed { run_id }.into(),
        }
    }

    /// Returns the state of the round after this node's; `None` before the node has joined.
    fn next_round(&self, timeout: Timeout) -> Result<Option<NextRound>, CallError> {
        let round = self.joined().round;
        round.map_or(Ok(None), |round| self.read_round(round + 1, timeout))
    }

    /// Returns the state of a round that this node is not in.
    fn read_round(&self, round: u64, timeout: Timeout) -> Result<Option<NextRound>, CallError> {
        let (store, incarnation) = match &*self.joined() {
            Joined { store: Some(store), incarnation, .. } => {
                (store.with_token(&self.canceller.token()), *incarnation)
            }
            _ => return Ok(None),
        };
        let nodes = self.settings.world_size.unsigned_abs();
        let attendance = Attendance::read(&log(&store, incarnation, round, timeout)?, nodes);
        Ok(Some(NextRound { store, incarnation, round, attendance }))
    }
}

/// A round that the node has not joined.
struct NextRound {
    store: Store,
    incarnation: u64,
    round: u64,
    attendance: Attendance,
}

/// Returns a round's log, empty if no node has joined the round.
fn log(store: &Store, incarnation: u64, round: u64, timeout: Timeout) -> Result<Vec<u8>, CallError> {
    read_if_set(store, log_key(incarnation, round).as_bytes(), timeout)
}

/// Returns the value of a key, empty if it has none.
fn read_if_set(store: &Store, key: &[u8], timeout: Timeout) -> Result<Vec<u8>, CallError> {
    if store.check(&[key], timeout)? { store.get_owned(key, timeout) } else { Ok(Vec::new()) }
}

/// Returns the store's incarnation. If it has none, the node gives it one, or leaves it at that.
fn identify(store: &Store, may_set: bool, timeout: Timeout) -> Result<Vec<u8>, CallError> {
    if !may_set {
        return read_if_set(store, INCARNATION_KEY, timeout);
    }
    let (text, mut current) = (incarnation_text(random_seed()), Vec::new());
    store.compare_set(INCARNATION_KEY, b"", text.as_bytes(), &mut current, timeout)?;
    Ok(current)
}

/// Returns whether as many nodes have checked in as there are. Waits for them up to `timeout`.
fn all_checked_in(store: &Store, nodes: i64, timeout: Timeout) -> Result<bool, CallError> {
    match store.wait_for_workers(nodes, timeout) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(error),
    }
}

/// Ends the other nodes' wait for a round.
fn end_wait(store: &Store, incarnation: u64, round: u64, timeout: Timeout) -> Result<(), CallError> {
    store.set(ended_key(incarnation, round).as_bytes(), b"", timeout)
}

impl RendezvousHandler for StaticRendezvous {
    fn backend(&self) -> &str {
        STATIC_BACKEND
    }

    fn use_agent_store(&self) -> bool {
        true
    }

    /// Joins and waits until all nodes have joined, the first time. Later calls meet the other nodes in a new round
    /// if all of them support rounds, and otherwise return the same result again.
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        let token = self.canceller.token();
        let mut rounds = lock_join(&self.rounds, &self.settings.run_id)?;
        let known = self.joined().store.clone();
        let joined = match known {
            Some(store) => store,
            None => {
                let store = Arc::new(self.join(&token)?);
                self.joined().store = Some(Arc::clone(&store));
                store
            }
        };
        let entered = self.enter(&mut rounds, &joined, &token)?;
        self.joined().round = Some(entered);
        // Nodes of PyTorch use the first round's store, and know no other.
        let round = Some(entered).filter(|&round| round > 0);
        let store = match round {
            None => joined,
            Some(round) => {
                let store = joined.with_prefix(store_prefix(rounds.incarnation(), round).as_bytes());
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
            position: None,
        })
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        let next = self.next_round(Timeout::Once)?;
        Ok(next.is_some_and(|next| next.attendance.round_state() == RoundState::Closed))
    }

    /// Notifies the nodes that wait for the next round, now or later, that there is none. Nodes of PyTorch know no
    /// rounds: nothing is done where they take part, or before this node has joined.
    fn set_closed(&self) -> Result<(), HandlerError> {
        let Some(next) = self.next_round(Timeout::Once)? else { return Ok(()) };
        let NextRound { store, incarnation, round, .. } = next;
        let nodes = self.settings.world_size.unsigned_abs();
        if Attendance::read(&log(&store, incarnation, 0, Timeout::Once)?, nodes).round_state()
            != RoundState::Whole
        {
            return Ok(());
        }
        self.append(&store, (incarnation, round), Entry::Closes, Timeout::Once)?;
        Ok(end_wait(&store, incarnation, round, Timeout::Once)?)
    }

    /// Returns 0 when the store cannot be reached: its host may have finished, and running workers may not need it.
    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        match self.next_round(Timeout::Once) {
            Ok(Some(next)) if next.attendance.round_state() != RoundState::Closed => {
                Ok(next.attendance.arrived())
            }
            Ok(_) | Err(_) => Ok(0),
        }
    }

    /// Before the first round, nodes of PyTorch are not visible: they check in without their ranks.
    fn progress(&self) -> Option<Progress> {
        let round = self.joined().round.map_or(0, |round| round + 1);
        let next = self.read_round(round, Timeout::After(PROGRESS_TIMEOUT)).ok()??;
        let nodes = u32::try_from(next.attendance.arrived()).unwrap_or(u32::MAX);
        let count = usize::try_from(NODE_NAMES_MAX).unwrap_or(usize::MAX);
        let waiting_nodes =
            next.attendance.present().iter().take(count).map(|rank| format!("node {rank}").into());
        let waiting_nodes = waiting_nodes.collect();
        Some(Progress { nodes, nodes_waiting: 0, stage: Stage::Forming, last_call: None, waiting_nodes })
    }

    fn failed_try(&self) -> Option<FailedTry> {
        if self.joined().store.is_some() { None } else { self.last_try.get() }
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

    fn set_token(&self, token: &CancelToken) {
        self.canceller.set_parent(token);
    }
}

/// Address of a store, and whether this process hosts it.
pub(super) struct StoreLocation<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) listen_host: Option<&'a str>,
    pub(super) is_host: bool,
}

impl StoreLocation<'_> {
    /// Hosts the store if that is this process's part, and connects.
    pub(super) fn connect(
        &self,
        servers: &HostedServers,
        options: StoreOptions,
    ) -> Result<NodeStore, HandlerError> {
        let server = if self.is_host {
            Some(servers.host(self.host, self.port, self.listen_host, &HostSecurity::default())?)
        } else {
            None
        };
        let (host, port) = address_of(server.as_deref(), self.host, self.port);
        let store = Store::connect(&host, port, options)?;
        Ok(NodeStore::new(store, server))
    }
}

#[cfg(test)]
mod tests;
