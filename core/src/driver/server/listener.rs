//! Listening sockets.

use super::Listen;
use crate::driver::resolve::{self, ResolveError};
use crate::driver::socket::KeepAlive;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::fmt;
use std::format;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::string::{String, ToString};

/// Whether an IPv6 wildcard also accepts IPv4 peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Exactly the family of the address.
    AsGiven,
    /// `::` also accepts IPv4 peers. Ignored for any other address.
    DualStack,
}

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {kind}: {cause}")]
pub struct StartError {
    /// Requested address.
    pub address: String,
    /// Kind of failure.
    pub kind: StartErrorKind,
    /// Error of the system.
    pub cause: io::Error,
}

/// Kinds of [`StartError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartErrorKind {
    /// Another socket has the port.
    #[error("the address is in use")]
    AddressInUse,
    /// The address does not belong to this host.
    #[error("the address is not one of this host")]
    AddressNotAvailable,
    /// The host name has no address.
    #[error("the name has no address")]
    Unresolved,
    /// The system forbids it.
    #[error("permission denied")]
    PermissionDenied,
    /// The adopted descriptor is not a bound stream socket.
    #[error("the descriptor is not a bound stream socket")]
    NotAListener,
    /// The process has no descriptors or memory left.
    #[error("out of descriptors or memory")]
    Exhausted,
    /// Anything else.
    #[error("the system refused")]
    Io,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Address { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Adopted(fd) => write!(f, "descriptor {}", std::os::fd::AsRawFd::as_raw_fd(fd)),
        }
    }
}

impl StartError {
    /// Makes the error from an error of the system.
    pub fn io(listen: &Listen, cause: io::Error) -> Self {
        let kind = match (cause.kind(), cause.raw_os_error()) {
            (io::ErrorKind::AddrInUse, _) => StartErrorKind::AddressInUse,
            (io::ErrorKind::AddrNotAvailable, _) => StartErrorKind::AddressNotAvailable,
            (io::ErrorKind::PermissionDenied, _) => StartErrorKind::PermissionDenied,
            (io::ErrorKind::OutOfMemory, _) | (_, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS)) => {
                StartErrorKind::Exhausted
            }
            _ => StartErrorKind::Io,
        };
        Self { address: listen.to_string(), kind, cause }
    }

    fn of_kind(kind: StartErrorKind, listen: &Listen, cause: io::Error) -> Self {
        Self { address: listen.to_string(), kind, cause }
    }
}

/// Opens a listening, non-blocking socket.
pub fn open(listen: &Listen, keep_alive: Option<KeepAlive>) -> Result<std::net::TcpListener, StartError> {
    let socket = match listen {
        Listen::Address { host, port, family } => {
            let address = resolve(host, *port).map_err(|cause| match StartError::io(listen, cause) {
                error if error.kind == StartErrorKind::Exhausted => error,
                error => StartError { kind: StartErrorKind::Unresolved, ..error },
            })?;
            bind(address, *family).map_err(|cause| StartError::io(listen, cause))?
        }
        Listen::Adopted(fd) => {
            adopt(fd).map_err(|cause| StartError::of_kind(StartErrorKind::NotAListener, listen, cause))?
        }
    };
    prepare(&socket, keep_alive).map_err(|cause| StartError::io(listen, cause))?;
    Ok(socket.into())
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    if let Ok(literal) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(literal, port));
    }
    let found = resolve::addresses(host, port).map_err(|error| match error {
        ResolveError::System(number) => io::Error::from_raw_os_error(number),
        ResolveError::Resolver(_) => {
            io::Error::other(format!("failed to lookup address information: {error}"))
        }
    })?;
    found.into_iter().next().ok_or_else(|| io::Error::other("the resolver gave no address"))
}

fn bind(address: SocketAddr, family: Family) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        let both = family == Family::DualStack && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        socket.set_only_v6(!both)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// Duplicates the descriptor, so that the caller keeps its own in all cases.
fn adopt(fd: &std::os::fd::OwnedFd) -> io::Result<Socket> {
    let socket = Socket::from(fd.try_clone()?);
    let bound = socket.local_addr()?.as_socket().filter(|address| address.port() != 0);
    if socket.r#type()? != Type::STREAM || bound.is_none() {
        return Err(io::Error::other("a TCP socket that is bound to a port is needed"));
    }
    Ok(socket)
}

/// Sets the options that accepted sockets inherit, once on the listener, so that they cost nothing for each
/// connection.
fn prepare(socket: &Socket, keep_alive: Option<KeepAlive>) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(keep_alive) = keep_alive {
        keep_alive.apply(&SockRef::from(socket))?;
    }
    // The system reduces the backlog to its own maximum.
    socket.listen(i32::MAX)
}
