//! Failures: panics of the program's code, and what it does when it is notified of an end.

use super::*;
use crate::driver::calls::failure_text;
use core::net::SocketAddr;
use rendezvous_core::driver::server::ServerFailure;
use socket2::{Domain, Socket, Type};
use std::sync::Mutex;

#[test]
fn a_callback_that_panics_has_been_told_and_others_are() {
    let scene = scene();
    let (notify, reported): (Sender<CallResult>, _) = channel();
    let hold = || Call::of("hold").with_timeout(SOON);
    scene.peer.start_with(hold(), &b"1"[..], |_| panic!("provoked")).expect("made");
    scene.peer.start_with(hold(), &b"2"[..], move |result| _ = notify.send(result)).expect("made");
    let held = [scene.next_held(), scene.next_held()];
    for (request, responder) in held {
        responder.answer(request.payload);
    }
    assert_eq!(reported.recv_timeout(SOON).expect("notified").as_deref(), Ok(&b"2"[..]));
    // Deadlines are checked, responses are read, and connections are opened.
    let brief = Call::of("hold").with_timeout(Duration::from_millis(500));
    let late = scene.peer.start(brief, &b""[..]).expect("made").wait();
    assert!(message(late).starts_with("hold at b (id 2)"), "one of the two keeps it");
    let started = scene.peer.start(Call::of("echo").with_timeout(SOON), &b"3"[..]).expect("made");
    assert_eq!(started.wait().as_deref(), Ok(&b"3"[..]));
}

#[test]
fn an_answer_that_is_lost_in_a_panic_elsewhere_is_missed_by_nobody() {
    let scene = scene();
    let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b""[..]).expect("made");
    let (_, responder) = scene.next_held();
    let program = std::thread::spawn(move || {
        let _responder = responder;
        panic!("provoked");
    });
    assert!(program.join().is_err());
    let said = "hold at b (id 2): the handler failed: hold gave no answer";
    assert_eq!(message(started.wait()), said);

    // A handler that panics drops another request's responder: each gets its own message.
    let other = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&other);
    let takes = move |_: Request, _responder: Responder| {
        let _other: Option<Responder> = kept.lock().expect("no panic").take();
        panic!("provoked");
    };
    scene.handling.register("takes", Run::Pooled, takes).expect("a name");
    let first = scene.peer.start(Call::of("hold").with_timeout(SOON), &b""[..]).expect("made");
    *other.lock().expect("no panic") = Some(scene.next_held().1);
    let error = message(scene.call("takes", b""));
    assert_eq!(error, "takes at b (id 2): the handler failed: takes panicked: provoked");
    assert_eq!(message(first.wait()), said);
}

/// The event loop checks in debug builds that a socket is open for as long as it is watched.
#[test]
fn an_attempt_to_connect_that_fails_late_ends_no_watch_of_another_socket() {
    let scene = scene();
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(0).expect("it listens");
    let address = listener.local_addr().expect("bound").as_socket().expect("of IPv4");
    // Its queue is full now, so that the system ignores the next attempt until it repeats it.
    let _queued = std::net::TcpStream::connect(address).expect("queued");
    let peer = scene.client.peer(&worker("x", 9), "127.0.0.1", address.port()).expect("a descriptor");
    let started = peer.start(Call::of("echo").with_timeout(SOON), &b""[..]).expect("made");
    drop(listener);
    let error = message(started.wait());
    let refused = "not sent: no process listens at its address: Connection refused (os error 111)";
    assert_eq!(error, format!("echo at x (id 9): {refused}"));
    assert_eq!(scene.call("echo", b"x").as_deref(), Ok(&b"x"[..]));
}

/// Bytes whose owner calls a function when it is dropped, on the dropping thread.
struct Known<F: Fn() + Send + Sync>(Vec<u8>, F);

impl<F: Fn() + Send + Sync> AsRef<[u8]> for Known<F> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<F: Fn() + Send + Sync> Drop for Known<F> {
    fn drop(&mut self) {
        self.1();
    }
}

fn borrowed(length: usize, given_back: impl Fn() + Send + Sync + 'static) -> Payload {
    Payload::foreign(Arc::new(Known(bytes(length), given_back)))
}

#[test]
fn whoever_gets_lent_bytes_back_may_call() {
    let scene = scene();
    let (notify, reported): (Sender<CallResult>, _) = channel();
    // What is copied with the header, and what is written from where it is stored.
    for length in [10, 1_000_000] {
        let (peer, notify) = (scene.peer.clone(), notify.clone());
        let call_again = move || {
            let notify = notify.clone();
            let reported = move |result| _ = notify.send(result);
            peer.start_with(Call::of("echo").with_timeout(SOON), &b"again"[..], reported).expect("made");
        };
        let started = scene.peer.start(Call::of("length").with_timeout(SOON), borrowed(length, call_again));
        assert_eq!(started.expect("made").wait(), Ok(length.to_string().into_bytes()));
        assert_eq!(reported.recv_timeout(SOON).expect("notified").as_deref(), Ok(&b"again"[..]));
    }
    // The same for borrowed responses: they are released by the connection that they were written to.
    for length in [10, 1_000_000] {
        let started = scene.peer.start(Call::of("hold").with_timeout(SOON), &b""[..]).expect("made");
        let other = scene.peer.start(Call::of("hold").with_timeout(SOON), &b""[..]).expect("made");
        let responder = scene.next_held().1;
        let next = Mutex::new(Some(scene.next_held().1));
        let answer_other = move || {
            let next = next.lock().expect("no panic").take().expect("once");
            assert!(next.answer(&b"other"[..]));
        };
        responder.answer(borrowed(length, answer_other));
        assert_eq!(started.wait(), Ok(bytes(length)));
        assert_eq!(other.wait().as_deref(), Ok(&b"other"[..]));
    }
}

#[test]
fn whoever_gets_bytes_of_a_cancelled_call_back_may_call_with_the_same_canceller() {
    let scene = scene();
    let canceller = Canceller::default();
    let (notify, reported): (Sender<(CallResult, bool)>, _) = channel();
    let (peer, local) = (scene.peer.clone(), canceller.clone());
    let call_again = move || {
        // It has been cancelled already, or not at all.
        let token = local.token();
        let call = Call { token: Some(&token), ..Call::of("echo").with_timeout(SOON) };
        let result = peer.call(call, &b"again"[..]);
        local.cancel();
        notify.send((result, local.token().is_cancelled())).ok();
    };
    let payload = borrowed(1_000_000, call_again);
    let (peer, local) = (scene.peer.clone(), canceller.clone());
    let (take_end, ended): (Sender<CallResult>, _) = channel();
    let blocked = std::thread::spawn(move || {
        let token = local.token();
        let call = Call { token: Some(&token), ..Call::of("hold").with_timeout(SOON) };
        take_end.send(peer.call(call, payload)).ok();
    });
    let _held = scene.next_held();
    let cancelling = std::thread::spawn(move || canceller.cancel());
    let (result, is_cancelled) = reported.recv_timeout(SOON).expect("it comes back");
    assert_eq!((result.as_deref(), is_cancelled), (Ok(&b"again"[..]), false));
    let end = ended.recv_timeout(SOON).expect("it ended");
    assert_eq!(message(end), "hold at b (id 2): it was cancelled");
    for thread in [blocked, cancelling] {
        thread.join().expect("no panic");
    }
}

#[test]
fn who_leaves_answers_what_was_sent_before_though_it_has_not_looked() {
    let scene = scene();
    let (begun, begins) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let stuck = move |_: Request, _: Responder| {
        begun.send(()).ok();
        may_go_on.recv_timeout(SOON).ok();
    };
    scene.handling.register("stuck", Run::Inline, stuck).expect("a name");
    let port = scene.server.local_addr().port();
    let client = LoneClient::new(client_options()).expect("descriptors");
    let other = client.peer(&worker("b", 2), "127.0.0.1", port).expect("a descriptor");
    assert_eq!(other.call(Call::of("echo").with_timeout(SOON), &b"x"[..]).as_deref(), Ok(&b"x"[..]));
    // The thread that reads all connections is busy, and then must execute a goodbye.
    scene.peer.notify(Call::of("stuck"), &b""[..], None).expect("made");
    begins.recv_timeout(SOON).expect("it is at work");
    let call = other.start(Call::of("echo").with_timeout(SOON), &b"y"[..]).expect("made");
    assert!(!scene.server.leave(Duration::ZERO));
    go_on.send(()).expect("it waits");
    assert_eq!(call.wait().as_deref(), Ok(&b"y"[..]));
}

#[test]
fn calls_of_a_worker_whose_thread_of_calls_panicked_say_so() {
    let scene = scene();
    let (notify, reported) = channel();
    let options = RpcServerOptions { me: worker("a", 1), ..server_options() };
    let failed = move |failure: &ServerFailure| _ = notify.send(failure_text(failure));
    let (handling, _held) = handling();
    let server = RpcServer::start_watched(options, handling, failed).expect("a free port");
    let client = server.client();
    let local = peer_of(&client, &worker("a", 1), &server);
    let peer = peer_of(&client, &worker("b", 2), &scene.server);
    let calls = [&local, &peer].map(|peer| peer.start(Call::of("hold"), &b""[..]).expect("made"));
    let _held = scene.next_held();
    // The thread releases its bytes.
    let brief = Call::of("hold").with_timeout(Duration::from_millis(500));
    let late = peer.start(brief, borrowed(1000, || panic!("provoked"))).expect("made");
    let message = "the thread of calls panicked: provoked";
    assert_eq!(reported.recv_timeout(SOON).as_deref(), Ok(message));
    for call in calls {
        let error = call.look(SOON).expect("it ended").expect_err("no thread reads the response");
        assert_eq!(error.why, CallFailure::Panicked(message.into()));
    }
    for peer in [&local, &peer] {
        let error = peer.call(Call::of("echo").with_timeout(SOON), &b""[..]).expect_err("there is no thread");
        assert_eq!(error.why, CallFailure::Unsent(ConnectionError::Panicked(message.into())));
    }
    drop(late);
}

#[test]
fn who_ends_waits_for_handlers_that_are_at_work_and_begins_no_others() {
    let handling = Handling::new(1);
    let (begun, begins) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let work = move |request: Request, _: Responder| {
        begun.send(request.payload.to_vec()).ok();
        may_go_on.recv_timeout(SOON).ok();
    };
    handling.register("work", Run::Pooled, work).expect("a name");
    let server = RpcServer::start(server_options(), Arc::clone(&handling)).expect("a free port");
    let client = LoneClient::new(client_options()).expect("descriptors");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", server.local_addr().port()).expect("a descriptor");
    let call = || Call::of("work").with_timeout(SOON);
    peer.notify(call(), &b"1"[..], None).expect("made");
    peer.notify(call(), &b"2"[..], None).expect("made");
    assert_eq!(begins.recv_timeout(SOON).as_deref(), Ok(&b"1"[..]));
    while server.held().0 < 2 {}
    server.stop();
    assert!(!handling.finish(Duration::ZERO, Duration::from_millis(1)), "one is at work");
    std::thread::scope(|scope| {
        let finished = scope.spawn(|| handling.finish(Duration::ZERO, SOON));
        go_on.send(()).expect("it waits");
        assert!(finished.join().expect("no panic"));
    });
    assert!(begins.try_recv().is_err(), "the second has not begun");
    // The same handlers may be another worker's afterwards.
    let server = RpcServer::start(server_options(), Arc::clone(&handling)).expect("a free port");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", server.local_addr().port()).expect("a descriptor");
    peer.notify(call(), &b"3"[..], None).expect("made");
    assert_eq!(begins.recv_timeout(SOON).as_deref(), Ok(&b"3"[..]));
    go_on.send(()).expect("it waits");
    assert!(handling.finish(SOON, Duration::ZERO));
}

#[test]
fn a_server_whose_thread_panics_says_so() {
    let (notify, reported) = channel();
    let options = RpcServerOptions { admit: Box::new(|_| panic!("provoked")), ..server_options() };
    let failed = move |failure: &ServerFailure| _ = notify.send(failure.clone());
    let server = RpcServer::start_watched(options, handling().0, failed).expect("a free port");
    let client = LoneClient::new(client_options()).expect("descriptors");
    let peer = client.peer(&worker("b", 2), "127.0.0.1", server.local_addr().port()).expect("a descriptor");
    let error = message(peer.call(Call::of("echo").with_timeout(SOON), &b""[..]));
    assert!(error.starts_with("echo at b (id 2): not sent: "), "{error}");
    let failure = ServerFailure::Panicked("provoked".to_string());
    assert_eq!(reported.recv_timeout(SOON), Ok(failure.clone()));
    assert_eq!(server.failure(), Some(failure));
}

#[test]
fn whoever_lets_go_of_the_way_to_a_worker_hears_what_comes_of_its_calls() {
    let Scene { server, handling: _handling, client: _client, peer, held } = scene();
    let (notify, reported): (Sender<CallResult>, _) = channel();
    let told_to = move |result| _ = notify.send(result);
    drop(peer.start_with(Call::of("hold").with_timeout(SOON), &b"1"[..], told_to).expect("made"));
    let (request, responder) = held.recv_timeout(SOON).expect("asked");
    drop(peer);
    assert!(reported.try_recv().is_err(), "it is under way still");
    assert!(responder.answer(request.payload));
    assert_eq!(reported.recv_timeout(SOON).expect("notified").as_deref(), Ok(&b"1"[..]));
    // Then there is no connection any more.
    while server.held().2 > 0 {}
}
