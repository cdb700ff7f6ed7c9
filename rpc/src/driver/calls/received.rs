//! Payloads of requests as handlers get them, and the pool of long buffers.
//!
//! Filling a new long buffer costs about as much as receiving its contents: the system provides its pages one by one,
//! and zeroes each. So buffers of finished requests are kept in a pool for the next ones, while there are any. Without the
//! pool, the benchmark row call-payload-64MiB takes 20 % longer.

use super::Payload;
use core::ops::Deref;
use rendezvous_core::driver::prelude::*;

/// Minimum length of a buffer that is pooled, in bytes.
pub(super) const LONG_BYTES_MIN: usize = 4 * 1024 * 1024;
/// Maximum sum of the buffers in a pool, in bytes.
const SHELVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Time after the last long request when the pool is emptied.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Payload of a request. It may be sent back without a copy.
pub struct Received {
    bytes: Vec<u8>,
    buffer_pool: Option<Arc<BufferPool>>,
}

impl Received {
    pub(super) const fn new(bytes: Vec<u8>, buffer_pool: Option<Arc<BufferPool>>) -> Self {
        Self { bytes, buffer_pool }
    }

    /// Returns the bytes as a vector.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        core::mem::take(&mut self.bytes)
    }
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Received {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes, None)
    }
}

impl From<Received> for Payload {
    fn from(received: Received) -> Self {
        if received.bytes.capacity() < LONG_BYTES_MIN {
            return received.into_vec().into();
        }
        Self::foreign(Arc::new(received))
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Received({} bytes)", self.bytes.len())
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if self.bytes.capacity() >= LONG_BYTES_MIN
            && let Some(buffer_pool) = &self.buffer_pool
        {
            buffer_pool.put(core::mem::take(&mut self.bytes));
        }
    }
}

/// Pool of long buffers.
#[derive(Debug, Default)]
pub(super) struct BufferPool(Mutex<PooledBuffers>);

#[derive(Debug, Default)]
struct PooledBuffers {
    buffers: Vec<Vec<u8>>,
    /// Time until which the pool accepts buffers; `None` if it accepts none.
    until: Option<Instant>,
}

impl BufferPool {
    /// Returns a buffer for a request of this many bytes that begins now, if there is one that is not much too long.
    pub(super) fn take(&self, now: Instant, bytes: usize) -> Option<Vec<u8>> {
        if bytes < LONG_BYTES_MIN {
            return None;
        }
        let mut pooled_buffers = self.0.locked();
        pooled_buffers.until = Some(now + POOL_IDLE_TIMEOUT);
        let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
        let target = pooled_buffers.buffers.iter().position(fits)?;
        Some(pooled_buffers.buffers.swap_remove(target))
    }

    fn put(&self, mut buffer: Vec<u8>) {
        let mut pooled_buffers = self.0.locked();
        let held: usize = pooled_buffers.buffers.iter().map(Vec::capacity).sum();
        if pooled_buffers.until.is_some() && held + buffer.capacity() <= SHELVED_BYTES_MAX {
            buffer.clear();
            pooled_buffers.buffers.push(buffer);
        }
    }

    /// Time when the pool is to be emptied.
    pub(super) fn until(&self) -> Option<Instant> {
        self.0.locked().until
    }

    /// Empties the pool, and accepts no further buffers.
    pub(super) fn close(&self) {
        let pooled_buffers = core::mem::take(&mut *self.0.locked());
        drop(pooled_buffers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_come_back_until_nobody_has_asked_for_a_while() {
        let (buffer_pool, now) = (Arc::new(BufferPool::default()), Instant::from_millis(5));
        let received = |bytes| drop(Received::new(Vec::with_capacity(bytes), Some(Arc::clone(&buffer_pool))));
        received(LONG_BYTES_MIN);
        assert_eq!(
            (buffer_pool.take(now, LONG_BYTES_MIN), buffer_pool.until()),
            (None, Some(now + POOL_IDLE_TIMEOUT))
        );
        received(LONG_BYTES_MIN);
        received(LONG_BYTES_MIN - 1);
        received(SHELVED_BYTES_MAX);
        assert_eq!(buffer_pool.take(now, LONG_BYTES_MIN + 1), None);
        assert_eq!(buffer_pool.take(now, 1), None);
        let buffer = buffer_pool.take(now, LONG_BYTES_MIN).expect("it came back");
        assert_eq!((buffer.len(), buffer.capacity()), (0, LONG_BYTES_MIN));
        assert_eq!(buffer_pool.take(now, LONG_BYTES_MIN), None);
        received(LONG_BYTES_MIN);
        buffer_pool.close();
        received(LONG_BYTES_MIN);
        assert_eq!((buffer_pool.until(), buffer_pool.take(now, LONG_BYTES_MIN)), (None, None));
    }

    #[test]
    fn what_is_sent_back_comes_back_when_it_was_sent() {
        let (buffer_pool, now) = (Arc::new(BufferPool::default()), Instant::from_millis(5));
        buffer_pool.take(now, LONG_BYTES_MIN);
        let bytes = alloc::vec![7; LONG_BYTES_MIN];
        let payload = Payload::from(Received::new(bytes, Some(Arc::clone(&buffer_pool))));
        assert_eq!((payload.bytes().len(), payload.bytes()[5]), (LONG_BYTES_MIN, 7));
        assert_eq!(buffer_pool.take(now, LONG_BYTES_MIN), None);
        drop(payload);
        assert!(buffer_pool.take(now, LONG_BYTES_MIN).is_some());
        let local = Received::new(alloc::vec![7; LONG_BYTES_MIN], Some(Arc::clone(&buffer_pool))).into_vec();
        assert_eq!((local.len(), buffer_pool.take(now, LONG_BYTES_MIN)), (LONG_BYTES_MIN, None));
    }
}
