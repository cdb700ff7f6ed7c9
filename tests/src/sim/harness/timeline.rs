//! Virtual time of a world whose messages need no byte streams.

use super::event_queue::EventQueue;
use super::history::CheckError;
use super::sim_rng::SimRng;
use super::trace::Trace;
use crate::sim::{Counts, Failure, Kind, Options, Report};
use rendezvous_core::time::{Duration, Instant};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Time, future events, random choices and trace.
pub(in crate::sim) struct Timeline<E> {
    pub(in crate::sim) now: Instant,
    pub(in crate::sim) sim_rng: SimRng,
    event_queue: EventQueue<E>,
    trace: Trace,
    events: u64,
}

/// Most events in one run.
const EVENTS_MAX: u64 = 2_000_000;

impl<E> Timeline<E> {
    pub(in crate::sim) fn new(now: Instant, sim_rng: SimRng, options: &Options) -> Self {
        Self { now, sim_rng, event_queue: EventQueue::new(), trace: Trace::new(options.verbosity), events: 0 }
    }

    pub(in crate::sim) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    /// Schedules an event; now, if the time has passed.
    pub(in crate::sim) fn at(&mut self, at: Instant, event: E) {
        self.event_queue.schedule(at.max(self.now), event);
    }

    pub(in crate::sim) fn after(&mut self, span: Duration, event: E) {
        self.at(self.now + span, event);
    }

    /// Returns the next event until a time, and advances the time to it.
    ///
    /// # Errors
    /// There is no end of events.
    pub(in crate::sim) fn next(&mut self, until: Instant) -> Result<Option<E>, CheckError> {
        if self.event_queue.next_at().is_none_or(|at| at > until) {
            return Ok(None);
        }
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(CheckError(format!("end: {EVENTS_MAX} events happened, and there is no end")));
        }
        Ok(self.event_queue.pop().map(|(at, event)| {
            self.now = at;
            event
        }))
    }

    /// Returns the result of a run: counts of what happened, or the error.
    pub(in crate::sim) fn finish(
        self,
        seed: u64,
        world: Kind,
        played: Result<Counts, CheckError>,
    ) -> Result<Report, Failure> {
        let Self { now, trace, events, .. } = self;
        match played {
            Ok(counts) => Ok(Report {
                trace_hash: trace.hash(),
                trace_lines: trace.lines(),
                events,
                virtual_time: now.since(Instant::ORIGIN),
                counts,
                ..Report::default()
            }),
            Err(CheckError(what)) => {
                Err(Failure { seed, world, what, now, trace: trace.into_last(), ..Failure::default() })
            }
        }
    }
}

/// Runs a world that checks with assertions.
///
/// # Errors
/// The message of the assertion that failed.
pub(in crate::sim) fn checked(run: impl FnOnce() -> Result<(), CheckError>) -> Result<(), CheckError> {
    let message = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => {
            panic.downcast::<&str>().map_or_else(|_| "a panic".to_owned(), |text| (*text).to_owned())
        }
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(CheckError(message(panic))))
}
