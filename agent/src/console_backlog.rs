//! Output that a console has not accepted yet. A console may be slow or stalled: a paused terminal, a reader that
//! hangs.
//!
//! A stream that goes only to the console waits for it, as without an agent in between. A stream that also goes to a
//! file waits while the console makes progress, and continues without it after a stall of [`CONSOLE_STALL`].

use crate::limits::{CONSOLE_BYTES_MAX, CONSOLE_FULL_BYTES, CONSOLE_STALL};
use rendezvous_core::prelude::*;

/// Whether a stream's output is stored elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The console is the only destination.
    OnlyConsole,
    /// The output is stored in a file, or its end must not be missed.
    Stored,
}

/// Buffer of one console.
#[derive(Debug, Default)]
pub struct ConsoleBacklog {
    bytes: Vec<u8>,
    /// Number of bytes that the console has accepted.
    taken: usize,
    left_out: u64,
    /// Time at which it last accepted something or had nothing to accept.
    moved_at: Instant,
}

impl ConsoleBacklog {
    /// Adds output. It is shown completely or left out completely.
    pub fn add(&mut self, now: Instant, bytes: &[u8]) {
        // There is one gap at a time, so that its position can be noted.
        if self.left_out > 0 || self.unsent().len() >= CONSOLE_BYTES_MAX {
            self.left_out += bytes.len() as u64;
            return;
        }
        if self.is_empty() {
            self.moved_at = now;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the bytes to write next.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// Returns whether the console has accepted everything.
    pub fn is_empty(&self) -> bool {
        self.unsent().is_empty()
    }

    /// Records that the console has accepted `count` bytes. Once there is room, a note about omitted output is added.
    pub fn took(&mut self, now: Instant, count: usize) {
        self.taken += count;
        self.moved_at = now;
        if self.left_out > 0 && !self.is_full() {
            let note = format!(
                "\nrdzv: {} bytes of workers' output are missing here: the console did not take them\n",
                core::mem::take(&mut self.left_out)
            );
            self.bytes.extend_from_slice(note.as_bytes());
        }
        if self.is_empty() {
            self.forget();
        } else if self.taken > CONSOLE_FULL_BYTES {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Drops all output: the console is closed, or refuses the output.
    pub fn forget(&mut self) {
        self.taken = 0;
        self.left_out = 0;
        self.bytes.clear();
        // Frees the memory of a burst.
        if self.bytes.capacity() > CONSOLE_FULL_BYTES {
            self.bytes = Vec::new();
        }
    }

    /// Returns whether streams that can wait have to wait.
    pub fn is_full(&self) -> bool {
        self.unsent().len() >= CONSOLE_FULL_BYTES
    }

    /// Returns whether more may be read from a stream that is shown here.
    pub fn lets_read(&self, now: Instant, need: Need) -> bool {
        !self.is_full() || (need == Need::Stored && self.stalls_at().is_some_and(|at| now >= at))
    }

    /// Returns when the console counts as stalled, unless it accepts something before.
    pub fn stalls_at(&self) -> Option<Instant> {
        self.is_full().then(|| self.moved_at + CONSOLE_STALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Need::{OnlyConsole, Stored};
    use alloc::vec;

    const START: Instant = Instant::from_millis(5000);

    fn full() -> ConsoleBacklog {
        let mut backlog = ConsoleBacklog::default();
        backlog.add(START, &vec![b'x'; CONSOLE_FULL_BYTES]);
        backlog
    }

    #[test]
    fn what_comes_is_taken_in_order_in_any_pieces() {
        let mut backlog = ConsoleBacklog::default();
        assert!(backlog.is_empty() && backlog.lets_read(START, OnlyConsole));
        backlog.add(START, b"one\n");
        backlog.took(START, 2);
        backlog.add(START, b"two\n");
        assert_eq!(backlog.unsent(), b"e\ntwo\n");
        backlog.took(START, 6);
        assert!(backlog.is_empty() && backlog.bytes.is_empty() && backlog.stalls_at().is_none());
    }

    #[test]
    fn all_wait_for_a_slow_console_and_none_with_a_file_for_one_that_stands_still() {
        let mut backlog = full();
        let stalled = START + CONSOLE_STALL;
        for (now, external) in [(START, false), (stalled, true)] {
            assert!(!backlog.lets_read(now, OnlyConsole), "it waits as long as it takes");
            assert_eq!(backlog.lets_read(now, Stored), external);
        }
        assert_eq!(backlog.stalls_at(), Some(stalled));
        // It accepted one byte, and more was added.
        backlog.took(stalled, 1);
        backlog.add(stalled, b"xx");
        assert_eq!(backlog.stalls_at(), Some(stalled + CONSOLE_STALL));
        assert!(!backlog.lets_read(stalled, Stored));
        backlog.took(stalled, 2);
        assert!(backlog.lets_read(stalled, OnlyConsole));
    }

    #[test]
    fn time_without_anything_to_take_is_no_standing_still() {
        let mut backlog = ConsoleBacklog::default();
        let later = START + CONSOLE_STALL * 10;
        backlog.add(later, &vec![b'x'; CONSOLE_FULL_BYTES]);
        assert!(!backlog.lets_read(later, Stored));
    }

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let mut backlog = full();
        let line = vec![b'y'; 1000];
        let mut added = CONSOLE_FULL_BYTES;
        while backlog.left_out == 0 {
            backlog.add(START, &line);
            added += line.len();
        }
        assert!(
            added < CONSOLE_BYTES_MAX + 2 * line.len()
                && backlog.bytes.len() <= CONSOLE_BYTES_MAX + line.len()
        );
        backlog.add(START, &line);
        let kept = backlog.unsent().len();
        let mut visible = Vec::new();
        while !backlog.is_empty() {
            let chunk = backlog.unsent().len().min(4096);
            visible.extend_from_slice(&backlog.unsent()[..chunk]);
            backlog.took(START, chunk);
            if backlog.is_full() {
                backlog.add(START, b"!");
            }
            assert!(backlog.bytes.len() <= CONSOLE_BYTES_MAX + line.len() + 100);
        }
        let note = &visible[kept..];
        assert!(
            note.starts_with(b"\nrdzv: 21") && note.ends_with(b" did not take them\n"),
            "once, where they are missing"
        );
        assert_eq!(note.iter().filter(|&&byte| byte == b'\n').count(), 2);
        assert_eq!(backlog.bytes.capacity(), 0);
    }

    #[test]
    fn nobody_waits_for_a_closed_console() {
        let mut backlog = full();
        backlog.forget();
        assert!(backlog.is_empty() && backlog.lets_read(START, OnlyConsole));
    }
}
