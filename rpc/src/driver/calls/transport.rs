//! Bytes of a connection on their way to the socket: as they are, or encrypted.

use crate::connection::{RefusalEvent, RefusalObserver, TokenExchange};
use core::mem::MaybeUninit;
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::random::random;
use rendezvous_core::driver::tls::{TlsAcceptor, TlsConnector};
use rendezvous_core::driver::token_file::ClientToken;
use rendezvous_core::proof::Bytes32;
use rendezvous_core::tls::{ServerConfig, TlsStage};
use rendezvous_core::tls_fault::TlsFault;
use socket2::{MaybeUninitSlice, SockAddr, Socket};
use std::io::{ErrorKind, IoSlice, Read};

/// TLS of a worker, which accepts connections and makes some.
#[derive(Clone, Debug)]
pub struct RpcTls {
    /// TLS of connections that other workers make.
    pub acceptor: TlsAcceptor,
    /// TLS of connections to other workers.
    pub connector: TlsConnector,
}

/// Tokens that a worker and its callers prove. When a connection begins, the file is read again if it has changed.
#[derive(Debug)]
pub struct GroupToken {
    file: Mutex<ClientToken>,
    observer: RefusalObserver,
}

impl GroupToken {
    /// Takes the tokens of a file. The observer is notified when the file changes and cannot be used.
    pub fn new(file: ClientToken, observer: RefusalObserver) -> Self {
        Self { file: Mutex::new(file), observer }
    }

    /// Begins the proofs on a new connection.
    pub(super) fn begin(&self) -> TokenExchange {
        let (reloaded, tokens) = {
            let mut file = self.file.locked();
            (file.reload(), file.tokens().clone())
        };
        if let Err(error) = reloaded {
            self.observer.notify(&RefusalEvent::TokenFile { error: error.to_string().into() });
        }
        TokenExchange::new(tokens, random())
    }
}

/// Send buffer between processes of one host, in bytes. With this size, the bytes in flight stay in the processor's
/// cache: a long payload takes half the time. Over a network the system chooses the size.
const LOCAL_SEND_BYTES: usize = 256 * 1024;
/// Size in bytes of a read of ciphertext: one record with its overhead.
const RECORD_BYTES: usize = 17 * 1024;
/// Type of the record with which TLS begins.
const TLS_FIRST_BYTE: u8 = 0x16;

/// Socket of a connection, and its TLS.
#[derive(Debug)]
pub(super) struct Transport {
    socket: Socket,
    security: Security,
}

#[derive(Debug)]
enum Security {
    Plain,
    /// The peer's first byte decides.
    Undecided(ServerConfig),
    Tls(Box<Secured>),
}

#[derive(Debug)]
struct Secured {
    stage: TlsStage,
    /// Received plaintext, of which the first bytes were taken.
    plaintext: Vec<u8>,
    taken: usize,
}

impl Secured {
    fn left(&self) -> &[u8] {
        &self.plaintext[self.taken..]
    }
}

/// Kind of a failure of TLS that lasts until a person changes a certificate or an option. No error of a socket has it.
pub(super) const TLS_REFUSED: ErrorKind = ErrorKind::InvalidData;

/// Converts a failure of TLS.
fn broken(fault: TlsFault) -> io::Error {
    let kind = if fault.is_final() { TLS_REFUSED } else { ErrorKind::Other };
    io::Error::new(kind, format!("TLS: {fault}"))
}

impl Transport {
    fn new(socket: Socket, security: Security) -> Self {
        let host = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip());
        if host(socket.local_addr()) == host(socket.peer_addr()) {
            // On failure the connection is a little slower.
            socket.set_send_buffer_size(LOCAL_SEND_BYTES).ok();
        }
        Self { socket, security }
    }

    /// Takes an accepted socket.
    pub(super) fn accepted(socket: Socket, tls: Option<&RpcTls>) -> Self {
        let security = tls.map_or(Security::Plain, |tls| Security::Undecided(tls.acceptor.current()));
        Self::new(socket, security)
    }

    /// Takes a socket that was connected to a worker on `host`.
    ///
    /// # Errors
    /// No certificate can contain the host's name.
    pub(super) fn connected(socket: Socket, host: &str, tls: Option<&TlsConnector>) -> io::Result<Self> {
        let Some(connector) = tls else { return Ok(Self::new(socket, Security::Plain)) };
        let stage = connector.start(host).map_err(|error| io::Error::other(format!("TLS: {error}")))?;
        let secured = Secured { stage, plaintext: Vec::new(), taken: 0 };
        Ok(Self::new(socket, Security::Tls(Box::new(secured))))
    }

    pub(super) const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns whether the connection uses TLS.
    pub(super) const fn is_secured(&self) -> bool {
        matches!(self.security, Security::Tls(_))
    }

    /// Returns the binding to the channel of TLS, if there is one.
    pub(super) fn binding(&self) -> Option<Bytes32> {
        match &self.security {
            Security::Tls(secured) => secured.stage.binding(),
            Security::Plain | Security::Undecided(_) => None,
        }
    }

    /// Returns whether there is plaintext that no event of the socket will report.
    pub(super) fn has_received(&self) -> bool {
        matches!(&self.security, Security::Tls(secured) if !secured.left().is_empty())
    }

    /// Returns whether there is ciphertext to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        matches!(&self.security, Security::Tls(secured) if secured.stage.has_unsent())
    }

    /// Returns whether bytes may be sent as soon as the socket takes them: not during the handshake.
    pub(super) fn is_ready(&self) -> bool {
        match &self.security {
            Security::Plain => true,
            Security::Undecided(_) => false,
            Security::Tls(secured) => !secured.stage.is_handshaking(),
        }
    }

    /// Reads once.
    pub(super) fn read(&mut self, into: &mut [MaybeUninitSlice<'_>]) -> io::Result<usize> {
        let Self { socket, security } = self;
        if let Security::Undecided(config) = security {
            let mut first = [MaybeUninit::new(0)];
            let count = socket.peek(&mut first)?;
            // SAFETY: it was initialised above.
            let first = unsafe { first[0].assume_init() };
            *security = if count == 1 && first == TLS_FIRST_BYTE {
                let stage = TlsStage::server(config);
                Security::Tls(Box::new(Secured { stage, plaintext: Vec::new(), taken: 0 }))
            } else {
                Security::Plain
            };
        }
        match (security, into) {
            (Security::Tls(secured), into) => secured.read(socket, into),
            (_, [one]) => socket.recv(one),
            (_, several) => socket.recv_vectored(several).map(|(bytes, _)| bytes),
        }
    }

    /// Writes from `from`, and returns the number of bytes that were taken.
    pub(super) fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let Security::Tls(secured) = &mut self.security else {
            // Without the flag, a closed connection would end a process that does not handle SIGPIPE.
            return match from {
                [one] => self.socket.send_with_flags(one, libc::MSG_NOSIGNAL),
                several => self.socket.send_vectored_with_flags(several, libc::MSG_NOSIGNAL),
            };
        };
        let mut count = 0;
        for slice in from {
            let sent = secured.stage.send(slice);
            count += sent;
            if sent < slice.len() {
                break;
            }
        }
        match (self.flush(), count) {
            (Err(error), 0) => Err(error),
            // The next call reports what remains.
            (Ok(()), 0) => Err(ErrorKind::WouldBlock.into()),
            (Ok(()), count) => Ok(count),
            (Err(error), _) if error.kind() != ErrorKind::WouldBlock => Err(error),
            (Err(_), count) => Ok(count),
        }
    }

    /// Sends the ciphertext.
    ///
    /// # Errors
    /// The socket takes no more, or fails.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Security::Tls(secured) = &mut self.security else { return Ok(()) };
        while secured.stage.has_unsent() {
            match self.socket.send_with_flags(secured.stage.unsent(), libc::MSG_NOSIGNAL) {
                Ok(count) => secured.stage.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing follows, as far as the socket takes it.
    pub(super) fn end(&mut self) {
        if let Security::Tls(secured) = &mut self.security {
            secured.stage.close();
            self.flush().ok();
        }
    }
}

impl Secured {
    /// Copies received plaintext, and reads the socket if there is none.
    fn read(&mut self, socket: &mut Socket, into: &mut [MaybeUninitSlice<'_>]) -> io::Result<usize> {
        if self.left().is_empty() {
            self.plaintext.clear();
            self.taken = 0;
            let mut record = [0; RECORD_BYTES];
            let count = socket.read(&mut record)?;
            if count == 0 || self.stage.is_ended() {
                return match self.stage.end_of_stream() {
                    Some(fault) => Err(broken(fault)),
                    None => Ok(0),
                };
            }
            let outcome = self.stage.receive(&record[..count], &mut self.plaintext);
            // An answer of the handshake, or an alert. If the socket does not take all of it, the next write sends the
            // rest.
            while let Ok(count @ 1..) = socket.send_with_flags(self.stage.unsent(), libc::MSG_NOSIGNAL) {
                self.stage.sent(count);
                if !self.stage.has_unsent() {
                    break;
                }
            }
            outcome.map_err(broken)?;
            if self.left().is_empty() {
                return Err(if self.stage.is_ended() {
                    broken_off()
                } else {
                    // More of the record is to come, or there is more to read.
                    ErrorKind::Interrupted.into()
                });
            }
        }
        let mut total = 0;
        for slice in into {
            let count = slice.len().min(self.left().len());
            for (to, &from) in slice.iter_mut().zip(self.left()) {
                to.write(from);
            }
            self.taken += count;
            total += count;
        }
        Ok(total)
    }
}

/// The peer has ended TLS.
fn broken_off() -> io::Error {
    io::Error::other("the other end closed it")
}
