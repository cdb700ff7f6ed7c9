//! From a kind of load to samples of each target.

use super::frames::{Frames, Names, Operation, Protocol};
use super::group::{Dial, Door, Group, LoadError, Next, Task};
use super::histogram::Histogram;
use super::sample::{Done, Sample, median};
use super::target::Target;
use super::work::{Language, Work};
use super::{Keys, Plan, rendezvous};
use crate::failure::Failure;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::ErrorKind;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What all repetitions on one target took.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) samples: Vec<Sample>,
    pub(super) latencies: Histogram,
    /// Stays connected from one repetition to the next.
    group: Option<Group>,
}

/// Puts a load on all targets in turn.
pub(super) fn run(
    work: Work,
    plan: &Plan,
    names: &mut Names,
    targets: &[Target],
) -> Result<Vec<Visit>, Failure> {
    let new = || Visit { samples: Vec::new(), latencies: Histogram::new(), group: None };
    let mut visits: Vec<Visit> = targets.iter().map(|_| new()).collect();
    // The first repetition warms up.
    for repetition in 0..=plan.repetitions {
        for position in 0..targets.len() {
            let index = (position + repetition) % targets.len();
            let (visit, target) = (&mut visits[index], &targets[index]);
            if repetition == 1 {
                visit.samples.clear();
                visit.latencies = Histogram::new();
            }
            visit.repetition(work, plan, names, target)?;
        }
    }
    if !work.connects_anew() && plan.after_use == Keys::Removed {
        for target in targets {
            remove(target, [names.value(), names.count()].into_iter())?;
        }
    }
    Ok(visits)
}

fn remove(target: &Target, mut keys: impl Iterator<Item = String>) -> Result<(), Failure> {
    keys.try_for_each(|key| Ok(target.store.delete(key.as_bytes(), Timeout::Default).map(drop)?))
}

impl Visit {
    fn repetition(
        &mut self,
        work: Work,
        plan: &Plan,
        names: &mut Names,
        target: &Target,
    ) -> Result<(), Failure> {
        let fail = |load_error| failure(work, target, plan, load_error);
        let dial = if work == Work::Connect { Dial::Sequential } else { Dial::AllAtOnce };
        let (address, language, timeout) = (target.address, work.language(plan.language), plan.timeout);
        let door = Door { address, language, dial, timeout };
        let mut group = match self.group.take() {
            None if !work.connects_anew() => {
                prepare(work, plan, names, target)?;
                let door = Door { dial: Dial::Sequential, ..door };
                Some(connect(&door, plan, |_| ()).map_err(fail)?)
            }
            group => group,
        };
        let meetings = meetings(work, plan, names);
        let cpu_before = target.cpu.now();
        let latencies = &mut self.latencies;
        let done = match (work, &mut group) {
            (Work::Barrier, Some(group)) => meet(&meetings, group, latencies, barrier_round),
            (Work::Legacy, Some(group)) => meet(&meetings, group, latencies, legacy_round),
            (_, Some(group)) => {
                let batches = batches(work, plan, names, &mut group.protocol);
                closed_loop(&batches, plan, group, latencies)
            }
            (work, None) if work.is_rendezvous() => {
                rendezvous::repetition(work, &door, plan.connections, &names.next_round(), latencies)
            }
            (_, None) => connects(&door, plan, latencies),
        };
        let done = done.map_err(fail)?;
        let cpu = target.cpu.now().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
        let cpu = cpu.filter(|_| done.cpu_units > 0);
        let units = done.units as f64;
        self.samples.push(Sample {
            time_ns: done.unit_ns.unwrap_or(done.time.as_secs_f64() * 1e9 / units),
            per_second: units / done.time.as_secs_f64().max(f64::MIN_POSITIVE),
            cpu_ns: cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / done.cpu_units as f64),
        });
        if work.connects_anew() {
            // What the end of these connections costs must not fall into the next target's time.
            target.settle()?;
        }
        if plan.after_use == Keys::Removed {
            let keys = meetings.into_iter().map(|meeting| meeting.key);
            match (work, language) {
                (Work::Legacy, _) => remove(target, keys.flat_map(|key| [arrivals(&key), release(&key)]))?,
                (Work::Barrier, Language::C10d) => remove(target, keys)?,
                // A barrier of the native language has no key in the store.
                _ => {}
            }
        }
        self.group = group;
        Ok(())
    }
}

/// Puts there what the load will look for.
fn prepare(work: Work, plan: &Plan, names: &Names, target: &Target) -> Result<(), Failure> {
    if matches!(work, Work::Get | Work::Check | Work::Mixed) {
        target.store.set(names.value().as_bytes(), &value(plan), Timeout::Default)?;
    }
    Ok(())
}

fn value(plan: &Plan) -> Vec<u8> {
    vec![b'x'; plan.value_bytes]
}

fn connect(door: &Door, plan: &Plan, greeted: impl FnMut(Duration)) -> Result<Group, LoadError> {
    let greeting = Task::one(Rc::new(Frames::greeting(door.language)));
    Group::dial(door, vec![greeting; plan.connections], greeted)
}

fn connects(door: &Door, plan: &Plan, latencies: &mut Histogram) -> Result<Done, LoadError> {
    let clock = Clock::new();
    let began = clock.now();
    let group = connect(door, plan, |span| latencies.record(span))?;
    let time = clock.now().since(began);
    Ok(Done { time, unit_ns: None, units: group.len(), cpu_units: group.len() })
}

/// One round of a barrier.
struct Meeting {
    key: String,
    generation: u64,
}

/// The rounds of a repetition. A key of c10d serves once, and so do those that a barrier is made of; a native barrier has
/// one generation after another.
fn meetings(work: Work, plan: &Plan, names: &mut Names) -> Vec<Meeting> {
    match (work, plan.language) {
        (Work::Barrier, Language::Native) => {
            let (key, last) = (names.next_round(), plan.operations as u64);
            (1..=last).map(|generation| Meeting { key: key.clone(), generation }).collect()
        }
        (Work::Barrier | Work::Legacy, _) => {
            (0..plan.operations).map(|_| Meeting { key: names.next_round(), generation: 1 }).collect()
        }
        _ => Vec::new(),
    }
}

fn meet(
    meetings: &[Meeting],
    group: &mut Group,
    latencies: &mut Histogram,
    mut round: impl FnMut(&Meeting, &mut Group) -> Result<Duration, LoadError>,
) -> Result<Done, LoadError> {
    let mut spans = Vec::with_capacity(meetings.len());
    for meeting in meetings {
        let span = round(meeting, group)?;
        latencies.record(span);
        spans.push(span);
    }
    let unit_ns = median(spans.iter().map(|span| span.as_secs_f64() * 1e9));
    let (time, cpu_units) = (spans.iter().sum(), meetings.len() * group.len());
    Ok(Done { time, unit_ns, units: meetings.len(), cpu_units })
}

fn barrier_round(meeting: &Meeting, group: &mut Group) -> Result<Duration, LoadError> {
    let world_size = group.len();
    let arrivals = Frames::arrivals(&mut group.protocol, &meeting.key, meeting.generation, world_size);
    let clock = Clock::new();
    let began = clock.now();
    for (line, arrival) in arrivals.into_iter().enumerate() {
        group.ask(line, Task::one(arrival))?;
    }
    group.run(|_| None)?;
    Ok(clock.now().since(began))
}

fn arrivals(key: &str) -> String {
    format!("{key}/num_members")
}

fn release(key: &str) -> String {
    format!("{key}/last_member")
}

fn legacy_round(meeting: &Meeting, group: &mut Group) -> Result<Duration, LoadError> {
    let (arrivals, release) = (arrivals(&meeting.key), release(&meeting.key));
    let protocol = &mut group.protocol;
    let add = Task::one(Rc::new(Frames::one(protocol, Operation::Add { name: &arrivals })));
    let wait = Task::one(Rc::new(Frames::one(protocol, Operation::Wait { name: &release })));
    let last = Task::one(Rc::new(Frames::set_and_wait(protocol, &release)));
    let (members, mut arrived) = (group.len(), 0);
    let mut has_arrived = vec![false; members];
    let clock = Clock::new();
    let began = clock.now();
    for line in 0..members {
        group.ask(line, add.clone())?;
    }
    group.run(|answer| {
        if std::mem::replace(&mut has_arrived[answer.line], true) {
            return None;
        }
        arrived += 1;
        Some(if arrived == members { last.clone() } else { wait.clone() })
    })?;
    Ok(clock.now().since(began))
}

/// The batches of a repetition.
enum Batches {
    /// Each serves again and again. Where several kinds take turns, there is one that begins with each of them.
    Cycle(Vec<Rc<Frames>>),
    /// Each serves once on each connection, since its ids have to grow there.
    Once(Vec<Rc<Frames>>),
}

impl Batches {
    /// The batch of a connection that has `begin` operations behind it.
    fn at(&self, line: usize, begin: usize, depth: usize) -> &Rc<Frames> {
        match self {
            Self::Cycle(batches) => &batches[(line + begin) % batches.len()],
            Self::Once(batches) => &batches[begin / depth],
        }
    }
}

fn batches(work: Work, plan: &Plan, names: &Names, protocol: &mut Protocol) -> Batches {
    let kinds = match work {
        Work::Mixed => vec![Work::Set, Work::Add, Work::Get, Work::Check],
        kind => vec![kind],
    };
    let (value_name, count_name, value) = (names.value(), names.count(), value(plan));
    let (name, value) = (value_name.as_str(), value.as_slice());
    let batch = |first: usize, protocol: &mut Protocol| {
        let mut frames = Frames::default();
        for kind in kinds.iter().cycle().skip(first % kinds.len()).take(plan.depth) {
            let operation = match kind {
                Work::Set => Operation::Set { name, value },
                Work::Get => Operation::Get { name, value },
                Work::Add => Operation::Add { name: &count_name },
                _ => Operation::Check { name },
            };
            frames.push(protocol, operation);
        }
        Rc::new(frames)
    };
    match plan.language {
        Language::C10d => Batches::Cycle((0..kinds.len()).map(|first| batch(first, protocol)).collect()),
        Language::Native => {
            let begins = (0..plan.operations).step_by(plan.depth);
            Batches::Once(begins.map(|first| batch(first, protocol)).collect())
        }
    }
}

/// Every connection sends a batch, and the next one when all of it is answered.
fn closed_loop(
    batches: &Batches,
    plan: &Plan,
    group: &mut Group,
    latencies: &mut Histogram,
) -> Result<Done, LoadError> {
    let mut done: Vec<usize> = vec![0; group.len()];
    let mut next = |line: usize| -> Next {
        let begin = done[line];
        let operations = plan.depth.min(plan.operations - begin);
        done[line] += operations;
        let frames = (operations > 0).then(|| Rc::clone(batches.at(line, begin, plan.depth)))?;
        Some(Task::Batch { frames, operations })
    };
    let clock = Clock::new();
    let began = clock.now();
    for line in 0..group.len() {
        if let Some(task) = next(line) {
            group.ask(line, task)?;
        }
    }
    group.run(|answer| {
        latencies.record(answer.span);
        next(answer.line)
    })?;
    let operations = plan.operations * group.len();
    Ok(Done { time: clock.now().since(began), unit_ns: None, units: operations, cpu_units: operations })
}

fn failure(work: Work, target: &Target, plan: &Plan, load_error: LoadError) -> Failure {
    let (kind, what) = match load_error {
        LoadError::Silent { waiting } => {
            let (timeout_ms, connections) = (plan.timeout.as_millis(), plan.connections);
            let what = format!(
                "no answer came within {timeout_ms} ms, {waiting} of {connections} connections are waiting"
            );
            (ErrorKind::TimedOut, what)
        }
        LoadError::Closed => (ErrorKind::ServerGone, "the server closed a connection".into()),
        LoadError::Garbage => (ErrorKind::WrongProtocol, "the server sent what is no answer".into()),
        LoadError::Connect(error) => {
            let kind = match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorKind::Refused,
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => ErrorKind::Unreachable,
                io::ErrorKind::ConnectionReset => ErrorKind::ServerGone,
                io::ErrorKind::TimedOut => ErrorKind::TimedOut,
                _ => ErrorKind::Io,
            };
            (kind, format!("cannot connect: {error}"))
        }
        LoadError::Lost(error) => (ErrorKind::ServerGone, format!("a connection was lost: {error}")),
    };
    Failure::new(kind, format!("{} on {} at {}: {what}", work.name(), target.name, target.address))
}
