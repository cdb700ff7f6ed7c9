//! A request that is not over, and when its time is up.

use crate::error::{Cause, Operation};
use crate::time::{Duration, Instant};

/// So long an answer may be on its way, however short the call's own time is.
const ANSWER_TIME_MIN: Duration = Duration::from_millis(200);
/// So long before the deadline of a call, at most, the server is asked for a sign of life.
const HEARTBEAT_LEAD_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Somebody waits for its answer.
    Yes,
    /// Nobody does, and the server is still to be told so.
    CancelDue,
    /// Nobody does.
    No,
    /// Nobody does: it tells the server that nobody awaits anything of this one any more.
    Cancels(u64),
    /// Nobody does: it leaves a round that nobody waited for, over reconnects as well.
    Leaves,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The session does not know it yet: what the node asked before is to be answered first.
    Held,
    /// It goes out as soon as there is a way.
    Due,
    Sent,
    /// It left with HELLO, the connection ended before WELCOME, and it must not be sent twice.
    Lost(Cause),
}

/// Whether the node may ask for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitWhen {
    Now,
    /// Once the server has answered what nobody awaits any more.
    Later,
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// In the session.
    pub(super) id: u64,
    /// What the caller knows it by: one that was held has another id in the session.
    pub(super) call: u64,
    pub(super) operation: Operation,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) span: Duration,
    pub(super) awaited: Awaited,
    pub(super) stage: Stage,
}

impl Pending {
    /// From here on, a sign of life of the server tells that its answer may come a little after the deadline.
    pub(super) fn heartbeat_at(&self) -> Instant {
        let lead = (self.span / 2).min(HEARTBEAT_LEAD_MAX);
        Instant::ORIGIN + self.deadline.since(Instant::ORIGIN + lead)
    }

    /// When it is given up, with a server that was last heard of at `last_received_at`.
    pub(super) fn given_up_at(&self, last_received_at: Instant, slack: Duration) -> Instant {
        if self.stage != Stage::Sent {
            return self.deadline;
        }
        if last_received_at >= self.heartbeat_at() {
            return self.deadline + slack;
        }
        // A wish to join may be answered by a place among the spares, where no time counts.
        let is_join = matches!(self.operation, Operation::Join | Operation::Standby);
        let least = if is_join { slack } else { slack.min(ANSWER_TIME_MIN) };
        self.deadline.max(self.began + least)
    }
}
