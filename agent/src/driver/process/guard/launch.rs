//! Start of a worker.
//!
//! A program is started on a stack of its own in the guard's memory, while the guard is suspended: no page is copied,
//! however large the agent was. A function gets a copy of the memory, as after any `fork`. Both get a session of their
//! own, and the kernel kills them with the guard: the parent-death signal follows the parent's thread, and the guard
//! has only one.

use super::block::Block;
use super::packet::{Carried, Request, request, stdio};
use super::system::{check, close, close_from, close_range, errno, open, read};
use crate::driver::process::function::{Call, Function};
use core::mem::MaybeUninit;
use libc::{c_char, c_int, c_void, pid_t};
use std::os::fd::RawFd;

/// Steps of a start. The numbers are sent in reports.
pub(crate) mod step {
    use libc::c_int;

    pub(crate) const STOPPING: c_int = 1;
    pub(crate) const REQUEST: c_int = 2;
    pub(crate) const FORK: c_int = 3;
    pub(crate) const SESSION: c_int = 4;
    pub(crate) const STDIO: c_int = 5;
    pub(crate) const DIRECTORY: c_int = 6;
    pub(crate) const EXEC: c_int = 7;
}

/// The step that failed, with its error number.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed {
    pub(super) step: c_int,
    pub(super) errno: c_int,
}

/// Values common to all workers.
pub(super) struct LaunchContext {
    /// Upper end of the stack for children.
    pub(super) stack_top: *mut c_void,
    /// Process name of the agent (`comm`), null-terminated.
    pub(super) name: [u8; 16],
    pub(super) function: Option<*const Function>,
    /// Maximum number of bytes that the function may return.
    pub(super) returned_bytes_max: usize,
    pub(super) guard: pid_t,
    /// Number of the worker's end of its lifeline, in the worker; -1 if there is none.
    pub(super) lifeline: RawFd,
}

/// A standard stream of a child.
#[derive(Clone, Copy)]
enum Stream {
    /// The guard's stream.
    Inherit,
    Null,
    Fd(RawFd),
}

/// One start, as the child sees it.
struct Launch<'a> {
    context: &'a LaunchContext,
    block: &'a Block,
    stdio: [Stream; 3],
    blocked: u64,
    /// The worker's end of its lifeline, or -1.
    lifeline: RawFd,
    /// Pipe to which a failure is written; closed by success.
    outcome: RawFd,
}

/// Starts a worker. Returns when it executes its program or function, or has failed to.
///
/// `lifeline` is the worker's end of one, or -1; the caller keeps its ownership.
pub(super) fn start(
    context: &LaunchContext,
    request: &Request,
    carried: &Carried,
    lifeline: RawFd,
) -> Result<pid_t, Failed> {
    let refuse = |errno| Failed { step: step::REQUEST, errno };
    if carried.is_cut {
        return Err(refuse(libc::EMFILE));
    }
    let block = Block::map(carried.at(0), request.block_bytes).map_err(refuse)?;
    let mut index = 1_usize;
    let stdio = request.stdio.map(|stream| match stream {
        stdio::NULL => Stream::Null,
        stdio::CARRIED => {
            let fd = carried.at(index);
            index = index.wrapping_add(1);
            Stream::Fd(fd)
        }
        _ => Stream::Inherit,
    });
    let mut ends = [-1; 2];
    // SAFETY: `ends` is valid for writing.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }).map_err(refuse)?;
    let [news, outcome] = ends;
    let launch = Launch { context, block: &block, stdio, blocked: request.blocked, lifeline, outcome };
    let child = match (request.kind, context.function) {
        (request::START_FUNCTION, Some(function)) => launch.fork(function, request.worker, carried.at(index)),
        (request::START_FUNCTION, None) => Err(libc::ENOSYS),
        _ => launch.clone_vm(),
    };
    close(outcome);
    let failed = match child {
        Ok(_) => signalled(news),
        Err(errno) => Some(Failed { step: step::FORK, errno }),
    };
    close(news);
    match (child, failed) {
        (Ok(child), None) => Ok(child),
        (child, failed) => {
            if let Ok(child) = child {
                // It has written its failure and ends. Only this process reaps it.
                super::system::wait(libc::P_PID, child.cast_unsigned(), 0).ok();
            }
            Err(failed.unwrap_or(Failed { step: step::FORK, errno: libc::EIO }))
        }
    }
}

/// Reads the failure that the child wrote before it closed its end.
fn signalled(news: RawFd) -> Option<Failed> {
    let mut bytes = [0_u8; 8];
    let taken = read(news, &mut bytes).unwrap_or(0);
    let [a, b, c, d, e, f, g, h] = bytes;
    let failed =
        Failed { step: c_int::from_ne_bytes([a, b, c, d]), errno: c_int::from_ne_bytes([e, f, g, h]) };
    (taken == bytes.len()).then_some(failed)
}

impl Launch<'_> {
    /// Starts a program. The guard is suspended until the child executes it, or has ended.
    fn clone_vm(&self) -> Result<pid_t, c_int> {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child runs on the stack that ends there, which is unused while the guard is suspended, and ends
        // as another program or by `_exit`. All signals are blocked and none has a handler.
        let child = unsafe {
            libc::clone(
                become_program,
                self.context.stack_top,
                flags,
                core::ptr::from_ref(self).cast_mut().cast(),
            )
        };
        check(child)
    }

    /// Forks, and calls the function in the child.
    fn fork(&self, function: *const Function, worker: u32, returned: RawFd) -> Result<pid_t, c_int> {
        // SAFETY: the guard has one thread. This is the C library's `fork`, so that the child may allocate.
        let child = check(unsafe { libc::fork() })?;
        if child == 0 {
            self.become_function(function, worker, returned);
        }
        Ok(child)
    }

    /// First steps of both kinds of workers.
    fn prepare(&self) -> Result<(), Failed> {
        let failed = |step| move |errno| Failed { step, errno };
        // SAFETY: passes numbers only.
        unsafe {
            check(libc::setsid()).map_err(failed(step::SESSION))?;
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map_err(failed(step::SESSION))?;
            // The guard may have died before the call.
            if libc::getppid() != self.context.guard {
                libc::_exit(1);
            }
        }
        for (stream, number) in self.stdio.into_iter().zip(0..) {
            let fd = match stream {
                Stream::Inherit => continue,
                // The descriptor is closed when the worker executes its program or function.
                Stream::Null => {
                    open(libc::AT_FDCWD, c"/dev/null", libc::O_RDWR).map_err(failed(step::STDIO))?
                }
                Stream::Fd(fd) => fd,
            };
            // SAFETY: passes numbers only. The guard's own standard streams do not change.
            check(unsafe { libc::dup2(fd, number) }).map_err(failed(step::STDIO))?;
        }
        if self.lifeline >= 0 {
            // Without it the worker's end is detected a little later. The copy stays open when the worker executes its
            // program. SAFETY: passes numbers only.
            unsafe { libc::dup2(self.lifeline, self.context.lifeline) };
        }
        if let Some(directory) = self.block.directory() {
            // SAFETY: the strings of the block are null-terminated.
            check(unsafe { libc::chdir(directory) }).map_err(failed(step::DIRECTORY))?;
        }
        let blocked = signal_set(self.blocked);
        // SAFETY: the set is valid for reading.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const blocked, core::ptr::null_mut()) };
        Ok(())
    }

    fn report(&self, failed: Failed) {
        // SAFETY: the structure is two numbers, valid for reading. A failure to write has no remedy.
        unsafe {
            libc::write(self.outcome, core::ptr::from_ref(&failed).cast(), size_of::<Failed>());
        }
    }

    fn become_function(&self, function: *const Function, worker: u32, returned: RawFd) -> ! {
        if let Err(failed) = self.prepare() {
            self.report(failed);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(NOT_STARTED) }
        }
        // SAFETY: the name is null-terminated. The file replaces one of the guard's own descriptors, of which this copy
        // needs none: not even the pipe for failures, because there was no failure. The environment is that of the
        // block, which stays; this process has one thread.
        unsafe {
            libc::prctl(libc::PR_SET_NAME, self.context.name.as_ptr());
            libc::dup3(returned, RETURNED, libc::O_CLOEXEC);
            close_range(RETURNED + 1, self.context.lifeline - 1);
            close_from(self.context.lifeline.max(RETURNED) + 1);
            environ = self.block.environment().cast_mut();
        }
        // SAFETY: the lists of the block end with null pointers, its strings are null-terminated, and it stays until
        // this process ends.
        let call = unsafe { Call::new(worker, self.block.arguments()) };
        // SAFETY: the function existed in the agent when it forked the guard, and the guard has not changed it.
        let function = unsafe { &*function };
        call.run(function, RETURNED, self.context.returned_bytes_max)
    }
}

unsafe extern "C" {
    static mut environ: *const *const c_char;
}

/// Descriptor of the file for the return value, in a function's process.
const RETURNED: RawFd = 3;
/// Exit code of a child that failed to start; it is not reported.
const NOT_STARTED: c_int = 127;

/// Main function of a program's child. It shares the guard's memory, and writes only to its own stack.
extern "C" fn become_program(launch: *mut c_void) -> c_int {
    // SAFETY: the guard is suspended in `clone_vm`, which holds the structure.
    let launch = unsafe { &*launch.cast::<Launch<'_>>() };
    let failed = match launch.prepare() {
        Err(failed) => failed,
        Ok(()) => {
            let block = launch.block;
            // SAFETY: strings of the block are null-terminated and lists end with null pointers. It returns only on
            // failure.
            unsafe { libc::execve(block.path(), block.arguments(), block.environment()) };
            Failed { step: step::EXEC, errno: errno() }
        }
    };
    launch.report(failed);
    // SAFETY: ends the child without changing the guard's memory.
    unsafe { libc::_exit(NOT_STARTED) }
}

/// Returns the signal set for a mask in which signal 1 is bit 0.
fn signal_set(bits: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set; numbers that are not signals are refused without consequences.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in 1..=64 {
            if bits & (1 << (signal - 1)) != 0 {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
        }
        set.assume_init()
    }
}
