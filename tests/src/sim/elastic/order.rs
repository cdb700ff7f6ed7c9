//! Requests of a node, and the answers that it expects.

use crate::frames;
use crate::sim::harness::history::OperationId;
use crate::sim::harness::sim_operation::{Answer, SimOperation};
use rendezvous_core::error::Operation;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::call::WaitMode;
use rendezvous_core::store::op::{Key, Keys, Pairs};
use rendezvous_core::store::value_ref::ValueRef;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{ClientFrame, Header, Message, ServerFrame};
use std::fmt;

/// One request, as its node sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// An operation of the history, which the oracle judges.
    SimOperation(OperationId, SimOperation, Instant),
    /// Reads all traced keys, or some of them.
    Read,
    Watch {
        prefix: Vec<u8>,
    },
    /// `begun` numbers the arrivals of the whole simulation.
    Barrier {
        key: Vec<u8>,
        count: u32,
        begun: u64,
    },
    Grant,
    /// The key is set afterwards.
    Attach {
        key: Vec<u8>,
    },
    /// May change a key with this prefix.
    Other {
        what: &'static str,
        key: Vec<u8>,
        began: Instant,
    },
    Join {
        /// Number of the server's process in which the run was known to be closed before this began.
        late: Option<u32>,
    },
    Leave,
    Close,
    Bye,
}

impl Order {
    /// Returns whether a token that allows reading is enough for it.
    pub(super) const fn reads_only(&self) -> bool {
        use SimOperation as S;
        match self {
            Self::SimOperation(_, operation, _) => matches!(
                operation,
                S::Get { .. } | S::Check { .. } | S::Wait { .. } | S::MultiGet { .. } | S::QueueLen { .. }
            ),
            Self::Read | Self::Watch { .. } | Self::Bye => true,
            _ => false,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SimOperation(id, sim_operation, _) => write!(f, "{id} {sim_operation}"),
            Self::Read => f.write_str("a read of traced keys"),
            Self::Watch { prefix } => write!(f, "watch {}", prefix.escape_ascii()),
            Self::Barrier { key, count, begun } => {
                write!(f, "arrival {begun} at {} for {count}", key.escape_ascii())
            }
            Self::Grant => f.write_str("a lease"),
            Self::Attach { key } => write!(f, "attach {}", key.escape_ascii()),
            Self::Other { what, key, .. } => write!(f, "{what} {}", key.escape_ascii()),
            Self::Join { late: None } => f.write_str("join"),
            Self::Join { late: Some(_) } => f.write_str("join, though the run is closed"),
            Self::Leave => f.write_str("leave"),
            Self::Close => f.write_str("close"),
            Self::Bye => f.write_str("bye"),
        }
    }
}

/// An encoded request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
    /// How long the server may let it wait.
    pub(super) span: Duration,
}

impl Request {
    pub(super) fn new(operation: Operation, span: Duration, frame: &ClientFrame<'_>) -> Self {
        Self { operation, kind: frame.kind(), body: frames::native_body(frame), span }
    }

    /// Returns the frame; `None` if it is none of this protocol.
    pub(super) fn open<'a>(&'a self, limits: &'a FrameLimits) -> Option<ClientFrame<'a>> {
        ClientFrame::parse(self.kind, &self.body, limits).ok().flatten()
    }

    /// Returns the request for an operation, if the native protocol has it.
    pub(super) fn of(sim_operation: &SimOperation, span: Duration) -> Option<Self> {
        use Operation as O;
        let key = |name| Key::scoped(b"/", str::as_bytes(name));
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
        let timeout_of = |timeout: WaitMode| if timeout == WaitMode::Once { 0 } else { millis };
        let one = |operation, frame: ClientFrame<'_>| Some(Self::new(operation, span, &frame));
        fn names(of: &[String]) -> Vec<&[u8]> {
            of.iter().map(String::as_bytes).collect()
        }
        match sim_operation {
            SimOperation::Set { name, value } => one(O::Set, ClientFrame::Set { key: key(name), value }),
            SimOperation::CompareSet { name, expected, desired } => {
                one(O::CompareSet, ClientFrame::CompareSet { key: key(name), expected, desired })
            }
            SimOperation::Append { name, value } => {
                one(O::Append, ClientFrame::Append { key: key(name), value })
            }
            SimOperation::Delete { name } => one(O::Delete, ClientFrame::Delete { key: key(name) }),
            SimOperation::Get { name, timeout } => {
                one(O::Get, ClientFrame::Get { timeout_ms: timeout_of(*timeout), key: key(name) })
            }
            SimOperation::Check { name } => one(O::Check, ClientFrame::Check { keys: Keys::one(key(name)) }),
            SimOperation::Wait { names: of } => {
                let keys = names(of);
                one(O::Wait, ClientFrame::Wait { timeout_ms: millis, keys: Keys::scoped(b"/", &keys) })
            }
            SimOperation::Add { name, delta } => {
                one(O::Add, ClientFrame::Add { key: key(name), delta: *delta })
            }
            SimOperation::MultiSet { pairs } => {
                let pairs: Vec<(&[u8], &[u8])> =
                    pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
                one(O::MultiSet, ClientFrame::MultiSet { pairs: Pairs::scoped(b"/", &pairs) })
            }
            SimOperation::MultiGet { names: of, timeout } => {
                let (keys, timeout_ms) = (names(of), timeout_of(*timeout));
                one(O::MultiGet, ClientFrame::MultiGet { timeout_ms, keys: Keys::scoped(b"/", &keys) })
            }
            SimOperation::Push { name, value } => {
                one(O::QueuePush, ClientFrame::QueuePush { key: key(name), value })
            }
            SimOperation::Pop { name, timeout } => {
                one(O::QueuePop, ClientFrame::QueuePop { timeout_ms: timeout_of(*timeout), key: key(name) })
            }
            SimOperation::QueueLen { name } => one(O::QueueLen, ClientFrame::QueueLen { key: key(name) }),
            SimOperation::Barrier { .. }
            | SimOperation::KeyBarrier { .. }
            | SimOperation::Ping
            | SimOperation::NumKeys
            | SimOperation::ListKeys => None,
        }
    }
}

/// Returns the answer to an operation that a frame stands for; `None` if it does not fit.
pub(super) fn answer_to(sim_operation: &SimOperation, frame: &ServerFrame<'_>) -> Option<Answer> {
    Some(match (sim_operation, *frame) {
        (
            SimOperation::Set { .. }
            | SimOperation::Append { .. }
            | SimOperation::MultiSet { .. }
            | SimOperation::Push { .. }
            | SimOperation::Wait { .. },
            ServerFrame::Done { .. },
        ) => Answer::Done,
        (
            SimOperation::Add { .. } | SimOperation::Delete { .. } | SimOperation::QueueLen { .. },
            ServerFrame::Number { number, .. },
        ) => Answer::Number(number),
        (SimOperation::Check { .. }, ServerFrame::Outcome { holds, .. }) => {
            if holds {
                Answer::Ready
            } else {
                Answer::NotReady
            }
        }
        (SimOperation::Get { .. }, ServerFrame::Value { value: Some(value), .. }) => {
            Answer::Value(value.to_vec())
        }
        // Without a value, c10d answers with the expected value, and the oracle judges by c10d.
        (SimOperation::CompareSet { expected, .. }, ServerFrame::Value { value, .. }) => {
            Answer::Value(value.map_or_else(|| expected.clone(), |value| value.to_vec()))
        }
        (SimOperation::MultiGet { names, .. }, ServerFrame::Values { values }) => {
            let values: Vec<_> = values.iter().map(|found| found.value.map(|value| value.to_vec())).collect();
            if values.len() != names.len() {
                return None;
            }
            values.into_iter().collect::<Option<_>>().map_or(Answer::Missing, Answer::Values)
        }
        (SimOperation::Pop { .. }, ServerFrame::Popped { item: Some(item), .. }) => {
            Answer::Value(item.to_vec())
        }
        (SimOperation::Pop { .. }, ServerFrame::Popped { item: None, .. }) => Answer::QueueEmpty,
        _ => return None,
    })
}

/// A frame from the server that owns its bytes.
#[derive(Clone, Debug)]
pub(super) struct OwnedFrame {
    kind: u16,
    body: Vec<u8>,
}

impl OwnedFrame {
    pub(super) fn of(frame: &[u8]) -> Self {
        let (head, body) = frame.split_at(rendezvous_core::wire::native::HEADER_BYTES);
        Self { kind: u16::from_le_bytes([head[4], head[5]]), body: body.to_vec() }
    }

    pub(super) fn open<'a>(&'a self, limits: &'a FrameLimits) -> Option<ServerFrame<'a>> {
        ServerFrame::parse(self.kind, &self.body, limits).ok().flatten()
    }
}

/// Short description of a frame from the server.
pub(super) struct FrameSummary<'a>(pub(super) &'a ServerFrame<'a>);

impl fmt::Display for FrameSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            ServerFrame::Done { revision } => write!(f, "done at {revision}"),
            ServerFrame::Number { number, revision } => write!(f, "{number} at {revision}"),
            ServerFrame::Outcome { holds, revision } => write!(f, "{holds} at {revision}"),
            ServerFrame::Value { revision, value } => {
                write!(
                    f,
                    "{} of {revision}",
                    value.unwrap_or(ValueRef::Bytes(b"nothing")).to_vec().escape_ascii()
                )
            }
            ServerFrame::BarrierOver { generation, ref end } => write!(f, "{generation}: {end:?}"),
            ref other => {
                let kind = other.kind();
                let name =
                    ServerFrame::KINDS.iter().find(|known| known.0 == kind).map_or("?", |known| known.1);
                f.write_str(name)
            }
        }
    }
}

/// Returns the header of a whole frame.
pub(super) fn header_of(frame: &[u8], from: rendezvous_core::wire::native::From) -> Option<Header> {
    Header::read(frame.first_chunk()?, from, &FrameLimits::default()).ok()
}
