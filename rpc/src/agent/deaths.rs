//! Detection of deaths: by deleted liveness keys, and by addresses that refuse connections.

use super::liveness_key::{self, Vanished};
use super::{
    Agent, GroupEvent, Life, Membership, MembershipError, Output, Purpose, REACH_HANDLER, REACH_TIMEOUT,
    WatchState,
};
use crate::membership::Member;
use crate::membership::change::WorkerLocation;
use crate::membership::changing::NoAnswer;
use crate::name::WorkerInfo;
use rendezvous_core::prelude::*;

/// Description of the death of a worker whose address refuses connections.
const REFUSED_ADDRESS: &str = "no worker is at its address";

/// Description of the end of a worker that ended before its static group started.
const GAVE_UP: &str = "it gave up before the others were ready";

/// Time that a liveness key may outlast its worker. Keys are deleted in the order in which their workers end, while a
/// call fails at once. Without this delay, a worker that ends because it was notified of a death could be reported
/// before the dead one.
pub(super) const LIVENESS_GRACE: Duration = Duration::from_secs(1);

/// A member that is considered dead and has not been struck out.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) location: WorkerLocation,
    pub(super) why: Box<str>,
}

impl Agent {
    /// Whether this worker is a member, dead or alive. Code outside the library may have called it, and needs to learn
    /// of its death.
    pub fn has_member_at(&self, location: &WorkerLocation) -> bool {
        self.members().at(location).is_some()
    }

    fn lives(&self, location: &WorkerLocation) -> bool {
        self.members().at(location).is_some_and(|member| self.death(member).is_none())
    }

    /// Returns the death of this member. Another worker that rejoined under its name is alive.
    pub(super) fn death(&self, member: &Member) -> Option<&Death> {
        let is_it = |location: &WorkerLocation| {
            location.worker.name == member.worker.name && location.address == member.address
        };
        self.deaths.iter().find(|death| is_it(&death.location))
    }

    /// Starts to check a member to which a call failed in a way that may mean its death. It is called again over a new
    /// connection, since a broken connection proves nothing.
    pub(super) fn suspect(&mut self, now: Instant, location: WorkerLocation) {
        let is_stop_requested =
            |(_, purpose): &(u64, Purpose)| matches!(purpose, Purpose::Suspect(of) if *of == location);
        if self.lives(&location)
            && location.worker != self.me.worker
            && self.detects_deaths()
            && !self.calls.iter().any(is_stop_requested)
        {
            let purpose = Purpose::Suspect(location.clone());
            self.call(location, REACH_HANDLER, Vec::new(), now + REACH_TIMEOUT, purpose);
        }
    }

    /// Processes the result of that check.
    pub(super) fn suspected(
        &mut self,
        now: Instant,
        location: WorkerLocation,
        answer: &Result<Box<[u8]>, NoAnswer>,
    ) {
        if *answer != Err(NoAnswer::Dead)
            || !self.detects_deaths()
            || self.liveness_watcher.has_left(&location)
        {
            return;
        }
        if !self.liveness_watcher.show(&location) || !matches!(self.watch_state, WatchState::Clear) {
            self.mark_dead(&location.worker.name, &location.address, REFUSED_ADDRESS);
        } else if !self.suspects.iter().any(|(known, _)| *known == location) {
            self.suspects.push((location, now));
        }
    }

    /// Marks suspects as dead whose liveness keys were not deleted in time.
    pub(super) fn look_at_suspects(&mut self, now: Instant) {
        let liveness_watcher = &self.liveness_watcher;
        self.suspects.retain(|(location, _)| !liveness_watcher.has_left(location));
        let is_blind = !matches!(self.watch_state, WatchState::Clear);
        while let Some((_, since)) = self.suspects.first()
            && (is_blind || now >= *since + LIVENESS_GRACE)
            && self.life != Life::Over
        {
            let (location, _) = self.suspects.remove(0);
            self.mark_dead(&location.worker.name, &location.address, REFUSED_ADDRESS);
        }
    }

    /// Processes the deletion of a liveness key that was not marked as leaving.
    pub(super) fn vanished(&mut self, departed: Vanished) {
        let Vanished { liveness_key, id } = departed;
        if let (Life::Joining, Membership::Fixed(_), Some(id)) = (self.life, &self.membership, id)
            && liveness_key != self.liveness_key()
            // A second worker under this name, which was refused, also ends.
            && !self.liveness_watcher.show_another(&liveness_key.name)
        {
            // The other members are not known yet, and the group cannot form without this worker.
            let (worker, why) = (WorkerInfo { name: liveness_key.name, id }, liveness_key::VANISHED.into());
            return self.fail(MembershipError::PeerDied { worker, phase: "the group was forming", why });
        }
        self.mark_dead(&liveness_key.name, &liveness_key.address, liveness_key::VANISHED);
    }

    /// Whether a member that cannot be reached must be dead. While a static group ends, the others may have ended
    /// before.
    const fn detects_deaths(&self) -> bool {
        matches!(self.life, Life::Meeting | Life::Member | Life::Draining)
    }

    /// Marks a worker as dead, and fails the calls to it. Another worker of its name at another address is alive; an
    /// empty address matches any.
    pub(super) fn mark_dead(&mut self, name: &str, address: &str, why: &str) {
        let is_it = |member: &&Member| address.is_empty() || *member.address == *address;
        let Some(member) = self.members().get(name).filter(is_it) else { return };
        let location = member.location();
        if self.death(member).is_some() || location.worker == self.me.worker {
            return;
        }
        let (worker, why): (_, Box<str>) = (location.worker.clone(), why.into());
        self.outputs.push_back(Output::EndCallsTo(location.clone(), why.clone()));
        if matches!(self.life, Life::Member | Life::Draining | Life::Leaving) {
            let why = why.clone();
            self.outputs.push_back(Output::Event(GroupEvent::PeerDied { worker, why }));
        }
        if let Membership::Changing(group) = &mut self.membership {
            group.died(location.clone());
        }
        self.suspects.retain(|(known, _)| *known != location);
        self.deaths.push(Death { location, why });
        self.look_at_deaths();
    }

    /// Marks members as dead whose liveness keys were deleted before they were known as members.
    pub(super) fn mark_lost_members(&mut self) {
        let known = self.members().iter().map(Member::location);
        let lost: Vec<WorkerLocation> =
            known.filter(|location| self.liveness_watcher.are_lost(location)).collect();
        for location in lost {
            self.mark_dead(&location.worker.name, &location.address, liveness_key::VANISHED);
        }
        self.report_early_leavers();
        self.look_at_deaths();
    }

    /// Marks members of a static group as dead that left before it started.
    pub(super) fn report_early_leavers(&mut self) {
        if let (Life::Meeting, Membership::Fixed(group)) = (self.life, &self.membership) {
            let members = group.members().iter().map(Member::location);
            let went: Vec<WorkerLocation> =
                members.filter(|location| self.liveness_watcher.has_left(location)).collect();
            went.iter()
                .for_each(|location| self.mark_dead(&location.worker.name, &location.address, GAVE_UP));
        }
    }

    /// A static group starts and ends with all its members, so a death fails it.
    pub(super) fn look_at_deaths(&mut self) {
        let phase = match (self.life, &self.membership) {
            (Life::Meeting, Membership::Fixed(_)) => "the group was starting",
            (Life::Leaving, Membership::Fixed(_)) => "the group was ending",
            _ => return,
        };
        if let Some(death) = self.deaths.first() {
            let (worker, why) = (death.location.worker.clone(), death.why.clone());
            self.fail(MembershipError::PeerDied { worker, phase, why });
        }
    }

    /// Reported once: the watch cannot be restored.
    pub(super) fn watch_lost(&mut self, why: Box<str>) {
        if let WatchState::Clear = self.watch_state {
            self.watch_state = WatchState::Lost(why);
            self.report_watch();
        }
    }

    /// A worker that is not a member yet is notified when it becomes one.
    pub(super) fn report_watch(&mut self) {
        if let (Life::Member | Life::Draining | Life::Leaving, WatchState::Lost(why)) =
            (self.life, &self.watch_state)
        {
            self.outputs.push_back(Output::Event(GroupEvent::WatchLost { why: why.clone() }));
            self.watch_state = WatchState::ReportedLost;
        }
    }
}
