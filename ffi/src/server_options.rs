//! Options of a server.

use crate::prelude::*;
use crate::tls_options::{self, rdzv_tls_options};
use rendezvous_core::access::Network;
use rendezvous_core::driver::server::{Family, Listen, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::driver::token_file::ServerTokens;
use std::os::fd::BorrowedFd;

/// `rdzv_server_options.family`: accept only peers of the address's own family. The default.
pub const RDZV_FAMILY_AS_GIVEN: i32 = 0;
/// `rdzv_server_options.family`: let `::` accept IPv4 peers, too. No effect for other addresses.
pub const RDZV_FAMILY_DUAL_STACK: i32 = 1;

/// TCP keep-alive, by which a server or client detects an unresponsive host. In each field 0 is the
/// default. The two times of probes are rounded up to whole seconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_keep_alive {
    /// Idle time before the first probe, in milliseconds; at most 32,767 s. Default 2,000.
    pub idle_ms: i64,
    /// Time between probes, in milliseconds; at most 32,767 s. Default 1,000.
    pub interval_ms: i64,
    /// Number of unanswered probes that end the connection, at most 127. Default 3.
    pub probes: u32,
    /// Maximum time that sent bytes may remain unacknowledged, in milliseconds; at most 2,147,483,647. By
    /// default the connection ends after as long as the probes would take without any acknowledgement. If
    /// it is set, a peer that is alive but does not read counts as unresponsive, too, and for idle
    /// connections the kernel uses it in place of `probes`.
    pub unacknowledged_max_ms: i32,
}

/// Options of a server. Zero them and set `struct_size`: then each field has its default, which is 0 or
/// NULL in the struct. Set what differs. They, and what they point to, are copied by each call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_server_options {
    /// Set to `sizeof(rdzv_server_options)`.
    pub struct_size: u32,
    /// Address families that `::` accepts: `RDZV_FAMILY_AS_GIVEN` or `RDZV_FAMILY_DUAL_STACK`.
    pub family: i32,
    /// Address on which to listen: a host name or a literal address, bound exactly as given. For a name,
    /// its first address is used. Default `127.0.0.1`.
    pub host: *const c_char,
    /// Port on which to listen. By default the system chooses a free port.
    pub port: u16,
    /// Reserved; 0.
    pub reserved: u16,
    /// TCP socket that is already bound, listening or not, in place of `host` and `port`, which must not
    /// be set then. The call duplicates the descriptor; the caller keeps its own. 0 stands for none: a
    /// socket that has the number 0 must be duplicated by the caller.
    pub listen_fd: i32,
    /// Maximum number of simultaneous connections; further ones are closed. Default 1,048,576.
    pub connections_max: u64,
    /// Maximum total size of keys, values and queued items, in bytes. Each key is charged 128 bytes and
    /// each item 32 bytes more than its size. A native request that exceeds the
    /// limit fails with `RDZV_LIMIT_EXCEEDED`; one of c10d, which has no errors, ends its connection.
    /// Default 4 GiB.
    pub stored_bytes_max: u64,
    /// Maximum time from accept to a complete handshake, in milliseconds. Default 30,000.
    pub handshake_timeout_ms: i64,
    /// Maximum time without data within a request that has begun, in milliseconds. Default 60,000.
    pub frame_timeout_ms: i64,
    /// Detection of unresponsive clients.
    pub keep_alive: rdzv_keep_alive,
    /// TLS. If it is set, native clients must use it; c10d has none. NULL: none.
    pub tls: *const rdzv_tls_options,
    /// Path of a token file: clients must prove one of its tokens, each of which has rights (SECURITY.md).
    /// It is read again when it has changed. Default NULL: the server serves every client that reaches it.
    pub auth_token_file: *const c_char,
    /// Networks from which PyTorch's clients are served, which have no token and no TLS: CIDR blocks,
    /// addresses and `loopback`, separated by commas. Default NULL: all, or none with `auth_token_file` or
    /// `tls->ca_file`.
    pub c10d_from: *const c_char,
}
growing!(rdzv_server_options: 104);

/// Reads the options of a server; NULL stands for the defaults.
pub(crate) unsafe fn server_options(options: *const rdzv_server_options) -> Result<ServerOptions, Fault> {
    let mut read = ServerOptions::on("127.0.0.1", 0);
    // SAFETY: the caller of the C function promises that a non-NULL struct has `struct_size` bytes.
    let given = unsafe { sized::get_or_default(options, "options")? };
    // SAFETY: NULL or NUL-terminated, as the header requires.
    let host = unsafe { c_text(given.host, "options.host")? };
    let family = match given.family {
        RDZV_FAMILY_AS_GIVEN => Family::AsGiven,
        RDZV_FAMILY_DUAL_STACK => Family::DualStack,
        other => return Err(invalid(format!("`options.family` is {other}, not an RDZV_FAMILY_ number"))),
    };
    read.listen = match (host, given.listen_fd) {
        (Some(""), _) => return Err(invalid("`options.host` is empty")),
        (host, 0) => Listen::Address { host: host.unwrap_or("127.0.0.1").into(), port: given.port, family },
        (None, fd) if given.port == 0 => adopted(fd)?,
        _ => return Err(invalid("`options.listen_fd` is set, and `host` or `port` too")),
    };
    if given.connections_max != 0 {
        read.limits.connections_max = usize::try_from(given.connections_max).unwrap_or(usize::MAX);
    }
    if given.stored_bytes_max != 0 {
        read.limits.engine.stored_bytes_max = given.stored_bytes_max;
    }
    let limits = &mut read.limits;
    default_ms(&mut limits.handshake_timeout, given.handshake_timeout_ms, "options.handshake_timeout_ms")?;
    default_ms(&mut limits.frame_timeout, given.frame_timeout_ms, "options.frame_timeout_ms")?;
    read.keep_alive = Some(keep_alive(given.keep_alive)?);
    // SAFETY: passed on unchanged.
    read.tls = unsafe { tls_options::acceptor(given.tls)? };
    // SAFETY: NULL or NUL-terminated, as the header requires.
    if let Some(path) = unsafe { c_text(given.auth_token_file, "options.auth_token_file")? } {
        read.auth_tokens = Some(ServerTokens::open(path.as_ref()).map_err(invalid)?);
    }
    // SAFETY: as above.
    if let Some(networks) = unsafe { c_text(given.c10d_from, "options.c10d_from")? } {
        let parsed = Network::parse_list(networks);
        read.c10d_from = Some(parsed.map_err(|error| invalid(format!("`options.c10d_from`: {error}")))?);
    }
    Ok(read)
}

/// Duplicates the descriptor of a socket on which to listen.
fn adopted(fd: i32) -> Result<Listen, Fault> {
    if fd < 0 {
        return Err(invalid(format!("`options.listen_fd` is {fd}, which is not a descriptor")));
    }
    // SAFETY: duplicating a number that is not a descriptor fails with an error and has no other effect.
    let duplicate = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    duplicate.map(Listen::Adopted).map_err(|cause| {
        Fault::os(RDZV_INVALID_ARGUMENT, format!("descriptor {fd} cannot be adopted: {cause}"), &cause)
    })
}

/// Maximum that Linux accepts. Above it, starting the server would fail without naming the option.
const KEEP_ALIVE_MS_MAX: i64 = 32_767_000;
const KEEP_ALIVE_PROBES_MAX: u32 = 127;

pub(crate) fn keep_alive(given: rdzv_keep_alive) -> Result<KeepAlive, Fault> {
    let mut read = KeepAlive::default();
    let times = [
        (&mut read.idle, given.idle_ms, "options.keep_alive.idle_ms"),
        (&mut read.interval, given.interval_ms, "options.keep_alive.interval_ms"),
    ];
    for (time, millis, name) in times {
        if millis > KEEP_ALIVE_MS_MAX {
            return Err(invalid(format!("`{name}` is {millis} ms; at most {KEEP_ALIVE_MS_MAX}")));
        }
        default_ms(time, millis, name)?;
        *time = Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0));
    }
    if given.probes > KEEP_ALIVE_PROBES_MAX {
        let probes = given.probes;
        return Err(invalid(format!(
            "`options.keep_alive.probes` is {probes}; at most {KEEP_ALIVE_PROBES_MAX}"
        )));
    }
    if given.probes != 0 {
        read.probes = given.probes;
    }
    if given.unacknowledged_max_ms != 0 {
        let millis = given.unacknowledged_max_ms.into();
        read.unacknowledged_max = Some(positive_ms(millis, "options.keep_alive.unacknowledged_max_ms")?);
    }
    Ok(read)
}
