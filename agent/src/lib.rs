//! Supervision of worker processes: what they are told, what becomes of their output, and what is told of their ends.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![cfg_attr(test, allow(clippy::std_instead_of_alloc, reason = "tests run where std is"))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// L3
pub mod console_backlog;
pub mod environment;
pub mod error_file;
pub mod events;
pub mod failure;
pub mod group;
pub mod health;
pub mod log_layout;
pub mod log_lines;
pub mod metrics;
pub mod numa;
pub mod observer;
pub mod phase;
pub mod ranks;
pub mod reason;
pub mod roster;
pub mod spec;
pub mod streams;
pub mod stuck;
pub mod supervisor;
pub mod template;
pub mod watchdog;
pub mod worker_store;

// L4
/// What an agent makes of a run: composition of the machines above with those of the rendezvous.
pub mod node {
    pub mod rounds;
}

// L5
#[cfg(feature = "std")]
pub mod driver;
