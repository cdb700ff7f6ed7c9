//! Definition of every kind of frame: number, name and fields.

use super::{FLAG_ONE_WAY, FrameError, Message, body_error, limits};
use rendezvous_core::wire::native::{Body, Field};
use rendezvous_core::wire::sink::Sink;

macro_rules! frames {
    (
        $(#[$doc:meta])* $name:ident<'a> {
            $($(#[$kind_doc:meta])* $kind:literal $variant:ident { $($field:ident: $type:ty),* })*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "docs/protocol/rpc.md describes the fields")]
        pub enum $name<'a> {
            $($(#[$kind_doc])* $variant { $($field: $type),* },)*
        }

        impl<'a> $name<'a> {
            /// Number, name, and field names of each kind.
            pub const KINDS: &'static [(u16, &'static str, &'static [&'static str])] =
                &[$(($kind, stringify!($variant), &[$(stringify!($field)),*])),*];

            /// Decodes the body of a frame of this kind; `None` if the kind is unknown. Bytes after the known fields
            /// are ignored.
            ///
            /// # Errors
            /// The body does not have the fields of its kind.
            #[allow(unused_mut, unused_variables, reason = "some kinds have no fields")]
            pub fn parse(kind: u16, bytes: &'a [u8]) -> Result<Option<Self>, FrameError> {
                let mut body = Body::new(bytes, limits());
                let wrong = body_error(kind);
                Ok(Some(match kind {
                    $($kind => Self::$variant { $($field: Field::read(&mut body).map_err(&wrong)?),* },)*
                    _ => return Ok(None),
                }))
            }

            const fn number(&self) -> u16 {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }

            #[allow(unused_variables, reason = "some kinds have no fields")]
            fn write_fields(&self, out: &mut impl Sink) {
                match self {
                    $(Self::$variant { $($field),* } => { $($field.write(out);)* })*
                }
            }
        }
    };
}

frames! {
    /// Frame from a caller, other than data.
    CallerFrame<'a> {
        /// Opens the connection: versions, group, caller, and the expected callee.
        0x0001 Hello {
            version_min: u16, version_max: u16, group: &'a [u8], caller: &'a [u8], caller_id: u16, callee: &'a [u8],
            callee_id: u16
        }
        /// Calls a handler. `payload_bytes` bytes of data follow.
        0x0002 Request { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// Calls a handler without a response; the frame has the flag [`FLAG_ONE_WAY`].
        0x0003 Notice { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// The caller does not wait for the response any more.
        0x0004 Cancel {}
        /// Requests a pong.
        0x0005 Ping { nonce: u64 }
        /// There will be no further requests.
        0x0006 Goodbye {}
    }
}

frames! {
    /// Frame from a callee, other than data.
    CalleeFrame<'a> {
        /// Accepts the caller: version, callee, and limits of what may be pending.
        0x8001 Welcome { version: u16, callee: &'a [u8], callee_id: u16, requests_max: u32, bytes_max: u64 }
        /// Responds: a status, and a message if it is not 0. With status 0, `payload_bytes` bytes of data follow.
        0x8002 Response { status: u16, payload_bytes: u64, message: &'a [u8] }
        /// Responds to a ping.
        0x8003 Pong { nonce: u64 }
        /// Accepts no further requests, and completes the pending ones.
        0x8004 Goodbye {}
        /// Refuses the caller, or closes the connection: reason and message.
        0x8005 Refused { why: u16, message: &'a [u8] }
        /// Follows a pong: all handler threads are busy, and this many requests wait for one.
        0x8006 Exhausted { threads: u32, waiting: u32 }
    }
}

impl Message for CallerFrame<'_> {
    fn kind(&self) -> u16 {
        self.number()
    }

    fn flags(&self) -> u16 {
        if matches!(self, Self::Notice { .. }) { FLAG_ONE_WAY } else { 0 }
    }

    fn write_body(&self, out: &mut impl Sink) {
        self.write_fields(out);
    }
}

impl Message for CalleeFrame<'_> {
    fn kind(&self) -> u16 {
        self.number()
    }

    fn flags(&self) -> u16 {
        0
    }

    fn write_body(&self, out: &mut impl Sink) {
        self.write_fields(out);
    }
}
