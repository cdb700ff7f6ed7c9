//! Completion of calls.

use crate::connection::CallError;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a call.
pub type CallResult = Result<Vec<u8>, CallError>;

/// Guard that lives as long as its call, and is notified of the result first.
pub(in crate::driver) trait CallGuard: Send {
    fn ended(&self, result: &CallResult);
}

impl fmt::Debug for dyn CallGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallGuard")
    }
}

/// Guard of a call, if one is needed.
pub(in crate::driver) type Mark = Option<Box<dyn CallGuard>>;

/// Recipient of a call's result.
pub(super) enum Completion {
    Waiter(oneshot::Sender<CallResult>),
    Callback(Box<dyn FnOnce(CallResult) + Send>),
    Unowned(Mark),
}

opaque_debug!(Completion);

impl Completion {
    pub(super) fn finish(self, result: CallResult) {
        match self {
            Self::Waiter(reply) => drop(reply.send(result)),
            // A panic of a callback is caught, so that it does not affect the other calls of the thread.
            Self::Callback(callback) => drop(catch_unwind(AssertUnwindSafe(|| callback(result)))),
            Self::Unowned(mark) => _ = mark.map(|mark| mark.ended(&result)),
        }
    }
}
