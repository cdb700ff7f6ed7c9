//! The C ABI of librendezvous: parse, call, project. No behaviour lives here.
//!
//! The doc comments become those of `include/rendezvous.h`, so they speak to a reader of C; the first sentence of a
//! module is the title of its section there.
#![allow(non_camel_case_types, reason = "the names are those of the C header")]
#![allow(clippy::missing_safety_doc, reason = "what a caller owes is said in the words of the C header")]

// The header presents the modules in this order: what one of them names must stand in an earlier group.
mod status;
mod version;

mod argument;
mod buffer;
mod error;

mod context;

mod server_options;

mod server;

mod store_options;

mod store;

mod store_kinds;

mod native_store;

mod turn;

mod watch;

mod custom_store;

mod event_loop;

mod rendezvous_parameters;

mod rendezvous_event;

mod rendezvous_info;

mod store_info;

mod rendezvous_plugin;

mod rendezvous_handler;

mod rendezvous_url;

mod store_utilities;

mod loop_node;

mod loop_native;

mod worker_function;

mod worker_group;

mod agent_options;

mod agent_event;

mod agent_result;

mod agent;

mod agent_watch;

mod loop_agent;
mod loop_gate;

mod custom_workers;

mod worker_error;

mod rpc_options;

mod rpc_handlers;

mod rpc_workers;

mod rpc;

mod rpc_call;

mod rpc_plugin;

mod rpc_observer;

mod loop_rpc;

#[cfg(feature = "fault-injection")]
mod fault_injection;
mod guard;
mod rendezvous_fault;
mod rpc_fault;
mod rpc_payload;
mod sized;

pub use agent::*;
pub use agent_event::*;
pub use agent_options::*;
pub use agent_result::*;
pub use agent_watch::*;
pub use argument::rdzv_bytes;
pub use buffer::*;
pub use context::*;
pub use custom_store::*;
pub use custom_workers::*;
pub use error::*;
pub use event_loop::*;
#[cfg(feature = "fault-injection")]
pub use fault_injection::*;
pub use loop_agent::*;
pub use loop_native::*;
pub use loop_node::*;
pub use loop_rpc::*;
pub use native_store::*;
pub use rendezvous_event::*;
pub use rendezvous_handler::*;
pub use rendezvous_info::*;
pub use rendezvous_parameters::*;
pub use rendezvous_plugin::*;
pub use rendezvous_url::*;
pub use rpc::*;
pub use rpc_call::*;
pub use rpc_handlers::*;
pub use rpc_observer::*;
pub use rpc_options::*;
pub use rpc_plugin::*;
pub use rpc_workers::*;
pub use server::*;
pub use server_options::*;
pub use status::*;
pub use store::*;
pub use store_info::*;
pub use store_kinds::*;
pub use store_options::*;
pub use store_utilities::*;
pub use turn::*;
pub use version::*;
pub use watch::*;
pub use worker_error::*;
pub use worker_function::*;
pub use worker_group::*;
