//! Inputs and outputs of the barriers.

use crate::ordered::{Id, Pair, numbers};
use crate::prelude::*;
use crate::store::op::{Key, Keys};
use crate::wire::native::{BarrierEnd, Fault, FaultCode, Participants, Why};

/// Id that the caller gives to an owner of requests: a session. Ids are never reused, and an owner makes no request
/// after [`Input::Ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u64);

/// Id of a request. Each request is answered once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId {
    /// Owner of the request.
    pub owner: OwnerId,
    /// Number of the request among those of its owner.
    pub request: u64,
}

numbers!(OwnerId: id => id.0, number => Self(number));

impl Id for ArrivalId {
    fn pair(self) -> Pair {
        (self.owner.0, self.request)
    }

    fn from_pair((owner, request): Pair) -> Self {
        Self { owner: OwnerId(owner), request }
    }
}

impl fmt::Debug for ArrivalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of {}", self.request, self.owner.0)
    }
}

/// Arrival of a participant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrive<'a> {
    /// Request to answer.
    pub arrival: ArrivalId,
    /// Key of the barrier.
    pub key: &'a [u8],
    /// Generation; 0: the open one, or the next.
    pub generation: u64,
    /// Name of the participant.
    pub name: &'a [u8],
    /// Time that it waits, which is also the time for the generation if it begins with this arrival. Zero: the arrival
    /// is answered at once, and leaves no trace unless it completes the generation.
    pub timeout: Duration,
    /// All participants of the barrier.
    pub participants: Participants<'a>,
}

/// Node whose last session has ended.
#[derive(Clone, Copy)]
pub struct EndedNode<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Returns whether the session could arrive at the barrier with a key. No other barrier awaited it, whatever its
    /// name.
    pub could_arrive: &'a dyn Fn(&[u8]) -> bool,
}

impl fmt::Debug for EndedNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Key::raw(self.name).fmt(f)
    }
}

/// Event that the barriers handle.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// A participant has arrived.
    Arrive(Arrive<'a>),
    /// A participant withdraws its arrival; the caller answers the request. Ignored if the request does not wait: its
    /// answer is among the outputs.
    Withdraw {
        /// Request to withdraw.
        arrival: ArrivalId,
    },
    /// A client ends the waits of all participants.
    Cancel {
        /// Request to answer.
        request: ArrivalId,
        /// Key of the barrier.
        key: &'a [u8],
        /// Name of the client that cancels.
        by: &'a [u8],
    },
    /// A session has ended. Its requests are not answered any more.
    Ended {
        /// Owner that has ended.
        owner: OwnerId,
        /// Its node, unless another session has the same name and may still arrive.
        node: Option<EndedNode<'a>>,
        /// Reason for the end. [`Why::Left`] does not break a generation with a count.
        why: Why,
    },
    /// A round has ended. The arrivals at barriers of its keys are taken back, as many as a step goes: see
    /// [`super::Barriers::waits_below`].
    Fence {
        /// Prefix of its keys.
        prefix: &'a [u8],
        /// Its number.
        round: u64,
    },
    /// Time passed.
    Tick,
}

/// Answer that the caller sends, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The generation of an arrival has ended, or its own timeout.
    Over {
        /// Request to answer.
        arrival: ArrivalId,
        /// Generation that it waited for.
        generation: u64,
        /// The end, shared by all arrivals that waited.
        end: Arc<End>,
    },
    /// Another arrival with the same name replaced this one.
    Superseded {
        /// Request to answer.
        arrival: ArrivalId,
        /// Request that replaced it.
        by: ArrivalId,
    },
    /// The round to whose keys the barrier of an arrival belongs has ended.
    Stale {
        /// Request to answer.
        arrival: ArrivalId,
        /// The round.
        round: u64,
    },
    /// A cancel was executed, after the answers to all arrivals that waited.
    CancelDone {
        /// Request to answer.
        request: ArrivalId,
        /// Whether any arrival waited.
        had_waiters: bool,
    },
}

/// End of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All participants arrived.
    Released,
    /// The session of a participant ended.
    Broken {
        /// Name of the participant.
        participant: Box<[u8]>,
        /// Reason for the end of its session.
        why: Why,
    },
    /// The deadline passed.
    TimedOut {
        /// Number of missing participants.
        absent_count: u32,
        /// The first of them, as far as their names are known.
        absent: Names,
    },
    /// A client cancelled the generation.
    Cancelled {
        /// Name of the client.
        by: Box<[u8]>,
    },
}

impl End {
    /// Returns the end as it is encoded in a frame.
    pub fn as_wire(&self) -> BarrierEnd<'_> {
        match self {
            Self::Released => BarrierEnd::Released,
            Self::Broken { participant, why } => BarrierEnd::Broken { participant, why: *why },
            Self::TimedOut { absent_count, absent } => {
                BarrierEnd::TimedOut { absent_count: *absent_count, absent: absent.as_keys() }
            }
            Self::Cancelled { by } => BarrierEnd::Cancelled { by },
        }
    }

    /// Returns the heap memory of the end, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Released => 0,
            Self::Broken { participant: name, .. } | Self::Cancelled { by: name } => name.len(),
            Self::TimedOut { absent, .. } => absent.packed.len(),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("all were there"),
            Self::Broken { participant, why } => write!(f, "{} is gone: {why}", Key::raw(participant)),
            Self::TimedOut { absent_count, absent } => {
                write!(f, "the time was up, and {absent_count} were missing")?;
                for (at, name) in absent.as_keys().iter().enumerate() {
                    write!(f, "{}{name}", if at == 0 { ": " } else { ", " })?;
                }
                let named = u32::try_from(absent.count).unwrap_or(u32::MAX);
                match absent_count.saturating_sub(named) {
                    more if more > 0 && named > 0 => write!(f, " and {more} more"),
                    _ => Ok(()),
                }
            }
            Self::Cancelled { by } => write!(f, "{} cancelled it", Key::raw(by)),
        }
    }
}

/// List of names, packed as in a frame.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Names {
    count: usize,
    packed: Box<[u8]>,
}

impl Names {
    /// Returns the names.
    pub fn as_keys(&self) -> Keys<'_> {
        Keys::packed(self.count, &self.packed)
    }
}

impl<'a> FromIterator<&'a [u8]> for Names {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(names: I) -> Self {
        let (mut count, mut packed) = (0, Vec::new());
        for name in names {
            packed.extend_from_slice(&(name.len() as u64).to_le_bytes());
            packed.extend_from_slice(name);
            count += 1;
        }
        Self { count, packed: packed.into() }
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_keys().fmt(f)
    }
}

/// Reason why the barriers refuse a request. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The generation began with other participants.
    #[error("{} has begun with other participants", Key::raw(.set_by))]
    Conflict {
        /// Name of the participant that began it.
        set_by: Box<[u8]>,
        /// Its number of participants; 0: it gave a list.
        count: u32,
    },
    /// The name is not in the list of participants.
    #[error("the name is not among the participants")]
    NotAParticipant,
    /// The generation has ended and is no longer remembered, or earlier generations have not ended yet.
    #[error("only generations from {oldest} to {next} are known")]
    UnknownGeneration {
        /// The oldest generation that is remembered; 0: none has ended.
        oldest: u64,
        /// The generation that is open, or else the next one.
        next: u64,
    },
    /// The arrival is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// A name exceeds the limit.
    #[error("a name of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the name, in bytes.
        length: usize,
        /// Limit, in bytes.
        limit: usize,
    },
    /// A limit is reached.
    #[error("there are {limit} {what} already, or there would be more")]
    TooMany {
        /// Kind of object that is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Misuse by the caller: the request already waits.
    #[error("{0:?} waits already")]
    WaitsAlready(ArrivalId),
}

impl Refusal {
    /// Returns the refusal as an error frame has it.
    pub fn fault(&self) -> Fault<'_> {
        let (code, first, second, text): (_, _, _, &[u8]) = match self {
            Self::Conflict { set_by, count } => (FaultCode::BarrierConflict, u64::from(*count), 0, set_by),
            Self::NotAParticipant => (FaultCode::NotAParticipant, 0, 0, b""),
            Self::UnknownGeneration { oldest, next } => (FaultCode::UnknownGeneration, *oldest, *next, b""),
            Self::Invalid(what) => (FaultCode::InvalidArgument, 0, 0, what.as_bytes()),
            Self::TooLong { length, limit } => (FaultCode::TooLong, *length as u64, *limit as u64, b""),
            Self::TooMany { what, limit } => (FaultCode::TooMany, *limit, 0, what.as_bytes()),
            Self::WaitsAlready(_) => {
                (FaultCode::InvalidArgument, 0, 0, b"a request with this number waits already")
            }
        };
        Fault { code, first, second, text }
    }
}
