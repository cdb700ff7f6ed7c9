//! One run: its nodes and their states. The consequences, that is, rounds and timeouts, are in `rounds`.

mod rounds;

use super::event::{Event, InputError, Join, JoinFailure, Loss, Output};
use super::node::NodeName;
use super::policy::HostRecord;
use super::round::{MemberState, Namespace, RoundRecord, WaitingNode};
use super::settings::RunSettings;
use super::state::{NodeState, NodeStateEvent, Phase, PhaseEvent};
use super::{ParticipantId, ROUND_MIN_MAX, RunId};
use crate::ordered::{Index, Map, Named, Set, numbers};
use crate::prelude::*;
use crate::wire::native::Why;
use alloc::collections::VecDeque;

/// What an update of a run leaves for the service to do.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) outputs: VecDeque<Output>,
    /// Participants that are no longer in the run.
    pub(super) departed: Vec<ParticipantId>,
    /// Units of work since they were last taken.
    pub(super) work: u64,
}

impl Effects {
    #[inline(never)]
    fn notify(&mut self, participant: ParticipantId, event: Event) {
        self.outputs.push_back(Output::Notify { participant, event });
    }
}

/// A node of the run, with its request to join.
#[derive(Debug)]
struct Member {
    node: Arc<NodeName>,
    address: Arc<[u8]>,
    node_state: NodeState,
    /// Whether it was in the last round; meaningful only in a gathered state.
    is_returned: bool,
    /// Number of the last round that it was in, and its rank there.
    last: Option<(u64, u32)>,
    /// When it times out; meaningful only in a gathered state.
    deadline: Instant,
    /// Its position in the queue of spares, together with `join_intent`.
    arrival: u64,
    join_intent: JoinIntent,
    join_timeout: Duration,
    local_world_size: u32,
    node_rank: Option<u32>,
    labels: Box<[(Box<str>, Box<str>)]>,
}

/// Numbers of nodes by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the round that forms.
    pub joining: u32,
    /// Waiting for the next round, while one is live.
    pub waiting: u32,
    /// In the live round.
    pub active: u32,
    /// Of the last round, not rejoined yet.
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

    /// Returns the number of slots of the next round that are taken or reserved.
    const fn slots(&self) -> u32 {
        self.joining + self.waiting + self.active + self.due
    }
}

/// How a node leaves the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    Left,
    Ended(Why),
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) phase: Phase,
    pub(super) counts: Counts,
    /// The settings of the run, and the node that set them; `None` while the run has no nodes.
    founding: Option<(RunSettings, Arc<NodeName>)>,
    closed_by: Option<Arc<NodeName>>,
    /// Why the job has failed, from the first node that reported it.
    failure: Option<Arc<str>>,
    /// Number of the next round to be formed. It never decreases, so that no two rounds share keys. It skips the
    /// numbers of rounds that nodes of the run were in at an earlier server.
    pub(super) next_round: u64,
    /// Numbers of the rounds whose keys are not deleted yet: the last one, and the one before.
    kept: [Option<u64>; 2],
    /// The last round, as long as the run has had nodes ever since.
    pub(super) record: Option<RoundRecord>,
    members: Map<ParticipantId, Member>,
    names: Named<ParticipantId>,
    standby: Index<(JoinIntent, u64), ParticipantId>,
    /// Number of nodes in `standby` with [`JoinIntent::Spare`].
    spares: u32,
    arrivals: u64,
    deadlines: Set<(Instant, ParticipantId)>,
    returned: u32,
    enough_since: Instant,
    last_arrival: Instant,
    /// Whether the nodes of the live round were notified that others wait.
    reported_waiting: bool,
    hosts: Named<HostRecord>,
    /// Bytes of `hosts`.
    host_bytes: usize,
    /// Bytes that [`Self::count_unowned`] has counted last.
    pub(super) remembered_bytes: usize,
    /// When the service is to update this run.
    pub(super) armed: Option<Instant>,
    /// The run's key among the idle runs.
    pub(super) idle_key: Option<(Idle, u64)>,
}

/// Bytes of a run without nodes, without its name: what the allocator needs for it, its entries in the lists of runs, the
/// fence of its last round, and the name of the node that closed it.
const RUN_BYTES: usize = size_of::<Run>() + 768;

/// Bytes that the lists of nodes keep for a node when it has left.
const MEMBER_BYTES: usize = size_of::<Member>() + 64;

/// Bytes of the record of a host, without its name: the record, its entries in two lists, and the allocator's share.
const HOST_BYTES: usize = 160;

/// Maximum number of hosts of one run whose failures are remembered; beyond it, all of them are forgotten.
const HOSTS_MAX: usize = 1024;

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
            host_bytes: 0,
            remembered_bytes: 0,
            armed: None,
            idle_key: None,
        }
    }

    /// Whether the run has no state worth keeping.
    pub(super) fn is_blank(&self) -> bool {
        self.phase == Phase::Gathering
            && self.kept == [None; 2]
            && self.members.is_empty()
            && self.hosts.is_empty()
    }

    /// Returns how the run is idle; `None` while it has nodes.
    pub(super) fn idle(&self) -> Option<Idle> {
        let idle = if self.phase.is_closed() { Idle::Closed } else { Idle::Open };
        self.members.is_empty().then_some(idle)
    }

    /// Counts the bytes that no session is charged for in `sum`: the hosts that failed, the nodes of the last round that
    /// are gone, and all of a run without nodes.
    #[inline(never)]
    pub(super) fn count_unowned(&mut self, sum: &mut usize) {
        let mut bytes = self.host_bytes + self.record.as_ref().map_or(0, |record| record.gone_bytes);
        if self.members.is_empty() {
            bytes += RUN_BYTES + 3 * self.id.len() + self.members.capacity() * MEMBER_BYTES;
            bytes += self.failure.as_ref().map_or(0, |failure| failure.len());
        }
        *sum = *sum - self.remembered_bytes + bytes;
        self.remembered_bytes = bytes;
    }

    /// Iterates over the rounds whose keys are not deleted yet, of a run without nodes.
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

    /// Returns the number of the live round or, if none is live, of the next one.
    pub(super) fn round(&self) -> u64 {
        let live = self.record.as_ref().filter(|_| self.phase.is_live());
        live.map_or(self.next_round, |record| record.round)
    }

    fn namespace(&self, round: u64) -> Namespace {
        Namespace { run_id: self.id.clone(), round }
    }

    /// Checks whether `participant` may join with this request. Changes nothing.
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

    /// Adds a node, or lets it rejoin, after [`Run::admits`] has accepted it.
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
            self.depart(now, old, Departure::Ended(Why::Replaced), fx);
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
                    // Nodes that found no slot before this one come first.
                    self.admit(now, fx);
                }
                if self.state_of(participant) == NodeState::Standby {
                    fx.notify(participant, Event::Standby { ahead });
                }
            }
        }
    }

    /// Gives free slots to waiting nodes that found none.
    fn admit(&mut self, now: Instant, fx: &mut Effects) {
        let max_nodes = self.max_nodes();
        let event = self.slot_event();
        while self.counts.slots() < max_nodes
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
        // The last call runs from here, even if one was opened earlier with a spare in place of the node that has now
        // joined.
        if event == NodeStateEvent::Gather && self.counts.joining == self.minimum() {
            self.enough_since = now;
        }
        fx.notify(participant, Event::Seated);
    }

    /// Changes a node's state, and updates the counts and tables.
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
        {
            record.set_state(rank, member_state);
        }
    }

    #[inline(never)]
    fn notify_active(&self, event: &Event, fx: &mut Effects) {
        let active = self.members.iter().filter(|(_, member)| member.node_state == NodeState::Active);
        active.for_each(|(participant, _)| fx.notify(participant, event.clone()));
    }

    /// Removes a node.
    pub(super) fn depart(
        &mut self,
        now: Instant,
        participant: ParticipantId,
        how: Departure,
        fx: &mut Effects,
    ) {
        let Some(member) = self.members.get(participant) else { return };
        let (node, node_state, last) = (member.node.clone(), member.node_state, member.last);
        let was_in_live_round =
            node_state == NodeState::Active || (node_state == NodeState::Waiting && member.is_returned);
        match how {
            Departure::Left => {
                let gave_up = self.lost_while_joining(participant, Why::GaveUp);
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
                if !matches!(why, Why::Replaced | Why::Stopped) {
                    self.remember_failure(now, node.host());
                }
                if was_in_live_round && let Some((round, rank)) = last {
                    self.notify_active(&Event::NodeLost(Arc::new(Loss { round, node, rank, why })), fx);
                }
            }
        }
    }

    /// Forgets the failures of all hosts.
    #[inline(never)]
    pub(super) fn forget_hosts(&mut self) {
        (self.hosts, self.host_bytes) = (Named::new(), 0);
    }

    /// Forgets what [`Self::count_unowned`] counts of a run with nodes.
    pub(super) fn forget_unowned(&mut self) {
        self.forget_hosts();
        if let Some(record) = &mut self.record {
            record.forget_gone();
        }
    }

    fn remember_failure(&mut self, now: Instant, host: &str) {
        let Some(policy) = self.founding.as_ref().and_then(|(settings, _)| settings.cool_down) else {
            return;
        };
        let record = HostRecord::add(self.hosts.get(host.as_bytes()).copied(), &policy, now);
        if self.hosts.insert(host.as_bytes(), record).is_none() {
            self.host_bytes += HOST_BYTES + host.len();
            if self.hosts.len() > HOSTS_MAX {
                self.forget_hosts();
            }
        }
    }

    /// Removes a node of the live round that asked to rejoin a closed run.
    pub(super) fn withdraw(&mut self, participant: ParticipantId, fx: &mut Effects) {
        let lost = self.lost(participant, Why::Refused);
        self.set_member_state(participant, MemberState::Ended(Why::Refused));
        self.transition(participant, NodeStateEvent::End, fx);
        if let Some(lost) = lost {
            self.notify_active(&lost, fx);
        }
    }

    /// Returns the event for the loss of a node that was not done in the live round. Without it the other nodes would
    /// wait for that node forever.
    fn lost(&self, participant: ParticipantId, why: Why) -> Option<Event> {
        let Member { node, last, .. } = self.members.get(participant)?;
        let (round, rank) = (*last)?;
        Some(Event::NodeLost(Arc::new(Loss { round, node: node.clone(), rank, why })))
    }

    /// Returns the same event for a node that waits for the round after the live one, `None` for other nodes.
    fn lost_while_joining(&self, participant: ParticipantId, why: Why) -> Option<Event> {
        let member = self.members.get(participant)?;
        if member.node_state == NodeState::Waiting && member.is_returned {
            self.lost(participant, why)
        } else {
            None
        }
    }

    /// Closes the run. Nodes that are still in the round are notified of at most one of the nodes that no longer are:
    /// the loss of one has the same effect as that of all.
    pub(super) fn close(&mut self, by: ParticipantId, fx: &mut Effects) {
        if let Some(lost) = self.end_joins(by, fx) {
            self.notify_active(&lost, fx);
        }
    }

    /// Closes the run; returns the loss event of a node of the live round that had asked to rejoin.
    fn end_joins(&mut self, by: ParticipantId, fx: &mut Effects) -> Option<Event> {
        let next = self.phase.on_event(PhaseEvent::CloseRequested)?;
        self.phase = next;
        self.closed_by = self.node_of(by).cloned();
        let (run_id, by, failure) = (self.id.clone(), self.closed_by.clone(), self.failure.clone());
        let mut lost = None;
        let members: Vec<_> = self.members.iter().map(|(id, member)| (id, member.node_state)).collect();
        for (participant, node_state) in members {
            let (run_id, by, failure) = (run_id.clone(), by.clone(), failure.clone());
            let event = match node_state {
                NodeState::Joining | NodeState::Waiting => {
                    Event::JoinFailed(JoinFailure::Closed { run_id, by, failure })
                }
                NodeState::Standby => Event::JoinFailed(JoinFailure::GracefulExit { run_id }),
                NodeState::Active | NodeState::Due | NodeState::Outside => Event::RunClosed { by },
            };
            fx.notify(participant, event);
            lost = lost.or_else(|| self.lost_while_joining(participant, Why::Refused));
            if node_state != NodeState::Active {
                self.set_member_state(participant, MemberState::Ended(Why::Refused));
                self.transition(participant, NodeStateEvent::Close, fx);
            }
        }
        lost
    }

    /// Closes the run because the job has failed. The nodes in a round are notified even if the run was closed
    /// before, since they would wait forever.
    pub(super) fn fail(&mut self, by: ParticipantId, message: &str, fx: &mut Effects) {
        if self.failure.is_some() {
            return;
        }
        let message: Arc<str> = message.into();
        self.failure = Some(message.clone());
        // `JobFailed` tells the nodes in the round more than the loss event would.
        self.end_joins(by, fx);
        self.notify_active(&Event::JobFailed { message }, fx);
    }

    fn max_nodes(&self) -> u32 {
        self.founding.as_ref().map_or(0, |(settings, _)| settings.max_nodes)
    }

    /// Returns the number of nodes that the next round needs.
    fn minimum(&self) -> u32 {
        let Some((settings, _)) = &self.founding else { return 0 };
        if self.record.is_some() { settings.minimum_to_continue } else { settings.min_nodes }
    }

    /// Returns how many of the waiting nodes and spares get a slot if a round is formed now, in their order. Nodes
    /// that found no slot get one as far as there is room. Spares replace missing nodes: nodes are missing from a
    /// round that is smaller than the last one or than the minimum.
    fn fillers(&self) -> u32 {
        let Counts { joining, standby, .. } = self.counts;
        // Spares alone do not begin a run, but they may continue it.
        let Some((settings, _)) = self.founding.as_ref().filter(|_| joining > 0 || self.record.is_some())
        else {
            return 0;
        };
        let last = self.record.as_ref().map_or(0, |record| record.world_size);
        let size = last.max(settings.min_nodes);
        let seated = (standby - self.spares).min(settings.max_nodes.saturating_sub(joining));
        seated + self.spares.min(size.saturating_sub(joining + seated))
    }
}

/// Why a node is in `standby`: it found no slot, or it asked to be a spare. Nodes that found no slot come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JoinIntent {
    Slot,
    Spare,
}

numbers!(JoinIntent: intent => intent as u64, number => if number == Self::Slot.number() { Self::Slot } else { Self::Spare });

/// Kind of a run without nodes. Closed runs are forgotten first, because they cannot form another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    Closed,
    Open,
}

numbers!(Idle: kind => kind as u64, number => if number == Self::Closed.number() { Self::Closed } else { Self::Open });
