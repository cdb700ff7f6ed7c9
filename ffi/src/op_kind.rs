//! Kinds of operations.

use crate::prelude::*;

/// Request of an operation without its byte strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpKind {
    #[default]
    None,
    Set,
    Get,
    Add(i64),
    CompareSet,
    Append,
    DeleteKey,
    Wait,
    Check,
    MultiGet,
    MultiSet,
    NumKeys,
    ListKeys,
    QueuePush,
    QueuePop,
    QueueLen,
    Barrier(i64),
    Ping,
    Read,
    ListPage(u32),
    DeletePrefix,
    NamedBarrier {
        generation: u64,
        count: u32,
    },
    CancelNamedBarrier,
    WatchKey(u64),
    WatchPrefix(u64),
    GrantLease(Duration),
    AttachLease(u64),
    RenewLease(u64),
    RevokeLease(u64),
    Batch,
    Txn,
    EndSession,
    NextRendezvous,
    Leave,
    SetClosed,
    Fail,
    RunInfo,
    Members {
        round: u64,
        first: u32,
        count_max: u32,
    },
    #[cfg_attr(not(feature = "rpc"), expect(dead_code, reason = "calls need RPC"))]
    Call,
}

impl OpKind {
    /// Returns whether the request is one of a rendezvous node.
    pub(crate) const fn is_of_nodes(self) -> bool {
        matches!(
            self,
            Self::NextRendezvous
                | Self::Leave
                | Self::SetClosed
                | Self::Fail
                | Self::RunInfo
                | Self::Members { .. }
        )
    }
}
