//! Lines for programs to read: events and metrics. They go out on a thread of their own, so that neither a full disk nor a
//! terminal that stands still holds up the agent.

use super::usage::Usage;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    Nowhere,
    Console,
    File(PathBuf),
}

impl Destination {
    pub(super) fn parse(flag: &str, text: &str) -> Result<Self, Usage> {
        match text.split_once(':') {
            None if text == "null" => Ok(Self::Nowhere),
            None if text == "console" => Ok(Self::Console),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(Usage(format!("{flag} {text}: there are null, console, and file:PATH"))),
        }
    }
}

/// A file whose errors say which it is.
struct Named {
    file: File,
    path: PathBuf,
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| named(&self.path, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Lines that may wait. More are dropped.
const WAITING_MAX: usize = 4096;
/// Time limit for writing the last lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Writer of lines on its own thread. Dropping it waits a moment for queued lines. All senders from [`Lines::sender`]
/// must be dropped before.
pub(super) struct Lines {
    sender: Option<SyncSender<String>>,
    written: Receiver<()>,
}

impl Lines {
    /// Starts the writer; `None` when the destination is nowhere.
    pub(super) fn open(
        what: &'static str,
        destination: Destination,
        complain: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Option<Self>> {
        let writer: Box<dyn FnOnce() -> io::Result<Box<dyn Write>> + Send> = match destination {
            Destination::Nowhere => return Ok(None),
            Destination::Console => Box::new(|| Ok(Box::new(io::stderr()))),
            Destination::File(path) => Box::new(move || {
                let file = OpenOptions::new().append(true).create(true).open(&path);
                Ok(Box::new(Named { file: file.map_err(|error| named(&path, &error))?, path }))
            }),
        };
        Self::start(what, writer, complain).map(Some)
    }

    fn start(
        what: &'static str,
        open: impl FnOnce() -> io::Result<Box<dyn Write>> + Send + 'static,
        complain: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, lines) = sync_channel::<String>(WAITING_MAX);
        let (done, written) = sync_channel::<()>(0);
        std::thread::Builder::new().name(format!("rdzv-{what}")).spawn(move || {
            let ended = open().and_then(|mut writer| {
                lines.iter().try_for_each(|line| writer.write_all(format!("{line}\n").as_bytes()))
            });
            if let Err(error) = ended {
                complain(&format!("{what}: {error}; no more are written"));
            }
            // `drop` of `Lines` waits for this channel to close.
            drop((lines, done));
        })?;
        Ok(Self { sender: Some(sender), written })
    }

    /// Queues a line. It is dropped when the queue is full or after a write error.
    pub(super) fn sender(&self) -> impl Fn(String) + Send + 'static {
        let sender = self.sender.clone();
        move |line| {
            if let Some(sender) = &sender {
                sender.try_send(line).ok();
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.sender = None;
        // Nothing is ever sent: it is the other end that goes. A disk or a terminal that stands still is not waited for.
        self.written.recv_timeout(LAST_LINES).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn destinations_have_names() {
        for (text, destination) in [
            ("null", Destination::Nowhere),
            ("console", Destination::Console),
            ("file:/a:b", Destination::File("/a:b".into())),
        ] {
            assert_eq!(Destination::parse("--x", text).expect("one of them"), destination);
        }
        for text in ["", "file:", "stdout", "null:", "file"] {
            let error = Destination::parse("--x", text).expect_err("none of them").0;
            assert_eq!(error, format!("--x {text}: there are null, console, and file:PATH"));
        }
    }

    /// Takes one line, and then there is no room any more.
    struct Full {
        notify: std::sync::mpsc::Sender<String>,
        left: usize,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.left = self.left.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
            self.notify.send(String::from_utf8_lossy(bytes).into_owned()).expect("awaited");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_full_is_told_of_once_and_holds_up_nobody() {
        let (notify, event) = channel();
        let (complain, complaints) = channel();
        let lines = Lines::start(
            "events",
            move || Ok(Box::new(Full { notify, left: 1 })),
            move |message| complain.send(message.to_string()).expect("awaited"),
        )
        .expect("a thread");
        let put = lines.sender();
        for number in 0..3 * WAITING_MAX {
            put(number.to_string());
        }
        drop(put);
        drop(lines);
        assert_eq!(event.iter().collect::<Vec<_>>(), ["0\n"]);
        assert_eq!(complaints.iter().collect::<Vec<_>>(), ["events: no storage space; no more are written"]);
    }
}
