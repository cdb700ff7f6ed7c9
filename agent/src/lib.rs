//! Supervision of worker processes: an agent starts the workers of one node, monitors and restarts them, and reports
//! how they ended.
//!
//! ```
//! use rendezvous_agent::driver::agent::{Agent, AgentOptions, LocalEntry, LocalOptions, LocalWorkers};
//! use rendezvous_agent::environment::Devices;
//! use rendezvous_agent::log_layout::LogSettings;
//! use rendezvous_agent::spec::WorkerSpec;
//! use rendezvous_agent::supervisor::Outcome;
//! use rendezvous_core::driver::rendezvous::Context;
//! use rendezvous_core::driver::server::{Server, ServerOptions};
//! use rendezvous_core::rendezvous::parameters::RendezvousParameters;
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

// Layer 3: machines
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
pub mod worker_event;
pub mod worker_store;

// Layer 4: composition
pub mod node;

// Layer 5: driver
#[cfg(feature = "std")]
pub mod driver;
