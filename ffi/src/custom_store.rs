//! Stores in code of yours.

use crate::argument::{bytes, invalid, out_pointer, rdzv_bytes};
use crate::context::{rdzv_context, shared, struct_size};
use crate::fault::rdzv_error;
use crate::guard;
use crate::sized;
use crate::status::*;
use crate::store::{handle, kind_of, rdzv_store};
use crate::store_kinds::timeouts;
use rendezvous_core::driver::plugin_store::{
    Plugin, PluginAnswer, PluginError, PluginStore, PluginStoreOptions, Question,
};
use rendezvous_core::driver::store::Store;
use rendezvous_core::error::{ErrorKind, Operation};
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

/// Store `values[0]` under `keys[0]`.
pub const RDZV_STORE_SET: i32 = 1;
/// Answer the value of `keys[0]`; `RDZV_TIMED_OUT` when there is none.
pub const RDZV_STORE_GET: i32 = 2;
/// Add `number` to the decimal number under `keys[0]` (0 when missing), answer the sum as a number.
pub const RDZV_STORE_ADD: i32 = 3;
/// As `rdzv_store_compare_set` with `keys[0]`, expecting `values[0]` and desiring `values[1]`; answer a value.
pub const RDZV_STORE_COMPARE_SET: i32 = 4;
/// Wait until all keys are there, for `timeout_ms` at most, then `RDZV_TIMED_OUT`. May be left out.
pub const RDZV_STORE_WAIT: i32 = 5;
/// Answer 1 if all keys are there, else 0.
pub const RDZV_STORE_CHECK: i32 = 6;
/// Remove `keys[0]`; answer 1 if it was there, else 0.
pub const RDZV_STORE_DELETE_KEY: i32 = 7;
/// Answer the number of keys.
pub const RDZV_STORE_NUM_KEYS: i32 = 8;
/// Answer all keys, as values.
pub const RDZV_STORE_LIST_KEYS: i32 = 9;
/// Put `values[0]` behind the value of `keys[0]`. May be left out, and then `rdzv_store_append` fails.
pub const RDZV_STORE_APPEND: i32 = 10;
/// Answer the values of all keys, in order. May be left out.
pub const RDZV_STORE_MULTI_GET: i32 = 11;
/// Store `values[i]` under `keys[i]`. May be left out.
pub const RDZV_STORE_MULTI_SET: i32 = 12;
/// Put `values[0]` at the end of the queue `keys[0]`. May be left out, as the two that follow.
pub const RDZV_STORE_QUEUE_PUSH: i32 = 13;
/// Answer the item at the front, and take it; `RDZV_QUEUE_EMPTY` when there is none.
pub const RDZV_STORE_QUEUE_POP: i32 = 14;
/// Answer the number of items.
pub const RDZV_STORE_QUEUE_LEN: i32 = 15;

/// What a store of yours is asked. Everything in it is valid during the call only.
#[repr(C)]
#[derive(Debug)]
pub struct rdzv_store_question {
    /// Size of this struct in the library that made it, in bytes; later fields are absent when it is
    /// smaller.
    pub struct_size: u32,
    /// One of `RDZV_STORE_SET` and so on; there may be more one day.
    pub operation: i32,
    /// The keys, as they are in the store: with all prefixes.
    pub keys: *const rdzv_bytes,
    /// How many keys.
    pub key_count: usize,
    /// The values.
    pub values: *const rdzv_bytes,
    /// How many values.
    pub value_count: usize,
    /// What is to be added.
    pub number: i64,
    /// How long `RDZV_STORE_WAIT` may take, in milliseconds. Nothing else should wait.
    pub timeout_ms: i64,
}

/// Takes the answer of a store of yours. Valid during the call only.
#[derive(Debug, Default)]
pub struct rdzv_store_answer {
    answer: PluginAnswer,
    message: Option<String>,
}

/// A store in code of yours. `answer` is called on threads of the library's, by several at a time; it may
/// block: the caller of an operation gets `RDZV_TIMED_OUT` at its deadline all the same. It must not throw,
/// and an operation that it calls on the handle that is calling it returns `RDZV_REENTRANT`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_store_vtable {
    /// `sizeof(rdzv_store_vtable)`.
    pub struct_size: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Passed to both functions.
    pub user_data: *mut c_void,
    /// What errors call the store. UTF-8, NUL-terminated, copied; NULL: a name of the library's.
    pub name: *const c_char,
    /// Does what `question` says, fills `answer`, and returns `RDZV_OK`, or why it did not: any status of this
    /// header, `RDZV_UNSUPPORTED` for an operation that it does not have. Must not be NULL.
    pub answer: Option<
        unsafe extern "C" fn(
            user_data: *mut c_void,
            question: *const rdzv_store_question,
            answer: *mut rdzv_store_answer,
        ) -> rdzv_status,
    >,
    /// Called once, when no handle is left and nothing is being answered. May be NULL.
    pub destroy: Option<unsafe extern "C" fn(user_data: *mut c_void)>,
}

/// The size of `rdzv_store_vtable` in the first header.
const VTABLE_FIRST_SIZE: usize = 40;
const NO_VTABLE: rdzv_store_vtable = rdzv_store_vtable {
    struct_size: 0,
    reserved: 0,
    user_data: std::ptr::null_mut(),
    name: std::ptr::null(),
    answer: None,
    destroy: None,
};

/// A vtable with the promises of its author.
struct Code(rdzv_store_vtable);
// SAFETY: the header tells that `answer` is called by several threads of the library's, and `destroy` by any.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(destroy) = self.0.destroy {
            // SAFETY: the vtable was given for this, and nothing is asked any more.
            unsafe { destroy(self.0.user_data) };
        }
    }
}

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
        // None of these is asked of a plug-in.
        Operation::Connect
        | Operation::Open
        | Operation::CancelWait
        | Operation::Ping
        | Operation::Barrier
        | Operation::BarrierByKeys
        | Operation::CheckIn
        | Operation::WaitForWorkers
        | Operation::DeletePrefix
        | Operation::Txn
        | Operation::Batch
        | Operation::Watch
        | Operation::LeaseGrant
        | Operation::LeaseAttach
        | Operation::LeaseRenew
        | Operation::LeaseRevoke
        | Operation::NamedBarrier
        | Operation::LeaseWait
        | Operation::RoundEvent
        | Operation::BarrierCancel
        | Operation::Join
        | Operation::Standby
        | Operation::Leave
        | Operation::Close
        | Operation::Members
        | Operation::RunInfo
        | Operation::Bye
        | Operation::Session => 0,
    }
}

impl Plugin for Code {
    fn ask(&self, question: &Question) -> Result<PluginAnswer, PluginError> {
        let unsupported = PluginError { kind: ErrorKind::Unsupported, message: None };
        let answer_function = self.0.answer.ok_or(unsupported)?;
        let views = |items: &[Vec<u8>]| -> Vec<rdzv_bytes> {
            items.iter().map(|item| rdzv_bytes { data: item.as_ptr(), len: item.len() }).collect()
        };
        let (keys, values) = (views(&question.keys), views(&question.values));
        let request = rdzv_store_question {
            struct_size: struct_size::<rdzv_store_question>(),
            operation: number_of(question.operation),
            keys: keys.as_ptr(),
            key_count: keys.len(),
            values: values.as_ptr(),
            value_count: values.len(),
            number: question.number,
            timeout_ms: i64::try_from(question.timeout.as_millis()).unwrap_or(i64::MAX),
        };
        let mut parsed_answer = rdzv_store_answer::default();
        // SAFETY: the vtable was given for this; what is passed lives until the function returns.
        let status = unsafe { answer_function(self.0.user_data, &raw const request, &raw mut parsed_answer) };
        if status == RDZV_OK {
            return Ok(parsed_answer.answer);
        }
        let kind = kind_of(status);
        Err(PluginError { kind, message: parsed_answer.message.map(String::into_boxed_str) })
    }
}

/// Answers a number. For use within the `answer` of a store of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_answer_set_number(answer: *mut rdzv_store_answer, number: i64) {
    guard::quiet((), || {
        // SAFETY: NULL, or the answer of the call that is under way.
        if let Some(answer) = unsafe { answer.as_mut() } {
            answer.answer.number = Some(number);
        }
    });
}

/// Answers a value, or one more of several; it is copied. For use within the `answer` of a store of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_answer_add_value(
    answer: *mut rdzv_store_answer,
    value: *const u8,
    value_len: usize,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the answer of the call that is under way; and as many bytes as are said.
        if let (Some(answer), Ok(value)) = unsafe { (answer.as_mut(), bytes(value, value_len, "value")) } {
            answer.answer.values.push(value.to_vec());
        }
    });
}

/// Tells in words why the operation failed, in UTF-8; they end the error's message. For use within the
/// `answer` of a store of yours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_answer_set_message(
    answer: *mut rdzv_store_answer,
    message: *const u8,
    message_len: usize,
) {
    guard::quiet((), || {
        // SAFETY: NULL, or the answer of the call that is under way; and as many bytes as are said.
        if let (Some(answer), Ok(text)) = unsafe { (answer.as_mut(), bytes(message, message_len, "message")) }
        {
            answer.message = Some(String::from_utf8_lossy(text).into_owned());
        }
    });
}

/// Makes a store of code of yours; `vtable` is copied. Operations that it leaves out are done with its others
/// where that loses nothing: waits by looking again every 10 ms, lists one by one. Barriers are those of
/// `rdzv_store_barrier_by_keys`. `timeout_ms` is for operations that name none; -1: 300,000. `context` may be
/// NULL for a fresh one. On success the library owns `user_data`, until it calls `destroy`, and `*out` is
/// yours until `rdzv_store_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_store_new_custom(
    context: *const rdzv_context,
    vtable: *const rdzv_store_vtable,
    timeout_ms: i64,
    out: *mut *mut rdzv_store,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused where it must be.
    unsafe {
        guard::call(error, || {
            let out = out_pointer(out, "out")?;
            let shared = shared(context)?;
            let given = sized::given_size(vtable, VTABLE_FIRST_SIZE, "vtable")?;
            let given = sized::get(vtable, given, NO_VTABLE);
            if given.answer.is_none() {
                return Err(invalid("`vtable.answer` is NULL"));
            }
            let mut options =
                PluginStoreOptions { timeouts: timeouts(timeout_ms)?, ..PluginStoreOptions::default() };
            if !given.name.is_null() {
                options.name = CStr::from_ptr(given.name).to_string_lossy().into();
            }
            let plugin = PluginStore::new(Arc::new(Code(given)), options);
            out.put(handle(Store::over(Arc::new(plugin)), shared));
            Ok(())
        })
    }
}
