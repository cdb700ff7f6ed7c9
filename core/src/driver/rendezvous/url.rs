//! Rendezvous by URL.

use super::handler::{HandlerError, NodeStore};
use super::hosting::HostedServers;
use super::static_backend::StoreLocation;
use crate::driver::canceller::Canceller;
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

/// What the caller of a rendezvous knows beside the URL.
#[derive(Clone, Debug)]
pub struct UrlOptions {
    /// This process's rank; −1: the URL or the environment says it.
    pub rank: i64,
    /// How many ranks there are.
    pub world_size: WorldSize,
    /// How long a call of the store may take, and the wait for the others.
    pub timeout: Duration,
    /// Where the rank that hosts the store listens, when that is not what the URL says.
    pub listen_host: Option<String>,
    /// What the environment says. Nothing here reads it.
    pub environment: RankEnvironment,
    /// Ends what [`UrlRendezvous::next`] waits for, from another thread, with an error of the kind
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

/// The ranks have met.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The store that they share.
    pub store: Arc<NodeStore>,
    /// This process's rank.
    pub rank: i64,
    /// How many ranks there are; negative: nobody knows.
    pub world_size: i64,
}

/// A rendezvous by URL under way.
pub trait UrlRendezvous: Send {
    /// Meets the others. The built-in schemes do so once: a second time is an error.
    ///
    /// # Errors
    /// Why they have not met.
    fn next(&mut self) -> Result<Meeting, HandlerError>;

    /// What ends the wait of a [`UrlRendezvous::next`] whose caller has gone; `None`: it runs to its end.
    fn interrupt(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        None
    }
}

/// Handles the URLs of a scheme.
pub trait UrlHandler: Send + Sync {
    /// Begins a rendezvous. The URL's query holds what the options name.
    ///
    /// # Errors
    /// Why it cannot begin.
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError>;
}

/// How a scheme names the place of its store.
type ToTcp = fn(&RendezvousUrl, &RankEnvironment) -> Result<TcpRendezvous, UrlError>;

/// `tcp://` and `env://`: a store that rank 0 hosts, or its agent.
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
    fn next(&mut self) -> Result<Meeting, HandlerError> {
        if self.progress == Progress::Met {
            return Err(UrlError::NotAgain { scheme: self.url.scheme().into() }.into());
        }
        let UrlOptions { timeout, listen_host, environment, canceller, .. } = &self.options;
        let TcpRendezvous { host, port, rank, world_size, role } = (self.to_tcp)(&self.url, environment)?;
        let is_host = role == StoreRole::Host;
        let to_tcp = StoreLocation { host: &host, port, listen_host: listen_host.as_deref(), is_host };
        let options =
            StoreOptions { timeout: *timeout, connect_timeout: *timeout, ..StoreOptions::default() };
        let store = Arc::new(to_tcp.join(&self.servers, world_size, options, &canceller.begin())?);
        self.progress = Progress::Met;
        Ok(Meeting { store, rank, world_size })
    }
}

/// `file://`: a store in a file that every rank reaches.
#[derive(Debug)]
pub(super) struct FileUrls;

impl UrlHandler for FileUrls {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        Ok(Box::new(FileUrlRendezvous { url, timeout: options.timeout, progress: Progress::NotMet }))
    }
}

struct FileUrlRendezvous {
    url: RendezvousUrl,
    timeout: Duration,
    progress: Progress,
}

impl UrlRendezvous for FileUrlRendezvous {
    fn next(&mut self) -> Result<Meeting, HandlerError> {
        if self.progress == Progress::Met {
            return Err(UrlError::NotAgain { scheme: self.url.scheme().into() }.into());
        }
        let FileRendezvous { path, rank, world_size } = self.url.file()?;
        let options = FileStoreOptions {
            // Nobody knows how many there are: nobody can be the last.
            world_size: u64::try_from(world_size).ok(),
            timeouts: Timeouts { call: self.timeout, ..Timeouts::default() },
            ..FileStoreOptions::default()
        };
        let store = Store::open_file(Path::new(&path), options)?;
        self.progress = Progress::Met;
        Ok(Meeting { store: Arc::new(NodeStore::new(store, None)), rank, world_size })
    }
}
