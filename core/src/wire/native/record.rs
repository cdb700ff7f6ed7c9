//! Records in the lists of a body, and enumerated fields.

use super::field::{Body, BodyError, Field, records, variants};
use crate::store::op::{Key, Pairs};
use crate::store::txn::{Compare, Condition, Write};
use crate::store::value_ref::ValueRef;
use crate::wire::choice::open_choice;
use crate::wire::sink::Sink;

records! {
    Compare { key, condition }
    Found { revision, value }
    Change { revision, key, value }
    Member { node_rank, rank_first, local_world_size, node, address }
    SessionEntry { session, is_connected, token, node }
    Terms {
        nodes_min, nodes_max, continue_min, last_call, last_call_ms, fast_quorum, rank_order, rank_label,
        cool_down_failures, cool_down_window_ms, cool_down_pause_ms, cool_down_pause_ms_max
    }
}

variants! {
    Participants { 0 Count(count), 1 Names(names), }
    BarrierEnd {
        0 Released,
        1 Broken { participant, why },
        2 TimedOut { absent_count, absent },
        3 Cancelled { by },
    }
    Condition { 0 Exists, 1 Absent, 2 Revision(revision), 3 Value(value), }
    Write {
        0 Set { key, value },
        1 Delete { key },
        2 DeletePrefix { prefix },
        3 Add { key, delta },
        4 Append { key, value },
    }
}

open_choice! {
    /// Reason for the end of a session, a participant, a round, a lease or a watch.
    Why {
        /// It left on request.
        1 Left: "left",
        /// The connection ended, and the grace period passed.
        2 Connection: "the connection ended",
        /// Heartbeats were missed.
        3 Heartbeat: "heartbeats were missed",
        /// The kernel reported the host as unreachable.
        4 HostSilent: "the host fell silent",
        /// The server stopped.
        5 ServerStopped: "the server stopped",
        /// Its deadline passed.
        6 Deadline: "the deadline passed",
        /// It was cancelled.
        7 Cancelled: "cancelled",
        /// Another connection took the session over.
        8 Superseded: "another connection took the session over",
        /// The peer violated the protocol.
        9 Protocol: "the protocol was broken",
        /// A limit was reached.
        10 Limit: "a limit was reached",
        /// The run was closed.
        11 Closed: "the run was closed",
        /// All nodes of the round have left it.
        12 Deserted: "none of its nodes is in it any more",
        /// Fewer nodes are left in the round than it needs to continue.
        13 TooFewNodes: "fewer nodes are left than it needs to go on",
        /// The history no longer reaches back that far.
        14 Compacted: "the history does not reach back that far",
        /// It stopped reading.
        15 Stalled: "it stopped reading",
        /// Another session has joined under its name.
        16 Replaced: "another one joined under its name",
        /// It requested another round, and the run is closed.
        17 Refused: "it wanted another round, and the run is closed",
        /// It requested another round, and left or timed out before there was one.
        18 GaveUp: "it wanted another round, and gave that up",
        /// It was stopped, and said so before it left.
        19 Stopped: "it was stopped before its work was done",
        /// An administrator has ended it.
        20 EndedByAdmin: "an administrator ended it",
    }
}

/// Participants of a barrier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Participants<'a> {
    /// A number of participants, whatever their names.
    Count(u32),
    /// The names of the participants.
    Names(crate::store::op::Keys<'a>),
}

/// End of a generation of a barrier.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variant's documentation covers its fields")]
pub enum BarrierEnd<'a> {
    /// All participants arrived.
    Released,
    /// `participant`, which had arrived or was listed, died.
    Broken { participant: &'a [u8], why: Why },
    /// The deadline passed. `absent_count` participants were missing; `absent` has those that are known by name.
    TimedOut { absent_count: u32, absent: crate::store::op::Keys<'a> },
    /// `by` cancelled it.
    Cancelled { by: &'a [u8] },
}

/// Value of one of several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The revision at which the value last changed; 0 when the key has none.
    pub revision: u64,
    /// The value, if there is one.
    pub value: Option<ValueRef<'a>>,
}

/// Change that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The revision that the change created.
    pub revision: u64,
    /// The key that changed.
    pub key: Key<'a>,
    /// The new value; `None` when the key was removed.
    pub value: Option<ValueRef<'a>>,
}

/// Member of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Rank of the node.
    pub node_rank: u32,
    /// Global rank of its first worker.
    pub rank_first: u64,
    /// Number of its workers.
    pub local_world_size: u32,
    /// Name of the node.
    pub node: &'a [u8],
    /// Address that the node gave.
    pub address: &'a [u8],
}

/// A session, as an administrator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionEntry<'a> {
    /// Its number.
    pub session: u64,
    /// Whether it has a connection.
    pub is_connected: bool,
    /// Name of the client's token; empty if the server asks for none.
    pub token: &'a [u8],
    /// Node name that the client gave.
    pub node: &'a [u8],
}

open_choice! {
    /// Order in which nodes get their ranks.
    RankOrder {
        /// Members keep the rank of the last round; new nodes fill the gaps.
        1 Sticky: "sticky",
        /// By the natural order of the names.
        2 Host: "by host",
        /// By the node rank that each node requests.
        3 NodeRank: "by node rank",
        /// By the value of a label.
        4 Label: "by label",
    }
}

open_choice! {
    /// Start of the time for which a round that has enough nodes waits for more.
    LastCall {
        /// When there are enough nodes.
        1 Fixed: "fixed",
        /// At the last arrival.
        2 FromLastArrival: "from the last arrival",
        /// The round does not wait.
        3 Off: "off",
    }
}

/// Settings on which all nodes of a run must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms<'a> {
    /// Minimum number of nodes of the first round.
    pub nodes_min: u32,
    /// Maximum number of nodes of a round.
    pub nodes_max: u32,
    /// Minimum number of nodes of later rounds; 0: `nodes_min`.
    pub continue_min: u32,
    /// Whether, and from when on, a round with enough nodes waits for more.
    pub last_call: LastCall,
    /// Length of that wait, in milliseconds.
    pub last_call_ms: u64,
    /// Whether a round is complete as soon as every living node of the last round has rejoined.
    pub fast_quorum: bool,
    /// Order of the ranks.
    pub rank_order: RankOrder,
    /// Name of the label for [`RankOrder::Label`].
    pub rank_label: &'a [u8],
    /// Number of consecutive failures after which a host is excluded for a time; 0 disables this.
    pub cool_down_failures: u32,
    /// Maximum time between two consecutive failures, in milliseconds.
    pub cool_down_window_ms: u64,
    /// First exclusion time of a host, in milliseconds.
    pub cool_down_pause_ms: u64,
    /// Maximum exclusion time of a host, in milliseconds.
    pub cool_down_pause_ms_max: u64,
}

/// A node's description of itself in a request to join.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// The run's id.
    pub run_id: &'a [u8],
    /// The node's name.
    pub node: &'a [u8],
    /// Address at which other nodes reach it.
    pub address: &'a [u8],
    /// Number of its workers.
    pub local_world_size: u32,
    /// Node rank that it asks for; -1: any.
    pub node_rank: i32,
    /// Time that it waits for a round, in milliseconds.
    pub join_timeout_ms: u64,
    /// The terms, on which all nodes of the run must agree.
    pub terms: Terms<'a>,
    /// Further properties of the node.
    pub labels: Pairs<'a>,
    /// The lowest number that its round may have, above those of all rounds that its program was in.
    pub round_min: u64,
}

impl<'a> Field<'a> for Entry<'a> {
    fn write(&self, out: &mut dyn Sink) {
        Key::raw(self.run_id).write(out);
        self.node.write(out);
        self.address.write(out);
        self.local_world_size.write(out);
        self.node_rank.write(out);
        self.join_timeout_ms.write(out);
        self.terms.write(out);
        self.labels.write(out);
        self.round_min.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self {
            run_id: Key::read(body)?.name(),
            node: Field::read(body)?,
            address: Field::read(body)?,
            local_world_size: Field::read(body)?,
            node_rank: Field::read(body)?,
            join_timeout_ms: Field::read(body)?,
            terms: Field::read(body)?,
            labels: Field::read(body)?,
            // Clients of earlier releases omit it.
            round_min: if body.rest.is_empty() { 0 } else { Field::read(body)? },
        })
    }
}
