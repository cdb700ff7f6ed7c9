//! Durations and sizes, in one syntax for all flags and variables.

use bytesize::ByteSize;
use rendezvous_core::driver::rendezvous::parse_duration;
use std::time::Duration;

/// Parses `30s`, `500ms`, `1h 30min`, or a plain number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    parse_duration(text, Duration::from_secs(1)).ok_or_else(|| not_a_duration("seconds"))
}

/// Parses the same, or a plain number of milliseconds.
pub(crate) fn milliseconds(text: &str) -> Result<Duration, String> {
    parse_duration(text, Duration::from_millis(1)).ok_or_else(|| not_a_duration("milliseconds"))
}

/// Parses the same; zero is refused.
pub(crate) fn milliseconds_above_zero(text: &str) -> Result<Duration, String> {
    milliseconds(text).and_then(|span| if span.is_zero() { Err(NOT_ZERO.into()) } else { Ok(span) })
}

/// Parses `4GiB`, `512MB`, or a plain number of bytes.
pub(crate) fn bytes(text: &str) -> Result<ByteSize, String> {
    text.trim().parse().map_err(|_| {
        "not a size: write a number with a unit, such as 4GiB or 512MB; a plain number is in bytes".into()
    })
}

/// Parses the same; zero is refused.
pub(crate) fn bytes_above_zero(text: &str) -> Result<ByteSize, String> {
    bytes(text).and_then(|size| if size.as_u64() == 0 { Err(NOT_ZERO.into()) } else { Ok(size) })
}

/// Parses a number above zero.
pub(crate) fn count_above_zero(text: &str) -> Result<usize, String> {
    match text.trim().parse::<usize>() {
        Ok(0) => Err(NOT_ZERO.into()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

const NOT_ZERO: &str = "it must be above 0";

pub(crate) fn not_a_duration(unit: &str) -> String {
    format!("not a duration: write a number with a unit, such as 30s or 500ms; a plain number is in {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_plain_numbers_the_unit_of_their_flag() {
        for (text, in_seconds, in_milliseconds) in [
            ("30s", 30.0, 30.0),
            ("500ms", 0.5, 0.5),
            ("1h 30min", 5400.0, 5400.0),
            ("1.5s", 1.5, 1.5),
            ("0", 0.0, 0.0),
            ("250", 250.0, 0.25),
            ("0.5", 0.5, 0.0005),
        ] {
            assert_eq!(seconds(text), Ok(Duration::from_secs_f64(in_seconds)), "{text}");
            assert_eq!(milliseconds(text), Ok(Duration::from_secs_f64(in_milliseconds)), "{text}");
        }
        for text in ["", "s", "30 lightyears", "-1", "-1s", "nan", "inf", "1e300", "1,5s"] {
            assert!(seconds(text).is_err_and(|error| error.ends_with("in seconds")), "{text}");
            assert!(milliseconds_above_zero(text).is_err_and(|error| error.ends_with("in milliseconds")));
        }
        assert_eq!(milliseconds_above_zero("0ms"), Err(NOT_ZERO.into()));
    }

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, count) in
            [("4GiB", 4 << 30), ("4 GiB", 4 << 30), ("1kB", 1000), ("0.5KiB", 512), ("7", 7), ("0", 0)]
        {
            assert_eq!(bytes(text), Ok(ByteSize(count)), "{text}");
        }
        for text in ["", "GiB", "-1", "4 buckets", "4GiBs"] {
            assert!(bytes(text).is_err_and(|error| error.ends_with("in bytes")), "{text}");
        }
        assert_eq!(bytes_above_zero("0KiB"), Err(NOT_ZERO.into()));
        assert_eq!(count_above_zero("0"), Err(NOT_ZERO.into()));
        assert_eq!(count_above_zero("3"), Ok(3));
    }
}
