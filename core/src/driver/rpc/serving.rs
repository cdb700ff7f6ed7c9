//! The worker that is called: one thread reads all its callers, and hands requests to handlers.

use super::handling::{AnswerTo, Handler, Handling, Held, Job, Run};
use super::line::{Flushed, Got, Incoming, Line, NoMemory, SCRATCH_BYTES, Transport, closed, lost};
use super::received::Shelf;
use super::{Payload, Received};
use crate::driver::clock::Clock;
use crate::driver::event_loop::{EventLoop, Interest, Ready, Token, Waker, Watch, Watcher};
use crate::driver::reply::{Reply, ask};
use crate::driver::server::{Listen, ServerFailure, StartError, open_listener};
use crate::driver::socket::{KeepAlive, is_newcomers_fault};
use crate::driver::threads::{self, Thread, panic_text};
use crate::limits::{IntakeLimits, RpcLimits};
use crate::ordered::Set;
use crate::rpc::connection::by_number::ByNumber;
use crate::rpc::connection::callee::{Callee, CalleeEvent};
use crate::rpc::connection::{CallKind, ConnectionError, Refusal, Status, ToWrite};
use crate::rpc::intake::{Intake, Room};
use crate::rpc::name::WorkerInfo;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use crossbeam_channel::{Receiver, Sender, unbounded};
use slab::Slab;
use socket2::Socket;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Whether somebody who says that it is this worker is taken in; if not, in which words it is refused. It is asked on the
/// thread that serves all connections, and must not block.
pub type Admit = dyn Fn(&WorkerInfo) -> Result<(), Box<str>> + Send + Sync;

/// How a worker is called.
pub struct RpcServerOptions {
    /// Where it listens.
    pub listen: Listen,
    /// Who it is.
    pub me: WorkerInfo,
    /// The group that callers have to be of.
    pub group: Vec<u8>,
    /// Who may call.
    pub admit: Box<Admit>,
    /// Bounds on each connection.
    pub limits: RpcLimits,
    /// Bounds on all of them together.
    pub intake: IntakeLimits,
    /// How hosts that fell silent are noticed; `None` leaves it to the system's defaults.
    pub keep_alive: Option<KeepAlive>,
}

impl fmt::Debug for RpcServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcServerOptions")
            .field("listen", &self.listen)
            .field("me", &self.me)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// What a handle asks of its thread.
enum Command {
    Goodbye(Reply<()>),
    Held(Reply<(u64, u64, usize)>),
    Stop,
}

/// A worker that can be called. Dropping it ends it at once.
#[derive(Debug)]
pub struct RpcServer {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Mutex<Option<Thread>>,
    fate: Arc<OnceLock<ServerFailure>>,
}

/// How long the thread may take to answer a question of its handle.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl RpcServer {
    /// Listens, and has `handling` carry out what is asked. When this returns, callers can connect.
    ///
    /// # Errors
    /// Why it cannot listen there.
    pub fn start(options: RpcServerOptions, handling: Arc<Handling>) -> Result<Self, StartError> {
        let RpcServerOptions { listen, me, group, admit, limits, intake, keep_alive } = options;
        let listener = open_listener(&listen, keep_alive)?;
        let failed = |cause| StartError::io(&listen, cause);
        let local_addr = listener.local_addr().map_err(failed)?;
        let events = EventLoop::new().map_err(failed)?;
        let shared = Arc::new(Shared {
            me,
            group: group.into(),
            admit,
            limits,
            intake: Mutex::new(Intake::new(intake)),
            handling,
            shelf: Arc::default(),
            clock: *events.clock(),
            watcher: events.watcher(),
            waker: events.waker(),
        });
        let watch = events.watch(listener.as_raw_fd(), Interest::Read, LISTENER).map_err(failed)?;
        let (commands, inbox) = unbounded();
        let mut reactor = Reactor {
            events,
            door: Some(Door { watch: Some(watch), listener, paused_until: None }),
            shared: Arc::clone(&shared),
            commands: inbox,
            conns: Slab::new(),
            timers: Set::new(),
            unread: Vec::new(),
            leaving: None,
            scratch: Vec::with_capacity(SCRATCH_BYTES),
        };
        let fate = Arc::new(OnceLock::new());
        let told = Arc::clone(&fate);
        let thread = threads::spawn("rdzv-rpc-in", move || {
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.run()));
            told.set(match end {
                Ok(Ok(())) => ServerFailure::Stopped,
                Ok(Err(error)) => ServerFailure::Poll(error.raw_os_error().unwrap_or(0)),
                Err(panic) => ServerFailure::Panicked(panic_text(&*panic)),
            })
            .ok();
            reactor.close_all();
        });
        let thread = Mutex::new(Some(thread.map_err(failed)?));
        Ok(Self { local_addr, shared, commands, thread, fate })
    }

    /// The address it is bound to, with the port that the system chose.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Why it is no more; `None` while it runs.
    #[must_use]
    pub fn failure(&self) -> Option<ServerFailure> {
        self.fate.get().cloned()
    }

    /// Requests that are not done with, their bytes, and connections.
    ///
    /// # Errors
    /// There is no thread to ask.
    pub fn held(&self) -> Result<(u64, u64, usize), ServerFailure> {
        let (reply, answer) = ask();
        self.send(Command::Held(reply));
        answer.wait(ANSWER_TIMEOUT).map_err(|_| self.failure().unwrap_or(ServerFailure::Unresponsive))
    }

    /// Takes no further requests and nobody new, and waits until those that it has are answered. Whether that was so
    /// within `patience`; the server goes on to answer the others until it is dropped.
    #[must_use]
    pub fn leave(&self, patience: Duration) -> bool {
        let (reply, answer) = ask();
        self.send(Command::Goodbye(reply));
        answer.wait(patience).is_ok()
    }

    /// Ends at once: connections end, requests are given up.
    pub fn stop(&self) {
        self.send(Command::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            if thread.id() == std::thread::current().id() {
                // A handler that stops its own server: the thread ends when the handler has returned.
                return;
            }
            thread.join();
        }
    }

    fn send(&self, command: Command) {
        // Without a reactor, the reply is dropped with the command.
        self.commands.send(command).ok();
        self.shared.waker.wake();
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Shared {
    me: WorkerInfo,
    group: Box<[u8]>,
    admit: Box<Admit>,
    limits: RpcLimits,
    intake: Mutex<Intake>,
    handling: Arc<Handling>,
    shelf: Arc<Shelf>,
    clock: Clock,
    watcher: Watcher,
    waker: Waker,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Shared {
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(self: &Arc<Self>, payload_bytes: u64) -> Held {
        self.intake().enter(payload_bytes);
        let shared = Arc::clone(self);
        Held(Box::new(move || {
            if shared.intake().leave(payload_bytes) == Room::Again {
                shared.waker.wake();
            }
        }))
    }
}

/// One connection of a caller.
#[derive(Debug)]
pub(super) struct Conn {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    callee: Callee,
    /// Goes before the line that it watches.
    watch: Option<Watch>,
    line: Option<Line>,
    token: Token,
    receiving: ByNumber<Receiving>,
    answers: ByNumber<Payload>,
    writing: Writing,
    reading: Reading,
    end: End,
}

/// A request that comes.
#[derive(Debug)]
struct Receiving {
    handler: Arc<Handler>,
    payload: Incoming,
    kind: CallKind,
    deadline: Option<Instant>,
    held: Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    AtOnce,
    /// Handlers are at work on the thread that writes behind them all.
    Gathered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    On,
    /// There is no room for what would come.
    HeldUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    /// When what there is to write is written.
    WhenWritten,
    Now,
}

impl Conn {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of ours panics half way through a change, and none of others' runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_wanted(&self, call: u64) -> bool {
        self.lock().callee.waits_for(call)
    }

    pub(super) fn answer(&self, call: u64, payload: Payload) -> bool {
        let mut state = self.lock();
        let bytes = payload.bytes().len() as u64;
        let is_wanted = state.callee.answer(call, bytes);
        if is_wanted {
            if bytes > 0 {
                state.answers.insert(call, payload);
            }
            self.write_from_outside(&mut state);
        }
        is_wanted
    }

    pub(super) fn fail(&self, call: u64, status: Status, words: &str) -> bool {
        let mut state = self.lock();
        let is_wanted = state.callee.fail(call, status, words);
        if is_wanted {
            self.write_from_outside(&mut state);
        }
        is_wanted
    }

    fn write_from_outside(&self, state: &mut State) {
        if state.writing == Writing::AtOnce {
            state.settle(&self.shared.watcher);
            if let (true, Some(line)) = (state.is_over(), &state.line) {
                // The thread that has the connection sees this.
                line.shut_down();
            }
        }
    }

    /// Hands on what came; requests that are complete are put into `jobs`.
    fn hear(self: &Arc<Self>, state: &mut State, now: Instant, mut bytes: &[u8], jobs: &mut Vec<Job>) {
        let shared = &self.shared;
        while let Some(event) = state.callee.next_event(now, &mut bytes) {
            match event {
                CalleeEvent::Claimed(worker) => match (shared.admit)(&worker) {
                    Ok(()) => state.callee.admit(),
                    Err(words) => state.callee.refuse(Refusal::Unknown, &words),
                },
                CalleeEvent::Request { call, handler, payload_bytes, deadline, kind } => {
                    match shared.handling.get(&handler) {
                        None => _ = state.callee.fail(call, Status::NoHandler, ""),
                        Some(handler) => {
                            let payload = Incoming::with(payload_bytes, &shared.shelf, now);
                            let held = shared.take_in(payload_bytes);
                            let receiving = Receiving { handler, payload, kind, deadline, held };
                            state.receiving.insert(call, receiving);
                        }
                    }
                }
                CalleeEvent::Bytes(call, part) => {
                    let receiving = state.receiving.get_mut(call);
                    if let Some(Err(NoMemory)) = receiving.map(|one| one.payload.append(part)) {
                        state.no_memory(call);
                    }
                }
                CalleeEvent::Complete(call) => {
                    if let (Some(receiving), Some(caller)) =
                        (state.receiving.remove(call), state.callee.peer())
                    {
                        let Receiving { handler, payload, kind, deadline, held } = receiving;
                        jobs.push(Job {
                            handler,
                            caller: caller.clone(),
                            payload: Received::new(payload.into_bytes(), Some(Arc::clone(&shared.shelf))),
                            kind,
                            time_left: deadline.map(|at| at.since(now)),
                            to: AnswerTo::Conn(Arc::clone(self), call),
                            held: Some(held),
                        });
                    }
                }
                event => state.ended(&event),
            }
        }
    }

    /// Reads what there is, up to some amount.
    fn read(self: &Arc<Self>, state: &mut State, now: Instant, scratch: &mut Vec<u8>, jobs: &mut Vec<Job>) {
        for _ in 0..READS_PER_TURN {
            scratch.clear();
            let got = state.read_once(scratch);
            self.hear(state, now, scratch, jobs);
            if got == Go::Enough || state.end != End::NotYet {
                return;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Go {
    On,
    Enough,
}

impl State {
    fn read_once(&mut self, scratch: &mut Vec<u8>) -> Go {
        let Some(line) = &self.line else { return Go::Enough };
        let due = self.callee.due().and_then(|(call, due)| Some((call, self.receiving.get_mut(call)?, due)));
        let (call, receiving, due) = match due {
            Some((call, receiving, due)) => (call, Some(receiving), due),
            None => (0, None, 0),
        };
        let mut payload = receiving.map(|receiving| &mut receiving.payload);
        let place = match payload.as_mut().map(|payload| payload.place(due)) {
            Some(Ok(place)) => place,
            Some(Err(NoMemory)) => {
                self.no_memory(call);
                return Go::On;
            }
            None => &mut [],
        };
        let got = line.read(place, scratch);
        if let (Ok(Got::More(bytes) | Got::Last(bytes)), Some(payload)) = (&got, payload)
            && *bytes > 0
        {
            // SAFETY: the socket filled so many bytes of the place.
            unsafe { payload.filled(*bytes) };
            // It was no longer than what was due, which is a `u32`.
            self.callee.filled(u32::try_from(*bytes).unwrap_or(due));
        }
        match got {
            Ok(Got::More(_)) => Go::On,
            Ok(Got::Last(_) | Got::Nothing) => Go::Enough,
            Ok(Got::End) => {
                self.lose(closed());
                Go::Enough
            }
            Err(error) => {
                self.lose(lost(&error));
                Go::Enough
            }
        }
    }

    fn lose(&mut self, why: ConnectionError) {
        self.callee.lost(why);
        self.end = End::Now;
    }

    fn no_memory(&mut self, call: u64) {
        self.receiving.remove(call);
        self.callee.fail(call, Status::Failed, "there is no memory for the request");
    }

    /// What else happened to requests and to the connection.
    fn ended(&mut self, event: &CalleeEvent<'_>) {
        match event {
            CalleeEvent::Over(call, _) | CalleeEvent::Answered(call) => {
                self.receiving.remove(*call);
                self.answers.remove(*call);
            }
            CalleeEvent::Drained | CalleeEvent::Ended(_) if self.end == End::NotYet => {
                self.end = End::WhenWritten;
            }
            _ => {}
        }
    }

    /// Writes what there is to write, and sees to it that the rest is written later.
    fn settle(&mut self, watcher: &Watcher) {
        let Self { callee, line, answers, .. } = self;
        let Some(line) = line else { return };
        let flushed = line.flush(&mut |unsent| {
            let Some(write) = callee.poll_write() else { return false };
            let payload = match &write {
                ToWrite::Part { call, .. } => answers.get(*call),
                ToWrite::Bytes(_) => None,
            };
            unsent.put(write, payload);
            true
        });
        match flushed {
            Ok(Flushed::All | Flushed::Full) => {}
            Err(error) => self.lose(lost(&error)),
        }
        // Nothing comes of no bytes but ends.
        while let Some(event) = self.callee.next_event(Instant::ORIGIN, &mut &[][..]) {
            self.ended(&event);
        }
        self.watch_for_room(watcher);
    }

    fn watch_for_room(&mut self, watcher: &Watcher) {
        let Some(line) = &self.line else { return };
        // The thread that has the connection closes it, and has to hear that it is over.
        let is_read = self.is_over() || (self.reading == Reading::On && self.end == End::NotYet);
        let interest = match (is_read, line.has_unsent()) {
            (true, false) => Interest::Read,
            (true, true) => Interest::Both,
            (false, true) => Interest::Write,
            (false, false) => {
                self.watch = None;
                return;
            }
        };
        let is_watched = match &mut self.watch {
            Some(watch) => watch.change(interest),
            None => watcher.watch(line.fd(), interest, self.token).map(|watch| self.watch = Some(watch)),
        };
        if let Err(error) = is_watched {
            self.lose(lost(&error));
        }
    }

    fn is_over(&self) -> bool {
        let is_written = self.line.as_ref().is_none_or(|line| !line.has_unsent());
        self.end == End::Now || (self.end == End::WhenWritten && is_written)
    }
}

const LISTENER: Token = Token(u64::MAX - 2);
/// Connections accepted in one turn, so that a storm of newcomers does not starve the others.
const ACCEPTS_PER_TURN: usize = 128;
/// Reads of one connection in one turn.
const READS_PER_TURN: usize = 8;
/// Until accepting is tried again when it failed for more than one newcomer.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

struct Door {
    watch: Option<Watch>,
    listener: TcpListener,
    paused_until: Option<Instant>,
}

struct Entry {
    conn: Arc<Conn>,
    /// When it is looked at whether its time has come.
    timer: Option<Instant>,
}

struct Reactor {
    events: EventLoop,
    door: Option<Door>,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    conns: Slab<Entry>,
    timers: Set<(Instant, usize)>,
    /// Those that are not read until there is room.
    unread: Vec<usize>,
    leaving: Option<Reply<()>>,
    scratch: Vec<u8>,
}

impl Reactor {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let pause = self.door.as_ref().and_then(|door| door.paused_until);
            let next = self.timers.first().map(|(at, _)| at);
            let until = [next, pause, self.shared.shelf.until()].into_iter().flatten().min();
            let ready = self.events.wait(until)?;
            let now = self.shared.clock.now();
            let mut is_at_door = pause.is_some_and(|at| at <= now);
            for one in ready {
                if one.token == LISTENER {
                    is_at_door = true;
                } else {
                    self.serve(now, one);
                }
            }
            if self.obey(now) == Go::Enough {
                return Ok(());
            }
            while let Some((_, place)) = self.timers.first().filter(|(at, _)| *at <= now) {
                self.timers.pop_first();
                self.tick(now, place);
            }
            if self.shared.shelf.until().is_some_and(|at| at <= now) {
                self.shared.shelf.close();
            }
            if is_at_door {
                self.accept(now);
            }
            if !self.unread.is_empty() && self.shared.intake().has_room() {
                self.read_on(now);
            }
            if self.conns.is_empty()
                && let Some(leaving) = self.leaving.take()
            {
                leaving.answer(());
            }
        }
    }

    fn obey(&mut self, now: Instant) -> Go {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Stop => return Go::Enough,
                Command::Held(reply) => {
                    let (requests, bytes) = self.shared.intake().held();
                    reply.answer((requests, bytes, self.conns.len()));
                }
                Command::Goodbye(reply) => {
                    self.door = None;
                    self.leaving = Some(reply);
                    for place in self.places() {
                        self.change(now, place, |state| state.callee.goodbye());
                    }
                }
            }
        }
        Go::On
    }

    fn places(&self) -> Vec<usize> {
        self.conns.iter().map(|(place, _)| place).collect()
    }

    fn serve(&mut self, now: Instant, ready: Ready) {
        let place = usize::try_from(ready.token.0).unwrap_or(usize::MAX);
        let Some(entry) = self.conns.get(place) else { return };
        let conn = Arc::clone(&entry.conn);
        let mut jobs = Vec::new();
        let mut state = conn.lock();
        if ready.readable && state.reading == Reading::On {
            if state.receiving.is_empty() && !self.shared.intake().has_room() {
                state.reading = Reading::HeldUp;
                self.unread.push(place);
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
            self.look_after(&mut state, place);
        } else {
            self.look_after(&mut state, place);
            drop(state);
            jobs.into_iter().for_each(|job| self.begin(job));
        }
    }

    fn begin(&self, job: Job) {
        match job.handler.run {
            Run::Inline => job.run(),
            Run::Pooled => self.shared.handling.submit(job),
        }
    }

    fn change(&mut self, now: Instant, place: usize, change: impl FnOnce(&mut State)) {
        let Some(entry) = self.conns.get(place) else { return };
        let conn = Arc::clone(&entry.conn);
        let mut state = conn.lock();
        change(&mut state);
        conn.hear(&mut state, now, &[], &mut Vec::new());
        self.look_after(&mut state, place);
    }

    fn tick(&mut self, now: Instant, place: usize) {
        if let Some(entry) = self.conns.get_mut(place) {
            entry.timer = None;
        }
        self.change(now, place, |state| state.callee.tick(now));
    }

    /// Writes, sets the timer, and closes what is over.
    fn look_after(&mut self, state: &mut State, place: usize) {
        state.settle(&self.shared.watcher);
        if state.is_over() {
            if state.end == End::WhenWritten {
                state.callee.lost(ConnectionError::Closed);
            }
            close(state);
            self.conns.try_remove(place);
            self.unread.retain(|&held| held != place);
            if let Some(door) = self.door.as_mut().filter(|door| door.paused_until.is_some()) {
                // A descriptor is free again.
                door.paused_until = Some(Instant::ORIGIN);
            }
            return;
        }
        let Some(entry) = self.conns.get_mut(place) else { return };
        if let Some(at) = state.callee.poll_timeout()
            && entry.timer.is_none_or(|timer| at < timer)
        {
            entry.timer = Some(at);
            self.timers.insert((at, place));
        }
    }

    fn read_on(&mut self, now: Instant) {
        for place in core::mem::take(&mut self.unread) {
            self.change(now, place, |state| state.reading = Reading::On);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(door) = &mut self.door else { return };
            match door.listener.accept() {
                Ok((stream, _)) => self.welcome(now, stream.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if door.paused_until.take().is_some() {
                        let watch = self.events.watch(door.listener.as_raw_fd(), Interest::Read, LISTENER);
                        door.watch = watch.ok();
                    }
                    return;
                }
                Err(error) if is_newcomers_fault(&error) => {}
                Err(_) => {
                    // No descriptor or memory is left: it may be, later. Meanwhile nobody is looked for at the door.
                    door.watch = None;
                    door.paused_until = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn welcome(&mut self, now: Instant, socket: Socket) {
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let shared = &self.shared;
        let place = self.conns.vacant_entry();
        let index = place.key();
        let state = State {
            callee: Callee::new(now, shared.me.clone(), &shared.group, shared.limits),
            watch: None,
            line: Some(Line::new(Transport::plain(socket))),
            token: Token(index as u64),
            receiving: ByNumber::new(),
            answers: ByNumber::new(),
            writing: Writing::AtOnce,
            reading: Reading::On,
            end: End::NotYet,
        };
        let conn = Arc::new(Conn { shared: Arc::clone(shared), state: Mutex::new(state) });
        place.insert(Entry { conn, timer: None });
        self.change(now, index, |_| ());
    }

    /// Nobody is left without an end.
    fn close_all(&mut self) {
        self.door = None;
        for place in self.places() {
            if let Some(entry) = self.conns.try_remove(place) {
                let mut state = entry.conn.lock();
                state.callee.lost(ConnectionError::Closed);
                close(&mut state);
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            drop(command);
        }
    }
}

fn close(state: &mut State) {
    state.end = End::Now;
    while let Some(event) = state.callee.next_event(Instant::ORIGIN, &mut &[][..]) {
        state.ended(&event);
    }
    state.watch = None;
    state.line = None;
    state.receiving = ByNumber::new();
    state.answers = ByNumber::new();
}

/// The name of a worker for messages.
impl fmt::Display for RpcServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{} at {}", self.shared.me, self.local_addr))
    }
}
