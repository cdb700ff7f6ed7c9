mod table;

use super::*;
use crate::connection::callee::{Callee, CalleeEvent};
use crate::wire::{CalleeFrame, Message, encode_frame};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use rendezvous_core::wire::sink::Sink;

const NOW: Instant = Instant::from_millis(1000);

fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

/// Caller with a connection that was opened, and without calls.
pub(in crate::connection) fn connected(
    me: &WorkerInfo,
    peer: &WorkerInfo,
    group: &[u8],
    limits: RpcLimits,
) -> Caller {
    let mut caller = Caller::new(me.clone(), peer.clone(), group, limits);
    caller.state = LineState::Connecting;
    caller.connected(NOW, None);
    caller
}

fn limits() -> RpcLimits {
    RpcLimits { requests_max: 2, waiting_max: 3, ..RpcLimits::default() }
}

fn peer() -> Caller {
    Caller::new(worker("a", 1), worker("b", 2), b"group", limits())
}

fn call(peer: &mut Caller) -> Result<u64, CallError> {
    let call = NewCall { handler: "f", payload_bytes: 0, deadline: None, kind: CallKind::Responded };
    peer.begin(NOW, call)
}

fn reported(peer: &mut Caller, mut bytes: &[u8]) -> Vec<String> {
    let mut reported = Vec::new();
    while let Some(event) = peer.next_event(NOW, &mut bytes) {
        reported.push(match event {
            CallerEvent::Failed(id, error) => format!("failed {id}: {error}"),
            CallerEvent::HangUp(_) => "HangUp".into(),
            event => format!("{event:?}"),
        });
    }
    reported
}

/// Passes bytes between the two until there is no progress, and admits all callers. Returns the requests of the callee.
fn talk(peer: &mut Caller, callee: &mut Callee) -> (Vec<u64>, Vec<String>) {
    let (mut request, mut last_received_at) = (Vec::new(), Vec::new());
    loop {
        let there = peer.poll_write();
        if let Some(ToWrite::Bytes(bytes)) = &there {
            let mut bytes = &bytes[..];
            while let Some(event) = callee.next_event(NOW, &mut bytes) {
                match event {
                    CalleeEvent::Claimed(_) => callee.admit(),
                    CalleeEvent::Request { call, .. } => request.push(call),
                    _ => {}
                }
            }
        }
        let back = callee.poll_write();
        if let Some(ToWrite::Bytes(bytes)) = &back {
            last_received_at.extend(reported(peer, bytes));
        }
        if there.is_none() && back.is_none() {
            return (request, last_received_at);
        }
    }
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded(frame: &impl Message) -> Vec<u8> {
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, 0, frame).expect("short");
    out.0
}

fn open() -> (Caller, Callee) {
    let (mut peer, mut callee) = (peer(), callee());
    assert_eq!(call(&mut peer), Ok(1));
    assert_eq!(reported(&mut peer, b""), ["Connect"]);
    peer.connected(NOW, None);
    assert_eq!(talk(&mut peer, &mut callee), (alloc::vec![1], Vec::new()));
    (peer, callee)
}

fn callee() -> Callee {
    Callee::new(NOW, worker("b", 2), b"group", limits())
}

#[test]
fn calls_wait_for_the_connection_and_for_room_on_it() {
    let (mut peer, mut callee) = open();
    assert!(!peer.is_at_rest());
    for id in 2..=5 {
        assert_eq!(call(&mut peer), Ok(id));
    }
    let message = "f at b (id 2): 3 calls to it are under way, and that is the limit";
    assert_eq!(call(&mut peer).expect_err("too many").to_string(), message);
    assert_eq!(talk(&mut peer, &mut callee), (alloc::vec![2], Vec::new()));
    assert!(peer.cancel(4) && !peer.cancel(4));
    assert_eq!(reported(&mut peer, b""), ["failed 4: f at b (id 2): it was cancelled"]);
    for id in [1, 2, 3, 5] {
        assert!(callee.answer(id, 0), "{id}");
        let (_, last_received_at) = talk(&mut peer, &mut callee);
        assert_eq!(last_received_at, [format!("Answer({id}, 0)"), format!("Done({id})")]);
    }
    assert!(peer.is_at_rest() && peer.in_flight() == 0);
}

/// The callee sends nothing for a call that was given up, and may send nothing for any other.
#[test]
fn calls_that_wait_have_a_bound_in_bytes_and_one_alone_may_have_more() {
    let limits = RpcLimits { waiting_bytes_max: 100, ..limits() };
    let mut peer = Caller::new(worker("a", 1), worker("b", 2), b"group", limits);
    let mut begin = |payload_bytes| {
        let call = NewCall { handler: "f", payload_bytes, deadline: None, kind: CallKind::OneWay };
        peer.begin(NOW, call).map_err(|error| error.why)
    };
    assert_eq!((begin(101), begin(0)), (Ok(1), Err(CallFailure::TooMuch { bytes: 101, bytes_max: 100 })));
}

#[test]
fn a_call_that_is_given_up_makes_room_for_those_that_wait() {
    let (mut peer, mut callee) = open();
    (2..=3).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    assert_eq!(talk(&mut peer, &mut callee).0, [2]);
    assert!(peer.cancel(1));
    assert_eq!(reported(&mut peer, b""), ["failed 1: f at b (id 2): it was cancelled"]);
    assert_eq!(talk(&mut peer, &mut callee).0, [3]);
}

#[test]
fn calls_of_the_librarys_own_outlive_those_of_the_program() {
    let (mut peer, mut callee) = open();
    let local = NewCall { handler: "rdzv/x", payload_bytes: 0, deadline: None, kind: CallKind::Responded };
    assert_eq!(peer.begin(NOW, local), Ok(2));
    assert_eq!(call(&mut peer), Ok(3));
    assert_eq!(peer.begin(NOW, local), Ok(4));
    assert_eq!(talk(&mut peer, &mut callee).0, [2]);
    peer.cut("its time is up");
    let failed =
        ["failed 1: f at b (id 2): its time is up", "failed 3: f at b (id 2): not sent: its time is up"];
    assert_eq!(reported(&mut peer, b""), failed);
    assert_eq!(talk(&mut peer, &mut callee).0, [4]);
    for id in [2, 4] {
        assert!(callee.answer(id, 0), "{id}");
        assert_eq!(talk(&mut peer, &mut callee).1, [format!("Answer({id}, 0)"), format!("Done({id})")]);
    }
    assert!(peer.takes_calls() && peer.in_flight() == 0);
}

#[test]
fn what_was_not_sent_goes_over_the_next_connection_and_nothing_is_sent_twice() {
    let (mut peer, mut first) = open();
    (2..=4).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    talk(&mut peer, &mut first);
    peer.lost(ConnectionError::Lost("reset".into()));
    let departed = |id| {
        format!("failed {id}: f at b (id 2): contact with the worker was lost: the connection ended: reset")
    };
    assert_eq!(reported(&mut peer, b""), [departed(1), departed(2), "HangUp".into(), "Connect".into()]);
    peer.connected(NOW, None);
    let mut second = callee();
    assert_eq!(talk(&mut peer, &mut second).0, [3, 4]);
    // Without a next connection, they fail.
    assert_eq!(call(&mut peer), Ok(5));
    peer.lost(ConnectionError::Lost("reset".into()));
    assert_eq!(reported(&mut peer, b""), [departed(3), departed(4), "HangUp".into(), "Connect".into()]);
    peer.unreachable(&ConnectionError::Unreachable("connection refused".into()));
    let message = "failed 5: f at b (id 2): not sent: it cannot be reached: connection refused";
    assert_eq!(reported(&mut peer, b""), ["HangUp", message]);
    assert_eq!((peer.in_flight(), peer.poll_timeout()), (0, None));
}

#[test]
fn an_attempt_that_takes_too_long_is_given_up_and_so_are_calls_whose_time_is_up() {
    let mut peer = peer();
    let deadline = Some(NOW + Duration::from_secs(1));
    let call = NewCall { handler: "f", payload_bytes: 0, deadline, kind: CallKind::Responded };
    assert_eq!(peer.begin(NOW, call), Ok(1));
    assert_eq!(peer.begin(NOW, NewCall { deadline: None, ..call }), Ok(2));
    assert_eq!(peer.poll_timeout(), deadline);
    peer.tick(NOW + Duration::from_secs(1));
    assert_eq!(
        reported(&mut peer, b""),
        ["Connect", "failed 1: f at b (id 2): not sent in 1.0 s: there is no connection yet"]
    );
    peer.tick(NOW + Duration::from_secs(10));
    let message = "failed 2: f at b (id 2): not sent: it cannot be reached: no connection in 10.0 s";
    assert_eq!(reported(&mut peer, b""), ["HangUp", message]);
    let late = peer.begin(NOW, NewCall { deadline: Some(NOW), ..call }).expect_err("late");
    assert_eq!(late.to_string(), "f at b (id 2): not sent in 0 ms: there is no connection yet");
}

#[test]
fn how_long_a_call_took_is_told_from_its_beginning() {
    let at = |secs: u64| NOW + Duration::from_secs(secs);
    let (mut peer, mut callee) = open();
    for id in 2..=4 {
        let deadline = Some(at(if id == 4 { 55 } else { 60 }));
        let call = NewCall { handler: "f", payload_bytes: 0, deadline, kind: CallKind::Responded };
        assert_eq!(peer.begin(NOW, call), Ok(id));
    }
    talk(&mut peer, &mut callee);
    // One more begins late, and for another one it is too late then.
    assert!(callee.answer(1, 0));
    let Some(ToWrite::Bytes(answer)) = callee.poll_write() else { panic!("an answer") };
    let (mut answer, mut reported) = (&answer[..], Vec::new());
    while let Some(event) = peer.next_event(at(55), &mut answer) {
        reported.push(event);
    }
    assert_eq!(reported, [CallerEvent::Answer(1, 0), CallerEvent::Done(1)]);
    assert!(peer.cancel(2));
    let mut reported = Vec::new();
    while let Some(event) = peer.next_event(at(55), &mut &[][..]) {
        reported.push(event);
    }
    let [CallerEvent::Failed(2, _), CallerEvent::Failed(4, late)] = &reported[..] else {
        panic!("{reported:?}")
    };
    assert_eq!(late.to_string(), "f at b (id 2): not sent in 55.0 s");
    peer.tick(at(60));
    assert_eq!(self::reported(&mut peer, b""), ["failed 3: f at b (id 2): no answer in 60.0 s"]);
}

/// One call takes all the capacity, and others time out.
#[test]
fn what_waited_and_is_gone_leaves_nothing() {
    let (mut peer, mut callee) = open();
    (2..=3).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    talk(&mut peer, &mut callee);
    let first = peer.waiting.first().map(|(id, _)| id);
    for id in 4..10_000 {
        assert_eq!(call(&mut peer), Ok(id));
        assert!(peer.cancel(id));
        reported(&mut peer, b"");
    }
    assert_eq!((first, peer.waiting.len()), (Some(3), 1));
}

/// A callee that accepts callers and ends at once, repeatedly.
#[test]
fn a_connection_that_took_no_call_is_no_reason_for_the_next_one() {
    let mut peer = peer();
    assert_eq!(call(&mut peer), Ok(1));
    assert_eq!(reported(&mut peer, b""), ["Connect"]);
    peer.connected(NOW, None);
    let welcome =
        CalleeFrame::Welcome { version: 1, callee: b"b", callee_id: 2, requests_max: 0, bytes_max: 1 };
    let message = "failed 1: f at b (id 2): not sent: the welcome allows no request at all";
    assert_eq!(reported(&mut peer, &encoded(&welcome)), ["HangUp", message]);
    assert!(!peer.is_at_rest() && peer.in_flight() == 0);
}

#[test]
fn who_is_said_to_be_gone_is_called_in_vain_until_the_next_connection() {
    let (mut peer, mut callee) = open();
    (2..=3).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    talk(&mut peer, &mut callee);
    peer.abort(&ConnectionError::GivenUp("its lease ended".into()));
    let failed = |id, why| format!("failed {id}: f at b (id 2): {why}: its lease ended");
    let (unsent, departed) =
        (|id| failed(id, "not sent"), |id| failed(id, "contact with the worker was lost"));
    assert_eq!(reported(&mut peer, b""), [unsent(3), departed(1), departed(2), "HangUp".into()]);
    assert_eq!(call(&mut peer), Ok(4));
    assert_eq!(reported(&mut peer, b""), ["Connect"]);
    peer.abort(&ConnectionError::GivenUp("its lease ended".into()));
    assert_eq!(reported(&mut peer, b""), [unsent(4), "HangUp".into()]);
}

#[test]
fn who_is_gone_for_good_is_called_no_more() {
    let (mut peer, mut callee) = open();
    (2..=3).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    talk(&mut peer, &mut callee);
    peer.end(&ConnectionError::CallerEnded("it was shut down".into()));
    let failed = |id, why: &str| format!("failed {id}: f at b (id 2): {why}it was shut down");
    let last_received_at = reported(&mut peer, b"");
    assert_eq!(last_received_at, [failed(3, "not sent: "), failed(1, ""), failed(2, ""), "HangUp".into()]);
    let refused = |peer: &mut Caller| call(peer).expect_err("not called").why;
    let why = CallFailure::Unsent(ConnectionError::CallerEnded("it was shut down".into()));
    assert_eq!((refused(&mut peer), peer.takes_calls()), (why.clone(), false));
    // The first reason stays, and a goodbye changes nothing.
    peer.goodbye();
    peer.end(&ConnectionError::GivenUp("it died".into()));
    assert_eq!((refused(&mut peer), reported(&mut peer, b"")), (why, Vec::<String>::new()));
    // A peer that waits for the last responses may still learn that there will be none.
    let (mut peer, _callee) = open();
    peer.goodbye();
    peer.end(&ConnectionError::GivenUp("it died".into()));
    let departed = "failed 1: f at b (id 2): contact with the worker was lost: it died";
    assert_eq!(reported(&mut peer, b""), [departed, "HangUp"]);
}

#[test]
fn a_goodbye_waits_for_what_is_under_way() {
    let (mut peer, mut callee) = open();
    (2..=3).for_each(|id| assert_eq!(call(&mut peer), Ok(id)));
    talk(&mut peer, &mut callee);
    peer.goodbye();
    assert_eq!(reported(&mut peer, b""), ["failed 3: f at b (id 2): it takes no further calls"]);
    assert_eq!(call(&mut peer), Err(CallFailure::Leaving.of("f", &worker("b", 2))));
    assert!(callee.answer(1, 0) && callee.answer(2, 0));
    let (_, last_received_at) = talk(&mut peer, &mut callee);
    assert_eq!(last_received_at, ["Answer(1, 0)", "Done(1)", "Answer(2, 0)", "Done(2)", "HangUp"]);
    // A peer without a connection has left at once.
    let mut peer = self::peer();
    peer.goodbye();
    assert_eq!((reported(&mut peer, b""), peer.takes_calls()), (Vec::<String>::new(), false));
}
