//! From a kind of load to samples of each target.

use super::frames::{Frames, Names};
use super::group::{Dial, Group, Next, Trouble};
use super::histogram::Histogram;
use super::report::median;
use super::target::Target;
use super::work::Work;
use super::{Keys, Plan};
use crate::failure::Failure;
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::store_client::Timeout;
use rendezvous_core::error::ErrorKind;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What one repetition on one target took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Of one unit of the work.
    pub(super) time_ns: f64,
    /// Units in a second.
    pub(super) per_second: f64,
    /// The server's, where it is known.
    pub(super) cpu_ns: Option<f64>,
}

/// What all repetitions on one target took.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) samples: Vec<Sample>,
    pub(super) latencies: Histogram,
    /// Stays connected from one repetition to the next.
    group: Option<Group>,
}

/// What a repetition did.
struct Done {
    /// From begin to end.
    time: Duration,
    /// Of one unit of the work, where that is not the time divided by their number.
    unit_ns: Option<f64>,
    /// Units of the work.
    units: usize,
    /// What the server's CPU time is divided by.
    cpu_units: usize,
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
        for turn in 0..targets.len() {
            let index = (turn + repetition) % targets.len();
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
        let fail = |trouble| failure(work, target, plan, trouble);
        let mut group = match self.group.take() {
            None if !work.connects_anew() => {
                prepare(work, plan, names, target)?;
                Some(connect(Dial::InTurn, plan, target, |_| ()).map_err(fail)?)
            }
            group => group,
        };
        let rounds: Vec<String> = match work {
            Work::Barrier | Work::Legacy => (0..plan.operations).map(|_| names.next_round()).collect(),
            _ => Vec::new(),
        };
        let cpu_before = target.cpu.now();
        let latencies = &mut self.latencies;
        let done = match (work, &mut group) {
            (Work::Barrier, Some(group)) => meet(&rounds, group, latencies, native_round),
            (Work::Legacy, Some(group)) => meet(&rounds, group, latencies, legacy_round),
            (_, Some(group)) => closed_loop(&batches(work, plan, names), plan, group, latencies),
            (_, None) => {
                let dial = if work == Work::Storm { Dial::AllAtOnce } else { Dial::InTurn };
                connects(dial, plan, target, latencies)
            }
        };
        let done = done.map_err(fail)?;
        let cpu = target.cpu.now().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
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
            let legacy = |key: &String| [arrivals(key), release(key)];
            match work {
                Work::Legacy => remove(target, rounds.iter().flat_map(legacy))?,
                _ => remove(target, rounds.into_iter())?,
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

fn connect(
    dial: Dial,
    plan: &Plan,
    target: &Target,
    greeted: impl FnMut(Duration),
) -> Result<Group, Trouble> {
    Group::dial(target.address, plan.connections, dial, plan.timeout, greeted)
}

fn connects(dial: Dial, plan: &Plan, target: &Target, latencies: &mut Histogram) -> Result<Done, Trouble> {
    let clock = Clock::new();
    let began = clock.now();
    let group = connect(dial, plan, target, |span| latencies.record(span))?;
    let time = clock.now().since(began);
    Ok(Done { time, unit_ns: None, units: group.len(), cpu_units: group.len() })
}

/// Rounds of a barrier. Its key serves once, so each round has its own.
fn meet(
    rounds: &[String],
    group: &mut Group,
    latencies: &mut Histogram,
    mut round: impl FnMut(&str, &mut Group) -> Result<Duration, Trouble>,
) -> Result<Done, Trouble> {
    let mut spans = Vec::with_capacity(rounds.len());
    for key in rounds {
        let span = round(key, group)?;
        latencies.record(span);
        spans.push(span);
    }
    let unit_ns = median(spans.iter().map(|span| span.as_secs_f64() * 1e9));
    let (time, cpu_units) = (spans.iter().sum(), rounds.len() * group.len());
    Ok(Done { time, unit_ns, units: rounds.len(), cpu_units })
}

fn native_round(key: &str, group: &mut Group) -> Result<Duration, Trouble> {
    let barrier = Rc::new(Frames::barrier(key, group.len()));
    let clock = Clock::new();
    let began = clock.now();
    for line in 0..group.len() {
        group.ask(line, Rc::clone(&barrier), 1)?;
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

fn legacy_round(key: &str, group: &mut Group) -> Result<Duration, Trouble> {
    let add = Rc::new(Frames::add(&arrivals(key)));
    let wait = Rc::new(Frames::wait(&release(key)));
    let last = Rc::new(Frames::set_and_wait(&release(key)));
    let (members, mut arrived) = (group.len(), 0);
    let mut has_arrived = vec![false; members];
    let clock = Clock::new();
    let began = clock.now();
    for line in 0..members {
        group.ask(line, Rc::clone(&add), 1)?;
    }
    group.run(|answered| {
        if std::mem::replace(&mut has_arrived[answered.line], true) {
            return None;
        }
        arrived += 1;
        Some((Rc::clone(if arrived == members { &last } else { &wait }), 1))
    })?;
    Ok(clock.now().since(began))
}

/// Batches of `depth` requests. Where several kinds take turns, there is a batch that begins with each of them.
fn batches(work: Work, plan: &Plan, names: &Names) -> Vec<Rc<Frames>> {
    let kinds = match work {
        Work::Mixed => vec![Work::Set, Work::Add, Work::Get, Work::Check],
        kind => vec![kind],
    };
    let (value_name, count_name, value) = (names.value(), names.count(), value(plan));
    let batch = |first: usize| {
        let mut frames = Frames::default();
        for kind in kinds.iter().cycle().skip(first).take(plan.depth) {
            match kind {
                Work::Set => frames.push_set(&value_name, &value),
                Work::Get => frames.push_get(&value_name, &value),
                Work::Add => frames.push_add(&count_name),
                _ => frames.push_check(&value_name),
            }
        }
        Rc::new(frames)
    };
    (0..kinds.len()).map(batch).collect()
}

/// Every connection sends a batch, and the next one when all of it is answered.
fn closed_loop(
    batches: &[Rc<Frames>],
    plan: &Plan,
    group: &mut Group,
    latencies: &mut Histogram,
) -> Result<Done, Trouble> {
    let mut done: Vec<usize> = vec![0; group.len()];
    let mut next = |line: usize| -> Next {
        let begin = done[line];
        let operations = plan.depth.min(plan.operations - begin);
        done[line] += operations;
        (operations > 0).then(|| (Rc::clone(&batches[(line + begin) % batches.len()]), operations))
    };
    let clock = Clock::new();
    let began = clock.now();
    for line in 0..group.len() {
        if let Some((frames, operations)) = next(line) {
            group.ask(line, frames, operations)?;
        }
    }
    group.run(|answered| {
        latencies.record(answered.span);
        next(answered.line)
    })?;
    let operations = plan.operations * group.len();
    Ok(Done { time: clock.now().since(began), unit_ns: None, units: operations, cpu_units: operations })
}

fn failure(work: Work, target: &Target, plan: &Plan, trouble: Trouble) -> Failure {
    let (kind, what) = match trouble {
        Trouble::Silent { waiting } => {
            let (timeout_ms, connections) = (plan.timeout.as_millis(), plan.connections);
            let what = format!(
                "no answer came within {timeout_ms} ms, {waiting} of {connections} connections are waiting"
            );
            (ErrorKind::TimedOut, what)
        }
        Trouble::Closed => (ErrorKind::ServerGone, "the server closed a connection".into()),
        Trouble::Garbage => (ErrorKind::WrongProtocol, "the server sent what is no answer".into()),
        Trouble::Connect(error) => {
            let kind = match error.kind() {
                io::ErrorKind::ConnectionRefused => ErrorKind::Refused,
                io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => ErrorKind::Unreachable,
                io::ErrorKind::ConnectionReset => ErrorKind::ServerGone,
                io::ErrorKind::TimedOut => ErrorKind::TimedOut,
                _ => ErrorKind::Io,
            };
            (kind, format!("cannot connect: {error}"))
        }
        Trouble::Lost(error) => (ErrorKind::ServerGone, format!("a connection was lost: {error}")),
    };
    Failure::new(kind, format!("{} on {} at {}: {what}", work.name(), target.name, target.address))
}
