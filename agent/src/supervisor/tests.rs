use super::*;
use crate::group::{Worker, WorkerRanks};
use crate::ranks::Ranks;
use crate::watchdog::ExpiredTimer;
use alloc::string::{String, ToString};
use alloc::{format, vec};
use core::fmt::Write;

mod backoff;
mod blame;
mod exit_barrier;
mod group;
mod leftovers;
mod pauses;

const STOP: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn spec() -> WorkerSpec {
    WorkerSpec { max_restarts: 1, ..WorkerSpec::new(2) }
}

/// An agent with a driver that performs its outputs.
struct Play {
    agent: Supervisor,
    now: Instant,
    call: u64,
    outputs: Vec<Output>,
}

impl Play {
    fn new(spec: WorkerSpec) -> Self {
        let agent = Supervisor::new(spec).expect("a good spec");
        Self { agent, now: at(0), call: 0, outputs: Vec::new() }
    }

    fn give(&mut self, input: Input) -> &mut Self {
        self.agent.handle(self.now, input).expect("it can happen");
        self.drain()
    }

    fn drain(&mut self) -> &mut Self {
        while let Some(output) = self.agent.poll_output() {
            match output {
                Output::Join { call }
                | Output::Assign { call }
                | Output::WaitAtExitBarrier { call }
                | Output::Close { call, .. } => self.call = call,
                _ => {}
            }
            self.outputs.push(output);
        }
        self
    }

    /// Lets time pass, and calls the agent whenever it has asked for it.
    fn pass(&mut self, span: Duration) -> &mut Self {
        let end = self.now + span;
        while let Some(due) = self.agent.poll_timeout().filter(|due| (self.now..end).contains(due)) {
            self.now = due;
            self.agent.handle_timeout(due);
            self.drain();
        }
        self.now = end;
        self.agent.handle_timeout(end);
        self.drain()
    }

    /// Pauses the agent's process.
    fn pause(&mut self, span: Duration) -> &mut Self {
        self.now = self.now + span;
        self.agent.handle_timeout(self.now);
        self.drain()
    }

    fn joined(&mut self) -> &mut Self {
        let round = Round { group_rank: 0, group_world_size: 2, number: Some(0), reports_deaths: true };
        self.give(Input::Joined { call: self.call, round })
    }

    fn assigned(&mut self) -> &mut Self {
        let ranks = Ranks { global_rank_first: 4, world_size: 6, role_rank_first: 2, role_world_size: 4 };
        self.give(Input::Assigned { call: self.call, ranks })
    }

    fn started(&mut self) -> &mut Self {
        for local_rank in 0..self.agent.spec().local_world_size {
            self.give(Input::Worker(WorkerEvent::Started { local_rank, pid: 100 + local_rank }));
        }
        self
    }

    fn exited(&mut self, local_rank: u32, exit: ExitStatus) -> &mut Self {
        let at = self.now;
        self.give(Input::Worker(WorkerEvent::Exited {
            local_rank,
            exit,
            at,
            was_ending: false,
            returned: None,
        }))
    }

    fn running(&mut self) -> &mut Self {
        self.give(Input::Begin).joined().assigned().started()
    }

    fn exit_barrier(&mut self) -> &mut Self {
        self.running()
            .exited(0, ExitStatus::Code(0))
            .exited(1, ExitStatus::Code(0))
            .give(Input::Worker(WorkerEvent::Empty))
    }

    /// Returns the outputs since the last call, without notices.
    fn actions(&mut self) -> Vec<Output> {
        self.outputs.drain(..).filter(|output| !matches!(output, Output::Notify(_))).collect()
    }

    fn phase(&self) -> Phase {
        self.agent.phase()
    }
}

/// Returns an agent in the given phase.
fn in_phase(phase: Phase) -> Play {
    let mut play = Play::new(spec());
    match phase {
        Phase::Idle => &mut play,
        Phase::Meeting => play.give(Input::Begin),
        Phase::Assigning => play.give(Input::Begin).joined(),
        Phase::Starting => play.give(Input::Begin).joined().assigned(),
        Phase::Running => play.running(),
        Phase::Restarting => play.running().give(Input::Member(Membership::NodesWaiting { nodes: 1 })),
        Phase::ExitBarrier => play.exit_barrier(),
        Phase::Ending => play.running().give(Input::Stop(StopCause::Requested)),
        Phase::Closing => {
            play.running().give(Input::Stop(StopCause::Requested)).give(Input::Worker(WorkerEvent::Empty))
        }
        Phase::Over => {
            play.running().give(Input::Stop(StopCause::Requested)).give(Input::Worker(WorkerEvent::Empty));
            let call = play.call;
            play.give(Input::Closed { call })
        }
    };
    assert_eq!(play.phase(), phase);
    play.outputs.clear();
    play
}

fn timer(signal: i32) -> ExpiredTimer {
    let span = Duration::from_millis(1500);
    ExpiredTimer { pid: 101, local_rank: Some(1), scope: "a#1".into(), expires: STOP, span, signal }
}

fn exit_barrier_failed(call: u64, kind: WaitFailure) -> Input {
    Input::ExitBarrierFailed { call, kind, message: "round 0 is over".into() }
}

fn inputs(play: &Play) -> Vec<(&'static str, Input)> {
    let message = || "words".into();
    let (call, late) = (play.call, play.call.wrapping_sub(1));
    let round = Round { group_rank: 1, group_world_size: 3, number: Some(7), reports_deaths: true };
    let ranks = Ranks { global_rank_first: 0, world_size: 2, role_rank_first: 0, role_world_size: 2 };
    let died = ExitStatus::Signal(9);
    vec![
        ("joined", Input::Joined { call, round }),
        ("joined, late", Input::Joined { call: late, round }),
        ("not joined: not needed", Input::NotJoined { call, kind: NoRound::NotNeeded, message: message() }),
        ("not joined: closed", Input::NotJoined { call, kind: NoRound::Closed, message: message() }),
        ("assigned", Input::Assigned { call, ranks }),
        ("assigned, late", Input::Assigned { call: late, ranks }),
        ("not assigned", Input::NotAssigned { call, kind: WaitFailure::Failed, message: message() }),
        (
            "not assigned: the round is over",
            Input::NotAssigned { call, kind: WaitFailure::RoundOver, message: message() },
        ),
        ("started 0", Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 7 })),
        (
            "not started: for lack of room",
            Input::Worker(WorkerEvent::NotStarted {
                local_rank: 0,
                start_failure: StartFailure::Passing,
                message: message(),
            }),
        ),
        (
            "not started: no such program",
            Input::Worker(WorkerEvent::NotStarted {
                local_rank: 0,
                start_failure: StartFailure::Lasting,
                message: message(),
            }),
        ),
        (
            "exited 0 well",
            Input::Worker(WorkerEvent::Exited {
                local_rank: 0,
                exit: ExitStatus::Code(0),
                at: play.now,
                was_ending: false,
                returned: None,
            }),
        ),
        (
            "exited 0 badly",
            Input::Worker(WorkerEvent::Exited {
                local_rank: 0,
                exit: died,
                at: play.now,
                was_ending: false,
                returned: None,
            }),
        ),
        (
            "exited 0 badly, later",
            Input::Worker(WorkerEvent::Exited {
                local_rank: 0,
                exit: died,
                at: play.now + STOP,
                was_ending: false,
                returned: None,
            }),
        ),
        ("error written by 1", Input::Worker(WorkerEvent::ErrorWritten { local_rank: 1, at: play.now })),
        ("leftovers", Input::Worker(WorkerEvent::Leftovers { message: message() })),
        ("stuck", Input::Worker(WorkerEvent::Stuck { local_rank: 1, since: STOP })),
        ("timer expired", Input::Worker(WorkerEvent::TimerExpired(timer(9)))),
        ("timer expired, without a signal", Input::Worker(WorkerEvent::TimerExpired(timer(0)))),
        ("empty", Input::Worker(WorkerEvent::Empty)),
        ("group lost", Input::Worker(WorkerEvent::GroupLost { message: message() })),
        ("lost sight", Input::Worker(WorkerEvent::GuardLost { message: message() })),
        ("nodes waiting", Input::Member(Membership::NodesWaiting { nodes: 2 })),
        ("no nodes waiting", Input::Member(Membership::NodesWaiting { nodes: 0 })),
        ("peer restarts", Input::Member(Membership::PeerRestarts { message: message() })),
        ("peer died", Input::Member(Membership::PeerDied { message: message() })),
        ("round over", Input::Member(Membership::RoundOver { message: message() })),
        ("left behind", Input::Member(Membership::Excluded)),
        ("replaced", Input::Member(Membership::Replaced)),
        ("job failed", Input::Member(Membership::JobFailed { message: message() })),
        ("session ended", Input::Member(Membership::SessionEnded { message: message() })),
        ("server lost", Input::Member(Membership::ServerLost { message: message() })),
        ("exit barrier passed", Input::ExitBarrierPassed { call }),
        ("arrived", Input::Arrived { call }),
        ("arrived, late", Input::Arrived { call: late }),
        ("exit barrier failed", exit_barrier_failed(call, WaitFailure::Failed)),
        ("exit barrier failed: the round is over", exit_barrier_failed(call, WaitFailure::RoundOver)),
        ("closed", Input::Closed { call }),
        ("signal", Input::Stop(StopCause::Signal(2))),
        ("asked to stop", Input::Stop(StopCause::Requested)),
        ("to pass on", Input::Pass { signal: 10 }),
    ]
}

fn brief(output: &Output) -> String {
    match output {
        Output::Join { .. } => "join".into(),
        Output::Assign { .. } => "assign".into(),
        Output::WaitAtExitBarrier { .. } => "wait at exit barrier".into(),
        Output::Close { leave_mode, .. } => format!("{leave_mode:?}").to_lowercase(),
        Output::Cancel { .. } => "cancel".into(),
        Output::Announce { .. } => "announce".into(),
        Output::ExplainRestart { .. } => "explain restart".into(),
        Output::Start { attempt } => format!("start {attempt}"),
        Output::Signal { signal } => format!("signal {signal}"),
        Output::NameLeftovers => "name leftovers".into(),
        Output::Kill => "kill".into(),
        Output::Pass { signal } => format!("pass {signal}"),
        Output::Report { failures, .. } => {
            let ranks: Vec<_> = failures.iter().map(|failed| failed.local_rank).collect();
            format!("report {ranks:?}")
        }
        Output::Notify(_) => unreachable!("left out"),
        Output::Abandon => "abandon".into(),
        Output::Over => "over".into(),
    }
}

/// State of an agent before an input of the table.
#[derive(Clone, Copy)]
enum Situation {
    In(Phase),
    Excusable,
    PendingFailure,
}

/// The ranks of a worker after [`Play::assigned`].
const fn ranks(local_rank: u32) -> WorkerRanks {
    WorkerRanks { global_rank: 4 + local_rank as u64, local_rank }
}

#[test]
fn every_input_in_every_phase_is_in_the_snapshot() {
    let mut table = String::new();
    let in_phases = Phase::ALL.into_iter().map(|phase| (format!("{phase:?}"), Situation::In(phase)));
    let excusable =
        [("Restarting for a failure", Situation::Excusable), ("Ending in doubt", Situation::PendingFailure)];
    for (phase, situation) in in_phases.chain(excusable.map(|(name, situation)| (name.into(), situation))) {
        let mut silent = Vec::new();
        let begin = || match situation {
            Situation::In(phase) => in_phase(phase),
            Situation::Excusable => excusable_restart(),
            Situation::PendingFailure => suspects(),
        };
        let (was_in, spent) = (begin().phase(), begin().agent.restarts_left());
        for number in 0..inputs(&begin()).len() {
            let mut play = begin();
            let (name, input) = inputs(&play).swap_remove(number);
            let result = play.agent.handle(play.now, input);
            play.drain();
            let mut row = match result {
                Ok(()) => format!("{:?}", play.phase()),
                Err(error) => format!("error: {error}"),
            };
            for output in play.actions() {
                row += &format!(" · {}", brief(&output));
            }
            let left = play.agent.restarts_left();
            if left < spent {
                row += &format!(" ({} spent)", spent - left);
            } else if left > spent {
                row += &format!(" ({} given back)", left - spent);
            }
            if row == format!("{was_in:?}") {
                silent.push(name);
            } else {
                writeln!(table, "{phase} | {name} => {row}").expect("a string");
            }
        }
        writeln!(table, "{phase} | nothing comes of: {}\n", silent.join("; ")).expect("a string");
    }
    assert_eq!(table, include_str!("table.snapshot"), "\n{table}");
}

#[test]
fn a_failure_spends_the_budget_and_a_newcomer_does_not() {
    let mut play = Play::new(spec());
    play.running()
        .give(Input::Member(Membership::NodesWaiting { nodes: 1 }))
        .give(Input::Worker(WorkerEvent::Empty));
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Meeting, 1));
    play.joined().assigned().started();
    assert_eq!((play.agent.group().attempt, play.agent.group().restart_count), (1, 0));
    play.exited(1, ExitStatus::Code(3)).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Meeting, 0));
    play.joined().assigned().started();
    assert_eq!((play.agent.group().attempt, play.agent.group().restart_count), (2, 1));
    play.outputs.clear();
    play.pass(Duration::from_millis(10)).exited(0, ExitStatus::Signal(11)).pass(Duration::from_millis(10));
    let reason = Reason::WorkerFailed { worker: ranks(0), exit: ExitStatus::Signal(11) };
    assert_eq!(play.actions(), [Output::Announce { reason: reason.clone() }, Output::Signal { signal: 15 }]);
    play.exited(1, ExitStatus::Signal(15)).give(Input::Worker(WorkerEvent::Empty));
    let failures = vec![Failed { local_rank: 0, pid: Some(100), exit: ExitStatus::Signal(11), at: at(10) }];
    let (call, group) = (play.call, play.agent.group().clone());
    assert_eq!(
        play.actions(),
        [Output::Report { group, failures }, Output::Close { call, leave_mode: LeaveMode::Close }]
    );
    play.give(Input::Closed { call });
    assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason }));
    assert_eq!(play.agent.group().state, WorkerState::Failed);
}

#[test]
fn a_worker_whose_timer_expired_has_failed_however_it_ends_then() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().give(Input::Worker(WorkerEvent::TimerExpired(timer(9))));
    let reason = Reason::TimerExpired { worker: Some(ranks(1)), timer: timer(9) };
    assert_eq!((play.phase(), play.agent.group().state), (Phase::Ending, WorkerState::Failed));
    assert_eq!(
        reason.to_string(),
        "watchdog: timer a#1 (set for 1.5 s by pid 101) of rank 5 (local rank 1) expired"
    );
    play.outputs.clear();
    // Both end after they were sent the signal.
    play.pass(Duration::from_millis(1)).exited(0, ExitStatus::Signal(15)).exited(1, ExitStatus::Signal(9));
    play.give(Input::Worker(WorkerEvent::Empty));
    let report = play.actions().into_iter().find_map(|output| match output {
        Output::Report { failures, .. } => Some(failures),
        _ => None,
    });
    let failures = report.expect("a report");
    assert_eq!(failures.iter().map(|failed| failed.local_rank).collect::<Vec<_>>(), [1]);
    assert_eq!(
        play.agent.outcome(),
        Some(&Outcome::Failed { reason }),
        "who was killed has failed by itself"
    );
}

#[test]
fn a_budget_of_none_is_legal() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().exited(0, ExitStatus::Code(1));
    assert_eq!(play.phase(), Phase::Ending);
}

#[test]
fn a_worker_that_ignores_the_signal_is_killed_and_one_that_survives_is_abandoned() {
    let mut play = Play::new(spec());
    play.running().give(Input::Member(Membership::RoundOver { message: "over".into() }));
    assert_eq!(play.agent.deadline(), Some(play.now + STOP));
    play.outputs.clear();
    play.pass(STOP - Duration::from_millis(1));
    assert_eq!(play.actions(), []);
    play.pass(Duration::from_millis(1));
    assert_eq!(play.actions(), [Output::Kill]);
    play.exited(0, ExitStatus::Signal(9)).pass(Duration::from_secs(5));
    let left = Left(vec![101]);
    assert_eq!(left.to_string(), "the worker of pid 101 is still there");
    assert!(
        play.outputs.contains(&Output::Notify(Notice::GaveUp { since: STOP + Duration::from_secs(5), left }))
    );
    // Surviving processes may hold what another start needs.
    assert_eq!((play.phase(), play.agent.deadline()), (Phase::Closing, None));
    assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason: Reason::GaveUp }));
    assert!(play.actions().contains(&Output::Announce { reason: Reason::GaveUp }));
}

#[test]
fn what_is_given_up_in_doubt_is_given_up_for_good() {
    let (stop_timeout, kill_timeout) = (Duration::from_millis(100), Duration::from_millis(100));
    let mut play = Play::new(WorkerSpec { max_restarts: 0, stop_timeout, kill_timeout, ..spec() });
    play.running().exited(0, ExitStatus::Code(1));
    assert_eq!((play.phase(), play.agent.outcome()), (Phase::Ending, None), "a peer may have died");
    play.pass(stop_timeout).pass(kill_timeout);
    assert_eq!(play.phase(), Phase::Closing);
    play.give(Input::Member(Membership::PeerDied { message: "b".into() }));
    assert!(matches!(play.agent.outcome(), Some(Outcome::Failed { .. })));
}

#[test]
fn a_start_that_comes_to_nothing_is_a_failure() {
    let mut play = in_phase(Phase::Starting);
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 7 })).outputs.clear();
    assert_eq!(play.agent.deadline(), Some(play.now + play.agent.spec().start_timeout));
    play.pass(play.agent.spec().start_timeout);
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Restarting, 0));
    let explained = Output::ExplainRestart { reason: Reason::StartTimeout };
    assert_eq!(play.actions(), [explained, Output::Signal { signal: 15 }]);
    // A start that is complete in time has no deadline any more.
    assert_eq!(in_phase(Phase::Running).agent.deadline(), None);
}

#[test]
fn a_system_without_room_is_not_asked_again_at_once() {
    let mut play = Play::new(WorkerSpec { max_restarts: 9, ..spec() });
    play.give(Input::Begin);
    let not_started = |play: &mut Play| {
        play.joined().assigned();
        play.give(Input::Worker(WorkerEvent::NotStarted {
            local_rank: 0,
            start_failure: StartFailure::Passing,
            message: "no more processes".into(),
        }));
        play.give(Input::Worker(WorkerEvent::Empty));
    };
    for seconds in [1, 2, 4, 8, 16, 32, 32] {
        not_started(&mut play);
        let until = play.now + Duration::from_secs(seconds);
        assert_eq!((play.phase(), play.agent.deadline()), (Phase::Restarting, Some(until)));
        play.pass(Duration::from_secs(seconds));
        assert_eq!(play.phase(), Phase::Meeting);
    }
    // The pauses start over once all workers run, and a stop does not wait for them.
    play.joined().assigned().started().exited(0, ExitStatus::Code(1)).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Meeting, "workers that fail are started anew at once");
    not_started(&mut play);
    assert_eq!(play.agent.deadline(), Some(play.now + Duration::from_secs(1)));
    play.give(Input::Stop(StopCause::Requested));
    assert_eq!(play.phase(), Phase::Closing);
}

#[test]
fn the_first_signal_leaves_workers_that_are_ending_their_time() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().exited(0, ExitStatus::Code(1));
    play.pass(DEATH_NEWS_DELAY_MAX);
    assert_eq!(play.phase(), Phase::Ending);
    play.outputs.clear();
    play.give(Input::Stop(StopCause::Signal(15)));
    assert_eq!(play.actions(), [], "they have got this signal already");
    play.give(Input::Stop(StopCause::Signal(15)));
    assert_eq!(play.actions(), [Output::Kill]);
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().exited(0, ExitStatus::Code(1)).pass(DEATH_NEWS_DELAY_MAX).outputs.clear();
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(play.actions(), [Output::Signal { signal: 2 }], "another signal may say more to them");
    assert!(matches!(play.agent.outcome(), Some(Outcome::Failed { .. })));
}

#[test]
fn a_worker_that_ended_counts_as_started() {
    let mut play = in_phase(Phase::Starting);
    play.exited(0, ExitStatus::Code(0)).exited(1, ExitStatus::Code(0));
    assert_eq!(play.phase(), Phase::ExitBarrier);
}

#[test]
fn a_stop_timeout_of_nothing_kills_at_once() {
    let mut play = Play::new(WorkerSpec { stop_timeout: Duration::ZERO, ..spec() });
    play.running();
    play.outputs.clear();
    play.exited(0, ExitStatus::Code(1));
    let reason = Reason::WorkerFailed { worker: ranks(0), exit: ExitStatus::Code(1) };
    assert_eq!(play.actions(), [Output::ExplainRestart { reason }, Output::Kill]);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut play = in_phase(Phase::Running);
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(
        play.actions(),
        [Output::Abandon, Output::Signal { signal: 2 }],
        "the others are notified first"
    );
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(play.actions(), [Output::Kill]);
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(play.actions(), []);
    play.give(Input::Worker(WorkerEvent::Empty));
    let call = play.call;
    assert_eq!(play.actions(), [Output::Close { call, leave_mode: LeaveMode::Leave }]);
    play.give(Input::Stop(StopCause::Signal(2)));
    assert_eq!(play.actions(), [Output::Cancel { call }, Output::Over]);
    assert_eq!(play.agent.outcome(), Some(&Outcome::Stopped { cause: StopCause::Signal(2) }));
}

#[test]
fn a_signal_while_workers_are_stopped_runs_on_the_same_clock() {
    let mut play = in_phase(Phase::Restarting);
    let until = play.agent.deadline();
    play.pass(Duration::from_secs(10)).give(Input::Stop(StopCause::Signal(3)));
    assert_eq!((play.phase(), play.agent.deadline()), (Phase::Ending, until));
    assert_eq!(play.actions(), [Output::Abandon, Output::Signal { signal: 3 }]);
}

#[test]
fn only_an_agent_stopped_with_work_undone_abandons_the_round() {
    for (phase, abandons) in [
        // It may be in a round whose start has not been reported.
        (Phase::Meeting, true),
        (Phase::Assigning, true),
        (Phase::Starting, true),
        (Phase::Running, true),
        (Phase::Restarting, true),
        (Phase::ExitBarrier, false),
        (Phase::Ending, false),
        (Phase::Closing, false),
    ] {
        let mut play = in_phase(phase);
        play.give(Input::Stop(StopCause::Requested));
        assert_eq!(play.actions().contains(&Output::Abandon), abandons, "{phase:?}");
        if phase == Phase::Meeting {
            let mut play = in_phase(phase);
            play.give(Input::Worker(WorkerEvent::GuardLost { message: "blind".into() }));
            assert!(play.actions().contains(&Output::Abandon), "it cannot announce anything");
        }
    }
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().exited(0, ExitStatus::Code(1));
    assert!(!play.actions().contains(&Output::Abandon), "a failure is announced");
}

#[test]
fn workers_that_end_before_all_are_started_count() {
    let mut play = in_phase(Phase::Starting);
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 7 })).exited(0, ExitStatus::Code(0));
    assert_eq!(play.phase(), Phase::Starting);
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 1, pid: 8 }));
    assert_eq!(play.phase(), Phase::Running);
    play.exited(1, ExitStatus::Code(0));
    assert_eq!(play.phase(), Phase::ExitBarrier);
    let mut play = in_phase(Phase::Starting);
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 0, pid: 7 })).exited(0, ExitStatus::Code(0));
    play.give(Input::Worker(WorkerEvent::Started { local_rank: 1, pid: 8 })).exited(1, ExitStatus::Code(2));
    assert_eq!(play.phase(), Phase::Restarting);
}

#[test]
fn success_closes_the_run() {
    let mut play = in_phase(Phase::ExitBarrier);
    let call = play.call;
    play.give(Input::ExitBarrierPassed { call });
    let call = play.call;
    assert_eq!(play.actions(), [Output::Close { call, leave_mode: LeaveMode::Close }]);
    play.give(Input::Closed { call });
    assert_eq!(play.agent.outcome(), Some(&Outcome::Succeeded { missing: None }));
    assert_eq!(play.agent.group().state, WorkerState::Succeeded);
}

#[test]
fn a_restart_that_a_peers_death_has_cost_is_given_back() {
    let died = || Input::Member(Membership::PeerDied { message: "node b died".into() });
    let mut play = Play::new(spec());
    play.running().exited(1, ExitStatus::Code(1));
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Restarting, 0));
    play.give(died()).give(died());
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Restarting, 1), "once");
    let message = "node b died: what failed here costs no restart".into();
    assert!(play.outputs.contains(&Output::Notify(Notice::Remark { message })));
    play.give(Input::Worker(WorkerEvent::Empty)).joined().assigned().started();
    assert_eq!((play.agent.group().attempt, play.agent.group().restart_count), (1, 0));
    // A worker is not killed by missing a peer, and a node that leaves for another round has not died.
    let restart = |exits: &[ExitStatus], news: Input| {
        let mut play = Play::new(spec());
        play.running();
        (0..).zip(exits).for_each(|(local_rank, exit)| {
            play.exited(local_rank, *exit);
        });
        play.give(news).give(Input::Worker(WorkerEvent::Empty));
        assert_eq!(play.phase(), Phase::Meeting);
        play.agent.restarts_left()
    };
    assert_eq!(restart(&[ExitStatus::Code(1)], died()), 1);
    assert_eq!(restart(&[ExitStatus::Signal(6)], died()), 1);
    assert_eq!(restart(&[ExitStatus::Signal(9)], died()), 0);
    assert_eq!(restart(&[ExitStatus::Code(1), ExitStatus::Signal(11)], died()), 0);
    assert_eq!(restart(&[ExitStatus::Code(1)], Input::Member(Membership::NodesWaiting { nodes: 1 })), 0);
    // A late report does not excuse the next failure.
    let mut play = in_phase(Phase::Restarting);
    play.give(Input::Worker(WorkerEvent::Empty)).joined().assigned().started().give(died());
    assert_eq!((play.phase(), play.agent.restarts_left()), (Phase::Restarting, 1));
}

/// An agent of several, whose group is being stopped because a worker has failed.
fn excusable_restart() -> Play {
    let mut play = Play::new(spec());
    play.running().exited(1, ExitStatus::Code(1)).outputs.clear();
    assert_eq!(play.phase(), Phase::Restarting);
    play
}

/// An agent of several, with no restart left, one of whose workers has failed.
fn suspects() -> Play {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.running().outputs.clear();
    play.exited(0, ExitStatus::Code(1));
    assert_eq!((play.phase(), play.agent.outcome()), (Phase::Ending, None));
    assert_eq!(play.actions(), [Output::Signal { signal: 15 }], "it is not announced yet");
    assert_eq!(play.agent.deadline(), Some(play.now + DEATH_NEWS_DELAY_MAX));
    play
}

#[test]
fn a_peers_death_saves_the_job_that_its_consequence_would_have_ended() {
    let died = || Input::Member(Membership::PeerDied { message: "node b died".into() });
    let mut play = suspects();
    play.give(died());
    assert_eq!((play.phase(), play.actions()), (Phase::Restarting, vec![]));
    assert_eq!(play.agent.deadline(), Some(play.now + STOP), "they are being stopped still");
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Meeting);
    // The same when no process is alive any more.
    let mut play = suspects();
    play.exited(1, ExitStatus::Signal(15)).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Ending, "the word may come");
    play.give(died());
    let call = play.call;
    assert_eq!((play.phase(), play.actions().pop()), (Phase::Meeting, Some(Output::Join { call })));
}

#[test]
fn without_a_death_the_job_fails_soon_whatever_its_workers_do() {
    let reason = Reason::WorkerFailed { worker: ranks(0), exit: ExitStatus::Code(1) };
    let failed = Some(Outcome::Failed { reason: reason.clone() });
    let announced = Output::Announce { reason };
    let mut play = suspects();
    play.pass(DEATH_NEWS_DELAY_MAX);
    assert_eq!(
        play.actions(),
        core::slice::from_ref(&announced),
        "the announcement does not wait for workers that do not end"
    );
    assert_eq!((play.phase(), play.agent.outcome()), (Phase::Ending, failed.as_ref()));
    play.give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Closing);
    let mut play = suspects();
    play.give(Input::Worker(WorkerEvent::Empty)).outputs.clear();
    play.pass(DEATH_NEWS_DELAY_MAX);
    let call = play.call;
    assert_eq!(play.actions(), [announced.clone(), Output::Close { call, leave_mode: LeaveMode::Close }]);
    // Events that make it certain before.
    let crashed = Input::Worker(WorkerEvent::Exited {
        local_rank: 1,
        exit: ExitStatus::Signal(11),
        at: at(0),
        was_ending: false,
        returned: None,
    });
    let lost = Input::Member(Membership::ServerLost { message: "gone".into() });
    let others = Input::Member(Membership::JobFailed { message: "b".into() });
    let unseen = Input::Worker(WorkerEvent::GuardLost { message: "the guard is gone".into() });
    for input in [crashed, lost, others, unseen, Input::Stop(StopCause::Requested)] {
        let mut play = suspects();
        play.give(input);
        assert_eq!((play.actions().first(), play.agent.outcome()), (Some(&announced), failed.as_ref()));
    }
    let mut play = suspects();
    play.give(Input::Member(Membership::RoundOver { message: "over".into() }));
    assert_eq!((play.phase(), play.agent.outcome()), (Phase::Ending, None), "that is no death");
}

#[test]
fn the_end_of_a_round_costs_no_restart_however_it_is_reported() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    play.give(Input::Begin).joined();
    let call = play.call;
    play.give(Input::NotAssigned { call, kind: WaitFailure::RoundOver, message: "round 0 is over".into() });
    assert_eq!((play.phase(), play.agent.outcome()), (Phase::Meeting, None));
    let call = play.call;
    assert_eq!(play.actions().pop(), Some(Output::Join { call }));
}

#[test]
fn without_news_of_deaths_nothing_is_in_doubt() {
    let mut play = Play::new(WorkerSpec { max_restarts: 0, ..spec() });
    let round = Round { group_rank: 0, group_world_size: 2, number: None, reports_deaths: false };
    play.give(Input::Begin);
    let call = play.call;
    play.give(Input::Joined { call, round }).assigned().started();
    play.exited(0, ExitStatus::Code(1));
    let reason = Reason::WorkerFailed { worker: ranks(0), exit: ExitStatus::Code(1) };
    assert_eq!(play.agent.outcome(), Some(&Outcome::Failed { reason }));
    // A spent restart is given back all the same if a death happens to be reported.
    let mut play = Play::new(spec());
    play.give(Input::Begin);
    let call = play.call;
    play.give(Input::Joined { call, round }).assigned().started().exited(0, ExitStatus::Code(1));
    let left = play.agent.restarts_left();
    play.give(Input::Member(Membership::PeerDied { message: "b died".into() }));
    assert_eq!(play.agent.restarts_left(), left + 1);
}

#[test]
fn a_start_that_lacks_nothing_waits_for_no_room() {
    let no_room = || {
        Input::Worker(WorkerEvent::NotStarted {
            local_rank: 0,
            start_failure: StartFailure::Passing,
            message: "no processes".into(),
        })
    };
    let mut play = Play::new(WorkerSpec { max_restarts: 9, ..spec() });
    play.give(Input::Begin).joined().assigned().give(no_room()).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!((play.phase(), play.agent.deadline()), (Phase::Restarting, Some(play.now + RESOURCE_BACKOFF)));
    // The next start has resources, and ends for another reason before all workers run.
    play.pass(RESOURCE_BACKOFF)
        .joined()
        .assigned()
        .exited(0, ExitStatus::Code(1))
        .give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.phase(), Phase::Meeting);
    // So the row has ended.
    play.joined().assigned().give(no_room()).give(Input::Worker(WorkerEvent::Empty));
    assert_eq!(play.agent.deadline(), Some(play.now + RESOURCE_BACKOFF));
}

#[test]
fn the_time_of_each_phase_of_a_restart_is_reported() {
    let ms = Duration::from_millis;
    let mut play = Play::new(spec());
    play.running().pass(ms(100));
    play.give(Input::Worker(WorkerEvent::Exited {
        local_rank: 0,
        exit: ExitStatus::Code(1),
        at: at(98),
        was_ending: false,
        returned: None,
    }));
    play.pass(ms(3)).give(Input::Worker(WorkerEvent::Empty)).pass(ms(5)).joined().pass(ms(7)).assigned();
    play.outputs.clear();
    play.pass(ms(11)).started();
    let timing = Timing { detect: ms(2), stop: ms(3), rendezvous: ms(5), assign: ms(7), start: ms(11) };
    assert!(play.outputs.contains(&Output::Notify(Notice::Running { attempt: 1, timing })));
    assert_eq!(timing.total(), ms(28));
}
