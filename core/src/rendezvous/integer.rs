//! Integers as Python reads them, and strings as it quotes them. Ranks in Python and in C++ accept the same settings
//! and refuse others with the same message.
use crate::prelude::*;

/// A string that is no integer, or no 64-bit one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid literal for int() with base 10: {}", Quoted(.text))]
pub struct NotAnInteger {
    /// The string as given.
    pub text: Box<str>,
}

/// Reads a decimal integer. Whitespace around it, a sign, and single underscores between digits are accepted.
///
/// # Errors
/// The string is no such integer.
pub fn parse_integer(text: &str) -> Result<i64, NotAnInteger> {
    let refused = || NotAnInteger { text: text.into() };
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    let mut magnitude: i128 = 0;
    for group in digits.split('_') {
        // A leading, trailing or doubled underscore leaves an empty group.
        if group.is_empty() {
            return Err(refused());
        }
        for byte in group.bytes() {
            let digit = byte.is_ascii_digit().then(|| i128::from(byte - b'0')).ok_or_else(refused)?;
            magnitude = magnitude.saturating_mul(10).saturating_add(digit);
        }
    }
    let signed = if trimmed.starts_with('-') { -magnitude } else { magnitude };
    i64::try_from(signed).map_err(|_| refused())
}

/// A string in quotes, with control characters escaped.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let quote = if self.0.contains('\'') && !self.0.contains('"') { '"' } else { '\'' };
        f.write_char(quote)?;
        for character in self.0.chars() {
            match character {
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '\\' => f.write_str("\\\\")?,
                character if character == quote => write!(f, "\\{character}")?,
                character if character.is_control() => write!(f, "\\x{:02x}", u32::from(character))?,
                character => f.write_char(character)?,
            }
        }
        f.write_char(quote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn integers_are_read_as_python_reads_them() {
        for (text, value) in [
            ("7", 7),
            (" 7 ", 7),
            ("\t-7\n", -7),
            ("+7", 7),
            ("007", 7),
            ("-0", 0),
            ("1_000", 1000),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_integer(text), Ok(value), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_integer_is_quoted_as_python_quotes_it() {
        for (text, quoted) in [
            ("", "''"),
            ("x", "'x'"),
            ("- 7", "'- 7'"),
            ("--7", "'--7'"),
            ("_7", "'_7'"),
            ("7_", "'7_'"),
            ("1__0", "'1__0'"),
            ("7.0", "'7.0'"),
            ("0x7", "'0x7'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\\b\n\r\t\u{1}", "'a\\\\b\\n\\r\\t\\x01'"),
            ("9223372036854775808", "'9223372036854775808'"),
        ] {
            let error = parse_integer(text).expect_err("no integer");
            assert_eq!(error.to_string(), ["invalid literal for int() with base 10: ", quoted].concat());
        }
    }
}
