//! The workers that run.

use alloc::collections::BTreeMap;

/// The workers of one start.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Those that are known to run, by process: their local ranks.
    pub(super) ranks: BTreeMap<u32, u32>,
    /// How many were asked for, and have not been heard of since.
    pub(super) awaited: u32,
}
