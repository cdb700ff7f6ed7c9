//! The rendezvous service, alone.

use rendezvous_core::limits::RendezvousLimits;
use rendezvous_core::rendezvous::service::{
    Event, Input, Join, NodeName, Output, ParticipantId, Rendezvous, RunSettings,
};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::Why;

pub(crate) fn sings() -> bool {
    let mut service = Rendezvous::new(RendezvousLimits::default());
    let mut is_loss_told = false;
    for number in 1..=2 {
        let join = Join {
            run_id: "run".into(),
            address: b"10.0.0.1:1"[..].into(),
            node: NodeName::process("host", number, 0),
            local_world_size: 1,
            labels: Default::default(),
            round_min: 0,
            node_rank: None,
            join_timeout: Duration::from_secs(1),
            settings: RunSettings::between(2, 2),
        };
        let participant = ParticipantId(u64::from(number));
        if service.handle(Instant::ORIGIN, Input::Join { participant, join }).is_err() {
            return false;
        }
    }
    let is_formed = service.last_round("run").is_some_and(|last| last.round == 0 && last.members.len() == 2);
    let ended = Input::Ended { participant: ParticipantId(1), why: Why::HostSilent };
    let is_taken = service.handle(Instant::ORIGIN, ended).is_ok();
    while let Some(output) = service.poll_output() {
        is_loss_told |= matches!(output, Output::Notify { event: Event::NodeLost(_), .. });
    }
    is_formed && is_taken && is_loss_told
}
