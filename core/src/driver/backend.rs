//! What every kind of store is made of: it performs requests on whole keys.

use crate::driver::call_error::{CallError, Refusal};
use crate::driver::canceller::Cancellable;
use crate::driver::clock::Clock;
use crate::driver::native_client::NativeClient;
use crate::driver::pauses::Paused;
use crate::driver::take::Take;
use crate::driver::timeout::Timeouts;
use crate::error::{Cause, Effect, ErrorKind, Failure, Phase};
use crate::store::call::{Call, Outcome, WaitMode};
use crate::time::{Duration, Instant};
use alloc::sync::Arc;

/// The time that a call has, on the clock of its backend, and whether it waits.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it began.
    pub began: Instant,
    /// When it must be over.
    pub deadline: Instant,
    /// Whether it waits for what is not there.
    pub wait_mode: WaitMode,
    /// For a call of several: cancelling ends it also between them. `None`: it begins now.
    pub epoch: Option<u64>,
}

/// How the participants of a barrier meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// With the store's own operation.
    Native,
    /// With plain keys beneath the barrier's. PyTorch's prefix and file stores do it so.
    ByKeys,
}

/// A kind of store. Any thread may call, any number of them at a time.
pub trait Backend: Send + Sync {
    /// What stands before all keys of users.
    fn scope(&self) -> &[u8];

    /// What errors call the store: `host:port`, a path, a name.
    fn peer(&self) -> &str;

    /// What it is, as errors say it.
    fn kind(&self) -> &'static str;

    /// Host and port of its server, if it has one that clients connect to.
    fn endpoint(&self) -> Option<(&str, u16)> {
        None
    }

    /// The session with a native server that it lives on, if it is of that kind.
    fn native(&self) -> Option<&NativeClient> {
        None
    }

    /// What its timeouts stand for.
    fn timeouts(&self) -> Timeouts;

    /// The clock that [`Span`]s are of.
    fn clock(&self) -> Clock;

    /// How barriers are held here.
    fn meeting(&self) -> Meeting;

    /// Performs a call by its deadline. Values go into `take`.
    ///
    /// # Errors
    /// Why it was not performed; the elapsed time is filled in by whoever asked.
    fn perform(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, Refusal>;

    /// A second, independent one on the same store. Whoever cancels `call` ends what it waits for.
    ///
    /// # Errors
    /// Why there is none.
    fn duplicate(&self, call: &Cancellable) -> Result<Arc<dyn Backend>, CallError>;

    /// Ends all calls that are under way with [`ErrorKind::Cancelled`].
    fn cancel(&self);

    /// How often calls were cancelled: what a call of several reads at its beginning.
    fn epoch(&self) -> u64;

    /// Lets `span` pass, unless the calls of that epoch are cancelled.
    fn pause(&self, epoch: u64, span: Duration) -> Paused;
}

/// A wait that was not over in time; the elapsed time is filled in later.
pub(super) const NOT_RELEASED: Failure = Failure {
    kind: ErrorKind::TimedOut,
    phase: Phase::Waiting,
    elapsed: Duration::ZERO,
    cause: Cause::NotReleased,
    effect: Effect::None,
};
/// A call that was given up.
pub(super) const CANCELLED: Failure =
    Failure { kind: ErrorKind::Cancelled, cause: Cause::Unknown, ..NOT_RELEASED };
