//! Answers of rendezvous backends and URL schemes in user code.

use crate::argument::{bytes, invalid, reference, text};
use crate::rendezvous_event::{parsed, rdzv_round_event};
use crate::rendezvous_plugin::{self, rdzv_rendezvous_answer};
use crate::store::rdzv_store;
use rendezvous_core::rendezvous::store_info::{RendezvousInfo, RendezvousStoreInfo};
use std::sync::Arc;

/// Sets a number as the answer. This and the functions that follow are for use inside the functions of a
/// backend in user code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_number(answer: *mut rdzv_rendezvous_answer, number: i64) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        answer.number = Some(number);
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { rendezvous_plugin::respond(answer, body) };
}

/// Sets the message of the error, in UTF-8, for an operation that fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_message(
    answer: *mut rdzv_rendezvous_answer,
    message: *const u8,
    message_len: usize,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: NULL or valid, as the header requires.
        let message = unsafe { bytes(message, message_len, "message") }?;
        answer.message = Some(String::from_utf8_lossy(message).into_owned());
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { rendezvous_plugin::respond(answer, body) };
}

/// Sets the result of joining as the answer. `store` is the store that the nodes share; the library keeps a
/// reference, so the caller may free its handle. `rank` is this node's rank, from 0. `world_size` is the
/// number of nodes, above `rank`; for a URL scheme it may be negative if the number is unknown.
/// `master_addr` and `master_port` (0 to 65,535) are the address at which the ranks of the job find their
/// store; a URL scheme need not set them. Any other rank or port makes the call fail with
/// `RDZV_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_group(
    answer: *mut rdzv_rendezvous_answer,
    store: *const rdzv_store,
    rank: i64,
    world_size: i64,
    master_addr: *const u8,
    master_addr_len: usize,
    master_port: i64,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: NULL or valid, as the header requires.
        let (store, master_addr) =
            unsafe { (reference(store, "store")?, text(master_addr, master_addr_len, "master_addr")?) };
        if rank < 0 || (world_size >= 0 && rank >= world_size) {
            return Err(invalid(format!("rank {rank} is not one of {world_size}")));
        }
        let Ok(master_port) = u16::try_from(master_port) else {
            return Err(invalid(format!("the port {master_port} is not from 0 to 65535")));
        };
        answer.group = Some(RendezvousInfo {
            store: Arc::clone(&store.store),
            rank,
            world_size,
            bootstrap_store_info: RendezvousStoreInfo { master_addr: master_addr.into(), master_port },
            round: None,
            position: None,
        });
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { rendezvous_plugin::respond(answer, body) };
}

/// Says that the group of `rdzv_rendezvous_answer_set_group` is that of round `round`; called after it. Each
/// round of a run has another number. Events of other rounds do not concern the agent then. What agents and
/// workers write during the round goes under `round/N/` of the group's store, so a restart finds no keys of
/// an earlier round, and an agent serves another store for the workers of each round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_round(answer: *mut rdzv_rendezvous_answer, round: u64) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        let group = answer.group.as_mut().ok_or_else(|| invalid("there is no group yet"))?;
        if group.round.is_some() {
            return Err(invalid("the group has a round already"));
        }
        group.store = Arc::new(group.store.of_round(round));
        group.round = Some(round);
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { rendezvous_plugin::respond(answer, body) };
}

/// Sets an event as the answer. `name` is the name of the node that died or that closed the run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_rendezvous_answer_set_event(
    answer: *mut rdzv_rendezvous_answer,
    event: *const rdzv_round_event,
    name: *const u8,
    name_len: usize,
) {
    let body = |answer: &mut rdzv_rendezvous_answer| {
        // SAFETY: NULL or valid, as the header requires.
        answer.event = unsafe { parsed(event, text(name, name_len, "name")?) }?;
        Ok(())
    };
    // SAFETY: NULL or valid, as the header requires.
    unsafe { rendezvous_plugin::respond(answer, body) };
}
