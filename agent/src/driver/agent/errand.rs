//! A thread that makes one blocking call after the other for the agent, which never blocks itself.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender, unbounded};
use rendezvous_core::driver::threads::{self, Thread, panic_text};
use rendezvous_core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long the end of a thread is waited for. Code that nobody can end is left behind with it then.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// What the thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It waits to be asked.
    #[default]
    Idle,
    /// It makes a call that may be ended.
    Endable,
    /// It makes one that may not.
    Shielded,
    /// It makes none any more.
    Over,
}

/// How far the thread has come. Whoever interrupts it holds this, so that it cannot come to the next ask meanwhile: the
/// last one is never hit.
#[derive(Debug, Default)]
struct Standing {
    taken: u64,
    state: State,
}

/// The agent's end. When it is dropped, the call under way is ended, and the thread with it; one that has not ended after
/// [`END_PATIENCE`] is left behind, with what it holds.
pub(super) struct Errands<A> {
    asks: Option<Sender<A>>,
    asked: u64,
    standing: Arc<Mutex<Standing>>,
    /// Nobody asks any more.
    is_last: Arc<AtomicBool>,
    /// Ends the call that is under way. One that begins just then may miss it.
    interrupt: Box<dyn Fn() + Send>,
    thread: Option<Thread>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Asks<A> {
    asks: Receiver<A>,
    standing: Arc<Mutex<Standing>>,
    is_last: Arc<AtomicBool>,
}

/// Whether what comes behind ends this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Haste {
    /// It is given up at once.
    GivenUp,
    /// It is brought to its end, which is near.
    Finished,
}

/// Something that can be asked for.
pub(super) trait Errand: Send + 'static {
    /// What becomes of it when something else is asked for.
    fn haste(&self) -> Haste;
}

impl<A> fmt::Debug for Errands<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Errands").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl<A: Errand> Errands<A> {
    /// Has `body` run in a thread of its own. If it panics, `fell` is told what it said, and nothing that is asked then is
    /// done any more.
    pub(super) fn start(
        name: &str,
        interrupt: impl Fn() + Send + 'static,
        body: impl FnOnce(Asks<A>) + Send + 'static,
        fell: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, asks) = unbounded();
        let standing: Arc<Mutex<Standing>> = Arc::default();
        let is_last: Arc<AtomicBool> = Arc::default();
        let end = Asks { asks, standing: Arc::clone(&standing), is_last: Arc::clone(&is_last) };
        let its = Arc::clone(&standing);
        let thread = threads::spawn(name, move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(move || body(end))) {
                lock(&its).state = State::Over;
                fell(panic_text(&*panic));
            }
        })?;
        let interrupt = Box::new(interrupt);
        Ok(Self { asks: Some(sender), asked: 0, standing, is_last, interrupt, thread: Some(thread) })
    }

    /// Asks for something; whatever is under way is given up for it.
    pub(super) fn ask(&mut self, ask: A) {
        let Some(asks) = &self.asks else { return };
        self.asked += 1;
        // A thread that has ended does nothing any more.
        if asks.send(ask).is_ok() {
            self.press();
        }
    }

    /// Whether the thread has not come to the last ask yet. Until it has, [`Errands::press`] it from time to time.
    pub(super) fn is_behind(&self) -> bool {
        let standing = lock(&self.standing);
        standing.taken < self.asked && standing.state != State::Over
    }

    /// Ends what is under way before the last ask, if it may be ended.
    pub(super) fn press(&self) {
        let standing = lock(&self.standing);
        if standing.taken < self.asked && standing.state == State::Endable {
            (self.interrupt)();
        }
    }
}

impl<A: Errand> Asks<A> {
    /// The next ask; `None` when there will be none.
    pub(super) fn next(&self) -> Option<A> {
        lock(&self.standing).state = State::Idle;
        let ask = self.asks.recv().ok()?;
        let mut standing = lock(&self.standing);
        standing.state = match ask.haste() {
            Haste::GivenUp => State::Endable,
            Haste::Finished => State::Shielded,
        };
        standing.taken += 1;
        Some(ask)
    }

    /// Whether there is no time for anything else: something was asked, or nothing will be.
    pub(super) fn is_wanted(&self) -> bool {
        !self.asks.is_empty() || self.is_last.load(Ordering::Acquire)
    }

    /// Waits for so long, or until something is asked, or nothing will be.
    pub(super) fn rest(&self, span: Duration) {
        let mut select = crossbeam_channel::Select::new();
        select.recv(&self.asks);
        select.ready_timeout(span).ok();
    }
}

impl<A> Drop for Errands<A> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !thread.is_here() {
            // Nobody is there to hear it, and what the thread had locked is locked for ever.
            core::mem::forget(self.asks.take());
            return thread.join();
        }
        self.asks = None;
        // The thread sees that nobody asks any more as soon as its call has ended, which one interrupt may miss.
        self.is_last.store(true, Ordering::Release);
        thread.join_within(END_PATIENCE, &self.interrupt);
    }
}

fn lock(standing: &Mutex<Standing>) -> MutexGuard<'_, Standing> {
    standing.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use rendezvous_core::driver::canceller::Canceller;
    use std::sync::mpsc;
    use std::time::Duration;

    impl Errand for u32 {
        fn haste(&self) -> Haste {
            Haste::GivenUp
        }
    }

    /// A thread whose calls only end when they are cancelled.
    fn waiting(tell: mpsc::Sender<u32>) -> Errands<u32> {
        let canceller = Canceller::default();
        let ends = canceller.clone();
        Errands::start(
            "rdzv-test",
            move || ends.cancel(),
            move |asks| {
                while let Some(ask) = asks.next() {
                    tell.send(ask).expect("awaited");
                    let call = canceller.begin();
                    let (woken, wait) = mpsc::channel();
                    let _watch = call.watch(move || woken.send(()).unwrap_or_default());
                    if !asks.is_wanted() {
                        wait.recv().expect("cancelled");
                    }
                }
            },
            |_| {},
        )
        .expect("a thread")
    }

    #[test]
    fn a_new_ask_ends_the_call_before_it() {
        let (tell, told) = mpsc::channel();
        let mut errands = waiting(tell);
        for ask in 0..100 {
            errands.ask(ask);
            let got = loop {
                if let Ok(got) = told.recv_timeout(Duration::from_millis(2)) {
                    break got;
                }
                errands.press();
            };
            assert_eq!(got, ask);
        }
        assert!(!errands.is_behind());
    }

    #[test]
    fn what_was_asked_last_is_never_interrupted() {
        let [under_way, last, hits] = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
        let (seen, expected, count) = (Arc::clone(&under_way), Arc::clone(&last), Arc::clone(&hits));
        let interrupt = move || {
            if seen.load(Ordering::SeqCst) == expected.load(Ordering::SeqCst) {
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        let body = move |asks: Asks<u32>| {
            while let Some(ask) = asks.next() {
                under_way.store(ask, Ordering::SeqCst);
                while !asks.is_wanted() {
                    core::hint::spin_loop();
                }
            }
        };
        let mut errands = Errands::start("rdzv-test", interrupt, body, |_| {}).expect("a thread");
        for ask in 1..100_000 {
            last.store(ask, Ordering::SeqCst);
            errands.ask(ask);
            while errands.is_behind() {
                errands.press();
            }
        }
        // The end interrupts whatever there is.
        assert_eq!(hits.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn dropping_ends_the_thread() {
        let (tell, told) = mpsc::channel();
        let mut errands = waiting(tell);
        errands.ask(1);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(1));
        drop(errands);
        assert!(told.recv().is_err(), "the thread is gone, and its end of the channel");
    }
}
