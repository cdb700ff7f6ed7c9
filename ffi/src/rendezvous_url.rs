//! Rendezvous by URL.

use crate::prelude::*;
use crate::rendezvous_info::{rdzv_rendezvous, rendezvous_handle};
use rendezvous_core::driver::cancel::Canceller;
use rendezvous_core::driver::rendezvous::{UrlGroup, UrlOptions, UrlRendezvous};
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use rendezvous_core::rendezvous::url::{RankEnvironment, WorldSize};
use std::fmt;
use std::sync::{Mutex, TryLockError};

/// Options of a rendezvous by URL. Strings are NUL-terminated UTF-8. 0 and NULL stand for the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_url_options {
    /// Set to `sizeof(rdzv_rendezvous_url_options)`.
    pub struct_size: u32,
    /// 1 if `rank` is set, else 0: the rank is in the URL or in the variables. A rank that is set here must
    /// not be in the URL, too.
    pub has_rank: u32,
    /// Rank of this process if `has_rank` is 1.
    pub rank: i64,
    /// Number of ranks. 0: it is in the URL or in the variables. -1: it is unknown, the group is dynamic, and
    /// the rendezvous does not wait for a number of ranks; the variables of `env://` may still set it.
    pub world_size: i64,
    /// Time to wait for the other ranks, in milliseconds, and default timeout of the store's operations. 0:
    /// 1,800,000.
    pub timeout_ms: i64,
    /// Name or address on which the rank that hosts the store listens. NULL: that of the URL.
    pub listen_host: *const c_char,
    /// Environment variables that are set: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` and
    /// `TORCHELASTIC_USE_AGENT_STORE`. The library never reads the environment, and refuses other names.
    pub variables: *const rdzv_pair,
    /// Number of `variables`.
    pub variable_count: usize,
}
growing!(rdzv_rendezvous_url_options: 56);

/// Reads options from C; NULL stands for the defaults.
unsafe fn parsed(options: *const rdzv_rendezvous_url_options) -> Result<UrlOptions, Fault> {
    let mut parsed = UrlOptions::default();
    // SAFETY: valid, as the header requires.
    let (options, listen_host, variables) = unsafe {
        let options = sized::get_or_default(options, "options")?;
        let variables = pairs(options.variables, options.variable_count, "options.variables")?;
        (options, c_text(options.listen_host, "options.listen_host")?, variables)
    };
    if options.has_rank != 0 {
        parsed.rank = options.rank;
    }
    parsed.world_size = match options.world_size {
        0 => WorldSize::InUrl,
        -1 => WorldSize::Dynamic,
        world_size => WorldSize::Known(world_size),
    };
    if options.timeout_ms != 0 {
        parsed.timeout = positive_ms(options.timeout_ms, "options.timeout_ms")?;
    }
    if listen_host.is_some_and(str::is_empty) {
        return Err(invalid("`options.listen_host` is empty"));
    }
    parsed.listen_host = listen_host.map(String::from);
    for (name, value) in variables {
        *variable(&mut parsed.environment, name)? = Some(value.into());
    }
    Ok(parsed)
}

/// Rendezvous by URL. One thread at a time, except for `rdzv_rendezvous_url_cancel`.
pub struct rdzv_rendezvous_url {
    state: HandleState,
    rendezvous: Mutex<Box<dyn UrlRendezvous>>,
    canceller: Canceller,
    home: Arc<Home>,
}
guard::handle!(rdzv_rendezvous_url, home);

impl fmt::Debug for rdzv_rendezvous_url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdzv_rendezvous_url")
    }
}

/// Returns the slot of a variable that a rendezvous may depend on.
pub(crate) fn variable<'a>(
    environment: &'a mut RankEnvironment,
    name: &str,
) -> Result<&'a mut Option<String>, Fault> {
    Ok(match name {
        "RANK" => &mut environment.rank,
        "WORLD_SIZE" => &mut environment.world_size,
        "MASTER_ADDR" => &mut environment.master_addr,
        "MASTER_PORT" => &mut environment.master_port,
        "TORCHELASTIC_USE_AGENT_STORE" => &mut environment.use_agent_store,
        other => return Err(invalid(format!("no rendezvous depends on the variable {other}"))),
    })
}

/// Creates a rendezvous by URL: `tcp://`, `env://` or another scheme of the context. This does not wait for
/// other ranks; `rdzv_rendezvous_url_next` does. `context` may be NULL, which creates a new one; `options`
/// may be NULL for the defaults. On success the caller owns `*out` and frees it with
/// `rdzv_rendezvous_url_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (the text is not a URL, or both it and the options set a rank or a world
/// size), `RDZV_NOT_REGISTERED` (the scheme has no handler); for a scheme in user code also the status that
/// its `create` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_new(
    context: *const rdzv_context,
    url: *const u8,
    url_len: usize,
    options: *const rdzv_rendezvous_url_options,
    out: *mut *mut rdzv_rendezvous_url,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let home = home(context)?;
        let url = text(url, url_len, "url")?;
        let canceller = Canceller::default();
        let options = UrlOptions { canceller: canceller.clone(), ..parsed(options)? };
        let rendezvous = Mutex::new(home.rendezvous().rendezvous(url, options)?);
        let state = HandleState::default();
        Ok(boxed(rdzv_rendezvous_url { state, rendezvous, canceller, home }))
    })
}

/// Frees a rendezvous. Its results remain valid. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_free(rendezvous: *mut rdzv_rendezvous_url) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_handle(rendezvous, "rdzv_rendezvous_url_free") };
}

/// Waits for the other ranks. The built-in schemes support one call; a second one returns
/// `RDZV_UNSUPPORTED`. On success the caller owns `*out` and frees it with `rdzv_rendezvous_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (a value is missing in the URL and the variables, or is not valid),
/// `RDZV_CANCELLED`, `RDZV_REENTRANT` (another call is in progress on the handle); on the rank that hosts
/// the store also those of `rdzv_server_new`; those of `rdzv_store_new`, and `RDZV_TIMED_OUT` if some
/// ranks did not arrive; for a scheme in user code also the status that its `next` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_next(
    rendezvous: *mut rdzv_rendezvous_url,
    out: *mut *mut rdzv_rendezvous,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, rendezvous, out, |of| {
        let mut in_flight = match of.rendezvous.try_lock() {
            Ok(in_flight) => in_flight,
            Err(TryLockError::Poisoned(in_flight)) => in_flight.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Fault::new(RDZV_REENTRANT, "another call is under way on this rendezvous"));
            }
        };
        let UrlGroup { store, rank, world_size } = in_flight.next()?;
        let bootstrap_store_info = RendezvousStoreInfo { master_addr: String::new(), master_port: 0 };
        let info =
            RendezvousInfo { store, rank, world_size, bootstrap_store_info, round: None, position: None };
        Ok(rendezvous_handle(info, Arc::clone(of.home.shared())))
    })
}

/// Cancels the `rdzv_rendezvous_url_next` in progress on another thread, which returns `RDZV_CANCELLED`.
/// Later calls are not affected. Any thread may call this. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_cancel(rendezvous: *const rdzv_rendezvous_url) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::notify(rendezvous, |of| of.canceller.cancel()) };
}
