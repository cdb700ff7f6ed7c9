//! The client of an event loop: any number of calls at a time, over as few connections as they need.
//!
//! Calls that are answered at once share one connection and are pipelined there, in the order of their submission. A
//! call that may block takes an idle connection, or a new one while there are fewer than
//! [`crate::limits::ClientLimits::connections_max`]; then it waits its turn. Calls that wait leave one connection to the
//! others, which may be what they wait for. Between calls on different connections there is no order: who needs one
//! waits for the first to complete.
//!
//! When a further connection cannot be made, the calls that would have needed it fail with the reason, at once: nothing
//! is dialled for twice in a row.
//!
//! The machine owns requests and answers, and no socket: see [`Input`] and [`Output`].

mod connections;
mod outgoing;

use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::ids::ConnId;
use crate::limits::ClientLimits;
use crate::ordered::{Map, Number, Set};
use crate::rng::Rng;
use crate::store::call::{Call, CallId, GetMode, Outcome, WaitMode};
use crate::store::client_conn::GiveUp;
use crate::store::dial::{DialOptions, Family, Rounds};
use crate::time::{Duration, Instant};
use crate::wire::c10d::{Frame, encode_frame, parse_frame};
use crate::wire::sink::{Fill, Length};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use connections::Lanes;

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiClientOptions {
    /// How long the first connection may take, with all its attempts. Calls have their own deadlines besides.
    pub connect_timeout: Duration,
    /// How often the first connection goes through the addresses; further ones try each once.
    pub rounds: Rounds,
    /// How connections are made.
    pub dial: DialOptions,
    /// Bounds.
    pub limits: ClientLimits,
}

impl Default for MultiClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(300),
            rounds: Rounds::UntilDeadline,
            dial: DialOptions::default(),
            limits: ClientLimits { idle_connections_max: 4, ..ClientLimits::default() },
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The host has addresses of these families, in the resolver's order.
    Resolved(ConnId, &'a [Family]),
    /// The host has no address; the resolver's error number.
    Unresolved(ConnId, ErrorKind, Cause),
    /// The address accepted.
    Connected(ConnId),
    /// The connection was not made.
    ConnectFailed(ConnId, ErrorKind, Cause),
    /// Bytes arrived.
    Received(ConnId, &'a [u8]),
    /// So many of [`MultiClient::unsent`] were sent.
    Sent(ConnId, usize),
    /// The connection ended.
    Ended(ConnId, Cause),
    /// Time passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Look the host's addresses up, for this connection.
    Resolve(ConnId),
    /// Connect to the address with this index in what was resolved.
    Connect(ConnId, u8),
    /// There are [`MultiClient::unsent`] bytes where there were none.
    Transmit(ConnId),
    /// Close the connection, or stop making it. The client has forgotten it unless it connects anew.
    Disconnect(ConnId),
    /// A call is over.
    Completed(CallId, Operation, Result<Answer, FailedCall>),
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How the call ended.
    pub outcome: Outcome,
    /// The values, in the order of the keys; or the keys that were listed, as on the wire.
    pub values: Vec<Vec<u8>>,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCall {
    /// How.
    pub failure: Failure,
    request: OwnedCall,
}

impl FailedCall {
    /// What was asked.
    #[must_use]
    pub fn call(&self) -> Call<'_> {
        self.request.call()
    }
}

/// A call whose bytes are its own: the request as a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnedCall {
    frame: Vec<u8>,
    wait_mode: WaitMode,
}

impl OwnedCall {
    fn new(call: &Call<'_>, mut frame: Vec<u8>) -> Self {
        frame.clear();
        if let Call::Store(request, _) = call {
            let mut length = Length::default();
            encode_frame(&mut length, &Frame::Request(*request));
            frame.resize(length.0, 0);
            encode_frame(&mut Fill::new(&mut frame), &Frame::Request(*request));
        }
        Self { frame, wait_mode: call.wait_mode() }
    }

    fn call(&self) -> Call<'_> {
        match parse_frame(&self.frame) {
            Some(Frame::Request(request)) => Call::Store(request, self.wait_mode),
            _ => Call::Ping,
        }
    }
}

#[derive(Debug)]
struct Operating {
    request: OwnedCall,
    operation: Operation,
    mode: GetMode,
    began: Instant,
    deadline: Instant,
    retries: u32,
    call_position: CallPosition,
    values: Vec<Vec<u8>>,
    /// How its connection ended, if it was begun again.
    lost: Option<Failure>,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPosition {
    /// In a queue.
    Queued,
    /// On a connection, from this byte of all that is sent there.
    On(ConnId, u64),
}

impl Number for CallId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Calls that are on no connection, in the order of their submission.
#[derive(Debug, Default)]
struct Queues {
    /// They share a connection.
    shared: Set<CallId>,
    /// They need one for themselves, and not for long.
    brief: Set<CallId>,
    /// They need one for themselves for as long as they wait.
    waiting: Set<CallId>,
}

impl Queues {
    fn of(&mut self, operating: &Operating) -> &mut Set<CallId> {
        let call = operating.request.call();
        match (call.is_exclusive(operating.mode), call.may_wait()) {
            (false, _) => &mut self.shared,
            (true, false) => &mut self.brief,
            (true, true) => &mut self.waiting,
        }
    }
}

/// A client for event loops. See the module's text.
#[derive(Debug)]
pub struct MultiClient {
    options: MultiClientOptions,
    operations: Map<CallId, Operating>,
    calls: u64,
    deadlines: Set<(Instant, CallId)>,
    queues: Queues,
    lanes: Lanes,
    mode: GetMode,
    rng: Rng,
    outputs: VecDeque<Output>,
    /// Buffers of requests that are over.
    spare: Vec<Vec<u8>>,
}

impl MultiClient {
    /// A client without connections: the first call makes one. `seed` spreads pauses and numbers PINGs.
    #[must_use]
    pub fn new(options: MultiClientOptions, seed: u64) -> Self {
        Self {
            options,
            operations: Map::new(),
            calls: 0,
            deadlines: Set::new(),
            queues: Queues::default(),
            lanes: Lanes::default(),
            mode: GetMode::Pipelined,
            rng: Rng::new(seed),
            outputs: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Numbers the calls to come from `first` on; for clients whose calls are told apart by number alone.
    pub const fn number_calls_from(&mut self, first: u64) {
        self.calls = first.saturating_sub(1);
    }

    /// Submits a call that is to be over after `timeout`, and names it.
    ///
    /// # Errors
    /// The limit that does not hold; nothing is under way then.
    pub fn submit(&mut self, now: Instant, call: &Call<'_>, timeout: Duration) -> Result<CallId, LimitError> {
        let limits = self.options.limits;
        call.check_limits(&limits.frame)?;
        if self.operations.len() >= limits.operations_max {
            return Err(LimitError::Operations { count: limits.operations_max as u64 });
        }
        let request = OwnedCall::new(call, self.spare.pop().unwrap_or_default());
        if request.frame.len() > limits.frame.frame_bytes_max {
            let (bytes, bytes_max) = (request.frame.len() as u64, limits.frame.frame_bytes_max as u64);
            return Err(LimitError::Frame { bytes, bytes_max });
        }
        self.calls += 1;
        let (id, deadline) = (CallId(self.calls), now + timeout);
        let operating = Operating {
            request,
            operation: call.operation(),
            mode: self.mode,
            began: now,
            deadline,
            retries: 0,
            call_position: CallPosition::Queued,
            values: Vec::new(),
            lost: None,
        };
        self.queues.of(&operating).insert(id);
        self.operations.insert(id, operating);
        self.deadlines.insert((deadline, id));
        self.pump(now);
        Ok(id)
    }

    /// Gives a call up; it completes with [`ErrorKind::Cancelled`], unless it is over already.
    pub fn cancel(&mut self, now: Instant, id: CallId) {
        self.give_up(now, id, ErrorKind::Cancelled);
        self.pump(now);
    }

    /// Gives all calls up.
    pub fn cancel_all(&mut self, now: Instant) {
        let ids: Vec<CallId> = self.operations.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.give_up(now, id, ErrorKind::Cancelled));
        self.pump(now);
    }

    /// Takes in what happened. Then drain [`MultiClient::poll_output`].
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        self.connection_input(now, input);
        if matches!(input, Input::Tick) {
            while let Some((deadline, id)) = self.deadlines.first()
                && deadline <= now
            {
                self.give_up(now, id, ErrorKind::TimedOut);
            }
        }
        self.pump(now);
    }

    /// What is to be done next, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| deadline);
        deadline.into_iter().chain(self.lanes.poll_timeout()).min()
    }

    /// Bytes that are to be sent on a connection; none when there is no such connection.
    #[must_use]
    pub fn unsent(&self, conn: ConnId) -> &[u8] {
        self.lanes.unsent(conn)
    }

    /// How many calls are under way on a connection.
    #[must_use]
    pub fn pending_on(&self, conn: ConnId) -> usize {
        self.lanes.live(conn)
    }

    /// Whether a connection is being made.
    #[must_use]
    pub fn is_dialling(&self, conn: ConnId) -> bool {
        self.lanes.is_dialling(conn)
    }

    /// How many calls are under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.operations.len()
    }

    /// How many connections there are, with those that are being made.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.lanes.len()
    }

    /// Ends a call before its answer.
    fn give_up(&mut self, now: Instant, id: CallId, kind: ErrorKind) {
        let Some(operating) = self.operations.get(id) else { return };
        let failure = match operating.call_position {
            CallPosition::Queued => {
                self.queues.of(operating).remove(id);
                match operating.lost.or_else(|| self.lanes.dial_failure(now)) {
                    Some(failure) if kind == ErrorKind::TimedOut => failure,
                    Some(failure) => Failure { kind, cause: Cause::Unknown, ..failure },
                    None => failure_of(kind, Phase::Connecting, Cause::Unknown, Effect::None),
                }
            }
            CallPosition::On(conn, _) => {
                let phase = self.lanes.phase(conn, id);
                let (cause, effect) = match self.lanes.give_up(conn, id) {
                    GiveUp::Close(effect) => (Cause::NoAnswer, effect),
                    GiveUp::Nothing => (Cause::NotReleased, Effect::None),
                    GiveUp::Send(bytes, effect) => {
                        self.lanes.append(conn, &bytes, &mut self.outputs);
                        (Cause::NotReleased, effect)
                    }
                };
                let cause = if kind == ErrorKind::TimedOut { cause } else { Cause::Unknown };
                failure_of(kind, phase, cause, effect)
            }
        };
        self.complete(now, id, Err(failure));
    }

    /// Ends a call.
    fn complete(&mut self, now: Instant, id: CallId, result: Result<Outcome, Failure>) {
        let Some(mut operating) = self.operations.remove(id) else { return };
        self.deadlines.remove((operating.deadline, id));
        let worked = result.map_or_else(|failure| failure.cause == Cause::NotReleased, |_| true);
        if operating.mode == GetMode::WaitThenGet && worked {
            // The faster way did not, or the call would not have come to this one.
            self.mode = GetMode::WaitThenGet;
        }
        if let CallPosition::On(conn, _) = operating.call_position {
            self.lanes.call_ended(conn);
        }
        let failed = |outcome: Outcome| outcome.failure(operating.operation).map_or(Ok(outcome), Err);
        let result = result.and_then(failed);
        let result = match result {
            Ok(outcome) => {
                if self.spare.len() < SPARE_MAX && operating.request.frame.capacity() <= SPARE_BYTES_MAX {
                    self.spare.push(core::mem::take(&mut operating.request.frame));
                }
                Ok(Answer { outcome, values: operating.values })
            }
            Err(failure) => Err(FailedCall {
                failure: Failure { elapsed: now.since(operating.began), ..failure },
                request: operating.request,
            }),
        };
        self.outputs.push_back(Output::Completed(id, operating.operation, result));
    }
}

/// Request buffers that are kept for the next calls, and how large they may be.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 1024;

const fn failure_of(kind: ErrorKind, phase: Phase, cause: Cause, effect: Effect) -> Failure {
    Failure { kind, phase, elapsed: Duration::ZERO, cause, effect }
}

#[cfg(test)]
mod tests;
