//! Behaviour that users see, one per test.

use super::*;
use alloc::vec::Vec;

#[test]
fn the_last_one_releases_all() {
    let mut world = World::new(count(3));
    assert_eq!(world.arrive("a"), "");
    assert_eq!(world.arrive("b"), "");
    let reported = "a gets 1: all were there; b gets 1: all were there; c gets 1: all were there";
    assert_eq!(world.arrive("c"), reported);
    assert_eq!((world.barriers.poll_timeout(), world.barriers.waiting()), (None, 0));
    assert_eq!(world.arrive("b"), "", "a participant of the last one begins the next one");
    assert_eq!(world.status(), "2 Open 1/3");
}

#[test]
fn all_who_wait_share_one_end() {
    let mut world = World::new(count(100));
    let names: Vec<String> = (0..99).map(|number| format!("n{number}")).collect();
    names.iter().for_each(|name| drop(world.arrive(name)));
    world.barriers.handle(world.now + secs(60), Input::Tick).expect("a tick");
    let ends: Vec<Arc<End>> = core::iter::from_fn(|| world.barriers.poll_output())
        .filter_map(|output| if let Output::Over { end, .. } = output { Some(end) } else { None })
        .collect();
    assert_eq!(ends.len(), 99);
    assert!(ends.iter().all(|end| Arc::ptr_eq(end, &ends[0])));
}

/// One participant waits long, many others do not, and one never arrives.
#[test]
fn many_who_give_up_cost_a_look_at_each_and_no_more() {
    const MANY: u32 = 2000;
    let names: Vec<String> = (0..MANY).map(|number| format!("n{number}")).collect();
    let all: Vec<&[u8]> = names.iter().map(String::as_bytes).chain([&b"missing"[..]]).collect();
    let listed = Participants::Names(Keys::scoped(b"", &all));
    for (participants, is_again) in [(count(MANY + 1), false), (count(MANY + 1), true), (listed, false)] {
        let mut barriers = Barriers::new(BarrierLimits::default(), 1);
        let arrive = |barriers: &mut Barriers, at, name: &[u8], owner, request, timeout| {
            let arrival = ArrivalId { owner: OwnerId(owner), request };
            let arrive = Arrive { arrival, key: KEY, generation: 0, name, timeout, participants };
            barriers.handle(Instant::from_millis(at), Input::Arrive(arrive)).expect("awaited");
        };
        if is_again {
            for (owner, name) in (1..).zip(&all) {
                arrive(&mut barriers, 0, name, owner, 1, secs(600));
            }
            while barriers.poll_output().is_some() {}
        }
        for (owner, name) in (1..).zip(&names) {
            let timeout = if owner == 1 { secs(600) } else { secs(10) };
            arrive(&mut barriers, owner / 4, name.as_bytes(), owner, 2, timeout);
        }
        let members = |barriers: &Barriers| barriers.barriers[0].members.looked_at.take();
        members(&barriers);
        // The arrivals with the same deadline end first, then all others at once.
        for at in [10_000, 60_000] {
            barriers.handle(Instant::from_millis(at), Input::Tick).expect("a tick");
        }
        assert!(members(&barriers) < 4 * u64::from(MANY), "{participants:?}");
        let reported = core::iter::from_fn(|| barriers.poll_output());
        let missing = reported.map(|output| match output {
            Output::Over { end, .. } => end,
            other => panic!("{other:?}"),
        });
        let missing: Vec<(u32, usize)> = missing
            .map(|end| match &*end {
                End::TimedOut { absent_count, absent } => (*absent_count, absent.as_keys().len()),
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!((missing.len(), barriers.waiting()), (MANY as usize - 1, 1));
        let is_named = usize::from(is_again || matches!(participants, Participants::Names(_)));
        assert_eq!(missing[0], (1, is_named));
    }
}

#[test]
fn the_end_of_a_session_costs_a_look_at_the_barriers_that_await_its_name() {
    const MANY: usize = 500;
    let mut barriers = Barriers::new(BarrierLimits::default(), 1);
    for number in 0..MANY {
        let (key, absent) = (format!("k{number}"), format!("absent{number}"));
        let names: [&[u8]; 3] = [b"a", absent.as_bytes(), b"all"];
        let arrival = ArrivalId { owner: OwnerId(1), request: number as u64 };
        let (key, participants) = (key.as_bytes(), Participants::Names(Keys::scoped(b"", &names)));
        let arrive = Arrive { arrival, key, generation: 0, name: b"a", timeout: secs(60), participants };
        barriers.handle(Instant::ORIGIN, Input::Arrive(arrive)).expect("it is awaited");
    }
    let mut end = |name: &[u8]| {
        barriers.barriers.iter().for_each(|(_, barrier)| barrier.members.looked_at.set(0));
        let input = Input::Ended { owner: OwnerId(2), node: Some(node(name)), why: Why::Connection };
        barriers.handle(Instant::ORIGIN, input).expect("an end");
        let looked_at: u64 =
            barriers.barriers.iter().map(|(_, barrier)| barrier.members.looked_at.get()).sum();
        (looked_at, core::iter::from_fn(|| barriers.poll_output()).count())
    };
    assert_eq!(end(b"a stranger"), (0, 0));
    let (looked_at, ended) = end(b"absent7");
    assert!(looked_at < 10 && ended == 1, "{looked_at} members for {ended}");
    assert_eq!(end(b"absent7"), (0, 0), "nothing awaits it any more");
    assert_eq!(end(b"all").1, MANY - 1);
    assert!(barriers.awaited_names.is_empty());
}

#[test]
fn one_waits_for_nobody() {
    assert_eq!(World::new(count(1)).arrive("a"), "a gets 1: all were there");
    assert_eq!(World::new(count(1)).attempt("a"), "a gets 1: all were there");
    assert_eq!(World::new(list(&[b"a"])).attempt("a"), "a gets 1: all were there");
}

#[test]
fn the_first_one_sets_the_deadline_for_all() {
    let mut world = World::new(count(3));
    world.arrive("a");
    world.pass(secs(59));
    let request = Arrive { timeout: secs(1000), ..world.request("b") };
    world.give(Input::Arrive(request));
    assert_eq!(world.barriers.poll_timeout(), Some(Instant::ORIGIN + secs(60)));
    assert_eq!(
        world.pass(secs(1)),
        "a gets 1: the time was up, and 1 were missing; b gets 1: the time was up, and 1 were missing"
    );
}

#[test]
fn who_has_less_time_than_the_others_is_told_alone_who_is_missing() {
    let briefly = |world: &mut World, name| {
        let request = Arrive { timeout: secs(10), ..world.request(name) };
        world.give(Input::Arrive(request))
    };
    let mut world = World::new(list(ABC));
    world.arrive("a");
    assert_eq!(briefly(&mut world, "b"), "");
    assert_eq!(world.barriers.poll_timeout(), Some(Instant::ORIGIN + secs(10)));
    assert_eq!(world.pass(secs(10)), "b gets 1: the time was up, and 1 were missing: c");
    assert_eq!(world.status(), "1 Open 1/3", "a waits on");
    // Both deadlines have passed at once: b left before the others were counted.
    briefly(&mut world, "b");
    assert_eq!(
        world.pass(secs(60)),
        "b gets 1: the time was up, and 1 were missing: c; \
         a gets 1: the time was up, and 2 were missing: b, c"
    );

    // An arrival that is replaced or released leaves no deadline.
    let mut world = World::new(count(2));
    world.arrive("a");
    world.arrive("a");
    briefly(&mut world, "a");
    assert_eq!(world.arrive("a"), "a is replaced by a");
    assert_eq!(world.barriers.poll_timeout(), Some(Instant::ORIGIN + secs(60)));
    briefly(&mut world, "a");
    world.arrive("b");
    assert_eq!((world.barriers.poll_timeout(), world.pass(secs(60))), (None, String::new()));

    // The last waiting arrival ends its generation, as a withdrawal does.
    let mut world = World::new(count(3));
    world.arrive("a");
    briefly(&mut world, "b");
    world.withdraw("a");
    assert_eq!(world.pass(secs(10)), "b gets 1: the time was up, and 2 were missing");
    assert!(world.barriers.barriers.is_empty() && world.barriers.poll_timeout().is_none());
}

#[test]
fn who_comes_at_the_deadline_is_late() {
    let mut world = World::new(count(2));
    world.arrive("a");
    world.now = world.now + secs(60);
    assert_eq!(
        world.arrive("b"),
        "a gets 1: the time was up, and 1 were missing; b gets 1: the time was up, and 1 were missing"
    );
}

#[test]
fn a_late_caller_hears_it_once_and_may_begin_anew_then() {
    let mut world = World::new(count(2));
    world.arrive("a");
    world.die("a");
    assert_eq!(world.arrive("b"), "b gets 1: a is gone: the connection ended");
    assert_eq!(world.arrive("b"), "");
    assert_eq!(world.status(), "2 Open 1/2");
    assert_eq!(world.arrive("a"), "a gets 2: all were there; b gets 2: all were there");
}

#[test]
fn who_comes_with_other_participants_is_not_late() {
    let mut world = World::new(count(3));
    world.arrive_all("a b");
    world.die("b");
    assert_eq!(world.arrive_with("c", count(2)), "", "the survivors go on with fewer");
    assert_eq!(world.arrive_with("a", count(2)), "c gets 2: all were there; a gets 2: all were there");
}

#[test]
fn a_list_says_who_is_late() {
    let mut world = World::new(list(ABC));
    world.arrive("a");
    assert_eq!(world.cancel("x"), "a gets 1: x cancelled it; x cancelled: true");
    assert_eq!(world.arrive("x"), "error: the name is not among the participants");
    assert_eq!(world.arrive("c"), "c gets 1: x cancelled it");
    assert_eq!(world.cancel("x"), "x cancelled: false");
}

#[test]
fn lists_are_sets() {
    let mut world = World::new(list(ABC));
    world.arrive("a");
    assert_eq!(world.arrive_with("b", list(&[b"c", b"b", b"a"])), "");
    let begun = "error: a has begun with other participants";
    for other in [
        list(&[b"a", b"b"]),
        list(&[b"a", b"b", b"d"]),
        list(&[b"a", b"b", b"b"]),
        list(&[b"a", b"b", b"c", b"d"]),
        count(3),
    ] {
        assert_eq!(world.arrive_with("c", other), begun);
    }
    // Keys in pieces equal the same keys in one piece.
    let pieces = Participants::Names(Keys::scoped(b"n", &[b"1", b"2"]));
    let mut world = World::new(list(&[b"n2", b"n1"]));
    assert_eq!(world.arrive("n1"), "");
    assert_eq!(world.arrive_with("n2", pieces), "n2 gets 1: all were there; n1 gets 1: all were there");
    assert_eq!(world.arrive_with("n1", pieces), "");
}

#[test]
fn a_conflict_says_who_set_what() {
    let mut world = World::new(count(3));
    world.arrive_all("a b");
    world.withdraw("a");
    let request = Arrive { participants: count(4), ..world.request("c") };
    let refusal = world.barriers.handle(world.now, Input::Arrive(request)).expect_err("a conflict");
    assert_eq!(refusal, Refusal::Conflict { set_by: b"a"[..].into(), count: 3 }, "though it waits no more");
    let fault = refusal.fault();
    assert_eq!((fault.first, fault.text), (3, &b"a"[..]));
}

#[test]
fn the_missing_are_named() {
    let mut world = World::new(list(ABC));
    world.arrive("b");
    assert_eq!(world.pass(secs(60)), "b gets 1: the time was up, and 2 were missing: a, c");

    let mut world = World::new(count(3));
    world.arrive_all("a b c");
    world.arrive_all("b c");
    assert_eq!(
        world.attempt("b"),
        "b is replaced by b; b gets 2: the time was up, and 1 were missing: a",
        "those who were there the last time"
    );
    assert_eq!(world.arrive("x"), "");
    assert_eq!(
        world.pass(secs(60)),
        "c gets 2: the time was up, and 1 were missing; x gets 2: the time was up, and 1 were missing",
        "a or b is replaced by x, and it is not known which"
    );

    let limits = BarrierLimits { absent_named_max: 2, ..BarrierLimits::default() };
    let mut world = World::limited(list(&[b"a", b"b", b"c", b"d"]), limits);
    world.arrive("c");
    assert_eq!(world.pass(secs(60)), "c gets 1: the time was up, and 3 were missing: a, b and 1 more");

    let limits = BarrierLimits { absent_named_bytes_max: 7, ..BarrierLimits::default() };
    let mut world = World::limited(list(&[b"first", b"2", b"third", b"4", b"c"]), limits);
    world.arrive("c");
    let reported = "c gets 1: the time was up, and 4 were missing: first, 2 and 2 more";
    assert_eq!(world.pass(secs(60)), reported);
}

#[test]
fn arrivals_at_keys_of_a_round_that_ends_are_taken_back() {
    let mut world = World::new(list(ABC));
    assert_eq!(world.arrive_in("r.0/x", "a"), "");
    assert_eq!(world.arrive_in("r.0/x", "b"), "");
    assert_eq!(world.arrive_in("r.0/y", "c"), "");
    assert_eq!(world.arrive_in("r.00/x", "d"), "error: the name is not among the participants");
    assert_eq!(world.arrive_in("r.1/x", "a"), "");
    let reported = "a is too late for 0; b is too late for 0; c is too late for 0";
    assert_eq!(world.give(Input::Fence { prefix: b"r.0/", round: 0 }), reported);
    assert_eq!((world.barriers.waiting(), world.barriers.barriers.len()), (1, 1));
    assert_eq!(world.barriers.awaited_names.len(), 2);
    assert_eq!(world.give(Input::Fence { prefix: b"r.0/", round: 0 }), "");
}

#[test]
fn trying_once_leaves_no_trace() {
    let mut world = World::new(count(2));
    assert_eq!(world.attempt("a"), "a gets 1: the time was up, and 1 were missing");
    assert!(world.barriers.barriers.is_empty());
    assert_eq!(world.arrive("b"), "");
    assert_eq!(world.attempt("a"), "b gets 1: all were there; a gets 1: all were there");

    let mut world = World::new(list(ABC));
    assert_eq!(world.attempt("b"), "b gets 1: the time was up, and 2 were missing: a, c");
    assert_eq!(world.attempt("x"), "error: the name is not among the participants");
    world.arrive("b");
    assert_eq!(world.attempt("b"), "b is replaced by b; b gets 1: the time was up, and 2 were missing: a, c");
    assert!(world.barriers.barriers.is_empty(), "it took the place of the one who waited");
}

#[test]
fn the_same_name_does_not_count_twice() {
    let mut world = World::new(count(2));
    world.arrive("a");
    let request = Arrive { name: b"a", ..world.request("z") };
    assert_eq!(world.give(Input::Arrive(request)), "a is replaced by z");
    assert_eq!(world.die("a"), "", "its session waits no more");
    assert_eq!(world.arrive("b"), "z gets 1: all were there; b gets 1: all were there");
}

#[test]
fn a_death_breaks_for_all_at_once() {
    let mut world = World::new(count(4));
    world.arrive_all("a b c");
    assert_eq!(
        world.end("b", Why::HostSilent),
        "a gets 1: b is gone: the host fell silent; c gets 1: b is gone: the host fell silent"
    );
    assert_eq!(world.status(), "1 Broken 0/4");
    assert_eq!(world.arrive_at("d", 1), "d gets 1: b is gone: the host fell silent");
    assert_eq!(world.arrive("b"), "", "who was there is not late, though it came back with another session");
}

#[test]
fn the_death_of_who_is_awaited_by_name_breaks_too() {
    let mut world = World::new(list(ABC));
    assert_eq!(world.die("c"), "", "no participant waits for it yet");
    world.arrive("a");
    assert_eq!(world.die("x"), "");
    assert_eq!(world.give(Input::Ended { owner: owner("c"), node: None, why: Why::Connection }), "");
    assert_eq!(world.end("c", Why::Left), "a gets 1: c is gone: left");
    world.arrive("a");
    assert_eq!(
        world.give(Input::Ended { owner: OwnerId(1), node: Some(node(b"a")), why: Why::Connection }),
        "",
        "the name waits in another session"
    );
}

#[test]
fn leaving_breaks_a_list_but_no_count() {
    let mut world = World::new(count(3));
    world.arrive_all("a b");
    assert_eq!(world.end("b", Why::Left), "");
    assert_eq!(world.status(), "1 Open 1/3");
    let mut world = World::new(list(ABC));
    world.arrive_all("a b");
    assert_eq!(world.end("b", Why::Left), "a gets 1: b is gone: left");
}

#[test]
fn one_session_may_stand_for_many_names() {
    let mut world = World::new(count(4));
    for name in [b"a0", b"a1"] {
        let request = Arrive { name, ..world.request("a") };
        world.give(Input::Arrive(request));
    }
    world.arrive("b");
    let request = Arrive { key: b"other", name: b"a2", ..world.request("a") };
    world.give(Input::Arrive(request));
    assert_eq!(world.die("a"), "b gets 1: a0 is gone: the connection ended");
    assert_eq!(world.barriers.waiting(), 0);
    assert_eq!(world.barrier(b"other").map(|barrier| barrier.phase), Some(Phase::Broken));
}

#[test]
fn a_generation_without_anybody_has_not_begun() {
    let mut world = World::new(count(3));
    world.arrive_all("a b");
    world.withdraw("a");
    assert_eq!(world.status(), "1 Open 1/3");
    world.withdraw("b");
    assert!(world.barriers.barriers.is_empty() && world.barriers.poll_timeout().is_none());
    world.pass(secs(30));
    assert_eq!(world.arrive_with("c", count(2)), "", "other participants, another deadline");
    assert_eq!(world.barriers.poll_timeout(), Some(Instant::ORIGIN + secs(90)));
    assert_eq!(world.arrive_with("a", count(2)), "c gets 1: all were there; a gets 1: all were there");
    world.arrive("a");
    world.withdraw("a");
    assert_eq!(world.status(), "2 Unbegun 0/3");
    assert_eq!(world.arrive_at("a", 1), "a gets 1: all were there");
}

#[test]
fn an_end_is_that_of_its_own_participants() {
    let mut world = World::new(count(2));
    world.arrive("a");
    world.pass(secs(60));
    world.arrive_with("x", count(3));
    world.withdraw("x");
    assert_eq!(world.arrive_with("x", count(3)), "", "it is not late at what others failed");
}

#[test]
fn generations_have_numbers() {
    let limits = BarrierLimits { ends_kept_max: 2, ..BarrierLimits::default() };
    let mut world = World::limited(count(2), limits);
    assert_eq!(world.arrive_at("a", 2), "error: only generations from 0 to 1 are known");
    for generation in 1..=4 {
        assert_eq!(world.arrive_at("a", generation), "");
        assert_eq!(world.arrive_at("c", generation + 1), {
            let oldest = generation.saturating_sub(2).max(u64::from(generation > 1));
            format!("error: only generations from {oldest} to {generation} are known")
        });
        world.arrive_at("b", generation);
    }
    assert_eq!(world.arrive_at("c", 4), "c gets 4: all were there", "any participant may ask");
    assert_eq!(world.arrive_at("c", 3), "c gets 3: all were there");
    let request = Arrive { generation: 2, ..world.request("c") };
    let refusal = world.barriers.handle(world.now, Input::Arrive(request)).expect_err("forgotten");
    assert_eq!((refusal.fault().first, refusal.fault().second), (3, 5));
}

#[test]
fn withdrawing_what_is_over_is_nothing() {
    let mut world = World::new(count(2));
    world.arrive_all("a b");
    assert_eq!(world.withdraw("a"), "");
    assert_eq!(world.status(), "1 Released 0/2");
}

#[test]
fn a_request_waits_once() {
    let mut world = World::new(count(2));
    let request = world.request("a");
    assert_eq!(world.give(Input::Arrive(request)), "");
    let reported = world.give(Input::Arrive(Arrive { name: b"b", ..request }));
    assert_eq!(reported, "error: request 1 of 97 waits already");
}

#[test]
fn a_timeout_without_end_never_comes() {
    let mut world = World::new(count(2));
    let request = Arrive { timeout: Duration::MAX, ..world.request("a") };
    world.give(Input::Arrive(request));
    assert_eq!(world.barriers.poll_timeout(), Some(Instant::MAX));
    assert_eq!(world.pass(secs(1 << 33)), "");
}

#[test]
fn the_oldest_barrier_without_anybody_is_forgotten_first() {
    let limits = BarrierLimits { barriers_max: 2, ..BarrierLimits::default() };
    let mut world = World::limited(count(1), limits);
    world.arrive_in("x", "a");
    world.arrive_in("y", "a");
    world.arrive_in("x", "a");
    world.arrive_in("z", "a");
    assert_eq!((world.barriers.barriers.len(), world.barrier(b"y").is_some()), (2, false));
    assert_eq!(world.barrier(b"x").map(|barrier| barrier.generation), Some(2));
    world.participants = count(2);
    world.arrive_in("x", "a");
    world.arrive_in("y", "a");
    assert!(world.barrier(b"z").is_none());
    assert_eq!(world.arrive_in("z", "a"), "error: there are 2 barriers already, or there would be more");
    assert_eq!(world.barriers.waiting(), 2);
}

#[test]
fn limits_hold() {
    let limits = BarrierLimits { arrivals_max: 2, participants_max: 3, ..BarrierLimits::default() };
    let limits = BarrierLimits { name_bytes_max: 3, ..limits };
    let mut world = World::limited(count(3), limits);
    let many = "error: there are 3 participants already, or there would be more";
    assert_eq!(world.arrive_with("a", count(4)), many);
    assert_eq!(world.arrive_with("a", list(&[b"a", b"b", b"c", b"d"])), many);
    let long = "error: a name of 4 bytes is over the limit of 3";
    assert_eq!(world.arrive("aaaa"), long);
    assert_eq!(world.cancel("aaaa"), long);
    assert_eq!(world.arrive_with("a", list(&[b"a", b"bbbb"])), long);
    assert_eq!(world.arrive_with("a", list(&[b"a", b""])), "error: a name in the list is empty");
    world.arrive_all("a b");
    let full = "error: there are 2 arrivals already, or there would be more";
    assert_eq!((world.arrive("c"), world.arrive_in("x", "c")), (full.to_string(), full.to_string()));
    assert_eq!(world.arrive("a"), "a is replaced by a", "which is not one more");
    assert_eq!(world.barriers.barriers.len(), 1);
}

/// Where many small barriers are remembered, one arrival does not forget all of them.
#[test]
fn one_arrival_forgets_few_of_many_barriers() {
    let mut world = World::limited(count(1), BarrierLimits::default());
    let many = FORGOTTEN_AT_ONCE_MAX + 1000;
    (0..many).for_each(|number| _ = world.arrive_in(&format!("key {number}"), "a"));
    assert_eq!(world.barriers.barriers.len(), many);
    world.barriers.limits.stored_bytes_max = world.barriers.stored_bytes;
    let key = "k".repeat(usize::try_from(world.barriers.stored_bytes).expect("few") - 1000);
    assert!(world.arrive_in(&key, "a").starts_with("error: there are"));
    assert_eq!(world.barriers.barriers.len(), 1000);
    assert!(!world.arrive_in(&key, "a").starts_with("error"), "the rest suffices");
}

#[test]
fn bytes_are_bounded_and_given_back() {
    let limits = BarrierLimits { stored_bytes_max: 4000, ..BarrierLimits::default() };
    let mut world = World::limited(count(2), limits);
    for round in 0..100 {
        let key = format!("key {round}");
        world.arrive_in(&key, "a");
        world.arrive_in(&key, "b");
        assert!(world.barriers.stored_bytes <= 4000);
    }
    assert!(world.barriers.barriers.len() > 1, "as many are remembered as there is room for");
    world.participants = count(100);
    let mut refused = 0;
    for name in (0..50).map(|number| format!("n{number}")) {
        refused +=
            u32::from(world.arrive_in("big", &name).starts_with("error: there are 4000 bytes of names"));
    }
    assert!(refused > 0 && world.barriers.stored_bytes <= 4000 && world.barriers.barriers.len() == 1);
    world.die("n0");
    assert_eq!(world.barriers.waiting(), 0);
    let barriers = &world.barriers;
    assert_eq!(
        barriers.stored_bytes,
        barriers.barriers.iter().map(|(_, barrier)| barrier.cost()).sum::<u64>()
    );
}

#[test]
fn strangers_that_come_and_go_are_forgotten() {
    let mut world = World::new(count(3));
    world.arrive_all("a b c");
    world.arrive("a");
    for name in (0..1000).map(|number| format!("n{number}")) {
        world.arrive(&name);
        world.withdraw(&name);
    }
    assert!(world.barriers.barriers[0].members.len() <= 20);
    assert_eq!(world.attempt("b"), "b gets 2: the time was up, and 1 were missing: c");
    assert_eq!(world.arrive_all("b c").matches("all were there").count(), 3);
    world.arrive("a");
    world.die("a");
    for name in (0..1000).map(|number| format!("n{number}")) {
        world.arrive_at(&name, 3);
    }
    assert!(world.barriers.barriers[0].members.len() <= 20, "so are those who came too late");
}

#[test]
fn a_steady_loop_stores_nothing_new() {
    let mut world = World::new(count(64));
    let names: Vec<String> = (0..64).map(|number| format!("n{number}")).collect();
    let mut bytes = Vec::new();
    for _ in 0..20 {
        names.iter().for_each(|name| drop(world.arrive(name)));
        bytes.push(world.barriers.stored_bytes);
    }
    assert_eq!(world.status(), "20 Released 0/64");
    assert_eq!(bytes[10], bytes[19]);
    assert_eq!(world.barriers.barriers[0].members.len(), 64);
}

#[test]
fn what_is_due_at_one_instant_ends_in_steps_and_no_overdue_barrier_completes() {
    const MANY: u64 = 3 * ENDS_PER_STEP as u64;
    // All at one barrier, before its own deadline; then each at a barrier of its own.
    for is_one in [true, false] {
        let mut barriers = Barriers::new(BarrierLimits::default(), 1);
        let arrive = |barriers: &mut Barriers, at, owner, number: u64, timeout, count| {
            let (key, name) = (format!("{}", if is_one { 0 } else { number }), format!("{owner}/{number}"));
            let arrive = Arrive {
                arrival: ArrivalId { owner: OwnerId(owner), request: number + 1 },
                key: key.as_bytes(),
                generation: 0,
                name: name.as_bytes(),
                timeout,
                participants: Participants::Count(count),
            };
            barriers.handle(Instant::from_millis(at), Input::Arrive(arrive)).expect("accepted");
        };
        let count = if is_one { 1 << 17 } else { 2 };
        if is_one {
            arrive(&mut barriers, 0, 1, MANY, secs(60), count);
        }
        for number in 0..MANY {
            arrive(&mut barriers, 0, 1, number, secs(10), count);
        }
        let mut ended = 0;
        for step in 1..=3 {
            let due = barriers.poll_timeout().expect("not all have ended");
            assert!(due <= Instant::from_millis(10_000), "due at {due:?}");
            if !is_one && step == 2 {
                // This barrier is not among those that end in this step, but its time is up.
                arrive(&mut barriers, 10_000, 2, MANY - 1, secs(10), count);
            } else {
                barriers.handle(Instant::from_millis(10_000), Input::Tick).expect("a tick");
            }
            while let Some(output) = barriers.poll_output() {
                let Output::Over { end, .. } = output else { panic!("{output:?}") };
                assert!(matches!(&*end, End::TimedOut { .. }), "{end}");
                ended += 1;
            }
            assert!(ended <= step * (ENDS_PER_STEP as u64 + 2), "{ended} after step {step}");
        }
        barriers.handle(Instant::from_millis(10_000), Input::Tick).expect("a tick");
        ended += core::iter::from_fn(|| barriers.poll_output()).count() as u64;
        let expected = if is_one { (MANY, 1) } else { (MANY + 1, 0) };
        assert_eq!((ended, barriers.waiting()), expected);
    }
}

#[test]
fn barriers_that_a_death_breaks_end_in_steps_and_are_not_released() {
    const MANY: u64 = 3 * ENDS_PER_STEP as u64;
    let mut barriers = Barriers::new(BarrierLimits::default(), 1);
    let arrive = |barriers: &mut Barriers, owner, number: u64, name: &str| {
        let names = [&b"dies"[..], b"lives"];
        let arrive = Arrive {
            arrival: ArrivalId { owner: OwnerId(owner), request: number + 1 },
            key: &number.to_le_bytes(),
            generation: 0,
            name: name.as_bytes(),
            timeout: secs(60),
            participants: Participants::Names(Keys::scoped(b"", &names)),
        };
        barriers.handle(Instant::from_millis(1), Input::Arrive(arrive)).expect("accepted");
    };
    for number in 0..MANY {
        arrive(&mut barriers, 1, number, "lives");
    }
    let node = Some(EndedNode { name: b"dies", could_arrive: &|_| true });
    let ended = Input::Ended { owner: OwnerId(2), node, why: Why::Heartbeat };
    barriers.handle(Instant::from_millis(2), ended).expect("never refused");
    assert!(barriers.waiting() > ENDS_PER_STEP, "{} wait after the first step", barriers.waiting());
    assert!(barriers.poll_timeout() <= Some(Instant::from_millis(2)), "the next step is due");
    // A new session of the node comes too late for the last barrier, though that has not ended yet.
    arrive(&mut barriers, 3, MANY - 1, "dies");
    while barriers.poll_timeout().is_some_and(|due| due <= Instant::from_millis(2)) {
        barriers.handle(Instant::from_millis(2), Input::Tick).expect("a tick");
    }
    let mut ends = 0;
    while let Some(output) = barriers.poll_output() {
        let Output::Over { end, .. } = output else { panic!("{output:?}") };
        assert!(matches!(&*end, End::Broken { .. }), "{end}");
        ends += 1;
    }
    assert_eq!((ends, barriers.waiting()), (MANY + 1, 0));
}

#[test]
fn looks_at_the_names_of_a_list_are_work() {
    let names: Vec<String> = (0..800).map(|number| format!("n{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let listed = Participants::Names(Keys::scoped(b"", &names));
    let mut world = World::new(count(1));
    let mut work = |act: &mut dyn FnMut(&mut World)| {
        act(&mut world);
        world.barriers.take_work()
    };
    // Hashed for the table of members, and for that of awaited names.
    let first = work(&mut |world| assert_eq!(world.arrive_with("n0", listed), ""));
    let further = work(&mut |world| assert_eq!(world.arrive_with("n1", listed), ""));
    let cancelled = work(&mut |world| _ = world.cancel("n0"));
    let expired = work(&mut |world| {
        world.arrive_with("n0", listed);
        world.barriers.take_work();
        world.pass(secs(60));
    });
    let fenced = work(&mut |world| {
        world.arrive_with("n0", listed);
        world.barriers.take_work();
        world.give(Input::Fence { prefix: b"", round: 1 });
    });
    assert_eq!((first, further), (100 + 800 + 800, 100));
    // Each arrival that ends counts as well, a look at each member, and looking for 256 names of those that are missing.
    let ends = [2 * END_WORK, END_WORK + 257 / 8, END_WORK];
    assert_eq!([cancelled, expired, fenced], ends.map(|ends| 100 + 800 + ends));
}
