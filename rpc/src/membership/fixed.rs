//! Group of a fixed number of workers that start together.
//!
//! Each worker writes its name, address and card, and increments a counter. The last one sets a key that releases the
//! others, and then each reads what all have written. All workers see the same data, so all come to the same result.
//! When they leave, they are counted again, so that no worker ends while others may still call it.

use super::change::{Change, Members, decode_change, encode_change};
use super::error::{Absent, MembershipError};
use super::keys;
use super::{Member, Output, Reply, StoreStep};
use crate::device::DeviceKind;
use crate::device_map::{Group, GroupKind};
use crate::exchange::ExchangeError;
use crate::name::WorkerInfo;
use rendezvous_core::ordered::Named;
use rendezvous_core::prelude::*;

/// Keys of the counter of workers that have written everything, and of the mark that the last one sets. Like all keys
/// under `rdzv/` they are not in PyTorch.
const ARRIVED_KEYS: [&str; 2] = ["rdzv/came", "rdzv/all_came"];
/// The same for workers that have finished their calls.
const LEFT_KEYS: [&str; 2] = ["rdzv/went", "rdzv/all_went"];

/// States of [`FixedGroup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedState {
    /// Declares that the group is static.
    Checking,
    /// Declares the number of workers.
    Sizing,
    /// Writes its name.
    Naming,
    /// Writes its address, unless the key exists.
    Addressing,
    /// Another worker with its name has written an address: reads whether the group has formed with that worker, and
    /// whether it is alive.
    Contested,
    /// Neither is the case: overwrites the address.
    Readdressing,
    /// Writes its card.
    Carding,
    /// Increments the counter of workers that joined.
    Counting,
    /// Is the last to join, and releases the others.
    Announcing,
    /// Waits until the last worker joins.
    Waiting,
    /// Reads the cards of all workers.
    Collecting,
    /// Waits for a worker that has been counted but has no card: another worker was counted twice.
    Missing,
    /// Is a member.
    Member,
    /// Writes that it has finished its calls.
    MarkingDone,
    /// Increments the counter of workers that finished.
    Leaving,
    /// Is the last to finish, and releases the others.
    Closing,
    /// Waits until the last worker finishes.
    Staying,
    /// Reads which workers have not finished.
    Surveying,
    /// Is not a member any more. Final.
    Over,
}

/// Events of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixedEvent {
    /// The step succeeded, and this worker was not the last.
    Done,
    /// This worker was the last.
    Last,
    /// The first wait was released or timed out.
    Waited,
    /// Another worker has the same name.
    Taken,
    /// Some workers have no card, or have not finished.
    Incomplete,
    /// All cards are there and match each other.
    Complete,
    /// The caller wants to leave.
    Leave,
    /// The group failed or has ended.
    End,
}

impl FixedState {
    /// Returns the next state; `None` if the event is not valid in this one.
    #[must_use]
    pub const fn on(self, event: FixedEvent) -> Option<Self> {
        use FixedEvent as E;
        Some(match (self, event) {
            (Self::Checking, E::Done) => Self::Sizing,
            (Self::Sizing, E::Done) => Self::Naming,
            (Self::Naming, E::Done) => Self::Addressing,
            (Self::Addressing, E::Taken) => Self::Contested,
            (Self::Contested, E::Done) => Self::Readdressing,
            (Self::Addressing | Self::Readdressing, E::Done) => Self::Carding,
            (Self::Carding, E::Done) => Self::Counting,
            (Self::Counting, E::Done) => Self::Waiting,
            (Self::Counting, E::Last) => Self::Announcing,
            (Self::Announcing, E::Done) | (Self::Waiting | Self::Missing, E::Waited) => Self::Collecting,
            (Self::Collecting, E::Incomplete) => Self::Missing,
            (Self::Collecting, E::Complete) => Self::Member,
            (Self::Member, E::Leave) => Self::MarkingDone,
            (Self::MarkingDone, E::Done) => Self::Leaving,
            (Self::Leaving, E::Done) => Self::Staying,
            (Self::Leaving, E::Last) => Self::Closing,
            (Self::Staying, E::Incomplete) => Self::Surveying,
            (Self::Over, _) => return None,
            (_, E::End) => Self::Over,
            _ => return None,
        })
    }
}

/// State machine of one member of a static group.
#[derive(Clone, Debug)]
pub struct FixedGroup {
    member: Member,
    world_size: u16,
    accelerator: DeviceKind,
    timeout: Duration,
    deadline: Instant,
    state: FixedState,
    missing: Box<str>,
    /// Address of another worker with this one's name.
    other: Box<str>,
    members: Members,
    output: Option<Output>,
}

impl FixedGroup {
    /// Starts to join a group of `world_size` workers.
    ///
    /// # Errors
    /// The member's number is not below `world_size`.
    pub fn new(
        now: Instant,
        member: Member,
        world_size: u16,
        accelerator: DeviceKind,
        timeout: Duration,
    ) -> Result<Self, MembershipError> {
        let rank = member.worker.id;
        if rank >= world_size {
            return Err(MembershipError::Rank { rank, world_size });
        }
        let mut group = Self {
            member,
            world_size,
            accelerator,
            timeout,
            deadline: now + timeout,
            state: FixedState::Checking,
            missing: "".into(),
            other: "".into(),
            members: Members::default(),
            output: None,
        };
        group.output = group.step().map(Output::Store);
        Ok(group)
    }

    /// The members; empty before this worker is one.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Returns the devices of the members, for reverse maps and lists of devices.
    pub fn group(&self) -> Group {
        let nodes = self.members.iter().map(|member| (member.worker.name.clone(), member.devices.clone()));
        Group { kind: GroupKind::Static, accelerator: self.accelerator, nodes: nodes.collect() }
    }

    /// Returns the next action.
    pub const fn poll_output(&mut self) -> Option<Output> {
        self.output.take()
    }

    /// Starts to leave: the member has finished its calls. It may end once all members have.
    pub fn leave(&mut self, now: Instant) {
        if self.state == FixedState::Member {
            self.deadline = now + self.timeout;
            self.go(FixedEvent::Leave);
        }
    }

    fn go(&mut self, event: FixedEvent) {
        let Some(next) = self.state.on(event) else { return };
        self.state = next;
        self.output = match next {
            FixedState::Member => Some(Output::Joined),
            FixedState::Over => Some(Output::Left),
            _ => self.step().map(Output::Store),
        };
    }

    fn fail(&mut self, error: MembershipError) {
        self.state = self.state.on(FixedEvent::End).unwrap_or(self.state);
        self.output = Some(Output::Failed(error));
    }

    fn step(&self) -> Option<StoreStep> {
        let me = &self.member;
        let compare = |key: Box<str>, desired: &str| StoreStep::CompareSet {
            key,
            expected: "".into(),
            desired: desired.into(),
        };
        let set = |key: Box<str>, value: &[u8]| StoreStep::Set { key, value: value.into() };
        let ids = || 0..self.world_size;
        Some(match self.state {
            FixedState::Checking => compare(keys::IS_STATIC.into(), "true"),
            FixedState::Sizing => compare(keys::WORLD_SIZE.into(), &self.world_size.to_string()),
            FixedState::Naming => compare(keys::name_of(me.worker.id), &me.worker.name),
            FixedState::Addressing => compare(keys::address_of(&me.worker.name), &me.address),
            FixedState::Contested => StoreStep::Peek {
                keys: [
                    ARRIVED_KEYS[1].into(),
                    LEFT_KEYS[1].into(),
                    keys::card_of(me.worker.id),
                    keys::liveness_of(&me.worker.name, &self.other),
                ]
                .into(),
            },
            FixedState::Readdressing => set(keys::address_of(&me.worker.name), me.address.as_bytes()),
            FixedState::Carding => {
                let joined = Change { joined: Some(me.clone()), left: Vec::new() };
                set(keys::card_of(me.worker.id), &encode_change(&joined))
            }
            FixedState::Counting => StoreStep::Add { key: ARRIVED_KEYS[0].into(), delta: 1 },
            FixedState::Announcing => set(ARRIVED_KEYS[1].into(), b"1"),
            FixedState::Waiting => StoreStep::Wait { key: ARRIVED_KEYS[1].into(), until: self.deadline },
            FixedState::Collecting => StoreStep::Peek { keys: ids().map(keys::card_of).collect() },
            FixedState::Missing => StoreStep::Wait { key: self.missing.clone(), until: self.deadline },
            FixedState::MarkingDone => set(went_of(me.worker.id), b"1"),
            FixedState::Leaving => StoreStep::Add { key: LEFT_KEYS[0].into(), delta: 1 },
            FixedState::Closing => set(LEFT_KEYS[1].into(), b"1"),
            FixedState::Staying => StoreStep::Wait { key: LEFT_KEYS[1].into(), until: self.deadline },
            FixedState::Surveying => StoreStep::Peek { keys: ids().map(went_of).collect() },
            FixedState::Member | FixedState::Over => return None,
        })
    }

    /// Processes the reply to the last step.
    pub fn handle(&mut self, now: Instant, reply: Reply) {
        let event = match (self.state, reply) {
            (FixedState::Member | FixedState::Over, _) => return,
            (_, Reply::Failed(message)) => return self.fail(MembershipError::Store { message }),
            (FixedState::Checking, Reply::Value(value)) if &*value == b"true" => FixedEvent::Done,
            (FixedState::Checking, Reply::Value(value)) => {
                let stored = String::from_utf8_lossy(&value).into();
                return self.fail(MembershipError::Mixed { stored, local: true });
            }
            (FixedState::Sizing, Reply::Value(value)) => {
                let stored = String::from_utf8_lossy(&value);
                if *stored != self.world_size.to_string() {
                    let (local, stored) = (self.world_size, stored.into());
                    return self.fail(MembershipError::WorldSize { local, stored });
                }
                FixedEvent::Done
            }
            (FixedState::Naming, Reply::Value(value)) if *value == *self.member.worker.name.as_bytes() => {
                FixedEvent::Done
            }
            (FixedState::Naming, Reply::Value(value)) => {
                let by = String::from_utf8_lossy(&value).into();
                return self.fail(MembershipError::IdTaken { id: self.member.worker.id, by });
            }
            (FixedState::Addressing, Reply::Value(value)) if *value == *self.member.address.as_bytes() => {
                FixedEvent::Done
            }
            (FixedState::Addressing, Reply::Value(value)) => {
                self.other = String::from_utf8_lossy(&value).into();
                FixedEvent::Taken
            }
            (FixedState::Contested, Reply::Values(values)) => match self.contested(&values) {
                Some(error) => return self.fail(error),
                None => FixedEvent::Done,
            },
            (FixedState::Counting | FixedState::Leaving, Reply::Number(count)) => {
                if count >= i64::from(self.world_size) { FixedEvent::Last } else { FixedEvent::Done }
            }
            (FixedState::Waiting | FixedState::Missing, Reply::Released | Reply::TimedOut) => {
                FixedEvent::Waited
            }
            (FixedState::Collecting, Reply::Values(cards)) if self.is_of_all(&cards) => {
                return self.collected(now, &cards);
            }
            (FixedState::Staying, Reply::Released) | (FixedState::Closing, Reply::Done) => FixedEvent::End,
            (FixedState::Staying, Reply::TimedOut) => FixedEvent::Incomplete,
            (FixedState::Surveying, Reply::Values(marks)) if self.is_of_all(&marks) => {
                let (arrived, absent) = absent(&marks, self.timeout);
                if absent.count == 0 {
                    FixedEvent::End
                } else {
                    let (world_size, absent) = (self.world_size, absent.named(&self.members));
                    return self.fail(MembershipError::AbsentAtShutdown { arrived, world_size, absent });
                }
            }
            (
                FixedState::Readdressing
                | FixedState::Carding
                | FixedState::Announcing
                | FixedState::MarkingDone,
                Reply::Done,
            ) => FixedEvent::Done,
            _ => {
                return self
                    .fail(MembershipError::Store { message: "its reply does not match the request".into() });
            }
        };
        self.go(event);
    }

    /// Returns why this worker may not replace another with its name: the group has formed with that one, or that one
    /// is alive. A worker that died before the group formed is replaced, and so is one of a group that has ended.
    fn contested(&self, values: &[Box<[u8]>]) -> Option<MembershipError> {
        let [arrived, left, card, liveness_key] = values else {
            return Some(MembershipError::Store { message: "its reply does not match the request".into() });
        };
        let (worker, address) = (self.member.worker.clone(), self.other.clone());
        if !arrived.is_empty() && left.is_empty() {
            return Some(MembershipError::Begun { worker, address });
        }
        // Without a card under this number, two workers with different numbers may share the name.
        let lives = !card.is_empty() && left.is_empty() && liveness_key.starts_with(keys::HERE.as_bytes());
        lives.then_some(MembershipError::Held { worker, address })
    }

    fn is_of_all(&self, values: &[Box<[u8]>]) -> bool {
        values.len() == usize::from(self.world_size)
    }

    fn collected(&mut self, now: Instant, cards: &[Box<[u8]>]) {
        let (arrived, absent) = absent(cards, self.timeout);
        if let Some(&first) = absent.listed.first() {
            if now >= self.deadline {
                let world_size = self.world_size;
                return self.fail(MembershipError::Absent { arrived, world_size, absent });
            }
            self.missing = keys::card_of(first);
            return self.go(FixedEvent::Incomplete);
        }
        match self.read(cards) {
            Ok(()) => self.go(FixedEvent::Complete),
            Err(error) => {
                self.members = Members::default();
                self.fail(error);
            }
        }
    }

    fn read(&mut self, cards: &[Box<[u8]>]) -> Result<(), MembershipError> {
        let mut ids: Named<u16> = Named::new();
        for (id, card) in (0_u16..).zip(cards) {
            let card_error =
                |why| MembershipError::Card { subject: alloc::format!("worker {id}").into(), why };
            let change = decode_change(card).map_err(card_error)?;
            let member = change.joined.ok_or(ExchangeError::NoCard).map_err(card_error)?;
            let worker = member.worker.clone();
            if worker.id != id {
                let wanted = WorkerInfo { name: worker.name.clone(), id };
                return Err(MembershipError::OtherCard { wanted, got: worker });
            }
            if let Some(first) = ids.insert(worker.name.as_bytes(), id) {
                return Err(MembershipError::Shared { name: worker.name, first, second: id });
            }
            if id == self.member.worker.id && member.address != self.member.address {
                // That worker joined under this one's name at the same time, but wrote its card later.
                return Err(MembershipError::Held { worker, address: member.address });
            }
            self.members.insert(member);
        }
        Ok(self.group().check()?)
    }
}

/// Returns the key at which a member writes that it has finished its calls.
fn went_of(id: u16) -> Box<str> {
    alloc::format!("rdzv/went/{id}").into()
}

/// Returns the number of workers that have written a value, and those that have not.
fn absent(values: &[Box<[u8]>], waited: Duration) -> (usize, Absent) {
    let missing: Vec<u16> =
        (0_u16..).zip(values).filter(|(_, value)| value.is_empty()).map(|(id, _)| id).collect();
    (values.len() - missing.len(), Absent::of(missing.into_iter(), waited))
}

#[cfg(test)]
mod tests;
