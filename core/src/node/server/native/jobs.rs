//! Work that may take longer than one turn: it is done in steps, and the sessions take turns.

use super::{ANSWER_WORK, KEYS_PER_STEP, Native, RequestId, ServerContext, removed_frame};
use crate::limits::WAIT_COST_BYTES;
use crate::ordered::Map;
use crate::prelude::*;
use crate::session::table::SessionId;
use crate::store::engine::{LeasedKeys, Listing, PrefixScan, Removal, Stale};
use crate::store::op::Keys;
use crate::wire::native::ServerFrame;

/// Leases, watches and waits that end in one step.
const ENDS_PER_STEP: usize = 64;
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
    /// Ends the leases, watches and waits of a session that has ended. Values that changed after this revision stay.
    EndSession { session: SessionId, until: u64 },
    /// Fails the arrivals at barriers with this prefix, whose round has ended.
    FailArrivals(Box<[u8]>, u64),
}

/// Job that is not done, and the request that it answers.
#[derive(Debug)]
pub(super) struct PendingJob {
    job: Job,
    request: Option<RequestId>,
    /// Bytes that the session of the request is charged for the job.
    charge: u64,
}

/// Pending jobs. The server and the sessions take turns, and the jobs of each.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    /// By session, 0 for jobs of none, and by number, from 1.
    pending: Map<(u64, u64), PendingJob>,
    count: u64,
    /// Session of the last job of a session that was continued.
    last: u64,
    /// Whether the last job that was continued was of no session.
    was_own_turn: bool,
}

impl Jobs {
    pub(super) const fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn push(&mut self, pending: PendingJob) {
        self.count += 1;
        self.pending.insert((pending.session(), self.count), pending);
    }

    /// Takes the oldest job of the session whose turn it is. Every second turn is that of the server's own jobs, such as
    /// those for the leases of nodes that have died.
    pub(super) fn pop(&mut self) -> Option<PendingJob> {
        let (first, _) = self.pending.first()?;
        let is_own_turn = first.0 == 0 && !self.was_own_turn;
        let after = |session| self.pending.after((session, u64::MAX)).next();
        let of_session = after(self.last).or_else(|| after(0)).filter(|_| !is_own_turn);
        let id = of_session.map_or(first, |(id, _)| id);
        self.was_own_turn = id.0 == 0;
        if !self.was_own_turn {
            self.last = id.0;
        }
        self.pending.remove(id)
    }
}

impl PendingJob {
    #[cfg(test)]
    pub(super) const fn of(job: Job) -> Self {
        Self { job, request: None, charge: 0 }
    }

    /// Returns the number of the session that it is for, or 0.
    pub(super) fn session(&self) -> u64 {
        match self.job {
            Job::EndSession { session, .. } => session.0,
            _ => self.request.map_or(0, |request| request.session.0),
        }
    }
}

impl Native {
    /// Does a job as far as this turn allows. The rest follows in later turns. The session of the request is charged for
    /// the job until it is done.
    pub(super) fn begin(&mut self, context: &mut ServerContext<'_>, job: Job, request: Option<RequestId>) {
        let charge = job.held_bytes_max(context.limits.native_frame.key_bytes_max);
        if let Some(request) = request
            && let Err(fault) = self.sessions.charge(request.session, charge)
        {
            return self.fail(context, request, fault);
        }
        let mut pending = PendingJob { job, request, charge };
        while !context.is_budget_spent() {
            if self.step(context, &mut pending) {
                return;
            }
        }
        self.jobs.push(pending);
    }

    /// Continues the jobs, one step of each after the other.
    pub(super) fn run_jobs(&mut self, context: &mut ServerContext<'_>) {
        while !context.is_budget_spent()
            && let Some(mut pending) = self.jobs.pop()
        {
            if !self.step(context, &mut pending) {
                self.jobs.push(pending);
            }
        }
    }

    /// Drops what a session that has ended has asked for: lists, which it will not receive, and removals that have
    /// removed nothing.
    pub(super) fn end_jobs(&mut self, session: SessionId) {
        let jobs = self.jobs.pending.after((session.0, 0)).take_while(|((of, _), _)| *of == session.0);
        let may_go = jobs.filter(|(_, PendingJob { job, .. })| match job {
            Job::List(_) => true,
            Job::Remove(removal) => !removal.has_begun(),
            _ => false,
        });
        let may_go: Vec<_> = may_go.map(|(id, _)| id).collect();
        for id in may_go {
            self.jobs.pending.remove(id);
        }
    }

    /// Does one step. Returns whether the job is done.
    fn step(&mut self, context: &mut ServerContext<'_>, pending: &mut PendingJob) -> bool {
        match &mut pending.job {
            Job::List(listing) => {
                if !context.engine.list_some(listing, KEYS_PER_STEP) {
                    return false;
                }
                let more = listing.has_more();
                // invariant: a list ends at 1 MiB, so it has far fewer keys than `usize` counts
                let count = usize::try_from(listing.count()).unwrap_or(usize::MAX);
                let (request, charge) = (pending.request, pending.charge);
                listing.bytes().read(|bytes| {
                    let keys = Keys::packed(count, bytes);
                    self.finish(context, request, charge, &ServerFrame::KeyList { more, keys });
                });
            }
            Job::Remove(removal) => {
                let Some(removed) = context.engine.remove_some(removal, KEYS_PER_STEP) else { return false };
                let frame = removed_frame(removed, context.engine.revision());
                self.finish(context, pending.request, pending.charge, &frame);
            }
            Job::RemoveLeased(leased) => {
                let Some(removed) = context.engine.remove_leased(leased, KEYS_PER_STEP) else { return false };
                let number = i64::try_from(removed).unwrap_or(i64::MAX);
                let frame = ServerFrame::Number { number, revision: context.engine.revision() };
                self.finish(context, pending.request, pending.charge, &frame);
            }
            Job::FailWaits(scan, stale) => {
                let failed = context.engine.fail_waits(scan, KEYS_PER_STEP);
                self.fail_stale_waits(context, failed, *stale);
                return scan.is_over;
            }
            Job::EndSession { session, until } => {
                for _ in 0..ENDS_PER_STEP {
                    // The keys of leases show other clients that the session's process lives, so these end first.
                    let has_ended = self.end_lease(context, *session, *until)
                        || self.end_watch_or_wait(context, *session);
                    if !has_ended {
                        return true;
                    }
                    context.budget.subtract(ANSWER_WORK);
                    if context.is_budget_spent() {
                        break;
                    }
                }
                return false;
            }
            Job::FailArrivals(prefix, round) => return self.fail_arrivals(context, prefix, *round),
        }
        true
    }

    /// Answers the request of a job that is done, and takes back the charge for the job.
    fn finish(
        &mut self,
        context: &mut ServerContext<'_>,
        request: Option<RequestId>,
        charge: u64,
        frame: &ServerFrame<'_>,
    ) {
        if let Some(request) = request {
            self.sessions.discharge(request.session, charge);
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
            Self::Remove(_) | Self::FailWaits(..) | Self::FailArrivals(..) => scan,
            Self::RemoveLeased(_) | Self::EndSession { .. } => WAIT_COST_BYTES,
        }
    }
}
