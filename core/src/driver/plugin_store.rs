//! Store in code of the program (a plug-in).
//!
//! That code may block, and may never return. So it runs on threads of its own, one for each call in progress. The
//! caller waits for the result until its deadline or until it is cancelled, and then abandons the call. A plug-in
//! that calls the handle it is called from gets an error.

use crate::driver::backend::{Backend, BarrierMethod, CANCELLED, Description, NOT_RELEASED, Span};
use crate::driver::call_error::Refusal;
use crate::driver::plugin_threads::{Ended, PluginThreads};
use crate::driver::prelude::*;
use crate::driver::take::Take;
use crate::driver::timeout::Timeouts;
use crate::error::{Cause, Effect, ErrorKind, Failure, LimitError, Operation, Phase};
use crate::limits::{ClientLimits, FrameLimits};
use crate::opaque::opaque_debug;
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::op::{Key, Keys, Request};

/// One request to a plug-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Requested operation.
    pub operation: Operation,
    /// Keys of the request.
    pub keys: Vec<Vec<u8>>,
    /// Values that belong to the keys; for COMPARE_SET the expected value, then the desired one.
    pub values: Vec<Vec<u8>>,
    /// Summand of ADD.
    pub number: i64,
    /// Maximum duration of WAIT. No other operation waits.
    pub timeout: Duration,
}

/// Response of a plug-in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginAnswer {
    /// A sum, a count, or 1 for yes and 0 for no.
    pub number: Option<i64>,
    /// Values or keys.
    pub values: Vec<Vec<u8>>,
}

/// Reason why a plug-in did not perform a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginError {
    /// Kind of failure. [`ErrorKind::TimedOut`] also means that a key is absent, [`ErrorKind::QueueEmpty`] that a
    /// queue is empty, and [`ErrorKind::Unsupported`] that the plug-in does not have the operation.
    pub kind: ErrorKind,
    /// Description of the failure.
    pub message: Option<Box<str>>,
}

/// Store implemented by the program.
///
/// It gets SET, GET, ADD, COMPARE_SET, CHECK, DELETE, NUM_KEYS and LIST_KEYS. It also gets WAIT, MULTI_GET and
/// MULTI_SET, which are replaced by the former if it does not support them. It also gets APPEND and the operations of
/// queues, which nothing replaces: an append made of the other operations could get lost. Any number of threads may
/// call it at a time.
pub trait Plugin: Send + Sync {
    /// Performs a request. No operation but WAIT should wait.
    ///
    /// # Errors
    /// The reason why it was not performed.
    fn ask(&self, question: &Question) -> Result<PluginAnswer, PluginError>;
}

/// Options of a plug-in store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginStoreOptions {
    /// Name of the store in error messages.
    pub name: Box<str>,
    /// Default timeouts of calls.
    pub timeouts: Timeouts,
    /// Limits on requests.
    pub frame: FrameLimits,
    /// Maximum number of concurrent requests, including those whose callers have given up and that are still running.
    pub questions_max: usize,
}

impl Default for PluginStoreOptions {
    fn default() -> Self {
        Self {
            name: "the program's own store".into(),
            timeouts: Timeouts::default(),
            frame: FrameLimits::default(),
            questions_max: ClientLimits::default().connections_max,
        }
    }
}

/// Store in code of the program.
pub struct PluginStore {
    plugin: Arc<dyn Plugin>,
    threads: PluginThreads,
    options: PluginStoreOptions,
    clock: Clock,
}

opaque_debug!(PluginStore);

/// Interval at which keys are checked where the plug-in has no WAIT.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

impl PluginStore {
    /// Makes a store that calls `plugin`.
    pub fn new(plugin: Arc<dyn Plugin>, options: PluginStoreOptions) -> Self {
        let threads = PluginThreads::new("rdzv-store", options.questions_max);
        Self { plugin, threads, options, clock: Clock::new() }
    }

    fn drive(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        call.check_limits(&self.options.frame).map_err(|limit| Failure::limit(Phase::Calling, limit))?;
        let Call::Store(request, wait_mode) = call else { return Ok(Outcome::Alive) };
        let plugin_call = PluginCall { store: self, span, wait_mode: *wait_mode };
        let operation = call.operation();
        match *request {
            Request::Set { key, value }
            | Request::Append { key, value }
            | Request::QueuePush { key, value } => {
                plugin_call.ask(operation, &[key], &[value], 0).map(|_| Outcome::Applied)
            }
            Request::CompareSet { key, expected, desired } => {
                one(plugin_call.ask(operation, &[key], &[expected, desired], 0)?, take)
            }
            Request::Add { key, delta } => plugin_call.number(operation, &[key], delta),
            Request::Delete { key } | Request::QueueLen { key } => plugin_call.number(operation, &[key], 0),
            Request::NumKeys => plugin_call.number(operation, &[], 0),
            Request::Check { keys } => {
                Ok(if plugin_call.has_all(keys)? { Outcome::Ready } else { Outcome::NotReady })
            }
            Request::Wait { keys } => {
                Ok(if plugin_call.wait(keys)? { Outcome::Released } else { Outcome::Missing })
            }
            Request::ListKeys => Ok(give_all(&plugin_call.ask(operation, &[], &[], 0)?.values, take)),
            Request::Get { key } => {
                if !plugin_call.wait(Keys::one(key))? {
                    return Ok(Outcome::Missing);
                }
                match plugin_call.ask(operation, &[key], &[], 0) {
                    Err(refusal) if refusal.failure.cause == Cause::NotReleased => Ok(Outcome::Missing),
                    other => one(other?, take),
                }
            }
            Request::MultiGet { keys } => plugin_call.multi_get(keys, take),
            Request::MultiSet { pairs } => {
                let (keys, values): (Vec<Key<'_>>, Vec<&[u8]>) = pairs.iter().unzip();
                if let Some(done) = supported(plugin_call.ask(operation, &keys, &values, 0)) {
                    return done.map(|_| Outcome::Applied);
                }
                for (index, (key, value)) in pairs.iter().enumerate() {
                    plugin_call.ask(Operation::Set, &[key], &[value], 0).map_err(|mut refusal| {
                        // The pairs before this one are stored.
                        if index > 0 {
                            refusal.failure.effect = Effect::Possible;
                        }
                        refusal
                    })?;
                }
                Ok(Outcome::Applied)
            }
            Request::QueuePop { key } => loop {
                match plugin_call.ask(operation, &[key], &[], 0) {
                    Err(refusal) if refusal.failure.kind == ErrorKind::QueueEmpty => {}
                    other => return one(other?, take),
                }
                match (wait_mode, plugin_call.pause()?) {
                    (WaitMode::Once, _) => return Ok(Outcome::QueueEmpty),
                    (WaitMode::Wait, true) => {}
                    (WaitMode::Wait, false) => return Ok(Outcome::Missing),
                }
            },
            Request::CancelWait | Request::Barrier { .. } => Err(no_operation().into()),
        }
    }
}

/// The requests of one call.
struct PluginCall<'a> {
    store: &'a PluginStore,
    span: Span<'a>,
    wait_mode: WaitMode,
}

impl PluginCall<'_> {
    fn left(&self) -> Duration {
        self.span.deadline.since(self.store.clock.now())
    }

    /// Runs a request on a thread of the store, until the deadline.
    fn ask(
        &self,
        operation: Operation,
        keys: &[Key<'_>],
        values: &[&[u8]],
        number: i64,
    ) -> Result<PluginAnswer, Refusal> {
        let (left, waits) = (self.left(), operation == Operation::Wait);
        let question = Question {
            operation,
            keys: keys.iter().map(|key| key.pieces().concat()).collect(),
            values: values.iter().map(|value| value.to_vec()).collect(),
            number,
            timeout: if waits { left } else { Duration::ZERO },
        };
        let PluginStore { plugin, threads, options, .. } = self.store;
        let base = Failure { phase: Phase::Calling, ..NOT_RELEASED };
        let effect = if operation.reads_only() { Effect::None } else { Effect::Possible };
        let plugin = Arc::clone(plugin);
        match threads.ask(move || plugin.ask(&question), left, self.span.token) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let cause = match error.kind {
                    ErrorKind::TimedOut => Cause::NotReleased,
                    ErrorKind::Unsupported if operation.is_of_queues() => Cause::NoQueues,
                    ErrorKind::Unsupported => Cause::NoOperation,
                    _ => Cause::Unknown,
                };
                let phase = if error.kind == ErrorKind::TimedOut { Phase::Waiting } else { Phase::Calling };
                // Only these mean that nothing was done. Any other error may have come after the change.
                let effect = match error.kind {
                    ErrorKind::Unsupported
                    | ErrorKind::InvalidArgument
                    | ErrorKind::LimitExceeded
                    | ErrorKind::QueueEmpty => Effect::None,
                    _ => effect,
                };
                Err(Refusal {
                    failure: Failure { kind: error.kind, cause, phase, effect, ..base },
                    message: error.message,
                })
            }
            // A wait that ends at its deadline got a response in time: its key was not set.
            Err(Ended::TimeUp { .. }) if waits => Err(NOT_RELEASED.into()),
            Err(Ended::TimeUp { .. }) => Err(Failure { cause: Cause::NoAnswer, effect, ..base }.into()),
            Err(Ended::Cancelled { .. }) => {
                let effect = if waits { Effect::None } else { effect };
                Err(Failure { effect, ..CANCELLED }.into())
            }
            Err(Ended::CalledBack) => {
                Err(Failure { kind: ErrorKind::Reentrant, cause: Cause::CalledBack, ..base }.into())
            }
            Err(Ended::TooMany) => {
                let count = options.questions_max as u64;
                Err(Failure::limit(Phase::Calling, LimitError::Operations { count }).into())
            }
            Err(Ended::NoThread(number)) => {
                Err(Failure { kind: ErrorKind::Io, cause: Cause::Os(number), ..base }.into())
            }
            Err(Ended::Panicked) => {
                let failure = Failure { kind: ErrorKind::Io, cause: Cause::Unknown, effect, ..base };
                Err(Refusal { failure, message: Some("it panicked".into()) })
            }
        }
    }

    fn number(&self, operation: Operation, keys: &[Key<'_>], number: i64) -> Result<Outcome, Refusal> {
        let answer = self.ask(operation, keys, &[], number)?;
        answer.number.map(Outcome::Number).ok_or_else(|| invalid_answer("it gave no number"))
    }

    fn has_all(&self, keys: Keys<'_>) -> Result<bool, Refusal> {
        let keys: Vec<Key<'_>> = keys.iter().collect();
        Ok(self.number(Operation::Check, &keys, 0)? != Outcome::Number(0))
    }

    /// Waits until all keys are set. Returns whether they are.
    fn wait(&self, keys: Keys<'_>) -> Result<bool, Refusal> {
        if self.wait_mode == WaitMode::Once {
            return self.has_all(keys);
        }
        let all: Vec<Key<'_>> = keys.iter().collect();
        match supported(self.ask(Operation::Wait, &all, &[], 0)) {
            Some(Ok(_)) => return Ok(true),
            Some(Err(refusal)) if refusal.failure.cause == Cause::NotReleased => return Ok(false),
            Some(Err(refusal)) => return Err(refusal),
            None => {}
        }
        while !self.has_all(keys)? {
            if !self.pause()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pauses before the next check, if there is time left. Returns whether there is.
    fn pause(&self) -> Result<bool, Refusal> {
        let left = self.left();
        if !left.is_zero()
            && self.wait_mode == WaitMode::Wait
            && self.span.token.wait(LOOK_INTERVAL.min(left))
        {
            return Err(CANCELLED.into());
        }
        Ok(!left.is_zero())
    }

    fn multi_get(&self, keys: Keys<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        if !self.wait(keys)? {
            return Ok(Outcome::Missing);
        }
        let all: Vec<Key<'_>> = keys.iter().collect();
        let values = match supported(self.ask(Operation::MultiGet, &all, &[], 0)) {
            Some(answer) => answer?.values,
            None => {
                let get = |&key: &Key<'_>| match self.ask(Operation::Get, &[key], &[], 0)?.values.pop() {
                    Some(value) => Ok(value),
                    None => Err(invalid_answer("it gave no value")),
                };
                all.iter().map(get).collect::<Result<_, Refusal>>()?
            }
        };
        if values.len() != all.len() {
            return Err(invalid_answer("it gave another number of values than there are keys"));
        }
        Ok(give_all(&values, take))
    }
}

/// Returns `None` when the plug-in does not have the operation.
fn supported<T>(result: Result<T, Refusal>) -> Option<Result<T, Refusal>> {
    match result {
        Err(refusal) if refusal.failure.kind == ErrorKind::Unsupported => None,
        other => Some(other),
    }
}

fn give_all(values: &[Vec<u8>], take: &mut dyn Take) -> Outcome {
    take.count(values.len() as u64);
    values.iter().for_each(|value| take.whole(value));
    Outcome::Values(values.len() as u64)
}

fn one(answer: PluginAnswer, take: &mut dyn Take) -> Result<Outcome, Refusal> {
    match &answer.values[..] {
        [value] => {
            take.whole(value);
            Ok(Outcome::Value)
        }
        _ => Err(invalid_answer("it gave no value, or several")),
    }
}

fn invalid_answer(message: &str) -> Refusal {
    let failure = Failure::new(ErrorKind::WrongProtocol, Phase::Calling, Cause::Unknown);
    let failure = Failure { effect: Effect::Possible, ..failure };
    Refusal { failure, message: Some(message.into()) }
}

fn no_operation() -> Failure {
    Failure::new(ErrorKind::Unsupported, Phase::Calling, Cause::NoOperation)
}

impl Backend for PluginStore {
    fn description(&self) -> Description<'_> {
        Description {
            scope: b"",
            peer: &self.options.name,
            kind: "a store of the program's own code",
            endpoint: None,
            timeouts: self.options.timeouts,
            clock: self.clock,
            barrier_method: BarrierMethod::ByKeys,
        }
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.drive(call, span, take)
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        if token.is_cancelled() {
            return Err(CallError::new(Operation::Open, (None, 0), &self.options.name, CANCELLED));
        }
        Ok(Arc::new(Self::new(Arc::clone(&self.plugin), self.options.clone())))
    }
}

#[cfg(test)]
mod tests;
