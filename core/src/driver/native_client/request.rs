//! Requests of the native protocol as values: [`NativeClient::request`](super::NativeClient::request) performs one and
//! blocks, [`Session::submit`](crate::driver::loop_client::Session::submit) submits it to an event loop.

use super::batch::{Batch, Txn, check_keys};
use super::calls::wait_millis;
use super::session_driver::EncodedRequest;
use super::{Loss, NativeClientOptions, NativeError, PendingRequest, check_reason, millis};
use crate::error::Operation;
use crate::rendezvous::participant::{Entry, Role};
use crate::store::call::WaitMode;
use crate::store::op::{Key, Keys};
use crate::time::Duration;
use crate::wire::native::{ClientFrame, Participants};
use core::slice;

#[cfg(doc)]
use super::NativeResponse;

/// Request of the native protocol. Keys and prefixes are without the scope of the store.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the descriptions of the variants name their fields")]
pub enum NativeRequest<'a> {
    /// Removes all keys and queues under `prefix`: [`NativeResponse::Removed`]. Keys of rounds that are over stay, and
    /// are counted.
    DeletePrefix { prefix: &'a [u8] },
    /// Reads values with their revisions, when all `keys` are set: [`NativeResponse::Values`]. With a timeout of zero,
    /// absent keys have the revision 0.
    Read { keys: &'a [&'a [u8]] },
    /// Lists the first `count_max` keys that begin with `prefix` and follow `after` in byte order (empty: from the
    /// first on): [`NativeResponse::Page`].
    ListPage { prefix: &'a [u8], after: &'a [u8], count_max: u32 },
    /// Commits a transaction in one atomic step: [`NativeResponse::Txn`].
    Txn(&'a Txn),
    /// Executes the requests of a batch in order in one step: [`NativeResponse::Batch`]. Each succeeds or fails by
    /// itself.
    Batch(&'a Batch),
    /// Arrives at the barrier `key` under `name` (empty: the session's name) and waits for the others:
    /// [`NativeResponse::Barrier`]. `generation` 0 is the open one, or the next. The first to arrive sets the
    /// participants and the deadline for all. A caller with a shorter timeout gets, at its own deadline, the names of
    /// the missing participants, and the others wait on.
    Barrier { key: &'a [u8], generation: u64, name: &'a [u8], participants: Participants<'a> },
    /// Cancels a barrier for all that wait at it: [`NativeResponse::Outcome`], whether any participant waited.
    BarrierCancel { key: &'a [u8], name: &'a [u8] },
    /// Watches `key` from `from_revision` on (0: from now on): [`NativeResponse::Watching`].
    WatchKey { key: &'a [u8], from_revision: u64 },
    /// Watches all keys under `prefix`, as [`NativeRequest::WatchKey`].
    WatchPrefix { prefix: &'a [u8], from_revision: u64 },
    /// Grants a lease for `ttl` (zero: for as long as the session lives): [`NativeResponse::Number`], its number.
    LeaseGrant { ttl: Duration },
    /// Attaches `keys` to a lease, so that they are removed when it ends.
    LeaseAttach { lease: u64, keys: &'a [&'a [u8]] },
    /// Renews a lease for its whole time.
    LeaseRenew { lease: u64 },
    /// Ends a lease: [`NativeResponse::Number`], how many of its keys were removed.
    LeaseRevoke { lease: u64 },
    /// Joins a run: [`NativeResponse::Joined`]. The entry contains the timeout. While the node is a spare, no timeout
    /// runs.
    Join(Entry<'a>, Role),
    /// Leaves the run, which goes on.
    Leave { run_id: &'a [u8] },
    /// Closes a run for good.
    CloseRun { run_id: &'a [u8] },
    /// Closes a run and notifies its nodes of the reason why the job failed, of at most 1,024 bytes.
    FailRun { run_id: &'a [u8], message: &'a str },
    /// Requests the state of a run: [`NativeResponse::RunInfo`].
    RunInfo { run_id: &'a [u8] },
    /// Requests members of a round in the order of their ranks: at most `count_max`, from `first` on:
    /// [`NativeResponse::Members`]. For the round that forms next these are the nodes that have joined so far, whose
    /// ranks may still change. Of the last round, nodes that are gone may be missing; the next page begins after the last
    /// rank of this one, and an empty page is the end.
    Members { run_id: &'a [u8], round: u64, first: u32, count_max: u32 },
    /// Lists at most 1,024 sessions whose numbers follow `after`: [`NativeResponse::Sessions`]. Takes the right `all` of a
    /// server with tokens.
    Sessions { after: u64 },
    /// Ends the session with this number: [`NativeResponse::Outcome`], whether there was one. Takes the right `all`.
    EndSession { session: u64 },
    /// Ends the session with a goodbye to the server, so that the node is not considered dead.
    Close,
}

/// Returns the participants of a barrier: those with these names, or `count` of them when there are no names.
pub fn participants<'a>(count: u32, names: &'a [&'a [u8]]) -> Participants<'a> {
    match names {
        [] => Participants::Count(count),
        names => Participants::Names(Keys::scoped(b"", names)),
    }
}

impl<'a> NativeRequest<'a> {
    /// Returns the operation, as errors name it.
    pub const fn operation(&self) -> Operation {
        match self {
            Self::DeletePrefix { .. } => Operation::DeletePrefix,
            Self::Read { .. } => Operation::MultiGet,
            Self::ListPage { .. } => Operation::ListKeys,
            Self::Txn(_) => Operation::Txn,
            Self::Batch(_) => Operation::Batch,
            Self::Barrier { .. } => Operation::NamedBarrier,
            Self::BarrierCancel { .. } => Operation::BarrierCancel,
            Self::WatchKey { .. } | Self::WatchPrefix { .. } => Operation::Watch,
            Self::LeaseGrant { .. } => Operation::LeaseGrant,
            Self::LeaseAttach { .. } => Operation::LeaseAttach,
            Self::LeaseRenew { .. } => Operation::LeaseRenew,
            Self::LeaseRevoke { .. } => Operation::LeaseRevoke,
            Self::Join(_, Role::Member) => Operation::Join,
            Self::Join(_, Role::Spare) => Operation::Standby,
            Self::Leave { .. } => Operation::Leave,
            Self::CloseRun { .. } | Self::FailRun { .. } => Operation::Close,
            Self::RunInfo { .. } => Operation::RunInfo,
            Self::Members { .. } => Operation::Members,
            Self::Sessions { .. } => Operation::Sessions,
            Self::EndSession { .. } => Operation::EndSession,
            Self::Close => Operation::Bye,
        }
    }

    /// Returns the keys that errors name, or the run. A transaction and a batch have none: the server returns the key
    /// that caused the error.
    pub const fn keys(&self) -> &[&'a [u8]] {
        match self {
            Self::Read { keys } | Self::LeaseAttach { keys, .. } => keys,
            Self::DeletePrefix { prefix: key }
            | Self::ListPage { prefix: key, .. }
            | Self::Barrier { key, .. }
            | Self::BarrierCancel { key, .. }
            | Self::WatchKey { key, .. }
            | Self::WatchPrefix { prefix: key, .. }
            | Self::Leave { run_id: key }
            | Self::CloseRun { run_id: key }
            | Self::FailRun { run_id: key, .. }
            | Self::RunInfo { run_id: key }
            | Self::Members { run_id: key, .. } => slice::from_ref(key),
            Self::Join(entry, _) => slice::from_ref(&entry.run_id),
            _ => &[],
        }
    }

    pub(super) fn pending(&self) -> PendingRequest {
        let keys = self.keys();
        let names = match self {
            Self::Batch(batch) => batch.keys().map(Into::into).collect(),
            _ => keys.first().map(|&key| key.into()).into_iter().collect(),
        };
        PendingRequest::new(self.operation(), names, keys.len())
    }

    /// Encodes the request for the keys under `scope`.
    ///
    /// # Errors
    /// It exceeds a limit.
    pub(in crate::driver) fn encode(
        &self,
        (scope, options, peer): (&[u8], &NativeClientOptions, &str),
        budget: (Duration, WaitMode),
    ) -> Result<(PendingRequest, EncodedRequest), NativeError> {
        let mut pending = self.pending();
        if let Err((key, loss)) = self.check(scope, options) {
            pending.name(key);
            return Err(pending.error(loss, scope, peer));
        }
        Ok((pending, self.encoded(scope, options.node.as_bytes(), budget)))
    }

    /// Fails with the key or the run in question if the request exceeds a limit.
    fn check(&self, scope: &[u8], options: &NativeClientOptions) -> Result<(), (&[u8], Loss)> {
        match self {
            Self::Txn(txn) => txn.check_keys(scope, &options.limits),
            Self::Batch(batch) => batch.check_keys(scope, &options.limits),
            Self::Read { keys } | Self::LeaseAttach { keys, .. } => {
                check_keys(&mut keys.iter().copied(), scope, &options.limits)
            }
            Self::FailRun { run_id, message } => check_reason(message).map_err(|loss| (*run_id, loss)),
            _ => Ok(()),
        }
    }

    fn encoded(&self, scope: &[u8], node: &[u8], (span, wait_mode): (Duration, WaitMode)) -> EncodedRequest {
        let timeout_ms = wait_millis(span, wait_mode);
        let key = |name| Key::scoped(scope, name);
        let frame = match *self {
            Self::DeletePrefix { prefix } => ClientFrame::DeletePrefix { prefix: key(prefix) },
            Self::Read { keys } => ClientFrame::MultiGet { timeout_ms, keys: Keys::scoped(scope, keys) },
            Self::ListPage { prefix, after, count_max } => {
                let after = if after.is_empty() { Key::raw(b"") } else { key(after) };
                ClientFrame::ListKeys { prefix: key(prefix), after, count_max }
            }
            Self::Txn(txn) => return txn.encode(scope, span),
            Self::Batch(batch) => return batch.encode(scope, span),
            Self::Barrier { key: name, generation, name: participant, participants } => {
                let participant = if participant.is_empty() { node } else { participant };
                let key = key(name);
                ClientFrame::Barrier { key, generation, name: participant, timeout_ms, participants }
            }
            Self::BarrierCancel { key: name, name: participant } => {
                let participant = if participant.is_empty() { node } else { participant };
                ClientFrame::BarrierCancel { key: key(name), name: participant }
            }
            Self::WatchKey { key: name, from_revision } => {
                ClientFrame::WatchKey { key: key(name), from_revision }
            }
            Self::WatchPrefix { prefix, from_revision } => {
                ClientFrame::WatchPrefix { prefix: key(prefix), from_revision }
            }
            Self::LeaseGrant { ttl } => ClientFrame::LeaseGrant { ttl_ms: millis(ttl) },
            Self::LeaseAttach { lease, keys } => {
                ClientFrame::LeaseAttach { lease, keys: Keys::scoped(scope, keys) }
            }
            Self::LeaseRenew { lease } => ClientFrame::LeaseRenew { lease },
            Self::LeaseRevoke { lease } => ClientFrame::LeaseRevoke { lease },
            Self::Join(entry, role) => return EncodedRequest::of_join(self.operation(), &entry, role),
            Self::Leave { run_id } => ClientFrame::Leave { run_id: Key::raw(run_id) },
            Self::CloseRun { run_id } => ClientFrame::Close { run_id: Key::raw(run_id) },
            Self::FailRun { run_id, message } => {
                ClientFrame::Fail { run_id: Key::raw(run_id), message: message.as_bytes() }
            }
            Self::RunInfo { run_id } => ClientFrame::RunInfo { run_id: Key::raw(run_id) },
            Self::Members { run_id, round, first, count_max } => {
                ClientFrame::Members { run_id: Key::raw(run_id), round, first_node_rank: first, count_max }
            }
            Self::Sessions { after } => ClientFrame::Sessions { after, count_max: u32::MAX },
            Self::EndSession { session } => ClientFrame::EndSession { session },
            Self::Close => ClientFrame::Bye {},
        };
        EncodedRequest::new(self.operation(), &frame, span)
    }
}
