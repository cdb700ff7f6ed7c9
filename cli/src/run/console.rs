//! Standard error: lines and, on a terminal, a status line below them that is overwritten in place.

use super::backlog::Backlog;
use super::waiting::StatusLine;
use super::{plain, surroundings};
use crate::log::{Configuration, LogLevel, LogStyle};
use rendezvous_core::driver::lock::Lock;
use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Kind of output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Plain,
    Terminal(Colour),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    No,
    Yes,
}

/// Console shared by several threads. Lines keep their order, and no thread waits for the reader of stderr.
pub(super) struct Console<T> {
    style: LogStyle,
    look: Look,
    backlog: Backlog,
    awaited: Mutex<Awaited<T>>,
    changed: Condvar,
}

/// What the status line is about.
struct Awaited<T> {
    what: Option<T>,
    /// Number of changes so far.
    changes: u64,
    /// Text of the terminal's status line, or the last one that was logged where there is no terminal.
    last_line: String,
}

/// Time limit for writing the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// Columns assumed where the terminal does not report them.
const COLUMNS_DEFAULT: usize = 80;

impl<T: Clone> Console<T> {
    pub(super) fn new(style: LogStyle) -> Self {
        let is_plain = !style.is_text()
            || !io::stderr().is_terminal()
            || surroundings::variable("TERM").is_none_or(|terminal| terminal == "dumb");
        let look = match surroundings::variable("NO_COLOR") {
            _ if is_plain => Look::Plain,
            Some(_) => Look::Terminal(Colour::No),
            None => Look::Terminal(Colour::Yes),
        };
        let awaited = Awaited { what: None, changes: 0, last_line: String::new() };
        Self {
            style,
            look,
            backlog: Backlog::new(Some(style)),
            awaited: Mutex::new(awaited),
            changed: Condvar::new(),
        }
    }

    /// Starts to write. Lines from before are queued.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.backlog.begin(Stderr)
    }

    /// Nothing is waited for any more. What is still to be written has a moment for it.
    pub(super) fn finish(&self) {
        self.wait_for(None);
        self.backlog.finish(|| Stderr, LAST_LINES);
    }

    /// Writes a line of the log, if its level is logged.
    pub(super) fn log(&self, level: LogLevel, message: &str) {
        if self.style.includes(level) {
            self.write(level, &self.style.line(level, &plain::lines(message)));
        }
    }

    /// Writes a report of several lines, without a line's beginning in a log of text.
    pub(super) fn report(&self, text: &str) {
        if self.style.is_text() && self.style.includes(LogLevel::Error) {
            self.write(LogLevel::Error, &plain::lines(text));
        } else {
            self.log(LogLevel::Error, text);
        }
    }

    /// Writes the configuration.
    pub(super) fn configuration(&self, configuration: &Configuration) {
        if self.style.includes(LogLevel::Info) {
            let message = concat!("version ", env!("CARGO_PKG_VERSION"));
            self.write(LogLevel::Info, &self.style.configuration(message, configuration));
        }
    }

    fn write(&self, level: LogLevel, text: &str) {
        let mut awaited = self.awaited.locked();
        if self.look != Look::Plain {
            // A line takes it away.
            awaited.last_line.clear();
        }
        let (on, off) = match self.look {
            Look::Terminal(Colour::Yes) if level <= LogLevel::Warn => ("\x1b[31m", "\x1b[0m"),
            Look::Terminal(Colour::Yes) => ("\x1b[2m", "\x1b[0m"),
            _ => ("", ""),
        };
        self.backlog.lines(format!("{on}{text}{off}\n"));
    }

    /// From now on this is waited for.
    pub(super) fn wait_for(&self, what: Option<T>) {
        let mut awaited = self.awaited.locked();
        self.erase(&mut awaited);
        awaited.last_line.clear();
        awaited.what = what;
        awaited.changes += 1;
        self.changed.notify_all();
    }

    /// Tells again and again what `say` knows of what is waited for: what is new, and how long it takes. A terminal shows
    /// both; elsewhere there is a line for what is new.
    pub(super) fn run(&self, mut say: impl FnMut(&T) -> StatusLine) -> ! {
        loop {
            let (what, changes) = self.next();
            // Whatever comes at once is not worth a word.
            while self.is_still(changes) {
                let text = say(&what);
                let mut awaited = self.awaited.locked();
                if awaited.changes == changes {
                    self.show(&mut awaited, &text);
                }
            }
        }
    }

    fn next(&self) -> (T, u64) {
        let mut awaited = self.awaited.locked();
        loop {
            if let Some(what) = &awaited.what {
                return (what.clone(), awaited.changes);
            }
            awaited = self.changed.wait(awaited).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether the same is waited for a little later.
    fn is_still(&self, changes: u64) -> bool {
        let pause = Duration::from_millis(if self.look == Look::Plain { 1000 } else { 250 });
        let same = |awaited: &mut Awaited<T>| awaited.changes == changes;
        let waited = self.changed.wait_timeout_while(self.awaited.locked(), pause, same);
        waited.unwrap_or_else(PoisonError::into_inner).0.changes == changes
    }

    fn show(&self, awaited: &mut Awaited<T>, StatusLine { what, time, node_names }: &StatusLine) {
        let Look::Terminal(colour) = self.look else {
            let news = format!("{what}{node_names}");
            if awaited.last_line != news {
                let line = self.style.line(LogLevel::Info, &plain::lines(&news));
                self.backlog.lines(format!("{line}\n"));
                awaited.last_line = news;
            }
            return;
        };
        let (on, off) = if colour == Colour::Yes { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
        // One that goes over the edge could not be taken back.
        let line: String = format!("{}: {what}{time}{node_names}", self.style.command())
            .chars()
            .take(columns().saturating_sub(1))
            .collect();
        self.backlog.status_line(format!("{on}{}{off}", plain::label(&line)));
        awaited.last_line = line;
    }

    /// Takes the line back that is written anew in its place.
    fn erase(&self, awaited: &mut Awaited<T>) {
        if self.look != Look::Plain && !awaited.last_line.is_empty() {
            self.backlog.status_line(String::new());
            awaited.last_line.clear();
        }
    }
}

/// Standard error, waited for also where another program that shares it has had it never wait.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match io::stderr().write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
            let mut poll_fd = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one valid `pollfd`, and the count is one.
            unsafe { libc::poll(&raw mut poll_fd, 1, -1) };
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// How wide the terminal is at this moment.
fn columns() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is valid for writing.
    let result = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if result == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { COLUMNS_DEFAULT }
}
