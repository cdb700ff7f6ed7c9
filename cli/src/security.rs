//! Flags of clients and servers for tokens and TLS: the files of secrets, certificates and keys.

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use clap::Args;
use rendezvous_core::driver::native_client::NativeClientOptions;
use rendezvous_core::driver::store::Store;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::{TlsAcceptor, TlsClientOptions, TlsConnector, TlsError, TlsServerOptions};
use std::path::PathBuf;

/// TLS of a server.
#[derive(Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct ServerTls {
    /// Certificate of the server, in PEM, followed by those of intermediate CAs; native clients must use TLS then
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_CERT", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CAs of clients, in PEM; each native client needs a certificate of one of them then, and PyTorch's clients are
    /// refused without --allow-c10d-from
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_CLIENT_CA", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl ServerTls {
    /// Reads the files, if there are any.
    pub(crate) fn acceptor(&self) -> Result<Option<TlsAcceptor>, TlsError> {
        let (Some(cert_file), Some(key_file)) = (self.tls_cert.clone(), self.tls_key.clone()) else {
            return Ok(None);
        };
        let client_ca_file = self.tls_client_ca.clone();
        TlsAcceptor::new(TlsServerOptions { cert_file, key_file, client_ca_file }).map(Some)
    }
}

/// Token and TLS of a client.
#[derive(Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct ClientSecurity {
    /// Prove the first token of this file; the server must prove it, too
    #[arg(long, global = true, value_name = "FILE", env = "RDZV_TOKEN_FILE")]
    auth_token_file: Option<PathBuf>,
    /// CAs of the server, in PEM; with it the native protocol and TLS are used, and without it neither
    #[arg(long, global = true, value_name = "FILE", env = "RDZV_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Certificate of this client, in PEM, for a server with --tls-client-ca
    #[arg(long, global = true, value_name = "FILE", env = "RDZV_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, global = true, value_name = "FILE", env = "RDZV_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// Name that the server's certificate must contain [default: the endpoint's host]
    #[arg(long, global = true, value_name = "NAME", env = "RDZV_TLS_SERVER_NAME")]
    tls_server_name: Option<String>,
}

/// TLS of a node, which may host the server.
#[derive(Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct NodeTls {
    /// CAs of the server, in PEM; with it, this node meets the others through TLS
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// Certificate of this node, in PEM: of the server if the node hosts it, or for a server with --tls-client-ca
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_CERT")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_KEY")]
    tls_key: Option<PathBuf>,
    /// CAs of the other nodes, in PEM, if this node hosts the server; each needs a certificate of one of them then
    #[arg(long, value_name = "FILE", env = "RDZV_TLS_CLIENT_CA")]
    tls_client_ca: Option<PathBuf>,
    /// Name that the server's certificate must contain [default: the endpoint's host]
    #[arg(long, value_name = "NAME", env = "RDZV_TLS_SERVER_NAME")]
    tls_server_name: Option<String>,
}

impl NodeTls {
    /// Returns the options of the rendezvous that the flags stand for.
    pub(crate) fn options(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let files = [
            ("tls_ca", &self.tls_ca),
            ("tls_cert", &self.tls_cert),
            ("tls_key", &self.tls_key),
            ("tls_client_ca", &self.tls_client_ca),
        ];
        let files = files.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?.to_str()?)));
        files.chain(self.tls_server_name.as_deref().map(|name| ("tls_server_name", name)))
    }
}

impl ClientSecurity {
    /// Connects to a store: with the native protocol if there is a token or TLS, and else with c10d, which PyTorch's
    /// servers speak, too.
    pub(crate) fn connect(&self, endpoint: &Endpoint, options: StoreOptions) -> Result<Store, Failure> {
        let Endpoint { host, port } = endpoint;
        let secured = self.options()?;
        if secured.tls.is_none() && secured.auth_token.is_none() {
            return Ok(Store::connect(host, *port, options)?);
        }
        let (timeouts, connect_timeout) = (options.timeouts(), options.connect_timeout);
        let options = NativeClientOptions { timeouts, connect_timeout, ..secured };
        Ok(Store::connect_native(host, *port, options)?)
    }

    /// Returns the options of a session, with the token and TLS of these flags.
    pub(crate) fn options(&self) -> Result<NativeClientOptions, Failure> {
        let auth_token = self.auth_token_file.as_deref().map(ClientToken::open).transpose();
        let auth_token =
            auth_token.map_err(|error| Failure::new(ErrorKind::InvalidArgument, error.to_string()))?;
        Ok(NativeClientOptions { tls: self.connector()?, auth_token, ..NativeClientOptions::default() })
    }

    /// Reads the files, if there are any.
    fn connector(&self) -> Result<Option<TlsConnector>, Failure> {
        let usage = |message: &str| Failure::new(ErrorKind::InvalidArgument, message);
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(usage("--tls-cert needs --tls-key, its private key")),
            (None, Some(_)) => return Err(usage("--tls-key needs --tls-cert, its certificate")),
        };
        let Some(ca_file) = self.tls_ca.clone() else {
            return match identity.is_some() || self.tls_server_name.is_some() {
                true => Err(usage("TLS needs --tls-ca, the file of trusted CAs")),
                false => Ok(None),
            };
        };
        let server_name = self.tls_server_name.clone();
        TlsConnector::new(TlsClientOptions { ca_file, identity, server_name })
            .map(Some)
            .map_err(|error| Failure::new(ErrorKind::InvalidArgument, error.to_string()))
    }
}
