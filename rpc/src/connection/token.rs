//! Proof that both ends of a connection know the same token, without sending it (docs/protocol/rpc.md, section 8).
//!
//! Each end contributes a nonce, and proves the token with an HMAC over both nonces, the channel and the Hello. The caller
//! goes first, and sends no call before the callee's proof.

use crate::name::WorkerInfo;
use crate::wire::{CallerFrame, VERSION_MAX, VERSION_MIN};
use rendezvous_core::peer_tokens::PeerTokens;
use rendezvous_core::proof::{Bytes32, Exchange, Prover};

/// Versions of a caller.
pub(super) const VERSIONS: (u16, u16) = (VERSION_MIN, VERSION_MAX);
/// Answer to a challenge without a token.
pub(super) const NO_PROOF: CallerFrame<'_> =
    CallerFrame::Proof { token: b"", nonce: [0; 32], proof: [0; 32] };

/// Tokens of a worker, and what the worker contributes to the proofs on one connection. It calls with the first one, and
/// accepts each: callers may have the next one already, or still the last one.
#[derive(Clone, Debug)]
pub struct TokenExchange {
    tokens: PeerTokens,
    nonce: Bytes32,
    exchange: Exchange,
    stage: Stage,
}

/// Stage of the calling end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    /// It has sent its proof.
    Challenged,
    /// The callee has proven the token, too.
    Proven,
}

impl TokenExchange {
    /// Begins the proofs on a new connection with fresh random bytes.
    pub const fn new(tokens: PeerTokens, nonce: Bytes32) -> Self {
        let exchange = Exchange { client: [0; 32], server: [0; 32], channel: [0; 32] };
        Self { tokens, nonce, exchange, stage: Stage::Begun }
    }

    /// Sets the binding to an encrypted channel.
    pub(super) const fn bind(&mut self, channel: Bytes32) {
        self.exchange.channel = channel;
    }

    /// Random bytes of this end.
    pub(super) const fn nonce(&self) -> Bytes32 {
        self.nonce
    }

    /// Calling end: returns the frame that answers the challenge.
    pub(super) fn challenged(&mut self, nonce: Bytes32, hello: &CallerFrame<'_>) -> CallerFrame<'_> {
        self.stage = Stage::Challenged;
        (self.exchange.client, self.exchange.server) = (self.nonce, nonce);
        let token = self.tokens.first();
        let proof = token.key().proof(Prover::Caller, &self.exchange, hello);
        CallerFrame::Proof { token: token.name(), nonce: self.nonce, proof }
    }

    /// Calling end: checks the callee's proof. Returns whether it is right.
    pub(super) fn proven(&mut self, proof: &Bytes32, hello: &CallerFrame<'_>) -> bool {
        let is_right = self.stage == Stage::Challenged
            && self.tokens.first().key().accepts(Prover::Callee, &self.exchange, hello, proof);
        if is_right {
            self.stage = Stage::Proven;
        }
        is_right
    }

    /// Calling end: whether the callee has proven the token.
    pub(super) fn is_proven(&self) -> bool {
        self.stage == Stage::Proven
    }

    /// Called end: checks the caller's proof of the token with this name. Returns that of this end if it is right.
    pub(super) fn verify(
        &mut self,
        (name, nonce, proof): (&[u8], Bytes32, &Bytes32),
        hello: &CallerFrame<'_>,
    ) -> Option<Bytes32> {
        (self.exchange.client, self.exchange.server) = (nonce, self.nonce);
        let known = self.tokens.find(name);
        // An unknown name takes as long as a wrong secret.
        let key = known.unwrap_or_else(|| self.tokens.first()).key();
        let is_right = key.accepts(Prover::Caller, &self.exchange, hello, proof) && known.is_some();
        is_right.then(|| key.proof(Prover::Callee, &self.exchange, hello))
    }
}

/// Returns the Hello of one worker to another.
pub(super) fn hello<'a>(
    (version_min, version_max): (u16, u16),
    group: &'a [u8],
    caller: &'a WorkerInfo,
    callee: &'a WorkerInfo,
) -> CallerFrame<'a> {
    CallerFrame::Hello {
        version_min,
        version_max,
        group,
        caller: caller.name.as_bytes(),
        caller_id: caller.id,
        callee: callee.name.as_bytes(),
        callee_id: callee.id,
    }
}

#[cfg(test)]
mod tests;
