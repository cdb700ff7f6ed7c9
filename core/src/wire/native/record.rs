//! What stands in the lists of a body, and the fields that are a choice.

use super::field::{Body, BodyError, Field};
use crate::store::op::Key;
use crate::store::txn::{Compare, Condition, Write};
use crate::wire::choice::open_choice;
use crate::wire::sink::Sink;

open_choice! {
    /// Why something ended: a session, a participant, a round, a lease, a watch.
    Why {
        /// It asked to.
        1 Left: "left",
        /// The connection ended and the grace passed.
        2 Connection: "the connection ended",
        /// Heartbeats were missed.
        3 Heartbeat: "heartbeats were missed",
        /// The kernel gave the host up.
        4 HostSilent: "the host fell silent",
        /// The server stopped.
        5 ServerStopped: "the server stopped",
        /// Its deadline passed.
        6 Deadline: "the deadline passed",
        /// Somebody cancelled it.
        7 Cancelled: "cancelled",
        /// Another connection took the session over.
        8 Superseded: "another connection took the session over",
        /// The peer broke the protocol.
        9 Protocol: "the protocol was broken",
        /// A limit was reached.
        10 Limit: "a limit was reached",
        /// The run was closed.
        11 Closed: "the run was closed",
        /// None of the round's nodes is in it any more.
        12 Deserted: "none of its nodes is in it any more",
        /// Fewer nodes are left in the round than it needs to go on.
        13 TooFewNodes: "fewer nodes are left than it needs to go on",
        /// The history does not reach back that far any more.
        14 Compacted: "the history does not reach back that far",
        /// It read nothing of what it was sent.
        15 Stalled: "it stopped reading",
        /// Another one joined under its name.
        16 Replaced: "another one joined under its name",
        /// It wanted another round, and there are no more.
        17 Refused: "it wanted another round, and the run is closed",
        /// It wanted another round, and left or ran out of time before there was one.
        18 GaveUp: "it wanted another round, and gave that up",
    }
}

/// Whom a barrier waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Participants<'a> {
    /// So many, whoever they are.
    Count(u32),
    /// These, by name.
    Names(crate::store::op::Keys<'a>),
}

impl<'a> Field<'a> for Participants<'a> {
    fn write(&self, out: &mut impl Sink) {
        match self {
            Self::Count(count) => {
                0u8.write(out);
                count.write(out);
            }
            Self::Names(names) => {
                1u8.write(out);
                names.write(out);
            }
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        match u8::read(body)? {
            0 => Ok(Self::Count(u32::read(body)?)),
            1 => Ok(Self::Names(Field::read(body)?)),
            other => Err(BodyError::Meaningless(u64::from(other))),
        }
    }
}

/// How a generation of a barrier ended.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant tells of its fields")]
pub enum BarrierEnd<'a> {
    /// All were there.
    Released,
    /// `participant`, who had arrived or was listed, died.
    Broken { participant: &'a [u8], why: Why },
    /// The deadline passed. `absent_count` were missing; those of them that are known by name are `absent`.
    TimedOut { absent_count: u32, absent: crate::store::op::Keys<'a> },
    /// `by` cancelled it.
    Cancelled { by: &'a [u8] },
}

impl<'a> Field<'a> for BarrierEnd<'a> {
    fn write(&self, out: &mut impl Sink) {
        match self {
            Self::Released => 0u8.write(out),
            Self::Broken { participant, why } => {
                1u8.write(out);
                participant.write(out);
                why.write(out);
            }
            Self::TimedOut { absent_count, absent } => {
                2u8.write(out);
                absent_count.write(out);
                absent.write(out);
            }
            Self::Cancelled { by } => {
                3u8.write(out);
                by.write(out);
            }
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(match u8::read(body)? {
            0 => Self::Released,
            1 => Self::Broken { participant: Field::read(body)?, why: Field::read(body)? },
            2 => Self::TimedOut { absent_count: Field::read(body)?, absent: Field::read(body)? },
            3 => Self::Cancelled { by: Field::read(body)? },
            other => return Err(BodyError::Meaningless(u64::from(other))),
        })
    }
}

impl<'a> Field<'a> for Compare<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.key.write(out);
        match self.condition {
            Condition::Exists => 0u8.write(out),
            Condition::Absent => 1u8.write(out),
            Condition::Revision(revision) => {
                2u8.write(out);
                revision.write(out);
            }
            Condition::Value(value) => {
                3u8.write(out);
                value.write(out);
            }
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        let key = Field::read(body)?;
        let condition = match u8::read(body)? {
            0 => Condition::Exists,
            1 => Condition::Absent,
            2 => Condition::Revision(Field::read(body)?),
            3 => Condition::Value(Field::read(body)?),
            other => return Err(BodyError::Meaningless(u64::from(other))),
        };
        Ok(Self { key, condition })
    }
}

impl<'a> Field<'a> for Write<'a> {
    fn write(&self, out: &mut impl Sink) {
        match self {
            Self::Set { key, value } => {
                0u8.write(out);
                key.write(out);
                value.write(out);
            }
            Self::Delete { key } => {
                1u8.write(out);
                key.write(out);
            }
            Self::DeletePrefix { prefix } => {
                2u8.write(out);
                Key::raw(prefix).write(out);
            }
            Self::Add { key, delta } => {
                3u8.write(out);
                key.write(out);
                delta.write(out);
            }
            Self::Append { key, value } => {
                4u8.write(out);
                key.write(out);
                value.write(out);
            }
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(match u8::read(body)? {
            0 => Self::Set { key: Field::read(body)?, value: Field::read(body)? },
            1 => Self::Delete { key: Field::read(body)? },
            2 => Self::DeletePrefix { prefix: Key::read(body)?.name() },
            3 => Self::Add { key: Field::read(body)?, delta: Field::read(body)? },
            4 => Self::Append { key: Field::read(body)?, value: Field::read(body)? },
            other => return Err(BodyError::Meaningless(u64::from(other))),
        })
    }
}

/// One value among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The revision at which it last changed; 0 when the key has none.
    pub revision: u64,
    /// The value, if there is one.
    pub value: Option<&'a [u8]>,
}

impl<'a> Field<'a> for Found<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.revision.write(out);
        self.value.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self { revision: Field::read(body)?, value: Field::read(body)? })
    }
}

/// One change that a watch tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The revision that it made.
    pub revision: u64,
    /// Of which key.
    pub key: Key<'a>,
    /// The new value; `None` when the key was removed.
    pub value: Option<&'a [u8]>,
}

impl<'a> Field<'a> for Change<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.revision.write(out);
        self.key.write(out);
        self.value.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self { revision: Field::read(body)?, key: Field::read(body)?, value: Field::read(body)? })
    }
}

/// One member of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its rank among the nodes.
    pub node_rank: u32,
    /// The global rank of its first worker.
    pub rank_first: u64,
    /// Its workers.
    pub local_world_size: u32,
    /// Its name.
    pub node: &'a [u8],
    /// Its address, as it gave it.
    pub address: &'a [u8],
}

impl<'a> Field<'a> for Member<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.node_rank.write(out);
        self.rank_first.write(out);
        self.local_world_size.write(out);
        self.node.write(out);
        self.address.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self {
            node_rank: Field::read(body)?,
            rank_first: Field::read(body)?,
            local_world_size: Field::read(body)?,
            node: Field::read(body)?,
            address: Field::read(body)?,
        })
    }
}

open_choice! {
    /// Who gets which rank.
    RankOrder {
        /// Members keep the rank of the last round; newcomers fill the gaps.
        1 Sticky: "sticky",
        /// By the natural order of the names.
        2 Host: "by host",
        /// By the node rank that each brings along.
        3 NodeRank: "by node rank",
        /// By the value of one label.
        4 Label: "by label",
    }
}

open_choice! {
    /// How long a round that has enough nodes waits for more.
    LastCall {
        /// From the moment at which there were enough.
        1 Fixed: "fixed",
        /// From the last arrival.
        2 FromLastArrival: "from the last arrival",
        /// Not at all.
        3 Off: "off",
    }
}

/// What all nodes of a run must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms<'a> {
    /// Fewest nodes of the first round.
    pub nodes_min: u32,
    /// Most nodes of a round.
    pub nodes_max: u32,
    /// Fewest nodes of later rounds; 0: `nodes_min`.
    pub continue_min: u32,
    /// Whether a round with enough nodes waits for more.
    pub last_call: LastCall,
    /// How long it does, in milliseconds.
    pub last_call_ms: u64,
    /// Whether a round is complete as soon as every living node of the last one is back.
    pub fast_quorum: bool,
    /// Who gets which rank.
    pub rank_order: RankOrder,
    /// Which label [`RankOrder::Label`] goes by.
    pub rank_label: &'a [u8],
    /// So many failures in a row keep a host out; 0: none do.
    pub cool_down_failures: u32,
    /// How long after a failure another one still counts as the next of the row, in milliseconds.
    pub cool_down_window_ms: u64,
    /// How long a host is kept out at first, in milliseconds.
    pub cool_down_pause_ms: u64,
    /// How long at most, in milliseconds.
    pub cool_down_pause_ms_max: u64,
}

impl<'a> Field<'a> for Terms<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.nodes_min.write(out);
        self.nodes_max.write(out);
        self.continue_min.write(out);
        self.last_call.write(out);
        self.last_call_ms.write(out);
        self.fast_quorum.write(out);
        self.rank_order.write(out);
        self.rank_label.write(out);
        self.cool_down_failures.write(out);
        self.cool_down_window_ms.write(out);
        self.cool_down_pause_ms.write(out);
        self.cool_down_pause_ms_max.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self {
            nodes_min: Field::read(body)?,
            nodes_max: Field::read(body)?,
            continue_min: Field::read(body)?,
            last_call: Field::read(body)?,
            last_call_ms: Field::read(body)?,
            fast_quorum: Field::read(body)?,
            rank_order: Field::read(body)?,
            rank_label: Field::read(body)?,
            cool_down_failures: Field::read(body)?,
            cool_down_window_ms: Field::read(body)?,
            cool_down_pause_ms: Field::read(body)?,
            cool_down_pause_ms_max: Field::read(body)?,
        })
    }
}
