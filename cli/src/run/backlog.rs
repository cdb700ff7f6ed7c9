//! Output that standard error has not accepted yet. Its reader may be slow or stopped, for example a paused terminal or
//! a full pipe. A thread of its own blocks on the write, so the agent never does.

use crate::log::{LogLevel, LogStyle};
use rendezvous_core::driver::lock::Lock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bytes that may wait. Output beyond this is dropped and counted.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// One item to write.
enum Output {
    /// Lines that stay on the screen.
    Lines(String),
    /// Text of the last line until something else is written; empty for none.
    StatusLine(String),
}

impl Output {
    /// Memory that the item takes, in bytes.
    fn cost(&self) -> usize {
        let (Self::Lines(text) | Self::StatusLine(text)) = self;
        text.len() + size_of::<Self>()
    }
}

/// Queue in front of one writer. Only [`Backlog::finish`] waits for the writer.
#[derive(Clone)]
pub(super) struct Backlog(Arc<BacklogShared>);

#[derive(Default)]
struct BacklogShared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    pieces: VecDeque<Output>,
    cost: usize,
    /// Number of dropped lines, reported after all queued output.
    left_out: usize,
    /// Style of the line that reports them; `None`: the message alone.
    style: Option<LogStyle>,
    writer: Writer,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Writer {
    /// No writer yet: output is queued.
    #[default]
    Waiting,
    /// The writer has nothing to do.
    Idle,
    /// The writer writes, or waits until it can.
    Busy,
}

impl Backlog {
    pub(super) fn new(style: Option<LogStyle>) -> Self {
        let backlog = Self(Arc::default());
        backlog.0.queue.locked().style = style;
        backlog
    }

    /// Starts the thread that writes.
    pub(super) fn begin(&self, to: impl Write + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        // From now on `finish` waits for the thread.
        self.0.queue.locked().writer = Writer::Busy;
        let started = std::thread::Builder::new().name("rdzv-screen".into()).spawn(move || shared.write(to));
        if started.is_err() {
            self.0.queue.locked().writer = Writer::Waiting;
        }
        started.map(drop)
    }

    /// Adds lines, of which the last has its end as well. They are all written or all left out.
    pub(super) fn lines(&self, lines: String) {
        let mut queue = self.0.queue.locked();
        if queue.cost >= WAITING_BYTES_MAX {
            queue.left_out += lines.lines().count();
            return;
        }
        queue.report_gap();
        queue.push(Output::Lines(lines));
        self.0.changed.notify_all();
    }

    /// Has this stand in the last line of a terminal. What is written next takes it away.
    pub(super) fn status_line(&self, text: String) {
        let mut queue = self.0.queue.locked();
        if matches!(queue.pieces.back(), Some(Output::StatusLine(_))) {
            queue.pop_back();
        } else if queue.cost >= WAITING_BYTES_MAX {
            // Lines wait, and nothing stands there once they are written.
            return;
        }
        queue.push(Output::StatusLine(text));
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, at most for `timeout`. Starts a writer if there is none.
    pub(super) fn finish<W: Write + Send + 'static>(&self, open: impl Fn() -> W, timeout: Duration) {
        let writer = self.0.queue.locked().writer;
        if writer == Writer::Waiting && self.begin(open()).is_err() {
            // No thread could be started, and that is what the lines say: write them here, even if this blocks.
            let mut pen = Pen::new(open());
            while let Some(chunk) = self.0.queue.locked().take() {
                pen.write(chunk);
            }
            return;
        }
        let is_left = |queue: &mut Queue| !queue.is_empty() || queue.writer == Writer::Busy;
        drop(self.0.changed.wait_timeout_while(self.0.queue.locked(), timeout, is_left));
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.left_out == 0
    }

    fn push(&mut self, chunk: Output) {
        self.cost += chunk.cost();
        self.pieces.push_back(chunk);
    }

    fn pop_back(&mut self) {
        self.cost -= self.pieces.pop_back().map_or(0, |chunk| chunk.cost());
    }

    /// Puts a line about the dropped ones in their place.
    fn report_gap(&mut self) {
        let text = match std::mem::take(&mut self.left_out) {
            0 => return,
            1 => "dropped 1 line: stderr was blocked".into(),
            count => format!("dropped {count} lines: stderr was blocked"),
        };
        let line = self.style.map_or_else(|| text.clone(), |style| style.line(LogLevel::Warn, &text));
        self.push(Output::Lines(format!("{line}\n")));
    }

    fn take(&mut self) -> Option<Output> {
        if self.pieces.is_empty() {
            self.report_gap();
        }
        let chunk = self.pieces.pop_front()?;
        self.cost -= chunk.cost();
        Some(chunk)
    }
}

impl BacklogShared {
    /// The next piece, once there is one.
    fn next(&self) -> Output {
        let mut queue = self.queue.locked();
        loop {
            if let Some(chunk) = queue.take() {
                queue.writer = Writer::Busy;
                return chunk;
            }
            queue.writer = Writer::Idle;
            self.changed.notify_all();
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, to: impl Write) -> ! {
        let mut pen = Pen::new(to);
        loop {
            pen.write(self.next());
        }
    }
}

/// Knows what it has written.
struct Pen<W> {
    to: W,
    /// Whether something stands in the last line.
    has_status: bool,
}

impl<W: Write> Pen<W> {
    fn new(to: W) -> Self {
        Self { to, has_status: false }
    }

    fn write(&mut self, chunk: Output) {
        let had_status = std::mem::take(&mut self.has_status);
        let text = match chunk {
            Output::StatusLine(text) if text.is_empty() && !had_status => return,
            Output::StatusLine(text) => {
                self.has_status = !text.is_empty();
                format!("\r\x1b[K{text}")
            }
            Output::Lines(lines) if had_status => format!("\r\x1b[K{lines}"),
            Output::Lines(lines) => lines,
        };
        // A closed stderr does not end the job.
        self.to.write_all(text.as_bytes()).and_then(|()| self.to.flush()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// Hands on what is written, as soon as somebody takes it.
    struct Reader(SyncSender<String>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8_lossy(bytes).into_owned();
            self.0.send(text).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reader() -> (Reader, Receiver<String>) {
        let (notify, event) = sync_channel(0);
        (Reader(notify), event)
    }

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[track_caller]
    fn reads(read: &Receiver<String>, expected: &str) {
        assert_eq!(read.recv_timeout(TIMEOUT).as_deref(), Ok(expected));
    }

    #[test]
    fn lines_stay_in_order_and_what_stands_is_taken_away() {
        let backlog = Backlog::new(None);
        let (to, read) = reader();
        backlog.status_line(String::new());
        backlog.lines("one\n".into());
        backlog.status_line("waits".into());
        backlog.status_line("waits, 1 s".into());
        backlog.lines("two\n".into());
        backlog.status_line("more".into());
        backlog.begin(to).expect("a thread");
        for expected in ["one\n", "\r\x1b[Kwaits, 1 s", "\r\x1b[Ktwo\n", "\r\x1b[Kmore"] {
            reads(&read, expected);
        }
        backlog.status_line(String::new());
        reads(&read, "\r\x1b[K");
        backlog.lines("three\n".into());
        reads(&read, "three\n");
    }

    #[test]
    fn what_nobody_takes_is_left_out_and_told_of_where_it_is_missing() {
        let backlog = Backlog::new(None);
        let (to, read) = reader();
        let line = format!("{}\n", "x".repeat(WAITING_BYTES_MAX / 8));
        for _ in 0..8 {
            backlog.lines(line.clone());
        }
        assert!(backlog.0.queue.locked().cost > WAITING_BYTES_MAX);
        backlog.lines("lost\nlost\n".into());
        backlog.status_line("lost".into());
        backlog.lines("lost\n".into());
        backlog.begin(to).expect("a thread");
        reads(&read, &line);
        reads(&read, &line);
        // What was read makes room.
        backlog.lines("kept\n".into());
        for _ in 2..8 {
            reads(&read, &line);
        }
        reads(&read, "dropped 3 lines: stderr was blocked\n");
        reads(&read, "kept\n");
        assert_eq!(backlog.0.queue.locked().cost, 0);
    }

    #[test]
    fn the_end_waits_for_who_reads_and_for_so_long_only() {
        let backlog = Backlog::new(None);
        let (to, read) = reader();
        backlog.lines("first\n".into());
        let to = Mutex::new(Some(to));
        let open = || to.lock().expect("one thread").take().expect("once");
        backlog.finish(open, Duration::from_millis(1));
        let reading = std::thread::spawn(move || read.iter().take(2).collect::<String>());
        backlog.lines("last\n".into());
        backlog.finish(io::sink, TIMEOUT);
        assert!(backlog.0.queue.locked().is_empty());
        assert_eq!(reading.join().expect("a reader"), "first\nlast\n");
        // Who does not read any more holds up nobody.
        backlog.lines("to nobody\n".into());
        backlog.finish(io::sink, TIMEOUT);
        assert!(backlog.0.queue.locked().is_empty());
    }
}
