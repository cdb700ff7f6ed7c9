//! Time, limits, names and randomness.

use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::rng::Rng;
use rendezvous_core::time::{Duration, Instant};

pub(crate) fn sings() -> bool {
    let timeout = ServerLimits::default().frame_timeout;
    let jitter = Duration::from_nanos(Rng::new(1).below(1000));
    let conn = ConnId { index: 1, generation: 0 };
    Instant::ORIGIN + timeout + jitter > Instant::ORIGIN && conn.index == 1
}
