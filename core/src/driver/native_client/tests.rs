//! Tests with a scripted server, for behaviour that a real one would not show so soon, or at all.

use super::*;
use crate::driver::store::Store;
use crate::ids::ConnId;
use crate::limits::SessionLimits;
use crate::rendezvous::participant::{Entry, Role};
use crate::rendezvous::round_event::RoundEvent;
use crate::session::table::{Hello, Input as TableInput, Outcome, Output as TableOutput, Sessions};
use crate::store::op::Pairs;
use crate::store::value_ref::ValueRef;
use crate::time::Instant;
use crate::wire::native::{
    ClientFrame, From, HEADER_BYTES, LastCall, MAGIC, RankOrder, Scan, Terms, Why, encode_frame, scan,
    scan_opening,
};
use crate::wire::sink::Sink;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const SOON: Duration = Duration::from_secs(20);
const WHILE: Timeout = Timeout::After(SOON);

struct Growing<'v>(&'v mut Vec<u8>);

impl Sink for Growing<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Instruction of the script after a request.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    /// Close the connection without sending the responses of this iteration.
    Drop,
}

/// Functions that the script may call.
struct Stage<'s> {
    sessions: &'s mut Sessions,
    session: crate::session::table::SessionId,
    out: Vec<u8>,
}

impl Stage<'_> {
    fn answer(&mut self, id: u64, frame: &ServerFrame<'_>) {
        self.sessions.answer(self.session, id, frame, &mut Growing(&mut self.out)).expect("pending");
    }

    fn push(&mut self, id: u64, frame: &ServerFrame<'_>) {
        self.sessions.push(self.session, id, frame, &mut Growing(&mut self.out)).expect("a session");
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}

type Script = dyn FnMut(&mut Stage<'_>, u64, &ClientFrame<'_>) -> Then + Send;

/// Serves one connection after the other, until the script's owner is dropped. It ends with its last client.
fn serve(connections: usize, mut script: Box<Script>) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = thread::spawn(move || {
        let mut sessions = Sessions::new(SessionLimits::default(), 77);
        for index in 0..connections {
            let (socket, _) = listener.accept().expect("a client");
            let conn = ConnId { index: u32::try_from(index).expect("few"), generation: 0 };
            serve_one(socket, conn, &mut sessions, &mut *script);
            sessions.handle(Instant::ORIGIN, TableInput::Lost { conn, why: Why::Connection }).ok();
            while sessions.poll_output().is_some() {}
        }
    });
    (address, server)
}

fn serve_one(mut socket: TcpStream, conn: ConnId, sessions: &mut Sessions, script: &mut Script) {
    let limits = FrameLimits::default();
    let (mut received, mut buffer, mut greeted) = (Vec::new(), [0; 4096], false);
    loop {
        let (header, start, end) = loop {
            let prefix = if greeted { 0 } else { MAGIC.len() };
            let scanned = if greeted {
                scan(&received, From::Client, &limits)
            } else {
                scan_opening(&received, &limits)
            };
            if let Scan::Whole { header, bytes } = scanned.expect("our own frames") {
                break (header, prefix + HEADER_BYTES, prefix + bytes);
            }
            match socket.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(count) => received.extend_from_slice(&buffer[..count]),
            }
        };
        let body = received[start..end].to_vec();
        received.drain(..end);
        greeted = true;
        let frame = ClientFrame::parse(header.kind, &body, &limits).expect("readable").expect("known");
        let mut out = Vec::new();
        let mut put = |frame: &ServerFrame<'_>| {
            let label = Default::default();
            encode_frame(&mut Growing(&mut out), label, frame).expect("short");
        };
        match frame {
            ClientFrame::Hello {
                incarnation,
                session,
                token,
                grace_ms,
                heartbeat_ms,
                heartbeats_missed_max,
                node,
                ..
            } => {
                let received = header.sequence;
                let hello = Hello {
                    incarnation,
                    session,
                    token,
                    received,
                    grace_ms,
                    heartbeat_ms,
                    heartbeats_missed_max,
                    node,
                };
                let input = TableInput::Hello { conn, hello, fresh_token: [9; 16] };
                sessions.handle(Instant::ORIGIN, input).expect("the first");
                match sessions.poll_output().expect("an answer") {
                    TableOutput::Welcome { session, token, resumed, request_last, granted, .. } => {
                        let frame_limits = FrameLimits::default();
                        let window = SessionLimits::default();
                        put(&ServerFrame::Welcome {
                            version: 1,
                            incarnation: 77,
                            session: session.0,
                            token,
                            resumed,
                            request_last,
                            grace_ms: granted.grace_ms,
                            heartbeat_ms: granted.heartbeat_ms,
                            heartbeats_missed_max: granted.heartbeats_missed_max,
                            window_frames: window.window_frames,
                            window_bytes: window.window_bytes,
                            key_bytes_max: frame_limits.key_bytes_max,
                            value_bytes_max: frame_limits.value_bytes_max,
                            list_max: frame_limits.keys_max,
                            frame_bytes_max: frame_limits.frame_bytes_max as u64,
                        });
                        out.extend(sessions.unreceived(session).flat_map(|kept| kept.to_vec()));
                    }
                    TableOutput::Refused { fault, .. } => put(&ServerFrame::Error { fault }),
                    other => panic!("{other:?}"),
                }
            }
            ClientFrame::Heartbeat { nonce } => put(&ServerFrame::HeartbeatEcho { nonce }),
            ClientFrame::Acknowledge {} => {}
            frame => {
                match sessions.request(Instant::ORIGIN, conn, header.id, header.sequence).expect("greeted") {
                    Outcome::Fresh(session) => {
                        let mut stage = Stage { sessions, session, out: Vec::new() };
                        let then = script(&mut stage, header.id, &frame);
                        out = stage.out;
                        if then == Then::Drop {
                            return;
                        }
                    }
                    Outcome::Repeat(bytes) => out.extend_from_slice(bytes),
                    Outcome::Pending => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        if socket.write_all(&out).is_err() {
            return;
        }
    }
}

pub(in crate::driver) fn options(grace: Duration) -> NativeClientOptions {
    NativeClientOptions { node: "n0".into(), grace, connect_timeout: SOON, ..NativeClientOptions::default() }
}

fn client(address: SocketAddr, grace: Duration) -> NativeClient {
    NativeClient::connect("127.0.0.1", address.port(), options(grace)).expect("connected")
}

const DONE: ServerFrame<'static> = ServerFrame::Done { revision: 1 };

#[test]
fn each_request_has_its_effect_once_although_the_connection_breaks() {
    let mut sum = 0;
    let (address, server) = serve(
        6,
        Box::new(move |stage, id, frame| match *frame {
            ClientFrame::Add { delta, .. } => {
                sum += delta;
                stage.answer(id, &ServerFrame::Number { number: sum, revision: 1 });
                // Every second response is lost with its connection.
                if id % 2 == 0 { Then::Drop } else { Then::GoOn }
            }
            _ => {
                stage.answer(id, &DONE);
                Then::GoOn
            }
        }),
    );
    let client = client(address, SOON);
    let store = Store::over(Arc::new(client.clone()));
    for expected in 1..=10 {
        assert_eq!(store.add(b"n", 1, WHILE).expect("it comes through"), expected);
    }
    client.close(SOON).expect("confirmed");
    assert!(client.is_over());
    drop((store, client));
    server.join().expect("no panic");
}

#[test]
fn without_a_grace_a_lost_connection_is_told_at_once_with_what_may_have_happened() {
    let (address, server) = serve(1, Box::new(|_, _, _| Then::Drop));
    let client = client(address, Duration::ZERO);
    let store = Store::over(Arc::new(client.clone()));
    let error = store.add(b"n", 1, WHILE).expect_err("lost");
    assert_eq!((error.kind(), error.failure().effect), (ErrorKind::ServerGone, Effect::Possible));
    let text = error.to_string();
    assert!(text.contains("add \"n\" at 127.0.0.1:") && text.contains("it may have been applied"), "{text}");
    assert!(text.ends_with("the session ended with its connection"), "{text}");
    let late = store.add(b"n", 1, WHILE).expect_err("over");
    assert_eq!((late.kind(), late.failure().effect), (ErrorKind::ServerGone, Effect::None));
    server.join().expect("no panic");
}

#[test]
fn a_server_that_never_answers_costs_the_deadline_and_is_told() {
    let (notify, reported) = std::sync::mpsc::channel();
    let (address, _server) = serve(
        1,
        Box::new(move |stage, id, frame| {
            if let ClientFrame::Cancel { request } = *frame {
                stage.answer(request, &ServerFrame::Error { fault: Fault::new(FaultCode::Cancelled, 0, 0) });
                stage.answer(id, &ServerFrame::Outcome { holds: true, revision: 1 });
                notify.send(request).ok();
            }
            Then::GoOn
        }),
    );
    let slack = Duration::from_millis(20);
    let options = NativeClientOptions { answer_slack: slack, ..options(Duration::ZERO) };
    let client = NativeClient::connect("127.0.0.1", address.port(), options).expect("connected");
    let store = Store::over(Arc::new(client.clone()));
    let error = store.get_owned(b"k", Timeout::After(Duration::from_millis(30))).expect_err("no answer");
    assert_eq!((error.kind(), error.cause()), (ErrorKind::TimedOut, Cause::NoAnswer));
    assert_eq!(reported.recv_timeout(SOON), Ok(1));

    // Another thread may cancel a call as well. A call that was cancelled before it was sent leaves nothing to
    // cancel.
    let (cancelled, error) = loop {
        let (cancelled, ended) = thread::scope(|scope| {
            let waiting = scope.spawn(|| store.get_owned(b"k", WHILE));
            let cancelled = loop {
                store.cancel();
                match reported.recv_timeout(Duration::from_millis(10)) {
                    Ok(request) => break Some(request),
                    Err(_) if waiting.is_finished() => break None,
                    Err(_) => {}
                }
            };
            (cancelled, waiting.join().expect("no panic"))
        });
        if let Some(cancelled) = cancelled {
            break (cancelled, ended.expect_err("cancelled"));
        }
    };
    assert!(cancelled > 2, "{cancelled}");
    assert_eq!(error.kind(), ErrorKind::Cancelled);
}

#[test]
fn what_no_server_sends_ends_the_session() {
    let (address, server) = serve(
        1,
        Box::new(|stage, _, _| {
            stage.raw(&[0xff; 64]);
            Then::GoOn
        }),
    );
    let client = client(address, SOON);
    let error = client.run_info(b"run", SOON).expect_err("nonsense");
    assert_eq!(error.kind(), ErrorKind::WrongProtocol);
    assert!(error.to_string().ends_with("the server violated the protocol"), "{error}");
    server.join().expect("no panic");
}

pub(in crate::driver) fn terms() -> Terms<'static> {
    Terms {
        nodes_min: 1,
        nodes_max: 2,
        continue_min: 0,
        last_call: LastCall::Fixed,
        last_call_ms: 30_000,
        fast_quorum: true,
        rank_order: RankOrder::Sticky,
        rank_label: b"",
        cool_down_failures: 0,
        cool_down_window_ms: 0,
        cool_down_pause_ms: 0,
        cool_down_pause_ms_max: 0,
    }
}

pub(in crate::driver) fn entry() -> Entry<'static> {
    Entry {
        run_id: b"run",
        node: b"n0",
        address: b"h0",
        local_world_size: 2,
        node_rank: -1,
        join_timeout_ms: 20_000,
        terms: terms(),
        labels: Pairs::scoped(b"", &[]),
        round_min: 0,
    }
}

const RUN: Key<'static> = Key::raw(b"run");

#[test]
fn a_join_leaves_with_the_greeting_and_events_follow_in_order() {
    let (address, server) = serve(
        1,
        Box::new(|stage, id, frame| {
            match frame {
                ClientFrame::Join { .. } => {
                    stage.push(id, &ServerFrame::Placed { run_id: RUN, is_participant: true, ahead: 0 });
                    stage.answer(
                        id,
                        &ServerFrame::Round {
                            run_id: RUN,
                            round: 4,
                            node_rank: 1,
                            nodes: 2,
                            rank_first: 2,
                            world_size: 4,
                            leader: b"h1",
                            namespace: Key::raw(b"torch.rendezvous.run.4"),
                        },
                    );
                    let (run_id, why) = (RUN, Why::HostSilent);
                    stage.push(
                        id,
                        &ServerFrame::PeerDied { run_id, round: 4, node_rank: 0, node: b"n1", why },
                    );
                    let why = Why::TooFewNodes;
                    stage.push(id, &ServerFrame::RoundOver { run_id, round: 4, why });
                }
                _ => stage.answer(id, &DONE),
            }
            Then::GoOn
        }),
    );
    let client = NativeClient::start("127.0.0.1", address.port(), options(Duration::ZERO)).expect("set out");
    let joined = client.join(&entry(), Role::Member).expect("a round");
    assert_eq!((joined.round, joined.node_rank, joined.nodes), (4, 1, 2));
    assert_eq!((joined.rank_first, joined.world_size, &*joined.leader), (2, 4, &b"h1"[..]));
    assert_eq!(&*joined.namespace, b"torch.rendezvous.run.4");
    let mut events = Vec::new();
    while events.len() < 3 {
        events.push(client.next_event(SOON).expect("alive").expect("three of them"));
    }
    let died = RoundEvent::PeerDied { round: 4, node_rank: 0, node: "n1".into(), why: Why::HostSilent };
    let over = RoundEvent::RoundOver { round: 4, why: Why::TooFewNodes };
    assert_eq!(events, [NodeEvent::Seated, NodeEvent::Round(died), NodeEvent::Round(over)]);
    assert_eq!(client.next_event(Duration::ZERO).expect("alive"), None);
    let early = client.join(&entry(), Role::Member).err();
    assert_eq!(early, None, "its round is over, so it may come back");
    client.leave(b"run", SOON).expect("let go");
    let again = client.leave(b"run", SOON).expect_err("it is in no run");
    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
    assert!(again.to_string().contains(" is not possible now: the node is in no round"), "{again}");
    client.close(SOON).expect("confirmed");
    // Earlier events are still there. Then it is known that no more will follow.
    let reported = core::iter::from_fn(|| client.next_event(SOON).ok()).count();
    assert_eq!(reported, 3);
    server.join().expect("no panic");
}

#[test]
fn a_refused_join_has_the_servers_words() {
    let (address, _server) = serve(
        1,
        Box::new(|stage, id, _| {
            let text = b"round 0 was not formed: 1 of at least 2 nodes were there (n0)";
            let fault = Fault { text, ..Fault::new(FaultCode::TimedOut, 100, 0) };
            stage.answer(id, &ServerFrame::Error { fault });
            Then::GoOn
        }),
    );
    let client = client(address, Duration::ZERO);
    let error = client.join(&entry(), Role::Member).expect_err("too few");
    assert_eq!(
        (error.kind(), error.fault().map(|fault| fault.code)),
        (ErrorKind::TimedOut, Some(FaultCode::TimedOut))
    );
    assert!(error.to_string().ends_with("1 of at least 2 nodes were there (n0)"), "{error}");
    assert!(error.to_string().starts_with("next_rendezvous \"run\" at 127.0.0.1:"), "{error}");
}

#[test]
fn a_watch_that_nobody_reads_is_ended() {
    let (notify, reported) = std::sync::mpsc::channel();
    let (address, _server) = serve(
        2,
        Box::new(move |stage, id, frame| {
            match *frame {
                ClientFrame::WatchPrefix { .. } => {
                    stage.answer(id, &ServerFrame::Done { revision: 7 });
                    for revision in 8..12 {
                        let change =
                            crate::wire::native::Change { revision, key: Key::raw(b"/k"), value: None };
                        let changes = [change];
                        let changes = crate::wire::native::List::new(&changes);
                        stage.push(id, &ServerFrame::Changed { changes });
                    }
                }
                ClientFrame::Cancel { request } => {
                    stage.answer(id, &ServerFrame::Outcome { holds: true, revision: 1 });
                    notify.send(request).ok();
                }
                _ => {}
            }
            Then::GoOn
        }),
    );
    let options = NativeClientOptions { pushes_max: 3, ..options(Duration::ZERO) };
    let client = NativeClient::connect("127.0.0.1", address.port(), options).expect("connected");
    let watch = client.watch_prefix(b"k", 0, WHILE).expect("begun");
    assert_eq!((watch.revision(), reported.recv_timeout(SOON)), (7, Ok(1)));
    for revision in 8..11 {
        let change = watch.next(SOON).expect("kept").expect("there");
        assert_eq!(change, Change { revision, key: b"k".to_vec(), value: None });
    }
    assert!(matches!(watch.next(SOON), Err(WatchError::Overrun(_))));
    drop(watch);
    assert_eq!(reported.recv_timeout(SOON), Ok(1));
    drop(client);

    // Or because of the bytes: those of the first two leave no space for a third one.
    let bytes = size_of::<OwnedFrame>() + 20;
    let options = NativeClientOptions { pushed_bytes_max: 2 * bytes, ..self::options(Duration::ZERO) };
    let client = NativeClient::connect("127.0.0.1", address.port(), options).expect("connected");
    let watch = client.watch_prefix(b"k", 0, WHILE).expect("begun");
    assert_eq!(reported.recv_timeout(SOON), Ok(1));
    for revision in 8..10 {
        assert_eq!(watch.next(SOON).expect("kept").map(|change| change.revision), Some(revision));
    }
    assert!(matches!(watch.next(SOON), Err(WatchError::Overrun(_))));
}

/// A response for several things covers each of them.
#[test]
fn an_answer_of_another_length_than_its_question_is_none() {
    use crate::wire::native::{Batched, Found, List};
    let (address, _server) = serve(
        1,
        Box::new(move |stage, id, frame| {
            match *frame {
                // As many as the timeout, which the tests choose, and not as many as there are keys.
                ClientFrame::MultiGet { timeout_ms, .. } => {
                    let count = usize::try_from(timeout_ms / 1000).expect("few");
                    let values =
                        alloc::vec![Found { revision: 5, value: Some(ValueRef::Bytes(b"x")) }; count];
                    stage.answer(id, &ServerFrame::Values { values: List::new(&values) });
                }
                ClientFrame::Batch { .. } => {
                    let answers = [Batched(ServerFrame::Done { revision: 1 }); 2];
                    stage.answer(id, &ServerFrame::BatchDone { answers: List::new(&answers) });
                }
                _ => {}
            }
            Then::GoOn
        }),
    );
    let client =
        NativeClient::connect("127.0.0.1", address.port(), options(Duration::ZERO)).expect("connected");
    let seconds = |count| Timeout::After(Duration::from_secs(count));
    for count in [1, 3] {
        let error = client.read(&[b"k", b"l"], seconds(count)).expect_err("not two");
        assert_eq!((error.kind(), error.call().failure().effect), (ErrorKind::WrongProtocol, Effect::None));
    }
    assert_eq!(client.read(&[b"k", b"l"], seconds(2)).map(|found| found.len()), Ok(2));
    for count in [1, 3] {
        let mut batch = Batch::default();
        (0..count).for_each(|_| batch.push(b"k", BatchStep::Write(Step::Delete)));
        let error = client.batch(&batch, WHILE).expect_err("not two");
        assert_eq!(
            (error.kind(), error.call().failure().effect),
            (ErrorKind::WrongProtocol, Effect::Possible)
        );
    }
}

#[test]
fn nobody_listens_and_the_deadline_holds() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let brief = NativeClientOptions { connect_timeout: Duration::from_millis(80), ..options(SOON) };
    let error = NativeClient::connect("127.0.0.1", port, brief).expect_err("no listener");
    assert_eq!((error.kind(), error.call().phase()), (ErrorKind::Refused, Phase::Connecting));
    let once = NativeClientOptions { connect_timeout: Duration::ZERO, ..options(SOON) };
    let error = NativeClient::connect("localhost", port, once).expect_err("no listener");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}
