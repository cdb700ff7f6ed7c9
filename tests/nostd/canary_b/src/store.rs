//! The engine, alone.

use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::EngineLimits;
use rendezvous_core::store::engine::{Answer, Engine};
use rendezvous_core::store::op::{Key, Keys, Request};

pub(crate) fn sings() -> bool {
    let mut engine = Engine::new(EngineLimits::default(), 1);
    let conn = ConnId { index: 0, generation: 0 };
    let key = Key::raw(b"/n");
    let parked = engine.apply(conn, &Request::Wait { keys: Keys::scoped(b"/", &[b"n"]) });
    let parked = parked.is_ok_and(|applied| matches!(applied.answer, Answer::Parked));
    let added = engine.apply(conn, &Request::Add { key, delta: 2 });
    parked
        && added.is_ok_and(|applied| {
            matches!(applied.answer, Answer::Number(2)) && applied.released == [conn.into()]
        })
}
