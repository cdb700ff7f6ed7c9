//! Send buffer of a connection.

use crate::wire::sink::Sink;
use alloc::vec::Vec;

/// Most capacity that an empty buffer keeps, and most sent bytes that a buffer keeps in front of the unsent ones.
/// Bytes.
const BYTES_KEPT_MAX: usize = 64 * 1024;

/// Unsent bytes, and the total number of bytes. A sink.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that were sent.
    sent: usize,
    put_total: u64,
    sent_total: u64,
}

impl Outgoing {
    pub(super) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the position after all bytes so far, for [`Outgoing::was_sent`].
    pub(super) const fn end(&self) -> u64 {
        self.put_total
    }

    /// Returns whether the byte at this position was sent.
    pub(super) const fn was_sent(&self, index: u64) -> bool {
        index < self.sent_total
    }

    /// Records that `count` more bytes were sent.
    pub(super) fn sent(&mut self, count: usize) {
        let count = count.min(self.unsent().len());
        self.sent += count;
        self.sent_total += count as u64;
        let left = self.bytes.len() - self.sent;
        // Moving the rest costs less than keeping the sent bytes.
        if left == 0 || (self.sent > BYTES_KEPT_MAX && self.sent > left) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
            self.bytes.shrink_to(BYTES_KEPT_MAX.max(2 * left));
        }
    }

    /// Drops the unsent bytes of a connection that ended.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
        (self.sent, self.sent_total) = (0, self.put_total);
    }
}

impl Sink for Outgoing {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.put_total += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket is always one byte behind: each iteration sends all bytes but one.
    #[test]
    fn what_was_sent_is_not_kept_however_busy_the_connection() {
        let mut outgoing = Outgoing::default();
        let chunk: Vec<u8> = (0..100_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        outgoing.put(&chunk[..1]);
        for poll in 0..1000 {
            outgoing.put(&chunk);
            let unsent = outgoing.unsent();
            assert_eq!(unsent.len(), chunk.len() + 1);
            assert_eq!(unsent[0], if poll == 0 { chunk[0] } else { chunk[chunk.len() - 1] });
            assert_eq!(unsent[1..], chunk);
            outgoing.sent(chunk.len());
            assert!(
                outgoing.bytes.capacity() < 1_000_000,
                "iteration {poll}: {} held",
                outgoing.bytes.capacity()
            );
        }
        assert_eq!(outgoing.end(), 100_000_001);
        assert!(outgoing.was_sent(99_999_999) && !outgoing.was_sent(100_000_000));
        outgoing.sent(1);
        assert!(outgoing.is_empty() && outgoing.bytes.capacity() <= BYTES_KEPT_MAX);
    }

    #[test]
    fn what_a_lost_connection_did_not_send_counts_as_gone() {
        let mut outgoing = Outgoing::default();
        outgoing.put(b"greeting");
        outgoing.sent(3);
        outgoing.forget();
        assert!(outgoing.is_empty() && outgoing.was_sent(7) && !outgoing.was_sent(outgoing.end()));
        assert_eq!(outgoing.end(), 8);
    }
}
