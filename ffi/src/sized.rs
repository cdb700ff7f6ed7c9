//! Structs that grow: the first field has the size of the caller's version. Fields are only ever appended,
//! so a program that was compiled with an older header continues to work, and so does one with a newer
//! header.

use crate::argument::{invalid, is_null};
use crate::fault::Fault;

/// Struct of the C API that begins with `struct_size`.
pub(crate) trait Growing: Copy {
    /// Size in the first published header, in bytes.
    const FIRST_SIZE: usize;
}

/// Says of structs how large they are in the first published header, in bytes.
macro_rules! growing {
    ($($name:ident: $first_size:expr),+) => {
        $(impl $crate::sized::Growing for $name {
            const FIRST_SIZE: usize = $first_size;
        })+
    };
}
pub(crate) use growing;

/// Returns the size of the caller's version, which is at least that of the first published one.
///
/// # Errors
///
/// The pointer is NULL, or the size is too small.
unsafe fn given_size<T>(pointer: *const T, first_size: usize, name: &str) -> Result<usize, Fault> {
    if pointer.is_null() {
        return Err(is_null(name));
    }
    // SAFETY: the caller guarantees that `struct_size`, the first field, is readable. Nothing else is accessed.
    let given = unsafe { pointer.cast::<u32>().read() } as usize;
    if given < first_size {
        return Err(invalid(format!("`{name}.struct_size` is {given}; it must be at least {first_size}")));
    }
    Ok(given)
}

/// Reads the caller's version of a struct; fields that it does not have are zero.
///
/// # Errors
///
/// The pointer is NULL, or the size is too small.
pub(crate) unsafe fn get<T: Growing + Default>(pointer: *const T, name: &str) -> Result<T, Fault> {
    let mut value = T::default();
    // SAFETY: the caller guarantees `given` readable bytes of the struct that the header names.
    unsafe {
        let bytes = given_size(pointer, T::FIRST_SIZE, name)?.min(size_of::<T>());
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast(), bytes);
    }
    Ok(value)
}

/// Does the same for options, where NULL stands for the defaults.
///
/// # Errors
///
/// The size is too small.
pub(crate) unsafe fn get_or_default<T: Growing + Default>(pointer: *const T, name: &str) -> Result<T, Fault> {
    // SAFETY: passed on unchanged.
    if pointer.is_null() { Ok(T::default()) } else { unsafe { get(pointer, name) } }
}

/// Value that a function of the C API writes to its caller.
pub(crate) trait Output: Copy {
    /// Size of a struct that grows in the first published header, in bytes.
    const FIRST_SIZE: Option<usize> = None;
}

impl<T: Growing> Output for T {
    const FIRST_SIZE: Option<usize> = Some(T::FIRST_SIZE);
}
impl Output for u16 {}
impl Output for i32 {}
impl Output for i64 {}
impl<T> Output for *const T {}
impl<T> Output for *mut T {}

/// Output pointer that was checked before the operation began.
pub(crate) struct OutPointer<T> {
    pointer: *mut T,
    /// Number of bytes that the caller's version has.
    given: usize,
}

/// Checks an output pointer.
///
/// # Errors
///
/// The pointer is NULL, or the size of a struct that grows is too small.
pub(crate) unsafe fn out_pointer<T: Output>(pointer: *mut T, name: &str) -> Result<OutPointer<T>, Fault> {
    let given = match T::FIRST_SIZE {
        // SAFETY: the caller of the C function promises that a non-NULL struct has set its size.
        Some(first_size) => unsafe { given_size(pointer, first_size, name) }?,
        None if pointer.is_null() => return Err(is_null(name)),
        None => size_of::<T>(),
    };
    Ok(OutPointer { pointer, given })
}

impl<T: Output> OutPointer<T> {
    /// Writes the value. In a struct that grows, `struct_size` becomes the number of bytes filled: fields that the
    /// caller's version does not have are not written.
    pub(crate) unsafe fn put(self, value: T) {
        let bytes = self.given.min(size_of::<T>());
        // SAFETY: the caller guarantees `given` writable bytes, and `value` has `size_of::<T>()`.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), self.pointer.cast(), bytes);
            if T::FIRST_SIZE.is_some() {
                self.pointer.cast::<u32>().write(u32::try_from(bytes).unwrap_or(u32::MAX));
            }
        }
    }
}

/// Writes a value to an output that may be NULL.
pub(crate) unsafe fn put_unless_null<T: Output>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: the caller of the C function promises that a non-NULL output can be written.
        unsafe { pointer.write(value) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Struct as in a later header.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Grown {
        struct_size: u32,
        old: u32,
        new: u64,
    }
    growing!(Grown: 8);

    /// Struct as in the first header.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct First {
        struct_size: u32,
        old: u32,
    }

    #[test]
    fn programs_of_older_and_newer_headers_go_on_working() {
        let ours = Grown { struct_size: 0, old: 1, new: 2 };
        // An older program's struct is smaller: the bytes after it are not written.
        let mut older = [First { struct_size: 8, old: 0 }, First { struct_size: 77, old: 78 }];
        let index: *mut Grown = older.as_mut_ptr().cast();
        // SAFETY: the memory has as many bytes as `struct_size` says.
        unsafe {
            out_pointer(index, "x").expect("large enough").put(ours);
            assert_eq!(older, [First { struct_size: 8, old: 1 }, First { struct_size: 77, old: 78 }]);
            let read = get::<Grown>(older.as_ptr().cast(), "x").expect("large enough");
            assert_eq!(read, Grown { struct_size: 8, old: 1, new: 0 });
        }
        // A newer program learns how many bytes were filled.
        let mut newer = (Grown { struct_size: 24, old: 0, new: 0 }, 79_u64);
        // SAFETY: as above.
        unsafe { out_pointer((&raw mut newer).cast::<Grown>(), "x").expect("large enough").put(ours) };
        assert_eq!(newer, (Grown { struct_size: 16, ..ours }, 79));
        // SAFETY: as above; NULL is refused.
        unsafe {
            let small = Grown { struct_size: 7, ..ours };
            assert!(get(&raw const small, "x").is_err());
            assert!(get(std::ptr::null::<Grown>(), "x").is_err());
            assert!(out_pointer(std::ptr::null_mut::<Grown>(), "x").is_err());
            assert!(out_pointer(std::ptr::null_mut::<i32>(), "x").is_err());
        }
    }
}
