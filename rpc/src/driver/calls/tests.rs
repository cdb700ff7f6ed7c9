mod ends;
mod flow;
pub(super) mod frames;
mod refusals;
mod resources;
mod tls;
mod tokens;

use super::calling::{Call, CallCanceller, CallResult, RpcClient, RpcClientOptions, RpcPeer};
use super::handling::{Handling, Request, Responder, Run};
use super::io_thread::IoThread;
use super::reentrancy::Home;
use super::serving::{Admission, RpcServer, RpcServerOptions};
use super::*;
use crate::connection::{CallError, CallFailure, CallKind, ConnectionError, Refusal, RefusalObserver};
use crate::handlers::Callers;
use crate::limits::{ConnectionLimits, IntakeLimits, RpcLimits};
use crate::name::WorkerInfo;
use crate::wire::{CalleeFrame, CallerFrame, DATA, Header, MAGIC, encode_frame};
use rendezvous_core::driver::cancel::{CancelToken, Canceller};
use rendezvous_core::driver::channel::{Receiver, Sender, unbounded as channel};
use rendezvous_core::driver::server::{Family, Listen};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::UngreetedLimits;
use rendezvous_core::time::Duration;
use rendezvous_core::wire::sink::Sink;
use std::boxed::Box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::string::{String, ToString};
use std::{format, vec};

/// Longer than anything here takes; a test that needs it has failed.
const SOON: Duration = Duration::from_secs(60);

fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

struct Scene {
    server: RpcServer,
    handling: Arc<Handling>,
    client: LoneClient,
    peer: RpcPeer,
    /// Requests of the handler `hold`, and their responders.
    held: Receiver<(Request, Responder)>,
}

fn listen() -> Listen {
    Listen::Address { host: "127.0.0.1".to_string(), port: 0, family: Family::AsGiven }
}

fn server_options() -> RpcServerOptions {
    RpcServerOptions {
        listen: listen(),
        me: worker("b", 2),
        group: b"group".to_vec(),
        admit: Box::new(|caller| match caller.name.as_str() {
            "a" if caller.id == 1 => Ok(()),
            "a" => Err((Refusal::Unknown, "a is number 1".into())),
            _ => Err((Refusal::Unknown, format!("no worker {} here", caller.name).into())),
        }),
        limits: RpcLimits::default(),
        intake: IntakeLimits::default(),
        connections: ConnectionLimits::default(),
        keep_alive: Some(KeepAlive::default()),
        observer: RefusalObserver::default(),
        tls: None,
        token: None,
    }
}

/// Client with a thread of its own.
pub(in crate::driver) struct LoneClient {
    client: RpcClient,
    #[expect(dead_code, reason = "held: the thread ends after its client")]
    thread: IoThread,
}

impl LoneClient {
    pub(in crate::driver) fn new(options: RpcClientOptions) -> std::io::Result<Self> {
        let thread = IoThread::start(|_| ())?;
        let client = RpcClient::on_thread(options, thread.shared(), Home::default());
        Ok(Self { client, thread })
    }
}

impl core::ops::Deref for LoneClient {
    type Target = RpcClient;

    fn deref(&self) -> &RpcClient {
        &self.client
    }
}

fn client_options() -> RpcClientOptions {
    RpcClientOptions {
        me: worker("a", 1),
        group: b"group".to_vec(),
        limits: RpcLimits::default(),
        keep_alive: Some(KeepAlive::default()),
        tls: None,
        token: None,
    }
}

fn handling() -> (Arc<Handling>, Receiver<(Request, Responder)>) {
    let handling = Handling::new(4);
    let echo = |request: Request, responder: Responder| _ = responder.answer(request.payload);
    handling.register("echo", Run::Inline, echo).expect("a name");
    handling.register("pooled", Run::Pooled, echo).expect("a name");
    let length = |request: Request, responder: Responder| {
        responder.answer(format!("{}", request.payload.len()).into_bytes());
    };
    handling.register("length", Run::Inline, length).expect("a name");
    handling
        .register("who", Run::Inline, |request: Request, responder: Responder| {
            responder.answer(format!("{} to {}", request.caller, request.handler).into_bytes());
        })
        .expect("a name");
    for (name, run) in [("panics", Run::Inline), ("pooled_panics", Run::Pooled)] {
        handling.register(name, run, |_, _| panic!("provoked")).expect("a name");
    }
    handling
        .register("says_no", Run::Inline, |_, responder| _ = responder.fail("not today"))
        .expect("a name");
    handling.register("forgets", Run::Inline, |_, responder| drop(responder)).expect("a name");
    let (hold, held) = channel();

    handling
        .register("hold", Run::Inline, move |request, responder| {
            hold.send((request, responder)).ok();
        })
        .expect("a name");
    (handling, held)
}

/// Server of the worker that calls in these tests.
fn callable_caller() -> (RpcServer, Receiver<(Request, Responder)>) {
    let (handling, held) = handling();
    let options = RpcServerOptions { me: worker("a", 1), ..server_options() };
    (RpcServer::start(options, handling).expect("a free port"), held)
}

fn peer_of(client: &RpcClient, worker: &WorkerInfo, server: &RpcServer) -> RpcPeer {
    client.peer(worker, "127.0.0.1", server.local_addr().port()).expect("a descriptor")
}

fn scene() -> Scene {
    scene_with(server_options(), client_options())
}

fn scene_with(server: RpcServerOptions, client: RpcClientOptions) -> Scene {
    let (handling, held) = handling();
    let server = RpcServer::start(server, Arc::clone(&handling)).expect("a free port");
    let client = LoneClient::new(client).expect("descriptors");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", server.local_addr().port()).expect("a descriptor");
    Scene { server, handling, client, peer, held }
}

impl Scene {
    fn call(&self, handler: &str, payload: &[u8]) -> CallResult {
        self.peer.call(Call::of(handler).with_timeout(SOON), payload)
    }

    fn next_held(&self) -> (Request, Responder) {
        self.held.recv_timeout(SOON).expect("a request")
    }

    /// Polls until the server has nothing to do; each poll is a command to its thread.
    fn until_idle(&self, connections: usize) {
        let until = std::time::Instant::now() + SOON;
        loop {
            let held = self.server.held();
            if held == (0, 0, connections) {
                return;
            }
            assert!(std::time::Instant::now() < until, "{held:?}");
        }
    }
}

/// Returns the message of a failed call without the worker's address.
fn message(result: CallResult) -> String {
    result.expect_err("it failed").at("").to_string()
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(31) ^ (at >> 12)).to_le_bytes()[0]).collect()
}

#[test]
fn calls_are_answered_whatever_their_size_and_way() {
    let scene = scene();
    for size in [0, 1, 64, 5000, 8 * 1024 + 1, 70_000, 3 << 20] {
        let payload = bytes(size);
        for handler in ["echo", "pooled"] {
            assert!(scene.call(handler, &payload) == Ok(payload.clone()), "{handler} {size}");
            let started = scene.peer.start(Call::of(handler).with_timeout(SOON), &payload[..]).expect("made");
            assert!(started.wait() == Ok(payload.clone()), "{handler} {size}");
            let (notify, reported) = channel();
            let call = Call::of(handler).with_timeout(SOON);
            scene
                .peer
                .start_with(call, &payload[..], move |result| notify.send(result).expect("awaited"))
                .expect("made");
            assert!(
                reported.recv_timeout(SOON).expect("notified") == Ok(payload.clone()),
                "{handler} {size}"
            );
        }
    }
    assert_eq!(scene.call("who", b"").as_deref(), Ok(&b"a (id 1) to who"[..]));
    scene.until_idle(1);
}

#[test]
fn many_calls_are_in_flight_and_long_ones_hold_up_nobody() {
    let scene = scene();
    let long = bytes(5 << 20);
    let many: Vec<_> = (0..200)
        .map(|at| {
            let payload = if at % 50 == 0 { long.clone() } else { bytes(at) };
            let handler = if at % 3 == 0 { "pooled" } else { "echo" };
            scene.peer.start(Call::of(handler).with_timeout(SOON), payload).expect("made")
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for size in 0..200 {
                    assert_eq!(scene.call("echo", &bytes(size)), Ok(bytes(size)));
                }
            });
        }
    });
    for (at, call) in many.into_iter().enumerate() {
        let expected = if at % 50 == 0 { long.clone() } else { bytes(at) };
        assert!(call.wait() == Ok(expected), "{at}");
    }
    scene.until_idle(1);
}

#[test]
fn handlers_that_fail_say_so_and_their_threads_live_on() {
    let scene = scene();
    for (handler, expected) in [
        ("absent", "absent at b (id 2): there is no such handler"),
        ("panics", "panics at b (id 2): the handler failed: panics panicked: provoked"),
        ("pooled_panics", "pooled_panics at b (id 2): the handler failed: pooled_panics panicked: provoked"),
        ("says_no", "says_no at b (id 2): the handler failed: not today"),
        ("forgets", "forgets at b (id 2): the handler failed: forgets gave no answer"),
        ("", "a call to b (id 2): the name of a handler has 0 bytes: from 1 to 1024"),
    ] {
        for payload in [&b""[..], &bytes(100_000)] {
            assert_eq!(message(scene.call(handler, payload)), expected);
        }
    }
    assert_eq!(scene.call("pooled", b"x").as_deref(), Ok(&b"x"[..]));
    let late = |_: Request, responder: Responder| _ = responder.answer(&b"here"[..]);
    scene.handling.register("absent", Run::Pooled, late).expect("a name");
    assert_eq!(scene.call("absent", b"").as_deref(), Ok(&b"here"[..]));
    assert!(scene.handling.remove("absent") && !scene.handling.remove("absent"));
    assert_eq!(message(scene.call("absent", b"")), "absent at b (id 2): there is no such handler");
    scene.handling.register("rdzv/join", Run::Inline, late).expect_err("it is the library's");
    scene.until_idle(1);
}

#[test]
fn answers_may_come_late_and_from_any_thread() {
    let scene = scene();
    let calls: Vec<_> =
        (0..20).map(|at| scene.peer.start(Call::of("hold"), bytes(at)).expect("made")).collect();
    let mut held: Vec<_> = calls.iter().map(|_| scene.next_held()).collect();
    held.reverse();
    std::thread::scope(|scope| {
        for (request, responder) in held {
            scope.spawn(move || assert!(responder.is_wanted() && responder.answer(request.payload)));
        }
    });
    for (at, call) in calls.into_iter().enumerate() {
        assert_eq!(call.wait(), Ok(bytes(at)));
    }
}

#[test]
fn a_notice_arrives_and_nobody_answers() {
    let scene = scene();
    for payload in [vec![], bytes(10), bytes(2 << 20)] {
        scene.peer.notify(Call::of("hold"), payload.clone(), None).expect("made");
        let (request, responder) = scene.next_held();
        assert!(*request.payload == payload[..] && request.kind == CallKind::OneWay);
        assert!(!responder.answer(payload));
    }
    scene.peer.notify(Call::of("absent"), &b""[..], None).expect("made");
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    scene.until_idle(1);
}

/// Pending call. Dropping it cancels it.
struct Started {
    result: std::sync::mpsc::Receiver<CallResult>,
    canceller: CallCanceller,
}

impl RpcPeer {
    /// Makes a call without waiting for the response.
    fn start(&self, call: Call<'_>, payload: impl Into<Payload>) -> Result<Started, CallError> {
        let (notify, result) = std::sync::mpsc::channel();
        let canceller = self.start_with(call, payload, move |result| _ = notify.send(result))?;
        Ok(Started { result, canceller })
    }
}

impl Started {
    fn look(&self, timeout: Duration) -> Option<CallResult> {
        self.result.recv_timeout(timeout).ok()
    }

    fn wait(self) -> CallResult {
        self.look(SOON).expect("it ends")
    }

    fn cancel(&self) -> bool {
        self.canceller.cancel()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}

/// Starts a call of the handler `hold` with longer and longer timeouts, until it arrives in time.
fn held_for_a_while(scene: &Scene) -> (Started, Request, Responder) {
    for timeout_ms in (5..).map(|power| 1 << power) {
        let call = Call::of("hold").with_timeout(Duration::from_millis(timeout_ms));
        let started = scene.peer.start(call, &b""[..]);
        // Requests arrive in order.
        assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
        if let (Ok(started), Ok((request, responder))) = (started, scene.held.try_recv()) {
            return (started, request, responder);
        }
    }
    unreachable!("there is always more time")
}

#[test]
fn a_call_ends_at_its_deadline_and_the_handler_is_told() {
    let scene = scene();
    let brief = Call::of("hold").with_timeout(Duration::from_millis(30));
    let error = message(scene.peer.call(brief, &b""[..]));
    assert!(error.starts_with("hold at b (id 2)"), "{error}");
    let (started, request, responder) = held_for_a_while(&scene);
    assert!(request.time_left.is_some());
    let error = message(started.look(SOON).expect("in time"));
    assert!(error.starts_with("hold at b (id 2)"), "{error}");
    assert_eq!(started.look(Duration::ZERO), None);
    // The cancel frame has reached the server before this request.
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    assert!(!responder.is_wanted() && !responder.answer(&b"late"[..]));
}

#[test]
fn a_cancelled_call_ends_at_once_and_its_handler_is_told() {
    let scene = scene();
    let token = CancelToken::new();
    let call = Call { token: Some(&token), ..Call::of("hold").with_timeout(SOON) };
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| scene.peer.call(call, &b""[..]));
        let held = scene.held.recv_timeout(SOON);
        token.cancel();
        let error = message(blocked.join().expect("no panic"));
        assert_eq!(error, "hold at b (id 2): it was cancelled");
        held.expect("a request");
    });
    let error = message(scene.peer.call(call, &b""[..]));
    assert_eq!(error, "hold at b (id 2): it was cancelled", "before it began");
    let started = scene.peer.start(Call::of("hold"), &b""[..]).expect("made");
    let (_, responder) = scene.next_held();
    assert!(started.cancel() && !started.cancel());
    assert_eq!(message(started.wait()), "hold at b (id 2): it was cancelled");
    let dropped = scene.peer.start(Call::of("hold"), &b""[..]).expect("made");
    let (_, of_dropped) = scene.next_held();
    drop(dropped);
    // The cancel frame has reached the server before this request.
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    assert!(!responder.is_wanted() && !of_dropped.answer(&b""[..]));
}

#[test]
fn payloads_over_the_limit_are_refused_on_both_sides() {
    let narrow = RpcLimits { payload_bytes_max: 1000, ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { limits: narrow, ..server_options() }, client_options());
    assert_eq!(
        message(scene.call("length", &bytes(1001))),
        "length at b (id 2): the payload is over the limit: 1001 bytes, of at most 1000"
    );
    assert_eq!(
        message(scene.call("length", &bytes(3 << 20))),
        "length at b (id 2): the payload is over the limit: 3145728 bytes, of at most 1000"
    );
    assert_eq!(scene.call("length", &bytes(1000)).as_deref(), Ok(&b"1000"[..]));
    let long = |_: Request, responder: Responder| _ = responder.answer(bytes(1001));
    scene.handling.register("long", Run::Inline, long).expect("a name");
    let long_answer =
        "long at b (id 2): the payload is over the limit: a response of 1001 bytes, of at most 1000";
    assert_eq!(message(scene.call("long", b"")), long_answer);

    let scene = scene_with(server_options(), RpcClientOptions { limits: narrow, ..client_options() });
    scene.handling.register("long", Run::Inline, long).expect("a name");
    let expected = "at b (id 2): a payload of 1001 bytes is over the limit of 1000";
    assert_eq!(message(scene.call("length", &bytes(1001))), format!("length {expected}"));
    assert_eq!(message(scene.call("long", b"")), format!("long {expected}"));
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
}

#[test]
fn who_is_not_of_the_group_or_not_who_it_says_is_refused() {
    let refused = |client: RpcClientOptions, callee: WorkerInfo, expected: &str| {
        let scene = scene_with(server_options(), client);
        let port = scene.server.local_addr().port();
        let peer = scene.client.peer(&callee, "127.0.0.1", port).expect("a descriptor");
        for _ in 0..2 {
            assert_eq!(message(peer.call(Call::of("echo").with_timeout(SOON), &b""[..])), expected);
        }
        scene.until_idle(0);
    };
    let b = worker("b", 2);
    let group = RpcClientOptions { group: b"other".to_vec(), ..client_options() };
    refused(group, b.clone(), "echo at b (id 2): not sent: refused: it belongs to another group");
    let expected = "echo at c (id 2): not sent: refused: another worker is at this address: this is b (id 2)";
    refused(client_options(), worker("c", 2), expected);
    let message = "echo at b (id 2): not sent: refused: the caller is not a known member: ";
    for (me, why) in [(worker("a", 7), "a is number 1"), (worker("z", 1), "no worker z here")] {
        let expected = format!("{message}{why}");
        refused(RpcClientOptions { me, ..client_options() }, b.clone(), &expected);
    }
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

#[test]
fn a_server_that_leaves_answers_what_it_has_and_one_that_stops_does_not() {
    let scene = scene();
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b"x"[..]).expect("made");
    let (request, responder) = scene.next_held();
    assert!(!scene.server.leave(Duration::from_millis(1)), "one is under way");
    // The thread says goodbye a little later.
    let until = std::time::Instant::now() + SOON;
    let refused = loop {
        match scene.call("echo", b"") {
            Ok(_) => assert!(std::time::Instant::now() < until, "it takes calls still"),
            failed => break message(failed),
        }
    };
    assert!(
        refused == "echo at b (id 2): it takes no further calls"
            || refused == "echo at b (id 2): the worker takes no further requests",
        "{refused}"
    );
    responder.answer(request.payload);
    assert_eq!(started.wait().as_deref(), Ok(&b"x"[..]));
    assert!(scene.server.leave(SOON));
    // Nothing listens there any more, which says nothing of a death.
    assert_eq!(message(scene.call("echo", b"")), "echo at b (id 2): it takes no further calls");

    let scene = self::scene();
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b"x"[..]).expect("made");
    let (_, responder) = scene.next_held();
    scene.server.stop();
    let error = message(started.wait());
    assert!(
        error.starts_with("hold at b (id 2): contact with the worker was lost: the connection ended: "),
        "{error}"
    );
    assert!(!responder.answer(&b""[..]));
}

#[test]
fn a_client_that_parts_with_a_worker_gets_its_answers_and_one_that_stops_does_not() {
    let scene = scene();
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b"x"[..]).expect("made");
    let (request, responder) = scene.next_held();
    scene.client.part_with(&worker("b", 2), "127.0.0.1", scene.server.local_addr().port());
    assert_eq!(message(scene.call("echo", b"")), "echo at b (id 2): it takes no further calls");
    responder.answer(request.payload);
    assert_eq!(started.wait().as_deref(), Ok(&b"x"[..]));
    scene.until_idle(0);

    let scene = self::scene();
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b"x"[..]).expect("made");
    let _held = scene.next_held();
    scene.client.stop("the job ended");
    assert_eq!(message(started.wait()), "hold at b (id 2): the job ended");
    assert_eq!(message(scene.call("echo", b"")), "echo at b (id 2): not sent: the job ended");
}

#[test]
fn a_worker_that_is_said_to_be_dead_is_dead_for_all_calls_at_once() {
    let scene = scene();
    let port = scene.server.local_addr().port();
    let die = || scene.client.mark_dead(&worker("b", 2), "127.0.0.1", port, "its lease ended");
    let peer = || scene.client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b""[..]).expect("made");
    let _held = scene.next_held();
    die();
    assert_eq!(
        message(started.wait()),
        "hold at b (id 2): contact with the worker was lost: its lease ended"
    );
    // A thread that blocks and reads for itself is notified, too.
    let another = peer();
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| another.call(Call::of("hold").with_timeout(SOON), &b""[..]));
        let held = scene.held.recv_timeout(SOON);
        die();
        let reported = blocked.join().expect("no panic");
        held.expect("a request");
        assert_eq!(message(reported), "hold at b (id 2): contact with the worker was lost: its lease ended");
    });
    for stale in [&scene.peer, &another] {
        let error = message(stale.call(Call::of("echo").with_timeout(SOON), &b"x"[..]));
        assert_eq!(error, "echo at b (id 2): not sent: its lease ended");
    }
    let found = peer().call(Call::of("echo").with_timeout(SOON), &b"x"[..]);
    assert_eq!(found.as_deref(), Ok(&b"x"[..]), "who asks for it anew finds it again");
}

#[test]
fn calls_to_a_worker_that_leaves_go_on_and_no_others_are_made() {
    let scene = scene();
    let port = scene.server.local_addr().port();
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b"x"[..]).expect("made");
    let (request, responder) = scene.next_held();
    scene.client.part_with(&worker("b", 2), "127.0.0.1", port);
    let error = scene.call("echo", b"").expect_err("it leaves");
    assert_eq!(error.why, CallFailure::Leaving);
    // Another worker is there now, or it has restarted.
    let peer = scene.client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    assert_eq!(peer.call(Call::of("echo").with_timeout(SOON), &b"y"[..]).as_deref(), Ok(&b"y"[..]));
    assert!(responder.answer(request.payload));
    assert_eq!(started.wait().as_deref(), Ok(&b"x"[..]));
    drop(peer);
    while scene.server.held().2 > 0 {}
}

#[test]
fn calls_that_are_given_up_end_and_later_ones_are_made() {
    let scene = scene();
    let (server, local_held) = callable_caller();
    let client = server.client();
    let local = peer_of(&client, &worker("a", 1), &server);
    let port = scene.server.local_addr().port();
    let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    let calls = [local.start(Call::of("hold"), &b""[..]), peer.start(Call::of("hold"), &b""[..])];
    // Only the call keeps the connection.
    drop(peer);
    // Both were sent.
    let _held = [scene.next_held(), local_held.recv_timeout(SOON).expect("a request")];
    client.cut("its time is up");
    for (call, callee) in calls.into_iter().zip(["a (id 1)", "b (id 2)"]) {
        let call = call.expect("made");
        let error = call.look(SOON).expect("it ended").expect_err("it was given up");
        assert_eq!(error.why, CallFailure::CallerEnded("its time is up".into()));
        assert_eq!(error.at("").to_string(), alloc::format!("hold at {callee}: its time is up"));
    }
    assert_eq!(local.call(Call::of("echo").with_timeout(SOON), &b"x"[..]).as_deref(), Ok(&b"x"[..]));
    // Without a deadline, nothing else would end it.
    let call = local.start(Call::of("hold"), &b""[..]).expect("made");
    drop(client);
    let error = call.look(SOON).expect("it ended").expect_err("its worker ended");
    assert_eq!(error.at("").to_string(), "hold at a (id 1): the caller ended");
    let error = local.call(Call::of("echo").with_timeout(SOON), &b""[..]).expect_err("its worker ended");
    assert_eq!(error.why, CallFailure::Unsent(ConnectionError::CallerEnded("the caller ended".into())));
}

#[test]
fn a_worker_that_comes_again_is_called_again() {
    let mut scene = scene();
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    let port = scene.server.local_addr().port();
    for _ in 0..3 {
        scene.server.stop();
        let mut error = message(scene.call("echo", b""));
        if error.starts_with("echo at b (id 2): contact with the worker was lost: the connection ended: ") {
            // It was sent over the connection that had just ended.
            error = message(scene.call("echo", b""));
        }
        assert!(
            error.starts_with("echo at b (id 2): not sent: no process listens at its address: "),
            "{error}"
        );
        let listen = Listen::Address { host: "127.0.0.1".to_string(), port, family: Family::AsGiven };
        let options = RpcServerOptions { listen, ..server_options() };
        scene.server =
            RpcServer::start(options, Arc::clone(&scene.handling)).expect("the port is free again");
        assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
        let started = scene.peer.start(Call::of("pooled"), &b"y"[..]).expect("made");
        assert_eq!(started.wait().as_deref(), Ok(&b"y"[..]));
    }
}

/// Calls to a worker that vanished: no call has a timeout long enough to detect that alone.
#[test]
fn a_worker_that_falls_silent_is_noticed_by_calls_that_have_little_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let (ping_interval, ping_timeout) = (Duration::from_millis(40), Duration::from_millis(60));
    let limits = RpcLimits { ping_interval, ping_timeout, ..RpcLimits::default() };
    let client = LoneClient::new(RpcClientOptions { limits, ..client_options() }).expect("descriptors");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    let first = peer.start(Call::of("f").with_timeout(SOON), &b""[..]).expect("made");
    let (mut stream, _) = listener.accept().expect("it is called");
    let welcome =
        CalleeFrame::Welcome { version: 1, callee: b"b", callee_id: 2, requests_max: 9, bytes_max: 9 };
    let answer = CalleeFrame::Response { status: 0, payload_bytes: 0, message: b"" };
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, 0, &welcome).and_then(|()| encode_frame(&mut out, 1, &answer)).expect("short");
    let (welcome, answer) = out.0.split_at(41);
    stream.write_all(welcome).expect("written");
    // A response may come once its request has arrived.
    let (greeting_bytes, request_bytes) = (59, 41);
    stream.read_exact(&mut vec![0; greeting_bytes + request_bytes]).expect("a request");
    stream.write_all(answer).expect("written");
    assert_eq!(first.wait().as_deref(), Ok(&b""[..]));
    listener.set_nonblocking(true).expect("a socket");
    let until = std::time::Instant::now() + SOON;
    // The next call uses another connection; a pending one fails.
    while listener.accept().is_err() {
        let error = message(peer.call(Call::of("f").with_timeout(Duration::from_millis(10)), &b""[..]));
        let is_reported =
            error.starts_with("f at b (id 2): contact with the worker was lost: nothing received in ");
        let is_late = ["no answer in ", "not sent in "].map(|late| format!("f at b (id 2): {late}"));
        assert!(is_reported || is_late.iter().any(|late| error.starts_with(late)), "{error}");
        assert!(std::time::Instant::now() < until, "it is not noticed");
    }
}

#[test]
fn who_is_sent_more_than_it_can_take_reads_no_further_and_loses_nothing() {
    let intake = IntakeLimits { requests_max: 4, bytes_max: 1 << 20, ..IntakeLimits::default() };
    let limits = RpcLimits { bytes_max: 600_000, ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { intake, limits, ..server_options() }, client_options());
    let peers: Vec<LoneClient> =
        (0..3).map(|_| LoneClient::new(client_options()).expect("descriptors")).collect();
    let port = scene.server.local_addr().port();
    let mut calls = Vec::new();
    for client in &peers {
        let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
        for _ in 0..30 {
            calls.push(peer.start(Call::of("hold").with_timeout(SOON), bytes(300_000)).expect("made"));
        }
    }
    let mut most = 0;
    for _ in 0..calls.len() {
        let (request, responder) = scene.next_held();
        most = scene.server.held().1.max(most);
        assert!(responder.answer(request.payload));
    }
    for call in calls {
        assert!(call.wait() == Ok(bytes(300_000)));
    }
    // The limit, and what may be pending on each connection when it is reached.
    assert!(most <= (1 << 20) + 3 * 600_000, "{most} bytes at once");
    scene.until_idle(0);
}

#[test]
fn more_calls_than_the_other_end_allows_wait_their_turn() {
    let few = RpcLimits { requests_max: 2, ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { limits: few, ..server_options() }, client_options());
    let calls: Vec<_> = (0..50)
        .map(|at| scene.peer.start(Call::of("pooled").with_timeout(SOON), bytes(at)).expect("made"))
        .collect();
    for (at, call) in calls.into_iter().enumerate() {
        assert_eq!(call.wait(), Ok(bytes(at)));
    }
}

#[test]
fn calls_to_oneself_end_as_others_do() {
    let (server, held) = callable_caller();
    let client = server.client();
    let peer = peer_of(&client, &worker("a", 1), &server);
    for handler in ["echo", "pooled"] {
        assert_eq!(peer.call(Call::of(handler).with_timeout(SOON), &b"x"[..]).as_deref(), Ok(&b"x"[..]));
    }
    assert_eq!(
        message(peer.call(Call::of("absent"), &b""[..])),
        "absent at a (id 1): there is no such handler"
    );
    let panicked = "pooled_panics at a (id 1): the handler failed: pooled_panics panicked: provoked";
    assert_eq!(message(peer.call(Call::of("pooled_panics"), &b""[..])), panicked);
    let brief = Call::of("hold").with_timeout(Duration::from_millis(20));
    let error = message(peer.call(brief, &b""[..]));
    assert!(error.starts_with("hold at a (id 1): no answer in "), "{error}");
    let (_, responder) = held.recv_timeout(SOON).expect("a request");
    let until = std::time::Instant::now() + SOON;
    while responder.is_wanted() {
        assert!(std::time::Instant::now() < until, "the callee does not notice");
    }
    assert!(!responder.answer(&b""[..]));
    let started = peer.start(Call::of("hold"), &b""[..]).expect("made");
    assert!(started.cancel());
    assert_eq!(message(started.wait()), "hold at a (id 1): it was cancelled");
}

#[test]
fn a_name_is_looked_up_and_one_that_is_none_is_told() {
    let scene = scene();
    let port = scene.server.local_addr().port();
    let local = scene.client.peer(&worker("b", 2), "localhost", port).expect("a descriptor");
    assert_eq!(local.call(Call::of("echo").with_timeout(SOON), &b"x"[..]).as_deref(), Ok(&b"x"[..]));
    let nowhere = scene.client.peer(&worker("b", 2), "no.such.name.invalid", port).expect("a descriptor");
    let error =
        nowhere.call(Call::of("echo").with_timeout(SOON), &b""[..]).expect_err("no such host").to_string();
    let expected = format!("echo at b (id 2, no.such.name.invalid:{port}): not sent: it cannot be reached: ");
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn callbacks_are_called_once_whatever_ends_the_call_and_may_call_again() {
    let scene = scene();
    let (notify, reported): (Sender<CallResult>, _) = channel();
    let again = scene.peer.clone();
    let first = notify.clone();
    scene
        .peer
        .start_with(Call::of("echo").with_timeout(SOON), &b"1"[..], move |result| {
            let answer = result.expect("answered");
            let call = Call::of("echo").with_timeout(SOON);
            again.start_with(call, answer, move |result| first.send(result).expect("awaited")).expect("made");
        })
        .expect("made");
    assert_eq!(reported.recv_timeout(SOON).expect("notified").as_deref(), Ok(&b"1"[..]));
    scene
        .peer
        .start_with(Call::of("hold").with_timeout(SOON), &b""[..], move |result| _ = notify.send(result))
        .expect("made");
    let _held = scene.next_held();
    let Scene { peer, client, .. } = scene;
    drop((peer, client));
    assert_eq!(message(reported.recv_timeout(SOON).expect("notified")), "hold at b (id 2): the caller ended");
    assert!(reported.recv_timeout(SOON).is_err(), "it is reported once");
}
