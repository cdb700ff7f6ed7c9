//! Every bound, in one place. Nothing in a machine grows without one of these.

use crate::time::Duration;

/// Longest key on the wire, in bytes. Source: c10d protocol, section 4.5 (measured on PyTorch 2.15.0).
pub const KEY_BYTES_MAX: u64 = 8192;
/// Longest value in one request, in bytes: 8 MiB. Source: c10d protocol, section 4.5.
pub const VALUE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most keys in one CHECK, WAIT, MULTI_GET or MULTI_SET. Source: c10d protocol, section 4.5.
pub const KEYS_MAX: u64 = 131_072;

/// Bounds on one c10d frame, checked on its length fields before its bytes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Longest key, in bytes.
    pub key_bytes_max: u64,
    /// Longest value, in bytes.
    pub value_bytes_max: u64,
    /// Most keys (or pairs) in one list.
    pub keys_max: u64,
    /// Longest whole frame, in bytes. PyTorch has no such bound, since it applies lists piece by piece; here a frame
    /// is applied whole, so it is kept whole.
    pub frame_bytes_max: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max: VALUE_BYTES_MAX,
            keys_max: KEYS_MAX,
            frame_bytes_max: 256 * 1024 * 1024,
        }
    }
}

/// What a key is charged beside its bytes and those of its value: its place in the tables. Without it, a store of short
/// keys would take many times the memory that it may.
pub const KEY_COST_BYTES: u64 = 128;
/// What a queued item is charged beside its bytes, so that empty ones are not free.
pub const ITEM_COST_BYTES: u64 = 32;

/// Bounds on what is read of a store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Keys and values together, in bytes, with [`KEY_COST_BYTES`] for each key.
    pub stored_bytes_max: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { stored_bytes_max: 4 << 30 }
    }
}

/// Bounds on the store's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Keys (those that are only waited for, too), values and queued items together, in bytes, with what each costs
    /// beside them: [`KEY_COST_BYTES`], [`ITEM_COST_BYTES`].
    pub stored_bytes_max: u64,
    /// Keys that are waited for, counted once for each wait.
    pub registrations_max: usize,
    /// Waits and barriers pending on one connection. PyTorch's own client never has more than one.
    pub waits_per_connection_max: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self { stored_bytes_max: 4 << 30, registrations_max: 1 << 23, waits_per_connection_max: 16 }
    }
}

/// Bounds on what the native protocol keeps beside the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Most changes that are kept for watches.
    pub changes_max: usize,
    /// Their keys and values together, in bytes, with what each costs beside them.
    pub bytes_max: u64,
    /// Most watches.
    pub watches_max: usize,
    /// Most leases.
    pub leases_max: usize,
    /// Most keys on leases.
    pub leased_keys_max: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self {
            changes_max: 1 << 16,
            bytes_max: 64 << 20,
            watches_max: 1 << 20,
            leases_max: 1 << 20,
            leased_keys_max: 1 << 20,
        }
    }
}

/// Bounds on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Bounds on one request.
    pub frame: FrameLimits,
    /// Bounds on what is stored.
    pub engine: EngineLimits,
    /// Bounds on the sessions of native clients.
    pub session: SessionLimits,
    /// Bounds on what native clients may watch and lease.
    pub history: HistoryLimits,
    /// Bounds on the barriers of native clients.
    pub barrier: BarrierLimits,
    /// Bounds on the rendezvous.
    pub rendezvous: RendezvousLimits,
    /// Most connections at a time.
    pub connections_max: usize,
    /// Unsent answers of one connection, in bytes, from which on its requests rest until the peer reads.
    pub unsent_bytes_high: usize,
    /// Longest single answer, in bytes; a request for more ends the connection.
    pub answer_bytes_max: usize,
    /// Received and unsent bytes of all connections, and what all sessions hold, together. Where there would be more,
    /// whoever holds most is ended, connection or session.
    pub buffered_bytes_max: u64,
    /// From accept to a complete greeting.
    pub handshake_timeout: Duration,
    /// Longest silence within a frame that has begun.
    pub frame_timeout: Duration,
    /// Longest time in which a peer that has answers to read reads none of them.
    pub stall_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            frame: FrameLimits::default(),
            engine: EngineLimits::default(),
            session: SessionLimits::default(),
            history: HistoryLimits::default(),
            barrier: BarrierLimits::default(),
            rendezvous: RendezvousLimits::default(),
            connections_max: 1 << 20,
            unsent_bytes_high: 1 << 20,
            answer_bytes_max: 1 << 30,
            buffered_bytes_max: 2 << 30,
            handshake_timeout: Duration::from_secs(30),
            frame_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
        }
    }
}

/// What a request that waits, or a watch, is charged beside the bytes of its keys: its place in the tables.
pub const WAIT_COST_BYTES: u64 = 192;
/// What a frame that is kept for a session is charged beside its bytes, where what a server holds is added up.
pub const KEPT_COST_BYTES: u64 = 64;

/// Bounds on the sessions of the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Most sessions at a time.
    pub sessions_max: usize,
    /// Longest body of a frame to a client, in bytes. A server takes the smaller of this and
    /// [`FrameLimits::frame_bytes_max`].
    pub body_bytes_max: usize,
    /// Most frames that are kept for one session until its client has received them.
    pub window_frames: u32,
    /// Their bytes together.
    pub window_bytes: u64,
    /// Most requests of one session that are pending.
    pub pending_max: usize,
    /// Copies of the keys that one session's requests wait for, and names that it watches, in bytes, with
    /// [`WAIT_COST_BYTES`] for each.
    pub waiting_bytes_max: u64,
    /// Longest time that a session outlives its connection.
    pub grace_max: Duration,
    /// Shortest interval of heartbeats that a client may ask for.
    pub heartbeat_min: Duration,
    /// Interval of heartbeats of clients that do not ask.
    pub heartbeat_default: Duration,
    /// Longest interval of heartbeats that a client may ask for.
    pub heartbeat_max: Duration,
    /// Most heartbeats that may be missed.
    pub heartbeats_missed_max: u32,
    /// Ended sessions whose reason is remembered.
    pub remembered_max: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            sessions_max: 1 << 20,
            body_bytes_max: 256 * 1024 * 1024,
            window_frames: 1024,
            window_bytes: 1 << 20,
            pending_max: 4096,
            waiting_bytes_max: 64 << 20,
            grace_max: Duration::from_secs(3600),
            heartbeat_min: Duration::from_millis(10),
            heartbeat_default: Duration::from_secs(5),
            heartbeat_max: Duration::from_secs(3600),
            heartbeats_missed_max: 1000,
            remembered_max: 1024,
        }
    }
}

/// What a barrier is charged beside the bytes of its key: its place in the tables, and each end that is remembered.
pub const BARRIER_COST_BYTES: u64 = 256;
/// What a name at a barrier is charged beside its bytes.
pub const MEMBER_COST_BYTES: u64 = 96;

/// Bounds on the barriers of the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierLimits {
    /// Most barriers at a time, those included at which nobody waits and that are only remembered.
    pub barriers_max: usize,
    /// Most participants of one barrier.
    pub participants_max: u32,
    /// Most arrivals that wait, at all barriers together.
    pub arrivals_max: usize,
    /// Longest name, in bytes.
    pub name_bytes_max: usize,
    /// Keys, names and ends together, in bytes, with what each costs beside them: [`BARRIER_COST_BYTES`],
    /// [`MEMBER_COST_BYTES`].
    pub stored_bytes_max: u64,
    /// Ends of one barrier that are remembered; less than one counts as one.
    pub ends_kept_max: usize,
    /// Most names of absent participants in one end; the others are counted.
    pub absent_named_max: usize,
}

impl Default for BarrierLimits {
    fn default() -> Self {
        Self {
            barriers_max: 1 << 16,
            participants_max: 1 << 17,
            arrivals_max: 1 << 20,
            name_bytes_max: 1024,
            stored_bytes_max: 256 << 20,
            ends_kept_max: 8,
            absent_named_max: 256,
        }
    }
}

/// Bounds on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Bounds on one request: what a server takes.
    pub frame: FrameLimits,
    /// The answer to one request, in bytes. Larger than a request, since values grow through APPEND.
    pub reply_bytes_max: u64,
    /// Most connections at a time; fewer than two count as two. Calls that wait have all but one of them: the last is for
    /// those that are answered at once, such as the one that ends the waits.
    pub connections_max: usize,
    /// Most operations at a time.
    pub operations_max: usize,
    /// Connections that are kept while nobody uses them.
    pub idle_connections_max: usize,
}

impl ClientLimits {
    /// Most connections at a time.
    #[must_use]
    pub fn connections_max(&self) -> usize {
        self.connections_max.max(2)
    }

    /// Most connections that calls which wait have at a time.
    #[must_use]
    pub fn waiting_connections_max(&self) -> usize {
        self.connections_max() - 1
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            frame: FrameLimits::default(),
            reply_bytes_max: 1 << 30,
            connections_max: 256,
            operations_max: 1 << 20,
            idle_connections_max: 64,
        }
    }
}

/// Bounds on the rendezvous service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Most run ids that are remembered. Closed ones count, since a closed run stays closed for as long as it is
    /// remembered. Where there would be more, the run is forgotten that has been closed and without a node for longest, or
    /// else the one that has been without a node for longest; only where each has a node, a new one is refused.
    pub runs_max: usize,
    /// Longest run id, in bytes.
    pub run_id_bytes_max: usize,
    /// Longest words in which a node says why the job has failed, in bytes.
    pub failure_bytes_max: usize,
    /// Most nodes of one run, those that stand by included.
    pub nodes_per_run_max: usize,
    /// Longest host part of a node's name, in bytes.
    pub node_name_bytes_max: usize,
    /// Most labels of one node.
    pub labels_max: usize,
    /// Names and values of one node's labels together, in bytes.
    pub label_bytes_max: usize,
    /// Most hosts of one run whose failures are remembered; beyond it the one that failed longest ago is forgotten.
    pub failed_hosts_max: usize,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self {
            runs_max: 1 << 16,
            run_id_bytes_max: 1024,
            failure_bytes_max: 1024,
            nodes_per_run_max: 1 << 17,
            node_name_bytes_max: 256,
            labels_max: 32,
            label_bytes_max: 2048,
            failed_hosts_max: 1024,
        }
    }
}

/// Longest text before a line on the console, in bytes. It is written once for each line, however short that is.
pub const PREFIX_BYTES_MAX: usize = 256;
/// Longest line that is kept whole until it ends, in bytes; what is longer is passed on in pieces of this length.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Last lines of a worker's standard error that a failure report holds.
pub const TAIL_LINES: usize = 20;
/// Longest line of these, in bytes; the rest of it is left out and counted.
pub const TAIL_LINE_BYTES_MAX: usize = 1024;
/// Longest error file, in bytes; a longer one is not read.
pub const ERROR_FILE_BYTES_MAX: usize = 1 << 20;
/// Longest value that a worker returns that is a function, in bytes.
pub const RETURNED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Longest name of a folder that a run id gives, in bytes.
pub const RUN_FOLDER_BYTES_MAX: usize = 100;
/// Bytes that a console has not taken yet from which on workers wait for it. It is passed by what one read brings.
pub const CONSOLE_FULL_BYTES: usize = 256 * 1024;
/// The same from which on what comes is left out, and counted.
pub const CONSOLE_BYTES_MAX: usize = 1 << 20;
/// How long a console may take nothing before those whose output has a file do without it.
pub const CONSOLE_STALL: Duration = Duration::from_secs(1);
/// End of a redirected standard error in which its last lines are looked for, in bytes.
pub const TAIL_BYTES_MAX: usize = 64 * 1024;

/// Bounds on what one worker of an RPC group says of its devices: its longest name or device, and its longest list. No
/// group is larger, either: a list of all its workers is one value of a store.
pub const CARD: FrameLimits = FrameLimits {
    key_bytes_max: 0,
    value_bytes_max: 128,
    keys_max: 1 << 16,
    frame_bytes_max: 8 * 1024 * 1024,
};
/// Most devices that a map for one worker begins at.
pub const DEVICE_PAIRS_MAX: usize = 1024;
/// Bounds on what one worker tells the others of a change of their group: a card, and who went.
pub const UPDATE: FrameLimits =
    FrameLimits { value_bytes_max: 8 * 1024 * 1024, frame_bytes_max: 16 * 1024 * 1024, ..CARD };
/// Bounds on the fields of a frame between workers that is not data: texts and names.
pub const RPC_FRAME: FrameLimits =
    FrameLimits { key_bytes_max: 0, value_bytes_max: 32 * 1024, keys_max: 0, frame_bytes_max: 64 * 1024 };

/// Bounds on one connection between workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcLimits {
    /// Most requests under way.
    pub requests_max: u32,
    /// Payloads of requests under way together, in bytes. One request alone may have more only up to
    /// [`RpcLimits::payload_bytes_max`].
    pub bytes_max: u64,
    /// Longest payload of a request or an answer, in bytes.
    pub payload_bytes_max: u64,
    /// Most calls that wait until they can be sent.
    pub waiting_max: u32,
    /// Their payloads together, in bytes. One call alone may have more.
    pub waiting_bytes_max: u64,
    /// From the first byte to a complete greeting.
    pub greeting_timeout: Duration,
    /// Longest silence of a peer that owes an answer before it is asked for a sign of life.
    pub ping_interval: Duration,
    /// Longest time that such a sign may take.
    pub ping_timeout: Duration,
    /// Time in which the caller sends nothing, or pings only, after which requests with incomplete payloads are given up,
    /// or the connection where a frame is incomplete. It is looked at once in that time, so it may take twice as long.
    pub stall_timeout: Duration,
    /// Answers that the caller has not taken, in bytes, from which on no further handlers begin for it. What handlers at work
    /// answer comes on top.
    pub answer_bytes_max: u64,
    /// The same with an answer that comes when its handler has returned; beyond that it is dropped. One alone may be longer.
    pub late_answer_bytes_max: u64,
}

/// Bounds on what a worker takes in from all its callers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntakeLimits {
    /// Requests that are not done with.
    pub requests_max: u64,
    /// Their payloads, in bytes.
    pub bytes_max: u64,
    /// Of one caller, requests that it does not wait for: notices, and calls that it has given up.
    pub unawaited_requests_max: u64,
    /// Their payloads, in bytes.
    pub unawaited_bytes_max: u64,
    /// Requests below which a caller is read when there is no room for others.
    pub reserved_requests: u64,
    /// Their payloads, in bytes.
    pub reserved_bytes: u64,
    /// Answers that callers have not taken, in bytes, from which on no handlers begin for callers that have some.
    pub answer_bytes_max: u64,
    /// The same with an answer that comes when its handler has returned; beyond that it is dropped.
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

/// Longest text of a handler that failed, in bytes. A longer one is cut, and says so.
pub const FAILURE_TEXT_BYTES_MAX: usize = 16 * 1024;
const _: () = assert!(FAILURE_TEXT_BYTES_MAX as u64 <= RPC_FRAME.value_bytes_max);
