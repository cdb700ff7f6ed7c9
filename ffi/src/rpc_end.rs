//! How a worker of an RPC group ends.

use crate::argument::invalid;
use crate::fault::Fault;
use rendezvous_rpc::driver::group::Shutdown;

/// A worker ends gracefully: its calls come to their ends first; then, in a static group, all agree that they
/// have done, and in a dynamic one the others hear that it leaves.
pub const RDZV_RPC_GRACEFUL: i32 = 1;
/// A worker ends at once and without a word; the others take it for dead.
pub const RDZV_RPC_ABRUPT: i32 = 2;

/// How a worker is to end.
pub(crate) fn shutdown_of(how: i32) -> Result<Shutdown, Fault> {
    match how {
        RDZV_RPC_GRACEFUL => Ok(Shutdown::Graceful),
        RDZV_RPC_ABRUPT => Ok(Shutdown::Abrupt),
        how => Err(invalid(format!("`how` is {how}, neither RDZV_RPC_GRACEFUL nor RDZV_RPC_ABRUPT"))),
    }
}

/// The same for C.
pub(crate) const fn how_of(shutdown: Shutdown) -> i32 {
    match shutdown {
        Shutdown::Graceful => RDZV_RPC_GRACEFUL,
        Shutdown::Abrupt => RDZV_RPC_ABRUPT,
    }
}
