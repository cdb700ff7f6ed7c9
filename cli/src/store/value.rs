//! Values, from the command line or from stdin.

use super::Operation;
use crate::failure::Failure;
use rendezvous_core::error::ErrorKind;
use rendezvous_core::limits::VALUE_BYTES_MAX;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

impl Operation {
    /// All that can be done before there is a connection: finds misuse, and puts what stdin has in the place of a value
    /// that is `-`.
    pub(super) fn prepare(&mut self, stdin: &mut impl Read) -> Result<(), Failure> {
        match self {
            Self::CompareSet { expected, desired, .. } if expected == "-" && desired == "-" => {
                Err(misused("EXPECTED and DESIRED cannot both be read from stdin"))
            }
            Self::CompareSet { expected, desired, .. } => {
                fill(expected, stdin).and_then(|()| fill(desired, stdin))
            }
            Self::Set { value, .. } | Self::Append { value, .. } | Self::QueuePush { value, .. } => {
                fill(value, stdin)
            }
            Self::MultiSet { pairs } => pairs.iter().try_for_each(|pair| split_pair(pair).map(drop)),
            _ => Ok(()),
        }
    }
}

fn fill(value: &mut OsString, stdin: &mut impl Read) -> Result<(), Failure> {
    if value == "-" {
        let mut bytes = Vec::new();
        stdin.take(VALUE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| {
            Failure::new(ErrorKind::Io, format!("the value cannot be read from stdin: {error}"))
        })?;
        if bytes.len() as u64 > VALUE_BYTES_MAX {
            let message = format!("the value on stdin is over the limit of {VALUE_BYTES_MAX} bytes");
            return Err(Failure::new(ErrorKind::LimitExceeded, message));
        }
        *value = OsString::from_vec(bytes);
    }
    Ok(())
}

/// `KEY=VALUE`; the key ends before the first `=`.
pub(super) fn split_pair(text: &OsStr) -> Result<(&[u8], &[u8]), Failure> {
    let bytes = text.as_bytes();
    let index = bytes.iter().position(|&byte| byte == b'=');
    let index =
        index.ok_or_else(|| misused(&format!("\"{}\" is not of the form KEY=VALUE", text.display())))?;
    Ok((&bytes[..index], &bytes[index + 1..]))
}

fn misused(message: &str) -> Failure {
    Failure::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, repeat};

    fn set(value: &str) -> Operation {
        Operation::Set { key: "k".into(), value: value.into() }
    }

    fn value_of(mut operation: Operation, stdin: &mut impl Read) -> Result<Vec<u8>, Failure> {
        operation.prepare(stdin)?;
        match operation {
            Operation::Set { value, .. } => Ok(value.into_vec()),
            Operation::CompareSet { expected, desired, .. } => {
                Ok([expected.into_vec(), desired.into_vec()].join(&b'|'))
            }
            _ => Ok(Vec::new()),
        }
    }

    #[test]
    fn a_dash_is_stdin_and_all_else_is_itself() {
        assert_eq!(value_of(set("-5"), &mut &b"in"[..]).unwrap(), b"-5");
        assert_eq!(value_of(set("-"), &mut &b"in\n\0\xff"[..]).unwrap(), b"in\n\0\xff");
        let compare = |expected: &str, desired: &str| Operation::CompareSet {
            key: "k".into(),
            expected: expected.into(),
            desired: desired.into(),
        };
        assert_eq!(value_of(compare("-", "b"), &mut &b"in"[..]).unwrap(), b"in|b");
        assert_eq!(value_of(compare("a", "-"), &mut &b"in"[..]).unwrap(), b"a|in");
        assert_eq!(value_of(compare("-", "-"), &mut &b"in"[..]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn endless_input_ends_at_the_limit() {
        let failure = value_of(set("-"), &mut repeat(7)).unwrap_err();
        assert_eq!((failure.kind, failure.exit_code()), (ErrorKind::LimitExceeded, 6));
        assert_eq!(value_of(set("-"), &mut repeat(7).take(VALUE_BYTES_MAX)).unwrap().len(), 8 << 20);
    }

    #[test]
    fn input_that_cannot_be_read_is_an_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("torn"))
            }
        }
        let failure = value_of(set("-"), &mut Broken).unwrap_err();
        assert_eq!(failure.exit_code(), 6);
        assert!(failure.message.ends_with("torn"), "{}", failure.message);
    }

    #[test]
    fn a_pair_is_cut_at_its_first_equals_sign() {
        assert_eq!(split_pair(OsStr::new("a=b=c")).unwrap(), (&b"a"[..], &b"b=c"[..]));
        assert_eq!(split_pair(OsStr::new("a=")).unwrap(), (&b"a"[..], &b""[..]));
        assert_eq!(split_pair(OsStr::new("a")).unwrap_err().exit_code(), 2);
    }
}
