//! Publishing the address of the ranks' store.

use super::host_name::full_host_name;
use super::reserved_port::{NoPort, ReservedPort};
use crate::driver::prelude::*;
use crate::driver::store::{Store, Timeout};
use crate::rendezvous::store_info::{MASTER_ADDR_KEY, MASTER_PORT_KEY, RendezvousStoreInfo, StoreInfoError};
use alloc::string::ToString;

/// Error of publishing or reading the address of the ranks' store.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Rank 0 got no port.
    #[error(transparent)]
    Port(#[from] NoPort),
    /// The published values are no valid address.
    #[error(transparent)]
    Info(#[from] StoreInfoError),
    /// A store operation failed.
    #[error(transparent)]
    Store(#[from] CallError),
}

/// Result of [`build`].
#[derive(Debug)]
pub struct Built {
    /// Address of the ranks' store.
    pub info: RendezvousStoreInfo,
    /// The published port, where rank 0 reserved one: the server that is to serve there takes it over.
    pub reserved: Option<ReservedPort>,
}

/// Publishes an address and a port on rank 0; all ranks, rank 0 included, read them.
///
/// `local_addr` is published as given; without one, the host's full name is. `server_port` is
/// the port of a server that already runs. With 0 or `None` there is none, and a port is reserved for one.
///
/// # Errors
/// The address could not be published, or not read in time.
pub fn build(
    rank: i64,
    store: &Store,
    local_addr: Option<&str>,
    server_port: Option<u16>,
    timeout: Timeout,
) -> Result<Built, PublishError> {
    let mut reserved = None;
    if rank == 0 {
        let address = match local_addr {
            Some(address) => address.to_string(),
            None => full_host_name(&CancelToken::new()),
        };
        let port = match server_port {
            None | Some(0) => reserved.insert(ReservedPort::take()?).port(),
            Some(port) => port,
        };
        store.set(MASTER_ADDR_KEY, address.as_bytes(), timeout)?;
        store.set(MASTER_PORT_KEY, port.to_string().as_bytes(), timeout)?;
    }
    let address = store.get_owned(MASTER_ADDR_KEY, timeout)?;
    let port = store.get_owned(MASTER_PORT_KEY, timeout)?;
    Ok(Built { info: RendezvousStoreInfo::from_values(&address, &port)?, reserved })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::server::{Server, ServerOptions};
    use crate::driver::store_client::StoreOptions;
    use crate::error::ErrorKind;
    use crate::time::Duration;
    use std::thread;

    const SOON: Timeout = Timeout::After(Duration::from_secs(20));

    fn store() -> (Server, Store) {
        let server = Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server");
        let port = server.local_addr().port();
        (server, Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected"))
    }

    #[test]
    fn rank_zero_publishes_and_all_read() {
        let (_server, store) = store();
        let (first, second) = thread::scope(|scope| {
            let other = scope.spawn(|| build(1, &store, Some("not published"), None, SOON));
            let first = build(0, &store, Some("node-0"), None, SOON).expect("published");
            (first, other.join().expect("no panic").expect("read"))
        });
        assert_eq!(first.info, second.info);
        assert_eq!(first.info.master_addr, "node-0");
        assert!(second.reserved.is_none());
        let reserved = first.reserved.expect("a port was taken");
        assert_eq!(reserved.port(), first.info.master_port);
        assert_ne!(reserved.port(), 0);
        let port = store.get_owned(b"MASTER_PORT", SOON).expect("there");
        assert_eq!(port, reserved.port().to_string().into_bytes());
    }

    #[test]
    fn a_port_that_is_served_already_is_published_as_it_is() {
        let (_server, store) = store();
        let built = build(0, &store, None, Some(29500), SOON).expect("published");
        assert_eq!((built.info.master_port, built.reserved.is_none()), (29500, true));
        assert_eq!(built.info.master_addr, full_host_name(&CancelToken::new()));
        assert!(!built.info.master_addr.is_empty());
        assert!(build(0, &store, None, Some(0), SOON).expect("published").reserved.is_some());
    }

    #[test]
    fn reading_an_address_that_is_not_published_times_out() {
        let (_server, store) = store();
        let short = Timeout::After(Duration::from_millis(50));
        let Err(PublishError::Store(error)) = build(1, &store, None, None, short) else {
            panic!("too early")
        };
        assert_eq!((error.kind(), error.key()), (ErrorKind::TimedOut, Some("MASTER_ADDR")));
        store.set(b"MASTER_ADDR", b"h", SOON).expect("applied");
        store.set(b"MASTER_PORT", b"http", SOON).expect("applied");
        let error = build(1, &store, None, None, SOON).expect_err("no port");
        assert_eq!(error.to_string(), "MASTER_PORT: invalid literal for int() with base 10: 'http'");
    }
}
