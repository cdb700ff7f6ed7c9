//! Status codes.

use std::ffi::CStr;

/// Outcome of a call: `RDZV_OK` or one of the numbers below. Numbers are never reused.
pub type rdzv_status = i32;

/// Success.
pub const RDZV_OK: rdzv_status = 0;
/// An argument is NULL, out of range, not UTF-8 where text is required, or not valid for another reason.
pub const RDZV_INVALID_ARGUMENT: rdzv_status = 1;
/// A bug in the library was caught at the C boundary. The handle is poisoned: free it.
pub const RDZV_PANIC: rdzv_status = 2;
/// An earlier call on this handle returned `RDZV_PANIC`; only its `_free` function may be called.
pub const RDZV_POISONED: rdzv_status = 3;
/// The deadline passed.
pub const RDZV_TIMED_OUT: rdzv_status = 4;
/// No process listens at the address.
pub const RDZV_REFUSED: rdzv_status = 5;
/// The connection ended while the operation was in progress.
pub const RDZV_SERVER_GONE: rdzv_status = 6;
/// The peer is not a store, or violates the protocol.
pub const RDZV_WRONG_PROTOCOL: rdzv_status = 7;
/// The host name has no address.
pub const RDZV_UNRESOLVED: rdzv_status = 8;
/// There is no route to the address.
pub const RDZV_UNREACHABLE: rdzv_status = 9;
/// The operation was cancelled by another call.
pub const RDZV_CANCELLED: rdzv_status = 10;
/// An argument or an answer exceeds a limit.
pub const RDZV_LIMIT_EXCEEDED: rdzv_status = 11;
/// The queue had no item.
pub const RDZV_QUEUE_EMPTY: rdzv_status = 12;
/// Another socket uses the port.
pub const RDZV_ADDRESS_IN_USE: rdzv_status = 13;
/// The operating system reported another error; the error has its number and message.
pub const RDZV_IO: rdzv_status = 14;
/// The server was stopped.
pub const RDZV_CLOSED: rdzv_status = 15;
/// User code called into the handle that is calling it, or a call was made where it must not wait.
pub const RDZV_REENTRANT: rdzv_status = 16;
/// The process is out of descriptors, threads or memory; or the RPC callee has no capacity for the
/// request, which no handler has received.
pub const RDZV_EXHAUSTED: rdzv_status = 17;
/// Stores of this kind do not support the operation.
pub const RDZV_UNSUPPORTED: rdzv_status = 18;
/// The file is not a store, or has a torn record; the message has its offset.
pub const RDZV_CORRUPT: rdzv_status = 19;
/// The rendezvous is closed permanently.
pub const RDZV_RENDEZVOUS_CLOSED: rdzv_status = 20;
/// An operation of the rendezvous timed out: joining, leaving, closing or its keep-alive.
pub const RDZV_RENDEZVOUS_TIMED_OUT: rdzv_status = 21;
/// The store of the rendezvous cannot be reached; `rdzv_error_info.cause` has the reason.
pub const RDZV_RENDEZVOUS_CONNECTION: rdzv_status = 22;
/// The stored state of the rendezvous cannot be read; `rdzv_error_info.cause` has the reason.
pub const RDZV_RENDEZVOUS_STATE: rdzv_status = 23;
/// The rendezvous has closed and this spare node is not needed; this is not a failure.
pub const RDZV_RENDEZVOUS_GRACEFUL_EXIT: rdzv_status = 24;
/// No backend or URL scheme of this name is registered.
pub const RDZV_NOT_REGISTERED: rdzv_status = 25;
/// The name is taken: another backend has it, or the URL scheme is registered already.
pub const RDZV_ALREADY_REGISTERED: rdzv_status = 26;
/// A handler names another backend than the requested one.
pub const RDZV_BACKEND_MISMATCH: rdzv_status = 27;
/// A participant of the barrier died.
pub const RDZV_BARRIER_BROKEN: rdzv_status = 28;
/// The server no longer has changes that old; `rdzv_error_info.revision` has the oldest revision that it
/// has.
pub const RDZV_COMPACTED: rdzv_status = 29;
/// The round to which the key belongs has ended; keys under its prefix can no longer be changed.
pub const RDZV_STALE_ROUND: rdzv_status = 30;
/// The lease, round or barrier generation does not exist, or no longer exists.
pub const RDZV_NOT_FOUND: rdzv_status = 31;
/// Another participant was first with a request that conflicts with this one.
pub const RDZV_CONFLICT: rdzv_status = 32;
/// The RPC group has no worker with this name or id.
pub const RDZV_RPC_UNKNOWN_WORKER: rdzv_status = 33;
/// The callee has no handler with this name.
pub const RDZV_RPC_NO_HANDLER: rdzv_status = 34;
/// The handler failed; `rdzv_error_info.cause` has its message.
pub const RDZV_RPC_HANDLER_FAILED: rdzv_status = 35;
/// The worker is dead, or its connection ended. The call may have been executed, unless the message says
/// that it was not sent.
pub const RDZV_RPC_PEER_DIED: rdzv_status = 36;
/// This worker is not, or no longer, a member of an RPC group.
pub const RDZV_RPC_NO_MEMBER: rdzv_status = 37;
/// The callee, or this worker, accepts no further calls.
pub const RDZV_RPC_LEAVING: rdzv_status = 38;
/// The context already has an RPC worker.
pub const RDZV_RPC_ALREADY_INITIALIZED: rdzv_status = 39;
/// The group is static and the worker was to join a dynamic one, or the reverse.
pub const RDZV_RPC_MIXED_GROUP: rdzv_status = 40;
/// Another worker of the group has the name or the id.
pub const RDZV_RPC_NAME_TAKEN: rdzv_status = 41;
/// Device maps and device lists of the group are inconsistent.
pub const RDZV_RPC_DEVICE_MAP: rdzv_status = 42;
/// A worker of the group cannot be reached, though it is not known to be dead; the call was not sent.
pub const RDZV_RPC_UNREACHED: rdzv_status = 43;
/// The other workers considered this worker dead and continue without it.
pub const RDZV_RPC_EVICTED: rdzv_status = 44;
/// The RPC group did not form, or did not end gracefully; the message has the reason.
pub const RDZV_RPC_MEMBERSHIP: rdzv_status = 45;
/// A payload does not have the format that its reader expects.
pub const RDZV_RPC_MALFORMED: rdzv_status = 46;
/// Another session joined the rendezvous under this node's name; this one must not rejoin. Each node
/// needs a unique name.
pub const RDZV_RENDEZVOUS_REPLACED: rdzv_status = 47;
/// The object was freed inside one of its own callbacks, which had no effect; free it again outside.
pub const RDZV_FREE_REFUSED: rdzv_status = 48;
/// The server asks for a token, and the client has none or another one; or the server has not proven that
/// it knows the client's. Two workers of an RPC group ask each other in the same way.
pub const RDZV_UNAUTHENTICATED: rdzv_status = 49;
/// The client's token does not allow the operation, or the lease belongs to another session; the message
/// names what is missing.
pub const RDZV_PERMISSION_DENIED: rdzv_status = 50;

/// Returns the short name of a status.
pub(crate) const fn name_of(status: rdzv_status) -> &'static CStr {
    match status {
        RDZV_OK => c"ok",
        RDZV_INVALID_ARGUMENT => c"invalid argument",
        RDZV_PANIC => c"panic",
        RDZV_POISONED => c"poisoned handle",
        RDZV_TIMED_OUT => c"timed out",
        RDZV_REFUSED => c"connection refused",
        RDZV_SERVER_GONE => c"server gone",
        RDZV_WRONG_PROTOCOL => c"wrong protocol",
        RDZV_UNRESOLVED => c"name not resolved",
        RDZV_UNREACHABLE => c"unreachable",
        RDZV_CANCELLED => c"cancelled",
        RDZV_LIMIT_EXCEEDED => c"limit exceeded",
        RDZV_QUEUE_EMPTY => c"queue empty",
        RDZV_ADDRESS_IN_USE => c"address in use",
        RDZV_IO => c"system error",
        RDZV_CLOSED => c"closed",
        RDZV_REENTRANT => c"re-entrant call",
        RDZV_EXHAUSTED => c"out of resources",
        RDZV_UNSUPPORTED => c"unsupported",
        RDZV_CORRUPT => c"corrupt store",
        RDZV_RENDEZVOUS_CLOSED => c"rendezvous closed",
        RDZV_RENDEZVOUS_TIMED_OUT => c"rendezvous timed out",
        RDZV_RENDEZVOUS_CONNECTION => c"rendezvous connection failed",
        RDZV_RENDEZVOUS_STATE => c"rendezvous state unreadable",
        RDZV_RENDEZVOUS_GRACEFUL_EXIT => c"rendezvous left gracefully",
        RDZV_RENDEZVOUS_REPLACED => c"replaced in the rendezvous",
        RDZV_NOT_REGISTERED => c"not registered",
        RDZV_ALREADY_REGISTERED => c"already registered",
        RDZV_BACKEND_MISMATCH => c"backend mismatch",
        RDZV_BARRIER_BROKEN => c"barrier broken",
        RDZV_COMPACTED => c"compacted",
        RDZV_STALE_ROUND => c"stale round",
        RDZV_NOT_FOUND => c"not found",
        RDZV_CONFLICT => c"conflict",
        RDZV_RPC_UNKNOWN_WORKER => c"unknown worker",
        RDZV_RPC_NO_HANDLER => c"no such handler",
        RDZV_RPC_HANDLER_FAILED => c"handler failed",
        RDZV_RPC_PEER_DIED => c"worker died",
        RDZV_RPC_NO_MEMBER => c"no member",
        RDZV_RPC_LEAVING => c"worker leaves",
        RDZV_RPC_ALREADY_INITIALIZED => c"already initialized",
        RDZV_RPC_MIXED_GROUP => c"mixed group",
        RDZV_RPC_NAME_TAKEN => c"name taken",
        RDZV_RPC_DEVICE_MAP => c"device maps do not fit",
        RDZV_RPC_UNREACHED => c"worker not reached",
        RDZV_RPC_EVICTED => c"taken for dead",
        RDZV_RPC_MEMBERSHIP => c"no group",
        RDZV_RPC_MALFORMED => c"malformed payload",
        RDZV_FREE_REFUSED => c"free refused",
        RDZV_UNAUTHENTICATED => c"unauthenticated",
        RDZV_PERMISSION_DENIED => c"permission denied",
        _ => c"unknown status",
    }
}
