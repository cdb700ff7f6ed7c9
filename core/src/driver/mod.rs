//! Drivers: the only modules that use sockets, threads and the clock. They carry bytes and time between the operating
//! system and the state machines, and decide nothing about a protocol.
#![expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "std is at home here")]

mod ack_watch;
pub mod backend;
pub mod call_error;
pub mod cancel;
pub mod channel;
pub mod clock;
mod connection;
pub mod elastic_store;
pub mod event_loop;
pub mod file_store;
mod file_versions;
pub mod hash_store;
pub mod last_try;
pub mod lock;
pub mod loop_client;
pub mod native_client;
mod native_store;
pub mod plugin_store;
mod plugin_threads;
pub mod prelude;
pub mod random;
pub mod rendezvous;
#[doc(hidden)]
pub mod resolve;
pub mod server;
pub mod socket;
pub mod store;
pub mod store_client;
pub mod take;
#[doc(hidden)]
pub mod temporary;
pub mod threads;
pub mod timeout;
pub mod tls;
pub mod token_file;

#[cfg(test)]
pub(crate) mod testing;
