//! What goes in and out of the client: plain data.

#[cfg(doc)]
use super::NativeClient;
use super::fault::failure_of_end;
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::rendezvous::participant::{self, InvalidState};
use crate::session::client::{End, Identity};
use crate::store::dial::Family;
use crate::time::Duration;
use crate::wire::native::{ClientFrame, Fault, Label, ServerFrame};

/// What happened. Received bytes go to [`NativeClient::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The host has addresses of these families, in the resolver's order.
    Resolved(&'a [Family]),
    /// The host has no address; the resolver's error number.
    Unresolved(ErrorKind, Cause),
    /// The address accepted.
    Connected,
    /// The connection was not made.
    ConnectFailed(ErrorKind, Cause),
    /// The connection ended.
    Ended(Cause),
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Look the host's addresses up.
    Resolve,
    /// Connect to the address with this index in what was resolved.
    Connect(u8),
    /// Close the connection, or stop making it; what is unsent goes with it.
    Disconnect,
    /// The client is over; [`NativeClient::next_failed`] tells of its calls.
    Over(Ending),
}

/// Why a client is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was no connection in time: the first one, or one to resume the session on.
    Dialling(Failure),
    /// The session is over; and what the system said, if its connection ended.
    Session(End, Cause),
    /// It was closed from this side, as it should be.
    Left,
}

impl Ending {
    /// What a call is told that comes too late, or was under way and had no effect.
    #[must_use]
    pub fn failure(&self) -> Failure {
        match *self {
            Self::Dialling(failure) => failure,
            Self::Session(end, cause) => failure_of_end(end, cause),
            Self::Left => Failure {
                kind: ErrorKind::SessionEnded,
                phase: Phase::Sending,
                elapsed: Duration::ZERO,
                cause: Cause::Unknown,
                effect: Effect::None,
            },
        }
    }
}

/// What is to be written next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToWrite {
    /// The greeting of c10d, VALIDATE and PING with [`super::IDENTIFY_NONCE`].
    Identify,
    /// The magic, and [`NativeClient::hello`] with this label.
    Opening(Label, Identity),
    /// This request, with this label.
    Request(u64, Label),
    /// This frame.
    Frame(Label, ClientFrame<'static>),
    /// LEAVE, for the run in the Join that was written last: its round came when nobody waited for it any more.
    Leave(Label),
}

/// What came out of received bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taken<'b> {
    /// The frame is not whole: it has at least so many bytes.
    Partial(usize),
    /// A frame of so many bytes, and what it meant.
    Frame(usize, Event<'b>),
    /// The client, or the connection, is over; what else was received is of no use.
    Over,
}

/// What a frame meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'b> {
    /// Nothing that concerns the caller.
    Nothing,
    /// The session is open.
    Open,
    /// The answer to a call.
    Completed(u64, ServerFrame<'b>),
    /// A call failed, with the server's own words; or the server answered with something that is no answer to it.
    Failed(Failed, Option<Fault<'b>>),
    /// A push of a watch or a lease.
    Pushed(u64, ServerFrame<'b>),
    /// Something happened to the node. It answers this call, if it answers one that is awaited.
    Node(Option<u64>, participant::Event<'b>),
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which.
    pub id: u64,
    /// What it wanted.
    pub operation: Operation,
    /// How.
    pub failure: Failure,
}

/// Why a call was not begun. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// A limit does not hold.
    #[error(transparent)]
    Limit(LimitError),
    /// The node may not ask for that where it stands.
    #[error(transparent)]
    InvalidState(InvalidState),
    /// The client is over.
    #[error("the session is over")]
    Over(Ending),
}
