//! Long byte strings that values, the history of changes and unsent answers share instead of copying.

use crate::prelude::*;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes up to which a chunk grows, and up to which neighbours are merged. Above it, appending copies nothing.
const CHUNK_GROWS_TO: usize = 1 << 20;

/// Count of the bytes of all chunks of one store, also of those that only the history or answers hold.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicUsize>);

impl Meter {
    /// Returns the number of bytes that exist.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed) as u64
    }
}

/// Part of a byte string. It changes only while it has one holder.
#[derive(Debug)]
pub struct Chunk {
    bytes: Vec<u8>,
    /// Bytes that the meter counts for it.
    counted: usize,
    meter: Meter,
}

impl Chunk {
    fn new(bytes: Vec<u8>, meter: &Meter) -> Self {
        let mut chunk = Self { bytes, counted: 0, meter: meter.clone() };
        chunk.count();
        chunk
    }

    /// Returns the memory in bytes that it takes.
    pub const fn held_bytes(&self) -> usize {
        self.counted
    }

    /// Appends bytes, and reserves little more than they need.
    fn append(&mut self, more: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < more.len() {
            self.bytes.reserve_exact(more.len().max(self.bytes.len() / 8));
        }
        self.bytes.extend_from_slice(more);
        self.count();
    }

    fn count(&mut self) {
        let capacity = self.bytes.capacity();
        self.meter.0.fetch_add(capacity.wrapping_sub(self.counted), Ordering::Relaxed);
        self.counted = capacity;
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.meter.0.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl core::ops::Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Byte string in chunks. A clone shares them.
#[derive(Clone, Debug)]
pub struct SharedBytes {
    chunks: Vec<Arc<Chunk>>,
    length: usize,
    held: usize,
}

impl SharedBytes {
    /// Copies `bytes`.
    pub fn new(bytes: &[u8], meter: &Meter) -> Self {
        let chunk = Chunk::new(bytes.to_vec(), meter);
        Self { length: bytes.len(), held: chunk.counted, chunks: vec![Arc::new(chunk)] }
    }

    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the memory in bytes that its chunks take.
    pub const fn held_bytes(&self) -> usize {
        self.held
    }

    /// Returns the chunks in order.
    pub fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    /// Returns the chunks in order.
    pub fn into_chunks(self) -> Vec<Arc<Chunk>> {
        self.chunks
    }

    /// Appends bytes; clones keep what they had. It copies few bytes besides `more`, however long the string is: a
    /// chunk that is shared is not copied but followed by another, and short neighbours are merged as their lengths
    /// double.
    pub fn append(&mut self, more: &[u8]) {
        self.length += more.len();
        let Some(last) = self.chunks.last_mut() else { return };
        let meter = last.meter.clone();
        if last.len() + more.len() <= CHUNK_GROWS_TO
            && let Some(own) = Arc::get_mut(last)
        {
            self.held -= own.counted;
            own.append(more);
            self.held += own.counted;
            return;
        }
        self.push(Chunk::new(more.to_vec(), &meter));
        while let [.., before, last] = &self.chunks[..]
            && before.len() <= last.len()
            && before.len() + last.len() <= CHUNK_GROWS_TO
        {
            let merged = Chunk::new([&***before, &***last].concat(), &meter);
            self.held -= before.counted + last.counted;
            self.chunks.truncate(self.chunks.len() - 2);
            self.push(merged);
        }
    }

    fn push(&mut self, chunk: Chunk) {
        self.held += chunk.counted;
        self.chunks.push(Arc::new(chunk));
    }

    /// Calls `read` with all bytes in one slice; joins them if they are in several chunks.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match &self.chunks[..] {
            [one] => read(one),
            chunks => {
                let mut joined = Vec::with_capacity(self.length);
                chunks.iter().for_each(|chunk| joined.extend_from_slice(chunk));
                read(&joined)
            }
        }
    }

    /// Returns whether the bytes equal `other`.
    pub fn equals(&self, other: &[u8]) -> bool {
        let mut rest = other;
        self.length == other.len()
            && self.chunks.iter().all(|chunk| {
                let (here, following) = rest.split_at(chunk.len());
                rest = following;
                ***chunk == *here
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &SharedBytes) -> Vec<u8> {
        bytes.read(<[u8]>::to_vec)
    }

    #[test]
    fn what_is_appended_is_not_seen_by_clones() {
        let meter = Meter::default();
        let mut bytes = SharedBytes::new(b"start", &meter);
        let mut expected = b"start".to_vec();
        let mut clones = Vec::new();
        for step in 0..3000u32 {
            if step % 3 == 0 {
                clones.push((bytes.clone(), expected.clone()));
            }
            let more = vec![step.to_le_bytes()[0]; step as usize % 7];
            bytes.append(&more);
            expected.extend_from_slice(&more);
        }
        assert!(bytes.equals(&expected) && !bytes.equals(&expected[1..]));
        assert_eq!((text(&bytes), bytes.len()), (expected.clone(), expected.len()));
        assert!(clones.iter().all(|(clone, expected)| text(clone) == *expected));
        expected[17] ^= 1;
        assert!(!bytes.equals(&expected));
        drop(clones);
        assert_eq!(meter.bytes(), bytes.held_bytes() as u64);
        drop(bytes);
        assert_eq!(meter.bytes(), 0, "every chunk is gone");
    }

    #[test]
    fn appending_to_a_long_string_copies_little() {
        let meter = Meter::default();
        let mut bytes = SharedBytes::new(&vec![7; 64 << 20], &meter);
        let mut chunks_max = 0;
        for _ in 0..10_000 {
            // The clone is what a history holds.
            let clone = bytes.clone();
            bytes.append(b"x");
            drop(clone);
            chunks_max = chunks_max.max(bytes.chunks().len());
        }
        assert!(chunks_max < 20, "{chunks_max} chunks");
        assert!(meter.bytes() < (64 << 20) + (1 << 16), "{} bytes", meter.bytes());
    }
}
