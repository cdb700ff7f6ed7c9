//! Rendezvous by URL.

use crate::argument::{invalid, out_pointer, positive_ms, reference_mut, text};
use crate::context::{Home, home, rdzv_context};
use crate::fault::{Fault, rdzv_error};
use crate::guard::{self, Poison};
use crate::rendezvous_fault::handler_fault;
use crate::rendezvous_info::{info_handle, rdzv_rendezvous_info};
use crate::status::{RDZV_REENTRANT, rdzv_status};
use rendezvous_core::driver::canceller::Canceller;
use rendezvous_core::driver::rendezvous::{Meeting, UrlOptions, UrlRendezvous};
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use rendezvous_core::rendezvous::url::{RankEnvironment, WorldSize};
use std::fmt;
use std::sync::{Arc, Mutex, TryLockError};

/// What the caller of a rendezvous knows beside the URL. One thread at a time; free it when you like.
#[derive(Debug, Default)]
pub struct rdzv_rendezvous_url_options {
    options: UrlOptions,
}

/// A rendezvous by URL under way. One thread at a time, but for `rdzv_rendezvous_url_cancel`.
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

/// Options with every default: rank and world size are in the URL or in the variables, 30 minutes, and no
/// variables. On success `*out` is yours until `rdzv_rendezvous_url_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_new(
    out: *mut *mut rdzv_rendezvous_url_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            out_pointer(out, "out")?.put(Box::into_raw(Box::default()));
            Ok(())
        })
    }
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_free(options: *mut rdzv_rendezvous_url_options) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(options) };
}

/// This process's rank; -1: it is in the URL or in the variables. A URL must not name what is set here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_rank(
    options: *mut rdzv_rendezvous_url_options,
    rank: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            reference_mut(options, "options")?.options.rank = rank;
            Ok(())
        })
    }
}

/// How many ranks there are; -1: it is in the URL or in the variables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_world_size(
    options: *mut rdzv_rendezvous_url_options,
    world_size: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            options.options.world_size =
                if world_size == -1 { WorldSize::InUrl } else { WorldSize::Known(world_size) };
            Ok(())
        })
    }
}

/// Nobody knows how many ranks there are: the group is dynamic, and nobody is counted. The variables of
/// `env://` still may know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_dynamic(
    options: *mut rdzv_rendezvous_url_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            reference_mut(options, "options")?.options.world_size = WorldSize::Dynamic;
            Ok(())
        })
    }
}

/// How long the others may be waited for, and the store's operations may take that name no timeout, in
/// milliseconds. Above 0; default 1,800,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_timeout_ms(
    options: *mut rdzv_rendezvous_url_options,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            options.options.timeout = positive_ms(timeout_ms, "timeout_ms")?;
            Ok(())
        })
    }
}

/// Where the rank that hosts the store listens, when that is not what the URL says: a name or an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_options_set_listen_host(
    options: *mut rdzv_rendezvous_url_options,
    listen_host: *const u8,
    listen_host_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
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

/// The place of a variable that a rendezvous may depend on.
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

/// What a variable of the environment says: `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT` or
/// `TORCHELASTIC_USE_AGENT_STORE`. The library never reads the environment: pass those that you have.
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
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let environment = &mut reference_mut(options, "options")?.options.environment;
            let variable = variable(environment, text(name, name_len, "name")?)?;
            *variable = Some(text(value, value_len, "value")?.into());
            Ok(())
        })
    }
}

/// Begins a rendezvous by URL: `tcp://`, `env://`, or of another scheme that the context has. It meets
/// nobody yet: that is `rdzv_rendezvous_url_next`. `context` may be NULL for a fresh one, `options` NULL for
/// the defaults. On success `*out` is yours until `rdzv_rendezvous_url_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (it is no URL, or it and the options both name a rank or a world size),
/// `RDZV_NOT_REGISTERED` (nobody handles the scheme); of a scheme in code of yours what its `begin` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_begin(
    context: *const rdzv_context,
    url: *const u8,
    url_len: usize,
    options: *const rdzv_rendezvous_url_options,
    out: *mut *mut rdzv_rendezvous_url,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
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

/// Frees a rendezvous. What it gave lives on. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_free(rendezvous: *mut rdzv_rendezvous_url) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(rendezvous) };
}

/// Meets the others. The built-in schemes do so once: a second time is `RDZV_UNSUPPORTED`. On success `*out`
/// is yours until `rdzv_rendezvous_info_free`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (what the URL or the variables lack, or makes no sense),
/// `RDZV_CANCELLED`, `RDZV_REENTRANT` (another call is under way on the handle); on the rank that hosts the
/// store those of `rdzv_server_start`; those of `rdzv_store_connect`, and `RDZV_TIMED_OUT` when not all
/// ranks came; of a scheme in code of yours what its `next` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_next(
    rendezvous: *mut rdzv_rendezvous_url,
    out: *mut *mut rdzv_rendezvous_info,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call_on(rendezvous.as_ref().map(|of| &of.poison), error, || {
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
            let Meeting { store, rank, world_size } =
                in_flight.next().map_err(|error| handler_fault(&error))?;
            let bootstrap_store_info = RendezvousStoreInfo { master_addr: String::new(), master_port: 0 };
            let info =
                RendezvousInfo { store, rank, world_size, bootstrap_store_info, round: None, position: None };
            out.put(info_handle(info, Arc::clone(of.home.shared())));
            Ok(())
        })
    }
}

/// Ends the `rdzv_rendezvous_url_next` that is under way in another thread with `RDZV_CANCELLED`. Later
/// calls are as ever. Any thread. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_url_cancel(rendezvous: *const rdzv_rendezvous_url) {
    // SAFETY: as the header wants it.
    unsafe { guard::read(rendezvous, (), |of| of.canceller.cancel()) };
}
