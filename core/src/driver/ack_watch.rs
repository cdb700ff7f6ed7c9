//! Detection of a host that falls silent while bytes are on their way to it.
//!
//! The kernel's probes watch idle connections only. While sent bytes are unacknowledged, the kernel sends these again
//! instead, for about 15 minutes. Clients send heartbeats and requests, so that is the usual case: a heartbeat that is
//! due between the host's last sign and the kernel's verdict suspends the probes. So clients and servers look at the
//! connection themselves, once a second until all bytes are acknowledged (docs/adr/0017-silent-servers.md).

use super::prelude::*;
use super::socket::KeepAlive;
use core::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Time between two looks.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two batches of looks of a server.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// Most looks of a batch, each of which is a system call: 6,400 in a second.
const LOOKS_PER_BATCH: usize = 64;
/// Most connections of a batch.
const CONNECTIONS_PER_BATCH: usize = 1024;

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

/// Result of a server's look at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing was sent, so there was no need to look.
    NothingSent,
    /// The peer has sent something since the last look, so there was no need to look yet.
    PeerActive,
    /// All bytes have been acknowledged, or the connection is given up.
    Acknowledged,
    /// Some bytes are still in flight.
    InFlight,
}

/// Timer of the looks at a server's connections. A round looks at all of them, in batches, and begins a second after the
/// one before at the earliest.
#[derive(Debug, Default)]
pub(super) struct AckRounds {
    look_at: Option<Instant>,
    /// Slot with which the next batch begins; 0 between rounds.
    next_slot: usize,
    /// Whether another round has to follow this one.
    has_more: bool,
}

impl AckRounds {
    /// Notes that bytes were sent to a connection.
    pub(super) fn sent(&mut self, now: Instant) {
        self.has_more = true;
        self.look_at.get_or_insert(now + LOOK_INTERVAL);
    }

    /// Returns when the next batch is due.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    /// Looks at the next batch of connections if it is due. `slots` is the length of their table.
    pub(super) fn look(&mut self, now: Instant, slots: usize, mut look: impl FnMut(usize) -> Look) {
        let Some(due) = self.look_at.filter(|due| *due <= now) else { return };
        if now.since(due) > LOOK_INTERVAL {
            // This process did not run, and perhaps neither did its host. The acknowledgements may be about to come.
            self.look_at = Some(now + LOOK_INTERVAL);
            return;
        }
        if self.next_slot == 0 {
            self.has_more = false;
        }
        let (mut looks, end) = (0, slots.min(self.next_slot + CONNECTIONS_PER_BATCH));
        while self.next_slot < end && looks < LOOKS_PER_BATCH {
            let found = look(self.next_slot);
            looks += usize::from(matches!(found, Look::Acknowledged | Look::InFlight));
            self.has_more |= matches!(found, Look::PeerActive | Look::InFlight);
            self.next_slot += 1;
        }
        let is_done = self.next_slot >= slots;
        if is_done {
            self.next_slot = 0;
        }
        self.look_at = match (is_done, self.has_more) {
            (false, _) => Some(now + BATCH_INTERVAL),
            (true, true) => Some(now + LOOK_INTERVAL),
            (true, false) => None,
        };
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

    /// Runs the batches that are due before `end`. Returns the slots of their looks.
    fn run(rounds: &mut AckRounds, end: Instant, slots: &[Look]) -> Vec<usize> {
        let mut looked = Vec::new();
        while let Some(now) = rounds.poll_timeout().filter(|at| *at < end) {
            let before = looked.len();
            rounds.look(now, slots.len(), |slot| {
                if let Look::Acknowledged | Look::InFlight = slots[slot] {
                    looked.push(slot);
                }
                slots[slot]
            });
            assert!(looked.len() - before <= LOOKS_PER_BATCH);
        }
        looked
    }

    #[test]
    fn a_server_looks_at_a_bounded_number_of_connections_in_a_second_and_skips_none() {
        let (mut rounds, at) = (AckRounds::default(), |ms| Instant::ORIGIN + Duration::from_millis(ms));
        rounds.sent(at(0));
        let slots = [Look::InFlight; 10_000];
        assert_eq!(run(&mut rounds, at(1000), &slots), [0; 0]);
        let first = run(&mut rounds, at(2000), &slots);
        assert_eq!(first, (0..6400).collect::<Vec<_>>());
        assert_eq!(run(&mut rounds, at(3000), &slots), (6400..10_000).collect::<Vec<_>>());
        // The next round begins a second after this one has ended, and is the last.
        assert_eq!(run(&mut rounds, at(10_000), &[Look::Acknowledged; 100]), (0..100).collect::<Vec<_>>());
        assert_eq!(rounds.poll_timeout(), None);
    }

    #[test]
    fn a_server_looks_until_all_is_acknowledged_and_only_where_that_is_unknown() {
        let (mut rounds, at) = (AckRounds::default(), |ms| Instant::ORIGIN + Duration::from_millis(ms));
        rounds.sent(at(0));
        let slots = [Look::NothingSent, Look::PeerActive, Look::InFlight];
        assert_eq!(run(&mut rounds, at(2500), &slots), [2, 2]);
        // What is sent while there is a round is for the next one.
        rounds.look(at(3000), 2000, |_| Look::NothingSent);
        rounds.sent(at(3001));
        rounds.look(at(3010), 2000, |_| Look::NothingSent);
        assert_eq!(rounds.poll_timeout(), Some(at(4010)));
        assert_eq!(run(&mut rounds, at(9000), &[Look::NothingSent; 5]), [0; 0]);
        assert_eq!(rounds.poll_timeout(), None);
    }

    #[test]
    fn a_server_that_did_not_run_waits_for_acknowledgements_before_it_looks() {
        let (mut rounds, at) = (AckRounds::default(), |ms| Instant::ORIGIN + Duration::from_millis(ms));
        rounds.sent(at(0));
        rounds.look(at(60_000), 1, |_| unreachable!("it was stopped for a minute"));
        assert_eq!(rounds.poll_timeout(), Some(at(61_000)));
        assert_eq!(run(&mut rounds, at(62_000), &[Look::Acknowledged]), [0]);
    }
}
