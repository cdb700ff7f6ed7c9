//! Structs that grow: the first field has the size of the caller's version. Fields are only ever appended,
//! so a program that was compiled with an older header continues to work, and so does one with a newer
//! header.

use crate::argument::invalid;
use crate::fault::Fault;

/// Returns the size of the caller's version, which is at least that of the first published one.
///
/// # Errors
///
/// The pointer is NULL, or the size is too small.
pub(crate) unsafe fn given_size<T>(pointer: *const T, first_size: usize, name: &str) -> Result<usize, Fault> {
    if pointer.is_null() {
        return Err(invalid(format!("`{name}` is NULL")));
    }
    // SAFETY: the caller guarantees that `struct_size`, the first field, is readable. Nothing else is accessed.
    let given = unsafe { pointer.cast::<u32>().read() } as usize;
    if given < first_size {
        return Err(invalid(format!("`{name}.struct_size` is {given}; it must be at least {first_size}")));
    }
    Ok(given)
}

/// Fills the fields that the caller's version has, and writes the number of bytes filled to its
/// `struct_size`.
pub(crate) unsafe fn put<T: Copy>(pointer: *mut T, given: usize, value: &T) {
    let bytes = given.min(size_of::<T>());
    // SAFETY: the caller guarantees `given` writable bytes, and `value` has `size_of::<T>()`.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), pointer.cast(), bytes);
        pointer.cast::<u32>().write(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// Reads the caller's version; fields that it does not have are as in `absent`.
pub(crate) unsafe fn get<T: Copy>(pointer: *const T, given: usize, absent: T) -> T {
    let mut value = absent;
    let bytes = given.min(size_of::<T>());
    // SAFETY: the caller guarantees `given` readable bytes of the struct that the header names.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast(), bytes) };
    value
}

/// Reads the caller's version of a struct for which zeroed memory is valid, as it is for numbers and pointers;
/// fields that the caller's version does not have are zero.
///
/// # Errors
///
/// The pointer is NULL, or the size is too small.
pub(crate) unsafe fn get_or_zero<T: Copy>(
    pointer: *const T,
    first_size: usize,
    name: &str,
) -> Result<T, Fault> {
    // SAFETY: passed on unchanged; the caller guarantees that zeroed memory is a `T`.
    unsafe { Ok(get(pointer, given_size(pointer, first_size, name)?, std::mem::zeroed())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Struct as in a later header.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Grown {
        struct_size: u32,
        old: u32,
        new: u64,
    }

    /// Struct as in the first header.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct First {
        struct_size: u32,
        old: u32,
    }

    #[test]
    fn programs_of_older_and_newer_headers_go_on_working() {
        let ours = Grown { struct_size: 16, old: 1, new: 2 };
        // An older program's struct is smaller: the bytes after it are not written.
        let mut older = [First { struct_size: 8, old: 0 }, First { struct_size: 77, old: 78 }];
        let index: *mut Grown = older.as_mut_ptr().cast();
        // SAFETY: the memory has as many bytes as `struct_size` says.
        unsafe {
            let given = given_size(index, 8, "x").expect("large enough");
            put(index, given, &ours);
            assert_eq!(older, [First { struct_size: 8, old: 1 }, First { struct_size: 77, old: 78 }]);
            let read = get(older.as_ptr().cast(), 8, Grown { struct_size: 0, old: 0, new: 9 });
            assert_eq!(read, Grown { struct_size: 8, old: 1, new: 9 });
        }
        // A newer program learns how many bytes were filled.
        let mut newer = (Grown { struct_size: 24, old: 0, new: 0 }, 79_u64);
        let index = (&raw mut newer).cast::<Grown>();
        // SAFETY: as above.
        unsafe { put(index, 24, &ours) };
        assert_eq!(newer, (ours, 79));
        // SAFETY: as above; NULL is refused.
        unsafe {
            assert!(given_size((&raw const newer).cast::<Grown>(), 17, "x").is_err());
            assert!(given_size(std::ptr::null::<Grown>(), 8, "x").is_err());
        }
    }
}
