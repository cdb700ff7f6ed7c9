//! Rendezvous requests of native clients. Frames become inputs of the rendezvous service. Its outputs become fences and
//! removed keys at once, and notifications of nodes as far as the turn allows.

use super::jobs::Job;
use super::{ANSWER_WORK, Native, RequestId, ServerContext, millis};
use crate::node::server::event::Event as ServerEvent;
use crate::prelude::*;
use crate::rendezvous::service::{
    CoolDown, Event, FastQuorum, Input, InputError, Join, JoinFailure, LastCall, Namespace, NodeName, Output,
    ParticipantId, RankOrder, Reason, Round, RunId, RunSettings, RunStatus,
};
use crate::session::table::SessionId;
use crate::store::engine::Stale;
use crate::store::op::Key;
use crate::wire::native::{
    self, ClientFrame, Entry, Fault, FaultCode, List, Member, RankOrder as Order, ServerFrame, Terms, Why,
};

/// Most members in one answer.
const MEMBERS_MAX: usize = 4096;

/// Most notifications that are left for later turns. Further ones are sent at once.
const NOTIFICATIONS_MAX: usize = 1 << 14;

/// Charge of a node in addition to what it sends with its Join, in bytes: its entries in the tables of its run, and the run,
/// in which it may be alone.
pub(super) const NODE_COST_BYTES: u64 = 2688;

/// Charge of a label of a node in addition to its bytes.
const LABEL_COST_BYTES: u64 = 96;

/// Nodes that one unit of work passes over.
const NODES_PER_UNIT: u64 = 16;

/// Description of a node of a round.
struct NodeEntry {
    rank_first: u64,
    local_world_size: u32,
    node: String,
    address: Box<[u8]>,
}

/// Returns the number of all nodes, and those of one page, which begins at a rank.
fn page_of<T>(
    all: impl Iterator<Item = (u32, T)>,
    (first, count): (u32, usize),
    describe: impl Fn(T) -> NodeEntry,
) -> (u32, Vec<(u32, NodeEntry)>) {
    let mut nodes = 0;
    let mut page = Vec::new();
    for (rank, one) in all {
        nodes += 1;
        if rank >= first && page.len() < count {
            page.push((rank, describe(one)));
        }
    }
    (nodes, page)
}

/// Part of a session in a run.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Join request. Pushes carry its id.
    join: RequestId,
    run_id: RunId,
    /// Bytes that the session is charged for it.
    charge: u64,
    /// Number of notifications that are left for later turns.
    parked: u32,
}

impl Part {
    pub(super) const fn run_id(&self) -> &RunId {
        &self.run_id
    }
}

/// Error that a request is answered with.
struct Refusal {
    code: FaultCode,
    first: u64,
    second: u64,
    text: String,
}

impl Refusal {
    const fn new(code: FaultCode, text: String) -> Self {
        Self { code, first: 0, second: 0, text }
    }

    fn invalid(text: &str) -> Self {
        Self::new(FaultCode::InvalidArgument, text.into())
    }

    fn fault(&self) -> Fault<'_> {
        Fault { text: self.text.as_bytes(), ..Fault::new(self.code, self.first, self.second) }
    }
}

/// Returns the id of the run that a request of the rendezvous names.
fn run_id_of<'f>(frame: &ClientFrame<'f>) -> &'f [u8] {
    match *frame {
        ClientFrame::Join { entry } | ClientFrame::Standby { entry } => entry.run_id,
        ClientFrame::Leave { run_id }
        | ClientFrame::Close { run_id }
        | ClientFrame::Fail { run_id, .. }
        | ClientFrame::Members { run_id, .. }
        | ClientFrame::RunInfo { run_id } => run_id.name(),
        _ => b"",
    }
}

impl Native {
    pub(super) fn rendezvous_request(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        frame: &ClientFrame<'_>,
    ) {
        self.update_runs(context, request.session, run_id_of(frame));
        let outcome = match *frame {
            ClientFrame::Join { .. } | ClientFrame::Standby { .. } => self.enter(context, request, frame),
            ClientFrame::Leave { run_id } => self.leave(context, request, run_id),
            ClientFrame::Close { run_id } => self.close(context, request, run_id, None),
            ClientFrame::Fail { run_id, message } => self.close(context, request, run_id, Some(message)),
            ClientFrame::Members { run_id, round, first_node_rank, count_max } => {
                self.members(context, request, run_id, round, (first_node_rank, count_max))
            }
            ClientFrame::RunInfo { run_id } => self.run_info(context, request, run_id),
            _ => Err(Refusal::invalid("not a request of the rendezvous")),
        };
        if let Err(refusal) = outcome {
            self.fail(context, request, refusal.fault());
        }
    }

    /// Does what is due in the run of a session, and in that of this name, before a request of the session is served: it
    /// may concern an earlier Join of the session.
    #[inline(never)]
    fn update_runs(&mut self, context: &mut ServerContext<'_>, session: SessionId, run_id: &[u8]) {
        context.for_others(|context| {
            self.rendezvous.update(context.now, participant(session), run_id);
            self.drain_rounds(context);
        });
        self.notify_first(context, session);
    }

    fn enter(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        frame: &ClientFrame<'_>,
    ) -> Result<(), Refusal> {
        let (ClientFrame::Join { entry } | ClientFrame::Standby { entry }) = frame else { return Ok(()) };
        let (join, participant) = (read_join(entry)?, participant(request.session));
        let input = match frame {
            ClientFrame::Standby { .. } => Input::Standby { participant, join },
            _ => Input::Join { participant, join },
        };
        let run_id = text("run id", entry.run_id)?.into();
        let charged = self.parts.get(request.session).map_or(0, |part| part.charge);
        let charge = cost(entry).max(charged);
        if let Err(fault) = self.sessions.charge(request.session, charge - charged) {
            let text = String::from_utf8_lossy(fault.text).into();
            return Err(Refusal { first: fault.first, ..Refusal::new(fault.code, text) });
        }
        let part = Part { join: request, run_id, charge, parked: 0 };
        let before = self.parts.insert(request.session, part);
        if let Err(error) = self.rendezvous.handle(context.now, input) {
            match before {
                Some(before) => self.parts.insert(request.session, before),
                None => self.parts.remove(request.session),
            };
            self.sessions.discharge(request.session, charge - charged);
            self.discharge_if_out(request.session);
            self.drain_rounds(context);
            return Err(refusal_of(&error));
        }
        self.drain_rounds(context);
        Ok(())
    }

    /// Ends the charge for the node of a session if it is in no run any more. Notifications of its last run may follow.
    fn discharge_if_out(&mut self, session: SessionId) {
        if self.rendezvous.node_state(participant(session)).is_none()
            && let Some(part) = self.parts.get_mut(session)
        {
            self.sessions.discharge(session, core::mem::take(&mut part.charge));
        }
    }

    fn remove_part(&mut self, session: SessionId) -> Option<Part> {
        let part = self.parts.remove(session)?;
        self.sessions.discharge(session, part.charge);
        Some(part)
    }

    fn leave(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        run_id: Key<'_>,
    ) -> Result<(), Refusal> {
        let run_id = text("run id", run_id.name())?;
        let participant = participant(request.session);
        if self.rendezvous.node_state(participant).is_none_or(|(run, _)| **run != *run_id) {
            return Err(Refusal::new(
                FaultCode::UnknownRound,
                format!("this session is not in the run '{run_id}'"),
            ));
        }
        let part = self.remove_part(request.session);
        let left = self.rendezvous.handle(context.now, Input::Leave { participant });
        if let Some(Part { join, .. }) = part {
            // This answers only a join that is pending: a request is never answered twice.
            let fault = Fault { text: b"left", ..Fault::new(FaultCode::Cancelled, 0, 0) };
            self.fail(context, join, fault);
        }
        self.drain_rounds(context);
        left.map_err(|error| refusal_of(&error))?;
        self.done(context, request);
        Ok(())
    }

    fn close(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        run_id: Key<'_>,
        failure: Option<&[u8]>,
    ) -> Result<(), Refusal> {
        let (run_id, participant) = (text("run id", run_id.name())?.into(), participant(request.session));
        let input = match failure {
            None => Input::Close { participant, run_id },
            Some(message) => Input::Fail { participant, run_id, message: text("failure", message)?.into() },
        };
        let closed = self.rendezvous.handle(context.now, input);
        self.drain_rounds(context);
        self.notify_first(context, request.session);
        closed.map_err(|error| refusal_of(&error))?;
        self.done(context, request);
        Ok(())
    }

    fn members(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        run_id: Key<'_>,
        round: u64,
        (first, count_max): (u32, u32),
    ) -> Result<(), Refusal> {
        let run_id = text("run id", run_id.name())?;
        let span = (first, MEMBERS_MAX.min(count_max as usize));
        let last = self.rendezvous.last_round(run_id);
        let (nodes, page) = match (last, self.rendezvous.waiting_nodes(run_id)) {
            (Some(last), _) if last.round == round => {
                let members = last.members.iter().map(|member| (member.rank, member));
                let (_, page) = page_of(members, span, |member| NodeEntry {
                    rank_first: member.worker_offset,
                    local_world_size: member.local_world_size,
                    node: member.node.to_string(),
                    address: (*member.address).into(),
                });
                (last.world_size, page)
            }
            // Ranks are not assigned yet: the nodes are in any order, and the first rank of each is 0.
            (_, Some((next, waiting_nodes))) if next == round => {
                page_of((0..).zip(waiting_nodes), span, |waiting_node| NodeEntry {
                    rank_first: 0,
                    local_world_size: waiting_node.local_world_size,
                    node: waiting_node.node.to_string(),
                    address: waiting_node.address.into(),
                })
            }
            _ => {
                let text = format!("round {round} of the run '{run_id}'");
                let second = last.map_or(0, |last| last.round);
                return Err(Refusal { first: round, second, ..Refusal::new(FaultCode::UnknownRound, text) });
            }
        };
        context.budget.subtract(u64::from(nodes) / NODES_PER_UNIT);
        let records: Vec<Member<'_>> = page
            .iter()
            .map(|(node_rank, describe)| Member {
                node_rank: *node_rank,
                rank_first: describe.rank_first,
                local_world_size: describe.local_world_size,
                node: describe.node.as_bytes(),
                address: &describe.address,
            })
            .collect();
        self.answer(
            context,
            request,
            &ServerFrame::MemberList { round, nodes, members: List::new(&records) },
        );
        Ok(())
    }

    fn run_info(
        &mut self,
        context: &mut ServerContext<'_>,
        request: RequestId,
        run_id: Key<'_>,
    ) -> Result<(), Refusal> {
        let run_id = text("run id", run_id.name())?;
        let RunStatus { phase, round, counts } = self.rendezvous.status(run_id).unwrap_or_default();
        let state = ServerFrame::RunState {
            round,
            complete: phase.is_live(),
            closed: phase.is_closed(),
            nodes: if phase.is_live() { counts.active } else { counts.joining },
            nodes_waiting: counts.waiting,
            nodes_standby: counts.standby,
        };
        self.answer(context, request, &state);
        Ok(())
    }

    /// Cancels a pending join. Returns whether there was one.
    pub(super) fn cancel_join(&mut self, context: &mut ServerContext<'_>, request: RequestId) -> bool {
        use crate::rendezvous::service::NodeState;
        if self.parts.get(request.session).is_none_or(|part| part.join != request) {
            return false;
        }
        self.update_runs(context, request.session, b"");
        let participant = participant(request.session);
        let pending = self.rendezvous.node_state(participant).is_some_and(|(_, index)| {
            matches!(index, NodeState::Joining | NodeState::Waiting | NodeState::Standby)
        });
        if !pending {
            return false;
        }
        // The participant is in the run, so this does not fail.
        let _ = self.rendezvous.handle(context.now, Input::Leave { participant });
        self.discharge_if_out(request.session);
        self.drain_rounds(context);
        true
    }

    /// Ends the part of a session that has ended in its run.
    pub(super) fn end_participation(
        &mut self,
        context: &mut ServerContext<'_>,
        session: SessionId,
        why: Why,
    ) {
        self.remove_part(session);
        let participant = participant(session);
        let input = match why {
            Why::Left => Input::Leave { participant },
            // The session was too slow to take what it was sent.
            Why::Limit => Input::Ended { participant, why: Why::Stalled },
            why => Input::Ended { participant, why },
        };
        // A session that left its run before is in none. That is not an error here.
        let _ = self.rendezvous.handle(context.now, input);
        self.drain_rounds(context);
    }

    /// Updates the runs that are due: at least one in each tick.
    pub(super) fn tick_rounds(&mut self, context: &mut ServerContext<'_>) {
        while self.rendezvous.poll_timeout().is_some_and(|at| at <= context.now) {
            // A tick is never refused.
            let _ = self.rendezvous.handle(context.now, Input::Tick);
            self.drain_rounds(context);
            if self.is_notifying_many() || context.is_budget_spent() {
                return;
            }
        }
    }

    fn stem(&self, run_id: &str) -> Vec<u8> {
        stem(&self.after_run_id, run_id)
    }

    /// Returns the prefix of all keys of a round.
    fn prefix(&self, namespace: &Namespace) -> Vec<u8> {
        let mut prefix = self.stem(&namespace.run_id);
        prefix.extend_from_slice(format!("{}/", namespace.round).as_bytes());
        prefix
    }

    /// Carries out what an input has led to.
    fn drain_rounds(&mut self, context: &mut ServerContext<'_>) {
        let (mut outputs, work) = (0, self.rendezvous.take_work());
        while let Some(output) = self.rendezvous.poll_output() {
            outputs += 1;
            self.perform(context, output);
        }
        context.for_others(|context| {
            context.budget.subtract(work + outputs / NODES_PER_UNIT);
            self.notify_participants(context);
        });
    }

    fn perform(&mut self, context: &mut ServerContext<'_>, output: Output) {
        match output {
            // Round numbers are never used twice, but a client that knows the prefix may have written there too early.
            Output::RoundOpened(namespace) | Output::Delete(namespace) => {
                let removal = context.engine.discard(&self.prefix(&namespace));
                self.begin(context, Job::Remove(removal), None);
            }
            Output::Fence(namespace) => {
                let scan = context.engine.fence(&self.stem(&namespace.run_id), namespace.round);
                let stale = Stale { round: namespace.round, over: namespace.round };
                self.begin(context, Job::FailWaits(scan, stale), None);
                self.fence_barriers(context, &self.prefix(&namespace), namespace.round);
            }
            Output::Forgotten(run_id) => context.engine.lift_fence(&self.stem(&run_id)),
            Output::Notify { participant, .. } => {
                if let Some(part) = self.parts.get_mut(SessionId(participant.0)) {
                    part.parked += 1;
                }
                self.notifications.push_back(output);
            }
            Output::Decided { run_id, round, action, reason } => {
                context.events.push_back(ServerEvent::Run { run_id, round, action, reason });
            }
        }
    }

    /// Returns whether so many notifications wait that no more should be caused.
    pub(in crate::node::server) fn is_notifying_many(&self) -> bool {
        self.notifications.len() >= NOTIFICATIONS_MAX
    }

    /// Notifies participants of events. What exceeds the turn follows at the next tick, unless it is too much to keep.
    pub(super) fn notify_participants(&mut self, context: &mut ServerContext<'_>) {
        while (self.notifications.len() > NOTIFICATIONS_MAX || !context.is_budget_spent())
            && let Some(next) = self.notifications.pop_front()
        {
            self.notify_participant(context, &next);
        }
    }

    /// Notifies a session of all that concerns it, so that what it asks for is done and answered afterwards.
    fn notify_first(&mut self, context: &mut ServerContext<'_>, session: SessionId) {
        if self.parts.get(session).is_none_or(|part| part.parked == 0) {
            return;
        }
        context.for_others(|context| {
            context.budget.subtract(self.notifications.len() as u64 / NODES_PER_UNIT);
            for next in core::mem::take(&mut self.notifications) {
                match next {
                    Output::Notify { participant: to, .. } if to == participant(session) => {
                        self.notify_participant(context, &next);
                    }
                    _ => self.notifications.push_back(next),
                }
            }
        });
    }

    /// Notifies a session of an event, as the answer to its Join or as a push that belongs to it.
    fn notify_participant(&mut self, context: &mut ServerContext<'_>, notification: &Output) {
        let Output::Notify { participant, event } = notification else { return };
        context.budget.subtract(ANSWER_WORK);
        let session = SessionId(participant.0);
        let Some(part) = self.parts.get_mut(session) else { return };
        part.parked = part.parked.saturating_sub(1);
        let Part { join: request, run_id, .. } = part.clone();
        let run_id = Key::raw(run_id.as_bytes());
        self.discharge_if_out(session);
        match event {
            Event::Seated => {
                self.push(
                    context.conns,
                    request,
                    &ServerFrame::Placed { run_id, is_participant: true, ahead: 0 },
                );
            }
            Event::Standby { ahead } => {
                self.push(
                    context.conns,
                    request,
                    &ServerFrame::Placed { run_id, is_participant: false, ahead: *ahead },
                );
            }
            Event::RoundFormed(round) => self.send_round(context, request, round),
            Event::JoinFailed(failure) => {
                self.remove_part(session);
                self.fail(context, request, failure_of(failure).fault());
            }
            Event::NodesWaiting { nodes } => {
                self.push(context.conns, request, &ServerFrame::NodesWaiting { run_id, nodes: *nodes });
            }
            Event::NodeLost(loss) => {
                let node = loss.node.to_string();
                let died = ServerFrame::PeerDied {
                    run_id,
                    round: loss.round,
                    node_rank: loss.rank,
                    node: node.as_bytes(),
                    why: loss.why,
                };
                self.push(context.conns, request, &died);
            }
            Event::RoundEnded { round, reason } => {
                let over = ServerFrame::RoundOver { run_id, round: *round, why: why_over(*reason) };
                self.push(context.conns, request, &over);
            }
            Event::Excluded { round } => {
                self.remove_part(session);
                self.push(context.conns, request, &ServerFrame::Excluded { run_id, round: *round });
            }
            Event::RunClosed { by } => {
                let by = by.as_ref().map(ToString::to_string).unwrap_or_default();
                self.push(context.conns, request, &ServerFrame::RunClosed { run_id, by: by.as_bytes() });
            }
            Event::JobFailed { message } => {
                self.push(
                    context.conns,
                    request,
                    &ServerFrame::JobFailed { run_id, message: message.as_bytes() },
                );
            }
            Event::Replaced { by } => {
                self.remove_part(session);
                self.push(context.conns, request, &ServerFrame::Replaced { run_id, session: by.0 });
                // Its Join may still be pending.
                self.fail(context, request, Fault { first: by.0, ..Fault::REPLACED });
            }
        }
    }

    fn send_round(&mut self, context: &mut ServerContext<'_>, request: RequestId, round: &Round) {
        let namespace = self.prefix(&round.namespace);
        let frame = ServerFrame::Round {
            run_id: Key::raw(round.namespace.run_id.as_bytes()),
            round: round.namespace.round,
            node_rank: round.rank,
            nodes: round.world_size,
            rank_first: round.worker_offset,
            world_size: round.worker_count,
            leader: &round.rank_zero_address,
            namespace: Key::raw(&namespace),
        };
        self.answer(context, request, &frame);
    }
}

const fn participant(session: SessionId) -> ParticipantId {
    ParticipantId(session.0)
}

/// Returns the prefix of a run's keys, up to the number of the round. It contains the incarnation of the server, so
/// that a round does not share keys with a round of the same number at an earlier server. Clients put a slash before
/// their users' keys.
fn stem(after_run_id: &[u8; 18], run_id: &str) -> Vec<u8> {
    [b"/torch.rendezvous.", run_id.as_bytes(), after_run_id].concat()
}

/// Returns what follows the id of a run in [`stem`].
pub(super) fn after_run_id(incarnation: u64) -> [u8; 18] {
    let mut after = [b'.'; 18];
    after[1..17].copy_from_slice(format!("{incarnation:016x}").as_bytes());
    after
}

/// Returns the run to whose rounds a key belongs, by the prefix that [`stem`] makes. The id of a run has at most
/// `run_id_bytes_max` bytes, so what follows in a long key is not looked at.
pub(super) fn run_of_key<'k>(after: &[u8; 18], run_id_bytes_max: usize, key: &'k [u8]) -> Option<&'k [u8]> {
    let rest = key.strip_prefix(b"/torch.rendezvous.")?;
    let rest = &rest[..rest.len().min(run_id_bytes_max + after.len())];
    // A request may have millions of such windows: arrays are compared as numbers.
    let length = rest.windows(after.len()).position(|window| window.first_chunk() == Some(after))?;
    Some(&rest[..length])
}

fn text<'t>(what: &str, bytes: &'t [u8]) -> Result<&'t str, Refusal> {
    core::str::from_utf8(bytes).map_err(|_| Refusal::invalid(&format!("the {what} is not UTF-8")))
}

/// Returns what a session is charged for a node. The factors contain what the allocator adds.
fn cost(entry: &Entry<'_>) -> u64 {
    let labels =
        entry.labels.iter().map(|(name, value)| (name.len() + value.len()) as u64 + LABEL_COST_BYTES);
    let names = 4 * entry.node.len()
        + 2 * entry.address.len()
        + 3 * entry.run_id.len()
        + entry.terms.rank_label.len();
    NODE_COST_BYTES + names as u64 + labels.sum::<u64>()
}

fn read_join(entry: &Entry<'_>) -> Result<Join, Refusal> {
    let labels = entry.labels.iter().map(|(name, value)| {
        let (name, value) = (text("name of a label", name.name())?, text("value of a label", value)?);
        Ok((Box::from(name), Box::from(value)))
    });
    Ok(Join {
        run_id: text("run id", entry.run_id)?.into(),
        node: NodeName::parse(text("node's name", entry.node)?),
        address: entry.address.into(),
        local_world_size: entry.local_world_size,
        labels: labels.collect::<Result<_, _>>()?,
        node_rank: read_node_rank(entry.node_rank)?,
        join_timeout: millis(entry.join_timeout_ms),
        settings: read_terms(&entry.terms)?,
        round_min: entry.round_min,
    })
}

/// Reads the preferred rank of a node; -1 is none.
fn read_node_rank(rank: i32) -> Result<Option<u32>, Refusal> {
    let is_out_of_range = |_| Refusal::invalid(&format!("node_rank is {rank}, not from -1 to {}", i32::MAX));
    if rank == -1 { Ok(None) } else { u32::try_from(rank).map(Some).map_err(is_out_of_range) }
}

fn read_terms(terms: &Terms<'_>) -> Result<RunSettings, Refusal> {
    let last_call = match terms.last_call {
        native::LastCall::Fixed => LastCall::Fixed(millis(terms.last_call_ms)),
        native::LastCall::FromLastArrival => LastCall::FromLastArrival(millis(terms.last_call_ms)),
        native::LastCall::Off => LastCall::None,
        native::LastCall::Other(number) => {
            return Err(Refusal::invalid(&format!("this server knows no last call {number}")));
        }
    };
    let rank_order = match terms.rank_order {
        Order::Sticky => RankOrder::Sticky,
        Order::Host => RankOrder::Host,
        Order::NodeRank => RankOrder::NodeRank,
        Order::Label => RankOrder::Label(text("label", terms.rank_label)?.into()),
        Order::Other(number) => {
            return Err(Refusal::invalid(&format!("this server knows no rank order {number}")));
        }
    };
    Ok(RunSettings {
        min_nodes: terms.nodes_min,
        max_nodes: terms.nodes_max,
        minimum_to_continue: if terms.continue_min == 0 { terms.nodes_min } else { terms.continue_min },
        last_call,
        fast_quorum: if terms.fast_quorum { FastQuorum::Enabled } else { FastQuorum::Disabled },
        rank_order,
        cool_down: (terms.cool_down_failures > 0).then(|| CoolDown {
            failures: terms.cool_down_failures,
            window: millis(terms.cool_down_window_ms),
            pause: millis(terms.cool_down_pause_ms),
            pause_max: millis(terms.cool_down_pause_ms_max),
        }),
    })
}

fn refusal_of(error: &InputError) -> Refusal {
    let text = error.to_string();
    let millis = |span: crate::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    match error {
        InputError::Settings(_) => Refusal::new(FaultCode::InvalidArgument, text),
        InputError::SettingsDiffer { .. } => Refusal::new(FaultCode::BoundsConflict, text),
        InputError::Closed { .. } => Refusal::new(FaultCode::RunClosed, text),
        InputError::JoinPending { .. } => Refusal::new(FaultCode::AlreadyJoined, text),
        InputError::OtherIdentity { participant, .. } => {
            Refusal { first: participant.0, ..Refusal::new(FaultCode::AlreadyJoined, text) }
        }
        InputError::UnknownParticipant(_) => Refusal::new(FaultCode::UnknownRound, text),
        InputError::CoolingDown { remaining, .. } => {
            Refusal { first: millis(*remaining), ..Refusal::new(FaultCode::CoolingDown, text) }
        }
        InputError::LimitExceeded { limit, .. } => {
            Refusal { first: *limit as u64, ..Refusal::new(FaultCode::TooMany, text) }
        }
    }
}

fn failure_of(failure: &JoinFailure) -> Refusal {
    let text = failure.to_string();
    match failure {
        JoinFailure::TimedOut { waited, .. } => {
            let first = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            Refusal { first, ..Refusal::new(FaultCode::TimedOut, text) }
        }
        JoinFailure::Closed { .. } => Refusal::new(FaultCode::RunClosed, text),
        JoinFailure::GracefulExit { .. } => Refusal::new(FaultCode::NotNeeded, text),
    }
}

/// Returns the reason on the wire for the end of a round.
pub const fn why_over(reason: Reason) -> Why {
    match reason {
        Reason::Closed => Why::Closed,
        Reason::Deserted => Why::Deserted,
        _ => Why::TooFewNodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_lies_behind_its_run_and_the_incarnation_of_its_server() {
        for run_id in ["a", "a.1", "a1", "team/job"] {
            let expected = format!("/torch.rendezvous.{run_id}.000000000000001f.");
            assert_eq!(stem(&after_run_id(0x1f), run_id), expected.as_bytes());
        }
    }
}
