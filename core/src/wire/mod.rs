//! Bytes on the wire: codecs that know no state.

pub mod c10d;
#[doc(hidden)]
pub mod choice;
pub mod native;
pub mod sink;
#[doc(hidden)]
pub mod split;
#[doc(hidden)]
pub mod version;
