//! Contexts: state shared by the handles of one user of the library.

use crate::argument::invalid;
use crate::fault::{Fault, c_string, one_line, rdzv_error};
use crate::guard::{self, HandleState, boxed};
use crate::rpc_slot::RpcSlot;
use crate::sized::{self, growing};
use crate::status::{RDZV_EXHAUSTED, RDZV_REENTRANT, rdzv_status};
use crate::user_code::UserCode;
use rendezvous_core::driver::channel::{ChannelError, Receiver, Sender, bounded};
use rendezvous_core::driver::rendezvous::Context;
use rendezvous_core::driver::threads::{self, Thread};
use rendezvous_core::node::server::Event;
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// Log level: a failure that needs the attention of an operator. Lower levels are more important.
pub const RDZV_LOG_ERROR: i32 = 1;
/// Log level: a peer violated the protocol, or the library gave something up.
pub const RDZV_LOG_WARN: i32 = 2;
/// Log level: servers that start and stop.
pub const RDZV_LOG_INFO: i32 = 3;
/// Log level: every connection that opens and closes.
pub const RDZV_LOG_DEBUG: i32 = 4;

/// Log line. It and everything that it points to are valid during the call only.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_log_record {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// One of `RDZV_LOG_ERROR` to `RDZV_LOG_DEBUG`.
    pub level: i32,
    /// Component of the library that logs, such as `server`. NUL-terminated.
    pub target: *const c_char,
    /// Text of the line, UTF-8, NUL-terminated.
    pub message: *const c_char,
    /// Length of `message` in bytes, without the NUL.
    pub message_len: usize,
}

/// Receiver of log lines. The library calls it on one thread of its own, so it may block; if it falls too
/// far behind, lines are dropped and counted. It must not throw. It must not call functions on the context
/// it belongs to or on handles of that context: they return `RDZV_REENTRANT`, also while the context or its
/// last handle is being freed, and `rdzv_context_free` does nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_log_sink {
    /// Set to `sizeof(rdzv_log_sink)`.
    pub struct_size: u32,
    /// Least important level to receive, one of `RDZV_LOG_ERROR` to `RDZV_LOG_DEBUG`.
    pub level_max: i32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Receives one line. Must not be NULL.
    pub log: Option<unsafe extern "C" fn(user_data: *mut c_void, record: *const rdzv_log_record)>,
    /// Called once, after the last line. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_log_sink: 32);

/// Owner of what handles share: the log sink, the registries of rendezvous backends and URL schemes, and
/// the stores that this process hosts for them. The library has no global state; two contexts share
/// nothing. Any thread may use a context. Handles keep what they need of their context, so it may be freed
/// before them.
#[derive(Debug)]
pub struct rdzv_context {
    state: HandleState,
    pub(crate) home: Arc<Home>,
}
guard::handle!(rdzv_context, home, |context: &Self| context.home.refuse_sink().is_err());

/// Shared state of a context for handles from which others are created: handlers, agents, RPC workers,
/// loops.
#[derive(Debug, Default)]
pub(crate) struct Home {
    rendezvous: OnceLock<Arc<Context>>,
    pub(crate) rpc: RpcSlot,
    /// Dropped last: the others run code of the program when they are dropped, which may be logged.
    shared: Arc<ContextShared>,
}

/// State of a context that every handle keeps. It does not contain the program's own backends: a backend
/// may own a store of the same context, and the two must not keep each other alive.
#[derive(Debug, Default)]
pub(crate) struct ContextShared {
    log: OnceLock<Log>,
}

#[derive(Debug)]
struct Log {
    level_max: i32,
    lines: Option<Sender<LogLine>>,
    dropped: Arc<AtomicU64>,
    thread_id: ThreadId,
    thread: Mutex<Option<Thread>>,
}

#[derive(Debug)]
struct LogLine {
    level: i32,
    target: &'static std::ffi::CStr,
    message: String,
}

thread_local! {
    /// Address of the [`ContextShared`] whose sink this thread calls; 0 if it calls none.
    static SINK_OF: Cell<usize> = const { Cell::new(0) };
}

/// Maximum number of lines queued for a sink.
const LINES_MAX: usize = 4096;

impl ContextShared {
    /// Queues a line for the sink if its level is wanted; `message` is called only then. Never blocks.
    pub(crate) fn log(&self, level: i32, target: &'static std::ffi::CStr, message: impl FnOnce() -> String) {
        let Some(log) = self.log.get().filter(|log| level <= log.level_max) else { return };
        let Some(lines) = &log.lines else { return };
        // Names and keys of peers must not begin a second line.
        let message = one_line(&message());
        if let Err(ChannelError::Unready) = lines.try_send(LogLine { level, target, message }) {
            log.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Logs that an object was not freed, because one of its own callbacks tried to.
    pub(crate) fn warn_free_refused(&self, function: &str) {
        let message = || format!("{function} was called inside a callback of the object and has no effect");
        self.log(RDZV_LOG_WARN, c"ffi", message);
    }

    /// Refuses a call made by the sink of this context. Compares the address only, because the sink may call
    /// while the context or its last handle is being freed.
    ///
    /// # Errors
    ///
    /// The sink of this context is the caller.
    #[inline(never)]
    pub(crate) fn refuse_sink(&self) -> Result<(), Fault> {
        if SINK_OF.get() == std::ptr::from_ref(self).addr() {
            return Err(Fault::new(RDZV_REENTRANT, "a log sink called a function on its own context"));
        }
        Ok(())
    }
}

impl Home {
    /// Returns the state that every handle keeps.
    pub(crate) const fn shared(&self) -> &Arc<ContextShared> {
        &self.shared
    }

    /// Returns the backends, the URL schemes and the stores hosted for them; created on first use.
    pub(crate) fn rendezvous(&self) -> &Arc<Context> {
        self.rendezvous.get_or_init(|| {
            let (context, shared) = (Context::default(), Arc::clone(&self.shared));
            context.observe_servers(move |event| {
                if let Event::Exposed { .. } = event {
                    shared.log(RDZV_LOG_WARN, c"server", || event.to_string());
                }
            });
            Arc::new(context)
        })
    }

    /// Logs that an object was not freed, see [`ContextShared::warn_free_refused`].
    pub(crate) fn warn_free_refused(&self, function: &str) {
        self.shared.warn_free_refused(function);
    }

    /// Refuses a call made by the sink of this context, see [`ContextShared::refuse_sink`].
    pub(crate) fn refuse_sink(&self) -> Result<(), Fault> {
        self.shared.refuse_sink()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The thread ends when it has written the queued lines.
        self.lines = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| self.thread_id != std::thread::current().id()) {
            thread.join();
        }
    }
}

fn write_lines(sink: &UserCode<rdzv_log_sink>, lines: &Receiver<LogLine>, dropped: &AtomicU64) {
    let Some(log) = sink.log else { return };
    let put = |level: i32, target: &std::ffi::CStr, message: String| {
        let message = c_string(message);
        let record = rdzv_log_record {
            struct_size: struct_size::<rdzv_log_record>(),
            level,
            target: target.as_ptr(),
            message: message.as_ptr(),
            message_len: message.count_bytes(),
        };
        // SAFETY: the sink was supplied for this call, and the record lives until it returns.
        unsafe { log(sink.user_data, &raw const record) };
    };
    while let Ok(line) = lines.recv() {
        put(line.level, line.target, line.message);
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            count => {
                put(RDZV_LOG_WARN, c"log", format!("{count} log lines were dropped: the sink is too slow"))
            }
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "structs of the ABI are small")]
pub(crate) const fn struct_size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Returns the state that handles keep from which others are created; a new context for NULL.
pub(crate) unsafe fn home(context: *const rdzv_context) -> Result<Arc<Home>, Fault> {
    // SAFETY: NULL or a live context, as promised.
    let Some(context) = (unsafe { context.as_ref() }) else { return Ok(Arc::default()) };
    // Checked first: the reference count of a context that is being freed must not rise again.
    context.home.refuse_sink()?;
    Ok(Arc::clone(&context.home))
}

/// Returns the state that every other handle keeps.
pub(crate) unsafe fn shared(context: *const rdzv_context) -> Result<Arc<ContextShared>, Fault> {
    // SAFETY: passed on unchanged.
    unsafe { home(context) }.map(|home| Arc::clone(&home.shared))
}

/// Creates a context without a log sink; the caller frees it with `rdzv_context_free`. Never NULL: the
/// process is aborted if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_context_new() -> *mut rdzv_context {
    let context = || boxed(rdzv_context { state: HandleState::default(), home: Arc::default() });
    guard::quiet(std::ptr::null_mut(), context)
}

/// Frees a context. Its log sink is destroyed, after the last line was written, when the last handle made
/// with the context is freed. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_free(context: *mut rdzv_context) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(context, "rdzv_context_free") };
}

/// Sends the log lines of this context's handles to `sink`, which is copied. A context accepts one sink,
/// once; without a sink the library logs nothing. On success the library owns `user_data` until it calls
/// `destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_context_set_log_sink(
    context: *mut rdzv_context,
    sink: *const rdzv_log_sink,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, context, |context| {
        let sink = sized::get(sink, "sink")?;
        if sink.log.is_none() {
            return Err(invalid("`sink.log` is NULL"));
        }
        if !(RDZV_LOG_ERROR..=RDZV_LOG_DEBUG).contains(&sink.level_max) {
            let level = sink.level_max;
            return Err(invalid(format!("`sink.level_max` is {level}, not an RDZV_LOG_ level")));
        }
        if context.home.shared.log.get().is_some() {
            return Err(invalid("this context has a log sink already"));
        }
        set_sink(&context.home.shared, sink)
    })
}

/// Time limit for storing a sink in its context; storing takes far less.
const GATE_TIMEOUT: Duration = Duration::from_secs(60);

fn set_sink(shared: &ContextShared, sink: rdzv_log_sink) -> Result<(), Fault> {
    let address = std::ptr::from_ref(shared).addr();
    let (lines, queued) = bounded(LINES_MAX);
    let dropped = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&dropped);
    let (go, gate) = oneshot::channel::<()>();
    let code = UserCode::new(sink, sink.user_data);
    let thread = threads::spawn("rdzv-log", move || {
        SINK_OF.set(address);
        // Without an answer another sink was stored first, so this one was not accepted and stays the caller's.
        if gate.recv_timeout(GATE_TIMEOUT).is_ok() {
            code.adopt(code.destroy);
            write_lines(&code, &queued, &counter);
        }
    });
    let thread = thread.map_err(|error| {
        Fault::new(RDZV_EXHAUSTED, format!("cannot create the thread for the log sink: {error}"))
    })?;
    let log = Log {
        level_max: sink.level_max,
        lines: Some(lines),
        dropped,
        thread_id: thread.id(),
        thread: Mutex::new(Some(thread)),
    };
    if let Err(log) = shared.log.set(log) {
        drop(go);
        drop(log);
        return Err(invalid("this context has a log sink already"));
    }
    go.send(()).ok();
    Ok(())
}
