//! Stores over the native protocol.

use crate::prelude::*;
use crate::store::{call_fault, handle, of_keys, rdzv_store};
use crate::store_options::{native_options, rdzv_store_options};
use rendezvous_core::driver::native_client::{BarrierResult, NativeClient, NativeError};
use rendezvous_core::driver::store::Store;
use rendezvous_core::error::{Operation, Span};
use rendezvous_core::store::op::Key;

#[cold]
#[inline(never)]
pub(crate) fn native_fault(error: &NativeError) -> Fault {
    call_fault(error.call()).with(|details| details.revision = error.oldest_revision().unwrap_or(0))
}

faults! { NativeError => native_fault, }

/// Returns the native client of a store.
///
/// # Errors
///
/// `RDZV_UNSUPPORTED` if the store is not a native one.
pub(crate) fn native(store: &rdzv_store, operation: Operation) -> Result<NativeClient, Fault> {
    store.shared.refuse_sink()?;
    Ok(store.store.native(operation)?)
}

/// Connects to a librendezvous server over the native protocol and retries until the connect timeout of
/// `options` has passed. The keys are the same as those of `rdzv_store_new`. All calls share one session
/// and one connection, which a library thread drives. Handles with prefixes, watches and leases keep the
/// session alive. The session ends, with its leases and watches, when the last of these handles is freed:
/// after the grace period of `options`, or at once if none is set. `context` may be NULL, which creates a
/// new one. On success the caller owns `*out` and frees it with `rdzv_store_free`.
///
/// Errors: those of `rdzv_store_new`; `RDZV_INVALID_ARGUMENT` also if the token file, a certificate or a
/// key cannot be read or used; `RDZV_UNSUPPORTED` (the library has no TLS); `RDZV_UNAUTHENTICATED` (the
/// server requires a token, and does not accept that of `options`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_native(
    context: *const rdzv_context,
    options: *const rdzv_store_options,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        let (host, port, options) = native_options(options)?;
        Ok(handle(Store::connect_native(host, port, options)?, shared))
    })
}

/// Returns the number that identifies this start of the store's server; `rdzv server` logs it in
/// hexadecimal. A server that is restarted has another one, and has no keys, rounds, sessions or revisions
/// of the one before. 0 if the store is not a native one, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_incarnation(store: *const rdzv_store) -> u64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(store, 0, |store| store.store.incarnation().unwrap_or(0)) }
}

/// Converts the end of a barrier: the generation that was released, or the failure.
pub(crate) fn barrier_end(
    end: BarrierResult,
    key: &[u8],
    elapsed: Duration,
    peer: &str,
) -> Result<u64, Fault> {
    let failed = |status, generation, description: (&str, String), nodes: Vec<Vec<u8>>| {
        let (what, why) = description;
        let (key_text, after) = (Key::raw(key), Span(elapsed));
        let message = format!("barrier \"{key_text}\" at {peer} {what} after {after} while waiting{why}");
        Err(of_keys(Fault::new(status, message).during("barrier"), &[key]).with(|details| {
            (details.nodes, details.generation, details.phase) = (nodes, generation, "waiting".into());
            details.peer = peer.into();
            details.elapsed_ms = millis(elapsed);
        }))
    };
    match end {
        BarrierResult::Released { generation } => Ok(generation),
        BarrierResult::Broken { generation, participant, why } => {
            let description = ("was broken", format!(": {participant} died: {why}"));
            failed(RDZV_BARRIER_BROKEN, generation, description, vec![participant.as_bytes().to_vec()])
        }
        BarrierResult::TimedOut { generation, absent_count, absent } => {
            let mut description = format!(": {absent_count} did not arrive");
            if !absent.is_empty() {
                description = format!("{description}: {}", absent.join(", "));
            }
            let nodes = absent.iter().map(|name| name.as_bytes().to_vec()).collect();
            failed(RDZV_TIMED_OUT, generation, ("timed out", description), nodes)
        }
        BarrierResult::Cancelled { generation, by } => {
            let description = ("was cancelled", format!(", by {by}"));
            failed(RDZV_CANCELLED, generation, description, Vec::new())
        }
    }
}
