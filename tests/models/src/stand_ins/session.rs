//! Session without a connection. The model is its server: it says what arrives.

use super::clock::Clock;
use super::event_loop::{EventLoop, Ready, Token, Waker};
use super::last_try::FailedTry;
use crate::inbox::Weighted;
use rendezvous_core::error::{Cause, ErrorKind, Failure, Phase};
use rendezvous_core::node::native_client::Ending;
use rendezvous_core::time::{Duration, Instant, Poller};
use shuttle::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};

pub const READ_BYTES: usize = 1;

/// Timeout of a request, which does not pass in a model.
const TIMEOUT: Duration = Duration::from_secs(100_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Cancelled,
    Over(Ending),
    /// The session's thread did not answer, but is not known to be over.
    Failed(ErrorKind),
}

impl Loss {
    pub const fn of(failure: Failure) -> Self {
        Self::Failed(failure.kind)
    }

    pub const fn cancelled() -> Self {
        Self::Cancelled
    }

    pub const fn of_ending(ending: Ending) -> Self {
        Self::Over(ending)
    }
}

pub const fn plain(kind: ErrorKind) -> Failure {
    Failure::new(kind, Phase::Waiting, Cause::Unknown)
}

/// A response or a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedFrame {
    pub id: u64,
}

impl Weighted for OwnedFrame {
    fn bytes(&self) -> usize {
        1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    Standby {},
    Replaced {},
    Round,
}

impl NodeEvent {
    pub const fn is_before_round(&self) -> bool {
        matches!(self, Self::Standby {})
    }
}

impl Weighted for NodeEvent {
    fn bytes(&self) -> usize {
        1
    }
}

/// A request, by what the server does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is answered at once.
    Prompt,
    /// It is never answered.
    Held,
    Join,
    Goodbye,
}

#[derive(Debug)]
pub struct EncodedRequest {
    pub kind: Kind,
    pub span: Duration,
}

impl EncodedRequest {
    pub const fn of(kind: Kind) -> Self {
        Self { kind, span: TIMEOUT }
    }

    pub fn is_join(&self) -> bool {
        self.kind == Kind::Join
    }
}

#[derive(Default)]
pub struct NativeClientOptions;

pub enum SessionOutput {
    Open,
    Ended(u64, EncodedRequest, Result<OwnedFrame, Loss>),
    Pushed(OwnedFrame),
    Node(NodeEvent),
    Over(Ending),
}

/// What arrives at the session.
pub enum Arrival {
    Greeting,
    Push(u64),
    Node(NodeEvent),
    End(Ending),
}

#[derive(Default)]
pub struct Server {
    arrivals: VecDeque<Arrival>,
    pub received: Vec<Kind>,
    /// Requests whose pushes the session does not want any more.
    pub forgotten: Vec<u64>,
}

shuttle::lazy_static! {
    pub static ref SERVER: Mutex<Server> = Mutex::default();
}

impl Server {
    pub fn send(arrival: Arrival) {
        SERVER.lock().expect("no panic").arrivals.push_back(arrival);
        Waker.wake();
    }
}

#[derive(Default)]
pub struct SessionDriver {
    requests: BTreeMap<u64, EncodedRequest>,
    unsent: Vec<u64>,
    last_id: u64,
    is_live: bool,
    ending: Option<Ending>,
    outputs: VecDeque<SessionOutput>,
}

impl SessionDriver {
    pub fn new(
        _: (&str, u16),
        _: &NativeClientOptions,
        _: (Clock, u64),
        (_, Poller::Thread | Poller::Program): (Token, Poller),
    ) -> Self {
        Self::default()
    }

    pub const fn machine(&self) -> &Self {
        self
    }

    pub const fn is_live(&self) -> bool {
        self.is_live
    }

    pub const fn failed_try(&self) -> Option<FailedTry> {
        None
    }

    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    pub const fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    pub const fn session(&self) -> u64 {
        1
    }

    pub const fn incarnation(&self) -> u64 {
        1
    }

    pub fn next_output(&mut self) -> Option<SessionOutput> {
        self.outputs.pop_front()
    }

    pub fn begin(&mut self, encoded: EncodedRequest) -> Result<u64, Loss> {
        if let Some(ending) = self.ending {
            return Err(Loss::Over(ending));
        }
        self.last_id += 1;
        self.requests.insert(self.last_id, encoded);
        self.unsent.push(self.last_id);
        Ok(self.last_id)
    }

    pub fn forget(&mut self, request: u64) {
        SERVER.lock().expect("no panic").forgotten.push(request);
    }

    fn end(&mut self, id: u64, result: Result<OwnedFrame, Loss>) {
        if let Some(encoded) = self.requests.remove(&id) {
            self.outputs.push_back(SessionOutput::Ended(id, encoded, result));
        }
    }

    pub fn cancel(&mut self, id: u64) {
        self.end(id, Err(Loss::Cancelled));
    }

    pub const fn wake(&mut self) {}

    pub const fn ready(&mut self, _: Ready, _: &mut [u8]) {}

    pub const fn lose(&mut self, _: Cause) {}

    pub const fn hang_up(&mut self) {}

    pub fn step(&mut self, _: Instant) {
        let arrivals = std::mem::take(&mut SERVER.lock().expect("no panic").arrivals);
        for arrival in arrivals {
            match arrival {
                _ if self.ending.is_some() => {}
                Arrival::Greeting => {
                    self.is_live = true;
                    self.outputs.push_back(SessionOutput::Open);
                }
                Arrival::Push(id) => self.outputs.push_back(SessionOutput::Pushed(OwnedFrame { id })),
                Arrival::Node(event) => self.outputs.push_back(SessionOutput::Node(event)),
                Arrival::End(ending) => {
                    self.ending = Some(ending);
                    let waiting: Vec<u64> = self.requests.keys().copied().collect();
                    waiting.into_iter().for_each(|id| self.end(id, Err(Loss::Over(ending))));
                    self.outputs.push_back(SessionOutput::Over(ending));
                }
            }
        }
    }

    pub fn execute(&mut self, _: &EventLoop) {
        for id in std::mem::take(&mut self.unsent) {
            let Some(kind) = self.requests.get(&id).map(|encoded| encoded.kind) else { continue };
            SERVER.lock().expect("no panic").received.push(kind);
            if kind != Kind::Held {
                self.end(id, Ok(OwnedFrame { id }));
            }
        }
    }
}
