//! Opening of a connection in the calling thread.

use super::pool::{Ended, Registration, Ticket};
use super::wire::{BlockingSocket, ExchangeError, Timer, Wire};
use super::{CANCELLED, Client, Span};
use crate::driver::clock::from_now;
use crate::driver::last_try::FailedTry;
use crate::driver::prelude::*;
use crate::driver::resolve::{Found, ResolveError, literal, look_up};
use crate::driver::socket::{classify, finish_connect, open_socket, start_connect, wait_writable};
use crate::error::{Cause, ErrorKind, Failure, Phase};
use crate::node::client::Sent;
use crate::node::client::link::Link;
use crate::store::client_conn::PENDING;
use crate::store::dial::{DialInput, DialOutput, DialState, Rounds};
use core::net::SocketAddr;
use std::os::fd::AsFd;

impl Client {
    /// Opens a connection within the call's time. Its socket is registered in the pool all the time.
    pub(super) fn dial(&self, ticket: Ticket, span: Span<'_>, rounds: Rounds) -> Result<Box<Wire>, Failure> {
        let (options, limits) = (self.options.dial, self.options.limits);
        let mut link = Link::new(self.clock.now(), span.deadline, rounds, options, limits, self.seed());
        let mut registration = Registration::new(&self.pool, ticket);
        let cancelled = |phase| Failure { phase, ..CANCELLED };
        loop {
            if span.token.is_cancelled() {
                return Err(cancelled(link.dialer.failure(self.clock.now()).phase));
            }
            match link.dialer.poll_output() {
                Some(DialOutput::Resolve) => match self.addresses(span) {
                    Ok(Ok(found)) => link.dialer.handle(self.clock.now(), DialInput::Resolved(&found)),
                    Ok(Err(error)) => {
                        let (kind, cause) = error.classify();
                        link.dialer.handle(self.clock.now(), DialInput::Unresolved(kind, cause));
                    }
                    Err(Ended::TimeUp) => link.dialer.handle(self.clock.now(), DialInput::Tick),
                    Err(Ended::Cancelled) => return Err(cancelled(Phase::Resolving)),
                },
                Some(DialOutput::Connect(address)) => {
                    match self.connect_socket(&mut registration, span, address, link.dialer.poll_timeout()) {
                        Ok(true) => link.dialer.handle(self.clock.now(), DialInput::Connected),
                        Ok(false) => link.dialer.handle(self.clock.now(), DialInput::Tick),
                        Err(error) => {
                            let (kind, cause) = classify(&error);
                            link.dialer.handle(self.clock.now(), DialInput::Failed(kind, cause));
                        }
                    }
                }
                Some(DialOutput::Greet) => {
                    let bytes = link.conn.greet();
                    let until = link.dialer.poll_timeout().unwrap_or(span.deadline);
                    let Some(socket) = &mut registration.socket else { continue };
                    let mut timer = Timer::new(&self.clock, self.clock.now(), until);
                    if let Err(exchange_error) = socket.send_all(&bytes, &mut timer, &mut Sent::Nothing) {
                        self.greeting_failed(&mut link, exchange_error);
                    }
                }
                Some(DialOutput::Disconnect) => registration.set(None),
                Some(DialOutput::Ready) => {
                    let Some(socket) = registration.into_socket() else {
                        return Err(link.dialer.failure(self.clock.now()));
                    };
                    self.pool.dialled(link.dialer.current());
                    self.options.last_try.set(None);
                    return Ok(Box::new(Wire::new(socket, link.conn, self.clock.now())));
                }
                Some(DialOutput::Failed(failure)) => {
                    self.pool.dialled(None);
                    return Err(failure);
                }
                None => self.wait_for_link(&mut link, &mut registration, span)?,
            }
        }
    }

    /// Waits for the response to the greeting, or for the next round of attempts.
    fn wait_for_link(
        &self,
        link: &mut Link<PENDING>,
        registration: &mut Registration<'_, BlockingSocket>,
        span: Span<'_>,
    ) -> Result<(), Failure> {
        let until = link.dialer.poll_timeout().unwrap_or(span.deadline);
        match (link.dialer.state(), &mut registration.socket) {
            (DialState::Greeting, Some(socket)) => {
                let mut buffer = [0; 64];
                let mut timer = Timer::new(&self.clock, self.clock.now(), until);
                let mut bytes = match socket.receive(&mut buffer, &mut timer, Sent::Something) {
                    Ok(got) => &buffer[..got],
                    Err(exchange_error) => {
                        self.greeting_failed(link, exchange_error);
                        return Ok(());
                    }
                };
                if let Err(violation) = link.receive(self.clock.now(), &mut bytes) {
                    let cause = Cause::Violation(violation);
                    return Err(Failure::new(ErrorKind::WrongProtocol, Phase::Greeting, cause));
                }
            }
            _ => {
                // A pause: closes the failed socket meanwhile.
                registration.set(None);
                self.options
                    .last_try
                    .set(Some(FailedTry::new(&self.peer, link.dialer.failure(self.clock.now()))));
                let left = until.since(self.clock.now());
                if !span.token.wait(left) {
                    link.dialer.handle(self.clock.now().max(until), DialInput::Tick);
                }
            }
        }
        Ok(())
    }

    fn greeting_failed(&self, link: &mut Link<PENDING>, exchange_error: ExchangeError) {
        let now = self.clock.now();
        match exchange_error {
            ExchangeError::Lost(cause, _) => {
                link.dialer.handle(now, DialInput::Failed(ErrorKind::ServerGone, cause))
            }
            _ => link.dialer.handle(now.max(link.dialer.poll_timeout().unwrap_or(now)), DialInput::Tick),
        }
    }

    /// Returns the host's addresses.
    fn addresses(&self, span: Span<'_>) -> Result<Found, Ended> {
        if let Some(address) = literal(&self.host, self.port) {
            return Ok(Ok(vec![address]));
        }
        let left = span.deadline.since(self.clock.now());
        self.pool.addresses(span.token, from_now(left), || {
            let pool = Arc::clone(&self.pool);
            if let Err(error) = look_up(&self.host, self.port, move |found| pool.end_lookup(found)) {
                self.pool.end_lookup(Err(ResolveError::of_thread(&error)));
            }
        })
    }

    /// Connects a new socket. Returns false when `until` has passed.
    fn connect_socket(
        &self,
        registration: &mut Registration<'_, BlockingSocket>,
        span: Span<'_>,
        address: SocketAddr,
        until: Option<Instant>,
    ) -> io::Result<bool> {
        registration.set(Some(BlockingSocket::new(open_socket(address)?, self.options.keep_alive.as_ref())));
        let Some(BlockingSocket { socket, .. }) = &registration.socket else { return Ok(false) };
        let connected = start_connect(socket, address, self.options.keep_alive.as_ref())?;
        // A cancel before the connect found nothing to shut down.
        if !connected && !span.token.is_cancelled() {
            let left = until.unwrap_or(Instant::MAX).since(self.clock.now());
            if !wait_writable(socket.as_fd(), left)? {
                return Ok(false);
            }
        }
        finish_connect(socket)?;
        socket.set_nonblocking(false)?;
        Ok(true)
    }
}
