//! Definition of every kind of frame: number, name and fields.

use rendezvous_core::limits::FrameLimits;
use rendezvous_core::wire::message::{Message, define_frames};
use rendezvous_core::wire::native::{Body, BodyError, Field, Size};
use rendezvous_core::wire::sink::Sink;

define_frames! {
    /// Frame from a caller, other than data.
    CallerFrame<'a> {
        /// Opens the connection: versions, group, caller, and the expected callee.
        0x0001 Small Hello {
            version_min: u16, version_max: u16, group: &'a [u8], caller: &'a [u8], caller_id: u16, callee: &'a [u8],
            callee_id: u16
        }
        /// Calls a handler. `payload_bytes` bytes of data follow.
        0x0002 Small Request { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// Calls a handler without a response; the frame has the flag [`FLAG_ONE_WAY`](super::FLAG_ONE_WAY).
        0x0003 Small Notice { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// The caller does not wait for the response any more.
        0x0004 Small Cancel {}
        /// Requests a pong.
        0x0005 Small Ping { nonce: u64 }
        /// There will be no further requests.
        0x0006 Small Goodbye {}
        /// Answers a challenge: name of the token, nonce of the caller, and proof. Without a token all of it is empty.
        0x0007 Small Proof { token: &'a [u8], nonce: [u8; 32], proof: [u8; 32] }
    }
}

define_frames! {
    /// Frame from a callee, other than data.
    CalleeFrame<'a> {
        /// Accepts the caller: version, callee, and limits of what may be pending.
        0x8001 Small Welcome { version: u16, callee: &'a [u8], callee_id: u16, requests_max: u32, bytes_max: u64 }
        /// Responds: a status, and a message if it is not 0. With status 0, `payload_bytes` bytes of data follow.
        0x8002 Small Response { status: u16, payload_bytes: u64, message: &'a [u8] }
        /// Responds to a ping.
        0x8003 Small Pong { nonce: u64 }
        /// Accepts no further requests, and completes the pending ones.
        0x8004 Small Goodbye {}
        /// Refuses the caller, or closes the connection: reason and message.
        0x8005 Small Refused { why: u16, message: &'a [u8] }
        /// Follows a pong: all handler threads are busy, and this many requests wait for one.
        0x8006 Small Exhausted { threads: u32, waiting: u32 }
        /// Asks the caller to prove the token: nonce of the callee.
        0x8007 Small Challenge { nonce: [u8; 32] }
        /// Proves that the callee knows the token; Welcome follows.
        0x8008 Small Proof { proof: [u8; 32] }
    }
}
