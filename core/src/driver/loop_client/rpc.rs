//! Workers of RPC groups within a loop: what their threads have to tell waits in a [`Desk`] until the loop takes it.

use super::{CALLS_PER_MEMBER_BITS, Loop, LoopEvent};
use crate::driver::canceller::Canceller;
use crate::driver::clock::Clock;
use crate::driver::event_loop::Waker;
use crate::driver::rendezvous::Context;
use crate::driver::rpc::handling::{HandlerFn, Request, Responder, Wanted};
use crate::driver::rpc_group::{
    Agency, Begun, CallCanceller, CallSpec, Ear, GroupCallError, GroupResult, Heard, RpcInitError, Shutdown,
    Whom,
};
use crate::driver::threads::{self, Thread, panic_text};
use crate::ordered::Map;
use crate::rpc::agent::{AgentError, GroupEvent, NotCallable, unless_abandoned};
use crate::rpc::connection::Status;
use crate::rpc::inbox::ending::{Ending, Keeper, Standing, Step};
use crate::rpc::inbox::{Inbox, InboxLimits, NotBegun, Put};
use crate::store::call::CallId;
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names one worker of a loop; it is numbered with the stores, sessions and agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RpcId(u32);

impl RpcId {
    /// As a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// From [`RpcId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }
}

/// Something happened to a worker.
#[derive(Debug)]
pub enum RpcEvent {
    /// It is a member, which is told first; or it is none, which is told last.
    Joined(Result<(), RpcInitError>),
    /// That call is over.
    Completed(CallId, Option<Called>, GroupResult),
    /// A handler of the loop's is asked. Dropped without an answer, the responder tells the caller so.
    Asked(Request, Responder),
    /// Somebody came, went or died.
    Group(GroupEvent),
    /// It has ended, and this is the last that is heard of it.
    Over(Result<(), AgentError>),
}

/// What a call was.
#[derive(Clone, Debug)]
pub struct Called {
    /// Whom it was for.
    pub callee: Whom,
    /// The name of the handler.
    pub handler: Box<str>,
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.handler, self.callee)
    }
}

/// Where a worker is made and ended.
pub trait RpcHome: Any + Send + Sync {
    /// The context that has it.
    fn context(&self) -> &Context;
}

impl RpcHome for Context {
    fn context(&self) -> &Context {
        self
    }
}

/// Makes a worker, on a thread of its own. The desk is for handlers of the loop's; with the canceller the loop gives up to
/// make the worker, which may have happened before this begins.
pub type MakeRpc = Box<dyn FnOnce(&RpcDesk, Canceller) -> Result<Arc<dyn Agency>, RpcInitError> + Send>;

/// Why a worker of a loop does not do what it is asked.
#[derive(Debug, thiserror::Error)]
pub enum RpcAskError {
    /// The loop has no such worker.
    #[error("the loop has no RPC worker of this number")]
    Unknown,
    /// The call was not made.
    #[error(transparent)]
    Call(#[from] GroupCallError),
    /// It could not be begun to end the worker.
    #[error("no thread to end the RPC worker: {0}")]
    System(io::Error),
}

/// How long the end of a loop waits for workers that end with it.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// How soon an end is tried again for which there was no thread.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

enum Letter {
    Joined(Result<Arc<dyn Agency>, RpcInitError>),
    Answer(u64, GroupResult),
    Asked(Request, Responder),
    Group(GroupEvent),
    Over(Result<(), AgentError>),
}

/// Where a worker's threads leave what the loop is to take.
struct Desk {
    inbox: Mutex<Inbox<Letter>>,
    waker: Waker,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Inbox<Letter>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a letter there.
    fn put(&self, put: impl FnOnce(&mut Inbox<Letter>) -> Put<Letter>) -> Put<Letter> {
        let put = put(&mut self.lock());
        if let Put::Wakes = put {
            self.waker.wake();
        }
        put
    }

    fn answer(&self, call: u64, result: GroupResult) {
        self.put(|inbox| inbox.answered(call, Letter::Answer(call, result)));
    }

    fn ask(&self, request: Request, responder: Responder) {
        let bytes = request.payload.len() as u64;
        match self.put(|inbox| inbox.asked(bytes, Letter::Asked(request, responder))) {
            Put::Wakes | Put::Quiet => {}
            Put::Closed(letter) => refuse([letter], Status::NoHandler, LOOP_GONE),
            Put::Refused(letter) => refuse([letter], Status::Leaving, ""),
            Put::Full(letter) => refuse([letter], Status::NoRoom, "its event loop has too many to take"),
        }
    }

    /// Tells the last thing, and before it what becomes of all that waits.
    fn over(&self, last: Letter) {
        loop {
            let mut inbox = self.lock();
            let requests = inbox.take_requests();
            if requests.is_empty() {
                let why = match &last {
                    Letter::Over(Err(error)) => NotCallable::Over { words: error.to_string().into() },
                    _ => NotCallable::NoMember,
                };
                while let Some(call) = inbox.first_call() {
                    inbox.answered(call, Letter::Answer(call, Err(why.clone().into())));
                }
                inbox.over(last);
                break;
            }
            drop(inbox);
            // Where the worker calls itself, to refuse a request answers a call.
            refuse(requests, Status::Leaving, "");
        }
        self.waker.wake();
    }
}

/// Runs code of the program's, or of the library's; a panic in it is told as the end of a worker.
fn caught<T>(what: &str, code: impl FnOnce() -> T) -> Result<T, AgentError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let words = format!("the thread that {what} panicked: {}", panic_text(&*panic));
        AgentError::Panicked { words: words.into() }
    })
}

/// What callers of a handler hear whose loop takes requests no more, though the worker may live.
const LOOP_GONE: &str = "its event loop is gone";

/// Answers requests that nobody will take.
fn refuse(letters: impl IntoIterator<Item = Letter>, why: Status, words: &str) {
    for letter in letters {
        if let Letter::Asked(_, responder) = letter {
            responder.decline(why, words);
        }
    }
}

impl Ear for Desk {
    fn changed(&self, event: GroupEvent) -> u64 {
        let mut lost = 0;
        self.put(|inbox| {
            let before = inbox.changes_lost();
            let put = inbox.changed(Letter::Group(event));
            lost = inbox.changes_lost() - before;
            put
        });
        lost
    }

    fn parted(&self) {
        let put = self.lock().parted();
        if put == Put::Wakes {
            self.waker.wake();
        }
    }
}

/// Takes requests to a loop.
#[derive(Clone)]
pub struct RpcDesk(Arc<Desk>);

impl fmt::Debug for RpcDesk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RpcDesk")
    }
}

impl RpcDesk {
    /// A handler, inline, whose requests are events of the loop.
    #[must_use]
    pub fn handler(&self) -> Box<HandlerFn> {
        let desk = Arc::clone(&self.0);
        Box::new(move |request, responder| desk.ask(request, responder))
    }

    /// Takes one request.
    pub fn ask(&self, request: Request, responder: Responder) {
        self.0.ask(request, responder);
    }
}

/// A call whose end nobody has taken.
struct Made {
    called: Called,
    /// How it ends when it is given up.
    way: Way,
}

enum Way {
    Kept(CallCanceller),
    /// Here, after so long.
    Loose(Option<Duration>, Wanted),
}

impl Drop for Way {
    fn drop(&mut self) {
        if let Self::Loose(_, wanted) = self {
            wanted.give_up();
        }
    }
}

impl Made {
    /// In words.
    fn what(&self) -> Box<str> {
        format!("{}", self.called).into()
    }
}

struct LoopRpc {
    id: RpcId,
    desk: Arc<Desk>,
    home: Arc<dyn RpcHome>,
    /// There once that it is a member was told.
    agent: Option<Arc<dyn Agency>>,
    joining: Canceller,
    calls: Map<u64, Made>,
    ending: Ending,
    /// When its end is tried again.
    retry_at: Option<Instant>,
    threads: Vec<Thread>,
}

impl LoopRpc {
    fn new(id: RpcId, waker: Waker, inbox: Inbox<Letter>, home: Arc<dyn RpcHome>, keeper: Keeper) -> Self {
        Self {
            id,
            desk: Arc::new(Desk { inbox: Mutex::new(inbox), waker }),
            home,
            agent: None,
            joining: Canceller::default(),
            calls: Map::new(),
            ending: Ending::new(keeper),
            retry_at: None,
            threads: Vec::new(),
        }
    }

    const fn name_of(&self, call: u64) -> CallId {
        CallId(((self.id.0 as u64) << CALLS_PER_MEMBER_BITS) + call)
    }

    const fn call_of(&self, name: CallId) -> u64 {
        name.0.wrapping_sub((self.id.0 as u64) << CALLS_PER_MEMBER_BITS)
    }

    /// Begins to make it.
    fn make(&mut self, make: MakeRpc) -> io::Result<()> {
        let (desk, home) = (Arc::clone(&self.desk), Arc::clone(&self.home));
        let joining = self.joining.begin().for_parts();
        let thread = threads::spawn("rdzv-rpc-join", move || {
            let made = caught("makes it", || make(&RpcDesk(Arc::clone(&desk)), joining));
            let agent = match made.unwrap_or_else(|error| Err(error.into())) {
                Ok(agent) => agent,
                Err(error) => return desk.over(Letter::Joined(Err(error))),
            };
            let told = Letter::Joined(Ok(Arc::clone(&agent)));
            if let Put::Refused(_) = desk.put(|inbox| inbox.joined(told)) {
                // The loop is gone, or has this worker no more. Nobody hears how it ends.
                home.context().end_rpc(&agent, Shutdown::Abrupt).ok();
            } else {
                // Nobody else has it yet.
                agent.listen(desk).ok();
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The program wishes it to end so.
    fn end(&mut self, how: Shutdown) -> io::Result<()> {
        let before = self.ending;
        self.ending.wish(how);
        self.go_on().inspect_err(|_| self.ending = before)
    }

    /// Does what is to be done for its end.
    fn go_on(&mut self) -> io::Result<()> {
        let standing = match &self.agent {
            None => Standing::Joining,
            Some(_) if self.desk.lock().has_parted() => Standing::Parted,
            Some(_) => Standing::Member,
        };
        let Some(step) = self.ending.next(standing) else { return Ok(()) };
        match (step, &self.agent) {
            (Step::End(how), Some(agent)) => {
                let (desk, home, agent) = (Arc::clone(&self.desk), Arc::clone(&self.home), Arc::clone(agent));
                self.threads.push(threads::spawn("rdzv-rpc-end", move || {
                    let end = caught("ends it", || home.context().end_rpc(&agent, how));
                    if end.is_err() {
                        // The context may have another worker all the same.
                        caught("gives it up", || home.context().abandon_rpc(&agent)).ok();
                    }
                    let end = end.and_then(|end| end);
                    drop(agent);
                    desk.over(Letter::Over(unless_abandoned(end)));
                })?);
            }
            (Step::Tell, Some(agent)) => self.desk.over(Letter::Over(agent.end().unwrap_or(Ok(())))),
            (Step::GiveUp | Step::End(_) | Step::Tell, _) => self.joining.cancel(),
        }
        self.ending.begun(step);
        Ok(())
    }

    fn call(&mut self, clock: Clock, spec: CallSpec<'_>) -> Result<CallId, GroupCallError> {
        let agent = self.agent.clone().ok_or(NotCallable::NoMember)?;
        let begun = self.desk.lock().begin();
        let call = begun.map_err(|error| match error {
            NotBegun::Over => NotCallable::NoMember.into(),
            NotBegun::TooMany { calls_max } => GroupCallError::Untaken { calls_max },
        })?;
        let called = Called { callee: spec.callee.into(), handler: spec.handler.into() };
        let desk = Arc::clone(&self.desk);
        let told = Box::new(move |result| desk.answer(call, result));
        match agent.begin_call(spec, told) {
            Ok(Begun::Kept(canceller)) => {
                self.calls.insert(call, Made { called, way: Way::Kept(canceller) });
            }
            Ok(Begun::Loose(time, wanted)) => {
                if let Some(time) = time {
                    self.desk.lock().set_deadline(call, clock.now() + time);
                }
                self.calls.insert(call, Made { called, way: Way::Loose(time, wanted) });
            }
            Err(error) => {
                self.desk.lock().forget(call);
                return Err(error);
            }
        }
        Ok(self.name_of(call))
    }

    fn cancel(&self, name: CallId) {
        let call = self.call_of(name);
        let Some(made) = self.calls.get(call) else { return };
        match &made.way {
            Way::Kept(canceller) => _ = canceller.cancel(),
            Way::Loose(_, wanted) => {
                wanted.give_up();
                self.desk.answer(call, Err(GroupCallError::Cancelled { call: made.what() }));
            }
        }
    }

    /// A turn of the loop.
    fn turn(&mut self, now: Instant) {
        loop {
            let late = self.desk.lock().late_call(now);
            let Some(call) = late else { break };
            let (what, elapsed) = match self.calls.get(call) {
                Some(made @ Made { way: Way::Loose(time, wanted), .. }) => {
                    wanted.give_up();
                    (made.what(), time.unwrap_or_default())
                }
                _ => Default::default(),
            };
            self.desk.answer(call, Err(GroupCallError::Late { call: what, elapsed }));
        }
        self.desk.lock().ripen();
        // Where there is no thread for it now, there may be one soon.
        self.retry_at = self.go_on().is_err().then(|| now + RETRY_INTERVAL);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let late = self.desk.lock().poll_timeout();
        late.into_iter().chain(self.retry_at).min()
    }

    fn take(&mut self) -> Option<RpcEvent> {
        let letter = self.desk.lock().take()?;
        Some(match letter {
            Letter::Joined(Ok(agent)) => {
                self.agent = Some(agent);
                // It may have been wished to end before.
                self.desk.waker.wake();
                RpcEvent::Joined(Ok(()))
            }
            Letter::Joined(Err(error)) => RpcEvent::Joined(Err(error)),
            Letter::Answer(call, result) => {
                let called = self.calls.remove(call).map(|made| made.called);
                RpcEvent::Completed(self.name_of(call), called, result)
            }
            Letter::Asked(request, responder) => RpcEvent::Asked(request, responder),
            Letter::Group(event) => RpcEvent::Group(event),
            Letter::Over(end) => RpcEvent::Over(end),
        })
    }

    /// Nobody hears of it any more. What has to end begins to.
    fn leave(&mut self) {
        let letters = self.desk.lock().close();
        for letter in letters {
            match letter {
                Letter::Joined(Ok(agent)) => self.agent = Some(agent),
                other => refuse([other], Status::NoHandler, LOOP_GONE),
            }
        }
        if let Some(agent) = &self.agent {
            agent.listen_no_more();
        }
        let is_here = self.threads.iter().all(Thread::is_here);
        let end = match self.ending.keeper() {
            // In a forked child nobody carries it out: it is the parent's.
            Keeper::Loop if is_here => self.end(Shutdown::Abrupt),
            Keeper::Loop | Keeper::Others => Ok(()),
        };
        // Without a thread for it, this one has to do it.
        if let (Err(_), Some(agent)) = (end, &self.agent) {
            self.home.context().end_rpc(agent, Shutdown::Abrupt).ok();
        }
    }
}

/// The workers of a loop.
#[derive(Default)]
pub(super) struct Workers {
    members: Vec<LoopRpc>,
    /// Who comes next, so that each does.
    turn: usize,
    /// Threads of workers that the loop has no more.
    left: Vec<Thread>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter().map(|member| member.id)).finish()
    }
}

impl Workers {
    fn get(&mut self, id: RpcId) -> Option<&mut LoopRpc> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    pub(super) fn turn(&mut self, now: Instant) {
        self.members.iter_mut().for_each(|member| member.turn(now));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.members.iter().filter_map(LoopRpc::poll_timeout).min()
    }

    pub(super) fn cancel(&mut self, id: RpcId, call: CallId) {
        if let Some(member) = self.get(id) {
            member.cancel(call);
        }
    }

    fn remove(&mut self, place: usize) {
        let mut member = self.members.remove(place);
        self.keep(&mut member);
    }

    /// The end of the loop waits for what has not ended of it.
    fn keep(&mut self, member: &mut LoopRpc) {
        self.left.retain(|thread| !thread.has_ended());
        self.left.append(&mut member.threads);
        // Who is the last to let go of a worker waits for handlers that are at work.
        if let Some(agent) = member.agent.take() {
            self.left.extend(threads::spawn("rdzv-rpc-end", move || drop(agent)));
        }
    }

    pub(super) fn next_event(&mut self) -> Option<LoopEvent> {
        for _ in 0..self.members.len() {
            let place = self.turn % self.members.len();
            self.turn = place + 1;
            let member = &mut self.members[place];
            let Some(event) = member.take() else { continue };
            let id = member.id;
            if matches!(event, RpcEvent::Joined(Err(_)) | RpcEvent::Over(_)) {
                self.remove(place);
            }
            return Some(LoopEvent::Rpc(id, event));
        }
        None
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut members = core::mem::take(&mut self.members);
        for member in &mut members {
            member.leave();
            self.keep(member);
        }
        let clock = Clock::new();
        let until = clock.now() + LAST_PATIENCE;
        for thread in self.left.drain(..) {
            thread.join_within(until.since(clock.now()), || {});
        }
    }
}

impl Loop {
    /// Begins to make a worker, on a thread of its own. [`RpcEvent::Joined`] tells what came of it; it ends with the loop.
    ///
    /// # Errors
    /// The system has no room for one more thread.
    pub fn init_rpc(&mut self, home: Arc<dyn RpcHome>, make: MakeRpc) -> io::Result<RpcId> {
        let id = RpcId(self.next_number());
        let inbox = Inbox::of_newcomer(InboxLimits::default());
        let mut member = LoopRpc::new(id, self.events.waker(), inbox, home, Keeper::Loop);
        member.make(make)?;
        self.workers.members.push(member);
        Ok(id)
    }

    /// Adds a worker that is a member already: what happens to it is told here from now on. It does not end with the loop.
    ///
    /// # Errors
    /// It is in a loop.
    pub fn add_rpc(&mut self, home: Arc<dyn RpcHome>, agent: Arc<dyn Agency>) -> Result<RpcId, Heard> {
        let id = RpcId(self.next_number());
        let inbox = Inbox::of_member(InboxLimits::default());
        let mut member = LoopRpc::new(id, self.events.waker(), inbox, home, Keeper::Others);
        agent.listen(Arc::clone(&member.desk) as Arc<dyn Ear>)?;
        member.agent = Some(agent);
        self.workers.members.push(member);
        Ok(id)
    }

    /// Forgets a worker: no event of it follows, and what it is asked is refused. One that was made for the loop ends
    /// abruptly, on a thread of its own.
    pub fn remove_rpc(&mut self, worker: RpcId) {
        let place = self.workers.members.iter().position(|member| member.id == worker);
        if let Some(place) = place {
            self.workers.members[place].leave();
            self.workers.remove(place);
        }
    }

    /// The worker, once it was told that it is a member.
    #[must_use]
    pub fn rpc(&mut self, worker: RpcId) -> Option<Arc<dyn Agency>> {
        self.workers.get(worker)?.agent.clone()
    }

    /// Where requests of the worker's handlers are taken to this loop.
    #[must_use]
    pub fn rpc_desk(&mut self, worker: RpcId) -> Option<RpcDesk> {
        self.workers.get(worker).map(|member| RpcDesk(Arc::clone(&member.desk)))
    }

    /// Where the worker is made and ended.
    #[must_use]
    pub fn rpc_home(&mut self, worker: RpcId) -> Option<Arc<dyn RpcHome>> {
        self.workers.get(worker).map(|member| Arc::clone(&member.home))
    }

    /// Calls another worker, or this one. [`RpcEvent::Completed`] tells what came of it.
    ///
    /// # Errors
    /// It was not made.
    pub fn rpc_call(&mut self, worker: RpcId, call: CallSpec<'_>) -> Result<CallId, RpcAskError> {
        let clock = *self.events.clock();
        let member = self.workers.get(worker).ok_or(RpcAskError::Unknown)?;
        let made = member.call(clock, call)?;
        self.arm();
        Ok(made)
    }

    /// Calls what nobody answers.
    ///
    /// # Errors
    /// It was not made.
    pub fn rpc_notify(&mut self, worker: RpcId, call: CallSpec<'_>) -> Result<(), RpcAskError> {
        let member = self.workers.get(worker).ok_or(RpcAskError::Unknown)?;
        let agent = member.agent.as_ref().ok_or(GroupCallError::from(NotCallable::NoMember))?;
        Ok(agent.begin_notify(call)?)
    }

    /// Begins to end a worker; [`RpcEvent::Over`] tells how it ended. One that is joining gives that up.
    ///
    /// # Errors
    /// There is none, or no thread for it.
    pub fn rpc_shutdown(&mut self, worker: RpcId, how: Shutdown) -> Result<(), RpcAskError> {
        let member = self.workers.get(worker).ok_or(RpcAskError::Unknown)?;
        member.end(how).map_err(RpcAskError::System)
    }
}
