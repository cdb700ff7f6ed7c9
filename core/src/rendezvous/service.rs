//! Forming groups of numbered nodes: the server's side of the rendezvous, for any number of runs.
//!
//! A node sends one request to join. The server then notifies it when the round is formed (with the node's rank),
//! when others wait, when another node dies, and when the round is over. The service knows a participant as a number
//! and an event as data. Its owner carries out the outputs that concern keys ([`Output::RoundOpened`],
//! [`Output::Fence`], [`Output::Delete`], [`Output::Forgotten`]) in the same iteration. `docs/rendezvous.md` explains
//! what the service does and why.
//!
//! Pass inputs to [`Rendezvous::handle`], drain [`Rendezvous::poll_output`], and pass [`Input::Tick`] at
//! [`Rendezvous::poll_timeout`], until that is later. [`Rendezvous::update`] updates the runs that a request concerns, if
//! they are due; drain the outputs after it, too. Time must not decrease between inputs.
use crate::prelude::*;

mod event;
mod node;
mod policy;
mod round;
mod run;
mod settings;
mod state;

#[cfg(test)]
mod tests;

pub use event::{Event, Input, InputError, Join, JoinFailure, Loss, Output, Shortfall};
pub use node::{NodeName, natural};
pub use policy::{Action, CoolDown, FastQuorum, LastCall, RankOrder, Reason, View, decide};
pub use round::{MemberState, Namespace, Round, RoundMember, RoundRecord, WaitingNode};
pub use run::Counts;
pub use settings::{RunSettings, SettingsDifference, SettingsError, validate_run_id};
pub use state::{NodeState, NodeStateEvent, Phase, PhaseEvent};

use crate::limits::RendezvousLimits;
use crate::ordered::{Index, Named, Set, numbers};
use crate::rendezvous::timeouts::TimeoutError;
use run::{Departure, Effects, Idle, JoinIntent, Run};
use slab::Slab;

/// The name of a run.
pub type RunId = Arc<str>;

/// Number by which the owner of the service identifies a participant: a session, which may be in one run at a time.
/// The owner must not reuse a number before it has reported the end of that session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParticipantId(pub u64);

numbers!(ParticipantId: id => id.0, number => Self(number));

impl fmt::Debug for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "participant {}", self.0)
    }
}

impl fmt::Display for ParticipantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// State of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStatus {
    /// The run's phase.
    pub phase: Phase,
    /// Number of the live round or, if none is live, of the next one.
    pub round: u64,
    /// Numbers of nodes by state.
    pub counts: Counts,
}

/// Largest [`Join::round_min`] that takes effect. More round numbers remain above it than rounds can be formed.
pub const ROUND_MIN_MAX: u64 = 1 << 53;

/// A run with nodes that remembers more than the limit divided by this forgets before runs without nodes are forgotten.
const LARGE_RUN_DIVISOR: usize = 16;

/// Units of work that an update of a run costs, without what it leads to.
const UPDATE_WORK: u64 = 8;

/// Index of a run in `Rendezvous::runs`, constant for the life of the run.
type RunIndex = usize;

/// The rendezvous of all runs of a server.
#[derive(Debug)]
pub struct Rendezvous {
    limits: RendezvousLimits,
    runs: Slab<Run>,
    run_names: Named<RunIndex>,
    participants: Index<ParticipantId, RunIndex>,
    timers: Set<(Instant, RunIndex)>,
    /// The runs without nodes, in the order in which they are forgotten: closed runs first, then the others, each by
    /// the time at which its last node left.
    idle_runs: Index<(Idle, u64), RunIndex>,
    idle_count: u64,
    /// The runs with nodes for which something is counted, that with most bytes first: see [`size_key`].
    remembering: Set<(u64, RunIndex)>,
    /// Sum of what is counted for each run.
    remembered_bytes: usize,
    /// No forgotten run had a round of this number or above.
    first_round: u64,
    effects: Effects,
}

impl Rendezvous {
    /// Creates a service without runs.
    pub fn new(limits: RendezvousLimits) -> Self {
        Self {
            limits,
            runs: Slab::new(),
            run_names: Named::new(),
            participants: Index::new(),
            timers: Set::new(),
            idle_runs: Index::new(),
            idle_count: 0,
            remembering: Set::new(),
            remembered_bytes: 0,
            first_round: 0,
            effects: Effects::default(),
        }
    }

    /// Returns the limits.
    pub const fn limits(&self) -> &RendezvousLimits {
        &self.limits
    }

    /// Handles an input.
    ///
    /// # Errors
    /// The request cannot be fulfilled; see [`InputError`].
    pub fn handle(&mut self, now: Instant, input: Input) -> Result<(), InputError> {
        match input {
            Input::Join { participant, join } => self.enter(now, participant, join, JoinIntent::Slot),
            Input::Standby { participant, join } => self.enter(now, participant, join, JoinIntent::Spare),
            Input::Leave { participant } => {
                let run = self.participants.get(participant);
                let run = run.ok_or(InputError::UnknownParticipant(participant))?;
                self.depart(now, participant, run, Departure::Left)
            }
            Input::Ended { participant, why } => {
                let Some(run) = self.participants.get(participant) else { return Ok(()) };
                // It may have timed out before it died; then there is nothing left to report.
                let _ = self.depart(now, participant, run, Departure::Ended(why));
                Ok(())
            }
            Input::Close { participant, run_id } => {
                self.check_run_id(&run_id)?;
                let run = self.index_for(&run_id)?;
                self.update_run(now, run, &mut |run, fx| {
                    run.close(participant, fx);
                    Ok(())
                })
            }
            Input::Fail { participant, run_id, message } => {
                self.check_run_id(&run_id)?;
                let limit = self.limits.failure_bytes_max;
                if message.len() > limit {
                    return Err(limit_exceeded("bytes of a failure", message.len(), limit));
                }
                let run = self.index_for(&run_id)?;
                self.update_run(now, run, &mut |run, fx| {
                    run.fail(participant, &message, fx);
                    Ok(())
                })
            }
            Input::Tick => match self.timers.first() {
                Some((when, run)) if when <= now => self.update_due(now, run),
                _ => Ok(()),
            },
        }
    }

    /// Updates the run of a participant, and the run of this name, if they are due. To be called before a request of the
    /// participant that depends on what happened before.
    pub fn update(&mut self, now: Instant, participant: ParticipantId, run_id: &[u8]) {
        let runs = [self.participants.get(participant), self.run_names.get(run_id).copied()];
        for run in runs.into_iter().flatten() {
            if self.runs.get(run).and_then(|run| run.armed).is_some_and(|due| due <= now) {
                // An update alone is never refused.
                let _ = self.update_due(now, run);
            }
        }
    }

    fn update_due(&mut self, now: Instant, run: RunIndex) -> Result<(), InputError> {
        self.effects.work += UPDATE_WORK;
        self.update_run(now, run, &mut |_, _| Ok(()))
    }

    /// Returns the work since the last call, in units of [`crate::limits::ServerLimits::work_per_input_max`], without that
    /// of the outputs.
    pub fn take_work(&mut self) -> u64 {
        core::mem::take(&mut self.effects.work)
    }

    /// Returns the next output; `None`: there are no more.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.effects.outputs.pop_front()
    }

    /// Returns when to pass [`Input::Tick`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(when, _)| when)
    }

    /// Returns the state of a run; `None`: it is unknown.
    pub fn status(&self, run_id: &str) -> Option<RunStatus> {
        let run = self.run(run_id)?;
        Some(RunStatus { phase: run.phase, round: run.round(), counts: run.counts })
    }

    /// Returns the last round of a run, live or over; `None`: there was none, or all its nodes have left.
    pub fn last_round(&self, run_id: &str) -> Option<&RoundRecord> {
        self.run(run_id)?.record.as_ref()
    }

    /// Returns the number of the round to be formed next, and the nodes that have joined for it, in no particular
    /// order; `None`: the run is unknown.
    #[must_use]
    pub fn waiting_nodes(&self, run_id: &str) -> Option<(u64, impl Iterator<Item = WaitingNode<'_>>)> {
        let run = self.run(run_id)?;
        Some((run.next_round, run.waiting_nodes()))
    }

    /// Returns the run of a participant, and the participant's state there.
    pub fn node_state(&self, participant: ParticipantId) -> Option<(&RunId, NodeState)> {
        let run = self.runs.get(self.participants.get(participant)?)?;
        Some((&run.id, run.state_of(participant)))
    }

    fn run(&self, run_id: &str) -> Option<&Run> {
        self.runs.get(*self.run_names.get(run_id.as_bytes())?)
    }

    fn enter(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        join: Join,
        join_intent: JoinIntent,
    ) -> Result<(), InputError> {
        self.check_join(&join)?;
        if let Some(run) = self.participants.get(participant).and_then(|run| self.runs.get(run))
            && *run.id != *join.run_id
            && let Some(node) = run.node_of(participant)
        {
            let (run_id, node) = (run.id.clone(), node.clone());
            return Err(InputError::OtherIdentity { participant, run_id, node });
        }
        let nodes_max = self.limits.nodes_per_run_max;
        let run = self.index_for(&join.run_id)?;
        let mut join = Some(join);
        let result = self.update_run(now, run, &mut |run, fx| {
            let Some(join) = join.take() else { return Ok(()) };
            let admitted = run.admits(now, participant, &join);
            if matches!(admitted, Err(InputError::Closed { .. })) {
                run.withdraw(participant, fx);
            }
            admitted?;
            if run.nodes() >= nodes_max && run.node_of(participant).is_none() && !run.has_node(&join.node) {
                return Err(limit_exceeded("nodes of one run", run.nodes() + 1, nodes_max));
            }
            run.enter(now, participant, join, join_intent, fx);
            Ok(())
        });
        if self.runs.get(run).is_some_and(|run| run.node_of(participant).is_some()) {
            self.participants.insert(participant, run);
        }
        result
    }

    fn depart(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        run: RunIndex,
        how: Departure,
    ) -> Result<(), InputError> {
        self.update_run(now, run, &mut |run, fx| {
            run.node_of(participant).ok_or(InputError::UnknownParticipant(participant))?;
            run.depart(now, participant, how, fx);
            Ok(())
        })
    }

    /// Returns the index of the run of this name, creating the run if needed. A run that stays blank is removed by
    /// its next update.
    fn index_for(&mut self, run_id: &str) -> Result<RunIndex, InputError> {
        if let Some(&index) = self.run_names.get(run_id.as_bytes()) {
            return Ok(index);
        }
        if self.runs.len() >= self.limits.runs_max {
            self.forget_one(RunIndex::MAX);
        }
        if self.runs.len() >= self.limits.runs_max {
            return Err(limit_exceeded("runs", self.runs.len() + 1, self.limits.runs_max));
        }
        let index = self.runs.insert(Run::new(run_id.into(), self.first_round));
        self.run_names.insert(run_id.as_bytes(), index);
        Ok(index)
    }

    /// Forgets the run that has been without nodes for longest, of the closed runs if there is one, unless it is the one that
    /// the input updates. Returns whether it has forgotten a run.
    fn forget_one(&mut self, updated: RunIndex) -> bool {
        let first = self.idle_runs.iter().find(|(_, index)| *index != updated);
        let Some((_, index)) = first else { return false };
        let run = self.remove(index);
        self.effects.outputs.extend(run.kept().map(Output::Delete));
        self.first_round = self.first_round.max(run.next_round);
        self.effects.outputs.push_back(Output::Forgotten(run.id));
        true
    }

    fn remove(&mut self, index: RunIndex) -> Run {
        let run = self.runs.remove(index);
        self.run_names.remove(run.id.as_bytes());
        self.remembered_bytes -= run.remembered_bytes;
        self.remembering.remove((size_key(&run), index));
        if let Some(key) = run.idle_key {
            self.idle_runs.remove(key);
        }
        if let Some(armed) = run.armed {
            self.timers.remove((armed, index));
        }
        run
    }

    /// Updates one run: first for the time that has passed, then for the input, then for the consequences.
    fn update_run(
        &mut self,
        now: Instant,
        index: RunIndex,
        apply: &mut dyn FnMut(&mut Run, &mut Effects) -> Result<(), InputError>,
    ) -> Result<(), InputError> {
        let Some(run) = self.runs.get_mut(index) else { return Ok(()) };
        run.settle(now, &mut self.effects);
        let result = apply(run, &mut self.effects);
        let wake = run.settle(now, &mut self.effects);
        if run.armed != wake {
            if let Some(old) = run.armed {
                self.timers.remove((old, index));
            }
            if let Some(new) = wake {
                self.timers.insert((new, index));
            }
            run.armed = wake;
        }
        let idle = run.idle();
        if run.idle_key.map(|(idle, _)| idle) != idle {
            if let Some(old) = run.idle_key.take() {
                self.idle_runs.remove(old);
            }
            if let Some(idle) = idle {
                self.idle_count += 1;
                run.idle_key = Some((idle, self.idle_count));
                self.idle_runs.insert((idle, self.idle_count), index);
            }
        }
        let is_blank = run.is_blank();
        self.count(index);
        if is_blank {
            self.remove(index);
        }
        self.forget_excess(index);
        for participant in self.effects.departed.drain(..) {
            self.participants.remove(participant);
        }
        result
    }

    /// Keeps the bytes that are remembered within their limit, after an update of a run.
    fn forget_excess(&mut self, updated: RunIndex) {
        let bytes_max = self.limits.remembered_bytes_max;
        while self.remembered_bytes > bytes_max {
            let largest = self.remembering.first().map(|(_, index)| index);
            let largest_bytes =
                largest.and_then(|index| self.runs.get(index)).map_or(0, |run| run.remembered_bytes);
            if largest_bytes <= bytes_max / LARGE_RUN_DIVISOR && self.forget_one(updated) {
                continue;
            }
            let Some(index) = largest else { return };
            if let Some(run) = self.runs.get_mut(index) {
                run.forget_unowned();
            }
            self.count(index);
        }
    }

    /// Counts what is remembered of a run.
    fn count(&mut self, index: RunIndex) {
        let Some(run) = self.runs.get_mut(index) else { return };
        self.remembering.remove((size_key(run), index));
        run.count_unowned(&mut self.remembered_bytes);
        if run.remembered_bytes > 0 && run.idle().is_none() {
            self.remembering.insert((size_key(run), index));
        }
    }

    fn check_run_id(&self, run_id: &str) -> Result<(), InputError> {
        let limit = self.limits.run_id_bytes_max;
        if run_id.len() > limit {
            return Err(limit_exceeded("bytes of a run id", run_id.len(), limit));
        }
        Ok(validate_run_id(run_id)?)
    }

    fn check_join(&self, join: &Join) -> Result<(), InputError> {
        self.check_run_id(&join.run_id)?;
        let limits = &self.limits;
        let label_bytes = join.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        let bounded = [
            ("nodes that a round needs", join.settings.min_nodes as usize, limits.nodes_per_run_max),
            ("bytes of a node's host", join.node.host().len(), limits.node_name_bytes_max),
            ("bytes of a node's address", join.address.len(), limits.node_name_bytes_max),
            ("labels of a node", join.labels.len(), limits.labels_max),
            ("bytes of a node's labels", label_bytes, limits.label_bytes_max),
        ];
        if let Some((what, given, limit)) = bounded.into_iter().find(|(_, given, limit)| given > limit) {
            return Err(limit_exceeded(what, given, limit));
        }
        if join.node.host().is_empty() {
            return Err(SettingsError::NodeName.into());
        }
        if join.local_world_size == 0 {
            return Err(SettingsError::NoWorkers.into());
        }
        if join.join_timeout.is_zero() {
            return Err(SettingsError::from(TimeoutError { which: "join", seconds: 0 }).into());
        }
        Ok(join.settings.validate()?)
    }
}

/// Returns a number that is the smaller the more a run remembers.
const fn size_key(run: &Run) -> u64 {
    u64::MAX - run.remembered_bytes as u64
}

const fn limit_exceeded(what: &'static str, given: usize, limit: usize) -> InputError {
    InputError::LimitExceeded { what, given, limit }
}
