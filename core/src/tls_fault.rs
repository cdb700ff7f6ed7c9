//! Failures of a TLS connection, as data.

use core::fmt;

/// Failure of a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsFault {
    /// No trusted CA has issued the peer's certificate.
    UnknownIssuer,
    /// The server's certificate is for other names.
    WrongName,
    /// The peer's certificate has expired.
    Expired,
    /// The peer's certificate is not valid yet.
    NotYetValid,
    /// The peer's certificate is invalid for another reason.
    BadCertificate,
    /// The client sent more than three certificates in addition to its own.
    LongChain,
    /// The client sent no certificate.
    NoCertificate,
    /// The peer ended the connection with this alert (RFC 8446, section 6).
    Alert(u8),
    /// The peer answered in another protocol.
    NotTls,
    /// The peer agreed on no protocol within TLS (ALPN).
    OtherProtocol,
    /// The peer closed the connection during the handshake.
    ClosedInHandshake,
    /// The peer closed the connection without ending TLS first.
    Truncated,
    /// The client did not begin with TLS.
    PlaintextRefused,
    /// The peer sent many records with little or no data.
    BareRecords,
    /// The peer violated the protocol, or bytes were changed on their way.
    Violation,
}

impl TlsFault {
    /// Returns whether another attempt would fail in the same way, until a person changes a certificate or an option.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::ClosedInHandshake | Self::Truncated | Self::BareRecords | Self::Violation)
    }
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownIssuer => {
                "no trusted CA has issued the peer's certificate: check the file of trusted CAs (--tls-ca, or \
                 --tls-client-ca at a server)"
            }
            Self::WrongName => {
                "the server's certificate is for other names: connect to a name that it contains, or give one with \
                 --tls-server-name"
            }
            Self::Expired => "the peer's certificate has expired: renew it, or set this host's clock",
            Self::NotYetValid => "the peer's certificate is not valid yet: set the clocks of both hosts",
            Self::BadCertificate => "the peer's certificate is invalid",
            Self::LongChain => {
                "the client sent more than three certificates of CAs: remove some from the file of its --tls-cert, such as that \
                 of the root"
            }
            Self::NoCertificate => {
                "the client sent no certificate: it needs --tls-cert and --tls-key, because the server has \
                 --tls-client-ca"
            }
            Self::Alert(alert) => return write!(f, "{}", Alert(*alert)),
            Self::NotTls => {
                "the peer does not answer in TLS: it may be another program, or a server without --tls-cert"
            }
            Self::OtherProtocol => {
                "the peer uses another protocol within TLS, or names none (ALPN): it may be another program"
            }
            Self::ClosedInHandshake => {
                "the peer closed the connection during the TLS handshake: it may be another program, or a server \
                 without --tls-cert"
            }
            Self::Truncated => "the peer closed the connection without ending TLS",
            Self::PlaintextRefused => {
                "the client did not begin with TLS, which this server requires: give the client --tls-ca"
            }
            Self::BareRecords => "the peer sent many TLS records with little or no data, which only cost time",
            Self::Violation => "the peer violated TLS, or bytes were changed on their way",
        })
    }
}

/// Alert of the peer.
struct Alert(u8);

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer refused the TLS connection: ")?;
        // RFC 8446, section 6.2.
        f.write_str(match self.0 {
            116 => "it requires a certificate of this side (--tls-cert and --tls-key)",
            48 | 51 => "it does not trust the CA of this side's certificate",
            45 => "this side's certificate has expired",
            42..=44 | 46 => "this side's certificate is invalid",
            49 => "access denied; the file of --tls-cert may have more than three certificates of CAs",
            70 => "it has no TLS, or no common version; a server needs --tls-cert and --tls-key",
            120 => "it serves another protocol",
            number => return write!(f, "alert {number}"),
        })
    }
}
