//! TLS as a stage between a socket and a state machine. It does no I/O: received bytes and plaintext are arguments, and
//! bytes to be sent are returned.
//!
//! The protocol is TLS 1.3 by rustls. There is no resumption: each connection makes a full handshake, so each peer is
//! verified against the certificates of that moment.

mod config;
mod stage;

pub use config::{Built, ClientConfig, ConfigError, Identity, Part, Protocol, ServerConfig};
pub use stage::TlsStage;

#[cfg(test)]
mod tests;
