//! State that all calls of a client share.

use super::io_thread::IoShared;
use super::reentrancy::Home;
use crate::connection::ConnectionError;
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::sync::Arc;
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::RpcLimits;
use std::sync::OnceLock;

/// State that all calls of a client share.
#[derive(Debug)]
pub(super) struct ClientShared {
    pub(super) me: WorkerInfo,
    pub(super) group: Box<[u8]>,
    pub(super) limits: RpcLimits,
    pub(super) keep_alive: Option<KeepAlive>,
    /// Worker whose callbacks these are.
    pub(super) home: Home,
    pub(super) io: Arc<IoShared>,
    /// Reason why no calls are accepted any more. Set before the pending calls fail.
    pub(super) end: OnceLock<ConnectionError>,
}
