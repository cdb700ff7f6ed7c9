//! Modes of ending a worker.

/// How a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Its calls finish first. Then, in a static group, all workers agree that they have finished; in a dynamic one the
    /// others are notified that it leaves.
    Graceful,
    /// At once, without notifying the others, which consider it dead.
    Abrupt,
}
