//! One connection of a blocking client: its socket, its state machine and its buffers.

use crate::driver::ack_watch::{InFlight, LOOK_INTERVAL, silence_max};
use crate::driver::prelude::*;
use crate::driver::socket::{KeepAlive, classify};
use crate::driver::take::Take;
use crate::error::{Cause, ErrorKind, Failure, Phase, Violation};
use crate::node::client::{Sent, given_up};
use crate::store::call::{Call, CallId, GetMode, Outcome};
use crate::store::client_conn::{BeginError, ClientConn, Event, GiveUp, PENDING};
use socket2::Socket;
use std::io::Read;
use std::os::fd::AsRawFd;

/// Maximum number of abandoned calls of a connection that is kept.
const ABANDONED_MAX: usize = 2;

/// Size in bytes of a new connection's buffers, and maximum size of those that an idle connection keeps.
const BUFFER_BYTES: usize = 1024;
const BUFFER_BYTES_IDLE_MAX: usize = 64 * 1024;
/// Maximum number of bytes in one read.
const READ_BYTES_MAX: usize = 256 * 1024;

/// Connected, blocking socket and the timeouts that were last set on it.
#[derive(Debug)]
pub(super) struct BlockingSocket {
    pub(super) socket: Socket,
    receive_timeout: Duration,
    send_timeout: Duration,
    /// Longest time in which the server's host may acknowledge nothing.
    silence_max: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Wire {
    socket: BlockingSocket,
    pub(super) conn: ClientConn<PENDING>,
    out: Vec<u8>,
    input: Vec<u8>,
    calls: u64,
    /// Time of the last use.
    pub(super) used: Instant,
}

/// Reason why an exchange failed.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The deadline passed in this phase.
    TimedOut(Phase),
    /// The connection ended.
    Lost(Cause, Sent),
    /// The peer violated the protocol.
    Violated(Violation),
    /// The call could not be encoded.
    NotBegun(BeginError),
}

impl Wire {
    /// Makes a connection whose greeting was answered.
    pub(super) fn new(socket: BlockingSocket, conn: ClientConn<PENDING>, now: Instant) -> Self {
        let (out, input) = (Vec::with_capacity(BUFFER_BYTES), std::vec![0; BUFFER_BYTES]);
        Self { socket, conn, out, input, calls: 0, used: now }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket.socket
    }

    /// Performs one call from its first byte to its last. A call that timed out must be given up.
    pub(super) fn exchange(
        &mut self,
        call: &Call<'_>,
        mode: GetMode,
        timer: &mut Timer<'_>,
        take: &mut dyn Take,
    ) -> Result<Outcome, ExchangeError> {
        self.calls += 1;
        let (id, Self { socket, conn, out, input, .. }) = (CallId(self.calls), self);
        let mut sent = Sent::Nothing;
        out.clear();
        conn.begin(id, call, mode, out).map_err(ExchangeError::NotBegun)?;
        socket.send_all(out, timer, &mut sent)?;
        loop {
            let due = usize::try_from(conn.value_bytes_due()).unwrap_or(usize::MAX);
            if due > input.len() {
                input.resize(due.min(READ_BYTES_MAX), 0);
            }
            let got = socket.receive(input, timer, sent)?;
            let mut bytes = &input[..got];
            while let Some(event) = conn.receive(&mut bytes).map_err(ExchangeError::Violated)? {
                match event {
                    Event::Count { count, .. } => take.count(count),
                    Event::ValueStart { bytes, .. } => take.start(bytes),
                    Event::ValueChunk { bytes, .. } => take.chunk(bytes),
                    Event::Proceed { id } => {
                        out.clear();
                        conn.proceed(id, call, out).map_err(ExchangeError::NotBegun)?;
                        socket.send_all(out, timer, &mut sent)?;
                    }
                    Event::Done { outcome, .. } => return Ok(outcome),
                    Event::Greeted => {}
                }
            }
        }
    }

    /// Gives the last call up, whose deadline passed in `phase`. Returns its failure.
    pub(super) fn give_up(&mut self, phase: Phase) -> Failure {
        let Self { socket, conn, calls, .. } = self;
        let id = CallId(*calls);
        let phase = if phase == Phase::Sending { phase } else { conn.phase(id).unwrap_or(phase) };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let todo = match conn.give_up(id) {
            // A CANCEL_WAIT in the middle of a request would be taken for a part of it. Otherwise it is one byte into a
            // connection without unsent bytes: if it does not fit at once, the connection cannot be used any more.
            GiveUp::Send(bytes, effect)
                if phase == Phase::Sending || socket.socket.send_with_flags(&bytes, flags).is_err() =>
            {
                GiveUp::Close(effect)
            }
            todo => todo,
        };
        given_up(ErrorKind::TimedOut, phase, todo)
    }

    /// Prepares the connection for its idle time. Returns false if it must be closed.
    pub(super) fn rest(&mut self, now: Instant) -> bool {
        self.out.clear();
        for buffer in [&mut self.out, &mut self.input] {
            if buffer.capacity() > BUFFER_BYTES_IDLE_MAX {
                buffer.truncate(BUFFER_BYTES_IDLE_MAX);
                buffer.shrink_to(BUFFER_BYTES_IDLE_MAX);
            }
        }
        self.used = now;
        self.conn.pending() <= ABANDONED_MAX
    }
}

/// Time left for a call. The clock is read only when time may have passed: after a wait, but not between the steps of
/// a call that does not block.
#[derive(Debug)]
pub(super) struct Timer<'a> {
    clock: &'a Clock,
    /// Last reading of the clock; `None` when it is out of date.
    now: Option<Instant>,
    deadline: Instant,
}

impl<'a> Timer<'a> {
    /// Makes a timer from `now`, a reading of the clock from a moment ago.
    pub(super) const fn new(clock: &'a Clock, now: Instant, deadline: Instant) -> Self {
        Self { clock, now: Some(now), deadline }
    }

    fn left(&mut self) -> Duration {
        let now = *self.now.get_or_insert_with(|| self.clock.now());
        self.deadline.since(now)
    }

    const fn passed(&mut self) {
        self.now = None;
    }
}

impl AsRawFd for BlockingSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl BlockingSocket {
    pub(super) fn new(socket: Socket, keep_alive: Option<&KeepAlive>) -> Self {
        let silence_max = silence_max(keep_alive);
        Self { socket, receive_timeout: Duration::MAX, send_timeout: Duration::MAX, silence_max }
    }

    pub(super) fn send_all(
        &mut self,
        mut bytes: &[u8],
        timer: &mut Timer<'_>,
        sent: &mut Sent,
    ) -> Result<(), ExchangeError> {
        let Self { socket, send_timeout, silence_max, .. } = self;
        let set = |span| socket.set_write_timeout(Some(span));
        let mut waiting = Waiting::new(socket, *silence_max, &set, send_timeout);
        // Without the flag, a closed connection would end a process that does not expect SIGPIPE.
        let mut flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        while !bytes.is_empty() {
            let may_wait = flags & libc::MSG_DONTWAIT == 0;
            if may_wait {
                waiting.arm(timer, *sent)?;
            }
            let went = socket.send_with_flags(bytes, flags);
            // Bytes that fit into the socket's buffer are sent without waiting. Time passes only for the rest.
            flags = libc::MSG_NOSIGNAL;
            match went {
                Ok(count) => {
                    *sent = Sent::Something;
                    bytes = &bytes[count..];
                    if may_wait {
                        timer.passed();
                    }
                    if !bytes.is_empty() && timer.left().is_zero() {
                        return Err(ExchangeError::TimedOut(Phase::Sending));
                    }
                }
                Err(error) if !may_wait && error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => waiting.woken(&error, timer, (Phase::Sending, *sent))?,
            }
        }
        Ok(())
    }

    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        timer: &mut Timer<'_>,
        sent: Sent,
    ) -> Result<usize, ExchangeError> {
        let Self { socket, receive_timeout, silence_max, .. } = self;
        let set = |span| socket.set_read_timeout(Some(span));
        let mut waiting = Waiting::new(socket, *silence_max, &set, receive_timeout);
        loop {
            waiting.arm(timer, sent)?;
            match (&*socket).read(buffer) {
                Ok(0) => return Err(ExchangeError::Lost(Cause::Closed, sent)),
                Ok(count) => {
                    timer.passed();
                    return Ok(count);
                }
                Err(error) => waiting.woken(&error, timer, (Phase::Waiting, sent))?,
            }
        }
    }
}

/// Wait in one direction of a socket, until the deadline or until the server's host must be looked at.
struct Waiting<'a> {
    socket: &'a Socket,
    /// `None` if the host need not be looked at any more: it has acknowledged all that was sent.
    silence_max: Option<Duration>,
    set: &'a dyn Fn(Duration) -> io::Result<()>,
    /// The timeout that is set on the socket.
    timeout: &'a mut Duration,
}

impl<'a> Waiting<'a> {
    const fn new(
        socket: &'a Socket,
        silence_max: Option<Duration>,
        set: &'a dyn Fn(Duration) -> io::Result<()>,
        timeout: &'a mut Duration,
    ) -> Self {
        Self { socket, silence_max, set, timeout }
    }

    /// Returns the time until the next look or the deadline.
    fn left(&self, timer: &mut Timer<'_>) -> Duration {
        let left = timer.left();
        if self.silence_max.is_some() { left.min(LOOK_INTERVAL) } else { left }
    }

    /// Makes sure that the socket's timeout does not outlast the wait. Makes no system call if the timeout is only a
    /// little too long, since in a steady run of calls each has the same time. A timeout that is too short only wakes
    /// early.
    fn arm(&mut self, timer: &mut Timer<'_>, sent: Sent) -> Result<(), ExchangeError> {
        let left = self.left(timer);
        let slack = (left / 64).clamp(TIMEOUT_SLACK_MIN, TIMEOUT_SLACK_MAX);
        if *self.timeout > left.saturating_add(slack) {
            self.set_timeout(left, sent)?;
        }
        Ok(())
    }

    /// Checks, after a read or write failed, whether to try again.
    fn woken(
        &mut self,
        error: &io::Error,
        timer: &mut Timer<'_>,
        (phase, sent): (Phase, Sent),
    ) -> Result<(), ExchangeError> {
        let interrupted = error.kind() == io::ErrorKind::Interrupted;
        if !interrupted && error.raw_os_error() != Some(libc::EAGAIN) {
            return Err(ExchangeError::Lost(classify(error).1, sent));
        }
        timer.passed();
        if timer.left().is_zero() {
            return Err(ExchangeError::TimedOut(phase));
        }
        // After a signal, the time until then does not count again: the next attempt is armed with what is left.
        if interrupted {
            return Ok(());
        }
        if let Some(silence_max) = self.silence_max {
            let in_flight = InFlight::on(self.socket);
            if in_flight.is_overdue(silence_max) {
                return Err(ExchangeError::Lost(Cause::Os(libc::ETIMEDOUT), sent));
            }
            if in_flight == InFlight::Nothing {
                // From now on the kernel's probes watch the connection.
                self.silence_max = None;
            }
        }
        let left = self.left(timer);
        self.set_timeout(left, sent)
    }

    fn set_timeout(&mut self, left: Duration, sent: Sent) -> Result<(), ExchangeError> {
        // A timeout of zero would mean none.
        *self.timeout = left.max(Duration::from_millis(1));
        (self.set)(*self.timeout).map_err(|error| ExchangeError::Lost(classify(&error).1, sent))
    }
}

const TIMEOUT_SLACK_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_SLACK_MAX: Duration = Duration::from_millis(100);
