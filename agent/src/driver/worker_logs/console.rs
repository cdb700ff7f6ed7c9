//! The agent's own outputs, written without ever waiting for who reads them.

use crate::console_backlog::ConsoleBacklog;
use alloc::format;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::time::Instant;
use socket2::SockRef;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

/// Somewhere to show output: a terminal, a pipe, a file, a socket. It must allow writing; what it refuses is dropped. The
/// flags of the descriptor are left as they are: other processes may share it.
#[derive(Debug)]
pub struct Console {
    file: File,
    write_mode: WriteMode,
}

/// How not to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteMode {
    /// It was opened anew, for us alone, and does not block.
    Reopened,
    /// Sockets can be told with each write.
    Socket,
    /// It is asked before each write whether there is room, which is then for as much as a pipe takes at once.
    Asking,
}

/// The agent's two outputs.
#[derive(Debug, Default)]
pub struct Consoles {
    /// Where workers' standard output is shown; `None`: nowhere.
    pub stdout: Option<Console>,
    /// Where their standard error is shown, and what the agent has to say of files; `None`: nowhere.
    pub stderr: Option<Console>,
}

impl Consoles {
    /// The program's own, as far as they are open.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            stdout: Console::new(io::stdout().as_fd()).ok(),
            stderr: Console::new(io::stderr().as_fd()).ok(),
        }
    }
}

impl Console {
    /// A console with a descriptor of its own for the same.
    ///
    /// # Errors
    /// It is not open, or the system has no more descriptors.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let file = File::from(fd.try_clone_to_owned()?);
        let kind = file.metadata()?.file_type();
        if kind.is_socket() {
            return Ok(Self { file, write_mode: WriteMode::Socket });
        }
        // A file has one place to write at, which goes with its opening, and does not block.
        if kind.is_fifo() || kind.is_char_device() {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            if let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(path) {
                return Ok(Self { file, write_mode: WriteMode::Reopened });
            }
        }
        Ok(Self { file, write_mode: WriteMode::Asking })
    }

    /// Writes some, or says that it would block.
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
        let mut poll_fd = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid `pollfd`; it does not block.
        unsafe { libc::poll(&raw mut poll_fd, 1, 0) == 1 }
    }
}

/// A console and what it has not taken yet.
#[derive(Debug)]
pub(super) struct Shower {
    /// Before the console: a watch goes before its descriptor does.
    watch: Option<Watch>,
    console: Option<Console>,
    pub(super) backlog: ConsoleBacklog,
    token: Token,
}

impl Shower {
    pub(super) fn new(console: Option<Console>, token: Token) -> Self {
        Self { watch: None, console, backlog: ConsoleBacklog::default(), token }
    }

    pub(super) fn show(&mut self, now: Instant, bytes: &[u8]) {
        if self.console.is_some() {
            self.backlog.add(now, bytes);
        }
    }

    /// Writes what the console takes now, and has it watched for the rest.
    pub(super) fn flush(&mut self, now: Instant, events: &EventLoop) {
        let Some(console) = &mut self.console else { return };
        while !self.backlog.is_empty() {
            match console.write(self.backlog.unsent()) {
                Ok(0) => self.backlog.forget(),
                Ok(count) => self.backlog.took(now, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It is closed, or a file on a full disk. What comes later may find it as it should be.
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
    /// As if it could not be opened anew.
    pub(super) fn ask(&mut self) {
        self.write_mode = WriteMode::Asking;
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write(bytes)
    }
}
