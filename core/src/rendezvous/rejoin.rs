//! Retries of a join across sessions: whether a failed join is retried, after which pause, and when it is given up.
//!
//! The owner reports to [`Rejoin::handle`] how a join ended and that time has passed; [`Rejoin::decide`] returns the
//! next action and its reason. The state machine knows no session: for each [`Action::Ask`] the owner opens one if
//! there is none.

use crate::error::ErrorKind;
use crate::time::{Duration, Instant};

/// Stage of the retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The node asks to join, in a new session if it has none.
    Asking,
    /// Its session was lost; it pauses before it asks again.
    Resting,
    /// It has stopped asking.
    Over,
}

/// Event that changes the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageEvent {
    /// The session was lost during the join, and there is time for another one.
    Lost,
    /// The session was lost during the join, and there is no time for another one.
    LostTooLate,
    /// The server refused the join, or it failed in a way that another session would not change.
    Refused,
    /// The caller cancelled the join.
    Cancelled,
    /// The pause is over.
    Rested,
}

impl Stage {
    /// Returns the next stage; `None` when the event is impossible or out of date in this stage.
    #[must_use]
    pub const fn on(self, event: StageEvent) -> Option<Self> {
        use StageEvent as E;
        Some(match (self, event) {
            (Self::Asking, E::Lost) => Self::Resting,
            (Self::Asking, E::LostTooLate | E::Refused | E::Cancelled) | (Self::Resting, E::Cancelled) => {
                Self::Over
            }
            (Self::Resting, E::Rested) => Self::Asking,
            _ => return None,
        })
    }
}

/// Whether the join timeout ran during a failed join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The node was waiting for a slot or had one all the time.
    Counted,
    /// The node was a spare for a while; the timeout does not run then.
    Standby,
}

/// Input of [`Rejoin::handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The join failed.
    Failed(ErrorKind, Waited),
    /// The caller cancelled the join.
    Cancelled,
    /// Time passed.
    Tick,
}

/// What the owner does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Join within the time of [`Rejoin::left`], in a new session if there is none.
    Ask,
    /// Call [`Rejoin::handle`] with [`Input::Tick`] at this time.
    Rest(Instant),
    /// Return the error to the caller.
    GiveUp,
}

/// Why [`Rejoin`] decided on an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The join has not been tried yet.
    Begun,
    /// The session was lost: the server ended, or took the node for dead. A new session may still find a round in
    /// time.
    SessionLost,
    /// The session was lost when there was no time for another one.
    NoTimeLeft,
    /// The failure is one that another session would not change.
    Refused,
    /// The caller cancelled the join.
    Cancelled,
}

/// Pause between a lost session and the next one.
pub const PAUSE: Duration = Duration::from_millis(50);

/// One join, with its retries, until it has a round or is given up.
#[derive(Clone, Copy, Debug)]
pub struct Rejoin {
    stage: Stage,
    reason: Reason,
    join_timeout: Duration,
    began: Instant,
    rests_until: Instant,
}

impl Rejoin {
    /// Creates a join that may take `join_timeout`.
    pub const fn new(now: Instant, join_timeout: Duration) -> Self {
        Self { stage: Stage::Asking, reason: Reason::Begun, join_timeout, began: now, rests_until: now }
    }

    /// Handles an input.
    pub fn handle(&mut self, now: Instant, input: Input) {
        let (event, reason) = match input {
            Input::Failed(ErrorKind::ServerGone | ErrorKind::SessionEnded, waited) => {
                if waited == Waited::Standby {
                    // The timeout did not run, so the node has its whole time again.
                    self.began = now;
                }
                if self.left(now) > PAUSE {
                    (StageEvent::Lost, Reason::SessionLost)
                } else {
                    (StageEvent::LostTooLate, Reason::NoTimeLeft)
                }
            }
            Input::Failed(..) => (StageEvent::Refused, Reason::Refused),
            Input::Cancelled => (StageEvent::Cancelled, Reason::Cancelled),
            Input::Tick if self.stage == Stage::Resting && self.rests_until <= now => {
                (StageEvent::Rested, self.reason)
            }
            Input::Tick => return,
        };
        if let Some(next) = self.stage.on(event) {
            (self.stage, self.reason) = (next, reason);
            self.rests_until = now + PAUSE;
        }
    }

    /// Returns the next action and its reason.
    pub const fn decide(&self) -> (Action, Reason) {
        let action = match self.stage {
            Stage::Asking => Action::Ask,
            Stage::Resting => Action::Rest(self.rests_until),
            Stage::Over => Action::GiveUp,
        };
        (action, self.reason)
    }

    /// Returns the time that the join may still take.
    pub fn left(&self, now: Instant) -> Duration {
        (self.began + self.join_timeout).since(now)
    }

    /// Returns the time that the join has taken, as far as the timeout ran.
    pub fn taken(&self, now: Instant) -> Duration {
        now.since(self.began)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::fmt::Write;
    use std::string::String;
    use std::vec::Vec;

    use StageEvent as E;

    const STAGES: [Stage; 3] = [Stage::Asking, Stage::Resting, Stage::Over];
    const EVENTS: [E; 5] = [E::Lost, E::LostTooLate, E::Refused, E::Cancelled, E::Rested];
    const AT: fn(u64) -> Instant = Instant::from_millis;
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_table_of_stages_and_events_is_as_written_down() {
        let mut table = String::new();
        for stage in STAGES {
            for event in EVENTS {
                let next = stage.on(event).map_or("-".into(), |next| std::format!("{next:?}"));
                writeln!(table, "{stage:?} {event:?} -> {next}").expect("a string");
            }
        }
        assert_eq!(table, include_str!("rejoin/transitions.snapshot"), "\n{table}");
    }

    #[test]
    fn the_graph_in_the_guide_is_that_of_the_table() {
        let mut graph = String::from("```mermaid\nstateDiagram-v2\n");
        for from in STAGES {
            for to in STAGES {
                let between = EVENTS.iter().filter(|&&event| from.on(event) == Some(to));
                let names: Vec<String> = between.map(|event| std::format!("{event:?}")).collect();
                if !names.is_empty() {
                    writeln!(graph, "    {from:?} --> {to:?}: {}", names.join(", ")).expect("a string");
                }
            }
        }
        graph += "```\n";
        let guide = include_str!("../../../docs/handlers.md");
        assert!(guide.contains(&graph), "docs/handlers.md does not hold this graph:\n{graph}");
    }

    #[test]
    fn a_lost_session_is_followed_by_another_as_long_as_there_is_time() {
        for kind in [ErrorKind::ServerGone, ErrorKind::SessionEnded] {
            let mut rejoin = Rejoin::new(AT(0), SECOND);
            assert_eq!(rejoin.decide(), (Action::Ask, Reason::Begun));
            rejoin.handle(AT(700), Input::Failed(kind, Waited::Counted));
            assert_eq!(rejoin.decide(), (Action::Rest(AT(750)), Reason::SessionLost));
            rejoin.handle(AT(749), Input::Tick);
            assert_eq!(rejoin.decide(), (Action::Rest(AT(750)), Reason::SessionLost));
            rejoin.handle(AT(750), Input::Tick);
            assert_eq!(rejoin.decide(), (Action::Ask, Reason::SessionLost));
            assert_eq!(rejoin.left(AT(750)), Duration::from_millis(250), "it is one join, with one timeout");
            rejoin.handle(AT(950), Input::Failed(kind, Waited::Counted));
            assert_eq!(rejoin.decide(), (Action::GiveUp, Reason::NoTimeLeft));
            assert_eq!(rejoin.taken(AT(950)), Duration::from_millis(950));
        }
    }

    #[test]
    fn failures_that_another_session_would_not_change_are_final() {
        for kind in [ErrorKind::TimedOut, ErrorKind::Conflict, ErrorKind::Refused, ErrorKind::WrongProtocol] {
            let mut rejoin = Rejoin::new(AT(0), SECOND);
            rejoin.handle(AT(1), Input::Failed(kind, Waited::Counted));
            assert_eq!(rejoin.decide(), (Action::GiveUp, Reason::Refused), "{kind:?}");
        }
    }

    #[test]
    fn a_spare_has_the_whole_timeout_again() {
        let mut rejoin = Rejoin::new(AT(0), SECOND);
        rejoin.handle(AT(60_000), Input::Failed(ErrorKind::ServerGone, Waited::Standby));
        assert_eq!(rejoin.decide(), (Action::Rest(AT(60_050)), Reason::SessionLost));
        rejoin.handle(AT(60_050), Input::Tick);
        assert_eq!(rejoin.left(AT(60_050)), Duration::from_millis(950));
        assert_eq!(rejoin.taken(AT(60_050)), Duration::from_millis(50));
    }

    #[test]
    fn a_cancelled_join_neither_asks_nor_rests() {
        let mut asking = Rejoin::new(AT(0), SECOND);
        let mut resting = asking;
        resting.handle(AT(1), Input::Failed(ErrorKind::ServerGone, Waited::Counted));
        for rejoin in [&mut asking, &mut resting] {
            rejoin.handle(AT(2), Input::Cancelled);
            assert_eq!(rejoin.decide(), (Action::GiveUp, Reason::Cancelled));
            rejoin.handle(AT(100), Input::Tick);
            rejoin.handle(AT(100), Input::Failed(ErrorKind::TimedOut, Waited::Counted));
            assert_eq!(rejoin.decide(), (Action::GiveUp, Reason::Cancelled), "the first reason stays");
        }
    }
}
