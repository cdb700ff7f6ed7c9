//! Description of a worker in one piece of memory: its path, arguments, environment and directory.
//!
//! The agent writes it into a sealed, unnamed file. The guard maps a private copy and replaces the offsets in it with
//! addresses, so that it can be passed to `execve` directly.

use super::system::errno;
use core::mem::size_of;
use libc::{c_char, c_int};
use std::os::fd::RawFd;

/// Header of a block. Offsets count from its start; 0 means absent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) path: u64,
    pub(crate) directory: u64,
    /// Offset of a list of offsets, terminated by 0.
    pub(crate) arguments: u64,
    /// Offset of a list of offsets, terminated by 0.
    pub(crate) environment: u64,
}

// SAFETY: four numbers of 8 bytes.
unsafe impl super::packet::Plain for Head {}

/// A mapped block.
#[derive(Debug)]
pub(super) struct Block {
    start: *mut u8,
    bytes: usize,
    head: Head,
}

impl Block {
    /// Maps the file, and replaces its offsets with addresses.
    pub(super) fn map(file: RawFd, bytes: u64) -> Result<Self, c_int> {
        let bytes = usize::try_from(bytes).map_err(|_| libc::EINVAL)?;
        if bytes < size_of::<Head>() {
            return Err(libc::EINVAL);
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory at an address that the system chooses. The file is sealed, so its size does not change.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, libc::MAP_PRIVATE, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(errno());
        }
        // SAFETY: the memory has room for a header, and begins at a page.
        let head = unsafe { start.cast::<Head>().read() };
        let block = Self { start: start.cast(), bytes, head };
        let texts_end = {
            // SAFETY: the memory is valid for reading, and not written to meanwhile.
            let whole = unsafe { core::slice::from_raw_parts(block.start, bytes) };
            // Every string ends within the block if its last byte is zero.
            whole.last() == Some(&0)
        };
        let is_inside = [head.path, head.directory].into_iter().all(|offset| offset < bytes as u64);
        if !(texts_end && is_inside) {
            return Err(libc::EINVAL);
        }
        block.address_list(head.arguments)?;
        block.address_list(head.environment)?;
        Ok(block)
    }

    /// Replaces a list of offsets with addresses.
    fn address_list(&self, offset: u64) -> Result<(), c_int> {
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        if offset == 0 || !offset.is_multiple_of(size_of::<u64>()) {
            return Err(libc::EINVAL);
        }
        let last = self.bytes.saturating_sub(size_of::<u64>());
        for at in (offset..=last).step_by(size_of::<u64>()) {
            // SAFETY: eight bytes within the block, aligned.
            let pointer = unsafe { self.start.add(at).cast::<u64>() };
            // SAFETY: as above.
            match unsafe { pointer.read() } {
                0 => return Ok(()),
                text if text < self.bytes as u64 => {
                    let address = (self.start.expose_provenance() as u64).wrapping_add(text);
                    // SAFETY: as above; the mapping is private to this process.
                    unsafe { pointer.write(address) };
                }
                _ => return Err(libc::EINVAL),
            }
        }
        Err(libc::EINVAL)
    }

    fn text(&self, offset: u64) -> *const c_char {
        self.start.wrapping_add(usize::try_from(offset).unwrap_or(0)).cast()
    }

    pub(super) fn path(&self) -> *const c_char {
        self.text(self.head.path)
    }

    pub(super) fn directory(&self) -> Option<*const c_char> {
        (self.head.directory != 0).then(|| self.text(self.head.directory))
    }

    pub(super) fn arguments(&self) -> *const *const c_char {
        self.text(self.head.arguments).cast()
    }

    pub(super) fn environment(&self) -> *const *const c_char {
        self.text(self.head.environment).cast()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `map`. Workers that were started from it have their own copies by now.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
