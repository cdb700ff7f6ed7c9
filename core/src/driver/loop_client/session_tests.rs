//! Nodes in one loop and one thread, against a real server.

use super::*;
use crate::driver::native_client::loopback_tests::{Cut, as_node, nodes};
use crate::driver::native_client::tests::options;
use crate::driver::native_client::{
    BarrierResult, Batch, BatchAnswer, BatchStep, Branch, Change, Joined, NativeClient, NativeClientOptions,
    NativeRequest, NativeResponse, NodeEvent, Step, Test, Txn, TxnResult, WatchError, participants,
};
use crate::driver::server::{Server, ServerOptions};
use crate::driver::testing::becomes_readable;
use crate::error::ErrorKind;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::participant::{Entry, Part, Role};
use crate::rendezvous::round_event::RoundEvent;
use crate::store::call::Outcome;
use crate::store::engine::PrefixRemoved;
use crate::store::op::{Keys, Pairs};
use crate::wire::native::{FaultCode, LastCall, Terms, Why};
use alloc::format;
use alloc::string::{String, ToString};
use std::net::TcpListener;

const SOON: Duration = Duration::from_secs(20);
const WHILE: Timeout = Timeout::After(SOON);

fn server() -> Server {
    Server::start(ServerOptions::on("127.0.0.1", 0)).expect("a server")
}

fn add(events: &mut Loop, server: &Server, node: &str) -> MemberId {
    add_with(events, server.local_addr().port(), node, Duration::ZERO)
}

fn add_with(events: &mut Loop, port: u16, node: &str, grace: Duration) -> MemberId {
    events.add_session("127.0.0.1", port, NativeClientOptions { node: node.into(), ..options(grace) })
}

/// Polls the loop until it has an event, as a program with a poll of its own would.
fn next(events: &mut Loop) -> LoopEvent {
    loop {
        if let Some(event) = events.next_event() {
            return event;
        }
        assert!(becomes_readable(events.fd(), SOON), "no further event");
        events.poll().expect("polled");
    }
}

/// Returns the next event that is neither the opening of a session nor the state of a waiting node.
fn next_of(events: &mut Loop) -> (MemberId, SessionEvent) {
    loop {
        match next(events) {
            LoopEvent::Session(_, SessionEvent::Open | SessionEvent::Node(NodeEvent::Seated)) => {}
            LoopEvent::Session(session, event) => return (session, event),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the result of this call, whose end must be the next event.
fn end_of(
    events: &mut Loop,
    call: CallId,
) -> Result<NativeResponse, crate::driver::native_client::NativeError> {
    match next_of(events).1 {
        SessionEvent::Completed { call: over, result, .. } if over == call => result,
        other => panic!("{other:?}"),
    }
}

fn store_end(events: &mut Loop, call: CallId) -> CallOver {
    loop {
        match next(events) {
            LoopEvent::Store(over) => {
                assert_eq!(over.call, call);
                return over;
            }
            LoopEvent::Session(_, SessionEvent::Open) => {}
            other => panic!("{other:?}"),
        }
    }
}

const RUN_INFO: NativeRequest<'static> = NativeRequest::RunInfo { run_id: b"run" };

fn members_of(round: u64, first: u32) -> NativeRequest<'static> {
    NativeRequest::Members { run_id: b"run", round, first, count_max: 1 }
}

fn arrival<'a>(count: u32, names: &'a [&'a [u8]]) -> NativeRequest<'a> {
    let participants = participants(count, names);
    NativeRequest::Barrier { key: b"epoch", generation: 0, name: b"", participants }
}

fn of(events: &mut Loop, session: MemberId) -> Session<'_> {
    events.session(session).expect("it is there")
}

fn session_of(events: &Loop, session: MemberId) -> &LoopSession {
    events.members.get_as(session).expect("it is there")
}

fn part(events: &Loop, session: MemberId) -> Part {
    session_of(events, session).driver.machine().participant().part()
}

fn join(events: &mut Loop, session: MemberId, node: &str, terms: Terms<'_>) -> CallId {
    of(events, session)
        .submit(&NativeRequest::Join(as_node(node, terms), Role::Member), WHILE)
        .expect("submitted")
}

/// Joins with all sessions and returns their rounds, in the order of the sessions.
fn join_all(events: &mut Loop, sessions: &[(String, MemberId)], terms: Terms<'_>) -> Vec<Joined> {
    let calls: Vec<CallId> =
        sessions.iter().map(|(node, session)| join(events, *session, node, terms)).collect();
    let mut joined: Vec<Option<Joined>> = calls.iter().map(|_| None).collect();
    while joined.iter().any(Option::is_none) {
        match next_of(events).1 {
            SessionEvent::Completed { call, result, .. } => {
                let index = calls.iter().position(|&one| one == call).expect("one of them");
                let NativeResponse::Joined(joined_round) = result.expect("a round") else {
                    panic!("no seat")
                };
                joined[index] = Some(joined_round);
            }
            SessionEvent::Node(NodeEvent::Round(
                RoundEvent::NodesWaiting { .. } | RoundEvent::RoundOver { .. },
            )) => {}
            other => panic!("{other:?}"),
        }
    }
    joined.into_iter().flatten().collect()
}

fn add_all(events: &mut Loop, server: &Server, count: u32) -> Vec<(String, MemberId)> {
    (0..count)
        .map(|index| format!("n{index}"))
        .map(|node| (node.clone(), add(events, server, &node)))
        .collect()
}

#[test]
fn nodes_of_one_loop_become_a_numbered_group() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let sessions = add_all(&mut events, &server, 5);
    let joined = join_all(&mut events, &sessions, nodes(5, 5));
    let mut ranks: Vec<u32> = joined.iter().map(|joined_round| joined_round.node_rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2, 3, 4]);
    for joined_round in &joined {
        assert_eq!((joined_round.round, joined_round.nodes, joined_round.world_size), (0, 5, 10));
        assert_eq!(joined_round.rank_first, 2 * u64::from(joined_round.node_rank));
    }
    let (name, session) = &sessions[2];
    assert_eq!(part(&events, *session), Part::InRound);
    let rank = joined[2].node_rank;
    let call = of(&mut events, *session).submit(&members_of(0, rank), WHILE).expect("submitted");
    let NativeResponse::Members(members) = end_of(&mut events, call).expect("known") else { panic!() };
    assert_eq!((members.len(), &*members[0].node), (1, name.as_str()));
    let call = of(&mut events, *session).submit(&RUN_INFO, WHILE).expect("submitted");
    let NativeResponse::RunInfo(info) = end_of(&mut events, call).expect("known") else { panic!() };
    assert_eq!((info.complete, info.closed, info.nodes), (true, false, 5));
    let call = of(&mut events, *session).submit(&members_of(7, 0), WHILE).expect("submitted");
    let error = end_of(&mut events, call).expect_err("no such round");
    assert_eq!((error.kind(), error.call().key()), (ErrorKind::NotFound, Some("run")));

    // A node that leaves is not reported as dead, and a goodbye gets a response.
    let call =
        of(&mut events, *session).submit(&NativeRequest::Leave { run_id: b"run" }, WHILE).expect("submitted");
    assert_eq!(end_of(&mut events, call).expect("let go"), NativeResponse::Done);
    let early = of(&mut events, *session)
        .submit(&NativeRequest::Leave { run_id: b"run" }, WHILE)
        .expect_err("it is in no run");
    assert!(matches!(early, SubmitError::Call(error) if error.kind() == ErrorKind::InvalidArgument));
    let call = of(&mut events, *session).submit(&NativeRequest::Close, WHILE).expect("submitted");
    assert_eq!(end_of(&mut events, call).expect("confirmed"), NativeResponse::Done);
    let (of_session, last) = next_of(&mut events);
    assert!(of_session == *session && matches!(last, SessionEvent::Over(Ok(()))), "{last:?}");
    let late = of(&mut events, *session).submit(&RUN_INFO, WHILE).expect_err("it is over");
    assert!(matches!(late, SubmitError::Call(error) if error.kind() == ErrorKind::SessionEnded));
    assert!(!becomes_readable(events.fd(), Duration::ZERO), "at rest");
}

#[test]
fn a_death_is_told_and_the_survivors_meet_again() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let terms = Terms { continue_min: 1, ..nodes(3, 3) };
    let mut sessions = add_all(&mut events, &server, 3);
    let joined = join_all(&mut events, &sessions, terms);
    let (dead, session) = sessions.remove(1);
    // As if its process had died: the connection closes without a goodbye.
    events.remove_session(session);
    assert!(events.session(session).is_none());
    for _ in 0..2 {
        let (_, event) = next_of(&mut events);
        let SessionEvent::Node(NodeEvent::Round(died)) = event else { panic!("{event:?}") };
        let (node_rank, node) = (joined[1].node_rank, dead.clone().into());
        assert_eq!(died, RoundEvent::PeerDied { round: 0, node_rank, node, why: Why::Connection });
    }
    let joined = join_all(&mut events, &sessions, terms);
    assert!(
        joined.iter().all(|joined_round| (joined_round.round, joined_round.nodes) == (1, 2)),
        "{joined:?}"
    );
}

#[test]
fn time_that_is_up_and_calls_that_are_cancelled_say_so() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "n0");
    // The session is open before the join: its timeout covers no connecting, and its end is the server's response.
    let open = of(&mut events, session).submit(&RUN_INFO, WHILE).expect("submitted");
    end_of(&mut events, open).expect("the session opens");
    let entry = Entry { join_timeout_ms: 30, ..as_node("n0", nodes(2, 2)) };
    let call =
        of(&mut events, session).submit(&NativeRequest::Join(entry, Role::Member), WHILE).expect("submitted");
    let error = end_of(&mut events, call).expect_err("alone");
    assert_eq!((error.kind(), error.call().operation()), (ErrorKind::TimedOut, Operation::Join));
    assert!(error.call().elapsed() >= Duration::from_millis(30), "{error}");
    let text = error.to_string();
    assert!(text.starts_with("next_rendezvous \"run\" at 127.0.0.1:"), "{text}");
    assert!(text.contains("1 of at least 2 nodes were there (n0)"), "{text}");

    let call = join(&mut events, session, "n0", nodes(2, 2));
    let early = of(&mut events, session)
        .submit(&NativeRequest::Join(as_node("n0", nodes(2, 2)), Role::Member), WHILE);
    assert!(matches!(early, Err(SubmitError::Call(error)) if error.kind() == ErrorKind::InvalidArgument));
    events.cancel(session, call);
    // The server cannot have answered that yet.
    let again = join(&mut events, session, "n0", nodes(1, 1));
    let error = end_of(&mut events, call).expect_err("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(matches!(end_of(&mut events, again), Ok(NativeResponse::Joined(joined)) if joined.nodes == 1));

    // A server that never responds costs the deadline and no more.
    let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
    let slack = Duration::from_millis(20);
    let options = NativeClientOptions { answer_slack: slack, ..options(Duration::ZERO) };
    let port = mute.local_addr().expect("an address").port();
    let session = events.add_session("127.0.0.1", port, options);
    let after = Timeout::After(Duration::from_millis(30));
    let call = of(&mut events, session).submit(&RUN_INFO, after).expect("submitted");
    assert_eq!(end_of(&mut events, call).expect_err("no answer").kind(), ErrorKind::TimedOut);
}

#[test]
fn a_spare_stands_by_for_as_long_as_it_is_needed() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let sessions = add_all(&mut events, &server, 2);
    join_all(&mut events, &sessions, nodes(2, 2));
    let spare = add(&mut events, &server, "spare");
    // The session is open before the join, so the join timeout covers one round trip.
    let open = of(&mut events, spare).submit(&RUN_INFO, WHILE).expect("submitted");
    end_of(&mut events, open).expect("the session opens");
    let entry = Entry { join_timeout_ms: 500, ..as_node("spare", nodes(2, 2)) };
    let standby =
        of(&mut events, spare).submit(&NativeRequest::Join(entry, Role::Spare), WHILE).expect("submitted");
    let (_, event) = next_of(&mut events);
    assert!(matches!(event, SessionEvent::Node(NodeEvent::Standby { ahead: 0 })), "{event:?}");
    // The spare waits for longer than its join timeout.
    let missing = Request::Get { key: Key::raw(b"missing") };
    let wait = events.submit(spare, missing, Timeout::After(Duration::from_millis(600))).expect("submitted");
    assert_eq!(store_end(&mut events, wait).result.expect_err("not set").kind(), ErrorKind::TimedOut);
    let (closer, other) = (sessions[0].1, sessions[1].1);
    let close = of(&mut events, closer)
        .submit(&NativeRequest::CloseRun { run_id: b"run" }, WHILE)
        .expect("submitted");
    let (mut closed, mut sent_home, mut output) = (false, false, 0);
    while !(closed && sent_home && output == 2) {
        match next_of(&mut events) {
            (_, SessionEvent::Completed { call, result, .. }) if call == close => {
                closed = result.expect("closed") == NativeResponse::Done;
            }
            (_, SessionEvent::Completed { call, result, .. }) if call == standby => {
                let error = result.expect_err("not needed");
                sent_home = error.fault().map(|fault| fault.code) == Some(FaultCode::NotNeeded);
            }
            (session, SessionEvent::Node(NodeEvent::Round(RoundEvent::RunClosed { by }))) => {
                assert!([closer, other].contains(&session) && &*by == "n0");
                output += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(part(&events, other), Part::InLastRound);
}

#[test]
fn who_is_replaced_hears_so() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let terms = Terms { last_call: LastCall::Off, ..nodes(2, 4) };
    let first = add(&mut events, &server, "n0");
    let lost = join(&mut events, first, "n0", terms);
    while !matches!(next(&mut events), LoopEvent::Session(_, SessionEvent::Node(NodeEvent::Seated))) {}
    let twin = add(&mut events, &server, "n0");
    join(&mut events, twin, "n0", terms);
    let (mut is_reported, mut is_refused) = (false, false);
    while !(is_reported && is_refused) {
        match next_of(&mut events) {
            (session, SessionEvent::Node(NodeEvent::Replaced { .. })) => is_reported = session == first,
            (_, SessionEvent::Completed { call, result, .. }) if call == lost => {
                is_refused = result.expect_err("replaced").kind() == ErrorKind::Replaced;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(part(&events, first), Part::Replaced);
    // It may not join again, and gets the reason.
    let again = of(&mut events, first)
        .submit(&NativeRequest::Join(as_node("n0", terms), Role::Member), WHILE)
        .expect_err("replaced");
    assert!(matches!(again, SubmitError::Call(error) if error.kind() == ErrorKind::Replaced));
}

#[test]
fn a_session_is_a_store_as_well() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "n0");
    let tcp = events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    let store = session;
    assert_eq!(of(&mut events, session).incarnation(), 0);
    let key = |name: &'static [u8]| Key::scoped(b"/", name);
    let wait = events.submit(tcp, Request::Get { key: key(b"k") }, WHILE).expect("submitted");
    let set = events.submit(store, Request::Set { key: key(b"k"), value: b"v" }, WHILE).expect("submitted");
    assert_eq!(store_end(&mut events, set).result.expect("set").outcome, Outcome::Applied);
    assert_eq!(of(&mut events, session).incarnation(), server.incarnation());
    assert_eq!(store_end(&mut events, wait).result.expect("set").values, [b"v"]);
    let request = Request::CompareSet { key: key(b"k"), expected: b"v", desired: b"w" };
    let call = events.submit(store, request, WHILE).expect("submitted");
    assert_eq!(store_end(&mut events, call).result.expect("swapped").values, [b"w"]);
    let call = events.submit(store, Request::Add { key: key(b"n"), delta: 3 }, WHILE).expect("submitted");
    assert_eq!(store_end(&mut events, call).result.expect("added").outcome, Outcome::Number(3));
    let call = events.ping(store, WHILE).expect("submitted");
    assert_eq!(store_end(&mut events, call).result.expect("alive").outcome, Outcome::Alive);

    // More keys than one page holds.
    let names: Vec<Vec<u8>> = (0..5000).map(|index| format!("many{index}").into_bytes()).collect();
    let pairs: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_slice(), &b""[..])).collect();
    let call = events.submit(store, Request::MultiSet { pairs: Pairs::scoped(b"/", &pairs) }, WHILE);
    store_end(&mut events, call.expect("submitted")).result.expect("set");
    let call = events.submit(store, Request::ListKeys, WHILE).expect("submitted");
    let listed = store_end(&mut events, call).result.expect("listed");
    assert_eq!((listed.outcome, listed.values.len()), (Outcome::Values(5002), 5002));
    assert!(listed.values.contains(&b"many4999".to_vec()));

    // Failures name operation, keys and peer.
    let missing: [&[u8]; 2] = [b"x", b"y"];
    let after = Timeout::After(Duration::from_millis(20));
    let request = Request::Wait { keys: Keys::scoped(b"/", &missing) };
    for store in [store, tcp] {
        let call = events.submit(store, request, after).expect("submitted");
        let over = store_end(&mut events, call);
        assert_eq!(over.keys, missing);
        let error = over.result.expect_err("the keys are never set");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::TimedOut, Operation::Wait));
        assert!(error.elapsed() >= Duration::from_millis(20), "{error}");
    }
    let call = events.submit(store, Request::QueuePop { key: key(b"q") }, Timeout::Once).expect("submitted");
    let over = store_end(&mut events, call);
    assert_eq!(
        (over.keys, over.result.expect_err("empty").kind()),
        (alloc::vec![b"q".to_vec()], ErrorKind::QueueEmpty)
    );
    let call = events.submit(store, Request::Get { key: key(b"x") }, WHILE).expect("submitted");
    events.cancel(store, call);
    assert_eq!(store_end(&mut events, call).result.expect_err("cancelled").kind(), ErrorKind::Cancelled);
    let call = events.submit(store, Request::ListKeys, WHILE).expect("submitted");
    events.cancel(store, call);
    assert_eq!(store_end(&mut events, call).result.expect_err("cancelled").kind(), ErrorKind::Cancelled);
    let error = events
        .submit(store, Request::Set { key: key(b"big"), value: &[0; (8 << 20) + 1] }, Timeout::Default)
        .expect_err("over the limit");
    assert!(error.to_string().contains("is over the limit of 8388608"), "{error}");
    let barrier = Request::Barrier { key: key(b"barrier"), world_size: 2 };
    let error = events.submit(store, barrier, WHILE).expect_err("sessions have barriers of their own");
    assert!(matches!(error, SubmitError::Call(error) if error.kind() == ErrorKind::Unsupported));
}

#[test]
fn a_barrier_releases_all_or_names_who_is_missing() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let sessions = add_all(&mut events, &server, 3);
    for (_, session) in &sessions {
        of(&mut events, *session).submit(&arrival(3, &[]), WHILE).expect("submitted");
    }
    for _ in 0..3 {
        let (_, event) = next_of(&mut events);
        let SessionEvent::Completed { operation: Operation::NamedBarrier, result, .. } = event else {
            panic!("{event:?}")
        };
        let released = NativeResponse::Barrier(BarrierResult::Released { generation: 1 });
        assert_eq!(result.expect("all came"), released);
    }
    let after = Timeout::After(Duration::from_millis(30));
    let names: [&[u8]; 2] = [b"n0", b"n1"];
    let call = of(&mut events, sessions[0].1).submit(&arrival(0, &names), after).expect("submitted");
    let end = end_of(&mut events, call).expect("a result");
    let absent = alloc::vec!["n1".into()];
    let missing = BarrierResult::TimedOut { generation: 2, absent_count: 1, absent };
    assert_eq!(end, NativeResponse::Barrier(missing));
}

#[test]
fn watches_leases_and_turns_are_events_of_a_loop() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "n0");
    let watch = of(&mut events, session)
        .submit(&NativeRequest::WatchPrefix { prefix: b"dir/", from_revision: 0 }, WHILE)
        .expect("submitted");
    let Ok(NativeResponse::Watching(before)) = end_of(&mut events, watch) else { panic!("no watch") };
    let call = of(&mut events, session)
        .submit(&NativeRequest::LeaseGrant { ttl: Duration::ZERO }, WHILE)
        .expect("submitted");
    let NativeResponse::Number(lease) = end_of(&mut events, call).expect("granted") else {
        panic!("no lease")
    };
    let lease = lease.cast_unsigned();
    let call = of(&mut events, session)
        .submit(&NativeRequest::LeaseAttach { lease, keys: &[b"dir/a"] }, WHILE)
        .expect("submitted");
    assert_eq!(end_of(&mut events, call).expect("attached"), NativeResponse::Done);
    let call =
        of(&mut events, session).submit(&NativeRequest::LeaseRenew { lease }, WHILE).expect("submitted");
    assert_eq!(end_of(&mut events, call).expect("renewed"), NativeResponse::Done);
    let changed = |events: &mut Loop, of: CallId| match next_of(events).1 {
        SessionEvent::Changed(call, change) if call == of => {
            (change.key, change.value.map(|value| String::from_utf8(value).expect("text")))
        }
        other => panic!("{other:?}"),
    };
    let mut txn = Txn::default();
    txn.require(b"dir/a", Test::Absent);
    txn.push(Branch::Then, b"dir/a", Step::Set { value: b"1"[..].into() });
    for (holds, revision) in [(true, before + 1), (false, before + 1)] {
        let call = of(&mut events, session).submit(&NativeRequest::Txn(&txn), WHILE).expect("submitted");
        // The change arrives before or after the response.
        let mut rest = Vec::new();
        while rest.len() < 1 + usize::from(holds) {
            rest.push(next_of(&mut events).1);
        }
        let done = NativeResponse::Txn(TxnResult { holds, revision });
        let is_answer = |event: &SessionEvent| {
            matches!(event, SessionEvent::Completed { call: over, result: Ok(answer), .. }
                if *over == call && *answer == done)
        };
        assert!(rest.iter().any(is_answer), "{rest:?}");
    }
    let call =
        of(&mut events, session).submit(&NativeRequest::LeaseRevoke { lease }, WHILE).expect("submitted");
    let mut both = [next_of(&mut events).1, next_of(&mut events).1];
    both.sort_by_key(|event| matches!(event, SessionEvent::Completed { .. }));
    let [SessionEvent::Changed(_, Change { value: None, .. }), SessionEvent::Completed { call: over, .. }] =
        both
    else {
        panic!("{both:?}")
    };
    assert_eq!(over, call);
    let mut batch = Batch::default();
    batch.push(b"n", BatchStep::Write(Step::Add { delta: 2 }));
    batch.push(b"n", BatchStep::Check);
    let call = of(&mut events, session).submit(&NativeRequest::Batch(&batch), WHILE).expect("submitted");
    let answers = alloc::vec![BatchAnswer::Number(2), BatchAnswer::Outcome(true)];
    assert_eq!(end_of(&mut events, call).expect("done"), NativeResponse::Batch(answers));

    // From a revision on, and no more once it was cancelled.
    let again = of(&mut events, session)
        .submit(&NativeRequest::WatchKey { key: b"dir/a", from_revision: before + 1 }, WHILE)
        .expect("submitted");
    assert!(matches!(end_of(&mut events, again).expect("begun"), NativeResponse::Watching(_)));
    assert_eq!(changed(&mut events, again), (b"dir/a".to_vec(), Some("1".to_string())));
    assert_eq!(changed(&mut events, again), (b"dir/a".to_vec(), None));
    events.cancel(session, again);
    let (_, over) = next_of(&mut events);
    let SessionEvent::WatchOver(call, WatchError::Cancelled(error)) = over else { panic!("{over:?}") };
    assert_eq!(call, again);
    assert!(error.call().elapsed() > Duration::ZERO, "the time since the watch began");
    events.cancel(session, again);
    let call = of(&mut events, session)
        .submit(&NativeRequest::DeletePrefix { prefix: b"" }, WHILE)
        .expect("submitted");
    assert_eq!(
        end_of(&mut events, call).expect("removed"),
        NativeResponse::Removed(PrefixRemoved { removed: 1, left: 0 })
    );

    // A lease that ends by itself is reported, and so is the removal of its keys.
    let call = of(&mut events, session)
        .submit(&NativeRequest::LeaseGrant { ttl: Duration::from_millis(20) }, WHILE)
        .expect("submitted");
    let NativeResponse::Number(brief) = end_of(&mut events, call).expect("granted") else {
        panic!("no lease")
    };
    let (_, over) = next_of(&mut events);
    let SessionEvent::LeaseOver { call: of_lease, lease, why } = over else { panic!("{over:?}") };
    assert_eq!((of_lease, lease, why), (call, brief.cast_unsigned(), Why::Deadline));
    let late =
        of(&mut events, session).submit(&NativeRequest::LeaseRenew { lease }, WHILE).expect("submitted");
    assert_eq!(end_of(&mut events, late).expect_err("it is over").kind(), ErrorKind::NotFound);

    let store = events.add_store("127.0.0.1", server.local_addr().port(), StoreOptions::default());
    let error = events.native(store, Operation::Txn).expect_err("another kind");
    assert!(matches!(error, SubmitError::Call(error) if error.kind() == ErrorKind::Unsupported));
    assert!(matches!(events.native(MemberId::from_u32(77), Operation::Txn), Err(SubmitError::UnknownStore)));
}

#[test]
fn a_session_of_a_loop_takes_each_request_of_a_blocking_client() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "n0");
    let client = NativeClient::connect("127.0.0.1", server.local_addr().port(), options(Duration::ZERO));
    let client = client.expect("connected");
    let mut batch = Batch::default();
    batch.push(b"k", BatchStep::Write(Step::Set { value: b"v"[..].into() }));
    client.batch(&batch, WHILE).expect("done");
    let keys: [&[u8]; 2] = [b"k", b"absent"];
    let page = NativeRequest::ListPage { prefix: b"", after: b"", count_max: 9 };
    let cancel = NativeRequest::BarrierCancel { key: b"epoch", name: b"" };
    for (request, timeout) in
        [(NativeRequest::Read { keys: &keys }, Timeout::Once), (page, WHILE), (cancel, WHILE)]
    {
        let call = of(&mut events, session).submit(&request, timeout).expect("submitted");
        let response = end_of(&mut events, call).expect("answered");
        assert_eq!(client.request(&request, timeout), Ok(response));
    }

    // Both refuse what exceeds a limit, with the same text.
    let (key, message) = ([b'k'; 1 << 17], "long".repeat(1000));
    let (mut txn, mut long) = (Txn::default(), Batch::default());
    txn.require(&key, Test::Present);
    long.push(&key, BatchStep::Check);
    let fail = NativeRequest::FailRun { run_id: b"run", message: &message };
    for request in [NativeRequest::Txn(&txn), NativeRequest::Batch(&long), fail] {
        let refused = of(&mut events, session).submit(&request, WHILE).expect_err("over a limit");
        let error = client.request(&request, WHILE).expect_err("over a limit");
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::LimitExceeded, refused.to_string()));
        assert!(error.call().key().is_some_and(|key| !key.is_empty()), "{error}");
    }
}

#[test]
fn a_watch_whose_changes_nobody_takes_is_ended() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let bounded = NativeClientOptions { pushed_bytes_max: 1000, ..options(Duration::ZERO) };
    let session = events.add_session("127.0.0.1", server.local_addr().port(), bounded);
    let watch = of(&mut events, session)
        .submit(&NativeRequest::WatchKey { key: b"k", from_revision: 0 }, WHILE)
        .expect("submitted");
    assert!(matches!(end_of(&mut events, watch), Ok(NativeResponse::Watching(_))));
    let set = |events: &mut Loop| {
        let scope = events.scope(session).expect("there").to_vec();
        let value = [0; 600];
        let set = Request::Set { key: Key::scoped(&scope, b"k"), value: &value };
        events.submit(session, set, WHILE).expect("submitted");
        while events.pending(session) > 0 {
            assert!(becomes_readable(events.fd(), SOON), "no further event");
            events.poll().expect("polled");
        }
    };
    let taken = |events: &mut Loop| {
        let (mut changes, mut is_over) = (0, false);
        while let Some(event) = events.next_event() {
            match event {
                LoopEvent::Session(_, SessionEvent::Changed(..)) => changes += 1,
                LoopEvent::Session(_, SessionEvent::WatchOver(call, WatchError::Overrun(_))) => {
                    assert!(call == watch && !is_over);
                    is_over = true;
                }
                LoopEvent::Store(over) => assert!(over.result.is_ok()),
                other => panic!("{other:?}"),
            }
        }
        (changes, is_over)
    };
    // The change of the last one may still be on its way when it is answered.
    let mut changes = 0;
    for _ in 0..4 {
        set(&mut events);
        let (taken, is_over) = taken(&mut events);
        assert!(!is_over, "more changes follow");
        changes += taken;
    }
    assert!((3..=4).contains(&changes));
    for _ in 0..5 {
        set(&mut events);
    }
    let (changes, is_over) = taken(&mut events);
    assert!(is_over && changes <= 3, "{changes}");
}

#[test]
fn a_stopped_server_is_told_with_the_reason() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "n0");
    let call = join(&mut events, session, "n0", nodes(2, 2));
    while !matches!(next(&mut events), LoopEvent::Session(_, SessionEvent::Node(NodeEvent::Seated))) {}
    server.stop().expect("it ran");
    let error = end_of(&mut events, call).expect_err("removed");
    assert_eq!(error.kind(), ErrorKind::ServerGone, "{error}");
    let (_, last) = next_of(&mut events);
    let SessionEvent::Over(Err(error)) = last else { panic!("{last:?}") };
    assert_eq!((error.kind(), error.call().operation()), (ErrorKind::ServerGone, Operation::Session));
    let text = error.to_string();
    assert!(text.starts_with("session at 127.0.0.1:"), "{text}");
    let late = of(&mut events, session)
        .submit(&NativeRequest::Join(as_node("n0", nodes(2, 2)), Role::Member), WHILE)
        .expect_err("over");
    assert!(matches!(late, SubmitError::Call(error) if error.kind() == ErrorKind::ServerGone));
    assert!(!becomes_readable(events.fd(), Duration::ZERO), "at rest");
}

#[test]
fn nobody_listens_and_no_host_has_the_name() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let mut events = Loop::new().expect("a loop");
    for host in ["127.0.0.1", "localhost"] {
        let once = NativeClientOptions { connect_timeout: Duration::ZERO, ..options(Duration::ZERO) };
        let session = events.add_session(host, port, once);
        let call = of(&mut events, session).submit(&RUN_INFO, WHILE).expect("submitted");
        let error = end_of(&mut events, call).expect_err("no listener");
        assert_eq!((error.kind(), error.call().operation()), (ErrorKind::Refused, Operation::RunInfo));
        let (_, last) = next_of(&mut events);
        let SessionEvent::Over(Err(error)) = last else { panic!("{last:?}") };
        assert_eq!((error.kind(), error.call().operation()), (ErrorKind::Refused, Operation::Connect));
    }
}

#[test]
fn within_the_grace_a_broken_connection_costs_nothing() {
    let server = server();
    let cut = Cut::before(&server);
    let mut events = Loop::new().expect("a loop");
    let session = add_with(&mut events, cut.address.port(), "n0", SOON);
    let other = add(&mut events, &server, "n1");
    let store = session;
    let sessions = [("n0".to_string(), session), ("n1".to_string(), other)];
    let joined = join_all(&mut events, &sessions, nodes(2, 2));
    let key = Key::scoped(b"/", b"n");
    for poll in 1..=5 {
        for _ in 0..20 {
            events.submit(store, Request::Add { key, delta: 1 }, WHILE).expect("submitted");
        }
        cut.cut();
        let mut sums = Vec::new();
        while sums.len() < 20 {
            match next(&mut events) {
                LoopEvent::Store(over) => match over.result.expect("it comes through").outcome {
                    Outcome::Number(sum) => sums.push(sum),
                    other => panic!("{other:?}"),
                },
                LoopEvent::Session(_, SessionEvent::Open) => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(sums.iter().copied().eq((poll - 1) * 20 + 1..=poll * 20), "each counts once: {sums:?}");
    }
    // No node died: the round is unchanged.
    let call = of(&mut events, other).submit(&RUN_INFO, WHILE).expect("submitted");
    let NativeResponse::RunInfo(info) = end_of(&mut events, call).expect("known") else { panic!() };
    assert_eq!((info.round, info.complete, info.nodes), (joined[0].round, true, 2));
}

#[test]
fn a_loop_that_is_turned_lives_and_one_that_is_not_dies() {
    let server = server();
    let port = server.local_addr().port();
    let with_heartbeats = |node: &str| NativeClientOptions {
        node: node.into(),
        heartbeat: Duration::from_millis(200),
        heartbeats_missed_max: 5,
        ..options(Duration::ZERO)
    };
    let (mut turned, mut still) = (Loop::new().expect("a loop"), Loop::new().expect("a loop"));
    let living = turned.add_session("127.0.0.1", port, with_heartbeats("living"));
    let hanging = still.add_session("127.0.0.1", port, with_heartbeats("hanging"));
    join(&mut turned, living, "living", nodes(2, 2));
    join(&mut still, hanging, "hanging", nodes(2, 2));
    let mut is_joined = false;
    while !is_joined {
        still.poll().expect("polled");
        becomes_readable(turned.fd(), Duration::from_millis(10));
        turned.poll().expect("polled");
        while let Some(event) = turned.next_event() {
            is_joined |= matches!(event, LoopEvent::Session(_, SessionEvent::Completed { .. }));
        }
    }
    // From now on only one of them is polled, and sends nothing but heartbeats.
    let (_, event) = next_of(&mut turned);
    let SessionEvent::Node(NodeEvent::Round(RoundEvent::PeerDied { node, why, .. })) = event else {
        panic!("{event:?}")
    };
    assert_eq!((&*node, why), ("hanging", Why::Heartbeat));
    assert!(session_of(&turned, living).driver.machine().is_live());
}

#[test]
fn nodes_join_by_parameters() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let endpoint = server.local_addr().to_string();
    let parameters = RendezvousParameters::new("rdzv", &endpoint, "run", 2, 2).expect("parameters");
    let nodes = [0, 1].map(|_| events.add_node(&parameters).expect("a node"));
    let names = nodes.map(|node| of(&mut events, node).node().to_string());
    assert_ne!(names[0], names[1]);
    for node in nodes {
        assert_eq!(of(&mut events, node).run_id(), Some("run"));
        of(&mut events, node).next_round().expect("a node").expect("submitted");
    }
    for _ in nodes {
        let (_, event) = next_of(&mut events);
        let SessionEvent::Completed { result: Ok(NativeResponse::Joined(joined_round)), .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!((joined_round.nodes, joined_round.world_size), (2, 2));
    }
    let session = add(&mut events, &server, "n0");
    assert!(of(&mut events, session).next_round().is_none());
    let other = RendezvousParameters::new("rdzv", "host:x", "run", 2, 2).expect("parameters");
    assert!(events.add_node(&other).is_err(), "no port");
}

/// A session with a thread of the library, and one in a loop, in the same round.
#[test]
fn loops_and_threads_meet() {
    let server = server();
    let mut events = Loop::new().expect("a loop");
    let session = add(&mut events, &server, "looped");
    let call = join(&mut events, session, "looped", nodes(2, 2));
    let options = NativeClientOptions { node: "threaded".into(), ..options(Duration::ZERO) };
    let client = NativeClient::connect("127.0.0.1", server.local_addr().port(), options).expect("connected");
    let other = std::thread::spawn(move || {
        client.join(&as_node("threaded", nodes(2, 2)), Role::Member).map(|joined| (client, joined))
    });
    let NativeResponse::Joined(joined_round) = end_of(&mut events, call).expect("a round") else { panic!() };
    let (client, joined) = other.join().expect("no panic").expect("a round");
    assert_eq!(
        (joined_round.round, joined_round.nodes, joined_round.node_rank + joined.node_rank),
        (joined.round, 2, 1)
    );
    drop(client);
    let (_, event) = next_of(&mut events);
    assert!(matches!(event, SessionEvent::Node(NodeEvent::Round(RoundEvent::PeerDied { .. }))), "{event:?}");
}
