//! Store over a native session. Its keys are those that clients of the c10d protocol see.

use crate::driver::backend::{Backend, BarrierMethod, Description, Span};
use crate::driver::call_error::{CallError, Refusal};
use crate::driver::cancel::CancelToken;
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::take::Take;
use crate::store::call::{Call, Outcome};
use alloc::sync::Arc;

/// Store of a native server. Other users may share its session for more than keys.
#[derive(Debug)]
pub struct NativeStore(NativeClient);

impl NativeStore {
    /// Makes the store of a session. Its calls have tokens of their own.
    #[must_use]
    pub fn new(client: &NativeClient) -> Self {
        Self(client.clone())
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
    fn description(&self) -> Description<'_> {
        Description {
            scope: &self.0.options().scope,
            peer: self.0.peer(),
            kind: "a store over the native protocol",
            endpoint: Some(self.0.endpoint()),
            timeouts: self.0.options().timeouts,
            clock: self.0.clock(),
            // So that native clients and c10d clients meet at the same barrier.
            barrier_method: BarrierMethod::ByKeys,
        }
    }

    fn native(&self) -> Option<&NativeClient> {
        Some(&self.0)
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.0.perform(call, span.deadline.since(self.0.clock().now()), span.token, take)
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        let options = NativeClientOptions { token: token.clone(), ..self.0.options().clone() };
        let (host, port) = self.0.endpoint();
        Ok(Arc::new(Self::connect(host, port, options)?))
    }

    fn wake(&self) {
        self.0.wake();
    }
}
