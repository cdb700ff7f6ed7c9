//! Standard error: lines below each other and, on a terminal, below them one that is written anew in its place.

use super::backlog::Backlog;
use super::waiting::StatusLine;
use super::{plain, surroundings};
use std::io::{self, IsTerminal, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a line is to whoever reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    Warning,
    Ordinary,
}

/// What stands at the other end.
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

/// One that several threads tell things. Its order is theirs, and none of them waits for who reads it.
pub(super) struct Console<T> {
    look: Look,
    backlog: Backlog,
    awaited: Mutex<Awaited<T>>,
    changed: Condvar,
}

/// What is waited for.
struct Awaited<T> {
    what: Option<T>,
    /// How often that has changed.
    changes: u64,
    /// What stands on the terminal's last line, or was the last thing told of it elsewhere.
    last_line: String,
}

/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(2);
/// The columns of a terminal that does not say how many it has.
const COLUMNS_DEFAULT: usize = 80;

impl<T: Clone> Console<T> {
    pub(super) fn new() -> Self {
        let is_plain = !io::stderr().is_terminal()
            || surroundings::variable("TERM").is_none_or(|terminal| terminal == "dumb");
        let look = match surroundings::variable("NO_COLOR") {
            _ if is_plain => Look::Plain,
            Some(_) => Look::Terminal(Colour::No),
            None => Look::Terminal(Colour::Yes),
        };
        let awaited = Awaited { what: None, changes: 0, last_line: String::new() };
        Self { look, backlog: Backlog::new(), awaited: Mutex::new(awaited), changed: Condvar::new() }
    }

    /// Writes what it is told. Before this it keeps that, and there is no thread.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.backlog.begin(Stderr)
    }

    /// Nothing is waited for any more. What is still to be written has a moment for it.
    pub(super) fn finish(&self) {
        self.wait_for(None);
        self.backlog.finish(|| Stderr, LAST_LINES);
    }

    /// A line, or several.
    pub(super) fn line(&self, weight: Weight, text: &str) {
        let mut awaited = self.lock();
        if self.look != Look::Plain {
            // A line takes it away.
            awaited.last_line.clear();
        }
        let (on, off) = match (self.look, weight) {
            (Look::Terminal(Colour::Yes), Weight::Warning) => ("\x1b[31m", "\x1b[0m"),
            (Look::Terminal(Colour::Yes), Weight::Ordinary) => ("\x1b[2m", "\x1b[0m"),
            _ => ("", ""),
        };
        self.backlog.lines(format!("{on}{}{off}\n", plain::lines(text)));
    }

    /// From now on this is waited for.
    pub(super) fn wait_for(&self, what: Option<T>) {
        let mut awaited = self.lock();
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
                let mut awaited = self.lock();
                if awaited.changes == changes {
                    self.show(&mut awaited, &text);
                }
            }
        }
    }

    fn next(&self) -> (T, u64) {
        let mut awaited = self.lock();
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
        let waited = self.changed.wait_timeout_while(self.lock(), pause, same);
        waited.unwrap_or_else(PoisonError::into_inner).0.changes == changes
    }

    fn show(&self, awaited: &mut Awaited<T>, StatusLine { what, time, node_names }: &StatusLine) {
        let Look::Terminal(colour) = self.look else {
            let news = format!("{what}{node_names}");
            if awaited.last_line != news {
                self.backlog.lines(format!("{}\n", plain::lines(&news)));
                awaited.last_line = news;
            }
            return;
        };
        let (on, off) = if colour == Colour::Yes { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
        // One that goes over the edge could not be taken back.
        let line: String =
            format!("{what}{time}{node_names}").chars().take(columns().saturating_sub(1)).collect();
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

    fn lock(&self) -> MutexGuard<'_, Awaited<T>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
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
            // SAFETY: one valid `pollfd`, and one is what the call is told of.
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
    let last_line = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    if last_line == 0 && size.ws_col > 0 { usize::from(size.ws_col) } else { COLUMNS_DEFAULT }
}
