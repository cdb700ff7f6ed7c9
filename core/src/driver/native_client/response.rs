//! Responses to the requests of the native protocol, decoded by the operation that was requested.

use super::{Loss, NativeError, OwnedFrame, strip_scope, text_of};
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::node::native_client::Ending;
use crate::prelude::*;
use crate::store::engine::PrefixRemoved;
use crate::store::op::Key;
use crate::wire::native::{BarrierEnd, Batched, ServerFrame, Why};

/// Response to a [`NativeRequest`](super::NativeRequest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeResponse {
    /// The operation is done; it has no result.
    Done,
    /// Keys that were removed under a prefix.
    Removed(PrefixRemoved),
    /// Values in the order of their keys.
    Values(Vec<Versioned>),
    /// Page of keys.
    Page(KeysPage),
    /// Result of a transaction.
    Txn(TxnResult),
    /// Responses to a batch, in order.
    Batch(Vec<BatchAnswer>),
    /// Result of a barrier.
    Barrier(BarrierResult),
    /// Whether any participant waited at the cancelled barrier, or whether there was a session to end.
    Outcome(bool),
    /// The watch has begun, at this revision of the store.
    Watching(u64),
    /// A number: the id of a lease, or how many of its keys were removed.
    Number(i64),
    /// The node is in a round.
    Joined(Joined),
    /// State of the run.
    RunInfo(RunInfo),
    /// Members of a round.
    Members(Vec<MemberInfo>),
    /// Sessions, and whether more follow.
    Sessions(Vec<SessionInfo>, bool),
}

/// Result of a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierResult {
    /// All participants arrived.
    Released {
        /// Generation of the barrier, counted from 1.
        generation: u64,
    },
    /// A participant that had arrived or was awaited died.
    Broken {
        /// Generation of the barrier.
        generation: u64,
        /// Name of the dead participant.
        participant: Box<str>,
        /// How its death was detected.
        why: Why,
    },
    /// The deadline passed.
    TimedOut {
        /// Generation of the barrier.
        generation: u64,
        /// Number of missing participants.
        absent_count: u32,
        /// Names of the missing participants, as far as they are known.
        absent: Vec<Box<str>>,
    },
    /// A participant cancelled the barrier.
    Cancelled {
        /// Generation of the barrier.
        generation: u64,
        /// Name of the participant that cancelled it.
        by: Box<str>,
    },
}

/// Response to one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The request is done.
    Done,
    /// A number.
    Number(i64),
    /// The value, if the key is set.
    Value(Option<Vec<u8>>),
    /// Whether the condition holds.
    Outcome(bool),
    /// This request failed; the others did not.
    Failed(NativeError),
}

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnResult {
    /// Whether all its tests held.
    pub holds: bool,
    /// Revision of the store after it.
    pub revision: u64,
}

/// Value with the revision of its last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// Revision of the store that the last change made; 0: the key is absent.
    pub revision: u64,
    /// Value; empty if the key is absent.
    pub value: Vec<u8>,
}

/// Page of keys in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeysPage {
    /// Keys, without the scope.
    pub keys: Vec<Vec<u8>>,
    /// Whether more keys follow.
    pub more: bool,
}

/// Round that a node has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Number of the round.
    pub round: u64,
    /// Rank of this node among the nodes.
    pub node_rank: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Global rank of this node's first worker.
    pub rank_first: u64,
    /// Number of workers of all nodes.
    pub world_size: u64,
    /// Address of node 0.
    pub leader: Box<[u8]>,
    /// Prefix of the round's keys, as a prefix store is given it.
    pub namespace: Box<[u8]>,
}

/// State of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// Number of the live round, or of the next one.
    pub round: u64,
    /// Whether the round is live.
    pub complete: bool,
    /// Whether the run is closed for good.
    pub closed: bool,
    /// Number of nodes in the round.
    pub nodes: u32,
    /// Number of nodes that wait for the next round.
    pub nodes_waiting: u32,
    /// Number of spares.
    pub nodes_standby: u32,
}

/// Member of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Rank among the nodes.
    pub node_rank: u32,
    /// Global rank of the node's first worker.
    pub rank_first: u64,
    /// Number of the node's workers.
    pub local_world_size: u32,
    /// Name of the node.
    pub node: Box<str>,
    /// Address that the node has published.
    pub address: Box<[u8]>,
}

/// Session of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Its number.
    pub session: u64,
    /// Whether it has a connection.
    pub is_connected: bool,
    /// Name of the client's token; empty if the server asks for none.
    pub auth_token: Box<str>,
    /// Node name that the client gave.
    pub node: Box<str>,
}

/// Request that awaits its response: what decoding the response and describing an error need of it.
#[derive(Debug)]
pub(in crate::driver) struct PendingRequest {
    pub(in crate::driver) operation: Operation,
    /// Keys without the scope: the first one, or all of a batch.
    names: Vec<Box<[u8]>>,
    /// Number of keys that an error counts.
    keys_count: usize,
}

impl PendingRequest {
    pub(super) const fn new(operation: Operation, names: Vec<Box<[u8]>>, keys_count: usize) -> Self {
        Self { operation, names, keys_count }
    }

    /// Replaces the keys that errors name with this one.
    pub(super) fn name(&mut self, key: &[u8]) {
        (self.names, self.keys_count) = (alloc::vec![key.into()], 1);
    }

    /// Returns the first key or the run, if errors name one.
    pub(in crate::driver) fn first_key(&self) -> Option<&[u8]> {
        self.names.first().filter(|_| self.keys_count > 0).map(|name| &**name)
    }

    /// Makes the error of this request in a store with this scope.
    #[cold]
    pub(in crate::driver) fn error(&self, loss: Loss, scope: &[u8], peer: &str) -> NativeError {
        let scope = if self.operation.is_of_the_rendezvous() { b"" } else { scope };
        let first = self.first_key().map(|name| Key::scoped(scope, name));
        let mut error = loss.into_error(self.operation, (first, self.keys_count), peer);
        if self.operation == Operation::Txn {
            // The key is that of the server's message.
            error.call = error.call.without_scope(scope);
        }
        error
    }

    /// Returns the response that the server sent `elapsed` after the request, or the error of the request.
    pub(in crate::driver) fn settle(
        &self,
        answer: Result<OwnedFrame, Loss>,
        elapsed: Duration,
        limits: &FrameLimits,
        (scope, peer): (&[u8], &str),
    ) -> Result<NativeResponse, NativeError> {
        let loss = match answer {
            Ok(answer) => {
                let response = answer.frame(limits).and_then(|frame| self.decode(&frame, scope, peer));
                if let Some(response) = response {
                    return Ok(response);
                }
                let mut loss = Loss::of_wrong_answer(self.operation);
                loss.failure.elapsed = elapsed;
                loss
            }
            // Closing is done when the session is over, whatever the server's last message was.
            Err(loss)
                if self.operation == Operation::Bye && loss.ending.as_deref() == Some(&Ending::Left) =>
            {
                return Ok(NativeResponse::Done);
            }
            Err(loss) => loss,
        };
        Err(self.error(loss, scope, peer))
    }

    /// Converts a response; `None` if it does not fit the operation, or the number of its keys or requests.
    fn decode(&self, frame: &ServerFrame<'_>, scope: &[u8], peer: &str) -> Option<NativeResponse> {
        use Operation as O;
        use ServerFrame as F;
        Some(match (self.operation, *frame) {
            (O::DeletePrefix, F::Number { number, .. }) => {
                let removed = u64::try_from(number).unwrap_or_default();
                NativeResponse::Removed(PrefixRemoved { removed, left: 0 })
            }
            (O::DeletePrefix, F::PrefixRemoved { removed, left, .. }) => {
                NativeResponse::Removed(PrefixRemoved { removed, left })
            }
            (O::MultiGet, F::Values { values }) if values.len() == self.keys_count => {
                let values = values.iter().map(|found| match found.value {
                    Some(value) => Versioned { revision: found.revision, value: value.to_vec() },
                    None => Versioned::default(),
                });
                NativeResponse::Values(values.collect())
            }
            (O::ListKeys, F::KeyList { more, keys }) => {
                let keys = keys.iter().map(|key| strip_scope(scope, &key)).collect();
                NativeResponse::Page(KeysPage { keys, more })
            }
            (O::Txn, F::Outcome { holds, revision }) => NativeResponse::Txn(TxnResult { holds, revision }),
            (O::Batch, F::BatchDone { answers }) if answers.len() == self.names.len() => {
                let answers = answers.iter().enumerate();
                let answers = answers.map(|(at, Batched(answer))| self.decode_part(at, &answer, scope, peer));
                NativeResponse::Batch(answers.collect::<Option<_>>()?)
            }
            (O::NamedBarrier, F::BarrierOver { generation, end }) => {
                NativeResponse::Barrier(barrier_result(generation, end))
            }
            (O::Sessions, F::SessionList { more, sessions }) => {
                let sessions = sessions.iter().map(|entry| SessionInfo {
                    session: entry.session,
                    is_connected: entry.is_connected,
                    auth_token: text_of(entry.token),
                    node: text_of(entry.node),
                });
                NativeResponse::Sessions(sessions.collect(), more)
            }
            (O::BarrierCancel | O::EndSession, F::Outcome { holds, .. }) => NativeResponse::Outcome(holds),
            (O::Watch, F::Done { revision }) => NativeResponse::Watching(revision),
            (O::LeaseGrant | O::LeaseRevoke, F::Number { number, .. }) => NativeResponse::Number(number),
            (
                O::Join | O::Standby,
                F::Round { round, node_rank, nodes, rank_first, world_size, leader, namespace, .. },
            ) => {
                let (leader, namespace) = (leader.into(), namespace.pieces().concat().into());
                let joined = Joined { round, node_rank, nodes, rank_first, world_size, leader, namespace };
                NativeResponse::Joined(joined)
            }
            (O::RunInfo, F::RunState { round, complete, closed, nodes, nodes_waiting, nodes_standby }) => {
                let info = RunInfo { round, complete, closed, nodes, nodes_waiting, nodes_standby };
                NativeResponse::RunInfo(info)
            }
            (O::Members, F::MemberList { members, .. }) => {
                let members = members.iter().map(|member| MemberInfo {
                    node_rank: member.node_rank,
                    rank_first: member.rank_first,
                    local_world_size: member.local_world_size,
                    node: text_of(member.node),
                    address: member.address.into(),
                });
                NativeResponse::Members(members.collect())
            }
            (O::LeaseAttach | O::LeaseRenew | O::Leave | O::Close | O::Bye, F::Done { .. }) => {
                NativeResponse::Done
            }
            _ => return None,
        })
    }

    /// Converts the response to the request of a batch at position `at`.
    fn decode_part(
        &self,
        at: usize,
        answer: &ServerFrame<'_>,
        scope: &[u8],
        peer: &str,
    ) -> Option<BatchAnswer> {
        Some(match answer {
            ServerFrame::Done { .. } => BatchAnswer::Done,
            ServerFrame::Number { number, .. } => BatchAnswer::Number(*number),
            ServerFrame::Value { value, .. } => BatchAnswer::Value(value.map(|value| value.to_vec())),
            ServerFrame::Outcome { holds, .. } => BatchAnswer::Outcome(*holds),
            ServerFrame::Error { fault } => {
                let key = Key::scoped(scope, self.names.get(at)?);
                BatchAnswer::Failed(Loss::of_fault(fault).into_error(Operation::Batch, (Some(key), 1), peer))
            }
            _ => return None,
        })
    }
}

fn barrier_result(generation: u64, end: BarrierEnd<'_>) -> BarrierResult {
    match end {
        BarrierEnd::Released => BarrierResult::Released { generation },
        BarrierEnd::Broken { participant, why } => {
            BarrierResult::Broken { generation, participant: text_of(participant), why }
        }
        BarrierEnd::TimedOut { absent_count, absent } => {
            let absent = absent.iter().map(|name| text_of(&name.pieces().concat())).collect();
            BarrierResult::TimedOut { generation, absent_count, absent }
        }
        BarrierEnd::Cancelled { by } => BarrierResult::Cancelled { generation, by: text_of(by) },
    }
}
