//! Failures of calls.

use crate::status::rdzv_status;
use rendezvous_core::error::OneLine;
use std::ffi::CString;
use std::fmt::Write as _;
use std::ops::Deref;

/// A failure on its way to C. Behind a pointer, since every function of this border may have to hand one through.
#[derive(Debug)]
pub(crate) struct Fault(Box<Details>);

/// What is known of a failure.
#[derive(Debug, Default)]
pub(crate) struct Details {
    pub(crate) status: rdzv_status,
    pub(crate) message: String,
    pub(crate) operation: String,
    pub(crate) peer: String,
    pub(crate) phase: String,
    pub(crate) elapsed_ms: i64,
    pub(crate) os_error: i32,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) cause: String,
    pub(crate) ranks: Vec<i64>,
    pub(crate) nodes: Vec<Vec<u8>>,
    pub(crate) revision: u64,
    pub(crate) generation: u64,
}

impl Fault {
    #[cold]
    #[inline(never)]
    fn of(status: rdzv_status, message: String) -> Self {
        Self(Box::new(Details { status, message, ..Details::default() }))
    }

    pub(crate) fn new(status: rdzv_status, message: impl Into<String>) -> Self {
        Self::of(status, message.into())
    }

    pub(crate) fn during(self, operation: &str) -> Self {
        self.with(|known| known.operation = operation.into())
    }

    /// The same with more that is known.
    pub(crate) fn with(mut self, notify: impl FnOnce(&mut Details)) -> Self {
        notify(&mut self.0);
        self
    }
}

impl Deref for Fault {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

/// The details of a failed call. Whoever receives one owns it and frees it with `rdzv_error_free`. Any thread
/// may read it. Strings that it hands out live as long as it does.
#[derive(Clone, Debug)]
pub struct rdzv_error {
    pub(crate) status: rdzv_status,
    pub(crate) message: CString,
    pub(crate) operation: CString,
    pub(crate) peer: CString,
    pub(crate) phase: CString,
    pub(crate) elapsed_ms: i64,
    pub(crate) os_error: i32,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) cause: CString,
    pub(crate) ranks: Vec<i64>,
    pub(crate) nodes: Vec<Vec<u8>>,
    pub(crate) revision: u64,
    pub(crate) generation: u64,
}

impl rdzv_error {
    pub(crate) const fn status(&self) -> rdzv_status {
        self.status
    }

    pub(crate) fn new(fault: Fault) -> Self {
        let fault = *fault.0;
        let text = |text: String| CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        let mut message = String::with_capacity(fault.message.len());
        // Writing into a string cannot fail.
        let _ = OneLine(&mut message).write_str(&fault.message);
        Self {
            status: fault.status,
            message: text(message),
            operation: text(fault.operation),
            peer: text(fault.peer),
            phase: text(fault.phase),
            elapsed_ms: fault.elapsed_ms,
            os_error: fault.os_error,
            keys: fault.keys,
            cause: text(fault.cause),
            ranks: fault.ranks,
            nodes: fault.nodes,
            revision: fault.revision,
            generation: fault.generation,
        }
    }
}
