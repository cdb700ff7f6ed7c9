//! A server and its TLS, without sockets.

use super::certificates::Authority;
use crate::ids::ConnId;
use crate::limits::{FrameLimits, ServerLimits, UngreetedLimits};
use crate::node::server::{CloseReason, Event, Input, Output, ServerInstance};
use crate::node::tls_server::TlsServer;
use crate::prelude::*;
use crate::store::op::{Key, Keys, Request};
use crate::tls::{ClientConfig, ServerConfig, TlsStage};
use crate::tls_fault::TlsFault;
use crate::wire::c10d;
use crate::wire::native::{
    ClientFrame, FaultCode, From, HEADER_BYTES, Header, Label, MAGIC, Scan, ServerFrame, encode_frame,
    plain_hello, scan,
};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::BTreeMap;

const HOST: &str = "store.example";
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4711);
const NOW: Instant = Instant::ORIGIN;

/// Server whose sockets take as many bytes as the test allows.
struct Rig {
    server: TlsServer,
    /// Bytes that each socket got.
    got: BTreeMap<ConnId, Vec<u8>>,
    closed: BTreeMap<ConnId, CloseReason>,
    /// Number of bytes that the sockets take, together.
    window: usize,
}

impl Rig {
    fn new(config: Option<ServerConfig>) -> Self {
        Self::with(ServerLimits::default(), config)
    }

    fn with(limits: ServerLimits, config: Option<ServerConfig>) -> Self {
        let mut server = TlsServer::new(limits, ServerInstance::from_seed(1));
        if let Some(config) = config {
            server.configure(config);
        }
        Self { server, got: BTreeMap::new(), closed: BTreeMap::new(), window: usize::MAX }
    }

    fn connect(&mut self, index: u32) -> ConnId {
        let conn = ConnId { index, generation: 0 };
        self.feed(Input::Accepted { conn, peer: PEER });
        conn
    }

    fn feed(&mut self, input: Input<'_>) {
        self.server.handle(NOW, input).expect("a legal input");
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Transmit { conn } => self.write(conn),
                Output::Close { conn } => {
                    let last = self.server.unsent(conn).to_vec();
                    self.got.entry(conn).or_default().extend(last);
                }
                Output::Event(Event::Closed { conn, reason, .. }) => drop(self.closed.insert(conn, reason)),
                Output::Read { .. } | Output::Event(_) => {}
            }
        }
    }

    fn write(&mut self, conn: ConnId) {
        let unsent = self.server.unsent(conn);
        let bytes = unsent.len().min(self.window);
        if unsent.is_empty() {
            return;
        }
        self.window -= bytes;
        self.got.entry(conn).or_default().extend_from_slice(&unsent[..bytes]);
        self.server.handle(NOW, Input::Sent { conn, bytes }).expect("a legal input");
    }

    /// Lets the socket take more.
    fn writable(&mut self, conn: ConnId, bytes: usize) {
        self.window = bytes;
        let sent = self.server.unsent(conn).len().min(bytes);
        let got = self.server.unsent(conn)[..sent].to_vec();
        self.window -= sent;
        self.got.entry(conn).or_default().extend(got);
        self.feed(Input::Sent { conn, bytes: sent });
    }
}

/// Client of one connection of a rig.
struct Client {
    conn: ConnId,
    stage: TlsStage,
    plaintext: Vec<u8>,
}

impl Client {
    fn new(rig: &mut Rig, index: u32, config: &ClientConfig) -> Self {
        let stage = TlsStage::client(config, HOST).expect("a name");
        Self { conn: rig.connect(index), stage, plaintext: Vec::new() }
    }

    /// Delivers the bytes of both sides until nothing is left.
    fn deliver(&mut self, rig: &mut Rig) -> Result<(), TlsFault> {
        loop {
            let to_server = self.stage.unsent().to_vec();
            self.stage.sent(to_server.len());
            if !to_server.is_empty() && !rig.closed.contains_key(&self.conn) {
                rig.feed(Input::Received { conn: self.conn, bytes: &to_server });
                rig.feed(Input::Tick);
            }
            let to_client = rig.got.remove(&self.conn).unwrap_or_default();
            self.stage.receive(&to_client, &mut self.plaintext)?;
            if to_server.is_empty() && to_client.is_empty() {
                return Ok(());
            }
        }
    }

    fn send(&mut self, rig: &mut Rig, mut bytes: &[u8]) -> Result<(), TlsFault> {
        while !bytes.is_empty() {
            let count = self.stage.send(bytes);
            assert!(count > 0, "after the handshake");
            bytes = &bytes[count..];
            self.deliver(rig)?;
        }
        Ok(())
    }
}

fn c10d(request: Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    c10d::encode_frame(&mut bytes, &c10d::Frame::Request(request));
    bytes
}

fn hello() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    encode_frame(&mut bytes, Label::default(), &plain_hello(b"n0")).expect("short");
    bytes
}

fn ping() -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, Label::default(), &ClientFrame::Heartbeat { nonce: 7 }).expect("short");
    bytes
}

/// Returns the first frame of the server.
fn first_frame(bytes: &[u8]) -> (Header, &[u8]) {
    let Ok(Scan::Whole { header, bytes: length }) = scan(bytes, From::Server, &FrameLimits::default()) else {
        panic!("{bytes:02x?}");
    };
    (header, &bytes[HEADER_BYTES..length])
}

#[test]
fn a_client_opens_a_session_through_tls() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    client.deliver(&mut rig).expect("a handshake");
    client.send(&mut rig, &hello()).expect("sent");
    let ((header, body), limits) = (first_frame(&client.plaintext), FrameLimits::default());
    let frame = ServerFrame::parse(header.kind, body, &limits);
    assert!(matches!(frame, Ok(Some(ServerFrame::Welcome { version: 1, .. }))), "{frame:?}");
    client.stage.close();
    client.deliver(&mut rig).expect("a regular end");
    assert_eq!(rig.closed.get(&client.conn), Some(&CloseReason::PeerClosed));
    assert_eq!(client.stage.end_of_stream(), None, "the server ends TLS, too");
    assert_eq!(rig.server.stats().connections, 0);
}

#[test]
fn a_native_client_without_tls_learns_to_use_it() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let conn = rig.connect(0);
    rig.feed(Input::Received { conn, bytes: &hello() });
    assert_eq!(rig.closed.get(&conn), Some(&CloseReason::PlaintextRefused));
    let got = rig.got.remove(&conn).expect("an answer");
    let ((header, body), limits) = (first_frame(&got), FrameLimits::default());
    let frame = ServerFrame::parse(header.kind, body, &limits);
    let Ok(Some(ServerFrame::Error { fault })) = frame else { panic!("{frame:?}") };
    assert_eq!(fault.code, FaultCode::TlsRequired);
}

#[test]
fn a_c10d_client_is_served_beside_those_with_tls() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let conn = rig.connect(0);
    let mut bytes = Vec::new();
    c10d::encode_frame(&mut bytes, &c10d::Frame::Validate { magic: c10d::MAGIC });
    bytes.extend(c10d(Request::Add { key: Key::raw(b"n"), delta: 3 }));
    rig.feed(Input::Received { conn, bytes: &bytes });
    assert_eq!(rig.got.remove(&conn), Some(3_i64.to_le_bytes().to_vec()));
}

#[test]
fn a_short_answer_goes_before_the_rest_of_a_long_one_through_tls() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let (writer, other) = (rig.connect(1), rig.connect(2));
    let mut greeting = Vec::new();
    c10d::encode_frame(&mut greeting, &c10d::Frame::Validate { magic: c10d::MAGIC });
    let set = c10d(Request::Set { key: Key::raw(b"long"), value: &vec![1; 1 << 20] });
    rig.feed(Input::Received { conn: writer, bytes: &[&greeting[..], &set].concat() });
    rig.feed(Input::Received { conn: other, bytes: &greeting });
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    client.deliver(&mut rig).expect("a handshake");
    client.send(&mut rig, &hello()).expect("sent");
    rig.window = 0;
    let get = ClientFrame::Get { key: Key::raw(b"long"), timeout_ms: 0 };
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, Label { id: 1, ..Label::default() }, &get).expect("short");
    client.send(&mut rig, &bytes).expect("sent");
    let (conn, sent) = (client.conn, rig.server.unsent(client.conn).len());
    assert!((1..1 << 20).contains(&sent), "a part of the value is encrypted");
    let add = c10d(Request::Add { key: Key::raw(b"n"), delta: 3 });
    rig.server.handle(NOW, Input::Received { conn: other, bytes: &add }).expect("a legal input");
    rig.server.handle(NOW, Input::Sent { conn, bytes: sent }).expect("a legal input");
    let outputs = core::iter::from_fn(|| rig.server.poll_output());
    let transmits = outputs.filter_map(|output| match output {
        Output::Transmit { conn } => Some(conn),
        _ => None,
    });
    assert_eq!(transmits.collect::<Vec<_>>(), [other, conn]);
}

#[test]
fn many_connections_get_their_answers_beside_one_that_is_lost_while_it_waits_for_its_turn() {
    let authority = Authority::new();
    let (mut rig, config) = (Rig::new(Some(authority.server(&[HOST], None))), authority.client(None));
    let mut greeting = Vec::new();
    c10d::encode_frame(&mut greeting, &c10d::Frame::Validate { magic: c10d::MAGIC });
    let of = |request| [&greeting[..], &c10d(request)].concat();
    let wait = of(Request::Wait { keys: Keys::one(Key::raw(b"k")) });
    let mut clients = Vec::new();
    for index in 0..150 {
        let mut client = Client::new(&mut rig, index, &config);
        client.deliver(&mut rig).expect("a handshake");
        client.send(&mut rig, &wait).expect("sent");
        clients.push(client);
    }
    let (plain, writer) = (rig.connect(150), rig.connect(151));
    rig.feed(Input::Received { conn: plain, bytes: &wait });
    let set = of(Request::Set { key: Key::raw(b"k"), value: b"v" });
    rig.server.handle(NOW, Input::Received { conn: writer, bytes: &set }).expect("a legal input");
    let (first, lost) = (clients[0].conn, clients[1].conn);
    assert_eq!(rig.server.poll_output(), Some(Output::Transmit { conn: first }));
    let encrypted = clients.iter().filter(|client| !rig.server.unsent(client.conn).is_empty());
    assert_eq!(encrypted.count(), 64, "in a row, before the first is written");
    rig.write(first);
    rig.server.handle(NOW, Input::Lost { conn: lost, os_error: 104 }).expect("a legal input");
    rig.feed(Input::Tick);
    for client in clients.iter_mut().filter(|client| client.conn != lost) {
        client.deliver(&mut rig).expect("an answer");
        assert_eq!(client.plaintext, [0], "{:?}", client.conn);
    }
    assert_eq!(rig.got[&plain], [0]);
    assert_eq!(rig.closed.remove(&lost), Some(CloseReason::Lost(104)));
    assert!(rig.closed.is_empty());
    rig.got.remove(&lost);
    // A connection in the slot of the lost one is served as any other.
    let mut next = Client::new(&mut rig, lost.index, &config);
    next.deliver(&mut rig).expect("a handshake");
    next.send(&mut rig, &wait).expect("sent");
    assert_eq!(next.plaintext, [0]);
}

/// Returns clients whose handshakes are over.
fn greeted(rig: &mut Rig, count: u32, config: &ClientConfig) -> Vec<Client> {
    let greeted = (0..count).map(|index| {
        let mut client = Client::new(rig, index, config);
        client.deliver(rig).expect("a handshake");
        let mut greeting = Vec::new();
        c10d::encode_frame(&mut greeting, &c10d::Frame::Validate { magic: c10d::MAGIC });
        client.send(rig, &greeting).expect("sent");
        client
    });
    greeted.collect()
}

#[test]
fn what_has_arrived_from_many_connections_is_handled_in_a_row() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut clients = greeted(&mut rig, 65, &authority.client(None));
    let add = c10d(Request::Add { key: Key::raw(b"k"), delta: 1 });
    let before = rig.server.stats().requests;
    for (number, client) in clients.iter_mut().enumerate() {
        client.stage.send(&add);
        let bytes = client.stage.unsent().to_vec();
        client.stage.sent(bytes.len());
        rig.server.handle(NOW, Input::Received { conn: client.conn, bytes: &bytes }).expect("a legal input");
        let handled = if number < 63 { 0 } else { 64 };
        assert_eq!(rig.server.stats().requests - before, handled, "after {number}");
    }
    rig.feed(Input::Tick);
    for (number, client) in (1_i64..).zip(&mut clients) {
        client.deliver(&mut rig).expect("an answer");
        assert_eq!(client.plaintext, number.to_le_bytes(), "in the order of arrival");
    }
}

#[test]
fn bytes_of_one_connection_are_handled_in_the_order_of_arrival() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let client = &mut greeted(&mut rig, 1, &authority.client(None))[0];
    let key = Key::raw(b"k");
    let long = vec![b'3'; 5000];
    let mut expected = Vec::new();
    // A batch begins with the first, and the second belongs to it; the third is too long for a batch.
    for value in [&b"1"[..], b"2", &long, b"4"] {
        let request = c10d(Request::Append { key, value });
        assert_eq!(client.stage.send(&request), request.len());
        expected.extend_from_slice(value);
        let bytes = client.stage.unsent().to_vec();
        client.stage.sent(bytes.len());
        rig.server.handle(NOW, Input::Received { conn: client.conn, bytes: &bytes }).expect("a legal input");
    }
    client.plaintext.clear();
    client.send(&mut rig, &c10d(Request::Get { key })).expect("sent");
    assert!(client.plaintext.ends_with(&expected), "{} bytes", client.plaintext.len());
}

#[test]
fn all_that_a_connection_sent_before_it_ended_tls_is_handled() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let client = &mut greeted(&mut rig, 1, &authority.client(None))[0];
    let add = c10d(Request::Add { key: Key::raw(b"k"), delta: 1 });
    let arrive = |rig: &mut Rig, client: &mut Client| {
        let bytes = client.stage.unsent().to_vec();
        client.stage.sent(bytes.len());
        rig.server.handle(NOW, Input::Received { conn: client.conn, bytes: &bytes }).expect("a legal input");
    };
    client.stage.send(&add);
    arrive(&mut rig, client);
    client.stage.send(&add);
    client.stage.close();
    arrive(&mut rig, client);
    rig.feed(Input::ReadClosed { conn: client.conn });
    assert_eq!(rig.server.stats().keys, 1);
    assert_eq!(rig.closed.get(&client.conn), Some(&CloseReason::PeerClosed));
    client.deliver(&mut rig).expect("the answers");
    assert_eq!(client.plaintext, [1_i64.to_le_bytes(), 2_i64.to_le_bytes()].concat());
}

#[test]
fn what_was_written_is_not_written_again_when_the_connection_ends_because_of_earlier_bytes() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let client = &mut greeted(&mut rig, 1, &authority.client(None))[0];
    let receive = |rig: &mut Rig, client: &mut Client, last_bit: u8| {
        client.stage.send(&c10d(Request::Add { key: Key::raw(b"k"), delta: 1 }));
        let mut bytes = client.stage.unsent().to_vec();
        client.stage.sent(bytes.len());
        *bytes.last_mut().expect("a record") ^= last_bit;
        rig.server.handle(NOW, Input::Received { conn: client.conn, bytes: &bytes }).expect("a legal input");
    };
    rig.window = 10;
    receive(&mut rig, client, 0);
    while let Some(output) = rig.server.poll_output() {
        if let Output::Transmit { conn } = output {
            rig.write(conn);
        }
    }
    // The socket takes more before the server learns that TLS has failed.
    receive(&mut rig, client, 1);
    rig.window = 10;
    rig.write(client.conn);
    rig.feed(Input::Tick);
    assert_eq!(rig.closed.get(&client.conn), Some(&CloseReason::Tls(TlsFault::Violation)));
    let got = rig.got.remove(&client.conn).expect("an answer, as far as it was sent, and an alert");
    let received = client.stage.receive(&got, &mut client.plaintext);
    assert!(matches!(received, Err(TlsFault::Alert(_))), "{received:?}");
}

#[test]
fn a_connection_may_end_after_bytes_that_are_not_handled_yet() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut clients = greeted(&mut rig, 4, &authority.client(None));
    let conns: Vec<ConnId> = clients.iter().map(|client| client.conn).collect();
    let mut arrive = |rig: &mut Rig, index: usize, value: &[u8]| {
        let Client { stage, conn, .. } = &mut clients[index];
        stage.send(&c10d(Request::Set { key: Key::raw(&conn.index.to_le_bytes()), value }));
        let mut bytes = stage.unsent().to_vec();
        stage.sent(bytes.len());
        if value == b"broken" {
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
        }
        rig.server.handle(NOW, Input::Received { conn: *conn, bytes: &bytes }).expect("a legal input");
    };
    arrive(&mut rig, 0, b"v");
    rig.server.handle(NOW, Input::Lost { conn: conns[0], os_error: 104 }).expect("a legal input");
    for (index, late) in [
        (1, Input::ReadClosed { conn: conns[1] }),
        (2, Input::HostSilent { conn: conns[2], os_error: 110 }),
        (3, Input::Received { conn: conns[3], bytes: &[0; 5000] }),
    ] {
        arrive(&mut rig, index, b"broken");
        rig.server.handle(NOW, late).expect("the caller does not know that TLS has failed");
    }
    assert_eq!(rig.server.server().stats().keys, 1, "of the first");
    rig.feed(Input::Tick);
    let reasons: Vec<_> = conns.iter().map(|conn| rig.closed.remove(conn)).collect();
    let violation = Some(CloseReason::Tls(TlsFault::Violation));
    assert_eq!(reasons, [Some(CloseReason::Lost(104)), violation, violation, violation]);
}

#[test]
fn a_server_without_tls_says_so_to_a_client_that_uses_it() {
    let authority = Authority::new();
    let mut rig = Rig::new(None);
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    assert_eq!(client.deliver(&mut rig), Err(TlsFault::Alert(70)));
    assert_eq!(rig.closed.get(&client.conn), Some(&CloseReason::TlsNotConfigured));
}

#[test]
fn a_client_that_is_not_admitted_gets_an_alert_and_the_log_the_reason() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], Some(&authority))));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    assert_eq!(client.deliver(&mut rig), Err(TlsFault::Alert(116)));
    assert_eq!(rig.closed.get(&client.conn), Some(&CloseReason::Tls(TlsFault::NoCertificate)));
    assert_eq!(rig.server.stats().expelled, 1);
}

#[test]
fn a_slow_reader_gets_all_of_a_long_answer_and_stops_the_reading_of_its_requests() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    client.deliver(&mut rig).expect("a handshake");
    let value: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    let mut request = Vec::new();
    c10d::encode_frame(&mut request, &c10d::Frame::Validate { magic: c10d::MAGIC });
    request.extend(c10d(Request::Set { key: Key::raw(b"k"), value: &value }));
    client.send(&mut rig, &request).expect("sent");
    rig.window = 0;
    let get = c10d(Request::Get { key: Key::raw(b"k") });
    assert_eq!(client.stage.send(&get), get.len());
    let bytes = client.stage.unsent().to_vec();
    client.stage.sent(bytes.len());
    rig.feed(Input::Received { conn: client.conn, bytes: &bytes });
    assert!(!rig.server.wants_read(client.conn), "its answer is unread");
    let mut steps = 0;
    while client.plaintext.len() < value.len() {
        assert!(rig.server.unsent(client.conn).len() <= 66 * 1024, "ciphertext of one chunk");
        rig.writable(client.conn, 50_000);
        client.deliver(&mut rig).expect("more of it");
        steps += 1;
        assert!(steps < 100);
    }
    assert!(client.plaintext.ends_with(&value));
    assert!(rig.server.wants_read(client.conn));
    assert!(rig.server.unsent(client.conn).is_empty());
}

#[test]
fn what_tls_holds_counts_as_buffered_bytes_of_its_connection() {
    let authority = Authority::new();
    let limits = ServerLimits { buffered_bytes_max: 200_000, ..ServerLimits::default() };
    let mut rig = Rig::with(limits, Some(authority.server(&[HOST], None)));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    let held = |rig: &Rig| rig.server.stats().buffered_bytes;
    client.deliver(&mut rig).expect("a handshake");
    let idle = held(&rig);
    assert!((16 * 1024..24 * 1024).contains(&idle), "{idle}");
    client.send(&mut rig, &hello()).expect("sent");
    assert!(held(&rig) <= idle + 4096, "{}", held(&rig));
    // Part of a record, which the server does not see.
    assert_eq!(client.stage.send(&[b'x'; 16_000]), 16_000);
    let record = client.stage.unsent().to_vec();
    client.stage.sent(record.len());
    rig.feed(Input::Received { conn: client.conn, bytes: &record[..12_000] });
    assert!(held(&rig) >= idle + 12_000, "{}", held(&rig));
    // Clients whose ClientHello says nothing of its end.
    for index in 1..100 {
        let conn = rig.connect(index);
        rig.feed(Input::Received { conn, bytes: &[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc] });
        rig.feed(Input::Received { conn, bytes: &vec![0; 15_000] });
    }
    assert!(held(&rig) <= 200_000, "{}", held(&rig));
    let full = CloseReason::BuffersFull(200_000);
    assert!(rig.closed.len() > 90 && rig.closed.values().all(|&reason| reason == full), "{:?}", rig.closed);
    for index in 1..100 {
        let conn = ConnId { index, generation: 0 };
        if !rig.closed.contains_key(&conn) {
            rig.feed(Input::Lost { conn, os_error: 104 });
        }
    }
    assert!(held(&rig) < idle + 17_000, "{}", held(&rig));
}

#[test]
fn nothing_is_sent_to_a_connection_that_has_been_lost_but_the_end_of_tls() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    client.deliver(&mut rig).expect("a handshake");
    rig.window = 10;
    assert!(client.stage.send(&hello()) > 0);
    let bytes = client.stage.unsent().to_vec();
    rig.feed(Input::Received { conn: client.conn, bytes: &bytes });
    assert!(!rig.server.unsent(client.conn).is_empty(), "the socket is full");
    rig.server.handle(NOW, Input::Lost { conn: client.conn, os_error: 104 }).expect("a legal input");
    // A write would be reported, and the server does not know the connection any more.
    assert!(rig.server.unsent(client.conn).is_empty());
    let mut closes = 0;
    while let Some(output) = rig.server.poll_output() {
        assert!(!matches!(output, Output::Transmit { .. }), "{output:?}");
        if output == (Output::Close { conn: client.conn }) {
            closes += 1;
            assert!(!rig.server.unsent(client.conn).is_empty(), "the end of TLS");
        }
    }
    assert_eq!(closes, 1);
}

#[test]
fn a_tick_does_one_step_of_a_handshake_and_members_do_not_wait_for_the_others() {
    let authority = Authority::new();
    let ungreeted = UngreetedLimits { count_max: 5, time_min: Duration::ZERO };
    let limits = ServerLimits { ungreeted, ..ServerLimits::default() };
    let mut rig = Rig::with(limits, Some(authority.server(&[HOST], None)));
    let config = authority.client(None);
    let mut member = Client::new(&mut rig, 0, &config);
    member.deliver(&mut rig).expect("a handshake");
    member.send(&mut rig, &hello()).expect("sent");
    let greeted = member.plaintext.len();
    let mut others: Vec<Client> = (1..6).map(|index| Client::new(&mut rig, index, &config)).collect();
    assert_eq!(rig.server.accepts_at(), Some(NOW), "in the place of the oldest");
    // All of this arrives before the next tick.
    for client in &mut others {
        let bytes = client.stage.unsent().to_vec();
        client.stage.sent(bytes.len());
        rig.server.handle(NOW, Input::Received { conn: client.conn, bytes: &bytes }).expect("a legal input");
    }
    assert!(member.stage.send(&ping()) > 0);
    let bytes = member.stage.unsent().to_vec();
    member.stage.sent(bytes.len());
    rig.feed(Input::Received { conn: member.conn, bytes: &bytes });
    let answered = |rig: &Rig| -> Vec<u32> { rig.got.keys().map(|conn| conn.index).collect() };
    assert_eq!(answered(&rig), [0], "the member is served at once");
    member.deliver(&mut rig).expect("an answer");
    assert!(member.plaintext.len() > greeted);
    rig.feed(Input::Tick);
    assert_eq!(answered(&rig), [1], "one handshake");
    assert_eq!(rig.server.accepts_at(), Some(Instant::MAX), "the others have not had their time");
    rig.feed(Input::AcceptFailed);
    let wants_read = |rig: &Rig| others.iter().filter(|client| rig.server.wants_read(client.conn)).count();
    assert_eq!((wants_read(&rig), rig.server.poll_timeout()), (1, Some(Instant::ORIGIN)));
    // One that has gone is left out.
    rig.feed(Input::Lost { conn: others[1].conn, os_error: 104 });
    for index in [3, 4, 5] {
        rig.feed(Input::Tick);
        assert!(answered(&rig).ends_with(&[index]), "{:?}", answered(&rig));
    }
    assert_eq!((wants_read(&rig), rig.server.accepts_at()), (4, None));
    others.remove(1);
    for client in &mut others {
        client.deliver(&mut rig).expect("a handshake");
        client.send(&mut rig, &hello()).expect("sent");
        assert!(!client.plaintext.is_empty(), "WELCOME");
    }
    assert_eq!(rig.server.stats().sessions, 5);
}

#[test]
fn no_connection_is_accepted_while_many_handshakes_wait() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let client = Client::new(&mut rig, 0, &authority.client(None));
    let conns: Vec<ConnId> = (1..258).map(|index| rig.connect(index)).collect();
    for conn in conns {
        rig.feed(Input::Received { conn, bytes: client.stage.unsent() });
    }
    rig.feed(Input::Tick);
    assert_eq!(rig.server.accepts_at(), Some(Instant::MAX), "256 wait");
    rig.feed(Input::Lost { conn: ConnId { index: 200, generation: 0 }, os_error: 104 });
    assert_eq!(rig.server.accepts_at(), None, "one of them has gone");
    rig.feed(Input::Tick);
    assert_eq!(rig.server.accepts_at(), None);
}

#[test]
fn handshakes_go_on_while_there_is_always_something_to_be_written() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let reader = rig.connect(0);
    let mut validate = Vec::new();
    c10d::encode_frame(&mut validate, &c10d::Frame::Validate { magic: c10d::MAGIC });
    rig.feed(Input::Received { conn: reader, bytes: &validate });
    let clients = [1, 2, 3].map(|index| Client::new(&mut rig, index, &authority.client(None)));
    for client in &clients {
        let input = Input::Received { conn: client.conn, bytes: client.stage.unsent() };
        rig.server.handle(NOW, input).expect("a legal input");
    }
    let add = c10d(Request::Add { key: Key::raw(b"n"), delta: 1 });
    for _ in 0..4 {
        rig.server.handle(NOW, Input::Received { conn: reader, bytes: &add }).expect("a legal input");
        rig.server.handle(NOW, Input::Tick).expect("a legal input");
        assert!(rig.server.poll_output().is_some(), "the first of several");
    }
    let answered = clients.iter().filter(|client| !rig.server.unsent(client.conn).is_empty()).count();
    assert_eq!(answered, clients.len());
}

#[test]
fn pieces_of_handshakes_cost_no_turn_and_stop_no_accepting() {
    let authority = Authority::new();
    let ungreeted = UngreetedLimits { count_max: 301, time_min: Duration::ZERO };
    let limits = ServerLimits { ungreeted, ..ServerLimits::default() };
    let mut rig = Rig::with(limits, Some(authority.server(&[HOST], None)));
    let client = Client::new(&mut rig, 0, &authority.client(None));
    let hello = client.stage.unsent().to_vec();
    let slow: Vec<ConnId> = (1..301).map(|index| rig.connect(index)).collect();
    // As in an iteration of the driver, in which nothing has been sent between reading and the tick.
    let feed = |rig: &mut Rig, conn, bytes: &[u8]| {
        rig.server.handle(NOW, Input::Received { conn, bytes }).expect("a legal input");
    };
    feed(&mut rig, client.conn, &hello);
    for (index, byte) in hello[..20].iter().enumerate() {
        for &conn in &slow {
            feed(&mut rig, conn, &[*byte]);
        }
        rig.feed(Input::Tick);
        let at = if index == 0 { Instant::MAX } else { NOW };
        assert_eq!(rig.server.accepts_at(), Some(at), "nothing but pieces after the first tick");
    }
    assert!(rig.got.contains_key(&client.conn) && rig.got.len() == 1);
    rig.feed(Input::Tick);
    assert_eq!(rig.server.poll_timeout().filter(|&at| at == NOW), None, "all have been looked at");
    assert!(slow.iter().all(|&conn| rig.server.wants_read(conn)));
    // Two messages behind pieces: each costs one tick.
    for &conn in &slow[2..] {
        feed(&mut rig, conn, &hello[20..21]);
    }
    for &conn in &slow[..2] {
        feed(&mut rig, conn, &hello[20..]);
    }
    for _ in 0..3 {
        rig.feed(Input::Tick);
    }
    assert!(slow[..2].iter().all(|conn| rig.got.contains_key(conn)) && rig.got.len() == 3);
}

#[test]
fn bytes_may_arrive_one_by_one() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let mut client = Client::new(&mut rig, 0, &authority.client(None));
    let mut is_sent = false;
    while client.plaintext.is_empty() {
        let unsent = client.stage.unsent().to_vec();
        client.stage.sent(unsent.len());
        for byte in unsent {
            rig.feed(Input::Received { conn: client.conn, bytes: &[byte] });
            rig.feed(Input::Tick);
        }
        for byte in rig.got.remove(&client.conn).unwrap_or_default() {
            client.stage.receive(&[byte], &mut client.plaintext).expect("valid");
        }
        if !client.stage.is_handshaking() && !is_sent {
            is_sent = client.stage.send(&hello()) > 0;
        }
    }
    assert!(is_sent);
}

#[test]
fn a_client_with_many_short_records_waits_for_the_others() {
    let authority = Authority::new();
    let mut rig = Rig::new(Some(authority.server(&[HOST], None)));
    let [mut light, mut heavy, mut dense] = [0, 1, 2].map(|index| {
        let mut client = Client::new(&mut rig, index, &authority.client(None));
        client.deliver(&mut rig).expect("a handshake");
        client.send(&mut rig, &hello()).expect("sent");
        client
    });
    for _ in 0..300 {
        assert_eq!(heavy.stage.send(&ping()), ping().len());
    }
    assert_eq!(dense.stage.send(&ping().repeat(300)), 300 * ping().len());
    light.send(&mut rig, &ping()).expect("sent");
    let waits = [&heavy, &dense].map(|client| {
        rig.feed(Input::Received { conn: client.conn, bytes: client.stage.unsent() });
        !rig.server.wants_read(client.conn)
    });
    assert_eq!(waits, [true, false], "the same requests, in 300 records and in one");
}
