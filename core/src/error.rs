//! What went wrong, as data that needs no allocator, and the one sentence that tells a user.

use crate::time::Duration;
use core::fmt;

/// What a caller wanted. The names are those that errors print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "named as the calls are")]
pub enum Operation {
    Connect,
    Open,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    NumKeys,
    Delete,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
    BarrierByKeys,
    CheckIn,
    WaitForWorkers,
    DeletePrefix,
    Txn,
    Batch,
    Watch,
    LeaseGrant,
    LeaseAttach,
    LeaseRenew,
    LeaseRevoke,
    BarrierCancel,
    Join,
    Standby,
    Leave,
    Close,
    Members,
    RunInfo,
    Bye,
    Session,
    NamedBarrier,
    LeaseWait,
    RoundEvent,
}

impl Operation {
    /// Whether it is a node's part in a run, and its failure one of the rendezvous.
    #[must_use]
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

    /// The name in errors and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Open => "open",
            Self::Set => "set",
            Self::CompareSet => "compare_set",
            Self::Get => "get",
            Self::Add => "add",
            Self::Check => "check",
            Self::Wait => "wait",
            Self::NumKeys => "num_keys",
            Self::Delete => "delete",
            Self::Append => "append",
            Self::MultiGet => "multi_get",
            Self::MultiSet => "multi_set",
            Self::CancelWait => "cancel_wait",
            Self::Ping => "ping",
            Self::QueuePush => "queue_push",
            Self::QueuePop => "queue_pop",
            Self::QueueLen => "queue_len",
            Self::ListKeys => "list_keys",
            Self::Barrier => "barrier",
            Self::BarrierByKeys => "barrier (by keys)",
            Self::CheckIn => "check_in",
            Self::WaitForWorkers => "wait_for_workers",
            Self::DeletePrefix => "delete_prefix",
            Self::Txn => "txn",
            Self::Batch => "batch",
            Self::Watch => "watch",
            Self::LeaseGrant => "lease_grant",
            Self::LeaseAttach => "lease_attach",
            Self::LeaseRenew => "lease_renew",
            Self::LeaseRevoke => "lease_revoke",
            Self::BarrierCancel => "barrier_cancel",
            Self::Join => "join",
            Self::Standby => "standby",
            Self::Leave => "leave",
            Self::Close => "close",
            Self::Members => "members",
            Self::RunInfo => "run_info",
            Self::Bye => "bye",
            Self::Session => "session",
            Self::NamedBarrier => "barrier",
            Self::LeaseWait => "lease_wait",
            Self::RoundEvent => "next_event",
        }
    }

    /// Whether the store is the same before and after, so that the operation may be repeated.
    #[must_use]
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
                | Self::LeaseWait
                | Self::RoundEvent
        )
    }

    /// What a wait that the store carried out and nothing released leaves behind: an arrival at a barrier that is made of
    /// keys stays counted.
    #[must_use]
    pub const fn effect_when_given_up(self) -> Effect {
        match self {
            Self::Barrier | Self::BarrierByKeys => Effect::Kept,
            _ => Effect::None,
        }
    }

    /// Whether it is one on queues.
    #[must_use]
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

/// The kinds of failure that a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// The deadline passed.
    TimedOut,
    /// Nobody listens at the address.
    Refused,
    /// The connection ended under the operation.
    ServerGone,
    /// The peer sent what this protocol does not allow.
    WrongProtocol,
    /// The host name has no address.
    Unresolved,
    /// There is no way to the address.
    Unreachable,
    /// The caller gave the operation up.
    Cancelled,
    /// An argument or an answer is over a limit.
    LimitExceeded,
    /// There was nothing to pop.
    QueueEmpty,
    /// An argument makes no sense.
    InvalidArgument,
    /// A store of this kind does not have the operation.
    Unsupported,
    /// What is stored cannot be read.
    Corrupt,
    /// A store's own code called back into the handle that is calling it.
    Reentrant,
    /// The operating system refused something else.
    Io,
    /// The process or the system is out of descriptors, threads or memory.
    Exhausted,
    /// There is no such key, lease, run or round.
    NotFound,
    /// Others asked for the same in another way, and were first.
    Conflict,
    /// The round is over: its keys can be changed no more.
    StaleRound,
    /// The history does not reach back that far.
    Compacted,
    /// The session at the server is over.
    SessionEnded,
    /// The run is closed, for good.
    Closed,
    /// Another session joined under the node's name.
    Replaced,
}

/// How far an operation had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The host name was being looked up.
    Resolving,
    /// A connection was being made.
    Connecting,
    /// The peer had not yet shown that it is a store.
    Greeting,
    /// The request was on its way.
    Sending,
    /// The request was out and nothing had come back.
    Waiting,
    /// Part of the answer had come.
    Receiving,
    /// The file was being opened.
    Opening,
    /// The file's lock was waited for.
    Locking,
    /// The file was being read.
    Reading,
    /// The file was being written.
    Writing,
    /// Code that the program brought was at work.
    Calling,
}

impl Phase {
    /// The name in errors and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolving => "resolving",
            Self::Connecting => "connecting",
            Self::Greeting => "greeting",
            Self::Sending => "sending",
            Self::Waiting => "waiting",
            Self::Receiving => "receiving",
            Self::Opening => "opening",
            Self::Locking => "locking",
            Self::Reading => "reading",
            Self::Writing => "writing",
            Self::Calling => "calling",
        }
    }
}

/// What the protocol would have allowed in the place of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The echo of this number.
    Echo(u32),
    /// CHECK's answer: 0 or 1.
    CheckAnswer,
    /// The end of a wait: 0.
    StopWaiting,
    /// The answer to CANCEL_WAIT: 1.
    WaitCanceled,
    /// A length up to this one, in bytes.
    Length(u64),
    /// A count of items, from 0 up to this one.
    Count(u64),
    /// Nothing at all.
    Silence,
}

/// The peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} was due and {seen:#x} came", Words(.due))]
pub struct Violation {
    /// What was due.
    pub due: Due,
    /// What came, as a number.
    pub seen: u64,
}

struct Words<'a>(&'a Due);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Due::Echo(nonce) => write!(f, "an echo of {nonce:#x}"),
            Due::CheckAnswer => f.write_str("0 or 1 as the answer to a check"),
            Due::StopWaiting => f.write_str("0 as the end of a wait"),
            Due::WaitCanceled => f.write_str("1 as the end of a cancelled wait"),
            Due::Length(max) => write!(f, "a length of at most {max} bytes"),
            Due::Count(max) => write!(f, "a count of at most {max}"),
            Due::Silence => f.write_str("nothing"),
        }
    }
}

/// A request that is over a limit, found before any of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A key is too long.
    #[error("a key of {bytes} bytes is over the limit of {bytes_max}")]
    Key {
        /// Its length, as its user knows it.
        bytes: u64,
        /// What the limit leaves for that, beside what the store puts before and behind it.
        bytes_max: u64,
    },
    /// A value is too long.
    #[error("a value of {bytes} bytes is over the limit of {bytes_max}")]
    Value {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// There are too many keys.
    #[error("a list of {count} keys is over the limit of {count_max}")]
    Keys {
        /// How many there are.
        count: u64,
        /// The limit.
        count_max: u64,
    },
    /// The request as a whole is too long.
    #[error("a request of {bytes} bytes is over the limit of {bytes_max}")]
    Frame {
        /// Its length on the wire.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The reason that a run is closed with is too long.
    #[error("a reason of {bytes} bytes is over the limit of {bytes_max}")]
    Reason {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The store is as large as it may be.
    #[error("the store would take more than its {bytes_max} bytes")]
    Stored {
        /// The limit.
        bytes_max: u64,
    },
    /// As many operations as the client can hold are under way.
    #[error("{count} operations are under way, and that is the limit")]
    Operations {
        /// The limit.
        count: u64,
    },
}

/// What stands behind a failure.
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
    /// The peer accepted the connection and said nothing; or, once it had spoken, nothing more for too long.
    Silent,
    /// No answer came, where one is due at once.
    NoAnswer,
    /// What was waited for did not happen.
    NotReleased,
    /// The peer broke the protocol.
    Violation(Violation),
    /// The peer is PyTorch's store, which does not speak this protocol.
    ForeignStore,
    /// A limit was reached.
    Limit(LimitError),
    /// The value does not begin with a decimal number of 64 bits.
    NotANumber,
    /// The file has part of a record, or something else than records, at this offset in bytes.
    TornRecord(u64),
    /// The file has a record without a key at this offset in bytes, which nobody writes: zeros.
    NamelessRecord(u64),
    /// The time was up when the file's records had been read up to this offset in bytes. The next call goes on there.
    ReadUpTo(u64),
    /// The file that the store works on has no name any more.
    FileRemoved,
    /// There is another file, or a shorter one, where the store's was.
    FileReplaced,
    /// Another process kept the file locked.
    Locked,
    /// Stores of this kind have no queues.
    NoQueues,
    /// Stores of this kind do not have this operation.
    NoOperation,
    /// The store's own code called back into the handle that is calling it.
    CalledBack,
}

/// Whether the store may have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// It did not, or the operation never changes it.
    #[default]
    None,
    /// The request was sent and its answer did not come.
    Possible,
    /// It did: the request was carried out, and only what it waited for did not happen.
    Kept,
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind of failure.
    pub kind: ErrorKind,
    /// How far the operation had come.
    pub phase: Phase,
    /// From the call to the failure.
    pub elapsed: Duration,
    /// What stands behind it.
    pub cause: Cause,
    /// Whether the store may have changed.
    pub effect: Effect,
}

impl Failure {
    const fn is_of_a_file(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Locking | Phase::Reading | Phase::Writing)
    }
}

/// The sentence that tells of a failure, with what the caller knows about the operation.
#[derive(Clone, Copy)]
pub struct Sentence<'a> {
    /// What was wanted.
    pub operation: Operation,
    /// The first key, as on the wire.
    pub key: Option<&'a dyn fmt::Display>,
    /// How many keys there are in all.
    pub keys_count: usize,
    /// The server.
    pub peer: &'a dyn fmt::Display,
    /// How it failed.
    pub failure: Failure,
    /// The operating system's words for its error number.
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
            ErrorKind::WrongProtocol => {
                write!(f, " met a peer that breaks the store protocol, after {span} while {phase}")?;
            }
            ErrorKind::Unresolved => write!(f, " found no address for the host in {span}")?,
            ErrorKind::Unreachable => write!(f, " found no way to the host in {span}")?,
            ErrorKind::Cancelled => write!(f, " was cancelled after {span} while {phase}")?,
            ErrorKind::LimitExceeded => f.write_str(" was not done")?,
            ErrorKind::QueueEmpty => f.write_str(" found the queue empty")?,
            ErrorKind::InvalidArgument => f.write_str(" got an argument that makes no sense")?,
            ErrorKind::Unsupported => f.write_str(" is not supported")?,
            ErrorKind::Corrupt => write!(f, " met what it cannot read, after {span} while {phase}")?,
            ErrorKind::Reentrant => f.write_str(" was refused within the store's own code")?,
            ErrorKind::Io => write!(f, " failed after {span} while {phase}")?,
            ErrorKind::Exhausted => {
                write!(f, " found the system out of resources, after {span} while {phase}")?;
            }
            ErrorKind::NotFound => f.write_str(" found no such thing")?,
            ErrorKind::Conflict => f.write_str(" contradicts what others asked for before")?,
            ErrorKind::StaleRound => f.write_str(" came too late for its round, which is over")?,
            ErrorKind::Compacted => f.write_str(" asked for what the server does not remember")?,
            ErrorKind::SessionEnded => write!(f, " lost its session after {span} while {phase}")?,
            ErrorKind::Closed => f.write_str(" met a run that is closed")?,
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
            (Cause::Violation(violation), _) => write!(f, ": {violation}"),
            (Cause::ForeignStore, _) => {
                f.write_str(": the peer is a PyTorch TCPStore, which does not speak this protocol: perhaps a torchrun agent")
            }
            (Cause::Limit(limit), _) => write!(f, ": {limit}"),
            (Cause::NotANumber, _) => f.write_str(": the value is not a decimal number of 64 bits"),
            (Cause::TornRecord(offset), _) => write!(f, ": a torn record at offset {offset}"),
            (Cause::NamelessRecord(offset), _) => write!(f, ": a record without a key at offset {offset}"),
            (Cause::ReadUpTo(offset), _) => write!(f, ": its records were read up to offset {offset}"),
            (Cause::FileRemoved, _) => f.write_str(": it was removed"),
            (Cause::FileReplaced, _) => f.write_str(": another one is in its place, or it was cut short"),
            (Cause::Locked, _) => f.write_str(": another process keeps the file locked"),
            (Cause::NoQueues, _) => f.write_str(": queue support is not implemented."),
            (Cause::NoOperation, _) => f.write_str(": stores of this kind do not have it"),
            (Cause::CalledBack, _) => f.write_str(": it may not call the handle that is calling it"),
        }
    }
}

/// Text on its way to one line: control characters are written as escapes (`\n`, `\u{1b}`). Keys and names come from
/// others, and what they hold must not become a second line of a log, or a command to a terminal.
pub struct OneLine<W>(pub W);

impl<W: fmt::Write> fmt::Write for OneLine<W> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
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

/// A time span in the unit that a reader expects: `300 ms`, `2.5 s`.
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
        let key: Option<&dyn fmt::Display> = Some(&"a\nERROR b\u{1b}[2J\u{7f}\u{2028}é");
        let (operation, peer) = (Operation::Get, &"no\rde");
        let text =
            Sentence { operation, key, keys_count: 1, peer, failure: WAITED, os_text: None }.to_string();
        let expected = "get \"a\\nERROR b\\u{1b}[2J\\u{7f}\\u{2028}é\" from no\\rde timed out";
        assert!(text.starts_with(expected), "{text}");
    }
}
