//! Packets between an agent and its guard. Each direction has one fixed size. They are sent over a socket pair of type
//! `SOCK_SEQPACKET`, with descriptors beside them.
//!
//! Both ends run the same program, so packets have the memory layout of their structures.

use super::system::{check, close, errno};
use core::mem::{MaybeUninit, size_of};
use libc::{c_int, c_uint, c_void};
use std::os::fd::RawFd;

/// Type for which every bit pattern is valid.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and every bit pattern is a value of it.
pub(crate) unsafe trait Plain: Copy {}

/// Kinds of requests.
pub(crate) mod request {
    pub(crate) const START_PROGRAM: u32 = 1;
    pub(crate) const START_FUNCTION: u32 = 2;
    pub(crate) const SIGNAL: u32 = 3;
    pub(crate) const PASS: u32 = 4;
    pub(crate) const KILL: u32 = 5;
    pub(crate) const SURVIVORS: u32 = 6;
}

/// Kinds of standard streams of a worker.
pub(crate) mod stdio {
    pub(crate) const INHERIT: u8 = 0;
    pub(crate) const NULL: u8 = 1;
    /// A descriptor sent with the packet.
    pub(crate) const CARRIED: u8 = 2;
}

/// Packet from the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// One of [`request`].
    pub(crate) kind: u32,
    pub(crate) worker: u32,
    pub(crate) signal: c_int,
    /// Standard input, output and error, each one of [`stdio`].
    pub(crate) stdio: [u8; 3],
    /// Number of the guard that the request is for, modulo 256.
    pub(crate) generation: u8,
    /// Length of the block, whose file is the first descriptor.
    pub(crate) block_bytes: u64,
    /// Signals that are blocked in the worker at its start; signal 1 is bit 0.
    pub(crate) blocked: u64,
}

// SAFETY: numbers only; 3 x 4 bytes, 4 x 1 and 2 x 8 leave no gap.
unsafe impl Plain for Request {}

/// Kinds of reports.
pub(crate) mod report {
    pub(crate) const READY: u32 = 1;
    pub(crate) const NOT_READY: u32 = 2;
    pub(crate) const STARTED: u32 = 3;
    pub(crate) const NOT_STARTED: u32 = 4;
    pub(crate) const EXITED: u32 = 5;
    pub(crate) const EMPTY: u32 = 6;
    pub(crate) const SURVIVORS: u32 = 7;
    /// From the keeper: the guard was ended by the signal `value`. Another one follows.
    pub(crate) const LOST: u32 = 8;
}

/// Maximum number of survivors that a report names.
pub(crate) const NAMED_MAX: usize = 16;

/// Packet from the guard or the keeper.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// One of [`report`].
    pub(crate) kind: u32,
    pub(crate) worker: u32,
    pub(crate) pid: c_int,
    /// An exit code, a signal, an error number, or the number of survivors.
    pub(crate) value: c_int,
    /// `CLD_EXITED` and the like, or the step that failed.
    pub(crate) how: c_int,
    /// For an exit: nonzero if it had begun before a stop was requested.
    pub(crate) was_ending: c_int,
    /// Monotonic time in nanoseconds. For an exit: when it began, as far as that was observed.
    pub(crate) at_ns: u64,
    /// Number of requests that the guard had received.
    pub(crate) seen: u64,
    pub(crate) pids: [c_int; NAMED_MAX],
}

// SAFETY: numbers only; 6 x 4, 2 x 8 and 16 x 4 bytes leave no gap.
unsafe impl Plain for Report {}

/// Maximum number of descriptors of one packet: a block, three standard streams, a file.
pub(crate) const CARRIED_MAX: usize = 5;

/// Size of the control buffer for them, in words for its alignment.
const CONTROL_WORDS: usize = 6;
const CONTROL_BYTES: usize = CONTROL_WORDS * size_of::<u64>();

/// Descriptors received with a packet. Those that are not taken are closed.
#[derive(Debug)]
pub(crate) struct Carried {
    fds: [RawFd; CARRIED_MAX],
    /// Whether descriptors are missing because this process has too many.
    pub(crate) is_cut: bool,
}

impl Carried {
    pub(crate) const fn none() -> Self {
        Self { fds: [-1; CARRIED_MAX], is_cut: false }
    }

    /// Returns the descriptor at an index, which remains owned by this value; -1 if there is none.
    pub(crate) fn at(&self, index: usize) -> RawFd {
        self.fds.get(index).copied().unwrap_or(-1)
    }

    /// Returns the descriptor at an index and passes its ownership to the caller.
    pub(crate) fn take(&mut self, index: usize) -> Option<RawFd> {
        let fd = self.fds.get_mut(index)?;
        let taken = core::mem::replace(fd, -1);
        (taken >= 0).then_some(taken)
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        for fd in self.fds.into_iter().filter(|fd| *fd >= 0) {
            close(fd);
        }
    }
}

/// Sends a packet; never blocks.
///
/// # Errors
/// The error number; `EAGAIN` if the socket is full.
pub(crate) fn send<T: Plain>(socket: RawFd, packet: &T, carried: &[RawFd]) -> Result<(), c_int> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut part =
        libc::iovec { iov_base: core::ptr::from_ref(packet).cast_mut().cast(), iov_len: size_of::<T>() };
    let mut message = empty_message(&mut part);
    if !carried.is_empty() {
        let carried = carried.get(..CARRIED_MAX.min(carried.len())).unwrap_or(carried);
        let bytes = c_uint::try_from(size_of_val(carried)).unwrap_or(0);
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the control buffer has room for `CARRIED_MAX` descriptors and is aligned for a header; so the first
        // header and its data lie within it.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            core::ptr::copy_nonoverlapping(
                carried.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                bytes as usize,
            );
        }
    }
    loop {
        // SAFETY: the message points to a packet and to a control buffer that live during the call.
        let sent =
            unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        match sent {
            0.. => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
}

/// Receives a packet; never blocks. `None` if the other end is closed.
///
/// # Errors
/// The error number; `EAGAIN` if there is no packet.
pub(crate) fn receive<T: Plain>(socket: RawFd) -> Result<Option<(T, Carried)>, c_int> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut packet = MaybeUninit::<T>::zeroed();
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: size_of::<T>() };
    let mut message = empty_message(&mut part);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let taken = loop {
        // SAFETY: the message points to room for a packet and to a control buffer that live during the call.
        let taken =
            unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) };
        match check(c_int::try_from(taken).unwrap_or(c_int::MAX)) {
            Ok(taken) => break taken,
            Err(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    };
    if taken == 0 {
        return Ok(None);
    }
    let mut carried = Carried::none();
    carried.is_cut = message.msg_flags & libc::MSG_CTRUNC != 0;
    // SAFETY: the kernel filled the control buffer and set its length; headers and their data lie within it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let bytes = bytes.min(size_of_val(&carried.fds));
            core::ptr::copy_nonoverlapping(
                libc::CMSG_DATA(header),
                carried.fds.as_mut_ptr().cast::<u8>(),
                bytes,
            );
        }
    }
    // SAFETY: the memory was zeroed and partly overwritten, and every bit pattern is a value of a `Plain` type.
    Ok(Some((unsafe { packet.assume_init() }, carried)))
}

fn empty_message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a message of zeros is valid and empty.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = core::ptr::from_mut(part);
    message.msg_iovlen = 1;
    message
}

/// Returns an untyped pointer for a system call.
pub(crate) fn pointer<T>(to: &mut T) -> *mut c_void {
    core::ptr::from_mut(to).cast()
}
