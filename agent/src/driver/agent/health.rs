//! Answers over HTTP how an agent is, on a thread of its own: whoever asks, and however slowly, the agent is not held up,
//! and an agent that is held up is told of.

use crate::health::{Health, REQUEST_BYTES_MAX, Request};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Waker, Watch};
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::time::{Duration, Instant};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

const LISTENER: Token = Token(0);
/// Who asks at once; others wait until one of these is done.
const CONNECTIONS_MAX: usize = 16;
/// How long nobody is let in when the system has no room for one more.
const REST: Duration = Duration::from_millis(100);
/// How long one may take.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// What the agent shows, and its thread reads.
#[derive(Debug)]
struct Board {
    shared_health: Mutex<Health>,
    is_over: AtomicBool,
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct HealthServer {
    board: Arc<Board>,
    address: SocketAddr,
    waker: Waker,
    thread: Option<Thread>,
}

impl HealthServer {
    pub(super) fn start(address: SocketAddr, clock: Clock, shared_health: Health) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let events = EventLoop::new()?;
        let watch = events.watch(listener.as_raw_fd(), Interest::Read, LISTENER)?;
        let waker = events.waker();
        let board =
            Arc::new(Board { shared_health: Mutex::new(shared_health), is_over: AtomicBool::new(false) });
        let context = HealthListener {
            watch: Some(watch),
            rests_until: None,
            listener,
            visits: BTreeMap::new(),
            next: 1,
            board: Arc::clone(&board),
            clock,
            events,
        };
        let thread = threads::spawn("rdzv-health", move || context.serve())?;
        Ok(Self { board, address, waker, thread: Some(thread) })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn show(&self, health: Health) {
        *self.board.shared_health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }
}

impl Drop for HealthServer {
    fn drop(&mut self) {
        self.board.is_over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// The thread's end.
struct HealthListener {
    // Watches go before what they watch. `None` while nobody is let in.
    watch: Option<Watch>,
    rests_until: Option<Instant>,
    visits: BTreeMap<u64, Visit>,
    listener: TcpListener,
    next: u64,
    board: Arc<Board>,
    clock: Clock,
    events: EventLoop,
}

/// One connection.
struct Visit {
    watch: Watch,
    stream: TcpStream,
    until: Instant,
    request_bytes: Vec<u8>,
    answer: String,
    /// Of the answer, in bytes.
    sent: usize,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Stay,
    Close,
}

impl HealthListener {
    fn serve(mut self) {
        while !self.board.is_over.load(Ordering::Acquire) {
            let until = self.visits.values().map(|visit| visit.until).chain(self.rests_until).min();
            let Ok(ready) = self.events.wait(until) else { return };
            for ready in ready {
                if ready.token == LISTENER {
                    self.accept();
                } else if let Some(visit) = self.visits.get_mut(&ready.token.0)
                    && visit.step(&self.board, &self.clock) == Then::Close
                {
                    self.visits.remove(&ready.token.0);
                }
            }
            let now = self.events.clock().now();
            self.visits.retain(|_, visit| visit.until > now);
            self.rests_until.take_if(|until| *until <= now);
            if self.watch.is_none() && self.rests_until.is_none() && self.visits.len() < CONNECTIONS_MAX {
                self.watch = self.events.watch(self.listener.as_raw_fd(), Interest::Read, LISTENER).ok();
            }
        }
    }

    fn accept(&mut self) {
        while self.visits.len() < CONNECTIONS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // One that is gone again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(_) => {
                    self.rests_until = Some(self.events.clock().now() + REST);
                    self.watch = None;
                    return;
                }
            };
            let token = Token(self.next);
            self.next += 1;
            let watched = stream
                .set_nonblocking(true)
                .and_then(|()| self.events.watch(stream.as_raw_fd(), Interest::Read, token));
            if let Ok(watch) = watched {
                let until = self.events.clock().now() + CONNECTION_TIMEOUT;
                let (request_bytes, answer) = (Vec::new(), String::new());
                self.visits.insert(token.0, Visit { watch, stream, until, request_bytes, answer, sent: 0 });
            }
        }
        if self.visits.len() >= CONNECTIONS_MAX {
            self.watch = None;
        }
    }
}

impl Visit {
    fn step(&mut self, board: &Board, clock: &Clock) -> Then {
        if self.answer.is_empty() && self.listen(board, clock) == Then::Close {
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

    /// Takes what has come, and finds the answer once there is enough of it.
    fn listen(&mut self, board: &Board, clock: &Clock) -> Then {
        let mut buffer = [0; 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Then::Close,
                Ok(count) => self.request_bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Then::Stay,
                Err(_) => return Then::Close,
            }
            let health = board.shared_health.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(answer) = Request::of(&self.request_bytes).answer(&health, clock.now()) {
                self.answer = answer;
                return Then::Stay;
            }
            debug_assert!(self.request_bytes.len() < REQUEST_BYTES_MAX, "that is nonsense by now");
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
        let clock = Clock::new();
        let health =
            Health::new(Phase::Running, clock.now(), &WorkerGroup::default(), LivenessPolicy::Trusting);
        HealthServer::start(([127, 0, 0, 1], 0).into(), clock, health).expect("a server")
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
    fn who_asks_is_told_what_is_shown() {
        let server = start();
        let answer = ask(&server, &[b"GET / HT", b"TP/1.1\r\n", b"\r\n"]);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"phase\":\"running\""),
            "{answer}"
        );
        let group = WorkerGroup::default();
        server.show(Health::new(Phase::ExitBarrier, Instant::ORIGIN, &group, LivenessPolicy::Watchful));
        assert!(ask(&server, &[b"GET / HTTP/1.1\r\n\r\n"]).contains("\"phase\":\"parting\""));
        assert!(ask(&server, &[b"PUT / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 405 "));
        assert!(ask(&server, &[b"\x16\x03"]).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn who_is_slow_holds_up_nobody_for_long() {
        let server = start();
        let mut slow: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect(&server)).collect();
        for stream in &mut slow {
            stream.write_all(b"GET").expect("it reads");
        }
        // All places are taken, until their time is over.
        assert!(ask(&server, &[b"GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 200 "));
        for mut stream in slow {
            // Closed without an answer; with bytes that nobody read it may be reset.
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            assert!(
                answer.is_empty()
                    && read.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
            );
        }
    }

    #[test]
    fn it_ends_although_somebody_is_still_there() {
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
