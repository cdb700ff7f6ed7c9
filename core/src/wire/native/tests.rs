extern crate std;

use super::*;
use crate::store::op::{Key, Keys, Pairs};
use crate::store::txn::{Compare, Condition, Write};
use crate::store::value_ref::ValueRef;
use crate::wire::sink::{Fill, Sink};
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, vec};

struct Bytes(Vec<u8>);
impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

const LIMITS: FrameLimits = FrameLimits {
    key_bytes_max: 8192,
    value_bytes_max: 8 << 20,
    keys_max: 131_072,
    all_key_bytes_max: 16 << 20,
    frame_bytes_max: 256 << 20,
};

fn encoded(label: Label, frame: &impl Message) -> Vec<u8> {
    let mut bytes = Bytes(Vec::new());
    encode_frame(&mut bytes, label, frame).expect("short enough");
    let mut buffer = vec![0; bytes.0.len()];
    let mut fill = Fill::new(&mut buffer);
    encode_frame(&mut fill, label, frame).expect("short enough");
    assert_eq!(fill.finish(), Ok(bytes.0.len()));
    assert_eq!(buffer, bytes.0);
    bytes.0
}

const TOKEN: [u8; 16] = *b"0123456789abcdef";
const NAMES: &[&[u8]] = &[b"a", b"", b"long name"];
const PAIRS: &[(&[u8], &[u8])] = &[(b"rack", b"r1"), (b"slot", b"")];

fn client_samples() -> Vec<ClientFrame<'static>> {
    use ClientFrame as F;
    let key = Key::raw(b"/k");
    let keys = Keys::scoped(b"/", NAMES);
    let run_id = Key::raw(b"run");
    let compares = List::new(
        const {
            &[
                Compare { key: Key::raw(b"/a"), condition: Condition::Exists },
                Compare { key: Key::raw(b"/b"), condition: Condition::Absent },
                Compare { key: Key::raw(b"/c"), condition: Condition::Revision(7) },
                Compare { key: Key::raw(b"/d"), condition: Condition::Value(b"v") },
            ]
        },
    );
    let then = List::new(
        const {
            &[
                Write::Set { key: Key::raw(b"/a"), value: b"v" },
                Write::Delete { key: Key::raw(b"/b") },
                Write::DeletePrefix { prefix: Key::raw(b"/round/3/") },
                Write::Add { key: Key::raw(b"/n"), delta: -1 },
                Write::Append { key: Key::raw(b"/log"), value: b"x" },
            ]
        },
    );
    let requests = List::new(
        const {
            &[
                Batched(F::Set { key: Key::raw(b"/a"), value: b"1" }),
                Batched(F::Add { key: Key::raw(b"/n"), delta: 2 }),
                Batched(F::NumKeys {}),
            ]
        },
    );
    vec![
        F::Hello {
            version_min: 1,
            version_max: 1,
            incarnation: 9,
            session: 5,
            token: TOKEN,
            grace_ms: 2000,
            heartbeat_ms: 5000,
            heartbeats_missed_max: 3,
            node: b"host1_42_0",
            auth: b"",
        },
        F::Heartbeat { nonce: 0x0102_0304_0506_0708 },
        F::Acknowledge {},
        F::Bye {},
        F::Cancel { request: 12 },
        F::Abandon {},
        F::Sessions { after: 3, count_max: 100 },
        F::EndSession { session: 3 },
        F::Set { key, value: b"value" },
        F::CompareSet { key, expected: b"", desired: b"d" },
        F::Get { timeout_ms: 30_000, key },
        F::Add { key, delta: -5 },
        F::Check { keys },
        F::Wait { timeout_ms: 1, keys },
        F::NumKeys {},
        F::Delete { key },
        F::Append { key, value: b"" },
        F::MultiGet { timeout_ms: 0, keys: Keys::scoped(b"/", &[]) },
        F::MultiSet { pairs: Pairs::scoped(b"/", PAIRS) },
        F::QueuePush { key, value: b"item" },
        F::QueuePop { timeout_ms: u64::MAX, key },
        F::QueueLen { key },
        F::ListKeys { prefix: Key::raw(b"/"), after: Key::raw(b""), count_max: 100 },
        F::DeletePrefix { prefix: Key::raw(b"/round/3/") },
        F::Txn { compares, then, otherwise: List::new(&[]) },
        F::Batch { requests },
        F::WatchKey { key, from_revision: 0 },
        F::WatchPrefix { prefix: Key::raw(b"/p/"), from_revision: 41 },
        F::LeaseGrant { ttl_ms: 10_000 },
        F::LeaseAttach { lease: 3, keys },
        F::LeaseRenew { lease: 3 },
        F::LeaseRevoke { lease: 3 },
        F::Barrier {
            key,
            generation: 0,
            name: b"n0",
            timeout_ms: 60_000,
            participants: Participants::Count(4),
        },
        F::Barrier {
            key,
            generation: 0,
            name: b"a",
            timeout_ms: 60_000,
            participants: Participants::Names(keys),
        },
        F::BarrierCancel { key, name: b"n0" },
        F::Join {
            entry: Entry {
                run_id: run_id.name(),
                node: b"host1_42_0",
                address: b"10.0.0.1:29500",
                local_world_size: 8,
                node_rank: -1,
                join_timeout_ms: 600_000,
                terms: TERMS,
                labels: Pairs::scoped(b"", PAIRS),
                round_min: 7,
            },
        },
        F::Standby {
            entry: Entry {
                run_id: run_id.name(),
                node: b"host9_7_0",
                address: b"[::1]:1",
                local_world_size: 8,
                node_rank: 3,
                join_timeout_ms: 600_000,
                terms: Terms {
                    fast_quorum: false,
                    rank_order: RankOrder::Label,
                    rank_label: b"rack",
                    ..TERMS
                },
                labels: Pairs::scoped(b"", &[]),
                round_min: 0,
            },
        },
        F::Leave { run_id },
        F::Close { run_id },
        F::Members { run_id, round: 3, first_node_rank: 0, count_max: 1000 },
        F::RunInfo { run_id },
        F::Fail { run_id, message: b"exit code 1" },
    ]
}

const TERMS: Terms<'static> = Terms {
    nodes_min: 2,
    nodes_max: 4,
    continue_min: 0,
    last_call: LastCall::FromLastArrival,
    last_call_ms: 30_000,
    fast_quorum: true,
    rank_order: RankOrder::Sticky,
    rank_label: b"",
    cool_down_failures: 3,
    cool_down_window_ms: 300_000,
    cool_down_pause_ms: 10_000,
    cool_down_pause_ms_max: 600_000,
};

fn server_samples() -> Vec<ServerFrame<'static>> {
    use ServerFrame as F;
    let run_id = Key::raw(b"run");
    let over = |end| F::BarrierOver { generation: 2, end };
    vec![
        F::Welcome {
            version: 1,
            incarnation: 9,
            session: 5,
            token: TOKEN,
            resumed: true,
            request_last: 17,
            grace_ms: 2000,
            heartbeat_ms: 5000,
            heartbeats_missed_max: 3,
            window_frames: 1024,
            window_bytes: 1 << 20,
            key_bytes_max: 8192,
            value_bytes_max: 8 << 20,
            list_max: 131_072,
            frame_bytes_max: 256 << 20,
        },
        F::HeartbeatEcho { nonce: 7 },
        F::SessionOver { why: Why::Heartbeat },
        F::Challenge { nonce: [3; 32] },
        F::Proof { proof: [4; 32] },
        F::Done { revision: 12 },
        F::Number { number: -2, revision: 13 },
        F::Value { revision: 4, value: Some(ValueRef::Bytes(b"value")) },
        F::Value { revision: 0, value: None },
        F::Values {
            values: List::new(
                const {
                    &[
                        Found { revision: 1, value: Some(ValueRef::Bytes(b"")) },
                        Found { revision: 0, value: None },
                        Found { revision: 9, value: Some(ValueRef::Bytes(b"xyz")) },
                    ]
                },
            ),
        },
        F::Outcome { holds: false, revision: 9 },
        F::KeyList { more: true, keys: Keys::scoped(b"/", NAMES) },
        F::BatchDone {
            answers: List::new(
                const {
                    &[
                        Batched(F::Done { revision: 5 }),
                        Batched(F::Number { number: 2, revision: 6 }),
                        Batched(F::Error { fault: Fault::new(FaultCode::NotANumber, 0, 0) }),
                    ]
                },
            ),
        },
        F::Popped { length_before: 2, item: Some(ValueRef::Bytes(b"item")) },
        over(BarrierEnd::Released),
        over(BarrierEnd::Broken { participant: b"host1_42_0", why: Why::Connection }),
        over(BarrierEnd::TimedOut { absent_count: 3, absent: Keys::scoped(b"", NAMES) }),
        over(BarrierEnd::Cancelled { by: b"n0" }),
        F::Round {
            run_id,
            round: 3,
            node_rank: 1,
            nodes: 4,
            rank_first: 8,
            world_size: 32,
            leader: b"10.0.0.1:29500",
            namespace: Key::raw(b"/torch.rendezvous.run.3/"),
        },
        F::MemberList {
            round: 3,
            nodes: 4,
            members: List::new(
                const {
                    &[Member {
                        node_rank: 0,
                        rank_first: 0,
                        local_world_size: 8,
                        node: b"host1_42_0",
                        address: b"10.0.0.1:29500",
                    }]
                },
            ),
        },
        F::PrefixRemoved { removed: 7, left: 2, revision: 4 },
        F::SessionList {
            more: true,
            sessions: List::new(
                const { &[SessionEntry { session: 3, is_connected: false, token: b"t", node: b"n0" }] },
            ),
        },
        F::RunState { round: 3, complete: true, closed: false, nodes: 4, nodes_waiting: 1, nodes_standby: 0 },
        F::Error {
            fault: Fault { code: FaultCode::BoundsConflict, first: 2, second: 4, text: b"host1_42_0" },
        },
        F::Changed {
            changes: List::new(
                const {
                    &[
                        Change { revision: 41, key: Key::raw(b"/p/a"), value: Some(ValueRef::Bytes(b"1")) },
                        Change { revision: 42, key: Key::raw(b"/p/a"), value: None },
                    ]
                },
            ),
        },
        F::WatchOver { why: Why::Compacted, oldest: 100 },
        F::LeaseOver { lease: 3, why: Why::Deadline },
        F::PeerDied { run_id, round: 3, node_rank: 2, node: b"host3_9_0", why: Why::HostSilent },
        F::RoundOver { run_id, round: 3, why: Why::TooFewNodes },
        F::NodesWaiting { run_id, nodes: 2 },
        F::RunClosed { run_id, by: b"host1_42_0" },
        F::Placed { run_id, is_participant: false, ahead: 2 },
        F::Excluded { run_id, round: 4 },
        F::Replaced { run_id, session: 6 },
        F::JobFailed { run_id, message: b"exit code 1" },
    ]
}

fn label(number: usize) -> Label {
    Label { id: number as u64 + 1, sequence: 0x1_0000_0000 + number as u64, flags: FLAG_RESENT }
}

/// Returns each sample as bytes, with its direction.
fn all_encoded() -> Vec<(From, Vec<u8>)> {
    let clients = client_samples();
    let servers = server_samples();
    let from_client = clients.iter().enumerate().map(|(n, frame)| (From::Client, encoded(label(n), frame)));
    let from_server = servers.iter().enumerate().map(|(n, frame)| (From::Server, encoded(label(n), frame)));
    from_client.chain(from_server).collect()
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    let mut seen = Vec::new();
    for (number, frame) in client_samples().iter().enumerate() {
        let bytes = encoded(label(number), frame);
        let Ok(Scan::Whole { header, bytes: length }) = scan(&bytes, From::Client, &LIMITS) else {
            panic!("{frame:?}")
        };
        assert_eq!((length, header.id, header.flags), (bytes.len(), number as u64 + 1, FLAG_RESENT));
        let parsed =
            ClientFrame::parse(header.kind, &bytes[HEADER_BYTES..], &LIMITS).expect("whole").expect("known");
        assert_eq!(parsed, *frame);
        assert_eq!(encoded(label(number), &parsed), bytes);
        seen.push(header.kind);
    }
    for (number, frame) in server_samples().iter().enumerate() {
        let bytes = encoded(label(number), frame);
        let Ok(Scan::Whole { header, .. }) = scan(&bytes, From::Server, &LIMITS) else { panic!("{frame:?}") };
        let parsed =
            ServerFrame::parse(header.kind, &bytes[HEADER_BYTES..], &LIMITS).expect("whole").expect("known");
        assert_eq!(parsed, *frame);
        assert_eq!(encoded(label(number), &parsed), bytes);
        seen.push(header.kind);
    }
    seen.dedup();
    seen.sort_unstable();
    seen.dedup();
    let known = ClientFrame::KINDS.iter().chain(ServerFrame::KINDS).map(|kind| kind.0).collect::<Vec<_>>();
    assert_eq!(seen, known, "a sample of each kind, and the kinds in the order of their numbers");
}

#[test]
fn a_frame_in_any_pieces_is_found_and_never_wants_more_than_it_has() {
    for (from, bytes) in all_encoded() {
        for end in 0..bytes.len() {
            let Ok(Scan::Partial { bytes: wanted }) = scan(&bytes[..end], from, &LIMITS) else {
                panic!("whole after {end} of {}", bytes.len())
            };
            assert!(wanted > end && wanted <= bytes.len());
            let mut splitter = Splitter::new(from);
            let (mut body, mut ends) = (Vec::new(), 0);
            for mut part in [&bytes[..end], &bytes[end..]] {
                while let Some(chunk) = splitter.next(&mut part, &LIMITS).expect("legal") {
                    match chunk {
                        Chunk::Head(header) => {
                            assert_eq!(header.body_bytes as usize, bytes.len() - HEADER_BYTES)
                        }
                        Chunk::Body(chunk) => body.extend_from_slice(chunk),
                        Chunk::End => ends += 1,
                    }
                }
            }
            assert_eq!((&body[..], ends), (&bytes[HEADER_BYTES..], 1));
        }
    }
}

#[test]
fn a_body_that_is_cut_is_refused_and_one_with_more_behind_it_is_read() {
    for (from, bytes) in all_encoded() {
        let body = &bytes[HEADER_BYTES..];
        let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
        let reads = |body: &[u8]| match from {
            From::Client => ClientFrame::parse(kind, body, &LIMITS).map(|frame| frame.is_some()),
            From::Server => ServerFrame::parse(kind, body, &LIMITS).map(|frame| frame.is_some()),
        };
        // Clients of earlier releases omit the last field of these.
        let whole = if matches!(kind, 0x0040 | 0x0041) { body.len() - 8 } else { body.len() };
        for end in (0..body.len()).filter(|&end| end != whole) {
            assert_eq!(reads(&body[..end]), Err(BodyError::Truncated), "{kind:#06x} cut at {end}");
        }
        assert_eq!(reads(&body[..whole]), Ok(true));
        let longer = [body, b"fields of a later version"].concat();
        assert_eq!(reads(&longer), Ok(true));
    }
    // A record of a list may also have additional fields.
    let frame = ServerFrame::Values { values: List::new(const { &[Found { revision: 1, value: None }] }) };
    let mut body = encoded(Label::default(), &frame)[HEADER_BYTES..].to_vec();
    assert_eq!(body[8], 9, "length of the record");
    body[8] = 12;
    body.extend_from_slice(b"new");
    assert_eq!(ServerFrame::parse(0x8013, &body, &LIMITS), Ok(Some(frame)));
}

#[test]
fn limits_hold_on_the_header_alone() {
    let head = |kind: u16, body_bytes: u32, flags: u16| {
        Header { body_bytes, kind, flags, id: 1, sequence: 0 }.to_bytes().to_vec()
    };
    for (from, kind, limit) in [
        (From::Client, HELLO, 4096),
        (From::Client, 0x0013, 65_536),
        (From::Client, 0x0010, 65_536 + 2 * 8192 + 2 * (8 << 20)),
        (From::Client, 0x0015, 256 << 20),
        (From::Client, 0x7777, 65_536),
        (From::Server, 0x8001, 65_536),
        (From::Server, 0x8013, 256 << 20),
        (From::Server, 0xc0ff, 65_536),
    ] {
        let bytes = limit + 1;
        assert_eq!(scan(&head(kind, bytes, 0), from, &LIMITS), Err(FrameError::TooLong { kind, bytes }));
        assert_eq!(
            Splitter::new(from).next(&mut &head(kind, bytes, 0)[..], &LIMITS),
            Err(FrameError::TooLong { kind, bytes })
        );
        let whole = Scan::Partial { bytes: limit as usize + HEADER_BYTES };
        assert_eq!(scan(&head(kind, limit, 0x00fe), from, &LIMITS), Ok(whole));
    }
    assert_eq!(scan(&head(0x0013, 0, 0x0100), From::Client, &LIMITS), Err(FrameError::Flags(0x0100)));
}

#[test]
fn limits_within_a_body_hold_on_length_fields() {
    let refused = |kind, body: &[u8]| ClientFrame::parse(kind, body, &LIMITS).unwrap_err();
    let number = |number: u64| number.to_le_bytes();
    assert_eq!(refused(0x0017, &number(8193)), BodyError::KeyTooLong(8193));
    assert_eq!(refused(0x0017, &number(u64::MAX)), BodyError::KeyTooLong(u64::MAX));
    assert_eq!(refused(0x0017, &number(8192)), BodyError::Truncated);
    assert_eq!(refused(0x0014, &number(131_073)), BodyError::ListTooLong(131_073));
    assert_eq!(refused(0x0014, &number(131_072)), BodyError::Truncated);
    let set = [&number(1)[..], b"k", &number((8 << 20) + 1)].concat();
    assert_eq!(refused(0x0010, &set), BodyError::ValueTooLong((8 << 20) + 1));
    let fault = Fault::of_body(BodyError::KeyTooLong(9000), 0x0017, &LIMITS);
    assert_eq!((fault.code, fault.first, fault.second), (FaultCode::TooLong, 9000, 8192));
}

#[test]
fn all_keys_of_a_request_are_limited_together() {
    let key = [b'k'; 8192];
    let (fit, many) = ([&key[..]; 2048], [&key[..]; 2049]);
    let body_of = |frame: &ClientFrame<'_>| encoded(Label::default(), frame)[HEADER_BYTES..].to_vec();
    let too_long = Err(BodyError::KeysTooLong((16 << 20) + 8192));
    let check = |keys| ClientFrame::Check { keys: Keys::scoped(b"", keys) };
    assert!(ClientFrame::parse(0x0014, &body_of(&check(&fit)), &LIMITS).is_ok());
    assert_eq!(ClientFrame::parse(0x0014, &body_of(&check(&many)), &LIMITS), too_long);
    // Those of all requests of a batch count, although each of them is read by itself.
    let requests = [Batched(check(&many[..1024])), Batched(check(&many[..1025]))];
    let batch = ClientFrame::Batch { requests: List::new(&requests) };
    assert_eq!(ClientFrame::parse(0x0021, &body_of(&batch), &LIMITS), too_long);
    let fault = Fault::of_body(BodyError::KeysTooLong(17 << 20), 0x0014, &LIMITS);
    assert_eq!((fault.code, fault.first, fault.second), (FaultCode::TooLong, 17 << 20, 16 << 20));
}

#[test]
fn choices_that_mean_nothing_are_refused_where_they_are_closed_and_kept_where_they_are_open() {
    let mut barrier = encoded(
        Label::default(),
        &ClientFrame::Barrier {
            key: Key::raw(b""),
            generation: 0,
            name: b"",
            timeout_ms: 0,
            participants: Participants::Count(1),
        },
    )[HEADER_BYTES..]
        .to_vec();
    let choice = barrier.len() - 5;
    barrier[choice] = 2;
    assert_eq!(ClientFrame::parse(0x0030, &barrier, &LIMITS), Err(BodyError::Meaningless(2)));
    let over = ServerFrame::parse(0x8003, &[0x39, 0x30], &LIMITS).unwrap().unwrap();
    assert_eq!(over, ServerFrame::SessionOver { why: Why::Other(12345) });
    assert_eq!(Why::Other(12345).to_string(), "reason 12345");
    for why in Why::ALL {
        assert_eq!(Why::from_number(why.number()), *why);
    }
    for code in FaultCode::ALL {
        assert_eq!(FaultCode::from_number(code.number()), *code);
    }
}

/// The lists of a batch's requests would multiply the work of one frame otherwise.
#[test]
fn the_lists_of_a_frame_are_limited_together() {
    let empty = vec![&b""[..]; 131_069];
    let batch = |more: usize| {
        let checks =
            [&empty[..], &empty[..more]].map(|keys| ClientFrame::Check { keys: Keys::scoped(b"", keys) });
        let requests = checks.map(Batched);
        let frame = encoded(Label::default(), &ClientFrame::Batch { requests: List::new(&requests) });
        frame[HEADER_BYTES..].to_vec()
    };
    let body = batch(1);
    let Ok(Some(ClientFrame::Batch { requests })) = ClientFrame::parse(0x0021, &body, &LIMITS) else {
        panic!("131,072 elements are allowed")
    };
    assert_eq!(requests.iter().count(), 2);
    let body = batch(2);
    assert_eq!(ClientFrame::parse(0x0021, &body, &LIMITS), Err(BodyError::ListTooLong(131_073)));
}

#[test]
fn frames_do_not_nest_and_what_waits_does_not_stand_in_a_batch() {
    let batch_of = |kind: u16| {
        let record = [&kind.to_le_bytes()[..], &[0; 64]].concat();
        let length = u32::try_from(record.len()).unwrap();
        [&1u64.to_le_bytes()[..], &length.to_le_bytes(), &record].concat()
    };
    for (kind, name, _) in ClientFrame::KINDS {
        let body = batch_of(*kind);
        let read = ClientFrame::parse(0x0021, &body, &LIMITS);
        let allowed = ["Set", "CompareSet", "Add", "Check", "NumKeys", "Delete", "Append", "MultiSet"];
        let allowed = allowed.contains(name) || ["QueuePush", "QueueLen", "DeletePrefix"].contains(name);
        assert_eq!(read.is_ok(), allowed, "{name}: {read:?}");
    }
}

#[test]
fn a_connection_opens_with_magic_and_hello() {
    let hello = encoded(Label::default(), &client_samples()[0]);
    let opening = [&MAGIC[..], &hello].concat();
    for end in 0..opening.len() {
        let Ok(Scan::Partial { bytes }) = scan_opening(&opening[..end], &LIMITS) else { panic!("{end}") };
        assert!(bytes > end && bytes <= opening.len());
    }
    assert!(matches!(scan_opening(&opening, &LIMITS), Ok(Scan::Whole { bytes, .. }) if bytes == hello.len()));
    assert_eq!(scan_opening(b"RDZX", &LIMITS), Err(FrameError::Magic));
    assert_eq!(scan_opening(b"G", &LIMITS), Err(FrameError::Magic));
    let set = encoded(Label::default(), &ClientFrame::Set { key: Key::raw(b"k"), value: b"" });
    for end in HEADER_BYTES..=set.len() {
        let bytes = [&MAGIC[..], &set[..end]].concat();
        assert_eq!(scan_opening(&bytes, &LIMITS), Err(FrameError::NotHello(0x0010)));
    }
}

#[test]
fn the_highest_common_version_is_spoken() {
    for (request, spoken) in [
        ((1, 1), Some(1)),
        ((1, 9), Some(1)),
        ((0, 1), Some(1)),
        ((2, 3), None),
        ((0, 0), None),
        ((1, 0), None),
    ] {
        let outcome = negotiate(request.0, request.1);
        assert_eq!(outcome.ok(), spoken, "{request:?}");
        if let Err(fault) = outcome {
            assert_eq!((fault.code, fault.first, fault.second), (FaultCode::VersionUnsupported, 1, 1));
        }
    }
}

const SPECIFICATION: &str = include_str!("../../../../docs/protocol/native.md");

/// Fields of [`Entry`], which a request to join consists of.
const ENTRY_FIELDS: &[&str] = &[
    "run_id",
    "node",
    "address",
    "local_world_size",
    "node_rank",
    "join_timeout_ms",
    "terms",
    "labels",
    "round_min",
];

#[test]
fn the_specification_has_a_row_for_each_kind_error_and_reason() {
    let row = |number: String, name: &str| {
        let mut rows =
            SPECIFICATION.lines().filter(|line| line.starts_with(&format!("| `{number}` | {name} |")));
        let row = rows.next().unwrap_or_else(|| panic!("no row for {number} {name}"));
        assert_eq!(rows.next(), None, "one row for {number} {name}");
        row
    };
    for (kind, name, fields) in ClientFrame::KINDS.iter().chain(ServerFrame::KINDS) {
        let row = row(format!("{kind:04x}"), name);
        let mut at = 0;
        let fields = if **fields == ["entry"] { ENTRY_FIELDS } else { *fields };
        for field in fields {
            let found = row[at..].find(&format!("`{field}`"));
            at += found.unwrap_or_else(|| panic!("{field} of {name}, in its place"));
        }
    }
    for code in FaultCode::ALL {
        row(code.number().to_string(), &code.to_string());
    }
    for why in Why::ALL {
        row(why.number().to_string(), &format!("{why:?}"));
    }
}

/// Contents of the examples of the specification, in their order.
fn examples() -> Vec<(&'static str, Vec<u8>)> {
    let hello = ClientFrame::Hello {
        version_min: 1,
        version_max: 1,
        incarnation: 0,
        session: 0,
        token: [0; 16],
        grace_ms: 2000,
        heartbeat_ms: 5000,
        heartbeats_missed_max: 3,
        node: b"n0",
        auth: b"",
    };
    let welcome = server_samples()[0];
    let at = |id, sequence| Label { id, sequence, flags: 0 };
    let get = ClientFrame::Get { timeout_ms: 1000, key: Key::raw(b"/b") };
    vec![
        ("> RDZV and Hello", [&MAGIC[..], &encoded(Label::default(), &hello)].concat()),
        ("< Welcome", encoded(Label::default(), &welcome)),
        ("> Set, request 1", encoded(at(1, 0), &ClientFrame::Set { key: Key::raw(b"/a"), value: b"hi" })),
        ("> Get, request 2", encoded(at(2, 0), &get)),
        ("< Done, answers 1, sequence 1", encoded(at(1, 1), &ServerFrame::Done { revision: 1 })),
        (
            "< Error NotFound, answers 2, sequence 2",
            encoded(at(2, 2), &ServerFrame::Error { fault: Fault::new(FaultCode::NotFound, 0, 0) }),
        ),
        ("> Acknowledge up to 2", encoded(at(0, 2), &ClientFrame::Acknowledge {})),
        (
            "< Error VersionUnsupported",
            encoded(
                Label::default(),
                &ServerFrame::Error { fault: Fault::new(FaultCode::VersionUnsupported, 1, 1) },
            ),
        ),
        (
            "> Barrier, request 3",
            encoded(
                at(3, 2),
                &ClientFrame::Barrier {
                    key: Key::raw(b"/e"),
                    generation: 0,
                    name: b"n0",
                    timeout_ms: 1000,
                    participants: Participants::Names(Keys::scoped(b"", &[b"n0", b"n1"])),
                },
            ),
        ),
        (
            "< BarrierOver TimedOut, answers 3, sequence 3",
            encoded(
                at(3, 3),
                &ServerFrame::BarrierOver {
                    generation: 1,
                    end: BarrierEnd::TimedOut { absent_count: 1, absent: Keys::scoped(b"", &[b"n1"]) },
                },
            ),
        ),
        (
            "> Txn, request 4",
            encoded(
                at(4, 3),
                &ClientFrame::Txn {
                    compares: List::new(
                        const { &[Compare { key: Key::raw(b"/a"), condition: Condition::Revision(1) }] },
                    ),
                    then: List::new(const { &[Write::Set { key: Key::raw(b"/a"), value: b"x" }] }),
                    otherwise: List::new(&[]),
                },
            ),
        ),
        (
            "< Outcome, answers 4, sequence 4",
            encoded(at(4, 4), &ServerFrame::Outcome { holds: true, revision: 2 }),
        ),
        (
            "< Changed, of watch 5, sequence 5",
            encoded(
                at(5, 5),
                &ServerFrame::Changed {
                    changes: List::new(
                        const {
                            &[Change {
                                revision: 2,
                                key: Key::raw(b"/a"),
                                value: Some(ValueRef::Bytes(b"x")),
                            }]
                        },
                    ),
                },
            ),
        ),
    ]
}

#[test]
fn the_examples_of_the_specification_are_what_is_written_and_read() {
    let mut expected = String::new();
    for (title, bytes) in examples() {
        expected.push_str(&format!("{title}\n"));
        for row in bytes.chunks(24) {
            let hex = row.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
            expected.push_str(&format!("    {}\n", hex.join(" ")));
        }
        let (from, frame) = match (title.starts_with('>'), title.contains("RDZV")) {
            (true, true) => (From::Client, &bytes[MAGIC.len()..]),
            (true, false) => (From::Client, &bytes[..]),
            (false, _) => (From::Server, &bytes[..]),
        };
        assert!(matches!(scan(frame, from, &LIMITS), Ok(Scan::Whole { bytes, .. }) if bytes == frame.len()));
    }
    let block = SPECIFICATION.split("```text\n").find(|block| block.starts_with("> RDZV"));
    let block = block.and_then(|block| block.split("```").next()).unwrap_or_default();
    assert_eq!(block, expected, "the specification shows\n{block}\nand the code writes\n{expected}");
}

/// Randomly damaged frames are refused or parsed, and a parsed frame encodes to the bytes that were parsed.
#[test]
fn damaged_frames_are_refused_or_mean_something() {
    let mut rng = crate::rng::Rng::new(5);
    let mut below = |bound: usize| usize::try_from(rng.below(bound as u64)).expect("below a usize");
    let (mut refused, mut read) = (0, 0);
    for (from, bytes) in all_encoded() {
        let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
        let body = &bytes[HEADER_BYTES..];
        for _ in 0..300 {
            let mut damaged = body.to_vec();
            for _ in 0..=below(3) {
                if !damaged.is_empty() {
                    let index = below(damaged.len());
                    damaged[index] = [0, 1, 0x7f, 0xff, u8::try_from(below(256)).expect("a byte")][below(5)];
                }
            }
            damaged.truncate(damaged.len() - below(2).min(damaged.len()));
            let written = match from {
                From::Client => ClientFrame::parse(kind, &damaged, &LIMITS)
                    .map(|frame| encoded(Label::default(), &frame.expect("known"))),
                From::Server => ServerFrame::parse(kind, &damaged, &LIMITS)
                    .map(|frame| encoded(Label::default(), &frame.expect("known"))),
            };
            match written {
                Ok(again) => {
                    read += 1;
                    // Records may have additional fields, so their encoding may be shorter than the input.
                    let again = &again[HEADER_BYTES..];
                    assert!(again.len() <= damaged.len());
                    let reread = match from {
                        From::Client => ClientFrame::parse(kind, again, &LIMITS)
                            .map(|frame| encoded(Label::default(), &frame.expect("known"))),
                        From::Server => ServerFrame::parse(kind, again, &LIMITS)
                            .map(|frame| encoded(Label::default(), &frame.expect("known"))),
                    };
                    assert_eq!(reread.expect("it was written here")[HEADER_BYTES..], *again);
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 1000 && read > 1000, "{refused} refused, {read} read");
}
