//! What almost every module uses, and what the prelude of a crate without `std` lacks.

pub use crate::time::{Duration, Instant};
pub use alloc::borrow::ToOwned;
pub use alloc::boxed::Box;
pub use alloc::format;
pub use alloc::string::{String, ToString};
pub use alloc::sync::Arc;
pub use alloc::vec;
pub use alloc::vec::Vec;
pub use core::fmt;
