//! Random numbers of the operating system.

/// Returns random bytes. Each call asks the system, so that no process shares them with the one that it was forked from.
pub fn random<const N: usize>() -> [u8; N] {
    let (mut bytes, mut filled) = ([0; N], 0);
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            // invariant: std's own hash maps cannot be made without it either
            Err(error) => panic!("getrandom(2) failed: {error}"),
        }
    }
    bytes
}

/// Returns a number that differs from call to call and from process to process.
pub fn random_seed() -> u64 {
    u64::from_le_bytes(random())
}
