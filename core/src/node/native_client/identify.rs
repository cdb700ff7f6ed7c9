//! Asks a peer that closed the connection in place of an answer to the greeting whether it is PyTorch's store, which does so.
//! It is asked on a connection of its own, by the greeting of c10d. What comes of it is the cause of the lost connection.

use super::NativeClient;
use super::event::{Input, Output, Taken};
use crate::error::Cause;
use crate::session::client::Identity;
use crate::store::dial::DialState;
use crate::time::{Duration, Instant};

/// What to do about a peer that closes the connection in place of an answer to the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Nothing: the connection is lost.
    Accept,
    /// Ask whether the peer is PyTorch's store.
    Identify,
}

/// What PING carries, and its echo.
pub const IDENTIFY_NONCE: u32 = 0x5244_5a56;
/// Bytes of the echo.
const ECHO_BYTES: usize = 4;
/// How long the peer may take.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// A peer that is being asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identification {
    /// How the connection before it ended.
    cause: Cause,
    pub(super) until: Instant,
    /// Whether the greeting is to be written.
    pub(super) is_due: bool,
}

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Begins to ask, if there is reason to; whether it does.
    pub(super) fn begin_identification(&mut self, now: Instant, cause: Cause) -> bool {
        let was_closed = matches!(cause, Cause::Closed | Cause::Os(_));
        let is_unanswered = self.dialer.state() == DialState::Greeting
            && self.partial_bytes == 0
            && *self.session.identity() == Identity::default();
        if !was_closed || !is_unanswered || self.options.unanswered == Unanswered::Accept {
            return false;
        }
        let Some(index) = self.dialer.current() else { return false };
        let until = self.dialer.poll_timeout().map_or(now, |due| due.min(now + IDENTIFY_TIMEOUT));
        self.identification = Some(Identification { cause, until, is_due: false });
        self.emit(Output::Connect(index));
        true
    }

    /// Takes in what happened to the connection on which the peer is asked; whether there is one.
    pub(super) fn identification_takes(&mut self, now: Instant, input: &Input<'_>) -> bool {
        let Some(encoded) = &mut self.identification else { return false };
        match input {
            Input::Connected => encoded.is_due = true,
            Input::Tick if now < encoded.until => {}
            Input::Tick | Input::ConnectFailed(..) | Input::Ended(_) => {
                let cause = encoded.cause;
                self.end_identification(now, cause);
            }
            Input::Resolved(_) | Input::Unresolved(..) => {}
        }
        true
    }

    /// Reads the peer's answer.
    pub(super) fn peer_identified(&mut self, now: Instant, bytes: &[u8]) -> Taken<'static> {
        if bytes.len() < ECHO_BYTES {
            return Taken::Partial(ECHO_BYTES);
        }
        let is_echo = bytes == IDENTIFY_NONCE.to_le_bytes();
        let before = self.identification.map_or(Cause::Unknown, |encoded| encoded.cause);
        self.end_identification(now, if is_echo { Cause::ForeignStore } else { before });
        Taken::Over
    }

    fn end_identification(&mut self, now: Instant, cause: Cause) {
        self.identification = None;
        self.emit(Output::Disconnect);
        self.connection_lost(now, cause);
    }
}
