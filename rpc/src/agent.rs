//! The life of one worker in a group: it joins, makes sure that everybody can be called, is told who comes, goes and dies,
//! and leaves.
//!
//! The members meet at keys of a store ([`crate::membership`]) and tell each other of changes with calls to handlers
//! of the library's own. Before a worker is a member, the way to the others and the way back have been tried, so that
//! nobody is in a group half of which it cannot reach: in a static group each calls the *leader*, the one whose name is
//! the first, who answers when all have called; in a dynamic one a newcomer calls each, and each that is told of it calls
//! it before it agrees.
//!
//! Where the store is of a native server, each worker has a *sign* there, a key that vanishes with its session. A sign
//! that vanishes, and did not say before that its worker goes, is a death, and everybody learns of it at once.

mod error;
mod life;
pub mod liveness_key;

pub use error::{AgentError, Callees, NotAdmitted, NotCallable, has_left, unless_abandoned};
pub use life::{Life, LifeEvent};

use super::connection::{CallError, CallFailure, ConnectionError, Refusal, Status};
use super::device::DeviceKind;
use super::device_map::Group;
use super::membership::change::{Change, Members, WorkerLocation, encode_change};
use super::membership::changing::{self, ChangingGroup, ChangingOptions, MemberPresence, NoAnswer};
use super::membership::error::{Absent, MembershipError};
use super::membership::fixed::{FixedGroup, FixedOutput};
use super::membership::token::TokenTimes;
use super::membership::{Liveness, Member, Reply, StoreStep};
use super::name::{WorkerInfo, WorkerName};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use changes::Notified;
use deaths::{Death, LIVENESS_GRACE};
use liveness_key::{LivenessKey, LivenessWatcher};
use rendezvous_core::time::{Duration, Instant};

/// Answers with the worker's card.
pub const CARD_HANDLER: &str = "rdzv/card";
/// Takes in a change of the group.
pub const CHANGE_HANDLER: &str = "rdzv/change";
/// Answers whether the worker is a member that neither comes nor goes, and whoever calls it has tried the way.
pub const REACH_HANDLER: &str = "rdzv/reach";
/// Answers when all members of a static group have called.
pub const READY_HANDLER: &str = "rdzv/ready";
/// All of them.
pub const HANDLERS: [&str; 4] = [CARD_HANDLER, CHANGE_HANDLER, REACH_HANDLER, READY_HANDLER];

/// How long the way to a newcomer may take to be tried.
const REACH_TIMEOUT: Duration = Duration::from_secs(5);
/// How much later than the leader the others give up.
const ANSWER_SLACK: Duration = Duration::from_secs(5);

/// What a worker is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentOptions {
    /// Who it is, where it takes calls already, and its devices.
    pub member: Member,
    /// How many workers there are; `None`: they come and go.
    pub world_size: Option<u16>,
    /// Which devices the group counts.
    pub accelerator: DeviceKind,
    /// How long joining may take, and leaving.
    pub timeout: Duration,
    /// Signs of life of who changes a dynamic group.
    pub times: TokenTimes,
    /// Whether the workers have signs.
    pub liveness: Liveness,
    /// Tells this process from others that come under its name; random.
    pub nonce: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Time passed.
    Tick,
    /// The step that was asked for ended so.
    Stored(Reply),
    /// The call that was asked for with this number ended so.
    Ended(u64, Result<Box<[u8]>, NoAnswer>),
    /// A worker calls one of [`HANDLERS`]; it is answered with [`Output::Respond`], by this number.
    Called(u64, Called),
    /// Beneath [`liveness_key::PREFIX`] a key, which is told without it, has this value, or none any more.
    LivenessKey(Box<str>, Option<Box<[u8]>>),
    /// Signs are told no more, for this reason.
    LivenessLost(Box<str>),
    /// These are all signs that there are, each with its value: some may have come and vanished unseen.
    LivenessWatcher(Vec<(Box<str>, Box<[u8]>)>),
    /// A call of the program's to the worker at this address failed so that it may be dead: [`tells_of_an_end`].
    Lost(WorkerLocation),
    /// The worker is to leave, once it has no more calls under way.
    Leave,
    /// It has none.
    Drained,
    /// Calls to these were under way when [`Output::CutCalls`] ended them, each as often as there were calls.
    Cut(Vec<WorkerInfo>),
    /// Nobody waits for it to join any longer.
    Cancel,
    /// It is to end without a word to the others.
    Abandon,
}

/// A call of one of the library's own handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// Who calls, and was admitted.
    pub from: WorkerInfo,
    /// Which handler.
    pub handler: Box<str>,
    /// With what.
    pub payload: Box<[u8]>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ask this of the store, and report [`Input::Stored`]; nothing else is asked until then.
    Store(StoreStep),
    /// Make a call, and report [`Input::Ended`].
    Call(ControlCall),
    /// Answer the call with this number.
    Respond(u64, Result<Box<[u8]>, Box<str>>),
    /// Answer the call with this number that this worker is of no group any more.
    Decline(u64),
    /// Wait until no call of this worker's is under way, and report [`Input::Drained`].
    Drain,
    /// What the program has called so far ends with this reason, and [`Input::Cut`] says whom that was for.
    CutCalls(Box<str>),
    /// Whatever is under way ends with this reason, and nobody is called any more.
    EndCalls(Box<str>),
    /// The worker there is gone: calls to it end with this reason.
    EndCallsTo(WorkerLocation, Box<str>),
    /// The worker there has left, and answers what it was asked: calls to it that are under way go on, and no others are
    /// made.
    PartWith(WorkerLocation),
    /// Ask [`Agent::admit`] again of everybody who is connected, and end the connections of those who are refused.
    AdmitAgain,
    /// The sign of this worker says from now on that it goes.
    MarkLeaving,
    /// This worker is a member.
    Joined,
    /// Something happened to the group.
    Event(GroupEvent),
    /// It is of no group any more; nothing comes after that.
    Over(Result<(), AgentError>),
}

/// A call of one of the library's own handlers at another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlCall {
    /// Its number.
    pub number: u64,
    /// Whom.
    pub to: WorkerLocation,
    /// Which handler.
    pub handler: &'static str,
    /// With what.
    pub payload: Box<[u8]>,
    /// How long it may take.
    pub until: Instant,
}

/// What happens to a group while one is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupEvent {
    /// A worker came.
    Joined(WorkerInfo),
    /// A worker went.
    Left(WorkerInfo),
    /// A worker died.
    PeerDied {
        /// Who.
        worker: WorkerInfo,
        /// What is known of its end.
        why: Box<str>,
    },
    /// Deaths are told no more as they happen: this worker does not see the others' signs any longer. The group goes on;
    /// who is dead is found out by whoever calls it.
    WatchLost {
        /// Why.
        why: Box<str>,
    },
}

/// Whether a call failed so that the worker that was called is gone, most likely.
#[must_use]
pub const fn tells_of_an_end(error: &CallError) -> bool {
    match &error.why {
        CallFailure::ConnectionLost(why) | CallFailure::Unsent(why) => matches!(
            why,
            ConnectionError::Lost(_)
                | ConnectionError::NotListening(_)
                | ConnectionError::Impostor { .. }
                // Somebody else is there now, or nobody any more but its process.
                | ConnectionError::Refused { why: Refusal::Group | Refusal::NotMe | Refusal::Over, .. }
        ),
        // A worker says so when it is of no group any more.
        CallFailure::Leaving | CallFailure::Remote { status: Status::Leaving, .. } => true,
        _ => false,
    }
}

/// What a call that failed tells of the worker that was called.
#[must_use]
pub fn no_answer(error: &CallError) -> NoAnswer {
    if tells_of_an_end(error) { NoAnswer::Dead } else { NoAnswer::Unknown(error.to_string().into()) }
}

/// Whether a bug is planted here, for the tests to find.
#[cfg(test)]
macro_rules! planted {
    ($self:ident, $flaw:ident) => {
        $self.flaw == Some($crate::agent::tests::Flaw::$flaw)
    };
}
#[cfg(not(test))]
macro_rules! planted {
    ($self:ident, $flaw:ident) => {
        false
    };
}

/// What a call was made for.
#[derive(Clone, Debug)]
enum Purpose {
    Card(WorkerName),
    /// To see whether it is a member of whose name somebody had the token, and died.
    Victim(WorkerName),
    Notify(WorkerName),
    /// To try the way to a newcomer; whoever told of it waits for the answer with this number.
    Reach(u64),
    /// To see whether this member is there, whose place is taken by the change with this number.
    CheckAlive(u64, WorkerLocation),
    /// To see whether this member is there, at whom a call failed.
    Suspect(WorkerLocation),
    Ready,
}

#[derive(Clone, Debug)]
enum Membership {
    Fixed(Box<FixedGroup>),
    Changing(Box<ChangingGroup>),
}

/// Whether the signs of the others are seen, as far as there are any.
#[derive(Clone, Debug)]
enum WatchState {
    Clear,
    /// No more; the user has not heard of it.
    Lost(Box<str>),
    ReportedLost,
}

/// One worker of a group.
#[derive(Clone, Debug)]
pub struct Agent {
    me: Member,
    timeout: Duration,
    life: Life,
    membership: Membership,
    deadline: Instant,
    calls: Vec<(u64, Purpose)>,
    last_call: u64,
    /// Who has called the leader, and by which number it is answered. Empty where this worker is none.
    ready: Vec<(u64, WorkerInfo)>,
    liveness_watcher: LivenessWatcher,
    watch_state: WatchState,
    deaths: Vec<Death>,
    /// Members at whose address nobody listens, though their signs are there, and since when that is known.
    suspects: Vec<(WorkerLocation, Instant)>,
    /// Changes that others told of, and that this worker has not agreed to yet.
    notified: Vec<Notified>,
    /// Once it is over: how that came.
    end: Box<str>,
    /// At whom calls were under way when the time to finish them was up.
    cut: Callees,
    outputs: VecDeque<Output>,
    #[cfg(test)]
    flaw: Option<tests::Flaw>,
}

impl Agent {
    /// A worker that is to join.
    ///
    /// # Errors
    /// Its number is none of those of the group.
    pub fn new(now: Instant, options: AgentOptions) -> Result<Self, MembershipError> {
        let AgentOptions { member, world_size, accelerator, timeout, times, liveness, nonce } = options;
        let me = member.clone();
        let membership = match world_size {
            Some(size) => {
                Membership::Fixed(Box::new(FixedGroup::new(now, member, size, accelerator, timeout)?))
            }
            None => {
                let options = ChangingOptions { member, accelerator, timeout, times, liveness, nonce };
                Membership::Changing(Box::new(ChangingGroup::new(now, options)))
            }
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
            end: Box::default(),
            cut: Callees::default(),
            outputs: VecDeque::new(),
            #[cfg(test)]
            flaw: tests::planted(),
        };
        agent.look_at_membership(now);
        Ok(agent)
    }

    /// Where it stands.
    #[must_use]
    pub const fn life(&self) -> Life {
        self.life
    }

    /// Who it is.
    #[must_use]
    pub const fn me(&self) -> &Member {
        &self.me
    }

    /// The members, this one among them, and the dead who are not struck out.
    #[must_use]
    pub const fn members(&self) -> &Members {
        match &self.membership {
            Membership::Fixed(group) => group.members(),
            Membership::Changing(group) => group.members(),
        }
    }

    /// The devices of the members, for maps of answers and lists of devices.
    #[must_use]
    pub fn group(&self) -> Group {
        match &self.membership {
            Membership::Fixed(group) => group.group(),
            Membership::Changing(group) => group.group(),
        }
    }

    /// Where a worker is called.
    ///
    /// # Errors
    /// It cannot be.
    pub fn callee(&self, name: &str) -> Result<&Member, NotCallable> {
        let unknown = || NotCallable::UnknownName { name: name.into() };
        self.callable(self.members().get(name), unknown)
    }

    /// The same, by its number.
    ///
    /// # Errors
    /// It cannot be.
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

    /// Whether a worker that connects is heard. In a static group, once it is complete, only its members are. To a dynamic
    /// one anybody may come: who takes a living member's name or number finds that out when it joins.
    ///
    /// # Errors
    /// It is not.
    pub fn admit(&self, claimed: &WorkerInfo) -> Result<(), NotAdmitted> {
        let is_complete = matches!(self.membership, Membership::Fixed(_)) && self.life != Life::Joining;
        let is_known = || self.is_member(claimed);
        let others = |member: &&Member| member.worker.name == claimed.name || member.worker.id == claimed.id;
        let claimed = claimed.clone();
        Err(match () {
            () if self.life == Life::Over => NotAdmitted::Over,
            () if !is_complete || is_known() => return Ok(()),
            () => match self.members().iter().find(others).map(|member| member.worker.clone()) {
                Some(known) => NotAdmitted::Impostor { claimed, known },
                None => NotAdmitted::Stranger { claimed },
            },
        })
    }

    /// The key of this worker's sign, beneath the group's prefix.
    #[must_use]
    pub fn liveness_key(&self) -> LivenessKey {
        LivenessKey { name: self.me.worker.name.clone(), address: self.me.address.clone() }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When time alone changes something.
    #[must_use]
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

    /// Takes in what happened. What comes too late means nothing.
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
            Input::LivenessKey(key, value) => {
                let value =
                    value.filter(|value| **value != *liveness_key::GOING || !planted!(self, UnheardGoing));
                match self.liveness_watcher.changed(&key, value.as_deref()) {
                    Some(departed) => self.vanished(departed),
                    None if value.as_deref() == Some(liveness_key::GOING) => self.report_early_leavers(),
                    None => {}
                }
            }
            Input::LivenessLost(why) => self.watch_lost(why),
            Input::LivenessWatcher(all) => {
                let departed = self.liveness_watcher.all(&all);
                match (&self.membership, self.life) {
                    // They may have ended as they should, and said so unheard.
                    (Membership::Fixed(_), Life::Leaving) => self.liveness_watcher.went(departed),
                    _ => departed.into_iter().for_each(|departed| self.vanished(departed)),
                }
            }
            Input::Lost(location) => self.suspect(now, location),
            Input::Leave => self.leave(now),
            Input::Drained => self.drained(now),
            Input::Cut(callees) => self.cut = Callees::of(callees),
            Input::Cancel => self.cancel(now),
            Input::Abandon => self.fail(AgentError::Abandoned),
        }
        self.look_at_membership(now);
        self.look_at_suspects(now);
        self.look_at_deadline(now);
        self.look_at_membership(now);
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

    fn fail(&mut self, error: AgentError) {
        if self.go(LifeEvent::Fault) {
            if matches!(self.membership, Membership::Fixed(_)) && error != AgentError::Abandoned {
                // That it ends is no death: the others see for themselves what it failed for.
                self.outputs.push_back(Output::MarkLeaving);
            }
            let message: Box<str> = error.to_string().into();
            for (number, _) in core::mem::take(&mut self.ready) {
                self.outputs.push_back(Output::Respond(number, Err(message.clone())));
            }
            self.finish(message, Err(error));
        }
    }

    fn finish(&mut self, message: Box<str>, end: Result<(), AgentError>) {
        self.calls.clear();
        let notified = core::mem::take(&mut self.notified);
        self.outputs.extend(notified.iter().map(|notified| Output::Decline(notified.number())));
        self.end.clone_from(&message);
        self.outputs.push_back(Output::EndCalls(message));
        if !has_left(&end) {
            // Who ends as it should answers those first who wait for an answer.
            self.outputs.push_back(Output::AdmitAgain);
        }
        self.outputs.push_back(Output::Over(end));
    }

    fn look_at_membership(&mut self, now: Instant) {
        while self.life != Life::Over {
            match &mut self.membership {
                Membership::Fixed(group) => match group.poll_output() {
                    None => return,
                    Some(FixedOutput::Store(step)) => self.outputs.push_back(Output::Store(step)),
                    Some(FixedOutput::Joined) => self.joined(),
                    Some(FixedOutput::Left) => self.left(),
                    Some(FixedOutput::Failed(error)) => self.fail(error.into()),
                },
                Membership::Changing(group) => match group.poll_output() {
                    None => return,
                    Some(changing::Output::Store(step)) => self.outputs.push_back(Output::Store(step)),
                    Some(changing::Output::Ask(of)) => {
                        let purpose = Purpose::Card(of.worker.name.clone());
                        self.call(of, CARD_HANDLER, Vec::new(), self.deadline.max(now), purpose);
                    }
                    Some(changing::Output::CheckAlive(of, until)) => {
                        let purpose = Purpose::Victim(of.worker.name.clone());
                        self.call(of, REACH_HANDLER, Vec::new(), until, purpose);
                    }
                    Some(changing::Output::Notify(to, change)) => {
                        let purpose = Purpose::Notify(to.worker.name.clone());
                        // Who takes its entry back, since time was up, tells of that all the same.
                        let until = self.deadline.max(now + REACH_TIMEOUT);
                        self.call(to, CHANGE_HANDLER, encode_change(&change), until, purpose);
                    }
                    Some(changing::Output::Joined) => self.joined(),
                    Some(changing::Output::Changed(change)) => self.report_change(&change),
                    Some(changing::Output::Left) => self.left(),
                    Some(changing::Output::Failed(error)) => self.fail(error.into()),
                },
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
            // Each of the others has been called, and has called back.
            return self.met();
        }
        // While nobody was known, everybody was heard.
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
            // The leader says who is missing when its time is up, and then that has to come here.
            self.deadline = self.deadline + ANSWER_SLACK;
            let to = WorkerLocation { worker: leader.worker, address: leader.address };
            self.call(to, READY_HANDLER, Vec::new(), self.deadline, Purpose::Ready);
        }
        self.bury();
    }

    /// The member whose name is the first.
    fn leader(&self) -> Option<Member> {
        self.members().iter().next().cloned()
    }

    /// Who has not called the leader, which this worker is.
    fn not_ready(&self) -> Vec<u16> {
        // They are members, as is looked at when they call.
        let mut arrived: Vec<u16> =
            self.ready.iter().map(|(_, of)| of.id).chain([self.me.worker.id]).collect();
        arrived.sort_unstable();
        let ids = self.members().iter().map(|member| member.worker.id);
        let mut missing: Vec<u16> = ids.filter(|id| arrived.binary_search(id).is_err()).collect();
        missing.sort_unstable();
        missing
    }

    fn look_at_ready(&mut self) {
        let leader = self.members().iter().next();
        let leads =
            self.life == Life::Meeting && leader.is_some_and(|leader| leader.worker == self.me.worker);
        // Not before as many have called as there are: looking for each of them takes its time.
        let may_be_all = || self.ready.len() + 1 >= self.members().len() && self.not_ready().is_empty();
        if leads && (may_be_all() || planted!(self, HastyLeader)) {
            self.met();
        }
    }

    fn met(&mut self) {
        if self.go(LifeEvent::Met) {
            for (number, _) in core::mem::take(&mut self.ready) {
                self.outputs.push_back(Output::Respond(number, Ok(Box::default())));
            }
            self.outputs.push_back(Output::Joined);
            // Who came and died while this worker came is known to nobody.
            let mut deaths = core::mem::take(&mut self.deaths);
            deaths.retain(|death| self.has_member_at(&death.location));
            self.deaths = deaths;
            for Death { location, why } in self.deaths.clone() {
                self.outputs.push_back(Output::Event(GroupEvent::PeerDied { worker: location.worker, why }));
            }
            self.bury();
            self.report_watch();
        }
    }

    fn left(&mut self) {
        if self.go(LifeEvent::Left) {
            self.outputs.push_back(Output::MarkLeaving);
            let callees = core::mem::take(&mut self.cut);
            let is_cut = callees.count > 0 && !planted!(self, UntoldCut);
            let end = if is_cut { Err(AgentError::CallsCut { callees }) } else { Ok(()) };
            self.finish("this worker has left the group".into(), end);
        }
    }

    fn leave(&mut self, now: Instant) {
        if self.go(LifeEvent::Leave) {
            self.deadline = now + self.timeout;
            self.outputs.push_back(Output::Drain);
            if planted!(self, ShortDrain) {
                self.drained(now);
            }
        }
    }

    fn drained(&mut self, now: Instant) {
        if self.go(LifeEvent::Drained) {
            self.deadline = now + self.timeout;
            match &mut self.membership {
                Membership::Fixed(group) => group.leave(now),
                Membership::Changing(group) => group.handle(now, changing::Input::Leave),
            }
            self.bury();
        }
    }

    fn cancel(&mut self, now: Instant) {
        match self.membership {
            Membership::Changing(_) if self.life == Life::Joining => {
                self.hand_on(now, changing::Input::Cancel);
            }
            _ if matches!(self.life, Life::Joining | Life::Meeting) => {
                self.fail(MembershipError::Cancelled.into());
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
                    AgentError::NotMet { leader, arrived: world_size - missing.len(), world_size, absent }
                } else {
                    AgentError::Leader { leader, message: "it did not answer by the deadline".into() }
                };
                self.fail(error);
            }
            Life::Draining => {
                let message = "this worker leaves its group, and the time for its calls is up";
                self.outputs.push_back(Output::CutCalls(message.into()));
                self.drained(now);
            }
            _ => {}
        }
    }

    /// A call of the library's own handlers. Each is answered, be it later.
    fn called(&mut self, now: Instant, number: u64, called: &Called) {
        if self.life == Life::Over {
            return self.outputs.push_back(Output::Decline(number));
        }
        match &*called.handler {
            REACH_HANDLER => self.respond(number, Ok(self.membership_state().into())),
            CARD_HANDLER => {
                let card = crate::exchange::encode_card(&self.me.worker, &self.me.devices);
                self.respond(number, Ok(card.into()));
            }
            // Whether it is a member is seen when all are known.
            READY_HANDLER if self.life == Life::Joining => self.ready.push((number, called.from.clone())),
            READY_HANDLER if !self.is_member(&called.from) => self.refuse_stranger(number, &called.from),
            READY_HANDLER if self.life == Life::Meeting => {
                self.ready.push((number, called.from.clone()));
                self.look_at_ready();
            }
            // The answer to the first call may have been lost.
            READY_HANDLER => self.respond(number, Ok(Box::default())),
            CHANGE_HANDLER => self.notified_of(now, number, called),
            other => self.respond(number, Err(format!("there is no handler {other}").into())),
        }
    }

    fn is_member(&self, worker: &WorkerInfo) -> bool {
        self.members().get(&worker.name).is_some_and(|member| member.worker == *worker)
    }

    fn refuse_stranger(&mut self, number: u64, claimed: &WorkerInfo) {
        let message = NotAdmitted::Stranger { claimed: claimed.clone() }.to_string();
        self.respond(number, Err(message.into()));
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
                    self.fail(AgentError::Leader { leader, message });
                }
                (Err(_), None) => {}
            },
        }
    }

    /// The group has changed, and the user hears of it. Calls to the dead have ended; who left answers what it was asked.
    fn report_change(&mut self, change: &Change) {
        for location in &change.left {
            let before = self.deaths.len();
            self.deaths.retain(|death| death.location.worker.name != location.worker.name);
            if self.deaths.len() == before {
                self.outputs.push_back(if planted!(self, AbruptLeave) {
                    Output::EndCallsTo(location.clone(), "it has left the group".into())
                } else {
                    Output::PartWith(location.clone())
                });
                self.outputs.push_back(Output::Event(GroupEvent::Left(location.worker.clone())));
            }
        }
        if let Some(member) = &change.joined {
            self.outputs.push_back(Output::Event(GroupEvent::Joined(member.worker.clone())));
            self.bury();
        }
    }
}

mod changes;
mod deaths;

#[cfg(test)]
mod tests;
