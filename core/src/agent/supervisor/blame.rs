//! Whose end is the root cause of the others'.

use super::{Failed, Stopping};
use alloc::vec::Vec;

/// Where a failure stands among those of its start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suspicion {
    /// Others end in consequence of such a death, and never the other way round.
    Cause,
    /// It may have ended because another one did.
    Unsure,
    /// It crashed on its way out, when it had been told to end.
    Aftermath,
}

fn suspicion(failed: &Failed, stopping: Option<Stopping>) -> Suspicion {
    let was_told = stopping.is_some_and(|stopping| stopping.began < failed.at);
    match failed.exit {
        // Nobody is killed because a peer ended, or because he was told to end; peers may end first, though.
        exit if exit.is_killed() => Suspicion::Cause,
        exit if exit.is_crash() && was_told => Suspicion::Aftermath,
        exit if exit.is_violent() => Suspicion::Cause,
        _ => Suspicion::Unsure,
    }
}

/// Whether this is no consequence of another's end.
pub(super) fn is_cause(failed: &Failed, stopping: Option<Stopping>) -> bool {
    suspicion(failed, stopping) == Suspicion::Cause
}

/// The failures of a start, which are in the order of their first signs: the root cause first, and those that are alike in
/// that order.
pub(super) fn by_suspicion(failures: &[Failed], stopping: Option<Stopping>) -> Vec<Failed> {
    let of = |wanted| failures.iter().filter(move |failed| suspicion(failed, stopping) == wanted).copied();
    [Suspicion::Cause, Suspicion::Unsure, Suspicion::Aftermath].into_iter().flat_map(of).collect()
}
