//! Membership of a node in a run.

use super::inbox::{Queue, Weighted};
use super::{
    Joined, Loss, MemberInfo, NativeClient, NativeError, NativeRequest, NativeResponse, RunInfo, SessionInfo,
    text_of, wrong_response,
};
use crate::driver::timeout::Timeout;
use crate::error::Operation;
use crate::prelude::*;
use crate::rendezvous::participant::{Entry, Event, Role};
use crate::rendezvous::round_event::RoundEvent;
use core::sync::atomic::Ordering;

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

impl NativeClient {
    /// Performs [`NativeRequest::Join`], and waits for a round for the time in the entry.
    ///
    /// # Errors
    /// The reason why there is no round; [`NativeError::fault`] has the server's response.
    pub fn join(&self, entry: &Entry<'_>, role: Role) -> Result<Joined, NativeError> {
        let response = self.request(&NativeRequest::Join(*entry, role), Timeout::Default)?;
        let NativeResponse::Joined(joined) = response else { wrong_response() };
        Ok(joined)
    }

    /// Returns whether the node was a spare at any time since its last join request.
    pub(in crate::driver) fn was_standby(&self) -> bool {
        self.inner.thread.shared().was_standby.load(Ordering::Acquire)
    }

    /// Returns whether another session joined under the node's name, in which case this one must not join again.
    pub(in crate::driver) fn was_replaced(&self) -> bool {
        self.inner.thread.shared().was_replaced.load(Ordering::Acquire)
    }

    /// Waits up to `timeout` for the node's next event; `None`: there was none. When a round is formed, untaken
    /// events of the previous one are dropped. A join that fails drops nothing. When events are not taken for too
    /// long, the oldest are dropped.
    ///
    /// # Errors
    /// The session is over.
    pub fn next_event(&self, timeout: Duration) -> Result<Option<NodeEvent>, NativeError> {
        let token = self.canceller.token();
        let next =
            self.inner.thread.shared().events.next_with(timeout, || token.is_cancelled(), Queue::pop_front);
        next.map_err(|last| self.error(Operation::RoundEvent, (None, 0), Loss::of_last(last)))
    }

    /// Performs [`NativeRequest::CloseRun`].
    ///
    /// # Errors
    /// The reason why it is not closed.
    pub fn close_run(&self, run_id: &[u8], timeout: Duration) -> Result<(), NativeError> {
        self.request_within(&NativeRequest::CloseRun { run_id }, timeout).map(drop)
    }

    /// Performs [`NativeRequest::FailRun`].
    ///
    /// # Errors
    /// The reason why it is not closed.
    pub(in crate::driver) fn fail_run(
        &self,
        run_id: &[u8],
        message: &str,
        timeout: Duration,
    ) -> Result<(), NativeError> {
        self.request_within(&NativeRequest::FailRun { run_id, message }, timeout).map(drop)
    }

    /// Performs [`NativeRequest::RunInfo`].
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn run_info(&self, run_id: &[u8], timeout: Duration) -> Result<RunInfo, NativeError> {
        let response = self.request_within(&NativeRequest::RunInfo { run_id }, timeout)?;
        let NativeResponse::RunInfo(info) = response else { wrong_response() };
        Ok(info)
    }

    /// Returns all sessions of the server, by [`NativeRequest::Sessions`].
    ///
    /// # Errors
    /// The reason why they are not known.
    pub fn sessions(&self, timeout: Duration) -> Result<Vec<SessionInfo>, NativeError> {
        let mut all: Vec<SessionInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.session);
            let response = self.request_within(&NativeRequest::Sessions { after }, timeout)?;
            let NativeResponse::Sessions(sessions, more) = response else { wrong_response() };
            all.extend(sessions);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Performs [`NativeRequest::EndSession`].
    ///
    /// # Errors
    /// The reason why it was not ended.
    pub fn end_session(&self, session: u64, timeout: Duration) -> Result<bool, NativeError> {
        let response = self.request_within(&NativeRequest::EndSession { session }, timeout)?;
        let NativeResponse::Outcome(holds) = response else { wrong_response() };
        Ok(holds)
    }

    /// Performs [`NativeRequest::Members`].
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
        let response =
            self.request_within(&NativeRequest::Members { run_id, round, first, count_max }, timeout)?;
        let NativeResponse::Members(members) = response else { wrong_response() };
        Ok(members)
    }
}
