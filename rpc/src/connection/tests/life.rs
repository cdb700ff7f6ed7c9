//! Workers that die or fall silent, and callers that do not read.

use super::*;

#[test]
fn when_a_worker_dies_all_calls_to_it_fail_at_once() {
    let mut pair = Pair::open();
    pair.call("f", 3).expect("made");
    pair.call("g", 0).expect("made");
    pair.run();
    pair.take_log();
    pair.caller.lost(ConnectionError::Lost("reset by peer".into()));
    pair.callee.lost(ConnectionError::Lost("reset by peer".into()));
    pair.expect(&[
        "failed 1: f at b (id 2): contact with the worker was lost: the connection ended: reset by peer",
        "failed 2: g at b (id 2): contact with the worker was lost: the connection ended: reset by peer",
        "caller hangs up: the connection ended: reset by peer",
        "over 1 Lost",
        "over 2 Lost",
        "callee ended: the connection ended: reset by peer",
    ]);
    assert!(!pair.callee.answer(1, 1) && pair.caller.poll_timeout().is_none());
    assert_eq!(pair.call("f", 0), Ok(3));
    pair.hear_caller(b"");
    assert_eq!(pair.take_log(), ["caller connects"]);
}

#[test]
fn a_silent_worker_is_asked_and_then_taken_for_dead() {
    let at = |secs: u64| NOW + Duration::from_secs(secs);
    let mut pair = Pair::open();
    pair.caller.tick(at(1000));
    pair.expect(&[]);
    assert_eq!(pair.caller.poll_timeout(), None, "nothing is expected");
    pair.now = at(1000);
    pair.call("f", 0).expect("made");
    pair.run();
    pair.take_log();
    for now in [1005, 1010] {
        assert_eq!(pair.caller.poll_timeout(), Some(at(now)));
        pair.now = at(now);
        pair.caller.tick(at(now));
        pair.expect(&[]);
    }
    pair.caller.tick(at(1015));
    drop(core::iter::from_fn(|| pair.caller.poll_write()).collect::<Vec<_>>());
    pair.caller.tick(at(1029));
    pair.hear_caller(b"");
    assert!(pair.take_log().is_empty());
    pair.caller.tick(at(1030));
    pair.hear_caller(b"");
    assert_eq!(
        pair.take_log(),
        [
            "failed 1: f at b (id 2): contact with the worker was lost: nothing received in 20.0 s",
            "caller hangs up: nothing received in 20.0 s"
        ]
    );
    let mut pair = Pair::with(RpcLimits::default());
    assert_eq!((pair.caller.poll_timeout(), pair.callee.poll_timeout()), (Some(at(10)), Some(at(10))));
    pair.caller.tick(at(10));
    pair.callee.tick(at(10));
    pair.expect(&["caller hangs up: no greeting in 10.0 s", "callee ended: no greeting in 10.0 s"]);
}

/// Calls with short timeouts, one after the other, over a broken path: nothing arrives, and no error is reported.
#[test]
fn that_a_worker_is_silent_is_noticed_though_no_call_waits_for_long() {
    let at = |millis: u64| NOW + Duration::from_millis(millis);
    for (pause_ms, calls) in [(0, 20), (900, 11), (3_600_000, 1)] {
        let mut pair = Pair::open();
        let mut made = 0;
        let (mut next_call, mut now) = (at(0), at(0));
        let ended = loop {
            if now >= next_call && pair.caller.in_flight() == 0 {
                let deadline = Some(now + Duration::from_secs(1));
                let call = NewCall { handler: "f", payload_bytes: 0, deadline, kind: CallKind::Responded };
                pair.now = now;
                pair.begin(call).expect("it is open");
                made += 1;
                next_call = now + Duration::from_millis(1000 + pause_ms);
            }
            assert!(made <= 20, "it is not noticed");
            while pair.caller.poll_write().is_some() {}
            now = pair.caller.poll_timeout().map_or(next_call, |at| at.min(next_call).max(now));
            pair.caller.tick(now);
            pair.hear_caller(b"");
            if let Some(end) = pair.take_log().into_iter().find(|line| line.starts_with("caller hangs up")) {
                break end;
            }
        };
        assert_eq!((now, made), (at(20_000), calls));
        assert_eq!(ended, "caller hangs up: nothing received in 20.0 s");
    }
}

#[test]
fn a_call_that_was_given_up_is_no_reason_to_doubt_for_long() {
    let at = |secs: u64| NOW + Duration::from_secs(secs);
    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    pair.run();
    assert!(pair.caller.cancel(1));
    pair.take_log();
    assert_eq!(pair.caller.poll_timeout(), Some(at(5)));
    pair.now = at(5);
    pair.caller.tick(at(5));
    pair.expect(&["failed 1: f at b (id 2): it was cancelled", "over 1 Cancelled"]);
    assert_eq!(pair.caller.poll_timeout(), None, "it lives");
    // A one-way call expects nothing.
    let notice = NewCall { handler: "f", payload_bytes: 0, deadline: None, kind: CallKind::OneWay };
    pair.begin(notice).expect("made");
    assert_eq!(pair.caller.poll_timeout(), Some(at(10)), "it is not even out");
    pair.run();
    assert_eq!(pair.caller.poll_timeout(), None);
    // An earlier silence does not count for a call that begins now.
    pair.now = at(1000);
    pair.call("f", 0).expect("made");
    assert_eq!(pair.caller.poll_timeout(), Some(at(1005)));
}

#[test]
fn a_welcome_that_allows_nothing_is_no_welcome() {
    let mut pair = Pair::with(RpcLimits::default());
    let welcome =
        CalleeFrame::Welcome { version: 1, callee: b"b", callee_id: 2, requests_max: 0, bytes_max: 1 };
    pair.hear_caller(&encoded(0, &welcome));
    assert_eq!(pair.take_log(), ["caller hangs up: the welcome allows no request at all"]);
}

#[test]
fn who_does_not_read_its_answers_is_not_read() {
    let ping = encoded(0, &CallerFrame::Ping { nonce: 9 });
    let long = encoded(1, &CallerFrame::Request { deadline_ms: 0, payload_bytes: u64::MAX, handler: b"f" });
    for (frame, numbered) in [(ping, false), (long, true)] {
        let mut pair = Pair::open();
        let mut sent = 0_u64;
        while pair.callee.is_read() {
            sent += 1;
            assert!(sent < 20_000, "it is read on and on");
            let mut frame = frame.clone();
            if numbered {
                frame[8..16].copy_from_slice(&sent.to_le_bytes());
            }
            pair.hear_callee(&frame);
        }
        assert!(pair.take_log().is_empty());
        let Some(ToWrite::Bytes(back)) = pair.callee.poll_write() else { panic!("answers") };
        assert!(back.len() > 256 * 1024 && back.len() < 257 * 1024, "{} bytes", back.len());
        assert!(pair.callee.is_read(), "what was asked for is the socket's");
    }
}

#[test]
fn who_does_not_take_the_last_words_is_left() {
    let at = |secs: u64| NOW + Duration::from_secs(secs);
    let mut pair = Pair::with(RpcLimits::default());
    pair.callee.refuse(Refusal::Group, "");
    pair.hear_callee(b"");
    assert_eq!(pair.take_log(), ["callee ended: refused: it belongs to another group"]);
    assert!(pair.callee.poll_write().is_some());
    for (secs, log) in [(15, &[][..]), (29, &[]), (30, &["callee unread"]), (60, &[])] {
        assert_eq!(pair.callee.poll_timeout().is_some(), secs < 60);
        pair.callee.tick(at(secs));
        pair.hear_callee(b"");
        assert_eq!(pair.take_log(), log, "{secs}");
    }
    // The last response may be handed out at any time after the goodbye.
    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    pair.run();
    pair.callee.goodbye();
    for secs in [15, 30, 45] {
        assert_eq!(pair.callee.poll_timeout(), Some(at(secs)));
        pair.callee.tick(at(secs));
    }
    pair.take_log();
    pair.callee.answer(1, 0);
    while pair.callee.poll_write().is_some() {}
    pair.callee.tick(at(60));
    pair.callee.tick(at(75));
    pair.hear_callee(b"");
    assert_eq!(pair.take_log(), ["answered 1", "callee drained", "callee unread"]);
}

#[test]
fn who_is_held_up_hears_that_the_worker_lives() {
    let at = |secs: u64| NOW + Duration::from_secs(secs);
    let mut pair = Pair::with(RpcLimits::default());
    assert!(!pair.callee.hold_up(NOW), "before the handshake there are no requests");
    pair.run();
    pair.call("f", 0).expect("made");
    pair.run();
    pair.take_log();
    // The caller is not read, but gets pongs nevertheless, for as long as it takes.
    for secs in (0..300).step_by(5) {
        pair.now = at(secs);
        assert!(pair.callee.hold_up(pair.now) && pair.callee.is_held_up() && !pair.callee.is_read());
        pair.caller.tick(pair.now);
        while pair.caller.poll_write().is_some() {}
        while pair.step_back(usize::MAX) {}
        assert!(pair.take_log().is_empty(), "{secs}");
        // Capacity that others use at once changes nothing.
        pair.callee.go_on();
        assert!(pair.callee.is_read() && pair.callee.hold_up(pair.now));
        assert_eq!((pair.callee.poll_write(), pair.callee.poll_timeout()), (None, Some(at(secs + 5))));
        pair.callee.tick(at(secs + 5));
    }
    // Pongs that are not read do not accumulate, and a connection whose caller has ended is read to its end.
    let Some(ToWrite::Bytes(liveness_key)) = pair.callee.poll_write() else { panic!("a pong") };
    (300..400).for_each(|secs| pair.callee.tick(at(secs)));
    assert_eq!(pair.callee.poll_write(), Some(ToWrite::Bytes(liveness_key)));
    pair.callee.read_to_the_end();
    assert!(pair.callee.is_read() && !pair.callee.hold_up(at(400)));
    assert_eq!(pair.callee.poll_timeout(), None);
}
