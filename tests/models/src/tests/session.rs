//! Thread of a session, and the threads that call it.

use super::{FOREVER, check, join, spawn};
use crate::cancel::CancelToken;
use crate::inbox::{Inbox, InboxLimit, Last, Queue};
use crate::session::Session;
use crate::session_thread::{ClientShared, Command, SessionThread};
use crate::stand_ins::channel::unbounded;
use crate::stand_ins::oneshot;
use crate::stand_ins::session::{
    Arrival, EncodedRequest, Kind, Loss, NativeClientOptions, NodeEvent, OwnedFrame, SERVER, Server, plain,
};
use rendezvous_core::error::ErrorKind;
use rendezvous_core::node::native_client::Ending;
use shuttle::sync::Arc;
use shuttle::sync::atomic::Ordering;
use std::sync::Arc as StdArc;

const LIMIT: InboxLimit = InboxLimit { items: 10, bytes: usize::MAX };
const GONE: Ending = Ending::Dialling(plain(ErrorKind::ServerGone));

type Opened = oneshot::Receiver<Result<(), Ending>>;

fn start() -> (Arc<SessionThread>, Opened) {
    let (shared, (commands, received)) = (StdArc::new(ClientShared::new(LIMIT)), unbounded());
    let (reply, opened) = oneshot::channel();
    let shares = (StdArc::clone(&shared), received);
    let session = Session::new(("host", 1), &NativeClientOptions, 7, shares.0, shares.1, Some(reply));
    let mut session = session.expect("it has no sockets");
    let thread = SessionThread::start(shared, commands, session.waker(), move || session.run());
    (Arc::new(thread.expect("it starts")), opened)
}

fn call(thread: &SessionThread, kind: Kind, token: &CancelToken) -> Result<OwnedFrame, Loss> {
    thread.call(EncodedRequest::of(kind), None, token, FOREVER)
}

fn received(kind: Kind) -> usize {
    SERVER.lock().expect("no panic").received.iter().filter(|received| **received == kind).count()
}

#[test]
fn each_call_is_answered_by_its_own_response() {
    check(|| {
        let (thread, _) = start();
        let calling = [(); 3].map(|()| {
            let thread = Arc::clone(&thread);
            spawn(move || call(&thread, Kind::Prompt, &CancelToken::new()))
        });
        let mut ids: Vec<_> = join(calling).into_iter().map(|answer| answer.expect("answered").id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3]);
    });
}

/// Calls that begin before the end, during it and after it: none hangs, and each gets the reason.
#[test]
fn the_end_of_the_session_ends_each_call_with_its_reason() {
    check(|| {
        let (thread, _) = start();
        let calling = [(); 2].map(|()| {
            let thread = Arc::clone(&thread);
            spawn(move || {
                let first = call(&thread, Kind::Held, &CancelToken::new());
                assert_eq!(thread.ending(), Some(GONE), "a call failed before the session was over");
                [first, call(&thread, Kind::Prompt, &CancelToken::new())]
            })
        });
        Server::send(Arrival::End(GONE));
        for answers in join(calling) {
            assert_eq!(answers, [Err(Loss::Over(GONE)); 2]);
        }
    });
}

#[test]
fn a_stop_ends_each_call() {
    check(|| {
        let (thread, _) = start();
        let calling = [Kind::Held, Kind::Prompt].map(|kind| {
            let thread = Arc::clone(&thread);
            spawn(move || call(&thread, kind, &CancelToken::new()))
        });
        let stopping = Arc::clone(&thread);
        let stopping = spawn(move || stopping.begin_to_stop());
        let answers = join(calling);
        assert_eq!(answers[0], Err(Loss::Over(Ending::Left)));
        assert!(matches!(answers[1], Ok(_) | Err(Loss::Over(Ending::Left))), "{answers:?}");
        join([stopping]);
    });
}

#[test]
fn no_call_misses_its_cancellation_and_no_other_call_is_cancelled() {
    check(|| {
        let ((thread, _), token) = (start(), CancelToken::new());
        let calling = [(); 2].map(|()| {
            let (thread, token) = (Arc::clone(&thread), token.clone());
            spawn(move || call(&thread, Kind::Held, &token))
        });
        let other = Arc::clone(&thread);
        let other = spawn(move || call(&other, Kind::Held, &CancelToken::new()));
        token.cancel();
        thread.recheck_cancellation();
        assert_eq!(join(calling), [Err(Loss::Cancelled); 2]);
        Server::send(Arrival::End(GONE));
        assert_eq!(join([other]), [Err(Loss::Over(GONE))]);
    });
}

#[test]
fn the_last_handle_stops_the_thread_whichever_it_is() {
    check(|| {
        let (thread, _) = start();
        let calling = [(); 2].map(|()| {
            let thread = Arc::clone(&thread);
            spawn(move || assert!(call(&thread, Kind::Prompt, &CancelToken::new()).is_ok()))
        });
        drop(thread);
        join(calling);
    });
}

#[test]
fn a_wait_for_the_greeting_ends_with_it_or_with_the_reason_why_it_does_not_come() {
    check(|| {
        let (thread, opened) = start();
        let waiting = Arc::clone(&thread);
        let waiting = spawn(move || {
            let opened = opened.recv_timeout(FOREVER).expect("the thread answers");
            match opened {
                Ok(()) => assert_eq!(waiting.shared().incarnation.load(Ordering::SeqCst), 1),
                Err(ending) => assert_eq!(waiting.ending(), Some(ending)),
            }
            opened
        });
        let ending = spawn(|| Server::send(Arrival::End(GONE)));
        Server::send(Arrival::Greeting);
        let opened = join([waiting]);
        assert!(opened == [Ok(())] || opened == [Err(GONE)], "{opened:?}");
        join([ending]);
    });
}

#[test]
fn a_stop_ends_the_wait_for_the_greeting() {
    check(|| {
        let (thread, opened) = start();
        let waiting = spawn(move || opened.recv_timeout(FOREVER));
        thread.begin_to_stop();
        assert_eq!(join([waiting]), [Ok(Err(Ending::Left))]);
    });
}

/// A watch: its first response comes, then a push or the end, in any order with other threads.
#[test]
fn a_stream_gets_the_pushes_and_then_the_end() {
    check(|| {
        let (thread, _) = start();
        let inbox = thread.shared().stream(LIMIT);
        let watching = Arc::clone(&thread);
        let watching = spawn(move || {
            let own = StdArc::clone(&inbox);
            let begun =
                watching.call(EncodedRequest::of(Kind::Prompt), Some(own), &CancelToken::new(), FOREVER);
            let Ok(OwnedFrame { id }) = begun else {
                assert_eq!(begun, Err(Loss::Over(GONE)));
                return;
            };
            Server::send(Arrival::Push(id));
            let next = || inbox.next_with(FOREVER, || false, Queue::pop_front);
            match next() {
                Ok(push) => {
                    assert_eq!(push, Some(OwnedFrame { id }));
                    assert_eq!(next(), Err(Last::Over(GONE)));
                }
                Err(last) => assert_eq!(last, Last::Over(GONE)),
            }
        });
        Server::send(Arrival::End(GONE));
        join([watching]);
    });
}

/// The session asks the server once to end a watch, whether or not a push is on its way to its dropped or full inbox.
#[test]
fn a_dropped_watch_is_ended_once() {
    check(|| {
        let (thread, _) = start();
        let inbox: StdArc<Inbox<OwnedFrame>> = thread.shared().stream(LIMIT);
        let begun = thread.call(EncodedRequest::of(Kind::Prompt), Some(inbox), &CancelToken::new(), FOREVER);
        let id = begun.expect("answered").id;
        let pushing = spawn(move || Server::send(Arrival::Push(id)));
        thread.send(Command::EndWatch(id));
        assert!(call(&thread, Kind::Prompt, &CancelToken::new()).is_ok());
        assert_eq!(SERVER.lock().expect("no panic").forgotten, [id]);
        join([pushing]);
    });
}

#[test]
fn a_wait_for_an_event_ends_by_the_event_the_end_or_its_cancellation() {
    check(|| {
        let ((thread, _), token) = (start(), CancelToken::new());
        let (waiting, own) = (Arc::clone(&thread), token.clone());
        let waiting = spawn(move || {
            let is_cancelled = || own.is_cancelled();
            waiting.shared().events.next_with(FOREVER, is_cancelled, Queue::pop_front)
        });
        let cancelling = Arc::clone(&thread);
        let cancelling = spawn(move || {
            token.cancel();
            cancelling.recheck_cancellation();
        });
        let arriving = spawn(|| Server::send(Arrival::Node(NodeEvent::Round)));
        let got = join([waiting]);
        assert!(matches!(got[..], [Ok(Some(NodeEvent::Round)) | Err(Last::Interrupted)]), "{got:?}");
        join([cancelling, arriving]);
    });
}

/// Once a node has joined, no event of the previous round is left.
#[test]
fn a_join_drops_the_events_of_the_previous_round() {
    check(|| {
        let (thread, _) = start();
        let answered = |kind| assert!(call(&thread, kind, &CancelToken::new()).is_ok());
        Server::send(Arrival::Node(NodeEvent::Standby {}));
        Server::send(Arrival::Node(NodeEvent::Round));
        // What had arrived before the first response was handled is there after the second one.
        (0..2).for_each(|_| answered(Kind::Prompt));
        assert!(thread.shared().was_standby.load(Ordering::SeqCst));
        answered(Kind::Join);
        assert!(!thread.shared().was_standby.load(Ordering::SeqCst));
        Server::send(Arrival::End(GONE));
        let next = || thread.shared().events.next_with(FOREVER, || false, Queue::pop_front);
        assert_eq!([next(), next()], [Ok(Some(NodeEvent::Standby {})), Err(Last::Over(GONE))]);
    });
}

/// A node that is stopped says so, even if its last handle is dropped at once.
#[test]
fn an_abandoned_session_tells_its_server_before_it_ends() {
    check(|| {
        let (thread, _) = start();
        let calling = Arc::clone(&thread);
        let calling = spawn(move || {
            call(&calling, Kind::Prompt, &CancelToken::new()).ok();
        });
        thread.send(Command::Abandon(Box::new(EncodedRequest::of(Kind::Goodbye))));
        join([calling]);
        drop(thread);
        assert_eq!(received(Kind::Goodbye), 1);
    });
}
