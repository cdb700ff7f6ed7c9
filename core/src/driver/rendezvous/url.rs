//! Rendezvous by URL.

use super::handler::{HandlerError, NodeStore};
use super::hosting::HostedServers;
use super::static_backend::StoreLocation;
use crate::driver::cancel::Canceller;
use crate::driver::file_store::FileStoreOptions;
use crate::driver::store::{Store, Timeouts};
use crate::driver::store_client::StoreOptions;
use crate::rendezvous::url::{
    FileRendezvous, RankEnvironment, RendezvousUrl, StoreRole, TcpRendezvous, UrlError, WorldSize,
};
use crate::time::Duration;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use std::path::Path;

/// Options of a rendezvous beside its URL.
#[derive(Clone, Debug)]
pub struct UrlOptions {
    /// This process's rank; −1: the URL or the environment gives it.
    pub rank: i64,
    /// Number of ranks.
    pub world_size: WorldSize,
    /// Time that one store call may take, and the wait for the other ranks.
    pub timeout: Duration,
    /// Address at which the rank that hosts the store listens, where it differs from the URL's host.
    pub listen_host: Option<String>,
    /// The relevant environment variables. This module does not read the process's environment.
    pub environment: RankEnvironment,
    /// Cancels [`UrlRendezvous::next`] from another thread. It then fails with an error of the kind
    /// [`ErrorKind::Cancelled`](crate::error::ErrorKind::Cancelled).
    pub canceller: Canceller,
}

impl Default for UrlOptions {
    fn default() -> Self {
        Self {
            rank: -1,
            world_size: WorldSize::InUrl,
            timeout: Duration::from_secs(30 * 60),
            listen_host: None,
            environment: RankEnvironment::default(),
            canceller: Canceller::default(),
        }
    }
}

/// Result of a rendezvous by URL.
#[derive(Clone, Debug)]
pub struct UrlGroup {
    /// The store that the ranks share.
    pub store: Arc<NodeStore>,
    /// This process's rank.
    pub rank: i64,
    /// Number of ranks; negative: unknown.
    pub world_size: i64,
}

/// A rendezvous by URL in progress.
pub trait UrlRendezvous: Send {
    /// Waits for the other ranks. The built-in schemes do so once: a second call is an error.
    ///
    /// # Errors
    /// The ranks have not met.
    fn next(&mut self) -> Result<UrlGroup, HandlerError>;

    /// Returns a function that ends the wait of a [`UrlRendezvous::next`] whose caller has given up; `None`: that
    /// wait cannot be ended.
    fn interrupt(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        None
    }
}

/// Handler of the URLs of a scheme.
pub trait UrlHandler: Send + Sync {
    /// Begins a rendezvous. The URL's query includes the rank and world size that the options name.
    ///
    /// # Errors
    /// The rendezvous cannot begin.
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError>;
}

/// Extracts the store's address from a URL of a scheme.
type ToTcp = fn(&RendezvousUrl, &RankEnvironment) -> Result<TcpRendezvous, UrlError>;

/// Handler of `tcp://` and `env://`: a TCP store that rank 0 or its agent hosts.
pub(super) struct TcpUrls {
    to_tcp: ToTcp,
    servers: Arc<HostedServers>,
}

impl fmt::Debug for TcpUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpUrls").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl TcpUrls {
    pub(super) fn tcp(servers: Arc<HostedServers>) -> Self {
        Self { to_tcp: RendezvousUrl::tcp, servers }
    }

    pub(super) fn env(servers: Arc<HostedServers>) -> Self {
        Self { to_tcp: RendezvousUrl::env, servers }
    }
}

impl UrlHandler for TcpUrls {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let (to_tcp, servers) = (self.to_tcp, Arc::clone(&self.servers));
        Ok(Box::new(TcpUrlRendezvous { to_tcp, servers, url, options, progress: Progress::NotMet }))
    }
}

struct TcpUrlRendezvous {
    to_tcp: ToTcp,
    servers: Arc<HostedServers>,
    url: RendezvousUrl,
    options: UrlOptions,
    progress: Progress,
}

#[derive(PartialEq, Eq)]
enum Progress {
    NotMet,
    Met,
}

impl UrlRendezvous for TcpUrlRendezvous {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        if self.progress == Progress::Met {
            return Err(UrlError::NotAgain { scheme: self.url.scheme().into() }.into());
        }
        let UrlOptions { timeout, listen_host, environment, canceller, .. } = &self.options;
        let TcpRendezvous { host, port, rank, world_size, role } = (self.to_tcp)(&self.url, environment)?;
        let is_host = role == StoreRole::Host;
        let location = StoreLocation { host: &host, port, listen_host: listen_host.as_deref(), is_host };
        let options = StoreOptions {
            timeout: *timeout,
            connect_timeout: *timeout,
            token: canceller.token(),
            ..StoreOptions::default()
        };
        let store = Arc::new(location.join(&self.servers, world_size, options)?);
        self.progress = Progress::Met;
        Ok(UrlGroup { store, rank, world_size })
    }
}

/// Handler of `file://`: a store in a file that every rank can reach.
#[derive(Debug)]
pub(super) struct FileUrls;

impl UrlHandler for FileUrls {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        Ok(Box::new(FileUrlRendezvous { url, options, progress: Progress::NotMet }))
    }
}

struct FileUrlRendezvous {
    url: RendezvousUrl,
    options: UrlOptions,
    progress: Progress,
}

impl UrlRendezvous for FileUrlRendezvous {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        if self.progress == Progress::Met {
            return Err(UrlError::NotAgain { scheme: self.url.scheme().into() }.into());
        }
        let FileRendezvous { path, rank, world_size } = self.url.file()?;
        let options = FileStoreOptions {
            // With an unknown number of ranks, none can tell that it is the last one.
            world_size: u64::try_from(world_size).ok(),
            timeouts: Timeouts { call: self.options.timeout, ..Timeouts::default() },
            token: self.options.canceller.token(),
            ..FileStoreOptions::default()
        };
        let store = Store::open_file(Path::new(&path), options)?;
        self.progress = Progress::Met;
        Ok(UrlGroup { store: Arc::new(NodeStore::new(store, None)), rank, world_size })
    }
}
