//! Deadlines: of a whole generation, and of arrivals with a shorter timeout than their generation.

use super::{ArrivalId, BarrierId, Barriers, ENDS_PER_STEP, MemberId, Output, Waiter};
use crate::prelude::*;

impl Barriers {
    /// Does a step of what is due: pending ends of generations, and deadlines until `now`.
    pub(super) fn end_due(&mut self, now: Instant) {
        self.break_some();
        while self.step_work_left > 0 {
            let early = self.early.first().filter(|&(when, _)| when <= now);
            let due = self.deadlines.first().filter(|&(when, _)| when <= now);
            match (early, due) {
                (Some((when, _)), due) if due.is_none_or(|(deadline, _)| when < deadline) => {
                    let is_due = |until| until <= now && due.is_none_or(|(deadline, _)| until < deadline);
                    let before = self.work;
                    self.give_up(is_due);
                    self.step_work_left = self.step_work_left.saturating_sub(self.work - before);
                }
                (_, Some((_, id))) => self.conclude_in_step(id),
                _ => return,
            }
        }
    }

    /// Ends arrivals at one barrier whose own deadline has passed, as many as a step may. They get the names of the missing
    /// participants, which are collected once, and the others continue to wait.
    fn give_up(&mut self, is_due: impl Fn(Instant) -> bool) {
        let Some((_, Waiter { barrier: id, member: first })) = self.early.first() else { return };
        let members = &self.barriers[id].members;
        let due = self.early.iter().take_while(|&(until, waiter)| is_due(until) && waiter.barrier == id);
        // Who has a deadline waits.
        let arrivals = due.take(ENDS_PER_STEP).filter_map(|(_, waiter)| members.get(waiter.member)?.arrival);
        let arrivals: Vec<ArrivalId> = arrivals.collect();
        // All of them count as present for each other.
        let (generation, end) = (self.barriers[id].over() + 1, self.missed(id, Some(first)));
        for &arrival in &arrivals {
            self.outputs.push_back(Output::Over { arrival, generation, end: Arc::clone(&end) });
        }
        arrivals.into_iter().for_each(|arrival| self.withdraw(arrival));
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
