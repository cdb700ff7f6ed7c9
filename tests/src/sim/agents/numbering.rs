//! Thread that meets the other agents in the store of the round: there they assign ranks to their workers and pass the
//! exit barrier.

use super::master_server::{Answer, Op, Request, ServerMessage};
use super::threads::{Ask, Info, Numbering, NumberingAsk, Step, Thread, ThreadReport, set_deadline};
use super::world::World;
use rendezvous_agent::node::rounds::{EXIT_BARRIER_PREFIX, wait_failure};
use rendezvous_agent::ranks::{
    Ranks, assign, assigned, assigned_ranks_key, read_assigned, role_info, role_info_key,
};
use rendezvous_agent::spec::RankAssignment;
use rendezvous_agent::supervisor::Input;
use rendezvous_core::elastic_store::Step as BarrierStep;
use rendezvous_core::elastic_store::barrier::{BarrierOptions, BarrierOutcome, TracedBarrier};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::store::call::Outcome;
use rendezvous_core::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A wait that lasts so long is an error: a death, a failure or a newcomer ends the wait of agents in a rendezvous that
/// reports these.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(60 * 60 * 24);
const MASTER_KEY: &str = "MASTER_ADDR";

/// Failure of a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFailure {
    Cancelled,
    ConnectionLost,
    TimedOut,
    Stale,
    Exhausted,
}

impl WaitFailure {
    const fn message(self) -> &'static str {
        match self {
            Self::Cancelled => "the call was cancelled",
            Self::ConnectionLost => "the connection is gone",
            Self::TimedOut => "the call timed out",
            Self::Stale => "the round is over",
            Self::Exhausted => "there is no port",
        }
    }

    /// Returns the kind of failure that the store's client reports.
    const fn kind(self) -> Option<ErrorKind> {
        match self {
            Self::Cancelled => Some(ErrorKind::Cancelled),
            Self::ConnectionLost => Some(ErrorKind::ServerGone),
            Self::TimedOut => Some(ErrorKind::TimedOut),
            Self::Stale => Some(ErrorKind::StaleRound),
            Self::Exhausted => None,
        }
    }
}

impl World {
    pub(super) fn ask_numbering(&mut self, at: usize, ask: NumberingAsk) {
        self.agents[at].context.numbering_asks.push_back(ask);
        while let Some(ask) = self.agents[at].context.numbering_asks.pop_front() {
            let is_under_way = !matches!(self.agents[at].context.numbering, Numbering::Idle);
            if is_under_way {
                if let Some((session, id)) = self.numbering_call(at) {
                    self.send(session, Request::GiveUp { id });
                }
                self.wait_failure(at, WaitFailure::Cancelled);
                self.member_nudged(at);
            }
            self.begin_numbering(at, ask);
        }
    }

    fn numbering_call(&self, at: usize) -> Option<(u64, u64)> {
        match &self.agents[at].context.numbering {
            Numbering::Idle => None,
            Numbering::Assigning { info, id, .. } | Numbering::ExitBarrier { info, id, .. } => {
                Some((info.session, *id))
            }
        }
    }

    fn begin_numbering(&mut self, at: usize, ask: NumberingAsk) {
        let now = self.sim.now;
        let spec = &self.plan.nodes[at].spec;
        match ask {
            NumberingAsk::Assign { call, info } => {
                let mut steps = vec![Step::Learn];
                if info.rank == 0 {
                    steps.extend([Step::Publish, Step::Gather]);
                }
                steps.push(Step::Introduce);
                if spec.rank_assignment == RankAssignment::Identical {
                    steps.clear();
                }
                steps.push(Step::NodeState);
                let until = now + spec.assign_timeout;
                let context = &mut self.agents[at].context;
                context.numbering = Numbering::Assigning { call, info, steps, id: 0, until };
                if core::mem::take(&mut context.is_unlucky) {
                    self.wait_failure(at, WaitFailure::Exhausted);
                } else {
                    self.next_number(at, None);
                }
            }
            NumberingAsk::Part { call, info } => {
                let timeout = BARRIER_TIMEOUT;
                let world_size = i64::try_from(info.nodes).unwrap_or(i64::MAX);
                let options =
                    BarrierOptions { timeout, ..BarrierOptions::new(world_size, EXIT_BARRIER_PREFIX) };
                // There is at least this participant.
                let Ok(barrier) = TracedBarrier::new(options) else { return };
                let context = &mut self.agents[at].context;
                context.numbering = Numbering::ExitBarrier { call, info, barrier: Box::new(barrier), id: 0 };
                self.next_arrival(at);
            }
            NumberingAsk::Rest => {}
        }
    }

    /// Handles the failure of the call under way, and so of the task that it belonged to.
    pub(super) fn wait_failure(&mut self, at: usize, how: WaitFailure) {
        let (kind, message) = (wait_failure(how.kind()), how.message().into());
        let context = &mut self.agents[at].context;
        let input = match core::mem::take(&mut context.numbering) {
            Numbering::Idle => return,
            Numbering::Assigning { call, .. } => Input::NotAssigned { call, kind, message },
            Numbering::ExitBarrier { call, .. } => Input::NotParted { call, kind, message },
        };
        self.sim.note(format_args!("{at} in vain: {}", how.message()));
        context.report_input(&mut self.sim, at, Thread::Numbering, input);
    }

    fn ask_store(&mut self, at: usize, ask: Ask, until: Instant) -> u64 {
        let id = self.agents[at].context.id();
        let Ask { session, round, op } = ask;
        self.send(session, Request::Store { id, round, op });
        set_deadline(&mut self.sim.event_queue, at, Thread::Numbering, id, until);
        id
    }

    fn has_line(&self, at: usize, info: &Info) -> bool {
        self.agents[at].context.line() == Some(info.session)
    }

    /// Handles the answer to the step under way, and begins the next one.
    fn next_number(&mut self, at: usize, answer: Option<Answer>) {
        let spec = self.plan.nodes[at].spec.clone();
        let Numbering::Assigning { call, info, mut steps, until, .. } =
            core::mem::take(&mut self.agents[at].context.numbering)
        else {
            return;
        };
        let values = match answer {
            Some(Answer::Values(values)) => values,
            _ => Vec::new(),
        };
        let Some(step) = steps.pop() else {
            let ranks = match spec.rank_assignment {
                RankAssignment::Identical => {
                    Ok(Ranks::of_identical(info.rank, info.nodes, spec.local_world_size))
                }
                RankAssignment::ThroughStore => read_assigned(info.rank, &values.concat()),
            };
            let reported = match ranks {
                Ok(ranks) => ThreadReport::Numbered { call, ranks },
                Err(error) => {
                    let message = error.to_string().into();
                    ThreadReport::Input(Input::NotAssigned { call, kind: wait_failure(None), message })
                }
            };
            return self.agents[at].context.notify(&mut self.sim, at, Thread::Numbering, reported);
        };
        let local = role_info_key(info.rank);
        let op = match step {
            Step::NodeState if info.rank == 0 => Op::Set(vec![(MASTER_KEY.into(), b"here".to_vec())]),
            Step::NodeState => Op::Get(vec![MASTER_KEY.into()]),
            Step::Introduce => {
                Op::Set(vec![(local, role_info(&spec.role, info.rank, spec.local_world_size))])
            }
            Step::Gather => Op::Get((0..info.nodes).map(role_info_key).collect()),
            Step::Publish => {
                let reported = assign(&values).unwrap_or_default();
                let pairs =
                    (0..).zip(&reported).map(|(rank, ranks)| (assigned_ranks_key(rank), assigned(ranks)));
                Op::Set(pairs.collect())
            }
            Step::Learn => Op::Get(vec![assigned_ranks_key(info.rank)]),
        };
        let has_line = self.has_line(at, &info);
        let ask = Ask { session: info.session, round: info.round, op };
        let id = if has_line { self.ask_store(at, ask, until) } else { 0 };
        self.agents[at].context.numbering = Numbering::Assigning { call, info, steps, id, until };
        if !has_line {
            self.wait_failure(at, WaitFailure::ConnectionLost);
        }
    }

    fn next_arrival(&mut self, at: usize) {
        let now = self.sim.now;
        let Numbering::ExitBarrier { call, info, barrier, .. } =
            core::mem::take(&mut self.agents[at].context.numbering)
        else {
            return;
        };
        let Some(step) = barrier.next_step() else {
            let input = match barrier.barrier_outcome() {
                Some(BarrierOutcome::Released) => Input::Parted { call },
                _ => {
                    let kind = wait_failure(Some(ErrorKind::TimedOut));
                    Input::NotParted { call, kind, message: "not all have come".into() }
                }
            };
            return self.agents[at].context.report_input(&mut self.sim, at, Thread::Numbering, input);
        };
        let (op, until) = match step {
            BarrierStep::Add { key, delta } => (Op::Add(key.into(), delta), now + ANSWER_TIMEOUT),
            BarrierStep::Mark { key } => (Op::Set(vec![(key.into(), b"1".to_vec())]), now + ANSWER_TIMEOUT),
            BarrierStep::Wait { key, until } => (Op::Get(vec![key.into()]), until),
            // The options do not ask for traces.
            BarrierStep::Check { .. } => return,
        };
        let has_line = self.has_line(at, &info);
        let ask = Ask { session: info.session, round: info.round, op };
        let id = if has_line { self.ask_store(at, ask, until) } else { 0 };
        self.agents[at].context.numbering = Numbering::ExitBarrier { call, info, barrier, id };
        if !has_line {
            self.wait_failure(at, WaitFailure::ConnectionLost);
        }
    }

    pub(super) fn numbering_news(&mut self, at: usize, news: &ServerMessage) {
        let ServerMessage::Stored { id, answer } = news else { return };
        if self.numbering_call(at).is_none_or(|(_, local)| local != *id) {
            return;
        }
        if matches!(answer, Answer::Stale) {
            return self.wait_failure(at, WaitFailure::Stale);
        }
        let now = self.sim.now;
        match &mut self.agents[at].context.numbering {
            Numbering::Idle => {}
            Numbering::Assigning { .. } => self.next_number(at, Some(answer.clone())),
            Numbering::ExitBarrier { call, barrier, .. } => {
                let outcome = match (barrier.next_step(), answer) {
                    (_, Answer::Number(sum)) => Outcome::Number(*sum),
                    (Some(BarrierStep::Wait { .. }), _) => Outcome::Released,
                    _ => Outcome::Applied,
                };
                let (call, was_awaited) = (*call, !barrier.has_arrived());
                // The outcome belongs to the step that was due.
                barrier.handle(now, outcome).ok();
                if was_awaited && barrier.has_arrived() {
                    let arrived = Input::Arrived { call };
                    self.agents[at].context.report_input(&mut self.sim, at, Thread::Numbering, arrived);
                }
                self.next_arrival(at);
            }
        }
    }

    pub(super) fn numbering_time_up(&mut self, at: usize, id: u64) {
        let Some((session, local)) = self.numbering_call(at) else { return };
        if local != id {
            return;
        }
        self.send(session, Request::GiveUp { id });
        let now = self.sim.now;
        if let Numbering::ExitBarrier { barrier, .. } = &mut self.agents[at].context.numbering
            && matches!(barrier.next_step(), Some(BarrierStep::Wait { .. }))
        {
            barrier.handle(now, Outcome::Missing).ok();
            return self.next_arrival(at);
        }
        self.wait_failure(at, WaitFailure::TimedOut);
    }
}
