//! Workers of RPC groups as members of an event loop: their threads queue events until the loop takes them.

use crate::agent::{GroupEvent, NotCallable};
use crate::connection::Status;
use crate::driver::calls::handling::{HandlerFn, Request, Responder};
use crate::driver::group::{
    AlreadyObserved, Begun, CallSpec, Called, GroupCallError, GroupResult, Listener, RpcContext,
    RpcInitError, RpcWorker, Shutdown,
};
use crate::inbox::ending::{Ending, GroupState, Keeper, Step};
use crate::inbox::{Inbox, InboxLimits, NotBegun, Put};
use crate::membership::error::{MembershipError, unless_abandoned};
use core::any::Any;
use rendezvous_core::driver::event_loop::Waker;
use rendezvous_core::driver::loop_client::{
    Loop, Member, MemberContext, MemberEvent, MemberEvents, MemberId,
};
use rendezvous_core::driver::prelude::*;
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::ordered::Map;
use rendezvous_core::store::call::CallId;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Event of a worker of a loop: the content of its [`LoopEvent::Member`].
///
/// [`LoopEvent::Member`]: rendezvous_core::driver::loop_client::LoopEvent::Member
#[derive(Debug)]
pub enum RpcEvent {
    /// It is a member, which is the first event; or it failed to become one, which is the last event.
    Joined(Result<(), RpcInitError>),
    /// A call has ended.
    Completed(CallId, Option<Called>, GroupResult),
    /// Request for a handler of the loop. Dropping the responder without a response fails the call.
    Request(Request, Responder),
    /// A worker joined, left or died.
    Group(GroupEvent),
    /// The worker has ended. This is its last event.
    Over(Result<(), MembershipError>),
}

/// Owner of the context in which a worker is created and ended.
pub trait RpcHome: Any + Send + Sync {
    /// The context.
    fn context(&self) -> &RpcContext;
}

impl RpcHome for RpcContext {
    fn context(&self) -> &RpcContext {
        self
    }
}

/// Function that creates a worker, on a thread of its own. The queue is for handlers of the loop. The loop cancels the
/// creation with the token, possibly before this starts.
pub type MakeRpc =
    Box<dyn FnOnce(&RpcRequestQueue, CancelToken) -> Result<Arc<dyn RpcWorker>, RpcInitError> + Send>;

/// Reason why a worker of a loop does not execute a request.
#[derive(Debug, thiserror::Error)]
pub enum RpcAskError {
    /// The loop has no such worker.
    #[error("the loop has no RPC worker of this number")]
    Unknown,
    /// The call was not made.
    #[error(transparent)]
    Call(#[from] GroupCallError),
    /// The thread that ends the worker could not be started.
    #[error("no thread to end the RPC worker: {0}")]
    System(io::Error),
}

/// Interval at which ending a worker is tried again after its thread could not be started.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

enum QueueItem {
    Joined(Result<Arc<dyn RpcWorker>, RpcInitError>),
    Answer(u64, GroupResult),
    Request(Request, Responder),
    Group(GroupEvent),
    Over(Result<(), MembershipError>),
}

/// Queue between a worker's threads and the loop.
struct RequestQueue {
    inbox: Mutex<Inbox<QueueItem>>,
    waker: Waker,
}

impl RequestQueue {
    /// Adds an item.
    fn put(&self, put: impl FnOnce(&mut Inbox<QueueItem>) -> Put<QueueItem>) -> Put<QueueItem> {
        let put = put(&mut self.inbox.locked());
        if let Put::Wakes = put {
            self.waker.wake();
        }
        put
    }

    fn answer(&self, call: u64, result: GroupResult) {
        self.put(|inbox| inbox.put_answer(call, QueueItem::Answer(call, result)));
    }

    fn ask(&self, request: Request, responder: Responder) {
        let bytes = request.payload.len() as u64;
        match self.put(|inbox| inbox.put_request(bytes, QueueItem::Request(request, responder))) {
            Put::Wakes | Put::Quiet => {}
            Put::Closed(item) => refuse([item], Status::NoHandler, LOOP_CLOSED),
            Put::Refused(item) => refuse([item], Status::Leaving, ""),
            Put::Full(item) => {
                refuse([item], Status::Exhausted, "its event loop has too many pending requests")
            }
        }
    }

    /// Adds the last event, and before it the results of all pending calls and requests.
    fn over(&self, last: QueueItem) {
        loop {
            let mut inbox = self.inbox.locked();
            let requests = inbox.take_requests();
            if requests.is_empty() {
                let why = match &last {
                    QueueItem::Over(Err(error)) => NotCallable::Over { message: error.to_string().into() },
                    _ => NotCallable::NoMember,
                };
                while let Some(call) = inbox.first_call() {
                    inbox.put_answer(call, QueueItem::Answer(call, Err(why.clone().into())));
                }
                inbox.over(last);
                break;
            }
            drop(inbox);
            // If the worker calls itself, rejecting a request adds the result of a call.
            refuse(requests, Status::Leaving, "");
        }
        self.waker.wake();
    }
}

/// Runs code of the program or of the library; a panic becomes the error of a worker's end.
fn caught<T>(what: &str, code: impl FnOnce() -> T) -> Result<T, MembershipError> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let message = format!("the thread that {what} panicked: {}", panic_text(&*panic));
        MembershipError::Panicked { message: message.into() }
    })
}

/// Message for callers of a handler whose loop takes no requests any more, though the worker may be alive.
const LOOP_CLOSED: &str = "its event loop has ended";

/// Rejects requests that will not be taken.
fn refuse(items: impl IntoIterator<Item = QueueItem>, why: Status, message: &str) {
    for item in items {
        if let QueueItem::Request(_, responder) = item {
            responder.decline(why, message);
        }
    }
}

impl Listener for RequestQueue {
    fn changed(&self, event: GroupEvent) -> u64 {
        let mut lost = 0;
        self.put(|inbox| {
            let before = inbox.changes_lost();
            let put = inbox.changed(QueueItem::Group(event));
            lost = inbox.changes_lost() - before;
            put
        });
        lost
    }

    fn parted(&self) {
        let put = self.inbox.locked().parted();
        if put == Put::Wakes {
            self.waker.wake();
        }
    }
}

/// Handle that passes requests to a loop.
#[derive(Clone)]
pub struct RpcRequestQueue(Arc<RequestQueue>);

opaque_debug!(RpcRequestQueue);

impl RpcRequestQueue {
    /// Returns an inline handler whose requests become events of the loop.
    pub fn handler(&self) -> Box<HandlerFn> {
        let queue = Arc::clone(&self.0);
        Box::new(move |request, responder| queue.ask(request, responder))
    }

    /// Adds one request.
    pub fn ask(&self, request: Request, responder: Responder) {
        self.0.ask(request, responder);
    }
}

/// Call whose result has not been taken.
struct Made {
    called: Called,
    begun: Begun,
}

impl Made {
    /// Notifies a backend that does not end its calls itself that the caller does not wait any more.
    fn give_up(&self) {
        if let Begun::Loose(_, wanted) = &self.begun {
            wanted.give_up();
        }
    }
}

struct LoopRpc {
    id: MemberId,
    clock: Clock,
    queue: Arc<RequestQueue>,
    home: Arc<dyn RpcHome>,
    /// Set once the event that it is a member was taken.
    agent: Option<Arc<dyn RpcWorker>>,
    joining: CancelToken,
    calls: Map<u64, Made>,
    ending: Ending,
    /// Time when ending it is tried again.
    retry_at: Option<Instant>,
    threads: Vec<Thread>,
    is_over: bool,
}

impl LoopRpc {
    fn new(context: &MemberContext, inbox: Inbox<QueueItem>, home: Arc<dyn RpcHome>, keeper: Keeper) -> Self {
        Self {
            id: context.id,
            clock: context.clock,
            queue: Arc::new(RequestQueue { inbox: Mutex::new(inbox), waker: context.waker.clone() }),
            home,
            agent: None,
            joining: CancelToken::new(),
            calls: Map::new(),
            ending: Ending::new(keeper),
            retry_at: None,
            threads: Vec::new(),
            is_over: false,
        }
    }

    /// Starts to create it.
    fn make(&mut self, make: MakeRpc) -> io::Result<()> {
        let (queue, home) = (Arc::clone(&self.queue), Arc::clone(&self.home));
        let joining = self.joining.clone();
        let thread = threads::spawn("rdzv-rpc-join", move || {
            let made = caught("makes it", || make(&RpcRequestQueue(Arc::clone(&queue)), joining));
            let agent = match made.unwrap_or_else(|error| Err(error.into())) {
                Ok(agent) => agent,
                Err(error) => return queue.over(QueueItem::Joined(Err(error))),
            };
            let joined_event = QueueItem::Joined(Ok(Arc::clone(&agent)));
            if let Put::Refused(_) = queue.put(|inbox| inbox.joined(joined_event)) {
                // The loop has ended, or has removed this worker. The result of its end is dropped.
                home.context().end(&agent, Shutdown::Abrupt).ok();
            } else {
                // No other code has this worker yet, so it has no listener.
                agent.listen(queue).ok();
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The program requests this end.
    fn end(&mut self, how: Shutdown) -> io::Result<()> {
        let before = self.ending;
        self.ending.end_request(how);
        self.go_on().inspect_err(|_| self.ending = before)
    }

    /// Executes the next step of the end.
    fn go_on(&mut self) -> io::Result<()> {
        let group_state = match &self.agent {
            None => GroupState::Joining,
            Some(_) if self.queue.inbox.locked().has_parted() => GroupState::Parted,
            Some(_) => GroupState::Member,
        };
        let Some(step) = self.ending.next(group_state) else { return Ok(()) };
        match (step, &self.agent) {
            (Step::End(how), Some(agent)) => {
                let (queue, home, agent) =
                    (Arc::clone(&self.queue), Arc::clone(&self.home), Arc::clone(agent));
                self.threads.push(threads::spawn("rdzv-rpc-end", move || {
                    let end = caught("ends it", || home.context().end(&agent, how));
                    if end.is_err() {
                        // The context must be free for another worker nevertheless.
                        caught("gives it up", || home.context().abandon(&agent)).ok();
                    }
                    let end = end.and_then(|end| end);
                    drop(agent);
                    queue.over(QueueItem::Over(unless_abandoned(end)));
                })?);
            }
            (Step::Notify, Some(agent)) => self.queue.over(QueueItem::Over(agent.end().unwrap_or(Ok(())))),
            (Step::GiveUp | Step::End(_) | Step::Notify, _) => self.joining.cancel(),
        }
        self.ending.begun(step);
        Ok(())
    }

    fn call(&mut self, spec: CallSpec<'_>) -> Result<CallId, GroupCallError> {
        let agent = self.agent.clone().ok_or(NotCallable::NoMember)?;
        let begun = self.queue.inbox.locked().begin();
        let call = begun.map_err(|error| match error {
            NotBegun::Over => NotCallable::NoMember.into(),
            NotBegun::TooMany { calls_max } => GroupCallError::Untaken { calls_max },
        })?;
        let called = Called::of(&spec);
        let queue = Arc::clone(&self.queue);
        let on_result = Box::new(move |result| queue.answer(call, result));
        let begun =
            agent.begin_call(spec, on_result).inspect_err(|_| self.queue.inbox.locked().forget(call))?;
        if let Begun::Loose(Some(time), _) = begun {
            self.queue.inbox.locked().set_deadline(call, self.clock.now() + time);
        }
        self.calls.insert(call, Made { called, begun });
        Ok(self.id.call(call))
    }

    fn take(&mut self) -> Option<RpcEvent> {
        let item = self.queue.inbox.locked().take()?;
        Some(match item {
            QueueItem::Joined(Ok(agent)) => {
                self.agent = Some(agent);
                // Its end may have been requested before.
                self.queue.waker.wake();
                RpcEvent::Joined(Ok(()))
            }
            QueueItem::Joined(Err(error)) => RpcEvent::Joined(Err(error)),
            QueueItem::Answer(call, result) => {
                let called = self.calls.remove(call).map(|made| {
                    made.give_up();
                    made.called
                });
                RpcEvent::Completed(self.id.call(call), called, result)
            }
            QueueItem::Request(request, responder) => RpcEvent::Request(request, responder),
            QueueItem::Group(event) => RpcEvent::Group(event),
            QueueItem::Over(end) => RpcEvent::Over(end),
        })
    }
}

impl Drop for LoopRpc {
    fn drop(&mut self) {
        self.calls.iter().for_each(|(_, made)| made.give_up());
    }
}

opaque_debug!(LoopRpc);

impl Member for LoopRpc {
    fn cancel(&mut self, name: CallId, _: &mut MemberEvents<'_>) {
        let call = self.id.number_of(name);
        let Some(made) = self.calls.get(call) else { return };
        match &made.begun {
            Begun::Kept(canceller) => _ = canceller.cancel(),
            Begun::Loose(..) => {
                made.give_up();
                self.queue.answer(call, Err(GroupCallError::Cancelled { call: made.called.text() }));
            }
        }
    }

    fn poll(&mut self, now: Instant, _: &mut MemberEvents<'_>) {
        loop {
            let late = self.queue.inbox.locked().late_call(now);
            let Some(call) = late else { break };
            let (what, elapsed) = match self.calls.get(call) {
                Some(made @ Made { begun: Begun::Loose(time, _), .. }) => {
                    made.give_up();
                    (made.called.text(), time.unwrap_or_default())
                }
                _ => Default::default(),
            };
            self.queue.answer(call, Err(GroupCallError::Late { call: what, elapsed }));
        }
        self.queue.inbox.locked().begin_iteration();
        // A thread that could not be started may be started soon.
        self.retry_at = self.go_on().is_err().then(|| now + RETRY_INTERVAL);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let late = self.queue.inbox.locked().poll_timeout();
        late.into_iter().chain(self.retry_at).min()
    }

    fn next_event(&mut self) -> Option<MemberEvent> {
        let event = self.take()?;
        self.is_over = matches!(event, RpcEvent::Joined(Err(_)) | RpcEvent::Over(_));
        Some(Box::new(event))
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    /// Removes the worker from the loop, and starts to end it if the loop owns it.
    fn leave(&mut self) {
        let items = self.queue.inbox.locked().close();
        for item in items {
            match item {
                QueueItem::Joined(Ok(agent)) => self.agent = Some(agent),
                other => refuse([other], Status::NoHandler, LOOP_CLOSED),
            }
        }
        if let Some(agent) = &self.agent {
            agent.listen_no_more();
        }
        let is_here = self.threads.iter().all(Thread::is_here);
        let end = match self.ending.keeper() {
            // In a forked child it is not ended: it belongs to the parent.
            Keeper::Loop if is_here => self.end(Shutdown::Abrupt),
            Keeper::Loop | Keeper::Others => Ok(()),
        };
        // Without another thread, this one ends it.
        if let (Err(_), Some(agent)) = (end, &self.agent) {
            self.home.context().end(agent, Shutdown::Abrupt).ok();
        }
    }
    fn take_threads(&mut self) -> Vec<Thread> {
        let mut kept = core::mem::take(&mut self.threads);
        // Dropping the last reference waits for running handlers.
        if let Some(agent) = self.agent.take() {
            kept.extend(threads::spawn("rdzv-rpc-end", move || drop(agent)));
        }
        kept
    }
}

/// Operations of a loop on workers of RPC groups.
pub trait RpcLoop {
    /// The loop.
    fn events(&mut self) -> &mut Loop;

    /// Starts to create a worker, on a thread of its own. [`RpcEvent::Joined`] has the result; the worker ends with the
    /// loop.
    ///
    /// # Errors
    /// The thread could not be started.
    fn init_rpc(&mut self, home: Arc<dyn RpcHome>, make: MakeRpc) -> io::Result<MemberId> {
        self.events().add_member(|context| {
            let inbox = Inbox::of_newcomer(InboxLimits::default());
            let mut member = LoopRpc::new(context, inbox, home, Keeper::Loop);
            member.make(make)?;
            Ok(member)
        })
    }

    /// Adds a worker that is a member already: its events are delivered here from now on. It does not end with the
    /// loop.
    ///
    /// # Errors
    /// It is in a loop already.
    fn add_rpc(
        &mut self,
        home: Arc<dyn RpcHome>,
        agent: Arc<dyn RpcWorker>,
    ) -> Result<MemberId, AlreadyObserved> {
        self.events().add_member(|context| {
            let inbox = Inbox::of_member(InboxLimits::default());
            let mut member = LoopRpc::new(context, inbox, home, Keeper::Others);
            agent.listen(Arc::clone(&member.queue) as Arc<dyn Listener>)?;
            member.agent = Some(agent);
            Ok(member)
        })
    }

    /// Removes a worker: no event of it follows, and its requests are refused. One that was created for the loop ends
    /// abruptly, on a thread of its own.
    fn remove_rpc(&mut self, worker: MemberId) {
        self.events().remove_member::<LoopRpc>(worker);
    }

    /// Returns the worker, once the event that it is a member was taken.
    fn rpc(&mut self, worker: MemberId) -> Option<Arc<dyn RpcWorker>> {
        with(self.events(), worker, |member| member.agent.clone())?
    }

    /// Returns the handle that passes requests of the worker's handlers to this loop.
    fn rpc_request_queue(&mut self, worker: MemberId) -> Option<RpcRequestQueue> {
        with(self.events(), worker, |member| RpcRequestQueue(Arc::clone(&member.queue)))
    }

    /// Returns the owner of the worker's context.
    fn rpc_home(&mut self, worker: MemberId) -> Option<Arc<dyn RpcHome>> {
        with(self.events(), worker, |member| Arc::clone(&member.home))
    }

    /// Calls another worker, or this one. [`RpcEvent::Completed`] has the result.
    ///
    /// # Errors
    /// It was not made.
    fn rpc_call(&mut self, worker: MemberId, call: CallSpec<'_>) -> Result<CallId, RpcAskError> {
        let made = with(self.events(), worker, |member| member.call(call)).ok_or(RpcAskError::Unknown)?;
        Ok(made?)
    }

    /// Starts to end a worker; [`RpcEvent::Over`] has the result. One that is joining gives that up.
    ///
    /// # Errors
    /// There is none, or no thread for it.
    fn rpc_shutdown(&mut self, worker: MemberId, how: Shutdown) -> Result<(), RpcAskError> {
        let begun = with(self.events(), worker, |member| member.end(how)).ok_or(RpcAskError::Unknown)?;
        begun.map_err(RpcAskError::System)
    }
}

/// Runs `work` with a worker.
fn with<T>(events: &mut Loop, worker: MemberId, work: impl FnOnce(&mut LoopRpc) -> T) -> Option<T> {
    events.with_member(worker, |member, _| work(member))
}

impl RpcLoop for Loop {
    fn events(&mut self) -> &mut Loop {
        self
    }
}

#[cfg(test)]
mod tests;
