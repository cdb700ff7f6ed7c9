//! Trace of a run. All lines go into one hash, by which two runs of a seed are compared. The last lines are kept for
//! the report of an error.

use rendezvous_core::time::Instant;
use std::collections::VecDeque;
use std::fmt::{self, Write};

/// Lines in the report of an error.
const LINES_KEPT: usize = 60;

/// Where the lines go, besides into the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// The last lines are kept.
    Quiet,
    /// Each line is also printed to standard output at once.
    Loud,
}

pub(in crate::sim) struct Trace {
    verbosity: Verbosity,
    hash: u64,
    lines: u64,
    last: VecDeque<String>,
}

impl Trace {
    pub(in crate::sim) fn new(verbosity: Verbosity) -> Self {
        Self { verbosity, hash: FNV_OFFSET, lines: 0, last: VecDeque::new() }
    }

    pub(in crate::sim) fn note(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        let mut line =
            if self.last.len() == LINES_KEPT { self.last.pop_front() } else { None }.unwrap_or_default();
        line.clear();
        let micros = now.as_nanos() / 1000;
        // Writing to a string cannot fail.
        let _ = write!(line, "{:>6}.{:06} {what}", micros / 1_000_000, micros % 1_000_000);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        self.lines += 1;
        if self.verbosity == Verbosity::Loud {
            println!("{line}");
        }
        self.last.push_back(line);
    }

    pub(in crate::sim) const fn hash(&self) -> u64 {
        self.hash
    }

    pub(in crate::sim) const fn lines(&self) -> u64 {
        self.lines
    }

    pub(in crate::sim) fn into_last(self) -> Vec<String> {
        self.last.into()
    }
}

// The constants of the 64-bit FNV-1a hash.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
