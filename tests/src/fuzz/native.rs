//! Bytes against the codec of the native protocol.

use super::SMALL;
use super::drawn::{Names, native_request};
use crate::entropy::{Entropy, noise};
use crate::frames;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::rng::Rng;
use rendezvous_core::wire::native::{
    ClientFrame, From, HEADER_BYTES, Header, Label, MAGIC, Scan, ServerFrame, Splitter, VERSION_MAX,
    negotiate, scan, scan_opening,
};
use rendezvous_core::wire::split::Chunk;

/// For any bytes: a frame is found or refused as early as possible and the same in any pieces, the splitter agrees with
/// the scanner, and what is parsed is encoded to a body that is parsed to the same.
///
/// # Panics
/// When that does not hold.
pub fn native(bytes: &[u8]) {
    for limits in [FrameLimits::default(), SMALL] {
        for from in [From::Client, From::Server] {
            let scanned = stream(bytes, from, &limits);
            assert_eq!(split(&[bytes], from, &limits), scanned);
            assert_eq!(split(&bytes.chunks(1).collect::<Vec<_>>(), from, &limits), scanned);
        }
        opening(bytes, &limits);
        // A body without a header: most bytes of the input are those of one frame.
        if let Some((kind, body)) = bytes.split_first_chunk() {
            let kind = u16::from_le_bytes(*kind);
            check_body(From::Client, kind, body, &limits);
            check_body(From::Server, kind, body, &limits);
        }
    }
    let version =
        |at: usize| u16::from_le_bytes([at, at + 1].map(|at| bytes.get(at).copied().unwrap_or_default()));
    if let Ok(chosen) = negotiate(version(0), version(2)) {
        assert!((version(0)..=version(2)).contains(&chosen) && chosen <= VERSION_MAX);
    }
}

/// Headers of the frames at the front, and whether what follows is refused.
type Scanned = (Vec<Header>, bool);

fn stream(bytes: &[u8], from: From, limits: &FrameLimits) -> Scanned {
    let (mut rest, mut headers) = (bytes, Vec::new());
    loop {
        let at_once = scan(rest, from, limits);
        // The outcome comes with the bytes that it depends on, and no earlier bytes promise another one.
        let mut wanted = 1;
        for end in 0..rest.len().min(HEADER_BYTES + 1) {
            match scan(&rest[..end], from, limits) {
                Ok(Scan::Partial { bytes }) => {
                    assert!(bytes > end && bytes >= wanted, "{bytes} of {end} after {wanted}");
                    wanted = bytes;
                }
                outcome => assert_eq!(outcome, at_once),
            }
        }
        let (header, length) = match at_once {
            Ok(Scan::Whole { header, bytes }) => (header, bytes),
            Ok(Scan::Partial { .. }) => return (headers, false),
            Err(_) => return (headers, true),
        };
        assert!(length >= HEADER_BYTES && length <= rest.len());
        check_body(from, header.kind, &rest[HEADER_BYTES..length], limits);
        headers.push(header);
        rest = &rest[length..];
    }
}

/// The same by the incremental splitter; the last frame may be incomplete.
fn split(pieces: &[&[u8]], from: From, limits: &FrameLimits) -> Scanned {
    let (mut splitter, mut headers) = (Splitter::new(from), Vec::new());
    let (mut left, mut is_within) = (0, false);
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match splitter.next(&mut rest, limits) {
                Ok(Some(Chunk::Head(header))) => {
                    assert!(!is_within, "the frame before it has ended");
                    (left, is_within) = (header.body_bytes as usize, true);
                    headers.push(header);
                }
                Ok(Some(Chunk::Body(bytes))) => {
                    assert!(bytes.len() <= left);
                    left -= bytes.len();
                }
                Ok(Some(Chunk::End)) => {
                    assert!(is_within && left == 0);
                    is_within = false;
                }
                Ok(None) => break,
                Err(_) => return (headers, true),
            }
        }
        assert!(rest.is_empty());
    }
    if is_within {
        headers.pop();
    }
    (headers, false)
}

fn opening(bytes: &[u8], limits: &FrameLimits) {
    let opened = [&MAGIC[..], bytes].concat();
    match (scan_opening(&opened, limits), scan(bytes, From::Client, limits)) {
        (Ok(Scan::Whole { header, bytes }), other) => assert_eq!(Ok(Scan::Whole { header, bytes }), other),
        (Ok(Scan::Partial { bytes }), Ok(Scan::Partial { bytes: other })) => {
            assert_eq!(bytes, MAGIC.len() + other)
        }
        (Ok(Scan::Partial { .. }), other) => panic!("incomplete as an opening, but {other:?} as a frame"),
        (Err(_), _) => {}
    }
    let known = bytes.len().min(MAGIC.len());
    assert_eq!(bytes[..known] == MAGIC[..known], scan_opening(&bytes[..known], limits).is_ok());
}

/// A body that is parsed is encoded to one that is parsed to the same frame, and to the same bytes from then on.
fn check_body(from: From, kind: u16, body: &[u8], limits: &FrameLimits) {
    macro_rules! check {
        ($frame:ident) => {
            if let Ok(Some(frame)) = $frame::parse(kind, body, limits) {
                let encoded = frames::native_body(&frame);
                let again = $frame::parse(kind, &encoded, limits);
                assert_eq!(again, Ok(Some(frame)));
                let whole = frames::native(Label::default(), &frame);
                assert_eq!(whole[HEADER_BYTES..], encoded);
                assert!(frames::native_body(&again.expect("parsed").expect("known")) == encoded);
            }
        };
    }
    match from {
        From::Client => check!(ClientFrame),
        From::Server => check!(ServerFrame),
    }
}

/// Returns encoded frames of a client with a few corrupted bytes.
#[must_use]
pub fn native_talk(seed: u64) -> Vec<u8> {
    let noise = noise(seed, 200);
    let (mut entropy, mut rng, names) = (Entropy::new(&noise), Rng::new(seed), Names::few());
    let mut bytes = Vec::new();
    for id in 1..=1 + rng.below(6) {
        bytes.extend(native_request(&mut entropy, &names, Label { id, sequence: 0, flags: 0 }, 4));
    }
    for _ in 0..rng.below(4) {
        let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap_or(0);
        bytes[at] = rng.next_u64().to_le_bytes()[0];
    }
    // Every other time the first frame is a body after its kind.
    if seed.is_multiple_of(2) {
        bytes.drain(6..HEADER_BYTES);
        bytes.drain(..4);
    }
    bytes
}
