//! The C ABI of librendezvous: parses arguments, calls the library and converts results. It contains no behaviour of
//! its own.
//!
//! The doc comments become those of `include/rendezvous/*.h`, so they address a reader of C. The first sentence of a
//! module is the title of its section there.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(clippy::missing_safety_doc, reason = "the C header states what a caller must ensure")]
#![cfg_attr(
    not(all(feature = "agent", feature = "rpc")),
    allow(dead_code, reason = "some items serve modules that are left out")
)]

// `// Header NAME: TITLE` begins the modules of include/rendezvous/NAME.h, which are presented there in this order. A header
// includes earlier ones only, and an item may only name items of an earlier module; for opaque types that order is free.

// Header base: status codes, errors, buffers, contexts and cancel tokens
mod status;

mod version;

mod bytes;

mod argument;

mod buffer;

mod fault;

mod error;

mod context;

mod cancel_token;

// Header store: servers, clients of stores, transactions, watches and leases
mod server_options;

mod server;

mod store_options;

mod store;

mod store_kinds;

mod native_store;

mod op_result;

mod op;

mod op_request;

mod op_native;

mod op_batch;

mod op_perform;

mod watch;

mod store_utilities;

mod store_info;

// Header rendezvous: rendezvous handlers, their rounds and events, and rendezvous by URL
mod rendezvous_parameters;

mod rendezvous_event;

mod rendezvous_info;

mod rendezvous_handler;

mod rendezvous_url;

// Header loop: event loops of the caller: stores and nodes without blocking calls
mod loop_gate;

mod loop_event;

mod event_loop;

mod op_node;

// Header agent: agents, which supervise the worker processes of a node
#[cfg(feature = "agent")]
mod worker_function;

#[cfg(feature = "agent")]
mod worker_group;

#[cfg(feature = "agent")]
mod agent_options;

#[cfg(feature = "agent")]
mod agent_event;

#[cfg(feature = "agent")]
mod agent_result;

#[cfg(feature = "agent")]
mod agent;

#[cfg(feature = "agent")]
mod agent_watch;

#[cfg(feature = "agent")]
mod loop_agent;
#[cfg(not(feature = "agent"))]
#[path = "without_agent.rs"]
mod loop_agent;

#[cfg(feature = "agent")]
mod worker_error;

#[cfg(feature = "agent")]
mod worker_timer;

// Header rpc: named workers that call each other
#[cfg(feature = "rpc")]
mod rpc_workers;

#[cfg(feature = "rpc")]
mod rpc_options;

#[cfg(feature = "rpc")]
mod rpc_handlers;

#[cfg(feature = "rpc")]
mod rpc_end;

#[cfg(feature = "rpc")]
mod rpc;

#[cfg(feature = "rpc")]
mod rpc_call_spec;

#[cfg(feature = "rpc")]
mod rpc_call;

#[cfg(feature = "rpc")]
mod rpc_observer;

#[cfg(feature = "rpc")]
mod loop_rpc;
#[cfg(not(feature = "rpc"))]
#[path = "without_rpc.rs"]
mod loop_rpc;

// Header plugin: stores, rendezvous backends, workers and RPC backends of the program
mod reply;

mod custom_store;

mod plugin_parameters;

mod rendezvous_plugin;

#[cfg(feature = "agent")]
mod custom_workers;

#[cfg(feature = "rpc")]
mod rpc_plugin;

// In no header
#[cfg(feature = "fault-injection")]
mod fault_injection;
mod guard;
mod last_event;
#[cfg(feature = "rpc")]
mod loop_rpc_event;
mod op_kind;
mod rendezvous_fault;
#[cfg(feature = "rpc")]
mod rpc_fault;
#[cfg(feature = "rpc")]
mod rpc_home;
#[cfg(feature = "rpc")]
mod rpc_payload;
#[cfg(feature = "rpc")]
mod rpc_reentry;
#[cfg(feature = "rpc")]
mod rpc_reply;
#[cfg(feature = "rpc")]
mod rpc_slot;
mod sized;

// Without agents or RPC, an event loop has no events of theirs, and a context keeps no RPC state.
#[cfg(not(feature = "agent"))]
mod agent_event {
    pub(crate) type AgentEventView = ();
}
#[cfg(not(feature = "rpc"))]
mod loop_rpc_event {
    pub(crate) type LastRpcEvent = ();
}
#[cfg(not(feature = "rpc"))]
mod rpc_reply {
    pub(crate) type Workers = ();
}
#[cfg(not(feature = "rpc"))]
mod rpc_slot {
    pub(crate) type RpcSlot = ();
}

#[cfg(feature = "agent")]
pub use agent::*;
#[cfg(feature = "agent")]
pub use agent_event::*;
#[cfg(feature = "agent")]
pub use agent_options::*;
#[cfg(feature = "agent")]
pub use agent_result::*;
#[cfg(feature = "agent")]
pub use agent_watch::*;
pub use argument::{rdzv_bytes, rdzv_pair};
pub use buffer::*;
pub use cancel_token::*;
pub use context::*;
pub use custom_store::*;
#[cfg(feature = "agent")]
pub use custom_workers::*;
pub use error::*;
pub use event_loop::*;
pub use fault::rdzv_error;
#[cfg(feature = "fault-injection")]
pub use fault_injection::*;
#[cfg(feature = "agent")]
pub use loop_agent::*;
pub use loop_event::*;
pub use loop_gate::{rdzv_loop, rdzv_loop_member};
#[cfg(feature = "rpc")]
pub use loop_rpc::*;
pub use native_store::*;
pub use op::*;
pub use op_batch::*;
pub use op_native::*;
pub use op_node::*;
pub use op_perform::*;
pub use op_request::*;
pub use op_result::*;
pub use plugin_parameters::*;
pub use rendezvous_event::*;
pub use rendezvous_handler::*;
pub use rendezvous_info::*;
pub use rendezvous_parameters::*;
pub use rendezvous_plugin::*;
pub use rendezvous_url::*;
pub use reply::*;
#[cfg(feature = "rpc")]
pub use rpc::*;
#[cfg(feature = "rpc")]
pub use rpc_call::*;
#[cfg(feature = "rpc")]
pub use rpc_call_spec::*;
#[cfg(feature = "rpc")]
pub use rpc_end::*;
#[cfg(feature = "rpc")]
pub use rpc_handlers::*;
#[cfg(feature = "rpc")]
pub use rpc_observer::*;
#[cfg(feature = "rpc")]
pub use rpc_options::*;
#[cfg(feature = "rpc")]
pub use rpc_plugin::*;
#[cfg(feature = "rpc")]
pub use rpc_workers::*;
pub use server::*;
pub use server_options::*;
pub use status::*;
pub use store::*;
pub use store_info::*;
pub use store_kinds::*;
pub use store_options::*;
pub use store_utilities::*;
pub use version::*;
pub use watch::*;
#[cfg(feature = "agent")]
pub use worker_error::*;
#[cfg(feature = "agent")]
pub use worker_function::*;
#[cfg(feature = "agent")]
pub use worker_group::*;
#[cfg(feature = "agent")]
pub use worker_timer::*;
