//! The connections of a [`MultiClient`], and how calls come onto them and off again.

use super::outgoing::Outgoing;
use super::{CallPosition, Input, MultiClient, Output, Queues, failure_of};
use crate::error::{Cause, Effect, ErrorKind, Failure, Phase, Violation};
use crate::ids::ConnId;
use crate::node::client::link::{Link, LinkInput, LinkOutput};
use crate::node::client::{Age, RetryDecision, Sent, after_loss};
use crate::ordered::Set;
use crate::store::call::{CallId, GetMode};
use crate::store::client_conn::{BeginError, ClientConn, Event, GiveUp};
use crate::store::dial::{DialState, Rounds};
use crate::time::Instant;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use slab::Slab;

/// Calls that are pipelined on one connection.
const PENDING: usize = 64;

#[derive(Debug)]
struct PooledConnection {
    generation: u32,
    link: Link<PENDING>,
    out: Outgoing,
    /// Calls that somebody waits for, and how many there ever were.
    live: usize,
    begun: u64,
    /// The call on it may wait.
    waits: bool,
    /// An answer is overdue: no further calls, and the end when nobody waits any more.
    overdue: bool,
}

impl PooledConnection {
    fn is_ready(&self) -> bool {
        self.link.state() == DialState::Ready && !self.overdue
    }

    fn may_begin(&mut self) -> bool {
        self.is_ready() && self.link.conn().may_begin().is_ok()
    }
}

/// How many connections are to be made, and for which calls.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    shared: usize,
    brief: usize,
    waiting: usize,
}

/// The connections, each in its place.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    slots: Slab<PooledConnection>,
    generations: u32,
    /// The one that calls share.
    shared: Option<ConnId>,
    ever_ready: bool,
}

impl Lanes {
    fn id(index: usize, connection: &PooledConnection) -> ConnId {
        ConnId { index: u32::try_from(index).unwrap_or(u32::MAX), generation: connection.generation }
    }

    fn get(&self, conn: ConnId) -> Option<&PooledConnection> {
        self.slots.get(conn.index as usize).filter(|connection| connection.generation == conn.generation)
    }

    fn get_mut(&mut self, conn: ConnId) -> Option<&mut PooledConnection> {
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
            .filter(|connection| connection.link.state() != DialState::Ready)
    }

    /// How many connections are taken by calls that may wait.
    fn waiting(&self) -> usize {
        self.slots.iter().filter(|(_, connection)| connection.waits).count()
    }

    /// Whether calls that share have a connection: at most, it is full of pipelined calls.
    fn shared_is_ready(&self) -> bool {
        self.shared.and_then(|conn| self.get(conn)).is_some_and(PooledConnection::is_ready)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|(_, connection)| connection.link.poll_timeout()).min()
    }

    pub(super) fn unsent(&self, conn: ConnId) -> &[u8] {
        self.get(conn).map_or(&[], |connection| connection.out.unsent())
    }

    pub(super) fn is_dialling(&self, conn: ConnId) -> bool {
        self.get(conn).is_some_and(|connection| connection.link.state() != DialState::Ready)
    }

    pub(super) fn live(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, |connection| connection.live)
    }

    /// What is known about a connection that is being made.
    pub(super) fn dial_failure(&self, now: Instant) -> Option<Failure> {
        self.dialling().next().map(|connection| connection.link.failure(now))
    }

    pub(super) fn phase(&self, conn: ConnId, id: CallId) -> Phase {
        self.get(conn).and_then(|connection| connection.link.phase(id)).unwrap_or(Phase::Waiting)
    }

    pub(super) fn give_up(&mut self, conn: ConnId, id: CallId) -> GiveUp {
        let Some(connection) = self.get_mut(conn) else { return GiveUp::Nothing };
        let todo = connection.link.conn().give_up(id);
        connection.overdue |= matches!(todo, GiveUp::Close(_));
        todo
    }

    pub(super) fn call_ended(&mut self, conn: ConnId) {
        if let Some(connection) = self.get_mut(conn) {
            connection.live -= 1;
            connection.waits &= connection.live > 0;
        }
    }

    /// Puts bytes behind what is to be sent.
    pub(super) fn append(&mut self, conn: ConnId, bytes: &[u8], outputs: &mut VecDeque<Output>) {
        if let Some(connection) = self.get_mut(conn) {
            let quiet = connection.out.is_empty();
            connection.out.put(bytes);
            if quiet {
                outputs.push_back(Output::Transmit(conn));
            }
        }
    }

    /// Lets an encoder write behind what is to be sent.
    fn write(
        connection: &mut PooledConnection,
        conn: ConnId,
        bytes_max: usize,
        outputs: &mut VecDeque<Output>,
        encode: impl FnOnce(&mut ClientConn<PENDING>, &mut [u8]) -> Result<usize, BeginError>,
    ) -> Result<(), BeginError> {
        let (link, quiet) = (&mut connection.link, connection.out.is_empty());
        connection.out.write(bytes_max, |out| encode(link.conn(), out))?;
        if quiet && !connection.out.is_empty() {
            outputs.push_back(Output::Transmit(conn));
        }
        Ok(())
    }
}

impl MultiClient {
    /// Takes in what happened to a connection.
    pub(super) fn connection_input(&mut self, now: Instant, input: Input<'_>) {
        match input {
            Input::Resolved(conn, families) => self.link_input(now, conn, LinkInput::Resolved(families)),
            Input::Unresolved(conn, kind, cause) => {
                self.link_input(now, conn, LinkInput::Unresolved(kind, cause));
            }
            Input::Connected(conn) => self.link_input(now, conn, LinkInput::Connected),
            Input::ConnectFailed(conn, kind, cause) => {
                self.link_input(now, conn, LinkInput::ConnectFailed(kind, cause));
            }
            Input::Received(conn, bytes) => self.received(now, conn, bytes),
            Input::Sent(conn, bytes) => self.sent(conn, bytes),
            Input::Ended(conn, cause) => {
                if self.lanes.get(conn).is_some_and(|connection| connection.link.state() == DialState::Ready)
                {
                    self.lost(now, conn, cause);
                } else {
                    self.link_input(now, conn, LinkInput::Ended(cause));
                }
            }
            Input::Tick => {
                let due = |connection: &mut PooledConnection| {
                    connection.link.poll_timeout().is_some_and(|at| at <= now)
                };
                while let Some(conn) = self.lanes.find(due) {
                    self.link_input(now, conn, LinkInput::Tick);
                }
            }
        }
    }

    fn link_input(&mut self, now: Instant, conn: ConnId, input: LinkInput<'_>) {
        if let Some(connection) = self.lanes.get_mut(conn) {
            connection.link.handle(now, input);
            self.link_outputs(now, conn);
        }
    }

    fn link_outputs(&mut self, now: Instant, conn: ConnId) {
        while let Some(output) = self.lanes.get_mut(conn).and_then(|connection| connection.link.poll_output())
        {
            match output {
                LinkOutput::Resolve => self.outputs.push_back(Output::Resolve(conn)),
                LinkOutput::Connect(index) => {
                    if let Some(connection) = self.lanes.get_mut(conn) {
                        // A greeting that was not sent went with its connection.
                        connection.out.forget();
                    }
                    self.outputs.push_back(Output::Connect(conn, index));
                }
                LinkOutput::Greet(bytes) => self.lanes.append(conn, &bytes, &mut self.outputs),
                LinkOutput::Disconnect => self.outputs.push_back(Output::Disconnect(conn)),
                LinkOutput::Ready => self.lanes.ever_ready = true,
                LinkOutput::Failed(failure) => {
                    self.lanes.remove(conn);
                    self.not_connected(now, failure);
                }
            }
        }
    }

    /// A connection will not be made: the calls that only it could have served fail.
    fn not_connected(&mut self, now: Instant, failure: Failure) {
        let mut failed = Vec::new();
        if self.lanes.len() == 0 {
            let Queues { shared, brief, waiting } = core::mem::take(&mut self.queues);
            failed.extend([shared, brief, waiting].iter().flat_map(Set::iter));
        } else {
            // Where others go on, one call less needs a connection of its own: the one that waited longest. Those that
            // share go on with what is there or is being made, if anything is: behind a wait, they would stand as long.
            let Wanted { shared, brief, waiting } = self.wanted();
            let dialling = self.lanes.dialling().count();
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
            let lost = self.operations.get(id).and_then(|operating| operating.lost);
            self.complete(now, id, Err(lost.unwrap_or(failure)));
        }
    }

    fn sent(&mut self, conn: ConnId, bytes: usize) {
        if let Some(connection) = self.lanes.get_mut(conn) {
            connection.out.sent(bytes);
        }
    }

    fn received(&mut self, now: Instant, conn: ConnId, mut bytes: &[u8]) {
        while let Some(connection) = self.lanes.get_mut(conn) {
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
                if let Some(operating) = self.operations.get_mut(id) {
                    // The length is only the peer's word: room for more comes with the bytes.
                    let capacity = usize::try_from(bytes.min(PREALLOCATION_BYTES_MAX)).unwrap_or_default();
                    operating.values.push(Vec::with_capacity(capacity));
                }
            }
            Event::ValueChunk { id, bytes } => {
                if let Some(value) = self.operations.get_mut(id).and_then(|one| one.values.last_mut()) {
                    value.extend_from_slice(bytes);
                }
            }
            Event::Proceed { id } => {
                let (Some(connection), Some(operating)) =
                    (self.lanes.get_mut(conn), self.operations.get_mut(id))
                else {
                    return;
                };
                let call = operating.request.call();
                let bytes_max = ClientConn::<PENDING>::write_bytes_max(&call);
                let encode = |conn: &mut ClientConn<PENDING>, out: &mut [u8]| conn.proceed(id, &call, out);
                if Lanes::write(connection, conn, bytes_max, &mut self.outputs, encode).is_err() {
                    let failure =
                        failure_of(ErrorKind::LimitExceeded, Phase::Sending, Cause::Unknown, Effect::None);
                    self.complete(now, id, Err(failure));
                }
            }
            Event::Done { id, outcome } => self.complete(now, id, Ok(outcome)),
        }
    }

    /// The peer broke the protocol after its greeting.
    fn violated(&mut self, now: Instant, conn: ConnId, violation: Violation) {
        let Some(mut connection) = self.lanes.remove(conn) else { return };
        self.outputs.push_back(Output::Disconnect(conn));
        while let Some(loss) = connection.link.conn().lose() {
            let cause = Cause::Violation(violation);
            let failure = failure_of(ErrorKind::WrongProtocol, Phase::Receiving, cause, loss.effect);
            self.complete(now, loss.id, Err(failure));
        }
    }

    /// A ready connection ended: each of its calls fails, or is begun again.
    fn lost(&mut self, now: Instant, conn: ConnId, cause: Cause) {
        let Some(mut connection) = self.lanes.remove(conn) else { return };
        self.outputs.push_back(Output::Disconnect(conn));
        let age = if connection.begun == 1 { Age::Fresh } else { Age::Used };
        while let Some(loss) = connection.link.conn().lose() {
            let Some(operating) = self.operations.get_mut(loss.id) else { continue };
            let sent = match operating.call_position {
                CallPosition::On(_, at) if connection.out.was_sent(at) => Sent::Something,
                _ => Sent::Nothing,
            };
            let (operation, retries) = (operating.operation, operating.retries);
            let phase = if sent == Sent::Nothing { Phase::Sending } else { loss.phase };
            let failure = failure_of(ErrorKind::ServerGone, phase, cause, Effect::None);
            match after_loss(operation, operating.mode, retries, age, sent, &loss) {
                RetryDecision::Answer(outcome) => {
                    self.mode = GetMode::WaitThenGet;
                    self.complete(now, loss.id, Ok(outcome));
                }
                RetryDecision::Fail(effect) => {
                    self.complete(now, loss.id, Err(Failure { effect, ..failure }))
                }
                RetryDecision::Again(mode) => {
                    operating.retries += u32::from(mode == operating.mode);
                    operating.mode = mode;
                    operating.call_position = CallPosition::Queued;
                    operating.lost = Some(failure);
                    operating.values.clear();
                    // Before those that were submitted later.
                    self.queues.of(operating).insert(loss.id);
                }
            }
        }
    }

    /// Brings queued calls onto connections, opens those that are missing, and closes those that are too many.
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
            && self.lanes.waiting() < self.options.limits.waiting_connections_max()
            && let Some(conn) = self.idle_connection()
        {
            self.queues.waiting.pop_first();
            self.begin(now, conn, id);
        }
        self.open_missing(now);
        self.close_surplus();
    }

    /// The connections that queued calls lack.
    fn wanted(&self) -> Wanted {
        let capacity = self.options.limits.waiting_connections_max().saturating_sub(self.lanes.waiting());
        Wanted {
            // Calls that share wait for one connection, unless there is one and it is merely full.
            shared: usize::from(!self.queues.shared.is_empty() && !self.lanes.shared_is_ready()),
            brief: self.queues.brief.len(),
            waiting: self.queues.waiting.len().min(capacity),
        }
    }

    /// The connection that calls share; an idle one becomes it when there is none.
    fn shared_connection(&mut self) -> Option<ConnId> {
        if let Some(conn) = self.lanes.shared
            && let Some(connection) = self.lanes.get_mut(conn)
            && connection.is_ready()
        {
            // When it is full of pipelined calls, those go on by themselves, and the next waits for room.
            return connection.may_begin().then_some(conn);
        }
        let found = self.lanes.find(|connection| connection.live == 0 && connection.may_begin());
        self.lanes.shared = found;
        found
    }

    /// An idle connection, preferably not the shared one.
    fn idle_connection(&mut self) -> Option<ConnId> {
        let shared = self.lanes.shared;
        let idle = |connection: &mut PooledConnection| connection.live == 0 && connection.may_begin();
        let other = self.lanes.slots.iter_mut().find_map(|(index, connection)| {
            let conn = Lanes::id(index, connection);
            (Some(conn) != shared && idle(connection)).then_some(conn)
        });
        other.or_else(|| shared.filter(|&conn| self.lanes.get_mut(conn).is_some_and(idle)))
    }

    fn begin(&mut self, now: Instant, conn: ConnId, id: CallId) {
        let Some(operating) = self.operations.get_mut(id) else { return };
        let (call, mode) = (operating.request.call(), operating.mode);
        if call.is_exclusive(mode) && self.lanes.shared == Some(conn) {
            self.lanes.shared = None;
        }
        let Some(connection) = self.lanes.get_mut(conn) else { return };
        connection.waits = call.may_wait();
        operating.call_position = CallPosition::On(conn, connection.out.end());
        (connection.live, connection.begun) = (connection.live + 1, connection.begun + 1);
        let bytes_max = ClientConn::<PENDING>::write_bytes_max(&call);
        let encode = |conn: &mut ClientConn<PENDING>, out: &mut [u8]| conn.begin(id, &call, mode, out);
        if let Err(error) = Lanes::write(connection, conn, bytes_max, &mut self.outputs, encode) {
            let cause = match error {
                BeginError::Limit(limit) => Cause::Limit(limit),
                // The connection was chosen because it has room.
                _ => Cause::Unknown,
            };
            let failure = failure_of(ErrorKind::LimitExceeded, Phase::Sending, cause, Effect::None);
            self.complete(now, id, Err(failure));
        }
    }

    fn open_missing(&mut self, now: Instant) {
        let Wanted { shared, brief, waiting } = self.wanted();
        let wanted = shared + brief + waiting;
        let connections_max = self.options.limits.connections_max();
        let mut dialling = self.lanes.dialling().count();
        while dialling < wanted && self.lanes.len() < connections_max {
            let rounds = if self.lanes.ever_ready { Rounds::One } else { self.options.rounds };
            let (deadline, seed) = (now + self.options.connect_timeout, self.rng.next_u64());
            let link = Link::new(now, deadline, rounds, self.options.dial, self.options.limits, seed);
            self.lanes.generations = self.lanes.generations.wrapping_add(1);
            let connection = PooledConnection {
                generation: self.lanes.generations,
                link,
                out: Outgoing::default(),
                live: 0,
                begun: 0,
                waits: false,
                overdue: false,
            };
            let index = self.lanes.slots.insert(connection);
            let conn = Lanes::id(index, &self.lanes.slots[index]);
            self.link_outputs(now, conn);
            dialling += 1;
        }
    }

    fn close_surplus(&mut self) {
        while let Some(conn) = self.lanes.find(|connection| connection.overdue && connection.live == 0) {
            self.close(conn);
        }
        let idle_max = self.options.limits.idle_connections_max;
        if self.lanes.len() <= idle_max {
            return;
        }
        let shared = self.lanes.shared;
        let idle: Vec<ConnId> = self
            .lanes
            .slots
            .iter()
            .filter(|(_, connection)| connection.live == 0 && connection.is_ready())
            .map(|(index, connection)| Lanes::id(index, connection))
            .collect();
        let surplus = idle.len().saturating_sub(idle_max);
        // The shared one is needed next.
        idle.into_iter().filter(|&conn| Some(conn) != shared).take(surplus).for_each(|conn| self.close(conn));
    }

    fn close(&mut self, conn: ConnId) {
        if self.lanes.remove(conn).is_some() {
            self.outputs.push_back(Output::Disconnect(conn));
        }
    }
}

/// The most room that a value gets before its bytes are there.
const PREALLOCATION_BYTES_MAX: u64 = 16 << 20;
