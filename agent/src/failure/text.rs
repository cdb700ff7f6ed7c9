//! The report as text, in the format of torchrun, but with the root cause first.

use super::{NOT_AVAILABLE, ProcessFailure, WorkerGroupFailure};
use crate::limits::TAIL_LINES;
use alloc::string::String;
use core::fmt::{self, Display, Formatter, Write};

const WIDTH_MAX: usize = 60;

impl Display for WorkerGroupFailure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut root = String::new();
        entry(&mut root, 0, &self.root)?;
        let mut others = String::new();
        for (index, failure) in self.others.iter().enumerate() {
            entry(&mut others, index + 1, failure)?;
        }
        if self.others.is_empty() {
            others.push_str("  <NO_OTHER_FAILURES>\n");
        }
        let lines = root.lines().chain(others.lines());
        let longest = lines.map(|line| line.chars().count()).chain([self.name.chars().count() + 7]).max();
        let width = longest.unwrap_or(0).min(WIDTH_MAX);
        writeln!(f, "{:=<width$}\n{} FAILED\n{:-<width$}", "", self.name, "")?;
        write!(f, "Root Cause (first observed failure):\n{root}{:-<width$}\n", "")?;
        write!(f, "Failures:\n{others}{:=<width$}", "")
    }
}

fn entry(text: &mut String, index: usize, failure: &ProcessFailure) -> fmt::Result {
    let ProcessFailure { host, local_rank, global_rank, pid, exit_code, .. } = failure;
    writeln!(text, "[{index}]:\n  time      : {}", UtcTime(failure.timestamp_s))?;
    writeln!(text, "  host      : {host}\n  rank      : {global_rank} (local_rank: {local_rank})")?;
    write!(text, "  exitcode  : {exit_code} (pid: {pid})")?;
    if let Some(name) = failure.signal().filter(|name| *name != NOT_AVAILABLE) {
        write!(text, " ({name})")?;
    }
    writeln!(text, "\n  error_file: {}", failure.error_file.as_deref().unwrap_or(NOT_AVAILABLE))?;
    if let Some(note) = failure.note {
        writeln!(text, "  note      : {note}")?;
    }
    text.push_str("  traceback : ");
    // PyTorch's call stacks end with the message. For others the message is written before the stack.
    match &failure.callstack {
        Some(stack) if stack.contains(&failure.message) => indented(text, stack),
        Some(stack) => {
            indented(text, &failure.message);
            text.push_str("  ");
            indented(text, stack);
        }
        None => indented(text, &failure.message),
    }
    if !failure.stderr_tail.is_empty() {
        writeln!(text, "  stderr    : (the last {TAIL_LINES} lines at most)")?;
        for line in &failure.stderr_tail {
            writeln!(text, "    {line}")?;
        }
    }
    Ok(())
}

/// Writes lines, each but the first indented by two spaces.
fn indented(text: &mut String, lines: &str) {
    for (index, line) in lines.trim_end().split('\n').enumerate() {
        text.push_str(if index == 0 { "" } else { "  " });
        text.push_str(line);
        text.push('\n');
    }
}

/// Time in seconds since 1970, formatted as date and time of day in UTC.
struct UtcTime(u64);

impl Display for UtcTime {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02} UTC")
    }
}

/// Returns the date a number of days after 1970-01-01. Years are counted from March, so that a leap day is the last day
/// of its year; 400 years have 146097 days.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_BEFORE_1970: u64 = 719_468;
    let days = days.saturating_add(DAYS_BEFORE_1970);
    let (eras, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    // From March on, the lengths 31 30 31 30 31 repeat.
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (eras * 400 + year + later, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn seconds_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01_00:00:00 UTC"),
            (68_169_599, "1972-02-28_23:59:59 UTC"),
            (68_169_600, "1972-02-29_00:00:00 UTC"),
            (951_868_799, "2000-02-29_23:59:59 UTC"),
            (951_868_800, "2000-03-01_00:00:00 UTC"),
            (1_700_000_000, "2023-11-14_22:13:20 UTC"),
            (4_107_542_399, "2100-02-28_23:59:59 UTC"),
            (4_107_542_400, "2100-03-01_00:00:00 UTC"),
        ] {
            assert_eq!(UtcTime(seconds).to_string(), expected);
        }
        // No time of a file is too strange.
        assert!(UtcTime(u64::MAX).to_string().ends_with(" UTC"));
    }

    #[test]
    fn each_day_follows_the_one_before() {
        let mut before = (1969, 12, 31);
        for day in 0..200_000 {
            let (year, month, of_month) = date(day);
            assert!((year, month, of_month) > before && (1..=12).contains(&month) && of_month <= 31);
            assert!(of_month == before.2 + 1 || of_month == 1);
            before = (year, month, of_month);
        }
    }
}
