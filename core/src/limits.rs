//! All limits of this crate, in one place. No state machine grows without one of them.

use crate::error::LimitError;
use crate::time::Duration;

/// Maximum key length on the wire, in bytes. Source: c10d protocol, section 4.5 (measured on PyTorch 2.15.0).
pub const KEY_BYTES_MAX: u64 = 8192;
/// Maximum value length in one request, in bytes: 8 MiB. Source: c10d protocol, section 4.5.
pub const VALUE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of keys in one CHECK, WAIT, MULTI_GET or MULTI_SET. Source: c10d protocol, section 4.5.
pub const KEYS_MAX: u64 = 131_072;
/// Maximum length of all keys of one request together, in bytes: 16 MiB. PyTorch has no such limit. A server hashes and
/// compares those of a CHECK in one turn.
pub const ALL_KEY_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of elements of all lists of one native request. Unlike a long list of the c10d protocol, which PyTorch's
/// clients may send, it is served in one turn.
pub const NATIVE_LIST_MAX: usize = 32_768;
/// Maximum length of the body of a frame to a native client, in bytes: 256 MiB. Longer than that of a request, since values
/// grow through Append.
pub const NATIVE_ANSWER_BYTES_MAX: usize = 256 << 20;

/// Limits of one frame, checked on its length fields before its bytes are buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Maximum key length, in bytes.
    pub key_bytes_max: u64,
    /// Maximum value length, in bytes.
    pub value_bytes_max: u64,
    /// Maximum number of keys (or pairs) in one list.
    pub keys_max: u64,
    /// Maximum length of all keys of the frame together, in bytes.
    pub all_key_bytes_max: u64,
    /// Maximum length of a whole frame, in bytes. PyTorch has no such limit, since it applies lists element by
    /// element. This server buffers the whole frame first.
    pub frame_bytes_max: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            key_bytes_max: KEY_BYTES_MAX,
            value_bytes_max: VALUE_BYTES_MAX,
            keys_max: KEYS_MAX,
            all_key_bytes_max: ALL_KEY_BYTES_MAX,
            frame_bytes_max: 256 * 1024 * 1024,
        }
    }
}

impl FrameLimits {
    /// Default limits of the native protocol.
    pub fn native() -> Self {
        Self {
            keys_max: NATIVE_LIST_MAX as u64,
            all_key_bytes_max: 8 << 20,
            frame_bytes_max: 32 << 20,
            ..Self::default()
        }
    }

    /// Checks the number of elements of a list.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub const fn check_count(&self, count: u64) -> Result<(), LimitError> {
        let count_max = self.keys_max;
        if count <= count_max { Ok(()) } else { Err(LimitError::Keys { count, count_max }) }
    }

    /// Checks the next key of a request, of this length. `all_bytes` is the length of all its keys so far.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub const fn check_key(&self, bytes: usize, all_bytes: &mut u64) -> Result<(), LimitError> {
        let bytes = bytes as u64;
        *all_bytes = all_bytes.saturating_add(bytes);
        if bytes > self.key_bytes_max {
            Err(LimitError::Key { bytes, bytes_max: self.key_bytes_max })
        } else if *all_bytes > self.all_key_bytes_max {
            Err(LimitError::KeyBytes { bytes: *all_bytes, bytes_max: self.all_key_bytes_max })
        } else {
            Ok(())
        }
    }
}

/// Charge of a key in addition to its own bytes and those of its value, in bytes: its table entry. Without it, a
/// store of short keys could take many times its limit.
pub const KEY_COST_BYTES: u64 = 128;
/// Charge of a queued item in addition to its bytes, in bytes, so that empty items are not free.
pub const ITEM_COST_BYTES: u64 = 32;

/// Limits of a file store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Maximum size of keys and values together, in bytes, including [`KEY_COST_BYTES`] for each key.
    pub stored_bytes_max: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { stored_bytes_max: 4 << 30 }
    }
}

/// Limits of the contents of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum size of keys (including those that are only waited for, and once more those of leases), values and queued
    /// items together, in bytes, including their charges: [`KEY_COST_BYTES`], [`ITEM_COST_BYTES`].
    pub stored_bytes_max: u64,
    /// Maximum number of keys that are waited for, counted once per wait.
    pub registrations_max: usize,
    /// Maximum number of keys that a `DeletePrefix` within a transaction or a batch removes, because that happens at once.
    pub removed_at_once_max: usize,
    /// Maximum number of pending waits and barriers of one connection. PyTorch's own client never has more than
    /// one.
    pub waits_per_connection_max: usize,
    /// Maximum number of keys that one connection waits for, counted once per wait. Not less than
    /// [`FrameLimits::keys_max`], or a wait for so many keys is refused.
    pub registrations_per_connection_max: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            stored_bytes_max: 4 << 30,
            registrations_max: 1 << 23,
            removed_at_once_max: 1 << 14,
            waits_per_connection_max: 16,
            registrations_per_connection_max: 1 << 17,
        }
    }
}

/// Limits of what the native protocol keeps in addition to the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Maximum number of changes kept for watches.
    pub changes_max: usize,
    /// Maximum size of their keys and values together, in bytes, including the charge of each change.
    pub bytes_max: u64,
    /// Maximum number of watches.
    pub watches_max: usize,
    /// Maximum number of leases.
    pub leases_max: usize,
    /// Maximum number of leased keys.
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

/// Number of copied bytes that count as one unit of work.
pub const COPIED_BYTES_PER_UNIT: u64 = 1024;

/// Limits of the connections of a server that have not greeted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UngreetedLimits {
    /// Maximum number of such connections. A further one takes the place of the oldest one.
    pub count_max: usize,
    /// Time that a connection has for its greeting before another one may take its place. Until then the server accepts
    /// none.
    pub time_min: Duration,
}

impl Default for UngreetedLimits {
    fn default() -> Self {
        Self { count_max: 1 << 14, time_min: Duration::from_secs(1) }
    }
}

/// Sizes of the parts in which the server executes a long list of keys of a c10d request. 0 stands for 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLimits {
    /// Maximum number of keys of a part of a MULTI_SET or WAIT.
    pub keys_max: usize,
    /// Length from which on such a part gets no further keys, in bytes.
    pub bytes_high: usize,
    /// Maximum number of keys of a part of a MULTI_GET. The values of a part are those of one instant.
    pub read_keys_max: usize,
}

impl Default for PartLimits {
    fn default() -> Self {
        Self { keys_max: 256, bytes_high: 1 << 20, read_keys_max: 8192 }
    }
}

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Limits of one c10d request.
    pub c10d_frame: FrameLimits,
    /// Sizes of the parts in which a long one is executed.
    pub c10d_part: PartLimits,
    /// Limits of one native request.
    pub native_frame: FrameLimits,
    /// Limits of the contents of the store.
    pub engine: EngineLimits,
    /// Limits of the sessions of native clients.
    pub session: SessionLimits,
    /// Limits of the watches and leases of native clients.
    pub history: HistoryLimits,
    /// Limits of the barriers of native clients.
    pub barrier: BarrierLimits,
    /// Limits of the rendezvous service.
    pub rendezvous: RendezvousLimits,
    /// Maximum number of concurrent connections.
    pub connections_max: usize,
    /// Limits of the connections that have not greeted. The driver allows them a quarter of the process's descriptors at
    /// most.
    pub ungreeted: UngreetedLimits,
    /// Size of the unsent answers of one connection, in bytes, from which on the server handles no more of its
    /// requests until the peer reads.
    pub unsent_bytes_high: usize,
    /// Maximum length of a single answer, or of a part of that to a long MULTI_GET, in bytes; a request for more ends the
    /// connection.
    pub answer_bytes_max: usize,
    /// Maximum size of the received and unsent bytes of all connections, of what TLS holds for them, and of the memory of
    /// all sessions, together, in bytes. Where it would be exceeded, the server ends the connections and sessions that hold most:
    /// first connections that have not greeted, if they hold more than 1/64 of it together.
    pub buffered_bytes_max: u64,
    /// Maximum work for one input, in units of about 200 ns: a look at one key, or a copy of
    /// [`COPIED_BYTES_PER_UNIT`]. A request, or a part of a long list, is executed as a whole; further requests of its
    /// connection, and what else is left to do, follow in later turns.
    pub work_per_input_max: u64,
    /// Maximum number of conditions and writes of one transaction, which is executed in one turn.
    pub txn_parts_max: usize,
    /// Work above which the further requests of a batch are refused, in the same units. The keys of a CHECK or MULTI_SET count
    /// before it is executed, and other work afterwards. The first request is always executed.
    pub batch_work_max: u64,
    /// Time from accept to a complete greeting.
    pub handshake_timeout: Duration,
    /// Maximum time without input within an incomplete frame.
    pub frame_timeout: Duration,
    /// Maximum time in which a peer with unsent answers reads none of them.
    pub stall_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            c10d_frame: FrameLimits::default(),
            c10d_part: PartLimits::default(),
            native_frame: FrameLimits::native(),
            engine: EngineLimits::default(),
            session: SessionLimits::default(),
            history: HistoryLimits::default(),
            barrier: BarrierLimits::default(),
            rendezvous: RendezvousLimits::default(),
            connections_max: 1 << 20,
            ungreeted: UngreetedLimits::default(),
            unsent_bytes_high: 1 << 20,
            answer_bytes_max: 1 << 30,
            buffered_bytes_max: 2 << 30,
            work_per_input_max: 5000,
            txn_parts_max: 4096,
            batch_work_max: 100_000,
            handshake_timeout: Duration::from_secs(30),
            frame_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(300),
        }
    }
}

/// Charge of a TLS connection in addition to its received and unsent ciphertext, in bytes: its keys and its state.
pub const TLS_COST_BYTES: usize = 16 * 1024;

/// Charge of a waiting request or a watch in addition to the bytes of its keys, in bytes: its table entry.
pub const WAIT_COST_BYTES: u64 = 192;
/// Charge of each key that a request waits for in addition to the bytes of the key, in bytes: its entry at the key.
pub const REGISTRATION_COST_BYTES: u64 = 64;
/// Charge of a frame that is kept for a session in addition to its bytes, in bytes, in the total memory of a
/// server.
pub const KEPT_COST_BYTES: u64 = 64;

/// Charge of a session in addition to twice the bytes of its node's name, in bytes: its table entries.
pub const SESSION_COST_BYTES: u64 = 512;

/// Limits of the sessions of the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum number of concurrent sessions.
    pub sessions_max: usize,
    /// Maximum length of the name of a session's node, in bytes.
    pub node_name_bytes_max: usize,
    /// Maximum length of the body of a frame to a client, in bytes. Clients accept [`NATIVE_ANSWER_BYTES_MAX`].
    pub body_bytes_max: usize,
    /// Maximum number of frames that are kept for one session until its client has received them.
    pub window_frames: u32,
    /// Maximum size of these frames together, in bytes.
    pub window_bytes: u64,
    /// Maximum number of pending requests of one session.
    pub pending_max: usize,
    /// Maximum size of the copied keys that one session's requests wait for, of the names that it watches, of its leases,
    /// of its unfinished jobs and of its node in a run, in bytes, including [`WAIT_COST_BYTES`] for each but the node, and
    /// [`REGISTRATION_COST_BYTES`] for each key that is waited for.
    pub waiting_bytes_max: u64,
    /// Maximum time that a session outlives its connection.
    pub grace_max: Duration,
    /// Minimum heartbeat interval that a client may request.
    pub heartbeat_min: Duration,
    /// Heartbeat interval of clients that request none.
    pub heartbeat_default: Duration,
    /// Maximum heartbeat interval that a client may request.
    pub heartbeat_max: Duration,
    /// Maximum number of heartbeats that may be missed.
    pub heartbeats_missed_max: u32,
    /// Maximum number of ended sessions whose reason is remembered.
    pub remembered_max: usize,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            sessions_max: 1 << 20,
            node_name_bytes_max: 1024,
            body_bytes_max: NATIVE_ANSWER_BYTES_MAX,
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

/// Charge of a barrier in addition to the bytes of its key, and of each remembered end, in bytes: its table entry.
pub const BARRIER_COST_BYTES: u64 = 256;
/// Charge of a participant's name in addition to its bytes, in bytes.
pub const MEMBER_COST_BYTES: u64 = 96;

/// Limits of the barriers of the native protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierLimits {
    /// Maximum number of barriers, including those without waiting participants that are only remembered.
    pub barriers_max: usize,
    /// Maximum number of participants of one barrier.
    pub participants_max: u32,
    /// Maximum number of waiting arrivals, at all barriers together.
    pub arrivals_max: usize,
    /// Maximum length of a name, in bytes.
    pub name_bytes_max: usize,
    /// Maximum size of keys, names and ends together, in bytes, including their charges: [`BARRIER_COST_BYTES`],
    /// [`MEMBER_COST_BYTES`].
    pub stored_bytes_max: u64,
    /// Maximum number of remembered ends of one barrier; 0 counts as 1.
    pub ends_kept_max: usize,
    /// Maximum number of absent participants that one end names; the others are counted.
    pub absent_named_max: usize,
    /// Maximum length of these names together, in bytes: an end is sent to each participant that waits.
    pub absent_named_bytes_max: usize,
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
            absent_named_bytes_max: 8 << 10,
        }
    }
}

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Limits of one request: those of the server.
    pub frame: FrameLimits,
    /// Maximum length of the answer to one request, in bytes. Greater than that of a request, since values grow
    /// through APPEND.
    pub reply_bytes_max: u64,
    /// Maximum number of concurrent connections; fewer than two count as two. Waiting calls may use all but one of
    /// them. The last is reserved for calls that are answered immediately, such as the one that ends the waits.
    pub connections_max: usize,
    /// Maximum number of concurrent operations.
    pub operations_max: usize,
    /// Maximum number of idle connections that are kept.
    pub idle_connections_max: usize,
}

impl ClientLimits {
    /// Maximum number of concurrent connections.
    pub fn connections_max(&self) -> usize {
        self.connections_max.max(2)
    }

    /// Returns the maximum number of connections that waiting calls use.
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

/// Limits of the rendezvous service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Maximum number of remembered run ids. Closed runs count, since a run stays closed for as long as it is
    /// remembered. To make space for a new run, the service forgets the closed run that has been without nodes for
    /// longest, or else the open run that has been without nodes for longest. It refuses a new run only if every
    /// run has a node.
    pub runs_max: usize,
    /// Maximum length of a run id, in bytes.
    pub run_id_bytes_max: usize,
    /// Maximum length of the message with which a node reports a failure of the job, in bytes.
    pub failure_bytes_max: usize,
    /// Maximum number of nodes of one run, including standby nodes.
    pub nodes_per_run_max: usize,
    /// Maximum length of the host part of a node's name, in bytes.
    pub node_name_bytes_max: usize,
    /// Maximum number of labels of one node.
    pub labels_max: usize,
    /// Maximum size of the names and values of one node's labels together, in bytes.
    pub label_bytes_max: usize,
    /// Maximum size of what the service remembers and no session is charged for, in bytes: the runs without nodes, and of
    /// the others the failures of hosts, of 1024 in each run, and the nodes of the last round that are gone. Beyond it,
    /// the service forgets runs without nodes, as for [`Self::runs_max`], but not the one that the input updates: there may
    /// be one more. Then the other runs forget their failed hosts and the nodes that are gone, that with most bytes first;
    /// a run in which these exceed a sixteenth of the limit forgets them before runs without nodes are forgotten.
    pub remembered_bytes_max: usize,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self {
            runs_max: 1 << 16,
            run_id_bytes_max: 1024,
            failure_bytes_max: 1024,
            nodes_per_run_max: 1 << 15,
            node_name_bytes_max: 256,
            labels_max: 32,
            label_bytes_max: 2048,
            remembered_bytes_max: 64 << 20,
        }
    }
}
