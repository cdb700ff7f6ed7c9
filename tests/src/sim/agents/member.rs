//! The thread that stands in the rendezvous: it joins, listens while the round lasts, and goes.

use super::errands::{Info, Look, Member, MemberAsk, Thread, Told, set_deadline};
use super::office::{Answer, News, Op, RUN, Request};
use super::world::World;
use rendezvous_agent::node::rounds::{FAILURE_KEY, Meaning, failure_words, meaning, no_round};
use rendezvous_agent::reason::NoRound;
use rendezvous_agent::supervisor::{Farewell, Input, Membership};
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
        self.agents[at].desk.member_asks.push_back(ask);
        self.member_turn(at);
    }

    pub(super) fn member_turn(&mut self, at: usize) {
        loop {
            let desk = &mut self.agents[at].desk;
            if desk.member_asks.is_empty() {
                if !self.listen(at) {
                    return;
                }
                continue;
            }
            match core::mem::take(&mut desk.member) {
                // It has deadlines of its own.
                announcing @ Member::Announcing { .. } => {
                    desk.member = announcing;
                    return;
                }
                Member::Meeting { call, is_asked, .. } => {
                    if let Some(session) = desk.line().filter(|_| is_asked) {
                        self.send(session, Request::Unjoin);
                    }
                    self.no_round(at, call, NoRound::Failed, "the call was cancelled");
                }
                Member::Closing { call, .. } => self.say_goodbye(at, call),
                Member::Idle | Member::Listening { .. } => {}
            }
            self.agents[at].desk.member = Member::Idle;
            if let Some(ask) = self.agents[at].desk.member_asks.pop_front() {
                self.begin_member(at, ask);
            }
        }
    }

    fn begin_member(&mut self, at: usize, ask: MemberAsk) {
        let now = self.stage.now;
        match ask {
            MemberAsk::Meet { call } => {
                let rejoin = Rejoin::new(now, self.plan.join_timeout);
                let desk = &mut self.agents[at].desk;
                desk.info = None;
                desk.member = Member::Meeting { call, rejoin, is_asked: false, stood_by: false };
                self.try_to_meet(at);
            }
            MemberAsk::Announce { reason } => {
                let desk = &mut self.agents[at].desk;
                let Some(info) = desk.info.clone() else { return };
                let id = desk.id();
                let rank = i64::try_from(info.rank).unwrap_or(i64::MAX);
                let words = failure_words(&name(at), rank, &reason);
                let desk = &mut self.agents[at].desk;
                desk.member = Member::Announcing { id, words: Some(words.as_str().into()) };
                let op = Op::Begin(failure_key(), words.into_bytes());
                if self.agents[at].desk.line() == Some(info.session) {
                    self.send(info.session, Request::Store { id, round: info.round, op });
                    self.set_time_up(at, Thread::Member, id, ANNOUNCE_TIMEOUT);
                } else {
                    self.announced(at);
                }
            }
            MemberAsk::Close { call, farewell } => {
                let id = self.agents[at].desk.id();
                self.agents[at].desk.member = Member::Closing { call, id, says_goodbye: false };
                let session = if farewell == Farewell::Close { self.line_or_new(at) } else { None };
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
        set_deadline(&mut self.stage.agenda, at, thread, id, self.stage.now + span);
    }

    /// The session, made anew where there is none.
    fn line_or_new(&mut self, at: usize) -> Option<u64> {
        match self.agents[at].desk.line() {
            Some(session) => Some(session),
            None => self.connect(at),
        }
    }

    fn no_round(&mut self, at: usize, call: u64, kind: NoRound, words: &str) {
        let input = Input::NotMet { call, kind, words: words.into() };
        self.agents[at].desk.tell_input(&mut self.stage, at, Thread::Member, input);
    }

    fn try_to_meet(&mut self, at: usize) {
        let now = self.stage.now;
        let Member::Meeting { call, mut rejoin, .. } = self.agents[at].desk.member else { return };
        rejoin.handle(now, rejoin::Input::Tick);
        let (action, _) = rejoin.decide();
        let mut session = None;
        if action == Action::Ask {
            session = self.line_or_new(at);
            if session.is_none() {
                let failed = rejoin::Input::Failed(ErrorKind::ServerGone, Waited::Counted);
                rejoin.handle(now, failed);
            }
        }
        let is_asked = session.is_some();
        let desk = &mut self.agents[at].desk;
        desk.member = Member::Meeting { call, rejoin, is_asked, stood_by: false };
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
            let role = if self.agents[at].desk.was_member { Role::Member } else { node.role };
            self.send(session, Request::Join(role, Box::new(join)));
            return;
        }
        match rejoin.decide() {
            (Action::Rest(until), _) => {
                let id = self.agents[at].desk.id();
                set_deadline(&mut self.stage.agenda, at, Thread::Member, id, until);
            }
            (Action::GiveUp, _) => {
                self.agents[at].desk.member = Member::Idle;
                self.no_round(at, call, NoRound::Failed, "the server is gone");
            }
            (Action::Ask, _) => {}
        }
    }

    /// The next thing that happened to the round, if there is time to hear it; whether there was one.
    fn listen(&mut self, at: usize) -> bool {
        let desk = &mut self.agents[at].desk;
        let Member::Listening { look: None } = desk.member else { return false };
        let Some(info) = desk.info.clone() else { return false };
        let Some(event) = desk.inbox.pop_front() else {
            if desk.line() == Some(info.session) {
                return false;
            }
            desk.member = Member::Idle;
            // A server that goes on has words for a session that it has ended.
            let lost = if self.has_ended(info.session) {
                Membership::SessionEnded { words: "heartbeats were missed".into() }
            } else {
                Membership::ServerLost { words: "the connection is gone".into() }
            };
            let desk = &mut self.agents[at].desk;
            desk.tell_input(&mut self.stage, at, Thread::Member, Input::Member(lost));
            return true;
        };
        let line = desk.line();
        match (meaning(&event, Some(info.round)), line) {
            (Meaning::Nothing, _) | (Meaning::NodesMayWait { .. } | Meaning::JobMayHaveFailed, None) => {}
            (Meaning::Told(membership), _) => {
                desk.tell_input(&mut self.stage, at, Thread::Member, Input::Member(membership));
            }
            (Meaning::NodesMayWait { .. }, Some(session)) => {
                let id = desk.id();
                desk.member = Member::Listening { look: Some(Look::Waiting(id)) };
                self.send(session, Request::Waiting { id });
            }
            (Meaning::JobMayHaveFailed, Some(session)) => {
                let id = desk.id();
                desk.member = Member::Listening { look: Some(Look::Failure(id)) };
                let op = Op::Look(failure_key());
                self.send(session, Request::Store { id, round: info.round, op });
            }
        }
        true
    }

    /// The job's end was told, as far as that was possible: now nobody else is to come.
    fn announced(&mut self, at: usize) {
        let desk = &mut self.agents[at].desk;
        let (id, member) = (desk.id(), core::mem::take(&mut desk.member));
        let Member::Announcing { words: Some(words), .. } = member else { return };
        match self.line_or_new(at) {
            Some(session) => {
                self.agents[at].desk.member = Member::Announcing { id, words: None };
                self.send(session, Request::Fail { id, words });
                self.set_time_up(at, Thread::Member, id, CALL_TIMEOUT);
            }
            None => self.agents[at].desk.member = Member::Idle,
        }
    }

    fn say_goodbye(&mut self, at: usize, call: u64) {
        let desk = &mut self.agents[at].desk;
        let id = desk.id();
        match desk.line() {
            Some(session) => {
                desk.member = Member::Closing { call, id, says_goodbye: true };
                self.send(session, Request::Bye { id });
                self.set_time_up(at, Thread::Member, id, CALL_TIMEOUT);
            }
            None => self.closed(at, call),
        }
    }

    fn closed(&mut self, at: usize, call: u64) {
        let desk = &mut self.agents[at].desk;
        desk.member = Member::Idle;
        desk.tell_input(&mut self.stage, at, Thread::Member, Input::Closed { call });
    }

    /// The session is gone, or a call of this thread took too long.
    pub(super) fn member_lost(&mut self, at: usize, id: Option<u64>) {
        let now = self.stage.now;
        let desk = &mut self.agents[at].desk;
        match (&mut desk.member, id) {
            (Member::Meeting { rejoin, is_asked, stood_by, .. }, None) if *is_asked => {
                let waited = if *stood_by { Waited::StandingBy } else { Waited::Counted };
                rejoin.handle(now, rejoin::Input::Failed(ErrorKind::ServerGone, waited));
                *is_asked = false;
                self.try_to_meet(at);
            }
            (Member::Meeting { is_asked: false, .. }, Some(_)) => self.try_to_meet(at),
            (Member::Listening { look }, None) => *look = None,
            (Member::Announcing { id: own, words }, lost) if lost.is_none_or(|id| id == *own) => {
                if words.is_none() {
                    desk.member = Member::Idle;
                } else {
                    self.announced(at);
                }
            }
            (&mut Member::Closing { call, id: own, says_goodbye }, lost)
                if lost.is_none_or(|id| id == own) =>
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

    /// What is under way in the round's store was cancelled by the other thread.
    pub(super) fn member_nudged(&mut self, at: usize) {
        if let Member::Listening { look: look @ Some(Look::Failure(_)) } = &mut self.agents[at].desk.member {
            *look = None;
            self.member_turn(at);
        }
    }

    pub(super) fn member_news(&mut self, at: usize, session: u64, news: News) {
        let desk = &mut self.agents[at].desk;
        match (&mut desk.member, news) {
            (Member::Meeting { call, stood_by, .. }, News::Event(event)) => {
                let call = *call;
                match event {
                    Event::StandingBy { .. } => *stood_by = true,
                    Event::RoundFormed(round) => {
                        let info = Info {
                            session,
                            round: round.namespace.round,
                            rank: round.rank.into(),
                            nodes: round.world_size.into(),
                        };
                        desk.inbox.clear();
                        (desk.info, desk.was_member) = (Some(info.clone()), true);
                        desk.member = Member::Listening { look: None };
                        desk.tell(&mut self.stage, at, Thread::Member, Told::Met { call, info });
                    }
                    Event::JoinFailed(failure) => {
                        let kind = match failure {
                            JoinFailure::TimedOut { .. } => RendezvousErrorKind::Timeout,
                            JoinFailure::Closed { .. } => RendezvousErrorKind::Closed,
                            JoinFailure::GracefulExit { .. } => RendezvousErrorKind::GracefulExit,
                        };
                        desk.member = Member::Idle;
                        self.no_round(at, call, no_round(kind), &failure.to_string());
                    }
                    event => desk.inbox.extend(round_event(event)),
                }
            }
            (Member::Meeting { call, .. }, News::Refused(error)) => {
                let call = *call;
                let kind = match error {
                    InputError::Closed { .. } => RendezvousErrorKind::Closed,
                    _ => RendezvousErrorKind::State,
                };
                desk.member = Member::Idle;
                self.no_round(at, call, no_round(kind), &error.to_string());
            }
            // A round that came for who had given it up is left.
            (_, News::Event(Event::RoundFormed(_))) => self.send(session, Request::Leave),
            (_, News::Event(event)) => desk.inbox.extend(round_event(event)),
            (Member::Listening { look }, News::Waiting { id, nodes }) if *look == Some(Look::Waiting(id)) => {
                *look = None;
                let waiting = Membership::NodesWaiting { nodes: nodes.into() };
                desk.tell_input(&mut self.stage, at, Thread::Member, Input::Member(waiting));
            }
            (Member::Listening { look }, News::Stored { id, answer }) if *look == Some(Look::Failure(id)) => {
                *look = None;
                if let Answer::Values(values) = answer {
                    let words = String::from_utf8_lossy(&values.concat()).into();
                    let failed = Membership::JobFailed { words };
                    desk.tell_input(&mut self.stage, at, Thread::Member, Input::Member(failed));
                }
            }
            (Member::Announcing { id: own, words: Some(_) }, News::Stored { id, .. }) if id == *own => {
                self.announced(at);
            }
            (Member::Announcing { id: own, words: None }, News::Done { id }) if id == *own => {
                desk.member = Member::Idle;
            }
            (&mut Member::Closing { call, id: own, says_goodbye }, News::Done { id }) if id == own => {
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

/// What of the server's words the node keeps for whoever listens.
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
        Event::LeftBehind { round } => RoundEvent::LeftBehind { round },
        Event::JobFailed { words } => RoundEvent::JobFailed { words: (*words).into() },
        Event::RunClosed { by } => {
            RoundEvent::RunClosed { by: by.map(|by| by.to_string()).unwrap_or_default().into() }
        }
        Event::Replaced { .. } => RoundEvent::Replaced,
        Event::Seated | Event::StandingBy { .. } | Event::RoundFormed(_) | Event::JoinFailed(_) => {
            return None;
        }
    })
}
