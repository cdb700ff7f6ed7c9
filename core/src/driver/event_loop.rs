//! The part of an event loop that can be embedded in another loop: one descriptor that is readable whenever there is
//! something to do.
//!
//! The descriptor is an epoll instance. Sockets are watched level-triggered, so what one iteration leaves over wakes
//! the next one. A timer and an eventfd are watched as well, so deadlines and other threads also make the descriptor
//! readable. The descriptor stays the same for the whole life of the loop, and no iteration blocks.
//!
//! [`EventLoop`] knows no protocol: its user watches sockets under tokens and gets [`Ready`] ones back.

use super::clock::Clock;
use crate::opaque::opaque_debug;
use crate::prelude::*;
use core::mem::MaybeUninit;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Identifier of a watched descriptor, chosen by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Conditions to watch for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to read.
    Read,
    /// Space to write.
    Write,
    /// Data to read or space to write.
    Both,
    /// The peer has closed its end, which is reported as readable. Other data to read is not reported.
    End,
    /// The peer has closed its end, or there is space to write.
    WriteOrEnd,
}

/// Watched descriptor that has become ready. Both flags may be spurious.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Token of the descriptor.
    pub token: Token,
    /// Whether reading will not block.
    pub readable: bool,
    /// Whether writing will not block.
    pub writable: bool,
}

/// Makes a loop's descriptor readable from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes a waker without a loop, for a thread that waits for the descriptor by itself.
    pub fn alone() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Returns the descriptor, which is readable from a wake-up until [`Waker::take_back`].
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Clears all wake-ups.
    pub fn take_back(&self) {
        take_count(&self.0);
    }

    /// Wakes the loop.
    pub fn wake(&self) {
        // The write fails only when the counter is full, and then the loop is awake.
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).ok();
    }
}

/// An epoll instance. A forked child shares it with its parent, which goes on to use it.
#[derive(Debug)]
struct Epoll {
    fd: OwnedFd,
    owner: u32,
}

impl Interest {
    const fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN.union(EventFlags::RDHUP),
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::OUT),
            Self::End => EventFlags::RDHUP,
            Self::WriteOrEnd => EventFlags::RDHUP.union(EventFlags::OUT),
        }
    }
}

/// Adds descriptors to a loop, from any thread.
#[derive(Clone, Debug)]
pub struct Watcher(Arc<Epoll>);

impl Watcher {
    /// Watches a descriptor until the watch is dropped, which must be before the descriptor is closed.
    ///
    /// # Errors
    /// The error of the system.
    pub fn watch(&self, fd: RawFd, interest: Interest, token: Token) -> io::Result<Watch> {
        // SAFETY: the caller has the descriptor open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        epoll::add(&self.0.fd, borrowed, EventData::new_u64(token.0), interest.flags())?;
        Ok(Watch { epoll: Arc::clone(&self.0), fd, interest, token })
    }
}

/// Watched descriptor. Dropping this removes it explicitly, since closing it is not enough: in a forked child the
/// descriptor may live on, and epoll would go on to report it. A child that drops a watch of its parent removes
/// nothing.
#[derive(Debug)]
pub struct Watch {
    epoll: Arc<Epoll>,
    fd: RawFd,
    interest: Interest,
    token: Token,
}

impl Watch {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open until the watch is dropped.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }

    /// Watches for other conditions under the same token; makes no system call when they are the same.
    ///
    /// # Errors
    /// The error of the system.
    pub fn change(&mut self, interest: Interest) -> io::Result<()> {
        if self.interest != interest {
            let data = EventData::new_u64(self.token.0);
            epoll::modify(&self.epoll.fd, self.fd(), data, interest.flags())?;
            self.interest = interest;
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::process::id() == self.epoll.owner {
            let deleted = epoll::delete(&self.epoll.fd, self.fd());
            // If the descriptor is closed first, another socket can get its number, and this would end that one's watch.
            debug_assert!(
                deleted.is_ok() || std::thread::panicking(),
                "descriptor {} was closed before its watch was dropped: {deleted:?}",
                self.fd
            );
        }
    }
}

const TIMER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
/// Maximum number of ready descriptors in one iteration; the others are reported in the next one.
const READY_MAX: usize = 256;
/// Maximum time of one `epoll_wait`.
const WAIT_MAX: Duration = Duration::from_millis(i32::MAX as u64);

/// Event loop without a protocol. See the module's documentation.
pub struct EventLoop {
    epoll: Arc<Epoll>,
    timer: OwnedFd,
    waker: Waker,
    clock: Clock,
    /// Time at which the timer fires.
    armed: Option<Instant>,
}

opaque_debug!(EventLoop);

impl EventLoop {
    /// Makes a loop that watches nothing yet.
    ///
    /// # Errors
    /// The error of the system: most likely no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let waker = Waker::alone()?;
        for (fd, token) in [(timer.as_fd(), TIMER), (waker.0.as_fd(), WAKER)] {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
        }
        Ok(Self {
            epoll: Arc::new(Epoll { fd: epoll, owner: std::process::id() }),
            timer,
            waker,
            clock: Clock::new(),
            armed: None,
        })
    }

    /// Returns the descriptor that is readable when there is something to do.
    pub fn fd(&self) -> RawFd {
        self.epoll.fd.as_raw_fd()
    }

    /// Returns the loop's clock.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns a waker for other threads.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Returns a watcher for other threads, or for code that cannot borrow the loop.
    #[must_use]
    pub fn watcher(&self) -> Watcher {
        Watcher(Arc::clone(&self.epoll))
    }

    /// As [`Watcher::watch`].
    ///
    /// # Errors
    /// The error of the system.
    pub fn watch(&self, fd: RawFd, interest: Interest, token: Token) -> io::Result<Watch> {
        self.watcher().watch(fd, interest, token)
    }

    /// Returns whether [`EventLoop::wake_at`] has made sure that the descriptor is readable at `deadline`.
    pub(in crate::driver) fn wakes_by(&self, deadline: Instant) -> bool {
        self.armed.is_some_and(|armed| armed <= deadline)
    }

    /// Makes the descriptor readable at `deadline` at the latest. An earlier timer stays: an occasional spurious
    /// wake-up is cheaper than a system call for each deadline that moves.
    pub fn wake_at(&mut self, deadline: Instant) {
        if self.wakes_by(deadline) {
            return;
        }
        let left = deadline.since(self.clock.now()).max(Duration::from_nanos(1));
        let alarm = Itimerspec { it_interval: Timespec::default(), it_value: timespec(left) };
        // It cannot fail with a valid specification.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &alarm).ok();
        self.armed = Some(deadline);
    }

    /// Returns the descriptors that have become ready since the last iteration; never blocks. Clears the timer and
    /// wake-ups.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll(&mut self) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        self.look(Some(Duration::ZERO))
    }

    /// As [`EventLoop::poll`], but blocks until a descriptor is ready or until `until`, if given. It may return
    /// early.
    ///
    /// # Errors
    /// The error of the system.
    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        let left = until.map(|until| until.since(self.clock.now()).min(WAIT_MAX));
        self.look(left)
    }

    fn look(&mut self, span: Option<Duration>) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        let mut buffer = [const { MaybeUninit::<epoll::Event>::uninit() }; READY_MAX];
        let found = match epoll::wait(&self.epoll.fd, &mut buffer, span.map(timespec).as_ref()) {
            Ok((found, _)) => &*found,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        let mut ready = Vec::with_capacity(found.len());
        for event in found {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                TIMER => {
                    take_count(&self.timer);
                    self.armed = None;
                }
                WAKER => take_count(&self.waker.0),
                _ => {
                    let ended = flags.intersects(EventFlags::ERR | EventFlags::HUP);
                    ready.push(Ready {
                        token: Token(token),
                        readable: ended || flags.intersects(EventFlags::IN | EventFlags::RDHUP),
                        writable: ended || flags.contains(EventFlags::OUT),
                    });
                }
            }
        }
        Ok(ready.into_iter())
    }
}

/// Resets the counter of a timer or an eventfd.
fn take_count(fd: &OwnedFd) {
    // The read does not block, and the count does not matter.
    rustix::io::read(fd, &mut [0_u8; 8]).ok();
}

fn timespec(span: Duration) -> Timespec {
    Timespec::try_from(span).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::testing::becomes_readable;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    const SECONDS: Duration = Duration::from_secs(10);

    #[test]
    fn sockets_alarms_and_other_threads_make_the_descriptor_readable() {
        let mut events = EventLoop::new().expect("descriptors");
        assert!(!becomes_readable(events.fd(), Duration::ZERO));

        let (mut near, far) = UnixStream::pair().expect("a pair");
        let mut watch = events.watch(far.as_raw_fd(), Interest::Read, Token(7)).expect("watched");
        near.write_all(b"x").expect("written");
        for _ in 0..2 {
            assert!(becomes_readable(events.fd(), SECONDS), "until it is read");
            let ready: Vec<Ready> = events.poll().expect("polled").collect();
            assert_eq!(ready, [Ready { token: Token(7), readable: true, writable: false }]);
        }
        watch.change(Interest::Write).expect("watched");
        let ready: Vec<Ready> = events.poll().expect("polled").collect();
        assert_eq!(ready, [Ready { token: Token(7), readable: false, writable: true }]);
        drop(watch);
        assert!(!becomes_readable(events.fd(), Duration::ZERO), "it is not watched any more");

        let waker = events.waker();
        std::thread::spawn(move || waker.wake()).join().expect("woken");
        assert!(becomes_readable(events.fd(), SECONDS));
        assert_eq!(events.poll().expect("polled").count(), 0);
        assert!(!becomes_readable(events.fd(), Duration::ZERO), "a waking is taken back");

        let now = events.clock().now();
        events.wake_at(now + Duration::from_millis(30));
        events.wake_at(now + SECONDS);
        assert!(becomes_readable(events.fd(), Duration::from_secs(5)), "the earlier alarm counts");
        assert_eq!(events.poll().expect("polled").count(), 0);
        assert!(events.clock().now() >= now + Duration::from_millis(30));
        assert!(!becomes_readable(events.fd(), Duration::ZERO), "an alarm is taken back");
        events.wake_at(Instant::ORIGIN);
        assert!(becomes_readable(events.fd(), SECONDS), "one that has passed goes off at once");
        assert_eq!(events.poll().expect("polled").count(), 0);
    }

    #[test]
    fn a_descriptor_is_watched_once_and_a_second_attempt_changes_nothing() {
        let mut events = EventLoop::new().expect("descriptors");
        let (mut near, far) = UnixStream::pair().expect("a pair");
        let _watch = events.watch(far.as_raw_fd(), Interest::Read, Token(1)).expect("watched");
        let again = events.watch(far.as_raw_fd(), Interest::Read, Token(2)).expect_err("it is watched");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        near.write_all(b"x").expect("written");
        let ready: Vec<Ready> = events.poll().expect("polled").collect();
        assert_eq!(ready, [Ready { token: Token(1), readable: true, writable: false }]);
    }

    #[test]
    fn a_thread_may_wait_in_it() {
        let mut events = EventLoop::new().expect("descriptors");
        let until = events.clock().now() + Duration::from_millis(20);
        assert_eq!(events.wait(Some(until)).expect("waited").count(), 0);
        assert!(events.clock().now() >= until);
        let waker = events.waker();
        let other = std::thread::spawn(move || waker.wake());
        assert_eq!(events.wait(None).expect("woken").count(), 0);
        other.join().expect("no panic");
    }
}
