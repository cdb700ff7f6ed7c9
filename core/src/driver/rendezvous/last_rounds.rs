//! The last round of each run that the nodes of a program were in.

use crate::rendezvous::rdzv_settings::RdzvSettings;
use alloc::collections::BTreeMap;
use alloc::string::String;
use std::sync::{Mutex, PoisonError};

/// The last round of each run at each server. The server numbers the rounds; one that was restarted does not know of
/// those before, so nodes tell it with each join which number may come next.
#[derive(Debug, Default)]
pub struct LastRounds(Mutex<BTreeMap<(String, u16, String), u64>>);

impl LastRounds {
    /// The lowest number that the next round may have; 0 when no round is known.
    #[must_use]
    pub fn next(&self, settings: &RdzvSettings) -> u64 {
        let rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.get(&key(settings)).map_or(0, |round| round + 1)
    }

    /// A node is in this round.
    pub fn entered(&self, settings: &RdzvSettings, round: u64) {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = rounds.entry(key(settings)).or_default();
        *last = round.max(*last);
    }
}

fn key(settings: &RdzvSettings) -> (String, u16, String) {
    (settings.host.clone(), settings.port, settings.run_id.clone())
}
