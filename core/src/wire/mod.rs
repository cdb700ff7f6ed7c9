//! Stateless codecs of the wire protocols.

pub mod c10d;
#[doc(hidden)]
pub mod choice;
pub mod native;
pub mod sink;
#[doc(hidden)]
pub mod split;
#[doc(hidden)]
pub mod version;
