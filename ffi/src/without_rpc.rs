//! In the place of `loop_rpc` where the library is built without RPC.

use crate::event_loop::{Known, rdzv_event};
use crate::fault::Fault;
use rendezvous_core::driver::loop_client::{Loop, MemberEvent, MemberId};

/// A context has no RPC.
pub(crate) type RpcSlot = ();

/// No event lends anything out of a worker.
pub(crate) type LastRpcEvent = ();

/// Removes nothing: no loop has a worker.
pub(crate) fn remove(_: &mut Loop, _: MemberId) {}

impl Known {
    /// Drops the event: none is a worker's.
    pub(crate) fn keep_rpc(&mut self, _: &mut rdzv_event, _: MemberEvent) -> Option<Fault> {
        None
    }
}
