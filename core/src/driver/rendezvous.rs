//! Blocking rendezvous: handlers by backend, and rendezvous by URL.
//!
//! A [`Context`] holds the registered backends and URL schemes. Two contexts share nothing.

mod context;
mod foreign;
mod handler;
mod host_name;
mod hosting;
mod last_rounds;
mod process_claim;
mod rdzv_backend;
mod reserved_port;
mod static_backend;
mod store_info;
mod units;
mod url;

pub use context::Context;
pub use foreign::{ForeignBackend, ForeignOptions, ForeignUrls};
pub use handler::{
    CreateHandler, HandlerError, NODE_NAMES_MAX, NodeStore, Progress, RendezvousHandler, Stage,
};
pub use host_name::{full_host_name, host_name};
pub use hosting::{HostSecurity, HostedServers, HostingError};
pub use last_rounds::LastRounds;
pub use rdzv_backend::{RdzvBackend, RdzvRendezvous, refusal};
pub(in crate::driver) use rdzv_backend::{entry_of, labels_of, session_options};
pub use reserved_port::{NoPort, ReservedPort};
pub use static_backend::{StaticBackend, StaticRendezvous};
pub use store_info::{Built, PublishError, build};
pub use units::{parse_duration, with_units};
pub use url::{UrlGroup, UrlHandler, UrlOptions, UrlRendezvous};
