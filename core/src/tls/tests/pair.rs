//! Configurations of tests, and two stages that are joined by memory.

use super::certificates::{Authority, Issued};
use crate::driver::clock::since_1970;
use crate::prelude::*;
use crate::tls::{ClientConfig, ConfigError, Identity, Protocol, ServerConfig, TlsStage};
use crate::tls_fault::TlsFault;

impl Issued {
    fn identity(&self) -> Identity<'_> {
        (self.certificate.as_bytes(), self.key.as_bytes())
    }
}

impl Authority {
    pub(super) fn server(&self, names: &[&str], client_ca: Option<&Self>) -> ServerConfig {
        let client_ca = client_ca.map(Self::pem);
        let client_ca = client_ca.as_ref().map(String::as_bytes);
        let issued = self.issue(names);
        let config = ServerConfig::from_pem(Protocol::Native, issued.identity(), client_ca, since_1970);
        config.expect("a server")
    }

    pub(super) fn client(&self, identity: Option<&Issued>) -> ClientConfig {
        self.client_at(identity, since_1970)
    }

    pub(super) fn client_at(&self, identity: Option<&Issued>, since_1970: fn() -> Duration) -> ClientConfig {
        let (ca, identity) = (self.pem(), identity.map(Issued::identity));
        let config = ClientConfig::from_pem(Protocol::Native, ca.as_bytes(), identity, since_1970);
        config.expect("a client")
    }
}

/// Two stages that are joined by memory.
pub(super) struct Pair {
    pub(super) client: TlsStage,
    pub(super) server: TlsStage,
    /// Plaintext that has arrived.
    pub(super) at_client: Vec<u8>,
    pub(super) at_server: Vec<u8>,
    /// Maximum number of bytes that are delivered at once.
    pub(super) chunk: usize,
}

impl Pair {
    pub(super) fn new(client: &ClientConfig, name: &str, server: &ServerConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            client: TlsStage::client(client, name)?,
            server: TlsStage::server(server),
            at_client: Vec::new(),
            at_server: Vec::new(),
            chunk: usize::MAX,
        })
    }

    /// Delivers until nothing is left. Returns the first fault of each side.
    pub(super) fn deliver(&mut self) -> (Option<TlsFault>, Option<TlsFault>) {
        let Self { client, server, at_client, at_server, chunk } = self;
        let (mut client_fault, mut server_fault) = (None, None);
        loop {
            let to_server = deliver(client, server, at_server, *chunk, &mut server_fault);
            let to_client = deliver(server, client, at_client, *chunk, &mut client_fault);
            if !to_server && !to_client {
                return (client_fault, server_fault);
            }
        }
    }

    pub(super) fn handshake(&mut self) {
        assert_eq!(self.deliver(), (None, None));
        assert!(!self.client.is_handshaking() && !self.server.is_handshaking());
    }
}

fn deliver(
    from: &mut TlsStage,
    to: &mut TlsStage,
    plaintext: &mut Vec<u8>,
    chunk: usize,
    fault: &mut Option<TlsFault>,
) -> bool {
    let bytes = from.unsent().to_vec();
    from.sent(bytes.len());
    for chunk in bytes.chunks(chunk.min(bytes.len().max(1))) {
        if let Err(found) = to.receive(chunk, plaintext) {
            fault.get_or_insert(found);
        }
    }
    !bytes.is_empty()
}
