//! Names of devices: `cpu`, `cuda:0`.

use core::fmt;
use core::str::FromStr;

/// Maximum length of the name of a kind of device, in bytes.
pub const KIND_BYTES_MAX: usize = 15;
/// Maximum index of a device. PyTorch stores it in a signed byte.
pub const INDEX_MAX: i64 = 127;

/// Error of a device's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The index is negative.
    #[error("Device index must not be negative")]
    Negative,
    /// The index is over the maximum.
    #[error("Device index {index} is over the limit of {INDEX_MAX}")]
    TooHigh {
        /// The index.
        index: i64,
    },
    /// The text is not a device.
    #[error("Invalid device string: '{text}'")]
    Invalid {
        /// The text.
        text: alloc::boxed::Box<str>,
    },
    /// The kind needs an index.
    #[error("Device string '{text}' has no index, as `cuda:0` has")]
    NoIndex {
        /// The text.
        text: alloc::boxed::Box<str>,
    },
}

/// Kind of device with indices: `cuda`, `xpu`, or the name of a custom backend's. Lower-case letters, digits and `_`,
/// beginning with a letter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind {
    /// Padded with zeros, so that the order is that of the names.
    name: [u8; KIND_BYTES_MAX],
    length: u8,
}

impl DeviceKind {
    /// NVIDIA's devices, and others that PyTorch calls so.
    pub const CUDA: Self = Self { name: *b"cuda\0\0\0\0\0\0\0\0\0\0\0", length: 4 };

    /// Returns the kind with this name; `None` if the name is invalid, as `cpu` is.
    pub fn new(name: &str) -> Option<Self> {
        let of_a_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        let is_one = name.starts_with(|character: char| character.is_ascii_lowercase())
            && name.bytes().all(of_a_name)
            && name != "cpu";
        let mut bytes = [0; KIND_BYTES_MAX];
        bytes.get_mut(..name.len()).filter(|_| is_one)?.copy_from_slice(name.as_bytes());
        Some(Self { name: bytes, length: u8::try_from(name.len()).ok()? })
    }

    /// Name of the kind.
    pub fn as_str(&self) -> &str {
        let name = self.name.get(..usize::from(self.length)).unwrap_or_default();
        core::str::from_utf8(name).unwrap_or_default()
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One device. `cpu` comes first, and the others in the order of their kinds and indices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Device {
    /// Memory of the host; there is only one.
    #[error("cpu")]
    Cpu,
    /// Device of this kind with this index.
    #[error("{0}:{1}")]
    Indexed(DeviceKind, u8),
}

impl Device {
    /// Returns the device of this kind and index.
    ///
    /// # Errors
    /// The index is out of range.
    pub fn new(kind: DeviceKind, index: i64) -> Result<Self, DeviceError> {
        match u8::try_from(index) {
            _ if index < 0 => Err(DeviceError::Negative),
            Ok(small) if index <= INDEX_MAX => Ok(Self::Indexed(kind, small)),
            _ => Err(DeviceError::TooHigh { index }),
        }
    }

    /// Index of the device; `None` for the host, which sorts first.
    pub const fn index(&self) -> Option<u8> {
        match self {
            Self::Cpu => None,
            Self::Indexed(_, index) => Some(*index),
        }
    }

    /// PyTorch's name of the type.
    pub fn kind_name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Indexed(kind, _) => kind.as_str(),
        }
    }
}

impl FromStr for Device {
    type Err = DeviceError;

    /// Parses `cpu`, `cpu:0`, or a kind and an index, as `cuda:0`. A PyTorch device without an index is the process's
    /// current one; this library has no current device.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let invalid = || DeviceError::Invalid { text: text.into() };
        if matches!(text, "cpu" | "cpu:0") {
            return Ok(Self::Cpu);
        }
        let Some((kind, index)) = text.split_once(':') else {
            return Err(
                DeviceKind::new(text).map_or_else(invalid, |_| DeviceError::NoIndex { text: text.into() })
            );
        };
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        let is_one = is_number && (index == "0" || !index.starts_with('0'));
        let kind = DeviceKind::new(kind).filter(|_| is_one).ok_or_else(invalid)?;
        Self::new(kind, index.parse().map_err(|_| invalid())?)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for text in ["cpu", "cuda:0", "cuda:7", "xpu:127", "privateuseone:1", "a_1:3"] {
            assert_eq!(text.parse::<Device>().map(|device| device.to_string()), Ok(text.into()));
        }
        assert_eq!("cpu:0".parse(), Ok(Device::Cpu));
        for (text, message) in [
            ("", "Invalid device string: ''"),
            ("cuda:", "Invalid device string: 'cuda:'"),
            ("cuda:-1", "Invalid device string: 'cuda:-1'"),
            ("cuda:01", "Invalid device string: 'cuda:01'"),
            ("cuda:+1", "Invalid device string: 'cuda:+1'"),
            ("cpu:1", "Invalid device string: 'cpu:1'"),
            ("Cuda:1", "Invalid device string: 'Cuda:1'"),
            (":1", "Invalid device string: ':1'"),
            ("a_name_too_long_x:1", "Invalid device string: 'a_name_too_long_x:1'"),
            ("cuda:99999999999999999999", "Invalid device string: 'cuda:99999999999999999999'"),
            ("cuda", "Device string 'cuda' has no index, as `cuda:0` has"),
            ("cuda:128", "Device index 128 is over the limit of 127"),
        ] {
            assert_eq!(text.parse::<Device>().map_err(|error| error.to_string()), Err(message.into()));
        }
    }

    #[test]
    fn indices_are_neither_negative_nor_too_high() {
        assert_eq!(Device::new(DeviceKind::CUDA, 127), "cuda:127".parse());
        for (index, message) in [
            (-1, "Device index must not be negative"),
            (i64::MIN, "Device index must not be negative"),
            (128, "Device index 128 is over the limit of 127"),
            (i64::MAX, "Device index 9223372036854775807 is over the limit of 127"),
        ] {
            let error = Device::new(DeviceKind::CUDA, index).expect_err("no such index");
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn the_order_is_that_of_kinds_and_indices() {
        let mut devices = ["xpu:0", "cuda:10", "cpu", "cuda:2"].map(|text| text.parse().expect("a device"));
        devices.sort_unstable();
        assert_eq!(devices.map(|device: Device| device.to_string()), ["cpu", "cuda:2", "cuda:10", "xpu:0"]);
    }
}
