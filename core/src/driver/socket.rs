//! Client sockets: how they are opened, and what their errors mean.

use crate::error::{Cause, ErrorKind};
use crate::limits::UngreetedLimits;
use crate::prelude::*;
use core::mem::MaybeUninit;
use core::net::SocketAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use std::io;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, RawFd};

/// Settings that detect a silent peer while nothing is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Time without traffic before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is lost.
    pub probes: u32,
    /// Longest time that sent bytes may stay unacknowledged, as the system counts it. `None`: a connection
    /// ends when the peer's host has acknowledged nothing for as long as the probes would take. The system treats a peer
    /// that is alive but does not read (its window is closed) as silent, so this is also the longest time that a peer
    /// with much to read may pause. For idle connections the system uses this time in place of `probes` (tcp(7)).
    pub unacknowledged_max: Option<Duration>,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(2),
            interval: Duration::from_secs(1),
            probes: 3,
            unacknowledged_max: None,
        }
    }
}

impl KeepAlive {
    /// Applies these settings to a socket. The sockets that a listener accepts inherit them.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        let probes =
            TcpKeepalive::new().with_time(self.idle).with_interval(self.interval).with_retries(self.probes);
        socket.set_tcp_keepalive(&probes)?;
        socket.set_tcp_user_timeout(self.unacknowledged_max)
    }
}

/// Allows connections that have not greeted a quarter of the descriptors that the process may have.
pub fn within_descriptors(limits: UngreetedLimits) -> UngreetedLimits {
    let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count_max = usize::try_from(descriptors_max / 4).unwrap_or(usize::MAX).min(limits.count_max);
    UngreetedLimits { count_max, ..limits }
}

/// Opens a non-blocking socket of the address's family.
pub fn open_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Starts to connect a socket. Returns whether it is already connected.
pub fn start_connect(
    socket: &Socket,
    address: SocketAddr,
    keep_alive: Option<&KeepAlive>,
) -> io::Result<bool> {
    socket.set_tcp_nodelay(true)?;
    if let Some(keep_alive) = keep_alive {
        keep_alive.apply(&SockRef::from(socket))?;
    }
    match socket.connect(&address.into()) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks, after a connecting socket became writable, whether it is connected.
pub fn finish_connect(socket: &Socket) -> io::Result<()> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let peer = socket.peer_addr()?;
    // On one host, a connect to a port without a listener may be given that very port as its local one. The socket is
    // then connected to itself.
    if socket.local_addr()?.as_socket() == peer.as_socket() {
        return Err(io::Error::from_raw_os_error(libc::ECONNREFUSED));
    }
    Ok(())
}

/// Waits until a descriptor is writable or has failed. Returns false when the time is up.
pub(super) fn wait_writable(fd: BorrowedFd<'_>, span: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::OUT, span)
}

/// Waits until a descriptor is readable or has failed. Returns false when the time is up.
pub fn wait_readable(fd: BorrowedFd<'_>, span: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::IN, span)
}

fn wait(fd: BorrowedFd<'_>, events: PollFlags, span: Duration) -> io::Result<bool> {
    let began = std::time::Instant::now();
    loop {
        // None is for ever: the span has more seconds than the system can count.
        let left = Timespec::try_from(span.saturating_sub(began.elapsed())).ok();
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], left.as_ref()) {
            Err(Errno::INTR) => {}
            found => return Ok(found? > 0),
        }
    }
}

/// State of an idle connection, as far as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// The connection is open and nothing has been received.
    Silent,
    /// There are bytes to read.
    Unread,
    /// The connection has ended.
    Ended,
}

/// Returns the state of a connection without reading from it.
pub fn look(socket: &Socket) -> Idle {
    match socket.recv_with_flags(&mut [MaybeUninit::uninit()], libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(1..) => Idle::Unread,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Idle::Silent,
        Ok(0) | Err(_) => Idle::Ended,
    }
}

/// Returns whether accepting failed for one connection only, which has already ended (accept(2)). The next one may be
/// waiting.
pub fn is_newcomers_fault(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
        )
    )
}

/// Shuts a connection down in both directions, so that threads blocked on it return.
pub(super) fn shut_down(fd: RawFd) {
    // SAFETY: the pool forgets a socket before it is closed.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // A failure means that the connection has ended already.
    SockRef::from(&fd).shutdown(Shutdown::Both).ok();
}

/// Returns the kind and the cause of a call that failed with this socket error.
pub fn classify(error: &io::Error) -> (ErrorKind, Cause) {
    let Some(number) = error.raw_os_error() else { return (ErrorKind::Io, Cause::Unknown) };
    let kind = match number {
        libc::ECONNREFUSED => ErrorKind::Refused,
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::EHOSTDOWN | libc::ENETDOWN => {
            ErrorKind::Unreachable
        }
        libc::ETIMEDOUT => ErrorKind::TimedOut,
        libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED | libc::ENOTCONN => ErrorKind::ServerGone,
        // pthread_create(3) fails with EAGAIN. A socket that would block does not get here.
        libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN => ErrorKind::Exhausted,
        _ => ErrorKind::Io,
    };
    (kind, Cause::Os(number))
}

/// Formats `host:port`, with brackets around an IPv6 address.
pub fn endpoint_text(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        host.to_string() + ":" + &port.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_nothing_stands_in_the_way_of_the_probes() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let watched = |keep_alive: KeepAlive| {
            keep_alive.apply(&SockRef::from(&socket)).expect("the system takes it");
            socket.tcp_user_timeout().expect("readable").filter(|span| !span.is_zero())
        };
        let minute = Some(Duration::from_secs(60));
        assert_eq!(watched(KeepAlive { unacknowledged_max: minute, ..KeepAlive::default() }), minute);
        // With any number here, Linux ignores the number of probes and waits for this time.
        assert_eq!(watched(KeepAlive::default()), None);
        let (idle, interval) = (socket.tcp_keepalive_time(), socket.tcp_keepalive_interval());
        assert_eq!(
            (idle.ok(), interval.ok(), socket.tcp_keepalive_retries().ok()),
            (Some(Duration::from_secs(2)), Some(Duration::from_secs(1)), Some(3))
        );
    }
}
