//! The two ways in which a worker ends.

/// How a worker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Its calls come to their ends first. Then, in a static group, all agree that they have done; in a dynamic one the
    /// others hear that it leaves.
    Graceful,
    /// At once and without a word; the others take it for dead.
    Abrupt,
}
