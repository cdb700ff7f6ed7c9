//! The thread that meets the other agents in the round's store: there the workers get their numbers, and there the agents
//! part.

use super::errands::{Ask, Info, Numbering, NumberingAsk, Step, Thread, Told, set_deadline};
use super::office::{Answer, News, Op, Request};
use super::world::World;
use rendezvous_agent::node::rounds::{EXIT_BARRIER_PREFIX, in_vain};
use rendezvous_agent::ranks::{
    Ranks, assign, assigned, assigned_ranks_key, read_assigned, role_info, role_info_key,
};
use rendezvous_agent::spec::RankAssignment;
use rendezvous_agent::supervisor::Input;
use rendezvous_core::elastic_store::Step as BarrierStep;
use rendezvous_core::elastic_store::barrier::{BarrierOptions, TracedBarrier, Verdict};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::store::call::Outcome;
use rendezvous_core::time::{Duration, Instant};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Whoever waits so long has been forgotten: a death, a failure or a newcomer ends the wait of agents in a rendezvous that
/// tells of them.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(60 * 60 * 24);
const MASTER_KEY: &str = "MASTER_ADDR";

/// How a call in the store came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InVain {
    Cancelled,
    LineLost,
    TimedOut,
    Stale,
    NoRoom,
}

impl InVain {
    const fn words(self) -> &'static str {
        match self {
            Self::Cancelled => "the call was cancelled",
            Self::LineLost => "the connection is gone",
            Self::TimedOut => "the call timed out",
            Self::Stale => "the round is over",
            Self::NoRoom => "there is no port",
        }
    }

    /// As the store's client has it.
    const fn kind(self) -> Option<ErrorKind> {
        match self {
            Self::Cancelled => Some(ErrorKind::Cancelled),
            Self::LineLost => Some(ErrorKind::ServerGone),
            Self::TimedOut => Some(ErrorKind::TimedOut),
            Self::Stale => Some(ErrorKind::StaleRound),
            Self::NoRoom => None,
        }
    }
}

impl World {
    pub(super) fn ask_numbering(&mut self, at: usize, ask: NumberingAsk) {
        self.agents[at].desk.numbering_asks.push_back(ask);
        while let Some(ask) = self.agents[at].desk.numbering_asks.pop_front() {
            let is_under_way = !matches!(self.agents[at].desk.numbering, Numbering::Idle);
            if is_under_way {
                if let Some((session, id)) = self.numbering_call(at) {
                    self.send(session, Request::GiveUp { id });
                }
                self.in_vain(at, InVain::Cancelled);
                self.member_nudged(at);
            }
            self.begin_numbering(at, ask);
        }
    }

    fn numbering_call(&self, at: usize) -> Option<(u64, u64)> {
        match &self.agents[at].desk.numbering {
            Numbering::Idle => None,
            Numbering::Assigning { info, id, .. } | Numbering::Parting { info, id, .. } => {
                Some((info.session, *id))
            }
        }
    }

    fn begin_numbering(&mut self, at: usize, ask: NumberingAsk) {
        let now = self.stage.now;
        let spec = &self.plan.nodes[at].spec;
        match ask {
            NumberingAsk::Assign { call, info } => {
                let mut steps = vec![Step::Learn];
                if info.rank == 0 {
                    steps.extend([Step::Hand, Step::Gather]);
                }
                steps.push(Step::Introduce);
                if spec.rank_assignment == RankAssignment::Identical {
                    steps.clear();
                }
                steps.push(Step::Place);
                let until = now + spec.assign_timeout;
                let desk = &mut self.agents[at].desk;
                desk.numbering = Numbering::Assigning { call, info, steps, id: 0, until };
                if core::mem::take(&mut desk.is_unlucky) {
                    self.in_vain(at, InVain::NoRoom);
                } else {
                    self.next_number(at, None);
                }
            }
            NumberingAsk::Part { call, info } => {
                let timeout = BARRIER_TIMEOUT;
                let world_size = i64::try_from(info.nodes).unwrap_or(i64::MAX);
                let options =
                    BarrierOptions { timeout, ..BarrierOptions::new(world_size, EXIT_BARRIER_PREFIX) };
                // There is at least this one.
                let Ok(barrier) = TracedBarrier::new(options) else { return };
                let desk = &mut self.agents[at].desk;
                desk.numbering = Numbering::Parting { call, info, barrier: Box::new(barrier), id: 0 };
                self.next_arrival(at);
            }
            NumberingAsk::Rest => {}
        }
    }

    /// The call under way has come to nothing, and with it what it was for.
    pub(super) fn in_vain(&mut self, at: usize, how: InVain) {
        let (kind, words) = (in_vain(how.kind()), how.words().into());
        let desk = &mut self.agents[at].desk;
        let input = match core::mem::take(&mut desk.numbering) {
            Numbering::Idle => return,
            Numbering::Assigning { call, .. } => Input::NotAssigned { call, kind, words },
            Numbering::Parting { call, .. } => Input::NotParted { call, kind, words },
        };
        self.stage.note(format_args!("{at} in vain: {}", how.words()));
        desk.tell_input(&mut self.stage, at, Thread::Numbering, input);
    }

    fn ask_store(&mut self, at: usize, ask: Ask, until: Instant) -> u64 {
        let id = self.agents[at].desk.id();
        let Ask { session, round, op } = ask;
        self.send(session, Request::Store { id, round, op });
        set_deadline(&mut self.stage.agenda, at, Thread::Numbering, id, until);
        id
    }

    fn has_line(&self, at: usize, info: &Info) -> bool {
        self.agents[at].desk.line() == Some(info.session)
    }

    /// The step that was under way has this answer; the next one begins.
    fn next_number(&mut self, at: usize, answer: Option<Answer>) {
        let spec = self.plan.nodes[at].spec.clone();
        let Numbering::Assigning { call, info, mut steps, until, .. } =
            core::mem::take(&mut self.agents[at].desk.numbering)
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
            let told = match ranks {
                Ok(ranks) => Told::Numbered { call, ranks },
                Err(error) => {
                    let words = error.to_string().into();
                    Told::Input(Input::NotAssigned { call, kind: in_vain(None), words })
                }
            };
            return self.agents[at].desk.tell(&mut self.stage, at, Thread::Numbering, told);
        };
        let own = role_info_key(info.rank);
        let op = match step {
            Step::Place if info.rank == 0 => Op::Set(vec![(MASTER_KEY.into(), b"here".to_vec())]),
            Step::Place => Op::Get(vec![MASTER_KEY.into()]),
            Step::Introduce => Op::Set(vec![(own, role_info(&spec.role, info.rank, spec.local_world_size))]),
            Step::Gather => Op::Get((0..info.nodes).map(role_info_key).collect()),
            Step::Hand => {
                let told = assign(&values).unwrap_or_default();
                let pairs = (0..).zip(&told).map(|(rank, ranks)| (assigned_ranks_key(rank), assigned(ranks)));
                Op::Set(pairs.collect())
            }
            Step::Learn => Op::Get(vec![assigned_ranks_key(info.rank)]),
        };
        let has_line = self.has_line(at, &info);
        let ask = Ask { session: info.session, round: info.round, op };
        let id = if has_line { self.ask_store(at, ask, until) } else { 0 };
        self.agents[at].desk.numbering = Numbering::Assigning { call, info, steps, id, until };
        if !has_line {
            self.in_vain(at, InVain::LineLost);
        }
    }

    fn next_arrival(&mut self, at: usize) {
        let now = self.stage.now;
        let Numbering::Parting { call, info, barrier, .. } =
            core::mem::take(&mut self.agents[at].desk.numbering)
        else {
            return;
        };
        let Some(step) = barrier.next_step() else {
            let input = match barrier.verdict() {
                Some(Verdict::Released) => Input::Parted { call },
                _ => {
                    let kind = in_vain(Some(ErrorKind::TimedOut));
                    Input::NotParted { call, kind, words: "not all have come".into() }
                }
            };
            return self.agents[at].desk.tell_input(&mut self.stage, at, Thread::Numbering, input);
        };
        let (op, until) = match step {
            BarrierStep::Add { key, delta } => (Op::Add(key.into(), delta), now + ANSWER_TIMEOUT),
            BarrierStep::Mark { key } => (Op::Set(vec![(key.into(), b"1".to_vec())]), now + ANSWER_TIMEOUT),
            BarrierStep::Wait { key, until } => (Op::Get(vec![key.into()]), until),
            // Nobody is traced.
            BarrierStep::Check { .. } => return,
        };
        let has_line = self.has_line(at, &info);
        let ask = Ask { session: info.session, round: info.round, op };
        let id = if has_line { self.ask_store(at, ask, until) } else { 0 };
        self.agents[at].desk.numbering = Numbering::Parting { call, info, barrier, id };
        if !has_line {
            self.in_vain(at, InVain::LineLost);
        }
    }

    pub(super) fn numbering_news(&mut self, at: usize, news: &News) {
        let News::Stored { id, answer } = news else { return };
        if self.numbering_call(at).is_none_or(|(_, own)| own != *id) {
            return;
        }
        if matches!(answer, Answer::Stale) {
            return self.in_vain(at, InVain::Stale);
        }
        let now = self.stage.now;
        match &mut self.agents[at].desk.numbering {
            Numbering::Idle => {}
            Numbering::Assigning { .. } => self.next_number(at, Some(answer.clone())),
            Numbering::Parting { call, barrier, .. } => {
                let outcome = match (barrier.next_step(), answer) {
                    (_, Answer::Number(sum)) => Outcome::Number(*sum),
                    (Some(BarrierStep::Wait { .. }), _) => Outcome::Released,
                    _ => Outcome::Applied,
                };
                let (call, was_awaited) = (*call, !barrier.has_arrived());
                // It is the outcome of the step that was due.
                barrier.handle(now, outcome).ok();
                if was_awaited && barrier.has_arrived() {
                    let arrived = Input::Arrived { call };
                    self.agents[at].desk.tell_input(&mut self.stage, at, Thread::Numbering, arrived);
                }
                self.next_arrival(at);
            }
        }
    }

    pub(super) fn numbering_time_up(&mut self, at: usize, id: u64) {
        let Some((session, own)) = self.numbering_call(at) else { return };
        if own != id {
            return;
        }
        self.send(session, Request::GiveUp { id });
        let now = self.stage.now;
        if let Numbering::Parting { barrier, .. } = &mut self.agents[at].desk.numbering
            && matches!(barrier.next_step(), Some(BarrierStep::Wait { .. }))
        {
            barrier.handle(now, Outcome::Missing).ok();
            return self.next_arrival(at);
        }
        self.in_vain(at, InVain::TimedOut);
    }
}
