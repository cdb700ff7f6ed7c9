//! Failures as data that needs no allocator, and the one-sentence message of a failure.

use crate::named::named;
use crate::time::Duration;
use crate::tls_fault::TlsFault;
use core::fmt;

named! {
    /// Operation of a caller, for errors and logs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[allow(missing_docs, reason = "named as the calls are")]
    pub enum Operation {
        Connect: "connect",
        Open: "open",
        Set: "set",
        CompareSet: "compare_set",
        Get: "get",
        Add: "add",
        Check: "check",
        Wait: "wait",
        NumKeys: "num_keys",
        Delete: "delete",
        Append: "append",
        MultiGet: "multi_get",
        MultiSet: "multi_set",
        CancelWait: "cancel_wait",
        Ping: "ping",
        QueuePush: "queue_push",
        QueuePop: "queue_pop",
        QueueLen: "queue_len",
        ListKeys: "list_keys",
        Barrier: "barrier",
        BarrierByKeys: "barrier (by keys)",
        CheckIn: "check_in",
        WaitForWorkers: "wait_for_workers",
        DeletePrefix: "delete_prefix",
        Txn: "txn",
        Batch: "batch",
        Watch: "watch",
        LeaseGrant: "lease_grant",
        LeaseAttach: "lease_attach",
        LeaseRenew: "lease_renew",
        LeaseRevoke: "lease_revoke",
        BarrierCancel: "barrier_cancel",
        Join: "next_rendezvous",
        Standby: "next_rendezvous",
        Leave: "leave",
        Close: "close",
        Members: "members",
        RunInfo: "run_info",
        Bye: "end_session",
        Session: "session",
        Sessions: "sessions",
        EndSession: "end_other_session",
        NamedBarrier: "barrier",
        LeaseWait: "lease_wait",
        RoundEvent: "next_event",
    }
}

impl Operation {
    /// Returns whether the operation is one of a node in a run, so that its failure is a rendezvous failure.
    pub const fn is_of_the_rendezvous(self) -> bool {
        matches!(
            self,
            Self::Join
                | Self::Standby
                | Self::Leave
                | Self::Close
                | Self::Members
                | Self::RunInfo
                | Self::RoundEvent
                | Self::Bye
        )
    }

    /// Returns whether the operation leaves the store unchanged, so that it may be repeated.
    pub const fn reads_only(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Get
                | Self::Wait
                | Self::Check
                | Self::NumKeys
                | Self::ListKeys
                | Self::QueueLen
                | Self::MultiGet
                | Self::Ping
                | Self::Watch
                | Self::Members
                | Self::RunInfo
                | Self::Sessions
                | Self::LeaseWait
                | Self::RoundEvent
        )
    }

    /// Returns the effect of a wait that the store has accepted and that ends without a release. An arrival at a
    /// barrier that is made of keys stays counted.
    pub const fn effect_when_given_up(self) -> Effect {
        match self {
            Self::Barrier | Self::BarrierByKeys => Effect::Kept,
            _ => Effect::None,
        }
    }

    /// Returns whether the operation is one on queues.
    pub const fn is_of_queues(self) -> bool {
        matches!(self, Self::QueuePush | Self::QueuePop | Self::QueueLen)
    }

    const fn preposition(self) -> &'static str {
        match self {
            Self::Connect => "to",
            Self::Get | Self::MultiGet | Self::QueuePop | Self::ListKeys => "from",
            _ => "at",
        }
    }
}

named! {
    /// Kind of a failure, for callers that handle failures differently.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ErrorKind {
        /// The deadline passed.
        TimedOut: "timed_out",
        /// No process listens at the address.
        Refused: "refused",
        /// The connection ended during the operation.
        ServerGone: "server_gone",
        /// The peer violated the protocol.
        WrongProtocol: "wrong_protocol",
        /// The host name has no address.
        Unresolved: "unresolved",
        /// There is no route to the address.
        Unreachable: "unreachable",
        /// The caller cancelled the operation.
        Cancelled: "cancelled",
        /// An argument or an answer exceeds a limit.
        LimitExceeded: "limit_exceeded",
        /// The queue was empty.
        QueueEmpty: "queue_empty",
        /// An argument is invalid.
        InvalidArgument: "invalid_argument",
        /// A store of this kind does not support the operation.
        Unsupported: "unsupported",
        /// The stored data cannot be parsed.
        Corrupt: "corrupt",
        /// The code of a store backend called back into the handle that is calling it.
        Reentrant: "reentrant",
        /// The operating system reported another error.
        Io: "io",
        /// The process or the system has run out of descriptors, threads or memory.
        Exhausted: "exhausted",
        /// The key, lease, run or round does not exist.
        NotFound: "not_found",
        /// The request contradicts an earlier request of another client.
        Conflict: "conflict",
        /// The round has ended, and its keys can no longer be changed.
        StaleRound: "stale_round",
        /// The history does not reach back that far.
        Compacted: "compacted",
        /// The session at the server has ended.
        SessionEnded: "session_ended",
        /// The run is closed permanently.
        Closed: "closed",
        /// Another session has joined under the node's name.
        Replaced: "replaced",
        /// The client or the server has not proven that it knows the token.
        Unauthenticated: "unauthenticated",
        /// The client's token does not allow the request.
        PermissionDenied: "permission_denied",
    }
}

named! {
    /// Phase of an operation at the time of a failure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Phase {
        /// The host name was being resolved.
        Resolving: "resolving",
        /// A connection was being established.
        Connecting: "connecting",
        /// The peer had not yet shown that it is a store.
        Greeting: "greeting",
        /// The request was being sent.
        Sending: "sending",
        /// The request was sent, and no byte of the answer had arrived.
        Waiting: "waiting",
        /// Part of the answer had arrived.
        Receiving: "receiving",
        /// The file was being opened.
        Opening: "opening",
        /// The file was being locked.
        Locking: "locking",
        /// The file was being read.
        Reading: "reading",
        /// The file was being written.
        Writing: "writing",
        /// Code of the program was running, such as a store backend.
        Calling: "calling",
    }
}

/// What the protocol allows at the point of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Due {
    /// The echo of this number.
    #[error("an echo of {0:#x}")]
    Echo(u32),
    /// The answer to CHECK: 0 or 1.
    #[error("0 or 1 as the answer to a check")]
    CheckAnswer,
    /// The end of a wait: 0.
    #[error("0 as the end of a wait")]
    StopWaiting,
    /// The answer to CANCEL_WAIT: 1.
    #[error("1 as the end of a cancelled wait")]
    WaitCanceled,
    /// A length of at most this, in bytes.
    #[error("a length of at most {0} bytes")]
    Length(u64),
    /// A count of items, from 0 to this number.
    #[error("a count of at most {0}")]
    Count(u64),
    /// No bytes at all.
    #[error("nothing")]
    Silence,
}

/// Violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{due} was due and {seen:#x} came")]
pub struct Violation {
    /// What the protocol allows.
    pub due: Due,
    /// What was received, as a number.
    pub seen: u64,
}

/// Exceeded limit of a request, detected before any of the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A key is too long.
    #[error("a key of {bytes} bytes with its prefix is over the limit of {bytes_max}")]
    Key {
        /// Length of the key with the store's prefix and suffix, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        bytes_max: u64,
    },
    /// A value is too long.
    #[error("a value of {bytes} bytes is over the limit of {bytes_max}")]
    Value {
        /// Its length, in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// There are too many keys.
    #[error("a list of {count} keys is over the limit of {count_max}")]
    Keys {
        /// Number of keys.
        count: u64,
        /// The limit.
        count_max: u64,
    },
    /// The keys together are too long.
    #[error("keys of {bytes} bytes together are over the limit of {bytes_max}")]
    KeyBytes {
        /// Length of the keys with the store's prefix and suffix, in bytes.
        bytes: u64,
        /// The limit, in bytes.
        bytes_max: u64,
    },
    /// The request as a whole is too long.
    #[error("a request of {bytes} bytes is over the limit of {bytes_max}")]
    Frame {
        /// Its length on the wire, in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The reason for closing a run is too long.
    #[error("a reason of {bytes} bytes is over the limit of {bytes_max}")]
    Reason {
        /// Its length, in bytes.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The store would exceed its maximum size.
    #[error("the store would take more than its {bytes_max} bytes")]
    Stored {
        /// The limit.
        bytes_max: u64,
    },
    /// The maximum number of operations of the client is in progress.
    #[error("{count} operations are under way, and that is the limit")]
    Operations {
        /// The limit.
        count: u64,
    },
}

/// Cause of a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// Nothing more is known.
    #[default]
    Unknown,
    /// The operating system's error number.
    Os(i32),
    /// The resolver's error number (`EAI_…`), or 0 when it found no address.
    Resolver(i32),
    /// The peer closed the connection.
    Closed,
    /// The peer accepted the connection and sent nothing, or has sent nothing for too long since.
    Silent,
    /// No answer arrived to a request that is answered immediately.
    NoAnswer,
    /// The awaited event did not happen.
    NotReleased,
    /// Some participants of the barrier did not arrive.
    Arrived {
        /// Number of participants that have arrived.
        arrived: i64,
        /// Number of participants that the barrier waits for.
        world_size: i64,
    },
    /// The peer violated the protocol.
    Violation(Violation),
    /// TLS failed.
    Tls(TlsFault),
    /// The peer is PyTorch's store, which does not speak this protocol.
    ForeignStore,
    /// A limit was reached.
    Limit(LimitError),
    /// The value does not begin with a 64-bit decimal number.
    NotANumber,
    /// The file has an incomplete or invalid record at this offset, in bytes.
    TornRecord(u64),
    /// The file has a record with an empty key at this offset, in bytes. No writer creates one: the bytes are
    /// zeros.
    NamelessRecord(u64),
    /// The deadline passed when the file's records had been read up to this offset, in bytes. The next call
    /// continues there.
    ReadUpTo(u64),
    /// The file of the store has been removed.
    FileRemoved,
    /// The file of the store has been replaced or truncated.
    FileReplaced,
    /// Another process held the lock of the file.
    Locked,
    /// Stores of this kind have no queues.
    NoQueues,
    /// Stores of this kind do not support this operation.
    NoOperation,
    /// The code of the store backend called back into the handle that is calling it.
    CalledBack,
    /// The caller may not make the request in the present state, for this reason.
    State(&'static str),
}

/// Effect of a failed operation on the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// The store did not change.
    #[default]
    None,
    /// The store may have changed: the request was sent, and no answer arrived.
    Possible,
    /// The store has changed: the request was applied, but the event that it waited for did not happen.
    Kept,
}

/// Failure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// Phase that the operation had reached.
    pub phase: Phase,
    /// Time from the call to the failure.
    pub elapsed: Duration,
    /// Cause of the failure.
    pub cause: Cause,
    /// Effect on the store.
    pub effect: Effect,
}

impl Failure {
    /// Makes a failure without effect. The caller fills in the elapsed time.
    pub const fn new(kind: ErrorKind, phase: Phase, cause: Cause) -> Self {
        Self { kind, phase, elapsed: Duration::ZERO, cause, effect: Effect::None }
    }

    /// Makes the failure of an operation that exceeds a limit.
    pub const fn limit(phase: Phase, limit: LimitError) -> Self {
        Self::new(ErrorKind::LimitExceeded, phase, Cause::Limit(limit))
    }

    const fn is_of_a_file(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Locking | Phase::Reading | Phase::Writing)
    }
}

/// Message of a failure, in one sentence, with what the caller knows about the operation.
#[derive(Clone, Copy)]
pub struct Sentence<'a> {
    /// The failed operation.
    pub operation: Operation,
    /// The first key, as the caller gave it.
    pub key: Option<&'a dyn fmt::Display>,
    /// Total number of keys.
    pub keys_count: usize,
    /// Address of the server.
    pub peer: &'a dyn fmt::Display,
    /// The failure.
    pub failure: Failure,
    /// The operating system's text for its error number.
    pub os_text: Option<&'a dyn fmt::Display>,
}

impl fmt::Debug for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(&mut OneLine(f))
    }
}

impl Sentence<'_> {
    fn write(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let Failure { kind, phase, elapsed, effect, .. } = self.failure;
        f.write_str(self.operation.name())?;
        if let Some(key) = self.key {
            write!(f, " \"{key}\"")?;
            match self.keys_count {
                0 | 1 => {}
                2 => f.write_str(" and 1 more key")?,
                count => write!(f, " and {} more keys", count - 1)?,
            }
        }
        write!(f, " {} {}", self.operation.preposition(), self.peer)?;
        let (span, phase) = (Span(elapsed), phase.name());
        match kind {
            ErrorKind::TimedOut => write!(f, " timed out after {span} while {phase}")?,
            ErrorKind::Refused => write!(f, " was refused for {span} while {phase}")?,
            ErrorKind::ServerGone => {
                let lost = if self.failure.is_of_a_file() { "file" } else { "server" };
                write!(f, " lost its {lost} after {span} while {phase}")?;
            }
            ErrorKind::WrongProtocol if matches!(self.failure.cause, Cause::Tls(_)) => {
                write!(f, " found no TLS in common with the peer, after {span} while {phase}")?;
            }
            ErrorKind::WrongProtocol => {
                write!(f, " met a peer that breaks the store protocol, after {span} while {phase}")?;
            }
            ErrorKind::Unresolved => write!(f, " found no address for the host in {span}")?,
            ErrorKind::Unreachable => write!(f, " found no route to the host in {span}")?,
            ErrorKind::Cancelled => write!(f, " was cancelled after {span} while {phase}")?,
            ErrorKind::LimitExceeded => f.write_str(" was not done")?,
            ErrorKind::QueueEmpty => f.write_str(" found the queue empty")?,
            ErrorKind::InvalidArgument if matches!(self.failure.cause, Cause::State(_)) => {
                f.write_str(" is not possible now")?;
            }
            ErrorKind::InvalidArgument => f.write_str(" got an invalid argument")?,
            ErrorKind::Unsupported => f.write_str(" is not supported")?,
            ErrorKind::Unauthenticated => f.write_str(" failed to authenticate")?,
            ErrorKind::PermissionDenied => f.write_str(" is not allowed")?,
            ErrorKind::Corrupt => write!(f, " found unreadable data after {span} while {phase}")?,
            ErrorKind::Reentrant => f.write_str(" was refused within the store's own code")?,
            ErrorKind::Io => write!(f, " failed after {span} while {phase}")?,
            ErrorKind::Exhausted => {
                write!(f, " found the system out of resources, after {span} while {phase}")?;
            }
            ErrorKind::NotFound => f.write_str(" found no such object")?,
            ErrorKind::Conflict => f.write_str(" contradicts an earlier request of another client")?,
            ErrorKind::StaleRound => f.write_str(" came too late for its round, which is over")?,
            ErrorKind::Compacted => f.write_str(" asked for changes that the server no longer keeps")?,
            ErrorKind::SessionEnded => write!(f, " lost its session after {span} while {phase}")?,
            ErrorKind::Closed => f.write_str(" found the run closed")?,
            ErrorKind::Replaced => f.write_str(" was refused, since this node was replaced")?,
        }
        self.why(f)?;
        let is_arrival = matches!(self.operation, Operation::Barrier | Operation::BarrierByKeys);
        f.write_str(match (effect, is_arrival) {
            (Effect::None, _) => "",
            (Effect::Possible, true) => "; its arrival may stay counted",
            (Effect::Kept, true) => "; its arrival stays counted",
            (Effect::Possible | Effect::Kept, false) => "; it may have been applied",
        })
    }

    fn why(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        match (self.failure.cause, self.os_text) {
            (Cause::Unknown, _) => Ok(()),
            (Cause::Os(_) | Cause::Resolver(_), Some(text)) => write!(f, ": {text}"),
            (Cause::Os(number), None) => write!(f, ": os error {number}"),
            (Cause::Resolver(0), None) => f.write_str(": the resolver knows none"),
            (Cause::Resolver(number), None) => write!(f, ": resolver error {number}"),
            (Cause::Closed, _) => f.write_str(": the peer closed the connection"),
            (Cause::Silent, _) => f.write_str(match self.failure.phase {
                Phase::Greeting => ": the peer accepted and never answered",
                _ => ": nothing came from the peer for too long",
            }),
            (Cause::NoAnswer, _) => f.write_str(": no answer came"),
            (Cause::NotReleased, _) => f.write_str(match (self.operation, self.keys_count) {
                (Operation::Barrier | Operation::BarrierByKeys, _) => ": not all have arrived",
                (Operation::WaitForWorkers, _) => ": not all workers have checked in",
                (Operation::QueuePop, _) => ": nothing was pushed",
                (_, 0 | 1) => ": the key was not set",
                _ => ": not all of the keys were set",
            }),
            (Cause::Arrived { arrived, world_size }, _) => {
                write!(f, ": {arrived} of {world_size} have arrived")
            }
            (Cause::Violation(violation), _) => write!(f, ": {violation}"),
            (Cause::Tls(fault), _) => write!(f, ": {fault}"),
            (Cause::ForeignStore, _) => {
                f.write_str(": the peer is a PyTorch TCPStore, which does not speak this protocol: perhaps a torchrun agent")
            }
            (Cause::Limit(limit), _) => write!(f, ": {limit}"),
            (Cause::NotANumber, _) => f.write_str(": the value is not a decimal number of 64 bits"),
            (Cause::TornRecord(offset), _) => write!(f, ": a torn record at offset {offset}"),
            (Cause::NamelessRecord(offset), _) => write!(f, ": a record without a key at offset {offset}"),
            (Cause::ReadUpTo(offset), _) => write!(f, ": its records were read up to offset {offset}"),
            (Cause::FileRemoved, _) => f.write_str(": it was removed"),
            (Cause::FileReplaced, _) => f.write_str(": it was replaced or truncated"),
            (Cause::Locked, _) => f.write_str(": another process keeps the file locked"),
            (Cause::NoQueues, _) => f.write_str(": queue support is not implemented."),
            (Cause::NoOperation, _) => f.write_str(": stores of this kind do not have it"),
            (Cause::State(reason), _) => write!(f, ": {reason}"),
            (Cause::CalledBack, _) => f.write_str(": it may not call the handle that is calling it"),
        }
    }
}

/// Writer that keeps text on one line: control characters, and those that change the direction of text, are written as
/// escapes (`\n`, `\u{1b}`). Keys and names come from other processes. Their contents must not start a second line in a
/// log, show a line in another order, or send commands to a terminal.
pub struct OneLine<W>(pub W);

impl<W: fmt::Write> fmt::Write for OneLine<W> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        let breaks = |c: char| {
            c.is_control()
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        while let Some((at, found)) = text.char_indices().find(|&(_, c)| breaks(c)) {
            self.0.write_str(&text[..at])?;
            for escaped in found.escape_default() {
                self.0.write_char(escaped)?;
            }
            text = &text[at + found.len_utf8()..];
        }
        self.0.write_str(text)
    }
}

impl<W> fmt::Debug for OneLine<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneLine")
    }
}

/// Time span for display: `300 ms`, `2.5 s`.
#[derive(Clone, Copy, Debug)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis < 1000 {
            write!(f, "{millis} ms")
        } else {
            write!(f, "{}.{} s", millis / 1000, millis % 1000 / 100)
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::string::{String, ToString};

    fn sentence(operation: Operation, keys_count: usize, failure: Failure) -> String {
        let key: Option<&dyn fmt::Display> = (keys_count > 0).then_some(&"/k");
        Sentence { operation, key, keys_count, peer: &"127.0.0.1:29500", failure, os_text: None }.to_string()
    }

    const WAITED: Failure = Failure {
        kind: ErrorKind::TimedOut,
        phase: Phase::Waiting,
        elapsed: Duration::from_millis(300),
        cause: Cause::NotReleased,
        effect: Effect::None,
    };

    #[test]
    fn one_sentence_names_operation_key_peer_time_phase_and_cause() {
        for (expected, operation, keys_count, failure) in [
            (
                "get \"/k\" from 127.0.0.1:29500 timed out after 300 ms while waiting: the key was not set",
                Operation::Get,
                1,
                WAITED,
            ),
            (
                "wait \"/k\" and 2 more keys at 127.0.0.1:29500 timed out after 300 ms while waiting: \
                 not all of the keys were set",
                Operation::Wait,
                3,
                WAITED,
            ),
            (
                "connect to 127.0.0.1:29500 was refused for 2.5 s while connecting: os error 111",
                Operation::Connect,
                0,
                Failure {
                    kind: ErrorKind::Refused,
                    phase: Phase::Connecting,
                    elapsed: Duration::from_millis(2567),
                    cause: Cause::Os(111),
                    effect: Effect::None,
                },
            ),
            (
                "add \"/k\" at 127.0.0.1:29500 lost its server after 300 ms while waiting: \
                 the peer closed the connection; it may have been applied",
                Operation::Add,
                1,
                Failure {
                    kind: ErrorKind::ServerGone,
                    cause: Cause::Closed,
                    effect: Effect::Possible,
                    ..WAITED
                },
            ),
            (
                "connect to 127.0.0.1:29500 timed out after 300 ms while greeting: \
                 the peer accepted and never answered",
                Operation::Connect,
                0,
                Failure { phase: Phase::Greeting, cause: Cause::Silent, ..WAITED },
            ),
            (
                "get \"/k\" from 127.0.0.1:29500 lost its server after 300 ms while waiting: \
                 nothing came from the peer for too long",
                Operation::Get,
                1,
                Failure { kind: ErrorKind::ServerGone, cause: Cause::Silent, ..WAITED },
            ),
            (
                "ping at 127.0.0.1:29500 met a peer that breaks the store protocol, after 300 ms while waiting: \
                 an echo of 0x7 was due and 0x50545448 came",
                Operation::Ping,
                0,
                Failure {
                    kind: ErrorKind::WrongProtocol,
                    cause: Cause::Violation(Violation { due: Due::Echo(7), seen: 0x5054_5448 }),
                    ..WAITED
                },
            ),
        ] {
            assert_eq!(sentence(operation, keys_count, failure), expected);
        }
    }

    #[test]
    fn what_is_said_of_an_arrival_is_what_is_known_of_it() {
        for (effect, expected) in [
            (Effect::None, ": not all have arrived"),
            (Effect::Possible, "; its arrival may stay counted"),
            (Effect::Kept, "; its arrival stays counted"),
        ] {
            let text = sentence(Operation::Barrier, 1, Failure { effect, ..WAITED });
            assert!(text.ends_with(expected), "{text}");
        }
    }

    #[test]
    fn a_sentence_is_one_line_whatever_keys_and_peers_hold() {
        let key: Option<&dyn fmt::Display> = Some(&"a\nERROR b\u{1b}[2J\u{7f}\u{2028}é\u{202e}f");
        let (operation, peer) = (Operation::Get, &"no\rde");
        let text =
            Sentence { operation, key, keys_count: 1, peer, failure: WAITED, os_text: None }.to_string();
        let expected = "get \"a\\nERROR b\\u{1b}[2J\\u{7f}\\u{2028}é\\u{202e}f\" from no\\rde timed out";
        assert!(text.starts_with(expected), "{text}");
    }
}
