//! Plan of a run, drawn from the seed before it begins: the nodes and the mishaps.

use crate::sim::harness::sim_rng::SimRng;
use rendezvous_agent::group::ExitStatus;
use rendezvous_agent::phase::Phase;
use rendezvous_agent::reason::{StartFailure, StopCause};
use rendezvous_agent::spec::{RankAssignment, WorkerSpec};
use rendezvous_core::rendezvous::participant::Role;
use rendezvous_core::rendezvous::service::{LastCall, RunSettings};
use rendezvous_core::time::{Duration, Instant};

/// Plan of one node.
#[derive(Clone, Debug)]
pub(super) struct NodePlan {
    pub(super) spec: WorkerSpec,
    pub(super) starts_at: Instant,
    pub(super) role: Role,
}

/// Mishap of an agent, its workers or its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// A worker of the agent ends with this status.
    WorkerEnds(ExitStatus),
    /// A worker of this agent and one of the next end at the same time.
    NeighboursEnd(ExitStatus),
    /// The agent dies together with its workers.
    Dies,
    /// The agent is asked to stop.
    Stop(StopCause),
    /// Its connection breaks: the node notices after the first span, the server after the second.
    ConnectionLost(Duration, Duration),
    /// A worker hangs in the kernel and cannot be killed for this time.
    Stuck(Duration),
    /// The timer of a worker expires.
    TimerExpires,
    /// The supervision of the workers is lost, and the workers with it. Other workers can be started.
    GroupLost,
    /// The workers can no longer be supervised.
    GuardLost,
    /// At the next start, one worker is not started.
    NotStarted(StartFailure),
    /// The next time, the ranks cannot be assigned.
    NotNumbered,
    /// A signal is passed to the workers.
    Pass,
    /// The run is closed without another message.
    Closes,
    /// The rendezvous server dies. Another one starts after this time without any state, or never.
    ServerDies(Option<Duration>),
}

/// Time of a mishap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(Instant),
    /// This long after the agent has entered this phase for the `nth` time.
    In(Phase, u32, Duration),
}

/// Plan of one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) settings: RunSettings,
    pub(super) join_timeout: Duration,
    /// Time that workers need to succeed.
    pub(super) work: Duration,
    /// Whether the workers of a round depend on each other: they end together, and none makes progress without the
    /// others.
    pub(super) is_collective: bool,
    /// Percentage of workers that ignore the request to end.
    pub(super) stubborn: u64,
    /// Percentage of groups that leave a process which ignores the first signal.
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
        68..74 => Mishap::ConnectionLost(sim_rng.span(ms(1), ms(6000)), sim_rng.span(ms(1), ms(6000))),
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
            let starts_at =
                Instant::ORIGIN + sim_rng.span(Duration::ZERO, ms(if is_late { 20_000 } else { 500 }));
            let role = if slot > 1 && sim_rng.percent(12) { Role::Spare } else { Role::Member };
            nodes.push(NodePlan { spec, starts_at, role });
        }
        let members = nodes.iter().filter(|node| node.role == Role::Member).count() as u64;
        let min_nodes =
            if is_merciful { sim_rng.between(1, members) } else { sim_rng.between(1, members + 1) };
        let max_nodes = sim_rng.between(min_nodes, count.max(min_nodes));
        let small = |number: u64| u32::try_from(number).unwrap_or(1);
        let mut settings = RunSettings::between(small(min_nodes), small(max_nodes));
        settings.minimum_to_continue = small(sim_rng.between(1, min_nodes));
        // Longer than workers need to end, unless they ignore the request.
        settings.last_call = LastCall::Fixed(sim_rng.span(ms(2500), ms(20_000)));
        let work = sim_rng.span(ms(20), ms(20_000));
        let mut mishaps = Vec::new();
        for _ in 0..sim_rng.pick(&[0, 1, 1, 2, 3, 5]) {
            let at = sim_rng.index(nodes.len());
            let what = mishap(sim_rng);
            let when = when(sim_rng, work);
            mishaps.push((at, when, what));
            // A second request to stop ends the wait; and a worker that failed often fails again.
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
