//! Worker count, as PyTorch's clients keep it: each worker adds itself to one key when it connects, and a client
//! that waits for all workers reads the count. The protocol has no notification of a larger number, so the client
//! polls.

use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::op::{Key, Request};
use crate::time::{Duration, Instant};

/// Key of the worker count, outside every scope.
pub const WORKERS_KEY: Key<'static> = Key::raw(b"init/");
/// Polling interval of the count.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Adds a worker to the count; the answer is the new count.
pub const CHECK_IN: Request<'static> = Request::Add { key: WORKERS_KEY, delta: 1 };

/// Removes a worker from the count; the answer is the new count.
pub const CHECK_OUT: Request<'static> = Request::Add { key: WORKERS_KEY, delta: -1 };

/// Next action of a [`WorkersWait`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WorkersStep {
    /// Make this call, and report its outcome to [`WorkersWait::looked`].
    Look(Call<'static>),
    /// Wait until this instant, and call [`WorkersWait::next_step`] again.
    PauseUntil(Instant),
    /// All have checked in.
    Complete,
    /// The deadline passed before enough workers had checked in.
    TooFew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitState {
    Looking,
    Pausing(Instant),
    Complete,
    TooFew,
}

/// Wait for a number of workers.
#[derive(Clone, Copy, Debug)]
pub struct WorkersWait {
    world_size: i64,
    wait_mode: WaitMode,
    deadline: Instant,
    state: WaitState,
}

impl WorkersWait {
    /// Creates a wait until `world_size` workers have checked in. With [`WaitMode::Once`], it reads the count once.
    pub const fn new(world_size: i64, wait_mode: WaitMode, deadline: Instant) -> Self {
        Self { world_size, wait_mode, deadline, state: WaitState::Looking }
    }

    /// Returns the next action.
    #[must_use]
    pub fn next_step(&mut self, now: Instant) -> WorkersStep {
        if let WaitState::Pausing(until) = self.state
            && until <= now
        {
            // A read without remaining time would only end in a timeout of its own.
            self.state = if now < self.deadline { WaitState::Looking } else { WaitState::TooFew };
        }
        match self.state {
            // `Once`: a waiting get would return after the first worker.
            WaitState::Looking => {
                WorkersStep::Look(Call::Store(Request::Get { key: WORKERS_KEY }, WaitMode::Once))
            }
            WaitState::Pausing(until) => WorkersStep::PauseUntil(until),
            WaitState::Complete => WorkersStep::Complete,
            WaitState::TooFew => WorkersStep::TooFew,
        }
    }

    /// Handles the outcome of the call; `text` is the value, if there was one.
    pub fn looked(&mut self, now: Instant, outcome: Outcome, text: &[u8]) {
        let count = if outcome == Outcome::Value { decimal(text) } else { None };
        self.state = if count.is_some_and(|count| count >= self.world_size) {
            WaitState::Complete
        } else if self.wait_mode == WaitMode::Once || now >= self.deadline {
            WaitState::TooFew
        } else {
            WaitState::Pausing((now + LOOK_INTERVAL).min(self.deadline))
        };
    }
}

/// Parses a number that a store keeps as text.
fn decimal(text: &[u8]) -> Option<i64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Instant = Instant::from_millis;

    fn is_look(step: WorkersStep) -> bool {
        step == WorkersStep::Look(Call::Store(Request::Get { key: WORKERS_KEY }, WaitMode::Once))
    }

    #[test]
    fn it_looks_until_all_are_there() {
        let mut wait = WorkersWait::new(2, WaitMode::Wait, MS(1000));
        assert!(is_look(wait.next_step(MS(0))));
        wait.looked(MS(1), Outcome::Missing, b"");
        assert_eq!(wait.next_step(MS(5)), WorkersStep::PauseUntil(MS(11)));
        assert!(is_look(wait.next_step(MS(11))));
        wait.looked(MS(12), Outcome::Value, b"1");
        assert_eq!(wait.next_step(MS(12)), WorkersStep::PauseUntil(MS(22)));
        assert!(is_look(wait.next_step(MS(30))));
        wait.looked(MS(31), Outcome::Value, b"2");
        assert_eq!(wait.next_step(MS(2000)), WorkersStep::Complete);
    }

    #[test]
    fn it_ends_at_its_deadline_without_a_look_that_has_no_time() {
        let mut wait = WorkersWait::new(2, WaitMode::Wait, MS(15));
        wait.looked(MS(10), Outcome::Value, b"1");
        assert_eq!(wait.next_step(MS(10)), WorkersStep::PauseUntil(MS(15)));
        assert_eq!(wait.next_step(MS(15)), WorkersStep::TooFew);
        let mut late = WorkersWait::new(2, WaitMode::Wait, MS(15));
        late.looked(MS(16), Outcome::Value, b"1");
        assert_eq!(late.next_step(MS(16)), WorkersStep::TooFew);
    }

    #[test]
    fn one_look_is_one_look_whatever_it_finds() {
        for (outcome, text, expected) in [
            (Outcome::Missing, &b""[..], WorkersStep::TooFew),
            (Outcome::Value, b"1", WorkersStep::TooFew),
            (Outcome::Value, b"many", WorkersStep::TooFew),
            (Outcome::Value, b"\xff", WorkersStep::TooFew),
            (Outcome::Value, b"2", WorkersStep::Complete),
            (Outcome::Value, b"3", WorkersStep::Complete),
        ] {
            let mut wait = WorkersWait::new(2, WaitMode::Once, MS(1000));
            wait.looked(MS(1), outcome, text);
            assert_eq!(wait.next_step(MS(1)), expected, "{text:?}");
        }
    }
}
