//! Consequences of a run's state: rounds are formed and end, and joins time out.

use super::{Counts, Effects, Member, Run};
use crate::ordered::Named;
use crate::prelude::*;
use crate::rendezvous::service::ParticipantId;
use crate::rendezvous::service::event::{Event, JoinFailure, NAMES_MAX, Output, Shortfall};
use crate::rendezvous::service::policy::{self, Action, Candidate, RankOrder, Reason, View, decide};
use crate::rendezvous::service::round::{MemberState, RoundMember, RoundRecord};
use crate::rendezvous::service::state::{NodeState, NodeStateEvent, Phase, PhaseEvent};
use crate::wire::native::Why;

impl Run {
    /// Returns the state on which the next decision depends; `None`: the run has no nodes.
    pub(in crate::rendezvous::service) fn view(&self) -> Option<View> {
        let (settings, _) = self.founding.as_ref()?;
        let Counts { joining, active, due, .. } = self.counts;
        Some(View {
            phase: self.phase,
            is_first: self.record.is_none(),
            joining,
            spares: self.fillers(),
            returned: self.returned,
            due,
            active,
            finished: self.record.as_ref().map_or(0, |record| record.finished),
            minimum: self.minimum(),
            max_nodes: settings.max_nodes,
            minimum_to_continue: settings.minimum_to_continue,
            last_call: settings.last_call,
            fast_quorum: settings.fast_quorum,
            enough_since: self.enough_since,
            last_arrival: self.last_arrival,
            first_timeout_at: self.deadlines.first().map(|(deadline, _)| deadline),
        })
    }

    /// Does all that is due at `now`; returns when more will be due.
    pub(in crate::rendezvous::service) fn settle(
        &mut self,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<Instant> {
        let wake = loop {
            if self.phase.is_forming() {
                self.admit(now, fx);
            }
            if self.members.is_empty() && !self.phase.is_live() {
                // The next node starts the run anew, except for the number of the round. A closed run stays closed.
                (self.founding, self.record) = (None, None);
                if self.phase.is_closed() {
                    self.forget_hosts();
                } else {
                    self.phase = Phase::Gathering;
                }
            }
            let Some(view) = self.view() else { break None };
            let (action, reason) = decide(now, &view);
            if let Action::Wait(until) = action {
                if !self.expire(now, fx) {
                    break until;
                }
                continue;
            }
            let (run_id, round) = (self.id.clone(), self.round());
            fx.outputs.push_back(Output::Decided { run_id, round, action, reason });
            match action {
                Action::Wait(_) => {}
                Action::OpenLastCall => {
                    self.enough_since = now;
                    self.phase_event(PhaseEvent::MinimumReached);
                }
                Action::CancelLastCall => self.phase_event(PhaseEvent::MinimumLost),
                Action::CompleteRound => self.complete(now, fx),
                Action::EndRound => self.end_round(reason, fx),
            }
        };
        self.notify_waiting(fx);
        wake
    }

    fn phase_event(&mut self, event: PhaseEvent) {
        let next = self.phase.on_event(event);
        debug_assert!(next.is_some(), "{:?} has no transition on {event:?}", self.phase);
        self.phase = next.unwrap_or(self.phase);
    }

    fn notify_waiting(&mut self, fx: &mut Effects) {
        let nodes = self.counts.waiting;
        if self.phase == Phase::Complete && (nodes > 0) != self.reported_waiting {
            self.reported_waiting = nodes > 0;
            self.notify_active(&Event::NodesWaiting { nodes }, fx);
        }
    }

    /// Removes the nodes whose join has timed out; returns whether there were any.
    fn expire(&mut self, now: Instant, fx: &mut Effects) -> bool {
        let expired: Vec<_> = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).collect();
        if expired.is_empty() {
            return false;
        }
        let (shortfall, work) = self.shortfall();
        let shortfall = Arc::new(shortfall);
        fx.work += work;
        let mut lost = None;
        for (_, participant) in expired {
            let waited = self.members.get(participant).map_or(Duration::ZERO, |member| member.join_timeout);
            let failure = JoinFailure::TimedOut { waited, shortfall: shortfall.clone() };
            fx.notify(participant, Event::JoinFailed(failure));
            lost = lost.or_else(|| self.lost_while_joining(participant, Why::GaveUp));
            self.set_member_state(participant, MemberState::GaveUp);
            self.transition(participant, NodeStateEvent::Expire, fx);
        }
        if let Some(lost) = lost {
            self.notify_active(&lost, fx);
        }
        true
    }

    /// Returns which nodes are missing, and the work of finding that out.
    fn shortfall(&self) -> (Shortfall, u64) {
        let there = self.members.iter().filter(|(_, member)| member.node_state.is_gathered());
        let (missing_count, missing, work) = self
            .record
            .as_ref()
            .map(|record| record.missing(NAMES_MAX, |node| self.has_node(node)))
            .unwrap_or_default();
        let shortfall = Shortfall {
            round: self.next_round,
            minimum: self.view().map_or(0, |view| view.minimum),
            live_round: self.phase.is_live().then(|| self.round()),
            there_count: self.counts.joining + self.counts.waiting,
            there: there.take(NAMES_MAX).map(|(_, member)| member.node.clone()).collect(),
            missing_count,
            missing: missing.iter().map(|member| (member.node.clone(), member.member_state)).collect(),
        };
        (shortfall, work)
    }

    /// Forms the next round from the nodes that have joined, and from as many waiting nodes and spares as it needs.
    fn complete(&mut self, now: Instant, fx: &mut Effects) {
        let round = self.next_round;
        for node_state in [NodeState::Due, NodeState::Standby] {
            let moved: Vec<_> = match node_state {
                NodeState::Due => {
                    let due = self.members.iter().filter(|(_, member)| member.node_state == NodeState::Due);
                    due.map(|(participant, _)| participant).collect()
                }
                _ => {
                    let fillers = usize::try_from(self.fillers()).unwrap_or(usize::MAX);
                    self.standby.iter().take(fillers).map(|(_, participant)| participant).collect()
                }
            };
            for participant in moved {
                if node_state == NodeState::Due {
                    fx.notify(participant, Event::Excluded { round });
                    self.transition(participant, NodeStateEvent::RoundCompleted, fx);
                } else {
                    self.claim_slot(now, participant, NodeStateEvent::Gather, fx);
                }
            }
        }
        let record = self.rank(round);
        self.next_round += 1;
        let [last, before] = self.kept;
        self.kept = [Some(round), last];
        if let Some(old) = before {
            fx.outputs.push_back(Output::Delete(self.namespace(old)));
        }
        fx.outputs.push_back(Output::RoundOpened(self.namespace(round)));
        for ranked in &record.members {
            let rank = ranked.rank;
            self.transition(ranked.participant, NodeStateEvent::RoundCompleted, fx);
            if let Some(member) = self.members.get_mut(ranked.participant) {
                (member.last, member.is_returned) = (Some((round, rank)), false);
            }
            if let Some(summary) = record.summary_for(&self.id, ranked) {
                fx.notify(ranked.participant, Event::RoundFormed(summary));
            }
        }
        self.record = Some(record);
        self.phase_event(PhaseEvent::RoundCompleted);
        self.reported_waiting = false;
    }

    fn rank(&self, round: u64) -> RoundRecord {
        let (policy, label) = match self.founding.as_ref().map(|(settings, _)| &settings.rank_order) {
            Some(policy @ RankOrder::Label(label)) => (policy, Some(label)),
            Some(policy) => (policy, None),
            None => (&RankOrder::Sticky, None),
        };
        // Last ranks are looked up by name: a node that restarted under the same name gets its last rank.
        let mut last: Named<u32> = Named::new();
        for member in self.record.iter().flat_map(|record| &record.members) {
            last.insert(&member.node.key(), member.rank);
        }
        let joining = self.members.iter().filter(|(_, member)| member.node_state == NodeState::Joining);
        let joining: Vec<(ParticipantId, &Member)> = joining.collect();
        let candidates: Vec<Candidate<'_>> = joining
            .iter()
            .map(|(_, member)| Candidate {
                node: &member.node,
                last_rank: last.get(&member.node.key()).copied(),
                node_rank: member.node_rank,
                label: label.and_then(|label| {
                    member.labels.iter().find(|(name, _)| name == label).map(|(_, value)| &**value)
                }),
            })
            .collect();
        let mut worker_offset = 0;
        let members = policy::order(policy, &candidates).into_iter().zip(0..).map(|(at, rank)| {
            let (participant, member) = joining[at];
            let (local_world_size, rank_offset) = (member.local_world_size, worker_offset);
            worker_offset += u64::from(local_world_size);
            RoundMember {
                rank,
                node: member.node.clone(),
                address: member.address.clone(),
                participant,
                local_world_size,
                worker_offset: rank_offset,
                member_state: MemberState::Present,
            }
        });
        RoundRecord::new(round, members.collect())
    }

    /// Ends the live round. Its nodes keep their slots until the next round is formed.
    fn end_round(&mut self, reason: Reason, fx: &mut Effects) {
        let round = self.round();
        fx.outputs.push_back(Output::Fence(self.namespace(round)));
        self.phase_event(PhaseEvent::RoundEnded);
        let members: Vec<_> = self.members.iter().map(|(id, member)| (id, member.node_state)).collect();
        for (participant, node_state) in members {
            if node_state == NodeState::Active {
                fx.notify(participant, Event::RoundEnded { round, reason });
            }
            if matches!(node_state, NodeState::Active | NodeState::Waiting) {
                self.transition(participant, NodeStateEvent::RoundEnded, fx);
            }
            if self.phase == Phase::Closed {
                self.transition(participant, NodeStateEvent::Close, fx);
            }
        }
    }
}
