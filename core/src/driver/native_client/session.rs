//! The thread of a session: one turn waits for events, reads what there is, and writes what the machine has to say.

use super::inbox::{Inbox, Put};
use super::node::NodeEvent;
use super::{
    Answered, Command, Loss, Machine, NativeClientOptions, ServerFault, Shared, Submitted, Way, body_of,
    plain,
};
use crate::driver::clock::Clock;
use crate::driver::reply::Reply;
use crate::driver::resolve::{Found, literal, look_up};
use crate::driver::socket::{KeepAlive, classify, finish_connect, open_socket, start_connect};
use crate::error::{Cause, ErrorKind, Failure, Operation, Phase};
use crate::limits::FrameLimits;
use crate::node::native_client::fault::failure_of;
use crate::node::native_client::{BeginError, Ending, Event, Failed, Input, Output, Taken, ToWrite};
use crate::rendezvous::participant;
use crate::store::dial::Family;
use crate::store::op::Key;
use crate::time::{Duration, Instant};
use crate::wire::native::{ClientFrame, HEADER_BYTES, MAGIC, Message, encode_frame};
use crate::wire::sink::Sink;
use crossbeam_channel::{Receiver, Sender};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::Socket;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::string::String;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);
const READ_BYTES: usize = 64 * 1024;
/// Bytes read in one turn, so that what is to be written and who calls have theirs.
const READ_BYTES_PER_TURN: usize = 16 * READ_BYTES;
/// Unsent bytes from which on further requests rest.
const UNSENT_BYTES_HIGH: usize = 1 << 20;
/// A buffer keeps so much room while it is empty.
const BYTES_KEPT_MAX: usize = 256 * 1024;

/// A request whose answer is awaited, or may have to be written again.
struct Call {
    kind: u16,
    body: Vec<u8>,
    inbox: Option<Arc<Inbox<Answered>>>,
    reply: Option<Reply<Result<Answered, Loss>>>,
}

/// A body that was encoded before.
struct Encoded<'a>(&'a Call);

impl Message for Encoded<'_> {
    fn kind(&self) -> u16 {
        self.0.kind
    }

    fn write_body(&self, out: &mut impl Sink) {
        out.put(&self.0.body);
    }
}

struct Growing<'v>(&'v mut Vec<u8>);

impl Sink for Growing<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

struct Line {
    socket: Socket,
    is_connected: bool,
    readable: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

pub(super) struct Session {
    poll: Poll,
    waker: Arc<Waker>,
    own: Sender<Command>,
    commands: Receiver<Command>,
    clock: Clock,
    machine: Machine,
    limits: FrameLimits,
    host: String,
    port: u16,
    node: String,
    keep_alive: Option<KeepAlive>,
    shared: Arc<Shared>,
    opened: Option<Reply<Result<(), Ending>>>,
    calls: BTreeMap<u64, Call>,
    /// Watches and leases, by their requests.
    streams: BTreeMap<u64, Arc<Inbox<Answered>>>,
    /// The run of the last request to join.
    run_id: Vec<u8>,
    addresses: Vec<SocketAddr>,
    line: Option<Line>,
    received: Vec<u8>,
    unsent: Vec<u8>,
    sent: usize,
    buffer: Box<[u8]>,
}

impl Session {
    pub(super) fn new(
        (host, port): (&str, u16),
        options: &NativeClientOptions,
        (clock, seed): (Clock, u64),
        shared: Arc<Shared>,
        (own, commands): (Sender<Command>, Receiver<Command>),
        opened: Option<Reply<Result<(), Ending>>>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        Ok(Self {
            poll,
            waker,
            own,
            commands,
            clock,
            machine: Machine::new(clock.now(), options.machine(), seed),
            limits: Machine::answer_limits(&options.limits),
            host: host.into(),
            port,
            node: options.node.clone(),
            keep_alive: options.keep_alive,
            shared,
            opened,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            run_id: Vec::new(),
            addresses: Vec::new(),
            line: None,
            received: Vec::new(),
            unsent: Vec::new(),
            sent: 0,
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Drives the session until it is over or its last handle is gone.
    pub(super) fn run(&mut self) {
        let mut events = Events::with_capacity(8);
        // What was asked for before the first turn leaves with the greeting.
        let mut flow = self.obey();
        while flow == Flow::Go {
            self.carry_out();
            if self.machine.ending().is_some() {
                break;
            }
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The system's event queue failed: nothing can be heard any more.
                Err(error) => {
                    self.lose(classify(&error).1);
                    continue;
                }
                Ok(()) => {}
            }
            let (mut readable, mut writable) = (false, false);
            for event in &events {
                if event.token() == SOCKET {
                    readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    writable |= event.is_writable() || event.is_error();
                }
            }
            if let Some(line) = &mut self.line {
                line.readable |= readable;
                if writable && !line.is_connected {
                    self.connected();
                }
            }
            flow = self.obey();
            self.read();
            let now = self.clock.now();
            if self.machine.poll_timeout().is_some_and(|due| due <= now) {
                self.machine.handle(now, Input::Tick);
            }
        }
        self.wind_up();
    }

    /// How long to sleep: not at all while there is something left to read.
    fn patience(&self) -> Option<Duration> {
        if self.line.as_ref().is_some_and(|line| line.is_connected && line.readable) {
            return Some(Duration::ZERO);
        }
        let due = self.machine.poll_timeout().filter(|&due| due < Instant::MAX)?;
        Some(due.since(self.clock.now()))
    }

    /// Nobody is left without an answer.
    fn wind_up(&mut self) {
        let ending = self.machine.ending().unwrap_or(Ending::Left);
        self.shared.fate.set(ending).ok();
        self.fail_all();
        if let Some(opened) = self.opened.take() {
            opened.answer(Err(ending));
        }
        self.line = None;
        for (_, inbox) in core::mem::take(&mut self.streams) {
            inbox.end(ending);
        }
        self.shared.events.end(ending);
        // Calls that came too late find their reply gone, and the fate set.
        while let Ok(command) = self.commands.try_recv() {
            drop(command);
        }
    }

    fn obey(&mut self) -> Flow {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Call(call) => self.begin(*call),
                Command::CancelAll => self.cancel_all(),
                Command::Resolved(found) => self.resolved(found),
                Command::Stop => return Flow::Stop,
            }
        }
        Flow::Go
    }

    fn begin(&mut self, submitted: Submitted) {
        let Submitted { operation, kind, body, span, way, inbox, reply } = submitted;
        let (now, frame) = (self.clock.now(), (kind, body.len()));
        let begun = match &way {
            Way::Plain => self.machine.begin(now, operation, frame, span),
            Way::Join(_) => self.machine.begin_join(now, operation, frame, span),
            Way::Leave => self.machine.begin_leave(now, frame, span),
            Way::Bye => self.machine.begin_bye(now, span),
        };
        let refused = match begun {
            Ok(id) => {
                if let Way::Join(run_id) = way {
                    // What happened to the round before concerns nobody any more.
                    self.shared.events.clear();
                    self.run_id = run_id;
                }
                self.calls.insert(id, Call { kind, body, inbox, reply });
                return;
            }
            Err(BeginError::Limit(limit)) => {
                let (kind, cause) = (ErrorKind::LimitExceeded, Cause::Limit(limit));
                let failure = Failure { kind, cause, phase: Phase::Sending, ..plain(kind) };
                Loss::of(failure)
            }
            Err(BeginError::OutOfTurn(_)) => Loss::of(plain(ErrorKind::InvalidArgument)),
            Err(BeginError::Over(ending)) => Loss::of_ending(ending),
        };
        if let Some(reply) = reply {
            reply.answer(Err(refused));
        }
    }

    fn cancel_all(&mut self) {
        let now = self.clock.now();
        let ids: Vec<u64> = self.calls.keys().copied().collect();
        for id in ids {
            if let Some(failed) = self.machine.cancel(now, id) {
                self.failed(failed, None);
            }
        }
    }

    /// Does what the machine asks for, until it asks for nothing more.
    fn carry_out(&mut self) {
        loop {
            while let Some(output) = self.machine.poll_output() {
                match output {
                    Output::Resolve => self.resolve(),
                    Output::Connect(index) => self.connect(index),
                    Output::Disconnect => self.disconnect(),
                    Output::Over(_) => self.fail_all(),
                }
            }
            self.fail_all();
            self.write();
            if !self.flush() {
                return;
            }
        }
    }

    fn fail_all(&mut self) {
        if let Some(ending) = self.machine.ending() {
            // Who hears that his call failed finds the session over.
            self.shared.fate.set(ending).ok();
        }
        let now = self.clock.now();
        while let Some(failed) = self.machine.next_failed(now) {
            self.failed(failed, self.machine.ending());
        }
    }

    fn failed(&mut self, failed: Failed, ending: Option<Ending>) {
        // A request that is given up may have to be passed over by number; its bytes are of no use any more.
        if let Some(reply) = self.calls.remove(&failed.id).and_then(|call| call.reply) {
            let ending = ending.map(Box::new);
            reply.answer(Err(Loss { failure: failed.failure, fault: None, ending }));
        }
    }

    fn resolve(&mut self) {
        if let Some(address) = literal(&self.host, self.port) {
            return self.resolved(Ok(vec![address]));
        }
        let (own, waker) = (self.own.clone(), self.waker());
        let begun = look_up(&self.host, self.port, move |found| {
            // The session may be over by now; then nobody looks.
            own.send(Command::Resolved(found)).ok();
            waker.wake().ok();
        });
        if begun.is_err() {
            self.resolved(Err(libc::EAI_SYSTEM));
        }
    }

    fn resolved(&mut self, found: Found) {
        let now = self.clock.now();
        match found {
            Ok(addresses) => {
                let families: Vec<Family> = addresses.iter().map(Family::of).collect();
                self.addresses = addresses;
                self.machine.handle(now, Input::Resolved(&families));
            }
            Err(number) => self.machine.handle(now, Input::Unresolved(number)),
        }
    }

    fn connect(&mut self, index: u8) {
        self.disconnect();
        let begun = self.addresses.get(usize::from(index)).map(|&address| {
            let socket = open_socket(address)?;
            // Whether it is connected already is heard of in the next turn either way.
            start_connect(&socket, address, self.keep_alive.as_ref())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), SOCKET, interest)?;
            Ok(socket)
        });
        match begun {
            Some(Ok(socket)) => self.line = Some(Line { socket, is_connected: false, readable: false }),
            Some(Err(error)) => self.connect_failed(&error),
            None => self.connect_failed(&io::Error::from_raw_os_error(libc::EADDRNOTAVAIL)),
        }
    }

    fn connected(&mut self) {
        let Some(line) = &mut self.line else { return };
        match finish_connect(&line.socket) {
            Ok(()) => {
                line.is_connected = true;
                self.machine.handle(self.clock.now(), Input::Connected);
            }
            Err(error) => self.connect_failed(&error),
        }
    }

    fn connect_failed(&mut self, error: &io::Error) {
        self.disconnect();
        let (kind, cause) = classify(error);
        self.machine.handle(self.clock.now(), Input::ConnectFailed(kind, cause));
    }

    fn disconnect(&mut self) {
        // A descriptor leaves the event queue when it is closed.
        self.line = None;
        self.received.clear();
        self.unsent.clear();
        self.sent = 0;
    }

    fn lose(&mut self, cause: Cause) {
        self.disconnect();
        self.machine.handle(self.clock.now(), Input::Ended(cause));
    }

    fn read(&mut self) {
        let mut budget = READ_BYTES_PER_TURN;
        while budget > 0 {
            let Some(line) = self.line.as_mut().filter(|line| line.is_connected && line.readable) else {
                return;
            };
            match (&line.socket).read(&mut self.buffer) {
                Ok(0) => return self.lose(Cause::Closed),
                Ok(count) => {
                    budget = budget.saturating_sub(count);
                    self.received.extend_from_slice(&self.buffer[..count]);
                    self.take();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => line.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose(classify(&error).1),
            }
        }
    }

    /// Hands out the whole frames of what was received.
    fn take(&mut self) {
        let received = core::mem::take(&mut self.received);
        let (mut at, limits) = (0, self.limits);
        loop {
            let now = self.clock.now();
            match self.machine.receive(now, &limits, &received[at..]) {
                Taken::Partial(_) => break,
                Taken::Over => return,
                Taken::Frame(bytes, event) => {
                    let frame = &received[at..at + bytes];
                    at += bytes;
                    self.deliver(event, frame);
                }
            }
        }
        self.received = received;
        self.received.drain(..at);
        if self.received.is_empty() {
            self.received.shrink_to(BYTES_KEPT_MAX);
        }
    }

    fn deliver(&mut self, event: Event<'_>, frame: &[u8]) {
        let owned = |id| Answered {
            id,
            kind: u16::from_le_bytes([frame[4], frame[5]]),
            body: frame[HEADER_BYTES..].to_vec(),
        };
        match event {
            Event::Nothing => {}
            Event::Open => {
                if let Some(opened) = self.opened.take() {
                    opened.answer(Ok(()));
                }
            }
            Event::Answered(id, _) => self.answered(owned(id)),
            Event::Failed(failed, fault) => {
                if let Some(reply) = self.calls.remove(&failed.id).and_then(|call| call.reply) {
                    let fault = fault.as_ref().map(|fault| Box::new(ServerFault::of(fault)));
                    reply.answer(Err(Loss { failure: failed.failure, fault, ending: None }));
                }
            }
            Event::Pushed(id, _) => {
                if let Some(inbox) = self.streams.get(&id)
                    && inbox.put(owned(id)) == Put::Full
                {
                    self.streams.remove(&id);
                    self.forget(id);
                }
            }
            Event::Node(Some(id), event) => self.node_answered(owned(id), &event),
            Event::Node(None, event) => self.node_told(&event),
        }
    }

    fn answered(&mut self, answer: Answered) {
        let Some(Call { inbox, reply, .. }) = self.calls.remove(&answer.id) else { return };
        if let Some(inbox) = inbox {
            self.streams.insert(answer.id, inbox);
        }
        if let Some(reply) = reply {
            reply.answer(Ok(answer));
        }
    }

    fn node_answered(&mut self, answer: Answered, event: &participant::Event<'_>) {
        let failure = match event {
            participant::Event::Refused(fault) => Some(*fault),
            participant::Event::Closed { .. } | participant::Event::NotNeeded => answer.fault(&self.limits),
            _ => None,
        };
        let Some(reply) = self.calls.remove(&answer.id).and_then(|call| call.reply) else { return };
        reply.answer(match failure {
            Some(fault) => Err(Loss {
                failure: failure_of(&fault),
                fault: Some(Box::new(ServerFault::of(&fault))),
                ending: None,
            }),
            None => Ok(answer),
        });
    }

    fn node_told(&mut self, event: &participant::Event<'_>) {
        // A round that nobody waits for any more: the seat is given back at once.
        if matches!(event, participant::Event::Formed(_)) {
            let run_id = core::mem::take(&mut self.run_id);
            let leave = ClientFrame::Leave { run_id: Key::raw(&run_id) };
            self.begin(Submitted {
                operation: Operation::Leave,
                kind: leave.kind(),
                body: body_of(&leave),
                span: Duration::ZERO,
                way: Way::Leave,
                inbox: None,
                reply: None,
            });
        }
        if let Some(event) = NodeEvent::of(event) {
            self.shared.events.put_over(event);
        }
    }

    /// Ends a stream that nobody reads.
    fn forget(&mut self, request: u64) {
        let cancel = ClientFrame::Cancel { request };
        self.begin(Submitted {
            operation: Operation::CancelWait,
            kind: cancel.kind(),
            body: body_of(&cancel),
            span: Duration::ZERO,
            way: Way::Plain,
            inbox: None,
            reply: None,
        });
    }

    /// Encodes what is to be written, as far as there is room.
    fn write(&mut self) {
        while self.unsent.len() - self.sent < UNSENT_BYTES_HIGH {
            let now = self.clock.now();
            let Some(write) = self.machine.poll_write(now) else { return };
            let mut out = Growing(&mut self.unsent);
            // A body is longer than a header can tell only beyond what `begin` lets through.
            let encoded = match write {
                ToWrite::Opening(label, identity) => {
                    out.put(&MAGIC);
                    let hello = self.machine.hello(identity, self.node.as_bytes(), b"");
                    encode_frame(&mut out, label, &hello)
                }
                ToWrite::Request(id, label) => match self.calls.get(&id) {
                    Some(call) => encode_frame(&mut out, label, &Encoded(call)),
                    // The machine takes back what nobody awaits.
                    None => Ok(()),
                },
                ToWrite::Frame(label, frame) => encode_frame(&mut out, label, &frame),
            };
            debug_assert!(encoded.is_ok(), "a frame is shorter than 4 GiB");
        }
    }

    /// Sends until there is nothing more or no room; whether there may be more to write.
    fn flush(&mut self) -> bool {
        let mut any = false;
        while self.sent < self.unsent.len() {
            let Some(line) = self.line.as_ref().filter(|line| line.is_connected) else { return false };
            match line.socket.send_with_flags(&self.unsent[self.sent..], libc::MSG_NOSIGNAL) {
                Ok(count) => {
                    self.sent += count;
                    any = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // What the server said before it went is still to be read.
                    let cause = classify(&error).1;
                    self.read();
                    if self.line.is_some() {
                        self.lose(cause);
                    }
                    return true;
                }
            }
        }
        self.unsent.clear();
        self.unsent.shrink_to(BYTES_KEPT_MAX);
        self.sent = 0;
        any
    }
}
