//! Every kind of frame: number, name and fields, each said once.

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
        #[allow(missing_docs, reason = "the fields are named and told of as in docs/protocol/rpc.md")]
        pub enum $name<'a> {
            $($(#[$kind_doc])* $variant { $($field: $type),* },)*
        }

        impl<'a> $name<'a> {
            /// Number, name, and names of the fields of each kind.
            pub const KINDS: &'static [(u16, &'static str, &'static [&'static str])] =
                &[$(($kind, stringify!($variant), &[$(stringify!($field)),*])),*];

            /// Reads the body of a frame of this kind; `None` when the kind is not known. What the body holds beyond
            /// the fields that we know is passed over.
            ///
            /// # Errors
            /// The body does not hold what its kind does.
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
    /// What a caller sends, but for data.
    CallerFrame<'a> {
        /// Opens the connection: which versions, which group, who calls, and who is meant.
        0x0001 Hello {
            version_min: u16, version_max: u16, group: &'a [u8], caller: &'a [u8], caller_id: u16, callee: &'a [u8],
            callee_id: u16
        }
        /// Calls a handler. As many bytes follow as data as it says.
        0x0002 Request { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// The same, and nobody waits for an answer: it has the mark [`FLAG_ONE_WAY`], too.
        0x0003 Notice { deadline_ms: u64, payload_bytes: u64, handler: &'a [u8] }
        /// Nobody waits for the answer any more.
        0x0004 Cancel {}
        /// Asks for a sign of life.
        0x0005 Ping { nonce: u64 }
        /// There will be no further requests.
        0x0006 Goodbye {}
    }
}

frames! {
    /// What a callee sends, but for data.
    CalleeFrame<'a> {
        /// Takes the caller in: which version, who it is, and how much may be under way.
        0x8001 Welcome { version: u16, callee: &'a [u8], callee_id: u16, requests_max: u32, bytes_max: u64 }
        /// Answers: a status (0: as many bytes follow as data as it says), and words where it is none.
        0x8002 Response { status: u16, payload_bytes: u64, message: &'a [u8] }
        /// Answers a ping.
        0x8003 Pong { nonce: u64 }
        /// Takes no further requests, and answers those that it has.
        0x8004 Goodbye {}
        /// Does not take the caller in, or has to end: why, as a number and in words.
        0x8005 Refused { why: u16, message: &'a [u8] }
        /// Behind a Pong: all handler threads are busy, and so many requests wait for one.
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
