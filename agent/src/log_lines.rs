//! One stream of a worker's output, split into lines.
//!
//! Each line gets its worker's prefix, lines that contain a needle are duplicated, and the last lines are kept for the
//! failure report. The result does not depend on how the bytes are divided into chunks.
//!
//! A line ends with a line feed. A carriage return alone, as in progress bars, ends a *draft*: a state of the line that
//! the next one overwrites. On a console shared by many workers nothing can be overwritten, so a draft is shown as a
//! line of its own, as torchrun does. Among the last lines, only the last draft counts. `\r\n` is a line feed.
//!
//! A line of more than [`LINE_BYTES_MAX`] is shown in pieces, each a line of its own. Among the last lines it is one.

use crate::limits::{LINE_BYTES_MAX, TAIL_LINE_BYTES_MAX, TAIL_LINES};
use alloc::collections::VecDeque;
use rendezvous_core::prelude::*;

/// Output of the lines. The caller empties it.
#[derive(Debug, Default)]
pub struct LineOutput {
    /// All lines, each with its prefix.
    pub console: Vec<u8>,
    /// The lines that contain a needle.
    pub filtered: Vec<u8>,
}

/// Line splitter of one stream.
#[derive(Debug)]
pub struct LogLines {
    /// Prefix of the lines; `None` shows no line.
    prefix: Option<Vec<u8>>,
    needles: Vec<Vec<u8>>,
    /// Bytes since the last line, draft or piece.
    pending: Vec<u8>,
    line: LineState,
    tail: Tail,
}

/// What has been shown of the current line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    Nothing,
    /// A draft of it.
    Drafts,
    /// Its beginning, because it is long.
    Pieces,
}

/// End of a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    LineFeed,
    CarriageReturn,
    /// The buffer is full.
    Full,
}

impl LogLines {
    /// Creates a stream that shows its lines.
    pub fn new(prefix: Vec<u8>, needles: &[String]) -> Self {
        let needles = needles.iter().map(|needle| needle.as_bytes().to_vec()).collect();
        Self { prefix: Some(prefix), needles, ..Self::unshown() }
    }

    /// Creates a stream that shows nothing and only keeps the last lines.
    pub fn unshown() -> Self {
        Self {
            prefix: None,
            needles: Vec::new(),
            pending: Vec::new(),
            line: LineState::Nothing,
            tail: Tail::default(),
        }
    }

    /// Handles a chunk, and shows the lines that it completes.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut LineOutput) {
        while !bytes.is_empty() {
            let capacity = LINE_BYTES_MAX - self.pending.len();
            let reach = &bytes[..capacity.min(bytes.len())];
            let Some(at) = reach.iter().position(|&byte| byte == b'\n' || byte == b'\r') else {
                self.pending.extend_from_slice(reach);
                bytes = &bytes[reach.len()..];
                if self.pending.len() == LINE_BYTES_MAX {
                    self.end(End::Full, &[], out);
                }
                continue;
            };
            let end = if bytes[at] == b'\n' { End::LineFeed } else { End::CarriageReturn };
            self.end(end, &bytes[..at], out);
            bytes = &bytes[at + 1..];
        }
    }

    /// Shows the last line even if it is not terminated. Called at the end of the stream.
    pub fn finish(&mut self, out: &mut LineOutput) {
        if !self.pending.is_empty() {
            self.end(End::LineFeed, &[], out);
        }
    }

    /// Returns the last lines, including an incomplete one.
    pub fn tail(&self) -> Vec<String> {
        let mut tail = self.tail.clone();
        if !self.pending.is_empty() {
            tail.add(&self.pending, self.line);
        }
        tail.lines.iter().map(TailLine::text).collect()
    }

    fn end(&mut self, end: End, last: &[u8], out: &mut LineOutput) {
        let mut pending = core::mem::take(&mut self.pending);
        // Most lines arrive in one chunk, and need no copy here.
        let whole = if pending.is_empty() {
            last
        } else {
            pending.extend_from_slice(last);
            &pending[..]
        };
        // A multi-byte character is not split.
        let keep = if end == End::Full { whole_characters(whole) } else { whole.len() };
        let (whole, rest) = whole.split_at(keep);
        let is_empty_end = match end {
            End::LineFeed => self.line != LineState::Nothing,
            End::CarriageReturn | End::Full => true,
        };
        if !(whole.is_empty() && is_empty_end) {
            self.show(whole, out);
            self.tail.add(whole, self.line);
        }
        self.line = match end {
            End::LineFeed => LineState::Nothing,
            End::Full => LineState::Pieces,
            // The state before stays to be overwritten.
            End::CarriageReturn if whole.is_empty() => self.line,
            End::CarriageReturn => LineState::Drafts,
        };
        let rest_length = rest.len();
        if rest_length > 0 {
            pending.drain(..keep);
        } else {
            pending.clear();
        }
        // Frees the memory of a long line.
        if end != End::Full && pending.capacity() > LINE_BYTES_MAX / 8 {
            pending = Vec::new();
        }
        self.pending = pending;
    }

    fn show(&self, line: &[u8], out: &mut LineOutput) {
        let Some(prefix) = &self.prefix else { return };
        let write = |to: &mut Vec<u8>| {
            to.reserve(prefix.len() + line.len() + 1);
            to.extend_from_slice(prefix);
            to.extend_from_slice(line);
            to.push(b'\n');
        };
        write(&mut out.console);
        if self.needles.iter().any(|needle| contains(line, needle)) {
            write(&mut out.filtered);
        }
    }
}

/// Returns the length of the whole characters in a text that may be cut anywhere. Text that is not UTF-8 is kept as it
/// is.
fn whole_characters(text: &[u8]) -> usize {
    let trailing = text.iter().rev().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
    let Some(first) = text.len().checked_sub(trailing + 1) else { return text.len() };
    let length = match text[first] {
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf8 => 4,
        _ => return text.len(),
    };
    if first > 0 && trailing + 1 < length { first } else { text.len() }
}

fn contains(line: &[u8], needle: &[u8]) -> bool {
    let Some((first, others)) = needle.split_first() else { return true };
    let mut rest = line;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = &rest[at + 1..];
        if rest.starts_with(others) {
            return true;
        }
    }
    false
}

/// The last lines of a stream.
#[derive(Clone, Debug, Default)]
struct Tail {
    lines: VecDeque<TailLine>,
}

#[derive(Clone, Debug)]
struct TailLine {
    /// Beginning of the line, which has the kind of an error.
    bytes: Vec<u8>,
    left_out: u64,
}

impl Tail {
    /// Adds a new line, or continues the last one.
    fn add(&mut self, bytes: &[u8], line: LineState) {
        match (line, self.lines.back_mut()) {
            (LineState::Pieces, Some(last)) => return last.extend(bytes),
            (LineState::Drafts, Some(last)) => {
                last.bytes.clear();
                last.left_out = 0;
                return last.extend(bytes);
            }
            _ => {}
        }
        // The memory of the dropped line is reused.
        let mut fresh = if self.lines.len() < TAIL_LINES { None } else { self.lines.pop_front() }
            .unwrap_or(TailLine { bytes: Vec::new(), left_out: 0 });
        fresh.bytes.clear();
        fresh.left_out = 0;
        fresh.extend(bytes);
        self.lines.push_back(fresh);
    }
}

impl TailLine {
    fn extend(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(TAIL_LINE_BYTES_MAX - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..kept]);
        self.left_out += (bytes.len() - kept) as u64;
    }

    fn text(&self) -> String {
        if self.left_out == 0 {
            return String::from_utf8_lossy(&self.bytes).into_owned();
        }
        let kept = &self.bytes[..whole_characters(&self.bytes)];
        let left_out = self.left_out + (self.bytes.len() - kept.len()) as u64;
        alloc::format!("{} ... ({left_out} bytes left out)", String::from_utf8_lossy(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;
    use alloc::vec;
    use rendezvous_core::rng::Rng;

    fn machine(needles: &[&str]) -> LogLines {
        let needles: Vec<String> = needles.iter().map(ToString::to_string).collect();
        LogLines::new(b"P:".to_vec(), &needles)
    }

    /// Returns what is shown of an output in these chunks, and its last lines.
    fn shown_of(pieces: &[&[u8]], needles: &[&str]) -> (LineOutput, Vec<String>) {
        let (mut lines, mut out) = (machine(needles), LineOutput::default());
        for chunk in pieces {
            lines.push(chunk, &mut out);
            assert!(lines.pending.len() < LINE_BYTES_MAX);
        }
        lines.finish(&mut out);
        (out, lines.tail())
    }

    #[track_caller]
    fn shows(output: &str, expected: &str, last: &[&str]) {
        let (out, tail) = shown_of(&[output.as_bytes()], &[]);
        assert_eq!(String::from_utf8_lossy(&out.console), expected, "{output:?}");
        assert_eq!(tail, last, "{output:?}");
        assert!(out.filtered.is_empty());
    }

    #[test]
    fn each_line_has_its_prefix_and_the_unfinished_one_is_shown_at_the_end() {
        shows("", "", &[]);
        shows("one\ntwo\n", "P:one\nP:two\n", &["one", "two"]);
        shows("one\n\ntwo", "P:one\nP:\nP:two\n", &["one", "", "two"]);
        shows("\n", "P:\n", &[""]);
        shows("é\n\u{1f600}", "P:é\nP:\u{1f600}\n", &["é", "\u{1f600}"]);
    }

    #[test]
    fn carriage_returns_end_drafts_of_which_the_last_counts() {
        shows("one\r\ntwo\r\n", "P:one\nP:two\n", &["one", "two"]);
        shows("\r\n\r\n", "P:\nP:\n", &["", ""]);
        shows("one\r\r\n", "P:one\n", &["one"]);
        shows("\r10%\r20%\r100%\ndone\n", "P:10%\nP:20%\nP:100%\nP:done\n", &["100%", "done"]);
        shows("10%\r20%\r100%\r\ndone", "P:10%\nP:20%\nP:100%\nP:done\n", &["100%", "done"]);
        shows("a\n10%\r20%", "P:a\nP:10%\nP:20%\n", &["a", "20%"]);
        shows("50%\r", "P:50%\n", &["50%"]);
    }

    #[test]
    fn a_draft_is_shown_at_once() {
        let (mut lines, mut out) = (machine(&[]), LineOutput::default());
        lines.push(b"10%\r", &mut out);
        assert_eq!(out.console, b"P:10%\n");
        lines.push(b"20", &mut out);
        assert_eq!(lines.tail(), ["20"], "what has not ended counts, too");
        lines.push(b"%\nx", &mut out);
        assert_eq!(lines.tail(), ["20%", "x"]);
        lines.push(b"y", &mut out);
        assert_eq!(lines.tail(), ["20%", "xy"]);
        assert_eq!(out.console, b"P:10%\nP:20%\n");
    }

    #[test]
    fn only_the_last_twenty_lines_are_kept_and_of_each_its_beginning() {
        let many: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let (_, tail) = shown_of(&[many.as_bytes()], &[]);
        let expected: Vec<String> = (80..100).map(|number| format!("line {number}")).collect();
        assert_eq!(tail, expected);

        let long = "é".repeat(LINE_BYTES_MAX);
        let (_, tail) = shown_of(&[b"before\nx", long.as_bytes(), b"\nbehind"], &[]);
        let kept = (TAIL_LINE_BYTES_MAX - 1) / 2;
        let left_out = 2 * (LINE_BYTES_MAX - kept);
        let long = format!("x{} ... ({left_out} bytes left out)", "é".repeat(kept));
        assert_eq!(tail, ["before", &long, "behind"], "pieces of one line are one line");
    }

    #[test]
    fn a_long_line_is_passed_on_in_pieces_between_letters() {
        let line = ["x", &"é".repeat(LINE_BYTES_MAX), "\nnext\n"].concat();
        let (out, _) = shown_of(&[line.as_bytes()], &[]);
        let out = String::from_utf8(out.console).expect("no letter is cut");
        let pieces: Vec<&str> = out.lines().map(|line| line.strip_prefix("P:").expect("a prefix")).collect();
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces[..3].concat(), line[..line.len() - 6]);
        assert_eq!([pieces[0].len(), pieces[1].len()], [LINE_BYTES_MAX - 1, LINE_BYTES_MAX]);
        // A line that ends where a piece does is not followed by an empty piece.
        let exact = "x".repeat(LINE_BYTES_MAX) + "\nnext\n";
        let (out, _) = shown_of(&[exact.as_bytes()], &[]);
        assert_eq!(out.console.len(), exact.len() + 4);
    }

    #[test]
    fn what_is_no_text_is_passed_on_as_it_is() {
        for byte in [0x80, 0xc3, 0xff, 0xf0, 0] {
            let (out, _) = shown_of(&[&vec![byte; 3 * LINE_BYTES_MAX]], &[]);
            let bytes = out.console.iter().filter(|&&found| found == byte).count();
            assert_eq!(bytes, 3 * LINE_BYTES_MAX, "{byte:x}");
        }
    }

    #[test]
    fn lines_with_a_needle_are_duplicated() {
        let output = "an apple\nnothing\noranges\nappl\ne\naapple";
        let (out, _) = shown_of(&[output.as_bytes()], &["apple", "orange"]);
        assert_eq!(String::from_utf8_lossy(&out.filtered), "P:an apple\nP:oranges\nP:aapple\n");
        assert!(contains(b"aab", b"ab") && contains(b"x", b"") && !contains(b"", b"a"));
    }

    #[test]
    fn however_much_comes_without_a_line_feed_little_is_kept() {
        let (mut lines, mut out) = (machine(&[]), LineOutput::default());
        let chunk = vec![b'x'; 1 << 20];
        let mut passed = 0;
        for _ in 0..64 {
            lines.push(&chunk, &mut out);
            passed += out.console.len();
            out.console.clear();
            assert!(lines.pending.capacity() <= 2 * LINE_BYTES_MAX && out.console.capacity() < 4 << 20);
        }
        assert!(passed > 64 << 20);
        assert_eq!(lines.tail().len(), 1);
    }

    #[test]
    fn what_is_not_shown_has_last_lines_too() {
        let (mut lines, mut out) = (LogLines::unshown(), LineOutput::default());
        lines.push(b"loading\nstep 1\rstep 2", &mut out);
        assert_eq!(lines.tail(), ["loading", "step 2"]);
        lines.finish(&mut out);
        assert_eq!(lines.tail(), ["loading", "step 2"]);
        assert!(out.console.is_empty() && out.filtered.is_empty());
    }

    /// Any division of the same bytes into chunks shows the same lines.
    #[test]
    fn lines_do_not_depend_on_pieces() {
        let characters: [&[u8]; 8] = [b"\n", b"\r", b"\r\n", b"a", b"needle", "é".as_bytes(), b"\xff", b"ne"];
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut output = Vec::new();
            for _ in 0..rng.below(60) {
                let chosen = characters[usize::try_from(rng.below(8)).expect("small")];
                output.extend_from_slice(chosen);
                if rng.below(40) == 0 {
                    output.resize(output.len() + LINE_BYTES_MAX - 3 + chosen.len(), b'-');
                    output.extend_from_slice("éé".as_bytes());
                }
            }
            let (whole, last) = shown_of(&[&output], &["needle"]);
            for most in [2, 7, 5000, 100_000] {
                let mut pieces = Vec::new();
                let mut rest = &output[..];
                while !rest.is_empty() {
                    let length = rest.len().min(1 + usize::try_from(rng.below(most)).expect("small"));
                    pieces.push(&rest[..length]);
                    rest = &rest[length..];
                }
                let (cut, last_cut) = shown_of(&pieces, &["needle"]);
                assert!(
                    cut.console == whole.console && cut.filtered == whole.filtered,
                    "seed {seed}, {most}"
                );
                assert_eq!(last_cut, last, "seed {seed}, {most}");
            }
            // Only ends of lines are dropped or added.
            let text = |bytes: &[u8]| -> Vec<u8> {
                bytes.iter().copied().filter(|byte| !b"\r\n".contains(byte)).collect()
            };
            let without_prefixes: Vec<u8> = whole
                .console
                .split(|&byte| byte == b'\n')
                .flat_map(|line| text(line.get(2..).unwrap_or(&[])))
                .collect();
            assert!(without_prefixes == text(&output), "seed {seed}");
        }
    }
}
