//! Operations: requests as objects: performed, submitted to an event loop, or included in a batch.

use crate::op_kind::OpKind;
use crate::op_result::{Answer, OpResult, rdzv_result};
use crate::prelude::*;
use rendezvous_core::driver::native_client::{Batch, Branch, NativeRequest, Txn, participants};
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::store::call::CallId;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Operation: a request and, when it is over, its result. Create one, give it a request with a function
/// such as `rdzv_op_set`, which copies its arguments, then perform it with `rdzv_store_perform`, submit
/// it with `rdzv_loop_submit`, or include it in a batch or a transaction with `rdzv_op_include`.
/// Afterwards it can be performed or submitted again, or be given another request; its memory is reused.
/// One thread at a time may use it. While it is under way, functions on it return `RDZV_REENTRANT`. After
/// `RDZV_REENTRANT`, `RDZV_POISONED` and `RDZV_FREE_REFUSED` the operation is as it was.
#[derive(Debug)]
pub struct rdzv_op {
    pub(crate) cell: Arc<OpCell>,
}

impl Drop for rdzv_op {
    fn drop(&mut self) {
        self.cell.handle.store(null_mut(), Ordering::Release);
    }
}

/// Operation, owned by its handle and by the event loop in which it is under way.
#[derive(Debug)]
pub(crate) struct OpCell {
    pub(crate) user_data: *mut c_void,
    /// Handle of the program; NULL once it was freed.
    handle: AtomicPtr<rdzv_op>,
    body: Mutex<OpBody>,
    /// Says whether a free was refused.
    state: HandleState,
}

// SAFETY: the library does not follow `user_data`, and the rest is synchronized.
unsafe impl Send for OpCell {}
// SAFETY: as above.
unsafe impl Sync for OpCell {}

/// Content of an operation.
#[derive(Debug, Default)]
pub(crate) struct OpBody {
    pub(crate) kind: OpKind,
    state: OpState,
    pub(crate) arguments: Arguments,
    pub(crate) included: Included,
    pub(crate) result: OpResult,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OpState {
    /// There is no request.
    #[default]
    Empty,
    /// There is a request and no result.
    Ready,
    /// An event loop executes the request as the call of this number.
    UnderWay(u64),
    /// There are a request and its result.
    Done,
}

/// Requests that a batch or a transaction includes.
#[derive(Debug)]
pub(crate) struct Included {
    pub(crate) txn: Txn,
    pub(crate) branch: Branch,
    pub(crate) batch: Batch,
    /// Requests of the batch, to decode their results.
    pub(crate) kinds: Vec<OpKind>,
    pub(crate) count: u64,
    pub(crate) bytes: usize,
}

impl Default for Included {
    fn default() -> Self {
        let (txn, batch) = (Txn::default(), Batch::default());
        Self { txn, branch: Branch::Then, batch, kinds: Vec::new(), count: 0, bytes: 0 }
    }
}

/// Byte strings of a request, each after its length as in a frame, so that lists of keys need no slice.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    packed: Vec<u8>,
    count: usize,
}

/// Capacity in bytes above which an operation that gets a new request releases its memory.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Returns the failure of an operation that would exceed the size of a frame.
pub(crate) fn check_bytes(bytes: usize, limits: &FrameLimits) -> Result<(), Fault> {
    let bytes_max = limits.frame_bytes_max;
    if bytes > bytes_max {
        let message = format!("the operation has {bytes} bytes, which is over the limit of {bytes_max}");
        return Err(Fault::new(RDZV_LIMIT_EXCEEDED, message));
    }
    Ok(())
}

impl Arguments {
    fn clear(&mut self) {
        self.packed.clear();
        self.packed.shrink_to(KEPT_BYTES_MAX);
        self.count = 0;
    }

    fn push(&mut self, argument: &[u8]) {
        self.packed.extend_from_slice(&(argument.len() as u64).to_le_bytes());
        self.packed.extend_from_slice(argument);
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        Keys::packed(self.count, &self.packed).iter().map(|key| key.name())
    }

    pub(crate) fn get(&self, index: usize) -> &[u8] {
        self.iter().nth(index).unwrap_or_default()
    }

    /// Returns the arguments from `first` on.
    fn from(&self, first: usize) -> Vec<&[u8]> {
        self.iter().skip(first).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.packed.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

/// What a store does for an operation.
pub(crate) enum OpRequest<'a> {
    /// Request that every kind of store has.
    Store(Request<'a>),
    Ping,
    /// Request of the native protocol.
    Native(NativeRequest<'a>),
    /// Joins the run of the node.
    NextRendezvous,
}

impl OpBody {
    /// Returns byte strings that [`OpBody::request`] takes as a slice: the keys or names of a native
    /// request.
    pub(crate) fn names(&self) -> Vec<&[u8]> {
        match self.kind {
            OpKind::Read | OpKind::AttachLease(_) => self.arguments.from(0),
            OpKind::NamedBarrier { .. } => self.arguments.from(2),
            _ => Vec::new(),
        }
    }

    /// Returns the keys for an error, at most 64.
    pub(crate) fn keys(&self) -> Vec<&[u8]> {
        let (step, count) = match self.kind {
            OpKind::Wait | OpKind::Check | OpKind::MultiGet | OpKind::Read | OpKind::AttachLease(_) => {
                (1, 64)
            }
            OpKind::MultiSet => (2, 64),
            OpKind::Fail => (1, 0),
            _ => (1, 1),
        };
        self.arguments.iter().step_by(step).take(count).collect()
    }

    /// Returns the request for a store whose keys have this scope, and for a node of this run.
    pub(crate) fn request<'a>(
        &'a self,
        names: &'a [&'a [u8]],
        scope: &'a [u8],
        run_id: &'a [u8],
    ) -> Result<OpRequest<'a>, Fault> {
        use OpRequest::{Native, Store};
        let Arguments { packed, count } = &self.arguments;
        let argument = |index| self.arguments.get(index);
        let (key, name) = (Key::scoped(scope, argument(0)), argument(0));
        let keys = Keys::packed_scoped(scope, *count, packed);
        let pairs = Pairs::packed_scoped(scope, *count / 2, packed);
        Ok(match self.kind {
            OpKind::None => return Err(invalid("the operation has no request")),
            OpKind::Call => return Err(invalid("an RPC worker performs calls, a store does not")),
            OpKind::Set => Store(Request::Set { key, value: argument(1) }),
            OpKind::Get => Store(Request::Get { key }),
            OpKind::Add(delta) => Store(Request::Add { key, delta }),
            OpKind::CompareSet => {
                Store(Request::CompareSet { key, expected: argument(1), desired: argument(2) })
            }
            OpKind::Append => Store(Request::Append { key, value: argument(1) }),
            OpKind::DeleteKey => Store(Request::Delete { key }),
            OpKind::Wait => Store(Request::Wait { keys }),
            OpKind::Check => Store(Request::Check { keys }),
            OpKind::MultiGet => Store(Request::MultiGet { keys }),
            OpKind::MultiSet => Store(Request::MultiSet { pairs }),
            OpKind::NumKeys => Store(Request::NumKeys),
            OpKind::ListKeys => Store(Request::ListKeys),
            OpKind::QueuePush => Store(Request::QueuePush { key, value: argument(1) }),
            OpKind::QueuePop => Store(Request::QueuePop { key }),
            OpKind::QueueLen => Store(Request::QueueLen { key }),
            OpKind::Barrier(world_size) => Store(Request::Barrier { key, world_size }),
            OpKind::Ping => OpRequest::Ping,
            OpKind::Read => Native(NativeRequest::Read { keys: names }),
            OpKind::ListPage(count_max) => {
                Native(NativeRequest::ListPage { prefix: name, after: argument(1), count_max })
            }
            OpKind::DeletePrefix => Native(NativeRequest::DeletePrefix { prefix: name }),
            OpKind::NamedBarrier { generation, count } => {
                let participants = participants(count, names);
                Native(NativeRequest::Barrier { key: name, generation, name: argument(1), participants })
            }
            OpKind::CancelNamedBarrier => {
                Native(NativeRequest::BarrierCancel { key: name, name: argument(1) })
            }
            OpKind::WatchKey(from_revision) => Native(NativeRequest::WatchKey { key: name, from_revision }),
            OpKind::WatchPrefix(from_revision) => {
                Native(NativeRequest::WatchPrefix { prefix: name, from_revision })
            }
            OpKind::GrantLease(ttl) => Native(NativeRequest::LeaseGrant { ttl }),
            OpKind::AttachLease(lease) => Native(NativeRequest::LeaseAttach { lease, keys: names }),
            OpKind::RenewLease(lease) => Native(NativeRequest::LeaseRenew { lease }),
            OpKind::RevokeLease(lease) => Native(NativeRequest::LeaseRevoke { lease }),
            OpKind::Batch => Native(NativeRequest::Batch(&self.included.batch)),
            OpKind::Txn => Native(NativeRequest::Txn(&self.included.txn)),
            OpKind::EndSession => Native(NativeRequest::Close),
            OpKind::NextRendezvous => OpRequest::NextRendezvous,
            OpKind::Leave => Native(NativeRequest::Leave { run_id }),
            OpKind::SetClosed => Native(NativeRequest::CloseRun { run_id }),
            OpKind::Fail => {
                let message = std::str::from_utf8(argument(0)).unwrap_or_default();
                Native(NativeRequest::FailRun { run_id, message })
            }
            OpKind::RunInfo => Native(NativeRequest::RunInfo { run_id }),
            OpKind::Members { round, first, count_max } => {
                Native(NativeRequest::Members { run_id, round, first, count_max })
            }
        })
    }

    /// Drops the result of an earlier use.
    pub(crate) fn begin(&mut self) {
        if self.state == OpState::Done {
            self.state = OpState::Ready;
        }
        self.result.clear();
    }

    /// Ends the operation; returns the failure for the function that performed it.
    pub(crate) fn end(&mut self, answer: Result<Answer, Fault>) -> Result<(), Fault> {
        self.state = OpState::Done;
        self.result.put(self.kind, &self.included.kinds, answer)
    }

    /// Stores what is known of an operation that goes on: the start of a watch.
    pub(crate) fn progress(&mut self, answer: Answer) {
        // There is no failure to return.
        let _ = self.result.put(self.kind, &[], Ok(answer));
    }

    pub(crate) const fn submitted(&mut self, call: CallId) {
        self.state = OpState::UnderWay(call.0);
    }

    /// Returns the call with which an event loop executes the operation.
    pub(crate) const fn call(&self) -> Option<CallId> {
        match self.state {
            OpState::UnderWay(call) => Some(CallId(call)),
            _ => None,
        }
    }

    /// Ends an operation whose member or loop was removed: there is no result.
    pub(crate) const fn abandoned(&mut self) {
        self.state = OpState::Ready;
    }

    /// Gives the operation a request with these byte strings.
    pub(crate) unsafe fn prepare(
        &mut self,
        kind: OpKind,
        arguments: &[ByteArgument<'_>],
    ) -> Result<(), Fault> {
        // SAFETY: passed on unchanged.
        unsafe { self.prepare_lists(Ok(kind), arguments, &[]) }
    }

    /// Gives the operation a request with these byte strings and the rows of these lists, each with its name in errors.
    /// Two lists have the same length, and their items alternate. After an error there is no request.
    pub(crate) unsafe fn prepare_lists(
        &mut self,
        kind: Result<OpKind, Fault>,
        arguments: &[ByteArgument<'_>],
        lists: &[(&str, *const rdzv_bytes, usize)],
    ) -> Result<(), Fault> {
        (self.kind, self.state) = (OpKind::None, OpState::Empty);
        self.arguments.clear();
        self.included = Included::default();
        // SAFETY: as the header requires.
        let packed = kind.and_then(|kind| unsafe { self.pack(arguments, lists) }.map(|()| kind));
        // Not before: an argument may be part of the last result.
        self.result.clear();
        (self.kind, self.state) = (packed?, OpState::Ready);
        Ok(())
    }

    /// Copies the arguments of a request.
    unsafe fn pack(
        &mut self,
        arguments: &[ByteArgument<'_>],
        lists: &[(&str, *const rdzv_bytes, usize)],
    ) -> Result<(), Fault> {
        // SAFETY: as the header requires.
        let column = |&(name, given, count)| Ok((name, unsafe { items(given, count, name) }?));
        let lists = lists.iter().map(column).collect::<Result<Vec<(&str, &[rdzv_bytes])>, Fault>>()?;
        let each = |take: &mut dyn FnMut(&[u8])| -> Result<(), Fault> {
            for &(name, data, len) in arguments {
                // SAFETY: as the header requires.
                take(unsafe { bytes(data, len, name) }?);
            }
            for row in 0..lists.first().map_or(0, |(_, items)| items.len()) {
                for (name, items) in &lists {
                    // SAFETY: as above.
                    take(unsafe { bytes(items[row].data, items[row].len, name) }?);
                }
            }
            Ok(())
        };
        // All is checked before anything is copied.
        let mut total = 0_usize;
        each(&mut |argument| total = total.saturating_add(argument.len()).saturating_add(8))?;
        check_bytes(total, &FrameLimits::default())?;
        self.arguments.packed.reserve(total);
        let packed = &mut self.arguments;
        each(&mut |argument| packed.push(argument))
    }
}

impl OpCell {
    /// Returns the handle of the program; NULL once it was freed.
    pub(crate) fn handle(&self) -> *mut rdzv_op {
        self.handle.load(Ordering::Acquire)
    }

    /// Locks the operation even while it is under way.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, OpBody>, Fault> {
        let body = self.body.try_lock().map_err(|error| match error {
            TryLockError::Poisoned(_) => {
                Fault::new(RDZV_POISONED, "an earlier call on this operation panicked; free it")
            }
            TryLockError::WouldBlock => Fault::new(RDZV_REENTRANT, "the operation is in use by another call"),
        })?;
        self.state.check()?;
        Ok(body)
    }

    /// Refuses to free the operation while a call uses it.
    fn refuse_free(&self) -> bool {
        let is_in_use = matches!(self.body.try_lock(), Err(TryLockError::WouldBlock));
        if is_in_use {
            self.state.refuse_free();
        }
        is_in_use
    }

    /// Logs that the operation was not freed, if it was tried while this call used it: an operation has no context.
    pub(crate) fn warn_if_free_was_refused(&self, shared: &ContextShared) {
        if self.state.free_was_refused() {
            shared.warn_free_refused("rdzv_op_free");
        }
    }

    /// Locks the operation for its event loop. A use by another thread fails at once, since it is under
    /// way.
    pub(crate) fn lock_waiting(&self) -> MutexGuard<'_, OpBody> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the operation for a new use.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, OpBody>, Fault> {
        let body = self.lock()?;
        if matches!(body.state, OpState::UnderWay(_)) {
            let message = "the operation is under way in an event loop; cancel it or wait for its event";
            return Err(Fault::new(RDZV_REENTRANT, message));
        }
        Ok(body)
    }
}

/// Byte string from C: its name in errors, its address and its length.
pub(crate) type ByteArgument<'a> = (&'a str, *const u8, usize);

impl guard::Target for rdzv_op {
    /// The operation, locked for a new use.
    type Access<'a> = &'a mut OpBody;

    unsafe fn enter(
        op: *const Self,
        name: &str,
        error: *mut *mut rdzv_error,
        body: &mut dyn FnMut(&mut OpBody) -> Result<(), Fault>,
    ) -> rdzv_status {
        // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
        unsafe { guard::call_on(None, error, &mut || body(&mut *reference(op, name)?.cell.enter()?)) }
    }
}

/// Creates an operation without a request. `user_data` is returned with its events in an event loop and
/// may be NULL. The caller frees it with `rdzv_op_free`. Never NULL: the process is aborted if it is out
/// of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_op_new(user_data: *mut c_void) -> *mut rdzv_op {
    guard::quiet(null_mut(), || {
        let (handle, body, state) = Default::default();
        let cell = Arc::new(OpCell { user_data, handle, body, state });
        let op = boxed(rdzv_op { cell: Arc::clone(&cell) });
        cell.handle.store(op, Ordering::Release);
        op
    })
}

/// Frees an operation. If it is under way in an event loop, it goes on, but no event of it follows. NULL
/// is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_free(op: *mut rdzv_op) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free_unless(op, |op| op.cell.refuse_free()) };
}

/// Writes the result of an operation that is over, or of a watch that has begun, to `*result`, whose
/// `struct_size` the caller has set. What the result points to is valid until the operation is used again
/// or freed and, for a watch, until the next call of `rdzv_loop_next_event`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no result), `RDZV_REENTRANT` (another thread performs it).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get_result(
    op: *const rdzv_op,
    result: *mut rdzv_result,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, result, || {
        let body = reference(op, "op")?.cell.lock()?;
        body.result.view().ok_or_else(|| invalid("the operation has no result: it was not performed"))
    })
}

/// Writes the result of the request at `index` (from 0) of a batch to `*result`, in the order in which
/// the requests were included. The failure of one request is in its own result only. Otherwise like
/// `rdzv_op_get_result`.
///
/// Errors: `RDZV_INVALID_ARGUMENT` (there is no such result).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_op_get_part(
    op: *const rdzv_op,
    index: usize,
    result: *mut rdzv_result,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, result, || {
        let body = reference(op, "op")?.cell.lock()?;
        body.result.part(index).ok_or_else(|| invalid("there is no result with this index"))
    })
}
