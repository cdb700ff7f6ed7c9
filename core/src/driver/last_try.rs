//! Last failed attempt to reach a server, for a user who waits for the connection.

use super::call_error::CallError;
use super::resolve::error_text;
use crate::driver::prelude::*;
use crate::error::{Cause, ErrorKind, Failure};

/// Failed attempt to reach a server. Its text contains no times, so it changes only with the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTry {
    peer: Box<str>,
    failure: Failure,
}

impl FailedTry {
    /// Makes the description of a failed attempt to reach `peer`.
    pub fn new(peer: &str, failure: Failure) -> Self {
        Self { peer: peer.into(), failure }
    }
}

impl From<&CallError> for FailedTry {
    fn from(error: &CallError) -> Self {
        Self::new(error.peer(), error.failure())
    }
}

impl fmt::Display for FailedTry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, phase) = (&self.peer, self.failure.phase.name());
        if self.failure.cause == Cause::ForeignStore {
            return write!(f, "{peer}: wrong protocol: a PyTorch TCPStore: perhaps a torchrun agent");
        }
        match self.failure.kind {
            ErrorKind::Refused => write!(f, "{peer}: refused")?,
            ErrorKind::Unresolved => write!(f, "{peer}: the host has no address")?,
            ErrorKind::Unreachable => write!(f, "{peer}: no route to the host")?,
            ErrorKind::TimedOut => write!(f, "{peer}: timed out while {phase}")?,
            // A peer that closes the connection before it has read everything resets it. The difference does not
            // matter to a user.
            ErrorKind::ServerGone if !matches!(self.failure.cause, Cause::Tls(_)) => {
                return write!(f, "{peer}: the peer closed the connection");
            }
            ErrorKind::WrongProtocol => write!(f, "{peer}: wrong protocol")?,
            _ => write!(f, "{peer}: failed while {phase}")?,
        }
        match self.failure.cause {
            Cause::Os(number) => write!(f, ": {}", std::io::Error::from_raw_os_error(number)),
            Cause::Resolver(0) => Ok(()),
            Cause::Resolver(number) => write!(f, ": {}", error_text(number)),
            Cause::Closed => f.write_str(": the peer closed the connection"),
            Cause::Silent => f.write_str(": the peer accepted and never answered"),
            Cause::Violation(violation) => write!(f, ": {violation}"),
            Cause::Tls(fault) => write!(f, ": {fault}"),
            _ => Ok(()),
        }
    }
}

/// Last failed attempt, shared between the thread that connects and those that report it. It is empty once there is a
/// connection.
#[derive(Clone, Debug, Default)]
pub struct LastTry(Arc<Mutex<Option<FailedTry>>>);

impl LastTry {
    /// Replaces the last failed attempt.
    pub fn set(&self, failed: Option<FailedTry>) {
        *self.0.locked() = failed;
    }

    /// Returns the last failed attempt.
    pub fn get(&self) -> Option<FailedTry> {
        self.0.locked().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Effect, Phase};
    use crate::time::Duration;
    use alloc::string::ToString;

    #[test]
    fn each_cause_has_its_text() {
        for (kind, phase, cause, expected) in [
            (
                ErrorKind::Refused,
                Phase::Connecting,
                Cause::Os(111),
                "h:1: refused: Connection refused (os error 111)",
            ),
            (ErrorKind::Unresolved, Phase::Resolving, Cause::Resolver(0), "h:1: the host has no address"),
            (ErrorKind::ServerGone, Phase::Greeting, Cause::Closed, "h:1: the peer closed the connection"),
            (ErrorKind::ServerGone, Phase::Waiting, Cause::Os(104), "h:1: the peer closed the connection"),
            (
                ErrorKind::ServerGone,
                Phase::Greeting,
                Cause::ForeignStore,
                "h:1: wrong protocol: a PyTorch TCPStore: perhaps a torchrun agent",
            ),
            (ErrorKind::TimedOut, Phase::Connecting, Cause::Unknown, "h:1: timed out while connecting"),
        ] {
            let failure = Failure { kind, phase, elapsed: Duration::ZERO, cause, effect: Effect::None };
            let text = FailedTry::new("h:1", failure).to_string();
            assert_eq!(text, expected);
        }
    }
}
