//! Failures of calls.

use crate::status::rdzv_status;
use rendezvous_core::error::OneLine;
use std::ffi::CString;
use std::fmt::Write as _;
use std::ops::Deref;

/// Failure before it is converted for C. Boxed, because the result of every function of the C API carries
/// one.
#[derive(Debug)]
pub(crate) struct Fault(Box<Details>);

/// Details of a failure.
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
        self.with(|details| details.operation = operation.into())
    }

    /// Returns the fault after `change` has added details.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Details)) -> Self {
        change(&mut self.0);
        self
    }
}

impl Deref for Fault {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

/// Details of a failed call. The function that receives one owns it and frees it with `rdzv_error_free`.
/// Any thread may read it. Strings that it returns are valid until it is freed.
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
