//! The pure core of librendezvous.
//!
//! Everything outside [`driver`] is sans-IO: bytes, time and randomness come in as arguments, and what is to be done
//! comes out as data. Three feature steps: none (no allocator: codec and client machines), `alloc` (the store engine
//! and the server machines), `std` (the driver over sockets). `cfg(feature = …)` stands in this file and nowhere else.
#![no_std]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// L0
pub mod error;
pub mod ids;
pub mod limits;
pub mod rng;
pub mod time;

// L1
/// The key/value store: requests as data, the engine, and the machines at both ends of a connection.
pub mod store {
    pub mod call;
    pub mod client_conn;
    pub mod dial;
    pub mod op;
}

// L2
pub mod wire;

// L3
pub mod barrier;

// L4
/// Compositions: the only machines that own several others.
pub mod node {
    pub mod client;
}

// L5
/// The driver: carries bytes, time and name look-ups between the machines and the operating system, and decides
/// nothing.
#[cfg(feature = "std")]
pub mod driver {
    pub mod call_error;
    pub mod clock;
    mod resolve;
    pub mod socket;
    pub mod store_client;
}
