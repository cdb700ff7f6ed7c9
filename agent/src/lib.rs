//! Supervision of worker processes: an agent starts the workers of one node, monitors and restarts them, and reports
//! how they ended.
//!
//! ```
//! use rendezvous_agent::{Agent, AgentOptions, LocalEntry, LocalOptions, LocalWorkers, LogSettings};
//! use rendezvous_agent::{Devices, Outcome, WorkerSpec};
//! use rendezvous_core::{Context, RendezvousParameters, Server, ServerOptions};
//! use std::sync::Arc;
//!
//! // A job of one node. Its agent joins the rendezvous at this server.
//! let server = Server::start(ServerOptions::on("127.0.0.1", 0))?;
//! let endpoint = format!("127.0.0.1:{}", server.local_addr().port());
//! let parameters = RendezvousParameters::new("rdzv", &endpoint, "job-1", 1, 1)?.with("is_host", false);
//! let handler = Context::default().create_handler(&parameters)?;
//!
//! // Two workers run `sh -c "exit 0"`.
//! let workers = LocalOptions {
//!     entry: LocalEntry::Program("/bin/sh".into()),
//!     arguments: ["sh", "-c", "exit 0"].map(Into::into).into(),
//!     environment: Vec::new(),
//!     directory: None,
//!     devices: Devices::All,
//!     host: "localhost".into(),
//!     logs: LogSettings::default(),
//!     log_dir: None,
//! };
//! let options = AgentOptions {
//!     spec: WorkerSpec::new(2),
//!     name: "localhost".into(),
//!     entry_name: "sh".into(),
//!     local_addr: None,
//!     listen_addr: None,
//!     master: None,
//! };
//! let workers = LocalWorkers::new(workers, "job-1", 2)?;
//! let mut agent = Agent::new(options, Arc::from(handler), Box::new(workers))?;
//! let result = agent.run(|_, event| println!("{event:?}"))?;
//! assert_eq!(result.outcome, Outcome::Succeeded { missing: None });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything outside [`driver`] is sans-IO: bytes, time and randomness are arguments, and actions are returned as
//! data. Without the feature `std` the crate needs only an allocator. `cfg(feature = …)` is used in this file only.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![cfg_attr(test, allow(clippy::std_instead_of_alloc, reason = "tests run where std is"))]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// Layer 0: limits
#[doc(hidden)]
pub mod limits;

// Layer 3: machines
#[doc(hidden)]
pub mod console_backlog;
#[doc(hidden)]
pub mod environment;
#[doc(hidden)]
pub mod error_file;
#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod failure;
#[doc(hidden)]
pub mod group;
#[doc(hidden)]
pub mod health;
#[doc(hidden)]
pub mod log_layout;
#[doc(hidden)]
pub mod log_lines;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod numa;
#[doc(hidden)]
pub mod observer;
#[doc(hidden)]
pub mod phase;
#[doc(hidden)]
pub mod ranks;
#[doc(hidden)]
pub mod reason;
#[doc(hidden)]
pub mod roster;
#[doc(hidden)]
pub mod spec;
#[doc(hidden)]
pub mod streams;
#[doc(hidden)]
pub mod stuck;
#[doc(hidden)]
pub mod supervisor;
#[doc(hidden)]
pub mod template;
#[doc(hidden)]
pub mod watchdog;
#[doc(hidden)]
pub mod worker_event;
#[doc(hidden)]
pub mod worker_store;

// Layer 4: composition
#[doc(hidden)]
pub mod node;

// Layer 5: driver
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod driver;

// What a Rust program needs. The crates of this workspace also use the hidden modules, whose names may change.
#[cfg(feature = "std")]
#[doc(inline)]
pub use driver::{
    agent::{
        Agent, AgentControl, AgentError, AgentEvent, AgentOptions, AgentResult, ForeignEvent, ForeignWorkers,
        LocalEntry, LocalError, LocalOptions, LocalWorkers, Moment, Reach, Start, StartOrder,
        WorkerEventSender, WorkerHooks, Workers,
    },
    loop_member::{AgentLoop, LoopAgent, LoopAgentEvent},
    process::{Function, Registered},
    worker_logs::write_error_file,
};
#[doc(inline)]
pub use {
    environment::Devices,
    events::EventFacts,
    failure::{ProcessFailure, WorkerGroupFailure},
    group::{ExitStatus, Worker, WorkerGroup, WorkerState},
    health::LivenessPolicy,
    log_layout::LogSettings,
    phase::Phase,
    reason::{Reason, StartFailure, StopCause},
    spec::{RankAssignment, SpecError, WorkerSpec},
    supervisor::{Notice, Outcome},
    worker_event::WorkerEvent,
};
