//! Translation between the rendezvous and the agent: the meaning of round events for the supervisor, and the keys that
//! agents share in the round's store.

use crate::reason::{NoRound, Reason, WaitFailure};
use crate::supervisor::Membership;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::prelude::*;
use rendezvous_core::rendezvous::error::RendezvousErrorKind;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::Why;

/// Key at which an agent announces that its workers failed and are out of restarts. The first announcement stays.
pub const FAILURE_KEY: &str = "torchelastic/agent/failure";
/// Key at which the first agent that starts its workers again in a round says why.
pub const RESTART_KEY: &str = "torchelastic/agent/restart";
/// Prefix of the keys of the exit barrier, at which agents whose workers succeeded wait for each other. It is
/// PyTorch's.
pub const EXIT_BARRIER_PREFIX: &str = "torchelastic/agent/terminal_state";

/// Key to which each agent that waits at the exit barrier appends its group rank and a newline.
pub const ARRIVED_KEY: &str = "torchelastic/agent/arrived";

/// Meaning of a round event for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The event has no effect.
    Nothing,
    /// A change of the membership.
    Known(Membership),
    /// Nodes may wait for the next round; the caller has to ask whether they still do.
    NodesMayWait {
        /// Number of nodes at the time of the event.
        nodes: u64,
    },
    /// The job has failed if [`FAILURE_KEY`] is set: an agent that closes the run for this reason sets it before.
    JobMayHaveFailed,
}

/// Returns the meaning of an event for an agent in round `current`. Events of earlier rounds may arrive late, and have
/// none. With a backend that does not number its rounds, each event belongs to the current one.
pub fn meaning(event: &RoundEvent, current: Option<u64>) -> Meaning {
    let is_current = |round| current.is_none_or(|current| current == round);
    let message = || event.to_string().into();
    match *event {
        RoundEvent::NodesWaiting { nodes: 0 } => Meaning::Nothing,
        RoundEvent::NodesWaiting { nodes } => Meaning::NodesMayWait { nodes: nodes.into() },
        // The member cannot return, and no round is formed without it: no more rounds follow.
        RoundEvent::PeerDied { round, why: Why::Refused, .. } if is_current(round) => {
            Meaning::Known(Membership::JobFailed { message: message() })
        }
        RoundEvent::PeerDied { round, .. } if is_current(round) => {
            Meaning::Known(Membership::PeerDied { message: message() })
        }
        RoundEvent::RoundOver { round, .. } if is_current(round) => {
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

/// Returns the meaning of a failure of this kind after which the handler reports no more events.
pub fn lost(kind: Option<ErrorKind>, message: Box<str>) -> Membership {
    match kind {
        // The server is alive, so the agent may join again.
        Some(ErrorKind::SessionEnded) => Membership::SessionEnded { message },
        _ => Membership::ServerLost { message },
    }
}

/// Returns the meaning of a failure to form a round.
pub const fn no_round(kind: RendezvousErrorKind) -> NoRound {
    match kind {
        RendezvousErrorKind::GracefulExit => NoRound::NotNeeded,
        RendezvousErrorKind::Closed => NoRound::Closed,
        RendezvousErrorKind::Connection => NoRound::NoServer,
        RendezvousErrorKind::Timeout | RendezvousErrorKind::State | RendezvousErrorKind::Replaced => {
            NoRound::Failed
        }
    }
}

/// Returns the meaning of a failed call in the round's store. `None` is any failure outside of the store.
pub fn wait_failure(kind: Option<ErrorKind>) -> WaitFailure {
    if kind == Some(ErrorKind::StaleRound) { WaitFailure::RoundOver } else { WaitFailure::Failed }
}

/// Maximum length of a failure message in bytes.
pub const FAILURE_BYTES_MAX: usize = 1024;

/// Returns the message with which an agent announces that its workers failed and are out of restarts. It is sent to the
/// other agents and written at [`FAILURE_KEY`].
pub fn failure_message(agent: &str, group_rank: u64, reason: &Reason) -> String {
    bounded(format!("{agent} (group rank {group_rank}): {reason}"))
}

/// Returns the message with which an agent says why it starts its workers again. It is written at [`RESTART_KEY`].
pub fn restart_message(agent: &str, group_rank: u64, reason: &Reason) -> String {
    bounded(format!("node {agent} (group rank {group_rank}) restarts: {reason}"))
}

/// Shortens a message to the length of a failure message.
pub fn bounded(mut message: String) -> String {
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
        // With backends that do not number their rounds, an event cannot belong to another one.
        assert_eq!(meaning(&RoundEvent::Excluded { round: 0 }, None), Meaning::Known(Membership::Excluded));
        let death = Membership::PeerDied { message: reported(&died(3)) };
        assert_eq!(meaning(&died(3), None), Meaning::Known(death));
        let end = Membership::RoundOver { message: reported(&over(3)) };
        assert_eq!(meaning(&over(3), None), Meaning::Known(end));
    }
}
