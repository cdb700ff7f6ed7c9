//! Agents on hosts of their own, in a run of their own: the library's agent, whose calls go over the session of a process
//! to the server that all share. Their workers are simulated.
//!
//! During the storm the mishaps of nodes happen to agents, too, and their workers fail. After it every agent must end. If
//! its outcome is success or a failed worker, its workers must have ended so; nothing stops it, and it loses no guard.

mod agent;
mod calls;
mod crew;

use super::super::Counts;
use super::super::world::{SimContext, WorldEvent};
use super::referee::Referee;
use super::{Cue, Rules};
use crate::sim::harness::history::CheckError;
use crate::sim::harness::network::{Notice, Stream};
use crate::sim::harness::sim_rng::SimRng;
use agent::{Agent, Outcomes};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::Terms;

/// Event of an agent that is not caused by the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum AgentCue {
    /// A timer of its machine is due.
    Due,
    /// A call has an answer.
    Answered(u64),
    /// A join may be tried again.
    Rested(u64),
    /// A worker of an attempt has started.
    Up(u64, usize),
    /// A worker of an attempt ends, unless its end was planned anew: the number of the plan.
    Exit(u64, usize, u32),
}

/// What all agents have in common.
struct Job {
    terms: Terms<'static>,
    join_timeout: Duration,
    outcomes: Outcomes,
    starts: u64,
    failures: u64,
}

/// Host of one agent at a time.
struct Place {
    sim_rng: SimRng,
    agent: Option<Agent>,
    /// Whether its agent has ended, so that no further one follows.
    is_over: bool,
}

pub(super) struct Agents {
    /// Number of the first host in the network.
    first: usize,
    places: Vec<Place>,
    job: Job,
}

impl Agents {
    /// Returns agents on so many hosts, which begin one after the other.
    pub(super) fn new(
        seed: u64,
        context: &mut SimContext,
        (first, count): (usize, usize),
        rules: &Rules,
    ) -> Self {
        let mut sim_rng = SimRng::new(seed, 6000);
        let nodes_max = u32::try_from(count).unwrap_or(0);
        let nodes_min = 1 + u32::try_from(sim_rng.index(count.max(1))).unwrap_or(0);
        let terms = Terms { nodes_min, nodes_max, continue_min: 1, ..rules.terms };
        let places = (first..first + count).map(|host| {
            let at = context.now + sim_rng.span(Duration::from_millis(1), Duration::from_secs(1));
            context.event_queue.schedule(at, WorldEvent::Elastic(Cue::StartProcess(host)));
            Place { sim_rng: SimRng::new(seed, 6001 + host as u64), agent: None, is_over: false }
        });
        let places = places.collect();
        let join_timeout = Duration::from_millis(rules.join_timeout_ms);
        let job = Job { terms, join_timeout, outcomes: Outcomes::default(), starts: 0, failures: 0 };
        Self { first, places, job }
    }

    pub(super) const fn first_host(&self) -> usize {
        self.first
    }

    /// Returns the number of hosts.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Returns whether this is the host of an agent.
    pub(super) fn has(&self, host: usize) -> bool {
        (self.first..self.first + self.places.len()).contains(&host)
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.places.iter().filter_map(|place| place.agent.as_ref()).any(|agent| agent.owns(stream))
    }

    /// Returns whether every agent has ended.
    pub(super) fn are_over(&self) -> bool {
        self.places.iter().all(|place| place.is_over)
    }

    pub(super) fn noticed(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        (stream, notice): (Stream, Notice),
    ) -> Result<(), CheckError> {
        let Self { places, job, .. } = self;
        let agents = places.iter_mut().filter_map(|place| place.agent.as_mut());
        match agents.into_iter().find(|agent| agent.owns(stream)) {
            Some(agent) => {
                agent.with(context, referee, rules, job, |process, context| process.noticed(context, notice))
            }
            None => Ok(()),
        }?;
        self.clear(context);
        Ok(())
    }

    /// Handles an event of a host.
    pub(super) fn handle(
        &mut self,
        context: &mut SimContext,
        referee: &mut Referee,
        rules: &mut Rules,
        (host, cue): (usize, Cue),
    ) -> Result<(), CheckError> {
        let Self { first, places, job } = self;
        let place = &mut places[host - *first];
        if let (Cue::StartProcess(_), None, false) = (cue, &place.agent, place.is_over) {
            rules.processes += 1;
            let sim_rng = SimRng::new(place.sim_rng.seed(), 0);
            place
                .agent
                .insert(Agent::new((host, rules.processes), sim_rng)?)
                .begin(context, referee, rules, job)?;
        } else if let Some(agent) = &mut place.agent {
            match cue {
                Cue::Due(_, number) if agent.is_process(number) => {
                    agent.with(context, referee, rules, job, |process, context| {
                        process.poll(context);
                        Ok(())
                    })?;
                }
                Cue::Resolved(_, number, dial) if agent.is_process(number) => {
                    agent.with(context, referee, rules, job, |process, context| {
                        process.resolved(context, dial, true);
                        Ok(())
                    })?;
                }
                Cue::Thaw(_, number) if agent.number == number => {
                    agent.thaw(context, referee, rules, job)?;
                }
                Cue::Agent(_, number, cue) if agent.number == number => {
                    agent.handle(context, referee, rules, job, cue)?;
                }
                _ => {}
            }
        }
        self.clear(context);
        Ok(())
    }

    /// Removes the agents that have ended.
    fn clear(&mut self, context: &mut SimContext) {
        for place in &mut self.places {
            if let Some(agent) = place.agent.take_if(|agent| agent.is_over) {
                place.is_over = true;
                agent.end(context);
            }
        }
    }

    /// Kills the agent of a host, with its workers. Another one begins after this time.
    pub(super) fn crash(&mut self, context: &mut SimContext, host: usize, span: Duration) {
        if let Some(agent) = self.places[host - self.first].agent.take() {
            agent.end(context);
            context.event_queue.schedule(context.now + span, WorldEvent::Elastic(Cue::StartProcess(host)));
        }
    }

    pub(super) fn freeze(&mut self, context: &mut SimContext, host: usize, span: Duration) {
        if let Some(agent) = &mut self.places[host - self.first].agent {
            agent.freeze();
            let thaw = Cue::Thaw(host, agent.number);
            context.event_queue.schedule(context.now + span, WorldEvent::Elastic(thaw));
        }
    }

    /// Notes that the server is frozen until then.
    pub(super) fn server_freezes(&mut self, until: Instant) {
        for agent in self.places.iter_mut().filter_map(|place| place.agent.as_mut()) {
            agent.server_freezes(until);
        }
    }

    /// Checks that no call outlives its deadline.
    pub(super) fn check(&self, context: &SimContext) -> Result<(), CheckError> {
        let mut agents = self.places.iter().filter_map(|place| place.agent.as_ref());
        match agents.find_map(|agent| agent.overdue(context.now)) {
            Some(what) => Err(CheckError(what)),
            None => Ok(()),
        }
    }

    /// Describes the agents that have not ended.
    pub(super) fn unfinished(&self) -> String {
        let agents = self.places.iter().filter_map(|place| place.agent.as_ref());
        agents.map(Agent::describe).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn counts(&self) -> Counts {
        let Job { outcomes, starts, failures, .. } = &self.job;
        vec![
            ("starts of workers by agents", *starts),
            ("workers of agents that failed", *failures),
            ("agents that succeeded together", outcomes.together),
            ("agents that ended otherwise", outcomes.otherwise),
        ]
    }
}
