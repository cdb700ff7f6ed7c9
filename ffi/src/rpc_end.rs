//! Ways to end a worker of an RPC group.

use crate::prelude::*;
use rendezvous_rpc::driver::group::Shutdown;

/// Graceful end: the worker first finishes its calls. In a static group, all workers then agree that they
/// have finished; in a dynamic one, the others are notified that it leaves.
pub const RDZV_RPC_GRACEFUL: i32 = 1;
/// Abrupt end: the worker ends at once without notice; the others consider it dead.
pub const RDZV_RPC_ABRUPT: i32 = 2;

/// Converts the way to end a worker from C.
pub(crate) fn shutdown_of(how: i32) -> Result<Shutdown, Fault> {
    match how {
        RDZV_RPC_GRACEFUL => Ok(Shutdown::Graceful),
        RDZV_RPC_ABRUPT => Ok(Shutdown::Abrupt),
        how => Err(invalid(format!("`how` is {how}, neither RDZV_RPC_GRACEFUL nor RDZV_RPC_ABRUPT"))),
    }
}

/// Converts the way to end a worker to C.
pub(crate) const fn how_of(shutdown: Shutdown) -> i32 {
    match shutdown {
        Shutdown::Graceful => RDZV_RPC_GRACEFUL,
        Shutdown::Abrupt => RDZV_RPC_ABRUPT,
    }
}
