//! Certificates for tests. The tests of the other crates include this file, so it uses nothing of its own crate.

#![allow(dead_code, reason = "not every crate uses all of it")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;

/// CA that issues certificates.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// Certificate and private key in PEM.
pub(crate) struct Issued {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("CA of the tests")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Issues a certificate for these names.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Writes the certificate of the CA to a file.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, self.pem()).expect("written");
        file
    }
}

impl Issued {
    /// Writes the certificate and the key to two files.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let files = (folder.join(name.to_string() + ".pem"), folder.join(name.to_string() + ".key"));
        std::fs::write(&files.0, &self.certificate).expect("written");
        std::fs::write(&files.1, &self.key).expect("written");
        files
    }
}
