//! What an event of an RPC worker in an event loop lends out.

use crate::rpc_call_spec::rdzv_rpc_call_spec;
use crate::rpc_handlers::rdzv_rpc_request;
use rendezvous_rpc::agent::GroupEvent;
use rendezvous_rpc::driver::calls::handling::Responder;
use rendezvous_rpc::driver::loop_member::Called;

/// What the last event lends out of a worker.
#[derive(Debug, Default)]
pub(crate) struct LastRpcEvent {
    pub(crate) request: Option<rdzv_rpc_request>,
    pub(crate) responder: Option<Responder>,
    pub(crate) event: Option<Happened>,
    /// What it shows lies in the other.
    pub(crate) called: Option<(rdzv_rpc_call_spec, Called)>,
}

/// What happened to the group of a worker, or to the worker.
#[derive(Debug)]
pub(crate) enum Happened {
    Group(GroupEvent),
    /// With how that came.
    Over(String),
}
