//! Named workers that call each other: membership of their group, connections between them, and the driver.
//!
//! ```
//! use rendezvous_core::driver::rendezvous::NodeStore;
//! use rendezvous_core::driver::store::Store;
//! use rendezvous_rpc::driver::calls::handling::{Handling, Run};
//! use rendezvous_rpc::driver::group::{RpcContext, RpcInit, Shutdown, TcpOptions};
//! use rendezvous_rpc::options::RpcOptions;
//! use std::sync::Arc;
//!
//! // Handlers of the worker.
//! let handling = Handling::new(1);
//! handling.register("length", Run::Inline, |request, responder| {
//!     responder.answer(request.payload.len().to_string().into_bytes());
//! })?;
//!
//! // A group of one worker, whose members find each other in this store.
//! let store = Arc::new(NodeStore::new(Store::in_process(Default::default()), None));
//! let mut options = RpcOptions::new("tcp");
//! options.set_extra(Box::new(TcpOptions { handling: Some(handling), ..TcpOptions::default() }));
//! let context = RpcContext::default();
//! let init = RpcInit {
//!     name: "worker0",
//!     rank: Some(0),
//!     world_size: Some(1),
//!     options: Some(options),
//!     ..RpcInit::default()
//! };
//! let worker = context.init_over(store, init)?;
//! let tcp = worker.tcp().expect("the backend is tcp");
//! assert_eq!(tcp.call("worker0", "length", b"four".to_vec(), None)?, b"4");
//! context.shutdown(Shutdown::Graceful)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything outside [`driver`] is sans-IO: bytes, time and randomness are arguments, and actions are return values.
//! Without the feature `std` the crate needs only an allocator. `cfg(feature = …)` occurs in this file only.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![cfg_attr(test, allow(clippy::std_instead_of_alloc, reason = "tests run with std"))]

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
pub mod shutdown;

// L5
#[cfg(feature = "std")]
pub mod driver;
