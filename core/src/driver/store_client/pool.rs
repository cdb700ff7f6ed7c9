//! The connections of a blocking client: idle ones, those in use, and the way to end what is under way.

use super::wire::Wire;
use crate::driver::resolve::Found;
use crate::driver::socket::shut_down;
use crate::store::call::GetMode;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;
use slab::Slab;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// Told when a connection became free, a name was resolved, or calls were cancelled.
    changed: Condvar,
    idle_max: usize,
    connections_max: usize,
}

#[derive(Debug, Default)]
struct State {
    #[expect(clippy::vec_box, reason = "a connection changes hands at every call, and it is large")]
    idle: Vec<Box<Wire>>,
    /// The sockets of calls under way; `None` while there is no socket yet.
    busy: Slab<Option<RawFd>>,
    /// How often calls were cancelled.
    epoch: u64,
    get_mode: GetMode,
    /// Where the last connection led: further ones need no resolver.
    known: Option<SocketAddr>,
    lookups_begun: u64,
    found: BTreeMap<u64, Option<Found>>,
}

/// A call's place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    slot: usize,
    pub(super) epoch: u64,
}

/// A socket of a call, in the pool's view: [`Pool::cancel`] may shut it down. It goes out of view before it is closed,
/// whatever way it goes, since the number of a closed one may be somebody else's at once.
#[derive(Debug)]
pub(super) struct Shown<'p, S> {
    /// Before the socket, so that it is dropped before.
    view: View<'p>,
    pub(super) socket: S,
}

#[derive(Debug)]
struct View<'p> {
    pool: &'p Pool,
    ticket: Ticket,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        self.pool.set_socket(self.ticket, None);
    }
}

impl<'p, S> Shown<'p, S> {
    /// Brings a socket into view, in the place of one that was there.
    pub(super) fn new(pool: &'p Pool, ticket: Ticket, socket: S) -> Self
    where
        S: AsRawFd,
    {
        pool.set_socket(ticket, Some(socket.as_raw_fd()));
        Self { view: View { pool, ticket }, socket }
    }

    pub(super) fn map<T>(self, change: impl FnOnce(S) -> T) -> Shown<'p, T> {
        Shown { view: self.view, socket: change(self.socket) }
    }

    /// The socket, which stays in view: the caller takes it out.
    pub(super) fn into_inner(self) -> S {
        core::mem::forget(self.view);
        self.socket
    }
}

/// Why a wait in the pool ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Cancelled,
    TimeUp,
}

impl Pool {
    pub(super) fn new(idle_max: usize, connections_max: usize) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { state, changed, idle_max, connections_max: connections_max.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection that was used last, or the right to make one; waits while there are too many.
    pub(super) fn enter(&self, patience: Duration) -> Result<(Ticket, Option<Box<Wire>>, GetMode), Ended> {
        let mut until = None;
        let mut state = self.lock();
        let epoch = state.epoch;
        loop {
            let wire = state.idle.pop();
            if wire.is_some() || state.busy.len() < self.connections_max {
                let slot = state.busy.insert(wire.as_ref().map(|wire| wire.fd()));
                return Ok((Ticket { slot, epoch }, wire, state.get_mode));
            }
            let until = *until.get_or_insert_with(|| from_now(patience));
            state = self.wait(state, until, epoch)?;
        }
    }

    fn wait<'g>(
        &self,
        state: MutexGuard<'g, State>,
        until: Instant,
        epoch: u64,
    ) -> Result<MutexGuard<'g, State>, Ended> {
        let left = until.saturating_duration_since(Instant::now());
        if state.epoch != epoch {
            return Err(Ended::Cancelled);
        }
        if left.is_zero() {
            return Err(Ended::TimeUp);
        }
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Ends a call, and keeps its connection if one is given.
    pub(super) fn leave(&self, ticket: Ticket, wire: Option<Box<Wire>>) {
        let mut state = self.lock();
        state.busy.remove(ticket.slot);
        let surplus = match wire {
            // A connection that was cancelled at the last moment has been shut down.
            Some(wire) if state.epoch == ticket.epoch && state.idle.len() < self.idle_max => {
                state.idle.push(wire);
                None
            }
            other => other,
        };
        let waited_for = state.busy.len() + 1 >= self.connections_max;
        drop(state);
        drop(surplus);
        if waited_for {
            self.changed.notify_one();
        }
    }

    /// Names the socket of a call, or that it has none any more. Call it before a socket is closed.
    pub(super) fn set_socket(&self, ticket: Ticket, fd: Option<RawFd>) {
        self.lock().busy[ticket.slot] = fd;
    }

    pub(super) fn epoch(&self) -> u64 {
        self.lock().epoch
    }

    pub(super) fn is_cancelled(&self, ticket: Ticket) -> bool {
        self.lock().epoch != ticket.epoch
    }

    /// Ends the calls that are under way.
    pub(super) fn cancel(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        for (_, fd) in &state.busy {
            // A socket is closed only after it is out of the table, so the number is still that socket's.
            fd.iter().copied().for_each(shut_down);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Lets time pass, unless the calls are cancelled.
    pub(super) fn pause(&self, epoch: u64, until: Instant) -> Result<(), Ended> {
        let mut state = self.lock();
        loop {
            match self.wait(state, until, epoch) {
                Ok(again) => state = again,
                Err(Ended::TimeUp) => return Ok(()),
                Err(Ended::Cancelled) => return Err(Ended::Cancelled),
            }
        }
    }

    /// From now on, gets are asked for in the way that works with every server.
    pub(super) fn learn_slow_gets(&self) {
        self.lock().get_mode = GetMode::WaitThenGet;
    }

    pub(super) fn forget_idle(&self) {
        let idle = core::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    pub(super) fn known(&self) -> Option<SocketAddr> {
        self.lock().known
    }

    pub(super) fn set_known(&self, address: Option<SocketAddr>) {
        self.lock().known = address;
    }

    pub(super) fn begin_lookup(&self) -> u64 {
        let mut state = self.lock();
        state.lookups_begun += 1;
        let number = state.lookups_begun;
        state.found.insert(number, None);
        number
    }

    pub(super) fn end_lookup(&self, number: u64, found: Found) {
        // Nobody may be waiting for it any more.
        if let Some(place) = self.lock().found.get_mut(&number) {
            *place = Some(found);
        }
        self.changed.notify_all();
    }

    pub(super) fn await_lookup(&self, ticket: Ticket, number: u64, until: Instant) -> Result<Found, Ended> {
        let mut state = self.lock();
        loop {
            if let Some(found) = state.found.get_mut(&number).and_then(Option::take) {
                state.found.remove(&number);
                return Ok(found);
            }
            // The entry goes with the wait: what comes later finds nobody.
            match self.wait(state, until, ticket.epoch) {
                Ok(again) => state = again,
                Err(ended) => {
                    self.lock().found.remove(&number);
                    return Err(ended);
                }
            }
        }
    }

    pub(super) fn idle_count(&self) -> usize {
        self.lock().idle.len()
    }
}

/// The moment `span` from now; far enough ahead when there is no such moment.
pub(super) fn from_now(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(1 << 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells what the pool's view was when it was closed.
    struct Probe<'p>(&'p Pool, &'p Mutex<Vec<Option<RawFd>>>);

    impl AsRawFd for Probe<'_> {
        fn as_raw_fd(&self) -> RawFd {
            // No descriptor: nothing here shuts it down.
            -7
        }
    }

    impl Drop for Probe<'_> {
        fn drop(&mut self) {
            let seen = self.0.lock().busy.iter().next().and_then(|(_, fd)| *fd);
            self.1.lock().expect("no panic").push(seen);
        }
    }

    #[test]
    fn a_socket_is_out_of_view_before_it_is_closed_and_stays_in_view_when_it_is_kept() {
        let (pool, closed) = (Pool::new(1, 1), Mutex::default());
        let (ticket, ..) = pool.enter(Duration::ZERO).expect("room");
        drop(Shown::new(&pool, ticket, Probe(&pool, &closed)));
        let shown = Shown::new(&pool, ticket, Probe(&pool, &closed)).map(|probe| (probe, "and more"));
        let kept = shown.into_inner();
        assert_eq!(pool.lock().busy[ticket.slot], Some(-7));
        pool.set_socket(ticket, None);
        drop(kept);
        assert_eq!(*closed.lock().expect("no panic"), [None, None]);
    }
}
