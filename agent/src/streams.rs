//! The user's selection of workers' output: which streams, of which local ranks, and which lines.

use rendezvous_core::prelude::*;
use thiserror::Error;

/// One of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Both streams.
    pub const ALL: [Self; 2] = [Self::Stdout, Self::Stderr];

    /// Returns `stdout` or `stderr`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Set of a worker's streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Std {
    /// Neither; `0`.
    #[default]
    None,
    /// Standard output; `1`.
    Out,
    /// Standard error; `2`.
    Err,
    /// Both; `3`.
    Both,
}

impl Std {
    /// Returns the set for torchrun's number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Out),
            2 => Some(Self::Err),
            3 => Some(Self::Both),
            _ => None,
        }
    }

    /// Returns whether the stream is in the set.
    pub const fn includes(self, stream: Stream) -> bool {
        match stream {
            Stream::Stdout => matches!(self, Self::Out | Self::Both),
            Stream::Stderr => matches!(self, Self::Err | Self::Both),
        }
    }
}

/// Streams of each worker: one setting for all, or a setting for each listed worker and none for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StdSetting {
    /// The same for all workers.
    All(Std),
    /// By local rank; if one is listed twice, the last one counts.
    ByRank(Vec<(u32, Std)>),
}

impl Default for StdSetting {
    fn default() -> Self {
        Self::All(Std::None)
    }
}

/// Error of parsing a [`StdSetting`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(r"{value} does not match: <^[0123]$> or <^(\d+:[0123],)*(\d+:[0123])$>")]
pub struct StdError {
    /// The invalid text.
    pub value: String,
}

impl StdSetting {
    /// Parses `0` to `3`, or `0:3,1:0`. PyTorch accepts local ranks of one digit only; here they may have more.
    ///
    /// # Errors
    /// The text has neither format.
    pub fn parse(text: &str) -> Result<Self, StdError> {
        let value = |text: &str| decimal(text).filter(|_| text.len() == 1).and_then(Std::from_number);
        if let Some(all) = value(text) {
            return Ok(Self::All(all));
        }
        let pair = |pair: &str| {
            let (rank, streams) = pair.split_once(':')?;
            Some((decimal(rank)?, value(streams)?))
        };
        let pairs: Option<Vec<_>> = text.split(',').map(pair).collect();
        pairs.map(Self::ByRank).ok_or_else(|| StdError { value: text.to_string() })
    }

    /// Returns the streams of one worker.
    pub fn of(&self, local_rank: u32) -> Std {
        match self {
            Self::All(streams) => *streams,
            Self::ByRank(pairs) => pairs
                .iter()
                .rev()
                .find(|(rank, _)| *rank == local_rank)
                .map_or(Std::None, |(_, streams)| *streams),
        }
    }
}

/// Parses digits only, without a sign.
fn decimal(text: &str) -> Option<u32> {
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    if is_decimal { text.parse().ok() } else { None }
}

/// Local ranks whose output the console shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LocalRanksFilter {
    /// All local ranks.
    #[default]
    All,
    /// These local ranks.
    Only(Vec<u32>),
}

/// Error of parsing a [`LocalRanksFilter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2")]
pub struct LocalRanksError;

impl LocalRanksFilter {
    /// Parses `0,1,2`, with spaces around the numbers; an empty text means all.
    ///
    /// # Errors
    /// An element of the list is not a local rank.
    pub fn parse(text: &str) -> Result<Self, LocalRanksError> {
        if text.is_empty() {
            return Ok(Self::All);
        }
        let ranks: Option<Vec<u32>> = text.split(',').map(|rank| decimal(rank.trim())).collect();
        ranks.map(Self::Only).ok_or(LocalRanksError)
    }

    /// Returns whether the console shows this local rank.
    pub fn lets_pass(&self, local_rank: u32) -> bool {
        match self {
            Self::All => true,
            Self::Only(ranks) => ranks.contains(&local_rank),
        }
    }
}

/// Parses a list of texts, one of which a line must contain to be duplicated. They are separated by `,`, and `,,` is a
/// comma within a text. Empty texts are dropped: every line contains them.
pub fn parse_needles(text: &str) -> Vec<String> {
    let mut needles = Vec::new();
    let mut needle = String::new();
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character != ',' || characters.next_if_eq(&',').is_some() {
            needle.push(character);
        } else {
            needles.push(core::mem::take(&mut needle));
        }
    }
    needles.push(needle);
    needles.retain(|needle| !needle.is_empty());
    needles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_for_all() {
        for (text, std) in [("0", Std::None), ("1", Std::Out), ("2", Std::Err), ("3", Std::Both)] {
            let setting = StdSetting::parse(text).expect("a value");
            assert_eq!(setting, StdSetting::All(std));
            assert_eq!(setting.of(17), std);
        }
        assert!(Std::Both.includes(Stream::Stdout) && Std::Both.includes(Stream::Stderr));
        assert!(Std::Out.includes(Stream::Stdout) && !Std::Out.includes(Stream::Stderr));
        assert!(Std::Err.includes(Stream::Stderr) && !Std::Err.includes(Stream::Stdout));
        assert!(!Std::None.includes(Stream::Stdout) && !Std::None.includes(Stream::Stderr));
    }

    #[test]
    fn a_value_for_each_rank_of_any_number_of_digits() {
        let setting = StdSetting::parse("0:3,9:1,10:2,127:3,0:1").expect("a map");
        let of = [0, 1, 9, 10, 127].map(|rank| setting.of(rank));
        assert_eq!(of, [Std::Out, Std::None, Std::Out, Std::Err, Std::Both]);
    }

    #[test]
    fn what_is_neither_is_told_with_what_would_have_been() {
        for text in [
            "",
            "4",
            "00",
            "01",
            "-1",
            "+1",
            " 1",
            "1 ",
            "a",
            "0:4",
            "0:",
            ":1",
            "0:1,",
            ",0:1",
            "0:1,,1:1",
            "0 :1",
            "0:1;1:1",
            "0:11",
            "+0:1",
            "99999999999:1",
            "1,2",
            "²",
        ] {
            let error = StdSetting::parse(text).expect_err(text).to_string();
            assert_eq!(
                error,
                [text, r" does not match: <^[0123]$> or <^(\d+:[0123],)*(\d+:[0123])$>"].concat()
            );
        }
    }

    #[test]
    fn ranks_of_the_console() {
        assert!(LocalRanksFilter::parse("").expect("all").lets_pass(5));
        let some = LocalRanksFilter::parse("0, 2,11").expect("a list");
        let passed: Vec<u32> = (0..20).filter(|&rank| some.lets_pass(rank)).collect();
        assert_eq!(passed, [0, 2, 11]);
        for text in ["a", ",", "1,", "1;2", "-1", "1.0"] {
            assert_eq!(
                LocalRanksFilter::parse(text).expect_err(text).to_string(),
                "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2"
            );
        }
    }

    #[test]
    fn needles_are_between_commas_and_two_commas_are_one() {
        assert_eq!(parse_needles("apple,orange"), ["apple", "orange"]);
        assert_eq!(parse_needles("a,,b,c"), ["a,b", "c"]);
        assert_eq!(parse_needles(",,,"), [","]);
        assert_eq!(parse_needles("a,,,b"), ["a,", "b"]);
        assert_eq!(parse_needles("é, ü"), ["é", " ü"]);
        assert!(parse_needles("").is_empty() && parse_needles(",").is_empty());
    }
}
