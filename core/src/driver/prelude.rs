//! What almost every driver uses.

pub use super::call_error::CallError;
pub use super::cancel::CancelToken;
pub use super::clock::Clock;
pub use super::lock::Lock;
pub use crate::prelude::*;
pub use std::collections::HashMap;
pub use std::io;
pub use std::os::fd::RawFd;
pub use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
