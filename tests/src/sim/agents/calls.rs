//! Calls of an agent's node to its rendezvous and to the round's store, in virtual time. A call ends when the server has
//! answered, when its time is up, when it is cancelled, or when the session is lost.

use super::master_server::{Answer as ServerAnswer, Op, RUN, Request as ServerRequest, ServerMessage};
use super::world::{Cue, World};
use rendezvous_agent::node::request::{Answer, CallFailure, JoinedRound, Request, StoreOperation};
use rendezvous_agent::node::rounds::{FAILURE_KEY, no_round};
use rendezvous_agent::reason::NoRound;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::node::server::why_over;
use rendezvous_core::rendezvous::error::RendezvousErrorKind;
use rendezvous_core::rendezvous::participant::Role;
use rendezvous_core::rendezvous::rejoin::{Action, Input as RejoinInput, Rejoin, Waited};
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::service::{Event, InputError, Join, JoinFailure, NodeName};
use rendezvous_core::rendezvous::store_info::RendezvousStoreInfo;
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Timeout of a call to the rendezvous server.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Round that an agent has joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SimRound {
    pub(super) session: u64,
    pub(super) number: u64,
}

/// Pending call.
#[derive(Debug)]
enum PendingCall {
    Join {
        rejoin: Rejoin,
        /// Whether the server was asked.
        is_asked: bool,
        was_standby: bool,
    },
    NextEvent,
    /// A request to the server that gets one answer.
    Request {
        /// Whether to hang up when it has ended.
        hangs_up: bool,
    },
    Store {
        waits_for_one: bool,
    },
}

/// Connection of an agent to the server, with its pending calls.
#[derive(Debug, Default)]
pub(super) struct AgentContext {
    /// The session, also when it has ended.
    pub(super) session: Option<u64>,
    pub(super) is_line_over: bool,
    calls: BTreeMap<u64, PendingCall>,
    inbox: VecDeque<RoundEvent>,
    /// The last round that was joined.
    round: Option<SimRound>,
    /// Whether the agent cannot serve or find a store for its workers the next time.
    pub(super) is_unlucky: bool,
    /// Whether it was in a round: then it comes back as a member.
    was_member: bool,
}

impl AgentContext {
    /// Returns the session, if it lives.
    pub(super) fn line(&self) -> Option<u64> {
        self.session.filter(|_| !self.is_line_over)
    }

    pub(super) const fn round(&self) -> Option<SimRound> {
        self.round
    }
}

fn failure(kind: Option<ErrorKind>, message: &str) -> CallFailure {
    CallFailure { kind, no_round: NoRound::Failed, has_no_events: false, message: message.into() }
}

fn no_such_round(kind: RendezvousErrorKind, message: &str) -> CallFailure {
    CallFailure { no_round: no_round(kind), ..failure(None, message) }
}

impl World {
    pub(super) fn begin_call(&mut self, at: usize, id: u64, request: Request) {
        let now = self.sim.now;
        match request {
            Request::Join => {
                let rejoin = Rejoin::new(now, self.plan.join_timeout);
                let join = PendingCall::Join { rejoin, is_asked: false, was_standby: false };
                self.agents[at].context.calls.insert(id, join);
                self.try_to_join(at, id);
            }
            Request::NextEvent => {
                self.agents[at].context.calls.insert(id, PendingCall::NextEvent);
                self.next_event(at);
            }
            Request::NodesWaiting => {
                self.request(at, id, self.agents[at].context.line(), |id| ServerRequest::Waiting { id })
            }
            Request::Fail { message } => {
                self.note_announced(at);
                let session = self.session_or_new(at);
                self.request(at, id, session, |id| ServerRequest::Fail { id, message });
            }
            Request::Close => {
                let session = self.session_or_new(at);
                self.request(at, id, session, |id| ServerRequest::Close { id });
            }
            Request::Shutdown => {
                let session = self.agents[at].context.line();
                self.request(at, id, session, |id| ServerRequest::Bye { id });
                if let Some(PendingCall::Request { hangs_up }) = self.agents[at].context.calls.get_mut(&id) {
                    *hangs_up = true;
                }
            }
            Request::Store { operation, timeout } => self.store_call(at, id, operation, timeout),
            Request::ServeStore(_) => {
                let is_unlucky = core::mem::take(&mut self.agents[at].context.is_unlucky);
                let info = RendezvousStoreInfo { master_addr: name(at), master_port: 29500 };
                let answer = if is_unlucky {
                    Err(failure(None, "there is no port"))
                } else {
                    Ok(Answer::Serving(info))
                };
                self.answer(at, id, answer);
            }
        }
    }

    /// Asks the server something that it answers at once.
    fn request(
        &mut self,
        at: usize,
        id: u64,
        session: Option<u64>,
        request: impl FnOnce(u64) -> ServerRequest,
    ) {
        let Some(session) = session else {
            return self.answer(at, id, Err(failure(Some(ErrorKind::ServerGone), "the server is gone")));
        };
        self.agents[at].context.calls.insert(id, PendingCall::Request { hangs_up: false });
        self.send(session, request(id));
        self.set_time_up(at, id, self.sim.now + CALL_TIMEOUT);
    }

    fn store_call(&mut self, at: usize, id: u64, operation: StoreOperation, timeout: Duration) {
        let context = &mut self.agents[at].context;
        let begins_assignment =
            matches!(&operation, StoreOperation::Get(keys) if keys.iter().any(|key| &**key == "MASTER_ADDR"));
        if begins_assignment && core::mem::take(&mut context.is_unlucky) {
            return self.answer(at, id, Err(failure(None, "there is no port")));
        }
        let Some(round) = context.round.filter(|round| context.line() == Some(round.session)) else {
            return self.answer(at, id, Err(failure(Some(ErrorKind::ServerGone), "the connection is gone")));
        };
        let waits_for_one = matches!(operation, StoreOperation::Wait(_));
        context.calls.insert(id, PendingCall::Store { waits_for_one });
        if matches!(&operation, StoreOperation::SetIfAbsent(key, _) if &**key == FAILURE_KEY) {
            self.note_announced(at);
        }
        let op = match operation {
            StoreOperation::Set(pairs) => {
                Op::Set(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
            }
            StoreOperation::SetIfAbsent(key, value) => Op::Begin(key.into(), value),
            StoreOperation::Append(key, value) => Op::Append(key.into(), value),
            StoreOperation::Add(key, delta) => Op::Add(key.into(), delta),
            StoreOperation::Get(keys) if timeout.is_zero() => {
                Op::Look(keys.into_iter().map(Into::into).collect())
            }
            StoreOperation::Get(keys) => Op::Get(keys.into_iter().map(Into::into).collect()),
            StoreOperation::Wait(key) => Op::Get(vec![key.into()]),
        };
        self.send(round.session, ServerRequest::Store { id, round: round.number, op });
        // A read that does not wait has the timeout of any call.
        let timeout = if timeout.is_zero() { CALL_TIMEOUT } else { timeout };
        self.set_time_up(at, id, self.sim.now + timeout);
    }

    fn set_time_up(&mut self, at: usize, id: u64, until: Instant) {
        self.sim.at(until, Cue::TimeUp(at, id));
    }

    /// Ends a call. The agent gets the answer a little later; answers may overtake each other.
    fn answer(&mut self, at: usize, id: u64, answer: Result<Answer, CallFailure>) {
        self.agents[at].context.calls.remove(&id);
        let longest = Duration::from_micros(if self.sim.sim_rng.percent(10) { 5000 } else { 200 });
        let when = self.sim.now + self.sim.sim_rng.span(Duration::ZERO, longest);
        self.sim.at(when, Cue::Answered(at, id, answer));
    }

    /// Returns the session, or opens a new one if there is none.
    fn session_or_new(&mut self, at: usize) -> Option<u64> {
        match self.agents[at].context.line() {
            Some(session) => Some(session),
            None => self.connect(at),
        }
    }

    fn try_to_join(&mut self, at: usize, id: u64) {
        let now = self.sim.now;
        let Some(PendingCall::Join { mut rejoin, .. }) = self.agents[at].context.calls.remove(&id) else {
            return;
        };
        rejoin.handle(now, RejoinInput::Tick);
        let mut session = None;
        if rejoin.decide().0 == Action::Ask {
            session = self.session_or_new(at);
            if session.is_none() {
                rejoin.handle(now, RejoinInput::Failed(ErrorKind::ServerGone, Waited::Counted));
            }
        }
        let join = PendingCall::Join { rejoin, is_asked: session.is_some(), was_standby: false };
        self.agents[at].context.calls.insert(id, join);
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
            return self.send(session, ServerRequest::Join(role, Box::new(join)));
        }
        match rejoin.decide().0 {
            Action::Rest(until) => self.set_time_up(at, id, until),
            Action::GiveUp => {
                self.answer(at, id, Err(failure(Some(ErrorKind::ServerGone), "the server is gone")));
            }
            Action::Ask => {}
        }
    }

    /// Answers a wait for events, if there is an event or the session has ended.
    fn next_event(&mut self, at: usize) {
        let context = &mut self.agents[at].context;
        let waiting = context.calls.iter().find(|(_, call)| matches!(call, PendingCall::NextEvent));
        let Some((&id, _)) = waiting else { return };
        if let Some(event) = context.inbox.pop_front() {
            return self.answer(at, id, Ok(Answer::Event(Some(event))));
        }
        let Some(round) = context.round else { return };
        if context.line() == Some(round.session) {
            return;
        }
        // A live server reports the end of a session that it has ended.
        let lost = if self.has_ended(round.session) {
            failure(Some(ErrorKind::SessionEnded), "heartbeats were missed")
        } else {
            failure(Some(ErrorKind::ServerGone), "the connection is gone")
        };
        self.answer(at, id, Err(lost));
    }

    pub(super) fn cancel_call(&mut self, at: usize, id: u64) {
        let context = &self.agents[at].context;
        match (context.calls.get(&id), context.line()) {
            (None, _) => return,
            (Some(PendingCall::Join { is_asked: true, .. }), Some(session)) => {
                self.send(session, ServerRequest::Unjoin);
            }
            (Some(PendingCall::Store { .. }), Some(session)) => {
                self.send(session, ServerRequest::GiveUp { id });
            }
            _ => {}
        }
        self.answer(at, id, Err(failure(Some(ErrorKind::Cancelled), "the call was cancelled")));
    }

    /// Handles that the time of a call is up.
    pub(super) fn call_time_up(&mut self, at: usize, id: u64) {
        match self.agents[at].context.calls.get(&id) {
            Some(PendingCall::Join { is_asked: false, .. }) => return self.try_to_join(at, id),
            Some(PendingCall::Store { .. }) => {
                if let Some(session) = self.agents[at].context.line() {
                    self.send(session, ServerRequest::GiveUp { id });
                }
            }
            Some(PendingCall::Request { .. }) => {}
            Some(PendingCall::Join { .. } | PendingCall::NextEvent) | None => return,
        }
        self.answer(at, id, Err(failure(Some(ErrorKind::TimedOut), "the call timed out")));
    }

    /// Ends the calls of an agent whose session has ended.
    pub(super) fn calls_lost(&mut self, at: usize) {
        let now = self.sim.now;
        let ids: Vec<u64> = self.agents[at].context.calls.keys().copied().collect();
        for id in ids {
            match self.agents[at].context.calls.get_mut(&id) {
                Some(PendingCall::Join { rejoin, is_asked, was_standby }) if *is_asked => {
                    let waited = if *was_standby { Waited::Standby } else { Waited::Counted };
                    rejoin.handle(now, RejoinInput::Failed(ErrorKind::ServerGone, waited));
                    *is_asked = false;
                    self.try_to_join(at, id);
                }
                Some(PendingCall::Request { .. } | PendingCall::Store { .. }) => {
                    let lost = failure(Some(ErrorKind::ServerGone), "the connection is gone");
                    self.answer(at, id, Err(lost));
                }
                Some(PendingCall::Join { .. } | PendingCall::NextEvent) | None => {}
            }
        }
        self.next_event(at);
    }

    /// Handles a message of the server.
    pub(super) fn call_news(&mut self, at: usize, session: u64, news: ServerMessage) {
        let context = &mut self.agents[at].context;
        let joining = context.calls.iter_mut().find_map(|(id, call)| match call {
            PendingCall::Join { was_standby, .. } => Some((*id, was_standby)),
            _ => None,
        });
        match news {
            ServerMessage::Event(event) => match (joining, event) {
                (Some((_, was_standby)), Event::Standby { .. }) => *was_standby = true,
                (Some((id, _)), Event::RoundFormed(round)) => {
                    context.inbox.clear();
                    context.round = Some(SimRound { session, number: round.namespace.round });
                    context.was_member = true;
                    let joined = JoinedRound {
                        rank: round.rank.into(),
                        world_size: round.world_size.into(),
                        number: Some(round.namespace.round),
                        store_info: RendezvousStoreInfo { master_addr: "server".into(), master_port: 29400 },
                        leader: Some("node".into()),
                    };
                    self.answer(at, id, Ok(Answer::Joined(joined)));
                }
                // A round whose join was given up is left.
                (None, Event::RoundFormed(_)) => self.send(session, ServerRequest::Leave),
                (Some((id, _)), Event::JoinFailed(failure)) => {
                    let kind = match failure {
                        JoinFailure::TimedOut { .. } => RendezvousErrorKind::Timeout,
                        JoinFailure::Closed { .. } => RendezvousErrorKind::Closed,
                        JoinFailure::GracefulExit { .. } => RendezvousErrorKind::GracefulExit,
                    };
                    self.answer(at, id, Err(no_such_round(kind, &failure.to_string())));
                }
                (_, event) => {
                    context.inbox.extend(round_event(event));
                    self.next_event(at);
                }
            },
            ServerMessage::Refused(error) => {
                let Some((id, _)) = joining else { return };
                let kind = match error {
                    InputError::Closed { .. } => RendezvousErrorKind::Closed,
                    _ => RendezvousErrorKind::State,
                };
                self.answer(at, id, Err(no_such_round(kind, &error.to_string())));
            }
            ServerMessage::Waiting { id, nodes } if context.calls.contains_key(&id) => {
                self.answer(at, id, Ok(Answer::Number(nodes.into())));
            }
            ServerMessage::Done { id } => {
                let Some(PendingCall::Request { hangs_up }) = context.calls.get(&id) else { return };
                if *hangs_up {
                    self.hang_up(at);
                }
                self.answer(at, id, Ok(Answer::Done));
            }
            ServerMessage::Stored { id, answer } => {
                let Some(PendingCall::Store { waits_for_one }) = context.calls.get(&id) else { return };
                let answer = match answer {
                    ServerAnswer::Done => Ok(Answer::Done),
                    ServerAnswer::Values(_) if *waits_for_one => Ok(Answer::Done),
                    ServerAnswer::Number(number) => Ok(Answer::Number(number)),
                    ServerAnswer::Values(values) => Ok(Answer::Values(values)),
                    ServerAnswer::Missing => Err(failure(Some(ErrorKind::TimedOut), "the key is absent")),
                    ServerAnswer::Stale => Err(failure(Some(ErrorKind::StaleRound), "the round is over")),
                };
                self.answer(at, id, answer);
            }
            ServerMessage::Waiting { .. } => {}
        }
    }
}

pub(super) fn name(at: usize) -> String {
    format!("node{at}")
}

/// Returns the event that the node keeps for its listener, if it keeps it.
fn round_event(event: Event) -> Option<RoundEvent> {
    Some(match event {
        Event::NodesWaiting { nodes } => RoundEvent::NodesWaiting { nodes },
        Event::NodeLost(loss) => RoundEvent::PeerDied {
            round: loss.round,
            node_rank: loss.rank,
            node: loss.node.to_string().into(),
            why: loss.why,
        },
        Event::RoundEnded { round, reason } => RoundEvent::RoundOver { round, why: why_over(reason) },
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
