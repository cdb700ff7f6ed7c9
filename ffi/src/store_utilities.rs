//! Data exchange and barriers of ranks over a store.

use crate::prelude::*;
use crate::rendezvous_fault::meeting_fault;
use crate::store::{rdzv_store, span};
use rendezvous_core::driver::elastic_store::{MeetingError, RankName, barrier, get_all, synchronize};
use rendezvous_core::driver::store::Store;
use rendezvous_core::elastic_store::barrier::{BarrierOptions, TRACE_TIMEOUT};

/// Maximum length of a rank's name in bytes, including its NUL.
const RANK_NAME_BYTES_MAX: usize = 1024;

/// Function that writes the name of a rank, NUL-terminated, to `name`, an empty buffer of `name_size`
/// bytes (1024). It is called during the call to which it was passed, on the same thread; it must not
/// throw.
pub type rdzv_rank_name =
    Option<unsafe extern "C" fn(user_data: *mut c_void, rank: i64, name: *mut c_char, name_size: usize)>;

/// Converts a duration to milliseconds, rounded up.
fn millis_up(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Returns the default timeout of operations of this handle, in milliseconds, rounded up; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_timeout_ms(store: *const rdzv_store) -> i64 {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(store, 0, |of| millis_up(of.store.timeout())) }
}

/// Sets the default timeout of operations of this handle, in milliseconds, above 0, for later calls on
/// all threads. The previous value goes to `*before`, unless `before` is NULL, so that a scope can
/// restore it. Two threads whose scopes overlap should use two handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_set_timeout_ms(
    store: *const rdzv_store,
    timeout_ms: i64,
    before: *mut i64,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let old = store.store.set_timeout(positive_ms(timeout_ms, "timeout_ms")?);
        put_unless_null(before, millis_up(old));
        Ok(())
    })
}

impl rdzv_store {
    /// Performs a collective operation of ranks with this timeout.
    fn meet<T>(
        &self,
        timeout_ms: i64,
        are_named: bool,
        operation: impl FnOnce(&Store, Duration) -> Result<T, MeetingError>,
    ) -> Result<T, Fault> {
        let met = operation(&self.store, span(timeout_ms, self.store.timeout())?);
        met.map_err(|error| meeting_fault(&error, self.store.peer(), are_named))
    }
}

/// Waits for the data of all ranks, under the keys `PREFIX0` to `PREFIXn` with n = `world_size` - 1; they
/// replace the content of `values`, in the order of ranks. Every rank calls this with its `rank`. Rank 0
/// returns last, since it often hosts the store from which the others read: `timeout_ms` applies to the
/// data, and again to the wait until the others have read it. `rdzv_store_cancel` cancels the call. A
/// prefix can be used once. The keys are those of PyTorch's elastic agent.
///
/// Errors: those of `rdzv_op_multi_get`; `RDZV_TIMED_OUT` if some ranks did not provide their data
/// (`rdzv_error_info.ranks` has up to 16 of them) or, on rank 0, if some did not read the data (the
/// message has their number). `RDZV_INVALID_ARGUMENT` for a rank that is not below `world_size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_get_all(
    store: *const rdzv_store,
    rank: i64,
    prefix: *const u8,
    prefix_len: usize,
    world_size: i64,
    timeout_ms: i64,
    values: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let (prefix, values) = (text(prefix, prefix_len, "prefix")?, reference_mut(values, "values")?);
        let gather = |of: &Store, timeout| get_all(of, rank, prefix, world_size, timeout);
        values.items = store.meet(timeout_ms, false, gather)?;
        Ok(())
    })
}

/// Publishes `data` to all ranks under `PREFIX` followed by the rank, and gathers that of all ranks as
/// `rdzv_store_get_all` does. There is no separator between prefix and rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_synchronize(
    store: *const rdzv_store,
    data: *const u8,
    data_len: usize,
    rank: i64,
    world_size: i64,
    prefix: *const u8,
    prefix_len: usize,
    timeout_ms: i64,
    values: *mut rdzv_list,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::on!(error, store, |store| {
        let (data, prefix) = (bytes(data, data_len, "data")?, text(prefix, prefix_len, "prefix")?);
        let values = reference_mut(values, "values")?;
        let exchange = |of: &Store, timeout| synchronize(of, data, rank, world_size, prefix, timeout);
        values.items = store.meet(timeout_ms, false, exchange)?;
        Ok(())
    })
}

/// Arrives at a barrier and waits until `world_size` ranks have arrived, up to `timeout_ms`. If some do
/// not arrive, the ranks look for the missing ones: the error names up to 16 (`rdzv_error_info.ranks`,
/// `rdzv_error_info.nodes`), or its message refers to rank 0, which can name them. For that, each rank
/// that timed out leaves a trace in the store. A rank that leaves none within `trace_timeout_ms` (-1:
/// 10,000) counts as missing, or sooner if that is certain. `rank` is the caller's rank; -1: no traces.
/// `rank_name` returns names for ranks, for example those of their hosts; NULL: ranks have numbers only.
/// `rdzv_store_cancel` cancels the call. A prefix can be used once. The barrier is compatible with the
/// `barrier` of PyTorch's elastic agent.
///
/// Errors: `RDZV_TIMED_OUT` (some ranks did not arrive); `RDZV_INVALID_ARGUMENT` for a rank that is not
/// below `world_size`, or names without a rank; else those of the store.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_elastic_barrier(
    store: *const rdzv_store,
    prefix: *const u8,
    prefix_len: usize,
    world_size: i64,
    rank: i64,
    timeout_ms: i64,
    trace_timeout_ms: i64,
    rank_name: rdzv_rank_name,
    user_data: *mut c_void,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    let name_of = rank_name.map(|rank_name| {
        move |rank: i64| {
            let mut name = [0 as c_char; RANK_NAME_BYTES_MAX];
            // SAFETY: the function was supplied for this; the last byte stays NUL whatever it writes.
            unsafe {
                rank_name(user_data, rank, name.as_mut_ptr(), RANK_NAME_BYTES_MAX);
                name[RANK_NAME_BYTES_MAX - 1] = 0;
                CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
            }
        }
    });
    guard::on!(error, store, |store| {
        let prefix = text(prefix, prefix_len, "prefix")?;
        let trace_timeout = match trace_timeout_ms {
            -1 => TRACE_TIMEOUT,
            0.. => Duration::from_millis(trace_timeout_ms.unsigned_abs()),
            _ => return Err(invalid(format!("`trace_timeout_ms` is {trace_timeout_ms}: 0 or above, or -1"))),
        };
        let rank = if rank == -1 { None } else { Some(rank) };
        store.meet(timeout_ms, rank_name.is_some(), |store, timeout| {
            let options =
                BarrierOptions { timeout, rank, trace_timeout, ..BarrierOptions::new(world_size, prefix) };
            barrier(store, &options, name_of.as_ref().map(|name| name as RankName<'_>))
        })
    })
}
