//! Requests to a store as plain data, shared by the wire codec, the engine and both connection machines.

use crate::error::OneLine;
use core::fmt;
use core::fmt::Write as _;

/// Key of a store, in up to three pieces that count as one.
///
/// A server decodes a key as one piece. A client passes the pieces that it has (its scope such as `/`, the user's
/// name, a suffix such as `/num_members`) without joining them in memory.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    scope: &'a [u8],
    name: &'a [u8],
    suffix: &'a [u8],
}

impl<'a> Key<'a> {
    /// Creates a key of one piece.
    pub const fn raw(name: &'a [u8]) -> Self {
        Self { scope: b"", name, suffix: b"" }
    }

    /// Creates the key `scope` followed by `name`; no separator is added.
    pub const fn scoped(scope: &'a [u8], name: &'a [u8]) -> Self {
        Self { scope, name, suffix: b"" }
    }

    /// Returns the same key with the suffix `suffix`.
    #[must_use]
    pub const fn with_suffix(self, suffix: &'a [u8]) -> Self {
        Self { suffix, ..self }
    }

    /// Returns the length in bytes.
    pub const fn len(&self) -> usize {
        self.scope.len() + self.name.len() + self.suffix.len()
    }

    /// Returns whether the key has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pieces, in order.
    pub const fn pieces(&self) -> [&'a [u8]; 3] {
        [self.scope, self.name, self.suffix]
    }

    /// Returns the user's part, without scope and suffix.
    pub const fn name(&self) -> &'a [u8] {
        self.name
    }

    /// Returns the whole key if it has only one non-empty piece.
    pub const fn as_contiguous(&self) -> Option<&'a [u8]> {
        match (self.scope.is_empty(), self.name.is_empty(), self.suffix.is_empty()) {
            (true, _, true) => Some(self.name),
            (false, true, true) => Some(self.scope),
            (true, true, false) => Some(self.suffix),
            _ => None,
        }
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.as_contiguous(), other.as_contiguous()) {
            (Some(one), Some(other)) => one == other,
            _ => {
                self.len() == other.len()
                    && self.pieces().into_iter().flatten().eq(other.pieces().into_iter().flatten())
            }
        }
    }
}

impl Eq for Key<'_> {}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pieces().into_iter().try_for_each(|part| write_lossy(f, part))
    }
}

impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Writes bytes as text of one line. Bytes that are not UTF-8 appear as the replacement character.
///
/// # Errors
/// The error of `out`.
pub fn write_lossy(out: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    let out = &mut OneLine(out);
    for chunk in bytes.utf8_chunks() {
        out.write_str(chunk.valid())?;
        if !chunk.invalid().is_empty() {
            out.write_char(char::REPLACEMENT_CHARACTER)?;
        }
    }
    Ok(())
}

/// List of keys: encoded in a received frame, as a caller's slice, or one key.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    list: List<'a, &'a [u8]>,
    /// A key before the list, so that a list of one key needs no slice. It is initialised even when unused: the
    /// compiler may read it before it checks `has_one`, which memory checkers would report.
    one: Key<'a>,
    has_one: bool,
}

/// List of keys with their values: encoded in a received frame, or as a caller's slice.
#[derive(Clone, Copy)]
pub struct Pairs<'a>(List<'a, (&'a [u8], &'a [u8])>);

#[derive(Clone, Copy)]
enum List<'a, T> {
    /// `count` consecutive elements, each after its length as a little-endian `u64`; all keys have the same scope.
    Packed { scope: &'a [u8], count: usize, bytes: &'a [u8] },
    /// A caller's slice; all keys have the same scope.
    Slice { scope: &'a [u8], items: &'a [T] },
}

impl<'a> Keys<'a> {
    /// Creates a list of `count` keys encoded in a frame, each after its `u64` length. Iteration stops at the end
    /// of `bytes`.
    pub const fn packed(count: usize, bytes: &'a [u8]) -> Self {
        Self::packed_scoped(b"", count, bytes)
    }

    /// Creates a list of `count` encoded keys, each with the scope `scope`.
    pub const fn packed_scoped(scope: &'a [u8], count: usize, bytes: &'a [u8]) -> Self {
        Self { list: List::Packed { scope, count, bytes }, one: Key::raw(b""), has_one: false }
    }

    /// Creates a list of the keys `names`, each with the scope `scope`.
    pub const fn scoped(scope: &'a [u8], names: &'a [&'a [u8]]) -> Self {
        Self { list: List::Slice { scope, items: names }, one: Key::raw(b""), has_one: false }
    }

    /// Creates a list of one key.
    pub const fn one(key: Key<'a>) -> Self {
        Self { list: List::Slice { scope: b"", items: &[] }, one: key, has_one: true }
    }

    /// Returns the number of keys.
    pub const fn len(&self) -> usize {
        let listed = match self.list {
            List::Packed { count, .. } => count,
            List::Slice { items, .. } => items.len(),
        };
        listed + self.has_one as usize
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys in order.
    pub fn iter(&self) -> KeyIter<'a> {
        let (scope, items, packed) = match self.list {
            List::Packed { scope, bytes, .. } => (scope, &[][..], bytes),
            List::Slice { scope, items } => (scope, items, &[][..]),
        };
        KeyIter { one: self.has_one.then_some(self.one), scope, items: items.iter(), packed }
    }
}

/// Iterator over the keys of a list.
#[derive(Clone, Debug)]
pub struct KeyIter<'a> {
    one: Option<Key<'a>>,
    scope: &'a [u8],
    items: core::slice::Iter<'a, &'a [u8]>,
    packed: &'a [u8],
}

impl<'a> Iterator for KeyIter<'a> {
    type Item = Key<'a>;

    // It is called in many places, and its code exists once.
    #[inline(never)]
    fn next(&mut self) -> Option<Key<'a>> {
        if let Some(one) = self.one.take() {
            return Some(one);
        }
        let name = self.items.next().copied().or_else(|| split_packed(&mut self.packed))?;
        Some(Key::scoped(self.scope, name))
    }
}

impl<'a> Pairs<'a> {
    /// Creates a list of `count` pairs encoded in a frame. Iteration stops at the end of `bytes`.
    pub const fn packed(count: usize, bytes: &'a [u8]) -> Self {
        Self::packed_scoped(b"", count, bytes)
    }

    /// Creates a list of `count` encoded pairs, each key with the scope `scope`.
    pub const fn packed_scoped(scope: &'a [u8], count: usize, bytes: &'a [u8]) -> Self {
        Self(List::Packed { scope, count, bytes })
    }

    /// Creates a list of the pairs `items`, each key with the scope `scope`.
    pub const fn scoped(scope: &'a [u8], items: &'a [(&'a [u8], &'a [u8])]) -> Self {
        Self(List::Slice { scope, items })
    }

    /// Returns the number of pairs.
    pub const fn len(&self) -> usize {
        match self.0 {
            List::Packed { count, .. } => count,
            List::Slice { items, .. } => items.len(),
        }
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (Key<'a>, &'a [u8])> + use<'a> {
        let (scope, items, mut packed) = match self.0 {
            List::Packed { scope, bytes, .. } => (scope, &[][..], bytes),
            List::Slice { scope, items } => (scope, items, &[][..]),
        };
        let unpack = core::iter::from_fn(move || {
            let key = split_packed(&mut packed)?;
            Some((Key::scoped(scope, key), split_packed(&mut packed)?))
        });
        items.iter().map(move |&(name, value)| (Key::scoped(scope, name), value)).chain(unpack)
    }
}

/// Removes the first of several strings in a frame, each after its `u64` length. Returns `None` if there is no whole one.
pub(crate) fn split_packed<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (item, tail) = tail.split_at_checked(length)?;
    *rest = tail;
    Some(item)
}

impl PartialEq for Keys<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl PartialEq for Pairs<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Debug for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(key, value)| (key, value.len()))).finish()
    }
}

/// Request to a store. Names and semantics are those of the c10d TCPStore (c10d protocol, sections 3 and 4).
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(
    missing_docs,
    reason = "the fields are named as in the protocol, and the variant's documentation covers them"
)]
pub enum Request<'a> {
    /// Stores `value` under `key`.
    Set { key: Key<'a>, value: &'a [u8] },
    /// Stores `desired` if the value is `expected`, or if there is none and `expected` is empty.
    CompareSet { key: Key<'a>, expected: &'a [u8], desired: &'a [u8] },
    /// Reads a value; empty when there is none.
    Get { key: Key<'a> },
    /// Adds to the decimal number under `key` (0 when missing), wrapping on overflow, and stores the sum.
    Add { key: Key<'a>, delta: i64 },
    /// Checks whether every key exists.
    Check { keys: Keys<'a> },
    /// Waits until every key has existed.
    Wait { keys: Keys<'a> },
    /// Counts the keys.
    NumKeys,
    /// Removes a key.
    Delete { key: Key<'a> },
    /// Appends bytes to a value, which is created if missing.
    Append { key: Key<'a>, value: &'a [u8] },
    /// Reads several values; those of missing keys are empty.
    MultiGet { keys: Keys<'a> },
    /// Stores several values atomically.
    MultiSet { pairs: Pairs<'a> },
    /// Ends the waits of this connection.
    CancelWait,
    /// Appends an item to a queue.
    QueuePush { key: Key<'a>, value: &'a [u8] },
    /// Removes the item at the front of a queue, if there is one.
    QueuePop { key: Key<'a> },
    /// Counts the items of a queue.
    QueueLen { key: Key<'a> },
    /// Lists the keys.
    ListKeys,
    /// Counts an arrival under `key`, and waits until `world_size` have arrived.
    Barrier { key: Key<'a>, world_size: i64 },
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{format, vec::Vec};

    #[test]
    fn a_key_reads_the_same_in_any_pieces() {
        let whole = Key::raw(b"/pre/k/num_members");
        let pieces = Key::scoped(b"/pre/", b"k").with_suffix(b"/num_members");
        assert_eq!(whole, pieces);
        assert_eq!(whole.as_contiguous(), Some(&b"/pre/k/num_members"[..]));
        assert_eq!(pieces.as_contiguous(), None);
        assert_eq!(Key::scoped(b"/", b"").as_contiguous(), Some(&b"/"[..]));
        assert_eq!(format!("{pieces}"), "/pre/k/num_members");
        assert_eq!(format!("{}", Key::raw(b"\xffa")), "\u{fffd}a");
        assert_ne!(Key::raw(b"ab"), Key::raw(b"abc"));
    }

    #[test]
    fn packed_and_sliced_lists_are_equal_and_stop_at_their_end() {
        let names: [&[u8]; 2] = [b"a", b""];
        let mut packed = Vec::new();
        for name in names {
            packed.extend_from_slice(&(name.len() as u64 + 1).to_le_bytes());
            packed.push(b'/');
            packed.extend_from_slice(name);
        }
        assert_eq!(Keys::packed(2, &packed), Keys::scoped(b"/", &names));
        assert_eq!(Keys::packed(2, &packed[..packed.len() - 1]).iter().count(), 1);
        assert_eq!(Pairs::packed(1, &packed).iter().count(), 1);
        assert_eq!(Keys::packed_scoped(b"/x", 2, &packed), Keys::scoped(b"/x/", &names));
        let pair = Pairs::packed_scoped(b"/x", 1, &packed).iter().next().expect("a pair");
        assert_eq!(pair, (Key::raw(b"/x/a"), &b"/"[..]));
        let one = Keys::one(Key::scoped(b"/", b"a"));
        assert_eq!((one.len(), one), (1, Keys::scoped(b"/", &names[..1])));
    }
}
