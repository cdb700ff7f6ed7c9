//! How a client is set up.

use crate::argument::{invalid, place, positive_ms, reference_mut, text};
use crate::error::rdzv_error;
use crate::guard;
use crate::server_options::keep_alive;
use crate::status::rdzv_status;
use rendezvous_core::driver::store_client::StoreOptions;
use std::time::Duration;

/// How a store client is set up. Make one, set the endpoint and what differs from the defaults, connect
/// with it as often as you like, free it. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_store_options {
    pub(crate) endpoint: Option<(String, u16)>,
    pub(crate) options: StoreOptions,
}

/// Options with every default, but no endpoint yet. On success `*out` is yours until
/// `rdzv_store_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_new(
    out: *mut *mut rdzv_store_options,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            place(out, "out")?.put(Box::into_raw(Box::default()));
            Ok(())
        })
    }
}

/// Frees options. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_free(options: *mut rdzv_store_options) {
    // SAFETY: as the header wants it.
    unsafe { guard::free(options) };
}

/// The server: a host name or literal address (UTF-8, an IPv6 address without brackets) and a port above 0.
/// Every address of a name is tried, IPv6 and IPv4 in turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_endpoint(
    options: *mut rdzv_store_options,
    host: *const u8,
    host_len: usize,
    port: u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            let host = text(host, host_len, "host")?;
            if host.is_empty() || port == 0 {
                return Err(invalid(format!("the endpoint \"{host}\" port {port} has no host or no port")));
            }
            options.endpoint = Some((host.into(), port));
            Ok(())
        })
    }
}

/// How long an operation may take that names no timeout of its own, in milliseconds. Above 0; default
/// 300,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_timeout_ms(
    options: *mut rdzv_store_options,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            reference_mut(options, "options")?.options.timeout = positive_ms(timeout_ms, "timeout_ms")?;
            Ok(())
        })
    }
}

/// How long the first connection of a handle may take, with all its attempts, in milliseconds; 0 tries each
/// address once. Default 300,000: the server may come up after its clients.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_connect_timeout_ms(
    options: *mut rdzv_store_options,
    connect_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            options.options.connect_timeout = match connect_timeout_ms {
                0 => Duration::ZERO,
                millis => positive_ms(millis, "connect_timeout_ms")?,
            };
            Ok(())
        })
    }
}

/// How long a server may take to answer an operation that does not wait (timeout 0), in milliseconds. Above
/// 0; default 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_answer_timeout_ms(
    options: *mut rdzv_store_options,
    answer_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            options.options.answer_timeout = positive_ms(answer_timeout_ms, "answer_timeout_ms")?;
            Ok(())
        })
    }
}

/// How a server whose host fell silent is noticed; numbers and defaults as for
/// `rdzv_server_options_set_keep_alive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_keep_alive(
    options: *mut rdzv_store_options,
    idle_ms: i64,
    interval_ms: i64,
    probes: u32,
    unacknowledged_ms_max: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let options = reference_mut(options, "options")?;
            options.options.keep_alive =
                Some(keep_alive(idle_ms, interval_ms, probes, unacknowledged_ms_max)?);
            Ok(())
        })
    }
}
