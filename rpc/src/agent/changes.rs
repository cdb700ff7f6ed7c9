//! What a worker makes of changes that others tell of.
//!
//! Whoever changes a dynamic group tells each member, and a word of anybody's is not believed as it is: whether a newcomer
//! can be called is tried, and so is whether those whom the change strikes out, or whose name or number the newcomer
//! takes, are gone. A member that answers that it is one keeps its place, and whoever told of the change is refused.

use super::{Agent, CHANGE_HANDLER, Called, Life, Membership, Purpose};
use super::{REACH_HANDLER, REACH_TIMEOUT};
use crate::membership::Member;
use crate::membership::change::{Change, WorkerLocation, decode_change};
use crate::membership::changing::{self, NoAnswer};
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use rendezvous_core::time::Instant;

/// What a member answers who is asked whether it is there, while it neither comes nor goes.
pub(super) const SETTLED: &[u8] = b"\x01";
/// What a worker answers that comes or goes.
pub(super) const UNSETTLED: &[u8] = b"\x00";
/// A change that this worker has not agreed to yet.
#[derive(Clone, Debug)]
pub(super) struct Notified {
    /// By which number whoever told of it is answered.
    number: u64,
    change: Change,
    by: WorkerInfo,
    /// How many calls about it are under way.
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

/// The same, and is another one.
fn replaces(newcomer: &Member, member: &Member) -> bool {
    is_named_as(newcomer, member) && newcomer.location() != member.location()
}

impl Agent {
    /// Whether it is a member that neither comes nor goes: nobody strikes it out but by mistake.
    pub(super) fn membership_state(&self) -> &'static [u8] {
        if matches!(self.life, Life::Member | Life::Draining) { SETTLED } else { UNSETTLED }
    }

    /// Another worker tells of a change.
    pub(super) fn notified_of(&mut self, now: Instant, number: u64, called: &Called) {
        match self.judge(called) {
            Err(message) => self.respond(number, Err(message)),
            Ok(None) => self.respond(number, Ok(Box::default())),
            Ok(Some(change)) => {
                self.try_change(now, Notified { number, change, by: called.from.clone(), calls: 0 })
            }
        }
    }

    /// What can be told without asking anybody; nothing where the change is none.
    fn judge(&mut self, called: &Called) -> Result<Option<Change>, Box<str>> {
        let change = decode_change(&called.payload).map_err(|error| Box::<str>::from(error.to_string()))?;
        let by = &called.from;
        if matches!(self.membership, Membership::Fixed(_)) {
            return Err(format!("{CHANGE_HANDLER}: the group is static").into());
        }
        let is_me = |location: &WorkerLocation| location.is(&self.me);
        if self.membership_state() == SETTLED && change.left.iter().any(is_me) {
            return Err(format!("{by} strikes out {}, which lives", self.me.worker).into());
        }
        match &change.joined {
            Some(newcomer) if newcomer.worker != *by => {
                Err(format!("{by} tells of {}", newcomer.worker).into())
            }
            Some(newcomer) if replaces(newcomer, &self.me) => {
                Err(format!("{by} takes the place of {}, which lives", self.me.worker).into())
            }
            Some(_) => Ok(Some(change)),
            None => {
                // It takes itself back before this worker has agreed to it.
                self.withdraw(&change.left, Some(by));
                // Whom nobody agreed to has nothing else to tell.
                let is_known = self.members().get(&by.name).is_some_and(|known| known.worker == *by);
                Ok(is_known.then_some(change))
            }
        }
    }

    /// Before a worker agrees, it tries the way to a newcomer, and whether those are gone whose places are taken.
    fn try_change(&mut self, now: Instant, mut notified: Notified) {
        let (number, until) = (notified.number, now + REACH_TIMEOUT);
        let newcomer =
            notified.change.joined.as_ref().map(Member::location).filter(|_| !planted!(self, UntriedRoute));
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

    /// Members who are not known to be dead and whose places a change takes.
    fn doubts(&self, change: &Change) -> Vec<WorkerLocation> {
        if planted!(self, BlindFaith) {
            return Vec::new();
        }
        let newcomer = change.joined.as_ref();
        let is_touched = |member: &&Member| {
            change.left.iter().any(|location| location.is(member))
                || newcomer.is_some_and(|newcomer| replaces(newcomer, member))
        };
        let is_doubtful = |member: &&Member| member.worker != self.me.worker && self.death(member).is_none();
        self.members().iter().filter(is_touched).filter(is_doubtful).map(Member::location).collect()
    }

    /// The way to a newcomer was tried.
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

    /// A member whose place is taken was asked whether it is there.
    pub(super) fn mark_suspected(
        &mut self,
        now: Instant,
        number: u64,
        location: &WorkerLocation,
        answer: Result<Box<[u8]>, NoAnswer>,
    ) {
        let is_known =
            self.members().get(&location.worker.name).is_some_and(|known| known.location() == *location);
        let Some(notified) = self.notified.iter_mut().find(|notified| notified.number == number) else {
            return;
        };
        let is_struck = notified.change.left.iter().any(|left| {
            left.worker.name == location.worker.name
                && (left.address.is_empty() || left.address == location.address)
        });
        let by = notified.by.clone();
        let does = if is_struck { "strikes out" } else { "takes the place of" };
        let refusal = match answer {
            Err(NoAnswer::Dead) if !is_struck => {
                notified.change.left.push(location.clone());
                None
            }
            Err(NoAnswer::Dead) => None,
            Ok(membership_state) if *membership_state == *SETTLED => {
                Some(format!("{by} {does} {} at {}, which lives", location.worker, location.address))
            }
            // It goes, or lost the right to come; or whoever changes the group waited for it in vain, as this one did.
            Ok(_) | Err(NoAnswer::Unknown(_)) if is_struck || !is_known => None,
            Ok(_) => Some(format!("{by} {does} {}, which goes, and is there still", location.worker)),
            Err(why) => Some(format!("{by} {does} {}, which may live: {why}", location.worker)),
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

    /// Newcomers who are gone again, by their own word where it is one's, before this worker agreed to them.
    fn withdraw(&mut self, left: &[WorkerLocation], by: Option<&WorkerInfo>) {
        let is_dead = |notified: &Notified| {
            let newcomer = notified.change.joined.as_ref().filter(|_| by.is_none_or(|by| notified.by == *by));
            !planted!(self, GhostOfNewcomer)
                && newcomer.is_some_and(|newcomer| left.iter().any(|location| location.is(newcomer)))
        };
        let departed: Vec<u64> = self
            .notified
            .iter()
            .filter(|notified| is_dead(notified))
            .map(|notified| notified.number)
            .collect();
        for number in departed {
            self.take_notified(number);
            self.respond(number, Err("the newcomer was taken back".into()));
        }
    }

    /// The group changes, by a word of one of its members.
    fn apply(&mut self, now: Instant, mut change: Change, by: &WorkerInfo) {
        if let Some(newcomer) = &change.joined {
            // Who is known to be dead has no place that could not be taken, be it by one that came back where it was.
            let taken = self.members().iter().filter(|member| is_named_as(newcomer, member));
            let taken = taken.filter(|member| self.death(member).is_some()).map(Member::location);
            let more: Vec<WorkerLocation> =
                taken.filter(|location| !change.left.contains(location)).collect();
            change.left.extend(more);
        }
        for location in &change.left {
            // One says of itself that it goes. Whoever is struck out otherwise is dead.
            let why = match &change.joined {
                None if location.worker == *by => continue,
                Some(newcomer) if location.worker == *by => format!("it came back at {}", newcomer.address),
                _ => format!("{by} could not reach it at its address"),
            };
            self.mark_dead(&location.worker.name, &location.address, &why);
        }
        self.withdraw(&change.left, None);
        let newcomer = change.joined.as_ref().map(Member::location);
        self.hand_on(now, changing::Input::Changed(change));
        if self.life == Life::Leaving {
            // Who leaves hears no more of who comes. But who came back lives.
            self.deaths.retain(|death| Some(&death.location) != newcomer.as_ref());
        }
    }
}
