//! Thread of a session as its callers see it: they submit calls and commands to it, and wait for the responses.

use super::inbox::{Inbox, InboxLimit};
use super::node::NodeEvent;
use super::session_driver::EncodedRequest;
use super::{Loss, OwnedFrame, plain};
use crate::driver::channel::Sender;
use crate::driver::event_loop::Waker;
use crate::driver::last_try::LastTry;
use crate::driver::prelude::*;
use crate::driver::threads::{self, Thread};
use crate::error::ErrorKind;
use crate::node::native_client::Ending;
use crate::time::Duration;
use alloc::sync::Weak;
use core::sync::atomic::{AtomicBool, AtomicU64};
use oneshot::RecvTimeoutError;

/// Time after a call's deadline. A session's thread that has not responded by then is considered dead.
pub(super) const THREAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time that a session takes to notify its server that it is abandoned.
pub(super) const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// Call on its way to the session's thread.
pub(super) struct Submitted {
    pub(super) encoded: EncodedRequest,
    pub(super) token: CancelToken,
    /// Inbox for its pushes.
    pub(super) inbox: Option<Arc<Inbox<OwnedFrame>>>,
    pub(super) reply: oneshot::Sender<Result<OwnedFrame, Loss>>,
}

pub(super) enum Command {
    Call(Box<Submitted>),
    /// Ends the watch of this request: its pushes are not read any more.
    EndWatch(u64),
    /// Drops the inbox of the lease of this request. The lease itself goes on.
    ForgetLease(u64),
    /// Ends the calls that were sent before and whose tokens are cancelled.
    CheckTokens,
    /// Sends the server this request, which ends the session. The session is over after [`ABANDON_TIMEOUT`] in any case.
    Abandon(Box<EncodedRequest>),
    Stop,
}

/// State that the handles and the session's thread share.
#[derive(Debug)]
pub(super) struct ClientShared {
    /// Reason why the session is over.
    pub(super) ending_cell: OnceLock<Ending>,
    /// Events of the node.
    pub(super) events: Inbox<NodeEvent>,
    /// Whether the node was a spare at any time since its last join request.
    pub(super) was_standby: AtomicBool,
    /// Whether another session joined under the node's name.
    pub(super) was_replaced: AtomicBool,
    /// Incarnation of the server, 0 until it has greeted the session.
    pub(super) incarnation: AtomicU64,
    /// Number of the session, 0 before the first greeting.
    pub(super) session: AtomicU64,
    /// Last failed attempt to connect.
    pub(super) last_try: LastTry,
    /// Inboxes of watches and leases. Dropped ones are skipped.
    streams: Mutex<Vec<Weak<Inbox<OwnedFrame>>>>,
}

impl ClientShared {
    pub(super) fn new(limit: InboxLimit) -> Self {
        Self {
            ending_cell: OnceLock::new(),
            events: Inbox::new(limit),
            was_standby: AtomicBool::new(false),
            was_replaced: AtomicBool::new(false),
            incarnation: AtomicU64::new(0),
            session: AtomicU64::new(0),
            last_try: LastTry::default(),
            streams: Mutex::default(),
        }
    }

    /// Makes an inbox for the pushes of one watch or lease.
    pub(super) fn stream(&self, limit: InboxLimit) -> Arc<Inbox<OwnedFrame>> {
        let inbox = Arc::new(Inbox::new(limit));
        let mut streams = self.streams.locked();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(&inbox));
        inbox
    }

    /// Wakes the threads that wait for pushes, so that they check whether they are cancelled.
    fn recheck_cancellation(&self) {
        self.events.recheck_cancellation();
        let streams = self.streams.locked();
        streams.iter().filter_map(Weak::upgrade).for_each(|stream| stream.recheck_cancellation());
    }
}

/// The running thread. Dropping it stops it, and waits for its end.
pub(super) struct SessionThread {
    shared: Arc<ClientShared>,
    commands: Sender<Command>,
    waker: Waker,
    thread: Option<Thread>,
}

impl SessionThread {
    /// Starts a thread that runs `session`, which receives the commands, and which `waker` wakes.
    pub(super) fn start(
        shared: Arc<ClientShared>,
        commands: Sender<Command>,
        waker: Waker,
        session: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let thread = Some(threads::spawn("rdzv-session", session)?);
        Ok(Self { shared, commands, waker, thread })
    }

    pub(super) fn shared(&self) -> &ClientShared {
        &self.shared
    }

    /// Returns the reason why the session is over.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.shared.ending_cell.get().copied()
    }

    pub(super) fn send(&self, command: Command) {
        // A session that is over takes no commands. `ending_cell` has the reason.
        self.commands.send(command).ok();
        self.waker.wake();
    }

    /// Ends the session, without waiting.
    pub(super) fn begin_to_stop(&self) {
        self.send(Command::Stop);
    }

    /// Lets all waiting calls check whether they are cancelled.
    pub(super) fn recheck_cancellation(&self) {
        self.shared.recheck_cancellation();
        self.send(Command::CheckTokens);
    }

    /// Sends a request whose pushes go to `inbox`, and waits for the response. The session ends the call by its deadline
    /// and `slack`.
    pub(super) fn call(
        &self,
        encoded: EncodedRequest,
        inbox: Option<Arc<Inbox<OwnedFrame>>>,
        token: &CancelToken,
        slack: Duration,
    ) -> Result<OwnedFrame, Loss> {
        if token.is_cancelled() {
            return Err(Loss::cancelled());
        }
        if let Some(ending) = self.ending() {
            return Err(Loss::of_ending(ending));
        }
        let (reply, answer) = oneshot::channel();
        // A spare waits until a round needs it.
        let limit = if encoded.is_join() { Duration::MAX } else { encoded.span + slack + THREAD_TIMEOUT };
        let submitted = Submitted { encoded, token: token.clone(), inbox, reply };
        self.send(Command::Call(Box::new(submitted)));
        match answer.recv_timeout(limit) {
            Ok(result) => result,
            Err(none) => Err(self.no_answer(none)),
        }
    }

    /// Makes the failure of a call that the thread did not answer: the session is over, or the thread hangs.
    pub(super) fn no_answer(&self, none: RecvTimeoutError) -> Loss {
        match (none, self.ending()) {
            (_, Some(ending)) => Loss::of_ending(ending),
            (RecvTimeoutError::Disconnected, None) => Loss::of(plain(ErrorKind::ServerGone)),
            (RecvTimeoutError::Timeout, None) => Loss::of(plain(ErrorKind::TimedOut)),
        }
    }
}

impl Drop for SessionThread {
    fn drop(&mut self) {
        self.begin_to_stop();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}
