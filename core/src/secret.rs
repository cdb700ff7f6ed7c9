//! Comparison of secrets.

/// Compares secrets in a time that depends on their lengths only.
pub fn same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b));
    one.len() == other.len() && core::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn secrets_are_the_same_if_all_their_bytes_are() {
        assert!(same(b"", b"") && same(b"abc", b"abc"));
        for other in [&b"abd"[..], b"bbc", b"ab", b"abcd", b""] {
            assert!(!same(b"abc", other) && !same(other, b"abc"), "{other:?}");
        }
    }
}
