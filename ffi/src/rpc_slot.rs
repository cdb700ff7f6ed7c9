//! Slot in which a context keeps its RPC state.

use rendezvous_rpc::driver::group::RpcContext;
use std::sync::OnceLock;

/// RPC state of a context, created on first use.
pub(crate) type RpcSlot = OnceLock<RpcContext>;
