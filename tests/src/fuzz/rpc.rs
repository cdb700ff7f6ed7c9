//! Bytes against the formats of RPC groups: cards, changes, and both ends of a connection.

use rendezvous_core::peer_tokens::PeerTokens;
use rendezvous_core::time::Instant;
use rendezvous_rpc::connection::callee::{Callee, CalleeEvent};
use rendezvous_rpc::connection::caller::{Caller, CallerEvent, NewCall};
use rendezvous_rpc::connection::{CallKind, ToWrite, TokenExchange};
use rendezvous_rpc::exchange::{decode_card, encode_card};
use rendezvous_rpc::limits::RpcLimits;
use rendezvous_rpc::membership::change::{decode_change, encode_change};
use rendezvous_rpc::name::WorkerInfo;

const NOW: Instant = Instant::ORIGIN;

fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

/// For any bytes: what is parsed as a card or a change is encoded to the same bytes. Both ends of a connection parse
/// them in one piece as they do byte by byte, deliver no more than arrived, and hold nothing after the end. With a token,
/// neither end passes on or sends a call before the other has proven it.
///
/// # Panics
/// When that does not hold.
pub fn rpc(bytes: &[u8]) {
    if let Ok((worker, said)) = decode_card(bytes) {
        assert_eq!(decode_card(&encode_card(&worker, &said)), Ok((worker, said)));
    }
    if let Ok(change) = decode_change(bytes) {
        assert_eq!(decode_change(&encode_change(&change)), Ok(change));
    }
    assert_eq!(callee(&[bytes]), callee(&bytes.chunks(1).collect::<Vec<_>>()));
    assert_eq!(caller(&[bytes]), caller(&bytes.chunks(1).collect::<Vec<_>>()));
    unproven(bytes);
}

fn token() -> TokenExchange {
    let tokens = PeerTokens::parse("0123456789abcdef0123456789abcdef").expect("a token");
    TokenExchange::new(tokens, [7; 32])
}

/// Passes bytes to both ends of connections whose peers must prove a token, and checks that they do nothing.
fn unproven(bytes: &[u8]) {
    let (a, b) = (worker("a", 1), worker("b", 2));
    let (_, hello) = greeting(a.clone(), b.clone(), None);
    let mut callee = Callee::new(NOW, b.clone(), b"", RpcLimits::default());
    callee.require(token());
    for mut part in [&hello[..], bytes] {
        while let Some(event) = callee.next_event(NOW, &mut part) {
            assert!(matches!(event, CalleeEvent::Ended(_)), "{event:?}");
        }
    }
    let (mut caller, hello) = greeting(a, b, Some(token()));
    assert!(hello.len() < 100);
    let mut part = bytes;
    while let Some(event) = caller.next_event(NOW, &mut part) {
        assert!(
            matches!(event, CallerEvent::Failed(..) | CallerEvent::HangUp(_) | CallerEvent::Connect),
            "{event:?}"
        );
    }
    if let Some(write) = caller.poll_write() {
        // The answer to a challenge, and nothing more.
        assert!(matches!(&write, ToWrite::Bytes(sent) if sent[4] == 0x07 && sent.len() == 95), "{write:?}");
    }
}

/// Returns the events of the called end, with parts of payloads joined.
fn callee(pieces: &[&[u8]]) -> Vec<String> {
    let (a, b) = (worker("a", 1), worker("b", 2));
    let (_, hello) = greeting(a, b.clone(), None);
    let limits = RpcLimits { requests_max: 4, ..RpcLimits::default() };
    let mut callee = Callee::new(NOW, b, b"", limits);
    let mut reported = Vec::new();
    let mut parts = Parts::default();
    for chunk in [&hello[..]].into_iter().chain(pieces.iter().copied()) {
        let mut rest = chunk;
        while let Some(event) = callee.next_event(NOW, &mut rest) {
            match event {
                CalleeEvent::Claimed(_) => callee.admit(),
                CalleeEvent::Bytes(call, bytes) => parts.add(call, bytes),
                other => {
                    parts.end(&mut reported);
                    if let CalleeEvent::Complete(call) = other {
                        callee.answer(call, 1);
                    }
                    reported.push(format!("{other:?}"));
                }
            }
        }
        assert!(rest.is_empty());
    }
    parts.end(&mut reported);
    callee.lost(rendezvous_rpc::connection::ConnectionError::Closed);
    while callee.next_event(NOW, &mut &[][..]).is_some() {}
    assert_eq!((callee.in_flight(), callee.poll_write()), (0, None));
    reported
}

/// Returns a calling end that has two calls, and the bytes with which its connection begins.
fn greeting(me: WorkerInfo, peer: WorkerInfo, token: Option<TokenExchange>) -> (Caller, Vec<u8>) {
    let mut caller = Caller::new(me, peer, b"", RpcLimits::default());
    for payload_bytes in [0, 3] {
        let call = NewCall { handler: "f", payload_bytes, deadline: None, kind: CallKind::Responded };
        caller.begin(NOW, call).expect("it takes calls");
    }
    assert_eq!(caller.next_event(NOW, &mut &[][..]), Some(CallerEvent::Connect));
    caller.connected(NOW, token);
    let Some(ToWrite::Bytes(hello)) = caller.poll_write() else { panic!("a greeting comes first") };
    (caller, hello)
}

/// The same for the calling end, which has two calls under way.
fn caller(pieces: &[&[u8]]) -> Vec<String> {
    let (a, b) = (worker("a", 1), worker("b", 2));
    let mut answering = Callee::new(NOW, b.clone(), b"", RpcLimits::default());
    let (mut caller, hello) = greeting(a, b, None);
    while answering.next_event(NOW, &mut &hello[..]).is_none() {}
    answering.admit();
    let Some(ToWrite::Bytes(welcome)) = answering.poll_write() else { panic!("a welcome follows") };
    let mut reported = Vec::new();
    let mut parts = Parts::default();
    for chunk in [&welcome[..]].into_iter().chain(pieces.iter().copied()) {
        let mut rest = chunk;
        while let Some(event) = caller.next_event(NOW, &mut rest) {
            match event {
                CallerEvent::Bytes(call, bytes) => parts.add(call, bytes),
                other => {
                    parts.end(&mut reported);
                    reported.push(format!("{other:?}"));
                }
            }
        }
        assert!(rest.is_empty());
    }
    parts.end(&mut reported);
    caller.abort(&rendezvous_rpc::connection::ConnectionError::Closed);
    while caller.next_event(NOW, &mut &[][..]).is_some() {}
    assert_eq!((caller.in_flight(), caller.poll_write()), (0, None));
    reported
}

/// Joins consecutive parts of a payload.
#[derive(Default)]
struct Parts(Option<(u64, Vec<u8>)>, Vec<String>);

impl Parts {
    fn add(&mut self, call: u64, bytes: &[u8]) {
        match &mut self.0 {
            Some((known, part)) if *known == call => part.extend_from_slice(bytes),
            other => {
                if let Some((known, part)) = other.replace((call, bytes.to_vec())) {
                    self.1.push(format!("{known}: {part:?}"));
                }
            }
        }
    }

    fn end(&mut self, reported: &mut Vec<String>) {
        reported.append(&mut self.1);
        reported.extend(self.0.take().map(|(call, part)| format!("{call}: {part:?}")));
    }
}

/// Returns encoded frames with a few corrupted bytes.
#[must_use]
pub fn rpc_talk(seed: u64) -> Vec<u8> {
    use rendezvous_core::rng::Rng;
    use rendezvous_core::wire::sink::Sink;
    use rendezvous_rpc::wire::{CalleeFrame, CallerFrame, Header, encode_frame};

    struct Bytes(Vec<u8>);
    impl Sink for Bytes {
        fn put(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
    }

    let mut rng = Rng::new(seed);
    let mut out = Bytes(Vec::new());
    let from_caller = rng.below(2) == 0;
    for _ in 0..1 + rng.below(8) {
        let (id, payload_bytes) = (1 + rng.below(4), rng.below(4));
        let written = match (rng.below(6), from_caller) {
            (0 | 1, true) => encode_frame(
                &mut out,
                id,
                &CallerFrame::Request { deadline_ms: rng.below(2), payload_bytes, handler: b"f" },
            ),
            (2, true) => encode_frame(
                &mut out,
                id,
                &CallerFrame::Notice { deadline_ms: 0, payload_bytes, handler: b"g" },
            ),
            (3, true) => encode_frame(&mut out, id, &CallerFrame::Cancel {}),
            (0 | 1, false) => {
                encode_frame(&mut out, id, &CalleeFrame::Response { status: 0, payload_bytes, message: b"" })
            }
            (2, false) => encode_frame(
                &mut out,
                id,
                &CalleeFrame::Response { status: 1, payload_bytes: 0, message: b"no" },
            ),
            (3, false) => encode_frame(&mut out, 0, &CalleeFrame::Pong { nonce: id }),
            (4, true) => {
                let proof = CallerFrame::Proof { token: b"default", nonce: [1; 32], proof: [2; 32] };
                encode_frame(&mut out, 0, &proof)
            }
            (4, false) if payload_bytes % 2 == 0 => {
                encode_frame(&mut out, 0, &CalleeFrame::Challenge { nonce: [1; 32] })
            }
            (4, false) => encode_frame(&mut out, 0, &CalleeFrame::Proof { proof: [2; 32] }),
            _ => {
                let bytes = u32::try_from(payload_bytes).unwrap_or(0);
                out.put(&Header::of_data(id, bytes).to_bytes());
                (0..bytes).for_each(|_| out.put(b"x"));
                Ok(())
            }
        };
        written.expect("short");
    }
    for _ in 0..rng.below(3) {
        let at = usize::try_from(rng.below(out.0.len() as u64)).unwrap_or(0);
        out.0[at] = rng.next_u64().to_le_bytes()[0];
    }
    out.0
}
