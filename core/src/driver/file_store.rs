//! Store in a file, which PyTorch's `FileStore`s can share.
//!
//! Each operation opens the file and locks the whole of it (`flock`) while it lasts: exclusively to write, shared to
//! read. It reads what was appended since the last operation, gets the response from the [`Log`], and appends the
//! records that it takes. An incomplete write is undone, and a process that is killed leaves whole records, so no
//! reader meets a torn record of this library. No thread blocks in the system for a lock: a process that hangs while
//! it holds the lock costs the others their deadline and no more.
//!
//! Where much was appended, it is read without the lock (`catching_up`), and only the rest under it: bytes before the
//! end of the file never change.
//!
//! A wait checks the file again every 10 ms at most. What this handle writes, its own waits see at once.

mod catching_up;
mod locked;

use crate::driver::backend::{Backend, BarrierMethod, CANCELLED, Description, NOT_RELEASED, Span};
use crate::driver::call_error::Refusal;
use crate::driver::prelude::*;
use crate::driver::take::Take;
use crate::driver::timeout::{Timeout, Timeouts};
use crate::error::{Cause, ErrorKind, Failure, Operation, Phase};
use crate::limits::{FrameLimits, LogLimits};
use crate::store::call::{Call, Outcome, WaitMode};
use crate::store::file_log::{KEY_SCOPE, Log, LogError, Remains, Reply};
use crate::store::op::Request;
use catching_up::FileAccess;
use locked::{Access, Identity, Locked, removed};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Options of a file store.
#[derive(Clone, Debug, Default)]
pub struct FileStoreOptions {
    /// Number of store objects after which the file is removed: the last one to be closed removes it if at least this
    /// many have been closed by then. `None`: the file stays.
    pub world_size: Option<u64>,
    /// Default timeouts of calls.
    pub timeouts: Timeouts,
    /// Limits on requests.
    pub frame: FrameLimits,
    /// Limits on what is read from the file.
    pub log: LogLimits,
    /// Ends the opening. The calls of the store have tokens of their own.
    pub token: CancelToken,
}

/// Store in a file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    peer: Box<str>,
    options: FileStoreOptions,
    clock: Clock,
    /// Stays open as long as the store, so that no other file can get the same inode number.
    _anchor: Arc<File>,
    identity: Identity,
    state: Mutex<FileState>,
    /// Counts the writes of this handle and the cancellations. Locked for moments only, never during file access.
    wakes: Mutex<u64>,
    /// Signalled when `wakes` changes.
    changed: Condvar,
}

#[derive(Debug)]
struct FileState {
    log: Log,
    /// Records to be written.
    records: Vec<u8>,
}

/// First and longest pause of a wait.
const PAUSES: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(10)];
/// Timeout of closing a store.
const CLOSE_MAX: Duration = Duration::from_secs(5);

impl FileStore {
    /// Opens the file and counts this store. Creates the file if it is missing.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub fn open(path: &Path, options: FileStoreOptions) -> Result<Self, CallError> {
        Self::open_as(path, options, Access::Create, None)
    }

    /// Opens the file; if `expected` is given, only the file with this identity.
    fn open_as(
        path: &Path,
        options: FileStoreOptions,
        access: Access,
        expected: Option<Identity>,
    ) -> Result<Self, CallError> {
        let (clock, peer) = (Clock::new(), path.to_string_lossy());
        let began = clock.now();
        let (after, wait_mode) = options.timeouts.wait_budget(Timeout::Default);
        let span = Span { began, deadline: began + after, wait_mode, token: &options.token };
        let fail = |failure: Failure| {
            let failure = Failure { elapsed: clock.now().since(began), ..failure };
            CallError::new(Operation::Open, (None, 0), &peer, failure)
        };
        let file_access = FileAccess { clock: &clock, span };
        let state = Mutex::new(FileState::new(options.log));
        let (locked, mut held) = file_access.begin(path, access, expected, &state).map_err(fail)?;
        let identity = locked.identity();
        let FileState { log, records, .. } = &mut *held;
        log.enter(records).map_err(log_failure).map_err(fail)?;
        // Nothing can fail after this, so a store that was not opened is not counted.
        held.append(&locked).map_err(fail)?;
        drop(held);
        let _anchor = locked.unlock();
        let (path, peer) = (path.into(), peer.to_string().into());
        Ok(Self {
            path,
            peer,
            options,
            clock,
            _anchor,
            identity,
            state,
            wakes: Mutex::new(0),
            changed: Condvar::new(),
        })
    }

    fn drive(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Failure> {
        call.check_limits(&self.options.frame).map_err(|limit| Failure::limit(Phase::Writing, limit))?;
        let request = match call {
            Call::Ping => {
                return self.file_access(&Request::NumKeys, Access::Read, span, take).map(|_| Outcome::Alive);
            }
            Call::Store(request, _) => request,
        };
        let (access, waits) = match request {
            Request::Get { .. } | Request::Wait { .. } | Request::MultiGet { .. } => {
                (Access::Read, call.wait_mode() == WaitMode::Wait)
            }
            Request::Check { .. } | Request::NumKeys | Request::ListKeys => (Access::Read, false),
            _ => (Access::Write, false),
        };
        let (mut pause, longest) = (PAUSES[0], PAUSES[1]);
        let mut wakes = *self.lock_wakes();
        let (mut outcome, mut seen) = self.file_access(request, access, span, take)?;
        while outcome == Outcome::Missing && waits {
            let left = span.deadline.since(self.clock.now());
            if left.is_zero() {
                break;
            }
            if span.token.is_cancelled() {
                return Err(CANCELLED);
            }
            let waits = |now: &mut u64| *now == wakes;
            let waited = self.changed.wait_timeout_while(self.lock_wakes(), pause.min(left), waits);
            wakes = *waited.unwrap_or_else(PoisonError::into_inner).0;
            pause = longest.min(pause * 2);
            if self.has_grown(seen)? {
                (outcome, seen) = self.file_access(request, access, span, take)?;
            }
        }
        Ok(outcome)
    }

    fn lock_wakes(&self) -> MutexGuard<'_, u64> {
        self.wakes.locked()
    }

    /// Returns whether the file has grown. Reads its length without the lock, which would block writers.
    fn has_grown(&self, seen: u64) -> Result<bool, Failure> {
        let file = Access::Read.open(&self.path)?;
        let (identity, bytes) = locked::identity_and_length(&file)?;
        Ok(identity != self.identity || bytes != seen)
    }

    /// Reads or changes the file once under its lock. Also returns the length of the file at that time.
    fn file_access(
        &self,
        request: &Request<'_>,
        access: Access,
        span: Span<'_>,
        take: &mut dyn Take,
    ) -> Result<(Outcome, u64), Failure> {
        let file_access = FileAccess { clock: &self.clock, span };
        let (locked, mut state) = file_access.begin(&self.path, access, Some(self.identity), &self.state)?;
        let outcome = state.answer(request, take)?;
        if !state.records.is_empty()
            && let Err(failure) = state.append(&locked)
        {
            take.reset();
            return Err(failure);
        }
        let (seen, has_written) = (state.log.offset(), state.log.offset() > locked.bytes());
        drop(state);
        drop(locked);
        if has_written {
            self.wake();
        }
        Ok((outcome, seen))
    }

    /// Counts this store out, and removes the file if no store uses it any more. No limit applies.
    fn close(&self) -> Result<(), Failure> {
        lock_state(&self.state).log.keep_counters_only();
        let (began, token) = (self.clock.now(), CancelToken::new());
        let span = Span { began, deadline: began + CLOSE_MAX, wait_mode: WaitMode::Wait, token: &token };
        let file_access = FileAccess { clock: &self.clock, span };
        let (locked, mut state) =
            file_access.begin(&self.path, Access::Write, Some(self.identity), &self.state)?;
        let FileState { log, records, .. } = &mut *state;
        let remains = log.leave(self.options.world_size, records).map_err(log_failure)?;
        state.append(&locked)?;
        match remains {
            Remains::Nothing => std::fs::remove_file(&self.path).map_err(|error| removed(&error)),
            Remains::File => Ok(()),
        }
    }
}

fn lock_state(state: &Mutex<FileState>) -> MutexGuard<'_, FileState> {
    // After a panic, the log is still valid up to its offset.
    state.locked()
}

impl FileState {
    const fn new(limits: LogLimits) -> Self {
        Self { log: Log::new(limits), records: Vec::new() }
    }

    /// Answers a request, and leaves in `records` what must be written.
    fn answer(&mut self, request: &Request<'_>, take: &mut dyn Take) -> Result<Outcome, Failure> {
        let reply = self.log.answer(request, &mut self.records).map_err(log_failure)?;
        Ok(match reply {
            Reply::Applied => Outcome::Applied,
            Reply::Number(number) => Outcome::Number(number),
            Reply::Value(value) => {
                take.whole(&value);
                Outcome::Value
            }
            Reply::Values(values) => {
                take.count(values.len() as u64);
                values.iter().for_each(|value| take.whole(value));
                Outcome::Values(values.len() as u64)
            }
            Reply::Ready if matches!(request, Request::Wait { .. }) => Outcome::Released,
            Reply::Ready => Outcome::Ready,
            Reply::NotReady if matches!(request, Request::Check { .. }) => Outcome::NotReady,
            Reply::NotReady => Outcome::Missing,
        })
    }

    /// Writes all of `records` at the end of the file, or none.
    fn append(&mut self, locked: &Locked) -> Result<(), Failure> {
        let offset = self.log.offset();
        locked.append(&self.records, offset)?;
        let end = offset + self.records.len() as u64;
        let replayed = self.log.replay(&self.records, end).map_err(log_failure);
        self.records.clear();
        self.records.shrink_to(locked::CHUNK_BYTES);
        replayed.map(drop)
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        // A missing or broken file needs no count any more, and there is no caller to return an error to.
        self.close().ok();
    }
}

impl Backend for FileStore {
    fn description(&self) -> Description<'_> {
        Description {
            scope: KEY_SCOPE,
            peer: &self.peer,
            kind: "a store in a file",
            endpoint: None,
            timeouts: self.options.timeouts,
            clock: self.clock,
            barrier_method: BarrierMethod::ByKeys,
        }
    }

    fn perform(&self, call: &Call<'_>, span: Span<'_>, take: &mut dyn Take) -> Result<Outcome, Refusal> {
        self.drive(call, span, take).map_err(Refusal::from).map_err(|refusal| {
            match (refusal.failure.kind, call) {
                (ErrorKind::Unsupported, Call::Store(Request::Barrier { .. } | Request::CancelWait, _)) => {
                    Failure { cause: Cause::NoOperation, ..refusal.failure }.into()
                }
                _ => refusal,
            }
        })
    }

    fn duplicate(&self, token: &CancelToken) -> Result<Arc<dyn Backend>, CallError> {
        let options = FileStoreOptions { token: token.clone(), ..self.options.clone() };
        // A file that was removed or replaced is another store, so the file is not created again.
        Ok(Arc::new(Self::open_as(&self.path, options, Access::Write, Some(self.identity))?))
    }

    fn wake(&self) {
        *self.lock_wakes() += 1;
        self.changed.notify_all();
    }
}

fn log_failure(error: LogError) -> Failure {
    let (kind, cause) = match error {
        LogError::Torn(offset) => (ErrorKind::Corrupt, Cause::TornRecord(offset)),
        LogError::Nameless(offset) => (ErrorKind::Corrupt, Cause::NamelessRecord(offset)),
        LogError::Limit(limit) => (ErrorKind::LimitExceeded, Cause::Limit(limit)),
        LogError::NotANumber => (ErrorKind::InvalidArgument, Cause::NotANumber),
        LogError::Unsupported => (ErrorKind::Unsupported, Cause::NoQueues),
    };
    Failure::new(kind, Phase::Reading, cause)
}

#[cfg(test)]
mod tests;
