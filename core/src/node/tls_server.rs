//! A server and the TLS of its connections, with the interface of [`Server`]: received bytes and bytes to be sent are
//! those of the sockets.
//!
//! A step of a handshake costs as much as thousands of requests, and any client may ask for it before it has proven
//! anything. So the bytes of handshakes wait for [`Input::Tick`], and each tick does one step. Pieces of messages cost
//! little, and a tick looks at many of them.

use super::server::{Input, InputError, Output, Server, ServerInstance, Stats, TLS_FIRST_BYTE};
use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::prelude::*;
use crate::tls::{ServerConfig, TlsStage};
use crate::tls_fault::TlsFault;
use crate::wire::native::{Fault, FaultCode, Label, MAGIC, ServerFrame, encode_frame};
use alloc::collections::VecDeque;

/// Unit in which the memory of TLS is counted.
const PAGE_BYTES: usize = 4096;

/// Number of handshakes that wait from which on no connection is accepted.
const WAITING_MAX: usize = 256;

/// Maximum number of connections whose waiting bytes one tick looks at.
const LOOKS_PER_TICK: usize = 256;

/// Maximum number of connections in a batch. The server decrypts what has arrived from all of them before it handles what
/// the first has sent, and encrypts for all of them before it sends to the first, so that the code stays in the cache.
const BATCH_CONNS_MAX: usize = 64;
/// Number of bytes at which a batch gets no further connection.
const BATCH_BYTES_HIGH: usize = 64 * 1024;
/// Maximum number of bytes that are copied to a batch after one read. More are handled at once.
const BATCHED_READ_MAX: usize = 4 * 1024;

/// A server whose clients may use TLS. Without a configuration it passes everything on.
///
/// What has arrived from connections with TLS waits for [`TlsServer::poll_output`], for another input than
/// [`Input::Received`] and [`Input::Sent`], for 64 reads or for 64 KiB. A caller that reads several connections before it
/// drains the outputs saves time; until then, what the server reports does not include these bytes. Each read is one input
/// of the [`Server`], with a budget of its own.
#[derive(Debug)]
pub struct TlsServer {
    server: Server,
    config: Option<ServerConfig>,
    /// By the slots of the connections. `None`: the bytes are those of the server.
    transports: Vec<Option<Transport>>,
    received: ReceivedBatch,
    /// Time of the last input.
    now: Instant,
    /// Connections with bytes to be sent of which the server does not know.
    to_send: VecDeque<ConnId>,
    /// Connections with bytes for their handshakes, for the next ticks.
    waiting: VecDeque<ConnId>,
    /// Number of those that the last tick left because it had done its step; 0 if it did none.
    left_waiting: usize,
    /// Connections that the caller may read again.
    readable: VecDeque<ConnId>,
    /// Closed connection whose last bytes may still be sent.
    closed: Option<ConnId>,
    /// Scratch buffer.
    plaintext: Vec<u8>,
}

/// Received bytes of connections whose handshakes are over.
#[derive(Debug, Default)]
struct ReceivedBatch {
    ciphertext: Vec<u8>,
    /// The connections in the order in which they were read, and where the bytes of each end.
    reads: Vec<(ConnId, usize)>,
    /// What they contain.
    decrypted: Vec<Decrypted>,
}

/// Decrypted bytes of a connection.
#[derive(Debug)]
struct Decrypted {
    conn: ConnId,
    /// Where they end among those of the batch.
    end: usize,
    /// Number of their records.
    records: usize,
    /// Whether the peer has ended TLS with them, or why TLS has failed.
    outcome: Result<bool, TlsFault>,
}

/// Bytes between a socket and the server.
#[derive(Debug)]
enum Transport {
    /// No byte has arrived.
    Undecided(ServerConfig),
    Tls(Box<Secured>),
    /// A connection that is refused without TLS, and the bytes that say so.
    Refused(Vec<u8>),
}

#[derive(Debug)]
struct Secured {
    stage: TlsStage,
    /// Received bytes for a later tick.
    waiting: Vec<u8>,
    /// Number of the server's bytes that are in the ciphertext and that it does not know to be sent.
    sealed: usize,
    is_queued: bool,
    /// Whether the server knows the binding to the channel.
    is_bound: bool,
}

impl TlsServer {
    /// Creates a server with an empty store.
    pub fn new(limits: ServerLimits, instance: ServerInstance) -> Self {
        Self {
            server: Server::new(limits, instance),
            config: None,
            transports: Vec::new(),
            received: ReceivedBatch::default(),
            now: Instant::ORIGIN,
            to_send: VecDeque::new(),
            waiting: VecDeque::new(),
            left_waiting: 0,
            readable: VecDeque::new(),
            closed: None,
            plaintext: Vec::new(),
        }
    }

    /// Sets the configuration of connections that are accepted from now on. Their native clients must use TLS.
    pub fn configure(&mut self, config: ServerConfig) {
        self.config = Some(config);
    }

    /// Returns counts and sizes.
    pub fn stats(&self) -> Stats {
        self.server.stats()
    }

    /// Returns the server.
    pub const fn server(&self) -> &Server {
        &self.server
    }

    /// Returns when [`Input::Tick`] is due at the latest.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = (!self.waiting.is_empty()).then_some(Instant::ORIGIN);
        waiting.or_else(|| self.server.poll_timeout())
    }

    /// Returns when the caller may accept the next connection, as [`Server::accepts_at`] does.
    pub fn accepts_at(&self) -> Option<Instant> {
        // What has arrived since the last tick may be pieces of messages, of which any client may send any number.
        let waiting = self.held_up();
        match self.server.accepts_at() {
            None if waiting < WAITING_MAX => None,
            Some(at) if waiting == 0 => Some(at),
            // Those that wait for the server have not had their time yet.
            _ => Some(Instant::MAX),
        }
    }

    /// Returns whether the caller may read from `conn`.
    pub fn wants_read(&self, conn: ConnId) -> bool {
        let waits =
            matches!(self.transport(conn), Some(Transport::Tls(secured)) if !secured.waiting.is_empty());
        !waits && self.server.wants_read(conn)
    }

    /// Returns the bytes to send to `conn` next. After [`Output::Close`] they are the last ones, of which the caller
    /// sends what the socket takes at once.
    pub fn unsent(&self, conn: ConnId) -> &[u8] {
        match self.transport(conn) {
            None => self.server.unsent(conn),
            // The server has ended the connection, and the caller is about to learn of it.
            Some(_) if self.closed != Some(conn) && !self.server.has(conn) => &[],
            Some(Transport::Undecided(_)) => &[],
            Some(Transport::Tls(secured)) => secured.stage.unsent(),
            Some(Transport::Refused(bytes)) => bytes,
        }
    }

    /// Handles one input, as [`Server::handle`] does. If the connection ends because of bytes that waited for this input,
    /// that is no error.
    ///
    /// # Errors
    /// The input does not fit the state, and has changed nothing.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) -> Result<(), InputError> {
        self.now = now;
        self.forget_closed();
        if let Input::Received { conn, bytes } = input {
            return self.receive(now, conn, bytes);
        }
        // What was written before the batch is handled must not be written again if the batch ends the connection.
        if !matches!(input, Input::Sent { .. }) && self.batch_ends(input.conn()) {
            return Ok(());
        }
        match input {
            Input::Accepted { conn, .. } => {
                self.server.handle(now, input)?;
                if let Some(config) = &self.config {
                    let index = conn.index as usize;
                    if self.transports.len() <= index {
                        self.transports.resize_with(index + 1, || None);
                    }
                    self.transports[index] = Some(Transport::Undecided(config.clone()));
                }
                Ok(())
            }
            Input::AcceptFailed if self.held_up() > 0 => Ok(()),
            Input::Tick => {
                self.serve_waiting()?;
                self.server.handle(now, input)
            }
            Input::Sent { conn, bytes } if self.transport(conn).is_some() => self.sent(now, conn, bytes),
            input => self.server.handle(now, input),
        }
    }

    /// Returns the next action. The caller drains it after the inputs that it has, before it sleeps.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.forget_closed();
        self.decrypt_batch();
        if let Some(conn) = self.readable.pop_front() {
            return Some(Output::Read { conn });
        }
        loop {
            while let Some(conn) = self.to_send.pop_front() {
                if let Some(Transport::Tls(secured)) = self.transport_mut(conn) {
                    secured.is_queued = false;
                    return Some(Output::Transmit { conn });
                }
            }
            if let Some(output) = self.seal_batch() {
                return Some(output);
            }
            if self.to_send.is_empty() {
                return None;
            }
        }
    }

    /// Encrypts for the connections to which the server has something to send, and queues them. Returns the first other
    /// output of the server.
    fn seal_batch(&mut self) -> Option<Output> {
        let mut bytes = 0;
        while self.to_send.len() < BATCH_CONNS_MAX && bytes < BATCH_BYTES_HIGH {
            match self.server.poll_output()? {
                Output::Transmit { conn } if self.transport(conn).is_some() => bytes += self.seal(conn),
                Output::Close { conn } => {
                    if let Some(Transport::Tls(secured)) = self.transport_mut(conn) {
                        secured.stage.close();
                        if !secured.waiting.is_empty() {
                            self.waiting.retain(|&other| other != conn);
                        }
                    }
                    self.closed = Some(conn);
                    return Some(Output::Close { conn });
                }
                output => return Some(output),
            }
        }
        None
    }

    /// Returns how many connections wait because of the handshakes of others.
    fn held_up(&self) -> usize {
        // Some may have ended since the last tick.
        self.left_waiting.min(self.waiting.len())
    }

    #[inline]
    fn transport(&self, conn: ConnId) -> Option<&Transport> {
        self.transports.get(conn.index as usize)?.as_ref()
    }

    fn transport_mut(&mut self, conn: ConnId) -> Option<&mut Transport> {
        self.transports.get_mut(conn.index as usize)?.as_mut()
    }

    fn forget_closed(&mut self) {
        let Some(conn) = self.closed.take() else { return };
        if let Some(transport) = self.transports.get_mut(conn.index as usize) {
            *transport = None;
        }
        while let Some(None) = self.transports.last() {
            self.transports.pop();
        }
    }

    fn receive(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> Result<(), InputError> {
        if let Some(Transport::Undecided(config)) = self.transport(conn)
            && let Some(&first) = bytes.first()
        {
            match first {
                TLS_FIRST_BYTE => {
                    let stage = TlsStage::server(config);
                    let secured =
                        Secured { stage, waiting: Vec::new(), sealed: 0, is_queued: false, is_bound: false };
                    self.transports[conn.index as usize] = Some(Transport::Tls(Box::new(secured)));
                }
                first if first == MAGIC[0] => return self.refuse(now, conn),
                _ => self.transports[conn.index as usize] = None,
            }
        }
        let Self { server, transports, waiting, received, .. } = self;
        let secured = match transports.get_mut(conn.index as usize) {
            Some(Some(Transport::Tls(secured))) if server.has(conn) => secured,
            _ => return server.handle(now, Input::Received { conn, bytes }),
        };
        if !secured.stage.is_handshaking() {
            if bytes.len() > BATCHED_READ_MAX {
                let has_ended = self.batch_ends(Some(conn));
                return if has_ended { Ok(()) } else { self.decrypt(conn, bytes).map(drop) };
            }
            received.ciphertext.extend_from_slice(bytes);
            received.reads.push((conn, received.ciphertext.len()));
            if received.reads.len() >= BATCH_CONNS_MAX || received.ciphertext.len() >= BATCH_BYTES_HIGH {
                self.decrypt_batch();
            }
            return Ok(());
        }
        if secured.waiting.is_empty() {
            waiting.push_back(conn);
        }
        secured.waiting.extend_from_slice(bytes);
        server.charge_tls(conn, secured.held_bytes());
        Ok(())
    }

    /// Goes on with the handshakes that have waited for longest, until one has done a step.
    fn serve_waiting(&mut self) -> Result<(), InputError> {
        self.left_waiting = 0;
        for _ in 0..LOOKS_PER_TICK {
            let Some(conn) = self.waiting.pop_front() else { break };
            let Some(Transport::Tls(secured)) = self.transport_mut(conn) else { continue };
            let bytes = core::mem::take(&mut secured.waiting);
            if !self.server.has(conn) {
                continue;
            }
            self.readable.push_back(conn);
            if self.decrypt(conn, &bytes)? {
                self.left_waiting = self.waiting.len();
                break;
            }
        }
        Ok(())
    }

    /// Handles the batch. Returns whether that has ended this connection.
    fn batch_ends(&mut self, conn: Option<ConnId>) -> bool {
        if self.received.reads.is_empty() {
            return false;
        }
        let conn = conn.filter(|&conn| self.server.has(conn));
        self.decrypt_batch();
        conn.is_some_and(|conn| !self.server.has(conn))
    }

    /// Decrypts the batch, then handles it, and then encrypts what the server has to send to its connections.
    fn decrypt_batch(&mut self) {
        if self.received.reads.is_empty() {
            return;
        }
        let ReceivedBatch { mut ciphertext, mut reads, mut decrypted } = core::mem::take(&mut self.received);
        let mut plaintext = core::mem::take(&mut self.plaintext);
        plaintext.clear();
        let mut start = 0;
        for (conn, end) in reads.drain(..) {
            if let Some(Transport::Tls(secured)) = self.transport_mut(conn) {
                let outcome = secured.decrypt(&ciphertext[start..end], &mut plaintext);
                let records = secured.stage.take_records();
                decrypted.push(Decrypted { conn, end: plaintext.len(), records, outcome });
            }
            start = end;
        }
        let mut start = 0;
        for &Decrypted { conn, end, records, outcome } in &decrypted {
            self.server.count_records(conn, records);
            // What others have sent may have ended the connection, and then there is nothing to be done.
            let _ = self.serve(conn, &plaintext[start..end], outcome);
            start = end;
        }
        for Decrypted { conn, .. } in decrypted.drain(..) {
            self.seal(conn);
        }
        ciphertext.clear();
        (self.received, self.plaintext) = (ReceivedBatch { ciphertext, reads, decrypted }, plaintext);
    }

    /// Handles received bytes of a connection with TLS. Returns whether they caused a step of its handshake.
    fn decrypt(&mut self, conn: ConnId, bytes: &[u8]) -> Result<bool, InputError> {
        let Some(Some(Transport::Tls(secured))) = self.transports.get_mut(conn.index as usize) else {
            return Ok(false);
        };
        self.plaintext.clear();
        let handshaking = |stage: &TlsStage| stage.is_handshaking().then(|| stage.unsent().len());
        let before = handshaking(&secured.stage);
        let outcome = secured.decrypt(bytes, &mut self.plaintext);
        self.server.count_records(conn, secured.stage.take_records());
        // Bytes that complete no message of a handshake cost little.
        let is_step = before.is_some() && before != handshaking(&secured.stage);
        if !secured.is_bound
            && let Some(channel) = secured.stage.binding()
        {
            secured.is_bound = true;
            self.server.handle(self.now, Input::Secured { conn, channel })?;
        }
        let plaintext = core::mem::take(&mut self.plaintext);
        let served = self.serve(conn, &plaintext, outcome);
        self.plaintext = plaintext;
        served?;
        self.seal(conn);
        Ok(is_step)
    }

    /// Handles the plaintext that a connection has sent, and the end of TLS if it follows.
    fn serve(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        outcome: Result<bool, TlsFault>,
    ) -> Result<(), InputError> {
        let now = self.now;
        if !bytes.is_empty() {
            self.server.handle(now, Input::Received { conn, bytes })?;
        }
        // The server may have ended the connection because of the bytes before.
        match outcome {
            Err(fault) => drop(self.server.handle(now, Input::TlsFailed { conn, fault })),
            Ok(true) => drop(self.server.handle(now, Input::ReadClosed { conn })),
            Ok(false) => {}
        }
        Ok(())
    }

    /// Refuses a native client that does not use TLS.
    fn refuse(&mut self, now: Instant, conn: ConnId) -> Result<(), InputError> {
        let mut bytes = Vec::new();
        let fault = Fault::new(FaultCode::TlsRequired, 0, 0);
        // invariant: a frame without text is short
        encode_frame(&mut bytes, Label::default(), &ServerFrame::Error { fault }).expect("a short frame");
        self.transports[conn.index as usize] = Some(Transport::Refused(bytes));
        self.server.handle(now, Input::PlaintextRefused { conn })
    }

    fn sent(&mut self, now: Instant, conn: ConnId, bytes: usize) -> Result<(), InputError> {
        let Self { server, transports, .. } = self;
        let Some(Some(Transport::Tls(secured))) = transports.get_mut(conn.index as usize) else {
            return Ok(());
        };
        secured.stage.sent(bytes);
        if secured.sealed > 0 {
            // The last byte counts as sent when all of the ciphertext has been.
            let is_sent = !secured.stage.has_unsent();
            let bytes = if is_sent { secured.sealed } else { bytes.min(secured.sealed - 1) };
            secured.sealed -= bytes;
            server.handle(now, Input::Sent { conn, bytes })?;
            if !is_sent {
                return Ok(());
            }
        } else if secured.stage.has_unsent() {
            return Ok(());
        }
        let held_bytes = secured.held_bytes();
        if server.has(conn) {
            server.charge_tls(conn, held_bytes);
            // The server decides whose bytes are encrypted next: short answers go before long ones.
            server.want_to_send(conn);
        }
        Ok(())
    }

    /// Encrypts the server's next bytes if the earlier ones have been sent, and queues the connection if there are bytes
    /// to be sent. Returns their number.
    fn seal(&mut self, conn: ConnId) -> usize {
        let Self { server, transports, to_send, .. } = self;
        let secured = match transports.get_mut(conn.index as usize) {
            Some(Some(Transport::Tls(secured))) if server.has(conn) => secured,
            _ => return 0,
        };
        if !secured.stage.has_unsent() {
            secured.sealed = secured.stage.send(server.unsent(conn));
        }
        if secured.stage.has_unsent() && !secured.is_queued {
            secured.is_queued = true;
            to_send.push_back(conn);
        }
        server.charge_tls(conn, secured.held_bytes());
        secured.stage.unsent().len()
    }
}

impl Secured {
    /// Decrypts received bytes to the end of `plaintext`. Returns whether the peer has ended TLS with them.
    fn decrypt(&mut self, bytes: &[u8], plaintext: &mut Vec<u8>) -> Result<bool, TlsFault> {
        self.stage.receive(bytes, plaintext)?;
        Ok(self.stage.is_ended())
    }

    /// Returns the number of bytes of memory, in whole pages, so that few changes are counted.
    fn held_bytes(&self) -> usize {
        (self.stage.held_bytes() + self.waiting.capacity()).next_multiple_of(PAGE_BYTES)
    }
}
