//! Where a context keeps its RPC.

use rendezvous_rpc::driver::group::RpcContext;
use std::sync::OnceLock;

/// The RPC of a context, which is there once it is asked for.
pub(crate) type RpcSlot = OnceLock<RpcContext>;
