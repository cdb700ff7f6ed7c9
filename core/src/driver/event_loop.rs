//! The part of an event loop that can be embedded in another loop: one descriptor that is readable whenever there is
//! something to do.
//!
//! The descriptor is an epoll instance. Sockets are watched level-triggered, so what one iteration leaves over wakes
//! the next one. A timer and an eventfd are watched as well, so deadlines and other threads also make the descriptor
//! readable. The descriptor stays the same for the whole life of the loop, and no iteration blocks.
//!
//! [`EventLoop`] knows no protocol: its user watches sockets under tokens and gets [`Ready`] ones back.

use super::clock::Clock;
use crate::time::{Duration, Instant};
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

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
        // SAFETY: flags only; the result is checked before it is owned.
        let fd = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))? };
        Ok(Self(Arc::new(fd)))
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
        let one = 1_u64;
        // SAFETY: eight bytes, from a number that lives. The write fails only when the counter is full, and then the
        // loop is awake.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// An epoll instance. A forked child shares it with its parent, which goes on to use it.
#[derive(Debug)]
struct Epoll {
    fd: OwnedFd,
    owner: u32,
}

impl Epoll {
    fn control(&self, operation: i32, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        let flags = match interest {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::Write => libc::EPOLLOUT,
            Interest::Both => libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLOUT,
            Interest::End => libc::EPOLLRDHUP,
            Interest::WriteOrEnd => libc::EPOLLRDHUP | libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event { events: flags.cast_unsigned(), u64: token };
        // SAFETY: an epoll instance that lives and a valid event.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
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
        self.0.control(libc::EPOLL_CTL_ADD, fd, interest, token.0)?;
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
    /// Watches for other conditions under the same token; makes no system call when they are the same.
    ///
    /// # Errors
    /// The error of the system.
    pub fn change(&mut self, interest: Interest) -> io::Result<()> {
        if self.interest != interest {
            self.epoll.control(libc::EPOLL_CTL_MOD, self.fd, interest, self.token.0)?;
            self.interest = interest;
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::process::id() != self.epoll.owner {
            return;
        }
        // SAFETY: an epoll instance that lives; the event is not read for this operation. A failure means that the
        // descriptor is not watched any more.
        unsafe {
            libc::epoll_ctl(self.epoll.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, self.fd, core::ptr::null_mut());
        }
    }
}

const TIMER: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
/// Maximum number of ready descriptors in one iteration; the others are reported in the next one.
const READY_MAX: usize = 256;

/// Event loop without a protocol. See the module's documentation.
pub struct EventLoop {
    epoll: Arc<Epoll>,
    timer: OwnedFd,
    waker: Waker,
    clock: Clock,
    /// Time at which the timer fires.
    armed: Option<Instant>,
    found: Vec<libc::epoll_event>,
}

impl core::fmt::Debug for EventLoop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EventLoop")
            .field("fd", &self.fd())
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl EventLoop {
    /// Makes a loop that watches nothing yet.
    ///
    /// # Errors
    /// The error of the system: most likely no descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: flags only; each result is checked before it is owned.
        let (epoll, timer, waker) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
            )
        };
        let events = Self {
            epoll: Arc::new(Epoll { fd: epoll, owner: std::process::id() }),
            timer,
            waker: Waker(Arc::new(waker)),
            clock: Clock::new(),
            armed: None,
            found: alloc::vec![libc::epoll_event { events: 0, u64: 0 }; READY_MAX],
        };
        events.epoll.control(libc::EPOLL_CTL_ADD, events.timer.as_raw_fd(), Interest::Read, TIMER)?;
        events.epoll.control(libc::EPOLL_CTL_ADD, events.waker.0.as_raw_fd(), Interest::Read, WAKER)?;
        Ok(events)
    }

    /// Returns the descriptor that is readable when there is something to do.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.epoll.fd.as_raw_fd()
    }

    /// Returns the loop's clock.
    #[must_use]
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns a waker for other threads.
    #[must_use]
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

    /// Makes the descriptor readable at `deadline` at the latest. An earlier timer stays: an occasional spurious
    /// wake-up is cheaper than a system call for each deadline that moves.
    pub fn wake_at(&mut self, deadline: Instant) {
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        let left = deadline.since(self.clock.now()).max(Duration::from_nanos(1));
        let seconds = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
        let value = libc::timespec {
            tv_sec: seconds,
            tv_nsec: libc::c_long::from(left.subsec_nanos().cast_signed()),
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let alarm = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: a timer that lives and a valid specification; it cannot fail then.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const alarm, core::ptr::null_mut()) };
        self.armed = Some(deadline);
    }

    /// Returns the descriptors that have become ready since the last iteration; never blocks. Clears the timer and
    /// wake-ups.
    ///
    /// # Errors
    /// The error of the system.
    pub fn poll(&mut self) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        self.look(0)
    }

    /// As [`EventLoop::poll`], but blocks until a descriptor is ready or until `until`, if given. It may return
    /// early.
    ///
    /// # Errors
    /// The error of the system.
    pub fn wait(&mut self, until: Option<Instant>) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        let millis = until.map_or(-1, |until| {
            let left = until.since(self.clock.now()).as_micros().div_ceil(1000);
            i32::try_from(left).unwrap_or(i32::MAX)
        });
        self.look(millis)
    }

    fn look(&mut self, millis: i32) -> io::Result<impl Iterator<Item = Ready> + use<>> {
        // SAFETY: the buffer has as many entries as the call is given.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.fd.as_raw_fd(),
                self.found.as_mut_ptr(),
                i32::try_from(self.found.len()).unwrap_or(i32::MAX),
                millis,
            )
        };
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => return Err(io::Error::last_os_error()),
        };
        let mut ready = Vec::with_capacity(count);
        for event in &self.found[..count] {
            let (token, flags) = (event.u64, event.events.cast_signed());
            match token {
                TIMER => {
                    take_count(&self.timer);
                    self.armed = None;
                }
                WAKER => take_count(&self.waker.0),
                _ => {
                    let ended = flags & (libc::EPOLLERR | libc::EPOLLHUP) != 0;
                    ready.push(Ready {
                        token: Token(token),
                        readable: ended || flags & (libc::EPOLLIN | libc::EPOLLRDHUP) != 0,
                        writable: ended || flags & libc::EPOLLOUT != 0,
                    });
                }
            }
        }
        Ok(ready.into_iter())
    }
}

/// Resets the counter of a timer or an eventfd.
fn take_count(fd: &OwnedFd) {
    let mut count = 0_u64;
    // SAFETY: eight bytes of space; the read does not block, and the count does not matter.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) };
}

/// # Safety
/// `fd` is the result of a system call, and nothing else owns it.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller guarantees ownership, and it is a descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
