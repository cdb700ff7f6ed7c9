//! Ends of workers: what they wait for, and what they do not wait for.

use super::*;
use crate::driver::calls::Payload;
use crate::driver::calls::handling::{Request, Responder};
use crate::membership::error::MembershipError;
use std::sync::mpsc::channel;

/// A worker with timeouts of an hour.
fn patient(port: u16, name: &str, id: u16, handling: &Arc<Handling>) -> RpcAgent {
    let options = TcpOptions {
        handling: Some(Arc::clone(handling)),
        membership_timeout: Some(Duration::from_secs(3600)),
        ..TcpOptions::default()
    };
    RpcAgent::start(&store(port), worker(name, id), None, &RpcOptions::new("tcp"), &options)
        .expect("a member")
}

#[test]
fn an_answer_that_nobody_has_looked_at_holds_up_no_end() {
    let (_server, port) = server();
    let handling = echoing().handling.expect("some");
    let (a, b) = (patient(port, "a", 0, &handling), joined(port, "b", 1));
    let call = a.start_call("b", "echo", b"x".to_vec(), None).expect("made");
    // Its response comes before this one's, on the same connection.
    assert_eq!(a.start_call("b", "echo", b"y".to_vec(), None).expect("made").wait(), Ok(b"y".to_vec()));
    let (reported, ended) = channel();
    let ending = thread::spawn(move || reported.send(a.shutdown(Shutdown::Graceful)).ok());
    assert_eq!(ended.recv_timeout(SOON), Ok(Ok(())));
    ending.join().expect("no panic");
    assert_eq!(call.wait(), Ok(b"x".to_vec()));
    drop(b);
}

#[test]
fn what_nobody_answers_is_out_before_its_caller_leaves_and_carried_out_before_its_callee_does() {
    let (_server, port) = server();
    let handling = Handling::new(1);
    let (reported, lengths) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let log = move |request: Request, _: Responder| {
        may_go_on.lock().expect("no panic").recv_timeout(SOON).ok();
        reported.send(request.payload.len()).ok();
    };
    handling.register("log", Run::Pooled, log).expect("free");
    let b = patient(port, "b", 1, &handling);
    let a = joined(port, "a", 0);
    let long = 64 << 20;
    a.notify("b", "log", alloc::vec![7; long], None).expect("made");
    a.notify("b", "log", b"last".to_vec(), None).expect("made");
    a.shutdown(Shutdown::Graceful).expect("it leaves");
    // One is running, the other waits for it.
    let ending = thread::spawn(move || b.shutdown(Shutdown::Graceful));
    go_on.send(()).expect("it waits");
    go_on.send(()).expect("it waits");
    // They share the connection, and the short one may be complete first.
    let mut carried_out = [(), ()].map(|()| lengths.recv_timeout(SOON).expect("in time"));
    carried_out.sort();
    assert_eq!(carried_out, [4, long]);
    ending.join().expect("no panic").expect("it leaves");
}

#[test]
fn a_notice_is_sent_in_its_time_or_never() {
    let (_server, port) = server();
    let (a, _b) = (joined(port, "a", 0), joined(port, "b", 1));
    for callee in ["a", "b"] {
        let error = a.notify(callee, "echo", b"x".to_vec(), Some(Duration::ZERO)).expect_err("it is over");
        assert!(error.to_string().contains("not sent in 0 ms"), "{error}");
    }
}

#[test]
fn a_worker_of_which_a_thread_panicked_ends_and_says_why() {
    let (_server, port) = server();
    let (a, _b) = (joined(port, "a", 0), joined(port, "b", 1));
    a.panicked("the thread of the store panicked: provoked");
    a.await_end(SOON).expect("it ends").ok();
    let end = MembershipError::Panicked { message: "the thread of the store panicked: provoked".into() };
    assert_eq!(a.end(), Some(Err(end.clone())));
    let error = a.call("b", "echo", b"x".to_vec(), None).expect_err("it ended").to_string();
    assert_eq!(error, "this worker ended: the thread of the store panicked: provoked");
    assert_eq!(a.shutdown(Shutdown::Abrupt), Err(end));
}

/// Bytes whose owner panics when it is dropped.
struct Cursed;

impl AsRef<[u8]> for Cursed {
    fn as_ref(&self) -> &[u8] {
        b"bytes"
    }
}

impl Drop for Cursed {
    fn drop(&mut self) {
        panic!("provoked");
    }
}

#[test]
fn a_panic_of_the_thread_that_carries_calls_ends_the_worker() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let (notify, held) = channel();
    b.register("hold", Run::Inline, move |_, responder| _ = notify.send(responder)).expect("free");
    let call = a.start_call("b", "hold", Vec::new(), None).expect("made");
    let _responder = held.recv_timeout(SOON).expect("asked");
    // At the deadline, that thread releases the bytes.
    let brief = Some(Duration::from_millis(500));
    let late = a.start_call("b", "hold", Payload::foreign(Arc::new(Cursed)), brief).expect("made");
    let message: Box<str> = "the thread of calls panicked: provoked".into();
    let why = failure(call.look(SOON).expect("no thread reads its response"));
    assert_eq!(why, CallFailure::Panicked(message.clone()));
    assert_eq!(a.await_end(SOON), Some(Err(MembershipError::Panicked { message: message.clone() })));
    let error = a.call("b", "echo", Vec::new(), None).expect_err("it ended");
    assert_eq!(error, GroupCallError::Panicked { message });
    assert!(late.look(SOON).is_some(), "the panic ends its call, too");
}

/// Pending calls to a member continue when a call of the library's own to it fails.
#[test]
fn who_is_busy_while_it_is_asked_whether_it_is_there_keeps_its_calls_until_it_dies() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let (notify, responders) = channel();
    b.register("slow", Run::Inline, move |_, responder| _ = notify.send(responder)).expect("free");
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let stuck = move |_: Request, responder: Responder| {
        may_go_on.lock().expect("no panic").recv_timeout(SOON).ok();
        responder.answer(Vec::new());
    };
    b.register("stuck", Run::Inline, stuck).expect("free");
    // The thread of its connections is busy, so it does not respond in time.
    let suspicion = || {
        let stuck = a.start_call("b", "stuck", Vec::new(), Some(SOON)).expect("made");
        a.suspicion("b", Duration::from_millis(20));
        let later = a.start_call("b", "nobody", Vec::new(), Some(Duration::from_millis(60))).expect("made");
        later.wait().expect_err("it is late");
        stuck
    };
    let (reported, handle_event) = channel();
    let called = a.call_with("b", "slow", Vec::new(), Some(SOON), move |result| _ = reported.send(result));
    drop(called.expect("made"));
    let responder = responders.recv_timeout(SOON).expect("asked");
    let stuck = suspicion();
    assert!(handle_event.try_recv().is_err(), "it is under way still");
    go_on.send(()).expect("it waits");
    stuck.wait().expect("answered");
    assert!(responder.answer(b"late".to_vec()));
    assert_eq!(handle_event.recv_timeout(SOON), Ok(Ok(b"late".to_vec())));

    let call = a.start_call("b", "slow", Vec::new(), Some(SOON * 4)).expect("made");
    let kept = responders.recv_timeout(SOON).expect("asked");
    let stuck = suspicion();
    drop(b.drop_liveness());
    while !matches!(next_event(&a), GroupEvent::PeerDied { .. }) {}
    let message = format!(
        "slow at b (id 1, {}): contact with the worker was lost: its session with the store's server ended",
        b.address()
    );
    let error = call.look(SOON).expect("it ended with the worker").expect_err("it is dead");
    assert_eq!(error.to_string(), message);
    go_on.send(()).expect("it waits");
    stuck.wait().expect_err("it is dead");
    drop(kept);
}

#[test]
fn a_worker_ends_while_a_call_of_the_librarys_own_is_under_way() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let (go_on, may_go_on) = channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let stuck = move |_, _| _ = may_go_on.lock().expect("no panic").recv_timeout(SOON);
    b.register("stuck", Run::Inline, stuck).expect("free");
    a.notify("b", "stuck", Vec::new(), None).expect("made");
    a.suspicion("b", SOON);
    let (reported, ended) = channel();
    let ending = thread::spawn(move || {
        drop(a);
        reported.send(()).ok();
    });
    assert_eq!(ended.recv_timeout(SOON), Ok(()));
    ending.join().expect("no panic");
    go_on.send(()).expect("it waits");
}

/// It is running, and not in a group any more: for a newcomer it has ended.
#[test]
fn a_newcomer_goes_on_without_a_member_that_has_ended_and_listens_still() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    b.panicked("provoked");
    b.await_end(SOON).expect("it ends").ok();
    let c = joined(port, "c", 2);
    assert_eq!((names(&c).as_str(), names(&a).as_str()), ("a c", "a c"));
    drop(b);
}

#[test]
fn a_newcomer_goes_on_without_a_member_that_ends_while_it_comes() {
    let (_server, port) = server();
    for round in 0..40 {
        let m = joined(port, "m", 0);
        thread::scope(|scope| {
            let coming = scope.spawn(move || start(&store(port), worker("x", 1), None));
            if round % 4 != 0 {
                let key: &[u8] = if round % 4 == 1 { b"names/1" } else { b"addrs/x" };
                store(port).wait(&[key], Timeout::After(SOON)).expect("it comes");
            }
            m.shutdown(Shutdown::Abrupt).expect("ended");
            let x = coming.join().expect("no panic").expect("a member");
            x.shutdown(Shutdown::Graceful).expect("it leaves");
        });
    }
}

#[test]
fn a_call_that_one_thread_awaits_is_ended_by_another() {
    let (_server, port) = server();
    let (one, two) = (joined(port, "one", 1), joined(port, "two", 2));
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = Arc::clone(&kept);
    let keep = move |_, responder| taken.lock().expect("no panic").push(responder);
    two.register("keep", Run::Inline, keep).expect("free");
    let call = one.start_call("two", "keep", Vec::new(), Some(SOON)).expect("made");
    let canceller = call.clone();
    let outcome = thread::scope(|scope| {
        let waiting = scope.spawn(move || call.look(SOON));
        canceller.cancel();
        waiting.join().expect("no panic")
    });
    let error = outcome.expect("it ended").expect_err("cancelled");
    assert_eq!(error.to_string(), "keep at two (id 2): it was cancelled");
    assert!(!canceller.cancel());
}

#[test]
fn a_pending_call_has_one_result_and_is_cancelled_when_it_is_dropped() {
    let (_server, port) = server();
    let (one, two) = (joined(port, "one", 1), joined(port, "two", 2));
    let (held, holds) = std::sync::mpsc::channel();
    two.register("hold", Run::Inline, move |_, responder| held.send(responder).expect("received"))
        .expect("free");
    let call = one.start_call("two", "hold", Vec::new(), Some(SOON)).expect("made");
    holds.recv_timeout(SOON).expect("it is asked").answer(b"once".to_vec());
    assert_eq!(call.look(SOON), Some(Ok(b"once".to_vec())));
    assert!(call.is_taken() && call.look(SOON).is_none());
    let error = call.wait().expect_err("it was returned");
    assert!(matches!(error, GroupCallError::NoResult { .. }), "{error}");

    let call = one.start_call("two", "hold", Vec::new(), Some(SOON)).expect("made");
    let responder = holds.recv_timeout(SOON).expect("it is asked");
    drop((call.clone(), call));
    // The cancel frame arrives before this request.
    assert_eq!(one.call("two", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert!(!responder.is_wanted());
}
