//! Thread of a server. One iteration waits for events, reads what is available, runs the handlers of complete requests,
//! and then writes the responses.

use super::ServerShared;
use super::conn::{Conn, ConnState, End, Go, Writing};
use crate::connection::ConnectionError;
use crate::driver::calls::handling::{Job, Run};
use crate::driver::calls::line::SCRATCH_BYTES;
use alloc::sync::Arc;
use alloc::vec::Vec;
use crossbeam_channel::Receiver;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Ready, Token, Watch};
use rendezvous_core::driver::reply::Reply;
use rendezvous_core::driver::socket::is_newcomers_fault;
use rendezvous_core::ordered::Set;
use rendezvous_core::time::{Duration, Instant};
use slab::Slab;
use socket2::Socket;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// Command of a handle to the thread.
pub(super) enum Command {
    Goodbye(Reply<()>),
    Held(Reply<(u64, u64, usize)>),
    AdmitAgain,
    Stop,
}

pub(super) const LISTENER: Token = Token(u64::MAX - 2);
/// Maximum number of connections accepted in one iteration, so that many new ones do not starve the others.
const ACCEPTS_PER_ITERATION: usize = 128;
/// Pause before accepting is tried again after a failure that concerns not only one connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Acceptor {
    watch: Option<Watch>,
    listener: TcpListener,
    paused_until: Option<Instant>,
}

struct Entry {
    conn: Arc<Conn>,
    /// Scheduled time of the next tick.
    timer: Option<Instant>,
}

pub(super) struct Reactor {
    events: EventLoop,
    acceptor: Option<Acceptor>,
    shared: Arc<ServerShared>,
    commands: Receiver<Command>,
    conns: Slab<Entry>,
    timers: Set<(Instant, usize)>,
    /// Connections that are not read until there is capacity.
    unread: Vec<usize>,
    leaving: Option<Reply<()>>,
    scratch: Vec<u8>,
}

impl Reactor {
    pub(super) fn new(
        events: EventLoop,
        (listener, watch): (TcpListener, Watch),
        shared: Arc<ServerShared>,
        commands: Receiver<Command>,
    ) -> Self {
        Self {
            events,
            acceptor: Some(Acceptor { watch: Some(watch), listener, paused_until: None }),
            shared,
            commands,
            conns: Slab::new(),
            timers: Set::new(),
            unread: Vec::new(),
            leaving: None,
            scratch: Vec::with_capacity(SCRATCH_BYTES),
        }
    }

    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            let pause = self.acceptor.as_ref().and_then(|acceptor| acceptor.paused_until);
            let next = self.timers.first().map(|(at, _)| at);
            let until = [next, pause, self.shared.buffer_pool.until()].into_iter().flatten().min();
            let ready = self.events.wait(until)?;
            let now = self.shared.clock.now();
            let mut is_acceptable = pause.is_some_and(|at| at <= now);
            for one in ready {
                if one.token == LISTENER {
                    is_acceptable = true;
                } else {
                    self.serve(now, one);
                }
            }
            if self.execute_commands(now) == Go::Enough {
                return Ok(());
            }
            while let Some((_, slot_index)) = self.timers.first().filter(|(at, _)| *at <= now) {
                self.timers.pop_first();
                self.tick(now, slot_index);
            }
            if self.shared.buffer_pool.until().is_some_and(|at| at <= now) {
                self.shared.buffer_pool.close();
            }
            if is_acceptable {
                self.accept(now);
            }
            if !self.unread.is_empty() && self.shared.intake().take_capacity() {
                self.read_on(now);
            }
            if self.conns.is_empty()
                && let Some(leaving) = self.leaving.take()
            {
                leaving.answer(());
            }
        }
    }

    fn execute_commands(&mut self, now: Instant) -> Go {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return Go::Enough,
                Command::Held(reply) => {
                    let (requests, bytes) = self.shared.intake().held();
                    reply.answer((requests, bytes, self.conns.len()));
                }
                Command::AdmitAgain => {
                    for slot_index in self.slots() {
                        let shared = Arc::clone(&self.shared);
                        self.change(now, slot_index, |state| state.admit_again(&*shared.admit));
                    }
                }
                Command::Goodbye(reply) => {
                    self.acceptor = None;
                    self.leaving = Some(reply);
                    for slot_index in self.slots() {
                        // Available bytes were sent before the goodbye, and may have arrived since the last poll.
                        self.read_ahead(now, slot_index);
                        self.change(now, slot_index, |state| state.callee.goodbye());
                    }
                }
            }
        }
        Go::On
    }

    fn slots(&self) -> Vec<usize> {
        self.conns.iter().map(|(slot_index, _)| slot_index).collect()
    }

    fn serve(&mut self, now: Instant, ready: Ready) {
        let slot_index = usize::try_from(ready.token.0).unwrap_or(usize::MAX);
        let Some(entry) = self.conns.get(slot_index) else { return };
        let conn = Arc::clone(&entry.conn);
        let mut jobs = Vec::new();
        let mut state = conn.lock();
        if ready.readable && state.callee.is_held_up() {
            // Only the end of such a connection is watched for.
            state.callee.read_to_the_end();
            self.unread.retain(|&held| held != slot_index);
        }
        if ready.readable && state.callee.is_read() {
            if !conn.may_read(&state) && state.callee.hold_up(now) {
                self.unread.push(slot_index);
            } else {
                conn.read(&mut state, now, &mut self.scratch, &mut jobs);
            }
        }
        let is_inline = |job: &Job| job.handler.run == Run::Inline;
        if jobs.iter().any(is_inline) {
            state.writing = Writing::Gathered;
            drop(state);
            for job in jobs {
                self.begin(job);
            }
            state = conn.lock();
            state.writing = Writing::AtOnce;
            self.update(&conn, &mut state, slot_index);
        } else {
            self.update(&conn, &mut state, slot_index);
            let held_back = state.take_held_back(&self.shared);
            drop(state);
            jobs.into_iter().for_each(|job| self.begin(job));
            held_back.into_iter().for_each(|(_, job)| self.begin(job));
        }
    }

    /// Reads what is available, if the connection is being read.
    fn read_ahead(&mut self, now: Instant, slot_index: usize) {
        let is_read = self.conns.get(slot_index).is_some_and(|entry| entry.conn.lock().callee.is_read());
        if is_read {
            self.serve(now, Ready { token: Token(slot_index as u64), readable: true, writable: false });
        }
    }

    fn begin(&self, job: Job) {
        match job.handler.run {
            Run::Inline => job.run(),
            Run::Pooled => self.shared.handling.submit(job),
        }
    }

    fn change(&mut self, now: Instant, slot_index: usize, change: impl FnOnce(&mut ConnState)) {
        let Some(entry) = self.conns.get(slot_index) else { return };
        let conn = Arc::clone(&entry.conn);
        let mut state = conn.lock();
        change(&mut state);
        conn.handle_event(&mut state, now, &[], &mut Vec::new());
        self.update(&conn, &mut state, slot_index);
    }

    fn tick(&mut self, now: Instant, slot_index: usize) {
        if let Some(entry) = self.conns.get_mut(slot_index) {
            entry.timer = None;
        }
        self.change(now, slot_index, |state| state.callee.tick(now));
    }

    /// Writes, sets the timer, and closes the connection if it has ended.
    fn update(&mut self, conn: &Conn, state: &mut ConnState, slot_index: usize) {
        state.settle(&self.shared);
        if state.is_over() {
            if state.end == End::WhenWritten {
                state.callee.lost(ConnectionError::Closed);
            }
            conn.close(state);
            self.conns.try_remove(slot_index);
            self.unread.retain(|&held| held != slot_index);
            if let Some(acceptor) = self.acceptor.as_mut().filter(|acceptor| acceptor.paused_until.is_some())
            {
                // A descriptor is free again.
                acceptor.paused_until = Some(Instant::ORIGIN);
            }
            return;
        }
        let Some(entry) = self.conns.get_mut(slot_index) else { return };
        if let Some(at) = state.callee.poll_timeout()
            && entry.timer.is_none_or(|timer| at < timer)
        {
            entry.timer = Some(at);
            self.timers.insert((at, slot_index));
        }
    }

    fn read_on(&mut self, now: Instant) {
        for slot_index in core::mem::take(&mut self.unread) {
            let Some(entry) = self.conns.get(slot_index) else { continue };
            let conn = Arc::clone(&entry.conn);
            if conn.may_read(&conn.lock()) {
                self.change(now, slot_index, |state| state.callee.go_on());
            } else {
                self.unread.push(slot_index);
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_ITERATION {
            let Some(acceptor) = &mut self.acceptor else { return };
            match acceptor.listener.accept() {
                Ok((stream, _)) => self.add_conn(now, stream.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if acceptor.paused_until.take().is_some() {
                        let watch =
                            self.events.watch(acceptor.listener.as_raw_fd(), Interest::Read, LISTENER);
                        acceptor.watch = watch.ok();
                    }
                    return;
                }
                Err(error) if is_newcomers_fault(&error) => {}
                Err(_) => {
                    // No descriptor or memory is left; there may be later. Until then the listener is not watched.
                    acceptor.watch = None;
                    acceptor.paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn add_conn(&mut self, now: Instant, socket: Socket) {
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let slot_index = self.conns.vacant_entry();
        let index = slot_index.key();
        let conn = Conn::new(&self.shared, now, socket, Token(index as u64));
        slot_index.insert(Entry { conn, timer: None });
        self.change(now, index, |_| ());
    }

    /// Closes all connections, and drops all commands.
    pub(super) fn close_all(&mut self) {
        self.acceptor = None;
        for slot_index in self.slots() {
            if let Some(entry) = self.conns.try_remove(slot_index) {
                let mut state = entry.conn.lock();
                state.callee.lost(ConnectionError::Closed);
                entry.conn.close(&mut state);
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            drop(command);
        }
    }
}
