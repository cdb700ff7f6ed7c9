//! Proof that both ends of a connection know the same token, without sending it (docs/protocol/native.md, section 4.6).
//!
//! Each end contributes a nonce, and proves the token with an HMAC-SHA-256 over both nonces, the channel and the HELLO.
//! The client goes first. It holds its requests back until the server has proven the token, too.

use crate::opaque::opaque_debug;
use crate::secret::same;
use crate::wire::message::Message as _;
use crate::wire::native::ClientFrame;
use crate::wire::sink::Sink;
use core::fmt;
use heapless::{String, Vec};
use hmac_sha256::HMAC;

/// Length in bytes of a nonce, of a proof, and of the binding to a channel.
pub const PROOF_BYTES: usize = 32;
/// Shortest secret of a token, in bytes: 128 bits in hexadecimal digits.
pub const SECRET_BYTES_MIN: usize = 32;
/// Longest secret of a token, in bytes.
pub const SECRET_BYTES_MAX: usize = 256;
/// Longest name of a token, in bytes.
pub const TOKEN_NAME_BYTES_MAX: usize = 64;
/// Name of a token that was written without one.
pub const TOKEN_NAME_DEFAULT: &str = "default";

/// 32 random bytes, a proof, or the binding to a channel.
pub type Bytes32 = [u8; PROOF_BYTES];

/// Name of a token. It is not a secret.
pub type TokenName = String<TOKEN_NAME_BYTES_MAX>;

/// Secret of a token, prepared for proofs. It is never shown.
#[derive(Clone)]
pub struct TokenKey(HMAC);

opaque_debug!(TokenKey);

/// What a proof covers besides the HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Random bytes of the client.
    pub client: Bytes32,
    /// Random bytes of the server.
    pub server: Bytes32,
    /// Binding to an encrypted channel; zeros without one.
    pub channel: Bytes32,
}

/// End of a connection that proves the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prover {
    /// The client. It proves first.
    Client,
    /// The server.
    Server,
}

impl Prover {
    const fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Client => b"rdzv-auth-client",
            Self::Server => b"rdzv-auth-server",
        }
    }
}

/// Sink whose bytes are part of a proof.
struct Proven<'m>(&'m mut HMAC);

impl Sink for Proven<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

impl TokenKey {
    /// Prepares a secret.
    pub fn new(secret: &[u8]) -> Self {
        Self(HMAC::new(secret))
    }

    fn mac(&self, prover: Prover, exchange: &Exchange, hello: &ClientFrame<'_>) -> HMAC {
        let mut mac = self.0.clone();
        mac.update(prover.label());
        for part in [&exchange.client, &exchange.server, &exchange.channel] {
            mac.update(part);
        }
        hello.write_body(&mut Proven(&mut mac));
        mac
    }

    /// Returns the proof of one end. `hello` is the second HELLO of the connection: with zeros in place of the proof for
    /// the client's, and with the client's proof for the server's.
    pub fn proof(&self, prover: Prover, exchange: &Exchange, hello: &ClientFrame<'_>) -> Bytes32 {
        self.mac(prover, exchange, hello).finalize()
    }

    /// Returns whether `proof` is what [`TokenKey::proof`] returns, in constant time.
    pub fn accepts(
        &self,
        prover: Prover,
        exchange: &Exchange,
        hello: &ClientFrame<'_>,
        proof: &Bytes32,
    ) -> bool {
        same(&self.mac(prover, exchange, hello).finalize(), proof)
    }
}

/// Stage of the exchange, which the field `auth` of a HELLO names first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client's nonce.
    Offer,
    /// The client's proof.
    Proof,
}

/// Longest field `auth` of a HELLO, in bytes.
pub const FIELD_BYTES_MAX: usize = 1 + PROOF_BYTES + TOKEN_NAME_BYTES_MAX;

/// Encoded field `auth` of a HELLO.
pub type FieldBytes = Vec<u8, FIELD_BYTES_MAX>;

/// Field `auth` of a HELLO with credentials: a byte for the step, 32 bytes, and the name of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthField<'a> {
    /// Stage of the exchange.
    pub step: Step,
    /// Nonce or proof.
    pub bytes: Bytes32,
    /// Name of the token.
    pub token: &'a [u8],
}

impl<'a> AuthField<'a> {
    /// Parses the field; `None` if it is malformed.
    pub fn parse(field: &'a [u8]) -> Option<Self> {
        let (&step, rest) = field.split_first()?;
        let (bytes, token) = rest.split_first_chunk()?;
        let step = match step {
            1 => Step::Offer,
            2 => Step::Proof,
            _ => return None,
        };
        (token.len() <= TOKEN_NAME_BYTES_MAX).then_some(Self { step, bytes: *bytes, token })
    }

    /// Encodes the field. A name that is too long is cut off.
    pub fn encode(&self) -> FieldBytes {
        let mut field = FieldBytes::new();
        let step = match self.step {
            Step::Offer => 1,
            Step::Proof => 2,
        };
        let name = &self.token[..self.token.len().min(TOKEN_NAME_BYTES_MAX)];
        // invariant: the capacity is the sum of the lengths
        let _ = field.push(step);
        let _ = field.extend_from_slice(&self.bytes);
        let _ = field.extend_from_slice(name);
        field
    }
}

/// Error in the text of a token. It never quotes the text, which may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is no token.
    #[error("there is no token in it; a line is `SECRET`, or `NAME SECRET RIGHTS…`")]
    Missing,
    /// The name is too long or has other characters than letters, digits, `.`, `_` and `-`.
    #[error("the name of a token has 1 to {TOKEN_NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`")]
    Name,
    /// The secret is too short or too long.
    #[error(
        "the secret has {0} bytes, and must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; `openssl rand -hex 32` makes one"
    )]
    Secret(usize),
}

/// A token as a line of a token file has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenLine<'t> {
    /// Its name.
    pub name: &'t str,
    /// Its secret.
    pub secret: &'t str,
    /// The words after the secret; `None` for a secret that stands alone.
    pub rights: Option<&'t str>,
}

opaque_debug!(TokenLine<'_>);

impl<'t> TokenLine<'t> {
    /// Parses a line; `None` for an empty one and for a comment (`#`).
    ///
    /// # Errors
    /// The error in the line.
    pub fn parse(line: &'t str) -> Result<Option<Self>, TokenError> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (name, secret, rights) = match line.split_once(char::is_whitespace) {
            None => (TOKEN_NAME_DEFAULT, line, None),
            Some((name, rest)) => {
                let (secret, rights) =
                    rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim_start(), ""));
                (name, secret, Some(rights.trim_start()))
            }
        };
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.len() > TOKEN_NAME_BYTES_MAX || !name.bytes().all(is_legal) {
            return Err(TokenError::Name);
        }
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Err(TokenError::Secret(secret.len()));
        }
        Ok(Some(Self { name, secret, rights }))
    }
}

/// What a client shows: the name of a token, and its secret.
#[derive(Clone)]
pub struct Credentials {
    name: TokenName,
    key: TokenKey,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.name)
    }
}

impl Credentials {
    /// Takes the first token of a token file.
    ///
    /// # Errors
    /// The error in its line, or that there is none.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let line = text.lines().find_map(|line| TokenLine::parse(line).transpose());
        let line = line.unwrap_or(Err(TokenError::Missing))?;
        let name = TokenName::try_from(line.name).map_err(|_| TokenError::Name)?;
        Ok(Self { name, key: TokenKey::new(line.secret.as_bytes()) })
    }
}

/// Stage of a client's exchange on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client has sent its nonce, or is about to.
    Offered,
    /// The server has sent its nonce, and the client has sent its proof or is about to.
    Challenged,
    /// The server has proven that it knows the token.
    Proven,
}

/// Client side of the exchange.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    credentials: Credentials,
    exchange: Exchange,
    stage: Stage,
    /// Field `auth` of the last HELLO.
    field: FieldBytes,
    /// The right proof of the server.
    expected: Bytes32,
}

impl ClientAuth {
    /// Creates the exchange of a client without a connection.
    pub const fn new(credentials: Credentials) -> Self {
        let exchange = Exchange { client: [0; 32], server: [0; 32], channel: [0; 32] };
        Self { credentials, exchange, stage: Stage::Offered, field: FieldBytes::new(), expected: [0; 32] }
    }

    /// Begins the exchange on a new connection, with fresh random bytes. Returns the field `auth` of the first HELLO.
    pub fn offer(&mut self, nonce: Bytes32) -> &[u8] {
        self.exchange = Exchange { client: nonce, ..Exchange::default() };
        self.stage = Stage::Offered;
        self.field = self.encode(Step::Offer, nonce);
        &self.field
    }

    /// Notes the server's nonce. Returns whether the client now has to send its proof.
    pub fn challenged(&mut self, nonce: Bytes32) -> bool {
        let is_due = self.stage == Stage::Offered;
        if is_due {
            (self.exchange.server, self.stage) = (nonce, Stage::Challenged);
        }
        is_due
    }

    /// Returns the field `auth` of the second HELLO, which proves the token. `hello` is that HELLO without the field, and
    /// `channel` is the binding to an encrypted channel, or zeros.
    pub fn prove(&mut self, hello: &ClientFrame<'_>, channel: Bytes32) -> &[u8] {
        self.exchange.channel = channel;
        let Credentials { key, .. } = &self.credentials;
        let unproven = self.encode(Step::Proof, [0; 32]);
        let proof = key.proof(Prover::Client, &self.exchange, &hello.with_auth(&unproven));
        let field = self.encode(Step::Proof, proof);
        self.expected = key.proof(Prover::Server, &self.exchange, &hello.with_auth(&field));
        self.field = field;
        &self.field
    }

    /// Checks the server's proof. Returns whether it is right.
    pub fn proven(&mut self, proof: &Bytes32) -> bool {
        let is_right = self.stage == Stage::Challenged && same(&self.expected, proof);
        if is_right {
            self.stage = Stage::Proven;
        }
        is_right
    }

    /// Returns whether the server has proven on this connection that it knows the token.
    pub fn is_proven(&self) -> bool {
        self.stage == Stage::Proven
    }

    fn encode(&self, step: Step, bytes: Bytes32) -> FieldBytes {
        AuthField { step, bytes, token: self.credentials.name.as_bytes() }.encode()
    }
}

#[cfg(test)]
mod tests;
