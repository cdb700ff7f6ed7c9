//! The load in the native language: sessions without a grace, and requests whose ids grow.

use super::{Arrival, Bytes, Frames, Operation, key};
use rendezvous_core::store::op::{Key, Keys, Pairs};
use rendezvous_core::store::value_ref::ValueRef;
use rendezvous_core::wire::native::{
    BarrierEnd, ClientFrame, Entry, HEADER_BYTES, Label, LastCall, MAGIC, Participants, RankOrder,
    ServerFrame, Terms, VERSION_MAX, VERSION_MIN, encode_frame,
};
use rendezvous_core::wire::sink::Sink;
use std::ops::Range;

/// How long the server may let a request wait: longer than any load waits.
const WAIT_MS: u64 = 86_400_000;
/// A connection may be silent while the other targets are measured.
const HEARTBEAT_MS: u32 = 3_600_000;
/// The number of a frame in its session, which the server chooses.
const SEQUENCE: Range<usize> = 16..HEADER_BYTES;
/// Address that each node announces. Nothing connects to it.
const ADDRESS: &[u8] = b"192.0.2.1:29500";

/// What the nodes of a run agree on, as far as the loads differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeTerms {
    pub(crate) nodes_min: u32,
    pub(crate) nodes_max: u32,
    /// The fewest with which a round goes on.
    pub(crate) continue_min: u32,
}

impl Frames {
    pub(super) fn native_greeting(&mut self) {
        put_hello(&mut self.requests, b"bench");
        let welcome = ServerFrame::Welcome {
            version: VERSION_MAX,
            incarnation: 0,
            session: 0,
            token: [0; 16],
            resumed: false,
            request_last: 0,
            grace_ms: 0,
            heartbeat_ms: 0,
            heartbeats_missed_max: 0,
            window_frames: 0,
            window_bytes: 0,
            key_bytes_max: 0,
            value_bytes_max: 0,
            list_max: 0,
            frame_bytes_max: 0,
        };
        // The version, that nothing was resumed, no request before, and no grace are known.
        self.native_due(0, &welcome, [2..34, 47..99]);
    }

    pub(super) fn native_barrier(&mut self, id: u64, arrival: Arrival<'_>) {
        let Arrival { key: barrier, generation, world_size, line } = arrival;
        let name = format!("{line:06}");
        let participants = Participants::Count(u32::try_from(world_size).unwrap_or(u32::MAX));
        let (key, name) = (key(barrier), name.as_bytes());
        // Generation 0 is the one that is open.
        let request = ClientFrame::Barrier { key, generation: 0, name, timeout_ms: WAIT_MS, participants };
        put(&mut self.requests, id, &request);
        self.native_due(id, &ServerFrame::BarrierOver { generation, end: BarrierEnd::Released }, None);
    }

    pub(super) fn native_operation(&mut self, id: u64, operation: Operation<'_>) {
        let revision = 0;
        match operation {
            Operation::Set { name, value } => {
                put(&mut self.requests, id, &ClientFrame::Set { key: key(name), value });
                self.native_due(id, &ServerFrame::Done { revision }, Some(0..8));
            }
            Operation::Get { name, value } => {
                put(&mut self.requests, id, &ClientFrame::Get { timeout_ms: 0, key: key(name) });
                self.native_due(
                    id,
                    &ServerFrame::Value { revision, value: Some(ValueRef::Bytes(value)) },
                    Some(0..8),
                );
            }
            Operation::Add { name } => {
                put(&mut self.requests, id, &ClientFrame::Add { key: key(name), delta: 1 });
                self.native_due(id, &ServerFrame::Number { number: 0, revision }, Some(0..16));
            }
            Operation::Check { name } => {
                put(&mut self.requests, id, &ClientFrame::Check { keys: Keys::one(key(name)) });
                self.native_due(id, &ServerFrame::Outcome { holds: true, revision }, Some(1..9));
            }
            Operation::Wait { name } => {
                let request = ClientFrame::Wait { timeout_ms: WAIT_MS, keys: Keys::one(key(name)) };
                put(&mut self.requests, id, &request);
                self.native_due(id, &ServerFrame::Done { revision }, Some(0..8));
            }
        }
    }

    /// An answer is due of which the server chooses these bytes of the body.
    fn native_due(
        &mut self,
        id: u64,
        frame: &ServerFrame<'_>,
        unknown: impl IntoIterator<Item = Range<usize>>,
    ) {
        // No load has values of 4 GiB.
        let _ = encode_frame(&mut self.answers, Label { id, sequence: 0, flags: 0 }, frame);
        let in_frame = |range: Range<usize>| HEADER_BYTES + range.start..HEADER_BYTES + range.end;
        self.end_answer(unknown.into_iter().map(in_frame).chain(Some(SEQUENCE)));
    }
}

impl NodeTerms {
    /// What a new connection sends to join: its greeting and a Join, request 1.
    pub(crate) fn opening(&self, run_id: &str, node: &str) -> Vec<u8> {
        let mut bytes = Bytes::default();
        put_hello(&mut bytes, node.as_bytes());
        self.put_join(&mut bytes, 1, run_id, node);
        bytes.0
    }

    /// What a node sends to join once more.
    pub(crate) fn join(&self, id: u64, run_id: &str, node: &str) -> Vec<u8> {
        let mut bytes = Bytes::default();
        self.put_join(&mut bytes, id, run_id, node);
        bytes.0
    }

    fn put_join(&self, out: &mut Bytes, id: u64, run_id: &str, node: &str) {
        let Self { nodes_min, nodes_max, continue_min } = *self;
        let terms = Terms {
            nodes_min,
            nodes_max,
            continue_min,
            // Rounds are complete with the last node that can come.
            last_call: LastCall::Fixed,
            last_call_ms: WAIT_MS,
            fast_quorum: true,
            rank_order: RankOrder::Sticky,
            rank_label: b"",
            cool_down_failures: 0,
            cool_down_window_ms: 0,
            cool_down_pause_ms: 0,
            cool_down_pause_ms_max: 0,
        };
        let join = ClientFrame::Join {
            entry: Entry {
                run_id: run_id.as_bytes(),
                node: node.as_bytes(),
                address: ADDRESS,
                local_world_size: 1,
                node_rank: -1,
                join_timeout_ms: WAIT_MS,
                terms,
                labels: Pairs::scoped(b"", &[]),
                round_min: 0,
            },
        };
        put(out, id, &join);
    }
}

/// What a node sends to leave its run.
pub(crate) fn leave(id: u64, run_id: &str) -> Vec<u8> {
    let mut bytes = Bytes::default();
    let run_id = Key::raw(run_id.as_bytes());
    put(&mut bytes, id, &ClientFrame::Leave { run_id });
    bytes.0
}

fn put_hello(out: &mut Bytes, node: &[u8]) {
    out.put(&MAGIC);
    let hello = ClientFrame::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 0,
        heartbeat_ms: HEARTBEAT_MS,
        heartbeats_missed_max: 10,
        node,
        auth: b"",
    };
    put(out, 0, &hello);
}

fn put(out: &mut Bytes, id: u64, frame: &ClientFrame<'_>) {
    // No load has values of 4 GiB.
    let _ = encode_frame(out, Label { id, sequence: 0, flags: 0 }, frame);
}

#[cfg(test)]
mod tests {
    use super::super::{Language, Protocol};
    use super::*;

    fn answer(id: u64, sequence: u64, frame: &ServerFrame<'_>) -> Vec<u8> {
        let mut bytes = Bytes::default();
        encode_frame(&mut bytes, Label { id, sequence, flags: 0 }, frame).unwrap();
        bytes.0
    }

    #[test]
    fn ids_grow_and_answers_must_have_them() {
        let mut protocol = Protocol::new(Language::Native);
        let mut frames = Frames::default();
        frames.push(&mut protocol, Operation::Check { name: "k" });
        frames.push(&mut protocol, Operation::Get { name: "k", value: b"v" });
        let (_, both) = frames.first(2);
        let check = |id, holds| answer(id, 70, &ServerFrame::Outcome { holds, revision: 5 });
        let get = |value: &[u8]| {
            answer(2, 71, &ServerFrame::Value { revision: 4, value: Some(ValueRef::Bytes(value)) })
        };
        assert_eq!(both, check(1, true).len() + get(b"v").len());
        assert!(frames.allow(0, &[check(1, true), get(b"v")].concat()));
        for wrong in [[check(1, false), get(b"v")], [check(2, true), get(b"v")], [check(1, true), get(b"w")]]
        {
            assert!(!frames.allow(0, &wrong.concat()), "{wrong:?}");
        }
    }

    #[test]
    fn each_arrival_has_a_name_of_its_own_and_the_generation_is_checked() {
        let mut protocol = Protocol::new(Language::Native);
        let arrivals = Frames::arrivals(&mut protocol, "k", 3, 2);
        let [(one, length), (other, _)] = [arrivals[0].first(1), arrivals[1].first(1)];
        assert_eq!((one.len(), one == other), (other.len(), false));
        let over =
            |generation| answer(1, 9, &ServerFrame::BarrierOver { generation, end: BarrierEnd::Released });
        assert_eq!(over(3).len(), length);
        assert!(arrivals[1].allow(0, &over(3)) && !arrivals[1].allow(0, &over(4)));
    }

    #[test]
    fn of_a_welcome_only_the_servers_own_numbers_are_left_open() {
        let greeting = Frames::greeting(Language::Native);
        let welcome = |version, resumed, request_last, grace_ms| ServerFrame::Welcome {
            version,
            incarnation: u64::MAX,
            session: u64::MAX,
            token: [1; 16],
            resumed,
            request_last,
            grace_ms,
            heartbeat_ms: 5,
            heartbeats_missed_max: 6,
            window_frames: 7,
            window_bytes: 8,
            key_bytes_max: 9,
            value_bytes_max: 10,
            list_max: 11,
            frame_bytes_max: 12,
        };
        let bytes = |version, resumed, last, grace| answer(0, 0, &welcome(version, resumed, last, grace));
        assert_eq!(greeting.first(1).1, bytes(1, false, 0, 0).len());
        assert!(greeting.allow(0, &bytes(1, false, 0, 0)));
        for wrong in
            [bytes(2, false, 0, 0), bytes(1, true, 0, 0), bytes(1, false, 1, 0), bytes(1, false, 0, 1)]
        {
            assert!(!greeting.allow(0, &wrong));
        }
    }
}
