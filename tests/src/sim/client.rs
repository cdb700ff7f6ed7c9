//! Client: the machines of the library, driven as a client library drives them, with calls in flight on several
//! connections at once. It carries out its script and reports the end of each operation to the history.

mod connection;

use super::script::{Next, Order, Script};
use super::world::{SimContext, WorldEvent};
use crate::sim::harness::history::{CheckError, OperationId};
use crate::sim::harness::network::{Notice, Read, Route, Side, Stream};
use crate::sim::harness::sim_operation::{End, SimOperation};
use crate::sim::harness::sim_rng::SimRng;
use connection::{ClientConnection, ConnectionEvent};
use rendezvous_core::barrier::by_keys::{KeyBarrier, KeyBarrierState};
use rendezvous_core::error::{Cause, Effect, ErrorKind};
use rendezvous_core::node::client::{Age, Attempts, Sent};
use rendezvous_core::store::call::{CallId, GetMode, Outcome, WaitMode};
use rendezvous_core::store::client_conn::{BeginError, GiveUp};
use rendezvous_core::store::dial::{DialInput, DialOutput, DialState, Rounds};
use rendezvous_core::time::{Duration, Instant};
use std::net::SocketAddr;

/// Behaviour of a client for the whole run.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) connections_max: usize,
    pub(super) get_mode: GetMode,
    pub(super) rounds: Rounds,
    pub(super) dial_timeout: Duration,
    /// Its addresses in the resolver's order, and where they lead.
    pub(super) routes: Vec<(Route, SocketAddr)>,
}

/// Fault of a client that the simulator must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Sound,
    /// It does not check its deadlines.
    Sleepy,
}

#[derive(Debug)]
struct Flight {
    connection: u32,
    call: CallId,
    /// Number of bytes that the connection had taken before this call.
    start: u64,
    age: Age,
}

#[derive(Debug)]
struct Task {
    id: OperationId,
    sim_operation: SimOperation,
    barrier: Option<KeyBarrier>,
    deadline: Instant,
    cancel_at: Option<Instant>,
    attempts: Attempts,
    flight: Option<Flight>,
    values: Vec<Vec<u8>>,
    /// Number of the server's process that saw it last.
    epoch: Option<u32>,
    /// Whether an earlier call of the operation has changed the store.
    left_trace: bool,
}

pub(super) struct Client {
    number: usize,
    sim_rng: SimRng,
    behaviour: Behaviour,
    health: Health,
    pub(super) script: Script,
    connections: Vec<ClientConnection>,
    tasks: Vec<Task>,
    get_mode: GetMode,
    /// Number of calls so far. `dials` counts connections.
    calls: u64,
    dials: u32,
    /// Earliest time for which the event queue has an entry.
    due: Option<Instant>,
    pauses_until: Instant,
    deadline: Option<(Instant, OperationId)>,
}

impl Client {
    pub(super) fn new(number: usize, sim_rng: SimRng, behaviour: Behaviour, health: Health) -> Self {
        let get_mode = behaviour.get_mode;
        Self {
            number,
            sim_rng,
            behaviour,
            health,
            script: Script::Idle,
            connections: Vec::new(),
            tasks: Vec::new(),
            get_mode,
            calls: 0,
            dials: 0,
            due: None,
            pauses_until: Instant::ORIGIN,
            deadline: None,
        }
    }

    /// Returns whether the script has ended and nothing is under way.
    pub(super) fn is_done(&self) -> bool {
        self.tasks.is_empty() && self.script.is_over()
    }

    /// Returns the first deadline of the operations under way.
    pub(super) const fn deadline(&self) -> Option<(Instant, OperationId)> {
        self.deadline
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.connections.iter().any(|connection| connection.stream == Some(stream))
    }

    /// Handles due timers, and begins what the script wants next.
    pub(super) fn poll(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        if self.due.is_some_and(|due| due <= context.now) {
            self.due = None;
        }
        self.give_up_in_time(context)?;
        for number in self.connection_numbers() {
            if let Some(connection) =
                self.connections.iter_mut().find(|connection| connection.number == number)
                && connection.link.dialer.poll_timeout().is_some_and(|at| at <= context.now)
            {
                connection.link.dialer.handle(context.now, DialInput::Tick);
                self.drain(context, number)?;
            }
        }
        self.ask_script(context);
        self.settle(context)
    }

    pub(super) fn resolved(&mut self, context: &mut SimContext, number: u32) -> Result<(), CheckError> {
        let found = !context.stormy || !self.sim_rng.percent(4);
        let addresses: Vec<SocketAddr> = self.behaviour.routes.iter().map(|(_, address)| *address).collect();
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.number == number) {
            // -2 is EAI_NONAME.
            let input = if found {
                DialInput::Resolved(&addresses)
            } else {
                DialInput::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2))
            };
            connection.link.dialer.handle(context.now, input);
            self.drain(context, number)?;
        }
        self.settle(context)
    }

    pub(super) fn noticed(&mut self, context: &mut SimContext, notice: Notice) -> Result<(), CheckError> {
        let (Notice::Accept(stream)
        | Notice::Connected(stream)
        | Notice::Refused(stream)
        | Notice::Readable(stream, _)
        | Notice::Writable(stream, _)) = notice;
        let Some(connection) =
            self.connections.iter_mut().find(|connection| connection.stream == Some(stream))
        else {
            return Ok(());
        };
        let number = connection.number;
        match notice {
            Notice::Connected(_) => {
                connection.epoch = context.network.epoch(stream);
                connection.link.dialer.handle(context.now, DialInput::Connected);
                self.drain(context, number)?;
            }
            Notice::Refused(_) => {
                connection.hang_up(context);
                // 111 is ECONNREFUSED.
                let input = DialInput::Failed(ErrorKind::Refused, Cause::Os(111));
                connection.link.dialer.handle(context.now, input);
                self.drain(context, number)?;
            }
            Notice::Readable(..) => self.read(context, number, stream)?,
            Notice::Accept(_) | Notice::Writable(..) => {}
        }
        self.settle(context)
    }

    /// Closes every connection. No call may be under way.
    pub(super) fn leave(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        for mut connection in self.connections.drain(..) {
            let (pending, state) = (connection.link.conn.pending(), connection.link.dialer.state());
            if state == DialState::Ready && !(connection.link.conn.is_idle() && connection.out.is_empty()) {
                let what = format!("c{} leaves {pending} calls in a table", self.number);
                return Err(CheckError(what));
            }
            connection.hang_up(context);
        }
        Ok(())
    }

    /// Closes connections that are still being established.
    pub(super) fn stop_dialling(&mut self, context: &mut SimContext) {
        self.connections.retain_mut(|connection| {
            if !connection.is_ready() {
                connection.hang_up(context);
            }
            connection.is_ready()
        });
    }

    fn connection_numbers(&self) -> Vec<u32> {
        self.connections.iter().map(|connection| connection.number).collect()
    }

    /// Follows up on any change: begins calls, sends bytes and schedules the next poll.
    fn settle(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        self.begin_calls(context)?;
        for connection in &mut self.connections {
            connection.flush(context);
        }
        self.deadline = self.tasks.iter().map(|task| (task.deadline, task.id)).min();
        let awake = self.tasks.iter().filter(|_| self.health == Health::Sound);
        let tasks = awake.map(|task| task.cancel_at.unwrap_or(task.deadline).min(task.deadline));
        let connections =
            self.connections.iter().filter_map(|connection| connection.link.dialer.poll_timeout());
        let script = self.script.wants_next(self.tasks.len()).then_some(self.pauses_until.max(context.now));
        if let Some(next) = tasks.chain(connections).chain(script).min()
            && self.due.is_none_or(|due| next < due)
        {
            self.due = Some(next);
            context.event_queue.schedule(next, WorldEvent::ClientDue(self.number));
        }
        Ok(())
    }

    fn ask_script(&mut self, context: &mut SimContext) {
        while self.pauses_until <= context.now && self.script.wants_next(self.tasks.len()) {
            match self.script.next(&mut self.sim_rng) {
                Next::Do(order) => self.take_order(context, order),
                Next::Pause(span) => self.pauses_until = context.now + span,
                Next::Over => return,
            }
        }
    }

    fn take_order(&mut self, context: &mut SimContext, order: Order) {
        let Order { sim_operation, timeout, cancel_after } = order;
        let id = context.history.begin(self.number, sim_operation.clone());
        context.note(format_args!("c{} begins {id} {sim_operation} within {timeout:?}", self.number));
        let barrier = match &sim_operation {
            SimOperation::KeyBarrier { world_size, .. } => Some(KeyBarrier::new(*world_size, WaitMode::Wait)),
            _ => None,
        };
        context.schedule_sabotage(&sim_operation);
        let operation = sim_operation.with_call(barrier.as_ref(), |call| call.operation());
        self.tasks.push(Task {
            id,
            barrier,
            sim_operation,
            deadline: context.now + timeout,
            cancel_at: cancel_after.map(|span| context.now + span),
            attempts: Attempts::new(operation, self.get_mode),
            flight: None,
            values: Vec::new(),
            epoch: None,
            left_trace: false,
        });
    }

    fn begin_calls(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        for slot in 0..self.tasks.len() {
            if self.tasks[slot].flight.is_some() {
                continue;
            }
            let Some(connection) = self.connections.iter_mut().find_map(ClientConnection::if_free) else {
                return self.dial_if_allowed(context);
            };
            self.calls += 1;
            let (task, call) = (&mut self.tasks[slot], CallId(self.calls));
            let age = if connection.used { Age::Used } else { Age::Fresh };
            let start = connection.taken;
            let begun = task
                .sim_operation
                .with_call(task.barrier.as_ref(), |made| connection.begin(call, made, task.attempts.mode()));
            begun
                .map_err(|error| CheckError(format!("c{} cannot begin {}: {error}", self.number, task.id)))?;
            task.flight = Some(Flight { connection: connection.number, call, start, age });
            task.epoch = connection.epoch;
            task.values.clear();
        }
        Ok(())
    }

    fn dial_if_allowed(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        let dialling = self.connections.iter().any(|connection| !connection.is_ready());
        if dialling || self.connections.len() >= self.behaviour.connections_max {
            return Ok(());
        }
        self.dials += 1;
        let timeout = if context.stormy { self.behaviour.dial_timeout } else { CALM_DIAL_TIMEOUT };
        let seed = self.sim_rng.seed();
        self.connections.push(ClientConnection::dial(
            self.dials,
            context.now,
            timeout,
            self.behaviour.rounds,
            seed,
        ));
        context.note(format_args!("c{} dials l{} within {timeout:?}", self.number, self.dials));
        self.drain(context, self.dials)
    }

    /// Carries out the outputs of a link.
    fn drain(&mut self, context: &mut SimContext, number: u32) -> Result<(), CheckError> {
        loop {
            let Some(connection) = self.connections.iter_mut().find(|connection| connection.number == number)
            else {
                return Ok(());
            };
            let Some(output) = connection.link.dialer.poll_output() else { return Ok(()) };
            match output {
                DialOutput::Resolve => {
                    let at = context.now + self.sim_rng.span(Duration::ZERO, Duration::from_millis(20));
                    context.event_queue.schedule(at, WorldEvent::Resolved(self.number, number));
                }
                DialOutput::Connect(address) => {
                    let leads = self.behaviour.routes.iter().find(|(_, one)| *one == address);
                    let (route, _) = *leads.expect("an address of the client");
                    let stream = context.network.connect(context.now, self.number, route);
                    context.note(format_args!("c{} l{number} connects {stream} to {route:?}", self.number));
                    connection.stream = Some(stream);
                }
                DialOutput::Greet => connection.out.extend_from_slice(&connection.link.conn.greet()),
                DialOutput::Disconnect => connection.hang_up(context),
                DialOutput::Ready => context.note(format_args!("c{} l{number} is ready", self.number)),
                DialOutput::Failed(failure) => {
                    context.note(format_args!("c{} l{number} has no connection: {failure:?}", self.number));
                    if failure.kind == ErrorKind::WrongProtocol {
                        return Err(CheckError(format!("c{} met a stranger: {failure:?}", self.number)));
                    }
                    if failure.elapsed > connection.dial_timeout {
                        return Err(CheckError(format!("c{} dialled too long: {failure:?}", self.number)));
                    }
                    self.connections.retain_mut(|connection| {
                        let stays = connection.number != number;
                        if !stays {
                            connection.hang_up(context);
                        }
                        stays
                    });
                    if let Some(slot) = self.tasks.iter().position(|task| task.flight.is_none()) {
                        self.end(context, slot, End::Failed(failure.kind, Effect::None))?;
                    }
                }
            }
        }
    }

    fn read(&mut self, context: &mut SimContext, number: u32, stream: Stream) -> Result<(), CheckError> {
        // A slow reader leaves bytes for later.
        for _ in 0..1 + self.sim_rng.index(4) {
            match context.network.read(context.now, stream, Side::Client) {
                Read::Nothing => return Ok(()),
                Read::End => return self.connection_ended(context, number, Cause::Closed),
                // 104 is ECONNRESET.
                Read::Reset => return self.connection_ended(context, number, Cause::Os(104)),
                Read::Bytes(bytes) => self.receive(context, number, &bytes)?,
            }
            if !self
                .connections
                .iter()
                .any(|connection| connection.number == number && connection.stream == Some(stream))
            {
                return Ok(());
            }
        }
        context.network.read_on(context.now, stream, Side::Client);
        Ok(())
    }

    fn receive(&mut self, context: &mut SimContext, number: u32, mut bytes: &[u8]) -> Result<(), CheckError> {
        loop {
            let Some(connection) = self.connections.iter_mut().find(|connection| connection.number == number)
            else {
                return Ok(());
            };
            let event = connection.link.receive(context.now, &mut bytes).map_err(|violation| {
                CheckError(format!("c{} l{number} met a breach of the protocol: {violation}", self.number))
            })?;
            let Some(event) = event else {
                let all_read = bytes.is_empty() || connection.link.dialer.state() == DialState::Failed;
                self.drain(context, number)?;
                return if all_read { Ok(()) } else { Err(CheckError("bytes were left unread".to_owned())) };
            };
            let ConnectionEvent { call, what } = ConnectionEvent::of(event);
            let in_flight = |task: &Task| {
                task.flight.as_ref().is_some_and(|at| at.connection == number && at.call == call)
            };
            let Some(slot) = self.tasks.iter().position(in_flight) else {
                return Err(CheckError(format!(
                    "c{} got an event of {call:?}, which is not under way",
                    self.number
                )));
            };
            let task = &mut self.tasks[slot];
            match what {
                connection::What::Count => {}
                connection::What::Value(bytes) => task.values.push(Vec::with_capacity(bytes.min(1 << 16))),
                connection::What::Chunk(chunk) => match task.values.last_mut() {
                    Some(value) => value.extend_from_slice(chunk),
                    None => return Err(CheckError(format!("{} got a chunk of no value", task.id))),
                },
                connection::What::Proceed => {
                    let proceeded = task
                        .sim_operation
                        .with_call(task.barrier.as_ref(), |made| connection.proceed(call, made));
                    proceeded.map_err(|error| CheckError(format!("{} cannot go on: {error}", task.id)))?;
                }
                connection::What::Done(outcome) => self.call_done(context, slot, outcome)?,
            }
        }
    }

    fn call_done(
        &mut self,
        context: &mut SimContext,
        slot: usize,
        mut outcome: Outcome,
    ) -> Result<(), CheckError> {
        let task = &mut self.tasks[slot];
        if let (Some(barrier), SimOperation::KeyBarrier { .. }) = (&mut task.barrier, &task.sim_operation) {
            barrier.handle(outcome).map_err(|error| CheckError(format!("{}: {error}", task.id)))?;
            let over = barrier.state() == KeyBarrierState::Released;
            task.left_trace = true;
            task.flight = None;
            if !over {
                let next = task.sim_operation.with_call(task.barrier.as_ref(), |call| call.operation());
                task.attempts = Attempts::new(next, task.attempts.mode());
                return Ok(());
            }
            // The last participant has ended its arrival when it has notified the others.
            outcome = Outcome::Released;
        }
        if let Some(mode) = task.attempts.learned(&Ok(outcome)) {
            self.get_mode = mode;
        }
        let values = core::mem::take(&mut task.values);
        let Some(answer) = task.sim_operation.answer(outcome, values) else {
            return Err(CheckError(format!("{} ended with {outcome:?}, which is no answer to it", task.id)));
        };
        self.end(context, slot, End::Responded(answer))
    }

    /// Handles the end of a connection.
    fn connection_ended(
        &mut self,
        context: &mut SimContext,
        number: u32,
        cause: Cause,
    ) -> Result<(), CheckError> {
        let Some(slot) = self.connections.iter().position(|connection| connection.number == number) else {
            return Ok(());
        };
        context.note(format_args!("c{} l{number} ended: {cause:?}", self.number));
        if self.connections[slot].is_ready() {
            let connection = self.connections.remove(slot);
            return self.end_calls_of(context, connection);
        }
        self.connections[slot].hang_up(context);
        self.connections[slot]
            .link
            .dialer
            .handle(context.now, DialInput::Failed(ErrorKind::ServerGone, cause));
        self.drain(context, number)
    }

    /// Repeats or fails the calls of a connection that has ended.
    fn end_calls_of(
        &mut self,
        context: &mut SimContext,
        mut connection: ClientConnection,
    ) -> Result<(), CheckError> {
        let left = connection.left();
        connection.hang_up(context);
        while let Some(loss) = connection.link.conn.lose() {
            let in_flight = |task: &Task| {
                task.flight
                    .as_ref()
                    .is_some_and(|at| at.connection == connection.number && at.call == loss.id)
            };
            let Some(slot) = self.tasks.iter().position(in_flight) else {
                return Err(CheckError(format!(
                    "c{} lost {:?}, which is not under way",
                    self.number, loss.id
                )));
            };
            let task = &mut self.tasks[slot];
            let Some(flight) = task.flight.take() else { continue };
            let sent = if left > flight.start { Sent::Something } else { Sent::Nothing };
            match task.attempts.connection_lost(Cause::Closed, flight.age, sent, &loss) {
                None => {
                    let mode = task.attempts.mode();
                    context.note(format_args!("c{} repeats {} as {mode:?}", self.number, task.id));
                }
                Some(Ok(outcome)) => {
                    task.values.clear();
                    self.call_done(context, slot, outcome)?;
                }
                Some(Err(failure)) => {
                    self.end(context, slot, End::Failed(failure.kind, failure.effect))?;
                }
            }
        }
        match self
            .tasks
            .iter()
            .find(|task| task.flight.as_ref().is_some_and(|at| at.connection == connection.number))
        {
            Some(task) => Err(CheckError(format!("{} was lost, and the link does not say so", task.id))),
            None => Ok(()),
        }
    }

    /// Ends operations that were cancelled or have timed out.
    fn give_up_in_time(&mut self, context: &mut SimContext) -> Result<(), CheckError> {
        if self.health == Health::Sleepy {
            return Ok(());
        }
        loop {
            let now = context.now;
            let due = |task: &Task| task.deadline <= now || task.cancel_at.is_some_and(|at| at <= now);
            let Some(slot) = self.tasks.iter().position(due) else { return Ok(()) };
            let task = &mut self.tasks[slot];
            let kind = if task.deadline <= now { ErrorKind::TimedOut } else { ErrorKind::Cancelled };
            let Some(flight) = task.flight.take() else {
                self.end(context, slot, End::Failed(kind, Effect::None))?;
                continue;
            };
            let Some(connection) =
                self.connections.iter().position(|connection| connection.number == flight.connection)
            else {
                return Err(CheckError(format!("{} is under way on no line", task.id)));
            };
            match self.connections[connection].link.conn.give_up(flight.call) {
                GiveUp::Nothing => {
                    return Err(CheckError(format!(
                        "{} is under way, and its link does not know it",
                        task.id
                    )));
                }
                GiveUp::Send(bytes, effect) => {
                    self.connections[connection].push(&bytes);
                    self.end(context, slot, End::Failed(kind, effect))?;
                    self.drop_if_full(context, connection);
                }
                GiveUp::Close(effect) => {
                    self.end(context, slot, End::Failed(kind, effect))?;
                    let connection = self.connections.remove(connection);
                    context.note(format_args!("c{} hangs up l{}", self.number, connection.number));
                    self.end_calls_of(context, connection)?;
                }
            }
        }
    }

    /// Closes a connection whose table holds only calls that were given up.
    fn drop_if_full(&mut self, context: &mut SimContext, slot: usize) {
        let connection = &mut self.connections[slot];
        let in_use = self
            .tasks
            .iter()
            .any(|task| task.flight.as_ref().is_some_and(|at| at.connection == connection.number));
        if !in_use && connection.link.conn.may_begin() == Err(BeginError::Full) {
            context.note(format_args!("c{} hangs up l{}, which is full", self.number, connection.number));
            connection.hang_up(context);
            self.connections.remove(slot);
        }
    }

    fn end(&mut self, context: &mut SimContext, slot: usize, end: End) -> Result<(), CheckError> {
        let task = self.tasks.remove(slot);
        let end = match end {
            End::Failed(kind, _) if task.left_trace => End::Failed(kind, Effect::Possible),
            other => other,
        };
        context.note(format_args!("c{} ends {} {end}", self.number, task.id));
        if context.now > task.deadline {
            return Err(CheckError(format!("{} ended after its deadline", task.id)));
        }
        self.script.reported(&task.sim_operation, &end)?;
        context.history.end(task.id, end, task.epoch)
    }
}

/// In the calm phase every connection is established in this time.
const CALM_DIAL_TIMEOUT: Duration = Duration::from_secs(30);
