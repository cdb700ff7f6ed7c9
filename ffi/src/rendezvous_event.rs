//! What a node hears of its round.

use crate::argument::{invalid, reference_mut, text};
use crate::buffer::rdzv_buffer;
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::sized;
use crate::status::rdzv_status;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::Why;

/// Nothing happened.
pub const RDZV_ROUND_EVENT_NONE: i32 = 0;
/// `nodes` nodes wait for the next round; 0 when the last of them has gone.
pub const RDZV_ROUND_EVENT_NODES_WAITING: i32 = 1;
/// Another member of the round died: `round`, `node_rank`, `why`, and its name.
pub const RDZV_ROUND_EVENT_PEER_DIED: i32 = 2;
/// The round is over, and its keys can be changed no more: `round`, `why`.
pub const RDZV_ROUND_EVENT_ROUND_OVER: i32 = 3;
/// The run is closed for good, by the node of that name, if it has one.
pub const RDZV_ROUND_EVENT_RUN_CLOSED: i32 = 4;
/// Round `round` was formed without this node, which is in the run no more and may join like any other.
pub const RDZV_ROUND_EVENT_EXCLUDED: i32 = 5;
/// Another process joined under this node's name; this one is in the run no more, and must not come back.
pub const RDZV_ROUND_EVENT_REPLACED: i32 = 6;

/// Another node has said that the job has failed; what it said stands in the place of the name. The run is
/// closed for good.
pub const RDZV_ROUND_EVENT_JOB_FAILED: i32 = 7;

/// Why something ended: it asked to.
pub const RDZV_WHY_LEFT: i32 = 1;
/// Its connection ended.
pub const RDZV_WHY_CONNECTION: i32 = 2;
/// Its heartbeats were missed.
pub const RDZV_WHY_HEARTBEAT: i32 = 3;
/// Its host fell silent.
pub const RDZV_WHY_HOST_SILENT: i32 = 4;
/// The server stopped.
pub const RDZV_WHY_SERVER_STOPPED: i32 = 5;
/// Its deadline passed.
pub const RDZV_WHY_DEADLINE: i32 = 6;
/// Somebody cancelled it.
pub const RDZV_WHY_CANCELLED: i32 = 7;
/// Another took its place.
pub const RDZV_WHY_SUPERSEDED: i32 = 8;
/// It broke the protocol.
pub const RDZV_WHY_PROTOCOL: i32 = 9;
/// A limit was reached.
pub const RDZV_WHY_LIMIT: i32 = 10;
/// The run was closed.
pub const RDZV_WHY_CLOSED: i32 = 11;
/// None of its nodes is in it any more.
pub const RDZV_WHY_DESERTED: i32 = 12;
/// Fewer nodes are left than it needs to go on.
pub const RDZV_WHY_TOO_FEW_NODES: i32 = 13;
/// The history does not reach back that far.
pub const RDZV_WHY_COMPACTED: i32 = 14;
/// It stopped reading.
pub const RDZV_WHY_STALLED: i32 = 15;
/// Another one joined under its name.
pub const RDZV_WHY_REPLACED: i32 = 16;
/// It wanted another round, and the run is closed.
pub const RDZV_WHY_REFUSED: i32 = 17;
/// It wanted another round, and left or ran out of time before there was one.
pub const RDZV_WHY_GAVE_UP: i32 = 18;

/// Something that happened to a round, or to the run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdzv_round_event {
    /// Set it to `sizeof(rdzv_round_event)` before the call; afterwards it tells how many bytes were filled.
    pub struct_size: u32,
    /// One of `RDZV_ROUND_EVENT_NONE` and so on; there may be more one day.
    pub kind: i32,
    /// The round.
    pub round: u64,
    /// How many nodes wait.
    pub nodes: u32,
    /// The rank among the nodes of the round of the one that died.
    pub node_rank: u32,
    /// One of `RDZV_WHY_LEFT` and so on; there may be more one day. 0 where there is no reason.
    pub why: i32,
    /// Not used; 0.
    pub reserved: u32,
}

/// The size of `rdzv_round_event` in the first header.
pub(crate) const EVENT_FIRST_SIZE: usize = 32;
const NO_EVENT: rdzv_round_event = rdzv_round_event {
    struct_size: 0,
    kind: RDZV_ROUND_EVENT_NONE,
    round: 0,
    nodes: 0,
    node_rank: 0,
    why: 0,
    reserved: 0,
};

/// An event and its name for C.
pub(crate) fn projected(event: Option<&RoundEvent>) -> (rdzv_round_event, &str) {
    let number = |why: Why| i32::from(why.number());
    match event {
        None => (NO_EVENT, ""),
        Some(&RoundEvent::NodesWaiting { nodes }) => {
            (rdzv_round_event { kind: RDZV_ROUND_EVENT_NODES_WAITING, nodes, ..NO_EVENT }, "")
        }
        Some(RoundEvent::PeerDied { round, node_rank, node, why }) => {
            let (round, node_rank, why) = (*round, *node_rank, number(*why));
            let kind = RDZV_ROUND_EVENT_PEER_DIED;
            (rdzv_round_event { kind, round, node_rank, why, ..NO_EVENT }, node)
        }
        Some(&RoundEvent::RoundOver { round, why }) => {
            let kind = RDZV_ROUND_EVENT_ROUND_OVER;
            (rdzv_round_event { kind, round, why: number(why), ..NO_EVENT }, "")
        }
        Some(RoundEvent::RunClosed { by }) => {
            (rdzv_round_event { kind: RDZV_ROUND_EVENT_RUN_CLOSED, ..NO_EVENT }, by)
        }
        Some(RoundEvent::JobFailed { message }) => {
            (rdzv_round_event { kind: RDZV_ROUND_EVENT_JOB_FAILED, ..NO_EVENT }, message)
        }
        Some(&RoundEvent::Excluded { round }) => {
            (rdzv_round_event { kind: RDZV_ROUND_EVENT_EXCLUDED, round, ..NO_EVENT }, "")
        }
        Some(RoundEvent::Replaced) => (rdzv_round_event { kind: RDZV_ROUND_EVENT_REPLACED, ..NO_EVENT }, ""),
    }
}

/// An event from C.
pub(crate) unsafe fn parsed(event: *const rdzv_round_event, name: &str) -> Result<Option<RoundEvent>, Fault> {
    // SAFETY: as the header wants it.
    let event = unsafe {
        let given = sized::given_size(event, EVENT_FIRST_SIZE, "event")?;
        sized::get(event, given, NO_EVENT)
    };
    let rdzv_round_event { kind, round, nodes, node_rank, why, .. } = event;
    let why = || match u16::try_from(why) {
        Ok(number) if number > 0 => Ok(Why::from_number(number)),
        _ => Err(invalid(format!("`event.why` is {why}, not an RDZV_WHY_ number"))),
    };
    Ok(Some(match kind {
        RDZV_ROUND_EVENT_NONE => return Ok(None),
        RDZV_ROUND_EVENT_NODES_WAITING => RoundEvent::NodesWaiting { nodes },
        RDZV_ROUND_EVENT_PEER_DIED => {
            RoundEvent::PeerDied { round, node_rank, node: name.into(), why: why()? }
        }
        RDZV_ROUND_EVENT_ROUND_OVER => RoundEvent::RoundOver { round, why: why()? },
        RDZV_ROUND_EVENT_RUN_CLOSED => RoundEvent::RunClosed { by: name.into() },
        RDZV_ROUND_EVENT_JOB_FAILED => RoundEvent::JobFailed { message: name.into() },
        RDZV_ROUND_EVENT_EXCLUDED => RoundEvent::Excluded { round },
        RDZV_ROUND_EVENT_REPLACED => RoundEvent::Replaced,
        kind => return Err(invalid(format!("`event.kind` is {kind}, not an RDZV_ROUND_EVENT_ kind"))),
    }))
}

/// Tells an event in words, such as `node host-3 (rank 3 of round 1) died: heartbeats were missed`; they
/// replace the content of `message`. `name` is what `rdzv_rendezvous_handler_next_event` gave with the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_round_event_describe(
    event: *const rdzv_round_event,
    name: *const u8,
    name_len: usize,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or as the header wants them; NULL is refused.
    unsafe {
        guard::call(error, || {
            let event = parsed(event, text(name, name_len, "name")?)?;
            let message = reference_mut(message, "message")?;
            let description = event.map_or_else(|| "nothing happened".to_string(), |event| event.to_string());
            message.put(description.as_bytes());
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_numbers_of_the_wire() {
        let named = [
            RDZV_WHY_LEFT,
            RDZV_WHY_CONNECTION,
            RDZV_WHY_HEARTBEAT,
            RDZV_WHY_HOST_SILENT,
            RDZV_WHY_SERVER_STOPPED,
            RDZV_WHY_DEADLINE,
            RDZV_WHY_CANCELLED,
            RDZV_WHY_SUPERSEDED,
            RDZV_WHY_PROTOCOL,
            RDZV_WHY_LIMIT,
            RDZV_WHY_CLOSED,
            RDZV_WHY_DESERTED,
            RDZV_WHY_TOO_FEW_NODES,
            RDZV_WHY_COMPACTED,
            RDZV_WHY_STALLED,
            RDZV_WHY_REPLACED,
            RDZV_WHY_REFUSED,
            RDZV_WHY_GAVE_UP,
        ];
        assert!(Why::ALL.iter().map(|why| i32::from(why.number())).eq(named));
    }

    #[test]
    fn events_come_back_as_they_went() {
        for event in [
            RoundEvent::NodesWaiting { nodes: 3 },
            RoundEvent::PeerDied { round: 1, node_rank: 2, node: "host-2".into(), why: Why::Heartbeat },
            RoundEvent::RoundOver { round: 1, why: Why::Other(4000) },
            RoundEvent::RunClosed { by: "host-0".into() },
            RoundEvent::RunClosed { by: "".into() },
            RoundEvent::JobFailed { message: "host-0: exit code 1".into() },
            RoundEvent::Excluded { round: 4 },
            RoundEvent::Replaced,
        ] {
            let (mut there, name) = projected(Some(&event));
            there.struct_size = 32;
            // SAFETY: the struct is whole.
            let back = unsafe { parsed(&raw const there, name) }.expect("an event");
            assert_eq!(back.as_ref(), Some(&event));
        }
    }
}
