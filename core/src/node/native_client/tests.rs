extern crate alloc;
use super::*;
use crate::rendezvous::participant::Part;
use crate::rng::Rng;
use crate::store::op::Key;
use crate::store::value_ref::ValueRef;
use crate::wire::native::{FLAG_RESENT, Fault, FaultCode, Message, Why, encode_frame};
use crate::wire::sink::Sink;
use alloc::vec::Vec as Bytes;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

mod greeting;
mod node;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);
const NOW: fn(u64) -> Instant = Instant::from_millis;
const SECOND: Duration = Duration::from_secs(1);
const RUN: Key<'static> = Key::raw(b"run");
const DONE: ServerFrame<'static> = ServerFrame::Done { revision: 1 };

type Client = NativeClient<4>;

struct Growing<'v>(&'v mut Bytes<u8>);

impl Sink for Growing<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn bytes_of(id: u64, sequence: u64, frame: &impl Message) -> Bytes<u8> {
    let mut bytes = Bytes::new();
    encode_frame(&mut Growing(&mut bytes), Label { id, sequence, flags: 0 }, frame).expect("short");
    bytes
}

fn welcome(resumed: bool, request_last: u64, grace_ms: u32) -> ServerFrame<'static> {
    let limits = FrameLimits::default();
    ServerFrame::Welcome {
        version: 1,
        incarnation: 9,
        session: 5,
        token: [7; 16],
        resumed,
        request_last,
        grace_ms,
        heartbeat_ms: 1000,
        heartbeats_missed_max: 3,
        window_frames: 4,
        window_bytes: 1 << 20,
        key_bytes_max: limits.key_bytes_max,
        value_bytes_max: limits.value_bytes_max,
        list_max: limits.keys_max,
        frame_bytes_max: limits.frame_bytes_max as u64,
    }
}

/// Returns what the caller gets for a frame, as text.
fn give(client: &mut Client, millis: u64, bytes: &[u8]) -> alloc::string::String {
    let limits = Client::answer_limits(&FrameLimits::default());
    match client.receive(NOW(millis), &limits, bytes) {
        Taken::Partial(bytes) => alloc::format!("partial {bytes}"),
        Taken::Over => "over".into(),
        Taken::Frame(length, event) => {
            assert_eq!(length, bytes.len());
            alloc::format!("{event:?}")
        }
    }
}

fn outputs(client: &mut Client) -> Bytes<Output> {
    core::iter::from_fn(|| client.poll_output()).collect()
}

fn writes(client: &mut Client, millis: u64) -> Bytes<ToWrite> {
    core::iter::from_fn(|| client.poll_write(NOW(millis))).collect()
}

fn ids(writes: &[ToWrite]) -> Bytes<u64> {
    let id = |write: &ToWrite| match *write {
        ToWrite::Request(id, _) => id,
        _ => 0,
    };
    writes.iter().map(id).collect()
}

fn new(grace_ms: u32) -> Client {
    let session = SessionOptions { grace_ms, ..SessionOptions::default() };
    let options = NativeOptions { session, connect_timeout: 2 * SECOND, ..NativeOptions::default() };
    let mut client = Client::new(NOW(0), options, 1);
    assert_eq!(outputs(&mut client), [Output::Resolve]);
    client
}

fn connect(client: &mut Client, millis: u64) {
    client.handle(NOW(millis), Input::Resolved(&[ADDRESS]));
    assert_eq!(outputs(client), [Output::Connect(ADDRESS)]);
    client.handle(NOW(millis), Input::Connected);
}

fn live(grace_ms: u32) -> Client {
    let session = SessionOptions { grace_ms, ..SessionOptions::default() };
    live_with(NativeOptions { session, connect_timeout: 2 * SECOND, ..NativeOptions::default() })
}

fn live_with(options: NativeOptions) -> Client {
    let mut client = Client::new(NOW(0), options, 1);
    assert_eq!(outputs(&mut client), [Output::Resolve]);
    connect(&mut client, 0);
    assert!(matches!(writes(&mut client, 0)[..], [ToWrite::Opening(..)]));
    let grace_ms = options.session.grace_ms;
    assert_eq!(give(&mut client, 0, &bytes_of(0, 0, &welcome(false, 0, grace_ms))), "Open");
    assert!(client.is_live());
    client
}

fn begin(client: &mut Client, millis: u64, operation: Operation) -> u64 {
    client.begin(NOW(millis), operation, (0x0010, 8), SECOND).expect("there is room")
}

#[test]
fn without_a_grace_the_first_request_leaves_with_hello() {
    for (grace_ms, expected) in [(0, &[0, 1][..]), (2000, &[0])] {
        let mut client = new(grace_ms);
        begin(&mut client, 0, Operation::Get);
        assert_eq!(writes(&mut client, 0), [], "there is no connection");
        connect(&mut client, 1);
        let written = writes(&mut client, 1);
        let ToWrite::Opening(label, identity) = written[0] else { panic!("{written:?}") };
        assert_eq!((label.id, identity.session), (0, 0));
        assert_eq!(ids(&written), expected);
    }
}

#[test]
fn answers_pushes_and_errors_reach_their_calls() {
    let mut client = live(2000);
    for operation in [Operation::Set, Operation::Watch, Operation::Get] {
        begin(&mut client, 1, operation);
    }
    assert_eq!(ids(&writes(&mut client, 1)), [1, 2, 3]);
    let answer = bytes_of(2, 1, &DONE);
    assert_eq!(give(&mut client, 2, &answer[..20]), "partial 24");
    assert_eq!(give(&mut client, 2, &answer[..25]), alloc::format!("partial {}", answer.len()));
    assert_eq!(give(&mut client, 2, &answer), "Completed(2, Done { revision: 1 })");
    assert_eq!(give(&mut client, 2, &answer), "Nothing", "it came before");
    let over = ServerFrame::WatchOver { why: Why::Compacted, oldest: 4 };
    assert!(give(&mut client, 3, &bytes_of(2, 2, &over)).starts_with("Pushed(2, WatchOver"));
    assert!(matches!(writes(&mut client, 3)[..], [ToWrite::Frame(label, ClientFrame::Acknowledge {})]
        if label.sequence == 2));
    let fault = Fault { text: b"/k", ..Fault::new(FaultCode::TimedOut, 1000, 0) };
    let reported = give(&mut client, 1001, &bytes_of(3, 3, &ServerFrame::Error { fault }));
    assert!(
        reported.starts_with("Failed(Failed { id: 3, operation: Get, failure: Failure { kind: TimedOut"),
        "{reported}"
    );
    assert!(reported.contains("elapsed: 1s") && reported.contains("text: [47, 107]"), "{reported}");
    // A frame of a later version is not a valid answer.
    let mut odd = bytes_of(1, 4, &DONE);
    odd[4..6].copy_from_slice(&0x9000_u16.to_le_bytes());
    let reported = give(&mut client, 4, &odd);
    assert!(reported.contains("WrongProtocol") && reported.contains("effect: Possible"), "{reported}");
    odd[4..6].copy_from_slice(&0x800f_u16.to_le_bytes());
    assert_eq!(give(&mut client, 4, &odd), "Nothing", "speaks of the connection");
}

#[test]
fn a_connection_that_ends_is_made_again_and_what_did_not_arrive_is_sent_again() {
    let mut client = live(2000);
    for _ in 0..3 {
        begin(&mut client, 1, Operation::Set);
    }
    writes(&mut client, 1);
    client.handle(NOW(10), Input::Ended(Cause::Closed));
    assert_eq!(outputs(&mut client), [Output::Resolve]);
    begin(&mut client, 11, Operation::Set);
    client.handle(NOW(12), Input::Resolved(&[ADDRESS]));
    client.handle(NOW(12), Input::ConnectFailed(ErrorKind::Refused, Cause::Os(111)));
    let pause = client.poll_timeout().expect("another attempt");
    assert!(pause > NOW(12) && pause < NOW(2010));
    outputs(&mut client);
    client.handle(pause, Input::Tick);
    assert_eq!(outputs(&mut client), [Output::Resolve]);
    connect(&mut client, 100);
    let written = writes(&mut client, 100);
    let [ToWrite::Opening(_, identity)] = written[..] else { panic!("{written:?}") };
    assert_eq!((identity.session, identity.token), (5, [7; 16]));
    assert_eq!(give(&mut client, 101, &bytes_of(0, 0, &welcome(true, 2, 2000))), "Open");
    let written = writes(&mut client, 101);
    assert_eq!(ids(&written), [3, 4]);
    assert!(matches!(written[0], ToWrite::Request(3, label) if label.flags == FLAG_RESENT));
    assert_eq!(give(&mut client, 102, &bytes_of(1, 1, &DONE)), "Completed(1, Done { revision: 1 })");
}

#[test]
fn without_a_way_back_the_calls_say_whether_they_may_have_been_applied() {
    let mut client = live(2000);
    for operation in [Operation::Set, Operation::Get] {
        begin(&mut client, 1, operation);
    }
    writes(&mut client, 1);
    client.handle(NOW(10), Input::Ended(Cause::Closed));
    begin(&mut client, 11, Operation::Set);
    outputs(&mut client);
    client.handle(NOW(2010), Input::Tick);
    // Since the session was open, calls now and later fail because the server has gone away.
    let ending = Ending::Session(End::GracePassed, Cause::Unknown);
    assert_eq!(outputs(&mut client), [Output::Over(ending)]);
    assert_eq!(ending.failure().kind, ErrorKind::ServerGone);
    let failed: Bytes<_> = core::iter::from_fn(|| client.next_failed(NOW(2011))).collect();
    let effects: Bytes<_> = failed.iter().map(|failed| (failed.id, failed.failure.effect)).collect();
    assert_eq!(effects, [(3, Effect::None), (2, Effect::None), (1, Effect::Possible)]);
    assert!(matches!(
        client.begin(NOW(2012), Operation::Get, (0x12, 0), SECOND),
        Err(BeginError::Over(over)) if over == ending
    ));
}

#[test]
fn without_a_grace_the_session_ends_with_its_connection() {
    let mut client = live(0);
    begin(&mut client, 1, Operation::Add);
    writes(&mut client, 1);
    client.handle(NOW(10), Input::Ended(Cause::Os(104)));
    let ending = Ending::Session(End::Connection, Cause::Os(104));
    assert_eq!(outputs(&mut client), [Output::Over(ending)]);
    let failed = client.next_failed(NOW(10)).expect("it was under way");
    assert_eq!((failed.failure.kind, failed.failure.cause), (ErrorKind::ServerGone, Cause::Os(104)));
    assert_eq!((failed.failure.effect, client.next_failed(NOW(10))), (Effect::Possible, None));
    assert_eq!((client.poll_timeout(), client.ending()), (None, Some(ending)));
}

#[test]
fn a_connection_that_ends_before_welcome_is_made_again_and_only_reads_are_sent_twice() {
    let mut client = new(0);
    let (add, get) = (begin(&mut client, 0, Operation::Add), begin(&mut client, 0, Operation::Get));
    connect(&mut client, 0);
    assert_eq!(ids(&writes(&mut client, 0)), [0, add, get]);
    client.handle(NOW(1), Input::Ended(Cause::Closed));
    let failed = client.next_failed(NOW(1)).expect("what left with HELLO may have had its effect");
    let Failure { kind, phase, cause, effect, .. } = failed.failure;
    assert_eq!((failed.id, kind, phase), (add, ErrorKind::ServerGone, Phase::Greeting));
    assert_eq!((cause, effect), (Cause::Closed, Effect::Possible));
    assert_eq!((client.next_failed(NOW(1)), client.ending(), outputs(&mut client)), (None, None, [].into()));
    client.handle(NOW(80), Input::Tick);
    assert_eq!(outputs(&mut client), [Output::Resolve]);
    connect(&mut client, 80);
    let again = writes(&mut client, 80);
    assert_eq!(ids(&again), [0, get]);
    assert!(matches!(again[1], ToWrite::Request(_, label) if label.flags == 0), "{again:?}");
    give(&mut client, 81, &bytes_of(0, 0, &welcome(false, 0, 0)));
    assert!(client.is_live());
    assert_eq!(give(&mut client, 82, &bytes_of(get, 1, &DONE)), "Completed(2, Done { revision: 1 })");
}

#[test]
fn who_says_goodbye_with_the_greeting_makes_no_other_connection() {
    let inputs = [Input::Ended(Cause::Closed), Input::Tick];
    for input in inputs {
        let mut client = new(0);
        client.handle(NOW(0), Input::Resolved(&[ADDRESS, ADDRESS]));
        assert_eq!(outputs(&mut client), [Output::Connect(ADDRESS)]);
        client.handle(NOW(0), Input::Connected);
        let bye = client.begin_bye(NOW(0), SECOND).expect("there is room");
        assert_eq!(ids(&writes(&mut client, 0)), [0, bye]);
        client.handle(NOW(1000), input);
        let reported = outputs(&mut client);
        assert!(reported.ends_with(&[Output::Disconnect, Output::Over(Ending::Left)]), "{reported:?}");
        assert_eq!((client.poll_timeout(), client.ending()), (None, Some(Ending::Left)));
    }
}

#[test]
fn a_session_that_was_never_opened_ends_at_once() {
    let mut client = new(0);
    client.handle(NOW(0), Input::Resolved(&[ADDRESS]));
    outputs(&mut client);
    let bye = client.begin_bye(NOW(1), SECOND).expect("there is room");
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Over(Ending::Left)]);
    let failed = client.next_failed(NOW(1)).expect("it waits for nothing");
    assert_eq!((failed.id, client.ending()), (bye, Some(Ending::Left)));
}

#[test]
fn the_end_of_a_session_lets_earlier_calls_try_one_connection() {
    let mut client = new(0);
    let set = begin(&mut client, 0, Operation::Set);
    let bye = client.begin_bye(NOW(0), SECOND).expect("there is room");
    assert_eq!(client.ending(), None);
    connect(&mut client, 0);
    assert_eq!(ids(&writes(&mut client, 0)), [0, set, bye]);
    let mut client = new(0);
    begin(&mut client, 0, Operation::Set);
    client.begin_bye(NOW(0), SECOND).expect("there is room");
    client.handle(NOW(0), Input::Resolved(&[ADDRESS]));
    client.handle(NOW(1), Input::ConnectFailed(ErrorKind::Refused, Cause::Os(111)));
    assert_eq!(client.ending(), Some(Ending::Left));
}

#[test]
fn a_peer_that_never_answers_the_greeting_is_a_timeout_after_the_whole_time() {
    for grace_ms in [0, 2000] {
        let mut client = new(grace_ms);
        begin(&mut client, 0, Operation::Set);
        connect(&mut client, 0);
        writes(&mut client, 0);
        client.handle(NOW(2000), Input::Tick);
        let reported = outputs(&mut client);
        let [Output::Disconnect, Output::Over(Ending::Dialling(failure))] = reported[..] else {
            panic!("{reported:?}")
        };
        assert_eq!((failure.kind, failure.phase), (ErrorKind::TimedOut, Phase::Greeting));
        assert_eq!((failure.elapsed, failure.cause), (2 * SECOND, Cause::Silent));
    }
}

#[test]
fn a_call_ends_by_its_own_timeout_when_the_server_is_silent() {
    let mut client = live(2000);
    begin(&mut client, 100, Operation::Get);
    writes(&mut client, 100);
    // Half a second before the call's end, the client asks the server for a heartbeat.
    assert_eq!(client.poll_timeout(), Some(NOW(600)));
    client.handle(NOW(600), Input::Tick);
    let beat = writes(&mut client, 600);
    assert!(matches!(beat[..], [ToWrite::Frame(_, ClientFrame::Heartbeat { .. })]), "{beat:?}");
    assert_eq!((client.next_failed(NOW(1099)), client.poll_timeout()), (None, Some(NOW(1100))));
    let failed = client.next_failed(NOW(1100)).expect("its time is up");
    assert_eq!((failed.failure.kind, failed.failure.elapsed), (ErrorKind::TimedOut, SECOND));

    // Without a connection there is no answer to wait for.
    let mut client = live(5000);
    begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    client.handle(NOW(900), Input::Ended(Cause::Closed));
    assert_eq!(client.next_failed(NOW(1000)).expect("its time is up").failure.kind, ErrorKind::TimedOut);
}

#[test]
fn a_silent_server_is_asked_then_left() {
    let mut client = live(2000);
    assert_eq!(client.poll_timeout(), Some(NOW(1000)));
    client.handle(NOW(1000), Input::Tick);
    assert!(matches!(writes(&mut client, 1000)[..], [ToWrite::Frame(_, ClientFrame::Heartbeat { .. })]));
    client.handle(NOW(3000), Input::Tick);
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Resolve]);
}

#[test]
fn a_program_that_polls_seldom_has_its_deadlines_all_the_same() {
    let options = NativeOptions { poller: Poller::Program, ..NativeOptions::default() };
    let mut client = live_with(options);
    let id =
        client.begin(NOW(0), Operation::Get, (0x0010, 8), Duration::from_millis(1_200)).expect("capacity");
    writes(&mut client, 0);
    let mut ended = None;
    for now in [2_000, 4_000, 6_000] {
        client.wake(NOW(now));
        client.handle(NOW(now), Input::Tick);
        ended = ended.or_else(|| client.next_failed(NOW(now)).map(|failed| (now, failed.id)));
        writes(&mut client, now);
    }
    assert_eq!(ended, Some((4_000, id)), "only the first delay counts as a pause");
}

#[test]
fn a_peer_that_closes_in_place_of_an_answer_is_asked_who_it_is() {
    let options = NativeOptions {
        connect_timeout: SECOND,
        unanswered: Unanswered::Identify,
        rounds: Rounds::One,
        ..NativeOptions::default()
    };
    let dialling = |client: &Client| match client.ending() {
        Some(Ending::Dialling(failure)) => failure.cause,
        other => panic!("{other:?}"),
    };
    // The echo of PyTorch's store, another answer, and no answer before the timeout.
    let answers = [
        (Some(IDENTIFY_NONCE.to_le_bytes()), Cause::ForeignStore),
        (Some(*b"HTTP"), Cause::Closed),
        (None, Cause::Closed),
    ];
    for (answer, cause) in answers {
        let mut client = Client::new(NOW(0), options, 1);
        assert_eq!(outputs(&mut client), [Output::Resolve]);
        connect(&mut client, 0);
        writes(&mut client, 0);
        client.handle(NOW(100), Input::Ended(Cause::Closed));
        assert_eq!(outputs(&mut client), [Output::Connect(ADDRESS)]);
        client.handle(NOW(100), Input::Connected);
        assert_eq!(writes(&mut client, 100), [ToWrite::Identify]);
        assert_eq!(client.poll_timeout(), Some(NOW(1000)), "it has no longer than the connection");
        match answer {
            Some(answer) => assert_eq!(give(&mut client, 101, &answer), "over"),
            None => {
                client.handle(NOW(1000), Input::Tick);
            }
        }
        assert_eq!((dialling(&client), client.poll_timeout()), (cause, None));
    }
}

#[test]
fn a_process_that_was_stopped_finds_no_deadline_passed() {
    let mut client = live(2000);
    begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    let before = client.poll_timeout().expect("a heartbeat");
    // The client's and the server's processes stop for an hour.
    let late = 3_600_000;
    client.wake(NOW(late));
    client.handle(NOW(late), Input::Tick);
    assert_eq!((outputs(&mut client), client.next_failed(NOW(late))), (Bytes::new(), None));
    assert!(matches!(writes(&mut client, late)[..], [ToWrite::Frame(_, ClientFrame::Heartbeat { .. })]));
    assert!(client.poll_timeout().is_some_and(|due| due > NOW(late)), "{before:?}");
    // The server stays silent, so the connection is lost.
    let mut ended = Bytes::new();
    for millis in (late + 500..late + 4000).step_by(500) {
        client.wake(NOW(millis));
        client.handle(NOW(millis), Input::Tick);
        // The call has its remaining time and no slack, since the server sends no heartbeat.
        if let Some(failed) = client.next_failed(NOW(millis)) {
            ended.push((millis - late, failed.failure.kind));
        }
    }
    assert_eq!(ended, [(1000, ErrorKind::TimedOut)]);
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Resolve]);
    // The grace period also moves.
    client.wake(NOW(2 * late));
    client.handle(NOW(2 * late), Input::Tick);
    assert_eq!((outputs(&mut client), client.ending()), (Bytes::new(), None));
}

/// Over a slow connection, receiving an answer may take longer than the heartbeat timeout.
#[test]
fn bytes_of_an_answer_are_a_sign_of_life() {
    let answer =
        bytes_of(1, 1, &ServerFrame::Popped { length_before: 1, item: Some(ValueRef::Bytes(&[0; 200])) });
    let mut client = live(2000);
    begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    for (millis, bytes) in [(1000, 10), (2000, 30), (3500, 31), (5000, 200)] {
        client.handle(NOW(millis), Input::Tick);
        assert_eq!(outputs(&mut client), [], "{millis}");
        writes(&mut client, millis);
        assert!(give(&mut client, millis, &answer[..bytes]).starts_with("partial"));
    }
    // Receiving no further bytes does not count.
    give(&mut client, 7999, &answer[..200]);
    client.handle(NOW(8000), Input::Tick);
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Resolve]);
    // Fewer bytes on another connection do.
    connect(&mut client, 8001);
    writes(&mut client, 8001);
    give(&mut client, 8001, &bytes_of(0, 0, &welcome(true, 1, 2000)));
    assert!(give(&mut client, 9001, &answer[..5]).starts_with("partial"));
    client.handle(NOW(11_002), Input::Tick);
    assert_eq!(outputs(&mut client), []);
    assert!(give(&mut client, 11_003, &answer).starts_with("Completed(1"));
}

#[test]
fn a_deadline_ends_a_call_and_the_server_is_told() {
    let mut client = live(2000);
    let waits = begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    // The server is alive and enforces the deadline, so its answer may arrive a little later.
    client.handle(NOW(500), Input::Tick);
    writes(&mut client, 500);
    give(&mut client, 501, &bytes_of(0, 0, &ServerFrame::HeartbeatEcho { nonce: 0 }));
    assert_eq!(client.next_failed(NOW(2999)), None);
    let failed = client.next_failed(NOW(3000)).expect("its time is up");
    assert_eq!((failed.id, failed.failure.kind), (waits, ErrorKind::TimedOut));
    assert_eq!((failed.failure.cause, failed.failure.effect), (Cause::NoAnswer, Effect::None));
    assert_eq!(client.next_failed(NOW(3000)), None);
    let written = writes(&mut client, 3000);
    assert!(
        matches!(written[..], [ToWrite::Frame(label, ClientFrame::Cancel { request: 1 })] if label.id == 2)
    );
    let fault = Fault::new(FaultCode::Cancelled, 0, 0);
    assert_eq!(give(&mut client, 3001, &bytes_of(1, 1, &ServerFrame::Error { fault })), "Nothing");
    let outcome = ServerFrame::Outcome { holds: true, revision: 1 };
    assert_eq!(give(&mut client, 3001, &bytes_of(2, 2, &outcome)), "Nothing");
    assert_eq!(client.pending.len(), 0);

    // A request that was never sent had no effect.
    let mut client = new(2000);
    let early = begin(&mut client, 0, Operation::Set);
    let failed = client.cancel(NOW(5), early).expect("under way");
    assert_eq!((failed.failure.kind, failed.failure.effect), (ErrorKind::Cancelled, Effect::None));
    assert_eq!((client.pending.len(), client.cancel(NOW(5), early)), (0, None));
}

#[test]
fn a_cancel_that_was_lost_with_its_connection_is_sent_again() {
    let is_cancel = |written: &[ToWrite], id, request, flags| {
        let expected = |label: &Label| (label.id, label.flags) == (id, flags);
        let [ToWrite::Frame(label, ClientFrame::Cancel { request: of })] = written else { return false };
        expected(label) && *of == request
    };
    let resume = |client: &mut Client, millis, request_last| {
        client.handle(NOW(millis), Input::Ended(Cause::Closed));
        assert_eq!(outputs(client), [Output::Resolve]);
        connect(client, millis);
        writes(client, millis);
        assert_eq!(give(client, millis, &bytes_of(0, 0, &welcome(true, request_last, 2000))), "Open");
        writes(client, millis)
    };
    let mut client = live(2000);
    let waits = begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    client.cancel(NOW(1), waits).expect("under way");
    assert!(is_cancel(&writes(&mut client, 1), 2, waits, 0));
    // The request arrived, but the cancel did not, and did not the second time either.
    let written = resume(&mut client, 2, 1);
    assert!(is_cancel(&written, 2, waits, FLAG_RESENT), "{written:?}");
    let written = resume(&mut client, 3, 1);
    assert!(is_cancel(&written, 2, waits, FLAG_RESENT), "{written:?}");
    // The cancel arrived, and the client waits for the answer.
    assert_eq!(resume(&mut client, 4, 2), []);
    let fault = Fault::new(FaultCode::Cancelled, 0, 0);
    assert_eq!(give(&mut client, 5, &bytes_of(1, 1, &ServerFrame::Error { fault })), "Nothing");
    let outcome = ServerFrame::Outcome { holds: true, revision: 1 };
    assert_eq!(give(&mut client, 5, &bytes_of(2, 2, &outcome)), "Nothing");
    assert_eq!((client.pending.len(), resume(&mut client, 6, 2)), (0, Bytes::new()));

    // If the request did not arrive either, there is nothing to cancel.
    let mut client = live(2000);
    let waits = begin(&mut client, 0, Operation::Get);
    writes(&mut client, 0);
    client.cancel(NOW(1), waits).expect("under way");
    writes(&mut client, 1);
    assert_eq!((resume(&mut client, 2, 0), client.pending.len()), (Bytes::new(), 0));
}

#[test]
fn a_watch_that_nobody_reads_ends_at_the_server_whatever_happens_on_the_way() {
    let mut client = live(2000);
    let watch = begin(&mut client, 0, Operation::Watch);
    writes(&mut client, 0);
    give(&mut client, 1, &bytes_of(watch, 1, &DONE));
    // There is no connection, for longer than a call waits for its answer.
    client.handle(NOW(2), Input::Ended(Cause::Closed));
    outputs(&mut client);
    client.end_watch(NOW(2), watch).expect("there is room");
    assert_eq!(client.next_failed(NOW(1900)), None);
    connect(&mut client, 1900);
    writes(&mut client, 1900);
    give(&mut client, 1901, &bytes_of(0, 0, &welcome(true, 1, 2000)));
    let written = writes(&mut client, 1901);
    assert!(
        matches!(written[..], [ToWrite::Frame(label, ClientFrame::Cancel { request: 1 })] if label.id == 2),
        "{written:?}"
    );
    let over = ServerFrame::WatchOver { why: Why::Cancelled, oldest: 0 };
    assert!(give(&mut client, 1902, &bytes_of(watch, 2, &over)).starts_with("Pushed(1, WatchOver"));
    let outcome = ServerFrame::Outcome { holds: true, revision: 1 };
    assert_eq!(give(&mut client, 1902, &bytes_of(2, 3, &outcome)), "Nothing");

    // Most of the table is reserved for calls.
    let full = Err(BeginError::Limit(LimitError::Operations { count: 4 }));
    client.end_watch(NOW(1903), watch).expect("there is room");
    assert_eq!(client.end_watch(NOW(1903), watch), full);
    for _ in 0..3 {
        begin(&mut client, 1903, Operation::Get);
    }
    writes(&mut client, 1903);
    give(&mut client, 1904, &bytes_of(3, 4, &outcome));
    begin(&mut client, 1904, Operation::Get);
    assert_eq!(client.end_watch(NOW(1904), watch), full);
}

#[test]
fn the_table_is_bounded_and_long_bodies_are_refused() {
    let mut client = live(0);
    for _ in 0..4 {
        begin(&mut client, 0, Operation::Get);
    }
    let full = client.begin(NOW(0), Operation::Get, (0x12, 8), SECOND);
    assert_eq!(full, Err(BeginError::Limit(LimitError::Operations { count: 4 })));
    let mut client = live(0);
    let long = client.begin(NOW(0), Operation::Get, (0x12, 65_537), SECOND);
    let (bytes, bytes_max) = (65_537, 65_536);
    assert_eq!(long, Err(BeginError::Limit(LimitError::Frame { bytes, bytes_max })));
}

#[test]
fn a_session_that_is_not_resumed_is_over() {
    for (code, kind) in [
        (FaultCode::SessionEnded, ErrorKind::SessionEnded),
        (FaultCode::SessionForged, ErrorKind::SessionEnded),
        (FaultCode::VersionUnsupported, ErrorKind::WrongProtocol),
    ] {
        let mut client = live(2000);
        client.handle(NOW(1), Input::Ended(Cause::Closed));
        outputs(&mut client);
        connect(&mut client, 2);
        writes(&mut client, 2);
        let error = ServerFrame::Error { fault: Fault::new(code, 2, 0) };
        assert_eq!(give(&mut client, 3, &bytes_of(0, 0, &error)), "over");
        let reported = outputs(&mut client);
        let [Output::Disconnect, Output::Over(ending)] = reported[..] else { panic!("{reported:?}") };
        assert_eq!((ending.failure().kind, client.participant().part()), (kind, Part::Outside));
    }
}

/// A late HELLO of an abandoned connection has taken the session. A new connection takes it back.
#[test]
fn a_connection_whose_session_was_taken_over_is_made_again() {
    let over = bytes_of(0, 0, &ServerFrame::SessionOver { why: Why::Superseded });
    let mut client = live(2000);
    begin(&mut client, 1, Operation::Set);
    writes(&mut client, 1);
    assert_eq!(give(&mut client, 2, &over), "over");
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Resolve]);
    assert_eq!(give(&mut client, 2, &bytes_of(1, 1, &DONE)), "over", "of the old connection");
    client.handle(NOW(2), Input::Ended(Cause::Closed));
    assert_eq!(outputs(&mut client), []);
    connect(&mut client, 3);
    let written = writes(&mut client, 3);
    assert!(matches!(written[..], [ToWrite::Opening(_, identity)] if identity.session == 5), "{written:?}");
    assert_eq!(give(&mut client, 4, &bytes_of(0, 0, &welcome(true, 1, 2000))), "Open");
    assert_eq!(give(&mut client, 4, &bytes_of(1, 1, &DONE)), "Completed(1, Done { revision: 1 })");

    // The same happens before WELCOME.
    client.handle(NOW(5), Input::Ended(Cause::Closed));
    outputs(&mut client);
    connect(&mut client, 6);
    writes(&mut client, 6);
    assert_eq!(give(&mut client, 7, &over), "over");
    assert_eq!((outputs(&mut client).first(), client.ending()), (Some(&Output::Disconnect), None));

    let mut client = live(0);
    assert_eq!(give(&mut client, 2, &over), "over");
    let ending = Ending::Session(End::Server(Why::Superseded), Cause::Unknown);
    assert_eq!(outputs(&mut client), [Output::Disconnect, Output::Over(ending)]);
}

/// For any frames, in any pieces and order: no panic, each call ends once, and the table is empty when the client has
/// ended.
#[test]
fn damaged_frames_end_at_most_the_session() {
    let limits = Client::answer_limits(&FrameLimits::default());
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let grace_ms = if rng.below(2) == 0 { 0 } else { 2000 };
        let mut client = live(grace_ms);
        let (mut begun, mut ended, mut now, mut sequence) = (0, 0, 0, 0);
        for _ in 0..40 {
            now += rng.below(400);
            if client.begin(NOW(now), Operation::Set, (0x10, 9), SECOND).is_ok() {
                begun += 1;
            }
            if rng.below(8) == 0 && client.cancel(NOW(now), 1 + rng.below(20)).is_some() {
                ended += 1;
            }
            writes(&mut client, now);
            sequence += rng.below(8).min(1);
            let id = 1 + rng.below(begun + 1);
            let mut bytes = match rng.below(5) {
                0 => bytes_of(id, sequence, &DONE),
                1 => bytes_of(0, 0, &welcome(rng.below(2) == 0, rng.below(9), grace_ms)),
                2 => bytes_of(
                    id,
                    sequence,
                    &ServerFrame::Error { fault: Fault::new(FaultCode::Other(250), 1, 2) },
                ),
                3 => bytes_of(id, sequence, &ServerFrame::SessionOver { why: Why::Limit }),
                _ => bytes_of(
                    id,
                    sequence,
                    &ServerFrame::Popped { length_before: 1, item: Some(ValueRef::Bytes(b"item")) },
                ),
            };
            for _ in 0..rng.below(3) {
                let at = usize::try_from(rng.below(bytes.len() as u64)).expect("an index");
                bytes[at] = rng.next_u64().to_le_bytes()[0];
            }
            match client.receive(NOW(now), &limits, &bytes) {
                Taken::Frame(length, event) => {
                    assert!(length <= bytes.len());
                    ended += u64::from(matches!(event, Event::Completed(..) | Event::Failed(..)));
                }
                Taken::Partial(lacks) => assert!(lacks > bytes.len()),
                Taken::Over => {}
            }
            if rng.below(10) == 0 {
                client.handle(NOW(now), Input::Ended(Cause::Closed));
                client.handle(NOW(now), Input::Resolved(&[ADDRESS]));
                client.handle(NOW(now), Input::Connected);
            }
            client.handle(NOW(now), Input::Tick);
            outputs(&mut client);
            ended += core::iter::from_fn(|| client.next_failed(NOW(now))).count() as u64;
        }
        ended += core::iter::from_fn(|| client.next_failed(Instant::MAX)).count() as u64;
        assert_eq!(ended, begun, "seed {seed}");
    }
}
