//! Shared parts of the tests of librendezvous: frames as bytes, a server without sockets, a model of the store, the
//! simulator, and the bodies of the fuzz targets.
#![allow(clippy::std_instead_of_core, clippy::std_instead_of_alloc, reason = "tests run where std is")]

pub mod counting;
pub mod entropy;
pub mod frames;
pub mod fuzz;
pub mod model;
pub mod rig;
pub mod siege;
pub mod sim;
