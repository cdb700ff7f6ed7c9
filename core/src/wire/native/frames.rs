//! Every kind of frame: number, name, size class and fields, each said once.

use super::fault::Fault;
use super::field::{Body, BodyError, Field, List, OrZero};
use super::record::{BarrierEnd, Change, Found, Member, Participants, Terms, Why};
use crate::limits::FrameLimits;
use crate::store::op::{Key, Keys, Pairs};
use crate::store::txn::{Compare, Write};
use crate::wire::sink::Sink;

/// How long a body of a kind may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// At most [`SMALL_BYTES_MAX`].
    Small,
    /// Two keys and two values, and what stands beside them.
    Value,
    /// As long as a frame may be.
    Frame,
}

/// Longest body of a kind that carries neither values nor lists, in bytes. Kinds that nobody knows have this limit.
pub const SMALL_BYTES_MAX: u64 = 64 * 1024;

impl Size {
    /// Longest body, in bytes.
    #[must_use]
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

/// A frame without its header.
pub trait Message {
    /// The number of its kind.
    fn kind(&self) -> u16;

    /// Writes its fields.
    fn write_body(&self, out: &mut impl Sink);
}

macro_rules! frames {
    (
        $(#[$doc:meta])* $name:ident<'a> {
            $($(#[$kind_doc:meta])* $kind:literal $size:ident $variant:ident { $($field:ident: $type:ty),* })*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the fields are named and told of as in docs/protocol/native.md")]
        pub enum $name<'a> {
            $($(#[$kind_doc])* $variant { $($field: $type),* },)*
        }

        impl<'a> $name<'a> {
            /// Number, name, and names of the fields of each kind, in the order of the numbers.
            pub const KINDS: &'static [(u16, &'static str, &'static [&'static str])] =
                &[$(($kind, stringify!($variant), &[$(stringify!($field)),*])),*];

            /// How long a body of this kind may be; `None` when the kind is not known.
            #[must_use]
            pub const fn size_of(kind: u16) -> Option<Size> {
                match kind {
                    $($kind => Some(Size::$size),)*
                    _ => None,
                }
            }

            /// Reads the body of a frame of this kind; `None` when the kind is not known. What the body holds beyond
            /// the fields that we know is passed over.
            ///
            /// # Errors
            /// What is wrong with the body.
            pub fn parse(kind: u16, bytes: &'a [u8], limits: &'a FrameLimits) -> Result<Option<Self>, BodyError> {
                #[allow(unused_mut, unused_variables, reason = "some kinds have no fields")]
                let mut body = Body::new(bytes, limits);
                Self::read_kind(kind, &mut body)
            }

            #[allow(unused_variables, reason = "some kinds have no fields")]
            fn read_kind(kind: u16, body: &mut Body<'a>) -> Result<Option<Self>, BodyError> {
                Ok(Some(match kind {
                    $($kind => Self::$variant { $($field: Field::read(body)?),* },)*
                    _ => return Ok(None),
                }))
            }
        }

        impl Message for $name<'_> {
            fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }

            #[allow(unused_variables, reason = "some kinds have no fields")]
            fn write_body(&self, out: &mut impl Sink) {
                match self {
                    $(Self::$variant { $($field),* } => { $($field.write(out);)* })*
                }
            }
        }
    };
}

frames! {
    /// What a client sends.
    ClientFrame<'a> {
        /// Opens a session or takes one up again.
        0x0001 Small Hello {
            version_min: u16, version_max: u16, incarnation: u64, session: u64, token: [u8; 16], grace_ms: u32,
            heartbeat_ms: u32, heartbeats_missed_max: u32, node: &'a [u8], auth: &'a [u8]
        }
        /// Says that the client lives, and asks whether the server does.
        0x0002 Small Heartbeat { nonce: u64 }
        /// Says no more than its header does: what was received.
        0x0003 Small Acknowledge {}
        /// Ends the session.
        0x0004 Small Bye {}
        /// Ends a request that is pending.
        0x0005 Small Cancel { request: u64 }

        /// Stores a value.
        0x0010 Value Set { key: Key<'a>, value: &'a [u8] }
        /// Stores a value if the present one is as expected.
        0x0011 Value CompareSet { key: Key<'a>, expected: &'a [u8], desired: &'a [u8] }
        /// Reads a value, when there is one or at the deadline.
        0x0012 Small Get { timeout_ms: u64, key: Key<'a> }
        /// Adds to a number.
        0x0013 Small Add { key: Key<'a>, delta: i64 }
        /// Asks whether all keys are there.
        0x0014 Frame Check { keys: Keys<'a> }
        /// Waits until all keys have been there, or the deadline.
        0x0015 Frame Wait { timeout_ms: u64, keys: Keys<'a> }
        /// Counts the keys.
        0x0016 Small NumKeys {}
        /// Removes a key.
        0x0017 Small Delete { key: Key<'a> }
        /// Adds bytes behind a value.
        0x0018 Value Append { key: Key<'a>, value: &'a [u8] }
        /// Reads several values, when all are there or at the deadline.
        0x0019 Frame MultiGet { timeout_ms: u64, keys: Keys<'a> }
        /// Stores several values in one turn.
        0x001a Frame MultiSet { pairs: Pairs<'a> }
        /// Puts an item at the end of a queue.
        0x001b Value QueuePush { key: Key<'a>, value: &'a [u8] }
        /// Takes the first item of a queue, when there is one or at the deadline.
        0x001c Small QueuePop { timeout_ms: u64, key: Key<'a> }
        /// Counts the items of a queue.
        0x001d Small QueueLen { key: Key<'a> }
        /// Lists keys beneath a prefix, behind another one.
        0x001e Small ListKeys { prefix: Key<'a>, after: Key<'a>, count_max: u32 }
        /// Removes all keys beneath a prefix.
        0x001f Small DeletePrefix { prefix: Key<'a> }
        /// Changes several keys, if all conditions hold; several others, if not.
        0x0020 Frame Txn { compares: List<'a, Compare<'a>>, then: List<'a, Write<'a>>, otherwise: List<'a, Write<'a>> }
        /// Several requests in one turn, each answered for itself.
        0x0021 Frame Batch { requests: List<'a, Batched<ClientFrame<'a>>> }
        /// Tells of each change of a key.
        0x0022 Small WatchKey { key: Key<'a>, from_revision: u64 }
        /// Tells of each change of the keys beneath a prefix.
        0x0023 Small WatchPrefix { prefix: Key<'a>, from_revision: u64 }
        /// Makes a lease that ends with its session, or with its time.
        0x0024 Small LeaseGrant { ttl_ms: u64 }
        /// Lets keys vanish with a lease.
        0x0025 Frame LeaseAttach { lease: u64, keys: Keys<'a> }
        /// Gives a lease its whole time again.
        0x0026 Small LeaseRenew { lease: u64 }
        /// Ends a lease, and removes its keys.
        0x0027 Small LeaseRevoke { lease: u64 }

        /// Arrives at a barrier.
        0x0030 Frame Barrier {
            key: Key<'a>, generation: u64, name: &'a [u8], timeout_ms: u64, participants: Participants<'a>
        }
        /// Ends a barrier for all who wait at it.
        0x0031 Small BarrierCancel { key: Key<'a>, name: &'a [u8] }

        /// Takes part in the next round of a run.
        0x0040 Value Join {
            run_id: Key<'a>, node: &'a [u8], address: &'a [u8], local_world_size: u32, node_rank: i32,
            join_timeout_ms: u64, terms: Terms<'a>, labels: Pairs<'a>, round_min: OrZero
        }
        /// Is at hand for a run, and disturbs nobody.
        0x0041 Value Standby {
            run_id: Key<'a>, node: &'a [u8], address: &'a [u8], local_world_size: u32, node_rank: i32,
            join_timeout_ms: u64, terms: Terms<'a>, labels: Pairs<'a>, round_min: OrZero
        }
        /// Leaves a run; the run goes on.
        0x0042 Small Leave { run_id: Key<'a> }
        /// Closes a run for good.
        0x0043 Small Close { run_id: Key<'a> }
        /// Lists members of a round.
        0x0044 Small Members { run_id: Key<'a>, round: u64, first_node_rank: u32, count_max: u32 }
        /// Asks how a run stands.
        0x0045 Small RunInfo { run_id: Key<'a> }
        /// Tells all nodes of a run why the job has failed, and closes it for good.
        0x0046 Small Fail { run_id: Key<'a>, message: &'a [u8] }
    }
}

frames! {
    /// What a server sends.
    ServerFrame<'a> {
        /// The session is open.
        0x8001 Small Welcome {
            version: u16, incarnation: u64, session: u64, token: [u8; 16], resumed: bool, request_last: u64,
            grace_ms: u32, heartbeat_ms: u32, heartbeats_missed_max: u32, window_frames: u32, window_bytes: u64,
            key_bytes_max: u64, value_bytes_max: u64, list_max: u64, frame_bytes_max: u64
        }
        /// Answers a heartbeat.
        0x8002 Small HeartbeatEcho { nonce: u64 }
        /// The session is over; the connection closes.
        0x8003 Small SessionOver { why: Why }

        /// It is done, and the store stands at this revision.
        0x8010 Small Done { revision: u64 }
        /// A number.
        0x8011 Small Number { number: i64, revision: u64 }
        /// A value and the revision at which it last changed.
        0x8012 Frame Value { revision: u64, value: Option<&'a [u8]> }
        /// Values in the order of their keys.
        0x8013 Frame Values { values: List<'a, Found<'a>> }
        /// Whether it holds.
        0x8014 Small Outcome { holds: bool, revision: u64 }
        /// Keys in byte order, and whether more follow.
        0x8015 Frame KeyList { more: bool, keys: Keys<'a> }
        /// The answers to a batch, in order.
        0x8016 Frame BatchDone { answers: List<'a, Batched<ServerFrame<'a>>> }
        /// An item, and how many were in the queue before.
        0x8017 Value Popped { length_before: u64, item: Option<&'a [u8]> }
        /// How a generation of a barrier ended.
        0x8018 Frame BarrierOver { generation: u64, end: BarrierEnd<'a> }
        /// The round is complete.
        0x8019 Value Round {
            run_id: Key<'a>, round: u64, node_rank: u32, nodes: u32, rank_first: u64, world_size: u64,
            leader: &'a [u8], namespace: Key<'a>
        }
        /// Members of a round, from `first_node_rank` on.
        0x801a Frame MemberList { round: u64, nodes: u32, members: List<'a, Member<'a>> }
        /// How a run stands.
        0x801b Small RunState { round: u64, complete: bool, closed: bool, nodes: u32, nodes_waiting: u32, nodes_standby: u32 }
        /// Keys beneath a prefix were removed, and others stay, which are of rounds that are over.
        0x801c Small PrefixRemoved { removed: u64, left: u64, revision: u64 }
        /// The request failed.
        0x80ff Small Error { fault: Fault<'a> }

        /// Changes that a watch tells of.
        0xc001 Frame Changed { changes: List<'a, Change<'a>> }
        /// A watch tells of nothing more.
        0xc002 Small WatchOver { why: Why, oldest: u64 }
        /// A lease has ended, and its keys are gone.
        0xc003 Small LeaseOver { lease: u64, why: Why }
        /// A participant of the round died.
        0xc010 Value PeerDied { run_id: Key<'a>, round: u64, node_rank: u32, node: &'a [u8], why: Why }
        /// The round is over.
        0xc011 Small RoundOver { run_id: Key<'a>, round: u64, why: Why }
        /// So many nodes wait for the next round.
        0xc012 Small NodesWaiting { run_id: Key<'a>, nodes: u32 }
        /// The run is closed.
        0xc013 Value RunClosed { run_id: Key<'a>, by: &'a [u8] }
        /// The node has a seat in the next round, or stands by behind so many others.
        0xc014 Small Placed { run_id: Key<'a>, seated: bool, ahead: u32 }
        /// The next round was formed without the node; it is in the run no more.
        0xc015 Small Excluded { run_id: Key<'a>, round: u64 }
        /// Another session joined under the node's name; it is in the run no more, and must not come back.
        0xc016 Small Replaced { run_id: Key<'a>, session: u64 }
        /// A node has said that the job has failed.
        0xc017 Value JobFailed { run_id: Key<'a>, message: &'a [u8] }
    }
}

impl ClientFrame<'_> {
    /// Whether a request of this kind may stand in a batch: a store operation that never waits.
    #[must_use]
    pub const fn is_batchable(kind: u16) -> bool {
        matches!(
            kind,
            0x0010 | 0x0011 | 0x0013 | 0x0014 | 0x0016..=0x0018 | 0x001a | 0x001b | 0x001d | 0x001f
        )
    }
}

impl ServerFrame<'_> {
    /// Whether frames of this kind are numbered, kept and sent again: all that answer a request or push an event. The
    /// others speak of the connection.
    #[must_use]
    pub const fn is_numbered(kind: u16) -> bool {
        !matches!(kind, 0x8001..=0x800f)
    }

    /// Whether an answer about each key or request of another frame tells of all of them, and of no others.
    #[must_use]
    pub const fn tells_of_all(&self, request: &ClientFrame<'_>) -> bool {
        match (self, request) {
            (Self::Values { values }, ClientFrame::MultiGet { keys, .. }) => values.len() == keys.len(),
            (Self::BatchDone { answers }, ClientFrame::Batch { requests }) => answers.len() == requests.len(),
            _ => true,
        }
    }
}

/// A frame within a frame: its kind stands before its fields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batched<F>(pub F);

macro_rules! batched {
    ($name:ident, $allowed:expr) => {
        impl<'a> Field<'a> for Batched<$name<'a>> {
            fn write(&self, out: &mut impl Sink) {
                self.0.kind().write(out);
                self.0.write_body(out);
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                let kind = u16::read(body)?;
                let meaningless = BodyError::Meaningless(u64::from(kind));
                // Asked before the fields are read, so that frames never nest deeper.
                if !$allowed(kind) {
                    return Err(meaningless);
                }
                $name::read_kind(kind, body)?.map(Self).ok_or(meaningless)
            }
        }
    };
}
batched!(ClientFrame, ClientFrame::is_batchable);
batched!(ServerFrame, |kind| matches!(kind, 0x8010 | 0x8011 | 0x8012 | 0x8014 | 0x80ff));
