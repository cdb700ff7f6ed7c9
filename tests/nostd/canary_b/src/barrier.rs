//! The barriers of a server, alone.

use rendezvous_core::barrier::service::{ArrivalId, Arrive, Barriers, End, Input, Output, OwnerId};
use rendezvous_core::limits::BarrierLimits;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::{Participants, Why};

pub(crate) fn sings() -> bool {
    let mut barriers = Barriers::new(BarrierLimits::default(), 1);
    for (number, name) in [(1, b"a"), (2, b"b")] {
        let arrive = Arrive {
            arrival: ArrivalId { owner: OwnerId(number), request: 1 },
            key: b"epoch",
            generation: 0,
            name,
            timeout: Duration::from_secs(1),
            participants: Participants::Count(3),
        };
        if barriers.handle(Instant::ORIGIN, Input::Arrive(arrive)).is_err() {
            return false;
        }
    }
    let is_due = barriers.poll_timeout().is_some();
    let ended = Input::Ended { owner: OwnerId(1), node: None, why: Why::Connection };
    let is_taken = barriers.handle(Instant::ORIGIN, ended).is_ok();
    let reported = barriers.poll_output();
    let is_reported = reported.is_some_and(|output| match output {
        Output::Over { arrival, generation: 1, end } => {
            arrival.owner == OwnerId(2)
                && matches!(&*end, End::Broken { participant, .. } if **participant == *b"a")
        }
        _ => false,
    });
    is_due && is_taken && is_reported && barriers.poll_output().is_none()
}
