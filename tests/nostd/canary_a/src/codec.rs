//! Requests become frames, and frames requests.

use core::fmt;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request, write_lossy};
use rendezvous_core::wire::c10d::{Frame, FrameError, Scan, Scanner, encode_frame, parse_frame};
use rendezvous_core::wire::sink::{Fill, Length};

struct ReportQueue(usize);

impl fmt::Write for ReportQueue {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// How long the text of a thing is, in bytes.
pub(crate) fn letters_of(thing: &dyn fmt::Display) -> usize {
    let mut items = ReportQueue(0);
    // Counting does not fail.
    let _ = fmt::write(&mut items, format_args!("{thing}"));
    items.0
}

pub(crate) fn sings() -> bool {
    let names: [&[u8]; 2] = [b"a", b"b"];
    let pairs: [(&[u8], &[u8]); 1] = [(b"a", b"1")];
    let requests = [
        Request::Set { key: Key::scoped(b"/", b"k"), value: b"v" },
        Request::Wait { keys: Keys::scoped(b"/", &names) },
        Request::MultiSet { pairs: Pairs::scoped(b"/", &pairs) },
    ];
    requests.iter().all(round_trip)
        && letters_of(&FrameError::Opcode(19)) > 10
        && write_lossy(&mut ReportQueue(0), b"\xff").is_ok()
}

fn round_trip(request: &Request<'_>) -> bool {
    let frame = Frame::Request(*request);
    let mut length = Length::default();
    encode_frame(&mut length, &frame);
    let mut buffer = [0; 128];
    let mut fill = Fill::new(&mut buffer);
    encode_frame(&mut fill, &frame);
    let Ok(bytes) = fill.finish() else { return false };
    let scan = Scanner::default().scan(&buffer[..bytes], &FrameLimits::default());
    bytes == length.0 && scan == Ok(Scan::Whole { bytes }) && parse_frame(&buffer[..bytes]) == Some(frame)
}
