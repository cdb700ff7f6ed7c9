use super::*;
use crate::wire::native::{From, HEADER_BYTES, Scan, scan};

const TOKEN: [u8; 16] = [7; 16];
const LIMITS: fn() -> SessionLimits = || SessionLimits {
    body_bytes_max: usize::MAX,
    sessions_max: 3,
    window_frames: 3,
    pending_max: 4,
    remembered_max: 2,
    ..SessionLimits::default()
};

fn conn(index: u32) -> ConnId {
    ConnId { index, generation: 0 }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn hello(grace_ms: u32) -> Hello<'static> {
    Hello {
        incarnation: 0,
        session: 0,
        token: [0; 16],
        received: 0,
        grace_ms,
        heartbeat_ms: 100,
        heartbeats_missed_max: 3,
        node: b"n0",
    }
}

fn resuming(received: u64) -> Hello<'static> {
    Hello { incarnation: 9, session: 1, token: TOKEN, received, ..hello(0) }
}

fn greet(sessions: &mut Sessions, now: Instant, index: u32, hello: Hello<'_>) -> Vec<Output> {
    let input = Input::Hello { conn: conn(index), hello, fresh_token: TOKEN };
    sessions.handle(now, input).expect("the first");
    core::iter::from_fn(|| sessions.poll_output()).collect()
}

fn feed(sessions: &mut Sessions, now: Instant, input: Input<'_>) -> Vec<Output> {
    sessions.handle(now, input).expect("legal");
    core::iter::from_fn(|| sessions.poll_output()).collect()
}

fn tick(sessions: &mut Sessions, now: Instant) -> Vec<Output> {
    sessions.tick(now, |_| false);
    core::iter::from_fn(|| sessions.poll_output()).collect()
}

fn opened(grace_ms: u32) -> Sessions {
    let mut sessions = Sessions::new(LIMITS(), 9);
    let outputs = greet(&mut sessions, at(0), 0, hello(grace_ms));
    let [Output::Welcome { session: SessionId(1), resumed: false, .. }] = outputs[..] else {
        panic!("{outputs:?}")
    };
    sessions
}

fn refused(outputs: &[Output]) -> (FaultCode, u64, u64) {
    let [Output::Refused { fault, .. }] = outputs else { panic!("{outputs:?}") };
    (fault.code, fault.first, fault.second)
}

fn ended(why: Why, conn: Option<ConnId>) -> Vec<Output> {
    [Output::Ended { session: SessionId(1), conn, node: b"n0"[..].into(), why }].to_vec()
}

/// Begins and answers a request. Returns the sequence number of the answer.
fn answered(sessions: &mut Sessions, index: u32, id: u64) -> u64 {
    let outcome = sessions.request(at(0), conn(index), id, 0).expect("a session");
    assert_eq!(outcome, Outcome::Fresh(SessionId(1)));
    let mut bytes = Scratch::default();
    let frame = ServerFrame::Done { revision: id };
    sessions.answer(SessionId(1), id, &frame, &mut bytes).expect("pending");
    let Ok(Scan::Whole { header, .. }) = scan(&bytes.0, From::Server, &crate::limits::FrameLimits::default())
    else {
        panic!("{bytes:?}")
    };
    assert_eq!(header.id, id);
    header.sequence
}

#[test]
fn a_lost_connection_ends_the_session_after_its_grace_and_at_once_without() {
    let mut sessions = opened(0);
    let lost = Input::Lost { conn: conn(0), why: Why::HostSilent };
    assert_eq!(feed(&mut sessions, at(5), lost), ended(Why::HostSilent, None));
    assert_eq!(sessions.poll_timeout(), None);

    let mut sessions = opened(1000);
    assert_eq!(feed(&mut sessions, at(5), lost), []);
    assert_eq!(sessions.poll_timeout(), Some(at(255)));
    assert_eq!(tick(&mut sessions, at(1004)), []);
    assert_eq!(tick(&mut sessions, at(1005)), ended(Why::HostSilent, None));
    assert!(sessions.sessions.is_empty() && sessions.poll_timeout().is_none());
}

#[test]
fn missed_heartbeats_end_a_session_and_any_frame_is_one() {
    let mut sessions = opened(1000);
    assert_eq!(sessions.poll_timeout(), Some(at(100)));
    sessions.note_received(at(200), conn(0), 0).expect("a session");
    assert_eq!(tick(&mut sessions, at(300)), []);
    assert_eq!(sessions.poll_timeout(), Some(at(400)));
    assert_eq!(tick(&mut sessions, at(499)), []);
    assert_eq!(sessions.poll_timeout(), Some(at(500)));
    assert_eq!(tick(&mut sessions, at(500)), ended(Why::Heartbeat, Some(conn(0))));
    let outcome = greet(&mut sessions, at(501), 1, resuming(0));
    assert_eq!(refused(&outcome), (FaultCode::SessionEnded, u64::from(Why::Heartbeat.number()), 0));
}

#[test]
fn a_session_is_checked_in_each_heartbeat_but_at_most_once_a_second_and_four_times_per_timeout() {
    for (heartbeat_ms, heartbeats_missed_max, interval) in
        [(10, 1000, 1000), (2000, 1000, 2000), (100, 12, 300), (100, 3, 100)]
    {
        let mut sessions = Sessions::new(LIMITS(), 9);
        let hello = Hello { heartbeat_ms, heartbeats_missed_max, ..hello(3_600_000) };
        greet(&mut sessions, at(0), 0, hello);
        for check in [interval, 2 * interval] {
            assert_eq!(
                sessions.poll_timeout(),
                Some(at(check)),
                "{heartbeats_missed_max} of {heartbeat_ms} ms"
            );
            assert_eq!(tick(&mut sessions, at(check)), []);
        }
        // One without a connection, too.
        feed(&mut sessions, at(2 * interval), Input::Lost { conn: conn(0), why: Why::HostSilent });
        let due = 2 * interval + u64::from(heartbeat_ms).max(1000);
        assert_eq!(sessions.poll_timeout(), Some(at(due)));
    }
}

#[test]
fn a_tick_ends_one_session() {
    let mut sessions = Sessions::new(LIMITS(), 9);
    for index in 0..3 {
        greet(&mut sessions, at(0), index, hello(0));
    }
    for left in [2, 1, 0] {
        let outputs = tick(&mut sessions, at(300));
        assert!(matches!(outputs[..], [Output::Ended { .. }]), "{outputs:?}");
        assert_eq!(sessions.sessions.len(), left);
        assert_eq!(sessions.poll_timeout().is_some(), left > 0);
    }
}

#[test]
fn forged_stale_and_false_claims_are_refused_and_disturb_nobody() {
    let mut sessions = opened(1000);
    answered(&mut sessions, 0, 1);
    let mut forged = resuming(0);
    forged.token[15] ^= 1;
    assert_eq!(refused(&greet(&mut sessions, at(1), 1, forged)), (FaultCode::SessionForged, 0, 0));
    let of_another_life = Hello { incarnation: 8, ..resuming(0) };
    assert_eq!(refused(&greet(&mut sessions, at(1), 1, of_another_life)), (FaultCode::SessionEnded, 0, 0));
    let unknown = Hello { session: 2, ..resuming(0) };
    assert_eq!(refused(&greet(&mut sessions, at(1), 1, unknown)), (FaultCode::SessionEnded, 0, 0));
    let ahead = resuming(2);
    assert_eq!(refused(&greet(&mut sessions, at(1), 1, ahead)), (FaultCode::FalseAcknowledgement, 2, 1));
    assert_eq!(sessions.conn_of(SessionId(1)), Some(conn(0)));
    assert_eq!(sessions.node_of(SessionId(1)), Some(&b"n0"[..]));
    let claim = sessions.note_received(at(2), conn(0), 2).expect_err("nothing like that was sent");
    assert_eq!((claim.code, claim.first, claim.second), (FaultCode::FalseAcknowledgement, 2, 1));
}

#[test]
fn a_session_comes_back_with_what_it_has_not_received() {
    let mut sessions = opened(1000);
    assert_eq!((answered(&mut sessions, 0, 1), answered(&mut sessions, 0, 4)), (1, 2));
    assert_eq!(sessions.request(at(0), conn(0), 5, 1), Ok(Outcome::Fresh(SessionId(1))));
    feed(&mut sessions, at(1), Input::Lost { conn: conn(0), why: Why::Connection });
    let mut nobody = Scratch::default();
    let frame = ServerFrame::Done { revision: 5 };
    let conn_of_answer = sessions.answer(SessionId(1), 5, &frame, &mut nobody);
    assert_eq!((conn_of_answer, nobody.0.len()), (Ok(None), 0));

    let outputs = greet(&mut sessions, at(2), 1, resuming(1));
    assert!(matches!(outputs[..], [Output::Welcome { resumed: true, request_last: 5, .. }]), "{outputs:?}");
    let ids: Vec<u8> = sessions.unreceived(SessionId(1)).map(|frame| frame[8]).collect();
    assert_eq!(ids, [4, 5]);
    assert!(sessions.unreceived(SessionId(1)).all(|frame| frame.len() == HEADER_BYTES + 8));

    // A connection replaces another that is still open.
    let outputs = greet(&mut sessions, at(3), 2, resuming(3));
    let [Output::Superseded { conn: old }, Output::Welcome { conn: new, .. }] = outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((old, new, sessions.kept(SessionId(1))), (conn(1), conn(2), (0, 0)));
    assert_eq!(sessions.request(at(3), conn(1), 6, 3).expect_err("superseded").code, FaultCode::SessionEnded);
    let late = Input::Lost { conn: conn(1), why: Why::Connection };
    assert_eq!(sessions.handle(at(3), late), Err(InputError::NoSession(conn(1))));
}

#[test]
fn requests_that_come_again_are_not_carried_out_again() {
    let mut sessions = opened(1000);
    for id in 1..=4 {
        answered(&mut sessions, 0, id);
    }
    assert_eq!(sessions.request(at(0), conn(0), 7, 0), Ok(Outcome::Fresh(SessionId(1))));
    assert_eq!(sessions.request(at(0), conn(0), 7, 0), Ok(Outcome::Pending));
    assert!(matches!(sessions.request(at(0), conn(0), 3, 0), Ok(Outcome::Repeat(bytes)) if bytes[8] == 3));
    // The window has capacity for three frames.
    let Ok(Outcome::Forgotten(fault)) = sessions.request(at(0), conn(0), 1, 0) else { panic!() };
    assert_eq!((fault.code, fault.first), (FaultCode::RequestForgotten, 2));
    let Ok(Outcome::Forgotten(_)) = sessions.request(at(0), conn(0), 5, 0) else { panic!("never taken") };
    assert_eq!(sessions.request(at(0), conn(0), 0, 0).expect_err("no id").code, FaultCode::UnexpectedFrame);
    let twice = sessions.answer(SessionId(1), 3, &ServerFrame::Done { revision: 0 }, &mut Scratch::default());
    assert_eq!(twice, Err(FrameRefused::NotPending(3)));
}

#[test]
fn a_window_that_was_passed_refuses_and_lets_the_session_wait() {
    let mut sessions = opened(1000);
    for id in 1..=5 {
        answered(&mut sessions, 0, id);
    }
    assert_eq!(sessions.kept(SessionId(1)).0, 3);
    feed(&mut sessions, at(1), Input::Lost { conn: conn(0), why: Why::Connection });
    assert_eq!(refused(&greet(&mut sessions, at(2), 1, resuming(1))), (FaultCode::WindowPassed, 1, 3));
    assert!(matches!(greet(&mut sessions, at(2), 2, resuming(2))[..], [Output::Welcome { .. }]));
    assert_eq!(sessions.unreceived(SessionId(1)).count(), 3);
}

#[test]
fn the_window_is_bounded_in_bytes_and_empty_without_a_grace() {
    let mut sessions = opened(0);
    answered(&mut sessions, 0, 1);
    assert_eq!(sessions.kept(SessionId(1)), (0, 0));
    let limits = SessionLimits { window_bytes: 70, ..LIMITS() };
    let mut sessions = Sessions::new(limits, 9);
    greet(&mut sessions, at(0), 0, hello(1000));
    for id in 1..=3 {
        answered(&mut sessions, 0, id);
        assert!(sessions.kept(SessionId(1)).1 <= 70);
    }
    assert_eq!(sessions.kept(SessionId(1)), (2, 64));
}

#[test]
fn limits_and_ends_are_told() {
    let mut sessions = opened(1000);
    for id in 1..=4 {
        assert_eq!(sessions.request(at(0), conn(0), id, 0), Ok(Outcome::Fresh(SessionId(1))));
    }
    let Ok(Outcome::Refuse(SessionId(1), fault)) = sessions.request(at(0), conn(0), 5, 0) else { panic!() };
    assert_eq!((fault.code, fault.first), (FaultCode::TooManyPending, 4));
    sessions
        .answer(SessionId(1), 5, &ServerFrame::Error { fault }, &mut Scratch::default())
        .expect("it waits for this");

    let again = Input::Hello { conn: conn(0), hello: hello(0), fresh_token: TOKEN };
    assert_eq!(sessions.handle(at(0), again), Err(InputError::SecondHello(conn(0))));
    greet(&mut sessions, at(0), 1, hello(0));
    greet(&mut sessions, at(0), 2, hello(0));
    assert_eq!(refused(&greet(&mut sessions, at(0), 3, hello(0))), (FaultCode::TooManySessions, 3, 0));

    let bye = Input::Bye { conn: conn(0), why: Why::Left };
    assert_eq!(feed(&mut sessions, at(1), bye), ended(Why::Left, Some(conn(0))));
    let outputs = feed(&mut sessions, at(2), Input::Stop);
    let stopped =
        |output: &Output| matches!(output, Output::Ended { why: Why::ServerStopped, conn: Some(_), .. });
    assert!(outputs.len() == 2 && outputs.iter().all(stopped), "{outputs:?}");
    // Two of the three ends are remembered.
    assert_eq!(refused(&greet(&mut sessions, at(3), 4, resuming(0))), (FaultCode::SessionEnded, 0, 0));
    let third = Hello { session: 3, ..resuming(0) };
    let stopped = u64::from(Why::ServerStopped.number());
    assert_eq!(refused(&greet(&mut sessions, at(3), 4, third)), (FaultCode::SessionEnded, stopped, 0));
}

#[test]
fn what_is_asked_for_is_granted_within_limits() {
    let mut sessions = Sessions::new(LIMITS(), 9);
    let granted = |sessions: &mut Sessions, index, hello| match greet(sessions, at(0), index, hello)[..] {
        [Output::Welcome { granted, .. }] => {
            (granted.grace_ms, granted.heartbeat_ms, granted.heartbeats_missed_max)
        }
        ref other => panic!("{other:?}"),
    };
    let greedy =
        Hello { grace_ms: u32::MAX, heartbeat_ms: u32::MAX, heartbeats_missed_max: u32::MAX, ..hello(0) };
    assert_eq!(granted(&mut sessions, 0, greedy), (3_600_000, 3_600_000, 1000));
    let modest = Hello { grace_ms: 0, heartbeat_ms: 0, heartbeats_missed_max: 0, ..hello(0) };
    assert_eq!(granted(&mut sessions, 1, modest), (0, 5000, 1));
    assert_eq!(granted(&mut sessions, 2, Hello { heartbeat_ms: 1, ..modest }), (0, 10, 1));
}

#[test]
fn what_sessions_hold_is_added_up_and_given_back() {
    let mut sessions = opened(1000);
    let base = SESSION_COST_BYTES + 2 * 2;
    assert_eq!((sessions.held_bytes(), sessions.holders().max()), (base, Some((base, SessionId(1)))));
    (1..=3).for_each(|id| assert_eq!(answered(&mut sessions, 0, id), id));
    let (frames, bytes) = sessions.kept(SessionId(1));
    let kept = bytes + frames as u64 * KEPT_COST_BYTES;
    let held = |sessions: &Sessions| sessions.held_bytes() - base;
    assert_eq!((frames, held(&sessions)), (3, kept));
    answered(&mut sessions, 0, 4);
    assert_eq!(held(&sessions), kept, "the oldest went");
    sessions.charge(SessionId(1), 500).expect("there is room");
    assert_eq!(sessions.holders().max(), Some((base + kept + 500, SessionId(1))));
    let full = sessions.charge(SessionId(1), sessions.limits.waiting_bytes_max).expect_err("too much");
    assert_eq!((full.code, full.first), (FaultCode::TooMany, sessions.limits.waiting_bytes_max));
    sessions.note_received(at(1), conn(0), 4).expect("a session");
    assert_eq!(held(&sessions), 500);
    sessions.discharge(SessionId(1), 100);
    answered(&mut sessions, 0, 5);
    assert_eq!(held(&sessions), 400 + kept / 3);
    let expel = Input::Expel { session: SessionId(1), why: Why::Limit };
    assert_eq!(feed(&mut sessions, at(2), expel), ended(Why::Limit, Some(conn(0))));
    sessions.discharge(SessionId(1), 400);
    assert_eq!(sessions.held_bytes(), 0);
    assert_eq!(feed(&mut sessions, at(2), expel), [], "it is over already");
}
