//! Barrier requests of native clients, and their answers.

use super::greeting::may;
use super::jobs::Job;
use super::store::fault_of;
use super::{ANSWER_WORK, Native, RequestId, ServerContext, millis};
use crate::barrier::service::{ArrivalId, Arrive, EndedNode, Input, Output, OwnerId, Refusal};
use crate::prelude::*;
use crate::session::table::SessionId;
use crate::store::engine::{ApplyError, Stale};
use crate::store::op::Key;
use crate::wire::native::{ClientFrame, Fault, FaultCode, ServerFrame, Why};
use core::cell::Cell;

impl Native {
    pub(super) fn barrier_request(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        frame: &ClientFrame<'_>,
    ) {
        let arrival = arrival(request);
        let (stale, is_open, input) = match *frame {
            ClientFrame::Barrier { key, generation, name, timeout_ms, participants } => {
                let (key, timeout) = (key.name(), millis(timeout_ms));
                let arrive = Arrive { arrival, key, generation, name, timeout, participants };
                (context.engine.fence_of(key), self.barriers.is_open(key), Input::Arrive(arrive))
            }
            ClientFrame::BarrierCancel { key, name } => {
                (None, false, Input::Cancel { request: arrival, key: key.name(), by: name })
            }
            _ => return,
        };
        // After the end of a round, its barriers still answer with the results that they have. No arrival waits there any
        // more, or completes a barrier at which others have not been failed yet.
        let is_over = stale.is_some() && is_open;
        if !is_over && let Err(refusal) = self.handle_barriers(context, input) {
            return self.fail(context, request, refusal.fault());
        }
        if let Some(stale) = stale
            && (is_over || self.cancel_arrival(context, request))
        {
            self.fail(context, request, fault_of(&ApplyError::Stale(stale)));
        }
    }

    /// Ends the waits at barriers whose keys belong to a round that has ended.
    pub(super) fn fence_barriers(&mut self, context: &mut ServerContext<'_>, prefix: &[u8], round: u64) {
        self.begin(context, Job::FailArrivals(prefix.into(), round), None);
    }

    /// Does a step of [`Job::FailArrivals`]. Returns whether it was the last one.
    pub(super) fn fail_arrivals(
        &mut self,
        context: &mut ServerContext<'_>,
        prefix: &[u8],
        round: u64,
    ) -> bool {
        // A fence is never refused.
        let _ = self.handle_barriers(context, Input::Fence { prefix, round });
        !self.barriers.waits_below(prefix)
    }

    fn handle_barriers(&mut self, context: &mut ServerContext<'_>, input: Input<'_>) -> Result<(), Refusal> {
        self.expire_barriers(context);
        let handled = self.barriers.handle(context.now, input);
        context.budget.for_others += self.barriers.take_work_for_others();
        context.budget.subtract(self.barriers.take_work());
        self.drain_barriers(context);
        handled
    }

    /// Withdraws an arrival. Returns whether it was waiting.
    pub(super) fn cancel_arrival(&mut self, context: &mut ServerContext<'_>, request: RequestId) -> bool {
        let arrival = arrival(request);
        let waited = self.barriers.waits(arrival);
        if waited {
            // A withdrawal is never refused.
            let _ = self.handle_barriers(context, Input::Withdraw { arrival });
        }
        waited && self.sessions.is_pending(request.session, request.id)
    }

    /// Counts a new session for its node.
    pub(super) fn count_session(&mut self, session: SessionId, node: &[u8]) {
        let name = self.qualified_name(session, node);
        *self.nodes.entry(&name, || 0) += 1;
    }

    /// Returns the name of a session's node behind that of its token. A node name is a claim: only sessions that have
    /// proven the same token count as sessions of one node.
    fn qualified_name(&self, session: SessionId, node: &[u8]) -> Vec<u8> {
        let token = self.tokens.get(session).map_or("", |token| &token.name);
        // No name of a token contains a space.
        [token.as_bytes(), node].join(&b' ')
    }

    pub(super) fn end_arrivals(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        node: &[u8],
        why: Why,
    ) {
        let name = self.qualified_name(session, node);
        let others = self.nodes.get_mut(&name).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if others == 0 {
            self.nodes.remove(&name);
        }
        let token = self.tokens.get(session).cloned();
        let (after_run_id, run_id_bytes_max) =
            (self.after_run_id, context.limits.rendezvous.run_id_bytes_max);
        let keys = Cell::new(0);
        let could_arrive = |key: &[u8]| {
            // Each participant may cancel the barrier.
            let request = ClientFrame::BarrierCancel { key: Key::raw(key), name: b"" };
            token
                .as_ref()
                .is_none_or(|token| may(token, (&after_run_id, run_id_bytes_max), &request, &keys).is_ok())
        };
        let node = (others == 0).then_some(EndedNode { name: node, could_arrive: &could_arrive });
        // The end of an owner is never refused.
        let _ = self.handle_barriers(context, Input::Ended { owner: OwnerId(session.0), node, why });
        context.budget.subtract(keys.get());
    }

    pub(super) fn tick_barriers(&mut self, context: &mut ServerContext<'_>) {
        // Earlier answers come first: what expires now may take all of the budget.
        self.drain_barriers(context);
        self.expire_barriers(context);
        self.drain_barriers(context);
    }

    /// Ends what is due. That is not the work of the client whose request comes next.
    fn expire_barriers(&mut self, context: &mut ServerContext<'_>) {
        if self.barriers.poll_timeout().is_some_and(|at| at <= context.now) {
            // A tick is never refused.
            let _ = self.barriers.handle(context.now, Input::Tick);
            self.barriers.take_work_for_others();
            let work = self.barriers.take_work();
            context.budget.for_others += work;
            context.budget.subtract(work);
        }
    }

    /// Sends the answers of the barriers. Those that exceed the turn follow at the next tick.
    pub(super) fn drain_barriers(&mut self, context: &mut ServerContext<'_>) {
        if self.barriers.has_output() {
            context.for_others(|context| self.answer_arrivals(context));
        }
    }

    fn answer_arrivals(&mut self, context: &mut ServerContext<'_>) {
        while !context.is_budget_spent()
            && let Some(output) = self.barriers.poll_output()
        {
            context.budget.subtract(ANSWER_WORK);
            match output {
                Output::Over { arrival, generation, end } => {
                    let over = ServerFrame::BarrierOver { generation, end: end.as_wire() };
                    self.answer(context, request_of(arrival), &over);
                }
                Output::Superseded { arrival, .. } => {
                    let text = b"another arrival with the same name replaced it";
                    let fault = Fault { text, ..Fault::new(FaultCode::Cancelled, 0, 0) };
                    self.fail(context, request_of(arrival), fault);
                }
                Output::Stale { arrival, round } => {
                    let stale = Stale { round, over: round };
                    self.fail(context, request_of(arrival), fault_of(&ApplyError::Stale(stale)));
                }
                Output::CancelDone { request, had_waiters } => {
                    let revision = context.engine.revision();
                    let outcome = ServerFrame::Outcome { holds: had_waiters, revision };
                    self.answer(context, request_of(request), &outcome);
                }
            }
        }
    }
}

const fn arrival(request: RequestId) -> ArrivalId {
    ArrivalId { owner: OwnerId(request.session.0), request: request.id }
}

const fn request_of(arrival: ArrivalId) -> RequestId {
    RequestId { session: SessionId(arrival.owner.0), id: arrival.request }
}
