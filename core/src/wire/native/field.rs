//! The building blocks of a frame's body: each writes and reads itself, so that no two places must agree on a layout.

use crate::limits::FrameLimits;
use crate::store::op::{Key, Keys, Pairs};
use crate::wire::sink::Sink;

/// What is wrong with a body whose frame came whole: the connection goes on, the request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The fields go on where the body ends.
    #[error("the fields go on where the body ends")]
    Truncated,
    /// A field has a value that means nothing.
    #[error("a field has the value {0}, which means nothing here")]
    Meaningless(u64),
    /// A key is longer than the limit.
    #[error("a key of {0} bytes is over the limit")]
    KeyTooLong(u64),
    /// A value is longer than the limit.
    #[error("a value of {0} bytes is over the limit")]
    ValueTooLong(u64),
    /// A list is longer than the limit.
    #[error("a list of {0} elements is over the limit")]
    ListTooLong(u64),
}

/// The unread rest of a body.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a> {
    rest: &'a [u8],
    limits: &'a FrameLimits,
}

impl<'a> Body<'a> {
    /// A body from its first byte.
    #[must_use]
    pub const fn new(bytes: &'a [u8], limits: &'a FrameLimits) -> Self {
        Self { rest: bytes, limits }
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

    /// The number of elements of a list, within the limit.
    #[inline(never)]
    fn count(&mut self) -> Result<usize, BodyError> {
        let count = u64::from_le_bytes(self.fixed()?);
        // An element has at least one byte, so no loop runs longer than the body is.
        if count > self.limits.keys_max {
            return Err(BodyError::ListTooLong(count));
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

    /// What was read since `before`, a copy of this body.
    fn since(&self, before: &Self) -> &'a [u8] {
        &before.rest[..before.rest.len() - self.rest.len()]
    }
}

/// Something that stands in a body.
pub trait Field<'a>: Sized {
    /// Writes it.
    fn write(&self, out: &mut impl Sink);

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    fn read(body: &mut Body<'a>) -> Result<Self, BodyError>;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl<'a> Field<'a> for $type {
            fn write(&self, out: &mut impl Sink) {
                out.put(&self.to_le_bytes());
            }

            fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
                body.fixed().map(Self::from_le_bytes)
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 i32 i64);

/// An integer at the end of a body that clients of earlier releases leave out, which is 0 then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrZero(pub u64);

impl<'a> Field<'a> for OrZero {
    fn write(&self, out: &mut impl Sink) {
        self.0.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        if body.rest.is_empty() { Ok(Self(0)) } else { u64::read(body).map(Self) }
    }
}

impl<'a> Field<'a> for [u8; 16] {
    fn write(&self, out: &mut impl Sink) {
        out.put(self);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.fixed()
    }
}

/// Bytes of a value's length at most.
impl<'a> Field<'a> for &'a [u8] {
    fn write(&self, out: &mut impl Sink) {
        (self.len() as u64).write(out);
        out.put(self);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.value()
    }
}

impl<'a> Field<'a> for Key<'a> {
    fn write(&self, out: &mut impl Sink) {
        (self.len() as u64).write(out);
        self.pieces().into_iter().for_each(|part| out.put(part));
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        body.key().map(Key::raw)
    }
}

impl<'a> Field<'a> for Keys<'a> {
    fn write(&self, out: &mut impl Sink) {
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
    fn write(&self, out: &mut impl Sink) {
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

/// A `u8`: 1 or 0; anything else means nothing.
impl<'a> Field<'a> for bool {
    fn write(&self, out: &mut impl Sink) {
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

/// A value behind a `u8` that says whether it is there.
impl<'a> Field<'a> for Option<&'a [u8]> {
    fn write(&self, out: &mut impl Sink) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        if bool::read(body)? { body.value().map(Some) } else { Ok(None) }
    }
}

/// A list of records: as it stands in a received body, or as a caller's slice. Each record stands behind its `u32`
/// length; what a record holds beyond the fields that we know is passed over.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Source<'a, T>);

#[derive(Clone, Copy)]
enum Source<'a, T> {
    Packed { count: usize, body: Body<'a> },
    Slice(&'a [T]),
}

impl<'a, T: Field<'a> + Copy> List<'a, T> {
    /// The records of a slice.
    #[must_use]
    pub const fn new(items: &'a [T]) -> Self {
        Self(Source::Slice(items))
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.0 {
            Source::Packed { count, .. } => count,
            Source::Slice(items) => items.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + Clone + use<'a, T> {
        let (count, mut body, items) = match self.0 {
            Source::Packed { count, body } => (count, Some(body), &[][..]),
            Source::Slice(items) => (0, None, items),
        };
        // Every record was read once when the list was, so none fails now.
        let packed = (0..count).filter_map(move |_| record(body.as_mut()?).ok());
        items.iter().copied().chain(packed)
    }
}

#[inline(never)]
fn record<'a, T: Field<'a>>(body: &mut Body<'a>) -> Result<T, BodyError> {
    let length = u32::read(body)?;
    let rest = body.take(u64::from(length))?;
    T::read(&mut Body { rest, limits: body.limits })
}

impl<'a, T: Field<'a> + Copy> Field<'a> for List<'a, T> {
    fn write(&self, out: &mut impl Sink) {
        (self.len() as u64).write(out);
        for item in self.iter() {
            let mut length = crate::wire::sink::Length::default();
            item.write(&mut length);
            // invariant: a frame is shorter than 4 GiB, which `encode_frame` checks, and so is all that is in it
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
