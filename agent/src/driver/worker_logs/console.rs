//! The agent's own outputs, written without blocking on their readers.

use crate::console_backlog::ConsoleBacklog;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::SockRef;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

/// A destination for displayed output: a terminal, a pipe, a file or a socket. It must be open for writing; output that
/// it refuses is dropped. The flags of the descriptor are not changed, because other processes may share it.
#[derive(Debug)]
pub struct Console {
    file: File,
    write_mode: WriteMode,
}

/// Way of writing without blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteMode {
    /// It was reopened for this process alone, in non-blocking mode.
    Reopened,
    /// It is a socket: each send has a flag for that.
    Socket,
    /// `poll` reports before each write whether there is room, which is then enough for `PIPE_BUF` bytes.
    Asking,
}

/// The agent's two outputs.
#[derive(Debug, Default)]
pub struct Consoles {
    /// Destination of the workers' standard output; `None` drops it.
    pub stdout: Option<Console>,
    /// Destination of the workers' standard error and of the agent's notes about files; `None` drops them.
    pub stderr: Option<Console>,
}

impl Consoles {
    /// Returns the outputs of this program, as far as they are open.
    pub fn standard() -> Self {
        Self {
            stdout: Console::new(io::stdout().as_fd()).ok(),
            stderr: Console::new(io::stderr().as_fd()).ok(),
        }
    }
}

impl Console {
    /// Creates a console with a copy of the descriptor.
    ///
    /// # Errors
    /// The descriptor is not open, or the system has no descriptors left.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let file = File::from(fd.try_clone_to_owned()?);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            return Ok(Self { file, write_mode: WriteMode::Socket });
        }
        // Regular files are not reopened: their write offset belongs to the open file description, and they do not
        // block.
        if kind.is_fifo() || kind.is_char_device() {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            if let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(path) {
                return Ok(Self { file, write_mode: WriteMode::Reopened });
            }
        }
        Ok(Self { file, write_mode: WriteMode::Asking })
    }

    /// Writes some bytes, or fails with `WouldBlock`.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.write_mode {
            WriteMode::Reopened => self.file.write(bytes),
            WriteMode::Socket => {
                SockRef::from(&self.file).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            }
            WriteMode::Asking if self.has_capacity() => {
                self.file.write(&bytes[..bytes.len().min(libc::PIPE_BUF)])
            }
            WriteMode::Asking => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn has_capacity(&self) -> bool {
        let mut watched = [PollFd::new(&self.file, PollFlags::OUT)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(1)
    }
}

/// A console and the output that it has not accepted yet.
#[derive(Debug)]
pub(super) struct ConsoleWriter {
    /// Declared before the console: a watch is dropped before its descriptor.
    watch: Option<Watch>,
    console: Option<Console>,
    pub(super) backlog: ConsoleBacklog,
    token: Token,
}

impl ConsoleWriter {
    pub(super) fn new(console: Option<Console>, token: Token) -> Self {
        Self { watch: None, console, backlog: ConsoleBacklog::default(), token }
    }

    pub(super) fn show(&mut self, now: Instant, bytes: &[u8]) {
        if self.console.is_some() {
            self.backlog.add(now, bytes);
        }
    }

    /// Writes what the console accepts now, and watches it for the rest.
    pub(super) fn flush(&mut self, now: Instant, events: &EventLoop) {
        let Some(console) = &mut self.console else { return };
        while !self.backlog.is_empty() {
            match console.write(self.backlog.unsent()) {
                Ok(0) => self.backlog.forget(),
                Ok(count) => self.backlog.took(now, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The console is closed, or a file on a full disk. Later output may succeed.
                Err(_) => self.backlog.forget(),
            }
        }
        if self.backlog.is_empty() {
            self.watch = None;
        } else if self.watch.is_none() {
            match events.watch(console.file.as_raw_fd(), Interest::Write, self.token) {
                Ok(watch) => self.watch = Some(watch),
                Err(_) => self.backlog.forget(),
            }
        }
    }
}

#[cfg(test)]
impl Console {
    /// Behaves as if it could not be reopened.
    pub(super) fn ask(&mut self) {
        self.write_mode = WriteMode::Asking;
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }
}
