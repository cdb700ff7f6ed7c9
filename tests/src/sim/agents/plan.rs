//! What a seed decides before anything happens: who comes, and what goes wrong.

use super::super::sim_rng::SimRng;
use rendezvous_agent::group::ExitStatus;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::{StartFailure, StopCause};
use rendezvous_agent::spec::{RankAssignment, WorkerSpec};
use rendezvous_core::rendezvous::participant::Role;
use rendezvous_core::rendezvous::service::{LastCall, RunSettings};
use rendezvous_core::time::{Duration, Instant};

/// One node.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) spec: WorkerSpec,
    pub(super) comes: Instant,
    pub(super) role: Role,
}

/// How a worker ends that nobody told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// Some worker of the agent ends so.
    WorkerEnds(ExitStatus),
    /// Of this agent and of the next, at one instant.
    NeighboursEnd(ExitStatus),
    /// The agent dies, and its workers with it.
    Dies,
    /// Somebody asks it to stop.
    Stop(StopCause),
    /// Its connection is gone: the node notices after the first span, the server after the second.
    LineLost(Duration, Duration),
    /// Some worker hangs in the kernel. It cannot be killed for so long.
    Stuck(Duration),
    /// The timer of some worker expires.
    TimerExpires,
    /// What supervises the workers is lost, and they with it; others can be started.
    GroupLost,
    /// The workers cannot be seen any more.
    GuardLost,
    /// Of the next start, a worker is not started.
    NotStarted(StartFailure),
    /// The next time, the numbers cannot be learnt.
    NotNumbered,
    /// A signal for the workers.
    Pass,
    /// Somebody closes the run, and says nothing else.
    Closes,
    /// The rendezvous dies, and is back after that, without a memory; or never.
    ServerDies(Option<Duration>),
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(Instant),
    /// So long after the agent has come into this phase for the `nth` time.
    In(Phase, u32, Duration),
}

/// What is drawn for one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) settings: RunSettings,
    pub(super) join_timeout: Duration,
    /// How long workers work until they succeed.
    pub(super) work: Duration,
    /// The workers of a round work together: they end together, and none gets on without the others.
    pub(super) is_collective: bool,
    /// Workers that do not care to be told to end; in percent.
    pub(super) stubborn: u64,
    /// Groups that leave something that does not hear the first signal; in percent.
    pub(super) untidy: u64,
    pub(super) mishaps: Vec<(usize, When, Mishap)>,
}

const SIGNALS: [i32; 4] = [6, 9, 11, 15];

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn exit(sim_rng: &mut SimRng) -> ExitStatus {
    if sim_rng.percent(50) {
        ExitStatus::Code(i32::try_from(sim_rng.between(1, 3)).unwrap_or(1))
    } else {
        ExitStatus::Signal(sim_rng.pick(&SIGNALS))
    }
}

fn mishap(sim_rng: &mut SimRng) -> Mishap {
    match sim_rng.index(100) {
        0..28 => Mishap::WorkerEnds(exit(sim_rng)),
        28..36 => Mishap::NeighboursEnd(exit(sim_rng)),
        36..50 => Mishap::Dies,
        50..68 => {
            let cause = sim_rng.pick(&[StopCause::Requested, StopCause::Signal(2), StopCause::Signal(15)]);
            Mishap::Stop(cause)
        }
        68..74 => Mishap::LineLost(sim_rng.span(ms(1), ms(6000)), sim_rng.span(ms(1), ms(6000))),
        74..78 => Mishap::Stuck(sim_rng.span(ms(10), ms(20_000))),
        78..83 => Mishap::TimerExpires,
        83..85 => Mishap::GuardLost,
        85 => Mishap::GroupLost,
        86..92 => Mishap::NotStarted(sim_rng.pick(&[StartFailure::Passing, StartFailure::Lasting])),
        92..96 => Mishap::NotNumbered,
        96 => Mishap::Pass,
        97 => Mishap::Closes,
        _ => Mishap::ServerDies(sim_rng.percent(60).then(|| sim_rng.span(ms(1), ms(5000)))),
    }
}

fn when(sim_rng: &mut SimRng, work: Duration) -> When {
    if sim_rng.percent(40) {
        return When::At(Instant::ORIGIN + sim_rng.span(Duration::ZERO, work * 4));
    }
    let phase = sim_rng.pick(&[
        Phase::Meeting,
        Phase::Assigning,
        Phase::Starting,
        Phase::Running,
        Phase::Running,
        Phase::Restarting,
        Phase::ExitBarrier,
        Phase::Ending,
        Phase::Closing,
    ]);
    let nth = u32::try_from(sim_rng.index(3)).unwrap_or(0);
    let after = if sim_rng.percent(50) { Duration::ZERO } else { sim_rng.span(Duration::ZERO, ms(50)) };
    When::In(phase, nth, after)
}

impl Plan {
    pub(super) fn draw(sim_rng: &mut SimRng) -> Self {
        let count = sim_rng.between(1, 6);
        let is_even = sim_rng.percent(30);
        let size = sim_rng.between(1, 4);
        let is_merciful = sim_rng.percent(80);
        let mut nodes = Vec::new();
        for slot in 0..count {
            let local_world_size =
                u32::try_from(if is_even { size } else { sim_rng.between(1, 4) }).unwrap_or(1);
            let rank_assignment = if is_even && size.is_multiple_of(2) {
                RankAssignment::Identical
            } else {
                RankAssignment::ThroughStore
            };
            let spec = WorkerSpec {
                max_restarts: u32::try_from(sim_rng.between(0, 3)).unwrap_or(0),
                stop_timeout: if sim_rng.percent(10) {
                    Duration::ZERO
                } else {
                    sim_rng.span(ms(50), ms(10_000))
                },
                leftover_timeout: ms(3000),
                kill_timeout: sim_rng.span(ms(100), ms(5000)),
                assign_timeout: sim_rng.span(ms(200), ms(20_000)),
                rank_assignment,
                ..WorkerSpec::new(local_world_size)
            };
            let is_late = slot > 0 && sim_rng.percent(20);
            let comes =
                Instant::ORIGIN + sim_rng.span(Duration::ZERO, ms(if is_late { 20_000 } else { 500 }));
            let role = if slot > 1 && sim_rng.percent(12) { Role::Spare } else { Role::Member };
            nodes.push(NodePlan { spec, comes, role });
        }
        let members = nodes.iter().filter(|node| node.role == Role::Member).count() as u64;
        let min_nodes =
            if is_merciful { sim_rng.between(1, members) } else { sim_rng.between(1, members + 1) };
        let max_nodes = sim_rng.between(min_nodes, count.max(min_nodes));
        let small = |number: u64| u32::try_from(number).unwrap_or(1);
        let mut settings = RunSettings::between(small(min_nodes), small(max_nodes));
        settings.minimum_to_continue = small(sim_rng.between(1, min_nodes));
        // Longer than workers take to end that care to be told.
        settings.last_call = LastCall::Fixed(sim_rng.span(ms(2500), ms(20_000)));
        let work = sim_rng.span(ms(20), ms(20_000));
        let mut mishaps = Vec::new();
        for _ in 0..sim_rng.pick(&[0, 1, 1, 2, 3, 5]) {
            let at = sim_rng.index(nodes.len());
            let what = mishap(sim_rng);
            let when = when(sim_rng, work);
            mishaps.push((at, when, what));
            // Whoever asks twice will not wait; and what is wrong with a worker is often wrong again.
            let again = match what {
                Mishap::Stop(_) => sim_rng.percent(40),
                Mishap::WorkerEnds(_) => sim_rng.percent(30),
                _ => false,
            };
            if again {
                let later = match when {
                    When::At(at) => When::At(at + sim_rng.span(Duration::ZERO, ms(2000))),
                    When::In(phase, nth, after) if matches!(what, Mishap::WorkerEnds(_)) => {
                        When::In(phase, nth + 1, after)
                    }
                    When::In(phase, nth, after) => {
                        When::In(phase, nth, after + sim_rng.span(Duration::ZERO, ms(200)))
                    }
                };
                mishaps.push((at, later, what));
            }
        }
        Self {
            nodes,
            settings,
            join_timeout: sim_rng.span(ms(30_000), ms(120_000)),
            work,
            is_collective: sim_rng.percent(80),
            stubborn: sim_rng.pick(&[0, 5, 30]),
            untidy: sim_rng.pick(&[0, 0, 20]),
            mishaps,
        }
    }
}
