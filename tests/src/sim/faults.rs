//! What goes wrong: in the world, which is allowed, and in the library, which is not and must be noticed.

use super::sim_operation::SimOperation;
use super::sim_rng::SimRng;
use crate::frames;
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::{Duration, Instant};

/// What the world does to everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Some connection is reset, and part of what was under way may be lost.
    Cut,
    /// One direction of some connection is held back.
    Clog(Duration),
    /// A client is cut off from the server.
    Partition(Duration),
    /// The server's process dies, and is back after this.
    Restart(Duration),
    /// A client that closes its sending half comes by.
    HalfCloser,
}

/// The storm: faults with their times, all over before `end`.
pub(super) fn plan(sim_rng: &mut SimRng, end: Duration) -> Vec<(Instant, Fault)> {
    let roughness = sim_rng.pick(&[0, 1, 3, 10]);
    let mut faults = Vec::new();
    for _ in 0..roughness * 3 {
        let at = sim_rng.span(Duration::ZERO, end);
        let left = end - at;
        let fault = match sim_rng.index(20) {
            0..9 => Fault::Cut,
            9..13 => Fault::Clog(sim_rng.span(Duration::ZERO, left)),
            13..18 => Fault::Partition(sim_rng.span(Duration::ZERO, left)),
            _ => Fault::Restart(sim_rng.span(Duration::ZERO, left.min(Duration::from_secs(1)))),
        };
        faults.push((Instant::ORIGIN + at, fault));
    }
    for _ in 0..sim_rng.index(4) {
        faults.push((Instant::ORIGIN + sim_rng.span(Duration::ZERO, end), Fault::HalfCloser));
    }
    faults
}

/// One thing that is wrong with the library, or with the machine that drives it, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing.
    None,
    /// Now and then the server leaves out a byte.
    DroppedByte,
    /// Now and then the server sends a byte twice.
    DoubledByte,
    /// Now and then the server sends a wrong bit.
    FlippedBit,
    /// The server carries out some ADDs twice.
    DoubledAdd,
    /// The server loses some values a while after they were set.
    LostSet,
    /// The server brings some values back long after they were set.
    StaleSet,
    /// The server counts some arrivals at a barrier twice.
    DoubledArrival,
    /// The server loses some queued items.
    LostItem,
    /// A wait outlives its client.
    LeakedWait,
    /// A client does not look at its deadlines.
    SleepyClient,
    /// Rounds that are over have no fence.
    SkippedFence,
    /// The server forgets who waits when a session gets another connection.
    ForgottenWaiter,
    /// Some are told of a round that is not the live one.
    TwoRounds,
    /// A rank is given twice.
    DoubledRank,
    /// The server carries out what it had carried out before a connection ended.
    RepeatedRequest,
    /// Some survivors are not told who died.
    UntoldSurvivor,
    /// A closed run takes nodes in.
    ReopenedRun,
    /// A watch leaves a change out when its session gets another connection.
    LostChange,
    /// A barrier opens for one less than it is for.
    EarlyBarrier,
    /// The server does not notice that a connection ended.
    UndyingSession,
    /// A node does not look at its deadlines.
    SleepyNode,
}

impl Sabotage {
    /// What is wrong with nodes, or with the server towards them.
    pub const ELASTIC: [Self; 11] = [
        Self::SkippedFence,
        Self::ForgottenWaiter,
        Self::TwoRounds,
        Self::DoubledRank,
        Self::RepeatedRequest,
        Self::UntoldSurvivor,
        Self::ReopenedRun,
        Self::LostChange,
        Self::EarlyBarrier,
        Self::UndyingSession,
        Self::SleepyNode,
    ];

    /// What is wrong with the store.
    pub const STORE: [Self; 10] = [
        Self::DroppedByte,
        Self::DoubledByte,
        Self::FlippedBit,
        Self::DoubledAdd,
        Self::LostSet,
        Self::StaleSet,
        Self::DoubledArrival,
        Self::LostItem,
        Self::LeakedWait,
        Self::SleepyClient,
    ];

    /// What the saboteur asks of the store when a client does this, and how much later.
    pub(super) fn aside(
        self,
        sim_operation: &SimOperation,
        sim_rng: &mut SimRng,
    ) -> Option<(Duration, Vec<u8>)> {
        let soon = Duration::from_millis(sim_rng.between(0, 200));
        if !sim_rng.percent(30) {
            return None;
        }
        Some(match (self, sim_operation) {
            (Self::DoubledAdd, SimOperation::Add { name, delta }) if *delta != 0 => {
                (soon, frames::add(&on_wire(name), *delta))
            }
            (Self::LostSet, SimOperation::Set { name, .. }) => {
                (soon, frames::request(Request::Delete { key: key(name) }))
            }
            (Self::StaleSet, SimOperation::Set { name, value }) => {
                (soon * 10, frames::set(&on_wire(name), value))
            }
            (Self::DoubledArrival, SimOperation::Barrier { name, world_size, .. }) => {
                (soon, frames::request(Request::Barrier { key: key(name), world_size: *world_size }))
            }
            (Self::LostItem, SimOperation::Push { name, .. }) => {
                (soon, frames::request(Request::QueuePop { key: key(name) }))
            }
            (Self::LeakedWait, SimOperation::Wait { .. }) => (soon, frames::wait(b"/never")),
            _ => return None,
        })
    }
}

fn on_wire(name: &str) -> Vec<u8> {
    format!("/{name}").into_bytes()
}

fn key(name: &str) -> Key<'_> {
    Key::scoped(b"/", name.as_bytes())
}
