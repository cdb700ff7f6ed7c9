//! Verification of changes that other workers announce.
//!
//! A worker that changes a dynamic group notifies each member, and the members verify the notification. They check that
//! the newcomer can be called, and that the workers that the change removes, or whose name or number the newcomer
//! takes, have ended. A member that responds that it is one stays, and the notification is refused.

use super::{Agent, CHANGE_HANDLER, Called, Life, Membership, Purpose};
use super::{REACH_HANDLER, REACH_TIMEOUT};
use crate::membership::Member;
use crate::membership::change::{Change, WorkerLocation, decode_change};
use crate::membership::changing::{self, NoAnswer};
use crate::name::WorkerInfo;
use rendezvous_core::prelude::*;

/// Response of a member that is neither joining nor leaving.
pub(super) const SETTLED: &[u8] = b"\x01";
/// Response of a worker that is joining or leaving.
pub(super) const UNSETTLED: &[u8] = b"\x00";
/// A change to which this worker has not agreed yet.
#[derive(Clone, Debug)]
pub(super) struct Notified {
    /// Number of the call to which the response is due.
    number: u64,
    change: Change,
    by: WorkerInfo,
    /// Number of pending calls that verify it.
    calls: usize,
}

impl Notified {
    pub(super) const fn number(&self) -> u64 {
        self.number
    }
}

/// Whether a newcomer has the name or the number of this member.
fn is_named_as(newcomer: &Member, member: &Member) -> bool {
    newcomer.worker.name == member.worker.name || newcomer.worker.id == member.worker.id
}

/// Whether a newcomer has the name or the number of this member and is another worker.
fn replaces(newcomer: &Member, member: &Member) -> bool {
    is_named_as(newcomer, member) && newcomer.location() != member.location()
}

impl Agent {
    /// Returns whether this worker is a member that is neither joining nor leaving. Another worker removes such a
    /// member only by mistake.
    pub(super) fn membership_state(&self) -> &'static [u8] {
        let is_member = match &self.membership {
            Membership::Fixed(_) => true,
            Membership::Changing(group) => group.is_settled(),
        };
        if is_member && matches!(self.life, Life::Member | Life::Draining) { SETTLED } else { UNSETTLED }
    }

    /// Responds to the workers that ask whether this one is a member. While it checks that itself, they wait: if it
    /// responded that it is not settled, they would remove it. The callers' deadlines bound the wait.
    pub(super) fn respond_to_asked(&mut self) {
        if matches!(&self.membership, Membership::Changing(group) if group.checks_removal()) {
            return;
        }
        for number in core::mem::take(&mut self.asked) {
            self.respond(number, Ok(self.membership_state().into()));
        }
    }

    /// Processes a notification from another worker.
    pub(super) fn notified_of(&mut self, now: Instant, number: u64, called: &Called) {
        match self.check_change(now, called) {
            Err(message) => self.respond(number, Err(message)),
            Ok(None) => self.respond(number, Ok(Box::default())),
            Ok(Some(change)) => {
                self.try_change(now, Notified { number, change, by: called.from.clone(), calls: 0 })
            }
        }
    }

    /// Checks what needs no call. `None` if the notification changes nothing.
    fn check_change(&mut self, now: Instant, called: &Called) -> Result<Option<Change>, Box<str>> {
        let change = decode_change(&called.payload).map_err(|error| Box::<str>::from(error.to_string()))?;
        let by = &called.from;
        if matches!(self.membership, Membership::Fixed(_)) {
            return Err(format!("{CHANGE_HANDLER}: the group is static").into());
        }
        let is_me = |location: &WorkerLocation| location.is(&self.me);
        if self.membership_state() == SETTLED && change.left.iter().any(is_me) {
            if change.left.contains(&self.me.location()) {
                // If it is so, this worker did not respond in time, because it was paused or unreachable.
                self.hand_on(now, changing::Input::Changed(change));
            }
            return Err(format!("{by} removes {}, which is alive", self.me.worker).into());
        }
        match &change.joined {
            Some(newcomer) if newcomer.worker != *by => {
                Err(format!("{by} announces {}", newcomer.worker).into())
            }
            Some(newcomer) if replaces(newcomer, &self.me) => {
                Err(format!("{by} replaces {}, which is alive", self.me.worker).into())
            }
            Some(_) => Ok(Some(change)),
            None => {
                // The newcomer withdraws before this worker has agreed to it.
                self.withdraw(&change.left, Some(by));
                // A worker that no member has agreed to cannot remove others.
                Ok(self.is_member(by).then_some(change))
            }
        }
    }

    /// Calls the newcomer, and the workers that it removes or replaces, before this worker agrees.
    fn try_change(&mut self, now: Instant, mut notified: Notified) {
        let (number, until) = (notified.number, now + REACH_TIMEOUT);
        let newcomer = notified.change.joined.as_ref().map(Member::location);
        let doubts = self.doubts(&notified.change);
        notified.calls = doubts.len() + newcomer.iter().len();
        self.notified.push(notified);
        if let Some(newcomer) = newcomer {
            self.call(newcomer, REACH_HANDLER, Vec::new(), until, Purpose::Reach(number));
        }
        for location in doubts {
            let purpose = Purpose::CheckAlive(number, location.clone());
            self.call(location, REACH_HANDLER, Vec::new(), until, purpose);
        }
        self.check_notified(now, number);
    }

    /// Returns the members that the change removes or replaces and that are not known to be dead.
    fn doubts(&self, change: &Change) -> Vec<WorkerLocation> {
        let newcomer = change.joined.as_ref();
        let is_touched = |member: &&Member| {
            change.left.iter().any(|location| location.is(member))
                || newcomer.is_some_and(|newcomer| replaces(newcomer, member))
        };
        let is_doubtful = |member: &&Member| member.worker != self.me.worker && self.death(member).is_none();
        self.members().iter().filter(is_touched).filter(is_doubtful).map(Member::location).collect()
    }

    /// Processes the result of the call to a newcomer.
    pub(super) fn reached(&mut self, now: Instant, number: u64, answer: Result<Box<[u8]>, NoAnswer>) {
        match answer {
            Ok(_) => self.answered_for(now, number),
            Err(why) => {
                let Some(notified) = self.take_notified(number) else { return };
                let address = notified.change.joined.map_or("".into(), |member| member.address);
                let message = format!("it cannot call {} at {address}: {why}", notified.by);
                self.respond(number, Err(message.into()));
            }
        }
    }

    /// Processes the result of the call to a member that is removed or replaced.
    pub(super) fn mark_suspected(
        &mut self,
        now: Instant,
        number: u64,
        location: &WorkerLocation,
        answer: Result<Box<[u8]>, NoAnswer>,
    ) {
        let is_known = self.has_member_at(location);
        let Some(notified) = self.notified.iter_mut().find(|notified| notified.number == number) else {
            return;
        };
        let is_struck = notified.change.left.iter().any(|left| {
            left.worker.name == location.worker.name
                && (left.address.is_empty() || left.address == location.address)
        });
        let by = notified.by.clone();
        let does = if is_struck { "removes" } else { "replaces" };
        let refusal = match answer {
            Err(NoAnswer::Dead) if !is_struck => {
                notified.change.left.push(location.clone());
                None
            }
            Err(NoAnswer::Dead) => None,
            Ok(membership_state) if *membership_state == *SETTLED => {
                Some(format!("{by} {does} {} at {}, which is alive", location.worker, location.address))
            }
            // It is leaving, or lost the token while joining; or the worker that changes the group has waited for it
            // without a response, as this one has.
            Ok(_) | Err(NoAnswer::Unknown(_)) if is_struck || !is_known => None,
            Ok(_) => Some(format!("{by} {does} {}, which is leaving and still responds", location.worker)),
            Err(why) => Some(format!("{by} {does} {}, which may be alive: {why}", location.worker)),
        };
        match refusal {
            None => self.answered_for(now, number),
            Some(message) => {
                if self.take_notified(number).is_some() {
                    self.respond(number, Err(message.into()));
                }
            }
        }
    }

    fn answered_for(&mut self, now: Instant, number: u64) {
        if let Some(notified) = self.notified.iter_mut().find(|notified| notified.number == number) {
            notified.calls = notified.calls.saturating_sub(1);
            self.check_notified(now, number);
        }
    }

    fn take_notified(&mut self, number: u64) -> Option<Notified> {
        let location = self.notified.iter().position(|notified| notified.number == number)?;
        Some(self.notified.swap_remove(location))
    }

    fn check_notified(&mut self, now: Instant, number: u64) {
        if self.notified.iter().any(|notified| notified.number == number && notified.calls == 0)
            && let Some(notified) = self.take_notified(number)
        {
            self.apply(now, notified.change, &notified.by);
            self.respond(number, Ok(Box::default()));
        }
    }

    /// Drops announced newcomers that have ended, by their own notification if `by` is given, before this worker agreed
    /// to them.
    fn withdraw(&mut self, left: &[WorkerLocation], by: Option<&WorkerInfo>) {
        let is_dead = |notified: &Notified| {
            let newcomer = notified.change.joined.as_ref().filter(|_| by.is_none_or(|by| notified.by == *by));
            newcomer.is_some_and(|newcomer| left.iter().any(|location| location.is(newcomer)))
        };
        let departed: Vec<u64> = self
            .notified
            .iter()
            .filter(|notified| is_dead(notified))
            .map(|notified| notified.number)
            .collect();
        for number in departed {
            self.take_notified(number);
            self.respond(number, Err("the newcomer has withdrawn".into()));
        }
    }

    /// Applies a change announced by one of the members.
    fn apply(&mut self, now: Instant, mut change: Change, by: &WorkerInfo) {
        if let Some(newcomer) = &change.joined {
            // A member known to be dead can be replaced, also by a worker at the same address.
            let taken = self.members().iter().filter(|member| is_named_as(newcomer, member));
            let taken = taken.filter(|member| self.death(member).is_some()).map(Member::location);
            let more: Vec<WorkerLocation> =
                taken.filter(|location| !change.left.contains(location)).collect();
            change.left.extend(more);
        }
        for location in &change.left {
            // A worker that names itself is leaving. Any other worker that is removed is dead.
            let why = match &change.joined {
                None if location.worker == *by => continue,
                Some(newcomer) if location.worker == *by => format!("it restarted at {}", newcomer.address),
                _ => format!("{by} could not reach it at its address"),
            };
            self.mark_dead(&location.worker.name, &location.address, &why);
        }
        self.withdraw(&change.left, None);
        let newcomer = change.joined.as_ref().map(Member::location);
        self.hand_on(now, changing::Input::Changed(change));
        if self.life == Life::Leaving {
            // A worker that is leaving is not notified of newcomers. But a worker that rejoined is alive.
            self.deaths.retain(|death| Some(&death.location) != newcomer.as_ref());
        }
    }
}
