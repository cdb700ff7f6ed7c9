//! Tokens, rights and ownership.

use super::*;
use crate::access::{Access, Network, Tokens};
use crate::auth::{ClientAuth, Credentials};
use crate::wire::native::FrameError;

const ADMIN: &str = "admin 0123456789abcdef0123456789abcdef all";
const TRAINER: &str = "trainer 00112233445566778899aabbccddeeff run:run write:/job/";

fn access() -> Access {
    let tokens = Tokens::parse(&format!("{ADMIN}\n{TRAINER}\n")).expect("two tokens");
    Access { tokens: Some(tokens), ..Access::default() }
}

fn only(tokens: &str) -> Access {
    Access { tokens: Some(Tokens::parse(tokens).expect("tokens")), ..Access::default() }
}

/// A nonce that is another one for each connection; that of connection 0 is zeros.
fn nonce_of(conn: ConnId) -> [u8; 32] {
    [conn.index.to_le_bytes()[0]; 32]
}

fn guarded() -> Rig {
    let mut rig = rig();
    rig.feed(Input::Access(&access()));
    rig
}

impl Rig {
    /// Returns the server's nonce.
    fn challenge(&mut self, conn: ConnId) -> Option<[u8; 32]> {
        let bytes = self.got(conn);
        let Ok(Scan::Whole { header, bytes: length }) =
            scan(&bytes, From::Server, &ServerLimits::default().native_frame)
        else {
            return None;
        };
        let body = &bytes[HEADER_BYTES..length];
        match ServerFrame::parse(header.kind, body, &ServerLimits::default().native_frame) {
            Ok(Some(ServerFrame::Challenge { nonce })) => Some(nonce),
            _ => None,
        }
    }

    /// Sends both HELLOs of a client with this token, and returns the second one.
    fn prove(&mut self, conn: ConnId, token: &str, hello: &ClientFrame<'_>) -> Vec<u8> {
        self.prove_on(conn, [0; 32], token, hello)
    }

    /// The same on a channel with this binding, as the client knows it.
    fn prove_on(&mut self, conn: ConnId, channel: [u8; 32], token: &str, hello: &ClientFrame<'_>) -> Vec<u8> {
        let mut client = ClientAuth::new(Credentials::parse(token).expect("a token"));
        let first = opening(0, &hello.with_auth(client.offer(nonce_of(conn))));
        self.send(conn, &first);
        let nonce = self.challenge(conn).expect("a challenge");
        assert!(client.challenged(nonce));
        let second = encoded(0, 0, &hello.with_auth(client.prove(hello, channel)));
        self.send(conn, &second);
        second
    }

    fn open_as(&mut self, index: u32, token: &str, node: &str) -> ConnId {
        let conn = self.connect(index);
        self.prove(conn, token, &hello(0, 0, [0; 16], 0, node));
        let lines = self.lines(conn);
        assert_eq!(lines[1..], ["0 Welcome resumed=false"], "{lines:?}");
        assert!(lines[0].starts_with("0 Proof"), "{lines:?}");
        conn
    }
}

#[test]
fn a_client_without_the_token_gets_no_session() {
    let mut rig = guarded();
    let request = encoded(1, 0, &ClientFrame::Set { key: key("/a"), value: b"1" });
    let none = rig.connect(0);
    rig.send(none, &[opening(0, &hello(0, 0, [0; 16], 0, "n")), request.clone()].concat());
    assert_eq!(rig.lines(none), ["0 Error Unauthenticated 1 0 "]);
    let wrong = rig.connect(1);
    rig.prove(wrong, "admin ffffffffffffffffffffffffffffffff", &hello(0, 0, [0; 16], 0, "n"));
    assert_eq!(rig.lines(wrong), ["0 Error Unauthenticated 2 0 "]);
    let impatient = rig.connect(2);
    let mut client = ClientAuth::new(Credentials::parse(ADMIN).expect("a token"));
    let hello = hello(0, 0, [0; 16], 0, "n");
    rig.send(impatient, &[opening(0, &hello.with_auth(client.offer([1; 32]))), request].concat());
    let closed = FrameError::NotHello(0x0010);
    assert_eq!(rig.closed[&impatient], CloseReason::NativeProtocol(closed), "a request before the proof");
    for conn in [none, wrong, impatient] {
        assert!(rig.closed.contains_key(&conn));
    }
    assert_eq!((rig.server.stats().sessions, rig.server.stats().keys), (0, 0));
}

#[test]
fn a_recorded_greeting_opens_nothing() {
    let mut rig = guarded();
    let (conn, hello) = (rig.connect(0), hello(0, 0, [0; 16], 0, "n"));
    let proof = rig.prove(conn, ADMIN, &hello);
    let mut client = ClientAuth::new(Credentials::parse(ADMIN).expect("a token"));
    // The client's nonce is the recorded one, and the server's is not.
    let replay = rig.connect(1);
    rig.send(replay, &opening(0, &hello.with_auth(client.offer([0; 32]))));
    rig.send(replay, &proof);
    assert!(rig.lines(replay).last().is_some_and(|line| line.contains("Unauthenticated 2")));
    assert_eq!(rig.server.stats().sessions, 1);
}

#[test]
fn a_proof_that_was_made_for_another_channel_opens_nothing() {
    let mut rig = guarded();
    let hello = hello(0, 0, [0; 16], 0, "n");
    let opened =
        [(0, [7; 32], true), (1, [8; 32], false), (2, [0; 32], false)].map(|(index, channel, is_own)| {
            let conn = rig.connect(index);
            rig.feed(Input::Secured { conn, channel: [7; 32] });
            rig.prove_on(conn, channel, ADMIN, &hello);
            assert_eq!(rig.closed.contains_key(&conn), !is_own);
            rig.lines(conn).iter().any(|line| line.contains("Welcome"))
        });
    assert_eq!(opened, [true, false, false], "an attacker between two channels passes on what it gets");
}

#[test]
fn a_server_without_tokens_refuses_a_client_that_wants_proof() {
    let mut rig = rig();
    let conn = rig.connect(0);
    let mut client = ClientAuth::new(Credentials::parse(ADMIN).expect("a token"));
    rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 0, "n").with_auth(client.offer([1; 32]))));
    assert_eq!(rig.lines(conn), ["0 Error Unauthenticated 3 0 "]);
}

#[test]
fn c10d_clients_are_served_from_the_allowed_networks_only() {
    let mut rig = guarded();
    let conn = rig.greeted(0);
    assert_eq!(rig.closed[&conn], CloseReason::C10dNotAllowed);
    rig.feed(Input::Access(&Access { c10d_from: Some(Network::LOOPBACK.into()), ..access() }));
    let conn = rig.greeted(1);
    assert!(!rig.closed.contains_key(&conn), "{:?}", rig.closed);
}

#[test]
fn a_session_has_the_rights_of_its_token() {
    let mut rig = guarded();
    let (admin, trainer) = (rig.open_as(0, ADMIN, "a"), rig.open_as(1, TRAINER, "t"));
    let set = |name| ClientFrame::Set { key: key(name), value: b"1" };
    assert_eq!(rig.wanted(admin, 1, &set("/other")), ["1 Done"]);
    assert_eq!(rig.wanted(trainer, 1, &set("/job/1")), ["1 Done"]);
    let denied = "2 Error PermissionDenied 16 0 no right `write:` covers /other";
    assert_eq!(rig.wanted(trainer, 2, &set("/other")), [denied]);
    let get = ClientFrame::Get { timeout_ms: 0, key: key("/other") };
    let denied = "3 Error PermissionDenied 18 0 no right `read:` covers /other";
    assert_eq!(rig.wanted(trainer, 3, &get), [denied]);
    let round_key = key_of("run", 3, "k");
    assert_eq!(rig.wanted(trainer, 4, &set(&round_key)), ["4 Done"]);
    let foreign = key_of("runs", 3, "k");
    assert!(rig.wanted(trainer, 5, &set(&foreign))[0].contains("PermissionDenied"));
    assert!(rig.wanted(trainer, 6, &join("t"))[0].contains("Placed"), "its own run");
    let close = ClientFrame::Close { run_id: key("another") };
    assert_eq!(
        rig.wanted(trainer, 7, &close),
        ["7 Error PermissionDenied 67 0 no right `run:` covers another"]
    );
    let end = ClientFrame::EndSession { session: 1 };
    assert_eq!(rig.wanted(trainer, 8, &end), ["8 Error PermissionDenied 8 0 this takes the right `all`"]);
}

#[test]
fn rotated_tokens_hold_for_new_connections() {
    let mut rig = guarded();
    let before = rig.open_as(0, ADMIN, "a");
    let other = Tokens::parse("admin ffffffffffffffffffffffffffffffff all").expect("a token");
    rig.feed(Input::Access(&Access { tokens: Some(other), ..Access::default() }));
    let set = ClientFrame::Set { key: key("/k"), value: b"1" };
    assert_eq!(rig.wanted(before, 1, &set), ["1 Done"], "an open session keeps its rights");
    let late = rig.connect(1);
    rig.prove(late, ADMIN, &hello(0, 0, [0; 16], 0, "a"));
    assert_eq!(rig.lines(late), ["0 Error Unauthenticated 2 0 "]);
    rig.open_as(2, "admin ffffffffffffffffffffffffffffffff", "a");
}

#[test]
fn a_session_is_resumed_with_its_own_token_and_gets_the_rights_that_this_has_now() {
    let mut rig = guarded();
    let conn = rig.connect(0);
    rig.prove(conn, TRAINER, &hello(0, 0, [0; 16], 5000, "t"));
    let incarnation = ServerInstance::from_seed(1).incarnation;
    // Of the second HELLO.
    let token = ServerInstance::from_seed(1).token(2);
    rig.got(conn);
    rig.feed(Input::Lost { conn, os_error: 0 });
    let resuming = hello(1, incarnation, token, 5000, "t");
    let thief = rig.connect(1);
    rig.prove(thief, ADMIN, &resuming);
    assert!(rig.lines(thief).last().is_some_and(|line| line.contains("SessionForged")), "another token");
    rig.feed(Input::Access(&only(&format!("{TRAINER} read:/more/"))));
    let back = rig.connect(2);
    rig.prove(back, TRAINER, &resuming);
    assert!(rig.lines(back).contains(&"0 Welcome resumed=true".to_string()));
    let get = ClientFrame::Get { timeout_ms: 0, key: key("/more/1") };
    assert!(rig.wanted(back, 1, &get)[0].contains("NotFound"));
}

#[test]
fn a_session_whose_token_allows_less_is_over_when_it_returns() {
    let mut rig = guarded();
    let (conn, admin) = (rig.connect(0), rig.connect(1));
    rig.prove(conn, TRAINER, &hello(0, 0, [0; 16], 5000, "t"));
    let incarnation = ServerInstance::from_seed(1).incarnation;
    // Of the second HELLO.
    let token = ServerInstance::from_seed(1).token(2);
    rig.prove(admin, ADMIN, &hello(0, 0, [0; 16], 0, "a"));
    rig.ask(conn, 1, &ClientFrame::WatchKey { key: key("/job/w"), from_revision: 0 });
    rig.ask(conn, 2, &ClientFrame::Get { timeout_ms: 60_000, key: key("/job/k") });
    rig.feed(Input::Lost { conn, os_error: 0 });
    rig.feed(Input::Access(&only(&format!("{ADMIN}\n{}", TRAINER.replace("write:/job/", "write:/jobs/")))));
    // Without the token of the session, which no other client knows, nothing ends.
    let thief = rig.connect(2);
    rig.prove(thief, TRAINER, &hello(1, incarnation, [7; 16], 5000, "t"));
    assert!(rig.lines(thief).last().is_some_and(|line| line.contains("SessionForged")));
    assert!(!rig.has_ended(1, Why::EndedByAdmin));
    let back = rig.connect(3);
    rig.prove(back, TRAINER, &hello(1, incarnation, token, 5000, "t"));
    assert!(rig.lines(back).last().is_some_and(|line| line.contains("SessionEnded")));
    assert!(rig.has_ended(1, Why::EndedByAdmin));
    assert_eq!(rig.server.stats().waiting, 0);
    for (id, name) in [(1, "/job/w"), (2, "/job/k")] {
        rig.ask(admin, id, &ClientFrame::Set { key: key(name), value: b"secret" });
    }
    assert!(rig.got(back).is_empty());
}

#[test]
fn a_session_of_an_earlier_server_is_over_though_its_number_belongs_to_another_token() {
    let mut rig = guarded();
    rig.open_as(0, TRAINER, "t");
    let back = rig.connect(1);
    let earlier = ServerInstance::from_seed(1).incarnation - 1;
    rig.prove(back, ADMIN, &hello(1, earlier, [7; 16], 5000, "a"));
    assert!(rig.lines(back).last().is_some_and(|line| line.contains("SessionEnded")), "not SessionForged");
}

#[test]
fn an_administrator_lists_and_ends_sessions() {
    let mut rig = guarded();
    let admin = rig.open_as(0, ADMIN, "a");
    let trainers = [rig.open_as(1, TRAINER, "t1"), rig.open_as(2, TRAINER, "t2")];
    let list = |after, count_max| ClientFrame::Sessions { after, count_max };
    let lines = rig.wanted(admin, 1, &list(1, 1));
    let (t1, trainer) = (format!("{:?}", b"t1"), format!("{:?}", b"trainer"));
    assert!(
        lines[0].contains("more: true") && lines[0].contains(&t1) && lines[0].contains(&trainer),
        "{lines:?}"
    );
    assert!(rig.wanted(admin, 2, &list(2, 100))[0].contains("more: false"));
    assert_eq!(rig.wanted(admin, 3, &ClientFrame::EndSession { session: 2 }), ["3 Outcome true"]);
    assert!(rig.has_ended(2, Why::EndedByAdmin));
    assert_eq!(rig.closed[&trainers[0]], CloseReason::SessionOver(Why::EndedByAdmin));
    assert_eq!(rig.wanted(admin, 4, &ClientFrame::EndSession { session: 2 }), ["4 Outcome false"]);
    assert!(!rig.closed.contains_key(&trainers[1]));
}

#[test]
fn a_lease_number_alone_revokes_nothing() {
    let mut rig = rig();
    let (owner, other) = (rig.open(0, "o"), rig.open(1, "x"));
    assert_eq!(rig.wanted(owner, 1, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["1 Number 1"]);
    let keys: [&[u8]; 1] = [b"/k"];
    let keys = Keys::scoped(b"", &keys);
    for (id, frame) in (1..).zip([
        ClientFrame::LeaseRevoke { lease: 1 },
        ClientFrame::LeaseRenew { lease: 1 },
        ClientFrame::LeaseAttach { lease: 1, keys },
    ]) {
        let kind = frame.kind();
        let denied = format!("{id} Error PermissionDenied {kind} 0 the lease belongs to another session");
        assert_eq!(rig.wanted(other, id, &frame), [denied]);
    }
    assert_eq!(rig.wanted(other, 9, &ClientFrame::LeaseRevoke { lease: 7 }), ["9 Error UnknownLease 7 0 "]);
    let mut guarded = guarded();
    let (owner, admin) = (guarded.open_as(0, TRAINER, "o"), guarded.open_as(1, ADMIN, "a"));
    assert_eq!(guarded.wanted(owner, 1, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["1 Number 1"]);
    assert_eq!(guarded.wanted(admin, 1, &ClientFrame::LeaseRevoke { lease: 1 }), ["1 Number 0"]);
}

#[test]
fn a_node_name_acts_on_the_barriers_of_its_token_only() {
    const MONITOR: &str = "monitor ffeeddccbbaa99887766554433221100 read:/m/";
    let mut rig = rig();
    let tokens = Tokens::parse(&format!("{TRAINER}\n{MONITOR}\n")).expect("two tokens");
    rig.feed(Input::Access(&Access { tokens: Some(tokens), ..Access::default() }));
    let names: [&[u8]; 2] = [b"t1", b"t2"];
    let barrier = ClientFrame::Barrier {
        key: key("/job/b"),
        generation: 0,
        name: b"t1",
        timeout_ms: 60_000,
        participants: Participants::Names(Keys::scoped(b"", &names)),
    };
    let waiting = rig.open_as(0, TRAINER, "t1");
    assert!(rig.wanted(waiting, 1, &barrier).is_empty());
    let stranger = rig.open_as(1, MONITOR, "t2");
    assert_eq!(rig.wanted(stranger, 1, &ClientFrame::Bye {})[0], "1 Done");
    assert!(rig.lines(waiting).is_empty(), "a session that may not arrive there was not awaited");
    // The second stranger stays, and hides nothing.
    let _stranger = rig.open_as(2, MONITOR, "t2");
    let awaited = [rig.open_as(3, TRAINER, "t2"), rig.open_as(4, TRAINER, "t2")];
    assert_eq!(rig.wanted(awaited[0], 1, &ClientFrame::Bye {})[0], "1 Done");
    assert!(rig.lines(waiting).is_empty(), "the name may still arrive");
    assert_eq!(rig.wanted(awaited[1], 1, &ClientFrame::Bye {})[0], "1 Done");
    let lines = rig.lines(waiting);
    assert_eq!(lines, [format!("1 BarrierOver 1 Broken {{ participant: {:?}, why: Left }}", b"t2")]);
}

#[test]
fn a_token_proves_what_it_may_do_when_it_is_proven() {
    let offer = |rig: &mut Rig| {
        let (conn, hello) = (rig.connect(0), hello(0, 0, [0; 16], 0, "t"));
        let mut client = ClientAuth::new(Credentials::parse(TRAINER).expect("a token"));
        let first = opening(0, &hello.with_auth(client.offer(nonce_of(conn))));
        rig.send(conn, &first);
        let nonce = rig.challenge(conn).expect("a challenge");
        assert!(client.challenged(nonce));
        let second = encoded(0, 0, &hello.with_auth(client.prove(&hello, [0; 32])));
        (conn, second)
    };
    let other_secret = TRAINER.replace('0', "1");
    for (tokens, why) in [(ADMIN, "removed"), (&other_secret, "replaced")] {
        let mut rig = guarded();
        let (conn, second) = offer(&mut rig);
        rig.feed(Input::Access(&only(tokens)));
        rig.send(conn, &second);
        assert_eq!(rig.lines(conn), ["0 Error Unauthenticated 2 0 "], "{why}");
    }
    let mut rig = guarded();
    let (conn, second) = offer(&mut rig);
    rig.feed(Input::Access(&only(&TRAINER.replace("/job/", "/other/"))));
    rig.send(conn, &second);
    assert_eq!(rig.lines(conn).last().expect("an answer"), "0 Welcome resumed=false");
    for (id, name, expected) in [(1, "/job/k", "PermissionDenied"), (2, "/other/k", "Done")] {
        let lines = rig.wanted(conn, id, &ClientFrame::Set { key: key(name), value: b"1" });
        assert!(lines[0].contains(expected), "{lines:?}");
    }
}

#[test]
fn a_lease_whose_removal_has_no_space_in_the_session_does_not_end() {
    let session = crate::limits::SessionLimits { waiting_bytes_max: 2000, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { session, ..ServerLimits::default() });
    rig.feed(Input::Access(&access()));
    let (admin, owner) = (rig.open_as(0, ADMIN, "a"), rig.open_as(1, TRAINER, "t"));
    let grant = ClientFrame::LeaseGrant { ttl_ms: 0 };
    rig.wanted(owner, 1, &grant);
    let granted: Vec<String> = (1..=10).flat_map(|id| rig.wanted(admin, id, &grant)).collect();
    assert!(granted.iter().all(|line| line.contains("Number")), "{granted:?}");
    let refused = rig.wanted(admin, 11, &ClientFrame::LeaseRevoke { lease: 1 });
    assert!(refused[0].contains("Error TooMany 2000"), "{refused:?}");
    assert_eq!(rig.wanted(owner, 2, &ClientFrame::LeaseRenew { lease: 1 }), ["2 Done"]);
    // An own lease pays for its removal.
    for (id, lease) in [(12, 2), (13, 1)] {
        let revoked = rig.wanted(admin, id, &ClientFrame::LeaseRevoke { lease });
        assert!(revoked[0].contains("Number 0"), "{revoked:?}");
    }
}

#[test]
fn keys_that_are_compared_with_rights_count_as_work_although_they_are_denied() {
    let mut rig = guarded();
    let conn = rig.open_as(0, TRAINER, "n");
    let names: Vec<String> = (0..100).map(|number| format!("/job/{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).chain([&b"/other"[..]]).collect();
    let check = encoded(1, 0, &ClientFrame::Check { keys: Keys::scoped(b"", &names) });
    rig.server.handle(rig.now, Input::Received { conn, bytes: &check }).expect("an open connection");
    assert!(rig.server.work() >= 101, "{} units", rig.server.work());
    rig.feed(Input::Tick);
    assert!(rig.lines(conn)[0].contains("PermissionDenied"));
}

#[test]
fn a_key_is_of_a_run_if_its_id_is_short_enough() {
    let run_of = |id_bytes: usize, rest: &str| {
        let key = format!("/torch.rendezvous.{}.{:016x}.{rest}", "r".repeat(id_bytes), 7);
        super::super::rounds::run_of_key(&super::super::rounds::after_run_id(7), 64, key.as_bytes())
            .map(<[u8]>::len)
    };
    for rest in ["", "0/k", &"x".repeat(1000)] {
        assert_eq!([64, 65, 8192].map(|id_bytes| run_of(id_bytes, rest)), [Some(64), None, None]);
    }
}
