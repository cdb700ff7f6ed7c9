//! All kinds of frames: number, name, size class and fields, each defined once.

use super::fault::Fault;
use super::field::{Body, BodyError, Field, List};
use super::record::{BarrierEnd, Change, Entry, Found, Member, Participants, SessionEntry, Why};
use crate::limits::FrameLimits;
use crate::store::op::{Key, Keys, Pairs};
use crate::store::txn::{Compare, Write};
use crate::store::value_ref::ValueRef;
use crate::wire::message::{Message, define_frames};
use crate::wire::sink::Sink;

/// Size class of the body of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// At most [`SMALL_BYTES_MAX`].
    Small,
    /// At most two keys, two values and [`SMALL_BYTES_MAX`].
    Value,
    /// At most the maximum length of a frame.
    Frame,
}

/// Maximum body of a kind without values and lists, in bytes. It is also the limit of unknown kinds.
pub const SMALL_BYTES_MAX: u64 = 64 * 1024;

impl Size {
    /// Returns the maximum body, in bytes.
    pub const fn bytes_max(self, limits: &FrameLimits) -> u64 {
        let frame = limits.frame_bytes_max as u64;
        let wanted = match self {
            Self::Small => SMALL_BYTES_MAX,
            Self::Value => SMALL_BYTES_MAX
                .saturating_add(limits.key_bytes_max.saturating_mul(2))
                .saturating_add(limits.value_bytes_max.saturating_mul(2)),
            Self::Frame => frame,
        };
        if wanted < frame { wanted } else { frame }
    }
}

// Requests in a batch are store operations that never wait.
define_frames! {
    /// Frame from a client.
    ClientFrame<'a> {
        /// Opens or resumes a session.
        0x0001 Small Hello {
            version_min: u16, version_max: u16, incarnation: u64, session: u64, token: [u8; 16], grace_ms: u32,
            heartbeat_ms: u32, heartbeats_missed_max: u32, node: &'a [u8], auth: &'a [u8]
        }
        /// Shows that the client is alive, and requests an echo from the server.
        0x0002 Small Heartbeat { nonce: u64 }
        /// Only acknowledges received frames, in its header.
        0x0003 Small Acknowledge {}
        /// Ends the session.
        0x0004 Small Bye {}
        /// Cancels a pending request.
        0x0005 Small Cancel { request: u64 }
        /// Ends the session of a node that leaves its round with its work undone.
        0x0006 Small Abandon {}
        /// Lists the sessions that follow another one.
        0x0007 Small Sessions { after: u64, count_max: u32 }
        /// Ends another session.
        0x0008 Small EndSession { session: u64 }

        /// Stores a value.
        0x0010 Value Set { key: Key<'a>, value: &'a [u8] } batchable
        /// Stores a value if the current one is as expected.
        0x0011 Value CompareSet { key: Key<'a>, expected: &'a [u8], desired: &'a [u8] } batchable
        /// Reads a value, as soon as there is one, or at the deadline.
        0x0012 Small Get { timeout_ms: u64, key: Key<'a> }
        /// Adds to a number.
        0x0013 Small Add { key: Key<'a>, delta: i64 } batchable
        /// Checks whether all keys exist.
        0x0014 Frame Check { keys: Keys<'a> } batchable
        /// Waits until all keys have existed, or the deadline passes.
        0x0015 Frame Wait { timeout_ms: u64, keys: Keys<'a> }
        /// Counts the keys.
        0x0016 Small NumKeys {} batchable
        /// Removes a key.
        0x0017 Small Delete { key: Key<'a> } batchable
        /// Appends bytes to a value.
        0x0018 Value Append { key: Key<'a>, value: &'a [u8] } batchable
        /// Reads several values, as soon as all exist, or at the deadline.
        0x0019 Frame MultiGet { timeout_ms: u64, keys: Keys<'a> }
        /// Stores several values atomically.
        0x001a Frame MultiSet { pairs: Pairs<'a> } batchable
        /// Appends an item to a queue.
        0x001b Value QueuePush { key: Key<'a>, value: &'a [u8] } batchable
        /// Removes the first item of a queue, as soon as there is one, or at the deadline.
        0x001c Small QueuePop { timeout_ms: u64, key: Key<'a> }
        /// Counts the items of a queue.
        0x001d Small QueueLen { key: Key<'a> } batchable
        /// Lists the keys with a prefix that follow another key.
        0x001e Small ListKeys { prefix: Key<'a>, after: Key<'a>, count_max: u32 }
        /// Removes all keys with a prefix.
        0x001f Small DeletePrefix { prefix: Key<'a> } batchable
        /// Applies a list of writes if all conditions hold, or else another list.
        0x0020 Frame Txn { compares: List<'a, Compare<'a>>, then: List<'a, Write<'a>>, otherwise: List<'a, Write<'a>> }
        /// Several requests that are applied together, each with its own answer.
        0x0021 Frame Batch { requests: List<'a, Batched<ClientFrame<'a>>> }
        /// Watches a key.
        0x0022 Small WatchKey { key: Key<'a>, from_revision: u64 }
        /// Watches the keys with a prefix.
        0x0023 Small WatchPrefix { prefix: Key<'a>, from_revision: u64 }
        /// Creates a lease that ends with its session, or when it expires.
        0x0024 Small LeaseGrant { ttl_ms: u64 }
        /// Attaches keys to a lease, which are removed when it ends.
        0x0025 Frame LeaseAttach { lease: u64, keys: Keys<'a> }
        /// Restarts the time to live of a lease.
        0x0026 Small LeaseRenew { lease: u64 }
        /// Ends a lease, and removes its keys.
        0x0027 Small LeaseRevoke { lease: u64 }

        /// Arrives at a barrier.
        0x0030 Frame Barrier {
            key: Key<'a>, generation: u64, name: &'a [u8], timeout_ms: u64, participants: Participants<'a>
        }
        /// Cancels a barrier for all waiting participants.
        0x0031 Small BarrierCancel { key: Key<'a>, name: &'a [u8] }

        /// Joins the next round of a run.
        0x0040 Value Join { entry: Entry<'a> }
        /// Registers as a standby node of a run, without causing a new round.
        0x0041 Value Standby { entry: Entry<'a> }
        /// Leaves a run, which continues.
        0x0042 Small Leave { run_id: Key<'a> }
        /// Closes a run permanently.
        0x0043 Small Close { run_id: Key<'a> }
        /// Lists the members of a round.
        0x0044 Small Members { run_id: Key<'a>, round: u64, first_node_rank: u32, count_max: u32 }
        /// Queries the state of a run.
        0x0045 Small RunInfo { run_id: Key<'a> }
        /// Reports a failure of the job to all nodes of a run, and closes the run permanently.
        0x0046 Small Fail { run_id: Key<'a>, message: &'a [u8] }
    }
}

define_frames! {
    /// Frame from a server.
    ServerFrame<'a> {
        /// The session is open.
        0x8001 Small Welcome {
            version: u16, incarnation: u64, session: u64, token: [u8; 16], resumed: bool, request_last: u64,
            grace_ms: u32, heartbeat_ms: u32, heartbeats_missed_max: u32, window_frames: u32, window_bytes: u64,
            key_bytes_max: u64, value_bytes_max: u64, list_max: u64, frame_bytes_max: u64
        }
        /// Answers a heartbeat.
        0x8002 Small HeartbeatEcho { nonce: u64 }
        /// The session has ended; the server closes the connection.
        0x8003 Small SessionOver { why: Why }

        /// The server asks the client to prove its token, with this nonce.
        0x8004 Small Challenge { nonce: [u8; 32] }
        /// The server proves that it knows the client's token. WELCOME follows.
        0x8005 Small Proof { proof: [u8; 32] }

        /// The request was applied; the revision of the store.
        0x8010 Small Done { revision: u64 } batchable
        /// A number.
        0x8011 Small Number { number: i64, revision: u64 } batchable
        /// A value and the revision at which it last changed.
        0x8012 Frame Value { revision: u64, value: Option<ValueRef<'a>> } batchable
        /// Values in the order of their keys.
        0x8013 Frame Values { values: List<'a, Found<'a>> }
        /// Whether the condition of the request holds.
        0x8014 Small Outcome { holds: bool, revision: u64 } batchable
        /// Keys in byte order, and whether more follow.
        0x8015 Frame KeyList { more: bool, keys: Keys<'a> }
        /// The answers to a batch, in order.
        0x8016 Frame BatchDone { answers: List<'a, Batched<ServerFrame<'a>>> }
        /// An item, and the length of the queue before.
        0x8017 Value Popped { length_before: u64, item: Option<ValueRef<'a>> }
        /// How a generation of a barrier ended.
        0x8018 Frame BarrierOver { generation: u64, end: BarrierEnd<'a> }
        /// The round is complete.
        0x8019 Value Round {
            run_id: Key<'a>, round: u64, node_rank: u32, nodes: u32, rank_first: u64, world_size: u64,
            leader: &'a [u8], namespace: Key<'a>
        }
        /// Members of a round of `nodes` nodes, from `first_node_rank` on, without those that the server has forgotten.
        0x801a Frame MemberList { round: u64, nodes: u32, members: List<'a, Member<'a>> }
        /// The state of a run.
        0x801b Small RunState { round: u64, complete: bool, closed: bool, nodes: u32, nodes_waiting: u32, nodes_standby: u32 }
        /// Keys with a prefix were removed. `left` keys stay, because they belong to rounds that have ended.
        0x801c Small PrefixRemoved { removed: u64, left: u64, revision: u64 }
        /// Sessions in ascending order, and whether more follow.
        0x801d Frame SessionList { more: bool, sessions: List<'a, SessionEntry<'a>> }
        /// The request failed.
        0x80ff Small Error { fault: Fault<'a> } batchable

        /// Changes that a watch reports.
        0xc001 Frame Changed { changes: List<'a, Change<'a>> }
        /// A watch has ended.
        0xc002 Small WatchOver { why: Why, oldest: u64 }
        /// A lease has ended, and its keys were removed.
        0xc003 Small LeaseOver { lease: u64, why: Why }
        /// A participant of the round died.
        0xc010 Value PeerDied { run_id: Key<'a>, round: u64, node_rank: u32, node: &'a [u8], why: Why }
        /// The round has ended.
        0xc011 Small RoundOver { run_id: Key<'a>, round: u64, why: Why }
        /// The number of nodes that wait for the next round.
        0xc012 Small NodesWaiting { run_id: Key<'a>, nodes: u32 }
        /// The run is closed.
        0xc013 Value RunClosed { run_id: Key<'a>, by: &'a [u8] }
        /// The position of the node: it takes part in the next round, or is on standby with `ahead` nodes before
        /// it.
        0xc014 Small Placed { run_id: Key<'a>, is_participant: bool, ahead: u32 }
        /// The next round was formed without the node, which is no longer in the run.
        0xc015 Small Excluded { run_id: Key<'a>, round: u64 }
        /// Another session has joined under the node's name. The node is no longer in the run, and must not rejoin.
        0xc016 Small Replaced { run_id: Key<'a>, session: u64 }
        /// A node has reported that the job has failed.
        0xc017 Value JobFailed { run_id: Key<'a>, message: &'a [u8] }
    }
}

impl ClientFrame<'_> {
    /// Returns this HELLO with another field `auth`. Other frames stay as they are.
    pub fn with_auth<'b>(&self, field: &'b [u8]) -> ClientFrame<'b>
    where
        Self: 'b,
    {
        let mut frame: ClientFrame<'b> = *self;
        if let ClientFrame::Hello { auth, .. } = &mut frame {
            *auth = field;
        }
        frame
    }
}

impl ServerFrame<'_> {
    /// Returns whether frames of this kind have a sequence number, and are kept and resent. This holds for all
    /// answers and pushes. The other kinds concern the connection.
    pub const fn is_numbered(kind: u16) -> bool {
        !matches!(kind, 0x8001..=0x800f)
    }
}

/// Frame within a frame: its kind, then its fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batched<F>(pub F);

macro_rules! batched {
    ($name:ident) => {
        impl<'a> Field<'a> for Batched<$name<'a>> {
            fn write(&self, out: &mut dyn Sink) {
                self.0.kind().write(out);
                self.0.write_body(out);
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                let kind = u16::read(body)?;
                let meaningless = BodyError::Meaningless(u64::from(kind));
                // Checked before the fields are read, so that frames are never nested deeper.
                if !$name::is_batchable(kind) {
                    return Err(meaningless);
                }
                $name::read_kind(kind, body)?.map(Self).ok_or(meaningless)
            }
        }
    };
}
batched!(ClientFrame);
batched!(ServerFrame);
