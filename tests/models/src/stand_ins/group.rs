//! Calls and workers of a group, without callees and connections.

use crate::cancel::CancelToken;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub type GroupResult = Result<Vec<u8>, GroupCallError>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupCallError {
    Cancelled { call: Box<str> },
    Late { call: Box<str>, elapsed: Duration },
    NoResult { call: Box<str> },
    Reentrant { call: Box<str> },
}

pub struct CallSpec<'a> {
    pub handler: &'a str,
    pub timeout: Option<Duration>,
}

#[derive(Debug)]
pub struct Called(Box<str>);

impl Called {
    pub fn of(call: &CallSpec<'_>) -> Self {
        Self(call.handler.into())
    }

    pub fn text(&self) -> Box<str> {
        self.0.clone()
    }
}

pub type OnResult = Box<dyn FnOnce(GroupResult) + Send>;

#[derive(Debug)]
pub enum Begun {
    Kept(CallCanceller),
    Loose(Option<Duration>, Wanted),
}

/// Calls a function that cancels the call, and returns true if it had not ended.
pub struct CallCanceller(pub Box<dyn Fn() -> bool + Send + Sync>);

rendezvous_core::opaque::opaque_debug!(CallCanceller);

impl CallCanceller {
    pub fn cancel(&self) -> bool {
        self.0()
    }
}

#[derive(Clone, Debug)]
pub struct Wanted(Arc<AtomicBool>);

impl Wanted {
    pub fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub fn give_up(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub fn get(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// No worker of a model has the backend `tcp`.
pub struct RpcAgent;

impl RpcAgent {
    pub fn call_unless(&self, _: &CancelToken, _: CallSpec<'_>) -> GroupResult {
        unreachable!("no worker has this backend")
    }
}

pub trait RpcWorker: Send + Sync {
    fn begin_call(&self, call: CallSpec<'_>, on_result: OnResult) -> Result<Begun, GroupCallError>;

    fn tcp(&self) -> Option<&RpcAgent> {
        None
    }
}
