//! Calls between workers: [`serving::RpcServer`] accepts them, [`calling::RpcClient`] makes them.
//!
//! Each has one thread for all its connections. A blocking call that is alone on its connection reads its response on
//! the calling thread, and pooled handlers write their responses from their own threads. So neither is passed between
//! threads.

mod borrowed;
pub mod calling;
mod client_state;
mod completion;
pub mod handling;
mod line;
mod link;
mod local_call;
mod received;
pub mod reentrancy;
pub mod serving;

pub use received::Received;

use borrowed::BorrowedBuffer;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a request or a response, which are sent from where they are stored. Cheap to clone.
#[derive(Clone)]
pub struct Payload(Kept);

#[derive(Clone)]
enum Kept {
    Bytes(Arc<Vec<u8>>),
    Foreign(BorrowedBuffer),
}

impl Payload {
    /// Creates a payload from bytes with a custom owner. The owner may be dropped on any thread; the library holds no
    /// lock then.
    #[must_use]
    pub fn foreign(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self(Kept::Foreign(BorrowedBuffer::new(bytes)))
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Kept::Bytes(bytes) => bytes,
            Kept::Foreign(borrowed) => borrowed.bytes(),
        }
    }

    /// Returns the bytes as a vector; copies them only if they are shared.
    fn into_bytes(self) -> Vec<u8> {
        match self.0 {
            Kept::Bytes(bytes) => Arc::try_unwrap(bytes).unwrap_or_else(|shared| shared.to_vec()),
            Kept::Foreign(borrowed) => borrowed.bytes().to_vec(),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Kept::Bytes(Arc::new(bytes)))
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes().len())
    }
}

#[cfg(test)]
mod tests;
