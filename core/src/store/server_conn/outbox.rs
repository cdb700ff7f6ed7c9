//! Output buffers of connections. Short answers are stored inside the connection, so that releasing a thousand
//! waiters allocates nothing. Longer answers use buffers from a pool that all connections share, so that an idle
//! connection holds none.

use crate::prelude::*;
use crate::shared::{Chunk, SharedBytes};
use crate::wire::sink::Sink;
use alloc::collections::VecDeque;

/// Size of the buffer inside a connection, in bytes.
const SHORT: usize = 40;
/// Maximum capacity of a pooled buffer, in bytes; a larger buffer is freed instead.
pub const POOLED_BYTES_MAX: usize = 64 * 1024;
/// Maximum capacity of a small buffer, in bytes. An incomplete frame can stay in its buffer for long, so it gets a
/// small one.
const SMALL_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of pooled buffers of each kind.
const POOLED_BUFFERS_MAX: usize = 64;

/// Length from which on a chunk is shared instead of copied, in bytes: each costs a system call of its own.
const SHARED_MIN: usize = 32 * 1024;
/// Number of unsent bytes from which on every chunk is shared, so that no answer is copied that takes long.
const COPIED_MAX: usize = 256 * 1024;
/// Charge of a segment in addition to its bytes.
const SEGMENT_BYTES: usize = 2 * size_of::<Segment>();

/// Pool of free buffers, shared by the connections of one server.
#[derive(Debug, Default)]
pub struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    copied_bytes: u64,
}

impl BufferPool {
    /// Returns the number of bytes that were written to outboxes since the last call.
    pub const fn take_copied_bytes(&mut self) -> u64 {
        core::mem::replace(&mut self.copied_bytes, 0)
    }

    /// Returns an empty buffer, a large one if the pool has one.
    pub fn take(&mut self) -> Vec<u8> {
        self.large.pop().unwrap_or_else(|| self.take_small())
    }

    /// Returns an empty buffer with a small capacity.
    pub fn take_small(&mut self) -> Vec<u8> {
        self.small.pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool, or frees it.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let list = match buffer.capacity() {
            0 => return,
            1..=SMALL_BYTES_MAX => &mut self.small,
            _ => &mut self.large,
        };
        if buffer.capacity() <= POOLED_BYTES_MAX && list.len() < POOLED_BUFFERS_MAX {
            buffer.clear();
            list.push(buffer);
        }
    }
}

/// Returns the charge of a buffer in bytes: its length, or its capacity when that is more than the pool keeps.
#[inline]
pub fn held_bytes(buffer: &Vec<u8>) -> usize {
    if buffer.capacity() > POOLED_BYTES_MAX { buffer.capacity() } else { buffer.len() }
}

/// Unsent bytes of a connection.
#[derive(Debug, Default)]
pub struct Outbox {
    short: heapless::Vec<u8, SHORT>,
    /// Used while not empty; `short` is empty then.
    long: Vec<u8>,
    sent: usize,
    /// What follows, if any of it is shared.
    tail: Option<Box<Tail>>,
}

/// Unsent bytes after those of the buffers.
#[derive(Debug, Default)]
struct Tail {
    segments: VecDeque<Segment>,
    /// Bytes of all segments.
    length: usize,
    /// Memory in bytes of the segments, without that of shared chunks.
    held: usize,
}

#[derive(Debug)]
enum Segment {
    Own(Vec<u8>),
    /// Bytes of a value, from this position on.
    Shared(Arc<Chunk>, usize),
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(chunk, from) => &chunk[*from..],
        }
    }
}

impl Outbox {
    /// Returns the bytes to send next: not all, if they are in several chunks.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        let all = if self.long.is_empty() { self.short.as_slice() } else { self.long.as_slice() };
        match (&all[self.sent..], &self.tail) {
            ([], Some(tail)) => tail.segments.front().map_or(&[], Segment::bytes),
            (unsent, _) => unsent,
        }
    }

    /// Returns the number of unsent bytes.
    #[inline]
    pub fn len(&self) -> usize {
        let buffered = if self.long.is_empty() { self.short.len() } else { self.long.len() };
        buffered - self.sent + self.tail.as_ref().map_or(0, |tail| tail.length)
    }

    /// Returns whether there are no unsent bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the first `bytes` unsent bytes, which must not be more than [`Outbox::unsent`] returned.
    #[inline]
    pub fn sent(&mut self, bytes: usize, pool: &mut BufferPool) {
        let buffered = if self.long.is_empty() { self.short.len() } else { self.long.len() };
        if self.sent == buffered && self.tail.is_some() {
            return self.sent_of_tail(bytes, pool);
        }
        self.sent = buffered.min(self.sent + bytes);
        let left = buffered - self.sent;
        if left == 0 {
            self.clear_buffers(pool);
        } else if self.sent > POOLED_BYTES_MAX && self.sent > left {
            self.long.drain(..self.sent);
            self.sent = 0;
            // The last bytes of a large answer must not hold the memory of the whole answer.
            if self.long.capacity() / 4 > left.max(POOLED_BYTES_MAX) {
                self.long.shrink_to_fit();
            }
        }
    }

    #[cold]
    fn sent_of_tail(&mut self, bytes: usize, pool: &mut BufferPool) {
        let Some(tail) = &mut self.tail else { return };
        let Some(front) = tail.segments.front_mut() else { return };
        let is_over = match front {
            Segment::Shared(chunk, from) => {
                let bytes = bytes.min(chunk.len() - *from);
                *from += bytes;
                tail.length -= bytes;
                *from == chunk.len()
            }
            // The buffer of the connection takes over, which knows how many bytes have been sent.
            Segment::Own(buffer) => {
                self.long = core::mem::take(buffer);
                self.sent = bytes.min(self.long.len());
                tail.length -= self.long.len();
                tail.held -= self.long.capacity();
                true
            }
        };
        if is_over {
            tail.segments.pop_front();
            tail.held -= SEGMENT_BYTES;
        }
        self.tail.take_if(|tail| tail.segments.is_empty());
        if self.sent == self.long.len() {
            self.clear_buffers(pool);
        }
    }

    /// Returns the memory in bytes that is held for unsent bytes, without spare capacity that the pool would keep, and
    /// without chunks that others hold too.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        let buffered = if self.long.is_empty() { self.short.len() } else { self.long.len() };
        let own = held_bytes(&self.long).max(buffered - self.sent);
        own + self.tail.as_ref().map_or(0, |tail| tail.held)
    }

    /// Returns the part of the chunks that this outbox holds: of a chunk that three hold, a third.
    pub fn shared_bytes(&self) -> usize {
        let segments = self.tail.iter().flat_map(|tail| &tail.segments);
        segments.map(Segment::shared_bytes).sum()
    }

    /// Reserves capacity for a large answer, so that the buffer does not grow by doubling.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) {
        if bytes > POOLED_BYTES_MAX && self.tail.is_none() {
            self.long.reserve_exact(self.short.len() + bytes);
        }
    }

    /// Drops all unsent bytes.
    #[inline]
    pub fn clear(&mut self, pool: &mut BufferPool) {
        self.tail = None;
        self.clear_buffers(pool);
    }

    #[inline]
    fn clear_buffers(&mut self, pool: &mut BufferPool) {
        self.short.clear();
        self.sent = 0;
        if self.long.capacity() > 0 {
            pool.give(core::mem::take(&mut self.long));
        }
    }

    /// Returns a sink that appends to the unsent bytes.
    #[inline]
    pub fn writer<'a>(&'a mut self, pool: &'a mut BufferPool) -> Writer<'a> {
        Writer { outbox: self, pool }
    }
}

impl Segment {
    fn shared_bytes(&self) -> usize {
        match self {
            Self::Own(_) => 0,
            Self::Shared(chunk, _) => chunk.len() / Arc::strong_count(chunk).max(1),
        }
    }
}

impl Tail {
    fn put(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        self.length += bytes.len();
        if let Some(Segment::Own(buffer)) = self.segments.back_mut() {
            self.held -= buffer.capacity();
            buffer.extend_from_slice(bytes);
            self.held += buffer.capacity();
            return;
        }
        let mut buffer = pool.take_small();
        buffer.extend_from_slice(bytes);
        self.held += buffer.capacity() + SEGMENT_BYTES;
        self.segments.push_back(Segment::Own(buffer));
    }

    fn share(&mut self, chunk: &Arc<Chunk>) {
        self.length += chunk.len();
        self.held += SEGMENT_BYTES;
        self.segments.push_back(Segment::Shared(chunk.clone(), 0));
    }
}

/// Sink that appends to an [`Outbox`].
#[derive(Debug)]
pub struct Writer<'a> {
    outbox: &'a mut Outbox,
    pool: &'a mut BufferPool,
}

impl Sink for Writer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.pool.copied_bytes += bytes.len() as u64;
        let outbox = &mut *self.outbox;
        if let Some(tail) = &mut outbox.tail {
            tail.put(bytes, self.pool);
        } else if !outbox.long.is_empty() {
            outbox.long.extend_from_slice(bytes);
        } else if outbox.short.extend_from_slice(bytes).is_err() {
            if outbox.long.capacity() == 0 {
                outbox.long = self.pool.take();
            }
            outbox.long.extend_from_slice(&outbox.short);
            outbox.long.extend_from_slice(bytes);
            outbox.short.clear();
        }
    }

    fn put_shared(&mut self, bytes: &SharedBytes) {
        for chunk in bytes.chunks() {
            if chunk.len() < SHARED_MIN && self.outbox.len() < COPIED_MAX {
                self.put(chunk);
            } else if !chunk.is_empty() {
                self.outbox.tail.get_or_insert_default().share(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::shared::Meter;

    #[test]
    fn bytes_leave_in_order_whatever_the_pieces() {
        let (mut outbox, mut pool) = (Outbox::default(), BufferPool::default());
        let (mut next_in, mut next_out) = (0u8, 0u8);
        for round in 0..5000usize {
            let part: Vec<u8> = (0..round % 23)
                .map(|_| {
                    next_in = next_in.wrapping_add(1);
                    next_in
                })
                .collect();
            outbox.writer(&mut pool).put(&part);
            let take = (round * 7) % 31;
            for &byte in outbox.unsent().iter().take(take) {
                next_out = next_out.wrapping_add(1);
                assert_eq!(byte, next_out);
            }
            outbox.sent(take, &mut pool);
        }
        while !outbox.unsent().is_empty() {
            next_out = next_out.wrapping_add(1);
            assert_eq!(outbox.unsent()[0], next_out);
            outbox.sent(1, &mut pool);
        }
        assert_eq!(next_in, next_out);
        assert_eq!(outbox.long.capacity(), 0, "an empty outbox holds no buffer");
    }

    #[test]
    fn a_large_answer_that_is_nearly_read_holds_little() {
        let (mut outbox, mut pool) = (Outbox::default(), BufferPool::default());
        outbox.reserve(8 + (8 << 20));
        outbox.writer(&mut pool).put(&[0; 8]);
        outbox.writer(&mut pool).put(&std::vec![0; 8 << 20]);
        assert!(outbox.held_bytes() < 9 << 20, "a reserved answer did not double");
        outbox.sent(8 + (8 << 20) - 1, &mut pool);
        assert_eq!(outbox.unsent().len(), 1);
        assert!(outbox.held_bytes() <= POOLED_BYTES_MAX, "{} bytes held for one", outbox.held_bytes());
    }

    #[test]
    fn large_buffers_are_not_pooled() {
        let mut pool = BufferPool::default();
        pool.give(Vec::with_capacity(POOLED_BYTES_MAX + 1));
        pool.give(Vec::new());
        assert_eq!(pool.take().capacity(), 0);
        pool.give(Vec::with_capacity(8));
        assert!(pool.take().capacity() >= 8);
    }

    #[test]
    fn shared_bytes_leave_in_order_between_others() {
        let (mut outbox, mut pool, meter) = (Outbox::default(), BufferPool::default(), Meter::default());
        let mut rng = crate::rng::Rng::new(1);
        let mut below = |bound: u64| usize::try_from(rng.below(bound)).expect("a small number");
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for round in 0..400_u32 {
            let bytes = round.to_le_bytes().repeat(below(40) * 1000 + 1);
            if below(3) == 0 {
                outbox.writer(&mut pool).put(&bytes[..bytes.len().min(100)]);
                expected.extend_from_slice(&bytes[..bytes.len().min(100)]);
            } else {
                let mut shared = SharedBytes::new(&bytes, &meter);
                shared.append(&bytes[..4]);
                outbox.writer(&mut pool).put_shared(&shared);
                shared.read(|bytes| expected.extend_from_slice(bytes));
            }
            assert_eq!(outbox.len(), expected.len() - got.len());
            while outbox.len() > 300_000 || below(3) > 0 && !outbox.is_empty() {
                let unsent = outbox.unsent();
                let bytes = unsent.len().min(below(100_000) + 1);
                got.extend_from_slice(&unsent[..bytes]);
                outbox.sent(bytes, &mut pool);
            }
        }
        while !outbox.is_empty() {
            got.extend_from_slice(outbox.unsent());
            outbox.sent(outbox.unsent().len(), &mut pool);
        }
        assert!(got == expected, "other bytes left than were put");
        assert_eq!((meter.bytes(), outbox.held_bytes(), outbox.shared_bytes()), (0, 0, 0));
        assert!(outbox.tail.is_none() && outbox.long.capacity() == 0);
    }
}
