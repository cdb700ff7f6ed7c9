//! One side of one TLS connection.

use super::config::{ClientConfig, ConfigError, ServerConfig, server_name};
use crate::limits::TLS_COST_BYTES;
use crate::opaque::opaque_debug;
use crate::prelude::*;
use crate::tls_fault::TlsFault;
use rustls::{CertificateError, ClientConnection, Connection, Error, ServerConnection};
use std::io::{BufRead, Write};

/// Maximum number of bytes of plaintext that wait to be sent as ciphertext.
const SEALED_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of received bytes that rustls holds: a handshake message in several records. Of data it holds one record.
const HELD_BYTES_MAX: usize = 64 * 1024;
/// Number of records without data that a peer may send at once: more than a handshake needs, with a long chain of
/// certificates.
const BARE_RECORDS_MAX: usize = 64;
/// Minimum length of the data of a record, in bytes, on average over time. Frames are longer, though some are
/// in two records: the header, and a part of the payload.
const RECORD_DATA_BYTES: usize = 4;
/// Maximum capacity in bytes that an empty buffer keeps.
const BYTES_KEPT_MAX: usize = 4 * 1024;
/// Types of the records with which a TLS server may answer: an alert or a handshake message (RFC 8446, section 5.1).
const FIRST_RECORDS: [u8; 2] = [0x15, 0x16];
/// Label of the channel binding `tls-exporter` (RFC 9266).
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// One side of one TLS connection, between a socket and a state machine.
///
/// Received bytes go to [`TlsStage::receive`], which returns the plaintext. Plaintext to be sent goes to
/// [`TlsStage::send`]. After either, [`TlsStage::unsent`] has the bytes for the socket; [`TlsStage::sent`] removes those
/// that were sent.
///
/// The stage keeps at most one incomplete record of the peer, and the ciphertext of at most 64 KiB. Each record
/// takes time, so the connection of a peer whose records have hardly any data ends.
pub struct TlsStage {
    connection: Connection,
    unsent: Vec<u8>,
    sent: usize,
    /// Number of received bytes since the last plaintext. rustls holds no others.
    held: usize,
    records: RecordCounter,
    /// Number of records since [`TlsStage::take_records`] was last called.
    untaken_records: usize,
    /// Bytes of data that the peer's records lack for [`RECORD_DATA_BYTES`] in each.
    lacking_bytes: usize,
    has_received: bool,
    is_ended: bool,
    fault: Option<TlsFault>,
}

opaque_debug!(TlsStage);

impl TlsStage {
    /// Starts as a server, which waits for the client.
    pub fn server(config: &ServerConfig) -> Self {
        let connection = ServerConnection::new(Arc::clone(&config.0));
        // invariant: rustls refuses only a configuration for QUIC
        Self::new(connection.expect("a configuration for TLS").into())
    }

    /// Starts as a client of the server with this name, which its certificate must contain.
    ///
    /// # Errors
    /// The name is neither a host name nor an IP address.
    pub fn client(config: &ClientConfig, name: &str) -> Result<Self, ConfigError> {
        let connection = ClientConnection::new(Arc::clone(&config.0), server_name(name)?);
        let mut stage = Self::new(connection.map_err(|_| ConfigError::BadName)?.into());
        stage.seal();
        Ok(stage)
    }

    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(SEALED_BYTES_MAX));
        Self {
            connection,
            unsent: Vec::new(),
            sent: 0,
            held: 0,
            records: RecordCounter::default(),
            untaken_records: 0,
            lacking_bytes: 0,
            has_received: false,
            is_ended: false,
            fault: None,
        }
    }

    /// Returns whether the handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns whether the peer has ended TLS. It sends nothing after that.
    pub const fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Handles received bytes, and appends their plaintext to `plaintext`.
    ///
    /// # Errors
    /// The connection cannot be used any more. What [`TlsStage::unsent`] still has is an alert for the peer.
    pub fn receive(&mut self, mut received: &[u8], plaintext: &mut Vec<u8>) -> Result<(), TlsFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if let (Connection::Client(_), false, Some(first)) =
            (&self.connection, self.has_received, received.first())
            && !FIRST_RECORDS.contains(first)
        {
            return Err(self.failed(TlsFault::NotTls));
        }
        self.has_received |= !received.is_empty();
        while !received.is_empty() && !self.is_ended {
            let before = received;
            // It fails only where the caller does not take the plaintext.
            let Ok(count) = self.connection.read_tls(&mut received) else {
                return Err(self.failed(TlsFault::Violation));
            };
            let records = self.records.count(&before[..count]);
            self.untaken_records += records;
            let is_handshaking = self.is_handshaking();
            let state = match self.connection.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    // The alert.
                    self.seal();
                    return Err(self.failed(fault_of(&error)));
                }
            };
            let mut left = state.plaintext_bytes_to_read();
            self.lacking_bytes = (self.lacking_bytes + records * RECORD_DATA_BYTES).saturating_sub(left);
            if self.lacking_bytes > BARE_RECORDS_MAX * RECORD_DATA_BYTES {
                return Err(self.failed(TlsFault::BareRecords));
            }
            let has_shaken_hands = is_handshaking && !self.connection.is_handshaking();
            // A peer that names any protocol names ours: otherwise the handshake fails.
            if has_shaken_hands && self.connection.alpn_protocol().is_none() {
                self.close();
                return Err(self.failed(TlsFault::OtherProtocol));
            }
            let has_passed = left > 0 || has_shaken_hands;
            self.held = if has_passed { count } else { HELD_BYTES_MAX.min(self.held + count) };
            let mut reader = self.connection.reader();
            while left > 0 {
                let Ok(bytes) = reader.fill_buf() else { break };
                let count = bytes.len();
                plaintext.extend_from_slice(bytes);
                reader.consume(count);
                left = left.saturating_sub(count.max(1));
            }
            self.is_ended = state.peer_has_closed();
        }
        self.seal();
        Ok(())
    }

    /// Returns the number of records that have begun since the last call. Each takes time, whatever it contains.
    pub const fn take_records(&mut self) -> usize {
        core::mem::replace(&mut self.untaken_records, 0)
    }

    /// Encrypts from `plaintext`, and returns the number of bytes that were taken. It takes none during the handshake
    /// and while there is much ciphertext to be sent.
    pub fn send(&mut self, plaintext: &[u8]) -> usize {
        let unsent_bytes = self.unsent.len() - self.sent;
        if plaintext.is_empty()
            || self.is_handshaking()
            || self.fault.is_some()
            || unsent_bytes > SEALED_BYTES_MAX / 2
        {
            return 0;
        }
        let chunk = &plaintext[..plaintext.len().min(SEALED_BYTES_MAX - unsent_bytes)];
        let count = self.connection.writer().write(chunk).unwrap_or(0);
        self.seal();
        count
    }

    /// Tells the peer that nothing follows.
    pub fn close(&mut self) {
        if self.fault.is_none() {
            self.connection.send_close_notify();
            self.seal();
        }
    }

    /// Returns whether there are bytes to be sent.
    pub const fn has_unsent(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Returns the bytes to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.sent..]
    }

    /// Returns the number of bytes of memory that the stage takes, about.
    pub const fn held_bytes(&self) -> usize {
        TLS_COST_BYTES + self.held + self.unsent.capacity()
    }

    /// Removes bytes of [`TlsStage::unsent`] that were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if !self.has_unsent() {
            self.unsent.clear();
            self.unsent.shrink_to(BYTES_KEPT_MAX);
            self.sent = 0;
        }
    }

    /// Returns how the connection has ended when the socket reports its end; `None` after a regular end.
    pub fn end_of_stream(&self) -> Option<TlsFault> {
        match self.fault {
            Some(fault) => Some(fault),
            None if self.is_ended => None,
            None if self.is_handshaking() => Some(TlsFault::ClosedInHandshake),
            None => Some(TlsFault::Truncated),
        }
    }

    /// Returns 32 bytes that both sides of this connection know, and no other connection has (`tls-exporter` of
    /// RFC 9266); `None` during the handshake.
    pub fn binding(&self) -> Option<[u8; 32]> {
        if self.is_handshaking() {
            return None;
        }
        self.connection.export_keying_material([0; 32], BINDING_LABEL, None).ok()
    }

    /// Changes the key of the bytes to be sent.
    #[cfg(test)]
    pub(in crate::tls) fn refresh_key(&mut self) {
        self.connection.refresh_traffic_keys().expect("after the handshake");
        self.seal();
    }

    fn failed(&mut self, fault: TlsFault) -> TlsFault {
        self.fault = Some(fault);
        fault
    }

    /// Moves the bytes that rustls has for the socket to the buffer.
    fn seal(&mut self) {
        while self.connection.wants_write() {
            // invariant: a `Vec` takes all bytes
            self.connection.write_tls(&mut self.unsent).expect("a growing buffer");
        }
    }
}

/// Counts the records in a stream of received bytes (RFC 8446, section 5.1).
#[derive(Debug, Default)]
pub(in crate::tls) struct RecordCounter {
    /// Number of bytes of a header that have arrived, of five.
    header_bytes: u8,
    /// The last two of them: in the end, the length of the content.
    last: [u8; 2],
    /// Bytes of the content that have not arrived.
    left: usize,
}

impl RecordCounter {
    /// Returns the number of headers that are complete with these bytes.
    pub(in crate::tls) fn count(&mut self, mut bytes: &[u8]) -> usize {
        let mut count = 0;
        loop {
            let content = self.left.min(bytes.len());
            (self.left, bytes) = (self.left - content, &bytes[content..]);
            let Some((&first, rest)) = bytes.split_first() else { return count };
            bytes = rest;
            self.last = [self.last[1], first];
            self.header_bytes += 1;
            if self.header_bytes == 5 {
                (self.header_bytes, self.left) = (0, u16::from_be_bytes(self.last).into());
                count += 1;
            }
        }
    }
}

fn fault_of(error: &Error) -> TlsFault {
    match error {
        Error::InvalidCertificate(error) => match error {
            // A CA that was made anew under its old name has another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsFault::UnknownIssuer,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFault::WrongName
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFault::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsFault::NotYetValid
            }
            CertificateError::ApplicationVerificationFailure => TlsFault::LongChain,
            _ => TlsFault::BadCertificate,
        },
        Error::NoApplicationProtocol => TlsFault::OtherProtocol,
        Error::NoCertificatesPresented => TlsFault::NoCertificate,
        Error::AlertReceived(alert) => TlsFault::Alert(u8::from(*alert)),
        _ => TlsFault::Violation,
    }
}
