//! Agents as members of an event loop.

use super::agent::{Agent, AgentError, AgentEvent, Moment};
use alloc::boxed::Box;
use alloc::sync::Arc;
use rendezvous_core::driver::event_loop::{Interest, Ready, Watch};
use rendezvous_core::driver::loop_client::{Loop, Member, MemberContext, MemberEvents, MemberId};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// An agent that a loop turns. Whoever holds the lock meanwhile makes the loop wait.
pub type LoopAgent = Arc<Mutex<Agent>>;

/// Something happened to an agent of a loop: the content of its [`LoopEvent::Member`].
///
/// [`LoopEvent::Member`]: rendezvous_core::driver::loop_client::LoopEvent::Member
#[derive(Clone, Debug)]
pub struct LoopAgentEvent {
    /// What happened.
    pub event: AgentEvent,
    /// How things stood then.
    pub moment: Moment,
}

#[derive(Debug)]
struct WatchedAgent {
    // The watch goes before what it watches.
    _watch: Watch,
    agent: LoopAgent,
}

impl WatchedAgent {
    fn new(context: &MemberContext, agent: LoopAgent) -> io::Result<Self> {
        let fd = agent.lock().unwrap_or_else(PoisonError::into_inner).as_raw_fd();
        let watch = context.watcher.watch(fd, Interest::Read, context.token(0))?;
        Ok(Self { _watch: watch, agent })
    }

    fn notify(&self, events: &mut MemberEvents<'_>) {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = agent.next_event() {
            events.push(Box::new(LoopAgentEvent { event, moment: agent.moment().clone() }));
        }
    }
}

impl Member for WatchedAgent {
    fn ready(&mut self, _: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        let turned = self.agent.lock().unwrap_or_else(PoisonError::into_inner).poll();
        self.notify(events);
        turned.or_else(|error| match error {
            AgentError::System(error) => Err(error),
            // It was checked when the agent was made.
            AgentError::Spec(_) => Ok(()),
        })
    }
}

/// What a loop does with agents.
pub trait AgentLoop {
    /// Adds an agent, which is turned with the loop from now on; its events are [`LoopAgentEvent`]s. Its workers live until
    /// it is over, or dropped here and wherever else it is held.
    ///
    /// # Errors
    /// That of the system.
    fn add_agent(&mut self, agent: LoopAgent) -> io::Result<MemberId>;

    /// Forgets an agent: nobody turns it any more, and no event of it follows.
    fn remove_agent(&mut self, agent: MemberId);
}

impl AgentLoop for Loop {
    fn add_agent(&mut self, agent: LoopAgent) -> io::Result<MemberId> {
        let id = self.add_member(|context| WatchedAgent::new(context, agent))?;
        // What it has done before is told, too.
        self.with_member(id, |agent: &mut WatchedAgent, events| agent.notify(events));
        Ok(id)
    }

    fn remove_agent(&mut self, agent: MemberId) {
        self.remove_member::<WatchedAgent>(agent);
    }
}
