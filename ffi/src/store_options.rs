//! Options of a store client.

use crate::argument::{invalid, out_pointer, positive_ms, reference_mut, text, zero_or_more_ms};
use crate::cancel_token::{rdzv_cancel_token, token_of};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::server_options::keep_alive;
use crate::status::rdzv_status;
use rendezvous_core::driver::native_client::NativeClientOptions;
use rendezvous_core::driver::store_client::StoreOptions;
use std::time::Duration;

/// Options of a store client. Create them, set the endpoint and what differs from the defaults, connect
/// with them as often as needed, and free them. One thread at a time.
#[derive(Debug, Default)]
pub struct rdzv_store_options {
    endpoint: Option<(String, u16)>,
    pub(crate) options: StoreOptions,
    node: String,
    grace: Duration,
    heartbeat: Option<(Duration, u32)>,
}

impl rdzv_store_options {
    /// Returns the host and port of the store.
    ///
    /// # Errors
    ///
    /// The endpoint is not set.
    pub(crate) fn endpoint(&self) -> Result<(&str, u16), Fault> {
        let (host, port) = self.endpoint.as_ref().ok_or_else(|| invalid("the options have no endpoint"))?;
        Ok((host, *port))
    }

    /// Returns the options of a client over the native protocol.
    pub(crate) fn native(&self) -> NativeClientOptions {
        let defaults = NativeClientOptions::default();
        let unset = (defaults.heartbeat, defaults.heartbeats_missed_max);
        let (heartbeat, heartbeats_missed_max) = self.heartbeat.unwrap_or(unset);
        NativeClientOptions {
            node: self.node.clone(),
            grace: self.grace,
            heartbeat,
            heartbeats_missed_max,
            connect_timeout: self.options.connect_timeout,
            timeouts: self.options.timeouts(),
            keep_alive: self.options.keep_alive,
            token: self.options.token.clone(),
            ..defaults
        }
    }
}

/// Creates options with all defaults, but without an endpoint. On success the caller owns `*out` and frees
/// it with `rdzv_store_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_new(
    out: *mut *mut rdzv_store_options,
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
pub unsafe extern "C" fn rdzv_store_options_free(options: *mut rdzv_store_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Sets the address of the server: a host name or literal address (UTF-8, an IPv6 address without brackets)
/// and a port above 0. All addresses of a name are tried, IPv6 and IPv4 alternately.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_endpoint(
    options: *mut rdzv_store_options,
    host: *const u8,
    host_len: usize,
    port: u16,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
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

/// Sets the default timeout of operations, in milliseconds. Above 0; default 300,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_timeout_ms(
    options: *mut rdzv_store_options,
    timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.options.timeout = positive_ms(timeout_ms, "timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the timeout of the first connection of a handle, including all attempts, in milliseconds; 0 tries
/// each address once. Default 300,000, so that the server may start after its clients.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_connect_timeout_ms(
    options: *mut rdzv_store_options,
    connect_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.options.connect_timeout = zero_or_more_ms(connect_timeout_ms, "connect_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the time that a server may take to answer an operation that does not wait (timeout 0), in
/// milliseconds. Above 0; default 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_answer_timeout_ms(
    options: *mut rdzv_store_options,
    answer_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.options.answer_timeout = positive_ms(answer_timeout_ms, "answer_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the TCP keep-alive by which the client detects an unresponsive server host; parameters and defaults
/// are those of `rdzv_server_options_set_keep_alive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_keep_alive(
    options: *mut rdzv_store_options,
    idle_ms: i64,
    interval_ms: i64,
    probes: u32,
    unacknowledged_ms_max: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.options.keep_alive =
                Some(keep_alive(idle_ms, interval_ms, probes, unacknowledged_ms_max)?);
            Ok(())
        })
    }
}

/// Sets the name of the session of `rdzv_store_connect_native`, by which barriers and errors identify it to
/// others. UTF-8; empty by default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_node(
    options: *mut rdzv_store_options,
    node: *const u8,
    node_len: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.node = text(node, node_len, "node")?.into();
            Ok(())
        })
    }
}

/// Sets how long a session of `rdzv_store_connect_native` survives the loss of its connection, in
/// milliseconds. With 0, the default, the session ends with the connection. Otherwise the client
/// reconnects, and each operation takes effect once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_grace_ms(
    options: *mut rdzv_store_options,
    grace_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.grace = zero_or_more_ms(grace_ms, "grace_ms")?;
            Ok(())
        })
    }
}

/// Sets the heartbeat interval of a session of `rdzv_store_connect_native`, in milliseconds above 0
/// (default 5,000), and the number of missed heartbeats, at least 1, that end the session (default 3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_heartbeat(
    options: *mut rdzv_store_options,
    heartbeat_ms: i64,
    heartbeats_missed_max: u32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            if heartbeats_missed_max == 0 {
                return Err(invalid("`heartbeats_missed_max` is 0; it must be above 0"));
            }
            options.heartbeat = Some((positive_ms(heartbeat_ms, "heartbeat_ms")?, heartbeats_missed_max));
            Ok(())
        })
    }
}

/// Sets a token that ends connecting with these options. It does not end the operations of the connected
/// store: see `rdzv_store_with_cancel_token`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_options_set_cancel_token(
    options: *mut rdzv_store_options,
    token: *const rdzv_cancel_token,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.options.token = token_of(token)?;
            Ok(())
        })
    }
}
