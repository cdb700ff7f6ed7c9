//! Limits on what one caller may make a worker hold: responses that it does not read, requests that it does not finish,
//! one-way calls, and what both ends keep of borrowed bytes.

use super::frames::{PONG, RESPONSE, frame, greeting, next_frame, next_response, request_of};
use super::*;
use core::sync::atomic::{AtomicUsize, Ordering};
use rendezvous_core::driver::lock::Lock;
use std::net::TcpListener;
use std::sync::{Condvar, Mutex};

const MIB: usize = 1 << 20;

/// Borrowed bytes, with a count of those that are not released.
struct Loan {
    bytes: Arc<Vec<u8>>,
    live: Arc<Live>,
}

#[derive(Default)]
struct Live {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Live {
    fn lend(self: &Arc<Self>, bytes: &Arc<Vec<u8>>) -> Payload {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Payload::foreign(Arc::new(Loan { bytes: Arc::clone(bytes), live: Arc::clone(self) }))
    }

    fn now(&self) -> usize {
        self.now.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.live.now.fetch_sub(1, Ordering::SeqCst);
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + SOON;
    while !is_so() {
        assert!(std::time::Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Opened once; handlers wait at it.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (is_open, opened) = &*self.0;
        let is_open = is_open.lock().expect("no panic");
        let (_open, timeout) = opened.wait_timeout_while(is_open, SOON, |open| !*open).expect("no panic");
        assert!(!timeout.timed_out(), "the gate stays shut");
    }

    fn open(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_all();
    }
}

/// A worker with handlers that respond with 16 MiB each, and a caller that makes 150 such calls and does not read.
fn unread(run: Run) -> (Scene, TcpStream, Arc<Live>) {
    let scene = scene();
    let (live, huge) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 16 * MIB]));
    let lender = Arc::clone(&live);
    let answer = move |_: Request, responder: Responder| _ = responder.answer(lender.lend(&huge));
    scene.handling.register("huge", run, answer).expect("a name");
    let mut stream = greeting(&scene);
    let requests: Vec<u8> = (1..=150).flat_map(|id| request_of(b"huge", id, 0)).collect();
    stream.write_all(&requests).expect("written");
    (scene, stream, live)
}

fn read_answers(stream: &mut TcpStream) {
    let mut left = 150 * 16 * MIB;
    let mut responses = 0;
    while left > 0 {
        match next_frame(stream) {
            (DATA, _, body) => left -= body.len(),
            (RESPONSE, _, body) => {
                assert_eq!(body[..2], [0, 0]);
                responses += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(responses, 150);
}

/// 256 MiB of responses are kept for a caller; those of handlers that were running by then are added.
#[test]
fn handlers_of_a_caller_that_does_not_read_its_answers_are_held_back() {
    for run in [Run::Pooled, Run::Inline] {
        let (scene, mut stream, live) = unread(run);
        until("no answers", || live.now() >= 16);
        assert!(live.now() <= 16 + 4, "{run:?}: {} answers of 16 MiB", live.now());
        // Others are served, and the library's own calls are, too.
        assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
        assert_eq!(scene.call("pooled", b"x").as_deref(), Ok(&b"x"[..]));
        read_answers(&mut stream);
        // Sent bytes are released when no lock is held; by then as many others may have begun.
        let most = live.most();
        assert!(most <= 2 * 16 + 4, "{run:?}: {most} answers of 16 MiB at once");
        until("answers are kept", || live.now() == 0);
        drop(stream);
        scene.until_idle(1);
    }
}

/// Its requests are held back, and its own calls are not: two workers with long responses to each other do so.
#[test]
fn two_workers_with_long_answers_for_each_other_do_not_wait_for_each_other() {
    let scene = scene();
    let me = worker("a", 1);
    let (handling, _held) = handling();
    let options = RpcServerOptions { me: me.clone(), admit: Box::new(|_| Ok(())), ..server_options() };
    let back = RpcServer::start(options, Arc::clone(&handling)).expect("a free port");
    let other =
        LoneClient::new(RpcClientOptions { me: worker("b", 2), ..client_options() }).expect("descriptors");
    let peer = other.peer(&me, "127.0.0.1", back.local_addr().port()).expect("a descriptor");
    let long = |_: Request, responder: Responder| _ = responder.answer(vec![7; 64 * MIB]);
    for handling in [&handling, &scene.handling] {
        handling.register("long", Run::Pooled, long).expect("a name");
    }
    let calls: Vec<_> = (0..24)
        .flat_map(|_| [&peer, &scene.peer])
        .map(|peer| peer.start(Call::of("long").with_timeout(SOON), &b""[..]).expect("made"))
        .collect();
    for call in calls {
        assert_eq!(call.wait().map(|answer| answer.len()), Ok(64 * MIB));
    }
}

/// The worker has not read the request when it refuses it: the bytes in flight keep no borrowed bytes.
#[test]
fn lent_bytes_are_given_back_before_a_blocking_call_returns() {
    let scene = scene();
    let (live, long) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 64 * MIB]));
    for round in 0..10 {
        let result = scene.peer.call(Call::of("absent").with_timeout(SOON), live.lend(&long));
        assert_eq!(message(result), "absent at b (id 2): there is no such handler");
        assert_eq!(live.now(), 0, "round {round}");
    }
    // The bytes in flight are sent without a further call.
    until("the rest is not sent", || scene.server.held().0 == 0);
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
    let pending = scene.peer.start(Call::of("hold"), live.lend(&long)).expect("made");
    assert!(pending.cancel());
    assert_eq!((live.now(), message(pending.wait())), (0, "hold at b (id 2): it was cancelled".into()));
}

/// A worker that completes the handshake and then does nothing.
#[test]
fn lent_bytes_for_a_worker_that_does_not_read_are_given_back_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let client = LoneClient::new(client_options()).expect("descriptors");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    let (live, long) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 64 * MIB]));
    std::thread::scope(|scope| {
        let greeted = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a caller");
            stream.read_exact(&mut vec![0; frames::hello().len()]).expect("Hello");
            let mut out = Bytes(Vec::new());
            let (requests_max, bytes_max) = (1024, 256 << 20);
            let welcome =
                CalleeFrame::Welcome { version: 1, callee: b"b", callee_id: 2, requests_max, bytes_max };
            encode_frame(&mut out, 0, &welcome).expect("short");
            stream.write_all(&out.0).expect("written");
            stream
        });
        for timeout in [300, 30] {
            let call = Call::of("f").with_timeout(Duration::from_millis(timeout));
            let error = message(peer.call(call, live.lend(&long)));
            assert!(error.contains("no answer in") || error.contains("not sent in"), "{error}");
            assert_eq!(live.now(), 0, "{error}");
        }
        drop(greeted.join().expect("no panic"));
    });
}

#[test]
fn an_answer_to_a_cancelled_call_keeps_no_lent_bytes() {
    let scene = scene();
    let (live, long) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 64 * MIB]));
    let mut stream = greeting(&scene);
    stream.write_all(&request_of(b"hold", 1, 0)).expect("written");
    let (_, responder) = scene.next_held();
    assert!(responder.answer(live.lend(&long)));
    assert_eq!(live.now(), 1);
    stream.write_all(&frame(1, &CallerFrame::Cancel {})).expect("written");
    until("they are kept", || live.now() == 0);
}

#[test]
fn a_long_failure_text_is_cut_and_says_so() {
    let scene = scene();
    let text = "é".repeat(20_000);
    let long = move |_: Request, responder: Responder| _ = responder.fail(&text);
    scene.handling.register("long", Run::Inline, long).expect("a name");
    let error = scene.call("long", b"").expect_err("it fails");
    let CallFailure::Remote { message, .. } = error.why else { panic!("{error}") };
    assert!(message.len() <= 16 * 1024, "{}", message.len());
    assert!(message.starts_with("éé"), "{message}");
    assert!(message.ends_with("é [cut: 40000 bytes, at most 16384]"), "{message}");
}

/// One caller makes far more one-way calls than the worker can execute, and another one makes a call.
#[test]
fn notices_of_one_caller_are_held_back_and_those_of_others_are_not() {
    let options = RpcServerOptions { admit: Box::new(|_| Ok(())), ..server_options() };
    let scene = scene_with(options, client_options());
    let client =
        LoneClient::new(RpcClientOptions { me: worker("c", 3), ..client_options() }).expect("descriptors");
    let port = scene.server.local_addr().port();
    let other = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    let (gate, turned, done) = (Gate::default(), Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (at, then, counted) = (gate.clone(), turned.clone(), Arc::clone(&done));
    let work = move |_: Request, _: Responder| {
        at.pass();
        if counted.fetch_add(1, Ordering::SeqCst) >= 100 {
            then.pass();
        }
    };
    scene.handling.register("work", Run::Pooled, work).expect("a name");
    let is_made = |_: &usize| scene.peer.notify(Call::of("work"), bytes(4096), None).is_ok();
    let made = (0..150_000).take_while(is_made).count();
    let quick = Call::of("echo").with_timeout(Duration::from_secs(10));
    for at in 0..10 {
        assert_eq!(other.call(quick, &b"x"[..]).as_deref(), Ok(&b"x"[..]), "{at}, {made} notices");
    }
    let (requests, _, _) = scene.server.held();
    assert!(requests < 5000, "{requests} of {made} were taken in");
    // It is executed before most of the one-way calls, which wait for it.
    let turn = move |_: Request, responder: Responder| {
        turned.open();
        _ = responder.answer(Vec::new());
    };
    scene.handling.register("turn", Run::Pooled, turn).expect("a name");
    let poll = other.start(Call::of("turn").with_timeout(SOON), &b"x"[..]).expect("made");
    // A later call on the same connection is answered, so the worker has it.
    assert_eq!(other.call(quick, &b"x"[..]).as_deref(), Ok(&b"x"[..]));
    gate.open();
    assert_eq!(poll.wait().as_deref(), Ok(&b""[..]));
    until("notices were lost", || done.load(Ordering::SeqCst) == made);
}

/// Cancelled calls free capacity at the caller at once, while their handlers are still running.
#[test]
fn calls_that_were_given_up_count_until_their_handlers_are_done() {
    let scene = scene();
    let gate = Gate::default();
    let shut = gate.clone();
    scene.handling.register("work", Run::Pooled, move |_, _| shut.pass()).expect("a name");
    for _ in 0..20 {
        let calls: Vec<_> = (0..1000)
            .map(|_| scene.peer.start(Call::of("work").with_timeout(SOON), bytes(100)).expect("made"))
            .collect();
        until("they do not come", || {
            let (requests, _, _) = scene.server.held();
            requests >= 1000
        });
        drop(calls);
    }
    let (requests, _, _) = scene.server.held();
    assert!(requests < 5000, "{requests} are taken in");
    gate.open();
    scene.until_idle(1);
}

/// Handlers that have returned respond later, whatever was held back. One response alone may have the maximum length.
#[test]
fn answers_that_come_later_are_dropped_beyond_their_limit_and_the_caller_is_told() {
    let limits = RpcLimits { late_answer_bytes_max: 10 << 20, ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { limits, ..server_options() }, client_options());
    let (live, long) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 16 * MIB]));
    let mut stream = greeting(&scene);
    stream.write_all(&[request_of(b"hold", 1, 0), request_of(b"hold", 2, 0)].concat()).expect("written");
    let ((_, first), (_, second)) = (scene.next_held(), scene.next_held());
    assert!(first.answer(live.lend(&long)));
    assert!(!second.answer(live.lend(&long)), "it is dropped");
    assert_eq!(live.now(), 1);
    let mut left = 16 * MIB;
    let mut text = None;
    while left > 0 || text.is_none() {
        match next_frame(&mut stream) {
            (DATA, 1, body) => left -= body.len(),
            (RESPONSE, 1, body) => assert_eq!(body[..2], [0, 0]),
            (RESPONSE, 2, body) => {
                assert_eq!(body[..2], [4, 0], "TooLong");
                text = Some(String::from_utf8_lossy(&body[18..]).into_owned());
            }
            other => panic!("{other:?}"),
        }
    }
    let reported = "the answer of 16777216 bytes was dropped: the caller has not read 16777216 bytes of other answers, and at \
                most 10485760 are kept for it";
    assert_eq!(text.as_deref(), Some(reported));
}

#[test]
fn a_caller_that_sends_half_a_request_and_nothing_more_holds_no_buffers_for_ever() {
    let limits = RpcLimits { stall_timeout: Duration::from_millis(50), ..RpcLimits::default() };
    let scene = scene_with(RpcServerOptions { limits, ..server_options() }, client_options());
    let mut stream = greeting(&scene);
    let half = CallerFrame::Request { deadline_ms: 0, payload_bytes: 2 << 20, handler: b"echo" };
    let notice = CallerFrame::Notice { deadline_ms: 0, payload_bytes: 2 << 20, handler: b"hold" };
    let part = |call| [&Header::of_data(call, 1 << 20).to_bytes()[..], &[7; 1 << 20]].concat();
    stream.write_all(&[frame(1, &half), frame(2, &notice), part(1), part(2)].concat()).expect("written");
    let (kind, call, body) = next_frame(&mut stream);
    assert_eq!((kind, call, &body[..2]), (RESPONSE, 1, &[7, 0][..]), "Stalled");
    scene.until_idle(1);
    // The connection continues.
    stream.write_all(&request_of(b"echo", 3, 0)).expect("written");
    assert_eq!(next_frame(&mut stream).1, 3);
}

#[test]
fn a_payload_that_fills_the_worker_is_read_on_when_its_caller_is_below_its_quota_again() {
    let intake = IntakeLimits {
        bytes_max: 1 << 20,
        unawaited_requests_max: 4,
        reserved_requests: 1,
        ..IntakeLimits::default()
    };
    let scene = scene_with(RpcServerOptions { intake, ..server_options() }, client_options());
    let gate = Gate::default();
    let shut = gate.clone();
    scene.handling.register("work", Run::Pooled, move |_, _| shut.pass()).expect("a name");
    let mut stream = greeting(&scene);
    let notice = CallerFrame::Notice { deadline_ms: 0, payload_bytes: 0, handler: b"work" };
    let mut first: Vec<u8> = (1..=4).flat_map(|id| frame(id, &notice)).collect();
    first.extend(frame(
        5,
        &CallerFrame::Request { deadline_ms: 0, payload_bytes: 2 << 20, handler: b"length" },
    ));
    stream.write_all(&first).expect("written");
    until("they do not come", || scene.server.held().0 == 5);
    let part = [&Header::of_data(5, 1 << 20).to_bytes()[..], &[7; 1 << 20]].concat();
    // More than the sockets hold may be written when the connection is read again.
    let mut rest = stream.try_clone().expect("a descriptor");
    let writing = std::thread::spawn(move || rest.write_all(&[&part[..], &part[..]].concat()));
    // A caller that is held up gets pongs.
    assert_eq!(next_frame(&mut stream), (PONG, 0, vec![0; 8]));
    gate.open();
    assert_eq!(next_frame(&mut stream).1, 5);
    writing.join().expect("no panic").expect("written");
    scene.until_idle(1);
}

/// Their handler ends when all have come, so the worker must take more than its limit, but not without bound.
#[test]
fn payloads_in_progress_are_completed_up_to_twice_the_limit_and_refused_beyond() {
    let intake = IntakeLimits { bytes_max: 8 << 20, reserved_requests: 0, ..IntakeLimits::default() };
    let scene = scene_with(RpcServerOptions { intake, ..server_options() }, client_options());
    let held: Arc<Mutex<Vec<Responder>>> = Arc::default();
    let kept = Arc::clone(&held);
    scene
        .handling
        .register("keep", Run::Inline, move |_, responder| kept.locked().push(responder))
        .expect("a name");
    let begin = |stream: &mut std::net::TcpStream, payload_bytes| {
        let request = CallerFrame::Request { deadline_ms: 0, payload_bytes, handler: b"keep" };
        stream.write_all(&frame(1, &request)).expect("written");
    };
    let part = [&Header::of_data(1, 1 << 20).to_bytes()[..], &[7; 1 << 20]].concat();
    let mut streams = [(); 5].map(|()| greeting(&scene));
    streams[..4].iter_mut().for_each(|stream| begin(stream, 3 << 20));
    begin(&mut streams[4], 8 << 20);
    until("they do not come", || scene.server.held().0 == 5);
    for stream in &mut streams[..4] {
        (0..3).for_each(|_| stream.write_all(&part).expect("written"));
    }
    until("four are not kept", || held.locked().len() == 4);
    assert_eq!(scene.server.held().1, 13 << 20, "four payloads, and the reserve of the fifth");
    let refused = |stream: &mut std::net::TcpStream, refused_call| {
        let (kind, call, body) = next_response(stream);
        assert_eq!((kind, call, body[0]), (RESPONSE, refused_call, 6), "Exhausted");
        assert!(String::from_utf8_lossy(&body).contains("twice as many bytes of requests"));
    };
    // Requests that arrive as a whole count, too: the fourth is refused as it begins, and its payload is dropped.
    for call in 2..6 {
        let request = CallerFrame::Request { deadline_ms: 0, payload_bytes: 1 << 20, handler: b"keep" };
        let whole =
            [&frame(call, &request)[..], &Header::of_data(call, 1 << 20).to_bytes(), &[7; 1 << 20]].concat();
        streams[4].write_all(&whole).expect("written");
    }
    refused(&mut streams[4], 5);
    until("three more are not kept", || held.locked().len() == 7);
    let (requests, bytes, _) = scene.server.held();
    assert_eq!((requests, bytes), (8, 16 << 20));
    (0..2).for_each(|_| streams[4].write_all(&part).expect("written"));
    refused(&mut streams[4], 1);
    held.locked().drain(..).for_each(|responder| _ = responder.answer(Vec::new()));
    streams[..4].iter_mut().for_each(|stream| assert_eq!(next_response(stream).1, 1));
    (2..5).for_each(|call| assert_eq!(next_response(&mut streams[4]).1, call));
    scene.until_idle(5);
}

#[test]
fn callers_that_announce_much_and_send_nothing_hold_up_no_others() {
    let intake = IntakeLimits { bytes_max: 8 << 20, reserved_requests: 0, ..IntakeLimits::default() };
    let scene = scene_with(RpcServerOptions { intake, ..server_options() }, client_options());
    let announced = CallerFrame::Request { deadline_ms: 0, payload_bytes: 4 << 30, handler: b"echo" };
    let mut idle = [greeting(&scene), greeting(&scene)];
    for stream in &mut idle {
        stream.write_all(&frame(1, &announced)).expect("written");
    }
    until("they do not come", || scene.server.held().0 == 2);
    assert_eq!(scene.server.held().1, 2 << 20);
    assert_eq!(scene.call("echo", b"abc"), Ok(b"abc".to_vec()));
    // What is sent counts.
    let part = [&Header::of_data(1, 1 << 20).to_bytes()[..], &[7; 1 << 20]].concat();
    (0..5).for_each(|_| idle[0].write_all(&part).expect("written"));
    until("it is not counted", || scene.server.held().1 > 6 << 20);
    assert!(scene.server.held().1 <= 7 << 20, "{:?}", scene.server.held());
    drop(idle);
    scene.until_idle(1);
}

/// One caller does not read, and the worker has as many responses as it keeps.
#[test]
fn answers_that_one_caller_does_not_read_hold_back_no_caller_that_reads() {
    let intake = IntakeLimits { answer_bytes_max: 1 << 20, ..IntakeLimits::default() };
    let scene = scene_with(RpcServerOptions { intake, ..server_options() }, client_options());
    let mut stream = greeting(&scene);
    let (live, huge) = (Arc::new(Live::default()), Arc::new(vec![7_u8; 64 * MIB]));
    let (lender, long) = (Arc::clone(&live), Arc::clone(&huge));
    let answer = move |_: Request, responder: Responder| _ = responder.answer(lender.lend(&long));
    scene.handling.register("huge", Run::Inline, answer).expect("a name");
    stream.write_all(&request_of(b"huge", 1, 0)).expect("written");
    until("no answer", || live.now() == 1);
    stream.write_all(&[request_of(b"huge", 2, 0), request_of(b"hold", 3, 0)].concat()).expect("written");
    for _ in 0..3 {
        assert!(scene.call("huge", b"") == Ok(huge.to_vec()));
    }
    assert_eq!(live.most(), 2, "the second answer for the one that does not read");
    let mut left = 2 * huge.len();
    while left > 0 {
        if let (DATA, _, body) = next_frame(&mut stream) {
            left -= body.len();
        }
    }
    drop(scene.next_held());
    assert_eq!(next_frame(&mut stream).1, 3);
}
