//! Watches and leases: requests whose pushes follow the response.

use super::inbox::{Inbox, Last, Queue};
use super::session_thread::Command;
use super::{
    Loss, NativeClient, NativeError, NativeRequest, NativeResponse, OwnedFrame, plain, strip_scope,
    wrong_response,
};
use crate::driver::channel::Sender;
use crate::driver::prelude::*;
use crate::driver::timeout::Timeout;
use crate::error::{ErrorKind, Failure, Operation};
use crate::store::op::Key;
use crate::wire::native::{ServerFrame, Why};
use alloc::collections::VecDeque;

/// One change of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Revision of the store that the change made.
    pub revision: u64,
    /// Changed key, without the scope.
    pub key: Vec<u8>,
    /// New value; `None` if the key was removed.
    pub value: Option<Vec<u8>>,
}

impl Change {
    /// Converts a change, and removes `scope` from its key.
    pub(in crate::driver) fn of(change: &crate::wire::native::Change<'_>, scope: &[u8]) -> Self {
        Self {
            revision: change.revision,
            key: strip_scope(scope, &change.key),
            value: change.value.map(|value| value.to_vec()),
        }
    }

    /// Returns its size in bytes while it is queued.
    pub(in crate::driver) fn bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.value.as_ref().map_or(0, Vec::len)
    }
}

/// Reason why a watch is over.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The watch fell behind the server's history: read the keys again, and watch from there on.
    #[error("{call}")]
    Compacted {
        /// Oldest revision that the server remembers.
        oldest: u64,
        /// The watch as a failed call.
        call: CallError,
    },
    /// The changes were not taken for so long that the inbox was full.
    #[error(transparent)]
    Overrun(CallError),
    /// The server ended the watch.
    #[error("{1}")]
    Ended(Why, CallError),
    /// The call was cancelled by another thread; the watch goes on.
    #[error(transparent)]
    Cancelled(NativeError),
    /// The session is over.
    #[error(transparent)]
    Lost(NativeError),
}

impl WatchError {
    /// Returns the watch as a failed call.
    pub const fn call(&self) -> &CallError {
        match self {
            Self::Compacted { call, .. } | Self::Overrun(call) | Self::Ended(_, call) => call,
            Self::Cancelled(error) | Self::Lost(error) => error.call(),
        }
    }

    /// Returns the oldest revision that the server remembers, for [`ErrorKind::Compacted`].
    pub const fn oldest_revision(&self) -> Option<u64> {
        match self {
            Self::Compacted { oldest, .. } => Some(*oldest),
            _ => None,
        }
    }

    /// Converts the server's last message for a watch of `key`, which came after `elapsed`.
    pub fn of((why, oldest): (Why, u64), elapsed: Duration, key: Key<'_>, peer: &str) -> Self {
        let ended = |kind, message: String| {
            let failure = Failure { elapsed, ..plain(kind) };
            CallError::new(Operation::Watch, (Some(key), 1), peer, failure).with_message(Some(message.into()))
        };
        match why {
            Why::Compacted => {
                let message =
                    format!("the watch fell behind: the oldest that it remembers is revision {oldest}");
                Self::Compacted { oldest, call: ended(ErrorKind::Compacted, message) }
            }
            Why::Limit => {
                Self::Ended(why, ended(ErrorKind::LimitExceeded, format!("the server ended it: {why}")))
            }
            why => Self::Ended(why, ended(ErrorKind::Cancelled, format!("by the server: {why}"))),
        }
    }

    /// Makes the error of a watch of `key` whose changes were not taken.
    pub fn overrun(key: Key<'_>, peer: &str) -> Self {
        let message = "the watch was ended because its changes were not read".into();
        let error = CallError::new(Operation::Watch, (Some(key), 1), peer, plain(ErrorKind::LimitExceeded));
        Self::Overrun(error.with_message(Some(message)))
    }
}

/// Watch of a key or a prefix. It returns changes in the order of their revisions, each once. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    client: NativeClient,
    id: u64,
    /// Key or prefix, without the scope.
    key: Box<[u8]>,
    revision: u64,
    inbox: Arc<Inbox<OwnedFrame>>,
    /// Ends the waits.
    token: CancelToken,
    /// Server's last message for the watch.
    ended: OnceLock<(Why, u64)>,
    /// Changes that came in one frame with others. Locked only while the inbox is locked.
    ready: Mutex<VecDeque<Change>>,
}

impl Watch {
    /// Returns the store's revision when the watch began.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Waits up to `timeout` for the next change; `None`: there was none. Several waiting threads get different
    /// changes.
    ///
    /// # Errors
    /// The reason why no change follows, or that the call was cancelled.
    pub fn next(&self, timeout: Duration) -> Result<Option<Change>, WatchError> {
        let call = self.client.canceller.token();
        let is_over = || self.token.is_cancelled() || call.is_cancelled();
        let (clock, key) = (self.client.clock(), self.client.key(&self.key));
        let began = clock.now();
        let last = match self.inbox.next_with(timeout, is_over, |queue| self.take(queue, began)) {
            Ok(taken) => return taken.transpose(),
            Err(Last::Overrun) => return Err(WatchError::overrun(key, self.client.peer())),
            Err(last) => last,
        };
        let mut loss = Loss::of_last(last);
        loss.failure.elapsed = clock.now().since(began);
        let error = self.client.error(Operation::Watch, (Some(key), 1), loss);
        Err(if last == Last::Interrupted { WatchError::Cancelled(error) } else { WatchError::Lost(error) })
    }

    /// Sends a message on this channel, if there is capacity for it, when [`Watch::next`] has something to return. Only
    /// the first channel counts.
    pub fn wake(&self, wakes: Sender<()>) {
        self.inbox.wake(wakes);
    }

    /// Returns the key or prefix, without the scope.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Ends the call that waits for the next change, and every later one, so that a thread is stopped whether or not
    /// it already waits.
    pub fn cancel(&self) {
        self.token.cancel();
        self.inbox.recheck_cancellation();
    }

    /// Returns the first of the queued changes.
    fn take(&self, queue: &mut Queue<OwnedFrame>, began: Instant) -> Option<Result<Change, WatchError>> {
        let mut ready = self.ready.locked();
        loop {
            if let Some(change) = ready.pop_front() {
                return Some(Ok(change));
            }
            if let Some(&last) = self.ended.get() {
                let key = self.client.key(&self.key);
                let elapsed = self.client.clock().now().since(began);
                return Some(Err(WatchError::of(last, elapsed, key, self.client.peer())));
            }
            match queue.pop_front()?.frame(&self.client.inner.answer_limits) {
                Some(ServerFrame::Changed { changes }) => {
                    ready.extend(changes.iter().map(|change| Change::of(&change, &self.client.view.scope)));
                }
                Some(ServerFrame::WatchOver { why, oldest }) => {
                    self.ended.get_or_init(|| (why, oldest));
                }
                // A push of a later version.
                _ => {}
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.client.inner.thread.send(Command::EndWatch(self.id));
    }
}

/// Lease, whose keys are removed when it ends. It ends with its session, when it is revoked, or when its time is up.
/// Dropping the handle does not end it.
#[derive(Debug)]
pub struct Lease {
    client: NativeClient,
    /// Request that granted it.
    id: u64,
    lease: u64,
    inbox: Arc<Inbox<OwnedFrame>>,
    /// Ends the waits.
    token: CancelToken,
    /// Reason for its end, once a caller has received it.
    over: OnceLock<Why>,
}

impl Lease {
    /// Returns its number at the server.
    pub const fn number(&self) -> u64 {
        self.lease
    }

    /// Attaches keys to the lease: they are removed when it ends.
    ///
    /// # Errors
    /// The lease is over, or another reason why the keys are not attached.
    pub fn attach(&self, keys: &[&[u8]], timeout: Timeout) -> Result<(), NativeError> {
        self.client.request(&NativeRequest::LeaseAttach { lease: self.lease, keys }, timeout).map(drop)
    }

    /// Waits up to `timeout` for the lease to end by itself, and returns the reason. Every caller gets it.
    ///
    /// # Errors
    /// The session is over, and the lease with it; or the call was cancelled, and the lease goes on.
    pub fn wait_over(&self, timeout: Duration) -> Result<Option<Why>, NativeError> {
        let clock = self.client.clock();
        let began = clock.now();
        let call = self.client.canceller.token();
        let is_over = || self.token.is_cancelled() || call.is_cancelled();
        let limits = &self.client.inner.answer_limits;
        let take = |queue: &mut Queue<OwnedFrame>| {
            while let Some(push) = queue.pop_front() {
                if let Some(ServerFrame::LeaseOver { why, .. }) = push.frame(limits) {
                    return Some(*self.over.get_or_init(|| why));
                }
            }
            self.over.get().copied()
        };
        match self.inbox.next_with(timeout, is_over, take) {
            Ok(taken) => Ok(taken),
            Err(Last::Overrun) => Ok(None),
            Err(last) => {
                let mut loss = Loss::of_last(last);
                loss.failure.elapsed = clock.now().since(began);
                Err(self.client.error(Operation::LeaseWait, (None, 0), loss))
            }
        }
    }

    /// Ends the call that waits for the lease to end, and every later one. The lease goes on.
    pub fn cancel_wait(&self) {
        self.token.cancel();
        self.inbox.recheck_cancellation();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.client.inner.thread.send(Command::ForgetLease(self.id));
    }
}

impl NativeClient {
    /// Watches a key: returns each change from `from_revision` on (0: from now on).
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Compacted`] when the server does not remember that revision any more, or when it was
    /// restarted and has not reached it.
    pub fn watch_key(&self, key: &[u8], from_revision: u64, timeout: Timeout) -> Result<Watch, NativeError> {
        self.watch(key, &NativeRequest::WatchKey { key, from_revision }, timeout)
    }

    /// Watches all keys under a prefix, as [`NativeClient::watch_key`].
    ///
    /// # Errors
    /// As [`NativeClient::watch_key`].
    pub fn watch_prefix(
        &self,
        prefix: &[u8],
        from_revision: u64,
        timeout: Timeout,
    ) -> Result<Watch, NativeError> {
        self.watch(prefix, &NativeRequest::WatchPrefix { prefix, from_revision }, timeout)
    }

    fn watch(&self, key: &[u8], request: &NativeRequest<'_>, timeout: Timeout) -> Result<Watch, NativeError> {
        let inbox = self.inner.thread.shared().stream(self.inner.options.limit());
        let begun = self.exchange_request(request, self.span(timeout), Some(Arc::clone(&inbox)))?;
        let (id, NativeResponse::Watching(revision)) = begun else { wrong_response() };
        let (client, key, token) = (self.clone(), key.into(), CancelToken::new());
        let (ended, ready) = (OnceLock::new(), Mutex::default());
        Ok(Watch { client, id, key, revision, inbox, token, ended, ready })
    }

    /// Grants a lease for `ttl` (zero: for as long as the session lives).
    ///
    /// # Errors
    /// The reason why it was not granted.
    pub fn lease(&self, ttl: Duration, timeout: Timeout) -> Result<Lease, NativeError> {
        let (request, inbox) = (
            NativeRequest::LeaseGrant { ttl },
            self.inner.thread.shared().stream(self.inner.options.limit()),
        );
        let begun = self.exchange_request(&request, self.span(timeout), Some(Arc::clone(&inbox)))?;
        let (id, NativeResponse::Number(number)) = begun else { wrong_response() };
        let (client, lease) = (self.clone(), number.cast_unsigned());
        let (token, over) = (CancelToken::new(), OnceLock::new());
        Ok(Lease { client, id, lease, inbox, token, over })
    }
}

#[cfg(test)]
mod tests {
    use super::super::PENDING;
    use super::super::batch::{Batch, BatchStep, Step};
    use super::super::loopback_tests::{server, session};
    use super::*;
    use alloc::vec;
    use std::thread;

    const SOON: Duration = Duration::from_secs(20);
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn whoever_waits_for_a_push_is_cancelled() {
        let server = server();
        let client = session(&server, "n0");
        let watch = client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        let lease = client.lease(Duration::ZERO, Timeout::Default).expect("granted");
        thread::scope(|scope| {
            let watching = scope.spawn(|| watch.next(LONG));
            let waiting = scope.spawn(|| lease.wait_over(LONG));
            while !watching.is_finished() || !waiting.is_finished() {
                client.cancel();
                thread::yield_now();
            }
            let error = watching.join().expect("no panic").expect_err("cancelled");
            let WatchError::Cancelled(error) = error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            let error = waiting.join().expect("no panic").expect_err("cancelled");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        });
        // Both go on.
        assert_eq!(watch.next(Duration::ZERO).expect("alive"), None);
        assert_eq!(lease.wait_over(Duration::ZERO).expect("alive"), None);
    }

    #[test]
    fn who_drops_a_watch_or_a_lease_leaves_nothing_of_it_behind() {
        let server = server();
        let client = session(&server, "n0");
        let lease = client.lease(Duration::ZERO, Timeout::Default).expect("granted");
        lease.attach(&[b"leased"], Timeout::Default).expect("attached");
        let kept = client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        let mut inboxes = vec![Arc::downgrade(&lease.inbox)];
        drop(lease);
        // More watches at a time than the session may have requests in progress.
        let watch = |_| client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        let watches: Vec<Watch> = (0..2 * PENDING).map(watch).collect();
        inboxes.extend(watches.iter().map(|watch| Arc::downgrade(&watch.inbox)));
        assert!(inboxes.iter().skip(1).all(|inbox| inbox.strong_count() > 1));
        drop(watches);
        // Commands are handled in order: at the first response, this side has dropped all of them.
        let count =
            |client: &NativeClient| client.delete_prefix(b"unused", Timeout::Default).expect("done").removed;
        assert_eq!(count(&client), 0);
        assert!(inboxes.iter().all(|inbox| inbox.strong_count() == 0));
        // The one that was kept returns each change, in order.
        for value in [b"1", b"2"] {
            let mut batch = Batch::default();
            batch.push(b"k", BatchStep::Write(Step::Set { value: value.as_slice().into() }));
            client.batch(&batch, Timeout::Default).expect("done");
            let change = kept.next(SOON).expect("alive").expect("a change");
            assert_eq!(change.value.as_deref(), Some(&value[..]));
        }
    }

    #[test]
    fn who_is_to_stop_is_stopped_whenever_he_waits() {
        let server = server();
        let client = session(&server, "n0");
        let watch = client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        let lease = client.lease(Duration::ZERO, Timeout::Default).expect("granted");
        thread::scope(|scope| {
            let watching = scope.spawn(|| watch.next(LONG));
            let waiting = scope.spawn(|| lease.wait_over(LONG));
            watch.cancel();
            lease.cancel_wait();
            assert!(matches!(watching.join().expect("no panic"), Err(WatchError::Cancelled(_))));
            assert_eq!(waiting.join().expect("no panic").expect_err("stopped").kind(), ErrorKind::Cancelled);
        });
        assert!(matches!(watch.next(LONG), Err(WatchError::Cancelled(_))));
        client.renew(&lease, Timeout::Default).expect("the lease goes on");
    }

    #[test]
    fn everybody_who_asks_hears_why_a_lease_ended() {
        let server = server();
        let client = session(&server, "n0");
        let lease = client.lease(Duration::from_millis(20), Timeout::Default).expect("granted");
        for _ in 0..2 {
            assert_eq!(lease.wait_over(SOON).expect("alive"), Some(Why::Deadline));
        }
    }

    #[test]
    fn what_a_later_version_pushes_does_not_prolong_the_wait() {
        let server = server();
        let client = session(&server, "n0");
        let watch = client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        thread::scope(|scope| {
            let watching = scope.spawn(|| watch.next(Duration::from_millis(100)));
            let began = client.clock().now();
            // One after the other, with less time between them than the wait has.
            while !watching.is_finished() && client.clock().now().since(began) < SOON {
                watch.inbox.put(OwnedFrame { id: watch.id, kind: 0xffff, body: Vec::new() });
                thread::park_timeout(Duration::from_millis(20));
            }
            assert!(watching.is_finished(), "it waits on");
            assert_eq!(watching.join().expect("no panic").expect("alive"), None);
        });
    }

    #[test]
    fn who_waits_long_does_not_hold_up_who_only_looks() {
        let server = server();
        let client = session(&server, "n0");
        let watch = client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        thread::scope(|scope| {
            let long = scope.spawn(|| watch.next(SOON));
            thread::park_timeout(Duration::from_millis(50));
            let began = client.clock().now();
            assert_eq!(watch.next(Duration::ZERO).expect("alive"), None);
            assert!(client.clock().now().since(began) < SOON / 2, "it waited for the other");
            while !long.is_finished() {
                client.cancel();
                thread::yield_now();
            }
        });
    }
}
