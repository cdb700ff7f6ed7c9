//! Driver: sockets, threads and the clock, which no other module of this crate uses.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests have deadlines of their own"))]
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "std is at home here")]

pub mod calls;
pub mod group;
pub mod loop_member;

#[cfg(test)]
#[path = "../../../core/src/tls/tests/certificates.rs"]
mod certificates;
#[cfg(test)]
#[path = "../../../core/src/driver/testing.rs"]
mod testing;
