//! Faults: those of the environment, which the library must tolerate, and those of the library, which a run must
//! detect.

use crate::frames;
use crate::sim::harness::sim_operation::SimOperation;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::store::op::{Key, Request};
use rendezvous_core::time::{Duration, Instant};

/// Fault of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A connection is reset, and some bytes in transit may be lost.
    Cut,
    /// One direction of a connection is held back.
    Clog(Duration),
    /// A client is partitioned from the server.
    Partition(Duration),
    /// The server's process dies, and another one starts after this time.
    Restart(Duration),
    /// A client that half-closes its connection joins.
    HalfCloser,
}

/// Returns the faults of the storm with their times. All are over before `end`.
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

/// Fault that is injected into the library, or into the code that drives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// No fault.
    #[default]
    None,
    /// The server sometimes omits a byte.
    DroppedByte,
    /// The server sometimes sends a byte twice.
    DoubledByte,
    /// The server sometimes sends a wrong bit.
    FlippedBit,
    /// The server executes some ADDs twice.
    DoubledAdd,
    /// The server loses some values a while after they were set.
    LostSet,
    /// The server restores some old values long after they were set.
    StaleSet,
    /// The server counts some arrivals at a barrier twice.
    DoubledArrival,
    /// The server loses some queued items.
    LostItem,
    /// A wait outlives its client.
    LeakedWait,
    /// A client does not check its deadlines.
    SleepyClient,
    /// Rounds that have ended have no fence.
    SkippedFence,
    /// The server forgets the waits of a session that gets another connection.
    ForgottenWaiter,
    /// Some nodes get a round that is not the live one.
    TwoRounds,
    /// A rank is assigned twice.
    DoubledRank,
    /// The server repeats requests that it had executed before a connection ended.
    RepeatedRequest,
    /// Some survivors are not notified of a death.
    UntoldSurvivor,
    /// A closed run accepts nodes.
    ReopenedRun,
    /// A watch omits a change when its session gets another connection.
    LostChange,
    /// A barrier opens with one participant missing.
    EarlyBarrier,
    /// The server does not notice that a connection ended.
    UndyingSession,
    /// A node does not check its deadlines.
    SleepyNode,
}

impl Sabotage {
    /// Faults in worlds of nodes.
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

    /// Faults in worlds of stores.
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

    /// Returns the request that the saboteur sends to the store when a client begins this operation, and how much
    /// later.
    pub(super) fn saboteur_requests(
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
