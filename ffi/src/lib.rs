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
mod tls_options;

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
mod prelude;
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
mod user_code;

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

/// Exports what these modules declare for C.
macro_rules! export {
    ($($module:ident)+) => { $(pub use $module::*;)+ };
}
export! {
    argument buffer cancel_token context custom_store error event_loop fault loop_event loop_gate native_store
    op op_batch op_native op_node op_perform op_request op_result plugin_parameters rendezvous_event
    rendezvous_handler rendezvous_info rendezvous_parameters rendezvous_plugin rendezvous_url reply server
    server_options status store store_info store_kinds store_options store_utilities tls_options version watch
}
#[cfg(feature = "agent")]
export! {
    agent agent_event agent_options agent_result agent_watch custom_workers loop_agent worker_error
    worker_function worker_group worker_timer
}
#[cfg(feature = "rpc")]
export! {
    loop_rpc rpc rpc_call rpc_call_spec rpc_end rpc_handlers rpc_observer rpc_options rpc_plugin rpc_workers
}
#[cfg(feature = "fault-injection")]
export!(fault_injection);
