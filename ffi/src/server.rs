//! Store servers inside the calling process.

use crate::context::{RDZV_LOG_DEBUG, RDZV_LOG_INFO, RDZV_LOG_WARN};
use crate::prelude::*;
use crate::server_options::{rdzv_server_options, server_options};
use rendezvous_core::driver::server::{Server, ServerFailure, ServerOptions, StartError, StartErrorKind};
use rendezvous_core::node::server::{Event, Severity};

/// Store server on a thread of its own. Any thread may use it. Freeing it stops it.
#[derive(Debug)]
pub struct rdzv_server {
    pub(crate) state: HandleState,
    server: Server,
    address: CString,
    shared: Arc<ContextShared>,
}
guard::handle!(rdzv_server, shared);

/// Counters and sizes of a server.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_server_stats {
    /// Set to `sizeof(rdzv_server_stats)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// Reserved; 0.
    pub reserved: u32,
    /// Number of open connections.
    pub connections: u64,
    /// Number of connections accepted since the start.
    pub accepted: u64,
    /// Number of connections, and of sessions without one, that the server has ended since the start
    /// because the peer violated the protocol or a limit.
    pub expelled: u64,
    /// Number of requests executed since the start.
    pub requests: u64,
    /// Number of keys that have a value.
    pub keys: u64,
    /// Bytes of keys, values and queued items, including the overhead charged for each.
    pub stored_bytes: u64,
    /// Bytes received but not processed, bytes of answers not sent, and bytes held by native sessions.
    pub buffered_bytes: u64,
    /// Number of pending waits and barriers.
    pub waiting: u64,
}
growing!(rdzv_server_stats: 72);

faults! { StartError => start_fault, }

pub(crate) fn start_fault(error: &StartError) -> Fault {
    let status = match error.kind {
        StartErrorKind::AddressInUse => RDZV_ADDRESS_IN_USE,
        StartErrorKind::AddressNotAvailable => RDZV_UNREACHABLE,
        StartErrorKind::Unresolved => RDZV_UNRESOLVED,
        StartErrorKind::NotAListener => RDZV_INVALID_ARGUMENT,
        StartErrorKind::Exhausted => RDZV_EXHAUSTED,
        StartErrorKind::PermissionDenied | StartErrorKind::Io => RDZV_IO,
    };
    Fault::new(status, error.to_string()).during("listen").with(|details| {
        details.peer.clone_from(&error.address);
        details.os_error = error.cause.raw_os_error().unwrap_or(0);
    })
}

fn server_fault(failure: &ServerFailure, operation: &str) -> Fault {
    let (status, os_error) = match failure {
        ServerFailure::Panicked(_) => (RDZV_PANIC, 0),
        ServerFailure::Poll(os_error) => (RDZV_IO, *os_error),
        ServerFailure::Stopped => (RDZV_CLOSED, 0),
        ServerFailure::Unresponsive => (RDZV_TIMED_OUT, 0),
    };
    let fault = Fault::new(status, format!("{operation}: {failure}")).during(operation);
    fault.with_os_error(os_error)
}

/// Binds a socket and starts a server; when it returns `RDZV_OK`, clients can connect. `context` may be
/// NULL, which creates a new one; `options` may be NULL for the defaults. On success the caller owns `*out`
/// and frees it with `rdzv_server_free`.
///
/// Errors: `RDZV_ADDRESS_IN_USE`, `RDZV_UNREACHABLE` (the address is not one of this host),
/// `RDZV_UNRESOLVED`, `RDZV_INVALID_ARGUMENT` (an adopted descriptor is not a bound TCP socket; the token
/// file, `c10d_from`, a certificate or a key cannot be read or used), `RDZV_UNSUPPORTED` (the library has
/// no TLS), `RDZV_EXHAUSTED`, `RDZV_IO`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_new(
    context: *const rdzv_context,
    options: *const rdzv_server_options,
    out: *mut *mut rdzv_server,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        start(shared, server_options(options)?)
    })
}

pub(crate) fn start(
    shared: Arc<ContextShared>,
    mut options: ServerOptions,
) -> Result<*mut rdzv_server, Fault> {
    let log_target = Arc::clone(&shared);
    options.observer = Box::new(move |event| log(&log_target, event));
    let server = Server::start(options)?;
    let local = server.local_addr();
    shared.log(RDZV_LOG_INFO, c"server", || format!("listening on {local}"));
    let address = c_string(local.to_string());
    Ok(boxed(rdzv_server { state: HandleState::default(), server, address, shared }))
}

/// True if the next reactor thread that has an event to log panics.
#[cfg(feature = "fault-injection")]
pub(crate) static PANIC_IN_REACTOR: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Logs an event of the server. Runs on the reactor thread.
fn log(shared: &ContextShared, event: &Event) {
    #[cfg(feature = "fault-injection")]
    if PANIC_IN_REACTOR.swap(false, std::sync::atomic::Ordering::SeqCst) {
        panic!("provoked in the reactor");
    }
    let level = match event.severity() {
        Severity::Routine => RDZV_LOG_DEBUG,
        Severity::Notable => RDZV_LOG_INFO,
        Severity::Warning => RDZV_LOG_WARN,
    };
    shared.log(level, c"server", || event.to_string());
}

/// Returns the port on which the server listens; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_port(server: *const rdzv_server) -> u16 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(server, 0, |server| server.server.local_addr().port()) }
}

/// Returns the address on which the server listens, as `ADDR:PORT` with an IPv6 address in brackets. The
/// string is NUL-terminated and valid as long as the server. Empty for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_address(server: *const rdzv_server) -> *const c_char {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(server, c"".as_ptr(), |server| server.address.as_ptr()) }
}

/// Fills `*stats`, whose `struct_size` the caller has set.
///
/// Errors: `RDZV_CLOSED` (the server was stopped), `RDZV_PANIC` (its thread panicked), `RDZV_IO` (a system
/// error ended it), `RDZV_TIMED_OUT` (its thread does not answer).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_get_stats(
    server: *const rdzv_server,
    stats: *mut rdzv_server_stats,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, server, stats, |server| {
        let now = server.server.stats().map_err(|failure| server_fault(&failure, "stats"))?;
        Ok(rdzv_server_stats {
            connections: now.connections as u64,
            accepted: now.accepted,
            expelled: now.expelled,
            requests: now.requests,
            keys: now.keys as u64,
            stored_bytes: now.stored_bytes,
            buffered_bytes: now.buffered_bytes,
            waiting: now.waiting as u64,
            ..Default::default()
        })
    })
}

/// Closes all connections and the listener, and waits until the server's thread has ended. Calls of clients
/// that wait fail at once. Any thread may call this, any number of times.
///
/// Errors: `RDZV_PANIC` (the server's thread had panicked), `RDZV_IO` (a system error had ended it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_stop(
    server: *const rdzv_server,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, server, |server| {
        server.server.stop().map_err(|failure| server_fault(&failure, "stop"))?;
        server.shared.log(RDZV_LOG_INFO, c"server", || format!("{} stopped", server.server.local_addr()));
        Ok(())
    })
}

/// Stops and frees a server. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_free(server: *mut rdzv_server) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(server, "rdzv_server_free") };
}
