//! The connections of a blocking client: idle ones, those in use, and the way to end what is under way.

use super::wire::Wire;
use crate::driver::clock::from_now;
use crate::driver::resolve::Found;
use crate::driver::socket::shut_down;
use crate::limits::ClientLimits;
use crate::store::call::GetMode;
use alloc::boxed::Box;
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
    /// Told when a connection became free: one for each kind of call, since one kind cannot always use what is free.
    freed_for_brief: Condvar,
    freed_for_long: Condvar,
    /// Told when a name was resolved, or calls were cancelled.
    changed: Condvar,
    limits: ClientLimits,
}

#[derive(Debug, Default)]
struct State {
    #[expect(clippy::vec_box, reason = "a connection changes hands at every call, and it is large")]
    idle: Vec<Box<Wire>>,
    busy: Slab<Busy>,
    /// How many of them stay long.
    long: usize,
    /// Calls that wait for a place.
    queued: usize,
    /// How often calls were cancelled.
    epoch: u64,
    get_mode: GetMode,
    /// Where the last connection led: further ones need no resolver.
    known: Option<SocketAddr>,
    lookup: Lookup,
}

/// A call under way.
#[derive(Debug)]
struct Busy {
    /// `None` while there is no socket yet.
    socket: Option<RawFd>,
    stay: Stay,
}

/// The look-up of the host's name: there is one at a time, and whoever needs one shares it.
#[derive(Debug, Default)]
struct Lookup {
    begun: u64,
    ended: u64,
    /// What the last one found.
    found: Option<Found>,
}

/// How long a call keeps its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// It is answered at once.
    Brief,
    /// Until something happens at the server.
    Long,
}

/// A call that may go on.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) ticket: Ticket,
    /// A connection that was idle; `None`: the right to make one.
    pub(super) idle: Option<Box<Wire>>,
    pub(super) mode: GetMode,
    /// It waited for its place, so time has passed.
    pub(super) waited: bool,
}

/// The next look-up to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// The caller begins it.
    Begins(u64),
    /// It is under way.
    Shares(u64),
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
pub(super) struct Registration<'p, S> {
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

impl<'p, S> Registration<'p, S> {
    /// Brings a socket into view, in the place of one that was there.
    pub(super) fn new(pool: &'p Pool, ticket: Ticket, socket: S) -> Self
    where
        S: AsRawFd,
    {
        pool.set_socket(ticket, Some(socket.as_raw_fd()));
        Self { view: View { pool, ticket }, socket }
    }

    pub(super) fn map<T>(self, change: impl FnOnce(S) -> T) -> Registration<'p, T> {
        Registration { view: self.view, socket: change(self.socket) }
    }

    /// The socket, which stays in view: the caller takes it out.
    pub(super) fn into_inner(self) -> S {
        core::mem::forget(self.view);
        self.socket
    }
}

/// The epoch of a pool that is new.
pub(super) const NEW_EPOCH: u64 = 0;

/// Why a wait in the pool ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Cancelled,
    TimeUp,
}

impl Pool {
    pub(super) fn new(limits: ClientLimits) -> Self {
        let [freed_for_brief, freed_for_long, changed] = [const { Condvar::new() }; 3];
        Self { state: Mutex::default(), freed_for_brief, freed_for_long, changed, limits }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection that was used last, or the right to make one; waits while there are too many. Of several
    /// calls that are one, the later ones name the epoch of the first.
    pub(super) fn enter(&self, stay: Stay, timeout: Duration, epoch: Option<u64>) -> Result<Entered, Ended> {
        let mut until = None;
        let mut state = self.lock();
        let epoch = epoch.unwrap_or(state.epoch);
        loop {
            if state.epoch == epoch && self.has_capacity(&state, stay) {
                let idle = state.idle.pop();
                let socket = idle.as_ref().map(|wire| wire.fd());
                state.long += usize::from(stay == Stay::Long);
                let ticket = Ticket { slot: state.busy.insert(Busy { socket, stay }), epoch };
                return Ok(Entered { ticket, idle, mode: state.get_mode, waited: until.is_some() });
            }
            let left = state.left(*until.get_or_insert_with(|| from_now(timeout)), epoch)?;
            let freed = match stay {
                Stay::Brief => &self.freed_for_brief,
                Stay::Long => &self.freed_for_long,
            };
            state.queued += 1;
            state = freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.queued -= 1;
        }
    }

    /// Calls that stay long leave a connection to the others, which may be what they wait for.
    fn has_capacity(&self, state: &State, stay: Stay) -> bool {
        let fits = match stay {
            Stay::Brief => true,
            Stay::Long => state.long < self.limits.waiting_connections_max(),
        };
        fits && state.busy.len() < self.limits.connections_max()
    }

    fn wait<'g>(
        &self,
        state: MutexGuard<'g, State>,
        until: Instant,
        epoch: u64,
    ) -> Result<MutexGuard<'g, State>, Ended> {
        let left = state.left(until, epoch)?;
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Ends a call, and keeps its connection if one is given.
    pub(super) fn leave(&self, ticket: Ticket, wire: Option<Box<Wire>>) {
        let mut state = self.lock();
        let left = state.busy.remove(ticket.slot);
        state.long -= usize::from(left.stay == Stay::Long);
        let surplus = match wire {
            // A connection that was cancelled at the last moment has been shut down.
            Some(wire)
                if state.epoch == ticket.epoch && state.idle.len() < self.limits.idle_connections_max =>
            {
                state.idle.push(wire);
                None
            }
            other => other,
        };
        let waited_for = state.queued > 0;
        drop(state);
        drop(surplus);
        if waited_for {
            // One place became free; who comes too late for it waits on.
            self.freed_for_brief.notify_one();
            self.freed_for_long.notify_one();
        }
    }

    /// Names the socket of a call, or that it has none any more. Call it before a socket is closed.
    pub(super) fn set_socket(&self, ticket: Ticket, fd: Option<RawFd>) {
        self.lock().busy[ticket.slot].socket = fd;
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
        for (_, busy) in &state.busy {
            // A socket is closed only after it is out of the table, so the number is still that socket's.
            busy.socket.into_iter().for_each(shut_down);
        }
        drop(state);
        [&self.freed_for_brief, &self.freed_for_long, &self.changed]
            .into_iter()
            .for_each(Condvar::notify_all);
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

    /// Joins the look-up that is under way, or makes it the caller's to begin one.
    pub(super) fn join_lookup(&self) -> Joined {
        let lookup = &mut self.lock().lookup;
        if lookup.begun > lookup.ended {
            return Joined::Shares(lookup.begun);
        }
        lookup.begun += 1;
        Joined::Begins(lookup.begun)
    }

    pub(super) fn end_lookup(&self, found: Found) {
        let lookup = &mut self.lock().lookup;
        (lookup.ended, lookup.found) = (lookup.begun, Some(found));
        self.changed.notify_all();
    }

    /// What the look-up of this number found, or a later one.
    pub(super) fn await_lookup(&self, ticket: Ticket, number: u64, until: Instant) -> Result<Found, Ended> {
        let mut state = self.lock();
        loop {
            match &state.lookup {
                Lookup { ended, found: Some(found), .. } if *ended >= number => return Ok(found.clone()),
                _ => state = self.wait(state, until, ticket.epoch)?,
            }
        }
    }

    pub(super) fn idle_count(&self) -> usize {
        self.lock().idle.len()
    }
}

impl State {
    /// The time until then, unless the calls of that epoch are cancelled.
    fn left(&self, until: Instant, epoch: u64) -> Result<Duration, Ended> {
        let left = until.saturating_duration_since(Instant::now());
        match (self.epoch == epoch, left.is_zero()) {
            (false, _) => Err(Ended::Cancelled),
            (true, true) => Err(Ended::TimeUp),
            (true, false) => Ok(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    /// Longer than anything here takes; a test that needs it has failed.
    const SOON: Duration = Duration::from_secs(20);

    /// Two connections at most.
    fn pool() -> Pool {
        Pool::new(ClientLimits { connections_max: 1, ..ClientLimits::default() })
    }

    fn enter(pool: &Pool, stay: Stay) -> Ticket {
        pool.enter(stay, Duration::ZERO, None).expect("room").ticket
    }

    fn until_queued(pool: &Pool, count: usize) {
        let until = from_now(SOON);
        while pool.lock().queued < count {
            assert!(Instant::now() < until, "nobody waits for a place");
            thread::yield_now();
        }
    }

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
            let seen = self.0.lock().busy.iter().next().and_then(|(_, busy)| busy.socket);
            self.1.lock().expect("no panic").push(seen);
        }
    }

    #[test]
    fn a_socket_is_out_of_view_before_it_is_closed_and_stays_in_view_when_it_is_kept() {
        let (pool, closed) = (pool(), Mutex::default());
        let ticket = enter(&pool, Stay::Brief);
        drop(Registration::new(&pool, ticket, Probe(&pool, &closed)));
        let pooled = Registration::new(&pool, ticket, Probe(&pool, &closed)).map(|probe| (probe, "and more"));
        let kept = pooled.into_inner();
        assert_eq!(pool.lock().busy[ticket.slot].socket, Some(-7));
        pool.set_socket(ticket, None);
        drop(kept);
        assert_eq!(*closed.lock().expect("no panic"), [None, None]);
    }

    #[test]
    fn calls_that_stay_long_leave_a_place_to_the_others() {
        let pool = pool();
        let long = enter(&pool, Stay::Long);
        assert_eq!(
            pool.enter(Stay::Long, Duration::ZERO, None).expect_err("it is the others'"),
            Ended::TimeUp
        );
        let brief = enter(&pool, Stay::Brief);
        assert_eq!(pool.enter(Stay::Brief, Duration::ZERO, None).expect_err("both are taken"), Ended::TimeUp);
        pool.leave(long, None);
        let second = enter(&pool, Stay::Brief);
        assert_eq!(pool.enter(Stay::Long, Duration::ZERO, None).expect_err("both are taken"), Ended::TimeUp);
        pool.leave(brief, None);
        pool.leave(second, None);
        enter(&pool, Stay::Long);
    }

    #[test]
    fn a_place_that_becomes_free_is_told_to_those_who_wait_for_one() {
        let pool = pool();
        let taken = [enter(&pool, Stay::Long), enter(&pool, Stay::Brief)];
        let (event, notify) = mpsc::channel();
        thread::scope(|scope| {
            // They wait for something else, and a word to them is no word to the others.
            for _ in 0..8 {
                let event = event.clone();
                let pool = &pool;
                scope.spawn(move || {
                    let epoch = pool.epoch();
                    event.send(()).expect("the test goes on");
                    pool.pause(epoch, from_now(2 * SOON))
                });
            }
            (0..8).for_each(|_| notify.recv_timeout(SOON).expect("it began"));
            let waiters: Vec<_> = [Stay::Long, Stay::Brief, Stay::Long, Stay::Brief]
                .map(|stay| {
                    let pool = &pool;
                    scope.spawn(move || {
                        pool.enter(stay, SOON, None).map(|entered| {
                            assert!(entered.waited);
                            pool.leave(entered.ticket, None);
                        })
                    })
                })
                .into();
            until_queued(&pool, 4);
            taken.into_iter().for_each(|ticket| pool.leave(ticket, None));
            let ended: Vec<_> = waiters.into_iter().map(thread::ScopedJoinHandle::join).collect();
            pool.cancel();
            assert!(ended.into_iter().all(|ended| ended.expect("no panic").is_ok()));
        });
    }

    #[test]
    fn cancelling_ends_the_wait_for_a_place() {
        let pool = pool();
        let taken = enter(&pool, Stay::Long);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.enter(Stay::Long, SOON, None).map(drop));
            until_queued(&pool, 1);
            pool.cancel();
            pool.leave(taken, None);
            assert_eq!(waiter.join().expect("no panic"), Err(Ended::Cancelled));
        });
    }

    #[test]
    fn cancelling_ends_a_call_of_several_between_them() {
        let pool = pool();
        let epoch = Some(pool.epoch());
        let first = pool.enter(Stay::Brief, Duration::ZERO, epoch).expect("room").ticket;
        pool.leave(first, None);
        pool.cancel();
        assert_eq!(pool.enter(Stay::Long, SOON, epoch).expect_err("it is over"), Ended::Cancelled);
        enter(&pool, Stay::Long);
    }

    #[test]
    fn one_look_up_serves_all_who_need_it() {
        let pool = pool();
        let ticket = enter(&pool, Stay::Brief);
        assert_eq!(pool.join_lookup(), Joined::Begins(1));
        assert_eq!(pool.join_lookup(), Joined::Shares(1));
        let found = |port| Ok(Vec::from([SocketAddr::from(([127, 0, 0, 1], port))]));
        thread::scope(|scope| {
            let waiters = [(); 3].map(|()| scope.spawn(|| pool.await_lookup(ticket, 1, from_now(SOON))));
            pool.end_lookup(found(1));
            for waiter in waiters {
                assert_eq!(waiter.join().expect("no panic"), Ok(found(1)));
            }
        });
        assert_eq!(pool.await_lookup(ticket, 1, Instant::now()), Ok(found(1)));
        assert_eq!(pool.join_lookup(), Joined::Begins(2), "a name may lead elsewhere by now");
        assert_eq!(pool.await_lookup(ticket, 2, Instant::now()), Err(Ended::TimeUp));
        assert_eq!(pool.join_lookup(), Joined::Shares(2), "whoever gave up leaves it to the others");
    }
}
