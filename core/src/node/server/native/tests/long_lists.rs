//! Requests of c10d clients with long lists, which are executed part by part.

use super::turns::TURN;
use super::*;
use crate::limits::EngineLimits;
use crate::node::server::tests::{frame, get, set, wait};
use crate::store::engine::ApplyError;

/// Keys of a list: four parts of a MULTI_SET or WAIT.
const KEYS: usize = 1000;
const STOP_WAITING: [u8; 1] = [0];

fn rig() -> Rig {
    Rig::new(ServerLimits { work_per_input_max: TURN, ..ServerLimits::default() })
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("/k{number}")).collect()
}

fn multi_set(names: &[String]) -> Vec<u8> {
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
    frame(Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) })
}

fn wait_for(names: &[String]) -> Vec<u8> {
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    frame(Request::Wait { keys: Keys::scoped(b"", &names) })
}

fn multi_get(count: usize) -> Vec<u8> {
    frame(Request::MultiGet { keys: Keys::scoped(b"", &std::vec![&b"/k0"[..]; count]) })
}

fn tick(rig: &mut Rig) {
    assert!(rig.has_work());
    rig.now = rig.now.max(rig.server.poll_timeout().expect("work is left"));
    rig.feed(Input::Tick);
}

/// Checks what a client got, without a message of thousands of numbers.
fn assert_parts(got: &[u8], expected: &[&[u8]]) {
    let expected = expected.concat();
    let first = got.iter().zip(&expected).position(|(one, other)| one != other);
    assert!(
        got == expected,
        "{} bytes instead of {}; the first other one is {first:?}",
        got.len(),
        expected.len()
    );
}

#[test]
fn a_long_multi_set_is_applied_in_parts_between_the_requests_of_others() {
    for ends_at_once in [false, true] {
        let (mut rig, names) = (rig(), names(KEYS));
        let (writer, other) = (rig.greeted(0), rig.greeted(1));
        rig.send(writer, &[multi_set(&names), get(b"/k0")].concat());
        if ends_at_once {
            rig.feed(Input::ReadClosed { conn: writer });
        }
        let mut counts = Vec::new();
        while rig.has_work() {
            rig.send(other, &frame(Request::NumKeys));
            counts.push(u64::from_le_bytes(rig.got(other).try_into().expect("a number")));
            tick(&mut rig);
        }
        assert_eq!(counts, [256, 512, 768, KEYS as u64]);
        assert_eq!(rig.server.engine.key_count(), KEYS);
        assert_eq!(
            rig.got(writer),
            [&1_u64.to_le_bytes()[..], b"v"].concat(),
            "its next request comes after it"
        );
        assert_eq!(rig.server.stats().requests, 2 + 4, "each is counted once");
        assert_eq!(rig.closed.get(&writer), ends_at_once.then_some(&CloseReason::PeerClosed));
    }
}

#[test]
fn a_part_has_a_bounded_number_of_bytes() {
    let mut rig = rig();
    let (writer, value) = (rig.greeted(0), std::vec![7; 700 << 10]);
    let pairs: Vec<(&[u8], &[u8])> =
        [b"/a", b"/b", b"/c", b"/d", b"/e"].map(|key| (&key[..], &value[..])).into();
    rig.send(writer, &frame(Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) }));
    let mut counts = std::vec![rig.server.engine.key_count()];
    while rig.has_work() {
        tick(&mut rig);
        counts.push(rig.server.engine.key_count());
    }
    assert_eq!(counts, [2, 4, 5]);
}

#[test]
fn a_long_wait_ends_once_after_all_keys_have_existed_whenever_they_are_set() {
    let names = names(KEYS);
    for turns in 0..4 {
        for last in [0, 255, 256, KEYS - 1] {
            let mut rig = rig();
            let (waiter, setter) = (rig.greeted(0), rig.greeted(1));
            rig.send(setter, &set(b"/k7", b"set before"));
            rig.send(waiter, &wait_for(&names));
            for _ in 0..turns {
                if rig.has_work() {
                    tick(&mut rig);
                }
            }
            for name in names.iter().filter(|&name| *name != names[last]) {
                rig.send(setter, &set(name.as_bytes(), b"v"));
            }
            rig.finish();
            // A key that has existed need not exist any more.
            rig.send(setter, &frame(Request::Delete { key: key("/k8") }));
            assert_eq!(rig.got(waiter), [], "{turns} turns: {} is missing", names[last]);
            rig.send(setter, &set(names[last].as_bytes(), b"v"));
            assert_eq!(rig.got(waiter), STOP_WAITING, "{turns} turns, {last}");
            assert_eq!(rig.server.engine.waiting(), 0);
        }
    }
}

#[test]
fn a_long_wait_does_not_end_before_its_last_key_is_read() {
    let mut rig = rig();
    let (waiter, setter, names) = (rig.greeted(0), rig.greeted(1), names(KEYS));
    rig.send(waiter, &wait_for(&names));
    // Also the keys of the parts that are still to be read.
    for name in &names {
        rig.send(setter, &set(name.as_bytes(), b"v"));
        assert_eq!(rig.got(waiter), []);
    }
    rig.finish();
    assert_eq!(rig.got(waiter), STOP_WAITING);
    // Nothing is missing.
    rig.send(waiter, &wait_for(&names));
    rig.finish();
    assert_eq!(rig.got(waiter), STOP_WAITING);
    assert_eq!((rig.server.engine.waiting(), rig.server.engine.footprint()), (0, KEYS));
}

#[test]
fn a_client_that_ends_within_a_long_wait_leaves_nothing() {
    let mut rig = rig();
    let waiter = rig.greeted(0);
    rig.send(waiter, &wait_for(&names(KEYS)));
    assert_eq!(rig.server.engine.waiting(), 1);
    rig.feed(Input::Lost { conn: waiter, os_error: 104 });
    rig.finish();
    assert_eq!((rig.server.engine.waiting(), rig.server.engine.footprint()), (0, 0));
}

/// Its wait is given up between two parts. What follows must not be taken for the whole list.
#[test]
fn a_long_wait_that_is_given_up_between_its_parts_is_not_released() {
    let names = names(300);
    let prepared = || {
        let mut rig = rig();
        let (waiter, setter) = (rig.greeted(0), rig.greeted(1));
        rig.send(setter, &multi_set(&names[256..]));
        rig.send(waiter, &wait_for(&names));
        assert_eq!((rig.server.engine.waiting(), rig.has_work()), (1, true));
        (rig, waiter)
    };
    let (mut rig, waiter) = prepared();
    rig.feed(Input::ReadClosed { conn: waiter });
    rig.finish();
    assert_eq!((rig.got(waiter), rig.closed[&waiter]), (Vec::new(), CloseReason::PeerClosed));
    // As if a round were over between the parts, to which a key of the first one belongs.
    let (mut rig, waiter) = prepared();
    rig.server.engine.forget_waits(waiter);
    rig.finish();
    assert_eq!((rig.got(waiter), rig.server.engine.waiting()), (Vec::new(), 0));
}

#[test]
fn a_multi_set_that_is_refused_in_a_later_part_closes_the_connection() {
    let engine = EngineLimits { stored_bytes_max: 300 * 140, ..EngineLimits::default() };
    let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, engine, ..ServerLimits::default() });
    let writer = rig.greeted(0);
    rig.send(writer, &[multi_set(&names(KEYS)), set(b"/after", b"")].concat());
    rig.finish();
    assert!(matches!(rig.closed[&writer], CloseReason::Refused(ApplyError::Full(_))), "{:?}", rig.closed);
    assert_eq!(rig.server.engine.key_count(), 256, "the pairs of the first part stay");
    assert_eq!(rig.server.stats().requests, 1, "it is counted although it was refused");
}

#[test]
fn a_long_multi_get_waits_until_its_client_reads() {
    let limits =
        ServerLimits { work_per_input_max: TURN, unsent_bytes_high: 1000, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    let reader = rig.greeted(0);
    rig.window = 0;
    rig.send(reader, &multi_get(20_000));
    for _ in 0..10 {
        rig.feed(Input::Tick);
    }
    assert_eq!(rig.server.unsent(reader).len(), 8 * 8192, "one part");
    rig.window = usize::MAX;
    rig.pump(reader);
    rig.finish();
    assert_parts(&rig.got(reader), &[&[0; 8 * 20_000]]);
}

#[test]
fn the_limits_of_waits_hold_for_a_wait_in_parts() {
    let engine = EngineLimits {
        registrations_per_connection_max: KEYS,
        waits_per_connection_max: 1,
        ..EngineLimits::default()
    };
    for (count, is_refused) in [(KEYS, false), (KEYS + 1, true)] {
        let mut rig = Rig::new(ServerLimits { work_per_input_max: TURN, engine, ..ServerLimits::default() });
        let waiter = rig.greeted(0);
        rig.send(waiter, &wait_for(&names(count)));
        rig.finish();
        assert_eq!(rig.closed.contains_key(&waiter), is_refused, "{count} keys");
    }
}

/// The byte that ends a wait would else be taken for a part of a value.
#[test]
fn the_end_of_a_wait_does_not_come_within_the_values_of_a_long_multi_get() {
    const COUNT: usize = 20_000;
    let mut rig = rig();
    let (reader, other) = (rig.greeted(0), rig.greeted(1));
    rig.send(other, &set(b"/k0", b"v"));
    rig.send(reader, &[wait(b"/w"), wait(b"/x"), multi_get(COUNT), get(b"/k0")].concat());
    let value = [&1_u64.to_le_bytes()[..], b"v"].concat();
    tick(&mut rig);
    assert_parts(&rig.got(reader), &[&value.repeat(8192)]);
    rig.send(other, &[set(b"/w", b""), set(b"/x", b"")].concat());
    rig.finish();
    assert_parts(&rig.got(reader), &[&value.repeat(COUNT - 8192), &STOP_WAITING, &STOP_WAITING, &value]);
}

/// The client could not pop before it knew of the item.
#[test]
fn a_wake_within_a_long_multi_get_is_kept_for_the_pop_that_follows_it() {
    let mut rig = rig();
    let (reader, waiter, other) = (rig.greeted(0), rig.greeted(1), rig.greeted(2));
    rig.send(reader, &wait(b"/q"));
    rig.send(reader, &multi_get(20_000));
    rig.send(waiter, &wait(b"/q"));
    tick(&mut rig);
    assert_parts(&rig.got(reader), &[&[0; 8 * 8192]]);
    rig.send(other, &frame(Request::QueuePush { key: key("/q"), value: b"item" }));
    rig.finish();
    assert_parts(&rig.got(reader), &[&[0; 8 * (20_000 - 8192)], &STOP_WAITING]);
    assert_eq!(rig.got(waiter), []);
    rig.send(reader, &frame(Request::QueuePop { key: key("/q") }));
    rig.finish();
    let popped = [&1_i64.to_le_bytes()[..], &4_u64.to_le_bytes(), b"item"].concat();
    assert_eq!((rig.got(reader), rig.got(waiter)), (popped, Vec::new()));
}

#[test]
fn the_values_of_a_multi_get_of_8192_keys_are_those_of_one_instant() {
    for (count, is_whole) in [(8192, true), (8193, false)] {
        let mut rig = rig();
        let (reader, other) = (rig.greeted(0), rig.greeted(1));
        rig.send(reader, &multi_get(count));
        tick(&mut rig);
        rig.send(other, &set(b"/k0", b"v"));
        rig.finish();
        let last = rig.got(reader).last().copied();
        assert_eq!(last, Some(if is_whole { 0 } else { b'v' }), "{count} keys");
    }
}
