//! Changes of a group: their encoding, and the members that a worker knows of.

use super::Member;
use crate::exchange::{ExchangeError, FORMAT, body_of, decode_card, encode_card, name, text};
use crate::limits::UPDATE;
use crate::name::WorkerInfo;
use crate::wire::Encoded;
use rendezvous_core::ordered::Named;
use rendezvous_core::prelude::*;
use rendezvous_core::wire::native::{Field, List};

/// Name, number and address of a worker, such as one that left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerLocation {
    /// Name and number.
    pub worker: WorkerInfo,
    /// Its address; empty if unknown. A worker of the same name at another address is a different one.
    pub address: Box<str>,
}

impl WorkerLocation {
    /// Whether this location is that of `member`, and not of another worker with its name. An unknown address matches
    /// any.
    pub fn is(&self, member: &Member) -> bool {
        let is_there = self.address.is_empty() || self.address == member.address;
        self.worker.name == member.worker.name && is_there
    }
}

/// Notification that a member sends to the others after it has changed the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The member that joined.
    pub joined: Option<Member>,
    /// Members that left or died.
    pub left: Vec<WorkerLocation>,
}

/// Number of a worker that left, and its name and address.
type Departure<'a> = (u16, (&'a [u8], &'a [u8]));

/// Encodes a change as the wire format has it.
pub fn encode_change(change: &Change) -> Vec<u8> {
    let card = change.joined.as_ref().map(|member| encode_card(&member.worker, &member.devices));
    let address = change.joined.as_ref().map_or(&b""[..], |member| member.address.as_bytes());
    let departures: Vec<Departure<'_>> = change
        .left
        .iter()
        .map(|left| (left.worker.id, (left.worker.name.as_bytes(), left.address.as_bytes())))
        .collect();
    let mut update = Encoded::default();
    FORMAT.write(&mut update);
    card.as_deref().write(&mut update);
    address.write(&mut update);
    List::new(&departures).write(&mut update);
    update.0
}

/// Decodes a change.
///
/// # Errors
/// The bytes are not a valid change.
pub fn decode_change(bytes: &[u8]) -> Result<Change, ExchangeError> {
    let mut body = body_of(bytes, &UPDATE)?;
    let (card, address) = (Option::<&[u8]>::read(&mut body)?, <&[u8]>::read(&mut body)?);
    let departures = List::<Departure<'_>>::read(&mut body)?;
    let joined = match card {
        Some(card) => {
            let (worker, devices) = decode_card(card)?;
            Some(Member { worker, address: text(address)?.into(), devices })
        }
        None => None,
    };
    let departed = |(id, (worker, address)): Departure<'_>| {
        let worker = WorkerInfo { name: name(worker)?, id };
        Ok(WorkerLocation { worker, address: text(address)?.into() })
    };
    let left = departures.iter().map(departed).collect::<Result<_, ExchangeError>>()?;
    Ok(Change { joined, left })
}

/// Members of a group that one of them knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members(Named<Member>);

impl Members {
    /// Adds a member, in place of one with the same name.
    pub fn insert(&mut self, member: Member) {
        let name = member.worker.name.clone();
        self.0.insert(name.as_bytes(), member);
    }

    /// Applies a notification, which may be a repeated one, and returns what it has changed.
    pub fn apply(&mut self, change: &Change) -> Change {
        let mut news = Change::default();
        let newcomer = change.joined.as_ref();
        let known = newcomer.and_then(|newcomer| self.get(&newcomer.worker.name));
        let is_known = known.map(Member::location) == newcomer.map(Member::location);
        for departed in &change.left {
            // Without an address, a departure does not apply to a worker that has joined under the same name since.
            // With the newcomer's own address, it is of the worker that was at that address before, and died.
            let arrived = departed.address.is_empty()
                && newcomer.is_some_and(|newcomer| is_known && departed.is(newcomer));
            if !arrived && self.get(&departed.worker.name).is_some_and(|known| departed.is(known)) {
                let removed = self.0.remove(departed.worker.name.as_bytes());
                news.left.extend(removed.map(|member| member.location()));
            }
        }
        if let Some(member) = newcomer {
            let before = self.0.insert(member.worker.name.as_bytes(), member.clone());
            let before = before.map(|member| member.location());
            if before.as_ref() != Some(&member.location()) {
                news.left.extend(before);
                news.joined = Some(member.clone());
            }
        }
        news
    }

    /// Returns the member with this name.
    pub fn get(&self, name: &str) -> Option<&Member> {
        self.0.get(name.as_bytes())
    }

    /// Returns the member there.
    pub fn at(&self, location: &WorkerLocation) -> Option<&Member> {
        self.get(&location.worker.name).filter(|member| member.location() == *location)
    }

    /// Returns the member with this number.
    pub fn by_id(&self, id: u16) -> Option<&Member> {
        self.iter().find(|member| member.worker.id == id)
    }

    /// Returns all members in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Member> + Clone {
        self.0.iter().map(|(_, member)| member)
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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
        // It restarted elsewhere, and its end was not reported.
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
