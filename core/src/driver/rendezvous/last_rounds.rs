//! The last round of each run in which the nodes of this program took part.

use crate::driver::prelude::*;
use crate::rendezvous::rdzv_settings::RdzvSettings;
use crate::sorted::SortedMap;
use alloc::string::String;

/// Largest number of runs that are remembered.
const RUNS_MAX: usize = 1_024;

/// The last round of each run at each server. The server numbers the rounds; a restarted server does not know the
/// rounds before, so each join names the lowest number that the next round may have. Beyond 1,024 runs the least
/// recently used one is forgotten.
#[derive(Debug, Default)]
pub struct LastRounds(Mutex<Rounds>);

#[derive(Debug, Default)]
struct Rounds {
    runs: SortedMap<(String, u16, String), LastRound>,
    /// Number of uses so far, as a clock.
    uses: u64,
}

#[derive(Debug)]
struct LastRound {
    round: u64,
    last_use: u64,
}

impl LastRounds {
    /// Returns the lowest number that the next round may have; 0 when no round is known.
    pub fn next(&self, settings: &RdzvSettings) -> u64 {
        let Rounds { runs, uses } = &mut *self.0.locked();
        runs.get_mut(&key(settings)).map_or(0, |last| {
            *uses += 1;
            last.last_use = *uses;
            last.round + 1
        })
    }

    /// Records that a node is in this round.
    pub fn entered(&self, settings: &RdzvSettings, round: u64) {
        let Rounds { runs, uses } = &mut *self.0.locked();
        *uses += 1;
        let last = runs.entry(key(settings), || LastRound { round, last_use: 0 });
        *last = LastRound { round: round.max(last.round), last_use: *uses };
        if runs.len() > RUNS_MAX {
            let oldest = runs.iter().min_by_key(|(_, last)| last.last_use).map(|(run, _)| run.clone());
            oldest.map(|run| runs.remove(&run));
        }
    }
}

fn key(settings: &RdzvSettings) -> (String, u16, String) {
    (settings.host.clone(), settings.port, settings.run_id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::parameters::RendezvousParameters;
    use alloc::format;

    #[test]
    fn the_run_that_was_not_used_for_longest_is_forgotten() {
        let of = |run: usize| {
            let parameters = RendezvousParameters::new("rdzv", "host:1", &format!("run{run}"), 1, 1);
            RdzvSettings::read(&parameters.expect("valid")).expect("valid")
        };
        let rounds = LastRounds::default();
        (0..RUNS_MAX).for_each(|run| rounds.entered(&of(run), 6));
        rounds.entered(&of(1), 4);
        assert_eq!((rounds.next(&of(0)), rounds.next(&of(1)), rounds.next(&of(RUNS_MAX))), (7, 7, 0));
        (RUNS_MAX..RUNS_MAX + 100).for_each(|run| rounds.entered(&of(run), 1));
        assert_eq!(rounds.0.locked().runs.len(), RUNS_MAX);
        assert_eq!([0, 1, 2, 101, 102, RUNS_MAX].map(|run| rounds.next(&of(run))), [7, 7, 0, 0, 7, 2]);
    }
}
