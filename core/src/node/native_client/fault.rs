//! Translation of the server's errors to the kinds and messages that a caller gets. No other code does this.

use crate::error::{Cause, ErrorKind, Failure, LimitError, Phase};
use crate::session::client::End;
use crate::store::op::write_lossy;
use crate::wire::native::{Fault, FaultCode, Why};
use core::fmt;

/// Returns the kind of failure for an error code of the server.
pub const fn kind_of(code: FaultCode) -> ErrorKind {
    use FaultCode as C;
    match code {
        C::VersionUnsupported
        | C::Malformed
        | C::UnknownRequest
        | C::UnknownFlags
        | C::UnexpectedFrame
        | C::FalseAcknowledgement
        | C::TlsRequired => ErrorKind::WrongProtocol,
        C::NotFound | C::UnknownLease | C::UnknownRound | C::UnknownGeneration => ErrorKind::NotFound,
        C::NotANumber | C::InvalidArgument | C::NotAParticipant => ErrorKind::InvalidArgument,
        C::Unauthenticated => ErrorKind::Unauthenticated,
        C::PermissionDenied => ErrorKind::PermissionDenied,
        C::BarrierConflict | C::BoundsConflict | C::AlreadyJoined => ErrorKind::Conflict,
        C::CoolingDown | C::TooLong | C::StoreFull | C::TooManyPending | C::TooManySessions | C::TooMany => {
            ErrorKind::LimitExceeded
        }
        C::TimedOut => ErrorKind::TimedOut,
        C::Cancelled => ErrorKind::Cancelled,
        C::SessionEnded | C::SessionForged | C::WindowPassed | C::RequestForgotten => ErrorKind::SessionEnded,
        C::StaleRound => ErrorKind::StaleRound,
        C::Compacted => ErrorKind::Compacted,
        C::RunClosed | C::NotNeeded => ErrorKind::Closed,
        C::Replaced => ErrorKind::Replaced,
        C::ServerStopping => ErrorKind::ServerGone,
        C::Other(number) => match number / 100 {
            1 => ErrorKind::WrongProtocol,
            2 => ErrorKind::InvalidArgument,
            3 => ErrorKind::LimitExceeded,
            _ => ErrorKind::SessionEnded,
        },
    }
}

/// Returns the failure of a request that the server answered with an error. Such a request had no effect.
pub const fn failure_of(fault: &Fault<'_>) -> Failure {
    let cause = match fault.code {
        FaultCode::NotANumber => Cause::NotANumber,
        FaultCode::StoreFull => Cause::Limit(LimitError::Stored { bytes_max: fault.first }),
        FaultCode::TooManyPending => Cause::Limit(LimitError::Operations { count: fault.first }),
        // The limit may be one on a key, a value, a list or a frame. The message names the lengths.
        _ => Cause::Unknown,
    };
    Failure::new(kind_of(fault.code), Phase::Waiting, cause)
}

/// Message for an error of the server, in addition to that of its kind; empty where [`failure_of`] says it all.
#[derive(Clone, Copy, Debug)]
pub struct Describe<'a>(pub Fault<'a>);

impl fmt::Display for Describe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FaultCode as C;
        let Fault { code, first, second, text } = self.0;
        match code {
            // The text is a whole sentence.
            C::BoundsConflict | C::AlreadyJoined | C::CoolingDown | C::UnknownRound if !text.is_empty() => {
                return write_lossy(f, text);
            }
            C::VersionUnsupported => write!(f, "the server speaks versions {first} to {second}")?,
            C::Malformed => write!(f, "the server could not read a frame of kind {first:#06x}")?,
            C::UnknownRequest => write!(f, "the server does not know requests of kind {first:#06x}")?,
            C::UnknownFlags => write!(f, "the server does not know the flags {first:#06x}")?,
            C::UnexpectedFrame => write!(f, "a frame of kind {first:#06x} was not expected")?,
            C::FalseAcknowledgement => write!(f, "frame {first} was acknowledged, but {second} is the last")?,
            C::TlsRequired => {
                f.write_str("the server requires TLS: give this client the file of trusted CAs (--tls-ca)")?
            }
            C::Unauthenticated => f.write_str(match first {
                1 => "the server asks for a token, and the client has none (auth-token-file)",
                2 => "the server does not know the client's token, or its secret is another one",
                3 => "the client has a token, and the server asks for none, so it cannot prove that it knows it",
                _ => "the server did not accept the client",
            })?,
            C::PermissionDenied => f.write_str("the client's token does not allow the request")?,
            C::UnknownLease => write!(f, "no lease {first}")?,
            C::UnknownRound => write!(f, "no round {first}; the current one is {second}")?,
            C::BarrierConflict if first > 0 => write!(f, "the barrier was begun for {first} participants")?,
            C::BarrierConflict => f.write_str("the barrier was begun for other participants")?,
            C::NotAParticipant => f.write_str("the barrier has no participant with this name")?,
            C::BoundsConflict => write!(f, "the run has {first} to {second} nodes")?,
            C::AlreadyJoined => write!(f, "session {first} is in the run under this name")?,
            C::UnknownGeneration => {
                write!(f, "generations from {first} on are remembered, and {second} is open or comes next")?;
            }
            C::CoolingDown => write!(f, "the host failed too often and may come back in {first} ms")?,
            C::TooLong => write!(f, "{first} is over the limit of {second}")?,
            C::TooManySessions => write!(f, "the server has {first} sessions, and that is the limit")?,
            C::TooMany => write!(f, "the server has {first}, and that is the limit")?,
            C::SessionEnded if first > 0 => {
                let why = Why::from_number(u16::try_from(first).unwrap_or_default());
                write!(f, "the session is over: {why}")?;
            }
            C::SessionEnded => f.write_str("the server does not know the session")?,
            C::SessionForged => f.write_str("the session belongs to another client")?,
            C::WindowPassed => {
                write!(f, "frames after {first} were requested, but the oldest kept is {second}")?;
            }
            C::RequestForgotten => f.write_str("the server no longer has the answer")?,
            C::StaleRound => write!(f, "round {first} is over; the current one is {second}")?,
            C::Compacted if second > 0 => {
                write!(f, "the store is at revision {second}, so the server may have been restarted; ")?;
                write!(f, "the oldest revision that it remembers is {first}")?;
            }
            C::Compacted => write!(f, "the oldest revision that the server remembers is {first}")?,
            C::ServerStopping => f.write_str("the server is stopping")?,
            C::Other(number) => write!(f, "error {number} ({first}, {second})")?,
            C::NotFound
            | C::NotANumber
            | C::InvalidArgument
            | C::StoreFull
            | C::TooManyPending
            | C::TimedOut
            | C::Cancelled
            | C::RunClosed
            | C::NotNeeded
            | C::Replaced => return write_lossy(f, text),
        }
        if text.is_empty() {
            return Ok(());
        }
        f.write_str(": ")?;
        write_lossy(f, text)
    }
}

/// Returns the failure of a call whose session ended. The caller of this function sets its effect.
pub fn failure_of_end(end: End, cause: Cause) -> Failure {
    let kind = match end {
        End::Server(Why::ServerStopped) | End::Connection | End::GracePassed => ErrorKind::ServerGone,
        End::Server(Why::Left) => ErrorKind::Cancelled,
        End::Server(Why::Protocol) | End::Protocol => ErrorKind::WrongProtocol,
        End::Server(_) => ErrorKind::SessionEnded,
        End::Refused(code, ..) => kind_of(code),
        End::Unproven => ErrorKind::Unauthenticated,
    };
    Failure::new(kind, Phase::Waiting, cause)
}

/// Message for the end of a session.
#[derive(Clone, Copy, Debug)]
pub struct DescribeEnd(pub End);

impl fmt::Display for DescribeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            End::Server(why) => write!(f, "the server ended the session: {why}"),
            End::Refused(code, first, second) => Describe(Fault { code, first, second, text: b"" }).fmt(f),
            End::Connection => f.write_str("the session ended with its connection"),
            End::GracePassed => f.write_str("the session was not resumed within its grace"),
            End::Protocol => f.write_str("the server violated the protocol"),
            End::Unproven => f.write_str("the server has not proven that it knows the client's token"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::format;
    use alloc::string::{String, ToString};

    #[test]
    fn every_error_has_a_kind_and_words() {
        let mut table = String::new();
        let with_text = |code| Fault { code, first: 3, second: 9, text: b"who" };
        for &code in FaultCode::ALL {
            let message = Describe(with_text(code)).to_string();
            table += &format!("{code} {:?}: {message}\n", kind_of(code));
            assert_eq!(failure_of(&with_text(code)).kind, kind_of(code));
        }
        table += &format!("407: {}\n", Describe(Fault::new(FaultCode::Compacted, 3, 0)));
        for number in [150, 250, 350, 450] {
            let code = FaultCode::from_number(number);
            table += &format!("{number} {:?}: {}\n", kind_of(code), Describe(Fault::new(code, 1, 2)));
        }
        for end in [
            End::Server(Why::Heartbeat),
            End::Server(Why::ServerStopped),
            End::Server(Why::Left),
            End::Refused(FaultCode::SessionEnded, u64::from(Why::Heartbeat.number()), 0),
            End::Connection,
            End::GracePassed,
            End::Protocol,
            End::Unproven,
        ] {
            let kind = failure_of_end(end, Cause::Closed).kind;
            table += &format!("{end:?} {kind:?}: {}\n", DescribeEnd(end));
        }
        assert_eq!(table, include_str!("fault.snapshot"), "\n{table}");
    }
}
