//! Store utilities of PyTorch's elastic agent, in the calling thread.

use super::call_error::CallError;
use super::clock::Clock;
use super::store::{Store, Timeout};
use crate::elastic_store::barrier::{BarrierOptions, BarrierOutcome, BarrierTimeout, TracedBarrier};
use crate::elastic_store::get_all::{
    DataSearch, ExchangeTimeout, Lacking, data_key, data_keys, read_confirmation,
};
use crate::elastic_store::{GroupError, IGNORED_VALUE, Step, UnexpectedOutcome, check_group};
use crate::error::{Cause, ErrorKind};
use crate::limits::NATIVE_LIST_MAX;
use crate::prelude::*;
use crate::store::call::Outcome;

/// Reason why ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// World size or rank are invalid.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The store failed, or a wait timed out.
    #[error(transparent)]
    Store(#[from] CallError),
    /// Some ranks did not arrive at a barrier, and the missing ranks are known.
    #[error(transparent)]
    Missing(#[from] BarrierTimeout),
    /// Some ranks did not write their data, or did not read it.
    #[error(transparent)]
    Exchange(#[from] ExchangeTimeout),
    /// A bug in this library: a state machine and its driver do not fit.
    #[error(transparent)]
    Unexpected(#[from] UnexpectedOutcome),
}

/// Returns the data of all ranks under `prefix`, in order. Rank 0 leaves last: it often hosts the store that the
/// others read.
///
/// # Errors
/// Some data was not written within `timeout`, or (rank 0) some ranks did not read it within another `timeout`.
pub fn get_all(
    store: &Store,
    rank: i64,
    prefix: &str,
    world_size: i64,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, MeetingError> {
    check_group(Some(rank), world_size)?;
    let (clock, store) = (Clock::new(), &store.for_one_call());
    let keys = data_keys(prefix, world_size);
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
    let timed_out = |lacking| {
        let (prefix, peer) = (prefix.into(), store.peer().into());
        ExchangeTimeout { prefix, peer, rank, world_size, timeout, lacking }
    };
    let (begun, mut data) = (clock.now(), Vec::with_capacity(keys.len()));
    // The data of a rank never change, so they need not be read at one instant.
    for some in keys.chunks(NATIVE_LIST_MAX) {
        let left = timeout.saturating_sub(clock.now().since(begun));
        match store.multi_get(some, Timeout::After(left)) {
            Err(error) if is_wait_timeout(&error) => {
                let lacking = lacking_data(store, prefix, world_size, clock.now());
                return Err(lacking.map_or_else(|| error.into(), |lacking| timed_out(lacking).into()));
            }
            values => data.append(&mut values?),
        }
    }
    let mut barrier = TracedBarrier::new(read_confirmation(prefix, world_size, timeout))?;
    match (run(store, &mut barrier, timeout, &|| rank == 0)?, barrier.barrier_outcome()) {
        (Some(error), Some(BarrierOutcome::TimedOut)) if is_wait_timeout(&error) => {
            let lacking = count(store, &barrier).map(|count| Lacking::Reading(world_size - count));
            Err(lacking.map_or_else(|| error.into(), |lacking| timed_out(lacking).into()))
        }
        // The store does not respond, so it is not asked who is missing.
        (Some(error), Some(BarrierOutcome::TimedOut)) => Err(error.into()),
        _ => Ok(data),
    }
}

/// Returns whether a wait timed out although the store responds.
fn is_wait_timeout(error: &CallError) -> bool {
    error.kind() == ErrorKind::TimedOut && error.cause() == Cause::NotReleased
}

/// Returns the ranks that wrote no data. `None`: they cannot be found out, or all have written by now.
fn lacking_data(store: &Store, prefix: &str, world_size: i64, now: Instant) -> Option<Lacking> {
    let mut search = DataSearch::new(prefix, world_size);
    while let Some(step) = search.next_step() {
        search.handle(perform_timeout(store, &step, now, SEARCH_TIMEOUT).ok()?);
    }
    search.lacking()
}

/// Writes `data` for all ranks and returns that of all, in order. A `key_prefix` can be used once; no separator is
/// added to it.
///
/// # Errors
/// As [`get_all`].
pub fn synchronize(
    store: &Store,
    data: &[u8],
    rank: i64,
    world_size: i64,
    key_prefix: &str,
    timeout: Duration,
) -> Result<Vec<Vec<u8>>, MeetingError> {
    check_group(Some(rank), world_size)?;
    let store = &store.for_one_call();
    store.set(data_key(key_prefix, rank).as_bytes(), data, Timeout::After(timeout))?;
    get_all(store, rank, key_prefix, world_size, timeout)
}

/// Function that names a rank in a barrier's message.
pub type RankName<'a> = &'a dyn Fn(i64) -> String;

/// Waits for the other ranks. When some do not arrive, finds out which are missing (if [`BarrierOptions::rank`] is
/// given). `rank_name` maps ranks to names, such as those of their hosts.
///
/// # Errors
/// [`MeetingError::Missing`] when some ranks did not arrive and something is known about them;
/// [`MeetingError::Store`] with the wait's own error when nothing is.
pub fn barrier(
    store: &Store,
    options: &BarrierOptions,
    rank_name: Option<RankName<'_>>,
) -> Result<(), MeetingError> {
    if options.rank.is_none() && rank_name.is_some() {
        return Err(GroupError::TracingNeedsRank.into());
    }
    arrive(store, options, rank_name, &|| {})
}

/// As [`barrier`], and calls `arrived` as soon as the other ranks no longer wait for this one.
pub fn arrive(
    store: &Store,
    options: &BarrierOptions,
    rank_name: Option<RankName<'_>>,
    arrived: &dyn Fn(),
) -> Result<(), MeetingError> {
    let mut machine = TracedBarrier::new(options.clone())?;
    let store = &store.for_one_call();
    let go_on = || {
        arrived();
        true
    };
    let timed_out = run(store, &mut machine, options.timeout, &go_on)?;
    let barrier_outcome = machine.barrier_outcome().unwrap_or(&BarrierOutcome::Released);
    let by_number = |rank: i64| rank.to_string();
    match (BarrierTimeout::of(options, barrier_outcome, rank_name.unwrap_or(&by_number)), timed_out) {
        (Some(missing), _) => Err(missing.into()),
        (None, Some(error)) if *barrier_outcome == BarrierOutcome::TimedOut => {
            let message = |count| format!("{count} of {} have arrived", options.world_size).into();
            Err(error.with_message(count(store, &machine).map(message)).into())
        }
        _ => Ok(()),
    }
}

/// Performs the steps of a barrier. `arrived` is called as soon as the other ranks no longer wait for this one, if this
/// one still waits; it returns whether to go on. Returns the error of a wait that timed out.
fn run(
    store: &Store,
    machine: &mut TracedBarrier,
    timeout: Duration,
    arrived: &dyn Fn() -> bool,
) -> Result<Option<CallError>, MeetingError> {
    let (clock, mut timed_out) = (Clock::new(), None);
    while let Some(step) = machine.next_step() {
        // The store answers tracing requests at once, or their own deadline bounds them.
        let outcome = match perform(store, &step, clock.now(), timeout) {
            Err(error) if error.kind() == ErrorKind::TimedOut && matches!(step, Step::Wait { .. }) => {
                timed_out.get_or_insert(error);
                Outcome::Missing
            }
            // If the search fails, too, the error of the wait is reported.
            Err(error) => {
                let first = timed_out.filter(|_| machine.is_tracing());
                return Err(first.unwrap_or(error).into());
            }
            Ok(outcome) => outcome,
        };
        let was_awaited = !machine.has_arrived();
        machine.handle(clock.now(), outcome)?;
        // The last rank to arrive learns it from the return of this function.
        let waits = machine.has_arrived() && machine.barrier_outcome().is_none();
        if was_awaited && waits && !arrived() {
            break;
        }
    }
    Ok(timed_out)
}

/// Returns how many ranks have arrived at a barrier, for the message of its timeout; `None` if that is not known.
fn count(store: &Store, machine: &TracedBarrier) -> Option<i64> {
    match perform_timeout(store, &machine.count_step(), Instant::ORIGIN, SEARCH_TIMEOUT) {
        Ok(Outcome::Number(count)) => Some(count),
        _ => None,
    }
}

/// Timeout of a call that does not wait, even where the wait itself is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a request that only improves an error message.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(1);

fn perform(store: &Store, step: &Step, now: Instant, timeout: Duration) -> Result<Outcome, CallError> {
    perform_timeout(store, step, now, timeout.max(ANSWER_TIMEOUT))
}

fn perform_timeout(
    store: &Store,
    step: &Step,
    now: Instant,
    timeout: Duration,
) -> Result<Outcome, CallError> {
    let timeout = Timeout::After(timeout);
    Ok(match step {
        Step::Add { key, delta } => Outcome::Number(store.add(key.as_bytes(), *delta, timeout)?),
        Step::Mark { key } => store.set(key.as_bytes(), IGNORED_VALUE, timeout).map(|()| Outcome::Applied)?,
        Step::Check { keys } => {
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            if store.check(&keys, timeout)? { Outcome::Ready } else { Outcome::NotReady }
        }
        Step::Wait { key, until } => {
            let left = Timeout::After(until.since(now));
            store.wait(&[key.as_bytes()], left).map(|()| Outcome::Released)?
        }
    })
}

#[cfg(test)]
mod tests;
