//! The `static` backend: ranks are given, rank 0 hosts the store, and all wait until all have come. Nodes of PyTorch
//! take part in the same group.

use super::context::CreateHandler;
use super::handler::{HandlerError, NodeStore, RendezvousHandler};
use super::hosting::{HostedServers, own_address};
use crate::driver::canceller::{Cancellable, Canceller};
use crate::driver::store::{Store, Timeout};
use crate::driver::store_client::StoreOptions;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::static_settings::{STATIC_BACKEND, StaticSettings};
use crate::rendezvous::store_info::RendezvousInfo;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use std::sync::{Mutex, PoisonError};

/// Makes handlers of the static backend.
#[derive(Debug)]
pub struct StaticBackend(Arc<HostedServers>);

impl StaticBackend {
    /// With the servers of a context.
    #[must_use]
    pub const fn new(servers: Arc<HostedServers>) -> Self {
        Self(servers)
    }
}

impl CreateHandler for StaticBackend {
    fn name(&self) -> &str {
        "StaticBackend"
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let settings = StaticSettings::read(parameters)?;
        Ok(Box::new(StaticRendezvous::new(settings, Arc::clone(&self.0))))
    }
}

/// One node's part in a static rendezvous.
#[derive(Debug)]
pub struct StaticRendezvous {
    settings: StaticSettings,
    servers: Arc<HostedServers>,
    store: Mutex<Option<Arc<NodeStore>>>,
    canceller: Canceller,
}

impl StaticRendezvous {
    /// A node that has not joined.
    #[must_use]
    pub fn new(settings: StaticSettings, servers: Arc<HostedServers>) -> Self {
        Self { settings, servers, store: Mutex::new(None), canceller: Canceller::default() }
    }

    fn join(&self, call: &Cancellable) -> Result<NodeStore, HandlerError> {
        let StaticSettings { master, listen_host, rank, world_size, timeout, .. } = &self.settings;
        let place = StorePlace {
            host: &master.master_addr,
            port: master.master_port,
            listen_host: listen_host.as_deref(),
            is_host: *rank == 0,
        };
        let options = StoreOptions {
            timeout: *timeout,
            connect_timeout: *timeout,
            scope: self.settings.scope().into(),
            ..StoreOptions::default()
        };
        place.join(&self.servers, *world_size, options, call)
    }
}

impl RendezvousHandler for StaticRendezvous {
    fn backend(&self) -> &str {
        STATIC_BACKEND
    }

    fn use_agent_store(&self) -> bool {
        true
    }

    /// The first time, joins; later times give the same: with given ranks there is nothing to meet anew.
    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        // Who waits for another thread's attempt is cancelled with it.
        let call = self.canceller.begin();
        let mut joined = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let store = match &*joined {
            Some(store) => Arc::clone(store),
            None => Arc::clone(joined.insert(Arc::new(self.join(&call)?))),
        };
        let StaticSettings { master, rank, world_size, .. } = &self.settings;
        let bootstrap_store_info = master.clone();
        Ok(RendezvousInfo { store, rank: *rank, world_size: *world_size, bootstrap_store_info, place: None })
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        Ok(false)
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        Ok(())
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        Ok(0)
    }

    fn run_id(&self) -> &str {
        &self.settings.run_id
    }

    fn shutdown(&self) -> bool {
        true
    }

    fn cancel(&self) {
        self.canceller.cancel();
    }
}

/// Where a store is, and who hosts it.
pub(super) struct StorePlace<'a> {
    pub(super) host: &'a str,
    pub(super) port: u16,
    pub(super) listen_host: Option<&'a str>,
    pub(super) is_host: bool,
}

impl StorePlace<'_> {
    /// Hosts the store if that is this process's part, connects, and tells the others so. The host waits for all; a
    /// world of unknown size is not counted.
    pub(super) fn join(
        &self,
        servers: &HostedServers,
        world_size: i64,
        options: StoreOptions,
        call: &Cancellable,
    ) -> Result<NodeStore, HandlerError> {
        let server =
            if self.is_host { Some(servers.host(self.host, self.port, self.listen_host)?) } else { None };
        let (host, port): (String, u16) = match &server {
            Some(server) => (own_address(server), server.local_addr().port()),
            None => (self.host.to_string(), self.port),
        };
        let store = Store::connect_within(&host, port, options, call)?;
        if world_size > 0 {
            let (counting, cancelled) = (store.for_one_call(), store.for_one_call());
            let _watch = call.watch(move || cancelled.cancel());
            counting.check_in(Timeout::Default)?;
            if self.is_host {
                counting.wait_for_workers(world_size, Timeout::Default)?;
            }
        }
        Ok(NodeStore::new(store, server))
    }
}

#[cfg(test)]
mod tests {
    use super::super::reserved_port::ReservedPort;
    use super::*;
    use crate::error::{ErrorKind, Operation};
    use core::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::format;
    use std::thread;
    use std::vec::Vec;

    fn free_port() -> u16 {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        ReservedPort::at(any).expect("a port").port()
    }

    fn handler(port: u16, rank: i64, nodes: i64, timeout_s: i64) -> Box<dyn RendezvousHandler> {
        let endpoint = format!("127.0.0.1:{port}");
        let parameters = RendezvousParameters::new("static", &endpoint, "run", 1, nodes).expect("valid");
        let parameters = parameters.with("rank", rank).with("timeout", timeout_s);
        StaticBackend::new(Arc::default()).create(&parameters).expect("whole")
    }

    #[test]
    fn nodes_meet_beneath_the_run() {
        let port = free_port();
        let told: Vec<(i64, i64, Vec<u8>)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        let handler = handler(port, rank, 3, 20);
                        let info = handler.next_rendezvous().expect("all come");
                        assert_eq!(info.bootstrap_store_info.master_addr, "127.0.0.1");
                        assert_eq!(info.bootstrap_store_info.master_port, port);
                        assert_eq!(info.store.server().is_some(), rank == 0);
                        let again = handler.next_rendezvous().expect("the same");
                        assert!(Arc::ptr_eq(&info.store, &again.store));
                        if rank == 1 {
                            info.store.set(b"k", b"v", Timeout::Default).expect("applied");
                        }
                        let value = info.store.get_owned(b"k", Timeout::Default).expect("set");
                        info.store.barrier_by_keys(b"done", 3, Timeout::Default).expect("all come");
                        if rank == 0 {
                            // PyTorch's prefix store would use these very keys.
                            let bare = StoreOptions { scope: b""[..].into(), ..StoreOptions::default() };
                            let bare = Store::connect("127.0.0.1", port, bare).expect("connected");
                            let there = bare.check(&[b"/run/k", b"init/"], Timeout::Default).expect("asked");
                            assert!(there);
                            bare.wait(&[b"/run/left/last_member"], Timeout::Default)
                                .expect("the others left");
                        } else if info.store.add(b"left", 1, Timeout::Default).expect("added") == 2 {
                            info.store.set(b"left/last_member", b"1", Timeout::Default).expect("applied");
                        }
                        (info.rank, info.world_size, value)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(told, [0, 1, 2].map(|rank| (rank, 3, b"v".to_vec())));
    }

    #[test]
    fn what_else_it_says() {
        let handler = handler(1, 1, 2, 5);
        assert_eq!((handler.backend(), handler.run_id()), ("static", "run"));
        assert!(handler.use_agent_store());
        handler.set_closed().expect("nothing to do");
        assert!(!handler.is_closed().expect("never"));
        assert_eq!(handler.num_nodes_waiting().expect("nobody"), 0);
        assert!(handler.shutdown());
    }

    #[test]
    fn rank_zero_does_not_wait_for_ever() {
        let error = handler(free_port(), 0, 2, 1).next_rendezvous().expect_err("nobody else comes");
        let HandlerError::Store(error) = error else { panic!("{error}") };
        assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Operation::WaitForWorkers));
    }

    #[test]
    fn a_node_that_waits_is_cancelled_wherever_it_is() {
        let port = free_port();
        // Rank 0 waits for the others, rank 1 for a server at a port where there is none.
        for handler in [handler(port, 0, 2, 600), handler(free_port(), 1, 2, 600)] {
            let error = thread::scope(|scope| {
                let node = scope.spawn(|| handler.next_rendezvous());
                while !node.is_finished() {
                    handler.cancel();
                    thread::yield_now();
                }
                node.join().expect("no panic").expect_err("cancelled")
            });
            let HandlerError::Store(error) = error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
    }

    #[test]
    fn a_port_in_use_is_told() {
        let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let reserved = ReservedPort::at(any).expect("a port");
        let error = handler(reserved.port(), 0, 1, 5).next_rendezvous().expect_err("taken");
        let text = format!("cannot host the store at 127.0.0.1:{}: ", reserved.port());
        assert!(error.to_string().starts_with(&text), "{error}");
    }
}
