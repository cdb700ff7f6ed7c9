//! A thread that makes one blocking call after the other for the agent, which never blocks itself.

use crate::driver::threads;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io;
use std::thread::JoinHandle;

/// The thread waits to be asked.
const IDLE: u8 = 0;
/// It makes a call that may be ended.
const ENDABLE: u8 = 1;
/// It makes one that may not.
const SHIELDED: u8 = 2;

/// The agent's end. When it is dropped, the call under way is ended, and the thread with it.
pub(super) struct Errands<A> {
    asks: Option<Sender<A>>,
    asked: u64,
    taken: Arc<AtomicU64>,
    state: Arc<AtomicU8>,
    /// Ends the call that is under way. One that begins just then may miss it.
    interrupt: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Asks<A> {
    asks: Receiver<A>,
    taken: Arc<AtomicU64>,
    state: Arc<AtomicU8>,
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
    /// Has `body` run in a thread of its own.
    pub(super) fn start(
        name: &str,
        interrupt: impl Fn() + Send + 'static,
        body: impl FnOnce(Asks<A>) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, asks) = unbounded();
        let taken = Arc::new(AtomicU64::new(0));
        let state = Arc::new(AtomicU8::new(IDLE));
        let end = Asks { asks, taken: Arc::clone(&taken), state: Arc::clone(&state) };
        let thread = threads::spawn(name, move || body(end))?;
        let interrupt = Box::new(interrupt);
        Ok(Self { asks: Some(sender), asked: 0, taken, state, interrupt, thread: Some(thread) })
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
        self.taken.load(Ordering::Acquire) < self.asked
    }

    /// Ends what is under way before the last ask, if it may be ended. What was begun just now may be hit, too.
    pub(super) fn press(&self) {
        if self.is_behind() && self.state.load(Ordering::Acquire) == ENDABLE {
            (self.interrupt)();
        }
    }
}

impl<A: Errand> Asks<A> {
    /// The next ask; `None` when there will be none.
    pub(super) fn next(&self) -> Option<A> {
        self.state.store(IDLE, Ordering::Release);
        let ask = self.asks.recv().ok()?;
        let state = match ask.haste() {
            Haste::GivenUp => ENDABLE,
            Haste::Finished => SHIELDED,
        };
        self.state.store(state, Ordering::Release);
        self.taken.fetch_add(1, Ordering::Release);
        Some(ask)
    }

    /// Whether there is no time for anything else: something was asked, or nothing will be.
    pub(super) fn is_wanted(&self) -> bool {
        !self.asks.is_empty() || Arc::strong_count(&self.taken) == 1
    }
}

impl<A> Drop for Errands<A> {
    fn drop(&mut self) {
        self.asks = None;
        // The thread sees that nobody asks any more as soon as its call has ended, which one interrupt may miss.
        let thread = self.thread.take();
        self.taken = Arc::default();
        let Some(thread) = thread else { return };
        while !thread.is_finished() {
            (self.interrupt)();
            std::thread::park_timeout(core::time::Duration::from_millis(2));
        }
        // A thread that panicked has said so itself.
        thread.join().ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::canceller::Canceller;
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
    fn dropping_ends_the_thread() {
        let (tell, told) = mpsc::channel();
        let mut errands = waiting(tell);
        errands.ask(1);
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(1));
        drop(errands);
        assert!(told.recv().is_err(), "the thread is gone, and its end of the channel");
    }
}
