//! A port that no other process can take.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::fd::OwnedFd;

/// The system assigned no port.
#[derive(Debug, thiserror::Error)]
#[error("Failed to create a socket")]
pub struct NoPort(#[source] io::Error);

/// A port on all interfaces, held by a listening socket until a server takes it over. Clients that connect earlier
/// wait in the socket's queue. Dropping it releases the port.
#[derive(Debug)]
pub struct ReservedPort {
    socket: OwnedFd,
    port: u16,
}

impl ReservedPort {
    /// Reserves a port that the system chooses: for IPv6 and IPv4, or for IPv4 alone where there is no IPv6.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn take() -> Result<Self, NoPort> {
        let every_v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        let every_v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self::at(every_v6).or_else(|_| Self::at(every_v4)).map_err(NoPort)
    }

    /// Reserves `address`; with port 0 the system chooses the port.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        // Without SO_REUSEADDR on this socket no other socket can bind the port, even one with that option.
        socket.bind(&SockAddr::from(address))?;
        socket.listen(i32::MAX)?;
        let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
        Ok(Self { socket: socket.into(), port })
    }

    /// Returns the port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the socket, for a server of another library or another process.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::server::{Listen, Server, ServerOptions};
    use crate::driver::store::{Store, Timeout};
    use crate::driver::store_client::StoreOptions;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn no_other_socket_gets_the_port() {
        let reserved = ReservedPort::take().expect("a port");
        let port = reserved.port();
        let taken = TcpListener::bind(("0.0.0.0", port)).expect_err("taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // A client that connects too early waits.
        let early = TcpStream::connect(("127.0.0.1", port)).expect("in the queue");
        let server = Server::start(ServerOptions {
            listen: Listen::Adopted(reserved.into_socket()),
            ..ServerOptions::on("", 0)
        })
        .expect("it runs");
        assert_eq!(server.local_addr().port(), port);
        let store = Store::connect("127.0.0.1", port, StoreOptions::default()).expect("connected");
        store.set(b"k", b"v", Timeout::Default).expect("applied");
        drop(early);
        server.stop().expect("stopped");
    }

    #[test]
    fn dropping_gives_it_back() {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let reserved = ReservedPort::at(address).expect("a port");
        let address = SocketAddr::new(address.ip(), reserved.port());
        drop(reserved);
        assert_eq!(ReservedPort::at(address).expect("free").port(), address.port());
    }
}
