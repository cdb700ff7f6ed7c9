//! HTTP server for the health of an agent, on a thread of its own. A slow client does not delay the agent, and a
//! blocked agent is reported as such.

use crate::health::{Health, REQUEST_BYTES_MAX, Request};
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Waker, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::sorted::SortedMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const LISTENER: Token = Token(0);
/// Maximum number of connections. For a further client, the oldest of these is closed.
const CONNECTIONS_MAX: usize = 16;
/// Time that it has for its request before.
const REQUEST_TIME_MIN: Duration = Duration::from_millis(100);
/// Pause of accepting connections when the system lacks the resources for one more.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest life of a connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// State shared by the agent and the server's thread.
#[derive(Debug)]
struct HealthShared {
    health: Mutex<Health>,
    is_over: AtomicBool,
}

/// The agent's handle of the server.
#[derive(Debug)]
pub(super) struct HealthServer {
    shared: Arc<HealthShared>,
    address: SocketAddr,
    waker: Waker,
    thread: Option<Thread>,
}

impl HealthServer {
    pub(super) fn start(address: SocketAddr, clock: Clock, health: Health) -> io::Result<Self> {
        Self::start_with(address, clock, health, CONNECTION_TIMEOUT)
    }

    fn start_with(
        address: SocketAddr,
        clock: Clock,
        health: Health,
        connection_timeout: Duration,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let events = EventLoop::new()?;
        let watch = events.watch(listener.as_raw_fd(), Interest::Read, LISTENER)?;
        let waker = events.waker();
        let shared = Arc::new(HealthShared { health: Mutex::new(health), is_over: AtomicBool::new(false) });
        let context = HealthListener {
            watch: Some(watch),
            paused_until: None,
            listener,
            connections: SortedMap::new(),
            next: 1,
            connection_timeout,
            shared: Arc::clone(&shared),
            clock,
            events,
        };
        let thread = threads::spawn("rdzv-health", move || context.serve())?;
        Ok(Self { shared, address, waker, thread: Some(thread) })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn show(&self, health: Health) {
        *self.shared.health.locked() = health;
    }
}

impl Drop for HealthServer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// The server's thread.
struct HealthListener {
    // Watches are dropped before what they watch. `None` while no connection is accepted.
    watch: Option<Watch>,
    paused_until: Option<Instant>,
    connections: SortedMap<u64, HealthConnection>,
    listener: TcpListener,
    next: u64,
    connection_timeout: Duration,
    shared: Arc<HealthShared>,
    clock: Clock,
    events: EventLoop,
}

struct HealthConnection {
    watch: Watch,
    stream: TcpStream,
    accepted_at: Instant,
    until: Instant,
    request_bytes: Vec<u8>,
    answer: String,
    /// Bytes of the response that have been written.
    sent: usize,
}

/// Whether a connection stays open after a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Stay,
    Close,
}

impl HealthListener {
    fn serve(mut self) {
        while !self.shared.is_over.load(Ordering::Acquire) {
            let until =
                self.connections.values().map(|connection| connection.until).chain(self.paused_until).min();
            let Ok(ready) = self.events.wait(until) else { return };
            for ready in ready {
                if ready.token == LISTENER {
                    self.accept();
                } else if let Some(connection) = self.connections.get_mut(&ready.token.0)
                    && connection.step(&self.shared, &self.clock) == Then::Close
                {
                    self.connections.remove(&ready.token.0);
                }
            }
            let now = self.events.clock().now();
            self.connections.retain(|_, connection| connection.until > now);
            self.paused_until.take_if(|until| *until <= now);
            if self.watch.is_none() && self.paused_until.is_none() {
                self.watch = self.events.watch(self.listener.as_raw_fd(), Interest::Read, LISTENER).ok();
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let now = self.events.clock().now();
            let oldest = self.connections.first().filter(|_| self.connections.len() >= CONNECTIONS_MAX);
            let oldest = oldest.map(|(&token, connection)| (token, connection.accepted_at));
            if let Some((_, accepted_at)) = oldest.filter(|(_, at)| *at + REQUEST_TIME_MIN > now) {
                self.paused_until = Some(accepted_at + REQUEST_TIME_MIN);
                self.watch = None;
                return;
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The client closed it before it was accepted.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(_) => {
                    self.paused_until = Some(self.events.clock().now() + ACCEPT_PAUSE);
                    self.watch = None;
                    return;
                }
            };
            if let Some((token, _)) = oldest {
                self.connections.remove(&token);
            }
            let token = Token(self.next);
            self.next += 1;
            let watched = stream
                .set_nonblocking(true)
                .and_then(|()| self.events.watch(stream.as_raw_fd(), Interest::Read, token));
            if let Ok(watch) = watched {
                let accepted_at = self.events.clock().now();
                let until = accepted_at + self.connection_timeout;
                let (request_bytes, answer) = (Vec::new(), String::new());
                self.connections.insert(
                    token.0,
                    HealthConnection { watch, stream, accepted_at, until, request_bytes, answer, sent: 0 },
                );
            }
        }
    }
}

impl HealthConnection {
    fn step(&mut self, shared: &HealthShared, clock: &Clock) -> Then {
        if self.answer.is_empty() && self.listen(shared, clock) == Then::Close {
            return Then::Close;
        }
        while self.sent < self.answer.len() {
            match self.stream.write(&self.answer.as_bytes()[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return match self.watch.change(Interest::Write) {
                        Ok(()) => Then::Stay,
                        Err(_) => Then::Close,
                    };
                }
                Err(_) => return Then::Close,
            }
        }
        if self.answer.is_empty() { Then::Stay } else { Then::Close }
    }

    /// Reads what has arrived, and finds the response once the request is complete.
    fn listen(&mut self, shared: &HealthShared, clock: &Clock) -> Then {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Then::Close,
                Ok(count) => self.request_bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Then::Stay,
                Err(_) => return Then::Close,
            }
            let health = shared.health.locked().clone();
            if let Some(answer) = Request::of(&self.request_bytes).answer(&health, clock.now()) {
                self.answer = answer;
                return Then::Stay;
            }
            debug_assert!(
                self.request_bytes.len() < REQUEST_BYTES_MAX,
                "a request of this size is answered with an error"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::WorkerGroup;
    use crate::health::LivenessPolicy;
    use crate::phase::Phase;

    fn start() -> HealthServer {
        start_with(CONNECTION_TIMEOUT)
    }

    fn start_with(connection_timeout: Duration) -> HealthServer {
        let clock = Clock::new();
        let health =
            Health::new(Phase::Running, clock.now(), &WorkerGroup::default(), LivenessPolicy::Trusting);
        HealthServer::start_with(([127, 0, 0, 1], 0).into(), clock, health, connection_timeout)
            .expect("a server")
    }

    fn connect(server: &HealthServer) -> TcpStream {
        let stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(core::time::Duration::from_secs(20))).expect("a socket");
        stream
    }

    fn ask(server: &HealthServer, pieces: &[&[u8]]) -> String {
        let mut stream = connect(server);
        for chunk in pieces {
            stream.write_all(chunk).expect("it reads");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers and closes");
        answer
    }

    #[test]
    fn a_client_gets_the_health_that_was_published() {
        let server = start();
        let answer = ask(&server, &[b"GET / HT", b"TP/1.1\r\n", b"\r\n"]);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"phase\":\"running\""),
            "{answer}"
        );
        let group = WorkerGroup::default();
        server.show(Health::new(Phase::ExitBarrier, Instant::ORIGIN, &group, LivenessPolicy::Watchful));
        assert!(ask(&server, &[b"GET / HTTP/1.1\r\n\r\n"]).contains("\"phase\":\"exit_barrier\""));
        assert!(ask(&server, &[b"PUT / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 405 "));
        assert!(ask(&server, &[b"\x16\x03"]).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn a_slow_client_does_not_block_others_for_long() {
        let server = start();
        let mut slow: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(&server)).collect();
        for stream in &mut slow {
            stream.write_all(b"GET").expect("it reads");
        }
        assert!(ask(&server, &[b"GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 200 "));
        for mut stream in slow {
            // Closed without a response. A connection with unread bytes may be reset.
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            assert!(
                answer.is_empty()
                    && read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
            );
        }
    }

    #[test]
    fn idle_clients_make_place_for_others() {
        // None of them times out.
        let server = start_with(Duration::from_secs(3600));
        let mut idle: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(&server)).collect();
        for _ in 0..3 {
            assert!(ask(&server, &[b"GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 200 "));
        }
        // One of them did, and it was the oldest.
        assert_eq!(idle.remove(0).read(&mut [0]).expect("its end"), 0);
        for mut stream in idle {
            stream.set_nonblocking(true).expect("a socket");
            assert_eq!(stream.read(&mut [0]).expect_err("no end").kind(), ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn it_ends_with_an_open_connection() {
        let server = start();
        let mut stream = connect(&server);
        stream.write_all(b"GET").expect("it reads");
        drop(server);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(
            answer.is_empty()
                && read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
        );
    }
}
