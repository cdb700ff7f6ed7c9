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
    let made =
        || ServerConfig::from_pem(Protocol::Native, IDENTITY, None, since_1970).expect("a certificate");
    CONFIG.get_or_init(made).clone()
}

pub(crate) fn client() -> TlsStage {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    let made = || ClientConfig::from_pem(Protocol::Native, CA, None, since_1970).expect("a CA");
    TlsStage::client(CONFIG.get_or_init(made), NAME).expect("a name")
}
