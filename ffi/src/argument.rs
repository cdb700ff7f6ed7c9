//! Checks of arguments.
//!
//! All input from C is validated here before use.

pub use crate::bytes::rdzv_bytes;
use crate::fault::Fault;
use crate::status::{RDZV_INVALID_ARGUMENT, RDZV_LIMIT_EXCEEDED};
use std::ffi::{CStr, c_char};
use std::time::Duration;

/// Name and value, as NUL-terminated UTF-8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_pair {
    /// Name.
    pub name: *const c_char,
    /// Value.
    pub value: *const c_char,
}

pub(crate) fn invalid(message: impl ToString) -> Fault {
    Fault::new(RDZV_INVALID_ARGUMENT, message.to_string())
}

#[cold]
#[inline(never)]
pub(crate) fn is_null(name: &str) -> Fault {
    invalid(format!("`{name}` is NULL"))
}

/// Checks that a handle or struct is not NULL.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Fault> {
    // SAFETY: the caller of the C function promises that a non-NULL pointer is live.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// Checks that a handle that this call may change is not NULL.
pub(crate) unsafe fn reference_mut<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: the caller of the C function promises that a non-NULL pointer is live and not in use elsewhere.
    unsafe { pointer.as_mut() }.ok_or_else(|| is_null(name))
}

/// Returns `data[..len]`; NULL is allowed for an empty slice.
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

/// Returns the items of an array of byte strings.
#[inline(never)]
pub(crate) unsafe fn list<'a>(
    given: *const rdzv_bytes,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>, Fault> {
    // SAFETY: passed on unchanged; the caller of the C function promises the bytes of each item.
    unsafe { items(given, count, name)?.iter().map(|item| bytes(item.data, item.len, name)).collect() }
}

/// Returns an array, whose items are not checked yet.
pub(crate) unsafe fn items<'a, T>(items: *const T, count: usize, name: &str) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
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
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// Checks that an argument is UTF-8.
#[inline(never)]
pub(crate) unsafe fn text<'a>(data: *const u8, len: usize, name: &str) -> Result<&'a str, Fault> {
    // SAFETY: passed on unchanged.
    let bytes = unsafe { bytes(data, len, name) }?;
    std::str::from_utf8(bytes).map_err(|error| invalid(format!("`{name}` is not UTF-8: {error}")))
}

/// Returns the text of a NUL-terminated string; NULL is `None`.
pub(crate) unsafe fn c_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller of the C function promises that a non-NULL string ends with a NUL.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|error| invalid(format!("`{name}` is not UTF-8: {error}")))
}

/// Returns the strings of an array, which may be any bytes.
pub(crate) unsafe fn c_strings<'a>(
    given: *const *const c_char,
    count: usize,
    name: &str,
) -> Result<Vec<&'a CStr>, Fault> {
    let string = |(index, item): (usize, &*const c_char)| {
        if item.is_null() {
            return Err(invalid(format!("`{name}[{index}]` is NULL")));
        }
        // SAFETY: the caller of the C function promises NUL-terminated strings.
        Ok(unsafe { CStr::from_ptr(*item) })
    };
    // SAFETY: passed on unchanged.
    unsafe { items(given, count, name) }?.iter().enumerate().map(string).collect()
}

/// Returns the texts of an array.
pub(crate) unsafe fn c_texts<'a>(
    given: *const *const c_char,
    count: usize,
    name: &str,
) -> Result<Vec<&'a str>, Fault> {
    let utf_8 = |error| invalid(format!("`{name}` is not UTF-8: {error}"));
    // SAFETY: passed on unchanged.
    let strings = unsafe { c_strings(given, count, name) }?;
    strings.into_iter().map(|string| string.to_str().map_err(utf_8)).collect()
}

/// Returns the names and values of an array of pairs.
pub(crate) unsafe fn pairs<'a>(
    given: *const rdzv_pair,
    count: usize,
    name: &str,
) -> Result<Vec<(&'a str, &'a str)>, Fault> {
    // SAFETY: the caller of the C function promises NUL-terminated strings.
    let pair = |(index, of): (usize, &rdzv_pair)| unsafe {
        match (c_text(of.name, name)?, c_text(of.value, name)?) {
            (Some(of), Some(value)) => Ok((of, value)),
            _ => Err(invalid(format!("`{name}[{index}]` has a NULL"))),
        }
    };
    // SAFETY: passed on unchanged.
    unsafe { items(given, count, name) }?.iter().enumerate().map(pair).collect()
}

/// Converts a duration to milliseconds.
pub(crate) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Changes an option from its default to what the caller gave in milliseconds; 0 leaves it.
pub(crate) fn default_ms(option: &mut Duration, millis: i64, name: &str) -> Result<(), Fault> {
    if millis != 0 {
        *option = positive_ms(millis, name)?;
    }
    Ok(())
}

/// Converts milliseconds to a duration; the value must be above 0.
#[inline(never)]
pub(crate) fn positive_ms(millis: i64, name: &str) -> Result<Duration, Fault> {
    match u64::try_from(millis) {
        Ok(millis) if millis > 0 => Ok(Duration::from_millis(millis)),
        _ => Err(invalid(format!("`{name}` is {millis} ms; it must be above 0"))),
    }
}

/// Converts milliseconds to a duration; 0 is allowed.
pub(crate) fn zero_or_more_ms(millis: i64, name: &str) -> Result<Duration, Fault> {
    match millis {
        0 => Ok(Duration::ZERO),
        millis => positive_ms(millis, name),
    }
}

/// Checks a number of participants, which must be at least 1.
pub(crate) fn participants(world_size: i64) -> Result<i64, Fault> {
    match world_size {
        1.. => Ok(world_size),
        _ => Err(invalid(format!("`world_size` is {world_size}; it must be above 0"))),
    }
}
