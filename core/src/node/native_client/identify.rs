//! Finds out whether a peer that closed the connection instead of answering the greeting is PyTorch's store, which does
//! that. The client sends the greeting of c10d on a connection of its own. The result becomes the cause of the lost
//! connection.

use super::NativeClient;
use super::event::{Input, Output, Taken};
use crate::error::Cause;
use crate::session::client::Identity;
use crate::store::dial::DialState;
use crate::time::{Duration, Instant};

/// What the client does about a peer that closes the connection instead of answering the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// Treat the connection as lost.
    Accept,
    /// Find out whether the peer is PyTorch's store.
    Identify,
}

/// Number that PING carries and that the peer echoes.
pub const IDENTIFY_NONCE: u32 = 0x5244_5a56;
/// Length of the echo in bytes.
const ECHO_BYTES: usize = 4;
/// Time that the peer has for the echo.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// State of an identification.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identification {
    /// How the previous connection ended.
    cause: Cause,
    pub(super) until: Instant,
    /// Whether the greeting still has to be written.
    pub(super) is_due: bool,
}

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Starts an identification where the options and the way the connection ended allow it. Returns whether it did.
    pub(super) fn begin_identification(&mut self, now: Instant, cause: Cause) -> bool {
        let was_closed = matches!(cause, Cause::Closed | Cause::Os(_));
        let is_unanswered = self.dialer.state() == DialState::Greeting
            && self.partial_bytes == 0
            && *self.session.identity() == Identity::default();
        if !was_closed || !is_unanswered || self.options.unanswered == Unanswered::Accept {
            return false;
        }
        let Some(address) = self.dialer.current() else { return false };
        let until = self.dialer.poll_timeout().map_or(now, |due| due.min(now + IDENTIFY_TIMEOUT));
        self.identification = Some(Identification { cause, until, is_due: false });
        self.emit(Output::Connect(address));
        true
    }

    /// Handles an event of the identification's connection. Returns whether an identification is in progress.
    pub(super) fn identification_takes(&mut self, now: Instant, input: &Input<'_>) -> bool {
        let Some(identification) = &mut self.identification else { return false };
        match input {
            Input::Connected => identification.is_due = true,
            Input::Tick if now < identification.until => {}
            Input::Tick | Input::ConnectFailed(..) | Input::Ended(_) => {
                let cause = identification.cause;
                self.end_identification(now, cause);
            }
            Input::Resolved(_) | Input::Unresolved(..) => {}
        }
        true
    }

    /// Reads the peer's echo.
    pub(super) fn peer_identified(&mut self, now: Instant, bytes: &[u8]) -> Taken<'static> {
        if bytes.len() < ECHO_BYTES {
            return Taken::Partial(ECHO_BYTES);
        }
        let is_echo = bytes == IDENTIFY_NONCE.to_le_bytes();
        let before = self.identification.map_or(Cause::Unknown, |identification| identification.cause);
        self.end_identification(now, if is_echo { Cause::ForeignStore } else { before });
        Taken::Over
    }

    fn end_identification(&mut self, now: Instant, cause: Cause) {
        self.identification = None;
        self.emit(Output::Disconnect);
        self.connection_lost(now, cause);
    }
}
