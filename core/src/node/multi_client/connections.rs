//! Connections of a [`MultiClient`], and the assignment of calls to them.

use super::outgoing::Outgoing;
use super::{CallPosition, Input, MultiClient, Output, Queues};
use crate::error::{Cause, ErrorKind, Failure, Phase, Violation};
use crate::ids::ConnId;
use crate::node::client::link::Link;
use crate::node::client::{Age, Resolution, Sent, begin_failure, violation_failure};
use crate::ordered::Set;
use crate::prelude::*;
use crate::store::call::CallId;
use crate::store::client_conn::{BeginError, Event, GiveUp, PENDING};
use crate::store::dial::{DialInput, DialOutput, DialState, Rounds};
use crate::wire::sink::Sink;
use alloc::collections::VecDeque;
use slab::Slab;

#[derive(Debug)]
pub(super) struct PooledConnection {
    generation: u32,
    pub(super) link: Link<PENDING>,
    pub(super) out: Outgoing,
    /// Number of calls on it whose callers still wait. `begun` counts all that it ever had.
    pub(super) live: usize,
    begun: u64,
    /// Whether the call on it may block.
    waits: bool,
    /// Whether an answer is overdue. The connection then takes no more calls and is closed once no caller waits on it.
    overdue: bool,
}

impl PooledConnection {
    fn is_ready(&self) -> bool {
        self.link.dialer.state() == DialState::Ready && !self.overdue
    }

    fn may_begin(&self) -> bool {
        self.is_ready() && self.link.conn.may_begin().is_ok()
    }

    /// Ends a call before its answer. Returns the phase that it had reached, and what must be done.
    pub(super) fn give_up(&mut self, id: CallId) -> (Phase, GiveUp) {
        let phase = self.link.conn.phase(id).unwrap_or(Phase::Waiting);
        let todo = self.link.conn.give_up(id);
        self.overdue |= matches!(todo, GiveUp::Close(_));
        (phase, todo)
    }

    /// Records that a call has ended.
    pub(super) const fn call_ended(&mut self) {
        self.live -= 1;
        self.waits &= self.live > 0;
    }
}

/// Number of connections to open, by kind of call.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    shared: usize,
    brief: usize,
    waiting: usize,
}

/// Connections by slot.
#[derive(Debug, Default)]
pub(super) struct ConnectionPool {
    slots: Slab<PooledConnection>,
    generations: u32,
    /// Connection that the calls share which are answered at once.
    shared: Option<ConnId>,
    ever_ready: bool,
}

impl ConnectionPool {
    fn id(index: usize, connection: &PooledConnection) -> ConnId {
        ConnId { index: u32::try_from(index).unwrap_or(u32::MAX), generation: connection.generation }
    }

    pub(super) fn get(&self, conn: ConnId) -> Option<&PooledConnection> {
        self.slots.get(conn.index as usize).filter(|connection| connection.generation == conn.generation)
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut PooledConnection> {
        self.slots.get_mut(conn.index as usize).filter(|connection| connection.generation == conn.generation)
    }

    fn remove(&mut self, conn: ConnId) -> Option<PooledConnection> {
        self.get(conn)?;
        if self.shared == Some(conn) {
            self.shared = None;
        }
        Some(self.slots.remove(conn.index as usize))
    }

    fn find(&mut self, mut good: impl FnMut(&mut PooledConnection) -> bool) -> Option<ConnId> {
        self.slots
            .iter_mut()
            .find_map(|(index, connection)| good(connection).then(|| Self::id(index, connection)))
    }

    fn dialling(&self) -> impl Iterator<Item = &PooledConnection> {
        self.slots
            .iter()
            .map(|(_, connection)| connection)
            .filter(|connection| connection.link.dialer.state() != DialState::Ready)
    }

    /// Returns the number of connections with a call that may block.
    fn waiting(&self) -> usize {
        self.slots.iter().filter(|(_, connection)| connection.waits).count()
    }

    /// Returns whether calls that share have an established connection. It may be full of pipelined calls.
    fn shared_is_ready(&self) -> bool {
        self.shared.and_then(|conn| self.get(conn)).is_some_and(PooledConnection::is_ready)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|(_, connection)| connection.link.dialer.poll_timeout()).min()
    }

    /// Returns the failure so far of a connection that is being established.
    pub(super) fn dial_failure(&self, now: Instant) -> Option<Failure> {
        self.dialling().next().map(|connection| connection.link.dialer.failure(now))
    }

    /// Appends bytes to the unsent ones.
    pub(super) fn append(&mut self, conn: ConnId, bytes: &[u8], outputs: &mut VecDeque<Output>) {
        if let Some(connection) = self.get_mut(conn) {
            if connection.out.is_empty() {
                outputs.push_back(Output::Transmit(conn));
            }
            connection.out.put(bytes);
        }
    }
}

impl MultiClient {
    /// Handles an event of a connection.
    pub(super) fn connection_input(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Resolved(addresses) => self.looked_up(now, DialInput::Resolved(addresses)),
            Input::Unresolved(kind, cause) => self.looked_up(now, DialInput::Unresolved(kind, cause)),
            Input::Connected(conn) => self.link_input(now, conn, DialInput::Connected),
            Input::ConnectFailed(conn, kind, cause) => {
                self.link_input(now, conn, DialInput::Failed(kind, cause));
            }
            Input::Received(conn, bytes) => self.received(now, conn, bytes),
            Input::Sent(conn, bytes) => {
                if let Some(connection) = self.pool.get_mut(conn) {
                    connection.out.sent(bytes);
                }
            }
            Input::Ended(conn, cause) => {
                if self
                    .pool
                    .get(conn)
                    .is_some_and(|connection| connection.link.dialer.state() == DialState::Ready)
                {
                    self.lost(now, conn, cause);
                } else {
                    self.link_input(now, conn, DialInput::Failed(ErrorKind::ServerGone, cause));
                }
            }
            Input::Tick => {
                let due = |connection: &mut PooledConnection| {
                    connection.link.dialer.poll_timeout().is_some_and(|at| at <= now)
                };
                while let Some(conn) = self.pool.find(due) {
                    self.link_input(now, conn, DialInput::Tick);
                }
            }
        }
    }

    /// Handles the end of a look-up.
    fn looked_up(&mut self, now: Instant, input: DialInput<'_>) {
        self.profile.looked_up();
        let resolves =
            |connection: &mut PooledConnection| connection.link.dialer.state() == DialState::Resolving;
        while let Some(conn) = self.pool.find(resolves) {
            self.link_input(now, conn, input);
        }
    }

    fn link_input(&mut self, now: Instant, conn: ConnId, input: DialInput<'_>) {
        if let Some(connection) = self.pool.get_mut(conn) {
            connection.link.dialer.handle(now, input);
            self.link_outputs(now, conn);
        }
    }

    fn link_outputs(&mut self, now: Instant, conn: ConnId) {
        while let Some(connection) = self.pool.get_mut(conn)
            && let Some(output) = connection.link.dialer.poll_output()
        {
            match output {
                DialOutput::Resolve => match self.profile.resolve() {
                    Resolution::Known(address) => {
                        self.link_input(now, conn, DialInput::Resolved(&[address]));
                    }
                    Resolution::LookUp => self.outputs.push_back(Output::Resolve),
                    Resolution::Awaited => {}
                },
                DialOutput::Connect(address) => {
                    // An unsent greeting was lost with its connection.
                    connection.out.forget();
                    self.outputs.push_back(Output::Connect(conn, address));
                }
                DialOutput::Greet => {
                    let greeting = connection.link.conn.greet();
                    self.pool.append(conn, &greeting, &mut self.outputs);
                }
                DialOutput::Disconnect => self.outputs.push_back(Output::Disconnect(conn)),
                DialOutput::Ready => {
                    self.profile.dialled(connection.link.dialer.current());
                    self.pool.ever_ready = true;
                }
                DialOutput::Failed(failure) => {
                    self.profile.dialled(None);
                    self.pool.remove(conn);
                    self.not_connected(now, failure);
                }
            }
        }
    }

    /// Handles a connection that could not be established: calls that only it could have served fail.
    fn not_connected(&mut self, now: Instant, failure: Failure) {
        let mut failed = Vec::new();
        if self.pool.len() == 0 {
            let Queues { shared, brief, waiting } = core::mem::take(&mut self.queues);
            failed.extend([&shared, &brief, &waiting].into_iter().flat_map(Set::iter));
        } else {
            // With other connections left, only one call needs this one: the one that has waited longest. Calls that
            // share a connection use one that exists or is being established. If there is none, they fail as well,
            // since otherwise they would wait for as long as the blocking calls do.
            let Wanted { shared, brief, waiting } = self.wanted();
            let dialling = self.pool.dialling().count();
            let queues = &mut self.queues;
            let exclusive = if brief > 0 { &mut queues.brief } else { &mut queues.waiting };
            if brief + waiting > 0 && shared + brief + waiting > dialling {
                failed.extend(exclusive.pop_first());
            }
            if shared > dialling {
                failed.extend(core::mem::take(&mut queues.shared).iter());
            }
        }
        for id in failed {
            let lost = self.operations.get(id).and_then(|pending| pending.attempts.lost());
            self.complete(now, id, Err(lost.unwrap_or(failure)));
        }
    }

    fn received(&mut self, now: Instant, conn: ConnId, mut bytes: &[u8]) {
        while let Some(connection) = self.pool.get_mut(conn) {
            match connection.link.receive(now, &mut bytes) {
                Ok(Some(event)) => self.event(now, conn, event),
                Ok(None) => break,
                Err(violation) => return self.violated(now, conn, violation),
            }
        }
        self.link_outputs(now, conn);
    }

    fn event(&mut self, now: Instant, conn: ConnId, event: Event<'_>) {
        match event {
            Event::Greeted | Event::Count { .. } => {}
            Event::ValueStart { id, bytes } => {
                if let Some(pending) = self.operations.get_mut(id) {
                    // The peer claims this length. More capacity is allocated only as bytes arrive.
                    let capacity = usize::try_from(bytes.min(PREALLOCATION_BYTES_MAX)).unwrap_or_default();
                    pending.values.push(Vec::with_capacity(capacity));
                }
            }
            Event::ValueChunk { id, bytes } => {
                if let Some(value) = self.operations.get_mut(id).and_then(|one| one.values.last_mut()) {
                    value.extend_from_slice(bytes);
                }
            }
            Event::Proceed { id } => {
                let (Some(connection), Some(pending)) =
                    (self.pool.get_mut(conn), self.operations.get_mut(id))
                else {
                    return;
                };
                let (was_empty, call) = (connection.out.is_empty(), pending.request.call());
                let begun = connection.link.conn.proceed(id, &call, &mut connection.out);
                self.begun(now, (conn, was_empty), id, begun);
            }
            Event::Done { id, outcome } => self.complete(now, id, Ok(outcome)),
        }
    }

    /// Closes a connection whose peer violated the protocol after its greeting. The calls on it fail.
    fn violated(&mut self, now: Instant, conn: ConnId, violation: Violation) {
        let Some(mut connection) = self.close(conn) else { return };
        while let Some(loss) = connection.link.conn.lose() {
            self.complete(now, loss.id, Err(violation_failure(violation, loss.effect)));
        }
    }

    /// Handles the end of an established connection: each of its calls fails or is repeated.
    fn lost(&mut self, now: Instant, conn: ConnId, cause: Cause) {
        let Some(mut connection) = self.close(conn) else { return };
        let age = if connection.begun == 1 { Age::Fresh } else { Age::Used };
        while let Some(loss) = connection.link.conn.lose() {
            let Some(pending) = self.operations.get_mut(loss.id) else { continue };
            let sent = match pending.call_position {
                CallPosition::On(_, at) if connection.out.was_sent(at) => Sent::Something,
                _ => Sent::Nothing,
            };
            if let Some(result) = pending.attempts.connection_lost(cause, age, sent, &loss) {
                self.complete(now, loss.id, result);
                continue;
            }
            pending.call_position = CallPosition::Queued;
            pending.values.clear();
            // Ids keep the order of submission: it goes before calls that were submitted later.
            self.queues.of(pending).insert(loss.id);
        }
    }

    /// Assigns queued calls to connections, opens missing connections and closes surplus ones.
    pub(super) fn pump(&mut self, now: Instant) {
        while let Some(id) = self.queues.shared.first()
            && let Some(conn) = self.shared_connection()
        {
            self.queues.shared.pop_first();
            self.begin(now, conn, id);
        }
        while let Some(id) = self.queues.brief.first()
            && let Some(conn) = self.idle_connection()
        {
            self.queues.brief.pop_first();
            self.begin(now, conn, id);
        }
        while let Some(id) = self.queues.waiting.first()
            && self.pool.waiting() < self.options.limits.waiting_connections_max()
            && let Some(conn) = self.idle_connection()
        {
            self.queues.waiting.pop_first();
            self.begin(now, conn, id);
        }
        self.open_missing(now);
        self.close_surplus();
    }

    /// Counts the connections that the queued calls lack.
    fn wanted(&self) -> Wanted {
        let capacity = self.options.limits.waiting_connections_max().saturating_sub(self.pool.waiting());
        Wanted {
            // Calls that share need one connection, unless it exists and is only full.
            shared: usize::from(!self.queues.shared.is_empty() && !self.pool.shared_is_ready()),
            brief: self.queues.brief.len(),
            waiting: self.queues.waiting.len().min(capacity),
        }
    }

    /// Returns the connection that calls share. An idle one takes that role if there is none.
    fn shared_connection(&mut self) -> Option<ConnId> {
        if let Some(conn) = self.pool.shared
            && let Some(connection) = self.pool.get_mut(conn)
            && connection.is_ready()
        {
            // When it is full of pipelined calls, the next call waits for one of them to complete.
            return connection.may_begin().then_some(conn);
        }
        let found = self.pool.find(|connection| connection.live == 0 && connection.may_begin());
        self.pool.shared = found;
        found
    }

    /// Returns an idle connection, preferably not the shared one.
    fn idle_connection(&mut self) -> Option<ConnId> {
        let shared = self.pool.shared;
        let idle = |connection: &mut PooledConnection| connection.live == 0 && connection.may_begin();
        let other = self.pool.slots.iter_mut().find_map(|(index, connection)| {
            let conn = ConnectionPool::id(index, connection);
            (Some(conn) != shared && idle(connection)).then_some(conn)
        });
        other.or_else(|| shared.filter(|&conn| self.pool.get_mut(conn).is_some_and(idle)))
    }

    fn begin(&mut self, now: Instant, conn: ConnId, id: CallId) {
        let Some(pending) = self.operations.get_mut(id) else { return };
        let (call, mode) = (pending.request.call(), pending.attempts.mode());
        if call.is_exclusive(mode) && self.pool.shared == Some(conn) {
            self.pool.shared = None;
        }
        let Some(connection) = self.pool.get_mut(conn) else { return };
        connection.waits = call.may_wait();
        pending.call_position = CallPosition::On(conn, connection.out.end());
        (connection.live, connection.begun) = (connection.live + 1, connection.begun + 1);
        let was_empty = connection.out.is_empty();
        let begun = connection.link.conn.begin(id, &call, mode, &mut connection.out);
        self.begun(now, (conn, was_empty), id, begun);
    }

    /// Handles the result of encoding a call, or of its next bytes, onto a connection.
    fn begun(
        &mut self,
        now: Instant,
        (conn, was_empty): (ConnId, bool),
        id: CallId,
        begun: Result<(), BeginError>,
    ) {
        match begun {
            Ok(()) if was_empty => self.outputs.push_back(Output::Transmit(conn)),
            Ok(()) => {}
            Err(error) => self.complete(now, id, Err(begin_failure(error))),
        }
    }

    fn open_missing(&mut self, now: Instant) {
        let Wanted { shared, brief, waiting } = self.wanted();
        let wanted = shared + brief + waiting;
        let connections_max = self.options.limits.connections_max();
        let mut dialling = self.pool.dialling().count();
        while dialling < wanted && self.pool.len() < connections_max {
            let rounds = if self.pool.ever_ready { Rounds::One } else { self.options.rounds };
            let (deadline, seed) = (now + self.options.connect_timeout, self.rng.next_u64());
            let link = Link::new(now, deadline, rounds, self.options.dial, self.options.limits, seed);
            self.pool.generations = self.pool.generations.wrapping_add(1);
            let connection = PooledConnection {
                generation: self.pool.generations,
                link,
                out: Outgoing::default(),
                live: 0,
                begun: 0,
                waits: false,
                overdue: false,
            };
            let index = self.pool.slots.insert(connection);
            let conn = ConnectionPool::id(index, &self.pool.slots[index]);
            self.link_outputs(now, conn);
            dialling += 1;
        }
    }

    fn close_surplus(&mut self) {
        while let Some(conn) = self.pool.find(|connection| connection.overdue && connection.live == 0) {
            self.close(conn);
        }
        let idle_max = self.options.limits.idle_connections_max;
        if self.pool.len() <= idle_max {
            return;
        }
        let shared = self.pool.shared;
        let idle: Vec<ConnId> = self
            .pool
            .slots
            .iter()
            .filter(|(_, connection)| connection.live == 0 && connection.is_ready())
            .map(|(index, connection)| ConnectionPool::id(index, connection))
            .collect();
        let surplus = idle.len().saturating_sub(idle_max);
        // The shared connection is needed next.
        idle.into_iter()
            .filter(|&conn| Some(conn) != shared)
            .take(surplus)
            .for_each(|conn| drop(self.close(conn)));
    }

    fn close(&mut self, conn: ConnId) -> Option<PooledConnection> {
        let connection = self.pool.remove(conn)?;
        self.outputs.push_back(Output::Disconnect(conn));
        Some(connection)
    }
}

/// Most bytes that are allocated for a value before they arrive.
const PREALLOCATION_BYTES_MAX: u64 = 16 << 20;
