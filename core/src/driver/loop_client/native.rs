//! Operations on a loop that only the store of a native server has.

use super::node::Session;
use super::{Loop, SessionId, StoreId, SubmitError};
use crate::driver::call_error::CallError;
use crate::driver::native_client::session_driver::EncodedRequest;
use crate::driver::native_client::{Batch, Loss, SubmitPath, Txn, millis};
use crate::driver::store::{Timeout, not_native};
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::store::call::CallId;
use crate::store::op::{Key, Keys};
use crate::time::Duration;
use crate::wire::native::ClientFrame;

impl Loop {
    /// Returns the session whose keys form this store, for an operation that needs one.
    ///
    /// # Errors
    /// The store is not that of a session ([`crate::error::ErrorKind::Unsupported`], with the store's kind), or there
    /// is no such store.
    pub fn native(&mut self, store: StoreId, operation: Operation) -> Result<Session<'_>, SubmitError> {
        if let Some(member) = self.stores.get(&store) {
            return Err(not_native(operation, &member.peer, "a store over the c10d protocol").into());
        }
        self.session(SessionId(store.0)).ok_or(SubmitError::UnknownStore)
    }
}

/// Keys are without the scope.
impl Session<'_> {
    fn scope(&self) -> alloc::boxed::Box<[u8]> {
        self.events.sessions.get(&self.id).map(|member| member.options.scope.clone()).unwrap_or_default()
    }

    fn begin_encoded(&mut self, encoded: EncodedRequest, timeout: Timeout) -> Result<CallId, SubmitError> {
        let span = self.span(timeout);
        let member = self.events.sessions.get_mut(&self.id).ok_or(SubmitError::UnknownStore)?;
        let id = member.begin_encoded(encoded, (None, 0), span, SubmitPath::Plain)?;
        self.events.session_changed(self.id);
        Ok(id)
    }

    /// Watches a key from `from_revision` on (0: from now on). The response is [`super::SessionAnswer::Watching`],
    /// and [`super::SessionEvent::Changed`] events follow until [`super::SessionEvent::WatchOver`]. Cancelling the
    /// call ends the watch.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn watch_key(
        &mut self,
        key: &[u8],
        from_revision: u64,
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let (scope, span) = (self.scope(), self.span(timeout));
        let watch = ClientFrame::WatchKey { key: Key::scoped(&scope, key), from_revision };
        self.begin(Operation::Watch, &watch, span, SubmitPath::Plain)
    }

    /// Watches all keys under a prefix, as [`Session::watch_key`].
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn watch_prefix(
        &mut self,
        prefix: &[u8],
        from_revision: u64,
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let (scope, span) = (self.scope(), self.span(timeout));
        let watch = ClientFrame::WatchPrefix { prefix: Key::scoped(&scope, prefix), from_revision };
        self.begin(Operation::Watch, &watch, span, SubmitPath::Plain)
    }

    /// Grants a lease for `ttl` (zero: for as long as the session lives). The response is its number.
    /// [`super::SessionEvent::LeaseOver`] follows when it ends by itself.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn lease(&mut self, ttl: Duration, timeout: Timeout) -> Result<CallId, SubmitError> {
        let grant = ClientFrame::LeaseGrant { ttl_ms: millis(ttl) };
        self.begin(Operation::LeaseGrant, &grant, self.span(timeout), SubmitPath::Plain)
    }

    /// Attaches keys to a lease: they are removed when it ends.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn lease_attach(
        &mut self,
        lease: u64,
        keys: &[&[u8]],
        timeout: Timeout,
    ) -> Result<CallId, SubmitError> {
        let (scope, span) = (self.scope(), self.span(timeout));
        let attach = ClientFrame::LeaseAttach { lease, keys: Keys::scoped(&scope, keys) };
        self.begin(Operation::LeaseAttach, &attach, span, SubmitPath::Plain)
    }

    /// Renews a lease for its whole time.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn lease_renew(&mut self, lease: u64, timeout: Timeout) -> Result<CallId, SubmitError> {
        let renew = ClientFrame::LeaseRenew { lease };
        self.begin(Operation::LeaseRenew, &renew, self.span(timeout), SubmitPath::Plain)
    }

    /// Ends a lease and removes its keys. The response is the number of removed keys.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn lease_revoke(&mut self, lease: u64, timeout: Timeout) -> Result<CallId, SubmitError> {
        let revoke = ClientFrame::LeaseRevoke { lease };
        self.begin(Operation::LeaseRevoke, &revoke, self.span(timeout), SubmitPath::Plain)
    }

    /// Removes all keys and queues under a prefix. The response is the number of removed keys.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn delete_prefix(&mut self, prefix: &[u8], timeout: Timeout) -> Result<CallId, SubmitError> {
        let (scope, span) = (self.scope(), self.span(timeout));
        let delete = ClientFrame::DeletePrefix { prefix: Key::scoped(&scope, prefix) };
        self.begin(Operation::DeletePrefix, &delete, span, SubmitPath::Plain)
    }

    /// Commits a transaction: if all its tests hold, applies its writes, otherwise those of its other branch, in one
    /// atomic step.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn commit(&mut self, txn: &Txn, timeout: Timeout) -> Result<CallId, SubmitError> {
        let scope = self.scope();
        self.refuse_long_key(Operation::Txn, txn.check_keys(&scope, &FrameLimits::default()))?;
        self.begin_encoded(txn.encode(&scope), timeout)
    }

    /// Executes the requests of a batch in order in one step. Each succeeds or fails by itself.
    ///
    /// # Errors
    /// As [`Session::close_run`].
    pub fn batch(&mut self, batch: &Batch, timeout: Timeout) -> Result<CallId, SubmitError> {
        let scope = self.scope();
        self.refuse_long_key(Operation::Batch, batch.check_keys(&scope, &FrameLimits::default()))?;
        self.begin_encoded(batch.encode(&scope), timeout)
    }

    fn refuse_long_key(
        &self,
        operation: Operation,
        checked: Result<(), (&[u8], Loss)>,
    ) -> Result<(), SubmitError> {
        let Err((key, loss)) = checked else { return Ok(()) };
        let member = self.events.sessions.get(&self.id).ok_or(SubmitError::UnknownStore)?;
        let keys = (Some(Key::scoped(&member.options.scope, key)), 1);
        Err(CallError::from(loss.into_error(operation, keys, &member.peer)).into())
    }
}
