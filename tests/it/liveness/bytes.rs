//! What clients of the native protocol do wrong, byte for byte on real sockets. Each hears the error that is documented
//! for it, and nobody else is disturbed.

use super::node::Node;
use super::{next_close, watched};
use crate::memory::raise_descriptor_limit;
use crate::net::Client;
use crate::rdzv::RdzvServer;
use rendezvous_core::driver::server::Server;
use rendezvous_core::limits::{FrameLimits, ServerLimits, SessionLimits};
use rendezvous_core::node::server::{CloseReason, Event};
use rendezvous_core::wire::native::{
    ClientFrame, FaultCode, From, HEADER_BYTES, HELLO_BYTES_MAX, Header, Label, MAGIC, Scan, ServerFrame,
    Why, scan,
};
use rendezvous_tests::frames;
use std::sync::mpsc::Receiver;

/// What makes a session known.
#[derive(Clone, Copy, Debug, Default)]
struct Identity {
    incarnation: u64,
    session: u64,
    token: [u8; 16],
}

/// A client that writes frames by hand.
struct Raw(Client);

/// What came.
#[derive(Debug, PartialEq, Eq)]
enum Joined {
    Welcome { resumed: bool },
    Done { id: u64, sequence: u64 },
    Number { id: u64, number: i64 },
    Echo(u64),
    SessionOver(Why),
    Error { id: u64, sequence: u64, code: FaultCode, first: u64, second: u64 },
}

fn error(id: u64, code: FaultCode, first: u64, second: u64) -> Joined {
    Joined::Error { id, sequence: 0, code, first, second }
}

impl Raw {
    fn dial(server: &Server) -> Self {
        Self(Client::dial(server.local_addr()))
    }

    fn heartbeat(&mut self, nonce: u64) {
        self.send(0, 0, &ClientFrame::Heartbeat { nonce });
    }

    /// Opens a new session.
    fn open(server: &Server, grace_ms: u32) -> (Self, Identity) {
        let mut raw = Self::dial(server);
        raw.0.send(&hello(Identity::default(), 0, (1, 1), grace_ms));
        let (arrived, identity) = raw.receive();
        assert_eq!(arrived, Joined::Welcome { resumed: false });
        (raw, identity)
    }

    fn send(&mut self, id: u64, sequence: u64, frame: &ClientFrame<'_>) {
        self.0.send(&frames::native(Label { id, sequence, flags: 0 }, frame));
    }

    fn add(&mut self, id: u64, sequence: u64) {
        self.send(id, sequence, &ClientFrame::Add { key: key(b"/n"), delta: 1 });
    }

    fn arrived(&mut self) -> Joined {
        self.receive().0
    }

    /// The next frame.
    fn receive(&mut self) -> (Joined, Identity) {
        let limits = FrameLimits::default();
        let head = self.0.receive(HEADER_BYTES);
        let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes"));
        let body = self.0.receive(usize::try_from(length).expect("a short body"));
        let all = [head, body].concat();
        let Ok(Scan::Whole { header, .. }) = scan(&all, From::Server, &limits) else { panic!("{all:02x?}") };
        let Header { id, sequence, kind, .. } = header;
        let mut identity = Identity::default();
        let frame = ServerFrame::parse(kind, &all[HEADER_BYTES..], &limits).expect("readable");
        let arrived = match frame.expect("known") {
            ServerFrame::Welcome { incarnation, session, token, resumed, .. } => {
                identity = Identity { incarnation, session, token };
                Joined::Welcome { resumed }
            }
            ServerFrame::Done { .. } => Joined::Done { id, sequence },
            ServerFrame::Number { number, .. } => Joined::Number { id, number },
            ServerFrame::HeartbeatEcho { nonce } => Joined::Echo(nonce),
            ServerFrame::SessionOver { why } => Joined::SessionOver(why),
            ServerFrame::Error { fault } => {
                Joined::Error { id, sequence, code: fault.code, first: fault.first, second: fault.second }
            }
            other => panic!("{other:?}"),
        };
        (arrived, identity)
    }

    /// The server has closed, and said nothing more before.
    #[track_caller]
    fn is_closed(&mut self) {
        let rest = self.0.rest();
        assert!(rest.is_empty(), "behind the last word comes {rest:02x?}");
    }

    #[track_caller]
    fn is_served(&mut self) {
        self.heartbeat(77);
        assert_eq!(self.arrived(), Joined::Echo(77));
    }
}

fn key(name: &[u8]) -> rendezvous_core::store::op::Key<'_> {
    rendezvous_core::store::op::Key::raw(name)
}

/// The first bytes of a connection whose client is in no hurry.
fn hello(identity: Identity, sequence: u64, versions: (u16, u16), grace_ms: u32) -> Vec<u8> {
    hello_with(identity, sequence, versions, grace_ms, 3_600_000)
}

fn hello_with(
    identity: Identity,
    sequence: u64,
    versions: (u16, u16),
    grace_ms: u32,
    heartbeat_ms: u32,
) -> Vec<u8> {
    let Identity { incarnation, session, token } = identity;
    let (version_min, version_max) = versions;
    let heartbeats_missed_max = 3;
    let hello = ClientFrame::Hello {
        version_min,
        version_max,
        incarnation,
        session,
        token,
        grace_ms,
        heartbeat_ms,
        heartbeats_missed_max,
        node: b"raw",
        auth: b"",
    };
    [&MAGIC[..], &frames::native(Label { id: 0, sequence, flags: 0 }, &hello)].concat()
}

/// A header, which nobody has looked at before it leaves.
fn header(body_bytes: u32, kind: u16, flags: u16, id: u64) -> Vec<u8> {
    let fields =
        [&body_bytes.to_le_bytes()[..], &kind.to_le_bytes(), &flags.to_le_bytes(), &id.to_le_bytes()];
    [fields.concat(), vec![0; 8]].concat()
}

/// A server, what it tells, and a session whose peace is not to be disturbed.
fn begun() -> (Server, Receiver<Event>, Raw) {
    // So few frames are kept that they are pushed out soon.
    let session = SessionLimits { window_frames: 2, ..SessionLimits::default() };
    let (server, reported) = watched(ServerLimits { session, ..ServerLimits::default() });
    let (neighbour, _) = Raw::open(&server, 0);
    (server, reported, neighbour)
}

#[test]
fn openings_that_are_none_are_refused_with_the_reason_or_without_a_word() {
    let (server, reported, mut neighbour) = begun();
    let zeros = Identity::default();
    let long = u32::try_from(HELLO_BYTES_MAX).expect("a small number") + 1;
    let set = ClientFrame::Set { key: key(b"/k"), value: b"v" };
    let set = frames::native(Label { id: 1, sequence: 0, flags: 0 }, &set);
    let unsupported = || vec![error(0, FaultCode::VersionUnsupported, 1, 1)];
    for (what, bytes, due) in [
        ("a later version only", hello(zeros, 0, (2, 9), 0), unsupported()),
        ("no version at all", hello(zeros, 0, (0, 0), 0), unsupported()),
        (
            "a later version, and a request behind it",
            [hello(zeros, 0, (2, 9), 0), set.clone()].concat(),
            unsupported(),
        ),
        ("a request that is no greeting", [&MAGIC[..], &set].concat(), vec![]),
        // Its flags are looked at first.
        ("garbage", [&MAGIC[..], &[0xa5; 100]].concat(), vec![error(0, FaultCode::UnknownFlags, 0xa5a5, 0)]),
        (
            "garbage without flags",
            [&MAGIC[..], &[0x5a; 6], &[0; 2], &[0x5a; 92]].concat(),
            vec![error(0, FaultCode::TooLong, 0x5a5a_5a5a, 65_536)],
        ),
        ("zeros", [&MAGIC[..], &[0; 100]].concat(), vec![]),
        ("another name", b"RDZX and more bytes than a header has".to_vec(), vec![]),
        (
            "a greeting that is too long",
            [&MAGIC[..], &header(long, 1, 0, 0)].concat(),
            vec![error(0, FaultCode::TooLong, long.into(), HELLO_BYTES_MAX)],
        ),
        (
            "a greeting with a flag that must be understood",
            [&MAGIC[..], &header(0, 1, 0x0100, 0)].concat(),
            vec![error(0, FaultCode::UnknownFlags, 0x0100, 0)],
        ),
        (
            "a greeting cut short",
            [&MAGIC[..], &header(3, 1, 0, 0), &[1, 0, 1]].concat(),
            vec![error(0, FaultCode::Malformed, 1, 0)],
        ),
    ] {
        let mut raw = Raw::dial(&server);
        raw.0.send(&bytes);
        for due in due {
            assert_eq!(raw.arrived(), due, "{what}");
        }
        raw.is_closed();
        let reason = next_close(&reported);
        assert!(reason.is_expulsion(), "{what}: {reason}");
        neighbour.is_served();
    }
    // Nothing of what came behind the refused greetings was carried out.
    assert_eq!(server.stats().expect("it runs").keys, 0);
}

#[test]
fn a_session_is_its_owners() {
    let (server, reported, mut neighbour) = begun();
    let (mut owner, identity) = Raw::open(&server, 20_000);
    owner.add(1, 0);
    assert_eq!(owner.arrived(), Joined::Number { id: 1, number: 1 });
    let mut token = identity.token;
    token[15] ^= 1;
    for (what, claimed, sequence, due) in [
        ("a guessed token", Identity { token, ..identity }, 0, error(0, FaultCode::SessionForged, 0, 0)),
        (
            "a token of zeros",
            Identity { token: [0; 16], ..identity },
            0,
            error(0, FaultCode::SessionForged, 0, 0),
        ),
        (
            "a session that never was",
            Identity { session: 4711, ..identity },
            0,
            error(0, FaultCode::SessionEnded, 0, 0),
        ),
        (
            "another life of the server",
            Identity { incarnation: identity.incarnation ^ 1, ..identity },
            0,
            error(0, FaultCode::SessionEnded, 0, 0),
        ),
        ("frames that were never sent", identity, 9, error(0, FaultCode::FalseAcknowledgement, 9, 1)),
    ] {
        let mut raw = Raw::dial(&server);
        raw.0.send(&hello(claimed, sequence, (1, 1), 20_000));
        assert_eq!(raw.arrived(), due, "{what}");
        raw.is_closed();
        assert!(matches!(next_close(&reported), CloseReason::SessionRefused(_)), "{what}");
        // The session goes on undisturbed, on its own connection.
        owner.is_served();
        neighbour.is_served();
    }
    // The owner itself may come back by another way; the first one is told.
    let mut again = Raw::dial(&server);
    again.0.send(&hello(identity, 1, (1, 1), 20_000));
    assert_eq!(again.arrived(), Joined::Welcome { resumed: true });
    assert_eq!(owner.arrived(), Joined::SessionOver(Why::Superseded));
    owner.is_closed();
    assert_eq!(next_close(&reported), CloseReason::SessionOver(Why::Superseded));
    // Whoever left may not come back, and is told what became of the session.
    again.send(2, 1, &ClientFrame::Bye {});
    assert_eq!(again.arrived(), Joined::Done { id: 2, sequence: 2 });
    assert_eq!(again.arrived(), Joined::SessionOver(Why::Left));
    again.is_closed();
    let mut stale = Raw::dial(&server);
    stale.0.send(&hello(identity, 2, (1, 1), 20_000));
    assert_eq!(stale.arrived(), error(0, FaultCode::SessionEnded, Why::Left.number().into(), 0));
    stale.is_closed();
    neighbour.is_served();
}

#[test]
fn what_is_gone_from_the_window_is_said_to_be_gone_and_not_done_twice() {
    let (server, reported, mut neighbour) = begun();
    let (mut owner, identity) = Raw::open(&server, 20_000);
    for id in 1..=4 {
        owner.add(id, 0);
        assert_eq!(owner.arrived(), Joined::Number { id, number: i64::try_from(id).expect("small") });
    }
    // The last two are kept: such a request is answered again, the others are not, and none is carried out again.
    owner.add(4, 0);
    assert_eq!(owner.arrived(), Joined::Number { id: 4, number: 4 });
    owner.add(1, 0);
    assert_eq!(owner.arrived(), error(1, FaultCode::RequestForgotten, 3, 0));
    owner.add(5, 0);
    assert_eq!(owner.arrived(), Joined::Number { id: 5, number: 5 });
    // Who has received only the first cannot be told what came behind it.
    let mut remaining = Raw::dial(&server);
    remaining.0.send(&hello(identity, 1, (1, 1), 20_000));
    assert_eq!(remaining.arrived(), error(0, FaultCode::WindowPassed, 1, 4));
    remaining.is_closed();
    assert_eq!(next_close(&reported), CloseReason::SessionRefused(FaultCode::WindowPassed));
    owner.is_served();
    neighbour.is_served();
}

#[test]
fn within_a_session_bad_frames_end_it_or_fail_alone_as_documented() {
    let (server, reported, mut neighbour) = begun();
    let too_long = u32::MAX;
    for (what, bytes, due) in [
        (
            "a second greeting",
            hello(Identity::default(), 0, (1, 1), 0)[4..].to_vec(),
            FaultCode::UnexpectedFrame,
        ),
        ("flags of tomorrow", header(0, 0x10, 0x8000, 1), FaultCode::UnknownFlags),
        ("a body over all limits", header(too_long, 0x10, 0, 1), FaultCode::TooLong),
        ("an answer from a client", header(0, 0x8010, 0, 1), FaultCode::UnknownRequest),
    ] {
        let (mut raw, _) = Raw::open(&server, 0);
        raw.0.send(&bytes);
        let arrived = raw.arrived();
        assert!(matches!(arrived, Joined::Error { code, .. } if code == due), "{what}: {arrived:?}");
        if due == FaultCode::UnknownRequest {
            raw.is_served();
            continue;
        }
        raw.is_closed();
        let reason = next_close(&reported);
        assert!(reason.is_expulsion(), "{what}: {reason}");
        neighbour.is_served();
    }
    let (mut raw, _) = Raw::open(&server, 0);
    // What is wrong within a body concerns its request only.
    raw.0.send(&[header(2, 0x10, 0, 1), vec![1, 2]].concat());
    let arrived = raw.arrived();
    assert!(
        matches!(arrived, Joined::Error { id: 1, code: FaultCode::Malformed, first: 0x10, .. }),
        "{arrived:?}"
    );
    raw.add(2, 0);
    assert_eq!(raw.arrived(), Joined::Number { id: 2, number: 1 });
    neighbour.is_served();
}

/// More sessions than the server hears of at a time.
const MANY: u64 = 1500;

#[test]
fn a_server_that_was_stopped_blames_nobody_for_the_time() {
    let allowed = raise_descriptor_limit(MANY + 200);
    assert!(allowed >= MANY + 200, "NOT TESTED: only {allowed} descriptors are allowed");
    let server = RdzvServer::start();
    let mut witness =
        Node::start(server.address(), "witness", &["heartbeat_ms=2500", "heartbeats_missed_max=3"]);
    let greeted = |_| {
        let mut raw = Raw(Client::dial(server.address()));
        raw.0.send(&hello_with(Identity::default(), 0, (1, 1), 0, 2000));
        raw
    };
    let mut sessions: Vec<Raw> = (0..MANY).map(greeted).collect();
    for session in &mut sessions {
        assert_eq!(session.arrived(), Joined::Welcome { resumed: false });
    }
    sessions.iter_mut().for_each(|session| session.heartbeat(1));
    sessions.iter_mut().for_each(|session| assert_eq!(session.arrived(), Joined::Echo(1)));
    server.stop();
    sessions.iter_mut().for_each(|session| session.heartbeat(2));
    // It waits longer for the server than the server may wait for the others.
    let over = witness.says("session failed: ServerGone");
    assert!(over.contains("nothing came from the peer for too long"), "{over}");
    server.signal(libc::SIGCONT);
    // Their signs of life came in time, and had only not been read.
    for session in &mut sessions {
        assert_eq!(session.arrived(), Joined::Echo(2));
    }
}
