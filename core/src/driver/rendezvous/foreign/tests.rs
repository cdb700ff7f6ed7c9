use super::*;
use crate::driver::rendezvous::Context;
use alloc::string::ToString;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{OnceLock, Weak};
use std::thread;
use std::vec::Vec;

/// Longer than any step here takes.
const SOON: Duration = Duration::from_secs(20);

/// A backend whose joins wait until the test releases them, and whose other functions each fail in one way.
struct Local {
    entered: Sender<()>,
    go: Mutex<Receiver<()>>,
    back: OnceLock<Weak<dyn RendezvousHandler>>,
    cancelled: Sender<()>,
}

impl RendezvousHandler for Local {
    fn backend(&self) -> &str {
        "own"
    }

    fn next_rendezvous(&self) -> Result<RendezvousInfo<Arc<NodeStore>>, HandlerError> {
        self.entered.send(()).expect("awaited");
        self.go.lock().expect("no panic").recv_timeout(SOON).expect("let go");
        Err(HandlerError::Foreign("no node joined".into()))
    }

    fn is_closed(&self) -> Result<bool, HandlerError> {
        let handler = self.back.get().and_then(Weak::upgrade).expect("the handle");
        let HandlerError::Plugin { kind, .. } = handler.set_closed().expect_err("called back") else {
            panic!("another error")
        };
        Ok(kind == ErrorKind::Reentrant)
    }

    fn set_closed(&self) -> Result<(), HandlerError> {
        panic!("provoked")
    }

    fn num_nodes_waiting(&self) -> Result<u64, HandlerError> {
        Ok(7)
    }

    fn run_id(&self) -> &str {
        "run"
    }

    fn fail(&self, message: &str) -> Result<(), HandlerError> {
        Err(HandlerError::Foreign(message.into()))
    }

    fn reports_deaths(&self) -> bool {
        true
    }

    /// Fails as this backend's other functions do.
    fn abandon(&self) {
        self.cancelled.send(()).expect("awaited");
    }

    fn shutdown(&self) -> bool {
        true
    }

    fn cancel(&self) {
        self.cancelled.send(()).expect("awaited");
    }
}

struct Made {
    handler: Arc<dyn RendezvousHandler>,
    entered: Receiver<()>,
    go: Sender<()>,
    cancelled: Receiver<()>,
}

fn made(call_timeout: Duration) -> Made {
    let ((enter, entered), (go, departed), (cancel, cancelled)) = (channel(), channel(), channel());
    let local = Arc::new(Local {
        entered: enter,
        go: Mutex::new(departed),
        back: OnceLock::new(),
        cancelled: cancel,
    });
    let options = ForeignOptions { call_timeout, ..ForeignOptions::default() };
    let calls = Calls::new("own".into(), options);
    let handler: Arc<dyn RendezvousHandler> = Arc::new(ForeignHandler {
        backend: "own".into(),
        run_id: "run".into(),
        use_agent_store: false,
        reports_deaths: local.reports_deaths(),
        is_abandoned: AtomicBool::new(false),
        code: Arc::clone(&local) as Arc<dyn RendezvousHandler>,
        calls,
        canceller: Canceller::default(),
    });
    local.back.set(Arc::downgrade(&handler)).ok();
    Made { handler, entered, go, cancelled }
}

fn kind(error: &HandlerError) -> ErrorKind {
    match error {
        HandlerError::Plugin { kind, .. } => *kind,
        other => panic!("{other}"),
    }
}

#[test]
fn waiting_for_foreign_code_can_be_cancelled_and_the_code_is_notified() {
    let Made { handler, entered, go, cancelled } = made(SOON);
    thread::scope(|scope| {
        let node = scope.spawn(|| handler.next_rendezvous().expect_err("cancelled"));
        entered.recv_timeout(SOON).expect("it waits");
        // Calls that do not wait are not delayed.
        assert_eq!(handler.num_nodes_waiting().expect("known"), 7);
        handler.cancel();
        let error = node.join().expect("no panic");
        assert_eq!(kind(&error), ErrorKind::Cancelled);
        assert_eq!(error.to_string(), "next_rendezvous of own was cancelled");
        cancelled.try_recv().expect("the code is notified before the call returns");
    });
    // No call is in progress.
    handler.cancel();
    assert!(cancelled.try_recv().is_err());
    go.send(()).expect("it still waits");
    // Later calls are unaffected.
    go.send(()).expect("it waits again");
    assert_eq!(handler.next_rendezvous().expect_err("none").to_string(), "no node joined");
}

#[test]
fn a_token_ends_the_wait_for_foreign_code_and_the_code_is_notified() {
    let Made { handler, entered, go, cancelled } = made(SOON);
    let token = CancelToken::new();
    handler.set_token(&token);
    thread::scope(|scope| {
        let node = scope.spawn(|| handler.next_rendezvous().expect_err("cancelled"));
        entered.recv_timeout(SOON).expect("it waits");
        token.cancel();
        assert_eq!(kind(&node.join().expect("no panic")), ErrorKind::Cancelled);
        cancelled.try_recv().expect("the code is notified before the call returns");
    });
    go.send(()).expect("it still waits");
    assert_eq!(kind(&handler.next_rendezvous().expect_err("cancelled")), ErrorKind::Cancelled);
    assert!(entered.try_recv().is_err(), "it is not called");
    handler.set_token(&CancelToken::new());
    assert_eq!(handler.num_nodes_waiting().expect("known"), 7);
    assert!(cancelled.try_recv().is_err(), "a call that did not begin is not cancelled");
}

#[test]
fn foreign_code_has_a_deadline_and_may_not_call_back_and_its_panics_end_there() {
    let Made { handler, entered, go, .. } = made(Duration::from_millis(30));
    let error = handler.next_rendezvous().expect_err("too late");
    assert_eq!(error.to_string(), "next_rendezvous of own did not return within 0.03 s");
    assert_eq!(kind(&error), ErrorKind::TimedOut);
    entered.recv_timeout(SOON).expect("it waits");
    go.send(()).expect("it still waits");
    let Made { handler, .. } = made(SOON);
    assert!(handler.is_closed().expect("it tells what it got"));
    assert_eq!(kind(&handler.set_closed().expect_err("it panics")), ErrorKind::Io);
    assert!(handler.shutdown());
}

/// A scheme whose rendezvous waits until the test releases it.
struct Slow(Arc<Mutex<Receiver<()>>>, Sender<()>);

impl UrlHandler for Slow {
    fn begin(&self, url: RendezvousUrl, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        assert_eq!((url.to_string().as_str(), options.timeout), ("slow://x?rank=3", SOON));
        Ok(Box::new(Self(Arc::clone(&self.0), self.1.clone())))
    }
}

impl UrlRendezvous for Slow {
    fn next(&mut self) -> Result<UrlGroup, HandlerError> {
        self.1.send(()).expect("awaited");
        self.0.lock().expect("no panic").recv_timeout(SOON).expect("let go");
        Err(HandlerError::Foreign("no node joined".into()))
    }
}

#[test]
fn waiting_for_a_foreign_scheme_can_be_cancelled() {
    let (context, (enter, entered), (go, departed)) = (Context::default(), channel(), channel());
    let code = Arc::new(Slow(Arc::new(Mutex::new(departed)), enter));
    let urls = ForeignUrls::new("slow", code, ForeignOptions::default());
    context.register_url_scheme("slow", Arc::new(urls)).expect("free");
    let canceller = Canceller::default();
    let options =
        UrlOptions { rank: 3, timeout: SOON, canceller: canceller.clone(), ..UrlOptions::default() };
    let mut rendezvous = context.rendezvous("slow://x", options).expect("begun");
    let reported: Vec<_> = thread::scope(|scope| {
        let node = scope.spawn(|| rendezvous.next().expect_err("cancelled"));
        entered.recv_timeout(SOON).expect("it waits");
        canceller.cancel();
        [node.join().expect("no panic")].into()
    });
    assert_eq!(kind(&reported[0]), ErrorKind::Cancelled);
    go.send(()).expect("it still waits");
    go.send(()).expect("it waits again");
    assert_eq!(rendezvous.next().expect_err("none").to_string(), "no node joined");
}

#[test]
fn what_foreign_code_does_about_failures_and_deaths_is_asked_of_it() {
    let Made { handler, cancelled, .. } = made(SOON);
    assert!(handler.reports_deaths());
    assert_eq!(handler.fail("code 1").expect_err("with its message").to_string(), "code 1");
    handler.abandon();
    cancelled.recv_timeout(SOON).expect("reported");
    assert!(handler.shutdown());
    cancelled.recv_timeout(SOON).expect("reported again, before it is shut down");
}
