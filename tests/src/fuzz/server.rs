//! Connections that open, send pieces and garbage, stop reading and close, against the server machine.

use super::{Lists, any_request};
use crate::entropy::Entropy;
use crate::frames;
use crate::model::Model;
use crate::rig::Rig;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{FrameLimits, PartLimits, ServerLimits};
use rendezvous_core::node::server::{CloseReason, Input};
use rendezvous_core::store::op::Request;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::c10d::{Frame, Scan, Scanner, parse_frame};
use std::collections::BTreeMap;

/// More deadlines than one run of this target can leave.
const DEADLINES_LEFT_MAX: usize = 10_000;
/// More time than the server lets pass between two slices of costly requests.
const SLICE_PAUSE_MAX: Duration = Duration::from_millis(300);

/// For a few clients that do anything, with sockets that accept any number of bytes: each gets exactly the bytes of the
/// model, the server's counts are correct, and nothing is left of clients that have closed.
///
/// # Panics
/// When that does not hold.
pub fn server(bytes: &[u8]) {
    let mut entropy = Entropy::new(bytes);
    // With a low limit requests wait while answers are unread, and then find another state of the store. Only the
    // counts are checked then.
    let unsent_bytes_high = entropy.choose(&[1 << 20, 1 << 20, 50]);
    // By the last byte, so that inputs from before lists were executed in parts keep their meaning.
    let keys_max = [256, 1, 2][usize::from(bytes.last().copied().unwrap_or(0)) / 8 % 3];
    let c10d_part = PartLimits { keys_max, read_keys_max: keys_max, ..PartLimits::default() };
    let limits = ServerLimits { unsent_bytes_high, c10d_part, ..ServerLimits::default() };
    let mut world = World {
        rig: Rig::new(limits),
        model: (unsent_bytes_high > 50).then(|| Model::new(limits.engine)),
        clients: BTreeMap::new(),
    };
    while !entropy.is_empty() {
        world.step(&mut entropy);
        world.check();
    }
    world.leave();
}

struct World {
    rig: Rig,
    model: Option<Model>,
    clients: BTreeMap<ConnId, Client>,
}

/// What the server must do for one client.
#[derive(Default)]
struct Client {
    /// Sent by the client, and not delivered yet.
    on_the_way: Vec<u8>,
    /// Delivered, but not a whole frame yet.
    received: Vec<u8>,
    greeted: bool,
    connected_at: Instant,
    received_at: Instant,
    /// All bytes of its answers.
    due: Vec<u8>,
    /// Queues of which a push has woken it, and which it has not used since.
    wakes: Vec<Vec<u8>>,
    has_cancelled: bool,
    ending: Ending,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// It ends when all answers were sent.
    WhenSent,
    /// It has ended.
    Dead,
}

impl World {
    fn step(&mut self, entropy: &mut Entropy<'_>) {
        let open: Vec<ConnId> = self.clients.keys().copied().filter(|&conn| self.rig.is_open(conn)).collect();
        let kind = entropy.below(32);
        if open.is_empty() || (kind == 0 && open.len() < 4) {
            let (on_the_way, now) = (frames::greeting(), self.rig.now);
            let client = Client { on_the_way, connected_at: now, received_at: now, ..Client::default() };
            self.clients.insert(self.rig.connect(), client);
            return;
        }
        let conn = open[entropy.below(open.len())];
        let client = self.clients.get_mut(&conn).expect("one of the open ones");
        match kind {
            1 => client.on_the_way.extend_from_slice(entropy.bytes(12)),
            2 => client.on_the_way.extend(frames::ping(u32::from(entropy.byte()))),
            3 | 4 => self.rig.open_window(conn, entropy.choose(&[0, 1, 9, 100, usize::MAX])),
            5 if entropy.below(4) == 0 => {
                client.ending = Ending::Dead;
                self.forget(conn);
                self.rig.feed(Input::Lost { conn, os_error: 104 });
            }
            6 if entropy.below(4) == 0 => {
                if client.ending == Ending::No {
                    client.ending = Ending::WhenSent;
                }
                self.forget(conn);
                self.rig.feed(Input::ReadClosed { conn });
            }
            7 => self.pass(Duration::from_millis(entropy.byte().into())),
            8..=19 => {
                let mut lists = Lists::default();
                let frame = frames::request(any_request(entropy, &mut lists));
                client.on_the_way.extend(frame);
            }
            _ => {
                let most = entropy.choose(&[1, 3, 20, usize::MAX]);
                let chunk: Vec<u8> = client.on_the_way.drain(..most.min(client.on_the_way.len())).collect();
                self.deliver(conn, &chunk);
            }
        }
    }

    /// Lets time pass, one deadline after the other, as the driver does.
    fn pass(&mut self, span: Duration) {
        let end = self.rig.now + span;
        while self.rig.now < end {
            let due = self.rig.server.poll_timeout().unwrap_or(end);
            self.tick_at(due.min(end));
        }
    }

    fn tick_at(&mut self, due: Instant) {
        self.rig.pass(due.since(self.rig.now));
        for conn in self.clients.keys().copied().collect::<Vec<_>>() {
            self.note_expelled(conn);
        }
    }

    /// Notes that the server has closed a connection whose time was over.
    fn note_expelled(&mut self, conn: ConnId) {
        let client = self.clients.get_mut(&conn).expect("a client of this world");
        let (limits, now) = (ServerLimits::default(), self.rig.now);
        let (is_due, since, limit) = match self.rig.closed(conn) {
            _ if client.ending == Ending::Dead => return,
            Some(CloseReason::HandshakeTimeout) => {
                (!client.greeted, client.connected_at, limits.handshake_timeout)
            }
            Some(CloseReason::FrameTimeout) => {
                (!client.received.is_empty(), client.received_at, limits.frame_timeout)
            }
            Some(CloseReason::StallTimeout) => {
                let is_unread = self.rig.clients[&conn].got.len() < client.due.len();
                (is_unread || self.model.is_none(), client.connected_at, limits.stall_timeout)
            }
            _ => return,
        };
        assert!(is_due && now >= since + limit, "{conn:?} was closed: {:?}", self.rig.closed(conn));
        client.ending = Ending::Dead;
        self.forget(conn);
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(model) = &mut self.model {
            model.forget(conn);
        }
        self.pass_on(conn);
    }

    /// Wakes other clients in the place of one that does not use its wake-ups.
    fn pass_on(&mut self, conn: ConnId) {
        let client = self.clients.get_mut(&conn).expect("a client of this world");
        client.has_cancelled = false;
        for queue in core::mem::take(&mut client.wakes) {
            let woken = self.model.as_mut().map(|model| model.pass_on(&queue)).unwrap_or_default();
            self.wake(woken, Some(&queue));
        }
    }

    /// Tells clients that their waits have ended, because of an item of `queue` or because of a value.
    fn wake(&mut self, woken: Vec<ConnId>, queue: Option<&[u8]>) {
        for conn in woken {
            let client = self.clients.get_mut(&conn).expect("a client that waits is connected");
            client.due.push(0);
            if let Some(queue) = queue {
                client.wakes.push(queue.to_vec());
                client.has_cancelled = false;
            }
        }
    }

    /// Passes the wake-ups on that a client does not use with this request.
    fn use_wakes(&mut self, conn: ConnId, request: &Request<'_>) {
        let client = self.clients.get_mut(&conn).expect("an open one");
        match request {
            _ if client.wakes.is_empty() => {}
            Request::CancelWait => client.has_cancelled = true,
            Request::QueuePop { key } => {
                let key = key.pieces().concat();
                match client.wakes.iter().position(|queue| *queue == key) {
                    Some(at) => drop(client.wakes.swap_remove(at)),
                    None => self.pass_on(conn),
                }
            }
            _ => self.pass_on(conn),
        }
    }

    fn deliver(&mut self, conn: ConnId, chunk: &[u8]) {
        let client = self.clients.get_mut(&conn).expect("an open one");
        if chunk.is_empty() || client.ending != Ending::No || !self.rig.server.wants_read(conn) {
            return;
        }
        client.received_at = self.rig.now;
        client.received.extend_from_slice(chunk);
        while let Some(frame) = self.next_frame(conn) {
            self.expect(conn, &frame);
        }
        let client = self.clients.get_mut(&conn).expect("an open one");
        if client.has_cancelled && client.received.is_empty() {
            self.pass_on(conn);
        }
        self.rig.send(conn, chunk);
        // The model answers at once, and the server in slices if many requests are costly.
        while self.model.is_some()
            && let Some(due) =
                self.rig.server.poll_timeout().filter(|&due| due < self.rig.now + SLICE_PAUSE_MAX)
        {
            self.tick_at(due);
        }
    }

    /// Returns the next whole delivered frame, unless the client has violated the protocol.
    fn next_frame(&mut self, conn: ConnId) -> Option<Vec<u8>> {
        let client = self.clients.get_mut(&conn)?;
        if client.ending != Ending::No {
            return None;
        }
        let greeting = frames::greeting();
        let outcome = if client.greeted {
            let scan = Scanner::default().scan(&client.received, &FrameLimits::default());
            scan.map_err(|_| ()).map(|scan| if let Scan::Whole { bytes } = scan { Some(bytes) } else { None })
        } else if client.received.iter().zip(&greeting).any(|(received, due)| received != due) {
            Err(())
        } else {
            Ok((client.received.len() >= greeting.len()).then_some(greeting.len()))
        };
        match outcome {
            Ok(whole) => whole.map(|bytes| client.received.drain(..bytes).collect()),
            Err(()) => {
                client.ending = Ending::WhenSent;
                self.forget(conn);
                None
            }
        }
    }

    /// Passes the model's result of a frame to the clients that it concerns.
    fn expect(&mut self, conn: ConnId, frame: &[u8]) {
        let parsed = parse_frame(frame).expect("a whole frame");
        let pushed = match &parsed {
            Frame::Request(request) => {
                self.use_wakes(conn, request);
                if let Request::QueuePush { key, .. } = request { Some(key.pieces().concat()) } else { None }
            }
            _ => None,
        };
        let client = self.clients.get_mut(&conn).expect("an open one");
        let poll = match parsed {
            Frame::Validate { .. } if !client.greeted => return client.greeted = true,
            Frame::Validate { .. } => None,
            Frame::Ping { nonce } => return client.due.extend(nonce.to_le_bytes()),
            Frame::Request(request) => match &mut self.model {
                Some(model) => model.apply(conn, &request).ok(),
                None => return,
            },
        };
        let Some(poll) = poll else {
            client.ending = Ending::WhenSent;
            return self.forget(conn);
        };
        self.wake(poll.released, pushed.as_deref());
        self.clients.get_mut(&conn).expect("an open one").due.extend(poll.answer);
    }

    fn check(&self) {
        let stats = self.rig.server.stats();
        let mut unsent_in_all = 0;
        let mut open = 0;
        for (&conn, client) in &self.clients {
            let (got, unsent) = (&self.rig.clients[&conn].got, self.rig.server.unsent(conn));
            unsent_in_all += unsent.len() as u64;
            open += usize::from(self.rig.is_open(conn));
            if self.model.is_none() {
                continue;
            }
            if self.rig.is_open(conn) {
                assert_eq!([got, unsent].concat(), client.due, "{conn:?}");
                assert!(client.ending == Ending::No || !unsent.is_empty(), "{conn:?} ought to be closed");
            } else {
                assert!(client.ending != Ending::No, "{conn:?} was closed: {:?}", self.rig.closed(conn));
                let all = client.ending == Ending::Dead || got.len() == client.due.len();
                assert!(
                    all && client.due.starts_with(got),
                    "{conn:?} was closed before its answers had left"
                );
            }
        }
        assert_eq!(stats.connections, open);
        assert!(stats.buffered_bytes >= unsent_in_all, "{stats:?}, {unsent_in_all} unsent");
        if let Some(model) = &self.model {
            assert_eq!((stats.keys, stats.waiting), (model.key_count(), model.waiting()));
            assert_eq!(stats.stored_bytes, model.stored_bytes());
            assert_eq!(self.rig.server.engine().footprint(), model.footprint());
        }
    }

    /// Closes all clients. Only what is stored remains.
    fn leave(mut self) {
        let open: Vec<ConnId> = self.clients.keys().copied().filter(|&conn| self.rig.is_open(conn)).collect();
        for conn in open {
            self.rig.feed(Input::Lost { conn, os_error: 0 });
        }
        let stats = self.rig.server.stats();
        assert_eq!((stats.connections, stats.buffered_bytes, stats.waiting), (0, 0, 0));
        // One deadline after the other: a server that is woken late takes that for a pause and moves its deadlines.
        for _ in 0..DEADLINES_LEFT_MAX {
            let Some(due) = self.rig.server.poll_timeout() else { return };
            self.rig.pass(due.since(self.rig.now));
        }
        panic!("a deadline outlives its connection for good: {:?}", self.rig.server.poll_timeout());
    }
}
