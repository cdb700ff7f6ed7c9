//! Lists of keys, which are made in steps: a store may have millions.

use super::Engine;
use super::native::PrefixScan;
use crate::prelude::*;
use crate::shared::SharedBytes;
use crate::store::op::Keys;

/// List of the keys with a prefix. Keys that are set or removed while it is made may be missing from it or not; all others
/// with a value are in it once, in byte order.
#[derive(Debug)]
pub struct Listing {
    scan: PrefixScan,
    count_max: u64,
    bytes_max: usize,
    count: u64,
    /// The keys so far, each after its length.
    bytes: SharedBytes,
    has_more: bool,
}

impl Listing {
    /// Returns the number of keys.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether there are keys after the last one of the list.
    pub const fn has_more(&self) -> bool {
        self.has_more
    }

    /// Calls `visit` with each key, in byte order.
    pub fn for_each(&self, mut visit: impl FnMut(&[u8])) {
        // invariant: each key takes at least the eight bytes of its length
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        self.bytes.read(|bytes| {
            // Keys of a list are in one piece.
            let keys = Keys::packed(count, bytes);
            keys.iter().for_each(|key| visit(key.as_contiguous().unwrap_or_default()));
        });
    }

    /// Returns the keys in byte order, each after its length: a `u64`, the lowest byte first.
    pub const fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }
}

impl Engine {
    /// Begins a list of the keys that begin with `prefix` and follow `after`. It ends with `count_max` keys, or with the
    /// first key at which it has `bytes_max` bytes.
    pub fn list(&self, prefix: &[u8], after: &[u8], count_max: u64, bytes_max: usize) -> Listing {
        let scan = PrefixScan::from(prefix, after);
        let bytes = SharedBytes::new(&[], self.slots.meter());
        Listing { scan, count_max, bytes_max, count: 0, bytes, has_more: false }
    }

    /// Continues a list by a look at up to `keys_max` keys. Returns whether it is complete.
    pub fn list_some(&mut self, listing: &mut Listing, keys_max: usize) -> bool {
        let some = self.next_of(&mut listing.scan, keys_max);
        self.count_work(some.len() as u64);
        let mut bytes = Vec::new();
        for id in some.into_iter().filter(|&id| self.slots.is_present(id)) {
            if listing.count == listing.count_max || listing.bytes.len() + bytes.len() >= listing.bytes_max {
                listing.has_more = true;
                break;
            }
            let key = &*self.slots[id].key;
            bytes.extend_from_slice(&(key.len() as u64).to_le_bytes());
            bytes.extend_from_slice(key);
            listing.count += 1;
        }
        listing.bytes.append(&bytes);
        listing.has_more || listing.scan.is_over
    }
}
