//! Barrier out of plain keys, for stores without barriers: arrivals are counted under `<key>/num_members`, the last one
//! sets `<key>/last_member`, and all wait for that key. PyTorch's prefix and file stores do the same (c10d protocol,
//! section 4.4), so their participants can share a barrier with these, but not with a native BARRIER.

use crate::error::Effect;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::op::{Key, Keys, Request};

/// Suffix of a barrier's key for the counter of arrivals.
pub const COUNTER_SUFFIX: &[u8] = b"/num_members";
const LAST_SUFFIX: &[u8] = b"/last_member";
const LAST_VALUE: &[u8] = b"1";

/// State of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyBarrierState {
    /// The arrival is not counted yet.
    Arriving,
    /// The arrival was counted as the last one, and the others must be notified.
    Announcing,
    /// The arrival was counted, and the last one has not announced itself.
    Waiting,
    /// All have arrived.
    Released,
    /// A single check found that not all have arrived. The arrival stays counted.
    Missed,
}

/// Outcome that does not belong to the call that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the barrier was {state:?} and got the outcome {outcome:?}")]
pub struct UnexpectedOutcome {
    /// State of the arrival.
    pub state: KeyBarrierState,
    /// Outcome that was reported.
    pub outcome: Outcome,
}

/// Arrival at a barrier. The caller makes the calls of [`KeyBarrier::next_call`] and reports each outcome, until there
/// are none left.
#[derive(Clone, Copy, Debug)]
pub struct KeyBarrier {
    world_size: i64,
    wait_mode: WaitMode,
    state: KeyBarrierState,
}

impl KeyBarrier {
    /// Creates an arrival at a barrier of `world_size`. With [`WaitMode::Once`] it counts, and checks once whether all
    /// have arrived.
    pub const fn new(world_size: i64, wait_mode: WaitMode) -> Self {
        Self { world_size, wait_mode, state: KeyBarrierState::Arriving }
    }

    /// Returns the call that is due, on keys that extend `key` (which has no suffix of its own). `None` means that the
    /// arrival has ended; [`KeyBarrier::state`] returns how.
    pub const fn next_call<'a>(&self, key: Key<'a>) -> Option<Call<'a>> {
        let (last, count) = (key.with_suffix(LAST_SUFFIX), key.with_suffix(COUNTER_SUFFIX));
        let request = match self.state {
            KeyBarrierState::Arriving => Request::Add { key: count, delta: 1 },
            KeyBarrierState::Announcing => Request::Set { key: last, value: LAST_VALUE },
            KeyBarrierState::Waiting => Request::Wait { keys: Keys::one(last) },
            KeyBarrierState::Released | KeyBarrierState::Missed => return None,
        };
        Some(Call::Store(request, self.wait_mode))
    }

    /// Handles the outcome of the call that was due.
    ///
    /// # Errors
    /// The outcome does not belong to that call.
    pub const fn handle(&mut self, outcome: Outcome) -> Result<(), UnexpectedOutcome> {
        use KeyBarrierState::{Announcing, Arriving, Missed, Released, Waiting};
        self.state = match (self.state, outcome) {
            // An arrival beyond the number announces again. The key usually exists already, but if the last member died
            // before it could announce itself, this releases the others.
            (Arriving, Outcome::Number(count)) if count >= self.world_size => Announcing,
            (Arriving, Outcome::Number(_)) => Waiting,
            (Waiting, Outcome::Missing) => Missed,
            (Announcing, Outcome::Applied) | (Waiting, Outcome::Released) => Released,
            (state, outcome) => return Err(UnexpectedOutcome { state, outcome }),
        };
        Ok(())
    }

    /// Returns the effect that remains if the barrier is given up and the call that was due had the effect `of_call`.
    /// An arrival cannot be undone.
    pub const fn effect_when_given_up(&self, of_call: Effect) -> Effect {
        match self.state {
            KeyBarrierState::Arriving => of_call,
            _ => Effect::Kept,
        }
    }

    /// Returns the state of the arrival.
    pub const fn state(&self) -> KeyBarrierState {
        self.state
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use crate::wire::c10d::{Frame, encode_frame};
    use crate::wire::sink::Fill;
    use alloc::string::String;
    use alloc::{format, vec::Vec};

    fn wire_text(call: Call<'_>) -> String {
        let Call::Store(request, _) = call else { panic!("no ping") };
        let mut buffer = [0; 128];
        let mut fill = Fill::new(&mut buffer);
        encode_frame(&mut fill, &Frame::Request(request));
        let bytes = fill.finish().expect("capacity");
        buffer[..bytes].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes of PyTorch's own prefix store, from the golden traces `torch_client_prefix_barrier` and `…_2`.
    #[test]
    fn arrivals_send_what_a_prefix_store_sends() {
        let key = Key::scoped(b"/pre/", b"bb");
        let mut barrier = KeyBarrier::new(1, WaitMode::Wait);
        let mut sent = String::new();
        for outcome in [Outcome::Number(1), Outcome::Applied] {
            sent += &wire_text(barrier.next_call(key).expect("a call is due"));
            barrier.handle(outcome).expect("fits");
        }
        assert_eq!(
            sent,
            "0413000000000000002f7072652f62622f6e756d5f6d656d626572730100000000000000\
             0113000000000000002f7072652f62622f6c6173745f6d656d626572010000000000000031"
        );
        assert_eq!((barrier.state(), barrier.next_call(key)), (KeyBarrierState::Released, None));

        let mut waiting = KeyBarrier::new(2, WaitMode::Wait);
        waiting.handle(Outcome::Number(1)).expect("fits");
        assert_eq!(
            wire_text(waiting.next_call(Key::scoped(b"/pre/", b"bb2")).expect("a call is due")),
            "06010000000000000014000000000000002f7072652f6262322f6c6173745f6d656d626572"
        );
    }

    #[test]
    fn an_arrival_stays_counted() {
        let key = Key::raw(b"/b");
        let mut barrier = KeyBarrier::new(2, WaitMode::Once);
        for effect in [Effect::None, Effect::Possible] {
            assert_eq!(
                barrier.effect_when_given_up(effect),
                effect,
                "the first call says whether it counted"
            );
        }
        barrier.handle(Outcome::Number(1)).expect("fits");
        assert_eq!(barrier.effect_when_given_up(Effect::None), Effect::Kept);
        barrier.handle(Outcome::Missing).expect("fits");
        assert_eq!(
            (barrier.state(), barrier.next_call(key)),
            (KeyBarrierState::Missed, None),
            "one look is one"
        );
        assert_eq!(barrier.effect_when_given_up(Effect::None), Effect::Kept);
    }

    #[test]
    fn every_state_takes_its_own_outcomes_only() {
        let outcomes = [
            Outcome::Applied,
            Outcome::Number(1),
            Outcome::Number(2),
            Outcome::Number(3),
            Outcome::Released,
            Outcome::Missing,
        ];
        let routes: [&[Outcome]; 4] =
            [&[], &[Outcome::Number(2)], &[Outcome::Number(1)], &[Outcome::Number(1), Outcome::Released]];
        let mut table = Vec::new();
        for method in routes {
            for outcome in outcomes {
                let mut barrier = KeyBarrier::new(2, WaitMode::Wait);
                method.iter().for_each(|&step| barrier.handle(step).expect("fits"));
                let before = barrier.state();
                if barrier.handle(outcome).is_ok() {
                    table.push(format!("{before:?} {outcome:?} -> {:?}", barrier.state()));
                }
            }
        }
        assert_eq!(
            table,
            [
                "Arriving Number(1) -> Waiting",
                "Arriving Number(2) -> Announcing",
                "Arriving Number(3) -> Announcing",
                "Announcing Applied -> Released",
                "Waiting Released -> Released",
                "Waiting Missing -> Missed",
            ]
        );
    }
}
