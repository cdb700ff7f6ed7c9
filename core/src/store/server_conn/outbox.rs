//! Output buffers of connections. Short answers are stored inside the connection, so that releasing a thousand
//! waiters allocates nothing. Longer answers use buffers from a pool that all connections share, so that an idle
//! connection holds none.

use crate::wire::sink::Sink;
use alloc::vec::Vec;

/// Size of the buffer inside a connection, in bytes.
const SHORT: usize = 40;
/// Maximum capacity of a pooled buffer, in bytes; a larger buffer is freed instead.
pub const POOLED_BYTES_MAX: usize = 64 * 1024;
/// Maximum capacity of a small buffer, in bytes. An incomplete frame can stay in its buffer for long, so it gets a
/// small one.
const SMALL_BYTES_MAX: usize = 4 * 1024;
/// Maximum number of pooled buffers of each kind.
const POOLED_BUFFERS_MAX: usize = 64;

/// Pool of free buffers, shared by the connections of one server.
#[derive(Debug, Default)]
pub struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl BufferPool {
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
}

impl Outbox {
    /// Returns the bytes to send next.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        let all = if self.long.is_empty() { self.short.as_slice() } else { self.long.as_slice() };
        &all[self.sent..]
    }

    /// Removes the first `bytes` unsent bytes.
    #[inline]
    pub fn sent(&mut self, bytes: usize, pool: &mut BufferPool) {
        let left = self.unsent().len().saturating_sub(bytes);
        self.sent += bytes.min(self.unsent().len());
        if left == 0 {
            self.clear(pool);
        } else if self.sent > POOLED_BYTES_MAX && self.sent > left {
            self.long.drain(..self.sent);
            self.sent = 0;
            // The last bytes of a large answer must not hold the memory of the whole answer.
            if self.long.capacity() / 4 > left.max(POOLED_BYTES_MAX) {
                self.long.shrink_to_fit();
            }
        }
    }

    /// Returns the memory in bytes that is held for unsent bytes, without spare capacity that the pool would keep.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        held_bytes(&self.long).max(self.unsent().len())
    }

    /// Reserves capacity for a large answer, so that the buffer does not grow by doubling.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) {
        if bytes > POOLED_BYTES_MAX {
            self.long.reserve_exact(self.short.len() + bytes);
        }
    }

    /// Drops all unsent bytes.
    #[inline]
    pub fn clear(&mut self, pool: &mut BufferPool) {
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

/// Sink that appends to an [`Outbox`].
#[derive(Debug)]
pub struct Writer<'a> {
    outbox: &'a mut Outbox,
    pool: &'a mut BufferPool,
}

impl Sink for Writer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let outbox = &mut *self.outbox;
        if !outbox.long.is_empty() {
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
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

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
}
