//! Identity of a group, which workers send in the handshake.
//!
//! A prefix does not identify a group: two jobs of one host may both have an `rpc_prefix_0` with a `worker1` in it, and
//! another job may soon reuse the port of a dead one. So the first member puts a random number into the store, and a
//! worker refuses connections from workers of another group. PyTorch's members ignore the key.

use super::error::MembershipError;
use super::{Reply, StoreStep};
use crate::membership::keys;
use rendezvous_core::prelude::*;

/// Returns the step that stores the number, unless one is stored already.
pub fn ask(nonce: u64) -> StoreStep {
    StoreStep::CompareSet {
        key: keys::GROUP_ID.into(),
        expected: "".into(),
        desired: format!("{nonce:016x}").into(),
    }
}

/// Returns the group id that workers present to each other: `scope`, which is the prefix of the group's keys, and the
/// stored number.
///
/// # Errors
/// The store failed, or its reply has no number.
pub fn group_id_from(scope: &[u8], reply: Reply) -> Result<Vec<u8>, MembershipError> {
    match reply {
        Reply::Value(id) if !id.is_empty() => Ok([scope, b"#", &id].concat()),
        Reply::Failed(message) => Err(MembershipError::Store { message }),
        _ => Err(MembershipError::Store { message: "its reply does not match the request".into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_group_is_known_by_its_prefix_and_a_number_that_the_first_member_chose() {
        let StoreStep::CompareSet { key, expected, desired } = ask(7) else { panic!("a compare-set") };
        assert_eq!((&*key, &*expected, &*desired), ("rdzv/group", "", "0000000000000007"));
        let group = group_id_from(b"rpc_prefix_0/", Reply::Value(b"0000000000000009"[..].into()));
        assert_eq!(group, Ok(b"rpc_prefix_0/#0000000000000009".to_vec()));
        for (reply, message) in [
            (Reply::Failed("gone".into()), "the store failed: gone"),
            (Reply::Value([].into()), "the store failed: its reply does not match the request"),
            (Reply::Done, "the store failed: its reply does not match the request"),
        ] {
            assert_eq!(group_id_from(b"", reply).expect_err("no id").to_string(), message);
        }
    }
}
