extern crate std;

use super::*;
use crate::ids::ConnId;
use crate::limits::{EngineLimits, HistoryLimits};
use crate::rng::Rng;
use crate::store::engine::LeaseId;
use crate::store::op::{Keys, Pairs, Request};
use std::vec;

const A: ConnId = ConnId { index: 0, generation: 0 };
const KEYS: [&[u8]; 6] = [b"/a", b"/b", b"/p/a", b"/p/long-name", b"/r/1/a", b"/r/2/b"];
const TEXT: [u8; 300] = [b'7'; 300];

/// Step of a random history, as plain numbers, so that it can be repeated.
type Step = [usize; 12];

fn key(number: usize) -> Key<'static> {
    Key::raw(KEYS[number % KEYS.len()])
}

fn value(number: usize) -> &'static [u8] {
    &TEXT[..[0, 1, 25, 80, 300][number % 5]]
}

fn write(numbers: &[usize]) -> Write<'static> {
    let key = key(numbers[1]);
    match numbers[0] % 6 {
        0 | 1 => Write::Set { key, value: value(numbers[2]) },
        2 => Write::Append { key, value: value(numbers[2]) },
        3 => Write::Add { key, delta: -7 },
        4 => Write::Delete { key },
        _ => Write::DeletePrefix { prefix: Key::raw([&b"/p/"[..], b"/r/", b"/"][numbers[2] % 3]) },
    }
}

/// Executes a step. Returns whether the engine accepted it.
fn execute(engine: &mut Engine, lease: LeaseId, step: &Step) -> bool {
    let names = [KEYS[step[1] % 6], KEYS[step[2] % 6], KEYS[step[3] % 6]];
    let pairs = [(names[0], value(step[4])), (names[1], value(step[5])), (names[2], value(step[6]))];
    let key = key(step[1]);
    let request = match step[0] % 12 {
        0..=2 => {
            let writes = step[1..].chunks_exact(3).map(write);
            return engine.txn(core::iter::empty(), writes, core::iter::empty()).is_ok();
        }
        3 => return engine.lease_attach(lease, Keys::scoped(b"", &names)).is_ok(),
        4 => {
            engine.forget_waits(A);
            return true;
        }
        5 => {
            let mut scan = engine.fence(b"/r/", 1);
            while !scan.is_over {
                engine.fail_waits(&mut scan, usize::MAX);
            }
            return true;
        }
        6 => Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) },
        7 => Request::Wait { keys: Keys::scoped(b"", &names) },
        8 => Request::Append { key, value: value(step[4]) },
        9 => Request::QueuePush { key, value: value(step[4]) },
        10 => Request::QueuePop { key },
        _ => Request::CompareSet { key, expected: b"", desired: value(step[4]) },
    };
    engine.apply(A, &request).is_ok()
}

fn started(stored_bytes_max: u64) -> (Engine, LeaseId) {
    let mut engine = Engine::new(EngineLimits { stored_bytes_max, ..EngineLimits::default() }, 1);
    engine.start_history(HistoryLimits::default());
    let lease = engine.lease_grant(Instant::ORIGIN, None).expect("the first one");
    (engine, lease)
}

/// What is accepted by a store without a limit is refused by one with a limit exactly if it would exceed the limit.
#[test]
fn a_request_is_refused_exactly_if_the_store_would_exceed_its_limit() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let limit = [700, 1100, 1600][usize::try_from(seed % 3).unwrap_or(0)];
        let (mut limited, lease) = started(limit);
        let mut accepted: Vec<Step> = vec![];
        for _ in 0..80 {
            let step: Step = core::array::from_fn(|_| usize::try_from(rng.below(60)).unwrap_or(0));
            let (mut free, free_lease) = started(u64::MAX);
            for before in &accepted {
                assert!(execute(&mut free, free_lease, before));
            }
            assert_eq!(free.stored_bytes(), limited.stored_bytes(), "seed {seed}");
            let is_legal = execute(&mut free, free_lease, &step);
            let fits = free.stored_bytes() <= limit;
            let done = execute(&mut limited, lease, &step);
            assert_eq!(done, is_legal && fits, "seed {seed}, {step:?}: {} bytes", free.stored_bytes());
            refused += u32::from(!fits);
            if done {
                accepted.push(step);
            }
        }
    }
    assert!(refused > 100, "{refused} were refused");
}

#[test]
fn a_full_store_takes_what_replaces_as_much() {
    let (mut engine, lease) = started(128 + 2 + 100);
    let set = |value| Write::Set { key: Key::raw(b"/k"), value };
    let mut attempt = |writes: &[Write<'static>]| {
        engine.txn(core::iter::empty(), writes.iter().copied(), core::iter::empty()).map(drop)
    };
    let full = Err((ApplyError::Full(230), None));
    // The longest value, again in place of itself, and after others have been deleted.
    const LONG: &[u8] = &[0; 100];
    assert_eq!(attempt(&[set(LONG)]), Ok(()));
    assert_eq!(attempt(&[set(LONG)]), Ok(()));
    assert_eq!(attempt(&[set(&[1; 101])]), full);
    let other = Write::Set { key: Key::raw(b"/o"), value: LONG };
    assert_eq!(attempt(&[other]), full);
    assert_eq!(attempt(&[other, Write::Delete { key: Key::raw(b"/k") }]), Ok(()));
    let name: &[&[u8]] = &[b"/o"];
    let attach = |engine: &mut Engine| engine.lease_attach(lease, Keys::scoped(b"", name));
    assert!(attach(&mut engine).is_err(), "it is charged, too");
    let pairs: &[(&[u8], &[u8])] = &[(b"/o", LONG), (b"/o", LONG)];
    assert!(
        engine.apply(A, &Request::MultiSet { pairs: Pairs::scoped(b"", pairs) }).is_ok(),
        "the last value counts, once"
    );
    let (mut engine, lease) = started(2 * (128 + 2));
    engine.apply(A, &Request::Set { key: Key::raw(b"/o"), value: b"" }).expect("there is capacity");
    for _ in 0..2 {
        engine.lease_attach(lease, Keys::scoped(b"", &[b"/o", b"/o"])).expect("attached once");
    }
    assert_eq!(engine.stored_bytes(), 260);
}

/// A removal looks only at the keys that were written since the last one.
#[test]
fn removals_of_a_prefix_look_at_each_write_once() {
    const WRITES: u64 = 4000;
    let (mut engine, _) = started(u64::MAX);
    let names: Vec<Vec<u8>> = (0..WRITES).map(|number| std::format!("/n/{number}").into_bytes()).collect();
    let set = |name| Write::Set { key: Key::raw(name), value: b"" };
    for name in &names[..4] {
        engine.apply(A, &Request::Set { key: Key::raw(name), value: b"" }).expect("there is capacity");
    }
    engine.take_work();
    // The number makes the engine plan.
    let sets = names.iter().map(|name| set(name)).chain([Write::Add { key: Key::raw(b"/c"), delta: 1 }]);
    let removals = names.iter().map(|_| Write::DeletePrefix { prefix: Key::raw(b"/n/") });
    let later = [set(b"/n/0"), Write::DeletePrefix { prefix: Key::raw(b"/") }];
    let writes = sets.chain(removals).chain(later);
    assert_eq!(engine.check_growth_of(writes.clone()), Ok(()));
    let work = engine.take_work();
    assert!((3 * WRITES..4 * WRITES).contains(&work), "{work} to plan: each write, and what each removes");
    assert!(engine.txn([].into_iter(), writes, [].into_iter()).is_ok());
    let work = engine.take_work();
    assert!(work <= 16 * 2 * WRITES, "{work}");
    assert_eq!(engine.key_count(), 0);
}

/// Keys of an ended wait are held until they are freed. The store must not count a key as held, and free it before it is set.
#[test]
fn keys_that_ended_waits_hold_are_charged_to_the_request_that_sets_them() {
    let names: Vec<String> = (0..40_000).map(|number| format!("k{number:06}")).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let limits = EngineLimits { stored_bytes_max: 40_000 * (128 + 7), ..EngineLimits::default() };
    let mut engine = Engine::new(limits, 1);
    engine.apply(A, &Request::Wait { keys: Keys::scoped(b"", &names) }).expect("there is capacity");
    engine.apply(A, &Request::CancelWait).expect("it waits");
    let set = |engine: &mut Engine, value: &[u8]| {
        let pairs: Vec<(&[u8], &[u8])> = names[..39_000].iter().map(|name| (*name, value)).collect();
        let outcome = engine.apply(A, &Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) }).map(drop);
        assert!(engine.stored_bytes() <= limits.stored_bytes_max, "{} bytes", engine.stored_bytes());
        outcome
    };
    let full = Err(ApplyError::Full(limits.stored_bytes_max));
    for _ in 0..3 {
        assert_eq!(set(&mut engine, &[7; 10]), full);
    }
    assert_eq!(set(&mut engine, b"7"), Ok(()));
}
