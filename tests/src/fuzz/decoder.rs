//! Bytes against the wire codec.

use super::SMALL;
use crate::frames::encoded;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::wire::c10d::{Scan, Scanner, parse_frame};

/// For any bytes, in any pieces: one result, no panic, never more bytes requested than the frame has, and a whole frame
/// is encoded to the same bytes.
///
/// # Panics
/// When that does not hold.
pub fn decoder(bytes: &[u8]) {
    for limits in [FrameLimits::default(), SMALL] {
        decode(bytes, &limits);
    }
}

fn decode(bytes: &[u8], limits: &FrameLimits) {
    let mut rest = bytes;
    loop {
        let at_once = Scanner::default().scan(rest, limits);
        let mut scanner = Scanner::default();
        let mut wanted = 1;
        // Byte by byte, the result is the same, and it comes as soon as the bytes that it depends on.
        let piecewise = (0..=rest.len()).find_map(|end| match scanner.scan(&rest[..end], limits) {
            Ok(Scan::Partial { bytes }) => {
                assert!(bytes > end && bytes >= wanted, "{bytes} of {end} after {wanted}");
                wanted = bytes;
                None
            }
            outcome => Some(outcome),
        });
        assert_eq!(piecewise.unwrap_or(Ok(Scan::Partial { bytes: wanted })), at_once);
        let Ok(Scan::Whole { bytes: length }) = at_once else {
            // A parser may parse nothing from an incomplete frame, but must not panic.
            let _ = parse_frame(rest);
            return;
        };
        assert!(length >= wanted && length <= limits.frame_bytes_max.max(32), "{length}");
        let frame = parse_frame(&rest[..length]).expect("the scanner found it whole");
        assert_eq!(encoded(&frame), &rest[..length]);
        rest = &rest[length..];
    }
}
