//! Thread that takes part in the rendezvous: it joins, listens while the round lasts, and leaves.

use super::master_server::{Answer, Op, RUN, Request, ServerMessage};
use super::threads::{Info, Look, Member, MemberAsk, Thread, ThreadReport, set_deadline};
use super::world::World;
use rendezvous_agent::node::rounds::{FAILURE_KEY, Meaning, failure_message, meaning, no_round};
use rendezvous_agent::reason::NoRound;
use rendezvous_agent::supervisor::{Input, LeaveMode, Membership};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::error::RendezvousErrorKind;
use rendezvous_core::rendezvous::participant::Role;
use rendezvous_core::rendezvous::rejoin::{self, Action, Rejoin, Waited};
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::service::{
    EndReason, Event, InputError, Join, JoinFailure, NodeName, Reason as RoundReason,
};
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::Why;

const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(5);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

fn failure_key() -> String {
    String::from_utf8_lossy(FAILURE_KEY).into_owned()
}

impl World {
    pub(super) fn ask_member(&mut self, at: usize, ask: MemberAsk) {
        self.agents[at].context.member_asks.push_back(ask);
        self.member_turn(at);
    }

    pub(super) fn member_turn(&mut self, at: usize) {
        loop {
            let context = &mut self.agents[at].context;
            if context.member_asks.is_empty() {
                if !self.listen(at) {
                    return;
                }
                continue;
            }
            match core::mem::take(&mut context.member) {
                // It has deadlines of its own.
                announcing @ Member::Announcing { .. } => {
                    context.member = announcing;
                    return;
                }
                Member::Meeting { call, is_stop_requested, .. } => {
                    if let Some(session) = context.line().filter(|_| is_stop_requested) {
                        self.send(session, Request::Unjoin);
                    }
                    self.no_round(at, call, NoRound::Failed, "the call was cancelled");
                }
                Member::Closing { call, .. } => self.say_goodbye(at, call),
                Member::Idle | Member::Listening { .. } => {}
            }
            self.agents[at].context.member = Member::Idle;
            if let Some(ask) = self.agents[at].context.member_asks.pop_front() {
                self.begin_member(at, ask);
            }
        }
    }

    fn begin_member(&mut self, at: usize, ask: MemberAsk) {
        let now = self.sim.now;
        match ask {
            MemberAsk::Meet { call } => {
                let rejoin = Rejoin::new(now, self.plan.join_timeout);
                let context = &mut self.agents[at].context;
                context.info = None;
                context.member =
                    Member::Meeting { call, rejoin, is_stop_requested: false, was_standby: false };
                self.try_to_meet(at);
            }
            MemberAsk::Announce { reason } => {
                let context = &mut self.agents[at].context;
                let Some(info) = context.info.clone() else { return };
                let id = context.id();
                let rank = i64::try_from(info.rank).unwrap_or(i64::MAX);
                let message = failure_message(&name(at), rank, &reason);
                let context = &mut self.agents[at].context;
                context.member = Member::Announcing { id, message: Some(message.as_str().into()) };
                let op = Op::Begin(failure_key(), message.into_bytes());
                if self.agents[at].context.line() == Some(info.session) {
                    self.send(info.session, Request::Store { id, round: info.round, op });
                    self.set_time_up(at, Thread::Member, id, ANNOUNCE_TIMEOUT);
                } else {
                    self.announced(at);
                }
            }
            MemberAsk::Close { call, leave_mode } => {
                let id = self.agents[at].context.id();
                self.agents[at].context.member = Member::Closing { call, id, says_goodbye: false };
                let session = if leave_mode == LeaveMode::Close { self.session_or_new(at) } else { None };
                match session {
                    Some(session) => {
                        self.send(session, Request::Close { id });
                        self.set_time_up(at, Thread::Member, id, CALL_TIMEOUT);
                    }
                    None => self.say_goodbye(at, call),
                }
            }
            MemberAsk::Rest => {}
        }
    }

    fn set_time_up(&mut self, at: usize, thread: Thread, id: u64, span: Duration) {
        set_deadline(&mut self.sim.event_queue, at, thread, id, self.sim.now + span);
    }

    /// Returns the session, or opens a new one if there is none.
    fn session_or_new(&mut self, at: usize) -> Option<u64> {
        match self.agents[at].context.line() {
            Some(session) => Some(session),
            None => self.connect(at),
        }
    }

    fn no_round(&mut self, at: usize, call: u64, kind: NoRound, message: &str) {
        let input = Input::NotMet { call, kind, message: message.into() };
        self.agents[at].context.report_input(&mut self.sim, at, Thread::Member, input);
    }

    fn try_to_meet(&mut self, at: usize) {
        let now = self.sim.now;
        let Member::Meeting { call, mut rejoin, .. } = self.agents[at].context.member else { return };
        rejoin.handle(now, rejoin::Input::Tick);
        let (action, _) = rejoin.decide();
        let mut session = None;
        if action == Action::Ask {
            session = self.session_or_new(at);
            if session.is_none() {
                let failed = rejoin::Input::Failed(ErrorKind::ServerGone, Waited::Counted);
                rejoin.handle(now, failed);
            }
        }
        let is_stop_requested = session.is_some();
        let context = &mut self.agents[at].context;
        context.member = Member::Meeting { call, rejoin, is_stop_requested, was_standby: false };
        if let Some(session) = session {
            let node = &self.plan.nodes[at];
            let join = Join {
                run_id: RUN.into(),
                node: NodeName::plain(&name(at)),
                address: name(at).into_bytes().into(),
                local_world_size: node.spec.local_world_size,
                labels: Vec::new(),
                round_min: 0,
                node_rank: None,
                join_timeout: rejoin.left(now).max(Duration::from_millis(1)),
                settings: self.plan.settings.clone(),
            };
            let role = if self.agents[at].context.was_member { Role::Member } else { node.role };
            self.send(session, Request::Join(role, Box::new(join)));
            return;
        }
        match rejoin.decide() {
            (Action::Rest(until), _) => {
                let id = self.agents[at].context.id();
                set_deadline(&mut self.sim.event_queue, at, Thread::Member, id, until);
            }
            (Action::GiveUp, _) => {
                self.agents[at].context.member = Member::Idle;
                self.no_round(at, call, NoRound::Failed, "the server is gone");
            }
            (Action::Ask, _) => {}
        }
    }

    /// Handles the next event of the round, unless a lookup is under way. Returns whether there was one.
    fn listen(&mut self, at: usize) -> bool {
        let context = &mut self.agents[at].context;
        let Member::Listening { look: None } = context.member else { return false };
        let Some(info) = context.info.clone() else { return false };
        let Some(event) = context.inbox.pop_front() else {
            if context.line() == Some(info.session) {
                return false;
            }
            context.member = Member::Idle;
            // A live server reports the end of a session that it has ended.
            let lost = if self.has_ended(info.session) {
                Membership::SessionEnded { message: "heartbeats were missed".into() }
            } else {
                Membership::ServerLost { message: "the connection is gone".into() }
            };
            let context = &mut self.agents[at].context;
            context.report_input(&mut self.sim, at, Thread::Member, Input::Member(lost));
            return true;
        };
        let line = context.line();
        match (meaning(&event, Some(info.round)), line) {
            (Meaning::Nothing, _) | (Meaning::NodesMayWait { .. } | Meaning::JobMayHaveFailed, None) => {}
            (Meaning::Known(membership), _) => {
                context.report_input(&mut self.sim, at, Thread::Member, Input::Member(membership));
            }
            (Meaning::NodesMayWait { .. }, Some(session)) => {
                let id = context.id();
                context.member = Member::Listening { look: Some(Look::Waiting(id)) };
                self.send(session, Request::Waiting { id });
            }
            (Meaning::JobMayHaveFailed, Some(session)) => {
                let id = context.id();
                context.member = Member::Listening { look: Some(Look::Failure(id)) };
                let op = Op::Look(failure_key());
                self.send(session, Request::Store { id, round: info.round, op });
            }
        }
        true
    }

    /// Handles that the end of the job was announced as far as possible: the run is closed next.
    fn announced(&mut self, at: usize) {
        let context = &mut self.agents[at].context;
        let (id, member) = (context.id(), core::mem::take(&mut context.member));
        let Member::Announcing { message: Some(message), .. } = member else { return };
        match self.session_or_new(at) {
            Some(session) => {
                self.agents[at].context.member = Member::Announcing { id, message: None };
                self.send(session, Request::Fail { id, message });
                self.set_time_up(at, Thread::Member, id, CALL_TIMEOUT);
            }
            None => self.agents[at].context.member = Member::Idle,
        }
    }

    fn say_goodbye(&mut self, at: usize, call: u64) {
        let context = &mut self.agents[at].context;
        let id = context.id();
        match context.line() {
            Some(session) => {
                context.member = Member::Closing { call, id, says_goodbye: true };
                self.send(session, Request::Bye { id });
                self.set_time_up(at, Thread::Member, id, CALL_TIMEOUT);
            }
            None => self.closed(at, call),
        }
    }

    fn closed(&mut self, at: usize, call: u64) {
        let context = &mut self.agents[at].context;
        context.member = Member::Idle;
        context.report_input(&mut self.sim, at, Thread::Member, Input::Closed { call });
    }

    /// Handles the end of the session, or a call of this thread that timed out.
    pub(super) fn member_lost(&mut self, at: usize, id: Option<u64>) {
        let now = self.sim.now;
        let context = &mut self.agents[at].context;
        match (&mut context.member, id) {
            (Member::Meeting { rejoin, is_stop_requested, was_standby, .. }, None) if *is_stop_requested => {
                let waited = if *was_standby { Waited::Standby } else { Waited::Counted };
                rejoin.handle(now, rejoin::Input::Failed(ErrorKind::ServerGone, waited));
                *is_stop_requested = false;
                self.try_to_meet(at);
            }
            (Member::Meeting { is_stop_requested: false, .. }, Some(_)) => self.try_to_meet(at),
            (Member::Listening { look }, None) => *look = None,
            (Member::Announcing { id: local, message }, lost) if lost.is_none_or(|id| id == *local) => {
                if message.is_none() {
                    context.member = Member::Idle;
                } else {
                    self.announced(at);
                }
            }
            (&mut Member::Closing { call, id: local, says_goodbye }, lost)
                if lost.is_none_or(|id| id == local) =>
            {
                if says_goodbye {
                    self.closed(at, call);
                } else {
                    self.say_goodbye(at, call);
                }
            }
            _ => {}
        }
        self.member_turn(at);
    }

    /// Repeats a call to the store that the other thread has cancelled.
    pub(super) fn member_nudged(&mut self, at: usize) {
        if let Member::Listening { look: look @ Some(Look::Failure(_)) } = &mut self.agents[at].context.member
        {
            *look = None;
            self.member_turn(at);
        }
    }

    pub(super) fn member_news(&mut self, at: usize, session: u64, news: ServerMessage) {
        let context = &mut self.agents[at].context;
        match (&mut context.member, news) {
            (Member::Meeting { call, was_standby, .. }, ServerMessage::Event(event)) => {
                let call = *call;
                match event {
                    Event::Standby { .. } => *was_standby = true,
                    Event::RoundFormed(round) => {
                        let info = Info {
                            session,
                            round: round.namespace.round,
                            rank: round.rank.into(),
                            nodes: round.world_size.into(),
                        };
                        context.inbox.clear();
                        (context.info, context.was_member) = (Some(info.clone()), true);
                        context.member = Member::Listening { look: None };
                        context.notify(&mut self.sim, at, Thread::Member, ThreadReport::Met { call, info });
                    }
                    Event::JoinFailed(failure) => {
                        let kind = match failure {
                            JoinFailure::TimedOut { .. } => RendezvousErrorKind::Timeout,
                            JoinFailure::Closed { .. } => RendezvousErrorKind::Closed,
                            JoinFailure::GracefulExit { .. } => RendezvousErrorKind::GracefulExit,
                        };
                        context.member = Member::Idle;
                        self.no_round(at, call, no_round(kind), &failure.to_string());
                    }
                    event => context.inbox.extend(round_event(event)),
                }
            }
            (Member::Meeting { call, .. }, ServerMessage::Refused(error)) => {
                let call = *call;
                let kind = match error {
                    InputError::Closed { .. } => RendezvousErrorKind::Closed,
                    _ => RendezvousErrorKind::State,
                };
                context.member = Member::Idle;
                self.no_round(at, call, no_round(kind), &error.to_string());
            }
            // A round whose join was given up is left.
            (_, ServerMessage::Event(Event::RoundFormed(_))) => self.send(session, Request::Leave),
            (_, ServerMessage::Event(event)) => context.inbox.extend(round_event(event)),
            (Member::Listening { look }, ServerMessage::Waiting { id, nodes })
                if *look == Some(Look::Waiting(id)) =>
            {
                *look = None;
                let waiting = Membership::NodesWaiting { nodes: nodes.into() };
                context.report_input(&mut self.sim, at, Thread::Member, Input::Member(waiting));
            }
            (Member::Listening { look }, ServerMessage::Stored { id, answer })
                if *look == Some(Look::Failure(id)) =>
            {
                *look = None;
                if let Answer::Values(values) = answer {
                    let message = String::from_utf8_lossy(&values.concat()).into();
                    let failed = Membership::JobFailed { message };
                    context.report_input(&mut self.sim, at, Thread::Member, Input::Member(failed));
                }
            }
            (Member::Announcing { id: local, message: Some(_) }, ServerMessage::Stored { id, .. })
                if id == *local =>
            {
                self.announced(at);
            }
            (Member::Announcing { id: local, message: None }, ServerMessage::Done { id }) if id == *local => {
                context.member = Member::Idle;
            }
            (&mut Member::Closing { call, id: local, says_goodbye }, ServerMessage::Done { id })
                if id == local =>
            {
                if says_goodbye {
                    self.hang_up(at);
                    self.closed(at, call);
                } else {
                    self.say_goodbye(at, call);
                }
            }
            _ => {}
        }
        self.member_turn(at);
    }
}

pub(super) fn name(at: usize) -> String {
    format!("node{at}")
}

/// Returns the event that the node keeps for its listener, if it keeps it.
fn round_event(event: Event) -> Option<RoundEvent> {
    let why = |reason| match reason {
        EndReason::ConnectionEnded => Why::Connection,
        EndReason::HostSilent => Why::HostSilent,
        EndReason::HeartbeatsMissed => Why::Heartbeat,
        EndReason::Stalled => Why::Stalled,
        EndReason::ProtocolBroken => Why::Protocol,
        EndReason::Replaced => Why::Replaced,
        EndReason::Refused => Why::Refused,
        EndReason::GaveUp => Why::GaveUp,
    };
    Some(match event {
        Event::NodesWaiting { nodes } => RoundEvent::NodesWaiting { nodes },
        Event::NodeLost(loss) => RoundEvent::PeerDied {
            round: loss.round,
            node_rank: loss.rank,
            node: loss.node.to_string().into(),
            why: why(loss.why),
        },
        Event::RoundEnded { round, reason } => RoundEvent::RoundOver {
            round,
            why: match reason {
                RoundReason::Closed => Why::Closed,
                RoundReason::Deserted => Why::Deserted,
                _ => Why::TooFewNodes,
            },
        },
        Event::Excluded { round } => RoundEvent::Excluded { round },
        Event::JobFailed { message } => RoundEvent::JobFailed { message: (*message).into() },
        Event::RunClosed { by } => {
            RoundEvent::RunClosed { by: by.map(|by| by.to_string()).unwrap_or_default().into() }
        }
        Event::Replaced { .. } => RoundEvent::Replaced,
        Event::Seated | Event::Standby { .. } | Event::RoundFormed(_) | Event::JoinFailed(_) => {
            return None;
        }
    })
}
