//! One node's part in a run, as seen by the node: the requests that it may make, and the meaning of the server's
//! answers and pushes in its present state. The state machine keeps no bytes and needs no allocator.
//!
//! The owner gives each request the id that its session uses for it. It passes the server's frames with that id back:
//! the answer to [`Participant::answer`], pushes to [`Participant::push`].

use crate::store::op::Key;
pub use crate::wire::native::Entry;
use crate::wire::native::{ClientFrame, Fault, FaultCode, ServerFrame, Why};

/// State of a node in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// In no round, and joining none.
    Outside,
    /// Has asked to join; the server has not placed it yet.
    Joining,
    /// Has a slot in the round that forms.
    Seated,
    /// Waits as a spare: there was no slot, or it asked for none.
    Standby,
    /// In a round.
    InRound,
    /// In the last round of a closed run.
    InLastRound,
    /// Its round is over; its slot is reserved for a while.
    Between,
    /// Has asked to leave.
    Leaving,
    /// Its session ended; a new session may join.
    Lost,
    /// Another session has its name. This node must not rejoin.
    Replaced,
    /// The run is closed for good: a further request to join is refused for that reason.
    Closed,
}

/// Event that changes a node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartEvent {
    /// The node asks to join.
    Ask,
    /// The node has a slot.
    Slot,
    /// The node is a spare.
    Park,
    /// Its round is formed.
    Form,
    /// Its request was refused, or timed out.
    Refuse,
    /// Its request to rejoin failed: it is still in its round.
    KeepRound,
    /// Its request to rejoin failed: it is still in the last round of a closed run.
    KeepLastRound,
    /// Its request to rejoin failed, and its round is over: its slot is still reserved.
    KeepSlot,
    /// Its request is void: the run is closed.
    Dismiss,
    /// Its round is over.
    EndRound,
    /// The run was closed while it was in a round.
    CloseRun,
    /// The next round was formed without it.
    Exclude,
    /// Another session joined under its name.
    Replace,
    /// The node asks to leave.
    AskToLeave,
    /// The server has let the node leave.
    Go,
    /// Its session ended.
    EndSession,
}

use Part::{
    Between, Closed, InLastRound, InRound, Joining, Leaving, Lost, Outside, Replaced, Seated, Standby,
};

/// The transitions: any of these states, the event, the next state.
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
    /// Returns the state after `event`; `None` where the event is not possible.
    #[must_use]
    pub fn on_event(self, event: PartEvent) -> Option<Self> {
        PARTS.iter().find(|(from, on, _)| *on == event && from.contains(&self)).map(|&(.., to)| to)
    }
}

/// How a node takes part in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// As a member of the next round.
    Member,
    /// As a spare, which does not interrupt a live round.
    Spare,
}

impl<'a> Entry<'a> {
    /// Returns the request to join in this role.
    pub const fn frame(&self, role: Role) -> ClientFrame<'a> {
        match role {
            Role::Member => ClientFrame::Join { entry: *self },
            Role::Spare => ClientFrame::Standby { entry: *self },
        }
    }
}

/// A node's assignment in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment<'b> {
    /// Number of the round.
    pub round: u64,
    /// Rank among the nodes.
    pub node_rank: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Global rank of the node's first worker.
    pub rank_first: u64,
    /// Number of workers of all nodes.
    pub world_size: u64,
    /// Address of node 0.
    pub leader: &'b [u8],
    /// Prefix of the keys of the round.
    pub namespace: Key<'b>,
}

/// Something that happened to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the frames of these events")]
pub enum Event<'b> {
    /// It has a slot in the round that forms.
    Seated,
    /// It is a spare, with `ahead` spares before it.
    Standby { ahead: u32 },
    /// Its round is formed.
    Formed(Assignment<'b>),
    /// Its request to join was refused.
    Refused(Fault<'b>),
    /// Its request to join was refused, or it may not rejoin: the run is closed.
    Closed { by: &'b [u8] },
    /// It was a spare, and the run was closed: no failure.
    NotNeeded,
    /// `nodes` nodes wait for the next round.
    NodesWaiting { nodes: u32 },
    /// Another node of its round died.
    PeerDied { round: u64, node_rank: u32, node: &'b [u8], why: Why },
    /// Its round is over.
    RoundOver { round: u64, why: Why },
    /// Another node has reported that the job has failed.
    JobFailed { message: &'b [u8] },
    /// The next round was formed without it.
    Excluded { round: u64 },
    /// Another session joined under its name.
    Replaced { session: u64 },
    /// It has left the run.
    Left,
}

/// The request is not allowed in the node's present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request is not allowed for a node in state {0:?}")]
pub struct InvalidState(pub Part);

impl InvalidState {
    /// Returns why the node cannot make the request, and what the caller can do. A node may join and leave in different
    /// states, so the state says which of them it was.
    pub const fn reason(self) -> &'static str {
        match self.0 {
            Joining | Seated | Standby => {
                "the node is joining already; wait until that operation has ended, or cancel it"
            }
            Leaving => "the node is leaving; wait until that operation has ended",
            Outside | Lost | Closed => {
                "the node is in no round and is not joining one, so it has nothing to leave"
            }
            InRound | InLastRound | Between => "the node is in a round",
            Replaced => "another session has joined under the node's name; end this one",
        }
    }
}

/// The server's frame is not of a kind that answers the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is of another kind than the request")]
pub struct NoAnswerToThat;

/// State of a node that asks to rejoin, until the server has granted that.
#[derive(Clone, Copy, Debug)]
struct Rejoin {
    part: Part,
    /// Id of the request to join that led to this state.
    join: u64,
}

/// A node's part in one run at a time.
#[derive(Debug)]
pub struct Participant {
    part: Part,
    /// In state `Leaving`: the state that the node would have otherwise.
    part_unless_leaving: Part,
    /// Set while the node asks to rejoin and the server has not placed it.
    rejoin: Option<Rejoin>,
    /// Id of the last request to join, which pushes carry; 0: none.
    join: u64,
    /// Id of the last request to leave; 0: none.
    leave: u64,
    round: Option<u64>,
}

impl Default for Participant {
    fn default() -> Self {
        Self::new()
    }
}

impl Participant {
    /// Creates a node that has not joined.
    pub const fn new() -> Self {
        Self { part: Outside, part_unless_leaving: Outside, rejoin: None, join: 0, leave: 0, round: None }
    }

    /// Returns the node's state.
    pub const fn part(&self) -> Part {
        self.part
    }

    /// Whether the request `id` is one of this node's.
    pub const fn is_local(&self, id: u64) -> bool {
        let is_rejoin = matches!(self.rejoin, Some(Rejoin { join, .. }) if join == id);
        id != 0 && (id == self.join || id == self.leave || is_rejoin)
    }

    /// Records that the node asks to join, with the request `id`. A node of a live round rejoins this way.
    ///
    /// # Errors
    /// The node waits for a round already, is leaving, or must not rejoin.
    pub fn join(&mut self, id: u64) -> Result<(), InvalidState> {
        let before = self.part;
        self.step(PartEvent::Ask).ok_or(InvalidState(self.part))?;
        self.rejoin = matches!(before, InRound | InLastRound | Between)
            .then_some(Rejoin { part: before, join: self.join });
        self.join = id;
        Ok(())
    }

    /// Records that the node asks to leave, with the request `id`.
    ///
    /// # Errors
    /// The node is in no run.
    pub fn leave(&mut self, id: u64) -> Result<(), InvalidState> {
        let before = self.part;
        self.part = before.on_event(PartEvent::AskToLeave).ok_or(InvalidState(before))?;
        (self.leave, self.part_unless_leaving) = (id, before);
        Ok(())
    }

    /// Handles the answer to the request `id`. `None`: the answer is out of date.
    ///
    /// # Errors
    /// The frame does not answer that request: the server violates the protocol.
    pub fn answer<'b>(
        &mut self,
        id: u64,
        frame: &ServerFrame<'b>,
    ) -> Result<Option<Event<'b>>, NoAnswerToThat> {
        if id == self.leave {
            return match frame {
                // A node that is in no run any more has left, even if the server answers with an error.
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
                // In these cases the server had accepted the request first.
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

    /// Handles a push of the request `id`. `None`: the push is unknown, or out of date. A node that asks to rejoin or to
    /// leave still gets the events of its round: its request may fail, and then the server does not repeat them.
    pub fn push<'b>(&mut self, id: u64, frame: &ServerFrame<'b>) -> Option<Event<'b>> {
        let is_rejoin = self.rejoin.is_some_and(|rejoin| rejoin.join == id);
        if id != self.join && !is_rejoin {
            return None;
        }
        let (event, node_event) = match *frame {
            ServerFrame::Placed { is_participant: true, .. } => (PartEvent::Slot, Event::Seated),
            ServerFrame::Placed { is_participant: false, ahead, .. } => {
                (PartEvent::Park, Event::Standby { ahead })
            }
            ServerFrame::RoundOver { round, why, .. } => {
                (PartEvent::EndRound, Event::RoundOver { round, why })
            }
            ServerFrame::RunClosed { by, .. } => (PartEvent::CloseRun, Event::Closed { by }),
            ServerFrame::Excluded { round, .. } => (PartEvent::Exclude, Event::Excluded { round }),
            ServerFrame::Replaced { session, .. } => (PartEvent::Replace, Event::Replaced { session }),
            // These do not change the state.
            ServerFrame::NodesWaiting { nodes, .. } => {
                return self.in_round(id, Event::NodesWaiting { nodes });
            }
            ServerFrame::JobFailed { message, .. } => return self.in_round(id, Event::JobFailed { message }),
            ServerFrame::PeerDied { round, node_rank, node, why, .. } => {
                return self.in_round(id, Event::PeerDied { round, node_rank, node, why });
            }
            _ => return None,
        };
        if let Some(rejoin) = self.rejoin.as_mut().filter(|_| is_rejoin) {
            // Until the request to rejoin is granted the node may have to stay in this round, so its events still
            // matter.
            rejoin.part = rejoin.part.on_event(event)?;
            return Some(node_event);
        }
        let matters = self.part_unless_leaving().on_event(event).is_some();
        self.step(event);
        matters.then_some(node_event)
    }

    /// Handles that the request `id` was withdrawn before the server received it.
    pub fn withdraw(&mut self, id: u64) {
        if id != 0 && id == self.leave {
            self.leave = 0;
            if self.part == Leaving {
                // The server has not received the request to leave.
                self.part = self.part_unless_leaving;
            }
        } else if id != 0 && id == self.join {
            let event = self.fall_back();
            self.step(event);
        }
    }

    /// Handles the end of the session; returns whether the node was in a run.
    pub fn session_ended(&mut self) -> bool {
        (self.join, self.leave, self.rejoin) = (0, 0, None);
        self.step(PartEvent::EndSession).is_some()
    }

    fn in_round<'b>(&self, id: u64, node_event: Event<'b>) -> Option<Event<'b>> {
        let part = match self.rejoin {
            Some(rejoin) if rejoin.join == id => rejoin.part,
            _ => self.part_unless_leaving(),
        };
        matches!(part, InRound | InLastRound).then_some(node_event)
    }

    const fn part_unless_leaving(&self) -> Part {
        if matches!(self.part, Leaving) { self.part_unless_leaving } else { self.part }
    }

    /// Restores the request id of the state from which the node asked to rejoin, since the server keeps it there;
    /// returns the matching event.
    fn fall_back(&mut self) -> PartEvent {
        let Some(Rejoin { part, join }) = self.rejoin else { return PartEvent::Refuse };
        self.join = join;
        match part {
            InRound => PartEvent::KeepRound,
            InLastRound => PartEvent::KeepLastRound,
            Between => PartEvent::KeepSlot,
            // Pushes since the request have changed the former state.
            Closed => PartEvent::Dismiss,
            Replaced => PartEvent::Replace,
            _ => PartEvent::Refuse,
        }
    }

    fn step(&mut self, event: PartEvent) -> Option<()> {
        let after = self.part.on_event(event);
        if self.part == Leaving {
            self.part_unless_leaving =
                self.part_unless_leaving.on_event(event).unwrap_or(self.part_unless_leaving);
        }
        self.part = after.unwrap_or(self.part);
        if self.part_unless_leaving() != Joining {
            // The server has accepted or refused the request to rejoin.
            self.rejoin = None;
        }
        after.map(|_| ())
    }
}

#[cfg(test)]
mod tests;
