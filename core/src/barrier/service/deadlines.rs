//! What happens when time is up: for a whole generation, or for one who has less time than the others.

use super::{ArrivalId, BarrierId, Barriers, End, MemberId, Output, PhaseEvent, Seat};
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl Barriers {
    /// What was due by `now` happens.
    pub(super) fn expire(&mut self, now: Instant) {
        loop {
            let early = self.early.first().filter(|&(when, _)| when <= now);
            let due = self.deadlines.first().filter(|&(when, _)| when <= now);
            match (early, due) {
                (Some((when, _)), due) if due.is_none_or(|(deadline, _)| when < deadline) => {
                    self.give_up(|until| until <= now && due.is_none_or(|(deadline, _)| until < deadline));
                }
                (_, Some((_, id))) => {
                    let (absent_count, absent) = self.barriers[id].absent(None, self.limits.absent_named_max);
                    let end = Arc::new(End::TimedOut { absent_count, absent });
                    self.conclude(id, PhaseEvent::Expired, end, None);
                }
                _ => return,
            }
        }
    }

    /// The time of some of those who wait is up: they are told who is missing, and the others go on without them. All at
    /// one barrier hear the same, so it is found out once.
    fn give_up(&mut self, is_due: impl Fn(Instant) -> bool) {
        let due = self.early.iter().take_while(|&(until, _)| is_due(until));
        // Until then, all of them were there.
        let due: Vec<(Seat, Option<ArrivalId>)> = due
            .map(|(_, seat)| {
                let place = self.barriers[seat.barrier].members.get(seat.member);
                (seat, place.and_then(|place| place.arrival))
            })
            .collect();
        let mut told: Option<(BarrierId, Arc<End>)> = None;
        for &(Seat { barrier: id, member }, arrival) in &due {
            if let Some(arrival) = arrival {
                let known = told.take().filter(|&(barrier, _)| barrier == id);
                let (_, end) = told.insert(known.unwrap_or_else(|| (id, self.missed(id, Some(member)))));
                let (generation, end) = (self.barriers[id].over() + 1, Arc::clone(end));
                self.outputs.push_back(Output::Over { arrival, generation, end });
            }
            self.set_until(id, member, None);
        }
        due.into_iter().filter_map(|(_, arrival)| arrival).for_each(|arrival| self.take_back(arrival));
    }

    /// Until when one waits, if that is before the deadline of all.
    pub(super) fn set_until(&mut self, id: BarrierId, member: MemberId, until: Option<Instant>) {
        let Some(place) = self.barriers[id].members.get_mut(member) else { return };
        let seat = Seat { barrier: id, member };
        if let Some(before) = core::mem::replace(&mut place.until, until) {
            self.early.remove((before, seat));
        }
        if let Some(until) = until {
            self.early.insert((until, seat));
        }
    }
}
