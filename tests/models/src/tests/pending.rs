//! Pending calls of a worker.

use super::{FOREVER, check, join, spawn};
use crate::cancel::CancelToken;
use crate::pending::PendingCall;
use crate::stand_ins::clock::Clock;
use crate::stand_ins::group::{
    Begun, CallCanceller, CallSpec, GroupCallError, GroupResult, OnResult, RpcWorker, Wanted,
};
use rendezvous_core::time::{Duration, Instant};
use shuttle::sync::{Arc, Mutex};

/// Worker of a backend that ends its calls itself, or leaves that to the caller. It has one call.
#[derive(Clone)]
struct Worker {
    ends_calls: bool,
    on_result: Arc<Mutex<Option<OnResult>>>,
    wanted: Wanted,
}

impl Worker {
    fn both() -> [Self; 2] {
        [true, false].map(|ends_calls| Self { ends_calls, on_result: Arc::default(), wanted: Wanted::new() })
    }

    fn start(&self, timeout: Option<Duration>) -> PendingCall {
        let worker: &dyn RpcWorker = self;
        worker.start_call(CallSpec { handler: "f", timeout }).expect("it starts")
    }

    /// Ends the call; returns false if it has ended.
    fn end(&self, result: GroupResult) -> bool {
        let on_result = self.on_result.lock().expect("no panic").take();
        on_result.map(|on_result| on_result(result)).is_some()
    }
}

impl RpcWorker for Worker {
    fn begin_call(&self, call: CallSpec<'_>, on_result: OnResult) -> Result<Begun, GroupCallError> {
        *self.on_result.lock().expect("no panic") = Some(on_result);
        let worker = self.clone();
        let cancel = move || worker.end(Err(cancelled()));
        Ok(match self.ends_calls {
            true => Begun::Kept(CallCanceller(Box::new(cancel))),
            false => Begun::Loose(call.timeout, self.wanted.clone()),
        })
    }
}

fn cancelled() -> GroupCallError {
    GroupCallError::Cancelled { call: "f".into() }
}

fn no_result() -> GroupCallError {
    GroupCallError::NoResult { call: "f".into() }
}

fn answer() -> GroupResult {
    Ok(b"answer".to_vec())
}

#[test]
fn one_of_the_waiting_threads_gets_the_result_and_the_others_end() {
    check(|| {
        let [_, worker] = Worker::both();
        let call = worker.start(None);
        let waiting = [call.clone(), call].map(|call| spawn(move || call.wait()));
        worker.end(answer());
        let mut results = join(waiting);
        results.sort();
        assert_eq!(results, [answer(), Err(no_result())]);
    });
}

#[test]
fn a_call_has_its_result_or_is_cancelled() {
    for ends_calls in 0..2 {
        check(move || {
            let worker = Worker::both()[ends_calls].clone();
            let call = worker.start(None);
            let cancelling = [(); 2].map(|()| {
                let call = call.clone();
                spawn(move || call.cancel())
            });
            let waiting = spawn(move || call.wait());
            worker.end(answer());
            let cancels = join(cancelling).into_iter().filter(|&was_cancelled| was_cancelled).count();
            let result = join([waiting]).remove(0);
            assert_eq!((cancels, result), if cancels > 0 { (1, Err(cancelled())) } else { (0, answer()) });
        });
    }
}

#[test]
fn no_wait_misses_its_cancellation() {
    for ends_calls in 0..2 {
        check(move || {
            let (worker, token) = (Worker::both()[ends_calls].clone(), CancelToken::new());
            let canceller = {
                let token = token.clone();
                spawn(move || token.cancel())
            };
            let calling: &dyn RpcWorker = &worker;
            let result = calling.call(&token, CallSpec { handler: "f", timeout: None });
            assert_eq!(result, Err(cancelled()));
            assert!(ends_calls == 0 || !worker.wanted.get(), "the backend is told");
            join([canceller]);
        });
    }
}

#[test]
fn a_call_whose_recipient_is_dropped_ends() {
    check(|| {
        let [_, worker] = Worker::both();
        let call = worker.start(None);
        let waiting = spawn(move || call.wait());
        let recipient = worker.on_result.lock().expect("no panic").take();
        drop(recipient);
        assert_eq!(join([waiting]), [Err(no_result())]);
    });
}

#[test]
fn a_call_ends_once_at_its_deadline_or_with_its_result() {
    check(|| {
        let [_, worker] = Worker::both();
        let timeout = FOREVER;
        let call = worker.start(Some(timeout));
        let clock = spawn(move || Clock::set(Instant::ORIGIN + timeout));
        let waiting = [(); 2].map(|()| {
            let call = call.clone();
            spawn(move || call.look(FOREVER))
        });
        worker.end(answer());
        let results: Vec<_> = join(waiting).into_iter().flatten().collect();
        join([clock]);
        let late = Err(GroupCallError::Late { call: "f".into(), elapsed: timeout });
        assert!(results == [answer()] || results == [late], "{results:?}");
        assert!(call.is_taken());
    });
}
