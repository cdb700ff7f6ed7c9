//! Events of a node's round.

use crate::prelude::*;
use rendezvous_core::rendezvous::round_event::RoundEvent;
use rendezvous_core::wire::native::Why;

/// No event occurred.
pub const RDZV_ROUND_EVENT_NONE: i32 = 0;
/// The number of nodes that wait for the next round changed to `nodes`; 0 if the last of them has left.
pub const RDZV_ROUND_EVENT_NODES_WAITING: i32 = 1;
/// Another member of the round died: see `round`, `node_rank`, `node` and `why`.
pub const RDZV_ROUND_EVENT_PEER_DIED: i32 = 2;
/// The round has ended and its keys can no longer be changed: see `round` and `why`.
pub const RDZV_ROUND_EVENT_ROUND_OVER: i32 = 3;
/// The run is closed permanently. `node` is the node that closed it, if it has a name.
pub const RDZV_ROUND_EVENT_RUN_CLOSED: i32 = 4;
/// Round `round` was formed without this node. The node is no longer in the run and may join again.
pub const RDZV_ROUND_EVENT_EXCLUDED: i32 = 5;
/// Another process joined under this node's name. This process is no longer in the run and must not rejoin.
pub const RDZV_ROUND_EVENT_REPLACED: i32 = 6;

/// Another node reported that the job failed, with `message`. The run is closed permanently.
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
/// Reason: it was stopped before its work was done, and said so.
pub const RDZV_WHY_STOPPED: i32 = 19;
/// Reason: an administrator ended its session.
pub const RDZV_WHY_ENDED_BY_ADMIN: i32 = 20;

/// Event of a round or of the run. Fields that its kind does not name are 0 or NULL.
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
    /// Name of the node that the event is about, UTF-8. Not NUL-terminated.
    pub node: *const u8,
    /// Length of `node` in bytes.
    pub node_len: usize,
    /// Message of the node that reported the failure of the job, UTF-8. Not NUL-terminated.
    pub message: *const u8,
    /// Length of `message` in bytes.
    pub message_len: usize,
}
growing!(rdzv_round_event: 64);

/// Returns the node and the message of an event, if it has them.
pub(crate) fn texts(event: Option<&RoundEvent>) -> (Option<&str>, Option<&str>) {
    match event {
        Some(RoundEvent::PeerDied { node, .. }) => (Some(node), None),
        Some(RoundEvent::RunClosed { by }) if !by.is_empty() => (Some(by), None),
        Some(RoundEvent::JobFailed { message }) => (None, Some(message)),
        _ => (None, None),
    }
}

/// Converts an event for C; it points to the texts of `event`.
pub(crate) fn projected(event: Option<&RoundEvent>) -> rdzv_round_event {
    let of = |kind| rdzv_round_event { kind, ..Default::default() };
    let number = |why: Why| i32::from(why.number());
    let view = match event {
        None => of(RDZV_ROUND_EVENT_NONE),
        Some(&RoundEvent::NodesWaiting { nodes }) => {
            rdzv_round_event { nodes, ..of(RDZV_ROUND_EVENT_NODES_WAITING) }
        }
        Some(&RoundEvent::PeerDied { round, node_rank, why, .. }) => {
            rdzv_round_event { round, node_rank, why: number(why), ..of(RDZV_ROUND_EVENT_PEER_DIED) }
        }
        Some(&RoundEvent::RoundOver { round, why }) => {
            rdzv_round_event { round, why: number(why), ..of(RDZV_ROUND_EVENT_ROUND_OVER) }
        }
        Some(RoundEvent::RunClosed { .. }) => of(RDZV_ROUND_EVENT_RUN_CLOSED),
        Some(RoundEvent::JobFailed { .. }) => of(RDZV_ROUND_EVENT_JOB_FAILED),
        Some(&RoundEvent::Excluded { round }) => rdzv_round_event { round, ..of(RDZV_ROUND_EVENT_EXCLUDED) },
        Some(RoundEvent::Replaced) => of(RDZV_ROUND_EVENT_REPLACED),
    };
    let (node, message) = texts(event);
    let (node, message) = (rdzv_bytes::of_option(node), rdzv_bytes::of_option(message));
    rdzv_round_event {
        struct_size: struct_size::<rdzv_round_event>(),
        node: node.data,
        node_len: node.len,
        message: message.data,
        message_len: message.len,
        ..view
    }
}

/// Converts an event from C; `None` for `RDZV_ROUND_EVENT_NONE`.
pub(crate) unsafe fn parsed(event: *const rdzv_round_event) -> Result<Option<RoundEvent>, Fault> {
    // SAFETY: NULL or valid, as the header requires.
    let (event, node, message): (rdzv_round_event, Box<str>, Box<str>) = unsafe {
        let event = sized::get(event, "event")?;
        let node = text(event.node, event.node_len, "event.node")?;
        (event, node.into(), text(event.message, event.message_len, "event.message")?.into())
    };
    let rdzv_round_event { kind, round, nodes, node_rank, why, .. } = event;
    let why = || match u16::try_from(why) {
        Ok(number) if number > 0 => Ok(Why::from_number(number)),
        _ => Err(invalid(format!("`event.why` is {why}, not an RDZV_WHY_ number"))),
    };
    Ok(Some(match kind {
        RDZV_ROUND_EVENT_NONE => return Ok(None),
        RDZV_ROUND_EVENT_NODES_WAITING => RoundEvent::NodesWaiting { nodes },
        RDZV_ROUND_EVENT_PEER_DIED => RoundEvent::PeerDied { round, node_rank, node, why: why()? },
        RDZV_ROUND_EVENT_ROUND_OVER => RoundEvent::RoundOver { round, why: why()? },
        RDZV_ROUND_EVENT_RUN_CLOSED => RoundEvent::RunClosed { by: node },
        RDZV_ROUND_EVENT_JOB_FAILED => RoundEvent::JobFailed { message },
        RDZV_ROUND_EVENT_EXCLUDED => RoundEvent::Excluded { round },
        RDZV_ROUND_EVENT_REPLACED => RoundEvent::Replaced,
        kind => return Err(invalid(format!("`event.kind` is {kind}, not an RDZV_ROUND_EVENT_ kind"))),
    }))
}

/// Formats an event as text, for example `node host-3 (rank 3 of round 1) died: heartbeats were missed`,
/// which replaces the content of `message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_round_event_describe(
    event: *const rdzv_round_event,
    message: *mut rdzv_buffer,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    guard::call!(error, || {
        let (event, message) = (parsed(event)?, reference_mut(message, "message")?);
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
            RDZV_WHY_STOPPED,
            RDZV_WHY_ENDED_BY_ADMIN,
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
            let mut there = projected(Some(&event));
            there.struct_size = struct_size::<rdzv_round_event>();
            // SAFETY: the struct is fully initialized.
            let back = unsafe { parsed(&raw const there) }.expect("an event");
            assert_eq!(back.as_ref(), Some(&event));
        }
    }
}
