//! Many nodes, one service, one seed: they join, become spares, rejoin, leave, die, are replaced and close the run at
//! random. A checker that knows only the outputs checks every step. A failure names its seed.

use super::*;
use crate::rng::Rng;
use alloc::vec;

/// State of an agent, as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Agent {
    Off,
    /// Has a slot until `deadline`. It was in round `from`, if that was live.
    Seated {
        deadline: Instant,
        from: Option<u64>,
    },
    Parked,
    InRound {
        round: u64,
        /// Whether it has a reason to rejoin.
        is_called: bool,
        saw_waiting: bool,
    },
    /// Its round is over.
    Out,
    /// Refused for good.
    Done,
}

struct Sim {
    rng: Rng,
    service: Rendezvous,
    now: Instant,
    settings: RunSettings,
    join_timeout: Duration,
    agents: Vec<(ParticipantId, Agent)>,
    /// Number of the next session.
    next_participant: u64,
    // The checker's record of the outputs.
    live: Option<u64>,
    opened: u64,
    deleted: u64,
    finished: u32,
    is_closed: bool,
    last_names: Vec<usize>,
    trace: String,
    joins: u64,
}

type Checked = Result<(), String>;

macro_rules! check {
    ($holds:expr, $($said:tt)*) => {
        if !$holds {
            return Err(format!($($said)*));
        }
    };
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut pick = |bound: u64| u32::try_from(rng.below(bound)).unwrap_or(0);
        let min_nodes = 1 + pick(4);
        let max_nodes = min_nodes + pick(4);
        let span = secs(u64::from(1 + pick(30)));
        let mut settings = settings(min_nodes, max_nodes);
        settings.minimum_to_continue = 1 + pick(u64::from(min_nodes));
        settings.last_call =
            [LastCall::Fixed(span), LastCall::FromLastArrival(span), LastCall::None][pick(3) as usize];
        settings.fast_quorum =
            [FastQuorum::Enabled, FastQuorum::Enabled, FastQuorum::Disabled][pick(3) as usize];
        settings.rank_order =
            [RankOrder::Sticky, RankOrder::Sticky, RankOrder::Host][pick(3) as usize].clone();
        let cool_down = CoolDown { failures: 3, window: secs(20), pause: secs(5), pause_max: secs(20) };
        settings.cool_down = [None, None, Some(cool_down)][pick(3) as usize];
        let join_timeout = secs(u64::from(20 + pick(100)));
        let nodes = max_nodes + 1 + pick(4);
        let service = Rendezvous::new(RendezvousLimits::default());
        Self {
            rng,
            service,
            now: Instant::ORIGIN,
            settings,
            join_timeout,
            agents: (0..nodes).map(|node| (ParticipantId(u64::from(node)), Agent::Off)).collect(),
            next_participant: 1000,
            live: None,
            opened: 0,
            deleted: 0,
            finished: 0,
            is_closed: false,
            last_names: Vec::new(),
            trace: String::new(),
            joins: 0,
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn request(&self, node: usize) -> Join {
        Join {
            run_id: RUN.into(),
            node: NodeName::process(&format!("host{node}"), 1, 0),
            address: [].into(),
            local_world_size: u32::try_from(node % 3 + 1).unwrap_or(1),
            labels: Vec::new(),
            round_min: 0,
            node_rank: None,
            join_timeout: self.join_timeout,
            settings: self.settings.clone(),
        }
    }

    /// Whether the agent is in the live round, and waits for the next one.
    fn wants_another(&self, agent: &Agent) -> bool {
        matches!(agent, Agent::Seated { from: Some(round), .. } if Some(*round) == self.live)
    }

    /// Advances the time as the service asks for it.
    fn pass(&mut self, until: Instant) -> Checked {
        while let Some(when) = self.service.poll_timeout().filter(|&when| when <= until) {
            self.now = self.now.max(when);
            let gives_up = |agent: &Agent| {
                self.wants_another(agent)
                    && matches!(agent, Agent::Seated { deadline, .. } if *deadline <= self.now)
            };
            let losses = usize::from(self.agents.iter().any(|(_, agent)| gives_up(agent)));
            self.service.handle(self.now, Input::Tick).map_err(|error| error.to_string())?;
            self.look(losses)?;
            check!(
                self.service.poll_timeout().is_none_or(|next| next > self.now),
                "a tick leaves nothing due"
            );
        }
        self.now = until;
        for (participant, agent) in &self.agents {
            if let Agent::Seated { deadline, .. } = agent {
                check!(*deadline > self.now, "{participant} waits beyond its deadline");
            }
        }
        Ok(())
    }

    fn enter(&mut self, at: usize, is_spare: bool) -> Checked {
        let (participant, agent) = self.agents[at].clone();
        let join = self.request(at);
        let input =
            if is_spare { Input::Standby { participant, join } } else { Input::Join { participant, join } };
        self.joins += 1;
        let from = match agent {
            Agent::InRound { round, .. } => Some(round),
            _ => None,
        };
        let result = self.service.handle(self.now, input);
        self.trace += &format!("{} {participant} joins: {:?}\n", self.now.as_nanos(), result.is_ok());
        match result {
            Ok(()) => {
                check!(!self.is_closed, "{participant} joined a closed run");
                // Until the service notifies it of its state.
                self.agents[at].1 = Agent::Seated { deadline: self.now + self.join_timeout, from };
            }
            Err(InputError::Closed { .. }) => {
                check!(self.is_closed, "{participant} was refused by an open run");
                self.agents[at].1 = Agent::Done;
                return self.look(usize::from(from.is_some_and(|round| Some(round) == self.live)));
            }
            Err(InputError::CoolingDown { .. }) => {
                check!(agent == Agent::Off, "a node in the run was kept out")
            }
            Err(error) => return Err(error.to_string()),
        }
        self.look(0)
    }

    fn end(&mut self, at: usize, why: Why) -> Checked {
        let (participant, agent) = self.renew(at);
        self.trace += &format!("{} {participant} ends: {why}\n", self.now.as_nanos());
        let was_in = match agent {
            Agent::InRound { round, .. } => Some(round),
            Agent::Seated { from, .. } => from,
            _ => None,
        };
        let reported = was_in.filter(|&round| Some(round) == self.live);
        self.service
            .handle(self.now, Input::Ended { participant, why })
            .map_err(|error| error.to_string())?;
        self.look(usize::from(reported.is_some()))
    }

    /// Gives the node a new process; returns the old one.
    fn renew(&mut self, at: usize) -> (ParticipantId, Agent) {
        self.next_participant += 1;
        core::mem::replace(&mut self.agents[at], (ParticipantId(self.next_participant), Agent::Off))
    }

    fn active(&self) -> usize {
        self.agents.iter().filter(|(_, agent)| matches!(agent, Agent::InRound { .. })).count()
    }

    /// Checks all outputs of one update, in which the nodes of the live round are notified of `losses` losses.
    fn look(&mut self, losses: usize) -> Checked {
        let others = self.agents.iter().filter(|(_, agent)| matches!(agent, Agent::InRound { .. }));
        let mut expected: Vec<ParticipantId> =
            others.flat_map(|&(participant, _)| core::iter::repeat_n(participant, losses)).collect();
        let (mut reported, mut formed, mut why) = (Vec::new(), Vec::new(), None);
        while let Some(output) = self.service.poll_output() {
            self.trace += &format!("{} {}\n", self.now.as_nanos(), notify(&output).unwrap_or_default());
            match output {
                Output::Decided { action: Action::CompleteRound, reason, .. } => why = Some(reason),
                Output::Decided { .. } => {}
                Output::Forgotten(_) => return Err("the only run was forgotten".into()),
                Output::RoundOpened(keys) => {
                    check!(self.live.is_none(), "round {} opens while {:?} is live", keys.round, self.live);
                    check!(keys.round == self.opened, "round {} opens, not {}", keys.round, self.opened);
                    check!(!self.is_closed, "a round opens in a closed run");
                    self.opened += 1;
                    check!(
                        self.deleted + 2 >= self.opened.min(self.deleted + 3),
                        "keys are kept for too long"
                    );
                    (self.live, self.finished) = (Some(keys.round), 0);
                }
                Output::Fence(keys) => {
                    check!(
                        self.live == Some(keys.round),
                        "round {} fenced, {:?} is live",
                        keys.round,
                        self.live
                    );
                    self.live = None;
                }
                Output::Delete(keys) => {
                    check!(keys.round == self.deleted, "round {} deleted, not {}", keys.round, self.deleted);
                    check!(keys.round + 2 == self.opened, "round {} deleted too early", keys.round);
                    self.deleted += 1;
                }
                Output::Notify { participant, event } => {
                    if let Event::NodeLost(loss) = &event {
                        check!(self.live == Some(loss.round), "a loss in a round that is not live");
                        reported.push(participant);
                    }
                    self.handle_event(participant, event, why, &mut formed)?;
                }
            }
        }
        expected.sort();
        reported.sort();
        check!(reported == expected, "{losses} losses were reported to {reported:?}, not to {expected:?}");
        self.check_round(&formed)?;
        self.check_state()
    }

    fn handle_event(
        &mut self,
        participant: ParticipantId,
        event: Event,
        why: Option<Reason>,
        formed: &mut Vec<(usize, Round)>,
    ) -> Checked {
        let Some(at) = self.agents.iter().position(|(holder, _)| *holder == participant) else {
            check!(
                matches!(event, Event::Replaced { .. }),
                "{participant} has ended and is notified of {event:?}"
            );
            return Ok(());
        };
        let agent = self.agents[at].1.clone();
        self.agents[at].1 = match (agent, event) {
            (Agent::Seated { from, .. }, Event::Seated) => {
                Agent::Seated { deadline: self.now + self.join_timeout, from }
            }
            (Agent::Parked, Event::Seated) => {
                Agent::Seated { deadline: self.now + self.join_timeout, from: None }
            }
            (Agent::Seated { .. }, Event::Standby { .. }) => Agent::Parked,
            (Agent::Seated { .. }, Event::RoundFormed(reported)) => {
                let round = reported.namespace.round;
                formed.push((at, reported));
                Agent::InRound { round, is_called: false, saw_waiting: false }
            }
            (Agent::Seated { .. }, Event::JoinFailed(JoinFailure::TimedOut { shortfall, .. })) => {
                check!(shortfall.there_count >= 1, "the one whose time was up was there");
                Agent::Off
            }
            (Agent::Seated { .. }, Event::JoinFailed(JoinFailure::Closed { .. }))
            | (Agent::Parked, Event::JoinFailed(JoinFailure::GracefulExit { .. }))
            | (Agent::Out, Event::RunClosed { .. }) => {
                check!(self.is_closed, "{participant} gets of a close that was not");
                Agent::Done
            }
            (Agent::InRound { round, saw_waiting, .. }, Event::NodeLost(_)) => {
                Agent::InRound { round, is_called: true, saw_waiting }
            }
            (Agent::InRound { round, .. }, Event::NodesWaiting { nodes }) => {
                Agent::InRound { round, is_called: true, saw_waiting: nodes > 0 }
            }
            (agent @ Agent::InRound { .. }, Event::RunClosed { .. }) => agent,
            (Agent::InRound { round: local, .. }, Event::RoundEnded { round, .. }) => {
                check!(
                    local == round && self.live.is_none(),
                    "round {round} ended, not {local}, or is not fenced"
                );
                // A closed run cannot be rejoined.
                if self.is_closed { Agent::Done } else { Agent::Out }
            }
            (Agent::Out, Event::Excluded { .. }) => {
                let gave_time =
                    matches!(why, Some(Reason::LastCallEnded { .. } | Reason::TimeoutNear { .. }));
                check!(gave_time, "{participant} lost its seat, since {why:?}");
                Agent::Off
            }
            (agent, event) => return Err(format!("{participant} is {agent:?} and is notified of {event:?}")),
        };
        Ok(())
    }

    fn check_round(&mut self, formed: &[(usize, Round)]) -> Checked {
        if formed.is_empty() {
            return Ok(());
        }
        let (mut ranks, mut workers) = (vec![None; formed.len()], 0_u64);
        for (at, round) in formed {
            check!(
                round.world_size as usize == formed.len(),
                "{} of {} were notified",
                formed.len(),
                round.world_size
            );
            let index = ranks.get_mut(round.rank as usize);
            let index = index.ok_or_else(|| format!("rank {} of {}", round.rank, formed.len()))?;
            check!(index.is_none(), "rank {} was given twice", round.rank);
            *index = Some((*at, round));
        }
        for (at, round) in ranks.iter().flatten() {
            check!(round.worker_offset == workers, "the workers of node {at} begin at {workers}");
            workers += *at as u64 % 3 + 1;
        }
        check!(formed.iter().all(|(_, round)| round.worker_count == workers), "there are {workers} workers");
        let size = u32::try_from(formed.len()).unwrap_or(u32::MAX);
        let bounds = self.settings.minimum_to_continue..=self.settings.max_nodes;
        check!(bounds.contains(&size), "a round of {size}");
        let names: Vec<usize> = ranks.iter().flatten().map(|&(at, _)| at).collect();
        if self.settings.rank_order == RankOrder::Sticky && !self.last_names.is_empty() {
            let kept = |of: &[usize], others: &[usize]| -> Vec<usize> {
                of.iter().copied().filter(|name| others.contains(name)).collect()
            };
            let (before, after) = (kept(&self.last_names, &names), kept(&names, &self.last_names));
            check!(before == after, "{before:?} became {after:?}");
        }
        self.last_names = names;
        Ok(())
    }

    fn check_state(&mut self) -> Checked {
        let active = self.active();
        let status = self.service.status(RUN);
        let counts = status.map(|status| status.counts).unwrap_or_default();
        check!(counts.active as usize == active, "{active} are in the round, not {}", counts.active);
        let continues = active > 0
            && u32::try_from(active).unwrap_or(u32::MAX) + self.finished >= self.settings.minimum_to_continue;
        check!(self.live.is_some() == continues, "{:?} with {active} and {} done", self.live, self.finished);
        check!(
            self.service.run(RUN).is_some_and(|run| run.phase.is_closed()) == self.is_closed,
            "closed is final"
        );
        let seated = self.agents.iter().filter(|(_, agent)| matches!(agent, Agent::Seated { .. })).count();
        check!((counts.joining + counts.waiting) as usize == seated, "{seated} have seats: {counts:?}");
        let seats = counts.joining + counts.waiting + counts.active + counts.due;
        check!(seats <= self.settings.max_nodes, "more seats than there are: {counts:?}");
        if self.is_closed {
            check!(seated == 0 && counts.standby == 0, "a node waits in a closed run");
        }
        if self.live.is_some() && !self.is_closed {
            let is_waiting = counts.waiting > 0;
            for (participant, agent) in &self.agents {
                if let Agent::InRound { saw_waiting, .. } = agent {
                    check!(*saw_waiting == is_waiting, "{participant} does not know who waits");
                }
            }
        }
        // A node that joins when all others have left has no earlier rank.
        if self.agents.iter().all(|(_, agent)| matches!(agent, Agent::Off | Agent::Done)) {
            self.last_names.clear();
        }
        Ok(())
    }

    fn leave(&mut self, at: usize) -> Checked {
        let (participant, agent) = self.renew(at);
        self.finished += u32::from(matches!(agent, Agent::InRound { .. }));
        let losses = usize::from(self.wants_another(&agent));
        self.service.handle(self.now, Input::Leave { participant }).map_err(|error| error.to_string())?;
        self.look(losses)
    }

    fn close(&mut self, at: usize) -> Checked {
        let losses =
            usize::from(!self.is_closed && self.agents.iter().any(|(_, agent)| self.wants_another(agent)));
        self.is_closed = true;
        let close = Input::Close { participant: self.agents[at].0, run_id: RUN.into() };
        self.service.handle(self.now, close).map_err(|error| error.to_string())?;
        self.look(losses)
    }

    /// The same node joins again in a new process before the service detects the death of the old one.
    fn replace(&mut self, at: usize) -> Checked {
        let (_, agent) = self.renew(at);
        let fresh = self.agents[at].0;
        let was_in = match agent {
            Agent::InRound { round, .. } => Some(round),
            Agent::Seated { from, .. } => from,
            _ => None,
        };
        let losses = usize::from(was_in.is_some_and(|round| Some(round) == self.live));
        let input = Input::Join { participant: fresh, join: self.request(at) };
        match self.service.handle(self.now, input) {
            Ok(()) => {
                self.agents[at].1 = Agent::Seated { deadline: self.now + self.join_timeout, from: None };
                self.look(losses)?;
                let keeps_seat = agent == Agent::Parked || self.agents[at].1 != Agent::Parked;
                check!(keeps_seat, "{fresh} lost the seat of its node, which was {agent:?}");
                Ok(())
            }
            // It was refused, so the old process is still in the run, and the checker follows that one.
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes one agent do something that its state allows.
    fn act(&mut self, closes: bool) -> Checked {
        let at = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        let draw = self.rng.below(100);
        let may_be_replaced = self.settings.cool_down.is_none() && !self.is_closed;
        match (self.agents[at].1.clone(), draw) {
            (_, 0) if closes => self.close(at),
            (Agent::Off, 0..70) => {
                let is_spare = self.chance(20);
                self.enter(at, is_spare)
            }
            (Agent::Out, 0..70) => {
                let is_spare = self.chance(5);
                self.enter(at, is_spare)
            }
            (Agent::InRound { is_called: true, .. }, 0..50) | (Agent::InRound { .. }, 0..5) => {
                self.enter(at, false)
            }
            (Agent::InRound { .. }, 95..100) => self.enter(at, true),
            (Agent::Off | Agent::Done, _) => Ok(()),
            (_, 70..75) => self.leave(at),
            (_, 75..83) => self.end(at, Why::Connection),
            (_, 83..86) => self.end(at, Why::Heartbeat),
            (_, 86..89) if may_be_replaced => self.replace(at),
            _ => Ok(()),
        }
    }

    /// Without further failures every agent with a reason to rejoin does so, at once or within a second. Then the
    /// round must stay.
    fn quiet(&mut self) -> Checked {
        if self.agents.iter().all(|(_, agent)| *agent == Agent::Parked) {
            // Spares alone do not begin a run.
            self.leave(0)?;
        }
        let bound = self.now + secs(150);
        while self.now < bound {
            for at in 0..self.agents.len() {
                match &self.agents[at].1 {
                    Agent::Off | Agent::Out | Agent::InRound { is_called: true, .. } => {
                        self.enter(at, false)?
                    }
                    _ => {}
                }
            }
            self.pass(self.now + secs(1))?;
            let rests = |agent: &Agent| {
                matches!(agent, Agent::Parked | Agent::Done | Agent::InRound { is_called: false, .. })
            };
            let all_rest = self.agents.iter().all(|(_, agent)| rests(agent));
            if all_rest && (self.is_closed || self.live.is_some()) {
                return Ok(());
            }
        }
        Err(format!(
            "no round is stable after 150 quiet seconds: {:?}, {:?}",
            self.service.status(RUN),
            self.agents
        ))
    }
}

struct Ran {
    trace: String,
    rounds: u64,
    joins: u64,
    is_closed: bool,
}

fn simulate(seed: u64) -> Result<Ran, String> {
    let mut sim = Sim::new(seed);
    let run = |sim: &mut Sim| -> Checked {
        let closes = sim.chance(30);
        for _ in 0..400 {
            let pause = Duration::from_millis(sim.rng.below(3000));
            sim.pass(sim.now + pause)?;
            sim.act(closes)?;
        }
        sim.quiet()
    };
    match run(&mut sim) {
        Ok(()) => {
            Ok(Ran { rounds: sim.opened, joins: sim.joins, is_closed: sim.is_closed, trace: sim.trace })
        }
        Err(error) => {
            let lines: Vec<&str> = sim.trace.lines().collect();
            let last = lines[lines.len().saturating_sub(30)..].join("\n");
            Err(format!("seed {seed}: {error}\n{:?}\n{last}", sim.settings))
        }
    }
}

const SEEDS: u64 = 400;

/// Outputs that must occur in some seed, or the simulation tests nothing.
const SIGHTS: [&str; 10] = [
    "stands by after",
    "left behind by",
    "was lost: the connection ended",
    "was lost: another one joined under its name",
    "replaced by",
    "fails: round",
    "terminating pending",
    "gets closed",
    "gets 0 waiting",
    "delete",
];

#[test]
fn no_seed_breaks_a_promise() {
    let (mut rounds, mut joins, mut closed, mut seen) = (0, 0, 0, [0; SIGHTS.len()]);
    for seed in 0..SEEDS {
        match simulate(seed) {
            Ok(ran) => {
                rounds += ran.rounds;
                joins += ran.joins;
                closed += u64::from(ran.is_closed);
                let counts = seen.iter_mut().zip(SIGHTS);
                counts.for_each(|(count, observation)| *count += ran.trace.matches(observation).count());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        rounds > 10 * SEEDS
            && joins > 50 * SEEDS
            && closed > SEEDS / 10
            && seen.iter().all(|&count| count > 50),
        "{rounds} rounds, {joins} joins, {closed} closed, {seen:?}"
    );
}

#[test]
fn a_seed_is_a_trace() {
    for seed in 0..5 {
        let trace = || simulate(seed).map(|ran| ran.trace).unwrap_or_default();
        let first = trace();
        assert!(first.lines().count() > 100 && first == trace());
    }
}
