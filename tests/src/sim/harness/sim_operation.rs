//! Operations of clients on the store, with all their parameters, and their results.

use rendezvous_core::barrier::by_keys::KeyBarrier;
use rendezvous_core::error::{Effect, ErrorKind};
use rendezvous_core::store::call::{Call, Outcome, WaitMode};
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use std::fmt;

/// Scope of every key on the wire.
const SCOPE: &[u8] = b"/";

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::sim) enum SimOperation {
    Set { name: String, value: Vec<u8> },
    CompareSet { name: String, expected: Vec<u8>, desired: Vec<u8> },
    Append { name: String, value: Vec<u8> },
    Delete { name: String },
    Get { name: String, timeout: WaitMode },
    Check { name: String },
    Wait { names: Vec<String> },
    Add { name: String, delta: i64 },
    MultiSet { pairs: Vec<(String, Vec<u8>)> },
    MultiGet { names: Vec<String>, timeout: WaitMode },
    Push { name: String, value: Vec<u8> },
    Pop { name: String, timeout: WaitMode },
    QueueLen { name: String },
    Barrier { name: String, world_size: i64, timeout: WaitMode },
    KeyBarrier { name: String, world_size: i64 },
    Ping,
    NumKeys,
    ListKeys,
}

/// Answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Answer {
    /// The operation was executed, or the wait has ended, or the server is alive.
    Done,
    Number(i64),
    Ready,
    NotReady,
    Value(Vec<u8>),
    Values(Vec<Vec<u8>>),
    Missing,
    QueueEmpty,
}

/// End of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum End {
    Responded(Answer),
    Failed(ErrorKind, Effect),
}

impl SimOperation {
    /// Calls `make` with the call that is due. A barrier out of keys consists of several calls; `barrier` returns which
    /// is due.
    ///
    /// # Panics
    /// When a barrier out of keys has ended.
    pub(in crate::sim) fn with_call<R>(
        &self,
        barrier: Option<&KeyBarrier>,
        make: impl FnOnce(&Call<'_>) -> R,
    ) -> R {
        let key = |name| Key::scoped(SCOPE, str::as_bytes(name));
        let many =
            |names: &[String], timeout, of: fn(Keys<'_>) -> Request<'_>, make: &mut dyn FnMut(&Call<'_>)| {
                let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
                make(&Call::Store(of(Keys::scoped(SCOPE, &names)), timeout));
            };
        let mut made = None;
        let mut make = Some(make);
        let mut made_by = |call: &Call<'_>| made = make.take().map(|make| make(call));
        let wait = WaitMode::Wait;
        match self {
            Self::Set { name, value } => {
                made_by(&Call::Store(Request::Set { key: key(name), value }, wait));
            }
            Self::CompareSet { name, expected, desired } => {
                made_by(&Call::Store(Request::CompareSet { key: key(name), expected, desired }, wait));
            }
            Self::Append { name, value } => {
                made_by(&Call::Store(Request::Append { key: key(name), value }, wait));
            }
            Self::Delete { name } => made_by(&Call::Store(Request::Delete { key: key(name) }, wait)),
            Self::Get { name, timeout } => {
                made_by(&Call::Store(Request::Get { key: key(name) }, *timeout));
            }
            Self::Check { name } => {
                made_by(&Call::Store(Request::Check { keys: Keys::one(key(name)) }, wait));
            }
            Self::Wait { names } => many(names, wait, |keys| Request::Wait { keys }, &mut made_by),
            Self::Add { name, delta } => {
                made_by(&Call::Store(Request::Add { key: key(name), delta: *delta }, wait));
            }
            Self::MultiSet { pairs } => {
                let pairs: Vec<(&[u8], &[u8])> =
                    pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_slice())).collect();
                made_by(&Call::Store(Request::MultiSet { pairs: Pairs::scoped(SCOPE, &pairs) }, wait));
            }
            Self::MultiGet { names, timeout } => {
                many(names, *timeout, |keys| Request::MultiGet { keys }, &mut made_by);
            }
            Self::Push { name, value } => {
                made_by(&Call::Store(Request::QueuePush { key: key(name), value }, wait));
            }
            Self::Pop { name, timeout } => {
                made_by(&Call::Store(Request::QueuePop { key: key(name) }, *timeout));
            }
            Self::QueueLen { name } => made_by(&Call::Store(Request::QueueLen { key: key(name) }, wait)),
            Self::Barrier { name, world_size, timeout } => {
                let request = Request::Barrier { key: key(name), world_size: *world_size };
                made_by(&Call::Store(request, *timeout));
            }
            Self::KeyBarrier { name, .. } => {
                if let Some(call) = barrier.and_then(|barrier| barrier.next_call(key(name))) {
                    made_by(&call);
                }
            }
            Self::Ping => made_by(&Call::Ping),
            Self::NumKeys => made_by(&Call::Store(Request::NumKeys, wait)),
            Self::ListKeys => made_by(&Call::Store(Request::ListKeys, wait)),
        }
        // invariant: an operation under way has a call, and a barrier that has ended is not under way
        made.expect("a call that is due")
    }

    /// Returns the answer to this operation for an outcome; `None` if the outcome does not fit.
    pub(in crate::sim) fn answer(&self, outcome: Outcome, mut values: Vec<Vec<u8>>) -> Option<Answer> {
        Some(match (self, outcome) {
            (
                Self::Set { .. } | Self::Append { .. } | Self::MultiSet { .. } | Self::Push { .. },
                Outcome::Applied,
            )
            | (Self::Ping, Outcome::Alive)
            | (Self::Wait { .. } | Self::Barrier { .. } | Self::KeyBarrier { .. }, Outcome::Released) => {
                Answer::Done
            }
            (
                Self::Add { .. } | Self::Delete { .. } | Self::QueueLen { .. } | Self::NumKeys,
                Outcome::Number(number),
            ) => Answer::Number(number),
            (Self::Check { .. }, Outcome::Ready) => Answer::Ready,
            (Self::Check { .. }, Outcome::NotReady) => Answer::NotReady,
            (Self::Get { .. } | Self::CompareSet { .. } | Self::Pop { .. }, Outcome::Value)
                if values.len() == 1 =>
            {
                Answer::Value(values.remove(0))
            }
            // Empty values are not announced, because they may stand for missing ones.
            (Self::Get { .. } | Self::Pop { .. }, Outcome::Value) if values.is_empty() => {
                Answer::Value(Vec::new())
            }
            (Self::MultiGet { names, .. }, Outcome::Values(count))
                if count == values.len() as u64 && names.len() == values.len() =>
            {
                Answer::Values(values)
            }
            (Self::ListKeys, Outcome::Values(count)) if count == values.len() as u64 => {
                Answer::Values(values)
            }
            (
                Self::Get { timeout: WaitMode::Once, .. }
                | Self::MultiGet { timeout: WaitMode::Once, .. }
                | Self::Barrier { timeout: WaitMode::Once, .. },
                Outcome::Missing,
            ) => Answer::Missing,
            (Self::Pop { timeout: WaitMode::Once, .. }, Outcome::QueueEmpty) => Answer::QueueEmpty,
            _ => return None,
        })
    }
}

impl fmt::Display for SimOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let once = |timeout: &WaitMode| if *timeout == WaitMode::Once { " once" } else { "" };
        match self {
            Self::Set { name, value } => write!(f, "set {name} to {}", Text(value)),
            Self::CompareSet { name, expected, desired } => {
                write!(f, "compare_set {name} from {} to {}", Text(expected), Text(desired))
            }
            Self::Append { name, value } => write!(f, "append {} to {name}", Text(value)),
            Self::Delete { name } => write!(f, "delete {name}"),
            Self::Get { name, timeout } => write!(f, "get {name}{}", once(timeout)),
            Self::Check { name } => write!(f, "check {name}"),
            Self::Wait { names } => write!(f, "wait {}", names.join(" ")),
            Self::Add { name, delta } => write!(f, "add {delta} to {name}"),
            Self::MultiSet { pairs } => {
                f.write_str("multi_set")?;
                pairs.iter().try_for_each(|(name, value)| write!(f, " {name} to {}", Text(value)))
            }
            Self::MultiGet { names, timeout } => {
                write!(f, "multi_get {}{}", names.join(" "), once(timeout))
            }
            Self::Push { name, value } => write!(f, "push {} to {name}", Text(value)),
            Self::Pop { name, timeout } => write!(f, "pop {name}{}", once(timeout)),
            Self::QueueLen { name } => write!(f, "queue_len {name}"),
            Self::Barrier { name, world_size, timeout } => {
                write!(f, "barrier {name} of {world_size}{}", once(timeout))
            }
            Self::KeyBarrier { name, world_size } => write!(f, "barrier by keys {name} of {world_size}"),
            Self::Ping => f.write_str("ping"),
            Self::NumKeys => f.write_str("num_keys"),
            Self::ListKeys => f.write_str("list_keys"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Value(value) => Text(value).fmt(f),
            Self::Values(values) => values.iter().try_for_each(|value| write!(f, "{} ", Text(value))),
            Self::Done => f.write_str("done"),
            Self::Ready => f.write_str("ready"),
            Self::NotReady => f.write_str("not ready"),
            Self::Missing => f.write_str("missing"),
            Self::QueueEmpty => f.write_str("queue empty"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Responded(answer) => answer.fmt(f),
            Self::Failed(kind, Effect::None) => write!(f, "failed, {kind:?}"),
            Self::Failed(kind, Effect::Possible | Effect::Kept) => {
                write!(f, "failed, {kind:?}, may have been applied")
            }
        }
    }
}

/// The start of a value, and its length if it is long.
pub(in crate::sim) struct Text<'a>(pub(in crate::sim) &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let visible = &self.0[..self.0.len().min(28)];
        write!(f, "\"{}\"", visible.escape_ascii())?;
        if visible.len() < self.0.len() { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// Values that identify themselves: they contain the name of the key, a number that is unique in a run, and a filling,
/// so that no answer can be mistaken for another. Appended pieces can be separated.
pub(in crate::sim) mod chunk {
    /// Returns one piece of a value of the key `name`.
    pub(crate) fn make(name: &str, number: u32, filling_bytes: usize) -> Vec<u8> {
        let mut chunk = format!("{name}={number}:{filling_bytes};").into_bytes();
        let filling =
            (0..filling_bytes).map(|at| b'a' + u8::try_from((number as usize + at) % 26).unwrap_or(0));
        chunk.extend(filling);
        chunk
    }

    /// Returns the numbers of the pieces of `value`; `None` if the value was not made here for this key.
    pub(crate) fn numbers(name: &str, mut value: &[u8]) -> Option<Vec<u32>> {
        let mut numbers = Vec::new();
        while !value.is_empty() {
            let head_bytes = value.iter().position(|&byte| byte == b';')? + 1;
            let head = core::str::from_utf8(&value[..head_bytes - 1]).ok()?;
            let (number, filling) = head.strip_prefix(name)?.strip_prefix('=')?.split_once(':')?;
            let (number, filling_bytes) = (number.parse().ok()?, filling.parse::<usize>().ok()?);
            let length = head_bytes.checked_add(filling_bytes)?;
            if value.get(..length)? != make(name, number, filling_bytes) {
                return None;
            }
            numbers.push(number);
            value = &value[length..];
        }
        Some(numbers)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_value_tells_its_pieces_and_nothing_else_does() {
            let value = [make("r/1", 7, 0), make("r/1", 400, 60)].concat();
            assert_eq!(numbers("r/1", &value), Some(vec![7, 400]));
            assert_eq!(numbers("r/1", b""), Some(Vec::new()));
            assert_eq!(numbers("r/2", &value), None);
            for at in 0..value.len() {
                let mut corrupted = value.clone();
                corrupted.remove(at);
                assert_ne!(numbers("r/1", &corrupted), Some(vec![7, 400]), "{at}");
            }
        }
    }
}
