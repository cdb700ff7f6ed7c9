//! Native frames, and a client's session.

use rendezvous_core::limits::FrameLimits;
use rendezvous_core::session::client::{ClientSession, Received, SessionOptions};
use rendezvous_core::session::life::ClientState;
use rendezvous_core::store::op::{Key, Keys};
use rendezvous_core::time::Instant;
use rendezvous_core::wire::native::{
    Chunk, ClientFrame, Fault, FaultCode, From, HEADER_BYTES, Label, Message, Participants, Scan,
    ServerFrame, Splitter, encode_frame, negotiate, scan,
};
use rendezvous_core::wire::sink::Fill;

pub(crate) fn sings() -> bool {
    round_trips() && is_answered() == Some(true) && negotiate(2, 3).is_err()
}

fn written(buffer: &mut [u8], label: Label, frame: &impl Message) -> Option<usize> {
    let mut fill = Fill::new(buffer);
    encode_frame(&mut fill, label, frame).ok()?;
    fill.finish().ok()
}

fn round_trips() -> bool {
    let names: [&[u8]; 2] = [b"n0", b"n1"];
    let participants = Participants::Names(Keys::scoped(b"", &names));
    let frame = ClientFrame::Barrier {
        key: Key::raw(b"/b"),
        generation: 0,
        name: b"n0",
        timeout_ms: 1,
        participants,
    };
    let limits = FrameLimits::default();
    let mut buffer = [0; 128];
    let Some(bytes) = written(&mut buffer, Label::default(), &frame) else { return false };
    let Ok(Scan::Whole { header, .. }) = scan(&buffer[..bytes], From::Client, &limits) else { return false };
    ClientFrame::parse(header.kind, &buffer[HEADER_BYTES..bytes], &limits) == Ok(Some(frame))
}

/// A request of a session, and an error that answers it.
fn is_answered() -> Option<bool> {
    let mut session = ClientSession::<4>::new(SessionOptions::default());
    let id = session.begin().ok()?;
    session.hello(Instant::ORIGIN).ok()?;
    let early = session.next_to_send() == Some(id) && session.label(Instant::ORIGIN, id).id == id;

    let mut buffer = [0; 128];
    let fault = Fault::new(FaultCode::VersionUnsupported, 1, 1);
    let bytes = written(&mut buffer, Label::default(), &ServerFrame::Error { fault })?;
    let (mut rest, limits) = (&buffer[..bytes], FrameLimits::default());
    let mut splitter = Splitter::new(From::Server);
    let Ok(Some(Chunk::Head(header))) = splitter.next(&mut rest, &limits) else { return None };
    let Ok(Some(Chunk::Body(body))) = splitter.next(&mut rest, &limits) else { return None };
    let frame = ServerFrame::parse(header.kind, body, &limits).ok()??;
    let received = session.receive(Instant::ORIGIN, &header, &frame);
    Some(early && matches!(received, Received::Over(_)) && session.state() == ClientState::Over)
}
