//! Referee of rounds, fences, barriers and sessions. It knows none of the machines: it compares what nodes
//! received, what the server reports in its events, and what the server's store contains.

use super::super::host::incarnation;
use super::super::world::SimContext;
use super::process::Slot;
use super::tamper;
use crate::sim::harness::history::CheckError;
use rendezvous_core::node::server::{Event, Server};
use rendezvous_core::rendezvous::service::Action;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::Why;
use std::collections::{BTreeMap, BTreeSet};

/// A run at one process of the server.
#[derive(Debug, Default)]
struct Run {
    rounds: Vec<Round>,
    live: Option<u64>,
    /// Since when a node knows that it is closed.
    closed: Option<Instant>,
}

/// Keys with their revisions.
type Contents = Vec<(Vec<u8>, Option<u64>)>;

#[derive(Debug, Default)]
struct Round {
    /// Keys that were there before it was formed. A server with little budget removes them later.
    earlier: Contents,
    ended: Option<Instant>,
    size: Option<(u32, u64)>,
    /// Name and first worker rank, by rank.
    members: BTreeMap<u32, (String, u64)>,
    /// Names of the nodes that died in it while it was live.
    deaths: BTreeSet<String>,
}

/// Keys of a round that has ended, with their revisions at that time.
#[derive(Debug)]
struct Sealed {
    run: String,
    round: u64,
    prefix: Vec<u8>,
    keys: Contents,
    /// Those of the keys that were there before the round was formed, and that the server may still remove.
    earlier: Contents,
}

impl Sealed {
    /// Returns whether no key has changed, and none of the round itself was removed.
    fn holds(&self, keys: &Contents) -> bool {
        keys.iter().all(|key| self.keys.contains(key))
            && self.keys.iter().all(|key| keys.contains(key) || self.earlier.contains(key))
    }
}

#[derive(Debug)]
struct Arrival {
    begun: u64,
    name: String,
    count: u32,
    generation: Option<u64>,
}

/// A node in a round, as far as it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) run: String,
    pub(super) round: u64,
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct Referee {
    epoch: u32,
    runs: BTreeMap<(u32, String), Run>,
    sealed: Vec<Sealed>,
    revision: u64,
    /// Sessions of this process of the server that must end by a time, and their hosts.
    due: BTreeMap<u64, (Instant, usize)>,
    ended: BTreeSet<u64>,
    barriers: BTreeMap<(u32, Vec<u8>), Vec<Arrival>>,
    ends: BTreeMap<(u32, Vec<u8>, u64), String>,
    arrivals: u64,
    /// Counts for the report.
    pub(super) rounds: u64,
    pub(super) released: u64,
    pub(super) stale: u64,
}

fn wrong<T>(what: String) -> Result<T, CheckError> {
    Err(CheckError(what))
}

impl Referee {
    /// The server has a new process, which knows nothing of the one before.
    pub(super) fn server_restarted(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.sealed.clear();
        self.revision = 0;
        self.due.clear();
        self.ended.clear();
    }

    fn run(&mut self, epoch: u32, run: &str) -> &mut Run {
        self.runs.entry((epoch, run.to_owned())).or_default()
    }

    /// Handles an event of the server. `state` returns the round of a session's node.
    pub(super) fn server_event(
        &mut self,
        context: &SimContext,
        server: &Server,
        event: &Event,
        state: impl Fn(u64) -> Option<Status>,
    ) -> Result<(), CheckError> {
        let (epoch, now) = (self.epoch, context.now);
        match event {
            Event::SessionEnded { session, why, .. } => {
                self.due.remove(&session.0);
                self.ended.insert(session.0);
                if let Some(Status { run, round, name }) = state(session.0)
                    && !matches!(why, Why::Left | Why::ServerStopped)
                {
                    let run = self.run(epoch, &run);
                    if run.live == Some(round)
                        && let Some(round) = usize::try_from(round).ok().and_then(|at| run.rounds.get_mut(at))
                    {
                        round.deaths.insert(name);
                    }
                }
            }
            Event::Run { run_id, round, action: Action::CompleteRound, .. } => {
                let name = tamper::original_run(run_id);
                self.rounds += 1;
                let run = self.run(epoch, &name);
                if let Some(at) = run.closed {
                    return wrong(format!("the closed run {name} has a round {round}; closed at {at:?}"));
                }
                if let Some(live) = run.live {
                    return wrong(format!("two rounds of {name} are live: {live} and {round}"));
                }
                if run.rounds.len() as u64 != *round {
                    return wrong(format!("round {round} of {name} was formed behind {}", run.rounds.len()));
                }
                run.live = Some(*round);
                let earlier = contents(server, &stored_prefix(context, epoch, &name, *round));
                run.rounds.push(Round { earlier, ..Round::default() });
                // The server now removes keys that are two rounds old.
                self.sealed.retain(|sealed| sealed.run != name || sealed.round + 2 > *round);
            }
            Event::Run { run_id, round, action: Action::EndRound, .. } => {
                let name = tamper::original_run(run_id);
                let run = self.run(epoch, &name);
                if run.live.take() != Some(*round) {
                    return wrong(format!("round {round} of {name} ended, which was not live"));
                }
                let mut earlier = Contents::new();
                if let Some(over) = usize::try_from(*round).ok().and_then(|at| run.rounds.get_mut(at)) {
                    over.ended = Some(now);
                    earlier = core::mem::take(&mut over.earlier);
                }
                let prefix = stored_prefix(context, epoch, &name, *round);
                let keys = contents(server, &prefix);
                self.sealed.push(Sealed { run: name, round: *round, prefix, keys, earlier });
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks what must hold at all times.
    pub(super) fn check(&mut self, now: Instant, server: &Server) -> Result<(), CheckError> {
        if let Some((session, (_, host))) = self.due.iter().find(|(_, (by, _))| *by < now) {
            return wrong(format!("session {session} of host {host} outlives its grace"));
        }
        if server.engine().revision() == self.revision {
            return Ok(());
        }
        self.revision = server.engine().revision();
        for sealed in &self.sealed {
            let keys = contents(server, &sealed.prefix);
            if !sealed.holds(&keys) {
                let Sealed { run, round, keys: before, .. } = sealed;
                return wrong(format!(
                    "round {round} of {run} is over, and its keys changed: {before:?}, {keys:?}"
                ));
            }
        }
        Ok(())
    }

    /// Sets the time by which the session of a dead process must have ended.
    pub(super) fn session_ends_by(&mut self, epoch: u32, session: u64, by: Instant, host: usize) {
        if epoch == self.epoch && session != 0 && !self.ended.contains(&session) {
            self.due.insert(session, (by, host));
        }
    }

    /// Moves the deadlines of a host whose bytes are in transit for longer.
    pub(super) fn delay_host(&mut self, held: usize, by: Duration) {
        for (until, _) in self.due.values_mut().filter(|(_, host)| *host == held) {
            *until = *until + by;
        }
    }

    /// Returns the number of the server's process, if the run is known to be closed in it.
    pub(super) fn closed_in(&self, run: &str) -> Option<u32> {
        let known = self.runs.get(&(self.epoch, run.to_owned()))?;
        known.closed.map(|_| self.epoch)
    }

    /// Notes that a node knows that a run is closed.
    pub(super) fn closed(&mut self, epoch: Option<u32>, run: &str, now: Instant) {
        if let Some(epoch) = epoch {
            self.run(epoch, run).closed.get_or_insert(now);
        }
    }

    pub(super) fn live(&self, run: &str) -> Option<u64> {
        self.runs.get(&(self.epoch, run.to_owned()))?.live
    }

    /// Checks the round that a node got.
    pub(super) fn formed(
        &mut self,
        epoch: u32,
        (run, name): (&str, &str),
        joined: &Slot,
        late: bool,
    ) -> Result<(), CheckError> {
        let Slot { round, rank, nodes, rank_first, world_size, .. } = *joined;
        if late {
            return wrong(format!(
                "{name} joined {run} after it was closed, and the closed run has a round {round}"
            ));
        }
        let known = self.run(epoch, run);
        let live = known.live;
        let Some(record) = usize::try_from(round).ok().and_then(|at| known.rounds.get_mut(at)) else {
            return wrong(format!("{name} got round {round} of {run}, and {live:?} is live: two rounds"));
        };
        if *record.size.get_or_insert((nodes, world_size)) != (nodes, world_size) {
            return wrong(format!("{name} got {nodes} nodes in round {round}: {record:?}"));
        }
        if rank >= nodes {
            return wrong(format!("{name} has rank {rank} of {nodes}"));
        }
        if let Some((other, _)) = record.members.get(&rank) {
            return wrong(format!("rank {rank} of round {round} of {run} was given twice: {other}, {name}"));
        }
        if record.members.values().any(|(other, _)| other == name) {
            return wrong(format!("{name} has two ranks in round {round} of {run}"));
        }
        if joined.namespace != prefix_of(epoch, run, round).as_bytes() {
            return wrong(format!("{name} got other keys than those of round {round}: {joined:?}"));
        }
        record.members.insert(rank, (name.to_owned(), rank_first));
        Ok(())
    }

    /// Checks that a node of a round was notified of all deaths in it, when the round has ended or is still live.
    pub(super) fn check_deaths_known(
        &self,
        epoch: u32,
        state: &Status,
        last_received_at: &BTreeSet<(u64, String)>,
        says_over: bool,
    ) -> Result<(), CheckError> {
        let Status { run, round, name } = state;
        let record = self.runs.get(&(epoch, run.clone()));
        let record = record.and_then(|run| run.rounds.get(usize::try_from(*round).ok()?));
        let Some(record) = record else { return Ok(()) };
        if says_over && record.ended.is_none() {
            return wrong(format!("{name} was notified that round {round} of {run} is over, and it is not"));
        }
        match record
            .deaths
            .iter()
            .find(|dead| *dead != name && !last_received_at.contains(&(*round, (*dead).clone())))
        {
            Some(dead) => {
                wrong(format!("{name} was not notified that {dead} died in round {round} of {run}"))
            }
            None => Ok(()),
        }
    }

    /// Checks a change with the prefix `key` that was executed after a request at `began`.
    pub(super) fn carried_out(&mut self, epoch: u32, key: &[u8], began: Instant) -> Result<(), CheckError> {
        let Some((run, round)) = round_of(epoch, key) else { return Ok(()) };
        let record = self.runs.get(&(epoch, run.clone()));
        let ended = record.and_then(|run| run.rounds.get(usize::try_from(round).ok()?)?.ended);
        match ended.filter(|&ended| ended < began) {
            Some(ended) => wrong(format!(
                "a write of {began:?} beneath round {round} of {run} was carried out, which is over since {ended:?}"
            )),
            None => Ok(()),
        }
    }

    /// Checks a change that was refused because its round had ended.
    pub(super) fn refused_as_stale(&mut self, epoch: u32, key: &[u8]) -> Result<(), CheckError> {
        self.stale += 1;
        let Some((run, round)) = round_of(epoch, key) else {
            return wrong(format!("{} is of no round, and is said to be of one", key.escape_ascii()));
        };
        let record = self.runs.get(&(epoch, run.clone()));
        match record.and_then(|run| run.rounds.get(usize::try_from(round).ok()?)) {
            Some(Round { ended: Some(_), .. }) => Ok(()),
            _ => wrong(format!("round {round} of {run} is not over, and a write to it was refused")),
        }
    }

    /// Notes an arrival at a barrier. Returns its number among all arrivals.
    pub(super) fn arrives(&mut self, epoch: u32, key: &[u8], name: &str, count: u32) -> u64 {
        self.arrivals += 1;
        let (begun, name) = (self.arrivals, name.to_owned());
        let arrivals = self.barriers.entry((epoch, key.to_vec())).or_default();
        arrivals.push(Arrival { begun, name, count, generation: None });
        begun
    }

    pub(super) fn barrier_over(
        &mut self,
        epoch: u32,
        key: &[u8],
        begun: u64,
        (generation, end, released): (u64, String, bool),
    ) -> Result<(), CheckError> {
        let name = || key.escape_ascii();
        let before = self.ends.entry((epoch, key.to_vec(), generation)).or_insert_with(|| end.clone());
        if *before != end {
            return wrong(format!("generation {generation} of {} ended so and so: {before}, {end}", name()));
        }
        let Some(arrivals) = self.barriers.get_mut(&(epoch, key.to_vec())) else { return Ok(()) };
        let Some(local) = arrivals.iter_mut().find(|arrival| arrival.begun == begun) else { return Ok(()) };
        local.generation = Some(generation);
        let count = local.count;
        if released {
            self.released += 1;
            let may_be =
                arrivals.iter().filter(|other| other.generation.is_none_or(|local| local == generation));
            let there: BTreeSet<&str> = may_be.map(|other| other.name.as_str()).collect();
            if there.len() < count as usize {
                return wrong(format!("the barrier {} opened for {there:?}, and it is for {count}", name()));
            }
        }
        Ok(())
    }

    /// Checks all rounds at the end.
    pub(super) fn check_at_end(&self) -> Result<(), CheckError> {
        for ((_, run), known) in &self.runs {
            for (number, round) in known.rounds.iter().enumerate() {
                check_workers(round)
                    .map_err(|what| CheckError(format!("round {number} of {run}: {what}")))?;
            }
        }
        Ok(())
    }
}

/// Checks that the workers of a round are numbered without gaps, as far as its nodes have received their numbers. Each
/// node has as many workers as [`workers_of`] returns.
fn check_workers(round: &Round) -> Result<(), String> {
    let Some((nodes, world_size)) = round.size else { return Ok(()) };
    if round.members.len() != nodes as usize {
        return Ok(());
    }
    let mut workers = 0;
    for (name, rank_first) in round.members.values() {
        if *rank_first != workers {
            return Err(format!("the workers of {name} begin at {rank_first}, not at {workers}"));
        }
        workers += u64::from(workers_of(name));
    }
    if workers == world_size {
        Ok(())
    } else {
        Err(format!("the round has {workers} workers, and its nodes got {world_size}"))
    }
}

/// Returns the number of workers of a node with this name.
pub(super) fn workers_of(name: &str) -> u32 {
    1 + u32::from(name.bytes().fold(0, u8::wrapping_add) % 3)
}

/// Returns the keys with a prefix, and their revisions.
fn contents(server: &Server, prefix: &[u8]) -> Contents {
    let engine = server.engine();
    let keys = engine.keys_with_prefix(prefix);
    keys.into_iter().map(|key| (key.to_vec(), engine.revision_of(key))).collect()
}

/// Returns the prefix of the keys of a round at this process of the server.
pub(super) fn prefix_of(epoch: u32, run: &str, round: u64) -> String {
    format!("/torch.rendezvous.{run}.{:016x}.{round}/", incarnation(epoch))
}

/// Returns the prefix under which the store has the keys of a round.
fn stored_prefix(context: &SimContext, epoch: u32, run: &str, round: u64) -> Vec<u8> {
    tamper::stored_prefix(context.sabotage, prefix_of(epoch, run, round).as_bytes())
}

/// Returns the run and the round of a key, for this process of the server.
fn round_of(epoch: u32, key: &[u8]) -> Option<(String, u64)> {
    let rest = key.strip_prefix(b"/torch.rendezvous.")?;
    let end = rest.iter().position(|&byte| byte == b'/')?;
    let (run, round) = core::str::from_utf8(&rest[..end]).ok()?.rsplit_once('.')?;
    let (run, life) = run.rsplit_once('.')?;
    let is_of_this_life = u64::from_str_radix(life, 16).ok()? == incarnation(epoch);
    Some((run.to_owned(), round.parse().ok()?)).filter(|_| is_of_this_life)
}
