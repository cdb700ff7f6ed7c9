//! Fields of a frame's body. Each type both writes and reads itself, so that its layout is defined once.

use crate::limits::FrameLimits;
use crate::store::op::{Key, Keys, Pairs};
use crate::store::value_ref::ValueRef;
use crate::wire::sink::Sink;

/// Error in the body of a complete frame: the request is refused, and the connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body ends before the fields do.
    #[error("the body ends before its fields do")]
    Truncated,
    /// A field has an invalid value.
    #[error("a field has the invalid value {0}")]
    Meaningless(u64),
    /// A key exceeds the limit; its length in bytes.
    #[error("a key of {0} bytes is over the limit")]
    KeyTooLong(u64),
    /// A value exceeds the limit; its length in bytes.
    #[error("a value of {0} bytes is over the limit")]
    ValueTooLong(u64),
    /// The lists of a frame, those within lists included, exceed the limit; their number of elements so far.
    #[error("lists of {0} elements together are over the limit")]
    ListTooLong(u64),
    /// The keys of a frame together exceed the limit; their length so far, in bytes.
    #[error("keys of {0} bytes together are over the limit")]
    KeysTooLong(u64),
}

/// Unread rest of a body.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    pub(super) rest: &'a [u8],
    limits: &'a FrameLimits,
    /// Number of elements of the frame's lists so far.
    elements: u64,
    /// Length of the frame's keys so far, in bytes.
    key_bytes: u64,
}

impl<'a> Body<'a> {
    /// Creates the reader of a body from its first byte.
    pub const fn new(bytes: &'a [u8], limits: &'a FrameLimits) -> Self {
        Self { rest: bytes, limits, elements: 0, key_bytes: 0 }
    }

    #[inline(never)]
    fn take(&mut self, length: u64) -> Result<&'a [u8], BodyError> {
        let length = usize::try_from(length).map_err(|_| BodyError::Truncated)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(BodyError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline(never)]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], BodyError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(BodyError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the number of elements of a list, within the limit for all lists of the frame.
    #[inline(never)]
    fn count(&mut self) -> Result<usize, BodyError> {
        let count = u64::from_le_bytes(self.fixed()?);
        self.elements = self.elements.saturating_add(count);
        // An element has at least one byte, so no loop has more iterations than the body has bytes.
        if self.elements > self.limits.keys_max {
            return Err(BodyError::ListTooLong(self.elements));
        }
        if count > self.rest.len() as u64 {
            return Err(BodyError::Truncated);
        }
        usize::try_from(count).map_err(|_| BodyError::ListTooLong(count))
    }

    #[inline(never)]
    fn key(&mut self) -> Result<&'a [u8], BodyError> {
        let length = u64::from_le_bytes(self.fixed()?);
        if length > self.limits.key_bytes_max {
            return Err(BodyError::KeyTooLong(length));
        }
        self.key_bytes = self.key_bytes.saturating_add(length);
        if self.key_bytes > self.limits.all_key_bytes_max {
            return Err(BodyError::KeysTooLong(self.key_bytes));
        }
        self.take(length)
    }

    #[inline(never)]
    fn value(&mut self) -> Result<&'a [u8], BodyError> {
        let length = u64::from_le_bytes(self.fixed()?);
        if length > self.limits.value_bytes_max {
            return Err(BodyError::ValueTooLong(length));
        }
        self.take(length)
    }

    /// Returns the bytes that were read since `before`, an earlier copy of this body.
    fn since(&self, before: &Self) -> &'a [u8] {
        &before.rest[..before.rest.len() - self.rest.len()]
    }
}

/// Field of a body.
pub trait Field<'a>: Sized {
    /// Writes the field.
    fn write(&self, out: &mut dyn Sink);

    /// Reads the field.
    ///
    /// # Errors
    /// The error in the bytes.
    fn read(body: &mut Body<'a>) -> Result<Self, BodyError>;
}

/// Defines how records are written: their fields in order.
macro_rules! records {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl<'a> Field<'a> for $name<'a> {
            fn write(&self, out: &mut dyn Sink) {
                $(self.$field.write(out);)*
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                Ok(Self { $($field: Field::read(body)?),* })
            }
        }
    )*};
}

/// Defines how choices with fields are written: a number in one byte, then the fields of that variant in order.
macro_rules! variants {
    ($($name:ident { $($number:literal $variant:ident $(($only:ident))? $({ $($field:ident),* })?,)* })*) => {$(
        impl<'a> Field<'a> for $name<'a> {
            fn write(&self, out: &mut dyn Sink) {
                match self {
                    $(Self::$variant $(($only))? $({ $($field),* })? => {
                        u8::write(&$number, out);
                        $($only.write(out);)?
                        $($($field.write(out);)*)?
                    })*
                }
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                match u8::read(body)? {
                    $($number => {
                        $(let $only = Field::read(body)?;)?
                        $($(let $field = Field::read(body)?;)*)?
                        Ok(Self::$variant $(($only))? $({ $($field),* })?)
                    })*
                    other => Err(BodyError::Meaningless(u64::from(other))),
                }
            }
        }
    )*};
}

pub(super) use {records, variants};

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl<'a> Field<'a> for $type {
            fn write(&self, out: &mut dyn Sink) {
                out.put(&self.to_le_bytes());
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                body.fixed().map(Self::from_le_bytes)
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 i32 i64);

impl<'a, const N: usize> Field<'a> for [u8; N] {
    fn write(&self, out: &mut dyn Sink) {
        out.put(self);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.fixed()
    }
}

/// Bytes, limited as a value.
impl<'a> Field<'a> for &'a [u8] {
    fn write(&self, out: &mut dyn Sink) {
        (self.len() as u64).write(out);
        out.put(self);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.value()
    }
}

impl<'a> Field<'a> for ValueRef<'a> {
    fn write(&self, out: &mut dyn Sink) {
        match self {
            Self::Shared(bytes) => {
                (bytes.len() as u64).write(out);
                out.put_shared(bytes);
            }
            _ => ValueRef::read(self, |bytes| bytes.write(out)),
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.value().map(Self::Bytes)
    }
}

impl<'a> Field<'a> for Key<'a> {
    fn write(&self, out: &mut dyn Sink) {
        (self.len() as u64).write(out);
        self.pieces().into_iter().for_each(|part| out.put(part));
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.key().map(Key::raw)
    }
}

impl<'a> Field<'a> for Keys<'a> {
    fn write(&self, out: &mut dyn Sink) {
        (self.len() as u64).write(out);
        self.iter().for_each(|key| key.write(out));
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        let count = body.count()?;
        let start = *body;
        (0..count).try_for_each(|_| body.key().map(drop))?;
        Ok(Keys::packed(count, body.since(&start)))
    }
}

impl<'a> Field<'a> for Pairs<'a> {
    fn write(&self, out: &mut dyn Sink) {
        (self.len() as u64).write(out);
        self.iter().for_each(|(key, value)| {
            key.write(out);
            value.write(out);
        });
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        let count = body.count()?;
        let start = *body;
        (0..count).try_for_each(|_| body.key().and_then(|_| body.value()).map(drop))?;
        Ok(Pairs::packed(count, body.since(&start)))
    }
}

/// A `u8`: 1 or 0; any other value is invalid.
impl<'a> Field<'a> for bool {
    fn write(&self, out: &mut dyn Sink) {
        u8::from(*self).write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        match u8::read(body)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(BodyError::Meaningless(u64::from(other))),
        }
    }
}

/// Two fields, one after the other.
impl<'a, A: Field<'a>, B: Field<'a>> Field<'a> for (A, B) {
    fn write(&self, out: &mut dyn Sink) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok((A::read(body)?, B::read(body)?))
    }
}

/// A `u8` that says whether there is a value, and the value.
impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn write(&self, out: &mut dyn Sink) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        if bool::read(body)? { T::read(body).map(Some) } else { Ok(None) }
    }
}

/// List of records: encoded in a received body, or a caller's slice. Each record follows its `u32` length.
/// Additional bytes of a record, which later versions may add, are ignored.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Source<'a, T>);

#[derive(Clone, Copy)]
enum Source<'a, T> {
    Packed { count: usize, body: Body<'a> },
    Slice(&'a [T]),
}

impl<'a, T: Field<'a> + Copy> List<'a, T> {
    /// Creates a list of the records of a slice.
    pub const fn new(items: &'a [T]) -> Self {
        Self(Source::Slice(items))
    }

    /// Returns the number of records.
    pub const fn len(&self) -> usize {
        match self.0 {
            Source::Packed { count, .. } => count,
            Source::Slice(items) => items.len(),
        }
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the records in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + Clone + use<'a, T> {
        let (count, mut body, items) = match self.0 {
            Source::Packed { count, body } => (count, Some(body), &[][..]),
            Source::Slice(items) => (0, None, items),
        };
        // `Field::read` of the list has read every record, so none fails now.
        let packed = (0..count).filter_map(move |_| record(body.as_mut()?).ok());
        items.iter().copied().chain(packed)
    }
}

#[inline(never)]
fn record<'a, T: Field<'a>>(body: &mut Body<'a>) -> Result<T, BodyError> {
    let length = u32::read(body)?;
    let rest = body.take(u64::from(length))?;
    let mut own = Body { rest, ..*body };
    let record = T::read(&mut own);
    (body.elements, body.key_bytes) = (own.elements, own.key_bytes);
    record
}

impl<'a, T: Field<'a> + Copy> Field<'a> for List<'a, T> {
    fn write(&self, out: &mut dyn Sink) {
        (self.len() as u64).write(out);
        for item in self.iter() {
            let mut length = crate::wire::sink::Length::default();
            item.write(&mut length);
            // invariant: a frame is shorter than 4 GiB, which `encode_frame` checks, and so are all its fields
            u32::try_from(length.0).unwrap_or(u32::MAX).write(out);
            item.write(out);
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        let count = body.count()?;
        let start = *body;
        (0..count).try_for_each(|_| record::<T>(body).map(drop))?;
        Ok(Self(Source::Packed { count, body: start }))
    }
}

impl<'a, T: Field<'a> + Copy + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Field<'a> + Copy + core::fmt::Debug> core::fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
