extern crate std;

use super::*;
use crate::ids::ConnId;
use crate::limits::EngineLimits;
use crate::rng::Rng;
use crate::store::engine::Listing;
use crate::store::op::{Key, Request};
use std::format;
use std::string::String;
use std::vec;

const A: ConnId = ConnId { index: 0, generation: 0 };

fn engine(limits: HistoryLimits) -> Engine {
    let mut engine = Engine::new(EngineLimits::default(), 1);
    engine.start_history(limits);
    engine
}

fn set(engine: &mut Engine, key: &str, value: &str) {
    let request = Request::Set { key: Key::raw(key.as_bytes()), value: value.as_bytes() };
    engine.apply(A, &request).expect("within the limits");
}

// What the engine does in steps, with one key in each.

fn delete_prefix(engine: &mut Engine, prefix: &[u8]) -> Result<PrefixRemoved, ApplyError> {
    let mut removal = engine.delete_prefix(prefix)?;
    Ok(complete(|| engine.remove_some(&mut removal, 1)))
}

fn discard(engine: &mut Engine, prefix: &[u8]) {
    let mut removal = engine.discard(prefix);
    complete(|| engine.remove_some(&mut removal, 1));
}

fn fence(engine: &mut Engine, stem: &[u8], number: u64) -> Vec<WaiterId> {
    let (mut scan, mut failed) = (engine.fence(stem, number), Vec::new());
    while !scan.is_over {
        failed.extend(engine.fail_waits(&mut scan, 1));
    }
    failed
}

fn lease_end(engine: &mut Engine, lease: LeaseId) -> Result<u64, LeaseError> {
    let mut leased = engine.lease_end(lease)?;
    Ok(complete(|| engine.remove_leased(&mut leased, 1)))
}

fn lease_expire(engine: &mut Engine, now: Instant) -> Option<LeaseId> {
    let mut leased = engine.lease_end(engine.lease_expired(now)?).expect("it lives");
    complete(|| engine.remove_leased(&mut leased, 1));
    Some(leased.lease)
}

fn complete<T>(mut step: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(done) = step() {
            return done;
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Formats the undelivered changes of a watch as `revision key=value`; `-` for a removal.
fn undelivered(engine: &Engine, watch: WatchId) -> Result<Vec<String>, WatchError> {
    let line = |change: ChangeRef<'_>| {
        format!(
            "{} {}={}",
            change.revision,
            text(change.key),
            change.value.map_or("-".into(), |value| value.read(text))
        )
    };
    Ok(engine.undelivered(watch)?.map(line).collect())
}

fn value(engine: &Engine, key: &str) -> Option<String> {
    engine.find(key.as_bytes()).map(|(_, value)| value.read(text))
}

/// Returns the oldest revision in the history.
fn oldest(engine: &Engine) -> Option<u64> {
    engine.extras.as_ref().map(|extras| extras.history.oldest)
}

#[test]
fn a_watch_tells_of_each_change_of_its_keys_once_and_in_order() {
    let mut engine = engine(HistoryLimits::default());
    set(&mut engine, "/a", "before");
    let key = engine.watch(Watched::Key(b"/a"), 0).expect("within the limits");
    let prefix = engine.watch(Watched::Prefix(b"/p/"), 1).expect("within the limits");
    let all = engine.watch(Watched::Prefix(b""), 1).expect("within the limits");
    assert_eq!(engine.next_ready_watch(), Some(all), "it has the past to tell of");
    assert_eq!(engine.next_ready_watch(), None);
    set(&mut engine, "/a", "1");
    set(&mut engine, "/p/x", "2");
    set(&mut engine, "/pq", "3");
    engine.apply(A, &Request::Add { key: Key::raw(b"/p/n"), delta: 5 }).expect("a number");
    engine.apply(A, &Request::Append { key: Key::raw(b"/p/n"), value: b"0" }).expect("within the limits");
    engine.apply(A, &Request::QueuePush { key: Key::raw(b"/p/q"), value: b"" }).expect("within the limits");
    engine.apply(A, &Request::Delete { key: Key::raw(b"/p/x") }).expect("legal");
    engine
        .apply(A, &Request::CompareSet { key: Key::raw(b"/p/n"), expected: b"no", desired: b"x" })
        .expect("legal");
    assert_eq!([engine.next_ready_watch(), engine.next_ready_watch()], [Some(key), Some(prefix)]);
    assert_eq!(undelivered(&engine, key).unwrap(), ["2 /a=1"]);
    let told_of_prefix = ["3 /p/x=2", "5 /p/n=5", "6 /p/n=50", "8 /p/x=-"];
    assert_eq!(undelivered(&engine, prefix).unwrap(), told_of_prefix);
    assert_eq!(undelivered(&engine, all).unwrap().len(), 7);

    engine.delivered(prefix, 5, 2);
    assert_eq!(undelivered(&engine, prefix).unwrap(), told_of_prefix[2..]);
    assert_eq!(engine.next_ready_watch(), Some(prefix), "there is a rest");
    engine.delivered(prefix, 8, 2);
    assert_eq!((undelivered(&engine, prefix).unwrap().len(), engine.next_ready_watch()), (0, None));
    set(&mut engine, "/p/x", "again");
    assert_eq!(engine.next_ready_watch(), Some(prefix), "only it has delivered the earlier changes");
    assert!(engine.unwatch(prefix) && !engine.unwatch(prefix));
    assert_eq!(engine.undelivered(prefix).err(), Some(WatchError::Unknown));
}

#[test]
fn a_watch_behind_the_history_gets_its_oldest_revision() {
    let mut engine = Engine::new(EngineLimits::default(), 1);
    set(&mut engine, "/a", "1");
    assert_eq!(engine.watch(Watched::Key(b"/a"), 0), Err(WatchError::Compacted { oldest: 2 }));
    assert_eq!(oldest(&engine), None);
    engine.start_history(HistoryLimits { changes_max: 3, watches_max: 2, ..HistoryLimits::default() });
    assert_eq!(engine.watch(Watched::Key(b"/a"), 1), Err(WatchError::Compacted { oldest: 2 }));
    let slow = engine.watch(Watched::Key(b"/a"), 2).expect("from the first");
    let idle = engine.watch(Watched::Key(b"/idle"), 2).expect("from the first");
    assert_eq!(engine.watch(Watched::Key(b"/a"), 2), Err(WatchError::TooMany(2)));
    for number in 2..=5 {
        set(&mut engine, if number == 2 { "/a" } else { "/b" }, "x");
    }
    assert_eq!(oldest(&engine), Some(3));
    assert_eq!((engine.next_ready_watch(), engine.next_ready_watch()), (Some(slow), None));
    assert_eq!(undelivered(&engine, slow), Err(WatchError::Compacted { oldest: 3 }));
    assert_eq!(undelivered(&engine, idle), Ok(vec![]), "no undelivered change is lost");
    engine.start_history(HistoryLimits::default());
    assert_eq!(oldest(&engine), Some(3), "it goes on");
}

#[test]
fn the_history_is_bounded_in_bytes() {
    let mut engine = engine(HistoryLimits { bytes_max: 1000, ..HistoryLimits::default() });
    let watch = engine.watch(Watched::Prefix(b""), 1).expect("within the limits");
    for _ in 0..10 {
        set(&mut engine, "/k", &"v".repeat(134));
    }
    assert_eq!(oldest(&engine), Some(6), "five changes of 200 bytes");
    assert_eq!(engine.next_ready_watch(), Some(watch));
    assert!(undelivered(&engine, watch).is_err());
    set(&mut engine, "/k", &"v".repeat(2000));
    assert_eq!(oldest(&engine), Some(7), "a value that is too long to be kept displaces no others");
    let watch = engine.watch(Watched::Key(b"/k"), 7).expect("within the history");
    assert_eq!(undelivered(&engine, watch).map(|changes| changes.len()), Ok(4), "those before it");
    engine.delivered(watch, 10, 4);
    assert_eq!(undelivered(&engine, watch), Err(WatchError::Compacted { oldest: 12 }));
}

#[test]
fn a_long_value_is_shared_with_the_history() {
    let mut engine = engine(HistoryLimits::default());
    let long = "v".repeat(8 << 20);
    set(&mut engine, "/k", &long);
    assert_eq!(engine.orphaned_bytes(), 0, "the history has no copy");
    let watch = engine.watch(Watched::Key(b"/k"), 1).expect("within the history");
    for _ in 0..100 {
        let append = Request::Append { key: Key::raw(b"/k"), value: b"x" };
        engine.apply(WaiterId::Request(0), &append).expect("there is capacity");
    }
    assert!(engine.orphaned_bytes() < 1000, "{} bytes", engine.orphaned_bytes());
    // The history keeps what fits, and each change has the value of its own revision.
    let from = oldest(&engine).expect("a history");
    assert!(from > 1 && engine.undelivered(watch).is_err());
    let watch = engine.watch(Watched::Key(b"/k"), from).expect("within the history");
    let lengths: Vec<_> = engine
        .undelivered(watch)
        .expect("within the history")
        .map(|change| (change.value.map_or(0, |value| value.len()) - long.len()) as u64)
        .collect();
    assert_eq!(lengths, (from - 1..=100).collect::<Vec<_>>());
    set(&mut engine, "/k", "short");
    assert_eq!(engine.orphaned_bytes(), 0, "the history holds it within its own limit");
}

#[test]
fn the_room_of_a_long_value_is_charged_to_the_history_that_holds_it() {
    let mut engine = engine(HistoryLimits { changes_max: 2, ..HistoryLimits::default() });
    set(&mut engine, "/k", &"v".repeat(8192));
    // Displaces that change, so that the value has one holder and grows in place.
    set(&mut engine, "/other", "1");
    set(&mut engine, "/other", "2");
    let append = Request::Append { key: Key::raw(b"/k"), value: b"x" };
    engine.apply(WaiterId::Request(0), &append).expect("there is capacity");
    set(&mut engine, "/k", "short");
    assert_eq!(engine.orphaned_bytes(), 0);
}

/// Compares watches that are read at random intervals with a plain log of all changes.
#[test]
fn watches_agree_with_a_log() {
    let mut overruns = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut engine = engine(HistoryLimits { changes_max: 20, ..HistoryLimits::default() });
        let scopes =
            [Watched::Key(b"/a/1"), Watched::Prefix(b"/a/"), Watched::Prefix(b"/"), Watched::Key(b"/b/2")];
        // Several for each name, some of which end and begin again while others of them wait.
        let scopes = [scopes; 3].concat();
        let mut watches: Vec<Option<WatchId>> =
            scopes.iter().map(|&scope| Some(engine.watch(scope, 0).expect("within the limits"))).collect();
        let (mut log, mut last_received_at) = (Vec::new(), vec![Vec::new(); scopes.len()]);
        let mut begins = vec![0; scopes.len()];
        let mut stopped = None;
        for _ in 0..300 {
            let key = format!("/{}/{}", if rng.below(2) == 0 { "a" } else { "b" }, rng.below(3));
            let raw = Key::raw(key.as_bytes());
            let before = engine.revision();
            if rng.below(3) == 0 {
                engine.apply(A, &Request::Delete { key: raw }).expect("legal");
            } else {
                engine.apply(A, &Request::Add { key: raw, delta: 1 }).expect("a number");
            }
            if engine.revision() > before {
                let now = value(&engine, &key).unwrap_or("-".into());
                log.push((key.clone(), format!("{} {key}={now}", engine.revision())));
            }
            if rng.below(8) == 0 {
                let index = usize::try_from(rng.below(scopes.len() as u64)).unwrap();
                if let Some(old) = watches[index] {
                    engine.unwatch(old);
                    watches[index] = Some(engine.watch(scopes[index], 0).expect("within the limits"));
                    (begins[index], last_received_at[index]) = (log.len(), Vec::new());
                }
            }
            if let Some(id) = stopped.take() {
                engine.queue_watch(id);
            }
            if rng.below(4) == 0 {
                while let Some(id) = engine.next_ready_watch() {
                    let index = watches.iter().position(|watch| *watch == Some(id)).expect("one of ours");
                    if rng.below(12) == 0 {
                        // A client that stops reading for a while.
                        stopped = Some(id);
                        continue;
                    }
                    match undelivered(&engine, id) {
                        Ok(lines) => {
                            let some = 1 + usize::try_from(rng.below(lines.len() as u64)).unwrap();
                            let last = lines[some - 1].split(' ').next().unwrap().parse().unwrap();
                            last_received_at[index].extend_from_slice(&lines[..some]);
                            engine.delivered(id, last, some);
                        }
                        Err(WatchError::Compacted { .. }) => {
                            overruns += 1;
                            engine.unwatch(id);
                            watches[index] = None;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        }
        // All that are ready now.
        while engine.next_ready_watch().is_some() {}
        for (index, &scope) in scopes.iter().enumerate() {
            if let Some(id) = watches[index] {
                match undelivered(&engine, id) {
                    Ok(lines) => last_received_at[index].extend(lines),
                    Err(_) => {
                        overruns += 1;
                        watches[index] = None;
                    }
                }
            }
            let matches = |key: &String| match scope {
                Watched::Key(watched) => key.as_bytes() == watched,
                Watched::Prefix(prefix) => key.as_bytes().starts_with(prefix),
            };
            let due: Vec<String> = log[begins[index]..]
                .iter()
                .filter(|(key, _)| matches(key))
                .map(|(_, line)| line.clone())
                .collect();
            assert!(due.starts_with(&last_received_at[index]), "seed {seed}, {scope:?}");
            assert!(watches[index].is_none() || due == last_received_at[index], "seed {seed}, {scope:?}");
        }
    }
    assert!(overruns > 5, "{overruns}");
}

#[test]
fn leased_keys_vanish_with_their_lease_and_only_then() {
    let at = Instant::from_millis;
    let mut engine = engine(HistoryLimits { leases_max: 3, leased_keys_max: 4, ..HistoryLimits::default() });
    let timed = engine.lease_grant(at(0), Some(Duration::from_millis(100))).expect("within the limits");
    let lasting = engine.lease_grant(at(0), None).expect("within the limits");
    for key in ["/a", "/b", "/c", "/free"] {
        set(&mut engine, key, "v");
    }
    engine.lease_attach(timed, Keys::scoped(b"/", &[b"a", b"b", b"never set"])).expect("within the limits");
    engine.lease_attach(lasting, Keys::scoped(b"/", &[b"b"])).expect("it changes hands");
    assert_eq!(
        engine.lease_attach(lasting, Keys::scoped(b"/", &[b"c", b"d"])),
        Err(LeaseError::TooMany(4)),
        "all or none"
    );
    let watch = engine.watch(Watched::Prefix(b"/"), 0).expect("within the limits");
    assert_eq!(engine.next_lease_expiry(), Some(at(100)));
    engine.lease_renew(at(50), timed).expect("it lives");
    assert_eq!((engine.next_lease_expiry(), lease_expire(&mut engine, at(149))), (Some(at(150)), None));
    assert_eq!((lease_expire(&mut engine, at(150)), lease_expire(&mut engine, at(150))), (Some(timed), None));
    assert_eq!(engine.next_ready_watch(), Some(watch));
    assert_eq!(undelivered(&engine, watch).unwrap(), ["5 /a=-"]);
    assert_eq!(engine.lease_renew(at(151), timed), Err(LeaseError::Unknown(timed.0)));

    // A removal detaches the key, so a new value stays.
    engine.lease_attach(lasting, Keys::scoped(b"/", &[b"c"])).expect("within the limits");
    engine.apply(A, &Request::Delete { key: Key::raw(b"/c") }).expect("legal");
    set(&mut engine, "/c", "anew");
    assert_eq!(lease_end(&mut engine, lasting), Ok(1));
    assert_eq!(lease_end(&mut engine, lasting), Err(LeaseError::Unknown(lasting.0)));
    let left = ["/a", "/b", "/c", "/free"].map(|key| value(&engine, key).is_some());
    assert_eq!(left, [false, false, true, true]);
    for _ in 0..3 {
        engine.lease_grant(at(0), None).expect("within the limits");
    }
    assert_eq!(engine.lease_grant(at(0), None), Err(LeaseError::TooMany(3)));
}

#[test]
fn keys_that_change_between_two_steps_of_a_removal_stay() {
    let mut engine = engine(HistoryLimits::default());
    let mut grant = || engine.lease_grant(Instant::ORIGIN, None).expect("within the limits");
    let (ends, lasting) = (grant(), grant());
    let names = ["/a", "/b", "/c", "/d", "/e"];
    for key in names {
        set(&mut engine, key, "v");
        engine.lease_attach(ends, Keys::scoped(b"", &[key.as_bytes()])).expect("within the limits");
    }
    let mut leased = engine.lease_end(ends).expect("it lives");
    assert_eq!(engine.remove_leased(&mut leased, 1), None);
    let left: Vec<&str> = names.into_iter().filter(|key| value(&engine, key).is_some()).collect();
    let [attached, renewed, removed, last] = left[..] else { panic!("{left:?}") };
    assert_eq!(engine.lease_attach(ends, Keys::scoped(b"", &[b"/f"])), Err(LeaseError::Unknown(ends.0)));
    engine.lease_attach(lasting, Keys::scoped(b"", &[attached.as_bytes()])).expect("it changes hands");
    set(&mut engine, renewed, "anew");
    engine.apply(A, &Request::Delete { key: Key::raw(removed.as_bytes()) }).expect("legal");
    assert_eq!(complete(|| engine.remove_leased(&mut leased, 1)), 2, "the first and the last one");
    let left = [attached, renewed, removed, last].map(|key| value(&engine, key).is_some());
    assert_eq!(left, [true, true, false, false]);
    assert_eq!(lease_end(&mut engine, lasting), Ok(1));
    assert_eq!((value(&engine, attached), engine.leased_bytes), (None, 0));
}

fn compare<'a>(key: &'a str, condition: Condition<'a>) -> Compare<'a> {
    Compare { key: Key::raw(key.as_bytes()), condition }
}

fn holds(engine: &mut Engine, compares: &[Compare<'_>]) -> bool {
    let nothing = core::iter::empty();
    engine.txn(compares.iter().copied(), nothing.clone(), nothing).expect("nothing to fail").holds
}

#[test]
fn conditions_hold_as_they_say() {
    let mut engine = engine(HistoryLimits::default());
    set(&mut engine, "/a", "1");
    engine.apply(A, &Request::Add { key: Key::raw(b"/n"), delta: 7 }).expect("a number");
    engine.apply(A, &Request::Wait { keys: Keys::scoped(b"/", &[b"w"]) }).expect("legal");
    for (key, condition, expected) in [
        ("/a", Condition::Exists, true),
        ("/a", Condition::Absent, false),
        ("/a", Condition::Revision(1), true),
        ("/a", Condition::Revision(2), false),
        ("/a", Condition::Revision(0), false),
        ("/a", Condition::Value(b"1"), true),
        ("/a", Condition::Value(b""), false),
        ("/n", Condition::Value(b"7"), true),
        ("/no", Condition::Exists, false),
        ("/no", Condition::Absent, true),
        ("/no", Condition::Revision(0), true),
        ("/no", Condition::Value(b""), false),
        ("/w", Condition::Absent, true),
        ("/w", Condition::Exists, false),
    ] {
        assert_eq!(holds(&mut engine, &[compare(key, condition)]), expected, "{key} {condition:?}");
    }
    let both = [compare("/a", Condition::Exists), compare("/no", Condition::Exists)];
    assert!(!holds(&mut engine, &both) && holds(&mut engine, &both[..1]) && holds(&mut engine, &[]));
}

#[test]
fn a_transaction_does_all_or_nothing_and_wakes_the_waiters() {
    let mut engine = engine(HistoryLimits::default());
    set(&mut engine, "/a", "1");
    set(&mut engine, "/p/x", "1");
    engine.apply(A, &Request::Wait { keys: Keys::scoped(b"/", &[b"b"]) }).expect("legal");
    let key = |name: &'static str| Key::raw(name.as_bytes());
    let then = [
        Write::Set { key: key("/b"), value: b"new" },
        Write::Delete { key: key("/a") },
        Write::Add { key: key("/n"), delta: 2 },
        Write::Append { key: key("/n"), value: b"0" },
        Write::Add { key: key("/n"), delta: 1 },
        Write::DeletePrefix { prefix: Key::raw(b"/p/") },
    ];
    let otherwise = [Write::Set { key: key("/else"), value: b"" }];
    let condition = [compare("/a", Condition::Revision(1))];
    let run = |engine: &mut Engine| {
        let applied = engine
            .txn(condition.into_iter(), then.into_iter(), otherwise.into_iter())
            .expect("all can be done");
        (applied.holds, applied.released.to_vec())
    };
    assert_eq!(run(&mut engine), (true, vec![A.into()]));
    let seen = ["/a", "/b", "/n", "/p/x", "/else"].map(|key| value(&engine, key));
    assert_eq!(seen, [None, Some("new".into()), Some("21".into()), None, None]);
    assert_eq!(run(&mut engine), (false, vec![]));
    assert!(value(&engine, "/else").is_some());
}

#[test]
fn a_transaction_that_cannot_be_done_changes_nothing() {
    let limits = EngineLimits { stored_bytes_max: 1000, ..EngineLimits::default() };
    let mut engine = Engine::new(limits, 1);
    engine.start_history(HistoryLimits::default());
    set(&mut engine, "/text", "abc");
    set(&mut engine, "/p/text", "abc");
    engine.apply(A, &Request::Wait { keys: Keys::scoped(b"/", &[b"w"]) }).expect("legal");
    let key = |name: &'static str| Key::raw(name.as_bytes());
    let add = |name| Write::Add { key: key(name), delta: 1 };
    let wake = Write::Set { key: key("/w"), value: b"" };
    let attempt = |engine: &mut Engine, writes: &[Write<'static>]| {
        let writes = [&[wake], writes].concat();
        let before = (engine.revision(), engine.stored_bytes(), engine.waiting());
        let outcome = engine.txn(core::iter::empty(), writes.into_iter(), core::iter::empty()).map(drop);
        if outcome.is_err() {
            assert_eq!((engine.revision(), engine.stored_bytes(), engine.waiting()), before);
        }
        outcome
    };
    for refused in [
        &[add("/text")][..],
        &[Write::Set { key: key("/n"), value: b"x" }, add("/n")],
        &[
            Write::Delete { key: key("/text") },
            Write::Append { key: key("/text"), value: b"x" },
            add("/text"),
        ],
        &[Write::DeletePrefix { prefix: Key::raw(b"/p/") }, add("/p/text"), add("/text")],
    ] {
        // The key is that of the last write, which finds no number.
        let Some(Write::Add { key, .. }) = refused.last() else { panic!("{refused:?}") };
        assert_eq!(attempt(&mut engine, refused), Err((ApplyError::NotANumber, Some(*key))), "{refused:?}");
    }
    let too_long = [Write::Set { key: key("/long"), value: &[0; 900] }];
    assert_eq!(attempt(&mut engine, &too_long), Err((ApplyError::Full(1000), None)));
    let fine = [
        Write::DeletePrefix { prefix: Key::raw(b"/p/") },
        add("/p/text"),
        Write::Delete { key: key("/text") },
        add("/text"),
    ];
    assert_eq!(attempt(&mut engine, &fine), Ok(()));
    assert_eq!((value(&engine, "/p/text"), value(&engine, "/text")), (Some("1".into()), Some("1".into())));
}

#[test]
fn a_prefix_goes_with_its_values_and_queues_and_leaves_its_waiters() {
    let mut engine = engine(HistoryLimits::default());
    for key in ["/r/1/a", "/r/1/b", "/r/10/a", "/r/1"] {
        set(&mut engine, key, "v");
    }
    engine
        .apply(A, &Request::QueuePush { key: Key::raw(b"/r/1/q"), value: b"item" })
        .expect("within the limits");
    engine.apply(A, &Request::Wait { keys: Keys::scoped(b"/", &[b"r/1/w"]) }).expect("legal");
    assert_eq!(delete_prefix(&mut engine, b"/r/1/").map(|done| done.removed), Ok(2));
    assert_eq!(delete_prefix(&mut engine, b"/r/1/").map(|done| done.removed), Ok(0));
    assert_eq!(engine.keys_with_prefix(b""), [&b"/r/1"[..], b"/r/10/a"]);
    assert_eq!(engine.waiting(), 1);
    let set = Request::Set { key: Key::raw(b"/r/1/w"), value: b"" };
    assert_eq!(engine.apply(A, &set).expect("within the limits").released, [A.into()]);
    assert_eq!(delete_prefix(&mut engine, b"").map(|done| done.removed), Ok(3));
    assert_eq!((engine.footprint(), engine.stored_bytes()), (0, 0));
}

#[test]
fn keys_come_in_pages() {
    let mut engine = engine(HistoryLimits::default());
    for key in ["/p/c", "/p/a", "/q", "/p/b"] {
        set(&mut engine, key, "v");
    }
    let mut page = |after: &[u8], count_max, bytes_max| {
        let mut listing = engine.list(b"/p/", after, count_max, bytes_max);
        while !engine.list_some(&mut listing, 1) {}
        (keys_of(&listing).iter().map(|key| text(key)).collect::<Vec<_>>().join(" "), listing.has_more())
    };
    let all = usize::MAX;
    assert_eq!(page(b"", 2, all), ("/p/a /p/b".into(), true));
    assert_eq!(page(b"/p/b", 2, all), ("/p/c".into(), false));
    assert_eq!(page(b"", 3, all), ("/p/a /p/b /p/c".into(), false));
    assert_eq!(page(b"", 0, all), (String::new(), true));
    // A key of 4 bytes takes 12. One key fits always, or the next page would begin at the same place.
    assert_eq!(page(b"", 3, 13), ("/p/a /p/b".into(), true));
    assert_eq!(page(b"", 3, 1), ("/p/a".into(), true));
}

/// Returns the keys of a list.
fn keys_of(listing: &Listing) -> Vec<Vec<u8>> {
    let count = usize::try_from(listing.count()).expect("a short list");
    let keys = |bytes: &[u8]| Keys::packed(count, bytes).iter().map(|key| key.pieces().concat()).collect();
    listing.bytes().read(keys)
}

/// While keys are put in order and listed, one by one, others come and go.
#[test]
fn a_list_in_steps_has_each_key_that_stays() {
    for seed in 0..40 {
        let (mut engine, mut rng) = (Engine::new(EngineLimits::default(), 1), Rng::new(seed));
        let name = |number: u64| format!("/{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let stays = |number: u64| number.is_multiple_of(3);
        (0..300).for_each(|number| set(&mut engine, &name(number), "v"));
        (0..50).for_each(|number| {
            let key = format!("/waited{number}");
            engine.apply(A, &Request::Wait { keys: Keys::scoped(b"", &[key.as_bytes()]) }).expect("legal");
            engine.forget_waits(A);
        });
        let mut listing = engine.list(b"/", b"", u64::MAX, usize::MAX);
        while !engine.list_some(&mut listing, usize::try_from(1 + rng.below(7)).expect("small")) {
            let number = rng.below(400);
            if !stays(number) {
                let key = name(number);
                if rng.below(2) == 0 {
                    set(&mut engine, &key, "v");
                } else {
                    engine.apply(A, &Request::Delete { key: Key::raw(key.as_bytes()) }).expect("legal");
                }
            }
        }
        let listed = keys_of(&listing);
        assert!(listed.is_sorted_by(|one, next| one < next), "seed {seed}: in byte order, each once");
        let missing = (0..300).filter(|&number| stays(number)).map(name);
        let missing: Vec<String> = missing.filter(|key| !listed.contains(&key.as_bytes().to_vec())).collect();
        assert!(missing.is_empty(), "seed {seed}: {missing:?}");
        assert!(listed.iter().all(|key| (0..400).any(|number| name(number).as_bytes() == key)), "no others");
        // Afterwards all keys are in order, those too that came meanwhile.
        let mut again = engine.list(b"", b"", u64::MAX, usize::MAX);
        assert!(engine.list_some(&mut again, usize::MAX));
        assert_eq!(keys_of(&again), engine.keys_with_prefix(b""), "seed {seed}");
    }
}

#[test]
fn behind_a_fence_nothing_changes_whatever_the_request() {
    use crate::store::engine::Stale;
    use crate::store::op::Pairs;
    let mut engine = engine(HistoryLimits::default());
    set(&mut engine, "/r.3/a", "1");
    set(&mut engine, "/r.4/a", "1");
    engine
        .apply(A, &Request::QueuePush { key: Key::raw(b"/r.3/q"), value: b"x" })
        .expect("within the limits");
    let lease = engine.lease_grant(Instant::ORIGIN, None).expect("within the limits");
    let keys: [&[u8]; 2] = [b"/r.3/a", b"/r.4/a"];
    engine.lease_attach(lease, Keys::scoped(b"", &keys)).expect("known");
    fence(&mut engine, b"/r.", 3);
    let key = Key::raw(b"/r.3/a");
    let pairs: [(&[u8], &[u8]); 2] = [(b"/r.4/b", b""), (b"/r.3/b", b"")];
    let stale = ApplyError::Stale(Stale { round: 3, over: 3 });
    for request in [
        Request::Set { key, value: b"2" },
        Request::CompareSet { key, expected: b"not", desired: b"2" },
        Request::Add { key, delta: 1 },
        Request::Delete { key },
        Request::Append { key, value: b"2" },
        Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) },
        Request::QueuePush { key: Key::raw(b"/r.3/q"), value: b"" },
        Request::QueuePop { key: Key::raw(b"/r.3/q") },
        Request::Barrier { key: Key::raw(b"/r.0/b"), world_size: 1 },
        Request::Set { key: Key::scoped(b"/r.", b"3/").with_suffix(b"a"), value: b"2" },
    ] {
        let refused = engine.apply(A, &request).map(|_| ()).expect_err("behind the fence");
        assert!(matches!(refused, ApplyError::Stale(Stale { over: 3, .. })), "{request:?}: {refused}");
    }
    let set_live = Write::Set { key: Key::raw(b"/r.4/a"), value: b"2" };
    for prefix in [&b"/r.3/"[..], b"/r.3/x"] {
        assert_eq!(delete_prefix(&mut engine, prefix), Err(stale));
        let writes = [set_live, Write::DeletePrefix { prefix: Key::raw(prefix) }];
        let refused = engine.txn([].into_iter(), writes.into_iter(), [].into_iter());
        assert_eq!(refused.map(|applied| applied.holds), Err((stale, Some(Key::raw(prefix)))));
    }
    assert_eq!(lease_end(&mut engine, lease), Ok(1), "the lease takes what may go");
    assert_eq!(value(&engine, "/r.3/a").as_deref(), Some("1"));
    assert_eq!(value(&engine, "/r.4/a"), None);
    for request in [
        Request::Get { key },
        Request::Check { keys: Keys::one(key) },
        Request::Wait { keys: Keys::one(key) },
        Request::QueueLen { key: Key::raw(b"/r.3/q") },
        Request::ListKeys,
    ] {
        engine.apply(A, &request).expect("reading goes on");
    }
    discard(&mut engine, b"/r.3/");
    assert_eq!(engine.key_count(), 0, "its owner may remove it");
    set(&mut engine, "/r.30/a", "1");
    assert_eq!(delete_prefix(&mut engine, b"/r.30"), Ok(PrefixRemoved { removed: 1, left: 0 }));
}

#[test]
fn a_prefix_above_a_fence_takes_what_may_go_and_counts_what_stays() {
    let mut engine = engine(HistoryLimits::default());
    for key in ["/a", "/r.3/a", "/r.3/b", "/r.4/a"] {
        set(&mut engine, key, "1");
    }
    engine
        .apply(A, &Request::QueuePush { key: Key::raw(b"/r.3/q"), value: b"x" })
        .expect("within the limits");
    fence(&mut engine, b"/r.", 3);
    assert_eq!(delete_prefix(&mut engine, b"/r.3"), Ok(PrefixRemoved { removed: 0, left: 2 }));
    assert_eq!(delete_prefix(&mut engine, b""), Ok(PrefixRemoved { removed: 2, left: 2 }));
    set(&mut engine, "/b", "1");
    let writes = [Write::DeletePrefix { prefix: Key::raw(b"/") }];
    let applied = engine.txn([].into_iter(), writes.into_iter(), [].into_iter());
    assert!(applied.expect("it takes what may go").holds);
    assert_eq!(engine.keys_with_prefix(b""), [b"/r.3/a", b"/r.3/b"]);
    let length = engine.apply(A, &Request::QueueLen { key: Key::raw(b"/r.3/q") }).expect("read").answer;
    assert!(matches!(length, crate::store::engine::Answer::Number(1)), "{length:?}");
}

#[test]
fn a_popper_waits_for_items_whatever_else_goes_by_the_name() {
    let mut engine = engine(HistoryLimits::default());
    let key = Key::raw(b"/q");
    let popper = WaiterId::Request(5);
    set(&mut engine, "/q", "a value");
    engine.wait_for_item(popper, key).expect("within the limits");
    assert_eq!(engine.waiting(), 1, "the value is no item");
    let applied = engine.apply(A, &Request::QueuePush { key, value: b"x" }).expect("within the limits");
    assert_eq!(applied.released, [popper]);
    engine.wait_for_item(popper, key).expect("within the limits");
    engine.forget_waits(popper);
    assert_eq!(engine.waiting(), 0);
}

/// However many wait for one key, a step ends few waits.
#[test]
fn the_waits_for_a_fenced_key_end_in_steps() {
    let mut engine = engine(HistoryLimits::default());
    let waiter = |index: u32| ConnId { index, generation: 0 };
    for index in 0..100 {
        let keys: [&[u8]; 2] = [b"r/1/a", if index % 2 == 0 { b"r/1/b" } else { b"s" }];
        engine.apply(waiter(index), &Request::Wait { keys: Keys::scoped(b"/", &keys) }).expect("legal");
    }
    engine.apply(waiter(100), &Request::Wait { keys: Keys::scoped(b"/", &[b"r/1/c"]) }).expect("legal");
    let (mut scan, mut failed) = (engine.fence(b"/r/", 1), Vec::new());
    while !scan.is_over {
        let some = engine.fail_waits(&mut scan, 7);
        assert!(some.len() <= 7, "{} at once", some.len());
        failed.extend(some);
    }
    // One that waits for two of the keys may be named twice.
    let all = (0..=100).map(|index| WaiterId::from(waiter(index)));
    assert!(all.clone().all(|waiter| failed.contains(&waiter)) && failed.len() < 110, "{failed:?}");
    engine.free_some(usize::MAX);
    assert_eq!((engine.waiting(), engine.footprint()), (0, 0));
}

/// A queue belongs to one key, but freeing its items takes as long as there are items. The removal does not wait for it.
#[test]
fn the_items_of_removed_queues_are_freed_in_steps() {
    let mut engine = engine(HistoryLimits::default());
    let push = |engine: &mut Engine, key: &'static str, count: u32| {
        for _ in 0..count {
            let request = Request::QueuePush { key: Key::raw(key.as_bytes()), value: b"item" };
            engine.apply(A, &request).expect("within the limits");
        }
    };
    set(&mut engine, "/a", "v");
    push(&mut engine, "/b", 1000);
    push(&mut engine, "/c", 3);
    set(&mut engine, "/d", "v");
    push(&mut engine, "/e", 500);
    let mut removal = engine.delete_prefix(b"/").expect("not fenced");
    let removed = complete(|| {
        engine.take_work();
        let removed = engine.remove_some(&mut removal, 2);
        assert!(engine.take_work() <= 30);
        removed
    });
    assert_eq!((removed.removed, removed.left), (2, 0));
    assert_eq!((engine.footprint(), engine.stored_bytes()), (0, 0));
    push(&mut engine, "/b", 1);
    let mut steps = 0;
    while engine.has_to_free() {
        engine.take_work();
        engine.free_some(10);
        assert!(engine.take_work() <= 11, "step {steps}");
        steps += 1;
    }
    assert!(steps > 30, "{steps} steps");
    assert_eq!((engine.footprint(), engine.key_count()), (1, 0));
}
