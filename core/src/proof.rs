//! Tokens, and proofs that a process knows one: an HMAC-SHA-256 over the nonces of both ends, the channel and the Hello of a
//! protocol.

use crate::opaque::opaque_debug;
use crate::secret::same;
use crate::wire::message::Message;
use crate::wire::sink::Sink;
use core::fmt;
use heapless::String;
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
pub struct TokenKey(
    HMAC,
    /// Number of proofs that were computed with the key.
    #[cfg(test)]
    pub(crate) alloc::sync::Arc<core::sync::atomic::AtomicU32>,
);

opaque_debug!(TokenKey);

/// What a proof covers besides the HELLO of its protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Random bytes of the client or caller.
    pub client: Bytes32,
    /// Random bytes of the server or callee.
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
    /// The caller of an RPC group. It proves first.
    Caller,
    /// The callee of an RPC group.
    Callee,
}

impl Prover {
    const fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Client => b"rdzv-auth-client",
            Self::Server => b"rdzv-auth-server",
            Self::Caller => b"rdzv-auth-caller",
            Self::Callee => b"rdzv-auth-callee",
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
        Self(
            HMAC::new(secret),
            #[cfg(test)]
            alloc::sync::Arc::default(),
        )
    }

    fn mac(&self, prover: Prover, exchange: &Exchange, hello: &impl Message) -> HMAC {
        #[cfg(test)]
        self.1.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let mut mac = self.0.clone();
        mac.update(prover.label());
        for part in [&exchange.client, &exchange.server, &exchange.channel] {
            mac.update(part);
        }
        hello.write_body(&mut Proven(&mut mac));
        mac
    }

    /// Returns the proof of one end. `hello` is the HELLO of the connection. In the native protocol it is the second one:
    /// with zeros in place of the proof for the client's, and with the client's proof for the server's.
    pub fn proof(&self, prover: Prover, exchange: &Exchange, hello: &impl Message) -> Bytes32 {
        self.mac(prover, exchange, hello).finalize()
    }

    /// Returns whether `proof` is what [`TokenKey::proof`] returns, in constant time.
    pub fn accepts(
        &self,
        prover: Prover,
        exchange: &Exchange,
        hello: &impl Message,
        proof: &Bytes32,
    ) -> bool {
        same(&self.mac(prover, exchange, hello).finalize(), proof)
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
        line.unwrap_or(Err(TokenError::Missing))?.try_into()
    }

    /// Name of the token.
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Secret of the token.
    pub const fn key(&self) -> &TokenKey {
        &self.key
    }
}

impl TryFrom<TokenLine<'_>> for Credentials {
    type Error = TokenError;

    fn try_from(line: TokenLine<'_>) -> Result<Self, TokenError> {
        let name = TokenName::try_from(line.name).map_err(|_| TokenError::Name)?;
        Ok(Self { name, key: TokenKey::new(line.secret.as_bytes()) })
    }
}

#[cfg(test)]
mod tests;
