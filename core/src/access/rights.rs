//! Rights of a token: which keys its holder may read and write, and in which runs it may take part.

use crate::prelude::*;
use crate::store::op::Key;
use crate::store::txn::Write;
use crate::wire::native::{Batched, ClientFrame};
use core::fmt;

/// What the holder of a token may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything, and to end the sessions of others.
    All,
    /// What one of these allows.
    Any(Box<[Right]>),
}

/// One right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// Reading the keys with a prefix.
    Read(Box<[u8]>),
    /// Reading and changing the keys with a prefix.
    Write(Box<[u8]>),
    /// Taking part in a run, closing it, and all keys of its rounds; or, for a text that ends in `*`, in all runs whose
    /// ids begin with what is before it.
    Run(Box<[u8]>),
}

/// Maximum number of rights of a token, because each of them may be compared with each key of a request.
pub(super) const RIGHTS_MAX: usize = 16;

/// Text that is not a list of rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "after the secret, a token has its rights: `all`, or {RIGHTS_MAX} at most of `run:ID`, `read:PREFIX` and `write:PREFIX`"
)]
pub struct RightsError;

/// What a request needs, and the session's token does not grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied<'a> {
    /// Reading this key, or the keys with this prefix.
    Read(Key<'a>),
    /// Changing this key, or the keys with this prefix.
    Write(Key<'a>),
    /// Taking part in this run.
    Run(Key<'a>),
    /// Changing any keys at all.
    AnyWrite,
    /// All rights.
    All,
}

impl fmt::Display for Denied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(key) => write!(f, "no right `read:` covers {key}"),
            Self::Write(key) => write!(f, "no right `write:` covers {key}"),
            Self::Run(run_id) => write!(f, "no right `run:` covers {run_id}"),
            Self::AnyWrite => f.write_str("this takes a right `write:` or `run:`"),
            Self::All => f.write_str("this takes the right `all`"),
        }
    }
}

impl Right {
    /// Returns whether the right covers a need that concerns this run, if any.
    fn covers(&self, need: Denied<'_>, run_id: Option<&[u8]>) -> bool {
        match (self, need) {
            (Self::Read(prefix), Denied::Read(key))
            | (Self::Write(prefix), Denied::Read(key) | Denied::Write(key)) => key.name().starts_with(prefix),
            (Self::Run(_), Denied::Read(_) | Denied::Write(_) | Denied::Run(_)) => {
                run_id.is_some_and(|run_id| self.covers_run(run_id))
            }
            (Self::Write(_) | Self::Run(_), Denied::AnyWrite) => true,
            _ => false,
        }
    }

    /// Returns whether the right covers all that `other` covers.
    fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Read(prefix) | Self::Write(prefix), Self::Read(other))
            | (Self::Write(prefix), Self::Write(other)) => other.starts_with(prefix),
            (Self::Run(text), Self::Run(other)) => match other.strip_suffix(b"*") {
                Some(other) => text.strip_suffix(b"*").is_some_and(|beginning| other.starts_with(beginning)),
                None => self.covers_run(other),
            },
            _ => false,
        }
    }

    fn covers_run(&self, run_id: &[u8]) -> bool {
        let Self::Run(text) = self else { return false };
        match text.strip_suffix(b"*") {
            Some(beginning) => run_id.starts_with(beginning),
            None => **text == *run_id,
        }
    }
}

impl Rights {
    /// Parses words such as `run:job-7 read:/data/`, separated by blanks.
    ///
    /// # Errors
    /// There is no word, there are more than [`RIGHTS_MAX`], or one is not a right.
    pub fn parse(text: &str) -> Result<Self, RightsError> {
        let mut rights = Vec::new();
        let mut words = text.split_whitespace().peekable();
        words.peek().ok_or(RightsError)?;
        let mut is_all = false;
        for word in words {
            rights.push(match word.split_once(':') {
                None if word == "all" => {
                    is_all = true;
                    continue;
                }
                Some(("read", prefix)) => Right::Read(prefix.as_bytes().into()),
                Some(("write", prefix)) => Right::Write(prefix.as_bytes().into()),
                Some(("run", run_id)) if !run_id.is_empty() => Right::Run(run_id.as_bytes().into()),
                _ => return Err(RightsError),
            });
        }
        match rights.len() {
            _ if is_all => Ok(Self::All),
            ..=RIGHTS_MAX => Ok(Self::Any(rights.into())),
            _ => Err(RightsError),
        }
    }

    /// Returns whether each of the `earlier` rights is included in one of these.
    pub fn include(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::All, _) => true,
            (_, Self::All) => false,
            (Self::Any(rights), Self::Any(earlier)) => {
                earlier.iter().all(|earlier| rights.iter().any(|right| right.includes(earlier)))
            }
        }
    }

    /// Checks a request. `run_of` returns the run to whose rounds a key belongs.
    ///
    /// # Errors
    /// The first thing that the request needs and that no right covers.
    pub fn check<'k>(
        &self,
        frame: &ClientFrame<'k>,
        run_of: &impl Fn(&'k [u8]) -> Option<&'k [u8]>,
    ) -> Result<(), Denied<'k>> {
        let Self::Any(rights) = self else { return Ok(()) };
        let need = |need: Denied<'k>| {
            // Once for all rights, since it takes time in proportion to the key.
            let run_id = match need {
                Denied::Read(key) | Denied::Write(key) => run_of(key.name()),
                Denied::Run(run_id) => Some(run_id.name()),
                Denied::AnyWrite | Denied::All => None,
            };
            if rights.iter().any(|right| right.covers(need, run_id)) { Ok(()) } else { Err(need) }
        };
        let write = |write: Write<'k>| {
            need(Denied::Write(match write {
                Write::Set { key, .. }
                | Write::Delete { key }
                | Write::DeletePrefix { prefix: key }
                | Write::Add { key, .. }
                | Write::Append { key, .. } => key,
            }))
        };
        match *frame {
            ClientFrame::Get { key, .. }
            | ClientFrame::QueueLen { key }
            | ClientFrame::WatchKey { key, .. }
            | ClientFrame::ListKeys { prefix: key, .. }
            | ClientFrame::WatchPrefix { prefix: key, .. } => need(Denied::Read(key)),
            ClientFrame::NumKeys {} => need(Denied::Read(Key::raw(b""))),
            ClientFrame::Check { keys }
            | ClientFrame::Wait { keys, .. }
            | ClientFrame::MultiGet { keys, .. } => keys.iter().try_for_each(|key| need(Denied::Read(key))),
            ClientFrame::Set { key, .. }
            | ClientFrame::CompareSet { key, .. }
            | ClientFrame::Add { key, .. }
            | ClientFrame::Delete { key }
            | ClientFrame::Append { key, .. }
            | ClientFrame::QueuePush { key, .. }
            | ClientFrame::QueuePop { key, .. }
            | ClientFrame::DeletePrefix { prefix: key }
            | ClientFrame::Barrier { key, .. }
            | ClientFrame::BarrierCancel { key, .. } => need(Denied::Write(key)),
            ClientFrame::MultiSet { pairs } => pairs.iter().try_for_each(|(key, _)| need(Denied::Write(key))),
            // The end of a lease removes its keys.
            ClientFrame::LeaseAttach { keys, .. } => keys.iter().try_for_each(|key| need(Denied::Write(key))),
            ClientFrame::Txn { compares, then, otherwise } => {
                compares.iter().try_for_each(|compare| need(Denied::Read(compare.key)))?;
                then.iter().try_for_each(write)?;
                otherwise.iter().try_for_each(write)
            }
            ClientFrame::Batch { requests } => {
                requests.iter().try_for_each(|Batched(request)| self.check(&request, run_of))
            }
            ClientFrame::Join { entry } | ClientFrame::Standby { entry } => {
                need(Denied::Run(Key::raw(entry.run_id)))
            }
            ClientFrame::Leave { run_id }
            | ClientFrame::Close { run_id }
            | ClientFrame::Fail { run_id, .. }
            | ClientFrame::Members { run_id, .. }
            | ClientFrame::RunInfo { run_id } => need(Denied::Run(run_id)),
            // It is of no use without a key, and there is a number of leases for all.
            ClientFrame::LeaseGrant { .. } => need(Denied::AnyWrite),
            ClientFrame::Sessions { .. } | ClientFrame::EndSession { .. } => need(Denied::All),
            // They concern the session alone.
            ClientFrame::Hello { .. }
            | ClientFrame::Heartbeat { .. }
            | ClientFrame::Acknowledge {}
            | ClientFrame::Bye {}
            | ClientFrame::Abandon {}
            | ClientFrame::Cancel { .. }
            | ClientFrame::LeaseRenew { .. }
            | ClientFrame::LeaseRevoke { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FrameLimits;
    use crate::store::op::{Keys, Pairs};
    use crate::store::txn::{Compare, Condition};
    use crate::wire::native::List;

    const NO_RUN: fn(&[u8]) -> Option<&[u8]> = |_| None;

    fn denied<'k>(rights: &str, frame: &ClientFrame<'k>) -> Option<Denied<'k>> {
        let run_of = |key: &'k [u8]| {
            key.strip_prefix(b"round of ").map(|run| run.split(|&byte| byte == b'/').next().unwrap())
        };
        Rights::parse(rights).unwrap().check(frame, &run_of).err()
    }

    #[test]
    fn rights_are_words_and_nothing_else() {
        assert_eq!(Rights::parse("read:/a all"), Ok(Rights::All));
        let parsed = Rights::parse(" run:job-*  write: read:/x ").unwrap();
        let rights =
            [Right::Run(b"job-*"[..].into()), Right::Write(Box::default()), Right::Read(b"/x"[..].into())];
        assert_eq!(parsed, Rights::Any(rights.into()));
        assert!(Rights::parse(&"read: ".repeat(RIGHTS_MAX)).is_ok());
        for wrong in
            ["", "  ", "run:", "read", "everything", "read:/a,write:/b x", "All", &"read: ".repeat(17)]
        {
            assert_eq!(Rights::parse(wrong), Err(RightsError), "{wrong}");
        }
    }

    #[test]
    fn a_key_is_covered_by_a_prefix_or_its_run() {
        let key = Key::raw;
        let get = |name| ClientFrame::Get { timeout_ms: 0, key: key(name) };
        let set = |name| ClientFrame::Set { key: key(name), value: b"" };
        assert_eq!(denied("read:/a/", &get(b"/a/1")), None);
        assert_eq!(denied("read:/a/", &get(b"/a")), Some(Denied::Read(key(b"/a"))));
        assert_eq!(denied("read:/a/", &set(b"/a/1")), Some(Denied::Write(key(b"/a/1"))));
        assert_eq!(denied("write:/a/", &get(b"/a/1")), None);
        assert_eq!(denied("write:/a/", &set(b"/b")), Some(Denied::Write(key(b"/b"))));
        assert_eq!(denied("run:x", &set(b"round of x/1")), None);
        assert_eq!(denied("run:x", &set(b"round of xy/1")), Some(Denied::Write(key(b"round of xy/1"))));
        assert_eq!(denied("run:x*", &get(b"round of xy/1")), None);
        assert_eq!(denied("all", &set(b"anything")), None);
    }

    #[test]
    fn rights_include_those_that_allow_no_more() {
        let include = |rights: &str, earlier: &str| {
            Rights::parse(rights).unwrap().include(&Rights::parse(earlier).unwrap())
        };
        for (rights, earlier) in [
            ("all", "all"),
            ("all", "run:x write:/a"),
            ("write:/a", "read:/a/b write:/a"),
            ("read:", "read:/a"),
            ("run:job-*", "run:job-* run:job-7 run:job-7*"),
            ("read:/b write:/a run:x", "run:x read:/b"),
        ] {
            assert!(include(rights, earlier), "{rights} and {earlier}");
        }
        for (rights, earlier) in [
            ("write: run:*", "all"),
            ("read:/a", "write:/a"),
            ("read:/a/", "read:/a"),
            ("run:job-7", "run:job-7*"),
            ("run:a**", "run:a*"),
            ("run:x", "run:x read:/a"),
        ] {
            assert!(!include(rights, earlier), "{rights} and {earlier}");
        }
    }

    #[test]
    fn a_lease_takes_a_right_to_change_keys() {
        let grant = ClientFrame::LeaseGrant { ttl_ms: 1 };
        assert_eq!(denied("read:", &grant), Some(Denied::AnyWrite));
        for rights in ["read: write:/a", "run:x", "all"] {
            assert_eq!(denied(rights, &grant), None, "{rights}");
        }
    }

    #[test]
    fn a_request_needs_a_right_for_each_of_its_keys() {
        let names: [&[u8]; 2] = [b"/a/1", b"/b/1"];
        let keys = names.map(Key::raw);
        let pairs: [(&[u8], &[u8]); 2] = [(names[0], b""), (names[1], b"")];
        let compare = |key| Compare { key, condition: Condition::Exists };
        let read = [compare(keys[0])];
        let write = [Write::Set { key: keys[0], value: b"" }];
        let foreign = [Write::Add { key: keys[1], delta: 1 }];
        let txn = |otherwise| ClientFrame::Txn {
            compares: List::new(&read),
            then: List::new(&write),
            otherwise: List::new(otherwise),
        };
        let rights = "write:/a/";
        assert_eq!(denied(rights, &txn(&[])), None);
        assert_eq!(denied(rights, &txn(&foreign)), Some(Denied::Write(keys[1])));
        assert_eq!(denied("write:/b/", &txn(&[])), Some(Denied::Read(keys[0])));
        let batch =
            [Batched(ClientFrame::Delete { key: keys[0] }), Batched(ClientFrame::Delete { key: keys[1] })];
        assert_eq!(
            denied(rights, &ClientFrame::Batch { requests: List::new(&batch) }),
            Some(Denied::Write(keys[1]))
        );
        for frame in [
            ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) },
            ClientFrame::LeaseAttach { lease: 1, keys: Keys::scoped(b"", &names) },
        ] {
            assert_eq!(denied(rights, &frame), Some(Denied::Write(keys[1])));
        }
        for frame in [
            ClientFrame::Wait { timeout_ms: 1, keys: Keys::scoped(b"", &names) },
            ClientFrame::MultiGet { timeout_ms: 1, keys: Keys::scoped(b"", &names) },
            ClientFrame::Check { keys: Keys::scoped(b"", &names) },
        ] {
            assert_eq!(denied(rights, &frame), Some(Denied::Read(keys[1])));
        }
    }

    #[test]
    fn without_a_right_every_request_but_those_on_the_own_session_is_denied() {
        // Fields of zeros: an empty key, no run, no list. A list without an element needs nothing.
        let limits = FrameLimits::default();
        let free =
            ["Hello", "Heartbeat", "Acknowledge", "Bye", "Cancel", "Abandon", "LeaseRenew", "LeaseRevoke"];
        let lists = ["Check", "Wait", "MultiGet", "MultiSet", "Txn", "Batch", "LeaseAttach"];
        for &(kind, name, _) in ClientFrame::KINDS {
            let body = [0; 512];
            let Ok(Some(frame)) = ClientFrame::parse(kind, &body, &limits) else { panic!("{name}") };
            let denied = Rights::Any([].into()).check(&frame, &NO_RUN).is_err();
            assert_eq!(denied, !free.contains(&name) && !lists.contains(&name), "{name}");
        }
    }
}
