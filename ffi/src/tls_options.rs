//! Files of TLS.

use crate::prelude::*;
use rendezvous_core::driver::tls::{
    TlsAcceptor, TlsClientOptions, TlsConnector, TlsError, TlsErrorReason, TlsServerOptions,
};
use rendezvous_core::tls::{Built, ConfigError};

/// Files of TLS, in PEM. Zero them and set `struct_size`. They are read when the options are used, and
/// again when they have changed. A library without TLS refuses them with `RDZV_UNSUPPORTED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_tls_options {
    /// Set to `sizeof(rdzv_tls_options)`.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Trusted CAs. A client needs them to verify the server; those of the system are not trusted. A
    /// server that has them requires a certificate of one of them from each native client, and refuses
    /// PyTorch's clients unless `c10d_from` names their network; NULL: from none.
    pub ca_file: *const c_char,
    /// Certificate of this side, followed by those of intermediate CAs. A server and an RPC worker need
    /// it, and a client of a server that requires certificates; NULL: none.
    pub cert_file: *const c_char,
    /// Private key of the certificate; NULL: none.
    pub key_file: *const c_char,
    /// Client only: name that the server's certificate must contain; NULL: the host of the endpoint.
    pub server_name: *const c_char,
}
growing!(rdzv_tls_options: 40);

/// The files as they were given.
struct Files<'a> {
    ca: Option<&'a str>,
    identity: Option<(&'a str, &'a str)>,
    server_name: Option<&'a str>,
}

/// Reads the options, if there are any.
unsafe fn files<'a>(options: *const rdzv_tls_options) -> Result<Option<Files<'a>>, Fault> {
    if options.is_null() {
        return Ok(None);
    }
    Built::check().map_err(|error| Fault::new(RDZV_UNSUPPORTED, format!("`options.tls`: {error}")))?;
    // SAFETY: the caller of the C function promises that a non-NULL struct has `struct_size` bytes, with texts that are
    // NULL or NUL-terminated.
    unsafe {
        let given = sized::get(options, "options.tls")?;
        let identity =
            match (c_text(given.cert_file, "tls.cert_file")?, c_text(given.key_file, "tls.key_file")?) {
                (Some(cert), Some(key)) => Some((cert, key)),
                (None, None) => None,
                _ => return Err(invalid("`tls.cert_file` and `tls.key_file` need each other")),
            };
        let (ca, server_name) =
            (c_text(given.ca_file, "tls.ca_file")?, c_text(given.server_name, "tls.server_name")?);
        Ok(Some(Files { ca, identity, server_name }))
    }
}

impl Files<'_> {
    fn server(&self) -> Result<TlsServerOptions, Fault> {
        let (cert, key) =
            self.identity.ok_or_else(|| invalid("`tls.cert_file` is NULL: a server needs a certificate"))?;
        let client_ca_file = self.ca.map(Into::into);
        Ok(TlsServerOptions { cert_file: cert.into(), key_file: key.into(), client_ca_file })
    }

    fn client(&self) -> Result<TlsClientOptions, Fault> {
        let ca = self.ca.ok_or_else(|| invalid("`tls.ca_file` is NULL: a client needs trusted CAs"))?;
        let identity = self.identity.map(|(cert, key)| (cert.into(), key.into()));
        let server_name = self.server_name.map(Into::into);
        Ok(TlsClientOptions { ca_file: ca.into(), identity, server_name })
    }
}

/// Returns the files of a server.
pub(crate) unsafe fn acceptor(options: *const rdzv_tls_options) -> Result<Option<TlsAcceptor>, Fault> {
    // SAFETY: passed on unchanged.
    let files = unsafe { files(options)? };
    files.map(|files| TlsAcceptor::new(files.server()?).map_err(|error| tls_fault(&error))).transpose()
}

/// Returns the files of a client.
pub(crate) unsafe fn connector(options: *const rdzv_tls_options) -> Result<Option<TlsConnector>, Fault> {
    // SAFETY: passed on unchanged.
    let files = unsafe { files(options)? };
    files.map(|files| TlsConnector::new(files.client()?).map_err(|error| tls_fault(&error))).transpose()
}

/// Returns the files of a worker, which is a server and a client.
#[cfg_attr(not(feature = "rpc"), expect(dead_code, reason = "for RPC"))]
pub(crate) unsafe fn of_worker(
    options: *const rdzv_tls_options,
) -> Result<Option<(TlsServerOptions, TlsClientOptions)>, Fault> {
    // SAFETY: passed on unchanged.
    let files = unsafe { files(options)? };
    files.map(|files| Ok((files.server()?, files.client()?))).transpose()
}

pub(crate) fn tls_fault(error: &TlsError) -> Fault {
    let is_built = error.reason != TlsErrorReason::Unusable(ConfigError::NotBuilt);
    Fault::new(if is_built { RDZV_INVALID_ARGUMENT } else { RDZV_UNSUPPORTED }, error.to_string())
}
