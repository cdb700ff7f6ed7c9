//! What the modelled modules use of the rest of the drivers: channels and threads over shuttle's locks, connections without
//! sockets, and a clock that the models set.

pub mod call_error;
pub mod channel;
pub mod clock;
pub mod event_loop;
pub mod group;
pub mod oneshot;
pub mod session;

pub(crate) use crate::{backend, cancel, take, timeout};
use shuttle::sync::{Condvar, Mutex};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};

pub mod prelude {
    pub use super::call_error::CallError;
    pub use super::clock::{Clock, Condvar};
    pub use super::oneshot;
    pub use crate::cancel::CancelToken;
    pub use crate::lock::Lock;
    pub use rendezvous_core::prelude::*;
    pub use shuttle::sync::{Mutex, MutexGuard};
    pub use std::io;
    pub use std::os::fd::RawFd;
    pub use std::sync::{OnceLock, PoisonError};
}

pub mod calls {
    pub mod reentrancy {
        /// No thread of a model runs a handler.
        pub fn may_wait() -> bool {
            true
        }
    }
}

pub mod native_client {
    pub struct NativeClient;
}

pub mod random {
    pub fn random<const N: usize>() -> [u8; N] {
        [7; N]
    }
}

pub mod server {
    #[derive(Clone, Debug, PartialEq)]
    pub enum ServerFailure {
        Panicked(String),
        Poll(i32),
        Stopped,
    }

    impl std::fmt::Display for ServerFailure {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            std::fmt::Debug::fmt(self, f)
        }
    }
}

pub mod last_try {
    #[derive(Debug)]
    pub struct FailedTry;

    /// No attempt of a model fails.
    #[derive(Debug, Default)]
    pub struct LastTry;

    impl LastTry {
        pub fn set(&self, _: Option<FailedTry>) {}
    }
}

pub mod resolve {
    pub type Found = Result<Vec<std::net::SocketAddr>, ()>;
}

pub mod socket {
    use super::SOCKETS;
    use rendezvous_core::error::{Cause, ErrorKind};
    use std::os::fd::RawFd;

    pub fn classify(_: &std::io::Error) -> (ErrorKind, Cause) {
        unreachable!("no event loop of a model fails")
    }

    pub fn shut_down(socket: RawFd) {
        let mut sockets = SOCKETS.0.lock().expect("no panic");
        let is_shut_down = sockets.get_mut(&socket).expect("a closed socket is shut down");
        *is_shut_down = true;
        SOCKETS.1.notify_all();
    }
}

shuttle::lazy_static! {
    /// The open sockets, and whether they were shut down.
    static ref SOCKETS: (Mutex<HashMap<RawFd, bool>>, Condvar) = Default::default();
}

/// Connection, of which the pool wants its socket only.
#[derive(Debug)]
pub struct Wire(RawFd);

impl Wire {
    pub fn open(socket: RawFd) -> Self {
        SOCKETS.0.lock().expect("no panic").insert(socket, false);
        Self(socket)
    }

    pub fn wait_until_shut_down(socket: RawFd) {
        let sockets = SOCKETS.0.lock().expect("no panic");
        drop(SOCKETS.1.wait_while(sockets, |sockets| !sockets[&socket]));
    }

    pub fn socket(&self) -> &Self {
        self
    }
}

impl AsRawFd for Wire {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        SOCKETS.0.lock().expect("no panic").remove(&self.0);
    }
}

pub mod threads {
    use shuttle::sync::atomic::{AtomicUsize, Ordering};
    use shuttle::thread::{JoinHandle, ThreadId};

    shuttle::lazy_static! {
        /// Number of threads that the system still refuses to start.
        pub static ref REFUSED: AtomicUsize = AtomicUsize::new(0);
    }

    pub struct Thread(JoinHandle<()>);

    rendezvous_core::opaque::opaque_debug!(Thread);

    pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    impl Thread {
        pub fn join(self) {
            self.0.join().expect("no panic");
        }

        pub fn id(&self) -> ThreadId {
            self.0.thread().id()
        }
    }

    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
        let take = |left: usize| left.checked_sub(1);
        if REFUSED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        shuttle::thread::Builder::new().name(name.to_owned()).spawn(body).map(Thread)
    }
}
