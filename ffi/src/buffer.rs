//! Bytes that the library returns: a reusable buffer and a reusable list.

use crate::guard;
use std::ptr::null;

/// Buffer for a value that an operation reads. Create one and pass it to any number of calls; each call
/// replaces its content and reuses its memory. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_buffer {
    bytes: Vec<u8>,
    /// Next value while it is read; a failed read leaves `bytes` unchanged.
    spare: Vec<u8>,
}

/// Capacity above which the spare memory is released instead of reused, in bytes.
const SPARE_BYTES_MAX: usize = 1 << 20;

impl rdzv_buffer {
    /// Replaces the content with what `read` produces, if it succeeds.
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

    /// Replaces the content with these bytes without copying them.
    pub(crate) fn take(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Replaces the content and returns its address.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> *const u8 {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.bytes.as_ptr()
    }
}

/// Replaces the content of a buffer of the caller, which may be NULL. Returns the address of the bytes there; NULL for none.
pub(crate) unsafe fn fill_unless_null(
    buffer: *mut rdzv_buffer,
    bytes: Option<&(impl AsRef<[u8]> + ?Sized)>,
) -> *const u8 {
    let bytes = bytes.map(AsRef::as_ref);
    // SAFETY: the caller of the C function promises that a non-NULL buffer is valid and not in use elsewhere.
    let address = unsafe { buffer.as_mut() }.map(|buffer| buffer.put(bytes.unwrap_or_default()));
    address.filter(|_| bytes.is_some()).unwrap_or(null())
}

/// Replaces the content of a buffer of the caller, which may be NULL, without copying the bytes.
pub(crate) unsafe fn take_unless_null(buffer: *mut rdzv_buffer, bytes: Vec<u8>) {
    // SAFETY: as above.
    if let Some(buffer) = unsafe { buffer.as_mut() } {
        buffer.take(bytes);
    }
}

/// Creates an empty buffer; the caller frees it with `rdzv_buffer_free`. Never NULL: the process is aborted
/// if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_buffer_new() -> *mut rdzv_buffer {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a buffer. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_free(buffer: *mut rdzv_buffer) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(buffer) };
}

/// Returns a pointer to the first byte, valid until the next call that fills or frees the buffer. Not
/// NUL-terminated. NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_data(buffer: *const rdzv_buffer) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(buffer, null(), |buffer| buffer.bytes.as_ptr()) }
}

/// Returns the number of bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_buffer_len(buffer: *const rdzv_buffer) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(buffer, 0, |buffer| buffer.bytes.len()) }
}

/// List of values or keys that an operation reads. Reusable, like `rdzv_buffer`. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_list {
    pub(crate) items: Vec<Vec<u8>>,
}

/// Creates an empty list; the caller frees it with `rdzv_list_free`. Never NULL: the process is aborted if
/// it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_list_new() -> *mut rdzv_list {
    guard::quiet(std::ptr::null_mut(), || Box::into_raw(Box::default()))
}

/// Frees a list. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_free(list: *mut rdzv_list) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(list) };
}

/// Returns the number of items; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_count(list: *const rdzv_list) -> usize {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(list, 0, |list| list.items.len()) }
}

/// Returns the item at `index` (from 0) and writes its length to `*len` unless `len` is NULL; NULL if
/// `index` is out of range. Valid until the next call that fills or frees the list. Not NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_list_item(list: *const rdzv_list, index: usize, len: *mut usize) -> *const u8 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(list, null(), |list| item(&list.items, index, len)) }
}

/// Returns the byte string at `index` for C; NULL if `index` is out of range.
pub(crate) fn item(items: &[Vec<u8>], index: usize, len: *mut usize) -> *const u8 {
    items.get(index).map_or_else(null, |item| borrowed(item, len))
}

/// Returns bytes that a handle owns, for C.
pub(crate) fn borrowed(bytes: &[u8], len: *mut usize) -> *const u8 {
    if !len.is_null() {
        // SAFETY: the caller of the C function promises that a non-NULL output can be written.
        unsafe { len.write(bytes.len()) };
    }
    bytes.as_ptr()
}
