//! Who may use a server, and for what: tokens with rights, and the networks from which c10d clients are served, whose
//! protocol has no place for a token.

mod network;
mod rights;
mod tokens;

pub use network::{Network, NetworkError};
pub use rights::{Denied, Right, Rights, RightsError};
pub use tokens::{AuthToken, Challenge, Tokens, TokensError};

use crate::prelude::*;
use core::net::IpAddr;

/// Rules of a server. The default serves every client.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Tokens of native clients; `None`: none is asked for.
    pub tokens: Option<Tokens>,
    /// Whether native clients need a certificate of a trusted CA.
    pub requires_certificates: bool,
    /// Networks from which c10d clients are served, which can prove neither; `None`: all if native clients need not
    /// authenticate themselves, and else none.
    pub c10d_from: Option<Box<[Network]>>,
}

impl Access {
    /// Returns whether native clients must authenticate themselves.
    pub const fn authenticates(&self) -> bool {
        self.tokens.is_some() || self.requires_certificates
    }

    /// Returns whether all c10d clients that can reach a listener at this address are served.
    pub fn allows_all_c10d(&self, listener: IpAddr) -> bool {
        let all = |networks: &[Network]| networks.iter().any(|network| network.has_all_clients_of(listener));
        self.c10d_from.as_deref().map_or(!self.authenticates(), all)
    }

    /// Returns whether c10d clients at this address are served.
    pub fn allows_c10d(&self, peer: IpAddr) -> bool {
        match &self.c10d_from {
            Some(networks) => networks.iter().any(|network| network.contains(peer)),
            None => !self.authenticates(),
        }
    }
}
