//! Between a node's part in a run and the agent that it belongs to: what happens to the round is told in the agent's words,
//! and what agents tell each other in the round's store has its place here.

use crate::reason::{InVain, NoRound, Reason};
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
    Told(Membership),
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
    let words = || event.to_string().into();
    match *event {
        RoundEvent::NodesWaiting { nodes: 0 } => Meaning::Nothing,
        RoundEvent::NodesWaiting { nodes } => Meaning::NodesMayWait { nodes: nodes.into() },
        // It cannot come back, and nobody gets a round without it: there are no more.
        RoundEvent::PeerDied { round, why: Why::Refused, .. } if Some(round) == current => {
            Meaning::Told(Membership::JobFailed { words: words() })
        }
        RoundEvent::PeerDied { round, .. } if Some(round) == current => {
            Meaning::Told(Membership::PeerDied { words: words() })
        }
        RoundEvent::RoundOver { round, .. } if Some(round) == current => {
            Meaning::Told(Membership::RoundOver { words: words() })
        }
        RoundEvent::LeftBehind { round } if current.is_none_or(|current| round > current) => {
            Meaning::Told(Membership::LeftBehind)
        }
        RoundEvent::PeerDied { .. } | RoundEvent::RoundOver { .. } | RoundEvent::LeftBehind { .. } => {
            Meaning::Nothing
        }
        RoundEvent::RunClosed { .. } => Meaning::JobMayHaveFailed,
        RoundEvent::JobFailed { ref words } => Meaning::Told(Membership::JobFailed { words: words.clone() }),
        RoundEvent::Replaced => Meaning::Told(Membership::Replaced),
    }
}

/// What it means for an agent in a round that its handler tells it nothing more, of a failure of this kind.
#[must_use]
pub fn lost(kind: Option<ErrorKind>, words: Box<str>) -> Membership {
    match kind {
        // The server lives: the agent may join again.
        Some(ErrorKind::SessionEnded) => Membership::SessionEnded { words },
        _ => Membership::ServerLost { words },
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
pub fn in_vain(kind: Option<ErrorKind>) -> InVain {
    if kind == Some(ErrorKind::StaleRound) { InVain::RoundOver } else { InVain::Failed }
}

/// The longest that an agent says, in bytes.
pub const FAILURE_BYTES_MAX: usize = 1024;

/// What an agent says when its workers failed for good, to whoever hears of it and at [`FAILURE_KEY`].
#[must_use]
pub fn failure_words(agent: &str, group_rank: i64, reason: &Reason) -> String {
    let mut words = format!("{agent} (group rank {group_rank}): {reason}");
    words.truncate(words.floor_char_boundary(FAILURE_BYTES_MAX));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_the_round_is_over_is_no_failure_of_the_agent() {
        assert_eq!(in_vain(Some(ErrorKind::StaleRound)), InVain::RoundOver);
        for kind in [None, Some(ErrorKind::TimedOut), Some(ErrorKind::ServerGone), Some(ErrorKind::Cancelled)]
        {
            assert_eq!(in_vain(kind), InVain::Failed, "{kind:?}");
        }
    }

    #[test]
    fn a_server_that_ended_the_session_is_not_lost() {
        let words = || Box::from("w");
        assert_eq!(lost(Some(ErrorKind::SessionEnded), words()), Membership::SessionEnded { words: words() });
        for kind in [None, Some(ErrorKind::ServerGone), Some(ErrorKind::TimedOut)] {
            assert_eq!(lost(kind, words()), Membership::ServerLost { words: words() }, "{kind:?}");
        }
    }

    #[test]
    fn only_what_concerns_the_round_is_told() {
        let died =
            |round| RoundEvent::PeerDied { round, node_rank: 1, node: "b".into(), why: Why::Connection };
        let refused =
            |round| RoundEvent::PeerDied { round, node_rank: 1, node: "b".into(), why: Why::Refused };
        let over = |round| RoundEvent::RoundOver { round, why: Why::Connection };
        let told = |event: &RoundEvent| event.to_string().into();
        for (event, meant) in [
            (RoundEvent::NodesWaiting { nodes: 0 }, Meaning::Nothing),
            (RoundEvent::NodesWaiting { nodes: 2 }, Meaning::NodesMayWait { nodes: 2 }),
            (died(3), Meaning::Nothing),
            (died(4), Meaning::Told(Membership::PeerDied { words: told(&died(4)) })),
            (refused(3), Meaning::Nothing),
            (refused(4), Meaning::Told(Membership::JobFailed { words: told(&refused(4)) })),
            (over(3), Meaning::Nothing),
            (over(4), Meaning::Told(Membership::RoundOver { words: told(&over(4)) })),
            (RoundEvent::LeftBehind { round: 4 }, Meaning::Nothing),
            (RoundEvent::LeftBehind { round: 5 }, Meaning::Told(Membership::LeftBehind)),
            (RoundEvent::RunClosed { by: "b".into() }, Meaning::JobMayHaveFailed),
            (
                RoundEvent::JobFailed { words: "a: exit code 1".into() },
                Meaning::Told(Membership::JobFailed { words: "a: exit code 1".into() }),
            ),
            (RoundEvent::Replaced, Meaning::Told(Membership::Replaced)),
        ] {
            assert_eq!(meaning(&event, Some(4)), meant, "{event}");
        }
        // Of backends without rounds, nothing can be of another one.
        assert_eq!(
            meaning(&RoundEvent::LeftBehind { round: 0 }, None),
            Meaning::Told(Membership::LeftBehind)
        );
    }
}
