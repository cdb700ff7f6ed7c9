//! Watches and leases: requests that go on telling after they were answered.

use super::inbox::{Inbox, Last};
use super::{Answered, Command, Loss, NativeClient, NativeError, Way, millis};
use crate::driver::store::Timeout;
use crate::error::Operation;
use crate::store::op::{Key, Keys};
use crate::time::Duration;
use crate::wire::native::{ClientFrame, ServerFrame, Why};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::sync::{Mutex, PoisonError};

/// One change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The store's revision that it made.
    pub revision: u64,
    /// Of which key.
    pub key: Vec<u8>,
    /// The new value; `None` when the key was removed.
    pub value: Option<Vec<u8>>,
}

/// Why a watch tells of nothing more.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It fell behind the server's history: read the keys afresh, and watch from then on.
    #[error("the watch fell behind: the oldest change that the server remembers is revision {oldest}")]
    Compacted {
        /// The oldest revision that can be told of.
        oldest: u64,
    },
    /// Nobody asked for its changes for so long that there was no more room.
    #[error("the watch was ended: nobody asked for its changes")]
    Overrun,
    /// The server ended it.
    #[error("the server ended the watch: {0}")]
    Ended(Why),
    /// Somebody cancelled the call with [`NativeClient::cancel`]; the watch goes on.
    #[error(transparent)]
    Cancelled(NativeError),
    /// The session is over.
    #[error(transparent)]
    Lost(NativeError),
}

/// Tells of changes, in the order of their revisions, each once. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    client: NativeClient,
    id: u64,
    revision: u64,
    inbox: Arc<Inbox<Answered>>,
    /// Changes that came in one frame with others. Locked only while the inbox is.
    ready: Mutex<VecDeque<Change>>,
}

impl Watch {
    /// The store's revision when the watch began.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// The next change; waits up to `timeout` for it. `None`: there was none. Of several threads that wait, each gets
    /// another one.
    ///
    /// # Errors
    /// Why there will be none, or that the call was cancelled.
    pub fn next(&self, timeout: Duration) -> Result<Option<Change>, WatchError> {
        match self.inbox.next_with(timeout, self.client.cancelled_since(), |queue| self.take(queue)) {
            Ok(taken) => taken.transpose(),
            Err(Last::Overrun) => Err(WatchError::Overrun),
            Err(Last::Interrupted) => Err(WatchError::Cancelled(self.client.cancelled(Operation::Watch))),
            Err(Last::Over(ending)) => {
                let loss = Loss::of_ending(ending);
                Err(WatchError::Lost(self.client.error(Operation::Watch, (None, 0), loss)))
            }
        }
    }

    /// The first change of those that came.
    fn take(&self, queue: &mut VecDeque<Answered>) -> Option<Result<Change, WatchError>> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(change) = ready.pop_front() {
                return Some(Ok(change));
            }
            match queue.pop_front()?.frame(&self.client.0.answer_limits) {
                Some(ServerFrame::Changed { changes }) => {
                    ready.extend(changes.iter().map(|change| Change {
                        revision: change.revision,
                        key: self.client.name_of(&change.key),
                        value: change.value.map(<[u8]>::to_vec),
                    }));
                }
                Some(ServerFrame::WatchOver { why: Why::Compacted, oldest }) => {
                    return Some(Err(WatchError::Compacted { oldest }));
                }
                Some(ServerFrame::WatchOver { why, .. }) => return Some(Err(WatchError::Ended(why))),
                // A push of a later version.
                _ => {}
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.client.0.thread.send(Command::EndWatch(self.id));
    }
}

/// Keys that vanish with it. It ends with its session, when it is revoked, or when its time is up. Dropping the handle
/// leaves the lease as it is.
#[derive(Debug)]
pub struct Lease {
    client: NativeClient,
    /// By which it was granted.
    id: u64,
    lease: u64,
    inbox: Arc<Inbox<Answered>>,
}

impl Lease {
    /// Its number at the server.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.lease
    }

    /// Lets keys vanish with the lease.
    ///
    /// # Errors
    /// The lease is over, or why else they do not.
    pub fn attach(&self, keys: &[&[u8]], timeout: Timeout) -> Result<(), NativeError> {
        let keys = Keys::scoped(&self.client.0.options.scope, keys);
        let attach = ClientFrame::LeaseAttach { lease: self.lease, keys };
        let first = (keys.iter().next(), keys.len());
        self.client.ask(Operation::LeaseAttach, &attach, self.client.span(timeout).0, first).map(drop)
    }

    /// Gives the lease its whole time again.
    ///
    /// # Errors
    /// The lease is over, or why else it does not have it.
    pub fn renew(&self, timeout: Timeout) -> Result<(), NativeError> {
        let renew = ClientFrame::LeaseRenew { lease: self.lease };
        self.client.ask(Operation::LeaseRenew, &renew, self.client.span(timeout).0, (None, 0)).map(drop)
    }

    /// Ends the lease, and removes its keys; how many that were.
    ///
    /// # Errors
    /// Why it was not ended.
    pub fn revoke(&self, timeout: Timeout) -> Result<i64, NativeError> {
        let revoke = ClientFrame::LeaseRevoke { lease: self.lease };
        let span = self.client.span(timeout).0;
        let answer = self.client.ask(Operation::LeaseRevoke, &revoke, span, (None, 0))?;
        self.client.number_in(Operation::LeaseRevoke, &answer)
    }

    /// Waits up to `timeout` for the lease to end by itself, and tells why it did.
    ///
    /// # Errors
    /// The session is over, and the lease with it; or the call was cancelled, and the lease goes on.
    pub fn wait_over(&self, timeout: Duration) -> Result<Option<Why>, NativeError> {
        match self.inbox.next_unless(timeout, self.client.cancelled_since()) {
            Ok(None) | Err(Last::Overrun) => Ok(None),
            Err(Last::Interrupted) => Err(self.client.cancelled(Operation::LeaseGrant)),
            Ok(Some(push)) => match push.frame(&self.client.0.answer_limits) {
                Some(ServerFrame::LeaseOver { why, .. }) => Ok(Some(why)),
                _ => Ok(None),
            },
            Err(Last::Over(ending)) => {
                Err(self.client.error(Operation::LeaseGrant, (None, 0), Loss::of_ending(ending)))
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.client.0.thread.send(Command::LeaveLease(self.id));
    }
}

impl NativeClient {
    /// Watches a key: tells of each change from `from_revision` on (0: from now on).
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Compacted`] when the server does not remember that revision any more.
    pub fn watch_key(&self, key: &[u8], from_revision: u64, timeout: Timeout) -> Result<Watch, NativeError> {
        let key = self.key(key);
        self.watch(key, &ClientFrame::WatchKey { key, from_revision }, timeout)
    }

    /// Watches all keys beneath a prefix, as [`NativeClient::watch_key`].
    ///
    /// # Errors
    /// As [`NativeClient::watch_key`].
    pub fn watch_prefix(
        &self,
        prefix: &[u8],
        from_revision: u64,
        timeout: Timeout,
    ) -> Result<Watch, NativeError> {
        let prefix = self.key(prefix);
        self.watch(prefix, &ClientFrame::WatchPrefix { prefix, from_revision }, timeout)
    }

    fn watch(&self, key: Key<'_>, frame: &ClientFrame<'_>, timeout: Timeout) -> Result<Watch, NativeError> {
        let (answer, inbox) = self.begin_stream(Operation::Watch, frame, (Some(key), 1), timeout)?;
        let Some(ServerFrame::Done { revision }) = answer.frame(&self.0.answer_limits) else {
            return Err(self.odd(Operation::Watch));
        };
        Ok(Watch { client: self.clone(), id: answer.id, revision, inbox, ready: Mutex::default() })
    }

    /// Makes a lease for `ttl` (zero: for as long as the session lives).
    ///
    /// # Errors
    /// Why there is none.
    pub fn lease(&self, ttl: Duration, timeout: Timeout) -> Result<Lease, NativeError> {
        let grant = ClientFrame::LeaseGrant { ttl_ms: millis(ttl) };
        let (answer, inbox) = self.begin_stream(Operation::LeaseGrant, &grant, (None, 0), timeout)?;
        let number = self.number_in(Operation::LeaseGrant, &answer)?;
        Ok(Lease { client: self.clone(), id: answer.id, lease: number.cast_unsigned(), inbox })
    }

    fn begin_stream(
        &self,
        operation: Operation,
        frame: &ClientFrame<'_>,
        keys: (Option<Key<'_>>, usize),
        timeout: Timeout,
    ) -> Result<(Answered, Arc<Inbox<Answered>>), NativeError> {
        let inbox = self.0.shared.stream(self.0.options.pushes_max);
        let begun =
            self.exchange(operation, frame, self.span(timeout).0, Way::Plain, Some(Arc::clone(&inbox)), None);
        begun.map(|answer| (answer, inbox)).map_err(|loss| self.error(operation, keys, loss))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PENDING;
    use super::super::loopback_tests::{server, session};
    use super::*;
    use crate::error::ErrorKind;
    use crate::store::txn::Write as TxnWrite;
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
        // More of them at a time than the session has room for requests.
        let watch = |_| client.watch_key(b"k", 0, Timeout::Default).expect("begun");
        let watches: Vec<Watch> = (0..2 * PENDING).map(watch).collect();
        inboxes.extend(watches.iter().map(|watch| Arc::downgrade(&watch.inbox)));
        assert!(inboxes.iter().skip(1).all(|inbox| inbox.strong_count() > 1));
        drop(watches);
        // What is asked later is obeyed later: at the first answer, all of them are gone on this side.
        let count = |client: &NativeClient| client.delete_prefix(b"nobody", Timeout::Default).expect("done");
        assert_eq!(count(&client), 0);
        assert!(inboxes.iter().all(|inbox| inbox.strong_count() == 0));
        // The one that was kept tells of each change, in order.
        for value in [b"1", b"2"] {
            let write = [TxnWrite::Set { key: client.key_of(b"k"), value }];
            assert!(client.txn(&[], &write, &[], Timeout::Default).expect("done"));
            let change = kept.next(SOON).expect("alive").expect("a change");
            assert_eq!(change.value.as_deref(), Some(&value[..]));
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
                watch.inbox.put(Answered { id: watch.id, kind: 0xffff, body: Vec::new() });
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
