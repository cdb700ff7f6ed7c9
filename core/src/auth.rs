//! Proof that both ends of a connection know the same token, without sending it (docs/protocol/native.md, section 4.6).
//!
//! Each end contributes a nonce, and proves the token with an HMAC-SHA-256 over both nonces, the channel and the HELLO.
//! The client goes first. It holds its requests back until the server has proven the token, too.

pub use crate::proof::{
    Bytes32, Credentials, Exchange, PROOF_BYTES, Prover, TOKEN_NAME_BYTES_MAX, TokenError, TokenKey,
    TokenLine,
};

use crate::secret::same;
use crate::wire::native::ClientFrame;
use heapless::Vec;

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

/// Stage of a client's exchange on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The client has sent its nonce, or is about to.
    Offered,
    /// The server has sent its nonce, and the client is about to send its proof. No proof of the server can be right yet.
    Challenged,
    /// The client has sent its proof.
    Proving,
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

    /// Forgets the proofs of an earlier connection.
    pub const fn restart(&mut self) {
        self.stage = Stage::Offered;
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
        let key = self.credentials.key();
        let unproven = self.encode(Step::Proof, [0; 32]);
        let proof = key.proof(Prover::Client, &self.exchange, &hello.with_auth(&unproven));
        let field = self.encode(Step::Proof, proof);
        self.expected = key.proof(Prover::Server, &self.exchange, &hello.with_auth(&field));
        (self.field, self.stage) = (field, Stage::Proving);
        &self.field
    }

    /// Checks the server's proof. Returns whether it is right.
    pub fn proven(&mut self, proof: &Bytes32) -> bool {
        let is_right = self.stage == Stage::Proving && same(&self.expected, proof);
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
        AuthField { step, bytes, token: self.credentials.name() }.encode()
    }
}

#[cfg(test)]
mod tests;
