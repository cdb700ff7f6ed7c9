//! Bytes on the wire: codecs that know no state.

pub mod c10d;
pub(crate) mod choice;
pub mod native;
pub mod rpc;
pub mod sink;
mod split;
mod version;
