use super::TokenExchange;
use crate::connection::callee::{Callee, CalleeEvent};
use crate::connection::caller::{Caller, CallerEvent, NewCall};
use crate::connection::{CallFailure, CallKind, ConnectionError, Refusal, ToWrite};
use crate::limits::{RPC_FRAME, RpcLimits};
use crate::name::WorkerInfo;
use crate::wire::{CalleeFrame, CallerFrame, Chunk, Encoded, Header, MAGIC, Message, Splitter, encode_frame};
use alloc::vec::Vec;
use rendezvous_core::peer_tokens::PeerTokens;
use rendezvous_core::time::Instant;

const NOW: Instant = Instant::from_millis(1000);
const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

const HELLO: u16 = 0x0001;
const REQUEST: u16 = 0x0002;
const PROOF: u16 = 0x0007;
const WELCOME: u16 = 0x8001;
const REFUSED: u16 = 0x8005;
const CHALLENGE: u16 = 0x8007;
const OWN_PROOF: u16 = 0x8008;

fn token(line: &str, nonce: u8) -> Option<TokenExchange> {
    let tokens = PeerTokens::parse(line).expect("a token");
    Some(TokenExchange::new(tokens, [nonce; 32]))
}

fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

/// Calling end with one call, whose connection was just opened.
fn caller(token: Option<TokenExchange>) -> Caller {
    let mut caller = Caller::new(worker("a", 1), worker("b", 2), b"group", RpcLimits::default());
    let call = NewCall { handler: "f", payload_bytes: 0, deadline: None, kind: CallKind::Responded };
    caller.begin(NOW, call).expect("it takes calls");
    assert_eq!(caller.next_event(NOW, &mut &[][..]), Some(CallerEvent::Connect));
    caller.connected(NOW, token);
    caller
}

fn callee(token: Option<TokenExchange>) -> Callee {
    let mut callee = Callee::new(NOW, worker("b", 2), b"group", RpcLimits::default());
    if let Some(token) = token {
        callee.require(token);
    }
    callee
}

/// Passes bytes to the calling end. Returns why its call failed, if it did.
fn to_caller(caller: &mut Caller, mut bytes: &[u8]) -> Option<ConnectionError> {
    let mut failed = None;
    while let Some(event) = caller.next_event(NOW, &mut bytes) {
        match event {
            CallerEvent::Failed(_, error) => match error.why {
                CallFailure::Unsent(why) => failed = Some(why),
                why => panic!("{why:?}: the call was not sent"),
            },
            CallerEvent::HangUp(_) => {}
            event => panic!("{event:?}"),
        }
    }
    failed
}

/// Passes bytes to the called end, and admits the caller. Returns why the connection ended, if it did.
fn to_callee(callee: &mut Callee, mut bytes: &[u8]) -> Option<ConnectionError> {
    let mut ended = None;
    while let Some(event) = callee.next_event(NOW, &mut bytes) {
        match event {
            CalleeEvent::Claimed(_) => callee.admit(),
            CalleeEvent::Ended(why) => ended = Some(why),
            CalleeEvent::Request { .. } | CalleeEvent::Complete(_) | CalleeEvent::Over(..) => {}
            event => panic!("{event:?}"),
        }
    }
    ended
}

fn written(next: Option<ToWrite>) -> Vec<u8> {
    match next {
        Some(ToWrite::Bytes(bytes)) => bytes,
        None => Vec::new(),
        Some(part @ ToWrite::Part { .. }) => panic!("{part:?}"),
    }
}

fn encoded(frame: &impl Message) -> Vec<u8> {
    let mut bytes = Encoded::default();
    encode_frame(&mut bytes, 0, frame).expect("a short frame");
    bytes.0
}

/// Splits bytes into frames.
fn frames(bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut rest = bytes.strip_prefix(&MAGIC).unwrap_or(bytes);
    let (mut splitter, mut frames) = (Splitter::from_callee(), Vec::new());
    while let Some(chunk) = splitter.next(&mut rest).expect("frames") {
        match chunk {
            Chunk::Head(header) => frames.push((header, Vec::new())),
            Chunk::Body(part) => frames.last_mut().expect("a header").1.extend_from_slice(part),
            Chunk::End => {}
        }
    }
    frames
}

fn kinds(bytes: &[u8]) -> Vec<u16> {
    frames(bytes).into_iter().map(|(header, _)| header.kind).collect()
}

/// Connects two ends. Returns the kinds of the frames in their order, why the connection ended at the called end, and why
/// the call failed.
fn connect(
    mut caller: Caller,
    mut callee: Callee,
) -> (Vec<u16>, Option<ConnectionError>, Option<ConnectionError>) {
    let (mut seen, mut ended, mut failed) = (Vec::new(), None, None);
    loop {
        let there = written(caller.poll_write());
        seen.extend(kinds(&there));
        ended = ended.or(to_callee(&mut callee, &there));
        let back = written(callee.poll_write());
        seen.extend(kinds(&back));
        failed = failed.or(to_caller(&mut caller, &back));
        if there.is_empty() && back.is_empty() {
            return (seen, ended, failed);
        }
    }
}

fn refused(why: Refusal) -> Option<ConnectionError> {
    Some(ConnectionError::Refused { why, message: "".into() })
}

#[test]
fn a_call_is_sent_after_both_have_proven_the_token() {
    let (seen, ended, failed) = connect(caller(token(SECRET, 1)), callee(token(SECRET, 2)));
    assert_eq!(seen, [HELLO, CHALLENGE, PROOF, OWN_PROOF, WELCOME, REQUEST]);
    assert_eq!((ended, failed), (None, None));
}

#[test]
fn without_a_token_at_either_end_nothing_is_asked() {
    let (seen, ended, failed) = connect(caller(None), callee(None));
    assert_eq!(seen, [HELLO, WELCOME, REQUEST]);
    assert_eq!((ended, failed), (None, None));
}

#[test]
fn another_secret_and_another_name_are_refused() {
    for line in [OTHER.into(), alloc::format!("other {SECRET} all")] {
        let (seen, ended, failed) = connect(caller(token(&line, 1)), callee(token(SECRET, 2)));
        assert_eq!(seen, [HELLO, CHALLENGE, PROOF, REFUSED], "{line}");
        assert_eq!((ended, failed), (refused(Refusal::WrongToken), refused(Refusal::WrongToken)), "{line}");
    }
}

/// Each step changes the file of one worker, so two neighbouring steps meet, in both directions.
#[test]
fn while_tokens_are_rotated_all_calls_are_accepted() {
    let (old, new) = (alloc::format!("old {SECRET}"), alloc::format!("new {OTHER}"));
    let steps = [old.clone(), alloc::format!("{old}\n{new}"), alloc::format!("{new}\n{old}"), new];
    for pair in steps.windows(2) {
        for (calling, called) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let (seen, ended, failed) = connect(caller(token(calling, 1)), callee(token(called, 2)));
            assert_eq!((seen.last(), ended, failed), (Some(&REQUEST), None, None), "{calling} to {called}");
        }
    }
    // The secret of one token under the name of another is neither.
    let (_, ended, _) =
        connect(caller(token(&alloc::format!("old {OTHER}"), 1)), callee(token(&steps[1], 2)));
    assert_eq!(ended, refused(Refusal::WrongToken));
}

#[test]
fn an_end_without_a_token_is_refused_by_one_with_a_token() {
    let (seen, ended, failed) = connect(caller(None), callee(token(SECRET, 2)));
    assert_eq!(seen, [HELLO, CHALLENGE, PROOF, REFUSED]);
    assert_eq!((ended, failed), (refused(Refusal::NoToken), refused(Refusal::NoToken)));

    let (seen, ended, failed) = connect(caller(token(SECRET, 1)), callee(None));
    assert_eq!(seen, [HELLO, WELCOME], "no call is sent");
    assert_eq!((ended, failed), (None, Some(ConnectionError::Unproven)));
}

#[test]
fn a_recorded_proof_is_worthless_on_another_connection() {
    let (mut calling, mut called) = (caller(token(SECRET, 1)), callee(token(SECRET, 2)));
    let hello = written(calling.poll_write());
    to_callee(&mut called, &hello);
    to_caller(&mut calling, &written(called.poll_write()));
    let proof = written(calling.poll_write());
    assert_eq!(to_callee(&mut called, &proof), None);
    let answer = written(called.poll_write());

    let mut again = callee(token(SECRET, 3));
    to_callee(&mut again, &hello);
    assert_eq!(to_callee(&mut again, &proof), refused(Refusal::WrongToken));

    // The callee's recorded proof, after a challenge with its recorded nonce.
    let mut again = caller(token(SECRET, 4));
    to_caller(&mut again, &encoded(&CalleeFrame::Challenge { nonce: [2; 32] }));
    assert_eq!(to_caller(&mut again, &answer), Some(ConnectionError::Unproven));
}

#[test]
fn a_proof_that_is_sent_back_proves_nothing() {
    let mut calling = caller(token(SECRET, 1));
    to_caller(&mut calling, &encoded(&CalleeFrame::Challenge { nonce: [1; 32] }));
    let sent = frames(&written(calling.poll_write()));
    let (header, body) = sent.last().expect("frames");
    let Ok(Some(CallerFrame::Proof { proof, .. })) = CallerFrame::parse(header.kind, body, &RPC_FRAME) else {
        panic!("{sent:?}")
    };
    let answer = encoded(&CalleeFrame::Proof { proof });
    assert_eq!(to_caller(&mut calling, &answer), Some(ConnectionError::Unproven));
}

#[test]
fn a_proof_holds_for_one_channel() {
    let (mut calling, called) = (caller(token(SECRET, 1)), callee(token(SECRET, 2)));
    calling.bind([7; 32]);
    let (_, ended, _) = connect(calling, called);
    assert_eq!(ended, refused(Refusal::WrongToken));
    let (mut calling, mut called) = (caller(token(SECRET, 1)), callee(token(SECRET, 2)));
    calling.bind([7; 32]);
    called.bind([7; 32]);
    assert_eq!(connect(calling, called).0.last(), Some(&REQUEST));
}

#[test]
fn frames_in_another_order_end_the_connection() {
    let unexpected = |kind| Some(ConnectionError::UnexpectedFrame(kind));
    let proof = encoded(&CallerFrame::Proof { token: b"default", nonce: [0; 32], proof: [0; 32] });
    let request = encoded(&CallerFrame::Request { deadline_ms: 0, payload_bytes: 0, handler: b"f" });
    let hello = written(caller(None).poll_write());
    for (token, bytes, why) in [
        (token(SECRET, 2), [&MAGIC[..], &proof].concat(), unexpected(PROOF)),
        (None, [&hello[..], &proof].concat(), unexpected(PROOF)),
        (token(SECRET, 2), [&hello[..], &request].concat(), unexpected(REQUEST)),
        (token(SECRET, 2), [&hello[..], &hello[MAGIC.len()..]].concat(), unexpected(HELLO)),
    ] {
        assert_eq!(to_callee(&mut callee(token), &bytes), why);
    }

    let challenge = encoded(&CalleeFrame::Challenge { nonce: [9; 32] });
    let proof = encoded(&CalleeFrame::Proof { proof: [0; 32] });
    let welcome = encoded(&CalleeFrame::Welcome {
        version: 1,
        callee: b"b",
        callee_id: 2,
        requests_max: 1,
        bytes_max: 1,
    });
    for (token, bytes, why) in [
        (token(SECRET, 1), [&challenge[..], &challenge].concat(), unexpected(CHALLENGE)),
        (None, [&challenge[..], &challenge].concat(), unexpected(CHALLENGE)),
        (token(SECRET, 1), proof.clone(), Some(ConnectionError::Unproven)),
        (token(SECRET, 1), [&challenge[..], &welcome].concat(), Some(ConnectionError::Unproven)),
        (token(SECRET, 1), welcome, Some(ConnectionError::Unproven)),
        (None, proof, Some(ConnectionError::Unproven)),
    ] {
        assert_eq!(to_caller(&mut caller(token), &bytes), why);
    }
}

#[test]
fn a_challenge_that_is_not_answered_ends_with_the_time_for_the_greeting() {
    let mut called = callee(token(SECRET, 2));
    to_callee(&mut called, &written(caller(None).poll_write()));
    let until = called.poll_timeout().expect("a deadline");
    called.tick(until);
    assert!(matches!(to_callee(&mut called, b""), Some(ConnectionError::NoGreeting(_))));
}
