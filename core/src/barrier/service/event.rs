//! What goes into the barriers and what comes out of them.

use crate::ordered::{Id, Number, Pair};
use crate::store::op::{Key, Keys};
use crate::time::Duration;
use crate::wire::native::{BarrierEnd, Fault, FaultCode, Participants, Why};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Whose requests these are, as the owner of the machine calls it: a session. A number is never given to another, and
/// nothing comes from it after [`Input::Ended`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(pub u64);

/// One request, which is answered once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrivalId {
    /// Whose.
    pub owner: OwnerId,
    /// Its number among those of its owner.
    pub request: u64,
}

impl Number for OwnerId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

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

/// Somebody is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrive<'a> {
    /// The request to be answered.
    pub arrival: ArrivalId,
    /// At which barrier.
    pub key: &'a [u8],
    /// Which generation; 0: the open one or the next.
    pub generation: u64,
    /// Who.
    pub name: &'a [u8],
    /// How long it waits, and how long the generation may take if it begins with this arrival. Zero: be answered at once,
    /// and leave no trace unless all are there.
    pub timeout: Duration,
    /// Who is awaited.
    pub participants: Participants<'a>,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// Somebody is there.
    Arrive(Arrive<'a>),
    /// Somebody is there no more; the owner of the machine answers the request. One that waits no more is left alone:
    /// what became of it is among the outputs.
    Withdraw {
        /// Which request.
        arrival: ArrivalId,
    },
    /// Nobody is to wait any longer.
    Cancel {
        /// The request to be answered.
        request: ArrivalId,
        /// At which barrier.
        key: &'a [u8],
        /// Who says so.
        by: &'a [u8],
    },
    /// A session has ended. Its requests get no answer any more.
    Ended {
        /// Which one.
        owner: OwnerId,
        /// Its name, unless another session goes by it: then that one may still come.
        node: Option<&'a [u8]>,
        /// Why; [`Why::Left`] breaks nothing that waits for a number.
        why: Why,
    },
    /// Time has passed.
    Tick,
}

/// What the owner of the machine has to answer, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// It is over.
    Over {
        /// Whose answer this is.
        arrival: ArrivalId,
        /// Which generation.
        generation: u64,
        /// How it ended; one for all who waited.
        end: Arc<End>,
    },
    /// Somebody of the same name has taken the place of this arrival.
    Superseded {
        /// Whose answer this is.
        arrival: ArrivalId,
        /// By whom.
        by: ArrivalId,
    },
    /// A cancel was carried out; those who waited have had their answers.
    CancelDone {
        /// Whose answer this is.
        request: ArrivalId,
        /// Whether there were any.
        had_waiters: bool,
    },
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All were there.
    Released,
    /// A participant's session ended.
    Broken {
        /// Who.
        participant: Box<[u8]>,
        /// Why.
        why: Why,
    },
    /// The time was up.
    TimedOut {
        /// How many were missing.
        absent_count: u32,
        /// The first of those, as far as they are known by name.
        absent: Names,
    },
    /// Somebody cancelled it.
    Cancelled {
        /// Who.
        by: Box<[u8]>,
    },
}

impl End {
    /// As it stands in a frame.
    #[must_use]
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

    /// What it keeps in memory beside itself, in bytes.
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
                let named = u32::try_from(absent.len()).unwrap_or(u32::MAX);
                match absent_count.saturating_sub(named) {
                    more if more > 0 && named > 0 => write!(f, " and {more} more"),
                    _ => Ok(()),
                }
            }
            Self::Cancelled { by } => write!(f, "{} cancelled it", Key::raw(by)),
        }
    }
}

/// A list of names, packed as it stands in a frame.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Names {
    count: usize,
    packed: Box<[u8]>,
}

impl Names {
    /// The names.
    #[must_use]
    pub fn as_keys(&self) -> Keys<'_> {
        Keys::packed(self.count, &self.packed)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
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

/// Why the barriers did not do what they were asked. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The generation was begun with other participants.
    #[error("{} has begun with other participants", Key::raw(.set_by))]
    Conflict {
        /// By whom.
        set_by: Box<[u8]>,
        /// How many that one awaits; 0: a list.
        count: u32,
    },
    /// The list does not hold the name.
    #[error("the name is not among the participants")]
    NotAParticipant,
    /// The generation is over and no longer remembered, or others come before it.
    #[error("only generations from {oldest} to {next} are known")]
    UnknownGeneration {
        /// The oldest that is remembered; 0: none is over.
        oldest: u64,
        /// The one that is open or comes next.
        next: u64,
    },
    /// The arrival makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// A name is over the limit.
    #[error("a name of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Its length, in bytes.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// A limit is reached.
    #[error("there are {limit} {what} already, or there would be more")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// The caller's mistake: the request waits already.
    #[error("{0:?} waits already")]
    WaitsAlready(ArrivalId),
}

impl Refusal {
    /// As it stands in an error frame.
    #[must_use]
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
