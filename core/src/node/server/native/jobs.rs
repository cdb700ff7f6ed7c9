//! Work that may take longer than one turn: it is done in steps, and the jobs take turns.

use super::{Native, RequestId, ServerContext, removed_frame};
use crate::store::engine::{LeasedKeys, PrefixScan, Removal, Stale};
use crate::wire::native::ServerFrame;
use alloc::collections::VecDeque;

/// Maximum number of keys in one step.
const KEYS_PER_STEP: usize = 256;

#[derive(Debug)]
pub(super) enum Job {
    /// Removes keys; answers the request, if a client asked for it.
    Remove(Removal, Option<RequestId>),
    /// Removes the keys of a lease; answers the request, if a client asked for it.
    RemoveLeased(LeasedKeys, Option<RequestId>),
    /// Fails the waits for keys that can no longer be set.
    FailWaits(PrefixScan, Stale),
}

#[derive(Debug, Default)]
pub(super) struct Jobs(VecDeque<Job>);

impl Jobs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Native {
    /// Does a job as far as this turn allows. The rest follows in later turns.
    pub(super) fn begin(&mut self, context: &mut ServerContext<'_>, mut job: Job) {
        while !self.step(context, &mut job) {
            if context.is_budget_spent() {
                self.jobs.0.push_back(job);
                return;
            }
        }
    }

    /// Continues the jobs, one step of each after the other.
    pub(super) fn run_jobs(&mut self, context: &mut ServerContext<'_>) {
        while !self.jobs.is_empty() && !context.is_budget_spent() {
            let Some(mut job) = self.jobs.0.pop_front() else { return };
            if !self.step(context, &mut job) {
                self.jobs.0.push_back(job);
            }
        }
    }

    /// Does one step. Returns whether the job is done.
    fn step(&mut self, context: &mut ServerContext<'_>, job: &mut Job) -> bool {
        let (frame, request) = match job {
            Job::Remove(removal, request) => {
                let Some(removed) = context.engine.remove_some(removal, KEYS_PER_STEP) else { return false };
                (removed_frame(removed, context.engine.revision()), *request)
            }
            Job::RemoveLeased(leased, request) => {
                let Some(removed) = context.engine.remove_leased(leased, KEYS_PER_STEP) else { return false };
                let number = i64::try_from(removed).unwrap_or(i64::MAX);
                (ServerFrame::Number { number, revision: context.engine.revision() }, *request)
            }
            Job::FailWaits(scan, stale) => {
                let failed = context.engine.fail_waits(scan, KEYS_PER_STEP);
                self.fail_stale_waits(context, failed, *stale);
                return scan.is_over;
            }
        };
        if let Some(request) = request {
            self.answer(context, request, &frame);
        }
        true
    }
}
