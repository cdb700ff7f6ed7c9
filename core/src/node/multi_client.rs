//! Client for event loops: any number of concurrent calls over as few connections as they need.
//!
//! Calls that the server answers at once share one connection. They are pipelined there in the order of their
//! submission.
//! A call that may block takes an idle connection, or a new one while there are fewer than
//! [`crate::limits::ClientLimits::connections_max`]; otherwise it waits in a queue. Blocking calls leave one connection
//! to the other calls, because they may wait for the effect of one of those. Calls on different connections have no
//! order: a caller that needs one waits until the first call completes.
//!
//! When a further connection cannot be established, the calls that needed it fail at once with the reason. The client
//! does not try twice in a row.
//!
//! The machine owns requests and answers, but no socket: see [`Input`] and [`Output`].

mod connections;
mod outgoing;

use crate::error::{Cause, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::ids::ConnId;
use crate::limits::ClientLimits;
use crate::node::client::{Attempts, ServerProfile, given_up};
use crate::ordered::{Map, Number, Set};
use crate::prelude::*;
use crate::rng::Rng;
use crate::store::call::{Call, CallId, Outcome, WaitMode};
use crate::store::client_conn::GiveUp;
use crate::store::dial::{DialOptions, Rounds};
use crate::wire::c10d::{Frame, encode_frame, parse_frame};
use alloc::collections::VecDeque;
use connections::ConnectionPool;
use core::net::SocketAddr;

/// Options of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiClientOptions {
    /// Time to establish the first connection, over all attempts. Calls have their own deadlines in addition.
    pub connect_timeout: Duration,
    /// How often the first connection tries the list of addresses. Further connections try each address once.
    pub rounds: Rounds,
    /// Options of a connection attempt.
    pub dial: DialOptions,
    /// Limits of the client.
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

/// Event of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The name was resolved: its addresses, in the resolver's order.
    Resolved(&'a [SocketAddr]),
    /// The name was not resolved: the kind of failure and the resolver's error number.
    Unresolved(ErrorKind, Cause),
    /// The connection was established.
    Connected(ConnId),
    /// The connection was not established.
    ConnectFailed(ConnId, ErrorKind, Cause),
    /// Bytes were received.
    Received(ConnId, &'a [u8]),
    /// This many bytes of [`MultiClient::unsent`] were sent.
    Sent(ConnId, usize),
    /// The established connection ended.
    Ended(ConnId, Cause),
    /// Time passed.
    Tick,
}

/// Action that the caller carries out.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Resolve the name of the host.
    Resolve,
    /// Connect to this address.
    Connect(ConnId, SocketAddr),
    /// [`MultiClient::unsent`] is no longer empty: start sending.
    Transmit(ConnId),
    /// Close the connection, or stop connecting. The id is invalid afterwards, unless a `Connect` for it follows.
    Disconnect(ConnId),
    /// A call completed.
    Completed(CallId, Operation, Result<Answer, FailedCall>),
}

/// Answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The values, in the order of the keys; or the listed keys, in the order on the wire.
    pub values: Vec<Vec<u8>>,
}

/// Failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCall {
    /// Kind, cause, phase and effect of the failure.
    pub failure: Failure,
    request: OwnedCall,
}

impl FailedCall {
    /// Returns the call that failed.
    pub fn call(&self) -> Call<'_> {
        self.request.call()
    }
}

/// A call that owns its bytes: the request as an encoded frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedCall {
    frame: Vec<u8>,
    wait_mode: WaitMode,
}

impl OwnedCall {
    /// Copies a call into `frame`, whose bytes are dropped.
    pub fn new(call: &Call<'_>, mut frame: Vec<u8>) -> Self {
        frame.clear();
        if let Call::Store(request, _) = call {
            encode_frame(&mut frame, &Frame::Request(*request));
        }
        Self { frame, wait_mode: call.wait_mode() }
    }

    /// Returns the call.
    pub fn call(&self) -> Call<'_> {
        match parse_frame(&self.frame) {
            Some(Frame::Request(request)) => Call::Store(request, self.wait_mode),
            _ => Call::Ping,
        }
    }
}

impl Number for CallId {
    fn number(self) -> u64 {
        self.0
    }

    fn from_number(number: u64) -> Self {
        Self(number)
    }
}

#[derive(Debug)]
struct PendingCall {
    request: OwnedCall,
    attempts: Attempts,
    began: Instant,
    deadline: Instant,
    call_position: CallPosition,
    values: Vec<Vec<u8>>,
}

/// Position of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPosition {
    /// In one of the queues.
    Queued,
    /// On a connection. The number is the position of its first byte among all bytes sent there.
    On(ConnId, u64),
}

/// Calls without a connection, in the order of their submission.
#[derive(Debug, Default)]
struct Queues {
    /// Calls that share a connection.
    shared: Set<CallId>,
    /// Calls that need a connection of their own for a short time.
    brief: Set<CallId>,
    /// Calls that need a connection of their own for as long as they wait.
    waiting: Set<CallId>,
}

impl Queues {
    fn of(&mut self, pending: &PendingCall) -> &mut Set<CallId> {
        let call = pending.request.call();
        match (call.is_exclusive(pending.attempts.mode()), call.may_wait()) {
            (false, _) => &mut self.shared,
            (true, false) => &mut self.brief,
            (true, true) => &mut self.waiting,
        }
    }
}

/// Client for event loops. The module documentation describes it.
#[derive(Debug)]
pub struct MultiClient {
    options: MultiClientOptions,
    operations: Map<CallId, PendingCall>,
    calls: u64,
    deadlines: Set<(Instant, CallId)>,
    queues: Queues,
    pool: ConnectionPool,
    profile: ServerProfile,
    rng: Rng,
    outputs: VecDeque<Output>,
    /// Buffers of completed requests, for reuse.
    spare: Vec<Vec<u8>>,
}

impl MultiClient {
    /// Creates a client without connections. The first call opens one. `seed` randomizes retry delays and the numbers
    /// that PINGs carry.
    pub fn new(options: MultiClientOptions, seed: u64) -> Self {
        Self {
            options,
            operations: Map::new(),
            calls: 0,
            deadlines: Set::new(),
            queues: Queues::default(),
            pool: ConnectionPool::default(),
            profile: ServerProfile::default(),
            rng: Rng::new(seed),
            outputs: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Numbers the following calls from `first` on, for clients that distinguish calls by number alone.
    pub const fn number_calls_from(&mut self, first: u64) {
        self.calls = first.saturating_sub(1);
    }

    /// Submits a call that times out after `timeout`, and returns its id.
    ///
    /// # Errors
    /// The limit that the call exceeds. The call did not begin.
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
        let pending = PendingCall {
            request,
            attempts: Attempts::new(call.operation(), self.profile.get_mode),
            began: now,
            deadline,
            call_position: CallPosition::Queued,
            values: Vec::new(),
        };
        self.queues.of(&pending).insert(id);
        self.operations.insert(id, pending);
        self.deadlines.insert((deadline, id));
        self.pump(now);
        Ok(id)
    }

    /// Cancels a call. It completes with [`ErrorKind::Cancelled`], unless it has completed already.
    pub fn cancel(&mut self, now: Instant, id: CallId) {
        self.give_up(now, id, ErrorKind::Cancelled);
        self.pump(now);
    }

    /// Handles an event. Afterwards the caller drains [`MultiClient::poll_output`].
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

    /// Returns the next action, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Input::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|(deadline, _)| deadline);
        deadline.into_iter().chain(self.pool.poll_timeout()).min()
    }

    /// Returns the bytes to send on a connection. Empty if the connection does not exist.
    pub fn unsent(&self, conn: ConnId) -> &[u8] {
        self.pool.get(conn).map_or(&[], |connection| connection.out.unsent())
    }

    /// Returns the number of calls under way on a connection.
    pub fn pending_on(&self, conn: ConnId) -> usize {
        self.pool.get(conn).map_or(0, |connection| connection.live)
    }

    /// Returns the number of calls under way.
    pub fn pending(&self) -> usize {
        self.operations.len()
    }

    /// Returns the number of connections, including those that are being established.
    pub fn connections(&self) -> usize {
        self.pool.len()
    }

    /// Ends a call before its answer.
    fn give_up(&mut self, now: Instant, id: CallId, kind: ErrorKind) {
        let Some(pending) = self.operations.get(id) else { return };
        let failure = match pending.call_position {
            CallPosition::Queued => {
                self.queues.of(pending).remove(id);
                match pending.attempts.lost().or_else(|| self.pool.dial_failure(now)) {
                    Some(failure) if kind == ErrorKind::TimedOut => failure,
                    Some(failure) => Failure { kind, cause: Cause::Unknown, ..failure },
                    None => Failure::new(kind, Phase::Connecting, Cause::Unknown),
                }
            }
            CallPosition::On(conn, _) => {
                let connection = self.pool.get_mut(conn);
                let (phase, todo) =
                    connection.map_or((Phase::Waiting, GiveUp::Nothing), |connection| connection.give_up(id));
                if let GiveUp::Send(bytes, _) = todo {
                    self.pool.append(conn, &bytes, &mut self.outputs);
                }
                given_up(kind, phase, todo)
            }
        };
        self.complete(now, id, Err(failure));
    }

    /// Completes a call.
    fn complete(&mut self, now: Instant, id: CallId, result: Result<Outcome, Failure>) {
        let Some(mut pending) = self.operations.remove(id) else { return };
        self.deadlines.remove((pending.deadline, id));
        if let Some(mode) = pending.attempts.learned(&result) {
            self.profile.get_mode = mode;
        }
        if let CallPosition::On(conn, _) = pending.call_position
            && let Some(connection) = self.pool.get_mut(conn)
        {
            connection.call_ended();
        }
        let operation = pending.attempts.operation();
        let failed = |outcome: Outcome| outcome.failure(operation).map_or(Ok(outcome), Err);
        let result = result.and_then(failed);
        let result = match result {
            Ok(outcome) => {
                if self.spare.len() < SPARE_MAX && pending.request.frame.capacity() <= SPARE_BYTES_MAX {
                    self.spare.push(core::mem::take(&mut pending.request.frame));
                }
                Ok(Answer { outcome, values: pending.values })
            }
            Err(failure) => Err(FailedCall {
                failure: Failure { elapsed: now.since(pending.began), ..failure },
                request: pending.request,
            }),
        };
        self.outputs.push_back(Output::Completed(id, operation, result));
    }
}

/// Most request buffers that are kept for later calls, and most bytes that a kept buffer may have.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
