//! Parser of whole frames into requests that borrow from the input.

use super::Opcode;
use crate::store::op::{Key, Keys, Pairs, Request};

/// Frame from a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frame<'a> {
    /// The greeting.
    Validate {
        /// Must be [`super::MAGIC`].
        magic: u32,
    },
    /// A number for the server to echo.
    Ping {
        /// Any number.
        nonce: u32,
    },
    /// A request for the store.
    Request(Request<'a>),
}

/// Parses a frame that a [`super::Scanner`] found complete. Returns `None` for any other input.
#[inline]
pub fn parse_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let (&first, rest) = bytes.split_first()?;
    let mut fields = Fields(rest);
    let request = match Opcode::from_byte(first)? {
        Opcode::Validate => return Some(Frame::Validate { magic: fields.u32_field()? }),
        Opcode::Ping => return Some(Frame::Ping { nonce: fields.u32_field()? }),
        Opcode::Set => Request::Set { key: fields.key()?, value: fields.string()? },
        Opcode::CompareSet => {
            Request::CompareSet { key: fields.key()?, expected: fields.string()?, desired: fields.string()? }
        }
        Opcode::Get => Request::Get { key: fields.key()? },
        Opcode::Add => Request::Add { key: fields.key()?, delta: fields.number()? },
        Opcode::Check => Request::Check { keys: fields.keys()? },
        Opcode::Wait => Request::Wait { keys: fields.keys()? },
        Opcode::NumKeys => Request::NumKeys,
        Opcode::Delete => Request::Delete { key: fields.key()? },
        Opcode::Append => Request::Append { key: fields.key()?, value: fields.string()? },
        Opcode::MultiGet => Request::MultiGet { keys: fields.keys()? },
        Opcode::MultiSet => {
            let count = usize::try_from(fields.number()?).ok()?;
            Request::MultiSet { pairs: Pairs::packed(count, fields.0) }
        }
        Opcode::CancelWait => Request::CancelWait,
        Opcode::QueuePush => Request::QueuePush { key: fields.key()?, value: fields.string()? },
        Opcode::QueuePop => Request::QueuePop { key: fields.key()? },
        Opcode::QueueLen => Request::QueueLen { key: fields.key()? },
        Opcode::ListKeys => Request::ListKeys,
        Opcode::Barrier => Request::Barrier { key: fields.key()?, world_size: fields.number()? },
    };
    Some(Frame::Request(request))
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn u32_field(&mut self) -> Option<u32> {
        let (u32_field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*u32_field))
    }

    #[inline]
    fn number(&mut self) -> Option<i64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_le_bytes(*number))
    }

    #[inline]
    fn string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (string, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(string)
    }

    #[inline]
    fn key(&mut self) -> Option<Key<'a>> {
        self.string().map(Key::raw)
    }

    fn keys(&mut self) -> Option<Keys<'a>> {
        let count = usize::try_from(self.number()?).ok()?;
        Some(Keys::packed(count, self.0))
    }
}
