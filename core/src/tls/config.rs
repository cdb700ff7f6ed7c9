//! Certificates, keys and trusted CAs of one side.

use crate::prelude::*;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, InconsistentKeys, RootCertStore,
    SignatureScheme,
};

/// Reason why certificates, a key or a name cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The library was built without TLS.
    #[error("this build has no TLS: build it with the feature `tls`")]
    NotBuilt,
    /// The file of certificates has none.
    #[error("the file has no certificate in PEM")]
    NoCertificate,
    /// The file of the key has none.
    #[error("the file has no private key in PEM")]
    NoKey,
    /// The file of trusted CAs has none.
    #[error("the file has no CA certificate in PEM")]
    NoCa,
    /// A certificate cannot be parsed.
    #[error("a certificate of the file is invalid")]
    BadCertificate,
    /// A certificate of a CA cannot be parsed or used.
    #[error("a CA certificate of the file is invalid")]
    BadCa,
    /// The kind of the key is not supported.
    #[error(
        "the private key is of no supported kind: ECDSA P-256 or P-384, Ed25519 or RSA of 2048 bits or more"
    )]
    BadKey,
    /// The private key belongs to another certificate.
    #[error("the private key does not belong to the certificate")]
    KeyMismatch,
    /// The name of the server is neither a host name nor an address.
    #[error("the server's name is neither a host name nor an IP address")]
    BadName,
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
        match self {
            Self::NoKey | Self::BadKey | Self::KeyMismatch => Part::Key,
            Self::NoCertificate | Self::BadCertificate => Part::Certificate,
            Self::NotBuilt | Self::NoCa | Self::BadCa | Self::BadName => Part::Ca,
        }
    }
}

/// Protocol within TLS. Both sides name it in the handshake (ALPN), so that a client of one never talks to a server of
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Native protocol of the server.
    Native,
    /// Calls between the workers of an RPC group.
    Rpc,
}

impl Protocol {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::Native => b"rdzv/1",
            Self::Rpc => b"rdzv-rpc/1",
        }
    }

    fn list(self) -> Vec<Vec<u8>> {
        vec![self.name().to_vec()]
    }
}

/// Proof that this build has TLS.
#[derive(Clone, Copy, Debug)]
pub struct Built(());

impl Built {
    /// Returns the proof.
    ///
    /// # Errors
    /// None is possible.
    pub const fn check() -> Result<Self, ConfigError> {
        Ok(Self(()))
    }
}

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig(pub(super) Arc<rustls::ServerConfig>);

/// Configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig(pub(super) Arc<rustls::ClientConfig>);

/// Certificates, the owner's first, and its private key, in PEM.
pub type Identity<'a> = (&'a [u8], &'a [u8]);

impl ServerConfig {
    /// Makes a configuration from PEM. With `client_ca`, each client must have a certificate of one of these CAs.
    /// `since_1970` returns the time at which certificates are verified.
    ///
    /// # Errors
    /// What cannot be used.
    pub fn from_pem(
        protocol: Protocol,
        identity: Identity<'_>,
        client_ca: Option<&[u8]>,
        since_1970: fn() -> Duration,
    ) -> Result<Self, ConfigError> {
        let provider = Arc::new(provider());
        let builder = rustls::ServerConfig::builder_with_details(
            Arc::clone(&provider),
            Arc::new(WallClock(since_1970)),
        );
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|_| ConfigError::BadKey)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => builder.with_client_cert_verifier(verifier(pem, provider)?),
        };
        let mut config = builder
            .with_single_cert(certificates(identity.0)?, key(identity.1)?)
            .map_err(fault_of_identity)?;
        config.alpn_protocols = protocol.list();
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }
}

impl ClientConfig {
    /// Makes a configuration from PEM. `ca` holds the trusted CAs; those of the system are not trusted. With an
    /// identity, the client sends its certificate to a server that asks for one.
    ///
    /// # Errors
    /// What cannot be used.
    pub fn from_pem(
        protocol: Protocol,
        ca: &[u8],
        identity: Option<Identity<'_>>,
        since_1970: fn() -> Duration,
    ) -> Result<Self, ConfigError> {
        let provider = Arc::new(provider());
        let builder = rustls::ClientConfig::builder_with_details(provider, Arc::new(WallClock(since_1970)));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|_| ConfigError::BadKey)?;
        let builder = builder.with_root_certificates(roots(ca)?);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(certificates(identity.0)?, key(identity.1)?)
                .map_err(fault_of_identity)?,
        };
        config.alpn_protocols = protocol.list();
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// Checks a server's name: a host name or an IP address.
    ///
    /// # Errors
    /// The name is neither.
    pub fn check_name(name: &str) -> Result<(), ConfigError> {
        server_name(name).map(drop)
    }
}

/// Returns the ciphers, of which the first is the fastest where the processor has instructions for AES and SHA-256.
fn provider() -> CryptoProvider {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}

pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, ConfigError> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(bare.to_string()).map_err(|_| ConfigError::BadName)
}

fn verifier(pem: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let roots = Arc::new(roots(pem)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    Ok(Arc::new(ShortChains(verifier.map_err(|_| ConfigError::NoCa)?)))
}

/// Maximum number of certificates that a client may send in addition to its own. Among ten that all have one name, the
/// search for a chain took 3 s in a debug build, before the client had proven anything.
const INTERMEDIATES_MAX: usize = 3;

/// Refuses clients with many certificates, and leaves the others to a verifier.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > INTERMEDIATES_MAX {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        self.0.verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    let found = certificates(pem).map_err(|error| match error {
        ConfigError::NoCertificate => ConfigError::NoCa,
        _ => ConfigError::BadCa,
    })?;
    for certificate in found {
        roots.add(certificate).map_err(|_| ConfigError::BadCa)?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(ConfigError::NoCertificate),
        Ok(found) => Ok(found),
        Err(_) => Err(ConfigError::BadCertificate),
    }
}

fn key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, ConfigError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| ConfigError::NoKey)
}

fn fault_of_identity(error: Error) -> ConfigError {
    match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => ConfigError::KeyMismatch,
        Error::InvalidCertificate(_) => ConfigError::BadCertificate,
        _ => ConfigError::BadKey,
    }
}

/// Time at which certificates are verified.
#[derive(Debug)]
struct WallClock(fn() -> Duration);

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0()))
    }
}
