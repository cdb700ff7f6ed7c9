//! What a server may send before WELCOME, and before it has proven the client's token.

use super::*;
use crate::access::{Challenge, Tokens};
use crate::auth::Credentials;
use crate::wire::native::{Change, List};

const TOKEN: &str = "default 0123456789abcdef0123456789abcdef";
/// Length of a body that is too long before WELCOME, and not after it.
const LONG: usize = 64 * 1024;

fn guarded(grace_ms: u32) -> Client {
    let mut client = new(grace_ms);
    client.set_credentials(Credentials::parse(TOKEN).expect("a token"));
    client
}

fn error(code: FaultCode, first: u64) -> ServerFrame<'static> {
    ServerFrame::Error { fault: Fault::new(code, first, 0) }
}

/// Connects and writes HELLO. Returns what the server has to check.
fn offer(client: &mut Client, millis: u64) -> Challenge {
    if client.session.state() == ClientState::New {
        connect(client, millis);
    } else {
        client.handle(NOW(millis), Input::Connected);
    }
    let [ToWrite::Opening(_, identity)] = writes(client, millis)[..] else { panic!("no HELLO") };
    let ClientFrame::Hello { auth, .. } = client.hello(identity, b"n", [1; 32]) else { panic!("no HELLO") };
    tokens().challenge(auth, [2; 32]).expect("an offer")
}

fn tokens() -> Tokens {
    Tokens::parse(&alloc::format!("{TOKEN} all")).expect("a token")
}

/// Returns the server's proof.
fn prove(client: &mut Client, millis: u64, challenge: Challenge) -> Bytes<u8> {
    give(client, millis, &bytes_of(0, 0, &ServerFrame::Challenge { nonce: [2; 32] }));
    let [ToWrite::Proof(_, identity)] = writes(client, millis)[..] else { panic!("no proof") };
    let hello = client.proof(identity, b"n", [0; 32]);
    let (_, proof) = challenge.verify(&tokens(), &hello, [0; 32]).expect("proven");
    bytes_of(0, 0, &ServerFrame::Proof { proof })
}

fn open(client: &mut Client, millis: u64, resumed: bool) {
    let challenge = offer(client, millis);
    let proof = prove(client, millis, challenge);
    assert_eq!(give(client, millis, &proof), "Nothing");
    assert_eq!(give(client, millis, &bytes_of(0, 0, &welcome(resumed, 0, 5000))), "Open");
}

/// The beginning of a frame with a body of [`LONG`] bytes.
fn beginning_of_a_long_frame() -> Bytes<u8> {
    let value = [0; LONG];
    let changes = [Change { revision: 1, key: RUN, value: Some(ValueRef::Bytes(&value)) }];
    let changed = ServerFrame::Changed { changes: List::new(&changes) };
    bytes_of(1, 1, &changed)[..HEADER_BYTES].to_vec()
}

#[test]
fn no_long_frame_is_kept_before_welcome() {
    let long = beginning_of_a_long_frame();
    let mut client = new(0);
    connect(&mut client, 0);
    writes(&mut client, 0);
    assert_eq!(give(&mut client, 0, &long), "over");
    assert_eq!(client.ending(), Some(Ending::Session(End::Protocol, Cause::Unknown)));
    let mut client = live(0);
    assert!(give(&mut client, 0, &long).starts_with("partial 65"));
}

#[test]
fn a_server_that_has_proven_nothing_ends_no_session() {
    let over = ServerFrame::SessionOver { why: Why::EndedByAdmin };
    let unnumbered = |frame: &ServerFrame<'_>| bytes_of(0, 0, frame);
    let challenge = unnumbered(&ServerFrame::Challenge { nonce: [2; 32] });
    let proof = unnumbered(&ServerFrame::Proof { proof: [0; 32] });
    for frames in [
        &[unnumbered(&over)][..],
        &[unnumbered(&error(FaultCode::SessionEnded, 0))],
        &[bytes_of(1, 0, &error(FaultCode::Unauthenticated, 2))],
        &[bytes_of(1, 1, &DONE)],
        &[unnumbered(&welcome(true, 0, 5000))],
        core::slice::from_ref(&proof),
        &[challenge.clone(), proof.clone()],
        &[challenge.clone(), challenge],
        &[beginning_of_a_long_frame()],
        &[[0xff; HEADER_BYTES].to_vec()],
    ] {
        let mut client = guarded(5000);
        open(&mut client, 0, false);
        client.handle(NOW(10), Input::Ended(Cause::Closed));
        client.handle(NOW(10), Input::Resolved(&[ADDRESS]));
        offer(&mut client, 20);
        outputs(&mut client);
        for (left, frame) in (0..frames.len()).rev().zip(frames) {
            assert_eq!(give(&mut client, 20, frame), if left > 0 { "Nothing" } else { "over" });
            writes(&mut client, 20);
        }
        assert_eq!(client.ending(), None, "{frames:?}");
        assert_eq!(outputs(&mut client).first(), Some(&Output::Disconnect));
        let at = client.poll_timeout().expect("it connects again");
        client.handle(at, Input::Tick);
        client.handle(at, Input::Resolved(&[ADDRESS]));
        open(&mut client, at.as_nanos() / 1_000_000 + 1, true);
        assert!(client.is_live());
    }
}

#[test]
fn a_client_is_told_that_its_token_is_not_valid_any_more() {
    for code in [FaultCode::Unauthenticated, FaultCode::VersionUnsupported, FaultCode::TlsRequired] {
        let mut client = guarded(5000);
        open(&mut client, 0, false);
        client.handle(NOW(10), Input::Ended(Cause::Closed));
        client.handle(NOW(10), Input::Resolved(&[ADDRESS]));
        offer(&mut client, 20);
        assert_eq!(give(&mut client, 20, &bytes_of(0, 0, &error(code, 2))), "over");
        assert_eq!(client.ending(), Some(Ending::Session(End::Refused(code, 2, 0), Cause::Unknown)));
    }
}

#[test]
fn a_server_that_has_proven_nothing_may_refuse_a_new_session_and_no_more() {
    let mut client = guarded(0);
    offer(&mut client, 0);
    let refused = bytes_of(0, 0, &error(FaultCode::TooLong, 1));
    assert_eq!(give(&mut client, 0, &refused), "over");
    let ending = Ending::Session(End::Refused(FaultCode::TooLong, 1, 0), Cause::Unknown);
    assert_eq!(client.ending(), Some(ending));
    let mut client = guarded(0);
    offer(&mut client, 0);
    let over = ServerFrame::SessionOver { why: Why::ServerStopped };
    assert_eq!(give(&mut client, 0, &bytes_of(0, 0, &over)), "over");
    assert_eq!(client.ending(), None, "it connects again");
}

#[test]
fn a_proof_holds_for_its_connection_only() {
    let mut client = guarded(5000);
    open(&mut client, 0, false);
    client.handle(NOW(10), Input::Ended(Cause::Closed));
    client.handle(NOW(10), Input::Resolved(&[ADDRESS]));
    client.handle(NOW(20), Input::Connected);
    // Before HELLO is written.
    assert_eq!(give(&mut client, 20, &bytes_of(0, 0, &welcome(true, 0, 5000))), "over");
    assert_eq!(client.ending(), None);
}
