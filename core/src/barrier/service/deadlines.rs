//! Deadlines: of a whole generation, and of arrivals with a shorter timeout than their generation.

use super::{ArrivalId, BarrierId, Barriers, ENDS_PER_STEP, End, MemberId, Output, STEP_WORK, Waiter};
use crate::prelude::*;

impl Barriers {
    /// Handles what was due by `now`, as far as a step goes.
    pub(super) fn expire(&mut self, now: Instant) {
        let work_max = self.work + STEP_WORK;
        while self.work < work_max {
            let early = self.early.first().filter(|&(when, _)| when <= now);
            let due = self.deadlines.first().filter(|&(when, _)| when <= now);
            match (early, due) {
                (Some((when, _)), due) if due.is_none_or(|(deadline, _)| when < deadline) => {
                    self.give_up(|until| until <= now && due.is_none_or(|(deadline, _)| until < deadline));
                }
                (_, Some((_, id))) => {
                    self.conclude_overdue(id);
                }
                _ => return,
            }
        }
    }

    /// Ends arrivals whose own deadline has passed, as many as a step may. They get the names of the missing participants, and the others
    /// continue to wait. All at one barrier get the same names, which are collected once.
    fn give_up(&mut self, is_due: impl Fn(Instant) -> bool) {
        let due = self.early.iter().take_while(|&(until, _)| is_due(until)).take(ENDS_PER_STEP);
        // All of them count as present for each other.
        let due: Vec<(Waiter, Option<ArrivalId>)> = due
            .map(|(_, waiter)| {
                let waiting_member = self.barriers[waiter.barrier].members.get(waiter.member);
                (waiter, waiting_member.and_then(|waiting_member| waiting_member.arrival))
            })
            .collect();
        let mut notified: Option<(BarrierId, Arc<End>)> = None;
        for &(Waiter { barrier: id, member }, arrival) in &due {
            if let Some(arrival) = arrival {
                let known = notified.take().filter(|&(barrier, _)| barrier == id);
                let (_, end) = notified.insert(known.unwrap_or_else(|| (id, self.missed(id, Some(member)))));
                let (generation, end) = (self.barriers[id].over() + 1, Arc::clone(end));
                self.outputs.push_back(Output::Over { arrival, generation, end });
            }
            self.set_until(id, member, None);
        }
        due.into_iter().filter_map(|(_, arrival)| arrival).for_each(|arrival| self.withdraw(arrival));
    }

    /// Sets the deadline of a waiting member, if it is before that of the generation.
    pub(super) fn set_until(&mut self, id: BarrierId, member: MemberId, until: Option<Instant>) {
        let Some(waiting_member) = self.barriers[id].members.get_mut(member) else { return };
        let waiter = Waiter { barrier: id, member };
        if let Some(before) = core::mem::replace(&mut waiting_member.until, until) {
            self.early.remove((before, waiter));
        }
        if let Some(until) = until {
            self.early.insert((until, waiter));
        }
    }
}
