extern crate alloc;

mod scenarios;
mod simulation;
mod table;

use super::*;
use crate::store::op::Keys;
use crate::time::Duration;
use alloc::format;
use alloc::string::{String, ToString};

const KEY: &[u8] = b"k";

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One barrier and participants with names of one letter, each with a session of its own. Outputs are returned as text.
struct World {
    barriers: Barriers,
    now: Instant,
    participants: Participants<'static>,
    request_last: u64,
}

fn owner(name: &str) -> OwnerId {
    OwnerId(name.bytes().fold(0, |id, byte| id * 256 + u64::from(byte)))
}

fn name(owner: OwnerId) -> String {
    owner.0.to_be_bytes().into_iter().filter(|&byte| byte != 0).map(char::from).collect()
}

const fn count(count: u32) -> Participants<'static> {
    Participants::Count(count)
}

const fn list(names: &'static [&'static [u8]]) -> Participants<'static> {
    Participants::Names(Keys::scoped(b"", names))
}

const ABC: &[&[u8]] = &[b"a", b"b", b"c"];

impl World {
    fn new(participants: Participants<'static>) -> Self {
        Self::limited(participants, BarrierLimits::default())
    }

    fn limited(participants: Participants<'static>, limits: BarrierLimits) -> Self {
        Self { barriers: Barriers::new(limits, 1), now: Instant::ORIGIN, participants, request_last: 0 }
    }

    fn id(&mut self, name: &str) -> ArrivalId {
        self.request_last += 1;
        ArrivalId { owner: owner(name), request: self.request_last }
    }

    fn request<'a>(&mut self, name: &'a str) -> Arrive<'a> {
        Arrive {
            arrival: self.id(name),
            key: KEY,
            generation: 0,
            name: name.as_bytes(),
            timeout: secs(60),
            participants: self.participants,
        }
    }

    fn give(&mut self, input: Input<'_>) -> String {
        match self.barriers.handle(self.now, input) {
            Ok(()) => self.drain(),
            Err(error) => {
                let reported = self.drain();
                let separator = if reported.is_empty() { "" } else { "; " };
                format!("{reported}{separator}error: {error}")
            }
        }
    }

    fn arrive(&mut self, name: &str) -> String {
        let request = self.request(name);
        self.give(Input::Arrive(request))
    }

    /// Lets all of them arrive. Returns the outputs of the last arrival.
    fn arrive_all(&mut self, names: &str) -> String {
        names.split(' ').map(|name| self.arrive(name)).last().unwrap_or_default()
    }

    fn arrive_at(&mut self, name: &str, generation: u64) -> String {
        let request = Arrive { generation, ..self.request(name) };
        self.give(Input::Arrive(request))
    }

    fn arrive_with(&mut self, name: &str, participants: Participants<'_>) -> String {
        let request = Arrive { participants, ..self.request(name) };
        self.give(Input::Arrive(request))
    }

    fn arrive_in(&mut self, key: &str, name: &str) -> String {
        let request = Arrive { key: key.as_bytes(), ..self.request(name) };
        self.give(Input::Arrive(request))
    }

    fn attempt(&mut self, name: &str) -> String {
        let request = Arrive { timeout: Duration::ZERO, ..self.request(name) };
        self.give(Input::Arrive(request))
    }

    /// Withdraws the last arrival of a name.
    fn withdraw(&mut self, name: &str) -> String {
        let owner = owner(name);
        let last = (1..=self.request_last).rev().map(|request| ArrivalId { owner, request });
        let arrival = last.into_iter().find(|&arrival| self.barriers.waits(arrival));
        self.give(Input::Withdraw { arrival: arrival.unwrap_or(ArrivalId { owner, request: 0 }) })
    }

    fn cancel(&mut self, name: &str) -> String {
        let request = self.id(name);
        self.give(Input::Cancel { request, key: KEY, by: name.as_bytes() })
    }

    fn end(&mut self, name: &str, why: Why) -> String {
        self.give(Input::Ended { owner: owner(name), node: Some(node(name.as_bytes())), why })
    }

    fn die(&mut self, name: &str) -> String {
        self.end(name, Why::Connection)
    }

    fn pass(&mut self, span: Duration) -> String {
        self.now = self.now + span;
        self.give(Input::Tick)
    }

    fn drain(&mut self) -> String {
        let mut reported = alloc::vec::Vec::new();
        while let Some(output) = self.barriers.poll_output() {
            reported.push(notify(&output));
        }
        reported.join("; ")
    }

    fn status(&self) -> String {
        self.barrier(KEY).map_or_else(
            || String::from("unknown"),
            |barrier| {
                let (waiting, participants) = (barrier.members.waiting(), barrier.participants());
                format!("{} {:?} {waiting}/{participants}", barrier.generation, barrier.phase)
            },
        )
    }

    fn barrier(&self, key: &[u8]) -> Option<&Barrier> {
        self.barriers.keys.get(key).map(|&index| &self.barriers.barriers[index])
    }
}

/// Returns a node that could arrive at each barrier.
fn node(name: &[u8]) -> EndedNode<'_> {
    EndedNode { name, could_arrive: &|_| true }
}

fn notify(output: &Output) -> String {
    match output {
        Output::Over { arrival, generation, end } => {
            format!("{} gets {generation}: {end}", name(arrival.owner))
        }
        Output::Superseded { arrival, by } => {
            format!("{} is replaced by {}", name(arrival.owner), name(by.owner))
        }
        Output::Stale { arrival, round } => format!("{} is too late for {round}", name(arrival.owner)),
        Output::CancelDone { request, had_waiters } => {
            format!("{} cancelled: {had_waiters}", name(request.owner))
        }
    }
}
