//! What clients do: anything in the storm; then, in calm weather, a job whose every step must succeed; at last one of
//! them looks at everything and clears the store.

use super::deed::{Answer, Deed, End, piece};
use super::dice::Dice;
use super::history::Wrong;
use rendezvous_core::store::call::Patience;
use rendezvous_core::time::Duration;
use std::collections::VecDeque;

/// One deed and its time.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) deed: Deed,
    pub(super) timeout: Duration,
    pub(super) cancel_after: Option<Duration>,
}

#[derive(Debug)]
pub(super) enum Next {
    Do(Order),
    Pause(Duration),
    Over,
}

/// How many keys of each kind the storm goes over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Field {
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

    /// Whether it has something to say while so many deeds are under way.
    pub(super) fn wants_turn(&self, under_way: usize) -> bool {
        let most = if let Self::Storm(storm) = self { storm.habits.depth } else { 1 };
        under_way < most && !self.is_over()
    }

    pub(super) fn next(&mut self, dice: &mut Dice) -> Next {
        match self {
            Self::Idle => Next::Over,
            Self::Storm(storm) => storm.next(dice),
            Self::Job(job) => patient(job.steps.front().map(|step| step.deed.clone())),
            Self::Clearing(clearing) => patient(clearing.orders.front().cloned()),
        }
    }

    /// A deed has ended so.
    pub(super) fn told(&mut self, deed: &Deed, end: &End) -> Result<(), Wrong> {
        match (self, end) {
            (Self::Idle | Self::Storm(_), _) => Ok(()),
            (_, End::Failed(..)) => Err(Wrong(format!("in calm weather, {deed}: {end}"))),
            (Self::Job(job), End::Answered(answer)) => job.told(deed, answer),
            (Self::Clearing(clearing), End::Answered(answer)) => clearing.told(deed, answer),
        }
    }
}

fn patient(deed: Option<Deed>) -> Next {
    deed.map_or(Next::Over, |deed| Next::Do(Order { deed, timeout: CALM_TIMEOUT, cancel_after: None }))
}

const CALM_TIMEOUT: Duration = Duration::from_secs(120);

/// How a client goes about its storm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    pub(super) deeds: usize,
    /// Deeds under way at a time.
    pub(super) depth: usize,
    /// Between two deeds.
    pub(super) pause_max: Duration,
    pub(super) value_bytes_max: usize,
}

/// Anything, for a number of deeds.
#[derive(Debug)]
pub(super) struct Storm {
    client: usize,
    field: Field,
    left: usize,
    habits: Habits,
    pieces: u32,
    /// The last value that was made, and its key.
    last: Option<(String, Vec<u8>)>,
    pause_next: bool,
}

impl Storm {
    pub(super) const fn new(client: usize, field: Field, habits: Habits) -> Self {
        let left = habits.deeds;
        Self { client, field, habits, left, pieces: 0, last: None, pause_next: true }
    }

    pub(super) fn next(&mut self, dice: &mut Dice) -> Next {
        self.pause_next = !self.pause_next;
        if self.pause_next && dice.percent(70) {
            return Next::Pause(dice.span(Duration::ZERO, self.habits.pause_max));
        }
        self.left -= 1;
        let timeout = dice.span(Duration::from_millis(5), Duration::from_secs(3));
        let cancel_after = dice.percent(8).then(|| dice.span(Duration::ZERO, timeout));
        Next::Do(Order { deed: self.deed(dice), timeout, cancel_after })
    }

    fn piece(&mut self, name: &str, dice: &mut Dice) -> Vec<u8> {
        self.pieces += 1;
        let number = (u32::try_from(self.client).unwrap_or(u32::MAX) + 1) * 10_000 + self.pieces;
        let filling = match dice.index(20) {
            0 => dice.size(300, self.habits.value_bytes_max),
            1..=7 => dice.size(1, 300),
            _ => 0,
        };
        let piece = piece::make(name, number, filling);
        self.last = Some((name.to_owned(), piece.clone()));
        piece
    }

    fn deed(&mut self, dice: &mut Dice) -> Deed {
        let field = self.field;
        let patience = if dice.percent(60) { Patience::Wait } else { Patience::Once };
        let name = |letter: &str, dice: &mut Dice, count| format!("{letter}/{}", dice.index(count));
        match dice.index(100) {
            0..44 => self.on_register(dice, patience),
            44..60 => {
                let delta = if dice.percent(10) { 0 } else { 1 + i64::from(dice.percent(30)) };
                Deed::Add { name: name("n", dice, field.counters), delta }
            }
            60..70 => {
                let pair = name("p", dice, field.pairs);
                let (a, b) = (format!("{pair}/a"), format!("{pair}/b"));
                if dice.percent(50) {
                    return Deed::MultiGet { names: vec![a, b], patience };
                }
                let value = self.piece(&pair, dice);
                Deed::MultiSet { pairs: vec![(a, value.clone()), (b, value)] }
            }
            70..85 => {
                let name = name("q", dice, field.queues);
                match dice.index(10) {
                    0 => Deed::QueueLen { name },
                    1..=5 => Deed::Push { value: self.piece(&name, dice), name },
                    _ => Deed::Pop { name, patience },
                }
            }
            85..91 => {
                let name = name("b", dice, field.barriers);
                let world_size = world_size(&name, field.clients);
                Deed::Barrier { name, world_size, patience }
            }
            91..95 => {
                let name = name("k", dice, field.barriers);
                Deed::KeyBarrier { world_size: world_size(&name, field.clients), name }
            }
            95 => Deed::NumKeys,
            96 => Deed::ListKeys,
            _ => Deed::Ping,
        }
    }

    fn on_register(&mut self, dice: &mut Dice, patience: Patience) -> Deed {
        let name = format!("r/{}", dice.index(self.field.registers));
        match dice.index(20) {
            0..6 => Deed::Set { value: self.piece(&name, dice), name },
            6..12 => Deed::Get { name, patience },
            12 | 13 => Deed::Append { value: self.piece(&name, dice), name },
            14 => Deed::Delete { name },
            15 => Deed::Check { name },
            16 | 17 => {
                let more = dice.index(3);
                let others = (0..more).map(|_| format!("r/{}", dice.index(self.field.registers)));
                Deed::Wait { names: core::iter::once(name).chain(others).collect() }
            }
            _ => {
                // An expectation that may well hold: none, or something of this client's own.
                let own = self.last.clone().filter(|(last, _)| *last == name).map(|(_, value)| value);
                let expected = own.filter(|_| dice.percent(70)).unwrap_or_default();
                Deed::CompareSet { expected, desired: self.piece(&name, dice), name }
            }
        }
    }
}

/// The same for all who meet there.
fn world_size(name: &str, clients: usize) -> i64 {
    let digits: usize = name.bytes().map(usize::from).sum();
    i64::try_from(2 + digits % clients.clamp(1, 4)).unwrap_or(2)
}

/// A step and the answer that it must have.
#[derive(Debug)]
struct Step {
    deed: Deed,
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
        let own = |client: usize| format!("calm/own/{client}");
        let queue = |client: usize| format!("calm/q/{client}");
        let pair = |client: usize| ["a", "b"].map(|half| format!("calm/p/{client}/{half}"));
        let value = |name: &str, client: usize| {
            piece::make(name, 1_000_000 + u32::try_from(client).unwrap_or(0), client * 17)
        };
        let world_size = i64::try_from(clients).unwrap_or(1);
        let number = i64::try_from(client).unwrap_or(0);
        let wait = Patience::Wait;
        let native = |name: &str| Deed::Barrier { name: name.to_owned(), world_size, patience: wait };
        let counter = || "calm/n".to_owned();
        let mut steps = VecDeque::new();
        let mut step = |deed, answer| steps.push_back(Step { deed, answer });
        step(Deed::Set { name: own(client), value: value(&own(client), client) }, Answer::Done);
        step(Deed::Get { name: own(next), patience: wait }, Answer::Value(value(&own(next), next)));
        step(Deed::Add { name: counter(), delta: number + 1 }, ANY_NUMBER);
        step(native("calm/b"), Answer::Done);
        let sum = world_size * (world_size + 1) / 2;
        step(Deed::Add { name: counter(), delta: 0 }, Answer::Number(sum));
        step(Deed::KeyBarrier { name: "calm/k".to_owned(), world_size }, Answer::Done);
        let halves = pair(client).map(|name| (value(&name, client), name)).map(|(value, name)| (name, value));
        step(Deed::MultiSet { pairs: halves.to_vec() }, Answer::Done);
        step(
            Deed::MultiGet { names: pair(next).to_vec(), patience: wait },
            Answer::Values(pair(next).map(|name| value(&name, next)).to_vec()),
        );
        step(Deed::Push { name: queue(next), value: value(&queue(next), client) }, Answer::Done);
        step(
            Deed::Pop { name: queue(client), patience: wait },
            Answer::Value(value(&queue(client), previous)),
        );
        step(Deed::Wait { names: (0..clients).map(own).collect() }, Answer::Done);
        step(native("calm/end"), Answer::Done);
        Self { steps }
    }

    fn told(&mut self, deed: &Deed, answer: &Answer) -> Result<(), Wrong> {
        match self.steps.pop_front() {
            Some(step) if step.deed == *deed && (step.answer == *answer || step.answer == ANY_NUMBER) => {
                Ok(())
            }
            Some(step) => Err(Wrong(format!("in calm weather, {deed}: {answer} and not {}", step.answer))),
            None => Err(Wrong(format!("in calm weather, {deed} that nobody asked for"))),
        }
    }
}

const ANY_NUMBER: Answer = Answer::Number(i64::MIN);

/// Reads every counter and register, empties every queue, and deletes every key.
#[derive(Debug)]
pub(super) struct Clearing {
    orders: VecDeque<Deed>,
}

impl Clearing {
    pub(super) fn new(field: Field) -> Self {
        let names = |letter: &'static str, count| (0..count).map(move |number| format!("{letter}/{number}"));
        let mut orders: VecDeque<Deed> = VecDeque::new();
        orders.extend(names("n", field.counters).map(|name| Deed::Add { name, delta: 0 }));
        orders.extend(names("r", field.registers).map(|name| Deed::Get { name, patience: Patience::Once }));
        let queues = names("q", field.queues).chain(names("calm/q", field.clients));
        orders.extend(queues.map(|name| Deed::Pop { name, patience: Patience::Once }));
        orders.push_back(Deed::ListKeys);
        orders.push_back(Deed::NumKeys);
        Self { orders }
    }

    fn told(&mut self, deed: &Deed, answer: &Answer) -> Result<(), Wrong> {
        match (deed, answer) {
            // The queue may hold more.
            (Deed::Pop { .. }, Answer::Value(_)) => return Ok(()),
            (Deed::ListKeys, Answer::Values(keys)) => {
                let names = keys.iter().map(|key| String::from_utf8_lossy(key.get(1..).unwrap_or_default()));
                let deletes = names.map(|name| Deed::Delete { name: name.into_owned() });
                let deletes: Vec<Deed> = deletes.collect();
                self.orders.pop_front();
                deletes.into_iter().for_each(|delete| self.orders.push_front(delete));
                return Ok(());
            }
            (Deed::Delete { .. }, Answer::Number(1)) | (Deed::NumKeys, Answer::Number(0)) => {}
            (Deed::Delete { .. } | Deed::NumKeys, _) => {
                return Err(Wrong(format!("while the store is cleared, {deed}: {answer}")));
            }
            _ => {}
        }
        self.orders.pop_front();
        Ok(())
    }
}
