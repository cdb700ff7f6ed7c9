//! Assignment of ranks. Each agent writes its role and size into the round's store. The first agent computes where each
//! agent's ranks begin, and writes the result. Keys and values are PyTorch's, so that agents of both kinds can share a
//! job.

use super::group::Worker;
use rendezvous_core::prelude::*;
use serde_json::{Value, json};

/// First ranks of an agent's workers, and the numbers of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Global rank of its first worker.
    pub global_rank_first: u64,
    /// Number of workers in the job.
    pub world_size: u64,
    /// Role rank of its first worker.
    pub role_rank_first: u64,
    /// Number of workers of its role.
    pub role_world_size: u64,
}

impl Ranks {
    /// Returns the ranks of an agent if all agents have one role and size.
    pub fn of_identical(group_rank: u64, group_world_size: u64, local_world_size: u32) -> Self {
        let (first, all) =
            (group_rank * u64::from(local_world_size), group_world_size * u64::from(local_world_size));
        Self { global_rank_first: first, world_size: all, role_rank_first: first, role_world_size: all }
    }

    /// Returns the workers that begin at these ranks.
    pub fn workers(&self, local_world_size: u32) -> Vec<Worker> {
        let worker = |local_rank: u32| Worker {
            local_rank,
            global_rank: self.global_rank_first + u64::from(local_rank),
            role_rank: self.role_rank_first + u64::from(local_rank),
            world_size: self.world_size,
            role_world_size: self.role_world_size,
            pid: None,
            exit: None,
        };
        (0..local_world_size).map(worker).collect()
    }
}

/// Returns the key of an agent's role and size.
pub fn role_info_key(group_rank: u64) -> String {
    format!("torchelastic/role_info/{group_rank}")
}

/// Returns the key of the ranks assigned to an agent.
pub fn assigned_ranks_key(group_rank: u64) -> String {
    format!("torchelastic/assigned_ranks/{group_rank}")
}

/// Returns the value of an agent's role, size and name. PyTorch's agents have no name, and ignore it.
pub fn role_info(role: &str, group_rank: u64, local_world_size: u32, name: &str) -> Vec<u8> {
    json!({ "role": role, "rank": group_rank, "local_world_size": local_world_size, "agent": name })
        .to_string()
        .into_bytes()
}

/// Returns the name of the agent that wrote its role and size, if it is there.
pub fn agent_name(role_info: &[u8]) -> Option<String> {
    let info: Value = serde_json::from_slice(role_info).ok()?;
    Some(info.get("agent")?.as_str()?.to_string())
}

/// Invalid value of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RanksError {
    /// The value is not JSON of the right shape.
    #[error("the role information of agent {group_rank} is invalid: {text}")]
    RoleInfo {
        /// Rank of the agent that wrote it.
        group_rank: u64,
        /// Beginning of the value.
        text: Box<str>,
    },
    /// The number of workers overflows.
    #[error("the number of workers in the job is too large")]
    TooMany,
    /// The value is not JSON of the right shape.
    #[error("the ranks assigned to agent {group_rank} are invalid: {text}")]
    Assigned {
        /// Rank of the agent that it is for.
        group_rank: u64,
        /// Beginning of the value.
        text: Box<str>,
    },
}

/// Length to which an invalid value is quoted, in characters.
const QUOTED_CHARS_MAX: usize = 200;

fn quoted(value: &[u8]) -> Box<str> {
    String::from_utf8_lossy(value).chars().take(QUOTED_CHARS_MAX).collect::<String>().into()
}

/// Returns the ranks of each agent, from their roles and sizes in the order of their group ranks.
///
/// # Errors
/// A value is invalid, or the workers are too many.
pub fn assign(role_infos: &[Vec<u8>]) -> Result<Vec<Ranks>, RanksError> {
    let mut agents = Vec::with_capacity(role_infos.len());
    for (value, group_rank) in role_infos.iter().zip(0..) {
        agents.push(
            read_role_info(value).ok_or_else(|| RanksError::RoleInfo { group_rank, text: quoted(value) })?,
        );
    }
    // Each role with its number of workers so far. A list suffices because roles are few.
    let mut roles: Vec<(&str, u64)> = Vec::new();
    let mut ranks = Vec::with_capacity(agents.len());
    let mut world_size = 0_u64;
    for (role, size) in &agents {
        let index = roles.iter().position(|(known, _)| known == role);
        let index = index.unwrap_or_else(|| {
            roles.push((role, 0));
            roles.len() - 1
        });
        let in_role = &mut roles[index].1;
        ranks.push((index, world_size, *in_role));
        *in_role = in_role.checked_add(*size).ok_or(RanksError::TooMany)?;
        world_size = world_size.checked_add(*size).ok_or(RanksError::TooMany)?;
    }
    let whole = |(index, global_rank_first, role_rank_first): (usize, u64, u64)| Ranks {
        global_rank_first,
        world_size,
        role_rank_first,
        role_world_size: roles[index].1,
    };
    Ok(ranks.into_iter().map(whole).collect())
}

fn read_role_info(value: &[u8]) -> Option<(String, u64)> {
    let mut info: Value = serde_json::from_slice(value).ok()?;
    let size = info.get("local_world_size")?.as_u64()?;
    let Value::String(role) = info.get_mut("role")?.take() else { return None };
    Some((role, size))
}

/// Returns the value for the ranks assigned to an agent.
pub fn assigned(ranks: &Ranks) -> Vec<u8> {
    json!([ranks.global_rank_first, ranks.world_size, ranks.role_rank_first, ranks.role_world_size])
        .to_string()
        .into_bytes()
}

/// Parses the ranks assigned to an agent.
///
/// # Errors
/// The value is invalid.
pub fn read_assigned(group_rank: u64, value: &[u8]) -> Result<Ranks, RanksError> {
    let read = || {
        let numbers: Value = serde_json::from_slice(value).ok()?;
        let [global_rank_first, world_size, role_rank_first, role_world_size] =
            numbers.as_array()?.as_slice()
        else {
            return None;
        };
        Some(Ranks {
            global_rank_first: global_rank_first.as_u64()?,
            world_size: world_size.as_u64()?,
            role_rank_first: role_rank_first.as_u64()?,
            role_world_size: role_world_size.as_u64()?,
        })
    };
    read().ok_or_else(|| RanksError::Assigned { group_rank, text: quoted(value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn agents_of_different_roles_and_sizes_are_numbered_in_their_order() {
        let infos: Vec<_> = [("trainer", 2), ("ps", 1), ("trainer", 3)]
            .iter()
            .zip(0..)
            .map(|(&(role, size), rank)| role_info(role, rank, size, "host"))
            .collect();
        let ranks = assign(&infos).expect("sense");
        let event = |global_rank_first, role_rank_first, role_world_size| Ranks {
            global_rank_first,
            world_size: 6,
            role_rank_first,
            role_world_size,
        };
        assert_eq!(ranks, [event(0, 0, 5), event(2, 0, 1), event(3, 2, 5)]);
        for (ranks, group_rank) in ranks.iter().zip(0..) {
            assert_eq!(read_assigned(group_rank, &assigned(ranks)), Ok(*ranks));
        }
        let last = ranks[2].workers(3);
        assert_eq!((last[2].global_rank, last[2].role_rank, last[2].local_rank), (5, 4, 2));
    }

    #[test]
    fn identical_agents_need_no_store() {
        let infos: Vec<_> = (0..3).map(|rank| role_info("default", rank, 4, "host")).collect();
        let through_store = assign(&infos).expect("sense");
        let alone: Vec<_> = (0..3).map(|rank| Ranks::of_identical(rank, 3, 4)).collect();
        assert_eq!(alone, through_store);
    }

    #[test]
    fn the_values_are_those_of_pytorch() {
        // Values in the format of Python's json, which writes a space after each comma and colon.
        let theirs = br#"{"role": "default", "rank": 1, "local_world_size": 2}"#.to_vec();
        let ranks = assign(&[role_info("default", 0, 1, "host"), theirs]).expect("sense");
        assert_eq!(ranks[1].role_world_size, 3);
        assert_eq!(read_assigned(1, b"[1, 3, 1, 3]").expect("sense"), ranks[1]);
        assert_eq!(role_info_key(7), "torchelastic/role_info/7");
        assert_eq!(assigned_ranks_key(0), "torchelastic/assigned_ranks/0");
    }

    #[test]
    fn nonsense_is_named() {
        let good = role_info("default", 0, 1, "host");
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"role": 1, "local_world_size": 1}"#,
            r#"{"role": "a", "local_world_size": -1}"#,
        ] {
            let error = assign(&[good.clone(), bad.as_bytes().to_vec()]).expect_err("nonsense");
            assert!(error.to_string().starts_with("the role information of agent 1 is invalid"), "{error}");
        }
        let many = br#"{"role": "a", "local_world_size": 18446744073709551615}"#.to_vec();
        assert_eq!(assign(&[many.clone(), many]), Err(RanksError::TooMany));
        for bad in ["", "{}", "[1,2,3]", "[1,2,3,-4]", "[1,2,3,4,5]"] {
            assert!(read_assigned(3, bad.as_bytes()).is_err(), "{bad}");
        }
        let long = vec![b'x'; 10_000];
        let error = read_assigned(3, &long).expect_err("nonsense");
        assert!(
            matches!(&error, RanksError::Assigned { text, .. } if text.len() == QUOTED_CHARS_MAX),
            "{error:?}"
        );
    }
}
