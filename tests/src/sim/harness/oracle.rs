//! Oracle of the store. It knows no machine of the library: it reads the history and decides whether one store could
//! have answered so.
//!
//! - Values, pairs that are set and read together, and queues are linearizable, key by key, for each process of the
//!   server. An operation that failed without effect must have had none. One that may have had an effect had it at any
//!   time, or never.
//! - Counters: each answered ADD counts once, and one that was not answered at most once.
//! - Barriers: no arrival is released before enough participants have begun to arrive.

use super::history::{CheckError, History, Record};
use super::linear::{self, Action, Operation, SearchResult};
use super::sim_operation::{Answer, End, SimOperation, chunk};
use rendezvous_core::error::Effect;
use std::collections::BTreeMap;

/// Result for a correct history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Outcome {
    /// Number of histories of one key that were too long to decide.
    pub(in crate::sim) undecided: usize,
    /// Number of reads of two keys that saw a part of a write only.
    pub(in crate::sim) partial_reads: usize,
}

/// Store of an operation, by the server's process, and the name of the object.
type ObjectKey<'a> = (u32, &'a str);

pub(in crate::sim) fn check_history(history: &History) -> Result<Outcome, CheckError> {
    let records = history.records();
    let mut objects: BTreeMap<ObjectKey<'_>, Vec<Operation>> = BTreeMap::new();
    let mut counters: BTreeMap<ObjectKey<'_>, Vec<Addition>> = BTreeMap::new();
    let mut barriers: BTreeMap<ObjectKey<'_>, Vec<&Record>> = BTreeMap::new();
    for record in records {
        let Some((_, end)) = &record.ended else {
            return Err(CheckError(format!("{} of c{} never ended", record.sim_operation, record.actor)));
        };
        let Some(epoch) = record.epoch else { continue };
        match &record.sim_operation {
            SimOperation::Barrier { name, .. } => barriers.entry((epoch, name)).or_default().push(record),
            // The calls of one arrival may reach different processes of the server. The bound on all arrivals holds all
            // the same.
            SimOperation::KeyBarrier { name, .. } => barriers.entry((0, name)).or_default().push(record),
            SimOperation::ListKeys => listed(record)?,
            SimOperation::Add { name, delta } => {
                let addition = Addition::of(record, *delta);
                counters.entry((epoch, name)).or_default().extend(addition);
            }
            sim_operation => {
                // In the calm phase the answers are known beforehand, and the script compares them.
                for (name, action) in actions_of(sim_operation, end, history.splits_lists)?
                    .into_iter()
                    .filter(|(name, _)| !name.starts_with("calm/"))
                {
                    let ended = record.answered_at();
                    objects.entry((epoch, name)).or_default().push(Operation {
                        action,
                        began: record.began,
                        ended,
                    });
                }
            }
        }
    }
    counters.iter().try_for_each(|(slot, additions)| check_counter(slot, additions))?;
    barriers.iter().try_for_each(|(slot, arrivals)| check_barrier(slot, arrivals))?;
    let mut undecided = 0;
    for ((epoch, name), operations) in &objects {
        match linear::search(operations) {
            SearchResult::Linearizable => {}
            SearchResult::Undecided => undecided += 1,
            SearchResult::NotLinearizable => {
                let reported = operations.iter().map(|operation| {
                    let ended = operation.ended.map_or("never".to_owned(), |ended| ended.to_string());
                    format!("\n    {:>5} to {ended:>5} {:?}", operation.began, operation.action)
                });
                let reported: String = reported.collect();
                return Err(CheckError(format!(
                    "{name} in life {epoch} has no order that explains{reported}"
                )));
            }
        }
    }
    let partial_reads = records.iter().filter(|record| record.has_read_part()).count();
    Ok(Outcome { undecided, partial_reads })
}

impl Record {
    pub(in crate::sim) const fn is_answered(&self) -> bool {
        matches!(self.ended, Some((_, End::Responded(_))))
    }

    fn has_read_part(&self) -> bool {
        let Some((_, End::Responded(Answer::Values(values)))) = &self.ended else { return false };
        let is_pair = |names: &[String]| names[0].starts_with("p/");
        matches!(&self.sim_operation, SimOperation::MultiGet { names, .. } if is_pair(names))
            && values[0] != values[1]
    }

    const fn answered_at(&self) -> Option<u64> {
        match self.ended {
            Some((at, End::Responded(_))) => Some(at),
            _ => None,
        }
    }
}

/// Returns the effects of an operation on objects, as far as it had or may have had any. A pair of keys is one object, unless
/// the server `splits_lists`.
fn actions_of<'a>(
    sim_operation: &'a SimOperation,
    end: &End,
    splits_lists: bool,
) -> Result<Vec<(&'a str, Action)>, CheckError> {
    let answer = match end {
        End::Responded(answer) => Some(answer),
        End::Failed(_, Effect::None) => return Ok(Vec::new()),
        End::Failed(_, Effect::Possible | Effect::Kept) => None,
    };
    let numbers = |name: &str, value: &[u8]| {
        chunk::numbers(name, value)
            .ok_or_else(|| CheckError(format!("{sim_operation}: {end}, and no operation wrote that value")))
    };
    let one = |name: &str, value: &[u8]| numbers(name, value).map(|numbers| numbers[0]);
    let half = |name: &str, value: &[u8]| numbers(pair_of(name), value);
    Ok(match (sim_operation, answer) {
        (SimOperation::Set { name, value }, _) => vec![(name, Action::Write(numbers(name, value)?))],
        (SimOperation::Append { name, value }, _) => vec![(name, Action::Append(one(name, value)?))],
        (SimOperation::CompareSet { name, expected, desired }, answer) => {
            let reported = match answer {
                Some(Answer::Value(value)) => Some(numbers(name, value)?),
                _ => None,
            };
            let (expected, desired) = (numbers(name, expected)?, numbers(name, desired)?);
            vec![(name, Action::CompareSet { expected, desired, reported })]
        }
        // Keys of other kinds are deleted when the store is cleared, and are not used afterwards.
        (SimOperation::Delete { name }, _) if !name.starts_with("r/") => Vec::new(),
        (SimOperation::Delete { name }, answer) => {
            let removed = match answer {
                Some(Answer::Number(number @ (0 | 1))) => Some(*number == 1),
                None => None,
                Some(answer) => return Err(CheckError(format!("{sim_operation}: {answer}"))),
            };
            vec![(name, Action::Delete(removed))]
        }
        (SimOperation::Get { name, .. }, Some(Answer::Value(value))) => {
            vec![(name, Action::Read(numbers(name, value)?))]
        }
        (SimOperation::Get { name, .. }, Some(Answer::Missing))
        | (SimOperation::Check { name }, Some(Answer::NotReady)) => {
            vec![(name, Action::Absent)]
        }
        (SimOperation::Check { name }, Some(Answer::Ready)) => vec![(name, Action::Present)],
        // Each key was present at some time during the wait, but not necessarily all at once.
        (SimOperation::Wait { names }, Some(Answer::Done)) => {
            names.iter().map(|name| (name.as_str(), Action::Present)).collect()
        }
        (SimOperation::MultiSet { pairs }, _) if splits_lists && !pairs[0].0.starts_with("calm/") => {
            let each =
                pairs.iter().map(|(name, value)| Ok((name.as_str(), Action::Write(half(name, value)?))));
            each.collect::<Result<_, _>>()?
        }
        (SimOperation::MultiSet { pairs }, _) => {
            let name = pair_of(&pairs[0].0);
            let numbers = if name.starts_with("calm/") { Vec::new() } else { numbers(name, &pairs[0].1)? };
            vec![(name, Action::Write(numbers))]
        }
        // One of them was absent, and it is not known which.
        (SimOperation::MultiGet { .. }, Some(Answer::Missing)) if splits_lists => Vec::new(),
        (SimOperation::MultiGet { names, .. }, Some(Answer::Missing)) => {
            vec![(pair_of(&names[0]), Action::Absent)]
        }
        (SimOperation::MultiGet { names, .. }, Some(Answer::Values(values))) => {
            let name = pair_of(&names[0]);
            if name.starts_with("calm/") {
                return Ok(Vec::new());
            }
            if splits_lists {
                let each = names.iter().zip(values);
                return each
                    .map(|(name, value)| Ok((name.as_str(), Action::Read(half(name, value)?))))
                    .collect();
            }
            if values[0] != values[1] {
                return Err(CheckError(format!("{sim_operation}: {end}: half of what was set together")));
            }
            vec![(name, Action::Read(numbers(name, &values[0])?))]
        }
        (SimOperation::Push { name, value }, _) => vec![(name, Action::Push(one(name, value)?))],
        (SimOperation::Pop { name, .. }, Some(Answer::Value(value))) => {
            vec![(name, Action::Pop(Some(Some(one(name, value)?))))]
        }
        (SimOperation::Pop { name, .. }, Some(_)) => vec![(name, Action::Pop(Some(None)))],
        (SimOperation::Pop { name, .. }, None) => vec![(name, Action::Pop(None))],
        (SimOperation::QueueLen { name }, Some(Answer::Number(number))) => {
            let length =
                usize::try_from(*number).map_err(|_| CheckError(format!("{sim_operation}: {number}")))?;
            vec![(name, Action::Length(length))]
        }
        _ => Vec::new(),
    })
}

/// Returns the name of the pair that a key belongs to.
fn pair_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(pair, _)| pair)
}

/// Checks that listed keys have the scope as prefix, are sorted, and are unique.
fn listed(record: &Record) -> Result<(), CheckError> {
    let Some((_, End::Responded(Answer::Values(keys)))) = &record.ended else { return Ok(()) };
    let known = keys.iter().all(|key| {
        [
            &b"/r/"[..],
            b"/n/",
            b"/p/",
            b"/q/",
            b"/b/",
            b"/k/",
            b"/w/",
            b"/l/",
            b"/calm/",
            b"/torch.rendezvous.",
        ]
        .iter()
        .any(|kind| key.starts_with(kind))
    });
    if known && keys.is_sorted() && keys.windows(2).all(|pair| pair[0] != pair[1]) {
        Ok(())
    } else {
        Err(CheckError(format!("a list with unknown or misordered keys: {}", Answer::Values(keys.clone()))))
    }
}

struct Addition {
    delta: i64,
    began: u64,
    /// When it was answered, and the sum in the answer.
    answered: Option<(u64, i64)>,
}

impl Addition {
    fn of(record: &Record, delta: i64) -> Option<Self> {
        let answered = match record.ended.as_ref()? {
            (at, End::Responded(Answer::Number(sum))) => Some((*at, *sum)),
            (_, End::Failed(_, Effect::Possible)) => None,
            _ => return None,
        };
        Some(Self { delta, began: record.began, answered })
    }
}

fn check_counter((epoch, name): &ObjectKey<'_>, additions: &[Addition]) -> Result<(), CheckError> {
    let wrong = |sum: i64, why: String| {
        Err(CheckError(format!("counter {name} in life {epoch} said {sum}, and {why}")))
    };
    for this in additions {
        let Some((ended, sum)) = this.answered else { continue };
        let before: i64 = additions
            .iter()
            .filter(|other| other.answered.is_some_and(|(ended, _)| ended < this.began))
            .map(|other| other.delta)
            .sum();
        let most: i64 = additions.iter().filter(|other| other.began < ended).map(|other| other.delta).sum();
        if sum < before + this.delta {
            return wrong(sum, format!("{before} had been added before {} was", this.delta));
        }
        if sum > most {
            return wrong(sum, format!("no more than {most} can have been added"));
        }
        for other in additions {
            let Some((_, other_sum)) = other.answered else { continue };
            if ended < other.began && sum + other.delta > other_sum {
                return wrong(other_sum, format!("it had said {sum} before {} was added", other.delta));
            }
            let same = core::ptr::eq(this, other);
            let overlap = other_sum > sum - this.delta && other_sum - other.delta < sum;
            if !same && this.delta > 0 && other.delta > 0 && overlap {
                return wrong(
                    sum,
                    format!("{other_sum}, where {} and {} were added", this.delta, other.delta),
                );
            }
        }
    }
    Ok(())
}

fn check_barrier((epoch, name): &ObjectKey<'_>, arrivals: &[&Record]) -> Result<(), CheckError> {
    for arrival in arrivals {
        let (SimOperation::Barrier { world_size, .. } | SimOperation::KeyBarrier { world_size, .. }) =
            &arrival.sim_operation
        else {
            continue;
        };
        let Some((ended, End::Responded(answer))) = &arrival.ended else { continue };
        let set_out = arrivals.iter().filter(|other| other.began < *ended).count();
        let counted = arrivals
            .iter()
            .filter(|other| other.answered_at().is_some_and(|ended| ended < arrival.began))
            .count();
        let (set_out, counted) = (i64::try_from(set_out), i64::try_from(counted));
        if *answer == Answer::Done && set_out.is_ok_and(|set_out| set_out < *world_size) {
            return Err(CheckError(format!(
                "barrier {name} in life {epoch} opened to {set_out:?} of {world_size}"
            )));
        }
        if *answer == Answer::Missing && counted.is_ok_and(|counted| counted + 1 >= *world_size) {
            return Err(CheckError(format!(
                "barrier {name} in life {epoch} kept the last of {world_size} out"
            )));
        }
    }
    Ok(())
}
