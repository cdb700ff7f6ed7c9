//! Status codes.

use std::ffi::CStr;

/// The outcome of a call: `RDZV_OK` or one of the numbers below. Numbers are never reused.
pub type rdzv_status = i32;

/// Done.
pub const RDZV_OK: rdzv_status = 0;
/// An argument is NULL, out of range, not UTF-8 where text is due, or otherwise makes no sense.
pub const RDZV_INVALID_ARGUMENT: rdzv_status = 1;
/// A bug in the library was caught at its border. The handle is poisoned: free it.
pub const RDZV_PANIC: rdzv_status = 2;
/// An earlier call on this handle ended with `RDZV_PANIC`; only its `_free` function may be called.
pub const RDZV_POISONED: rdzv_status = 3;
/// The deadline passed.
pub const RDZV_TIMED_OUT: rdzv_status = 4;
/// Nobody listens at the address.
pub const RDZV_REFUSED: rdzv_status = 5;
/// The connection ended while the operation was under way.
pub const RDZV_SERVER_GONE: rdzv_status = 6;
/// The peer is not a store, or breaks the protocol.
pub const RDZV_WRONG_PROTOCOL: rdzv_status = 7;
/// The host name has no address.
pub const RDZV_UNRESOLVED: rdzv_status = 8;
/// There is no way to the address.
pub const RDZV_UNREACHABLE: rdzv_status = 9;
/// The operation was cancelled by another call.
pub const RDZV_CANCELLED: rdzv_status = 10;
/// An argument or an answer is over a limit.
pub const RDZV_LIMIT_EXCEEDED: rdzv_status = 11;
/// There was no item to take from the queue.
pub const RDZV_QUEUE_EMPTY: rdzv_status = 12;
/// Another socket has the port.
pub const RDZV_ADDRESS_IN_USE: rdzv_status = 13;
/// The operating system refused for another reason; the error has its number and words.
pub const RDZV_IO: rdzv_status = 14;
/// The server was stopped.
pub const RDZV_CLOSED: rdzv_status = 15;
/// A plug-in called back into the handle that is calling it.
pub const RDZV_REENTRANT: rdzv_status = 16;
/// The process is out of descriptors, threads or memory; or the worker that was called has no room for the
/// request, which no handler has seen.
pub const RDZV_EXHAUSTED: rdzv_status = 17;
/// Stores of this kind do not have the operation.
pub const RDZV_UNSUPPORTED: rdzv_status = 18;
/// A file that is no store, or has a torn record; the message tells at which offset.
pub const RDZV_CORRUPT: rdzv_status = 19;
/// The rendezvous is closed, for good.
pub const RDZV_RENDEZVOUS_CLOSED: rdzv_status = 20;
/// An operation of the rendezvous passed its deadline: joining, leaving, closing or its keep-alive.
pub const RDZV_RENDEZVOUS_TIMED_OUT: rdzv_status = 21;
/// What the rendezvous is held over cannot be reached; `rdzv_error_cause` tells why.
pub const RDZV_RENDEZVOUS_CONNECTION: rdzv_status = 22;
/// What is stored for the rendezvous cannot be read; `rdzv_error_cause` tells why.
pub const RDZV_RENDEZVOUS_STATE: rdzv_status = 23;
/// The rendezvous has closed, and this spare node is sent home: no failure.
pub const RDZV_RENDEZVOUS_GRACEFUL_EXIT: rdzv_status = 24;
/// Nobody has registered the backend or the URL scheme.
pub const RDZV_NOT_REGISTERED: rdzv_status = 25;
/// Another has registered the backend, or anybody the URL scheme.
pub const RDZV_ALREADY_REGISTERED: rdzv_status = 26;
/// A handler says that it is of another backend than the one that was asked for.
pub const RDZV_BACKEND_MISMATCH: rdzv_status = 27;
/// A participant of the barrier died.
pub const RDZV_BARRIER_BROKEN: rdzv_status = 28;
/// The server does not remember changes that far back; `rdzv_error_revision` tells the oldest that it does.
pub const RDZV_COMPACTED: rdzv_status = 29;
/// The round that the key belongs to is over: nothing beneath its prefix can be changed any more.
pub const RDZV_STALE_ROUND: rdzv_status = 30;
/// There is no such lease, round or generation of a barrier, or not any more.
pub const RDZV_NOT_FOUND: rdzv_status = 31;
/// Others asked for the same in another way, and were first.
pub const RDZV_CONFLICT: rdzv_status = 32;
/// There is no worker of the name or number in the RPC group.
pub const RDZV_RPC_UNKNOWN_WORKER: rdzv_status = 33;
/// The worker that was called has no handler of the name.
pub const RDZV_RPC_NO_HANDLER: rdzv_status = 34;
/// The handler failed; `rdzv_error_cause` has its words.
pub const RDZV_RPC_HANDLER_FAILED: rdzv_status = 35;
/// The worker is dead, or its connection ended. Nobody knows whether the call was carried out, unless the
/// message says that it was not sent.
pub const RDZV_RPC_PEER_DIED: rdzv_status = 36;
/// This worker is of no RPC group, or of none any more.
pub const RDZV_RPC_NO_MEMBER: rdzv_status = 37;
/// The worker that was called, or this one, takes no further calls.
pub const RDZV_RPC_LEAVING: rdzv_status = 38;
/// The context has an RPC worker already.
pub const RDZV_RPC_ALREADY_INITIALIZED: rdzv_status = 39;
/// The group is static, and the worker would be in a dynamic one, or the other way round.
pub const RDZV_RPC_MIXED_GROUP: rdzv_status = 40;
/// Another worker of the group has the name, or the number.
pub const RDZV_RPC_NAME_TAKEN: rdzv_status = 41;
/// Device maps and lists of the group do not fit together.
pub const RDZV_RPC_DEVICE_MAP: rdzv_status = 42;
/// A worker of the group that is not known to be dead cannot be called, and was not.
pub const RDZV_RPC_UNREACHED: rdzv_status = 43;
/// The others took this worker for dead, and go on without it.
pub const RDZV_RPC_EVICTED: rdzv_status = 44;
/// The RPC group did not form, or did not part as it should; the message tells why.
pub const RDZV_RPC_MEMBERSHIP: rdzv_status = 45;
/// A payload is not what its reader takes it for.
pub const RDZV_RPC_MALFORMED: rdzv_status = 46;
/// Another session joined the rendezvous under this node's name, which must not come back. Each node needs a
/// name of its own.
pub const RDZV_RENDEZVOUS_REPLACED: rdzv_status = 47;

/// The short name of a status.
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
        _ => c"unknown status",
    }
}
