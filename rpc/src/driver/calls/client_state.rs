//! State that all calls of a client share.

use super::GroupToken;
use super::io_thread::IoShared;
use super::reentrancy::Home;
use crate::connection::ConnectionError;
use crate::limits::RpcLimits;
use crate::name::WorkerInfo;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::tls::TlsConnector;

/// Options of an [`RpcClient`](super::calling::RpcClient).
#[derive(Debug)]
pub struct RpcClientOptions {
    /// Name and number of this worker.
    pub me: WorkerInfo,
    /// Id of its group.
    pub group: Vec<u8>,
    /// Limits of each connection.
    pub limits: RpcLimits,
    /// TCP keep-alive, which detects silent hosts; `None` leaves the system's defaults.
    pub keep_alive: Option<KeepAlive>,
    /// TLS; `None`: connections are not encrypted.
    pub tls: Option<TlsConnector>,
    /// Token that callees must prove; `None`: none.
    pub token: Option<Arc<GroupToken>>,
}

/// State that all calls of a client share.
#[derive(Debug)]
pub(super) struct ClientShared {
    pub(super) options: RpcClientOptions,
    /// Worker whose callbacks these are.
    pub(super) home: Home,
    pub(super) io: Arc<IoShared>,
    /// Reason why no calls are accepted any more. Set before the pending calls fail.
    pub(super) end: OnceLock<ConnectionError>,
}
