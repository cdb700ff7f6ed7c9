//! Named workers that call each other: who they are, on which devices, by which backend, and who is of the group.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![cfg_attr(test, allow(clippy::std_instead_of_alloc, reason = "tests run where std is"))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// L2
pub mod wire;

// L3
pub mod agent;
pub mod connection;
pub mod device;
pub mod device_map;
pub mod exchange;
pub mod fair_queue;
pub mod handlers;
pub mod inbox;
pub mod intake;
pub mod membership;
pub mod name;
pub mod options;
pub mod peer;
pub mod registry;
pub mod shutdown;
pub mod sorted;

// L5
#[cfg(feature = "std")]
pub mod driver;
