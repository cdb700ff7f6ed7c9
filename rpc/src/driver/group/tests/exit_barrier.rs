//! Calls when one of the two workers ends.

use super::*;
use crate::agent::NotCallable;
use crate::driver::calls::handling::Responder;
use crate::membership::error::{Callees, MembershipError};
use std::sync::mpsc::{Receiver, channel};

/// Registers a handler `hold` that keeps its responders.
fn hold(agent: &RpcAgent) -> Receiver<Responder> {
    let (notify, held) = channel();
    agent.register("hold", Run::Inline, move |_, responder| _ = notify.send(responder)).expect("free");
    held
}

/// A worker with this timeout for each step of its end.
fn hasty(port: u16, me: WorkerInfo, size: Option<u16>) -> RpcAgent {
    let options = TcpOptions { membership_timeout: Some(Duration::from_secs(2)), ..echoing() };
    RpcAgent::start(&store(port), me, size, &RpcOptions::new("tcp"), &options).expect("a member")
}

/// All workers of a static group.
fn all(
    port: u16,
    names: [&'static str; 2],
    start: fn(u16, WorkerInfo, Option<u16>) -> RpcAgent,
) -> [RpcAgent; 2] {
    thread::scope(|scope| {
        let joining = [0, 1].map(|id| {
            let me = worker(names[usize::from(id)], id);
            scope.spawn(move || start(port, me, Some(2)))
        });
        joining.map(|joining| joining.join().expect("a member"))
    })
}

fn lasting(port: u16, me: WorkerInfo, size: Option<u16>) -> RpcAgent {
    start(&store(port), me, size).expect("a member")
}

#[test]
fn who_leaves_answers_what_others_have_asked() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let held = hold(&b);
    let call = a.start_call("b", "hold", Vec::new(), None).expect("made");
    let responder = held.recv_timeout(SOON).expect("asked");
    let (notify, reported) = channel();
    let leaving = thread::spawn(move || notify.send(b.shutdown(Shutdown::Graceful)));
    while next_event(&a) != GroupEvent::Left(worker("b", 1)) {}
    let error = a.call("b", "echo", Vec::new(), None).expect_err("it has left").to_string();
    assert_eq!(error, "there is no worker b in the group");
    // Another worker with its name is a different one.
    let again = joined(port, "b", 1);
    while next_event(&a) != GroupEvent::Joined(worker("b", 1)) {}
    assert_eq!(a.call("b", "echo", b"x".to_vec(), None), Ok(b"x".to_vec()));
    assert!(call.look(Duration::ZERO).is_none() && reported.try_recv().is_err() && responder.is_wanted());
    assert!(responder.answer(b"at last".to_vec()));
    assert_eq!(call.look(SOON), Some(Ok(b"at last".to_vec())));
    assert_eq!(reported.recv_timeout(SOON), Ok(Ok(())));
    leaving.join().expect("no panic").expect("received");
    drop(again);
}

#[test]
fn a_static_group_answers_what_was_asked_before_it_ends() {
    let (_server, port) = server();
    let [a, b] = all(port, ["a", "b"], lasting);
    let held = hold(&b);
    let call = a.start_call("b", "hold", Vec::new(), None).expect("made");
    let responder = held.recv_timeout(SOON).expect("asked");
    let (notify, reported) = channel();
    let ending = [b, a].map(|agent| {
        let notify = notify.clone();
        thread::spawn(move || notify.send(agent.shutdown(Shutdown::Graceful)))
    });
    let counted = store(port).wait(&[b"rdzv/went/1"], Timeout::After(SOON));
    counted.expect("the one that is asked has done with its own calls");
    assert!(call.look(Duration::ZERO).is_none() && reported.try_recv().is_err() && responder.is_wanted());
    assert!(responder.answer(b"at last".to_vec()));
    assert_eq!(call.look(SOON), Some(Ok(b"at last".to_vec())));
    for ending in ending {
        assert_eq!(reported.recv_timeout(SOON), Ok(Ok(())));
        ending.join().expect("no panic").expect("received");
    }
}

#[test]
fn calls_to_who_leaves_end_with_it_if_it_dies_meanwhile() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let held = hold(&b);
    let call = a.start_call("b", "hold", Vec::new(), None).expect("made");
    let _responder = held.recv_timeout(SOON).expect("asked");
    let b = Arc::new(b);
    let leaving = thread::spawn({
        let b = Arc::clone(&b);
        move || b.shutdown(Shutdown::Graceful)
    });
    while next_event(&a) != GroupEvent::Left(worker("b", 1)) {}
    b.await_end(SOON).expect("it ends").ok();
    assert_eq!(b.shutdown(Shutdown::Abrupt), Ok(()));
    let why = failure(call.look(SOON).expect("it ends with the worker"));
    assert!(matches!(why, CallFailure::ConnectionLost(ConnectionError::Lost(_))), "{why:?}");
    leaving.join().expect("no panic").expect("it has left");
}

/// The callee has left, and only the call keeps the connection.
#[test]
fn an_abrupt_end_ends_calls_to_who_leaves_and_to_oneself() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let (held, local) = (hold(&b), hold(&a));
    // Without a deadline, and with one.
    let call = |callee, timeout| a.start_call(callee, "hold", Vec::new(), timeout).expect("made");
    let calls = [call("b", None), call("a", None), call("a", Some(SOON * 100))];
    let responders = [&held, &local, &local].map(|held| held.recv_timeout(SOON).expect("asked"));
    let leaving = thread::spawn(move || b.shutdown(Shutdown::Graceful));
    while next_event(&a) != GroupEvent::Left(worker("b", 1)) {}
    drop(a);
    for call in calls {
        let why = failure(call.look(SOON).expect("it ends with its worker"));
        assert_eq!(why, CallFailure::CallerEnded("this worker was shut down".into()));
    }
    drop(responders);
    leaving.join().expect("no panic").expect("it has left");
}

#[test]
fn a_leave_whose_time_for_calls_is_up_goes_on_and_names_whom_they_were_for() {
    for size in [None, Some(2)] {
        let (_server, port) = server();
        let [a, b] = match size {
            None => [hasty(port, worker("a", 0), None), lasting(port, worker("b", 1), None)],
            Some(_) => all(port, ["a", "b"], |port, me, size| match me.id {
                0 => hasty(port, me, size),
                _ => lasting(port, me, size),
            }),
        };
        let (held, local) = (hold(&b), hold(&a));
        let call = |callee| a.start_call(callee, "hold", Vec::new(), None).expect("made");
        let calls = [call("b"), call("a"), call("b")];
        let responders = [&held, &local, &held].map(|held| held.recv_timeout(SOON).expect("asked"));
        let b = Arc::new(b);
        let leaving = size.map(|_| {
            let b = Arc::clone(&b);
            thread::spawn(move || b.shutdown(Shutdown::Graceful))
        });
        let error = a.shutdown(Shutdown::Graceful).expect_err("its calls were cut");
        let callees = Callees { listed: [worker("a", 0), worker("b", 1)].to_vec(), count: 2 };
        assert_eq!(
            (&error, a.end()),
            (&MembershipError::CallsCut { callees }, Some(Err(error.clone()))),
            "{size:?}"
        );
        for call in calls {
            let why = failure(call.look(SOON).expect("it was cut"));
            let message = "this worker is leaving its group, and the timeout of its calls has passed";
            assert_eq!(why, CallFailure::CallerEnded(message.into()));
        }
        drop(responders);
        if let Some(leaving) = leaving {
            assert_eq!(leaving.join().expect("no panic"), Ok(()), "it has no calls");
        }
    }
}

#[test]
fn a_call_that_begins_while_its_callee_is_mourned_ends_too() {
    let (_server, port) = server();
    let (a, b) = (Arc::new(joined(port, "a", 0)), joined(port, "b", 1));
    let held = hold(&b);
    while next_event(&a) != GroupEvent::Joined(worker("b", 1)) {}
    let (mourner, b) = (Arc::clone(&a), Arc::new(b));
    let dying = Arc::clone(&b);
    a.between(move || {
        drop(dying.drop_liveness());
        while !matches!(next_event(&mourner), GroupEvent::PeerDied { .. }) {}
    });
    // Only the library has called it before.
    a.forget_routes();
    let error = a.start_call("b", "hold", Vec::new(), None).expect_err("it is dead");
    let why = "its session with the store's server ended".into();
    assert_eq!(error, NotCallable::Dead { worker: worker("b", 1), why }.into());
    assert_eq!(a.routes(), []);
    drop(held);
    drop(b);
}

#[test]
fn calls_of_a_worker_whose_thread_panicked_say_so() {
    let (_server, port) = server();
    let (a, b) = (joined(port, "a", 0), joined(port, "b", 1));
    let (held, local) = (hold(&b), hold(&a));
    let call = |callee| a.start_call(callee, "hold", Vec::new(), None).expect("made");
    let calls = [call("b"), call("a")];
    let _responders = [&held, &local].map(|held| held.recv_timeout(SOON).expect("asked"));
    a.panicked("the thread of liveness keys panicked: provoked");
    for call in calls {
        let why = failure(call.look(SOON).expect("it ends with its worker"));
        assert_eq!(why, CallFailure::Panicked("the thread of liveness keys panicked: provoked".into()));
    }
}
