//! Named workers that call each other: membership of their group, connections between them, and the driver.
//!
//! ```
//! use rendezvous_core::{NodeStore, Store};
//! use rendezvous_rpc::{Handling, RpcContext, RpcInit, RpcOptions, Run, Shutdown, TcpOptions};
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

// L0: limits
#[doc(hidden)]
pub mod limits;

// L1: plain data
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod device_map;
#[doc(hidden)]
pub mod name;
#[doc(hidden)]
pub mod options;
#[doc(hidden)]
pub mod shutdown;

// L2: codecs
#[doc(hidden)]
pub mod exchange;
#[doc(hidden)]
pub mod wire;

// L3: machines; `membership::changing` is one of layer 4
#[doc(hidden)]
pub mod connection;
#[doc(hidden)]
pub mod fair_queue;
#[doc(hidden)]
pub mod handlers;
#[doc(hidden)]
pub mod inbox;
#[doc(hidden)]
pub mod intake;
#[doc(hidden)]
pub mod membership;

// L4: a worker of a group
#[doc(hidden)]
pub mod agent;

// L5
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod driver;

// What a Rust program needs. The crates of this workspace also use the hidden modules, whose names may change.
#[cfg(feature = "std")]
#[doc(inline)]
pub use driver::{
    calls::{
        Payload, Received,
        handling::{HandlerFn, Handling, Request, Responder, Run, Wanted},
    },
    group::{
        CallCanceller, CallSpec, Called, Callee, CalleeName, GroupCallError, GroupObserver, ObserverOptions,
        ObservingError, PendingCall, RpcAgent, RpcContext, RpcInit, RpcInitError, RpcWorker, TcpOptions,
        registry::{BackendError, InitRequest, RpcBackend},
    },
    loop_member::{RpcAskError, RpcEvent, RpcLoop, RpcRequestQueue},
};
#[doc(inline)]
pub use {
    agent::GroupEvent,
    connection::{CallError, CallFailure, ConnectionError, RefusalEvent, RefusalObserver, Status},
    device::{Device, DeviceKind},
    device_map::DeviceMap,
    handlers::{Callers, HandlerError},
    membership::error::MembershipError,
    membership::observer::{Observation, ObserverError},
    name::{WorkerInfo, WorkerName},
    options::RpcOptions,
    shutdown::Shutdown,
};
