//! TLS of a build without the feature `tls`: the types of the module `tls`, of which there are no values.

use crate::prelude::*;
use crate::tls_fault::TlsFault;
use core::convert::Infallible;

/// Reason why certificates, a key or a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The library was built without TLS.
    #[error("this build has no TLS: build it with the feature `tls`")]
    NotBuilt,
}

/// Part of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Certificate of this side.
    Certificate,
    /// Private key of this side.
    Key,
    /// Trusted CAs.
    Ca,
}

impl ConfigError {
    /// Returns the part that cannot be used.
    pub const fn part(self) -> Part {
        Part::Certificate
    }
}

/// Protocol within TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Native protocol of the server.
    Native,
    /// Calls between the workers of an RPC group.
    Rpc,
}

/// Proof that this build has TLS. There is none, so nothing that contains it is linked.
#[derive(Clone, Copy, Debug)]
pub struct Built(Infallible);

impl Built {
    /// Fails.
    ///
    /// # Errors
    /// There is no TLS.
    pub const fn check() -> Result<Self, ConfigError> {
        Err(ConfigError::NotBuilt)
    }
}

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig(Infallible);

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig(Infallible);

/// Certificates and a private key.
pub type Identity<'a> = (&'a [u8], &'a [u8]);

impl ServerConfig {
    /// Fails.
    ///
    /// # Errors
    /// There is no TLS.
    pub fn from_pem(
        _: Protocol,
        _: Identity<'_>,
        _: Option<&[u8]>,
        _: fn() -> Duration,
    ) -> Result<Self, ConfigError> {
        Err(ConfigError::NotBuilt)
    }
}

impl ClientConfig {
    /// Fails.
    ///
    /// # Errors
    /// There is no TLS.
    pub fn from_pem(
        _: Protocol,
        _: &[u8],
        _: Option<Identity<'_>>,
        _: fn() -> Duration,
    ) -> Result<Self, ConfigError> {
        Err(ConfigError::NotBuilt)
    }

    /// Fails.
    ///
    /// # Errors
    /// There is no TLS.
    pub const fn check_name(_: &str) -> Result<(), ConfigError> {
        Err(ConfigError::NotBuilt)
    }
}

/// One side of one TLS connection.
#[derive(Debug)]
pub struct TlsStage(Infallible);

#[allow(missing_docs, reason = "documented where TLS is built")]
impl TlsStage {
    pub const fn server(config: &ServerConfig) -> Self {
        match config.0 {}
    }

    /// # Errors
    /// None is possible.
    pub const fn client(config: &ClientConfig, _: &str) -> Result<Self, ConfigError> {
        match config.0 {}
    }

    pub const fn is_handshaking(&self) -> bool {
        match self.0 {}
    }

    pub const fn is_ended(&self) -> bool {
        match self.0 {}
    }

    /// # Errors
    /// None is possible.
    pub const fn receive(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsFault> {
        match self.0 {}
    }

    pub const fn take_records(&mut self) -> usize {
        match self.0 {}
    }

    pub const fn send(&mut self, _: &[u8]) -> usize {
        match self.0 {}
    }

    pub const fn close(&mut self) {
        match self.0 {}
    }

    pub const fn has_unsent(&self) -> bool {
        match self.0 {}
    }

    pub const fn unsent(&self) -> &[u8] {
        match self.0 {}
    }

    pub const fn held_bytes(&self) -> usize {
        match self.0 {}
    }

    pub const fn sent(&mut self, _: usize) {
        match self.0 {}
    }

    pub const fn end_of_stream(&self) -> Option<TlsFault> {
        match self.0 {}
    }

    pub const fn binding(&self) -> Option<[u8; 32]> {
        match self.0 {}
    }
}
