//! Greeting of a client: its HELLO, and the proofs of its token.

use super::NativeClient;
use super::event::{Output, Taken};
use crate::auth::{Bytes32, ClientAuth, Credentials};
use crate::error::Cause;
use crate::session::client::{End, Identity, SessionOptions};
use crate::session::life::ClientState;
use crate::time::Instant;
use crate::wire::native::{
    ClientFrame, FaultCode, GREETING_BYTES_MAX, Header, ServerFrame, VERSION_MAX, VERSION_MIN,
};

/// What a frame from the server means for the proofs.
pub(super) enum Authenticated {
    /// Nothing: it is handled as if there were no tokens.
    NotConcerned,
    /// It was part of the proofs.
    Handled,
    /// The server has not proven that it knows the token. The session, which was never open, is over.
    Refused,
    /// It means nothing from a server that has proven nothing. The connection counts as lost.
    Disconnect,
}

const UNPROVEN: Cause = Cause::State("the server has not proven that it knows the client's token");

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

    /// Checks that the server's frames come in the order of the proofs. `None` is a frame of a later version.
    ///
    /// A server without the token may refuse a client that opens a session. It does not end a session that is resumed:
    /// any process that listens at the address could, in place of the server. A client whose token is no longer valid
    /// is refused all the same.
    pub(super) fn authenticate(
        &mut self,
        now: Instant,
        header: &Header,
        frame: Option<&ServerFrame<'_>>,
    ) -> Authenticated {
        let is_resuming = self.session.state() == ClientState::Resuming;
        let Some(auth) = &mut self.auth else { return Authenticated::NotConcerned };
        let is_proven = auth.is_proven();
        let is_as_due = match frame {
            Some(ServerFrame::Challenge { nonce }) => auth.challenged(*nonce),
            Some(ServerFrame::Proof { proof }) => auth.proven(proof),
            Some(ServerFrame::Welcome { .. }) => is_proven,
            _ if is_proven => return Authenticated::NotConcerned,
            Some(ServerFrame::Error { fault })
                if header.id == 0 && (!is_resuming || is_refusal(fault.code)) =>
            {
                return Authenticated::NotConcerned;
            }
            _ => return Authenticated::Disconnect,
        };
        match frame {
            _ if !is_as_due && is_resuming => return Authenticated::Disconnect,
            _ if !is_as_due => return Authenticated::Refused,
            Some(ServerFrame::Welcome { .. }) => return Authenticated::NotConcerned,
            Some(ServerFrame::Challenge { .. }) => {
                self.opening = Some(self.session.hello_again());
                self.is_proof_due = true;
            }
            _ => {}
        }
        self.session.note_received(now);
        Authenticated::Handled
    }

    /// Returns whether a frame of this length is longer than those before WELCOME.
    pub(super) fn exceeds_greeting(&self, bytes: usize) -> bool {
        bytes > GREETING_BYTES_MAX && self.session.state() != ClientState::Live
    }

    /// Handles bytes that violate the protocol.
    pub(super) fn violation(&mut self, now: Instant) -> Taken<'static> {
        let is_unproven = self.auth.as_ref().is_some_and(|auth| !auth.is_proven());
        if is_unproven && self.session.state() == ClientState::Resuming {
            return self.distrust(now);
        }
        self.session_over(End::Protocol)
    }

    /// Leaves a server that has proven nothing, as if the connection were lost.
    pub(super) fn distrust(&mut self, now: Instant) -> Taken<'static> {
        self.emit(Output::Disconnect);
        self.connection_lost(now, UNPROVEN);
        Taken::Over
    }
}

/// Returns whether a server that does not know the client's token sends this error.
const fn is_refusal(code: FaultCode) -> bool {
    matches!(code, FaultCode::Unauthenticated | FaultCode::VersionUnsupported | FaultCode::TlsRequired)
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
