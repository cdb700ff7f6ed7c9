//! Index of names by their hashes.

use hashbrown::HashTable;

/// Capacity up to which an index does not shrink, in entries.
const CAPACITY_KEPT: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u32,
    /// Upper half of the hash of the name. With it, the table grows without looking at a name.
    hash: u32,
}

impl Entry {
    /// Returns the hash for the table, which uses the highest bits and the lowest.
    const fn table_hash(&self) -> u64 {
        (self.hash as u64) << 32 | self.hash as u64
    }
}

/// Returns the id of what has this index in a table.
pub fn id_of(index: usize) -> u32 {
    // invariant: the limits keep all tables far below 2^32 entries
    u32::try_from(index).expect("the limits keep the table small")
}

/// Ids of names, each of which is found by the hash of its name. The owner of the index has the names.
#[derive(Debug, Default)]
pub struct HashIndex(HashTable<Entry>);

impl HashIndex {
    /// Creates an empty index.
    pub const fn new() -> Self {
        Self(HashTable::new())
    }

    /// Returns the id of the name with this hash for which `is_it` returns true.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let sought = entry(0, hash);
        let found = self.0.find(sought.table_hash(), |entry| entry.hash == sought.hash && is_it(entry.id));
        found.map(|entry| entry.id)
    }

    /// Adds the id of a name that is not there yet.
    pub fn insert(&mut self, hash: u64, id: u32) {
        let entry = entry(id, hash);
        self.0.insert_unique(entry.table_hash(), entry, Entry::table_hash);
    }

    /// Removes an id that is there.
    pub fn remove(&mut self, hash: u64, id: u32) {
        if let Ok(entry) = self.0.find_entry(entry(id, hash).table_hash(), |entry| entry.id == id) {
            entry.remove();
        }
    }

    /// Shrinks the table if less than an eighth of it is used, so that a steady owner does not reallocate. Returns whether
    /// it did.
    pub fn shrink_if_sparse(&mut self) -> bool {
        let (len, capacity) = (self.0.len(), self.0.capacity());
        let is_sparse = capacity > CAPACITY_KEPT && len * 8 < capacity;
        if is_sparse {
            self.0.shrink_to(len * 2, Entry::table_hash);
        }
        is_sparse
    }
}

const fn entry(id: u32, hash: u64) -> Entry {
    Entry { id, hash: (hash >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_among_those_with_the_same_hash() {
        let mut index = HashIndex::new();
        // Only the upper half counts.
        let hash_of = |id: u32| u64::from(id / 4) << 32 | u64::from(id);
        for id in 0..1000 {
            index.insert(hash_of(id), id);
        }
        for id in 0..1000 {
            let hash = hash_of(id);
            assert_eq!(index.find(hash, |other| other == id), Some(id));
            assert_eq!(index.find(hash, |_| false), None);
            assert!(index.find(hash, |other| other / 4 != id / 4).is_none(), "another hash");
            index.remove(hash, id);
            assert_eq!(index.find(hash, |other| other == id), None);
        }
        assert!(index.shrink_if_sparse());
        assert!(!index.shrink_if_sparse(), "it is short");
    }
}
