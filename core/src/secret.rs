//! Comparison of secrets.

/// Compares secrets in constant time.
pub fn same<const N: usize>(one: &[u8; N], other: &[u8; N]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b));
    core::hint::black_box(differences) == 0
}
