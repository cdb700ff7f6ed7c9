//! Stores, barriers, sessions and rendezvous of librendezvous: state machines without I/O, and the driver that runs
//! them.
//!
//! ```
//! use rendezvous_core::{Server, ServerOptions, Store, StoreOptions, Timeout};
//!
//! // A server of this process, on a free port, and a client of it.
//! let server = Server::start(ServerOptions::on("127.0.0.1", 0))?;
//! let store = Store::connect("127.0.0.1", server.local_addr().port(), StoreOptions::default())?;
//! store.set(b"addr/0", b"10.0.0.5:29500", Timeout::Default)?;
//! assert_eq!(store.get_owned(b"addr/0", Timeout::Default)?, b"10.0.0.5:29500");
//! assert_eq!(store.add(b"started", 1, Timeout::Default)?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything outside [`driver`] is sans-IO: bytes, time and randomness are arguments, and actions are returned as
//! data. There are three feature levels: none (no allocator: codec and client machines), `alloc` (the store engine
//! and the server machines), `std` (the driver over sockets), and `tls` on top of it. `cfg(feature = …)` occurs only in
//! this file.
#![no_std]
#![warn(clippy::alloc_instead_of_core, clippy::std_instead_of_alloc, clippy::std_instead_of_core)]
#![cfg_attr(test, allow(clippy::std_instead_of_alloc, reason = "tests run where std is"))]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

// L0
pub mod error;
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod hash_index;
#[doc(hidden)]
pub mod ids;
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod key_hash;
pub mod limits;
#[doc(hidden)]
pub mod named;
#[doc(hidden)]
pub mod opaque;
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod ordered;
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod prelude;
#[doc(hidden)]
pub mod rng;
#[doc(hidden)]
pub mod secret;
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod shared;
/// Without an allocator nothing is shared.
#[cfg(not(feature = "alloc"))]
mod shared {
    #[derive(Clone, Copy, Debug)]
    pub enum SharedBytes {}

    impl SharedBytes {
        pub const fn len(&self) -> usize {
            match *self {}
        }

        pub const fn chunks(&self) -> &[&[u8]] {
            match *self {}
        }

        pub fn read<R>(&self, _: impl FnOnce(&[u8]) -> R) -> R {
            match *self {}
        }

        pub const fn equals(&self, _: &[u8]) -> bool {
            match *self {}
        }
    }
}
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod sorted;
pub mod time;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls_fault;
/// Without TLS none of its failures is possible.
#[cfg(not(feature = "tls"))]
#[doc(hidden)]
pub mod tls_fault {
    use core::fmt;

    /// Failure of a TLS connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TlsFault(core::convert::Infallible);

    impl TlsFault {
        /// Returns whether another attempt would fail in the same way.
        pub const fn is_final(self) -> bool {
            match self.0 {}
        }
    }

    impl fmt::Display for TlsFault {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {}
        }
    }
}
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod ungreeted;

// L1
/// The key/value store: requests as data, the engine, and the machines at both ends of a connection.
#[doc(hidden)]
pub mod store {
    pub mod call;
    pub mod client_conn;
    pub mod clue;
    pub mod dial;
    pub mod number;
    pub mod op;
    pub mod txn;
    pub mod value_ref;

    #[cfg(feature = "alloc")]
    pub mod engine;
    #[cfg(feature = "alloc")]
    pub mod file_log;
    #[cfg(feature = "alloc")]
    pub mod server_conn;
}

// L2
/// Stateless codecs of the wire protocols.
#[doc(hidden)]
pub mod wire {
    pub mod c10d;
    #[doc(hidden)]
    pub mod choice;
    pub mod message;
    pub mod native;
    pub mod sink;
    #[doc(hidden)]
    pub mod split;
    #[doc(hidden)]
    pub mod version;

    #[cfg(feature = "alloc")]
    mod vec_sink;
}

#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod peer_tokens;
#[doc(hidden)]
pub mod proof;

// L3
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod access;
#[doc(hidden)]
pub mod auth;
/// Barriers: participants wait until all have arrived.
#[doc(hidden)]
pub mod barrier {
    pub mod by_keys;

    #[cfg(feature = "alloc")]
    pub mod service;
}
#[cfg(feature = "alloc")]
#[doc(hidden)]
pub mod elastic_store;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;
#[cfg(all(feature = "alloc", not(feature = "tls")))]
#[doc(hidden)]
#[path = "tls_off.rs"]
pub mod tls;
#[doc(hidden)]
pub mod workers;
/// Rendezvous: nodes that do not know each other form a round with ranks.
#[doc(hidden)]
pub mod rendezvous {
    #[cfg(feature = "alloc")]
    pub mod error;
    #[cfg(feature = "alloc")]
    pub mod integer;
    #[cfg(feature = "alloc")]
    pub mod parameters;
    #[cfg(feature = "alloc")]
    pub mod parse;
    pub mod participant;
    #[cfg(feature = "alloc")]
    pub mod rdzv_settings;
    #[cfg(feature = "alloc")]
    pub mod registry;
    pub mod rejoin;
    #[cfg(feature = "alloc")]
    pub mod round_event;
    #[cfg(feature = "alloc")]
    pub mod service;
    #[cfg(feature = "alloc")]
    pub mod static_claim;
    #[cfg(feature = "alloc")]
    pub mod static_rounds;
    #[cfg(feature = "alloc")]
    pub mod static_settings;
    #[cfg(feature = "alloc")]
    pub mod store_info;
    #[cfg(feature = "alloc")]
    pub mod timeouts;
    #[cfg(feature = "alloc")]
    pub mod url;
}

/// Sessions of the native protocol, which outlive their connections.
#[doc(hidden)]
pub mod session {
    pub mod client;
    pub mod life;

    #[cfg(feature = "alloc")]
    pub mod table;

    #[cfg(all(test, feature = "alloc"))]
    mod simulation;
}

// L4
/// Composition machines: the only ones that own several machines.
pub mod node {
    pub mod client;
    #[cfg(feature = "alloc")]
    pub mod multi_client;
    pub mod native_client;
    #[cfg(feature = "alloc")]
    pub mod server;
    #[cfg(feature = "alloc")]
    pub mod tls_server;
}

// L5
#[cfg(feature = "std")]
#[doc(hidden)]
pub mod driver;

// What a Rust program needs. The crates of this workspace also use the hidden modules, whose names may change.
#[cfg(feature = "std")]
#[doc(inline)]
pub use driver::{
    call_error::CallError,
    cancel::CancelToken,
    loop_client::{CallOver, Loop, LoopEvent, MemberId, Session, SessionEvent, SubmitError},
    native_client::{
        Batch, BatchStep, Branch, Change, Joined, Lease, MemberInfo, NativeClient, NativeClientOptions,
        NativeError, NativeRequest, NativeResponse, NodeEvent, RunInfo, Step, Test, Txn, Versioned, Watch,
        WatchError,
    },
    rendezvous::{
        Context, CreateHandler, ForeignBackend, ForeignOptions, ForeignUrls, HandlerError, NodeStore,
        RendezvousHandler, UrlGroup, UrlHandler, UrlOptions, UrlRendezvous,
    },
    server::{Server, ServerFailure, ServerOptions, StartError},
    store::{Store, Timeout},
    store_client::StoreOptions,
    tls::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsError, TlsServerOptions},
};
#[cfg(feature = "alloc")]
#[doc(inline)]
pub use rendezvous::{
    error::{RendezvousError, RendezvousErrorKind},
    parameters::RendezvousParameters,
    registry::RegistryError,
    round_event::RoundEvent,
    store_info::{RendezvousInfo, RendezvousStoreInfo},
    url::RendezvousUrl,
};
