//! Store over a native session. Its keys are those that clients of the c10d protocol see.

use crate::driver::backend::{Backend, Meeting, Span};
use crate::driver::call_error::{CallError, Refusal};
use crate::driver::canceller::Cancellable;
use crate::driver::clock::Clock;
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::pauses::Paused;
use crate::driver::take::Take;
use crate::driver::timeout::Timeouts;
use crate::store::call::{Call, Outcome};
use crate::time::Duration;
use alloc::sync::Arc;

/// Store of a native server. Other users may share its session for more than keys.
#[derive(Debug)]
pub struct NativeStore(NativeClient);

impl NativeStore {
    /// Makes the store of a session. Cancelling its calls cancels no other requests of the session.
    #[must_use]
    pub fn new(client: &NativeClient) -> Self {
        Self(client.apart())
    }

    /// Connects a store with a session of its own.
    ///
    /// # Errors
    /// The reason why the session could not be opened.
    pub fn connect(host: &str, port: u16, options: NativeClientOptions) -> Result<Self, CallError> {
        Ok(Self(NativeClient::connect(host, port, options)?))
    }
}

impl Backend for NativeStore {
    fn scope(&self) -> &[u8] {
        &self.0.options().scope
    }

    fn peer(&self) -> &str {
        self.0.peer()
    }

    fn endpoint(&self) -> Option<(&str, u16)> {
        Some(self.0.endpoint())
    }

    fn kind(&self) -> &'static str {
        "a store over the native protocol"
    }

    fn native(&self) -> Option<&NativeClient> {
        Some(&self.0)
    }

    fn timeouts(&self) -> Timeouts {
        self.0.options().timeouts
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    /// By keys, so that native clients and c10d clients meet at the same barrier.
    fn meeting(&self) -> Meeting {
        Meeting::ByKeys
    }

    fn perform(&self, call: &Call<'_>, span: Span, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.0.perform(call, span.deadline.since(self.0.clock().now()), take)
    }

    fn duplicate(&self, call: &Cancellable) -> Result<Arc<dyn Backend>, CallError> {
        Ok(Arc::new(Self(self.0.duplicate_cancellable(call)?)))
    }

    fn cancel(&self) {
        self.0.cancel();
    }

    fn epoch(&self) -> u64 {
        self.0.pauses().epoch()
    }

    fn pause(&self, epoch: u64, span: Duration) -> Paused {
        self.0.pauses().pause(epoch, span)
    }
}
