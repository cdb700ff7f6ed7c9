//! Files of certificates and keys, which are read again when they have changed.

use crate::driver::clock::since_1970;
use crate::driver::file_versions::{self, FileVersions, Files, LoadError};
use crate::driver::prelude::*;
use crate::tls::{Built, ClientConfig, ConfigError, Part, Protocol, ServerConfig, TlsStage};
use std::path::{Path, PathBuf};

/// Files of the TLS of a server, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsServerOptions {
    /// Certificate of the server, followed by those of intermediate CAs.
    pub cert_file: PathBuf,
    /// Private key of the certificate.
    pub key_file: PathBuf,
    /// Trusted CAs of clients. If set, each native client needs a certificate of one of them, and c10d clients are
    /// refused unless [`ServerOptions::c10d_from`](crate::driver::server::ServerOptions::c10d_from) names their network.
    pub client_ca_file: Option<PathBuf>,
}

/// Files of the TLS of a client, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsClientOptions {
    /// Trusted CAs of servers. Those of the system are not trusted.
    pub ca_file: PathBuf,
    /// Certificate of the client, followed by those of intermediate CAs, and its private key, for a server that asks
    /// for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name that the server's certificate must contain; `None`: the host of the endpoint.
    pub server_name: Option<String>,
}

/// A file of certificates or keys that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TLS: {file}: {reason}")]
pub struct TlsError {
    /// Path of the file, or the name that cannot be used.
    pub file: String,
    /// Reason why it cannot be used.
    pub reason: TlsErrorReason,
}

/// Reason of a [`TlsError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsErrorReason {
    /// The file cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The contents cannot be used.
    #[error("{0}")]
    Unusable(#[from] ConfigError),
}

impl TlsError {
    fn new(file: impl AsRef<Path>, reason: impl Into<TlsErrorReason>) -> Self {
        Self { file: file.as_ref().display().to_string(), reason: reason.into() }
    }
}

impl LoadError for TlsError {
    fn is_unread(&self) -> bool {
        matches!(self.reason, TlsErrorReason::Unreadable(_))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    file_versions::read(file, u64::MAX)
        .map_err(|error| TlsError::new(file, TlsErrorReason::Unreadable(error.to_string())))
}

/// Configuration that is made from files.
trait Configuration {
    type Made: Clone + fmt::Debug;

    fn files(&self) -> Files<'_>;

    fn make(&self, protocol: Protocol) -> Result<Self::Made, TlsError>;
}

impl Configuration for TlsServerOptions {
    type Made = ServerConfig;

    fn files(&self) -> Files<'_> {
        [Some(&self.cert_file), Some(&self.key_file), self.client_ca_file.as_deref()]
    }

    fn make(&self, protocol: Protocol) -> Result<ServerConfig, TlsError> {
        let (cert, key) = (read(&self.cert_file)?, read(&self.key_file)?);
        let ca = self.client_ca_file.as_deref().map(read).transpose()?;
        ServerConfig::from_pem(protocol, (&cert, &key), ca.as_deref(), since_1970)
            .map_err(|error| TlsError::new(self.file_of(error), error))
    }
}

impl Configuration for TlsClientOptions {
    type Made = ClientConfig;

    fn files(&self) -> Files<'_> {
        let identity = self.identity.as_ref();
        [Some(&self.ca_file), identity.map(|(cert, _)| &**cert), identity.map(|(_, key)| &**key)]
    }

    fn make(&self, protocol: Protocol) -> Result<ClientConfig, TlsError> {
        if let Some(name) = &self.server_name {
            ClientConfig::check_name(name).map_err(|error| TlsError::new(name, error))?;
        }
        let ca = read(&self.ca_file)?;
        let identity = match &self.identity {
            Some((cert, key)) => Some((read(cert)?, read(key)?)),
            None => None,
        };
        let identity = identity.as_ref().map(|(cert, key)| (&**cert, &**key));
        ClientConfig::from_pem(protocol, &ca, identity, since_1970)
            .map_err(|error| TlsError::new(self.file_of(error), error))
    }
}

impl TlsServerOptions {
    fn file_of(&self, error: ConfigError) -> &Path {
        match (error.part(), &self.client_ca_file) {
            (Part::Key, _) => &self.key_file,
            (Part::Ca, Some(ca)) => ca,
            _ => &self.cert_file,
        }
    }
}

impl TlsClientOptions {
    fn file_of(&self, error: ConfigError) -> &Path {
        match (error.part(), &self.identity) {
            (Part::Certificate, Some((cert, _))) => cert,
            (Part::Key, Some((_, key))) => key,
            _ => &self.ca_file,
        }
    }
}

/// Options, and what was made of them last.
#[derive(Debug)]
struct Reloaded<C: Configuration> {
    options: C,
    protocol: Protocol,
    made: Mutex<(C::Made, FileVersions)>,
}

impl<C: Configuration> Reloaded<C> {
    fn new(options: C, protocol: Protocol) -> Result<Self, TlsError> {
        let versions = FileVersions::of(options.files());
        let made = Mutex::new((options.make(protocol)?, versions));
        Ok(Self { options, protocol, made })
    }

    fn current(&self) -> C::Made {
        self.made.locked().0.clone()
    }

    /// Reads the files again if they have changed. If they cannot be used, the earlier configuration stays.
    fn renew(&self) -> Option<Result<C::Made, TlsError>> {
        let mut guard = self.made.locked();
        let (made, versions) = &mut *guard;
        // An unusable file is tried again when it has changed again: a certificate and its key change one after the
        // other.
        let renewed = versions.reload(self.options.files(), || self.options.make(self.protocol))?;
        Some(renewed.inspect(|renewed| *made = renewed.clone()))
    }
}

/// TLS of a server: its files, and the configuration that was made of them.
#[derive(Clone, Debug)]
pub struct TlsAcceptor(Arc<Reloaded<TlsServerOptions>>, Built);

impl TlsAcceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn new(options: TlsServerOptions) -> Result<Self, TlsError> {
        Self::of(options, Protocol::Native)
    }

    /// Reads the files, for this protocol within TLS.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn of(options: TlsServerOptions, protocol: Protocol) -> Result<Self, TlsError> {
        let built = Built::check().map_err(|error| TlsError::new(&options.cert_file, error))?;
        Ok(Self(Arc::new(Reloaded::new(options, protocol)?), built))
    }

    /// Returns the options.
    pub fn options(&self) -> &TlsServerOptions {
        &self.0.options
    }

    /// Returns whether each client needs a certificate of a trusted CA.
    pub fn requires_certificates(&self) -> bool {
        self.options().client_ca_file.is_some()
    }

    /// Returns the configuration that was made last.
    pub fn current(&self) -> ServerConfig {
        self.0.current()
    }

    /// Returns the new configuration if the files have changed.
    pub fn renew(&self) -> Option<Result<ServerConfig, TlsError>> {
        self.0.renew()
    }
}

/// TLS of a client: its files, and the configuration that was made of them.
#[derive(Clone, Debug)]
pub struct TlsConnector(Arc<Reloaded<TlsClientOptions>>, Built);

impl TlsConnector {
    /// Reads the files.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn new(options: TlsClientOptions) -> Result<Self, TlsError> {
        Self::of(options, Protocol::Native)
    }

    /// Reads the files, for this protocol within TLS.
    ///
    /// # Errors
    /// The file that cannot be used.
    pub fn of(options: TlsClientOptions, protocol: Protocol) -> Result<Self, TlsError> {
        let built = Built::check().map_err(|error| TlsError::new(&options.ca_file, error))?;
        Ok(Self(Arc::new(Reloaded::new(options, protocol)?), built))
    }

    /// Returns the options.
    pub fn options(&self) -> &TlsClientOptions {
        &self.0.options
    }

    /// Starts a connection to a server on `host`, with the files as they are now.
    ///
    /// # Errors
    /// The host's name cannot be in a certificate.
    pub fn start(&self, host: &str) -> Result<TlsStage, ConfigError> {
        self.0.renew();
        TlsStage::client(&self.0.current(), self.0.options.server_name.as_deref().unwrap_or(host))
    }
}
