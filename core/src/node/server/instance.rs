//! Values that the server is given when it starts. The server draws no random numbers itself.

use crate::auth::Bytes32;
use crate::opaque::opaque_debug;
use crate::rng::Rng;
use core::hash::Hasher;
use siphasher::sip128::{Hasher128, SipHasher24};

/// Values that differ from one start of a server to the next.
#[derive(Clone, Copy)]
pub struct ServerInstance {
    /// Key of the tables' hash. It does not change any observable result.
    pub hash_key: u128,
    /// Identifies this start of the server. No two starts may share a value, and 0 is reserved.
    pub incarnation: u64,
    /// Revision of the empty store. It must be above all revisions of earlier starts, so that no request which names one
    /// of those means a change of this start.
    pub first_revision: u64,
    /// Secret from which session tokens and nonces are derived. A process that knows it can take over any session, so it must come
    /// from the system's entropy source.
    pub token_key: [u8; 16],
}

opaque_debug!(ServerInstance);

impl ServerInstance {
    /// Returns an instance whose secrets are predictable, for tests and simulations.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut token_key = [0; 16];
        token_key[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        token_key[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
        // A client that has not met a server yet sends incarnation 0.
        let (hash_key, incarnation) = (rng.next_u64().into(), rng.next_u64().max(1));
        Self { hash_key, incarnation, first_revision: 0, token_key }
    }

    /// Returns the token for the HELLO with this number. The server counts them from 1.
    pub(super) fn token(&self, number: u64) -> [u8; 16] {
        self.secret_of(number).finish128().as_bytes()
    }

    /// Returns the nonce for the HELLO with this number.
    pub(super) fn nonce(&self, number: u64) -> Bytes32 {
        let mut nonce = [0; 32];
        for (half, bytes) in (0..).zip(nonce.chunks_exact_mut(16)) {
            // Longer than what a token is made from, so that no nonce is half a token.
            let mut hasher = self.secret_of(number);
            hasher.write_u64(half);
            bytes.copy_from_slice(&hasher.finish128().as_bytes());
        }
        nonce
    }

    fn secret_of(&self, number: u64) -> SipHasher24 {
        let mut hasher = SipHasher24::new_with_key(&self.token_key);
        hasher.write_u64(self.incarnation);
        hasher.write_u64(number);
        hasher
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
    fn nonces_differ_and_tell_nothing_of_tokens() {
        let instance = ServerInstance::from_seed(1);
        let (nonce, token) = (instance.nonce(1), instance.token(1));
        assert_ne!(nonce, instance.nonce(2));
        assert_ne!(nonce[..16], nonce[16..]);
        assert!(nonce[..16] != token && nonce[16..] != token);
    }

    #[test]
    fn secrets_are_not_printed() {
        let instance = ServerInstance { token_key: [0x5a; 16], ..ServerInstance::from_seed(1) };
        assert!(!alloc::format!("{instance:?}").contains("90"));
    }
}
