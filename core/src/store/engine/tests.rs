extern crate std;

use super::*;
use crate::ids::ConnId;
use crate::limits::HistoryLimits;
use crate::rng::Rng;
use crate::store::txn::Write;
use std::collections::BTreeMap;
use std::string::{String, ToString};
use std::{format, vec};

const A: ConnId = ConnId { index: 0, generation: 0 };
const B: ConnId = ConnId { index: 1, generation: 0 };
const C: ConnId = ConnId { index: 2, generation: 0 };

fn state_of(waiter: WaiterId) -> usize {
    match waiter {
        WaiterId::Conn(conn) => conn.index as usize,
        WaiterId::Request(order_index) => order_index as usize,
    }
}

fn engine() -> Engine {
    Engine::new(EngineLimits::default(), 1)
}

fn key(name: &str) -> Key<'_> {
    Key::scoped(b"/", name.as_bytes())
}

/// Applies a request, and formats all its visible results: `released -> answer`.
fn seen(engine: &mut Engine, conn: ConnId, request: &Request<'_>) -> String {
    let applied = match engine.apply(conn, request) {
        Ok(applied) => applied,
        Err(error) => return format!("{error:?}"),
    };
    let text = |value: ValueRef<'_>| value.read(|bytes| String::from_utf8_lossy(bytes).to_string());
    let answer = match applied.answer {
        Answer::Value(value) => format!("{:?}", text(value)),
        Answer::Values(values) => format!("{:?}", values.iter().map(text).collect::<Vec<_>>()),
        Answer::Number(number) => number.to_string(),
        Answer::Readiness(readiness) => format!("{readiness:?}"),
        Answer::Popped { length_before, item } => {
            format!(
                "{length_before}:{}",
                item.map_or("-".to_string(), |item| String::from_utf8_lossy(&item).to_string())
            )
        }
        Answer::KeyList(list) => {
            let mut keys = Vec::new();
            list.for_each(|key| keys.push(String::from_utf8_lossy(key).to_string()));
            assert_eq!(list.count(), keys.len() as u64);
            format!("{keys:?}")
        }
        other @ (Answer::Nothing | Answer::Released | Answer::Parked | Answer::WaitCanceled) => {
            format!("{other:?}")
        }
    };
    let released =
        applied.released.iter().map(|waiter| ["A", "B", "C"][state_of(*waiter)]).collect::<Vec<_>>();
    if released.is_empty() { answer } else { format!("{} -> {answer}", released.join("+")) }
}

/// Runs a script of `conn | request | visible results`, in the terms of the protocol.
fn check(script: &str) {
    let mut engine = engine();
    run(&mut engine, script);
}

fn run(engine: &mut Engine, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let conn = match parts[0] {
            "A" => A,
            "B" => B,
            _ => C,
        };
        let message: Vec<&str> = parts[1].split(' ').collect();
        let list = |from: usize| {
            message[from..].iter().filter(|w| !w.is_empty()).map(|w| w.as_bytes()).collect::<Vec<_>>()
        };
        let names = list(1);
        let pairs: Vec<(&[u8], &[u8])> = names.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let word = |at: usize| message.get(at).copied().unwrap_or("");
        let value = |at: usize| match word(at) {
            "''" => &b""[..],
            other => other.as_bytes(),
        };
        let request = match message[0] {
            "SET" => Request::Set { key: key(word(1)), value: value(2) },
            "CAS" => Request::CompareSet { key: key(word(1)), expected: value(2), desired: value(3) },
            "GET" => Request::Get { key: key(word(1)) },
            "ADD" => Request::Add { key: key(word(1)), delta: word(2).parse().unwrap() },
            "CHECK" => Request::Check { keys: Keys::scoped(b"/", &names) },
            "WAIT" => Request::Wait { keys: Keys::scoped(b"/", &names) },
            "NUM" => Request::NumKeys,
            "DEL" => Request::Delete { key: key(word(1)) },
            "APPEND" => Request::Append { key: key(word(1)), value: value(2) },
            "MGET" => Request::MultiGet { keys: Keys::scoped(b"/", &names) },
            "MSET" => Request::MultiSet { pairs: Pairs::scoped(b"/", &pairs) },
            "CANCEL" => Request::CancelWait,
            "PUSH" => Request::QueuePush { key: key(word(1)), value: value(2) },
            "POP" => Request::QueuePop { key: key(word(1)) },
            "QLEN" => Request::QueueLen { key: key(word(1)) },
            "LIST" => Request::ListKeys,
            "BARRIER" => Request::Barrier { key: key(word(1)), world_size: word(2).parse().unwrap() },
            "CLOSED" => {
                engine.forget_waits(conn);
                continue;
            }
            other => panic!("{other}"),
        };
        assert_eq!(seen(engine, conn, &request), parts[2], "{line}");
    }
}

#[test]
fn values_are_set_read_added_appended_and_deleted() {
    check(
        "A | GET k | \"\"
         A | SET k v | Nothing
         A | GET k | \"v\"
         A | APPEND k w | Nothing
         A | GET k | \"vw\"
         A | ADD n 5 | 5
         A | ADD n -7 | -2
         A | GET n | \"-2\"
         A | APPEND n 5 | Nothing
         A | ADD n 1 | -24
         A | ADD z 0 | 0
         A | GET z | \"0\"
         A | NUM | 3
         A | LIST | [\"/k\", \"/n\", \"/z\"]
         A | MGET k none z | [\"vw\", \"\", \"0\"]
         A | DEL k | 1
         A | DEL k | 0
         A | CHECK n z | Ready
         A | CHECK n k | NotReady
         A | CHECK | Ready
         A | MSET a 1 b 2 | Nothing
         A | NUM | 4",
    );
}

#[test]
fn numbers_that_are_none_are_refused_and_sums_wrap() {
    check(
        "A | SET k abc | Nothing
         A | ADD k 1 | NotANumber
         A | BARRIER k 2 | NotANumber
         A | GET k | \"abc\"
         A | SET e '' | Nothing
         A | ADD e 1 | NotANumber
         A | SET m 9223372036854775807 | Nothing
         A | ADD m 1 | -9223372036854775808
         A | SET t 12abc | Nothing
         A | ADD t 1 | 13",
    );
}

#[test]
fn compare_set_has_four_outcomes_and_wakes_only_when_it_stores() {
    check(
        "B | WAIT k | Parked
         A | CAS k x y | \"x\"
         A | CHECK k | NotReady
         A | CAS k '' v1 | B -> \"v1\"
         A | CAS k v1 v2 | \"v2\"
         A | CAS k zz v3 | \"v2\"
         A | CAS k '' v3 | \"v2\"
         A | ADD n 5 | 5
         A | CAS n 5 6 | \"6\"
         A | GET n | \"6\"",
    );
}

#[test]
fn waits_end_when_every_key_was_there_and_progress_is_sticky() {
    check(
        "A | WAIT a b | Parked
         B | SET a 1 | Nothing
         B | DEL a | 1
         B | SET b 1 | A -> Nothing
         A | WAIT a a | Parked
         B | ADD a 1 | A -> 1
         A | WAIT | Released
         A | WAIT a b | Released
         A | WAIT x | Parked
         A | SET x 1 | A -> Nothing
         A | WAIT y | Parked
         A | CANCEL | WaitCanceled
         B | SET y 1 | Nothing
         A | CANCEL | WaitCanceled
         A | WAIT z | Parked
         A | CLOSED |
         B | SET z 1 | Nothing",
    );
}

#[test]
fn each_kind_of_write_wakes_all_waiters_of_the_key() {
    for write in ["SET k v", "ADD k 1", "APPEND k v", "MSET j 1 k 2", "CAS k '' v"] {
        let mut engine = engine();
        run(&mut engine, "A | WAIT k | Parked\nB | WAIT k | Parked");
        let answer = match write.split(' ').next() {
            Some("ADD") => "1",
            Some("CAS") => "\"v\"",
            _ => "Nothing",
        };
        run(&mut engine, &format!("C | {write} | A+B -> {answer}"));
        assert_eq!(engine.waiting(), 0);
    }
}

#[test]
fn queues_are_first_in_first_out_beside_the_values() {
    check(
        "A | POP q | 0:-
         A | PUSH q i1 | Nothing
         A | PUSH q i2 | Nothing
         A | QLEN q | 2
         A | NUM | 0
         A | CHECK q | Ready
         A | DEL q | 0
         A | SET q v | Nothing
         A | GET q | \"v\"
         A | DEL q | 1
         A | POP q | 2:i1
         A | POP q | 1:i2
         A | POP q | 0:-
         A | CHECK q | NotReady",
    );
}

#[test]
fn one_push_releases_one_waiter_and_takes_it_off_the_queue() {
    check(
        "A | WAIT q | Parked
         B | WAIT q | Parked
         C | PUSH q 1 | A -> Nothing
         A | WAIT k | Parked
         C | PUSH q 2 | B -> Nothing
         C | PUSH q 3 | Nothing
         C | SET k v | A -> Nothing",
    );
}

#[test]
fn a_wait_over_a_filled_queue_and_a_missing_key_is_released_by_the_key() {
    check(
        "C | PUSH q 1 | Nothing
         A | WAIT q k | Parked
         C | SET k v | A -> Nothing
         A | WAIT p j | Parked
         B | WAIT p | Parked
         C | PUSH p 1 | B -> Nothing
         C | PUSH p 2 | Nothing
         C | SET j v | A -> Nothing
         A | WAIT i q i | Parked
         C | PUSH q 2 | Nothing
         C | SET i v | A -> Nothing",
    );
}

#[test]
fn barriers_count_arrivals_and_never_reset() {
    check(
        "A | BARRIER b 2 | Parked
         B | GET b | \"1\"
         B | WAIT b | Released
         B | BARRIER b 2 | A -> Released
         C | BARRIER b 2 | Released
         C | GET b | \"3\"
         A | BARRIER one 1 | Released
         A | BARRIER zero 0 | Released
         A | BARRIER d 3 | Parked
         B | BARRIER d 2 | A -> Released
         A | BARRIER e 2 | Parked
         A | CANCEL | WaitCanceled
         B | BARRIER e 2 | Released
         A | BARRIER f 2 | Parked
         A | BARRIER f 2 | A -> Released
         A | BARRIER g 2 | Parked
         C | SET g 0 | A -> Nothing
         A | BARRIER h 2 | Parked
         C | DEL h | 1
         C | BARRIER h 2 | Parked
         B | BARRIER h 2 | A+C -> Released
         C | WAIT early | Parked
         A | BARRIER early 2 | Parked
         B | BARRIER early 2 | C+A -> Released",
    );
}

#[test]
fn limits_are_kept_and_leave_the_store_as_it_was() {
    let limits = EngineLimits {
        stored_bytes_max: 1000,
        registrations_max: 3,
        waits_per_connection_max: 2,
        ..EngineLimits::default()
    };
    let mut engine = Engine::new(limits, 1);
    run(
        &mut engine,
        "A | SET k 0123456789 | Nothing
         A | WAIT a b | Parked
         A | WAIT c | Parked
         A | WAIT d | TooManyWaits(3)
         B | BARRIER d 2 | TooManyWaits(3)
         A | CANCEL | WaitCanceled
         A | WAIT a | Parked
         A | WAIT b | Parked
         A | WAIT c | TooManyWaits(2)
         A | CANCEL | WaitCanceled
         A | WAIT k | Released",
    );
    let long = vec![b'x'; 900];
    assert_eq!(seen(&mut engine, A, &Request::Set { key: key("x"), value: &long }), "Full(1000)");
    assert_eq!(
        seen(
            &mut engine,
            A,
            &Request::MultiSet { pairs: Pairs::scoped(b"/", &[(b"1", &[0; 400]), (b"2", &[0; 400])]) }
        ),
        "Full(1000)"
    );
    assert_eq!(seen(&mut engine, A, &Request::NumKeys), "1");
}

#[test]
fn neither_empty_items_nor_short_keys_nor_keys_that_are_waited_for_are_free() {
    let limits = EngineLimits { stored_bytes_max: 10_000, ..EngineLimits::default() };
    let mut engine = Engine::new(limits, 1);
    let fills = |seen: &mut dyn FnMut(Key<'_>) -> String| {
        (0..10_000u32)
            .find(|number| seen(Key::raw(&number.to_le_bytes())) == "Full(10000)")
            .expect("it fills")
    };
    let pushed = fills(&mut |_| seen(&mut engine, A, &Request::QueuePush { key: key("q"), value: b"" }));
    let mut engine = Engine::new(limits, 1);
    let set = fills(&mut |key| seen(&mut engine, A, &Request::Set { key, value: b"" }));
    let limits = EngineLimits { waits_per_connection_max: 10_000, ..limits };
    let mut engine = Engine::new(limits, 1);
    let waited = fills(&mut |key| {
        let name = key.name();
        seen(&mut engine, A, &Request::Wait { keys: Keys::scoped(b"", &[name]) })
    });
    assert!(pushed < 400 && set < 100 && waited < 100, "{pushed} items, {set} keys, {waited} waits");
    run(&mut engine, "A | CANCEL | WaitCanceled");
    assert_eq!((engine.footprint(), engine.stored_bytes()), (0, 0));
}

#[test]
fn revisions_grow_with_each_change_and_only_then() {
    let mut engine = engine();
    run(&mut engine, "A | SET k v | Nothing\nA | GET k | \"v\"\nA | CAS k x y | \"v\"");
    assert_eq!((engine.revision(), engine.revision_of(b"/k")), (1, Some(1)));
    run(&mut engine, "A | MSET a 1 b 2 | Nothing\nA | DEL a | 1\nA | DEL a | 0");
    assert_eq!((engine.revision(), engine.revision_of(b"/a"), engine.revision_of(b"/b")), (4, None, Some(3)));
}

/// Compares random requests with a simple model.
#[test]
fn values_agree_with_a_plain_map_and_nothing_is_left_behind() {
    for seed in 0..50 {
        let (mut engine, mut rng, mut model) = (engine(), Rng::new(seed), BTreeMap::<String, String>::new());
        for step in 0..400 {
            if step == seed * 10 {
                engine.start_history(HistoryLimits::default());
            }
            let name = format!("k{}", rng.below(12));
            let conn = [A, B, C][usize::try_from(rng.below(3)).unwrap()];
            let value = rng.below(1000).to_string();
            match rng.below(8) {
                0 | 1 => {
                    engine.apply(conn, &Request::Set { key: key(&name), value: value.as_bytes() }).unwrap();
                    model.insert(name, value);
                }
                2 => {
                    seen(&mut engine, conn, &Request::Add { key: key(&name), delta: 7 });
                    let slot = model.entry(name).or_insert_with(|| "0".to_string());
                    *slot = (slot.parse::<i64>().unwrap() + 7).to_string();
                }
                3 => {
                    let removed = i64::from(model.remove(&name).is_some()).to_string();
                    assert_eq!(seen(&mut engine, conn, &Request::Delete { key: key(&name) }), removed);
                }
                4 => {
                    engine
                        .apply(
                            conn,
                            &Request::Wait { keys: Keys::scoped(b"/", &[name.as_bytes(), b"never"]) },
                        )
                        .ok();
                }
                5 => engine.forget_waits(conn),
                6 => {
                    seen(&mut engine, conn, &Request::QueuePush { key: key(&name), value: b"i" });
                    seen(&mut engine, conn, &Request::QueuePop { key: key(&name) });
                }
                _ => {
                    let expected = format!("{:?}", model.get(&name).map_or("", String::as_str));
                    assert_eq!(
                        seen(&mut engine, conn, &Request::Get { key: key(&name) }),
                        expected,
                        "seed {seed}"
                    );
                }
            }
            assert_eq!(engine.key_count(), model.len(), "seed {seed}");
            let names: Vec<String> = model.keys().map(|name| format!("/{name}")).collect();
            assert_eq!(seen(&mut engine, A, &Request::ListKeys), format!("{names:?}"), "seed {seed}");
        }
        [A, B, C].into_iter().for_each(|conn| engine.forget_waits(conn));
        for name in model.keys() {
            engine.apply(A, &Request::Delete { key: key(name) }).unwrap();
        }
        assert_eq!((engine.footprint(), engine.stored_bytes()), (0, 0), "seed {seed}");
    }
}

#[test]
fn what_does_not_grow_needs_no_room() {
    let limits = EngineLimits { stored_bytes_max: 500, ..EngineLimits::default() };
    let mut engine = Engine::new(limits, 1);
    run(&mut engine, "A | ADD n 1 | 1\nA | SET v 0123456789 | Nothing\nA | PUSH q i | Nothing");
    let capacity = 500 - engine.stored_bytes();
    let filler = vec![b'x'; usize::try_from(capacity).unwrap() + 10];
    assert_eq!(
        seen(&mut engine, A, &Request::Set { key: key("v"), value: &filler }),
        "Nothing",
        "to the brim"
    );
    assert_eq!(engine.stored_bytes(), 500);
    run(
        &mut engine,
        "A | ADD n 41 | 42
         A | CAS n 1 2 | \"42\"
         A | CAS n 42 43 | \"43\"
         A | BARRIER n 1 | Released
         A | SET w '' | Full(500)
         A | APPEND v x | Full(500)
         A | PUSH q j | Full(500)
         A | WAIT absent | Full(500)
         A | SET v short | Nothing
         A | APPEND v er | Nothing
         A | WAIT absent | Full(500)
         A | DEL v | 1
         A | WAIT absent | Parked",
    );
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("k{number}")).collect()
}

fn wait_for(engine: &mut Engine, conn: ConnId, names: &[String]) -> String {
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    seen(engine, conn, &Request::Wait { keys: Keys::scoped(b"/", &names) })
}

/// A short list leaves nothing to later steps, because the server lets it through without a look at what is left.
#[test]
fn a_short_list_puts_its_keys_in_order_at_once() {
    let mut engine = engine();
    for part in names(200_000).chunks(1000) {
        let pairs: Vec<(&[u8], &[u8])> = part.iter().map(|name| (name.as_bytes(), &b""[..])).collect();
        engine.apply(A, &Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) }).expect("there is capacity");
    }
    while !engine.order_keys(1000) {}
    engine.take_work();
    let absent: Vec<String> = (0..256).map(|number| format!("absent{number}")).collect();
    assert_eq!(wait_for(&mut engine, A, &absent), "Parked");
    assert!(!engine.has_unordered());
}

#[test]
fn a_wait_for_many_keys_is_freed_in_steps() {
    let mut engine = engine();
    let keys = names(10_000);
    for conn in [A, B] {
        assert_eq!(wait_for(&mut engine, conn, &keys), "Parked");
    }
    run(&mut engine, "A | WAIT a q | Parked\nC | WAIT q | Parked");
    engine.take_work();
    run(&mut engine, "A | CANCEL | WaitCanceled");
    let work = engine.take_work();
    assert!(work < 1000, "{work} units for a cancellation");
    assert!(engine.has_to_free());
    assert_eq!(engine.waiting(), 2);
    // The waiter may wait again, though its registrations are still there.
    assert_eq!(wait_for(&mut engine, A, &keys[..9]), "Parked");
    run(
        &mut engine,
        "B | PUSH q 1 | C -> Nothing
         B | NUM | 0
         B | LIST | []
         B | SET k5000 x | Nothing
         A | CANCEL | WaitCanceled
         B | CLOSED",
    );
    let mut steps = 0;
    engine.take_work();
    while engine.has_to_free() {
        engine.free_some(100);
        assert!(engine.take_work() <= 200);
        steps += 1;
    }
    assert!((150..200).contains(&steps), "{steps} steps");
    assert_eq!((engine.waiting(), engine.footprint()), (0, 2), "the queue and a key are left");
}

/// Requests see no difference between waits that are freed at once and those that are freed later.
#[test]
fn no_request_sees_what_is_still_to_be_freed() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let stored_bytes_max = [200_000, 100_000_000][usize::from(rng.below(4) == 0)];
        let limits = EngineLimits {
            stored_bytes_max,
            registrations_max: 1800,
            removed_at_once_max: 700,
            ..EngineLimits::default()
        };
        let [mut freed, mut engine] = [Engine::new(limits, 1), Engine::new(limits, 1)];
        for engine in [&mut freed, &mut engine] {
            engine.start_history(HistoryLimits::default());
        }
        let keys = names(1200);
        for step in 0..120 {
            let mut any = || usize::try_from(rng.below(1200)).expect("small");
            let (what, one, start, other) = (any() % 12, any(), any(), any());
            let conn = [A, B, C][other % 3];
            let (name, key) = (&keys[one], Key::scoped(b"/", keys[one].as_bytes()));
            let value = vec![b'1'; if what == 0 { other } else { 40 * other }];
            let act = |engine: &mut Engine| match what {
                0..=2 => seen(engine, conn, &Request::Set { key, value: &value }),
                3 => seen(engine, conn, &Request::QueuePush { key, value: &value[..other] }),
                4 => seen(engine, conn, &Request::QueuePop { key }),
                5..=7 => wait_for(engine, conn, &keys[start.min(one)..start.max(one)]),
                8 => {
                    let prefix = Key::scoped(b"/", &name.as_bytes()[..1 + one % 2]);
                    // As the server does before such a transaction.
                    while !engine.order_keys(100) {}
                    let other = Write::DeletePrefix { prefix: Key::scoped(b"/", b"k1") };
                    let writes = [Write::DeletePrefix { prefix }, other, Write::Add { key, delta: 1 }];
                    let done = engine.txn([].into_iter(), writes.into_iter(), [].into_iter());
                    format!("{done:?}")
                }
                _ => {
                    engine.forget_waits(conn);
                    String::new()
                }
            };
            let due = act(&mut freed);
            freed.free_some(usize::MAX);
            assert_eq!(act(&mut engine), due, "seed {seed}, step {step}");
            assert_eq!(engine.waiting(), freed.waiting(), "seed {seed}, step {step}");
            if one % 4 == 0 {
                engine.free_some(other);
            }
        }
        engine.free_some(usize::MAX);
        assert_eq!(engine.footprint(), freed.footprint(), "seed {seed}");
        assert_eq!(engine.stored_bytes(), freed.stored_bytes(), "seed {seed}");
    }
}

#[test]
fn a_very_long_value_is_freed_in_steps() {
    const MIB: usize = 1 << 20;
    let limits = EngineLimits { stored_bytes_max: 50 << 20, ..EngineLimits::default() };
    let mut engine = Engine::new(limits, 1);
    let part = vec![b'1'; 5 * MIB];
    let held = |engine: &Engine| usize::try_from(engine.slots.meter().bytes()).expect("small");
    let append =
        |engine: &mut Engine, name: &str| seen(engine, A, &Request::Append { key: key(name), value: &part });
    let add = Request::Add { key: key("k"), delta: 1 };
    for request in [add, Request::Set { key: key("k"), value: b"" }, Request::Delete { key: key("k") }] {
        seen(&mut engine, A, &Request::Set { key: key("k"), value: b"1 " });
        (0..8).for_each(|_| drop(append(&mut engine, "k")));
        engine.take_work();
        seen(&mut engine, A, &request);
        assert!(held(&engine) >= 40 * MIB, "{request:?} frees nothing itself");
        assert!(engine.stored_bytes() < 200);
        while engine.has_to_free() {
            assert_eq!(engine.orphaned_bytes(), 0, "no answer holds it");
            let before = held(&engine);
            engine.free_some(256);
            assert!((1..=6 * MIB).contains(&(before - held(&engine))), "one part");
            assert!(engine.take_work() <= 1600);
        }
        assert_eq!(held(&engine), 0);
    }
    // A value that needs the space gets it, and no more is freed for it.
    (0..8).for_each(|_| drop(append(&mut engine, "k")));
    seen(&mut engine, A, &Request::Delete { key: key("k") });
    (0..4).for_each(|_| assert_eq!(append(&mut engine, "other"), "Nothing"));
    assert!((45 * MIB..50 * MIB).contains(&held(&engine)) && engine.has_to_free());
    engine.free_some(usize::MAX);
    // What an answer holds is freed with the answer, and is charged to it.
    let (_, value) = engine.find(b"/other").expect("it was set");
    let (length, answer) = (value.len() as u64, KeptValue::from(value));
    seen(&mut engine, A, &Request::Delete { key: key("other") });
    engine.free_some(usize::MAX);
    assert!(!engine.has_to_free() && engine.orphaned_bytes() >= length);
    drop(answer);
    assert_eq!((held(&engine), engine.footprint()), (0, 0));
}

#[test]
fn a_wait_that_names_a_key_more_than_once_registers_once() {
    let mut engine = Engine::new(EngineLimits::default(), 1);
    for waits in ["A | WAIT a a b a b | Parked", "B | WAIT a a | Parked"] {
        run(&mut engine, waits);
    }
    assert_eq!(engine.waits.registrations(), 3);
    run(
        &mut engine,
        "C | SET a 1 | B -> Nothing
         C | SET b 1 | A -> Nothing",
    );
    assert_eq!(engine.waits.registrations(), 0);
}
