//! Ends that say goodbye.

use super::*;

#[test]
fn who_leaves_answers_what_it_has() {
    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    pair.run();
    pair.take_log();
    pair.callee.goodbye();
    // This one crosses the goodbye.
    pair.call("g", 0).expect("made");
    pair.expect(&["failed 2: g at b (id 2): it takes no further calls"]);
    assert_eq!(pair.refused, [("g".into(), Status::Leaving)]);
    assert_eq!(pair.call("h", 0), Err(CallFailure::Leaving));
    pair.callee.answer(1, 2);
    pair.expect(&["answer 1 2", "answered 1", "callee drained", "done 1", "caller hangs up: it was closed"]);

    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    pair.caller.goodbye();
    assert_eq!(pair.call("h", 0), Err(CallFailure::Leaving));
    pair.expect(&["request 1 f 0 Responded 0", "complete 1", "caller leaves"]);
    pair.callee.answer(1, 0);
    pair.expect(&["answered 1", "callee drained", "answer 1 0", "done 1", "caller hangs up: it was closed"]);
    // Without pending calls it is done at once; before the handshake there is nothing to send.
    let mut pair = Pair::open();
    pair.callee.goodbye();
    pair.expect(&["callee drained", "caller hangs up: it was closed"]);
    let mut pair = Pair::with(RpcLimits::default());
    pair.caller.goodbye();
    pair.callee.goodbye();
    pair.expect(&["caller hangs up: it was closed", "callee ended: refused: it takes no further requests"]);
}

/// The callee has closed the connection when the request arrives, so it does not answer it any more.
#[test]
fn a_request_that_crosses_a_goodbye_fails_as_one_even_if_the_connection_ends() {
    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    pair.run();
    pair.take_log();
    pair.callee.goodbye();
    pair.call("g", 0).expect("made");
    // The request is lost on its way.
    while pair.caller.poll_write().is_some() {}
    while pair.step_back(100) {}
    assert_eq!(pair.take_log(), ["failed 2: g at b (id 2): it takes no further calls"]);
    // The one that was accepted may have been executed.
    pair.caller.lost(ConnectionError::Lost("reset".into()));
    pair.run();
    let log = pair.take_log().join("; ");
    assert!(log.starts_with("failed 1: f at b (id 2): contact with the worker was lost"), "{log}");
}

#[test]
fn a_worker_that_has_said_goodbye_is_not_dead_when_nothing_listens_any_more() {
    let not_listening = || ConnectionError::NotListening("refused".into());
    let mut greeting = Pair::with(RpcLimits::default());
    greeting.call("f", 0).expect("it waits for the welcome");
    greeting.callee.goodbye();
    greeting.run();
    let log = greeting.take_log();
    assert_eq!(
        log.last().map(String::as_str),
        Some("failed 1: f at b (id 2): it takes no further calls"),
        "{log:?}"
    );
    let mut pair = Pair::open();
    let reached = |pair: &mut Pair, why: ConnectionError| {
        pair.call("f", 0).expect("it waits for a connection");
        pair.run();
        pair.caller.unreachable(&why);
        pair.run();
        pair.take_log().last().cloned().unwrap_or_default()
    };
    pair.callee.goodbye();
    pair.run();
    let left = "f at b (id 2): it takes no further calls";
    assert!(reached(&mut pair, not_listening()).ends_with(left));
    assert!(reached(&mut pair, ConnectionError::Lost("reset".into())).ends_with(left));
    let unreachable = ConnectionError::Unreachable("no route".into());
    assert!(reached(&mut pair, unreachable).ends_with("not sent: it cannot be reached: no route"));
    // Without a goodbye, such a worker has died.
    let mut pair = Pair::with(RpcLimits::default());
    pair.caller.lost(ConnectionError::Closed);
    pair.run();
    pair.take_log();
    assert!(reached(&mut pair, not_listening()).contains("not sent: no process listens at its address"));
}
