//! State of an agent's two threads: one takes part in the rendezvous, one meets the other agents in the store of the
//! round.
//! Each makes one call after the other, as the driver's threads do, and a new request ends the call before it.

use super::super::event_queue::EventQueue;
use super::master_server::Op;
use super::world::{Cue, SimContext};
use rendezvous_agent::ranks::Ranks;
use rendezvous_agent::reason::Reason;
use rendezvous_agent::supervisor::{Input, LeaveMode};
use rendezvous_core::elastic_store::barrier::TracedBarrier;
use rendezvous_core::rendezvous::rejoin::Rejoin;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Result of a round.
#[derive(Clone, Debug)]
pub(super) struct Info {
    pub(super) session: u64,
    pub(super) round: u64,
    pub(super) rank: u64,
    pub(super) nodes: u64,
}

/// Report of a thread to the agent.
#[derive(Clone, Debug)]
pub(super) enum ThreadReport {
    Input(Input),
    Met { call: u64, info: Info },
    Numbered { call: u64, ranks: Ranks },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thread {
    Member,
    Numbering,
}

#[derive(Clone, Debug)]
pub(super) enum MemberAsk {
    Meet { call: u64 },
    Announce { reason: Reason },
    Close { call: u64, leave_mode: LeaveMode },
    Rest,
}

/// State of the first thread.
#[derive(Debug, Default)]
pub(super) enum Member {
    #[default]
    Idle,
    /// `is_stop_requested`: the request has a session.
    Meeting {
        call: u64,
        rejoin: Rejoin,
        is_stop_requested: bool,
        was_standby: bool,
    },
    /// The lookup that is under way.
    Listening {
        look: Option<Look>,
    },
    /// The message that still has to be announced to the run; `None`: it was announced.
    Announcing {
        id: u64,
        message: Option<Box<str>>,
    },
    Closing {
        call: u64,
        id: u64,
        says_goodbye: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Waiting(u64),
    Failure(u64),
}

#[derive(Clone, Debug)]
pub(super) enum NumberingAsk {
    Assign { call: u64, info: Info },
    Part { call: u64, info: Info },
    Rest,
}

/// State of the second thread.
#[derive(Debug, Default)]
pub(super) enum Numbering {
    #[default]
    Idle,
    /// The remaining steps, the next one last, and the one under way.
    Assigning {
        call: u64,
        info: Info,
        steps: Vec<Step>,
        id: u64,
        until: Instant,
    },
    ExitBarrier {
        call: u64,
        info: Info,
        barrier: Box<TracedBarrier>,
        id: u64,
    },
}

/// One step of the rank assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Address of the workers' store: published by the first agent, and read by the others.
    NodeState,
    Introduce,
    /// The first agent reads what all have published, and assigns the ranks.
    Gather,
    Publish,
    Learn,
}

/// Connection of an agent to the server, with the state of its threads.
#[derive(Debug)]
pub(super) struct AgentContext {
    /// The session, also when it has ended.
    pub(super) session: Option<u64>,
    pub(super) is_line_over: bool,
    pub(super) member: Member,
    pub(super) member_asks: VecDeque<MemberAsk>,
    pub(super) numbering: Numbering,
    pub(super) numbering_asks: VecDeque<NumberingAsk>,
    /// What the first thread knows of its round.
    pub(super) info: Option<Info>,
    pub(super) inbox: VecDeque<RoundEvent>,
    /// The thread that makes the call of the supervisor.
    pub(super) wanted: Thread,
    pub(super) is_unlucky: bool,
    /// Whether it was in a round: then it comes back as a member.
    pub(super) was_member: bool,
    last_report: [Instant; 2],
    ids: u64,
}

impl AgentContext {
    pub(super) const fn new() -> Self {
        Self {
            session: None,
            is_line_over: false,
            member: Member::Idle,
            member_asks: VecDeque::new(),
            numbering: Numbering::Idle,
            numbering_asks: VecDeque::new(),
            info: None,
            inbox: VecDeque::new(),
            wanted: Thread::Member,
            is_unlucky: false,
            was_member: false,
            last_report: [Instant::ORIGIN; 2],
            ids: 0,
        }
    }

    pub(super) const fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Returns the session, if it lives.
    pub(super) fn line(&self) -> Option<u64> {
        self.session.filter(|_| !self.is_line_over)
    }

    /// Reports to the agent as soon as it looks. Reports of different threads may overtake each other.
    pub(super) fn notify(
        &mut self,
        sim: &mut SimContext,
        agent: usize,
        thread: Thread,
        reported: ThreadReport,
    ) {
        let longest = Duration::from_micros(if sim.sim_rng.percent(10) { 5000 } else { 200 });
        let last = &mut self.last_report[thread as usize];
        *last = (sim.now + sim.sim_rng.span(Duration::ZERO, longest)).max(*last);
        sim.event_queue.schedule(*last, Cue::ThreadReport(agent, reported));
    }

    pub(super) fn report_input(&mut self, sim: &mut SimContext, agent: usize, thread: Thread, input: Input) {
        self.notify(sim, agent, thread, ThreadReport::Input(input));
    }
}

/// Schedules the deadline of a call.
pub(super) fn set_deadline(
    event_queue: &mut EventQueue<Cue>,
    agent: usize,
    thread: Thread,
    id: u64,
    until: Instant,
) {
    event_queue.schedule(until, Cue::TimeUp(agent, thread, id));
}

/// A request to the store of a round.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) session: u64,
    pub(super) round: u64,
    pub(super) op: Op,
}
