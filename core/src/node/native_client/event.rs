//! Inputs and outputs of the client: plain data.

#[cfg(doc)]
use super::NativeClient;
use super::fault::failure_of_end;
use crate::error::{Cause, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::rendezvous::participant::{self, InvalidState};
use crate::session::client::{End, Identity};
use crate::wire::native::{ClientFrame, Fault, Label, ServerFrame};
use core::net::SocketAddr;

/// Event of the client. Received bytes are passed to [`NativeClient::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The name was resolved: its addresses, in the resolver's order.
    Resolved(&'a [SocketAddr]),
    /// The name was not resolved: the kind of failure and the resolver's error number.
    Unresolved(ErrorKind, Cause),
    /// The connection was established.
    Connected,
    /// The connection was not established.
    ConnectFailed(ErrorKind, Cause),
    /// The established connection ended.
    Ended(Cause),
    /// Time passed.
    Tick,
}

/// Action that the caller carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Resolve the name of the host.
    Resolve,
    /// Connect to this address.
    Connect(SocketAddr),
    /// Close the connection, or stop connecting. Unsent bytes are dropped.
    Disconnect,
    /// The client has ended. [`NativeClient::next_failed`] returns its calls.
    Over(Ending),
}

/// Reason why a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// No connection was established in time, neither the first one nor one to resume the session on.
    Dialling(Failure),
    /// The session ended. The cause is the system's error, if the connection ended.
    Session(End, Cause),
    /// The caller closed the client.
    Left,
}

impl Ending {
    /// Returns the failure of a call that begins after the end, or was under way and had no effect.
    pub fn failure(&self) -> Failure {
        match *self {
            Self::Dialling(failure) => failure,
            Self::Session(end, cause) => failure_of_end(end, cause),
            Self::Left => Failure::new(ErrorKind::SessionEnded, Phase::Sending, Cause::Unknown),
        }
    }
}

/// Data that the caller writes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ToWrite {
    /// The greeting of c10d: VALIDATE, and PING with [`super::IDENTIFY_NONCE`].
    Identify,
    /// The magic, then [`NativeClient::hello`] with this label.
    Opening(Label, Identity),
    /// [`NativeClient::proof`] with this label.
    Proof(Label, Identity),
    /// The request with this id, with this label.
    Request(u64, Label),
    /// This frame, with this label.
    Frame(Label, ClientFrame<'static>),
    /// LEAVE for the run of the Join that was written last: the round was formed after the join had been given up.
    Leave(Label),
}

/// Result of parsing received bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Taken<'b> {
    /// The frame is incomplete. Its length is at least this many bytes.
    Partial(usize),
    /// A frame of this many bytes, and its meaning.
    Frame(usize, Event<'b>),
    /// The client, or the connection, has ended. The caller drops the remaining bytes.
    Over,
}

/// Meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'b> {
    /// The frame does not concern the caller.
    Nothing,
    /// The session is open.
    Open,
    /// The answer to the call with this id.
    Completed(u64, ServerFrame<'b>),
    /// A call failed, with the server's error; or the server sent a frame that does not answer it (no error then).
    Failed(Failed, Option<Fault<'b>>),
    /// A push of the watch or lease that the call with this id created.
    Pushed(u64, ServerFrame<'b>),
    /// An event of the node, and the call that it completes, if the caller waits for one.
    Node(Option<u64>, participant::Event<'b>),
}

/// Failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Id of the call.
    pub id: u64,
    /// Operation of the call.
    pub operation: Operation,
    /// Kind, cause, phase and effect of the failure.
    pub failure: Failure,
}

/// Reason why a call did not begin. The client's state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// The call exceeds a limit.
    #[error(transparent)]
    Limit(LimitError),
    /// The node's part in its run does not allow the request.
    #[error(transparent)]
    InvalidState(InvalidState),
    /// The client has ended.
    #[error("the session is over")]
    Over(Ending),
}
