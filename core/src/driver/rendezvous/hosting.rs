//! Store servers that this process hosts. All handlers that ask for one port share a server, as PyTorch's
//! multi-tenant stores do.

use crate::driver::prelude::*;
use crate::driver::server::{Family, Listen, Server, ServerOptions, StartError};
use crate::driver::tls::TlsAcceptor;
use crate::driver::token_file::ServerTokens;
use crate::node::server::Event;
use crate::opaque::opaque_debug;
use alloc::sync::Weak;
use core::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

/// A store could not be hosted.
#[derive(Debug, thiserror::Error)]
#[error("cannot host the store at {host}:{port}: {cause}")]
pub struct HostingError {
    /// Host at which clients look for the store.
    pub host: String,
    /// Port of the store.
    pub port: u16,
    /// Error of starting the server.
    #[source]
    pub cause: StartError,
}

/// The running servers of a context.
#[derive(Default)]
pub struct HostedServers {
    /// By port.
    servers: Mutex<Vec<(u16, Weak<Server>)>>,
    observer: OnceLock<Arc<ServerObserver>>,
}

opaque_debug!(HostedServers);

/// Function that gets the events of a context's servers. It must not block.
type ServerObserver = dyn Fn(&Event) + Send + Sync;

/// What a hosted server asks of native clients.
#[derive(Debug, Default)]
pub struct HostSecurity {
    /// TLS.
    pub tls: Option<TlsAcceptor>,
    /// Proof of a token.
    pub auth_tokens: Option<ServerTokens>,
}

impl HostedServers {
    /// Sets the observer of the servers that are started from now on. The first one stays.
    pub fn observe(&self, observer: impl Fn(&Event) + Send + Sync + 'static) {
        self.observer.set(Arc::new(observer)).ok();
    }

    /// Returns the server at `port`, starting it if this context has none there (port 0: always).
    ///
    /// It listens at `listen_host` if that is given. Otherwise it listens at `host` if that is an address or
    /// `localhost`. If `host` is a name it listens on all interfaces, since a host often resolves its own name to a
    /// loopback address. A server that runs already keeps its own TLS and tokens.
    ///
    /// # Errors
    /// The server cannot listen there.
    pub fn host(
        &self,
        host: &str,
        port: u16,
        listen_host: Option<&str>,
        security: &HostSecurity,
    ) -> Result<Arc<Server>, HostingError> {
        // Held during the start, so that only one of two concurrent callers starts the server.
        let mut servers = self.servers.locked();
        servers.retain(|(_, server)| server.strong_count() > 0);
        let of_port = servers.iter().find(|&&(known, _)| known == port);
        let running =
            of_port.and_then(|(_, server)| server.upgrade()).filter(|server| server.failure().is_none());
        if let Some(server) = running {
            return Ok(server);
        }
        let listen = listen_host.unwrap_or_else(|| listen_host_of(host));
        let start = |listen: &str| {
            let family = Family::DualStack;
            let listen = Listen::Address { host: listen.to_string(), port, family };
            let observer = self.observer.get().cloned();
            let observer = Box::new(move |event: &Event| {
                if let Some(observer) = &observer {
                    observer(event);
                }
            });
            let (tls, auth_tokens) = (security.tls.clone(), security.auth_tokens.clone());
            Server::start(ServerOptions { listen, tls, auth_tokens, observer, ..ServerOptions::on("", 0) })
        };
        let started = match start(listen) {
            // A host without IPv6 cannot listen at `::`.
            Err(_) if listen == EVERY_INTERFACE && listen_host.is_none() => start("0.0.0.0"),
            started => started,
        };
        let server = started.map_err(|cause| HostingError { host: host.to_string(), port, cause })?;
        let server = Arc::new(server);
        let port = server.local_addr().port();
        // A failed server stays alive while it is referenced, but serves no client.
        servers.retain(|&(known, _)| known != port);
        servers.push((port, Arc::downgrade(&server)));
        Ok(server)
    }
}

const EVERY_INTERFACE: &str = "::";

fn listen_host_of(host: &str) -> &str {
    if host == "localhost" || host.parse::<IpAddr>().is_ok() { host } else { EVERY_INTERFACE }
}

/// Returns the host and the port at which this process reaches `server` if it hosts it, and otherwise those given.
pub(super) fn address_of(server: Option<&Server>, host: &str, port: u16) -> (String, u16) {
    let Some(address) = server.map(Server::local_addr) else { return (host.to_string(), port) };
    let host = match address.ip() {
        ip if !ip.is_unspecified() => ip.to_string(),
        IpAddr::V4(_) => "127.0.0.1".to_string(),
        // A server on `::` accepts IPv4 and IPv6, unless configured otherwise.
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.to_string(),
    };
    (host, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_port_one_server() {
        let (servers, open) = (HostedServers::default(), HostSecurity::default());
        let first = servers.host("127.0.0.1", 0, None, &open).expect("a server");
        let port = first.local_addr().port();
        let second = servers.host("127.0.0.1", port, None, &open).expect("the same");
        assert!(Arc::ptr_eq(&first, &second));
        let other = servers.host("127.0.0.1", 0, None, &open).expect("another");
        assert_ne!(other.local_addr().port(), port);
        // Another context knows nothing of it.
        let error = HostedServers::default().host("127.0.0.1", port, None, &open).expect_err("taken");
        assert_eq!(error.cause.kind, crate::driver::server::StartErrorKind::AddressInUse);
        drop((first, second));
        let again = servers.host("127.0.0.1", port, None, &open).expect("it is free again");
        assert_eq!(again.local_addr().port(), port);
    }

    #[test]
    fn where_it_listens() {
        let (servers, open) = (HostedServers::default(), HostSecurity::default());
        let ip = |host, listen_host| {
            servers.host(host, 0, listen_host, &open).expect("a server").local_addr().ip().to_string()
        };
        assert_eq!(ip("127.0.0.1", None), "127.0.0.1");
        assert_eq!(ip("node-0.example", Some("127.0.0.1")), "127.0.0.1");
        let every = ip("node-0.example", None);
        assert!(["::", "0.0.0.0"].contains(&every.as_str()), "{every}");
    }
}
