//! Replies of stores, rendezvous backends and RPC backends in user code.

use crate::prelude::*;
use crate::rendezvous_event::{parsed, rdzv_round_event};
use crate::rpc_reply::Workers;
use crate::store::rdzv_store;
use rendezvous_core::driver::plugin_store::PluginAnswer;
use rendezvous_core::driver::rendezvous::NodeStore;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use std::any::Any;

/// Reply of user code to a call of the library: the setters fill it. It is valid during that call only.
/// Setters ignore NULL. A value that is not valid fails the call with `RDZV_INVALID_ARGUMENT`.
#[derive(Debug, Default)]
pub struct rdzv_reply {
    message: Option<String>,
    /// First invalid value.
    first_error: Option<String>,
    pub(crate) values: PluginAnswer,
    pub(crate) group: Option<RendezvousInfo<Arc<NodeStore>>>,
    pub(crate) event: Option<RoundEvent>,
    /// Handler, URL rendezvous or RPC worker that user code created.
    created: Option<Box<dyn Any>>,
    pub(crate) workers: Workers,
}

impl rdzv_reply {
    /// Keeps what user code created.
    pub(crate) fn put_created(&mut self, created: impl Any) {
        self.created = Some(Box::new(created));
    }

    /// Returns what user code created, if it is a `T`.
    pub(crate) fn take_created<T: Any>(&mut self) -> Option<T> {
        Some(*self.created.take()?.downcast().ok()?)
    }

    /// Returns the reply of a function that succeeded, or the status and the message with which it failed.
    #[inline(never)]
    pub(crate) fn checked(
        mut self,
        plugin: &str,
        status: rdzv_status,
    ) -> Result<Self, (rdzv_status, Option<String>)> {
        if status != RDZV_OK {
            return Err((status, self.message));
        }
        match self.first_error.take() {
            Some(first_error) => Err((RDZV_INVALID_ARGUMENT, Some(format!("{plugin}: {first_error}")))),
            None => Ok(self),
        }
    }
}

/// Group that a rendezvous in user code has formed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_rendezvous_group {
    /// Set to `sizeof(rdzv_rendezvous_group)`.
    pub struct_size: u32,
    /// 1 if the group is that of round `round`, else 0. Then each round of a run has another number, and
    /// events of other rounds do not concern an agent. What agents and workers write during the round goes
    /// under `round/N/` of the store, and an agent serves another store for the workers of each round.
    pub has_round: u32,
    /// Store that the nodes share. The library keeps a reference, so the caller may free its handle.
    pub store: *const rdzv_store,
    /// Rank of this node, from 0.
    pub rank: i64,
    /// Number of nodes, above `rank`. For a URL scheme it may be negative if the number is unknown.
    pub world_size: i64,
    /// Number of the round if `has_round` is 1.
    pub round: u64,
    /// Address at which the ranks of the job find their store. NUL-terminated UTF-8; NULL for a URL scheme.
    pub master_addr: *const c_char,
    /// Port that goes with `master_addr`, from 0 to 65,535.
    pub master_port: i64,
}
growing!(rdzv_rendezvous_group: 56);

/// Fills a reply, or records the first invalid value. NULL is ignored.
pub(crate) unsafe fn fill(reply: *mut rdzv_reply, body: impl Fn(&mut rdzv_reply) -> Result<(), Fault>) {
    guard::quiet((), || {
        // SAFETY: NULL, or the reply to the call in progress.
        let Some(reply) = (unsafe { reply.as_mut() }) else { return };
        if let Err(fault) = body(reply) {
            reply.first_error.get_or_insert_with(|| fault.message.clone());
        }
    });
}

/// Sets the message of the error, in UTF-8, for a function that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_message(
    reply: *mut rdzv_reply,
    message: *const u8,
    message_len: usize,
) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        let message = unsafe { bytes(message, message_len, "message") }?;
        reply.message = Some(String::from_utf8_lossy(message).into_owned());
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { fill(reply, body) };
}

/// Sets a number: a sum, a count, or 1 for yes and 0 for no.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_number(reply: *mut rdzv_reply, number: i64) {
    let body = |reply: &mut rdzv_reply| {
        reply.values.number = Some(number);
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { fill(reply, body) };
}

/// Appends a value or a key to the reply of a store; the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_add_value(reply: *mut rdzv_reply, value: *const u8, value_len: usize) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        reply.values.values.push(unsafe { bytes(value, value_len, "value") }?.to_vec());
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { fill(reply, body) };
}

/// Sets the group that a rendezvous has formed; `group` is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_group(reply: *mut rdzv_reply, group: *const rdzv_rendezvous_group) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        let (group, store, master_addr) = unsafe {
            let group = sized::get(group, "group")?;
            let master_addr = c_text(group.master_addr, "group.master_addr")?.unwrap_or_default();
            (group, reference(group.store, "group.store")?, master_addr)
        };
        let rdzv_rendezvous_group { rank, world_size, master_port, .. } = group;
        if rank < 0 || (world_size >= 0 && rank >= world_size) {
            return Err(invalid(format!("rank {rank} is not one of {world_size}")));
        }
        let Ok(master_port) = u16::try_from(master_port) else {
            return Err(invalid(format!("the port {master_port} is not from 0 to 65535")));
        };
        let round = (group.has_round != 0).then_some(group.round);
        reply.group = Some(RendezvousInfo {
            store: round
                .map_or_else(|| Arc::clone(&store.store), |round| Arc::new(store.store.of_round(round))),
            rank,
            world_size,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: master_addr.into(), master_port },
            round,
            position: None,
        });
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { fill(reply, body) };
}

/// Sets an event of a round; `event` is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_reply_set_event(reply: *mut rdzv_reply, event: *const rdzv_round_event) {
    let body = |reply: &mut rdzv_reply| {
        // SAFETY: NULL or valid, as the header requires.
        reply.event = unsafe { parsed(event) }?;
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { fill(reply, body) };
}
