//! Custom stores: stores implemented by the caller.

use crate::prelude::*;
use crate::reply::rdzv_reply;
use crate::store::{handle, kind_of, rdzv_store};
use crate::store_kinds::timeouts;
use rendezvous_core::driver::plugin_store::{
    Plugin, PluginAnswer, PluginError, PluginStore, PluginStoreOptions, Question,
};
use rendezvous_core::driver::store::Store;
use rendezvous_core::error::{ErrorKind, Operation};

/// Store `values[0]` under `keys[0]`.
pub const RDZV_STORE_SET: i32 = 1;
/// Return the value of `keys[0]`; `RDZV_TIMED_OUT` if there is none.
pub const RDZV_STORE_GET: i32 = 2;
/// Add `number` to the decimal number under `keys[0]` (0 if missing) and return the sum as a number.
pub const RDZV_STORE_ADD: i32 = 3;
/// As `rdzv_store_compare_set` on `keys[0]` with `values[0]` expected and `values[1]` desired; return the
/// value.
pub const RDZV_STORE_COMPARE_SET: i32 = 4;
/// Wait until all keys exist, for at most `timeout_ms`, then return `RDZV_TIMED_OUT`. Optional.
pub const RDZV_STORE_WAIT: i32 = 5;
/// Return 1 if all keys exist, else 0.
pub const RDZV_STORE_CHECK: i32 = 6;
/// Delete `keys[0]`; return 1 if it existed, else 0.
pub const RDZV_STORE_DELETE_KEY: i32 = 7;
/// Return the number of keys.
pub const RDZV_STORE_NUM_KEYS: i32 = 8;
/// Return all keys, as values.
pub const RDZV_STORE_LIST_KEYS: i32 = 9;
/// Append `values[0]` to the value of `keys[0]`. Optional; without it `rdzv_op_append` fails.
pub const RDZV_STORE_APPEND: i32 = 10;
/// Return the values of all keys, in order. Optional.
pub const RDZV_STORE_MULTI_GET: i32 = 11;
/// Store `values[i]` under `keys[i]`. Optional.
pub const RDZV_STORE_MULTI_SET: i32 = 12;
/// Append `values[0]` to the queue `keys[0]`. Optional, as are the next two.
pub const RDZV_STORE_QUEUE_PUSH: i32 = 13;
/// Remove the first item of the queue `keys[0]` and return it; `RDZV_QUEUE_EMPTY` if there is none.
pub const RDZV_STORE_QUEUE_POP: i32 = 14;
/// Return the number of items in the queue `keys[0]`.
pub const RDZV_STORE_QUEUE_LEN: i32 = 15;

/// Request to a custom store. It and everything that it points to are valid during the call only.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_store_request {
    /// Size of this struct in the library, in bytes. Fields beyond that size are absent.
    pub struct_size: u32,
    /// One of `RDZV_STORE_SET` to `RDZV_STORE_QUEUE_LEN`; later versions may add more.
    pub operation: i32,
    /// Keys as they are in the store, with all prefixes.
    pub keys: *const rdzv_bytes,
    /// Number of keys.
    pub key_count: usize,
    /// Values of the operation.
    pub values: *const rdzv_bytes,
    /// Number of values.
    pub value_count: usize,
    /// Number to add.
    pub number: i64,
    /// Time limit of `RDZV_STORE_WAIT`, in milliseconds. No other operation should wait.
    pub timeout_ms: i64,
}

/// Functions of a custom store. `perform` is called on threads of the library, several at a time. It may
/// block: the caller of an operation gets `RDZV_TIMED_OUT` at its deadline regardless. It must not throw.
/// An operation that it calls on the store handle that is calling it returns `RDZV_REENTRANT`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_store_vtable {
    /// Set to `sizeof(rdzv_store_vtable)`.
    pub struct_size: u32,
    /// Unused; set to 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// Name of the store in error messages. UTF-8, NUL-terminated, copied; NULL for a default name.
    pub name: *const c_char,
    /// Executes `request`, fills `reply` and returns `RDZV_OK`, or the status of the failure: any status of
    /// this header; `RDZV_UNSUPPORTED` for an operation that the store does not have. Must not be NULL.
    pub perform: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            request: *const rdzv_store_request,
            reply: *mut rdzv_reply,
        ) -> rdzv_status,
    >,
    /// Called once, when no handle is left and no call is in progress. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}
growing!(rdzv_store_vtable: 40);

const fn number_of(operation: Operation) -> i32 {
    match operation {
        Operation::Set => RDZV_STORE_SET,
        Operation::Get => RDZV_STORE_GET,
        Operation::Add => RDZV_STORE_ADD,
        Operation::CompareSet => RDZV_STORE_COMPARE_SET,
        Operation::Wait => RDZV_STORE_WAIT,
        Operation::Check => RDZV_STORE_CHECK,
        Operation::Delete => RDZV_STORE_DELETE_KEY,
        Operation::NumKeys => RDZV_STORE_NUM_KEYS,
        Operation::ListKeys => RDZV_STORE_LIST_KEYS,
        Operation::Append => RDZV_STORE_APPEND,
        Operation::MultiGet => RDZV_STORE_MULTI_GET,
        Operation::MultiSet => RDZV_STORE_MULTI_SET,
        Operation::QueuePush => RDZV_STORE_QUEUE_PUSH,
        Operation::QueuePop => RDZV_STORE_QUEUE_POP,
        Operation::QueueLen => RDZV_STORE_QUEUE_LEN,
        // The other operations never reach a plug-in.
        _ => 0,
    }
}

impl Plugin for UserCode<rdzv_store_vtable> {
    fn ask(&self, question: &Question) -> Result<PluginAnswer, PluginError> {
        let unsupported = PluginError { kind: ErrorKind::Unsupported, message: None };
        let perform = self.perform.ok_or(unsupported)?;
        let (keys, values) = (rdzv_bytes::list(&question.keys), rdzv_bytes::list(&question.values));
        let request = rdzv_store_request {
            struct_size: struct_size::<rdzv_store_request>(),
            operation: number_of(question.operation),
            keys: keys.as_ptr(),
            key_count: keys.len(),
            values: values.as_ptr(),
            value_count: values.len(),
            number: question.number,
            timeout_ms: millis(question.timeout),
        };
        let mut reply = rdzv_reply::default();
        // SAFETY: the vtable was supplied for this call; what is passed lives until the function returns.
        let status = unsafe { perform(self.user_data, &raw const request, &raw mut reply) };
        let reply = reply.checked("custom store", status);
        reply.map(|reply| reply.values).map_err(|(status, message)| PluginError {
            kind: kind_of(status),
            message: message.map(String::into_boxed_str),
        })
    }
}

/// Creates a custom store; `vtable` is copied. The library emulates optional operations where this loses
/// nothing: waits by polling every 10 ms, lists item by item. Barriers work as `rdzv_store_barrier_by_keys`
/// does. `timeout_ms` is the timeout of operations that do not specify one; -1 means 300,000. `context` may
/// be NULL, which creates a new one. On success the library owns `user_data` until it calls `destroy`, and
/// the caller owns `*out` and frees it with `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_custom(
    context: *const rdzv_context,
    vtable: *const rdzv_store_vtable,
    timeout_ms: i64,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, out, || {
        let shared = shared(context)?;
        let given = sized::get(vtable, "vtable")?;
        if given.perform.is_none() {
            return Err(invalid("`vtable.perform` is NULL"));
        }
        let mut options =
            PluginStoreOptions { timeouts: timeouts(timeout_ms)?, ..PluginStoreOptions::default() };
        if !given.name.is_null() {
            options.name = CStr::from_ptr(given.name).to_string_lossy().into();
        }
        let code = UserCode::owned(given, given.user_data, given.destroy);
        let plugin = PluginStore::new(Arc::new(code), options);
        Ok(handle(Store::over(Arc::new(plugin)), shared))
    })
}
