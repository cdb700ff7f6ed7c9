//! What a list of keys that may name a key twice adds to a table of keys.

use super::{contiguous_key, cost};
use crate::hash_index::{HashIndex, id_of};
use crate::key_hash::KeyHash;
use crate::prelude::*;
use crate::store::op::Key;

/// What a list adds to a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// Number of keys that are not in the table.
    pub(super) keys: usize,
    /// By how much the charges of keys and values grow.
    pub(super) bytes: u64,
}

/// Finds the length of a key's value in a table by the key's position in a list, its hash and its name.
pub(super) type Held<'h> = dyn FnMut(usize, u64, &[u8]) -> Option<usize> + 'h;

/// Returns what keys with values of these lengths add to a table. The last value of a key counts.
#[cold]
pub(super) fn growth<'k>(
    hasher: KeyHash,
    list: &mut dyn Iterator<Item = (Key<'k>, usize)>,
    held: &mut Held<'_>,
) -> Growth {
    let (mut index, mut distinct) = (HashIndex::new(), Vec::<(Key<'k>, usize)>::new());
    let (mut keys, mut more, mut less) = (0, 0, 0);
    let mut joined = Vec::new();
    for (number, (key, length)) in list.enumerate() {
        let name = contiguous_key(key, &mut joined);
        let hash = hasher.of(name);
        let in_table = held(number, hash, name);
        let earlier = match index.find(hash, |id| distinct[id as usize].0 == key) {
            Some(id) => core::mem::replace(&mut distinct[id as usize].1, length),
            None => {
                index.insert(hash, id_of(distinct.len()));
                distinct.push((key, length));
                in_table.unwrap_or_else(|| {
                    keys += 1;
                    more += cost(key, 0);
                    0
                })
            }
        };
        more += length as u64;
        less += earlier as u64;
    }
    Growth { keys, bytes: more.saturating_sub(less) }
}
