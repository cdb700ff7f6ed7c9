//! Mishaps of nodes and of their server.

use crate::sim::harness::network::Side;
use crate::sim::harness::sim_rng::SimRng;
use rendezvous_core::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Mishap {
    /// A connection is reset, and some bytes in transit may be lost.
    Cut,
    /// One direction of a connection is held back.
    Clog(Duration),
    /// A host is partitioned from the server, in both directions or in one.
    Partition(Duration, Option<Side>),
    /// A host's latency increases.
    Slow { by: Duration, for_: Duration },
    /// A node does nothing for a while.
    Freeze(Duration),
    /// A node's process dies, and its host starts another one after this time.
    Crash(Duration, NextName),
    /// The server's kernel considers a host dead.
    GiveUp,
    /// The server's process dies, and another one starts after this time.
    Restart(Duration),
}

/// Name of the next process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum NextName {
    Same,
    New,
    /// The name of a neighbour, by mistake.
    Neighbours,
}

/// Returns the mishaps of the storm with their times. All are over before `end`.
pub(super) fn plan(sim_rng: &mut SimRng, end: Duration) -> Vec<(Instant, Mishap)> {
    let count = sim_rng.pick(&[0, 4, 8, 14, 22]);
    let mishap = |sim_rng: &mut SimRng| {
        let at = Duration::from_nanos(sim_rng.between(0, u64::try_from(end.as_nanos()).unwrap_or(0)));
        let left = end - at;
        let mut span = |most| sim_rng.span(Duration::ZERO, left.min(most));
        let (brief, long) = (span(Duration::from_secs(1)), span(Duration::from_secs(3)));
        let mishap = match sim_rng.index(24) {
            0..7 => Mishap::Cut,
            7..9 => Mishap::Clog(long),
            9..12 => Mishap::Partition(long, sim_rng.pick(&[None, Some(Side::Client), Some(Side::Server)])),
            12..14 => {
                let by = sim_rng.span(Duration::from_millis(10), Duration::from_millis(600));
                Mishap::Slow { by, for_: long }
            }
            14..16 => Mishap::Freeze(long),
            16..21 => {
                let name =
                    sim_rng.pick(&[NextName::Same, NextName::Same, NextName::New, NextName::Neighbours]);
                Mishap::Crash(brief, name)
            }
            21 => Mishap::GiveUp,
            _ => Mishap::Restart(brief),
        };
        (Instant::ORIGIN + at, mishap)
    };
    let mut mishaps: Vec<_> = (0..count).map(|_| mishap(sim_rng)).collect();
    if sim_rng.percent(25) {
        // Short-lived connections, so that many requests are in transit when they break.
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(0);
        let cuts = sim_rng.between(10, 30);
        mishaps.extend((0..cuts).map(|_| (Instant::from_nanos(sim_rng.between(0, nanos)), Mishap::Cut)));
    }
    mishaps
}
