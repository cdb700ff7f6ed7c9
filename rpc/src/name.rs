//! Names of workers.

use core::borrow::Borrow;
use core::ops::Deref;
use core::str::FromStr;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::sort_by;

/// First invalid length of a name, in bytes.
pub const NAME_BYTES_END: usize = 128;

/// Error of an invalid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than {NAME_BYTES_END} chars, but got {got}"
)]
pub struct NameError {
    /// The given name, cut to the maximum length of a name.
    pub got: Box<str>,
}

/// Name of a worker: letters, digits, `-`, `_` and `:`, at least one and fewer than 128. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerName(Arc<str>);

impl WorkerName {
    /// Creates a name.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let of_a_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':');
        if !name.is_empty() && name.len() < NAME_BYTES_END && name.bytes().all(of_a_name) {
            return Ok(Self(name.into()));
        }
        let end = name.floor_char_boundary(NAME_BYTES_END);
        Err(NameError { got: name.get(..end).unwrap_or(name).into() })
    }

    /// Text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for WorkerName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl Deref for WorkerName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for WorkerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats the name as Python writes strings: in quotes. No character of a name needs to be escaped.
impl fmt::Debug for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0)
    }
}

/// One worker of a group: its name and its number, which is its rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerInfo {
    /// Name.
    pub name: WorkerName,
    /// Number.
    pub id: u16,
}

impl WorkerInfo {
    /// Sorts workers by their numbers.
    pub fn sort(workers: &mut [Self]) {
        sort_by(workers, |a, b| a.id < b.id);
    }
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (id {})", self.name, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::ToString;

    #[test]
    fn names_are_letters_digits_and_three_marks() {
        for name in ["a", "worker0", "A-b_c:9", "::", &"x".repeat(127)] {
            let name: WorkerName = name.parse().expect("a name");
            assert_eq!(format!("{name:?}"), format!("'{name}'"));
        }
        for (name, got) in [
            ("", ""),
            (" ", " "),
            ("abc*", "abc*"),
            ("a.b", "a.b"),
            ("a\0", "a\0"),
            ("\u{e4}", "\u{e4}"),
            (&*"x".repeat(500), &*"x".repeat(128)),
            (&*"\u{20ac}".repeat(50), &*"\u{20ac}".repeat(42)),
        ] {
            let error = WorkerName::new(name).expect_err("no name");
            let message = "Worker name must match ^[A-Za-z0-9-_:]*$, and must be non-empty and shorter than 128 chars, \
                         but got ";
            assert_eq!(error.to_string(), format!("{message}{got}"));
        }
    }
}
