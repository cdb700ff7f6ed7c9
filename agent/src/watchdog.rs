//! Timers that workers set for themselves, with the protocol of PyTorch's `FileTimerClient`: lines of JSON through a
//! named pipe.
//!
//! ```json
//! {"version": 1, "pid": 4711, "scope_id": "train.py#12", "expiration_time": 1700000060.5, "signal": 9}
//! ```
//!
//! A process has one timer per scope. Setting it again replaces it, and a negative time removes it. When a time (in
//! seconds since 1970, on this host's clock) has passed, the process gets the signal of the timer that expired first
//! among those with a signal, and all its timers are removed.

use alloc::collections::VecDeque;
use rendezvous_core::ordered::Set;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::SortedMap;
use rendezvous_core::time::{PauseDetector, Seconds};
use serde_json::Value;

/// Maximum length of a line in bytes, without its end: the size up to which a write to a pipe is atomic.
pub const LINE_BYTES_MAX: usize = 4096;
/// Beginning of the lines of PyTorch's client.
const LINE_BEGINS: &[u8] = b"{\"version\"";
/// Maximum interval of checks while timers run: the host's clock may be set.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of timers of all processes.
pub const TIMERS_MAX: usize = 65_536;
/// Highest signal number.
const SIGNAL_MAX: i64 = 64;

/// Request of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    pid: u32,
    scope: Box<str>,
    /// Time since 1970; `None` removes the timer.
    expires: Option<Duration>,
    signal: i32,
}

/// An expired timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredTimer {
    /// ID of the process that had set it.
    pub pid: u32,
    /// Local rank of the worker that the process is or descends from; `None` if it has left its worker.
    pub local_rank: Option<u32>,
    /// Scope of the timer.
    pub scope: Box<str>,
    /// Expiration time since 1970.
    pub expires: Duration,
    /// Time between setting the timer and its expiration.
    pub span: Duration,
    /// Signal for the process; 0 reports the expiration only.
    pub signal: i32,
}

/// Returns the line, with its end, by which process `pid` sets its timer of `scope`, which expires at `expires` since
/// 1970, or removes it (`None`). Returns `None` if it would have more than [`LINE_BYTES_MAX`] bytes.
pub fn timer_line(pid: u32, scope: &str, expires: Option<Duration>, signal: i32) -> Option<String> {
    let scope = Value::from(scope);
    let expires = expires.map_or("-1.0".into(), |expires| format!("{:?}", Seconds(expires)));
    let line = format!(
        "{{\"version\": 1, \"pid\": {pid}, \"scope_id\": {scope}, \"expiration_time\": {expires}, \"signal\": {signal}}}\n"
    );
    (line.len() <= LINE_BYTES_MAX).then_some(line)
}

impl fmt::Display for ExpiredTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.span.as_millis() / 100;
        write!(f, "timer {} (set for {}.{} s by pid {})", self.scope, tenths / 10, tenths % 10, self.pid)
    }
}

/// Reason why input of the watchdog has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// The line is too long.
    #[error("a line has more than {LINE_BYTES_MAX} bytes")]
    TooLong,
    /// The line is not JSON, or not a timer.
    #[error("a line is not a timer")]
    Malformed,
    /// There are too many timers.
    #[error("there are {TIMERS_MAX} timers already")]
    TooMany,
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    expires: Duration,
    span: Duration,
    signal: i32,
}

/// The timers of all workers.
#[derive(Debug, Default)]
pub struct Watchdog {
    timers: SortedMap<u32, SortedMap<Box<str>, Timer>>,
    count: usize,
    /// Earliest expiration of each process, in the order of time.
    due: Set<(Duration, u32)>,
    /// Beginning of a line that is not complete.
    partial: Vec<u8>,
    /// Whether the beginning of the current line was dropped.
    is_overlong: bool,
    refused: VecDeque<Refusal>,
    pause_detector: PauseDetector,
    /// Latest time of the next check, if timers run.
    next_check: Option<Instant>,
    /// Time of the current check, since 1970.
    clock: Duration,
}

impl Watchdog {
    /// Begins a check of the timers, at `now` on the monotonic clock and at `clock` since 1970. If the agent's process
    /// was paused since the last check, its workers most likely were, too, so their timers are extended by the pause.
    pub fn wake(&mut self, now: Instant, clock: Duration) {
        self.clock = clock;
        let due = self.next_check.take();
        let span = self.pause_detector.on_call(now, || due);
        if span.is_zero() {
            return;
        }
        self.due = Set::new();
        for (pid, timers) in self.timers.iter_mut() {
            for (_, timer) in timers.iter_mut() {
                timer.expires = timer.expires.saturating_add(span);
            }
            if let Some(due) = earliest(timers) {
                self.due.insert((due, *pid));
            }
        }
    }

    /// Ends a check. If timers run, the next one is due at [`Watchdog::due`] or after [`CHECK_INTERVAL`].
    pub fn rest(&mut self, now: Instant) {
        self.next_check = (!self.is_empty()).then(|| now + CHECK_INTERVAL);
    }

    /// Handles bytes from the pipe, in chunks of any size. `admits` is called with each process that has no timers yet,
    /// and returns whether it belongs to a worker. Timers of other processes are ignored.
    pub fn read(&mut self, mut bytes: &[u8], admits: &mut dyn FnMut(u32) -> bool) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (chunk, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            self.keep(chunk);
            let line = core::mem::take(&mut self.partial);
            if !core::mem::take(&mut self.is_overlong) && !line.is_empty() {
                self.line(&line, admits);
            }
        }
        self.keep(bytes);
    }

    fn keep(&mut self, chunk: &[u8]) {
        if self.is_overlong {
            return;
        }
        if self.partial.len() + chunk.len() > LINE_BYTES_MAX {
            self.partial = Vec::new();
            self.is_overlong = true;
            return self.refuse(Refusal::TooLong);
        }
        self.partial.extend_from_slice(chunk);
    }

    fn line(&mut self, line: &[u8], admits: &mut dyn FnMut(u32) -> bool) {
        let request = parse(line).or_else(|| {
            self.refuse(Refusal::Malformed);
            // A process that died while it wrote a line has left the beginning of that line before this one.
            let begins = |at: &usize| line[*at..].starts_with(LINE_BEGINS);
            parse(&line[(1..line.len()).rfind(begins)?..])
        });
        let Some(request) = request else { return };
        let Request { pid, scope, expires, signal } = request;
        let set = self.clock;
        match expires {
            None => self.change(pid, |timers| {
                timers.remove(&scope);
            }),
            Some(_) if self.count >= TIMERS_MAX => self.refuse(Refusal::TooMany),
            Some(_) if !self.timers.contains_key(&pid) && !admits(pid) => {}
            Some(expires) => self.change(pid, |timers| {
                timers.insert(scope, Timer { expires, span: expires.saturating_sub(set), signal });
            }),
        }
    }

    /// Changes the timers of a process and keeps the index up to date. All changes use this function.
    fn change(&mut self, pid: u32, change: impl FnOnce(&mut SortedMap<Box<str>, Timer>)) {
        let mut timers = self.timers.remove(&pid).unwrap_or_default();
        self.count -= timers.len();
        if let Some(due) = earliest(&timers) {
            self.due.remove((due, pid));
        }
        change(&mut timers);
        self.count += timers.len();
        if let Some(due) = earliest(&timers) {
            self.due.insert((due, pid));
            self.timers.insert(pid, timers);
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        // Each refusal is queued once until the caller takes it.
        if !self.refused.contains(&refusal) {
            self.refused.push_back(refusal);
        }
    }

    /// Returns the next refusal. Each is reported once between two calls.
    pub fn next_refusal(&mut self) -> Option<Refusal> {
        self.refused.pop_front()
    }

    /// Returns when [`Watchdog::next_expired`] is due, since 1970.
    pub fn due(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| due)
    }

    /// Returns the next process of which a timer has expired by `now`, since 1970, and removes all its timers. The
    /// caller finds the worker of the process.
    pub fn next_expired(&mut self, now: Duration) -> Option<ExpiredTimer> {
        let (due, pid) = self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.remove((due, pid));
        let timers = self.timers.remove(&pid)?;
        self.count -= timers.len();
        let expired = timers.into_iter().filter(|(_, timer)| timer.expires <= now);
        // The first one by time among those with a signal; if none has one, the first.
        let (scope, timer) = expired.min_by_key(|(_, timer)| (timer.signal <= 0, timer.expires))?;
        let signal = timer.signal.max(0);
        let Timer { expires, span, .. } = timer;
        Some(ExpiredTimer { pid, local_rank: None, scope, expires, span, signal })
    }

    /// Removes the timers of a process that has ended.
    pub fn forget(&mut self, pid: u32) {
        self.change(pid, SortedMap::clear);
    }

    /// Returns the number of running timers.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns whether no timer runs.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes everything, before the next start.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn earliest(timers: &SortedMap<Box<str>, Timer>) -> Option<Duration> {
    timers.values().map(|timer| timer.expires).min()
}

fn parse(line: &[u8]) -> Option<Request> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let pid = u32::try_from(value.get("pid")?.as_u64()?).ok().filter(|pid| *pid > 0)?;
    let scope = value.get("scope_id")?.as_str()?.into();
    let expires = value.get("expiration_time")?.as_f64().filter(|seconds| seconds.is_finite())?;
    let signal = value.get("signal")?.as_i64().filter(|signal| *signal <= SIGNAL_MAX)?;
    let expires = if expires < 0.0 {
        None
    } else {
        Some(Duration::try_from_secs_f64(expires).unwrap_or(Duration::MAX))
    };
    Some(Request { pid, scope, expires, signal: i32::try_from(signal).unwrap_or(0) })
}

#[cfg(test)]
mod tests;
