//! Scripts of clients: anything in the storm; then a job whose every step must succeed; at last one client reads
//! everything and clears the store.

use crate::sim::harness::history::CheckError;
use crate::sim::harness::sim_operation::{Answer, End, SimOperation, chunk};
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::store::call::WaitMode;
use rendezvous_core::time::Duration;
use std::collections::VecDeque;

/// An operation and its times.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) sim_operation: SimOperation,
    pub(super) timeout: Duration,
    pub(super) cancel_after: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum Next {
    Do(Order),
    Pause(Duration),
    Over,
}

/// Number of keys of each kind that the storm uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeySpace {
    pub(super) registers: usize,
    pub(super) counters: usize,
    pub(super) pairs: usize,
    pub(super) queues: usize,
    pub(super) barriers: usize,
    pub(super) clients: usize,
}

#[derive(Debug)]
pub(super) enum Script {
    Idle,
    Storm(Storm),
    Job(Job),
    Clearing(Clearing),
}

impl Script {
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Idle => true,
            Self::Storm(storm) => storm.left == 0,
            Self::Job(job) => job.steps.is_empty(),
            Self::Clearing(clearing) => clearing.orders.is_empty(),
        }
    }

    /// Returns whether it has another operation while `in_flight` operations are under way.
    pub(super) fn wants_next(&self, in_flight: usize) -> bool {
        let most = if let Self::Storm(storm) = self { storm.storm_options.depth } else { 1 };
        in_flight < most && !self.is_over()
    }

    pub(super) fn next(&mut self, sim_rng: &mut SimRng) -> Next {
        match self {
            Self::Idle => Next::Over,
            Self::Storm(storm) => storm.next(sim_rng),
            Self::Job(job) => patient(job.steps.front().map(|step| step.sim_operation.clone())),
            Self::Clearing(clearing) => patient(clearing.orders.front().cloned()),
        }
    }

    /// Handles the end of an operation.
    pub(super) fn reported(&mut self, sim_operation: &SimOperation, end: &End) -> Result<(), CheckError> {
        match (self, end) {
            (Self::Idle | Self::Storm(_), _) => Ok(()),
            (_, End::Failed(..)) => Err(CheckError(format!("in calm weather, {sim_operation}: {end}"))),
            (Self::Job(job), End::Responded(answer)) => job.reported(sim_operation, answer),
            (Self::Clearing(clearing), End::Responded(answer)) => clearing.reported(sim_operation, answer),
        }
    }
}

fn patient(sim_operation: Option<SimOperation>) -> Next {
    sim_operation.map_or(Next::Over, |sim_operation| {
        Next::Do(Order { sim_operation, timeout: CALM_TIMEOUT, cancel_after: None })
    })
}

const CALM_TIMEOUT: Duration = Duration::from_secs(120);

/// Parameters of a client's storm.
#[derive(Clone, Copy, Debug)]
pub(super) struct StormOptions {
    pub(super) operations: usize,
    /// Operations under way at a time.
    pub(super) depth: usize,
    /// Longest pause between two operations.
    pub(super) pause_max: Duration,
    pub(super) value_bytes_max: usize,
    /// Percentage of operations on two keys, in addition to the usual ones: a server that executes lists in parts may be
    /// interrupted between them.
    pub(super) more_pairs: u64,
}

/// A number of random operations.
#[derive(Debug)]
pub(super) struct Storm {
    client: usize,
    key_space: KeySpace,
    left: usize,
    storm_options: StormOptions,
    pieces: u32,
    /// The last value that was made, and its key.
    last: Option<(String, Vec<u8>)>,
    pause_next: bool,
}

impl Storm {
    pub(super) const fn new(client: usize, key_space: KeySpace, storm_options: StormOptions) -> Self {
        let left = storm_options.operations;
        Self { client, key_space, storm_options, left, pieces: 0, last: None, pause_next: true }
    }

    pub(super) fn next(&mut self, sim_rng: &mut SimRng) -> Next {
        self.pause_next = !self.pause_next;
        if self.pause_next && sim_rng.percent(70) {
            return Next::Pause(sim_rng.span(Duration::ZERO, self.storm_options.pause_max));
        }
        self.left -= 1;
        let timeout = sim_rng.span(Duration::from_millis(5), Duration::from_secs(3));
        let cancel_after = sim_rng.percent(8).then(|| sim_rng.span(Duration::ZERO, timeout));
        Next::Do(Order { sim_operation: self.sim_operation(sim_rng), timeout, cancel_after })
    }

    fn chunk(&mut self, name: &str, sim_rng: &mut SimRng) -> Vec<u8> {
        self.pieces += 1;
        let number = (u32::try_from(self.client).unwrap_or(u32::MAX) + 1) * 10_000 + self.pieces;
        let filling = match sim_rng.index(20) {
            0 => sim_rng.size(300, self.storm_options.value_bytes_max),
            1..=7 => sim_rng.size(1, 300),
            _ => 0,
        };
        let chunk = chunk::make(name, number, filling);
        self.last = Some((name.to_owned(), chunk.clone()));
        chunk
    }

    fn sim_operation(&mut self, sim_rng: &mut SimRng) -> SimOperation {
        let key_space = self.key_space;
        let timeout = if sim_rng.percent(60) { WaitMode::Wait } else { WaitMode::Once };
        let name =
            |character: &str, sim_rng: &mut SimRng, count| format!("{character}/{}", sim_rng.index(count));
        let more_pairs = self.storm_options.more_pairs;
        if more_pairs > 0 && sim_rng.percent(more_pairs) {
            return self.on_pair(sim_rng, timeout);
        }
        match sim_rng.index(100) {
            0..44 => self.on_register(sim_rng, timeout),
            44..60 => {
                let delta = if sim_rng.percent(10) { 0 } else { 1 + i64::from(sim_rng.percent(30)) };
                SimOperation::Add { name: name("n", sim_rng, key_space.counters), delta }
            }
            60..70 => self.on_pair(sim_rng, timeout),
            70..85 => {
                let name = name("q", sim_rng, key_space.queues);
                match sim_rng.index(10) {
                    0 => SimOperation::QueueLen { name },
                    1..=5 => SimOperation::Push { value: self.chunk(&name, sim_rng), name },
                    _ => SimOperation::Pop { name, timeout },
                }
            }
            85..91 => {
                let name = name("b", sim_rng, key_space.barriers);
                let world_size = world_size(&name, key_space.clients);
                SimOperation::Barrier { name, world_size, timeout }
            }
            91..95 => {
                let name = name("k", sim_rng, key_space.barriers);
                SimOperation::KeyBarrier { world_size: world_size(&name, key_space.clients), name }
            }
            95 => SimOperation::NumKeys,
            96 => SimOperation::ListKeys,
            _ => SimOperation::Ping,
        }
    }

    /// Reads two keys at once, or sets both to one value.
    fn on_pair(&mut self, sim_rng: &mut SimRng, timeout: WaitMode) -> SimOperation {
        let pair = format!("p/{}", sim_rng.index(self.key_space.pairs));
        let (a, b) = (format!("{pair}/a"), format!("{pair}/b"));
        if sim_rng.percent(50) {
            return SimOperation::MultiGet { names: vec![a, b], timeout };
        }
        let value = self.chunk(&pair, sim_rng);
        SimOperation::MultiSet { pairs: vec![(a, value.clone()), (b, value)] }
    }

    fn on_register(&mut self, sim_rng: &mut SimRng, timeout: WaitMode) -> SimOperation {
        let name = format!("r/{}", sim_rng.index(self.key_space.registers));
        match sim_rng.index(20) {
            0..6 => SimOperation::Set { value: self.chunk(&name, sim_rng), name },
            6..12 => SimOperation::Get { name, timeout },
            12 | 13 => SimOperation::Append { value: self.chunk(&name, sim_rng), name },
            14 => SimOperation::Delete { name },
            15 => SimOperation::Check { name },
            16 | 17 => {
                let more = sim_rng.index(3);
                let others = (0..more).map(|_| format!("r/{}", sim_rng.index(self.key_space.registers)));
                SimOperation::Wait { names: core::iter::once(name).chain(others).collect() }
            }
            _ => {
                // The expected value is often right: none, or one that this client wrote.
                let local = self.last.clone().filter(|(last, _)| *last == name).map(|(_, value)| value);
                let expected = local.filter(|_| sim_rng.percent(70)).unwrap_or_default();
                SimOperation::CompareSet { expected, desired: self.chunk(&name, sim_rng), name }
            }
        }
    }
}

/// Returns the number of participants of a barrier. It depends on the name only.
fn world_size(name: &str, clients: usize) -> i64 {
    let digits: usize = name.bytes().map(usize::from).sum();
    i64::try_from(2 + digits % clients.clamp(1, 4)).unwrap_or(2)
}

/// A step, and the answer that it must get.
#[derive(Debug)]
struct Step {
    sim_operation: SimOperation,
    answer: Answer,
}

/// What a training job does with its store.
#[derive(Debug)]
pub(super) struct Job {
    steps: VecDeque<Step>,
}

impl Job {
    pub(super) fn new(client: usize, clients: usize) -> Self {
        let (next, previous) = ((client + 1) % clients, (client + clients - 1) % clients);
        let local = |client: usize| format!("calm/own/{client}");
        let queue = |client: usize| format!("calm/q/{client}");
        let pair = |client: usize| ["a", "b"].map(|half| format!("calm/p/{client}/{half}"));
        let value = |name: &str, client: usize| {
            chunk::make(name, 1_000_000 + u32::try_from(client).unwrap_or(0), client * 17)
        };
        let world_size = i64::try_from(clients).unwrap_or(1);
        let number = i64::try_from(client).unwrap_or(0);
        let wait = WaitMode::Wait;
        let native = |name: &str| SimOperation::Barrier { name: name.to_owned(), world_size, timeout: wait };
        let counter = || "calm/n".to_owned();
        let mut steps = VecDeque::new();
        let mut step = |sim_operation, answer| steps.push_back(Step { sim_operation, answer });
        step(SimOperation::Set { name: local(client), value: value(&local(client), client) }, Answer::Done);
        step(
            SimOperation::Get { name: local(next), timeout: wait },
            Answer::Value(value(&local(next), next)),
        );
        step(SimOperation::Add { name: counter(), delta: number + 1 }, ANY_NUMBER);
        step(native("calm/b"), Answer::Done);
        let sum = world_size * (world_size + 1) / 2;
        step(SimOperation::Add { name: counter(), delta: 0 }, Answer::Number(sum));
        step(SimOperation::KeyBarrier { name: "calm/k".to_owned(), world_size }, Answer::Done);
        let halves = pair(client).map(|name| (value(&name, client), name)).map(|(value, name)| (name, value));
        step(SimOperation::MultiSet { pairs: halves.to_vec() }, Answer::Done);
        step(
            SimOperation::MultiGet { names: pair(next).to_vec(), timeout: wait },
            Answer::Values(pair(next).map(|name| value(&name, next)).to_vec()),
        );
        step(SimOperation::Push { name: queue(next), value: value(&queue(next), client) }, Answer::Done);
        step(
            SimOperation::Pop { name: queue(client), timeout: wait },
            Answer::Value(value(&queue(client), previous)),
        );
        step(SimOperation::Wait { names: (0..clients).map(local).collect() }, Answer::Done);
        step(native("calm/end"), Answer::Done);
        Self { steps }
    }

    fn reported(&mut self, sim_operation: &SimOperation, answer: &Answer) -> Result<(), CheckError> {
        match self.steps.pop_front() {
            Some(step)
                if step.sim_operation == *sim_operation
                    && (step.answer == *answer || step.answer == ANY_NUMBER) =>
            {
                Ok(())
            }
            Some(step) => {
                Err(CheckError(format!("in calm weather, {sim_operation}: {answer} and not {}", step.answer)))
            }
            None => Err(CheckError(format!("in calm weather, {sim_operation} that was not requested"))),
        }
    }
}

const ANY_NUMBER: Answer = Answer::Number(i64::MIN);

/// Reads every counter and register, empties every queue, and deletes every key.
#[derive(Debug)]
pub(super) struct Clearing {
    orders: VecDeque<SimOperation>,
}

impl Clearing {
    pub(super) fn new(key_space: KeySpace) -> Self {
        let names =
            |character: &'static str, count| (0..count).map(move |number| format!("{character}/{number}"));
        let mut orders: VecDeque<SimOperation> = VecDeque::new();
        orders.extend(names("n", key_space.counters).map(|name| SimOperation::Add { name, delta: 0 }));
        orders.extend(
            names("r", key_space.registers).map(|name| SimOperation::Get { name, timeout: WaitMode::Once }),
        );
        let queues = names("q", key_space.queues).chain(names("calm/q", key_space.clients));
        orders.extend(queues.map(|name| SimOperation::Pop { name, timeout: WaitMode::Once }));
        orders.push_back(SimOperation::ListKeys);
        orders.push_back(SimOperation::NumKeys);
        Self { orders }
    }

    fn reported(&mut self, sim_operation: &SimOperation, answer: &Answer) -> Result<(), CheckError> {
        match (sim_operation, answer) {
            // The queue may hold more.
            (SimOperation::Pop { .. }, Answer::Value(_)) => return Ok(()),
            (SimOperation::ListKeys, Answer::Values(keys)) => {
                let names = keys.iter().map(|key| String::from_utf8_lossy(key.get(1..).unwrap_or_default()));
                let deletes = names.map(|name| SimOperation::Delete { name: name.into_owned() });
                let deletes: Vec<SimOperation> = deletes.collect();
                self.orders.pop_front();
                deletes.into_iter().for_each(|delete| self.orders.push_front(delete));
                return Ok(());
            }
            (SimOperation::Delete { .. }, Answer::Number(1)) | (SimOperation::NumKeys, Answer::Number(0)) => {
            }
            (SimOperation::Delete { .. } | SimOperation::NumKeys, _) => {
                return Err(CheckError(format!("while the store is cleared, {sim_operation}: {answer}")));
            }
            _ => {}
        }
        self.orders.pop_front();
        Ok(())
    }
}
