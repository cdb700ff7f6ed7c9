//! Data that an event of an RPC worker in an event loop points to.

use crate::rpc_call_spec::rdzv_rpc_call_spec;
use crate::rpc_handlers::rdzv_rpc_request;
use rendezvous_rpc::agent::GroupEvent;
use rendezvous_rpc::driver::calls::handling::Responder;
use rendezvous_rpc::driver::group::Called;

/// Data of an RPC worker that the last event points to.
#[derive(Debug, Default)]
pub(crate) struct LastRpcEvent {
    pub(crate) request: Option<rdzv_rpc_request>,
    pub(crate) responder: Option<Responder>,
    pub(crate) event: Option<RpcWorkerEvent>,
    /// Call that has completed; the C struct points into the second field.
    pub(crate) called: Option<(rdzv_rpc_call_spec, Called)>,
}

/// Event of a worker's group or of the worker itself.
#[derive(Debug)]
pub(crate) enum RpcWorkerEvent {
    Group(GroupEvent),
    /// The worker has ended; contains the reason.
    Over(String),
}
