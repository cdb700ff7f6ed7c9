//! One run: who stands where in it. What follows from that is in `rounds`.

mod rounds;

use super::event::{Event, InputError, Join, JoinFailure, Loss, Output};
use super::node::NodeName;
use super::policy::HostRecord;
use super::round::{EndReason, MemberState, Namespace, RoundRecord, WaitingNode};
use super::settings::RunSettings;
use super::state::{NodeState, NodeStateEvent, Phase, PhaseEvent};
use super::{ParticipantId, ROUND_MIN_MAX, RunId};
use crate::ordered::{Index, Map, Named, Number, Set};
use crate::planted;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

#[cfg(test)]
use super::tests::Bug;

/// What a turn leaves for the service.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) outputs: VecDeque<Output>,
    /// Those that are in the run no more.
    pub(super) departed: Vec<ParticipantId>,
    #[cfg(test)]
    pub(super) bug: Option<Bug>,
}

impl Effects {
    #[inline(never)]
    fn notify(&mut self, participant: ParticipantId, event: Event) {
        self.outputs.push_back(Output::Notify { participant, event });
    }
}

/// What a node said when it joined.
#[derive(Debug)]
struct Member {
    node: Arc<NodeName>,
    address: Arc<[u8]>,
    node_state: NodeState,
    /// Whether it was in the last round; only of one that is gathered.
    is_returned: bool,
    /// The last round that it was in, and its rank there.
    last: Option<(u64, u32)>,
    /// When it gives up; only of one that is gathered.
    deadline: Instant,
    /// Its place among those that stand by, with the wish.
    arrival: u64,
    join_intent: JoinIntent,
    join_timeout: Duration,
    local_world_size: u32,
    node_rank: Option<u32>,
    labels: Box<[(Box<str>, Box<str>)]>,
}

/// How many nodes stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the round that forms.
    pub joining: u32,
    /// For the next round, while one is live.
    pub waiting: u32,
    /// In the live round.
    pub active: u32,
    /// Of the last round, not back yet.
    pub due: u32,
    /// Spares.
    pub standby: u32,
}

impl Counts {
    const fn of(&mut self, node_state: NodeState) -> Option<&mut u32> {
        match node_state {
            NodeState::Outside => None,
            NodeState::Joining => Some(&mut self.joining),
            NodeState::Waiting => Some(&mut self.waiting),
            NodeState::Active => Some(&mut self.active),
            NodeState::Due => Some(&mut self.due),
            NodeState::Standby => Some(&mut self.standby),
        }
    }

    /// Seats of the next round that are taken or kept for somebody.
    const fn seats(&self) -> u32 {
        self.joining + self.waiting + self.active + self.due
    }
}

/// How a node goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    Left,
    Ended(EndReason),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) phase: Phase,
    pub(super) counts: Counts,
    /// What the run was begun with, and by whom; `None` while nobody is in it.
    founding: Option<(RunSettings, Arc<NodeName>)>,
    closed_by: Option<Arc<NodeName>>,
    /// Why the job has failed, in the words of who said so first.
    failure: Option<Arc<str>>,
    /// The number of the next round to be formed. It never goes back, so no round meets another's keys; it skips those of
    /// rounds that nodes of the run were in at a server before this one.
    pub(super) next_round: u64,
    /// The numbers of the rounds whose keys are not deleted yet: of the last one, and of the one before.
    kept: [Option<u64>; 2],
    /// The last round, as long as somebody has been in the run since.
    pub(super) record: Option<RoundRecord>,
    members: Map<ParticipantId, Member>,
    names: Named<ParticipantId>,
    standby: Index<(JoinIntent, u64), ParticipantId>,
    /// How many of them stand by because they want to.
    spares: u32,
    arrivals: u64,
    deadlines: Set<(Instant, ParticipantId)>,
    returned: u32,
    enough_since: Instant,
    last_arrival: Instant,
    /// Whether the live round's nodes were told that others wait.
    reported_waiting: bool,
    hosts: Named<HostRecord>,
    /// When the service wakes this run.
    pub(super) armed: Option<Instant>,
    /// Where it stands among those that nobody is in.
    pub(super) rests: Option<(Rest, u64)>,
}

impl Run {
    pub(super) const fn new(id: RunId, first_round: u64) -> Self {
        Self {
            id,
            phase: Phase::Gathering,
            counts: Counts { joining: 0, waiting: 0, active: 0, due: 0, standby: 0 },
            founding: None,
            closed_by: None,
            failure: None,
            next_round: first_round,
            kept: [None; 2],
            record: None,
            members: Map::new(),
            names: Named::new(),
            standby: Index::new(),
            spares: 0,
            arrivals: 0,
            deadlines: Set::new(),
            returned: 0,
            enough_since: Instant::ORIGIN,
            last_arrival: Instant::ORIGIN,
            reported_waiting: false,
            hosts: Named::new(),
            armed: None,
            rests: None,
        }
    }

    /// Whether nothing of it is worth remembering.
    pub(super) fn is_blank(&self) -> bool {
        self.phase == Phase::Gathering
            && self.kept == [None; 2]
            && self.members.is_empty()
            && self.hosts.is_empty()
    }

    /// How it rests; `None` while somebody is in it.
    pub(super) fn rest(&self) -> Option<Rest> {
        let rest = if self.phase.is_closed() { Rest::Closed } else { Rest::Open };
        self.members.is_empty().then_some(rest)
    }

    /// The rounds whose keys are not deleted yet, of a run that nobody is in.
    pub(super) fn kept(&self) -> impl Iterator<Item = Namespace> {
        self.kept.iter().rev().flatten().map(|&round| self.namespace(round))
    }

    pub(super) fn nodes(&self) -> usize {
        self.members.len()
    }

    pub(super) fn node_of(&self, participant: ParticipantId) -> Option<&Arc<NodeName>> {
        self.members.get(participant).map(|member| &member.node)
    }

    pub(super) fn has_node(&self, node: &NodeName) -> bool {
        self.names.contains(&node.key())
    }

    pub(super) fn waiting_nodes(&self) -> impl Iterator<Item = WaitingNode<'_>> {
        let gathered = self.members.iter().filter(|(_, member)| member.node_state.is_gathered());
        gathered.map(|(_, member)| WaitingNode {
            node: &member.node,
            address: &member.address,
            local_world_size: member.local_world_size,
        })
    }

    pub(super) fn state_of(&self, participant: ParticipantId) -> NodeState {
        self.members.get(participant).map_or(NodeState::Outside, |member| member.node_state)
    }

    /// The live round or else the next one.
    pub(super) fn round(&self) -> u64 {
        let live = self.record.as_ref().filter(|_| self.phase.is_live());
        live.map_or(self.next_round, |record| record.round)
    }

    fn namespace(&self, round: u64) -> Namespace {
        Namespace { run_id: self.id.clone(), round }
    }

    /// Whether `participant` may join so, with nothing changed.
    pub(super) fn admits(
        &self,
        now: Instant,
        participant: ParticipantId,
        join: &Join,
    ) -> Result<(), InputError> {
        let member = self.members.get(participant);
        if let Some(member) = member {
            let (run_id, node) = (self.id.clone(), member.node.clone());
            if *member.node != join.node {
                return Err(InputError::OtherIdentity { participant, run_id, node });
            }
            if matches!(member.node_state, NodeState::Joining | NodeState::Waiting | NodeState::Standby) {
                return Err(InputError::JoinPending { run_id, node });
            }
        }
        if self.phase.is_closed() {
            let (run_id, by, failure) = (self.id.clone(), self.closed_by.clone(), self.failure.clone());
            return Err(InputError::Closed { run_id, by, failure });
        }
        if let Some((settings, set_by)) = &self.founding
            && let Some(difference) = settings.difference(&join.settings)
        {
            return Err(InputError::SettingsDiffer {
                run_id: self.id.clone(),
                set_by: set_by.clone(),
                offered_by: Box::new(join.node.clone()),
                difference: Box::new(difference),
            });
        }
        let host = join.node.host();
        if member.is_none()
            && let Some((record, policy)) =
                self.hosts.get(host.as_bytes()).zip(join.settings.cool_down.as_ref())
            && let Some(remaining) = record.remaining(policy, now)
        {
            let (run_id, host, failures) = (self.id.clone(), host.into(), record.failures);
            return Err(InputError::CoolingDown { run_id, host, failures, remaining });
        }
        Ok(())
    }

    /// A node joins or stands by that [`Run::admits`].
    pub(super) fn enter(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        join: Join,
        join_intent: JoinIntent,
        fx: &mut Effects,
    ) {
        let (mut last, mut inherits_slot) = (None, false);
        if let Some(&old) = self.names.get(&join.node.key())
            && old != participant
        {
            last = self.members.get(old).and_then(|member| member.last);
            inherits_slot = join_intent == JoinIntent::Slot && self.state_of(old) != NodeState::Standby;
            fx.notify(old, Event::Replaced { by: participant });
            self.depart(now, old, Departure::Ended(EndReason::Replaced), 0, fx);
        }
        self.next_round = self.next_round.max(join.round_min.min(ROUND_MIN_MAX));
        let Join { node, address, local_world_size, labels, node_rank, join_timeout, settings, .. } = join;
        let node = Arc::new(node);
        self.founding.get_or_insert_with(|| (settings, node.clone()));
        let known = self.members.remove(participant);
        let (node, node_state) =
            known.as_ref().map_or((node, NodeState::Outside), |known| (known.node.clone(), known.node_state));
        let last = known.map_or(last, |known| known.last);
        self.names.insert(&node.key(), participant);
        self.arrivals += 1;
        let (arrival, is_returned, deadline) = (self.arrivals, false, Instant::MAX);
        let labels = labels.into_boxed_slice();
        self.members.insert(
            participant,
            Member {
                node,
                address,
                node_state,
                is_returned,
                last,
                deadline,
                arrival,
                join_intent,
                join_timeout,
                local_world_size,
                node_rank,
                labels,
            },
        );
        self.set_member_state(participant, MemberState::Back);
        match (node_state, join_intent) {
            (NodeState::Active, JoinIntent::Slot) => {
                self.claim_slot(now, participant, NodeStateEvent::Wait, fx)
            }
            (NodeState::Due, JoinIntent::Slot) => {
                self.claim_slot(now, participant, NodeStateEvent::Gather, fx)
            }
            _ => {
                let ahead = self.counts.standby;
                self.transition(participant, NodeStateEvent::Park, fx);
                if inherits_slot {
                    let event = self.slot_event();
                    self.claim_slot(now, participant, event, fx);
                } else if join_intent == JoinIntent::Slot {
                    // Those that found no seat before it go first.
                    self.admit(now, fx);
                }
                if self.state_of(participant) == NodeState::Standby {
                    fx.notify(participant, Event::Standby { ahead });
                }
            }
        }
    }

    /// Gives free seats to those that stand by because they found none.
    fn admit(&mut self, now: Instant, fx: &mut Effects) {
        let max_nodes = self.max_nodes();
        let event = self.slot_event();
        #[cfg(test)]
        let kept = if fx.bug == Some(Bug::SpareTakesKeptSlot) { self.counts.due } else { 0 };
        #[cfg(not(test))]
        let kept = 0;
        while self.counts.seats() - kept < max_nodes
            && let Some(((JoinIntent::Slot, _), participant)) = self.standby.first()
        {
            self.claim_slot(now, participant, event, fx);
        }
    }

    const fn slot_event(&self) -> NodeStateEvent {
        if self.phase.is_forming() { NodeStateEvent::Gather } else { NodeStateEvent::Wait }
    }

    #[inline(never)]
    fn claim_slot(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        event: NodeStateEvent,
        fx: &mut Effects,
    ) {
        let Some(member) = self.members.get_mut(participant) else { return };
        member.deadline = now + member.join_timeout;
        member.is_returned = matches!(member.node_state, NodeState::Active | NodeState::Due);
        self.last_arrival = now;
        self.transition(participant, event, fx);
        // The last call runs from here, also when one was opened before with a spare for the node that now came.
        if event == NodeStateEvent::Gather && self.counts.joining == self.minimum() {
            self.enough_since = now;
        }
        fx.notify(participant, Event::Seated);
    }

    /// Moves a node, and keeps the books.
    #[inline(never)]
    fn transition(&mut self, participant: ParticipantId, event: NodeStateEvent, fx: &mut Effects) {
        let Some(member) = self.members.get_mut(participant) else { return };
        let from = member.node_state;
        let Some(to) = from.on_event(event) else {
            debug_assert!(false, "{from:?} has no transition on {event:?}");
            return;
        };
        member.node_state = to;
        if let Some(count) = self.counts.of(from) {
            *count -= 1;
        }
        if let Some(count) = self.counts.of(to) {
            *count += 1;
        }
        let (arrival, deadline) = ((member.join_intent, member.arrival), (member.deadline, participant));
        let is_spare = u32::from(member.join_intent == JoinIntent::Spare);
        match (from, to) {
            (NodeState::Standby, _) => {
                self.standby.remove(arrival);
                self.spares -= is_spare;
            }
            (_, NodeState::Standby) => {
                self.standby.insert(arrival, participant);
                self.spares += is_spare;
            }
            _ => {}
        }
        match (from.is_gathered(), to.is_gathered()) {
            (false, true) => {
                self.deadlines.insert(deadline);
                #[cfg(test)]
                if fx.bug == Some(Bug::ForgetDeadline) {
                    self.deadlines.remove(deadline);
                }
                self.returned += u32::from(member.is_returned);
            }
            (true, false) => {
                self.deadlines.remove(deadline);
                self.returned -= u32::from(member.is_returned);
            }
            _ => {}
        }
        if to == NodeState::Outside
            && let Some(member) = self.members.remove(participant)
        {
            self.names.remove(&member.node.key());
            fx.departed.push(participant);
        }
    }

    #[inline(never)]
    fn set_member_state(&mut self, participant: ParticipantId, member_state: MemberState) {
        let last = self.members.get(participant).and_then(|member| member.last);
        if let Some((round, rank)) = last
            && let Some(record) = self.record.as_mut().filter(|record| record.round == round)
            && let Some(member) = usize::try_from(rank).ok().and_then(|rank| record.members.get_mut(rank))
        {
            member.member_state = member_state;
        }
    }

    #[inline(never)]
    fn notify_active(&self, event: &Event, fx: &mut Effects) {
        let active = self.members.iter().filter(|(_, member)| member.node_state == NodeState::Active);
        active.for_each(|(participant, _)| fx.notify(participant, event.clone()));
    }

    /// A node goes. `failed_hosts_max` bounds what is remembered of failures.
    pub(super) fn depart(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        how: Departure,
        failed_hosts_max: usize,
        fx: &mut Effects,
    ) {
        let Some(member) = self.members.get(participant) else { return };
        let (node, node_state, last) = (member.node.clone(), member.node_state, member.last);
        let was_in_live_round =
            node_state == NodeState::Active || (node_state == NodeState::Waiting && member.is_returned);
        match how {
            Departure::Left => {
                let gave_up = self.lost_while_joining(participant, EndReason::GaveUp);
                self.set_member_state(participant, MemberState::Left);
                if node_state == NodeState::Active
                    && let Some(record) = &mut self.record
                {
                    record.finished += 1;
                }
                self.transition(participant, NodeStateEvent::Leave, fx);
                if let Some(lost) = gave_up {
                    self.notify_active(&lost, fx);
                }
            }
            Departure::Ended(why) => {
                self.set_member_state(participant, MemberState::Ended(why));
                self.transition(participant, NodeStateEvent::End, fx);
                if why != EndReason::Replaced {
                    self.remember_failure(now, node.host(), failed_hosts_max);
                }
                if was_in_live_round && let Some((round, rank)) = last {
                    self.notify_active(&Event::NodeLost(Arc::new(Loss { round, node, rank, why })), fx);
                    let forgets_one = planted::has(planted::Bug::UntoldSurvivor);
                    #[cfg(test)]
                    let forgets_one = forgets_one || fx.bug == Some(Bug::ForgetOneSurvivor);
                    if forgets_one {
                        fx.outputs.pop_back();
                    }
                }
            }
        }
    }

    fn remember_failure(&mut self, now: Instant, host: &str, failed_hosts_max: usize) {
        let Some(policy) = self.founding.as_ref().and_then(|(settings, _)| settings.cool_down) else {
            return;
        };
        let record = HostRecord::add(self.hosts.get(host.as_bytes()).copied(), &policy, now);
        if self.hosts.len() >= failed_hosts_max && !self.hosts.contains(host.as_bytes()) {
            let oldest =
                self.hosts.iter().min_by_key(|(_, record)| record.last).map(|(host, _)| host.to_vec());
            oldest.map(|host| self.hosts.remove(&host));
        }
        if failed_hosts_max > 0 {
            self.hosts.insert(host.as_bytes(), record);
        }
    }

    /// A node of the live round wanted to come back to a closed run: it is not in the round any more.
    pub(super) fn withdraw(&mut self, participant: ParticipantId, fx: &mut Effects) {
        let lost = self.lost(participant, EndReason::Refused);
        self.set_member_state(participant, MemberState::Ended(EndReason::Refused));
        self.transition(participant, NodeStateEvent::End, fx);
        if let Some(lost) = lost {
            self.notify_active(&lost, fx);
        }
    }

    /// What is to be told of a node that is out of the live round and was not done there: those that are would wait for it
    /// in vain.
    fn lost(&self, participant: ParticipantId, why: EndReason) -> Option<Event> {
        let Member { node, last, .. } = self.members.get(participant)?;
        let (round, rank) = (*last)?;
        Some(Event::NodeLost(Arc::new(Loss { round, node: node.clone(), rank, why })))
    }

    /// The same of one that waits for the round after the live one; of others, nothing.
    fn lost_while_joining(&self, participant: ParticipantId, why: EndReason) -> Option<Event> {
        let member = self.members.get(participant)?;
        if member.node_state == NodeState::Waiting && member.is_returned {
            self.lost(participant, why)
        } else {
            None
        }
    }

    /// Whoever is still in the round is told, and of one at most of those that are so no more: one is as bad as all.
    pub(super) fn close(&mut self, by: ParticipantId, fx: &mut Effects) {
        if let Some(lost) = self.end_joins(by, fx) {
            self.notify_active(&lost, fx);
        }
    }

    /// Closes the run; what is to be told of those that wanted to come back from the live round.
    fn end_joins(&mut self, by: ParticipantId, fx: &mut Effects) -> Option<Event> {
        let next = self.phase.on_event(PhaseEvent::CloseRequested)?;
        self.phase = next;
        self.closed_by = self.node_of(by).cloned();
        let (run_id, by, failure) = (self.id.clone(), self.closed_by.clone(), self.failure.clone());
        let mut lost = None;
        let members: Vec<_> = self.members.iter().map(|(id, member)| (id, member.node_state)).collect();
        for (participant, node_state) in members {
            #[cfg(test)]
            if fx.bug == Some(Bug::ForgetOneOnClose) && node_state.is_gathered() {
                fx.bug = None;
                continue;
            }
            let (run_id, by, failure) = (run_id.clone(), by.clone(), failure.clone());
            let event = match node_state {
                NodeState::Joining | NodeState::Waiting => {
                    Event::JoinFailed(JoinFailure::Closed { run_id, by, failure })
                }
                NodeState::Standby => Event::JoinFailed(JoinFailure::GracefulExit { run_id }),
                NodeState::Active | NodeState::Due | NodeState::Outside => Event::RunClosed { by },
            };
            fx.notify(participant, event);
            lost = lost.or_else(|| self.lost_while_joining(participant, EndReason::Refused));
            if node_state != NodeState::Active {
                self.transition(participant, NodeStateEvent::Close, fx);
            }
        }
        lost
    }

    /// The job has failed. Those whom that leaves in a round wait there in vain, whoever closed the run before.
    pub(super) fn fail(&mut self, by: ParticipantId, message: &str, fx: &mut Effects) {
        if self.failure.is_some() {
            return;
        }
        let message: Arc<str> = message.into();
        self.failure = Some(message.clone());
        // This says more to those in the round than who is lost.
        self.end_joins(by, fx);
        self.notify_active(&Event::JobFailed { message }, fx);
    }

    fn max_nodes(&self) -> u32 {
        self.founding.as_ref().map_or(0, |(settings, _)| settings.max_nodes)
    }

    /// Nodes that the next round needs.
    fn minimum(&self) -> u32 {
        let Some((settings, _)) = &self.founding else { return 0 };
        if self.record.is_some() { settings.minimum_to_continue } else { settings.min_nodes }
    }

    /// How many of those that stand by get a seat if a round is formed now, in their order: as many as there is room for
    /// of those that found no seat, and spares in place of nodes that are missing. Nodes are missing from a round that is
    /// smaller than the last one or than the minimum.
    fn fillers(&self) -> u32 {
        let Counts { joining, standby, .. } = self.counts;
        // Spares alone do not begin a run, but they may go on with it.
        let Some((settings, _)) = self.founding.as_ref().filter(|_| joining > 0 || self.record.is_some())
        else {
            return 0;
        };
        let last = self.record.as_ref().map_or(0, |record| record.members.len());
        let size = u32::try_from(last).unwrap_or(u32::MAX).max(settings.min_nodes);
        let seated = (standby - self.spares).min(settings.max_nodes.saturating_sub(joining));
        seated + self.spares.min(size.saturating_sub(joining + seated))
    }
}

/// Why a node stands by: because there was no seat, or because it wants nothing else. Who found no seat goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JoinIntent {
    Slot,
    Spare,
}

impl Number for JoinIntent {
    fn number(self) -> u64 {
        self as u64
    }

    fn from_number(number: u64) -> Self {
        if number == Self::Slot.number() { Self::Slot } else { Self::Spare }
    }
}

/// How a run rests that nobody is in. Those that are closed are forgotten first: nothing will happen in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    Closed,
    Open,
}

impl Number for Rest {
    fn number(self) -> u64 {
        self as u64
    }

    fn from_number(number: u64) -> Self {
        if number == Self::Closed.number() { Self::Closed } else { Self::Open }
    }
}
