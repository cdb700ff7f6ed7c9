//! Bytes that the library hands out: one reusable buffer, one reusable list.

use crate::guard;
use std::ptr::null;

/// Holds a value that an operation read. Make one, pass it to as many calls as you like; each replaces its
/// content and reuses its memory. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_buffer {
    bytes: Vec<u8>,
    /// Where the next value comes together: a failure leaves the last one as it is.
    spare: Vec<u8>,
}

/// More than this is not kept only to be used again.
const SPARE_BYTES_MAX: usize = 1 << 20;

impl rdzv_buffer {
    /// Replaces the content with what `read` reads, if it succeeds.
    pub(crate) fn fill<E>(&mut self, read: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.spare.clear();
        let result = read(&mut self.spare);
        if result.is_ok() {
            std::mem::swap(&mut self.bytes, &mut self.spare);
        }
        if self.spare.capacity() > SPARE_BYTES_MAX {
            self.spare = Vec::new();
        }
        result
    }

    /// Replaces the content with these bytes, which are not copied.
    pub(crate) fn take(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }
}

/// An empty buffer, yours until `rdzv_buffer_free`. Never NULL: a process without memory is aborted.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_buffer_new() -> *mut rdzv_buffer {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a buffer. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_free(buffer: *mut rdzv_buffer) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(buffer) };
}

/// The first byte; valid until the next call that fills or frees the buffer. Not NUL-terminated. NULL for
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_data(buffer: *const rdzv_buffer) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(buffer, null(), |buffer| buffer.bytes.as_ptr()) }
}

/// How many bytes. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_len(buffer: *const rdzv_buffer) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(buffer, 0, |buffer| buffer.bytes.len()) }
}

/// Holds several values or keys that an operation read. Reusable, like `rdzv_buffer`. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_list {
    pub(crate) items: Vec<Vec<u8>>,
}

/// An empty list, yours until `rdzv_list_free`. Never NULL: a process without memory is aborted.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_list_new() -> *mut rdzv_list {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a list. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_free(list: *mut rdzv_list) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(list) };
}

/// How many items. 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_count(list: *const rdzv_list) -> usize {
    // SAFETY: as the header wants it.
    unsafe { guard::read(list, 0, |list| list.items.len()) }
}

/// The item at `index` (from 0), its length in `*len` unless `len` is NULL; NULL beyond the last. Valid
/// until the next call that fills or frees the list. Not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_item(list: *const rdzv_list, index: usize, len: *mut usize) -> *const u8 {
    // SAFETY: as the header wants it.
    unsafe { guard::read(list, null(), |list| item(&list.items, index, len)) }
}

/// One of several byte strings, for C: NULL beyond the last.
pub(crate) fn item(items: &[Vec<u8>], index: usize, len: *mut usize) -> *const u8 {
    items.get(index).map_or_else(null, |item| borrowed(item, len))
}

/// Bytes that a handle keeps, for C.
pub(crate) fn borrowed(bytes: &[u8], len: *mut usize) -> *const u8 {
    if !len.is_null() {
        // SAFETY: the caller of the C function promises that a non-NULL output can be written.
        unsafe { len.write(bytes.len()) };
    }
    bytes.as_ptr()
}
