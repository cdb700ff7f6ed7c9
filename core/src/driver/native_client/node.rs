//! Membership of a node in a run.

use super::inbox::{Last, Weighted};
use super::{
    EncodedRequest, Loss, NativeClient, NativeError, OwnedFrame, SubmitPath, check_reason, plain, text_of,
};
use crate::error::{ErrorKind, Operation};
use crate::rendezvous::participant::{Entry, Event, Role};
use crate::rendezvous::round_event::RoundEvent;
use crate::store::op::Key;
use crate::time::Duration;
use crate::wire::native::{ClientFrame, ServerFrame};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Round that a node has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Number of the round.
    pub round: u64,
    /// Rank of this node among the nodes.
    pub node_rank: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Global rank of this node's first worker.
    pub rank_first: u64,
    /// Number of workers of all nodes.
    pub world_size: u64,
    /// Address of node 0.
    pub leader: Box<[u8]>,
    /// Prefix of the round's keys, as a prefix store is given it.
    pub namespace: Box<[u8]>,
}

impl Joined {
    /// Converts the response to a join request; `None` if it does not fit.
    pub(in crate::driver) fn of(frame: &ServerFrame<'_>) -> Option<Self> {
        let ServerFrame::Round { round, node_rank, nodes, rank_first, world_size, leader, namespace, .. } =
            *frame
        else {
            return None;
        };
        let (leader, namespace) = (leader.into(), namespace.pieces().concat().into());
        Some(Self { round, node_rank, nodes, rank_first, world_size, leader, namespace })
    }
}

/// Event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The node has a slot in the round that forms.
    Seated,
    /// The node is a spare.
    Standby {
        /// Number of spares before it.
        ahead: u32,
    },
    /// Event of its round, or of the run.
    Round(RoundEvent),
    /// The next round was formed without the node. It may join again like any other node.
    Excluded {
        /// Number of the round that was formed.
        round: u64,
    },
    /// Another session joined under the node's name: the node must not join again.
    Replaced {
        /// Id of the other session.
        session: u64,
    },
}

impl NodeEvent {
    /// Returns the event of the node's round or run; `None` for an event before a round.
    #[must_use]
    pub fn into_round_event(self) -> Option<RoundEvent> {
        Some(match self {
            Self::Round(event) => event,
            Self::Excluded { round } => RoundEvent::Excluded { round },
            Self::Replaced { .. } => RoundEvent::Replaced,
            Self::Seated | Self::Standby { .. } => return None,
        })
    }

    /// Returns whether the event precedes a round.
    pub(super) const fn is_before_round(&self) -> bool {
        matches!(self, Self::Seated | Self::Standby { .. })
    }

    /// Converts an event; `None` if the response to a call reports it.
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        Some(match *event {
            Event::Seated => Self::Seated,
            Event::Standby { ahead } => Self::Standby { ahead },
            Event::NodesWaiting { nodes } => Self::Round(RoundEvent::NodesWaiting { nodes }),
            Event::PeerDied { round, node_rank, node, why } => {
                Self::Round(RoundEvent::PeerDied { round, node_rank, node: text_of(node), why })
            }
            Event::RoundOver { round, why } => Self::Round(RoundEvent::RoundOver { round, why }),
            Event::Closed { by } => Self::Round(RoundEvent::RunClosed { by: text_of(by) }),
            Event::JobFailed { message } => Self::Round(RoundEvent::JobFailed { message: text_of(message) }),
            Event::Excluded { round } => Self::Excluded { round },
            Event::Replaced { session } => Self::Replaced { session },
            Event::Formed(_) | Event::Refused(_) | Event::NotNeeded | Event::Left => return None,
        })
    }
}

impl Weighted for NodeEvent {
    fn bytes(&self) -> usize {
        let text = match self {
            Self::Round(
                RoundEvent::PeerDied { node: text, .. }
                | RoundEvent::RunClosed { by: text }
                | RoundEvent::JobFailed { message: text },
            ) => text.len(),
            _ => 0,
        };
        size_of::<Self>() + text
    }
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Number of the live round, or of the next one.
    pub round: u64,
    /// Whether the round is live.
    pub complete: bool,
    /// Whether the run is closed for good.
    pub closed: bool,
    /// Number of nodes in the round.
    pub nodes: u32,
    /// Number of nodes that wait for the next round.
    pub nodes_waiting: u32,
    /// Number of spares.
    pub nodes_standby: u32,
}

impl RunInfo {
    /// Converts the response; `None` if it does not fit.
    pub(in crate::driver) const fn of(frame: &ServerFrame<'_>) -> Option<Self> {
        let ServerFrame::RunState { round, complete, closed, nodes, nodes_waiting, nodes_standby } = *frame
        else {
            return None;
        };
        Some(Self { round, complete, closed, nodes, nodes_waiting, nodes_standby })
    }
}

/// Member of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Rank among the nodes.
    pub node_rank: u32,
    /// Global rank of the node's first worker.
    pub rank_first: u64,
    /// Number of the node's workers.
    pub local_world_size: u32,
    /// Name of the node.
    pub node: Box<str>,
    /// Address that the node has published.
    pub address: Box<[u8]>,
}

impl MemberInfo {
    /// Converts the response; `None` if it does not fit.
    pub(in crate::driver) fn list_of(frame: &ServerFrame<'_>) -> Option<Vec<Self>> {
        let ServerFrame::MemberList { members, .. } = frame else { return None };
        let members = members.iter().map(|member| Self {
            node_rank: member.node_rank,
            rank_first: member.rank_first,
            local_world_size: member.local_world_size,
            node: text_of(member.node),
            address: member.address.into(),
        });
        Some(members.collect())
    }
}

impl NativeClient {
    /// Joins a run, and waits for a round for the time in the entry. While the node is a spare, no timeout runs.
    ///
    /// # Errors
    /// The reason why there is no round; [`NativeError::fault`] has the server's response.
    pub fn join(&self, entry: &Entry<'_>, role: Role) -> Result<Joined, NativeError> {
        let operation = match role {
            Role::Member => Operation::Join,
            Role::Spare => Operation::Standby,
        };
        let (span, submit_path) = (Duration::from_millis(entry.join_timeout_ms), SubmitPath::Join);
        let keys = (Some(Key::raw(entry.run_id)), 1);
        let encoded = EncodedRequest::new(operation, &entry.frame(role));
        let answer = self.exchange(encoded, span, submit_path, None, &self.canceller.token());
        let answer: OwnedFrame = answer.map_err(|loss| self.error(operation, keys, loss))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(Joined::of).ok_or_else(|| self.wrong_answer(operation))
    }

    /// Returns whether the node was a spare at any time since its last join request.
    pub(in crate::driver) fn was_standby(&self) -> bool {
        self.inner.shared.was_standby.load(Ordering::Acquire)
    }

    /// Returns whether another session joined under the node's name, in which case this one must not join again.
    pub(in crate::driver) fn was_replaced(&self) -> bool {
        self.inner.shared.was_replaced.load(Ordering::Acquire)
    }

    /// Waits up to `timeout` for the node's next event; `None`: there was none. When a round is formed, untaken
    /// events of the previous one are dropped. A join that fails drops nothing. When events are not taken for too
    /// long, the oldest are dropped.
    ///
    /// # Errors
    /// The session is over.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<NodeEvent>, NativeError> {
        let token = self.canceller.token();
        self.inner.shared.events.next_unless(timeout, || token.is_cancelled()).map_err(|last| {
            let loss = match last {
                Last::Over(ending) => Loss::of_ending(ending),
                Last::Overrun => Loss::of(plain(ErrorKind::LimitExceeded)),
                Last::Interrupted => Loss::cancelled(),
            };
            self.error(Operation::RoundEvent, (None, 0), loss)
        })
    }

    /// Leaves the run, which goes on.
    ///
    /// # Errors
    /// The node is in no run, or the server did not respond.
    pub fn leave(&self, run_id: &[u8], timeout: Duration) -> Result<(), NativeError> {
        let leave = ClientFrame::Leave { run_id: Key::raw(run_id) };
        let leave = EncodedRequest::new(Operation::Leave, &leave);
        let left = self.exchange(leave, timeout, SubmitPath::Leave, None, &self.canceller.token());
        left.map(drop).map_err(|loss| self.error(Operation::Leave, (Some(Key::raw(run_id)), 1), loss))
    }

    /// Closes the run for good.
    ///
    /// # Errors
    /// The reason why it is not closed.
    pub fn close_run(&self, run_id: &[u8], timeout: Duration) -> Result<(), NativeError> {
        let run_id = Key::raw(run_id);
        let close = ClientFrame::Close { run_id };
        self.ask(Operation::Close, &close, timeout, (Some(run_id), 1)).map(drop)
    }

    /// Closes the run and notifies its nodes of the reason why the job failed, of at most 1,024 bytes.
    ///
    /// # Errors
    /// The reason why it is not closed.
    pub(in crate::driver) fn fail_run(
        &self,
        run_id: &[u8],
        message: &str,
        timeout: Duration,
    ) -> Result<(), NativeError> {
        let run_id = Key::raw(run_id);
        let keys = (Some(run_id), 1);
        check_reason(message).map_err(|loss| self.error(Operation::Close, keys, loss))?;
        let fail = ClientFrame::Fail { run_id, message: message.as_bytes() };
        self.ask(Operation::Close, &fail, timeout, keys).map(drop)
    }

    /// Requests the state of a run.
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn run_info(&self, run_id: &[u8], timeout: Duration) -> Result<RunInfo, NativeError> {
        let run_id = Key::raw(run_id);
        let ask = ClientFrame::RunInfo { run_id };
        let answer = self.ask(Operation::RunInfo, &ask, timeout, (Some(run_id), 1))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(RunInfo::of).ok_or_else(|| self.wrong_answer(Operation::RunInfo))
    }

    /// Returns members of a round in the order of their ranks: at most `count_max`, from `first` on. For the round
    /// that forms next these are the nodes that have joined so far, whose ranks may still change.
    ///
    /// # Errors
    /// There is no such round, or the reason why its members are not known.
    pub fn members(
        &self,
        run_id: &[u8],
        round: u64,
        (first, count_max): (u32, u32),
        timeout: Duration,
    ) -> Result<Vec<MemberInfo>, NativeError> {
        let run_id = Key::raw(run_id);
        let ask = ClientFrame::Members { run_id, round, first_node_rank: first, count_max };
        let answer = self.ask(Operation::Members, &ask, timeout, (Some(run_id), 1))?;
        let frame = answer.frame(&self.inner.answer_limits);
        frame.as_ref().and_then(MemberInfo::list_of).ok_or_else(|| self.wrong_answer(Operation::Members))
    }
}
