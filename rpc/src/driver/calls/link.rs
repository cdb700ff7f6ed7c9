//! All calls to one worker: state machine, socket, and recipients of results.
//!
//! The socket is read by the client's thread, or by a thread that waits for its own call if that is the only one. In
//! that case no other thread watches the socket. A second call hands the socket over to the client's thread.

use super::Payload;
use super::client_state::ClientShared;
use super::completion::{CallGuard, CallResult, Completion};
use super::io_thread::Target;
use super::line::{Incoming, Line, NoMemory, ReadResult, lost};
use super::locked::{HoldsObjects, Locked};
use super::transport::Transport;
use crate::connection::caller::{Caller, CallerEvent, NewCall};
use crate::connection::{CallError, CallKind, ConnectionError};
use crate::name::WorkerInfo;
use alloc::collections::VecDeque;
use alloc::sync::Weak;
use core::net::SocketAddr;
use rendezvous_core::driver::event_loop::{Interest, Ready, Waker, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::resolve::{Found, literal, look_up};
use rendezvous_core::driver::socket::endpoint_text;
use rendezvous_core::driver::socket::{Idle, finish_connect, open_socket, start_connect};
use rendezvous_core::ordered::Map;
use socket2::Socket;
use std::os::fd::AsRawFd;
use std::string::ToString;

/// Due callbacks and call guards. They are called and dropped when no lock is held.
#[derive(Debug, Default)]
pub(super) struct Due(Vec<(Completion, CallResult)>);

impl Due {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn release_marks(&mut self, marks: &mut Vec<Box<dyn CallGuard>>) {
        let released = |mark| (Completion::Unowned(Some(mark)), Ok(Vec::new()));
        self.0.extend(marks.drain(..).map(released));
    }

    pub(super) fn call(self) {
        for (completion, result) in self.0 {
            completion.finish(result);
        }
    }
}

/// Reader of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// The client's thread.
    Thread,
    /// The thread that waits for this call.
    Caller(u64),
    /// None, since no call is pending.
    Unowned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    AtOnce,
    /// The thread runs callbacks, and writes once after all of them.
    Gathered,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) shared: Arc<ClientShared>,
    pub(super) worker: WorkerInfo,
    pub(super) host: Box<str>,
    pub(super) port: u16,
    token: usize,
    /// Wakes the thread that reads for its own call.
    caller_waker: Waker,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    caller: Caller,
    /// Declared before, and so dropped before, the socket that it watches.
    watch: Option<Watch>,
    line: Option<Line>,
    dialing: Option<Socket>,
    /// Addresses that have not been tried yet.
    addresses: VecDeque<SocketAddr>,
    /// Number of attempts to connect.
    attempts: u64,
    last_failure: ConnectionError,
    reader: Reader,
    writing: Writing,
    requests: Map<u64, Payload>,
    answers: Map<u64, Incoming>,
    completions: Map<u64, Completion>,
    released: Vec<Payload>,
    /// Guards of one-way calls that the socket has not accepted completely.
    unsent_marks: Vec<Box<dyn CallGuard>>,
    /// Scheduled time of the next tick.
    timer: Option<Instant>,
    /// Buffer for the next thread that reads for its own call.
    scratch: Vec<u8>,
    /// Time when the last such call ended.
    rested: Instant,
    /// Reference to the link itself while calls are pending whose callers hold no reference to it.
    kept: Option<Arc<Link>>,
}

/// Idle time after which the connection is checked before something is sent.
const REST: Duration = Duration::from_millis(1);
const READS_PER_ITERATION: usize = 8;

/// Parameters of a call without its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) handler: &'a str,
    pub(super) deadline: Option<Instant>,
    pub(super) kind: CallKind,
}

/// Reader of a call's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driven {
    /// The thread that made the call: [`Link::drive`].
    ByItself,
    /// The client's thread.
    ByThread,
}

impl Link {
    pub(super) fn new(
        shared: &Arc<ClientShared>,
        worker: WorkerInfo,
        host: &str,
        port: u16,
    ) -> io::Result<Arc<Self>> {
        let caller_waker = Waker::alone()?;
        let options = &shared.options;
        let caller = Caller::new(options.me.clone(), worker.clone(), &options.group, options.limits);
        Ok(Arc::new_cyclic(|link: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            worker,
            host: host.into(),
            port,
            token: shared.io.add(link.clone()),
            caller_waker,
            state: Mutex::new(LinkState {
                caller,
                watch: None,
                line: None,
                dialing: None,
                addresses: VecDeque::new(),
                attempts: 0,
                last_failure: ConnectionError::Closed,
                reader: Reader::Unowned,
                writing: Writing::AtOnce,
                requests: Map::new(),
                answers: Map::new(),
                completions: Map::new(),
                released: Vec::new(),
                unsent_marks: Vec::new(),
                timer: None,
                scratch: Vec::new(),
                rested: Instant::ORIGIN,
                kept: None,
            }),
        }))
    }

    fn lock(&self) -> Locked<'_, LinkState> {
        Locked::new(&self.state)
    }

    pub(super) fn takes_calls(&self) -> bool {
        self.lock().caller.takes_calls()
    }

    /// Makes a call. `call_mode` is the reader that the caller prefers.
    pub(super) fn begin(
        self: &Arc<Self>,
        wanted: Wanted<'_>,
        payload: Payload,
        completion: Completion,
        call_mode: Driven,
    ) -> Result<(u64, Driven), CallError> {
        let now = self.shared.io.clock.now();
        let Wanted { handler, deadline, kind } = wanted;
        let payload_bytes = payload.bytes().len() as u64;
        let mut due = Due::default();
        let mut state = self.lock();
        if state.caller.is_at_rest()
            && !matches!(state.reader, Reader::Caller(_))
            && now > state.rested + REST
        {
            self.check_idle(&mut state, now, &mut due);
        }
        let is_alone = call_mode == Driven::ByItself
            && state.caller.is_at_rest()
            && !matches!(state.reader, Reader::Caller(_))
            && state.writing == Writing::AtOnce;
        let begun = state.caller.begin(now, NewCall { handler, payload_bytes, deadline, kind });
        let driven = if is_alone && begun.is_ok() { Driven::ByItself } else { Driven::ByThread };
        if let Ok(id) = begun {
            if payload_bytes > 0 {
                state.requests.insert(id, payload);
            }
            if !matches!(completion, Completion::Waiter(..)) {
                state.kept.get_or_insert_with(|| Arc::clone(self));
            }
            state.completions.insert(id, completion);
            match driven {
                Driven::ByItself => {
                    state.watch = None;
                    state.reader = Reader::Caller(id);
                }
                Driven::ByThread => self.hand_over(&mut state),
            }
        }
        self.settle(&mut state, now, &mut &[][..], &mut due);
        drop(state);
        due.call();
        begun.map(|id| (id, driven)).map_err(|error| error.at(self.address()))
    }

    /// Returns the address at which the worker accepts calls.
    fn address(&self) -> String {
        endpoint_text(&self.host, self.port)
    }

    /// From now on, the client's thread reads.
    fn hand_over(&self, state: &mut LinkState) {
        if let Reader::Caller(_) = state.reader {
            self.caller_waker.wake();
        }
        state.reader = Reader::Thread;
    }

    /// A connection may have ended unseen while it was idle.
    fn check_idle(self: &Arc<Self>, state: &mut LinkState, now: Instant, due: &mut Due) {
        if state.line.as_ref().is_some_and(|line| line.has_received() || line.look() != Idle::Silent) {
            self.receive(state, now, &mut Vec::with_capacity(IDLE_SCRATCH_BYTES), due);
        }
    }

    /// Waits for a call that this thread has begun alone, and reads its response. Returns when the call has ended, or
    /// when another thread is the reader.
    pub(super) fn drive(self: &Arc<Self>, id: u64) {
        let mut state = self.lock();
        let mut now = self.shared.io.clock.now();
        let mut scratch = core::mem::take(&mut state.scratch);
        scratch.reserve_exact(DRIVEN_SCRATCH_BYTES);
        loop {
            if state.reader != Reader::Caller(id) {
                return;
            }
            if state.completions.get(id).is_none() {
                state.scratch = scratch;
                state.rested = now;
                // A pong may still be expected for a call that was given up. The unwritten rest of a call whose
                // response came early must be written without waiting for the next call.
                let is_idle = state.caller.poll_timeout().is_none()
                    && state.line.as_ref().is_none_or(|line| !line.has_unsent());
                state.reader = if is_idle { Reader::Unowned } else { Reader::Thread };
                if !is_idle {
                    let mut due = Due::default();
                    self.settle(&mut state, now, &mut &[][..], &mut due);
                    drop(state);
                    due.call();
                }
                return;
            }
            let Some(line) = &state.line else {
                state.reader = Reader::Thread;
                let mut due = Due::default();
                self.settle(&mut state, now, &mut &[][..], &mut due);
                drop(state);
                due.call();
                return;
            };
            let (fd, wants_write) = (line.fd(), line.wants_write());
            let until = state.caller.poll_timeout();
            drop(state);
            let is_woken = self.wait(fd, wants_write, until.map(|until| until.since(now)));
            if is_woken {
                self.caller_waker.take_back();
            }
            now = self.shared.io.clock.now();
            let mut due = Due::default();
            state = self.lock();
            if state.reader == Reader::Caller(id) {
                // Bytes that arrived while this process was paused are read before the peer is considered dead.
                self.receive(&mut state, now, &mut scratch, &mut due);
                if until.is_some_and(|until| until <= now) {
                    state.caller.tick(now);
                    self.settle(&mut state, now, &mut &[][..], &mut due);
                }
            }
            if !due.is_empty() {
                drop(state);
                due.call();
                state = self.lock();
            }
        }
    }

    /// Waits until the socket is ready, another thread wakes this one, or the time has passed. Returns true if it was
    /// woken.
    fn wait(&self, fd: RawFd, wants_write: bool, span: Option<Duration>) -> bool {
        let events = if wants_write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        let mut watched = [
            libc::pollfd { fd, events, revents: 0 },
            libc::pollfd { fd: self.caller_waker.fd(), events: libc::POLLIN, revents: 0 },
        ];
        let millis =
            span.map_or(-1, |span| i32::try_from(span.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        // SAFETY: two valid `pollfd`s. The result may be ignored: the socket does not block, and the time is checked.
        unsafe { libc::poll(watched.as_mut_ptr(), 2, millis) };
        watched[1].revents != 0
    }

    /// Cancels a call; returns whether it was pending.
    pub(super) fn cancel(self: &Arc<Self>, id: u64) -> bool {
        let mut was_there = false;
        self.change(|state, _| was_there = state.caller.cancel(id));
        was_there
    }

    pub(super) fn goodbye(self: &Arc<Self>) {
        self.change(|state, _| state.caller.goodbye());
    }

    /// Fails the program's calls with this message.
    pub(super) fn cut(self: &Arc<Self>, message: &str) {
        self.change(|state, _| state.caller.cut(message));
    }

    /// Fails all calls, and accepts no further ones.
    pub(super) fn end(self: &Arc<Self>, why: &ConnectionError) {
        self.change(|state, _| state.caller.end(why));
    }

    fn resolved(self: &Arc<Self>, attempt: u64, found: Found) {
        self.change(|state, now| {
            if state.attempts == attempt {
                match found {
                    Ok(addresses) => {
                        state.addresses = addresses.into();
                        state.last_failure = ConnectionError::Unreachable("the name has no address".into());
                    }
                    Err(error) => state.last_failure = ConnectionError::Unreachable(error.to_string().into()),
                }
                self.try_next(state, now);
            }
        });
    }

    fn change(self: &Arc<Self>, change: impl FnOnce(&mut LinkState, Instant)) {
        let now = self.shared.io.clock.now();
        let mut due = Due::default();
        let mut state = self.lock();
        change(&mut state, now);
        self.settle(&mut state, now, &mut &[][..], &mut due);
        if let Reader::Caller(_) = state.reader {
            // The change may have ended its call or the connection.
            self.caller_waker.wake();
        }
        drop(state);
        due.call();
    }

    /// Reads what is available, up to a limit.
    fn receive(self: &Arc<Self>, state: &mut LinkState, now: Instant, scratch: &mut Vec<u8>, due: &mut Due) {
        for _ in 0..READS_PER_ITERATION {
            scratch.clear();
            let is_more = state.read_once(now, scratch);
            if let (true, Some(line)) = (state.caller.is_proving(), &state.line)
                && let Some(channel) = line.binding()
            {
                state.caller.bind(channel);
            }
            self.settle(state, now, &mut &scratch[..], due);
            if !is_more {
                return;
            }
        }
    }

    /// Executes what the state machine requests, until it requests nothing.
    fn settle(self: &Arc<Self>, state: &mut LinkState, now: Instant, bytes: &mut &[u8], due: &mut Due) {
        loop {
            let mut any = false;
            while let Some(event) = state.caller.next_event(now, bytes) {
                any = true;
                self.handle_event(state, now, event, due);
            }
            if let Some(why) = state.flush() {
                any = true;
                let attempts = state.attempts;
                self.read_last(state, now, due);
                if state.attempts == attempts {
                    state.caller.lost(why);
                }
            }
            if !any && self.watch(state) {
                break;
            }
        }
        if state.line.as_ref().is_none_or(|line| !line.has_unsent()) {
            due.release_marks(&mut state.unsent_marks);
            if state.completions.is_empty() {
                // The caller of this function holds another reference.
                state.kept = None;
            }
        }
        if let (Reader::Thread | Reader::Unowned, Some(at)) = (state.reader, state.caller.poll_timeout()) {
            self.shared.io.advance(&mut state.timer, at, self.token);
        }
    }

    /// Reads what the callee sent before it closed the connection: its responses, and its goodbye.
    fn read_last(self: &Arc<Self>, state: &mut LinkState, now: Instant, due: &mut Due) {
        let mut scratch = Vec::with_capacity(DRIVEN_SCRATCH_BYTES);
        for _ in 0..READS_PER_ITERATION {
            scratch.clear();
            let is_more = state.read_once(now, &mut scratch);
            let mut bytes = &scratch[..];
            while let Some(event) = state.caller.next_event(now, &mut bytes) {
                self.handle_event(state, now, event, due);
            }
            if !is_more {
                return;
            }
        }
    }

    fn handle_event(
        self: &Arc<Self>,
        state: &mut LinkState,
        now: Instant,
        event: CallerEvent<'_>,
        due: &mut Due,
    ) {
        match event {
            CallerEvent::Connect => self.dial(state, now),
            CallerEvent::HangUp(_) => state.hang_up(),
            CallerEvent::Answer(id, bytes) => {
                state.released.extend(state.requests.remove(id));
                state.answers.insert(id, Incoming::new(bytes));
            }
            CallerEvent::Bytes(id, part) => {
                if let Some(Err(NoMemory)) = state.answers.get_mut(id).map(|answer| answer.append(part)) {
                    state.caller.no_memory(id);
                }
            }
            CallerEvent::Done(id) => {
                let answer = state.answers.remove(id).map(Incoming::into_bytes).unwrap_or_default();
                state.finish(id, Ok(answer), due);
            }
            CallerEvent::Failed(id, error) => {
                state.answers.remove(id);
                state.finish(id, Err(error.at(self.address())), due);
            }
        }
    }

    /// Lets the client's thread watch the socket if that thread is the reader. Returns false if the connection has ended
    /// because it cannot be watched.
    fn watch(&self, state: &mut LinkState) -> bool {
        let LinkState { watch, line, dialing, reader, .. } = state;
        let (fd, interest) = match (line, dialing, reader) {
            (Some(line), _, Reader::Thread) => {
                (line.fd(), if line.wants_write() { Interest::Both } else { Interest::Read })
            }
            (None, Some(socket), _) => (socket.as_raw_fd(), Interest::Write),
            _ => {
                *watch = None;
                return true;
            }
        };
        let Err(error) = self.shared.io.rewatch(watch, fd, interest, self.token) else { return true };
        // One of the two has an effect, depending on whether the connection is open.
        state.caller.unreachable(&connect_error(&error));
        state.caller.lost(lost(&error));
        false
    }

    fn dial(self: &Arc<Self>, state: &mut LinkState, now: Instant) {
        state.attempts += 1;
        state.reader = Reader::Thread;
        if let Some(address) = literal(&self.host, self.port) {
            state.addresses = VecDeque::from([address]);
            return self.try_next(state, now);
        }
        let (link, attempt) = (Arc::downgrade(self), state.attempts);
        let looked_up = look_up(&self.host, self.port, move |found| {
            if let Some(link) = link.upgrade() {
                link.resolved(attempt, found);
            }
        });
        if let Err(error) = looked_up {
            state.caller.unreachable(&ConnectionError::Unreachable(error.to_string().into()));
        }
    }

    /// Tries the next address, or fails.
    fn try_next(&self, state: &mut LinkState, now: Instant) {
        while let Some(address) = state.addresses.pop_front() {
            let begun = open_socket(address).and_then(|socket| {
                start_connect(&socket, address, self.shared.options.keep_alive.as_ref())
                    .map(|done| (socket, done))
            });
            match begun {
                Ok((socket, true)) => return self.finish_dialing(state, now, socket),
                Ok((socket, false)) => {
                    state.dialing = Some(socket);
                    return;
                }
                Err(error) => state.last_failure = connect_error(&error),
            }
        }
        let why = state.last_failure.clone();
        state.caller.unreachable(&why);
    }

    fn finish_dialing(&self, state: &mut LinkState, now: Instant, socket: Socket) {
        let tls = self.shared.options.tls.as_ref();
        // A failure closes the socket, and another thread may open one with the same number at once.
        state.watch = None;
        match finish_connect(&socket).and_then(|()| Transport::connected(socket, &self.host, tls)) {
            Ok(transport) => {
                state.line = Some(Line::new(transport));
                let token = self.shared.options.token.as_ref();
                state.caller.connected(now, token.map(|token| token.begin()));
            }
            Err(error) => {
                state.last_failure = connect_error(&error);
                self.try_next(state, now);
            }
        }
    }
}

impl Target for Link {
    fn ready(self: Arc<Self>, _: Ready, scratch: &mut Vec<u8>) {
        let now = self.shared.io.clock.now();
        let mut due = Due::default();
        let mut state = self.lock();
        if let Some(socket) = state.dialing.take() {
            self.finish_dialing(&mut state, now, socket);
            self.settle(&mut state, now, &mut &[][..], &mut due);
        } else if state.reader == Reader::Thread {
            self.receive(&mut state, now, scratch, &mut due);
        }
        if due.is_empty() {
            return;
        }
        state.writing = Writing::Gathered;
        drop(state);
        due.call();
        let mut due = Due::default();
        let mut state = self.lock();
        state.writing = Writing::AtOnce;
        self.settle(&mut state, self.shared.io.clock.now(), &mut &[][..], &mut due);
        drop(state);
        due.call();
    }

    fn tick(self: Arc<Self>, now: Instant, _: &mut Vec<u8>) {
        self.change(|state, _| {
            state.timer = None;
            state.caller.tick(now);
        });
    }
}

const IDLE_SCRATCH_BYTES: usize = 4 * 1024;
const DRIVEN_SCRATCH_BYTES: usize = 16 * 1024;

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.io.remove(self.token);
        let address = self.address();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.caller.abort(&ConnectionError::Closed);
        let mut due = Due::default();
        while let Some(event) = state.caller.next_event(Instant::ORIGIN, &mut &[][..]) {
            if let CallerEvent::Failed(id, error) = event {
                state.finish(id, Err(error.at(&*address)), &mut due);
            }
        }
        due.release_marks(&mut state.unsent_marks);
        due.call();
    }
}

impl HoldsObjects for LinkState {
    type Released = Vec<Payload>;

    fn take_released(&mut self) -> Vec<Payload> {
        core::mem::take(&mut self.released)
    }
}

impl LinkState {
    /// Writes as much as the socket accepts. Returns how the connection has ended if that failed.
    fn flush(&mut self) -> Option<ConnectionError> {
        let Self { caller, line: Some(line), requests, released, writing: Writing::AtOnce, .. } = self else {
            return None;
        };
        let flushed = line.flush(requests, released, &mut || caller.poll_write());
        flushed.err().map(|error| lost(&error))
    }

    /// Reads once; returns whether there may be more to read.
    fn read_once(&mut self, now: Instant, scratch: &mut Vec<u8>) -> bool {
        let Some(line) = &mut self.line else { return false };
        let due = self.caller.due();
        let payload = due.and_then(|(id, bytes)| Some((self.answers.get_mut(id)?, bytes)));
        match line.read_payload(payload, scratch) {
            ReadResult::Read(bytes, is_more) => {
                if bytes > 0 {
                    self.caller.filled(now, bytes);
                }
                is_more
            }
            ReadResult::NoMemory => due.is_some_and(|(id, _)| self.caller.no_memory(id)),
            ReadResult::Lost(why) => {
                self.caller.lost(why);
                false
            }
        }
    }

    fn hang_up(&mut self) {
        self.watch = None;
        if let Some(line) = self.line.take() {
            line.close(&mut self.released);
        }
        self.dialing = None;
        self.addresses.clear();
        self.attempts += 1;
        if self.reader == Reader::Thread {
            self.reader = Reader::Unowned;
        }
    }

    fn finish(&mut self, id: u64, result: CallResult, due: &mut Due) {
        self.released.extend(self.requests.remove(id));
        let completion = self.completions.remove(id);
        let is_one_way_success = matches!((&completion, &result), (Some(Completion::Unowned(_)), Ok(_)));
        if let (false, Some(line)) = (is_one_way_success, &mut self.line) {
            // Borrowed bytes are released with the result, whether or not the callee reads the rest.
            line.let_go(id, &mut self.released);
        }
        match completion {
            Some(Completion::Unowned(None)) | None => {}
            // It is pending until its last byte is written.
            Some(Completion::Unowned(Some(mark))) if result.is_ok() => self.unsent_marks.push(mark),
            // Borrowed bytes are released before the call returns.
            Some(completion) => due.0.push((completion, result)),
        }
    }
}

/// Converts an error of connecting.
fn connect_error(error: &io::Error) -> ConnectionError {
    let message = error.to_string().into();
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ConnectionError::NotListening(message),
        // The connection was in the queue of a listener that was closed.
        io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected => ConnectionError::Lost(message),
        _ => ConnectionError::Unreachable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_ends_at_the_door_was_one() {
        let method = |number| connect_error(&io::Error::from_raw_os_error(number));
        assert!(matches!(method(libc::ECONNREFUSED), ConnectionError::NotListening(_)));
        assert!(matches!(method(libc::ECONNRESET), ConnectionError::Lost(_)));
        assert!(matches!(method(libc::ENOTCONN), ConnectionError::Lost(_)));
        assert!(matches!(method(libc::EHOSTUNREACH), ConnectionError::Unreachable(_)));
    }
}
