//! What an agent and its guard tell each other: packets of one size each way, over a pair of sockets that keeps their
//! bounds, with descriptors beside them.
//!
//! Both ends are one program, so the packets are its structures as they lie in memory.

use super::system::{check, close, errno};
use core::mem::{MaybeUninit, size_of};
use libc::{c_int, c_uint, c_void};
use std::os::fd::RawFd;

/// Memory that means something whatever its bytes are.
///
/// # Safety
/// The type is `repr(C)`, has no padding, and every pattern of bits is a value of it.
pub(crate) unsafe trait Plain: Copy {}

/// What a request wants.
pub(crate) mod request {
    pub(crate) const START_PROGRAM: u32 = 1;
    pub(crate) const START_FUNCTION: u32 = 2;
    pub(crate) const SIGNAL: u32 = 3;
    pub(crate) const PASS: u32 = 4;
    pub(crate) const KILL: u32 = 5;
    pub(crate) const SURVIVORS: u32 = 6;
}

/// What a standard stream of a worker is to be.
pub(crate) mod stdio {
    pub(crate) const INHERIT: u8 = 0;
    pub(crate) const NULL: u8 = 1;
    /// A descriptor that comes along.
    pub(crate) const CARRIED: u8 = 2;
}

/// From the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// One of [`request`].
    pub(crate) kind: u32,
    pub(crate) worker: u32,
    pub(crate) signal: c_int,
    /// Standard input, output and error: of [`stdio`].
    pub(crate) stdio: [u8; 3],
    /// Which of the guards it is for, one after the other.
    pub(crate) generation: u8,
    /// The length of the block that comes along as the first descriptor.
    pub(crate) block_bytes: u64,
    /// The signals that are blocked in the worker at its start, signal 1 being bit 0.
    pub(crate) blocked: u64,
}

// SAFETY: numbers only; 3 x 4 bytes, 4 x 1 and 2 x 8 leave no gap.
unsafe impl Plain for Request {}

/// What a report tells.
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

/// How many survivors a report names.
pub(crate) const NAMED_MAX: usize = 16;

/// From the guard.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    /// One of [`report`].
    pub(crate) kind: u32,
    pub(crate) worker: u32,
    pub(crate) pid: c_int,
    /// An exit code, a signal, an error number, or how many survivors there are.
    pub(crate) value: c_int,
    /// `CLD_EXITED` and the like, or the step that failed.
    pub(crate) how: c_int,
    /// Of an end: not 0 if it had begun before a stop was asked for.
    pub(crate) was_ending: c_int,
    /// The monotonic clock, in nanoseconds. Of an end: when it began, as far as that was seen.
    pub(crate) at_ns: u64,
    /// How many requests the guard had taken.
    pub(crate) seen: u64,
    pub(crate) pids: [c_int; NAMED_MAX],
}

// SAFETY: numbers only; 6 x 4, 2 x 8 and 16 x 4 bytes leave no gap.
unsafe impl Plain for Report {}

/// Descriptors that one packet carries at most: a block, three standard streams, a file.
pub(crate) const CARRIED_MAX: usize = 5;

/// Room for them in a message, aligned as the system wants it.
const CONTROL_WORDS: usize = 6;
const CONTROL_BYTES: usize = CONTROL_WORDS * size_of::<u64>();

/// Descriptors that came with a packet. Those that nobody takes are closed.
#[derive(Debug)]
pub(crate) struct Carried {
    fds: [RawFd; CARRIED_MAX],
    /// There were more than this process may have.
    pub(crate) is_cut: bool,
}

impl Carried {
    pub(crate) const fn none() -> Self {
        Self { fds: [-1; CARRIED_MAX], is_cut: false }
    }

    /// The descriptor at a place, which stays the owner's; -1 if there is none.
    pub(crate) fn at(&self, index: usize) -> RawFd {
        self.fds.get(index).copied().unwrap_or(-1)
    }

    /// The descriptor at a place, which is the caller's from now on.
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
/// The system's number; `EAGAIN` when there is no room.
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
        // header and what it announces lie within it.
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
        // SAFETY: the message points to a packet, and to a control buffer, that live during the call.
        let sent =
            unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        match sent {
            0.. => return Ok(()),
            _ if errno() == libc::EINTR => {}
            _ => return Err(errno()),
        }
    }
}

/// Takes a packet; never blocks. `None`: the other end is closed.
///
/// # Errors
/// The system's number; `EAGAIN` when there is none.
pub(crate) fn receive<T: Plain>(socket: RawFd) -> Result<Option<(T, Carried)>, c_int> {
    let mut control = [0_u64; CONTROL_WORDS];
    let mut packet = MaybeUninit::<T>::zeroed();
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: size_of::<T>() };
    let mut message = empty_message(&mut part);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    let taken = loop {
        // SAFETY: the message points to room for a packet, and to a control buffer, that live during the call.
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
    // SAFETY: the system filled in the control buffer and told its length; headers and their data lie within it.
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
    // SAFETY: the memory was zeroed and partly overwritten, and every pattern of bits is a value of a `Plain` type.
    Ok(Some((unsafe { packet.assume_init() }, carried)))
}

fn empty_message(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a message of zeros is one without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = core::ptr::from_mut(part);
    message.msg_iovlen = 1;
    message
}

/// For a `waitid` and the like.
pub(crate) fn pointer<T>(to: &mut T) -> *mut c_void {
    core::ptr::from_mut(to).cast()
}
