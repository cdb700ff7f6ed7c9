//! Frames of clients, drawn from bytes.

use crate::entropy::Entropy;
use crate::frames;
use rendezvous_core::store::op::{Key, Keys, Pairs, Request};
use rendezvous_core::store::txn::{Compare, Condition, Write};
use rendezvous_core::wire::native::Label;
use rendezvous_core::wire::native::{
    Batched, ClientFrame, Entry, HEADER_BYTES, LastCall, List, MAGIC, Participants, RankOrder, Terms,
};

const DELTAS: [i64; 5] = [0, 1, -1, i64::MAX, i64::MIN];
const TIMEOUTS_MS: [u64; 5] = [0, 1, 50, 5000, u64::MAX];
const RUNS: [&[u8]; 3] = [b"r", b"s", b""];
const NODES: [&[u8]; 4] = [b"node0", b"node1", b"node0_1_0", b""];
/// Long enough to be shared rather than copied.
const LONG: [u8; 5000] = [b'x'; 5000];
/// A few of these fill a small store.
static LONGEST: [u8; 64 << 10] = [b'v'; 64 << 10];

/// Session of a client, as WELCOME described it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ticket {
    pub(crate) incarnation: u64,
    pub(crate) session: u64,
    pub(crate) token: [u8; 16],
}

/// Returns a HELLO without credentials that opens a session, or resumes the one of the ticket.
pub(crate) fn any_hello(entropy: &mut Entropy<'_>, ticket: Ticket) -> ClientFrame<'static> {
    let Ticket { incarnation, session, token } = ticket;
    ClientFrame::Hello {
        version_min: 1,
        version_max: entropy.choose(&[1, 1, 1, 2, 0]),
        incarnation,
        session,
        token,
        grace_ms: entropy.choose(&[0, 0, 100, 10_000]),
        heartbeat_ms: entropy.choose(&[0, 10, 5000]),
        heartbeats_missed_max: entropy.choose(&[3, 1, 0]),
        node: entropy.choose(&NODES),
        auth: b"",
    }
}

/// Returns the first bytes of a connection that begins with `hello`.
pub(crate) fn opening(hello: &ClientFrame<'_>, received: u64) -> Vec<u8> {
    [&MAGIC[..], &frames::native(Label { id: 0, sequence: received, flags: 0 }, hello)].concat()
}

/// Names that a request refers to.
#[derive(Debug)]
pub(crate) struct Names {
    pool: Vec<Vec<u8>>,
}

impl Names {
    /// Few names, so that requests interact, and those of the keys of rounds.
    pub(crate) fn few() -> Self {
        let names = ["a", "b", "a/b", "a/c", "q", "", "rdzv/rounds/r/0/k", "r/0/k"];
        Self { pool: names.iter().map(|name| name.as_bytes().to_vec()).collect() }
    }

    /// Many names with a prefix in common.
    pub(crate) fn many(count: usize) -> Self {
        Self { pool: (0..count).map(|number| format!("a/{number}").into_bytes()).collect() }
    }

    pub(crate) fn any(&self, entropy: &mut Entropy<'_>) -> &[u8] {
        let at = entropy.below(256) * 251 + entropy.below(8);
        &self.pool[at % self.pool.len()]
    }

    pub(crate) fn list(&self, entropy: &mut Entropy<'_>, most: usize) -> Vec<&[u8]> {
        let (count, start) = (entropy.below(most + 1), entropy.below(256));
        (0..count).map(|at| &self.pool[(start + at) % self.pool.len()][..]).collect()
    }
}

/// Returns one request of the native protocol with this label.
pub(crate) fn native_request(
    entropy: &mut Entropy<'_>,
    names: &Names,
    label: Label,
    list_max: usize,
) -> Vec<u8> {
    let keys = names.list(entropy, list_max);
    let value = &LONG[..entropy.choose(&[0, 1, 1, 20, 1024, 1025, 5000])];
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|&key| (key, value)).collect();
    let mut drawn = *entropy;
    let plain = |entropy: &mut Entropy<'_>| -> ClientFrame<'_> {
        let (key, other) = (Key::raw(names.any(entropy)), Key::raw(names.any(entropy)));
        let timeout_ms = entropy.choose(&TIMEOUTS_MS);
        match entropy.below(15) {
            0 => ClientFrame::Set { key, value },
            1 => ClientFrame::CompareSet { key, expected: other.name(), desired: value },
            2 => ClientFrame::Get { timeout_ms, key },
            3 => ClientFrame::Add { key, delta: entropy.choose(&DELTAS) },
            4 => ClientFrame::NumKeys {},
            5 => ClientFrame::Delete { key },
            6 => ClientFrame::Append { key, value },
            7 => ClientFrame::QueuePush { key, value },
            8 => ClientFrame::QueuePop { timeout_ms, key },
            9 => ClientFrame::QueueLen { key },
            10 => ClientFrame::ListKeys {
                prefix: key,
                after: other,
                count_max: entropy.choose(&[0, 1, 10, u32::MAX]),
            },
            11 => ClientFrame::DeletePrefix { prefix: key },
            12 => ClientFrame::WatchKey { key, from_revision: entropy.below(8) as u64 },
            13 => ClientFrame::WatchPrefix { prefix: key, from_revision: entropy.below(8) as u64 },
            _ => ClientFrame::Heartbeat { nonce: 7 },
        }
    };
    let write = |entropy: &mut Entropy<'_>| {
        let key = Key::raw(names.any(entropy));
        match entropy.below(5) {
            0 => Write::Set { key, value },
            1 => Write::Delete { key },
            2 => Write::DeletePrefix { prefix: key },
            3 => Write::Add { key, delta: entropy.choose(&DELTAS) },
            _ => Write::Append { key, value },
        }
    };
    let lease = entropy.below(4) as u64;
    let encode = |frame: &ClientFrame<'_>| frames::native(label, frame);
    let kind = drawn.below(32);
    let bytes = match kind {
        0..=11 => encode(&plain(&mut drawn)),
        12 => encode(&ClientFrame::Check { keys: Keys::scoped(b"", &keys) }),
        13 => {
            let timeout_ms = drawn.choose(&TIMEOUTS_MS);
            encode(&ClientFrame::Wait { timeout_ms, keys: Keys::scoped(b"", &keys) })
        }
        14 => {
            let timeout_ms = drawn.choose(&TIMEOUTS_MS);
            encode(&ClientFrame::MultiGet { timeout_ms, keys: Keys::scoped(b"", &keys) })
        }
        15 => encode(&ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) }),
        16 | 17 => {
            let condition = drawn.choose(&[Condition::Exists, Condition::Absent, Condition::Revision(0)]);
            let compares: Vec<_> =
                keys.iter().take(3).map(|&key| Compare { key: Key::raw(key), condition }).collect();
            let writes: Vec<_> = (0..drawn.below(list_max + 1)).map(|_| write(&mut drawn)).collect();
            let otherwise: Vec<_> = (0..drawn.below(2)).map(|_| write(&mut drawn)).collect();
            encode(&ClientFrame::Txn {
                compares: List::new(&compares),
                then: List::new(&writes),
                otherwise: List::new(&otherwise),
            })
        }
        18 | 19 => {
            let parts: Vec<_> = (0..drawn.below(list_max + 1)).map(|_| Batched(plain(&mut drawn))).collect();
            encode(&ClientFrame::Batch { requests: List::new(&parts) })
        }
        20 => encode(&ClientFrame::LeaseGrant { ttl_ms: drawn.choose(&TIMEOUTS_MS) }),
        21 => encode(&ClientFrame::LeaseAttach { lease, keys: Keys::scoped(b"", &keys) }),
        22 => encode(&ClientFrame::LeaseRenew { lease }),
        23 => encode(&ClientFrame::LeaseRevoke { lease }),
        24 => {
            let names: Vec<&[u8]> = NODES.into_iter().take(drawn.below(4)).collect();
            let by_count = Participants::Count(drawn.choose(&[0, 1, 2, 3]));
            let participants =
                if drawn.below(2) == 0 { by_count } else { Participants::Names(Keys::scoped(b"", &names)) };
            encode(&ClientFrame::Barrier {
                key: Key::raw(b"barrier"),
                generation: drawn.choose(&[0, 0, 1, u64::MAX]),
                name: drawn.choose(&NODES),
                timeout_ms: drawn.choose(&TIMEOUTS_MS),
                participants,
            })
        }
        25 => encode(&ClientFrame::BarrierCancel { key: Key::raw(b"barrier"), name: drawn.choose(&NODES) }),
        26 | 27 => {
            let entry = entry(&mut drawn, &pairs);
            let is_standby = drawn.below(4) == 0;
            encode(&if is_standby { ClientFrame::Standby { entry } } else { ClientFrame::Join { entry } })
        }
        28 => encode(&ClientFrame::Leave { run_id: Key::raw(drawn.choose(&RUNS)) }),
        29 => {
            let run_id = Key::raw(drawn.choose(&RUNS));
            encode(&match drawn.below(3) {
                0 => ClientFrame::Close { run_id },
                1 => ClientFrame::Fail { run_id, message: value },
                _ => ClientFrame::RunInfo { run_id },
            })
        }
        30 => encode(&ClientFrame::Members {
            run_id: Key::raw(drawn.choose(&RUNS)),
            round: drawn.below(3) as u64,
            first_node_rank: drawn.choose(&[0, 1, u32::MAX]),
            count_max: drawn.choose(&[0, 1, u32::MAX]),
        }),
        _ => match drawn.below(6) {
            0 => encode(&ClientFrame::Bye {}),
            1 => encode(&ClientFrame::Abandon {}),
            2 => encode(&ClientFrame::Acknowledge {}),
            _ => encode(&ClientFrame::Cancel { request: label.id.saturating_sub(1 + drawn.below(3) as u64) }),
        },
    };
    *entropy = drawn;
    debug_assert!(bytes.len() >= HEADER_BYTES);
    bytes
}

/// Returns one request of the protocol c10d.
pub(crate) fn c10d_request(entropy: &mut Entropy<'_>, names: &Names, list_max: usize) -> Vec<u8> {
    let keys = names.list(entropy, list_max);
    let key = Key::raw(names.any(entropy));
    let value = &LONGEST[..entropy.choose(&[0, 1, 1024, 1025, 9000, LONGEST.len()])];
    let pairs: Vec<(&[u8], &[u8])> = keys.iter().map(|&key| (key, &value[..value.len().min(64)])).collect();
    let list = Keys::scoped(b"", &keys);
    frames::request(match entropy.below(17) {
        0 => Request::Set { key, value },
        1 => Request::CompareSet { key, expected: b"", desired: value },
        2 => Request::Get { key },
        3 => Request::Add { key, delta: 1 },
        4 => Request::Check { keys: list },
        5 => Request::Wait { keys: list },
        6 => Request::NumKeys,
        7 => Request::Delete { key },
        8 => Request::Append { key, value },
        9 => Request::MultiGet { keys: list },
        10 => Request::MultiSet { pairs: Pairs::scoped(b"", &pairs) },
        11 => Request::CancelWait,
        12 => Request::QueuePush { key, value },
        13 => Request::QueuePop { key },
        14 => Request::QueueLen { key },
        15 => Request::ListKeys,
        _ => Request::Barrier { key, world_size: entropy.choose(&[1, 2, 3]) },
    })
}

fn entry<'a>(entropy: &mut Entropy<'_>, labels: &'a [(&'a [u8], &'a [u8])]) -> Entry<'a> {
    Entry {
        run_id: entropy.choose(&RUNS),
        node: entropy.choose(&NODES),
        address: b"host",
        local_world_size: entropy.choose(&[1, 2, 0, u32::MAX]),
        node_rank: entropy.choose(&[-1, -1, 0, 5]),
        join_timeout_ms: entropy.choose(&TIMEOUTS_MS),
        terms: Terms {
            nodes_min: entropy.choose(&[1, 1, 2, 0]),
            nodes_max: entropy.choose(&[2, 2, 1, u32::MAX]),
            continue_min: entropy.choose(&[0, 1, 3]),
            last_call: entropy.choose(&[LastCall::Off, LastCall::Fixed, LastCall::FromLastArrival]),
            last_call_ms: entropy.choose(&[10, 10, 0, u64::MAX]),
            fast_quorum: entropy.below(2) == 0,
            rank_order: entropy.choose(&[
                RankOrder::Sticky,
                RankOrder::Host,
                RankOrder::NodeRank,
                RankOrder::Label,
            ]),
            rank_label: b"a",
            cool_down_failures: entropy.choose(&[0, 0, 1]),
            cool_down_window_ms: 1000,
            cool_down_pause_ms: 100,
            cool_down_pause_ms_max: 1000,
        },
        labels: Pairs::scoped(b"", labels),
        round_min: entropy.choose(&[0, 0, 3, u64::MAX]),
    }
}
