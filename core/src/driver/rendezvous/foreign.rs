//! Backends and URL schemes implemented by the program.
//!
//! The program's code may block, and may never return. Each of its functions therefore runs on a thread of a separate
//! pool. The caller waits until the deadline or until it is cancelled; after that it abandons the call, which keeps
//! its thread until the code returns. Calls from that code back into the calling handle are refused.

use super::handler::{CreateHandler, HandlerError, NodeStore, RendezvousHandler};
use super::url::{UrlGroup, UrlHandler, UrlOptions, UrlRendezvous};
use crate::driver::cancel::Canceller;
use crate::driver::plugin_threads::{Ended, PluginThreads};
use crate::driver::prelude::*;
use crate::error::ErrorKind;
use crate::limits::ClientLimits;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::registry::Identity;
use crate::rendezvous::round_event::RoundEvent;
use crate::rendezvous::store_info::RendezvousInfo;
use crate::rendezvous::url::RendezvousUrl;
use crate::time::Seconds;
use core::sync::atomic::{AtomicBool, Ordering};

/// Limits of the calls to foreign code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignOptions {
    /// Time that a call may take before its caller gives up.
    pub call_timeout: Duration,
    /// Largest number of calls at a time, including those that the caller gave up and that have not returned.
    pub calls_max: usize,
}

impl Default for ForeignOptions {
    fn default() -> Self {
        Self { call_timeout: Duration::from_secs(600), calls_max: ClientLimits::default().connections_max }
    }
}

/// Time that the function `cancel` of the code may take before the cancelled caller goes on.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The calls to one backend or scheme, with their threads.
struct Calls {
    name: Box<str>,
    threads: Arc<PluginThreads>,
    options: ForeignOptions,
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Calls {
    fn new(name: Box<str>, options: ForeignOptions) -> Self {
        let threads = Arc::new(PluginThreads::new("rdzv-foreign", options.calls_max));
        Self { name, threads, options }
    }

    /// Runs `job` on a thread of the pool and waits up to `limit` for its result; `what` is its name in errors.
    fn make<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        token: &CancelToken,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HandlerError> {
        self.threads.ask(job, limit, token).map_err(|ended| self.call_error(what, limit, ended))
    }

    #[cold]
    #[inline(never)]
    fn call_error(&self, what: &str, limit: Duration, ended: Ended) -> HandlerError {
        let name = &self.name;
        let (kind, message) = match ended {
            Ended::TimeUp { .. } => {
                let seconds = Seconds(limit);
                (ErrorKind::TimedOut, format!("{what} of {name} did not return within {seconds} s"))
            }
            Ended::Cancelled { .. } => (ErrorKind::Cancelled, format!("{what} of {name} was cancelled")),
            Ended::CalledBack => {
                (ErrorKind::Reentrant, format!("{name} called back into the handle that calls it"))
            }
            Ended::TooMany => {
                let count = self.options.calls_max;
                (ErrorKind::LimitExceeded, format!("{count} calls to {name} have not returned"))
            }
            Ended::NoThread(number) => {
                let error = std::io::Error::from_raw_os_error(number);
                (ErrorKind::Io, format!("no thread for {what} of {name}: {error}"))
            }
            Ended::Panicked => (ErrorKind::Io, format!("{what} of {name} panicked")),
        };
        HandlerError::Plugin { kind, message: message.into() }
    }
}

/// Creator of handlers of a backend whose code may block.
pub struct ForeignBackend {
    code: Arc<dyn CreateHandler>,
    calls: Calls,
}

impl fmt::Debug for ForeignBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calls.fmt(f)
    }
}

impl ForeignBackend {
    /// Wraps the code of a backend.
    pub fn new(code: Arc<dyn CreateHandler>, options: ForeignOptions) -> Self {
        let calls = Calls::new(format!("the rendezvous backend of {}", code.name()).into(), options);
        Self { code, calls }
    }
}

impl CreateHandler for ForeignBackend {
    fn name(&self) -> &str {
        self.code.name()
    }

    fn create(&self, parameters: &RendezvousParameters) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        let (code, parameters) = (Arc::clone(&self.code), parameters.clone());
        let (calls, token) = (&self.calls, CancelToken::new());
        let handler =
            calls.make("create", calls.options.call_timeout, &token, move || code.create(&parameters))??;
        Ok(Box::new(ForeignHandler::new(handler, calls.options.clone())))
    }

    fn identity(&self) -> Identity {
        self.code.identity()
    }
}

/// Handler whose code may block.
struct ForeignHandler {
    code: Arc<dyn RendezvousHandler>,
    backend: Box<str>,
    run_id: Box<str>,
    use_agent_store: bool,
    reports_deaths: bool,
    /// Whether the node leaves with its work undone.
    is_abandoned: AtomicBool,
    calls: Calls,
    canceller: Canceller,
}

impl ForeignHandler {
    fn new(code: Box<dyn RendezvousHandler>, options: ForeignOptions) -> Self {
        let calls = Calls::new(format!("the rendezvous backend '{}'", code.backend()).into(), options);
        Self {
            backend: code.backend().into(),
            run_id: code.run_id().into(),
            use_agent_store: code.use_agent_store(),
            reports_deaths: code.reports_deaths(),
            is_abandoned: AtomicBool::new(false),
            code: code.into(),
            calls,
            canceller: Canceller::default(),
        }
    }

    fn make<T: Send + 'static>(
        &self,
        what: &str,
        limit: Duration,
        job: impl FnOnce(&dyn RendezvousHandler) -> Result<T, HandlerError> + Send + 'static,
    ) -> Result<T, HandlerError> {
        let (code, threads, token) = (Arc::clone(&self.code), &self.calls.threads, self.canceller.token());
        let job_token = token.clone();
        let job = move || {
            if job_token.is_cancelled() {
                // The caller has its result. The code is not entered: its function `cancel` may have run already.
                let message = "the call was cancelled before it began".into();
                return Err(HandlerError::Plugin { kind: ErrorKind::Cancelled, message });
            }
            job(&*code)
        };
        let made = threads.ask(job, limit, &token);
        if let Err(Ended::TimeUp { is_running: true } | Ended::Cancelled { is_running: true }) = made {
            // The code ends the abandoned call. This waits for that, so that it does not end the caller's next call.
            let code = Arc::clone(&self.code);
            threads.ask(move || code.cancel(), CANCEL_TIMEOUT, &CancelToken::new()).ok();
        }
        made.map_err(|ended| self.calls.call_error(what, limit, ended))?
    }

    const fn call_timeout(&self) -> Duration {
        self.calls.options.call_timeout
    }
}

impl RendezvousHandler for ForeignHandler {
    fn backend(&self) -> &str {
        &self.backend
    }

    fn use_agent_store(&self) -> bool {
        self.use_agent_store
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        self.make("next_rendezvous", self.call_timeout(), |code| code.next_rendezvous())
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        self.make("is_closed", self.call_timeout(), |code| code.is_closed())
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        self.make("set_closed", self.call_timeout(), |code| code.set_closed())
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        let message = String::from(message);
        self.make("fail", self.call_timeout(), move |code| code.fail(&message))
    }

    fn reports_deaths(&self) -> bool {
        self.reports_deaths
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        self.make("num_nodes_waiting", self.call_timeout(), |code| code.num_nodes_waiting())
    }

    fn next_event(&self, timeout: Duration) -> Result<Option<RoundEvent>, HandlerError> {
        let limit = self.call_timeout().saturating_add(timeout);
        self.make("next_event", limit, move |code| code.next_event(timeout))
    }

    fn run_id(&self) -> &str {
        &self.run_id
    }

    fn shutdown(&self) -> bool {
        let is_abandoned = self.is_abandoned.swap(false, Ordering::AcqRel);
        let job = move |code: &dyn RendezvousHandler| {
            // The thread that `abandon` started may run later than this one.
            if is_abandoned {
                code.abandon();
            }
            Ok(code.shutdown())
        };
        self.make("shutdown", self.call_timeout(), job).unwrap_or(false)
    }

    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        let code = Arc::clone(&self.code);
        self.calls.threads.start(move || code.abandon());
    }

    fn cancel(&self) {
        self.canceller.cancel();
    }

    fn set_token(&self, token: &CancelToken) {
        self.canceller.set_parent(token);
    }
}

/// Handler of the URLs of a scheme whose code may block.
pub struct ForeignUrls {
    code: Arc<dyn UrlHandler>,
    calls: Calls,
}

impl fmt::Debug for ForeignUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.calls.fmt(f)
    }
}

impl ForeignUrls {
    /// Wraps the code for the URLs of `scheme`. A call may take the timeout of the caller's rendezvous plus
    /// [`ForeignOptions::call_timeout`].
    pub fn new(scheme: &str, code: Arc<dyn UrlHandler>, options: ForeignOptions) -> Self {
        Self { code, calls: Calls::new(format!("the handler of {scheme}://").into(), options) }
    }
}

impl UrlHandler for ForeignUrls {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let (code, canceller) = (Arc::clone(&self.code), options.canceller.clone());
        let limit = options.timeout.saturating_add(self.calls.options.call_timeout);
        let begun =
            self.calls.make("begin", limit, &canceller.token(), move || code.begin(url, options))??;
        let calls = Calls::new(self.calls.name.clone(), self.calls.options.clone());
        let (interrupt, code) = (begun.interrupt(), Arc::new(Mutex::new(begun)));
        Ok(Box::new(ForeignUrlRendezvous { code, interrupt, calls, canceller, limit }))
    }
}

struct ForeignUrlRendezvous {
    code: Arc<Mutex<Box<dyn UrlRendezvous>>>,
    interrupt: Option<Arc<dyn Fn() + Send + Sync>>,
    calls: Calls,
    canceller: Canceller,
    limit: Duration,
}

impl UrlRendezvous for ForeignUrlRendezvous {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        let code = Arc::clone(&self.code);
        let made = self.calls.make("next", self.limit, &self.canceller.token(), move || {
            // Waits for a call that was given up earlier and still runs.
            code.locked().next()
        });
        if let Err(HandlerError::Plugin { kind: ErrorKind::TimedOut | ErrorKind::Cancelled, .. }) = made
            && let Some(interrupt) = self.interrupt.clone()
        {
            self.calls.threads.start(move || interrupt());
        }
        made?
    }
}

#[cfg(test)]
mod tests;
