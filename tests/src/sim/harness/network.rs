//! Network of streams. Sent bytes arrive in order, in pieces that the network chooses, later, or not at all.
//!
//! Each end has a window: the bytes that it may have in transit or unread at the other end. A reader is notified a
//! moment after bytes arrive, so segments coalesce. A partition holds back everything of one client until it heals, as
//! retransmission would, in one direction or in both. A slow client has a higher latency for a while. A cut ends a
//! connection with a reset, after a prefix of the bytes in transit.

use super::event_queue::EventQueue;
use super::sim_rng::SimRng;
use rendezvous_core::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Id of a connection, unique in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sim) struct Stream(u32);

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Side {
    Client,
    Server,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Target of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Route {
    /// The server's address.
    Server,
    /// The address of the worker of another client's host.
    Worker(usize),
    /// An address without a host.
    Nowhere,
    /// The address of a host without a listening socket.
    Closed,
}

/// Parameters of a network.
#[derive(Clone, Debug)]
pub(in crate::sim) struct NetworkModel {
    pub(in crate::sim) latency_min: Duration,
    pub(in crate::sim) latency_max: Duration,
    pub(in crate::sim) segment_bytes_max: usize,
    pub(in crate::sim) window_bytes: usize,
    /// Longest time until a reader looks at what arrived.
    pub(in crate::sim) reader_delay_max: Duration,
    /// Most bytes that a reader takes at once.
    pub(in crate::sim) read_bytes_max: usize,
}

/// Notification of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Notice {
    /// The server, or a worker, has a new connection.
    Accept(Stream),
    /// The client's connection is established.
    Connected(Stream),
    /// No process listens at the address.
    Refused(Stream),
    /// There may be bytes to read.
    Readable(Stream, Side),
    /// There may be capacity to write, or the connection was reset.
    Writable(Stream, Side),
}

/// Result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sim) enum Read {
    Bytes(Vec<u8>),
    Nothing,
    End,
    Reset,
}

/// The connection was reset.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sim) struct Broken;

/// What a cut does to the bytes in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Loss {
    /// All of them arrive before the reset.
    Nothing,
    /// Some of them arrive, up to any byte.
    Tail,
}

enum Event {
    Knock(Stream, Route),
    Answer(Stream, Notice),
    Arrive(Stream, Side),
    Reset(Stream, Side),
    Opens(Stream, Side, usize),
    Ready(Stream, Side),
}

enum Segment {
    Bytes(Vec<u8>),
    Fin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    /// It has closed its sending side.
    Shut,
    /// It neither sends nor reads.
    Closed,
}

struct End {
    life: Life,
    inbox: VecDeque<u8>,
    fin: bool,
    reset: bool,
    /// Bytes that it may still write.
    window: usize,
    /// A write found no capacity, so the end is notified when there is some.
    starved: bool,
    ready_due: bool,
    /// Segments in transit to it.
    coming: VecDeque<Segment>,
    last_arrival: Instant,
    held_until: Instant,
    /// The direction to it was cut. Nothing more arrives.
    cut: bool,
}

struct Link {
    client: usize,
    /// The client whose worker is at the other end, in the place of the server.
    worker: Option<usize>,
    /// Number of the server process that accepted it.
    epoch: Option<u32>,
    ends: [End; 2],
}

impl Link {
    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }
}

pub(in crate::sim) struct Network {
    sim_rng: SimRng,
    network_model: NetworkModel,
    event_queue: EventQueue<Event>,
    links: BTreeMap<Stream, Link>,
    /// For each client, until when the directions to it and from it are held back.
    partitioned_until: Vec<[Instant; 2]>,
    slow_until: Vec<(Instant, Duration)>,
    made: u32,
    pub(in crate::sim) listening: bool,
    /// Port of the server.
    pub(in crate::sim) port: u16,
    /// Clients whose workers listen.
    pub(in crate::sim) workers: BTreeSet<usize>,
}

impl Network {
    pub(in crate::sim) fn new(sim_rng: SimRng, network_model: NetworkModel, clients: usize) -> Self {
        Self {
            sim_rng,
            network_model,
            event_queue: EventQueue::new(),
            links: BTreeMap::new(),
            partitioned_until: vec![[Instant::ORIGIN; 2]; clients],
            slow_until: vec![(Instant::ORIGIN, Duration::ZERO); clients],
            made: 0,
            listening: true,
            port: 1,
            workers: BTreeSet::new(),
        }
    }

    pub(in crate::sim) fn next_at(&self) -> Option<Instant> {
        self.event_queue.next_at()
    }

    /// Returns the number of connections that at least one end holds open.
    pub(in crate::sim) fn open(&self) -> usize {
        self.links.len()
    }

    pub(in crate::sim) fn set_epoch(&mut self, stream: Stream, epoch: u32) {
        if let Some(link) = self.links.get_mut(&stream) {
            link.epoch = Some(epoch);
        }
    }

    /// Returns the number of the server process that accepted a connection.
    pub(in crate::sim) fn epoch(&self, stream: Stream) -> Option<u32> {
        self.links.get(&stream)?.epoch
    }

    /// Returns the number of connections that the clients have closed and the server has not.
    pub(in crate::sim) fn abandoned(&self) -> usize {
        self.links.values().filter(|link| link.ends[Side::Client as usize].life == Life::Closed).count()
    }

    /// Begins to connect. [`Notice::Connected`], [`Notice::Refused`] or nothing follows.
    pub(in crate::sim) fn connect(&mut self, now: Instant, client: usize, route: Route) -> Stream {
        self.made += 1;
        let stream = Stream(self.made);
        let end = || End {
            life: Life::Open,
            inbox: VecDeque::new(),
            fin: false,
            reset: false,
            window: self.network_model.window_bytes,
            starved: false,
            ready_due: false,
            coming: VecDeque::new(),
            last_arrival: now,
            held_until: now,
            cut: false,
        };
        let worker = if let Route::Worker(worker) = route { Some(worker) } else { None };
        self.links.insert(stream, Link { client, worker, epoch: None, ends: [end(), end()] });
        let at = now + self.latency();
        self.event_queue.schedule(at, Event::Knock(stream, route));
        stream
    }

    /// Writes as many bytes as the window allows and returns their number. If that is not all, [`Notice::Writable`]
    /// follows.
    pub(in crate::sim) fn write(
        &mut self,
        now: Instant,
        stream: Stream,
        side: Side,
        bytes: &[u8],
    ) -> Result<usize, Broken> {
        let Some(link) = self.links.get_mut(&stream) else { return Err(Broken) };
        let end = link.end(side);
        if end.reset || end.life != Life::Open {
            return Err(Broken);
        }
        let count = bytes.len().min(end.window);
        end.window -= count;
        end.starved = count < bytes.len();
        let mut rest = &bytes[..count];
        // Long writes are cut into larger pieces: small ones would cost most of the run's time and show nothing more.
        let most = self.network_model.segment_bytes_max.max(count / 32);
        while !rest.is_empty() {
            let most = most.min(rest.len());
            let (segment, remaining) = rest.split_at(self.sim_rng.size(1, most));
            rest = remaining;
            self.dispatch(now, stream, side.other(), Segment::Bytes(segment.to_vec()));
        }
        Ok(count)
    }

    /// Reads what has arrived, up to a number of bytes that the network chooses.
    pub(in crate::sim) fn read(&mut self, now: Instant, stream: Stream, side: Side) -> Read {
        let most = self.sim_rng.size(1, self.network_model.read_bytes_max);
        let latency = self.latency();
        let Some(link) = self.links.get_mut(&stream) else { return Read::Reset };
        let end = link.end(side);
        let most = most.max(end.inbox.len() / 8);
        if end.inbox.is_empty() {
            return match (end.reset, end.fin) {
                (true, _) => Read::Reset,
                (false, true) => Read::End,
                (false, false) => Read::Nothing,
            };
        }
        let count = end.inbox.len().min(most);
        let bytes: Vec<u8> = end.inbox.drain(..count).collect();
        self.event_queue.schedule(now + latency, Event::Opens(stream, side.other(), count));
        Read::Bytes(bytes)
    }

    /// Closes the sending side.
    pub(in crate::sim) fn shut(&mut self, now: Instant, stream: Stream, side: Side) {
        let Some(link) = self.links.get_mut(&stream) else { return };
        if link.end(side).life == Life::Open {
            link.end(side).life = Life::Shut;
            self.dispatch(now, stream, side.other(), Segment::Fin);
        }
    }

    /// Closes the connection. The other end finds what was sent and then the end, or a reset if bytes were unread.
    pub(in crate::sim) fn close(&mut self, now: Instant, stream: Stream, side: Side) {
        let Some(link) = self.links.get_mut(&stream) else { return };
        let end = link.end(side);
        let was = core::mem::replace(&mut end.life, Life::Closed);
        if was != Life::Closed && !end.reset {
            if !end.inbox.is_empty() {
                end.inbox.clear();
                self.reset(now, stream, side.other());
            } else if was == Life::Open {
                self.dispatch(now, stream, side.other(), Segment::Fin);
            }
        }
        self.forget_if_over(stream);
    }

    /// Ends a connection because the process at one end died.
    pub(in crate::sim) fn abort(&mut self, now: Instant, stream: Stream, side: Side) {
        let Some(link) = self.links.get_mut(&stream) else { return };
        link.end(side).life = Life::Closed;
        self.reset(now, stream, side.other());
        self.forget_if_over(stream);
    }

    /// Cuts a connection. Each end notices at a time of its own.
    pub(in crate::sim) fn cut(&mut self, now: Instant, stream: Stream, loss: Loss) {
        for side in [Side::Client, Side::Server] {
            let latency = self.latency();
            let Some(link) = self.links.get_mut(&stream) else { return };
            let end = link.end(side);
            if loss == Loss::Tail {
                let in_flight: usize = end.coming.iter().map(Segment::len).sum();
                let mut kept = self.sim_rng.index(in_flight + 1);
                end.coming.retain_mut(|segment| segment.keep(&mut kept));
            }
            end.cut = true;
            let at = end.last_arrival.max(now) + latency;
            self.event_queue.schedule(at, Event::Reset(stream, side));
        }
    }

    /// Holds back one direction of a connection.
    pub(in crate::sim) fn clog(&mut self, stream: Stream, to: Side, until: Instant) {
        if let Some(link) = self.links.get_mut(&stream) {
            link.end(to).held_until = until;
        }
    }

    /// Holds back everything from and to a client, or only one direction.
    pub(in crate::sim) fn partition(&mut self, client: usize, to: Option<Side>, until: Instant) {
        for side in [Side::Client, Side::Server] {
            if to.is_none_or(|to| to == side) {
                self.partitioned_until[client][side as usize] = until;
            }
        }
    }

    /// Increases a client's latency.
    pub(in crate::sim) fn slow(&mut self, client: usize, by: Duration, until: Instant) {
        self.slow_until[client] = (until, by);
    }

    /// Returns the client that made a connection.
    pub(in crate::sim) fn client_of(&self, stream: Stream) -> Option<usize> {
        self.links.get(&stream).map(|link| link.client)
    }

    /// Returns the client whose worker is at the other end of a connection.
    pub(in crate::sim) fn worker_of(&self, stream: Stream) -> Option<usize> {
        self.links.get(&stream)?.worker
    }

    /// Returns all connections in the order in which they were made.
    pub(in crate::sim) fn streams(&self) -> impl Iterator<Item = Stream> {
        self.links.keys().copied()
    }

    /// Processes the next event.
    pub(in crate::sim) fn step(&mut self) -> Option<(Instant, Option<Notice>)> {
        let (now, event) = self.event_queue.pop()?;
        Some((now, self.handle_event(now, event)))
    }

    fn handle_event(&mut self, now: Instant, event: Event) -> Option<Notice> {
        let (stream, side) = match &event {
            Event::Knock(stream, _) => (*stream, Side::Server),
            Event::Answer(stream, _) => (*stream, Side::Client),
            Event::Arrive(stream, side)
            | Event::Reset(stream, side)
            | Event::Opens(stream, side, _)
            | Event::Ready(stream, side) => (*stream, *side),
        };
        let link = self.links.get_mut(&stream)?;
        let mut held = self.partitioned_until[link.client][side as usize].max(link.end(side).held_until);
        if let Some(worker) = link.worker {
            held = held.max(self.partitioned_until[worker][side.other() as usize]);
        }
        if held > now && !matches!(event, Event::Ready(..)) {
            // Events that are held together keep their order, since all are scheduled for the same time.
            self.event_queue.schedule(held, event);
            return None;
        }
        match event {
            Event::Knock(_, route) => self.knock(now, stream, route),
            Event::Answer(_, notice) => (link.end(Side::Client).life == Life::Open).then_some(notice),
            Event::Arrive(..) => {
                let end = link.end(side);
                let segment = end.coming.pop_front()?;
                if end.life == Life::Closed {
                    // No process is left to read it.
                    self.reset(now, stream, side.other());
                    return None;
                }
                match segment {
                    Segment::Bytes(bytes) => end.inbox.extend(bytes),
                    Segment::Fin => end.fin = true,
                }
                self.wake(now, stream, side);
                None
            }
            Event::Reset(..) => {
                let end = link.end(side);
                end.reset = true;
                end.coming.clear();
                // A socket that was reset is writable, too. A server that reads no further while its answers are unread
                // learns of the reset by writing.
                let is_starved = core::mem::take(&mut end.starved);
                self.wake(now, stream, side);
                is_starved.then_some(Notice::Writable(stream, side))
            }
            Event::Opens(_, _, bytes) => {
                let end = link.end(side);
                end.window += bytes;
                core::mem::take(&mut end.starved).then_some(Notice::Writable(stream, side))
            }
            Event::Ready(..) => {
                let end = link.end(side);
                end.ready_due = false;
                (end.life != Life::Closed).then_some(Notice::Readable(stream, side))
            }
        }
    }

    fn knock(&mut self, now: Instant, stream: Stream, route: Route) -> Option<Notice> {
        let (latency, is_heard) = (self.latency(), self.listens(route));
        let link = self.links.get_mut(&stream)?;
        if link.end(Side::Client).life == Life::Closed {
            self.links.remove(&stream);
            return None;
        }
        match route {
            Route::Server | Route::Worker(_) if is_heard => {
                self.event_queue.schedule(now + latency, Event::Answer(stream, Notice::Connected(stream)));
                Some(Notice::Accept(stream))
            }
            Route::Server | Route::Worker(_) | Route::Closed => {
                link.end(Side::Server).life = Life::Closed;
                self.event_queue.schedule(now + latency, Event::Answer(stream, Notice::Refused(stream)));
                None
            }
            Route::Nowhere => {
                link.end(Side::Server).life = Life::Closed;
                None
            }
        }
    }

    fn listens(&self, route: Route) -> bool {
        match route {
            Route::Server => self.listening,
            Route::Worker(worker) => self.workers.contains(&worker),
            Route::Nowhere | Route::Closed => false,
        }
    }

    fn dispatch(&mut self, now: Instant, stream: Stream, to: Side, segment: Segment) {
        let latency = self.latency();
        let Some(link) = self.links.get_mut(&stream) else { return };
        let hosts = [Some(link.client), link.worker].into_iter().flatten();
        let slow = hosts.map(|host| self.slow_until[host]).filter(|(until, _)| now < *until);
        let latency = slow.fold(latency, |latency, (_, by)| latency + by);
        let end = link.end(to);
        if end.cut || end.reset {
            return;
        }
        end.last_arrival = end.last_arrival.max(now + latency);
        end.coming.push_back(segment);
        let at = end.last_arrival;
        self.event_queue.schedule(at, Event::Arrive(stream, to));
    }

    /// Sends a reset, which arrives after all that was sent before.
    fn reset(&mut self, now: Instant, stream: Stream, to: Side) {
        let latency = self.latency();
        let Some(link) = self.links.get_mut(&stream) else { return };
        let at = link.end(to).last_arrival.max(now + latency);
        self.event_queue.schedule(at, Event::Reset(stream, to));
    }

    /// Schedules a notification of the reader, unless one is scheduled.
    fn wake(&mut self, now: Instant, stream: Stream, side: Side) {
        let delay = self.sim_rng.span(Duration::ZERO, self.network_model.reader_delay_max);
        let Some(link) = self.links.get_mut(&stream) else { return };
        let end = link.end(side);
        if !end.ready_due {
            end.ready_due = true;
            self.event_queue.schedule(now + delay, Event::Ready(stream, side));
        }
    }

    /// Schedules another notification, because the reader has left bytes unread.
    pub(in crate::sim) fn read_on(&mut self, now: Instant, stream: Stream, side: Side) {
        self.wake(now, stream, side);
    }

    fn forget_if_over(&mut self, stream: Stream) {
        if let Some(link) = self.links.get(&stream)
            && link.ends.iter().all(|end| end.life == Life::Closed)
        {
            self.links.remove(&stream);
        }
    }

    fn latency(&mut self) -> Duration {
        self.sim_rng.span(self.network_model.latency_min, self.network_model.latency_max)
    }
}

impl Segment {
    const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Fin => 0,
        }
    }

    /// Keeps the part within the first `kept` bytes.
    fn keep(&mut self, kept: &mut usize) -> bool {
        match self {
            Self::Bytes(bytes) => {
                bytes.truncate(*kept);
                *kept -= bytes.len();
                !bytes.is_empty()
            }
            Self::Fin => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_without_capacity_is_notified_of_a_reset() {
        let network_model = NetworkModel {
            latency_min: Duration::from_millis(1),
            latency_max: Duration::from_millis(2),
            segment_bytes_max: 16,
            window_bytes: 64,
            reader_delay_max: Duration::from_millis(1),
            read_bytes_max: 64,
        };
        let mut network = Network::new(SimRng::new(1, 0), network_model, 1);
        let mut now = Instant::ORIGIN;
        let stream = network.connect(now, 0, Route::Server);
        while let Some((at, _)) = network.step() {
            now = at;
        }
        assert_eq!(network.write(now, stream, Side::Server, &[0; 65]), Ok(64));
        network.abort(now, stream, Side::Client);
        let mut notices = Vec::new();
        while let Some((at, notice)) = network.step() {
            now = at;
            notices.extend(notice);
        }
        for notice in [Notice::Readable(stream, Side::Server), Notice::Writable(stream, Side::Server)] {
            assert!(notices.contains(&notice), "{notices:?} and {notice:?}");
        }
        assert_eq!(network.write(now, stream, Side::Server, &[0; 1]), Err(Broken));
    }
}
