//! Client: the machines of the library, driven as a client library drives them, with calls in flight on several
//! connections
//! at once. It carries out its script and reports the end of each operation to the history.

mod line;

use super::history::{DeedId, Wrong};
use super::network::{Notice, Read, Route, Side, Stream};
use super::script::{Next, Order, Script};
use super::sim_operation::{End, SimOperation};
use super::sim_rng::SimRng;
use super::world::{Happening, Stage};
use line::{Line, LineEvent};
use rendezvous_core::barrier::by_keys::{KeyBarrier, KeyBarrierState};
use rendezvous_core::error::{Cause, Effect, ErrorKind};
use rendezvous_core::node::client::link::{LinkInput, LinkOutput};
use rendezvous_core::node::client::{Age, RetryDecision, Sent, after_loss};
use rendezvous_core::store::call::{CallId, GetMode, Outcome, WaitMode};
use rendezvous_core::store::client_conn::{BeginError, GiveUp};
use rendezvous_core::store::dial::{DialState, Family, Rounds};
use rendezvous_core::time::{Duration, Instant};

/// Behaviour of a client for the whole run.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) lines_max: usize,
    pub(super) get_mode: GetMode,
    pub(super) rounds: Rounds,
    pub(super) dial_timeout: Duration,
    /// Where its addresses lead and their families, in the resolver's order.
    pub(super) routes: Vec<(Route, Family)>,
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
    line: u32,
    call: CallId,
    /// Number of bytes that the connection had taken before this call.
    start: u64,
    age: Age,
}

#[derive(Debug)]
struct Task {
    id: DeedId,
    sim_operation: SimOperation,
    barrier: Option<KeyBarrier>,
    deadline: Instant,
    cancel_at: Option<Instant>,
    mode: GetMode,
    retries: u32,
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
    manner: Manner,
    health: Health,
    pub(super) script: Script,
    lines: Vec<Line>,
    tasks: Vec<Task>,
    get_mode: GetMode,
    /// Number of calls so far. `dials` counts connections.
    calls: u64,
    dials: u32,
    /// Earliest time for which the event queue has an entry.
    due: Option<Instant>,
    pauses_until: Instant,
    deadline: Option<(Instant, DeedId)>,
}

impl Client {
    pub(super) fn new(number: usize, sim_rng: SimRng, manner: Manner, health: Health) -> Self {
        let get_mode = manner.get_mode;
        Self {
            number,
            sim_rng,
            manner,
            health,
            script: Script::Idle,
            lines: Vec::new(),
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
    pub(super) const fn deadline(&self) -> Option<(Instant, DeedId)> {
        self.deadline
    }

    pub(super) fn owns(&self, stream: Stream) -> bool {
        self.lines.iter().any(|line| line.stream == Some(stream))
    }

    /// Handles due timers, and begins what the script wants next.
    pub(super) fn poll(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        if self.due.is_some_and(|due| due <= stage.now) {
            self.due = None;
        }
        self.give_up_in_time(stage)?;
        for number in self.line_numbers() {
            if let Some(line) = self.lines.iter_mut().find(|line| line.number == number)
                && line.link.poll_timeout().is_some_and(|at| at <= stage.now)
            {
                line.link.handle(stage.now, LinkInput::Tick);
                self.drain(stage, number)?;
            }
        }
        self.ask_script(stage);
        self.settle(stage)
    }

    pub(super) fn resolved(&mut self, stage: &mut Stage, number: u32) -> Result<(), Wrong> {
        let found = !stage.stormy || !self.sim_rng.percent(4);
        let families: Vec<Family> = self.manner.routes.iter().map(|(_, family)| *family).collect();
        if let Some(line) = self.lines.iter_mut().find(|line| line.number == number) {
            // -2 is EAI_NONAME.
            let input = if found {
                LinkInput::Resolved(&families)
            } else {
                LinkInput::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2))
            };
            line.link.handle(stage.now, input);
            self.drain(stage, number)?;
        }
        self.settle(stage)
    }

    pub(super) fn noticed(&mut self, stage: &mut Stage, notice: Notice) -> Result<(), Wrong> {
        let (Notice::Accept(stream)
        | Notice::Connected(stream)
        | Notice::Refused(stream)
        | Notice::Readable(stream, _)
        | Notice::Writable(stream, _)) = notice;
        let Some(line) = self.lines.iter_mut().find(|line| line.stream == Some(stream)) else {
            return Ok(());
        };
        let number = line.number;
        match notice {
            Notice::Connected(_) => {
                line.epoch = stage.network.epoch(stream);
                line.link.handle(stage.now, LinkInput::Connected);
                self.drain(stage, number)?;
            }
            Notice::Refused(_) => {
                line.hang_up(stage);
                // 111 is ECONNREFUSED.
                let input = LinkInput::ConnectFailed(ErrorKind::Refused, Cause::Os(111));
                line.link.handle(stage.now, input);
                self.drain(stage, number)?;
            }
            Notice::Readable(..) => self.read(stage, number, stream)?,
            Notice::Accept(_) | Notice::Writable(..) => {}
        }
        self.settle(stage)
    }

    /// Closes every connection. No call may be under way.
    pub(super) fn leave(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        for mut line in self.lines.drain(..) {
            let (pending, state) = (line.link.conn().pending(), line.link.state());
            if state == DialState::Ready && !(line.link.conn().is_idle() && line.out.is_empty()) {
                let what = format!("c{} leaves {pending} calls in a table", self.number);
                return Err(Wrong(what));
            }
            line.hang_up(stage);
        }
        Ok(())
    }

    /// Closes connections that are still being established.
    pub(super) fn stop_dialling(&mut self, stage: &mut Stage) {
        self.lines.retain_mut(|line| {
            if !line.is_ready() {
                line.hang_up(stage);
            }
            line.is_ready()
        });
    }

    fn line_numbers(&self) -> Vec<u32> {
        self.lines.iter().map(|line| line.number).collect()
    }

    /// Follows up on any change: begins calls, sends bytes and schedules the next poll.
    fn settle(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        self.begin_calls(stage)?;
        for line in &mut self.lines {
            line.flush(stage);
        }
        self.deadline = self.tasks.iter().map(|task| (task.deadline, task.id)).min();
        let awake = self.tasks.iter().filter(|_| self.health == Health::Sound);
        let tasks = awake.map(|task| task.cancel_at.unwrap_or(task.deadline).min(task.deadline));
        let lines = self.lines.iter().filter_map(|line| line.link.poll_timeout());
        let script = self.script.wants_turn(self.tasks.len()).then_some(self.pauses_until.max(stage.now));
        if let Some(next) = tasks.chain(lines).chain(script).min()
            && self.due.is_none_or(|due| next < due)
        {
            self.due = Some(next);
            stage.agenda.enter(next, Happening::ClientDue(self.number));
        }
        Ok(())
    }

    fn ask_script(&mut self, stage: &mut Stage) {
        while self.pauses_until <= stage.now && self.script.wants_turn(self.tasks.len()) {
            match self.script.next(&mut self.sim_rng) {
                Next::Do(order) => self.take_order(stage, order),
                Next::Pause(span) => self.pauses_until = stage.now + span,
                Next::Over => return,
            }
        }
    }

    fn take_order(&mut self, stage: &mut Stage, order: Order) {
        let Order { sim_operation, timeout, cancel_after } = order;
        let id = stage.history.begin(self.number, sim_operation.clone());
        stage.note(format_args!("c{} begins {id} {sim_operation} within {timeout:?}", self.number));
        let barrier = match &sim_operation {
            SimOperation::KeyBarrier { world_size, .. } => Some(KeyBarrier::new(*world_size, WaitMode::Wait)),
            _ => None,
        };
        stage.sabotage_deed(&sim_operation);
        self.tasks.push(Task {
            id,
            barrier,
            sim_operation,
            deadline: stage.now + timeout,
            cancel_at: cancel_after.map(|span| stage.now + span),
            mode: self.get_mode,
            retries: 0,
            flight: None,
            values: Vec::new(),
            epoch: None,
            left_trace: false,
        });
    }

    fn begin_calls(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        for slot in 0..self.tasks.len() {
            if self.tasks[slot].flight.is_some() {
                continue;
            }
            let Some(line) = self.lines.iter_mut().find_map(Line::if_free) else {
                return self.dial_if_allowed(stage);
            };
            self.calls += 1;
            let (task, call) = (&mut self.tasks[slot], CallId(self.calls));
            let age = if line.used { Age::Used } else { Age::Fresh };
            let start = line.taken;
            let begun =
                task.sim_operation.with_call(task.barrier.as_ref(), |made| line.begin(call, made, task.mode));
            begun.map_err(|error| Wrong(format!("c{} cannot begin {}: {error}", self.number, task.id)))?;
            task.flight = Some(Flight { line: line.number, call, start, age });
            task.epoch = line.epoch;
            task.values.clear();
        }
        Ok(())
    }

    fn dial_if_allowed(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        let dialling = self.lines.iter().any(|line| !line.is_ready());
        if dialling || self.lines.len() >= self.manner.lines_max {
            return Ok(());
        }
        self.dials += 1;
        let timeout = if stage.stormy { self.manner.dial_timeout } else { CALM_DIAL_TIMEOUT };
        let seed = self.sim_rng.seed();
        self.lines.push(Line::dial(self.dials, stage.now, timeout, self.manner.rounds, seed));
        stage.note(format_args!("c{} dials l{} within {timeout:?}", self.number, self.dials));
        self.drain(stage, self.dials)
    }

    /// Carries out the outputs of a link.
    fn drain(&mut self, stage: &mut Stage, number: u32) -> Result<(), Wrong> {
        loop {
            let Some(line) = self.lines.iter_mut().find(|line| line.number == number) else { return Ok(()) };
            let Some(output) = line.link.poll_output() else { return Ok(()) };
            match output {
                LinkOutput::Resolve => {
                    let at = stage.now + self.sim_rng.span(Duration::ZERO, Duration::from_millis(20));
                    stage.agenda.enter(at, Happening::Resolved(self.number, number));
                }
                LinkOutput::Connect(index) => {
                    let (route, _) = self.manner.routes[usize::from(index)];
                    let stream = stage.network.connect(stage.now, self.number, route);
                    stage.note(format_args!("c{} l{number} connects {stream} to {route:?}", self.number));
                    line.stream = Some(stream);
                }
                LinkOutput::Greet(bytes) => line.out.extend_from_slice(&bytes),
                LinkOutput::Disconnect => line.hang_up(stage),
                LinkOutput::Ready => stage.note(format_args!("c{} l{number} is ready", self.number)),
                LinkOutput::Failed(failure) => {
                    stage.note(format_args!("c{} l{number} has no connection: {failure:?}", self.number));
                    if failure.kind == ErrorKind::WrongProtocol {
                        return Err(Wrong(format!("c{} met a stranger: {failure:?}", self.number)));
                    }
                    if failure.elapsed > line.dial_timeout {
                        return Err(Wrong(format!("c{} dialled too long: {failure:?}", self.number)));
                    }
                    self.lines.retain_mut(|line| {
                        let stays = line.number != number;
                        if !stays {
                            line.hang_up(stage);
                        }
                        stays
                    });
                    if let Some(slot) = self.tasks.iter().position(|task| task.flight.is_none()) {
                        self.end(stage, slot, End::Failed(failure.kind, Effect::None))?;
                    }
                }
            }
        }
    }

    fn read(&mut self, stage: &mut Stage, number: u32, stream: Stream) -> Result<(), Wrong> {
        // A slow reader leaves bytes for later.
        for _ in 0..1 + self.sim_rng.index(4) {
            match stage.network.read(stage.now, stream, Side::Client) {
                Read::Nothing => return Ok(()),
                Read::End => return self.line_ended(stage, number, Cause::Closed),
                // 104 is ECONNRESET.
                Read::Reset => return self.line_ended(stage, number, Cause::Os(104)),
                Read::Bytes(bytes) => self.digest(stage, number, &bytes)?,
            }
            if !self.lines.iter().any(|line| line.number == number && line.stream == Some(stream)) {
                return Ok(());
            }
        }
        stage.network.read_on(stage.now, stream, Side::Client);
        Ok(())
    }

    fn digest(&mut self, stage: &mut Stage, number: u32, mut bytes: &[u8]) -> Result<(), Wrong> {
        loop {
            let Some(line) = self.lines.iter_mut().find(|line| line.number == number) else { return Ok(()) };
            let event = line.link.receive(stage.now, &mut bytes).map_err(|violation| {
                Wrong(format!("c{} l{number} met a breach of the protocol: {violation}", self.number))
            })?;
            let Some(event) = event else {
                let all_read = bytes.is_empty() || line.link.state() == DialState::Failed;
                self.drain(stage, number)?;
                return if all_read { Ok(()) } else { Err(Wrong("bytes were left unread".to_owned())) };
            };
            let LineEvent { call, what } = LineEvent::of(event);
            let in_flight =
                |task: &Task| task.flight.as_ref().is_some_and(|at| at.line == number && at.call == call);
            let Some(slot) = self.tasks.iter().position(in_flight) else {
                return Err(Wrong(format!(
                    "c{} got an event of {call:?}, which is not under way",
                    self.number
                )));
            };
            let task = &mut self.tasks[slot];
            match what {
                line::What::Count => {}
                line::What::Value(bytes) => task.values.push(Vec::with_capacity(bytes.min(1 << 16))),
                line::What::Chunk(chunk) => match task.values.last_mut() {
                    Some(value) => value.extend_from_slice(chunk),
                    None => return Err(Wrong(format!("{} got a chunk of no value", task.id))),
                },
                line::What::Proceed => {
                    let proceeded =
                        task.sim_operation.with_call(task.barrier.as_ref(), |made| line.proceed(call, made));
                    proceeded.map_err(|error| Wrong(format!("{} cannot go on: {error}", task.id)))?;
                }
                line::What::Done(outcome) => self.call_done(stage, slot, outcome)?,
            }
        }
    }

    fn call_done(&mut self, stage: &mut Stage, slot: usize, mut outcome: Outcome) -> Result<(), Wrong> {
        let task = &mut self.tasks[slot];
        if let (Some(barrier), SimOperation::KeyBarrier { .. }) = (&mut task.barrier, &task.sim_operation) {
            barrier.handle(outcome).map_err(|error| Wrong(format!("{}: {error}", task.id)))?;
            let over = barrier.state() == KeyBarrierState::Released;
            task.left_trace = true;
            task.flight = None;
            task.retries = 0;
            if !over {
                return Ok(());
            }
            // The last participant has ended its arrival when it has notified the others.
            outcome = Outcome::Released;
        }
        let values = core::mem::take(&mut task.values);
        let Some(answer) = task.sim_operation.answer(outcome, values) else {
            return Err(Wrong(format!("{} ended with {outcome:?}, which is no answer to it", task.id)));
        };
        self.end(stage, slot, End::Responded(answer))
    }

    /// Handles the end of a connection.
    fn line_ended(&mut self, stage: &mut Stage, number: u32, cause: Cause) -> Result<(), Wrong> {
        let Some(slot) = self.lines.iter().position(|line| line.number == number) else { return Ok(()) };
        stage.note(format_args!("c{} l{number} ended: {cause:?}", self.number));
        if self.lines[slot].is_ready() {
            let line = self.lines.remove(slot);
            return self.bury(stage, line);
        }
        self.lines[slot].hang_up(stage);
        self.lines[slot].link.handle(stage.now, LinkInput::Ended(cause));
        self.drain(stage, number)
    }

    /// Repeats or fails the calls of a connection that has ended.
    fn bury(&mut self, stage: &mut Stage, mut line: Line) -> Result<(), Wrong> {
        let left = line.left();
        line.hang_up(stage);
        while let Some(loss) = line.link.conn().lose() {
            let in_flight = |task: &Task| {
                task.flight.as_ref().is_some_and(|at| at.line == line.number && at.call == loss.id)
            };
            let Some(slot) = self.tasks.iter().position(in_flight) else {
                return Err(Wrong(format!("c{} lost {:?}, which is not under way", self.number, loss.id)));
            };
            let task = &mut self.tasks[slot];
            let Some(flight) = task.flight.take() else { continue };
            let sent = if left > flight.start { Sent::Something } else { Sent::Nothing };
            let operation = task.sim_operation.with_call(task.barrier.as_ref(), |call| call.operation());
            match after_loss(operation, task.mode, task.retries, flight.age, sent, &loss) {
                RetryDecision::Again(mode) => {
                    if mode == task.mode {
                        task.retries += 1;
                    } else {
                        self.get_mode = mode;
                    }
                    stage.note(format_args!("c{} repeats {} as {mode:?}", self.number, task.id));
                    task.mode = mode;
                }
                RetryDecision::Answer(outcome) => {
                    task.values.clear();
                    self.call_done(stage, slot, outcome)?;
                }
                RetryDecision::Fail(effect) => {
                    self.end(stage, slot, End::Failed(ErrorKind::ServerGone, effect))?;
                }
            }
        }
        match self.tasks.iter().find(|task| task.flight.as_ref().is_some_and(|at| at.line == line.number)) {
            Some(task) => Err(Wrong(format!("{} was lost, and the link does not say so", task.id))),
            None => Ok(()),
        }
    }

    /// Ends operations that were cancelled or have timed out.
    fn give_up_in_time(&mut self, stage: &mut Stage) -> Result<(), Wrong> {
        if self.health == Health::Sleepy {
            return Ok(());
        }
        loop {
            let now = stage.now;
            let due = |task: &Task| task.deadline <= now || task.cancel_at.is_some_and(|at| at <= now);
            let Some(slot) = self.tasks.iter().position(due) else { return Ok(()) };
            let task = &mut self.tasks[slot];
            let kind = if task.deadline <= now { ErrorKind::TimedOut } else { ErrorKind::Cancelled };
            let Some(flight) = task.flight.take() else {
                self.end(stage, slot, End::Failed(kind, Effect::None))?;
                continue;
            };
            let Some(line) = self.lines.iter().position(|line| line.number == flight.line) else {
                return Err(Wrong(format!("{} is under way on no line", task.id)));
            };
            match self.lines[line].link.conn().give_up(flight.call) {
                GiveUp::Nothing => {
                    return Err(Wrong(format!("{} is under way, and its link does not know it", task.id)));
                }
                GiveUp::Send(bytes, effect) => {
                    self.lines[line].push(&bytes);
                    self.end(stage, slot, End::Failed(kind, effect))?;
                    self.drop_if_full(stage, line);
                }
                GiveUp::Close(effect) => {
                    self.end(stage, slot, End::Failed(kind, effect))?;
                    let line = self.lines.remove(line);
                    stage.note(format_args!("c{} hangs up l{}", self.number, line.number));
                    self.bury(stage, line)?;
                }
            }
        }
    }

    /// Closes a connection whose table holds only calls that were given up.
    fn drop_if_full(&mut self, stage: &mut Stage, slot: usize) {
        let line = &mut self.lines[slot];
        let in_use =
            self.tasks.iter().any(|task| task.flight.as_ref().is_some_and(|at| at.line == line.number));
        if !in_use && line.link.conn().may_begin() == Err(BeginError::Full) {
            stage.note(format_args!("c{} hangs up l{}, which is full", self.number, line.number));
            line.hang_up(stage);
            self.lines.remove(slot);
        }
    }

    fn end(&mut self, stage: &mut Stage, slot: usize, end: End) -> Result<(), Wrong> {
        let task = self.tasks.remove(slot);
        let end = match end {
            End::Failed(kind, _) if task.left_trace => End::Failed(kind, Effect::Possible),
            other => other,
        };
        stage.note(format_args!("c{} ends {} {end}", self.number, task.id));
        if stage.now > task.deadline {
            return Err(Wrong(format!("{} ended after its deadline", task.id)));
        }
        self.script.reported(&task.sim_operation, &end)?;
        stage.history.end(task.id, end, task.epoch)
    }
}

/// In the calm phase every connection is established in this time.
const CALM_DIAL_TIMEOUT: Duration = Duration::from_secs(30);
