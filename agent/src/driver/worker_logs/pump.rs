//! The thread that reads workers' pipes.

use super::OpenStream;
use super::console::{ConsoleWriter, Consoles};
use super::files::LogFile;
use crate::console_backlog::Need;
use crate::limits::CONSOLE_FULL_BYTES;
use crate::log_layout::Destination;
use crate::log_lines::{LineOutput, LogLines};
use crate::streams::Stream;
use rendezvous_core::driver::channel::{ChannelError, Receiver, Sender};
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Token, Watch};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::sorted::SortedMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

/// Line buffer shared with callers that read the last lines. It is locked while lines change, never during a write.
pub(super) type Lines = Arc<Mutex<LogLines>>;

pub(super) fn lock(lines: &Lines) -> MutexGuard<'_, LogLines> {
    lines.locked()
}

/// Result of a command: the streams that [`Command::Finish`] closed before their end.
pub(super) type CommandResult = io::Result<Vec<OpenStream>>;

/// Command to the thread. The caller waits for `done` with a timeout.
#[derive(Debug)]
pub(super) enum Command {
    /// Replaces the streams by these.
    Start { group: Group, done: Sender<CommandResult> },
    /// Reads what a worker has written by now.
    Drain { local_rank: u32, done: Sender<CommandResult> },
    /// Reads until all streams have ended, then closes them.
    Finish { until: Instant, done: Sender<CommandResult> },
    /// Writes until the consoles have accepted everything.
    Flush { until: Instant, done: Sender<CommandResult> },
    /// Ends the thread.
    Stop { until: Instant },
}

/// Streams of the workers of one attempt.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) streams: Vec<Piped>,
    /// Files for lines with needles, by stream.
    pub(super) filtered: [Option<LogFile>; 2],
    /// Note that is written first.
    pub(super) note: Option<String>,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Piped {
    pub(super) name: OpenStream,
    pub(super) destination: Destination,
    pub(super) near: File,
    pub(super) lines: Lines,
    pub(super) file: Option<LogFile>,
}

/// A stream that is being read.
#[derive(Debug)]
struct Reading {
    /// `None` while the stream waits for the console. Declared before the pipe: a watch is dropped before its
    /// descriptor.
    watch: Option<Watch>,
    piped: Piped,
}

/// First token of pipes. The tokens of consoles are their streams' numbers.
const FIRST_PIPE: u64 = 2;
/// Bytes of one read. If all are empty lines, the longest prefix makes it 4 MiB of output.
const READ_BYTES: usize = 16 * 1024;
/// Limit of the bytes that are read from a stream without waiting for its end: the capacity of any pipe.
const DRAIN_BYTES_MAX: usize = 1 << 20;

/// State of the thread.
#[derive(Debug)]
pub(super) struct Pump {
    events: EventLoop,
    commands: Receiver<Command>,
    now: Instant,
    streams: SortedMap<u64, Reading>,
    next_token: u64,
    outputs: Outputs,
    /// For which needs each console allowed reading when the watches were last updated; `None` requests an update.
    gates: Option<[[bool; 2]; 2]>,
    finish: Option<(Instant, Sender<CommandResult>)>,
    flushes: Vec<(Instant, Sender<CommandResult>)>,
    stop: Option<Instant>,
    buffer: Vec<u8>,
}

/// Destinations of the output.
#[derive(Debug)]
struct Outputs {
    /// Consoles by stream.
    consoles: [ConsoleWriter; 2],
    filtered: [Option<LogFile>; 2],
    output: LineOutput,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadResult {
    Bytes(usize),
    Nothing,
    End,
}

impl Pump {
    pub(super) fn new(events: EventLoop, commands: Receiver<Command>, consoles: Consoles) -> Self {
        let writer = |console, stream| ConsoleWriter::new(console, Token(stream as u64));
        let consoles = [writer(consoles.stdout, Stream::Stdout), writer(consoles.stderr, Stream::Stderr)];
        Self {
            now: events.clock().now(),
            events,
            commands,
            streams: SortedMap::new(),
            next_token: FIRST_PIPE,
            outputs: Outputs { consoles, filtered: [None, None], output: LineOutput::default() },
            gates: None,
            finish: None,
            flushes: Vec::new(),
            stop: None,
            buffer: alloc::vec![0; READ_BYTES],
        }
    }

    /// Main function of the thread.
    pub(super) fn run(mut self) {
        loop {
            let Ok(ready) = self.events.wait(self.wake_at()) else { return };
            self.now = self.events.clock().now();
            for Token(token) in ready.map(|ready| ready.token) {
                // A console that became full in this iteration blocks its other streams. A stream that was closed in it
                // is missing.
                if self.streams.get(&token).is_some_and(|stream| self.may_read(stream)) {
                    self.read(token);
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(ChannelError::Unready) => break,
                    Err(ChannelError::Closed) => return,
                }
            }
            self.outputs.flush(self.now, &self.events);
            self.pause_and_resume();
            self.answer();
            if self.stop.is_some_and(|until| self.outputs.have_drained() || self.now >= until) {
                return;
            }
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        let flushes = self.flushes.iter().map(|(until, _)| *until);
        let finish = self.finish.as_ref().map(|(until, _)| *until);
        let stalls = self.outputs.consoles.iter().filter_map(|console| console.backlog.stalls_at());
        let stalls = stalls.filter(|&at| at > self.now);
        flushes.chain(finish).chain(stalls).chain(self.stop).min()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { group, done } => {
                self.drain(|_| true);
                self.close_all();
                done.send(self.start(group).map(|()| Vec::new())).ok();
            }
            Command::Drain { local_rank, done } => {
                self.drain(|name| name.local_rank == local_rank);
                let _ = done.send(Ok(Vec::new()));
            }
            Command::Finish { until, done } => {
                self.finish = Some((until, done));
                self.gates = None;
            }
            Command::Flush { until, done } => self.flushes.push((until, done)),
            Command::Stop { until } => {
                self.drain(|_| true);
                self.close_all();
                self.stop = Some(until);
            }
        }
    }

    fn start(&mut self, group: Group) -> io::Result<()> {
        self.outputs.filtered = group.filtered;
        if let Some(note) = &group.note {
            self.outputs.print_note(self.now, note);
        }
        self.gates = None;
        for piped in group.streams {
            let token = self.next_token;
            self.next_token += 1;
            let watch = self.events.watch(piped.near.as_raw_fd(), Interest::Read, Token(token))?;
            self.streams.insert(token, Reading { watch: Some(watch), piped });
        }
        Ok(())
    }

    /// Returns whether the stream's console allows more reading.
    fn may_read(&self, Reading { piped, .. }: &Reading) -> bool {
        let need =
            if piped.file.is_some() || self.finish.is_some() { Need::Stored } else { Need::OnlyConsole };
        let console = &self.outputs.consoles[piped.name.stream as usize].backlog;
        piped.destination == Destination::Kept || console.lets_read(self.now, need)
    }

    /// Updates the watches: streams that wait for their console are not watched.
    fn pause_and_resume(&mut self) {
        let gates = [0, 1].map(|console: usize| {
            let backlog = &self.outputs.consoles[console].backlog;
            [Need::OnlyConsole, Need::Stored].map(|need| backlog.lets_read(self.now, need))
        });
        if self.gates.replace(gates) == Some(gates) {
            return;
        }
        let mut streams = core::mem::take(&mut self.streams);
        for (&token, reading) in streams.iter_mut() {
            match (self.may_read(reading), &reading.watch) {
                (true, None) => {
                    let watched =
                        self.events.watch(reading.piped.near.as_raw_fd(), Interest::Read, Token(token));
                    reading.watch = watched.ok();
                    // The system lacks memory for it now. The next iteration tries again.
                    if reading.watch.is_none() {
                        self.gates = None;
                    }
                }
                (false, Some(_)) => reading.watch = None,
                _ => {}
            }
        }
        self.streams = streams;
    }

    fn read(&mut self, token: u64) -> ReadResult {
        let Some(Reading { piped, .. }) = self.streams.get_mut(&token) else { return ReadResult::End };
        let received = match piped.near.read(&mut self.buffer) {
            Ok(0) => ReadResult::End,
            Ok(count) => ReadResult::Bytes(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadResult::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => ReadResult::Bytes(0),
            Err(_) => ReadResult::End,
        };
        match received {
            ReadResult::Bytes(count) => {
                let had_file = piped.file.is_some();
                self.outputs.take(self.now, piped, &self.buffer[..count]);
                if had_file && piped.file.is_none() {
                    self.gates = None;
                }
                if self.outputs.consoles[piped.name.stream as usize].backlog.is_full() {
                    self.outputs.flush(self.now, &self.events);
                }
            }
            ReadResult::Nothing => {}
            ReadResult::End => self.close(token),
        }
        received
    }

    /// Reads what is there, whether or not the console has room for it: the last lines matter.
    fn drain(&mut self, of: impl Fn(OpenStream) -> bool) {
        let streams = self.streams.iter().filter(|(_, reading)| of(reading.piped.name));
        let tokens: Vec<u64> = streams.map(|(&token, _)| token).collect();
        for token in tokens {
            let mut count = 0;
            while count < DRAIN_BYTES_MAX
                && let ReadResult::Bytes(more) = self.read(token)
            {
                count += more;
            }
        }
    }

    fn close(&mut self, token: u64) {
        let Some(Reading { watch, piped }) = self.streams.remove(&token) else { return };
        drop(watch);
        self.outputs.finish(self.now, &piped);
    }

    fn close_all(&mut self) {
        while let Some((&token, _)) = self.streams.first() {
            self.close(token);
        }
    }

    /// Answers the commands that are complete or have timed out.
    fn answer(&mut self) {
        let now = self.now;
        if let Some((until, done)) = self.finish.take() {
            if now >= until {
                self.drain(|_| true);
            }
            if self.streams.is_empty() || now >= until {
                let open = self.streams.values().map(|reading| reading.piped.name).collect();
                self.close_all();
                self.outputs.filtered = [None, None];
                self.outputs.flush(now, &self.events);
                done.send(Ok(open)).ok();
            } else {
                self.finish = Some((until, done));
            }
        }
        let has_drained = self.outputs.have_drained();
        self.flushes.retain(|(until, done)| {
            let is_over = has_drained || now >= *until;
            if is_over {
                let _ = done.send(Ok(Vec::new()));
            }
            !is_over
        });
    }
}

impl Outputs {
    fn take(&mut self, now: Instant, piped: &mut Piped, bytes: &[u8]) {
        if let Some(note) = LogFile::write(&mut piped.file, bytes) {
            self.print_note(now, &note);
        }
        if piped.destination == Destination::PassedOn {
            self.consoles[piped.name.stream as usize].show(now, bytes);
        }
        lock(&piped.lines).push(bytes, &mut self.output);
        self.show_lines(now, piped.name.stream);
    }

    /// Handles the end of a stream.
    fn finish(&mut self, now: Instant, piped: &Piped) {
        lock(&piped.lines).finish(&mut self.output);
        self.show_lines(now, piped.name.stream);
    }

    fn show_lines(&mut self, now: Instant, stream: Stream) {
        if !self.output.console.is_empty() {
            self.consoles[stream as usize].show(now, &self.output.console);
            if let Some(note) = LogFile::write(&mut self.filtered[stream as usize], &self.output.filtered) {
                self.print_note(now, &note);
            }
        }
        self.output.console.clear();
        self.output.filtered.clear();
        // Frees the memory of a burst of short lines.
        if self.output.console.capacity() > CONSOLE_FULL_BYTES {
            self.output = LineOutput::default();
        }
    }

    /// Writes a note of the agent.
    fn print_note(&mut self, now: Instant, line: &str) {
        self.consoles[Stream::Stderr as usize].show(now, line.as_bytes());
    }

    fn flush(&mut self, now: Instant, events: &EventLoop) {
        for console in &mut self.consoles {
            console.flush(now, events);
        }
    }

    fn have_drained(&self) -> bool {
        self.consoles.iter().all(|console| console.backlog.is_empty())
    }
}
