//! Thread of a session. One iteration waits for events, reads the socket, and writes the output of the state machine.

use super::inbox::Inbox;
use super::session_driver::{EncodedRequest, READ_BYTES, SessionDriver, SessionOutput};
use super::session_thread::{ABANDON_TIMEOUT, ClientShared, Command, Submitted};
use super::{Loss, NativeClientOptions, NodeEvent, OwnedFrame};
use crate::driver::channel::Receiver;
use crate::driver::event_loop::{EventLoop, Token, Waker};
use crate::driver::prelude::*;
use crate::driver::socket::classify;
use crate::node::native_client::Ending;
use crate::ordered::Map;
use crate::time::Poller;
use core::sync::atomic::Ordering;

/// Token of the only watched descriptor.
const SOCKET: Token = Token(0);

/// Caller that waits for a response.
struct Caller {
    token: CancelToken,
    inbox: Option<Arc<Inbox<OwnedFrame>>>,
    reply: oneshot::Sender<Result<OwnedFrame, Loss>>,
}

pub(super) struct Session {
    events: EventLoop,
    driver: SessionDriver,
    commands: Receiver<Command>,
    shared: Arc<ClientShared>,
    opened: Option<oneshot::Sender<Result<(), Ending>>>,
    callers: Map<u64, Caller>,
    /// Watches and leases by their requests.
    streams: Map<u64, Arc<Inbox<OwnedFrame>>>,
    buffer: Box<[u8]>,
    /// Whether there was no connection in the last iteration.
    was_trying: bool,
    /// When the session ends that its owner has abandoned.
    end_by: Option<Instant>,
}

impl Session {
    pub(super) fn new(
        server: (&str, u16),
        options: &NativeClientOptions,
        seed: u64,
        shared: Arc<ClientShared>,
        commands: Receiver<Command>,
        opened: Option<oneshot::Sender<Result<(), Ending>>>,
    ) -> io::Result<Self> {
        let events = EventLoop::new()?;
        let driver = SessionDriver::new(server, options, (*events.clock(), seed), (SOCKET, Poller::Thread));
        Ok(Self {
            events,
            driver,
            commands,
            shared,
            opened,
            callers: Map::new(),
            streams: Map::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            was_trying: true,
            end_by: None,
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.events.waker()
    }

    pub(super) const fn clock(&self) -> Clock {
        *self.events.clock()
    }

    /// Drives the session until it is over or its last handle is dropped.
    pub(super) fn run(&mut self) {
        // Requests from before the first iteration are sent with the greeting.
        let mut is_stopped = self.handle_commands();
        while !is_stopped {
            self.settle();
            self.report_attempts();
            if self.driver.ending().is_some() {
                break;
            }
            let before = self.clock().now();
            if self.end_by.is_some_and(|by| by <= before) {
                break;
            }
            let until = [self.driver.poll_timeout(), self.end_by].into_iter().flatten().min();
            let ready = match self.events.wait(until) {
                Ok(ready) => ready,
                // The system's event queue failed: nothing can be received any more.
                Err(error) => {
                    self.driver.lose(classify(&error).1);
                    continue;
                }
            };
            self.driver.wake();
            is_stopped = self.handle_commands();
            for one in ready {
                self.driver.ready(one, &mut self.buffer);
            }
            self.driver.step(before);
        }
        self.shut_down();
    }

    /// Delivers events and executes the driver's pending work, until nothing is left of either.
    fn settle(&mut self) {
        loop {
            // First the responses, so that callers do not wait for the writes.
            self.dispatch_outputs();
            self.driver.execute(&self.events);
            if !self.dispatch_outputs() {
                return;
            }
        }
    }

    /// Publishes the last failed attempt to connect. With a connection there is nothing to publish.
    fn report_attempts(&mut self) {
        let is_trying = !self.driver.machine().is_live();
        if is_trying || self.was_trying {
            self.shared.last_try.set(self.driver.failed_try());
        }
        self.was_trying = is_trying;
    }

    /// Answers all calls with the end of the session.
    fn shut_down(&mut self) {
        let ending = self.driver.ending().unwrap_or(Ending::Left);
        self.shared.ending_cell.set(ending).ok();
        self.dispatch_outputs();
        if let Some(opened) = self.opened.take() {
            opened.send(Err(ending)).ok();
        }
        self.driver.hang_up();
        for (_, inbox) in core::mem::take(&mut self.streams).iter() {
            inbox.end(ending);
        }
        self.shared.events.end(ending);
        // Calls that came too late find their reply dropped and `ending_cell` set.
        while let Ok(command) = self.commands.try_recv() {
            drop(command);
        }
    }

    /// Returns whether the session is to stop.
    fn handle_commands(&mut self) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Call(call) => self.begin(*call),
                Command::EndWatch(id) => {
                    self.streams.remove(id);
                    self.driver.forget(id);
                }
                Command::ForgetLease(id) => drop(self.streams.remove(id)),
                Command::CheckTokens => self.check_tokens(),
                Command::Abandon(request) => self.abandon(*request),
                Command::Stop => return true,
            }
        }
        false
    }

    /// Sends the request that ends the session. Its bytes leave at once: the last handle may be dropped next.
    fn abandon(&mut self, request: EncodedRequest) {
        self.end_by = Some(self.clock().now() + ABANDON_TIMEOUT);
        if self.driver.begin(request).is_ok() {
            self.driver.execute(&self.events);
        }
    }

    fn check_tokens(&mut self) {
        let is_cancelled = |(_, caller): &(u64, &Caller)| caller.token.is_cancelled();
        let ids: Vec<u64> = self.callers.iter().filter(is_cancelled).map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.driver.cancel(id));
    }

    fn begin(&mut self, submitted: Submitted) {
        let Submitted { encoded, token, inbox, reply } = submitted;
        let is_join = encoded.is_join();
        match self.driver.begin(encoded) {
            Ok(id) => {
                if is_join {
                    self.shared.was_standby.store(false, Ordering::Release);
                }
                // A token that was cancelled before this caller was known is not reported again.
                let is_cancelled = token.is_cancelled();
                self.callers.insert(id, Caller { token, inbox, reply });
                if is_cancelled {
                    self.driver.cancel(id);
                }
            }
            Err(refused) => drop(reply.send(Err(refused))),
        }
    }

    /// Delivers all outputs of the driver. Returns whether there were any.
    fn dispatch_outputs(&mut self) -> bool {
        if let Some(ending) = self.driver.ending() {
            // A caller whose call fails must find the session over.
            self.shared.ending_cell.set(ending).ok();
        }
        let mut any = false;
        while let Some(output) = self.driver.next_output() {
            any = true;
            self.handle_event(output);
        }
        any
    }

    fn handle_event(&mut self, output: SessionOutput) {
        match output {
            SessionOutput::Open => {
                // No server has the number 0.
                self.shared.session.store(self.driver.session(), Ordering::Release);
                self.shared.incarnation.store(self.driver.incarnation().max(1), Ordering::Release);
                if let Some(opened) = self.opened.take() {
                    opened.send(Ok(())).ok();
                }
            }
            SessionOutput::Ended(id, encoded, answer) => {
                if answer.is_ok() && encoded.is_join() {
                    // Events of the previous round are obsolete.
                    self.shared.events.retain(NodeEvent::is_before_round);
                }
                let Some(Caller { inbox, reply, .. }) = self.callers.remove(id) else { return };
                if let (Some(inbox), Ok(_)) = (inbox, &answer) {
                    self.streams.insert(id, inbox);
                }
                reply.send(answer).ok();
            }
            SessionOutput::Pushed(push) => {
                let id = push.id;
                if let Some(inbox) = self.streams.get(id)
                    && !inbox.put(push)
                {
                    self.streams.remove(id);
                    self.driver.forget(id);
                }
            }
            SessionOutput::Node(event) => {
                match event {
                    NodeEvent::Standby { .. } => self.shared.was_standby.store(true, Ordering::Release),
                    NodeEvent::Replaced { .. } => self.shared.was_replaced.store(true, Ordering::Release),
                    _ => {}
                }
                self.shared.events.put_over(event);
            }
            // The thread ends after this iteration.
            SessionOutput::Over(_) => {}
        }
    }
}
