//! Linearizability of one object (Herlihy and Wing): is there an order of its operations, each at one time between its
//! beginning and its end, in which every answer is correct? The search is that of Wing and Gong, without the states
//! that were visited before, as Lowe describes it.

use std::collections::BTreeSet;

/// Operation on an object, and its answer. A value is a list of pieces, each with a unique number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Action {
    Write(Vec<u32>),
    Append(u32),
    /// `reported` is the answer, if there was one.
    CompareSet {
        expected: Vec<u32>,
        desired: Vec<u32>,
        reported: Option<Vec<u32>>,
    },
    /// Whether there was a value to delete, if that is known.
    Delete(Option<bool>),
    Read(Vec<u32>),
    /// The object has a value.
    Present,
    /// The object has no value.
    Absent,
    Push(u32),
    /// The item at the front, if that is known.
    Pop(Option<Option<u32>>),
    Length(usize),
}

/// One operation. Without an end, it took effect at any time after its beginning, or never.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Operation {
    pub(in crate::sim) action: Action,
    pub(in crate::sim) began: u64,
    pub(in crate::sim) ended: Option<u64>,
}

/// State of a value or a queue: its pieces in order.
type State = Option<Vec<u32>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum SearchResult {
    Linearizable,
    /// There is no such order.
    NotLinearizable,
    /// The search was given up.
    Undecided,
}

/// Steps after which the search is given up.
const STEPS_MAX: usize = 50_000;

/// Searches for an order, beginning with an object without a value. The operations are sorted by their beginnings.
pub(in crate::sim) fn search(operations: &[Operation]) -> SearchResult {
    if operations.len() > u128::BITS as usize {
        return SearchResult::Undecided;
    }
    let answered = operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| operation.ended.is_some())
        .fold(0, |mask, (slot, _)| mask | 1_u128 << slot);
    let mut seen = BTreeSet::new();
    let mut open: Vec<(u128, State)> = vec![(0, None)];
    let mut steps = 0;
    while let Some((mut done, state)) = open.pop() {
        // Operations that only read and fit the present state are executed at once.
        let mut now = possible(operations, done);
        loop {
            let looks = |slot: &usize| follow(&operations[*slot].action, &state).as_ref() == Some(&state);
            let looked = places(now & answered).filter(looks).fold(0, |mask, slot| mask | 1_u128 << slot);
            if looked == 0 {
                break;
            }
            done |= looked;
            now = possible(operations, done);
        }
        if done & answered == answered {
            return SearchResult::Linearizable;
        }
        if !seen.insert((done, state.clone())) {
            continue;
        }
        steps += 1;
        if steps > STEPS_MAX {
            return SearchResult::Undecided;
        }
        // Operations that need not have happened are tried last.
        for wanted in [now & !answered, now & answered] {
            for slot in places(wanted) {
                if let Some(next) = follow(&operations[slot].action, &state)
                    && (answered & (1 << slot) != 0 || next != state)
                {
                    open.push((done | 1 << slot, next));
                }
            }
        }
    }
    SearchResult::NotLinearizable
}

/// Returns the indices of the ones in a mask.
fn places(mut mask: u128) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let slot = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (slot < u128::BITS).then_some(slot as usize)
    })
}

/// Returns the operations that may come next: all that began before any other remaining one had ended.
fn possible(operations: &[Operation], done: u128) -> u128 {
    let mut first_end = u64::MAX;
    let mut possible = 0;
    for (slot, operation) in operations.iter().enumerate() {
        // All later operations began even later, since they are sorted by their beginnings.
        if operation.began > first_end {
            break;
        }
        if done & (1 << slot) == 0 {
            possible |= 1 << slot;
            first_end = first_end.min(operation.ended.unwrap_or(u64::MAX));
        }
    }
    possible
}

/// Returns the state after an operation; `None` if its answer does not fit.
fn follow(action: &Action, state: &State) -> Option<State> {
    let fits = |fits: bool| fits.then(|| state.clone());
    let pieces = state.as_deref().unwrap_or_default();
    match action {
        Action::Write(value) => Some(Some(value.clone())),
        Action::Append(chunk) | Action::Push(chunk) => Some(Some([pieces, &[*chunk]].concat())),
        Action::CompareSet { expected, desired, reported } => {
            let (next, answer) = match state {
                Some(value) if value == expected => (Some(desired.clone()), desired),
                Some(value) => (state.clone(), value),
                None if expected.is_empty() => (Some(desired.clone()), desired),
                // PyTorch answers as if the value had been stored, and so does the library.
                None => (None, expected),
            };
            reported.as_ref().is_none_or(|reported| reported == answer).then_some(next)
        }
        Action::Delete(removed) => removed.is_none_or(|removed| removed == state.is_some()).then_some(None),
        // The protocol cannot express a missing value. A client that gets an empty value sends a second request to find
        // out whether the key exists, and a DELETE may come between the two. Values that are read here are never empty.
        Action::Read(value) => fits(pieces == value),
        Action::Present => fits(state.is_some()),
        Action::Absent => fits(state.is_none()),
        Action::Pop(reported) => {
            let front = pieces.first().copied();
            let rest = pieces.get(1..).filter(|rest| !rest.is_empty()).map(<[u32]>::to_vec);
            reported.is_none_or(|reported| reported == front).then_some(rest)
        }
        Action::Length(length) => fits(pieces.len() == *length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operations: &[(u64, Option<u64>, Action)], due: SearchResult) {
        let operations: Vec<Operation> = operations
            .iter()
            .map(|(began, ended, action)| Operation { action: action.clone(), began: *began, ended: *ended })
            .collect();
        assert_eq!(search(&operations), due, "{operations:?}");
    }

    use SearchResult::{Linearizable, NotLinearizable};

    fn write(chunk: u32) -> Action {
        Action::Write(vec![chunk])
    }

    fn read(chunk: u32) -> Action {
        Action::Read(vec![chunk])
    }

    #[test]
    fn a_read_sees_the_last_write_or_one_that_is_under_way() {
        check(&[(1, Some(2), write(1)), (3, Some(4), read(1))], Linearizable);
        check(&[(1, Some(2), write(1)), (3, Some(4), read(2))], NotLinearizable);
        check(&[(1, Some(2), write(1)), (3, Some(6), write(2)), (4, Some(5), read(1))], Linearizable);
        check(&[(1, Some(2), write(1)), (3, Some(6), write(2)), (4, Some(5), read(2))], Linearizable);
        check(&[(1, Some(2), write(1)), (3, Some(4), write(2)), (5, Some(6), read(1))], NotLinearizable);
    }

    #[test]
    fn two_readers_agree_on_the_order() {
        let writes = [(1, Some(9), write(1)), (2, Some(9), write(2))];
        let reads = |first, second| [(3, Some(4), read(first)), (5, Some(6), read(second))];
        check(&[writes.clone(), reads(1, 2)].concat(), Linearizable);
        let third = [(7, Some(8), read(1))];
        check(&[&writes[..], &reads(1, 2), &third].concat(), NotLinearizable);
    }

    #[test]
    fn what_was_not_answered_may_have_happened_later_or_never() {
        check(&[(1, None, write(1)), (2, Some(3), Action::Absent), (4, Some(5), read(1))], Linearizable);
        check(&[(1, None, write(1)), (2, Some(3), Action::Absent)], Linearizable);
        check(&[(1, None, write(1)), (2, Some(3), read(1)), (4, Some(5), Action::Absent)], NotLinearizable);
    }

    #[test]
    fn compare_set_stores_once() {
        let set = |reported| Action::CompareSet {
            expected: vec![],
            desired: vec![1],
            reported: Some(vec![reported]),
        };
        let other = |reported| Action::CompareSet {
            expected: vec![],
            desired: vec![2],
            reported: Some(vec![reported]),
        };
        check(&[(1, Some(4), set(1)), (2, Some(3), other(1))], Linearizable);
        check(&[(1, Some(4), set(2)), (2, Some(3), other(1))], NotLinearizable);
    }

    #[test]
    fn a_queue_gives_each_item_once_and_in_order() {
        let pushes = [(1, Some(2), Action::Push(1)), (3, Some(4), Action::Push(2))];
        let pops =
            |first, second| [(5, Some(6), Action::Pop(Some(first))), (7, Some(8), Action::Pop(Some(second)))];
        check(&[pushes.clone(), pops(Some(1), Some(2))].concat(), Linearizable);
        check(&[pushes.clone(), pops(Some(2), Some(1))].concat(), NotLinearizable);
        check(&[pushes.clone(), pops(Some(1), Some(1))].concat(), NotLinearizable);
        check(&[pushes, pops(Some(1), None)].concat(), NotLinearizable);
    }
}
