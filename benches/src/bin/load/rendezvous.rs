//! Loads on the rendezvous: nodes that meet, one that dies, and those left who meet again.

use super::frames::{NodeTerms, leave};
use super::group::{Awaited, Door, Group, LoadError, Task};
use super::histogram::Histogram;
use super::sample::Done;
use super::work::Work;
use rendezvous_core::driver::clock::Clock;
use std::rc::Rc;

/// A run of its own for each repetition.
struct Run {
    id: Rc<str>,
    terms: NodeTerms,
}

/// Ids of the requests that a node makes, one after another; the first Join is 1.
const JOIN_AGAIN: u64 = 2;
const LEAVE: u64 = 3;

/// One repetition, with the last connection as the one that dies.
pub(super) fn repetition(
    work: Work,
    door: &Door,
    connections: usize,
    run_id: &str,
    latencies: &mut Histogram,
) -> Result<Done, LoadError> {
    let run = Run::new(work, run_id, connections);
    let openings = run.openings();
    if work == Work::Join {
        let clock = Clock::new();
        let began = clock.now();
        let group = Group::dial(door, openings, |span| latencies.record(span))?;
        let time = clock.now().since(began);
        return Ok(Done { time, unit_ns: None, units: group.len(), cpu_units: group.len() });
    }
    let mut group = Group::dial(door, openings, |_| ())?;
    let survivors = connections - 1;
    let deaths = vec![run.death(survivors); survivors];
    let mut joins: Vec<Option<Task>> = match work {
        Work::Reform => (0..survivors).map(|line| Some(run.join_again(line, survivors))).collect(),
        _ => vec![None; survivors],
    };
    let clock = Clock::new();
    let began = clock.now();
    group.close_last();
    for (line, death) in deaths.into_iter().enumerate() {
        group.ask(line, death)?;
    }
    group.run(|done| joins[done.line].take())?;
    let time = clock.now().since(began);
    latencies.record(time);
    run.leave(&mut group)?;
    // The server's time was spent on the meeting before, mostly.
    Ok(Done { time, unit_ns: None, units: 1, cpu_units: 0 })
}

impl Run {
    fn new(work: Work, id: &str, connections: usize) -> Self {
        let nodes_max = count(connections);
        let terms = match work {
            // The round ends when the first node leaves, so the server does not announce the later ones.
            Work::Join => NodeTerms { nodes_min: nodes_max, nodes_max, continue_min: 0 },
            _ => NodeTerms { nodes_min: nodes_max - 1, nodes_max, continue_min: 1 },
        };
        Self { id: id.into(), terms }
    }

    fn openings(&self) -> Vec<Task> {
        let nodes = self.terms.nodes_max;
        let opening = |line: u32| Task::Until {
            request: self.terms.opening(&self.id, &node(line as usize)),
            awaited: self.round(nodes),
        };
        (0..nodes).map(opening).collect()
    }

    fn join_again(&self, line: usize, nodes: usize) -> Task {
        let request = self.terms.join(JOIN_AGAIN, &self.id, &node(line));
        Task::Until { request, awaited: self.round(count(nodes)) }
    }

    fn round(&self, nodes: u32) -> Awaited {
        Awaited::Round { run_id: Rc::clone(&self.id), nodes }
    }

    fn death(&self, line: usize) -> Task {
        Task::Until { request: Vec::new(), awaited: Awaited::Death { node: node(line).into() } }
    }

    /// All nodes leave gracefully. The server would announce each closed connection to all other nodes.
    fn leave(&self, group: &mut Group) -> Result<(), LoadError> {
        let task = Task::Until { request: leave(LEAVE, &self.id), awaited: Awaited::Done };
        for line in 0..group.len() {
            group.ask(line, task.clone())?;
        }
        group.run(|_| None)
    }
}

/// Name of a node. All names have the same length, so all nodes receive the same number of bytes.
fn node(line: usize) -> String {
    format!("node{line:07}")
}

fn count(connections: usize) -> u32 {
    u32::try_from(connections).unwrap_or(u32::MAX)
}
