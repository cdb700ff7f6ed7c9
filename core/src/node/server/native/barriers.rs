//! Barriers at a server: who arrives, and what each is told.

use super::{Desk, Native, millis};
use crate::barrier::service::{ArrivalId, Arrive, Input, Output, OwnerId};
use crate::session::table::SessionId;
use crate::wire::native::{ClientFrame, Fault, FaultCode, ServerFrame, Why};

impl Native {
    pub(super) fn barrier_request(
        &mut self,
        desk: &mut Desk<'_>,
        session: SessionId,
        id: u64,
        frame: &ClientFrame<'_>,
    ) {
        let arrival = arrival(session, id);
        let input = match *frame {
            ClientFrame::Barrier { key, generation, name, timeout_ms, participants } => {
                Input::Arrive(Arrive {
                    arrival,
                    key: key.name(),
                    generation,
                    name,
                    timeout: millis(timeout_ms),
                    participants,
                })
            }
            ClientFrame::BarrierCancel { key, name } => {
                Input::Cancel { request: arrival, key: key.name(), by: name }
            }
            _ => return,
        };
        let refused = self.barriers.handle(desk.now, input);
        self.drain_barriers(desk);
        if let Err(refusal) = refused {
            self.fail(desk, session, id, refusal.fault());
        }
    }

    /// Takes an arrival back; whether it waited.
    pub(super) fn cancel_arrival(&mut self, desk: &mut Desk<'_>, session: SessionId, request: u64) -> bool {
        let arrival = arrival(session, request);
        let waited = self.barriers.waits(arrival);
        if waited {
            // Taking back is never refused.
            let _ = self.barriers.handle(desk.now, Input::Withdraw { arrival });
            self.drain_barriers(desk);
        }
        waited && self.sessions.is_pending(session, request)
    }

    pub(super) fn end_arrivals(&mut self, desk: &mut Desk<'_>, session: SessionId, node: &[u8], why: Why) {
        let others = self.nodes.get_mut(node).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if others == 0 {
            self.nodes.remove(node);
        }
        let node = Some(node).filter(|_| others == 0);
        // That somebody is gone is never refused.
        let _ = self.barriers.handle(desk.now, Input::Ended { owner: OwnerId(session.0), node, why });
        self.drain_barriers(desk);
    }

    pub(super) fn tick_barriers(&mut self, desk: &mut Desk<'_>) {
        if self.barriers.poll_timeout().is_some_and(|at| at <= desk.now) {
            // Time alone is never refused.
            let _ = self.barriers.handle(desk.now, Input::Tick);
            self.drain_barriers(desk);
        }
    }

    fn drain_barriers(&mut self, desk: &mut Desk<'_>) {
        while let Some(output) = self.barriers.poll_output() {
            match output {
                Output::Over { arrival, generation, end } => {
                    let over = ServerFrame::BarrierOver { generation, end: end.as_wire() };
                    self.answer(desk, SessionId(arrival.owner.0), arrival.request, &over);
                }
                Output::Superseded { arrival, .. } => {
                    let text = b"another arrival of the same name took its place";
                    let fault = Fault { text, ..Fault::new(FaultCode::Cancelled, 0, 0) };
                    self.fail(desk, SessionId(arrival.owner.0), arrival.request, fault);
                }
                Output::CancelAnswered { request, somebody_waited } => {
                    let revision = desk.engine.revision();
                    let verdict = ServerFrame::Verdict { holds: somebody_waited, revision };
                    self.answer(desk, SessionId(request.owner.0), request.request, &verdict);
                }
            }
        }
    }
}

const fn arrival(session: SessionId, request: u64) -> ArrivalId {
    ArrivalId { owner: OwnerId(session.0), request }
}
