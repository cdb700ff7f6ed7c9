//! The wire protocol of PyTorch's c10d TCPStore.
//!
//! A request is an opcode byte and its fields: fixed-width little-endian integers, and byte strings after a `u64`
//! length. There is no frame length, request id or checksum. Replies carry no id and are matched by order. The
//! grammar, as measured on PyTorch 2.15.0, is in `docs/protocol/c10d.md`.

mod encode;
mod parse;
mod scan;

pub use encode::encode_frame;
pub use parse::{Frame, parse_frame};
pub use scan::{FrameError, Scan, Scanner};

/// Magic number of a VALIDATE request.
pub const MAGIC: u32 = 0x3c85_f7ce;

/// Reply to CHECK when every key exists.
pub const READY: u8 = 0;
/// Reply to CHECK when a key is missing.
pub const NOT_READY: u8 = 1;
/// Reply to WAIT and BARRIER.
pub const STOP_WAITING: u8 = 0;
/// Reply to CANCEL_WAIT.
pub const WAIT_CANCELED: u8 = 1;

/// The 19 opcodes, with their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "named as in the protocol; see the requests of store::op")]
pub enum Opcode {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    Delete = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Opcode {
    /// All opcodes, in the order of their numbers.
    pub const ALL: [Self; 19] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::NumKeys,
        Self::Delete,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
    ];

    /// Returns the opcode with this number.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        if (byte as usize) < Self::ALL.len() { Some(Self::ALL[byte as usize]) } else { None }
    }

    /// Returns the fields after the opcode, in order.
    const fn fields(self) -> &'static [Field] {
        use Field::{Keys, Number, Pairs, U32};
        match self {
            Self::Validate | Self::Ping => &[U32],
            Self::Set | Self::Append | Self::QueuePush => &[Field::Key, Field::Value],
            Self::CompareSet => &[Field::Key, Field::Value, Field::Value],
            Self::Get | Self::Delete | Self::QueuePop | Self::QueueLen => &[Field::Key],
            Self::Add | Self::Barrier => &[Field::Key, Number],
            Self::Check | Self::Wait | Self::MultiGet => &[Keys],
            Self::MultiSet => &[Pairs],
            Self::NumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}

/// Type of a field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// A `u64` length and as many bytes, limited as a key.
    Key,
    /// A `u64` length and as many bytes, limited as a value.
    Value,
    /// An `i64`.
    Number,
    /// A `u32`.
    U32,
    /// A `u64` count and as many keys.
    Keys,
    /// A `u64` count and as many keys, each followed by its value.
    Pairs,
}

#[cfg(test)]
mod tests;
