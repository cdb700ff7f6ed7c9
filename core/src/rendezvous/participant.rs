//! One node's part in a run, as the node itself sees it: what it may ask for, and what the server's answers and pushes
//! mean where it stands. It keeps no bytes and needs no allocator.
//!
//! The owner gives each request the id that its session has for it, and feeds back what comes under that id:
//! [`Participant::answer`] for the answer, [`Participant::push`] for the rest.

use crate::store::op::{Key, Pairs};
use crate::wire::native::{ClientFrame, Fault, FaultCode, OrZero, ServerFrame, Terms, Why};

/// Where a node stands in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// In no round, and on its way to none.
    Outside,
    /// Asked for a place, and not yet told which.
    Joining,
    /// Has a seat in the round that forms.
    Seated,
    /// Stands by: there was no seat, or it wants none yet.
    Standby,
    /// In a round.
    InRound,
    /// In the last round of a closed run.
    InLastRound,
    /// Its round is over; its seat is kept for a while.
    Between,
    /// Asked to be let go.
    Leaving,
    /// Its session ended; a new one may join.
    Lost,
    /// Another session has its name. It must not come back.
    Replaced,
    /// The run is closed, for good: who asks for a place once more is told so.
    Closed,
}

/// What moves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartEvent {
    /// It asks for a place.
    Ask,
    /// It has a seat.
    Slot,
    /// It stands by.
    Park,
    /// Its round is formed.
    Form,
    /// Its wish was refused, or its time is up.
    Refuse,
    /// Its wish to come back came to nothing: it is in its round still.
    KeepRound,
    /// The same, in the last round of a closed run.
    KeepLastRound,
    /// The same, and its round is over: its seat is kept still.
    KeepSlot,
    /// Its wish is moot: the run is closed.
    Dismiss,
    /// Its round is over.
    EndRound,
    /// The run was closed while it was in a round.
    CloseRun,
    /// The next round was formed without it.
    Exclude,
    /// Another session joined under its name.
    Replace,
    /// It asks to be let go.
    AskToLeave,
    /// It was let go.
    Go,
    /// Its session ended.
    EndSession,
}

use Part::{
    Between, Closed, InLastRound, InRound, Joining, Leaving, Lost, Outside, Replaced, Seated, Standby,
};

/// From any of these, on this event, to that.
type Transitions = &'static [(&'static [Part], PartEvent, Part)];

const PARTS: Transitions = &[
    (&[Outside, InRound, InLastRound, Between, Lost, Closed], PartEvent::Ask, Joining),
    (&[Joining, Seated, Standby], PartEvent::Slot, Seated),
    (&[Joining, Seated, Standby], PartEvent::Park, Standby),
    (&[Joining, Seated, Standby], PartEvent::Form, InRound),
    (&[Joining, Seated, Standby], PartEvent::Refuse, Outside),
    (&[Joining], PartEvent::KeepRound, InRound),
    (&[Joining], PartEvent::KeepLastRound, InLastRound),
    (&[Joining], PartEvent::KeepSlot, Between),
    (&[Joining, Seated, Standby], PartEvent::Dismiss, Closed),
    (&[InRound], PartEvent::EndRound, Between),
    (&[InLastRound], PartEvent::EndRound, Closed),
    (&[InRound], PartEvent::CloseRun, InLastRound),
    (&[Between], PartEvent::CloseRun, Closed),
    (&[InRound, Between], PartEvent::Exclude, Outside),
    (&[Joining, Seated, Standby, InRound, InLastRound, Between, Leaving], PartEvent::Replace, Replaced),
    (&[Joining, Seated, Standby, InRound, InLastRound, Between], PartEvent::AskToLeave, Leaving),
    (&[Leaving], PartEvent::Go, Outside),
    (&[Joining, Seated, Standby, InRound, InLastRound, Between, Leaving], PartEvent::EndSession, Lost),
];

impl Part {
    /// The part after `event`; `None` where the event has no place.
    #[must_use]
    pub fn on_event(self, event: PartEvent) -> Option<Self> {
        PARTS.iter().find(|(from, on, _)| *on == event && from.contains(&self)).map(|&(.., to)| to)
    }

    /// Whether it waits for a round.
    #[must_use]
    pub const fn is_waiting(self) -> bool {
        matches!(self, Joining | Seated | Standby)
    }
}

/// How a node wants to take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In the next round.
    Member,
    /// As a spare, which disturbs nobody.
    Spare,
}

/// What a node says of itself when it joins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// Which run.
    pub run_id: &'a [u8],
    /// Its name.
    pub node: &'a [u8],
    /// Where others reach it.
    pub address: &'a [u8],
    /// Its workers.
    pub local_world_size: u32,
    /// The rank it asks for; -1: any.
    pub node_rank: i32,
    /// How long it waits for a round, in milliseconds.
    pub join_timeout_ms: u64,
    /// What all nodes of the run must agree on.
    pub terms: Terms<'a>,
    /// What else is known of it.
    pub labels: Pairs<'a>,
    /// The lowest number that its round may have: above those of all rounds that its program was in.
    pub round_min: u64,
}

impl<'a> Entry<'a> {
    /// The request that says so.
    #[must_use]
    pub const fn frame(&self, role: Role) -> ClientFrame<'a> {
        let Self { node, address, local_world_size, node_rank, join_timeout_ms, terms, labels, .. } = *self;
        let round_min = OrZero(self.round_min);
        let run_id = Key::raw(self.run_id);
        match role {
            Role::Member => ClientFrame::Join {
                run_id,
                node,
                address,
                local_world_size,
                node_rank,
                join_timeout_ms,
                terms,
                labels,
                round_min,
            },
            Role::Spare => ClientFrame::Standby {
                run_id,
                node,
                address,
                local_world_size,
                node_rank,
                join_timeout_ms,
                terms,
                labels,
                round_min,
            },
        }
    }
}

/// What a node is told of its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment<'b> {
    /// Which round.
    pub round: u64,
    /// Its rank among the nodes.
    pub node_rank: u32,
    /// How many nodes there are.
    pub nodes: u32,
    /// The global rank of its first worker.
    pub rank_first: u64,
    /// How many workers there are.
    pub world_size: u64,
    /// Where node 0 is reached.
    pub leader: &'b [u8],
    /// What the keys of the round begin with.
    pub namespace: Key<'b>,
}

/// What happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the frames that tell of it")]
pub enum Event<'b> {
    /// It has a seat in the round that forms.
    Seated,
    /// It stands by, and so many before it.
    Standby { ahead: u32 },
    /// Its round is formed.
    Formed(Assignment<'b>),
    /// It did not get in.
    Refused(Fault<'b>),
    /// It did not get in, or may not come back: the run is closed.
    Closed { by: &'b [u8] },
    /// It stood by, and the run was closed: nothing went wrong.
    NotNeeded,
    /// So many nodes wait for the next round.
    NodesWaiting { nodes: u32 },
    /// Another node of its round died.
    PeerDied { round: u64, node_rank: u32, node: &'b [u8], why: Why },
    /// Its round is over.
    RoundOver { round: u64, why: Why },
    /// Another node has said that the job has failed.
    JobFailed { message: &'b [u8] },
    /// The next round was formed without it.
    Excluded { round: u64 },
    /// Another session joined under its name.
    Replaced { session: u64 },
    /// It was let go.
    Left,
}

/// The node may not ask for that where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node that is {0:?} may not ask for that")]
pub struct InvalidState(pub Part);

/// The server answered with something that is no answer to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is of another kind than the request")]
pub struct NoAnswerToThat;

/// Where a node that asks to come back stands until the server has granted that.
#[derive(Clone, Copy, Debug)]
struct Rejoin {
    part: Part,
    /// The request under which it got there.
    join: u64,
}

/// A node's part in one run at a time.
#[derive(Debug)]
pub struct Participant {
    part: Part,
    /// While it asks to be let go: where it would stand otherwise.
    with_scope: Part,
    /// While it asks to come back, and has no word of that.
    rejoin: Option<Rejoin>,
    /// The last request to join; pushes come under its id. 0: there was none.
    join: u64,
    /// The last request to be let go.
    leave: u64,
    round: Option<u64>,
}

impl Default for Participant {
    fn default() -> Self {
        Self::new()
    }
}

impl Participant {
    /// A node that has not joined.
    #[must_use]
    pub const fn new() -> Self {
        Self { part: Outside, with_scope: Outside, rejoin: None, join: 0, leave: 0, round: None }
    }

    /// Where it stands.
    #[must_use]
    pub const fn part(&self) -> Part {
        self.part
    }

    /// Its round, live or the last one.
    #[must_use]
    pub const fn round(&self) -> Option<u64> {
        self.round
    }

    /// Whether a request is one of its own.
    #[must_use]
    pub const fn is_local(&self, id: u64) -> bool {
        let is_rejoin = matches!(self.rejoin, Some(Rejoin { join, .. }) if join == id);
        id != 0 && (id == self.join || id == self.leave || is_rejoin)
    }

    /// It asks for a place, with the request `id`. A node of a live round comes back with it.
    ///
    /// # Errors
    /// It waits for a place already, is leaving, or must not come back.
    pub fn join(&mut self, id: u64) -> Result<(), InvalidState> {
        let before = self.part;
        self.step(PartEvent::Ask).ok_or(InvalidState(self.part))?;
        self.rejoin = matches!(before, InRound | InLastRound | Between)
            .then_some(Rejoin { part: before, join: self.join });
        self.join = id;
        Ok(())
    }

    /// It asks to be let go, with the request `id`.
    ///
    /// # Errors
    /// It is in no run.
    pub fn leave(&mut self, id: u64) -> Result<(), InvalidState> {
        let before = self.part;
        self.part = before.on_event(PartEvent::AskToLeave).ok_or(InvalidState(before))?;
        (self.leave, self.with_scope) = (id, before);
        Ok(())
    }

    /// The answer to the request `id`. `None`: it means nothing any more.
    ///
    /// # Errors
    /// It is none to that request: the server breaks the protocol.
    pub fn answer<'b>(
        &mut self,
        id: u64,
        frame: &ServerFrame<'b>,
    ) -> Result<Option<Event<'b>>, NoAnswerToThat> {
        if id == self.leave {
            return match frame {
                // Who is in no run any more has left, whatever the server says to that.
                ServerFrame::Done { .. } | ServerFrame::Error { .. } => {
                    Ok(self.step(PartEvent::Go).map(|()| Event::Left))
                }
                _ => Err(NoAnswerToThat),
            };
        }
        if id != self.join {
            return Ok(None);
        }
        let (event, node_event) = match *frame {
            ServerFrame::Round {
                round, node_rank, nodes, rank_first, world_size, leader, namespace, ..
            } => {
                let position =
                    Assignment { round, node_rank, nodes, rank_first, world_size, leader, namespace };
                (PartEvent::Form, Event::Formed(position))
            }
            ServerFrame::Error { fault } => match fault.code {
                FaultCode::RunClosed => (PartEvent::Dismiss, Event::Closed { by: fault.text }),
                FaultCode::NotNeeded => (PartEvent::Dismiss, Event::NotNeeded),
                // The server had it take part before that.
                FaultCode::TimedOut | FaultCode::Cancelled => (PartEvent::Refuse, Event::Refused(fault)),
                _ => (self.fall_back(), Event::Refused(fault)),
            },
            _ => return Err(NoAnswerToThat),
        };
        Ok(self.step(event).map(|()| {
            if let Event::Formed(position) = node_event {
                self.round = Some(position.round);
            }
            node_event
        }))
    }

    /// A push of the request `id`. `None`: it means nothing, or nothing any more. While the node asks to come back, it is
    /// still told of the round that it is in.
    pub fn push<'b>(&mut self, id: u64, frame: &ServerFrame<'b>) -> Option<Event<'b>> {
        let is_rejoin = self.rejoin.is_some_and(|rejoin| rejoin.join == id);
        if id != self.join && !is_rejoin {
            return None;
        }
        let (event, node_event) = match *frame {
            ServerFrame::Placed { seated: true, .. } => (PartEvent::Slot, Event::Seated),
            ServerFrame::Placed { seated: false, ahead, .. } => (PartEvent::Park, Event::Standby { ahead }),
            ServerFrame::RoundOver { round, why, .. } => {
                (PartEvent::EndRound, Event::RoundOver { round, why })
            }
            ServerFrame::RunClosed { by, .. } => (PartEvent::CloseRun, Event::Closed { by }),
            ServerFrame::Excluded { round, .. } => (PartEvent::Exclude, Event::Excluded { round }),
            ServerFrame::Replaced { session, .. } => (PartEvent::Replace, Event::Replaced { session }),
            // These move nobody.
            ServerFrame::NodesWaiting { nodes, .. } => {
                return self.in_round(id, Event::NodesWaiting { nodes });
            }
            ServerFrame::JobFailed { message, .. } => return self.in_round(id, Event::JobFailed { message }),
            ServerFrame::PeerDied { round, node_rank, node, why, .. } => {
                return self.in_round(id, Event::PeerDied { round, node_rank, node, why });
            }
            _ => return None,
        };
        let is_leaving = self.part == Leaving;
        if let Some(rejoin) = self.rejoin.as_mut().filter(|_| is_rejoin) {
            // It asks to come back, but it may have to stay there: what happens to that round concerns it until then.
            rejoin.part = rejoin.part.on_event(event)?;
            return (!is_leaving).then_some(node_event);
        }
        self.step(event).map(|()| node_event)
    }

    /// The request `id` was taken back before the server had it.
    pub fn withdraw(&mut self, id: u64) {
        if id != 0 && id == self.leave {
            self.leave = 0;
            if self.part == Leaving {
                // The server knows nothing of its wish.
                self.part = self.with_scope;
            }
        } else if id != 0 && id == self.join {
            let event = self.fall_back();
            self.step(event);
        }
    }

    /// Its session has ended; whether that took it out of a run.
    pub fn session_ended(&mut self) -> bool {
        (self.join, self.leave, self.rejoin) = (0, 0, None);
        self.step(PartEvent::EndSession).is_some()
    }

    fn in_round<'b>(&self, id: u64, node_event: Event<'b>) -> Option<Event<'b>> {
        let part = match self.rejoin {
            Some(rejoin) if rejoin.join == id && self.part != Leaving => rejoin.part,
            _ => self.part,
        };
        matches!(part, InRound | InLastRound).then_some(node_event)
    }

    /// Its wish came to nothing, and the server has it where it stood, under the request that brought it there; the
    /// event that says so.
    fn fall_back(&mut self) -> PartEvent {
        let Some(Rejoin { part, join }) = self.rejoin else { return PartEvent::Refuse };
        self.join = join;
        match part {
            InRound => PartEvent::KeepRound,
            InLastRound => PartEvent::KeepLastRound,
            Between => PartEvent::KeepSlot,
            // What it was told meanwhile.
            Closed => PartEvent::Dismiss,
            Replaced => PartEvent::Replace,
            _ => PartEvent::Refuse,
        }
    }

    fn step(&mut self, event: PartEvent) -> Option<()> {
        let after = self.part.on_event(event);
        if self.part == Leaving {
            self.with_scope = self.with_scope.on_event(event).unwrap_or(self.with_scope);
        }
        self.part = after.unwrap_or(self.part);
        let intent = if self.part == Leaving { self.with_scope } else { self.part };
        if intent != Joining {
            // The server has its wish, or has put it down.
            self.rejoin = None;
        }
        after.map(|_| ())
    }
}

#[cfg(test)]
mod tests;
