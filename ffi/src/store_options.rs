//! Options of a store client.

use crate::cancel_token::rdzv_cancel_token;
use crate::prelude::*;
use crate::server_options::{keep_alive, rdzv_keep_alive};
use crate::tls_options::{self, rdzv_tls_options};
use rendezvous_core::driver::native_client::NativeClientOptions;
use rendezvous_core::driver::store_client::StoreOptions;
use rendezvous_core::driver::token_file::ClientToken;

/// Options of a store client. Zero them, set `struct_size`, `host` and `port`: then each other field has
/// its default, which is 0 or NULL in the struct. They, and what they point to, are copied by each call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_store_options {
    /// Set to `sizeof(rdzv_store_options)`.
    pub struct_size: u32,
    /// Port of the server, above 0.
    pub port: u16,
    /// Reserved; 0.
    pub reserved: u16,
    /// Host name or literal address of the server (an IPv6 address without brackets). All addresses of a
    /// name are tried, IPv6 and IPv4 alternately. There is no default.
    pub host: *const c_char,
    /// Default timeout of operations, in milliseconds. Default 300,000.
    pub timeout_ms: i64,
    /// Timeout of the first connection of a handle, including all attempts, in milliseconds; -1 tries
    /// each address once. Default 300,000, so that the server may start after its clients.
    pub connect_timeout_ms: i64,
    /// Time that a server may take to respond to an operation that does not wait (timeout 0), in
    /// milliseconds. Default 30,000.
    pub response_timeout_ms: i64,
    /// Detection of an unresponsive server host.
    pub keep_alive: rdzv_keep_alive,
    /// Token that ends connecting with these options; NULL for none. It does not end the operations of
    /// the connected store: see `rdzv_store_new_cancellable`.
    pub cancel_token: *const rdzv_cancel_token,
    /// Native stores only: name of the session, by which barriers and errors identify it to others.
    /// Default empty.
    pub node: *const c_char,
    /// Native stores only: how long a session survives the loss of its connection, in milliseconds. By
    /// default, 0, it ends with the connection. Otherwise the client reconnects, and each operation takes
    /// effect once.
    pub grace_ms: i64,
    /// Native stores only: heartbeat interval of the session, in milliseconds. Default 5,000.
    pub heartbeat_ms: i64,
    /// Native stores only: number of missed heartbeats that end the session. Default 3.
    pub heartbeats_missed_max: u32,
    /// Reserved; 0.
    pub reserved_too: u32,
    /// Native stores only: TLS; NULL: none.
    pub tls: *const rdzv_tls_options,
    /// Native stores only: path of a token file. The client proves the first token of the file, the server
    /// must prove the same one, and no operation is sent before both have. The token itself is never sent.
    /// The file is read by this call, and again for a connection if it has changed. Default NULL: no
    /// authentication.
    pub auth_token_file: *const c_char,
}
growing!(rdzv_store_options: 120);

/// Reads the host and the port of a store, and the options of its client.
pub(crate) unsafe fn store_options<'a>(
    options: *const rdzv_store_options,
) -> Result<(&'a str, u16, StoreOptions), Fault> {
    // SAFETY: passed on unchanged.
    let (given, host, read) = unsafe { read(options) }?;
    if !given.tls.is_null() {
        return Err(invalid("`options.tls` is for native stores: the c10d protocol has no TLS"));
    }
    if !given.auth_token_file.is_null() {
        return Err(invalid(
            "`options.auth_token_file` is for native stores: use rdzv_store_new_native. The c10d protocol cannot show \
             a token",
        ));
    }
    Ok((host, given.port, read))
}

/// Does the same for a client over the native protocol.
pub(crate) unsafe fn native_options<'a>(
    options: *const rdzv_store_options,
) -> Result<(&'a str, u16, NativeClientOptions), Fault> {
    // SAFETY: passed on unchanged.
    let (given, host, common) = unsafe { read(options) }?;
    let mut read = NativeClientOptions {
        connect_timeout: common.connect_timeout,
        timeouts: common.timeouts(),
        keep_alive: common.keep_alive,
        token: common.token,
        ..NativeClientOptions::default()
    };
    // SAFETY: NULL or NUL-terminated, as the header requires.
    if let Some(node) = unsafe { c_text(given.node, "options.node")? } {
        read.node = node.into();
    }
    // SAFETY: NULL or NUL-terminated, as the header requires.
    if let Some(path) = unsafe { c_text(given.auth_token_file, "options.auth_token_file")? } {
        read.auth_token = Some(ClientToken::open(path.as_ref()).map_err(invalid)?);
    }
    default_ms(&mut read.grace, given.grace_ms, "options.grace_ms")?;
    default_ms(&mut read.heartbeat, given.heartbeat_ms, "options.heartbeat_ms")?;
    // SAFETY: passed on unchanged.
    read.tls = unsafe { tls_options::connector(given.tls)? };
    if given.heartbeats_missed_max != 0 {
        read.heartbeats_missed_max = given.heartbeats_missed_max;
    }
    Ok((host, given.port, read))
}

unsafe fn read<'a>(
    options: *const rdzv_store_options,
) -> Result<(rdzv_store_options, &'a str, StoreOptions), Fault> {
    // SAFETY: the caller of the C function promises that a non-NULL struct has `struct_size` bytes.
    let given = unsafe { sized::get(options, "options")? };
    // SAFETY: NULL or NUL-terminated, as the header requires.
    let host = unsafe { c_text(given.host, "options.host")? }.unwrap_or_default();
    if host.is_empty() || given.port == 0 {
        return Err(invalid(format!("`options` has no endpoint: host \"{host}\", port {}", given.port)));
    }
    let mut read = StoreOptions::default();
    default_ms(&mut read.timeout, given.timeout_ms, "options.timeout_ms")?;
    match given.connect_timeout_ms {
        -1 => read.connect_timeout = Duration::ZERO,
        millis => default_ms(&mut read.connect_timeout, millis, "options.connect_timeout_ms")?,
    }
    default_ms(&mut read.response_timeout, given.response_timeout_ms, "options.response_timeout_ms")?;
    read.keep_alive = Some(keep_alive(given.keep_alive)?);
    // SAFETY: NULL or a live token, as the header requires.
    if let Some(token) = unsafe { given.cancel_token.as_ref() } {
        read.token = token.0.clone();
    }
    Ok((given, host, read))
}
