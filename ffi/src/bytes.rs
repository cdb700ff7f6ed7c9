//! Byte strings as arguments.

/// Bytes that the caller owns. `data` may be NULL if `len` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_bytes {
    /// First byte.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

impl rdzv_bytes {
    /// Returns bytes that the library owns, for C.
    pub(crate) fn of(bytes: &(impl AsRef<[u8]> + ?Sized)) -> Self {
        let bytes = bytes.as_ref();
        Self { data: bytes.as_ptr(), len: bytes.len() }
    }

    /// Does the same for bytes that may be absent.
    pub(crate) fn of_option(bytes: Option<&(impl AsRef<[u8]> + ?Sized)>) -> Self {
        bytes.map_or_else(Self::default, Self::of)
    }

    /// Returns a list of byte strings that the library owns, for C.
    pub(crate) fn list(items: &[Vec<u8>]) -> Vec<Self> {
        items.iter().map(Self::of).collect()
    }
}
