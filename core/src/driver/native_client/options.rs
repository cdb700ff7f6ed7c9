//! How a client of a native server behaves.

use super::inbox::InboxLimit;
use crate::driver::socket::KeepAlive;
use crate::driver::timeout::Timeouts;
use crate::limits::FrameLimits;
use crate::node::native_client::{NativeOptions, Unanswered};
use crate::session::client::SessionOptions;
use crate::store::dial::{DialOptions, Rounds};
use crate::time::{Duration, Poller};
use alloc::boxed::Box;
use alloc::string::String;

/// How a client behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeClientOptions {
    /// Its name in events and errors of others.
    pub node: String,
    /// How long its session outlives its connection. Zero: not at all, and then its first requests leave with HELLO.
    pub grace: Duration,
    /// The longest silence; zero leaves it to the server.
    pub heartbeat: Duration,
    /// So many times the silence ends the session.
    pub heartbeats_missed_max: u32,
    /// How long the first connection may take, with all its attempts.
    pub connect_timeout: Duration,
    /// How long calls may take.
    pub timeouts: Timeouts,
    /// How much later than the server's own deadline a call is given up: so long may its word be on its way.
    pub answer_slack: Duration,
    /// What stands before every key on the wire; PyTorch's clients have `/` there, too.
    pub scope: Box<[u8]>,
    /// How the kernel watches over the connection; `None`: it does not.
    pub keep_alive: Option<KeepAlive>,
    /// How connections are made.
    pub dial: DialOptions,
    /// Bounds on requests and answers.
    pub limits: FrameLimits,
    /// Most pushes that are kept for one watch, or for the node, until somebody asks for them.
    pub pushes_max: usize,
    /// When so many bytes of pushes are kept for one watch, or for the node, there is no room for more. By default twice
    /// what a server remembers, so that a watch from long ago does not end at once.
    pub pushed_bytes_max: usize,
}

impl Default for NativeClientOptions {
    fn default() -> Self {
        let SessionOptions { heartbeat_ms, heartbeats_missed_max, .. } = SessionOptions::default();
        Self {
            node: String::new(),
            grace: Duration::ZERO,
            heartbeat: Duration::from_millis(u64::from(heartbeat_ms)),
            heartbeats_missed_max,
            connect_timeout: Duration::from_secs(300),
            timeouts: Timeouts::default(),
            answer_slack: NativeOptions::default().answer_slack,
            scope: b"/"[..].into(),
            keep_alive: Some(KeepAlive::default()),
            dial: DialOptions::default(),
            limits: FrameLimits::default(),
            pushes_max: 4096,
            pushed_bytes_max: 128 << 20,
        }
    }
}

impl NativeClientOptions {
    pub(super) const fn limit(&self) -> InboxLimit {
        InboxLimit { places: self.pushes_max, bytes: self.pushed_bytes_max }
    }

    pub(super) fn machine(&self, poller: Poller) -> NativeOptions {
        let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let rounds = if self.connect_timeout.is_zero() { Rounds::One } else { Rounds::UntilDeadline };
        NativeOptions {
            session: SessionOptions {
                grace_ms: millis(self.grace),
                heartbeat_ms: millis(self.heartbeat),
                heartbeats_missed_max: self.heartbeats_missed_max,
            },
            connect_timeout: match rounds {
                Rounds::One => self.timeouts.answer,
                Rounds::UntilDeadline => self.connect_timeout,
            },
            rounds,
            dial: self.dial,
            unanswered: Unanswered::Identify,
            limits: self.limits,
            answer_slack: self.answer_slack,
            poller,
        }
    }
}
