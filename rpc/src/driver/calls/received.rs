//! Payloads of requests as handlers get them, and the long buffers that are used again.
//!
//! To fill a long buffer that is new costs about as much as to receive it: the system hands out its pages one by one, and
//! empties each. So those of requests that are done with wait on a shelf for the next, while there are any.

use super::Payload;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;
use rendezvous_core::time::{Duration, Instant};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// From this length on, buffers are worth being used again.
pub(super) const LONG_BYTES_MIN: usize = 4 * 1024 * 1024;
/// The most that waits on a shelf, in bytes.
const SHELVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// So long after the last long request, nothing waits there any more.
const SHELF_TIME: Duration = Duration::from_secs(1);

/// The bytes of a request. They may be sent back as they are.
pub struct Received {
    bytes: Vec<u8>,
    shelf: Option<Arc<Shelf>>,
}

impl Received {
    pub(super) const fn new(bytes: Vec<u8>, shelf: Option<Arc<Shelf>>) -> Self {
        Self { bytes, shelf }
    }

    /// The bytes as a vector of the handler's own.
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
            && let Some(shelf) = &self.shelf
        {
            shelf.put(core::mem::take(&mut self.bytes));
        }
    }
}

/// Long buffers that are used again.
#[derive(Debug, Default)]
pub(super) struct Shelf(Mutex<Shelved>);

#[derive(Debug, Default)]
struct Shelved {
    buffers: Vec<Vec<u8>>,
    /// Until when it takes some; `None`: it takes none.
    until: Option<Instant>,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Shelved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer for a request of so many bytes that begins now, if there is one that is not much too long.
    pub(super) fn take(&self, now: Instant, bytes: usize) -> Option<Vec<u8>> {
        if bytes < LONG_BYTES_MIN {
            return None;
        }
        let mut shelved = self.lock();
        shelved.until = Some(now + SHELF_TIME);
        let fits = |buffer: &Vec<u8>| (bytes..=2 * bytes).contains(&buffer.capacity());
        let place = shelved.buffers.iter().position(fits)?;
        Some(shelved.buffers.swap_remove(place))
    }

    fn put(&self, mut buffer: Vec<u8>) {
        let mut shelved = self.lock();
        let held: usize = shelved.buffers.iter().map(Vec::capacity).sum();
        if shelved.until.is_some() && held + buffer.capacity() <= SHELVED_BYTES_MAX {
            buffer.clear();
            shelved.buffers.push(buffer);
        }
    }

    /// When it is to be emptied.
    pub(super) fn until(&self) -> Option<Instant> {
        self.lock().until
    }

    /// Takes no more, and keeps nothing.
    pub(super) fn close(&self) {
        let shelved = core::mem::take(&mut *self.lock());
        drop(shelved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_buffers_come_back_until_nobody_has_asked_for_a_while() {
        let (shelf, now) = (Arc::new(Shelf::default()), Instant::from_millis(5));
        let received = |bytes| drop(Received::new(Vec::with_capacity(bytes), Some(Arc::clone(&shelf))));
        received(LONG_BYTES_MIN);
        assert_eq!((shelf.take(now, LONG_BYTES_MIN), shelf.until()), (None, Some(now + SHELF_TIME)));
        received(LONG_BYTES_MIN);
        received(LONG_BYTES_MIN - 1);
        received(SHELVED_BYTES_MAX);
        assert_eq!(shelf.take(now, LONG_BYTES_MIN + 1), None);
        assert_eq!(shelf.take(now, 1), None);
        let buffer = shelf.take(now, LONG_BYTES_MIN).expect("it came back");
        assert_eq!((buffer.len(), buffer.capacity()), (0, LONG_BYTES_MIN));
        assert_eq!(shelf.take(now, LONG_BYTES_MIN), None);
        received(LONG_BYTES_MIN);
        shelf.close();
        received(LONG_BYTES_MIN);
        assert_eq!((shelf.until(), shelf.take(now, LONG_BYTES_MIN)), (None, None));
    }

    #[test]
    fn what_is_sent_back_comes_back_when_it_was_sent() {
        let (shelf, now) = (Arc::new(Shelf::default()), Instant::from_millis(5));
        shelf.take(now, LONG_BYTES_MIN);
        let bytes = alloc::vec![7; LONG_BYTES_MIN];
        let payload = Payload::from(Received::new(bytes, Some(Arc::clone(&shelf))));
        assert_eq!((payload.bytes().len(), payload.bytes()[5]), (LONG_BYTES_MIN, 7));
        assert_eq!(shelf.take(now, LONG_BYTES_MIN), None);
        drop(payload);
        assert!(shelf.take(now, LONG_BYTES_MIN).is_some());
        let own = Received::new(alloc::vec![7; LONG_BYTES_MIN], Some(Arc::clone(&shelf))).into_vec();
        assert_eq!((own.len(), shelf.take(now, LONG_BYTES_MIN)), (LONG_BYTES_MIN, None));
    }
}
