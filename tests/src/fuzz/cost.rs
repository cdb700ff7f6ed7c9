//! What an input costs a server: work and memory for one `handle`, whatever came before.

use super::drawn::{Names, Ticket, any_hello, c10d_request, native_request, opening};
use crate::counting::allocated_bytes;
use crate::entropy::Entropy;
use crate::frames;
use crate::rig::PEER;
use rendezvous_core::ids::ConnId;
use rendezvous_core::limits::{BarrierLimits, EngineLimits, HistoryLimits, ServerLimits, SessionLimits};
use rendezvous_core::node::server::{Input, Output, Server, ServerInstance};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::native::Label;

/// Steps of one input.
const STEPS_MAX: usize = 40;
/// Bytes that the clients of one input send at most, so that no input takes long.
const SENT_BYTES_MAX: usize = 4 << 20;
const CLIENTS_MAX: usize = 12;
/// Keys that are named.
const KEYS: usize = 1024;
/// Keys of a list at most.
const LIST_MAX: usize = 200;

/// Work of one input: each of the three kinds of work of a tick has a budget, the request that exceeds it is executed as a
/// whole, and so is a step of a job. A batch has a budget of its own.
const WORK_MAX: u64 = 3 * WORK_PER_INPUT_MAX + BATCH_WORK_MAX + 2500;
const WORK_PER_INPUT_MAX: u64 = 200;
const BATCH_WORK_MAX: u64 = 2000;
/// Further work for each 64 bytes of the longest input so far, which may wait for a later turn.
const WORK_MAX_PER_64_BYTES: u64 = 24;
/// Bytes that may be allocated for an input: tables of all that the limits allow may double.
const ALLOCATED_MAX: u64 = 3 << 20;
/// Further bytes for each byte of the longest input so far.
const ALLOCATED_MAX_PER_BYTE: u64 = 12;
/// CPU time that an input may take, to find work that the server does not count. Sanitizers make it several times slower.
const CPU_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(500);

/// Small limits, so that a short input reaches them.
fn limits() -> ServerLimits {
    let all = ServerLimits::default();
    ServerLimits {
        engine: EngineLimits {
            stored_bytes_max: 1 << 20,
            registrations_max: 4096,
            removed_at_once_max: 512,
            waits_per_connection_max: 16,
            registrations_per_connection_max: 4096,
        },
        history: HistoryLimits {
            changes_max: 2048,
            bytes_max: 512 << 10,
            watches_max: 1024,
            leases_max: 256,
            leased_keys_max: 2048,
        },
        barrier: BarrierLimits { barriers_max: 64, stored_bytes_max: 64 << 10, ..all.barrier },
        session: SessionLimits { pending_max: 512, waiting_bytes_max: 256 << 10, ..all.session },
        work_per_input_max: WORK_PER_INPUT_MAX,
        batch_work_max: BATCH_WORK_MAX,
        unsent_bytes_high: 64 << 10,
        buffered_bytes_max: 4 << 20,
        ..all
    }
}

/// The most that any input cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Work beyond what the longest input allows.
    pub work: u64,
    /// Allocated bytes beyond what the longest input allows.
    pub allocated: u64,
}

/// Whatever a few clients send, and whatever state that leaves: the work that the server counts for one input, the bytes
/// that it allocates, and the CPU time that it takes are within a constant, plus a factor for the longest input. Returns
/// the most above that factor.
///
/// # Panics
/// When they are not, or when the program does not count allocations.
pub fn cost(bytes: &[u8]) -> Costs {
    assert!(
        allocated_bytes(|| drop(core::hint::black_box(vec![0_u8; 100]))) >= 100,
        "the program counts no allocations"
    );
    let mut entropy = Entropy::new(bytes);
    let mut world = World {
        server: Server::new(limits(), ServerInstance::from_seed(1)),
        now: Instant::ORIGIN,
        names: Names::many(KEYS),
        clients: Vec::new(),
        sent: 0,
        longest: 0,
        costs: Costs::default(),
    };
    for _ in 0..STEPS_MAX {
        if entropy.is_empty() || world.sent > SENT_BYTES_MAX {
            break;
        }
        world.step(&mut entropy);
    }
    world.finish();
    world.costs
}

struct Client {
    conn: ConnId,
    is_native: bool,
    is_open: bool,
    /// Bytes that its socket accepts still.
    window: usize,
    next_id: u64,
}

struct World {
    server: Server,
    now: Instant,
    names: Names,
    clients: Vec<Client>,
    sent: usize,
    longest: usize,
    costs: Costs,
}

impl World {
    fn step(&mut self, entropy: &mut Entropy<'_>) {
        let kind = entropy.below(16);
        let open: Vec<usize> = (0..self.clients.len()).filter(|&at| self.clients[at].is_open).collect();
        if open.is_empty() || (kind < 2 && open.len() < CLIENTS_MAX) {
            return self.connect(entropy);
        }
        let at = open[entropy.below(open.len())];
        let conn = self.clients[at].conn;
        match kind {
            2 => {
                self.clients[at].window = entropy.choose(&[0, 1, 100_000, usize::MAX]);
                self.transmit(at);
                self.execute();
            }
            3 if entropy.below(4) == 0 => self.feed(Input::Lost { conn, os_error: 104 }, 0),
            4 => {
                self.now = self.now + Duration::from_millis(entropy.choose(&[1, 100, 2000]));
                self.feed(Input::Tick, 0);
            }
            5 => self.finish(),
            _ => {
                let times = entropy.choose(&[1, 1, 4, 32, 200]);
                let is_one_input = entropy.below(2) == 0;
                // The same request each time, or others.
                let (drawn, is_same) = (*entropy, entropy.below(2) == 0);
                let mut frames = Vec::new();
                for _ in 0..times {
                    if is_same {
                        *entropy = drawn;
                    }
                    frames.push(self.frame(entropy, at));
                    if frames.iter().map(Vec::len).sum::<usize>() > SENT_BYTES_MAX / 4 {
                        break;
                    }
                }
                if is_one_input {
                    frames = vec![frames.concat()];
                }
                for bytes in frames {
                    if self.clients[at].is_open && self.server.wants_read(conn) {
                        self.feed(Input::Received { conn, bytes: &bytes }, bytes.len());
                    }
                }
            }
        }
    }

    fn connect(&mut self, entropy: &mut Entropy<'_>) {
        let is_native = entropy.below(4) > 0;
        let index = (0..)
            .find(|&index| !self.clients.iter().any(|client| client.is_open && client.conn.index == index));
        let conn = ConnId {
            index: index.expect("a free one"),
            generation: u32::try_from(self.clients.len()).expect("few"),
        };
        let window = entropy.choose(&[usize::MAX, usize::MAX, 0]);
        self.clients.push(Client { conn, is_native, is_open: true, window, next_id: 1 });
        self.feed(Input::Accepted { conn, peer: PEER }, 0);
        let bytes =
            if is_native { opening(&any_hello(entropy, Ticket::default()), 0) } else { frames::greeting() };
        self.feed(Input::Received { conn, bytes: &bytes }, bytes.len());
    }

    fn frame(&mut self, entropy: &mut Entropy<'_>, at: usize) -> Vec<u8> {
        let client = &mut self.clients[at];
        if client.is_native {
            let label = Label { id: client.next_id, sequence: 0, flags: 0 };
            client.next_id += 1;
            return native_request(entropy, &self.names, label, LIST_MAX);
        }
        c10d_request(entropy, &self.names, LIST_MAX)
    }

    /// Ticks until nothing is left to do now.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.server.poll_timeout().is_none_or(|due| due > self.now) {
                return;
            }
            self.feed(Input::Tick, 0);
        }
        panic!("the work of {} bytes never ends", self.sent);
    }

    /// Passes an input of `bytes` bytes to the server, and compares what it cost with the bounds.
    fn feed(&mut self, input: Input<'_>, bytes: usize) {
        self.sent += bytes;
        self.longest = self.longest.max(bytes);
        self.handle(input);
        self.execute();
    }

    fn execute(&mut self) {
        while let Some(output) = self.server.poll_output() {
            match output {
                Output::Transmit { conn } => {
                    if let Some(at) = self.clients.iter().position(|client| client.conn == conn) {
                        self.transmit(at);
                    }
                }
                Output::Close { conn } => {
                    let mut clients = self.clients.iter_mut();
                    clients.find(|client| client.conn == conn).expect("a client of this world").is_open =
                        false;
                }
                Output::Read { .. } | Output::Event(_) => {}
            }
        }
    }

    /// Lets a client's socket accept what its window allows.
    fn transmit(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let unsent = self.server.unsent(client.conn).len();
        if client.is_open && unsent > 0 {
            let bytes = unsent.min(client.window);
            client.window = client.window.saturating_sub(bytes);
            let conn = client.conn;
            self.handle(Input::Sent { conn, bytes });
        }
    }

    fn handle(&mut self, input: Input<'_>) {
        let (now, server) = (self.now, &mut self.server);
        let name = format!("{input:?}");
        let before = cpu_time();
        let allocated =
            allocated_bytes(|| server.handle(now, input).expect("an input for a connection of this world"));
        let (took, work) = (cpu_time() - before, server.work());
        let longest = self.longest as u64;
        let (for_work, for_bytes) = (longest * WORK_MAX_PER_64_BYTES / 64, longest * ALLOCATED_MAX_PER_BYTE);
        self.costs.work = self.costs.work.max(work.saturating_sub(for_work));
        self.costs.allocated = self.costs.allocated.max(allocated.saturating_sub(for_bytes));
        let name = &name[..name.len().min(200)];
        assert!(
            work <= WORK_MAX + for_work,
            "{work} units of work after inputs of up to {longest} bytes: {name}"
        );
        assert!(
            allocated <= ALLOCATED_MAX + for_bytes,
            "{allocated} bytes were allocated after inputs of up to {longest} bytes: {name}"
        );
        assert!(took <= CPU_TIME_MAX, "{took:?} after inputs of up to {longest} bytes: {name}");
    }
}

/// CPU time of this thread.
fn cpu_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    std::time::Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
