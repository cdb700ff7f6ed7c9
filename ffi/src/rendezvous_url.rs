//! Rendezvous by URL.

use crate::argument::{invalid, out_pointer, positive_ms, reference_mut, text};
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::rendezvous_fault::handler_fault;
use crate::rendezvous_info::{info_handle, rdzv_rendezvous_info};
use crate::status::{RDZV_REENTRANT, rdzv_status};
use rendezvous_core::driver::cancel::Canceller;
use rendezvous_core::driver::rendezvous::{UrlGroup, UrlOptions, UrlRendezvous};
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use rendezvous_core::rendezvous::url::{RankEnvironment, WorldSize};
use std::fmt;
use std::sync::{Arc, Mutex, TryLockError};

/// Options of a rendezvous by URL. One thread at a time; they may be freed at any time.
#[derive(Debug, Default)]
pub struct rdzv_rendezvous_url_options {
    options: UrlOptions,
}

/// Rendezvous by URL. One thread at a time, except for `rdzv_rendezvous_url_cancel`.
pub struct rdzv_rendezvous_url {
    poison: Poison,
    rendezvous: Mutex<Box<dyn UrlRendezvous>>,
    canceller: Canceller,
    home: Arc<Home>,
}

impl fmt::Debug for rdzv_rendezvous_url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("rdzv_rendezvous_url")
    }
}

/// Creates options with all defaults: rank and world size are taken from the URL or the variables, the
/// timeout is 30 minutes, and no variables are set. On success the caller owns `*out` and frees it with
/// `rdzv_rendezvous_url_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_new(
    out: *mut *mut rdzv_rendezvous_url_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            out_pointer(out, "out")?.put(Box::into_raw(Box::default()));
            Ok(())
        })
    }
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_free(options: *mut rdzv_rendezvous_url_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Sets this process's rank; -1: it is in the URL or in the variables. A rank that is set here must not be
/// in the URL, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_rank(
    options: *mut rdzv_rendezvous_url_options,
    rank: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.options.rank = rank;
            Ok(())
        })
    }
}

/// Sets the number of ranks; -1: it is in the URL or in the variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_world_size(
    options: *mut rdzv_rendezvous_url_options,
    world_size: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.options.world_size =
                if world_size == -1 { WorldSize::InUrl } else { WorldSize::Known(world_size) };
            Ok(())
        })
    }
}

/// Declares the number of ranks unknown: the group is dynamic, and the rendezvous does not wait for a
/// number of ranks. The variables of `env://` may still set it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_dynamic(
    options: *mut rdzv_rendezvous_url_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.options.world_size = WorldSize::Dynamic;
            Ok(())
        })
    }
}

/// Sets the time to wait for the other ranks, in milliseconds, above 0; default 1,800,000. It is also the
/// default timeout of the store's operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_timeout_ms(
    options: *mut rdzv_rendezvous_url_options,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.options.timeout = positive_ms(timeout_ms, "timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the name or address on which the rank that hosts the store listens, if it differs from the URL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_listen_host(
    options: *mut rdzv_rendezvous_url_options,
    listen_host: *const u8,
    listen_host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            let listen_host = text(listen_host, listen_host_len, "listen_host")?;
            if listen_host.is_empty() {
                return Err(invalid("`listen_host` is empty"));
            }
            options.options.listen_host = Some(listen_host.into());
            Ok(())
        })
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

/// Sets the value of an environment variable: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` or
/// `TORCHELASTIC_USE_AGENT_STORE`. The library never reads the environment; pass the variables that are
/// set.
///
/// Errors: `RDZV_INVALID_ARGUMENT` for any other name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_variable(
    options: *mut rdzv_rendezvous_url_options,
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let environment = &mut reference_mut(options, "options")?.options.environment;
            let variable = variable(environment, text(name, name_len, "name")?)?;
            *variable = Some(text(value, value_len, "value")?.into());
            Ok(())
        })
    }
}

/// Begins a rendezvous by URL: `tcp://`, `env://` or another scheme of the context. This does not wait for
/// other ranks; `rdzv_rendezvous_url_next` does. `context` may be NULL, which creates a new one; `options`
/// may be NULL for the defaults. On success the caller owns `*out` and frees it with
/// `rdzv_rendezvous_url_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (the text is not a URL, or both it and the options set a rank or a world
/// size), `RDZV_NOT_REGISTERED` (the scheme has no handler); for a scheme in user code also the status that
/// its `begin` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_begin(
    context: *const rdzv_context,
    url: *const u8,
    url_len: usize,
    options: *const rdzv_rendezvous_url_options,
    out: *mut *mut rdzv_rendezvous_url,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused where it must be.
    unsafe {
        guard::call(error, &mut || {
            let out = out_pointer(out, "out")?;
            let home = home(context)?;
            let url = text(url, url_len, "url")?;
            let canceller = Canceller::default();
            let options = options.as_ref().map(|options| options.options.clone()).unwrap_or_default();
            let options = UrlOptions { canceller: canceller.clone(), ..options };
            let begun = home.rendezvous().rendezvous(url, options);
            let rendezvous = Mutex::new(begun.map_err(|error| handler_fault(&error))?);
            let poison = Poison::default();
            out.put(Box::into_raw(Box::new(rdzv_rendezvous_url { poison, rendezvous, canceller, home })));
            Ok(())
        })
    }
}

/// Frees a rendezvous. Its results remain valid. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_free(rendezvous: *mut rdzv_rendezvous_url) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(rendezvous) };
}

/// Waits for the other ranks. The built-in schemes support one call; a second one returns
/// `RDZV_UNSUPPORTED`. On success the caller owns `*out` and frees it with `rdzv_rendezvous_info_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (a value is missing in the URL and the variables, or is not valid),
/// `RDZV_CANCELLED`, `RDZV_REENTRANT` (another call is in progress on the handle); on the rank that hosts
/// the store also those of `rdzv_server_start`; those of `rdzv_store_connect`, and `RDZV_TIMED_OUT` if some
/// ranks did not arrive; for a scheme in user code also the status that its `next` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_next(
    rendezvous: *mut rdzv_rendezvous_url,
    out: *mut *mut rdzv_rendezvous_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call_on(rendezvous.as_ref().map(|of| &of.poison), error, &mut || {
            let of = crate::argument::reference(rendezvous, "rendezvous")?;
            of.home.refuse_sink()?;
            let out = out_pointer(out, "out")?;
            let mut in_flight = match of.rendezvous.try_lock() {
                Ok(in_flight) => in_flight,
                Err(TryLockError::Poisoned(in_flight)) => in_flight.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    return Err(Fault::new(RDZV_REENTRANT, "another call is under way on this rendezvous"));
                }
            };
            let UrlGroup { store, rank, world_size } =
                in_flight.next().map_err(|error| handler_fault(&error))?;
            let bootstrap_store_info = RendezvousStoreInfo { master_addr: String::new(), master_port: 0 };
            let info =
                RendezvousInfo { store, rank, world_size, bootstrap_store_info, round: None, position: None };
            out.put(info_handle(info, Arc::clone(of.home.shared())));
            Ok(())
        })
    }
}

/// Cancels the `rdzv_rendezvous_url_next` in progress on another thread, which returns `RDZV_CANCELLED`.
/// Later calls are not affected. Any thread may call this. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_cancel(rendezvous: *const rdzv_rendezvous_url) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(rendezvous, (), |of| of.canceller.cancel()) };
}
