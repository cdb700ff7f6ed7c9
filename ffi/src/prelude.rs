//! What the functions of the C API have in common.

pub(crate) use crate::argument::*;
pub(crate) use crate::buffer::{fill_unless_null, rdzv_buffer, rdzv_list};
pub(crate) use crate::context::{ContextShared, Home, home, rdzv_context, shared, struct_size};
pub(crate) use crate::fault::{Fault, c_string, faults, rdzv_error};
pub(crate) use crate::guard::{self, HandleState, boxed};
pub(crate) use crate::sized::{self, growing, put_unless_null};
pub(crate) use crate::status::*;
pub(crate) use crate::user_code::UserCode;
pub(crate) use std::ffi::{CStr, CString, c_char, c_void};
pub(crate) use std::ptr::{null, null_mut};
pub(crate) use std::sync::Arc;
pub(crate) use std::time::Duration;
