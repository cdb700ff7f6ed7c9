//! Greeting of a client: its HELLO, and the proofs of its token.

use super::NativeClient;
use crate::auth::{Bytes32, ClientAuth, Credentials};
use crate::session::client::{Identity, SessionOptions};
use crate::time::Instant;
use crate::wire::native::{ClientFrame, ServerFrame, VERSION_MAX, VERSION_MIN};

/// What a frame from the server means for the proofs.
pub(super) enum Authenticated {
    /// Nothing: it is handled as if there were no tokens.
    NotConcerned,
    /// It was part of the proofs.
    Handled,
    /// The server has not proven that it knows the token. The session is over.
    Over,
}

impl<const PENDING: usize> NativeClient<PENDING> {
    /// Sets the token that the client proves on the connections that it opens from now on. The server must prove the same
    /// one: without that, the session ends and no request is sent.
    pub fn set_credentials(&mut self, credentials: Credentials) {
        self.session.wait_for_welcome();
        self.auth = Some(ClientAuth::new(credentials));
    }

    /// Returns HELLO for a node with this name. `nonce` are fresh random bytes.
    pub fn hello<'a>(&'a mut self, identity: Identity, node: &'a [u8], nonce: Bytes32) -> ClientFrame<'a> {
        let hello = hello_of(self.session.options(), identity, node);
        match &mut self.auth {
            Some(auth) => hello.with_auth(auth.offer(nonce)),
            None => hello,
        }
    }

    /// Returns the second HELLO, which proves the token. `channel` is the binding to an encrypted channel, or zeros.
    pub fn proof<'a>(&'a mut self, identity: Identity, node: &'a [u8], channel: Bytes32) -> ClientFrame<'a> {
        let hello = hello_of(self.session.options(), identity, node);
        match &mut self.auth {
            Some(auth) => hello.with_auth(auth.prove(&hello, channel)),
            None => hello,
        }
    }

    /// Checks that the server's frames come in the order of the proofs.
    pub(super) fn authenticate(&mut self, now: Instant, frame: &ServerFrame<'_>) -> Authenticated {
        let Some(auth) = &mut self.auth else { return Authenticated::NotConcerned };
        let is_as_due = match frame {
            ServerFrame::Challenge { nonce } => auth.challenged(*nonce),
            ServerFrame::Proof { proof } => auth.proven(proof),
            ServerFrame::Welcome { .. } => auth.is_proven(),
            _ => return Authenticated::NotConcerned,
        };
        match frame {
            _ if !is_as_due => return Authenticated::Over,
            ServerFrame::Welcome { .. } => return Authenticated::NotConcerned,
            ServerFrame::Challenge { .. } => {
                self.opening = Some(self.session.hello_again());
                self.is_proof_due = true;
            }
            _ => {}
        }
        self.session.note_received(now);
        Authenticated::Handled
    }
}

/// Returns HELLO without credentials.
const fn hello_of<'a>(options: &SessionOptions, identity: Identity, node: &'a [u8]) -> ClientFrame<'a> {
    let SessionOptions { grace_ms, heartbeat_ms, heartbeats_missed_max } = *options;
    let Identity { incarnation, session, token } = identity;
    ClientFrame::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        incarnation,
        session,
        token,
        grace_ms,
        heartbeat_ms,
        heartbeats_missed_max,
        node,
        auth: b"",
    }
}
