//! Greeting of a process: the token that it proves, and impostors that do not know it.

use super::super::super::host::Security;
use super::super::super::tokens;
use super::Process;
use crate::frames;
use crate::sim::world::SimContext;
use rendezvous_core::auth::Credentials;
use rendezvous_core::wire::native::{FaultCode, Label, ServerFrame};

/// One connection in so many reaches an impostor during the storm.
const IMPOSTORS: u32 = 16;

impl Process {
    /// Reads the token file of the host for a new connection, as the driver does.
    pub(super) fn read_token(&mut self, context: &SimContext) {
        self.connections += 1;
        self.is_deceived = false;
        let Some(files) = &context.token_files else { return };
        self.token = files.of_host(self.token_kind, (self.host, self.number), context.now);
        if let Some(token) = &self.token {
            self.machine.set_credentials(Credentials::parse(token).expect("a token"));
        }
    }

    /// Returns whether the server may refuse the session with this code because of the token: it does not accept the one of
    /// the connection, or the session was opened with another one.
    pub(in crate::sim::elastic) fn may_be_refused(&self, context: &SimContext, code: FaultCode) -> bool {
        let Some(files) = &context.token_files else { return false };
        let name = |token: &Option<String>| token.as_deref().map(tokens::name_of).map(str::to_owned);
        match code {
            FaultCode::Unauthenticated => {
                !self.token.as_ref().is_some_and(|token| files.accepts(token, context.now))
            }
            FaultCode::SessionForged => self.is_resumable && name(&self.token) != name(&self.session_token),
            _ => false,
        }
    }

    /// Returns whether the peer of the connection is not the server.
    pub(in crate::sim::elastic) const fn is_deceived(&self) -> bool {
        self.is_deceived
    }

    /// Delivers the answers of an impostor that has the server's address, and does not know the token. It sends its proof
    /// together with its challenge, or after the client's proof. The client must leave it and send no request.
    pub(super) fn meet_impostor(&mut self, context: &mut SimContext) {
        let is_there = (self.number + self.connections).is_multiple_of(IMPOSTORS) && context.stormy;
        if !is_there || self.security == Security::Tls || self.token.is_none() {
            return;
        }
        context.note(format_args!("{} meets an impostor", self.name));
        self.is_deceived = true;
        let now = self.clock.shows(context.now);
        self.write(now);
        let frame = |frame| frames::native(Label::default(), &frame);
        self.receive(context, &frame(ServerFrame::Challenge { nonce: [1; 32] }));
        if self.host.is_multiple_of(2) {
            self.write(now);
        }
        self.receive(context, &frame(ServerFrame::Proof { proof: [0; 32] }));
        let session = self.identity().session;
        self.receive(
            context,
            &frame(ServerFrame::Welcome {
                version: 1,
                incarnation: 1,
                session: session.max(1),
                token: [1; 16],
                resumed: session != 0,
                request_last: 0,
                grace_ms: 0,
                heartbeat_ms: 1000,
                heartbeats_missed_max: 3,
                window_frames: 64,
                window_bytes: 1 << 16,
                key_bytes_max: 1 << 10,
                value_bytes_max: 1 << 20,
                list_max: 1 << 10,
                frame_bytes_max: 1 << 20,
            }),
        );
    }
}
