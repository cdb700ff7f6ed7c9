use super::*;
use crate::agent::GroupEvent;
use crate::connection::{CallFailure, CallKind};
use crate::driver::calls::handling::{Handling, Request, Responder, Run, Wanted};
use crate::driver::group::tests::{server, store, worker};
use crate::driver::group::{
    Begun, CallSpec, Callee, GroupCallError, GroupResult, OnResult, RpcAgent, RpcInit, RpcInitError,
    RpcWorker, Shutdown, TcpOptions,
};
use crate::driver::testing::becomes_readable;
use crate::handlers::{Callers, Owner};
use crate::inbox::InboxLimits;
use crate::membership::error::MembershipError;
use crate::name::WorkerInfo;
use crate::options::RpcOptions;
use alloc::string::ToString;
use alloc::sync::Arc;
use rendezvous_core::driver::loop_client::LoopEvent;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::driver::server::Server;
use rendezvous_core::driver::store::Timeout;
use rendezvous_core::error::ErrorKind;
use std::sync::{Mutex, mpsc};

const SOON: Duration = Duration::from_secs(60);

/// Starts to create a worker with a handler `ask` that responds in the loop.
fn init(
    events: &mut Loop,
    context: &Arc<RpcContext>,
    port: u16,
    (name, rank): (&'static str, u16),
    world_size: Option<u16>,
) -> MemberId {
    let (home, context) = (Arc::clone(context), Arc::clone(context));
    let make = Box::new(move |queue: &RpcRequestQueue, token: CancelToken| {
        let handling = Handling::new(1);
        handling.register_as((Owner::Program, Callers::default()), "ask", Run::Inline, queue.handler())?;
        let local = TcpOptions { handling: Some(handling), ..TcpOptions::default() };
        let mut options = RpcOptions::new("tcp");
        options.set_extra(Box::new(local));
        let over = Arc::new(NodeStore::new(store(port), None));
        let rank = Some(rank);
        let options = Some(options);
        let init = RpcInit { name, rank, world_size, options, token, ..RpcInit::default() };
        context.init_over(over, init)
    });
    events.init_rpc(home, make).expect("a thread")
}

/// Runs the loop until there is an event.
fn next(events: &mut Loop) -> (MemberId, RpcEvent) {
    loop {
        match events.next_event() {
            Some(LoopEvent::Member(id, event)) => return (id, *event.downcast().expect("of a worker")),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        assert!(becomes_readable(events.fd(), SOON), "nothing happens any more");
        events.poll().expect("a turn");
    }
}

/// Whether it did not become a member because the join was cancelled.
fn is_given_up(event: &RpcEvent) -> bool {
    match event {
        RpcEvent::Joined(Err(RpcInitError::Agent(error))) => *error == MembershipError::Cancelled,
        RpcEvent::Joined(Err(RpcInitError::Store(error))) => error.kind() == ErrorKind::Cancelled,
        _ => false,
    }
}

fn joined(events: &mut Loop) -> MemberId {
    match next(events) {
        (id, RpcEvent::Joined(Ok(()))) => id,
        other => panic!("{other:?}"),
    }
}

fn put_request(events: &mut Loop) -> (MemberId, Request, Responder) {
    match next(events) {
        (id, RpcEvent::Request(request, responder)) => (id, request, responder),
        other => panic!("{other:?}"),
    }
}

fn completed(events: &mut Loop) -> (CallId, GroupResult) {
    match next(events) {
        (_, RpcEvent::Completed(call, _, result)) => (call, result),
        other => panic!("{other:?}"),
    }
}

/// Returns the failure of a call.
fn failure(result: GroupResult) -> CallFailure {
    match result {
        Err(GroupCallError::Call(error)) => error.why,
        other => panic!("{other:?}"),
    }
}

fn over(events: &mut Loop) -> (MemberId, Result<(), MembershipError>) {
    loop {
        match next(events) {
            (id, RpcEvent::Over(end)) => return (id, end),
            // The second one is notified of the first one's leave.
            (_, RpcEvent::Group(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn ask<'a>(callee: &'a str, handler: &'a str, payload: &[u8]) -> CallSpec<'a> {
    CallSpec { callee: Callee::Name(callee), handler, payload: payload.into(), timeout: Some(SOON) }
}

/// Two workers of a group in one loop.
fn pair(world_size: Option<u16>) -> (Server, Loop, [MemberId; 2], [Arc<RpcContext>; 2]) {
    let (server, port) = server();
    let mut events = Loop::new().expect("a loop");
    let contexts = [Arc::new(RpcContext::default()), Arc::new(RpcContext::default())];
    let one = init(&mut events, &contexts[0], port, ("one", 0), world_size);
    if world_size.is_none() {
        assert_eq!(joined(&mut events), one);
    }
    let two = init(&mut events, &contexts[1], port, ("two", 1), world_size);
    if world_size.is_some() {
        let mut both = [joined(&mut events), joined(&mut events)];
        both.sort_unstable();
        assert_eq!(both, [one, two]);
    } else {
        let mut is_reported = [false, false];
        while is_reported != [true, true] {
            match next(&mut events) {
                (id, RpcEvent::Joined(Ok(()))) if id == two => is_reported[0] = true,
                (id, RpcEvent::Group(GroupEvent::Joined(participant))) if id == one => {
                    assert_eq!(participant, worker("two", 1));
                    is_reported[1] = true;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    (server, events, [one, two], contexts)
}

#[test]
fn two_workers_of_one_loop_and_one_thread_call_each_other() {
    let (_server, mut events, [one, two], _) = pair(Some(2));
    let call = events.rpc_call(one, ask("two", "ask", b"hello")).expect("made");
    let (at, request, responder) = put_request(&mut events);
    assert_eq!((at, &request.caller, &*request.handler), (two, &worker("one", 0), "ask"));
    assert_eq!((&*request.payload, responder.is_wanted()), (&b"hello"[..], true));
    // Its response is sent later; meanwhile there are other calls, also to itself.
    let local = events.rpc_call(two, ask("two", "ask", b"me")).expect("made");
    let (at, _, answers) = put_request(&mut events);
    assert_eq!(at, two);
    assert!(answers.answer(b"myself".to_vec()));
    assert_eq!(completed(&mut events), (local, Ok(b"myself".to_vec())));
    let notifier = events.rpc(one).expect("a worker");
    notifier.begin_notify(ask("two", "ask", b"psst")).expect("made");
    let (_, request, answers) = put_request(&mut events);
    assert_eq!(&*request.payload, b"psst");
    assert!(!answers.answer(Vec::new()), "it is not wanted");
    assert!(responder.answer(b"late".to_vec()));
    assert_eq!(completed(&mut events), (call, Ok(b"late".to_vec())));

    let call = events.rpc_call(two, ask("one", "none", b"")).expect("made");
    let (id, result) = completed(&mut events);
    assert_eq!(id, call);
    assert_eq!(result.expect_err("none").to_string(), "none at one (id 0): there is no such handler");
    let error = events.rpc_call(two, ask("three", "ask", b"")).expect_err("unknown").to_string();
    assert_eq!(error, "there is no worker three in the group");

    // One that is cancelled, one that times out, one that is refused.
    let call = events.rpc_call(one, ask("two", "ask", b"")).expect("made");
    let (_, _, held) = put_request(&mut events);
    events.cancel(one, call);
    let (id, result) = completed(&mut events);
    let message = result.expect_err("cancelled").to_string();
    assert_eq!((id, message.as_str()), (call, "ask at two (id 1): it was cancelled"));
    events.cancel(one, call);
    drop(held);
    let quick = CallSpec { timeout: Some(Duration::from_millis(20)), ..ask("two", "ask", b"") };
    let call = events.rpc_call(one, quick).expect("made");
    let mut held = Vec::new();
    let (id, result) = loop {
        match next(&mut events) {
            (_, RpcEvent::Request(_, responder)) => held.push(responder),
            (_, RpcEvent::Completed(id, _, result)) => break (id, result),
            other => panic!("{other:?}"),
        }
    };
    let message = result.expect_err("too late").to_string();
    assert!(id == call && message.contains("ask at two (id 1"), "{message}");
    drop(held);
    let call = events.rpc_call(one, ask("two", "ask", b"last")).expect("made");
    loop {
        // The late one may have been in flight.
        let (_, request, responder) = put_request(&mut events);
        if &*request.payload == b"last" {
            assert!(responder.fail("no such luck"));
            break;
        }
    }
    let (id, result) = completed(&mut events);
    assert_eq!(id, call);
    assert_eq!(
        result.expect_err("refused").to_string(),
        "ask at two (id 1): the handler failed: no such luck"
    );

    events.rpc_shutdown(one, Shutdown::Graceful).expect("a thread");
    events.rpc_shutdown(two, Shutdown::Graceful).expect("a thread");
    let (first, second) = (over(&mut events), over(&mut events));
    assert_eq!((first.1, second.1), (Ok(()), Ok(())));
    assert!([first.0, second.0] == [one, two] || [first.0, second.0] == [two, one]);
    assert!(matches!(events.rpc_shutdown(one, Shutdown::Abrupt), Err(RpcAskError::Unknown)));
    assert!(events.next_event().is_none());
}

#[test]
fn a_death_is_told_and_ends_calls() {
    let (_server, mut events, [one, two], contexts) = pair(None);
    let call = events.rpc_call(one, ask("two", "ask", b"")).expect("made");
    let (_, _, held) = put_request(&mut events);
    // What the loop removes ends abruptly.
    events.remove_rpc(two);
    events.remove_rpc(two);
    let (mut is_dead, mut ended) = (false, None);
    while !is_dead || ended.is_none() {
        match next(&mut events) {
            (id, RpcEvent::Group(GroupEvent::PeerDied { worker: participant, .. })) => {
                assert_eq!((id, participant), (one, worker("two", 1)));
                is_dead = true;
            }
            (_, RpcEvent::Completed(id, _, result)) => ended = Some((id, failure(result))),
            other => panic!("{other:?}"),
        }
    }
    let (id, why) = ended.expect("it ended");
    assert!(id == call && matches!(why, CallFailure::ConnectionLost(_)), "{why:?}");
    drop(held);
    assert!(events.rpc_call(two, ask("one", "ask", b"")).is_err());
    events.rpc_shutdown(one, Shutdown::Abrupt).expect("a thread");
    assert_eq!(over(&mut events), (one, Ok(())));
    assert!(contexts[0].agent().is_none(), "the context may have another one");
}

#[test]
fn a_graceful_end_may_be_hastened() {
    let (_server, mut events, [one, two], _) = pair(None);
    let call = events.rpc_call(one, ask("two", "ask", b"")).expect("made");
    let (_, _, held) = put_request(&mut events);
    events.rpc_shutdown(one, Shutdown::Graceful).expect("a thread");
    // It waits for its call, so nothing ends it but this.
    events.rpc_shutdown(one, Shutdown::Abrupt).expect("a thread");
    let (id, result) = completed(&mut events);
    assert_eq!((id, failure(result)), (call, CallFailure::CallerEnded("this worker was shut down".into())));
    loop {
        match next(&mut events) {
            (id, RpcEvent::Over(end)) => {
                assert_eq!((id, end), (one, Ok(())));
                break;
            }
            (id, RpcEvent::Group(GroupEvent::PeerDied { .. })) => assert_eq!(id, two),
            other => panic!("{other:?}"),
        }
    }
    drop(held);
}

#[test]
fn who_leaves_a_group_answers_what_it_was_asked() {
    for size in [None, Some(2)] {
        let (_server, mut events, [one, two], _) = pair(size);
        let call = events.rpc_call(one, ask("two", "ask", b"")).expect("made");
        let (at, _, responder) = put_request(&mut events);
        assert_eq!(at, two);
        events.rpc_shutdown(two, Shutdown::Graceful).expect("a thread");
        if size.is_some() {
            // All end together.
            events.rpc_shutdown(one, Shutdown::Graceful).expect("a thread");
        } else {
            let (at, event) = next(&mut events);
            let RpcEvent::Group(GroupEvent::Left(participant)) = &event else { panic!("{event:?}") };
            assert_eq!((at, participant), (one, &worker("two", 1)));
        }
        assert!(responder.answer(b"at last".to_vec()));
        // The callee may end before the caller's thread has read the response.
        let (mut ends, mut result) = (if size.is_some() { 2 } else { 1 }, None);
        while ends > 0 || result.is_none() {
            match next(&mut events) {
                (_, RpcEvent::Over(end)) => {
                    assert_eq!(end, Ok(()));
                    ends -= 1;
                }
                (_, RpcEvent::Completed(id, _, completed)) => result = Some((id, completed)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(result, Some((call, Ok(b"at last".to_vec()))));
    }
}

#[test]
fn a_loop_that_goes_takes_its_workers_along() {
    let (server, port) = server();
    let context = Arc::new(RpcContext::default());
    let mut events = Loop::new().expect("a loop");
    let one = init(&mut events, &context, port, ("one", 0), None);
    assert_eq!(joined(&mut events), one);
    let other = RpcAgent::start(
        &store(port),
        worker("two", 1),
        None,
        &RpcOptions::new("tcp"),
        &TcpOptions::default(),
    );
    let other = other.expect("a member");
    let waiting = other.start_call("one", "ask", Vec::new(), Some(SOON)).expect("made");
    let taken = other.start_call("one", "ask", Vec::new(), Some(SOON)).expect("made");
    let (_, RpcEvent::Group(_)) = next(&mut events) else { panic!("it came") };
    let (_, _, responder) = put_request(&mut events);
    // A call of its own is pending, too.
    events.rpc_call(one, ask("one", "ask", b"")).expect("made");
    drop(events);
    assert!(!responder.is_wanted());
    for call in [waiting, taken] {
        call.wait().expect_err("no response");
    }
    assert!(context.agent().is_none(), "nothing is left of it");
    drop(server);
}

#[test]
fn who_does_not_become_a_member_says_why_and_who_is_waited_for_may_be_given_up() {
    let (_server, mut events, [_, two], contexts) = pair(None);
    let port = _server.local_addr().port();
    let context = Arc::new(RpcContext::default());
    let again = init(&mut events, &context, port, ("two", 7), None);
    let (id, event) = next(&mut events);
    let RpcEvent::Joined(Err(error)) = event else { panic!("{event:?}") };
    assert_eq!((id, error.to_string().as_str()), (again, "RPC worker name two is not unique."));
    assert!(matches!(events.rpc_call(again, ask("two", "ask", b"")), Err(RpcAskError::Unknown)));
    // A second worker of a context is refused.
    let second = init(&mut events, &contexts[1], port, ("three", 3), None);
    let (id, event) = next(&mut events);
    let RpcEvent::Joined(Err(error)) = event else { panic!("{event:?}") };
    assert_eq!((id, error.to_string().as_str()), (second, "RPC is already initialized"));

    // A group that will never be complete.
    let (_other, other_port) = server();
    let alone = init(&mut events, &context, other_port, ("zero", 0), Some(2));
    let error = events.rpc_call(alone, ask("zero", "ask", b"")).expect_err("no member").to_string();
    assert_eq!(error, "this worker is not a member of its group");
    store(other_port).wait(&[b"rdzv/cards/0"], Timeout::After(SOON)).expect("it comes");
    events.rpc_shutdown(alone, Shutdown::Graceful).expect("a thread");
    let (id, event) = next(&mut events);
    assert_eq!(id, alone);
    assert!(is_given_up(&event), "{event:?}");
    // One that may not have begun.
    let early = init(&mut events, &context, other_port, ("zero", 0), Some(2));
    events.rpc_shutdown(early, Shutdown::Graceful).expect("a thread");
    let (id, event) = next(&mut events);
    assert_eq!(id, early);
    assert!(is_given_up(&event), "{event:?}");
    let forgotten = init(&mut events, &context, other_port, ("zero", 0), Some(2));
    events.remove_rpc(forgotten);
    events.rpc_shutdown(two, Shutdown::Abrupt).expect("a thread");
    assert_eq!(over(&mut events), (two, Ok(())));
    let dropped = Arc::new(RpcContext::default());
    init(&mut events, &dropped, other_port, ("zero", 0), Some(2));
    drop(events);
    // The end of the loop waited for it.
    let none = dropped.init(RpcInit { name: "next", ..RpcInit::default() }).map(drop);
    assert!(matches!(none, Err(RpcInitError::Rendezvous(_))), "no worker is in its way: {none:?}");
}

#[test]
fn a_worker_that_is_there_may_be_added_and_lives_on() {
    let (_server, port) = server();
    let context = Arc::new(RpcContext::default());
    let over = |name| Arc::new(NodeStore::new(store(port).with_prefix(name), None));
    let init =
        RpcInit { name: "one", rank: Some(1), options: Some(RpcOptions::new("tcp")), ..RpcInit::default() };
    let agent = context.init_over(over(b"x"), init).expect("a member");
    let tcp = agent.tcp().expect("of tcp");
    let join = |name, id| {
        let group = store(port).with_prefix(b"x");
        RpcAgent::start(&group, worker(name, id), None, &RpcOptions::new("tcp"), &TcpOptions::default())
    };
    let two = join("two", 2).expect("a member");
    let mut events = Loop::new().expect("a loop");
    let home: Arc<dyn RpcHome> = context.clone();
    let id = events.add_rpc(Arc::clone(&home), Arc::clone(&agent)).expect("in no loop");
    assert!(events.add_rpc(Arc::clone(&home), Arc::clone(&agent)).is_err());
    // Events that were not taken before come first.
    let (of, event) = next(&mut events);
    assert!(of == id && matches!(event, RpcEvent::Group(GroupEvent::Joined(_))), "{event:?}");
    let queue = events.rpc_request_queue(id).expect("there");
    tcp.handling()
        .register_as((Owner::Program, Callers::default()), "ask", Run::Inline, queue.handler())
        .expect("free");
    let call = two.start_call("one", "ask", b"x".to_vec(), Some(SOON)).expect("made");
    let (_, request, responder) = put_request(&mut events);
    responder.answer(request.payload);
    assert_eq!(call.wait(), Ok(b"x".to_vec()));
    assert!(tcp.next_event(Duration::ZERO, &CancelToken::new()).is_none(), "the loop hears it");

    events.remove_rpc(id);
    let error = two.call("one", "ask", Vec::new(), Some(SOON)).expect_err("no loop").to_string();
    assert!(error.contains("its event loop has ended"), "{error}");
    assert!(agent.tcp().is_some_and(|agent| agent.end().is_none()), "it lives on");
    let id = events.add_rpc(home, Arc::clone(&agent)).expect("in no loop any more");
    drop(two);
    let (of, event) = next(&mut events);
    assert!(of == id && matches!(event, RpcEvent::Group(GroupEvent::PeerDied { .. })), "{event:?}");
    // Another owner ends it.
    context.end(&agent, Shutdown::Graceful).expect("alone");
    let (of, event) = next(&mut events);
    assert!(of == id && matches!(event, RpcEvent::Over(Ok(()))), "{event:?}");
}

#[test]
fn the_end_that_its_owner_gives_an_added_worker_is_not_hastened() {
    let (_server, port) = server();
    let context = Arc::new(RpcContext::default());
    let over = Arc::new(NodeStore::new(store(port).with_prefix(b"x"), None));
    let mut options = RpcOptions::new("tcp");
    options.set_worker_threads(1).expect("one");
    let init = RpcInit { name: "one", rank: Some(1), options: Some(options), ..RpcInit::default() };
    let agent = context.init_over(over, init).expect("a member");
    let tcp = agent.tcp().expect("of tcp");
    let group = store(port).with_prefix(b"x");
    let two =
        RpcAgent::start(&group, worker("two", 2), None, &RpcOptions::new("tcp"), &TcpOptions::default())
            .expect("a member");
    let (notify, keep) = mpsc::channel();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let work = move |_, _| {
        gate.lock().expect("no panic").recv_timeout(SOON).expect("it opens");
        notify.send(()).expect("kept");
    };
    tcp.handling().register("work", Run::Pooled, work).expect("free");
    let here = |_, responder: Responder| _ = responder.answer(Vec::new());
    tcp.handling().register("here", Run::Inline, here).expect("free");
    let mut events = Loop::new().expect("a loop");
    let home: Arc<dyn RpcHome> = context.clone();
    let id = events.add_rpc(home, Arc::clone(&agent)).expect("in no loop");
    for _ in 0..10 {
        two.notify("one", "work", b"x".to_vec(), Some(SOON)).expect("made");
    }
    two.call("one", "here", Vec::new(), Some(SOON)).expect("all are there");

    let ended = Arc::clone(&context);
    let end = std::thread::spawn(move || ended.end(&agent, Shutdown::Graceful));
    let reported = loop {
        if let (of, RpcEvent::Over(end)) = next(&mut events) {
            break (of, end);
        }
    };
    assert_eq!(reported, (id, Ok(())));
    for _ in 0..10 {
        open.send(()).expect("it is at work");
    }
    assert_eq!(end.join().expect("no panic"), Ok(()));
    assert_eq!(keep.try_iter().count(), 10);
}

#[test]
fn an_added_worker_that_leaves_answers_what_waits_in_the_loop() {
    let (_server, port) = server();
    let context = Arc::new(RpcContext::default());
    let group_store = Arc::new(NodeStore::new(store(port).with_prefix(b"x"), None));
    let options = Some(RpcOptions::new("tcp"));
    let init = RpcInit { name: "one", rank: Some(1), options, ..RpcInit::default() };
    let agent = context.init_over(group_store, init).expect("a member");
    let tcp = agent.tcp().expect("of tcp");
    let group = store(port).with_prefix(b"x");
    let local = TcpOptions::default();
    let two = RpcAgent::start(&group, worker("two", 2), None, &RpcOptions::new("tcp"), &local);
    let two = two.expect("a member");
    let mut events = Loop::new().expect("a loop");
    let home: Arc<dyn RpcHome> = context.clone();
    let id = events.add_rpc(home, Arc::clone(&agent)).expect("in no loop");
    let (_, RpcEvent::Group(GroupEvent::Joined(_))) = next(&mut events) else { panic!("it came") };
    let queue = events.rpc_request_queue(id).expect("there");
    tcp.handling()
        .register_as((Owner::Program, Callers::default()), "ask", Run::Inline, queue.handler())
        .expect("free");
    let here = |_, responder: Responder| _ = responder.answer(Vec::new());
    tcp.handling().register("here", Run::Inline, here).expect("free");
    let calls = [(); 2].map(|()| two.start_call("one", "ask", b"x".to_vec(), Some(SOON)).expect("made"));
    two.call("one", "here", Vec::new(), Some(SOON)).expect("both are there");
    let (_, _, first) = put_request(&mut events);
    let (ended, ending) = (Arc::clone(&context), Arc::clone(&agent));
    let end = std::thread::spawn(move || ended.end(&ending, Shutdown::Graceful));
    tcp.await_end(SOON).expect("it ends").ok();
    let (_, _, second) = put_request(&mut events);
    for (call, responder) in calls.into_iter().zip([first, second]) {
        assert!(responder.answer(b"at last".to_vec()));
        assert_eq!(call.wait(), Ok(b"at last".to_vec()));
    }
    assert_eq!(over(&mut events), (id, Ok(())));
    assert_eq!(end.join().expect("no panic"), Ok(()));
}

#[test]
fn who_leaves_answers_nobody_any_more_when_its_program_wants_it_to_end_at_once() {
    let (_server, mut events, [one, two], _) = pair(None);
    let call = events.rpc_call(one, ask("two", "ask", b"")).expect("made");
    let (_, _, held) = put_request(&mut events);
    events.rpc_shutdown(two, Shutdown::Graceful).expect("a thread");
    let (at, event) = next(&mut events);
    let RpcEvent::Group(GroupEvent::Left(participant)) = &event else { panic!("{event:?}") };
    assert_eq!((at, participant), (one, &worker("two", 1)));
    let leaving = events.rpc(two).expect("it answers still");
    leaving.tcp().and_then(|agent| agent.await_end(SOON)).expect("it ends").ok();
    events.rpc_shutdown(two, Shutdown::Abrupt).expect("a thread");
    let (mut ended, mut why) = (None, None);
    while ended.is_none() || why.is_none() {
        match next(&mut events) {
            (id, RpcEvent::Over(end)) => ended = Some((id, end)),
            (_, RpcEvent::Completed(id, _, result)) => why = Some((id, failure(result))),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, Some((two, Ok(()))));
    let (id, why) = why.expect("it failed");
    assert!(id == call && matches!(why, CallFailure::ConnectionLost(_)), "{why:?}");
    drop((held, leaving));
}

/// A worker of a custom backend, which keeps its requests.
struct Local(WorkerInfo, Mutex<Vec<(OnResult, Wanted)>>);

/// A worker whose shutdown returns this, and that has ended normally otherwise.
struct Ending(WorkerInfo, Result<(), MembershipError>);

impl RpcWorker for Ending {
    fn me(&self) -> &WorkerInfo {
        &self.0
    }

    fn workers(&self) -> Result<Vec<WorkerInfo>, MembershipError> {
        Ok(Vec::new())
    }

    fn shutdown(&self, _: Shutdown) -> Result<(), MembershipError> {
        self.1.clone()
    }

    fn end(&self) -> Option<Result<(), MembershipError>> {
        Some(Ok(()))
    }

    fn begin_call(&self, _: CallSpec<'_>, _: OnResult) -> Result<Begun, GroupCallError> {
        Ok(Begun::Loose(None, Wanted::new(CallKind::Responded)))
    }

    fn begin_notify(&self, _: CallSpec<'_>) -> Result<(), GroupCallError> {
        Ok(())
    }
}

#[test]
fn an_end_that_failed_is_told_as_such_and_one_that_was_abrupt_is_none() {
    let stuck = || MembershipError::Stuck { store: "h:1".into() };
    for (said, reported) in
        [(Err(stuck()), Err(stuck())), (Err(MembershipError::Abandoned), Ok(())), (Ok(()), Ok(()))]
    {
        let local = Arc::new(Ending(worker("own", 1), said));
        let mut events = Loop::new().expect("a loop");
        let home: Arc<dyn RpcHome> = Arc::new(RpcContext::default());
        let make = Box::new(move |_: &RpcRequestQueue, _: CancelToken| Ok(local as Arc<dyn RpcWorker>));
        let id = events.init_rpc(home, make).expect("a thread");
        assert_eq!(joined(&mut events), id);
        events.rpc_shutdown(id, Shutdown::Graceful).expect("a thread");
        assert_eq!(over(&mut events), (id, reported));
    }
}

impl RpcWorker for Local {
    fn me(&self) -> &WorkerInfo {
        &self.0
    }

    fn workers(&self) -> Result<Vec<WorkerInfo>, MembershipError> {
        Ok(alloc::vec![self.0.clone()])
    }

    fn shutdown(&self, _: Shutdown) -> Result<(), MembershipError> {
        assert_ne!(self.0.name.as_str(), "panics", "provoked");
        Err(MembershipError::Foreign { status: 7, message: "it will not go".into() })
    }

    fn begin_call(&self, call: CallSpec<'_>, reported: OnResult) -> Result<Begun, GroupCallError> {
        if call.handler == "refuse" {
            let call = "refuse at own".into();
            return Err(GroupCallError::Foreign { call, status: 8, message: "no".into(), cause: "".into() });
        }
        let wanted = Wanted::new(CallKind::Responded);
        self.1.lock().expect("no panic").push((reported, wanted.clone()));
        Ok(Begun::Loose(call.timeout, wanted))
    }

    fn begin_notify(&self, _: CallSpec<'_>) -> Result<(), GroupCallError> {
        Ok(())
    }
}

#[test]
fn calls_of_foreign_backends_end_by_their_deadlines_too() {
    let local = Arc::new(Local(worker("own", 1), Mutex::default()));
    let kept = Arc::clone(&local);
    let mut events = Loop::new().expect("a loop");
    let home: Arc<dyn RpcHome> = Arc::new(RpcContext::default());
    let make = Box::new(move |_: &RpcRequestQueue, _: CancelToken| Ok(local as Arc<dyn RpcWorker>));
    let id = events.init_rpc(home, make).expect("a thread");
    assert_eq!(joined(&mut events), id);
    let reported = || kept.1.lock().expect("no panic").remove(0);

    let call = events.rpc_call(id, ask("own", "x", b"")).expect("made");
    let (answer, wanted) = reported();
    assert!(wanted.get());
    answer(Ok(b"answer".to_vec()));
    assert_eq!(completed(&mut events), (call, Ok(b"answer".to_vec())));
    let error = events.rpc_call(id, ask("own", "refuse", b"")).expect_err("refused").to_string();
    assert_eq!(error, "refuse at own: no");
    let notifier = events.rpc(id).expect("a worker");
    notifier.begin_notify(ask("own", "x", b"")).expect("made");
    let quick = CallSpec { timeout: Some(Duration::from_millis(20)), ..ask("own", "x", b"") };
    let call = events.rpc_call(id, quick).expect("made");
    let (late, wanted) = reported();
    assert!(wanted.get());
    let (of, result) = completed(&mut events);
    assert_eq!((of, result.expect_err("late").to_string().as_str()), (call, "x at own: no answer in 20 ms"));
    assert!(!wanted.get());
    late(Ok(b"nobody waits".to_vec()));
    let call = events.rpc_call(id, ask("own", "x", b"")).expect("made");
    let (_, wanted) = reported();
    assert!(wanted.get());
    events.cancel(id, call);
    assert!(!wanted.get());
    let (of, result) = completed(&mut events);
    assert_eq!(
        (of, result.expect_err("cancelled").to_string().as_str()),
        (call, "x at own: it was cancelled")
    );

    // A request that came through it, and one without a response.
    let queue = events.rpc_request_queue(id).expect("there");
    let (notify, last_received_at) = std::sync::mpsc::channel();
    let request = || Request {
        caller: worker("other", 2),
        handler: "ask".into(),
        payload: b"bytes".to_vec().into(),
        kind: CallKind::Responded,
        time_left: None,
    };
    let back = || {
        let notify = notify.clone();
        let reported = move |answer: Result<crate::driver::calls::Payload, CallFailure>| {
            let answer = answer.map(|payload| payload.bytes().to_vec());
            notify.send(answer.map_err(|failure| failure.to_string())).expect("received");
        };
        Responder::external("ask".into(), Box::new(reported), Wanted::new(CallKind::Responded))
    };
    queue.ask(request(), back());
    let (_, put_request, responder) = put_request(&mut events);
    assert!(responder.is_wanted() && responder.answer(put_request.payload));
    assert_eq!(last_received_at.recv(), Ok(Ok(b"bytes".to_vec())));
    queue.ask(request(), back());

    let call = events.rpc_call(id, ask("own", "x", b"")).expect("made");
    events.rpc_shutdown(id, Shutdown::Graceful).expect("a thread");
    assert_eq!(last_received_at.recv(), Ok(Err("the worker takes no further requests".into())));
    let (of, result) = completed(&mut events);
    assert_eq!(
        (of, result.expect_err("it ended").to_string().as_str()),
        (call, "this worker is not a member of the group any more: it will not go")
    );
    let (of, end) = over(&mut events);
    assert_eq!((of, end.expect_err("words").to_string().as_str()), (id, "it will not go"));
    reported().0(Ok(Vec::new()));
}

#[test]
fn a_panic_where_a_worker_is_made_or_ended_is_told_as_its_end() {
    let mut events = Loop::new().expect("a loop");
    let home: Arc<dyn RpcHome> = Arc::new(RpcContext::default());
    let make = Box::new(|_: &RpcRequestQueue, _: CancelToken| panic!("provoked"));
    let id = events.init_rpc(Arc::clone(&home), make).expect("a thread");
    let (of, event) = next(&mut events);
    let RpcEvent::Joined(Err(error)) = event else { panic!("{event:?}") };
    let message = "the worker ended: the thread that makes it panicked: provoked";
    assert_eq!((of, error.to_string().as_str()), (id, message));

    let make = Box::new(|_: &RpcRequestQueue, _: CancelToken| {
        Ok(Arc::new(Local(worker("panics", 1), Mutex::default())) as Arc<dyn RpcWorker>)
    });
    let id = events.init_rpc(home, make).expect("a thread");
    assert_eq!(joined(&mut events), id);
    let call = events.rpc_call(id, ask("panics", "x", b"")).expect("made");
    events.rpc_shutdown(id, Shutdown::Graceful).expect("a thread");
    assert_eq!(completed(&mut events).0, call, "its caller does not wait in vain");
    let (of, event) = next(&mut events);
    let RpcEvent::Over(Err(error)) = event else { panic!("{event:?}") };
    assert_eq!(of, id);
    assert!(error.to_string().starts_with("the worker ended: the thread that ends it panicked: "), "{error}");
}

#[test]
fn a_request_for_which_a_loop_has_no_room_is_told_so_and_no_handler_sees_it() {
    let mut events = Loop::new().expect("a loop");
    let make = Box::new(|_: &RpcRequestQueue, _: CancelToken| {
        Ok(Arc::new(Local(worker("own", 1), Mutex::default())) as Arc<dyn RpcWorker>)
    });
    let id = events.init_rpc(Arc::new(RpcContext::default()), make).expect("a thread");
    assert_eq!(joined(&mut events), id);
    let queue = events.rpc_request_queue(id).expect("there");
    let (notify, last_received_at) = std::sync::mpsc::channel();
    let ask = || {
        let request = Request {
            caller: worker("other", 2),
            handler: "ask".into(),
            payload: Vec::new().into(),
            kind: CallKind::Responded,
            time_left: None,
        };
        let notify = notify.clone();
        let reported = move |answer: Result<crate::driver::calls::Payload, CallFailure>| {
            drop(notify.send(answer.map(drop).map_err(|failure| failure.to_string())));
        };
        queue.ask(
            request,
            Responder::external("ask".into(), Box::new(reported), Wanted::new(CallKind::Responded)),
        );
    };
    let capacity = usize::try_from(InboxLimits::default().requests.requests_max).expect("it fits");
    (0..=capacity).for_each(|_| ask());
    let message = "the worker has no capacity for it: its event loop has too many pending requests";
    assert_eq!(last_received_at.try_iter().collect::<Vec<_>>(), [Err(message.into())], "the others wait");
    let (_, _, responder) = put_request(&mut events);
    responder.answer(Vec::new());
    assert_eq!(last_received_at.try_iter().collect::<Vec<_>>(), [Ok(())]);
    ask();
    assert!(last_received_at.try_recv().is_err(), "there is room again");
    events.remove_rpc(id);
    assert_eq!(last_received_at.try_iter().filter(Result::is_err).count(), capacity);
}
