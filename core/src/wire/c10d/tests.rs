extern crate std;

use super::*;
use crate::limits::{FrameLimits, KEY_BYTES_MAX, KEYS_MAX, VALUE_BYTES_MAX};
use crate::store::op::{Key, Keys, Pairs, Request};
use crate::wire::sink::{Fill, Length, Sink};
use std::vec::Vec;

struct Bytes(Vec<u8>);
impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Bytes(Vec::new());
    encode_frame(&mut bytes, frame);
    let mut length = Length::default();
    encode_frame(&mut length, frame);
    assert_eq!(length.0, bytes.0.len());
    bytes.0
}

fn samples() -> Vec<Frame<'static>> {
    let key = Key::scoped(b"/", b"k");
    let names: &[&[u8]] = &[b"a", b"", b"long name"];
    let pairs: &[(&[u8], &[u8])] = &[(b"a", b"1"), (b"b", b"")];
    let keys = Keys::scoped(b"/", names);
    let mut frames: Vec<_> = [
        Request::Set { key, value: b"v" },
        Request::CompareSet { key, expected: b"", desired: b"d" },
        Request::Get { key },
        Request::Add { key, delta: -5 },
        Request::Check { keys },
        Request::Wait { keys },
        Request::Wait { keys: Keys::scoped(b"/", &[]) },
        Request::NumKeys,
        Request::Delete { key },
        Request::Append { key, value: b"" },
        Request::MultiGet { keys },
        Request::MultiSet { pairs: Pairs::scoped(b"/", pairs) },
        Request::MultiSet { pairs: Pairs::scoped(b"/", &[]) },
        Request::CancelWait,
        Request::QueuePush { key, value: b"item" },
        Request::QueuePop { key },
        Request::QueueLen { key },
        Request::ListKeys,
        Request::Barrier { key, world_size: 4 },
    ]
    .into_iter()
    .map(Frame::Request)
    .collect();
    frames.push(Frame::Validate { magic: MAGIC });
    frames.push(Frame::Ping { nonce: 0x1122_3344 });
    frames
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    let mut opcodes: Vec<u8> = Vec::new();
    for frame in samples() {
        let bytes = encoded(&frame);
        opcodes.push(bytes[0]);
        let scan = Scanner::default().scan(&bytes, &FrameLimits::default());
        assert_eq!(scan, Ok(Scan::Whole { bytes: bytes.len() }), "{frame:?}");
        let parsed = parse_frame(&bytes).expect("whole");
        assert_eq!(parsed, frame);
        assert_eq!(encoded(&parsed), bytes);
    }
    opcodes.sort_unstable();
    opcodes.dedup();
    assert_eq!(opcodes, (0..19).collect::<Vec<u8>>(), "a sample of each opcode");
}

#[test]
fn a_frame_in_any_pieces_is_found_and_never_wants_more_than_it_has() {
    for frame in samples() {
        let bytes = encoded(&frame);
        let mut one_by_one = Scanner::default();
        for end in 0..bytes.len() {
            let Ok(Scan::Partial { bytes: wanted }) = one_by_one.scan(&bytes[..end], &FrameLimits::default())
            else {
                panic!("{frame:?} is whole after {end} of {} bytes", bytes.len())
            };
            assert!(wanted > end && wanted <= bytes.len());
            assert!(
                parse_frame(&bytes[..end]).is_none()
                    || matches!(
                        frame,
                        Frame::Request(
                            Request::MultiSet { .. }
                                | Request::Check { .. }
                                | Request::Wait { .. }
                                | Request::MultiGet { .. }
                        )
                    )
            );
        }
        let whole = one_by_one.scan(&bytes, &FrameLimits::default());
        assert_eq!(whole, Ok(Scan::Whole { bytes: bytes.len() }));
        assert!(matches!(one_by_one.scan(&[], &FrameLimits::default()), Ok(Scan::Partial { bytes: 1 })));
    }
}

fn with_length(opcode: Opcode, length: u64) -> Vec<u8> {
    let mut bytes = std::vec![opcode as u8];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn limits_hold_on_the_length_field_alone() {
    let refused = |bytes: &[u8]| Scanner::default().scan(bytes, &FrameLimits::default()).unwrap_err();
    for length in [KEY_BYTES_MAX + 1, 1 << 63, u64::MAX] {
        assert_eq!(refused(&with_length(Opcode::Get, length)), FrameError::KeyTooLong(length));
    }
    for count in [KEYS_MAX + 1, 1 << 63, u64::MAX] {
        assert_eq!(refused(&with_length(Opcode::MultiSet, count)), FrameError::TooManyKeys(count));
        assert_eq!(refused(&with_length(Opcode::Wait, count)), FrameError::TooManyKeys(count));
    }
    for length in [VALUE_BYTES_MAX + 1, 1 << 63, u64::MAX] {
        let mut bytes = with_length(Opcode::Set, 1);
        bytes.push(b'k');
        bytes.extend_from_slice(&length.to_le_bytes());
        assert_eq!(refused(&bytes), FrameError::ValueTooLong(length));
    }
    assert_eq!(refused(&[19]), FrameError::Opcode(19));
    let small = FrameLimits { frame_bytes_max: 20, ..FrameLimits::default() };
    let scan = Scanner::default().scan(&with_length(Opcode::Get, 12), &small);
    assert_eq!(scan, Err(FrameError::FrameTooLong(21)));
    for (length, opcode) in [(KEY_BYTES_MAX, Opcode::Get), (KEYS_MAX, Opcode::Wait)] {
        assert!(matches!(
            Scanner::default().scan(&with_length(opcode, length), &FrameLimits::default()),
            Ok(Scan::Partial { .. })
        ));
    }
}

#[test]
fn all_keys_of_a_list_are_limited_together_before_the_last_one_arrives() {
    let key = [b'k'; 8192];
    let many = [&key[..]; 2049];
    let scan = |count: usize| {
        let frame = Frame::Request(Request::Wait { keys: Keys::scoped(b"", &many[..count]) });
        let mut bytes = Bytes(Vec::new());
        encode_frame(&mut bytes, &frame);
        bytes.0.truncate(9 + 2048 * 8200 + 8);
        Scanner::default().scan(&bytes.0, &FrameLimits::default())
    };
    assert!(matches!(scan(2048), Ok(Scan::Whole { .. })));
    assert_eq!(scan(2049), Err(FrameError::KeysTooLong((16 << 20) + 8192)));
    // Values do not count.
    let pairs = [(&key[..1], &key[..]); 2049];
    let frame = Frame::Request(Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) });
    let mut bytes = Bytes(Vec::new());
    encode_frame(&mut bytes, &frame);
    assert!(matches!(Scanner::default().scan(&bytes.0, &FrameLimits::default()), Ok(Scan::Whole { .. })));
}

#[test]
fn a_buffer_that_is_too_small_is_reported_with_the_length_that_is_due() {
    let frame = Frame::Request(Request::Add { key: Key::raw(b"/n"), delta: 1 });
    let mut buffer = [0; 18];
    let mut fill = Fill::new(&mut buffer);
    encode_frame(&mut fill, &frame);
    assert_eq!(fill.finish(), Err(19));
}
