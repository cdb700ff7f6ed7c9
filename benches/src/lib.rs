//! What the benchmarks share: requests as bytes.

use rendezvous_core::store::op::Request;
use rendezvous_core::wire::c10d::{Frame, encode_frame};
use rendezvous_core::wire::sink::{Fill, Length};

/// The frame of a request.
#[must_use]
pub fn frame(request: Request<'_>) -> Vec<u8> {
    let frame = Frame::Request(request);
    let mut length = Length::default();
    encode_frame(&mut length, &frame);
    let mut bytes = vec![0; length.0];
    encode_frame(&mut Fill::new(&mut bytes), &frame);
    bytes
}
