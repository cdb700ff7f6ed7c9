//! Options of a client of a native server.

use super::inbox::InboxLimit;
use crate::driver::prelude::*;
use crate::driver::socket::KeepAlive;
use crate::driver::timeout::Timeouts;
use crate::driver::tls::TlsConnector;
use crate::driver::token_file::ClientToken;
use crate::limits::FrameLimits;
use crate::node::native_client::{NativeOptions, Unanswered};
use crate::session::client::SessionOptions;
use crate::store::dial::{DialOptions, Rounds};
use crate::time::Poller;

/// Options of a client of a native server.
#[derive(Clone, Debug)]
pub struct NativeClientOptions {
    /// Name of the client's node in events and errors of other nodes.
    pub node: String,
    /// Grace period: time for which the session outlives its connection. Zero: not at all, and then its first
    /// requests are sent with HELLO.
    pub grace: Duration,
    /// Heartbeat interval: longest silence of the connection. Zero leaves it to the server.
    pub heartbeat: Duration,
    /// Number of heartbeat intervals without a message after which the session ends.
    pub heartbeats_missed_max: u32,
    /// Timeout of the first connection, with all its attempts.
    pub connect_timeout: Duration,
    /// Default timeouts of calls.
    pub timeouts: Timeouts,
    /// Time for which the client waits after the server's own deadline of a call, since the response may be on its
    /// way.
    pub answer_slack: Duration,
    /// Prefix of every key on the wire; PyTorch's clients also use `/`.
    pub scope: Box<[u8]>,
    /// Keepalive of the connection; `None`: no keepalive.
    pub keep_alive: Option<KeepAlive>,
    /// TLS; `None`: the connection is not encrypted.
    pub tls: Option<TlsConnector>,
    /// Connection attempts.
    pub dial: DialOptions,
    /// Limits on requests and responses.
    pub limits: FrameLimits,
    /// Maximum number of unread pushes that are kept for one watch, or for the node.
    pub pushes_max: usize,
    /// Size in bytes of the unread pushes of one watch, or of the node, from which on no more are kept. The default
    /// is twice what a server remembers, so that a watch from an old revision does not end at once.
    pub pushed_bytes_max: usize,
    /// Ends the connecting. The calls of the client have tokens of their own.
    pub token: CancelToken,
    /// Token that the client proves, and that the server must prove, too; `None`: no authentication.
    pub auth_token: Option<ClientToken>,
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
            tls: None,
            dial: DialOptions::default(),
            limits: FrameLimits::native(),
            pushes_max: 4096,
            pushed_bytes_max: 128 << 20,
            token: CancelToken::new(),
            auth_token: None,
        }
    }
}

impl NativeClientOptions {
    pub(super) const fn limit(&self) -> InboxLimit {
        InboxLimit { items: self.pushes_max, bytes: self.pushed_bytes_max }
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
