//! Between a node's part in a run and the agent that it belongs to: what happens to the round is told in the agent's words,
//! and what agents tell each other in the round's store has its place here.

use crate::reason::{NoRound, Reason, WaitFailure};
use crate::supervisor::Membership;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::rendezvous::error::RendezvousErrorKind;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::Why;

/// Where an agent whose workers failed for good says so; the first one's words stay.
pub const FAILURE_KEY: &[u8] = b"torchelastic/agent/failure";
/// The keys of the barrier at which agents whose workers succeeded wait for each other begin so, as PyTorch's do.
pub const EXIT_BARRIER_PREFIX: &str = "torchelastic/agent/terminal_state";

/// What an event means for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing.
    Nothing,
    /// This.
    Known(Membership),
    /// So many nodes wait, if they still do: that is to be asked.
    NodesMayWait {
        /// As many as did.
        nodes: u64,
    },
    /// The job has failed if that stands at [`FAILURE_KEY`]: who closes the run for this reason says so before.
    JobMayHaveFailed,
}

/// What an event means for an agent in round `current`. Events of earlier rounds may come late, and mean nothing.
#[must_use]
pub fn meaning(event: &RoundEvent, current: Option<u64>) -> Meaning {
    let message = || event.to_string().into();
    match *event {
        RoundEvent::NodesWaiting { nodes: 0 } => Meaning::Nothing,
        RoundEvent::NodesWaiting { nodes } => Meaning::NodesMayWait { nodes: nodes.into() },
        // It cannot come back, and nobody gets a round without it: there are no more.
        RoundEvent::PeerDied { round, why: Why::Refused, .. } if Some(round) == current => {
            Meaning::Known(Membership::JobFailed { message: message() })
        }
        RoundEvent::PeerDied { round, .. } if Some(round) == current => {
            Meaning::Known(Membership::PeerDied { message: message() })
        }
        RoundEvent::RoundOver { round, .. } if Some(round) == current => {
            Meaning::Known(Membership::RoundOver { message: message() })
        }
        RoundEvent::Excluded { round } if current.is_none_or(|current| round > current) => {
            Meaning::Known(Membership::Excluded)
        }
        RoundEvent::PeerDied { .. } | RoundEvent::RoundOver { .. } | RoundEvent::Excluded { .. } => {
            Meaning::Nothing
        }
        RoundEvent::RunClosed { .. } => Meaning::JobMayHaveFailed,
        RoundEvent::JobFailed { ref message } => {
            Meaning::Known(Membership::JobFailed { message: message.clone() })
        }
        RoundEvent::Replaced => Meaning::Known(Membership::Replaced),
    }
}

/// What it means for an agent in a round that its handler tells it nothing more, of a failure of this kind.
#[must_use]
pub fn lost(kind: Option<ErrorKind>, message: Box<str>) -> Membership {
    match kind {
        // The server lives: the agent may join again.
        Some(ErrorKind::SessionEnded) => Membership::SessionEnded { message },
        _ => Membership::ServerLost { message },
    }
}

/// What it means for an agent that there is no round.
#[must_use]
pub const fn no_round(kind: RendezvousErrorKind) -> NoRound {
    match kind {
        RendezvousErrorKind::GracefulExit => NoRound::NotNeeded,
        RendezvousErrorKind::Closed => NoRound::Closed,
        RendezvousErrorKind::Timeout
        | RendezvousErrorKind::Connection
        | RendezvousErrorKind::State
        | RendezvousErrorKind::Replaced => NoRound::Failed,
    }
}

/// What it means for an agent that a call in the round's store failed; of failures that are none of the store's, nothing
/// is known.
#[must_use]
pub fn wait_failure(kind: Option<ErrorKind>) -> WaitFailure {
    if kind == Some(ErrorKind::StaleRound) { WaitFailure::RoundOver } else { WaitFailure::Failed }
}

/// The longest that an agent says, in bytes.
pub const FAILURE_BYTES_MAX: usize = 1024;

/// What an agent says when its workers failed for good, to whoever hears of it and at [`FAILURE_KEY`].
#[must_use]
pub fn failure_message(agent: &str, group_rank: i64, reason: &Reason) -> String {
    let mut message = format!("{agent} (group rank {group_rank}): {reason}");
    message.truncate(message.floor_char_boundary(FAILURE_BYTES_MAX));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_the_round_is_over_is_no_failure_of_the_agent() {
        assert_eq!(wait_failure(Some(ErrorKind::StaleRound)), WaitFailure::RoundOver);
        for kind in [None, Some(ErrorKind::TimedOut), Some(ErrorKind::ServerGone), Some(ErrorKind::Cancelled)]
        {
            assert_eq!(wait_failure(kind), WaitFailure::Failed, "{kind:?}");
        }
    }

    #[test]
    fn a_server_that_ended_the_session_is_not_lost() {
        let message = || Box::from("w");
        assert_eq!(
            lost(Some(ErrorKind::SessionEnded), message()),
            Membership::SessionEnded { message: message() }
        );
        for kind in [None, Some(ErrorKind::ServerGone), Some(ErrorKind::TimedOut)] {
            assert_eq!(lost(kind, message()), Membership::ServerLost { message: message() }, "{kind:?}");
        }
    }

    #[test]
    fn only_what_concerns_the_round_is_told() {
        let died =
            |round| RoundEvent::PeerDied { round, node_rank: 1, node: "b".into(), why: Why::Connection };
        let refused =
            |round| RoundEvent::PeerDied { round, node_rank: 1, node: "b".into(), why: Why::Refused };
        let over = |round| RoundEvent::RoundOver { round, why: Why::Connection };
        let reported = |event: &RoundEvent| event.to_string().into();
        for (event, meant) in [
            (RoundEvent::NodesWaiting { nodes: 0 }, Meaning::Nothing),
            (RoundEvent::NodesWaiting { nodes: 2 }, Meaning::NodesMayWait { nodes: 2 }),
            (died(3), Meaning::Nothing),
            (died(4), Meaning::Known(Membership::PeerDied { message: reported(&died(4)) })),
            (refused(3), Meaning::Nothing),
            (refused(4), Meaning::Known(Membership::JobFailed { message: reported(&refused(4)) })),
            (over(3), Meaning::Nothing),
            (over(4), Meaning::Known(Membership::RoundOver { message: reported(&over(4)) })),
            (RoundEvent::Excluded { round: 4 }, Meaning::Nothing),
            (RoundEvent::Excluded { round: 5 }, Meaning::Known(Membership::Excluded)),
            (RoundEvent::RunClosed { by: "b".into() }, Meaning::JobMayHaveFailed),
            (
                RoundEvent::JobFailed { message: "a: exit code 1".into() },
                Meaning::Known(Membership::JobFailed { message: "a: exit code 1".into() }),
            ),
            (RoundEvent::Replaced, Meaning::Known(Membership::Replaced)),
        ] {
            assert_eq!(meaning(&event, Some(4)), meant, "{event}");
        }
        // Of backends without rounds, nothing can be of another one.
        assert_eq!(meaning(&RoundEvent::Excluded { round: 0 }, None), Meaning::Known(Membership::Excluded));
    }
}
