//! Detection of a host that falls silent while bytes are on their way to it.
//!
//! The kernel's probes watch idle connections only. While sent bytes are unacknowledged, the kernel sends these again
//! instead, for about 15 minutes. Clients send heartbeats and requests, so that is the usual case: a heartbeat that is
//! due between the host's last sign and the kernel's verdict suspends the probes. So clients look at the connection
//! themselves, once a second until all bytes are acknowledged (docs/adr/0017-silent-servers.md).

use super::prelude::*;
use super::socket::KeepAlive;
use core::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Time between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of unanswered probes of a closed window from which on the peer's host counts as silent. A host that is alive
/// answers each.
const WINDOW_PROBES_MIN: u8 = 3;

/// Bytes that a peer has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InFlight {
    /// There are none.
    Nothing,
    /// This host holds them back: the peer does not read, and its window is closed.
    Withheld,
    /// There are some. Time since the peer's host last acknowledged anything, be that a probe.
    Unacknowledged(Duration),
}

impl InFlight {
    /// Returns what is in flight on a TCP connection.
    pub(super) fn on(socket: &impl AsRawFd) -> Self {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
        // SAFETY: the system writes at most `length` bytes to `info`, which has as many.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Self::Nothing;
        }
        // SAFETY: it is made of numbers, all of which are zero where the system wrote nothing.
        let info = unsafe { info.assume_init() };
        if info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0 {
            return Self::Nothing;
        }
        // A peer that does not read acknowledges all that its window takes, and its host answers the probes of the
        // window. Probes are unanswered, too, where this host has no route any more and cannot send anything.
        if info.tcpi_unacked == 0 && info.tcpi_probes < WINDOW_PROBES_MIN {
            return Self::Withheld;
        }
        Self::Unacknowledged(Duration::from_millis(u64::from(info.tcpi_last_ack_recv)))
    }

    /// Returns whether the peer's host is to be given up.
    pub(super) fn is_overdue(self, silence_max: Duration) -> bool {
        matches!(self, Self::Unacknowledged(since) if since >= silence_max)
    }
}

/// Returns how long a host may acknowledge nothing: as long as the kernel's probes would take for an idle connection.
/// `None` if the kernel watches the bytes itself, or is not to watch the connection at all.
pub(super) fn silence_max(keep_alive: Option<&KeepAlive>) -> Option<Duration> {
    let keep_alive = keep_alive.filter(|keep_alive| keep_alive.unacknowledged_max.is_none())?;
    Some(keep_alive.idle.saturating_add(keep_alive.interval.saturating_mul(keep_alive.probes)))
}

/// Timer of the looks at a client's connections.
#[derive(Debug, Default)]
pub(super) struct AckWatch {
    look_at: Option<Instant>,
}

impl AckWatch {
    /// Notes that bytes were sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.look_at.get_or_insert(now + LOOK_INTERVAL);
    }

    /// Returns when the next look is due.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Returns whether a look is due. Then the caller looks, and calls [`AckWatch::sent`] if bytes are still in flight.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        self.look_at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_peer_that_does_not_read_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (mut far, _) = listener.accept().expect("accepted");
        near.set_nonblocking(true).expect("set");
        let mut sent = 0;
        while let Ok(count) = near.write(&[0; 1 << 16]) {
            sent += count;
        }
        // The window is full. What fitted into it is acknowledged in a moment.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while InFlight::on(&near) != InFlight::Withheld {
            assert!(std::time::Instant::now() < deadline, "{:?}", InFlight::on(&near));
            std::thread::yield_now();
        }
        let mut buffer = vec![0; 1 << 16];
        assert!(sent > buffer.len() && far.read(&mut buffer).expect("there are some") > 0);
    }

    #[test]
    fn what_is_overdue_follows_the_probes() {
        let seconds = Duration::from_secs;
        assert_eq!(silence_max(Some(&KeepAlive::default())), Some(seconds(5)));
        let by_kernel = KeepAlive { unacknowledged_max: Some(seconds(60)), ..KeepAlive::default() };
        assert_eq!([silence_max(Some(&by_kernel)), silence_max(None)], [None; 2]);
        assert!(InFlight::Unacknowledged(seconds(5)).is_overdue(seconds(5)));
        assert!(!InFlight::Unacknowledged(seconds(4)).is_overdue(seconds(5)));
        assert!(![InFlight::Nothing, InFlight::Withheld].iter().any(|all| all.is_overdue(Duration::ZERO)));
    }

    #[test]
    fn looks_end_when_all_is_acknowledged() {
        let (mut watch, at) = (AckWatch::default(), |ms| Instant::ORIGIN + Duration::from_millis(ms));
        watch.sent(at(0));
        watch.sent(at(700));
        assert_eq!(watch.poll_timeout(), Some(at(1000)));
        assert!(!watch.take_due(at(999)) && watch.take_due(at(1000)));
        assert_eq!(watch.poll_timeout(), None);
    }
}
