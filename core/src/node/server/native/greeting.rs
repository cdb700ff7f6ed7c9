//! Greeting of native clients: their tokens, and what their sessions may do.

use super::rounds::run_of_key;
use super::{Native, RequestId, ServerContext};
use crate::access::{AuthToken, Denied, Rights};
use crate::ids::ConnId;
use crate::node::server::conns::{Conn, Greeting, Protocol};
use crate::node::server::event::CloseReason;
use crate::prelude::*;
use crate::session::table::{Hello, Input, SessionId};
use crate::wire::native::{ClientFrame, Fault, FaultCode, List, ServerFrame, SessionEntry, Why};
use core::cell::Cell;

/// Most sessions in one answer.
const SESSIONS_MAX: usize = 1024;

/// Numbers that an error Unauthenticated carries.
const NO_TOKEN: u64 = 1;
const WRONG_TOKEN: u64 = 2;
const NOT_ASKED: u64 = 3;

/// What became of a HELLO.
pub(super) enum Authenticated {
    /// The client may open its session: with this token, or without one if the server asks for none.
    As(Option<Arc<AuthToken>>),
    /// The client was asked to prove its token.
    Challenged,
}

/// Checks whether the holder of a token may make a request. The pair is what [`run_of_key`] needs to find the run of a key.
/// Adds the number of keys that it compared with the token's rights to `keys`.
pub(super) fn may<'k>(
    token: &AuthToken,
    (after_run_id, run_id_bytes_max): (&[u8; 18], usize),
    frame: &ClientFrame<'k>,
    keys: &Cell<u64>,
) -> Result<(), Denied<'k>> {
    token.rights.check(frame, &|key| {
        keys.set(keys.get() + 1);
        run_of_key(after_run_id, run_id_bytes_max, key)
    })
}

impl Native {
    /// Decides whether the client of a HELLO may open a session.
    pub(super) fn authenticate(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        hello: &ClientFrame<'_>,
    ) -> Result<Authenticated, Fault<'static>> {
        let refused = |why| Fault::new(FaultCode::Unauthenticated, why, 0);
        let ClientFrame::Hello { auth, .. } = *hello else { return Err(refused(NO_TOKEN)) };
        let Some(Conn { protocol: Protocol::Native(greeting), channel, .. }) = context.conns.at(conn) else {
            return Err(refused(NO_TOKEN));
        };
        if let Greeting::Challenged(challenge) = core::mem::replace(greeting, Greeting::Awaited) {
            let channel = channel.as_deref().copied().unwrap_or_default();
            let tokens = context.access.tokens.as_ref();
            let (token, proof) = tokens
                .and_then(|tokens| challenge.verify(tokens, hello, channel))
                .ok_or(refused(WRONG_TOKEN))?;
            self.send_unnumbered(context, conn, &ServerFrame::Proof { proof });
            return Ok(Authenticated::As(Some(token)));
        }
        let Some(tokens) = &context.access.tokens else {
            return if auth.is_empty() { Ok(Authenticated::As(None)) } else { Err(refused(NOT_ASKED)) };
        };
        let nonce = self.instance.nonce(self.opened_total);
        let challenge = tokens.challenge(auth, nonce).ok_or(refused(NO_TOKEN))?;
        *greeting = Greeting::Challenged(Box::new(challenge));
        self.send_unnumbered(context, conn, &ServerFrame::Challenge { nonce });
        Ok(Authenticated::Challenged)
    }

    /// Opens or resumes the session of a client that may have one.
    pub(super) fn greet(
        &mut self,
        context: &mut ServerContext<'_>,
        conn: ConnId,
        (received, frame): (u64, &ClientFrame<'_>),
        token: Option<Arc<AuthToken>>,
    ) {
        let ClientFrame::Hello {
            incarnation,
            session,
            token: session_token,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
            ..
        } = *frame
        else {
            return;
        };
        let hello = Hello {
            incarnation,
            session,
            token: session_token,
            received,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
        };
        let name_of = |token: &Arc<AuthToken>| token.name.clone();
        // A session of an earlier server, which may have had the number of one that is open, is not known here.
        let is_known = incarnation == self.instance.incarnation;
        let known = SessionId(session);
        let is_open = is_known && self.sessions.node_of(known).is_some();
        let before = self.tokens.get(known);
        // What the session waits for, watches and takes part in was granted with its earlier rights.
        let is_restricted =
            before.zip(token.as_ref()).is_some_and(|(before, now)| !now.rights.include(&before.rights));
        if is_open && before.map(name_of) != token.as_ref().map(name_of) {
            let fault = Fault::new(FaultCode::SessionForged, 0, 0);
            self.send_unnumbered(context, conn, &ServerFrame::Error { fault });
            self.to_close.push_back((conn, CloseReason::SessionRefused(fault.code)));
            return;
        }
        if is_open && is_restricted && self.sessions.has_token(known, &session_token) {
            self.expel(context, known, Why::EndedByAdmin);
        }
        let fresh_token = self.instance.token(self.opened_total);
        // A connection opens one session only: the caller has checked that it has none.
        let _ = self.sessions.handle(context.now, Input::Hello { conn, hello, fresh_token });
        if let (Some(session), Some(token)) = (self.sessions.of(conn), token) {
            self.tokens.insert(session, token);
        }
    }

    /// Checks whether a session may make a request.
    pub(super) fn check_rights<'k>(
        &self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        frame: &ClientFrame<'k>,
    ) -> Result<(), Denied<'k>> {
        let Some(token) = self.tokens.get(session) else { return Ok(()) };
        let keys = Cell::new(0);
        let run_keys = (&self.after_run_id, self.rendezvous.limits().run_id_bytes_max);
        let allowed = may(token, run_keys, frame, &keys);
        context.budget.subtract(keys.get());
        allowed
    }

    /// Returns whether a session may act on what belongs to others.
    pub(super) fn is_admin(&self, session: SessionId) -> bool {
        self.tokens.get(session).is_some_and(|token| token.rights == Rights::All)
    }

    pub(super) fn list_sessions(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        after: u64,
        count_max: u32,
    ) {
        let count_max = SESSIONS_MAX.min(count_max as usize);
        let mut found: Vec<_> = self.sessions.following(SessionId(after)).take(count_max + 1).collect();
        let more = found.len() > count_max;
        found.truncate(count_max);
        context.budget.subtract(found.len() as u64);
        let token_of = |session| self.tokens.get(session).map_or(&b""[..], |token| token.name.as_bytes());
        let entries: Vec<_> = found
            .into_iter()
            .map(|(session, node, is_connected)| {
                let (token, node) = (token_of(session).to_vec(), node.to_vec());
                (session.0, is_connected, token, node)
            })
            .collect();
        let sessions: Vec<_> = entries
            .iter()
            .map(|(session, is_connected, token, node)| SessionEntry {
                session: *session,
                is_connected: *is_connected,
                token,
                node,
            })
            .collect();
        self.answer(context, request, &ServerFrame::SessionList { more, sessions: List::new(&sessions) });
    }
}
