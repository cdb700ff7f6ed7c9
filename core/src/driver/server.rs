//! Store server on a thread of its own.
//!
//! One reactor thread serves every connection; see [`Server::start`]. It never looks up a peer's name, binds exactly
//! the address it is given, and ends when the handle is stopped or dropped.

mod listener;
mod reactor;

#[doc(hidden)]
pub use listener::open as open_listener;
pub use listener::{Family, StartError, StartErrorKind};

use crate::access::{Access, Network};
use crate::driver::ack_watch::silence_max;
use crate::driver::channel::{Sender, unbounded};
use crate::driver::lock::Lock;
use crate::driver::socket::KeepAlive;
use crate::driver::threads::{self, Thread, panic_text};
use crate::driver::tls::TlsAcceptor;
use crate::driver::token_file::ServerTokens;
use crate::limits::ServerLimits;
use crate::node::server::{Event, Stats};
use crate::opaque::opaque_debug;
use oneshot::RecvTimeoutError;
use reactor::{Command, Reactor};
use std::boxed::Box;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;
use std::vec::Vec;

/// Address or socket on which a server listens.
#[derive(Debug)]
pub enum Listen {
    /// Binds this address. `host` is a literal or a name, of which the first address is taken. Port 0 lets the system
    /// choose.
    Address {
        /// Host name or literal address.
        host: String,
        /// Port.
        port: u16,
        /// Whether `::` also accepts IPv4 peers.
        family: Family,
    },
    /// Takes a stream socket that is already bound, listening or not.
    Adopted(OwnedFd),
}

/// Options of a server.
pub struct ServerOptions {
    /// Address or socket to listen on.
    pub listen: Listen,
    /// Further addresses or sockets to listen on.
    pub more: Vec<Listen>,
    /// Limits on all that the server keeps.
    pub limits: ServerLimits,
    /// Detection of silent hosts; `None` leaves it to the system's defaults.
    pub keep_alive: Option<KeepAlive>,
    /// TLS. If set, native clients must use it.
    pub tls: Option<TlsAcceptor>,
    /// Tokens that native clients have to prove; `None`: the server serves every client that reaches it.
    pub auth_tokens: Option<ServerTokens>,
    /// Networks from which c10d clients are served, which have neither tokens nor TLS; `None`: all if native clients need
    /// neither a token nor a certificate, and else none.
    pub c10d_from: Option<Vec<Network>>,
    /// Called for every connection that opens or closes, on the reactor thread, and for [`Event::Exposed`] by
    /// [`Server::start`]. It must not block.
    pub observer: Box<dyn FnMut(&Event) + Send>,
}

opaque_debug!(ServerOptions);

impl ServerOptions {
    /// Returns options for a server on `host:port` with default settings.
    pub fn on(host: &str, port: u16) -> Self {
        Self {
            listen: Listen::Address { host: host.to_string(), port, family: Family::AsGiven },
            more: Vec::new(),
            limits: ServerLimits::default(),
            keep_alive: Some(KeepAlive::default()),
            tls: None,
            auth_tokens: None,
            c10d_from: None,
            observer: Box::new(|_| ()),
        }
    }
}

/// Reason why a server has ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerFailure {
    /// A bug in this library: the reactor thread panicked. Every client has been disconnected.
    #[error("the server thread panicked: {0}")]
    Panicked(String),
    /// The system's event queue failed.
    #[error("the server's event queue failed (OS error {0})")]
    Poll(i32),
    /// The server was stopped with [`Server::stop`].
    #[error("the server is stopped")]
    Stopped,
    /// The server thread did not respond, perhaps because an observer blocks it.
    #[error("the server thread did not answer for {} s", ANSWER_TIMEOUT.as_secs())]
    Unresponsive,
}

/// Timeout of requests from the handle to the server thread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

type FailureCell = Arc<OnceLock<ServerFailure>>;

/// Running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    local_addrs: Vec<SocketAddr>,
    incarnation: u64,
    commands: Sender<Command>,
    waker: Arc<mio::Waker>,
    thread: Mutex<Option<Thread>>,
    thread_id: ThreadId,
    failure_cell: FailureCell,
}

impl Server {
    /// Binds and starts to serve. When this returns, clients can connect.
    ///
    /// # Errors
    /// The reason why the server cannot listen there.
    pub fn start(mut options: ServerOptions) -> Result<Self, StartError> {
        let (mut listeners, mut local_addrs) = (Vec::new(), Vec::new());
        for listen in std::iter::once(&options.listen).chain(&options.more) {
            let listener = listener::open(listen, options.keep_alive)?;
            local_addrs.push(listener.local_addr().map_err(|cause| StartError::io(listen, cause))?);
            listeners.push(listener);
        }
        let access = Access {
            tokens: options.auth_tokens.as_ref().map(|file| file.tokens().clone()),
            requires_certificates: options.tls.as_ref().is_some_and(TlsAcceptor::requires_certificates),
            c10d_from: options.c10d_from.map(Vec::into_boxed_slice),
        };
        let c10d_only = access.authenticates();
        let is_exposed = |ip: IpAddr| !ip.is_loopback() && (!c10d_only || access.allows_all_c10d(ip));
        if let Some(&addr) = local_addrs.iter().find(|addr| is_exposed(addr.ip().to_canonical())) {
            (options.observer)(&Event::Exposed { addr, c10d_only });
        }
        let (commands, inbox) = unbounded();
        let rules = (options.tls, options.auth_tokens, access);
        let limits = (options.limits, silence_max(options.keep_alive.as_ref()));
        let mut reactor = Reactor::new(listeners, limits, rules, inbox, options.observer)
            .map_err(|cause| StartError::io(&options.listen, cause))?;
        let incarnation = reactor.incarnation();
        let (waker, failure_cell) = (reactor.waker(), FailureCell::default());
        let thread_failure = Arc::clone(&failure_cell);
        let thread = threads::spawn("rdzv-server", move || {
            // The closure owns the reactor: when it unwinds, every socket closes.
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || reactor.run()));
            let failure = match end {
                Ok(Ok(())) => ServerFailure::Stopped,
                Ok(Err(error)) => ServerFailure::Poll(error.raw_os_error().unwrap_or(0)),
                Err(panic) => ServerFailure::Panicked(panic_text(&*panic)),
            };
            thread_failure.set(failure).ok();
        });
        let thread = thread.map_err(|cause| StartError::io(&options.listen, cause))?;
        let thread_id = thread.id();
        let thread = Mutex::new(Some(thread));
        Ok(Self { local_addrs, incarnation, commands, waker, thread, thread_id, failure_cell })
    }

    /// Returns the first bound address, with the port that the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addrs[0]
    }

    /// Returns all bound addresses, in the order of the options.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns the random number that identifies this start of the server: [`NativeClient::incarnation`] returns it to
    /// clients.
    ///
    /// [`NativeClient::incarnation`]: crate::driver::native_client::NativeClient::incarnation
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Returns the reason why the server has ended; `None` while it runs.
    pub fn failure(&self) -> Option<ServerFailure> {
        self.failure_cell.get().cloned()
    }

    /// Blocks until the server has ended and returns the reason.
    pub fn wait(&self) -> ServerFailure {
        self.failure_cell.wait().clone()
    }

    /// Returns the server's current counters and sizes.
    ///
    /// # Errors
    /// The reason why the server did not respond.
    pub fn stats(&self) -> Result<Stats, ServerFailure> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Stats(reply));
        answer.recv_timeout(ANSWER_TIMEOUT).map_err(|none| match none {
            RecvTimeoutError::Timeout => ServerFailure::Unresponsive,
            // The reactor has been dropped, and its thread is about to set the reason.
            RecvTimeoutError::Disconnected => self.wait(),
        })
    }

    /// Closes every connection and the listener, and waits for the thread to end. May be called from any thread, any
    /// number of times. On the server's own thread (within an observer) it does not wait.
    ///
    /// # Errors
    /// The failure that had ended the server before.
    pub fn stop(&self) -> Result<(), ServerFailure> {
        self.send(Command::Stop);
        if self.thread_id == std::thread::current().id() {
            return Ok(());
        }
        if let Some(thread) = self.thread.locked().take() {
            thread.join();
        }
        match self.failure() {
            None | Some(ServerFailure::Stopped) => Ok(()),
            Some(failure) => Err(failure),
        }
    }

    fn send(&self, command: Command) {
        // A reactor that has ended takes no commands. `failure_cell` has the reason.
        self.commands.send(command).ok();
        self.waker.wake().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop().ok();
    }
}

#[cfg(test)]
mod tests;
