//! Trait of every kind of store: it performs requests on whole keys.

use crate::driver::call_error::Refusal;
use crate::driver::native_client::NativeClient;
use crate::driver::prelude::*;
use crate::driver::take::Take;
use crate::driver::timeout::Timeouts;
use crate::error::{Cause, ErrorKind, Failure, Phase};
use crate::store::call::{Call, Outcome, WaitMode};

/// Times of one call on the clock of its backend, whether the call waits, and what cancels it.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Time at which the call began.
    pub began: Instant,
    /// Time by which the call must be over.
    pub deadline: Instant,
    /// Whether the call waits for keys that are absent.
    pub wait_mode: WaitMode,
    /// Ends the call. Steps of one call have the same token.
    pub token: &'a CancelToken,
}

/// How the participants of a barrier find each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMethod {
    /// With the store's own barrier operation.
    Native,
    /// With plain keys under the barrier's key, as over PyTorch's prefix and file stores.
    ByKeys,
}

/// Properties of a store that no call changes.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// Prefix that the store puts before all keys of its users.
    pub scope: &'a [u8],
    /// Name of the store in error messages: `host:port`, a path, a name.
    pub peer: &'a str,
    /// Kind of store in the words of an error message.
    pub kind: &'static str,
    /// Host and port of the server, if clients connect to one.
    pub endpoint: Option<(&'a str, u16)>,
    /// Default timeouts of the store's calls.
    pub timeouts: Timeouts,
    /// Clock that [`Span`]s are read from.
    pub clock: Clock,
    /// How barriers are held over the store.
    pub barrier_method: BarrierMethod,
}

/// One kind of store. Any number of threads may call it at a time.
pub trait Backend: Send + Sync {
    /// Describes the store.
    fn description(&self) -> Description<'_>;

    /// Returns the native session that carries the store, if it is of that kind.
    fn native(&self) -> Option<&NativeClient> {
        None
    }

    /// Performs a call by its deadline, or until its token is cancelled. The caller has checked the token once.
    /// Values are passed to `take`.
    ///
    /// # Errors
    /// The reason why it was not performed. The caller fills in the elapsed time.
    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal>;

    /// Opens a second, independent client of the same store, unless `token` is cancelled before.
    ///
    /// # Errors
    /// The reason why the client could not be opened.
    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError>;

    /// Wakes the waiting calls, so that they check their tokens. The handle calls this when a token is cancelled.
    fn wake(&self) {}
}

/// Failure of a wait that was not over in time. The elapsed time is filled in later.
pub(super) const NOT_RELEASED: Failure =
    Failure::new(ErrorKind::TimedOut, Phase::Waiting, Cause::NotReleased);
/// Failure of a cancelled call.
pub(super) const CANCELLED: Failure = Failure::new(ErrorKind::Cancelled, Phase::Waiting, Cause::Unknown);
