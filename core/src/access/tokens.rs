//! Tokens of a server, and its side of the proof.

use super::rights::{Rights, RightsError};
use crate::auth::{AuthField, Bytes32, Credentials, Exchange, Prover, Step, TokenError, TokenKey, TokenLine};
use crate::peer_tokens::PeerTokens;
use crate::prelude::*;
use crate::wire::native::ClientFrame;

/// A token that the server accepts.
#[derive(Debug)]
pub struct AuthToken {
    /// Its name, for logs.
    pub name: String,
    /// What its holder may do.
    pub rights: Rights,
    key: TokenKey,
}

/// Tokens of a server have different names.
impl PartialEq for AuthToken {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for AuthToken {}

/// All tokens of a server.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<[Arc<AuthToken>]>);

/// Error in a token file. It never quotes a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokensError {
    /// There is no token.
    #[error("there is no token in it; a line is `SECRET`, or `NAME SECRET RIGHTS…`")]
    Empty,
    /// A line is not a token.
    #[error("line {line}: {error}")]
    Token {
        /// Number of the line, from 1.
        line: usize,
        /// The error.
        error: TokenError,
    },
    /// A line has rights that do not exist, or none.
    #[error("line {line}: {error}")]
    Rights {
        /// Number of the line, from 1.
        line: usize,
        /// The error.
        error: RightsError,
    },
    /// Two tokens have the same name.
    #[error("line {line}: another token is called {name}")]
    Twice {
        /// Number of the second line, from 1.
        line: usize,
        /// The name of both.
        name: String,
    },
}

impl Tokens {
    /// Parses a token file: a token in each line. A secret that stands alone has all rights.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let token = |line, TokenLine { name, secret, rights }: TokenLine<'_>| {
            let rights = rights.map_or(Ok(Rights::All), Rights::parse);
            let rights = rights.map_err(|error| TokensError::Rights { line, error })?;
            let key = TokenKey::new(secret.as_bytes());
            Ok(Arc::new(AuthToken { name: name.into(), rights, key }))
        };
        parse_lines(text, token).map(Self)
    }

    /// Returns the number of tokens.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Answers the `auth` of a first HELLO with the server's nonce. Returns `None` if the field offers nothing.
    ///
    /// A name that the server does not know is not refused yet, and its proof is checked with another key, so that names
    /// cannot be tried out more cheaply than secrets.
    pub fn challenge(&self, field: &[u8], nonce: Bytes32) -> Option<Challenge> {
        let AuthField { step: Step::Offer, bytes, token } = AuthField::parse(field)? else { return None };
        let known = self.find(token);
        let (is_known, token) = (known.is_some(), Arc::clone(known.unwrap_or(&self.0[0])));
        Some(Challenge {
            token,
            is_known,
            exchange: Exchange { client: bytes, server: nonce, ..Exchange::default() },
        })
    }

    fn find(&self, name: &[u8]) -> Option<&Arc<AuthToken>> {
        self.0.iter().find(|token| token.name.as_bytes() == name)
    }
}

impl PeerTokens {
    /// Parses a token file: a token in each line, whose rights are not read.
    ///
    /// # Errors
    /// The first error in the text.
    pub fn parse(text: &str) -> Result<Self, TokensError> {
        let token = |line, token: TokenLine<'_>| {
            Credentials::try_from(token).map_err(|error| TokensError::Token { line, error })
        };
        parse_lines(text, token).map(Self)
    }
}

/// Converts each token of a file. Their names differ, and there is at least one.
fn parse_lines<T>(
    text: &str,
    convert: impl Fn(usize, TokenLine<'_>) -> Result<T, TokensError>,
) -> Result<Arc<[T]>, TokensError> {
    let (mut names, mut tokens) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let token = TokenLine::parse(text).map_err(|error| TokensError::Token { line, error })?;
        let Some(token) = token else { continue };
        if names.contains(&token.name) {
            return Err(TokensError::Twice { line, name: token.name.into() });
        }
        names.push(token.name);
        tokens.push(convert(line, token)?);
    }
    if tokens.is_empty() { Err(TokensError::Empty) } else { Ok(tokens.into()) }
}

/// Exchange of a connection whose client has not proven its token yet.
#[derive(Debug)]
pub struct Challenge {
    /// The token that the client has named, or any if there is none with this name.
    token: Arc<AuthToken>,
    is_known: bool,
    exchange: Exchange,
}

impl Challenge {
    /// Checks the proof in a second HELLO, which arrived through the encrypted channel with this binding, or zeros. The
    /// server has these tokens by now: a token that was removed after the first HELLO proves nothing, and one that was
    /// replaced has its present rights. Returns the client's token, and the server's proof.
    pub fn verify(
        self,
        tokens: &Tokens,
        hello: &ClientFrame<'_>,
        channel: Bytes32,
    ) -> Option<(Arc<AuthToken>, Bytes32)> {
        let exchange = Exchange { channel, ..self.exchange };
        let ClientFrame::Hello { auth, .. } = *hello else { return None };
        let AuthField { step: Step::Proof, bytes, token: name } = AuthField::parse(auth)? else {
            return None;
        };
        let current = tokens.find(self.token.name.as_bytes()).filter(|_| self.is_known);
        let (is_known, token) = (current.is_some(), current.unwrap_or(&self.token));
        let unproven = AuthField { step: Step::Proof, bytes: [0; 32], token: name }.encode();
        let is_right = token.key.accepts(Prover::Client, &exchange, &hello.with_auth(&unproven), &bytes);
        // Looked at last, so that a wrong name takes as long as a wrong secret.
        let is_right = is_right && is_known && token.name.as_bytes() == name;
        let proof = is_right.then(|| token.key.proof(Prover::Server, &exchange, hello))?;
        Some((Arc::clone(token), proof))
    }
}

#[cfg(test)]
mod tests;
