//! What the nodes of a run wait for, among the frames that they are pushed.

use rendezvous_core::limits::FrameLimits;
use rendezvous_core::wire::native::{ServerFrame, Why};
use std::rc::Rc;

/// A frame that has to come.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    /// None; but others may.
    Nothing,
    /// A round of this run, with so many nodes.
    Round { run_id: Rc<str>, nodes: u32 },
    /// The death of this node, whose connection ended.
    Death { node: Rc<str> },
    /// A request is done.
    Done,
}

/// What a frame is to one who awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    Awaited,
    /// It says something else, which may be so.
    Other,
    /// It cannot be.
    Wrong,
}

impl Awaited {
    pub(super) fn judge(&self, kind: u16, body: &[u8], limits: &FrameLimits) -> Judged {
        let frame = match ServerFrame::parse(kind, body, limits) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Judged::Other,
            Err(_) => return Judged::Wrong,
        };
        let holds = match (self, frame) {
            (_, ServerFrame::Error { .. } | ServerFrame::SessionOver { .. }) => false,
            (
                Self::Round { run_id, nodes },
                ServerFrame::Round { run_id: of, nodes: all, node_rank, world_size, .. },
            ) => {
                of.name() == run_id.as_bytes()
                    && all == *nodes
                    && node_rank < all
                    && world_size == u64::from(all)
            }
            (Self::Death { node }, ServerFrame::PeerDied { node: dead, why, .. }) => {
                dead == node.as_bytes() && why == Why::Connection
            }
            (Self::Done, ServerFrame::Done { .. }) => true,
            _ => return Judged::Other,
        };
        if holds { Judged::Awaited } else { Judged::Wrong }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendezvous_core::store::op::Key;
    use rendezvous_core::wire::native::{Fault, FaultCode, Message};
    use rendezvous_core::wire::sink::Sink;

    struct Body(Vec<u8>);

    impl Sink for Body {
        fn put(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
    }

    fn judged(awaited: &Awaited, frame: &ServerFrame<'_>) -> Judged {
        let mut body = Body(Vec::new());
        frame.write_body(&mut body);
        awaited.judge(frame.kind(), &body.0, &FrameLimits::default())
    }

    fn round(run_id: &str, node_rank: u32, nodes: u32) -> ServerFrame<'_> {
        ServerFrame::Round {
            run_id: Key::raw(run_id.as_bytes()),
            round: 0,
            node_rank,
            nodes,
            rank_first: node_rank.into(),
            world_size: nodes.into(),
            leader: b"",
            namespace: Key::raw(b""),
        }
    }

    #[test]
    fn a_round_must_be_of_the_run_and_have_all_nodes() {
        let awaited = Awaited::Round { run_id: "r".into(), nodes: 3 };
        assert_eq!(judged(&awaited, &round("r", 2, 3)), Judged::Awaited);
        for wrong in [round("q", 2, 3), round("r", 3, 3), round("r", 0, 2)] {
            assert_eq!(judged(&awaited, &wrong), Judged::Wrong, "{wrong:?}");
        }
        let placed = ServerFrame::Placed { run_id: Key::raw(b"r"), is_participant: true, ahead: 0 };
        assert_eq!(judged(&awaited, &placed), Judged::Other);
    }

    #[test]
    fn a_death_must_be_of_the_node_that_was_closed() {
        let awaited = Awaited::Death { node: "n".into() };
        let died =
            |node, why| ServerFrame::PeerDied { run_id: Key::raw(b"r"), round: 0, node_rank: 1, node, why };
        assert_eq!(judged(&awaited, &died(b"n", Why::Connection)), Judged::Awaited);
        assert_eq!(judged(&awaited, &died(b"m", Why::Connection)), Judged::Wrong);
        assert_eq!(judged(&awaited, &died(b"n", Why::Heartbeat)), Judged::Wrong);
    }

    #[test]
    fn an_error_is_never_what_is_awaited() {
        let error = ServerFrame::Error { fault: Fault::new(FaultCode::TimedOut, 0, 0) };
        for awaited in [Awaited::Nothing, Awaited::Done] {
            assert_eq!(judged(&awaited, &error), Judged::Wrong);
            assert_eq!(
                awaited.judge(0x80f0, b"", &FrameLimits::default()),
                Judged::Other,
                "of a later version"
            );
        }
        assert_eq!(judged(&Awaited::Done, &ServerFrame::Done { revision: 1 }), Judged::Awaited);
    }
}
