//! Replies of the store and responses of other members.

use super::{
    ABSENCE_TIMEOUT, Announced, ChangingGroup, MemberPresence, NoAnswer, Output, Owner, Peer, PeerState,
    Phase, PhaseEvent, RACES_MAX, SUSPICION_TIMEOUT, WorkerLocation,
};
use crate::device_map::{Group, GroupKind};
use crate::exchange::decode_card;
use crate::membership::change::{Change, Members};
use crate::membership::error::MembershipError;
use crate::membership::keys::{self, Aim};
use crate::membership::{Liveness, Member, Reply};
use crate::name::{WorkerInfo, WorkerName};
use rendezvous_core::prelude::*;

impl ChangingGroup {
    pub(super) fn stored(&mut self, now: Instant, reply: Reply) {
        let Some(owner) = self.in_flight.take() else { return };
        if let (Owner::Group(Phase::Member), Reply::Failed(_)) = (owner, &reply) {
            // A member needs no store: it stays as long as the store does not show that it was removed.
            self.removed_by = None;
            return;
        }
        if let Reply::Failed(message) = reply {
            return self.lose(MembershipError::Store { message });
        }
        let fits = match owner {
            Owner::Token => self.token.handle(now, &reply),
            Owner::Group(phase) if phase == self.phase => self.local_reply(now, reply),
            Owner::Group(_) => Some(()),
        };
        if fits.is_none() {
            self.lose(MembershipError::Store { message: "its reply does not match the request".into() });
        }
    }

    /// Processes the reply to the step of the phase; `None` if it does not match.
    fn local_reply(&mut self, now: Instant, reply: Reply) -> Option<()> {
        match (self.phase, reply) {
            (Phase::Checking, Reply::Value(value)) if &*value == b"false" => self.go(PhaseEvent::Done),
            (Phase::Checking, Reply::Value(value)) => {
                let stored = String::from_utf8_lossy(&value).into();
                self.fail(MembershipError::Mixed { stored, local: false });
            }
            (Phase::Reading | Phase::Rereading, Reply::Value(value)) => self.read(now, &value),
            (Phase::Member, Reply::Values(values)) => self.looked_for_itself(&values)?,
            (Phase::Locating, Reply::Values(values)) => self.located(now, &values)?,
            (Phase::Probing, Reply::Values(values)) => self.probed(now, &values)?,
            (Phase::Verifying, Reply::Value(value)) if *value == *self.options.member.address.as_bytes() => {
                self.go(PhaseEvent::Done);
            }
            // Others have continued without this member, and another worker has its name: none of the keys is its own
            // any more.
            (Phase::Verifying, Reply::Value(_)) => self.go(PhaseEvent::Fault),
            (Phase::Listing | Phase::Delisting, Reply::Value(value)) => self.compared(&value),
            (Phase::Writing | Phase::Addressing | Phase::Sweeping | Phase::Wiping, Reply::Done) => {
                self.go(PhaseEvent::Done);
            }
            _ => return None,
        }
        Some(())
    }

    /// Processes the list of members and the address under this member's name.
    fn looked_for_itself(&mut self, values: &[Box<[u8]>]) -> Option<()> {
        let [listed, address] = values else { return None };
        let me = &self.options.member;
        // A store that was restarted without its data has no list, so an empty one does not prove a removal.
        let is_removed = keys::parse_roster(listed).is_ok_and(|listed| {
            let is_mine = listed.contains(&me.worker) && **address == *me.address.as_bytes();
            !listed.is_empty() && !is_mine
        });
        if let Some(by) = self.removed_by.take().filter(|_| is_removed) {
            self.lose(MembershipError::Evicted { by });
        }
        Some(())
    }

    fn read(&mut self, now: Instant, value: &[u8]) {
        match keys::parse_roster(value) {
            Ok(listed) => {
                (self.listed, self.listed_text) = (listed, String::from_utf8_lossy(value).into());
                if self.phase == Phase::Rereading {
                    self.strike(self.me());
                    self.strike_out_the_known_dead();
                    self.find_victim(now);
                }
                self.go(PhaseEvent::Done);
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// On leaving: finds the listed worker with the name of the one from which the token was taken, unless it was asked
    /// when this member joined.
    fn find_victim(&mut self, now: Instant) {
        let victim = self.token.victim();
        let is_it = |worker: &&WorkerInfo| Some(&worker.name) == victim.as_ref() && !self.is_me(worker);
        let Some(worker) = self.listed.iter().find(is_it).cloned() else { return };
        if self.peers.iter().any(|peer| peer.worker == worker) {
            return;
        }
        let known = self.members.get(&worker.name).filter(|member| member.worker == worker);
        let (address, peer_state) = match known {
            Some(member) => (member.address.clone(), PeerState::Suspected),
            // That worker never notified this member, which it would have done if it were alive.
            None => ("".into(), PeerState::Dead),
        };
        self.doubts_until = now + SUSPICION_TIMEOUT;
        self.peers.push(Peer { worker, address, peer_state, announced: Announced::Nothing });
    }

    /// Whether some workers are still to confirm that they are alive.
    pub(super) fn has_suspects(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Doubting)
            && self.peers.iter().any(|peer| matches!(peer.peer_state, PeerState::Suspected))
    }

    pub(super) fn suspect_all(&mut self) {
        let suspects = self.peers.iter().filter(|peer| matches!(peer.peer_state, PeerState::Suspected));
        self.outputs.extend(suspects.map(|peer| Output::CheckAlive(peer.location(), self.doubts_until)));
    }

    pub(super) fn mark_suspected(&mut self, name: &str, member_presence: MemberPresence) {
        let is_it =
            |peer: &&mut Peer| *peer.worker.name == *name && matches!(peer.peer_state, PeerState::Suspected);
        if !self.has_suspects() {
            return;
        }
        let Some(peer) = self.peers.iter_mut().find(is_it) else { return };
        peer.peer_state = match member_presence {
            MemberPresence::Unsettled => PeerState::Silent,
            MemberPresence::Settled if self.phase == Phase::Doubting => PeerState::Settled,
            MemberPresence::Settled => {
                // It is an ordinary member.
                self.outputs.push_back(Output::Ask(peer.location()));
                PeerState::BeingAsked
            }
        };
    }

    fn strike(&mut self, departed: WorkerLocation) {
        if !self.departed.contains(&departed) {
            self.departed.push(departed);
        }
    }

    fn located(&mut self, now: Instant, values: &[Box<[u8]>]) -> Option<()> {
        if values.len() != self.listed.len() {
            return None;
        }
        let victim = self.token.victim();
        let peers = self.listed.iter().zip(values).map(|(worker, value)| {
            let address: Box<str> = String::from_utf8_lossy(value).into();
            // No other worker can be at this member's address: a worker that was there was an earlier one, and is dead.
            let is_dead = address.is_empty() || address == self.options.member.address;
            let peer_state = match () {
                () if is_dead => PeerState::Dead,
                // The worker from which the token was taken may be dead, may have lost the token while alive, or
                // another one may have joined under its name.
                () if Some(&worker.name) == victim.as_ref() => PeerState::Suspected,
                () => PeerState::BeingAsked,
            };
            Peer { worker: worker.clone(), address, peer_state, announced: Announced::Nothing }
        });
        self.peers = peers.collect();
        self.doubts_until = now + SUSPICION_TIMEOUT;
        self.go(PhaseEvent::Done);
        Some(())
    }

    /// Whether the other members' liveness keys must be read.
    pub(super) fn has_to_probe(&self) -> bool {
        let is_stop_requested = |peer: &Peer| matches!(peer.peer_state, PeerState::BeingAsked);
        self.options.liveness == Liveness::Keys && self.peers.iter().any(is_stop_requested)
    }

    /// Returns the liveness key of this member, followed by those of the others.
    pub(super) fn liveness_keys(&self) -> Vec<Box<str>> {
        let all = core::iter::once(self.me()).chain(self.peers.iter().map(Peer::location));
        all.map(|location| keys::liveness_of(&location.worker.name, &location.address)).collect()
    }

    /// A member without a liveness key has lost its session: it is asked whether it is alive, with a short timeout.
    fn probed(&mut self, now: Instant, values: &[Box<[u8]>]) -> Option<()> {
        let (local, others) = values.split_first()?;
        if others.len() != self.peers.len() {
            return None;
        }
        let is_here = |value: &[u8]| value.starts_with(keys::HERE.as_bytes());
        // If this member's own key is absent, the others' keys prove nothing.
        if is_here(local) {
            if !self.peers.iter().any(|peer| matches!(peer.peer_state, PeerState::Suspected)) {
                self.doubts_until = now + ABSENCE_TIMEOUT;
            }
            for (peer, value) in self.peers.iter_mut().zip(others) {
                if matches!(peer.peer_state, PeerState::BeingAsked) && !is_here(value) {
                    peer.peer_state = PeerState::Suspected;
                }
            }
        }
        self.go(PhaseEvent::Done);
        Some(())
    }

    /// On leaving: strikes out the dead that are still listed.
    fn strike_out_the_known_dead(&mut self) {
        let mut dead = self.dead.clone();
        dead.retain(|location| self.listed.contains(&location.worker));
        dead.into_iter().for_each(|location| self.strike(location));
    }

    pub(super) fn member_answered(&mut self, name: &str, answer: Result<Box<[u8]>, NoAnswer>) {
        let being_asked =
            |peer: &&mut Peer| *peer.worker.name == *name && matches!(peer.peer_state, PeerState::BeingAsked);
        if self.phase != Phase::Asking {
            return;
        }
        let Some(peer) = self.peers.iter_mut().find(being_asked) else { return };
        let worker = peer.worker.clone();
        let error = match answer {
            Err(NoAnswer::Dead) => {
                peer.peer_state = PeerState::Dead;
                return;
            }
            Ok(card) => match decode_card(&card) {
                Ok((got, devices)) if got == worker => {
                    peer.peer_state = PeerState::Here(devices);
                    return;
                }
                Ok((got, _)) => MembershipError::OtherCard { wanted: worker, got },
                Err(why) => MembershipError::Card { subject: worker.to_string().into(), why },
            },
            // A worker with this one's name that cannot be reached may be alive, so this one cannot join.
            Err(NoAnswer::Unknown(_)) if self.is_me(&worker) => {
                MembershipError::NotUnique { name: worker.name }
            }
            Err(NoAnswer::Unknown(message)) => MembershipError::Unanswered { worker, message },
        };
        self.fail(error);
    }

    pub(super) fn asked_everyone(&mut self) {
        let me = self.options.member.clone();
        let here = |peer: &&Peer| matches!(peer.peer_state, PeerState::Here(_));
        let same = |peer: &&Peer| peer.worker.name == me.worker.name || peer.worker.id == me.worker.id;
        if let Some(other) = self.peers.iter().filter(here).find(same) {
            let error = if other.worker.name == me.worker.name {
                MembershipError::NotUnique { name: me.worker.name }
            } else {
                MembershipError::IdTaken { id: me.worker.id, by: other.worker.name.to_string().into() }
            };
            return self.fail(error);
        }
        self.strike_out_the_dead();
        let nodes = self.here().chain([me]).map(|member| (member.worker.name, member.devices)).collect();
        let group = Group { kind: GroupKind::Dynamic, accelerator: self.options.accelerator, nodes };
        match group.check() {
            Ok(()) => self.go(PhaseEvent::AllAnswered),
            Err(error) => self.fail(error.into()),
        }
    }

    /// Returns the members that responded with a card.
    fn here(&self) -> impl Iterator<Item = Member> {
        self.peers.iter().filter_map(|peer| match &peer.peer_state {
            PeerState::Here(devices) => Some(Member {
                worker: peer.worker.clone(),
                address: peer.address.clone(),
                devices: devices.clone(),
            }),
            _ => None,
        })
    }

    /// Strikes out peers that are dead; returns true if any of them was not struck out before.
    pub(super) fn strike_out_the_dead(&mut self) -> bool {
        let before = self.departed.len();
        let is_dead = |peer: &&Peer| matches!(peer.peer_state, PeerState::Dead | PeerState::Silent);
        let dead = self.peers.iter().filter(is_dead);
        let dead: Vec<WorkerLocation> = dead.map(Peer::location).collect();
        for departed in dead {
            self.strike(departed);
        }
        self.departed.len() > before
    }

    fn is_struck(&self, worker: &WorkerInfo) -> bool {
        self.departed.iter().any(|departed| departed.worker == *worker)
    }

    /// Returns the list of members to be written.
    pub(super) fn new_list(&self) -> Vec<WorkerInfo> {
        let joins = self.phase == Phase::Listing;
        let kept = self.listed.iter().filter(|worker| !self.is_struck(worker) && !self.is_me(worker));
        let me = joins.then_some(&self.options.member.worker);
        kept.chain(me).cloned().collect()
    }

    /// Returns the keys of the struck out workers, except those that other members have now.
    pub(super) fn left_keys(&self) -> Vec<Box<str>> {
        let names = self.listed.iter().map(|worker| keys::name_of(worker.id));
        let addresses = self.listed.iter().map(|worker| keys::address_of(&worker.name));
        let taken: Vec<Box<str>> = names.chain(addresses).collect();
        let keys = self.departed.iter().flat_map(|departed| {
            [keys::name_of(departed.worker.id), keys::address_of(&departed.worker.name)]
        });
        keys.filter(|key| !taken.contains(key)).chain(self.left_tokens()).collect()
    }

    /// Returns the return marks of the struck out workers. Their heartbeats stay: if one of them resumes and acquires a
    /// token, the others take it back, since its heartbeat does not change.
    fn left_tokens(&self) -> impl Iterator<Item = Box<str>> + '_ {
        let mut names: Vec<WorkerName> =
            self.departed.iter().map(|departed| departed.worker.name.clone()).collect();
        let victim = self.token.victim().filter(|victim| !names.contains(victim));
        names.extend(victim);
        names.retain(|name| !self.listed.iter().any(|worker| worker.name == *name));
        names.into_iter().flat_map(|name| [Aim::Join, Aim::Leave].map(|aim| keys::token(&name, aim)))
    }

    fn compared(&mut self, value: &[u8]) {
        let wanted = self.new_list();
        let text = keys::roster_text(&wanted);
        if *value == *text.as_bytes() {
            (self.listed, self.listed_text) = (wanted, text);
            return self.go(PhaseEvent::Done);
        }
        self.races += 1;
        if self.races > RACES_MAX {
            return self.fail(MembershipError::Contended);
        }
        self.go(PhaseEvent::Raced);
    }

    /// Notifies the removed members that may be paused, once each, and does not wait for their responses.
    fn notify_silent(&mut self, joined: Option<&Member>) {
        let change = Change { joined: joined.cloned(), left: self.departed.clone() };
        let is_silent = |peer: &&mut Peer| {
            matches!(peer.peer_state, PeerState::Silent) && peer.announced == Announced::Nothing
        };
        for peer in self.peers.iter_mut().filter(is_silent) {
            peer.announced = Announced::Everything;
            self.outputs.push_back(Output::Notify(peer.location(), change.clone()));
        }
    }

    pub(super) fn push_all(&mut self) {
        let (joined, me) = (self.options.member.clone(), self.me());
        // They come first: the others ask them whether they agree.
        self.notify_silent(Some(&joined));
        for peer in self.peers.iter_mut().filter(|peer| matches!(peer.peer_state, PeerState::Here(_))) {
            let mut left = self.departed.clone();
            if peer.announced == Announced::Everything {
                // That member knows this one already. A departure with this worker's location would be read as this
                // worker's own.
                left.retain(|departed| *departed != me);
            }
            peer.announced = Announced::Pending;
            let change = Change { joined: Some(joined.clone()), left };
            self.outputs.push_back(Output::Notify(peer.location(), change));
        }
    }

    pub(super) fn announced(&mut self, name: &str, answer: Result<(), NoAnswer>) {
        let announced = |peer: &&mut Peer| *peer.worker.name == *name && peer.announced == Announced::Pending;
        let Some(peer) = self.peers.iter_mut().find(announced) else { return };
        peer.announced = Announced::Everything;
        match answer {
            Ok(()) => {}
            Err(NoAnswer::Dead) => peer.peer_state = PeerState::Dead,
            Err(NoAnswer::Unknown(message)) => {
                let worker = peer.worker.clone();
                // A member that leaves does not wait for those that do not respond.
                if self.phase == Phase::Notifying {
                    self.fail(MembershipError::Unanswered { worker, message });
                }
            }
        }
    }

    /// Notifies the members that know of this one that it leaves.
    pub(super) fn announce_leave(&mut self) {
        self.notify_silent(None);
        if self.failure.is_none() {
            let others = self.members.iter().filter(|member| !self.is_struck(&member.worker));
            let peers = others.map(|member| Peer {
                worker: member.worker.clone(),
                address: member.address.clone(),
                peer_state: PeerState::Here(member.devices.clone()),
                announced: Announced::Everything,
            });
            self.peers = peers.collect();
        }
        let change = Change { joined: None, left: self.departed.clone() };
        let is_concerned = |peer: &&mut Peer| {
            peer.announced != Announced::Nothing && matches!(peer.peer_state, PeerState::Here(_))
        };
        for peer in self.peers.iter_mut().filter(is_concerned) {
            peer.announced = Announced::Pending;
            self.outputs.push_back(Output::Notify(peer.location(), change.clone()));
        }
    }

    /// All members know of this one: the peers that responded become its group.
    pub(super) fn enter(&mut self) {
        let mut members = Members::default();
        self.here().chain([self.options.member.clone()]).for_each(|member| members.insert(member));
        self.members = members;
    }

    pub(super) fn changed(&mut self, change: Change) {
        if !self.phase.is_known() {
            return;
        }
        let me = self.me();
        if change.left.contains(&me) {
            let by =
                change.joined.map_or("another worker".into(), |member| member.worker.name.to_string().into());
            return match self.phase {
                // The store decides, not the sender: any process that knows the group's prefix can send this.
                Phase::Member => self.removed_by = Some(by),
                phase if phase.is_leaving() => {}
                _ => self.lose(MembershipError::Evicted { by }),
            };
        }
        let news = self.members.apply(&change);
        let members = &self.members;
        self.dead.retain(|location| members.at(location).is_some());
        if self.phase == Phase::Member && news != Change::default() {
            self.outputs.push_back(Output::Changed(news));
        }
    }

    fn is_me(&self, worker: &WorkerInfo) -> bool {
        worker.name == self.options.member.worker.name
    }

    fn me(&self) -> WorkerLocation {
        self.options.member.location()
    }
}
