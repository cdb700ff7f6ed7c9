//! Requests against the engine and the model.

use super::{Lists, any_request};
use crate::entropy::Entropy;
use crate::model::{Iteration, Model, Refused};
use rendezvous_core::ids::{ConnId, WaiterId};
use rendezvous_core::limits::EngineLimits;
use rendezvous_core::store::engine::{Answer, Engine, Readiness};
use rendezvous_core::wire::c10d::{NOT_READY, READY, STOP_WAITING, WAIT_CANCELED};

/// Requests of a few connections have the same results in the engine as in the model.
///
/// # Panics
/// When they do not.
pub fn engine(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    let limits = EngineLimits {
        stored_bytes_max: entropy.choose(&[1 << 20, 1500, 400]),
        registrations_max: entropy.choose(&[100, 4]),
        waits_per_connection_max: entropy.choose(&[16, 2]),
        ..EngineLimits::default()
    };
    let (mut engine, mut model) = (Engine::new(limits, 7), Model::new(limits));
    while !entropy.is_empty() {
        let conn = ConnId { index: u32::try_from(entropy.below(3)).unwrap_or(0), generation: 0 };
        if entropy.below(16) == 0 {
            engine.forget_waits(conn);
            model.forget(conn);
        } else {
            let mut lists = Lists::default();
            let request = any_request(&mut entropy, &mut lists);
            let before = engine.revision();
            let due = model.apply(conn, &request);
            let done = engine.apply(conn, &request).map_err(|_| Refused).map(|applied| Iteration {
                answer: answer_bytes(&applied.answer),
                released: applied.released.iter().filter_map(|waiter| conn_of(*waiter)).collect(),
            });
            assert_eq!(done, due, "{request:?}");
            assert!(engine.revision() >= before, "revisions only grow");
        }
        assert_eq!(engine.key_count(), model.key_count());
        assert_eq!(engine.waiting(), model.waiting());
        assert_eq!(engine.footprint(), model.footprint());
        assert_eq!(engine.stored_bytes(), model.stored_bytes());
    }
}

const fn conn_of(waiter: WaiterId) -> Option<ConnId> {
    match waiter {
        WaiterId::Conn(conn) => Some(conn),
        WaiterId::Request(_) => None,
    }
}

fn answer_bytes(answer: &Answer<'_>) -> Vec<u8> {
    let string = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
    match answer {
        Answer::Nothing | Answer::Parked => Vec::new(),
        Answer::Number(number) => number.to_le_bytes().to_vec(),
        Answer::Value(value) => value.read(string),
        Answer::Values(values) => values.iter().flat_map(|value| value.read(string)).collect(),
        Answer::Readiness(Readiness::Ready) => vec![READY],
        Answer::Readiness(Readiness::NotReady) => vec![NOT_READY],
        Answer::Released => vec![STOP_WAITING],
        Answer::WaitCanceled => vec![WAIT_CANCELED],
        Answer::Popped { length_before, item } => {
            let item = item.as_deref().map(string).unwrap_or_default();
            [length_before.to_le_bytes().to_vec(), item].concat()
        }
        Answer::KeyList(keys) => {
            let mut listed = keys.count().to_le_bytes().to_vec();
            keys.for_each(|key| listed.extend(string(key)));
            listed
        }
    }
}
