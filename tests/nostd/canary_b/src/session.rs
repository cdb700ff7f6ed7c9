//! Sessions at their server, and what the engine has for them.

use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{EngineLimits, HistoryLimits, SessionLimits};
use rendezvous_core::session::table::{Hello, Input, Outcome, Output, Sessions};
use rendezvous_core::store::engine::{Engine, Watched};
use rendezvous_core::store::op::{Key, Keys};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::ServerFrame;
use rendezvous_core::wire::sink::Length;

pub(crate) fn sings() -> bool {
    opens() == Some(true) && watches() == Some(true)
}

fn opens() -> Option<bool> {
    let mut sessions = Sessions::new(SessionLimits::default(), 7);
    let conn = ConnId { index: 0, generation: 0 };
    let hello = Hello {
        incarnation: 0,
        session: 0,
        token: [0; 16],
        received: 0,
        grace_ms: 1000,
        heartbeat_ms: 1000,
        heartbeats_missed_max: 3,
        node: b"n0",
    };
    sessions.handle(Instant::ORIGIN, Input::Hello { conn, hello, fresh_token: [1; 16] }).ok()?;
    let welcomed = matches!(sessions.poll_output(), Some(Output::Welcome { resumed: false, .. }));
    let Ok(Outcome::Fresh(session)) = sessions.request(Instant::ORIGIN, conn, 1, 0) else { return None };
    let mut length = Length::default();
    let sent = sessions.answer(session, 1, &ServerFrame::Done { revision: 1 }, &mut length);
    Some(welcomed && sent == Ok(Some(conn)) && length.0 == 32)
}

fn watches() -> Option<bool> {
    let mut engine = Engine::new(EngineLimits::default(), 1);
    engine.start_history(HistoryLimits::default());
    let watch = engine.watch(Watched::Prefix(b"/"), 0).ok()?;
    let key = Key::raw(b"/k");
    let lease = engine.lease_grant(Instant::ORIGIN, Some(Duration::ZERO)).ok()?;
    engine.lease_attach(lease, Keys::one(key)).ok()?;
    let then = [Write::Set { key, value: b"v" }];
    let absent = [Compare { key, condition: Condition::Absent }];
    engine.txn(absent.into_iter(), then.into_iter(), core::iter::empty()).ok()?;
    let mut leased = engine.lease_end(engine.lease_expired(Instant::ORIGIN)?).ok()?;
    let expired = leased.lease == lease && engine.remove_leased(&mut leased, 10).is_some();
    Some(expired && engine.next_ready_watch() == Some(watch) && engine.undelivered(watch).ok()?.count() == 2)
}
