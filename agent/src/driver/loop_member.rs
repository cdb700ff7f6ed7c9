//! Agents as members of an event loop.

use super::agent::{Agent, AgentError, AgentEvent, Moment};
use rendezvous_core::driver::event_loop::{Interest, Ready, Watch};
use rendezvous_core::driver::loop_client::{Loop, Member, MemberContext, MemberEvents, MemberId};
use rendezvous_core::driver::prelude::*;
use std::os::fd::AsRawFd;

/// An agent that an event loop polls. While another thread holds the lock, the loop waits.
pub type LoopAgent = Arc<Mutex<Agent>>;

/// Event of an agent of a loop: the content of its [`LoopEvent::Member`].
///
/// [`LoopEvent::Member`]: rendezvous_core::driver::loop_client::LoopEvent::Member
#[derive(Clone, Debug)]
pub struct LoopAgentEvent {
    /// The event.
    pub event: AgentEvent,
    /// State of the agent at the time of the event.
    pub moment: Moment,
}

#[derive(Debug)]
struct WatchedAgent {
    // Dropped before the agent, whose descriptor it watches.
    _watch: Watch,
    agent: LoopAgent,
}

impl WatchedAgent {
    fn new(context: &MemberContext, agent: LoopAgent) -> io::Result<Self> {
        let fd = agent.locked().as_raw_fd();
        let watch = context.watcher.watch(fd, Interest::Read, context.id.token(0))?;
        Ok(Self { _watch: watch, agent })
    }

    fn notify(&self, events: &mut MemberEvents<'_>) {
        let mut agent = self.agent.locked();
        while let Some(event) = agent.next_event() {
            events.push(Box::new(LoopAgentEvent { event, moment: agent.moment().clone() }));
        }
    }
}

impl Member for WatchedAgent {
    fn ready(&mut self, _: Instant, _: Ready, events: &mut MemberEvents<'_>) -> io::Result<()> {
        let turned = self.agent.locked().poll();
        self.notify(events);
        turned.or_else(|error| match error {
            AgentError::System(error) => Err(error),
            // The spec was checked when the agent was created.
            AgentError::Spec(_) => Ok(()),
        })
    }
}

/// Agents of an event loop.
pub trait AgentLoop {
    /// Adds an agent. The loop polls it from now on and reports its events as [`LoopAgentEvent`]s. Its workers live
    /// until it has ended, or until the last reference to it is dropped.
    ///
    /// # Errors
    /// The event loop's system call failed.
    fn add_agent(&mut self, agent: LoopAgent) -> io::Result<MemberId>;

    /// Removes an agent. It is no longer polled, and no event of it follows.
    fn remove_agent(&mut self, agent: MemberId);
}

impl AgentLoop for Loop {
    fn add_agent(&mut self, agent: LoopAgent) -> io::Result<MemberId> {
        let id = self.add_member(|context| WatchedAgent::new(context, agent))?;
        // Reports the events from before the agent was added, too.
        self.with_member(id, |agent: &mut WatchedAgent, events| agent.notify(events));
        Ok(id)
    }

    fn remove_agent(&mut self, agent: MemberId) {
        self.remove_member::<WatchedAgent>(agent);
    }
}
