//! The keys of a group, as PyTorch writes them, and two of ours.

use crate::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// Whether the group is static; `true` or `false`. The first member says it.
pub const IS_STATIC: &str = "rpcIsStaticGroup";
/// Who may change the group; empty when nobody does.
pub const TOKEN: &str = "RpcGroupManagementToken";
/// The list of all members of a dynamic group.
pub const ALL_WORKERS: &str = "names/_ALL_WORKER_INFOS";
/// What tells the group from others that are beneath the same prefix elsewhere; random. Ours.
pub const GROUP_ID: &str = "rdzv/group";
/// How many workers a static group has. Ours: PyTorch's find that out over gloo.
pub const WORLD_SIZE: &str = "rdzv/size";
/// Beneath it are the liveness keys, `<name>/<address>`, each of which ends with its worker's session. Ours.
pub const LIVENESS: &str = "rdzv/alive/";
/// How the value of a liveness key begins while its worker is in the group; behind it stands the worker's number.
pub const HERE: &str = "here:";
/// What stands by a token that was given back.
pub const DONE: &str = "Done";

/// Whether a member comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aim {
    /// It comes.
    Join,
    /// It goes.
    Leave,
}

/// What a member writes at [`TOKEN`], and the key at which others wait for it.
#[must_use]
pub fn token(name: &str, aim: Aim) -> Box<str> {
    let suffix = match aim {
        Aim::Join => "join",
        Aim::Leave => "leave",
    };
    format!("Token_for_{name}_{suffix}").into()
}

/// Whose token it is; `None` where no worker writes it.
#[must_use]
pub fn holder(token: &str) -> Option<WorkerName> {
    let name = token.strip_prefix("Token_for_")?;
    let name = name.strip_suffix("_join").or_else(|| name.strip_suffix("_leave"))?;
    WorkerName::new(name).ok()
}

/// Where who has a token, or wants it, shows that it lives. Ours: PyTorch's members show nothing.
#[must_use]
pub fn alive(token: &str) -> Box<str> {
    format!("{token}_alive").into()
}

/// The name of the worker with this number.
#[must_use]
pub fn name_of(id: u16) -> Box<str> {
    format!("names/{id}").into()
}

/// Where a worker takes calls.
#[must_use]
pub fn address_of(name: &str) -> Box<str> {
    format!("addrs/{name}").into()
}

/// The liveness key of the worker at this address.
#[must_use]
pub fn liveness_of(name: &str, address: &str) -> Box<str> {
    format!("{LIVENESS}{name}/{address}").into()
}

/// The card of the worker with this number, in a static group. Ours: PyTorch's exchange theirs over gloo.
#[must_use]
pub fn card_of(id: u16) -> Box<str> {
    format!("rdzv/cards/{id}").into()
}

/// The list has something in it that no member writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of workers at {ALL_WORKERS} holds {entry:?}, which is no worker")]
pub struct RosterError {
    /// The entry.
    pub entry: Box<str>,
}

/// Reads the list of all members: `name-number,name-number,`. Names may have `-` in them, numbers not.
///
/// # Errors
/// An entry is none.
pub fn parse_roster(text: &[u8]) -> Result<Vec<WorkerInfo>, RosterError> {
    let text = String::from_utf8_lossy(text);
    let entries = text.split(',').filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let worker = entry.rsplit_once('-').and_then(|(name, id)| {
                Some(WorkerInfo { name: WorkerName::new(name).ok()?, id: id.parse().ok()? })
            });
            worker.ok_or_else(|| RosterError { entry: entry.into() })
        })
        .collect()
}

/// Writes the list.
#[must_use]
pub fn roster_text<'w>(workers: impl IntoIterator<Item = &'w WorkerInfo>) -> Box<str> {
    let mut text = String::new();
    for worker in workers {
        // Nothing fails that writes into a string.
        let _ = write!(text, "{}-{},", worker.name, worker.id);
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_pytorch() {
        assert_eq!(&*token("w", Aim::Join), "Token_for_w_join");
        assert_eq!(&*token("w", Aim::Leave), "Token_for_w_leave");
        assert_eq!((&*name_of(3), &*address_of("w:1")), ("names/3", "addrs/w:1"));
        for (token, name) in [
            ("Token_for_w_join", Some("w")),
            ("Token_for_a_join_leave", Some("a_join")),
            ("Token_for__join", None),
            ("Token_for_w", None),
            ("w_join", None),
            ("Token_for_w_join_alive", None),
            ("", None),
        ] {
            assert_eq!(holder(token).as_deref(), name, "{token}");
        }
    }

    #[test]
    fn the_list_of_workers_is_read_as_it_is_written() {
        let workers = parse_roster(b"a-0,b-c-12,x:1-65535,").expect("a list");
        let text: Vec<String> = workers.iter().map(|worker| format!("{worker}")).collect();
        assert_eq!(text, ["a (id 0)", "b-c (id 12)", "x:1 (id 65535)"]);
        assert_eq!(&*roster_text(&workers), "a-0,b-c-12,x:1-65535,");
        assert_eq!(parse_roster(b""), Ok(Vec::new()));
        for text in ["a", "a-", "-1", "a-65536", "a-1,*-2,", "a-x"] {
            parse_roster(text.as_bytes()).expect_err(text);
        }
        assert_eq!(
            alloc::string::ToString::to_string(&parse_roster(b"\xff-1,").expect_err("no name")),
            "the list of workers at names/_ALL_WORKER_INFOS holds \"\u{fffd}-1\", which is no worker"
        );
    }
}
