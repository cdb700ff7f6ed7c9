//! The agent's end of the socket to its guard.

use super::guard::packet::{self, Carried, Report, Request, request};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use libc::c_int;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::socket::wait_readable;
use rendezvous_core::time::{Duration, Instant};
use socket2::SockRef;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Maximum number of starts that the guard has not answered. The system limits the number of descriptors in transit.
const STARTS_MAX: usize = 32;

/// A request that waits to be sent, with its own copies of its descriptors.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) request: Request,
    beside: Vec<OwnedFd>,
}

/// The socket, and the requests that it has not accepted yet.
#[derive(Debug)]
pub(super) struct GuardSocket {
    socket: OwnedFd,
    queue: VecDeque<Queued>,
    /// Number of unanswered starts.
    starts: usize,
    /// Number of requests sent to this guard.
    sent: u64,
    /// Number of the guard at the other end; requests to earlier guards are ignored.
    generation: u8,
    send_state: SendState,
}

/// Whether the socket accepts more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// As far as is known.
    Free,
    /// It does not, and no start is pending whose answer would make it writable.
    None,
}

impl GuardSocket {
    pub(super) const fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            queue: VecDeque::new(),
            starts: 0,
            sent: 0,
            generation: 0,
            send_state: SendState::Free,
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Starts over with another guard, which answers no earlier requests.
    pub(super) fn begin_anew(&mut self) {
        self.queue.clear();
        (self.starts, self.sent, self.generation) = (0, 0, self.generation.wrapping_add(1));
    }

    /// Sends a request, or queues it until the socket has room.
    pub(super) fn ask(&mut self, request: Request, beside: &[BorrowedFd<'_>]) -> Result<(), c_int> {
        let request = Request { generation: self.generation, ..request };
        if self.queue.is_empty() {
            let fds: Vec<RawFd> = beside.iter().map(AsRawFd::as_raw_fd).collect();
            if self.send(&request, &fds)? {
                return Ok(());
            }
        }
        let beside = beside.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>();
        let beside = beside.map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        self.queue.push_back(Queued { request, beside });
        Ok(())
    }

    /// Sends queued requests as far as the socket has room.
    pub(super) fn flush(&mut self) -> Result<(), c_int> {
        while let Some(queued) = self.queue.pop_front() {
            let fds: Vec<RawFd> = queued.beside.iter().map(AsRawFd::as_raw_fd).collect();
            if !self.send(&queued.request, &fds)? {
                self.queue.push_front(queued);
                break;
            }
        }
        Ok(())
    }

    /// Returns whether a request is queued for which no answer will make room. It has to be retried soon.
    pub(super) const fn is_out_of_buffers(&self) -> bool {
        matches!(self.send_state, SendState::None)
    }

    /// Sends a request. Returns false if there is no room. The guard handles requests in order, so with pending starts
    /// an answer follows the requests that fill the socket, and then there is room again. Without pending starts, the
    /// caller has to retry.
    fn send(&mut self, request: &Request, fds: &[RawFd]) -> Result<bool, c_int> {
        let is_start = matches!(request.kind, request::START_PROGRAM | request::START_FUNCTION);
        if is_start && self.starts >= STARTS_MAX {
            return Ok(false);
        }
        self.send_state = SendState::Free;
        match packet::send(self.socket.as_raw_fd(), request, fds) {
            Ok(()) => {
                self.sent += 1;
                self.starts += usize::from(is_start);
                Ok(true)
            }
            Err(libc::EAGAIN | libc::ETOOMANYREFS) if self.starts > 0 => Ok(false),
            // A stop must not be lost because memory is short.
            Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) if !is_start => {
                self.send_state = SendState::None;
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Receives the next report; `None` if the guard's end is closed.
    pub(super) fn receive(&mut self) -> Result<Option<(Report, Carried)>, c_int> {
        packet::receive(self.socket.as_raw_fd())
    }

    /// Records the answer to a start.
    pub(super) fn start_confirmed(&mut self) {
        self.starts = self.starts.saturating_sub(1);
    }

    /// Returns whether a report was made after all requests were received.
    pub(super) fn has_seen_all(&self, seen: u64) -> bool {
        self.queue.is_empty() && seen >= self.sent
    }

    /// Removes and returns the starts among the queued requests.
    pub(super) fn take_back_starts(&mut self) -> VecDeque<Queued> {
        let is_start =
            |queued: &Queued| matches!(queued.request.kind, request::START_PROGRAM | request::START_FUNCTION);
        let (starts, others) = core::mem::take(&mut self.queue).into_iter().partition(is_start);
        self.queue = others;
        starts
    }

    /// Shuts down the agent's side, for all processes that have a copy of the socket.
    pub(super) fn shut(&self) {
        // An error means that the other end is closed.
        SockRef::from(&self.socket).shutdown(Shutdown::Write).ok();
    }

    /// Waits until the guard's end is closed. Returns false on timeout.
    pub(super) fn await_end(&mut self, span: Duration) -> bool {
        let clock = Clock::new();
        loop {
            match self.receive() {
                Ok(Some(_)) => {}
                Err(libc::EAGAIN) => {
                    let left = span.saturating_sub(clock.now().since(Instant::ORIGIN));
                    if !matches!(wait_readable(self.as_fd(), left), Ok(true)) {
                        return false;
                    }
                }
                Ok(None) | Err(_) => return true,
            }
        }
    }
}
