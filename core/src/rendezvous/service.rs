//! How strangers become a numbered group: the server's side of the rendezvous, for any number of runs.
//!
//! Nodes say once that they join, and are told: who they are when the round is formed, that others wait, that one of
//! them died, that the round is over. The service knows a participant as a number and an event as data. What is to be
//! done with keys ([`Output::RoundOpened`], [`Output::Fence`], [`Output::Delete`]) is for its owner to do in the same
//! turn. `docs/rendezvous.md` is the guide to what it does and why.
//!
//! [`Rendezvous::handle`] what happened, drain [`Rendezvous::poll_output`], and come back with [`Input::Tick`] at
//! [`Rendezvous::poll_timeout`]. Time never goes back between inputs.

mod event;
mod node;
mod policy;
mod round;
mod run;
mod settings;
mod state;

#[cfg(test)]
mod tests;

pub use event::{EndReason, Event, Input, InputError, Join, JoinFailure, Loss, Output, Shortfall};
pub use node::{NodeName, natural};
pub use policy::{Action, CoolDown, FastQuorum, LastCall, RankOrder, Reason, View, decide};
pub use round::{Fate, Namespace, Round, RoundMember};
pub use run::Counts;
pub use settings::{RunSettings, SettingsDifference, SettingsError, validate_run_id};
pub use state::{Phase, PhaseEvent, Place, PlaceEvent};

use crate::limits::RendezvousLimits;
use crate::rendezvous::timeouts::TimeoutError;
use crate::time::Instant;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::fmt;
use run::{Departure, Effects, Run, Wish};

/// The name of a run.
pub type RunId = Arc<str>;

/// A participant, as the owner of the service calls it: a session that may be in one run at a time. A number is not
/// given to another before the service was told that its holder ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParticipantId(pub u64);

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

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunStatus {
    /// Where it is.
    pub phase: Phase,
    /// The live round or else the next one.
    pub round: u64,
    /// How many nodes stand where.
    pub counts: Counts,
}

/// The rendezvous of all runs of a server.
#[derive(Debug)]
pub struct Rendezvous {
    limits: RendezvousLimits,
    runs: BTreeMap<RunId, Run>,
    participants: BTreeMap<ParticipantId, RunId>,
    timers: BTreeSet<(Instant, RunId)>,
    effects: Effects,
}

impl Rendezvous {
    /// No runs yet.
    #[must_use]
    pub fn new(limits: RendezvousLimits) -> Self {
        Self {
            limits,
            runs: BTreeMap::new(),
            participants: BTreeMap::new(),
            timers: BTreeSet::new(),
            effects: Effects::default(),
        }
    }

    /// Something happened.
    ///
    /// # Errors
    /// What was asked for cannot be done; see [`InputError`].
    pub fn handle(&mut self, now: Instant, input: Input) -> Result<(), InputError> {
        match input {
            Input::Join { participant, join } => self.enter(now, participant, join, Wish::Seat),
            Input::Standby { participant, join } => self.enter(now, participant, join, Wish::Spare),
            Input::Leave { participant } => {
                let run_id = self.participants.get(&participant).cloned();
                let run_id = run_id.ok_or(InputError::UnknownParticipant(participant))?;
                self.depart(now, participant, &run_id, Departure::Left)
            }
            Input::Ended { participant, why } => {
                let Some(run_id) = self.participants.get(&participant).cloned() else { return Ok(()) };
                // Its time may have been up before it died; then there is nothing left to report.
                let _ = self.depart(now, participant, &run_id, Departure::Ended(why));
                Ok(())
            }
            Input::Close { participant, run_id } => {
                self.check_run_id(&run_id)?;
                self.turn(now, &run_id, |run, fx| {
                    run.close(participant, fx);
                    Ok(())
                })
            }
            Input::Tick => {
                while let Some((when, run_id)) = self.timers.first().cloned()
                    && when <= now
                {
                    self.turn(now, &run_id, |_, _| Ok(()))?;
                }
                Ok(())
            }
        }
    }

    /// The next thing to do; none: all is done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.effects.outputs.pop_front()
    }

    /// When to come back with [`Input::Tick`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(when, _)| when)
    }

    /// How many nodes wait for the next round while one is live; those that stand by do not count. 0 for an unknown run.
    #[must_use]
    pub fn num_nodes_waiting(&self, run_id: &str) -> u32 {
        self.runs.get(run_id).map_or(0, |run| run.counts.waiting)
    }

    /// Whether the run was closed. One that is unknown was not.
    #[must_use]
    pub fn is_closed(&self, run_id: &str) -> bool {
        self.runs.get(run_id).is_some_and(|run| run.phase.is_closed())
    }

    /// How a run stands; `None`: it is unknown.
    #[must_use]
    pub fn status(&self, run_id: &str) -> Option<RunStatus> {
        let run = self.runs.get(run_id)?;
        Some(RunStatus { phase: run.phase, round: run.round(), counts: run.counts })
    }

    /// The last round of a run, live or over, and its nodes by rank; `None`: there was none, or nobody of it is left.
    #[must_use]
    pub fn members(&self, run_id: &str) -> Option<(u64, &[RoundMember])> {
        let record = self.runs.get(run_id)?.record.as_ref()?;
        Some((record.round, &record.members))
    }

    /// What is to be done with a run at `now`, and why; `None`: nobody is in it.
    #[must_use]
    pub fn explain(&self, now: Instant, run_id: &str) -> Option<(Action, Reason)> {
        Some(decide(now, &self.runs.get(run_id)?.view()?))
    }

    /// The run in which a participant is, and where it stands there.
    #[must_use]
    pub fn place(&self, participant: ParticipantId) -> Option<(&RunId, Place)> {
        let run_id = self.participants.get(&participant)?;
        Some((run_id, self.runs.get(run_id)?.place_of(participant)))
    }

    fn enter(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        join: Join,
        wish: Wish,
    ) -> Result<(), InputError> {
        self.check_join(&join)?;
        if let Some(run_id) = self.participants.get(&participant)
            && **run_id != *join.run_id
            && let Some(node) = self.runs.get(run_id).and_then(|run| run.node_of(participant))
        {
            let (run_id, node) = (run_id.clone(), node.clone());
            return Err(InputError::OtherIdentity { participant, run_id, node });
        }
        let nodes_max = self.limits.nodes_per_run_max;
        let run_id: RunId = join.run_id.as_ref().into();
        let result = self.turn(now, &run_id, |run, fx| {
            let admitted = run.admits(now, participant, &join);
            if matches!(admitted, Err(InputError::Closed { .. })) {
                run.withdraw(participant, fx);
            }
            admitted?;
            if run.nodes() >= nodes_max && run.node_of(participant).is_none() && !run.has_node(&join.node) {
                return Err(over("nodes of one run", run.nodes() + 1, nodes_max));
            }
            run.enter(now, participant, join, wish, fx);
            Ok(())
        });
        if let Some(run) = self.runs.get(&run_id).filter(|run| run.node_of(participant).is_some()) {
            self.participants.insert(participant, run.id.clone());
        }
        result
    }

    fn depart(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        run_id: &RunId,
        how: Departure,
    ) -> Result<(), InputError> {
        let failed_hosts_max = self.limits.failed_hosts_max;
        self.turn(now, run_id, |run, fx| {
            run.node_of(participant).ok_or(InputError::UnknownParticipant(participant))?;
            run.depart(now, participant, how, failed_hosts_max, fx);
            Ok(())
        })
    }

    /// One turn of one run: first what time has brought, then what happened, then what follows.
    fn turn(
        &mut self,
        now: Instant,
        run_id: &str,
        happened: impl FnOnce(&mut Run, &mut Effects) -> Result<(), InputError>,
    ) -> Result<(), InputError> {
        if !self.runs.contains_key(run_id) {
            if self.runs.len() >= self.limits.runs_max {
                return Err(over("runs", self.runs.len() + 1, self.limits.runs_max));
            }
            let run_id: RunId = run_id.into();
            self.runs.insert(run_id.clone(), Run::new(run_id));
        }
        let Some(run) = self.runs.get_mut(run_id) else { return Ok(()) };
        run.settle(now, &mut self.effects);
        let result = happened(run, &mut self.effects);
        let wake = run.settle(now, &mut self.effects);
        if run.armed != wake {
            if let Some(old) = run.armed {
                self.timers.remove(&(old, run.id.clone()));
            }
            if let Some(new) = wake {
                self.timers.insert((new, run.id.clone()));
            }
            run.armed = wake;
        }
        if run.is_blank() {
            self.runs.remove(run_id);
        }
        for participant in self.effects.departed.drain(..) {
            self.participants.remove(&participant);
        }
        result
    }

    fn check_run_id(&self, run_id: &str) -> Result<(), InputError> {
        let limit = self.limits.run_id_bytes_max;
        if run_id.len() > limit {
            return Err(over("bytes of a run id", run_id.len(), limit));
        }
        Ok(validate_run_id(run_id)?)
    }

    fn check_join(&self, join: &Join) -> Result<(), InputError> {
        self.check_run_id(&join.run_id)?;
        let limits = &self.limits;
        let label_bytes = join.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
        let bounded = [
            ("bytes of a node's host", join.node.host().len(), limits.node_name_bytes_max),
            ("bytes of a node's address", join.address.len(), limits.node_name_bytes_max),
            ("labels of a node", join.labels.len(), limits.labels_max),
            ("bytes of a node's labels", label_bytes, limits.label_bytes_max),
        ];
        if let Some((what, given, limit)) = bounded.into_iter().find(|(_, given, limit)| given > limit) {
            return Err(over(what, given, limit));
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

const fn over(what: &'static str, given: usize, limit: usize) -> InputError {
    InputError::LimitExceeded { what, given, limit }
}
