//! What handlers and callbacks do with the worker that calls them.

use super::*;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A worker that its own code can access, and end.
type Kept = Arc<Mutex<Option<RpcAgent>>>;

fn kept(port: u16, name: &str, id: u16) -> Kept {
    Arc::new(Mutex::new(Some(joined(port, name, id))))
}

fn with<T>(kept: &Kept, body: impl FnOnce(&RpcAgent) -> T) -> T {
    body(kept.lock().expect("no panic").as_ref().expect("it is there"))
}

fn reported() -> (Sender<String>, Receiver<String>) {
    channel()
}

const RUNS: [(&str, Run); 2] = [("inline", Run::Inline), ("pooled", Run::Pooled)];
const REFUSED: &str = "[Err(Reentrant), Err(Reentrant)]";

fn shut_down(agent: &RpcAgent) -> String {
    format!("{:?}", [Shutdown::Graceful, Shutdown::Abrupt].map(|how| agent.shutdown(how)))
}

#[test]
fn a_worker_is_not_shut_down_by_its_own_handlers_and_callbacks() {
    let (_server, port) = server();
    let (one, two) = (Arc::new(joined(port, "one", 1)), joined(port, "two", 2));
    for (name, run) in RUNS {
        let local = Arc::downgrade(&one);
        let call = move |_, responder: crate::driver::calls::handling::Responder| {
            responder.answer(shut_down(&local.upgrade().expect("it lives")).into_bytes());
        };
        one.register(name, run, call).expect("free");
        for caller in [&two, &one] {
            assert_eq!(caller.call("one", name, Vec::new(), None), Ok(REFUSED.into()), "{name}");
        }
    }
    for callee in ["one", "two"] {
        let (notify, reported) = reported();
        let local = Arc::downgrade(&one);
        let callback = move |_| notify.send(shut_down(&local.upgrade().expect("it lives"))).expect("awaited");
        one.call_with(callee, "who", Vec::new(), None, callback).expect("made");
        assert_eq!(reported.recv_timeout(SOON).as_deref(), Ok(REFUSED), "{callee}");
    }
    let error = MembershipError::Reentrant.to_string();
    assert_eq!(error, "a worker cannot be ended within one of its own handlers or callbacks");

    // It continues, and a handler of another worker ends it.
    let ended = Arc::downgrade(&one);
    two.register("end", Run::Pooled, move |_, responder| {
        let end = ended.upgrade().expect("it lives").shutdown(Shutdown::Graceful);
        responder.answer(format!("{end:?}").into_bytes());
    })
    .expect("free");
    assert_eq!(two.call("two", "end", Vec::new(), None), Ok(b"Ok(())".to_vec()));
}

#[test]
fn a_context_keeps_a_worker_that_its_handlers_do_not_end_and_gives_up_one_that_they_free() {
    let context = Arc::new(RpcContext::default());
    let (_server, port) = server();
    let over = Arc::new(NodeStore::new(store(port), None));
    let (notify, reported) = reported();
    let init = || {
        let local = echoing();
        let handling = local.handling.clone().expect("they are there");
        for (name, run) in RUNS {
            let (context, notify) = (Arc::clone(&context), notify.clone());
            let end = move |_, responder: crate::driver::calls::handling::Responder| {
                let before = context.shutdown(Shutdown::Graceful);
                let is_kept = context.agent().is_some();
                context.abandon(&context.agent().expect("it is there"));
                let is_there = context.agent().is_some();
                let is_heard = responder.answer(Vec::new());
                notify.send(format!("{before:?} {is_kept} {is_there} {is_heard}")).expect("awaited");
            };
            handling.register(name, run, end).expect("free");
        }
        let mut options = RpcOptions::new("tcp");
        options.set_extra(Box::new(local));
        let init = RpcInit { name: "one", rank: Some(1), options: Some(options), ..RpcInit::default() };
        context.init_over(Arc::clone(&over), init).expect("a member")
    };
    for (name, _) in RUNS {
        let agent = init();
        // Its own calls end with it.
        let answer = agent.tcp().expect("of tcp").call("one", name, Vec::new(), None);
        assert_eq!(failure(answer), CallFailure::CallerEnded("this worker was shut down".into()), "{name}");
        assert_eq!(reported.recv_timeout(SOON).as_deref(), Ok("Err(Reentrant) true false false"), "{name}");
        assert_eq!(agent.tcp().expect("of tcp").end(), Some(Err(MembershipError::Abandoned)));
    }
}

#[test]
fn a_worker_is_dropped_by_its_own_handlers() {
    let (_server, port) = server();
    let two = joined(port, "two", 2);
    for (name, run) in RUNS {
        let (one, (notify, reported)) = (kept(port, "one", 1), reported());
        let local = Arc::clone(&one);
        with(&one, |agent| {
            agent.register(name, run, move |_, _| {
                drop(local.lock().expect("no panic").take());
                notify.send("dropped".into()).ok();
            })
        })
        .expect("free");
        assert_eq!(next_event(&two), GroupEvent::Joined(worker("one", 1)));
        two.call("one", name, Vec::new(), Some(SOON)).expect_err("it ended");
        assert_eq!(reported.recv_timeout(SOON).as_deref(), Ok("dropped"), "{name}");
        assert!(matches!(next_event(&two), GroupEvent::PeerDied { .. }), "{name}");
    }
}

#[test]
fn a_worker_is_dropped_by_its_own_callbacks_on_whatever_thread() {
    let (_server, port) = server();
    let hold = |agent: &RpcAgent, notify: Sender<crate::driver::calls::handling::Responder>| {
        agent.register("hold", Run::Inline, move |_, responder| _ = notify.send(responder)).expect("free");
    };
    for is_mourned in [false, true] {
        let (one, (notify, reported)) = (kept(port, "one", 1), reported());
        let two = joined(port, "two", 2);
        let (held, holds) = channel();
        hold(&two, held);
        let local = Arc::clone(&one);
        let callback = move |_| {
            drop(local.lock().expect("no panic").take());
            let thread = thread::current().name().unwrap_or_default().to_string();
            notify.send(thread).ok();
        };
        with(&one, |agent| agent.call_with("two", "hold", Vec::new(), Some(SOON), callback)).expect("made");
        let responder = holds.recv_timeout(SOON).expect("it is asked");
        let wanted = if is_mourned {
            // Its state machine is notified of the other one's death, and ends the call.
            drop(two.drop_liveness());
            "rdzv-rpc-group"
        } else {
            responder.answer(Vec::new());
            "rdzv-rpc-io"
        };
        assert_eq!(reported.recv_timeout(SOON).as_deref(), Ok(wanted));
        assert!(one.lock().expect("no panic").is_none());
    }
}

#[test]
fn two_of_a_workers_own_threads_end_it_at_once() {
    let (_server, port) = server();
    let (one, two) = (Arc::new(joined(port, "one", 1)), joined(port, "two", 2));
    let (held, _holds) = channel();
    two.register("hold", Run::Inline, move |_, responder| _ = held.send(responder)).expect("free");
    let (notify, reported) = reported();
    // Each ends it when the other one is there.
    let ending = |index: &'static str, here: Sender<()>, there: Receiver<()>| {
        let (local, notify) = (Arc::downgrade(&one), notify.clone());
        let there = Mutex::new(there);
        move || {
            here.send(()).ok();
            there.lock().expect("no panic").recv_timeout(SOON).expect("the other one comes");
            local.upgrade().expect("it lives").abandon();
            notify.send(index.into()).ok();
        }
    };
    let ((handler_is_here, handler), (callback_is_here, callback)) = (channel(), channel());
    let in_handler = ending("handler", handler_is_here, callback);
    let in_callback = ending("callback", callback_is_here, handler);
    one.register("end", Run::Inline, move |_, _| in_handler()).expect("free");
    one.call_with("two", "hold", Vec::new(), None, move |_| in_callback()).expect("made");
    assert_eq!(next_event(&one), GroupEvent::Joined(worker("two", 2)));
    two.notify("one", "end", Vec::new(), None).expect("made");
    // The state machine ends the call, and runs the callback.
    drop(two.drop_liveness());
    let mut ended = [(); 2].map(|()| reported.recv_timeout(SOON).expect("neither waits for the other"));
    ended.sort();
    assert_eq!(ended, ["callback", "handler"]);
    // The callback delays the end of its state machine.
    assert_eq!(one.await_end(SOON), Some(Err(MembershipError::Abandoned)));
}

#[test]
fn nobody_waits_for_a_call_in_an_inline_handler_or_in_a_callback() {
    const WORDS: &str = "it cannot be awaited in an inline handler or in a callback";
    let (_server, port) = server();
    let (one, two) = (Arc::new(joined(port, "one", 1)), joined(port, "two", 2));
    let message = |result: GroupResult| match result {
        Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
        Err(error) => error.to_string(),
    };
    let try_all = move |agent: &RpcAgent| {
        let called = message(agent.call("two", "who", Vec::new(), None));
        let begun = agent.start_call("two", "hold", Vec::new(), Some(SOON)).expect("made");
        assert!(begun.look(Duration::from_millis(1)).is_none());
        begun.cancel();
        let awaited = agent.start_call("two", "hold", Vec::new(), Some(Duration::from_millis(1)));
        [called, message(awaited.expect("made").wait())].join("; ")
    };
    let (held, _holds) = channel();
    two.register("hold", Run::Inline, move |_, responder| _ = held.send(responder)).expect("free");
    for (name, run) in RUNS {
        let local = Arc::downgrade(&one);
        let call = move |_, responder: crate::driver::calls::handling::Responder| {
            responder.answer(try_all(&local.upgrade().expect("it lives")).into_bytes());
        };
        one.register(name, run, call).expect("free");
    }
    let refused = format!("who at two (id 2): {WORDS}; hold at two: {WORDS}");
    assert_eq!(two.call("one", "inline", Vec::new(), None), Ok(refused.clone().into_bytes()));
    let answer = two.call("one", "pooled", Vec::new(), None).expect("it may wait");
    let answer = String::from_utf8_lossy(&answer);
    // Either of the two may detect the deadline first.
    assert!(answer.starts_with("one (id 1); hold at two (id 2") && !answer.contains(WORDS), "{answer}");
    let (notify, reported) = reported();
    let local = Arc::downgrade(&one);
    let callback = move |_| notify.send(try_all(&local.upgrade().expect("it lives"))).expect("awaited");
    one.call_with("two", "who", Vec::new(), None, callback).expect("made");
    assert_eq!(reported.recv_timeout(SOON), Ok(refused));
}
