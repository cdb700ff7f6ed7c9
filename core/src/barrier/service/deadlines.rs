//! Deadlines: of a whole generation, and of arrivals with a shorter timeout than their generation.

use super::{ArrivalId, BarrierId, Barriers, ENDS_PER_STEP, End, MemberId, Output, Waiter};
use crate::prelude::*;

impl Barriers {
    /// Does a step of what is due: generations that are broken, and deadlines until `now`.
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
        let Some((_, Waiter { barrier: id, .. })) = self.early.first() else { return };
        let due = self.early.iter().take_while(|&(until, waiter)| is_due(until) && waiter.barrier == id);
        // All of them count as present for each other.
        let due: Vec<(MemberId, Option<ArrivalId>)> = due
            .take(ENDS_PER_STEP)
            .map(|(_, Waiter { member, .. })| {
                let waiting_member = self.barriers[id].members.get(member);
                (member, waiting_member.and_then(|waiting_member| waiting_member.arrival))
            })
            .collect();
        let mut missing: Option<Arc<End>> = None;
        for &(member, arrival) in &due {
            if let Some(arrival) = arrival {
                let end = missing.take().unwrap_or_else(|| self.missed(id, Some(member)));
                let generation = self.barriers[id].over() + 1;
                self.outputs.push_back(Output::Over { arrival, generation, end: Arc::clone(&end) });
                missing = Some(end);
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
