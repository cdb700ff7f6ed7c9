//! Lookups of many keys in one request: what they read is read ahead, for some keys at a time.
//!
//! A lookup reads four places in memory, each of which the one before names: the control bytes of the table, its entry,
//! the slot, the key. In a large store none of them is in the processor's cache, and a lookup takes as long as four
//! misses. Misses that do not depend on each other overlap. So the first place is read for all keys of a block, then the
//! second, and so on; the lookups that follow find all four in the cache.

use super::contiguous_key;
use crate::hash_index::HashIndex;
use crate::key_hash::KeyHash;
use crate::prelude::*;
use crate::store::op::Key;
use core::hint::black_box;
use heapless::Vec as Block;

/// Keys in a block: what their lookups read fits into the first-level cache.
const BLOCK: usize = 32;

/// Reads what the lookups of the next keys will read, if key `number` of the list is the first of a block. Call it for each
/// key, in order. `ahead` returns the keys of the same list one after the other, from the first one on; nothing else may take
/// keys from it. `parts_of` returns what the lookup of a key reads last. The first block is left out: most lists are short,
/// and then a second lookup gains nothing.
pub(super) fn read_ahead<'k, 'n>(
    number: usize,
    ahead: &mut dyn FnMut() -> Option<Key<'k>>,
    hasher: KeyHash,
    index_of: &dyn Fn(u64) -> &'n HashIndex,
    parts_of: &dyn Fn(u32) -> [&'n [u8]; 2],
) {
    if number == 0 || !number.is_multiple_of(BLOCK) {
        return;
    }
    if number == BLOCK {
        (0..BLOCK).for_each(|_| _ = ahead());
    }
    let mut joined = Vec::new();
    let keys = core::iter::from_fn(ahead).take(BLOCK);
    let hashes: Block<u64, BLOCK> = keys.map(|key| hasher.of(contiguous_key(key, &mut joined))).collect();
    let ids = hashes.iter().filter_map(|&hash| index_of(hash).find(hash, |_| true));
    let ids: Block<u32, BLOCK> = ids.collect();
    let parts: Block<[&[u8]; 2], BLOCK> = ids.iter().map(|&id| parts_of(id)).collect();
    black_box(parts.iter().flatten().fold(0, |sum, part| sum ^ part.first().copied().unwrap_or(0)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash_index::id_of;

    #[test]
    fn the_names_of_known_keys_are_read_once_in_each_block() {
        let hasher = KeyHash::new(1);
        let names: [&[u8]; 3] = [b"", b"/a", b"/b"];
        let mut index = HashIndex::new();
        names.iter().enumerate().for_each(|(id, name)| index.insert(hasher.of(name), id_of(id)));
        let read = core::cell::RefCell::new(Vec::new());
        let parts_of = |id| {
            read.borrow_mut().push(id);
            [names[id as usize], b""]
        };
        let keys = [Key::raw(b"/b"), Key::raw(b"/c"), Key::scoped(b"/", b"a"), Key::raw(b"")];
        let all = || keys.iter().copied().cycle().take(2 * BLOCK + 1);
        let mut ahead = all();
        for (number, _) in all().enumerate() {
            read_ahead(number, &mut || ahead.next(), hasher, &|_| &index, &parts_of);
            let expected = [2, 1, 0].into_iter().cycle().take(number / BLOCK * BLOCK / 4 * 3);
            let is_last = number == 2 * BLOCK;
            assert!(is_last || read.borrow().iter().copied().eq(expected), "key {number}");
        }
        assert_eq!(read.borrow().len(), BLOCK / 4 * 3 + 1);
    }
}
