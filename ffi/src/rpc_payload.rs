//! Payloads that the library borrows from the program.

use crate::prelude::*;
use rendezvous_rpc::driver::calls::{Payload, reentrancy};

/// Bytes of the program that the library reads in place and releases when it no longer needs them.
struct Borrowed {
    data: *const u8,
    len: usize,
    release: unsafe extern "C" fn(user_data: *mut c_void),
    user_data: *mut c_void,
}

// SAFETY: the header says that the bytes are read and released on any thread.
unsafe impl Send for Borrowed {}
// SAFETY: as above; no thread changes them.
unsafe impl Sync for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the program keeps the bytes valid until `release` is called.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: the function was supplied for this and is called once.
        reentrancy::release(|| unsafe { (self.release)(self.user_data) });
    }
}

/// Converts bytes from C: copied, or read in place if there is a `release`, which is called in every case.
pub(crate) unsafe fn payload(
    (data, len): (*const u8, usize),
    release: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
    user_data: *mut c_void,
) -> Result<Payload, Fault> {
    let borrowed = release.map(|release| Borrowed { data, len, release, user_data });
    // SAFETY: NULL or valid, as the header requires.
    let copied = unsafe { bytes(data, len, "payload") }?;
    Ok(match borrowed {
        Some(borrowed) => Payload::foreign(Arc::new(borrowed)),
        None => copied.into(),
    })
}
