//! Dynamic group, which members join and leave.
//!
//! A worker that joins acquires the token ([`Token`]), reads the list of members, requests each member's card, and
//! checks that all devices match. Then it adds itself to the list, notifies the other members, and returns the token. A
//! worker that leaves does the reverse. Each of them removes members that it finds dead, and undoes the unfinished
//! change of a worker that died with the token.

mod phase;

pub use phase::{Phase, PhaseEvent};

use super::change::{Change, Members, WorkerLocation};
use super::error::MembershipError;
use super::keys::{self, Aim};
use super::token::{Token, TokenState};
use super::{MemberOptions, Output, Reply, StoreStep};
use crate::device_map::{Group, GroupKind, NodeDevices};
use crate::name::{WorkerInfo, WorkerName};
use alloc::collections::VecDeque;
use rendezvous_core::prelude::*;
use rendezvous_core::rng::Rng;

/// Maximum number of changes of the list by other processes while this one holds the token. PyTorch's protocol forbids
/// any.
const RACES_MAX: u32 = 16;

/// Timeout of the response of a member whose liveness key is absent: it is probably dead or paused.
const ABSENCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of the response of a member from which the token was taken: it is probably dead.
const SUSPICION_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why another member did not respond.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// No worker is there: its address refuses connections, or the connection to it has ended.
    #[error("no worker is there")]
    Dead,
    /// Another failure, which does not prove its death.
    #[error("{0}")]
    Unknown(Box<str>),
}

/// Response of a worker that was suspected to be dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberPresence {
    /// It is a member, and is neither joining nor leaving.
    Settled,
    /// It is joining or leaving, or did not respond.
    Unsettled,
}

/// Inputs of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// Reply to the last [`Output::Store`].
    Stored(Reply),
    /// Result of [`Output::CheckAlive`].
    Suspected(WorkerName, MemberPresence),
    /// Response to [`Output::Ask`]: the member's card.
    MemberAnswered(WorkerName, Result<Box<[u8]>, NoAnswer>),
    /// Result of [`Output::Notify`].
    Announced(WorkerName, Result<(), NoAnswer>),
    /// Notification from another member. The driver accepts notifications only if the group knows the sender.
    Changed(Change),
    /// The caller wants to leave.
    Leave,
    /// The caller has cancelled the join.
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Token,
    /// The group in this phase; in a later phase the reply is ignored.
    Group(Phase),
}

#[derive(Clone, Debug)]
enum PeerState {
    /// Its liveness key is absent, or the token was taken from a worker with its name, and it has not yet confirmed
    /// that it is alive.
    Suspected,
    /// A request to it is pending.
    BeingAsked,
    /// It is a member whose card is not needed.
    Settled,
    /// It is alive and has these devices.
    Here(NodeDevices),
    /// It is dead.
    Dead,
    /// It was suspected and did not confirm that it is alive. It is removed like a dead one, and notified of that: it
    /// may be paused.
    Silent,
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

/// State machine of one member of a dynamic group.
#[derive(Clone, Debug)]
pub struct ChangingGroup {
    options: MemberOptions,
    phase: Phase,
    token: Token,
    rng: Rng,
    deadline: Instant,
    in_flight: Option<Owner>,
    /// List of members, as last read or written.
    listed: Vec<WorkerInfo>,
    listed_text: Box<str>,
    peers: Vec<Peer>,
    /// Deadline after which suspected peers are considered dead.
    doubts_until: Instant,
    /// Members struck out by this one, of which the others must be notified.
    departed: Vec<WorkerLocation>,
    /// Members reported dead that have not been struck out.
    dead: Vec<WorkerLocation>,
    races: u32,
    members: Members,
    /// Worker that has notified this member that it has removed it, until the store has been read.
    removed_by: Option<Box<str>>,
    failure: Option<MembershipError>,
    outputs: VecDeque<Output>,
}

impl ChangingGroup {
    /// Starts to join.
    pub fn new(now: Instant, options: MemberOptions) -> Self {
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
            removed_by: None,
            failure: None,
            outputs: VecDeque::new(),
        };
        group.go_on(now);
        group
    }

    /// The current phase.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether this worker is a member that is neither joining nor leaving, and has no reason to doubt it.
    pub const fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Member) && self.removed_by.is_none()
    }

    /// Whether this member was notified of its removal, and reads in the store whether it was removed.
    pub const fn checks_removal(&self) -> bool {
        matches!(self.phase, Phase::Member) && self.removed_by.is_some()
    }

    /// The state machine of the current token.
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The members, including this one while it is a member.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Returns the devices of the members, for reverse maps and lists of devices.
    pub fn group(&self) -> Group {
        let nodes = self.members.iter().map(|member| (member.worker.name.clone(), member.devices.clone()));
        Group { kind: GroupKind::Dynamic, accelerator: self.options.accelerator, nodes: nodes.collect() }
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Time of the next [`Input::Tick`]; `None` if none is needed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waits = matches!(self.phase, Phase::Asking | Phase::Notifying | Phase::Leaving);
        let token =
            self.token.poll_timeout().filter(|_| self.phase != Phase::Member && self.in_flight.is_none());
        let doubts = self.has_suspects().then_some(self.doubts_until);
        [token, waits.then_some(self.deadline), doubts].into_iter().flatten().min()
    }

    /// Processes an input. An input that is too late is ignored.
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

    /// Records that a member is dead: it is not notified of changes, and the next worker that changes the group strikes
    /// it out.
    pub fn died(&mut self, location: WorkerLocation) {
        if self.members.at(&location).is_some() && !self.dead.contains(&location) {
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
            (self.races, self.removed_by) = (0, None);
            // A worker that was struck out when this one joined may have rejoined since.
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
            | Phase::Notifying => self.fail(MembershipError::Cancelled),
            // The join is complete for the others, or the member is already leaving.
            _ => {}
        }
    }

    /// Steps the machine until it needs an input.
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
            // The store might execute the step in flight after the token's next holder has begun its change.
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
                let (holder, holder_liveness) = self.token.holder();
                let holder = holder.into();
                self.lose(MembershipError::TokenTimedOut { holder, holder_liveness });
            }
            TokenState::Lost if self.phase != Phase::Member => {
                // The worker that considered this one dead removes it from the group, so leaving succeeds.
                if !self.phase.is_leaving() {
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
            suspects.for_each(|peer| peer.peer_state = PeerState::Silent);
        }
        match self.phase {
            Phase::Asking => {
                let is_waited_for =
                    |peer: &&Peer| matches!(peer.peer_state, PeerState::BeingAsked | PeerState::Suspected);
                let missing = self.peers.iter().find(is_waited_for);
                match missing.map(|peer| peer.worker.clone()) {
                    Some(worker) if is_late => self.unanswered(worker, "the deadline passed"),
                    Some(_) => {}
                    None => self.asked_everyone(),
                }
            }
            Phase::Notifying => {
                let missing = self.peers.iter().find(|peer| peer.announced == Announced::Pending);
                match missing.map(|peer| peer.worker.clone()) {
                    Some(worker) if is_late => self.unanswered(worker, "the deadline passed"),
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
                // A worker that failed to join does not wait: the others receive the notification, or never knew of it.
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

    /// Actions on entry to a phase.
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
            Phase::Notifying => self.push_all(),
            Phase::Leaving => self.announce_leave(),
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
            Phase::Over => None,
            Phase::Checking | Phase::Member => self.local_step().map(|step| (Owner::Group(self.phase), step)),
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
            Phase::Member => {
                self.removed_by.as_ref()?;
                let keys = [keys::ALL_WORKERS.into(), keys::address_of(&me.worker.name)];
                StoreStep::Peek { keys: keys.into() }
            }
            Phase::Queueing
            | Phase::Asking
            | Phase::Doubting
            | Phase::Notifying
            | Phase::Unlocking
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
