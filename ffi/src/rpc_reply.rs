//! Workers that an RPC backend in user code replied.

use rendezvous_rpc::name::WorkerInfo;

pub(crate) type Workers = Vec<WorkerInfo>;
