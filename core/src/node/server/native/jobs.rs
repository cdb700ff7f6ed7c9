//! Work that may take longer than one turn: it is done in steps, and the jobs take turns.

use super::{ANSWER_WORK, KEYS_PER_STEP, Native, RequestId, ServerContext, removed_frame};
use crate::limits::WAIT_COST_BYTES;
use crate::session::table::SessionId;
use crate::store::engine::{LeasedKeys, Listing, PrefixScan, Removal, Stale};
use crate::store::op::Keys;
use crate::wire::native::ServerFrame;
use alloc::collections::VecDeque;

/// Bytes from which on the rest of a list of keys is left to the next request.
pub(super) const LIST_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum Job {
    /// Lists keys.
    List(Listing),
    /// Removes keys.
    Remove(Removal),
    /// Removes the keys of a lease.
    RemoveLeased(LeasedKeys),
    /// Fails the waits for keys that can no longer be set.
    FailWaits(PrefixScan, Stale),
    /// Ends the waits, watches and leases of a session that has ended.
    EndSession(SessionId),
}

/// Job that is not done, and the request that it answers.
#[derive(Debug)]
struct Begun {
    job: Job,
    request: Option<RequestId>,
    /// Bytes that the session of the request is charged for the job.
    charge: u64,
}

#[derive(Debug, Default)]
pub(super) struct Jobs(VecDeque<Begun>);

impl Jobs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Native {
    /// Does a job as far as this turn allows. The rest follows in later turns; until then the session of the request
    /// is charged for it.
    pub(super) fn begin(
        &mut self,
        context: &mut ServerContext<'_>,
        mut job: Job,
        request: Option<RequestId>,
    ) {
        while !self.step(context, &mut job, request) {
            if !context.is_budget_spent() {
                continue;
            }
            let charge = job.held_bytes_max(context.limits.frame.key_bytes_max);
            match request.map(|request| (request, self.sessions.charge(request.session, charge))) {
                Some((request, Err(fault))) => self.fail(context, request, fault),
                _ => self.jobs.0.push_back(Begun { job, request, charge }),
            }
            return;
        }
    }

    /// Continues the jobs, one step of each after the other.
    pub(super) fn run_jobs(&mut self, context: &mut ServerContext<'_>) {
        while !self.jobs.is_empty() && !context.is_budget_spent() {
            let Some(mut begun) = self.jobs.0.pop_front() else { return };
            if !self.step(context, &mut begun.job, begun.request) {
                self.jobs.0.push_back(begun);
            } else if let Some(request) = begun.request {
                self.sessions.discharge(request.session, begun.charge);
            }
        }
    }

    /// Does one step. Returns whether the job is done.
    fn step(&mut self, context: &mut ServerContext<'_>, job: &mut Job, request: Option<RequestId>) -> bool {
        match job {
            Job::List(listing) => {
                if !context.engine.list_some(listing, KEYS_PER_STEP) {
                    return false;
                }
                listing.bytes().read(|bytes| {
                    // invariant: a list ends at 1 MiB, so it has far fewer keys than `usize` counts
                    let keys = Keys::packed(usize::try_from(listing.count()).unwrap_or(usize::MAX), bytes);
                    let more = listing.has_more();
                    self.finish(context, request, &ServerFrame::KeyList { more, keys });
                });
            }
            Job::Remove(removal) => {
                let Some(removed) = context.engine.remove_some(removal, KEYS_PER_STEP) else { return false };
                let frame = removed_frame(removed, context.engine.revision());
                self.finish(context, request, &frame);
            }
            Job::RemoveLeased(leased) => {
                let Some(removed) = context.engine.remove_leased(leased, KEYS_PER_STEP) else { return false };
                let number = i64::try_from(removed).unwrap_or(i64::MAX);
                let revision = context.engine.revision();
                self.finish(context, request, &ServerFrame::Number { number, revision });
            }
            Job::FailWaits(scan, stale) => {
                let failed = context.engine.fail_waits(scan, KEYS_PER_STEP);
                self.fail_stale_waits(context, failed, *stale);
                return scan.is_over;
            }
            Job::EndSession(session) => {
                while self.end_wait(context, *session) || self.end_watch_or_lease(context, *session) {
                    context.budget.subtract(ANSWER_WORK);
                    if context.is_budget_spent() {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Answers the request of a job that is done.
    fn finish(
        &mut self,
        context: &mut ServerContext<'_>,
        request: Option<RequestId>,
        frame: &ServerFrame<'_>,
    ) {
        if let Some(request) = request {
            self.answer(context, request, frame);
        }
    }
}

impl Job {
    /// Returns the most bytes that the job holds for a client, besides what it has taken from the store.
    fn held_bytes_max(&self, key_bytes_max: u64) -> u64 {
        // The prefix, and the last key that was visited.
        let scan = 2 * key_bytes_max + WAIT_COST_BYTES;
        match self {
            Self::List(_) => scan + LIST_BYTES_MAX as u64,
            Self::Remove(_) | Self::FailWaits(..) => scan,
            Self::RemoveLeased(_) | Self::EndSession(_) => WAIT_COST_BYTES,
        }
    }
}
