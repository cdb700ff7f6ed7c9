//! A vector as a destination of encoded bytes, where there is an allocator.

use super::sink::Sink;
use alloc::vec::Vec;

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
