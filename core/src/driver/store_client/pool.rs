//! Connections of a blocking client: idle ones, those in use, and the cancellation of calls in progress.

use super::wire::Wire;
use crate::driver::backend::CANCELLED;
use crate::driver::clock::from_now;
use crate::driver::prelude::*;
use crate::driver::resolve::Found;
use crate::driver::socket::shut_down;
use crate::error::{Failure, LimitError, Phase};
use crate::limits::ClientLimits;
use crate::node::client::{Resolution, ServerProfile};
use crate::store::call::GetMode;
use core::net::SocketAddr;
use core::time::Duration;
use slab::Slab;
use std::os::fd::AsRawFd;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<PoolState>,
    /// Signalled when a connection becomes free: one for each kind of call, since one kind cannot always use what is
    /// free.
    freed_for_brief: Condvar,
    freed_for_long: Condvar,
    /// Signalled when a name was resolved.
    found: Condvar,
    limits: ClientLimits,
}

#[derive(Debug, Default)]
struct PoolState {
    #[expect(clippy::vec_box, reason = "a connection changes hands at every call, and it is large")]
    idle: Vec<Box<Wire>>,
    busy: Slab<Busy>,
    /// Number of busy entries with [`HoldTime::Long`].
    long: usize,
    /// Number of calls that wait for a slot.
    queued: usize,
    profile: ServerProfile,
    /// Number of look-ups of the host's name that have ended, and the result of the last one.
    lookups_ended: u64,
    found: Option<Found>,
}

/// Call in progress.
#[derive(Debug)]
struct Busy {
    /// `None` while there is no socket yet.
    socket: Option<RawFd>,
    hold_time: HoldTime,
    token: CancelToken,
    /// Whether the socket was shut down because the call was cancelled.
    is_shut_down: bool,
}

/// Time for which a call holds its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldTime {
    /// The server responds at once.
    Brief,
    /// The call lasts until something happens at the server.
    Long,
}

/// Result of entering the pool.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) ticket: Ticket,
    /// Idle connection; `None`: the caller may open one.
    pub(super) idle: Option<Box<Wire>>,
    pub(super) mode: GetMode,
    /// Whether the call waited for its slot, so that time has passed.
    pub(super) waited: bool,
}

/// A call's slot in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(usize);

/// Socket of a call, registered in the pool: [`Pool::wake`] may shut it down. The registration always ends before the
/// socket is closed, since the number of a closed descriptor may be in use again at once.
#[derive(Debug)]
pub(super) struct Registration<'p, S: AsRawFd> {
    pool: &'p Pool,
    ticket: Ticket,
    pub(super) socket: Option<S>,
}

impl<'p, S: AsRawFd> Registration<'p, S> {
    /// Makes a registration without a socket.
    pub(super) const fn new(pool: &'p Pool, ticket: Ticket) -> Self {
        Self { pool, ticket, socket: None }
    }

    /// Registers a socket, or none, in place of the one before, which is closed.
    pub(super) fn set(&mut self, socket: Option<S>) {
        self.pool.set_socket(self.ticket, socket.as_ref().map(AsRawFd::as_raw_fd));
        self.socket = socket;
    }

    /// Returns the socket, which stays registered: the caller must end the registration.
    pub(super) fn into_socket(mut self) -> Option<S> {
        self.socket.take()
    }
}

impl<S: AsRawFd> Drop for Registration<'_, S> {
    fn drop(&mut self) {
        if self.socket.is_some() {
            self.set(None);
        }
    }
}

/// Reason why a wait in the pool ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Cancelled,
    TimeUp,
}

impl Pool {
    pub(super) fn new(limits: ClientLimits) -> Self {
        let [freed_for_brief, freed_for_long, found] = [const { Condvar::new() }; 3];
        Self { state: Mutex::default(), freed_for_brief, freed_for_long, found, limits }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No code that holds the lock panics in the middle of a change.
        self.state.locked()
    }

    /// Takes the connection that was used last, or the right to open one; waits while there are too many.
    ///
    /// # Errors
    /// The call was cancelled, or as many connections as the limit allows were in use until the timeout.
    pub(super) fn enter(
        &self,
        hold_time: HoldTime,
        timeout: Duration,
        token: &CancelToken,
    ) -> Result<Entered, Failure> {
        let mut until = None;
        let mut state = self.lock();
        loop {
            if !token.is_cancelled() && self.has_capacity(&state, hold_time) {
                let idle = state.idle.pop();
                let socket = idle.as_ref().map(|wire| wire.socket().as_raw_fd());
                state.long += usize::from(hold_time == HoldTime::Long);
                let busy = Busy { socket, hold_time, token: token.clone(), is_shut_down: false };
                let ticket = Ticket(state.busy.insert(busy));
                return Ok(Entered { ticket, idle, mode: state.profile.get_mode, waited: until.is_some() });
            }
            let left = left(*until.get_or_insert_with(|| from_now(timeout)), token);
            let left = left.map_err(|ended| match ended {
                Ended::Cancelled => CANCELLED,
                Ended::TimeUp => {
                    let count = self.limits.connections_max() as u64;
                    Failure::limit(Phase::Connecting, LimitError::Operations { count })
                }
            })?;
            let freed = match hold_time {
                HoldTime::Brief => &self.freed_for_brief,
                HoldTime::Long => &self.freed_for_long,
            };
            state.queued += 1;
            state = freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.queued -= 1;
        }
    }

    /// Returns whether a slot is free for this kind of call. Long calls leave a connection to the others, which may
    /// be what they wait for.
    fn has_capacity(&self, state: &PoolState, hold_time: HoldTime) -> bool {
        let fits = match hold_time {
            HoldTime::Brief => true,
            HoldTime::Long => state.long < self.limits.waiting_connections_max(),
        };
        fits && state.busy.len() < self.limits.connections_max()
    }

    /// Ends a call, and keeps its connection if one is given.
    pub(super) fn leave(&self, ticket: Ticket, wire: Option<Box<Wire>>) {
        let mut state = self.lock();
        let left = state.busy.remove(ticket.0);
        state.long -= usize::from(left.hold_time == HoldTime::Long);
        let surplus = match wire {
            Some(wire) if !left.is_shut_down && state.idle.len() < self.limits.idle_connections_max => {
                state.idle.push(wire);
                None
            }
            other => other,
        };
        let waited_for = state.queued > 0;
        drop(state);
        drop(surplus);
        if waited_for {
            // One slot became free. A call that finds it taken goes on waiting.
            self.freed_for_brief.notify_one();
            self.freed_for_long.notify_one();
        }
    }

    /// Sets the socket of a call, or removes it. Must be called before a socket is closed.
    pub(super) fn set_socket(&self, ticket: Ticket, fd: Option<RawFd>) {
        self.lock().busy[ticket.0].socket = fd;
    }

    /// Wakes the waiting calls, and ends those in progress whose tokens are cancelled.
    pub(super) fn wake(&self) {
        let mut state = self.lock();
        for (_, busy) in state.busy.iter_mut().filter(|(_, busy)| busy.token.is_cancelled()) {
            busy.is_shut_down |= busy.socket.is_some();
            // A socket is removed from the table before it is closed, so the number is still that socket's.
            busy.socket.into_iter().for_each(shut_down);
        }
        drop(state);
        [&self.freed_for_brief, &self.freed_for_long, &self.found].into_iter().for_each(Condvar::notify_all);
    }

    /// Sets the mode in which later calls begin.
    pub(super) fn set_get_mode(&self, mode: GetMode) {
        self.lock().profile.get_mode = mode;
    }

    pub(super) fn forget_idle(&self) {
        let idle = core::mem::take(&mut self.lock().idle);
        drop(idle);
    }

    /// Notes the address that a connection has, or that none could be established.
    pub(super) fn dialled(&self, address: Option<SocketAddr>) {
        self.lock().profile.dialled(address);
    }

    /// Returns the address that worked before, or the result of a look-up, which `begin` starts if none is in progress.
    pub(super) fn addresses(
        &self,
        token: &CancelToken,
        until: Instant,
        begin: impl FnOnce(),
    ) -> Result<Found, Ended> {
        let mut state = self.lock();
        let number = state.lookups_ended + 1;
        match state.profile.resolve() {
            Resolution::Known(address) => return Ok(Ok(Vec::from([address]))),
            Resolution::Awaited => {}
            Resolution::LookUp => {
                drop(state);
                begin();
                state = self.lock();
            }
        }
        loop {
            match &state.found {
                Some(found) if state.lookups_ended >= number => return Ok(found.clone()),
                _ => {
                    let left = left(until, token)?;
                    state = self.found.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    pub(super) fn end_lookup(&self, found: Found) {
        let mut state = self.lock();
        state.profile.looked_up();
        (state.lookups_ended, state.found) = (state.lookups_ended + 1, Some(found));
        self.found.notify_all();
    }

    pub(super) fn idle_count(&self) -> usize {
        self.lock().idle.len()
    }
}

/// Returns the time left until `until`, unless the call is cancelled.
fn left(until: Instant, token: &CancelToken) -> Result<Duration, Ended> {
    let left = until.saturating_duration_since(Instant::now());
    match (token.is_cancelled(), left.is_zero()) {
        (true, _) => Err(Ended::Cancelled),
        (false, true) => Err(Ended::TimeUp),
        (false, false) => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use core::cell::Cell;
    use std::sync::mpsc;
    use std::thread;

    /// Longer than anything here takes. A test that needs it has failed.
    const SOON: Duration = Duration::from_secs(20);

    /// Returns a pool of at most two connections.
    fn pool() -> Pool {
        Pool::new(ClientLimits { connections_max: 1, ..ClientLimits::default() })
    }

    fn enter(pool: &Pool, hold_time: HoldTime) -> Ticket {
        pool.enter(hold_time, Duration::ZERO, &CancelToken::new()).expect("capacity").ticket
    }

    fn until_queued(pool: &Pool, count: usize) {
        let until = from_now(SOON);
        while pool.lock().queued < count {
            assert!(Instant::now() < until, "no call waits for a slot");
            thread::yield_now();
        }
    }

    /// Records which socket was registered when this was closed.
    struct Probe<'p>(&'p Pool, &'p Mutex<Vec<Option<RawFd>>>);

    impl AsRawFd for Probe<'_> {
        fn as_raw_fd(&self) -> RawFd {
            // Not a descriptor: nothing here shuts it down.
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
        let ticket = enter(&pool, HoldTime::Brief);
        let registered = || {
            let mut registration = Registration::new(&pool, ticket);
            registration.set(Some(Probe(&pool, &closed)));
            registration
        };
        drop(registered());
        let kept = registered().into_socket();
        assert_eq!(pool.lock().busy[ticket.0].socket, Some(-7));
        pool.set_socket(ticket, None);
        drop(kept);
        assert_eq!(*closed.lock().expect("no panic"), [None, None]);
    }

    #[test]
    fn calls_that_stay_long_leave_a_place_to_the_others() {
        let pool = pool();
        let long = enter(&pool, HoldTime::Long);
        assert_eq!(
            pool.enter(HoldTime::Long, Duration::ZERO, &CancelToken::new())
                .expect_err("it is the others'")
                .kind,
            ErrorKind::LimitExceeded
        );
        let brief = enter(&pool, HoldTime::Brief);
        assert_eq!(
            pool.enter(HoldTime::Brief, Duration::ZERO, &CancelToken::new())
                .expect_err("both are taken")
                .kind,
            ErrorKind::LimitExceeded
        );
        pool.leave(long, None);
        let second = enter(&pool, HoldTime::Brief);
        assert_eq!(
            pool.enter(HoldTime::Long, Duration::ZERO, &CancelToken::new()).expect_err("both are taken").kind,
            ErrorKind::LimitExceeded
        );
        pool.leave(brief, None);
        pool.leave(second, None);
        enter(&pool, HoldTime::Long);
    }

    #[test]
    fn a_place_that_becomes_free_is_told_to_those_who_wait_for_one() {
        let pool = pool();
        let taken = [enter(&pool, HoldTime::Long), enter(&pool, HoldTime::Brief)];
        let (event, notify) = mpsc::channel();
        thread::scope(|scope| {
            // They wait for another condition, and notifying them must not use up the wake-up of the others.
            for _ in 0..8 {
                let event = event.clone();
                let pool = &pool;
                scope.spawn(move || {
                    event.send(()).expect("the test goes on");
                    pool.addresses(&CancelToken::new(), from_now(2 * SOON), || {})
                });
            }
            (0..8).for_each(|_| notify.recv_timeout(SOON).expect("it began"));
            let waiters: Vec<_> = [HoldTime::Long, HoldTime::Brief, HoldTime::Long, HoldTime::Brief]
                .map(|hold_time| {
                    let pool = &pool;
                    scope.spawn(move || {
                        pool.enter(hold_time, SOON, &CancelToken::new()).map(|entered| {
                            assert!(entered.waited);
                            pool.leave(entered.ticket, None);
                        })
                    })
                })
                .into();
            until_queued(&pool, 4);
            taken.into_iter().for_each(|ticket| pool.leave(ticket, None));
            let ended: Vec<_> = waiters.into_iter().map(thread::ScopedJoinHandle::join).collect();
            pool.end_lookup(Ok(Vec::new()));
            assert!(ended.into_iter().all(|ended| ended.expect("no panic").is_ok()));
        });
    }

    #[test]
    fn cancelling_ends_the_wait_for_a_place() {
        let (pool, token) = (pool(), CancelToken::new());
        let taken = enter(&pool, HoldTime::Long);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.enter(HoldTime::Long, SOON, &token).map(drop));
            until_queued(&pool, 1);
            token.cancel();
            pool.wake();
            pool.leave(taken, None);
            assert_eq!(waiter.join().expect("no panic"), Err(CANCELLED));
        });
    }

    #[test]
    fn cancelling_ends_a_call_of_several_between_them() {
        let pool = pool();
        let token = CancelToken::new();
        let first = pool.enter(HoldTime::Brief, Duration::ZERO, &token).expect("capacity").ticket;
        pool.leave(first, None);
        token.cancel();
        assert_eq!(pool.enter(HoldTime::Long, SOON, &token).expect_err("it is over"), CANCELLED);
        enter(&pool, HoldTime::Long);
    }

    #[test]
    fn one_look_up_serves_all_who_need_it() {
        let (pool, token) = (&pool(), &CancelToken::new());
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let found = |port| Ok(Vec::from([address(port)]));
        let in_progress = || panic!("a look-up is in progress");
        let begun = Cell::new(0);
        let begin = || begun.set(begun.get() + 1);
        assert_eq!(pool.addresses(token, Instant::now(), begin), Err(Ended::TimeUp));
        assert_eq!(begun.get(), 1, "a call that gives up leaves it to the others");
        assert_eq!(pool.addresses(token, Instant::now(), in_progress), Err(Ended::TimeUp));
        thread::scope(|scope| {
            // A waiter that comes late looks the name up itself.
            let look_up = || pool.end_lookup(found(1));
            let waiters =
                [(); 3].map(|()| scope.spawn(move || pool.addresses(token, from_now(SOON), look_up)));
            pool.end_lookup(found(1));
            for waiter in waiters {
                assert_eq!(waiter.join().expect("no panic"), Ok(found(1)));
            }
        });
        assert_eq!(pool.addresses(token, Instant::now(), begin), Err(Ended::TimeUp));
        assert_eq!(begun.get(), 2, "a name may lead elsewhere by now");
        pool.end_lookup(found(2));
        pool.dialled(Some(address(2)));
        assert_eq!(pool.addresses(token, Instant::now(), in_progress), Ok(found(2)), "it worked before");
    }
}
