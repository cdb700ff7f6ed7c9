//! What a worker knows of deaths: of those whose signs vanished, and of those at whose address nobody is.

use super::sign;
use super::{Agent, AgentError, GroupEvent, Life, Membership, Output, Purpose, REACH_HANDLER, REACH_TIMEOUT};
use crate::rpc::membership::Member;
use crate::rpc::membership::change::Departed;
use crate::rpc::membership::changing::NoAnswer;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// What is known of the death of one whose address refuses connections.
const NOBODY_THERE: &str = "nobody is at its address";

/// A member that is dead, as far as is known, and has not been struck out.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) place: Departed,
    pub(super) why: Box<str>,
}

impl Agent {
    /// Whether a member is there, be it dead: others than the library may have called it, and are told with its death.
    #[must_use]
    pub fn has_member_at(&self, place: &Departed) -> bool {
        self.members().get(&place.worker.name).is_some_and(|member| member.place() == *place)
    }

    fn lives(&self, place: &Departed) -> bool {
        let member = self.members().get(&place.worker.name).filter(|member| member.place() == *place);
        member.is_some_and(|member| self.death(member).is_none())
    }

    /// How this member died. Another one that came back under its name lives.
    pub(super) fn death(&self, member: &Member) -> Option<&Death> {
        let is_it =
            |place: &Departed| place.worker.name == member.worker.name && place.address == member.address;
        self.deaths.iter().find(|death| is_it(&death.place))
    }

    /// A call to a member failed in a way that may mean that it is dead. It is asked once more, over a new connection:
    /// one that broke is no proof.
    pub(super) fn suspect(&mut self, now: Instant, place: Departed) {
        let is_asked =
            |(_, purpose): &(u64, Purpose)| matches!(purpose, Purpose::Suspect(of) if *of == place);
        if self.lives(&place)
            && place.worker != self.me.worker
            && self.tells_of_deaths()
            && !self.calls.iter().any(is_asked)
        {
            let purpose = Purpose::Suspect(place.clone());
            self.call(place, REACH_HANDLER, Vec::new(), now + REACH_TIMEOUT, purpose);
        }
    }

    /// What came of that.
    pub(super) fn suspected(&mut self, place: &Departed, answer: &Result<Box<[u8]>, NoAnswer>) {
        if *answer == Err(NoAnswer::Gone) && self.tells_of_deaths() {
            self.mourn(&place.worker.name, &place.address, NOBODY_THERE);
        }
    }

    /// Whether a member that is not there must be dead. In a static group that ends, the others may have ended before.
    const fn tells_of_deaths(&self) -> bool {
        matches!(self.life, Life::Meeting | Life::Member | Life::Draining)
    }

    /// A worker is dead; calls to it end now. Another one of its name elsewhere lives; no address stands for any.
    pub(super) fn mourn(&mut self, name: &str, address: &str, why: &str) {
        let is_it = |member: &&Member| address.is_empty() || *member.address == *address;
        let Some(member) = self.members().get(name).filter(is_it) else { return };
        let place = member.place();
        if self.death(member).is_some() || place.worker == self.me.worker {
            return;
        }
        let (worker, why): (_, Box<str>) = (place.worker.clone(), why.into());
        if !planted!(self, HangingCalls) {
            self.outputs.push_back(Output::EndCallsTo(place.clone(), why.clone()));
        }
        if matches!(self.life, Life::Member | Life::Draining | Life::Leaving) {
            let why = why.clone();
            self.outputs.push_back(Output::Event(GroupEvent::PeerDied { worker, why }));
        }
        self.deaths.push(Death { place, why });
        self.look_at_deaths();
    }

    /// Those whose signs vanished while nobody knew that they are members.
    pub(super) fn bury(&mut self) {
        if planted!(self, ForgottenLoss) {
            return;
        }
        let known = self
            .members()
            .iter()
            .map(|member| Departed { worker: member.worker.clone(), address: member.address.clone() });
        let lost: Vec<Departed> = known.filter(|place| self.signs.are_lost(place)).collect();
        for place in lost {
            self.mourn(&place.worker.name, &place.address, sign::VANISHED);
        }
        self.look_at_deaths();
    }

    /// A static group begins with all its members, and ends with all of them.
    pub(super) fn look_at_deaths(&mut self) {
        let phase = match (self.life, &self.membership) {
            (Life::Meeting, Membership::Fixed(_)) => "the group began",
            (Life::Leaving, Membership::Fixed(_)) => "the group ended",
            _ => return,
        };
        if let Some(death) = self.deaths.first() {
            let (worker, why) = (death.place.worker.clone(), death.why.clone());
            self.fail(AgentError::PeerDied { worker, phase, why });
        }
    }
}
