//! Connection of a caller: state machine, socket, and the payloads in both directions.

use super::{Admit, RpcServerOptions, ServerShared};
use crate::connection::callee::{Callee, CalleeEvent};
use crate::connection::{CallKind, ConnectionError, Refusal, RefusalEvent, Status};
use crate::driver::calls::handling::{
    AnswerTo, CallKey, CallSource, Handler, Held, Job, Run, is_carried_out,
};
use crate::driver::calls::io_thread::Target;
use crate::driver::calls::line::{Incoming, Line, NoMemory, ReadResult, lost};
use crate::driver::calls::locked::{HoldsObjects, Locked};
use crate::driver::calls::transport::Transport;
use crate::driver::calls::{Payload, Received};
use crate::intake::{InFlight, QuotaId};
use alloc::collections::VecDeque;
use alloc::sync::Weak;
use core::net::SocketAddr;
use rendezvous_core::driver::event_loop::{Interest, Ready, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::ordered::Map;
use socket2::Socket;

/// Why a worker that does not use TLS is refused.
const NO_TLS: &str =
    "this worker requires TLS, and the caller does not use it: give all workers of the group files for TLS";
/// Maximum number of reads of one connection in one iteration.
const READS_PER_ITERATION: usize = 8;

/// Connection that is shared by the thread that reads it and those that respond.
#[derive(Debug)]
pub(in crate::driver::calls) struct Conn {
    shared: Arc<ServerShared>,
    quota: QuotaId,
    token: usize,
    peer: SocketAddr,
    state: Mutex<ConnState>,
}

#[derive(Debug)]
pub(super) struct ConnState {
    pub(super) callee: Callee,
    /// Declared before, and so dropped before, the socket that it watches.
    watch: Option<Watch>,
    /// `None` once it is closed.
    line: Option<Line>,
    /// Scheduled time of the next tick.
    timer: Option<Instant>,
    receiving: Map<u64, Receiving>,
    answers: Map<u64, Payload>,
    released: Vec<Payload>,
    /// Handlers of requests that ended before they were executed. This may be the last use of a removed handler.
    released_handlers: Vec<Arc<Handler>>,
    /// Bytes of responses that the worker's intake has counted for this connection.
    unread_bytes: u64,
    /// Whether it waits for its turn to go on with its TLS handshake. It is not read until then.
    awaits_turn: bool,
    /// Requests, by their calls, whose handlers start when the caller has read other responses.
    held_back: VecDeque<(u64, Job)>,
    writing: Writing,
    end: End,
}

/// Request that is being received.
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
    /// The thread runs handlers, and writes once after all of them.
    Gathered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotYet,
    /// When the pending bytes are written.
    WhenWritten,
    Now,
}

impl Receiving {
    fn append(&mut self, part: &[u8], shared: &ServerShared) -> Result<(), Exhausted> {
        self.payload.append(part).map_err(|NoMemory| NO_MEMORY)?;
        self.count(shared)
    }

    /// Counts what has arrived.
    fn count(&mut self, shared: &ServerShared) -> Result<(), Exhausted> {
        let Held { payload_bytes, counted, quota, .. } = self.held;
        let arrived = self.payload.arrived();
        if counted < payload_bytes && arrived >= counted {
            let mut intake = shared.intake();
            self.held.counted = intake.arrived(payload_bytes, counted, arrived);
            if arrived < payload_bytes && intake.is_beyond(quota) {
                return Err(OVER_LIMIT);
            }
        }
        Ok(())
    }
}

/// Why a worker cannot take the rest of a request.
type Exhausted = &'static str;

const NO_MEMORY: Exhausted = "there is no memory for it";
const OVER_LIMIT: Exhausted = "the worker holds more than twice as many bytes of requests as it accepts";

impl Conn {
    /// Creates the state of an accepted connection.
    pub(super) fn new(
        shared: &Arc<ServerShared>,
        now: Instant,
        socket: Socket,
        peer: SocketAddr,
    ) -> Arc<Self> {
        let RpcServerOptions { me, group, limits, token, .. } = &shared.options;
        let mut callee = Callee::new(now, me.clone(), group, *limits);
        if let Some(token) = token {
            callee.require(token.begin());
        }
        let state = ConnState {
            callee,
            watch: None,
            line: Some(Line::new(Transport::accepted(socket, shared.options.tls.as_ref()))),
            timer: None,
            receiving: Map::new(),
            answers: Map::new(),
            released: Vec::new(),
            released_handlers: Vec::new(),
            unread_bytes: 0,
            awaits_turn: false,
            held_back: VecDeque::new(),
            writing: Writing::AtOnce,
            end: End::NotYet,
        };
        let quota = shared.intake().open();
        Arc::new_cyclic(|conn: &Weak<Self>| {
            let token = shared.io.add(conn.clone());
            Self { shared: Arc::clone(shared), quota, token, peer, state: Mutex::new(state) }
        })
    }

    pub(super) const fn token(&self) -> usize {
        self.token
    }

    /// Identity of a call in this process.
    fn key(&self, call: u64) -> CallKey {
        (core::ptr::from_ref(self).addr(), call)
    }

    fn lock(&self) -> Locked<'_, ConnState> {
        Locked::new(&self.state)
    }

    /// Returns why a response is not kept. The response of a handler that is still running always is: the number of
    /// running handlers, and so of such responses, has its own limit.
    fn why_dropped(&self, state: &ConnState, call: u64, bytes: u64) -> Option<String> {
        let unread_bytes = state.callee.unread_bytes();
        if unread_bytes == 0 || is_carried_out(self.key(call)) {
            return None;
        }
        if !state.callee.keeps_late_answer(bytes) {
            let bytes_max = self.shared.options.limits.late_answer_bytes_max;
            return Some(format!(
                "the answer of {bytes} bytes was dropped: the caller has not read {unread_bytes} bytes of other \
                 answers, and at most {bytes_max} are kept for it"
            ));
        }
        let intake = self.shared.intake();
        (!intake.keeps_late_answer(bytes)).then(|| {
            let unread_bytes = intake.unread_bytes();
            format!(
                "the answer of {bytes} bytes was dropped: the worker keeps {unread_bytes} bytes of answers that \
                 callers have not read"
            )
        })
    }

    fn write_from_outside(&self, state: &mut ConnState) {
        if state.writing == Writing::AtOnce {
            state.settle(&self.shared, self.token);
            if let (true, Some(line)) = (state.is_over(), &state.line) {
                // The thread that owns the connection is woken by this.
                line.shut_down();
            }
        }
    }

    /// Changes the state, and executes what follows from that.
    pub(super) fn change(self: &Arc<Self>, now: Instant, change: impl FnOnce(&mut ConnState)) {
        let mut state = self.lock();
        change(&mut state);
        self.handle_event(&mut state, now, &[], &mut Vec::new());
        self.update(&mut state);
    }

    /// Writes, sets the timer, and closes the connection if it has ended.
    fn update(&self, state: &mut ConnState) {
        if state.line.is_none() {
            return;
        }
        state.settle(&self.shared, self.token);
        if state.is_over() {
            if state.end == End::WhenWritten {
                state.callee.lost(ConnectionError::Closed);
            }
            return self.close(state);
        }
        if let Some(at) = state.callee.poll_timeout() {
            self.shared.io.advance(&mut state.timer, at, self.token);
        }
    }

    fn begin_job(&self, job: Job) {
        match job.handler.run {
            Run::Inline => job.run(),
            Run::Pooled => self.shared.handling.submit(job),
        }
    }

    /// Reads what is available, if the connection is being read and not in a TLS handshake, and starts the handlers of complete
    /// requests.
    pub(super) fn read_ahead(self: &Arc<Self>, now: Instant, scratch: &mut Vec<u8>) {
        let state = self.lock();
        let is_read = state.callee.is_read() && !state.shakes_hands();
        drop(state);
        if is_read {
            self.serve(now, true, scratch);
        }
    }

    fn serve(self: &Arc<Self>, now: Instant, readable: bool, scratch: &mut Vec<u8>) {
        let mut jobs = Vec::new();
        let mut state = self.lock();
        let readable = readable || state.line.as_ref().is_some_and(Line::has_received);
        if readable && state.callee.is_held_up() {
            // Only the end of such a connection is watched for.
            state.callee.read_to_the_end();
            self.shared.state.locked().unread.retain(|held| held.token != self.token);
        }
        if readable && state.shakes_hands() {
            if !core::mem::replace(&mut state.awaits_turn, true) {
                self.shared.io.queue_handshake(self.token);
            }
        } else if readable && state.callee.is_read() {
            if !self.may_read(&state) && state.callee.hold_up(now) {
                self.shared.state.locked().unread.push(Arc::clone(self));
            } else {
                self.read(&mut state, now, scratch, &mut jobs);
            }
        }
        self.finish(state, jobs);
    }

    /// Does what follows from reading: writes, and starts the handlers of complete requests.
    fn finish(self: &Arc<Self>, mut state: Locked<'_, ConnState>, jobs: Vec<Job>) {
        let is_inline = |job: &Job| job.handler.run == Run::Inline;
        if jobs.iter().any(is_inline) {
            state.writing = Writing::Gathered;
            drop(state);
            jobs.into_iter().for_each(|job| self.begin_job(job));
            let mut state = self.lock();
            state.writing = Writing::AtOnce;
            self.update(&mut state);
        } else {
            self.update(&mut state);
            let held_back = state.take_held_back(&self.shared);
            drop(state);
            jobs.into_iter().for_each(|job| self.begin_job(job));
            held_back.into_iter().for_each(|(_, job)| self.begin_job(job));
        }
    }

    /// Closes the connection, which has not been greeted, for another caller.
    pub(super) fn displace(self: &Arc<Self>, now: Instant) {
        self.change(now, |state| state.lose(ConnectionError::Displaced));
    }

    /// Ends the connection at once.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.callee.lost(ConnectionError::Closed);
        self.close(&mut state);
    }

    /// Handles received bytes; complete requests are added to `jobs`.
    fn handle_event(
        self: &Arc<Self>,
        state: &mut ConnState,
        now: Instant,
        mut bytes: &[u8],
        jobs: &mut Vec<Job>,
    ) {
        let shared = &self.shared;
        while let Some(event) = state.callee.next_event(now, &mut bytes) {
            match event {
                CalleeEvent::Claimed(_) if shared.options.tls.is_some() && !state.is_secured() => {
                    state.callee.refuse(Refusal::Unknown, NO_TLS);
                }
                CalleeEvent::Claimed(worker) => match (shared.options.admit)(&worker) {
                    Ok(()) => {
                        state.callee.admit();
                        shared.greeted(self);
                    }
                    Err((why, message)) => state.callee.refuse(why, &message),
                },
                CalleeEvent::Request { call, handler, payload_bytes, deadline, kind } => {
                    let caller = state.callee.peer().map_or("", |caller| caller.name.as_str());
                    match shared.handling.find(&handler, caller) {
                        Err(why) => {
                            let (status, message) = state.callee.refuse_call(call, why);
                            self.call_refused(state, &handler, status, &message);
                        }
                        Ok(handler) => {
                            let payload = Incoming::with(payload_bytes, &shared.buffer_pool, now);
                            shared.schedule_pool_end(payload_bytes);
                            let held = shared.take_in(self.quota, payload_bytes);
                            let receiving = Receiving { handler, payload, kind, deadline, held };
                            state.receiving.insert(call, receiving);
                            if shared.intake().is_beyond(self.quota) {
                                self.cut_off(state, call, OVER_LIMIT);
                            }
                        }
                    }
                }
                CalleeEvent::Bytes(call, part) => {
                    let receiving = state.receiving.get_mut(call);
                    if let Some(Err(why)) = receiving.map(|one| one.append(part, shared)) {
                        self.cut_off(state, call, why);
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
                            payload: Received::new(
                                payload.into_bytes(),
                                Some(Arc::clone(&shared.buffer_pool)),
                            ),
                            kind,
                            time_left: deadline.map(|at| at.since(now)),
                            to: AnswerTo { source: Arc::<Self>::clone(self), call },
                            held: Some(held),
                        });
                    }
                }
                CalleeEvent::Pinged => {
                    if let Some(load) = shared.handling.exhaustion() {
                        state.callee.exhausted(load);
                    }
                }
                CalleeEvent::Refused(handler, status) => self.call_refused(state, &handler, status, ""),
                event => {
                    if let CalleeEvent::Ended(why) = &event
                        && why.is_refusal()
                    {
                        let (peer, caller) = (Some(self.peer), state.callee.peer().cloned());
                        shared.report(&RefusalEvent::Connection { peer, caller, why: why.clone() });
                    }
                    state.ended(&event);
                }
            }
        }
    }

    /// Reports a call that no handler gets.
    fn call_refused(&self, state: &ConnState, handler: &str, status: Status, message: &str) {
        let (peer, caller) = (Some(self.peer), state.callee.peer().cloned());
        let (handler, message) = (handler.into(), message.into());
        self.shared.report(&RefusalEvent::Call { peer, caller, handler, status, message });
    }

    /// Refuses a request that has begun. The rest of it is dropped.
    #[inline(never)]
    fn cut_off(&self, state: &mut ConnState, call: u64, why: Exhausted) {
        state.released_handlers.extend(state.receiving.remove(call).map(|receiving| receiving.handler));
        self.call_refused(state, "", Status::Exhausted, why);
        state.callee.fail(call, Status::Exhausted, why);
    }

    /// Whether there is capacity for what the caller sends.
    pub(super) fn has_capacity(&self) -> bool {
        self.may_read(&self.lock())
    }

    fn may_read(&self, state: &ConnState) -> bool {
        let awaited = state.callee.awaited();
        let in_flight = InFlight { awaited, is_receiving: !state.receiving.is_empty() };
        self.shared.intake().may_read(self.quota, in_flight)
    }

    fn close(&self, state: &mut ConnState) {
        if state.line.is_none() {
            return;
        }
        state.close();
        let mut intake = self.shared.intake();
        intake.count_unread(core::mem::take(&mut state.unread_bytes), 0);
        intake.close(self.quota);
        drop(intake);
        self.shared.remove_conn(self);
    }

    /// Reads what is available, up to a limit.
    fn read(
        self: &Arc<Self>,
        state: &mut ConnState,
        now: Instant,
        scratch: &mut Vec<u8>,
        jobs: &mut Vec<Job>,
    ) {
        for _ in 0..READS_PER_ITERATION {
            scratch.clear();
            let is_more = state.read_once(scratch, self);
            if let (true, Some(line)) = (state.callee.is_proving(), &state.line)
                && let Some(channel) = line.binding()
            {
                state.callee.bind(channel);
            }
            // After the goodbye, only the handshake goes on.
            let bytes = if state.callee.is_read() { &scratch[..] } else { &[] };
            self.handle_event(state, now, bytes, jobs);
            let is_over = state.end != End::NotYet || !state.callee.is_read();
            let is_enough = !is_more || is_over || state.shakes_hands();
            // Whether the connection must be held up is checked before the next read.
            if is_enough || !self.may_read(state) {
                return;
            }
        }
    }
}

impl Target for Conn {
    fn ready(self: Arc<Self>, ready: Ready, scratch: &mut Vec<u8>) {
        self.serve(self.shared.io.clock.now(), ready.readable, scratch);
    }

    fn handshake(self: Arc<Self>, scratch: &mut Vec<u8>) {
        let (now, mut jobs) = (self.shared.io.clock.now(), Vec::new());
        let mut state = self.lock();
        state.awaits_turn = false;
        self.read(&mut state, now, scratch, &mut jobs);
        self.finish(state, jobs);
    }

    fn tick(self: Arc<Self>, now: Instant, _: &mut Vec<u8>) {
        self.change(now, |state| {
            state.timer = None;
            state.callee.tick(now);
        });
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.shared.io.remove(self.token);
    }
}

impl CallSource for Conn {
    fn number(&self) -> usize {
        self.quota.index()
    }

    fn is_wanted(&self, call: u64) -> bool {
        self.lock().callee.waits_for(call)
    }

    /// Whether the handler of a request may start now, without taking the job.
    fn begins(&self, call: u64) -> bool {
        let state = self.lock();
        state.callee.waits_for(call) && state.begins(&self.shared)
    }

    /// Returns the job if its handler may start now. If the call was given up, the job is dropped; if the caller does
    /// not read its responses, the job is held back until it does.
    fn begin(&self, call: u64, job: Job) -> Option<Job> {
        let mut state = self.lock();
        if !state.callee.waits_for(call) {
            return None;
        }
        if !state.begins(&self.shared) && job.is_of_the_program() {
            state.held_back.push_back((call, job));
            return None;
        }
        Some(job)
    }

    fn answer(&self, call: u64, payload: Payload) -> bool {
        let mut state = self.lock();
        let bytes = payload.bytes().len() as u64;
        if let Some(text) = self.why_dropped(&state, call, bytes) {
            if state.callee.fail(call, Status::TooLong, &text) {
                self.write_from_outside(&mut state);
            }
            return false;
        }
        let is_wanted = state.callee.answer(call, bytes);
        if is_wanted {
            if bytes > 0 {
                state.answers.insert(call, payload);
            }
            self.write_from_outside(&mut state);
        }
        is_wanted
    }

    fn fail(&self, call: u64, status: Status, message: &str) -> bool {
        let mut state = self.lock();
        // Only the library fails calls so: no handler has seen them.
        if matches!(status, Status::Exhausted | Status::Leaving) {
            self.call_refused(&state, "", status, message);
        }
        let is_wanted = state.callee.fail(call, status, message);
        if is_wanted {
            self.write_from_outside(&mut state);
        }
        is_wanted
    }
}

impl HoldsObjects for ConnState {
    type Released = (Vec<Payload>, Vec<Arc<Handler>>);

    fn take_released(&mut self) -> Self::Released {
        (core::mem::take(&mut self.released), core::mem::take(&mut self.released_handlers))
    }
}

impl ConnState {
    /// Reads once; returns whether there may be more to read.
    fn read_once(&mut self, scratch: &mut Vec<u8>, conn: &Conn) -> bool {
        let Some(line) = &mut self.line else { return false };
        let due = self.callee.due();
        let payload = due.and_then(|(call, bytes)| Some((&mut self.receiving.get_mut(call)?.payload, bytes)));
        match line.read_payload(payload, scratch) {
            ReadResult::Read(bytes, is_more) => {
                if let (1.., Some((call, _))) = (bytes, due) {
                    self.callee.filled(bytes);
                    let receiving = self.receiving.get_mut(call);
                    if let Some(Err(why)) = receiving.map(|one| one.count(&conn.shared)) {
                        conn.cut_off(self, call, why);
                    }
                }
                is_more
            }
            ReadResult::NoMemory => {
                due.into_iter().for_each(|(call, _)| conn.cut_off(self, call, NO_MEMORY));
                true
            }
            ReadResult::Lost(why) => {
                self.lose(why);
                false
            }
        }
    }

    fn lose(&mut self, why: ConnectionError) {
        self.callee.lost(why);
        self.end = End::Now;
    }

    /// Closes the connection of a worker that is refused now. A connection that is already ending is left alone, so
    /// that its worker gets the reason.
    pub(super) fn admit_again(&mut self, admit: &Admit) {
        if self.end != End::NotYet {
            return;
        }
        let refused = self.callee.peer().and_then(|worker| admit(worker).err());
        if let Some((why, message)) = refused {
            self.lose(ConnectionError::Refused { why, message });
        }
    }

    /// Handles the other events of requests and of the connection.
    fn ended(&mut self, event: &CalleeEvent<'_>) {
        match event {
            CalleeEvent::Over(call, _) | CalleeEvent::Responded(call) => {
                self.released_handlers
                    .extend(self.receiving.remove(*call).map(|receiving| receiving.handler));
                self.released.extend(self.answers.remove(*call));
                if let Some(index) = self.held_back.iter().position(|(held, _)| held == call) {
                    self.released_handlers.extend(self.held_back.remove(index).map(|(_, job)| job.handler));
                }
                if let (CalleeEvent::Over(..), Some(line)) = (event, &mut self.line) {
                    line.let_go(*call, &mut self.released);
                }
            }
            CalleeEvent::Drained | CalleeEvent::Ended(_) if self.end == End::NotYet => {
                self.end = End::WhenWritten;
            }
            CalleeEvent::Unread => self.end = End::Now,
            _ => {}
        }
    }

    /// Writes what is pending, and arranges that the rest is written later.
    fn settle(&mut self, shared: &ServerShared, token: usize) {
        let Self { callee, line, answers, released, .. } = self;
        let Some(line) = line else { return };
        let flushed = line.flush(answers, released, &mut || callee.poll_write());
        if let Err(error) = flushed {
            self.lose(lost(&error));
        }
        // Without bytes there are only events of ends.
        while let Some(event) = self.callee.next_event(Instant::ORIGIN, &mut &[][..]) {
            self.ended(&event);
        }
        let unread_bytes = self.callee.unread_bytes();
        if unread_bytes != self.unread_bytes {
            shared.intake().count_unread(self.unread_bytes, unread_bytes);
            self.unread_bytes = unread_bytes;
        }
        self.update_interest(shared, token);
    }

    /// Whether handlers may start for this caller.
    fn begins(&self, shared: &ServerShared) -> bool {
        let is_free = self.unread_bytes == 0 || shared.intake().begins(self.unread_bytes);
        is_free && self.callee.begins()
    }

    /// Takes the requests that were held back and may be executed now.
    fn take_held_back(&mut self, shared: &ServerShared) -> VecDeque<(u64, Job)> {
        let is_due = !self.held_back.is_empty() && self.begins(shared);
        if is_due { core::mem::take(&mut self.held_back) } else { VecDeque::new() }
    }

    fn update_interest(&mut self, shared: &ServerShared, token: usize) {
        let is_due = !self.held_back.is_empty() && self.begins(shared);
        let Some(line) = &self.line else { return };
        // The thread that owns the connection closes it, and must be woken when it has ended.
        let is_wanted = self.callee.is_read() && self.end == End::NotYet;
        // A refusal or goodbye can only be sent after the handshake.
        let is_read = self.is_over() || (!self.awaits_turn && (is_wanted || self.shakes_hands()));
        let is_held_up = self.callee.is_held_up() && self.end == End::NotYet;
        // The thread that owns the connection must be woken for the requests that were held back.
        let interest = match (is_read, line.wants_write() || is_due) {
            (true, false) => Interest::Read,
            (true, true) => Interest::Both,
            (false, false) if is_held_up => Interest::End,
            (false, true) if is_held_up => Interest::WriteOrEnd,
            (false, true) => Interest::Write,
            (false, false) => {
                self.watch = None;
                return;
            }
        };
        if let Err(error) = shared.io.rewatch(&mut self.watch, line.fd(), interest, token) {
            self.lose(lost(&error));
            // Another thread may have found that, and no event of the socket wakes the one that closes it.
            shared.io.schedule(Instant::ORIGIN, token);
        }
    }

    /// Returns whether the TLS handshake of the connection is in progress.
    fn shakes_hands(&self) -> bool {
        self.line.as_ref().is_some_and(|line| !line.is_ready())
    }

    fn is_secured(&self) -> bool {
        self.line.as_ref().is_some_and(Line::is_secured)
    }

    fn is_over(&self) -> bool {
        let is_written = self.line.as_ref().is_none_or(|line| !line.has_unsent());
        self.end == End::Now || (self.end == End::WhenWritten && is_written)
    }

    fn close(&mut self) {
        self.end = End::Now;
        while let Some(event) = self.callee.next_event(Instant::ORIGIN, &mut &[][..]) {
            self.ended(&event);
        }
        self.watch = None;
        if let Some(line) = self.line.take() {
            line.close(&mut self.released);
        }
        let receiving = core::mem::take(&mut self.receiving).into_values().map(|receiving| receiving.handler);
        let held_back = core::mem::take(&mut self.held_back).into_iter().map(|(_, job)| job.handler);
        self.released_handlers.extend(receiving.chain(held_back));
        self.released.extend(core::mem::take(&mut self.answers).into_values());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::calls::tests::frames::hello;
    use crate::limits::RpcLimits;
    use crate::name::WorkerInfo;

    /// A connection after the handshake.
    fn greeted() -> ConnState {
        let me = WorkerInfo { name: "b".parse().expect("a name"), id: 2 };
        let mut callee = Callee::new(Instant::ORIGIN, me, b"group", RpcLimits::default());
        let hello = hello();
        let event = callee.next_event(Instant::ORIGIN, &mut &hello[..]);
        assert!(matches!(event, Some(CalleeEvent::Claimed(_))));
        ConnState {
            callee,
            watch: None,
            line: None,
            timer: None,
            receiving: Map::new(),
            answers: Map::new(),
            released: Vec::new(),
            released_handlers: Vec::new(),
            unread_bytes: 0,
            awaits_turn: false,
            held_back: VecDeque::new(),
            writing: Writing::AtOnce,
            end: End::NotYet,
        }
    }

    #[test]
    fn who_was_refused_hears_why_though_it_is_looked_at_again() {
        let refuse = |_: &WorkerInfo| Err((Refusal::Over, "it ended".into()));
        let mut state = greeted();
        state.callee.refuse(Refusal::Unknown, "no such worker");
        while let Some(event) = state.callee.next_event(Instant::ORIGIN, &mut &[][..]) {
            state.ended(&event);
        }
        assert_eq!(state.end, End::WhenWritten);
        state.admit_again(&refuse);
        assert_eq!(state.end, End::WhenWritten);
        assert!(state.callee.poll_write().is_some(), "the reason");

        let mut state = greeted();
        state.callee.admit();
        state.admit_again(&|_| Ok(()));
        assert_eq!(state.end, End::NotYet);
        state.admit_again(&refuse);
        assert_eq!(state.end, End::Now);
    }
}
