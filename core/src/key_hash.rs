//! Hash of names that come from the network.

use siphasher::sip::SipHasher13;

/// Keyed hash. A client that does not know the key cannot choose names that collide.
#[derive(Clone, Copy, Debug)]
pub struct KeyHash(SipHasher13);

impl KeyHash {
    /// Creates the hash with a key, which must be secret.
    pub fn new(key: u128) -> Self {
        Self(SipHasher13::new_with_key(&key.to_le_bytes()))
    }

    /// Returns the hash of a name.
    #[inline]
    pub fn of(&self, name: &[u8]) -> u64 {
        self.0.hash(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fast hash that reads eight bytes at a time may multiply by them: names that end in a number which makes the
    /// product 0 then collide whatever the key.
    #[test]
    fn names_that_were_chosen_to_collide_do_not() {
        let hash = KeyHash::new(1);
        let mut buckets = [0_u32; 1024];
        for number in 0..32_768_u64 {
            let mut name = number.to_le_bytes().to_vec();
            name.extend_from_slice(&0x3f84_d5b5_b547_0917_u64.to_le_bytes());
            buckets[usize::try_from(hash.of(&name) % 1024).expect("a small number")] += 1;
        }
        assert!(buckets.iter().all(|&count| count < 100), "at most {:?} names in one", buckets.iter().max());
        assert_ne!(hash.of(b"name"), KeyHash::new(2).of(b"name"));
    }
}
