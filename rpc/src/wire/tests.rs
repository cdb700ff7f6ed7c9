extern crate alloc;
use super::*;
use crate::limits::RPC_FRAME;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use proptest::prelude::*;

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded(id: u64, frame: &impl Message) -> Vec<u8> {
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, id, frame).expect("short enough");
    out.0
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const HELLO: CallerFrame<'_> = CallerFrame::Hello {
    version_min: 1,
    version_max: 1,
    group: b"g",
    caller: b"a",
    caller_id: 1,
    callee: b"bc",
    callee_id: 258,
};

/// The examples of docs/protocol/rpc.md, section 9.
#[test]
fn frames_have_these_bytes() {
    let guide = include_str!("../../../docs/protocol/rpc.md");
    let request = CallerFrame::Request { deadline_ms: 60_000, payload_bytes: 3, handler: b"add" };
    let notice = CallerFrame::Notice { deadline_ms: 0, payload_bytes: 0, handler: b"f" };
    let welcome = CalleeFrame::Welcome {
        version: 1,
        callee: b"bc",
        callee_id: 258,
        requests_max: 1024,
        bytes_max: 1 << 32,
    };
    let answer = CalleeFrame::Response { status: 0, payload_bytes: 3, message: b"" };
    let failure = CalleeFrame::Response { status: 1, payload_bytes: 0, message: b"no" };
    let data = [&Header::of_data(7, 3).to_bytes()[..], b"\x01\x02\x03"].concat();
    for (name, bytes, expected) in [
        (
            "Hello",
            encoded(0, &HELLO),
            "240000000100000000000000000000000100010001000000000000006701000000000000006101000200000000\
             00000062630201",
        ),
        (
            "Request",
            encoded(7, &request),
            "1b00000002000000070000000000000060ea00000000000003000000000000000300000000000000616464",
        ),
        (
            "Notice",
            encoded(8, &notice),
            "1900000003000100080000000000000000000000000000000000000000000000010000000000000066",
        ),
        ("Data", data, "03000000100000000700000000000000010203"),
        ("Cancel", encoded(7, &CallerFrame::Cancel {}), "00000000040000000700000000000000"),
        (
            "Ping",
            encoded(0, &CallerFrame::Ping { nonce: 9 }),
            "080000000500000000000000000000000900000000000000",
        ),
        ("Goodbye", encoded(0, &CallerFrame::Goodbye {}), "00000000060000000000000000000000"),
        (
            "Welcome",
            encoded(0, &welcome),
            "1a0000000180000000000000000000000100020000000000000062630201000400000000000001000000",
        ),
        (
            "Response",
            encoded(7, &answer),
            "12000000028000000700000000000000000003000000000000000000000000000000",
        ),
        (
            "Response",
            encoded(7, &failure),
            "140000000280000007000000000000000100000000000000000002000000000000006e6f",
        ),
        (
            "Pong",
            encoded(0, &CalleeFrame::Pong { nonce: 9 }),
            "080000000380000000000000000000000900000000000000",
        ),
        ("Goodbye", encoded(0, &CalleeFrame::Goodbye {}), "00000000048000000000000000000000"),
        (
            "Refused",
            encoded(0, &CalleeFrame::Refused { why: 3, message: b"no" }),
            "0c000000058000000000000000000000030002000000000000006e6f",
        ),
        (
            "Proof",
            encoded(0, &CallerFrame::Proof { token: b"default", nonce: [1; 32], proof: [3; 32] }),
            "4f000000070000000000000000000000070000000000000064656661756c740101010101010101010101010101\
             0101010101010101010101010101010101010303030303030303030303030303030303030303030303030303030303030303",
        ),
        (
            "Challenge",
            encoded(0, &CalleeFrame::Challenge { nonce: [2; 32] }),
            "200000000780000000000000000000000202020202020202020202020202020202020202020202020202020202020202",
        ),
        (
            "Proof",
            encoded(0, &CalleeFrame::Proof { proof: [3; 32] }),
            "200000000880000000000000000000000303030303030303030303030303030303030303030303030303030303030303",
        ),
        (
            "Exhausted",
            encoded(0, &CalleeFrame::Exhausted { threads: 16, waiting: 3 }),
            "080000000680000000000000000000001000000003000000",
        ),
    ] {
        assert_eq!(hex(&bytes), expected, "{name}");
        assert!(
            guide.contains(&format!("| {name} | `{expected}` |")),
            "docs/protocol/rpc.md: {name} {expected}"
        );
    }
}

#[test]
fn the_tables_in_the_guide_are_those_of_the_code() {
    let guide = include_str!("../../../docs/protocol/rpc.md");
    for (kind, name, fields) in CallerFrame::KINDS.iter().chain(CalleeFrame::KINDS) {
        let line = guide.lines().find(|line| line.starts_with(&format!("| `{kind:04x}` | {name} |")));
        let line = line.unwrap_or_else(|| panic!("docs/protocol/rpc.md lacks {kind:04x} {name}"));
        fields.iter().for_each(|field| assert!(line.contains(&format!("`{field}`")), "{name}: {field}"));
    }
}

fn whole(chunk: &[u8]) -> (Header, Vec<u8>) {
    let mut splitter = Splitter::from_callee();
    let (mut rest, mut header, mut body) = (chunk, None, Vec::new());
    while let Some(chunk) = splitter.next(&mut rest).expect("a frame") {
        match chunk {
            Chunk::Head(head) => header = Some(head),
            Chunk::Body(bytes) => body.extend_from_slice(bytes),
            Chunk::End => return (header.expect("a head"), body),
        }
    }
    panic!("the frame does not end")
}

#[test]
fn frames_are_read_as_they_were_written() {
    let (header, body) = whole(&encoded(0, &HELLO));
    assert_eq!(CallerFrame::parse(header.kind, &body, &RPC_FRAME), Ok(Some(HELLO)));
    for end in 0..body.len() {
        CallerFrame::parse(header.kind, &body[..end], &RPC_FRAME).expect_err("cut short");
    }
    assert_eq!(CallerFrame::parse(0x8001, &body, &RPC_FRAME), Ok(None));
    let longer = [&body[..], b"more of a later version"].concat();
    assert_eq!(CallerFrame::parse(header.kind, &longer, &RPC_FRAME), Ok(Some(HELLO)));
}

#[test]
fn bad_beginnings_and_long_bodies_are_refused_at_once() {
    for bytes in [&b"RDZV"[..], b"R\0", b"GET "] {
        assert_eq!(Splitter::from_caller().next(&mut &*bytes), Err(FrameError::Magic));
    }
    let head = |kind, body_bytes, flags| Header { body_bytes, kind, flags, id: 1 }.to_bytes();
    let read = |bytes: [u8; HEADER_BYTES]| Header::read(&bytes);
    assert!(read(head(DATA, DATA_BYTES_MAX, 0)).is_ok() && read(head(2, SMALL_BYTES_MAX, 1)).is_ok());
    let too_long = FrameError::TooLong { kind: DATA, bytes: DATA_BYTES_MAX + 1 };
    assert_eq!(read(head(DATA, DATA_BYTES_MAX + 1, 0)), Err(too_long));
    let too_long = FrameError::TooLong { kind: 2, bytes: SMALL_BYTES_MAX + 1 };
    assert_eq!(read(head(2, SMALL_BYTES_MAX + 1, 0)), Err(too_long));
    assert_eq!(read(head(2, 0, 0x0100)), Err(FrameError::Flags(0x0100)));
    let message = vec![0; 64 * 1024];
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, 1, &CalleeFrame::Refused { why: 1, message: &message }).expect_err("too long");
    assert!(out.0.is_empty());
}

#[test]
fn the_highest_version_in_common_is_spoken() {
    for (min, max, version) in [(1, 1, Some(1)), (0, 9, Some(1)), (2, 9, None), (0, 0, None), (3, 1, None)] {
        assert_eq!(negotiate(min, max), version);
    }
}

/// Chunks of a payload are slices of the input.
#[test]
fn data_is_borrowed() {
    let bytes = [&Header::of_data(3, 5).to_bytes()[..], b"hello"].concat();
    let (mut splitter, mut rest) = (Splitter::from_callee(), &bytes[..]);
    assert_eq!(splitter.next(&mut rest), Ok(Some(Chunk::Head(Header::of_data(3, 5)))));
    let Ok(Some(Chunk::Body(chunk))) = splitter.next(&mut rest) else { panic!("a body") };
    assert_eq!(chunk.as_ptr(), bytes[HEADER_BYTES..].as_ptr());
    assert_eq!(splitter.next(&mut rest), Ok(Some(Chunk::End)));
}

proptest! {
    /// The result does not depend on how the bytes are split.
    #[test]
    fn pieces_do_not_matter(mut bytes: Vec<u8>, cuts: Vec<prop::sample::Index>, is_talk: bool) {
        if is_talk {
            bytes = [&MAGIC[..], &encoded(0, &HELLO), &Header::of_data(3, 5).to_bytes(), b"hello", &bytes].concat();
        }
        let read = |pieces: &[&[u8]]| {
            let (mut splitter, mut seen) = (Splitter::from_caller(), Vec::new());
            for chunk in pieces {
                let mut rest = *chunk;
                loop {
                    match splitter.next(&mut rest) {
                        Ok(Some(Chunk::Head(header))) => seen.push(format!("{header:?} ")),
                        Ok(Some(Chunk::Body(body))) => seen.push(hex(body)),
                        Ok(Some(Chunk::End)) => seen.push("end ".into()),
                        Ok(None) => break,
                        Err(error) => {
                            seen.push(format!("{error:?}"));
                            return seen.concat();
                        }
                    }
                }
            }
            seen.concat()
        };
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        ends.extend([0, bytes.len()]);
        ends.sort_unstable();
        let pieces: Vec<&[u8]> = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(read(&pieces), read(&[&bytes]));
    }

    #[test]
    fn any_body_has_a_verdict(kind: u16, bytes: Vec<u8>) {
        let _ = (CallerFrame::parse(kind % 9, &bytes, &RPC_FRAME), CalleeFrame::parse(0x8000 + kind % 9, &bytes, &RPC_FRAME));
    }
}
