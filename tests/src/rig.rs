//! Server without sockets: tests pass bytes in and out, and each socket accepts as much as a test allows.

use crate::frames;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::ServerLimits;
use rendezvous_core::node::server::{CloseReason, Event, Input, Output, Server, ServerInstance};
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Address of every client of a rig.
pub const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4711);

/// State of one client's connection.
#[derive(Debug)]
pub struct Client {
    /// Bytes that arrived and were not taken yet.
    pub got: Vec<u8>,
    /// Reason why the server closed the connection.
    pub closed: Option<CloseReason>,
    /// Bytes that its socket still accepts.
    pub window: usize,
}

/// A server and its clients.
#[derive(Debug)]
pub struct Rig {
    /// The machine.
    pub server: Server,
    /// The time that the machine gets.
    pub now: Instant,
    /// All clients so far.
    pub clients: BTreeMap<ConnId, Client>,
    /// Connections that the server has closed, but whose reason it has not reported yet.
    closing: BTreeSet<ConnId>,
}

impl Rig {
    /// Creates a server.
    #[must_use]
    pub fn new(limits: ServerLimits) -> Self {
        Self {
            server: Server::new(limits, ServerInstance::from_seed(1)),
            now: Instant::ORIGIN,
            clients: BTreeMap::new(),
            closing: BTreeSet::new(),
        }
    }

    /// Opens a connection in the first free slot.
    pub fn connect(&mut self) -> ConnId {
        let open = self.clients.iter().filter(|(_, client)| client.closed.is_none());
        let open: BTreeSet<u32> = open.map(|(id, _)| id.index).collect();
        let index = (0..).find(|index| !open.contains(index)).unwrap_or_default();
        let before = self.clients.keys().filter(|id| id.index == index).count();
        let conn = ConnId { index, generation: u32::try_from(before).unwrap_or(u32::MAX) };
        self.clients.insert(conn, Client { got: Vec::new(), closed: None, window: usize::MAX });
        self.feed(Input::Accepted { conn, peer: PEER });
        conn
    }

    /// Opens a connection and sends the greeting.
    pub fn greeted(&mut self) -> ConnId {
        let conn = self.connect();
        self.send(conn, &frames::greeting());
        conn
    }

    /// Passes bytes of a client to the server. Bytes for a closed connection are dropped.
    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        if self.is_open(conn) {
            self.feed(Input::Received { conn, bytes });
        }
    }

    /// Returns whether the server still has the connection.
    #[must_use]
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.clients.get(&conn).is_some_and(|client| client.closed.is_none())
    }

    /// Returns the reason why the server closed the connection, if it did.
    #[must_use]
    pub fn closed(&self, conn: ConnId) -> Option<CloseReason> {
        self.clients.get(&conn).and_then(|client| client.closed)
    }

    /// Takes the bytes that arrived for a client.
    pub fn take(&mut self, conn: ConnId) -> Vec<u8> {
        self.clients.get_mut(&conn).map(|client| core::mem::take(&mut client.got)).unwrap_or_default()
    }

    /// Advances the time by `span`.
    pub fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.feed(Input::Tick);
    }

    /// Lets a client's socket accept `bytes` more, and reports that to the server.
    pub fn open_window(&mut self, conn: ConnId, bytes: usize) {
        if let Some(client) = self.clients.get_mut(&conn) {
            client.window = bytes;
        }
        if self.is_open(conn) {
            self.transmit(conn);
            self.drain();
        }
    }

    /// Passes one input to the server and carries out its outputs.
    ///
    /// # Panics
    /// When the server does not know a connection that it has not closed.
    pub fn feed(&mut self, input: Input<'_>) {
        self.server.handle(self.now, input).expect("an input for a connection of this rig");
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Transmit { conn } => self.transmit(conn),
                Output::Event(
                    Event::Exposed { .. }
                    | Event::Accepted { .. }
                    | Event::SessionOpened { .. }
                    | Event::SessionEnded { .. }
                    | Event::CertificatesRenewed
                    | Event::CertificatesKept { .. }
                    | Event::TokensReloaded { .. }
                    | Event::TokensKept { .. }
                    | Event::Run { .. },
                ) => {}
                Output::Read { .. } => {}
                Output::Close { conn } => assert!(self.closing.insert(conn), "{conn:?} is closed once"),
                Output::Event(Event::Closed { conn, reason, .. }) => {
                    assert!(self.closing.remove(&conn), "{conn:?} is reported after it was closed");
                    let client = self.clients.get_mut(&conn).expect("a connection of this rig");
                    assert_eq!(client.closed.replace(reason), None, "{conn:?} is closed once");
                }
            }
        }
        assert!(self.closing.is_empty(), "closed without a word: {:?}", self.closing);
    }

    fn transmit(&mut self, conn: ConnId) {
        let unsent = self.server.unsent(conn);
        let Some(client) = self.clients.get_mut(&conn) else { return };
        if unsent.is_empty() {
            return;
        }
        let bytes = unsent.len().min(client.window);
        client.got.extend_from_slice(&unsent[..bytes]);
        client.window -= bytes;
        self.server
            .handle(self.now, Input::Sent { conn, bytes })
            .expect("it has unsent bytes, so it is there");
    }
}
