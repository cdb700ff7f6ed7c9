//! Tokens that peers prove to each other: several, so that they can be rotated.

use crate::prelude::*;
use crate::proof::Credentials;

/// All tokens of a file without their rights. The first is for proofs of this process, and each is accepted from peers.
/// `access` parses them.
#[derive(Clone, Debug)]
pub struct PeerTokens(pub(crate) Arc<[Credentials]>);

impl PeerTokens {
    /// Returns the first token.
    pub fn first(&self) -> &Credentials {
        &self.0[0]
    }

    /// Returns the token with this name.
    pub fn find(&self, name: &[u8]) -> Option<&Credentials> {
        self.0.iter().find(|token| token.name() == name)
    }
}
