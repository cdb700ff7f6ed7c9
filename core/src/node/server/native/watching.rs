//! Watches and leases of native clients.

use super::jobs::Job;
use super::store::fault_of;
use super::{ANSWER_WORK, Native, RequestId, ServerContext, millis};
use crate::limits::WAIT_COST_BYTES;
use crate::ordered::{Index, Map, Set};
use crate::prelude::*;
use crate::session::table::SessionId;
use crate::store::engine::{ApplyError, ChangeRef, LeaseError, LeaseId, WatchError, WatchId, Watched};
use crate::store::op::Key;
use crate::wire::native::{Change, ClientFrame, Fault, FaultCode, List, Message as _, ServerFrame, Why};

/// Most bytes of keys and values in one frame of changes, unless a single change has more.
const FRAME_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, Default)]
pub(super) struct Watching {
    /// By session and request.
    of_request: Index<(SessionId, u64), WatchId>,
    watches: Map<WatchId, Watcher>,
    /// Watches with changes for a session that does not read at the moment.
    held_back: Set<(SessionId, WatchId)>,
    leases: Map<LeaseId, RequestId>,
    leases_of: Set<(SessionId, LeaseId)>,
}

/// Owner of a watch.
#[derive(Clone, Copy, Debug)]
struct Watcher {
    request: RequestId,
    /// Bytes that the session is charged for it.
    cost: u64,
}

impl Watching {
    /// Returns whether there are changes for a session that does not read at the moment.
    pub(super) fn is_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }
}

impl Native {
    pub(super) fn watching_request(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        frame: &ClientFrame<'_>,
    ) {
        let outcome = match *frame {
            ClientFrame::WatchKey { key, from_revision } => {
                self.watch(context, request, Watched::Key(key.name()), from_revision)
            }
            ClientFrame::WatchPrefix { prefix, from_revision } => {
                self.watch(context, request, Watched::Prefix(prefix.name()), from_revision)
            }
            ClientFrame::LeaseGrant { ttl_ms } => {
                let ttl = (ttl_ms > 0).then(|| millis(ttl_ms));
                self.grant(context, request, ttl).map(Some)
            }
            ClientFrame::LeaseAttach { lease, .. }
            | ClientFrame::LeaseRenew { lease }
            | ClientFrame::LeaseRevoke { lease }
                if !self.may_use(request.session, LeaseId(lease)) =>
            {
                let text = b"the lease belongs to another session";
                Err(Fault { text, ..Fault::new(FaultCode::PermissionDenied, frame.kind().into(), 0) })
            }
            ClientFrame::LeaseAttach { lease, keys } => {
                context.engine.lease_attach(LeaseId(lease), keys).map_err(lease_fault).map(|()| None)
            }
            ClientFrame::LeaseRenew { lease } => {
                context.engine.lease_renew(context.now, LeaseId(lease)).map_err(lease_fault).map(|()| None)
            }
            ClientFrame::LeaseRevoke { lease } => {
                let (lease, session) = (LeaseId(lease), request.session);
                let is_own = self.watching.leases.get(lease).is_some_and(|owner| owner.session == session);
                // Once the lease has ended, the job that removes its keys must not be refused. What an own lease is charged
                // pays for it.
                let job_bytes = if is_own { 0 } else { WAIT_COST_BYTES };
                match self.sessions.charge(session, job_bytes).and_then(|()| {
                    self.sessions.discharge(session, job_bytes);
                    context.engine.lease_end(lease).map_err(lease_fault)
                }) {
                    Ok(leased) => {
                        self.forget_lease(lease);
                        return self.begin(context, Job::RemoveLeased(leased), Some(request));
                    }
                    Err(fault) => Err(fault),
                }
            }
            _ => Err(fault_of(&ApplyError::NotANumber)),
        };
        match outcome {
            Ok(Some(number)) => {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                let revision = context.engine.revision();
                self.answer(context, request, &ServerFrame::Number { number, revision });
            }
            Ok(None) => self.done(context, request),
            Err(fault) => self.fail(context, request, fault),
        }
    }

    fn watch(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        what: Watched<'_>,
        from_revision: u64,
    ) -> Result<Option<u64>, Fault<'static>> {
        let (Watched::Key(name) | Watched::Prefix(name)) = what;
        // The name is stored in the watch and in the index that finds it.
        let cost = 2 * name.len() as u64 + WAIT_COST_BYTES;
        self.sessions.charge(request.session, cost)?;
        let begun = context.engine.watch(what, from_revision);
        if begun.is_err() {
            self.sessions.discharge(request.session, cost);
        }
        let watch = begun.map_err(|error| match error {
            WatchError::Compacted { oldest } => Fault::new(FaultCode::Compacted, oldest, 0),
            WatchError::NotReached { revision, oldest } => Fault::new(FaultCode::Compacted, oldest, revision),
            WatchError::TooMany(limit) => {
                Fault { text: b"watches", ..Fault::new(FaultCode::TooMany, limit as u64, 0) }
            }
            WatchError::Unknown => Fault::new(FaultCode::NotFound, 0, 0),
        })?;
        self.watching.watches.insert(watch, Watcher { request, cost });
        self.watching.of_request.insert(request.key(), watch);
        Ok(None)
    }

    fn grant(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        ttl: Option<Duration>,
    ) -> Result<u64, Fault<'static>> {
        self.sessions.charge(request.session, WAIT_COST_BYTES)?;
        match context.engine.lease_grant(context.now, ttl) {
            Ok(lease) => {
                self.watching.leases.insert(lease, request);
                self.watching.leases_of.insert((request.session, lease));
                Ok(lease.0)
            }
            Err(error) => {
                self.sessions.discharge(request.session, WAIT_COST_BYTES);
                Err(lease_fault(error))
            }
        }
    }

    /// Sends all changes that the current input has made.
    pub(in crate::node::server) fn push_to_watchers(&mut self, context: &mut ServerContext<'_>) {
        while context.engine.has_ready_watch() && !context.is_budget_spent() {
            // Those that have ended are skipped in steps.
            let Some(watch) = context.engine.next_ready_watch() else { continue };
            context.budget.subtract(ANSWER_WORK);
            self.push_changes(context, watch);
        }
    }

    /// Sends the changes that fit into one frame. If there are more, the engine returns the watch again.
    fn push_changes(&mut self, context: &mut ServerContext<'_>, watch: WatchId) {
        let Some(&Watcher { request, .. }) = self.watching.watches.get(watch) else { return };
        self.try_push_changes(context, watch, request);
        if !self.watching.held_back.contains((request.session, watch)) {
            self.resume_watches(context, request.session);
        }
    }

    fn try_push_changes(&mut self, context: &mut ServerContext<'_>, watch: WatchId, request: RequestId) {
        let conn = self.sessions.conn_of(request.session).and_then(|conn| context.conns.get(conn));
        let takes_more = |unsent: usize| unsent < context.limits.unsent_bytes_high;
        if !conn.is_some_and(|conn| takes_more(conn.outbox.len())) {
            self.watching.held_back.insert((request.session, watch));
            return;
        }
        let mut changes = Vec::new();
        let is_behind_window = match context.engine.undelivered(watch) {
            Ok(undelivered) => {
                let mut bytes = 0;
                let fits = |&ChangeRef { key, value, .. }: &ChangeRef<'_>| {
                    let is_first = bytes == 0;
                    bytes += (key.len() + value.map_or(0, |value| value.len())).max(1);
                    is_first || bytes <= FRAME_BYTES_MAX
                };
                // Counted first: a list that grows would allocate twice as much.
                let count = undelivered.clone().take_while(fits).count();
                changes.reserve_exact(count);
                let change =
                    |ChangeRef { revision, key, value }| Change { revision, key: Key::raw(key), value };
                changes.extend(undelivered.take(count).map(change));
                None
            }
            Err(WatchError::Compacted { oldest }) => Some(oldest),
            Err(WatchError::NotReached { .. } | WatchError::TooMany(_) | WatchError::Unknown) => Some(0),
        };
        if let Some(oldest) = is_behind_window {
            self.end_watch(context, watch);
            let over = ServerFrame::WatchOver { why: Why::Compacted, oldest };
            return self.push(context.conns, request, &over);
        }
        let (Some(last), sent) = (changes.last().map(|change| change.revision), changes.len()) else {
            return;
        };
        self.push(context.conns, request, &ServerFrame::Changed { changes: List::new(&changes) });
        context.engine.delivered(watch, last, sent);
    }

    /// Queues the next held-back watch of a session that reads again. When its changes have been sent, the one after it
    /// follows.
    pub(super) fn resume_watches(&mut self, context: &mut ServerContext<'_>, session: SessionId) {
        let first = self.watching.held_back.of(session).next();
        if let Some((_, watch)) = first {
            self.watching.held_back.remove((session, watch));
            context.engine.queue_watch(watch);
        }
    }

    pub(super) fn cancel_watch(&mut self, context: &mut ServerContext<'_>, request: RequestId) -> bool {
        let Some(watch) = self.watching.of_request.get(request.key()) else { return false };
        self.end_watch(context, watch);
        // It may have been the one that was queued.
        self.resume_watches(context, request.session);
        let over = ServerFrame::WatchOver { why: Why::Cancelled, oldest: 0 };
        self.push(context.conns, request, &over);
        true
    }

    fn end_watch(&mut self, context: &mut ServerContext<'_>, watch: WatchId) {
        context.engine.unwatch(watch);
        let Some(Watcher { request, cost }) = self.watching.watches.remove(watch) else { return };
        self.sessions.discharge(request.session, cost);
        self.watching.of_request.remove(request.key());
        self.watching.held_back.remove((request.session, watch));
    }

    /// Returns whether a session may act on a lease: on its own, on any with the right `all`, and on one that does not
    /// exist, which the store refuses.
    fn may_use(&self, session: SessionId, lease: LeaseId) -> bool {
        self.watching.leases.get(lease).is_none_or(|owner| owner.session == session) || self.is_admin(session)
    }

    fn forget_lease(&mut self, lease: LeaseId) -> Option<RequestId> {
        let owner = self.watching.leases.remove(lease)?;
        self.watching.leases_of.remove((owner.session, lease));
        self.sessions.discharge(owner.session, WAIT_COST_BYTES);
        Some(owner)
    }

    /// Ends expired leases and notifies their owners.
    pub(super) fn expire_leases(&mut self, context: &mut ServerContext<'_>) {
        while !context.is_budget_spent()
            && let Some(lease) = context.engine.lease_expired(context.now)
        {
            if self.may_have_been_renewed(context, lease)
                && context.engine.lease_renew(context.now, lease).is_ok()
            {
                continue;
            }
            let Ok(leased) = context.engine.lease_end(lease) else { return };
            self.begin(context, Job::RemoveLeased(leased), None);
            if let Some(request) = self.forget_lease(lease) {
                context.budget.subtract(ANSWER_WORK);
                let over = ServerFrame::LeaseOver { lease: lease.0, why: Why::Deadline };
                self.push(context.conns, request, &over);
            }
        }
    }

    /// Whether its owner has sent frames that the server has not looked at.
    fn may_have_been_renewed(&self, context: &ServerContext<'_>, lease: LeaseId) -> bool {
        let owner = self.watching.leases.get(lease);
        let conn = owner.and_then(|owner| self.sessions.conn_of(owner.session));
        conn.and_then(|conn| context.conns.get(conn)).is_some_and(|conn| conn.is_parked)
    }

    /// Ends a lease of a session that has ended, but not what was set after this revision. Returns false if there is none
    /// left.
    pub(super) fn end_lease(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        until: u64,
    ) -> bool {
        let lease = self.watching.leases_of.of(session).next();
        let Some((_, lease)) = lease else { return false };
        self.forget_lease(lease);
        // An administrator may have revoked it already.
        if let Ok(leased) = context.engine.lease_end_at(lease, until) {
            self.begin(context, Job::RemoveLeased(leased), None);
        }
        true
    }

    /// Ends a watch or a wait of a session that has ended. Returns false if there is none left.
    pub(super) fn end_watch_or_wait(&mut self, context: &mut ServerContext<'_>, session: SessionId) -> bool {
        let watch = self.watching.of_request.of(session).next();
        let Some((_, watch)) = watch else { return self.end_wait(context, session) };
        self.end_watch(context, watch);
        true
    }
}

fn lease_fault(error: LeaseError) -> Fault<'static> {
    match error {
        LeaseError::Full(limit) => Fault::new(FaultCode::StoreFull, limit, 0),
        LeaseError::Unknown(lease) => Fault::new(FaultCode::UnknownLease, lease, 0),
        LeaseError::TooMany(limit) => {
            Fault { text: b"leases or leased keys", ..Fault::new(FaultCode::TooMany, limit as u64, 0) }
        }
    }
}
