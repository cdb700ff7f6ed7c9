//! Calls between workers: [`serving::RpcServer`] accepts them, [`calling::RpcClient`] makes them.
//!
//! One thread drives all connections of a worker, in both directions. A blocking call that is alone on its connection
//! reads its response on the calling thread, and pooled handlers write their responses from their own threads. So
//! neither is passed between threads.
use rendezvous_core::prelude::*;

pub mod calling;
mod client_state;
mod completion;
pub mod handling;
mod io_thread;
mod line;
mod link;
mod locked;
mod pool;
mod received;
pub mod reentrancy;
pub mod serving;
mod transport;

pub(in crate::driver) use io_thread::failure_text;
pub use received::Received;
pub use transport::{GroupToken, RpcTls};

/// Bytes of a request or a response, which are sent from where they are stored. Cheap to clone.
#[derive(Clone)]
pub struct Payload(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl Payload {
    /// Creates a payload from bytes with a custom owner. The owner may be dropped on any thread; the library holds no
    /// lock then.
    pub fn foreign(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(bytes))
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
pub(in crate::driver) mod tests;
