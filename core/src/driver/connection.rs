//! Connection of a client in an event loop: a socket that never blocks.

use super::ack_watch::{InFlight, silence_max};
use super::event_loop::{EventLoop, Interest, Token, Watch};
use super::socket::{KeepAlive, classify, finish_connect, open_socket, start_connect};
use crate::error::Cause;
use crate::prelude::*;
use crate::tls::TlsStage;
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
    tls: Option<Box<TlsStage>>,
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
        Ok(Self { watch, socket, is_connected: false, silence_max: silence_max(keep_alive), tls: None })
    }

    /// Uses TLS. Must be called before the first byte.
    pub(super) fn secure(&mut self, stage: TlsStage) {
        self.tls = Some(Box::new(stage));
    }

    /// Returns the binding to the channel of TLS, or zeros.
    pub(super) fn binding(&self) -> [u8; 32] {
        self.tls.as_ref().and_then(|stage| stage.binding()).unwrap_or_default()
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

    /// Reads with `buffer`, and appends to `received` what the peer has sent. Returns the number of bytes that the
    /// socket had: 0 if there is nothing to read now.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn read(&mut self, buffer: &mut [u8], received: &mut Vec<u8>) -> Result<usize, Cause> {
        let outcome = self.receive(buffer);
        let Some(stage) = &mut self.tls else {
            return outcome.inspect(|&count| received.extend_from_slice(&buffer[..count]));
        };
        let count = outcome.map_err(|cause| match (stage.end_of_stream(), cause) {
            (Some(fault), Cause::Closed) => Cause::Tls(fault),
            // A peer without TLS may close the connection before it has read everything, which resets it.
            (Some(fault), Cause::Os(libc::ECONNRESET)) if stage.is_handshaking() => Cause::Tls(fault),
            _ => cause,
        })?;
        let outcome = stage.receive(&buffer[..count], received);
        self.flush().ok();
        outcome.map_err(Cause::Tls)?;
        Ok(count)
    }

    /// Sends from `bytes`, and returns the number of bytes that were taken: 0 if the socket is full, or TLS is not ready.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, Cause> {
        self.flush()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let Some(stage) = &mut self.tls else { return self.send(bytes) };
        let count = stage.send(bytes);
        self.flush()?;
        Ok(count)
    }

    /// Sends what TLS has to be sent, as far as the socket takes it.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn flush(&mut self) -> Result<(), Cause> {
        let Self { socket, tls: Some(stage), is_connected: true, .. } = self else { return Ok(()) };
        while stage.has_unsent() {
            match send(socket, stage.unsent())? {
                0 => break,
                count => stage.sent(count),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing follows, as far as the socket takes it.
    pub(super) fn end(&mut self) {
        if let Some(stage) = &mut self.tls {
            stage.close();
            self.flush().ok();
        }
    }

    /// Sends from `bytes`, and returns the number of bytes that were sent: 0 if the socket is full.
    ///
    /// # Errors
    /// How the connection ended.
    pub(super) fn send(&self, bytes: &[u8]) -> Result<usize, Cause> {
        send(&self.socket, bytes)
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
        let has_unsent = match &self.tls {
            Some(stage) => stage.has_unsent() || has_unsent && !stage.is_handshaking(),
            None => has_unsent,
        };
        let wanted = match (self.is_connected, has_unsent) {
            (false, _) => Interest::Write,
            (true, false) => Interest::Read,
            (true, true) => Interest::Both,
        };
        // A change fails only for lack of memory. The next iteration tries again.
        let _ = self.watch.change(wanted);
    }
}

fn send(socket: &Socket, bytes: &[u8]) -> Result<usize, Cause> {
    Ok(retried(|| socket.send_with_flags(bytes, libc::MSG_NOSIGNAL))?.unwrap_or(0))
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
