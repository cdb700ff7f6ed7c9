//! A request that is not completed yet, and when it times out.

use crate::error::{Cause, Operation};
use crate::time::{Duration, Instant};

/// Least time that an answer gets to arrive, however short the timeout of the call is.
const ANSWER_TIME_MIN: Duration = Duration::from_millis(200);
/// Most time before the deadline of a call at which the client asks the server for a heartbeat.
const HEARTBEAT_LEAD_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// Whether the caller still waits for the answer to a request.
pub(super) enum Awaited {
    /// The caller waits for the answer.
    Yes,
    /// The caller gave up. The server must still be notified of that.
    CancelDue,
    /// The caller gave up, and a request that cancels this one is under way.
    No,
    /// The client itself sent this request, to cancel the request with this id.
    Cancels(u64),
    /// The client itself sent this request, to leave a round whose join had been given up. It survives reconnects.
    Leaves,
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The session does not know the request yet: the server must answer an earlier request of the node first.
    Held,
    /// The client sends it as soon as the session has a connection.
    Due,
    Sent,
    /// It was sent with HELLO, the connection ended before WELCOME, and the client must not send it twice.
    Lost(Cause),
}

/// When the node may send a join request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitWhen {
    Now,
    /// As soon as the server has answered the requests that the node gave up.
    Later,
    Never,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// Id in the session.
    pub(super) id: u64,
    /// Id that the caller knows. It differs from `id` for a request that was held.
    pub(super) call: u64,
    pub(super) operation: Operation,
    pub(super) began: Instant,
    pub(super) deadline: Instant,
    pub(super) span: Duration,
    pub(super) awaited: Awaited,
    pub(super) stage: Stage,
}

impl Pending {
    /// From this time on, a heartbeat of the server shows that the answer may arrive slightly after the deadline.
    pub(super) fn heartbeat_at(&self) -> Instant {
        let lead = (self.span / 2).min(HEARTBEAT_LEAD_MAX);
        Instant::ORIGIN + self.deadline.since(Instant::ORIGIN + lead)
    }

    /// Returns when the call times out, if the last bytes from the server arrived at `last_received_at`.
    pub(super) fn given_up_at(&self, last_received_at: Instant, slack: Duration) -> Instant {
        if self.stage != Stage::Sent {
            return self.deadline;
        }
        if last_received_at >= self.heartbeat_at() {
            return self.deadline + slack;
        }
        // The server may answer a join request with a slot among the spares, and spares wait without a deadline.
        let is_join = matches!(self.operation, Operation::Join | Operation::Standby);
        let least = if is_join { slack } else { slack.min(ANSWER_TIME_MIN) };
        self.deadline.max(self.began + least)
    }
}
