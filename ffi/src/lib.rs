//! The C ABI of librendezvous: parses arguments, calls the library and converts results. It contains no behaviour of
//! its own.
//!
//! The doc comments become those of `include/rendezvous.h`, so they address a reader of C. The first sentence of a
//! module is the title of its section there.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(clippy::missing_safety_doc, reason = "the C header states what a caller must ensure")]
#![cfg_attr(
    not(all(feature = "agent", feature = "rpc")),
    allow(dead_code, reason = "some items serve modules that are left out")
)]

// The header presents the modules in this order: an item may only name items of an earlier group.
mod status;
mod version;

mod argument;
mod buffer;
mod fault;

mod error;

mod context;

mod server_options;

mod server;

mod cancel_token;

mod store_options;

mod store;

mod store_kinds;

mod native_store;

mod batch;

mod watch;

mod custom_store;

mod loop_event;

mod loop_gate;

mod event_loop;

mod rendezvous_parameters;

mod rendezvous_event;

mod rendezvous_info;

mod store_info;

mod rendezvous_plugin;

mod rendezvous_answer;

mod rendezvous_handler;

mod rendezvous_url;

mod store_utilities;

mod loop_node;

mod loop_native;

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
mod custom_workers;

#[cfg(feature = "agent")]
mod worker_error;

#[cfg(feature = "rpc")]
mod rpc_options;

#[cfg(feature = "rpc")]
mod rpc_handlers;

#[cfg(feature = "rpc")]
mod rpc_workers;

#[cfg(feature = "rpc")]
mod rpc_end;

#[cfg(feature = "rpc")]
mod rpc;

#[cfg(feature = "rpc")]
mod rpc_call_spec;

#[cfg(feature = "rpc")]
mod rpc_call;

#[cfg(feature = "rpc")]
mod rpc_plugin;

#[cfg(feature = "rpc")]
mod rpc_observer;

#[cfg(feature = "rpc")]
mod loop_rpc;
#[cfg(not(feature = "rpc"))]
#[path = "without_rpc.rs"]
mod loop_rpc;

#[cfg(feature = "fault-injection")]
mod fault_injection;
mod guard;
#[cfg(feature = "rpc")]
mod loop_rpc_event;
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
pub use argument::rdzv_bytes;
pub use batch::*;
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
pub use loop_gate::rdzv_loop;
pub use loop_native::*;
pub use loop_node::*;
#[cfg(feature = "rpc")]
pub use loop_rpc::*;
pub use native_store::*;
pub use rendezvous_answer::*;
pub use rendezvous_event::*;
pub use rendezvous_handler::*;
pub use rendezvous_info::*;
pub use rendezvous_parameters::*;
pub use rendezvous_plugin::*;
pub use rendezvous_url::*;
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
