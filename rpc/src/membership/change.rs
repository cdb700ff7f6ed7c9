//! What members tell each other of a change of their group, and what they know of it.

use super::Member;
use crate::exchange::{ExchangeError, decode_card, encode_card};
use crate::name::{WorkerInfo, WorkerName};
use crate::sorted::SortedMap;
use crate::wire::card::{Departure, Update};
use alloc::boxed::Box;
use alloc::vec::Vec;
use rendezvous_core::limits::CARD;
use rendezvous_core::wire::native::List;
use rendezvous_core::wire::sink::{Fill, Length};

/// A member that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLocation {
    /// Its name and number.
    pub worker: WorkerInfo,
    /// Where it was; empty where nobody knows. Another worker of the same name elsewhere stays.
    pub address: Box<str>,
}

impl WorkerLocation {
    /// Whether it is this member, and not another one of its name.
    #[must_use]
    pub fn is(&self, member: &Member) -> bool {
        let is_there = self.address.is_empty() || self.address == member.address;
        self.worker.name == member.worker.name && is_there
    }
}

/// What a member tells the others when it changed the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Who came.
    pub joined: Option<Member>,
    /// Who went, or died.
    pub left: Vec<WorkerLocation>,
}

/// The change as it is sent.
#[must_use]
pub fn encode_change(change: &Change) -> Vec<u8> {
    let card = change.joined.as_ref().map(|member| encode_card(&member.worker, &member.devices));
    let departures: Vec<Departure<'_>> = change
        .left
        .iter()
        .map(|departed| Departure {
            id: departed.worker.id,
            name: departed.worker.name.as_bytes(),
            address: departed.address.as_bytes(),
        })
        .collect();
    let update = Update {
        card: card.as_deref(),
        address: change.joined.as_ref().map_or(b"", |member| member.address.as_bytes()),
        departures: List::new(&departures),
    };
    let mut length = Length::default();
    update.write(&mut length);
    let mut bytes = alloc::vec![0; length.0];
    update.write(&mut Fill::new(&mut bytes));
    bytes
}

fn text(bytes: &[u8]) -> Result<Box<str>, ExchangeError> {
    core::str::from_utf8(bytes).map(Box::from).map_err(|_| ExchangeError::Text)
}

/// Reads a change.
///
/// # Errors
/// It is none.
pub fn decode_change(bytes: &[u8]) -> Result<Change, ExchangeError> {
    let update = Update::read(bytes)?;
    let joined = match update.card {
        Some(card) => {
            let (worker, devices) = decode_card(card)?;
            Some(Member { worker, address: text(update.address)?, devices })
        }
        None => None,
    };
    let departed = |departure: Departure<'_>| {
        let name = core::str::from_utf8(departure.name).map_err(|_| ExchangeError::Text)?;
        let worker = WorkerInfo { name: WorkerName::new(name)?, id: departure.id };
        Ok(WorkerLocation { worker, address: text(departure.address)? })
    };
    let left = update.departures.iter().map(departed).collect::<Result<_, ExchangeError>>()?;
    Ok(Change { joined, left })
}

/// The members of a group, as one of them knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(SortedMap<WorkerName, Member>);

impl Members {
    /// Adds one.
    pub fn insert(&mut self, member: Member) {
        self.0.insert(member.worker.name.clone(), member);
    }

    /// Takes in what another member tells, which it may tell again: what has changed by that.
    pub fn apply(&mut self, change: &Change) -> Change {
        let mut news = Change::default();
        let newcomer = change.joined.as_ref();
        let known = newcomer.and_then(|newcomer| self.get(&newcomer.worker.name));
        let is_known = known.map(Member::location) == newcomer.map(Member::location);
        for departed in &change.left {
            // Whoever came in the place of one that went, without an address, does not go by the same word. One with the
            // newcomer's own address was there before it, and died.
            let arrived = departed.address.is_empty()
                && newcomer.is_some_and(|newcomer| is_known && departed.is(newcomer));
            if !arrived && self.get(&departed.worker.name).is_some_and(|known| departed.is(known)) {
                let removed = self.0.remove(&*departed.worker.name);
                news.left.extend(removed.map(|member| member.location()));
            }
        }
        if let Some(member) = newcomer {
            let before = self.0.insert(member.worker.name.clone(), member.clone());
            let before = before.map(|member| member.location());
            if before.as_ref() != Some(&member.location()) {
                news.left.extend(before);
                news.joined = Some(member.clone());
            }
        }
        news
    }

    /// The member of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Member> {
        self.0.get(name)
    }

    /// The member with this number.
    #[must_use]
    pub fn by_id(&self, id: u16) -> Option<&Member> {
        self.iter().find(|member| member.worker.id == id)
    }

    /// All, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Member> + Clone {
        self.0.values()
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether as many are known as a group may have.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len() as u64 >= CARD.keys_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_map::NodeDevices;

    fn member(name: &str, id: u16, address: &str) -> Member {
        let worker = WorkerInfo { name: name.parse().expect("a name"), id };
        Member {
            worker,
            address: address.into(),
            devices: NodeDevices { count: 2, ..NodeDevices::default() },
        }
    }

    fn departed(name: &str, id: u16, address: &str) -> WorkerLocation {
        WorkerLocation { worker: member(name, id, address).worker, address: address.into() }
    }

    #[test]
    fn changes_are_read_as_they_were_written() {
        let left = [departed("x", 1, "h:2"), departed("y", 65535, "")].to_vec();
        for change in [
            Change::default(),
            Change { joined: Some(member("w", 7, "h:1")), left: left.clone() },
            Change { joined: None, left },
        ] {
            let bytes = encode_change(&change);
            assert_eq!(decode_change(&bytes), Ok(change));
            (0..bytes.len()).for_each(|end| drop(decode_change(&bytes[..end]).expect_err("cut short")));
        }
    }

    #[test]
    fn what_is_told_again_changes_nothing() {
        let mut members = Members::default();
        members.insert(member("w", 1, "old"));
        members.insert(member("c", 2, "c"));
        let left = [departed("w", 1, "old"), departed("c", 2, "c"), departed("d", 3, "d")];
        let change = Change { joined: Some(member("w", 1, "new")), left: left.to_vec() };
        let news = Change { joined: change.joined.clone(), left: left[..2].to_vec() };
        assert_eq!(members.apply(&change), news);
        assert_eq!(members.apply(&change), Change::default());
        let unknown = Change { left: [departed("w", 1, "")].to_vec(), ..change };
        assert_eq!(members.apply(&unknown), Change::default());
        // It came elsewhere, and nobody told of its end.
        let again = Change { joined: Some(member("w", 1, "newer")), left: Vec::new() };
        let news = Change { left: [departed("w", 1, "new")].to_vec(), ..again.clone() };
        assert_eq!(members.apply(&again), news);
        assert_eq!(members.len(), 1);
    }

    #[test]
    fn who_came_back_where_it_was_went_and_came() {
        let mut members = Members::default();
        let change = Change { joined: Some(member("w", 1, "h")), left: [departed("w", 1, "h")].to_vec() };
        assert_eq!(members.apply(&change), Change { left: Vec::new(), ..change.clone() });
        assert_eq!(members.apply(&change), change);
        assert_eq!(members.apply(&Change { left: Vec::new(), ..change }), Change::default());
    }

    #[test]
    fn who_came_back_stays_when_the_one_before_goes() {
        let mut members = Members::default();
        members.apply(&Change { joined: Some(member("w", 1, "new")), left: Vec::new() });
        members
            .apply(&Change { joined: Some(member("v", 2, "v")), left: [departed("w", 1, "old")].to_vec() });
        assert_eq!(members.iter().map(|member| &*member.address).collect::<Vec<_>>(), ["v", "new"]);
        assert_eq!(members.by_id(2).map(|member| &*member.worker.name), Some("v"));
        members
            .apply(&Change { joined: None, left: [departed("w", 1, "new"), departed("v", 2, "")].to_vec() });
        assert!(members.is_empty());
    }
}
