//! Keys of a group in the store: PyTorch's, and this library's additions.

use crate::name::{WorkerInfo, WorkerName};
use core::fmt::Write;
use rendezvous_core::prelude::*;

/// `true` if the group is static, else `false`; the first member sets it.
pub const IS_STATIC: &str = "rpcIsStaticGroup";
/// Token of the member that may change the group; empty if none does.
pub const TOKEN: &str = "RpcGroupManagementToken";
/// List of all members of a dynamic group.
pub const ALL_WORKERS: &str = "names/_ALL_WORKER_INFOS";
/// Random number that distinguishes the group from others with the same prefix. Not in PyTorch.
pub const GROUP_ID: &str = "rdzv/group";
/// Number of workers of a static group. Not in PyTorch, whose members learn it over gloo.
pub const WORLD_SIZE: &str = "rdzv/size";
/// Prefix of the liveness keys, `<name>/<address>`, each of which is deleted with its worker's session. Not in PyTorch.
pub const LIVENESS: &str = "rdzv/alive/";
/// Prefix of a liveness key's value while its worker is in the group; the worker's number follows.
pub const HERE: &str = "here:";
/// Value at a token's own key once the token has been returned.
pub const DONE: &str = "Done";

/// Purpose of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aim {
    /// Its owner joins.
    Join,
    /// Its owner leaves.
    Leave,
}

/// Returns the value that a member writes at [`TOKEN`], which is also the key at which others wait for it.
pub fn token(name: &str, aim: Aim) -> Box<str> {
    let suffix = match aim {
        Aim::Join => "join",
        Aim::Leave => "leave",
    };
    format!("Token_for_{name}_{suffix}").into()
}

/// Returns the name of a token's owner; `None` if no worker writes such a token.
pub fn holder(token: &str) -> Option<WorkerName> {
    let name = token.strip_prefix("Token_for_")?;
    let name = name.strip_suffix("_join").or_else(|| name.strip_suffix("_leave"))?;
    WorkerName::new(name).ok()
}

/// Returns the heartbeat key of the owner of a token, or of a member that waits with it. Not in PyTorch, whose members
/// send no heartbeats.
pub fn alive(token: &str) -> Box<str> {
    format!("{token}_alive").into()
}

/// Returns the key that holds the name of the worker with this number.
pub fn name_of(id: u16) -> Box<str> {
    format!("names/{id}").into()
}

/// Returns the key that holds the address at which a worker accepts calls.
pub fn address_of(name: &str) -> Box<str> {
    format!("addrs/{name}").into()
}

/// Returns the liveness key of the worker at this address.
pub fn liveness_of(name: &str, address: &str) -> Box<str> {
    format!("{LIVENESS}{name}/{address}").into()
}

/// Returns the key of the card of the worker with this number in a static group. Not in PyTorch, whose members exchange
/// theirs over gloo.
pub fn card_of(id: u16) -> Box<str> {
    format!("rdzv/cards/{id}").into()
}

/// The list of members has an entry that no member writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of workers at {ALL_WORKERS} holds {entry:?}, which is not a worker")]
pub struct RosterError {
    /// The invalid entry.
    pub entry: Box<str>,
}

/// Parses the list of all members: `name-number,name-number,`. A name may contain `-`, a number cannot.
///
/// # Errors
/// An entry is not a worker.
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

/// Formats the list of members.
pub fn roster_text<'w>(workers: impl IntoIterator<Item = &'w WorkerInfo>) -> Box<str> {
    let mut text = String::new();
    for worker in workers {
        // Writing to a string does not fail.
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
            "the list of workers at names/_ALL_WORKER_INFOS holds \"\u{fffd}-1\", which is not a worker"
        );
    }
}
