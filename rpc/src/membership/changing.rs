//! A group whose members come and go.
//!
//! Who comes takes the right to change the group ([`Token`]), reads who is there, asks each for its devices, and looks
//! whether all fit together; then it enters itself, tells each of the others, and gives the right back. Who goes does the
//! same the other way round. Whoever does either strikes out those whom it finds dead, and undoes what somebody left who
//! died on the way.

mod phase;

pub use phase::{Phase, PhaseEvent};

use super::change::{Change, Members, WorkerLocation};
use super::error::MembershipError;
use super::keys::{self, Aim};
use super::token::{Token, TokenState, TokenTimes};
use super::{Liveness, Member, Reply, StoreStep};
use crate::device::DeviceKind;
use crate::device_map::{Group, GroupKind, NodeDevices};
use crate::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use rendezvous_core::rng::Rng;
use rendezvous_core::time::{Duration, Instant};

/// How often the list may be changed by others before that is an error: nobody should change it at all meanwhile.
const RACES_MAX: u32 = 16;

/// What a member is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangingOptions {
    /// Who it is, where it takes calls already, and its devices.
    pub member: Member,
    /// Which devices the group counts.
    pub accelerator: DeviceKind,
    /// How long joining, and leaving, may take.
    pub timeout: Duration,
    /// Signs of life.
    pub times: TokenTimes,
    /// Whether the members' liveness keys are in the store.
    pub liveness: Liveness,
    /// Tells this process from others that come under its name; random.
    pub nonce: u64,
}

/// How long a member may take to answer whose liveness key is gone: it is dead, or stands still, most likely.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the one may take to answer from whom the right to change the group was taken: it is dead, most likely.
const SUSPICION_TIMEOUT: Duration = Duration::from_secs(5);

/// Why another member gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Nobody is there: its address refuses connections, or the one that there was ended.
    #[error("nobody is there")]
    Dead,
    /// Something else. That is no proof of death.
    #[error("{0}")]
    Unknown(Box<str>),
}

/// Whether a worker of which it is in doubt is of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberPresence {
    /// It is a member, and neither comes nor goes.
    Settled,
    /// It comes or goes, or does not say.
    Unsettled,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time passed.
    Tick,
    /// The step that was asked for ended so.
    Stored(Reply),
    /// A worker answered, or not, to [`Output::CheckAlive`].
    Suspected(WorkerName, MemberPresence),
    /// A member answered to [`Output::Ask`], with its card.
    MemberAnswered(WorkerName, Result<Box<[u8]>, NoAnswer>),
    /// A member has taken in, or not, what [`Output::Notify`] was to tell it.
    Announced(WorkerName, Result<(), NoAnswer>),
    /// Another member tells of a change. Only whom the group knows can be told: others are to be refused.
    Changed(Change),
    /// This member is to leave.
    Leave,
    /// Nobody waits for it to join any longer.
    Cancel,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask this of the store, and report [`Input::Stored`]; nothing else is asked until then.
    Store(StoreStep),
    /// Ask the worker there whether it is a member that neither comes nor goes, until then.
    CheckAlive(WorkerLocation, Instant),
    /// Ask the worker there for its card.
    Ask(WorkerLocation),
    /// Tell the worker there.
    Notify(WorkerLocation, Change),
    /// This worker is a member; these are the others.
    Joined,
    /// The group has changed.
    Changed(Change),
    /// It is a member no more, as it wanted.
    Left,
    /// It is none, and will be none.
    Failed(MembershipError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Token,
    /// The group's, in this phase: once it is over, the reply means nothing.
    Group(Phase),
}

#[derive(Clone, Debug)]
enum PeerState {
    /// The right to change the group was taken from one of its name, or its liveness key is gone, and it has not said that
    /// it is there.
    Suspected,
    /// It was asked, or told, and has not answered.
    BeingAsked,
    /// It is a member, and was not asked for its devices.
    Settled,
    /// It is there, with these devices.
    Here(NodeDevices),
    /// It is dead.
    Dead,
}

#[derive(Clone, Debug)]
struct Peer {
    worker: WorkerInfo,
    address: Box<str>,
    peer_state: PeerState,
    /// Whether it knows of this member.
    announced: Announced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    Nothing,
    Pending,
    Everything,
}

impl Peer {
    fn location(&self) -> WorkerLocation {
        WorkerLocation { worker: self.worker.clone(), address: self.address.clone() }
    }
}

/// One member of a group whose members come and go.
#[derive(Clone, Debug)]
pub struct ChangingGroup {
    options: ChangingOptions,
    phase: Phase,
    token: Token,
    rng: Rng,
    deadline: Instant,
    in_flight: Option<Owner>,
    /// The list of members, as it was read or written.
    listed: Vec<WorkerInfo>,
    listed_text: Box<str>,
    peers: Vec<Peer>,
    /// When those are dead of whom it is in doubt still.
    doubts_until: Instant,
    /// Who is struck out, and has to be told of.
    departed: Vec<WorkerLocation>,
    /// Members that are dead, as far as is known, and have not been struck out.
    dead: Vec<WorkerLocation>,
    races: u32,
    members: Members,
    failure: Option<MembershipError>,
    outputs: VecDeque<Output>,
}

impl ChangingGroup {
    /// A worker that is to join.
    #[must_use]
    pub fn new(now: Instant, options: ChangingOptions) -> Self {
        let mut rng = Rng::new(options.nonce);
        let deadline = now + options.timeout;
        let name = options.member.worker.name.clone();
        let token = Token::new(now, &name, Aim::Join, options.times, deadline, rng.next_u64());
        let mut group = Self {
            options,
            phase: Phase::Checking,
            token,
            rng,
            deadline,
            in_flight: None,
            listed: Vec::new(),
            listed_text: "".into(),
            peers: Vec::new(),
            doubts_until: now,
            departed: Vec::new(),
            dead: Vec::new(),
            races: 0,
            members: Members::default(),
            failure: None,
            outputs: VecDeque::new(),
        };
        group.go_on(now);
        group
    }

    /// Where it stands.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Its way to the token.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The members, this one among them while it is one.
    #[must_use]
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// The devices of the members, for maps of answers and lists of devices.
    #[must_use]
    pub fn group(&self) -> Group {
        let nodes = self.members.iter().map(|member| (member.worker.name.clone(), member.devices.clone()));
        Group { kind: GroupKind::Dynamic, accelerator: self.options.accelerator, nodes: nodes.collect() }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When time alone changes something.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = matches!(self.phase, Phase::Asking | Phase::Telling | Phase::Leaving);
        let token =
            self.token.poll_timeout().filter(|_| self.phase != Phase::Member && self.in_flight.is_none());
        let doubts = self.has_suspects().then_some(self.doubts_until);
        [token, waits.then_some(self.deadline), doubts].into_iter().flatten().min()
    }

    /// Takes in what happened. What comes too late means nothing.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Tick => {}
            Input::Stored(reply) => self.stored(now, reply),
            Input::Suspected(name, member_presence) => self.mark_suspected(&name, member_presence),
            Input::MemberAnswered(name, answer) => self.member_answered(&name, answer),
            Input::Announced(name, answer) => self.announced(&name, answer),
            Input::Changed(change) => self.changed(change),
            Input::Leave => self.leave(now),
            Input::Cancel => self.cancel(now),
        }
        self.go_on(now);
    }

    /// A member is dead: nobody tells it of anything, and whoever changes the group next strikes it out.
    pub fn died(&mut self, location: WorkerLocation) {
        if self.members.get(&location.worker.name).is_some_and(|member| member.location() == location)
            && !self.dead.contains(&location)
        {
            self.dead.push(location);
        }
    }

    fn go(&mut self, event: PhaseEvent) {
        if let Some(next) = self.phase.on(event) {
            self.phase = next;
            self.entered();
        }
    }

    fn fail(&mut self, error: MembershipError) {
        self.failure.get_or_insert(error);
        self.go(PhaseEvent::Fault);
    }

    fn lose(&mut self, error: MembershipError) {
        self.failure.get_or_insert(error);
        self.go(PhaseEvent::Lost);
    }

    fn leave(&mut self, now: Instant) {
        if self.phase == Phase::Member {
            self.deadline = now + self.options.timeout;
            let (name, times) = (&self.options.member.worker.name, self.options.times);
            let nonce = self.rng.next_u64();
            self.token = Token::new(now, name, Aim::Leave, times, self.deadline, nonce);
            self.races = 0;
            // Whom it struck out when it came may have come back since.
            self.departed.clear();
            self.peers.clear();
            self.go(PhaseEvent::Leave);
        }
    }

    fn cancel(&mut self, now: Instant) {
        self.deadline = self.deadline.min(now);
        match self.phase {
            Phase::Checking | Phase::Queueing => {
                self.failure.get_or_insert(MembershipError::Cancelled);
                self.token.hurry(now);
            }
            Phase::LeaveQueueing => self.token.hurry(now),
            Phase::Reading
            | Phase::Locating
            | Phase::Probing
            | Phase::Asking
            | Phase::Writing
            | Phase::Addressing
            | Phase::Listing
            | Phase::Sweeping
            | Phase::Telling => self.fail(MembershipError::Cancelled),
            // It is as good as a member, or goes already.
            _ => {}
        }
    }

    /// Everything that follows, until something has to happen outside.
    fn go_on(&mut self, now: Instant) {
        loop {
            let before = (self.phase, self.token.state());
            if self.in_flight.is_none() && self.phase != Phase::Member {
                self.token.tick(now);
            }
            self.look_at_token(now);
            self.look_at_peers(now);
            if before == (self.phase, self.token.state()) {
                break;
            }
        }
        if self.in_flight.is_none() {
            self.ask_store();
        }
    }

    fn look_at_token(&mut self, now: Instant) {
        let state = self.token.state();
        let waits = matches!(self.phase, Phase::Queueing | Phase::LeaveQueueing);
        match state {
            TokenState::Held if waits => self.go(PhaseEvent::Token),
            // What is in flight would be carried out behind the back of the next one.
            TokenState::Held
                if matches!(self.phase, Phase::Unlocking | Phase::Closing) && self.in_flight.is_none() =>
            {
                self.token.release(now);
            }
            TokenState::Free => self.go(PhaseEvent::Token),
            TokenState::NotUnique if waits => {
                let name = self.options.member.worker.name.clone();
                self.lose(MembershipError::NotUnique { name });
            }
            TokenState::GaveUp if waits => {
                let (holder, liveness_watcher) = self.token.holder();
                let holder = holder.into();
                self.lose(MembershipError::TokenTimedOut { holder, liveness_watcher });
            }
            TokenState::Lost if self.phase != Phase::Member => {
                // Who goes is helped out by whoever took it for dead.
                let goes = matches!(
                    self.phase,
                    Phase::LeaveQueueing
                        | Phase::Rereading
                        | Phase::Doubting
                        | Phase::Verifying
                        | Phase::Delisting
                        | Phase::Wiping
                        | Phase::Leaving
                        | Phase::Closing
                );
                if !goes {
                    self.failure.get_or_insert(MembershipError::TokenLost);
                }
                self.go(PhaseEvent::Lost);
            }
            _ => {}
        }
    }

    fn look_at_peers(&mut self, now: Instant) {
        let is_late = now >= self.deadline;
        if self.has_suspects() && now >= self.doubts_until {
            let suspects =
                self.peers.iter_mut().filter(|peer| matches!(peer.peer_state, PeerState::Suspected));
            suspects.for_each(|peer| peer.peer_state = PeerState::Dead);
        }
        match self.phase {
            Phase::Asking => {
                let is_waited_for =
                    |peer: &&Peer| matches!(peer.peer_state, PeerState::BeingAsked | PeerState::Suspected);
                let missing = self.peers.iter().find(is_waited_for);
                match missing.map(|peer| peer.worker.clone()) {
                    Some(worker) if is_late => self.unanswered(worker, "not by the deadline"),
                    Some(_) => {}
                    None => self.asked_everyone(),
                }
            }
            Phase::Telling => {
                let missing = self.peers.iter().find(|peer| peer.announced == Announced::Pending);
                match missing.map(|peer| peer.worker.clone()) {
                    Some(worker) if is_late => self.unanswered(worker, "not by the deadline"),
                    Some(_) => {}
                    None if self.strike_out_the_dead() => self.go(PhaseEvent::FoundDead),
                    None => self.go(PhaseEvent::AllAnswered),
                }
            }
            Phase::Doubting if !self.has_suspects() => {
                self.strike_out_the_dead();
                self.go(PhaseEvent::AllAnswered);
            }
            Phase::Leaving => {
                let is_waited_for = self.peers.iter().any(|peer| peer.announced == Announced::Pending);
                // Who could not join has nothing to wait for: the others hear of it or never heard of the rest.
                if !is_waited_for || is_late || self.failure.is_some() {
                    self.go(PhaseEvent::AllAnswered);
                }
            }
            _ => {}
        }
    }

    fn unanswered(&mut self, worker: WorkerInfo, message: &str) {
        self.fail(MembershipError::Unanswered { worker, message: message.into() });
    }

    /// A phase begins: what it tells others, and the world.
    fn entered(&mut self) {
        match self.phase {
            Phase::Queueing | Phase::Reading if self.failure.is_some() => self.go(PhaseEvent::Fault),
            Phase::Reading => {
                self.departed.clear();
                self.peers.clear();
            }
            Phase::Probing if !self.has_to_probe() => self.go(PhaseEvent::Done),
            Phase::Asking => {
                self.suspect_all();
                let being_asked =
                    self.peers.iter().filter(|peer| matches!(peer.peer_state, PeerState::BeingAsked));
                self.outputs.extend(being_asked.map(|peer| Output::Ask(peer.location())));
            }
            Phase::Doubting => self.suspect_all(),
            Phase::Telling => self.push_all(),
            Phase::Leaving => self.part(),
            Phase::Unlocking => self.enter(),
            Phase::Member => self.outputs.push_back(Output::Joined),
            Phase::Over => {
                self.members = Members::default();
                self.outputs.push_back(match self.failure.take() {
                    Some(error) => Output::Failed(error),
                    None => Output::Left,
                });
            }
            _ => {}
        }
    }

    fn ask_store(&mut self) {
        let step = match self.phase {
            Phase::Member | Phase::Over => None,
            Phase::Checking => self.local_step().map(|step| (Owner::Group(self.phase), step)),
            _ => {
                let token = self.token.next_step().map(|step| (Owner::Token, step));
                token.or_else(|| {
                    let step = self.local_step().filter(|_| self.token.is_held())?;
                    Some((Owner::Group(self.phase), step))
                })
            }
        };
        if let Some((owner, step)) = step {
            self.in_flight = Some(owner);
            self.outputs.push_back(Output::Store(step));
        }
    }

    fn local_step(&self) -> Option<StoreStep> {
        let me = &self.options.member;
        Some(match self.phase {
            Phase::Checking => StoreStep::CompareSet {
                key: keys::IS_STATIC.into(),
                expected: "".into(),
                desired: "false".into(),
            },
            Phase::Reading | Phase::Rereading => StoreStep::Get { key: keys::ALL_WORKERS.into() },
            Phase::Locating => StoreStep::Peek {
                keys: self.listed.iter().map(|worker| keys::address_of(&worker.name)).collect(),
            },
            Phase::Probing => StoreStep::Peek { keys: self.liveness_keys() },
            Phase::Writing => {
                StoreStep::Set { key: keys::name_of(me.worker.id), value: me.worker.name.as_bytes().into() }
            }
            Phase::Addressing => {
                StoreStep::Set { key: keys::address_of(&me.worker.name), value: me.address.as_bytes().into() }
            }
            Phase::Verifying => StoreStep::Get { key: keys::address_of(&me.worker.name) },
            Phase::Listing | Phase::Delisting => StoreStep::CompareSet {
                key: keys::ALL_WORKERS.into(),
                expected: self.listed_text.clone(),
                desired: keys::roster_text(&self.new_list()),
            },
            Phase::Sweeping | Phase::Wiping => StoreStep::Delete { keys: self.left_keys() },
            Phase::Queueing
            | Phase::Asking
            | Phase::Doubting
            | Phase::Telling
            | Phase::Unlocking
            | Phase::Member
            | Phase::LeaveQueueing
            | Phase::Leaving
            | Phase::Closing
            | Phase::Over => return None,
        })
    }
}

mod steps;

#[cfg(test)]
mod tests;
