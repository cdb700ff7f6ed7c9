//! What tells one group from another: workers greet each other with it.
//!
//! Prefixes do not. Two jobs of one host may both have a `rpc_prefix_0` with a `worker1` in it, and the port of one that
//! died may be another's soon. So whoever comes first puts a random number into the store, and a call that comes to a
//! worker of another group is refused. PyTorch's members pass over the key.

use super::error::MembershipError;
use super::{Reply, StoreStep};
use crate::membership::keys;
use alloc::format;
use alloc::vec::Vec;

/// Puts the number there, unless there is one.
#[must_use]
pub fn ask(nonce: u64) -> StoreStep {
    StoreStep::CompareSet {
        key: keys::GROUP_ID.into(),
        expected: "".into(),
        desired: format!("{nonce:016x}").into(),
    }
}

/// The group of which the workers say that they are; its keys are beneath `scope`.
///
/// # Errors
/// The store did not say.
pub fn group_id_from(scope: &[u8], reply: Reply) -> Result<Vec<u8>, MembershipError> {
    match reply {
        Reply::Value(id) if !id.is_empty() => Ok([scope, b"#", &id].concat()),
        Reply::Failed(message) => Err(MembershipError::Store { message }),
        _ => Err(MembershipError::Store { message: "it answered another question".into() }),
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
            (Reply::Value([].into()), "the store failed: it answered another question"),
            (Reply::Done, "the store failed: it answered another question"),
        ] {
            assert_eq!(group_id_from(b"", reply).expect_err("no id").to_string(), message);
        }
    }
}
