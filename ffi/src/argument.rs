//! Byte strings as arguments.
//!
//! All that comes from C is checked here before it is believed.

use crate::fault::Fault;
use crate::status::{RDZV_INVALID_ARGUMENT, RDZV_LIMIT_EXCEEDED};
use std::time::Duration;

/// A run of bytes that the caller owns. `data` may be NULL when `len` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_bytes {
    /// The first byte.
    pub data: *const u8,
    /// How many bytes.
    pub len: usize,
}

pub(crate) fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(RDZV_INVALID_ARGUMENT, message)
}

#[cold]
#[inline(never)]
fn is_null(name: &str) -> Fault {
    invalid(format!("`{name}` is NULL"))
}

/// A handle or struct that must not be NULL.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller of the C function promises that a non-NULL pointer is live.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// The same, for a handle that this call may change.
pub(crate) unsafe fn reference_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller of the C function promises that a non-NULL pointer is live and not in use elsewhere.
    unsafe { pointer.as_mut() }.ok_or_else(|| is_null(name))
}

/// A place for a result: must not be NULL.
pub(crate) fn out_pointer<T>(pointer: *mut T, name: &str) -> Result<OutPointer<T>, Fault> {
    if pointer.is_null() { Err(is_null(name)) } else { Ok(OutPointer(pointer)) }
}

/// A place for a result, found to be there before anything is done.
pub(crate) struct OutPointer<T>(*mut T);

impl<T> OutPointer<T> {
    pub(crate) unsafe fn put(self, value: T) {
        // SAFETY: the caller of the C function promises that a non-NULL output can be written.
        unsafe { self.0.write(value) };
    }
}

/// `data[..len]`; NULL stands for no bytes.
#[inline(never)]
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize, name: &str) -> Result<&'a [u8], Fault> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid(format!("`{name}` is NULL, but its length is {len}"))),
        (false, len) if len > isize::MAX as usize => {
            Err(invalid(format!("`{name}` has an impossible length ({len} bytes)")))
        }
        // SAFETY: the caller of the C function promises `len` readable bytes.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// An array of byte runs.
#[inline(never)]
pub(crate) unsafe fn list<'a>(
    items: *const rdzv_bytes,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if items.is_null() {
        return Err(invalid(format!("`{name}` is NULL, but its count is {count}")));
    }
    let count_max = rendezvous_core::limits::KEYS_MAX;
    if count as u64 > count_max {
        let message = format!("`{name}` has {count} items, which is over the limit of {count_max}");
        return Err(Fault::new(RDZV_LIMIT_EXCEEDED, message));
    }
    // SAFETY: the caller of the C function promises `count` readable items.
    let items = unsafe { std::slice::from_raw_parts(items, count) };
    // SAFETY: as promised for each item.
    items.iter().map(|item| unsafe { bytes(item.data, item.len, name) }).collect()
}

/// UTF-8 text.
#[inline(never)]
pub(crate) unsafe fn text<'a>(data: *const u8, len: usize, name: &str) -> Result<&'a str, Fault> {
    // SAFETY: passed on as it came.
    let bytes = unsafe { bytes(data, len, name) }?;
    std::str::from_utf8(bytes).map_err(|error| invalid(format!("`{name}` is not UTF-8: {error}")))
}

/// A span that must be longer than zero.
#[inline(never)]
pub(crate) fn positive_ms(millis: i64, name: &str) -> Result<Duration, Fault> {
    match u64::try_from(millis) {
        Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
        _ => Err(invalid(format!("`{name}` is {millis} ms; it must be above 0"))),
    }
}

/// A span that may be zero.
pub(crate) fn zero_or_more_ms(millis: i64, name: &str) -> Result<Duration, Fault> {
    match millis {
        0 => Ok(Duration::ZERO),
        millis => positive_ms(millis, name),
    }
}

/// How many take part in something: one at least.
pub(crate) fn participants(world_size: i64) -> Result<i64, Fault> {
    match world_size {
        1.. => Ok(world_size),
        _ => Err(invalid(format!("`world_size` is {world_size}; it must be above 0"))),
    }
}
