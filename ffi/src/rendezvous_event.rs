//! Events of a node's round.

use crate::prelude::*;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::Why;

/// No event occurred.
pub const RDZV_ROUND_EVENT_NONE: i32 = 0;
/// The number of nodes that wait for the next round changed to `nodes`; 0 if the last of them has left.
pub const RDZV_ROUND_EVENT_NODES_WAITING: i32 = 1;
/// Another member of the round died: see `round`, `node_rank`, `why` and the name.
pub const RDZV_ROUND_EVENT_PEER_DIED: i32 = 2;
/// The round has ended and its keys can no longer be changed: see `round` and `why`.
pub const RDZV_ROUND_EVENT_ROUND_OVER: i32 = 3;
/// The run is closed permanently. The name is that of the node that closed it, if it has one.
pub const RDZV_ROUND_EVENT_RUN_CLOSED: i32 = 4;
/// Round `round` was formed without this node. The node is no longer in the run and may join again.
pub const RDZV_ROUND_EVENT_EXCLUDED: i32 = 5;
/// Another process joined under this node's name. This process is no longer in the run and must not rejoin.
pub const RDZV_ROUND_EVENT_REPLACED: i32 = 6;

/// Another node reported that the job failed; its message is passed in place of the name. The run is closed
/// permanently.
pub const RDZV_ROUND_EVENT_JOB_FAILED: i32 = 7;

/// Reason: the subject of the event left on request.
pub const RDZV_WHY_LEFT: i32 = 1;
/// Reason: its connection ended.
pub const RDZV_WHY_CONNECTION: i32 = 2;
/// Reason: its heartbeats were missed.
pub const RDZV_WHY_HEARTBEAT: i32 = 3;
/// Reason: its host does not respond.
pub const RDZV_WHY_HOST_SILENT: i32 = 4;
/// Reason: the server stopped.
pub const RDZV_WHY_SERVER_STOPPED: i32 = 5;
/// Reason: its deadline passed.
pub const RDZV_WHY_DEADLINE: i32 = 6;
/// Reason: it was cancelled.
pub const RDZV_WHY_CANCELLED: i32 = 7;
/// Reason: it was superseded by another.
pub const RDZV_WHY_SUPERSEDED: i32 = 8;
/// Reason: it violated the protocol.
pub const RDZV_WHY_PROTOCOL: i32 = 9;
/// Reason: a limit was reached.
pub const RDZV_WHY_LIMIT: i32 = 10;
/// Reason: the run was closed.
pub const RDZV_WHY_CLOSED: i32 = 11;
/// Reason: none of its nodes is a member any longer.
pub const RDZV_WHY_DESERTED: i32 = 12;
/// Reason: fewer nodes are left than it needs to continue.
pub const RDZV_WHY_TOO_FEW_NODES: i32 = 13;
/// Reason: the requested history has been compacted.
pub const RDZV_WHY_COMPACTED: i32 = 14;
/// Reason: it stopped reading from its connection.
pub const RDZV_WHY_STALLED: i32 = 15;
/// Reason: another process joined under its name.
pub const RDZV_WHY_REPLACED: i32 = 16;
/// Reason: it requested another round, and the run is closed.
pub const RDZV_WHY_REFUSED: i32 = 17;
/// Reason: it requested another round, and left or timed out before that round was formed.
pub const RDZV_WHY_GAVE_UP: i32 = 18;

/// Event of a round or of the run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdzv_round_event {
    /// Set to `sizeof(rdzv_round_event)` before the call. The library sets it to the number of bytes it
    /// filled.
    pub struct_size: u32,
    /// One of the `RDZV_ROUND_EVENT_` constants. Later versions may add more.
    pub kind: i32,
    /// Number of the round.
    pub round: u64,
    /// Number of nodes that wait for the next round.
    pub nodes: u32,
    /// Rank, among the nodes of the round, of the node that died.
    pub node_rank: u32,
    /// One of the `RDZV_WHY_` constants; 0 if there is no reason. Later versions may add more.
    pub why: i32,
    /// Reserved; 0.
    pub reserved: u32,
}
growing!(rdzv_round_event: 32);

/// Converts an event to its C struct and the name that goes with it.
pub(crate) fn projected(event: Option<&RoundEvent>) -> (rdzv_round_event, &str) {
    let of = |kind| rdzv_round_event { kind, ..Default::default() };
    let number = |why: Why| i32::from(why.number());
    match event {
        None => (of(RDZV_ROUND_EVENT_NONE), ""),
        Some(&RoundEvent::NodesWaiting { nodes }) => {
            (rdzv_round_event { nodes, ..of(RDZV_ROUND_EVENT_NODES_WAITING) }, "")
        }
        Some(&RoundEvent::PeerDied { round, node_rank, ref node, why }) => {
            let why = number(why);
            (rdzv_round_event { round, node_rank, why, ..of(RDZV_ROUND_EVENT_PEER_DIED) }, node)
        }
        Some(&RoundEvent::RoundOver { round, why }) => {
            (rdzv_round_event { round, why: number(why), ..of(RDZV_ROUND_EVENT_ROUND_OVER) }, "")
        }
        Some(RoundEvent::RunClosed { by }) => (of(RDZV_ROUND_EVENT_RUN_CLOSED), by),
        Some(RoundEvent::JobFailed { message }) => (of(RDZV_ROUND_EVENT_JOB_FAILED), message),
        Some(&RoundEvent::Excluded { round }) => {
            (rdzv_round_event { round, ..of(RDZV_ROUND_EVENT_EXCLUDED) }, "")
        }
        Some(RoundEvent::Replaced) => (of(RDZV_ROUND_EVENT_REPLACED), ""),
    }
}

/// Converts an event from C; `None` for `RDZV_ROUND_EVENT_NONE`.
pub(crate) unsafe fn parsed(event: *const rdzv_round_event, name: &str) -> Result<Option<RoundEvent>, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    let event = unsafe { sized::get(event, "event") }?;
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

/// Formats an event as text, for example `node host-3 (rank 3 of round 1) died: heartbeats were missed`,
/// which replaces the content of `message`. `name` is the name that `rdzv_rendezvous_handler_next_event`
/// returned with the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_round_event_describe(
    event: *const rdzv_round_event,
    name: *const u8,
    name_len: usize,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let event = parsed(event, text(name, name_len, "name")?)?;
        let message = reference_mut(message, "message")?;
        let description = event.map_or_else(|| "nothing happened".to_string(), |event| event.to_string());
        message.put(description.as_bytes());
        Ok(())
    })
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
            // SAFETY: the struct is fully initialized.
            let back = unsafe { parsed(&raw const there, name) }.expect("an event");
            assert_eq!(back.as_ref(), Some(&event));
        }
    }
}
