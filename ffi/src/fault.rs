//! Failures of calls.

use crate::bytes::rdzv_bytes;
use crate::status::rdzv_status;
use rendezvous_core::error::OneLine;
use std::ffi::CString;
use std::fmt::Write as _;
use std::ops::Deref;

/// Failure before it is converted for C. Boxed, because the result of every function of the C API carries
/// one.
#[derive(Clone, Debug)]
pub(crate) struct Fault(Box<Details>);

/// Details of a failure.
#[derive(Clone, Debug, Default)]
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

    /// Returns a fault with the number of a system call's error.
    pub(crate) fn os(status: rdzv_status, message: impl Into<String>, cause: &std::io::Error) -> Self {
        Self::of(status, message.into()).with_os_error(cause.raw_os_error().unwrap_or(0))
    }

    pub(crate) fn with_os_error(self, os_error: i32) -> Self {
        self.with(|details| details.os_error = os_error)
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

/// Says how errors of the library become faults, so that `?` converts them.
macro_rules! faults {
    ($($error:ty => $convert:expr,)+) => {
        $(impl From<$error> for $crate::fault::Fault {
            fn from(error: $error) -> Self {
                $convert(&error)
            }
        })+
    };
}
pub(crate) use faults;

impl Deref for Fault {
    type Target = Details;

    fn deref(&self) -> &Details {
        &self.0
    }
}

/// Converts text for C; a NUL in it becomes `\0`.
pub(crate) fn c_string(text: impl AsRef<str>) -> CString {
    CString::new(text.as_ref().replace('\0', "\\0")).unwrap_or_default()
}

/// Details of a failed call. The function that receives one owns it and frees it with `rdzv_error_free`.
/// Any thread may read it. Strings and lists that it returns are valid until it is freed.
#[derive(Debug)]
pub struct rdzv_error {
    /// Its texts end with a NUL.
    pub(crate) details: Details,
    pub(crate) keys: Vec<rdzv_bytes>,
    pub(crate) nodes: Vec<rdzv_bytes>,
}
// SAFETY: the lists point into `details`, which does not change.
unsafe impl Send for rdzv_error {}
// SAFETY: as above.
unsafe impl Sync for rdzv_error {}

/// Returns a text as one line: names, keys and messages of peers must not begin another one.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 1);
    // Writing into a string cannot fail.
    let _ = OneLine(&mut line).write_str(text);
    line
}

impl rdzv_error {
    pub(crate) const fn status(&self) -> rdzv_status {
        self.details.status
    }

    pub(crate) fn new(fault: Fault) -> Self {
        let mut details = *fault.0;
        details.message = one_line(&details.message);
        let Details { message, operation, peer, phase, cause, .. } = &mut details;
        for text in [message, operation, peer, phase, cause] {
            if text.contains('\0') {
                *text = text.replace('\0', "\\0");
            }
            text.push('\0');
        }
        Self::of(details)
    }

    fn of(details: Details) -> Self {
        Self { keys: rdzv_bytes::list(&details.keys), nodes: rdzv_bytes::list(&details.nodes), details }
    }
}

impl Clone for rdzv_error {
    fn clone(&self) -> Self {
        Self::of(self.details.clone())
    }
}
