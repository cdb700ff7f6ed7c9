//! Calls that a thread waits for, on a worker of any backend.

use super::{Begun, CallSpec, Called, GroupCallError, GroupResult, RpcWorker};
use crate::driver::calls::reentrancy::may_wait;
use rendezvous_core::driver::cancel::CancelGuard;
use rendezvous_core::driver::prelude::*;

/// Practically unlimited; the wait ends with the call's own deadline, or with the worker, or when its recipient is dropped.
const FOREVER: Duration = Duration::from_secs(1 << 31);

/// Pending call. Clones are of the same call, which is cancelled when the last of them is dropped before its end.
#[derive(Clone, Debug)]
pub struct PendingCall(Arc<Pending>);

#[derive(Debug)]
struct Pending {
    begun: Begun,
    outcome: Arc<Outcome>,
    clock: Clock,
    /// Deadline, if the backend does not check it.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Outcome {
    called: Called,
    state: Mutex<CallState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CallState {
    /// `None` before the end, and after the result was taken.
    result: Option<GroupResult>,
    has_ended: bool,
    /// Number of threads that wait. Without any, no wake-up is needed, which would be a system call.
    waiting: usize,
}

impl Outcome {
    /// Ends the call with this result, unless it has ended; returns whether it had not.
    fn end(&self, result: GroupResult) -> bool {
        let mut state = self.state.locked();
        if state.has_ended {
            return false;
        }
        (state.result, state.has_ended) = (Some(result), true);
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        true
    }
}

/// Recipient of the result, which the worker calls once. A call whose recipient is dropped before has failed.
#[derive(Debug)]
struct Recipient(Arc<Outcome>);

impl Drop for Recipient {
    fn drop(&mut self) {
        let has_ended = self.0.state.locked().has_ended;
        if !has_ended {
            self.0.end(Err(GroupCallError::NoResult { call: self.0.called.text() }));
        }
    }
}

impl PendingCall {
    /// The callee and the handler.
    pub fn called(&self) -> &Called {
        &self.0.outcome.called
    }

    /// Waits for the result. Where the thread may not wait ([`may_wait`]), a call that has not ended is given up. Of
    /// several clones, one gets the result.
    ///
    /// # Errors
    /// The call failed.
    pub fn wait(self) -> GroupResult {
        let result = self.look(FOREVER);
        result.unwrap_or_else(|| Err(self.without_result()))
    }

    /// Returns why an unlimited wait returned nothing.
    fn without_result(&self) -> GroupCallError {
        let call = self.0.outcome.called.text();
        if self.is_taken() { GroupCallError::NoResult { call } } else { GroupCallError::Reentrant { call } }
    }

    /// Returns the result if it is available within `timeout`. It is returned once, to one thread
    /// ([`PendingCall::is_taken`]). Where the thread may not wait ([`may_wait`]), the timeout is 0.
    pub fn look(&self, timeout: Duration) -> Option<GroupResult> {
        let Pending { outcome, clock, until, .. } = &*self.0;
        let timeout = if may_wait() { timeout } else { Duration::ZERO };
        let timeout = until.map_or(timeout, |until| timeout.min(until.since(clock.now())));
        let mut state = outcome.state.locked();
        if !state.has_ended && !timeout.is_zero() {
            state.waiting += 1;
            let waited = outcome.changed.wait_timeout_while(state, timeout, |state| !state.has_ended);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
        drop(state);
        self.0.look_at_deadline();
        outcome.state.locked().result.take()
    }

    /// Whether the result was taken.
    pub fn is_taken(&self) -> bool {
        let state = self.0.outcome.state.locked();
        state.has_ended && state.result.is_none()
    }

    /// Whether it has ended, also if its result was taken.
    pub fn has_ended(&self) -> bool {
        self.0.look_at_deadline();
        self.0.outcome.state.locked().has_ended
    }

    /// Cancels the call; returns true if it had not ended.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }
}

impl Pending {
    fn cancel(&self) -> bool {
        match &self.begun {
            Begun::Kept(canceller) => canceller.cancel(),
            Begun::Loose(_, wanted) => {
                wanted.give_up();
                self.outcome.end(Err(GroupCallError::Cancelled { call: self.outcome.called.text() }))
            }
        }
    }

    fn look_at_deadline(&self) {
        if let (Begun::Loose(timeout, wanted), Some(until)) = (&self.begun, self.until)
            && until <= self.clock.now()
        {
            wanted.give_up();
            let elapsed = timeout.unwrap_or_default();
            self.outcome.end(Err(GroupCallError::Late { call: self.outcome.called.text(), elapsed }));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let has_ended = self.outcome.state.locked().has_ended;
        if !has_ended {
            self.cancel();
        }
    }
}

impl dyn RpcWorker {
    /// Makes a call without waiting for its end.
    ///
    /// # Errors
    /// It was not made.
    pub fn start_call(&self, call: CallSpec<'_>) -> Result<PendingCall, GroupCallError> {
        let (state, changed, clock) = (Mutex::default(), Condvar::new(), Clock::new());
        let outcome = Arc::new(Outcome { called: Called::of(&call), state, changed });
        let recipient = Recipient(Arc::clone(&outcome));
        let begun = self.begin_call(call, Box::new(move |result| _ = recipient.0.end(result)))?;
        let until = match begun {
            Begun::Loose(Some(timeout), _) => Some(clock.now() + timeout),
            Begun::Loose(None, _) | Begun::Kept(_) => None,
        };
        Ok(PendingCall(Arc::new(Pending { begun, outcome, clock, until })))
    }

    /// Makes a call and waits for the result, until `token` is cancelled. Refused in inline handlers and callbacks, which
    /// may not wait.
    ///
    /// # Errors
    /// The call failed.
    pub fn call(&self, token: &CancelToken, call: CallSpec<'_>) -> GroupResult {
        if let Some(tcp) = self.tcp() {
            return tcp.call_unless(token, call);
        }
        if !may_wait() {
            return Err(GroupCallError::Reentrant { call: Called::of(&call).text() });
        }
        let pending = self.start_call(call)?;
        let cancelled = pending.clone();
        let guard = token.on_cancel(move || _ = cancelled.cancel());
        let result = pending.look(FOREVER);
        CancelGuard::let_go(guard);
        result.unwrap_or_else(|| Err(pending.without_result()))
    }
}
