//! What a worker knows of deaths: of those whose signs vanished, and of those at whose address nobody is.

use super::sign::{self, Vanished};
use super::{
    Agent, AgentError, GroupEvent, Life, Membership, Output, Purpose, REACH_HANDLER, REACH_TIMEOUT, Sight,
};
use crate::membership::Member;
use crate::membership::change::Departed;
use crate::membership::changing::NoAnswer;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::vec::Vec;
use rendezvous_core::time::{Duration, Instant};

/// What is known of the death of one whose address refuses connections.
const NOBODY_THERE: &str = "nobody is at its address";

/// What is known of one that ends before its static group begins.
const GAVE_UP: &str = "it gave up before the others were ready";

/// How long a sign may outlast its worker. The signs of all vanish in the order in which their workers end, while a call
/// finds nobody at once: a worker that ends since it heard of a death would be known to be gone before the dead one.
pub(super) const SIGN_OUTLASTS: Duration = Duration::from_secs(1);

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
    pub(super) fn suspected(&mut self, now: Instant, place: Departed, answer: &Result<Box<[u8]>, NoAnswer>) {
        if *answer != Err(NoAnswer::Gone) || !self.tells_of_deaths() || self.signs.said_goodbye(&place) {
            return;
        }
        if !self.signs.show(&place) || !matches!(self.sight, Sight::Clear) {
            self.mourn(&place.worker.name, &place.address, NOBODY_THERE);
        } else if !self.suspects.iter().any(|(known, _)| *known == place) {
            self.suspects.push((place, now));
        }
    }

    /// Those whose signs have not vanished in time are dead nevertheless.
    pub(super) fn look_at_suspects(&mut self, now: Instant) {
        let signs = &self.signs;
        self.suspects.retain(|(place, _)| !signs.said_goodbye(place));
        let is_blind = !matches!(self.sight, Sight::Clear);
        while let Some((_, since)) = self.suspects.first()
            && (is_blind || now >= *since + SIGN_OUTLASTS)
            && self.life != Life::Over
        {
            let (place, _) = self.suspects.remove(0);
            self.mourn(&place.worker.name, &place.address, NOBODY_THERE);
        }
    }

    /// A sign vanished, and its worker had not said that it goes.
    pub(super) fn vanished(&mut self, gone: Vanished) {
        let Vanished { sign, id } = gone;
        if let (Life::Joining, Membership::Fixed(_), Some(id)) = (self.life, &self.membership, id)
            && sign != self.sign()
            // Another one that came under its name, and is refused, ends as well.
            && !self.signs.show_another(&sign.name)
        {
            // The others are not known yet, and cannot do without it.
            let (worker, why) = (WorkerInfo { name: sign.name, id }, sign::VANISHED.into());
            return self.fail(AgentError::PeerDied { worker, phase: "the group met", why });
        }
        self.mourn(&sign.name, &sign.address, sign::VANISHED);
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
        if let Membership::Changing(group) = &mut self.membership {
            group.died(place.clone());
        }
        self.suspects.retain(|(known, _)| *known != place);
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
        self.bury_those_who_gave_up();
        self.look_at_deaths();
    }

    /// Members of a static group who went before it began.
    pub(super) fn bury_those_who_gave_up(&mut self) {
        if let (Life::Meeting, Membership::Fixed(group)) = (self.life, &self.membership) {
            let places = group.members().iter().map(Member::place);
            let went: Vec<Departed> = places.filter(|place| self.signs.said_goodbye(place)).collect();
            went.iter().for_each(|place| self.mourn(&place.worker.name, &place.address, GAVE_UP));
        }
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

    /// Once is enough: nothing brings the signs back.
    pub(super) fn lose_sight(&mut self, why: Box<str>) {
        if let Sight::Clear = self.sight {
            self.sight = Sight::Lost(why);
            self.tell_of_sight();
        }
    }

    /// Whoever is no member yet is told when it is one.
    pub(super) fn tell_of_sight(&mut self) {
        if let (Life::Member | Life::Draining | Life::Leaving, Sight::Lost(why)) = (self.life, &self.sight) {
            self.outputs.push_back(Output::Event(GroupEvent::SightLost { why: why.clone() }));
            self.sight = Sight::ToldLost;
        }
    }
}
