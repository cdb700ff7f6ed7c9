//! Options of a server.

use crate::argument::{invalid, out_pointer, positive_ms, reference_mut, text};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::rdzv_status;
use rendezvous_core::driver::server::{Family, Listen, ServerOptions};
use rendezvous_core::driver::socket::KeepAlive;
use rendezvous_core::limits::ServerLimits;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// For `rdzv_server_options_set_family`: accept only peers of the address's own family.
pub const RDZV_FAMILY_AS_GIVEN: i32 = 0;
/// For `rdzv_server_options_set_family`: let `::` accept IPv4 peers, too. No effect for other addresses.
pub const RDZV_FAMILY_DUAL_STACK: i32 = 1;

/// Options of a server. Create them, set what differs from the defaults, start servers with them and free
/// them. One thread at a time.
#[derive(Debug)]
pub struct rdzv_server_options {
    host: String,
    port: u16,
    family: Family,
    adopted: Option<OwnedFd>,
    limits: ServerLimits,
    keep_alive: KeepAlive,
}

impl Default for rdzv_server_options {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 0,
            family: Family::AsGiven,
            adopted: None,
            limits: ServerLimits::default(),
            keep_alive: KeepAlive::default(),
        }
    }
}

impl rdzv_server_options {
    pub(crate) fn project(&self) -> std::io::Result<ServerOptions> {
        let listen = match &self.adopted {
            Some(fd) => Listen::Adopted(fd.try_clone()?),
            None => Listen::Address { host: self.host.clone(), port: self.port, family: self.family },
        };
        Ok(ServerOptions {
            listen,
            limits: self.limits,
            keep_alive: Some(self.keep_alive),
            observer: Box::new(|_| ()),
        })
    }
}

/// Creates options with all defaults: 127.0.0.1 and a free port. On success the caller owns `*out` and
/// frees it with `rdzv_server_options_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_new(
    out: *mut *mut rdzv_server_options,
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
pub unsafe extern "C" fn rdzv_server_options_free(options: *mut rdzv_server_options) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(options) };
}

/// Sets the address on which to listen, in place of a descriptor that was set before. `host` is a host name
/// or a literal address (UTF-8), bound exactly as given; default `127.0.0.1`. For a name, its first address
/// is used. With port 0, the default, the system chooses a free port.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_bind(
    options: *mut rdzv_server_options,
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
            if host.is_empty() {
                return Err(invalid("`host` is empty"));
            }
            options.host = host.into();
            options.port = port;
            options.adopted = None;
            Ok(())
        })
    }
}

/// Sets the address families that `::` accepts: `RDZV_FAMILY_AS_GIVEN` (default) or
/// `RDZV_FAMILY_DUAL_STACK`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_family(
    options: *mut rdzv_server_options,
    family: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            reference_mut(options, "options")?.family = match family {
                RDZV_FAMILY_AS_GIVEN => Family::AsGiven,
                RDZV_FAMILY_DUAL_STACK => Family::DualStack,
                other => return Err(invalid(format!("`family` is {other}, not an RDZV_FAMILY_ number"))),
            };
            Ok(())
        })
    }
}

/// Adopts a TCP socket that is already bound, listening or not, in place of an address. The call duplicates
/// the descriptor; the caller keeps its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_listen_fd(
    options: *mut rdzv_server_options,
    fd: i32,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            if fd < 0 {
                return Err(invalid(format!("`fd` is {fd}, which is not a descriptor")));
            }
            // SAFETY: duplicating a number that is not a descriptor fails with an error and has no other
            // effect.
            let duplicate = BorrowedFd::borrow_raw(fd).try_clone_to_owned();
            options.adopted = Some(duplicate.map_err(|cause| {
                invalid(format!("descriptor {fd} cannot be adopted: {cause}"))
                    .with(|details| details.os_error = cause.raw_os_error().unwrap_or(0))
            })?);
            Ok(())
        })
    }
}

/// Sets the maximum number of simultaneous connections; further ones are closed. Above 0; default
/// 1,048,576.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_connections_max(
    options: *mut rdzv_server_options,
    connections_max: usize,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            if connections_max == 0 {
                return Err(invalid("`connections_max` is 0"));
            }
            options.limits.connections_max = connections_max;
            Ok(())
        })
    }
}

/// Sets the maximum total size of keys, values and queued items, in bytes. Each key is charged 128 bytes
/// and each item 32 bytes more than its size. A request that exceeds the limit ends its connection. Above
/// 0; default 4 GiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_stored_bytes_max(
    options: *mut rdzv_server_options,
    stored_bytes_max: u64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            if stored_bytes_max == 0 {
                return Err(invalid("`stored_bytes_max` is 0"));
            }
            options.limits.engine.stored_bytes_max = stored_bytes_max;
            Ok(())
        })
    }
}

/// Sets the maximum time from accept to a complete handshake, in milliseconds. Above 0; default 30,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_handshake_timeout_ms(
    options: *mut rdzv_server_options,
    handshake_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.limits.handshake_timeout = positive_ms(handshake_timeout_ms, "handshake_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the maximum time without data within a request that has begun, in milliseconds. Above 0; default
/// 60,000.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_frame_timeout_ms(
    options: *mut rdzv_server_options,
    frame_timeout_ms: i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let options = reference_mut(options, "options")?;
            options.limits.frame_timeout = positive_ms(frame_timeout_ms, "frame_timeout_ms")?;
            Ok(())
        })
    }
}

/// Sets the TCP keep-alive by which the server detects an unresponsive host: the idle time before the first
/// probe and between probes, in milliseconds, the number of unanswered probes, and the time that sent bytes
/// may remain unacknowledged, in milliseconds. The first two are rounded up to whole seconds, at most
/// 32,767 s; `probes` is 1 to 127; the last is at most 2,147,483,647, and 0 leaves it to the system.
/// Defaults: 2000, 1000, 3, 0. If the last one is set, a peer that is alive but does not read counts as
/// unresponsive, too, and for idle connections the kernel uses it in place of the number of probes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_server_options_set_keep_alive(
    options: *mut rdzv_server_options,
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
            options.keep_alive = keep_alive(idle_ms, interval_ms, probes, unacknowledged_ms_max)?;
            Ok(())
        })
    }
}

pub(crate) fn keep_alive(
    idle_ms: i64,
    interval_ms: i64,
    probes: u32,
    unacknowledged_ms_max: i64,
) -> Result<KeepAlive, Fault> {
    if !(1..=KEEP_ALIVE_PROBES_MAX).contains(&probes) {
        return Err(invalid(format!("`probes` is {probes}; it must be from 1 to {KEEP_ALIVE_PROBES_MAX}")));
    }
    Ok(KeepAlive {
        idle: whole_seconds(idle_ms, "idle_ms")?,
        interval: whole_seconds(interval_ms, "interval_ms")?,
        probes,
        unacknowledged_max: match unacknowledged_ms_max {
            0 => None,
            set => Some(bounded_ms(set, i32::MAX.into(), "unacknowledged_ms_max")?),
        },
    })
}

/// Maximum that Linux accepts. Above it, starting the server would fail without naming the option.
const KEEP_ALIVE_SECONDS_MAX: i64 = 32_767;
const KEEP_ALIVE_PROBES_MAX: u32 = 127;

fn whole_seconds(millis: i64, name: &str) -> Result<Duration, Fault> {
    let span = bounded_ms(millis, KEEP_ALIVE_SECONDS_MAX * 1000, name)?;
    Ok(Duration::from_secs(span.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)))
}

fn bounded_ms(millis: i64, millis_max: i64, name: &str) -> Result<Duration, Fault> {
    match positive_ms(millis, name) {
        Ok(_) if millis > millis_max => {
            Err(invalid(format!("`{name}` is {millis} ms; it must be at most {millis_max}")))
        }
        checked => checked,
    }
}
