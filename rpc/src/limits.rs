//! All limits of this crate, in one place. No state machine grows without one of them.

use rendezvous_core::limits::{FrameLimits, UngreetedLimits};
use rendezvous_core::time::Duration;

/// Limits of what one worker of an RPC group publishes about its devices: its longest name or device, and its
/// longest list. They also limit the size of a group, because the list of all its workers is one value of a store.
pub const CARD: FrameLimits = FrameLimits {
    key_bytes_max: 0,
    value_bytes_max: 128,
    keys_max: 1 << 16,
    all_key_bytes_max: 0,
    frame_bytes_max: 8 * 1024 * 1024,
};
/// Maximum number of source devices in the device map for one worker.
pub const DEVICE_PAIRS_MAX: usize = 1024;
/// Limits of what one worker publishes about a change of the group: its own data, and the workers that left.
pub const UPDATE: FrameLimits =
    FrameLimits { value_bytes_max: 8 * 1024 * 1024, frame_bytes_max: 16 * 1024 * 1024, ..CARD };
/// Limits of the fields of a frame between workers other than data: texts and names.
pub const RPC_FRAME: FrameLimits =
    FrameLimits { value_bytes_max: 32 * 1024, keys_max: 0, frame_bytes_max: 64 * 1024, ..CARD };

/// Limits of one connection between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcLimits {
    /// Maximum number of requests in progress.
    pub requests_max: u32,
    /// Maximum size of the payloads of requests in progress together, in bytes. A single request may have more, up
    /// to [`RpcLimits::payload_bytes_max`].
    pub bytes_max: u64,
    /// Maximum payload of a request or an answer, in bytes.
    pub payload_bytes_max: u64,
    /// Maximum number of calls that wait to be sent.
    pub waiting_max: u32,
    /// Maximum size of their payloads together, in bytes. A single call may have more.
    pub waiting_bytes_max: u64,
    /// Time from the first byte to a complete greeting.
    pub greeting_timeout: Duration,
    /// Time without input from a peer that owes an answer after which the caller sends a ping.
    pub ping_interval: Duration,
    /// Maximum time until the reply to a ping.
    pub ping_timeout: Duration,
    /// Time in which the caller sends nothing but pings, after which the callee drops requests with incomplete
    /// payloads, or the connection where a frame is incomplete. The callee checks once in this time, so it may take
    /// twice as long.
    pub stall_timeout: Duration,
    /// Size of the answers that the caller has not read, in bytes, from which on no further handlers start for it.
    /// The answers of running handlers are not included.
    pub answer_bytes_max: u64,
    /// The same limit for the answer of a handler that has returned; beyond it, the answer is dropped. A single
    /// answer may be longer.
    pub late_answer_bytes_max: u64,
}

/// Limits of the connections of a worker's callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of concurrent connections.
    pub count_max: usize,
    /// Limits of those whose callers have not been admitted. The driver allows them a quarter of the process's descriptors
    /// at most.
    pub ungreeted: UngreetedLimits,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            count_max: 1 << 17,
            ungreeted: UngreetedLimits { count_max: 1024, ..UngreetedLimits::default() },
        }
    }
}

/// Limits of what a worker accepts from all its callers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntakeLimits {
    /// Maximum number of unfinished requests.
    pub requests_max: u64,
    /// Size of their payloads, in bytes: of what has arrived, and of [`IntakeLimits::reserved_bytes`] of each that are
    /// announced.
    pub bytes_max: u64,
    /// Maximum number of unfinished requests of one caller that it does not wait for: notices, and calls that it
    /// has cancelled.
    pub unawaited_requests_max: u64,
    /// Size of their payloads, in bytes.
    pub unawaited_bytes_max: u64,
    /// Number of unfinished requests of a caller below which the worker reads from it even when the shared limits
    /// are reached.
    pub reserved_requests: u64,
    /// Size of their payloads, in bytes.
    pub reserved_bytes: u64,
    /// Size of the answers that callers have not read, in bytes, from which on no handlers start for callers that
    /// have unread answers.
    pub answer_bytes_max: u64,
    /// The same limit for the answer of a handler that has returned; beyond it, the answer is dropped.
    pub late_answer_bytes_max: u64,
}

impl Default for IntakeLimits {
    fn default() -> Self {
        Self {
            requests_max: 1 << 16,
            bytes_max: 8 << 30,
            unawaited_requests_max: 1024,
            unawaited_bytes_max: 256 << 20,
            reserved_requests: 16,
            reserved_bytes: 1 << 20,
            answer_bytes_max: 4 << 30,
            late_answer_bytes_max: 8 << 30,
        }
    }
}

impl Default for RpcLimits {
    fn default() -> Self {
        Self {
            requests_max: 1024,
            bytes_max: 256 << 20,
            payload_bytes_max: 4 << 30,
            waiting_max: 1 << 16,
            waiting_bytes_max: 8 << 30,
            greeting_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            answer_bytes_max: 256 << 20,
            late_answer_bytes_max: 1 << 30,
        }
    }
}

/// Maximum length of the error text of a handler, in bytes. A longer text is cut, and says so.
pub const FAILURE_TEXT_BYTES_MAX: usize = 16 * 1024;
const _: () = assert!(FAILURE_TEXT_BYTES_MAX as u64 <= RPC_FRAME.value_bytes_max);
