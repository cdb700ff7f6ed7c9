//! What the world does to nodes and to their server.

use super::super::network::Side;
use super::super::sim_rng::SimRng;
use rendezvous_core::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Mishap {
    /// Some connection is reset, and part of what was under way may be lost.
    Cut,
    /// One direction of some connection is held back.
    Clog(Duration),
    /// A host is cut off from the server, or hears nothing, or is not heard.
    Partition(Duration, Option<Side>),
    /// A host's way becomes longer.
    Slow { by: Duration, for_: Duration },
    /// A node does nothing for a while.
    Freeze(Duration),
    /// A node's process dies, and its host has another one after this.
    Crash(Duration, Rebirth),
    /// The server's kernel gives some host up.
    GiveUp,
    /// The server's process dies, and is back after this.
    Restart(Duration),
}

/// Under which name a node comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Rebirth {
    Same,
    New,
    /// That of a neighbour, by mistake.
    Neighbours,
}

/// The storm: mishaps with their times, all over before `end`.
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
                let name = sim_rng.pick(&[Rebirth::Same, Rebirth::Same, Rebirth::New, Rebirth::Neighbours]);
                Mishap::Crash(brief, name)
            }
            21 => Mishap::GiveUp,
            _ => Mishap::Restart(brief),
        };
        (Instant::ORIGIN + at, mishap)
    };
    let mut mishaps: Vec<_> = (0..count).map(|_| mishap(sim_rng)).collect();
    if sim_rng.percent(25) {
        // Connections that never last, so that much is under way when they break.
        let nanos = u64::try_from(end.as_nanos()).unwrap_or(0);
        let cuts = sim_rng.between(10, 30);
        mishaps.extend((0..cuts).map(|_| (Instant::from_nanos(sim_rng.between(0, nanos)), Mishap::Cut)));
    }
    mishaps
}
