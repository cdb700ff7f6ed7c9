//! Data that an event of an RPC worker in an event loop points to.

use crate::rpc_handlers::rdzv_rpc_request;
use rendezvous_rpc::agent::GroupEvent;
use rendezvous_rpc::driver::calls::handling::Responder;

/// Data of an RPC worker that the last event points to.
#[derive(Debug, Default)]
pub(crate) struct LastRpcEvent {
    pub(crate) request: Option<rdzv_rpc_request>,
    pub(crate) responder: Option<Responder>,
    pub(crate) event: Option<GroupEvent>,
}
