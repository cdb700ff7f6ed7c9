//! TLS of a world. rustls takes its random numbers from the system, so the bytes differ between two runs of a seed. Their
//! lengths do not, because keys and signatures are of Ed25519 and X25519, and the simulator depends on lengths only.

use rendezvous_core::time::Duration;
use rendezvous_core::tls::{ClientConfig, Protocol, ServerConfig, TlsStage};
use std::sync::OnceLock;

const CA: &[u8] = include_bytes!("tls/ca.pem");
const IDENTITY: (&[u8], &[u8]) = (include_bytes!("tls/server.pem"), include_bytes!("tls/server.key"));
/// Name in the certificate.
const NAME: &str = "server";

/// The certificates are valid for a hundred years from 2026 on.
fn since_1970() -> Duration {
    Duration::from_secs(3_000_000_000)
}

pub(super) fn server() -> ServerConfig {
    static CONFIG: OnceLock<ServerConfig> = OnceLock::new();
    CONFIG.get_or_init(|| server_of(Protocol::Native)).clone()
}

/// Returns the stage of a worker that accepts a connection of another one.
pub(super) fn callee() -> TlsStage {
    static CONFIG: OnceLock<ServerConfig> = OnceLock::new();
    TlsStage::server(CONFIG.get_or_init(|| server_of(Protocol::Rpc)))
}

pub(crate) fn client() -> TlsStage {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    TlsStage::client(CONFIG.get_or_init(|| client_of(Protocol::Native)), NAME).expect("a name")
}

/// Returns the stage of a worker that connects to another one.
pub(super) fn caller() -> TlsStage {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    TlsStage::client(CONFIG.get_or_init(|| client_of(Protocol::Rpc)), NAME).expect("a name")
}

fn server_of(protocol: Protocol) -> ServerConfig {
    ServerConfig::from_pem(protocol, IDENTITY, None, since_1970).expect("a certificate")
}

fn client_of(protocol: Protocol) -> ClientConfig {
    ClientConfig::from_pem(protocol, CA, None, since_1970).expect("a CA")
}
