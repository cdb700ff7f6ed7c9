//! The running workers of a start.

use rendezvous_core::sorted::SortedMap;

/// The running workers of one start.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Local ranks of the workers that are known to run, by process ID.
    pub(super) ranks: SortedMap<u32, u32>,
    /// Number of requested starts whose result has not arrived.
    pub(super) awaited: u32,
}
