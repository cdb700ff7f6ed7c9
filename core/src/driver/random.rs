//! Random numbers of the operating system.

/// Returns a number that differs from call to call and from process to process.
pub fn random_seed() -> u64 {
    use core::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}
