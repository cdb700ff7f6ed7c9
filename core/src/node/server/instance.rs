//! What a server must be given at its start, since nothing in it is random.

use crate::rng::Rng;
use core::hash::Hasher;
use siphasher::sip128::{Hasher128, SipHasher24};

/// What differs from one start of a server to the next.
#[derive(Clone, Copy)]
pub struct ServerInstance {
    /// Places keys in the hash table and decides nothing that can be seen.
    pub hash_seed: u64,
    /// Tells this life of the server from others: no two starts may have the same.
    pub incarnation: u64,
    /// Makes the tokens of sessions. Who knows it can take over any session: it comes from the system's entropy.
    pub token_key: [u8; 16],
}

impl core::fmt::Debug for ServerInstance {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Birth").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl ServerInstance {
    /// One whose secrets everybody can guess: for tests and simulations.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut token_key = [0; 16];
        token_key[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        token_key[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
        // 0 is what a client says that knows no server yet.
        Self { hash_seed: rng.next_u64(), incarnation: rng.next_u64().max(1), token_key }
    }

    /// The token of the `number`th session that is asked for.
    pub(super) fn token(&self, number: u64) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.token_key);
        hasher.write_u64(self.incarnation);
        hasher.write_u64(number);
        hasher.finish128().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_by_number_life_and_key() {
        let instance = ServerInstance::from_seed(1);
        let others = [
            instance.token(2),
            ServerInstance { incarnation: instance.incarnation + 1, ..instance }.token(1),
            ServerInstance { token_key: [0; 16], ..instance }.token(1),
        ];
        assert!(!others.contains(&instance.token(1)));
        assert_eq!(instance.token(1), ServerInstance::from_seed(1).token(1));
    }

    #[test]
    fn secrets_are_not_printed() {
        let instance = ServerInstance { token_key: [0x5a; 16], ..ServerInstance::from_seed(1) };
        assert!(!alloc::format!("{instance:?}").contains("90"));
    }
}
