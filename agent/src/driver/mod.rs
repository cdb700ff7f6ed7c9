//! The driver: the only module that uses processes, files, sockets, threads and the clock.
#![expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "std is at home here")]

pub mod agent;
pub mod loop_member;
pub mod process;
pub mod worker_logs;
pub mod worker_timer;

#[cfg(test)]
#[path = "../../../core/src/driver/testing.rs"]
mod testing;
