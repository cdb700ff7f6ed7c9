//! Agents within a loop.

use super::{Loop, LoopEvent};
use crate::driver::agent::{Agent, AgentError};
use crate::driver::event_loop::{Interest, Token, Watch};
use alloc::sync::Arc;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

/// Names one agent of a loop; it is numbered with the stores and sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(u32);

impl AgentId {
    /// As a number, for callers that keep numbers.
    #[must_use]
    pub const fn as_u32(self) -> u32 {
        self.0
    }

    /// From [`AgentId::as_u32`].
    #[must_use]
    pub const fn from_u32(number: u32) -> Self {
        Self(number)
    }
}

/// An agent that a loop turns. Whoever holds the lock meanwhile makes the loop wait.
pub type LoopAgent = Arc<Mutex<Agent>>;

#[derive(Debug)]
pub(super) struct WatchedAgent {
    id: AgentId,
    // The watch goes before what it watches.
    watch: Watch,
    agent: LoopAgent,
}

impl Loop {
    /// Adds an agent, which is turned with the loop from now on. Its workers live until it is over, or dropped here and
    /// wherever else it is held.
    ///
    /// # Errors
    /// That of the system.
    pub fn add_agent(&mut self, agent: LoopAgent) -> io::Result<AgentId> {
        let id = AgentId(self.next_number());
        let fd = agent.lock().unwrap_or_else(PoisonError::into_inner).as_raw_fd();
        let watch = self.events.watch(fd, Interest::Read, Token(u64::from(id.0) << 32))?;
        self.agents.push(WatchedAgent { id, watch, agent });
        // What it has done before is told, too.
        self.tell_of(self.agents.len() - 1);
        self.changed();
        Ok(id)
    }

    /// Forgets an agent: nobody turns it any more, and no event of it follows.
    pub fn remove_agent(&mut self, agent: AgentId) {
        self.agents.retain(|member| member.id != agent);
        self.happened.retain(|event| !matches!(event, LoopEvent::Agent(of, ..) if *of == agent));
    }

    /// Turns the agent that watches under this token.
    pub(super) fn turn_agent(&mut self, token: Token) -> io::Result<()> {
        let Some(place) = self.agents.iter().position(|member| member.watch.token() == token) else {
            return Ok(());
        };
        let turned = self.agents[place].agent.lock().unwrap_or_else(PoisonError::into_inner).turn();
        self.tell_of(place);
        turned.or_else(|error| match error {
            AgentError::System(error) => Err(error),
            // It was checked when the agent was made.
            AgentError::Spec(_) => Ok(()),
        })
    }

    fn tell_of(&mut self, place: usize) {
        let WatchedAgent { id, agent, .. } = &self.agents[place];
        let mut agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(event) = agent.next_event() {
            self.happened.push_back(LoopEvent::Agent(*id, event, agent.moment().clone()));
        }
    }
}
