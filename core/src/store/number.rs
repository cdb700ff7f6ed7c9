//! Decimal numbers as c10d stores parse them: C `strtoll`, base 10.

/// Maximum length of a decimal `i64`, in bytes: a sign and nineteen digits.
pub const DIGITS_MAX: usize = 20;

/// Length of the text in which a number is looked for, in bytes, so that a long value costs no more than a short one.
pub const TEXT_BYTES_MAX: usize = 64;

/// Parses the number at the start of `text`: white space, a sign, digits. Anything after the digits is ignored.
/// Returns `None` without digits in the first [`TEXT_BYTES_MAX`] bytes, or for a number outside 64 bits. Source: c10d protocol, section 4.1 ("ADD
/// parsing").
pub fn parse_leading(text: &[u8]) -> Option<i64> {
    let text = &text[..text.len().min(TEXT_BYTES_MAX)];
    let blanks = text.iter().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)).count();
    let text = &text[blanks..];
    let (negative, text) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    // Accumulated as a negative number, because `i64::MIN` has no positive counterpart.
    let below_zero = text[..digits]
        .iter()
        .try_fold(0i64, |number, digit| number.checked_mul(10)?.checked_sub(i64::from(digit - b'0')))?;
    if negative { Some(below_zero) } else { below_zero.checked_neg() }
}

#[cfg(test)]
mod tests {
    use super::parse_leading;

    #[test]
    fn numbers_are_read_as_strtoll_reads_them() {
        for (text, number) in [
            ("0", Some(0)),
            ("-7", Some(-7)),
            ("+7", Some(7)),
            (" \t7", Some(7)),
            ("12abc", Some(12)),
            ("0x10", Some(0)),
            ("3.9", Some(3)),
            ("007", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("", None),
            ("-", None),
            ("abc", None),
            ("- 1", None),
        ] {
            assert_eq!(parse_leading(text.as_bytes()), number, "{text:?}");
        }
    }
}
