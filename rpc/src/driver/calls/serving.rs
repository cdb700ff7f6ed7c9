//! Server of a worker: one thread reads all connections, and passes requests to handlers.

mod conn;
mod reactor;

use super::handling::{Handling, Held, Holder};
use super::received::BufferPool;
use crate::connection::Refusal;
use crate::intake::{FairIntake, QuotaId, Released};
use crate::name::WorkerInfo;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use crossbeam_channel::{Sender, unbounded};
use reactor::{Command, LISTENER, Reactor};
use rendezvous_core::driver::clock::Clock;
use rendezvous_core::driver::event_loop::{EventLoop, Interest, Waker, Watcher};
use rendezvous_core::driver::reply::ask;
use rendezvous_core::driver::server::{Listen, ServerFailure, StartError, open_listener};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::limits::{IntakeLimits, RpcLimits};
use rendezvous_core::time::Duration;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Decides whether a worker that connects is accepted, or returns the reason and a message. It is called on the thread
/// that serves all connections, and must not block.
pub type Admit = dyn Fn(&WorkerInfo) -> Result<(), (Refusal, Box<str>)> + Send + Sync;

/// Options of an [`RpcServer`].
pub struct RpcServerOptions {
    /// Address to listen at.
    pub listen: Listen,
    /// Name and number of this worker.
    pub me: WorkerInfo,
    /// Id of the group that callers must be in.
    pub group: Vec<u8>,
    /// Decides which workers may call.
    pub admit: Box<Admit>,
    /// Limits of each connection.
    pub limits: RpcLimits,
    /// Limits of all connections together.
    pub intake: IntakeLimits,
    /// TCP keep-alive, which detects silent hosts; `None` leaves the system's defaults.
    pub keep_alive: Option<KeepAlive>,
}

impl fmt::Debug for RpcServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RpcServerOptions")
            .field("listen", &self.listen)
            .field("me", &self.me)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Server of a worker. Dropping it ends it at once.
#[derive(Debug)]
pub struct RpcServer {
    local_addr: SocketAddr,
    shared: Arc<ServerShared>,
    commands: Sender<Command>,
    thread: Mutex<Option<Thread>>,
    failure_cell: Arc<OnceLock<ServerFailure>>,
}

/// Timeout of the thread's reply to a query of its handle.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

impl RpcServer {
    /// Starts to listen, with the handlers of `handling`. When this returns, callers can connect.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn start(options: RpcServerOptions, handling: Arc<Handling>) -> Result<Self, StartError> {
        Self::start_watched(options, handling, |_| ())
    }

    /// Starts a server that calls `failed` on its thread if it ends without having been stopped.
    ///
    /// # Errors
    /// As [`RpcServer::start`].
    pub fn start_watched(
        options: RpcServerOptions,
        handling: Arc<Handling>,
        failed: impl FnOnce(&ServerFailure) + Send + 'static,
    ) -> Result<Self, StartError> {
        let RpcServerOptions { listen, me, group, admit, limits, intake, keep_alive } = options;
        let listener = open_listener(&listen, keep_alive)?;
        let no_system = |cause| StartError::io(&listen, cause);
        let local_addr = listener.local_addr().map_err(no_system)?;
        let events = EventLoop::new().map_err(no_system)?;
        let shared = Arc::new(ServerShared {
            me,
            group: group.into(),
            admit,
            limits,
            intake: Mutex::new(FairIntake::new(intake)),
            handling,
            buffer_pool: Arc::default(),
            clock: *events.clock(),
            watcher: events.watcher(),
            waker: events.waker(),
        });
        let watch = events.watch(listener.as_raw_fd(), Interest::Read, LISTENER).map_err(no_system)?;
        let (commands, inbox) = unbounded();
        let mut reactor = Reactor::new(events, (listener, watch), Arc::clone(&shared), inbox);
        let failure_cell = Arc::new(OnceLock::new());
        let thread_failure = Arc::clone(&failure_cell);
        let thread = threads::spawn("rdzv-rpc-in", move || {
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.run()));
            let failure = match end {
                Ok(Ok(())) => ServerFailure::Stopped,
                Ok(Err(error)) => ServerFailure::Poll(error.raw_os_error().unwrap_or(0)),
                Err(panic) => ServerFailure::Panicked(panic_text(&*panic)),
            };
            thread_failure.set(failure.clone()).ok();
            reactor.close_all();
            if failure != ServerFailure::Stopped {
                failed(&failure);
            }
        });
        let thread = Mutex::new(Some(thread.map_err(no_system)?));
        Ok(Self { local_addr, shared, commands, thread, failure_cell })
    }

    /// The address it is bound to, with the port that the system chose.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Reason why it has ended; `None` while it runs.
    #[must_use]
    pub fn failure(&self) -> Option<ServerFailure> {
        self.failure_cell.get().cloned()
    }

    /// Returns the number of accepted requests, their bytes, and the number of connections.
    ///
    /// # Errors
    /// The thread has ended or does not reply.
    pub fn held(&self) -> Result<(u64, u64, usize), ServerFailure> {
        let (reply, answer) = ask();
        self.send(Command::Held(reply));
        answer.wait(ANSWER_TIMEOUT).map_err(|_| self.failure().unwrap_or(ServerFailure::Unresponsive))
    }

    /// Returns a handle that rechecks which workers are admitted.
    #[must_use]
    pub fn admission(&self) -> Admission {
        Admission { commands: self.commands.clone(), waker: self.shared.waker.clone() }
    }

    /// Accepts no further requests or connections, and waits until the pending requests have their responses. Returns
    /// whether they had within `timeout`; the server completes the others until it is dropped.
    #[must_use]
    pub fn leave(&self, timeout: Duration) -> bool {
        let (reply, answer) = ask();
        self.send(Command::Goodbye(reply));
        answer.wait(timeout).is_ok()
    }

    /// Starts to end at once, without waiting.
    pub fn begin_to_stop(&self) {
        self.send(Command::Stop);
    }

    /// Ends at once: connections are closed, and requests are given up.
    pub fn stop(&self) {
        self.begin_to_stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            if thread.id() == std::thread::current().id() {
                // A handler that stops its own server: the thread ends when the handler has returned.
                return;
            }
            thread.join();
        }
    }

    fn send(&self, command: Command) {
        // If the reactor has ended, the reply is dropped with the command.
        self.commands.send(command).ok();
        self.shared.waker.wake();
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Handle of a server for code that knows when admission has changed.
#[derive(Clone, Debug)]
pub struct Admission {
    commands: Sender<Command>,
    waker: Waker,
}

impl Admission {
    /// Calls [`RpcServerOptions::admit`] again for each connected worker, and closes the connections of those that it
    /// refuses.
    pub fn ask_again(&self) {
        // If the reactor has ended, there are no connections.
        self.commands.send(Command::AdmitAgain).ok();
        self.waker.wake();
    }
}

struct ServerShared {
    me: WorkerInfo,
    group: Box<[u8]>,
    admit: Box<Admit>,
    limits: RpcLimits,
    intake: Mutex<FairIntake>,
    handling: Arc<Handling>,
    buffer_pool: Arc<BufferPool>,
    clock: Clock,
    watcher: Watcher,
    waker: Waker,
}

impl fmt::Debug for ServerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerShared").field("me", &self.me).finish_non_exhaustive()
    }
}

impl ServerShared {
    fn intake(&self) -> MutexGuard<'_, FairIntake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(self: &Arc<Self>, quota: QuotaId, payload_bytes: u64) -> Held {
        self.intake().enter(quota, payload_bytes);
        Held { holder: Arc::<Self>::clone(self), quota, payload_bytes }
    }
}

impl Holder for ServerShared {
    fn let_go(&self, quota: QuotaId, payload_bytes: u64) {
        if self.intake().leave(quota, payload_bytes) == Released::Again {
            self.waker.wake();
        }
    }
}
