//! RPC state of a context.

use crate::prelude::*;
use rendezvous_rpc::driver::group::RpcContext;
use rendezvous_rpc::driver::loop_member::RpcHome;

impl Home {
    /// Returns the RPC state of the context: its backends and the worker that this process is.
    pub(crate) fn rpc(&self) -> &RpcContext {
        self.rpc.get_or_init(|| RpcContext::new(Arc::clone(self.rendezvous())))
    }
}

impl RpcHome for Home {
    fn context(&self) -> &RpcContext {
        self.rpc()
    }
}
