//! Native clients, and some of c10d beside them, that send valid and invalid frames to the server machine.

use super::drawn::{Names, Ticket, any_hello, native_request, opening};
use super::{Lists, any_request};
use crate::entropy::Entropy;
use crate::frames;
use crate::rig::Rig;
use rendezvous_core::access::{Access, Tokens};
use rendezvous_core::auth::ClientAuth;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{FrameLimits, HistoryLimits, ServerLimits, SessionLimits};
use rendezvous_core::node::server::Input;
use rendezvous_core::proof::Credentials;
use rendezvous_core::time::Duration;
use rendezvous_core::wire::native::{ClientFrame, From, HEADER_BYTES, Label, Scan, ServerFrame, scan};
use std::collections::{BTreeMap, BTreeSet};

const CLIENTS_MAX: usize = 5;
const DEADLINES_LEFT_MAX: usize = 100_000;

/// Tokens of a server that asks for one.
const TOKEN_FILE: &str = "full 0123456789abcdef0123456789abcdef all
reader 00112233445566778899aabbccddeeff read:
";
/// Tokens of clients, and whether the server has them.
const TOKENS: [(&str, bool); 4] = [
    ("full 0123456789abcdef0123456789abcdef", true),
    ("reader 00112233445566778899aabbccddeeff", true),
    ("full ffffffffffffffffffffffffffffffff", false),
    ("stranger 0123456789abcdef0123456789abcdef", false),
];

/// For a few native clients that open, resume and end sessions, send any frames in pieces, stop reading and disconnect:
/// each receives whole frames of the protocol, numbered without gaps, with one answer for each request; the server's
/// counts are correct; and nothing is left of them when they are gone. One server in four asks for tokens: a client that has
/// none of them, or a wrong one, gets no session.
///
/// # Panics
/// When that does not hold.
pub fn native_server(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    let limits = ServerLimits {
        work_per_input_max: entropy.choose(&[5000, 5000, 20]),
        unsent_bytes_high: entropy.choose(&[1 << 20, 200]),
        buffered_bytes_max: entropy.choose(&[1 << 30, 20_000]),
        session: SessionLimits {
            sessions_max: entropy.choose(&[100, 2]),
            window_frames: entropy.choose(&[100, 3]),
            pending_max: entropy.choose(&[100, 3]),
            ..SessionLimits::default()
        },
        history: HistoryLimits { changes_max: entropy.choose(&[1000, 4]), ..HistoryLimits::default() },
        ..ServerLimits::default()
    };
    let mut world = World {
        rig: Rig::new(limits),
        names: Names::few(),
        clients: BTreeMap::new(),
        sessions: BTreeMap::new(),
        // By the last byte, so that inputs from before servers asked for tokens keep their meaning.
        has_tokens: bytes.last().is_some_and(|last| matches!(last % 8, 2 | 3)),
        has_stopped: false,
    };
    if world.has_tokens {
        let tokens = Some(Tokens::parse(TOKEN_FILE).expect("tokens"));
        world.rig.feed(Input::Access(&Access { tokens, ..Access::default() }));
    }
    while !entropy.is_empty() && !world.has_stopped {
        world.step(&mut entropy);
        world.check();
    }
    if !world.has_stopped {
        world.leave();
    }
}

struct World {
    rig: Rig,
    names: Names,
    clients: BTreeMap<ConnId, Client>,
    sessions: BTreeMap<u64, Session>,
    /// Whether the server asks for tokens.
    has_tokens: bool,
    /// Nothing follows then.
    has_stopped: bool,
}

#[derive(Default)]
struct Client {
    is_native: bool,
    /// Its HELLO without credentials, and the sequence number there.
    hello: Option<(ClientFrame<'static>, u64)>,
    auth: Option<ClientAuth>,
    /// Whether the server has its token.
    is_known: bool,
    on_the_way: Vec<u8>,
    session: Option<u64>,
    /// Bytes that were received and examined.
    examined: usize,
    /// Highest sequence number on this connection.
    sequence: u64,
}

struct Session {
    ticket: Ticket,
    /// Highest sequence number that the client has received.
    received: u64,
    answered: BTreeSet<u64>,
    next_id: u64,
}

impl Client {
    /// Answers a challenge, if the client has a token.
    fn prove(&mut self, nonce: [u8; 32]) {
        let (Some(auth), Some((hello, received))) = (&mut self.auth, &self.hello) else { return };
        if auth.challenged(nonce) {
            let proof = hello.with_auth(auth.prove(hello, [0; 32]));
            self.on_the_way.extend(frames::native(Label { id: 0, sequence: *received, flags: 0 }, &proof));
        }
    }
}

impl World {
    fn step(&mut self, entropy: &mut Entropy<'_>) {
        let open: Vec<ConnId> = self.clients.keys().copied().filter(|&conn| self.rig.is_open(conn)).collect();
        let kind = entropy.below(32);
        if open.is_empty() || (kind == 0 && open.len() < CLIENTS_MAX) {
            return self.connect(entropy);
        }
        let conn = open[entropy.below(open.len())];
        let client = self.clients.get_mut(&conn).expect("one of the open ones");
        match kind {
            1 => client.on_the_way.extend_from_slice(entropy.bytes(30)),
            2 => self.rig.open_window(conn, entropy.choose(&[0, 1, 30, 1000, usize::MAX])),
            3 if entropy.below(4) == 0 => self.rig.feed(Input::Lost { conn, os_error: 104 }),
            4 if entropy.below(4) == 0 => self.rig.feed(Input::ReadClosed { conn }),
            5 if entropy.below(4) == 0 => self.rig.feed(Input::HostSilent { conn, os_error: 110 }),
            6 => self.rig.pass(Duration::from_millis(u64::from(entropy.byte()) * 20)),
            7 => self.tick_when_due(),
            8 if entropy.below(64) == 0 => {
                self.rig.feed(Input::Stop);
                self.has_stopped = true;
            }
            9..=19 if client.is_native => {
                let session = client.session.and_then(|session| self.sessions.get_mut(&session));
                let label = session.map_or_else(Label::default, |session| {
                    session.next_id += 1;
                    // Requests may be repeated, and acknowledgements may be old, or of frames that were never sent.
                    let id = session.next_id - entropy.choose(&[0, 0, 0, 0, 1, 3]).min(session.next_id);
                    let sequence = match entropy.below(16) {
                        0 => session.received / 2,
                        1 if entropy.below(8) == 0 => u64::MAX,
                        _ => session.received,
                    };
                    Label { id, sequence, flags: 0 }
                });
                let mut bytes = native_request(entropy, &self.names, label, 4);
                if entropy.below(16) == 0 {
                    let at = entropy.below(256) % bytes.len();
                    bytes[at] = entropy.byte();
                }
                client.on_the_way.extend(bytes);
            }
            9..=19 => {
                let mut lists = Lists::default();
                client.on_the_way.extend(frames::request(any_request(entropy, &mut lists)));
            }
            _ => {
                let most = entropy.choose(&[1, 30, usize::MAX, usize::MAX]);
                let chunk: Vec<u8> = client.on_the_way.drain(..most.min(client.on_the_way.len())).collect();
                if !chunk.is_empty() && self.rig.server.wants_read(conn) {
                    self.rig.send(conn, &chunk);
                }
            }
        }
    }

    fn connect(&mut self, entropy: &mut Entropy<'_>) {
        let conn = self.rig.connect();
        let is_native = entropy.below(6) > 0;
        let mut client = Client { is_native, ..Client::default() };
        client.on_the_way = if is_native {
            let resumed = self.sessions.len().checked_sub(1).filter(|_| entropy.below(2) == 0);
            let resumed = resumed.and_then(|last| self.sessions.values().nth(entropy.below(last + 1)));
            let (mut ticket, mut received) =
                resumed.map_or_else(Default::default, |session| (session.ticket, session.received));
            if entropy.below(16) == 0 {
                ticket.token[0] ^= 1;
                received += 1;
            }
            let hello = any_hello(entropy, ticket);
            client.hello = Some((hello, received));
            if self.has_tokens && entropy.below(8) > 0 {
                let (token, is_known) = entropy.choose(&TOKENS);
                client.is_known = is_known;
                client.auth = Some(ClientAuth::new(Credentials::parse(token).expect("a token")));
            }
            let offer = client.auth.as_mut().map_or(&b""[..], |auth| auth.offer([entropy.byte(); 32]));
            opening(&hello.with_auth(offer), received)
        } else {
            frames::greeting()
        };
        self.clients.insert(conn, client);
    }

    /// Ticks as the driver does, when the server asks for it.
    fn tick_when_due(&mut self) {
        if let Some(due) = self.rig.server.poll_timeout() {
            let span = due.since(self.rig.now);
            if span <= Duration::from_secs(10) {
                self.rig.pass(span);
            }
        }
    }

    fn check(&mut self) {
        let stats = self.rig.server.stats();
        let conns: Vec<ConnId> = self.clients.keys().copied().collect();
        let (mut open, mut unsent) = (0, 0);
        for conn in conns {
            if self.rig.is_open(conn) {
                open += 1;
                unsent += self.rig.server.unsent(conn).len() as u64;
            }
            if self.clients[&conn].is_native {
                self.examine(conn);
            }
        }
        assert_eq!(stats.connections, open);
        assert!(stats.buffered_bytes >= unsent, "{stats:?}, {unsent} unsent");
        assert!(stats.sessions <= self.sessions_max(), "{stats:?}");
    }

    fn sessions_max(&self) -> usize {
        // Each session was opened by a connection.
        self.clients.len()
    }

    /// Parses what has arrived at a native client.
    fn examine(&mut self, conn: ConnId) {
        let client = self.clients.get_mut(&conn).expect("a client of this world");
        let limits = FrameLimits::default();
        let got = &self.rig.clients[&conn].got;
        while let Ok(Scan::Whole { header, bytes }) = scan(&got[client.examined..], From::Server, &limits) {
            let body = &got[client.examined + HEADER_BYTES..client.examined + bytes];
            let frame = ServerFrame::parse(header.kind, body, &limits);
            let frame = frame.expect("the server's fields are valid").expect("the server's kinds are known");
            client.examined += bytes;
            match frame {
                ServerFrame::Challenge { nonce } => client.prove(nonce),
                ServerFrame::Proof { proof } => {
                    let auth = client.auth.as_mut().expect("the client was challenged");
                    assert!(client.is_known && auth.proven(&proof), "both prove the same token");
                }
                _ => {}
            }
            if let ServerFrame::Welcome { incarnation, session, token, resumed, .. } = frame {
                assert!(client.session.replace(session).is_none(), "one WELCOME on a connection");
                let is_proven = client.auth.as_ref().is_some_and(ClientAuth::is_proven);
                assert!(is_proven || !self.has_tokens, "a session without a token");
                let ticket = Ticket { incarnation, session, token };
                if resumed {
                    // What the client has not received follows.
                    let known = &self.sessions[&session];
                    assert_eq!(known.ticket.token, token);
                    client.sequence = known.received;
                } else {
                    let fresh = Session { ticket, received: 0, answered: BTreeSet::new(), next_id: 0 };
                    assert!(self.sessions.insert(session, fresh).is_none(), "session {session} is new");
                }
                continue;
            }
            if !ServerFrame::is_numbered(header.kind) || header.sequence == 0 {
                continue;
            }
            let session = client.session.expect("numbered frames follow WELCOME");
            let session = self.sessions.get_mut(&session).expect("it was opened");
            assert!(header.sequence <= client.sequence + 1, "{header:?} after {}", client.sequence);
            client.sequence = client.sequence.max(header.sequence);
            if header.sequence == session.received + 1 {
                session.received = header.sequence;
                let is_answer = header.kind < 0xc000;
                assert!(!is_answer || session.answered.insert(header.id), "{header:?} is answered twice");
            }
        }
        let rest = scan(&got[client.examined..], From::Server, &limits);
        assert!(matches!(rest, Ok(Scan::Partial { .. })), "{rest:?}");
    }

    /// Closes all connections and lets all time pass. Only what is stored remains.
    fn leave(mut self) {
        for &conn in self.clients.keys() {
            // The server may have closed it with an earlier one.
            if self.rig.is_open(conn) {
                self.rig.feed(Input::Lost { conn, os_error: 0 });
            }
        }
        for _ in 0..DEADLINES_LEFT_MAX {
            let Some(due) = self.rig.server.poll_timeout() else {
                let stats = self.rig.server.stats();
                let left = (stats.connections, stats.sessions, stats.waiting, stats.buffered_bytes);
                assert_eq!(left, (0, 0, 0, 0), "{stats:?}");
                return;
            };
            self.rig.pass(due.since(self.rig.now));
        }
        panic!(
            "a deadline outlives its connection for good: {:?} at {:?}, {:?}",
            self.rig.server.poll_timeout(),
            self.rig.now,
            self.rig.server.stats()
        );
    }
}
