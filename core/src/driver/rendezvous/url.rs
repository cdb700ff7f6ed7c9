//! Rendezvous by URL.

use super::handler::{HandlerError, NodeStore};
use super::hosting::HostedServers;
use super::static_backend::StoreLocation;
use crate::driver::cancel::Canceller;
use crate::driver::file_store::FileStoreOptions;
use crate::driver::store::{Store, Timeout, Timeouts};
use crate::driver::store_client::StoreOptions;
use crate::prelude::*;
use crate::rendezvous::url::{
    FileRendezvous, RankEnvironment, RendezvousUrl, StoreRole, TcpRendezvous, UrlError, WorldSize,
};
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

/// Lets the ranks of a URL meet.
type Meet = fn(&RendezvousUrl, &UrlOptions, &HostedServers) -> Result<UrlGroup, HandlerError>;

/// Handler of the URLs of a built-in scheme.
pub(super) struct BuiltInScheme {
    pub(super) meet: Meet,
    pub(super) servers: Arc<HostedServers>,
}

impl UrlHandler for BuiltInScheme {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let (meet, servers) = (self.meet, Arc::clone(&self.servers));
        Ok(Box::new(BuiltInRendezvous { meet, servers, url, options, has_met: false }))
    }
}

struct BuiltInRendezvous {
    meet: Meet,
    servers: Arc<HostedServers>,
    url: RendezvousUrl,
    options: UrlOptions,
    has_met: bool,
}

impl UrlRendezvous for BuiltInRendezvous {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        if self.has_met {
            return Err(UrlError::NotAgain { scheme: self.url.scheme().into() }.into());
        }
        let group = (self.meet)(&self.url, &self.options, &self.servers)?;
        self.has_met = true;
        Ok(group)
    }
}

/// The built-in schemes.
pub(super) const BUILT_IN: [(&str, Meet); 3] = [
    ("tcp", |url, options, servers| meet_at_server(url.tcp(&options.environment)?, options, servers)),
    ("env", |url, options, servers| meet_at_server(url.env(&options.environment)?, options, servers)),
    ("file", |url, options, _| meet_in_file(url.file()?, options)),
];

/// Meets at a TCP store that rank 0 or its agent hosts. The host waits for all others; a world of unknown size is not
/// counted.
fn meet_at_server(
    rendezvous: TcpRendezvous,
    options: &UrlOptions,
    servers: &HostedServers,
) -> Result<UrlGroup, HandlerError> {
    let TcpRendezvous { host, port, rank, world_size, role } = rendezvous;
    let UrlOptions { timeout, listen_host, canceller, .. } = options;
    let is_host = role == StoreRole::Host;
    let location = StoreLocation { host: &host, port, listen_host: listen_host.as_deref(), is_host };
    let options = StoreOptions {
        timeout: *timeout,
        connect_timeout: *timeout,
        token: canceller.token(),
        ..StoreOptions::default()
    };
    let token = options.token.clone();
    let store = location.connect(servers, options)?;
    if world_size > 0 {
        let counting = store.with_token(&token);
        counting.check_in(Timeout::Default)?;
        if is_host {
            counting.wait_for_workers(world_size, Timeout::Default)?;
        }
    }
    Ok(UrlGroup { store: Arc::new(store), rank, world_size })
}

/// Meets in a store in a file that every rank can reach.
fn meet_in_file(rendezvous: FileRendezvous, options: &UrlOptions) -> Result<UrlGroup, HandlerError> {
    let FileRendezvous { path, rank, world_size } = rendezvous;
    let options = FileStoreOptions {
        // With an unknown number of ranks, none can tell that it is the last one.
        world_size: u64::try_from(world_size).ok(),
        timeouts: Timeouts { call: options.timeout, ..Timeouts::default() },
        token: options.canceller.token(),
        ..FileStoreOptions::default()
    };
    let store = Store::open_file(Path::new(&path), options)?;
    Ok(UrlGroup { store: Arc::new(NodeStore::new(store, None)), rank, world_size })
}
