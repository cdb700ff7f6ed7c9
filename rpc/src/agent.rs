//! State machine of one worker in a group. The worker joins, verifies that all members can call each other, is notified
//! of workers that join, leave and die, and leaves.
//!
//! The members coordinate through keys of a store ([`crate::membership`]) and notify each other of changes by calls of
//! the library's own handlers. Before a worker is a member, calls in both directions have been tried, so that no worker
//! is in a group that it can only partly reach. In a static group each worker calls the *leader*, the one with the
//! first name, which responds when all have called. In a dynamic group a newcomer calls each member, and each member
//! that is notified of it calls it before it agrees.
//!
//! If the store's server is a native one, each worker has a *liveness key* there, which is deleted with the worker's
//! session. The deletion of a key that was not marked as leaving is a death, of which all others are notified.

mod error;
mod life;
pub mod liveness_key;

pub use error::NotCallable;
pub use life::{Life, LifeEvent};

use super::connection::{CallError, CallFailure, ConnectionError, Refusal, Status};
use super::device_map::Group;
use super::membership::change::{Change, Members, WorkerLocation, encode_change};
use super::membership::changing::{self, ChangingGroup, MemberPresence, NoAnswer};
use super::membership::error::{Absent, Callees, MembershipError, has_left};
use super::membership::fixed::FixedGroup;
use super::membership::{Member, MemberOptions, Output as GroupOutput, Reply, StoreStep};
use super::name::{WorkerInfo, WorkerName};
use alloc::collections::VecDeque;
use changes::Notified;
use deaths::{Death, LIVENESS_GRACE};
use liveness_key::{LivenessKey, LivenessWatcher};
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::sort_by;

/// Handler that responds with the worker's card.
pub const CARD_HANDLER: &str = "rdzv/card";
/// Handler that accepts a change of the group.
pub const CHANGE_HANDLER: &str = "rdzv/change";
/// Handler that responds whether the worker is a member that is neither joining nor leaving.
pub const REACH_HANDLER: &str = "rdzv/reach";
/// Handler of the leader of a static group, which responds when all members have called.
pub const READY_HANDLER: &str = "rdzv/ready";
/// Names of all of the library's own handlers.
pub const HANDLERS: [&str; 4] = [CARD_HANDLER, CHANGE_HANDLER, REACH_HANDLER, READY_HANDLER];

/// Timeout of the call that tries whether a newcomer can be reached.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time by which the others' timeout exceeds the leader's.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

/// Inputs of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// Reply to the last [`Output::Store`].
    Stored(Reply),
    /// Result of the [`Output::Call`] with this number.
    Ended(u64, Result<Box<[u8]>, NoAnswer>),
    /// A worker calls one of [`HANDLERS`]. The response is an [`Output::Respond`] with this number.
    Called(u64, Called),
    /// The liveness key with this name, without [`liveness_key::PREFIX`], has this value, or was deleted.
    LivenessKey(Box<str>, Option<Box<[u8]>>),
    /// The watch on the liveness keys ended for this reason.
    LivenessLost(Box<str>),
    /// All liveness keys with their values. Others may have been created and deleted unseen.
    LivenessKeys(Vec<(Box<str>, Box<[u8]>)>),
    /// A call of the program to the worker at this address failed in a way that may mean its death:
    /// [`indicates_death`].
    Lost(WorkerLocation),
    /// The caller wants to leave, once its own calls have finished.
    Leave,
    /// Its own calls have finished.
    Drained,
    /// Callees of the calls that [`Output::CutCalls`] failed, one entry for each call.
    Cut(Vec<WorkerInfo>),
    /// The caller has cancelled the join.
    Cancel,
    /// The caller wants to end without notifying the others.
    Abandon,
}

/// Call of one of the library's own handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The admitted caller.
    pub from: WorkerInfo,
    /// Name of the handler.
    pub handler: Box<str>,
    /// Payload.
    pub payload: Box<[u8]>,
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Execute this step and report [`Input::Stored`]; no other step follows before that.
    Store(StoreStep),
    /// Make a call and report [`Input::Ended`].
    Call(ControlCall),
    /// Respond to the call with this number.
    Respond(u64, Result<Box<[u8]>, Box<str>>),
    /// Respond to the call with this number that this worker is not in a group any more.
    Decline(u64),
    /// Wait until this worker's own calls have finished, and report [`Input::Drained`].
    Drain,
    /// Fail the program's pending calls with this message, and report their callees with [`Input::Cut`].
    CutCalls(Box<str>),
    /// Fail all pending calls with this message, and accept no new ones.
    EndCalls(Box<str>),
    /// The worker there has ended: fail the calls to it with this message.
    EndCallsTo(WorkerLocation, Box<str>),
    /// The worker there has left and completes the requests that it has: pending calls to it continue, new ones are
    /// refused.
    PartWith(WorkerLocation),
    /// Call [`Agent::admit`] again for each connected worker, and close the connections of those that it refuses.
    AdmitAgain,
    /// Mark this worker's liveness key as leaving.
    MarkLeaving,
    /// This worker is a member.
    Joined,
    /// The group has changed.
    Event(GroupEvent),
    /// The worker is not in a group any more. This is the last output.
    Over(Result<(), MembershipError>),
}

/// Call of one of the library's own handlers at another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlCall {
    /// Number of the call.
    pub number: u64,
    /// The callee.
    pub to: WorkerLocation,
    /// Name of the handler.
    pub handler: &'static str,
    /// Payload.
    pub payload: Box<[u8]>,
    /// Deadline.
    pub until: Instant,
}

/// Events of a group, as its members see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// A worker joined.
    Joined(WorkerInfo),
    /// A worker left.
    Left(WorkerInfo),
    /// A worker died.
    PeerDied {
        /// The worker.
        worker: WorkerInfo,
        /// How its death was detected.
        why: Box<str>,
    },
    /// Deaths are not reported as they happen any more: this worker cannot watch the others' liveness keys. The group
    /// continues; the next call to a dead worker detects its death.
    WatchLost {
        /// The reason.
        why: Box<str>,
    },
}

/// Whether a call failed in a way that makes the callee's death likely.
pub const fn indicates_death(error: &CallError) -> bool {
    match &error.why {
        CallFailure::ConnectionLost(why) | CallFailure::Unsent(why) => matches!(
            why,
            ConnectionError::Lost(_)
                | ConnectionError::NotListening(_)
                | ConnectionError::Impostor { .. }
                // Another worker, or a process without a worker, is there now.
                | ConnectionError::Refused { why: Refusal::Group | Refusal::NotMe | Refusal::Over, .. }
        ),
        // A worker responds so when it is not in a group any more.
        CallFailure::Leaving | CallFailure::Remote { status: Status::Leaving, .. } => true,
        _ => false,
    }
}

/// Returns what the failure of a call means for the callee.
pub fn no_answer(error: &CallError) -> NoAnswer {
    if indicates_death(error) { NoAnswer::Dead } else { NoAnswer::Unknown(error.to_string().into()) }
}

/// Returns the text for a worker that is not a member of the static group.
fn stranger(claimed: &WorkerInfo) -> Box<str> {
    format!("{claimed} is not a member of this group").into()
}

/// Purpose of a control call.
#[derive(Clone, Debug)]
enum Purpose {
    Card(WorkerName),
    /// Checks whether the member with the name of a dead token holder is alive.
    Victim(WorkerName),
    Notify(WorkerName),
    /// Tries whether a newcomer can be reached; the response to the notification with this number depends on it.
    Reach(u64),
    /// Checks whether this member, which the change with this number replaces, is alive.
    CheckAlive(u64, WorkerLocation),
    /// Checks whether this member, to which a call failed, is alive.
    Suspect(WorkerLocation),
    Ready,
}

#[derive(Clone, Debug)]
enum Membership {
    Fixed(Box<FixedGroup>),
    Changing(Box<ChangingGroup>),
}

/// Whether this worker sees the others' liveness keys, if there are any.
#[derive(Clone, Debug)]
enum WatchState {
    Clear,
    /// The watch has ended; the user has not been notified.
    Lost(Box<str>),
    ReportedLost,
}

/// State machine of one worker of a group.
#[derive(Clone, Debug)]
pub struct Agent {
    me: Member,
    timeout: Duration,
    life: Life,
    membership: Membership,
    deadline: Instant,
    calls: Vec<(u64, Purpose)>,
    last_call: u64,
    /// Workers that have called the leader, with the numbers of their calls. Empty unless this worker is the leader.
    ready: Vec<(u64, WorkerInfo)>,
    liveness_watcher: LivenessWatcher,
    watch_state: WatchState,
    deaths: Vec<Death>,
    /// Members at whose address no process listens, though their liveness keys exist, and the time since which that is
    /// known.
    suspects: Vec<(WorkerLocation, Instant)>,
    /// Notified changes to which this worker has not agreed yet.
    notified: Vec<Notified>,
    /// Calls that ask whether this worker is a member.
    asked: Vec<u64>,
    /// Reason of the end, once the worker has ended.
    end: Box<str>,
    /// Callees of the calls that were pending at the deadline of draining.
    cut: Callees,
    outputs: VecDeque<Output>,
}

impl Agent {
    /// Starts to join a group of `world_size` workers, or a dynamic one.
    ///
    /// # Errors
    /// The worker's number is not below the world size.
    pub fn new(
        now: Instant,
        options: MemberOptions,
        world_size: Option<u16>,
    ) -> Result<Self, MembershipError> {
        let (me, timeout) = (options.member.clone(), options.timeout);
        let membership = match world_size {
            Some(size) => {
                let MemberOptions { member, accelerator, .. } = options;
                Membership::Fixed(Box::new(FixedGroup::new(now, member, size, accelerator, timeout)?))
            }
            None => Membership::Changing(Box::new(ChangingGroup::new(now, options))),
        };
        let mut agent = Self {
            me,
            timeout,
            life: Life::Joining,
            membership,
            deadline: now + timeout,
            calls: Vec::new(),
            last_call: 0,
            ready: Vec::new(),
            liveness_watcher: LivenessWatcher::default(),
            watch_state: WatchState::Clear,
            deaths: Vec::new(),
            suspects: Vec::new(),
            notified: Vec::new(),
            asked: Vec::new(),
            end: Box::default(),
            cut: Callees::default(),
            outputs: VecDeque::new(),
        };
        agent.look_at_membership(now);
        Ok(agent)
    }

    /// The members, including this one, and dead ones that have not been struck out.
    pub const fn members(&self) -> &Members {
        match &self.membership {
            Membership::Fixed(group) => group.members(),
            Membership::Changing(group) => group.members(),
        }
    }

    /// Returns the devices of the members, for reverse maps and lists of devices.
    pub fn group(&self) -> Group {
        match &self.membership {
            Membership::Fixed(group) => group.group(),
            Membership::Changing(group) => group.group(),
        }
    }

    /// Returns the member with this name, to be called.
    ///
    /// # Errors
    /// It cannot be called.
    pub fn callee(&self, name: &str) -> Result<&Member, NotCallable> {
        let unknown = || NotCallable::UnknownName { name: name.into() };
        self.callable(self.members().get(name), unknown)
    }

    /// Returns the member with this number, to be called.
    ///
    /// # Errors
    /// It cannot be called.
    pub fn callee_by_id(&self, id: u16) -> Result<&Member, NotCallable> {
        self.callable(self.members().by_id(id), || NotCallable::UnknownId { id })
    }

    fn callable<'a>(
        &'a self,
        member: Option<&'a Member>,
        unknown: impl Fn() -> NotCallable,
    ) -> Result<&'a Member, NotCallable> {
        if !matches!(self.life, Life::Member | Life::Draining | Life::Leaving) {
            return Err(match self.life {
                Life::Over => NotCallable::Over { message: self.end.clone() },
                _ => NotCallable::NoMember,
            });
        }
        let member = member.ok_or_else(unknown)?;
        match self.death(member) {
            None => Ok(member),
            Some(death) => Err(NotCallable::Dead { worker: member.worker.clone(), why: death.why.clone() }),
        }
    }

    /// Decides whether to accept a connection. A complete static group accepts its members only. A dynamic group
    /// accepts any worker: one with a live member's name or number learns that when it joins.
    ///
    /// # Errors
    /// The connection is refused, for this reason and with this message for the caller.
    pub fn admit(&self, claimed: &WorkerInfo) -> Result<(), (Refusal, Box<str>)> {
        let is_complete = matches!(self.membership, Membership::Fixed(_)) && self.life != Life::Joining;
        let is_known = || self.is_member(claimed);
        let others = |member: &&Member| member.worker.name == claimed.name || member.worker.id == claimed.id;
        match () {
            () if self.life == Life::Over => {
                Err((Refusal::Over, "the worker is not in a group any more".into()))
            }
            () if !is_complete || is_known() => Ok(()),
            () => Err((
                Refusal::Unknown,
                match self.members().iter().find(others) {
                    Some(known) => format!("{claimed} claims to be {}", known.worker).into(),
                    None => stranger(claimed),
                },
            )),
        }
    }

    /// Returns this worker's liveness key.
    pub fn liveness_key(&self) -> LivenessKey {
        LivenessKey { name: self.me.worker.name.clone(), address: self.me.address.clone() }
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Time of the next [`Input::Tick`]; `None` if none is needed.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let local_deadline = matches!(self.life, Life::Meeting | Life::Draining).then_some(self.deadline);
        let of_group = match &self.membership {
            Membership::Changing(group) if self.life != Life::Over => group.poll_timeout(),
            _ => None,
        };
        let suspects = self.suspects.first().filter(|_| self.life != Life::Over);
        let doubts = suspects.map(|&(_, since)| since + LIVENESS_GRACE);
        [local_deadline, of_group, doubts].into_iter().flatten().min()
    }

    /// Processes an input. An input that is too late is ignored.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Called(number, called) => self.called(now, number, &called),
            _ if self.life == Life::Over => {}
            Input::Tick => self.hand_on(now, changing::Input::Tick),
            Input::Stored(reply) => match &mut self.membership {
                Membership::Fixed(group) => group.handle(now, reply),
                Membership::Changing(group) => group.handle(now, changing::Input::Stored(reply)),
            },
            Input::Ended(number, answer) => self.ended(now, number, answer),
            Input::LivenessKey(key, value) => match self.liveness_watcher.changed(&key, value.as_deref()) {
                Some(departed) => self.vanished(departed),
                None if value.as_deref() == Some(liveness_key::GOING) => self.report_early_leavers(),
                None => {}
            },
            Input::LivenessLost(why) => self.watch_lost(why),
            Input::LivenessKeys(all) => {
                let departed = self.liveness_watcher.all(&all);
                match (&self.membership, self.life) {
                    // They may have ended normally, and marked their keys unseen.
                    (Membership::Fixed(_), Life::Leaving) => self.liveness_watcher.went(departed),
                    _ => departed.into_iter().for_each(|departed| self.vanished(departed)),
                }
            }
            Input::Lost(location) => self.suspect(now, location),
            Input::Leave => self.leave(now),
            Input::Drained => self.drained(now),
            Input::Cut(callees) => self.cut = Callees::of(callees),
            Input::Cancel => self.cancel(now),
            Input::Abandon => self.fail(MembershipError::Abandoned),
        }
        self.look_at_membership(now);
        self.look_at_suspects(now);
        self.look_at_deadline(now);
        self.look_at_membership(now);
        self.respond_to_asked();
    }

    fn hand_on(&mut self, now: Instant, input: changing::Input) {
        if let Membership::Changing(group) = &mut self.membership {
            group.handle(now, input);
        }
    }

    fn go(&mut self, event: LifeEvent) -> bool {
        let next = self.life.on(event);
        self.life = next.unwrap_or(self.life);
        next.is_some()
    }

    fn fail(&mut self, error: MembershipError) {
        if self.go(LifeEvent::Fault) {
            if matches!(self.membership, Membership::Fixed(_)) && error != MembershipError::Abandoned {
                // Its end is not a death: the others learn the reason of the failure from the store themselves.
                self.outputs.push_back(Output::MarkLeaving);
            }
            let message: Box<str> = error.to_string().into();
            for (number, _) in core::mem::take(&mut self.ready) {
                self.outputs.push_back(Output::Respond(number, Err(message.clone())));
            }
            self.finish(message, Err(error));
        }
    }

    fn finish(&mut self, message: Box<str>, end: Result<(), MembershipError>) {
        self.calls.clear();
        let notified = core::mem::take(&mut self.notified);
        self.outputs.extend(notified.iter().map(|notified| Output::Decline(notified.number())));
        self.outputs.extend(core::mem::take(&mut self.asked).into_iter().map(Output::Decline));
        self.end.clone_from(&message);
        self.outputs.push_back(Output::EndCalls(message));
        if !has_left(&end) {
            // A worker that ends normally responds to the pending requests first.
            self.outputs.push_back(Output::AdmitAgain);
        }
        self.outputs.push_back(Output::Over(end));
    }

    fn look_at_membership(&mut self, now: Instant) {
        while self.life != Life::Over {
            let output = match &mut self.membership {
                Membership::Fixed(group) => group.poll_output(),
                Membership::Changing(group) => group.poll_output(),
            };
            match output {
                None => return,
                Some(GroupOutput::Store(step)) => self.outputs.push_back(Output::Store(step)),
                Some(GroupOutput::Ask(of)) => {
                    let purpose = Purpose::Card(of.worker.name.clone());
                    self.call(of, CARD_HANDLER, Vec::new(), self.deadline.max(now), purpose);
                }
                Some(GroupOutput::CheckAlive(of, until)) => {
                    let purpose = Purpose::Victim(of.worker.name.clone());
                    self.call(of, REACH_HANDLER, Vec::new(), until, purpose);
                }
                Some(GroupOutput::Notify(to, change)) => {
                    let purpose = Purpose::Notify(to.worker.name.clone());
                    // A worker that undoes its join because its deadline passed still notifies the others of that.
                    let until = self.deadline.max(now + REACH_TIMEOUT);
                    self.call(to, CHANGE_HANDLER, encode_change(&change), until, purpose);
                }
                Some(GroupOutput::Joined) => self.joined(),
                Some(GroupOutput::Changed(change)) => self.report_change(&change),
                Some(GroupOutput::Left) => self.left(),
                Some(GroupOutput::Failed(error)) => self.fail(error),
            }
        }
    }

    fn call(
        &mut self,
        to: WorkerLocation,
        handler: &'static str,
        payload: Vec<u8>,
        until: Instant,
        purpose: Purpose,
    ) {
        self.last_call += 1;
        let number = self.last_call;
        self.calls.push((number, purpose));
        let payload = payload.into();
        self.outputs.push_back(Output::Call(ControlCall { number, to, handler, payload, until }));
    }

    fn joined(&mut self) {
        self.go(LifeEvent::Joined);
        if matches!(self.membership, Membership::Changing(_)) {
            // This worker has called each member, and each member has called it.
            return self.met();
        }
        // Before the members were known, all callers were admitted.
        self.outputs.push_back(Output::AdmitAgain);
        for (number, from) in core::mem::take(&mut self.ready) {
            if self.is_member(&from) {
                self.ready.push((number, from));
            } else {
                self.refuse_stranger(number, &from);
            }
        }
        let Some(leader) = self.leader() else { return };
        if leader.worker == self.me.worker {
            self.look_at_ready();
        } else {
            // At its deadline the leader reports which workers are missing, and that report must still arrive here.
            self.deadline = self.deadline + ANSWER_SLACK;
            let to = WorkerLocation { worker: leader.worker, address: leader.address };
            self.call(to, READY_HANDLER, Vec::new(), self.deadline, Purpose::Ready);
        }
        self.mark_lost_members();
    }

    /// Returns the leader of a static group: the member with the first name.
    fn leader(&self) -> Option<Member> {
        self.members().iter().next().cloned()
    }

    /// Returns the numbers of the members that have not called this leader.
    fn not_ready(&self) -> Vec<u16> {
        // All of them are members, which is checked when they call.
        let mut arrived: Vec<u16> =
            self.ready.iter().map(|(_, of)| of.id).chain([self.me.worker.id]).collect();
        sort_by(&mut arrived, |a, b| a < b);
        let ids = self.members().iter().map(|member| member.worker.id);
        let mut missing: Vec<u16> = ids.filter(|id| arrived.binary_search(id).is_err()).collect();
        sort_by(&mut missing, |a, b| a < b);
        missing
    }

    fn look_at_ready(&mut self) {
        let leader = self.members().iter().next();
        let leads =
            self.life == Life::Meeting && leader.is_some_and(|leader| leader.worker == self.me.worker);
        // The check of each member is expensive, so the number of calls is compared first.
        let may_be_all = || self.ready.len() + 1 >= self.members().len() && self.not_ready().is_empty();
        if leads && may_be_all() {
            self.met();
        }
    }

    fn met(&mut self) {
        if self.go(LifeEvent::Met) {
            for (number, _) in core::mem::take(&mut self.ready) {
                self.outputs.push_back(Output::Respond(number, Ok(Box::default())));
            }
            self.outputs.push_back(Output::Joined);
            // Workers that joined and died while this worker was joining were never members for the user.
            let mut deaths = core::mem::take(&mut self.deaths);
            deaths.retain(|death| self.has_member_at(&death.location));
            self.deaths = deaths;
            for Death { location, why } in self.deaths.clone() {
                self.outputs.push_back(Output::Event(GroupEvent::PeerDied { worker: location.worker, why }));
            }
            self.mark_lost_members();
            self.report_watch();
        }
    }

    fn left(&mut self) {
        if self.go(LifeEvent::Left) {
            self.outputs.push_back(Output::MarkLeaving);
            let callees = core::mem::take(&mut self.cut);
            let end = if callees.count > 0 { Err(MembershipError::CallsCut { callees }) } else { Ok(()) };
            self.finish("this worker has left the group".into(), end);
        }
    }

    fn leave(&mut self, now: Instant) {
        if self.go(LifeEvent::Leave) {
            self.deadline = now + self.timeout;
            self.outputs.push_back(Output::Drain);
        }
    }

    fn drained(&mut self, now: Instant) {
        if self.go(LifeEvent::Drained) {
            self.deadline = now + self.timeout;
            match &mut self.membership {
                Membership::Fixed(group) => group.leave(now),
                Membership::Changing(group) => group.handle(now, changing::Input::Leave),
            }
            self.mark_lost_members();
        }
    }

    fn cancel(&mut self, now: Instant) {
        match self.membership {
            Membership::Changing(_) if self.life == Life::Joining => {
                self.hand_on(now, changing::Input::Cancel);
            }
            _ if matches!(self.life, Life::Joining | Life::Meeting) => {
                self.fail(MembershipError::Cancelled);
            }
            _ => {}
        }
    }

    fn look_at_deadline(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        match self.life {
            Life::Meeting => {
                let Some(leader) = self.leader().map(|leader| leader.worker) else { return };
                let error = if leader == self.me.worker {
                    let (missing, world_size) = (self.not_ready(), self.members().len());
                    let absent = Absent::of(missing.iter().copied(), self.timeout).named(self.members());
                    MembershipError::NotMet {
                        leader,
                        arrived: world_size - missing.len(),
                        world_size,
                        absent,
                    }
                } else {
                    MembershipError::Leader { leader, message: "it did not respond by the deadline".into() }
                };
                self.fail(error);
            }
            Life::Draining => {
                let message = "this worker is leaving its group, and the timeout of its calls has passed";
                self.outputs.push_back(Output::CutCalls(message.into()));
                self.drained(now);
            }
            _ => {}
        }
    }

    /// Processes a call of one of the library's own handlers. Each call gets a response, possibly later.
    fn called(&mut self, now: Instant, number: u64, called: &Called) {
        if self.life == Life::Over {
            return self.outputs.push_back(Output::Decline(number));
        }
        match &*called.handler {
            REACH_HANDLER => self.asked.push(number),
            CARD_HANDLER => {
                let card = crate::exchange::encode_card(&self.me.worker, &self.me.devices);
                self.respond(number, Ok(card.into()));
            }
            // Whether it is a member is checked when all members are known.
            READY_HANDLER if self.life == Life::Joining => self.ready.push((number, called.from.clone())),
            READY_HANDLER if !self.is_member(&called.from) => self.refuse_stranger(number, &called.from),
            READY_HANDLER if self.life == Life::Meeting => {
                self.ready.push((number, called.from.clone()));
                self.look_at_ready();
            }
            // The response to the first call may have been lost.
            READY_HANDLER => self.respond(number, Ok(Box::default())),
            CHANGE_HANDLER => self.notified_of(now, number, called),
            other => self.respond(number, Err(format!("there is no handler {other}").into())),
        }
    }

    fn is_member(&self, worker: &WorkerInfo) -> bool {
        self.members().get(&worker.name).is_some_and(|member| member.worker == *worker)
    }

    fn refuse_stranger(&mut self, number: u64, claimed: &WorkerInfo) {
        self.respond(number, Err(stranger(claimed)));
    }

    fn respond(&mut self, number: u64, answer: Result<Box<[u8]>, Box<str>>) {
        self.outputs.push_back(Output::Respond(number, answer));
    }

    fn ended(&mut self, now: Instant, number: u64, answer: Result<Box<[u8]>, NoAnswer>) {
        let Some(location) = self.calls.iter().position(|&(known, _)| known == number) else { return };
        let (_, purpose) = self.calls.swap_remove(location);
        match purpose {
            Purpose::Card(name) => self.hand_on(now, changing::Input::MemberAnswered(name, answer)),
            Purpose::Victim(name) => {
                let is_settled = answer.is_ok_and(|membership_state| *membership_state == *changes::SETTLED);
                let member_presence =
                    if is_settled { MemberPresence::Settled } else { MemberPresence::Unsettled };
                self.hand_on(now, changing::Input::Suspected(name, member_presence));
            }
            Purpose::Notify(name) => self.hand_on(now, changing::Input::Announced(name, answer.map(drop))),
            Purpose::Reach(notified) => self.reached(now, notified, answer),
            Purpose::CheckAlive(notified, location) => self.mark_suspected(now, notified, &location, answer),
            Purpose::Suspect(location) => self.suspected(now, location, &answer),
            Purpose::Ready => match (answer, self.leader()) {
                (Ok(_), _) => self.met(),
                (Err(why), Some(leader)) => {
                    let (leader, message) = (leader.worker, why.to_string().into());
                    self.fail(MembershipError::Leader { leader, message });
                }
                (Err(_), None) => {}
            },
        }
    }

    /// Reports a change of the group to the user. Calls to the dead have failed already; a worker that left still
    /// responds to its pending requests.
    fn report_change(&mut self, change: &Change) {
        for location in &change.left {
            let before = self.deaths.len();
            self.deaths.retain(|death| death.location.worker.name != location.worker.name);
            if self.deaths.len() == before {
                self.outputs.push_back(Output::PartWith(location.clone()));
                self.outputs.push_back(Output::Event(GroupEvent::Left(location.worker.clone())));
            }
        }
        if let Some(member) = &change.joined {
            self.outputs.push_back(Output::Event(GroupEvent::Joined(member.worker.clone())));
            self.mark_lost_members();
        }
    }
}

mod changes;
mod deaths;

#[cfg(test)]
mod tests;
