use super::*;

const TOKEN: [u8; 16] = [3; 16];

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn welcome(resumed: bool, request_last: u64) -> ServerFrame<'static> {
    ServerFrame::Welcome {
        version: 1,
        incarnation: 9,
        session: 5,
        token: TOKEN,
        resumed,
        request_last,
        grace_ms: 2000,
        heartbeat_ms: 100,
        heartbeats_missed_max: 3,
        window_frames: 4,
        window_bytes: 1000,
        key_bytes_max: 0,
        value_bytes_max: 0,
        list_max: 0,
        frame_bytes_max: 0,
    }
}

fn receive(session: &mut Client, millis: u64, id: u64, sequence: u64, frame: &ServerFrame<'_>) -> Received {
    use crate::wire::native::Message;
    let header = Header { body_bytes: 8, kind: frame.kind(), flags: 0, id, sequence };
    session.receive(at(millis), &header, frame)
}

type Client = ClientSession<4>;
const DONE: ServerFrame<'static> = ServerFrame::Done { revision: 1 };

fn live(grace_ms: u32) -> Client {
    let mut session = Client::new(SessionOptions { grace_ms, ..SessionOptions::default() });
    session.hello(at(0)).expect("new");
    assert_eq!(receive(&mut session, 0, 0, 0, &welcome(false, 0)), Received::Welcome);
    session
}

/// Sends all that may be sent. Returns the ids, and how many of them are marked as sent before.
fn send_all(session: &mut Client) -> (heapless::Vec<u64, 4>, usize) {
    let (mut ids, mut resent) = (heapless::Vec::new(), 0);
    while let Some(id) = session.next_to_send() {
        resent += usize::from(session.label(at(1), id).flags & FLAG_RESENT != 0);
        ids.push(id).expect("no more than fit");
    }
    (ids, resent)
}

#[test]
fn what_did_not_arrive_is_sent_again_and_what_did_is_not() {
    let mut session = live(2000);
    for _ in 0..4 {
        session.begin().expect("there is room");
    }
    assert_eq!(session.begin(), Err(SessionError::Full));
    let (ids, resent) = send_all(&mut session);
    assert_eq!((&ids[..], resent), (&[1, 2, 3, 4][..], 0));
    assert_eq!(receive(&mut session, 2, 2, 1, &DONE), Received::Answer(2));
    assert_eq!(session.begin(), Ok(5));
    assert_eq!(session.connection_ended(), None);
    assert_eq!((session.state(), session.next_to_send()), (ClientState::Broken, None));

    let (identity, label) = session.hello(at(3)).expect("broken");
    assert_eq!(identity, Identity { incarnation: 9, session: 5, token: TOKEN });
    assert_eq!(label.sequence, 1);
    assert_eq!(session.next_to_send(), None);
    assert_eq!(receive(&mut session, 4, 0, 0, &welcome(true, 3)), Received::Welcome);
    // 1 and 3 have arrived and will be answered. 4 has not arrived, and 5 was never sent.
    let (ids, resent) = send_all(&mut session);
    assert_eq!((&ids[..], resent), (&[4, 5][..], 1));
    assert_eq!(receive(&mut session, 5, 2, 1, &DONE), Received::Nothing);
    assert_eq!(receive(&mut session, 5, 1, 2, &DONE), Received::Answer(1));
    assert_eq!(session.pending(), [3, 4, 5]);
}

#[test]
fn nothing_goes_out_before_welcome_unless_there_is_nothing_to_resume() {
    for (grace_ms, sent) in [(2000, None), (0, Some(1))] {
        let mut session = Client::new(SessionOptions { grace_ms, ..SessionOptions::default() });
        session.begin().expect("there is room");
        assert_eq!(session.next_to_send(), None);
        session.hello(at(0)).expect("new");
        assert_eq!(session.next_to_send(), sent);
        session.label(at(0), sent.unwrap_or(0));
        // The session was never open, so it cannot be lost: the next connection opens one that has received nothing.
        assert_eq!((session.connection_ended(), session.state()), (None, ClientState::New));
        session.hello(at(1)).expect("new");
        assert_eq!(session.next_to_send(), sent);
        assert_eq!(session.label(at(1), sent.unwrap_or(0)).flags, 0);
    }
    let mut session = Client::new(SessionOptions { grace_ms: 0, ..SessionOptions::default() });
    session.begin().expect("there is room");
    session.hello(at(0)).expect("new");
    session.label(at(0), 1);
    receive(&mut session, 1, 0, 0, &welcome(false, 0));
    assert_eq!(session.next_to_send(), None, "it is out already");
}

#[test]
fn acknowledgements_are_due_at_half_of_the_window() {
    let mut session = live(2000);
    let push = ServerFrame::LeaseOver { lease: 1, why: Why::Deadline };
    assert_eq!(receive(&mut session, 1, 7, 1, &push), Received::Push(7));
    assert!(!session.owes_acknowledge());
    receive(&mut session, 1, 7, 2, &push);
    assert!(session.owes_acknowledge());
    assert_eq!(session.label(at(1), 0), Label { id: 0, sequence: 2, flags: 0 });
    assert!(!session.owes_acknowledge());
}

#[test]
fn heartbeats_are_due_in_silence_and_when_nothing_is_answered() {
    let mut session = live(2000);
    assert_eq!(session.poll_timeout(), Some(at(100)));
    assert_eq!(session.tick(at(99)), None);
    assert_eq!(session.tick(at(100)), Some(Due::Heartbeat(100_000_000)));
    session.label(at(100), 0);
    receive(&mut session, 101, 0, 0, &ServerFrame::HeartbeatEcho { nonce: 100_000_000 });
    session.begin().expect("there is room");
    session.label(at(150), 1);
    // The client last sent at 150 and last received at 101.
    assert_eq!(session.poll_timeout(), Some(at(201)));
    assert!(matches!(session.tick(at(201)), Some(Due::Heartbeat(_))));
    session.label(at(201), 0);
    assert_eq!(session.poll_timeout(), Some(at(301)));
    assert!(matches!(session.tick(at(301)), Some(Due::Heartbeat(_))));
    assert_eq!(session.tick(at(401)), Some(Due::ServerSilent));
}

#[test]
fn a_pause_is_no_silence_of_the_server_and_a_heartbeat_follows_at_once() {
    let mut session = live(2000);
    session.paused(Duration::from_secs(3600));
    assert!(matches!(session.tick(at(3_600_000)), Some(Due::Heartbeat(_))));
    assert_eq!(session.tick(at(3_600_299)), Some(Due::Heartbeat(3_600_299_000_000)));
    assert_eq!(session.tick(at(3_600_300)), Some(Due::ServerSilent));
}

#[test]
fn what_no_server_sends_ends_the_session() {
    let gap = |session: &mut Client| receive(session, 1, 1, 2, &DONE);
    let answer_to_nobody = |session: &mut Client| receive(session, 1, 8, 1, &DONE);
    let second_welcome = |session: &mut Client| receive(session, 1, 0, 0, &welcome(false, 0));
    for wrong in [gap, answer_to_nobody, second_welcome] {
        let mut session = live(2000);
        session.begin().expect("there is room");
        session.label(at(0), 1);
        assert_eq!(wrong(&mut session), Received::Over(End::Protocol));
        assert_eq!(session.state(), ClientState::Over);
        assert_eq!(session.pending(), [1], "whose effect nobody knows");
        assert_eq!(session.hello(at(2)), Err(SessionError::State(ClientState::Over)));
    }
}

#[test]
fn the_end_of_a_session_says_why() {
    let mut session = live(2000);
    let over = ServerFrame::SessionOver { why: Why::Heartbeat };
    assert_eq!(receive(&mut session, 1, 0, 0, &over), Received::Over(End::Server(Why::Heartbeat)));
    let mut session = live(2000);
    session.connection_ended();
    session.hello(at(1)).expect("broken");
    let error = ServerFrame::Error { fault: Fault::new(FaultCode::WindowPassed, 1, 3) };
    let end = End::Refused(FaultCode::WindowPassed, 1, 3);
    assert_eq!(receive(&mut session, 2, 0, 0, &error), Received::Over(end));
    let mut session = live(2000);
    session.begin().expect("there is room");
    let error = ServerFrame::Error { fault: Fault::new(FaultCode::RequestForgotten, 3, 0) };
    assert_eq!(receive(&mut session, 2, 9, 0, &error), Received::Nothing, "not one of ours");
    let end = End::Refused(FaultCode::RequestForgotten, 3, 0);
    assert_eq!(receive(&mut session, 2, 1, 0, &error), Received::Over(end));
}

/// A HELLO of an abandoned connection may arrive while the next one is in use.
#[test]
fn a_session_that_was_taken_over_is_taken_back() {
    let over = ServerFrame::SessionOver { why: Why::Superseded };
    let mut session = live(2000);
    session.begin().expect("there is room");
    session.label(at(1), 1);
    assert_eq!(receive(&mut session, 1, 0, 0, &over), Received::Lost);
    assert_eq!((session.connection_ended(), session.state()), (None, ClientState::Broken));
    let (identity, _) = session.hello(at(2)).expect("broken");
    assert_eq!(identity.session, 5);
    assert_eq!(receive(&mut session, 2, 0, 0, &over), Received::Lost);
    assert_eq!((session.connection_ended(), session.state()), (None, ClientState::Broken));
    session.hello(at(3)).expect("broken");
    assert_eq!(receive(&mut session, 3, 0, 0, &welcome(true, 0)), Received::Welcome);
    assert_eq!(session.next_to_send(), Some(1));

    let mut session = Client::new(SessionOptions { grace_ms: 0, ..SessionOptions::default() });
    session.hello(at(0)).expect("new");
    assert_eq!(receive(&mut session, 1, 0, 0, &over), Received::Over(End::Server(Why::Superseded)));
    assert_eq!(session.state(), ClientState::Over);
}

#[test]
fn what_the_server_cannot_have_is_taken_back() {
    let mut session = live(2000);
    for _ in 0..3 {
        session.begin().expect("there is room");
    }
    session.label(at(1), 1);
    session.label(at(1), 2);
    assert!(!session.withdraw(1) && session.withdraw(3) && !session.withdraw(3));
    session.connection_ended();
    assert!(!session.withdraw(2), "it may have arrived");
    session.hello(at(2)).expect("broken");
    receive(&mut session, 3, 0, 0, &welcome(true, 1));
    assert!(session.withdraw(2), "it has not");
    assert_eq!((session.pending(), session.next_to_send()), (&[1][..], None));
    assert_eq!(session.begin(), Ok(4));
}
