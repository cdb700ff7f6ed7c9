//! Who is told what came of a call.

use crate::connection::CallError;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use rendezvous_core::driver::reply::Reply;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of a call.
pub type CallResult = Result<Vec<u8>, CallError>;

/// Lives as long as a call is under way, and hears first what came of it.
pub(in crate::driver) trait CallGuard: fmt::Debug + Send {
    fn ended(&self, result: &CallResult);
}

/// The mark of a call, where somebody wants to know how long it is under way.
pub(in crate::driver) type Mark = Option<Box<dyn CallGuard>>;

/// Who is told what came of a call.
pub(super) enum Completion {
    Waiter(Reply<CallResult>, Mark),
    Callback(Box<dyn FnOnce(CallResult) + Send>),
    Unowned(Mark),
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

impl Completion {
    pub(super) fn finish(self, result: CallResult) {
        match self {
            Self::Waiter(reply, mark) => {
                if let Some(mark) = &mark {
                    mark.ended(&result);
                }
                reply.answer(result);
                drop(mark);
            }
            // One that panics has been told; others of the same thread's are not to suffer for it.
            Self::Callback(callback) => drop(catch_unwind(AssertUnwindSafe(|| callback(result)))),
            Self::Unowned(mark) => _ = mark.map(|mark| mark.ended(&result)),
        }
    }
}
