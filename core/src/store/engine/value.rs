//! Values. A counter is stored as a number and formatted as text when it is read.

use crate::prelude::*;
use crate::shared::{Meter, SharedBytes};
use crate::store::value_ref::ValueRef;

/// Capacity that a value keeps when it becomes shorter, in bytes, so that changes of length below this do not
/// reallocate. A longer value releases its memory when a value of less than half its length replaces it.
const KEPT_CAPACITY: usize = 512;
/// Length above which a value is shared with the history and with unsent answers, in bytes. Copying a shorter one costs
/// less than sharing it.
const COPIED_MAX: usize = 1024;

/// Value of a key.
#[derive(Debug)]
pub(super) enum Value {
    Absent,
    /// A counter; its value is the decimal text of the number.
    Number(i64),
    Bytes(Vec<u8>),
    Shared(Box<SharedBytes>),
}

impl Value {
    pub(super) fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Absent => ValueRef::Bytes(b""),
            Self::Number(number) => ValueRef::Number(*number),
            Self::Bytes(bytes) => ValueRef::Bytes(bytes.as_slice()),
            Self::Shared(bytes) => ValueRef::Shared(bytes),
        }
    }

    /// Returns the number at the start of the value; 0 when there is no value, `None` when there is no number.
    pub(super) fn as_number(&self) -> Option<i64> {
        match self {
            Self::Absent => Some(0),
            _ => self.as_ref().as_number(),
        }
    }

    pub(super) fn len(&self) -> usize {
        if let Self::Absent = self { 0 } else { self.as_ref().len() }
    }

    /// Returns the length of the value as text.
    pub(super) fn text_bytes(&self) -> usize {
        if let Self::Number(number) = self { itoa::Buffer::new().format(*number).len() } else { self.len() }
    }

    /// Returns the bytes that the meter counts for it.
    #[inline]
    pub(super) fn shared_bytes(&self) -> u64 {
        if let Self::Shared(bytes) = self { bytes.held_bytes() as u64 } else { 0 }
    }

    pub(super) fn set(&mut self, new: &[u8], meter: &Meter) {
        match self {
            _ if new.len() > COPIED_MAX => *self = Self::Shared(Box::new(SharedBytes::new(new, meter))),
            Self::Bytes(bytes) if bytes.capacity() <= KEPT_CAPACITY.max(new.len().saturating_mul(2)) => {
                bytes.clear();
                bytes.extend_from_slice(new);
            }
            _ => *self = Self::Bytes(new.to_vec()),
        }
    }

    pub(super) fn append(&mut self, more: &[u8], meter: &Meter) {
        match self {
            Self::Bytes(bytes) if bytes.len() + more.len() <= COPIED_MAX => bytes.extend_from_slice(more),
            Self::Bytes(bytes) => {
                let mut shared = SharedBytes::new(bytes, meter);
                shared.append(more);
                *self = Self::Shared(Box::new(shared));
            }
            Self::Shared(bytes) => bytes.append(more),
            Self::Absent => self.set(more, meter),
            &mut Self::Number(number) => {
                let mut text = itoa::Buffer::new();
                self.set(&[text.format(number).as_bytes(), more].concat(), meter);
            }
        }
    }
}

impl ValueRef<'_> {
    /// Copies the bytes of the value.
    pub fn to_vec(&self) -> Vec<u8> {
        self.read(<[u8]>::to_vec)
    }
}

/// Value that is kept although the store's may change.
#[derive(Debug)]
pub enum KeptValue {
    /// Copy of a short one.
    Copy(Box<[u8]>),
    /// A counter.
    Number(i64),
    /// A long one.
    Shared(SharedBytes),
}

impl From<ValueRef<'_>> for KeptValue {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Bytes(bytes) => Self::Copy(bytes.into()),
            ValueRef::Number(number) => Self::Number(number),
            ValueRef::Shared(bytes) => Self::Shared(bytes.clone()),
        }
    }
}

impl KeptValue {
    /// Borrows the value.
    pub const fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Copy(bytes) => ValueRef::Bytes(bytes),
            Self::Number(number) => ValueRef::Number(*number),
            Self::Shared(bytes) => ValueRef::Shared(bytes),
        }
    }

    /// Returns the memory in bytes that it takes. That of a long value may be longer than the value: it has room to grow.
    pub const fn held_bytes(&self) -> usize {
        match self {
            Self::Copy(bytes) => bytes.len(),
            Self::Number(_) => 0,
            Self::Shared(bytes) => bytes.held_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_near_what_is_charged() {
        let mut value = Value::Absent;
        value.set(&[0; 1024], &Meter::default());
        value.set(b"x", &Meter::default());
        let Value::Bytes(bytes) = &value else { unreachable!("it was set") };
        assert!(bytes.capacity() <= KEPT_CAPACITY, "{} bytes held for one", bytes.capacity());
    }

    #[test]
    fn a_value_is_the_same_however_it_is_stored() {
        let meter = Meter::default();
        let (mut value, mut expected) = (Value::Number(-17), b"-17".to_vec());
        for (step, letter) in (b'a'..=b'z').cycle().take(6000).enumerate() {
            let more = vec![letter; step % 5];
            value.append(&more, &meter);
            expected.extend_from_slice(&more);
            assert_eq!(value.len(), expected.len());
        }
        assert!(matches!(value, Value::Shared(_)) && value.as_ref().equals(&expected));
        assert_eq!(value.as_number(), Some(-17));
        value.set(b"8", &meter);
        assert_eq!((value.as_number(), meter.bytes()), (Some(8), 0));
    }
}
