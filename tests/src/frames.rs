//! Requests as the bytes of their frames.

use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::op::{Key, Keys, Request};
use rendezvous_core::wire::c10d::{Frame, MAGIC, Scan, Scanner, encode_frame};
use rendezvous_core::wire::native::{self, ClientFrame, Label, Message};
use rendezvous_core::wire::sink::Sink;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Returns the bytes of a frame.
#[must_use]
pub fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Bytes::default();
    encode_frame(&mut bytes, frame);
    bytes.0
}

/// Returns the bytes of a request.
#[must_use]
pub fn request(request: Request<'_>) -> Vec<u8> {
    encoded(&Frame::Request(request))
}

/// Returns VALIDATE, the first bytes of every connection.
#[must_use]
pub fn greeting() -> Vec<u8> {
    encoded(&Frame::Validate { magic: MAGIC })
}

/// Returns the first bytes of a connection that opens a session of the native protocol.
#[must_use]
pub fn hello(node: &[u8]) -> Vec<u8> {
    let hello = ClientFrame::Hello {
        version_min: 1,
        version_max: 1,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 0,
        heartbeat_ms: 0,
        heartbeats_missed_max: 3,
        node,
        auth: b"",
    };
    [&native::MAGIC[..], &native(Label::default(), &hello)].concat()
}

/// Returns HEARTBEAT of the native protocol.
#[must_use]
pub fn heartbeat() -> Vec<u8> {
    native(Label::default(), &ClientFrame::Heartbeat { nonce: 0 })
}

/// Returns the bytes of a frame of the native protocol.
///
/// # Panics
/// When its length exceeds that of a header field.
#[must_use]
pub fn native(label: Label, frame: &impl Message) -> Vec<u8> {
    let mut bytes = Bytes::default();
    // invariant: no test makes a frame of 4 GiB
    native::encode_frame(&mut bytes, label, frame).expect("a frame shorter than 4 GiB");
    bytes.0
}

/// Returns the body of a frame of the native protocol.
#[must_use]
pub fn native_body(frame: &impl Message) -> Vec<u8> {
    let mut bytes = Bytes::default();
    frame.write_body(&mut bytes);
    bytes.0
}

/// Returns a PING.
#[must_use]
pub fn ping(nonce: u32) -> Vec<u8> {
    encoded(&Frame::Ping { nonce })
}

/// Returns a SET.
#[must_use]
pub fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    request(Request::Set { key: Key::raw(key), value })
}

/// Returns a GET.
#[must_use]
pub fn get(key: &[u8]) -> Vec<u8> {
    request(Request::Get { key: Key::raw(key) })
}

/// Returns an ADD.
#[must_use]
pub fn add(key: &[u8], delta: i64) -> Vec<u8> {
    request(Request::Add { key: Key::raw(key), delta })
}

/// Returns a WAIT for one key.
#[must_use]
pub fn wait(key: &[u8]) -> Vec<u8> {
    request(Request::Wait { keys: Keys::scoped(b"", &[key]) })
}

/// Returns a QUEUE_PUSH.
#[must_use]
pub fn push(key: &[u8], value: &[u8]) -> Vec<u8> {
    request(Request::QueuePush { key: Key::raw(key), value })
}

/// Returns a byte string as replies contain it: with its length in front.
#[must_use]
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Splits bytes into frames.
///
/// # Panics
/// When they are not a sequence of whole frames.
#[must_use]
pub fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let scan = Scanner::default().scan(bytes, &FrameLimits::default());
        let Ok(Scan::Whole { bytes: length }) = scan else {
            panic!("not a whole frame: {scan:?}: {bytes:02x?}")
        };
        let (frame, rest) = bytes.split_at(length);
        frames.push(frame);
        bytes = rest;
    }
    frames
}
