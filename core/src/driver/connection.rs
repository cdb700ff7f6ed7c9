//! Connection of a client in an event loop: a socket that never blocks.

use super::ack_watch::{InFlight, silence_max};
use super::event_loop::{EventLoop, Interest, Token, Watch};
use super::socket::{KeepAlive, classify, finish_connect, open_socket, start_connect};
use crate::error::Cause;
use crate::time::Duration;
use core::net::SocketAddr;
use socket2::Socket;
use std::io::{self, Read};
use std::os::fd::AsRawFd;

#[derive(Debug)]
pub(super) struct Connection {
    /// Declared before the socket, so that it is dropped first.
    watch: Watch,
    socket: Socket,
    is_connected: bool,
    /// Longest time in which the peer's host may acknowledge nothing.
    silence_max: Option<Duration>,
}

impl Connection {
    /// Starts to connect. The loop reports the end under `token`.
    pub(super) fn start(
        address: SocketAddr,
        keep_alive: Option<&KeepAlive>,
        events: &EventLoop,
        token: Token,
    ) -> io::Result<Self> {
        let socket = open_socket(address)?;
        // The next iteration learns of the connection in either case.
        start_connect(&socket, address, keep_alive)?;
        let watch = events.watch(socket.as_raw_fd(), Interest::Write, token)?;
        Ok(Self { watch, socket, is_connected: false, silence_max: silence_max(keep_alive) })
    }

    /// Checks, once the connecting socket is ready, whether it is connected.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        finish_connect(&self.socket)?;
        self.is_connected = true;
        Ok(())
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Reads into `buffer`, and returns the number of bytes: 0 if there is nothing to read now.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Cause> {
        match retried(|| (&self.socket).read(buffer)) {
            Ok(Some(0)) => Err(Cause::Closed),
            Ok(count) => Ok(count.unwrap_or(0)),
            Err(cause) => Err(cause),
        }
    }

    /// Sends from `bytes`, and returns the number of bytes that were sent: 0 if the socket is full.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Cause> {
        Ok(retried(|| self.socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))?.unwrap_or(0))
    }

    /// Returns whether sent bytes are unacknowledged.
    ///
    /// # Errors
    /// The host of the peer has been silent for too long. This is what the kernel reports of an idle connection.
    pub(super) fn has_in_flight(&self) -> Result<bool, Cause> {
        let (Some(silence_max), true) = (self.silence_max, self.is_connected) else { return Ok(false) };
        let in_flight = InFlight::on(&self.socket);
        if in_flight.is_overdue(silence_max) {
            return Err(Cause::Os(libc::ETIMEDOUT));
        }
        Ok(in_flight != InFlight::Nothing)
    }

    /// Watches for the conditions that the connection waits for.
    pub(super) fn update_interest(&mut self, has_unsent: bool) {
        let wanted = match (self.is_connected, has_unsent) {
            (false, _) => Interest::Write,
            (true, false) => Interest::Read,
            (true, true) => Interest::Both,
        };
        // A change fails only for lack of memory. The next iteration tries again.
        let _ = self.watch.change(wanted);
    }
}

/// Repeats a call that a signal interrupts. Returns `None` if the call would block.
fn retried(mut call: impl FnMut() -> io::Result<usize>) -> Result<Option<usize>, Cause> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(classify(&error).1),
        }
    }
}
