//! Store over a native session. Its keys are those that clients of the c10d protocol see.

use crate::driver::backend::{Backend, BarrierMethod, Description, Span};
use crate::driver::call_error::{CallError, Refusal};
use crate::driver::cancel::CancelToken;
use crate::driver::native_client::{NativeClient, NativeClientOptions};
use crate::driver::take::Take;
use crate::store::call::{Call, Outcome};
use alloc::sync::Arc;

/// A session as a store. Other users may share it for more than keys; the calls of the store have tokens of their own.
impl Backend for NativeClient {
    fn description(&self) -> Description<'_> {
        Description {
            scope: &self.options().scope,
            peer: self.peer(),
            kind: "a store over the native protocol",
            endpoint: Some(self.endpoint()),
            timeouts: self.options().timeouts,
            clock: self.clock(),
            // So that native clients and c10d clients meet at the same barrier.
            barrier_method: BarrierMethod::ByKeys,
        }
    }

    fn native(&self) -> Option<&NativeClient> {
        Some(self)
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        Self::perform(self, call, span.deadline.since(self.clock().now()), span.token, take)
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        let options = NativeClientOptions { token: token.clone(), ..self.options().clone() };
        let (host, port) = self.endpoint();
        Ok(Arc::new(Self::connect(host, port, options)?))
    }

    fn wake(&self) {
        Self::wake(self);
    }
}
