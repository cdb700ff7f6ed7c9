//! Native clients at a whole server, by frames.

extern crate std;

use crate::ids::ConnId;
use crate::limits::ServerLimits;
use crate::node::server::tests::Rig;
use crate::node::server::{CloseReason, Event, Input, ServerInstance};
use crate::store::op::{Key, Keys, Pairs, Request};
use crate::store::txn::{Compare, Condition, Write};
use crate::time::Duration;
use crate::wire::native::{
    Batched, ClientFrame, Entry, FaultCode, From, HEADER_BYTES, Label, LastCall, List, MAGIC, Message,
    Participants, RankOrder, Scan, ServerFrame, Terms, Why, encode_frame, scan,
};
use crate::wire::sink::Sink;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded(id: u64, sequence: u64, frame: &impl Message) -> Vec<u8> {
    let mut bytes = Bytes::default();
    encode_frame(&mut bytes, Label { id, sequence, flags: 0 }, frame).expect("short");
    bytes.0
}

fn hello(session: u64, incarnation: u64, token: [u8; 16], grace_ms: u32, node: &str) -> ClientFrame<'_> {
    ClientFrame::Hello {
        version_min: 1,
        version_max: 1,
        incarnation,
        session,
        token,
        grace_ms,
        heartbeat_ms: 5000,
        heartbeats_missed_max: 3,
        node: node.as_bytes(),
        auth: b"",
    }
}

fn opening(sequence: u64, hello: &ClientFrame<'_>) -> Vec<u8> {
    [&MAGIC[..], &encoded(0, sequence, hello)].concat()
}

/// One frame as a line: `id kind(fields that matter)`.
fn line(limits: &ServerLimits, bytes: &[u8]) -> (String, usize) {
    let Ok(Scan::Whole { header, bytes: length }) = scan(bytes, From::Server, &limits.native_frame) else {
        panic!("no whole frame: {bytes:x?}")
    };
    let body = &bytes[HEADER_BYTES..length];
    let frame = ServerFrame::parse(header.kind, body, &limits.native_frame).expect("whole").expect("known");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_string();
    let what = match frame {
        ServerFrame::Welcome { resumed, .. } => format!("Welcome resumed={resumed}"),
        ServerFrame::Done { .. } => "Done".into(),
        ServerFrame::Number { number, .. } => format!("Number {number}"),
        ServerFrame::Value { value, .. } => {
            format!("Value {}", value.map_or("-".into(), |value| value.read(text)))
        }
        ServerFrame::Values { values } => {
            let all: Vec<_> =
                values.iter().map(|found| found.value.map_or("-".into(), |value| value.read(text))).collect();
            format!("Values {}", all.join(","))
        }
        ServerFrame::Outcome { holds, .. } => format!("Outcome {holds}"),
        ServerFrame::Popped { length_before, item } => {
            format!("Popped {length_before} {}", item.map_or("-".into(), |item| item.read(text)))
        }
        ServerFrame::KeyList { more, keys } => {
            let all: Vec<_> = keys.iter().map(|key| key.to_string()).collect();
            format!("KeyList {} more={more}", all.join(","))
        }
        ServerFrame::BatchDone { answers } => {
            let all: Vec<_> = answers
                .iter()
                .map(|Batched(frame)| match frame {
                    ServerFrame::Error { fault } => format!("{:?}", fault.code),
                    ServerFrame::Number { number, .. } => number.to_string(),
                    ServerFrame::Value { value, .. } => value.map_or("-".into(), |value| value.read(text)),
                    other => format!("{:#06x}", other.kind()),
                })
                .collect();
            format!("BatchDone {}", all.join(","))
        }
        ServerFrame::Error { fault } => {
            format!("Error {:?} {} {} {}", fault.code, fault.first, fault.second, text(fault.text))
        }
        ServerFrame::Changed { changes } => {
            let all: Vec<_> = changes
                .iter()
                .map(|change| {
                    format!("{}={}", change.key, change.value.map_or("-".into(), |value| value.read(text)))
                })
                .collect();
            format!("Changed {}", all.join(","))
        }
        ServerFrame::Round { round, node_rank, nodes, rank_first, world_size, leader, namespace, .. } => {
            format!(
                "Round {round} rank={node_rank}/{nodes} workers={rank_first}/{world_size} leader={} {namespace}",
                text(leader)
            )
        }
        ServerFrame::PeerDied { round, node_rank, node, why, .. } => {
            format!("PeerDied {} rank={node_rank} round={round}: {why}", text(node))
        }
        ServerFrame::RoundOver { round, why, .. } => format!("RoundOver {round}: {why}"),
        ServerFrame::NodesWaiting { nodes, .. } => format!("NodesWaiting {nodes}"),
        ServerFrame::JobFailed { message, .. } => format!("JobFailed {}", text(message)),
        ServerFrame::RunClosed { by, .. } => format!("RunClosed by={}", text(by)),
        ServerFrame::Placed { is_participant, ahead, .. } => {
            format!("Placed is_participant={is_participant} ahead={ahead}")
        }
        ServerFrame::RunState { round, complete, closed, nodes, nodes_waiting, nodes_standby } => format!(
            "RunState {round} complete={complete} closed={closed} {nodes}+{nodes_waiting}+{nodes_standby}"
        ),
        ServerFrame::BarrierOver { generation, end } => format!("BarrierOver {generation} {end:?}"),
        ServerFrame::MemberList { round, nodes, members } => {
            let all: Vec<_> = members
                .iter()
                .map(|member| format!("{}:{}@{}", member.node_rank, text(member.node), text(member.address)))
                .collect();
            format!("MemberList {round} {nodes} {}", all.join(","))
        }
        other => format!("{other:?}"),
    };
    (format!("{} {what}", header.id), length)
}

impl Rig {
    fn has_ended(&self, number: u64, reason: Why) -> bool {
        let is_it = |event: &Event| matches!(event, Event::SessionEnded { session, why, .. } if session.0 == number && *why == reason);
        self.events.iter().any(is_it)
    }

    /// Returns all that a client got, one line per frame.
    fn lines(&mut self, conn: ConnId) -> Vec<String> {
        let (bytes, limits) = (self.got(conn), ServerLimits::default());
        let (mut rest, mut lines) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let (line, length) = line(&limits, rest);
            lines.push(line);
            rest = &rest[length..];
        }
        lines
    }

    fn open(&mut self, index: u32, node: &str) -> ConnId {
        let conn = self.connect(index);
        self.send(conn, &opening(0, &hello(0, 0, [0; 16], 0, node)));
        assert_eq!(self.lines(conn), ["0 Welcome resumed=false"]);
        conn
    }

    fn ask(&mut self, conn: ConnId, id: u64, frame: &ClientFrame<'_>) {
        self.send(conn, &encoded(id, 0, frame));
    }

    /// Sends a request and returns all that came.
    fn wanted(&mut self, conn: ConnId, id: u64, frame: &ClientFrame<'_>) -> Vec<String> {
        self.ask(conn, id, frame);
        self.lines(conn)
    }
}

mod bounds;
mod ends;
mod lists;
mod long_lists;
mod ordering;
mod permissions;
mod restarts;
mod rounds;
mod turns;

fn rig() -> Rig {
    Rig::new(ServerLimits::default())
}

fn key(name: &str) -> Key<'_> {
    Key::raw(name.as_bytes())
}

const TERMS: Terms<'static> = Terms {
    nodes_min: 2,
    nodes_max: 2,
    continue_min: 0,
    last_call: LastCall::Fixed,
    last_call_ms: 30_000,
    fast_quorum: true,
    rank_order: RankOrder::Sticky,
    rank_label: b"",
    cool_down_failures: 0,
    cool_down_window_ms: 0,
    cool_down_pause_ms: 0,
    cool_down_pause_ms_max: 0,
};

/// Returns a key of a round at the server of the tests.
fn key_of(run_id: &str, round: u64, name: &str) -> String {
    let incarnation = ServerInstance::from_seed(1).incarnation;
    format!("/torch.rendezvous.{run_id}.{incarnation:016x}.{round}/{name}")
}

fn join(node: &str) -> ClientFrame<'_> {
    ClientFrame::Join {
        entry: Entry {
            run_id: b"run",
            node: node.as_bytes(),
            address: node.as_bytes(),
            local_world_size: 4,
            node_rank: -1,
            join_timeout_ms: 10_000,
            terms: TERMS,
            labels: Pairs::scoped(b"", &[]),
            round_min: 0,
        },
    }
}

#[test]
fn requests_may_come_with_hello_in_any_pieces() {
    let mut bytes = opening(0, &hello(0, 0, [0; 16], 0, "n"));
    bytes.extend(encoded(1, 0, &ClientFrame::Set { key: key("/a"), value: b"1" }));
    bytes.extend(encoded(2, 0, &ClientFrame::Get { timeout_ms: 0, key: key("/a") }));
    let expected = ["0 Welcome resumed=false", "1 Done", "2 Value 1"];
    for chunk in [1, 3, 7, bytes.len()] {
        let mut rig = rig();
        let conn = rig.connect(0);
        bytes.chunks(chunk).for_each(|chunk| rig.send(conn, chunk));
        assert_eq!(rig.lines(conn), expected, "in pieces of {chunk}");
        assert_eq!(rig.server.stats().sessions, 1);
    }
}

#[test]
fn a_connection_that_opens_otherwise_is_closed_with_a_word_where_there_is_one() {
    let unversioned = |min, max| match hello(0, 0, [0; 16], 0, "n") {
        ClientFrame::Hello {
            incarnation,
            session,
            token,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
            auth,
            ..
        } => ClientFrame::Hello {
            version_min: min,
            version_max: max,
            incarnation,
            session,
            token,
            grace_ms,
            heartbeat_ms,
            heartbeats_missed_max,
            node,
            auth,
        },
        other => other,
    };
    let mut long = opening(0, &hello(0, 0, [0; 16], 0, "n"));
    long[4..8].copy_from_slice(&5000u32.to_le_bytes());
    let mut critical = opening(0, &hello(0, 0, [0; 16], 0, "n"));
    critical[11] = 1;
    let mut malformed = opening(0, &hello(0, 0, [0; 16], 0, "n"));
    malformed[4] -= 1;
    malformed.pop();
    for (bytes, word) in [
        (b"RDZW".to_vec(), ""),
        (b"RDZV\x00\x00\x00\x00\x10\x00".to_vec(), ""),
        (opening(0, &unversioned(2, 9)), "0 Error VersionUnsupported 1 1 "),
        (opening(0, &unversioned(0, 0)), "0 Error VersionUnsupported 1 1 "),
        (long, "0 Error TooLong 5000 4096 "),
        (critical, "0 Error UnknownFlags 256 0 "),
        (malformed, "0 Error Malformed 1 0 "),
        (opening(0, &hello(77, 1, [0; 16], 0, "n")), "0 Error SessionEnded 0 0 "),
    ] {
        let mut rig = rig();
        let conn = rig.connect(0);
        rig.send(conn, &bytes);
        assert_eq!(rig.lines(conn).join(";"), word);
        assert!(rig.closed.contains_key(&conn), "{word}");
        assert_eq!((rig.server.stats().sessions, rig.server.stats().expelled), (0, 1));
    }
    let mut rig = rig();
    let conn = rig.connect(0);
    rig.send(conn, b"RDZV");
    rig.after(ServerLimits::default().handshake_timeout);
    assert_eq!(rig.closed[&conn], CloseReason::HandshakeTimeout);
}

#[test]
fn one_push_ends_all_that_wait_for_the_queue_and_one_pop() {
    let mut rig = rig();
    let conns: Vec<ConnId> = (0..6).map(|index| rig.open(index, "n")).collect();
    let keys: [&[u8]; 2] = [b"/q", b"/k"];
    let wait = |count| ClientFrame::Wait { timeout_ms: 1000, keys: Keys::scoped(b"", &keys[..count]) };
    let pop = ClientFrame::QueuePop { timeout_ms: 1000, key: key("/q") };
    for (&conn, frame) in conns.iter().zip([wait(1), pop, wait(2), pop, wait(1)]) {
        assert!(rig.wanted(conn, 1, &frame).is_empty());
    }
    let got = |rig: &mut Rig| conns.iter().map(|&conn| rig.lines(conn).join(";")).collect::<Vec<_>>();
    let (push, set) = (
        |value| ClientFrame::QueuePush { key: key("/q"), value },
        ClientFrame::Set { key: key("/k"), value: b"v" },
    );
    rig.ask(conns[5], 1, &push(b"a"));
    assert_eq!(got(&mut rig), ["1 Done", "1 Popped 1 a", "", "", "1 Done", "1 Done"]);
    rig.ask(conns[5], 2, &push(b"b"));
    assert_eq!(got(&mut rig), ["", "", "", "1 Popped 1 b", "", "2 Done"]);
    rig.ask(conns[5], 3, &set);
    assert_eq!(got(&mut rig), ["", "", "1 Done", "", "", "3 Done"]);
}

#[test]
fn each_request_to_the_store_is_answered_as_specified() {
    let mut rig = rig();
    let conn = rig.open(0, "n");
    let keys: [&[u8]; 2] = [b"/a", b"/none"];
    let there: [&[u8]; 2] = [b"/a", b"/n"];
    let pairs: [(&[u8], &[u8]); 2] = [(b"/p/1", b"x"), (b"/p/2", b"y")];
    let compares = [Compare { key: key("/a"), condition: Condition::Value(b"2") }];
    let writes = [Write::Set { key: key("/t"), value: b"done" }];
    let batch = [
        Batched(ClientFrame::Add { key: key("/n"), delta: 2 }),
        Batched(ClientFrame::Add { key: key("/p/1"), delta: 2 }),
        Batched(ClientFrame::CompareSet { key: key("/b"), expected: b"x", desired: b"y" }),
        Batched(ClientFrame::Delete { key: key("/t") }),
    ];
    let mut id = 0;
    for (frame, answer) in [
        (ClientFrame::Set { key: key("/a"), value: b"1" }, "Done"),
        (ClientFrame::CompareSet { key: key("/a"), expected: b"1", desired: b"2" }, "Value 2"),
        (ClientFrame::CompareSet { key: key("/a"), expected: b"1", desired: b"3" }, "Value 2"),
        (ClientFrame::CompareSet { key: key("/none"), expected: b"1", desired: b"3" }, "Value -"),
        (ClientFrame::Get { timeout_ms: 0, key: key("/a") }, "Value 2"),
        (ClientFrame::Get { timeout_ms: 0, key: key("/none") }, "Error NotFound 0 0 "),
        (ClientFrame::Add { key: key("/n"), delta: 5 }, "Number 5"),
        (ClientFrame::Check { keys: Keys::scoped(b"", &keys) }, "Outcome false"),
        (ClientFrame::Check { keys: Keys::scoped(b"", &there) }, "Outcome true"),
        (ClientFrame::Wait { timeout_ms: 0, keys: Keys::scoped(b"", &there) }, "Done"),
        (ClientFrame::Wait { timeout_ms: 0, keys: Keys::scoped(b"", &keys) }, "Error TimedOut 0 0 /none"),
        (ClientFrame::NumKeys {}, "Number 2"),
        (ClientFrame::Append { key: key("/a"), value: b"0" }, "Done"),
        (ClientFrame::MultiGet { timeout_ms: 0, keys: Keys::scoped(b"", &keys) }, "Values 20,-"),
        (ClientFrame::MultiGet { timeout_ms: 9, keys: Keys::scoped(b"", &there) }, "Values 20,5"),
        (ClientFrame::MultiSet { pairs: Pairs::scoped(b"", &pairs) }, "Done"),
        (ClientFrame::QueuePush { key: key("/q"), value: b"item" }, "Done"),
        (ClientFrame::QueueLen { key: key("/q") }, "Number 1"),
        (ClientFrame::Get { timeout_ms: 9, key: key("/q") }, "Error NotFound 0 0 "),
        (ClientFrame::QueuePop { timeout_ms: 0, key: key("/q") }, "Popped 1 item"),
        (ClientFrame::QueuePop { timeout_ms: 0, key: key("/q") }, "Popped 0 -"),
        (
            ClientFrame::ListKeys { prefix: key("/"), after: key(""), count_max: 3 },
            "KeyList /a,/n,/p/1 more=true",
        ),
        (
            ClientFrame::ListKeys { prefix: key("/p"), after: key("/p/1"), count_max: 9 },
            "KeyList /p/2 more=false",
        ),
        (
            ClientFrame::Txn {
                compares: List::new(&compares),
                then: List::new(&writes),
                otherwise: List::new(&writes),
            },
            "Outcome false",
        ),
        (ClientFrame::Get { timeout_ms: 0, key: key("/t") }, "Value done"),
        (ClientFrame::Batch { requests: List::new(&batch) }, "BatchDone 7,NotANumber,-,1"),
        (ClientFrame::DeletePrefix { prefix: key("/p/") }, "Number 2"),
        (ClientFrame::Delete { key: key("/a") }, "Number 1"),
        (ClientFrame::Delete { key: key("/a") }, "Number 0"),
    ] {
        id += 1;
        assert_eq!(rig.wanted(conn, id, &frame), [format!("{id} {answer}")], "{frame:?}");
    }
}

#[test]
fn both_languages_see_the_same_keys_and_wake_each_other() {
    let mut rig = rig();
    let native = rig.open(0, "n");
    let c10d = rig.greeted(1);
    rig.ask(native, 1, &ClientFrame::Get { timeout_ms: 5000, key: key("/k") });
    rig.ask(native, 2, &ClientFrame::QueuePop { timeout_ms: 5000, key: key("/q") });
    assert_eq!(rig.lines(native), [""; 0]);
    rig.send(c10d, &super::super::tests::set(b"/k", b"from c10d"));
    assert_eq!(rig.lines(native), ["1 Value from c10d"]);
    rig.send(c10d, &super::super::tests::frame(Request::QueuePush { key: key("/q"), value: b"item" }));
    assert_eq!(rig.lines(native), ["2 Popped 1 item"]);
    rig.send(c10d, &super::super::tests::wait(b"/late"));
    rig.ask(native, 3, &ClientFrame::Set { key: key("/late"), value: b"" });
    assert_eq!((rig.got(c10d), rig.lines(native)), (std::vec![0], std::vec!["3 Done".to_string()]));
    assert_eq!(rig.server.stats().waiting, 0);
}

#[test]
fn an_item_is_not_left_when_a_woken_c10d_client_dies_before_it_pops() {
    let mut rig = rig();
    let (native, c10d) = (rig.open(0, "n"), rig.greeted(1));
    rig.send(c10d, &super::super::tests::wait(b"/q"));
    rig.ask(native, 1, &ClientFrame::QueuePop { timeout_ms: 60_000, key: key("/q") });
    rig.ask(native, 2, &ClientFrame::QueuePush { key: key("/q"), value: b"item" });
    assert_eq!((rig.got(c10d), rig.lines(native)), (std::vec![0], std::vec!["2 Done".to_string()]));
    rig.feed(Input::Lost { conn: c10d, os_error: 104 });
    assert_eq!(rig.lines(native), ["1 Popped 1 item"]);
}

#[test]
fn waits_end_in_time_by_cancel_or_with_their_session() {
    let mut rig = rig();
    let conn = rig.open(0, "node-a");
    let keys: [&[u8]; 3] = [b"/x", b"/there", b"/y"];
    rig.ask(conn, 1, &ClientFrame::Set { key: key("/there"), value: b"" });
    rig.ask(conn, 2, &ClientFrame::Wait { timeout_ms: 1000, keys: Keys::scoped(b"", &keys) });
    rig.ask(conn, 3, &ClientFrame::MultiGet { timeout_ms: 2000, keys: Keys::scoped(b"", &keys) });
    rig.ask(conn, 4, &ClientFrame::QueuePop { timeout_ms: 3000, key: key("/q") });
    rig.ask(conn, 5, &ClientFrame::Get { timeout_ms: 60_000, key: key("/x") });
    rig.got(conn);
    rig.after(Duration::from_millis(999));
    assert_eq!(rig.lines(conn), [""; 0]);
    rig.after(Duration::from_millis(1));
    assert_eq!(rig.lines(conn), ["2 Error TimedOut 1000 0 /x, /y"]);
    rig.after(Duration::from_millis(2000));
    assert_eq!(rig.lines(conn), ["3 Error TimedOut 2000 0 /x, /y", "4 Error TimedOut 3000 0 /q"]);
    assert_eq!(
        rig.wanted(conn, 6, &ClientFrame::Cancel { request: 5 }),
        ["5 Error Cancelled 0 0 node-a", "6 Outcome true"]
    );
    assert_eq!(rig.wanted(conn, 7, &ClientFrame::Cancel { request: 5 }), ["7 Outcome false"]);
    rig.ask(conn, 8, &ClientFrame::Get { timeout_ms: 60_000, key: key("/x") });
    assert_eq!(rig.server.stats().waiting, 1);
    rig.feed(Input::Lost { conn, os_error: 104 });
    assert_eq!((rig.server.stats().waiting, rig.server.stats().sessions), (0, 0));
    assert!(rig.has_ended(1, Why::Connection), "{:?}", rig.events);
}

#[test]
fn a_session_that_holds_too_much_is_expelled_and_counted_with_a_connection_or_without() {
    for attached in [true, false] {
        let mut rig = Rig::new(ServerLimits { buffered_bytes_max: 20_000, ..ServerLimits::default() });
        let (conn, other) = (rig.connect(0), rig.open(1, "other"));
        rig.send(conn, &opening(0, &hello(0, 0, [0; 16], 60_000, "n")));
        rig.got(conn);
        // The session holds the wait and its key.
        let long = [b'k'; 8000];
        let wait = ClientFrame::Get { timeout_ms: 60_000, key: Key::raw(&long) };
        rig.ask(conn, 1, &wait);
        rig.ask(conn, 2, &wait);
        if !attached {
            rig.feed(Input::Lost { conn, os_error: 104 });
        }
        assert_eq!((rig.server.stats().sessions, rig.server.stats().expelled), (2, 0));
        rig.ask(other, 1, &ClientFrame::Get { timeout_ms: 60_000, key: Key::raw(&long[1000..]) });
        assert!(rig.has_ended(2, Why::Limit), "{:?}", rig.events);
        assert_eq!((rig.server.stats().sessions, rig.server.stats().expelled), (1, 1), "{attached}");
    }
}

#[test]
fn a_value_that_is_gone_again_is_waited_for_on() {
    let mut rig = rig();
    let (conn, other) = (rig.open(0, "n"), rig.open(1, "m"));
    rig.ask(conn, 1, &ClientFrame::Get { timeout_ms: 1000, key: key("/k") });
    let writes = [Write::Set { key: key("/k"), value: b"1" }, Write::Delete { key: key("/k") }];
    let txn =
        ClientFrame::Txn { compares: List::new(&[]), then: List::new(&writes), otherwise: List::new(&[]) };
    assert_eq!(rig.wanted(other, 1, &txn), ["1 Outcome true"]);
    assert_eq!(rig.lines(conn), [""; 0]);
    rig.ask(other, 2, &ClientFrame::Set { key: key("/k"), value: b"2" });
    assert_eq!(rig.lines(conn), ["1 Value 2"]);
}

#[test]
fn a_watch_tells_of_changes_whoever_makes_them() {
    let mut rig = rig();
    let (conn, c10d) = (rig.open(0, "n"), rig.greeted(1));
    assert_eq!(
        rig.wanted(conn, 1, &ClientFrame::WatchPrefix { prefix: key("/w/"), from_revision: 0 }),
        ["1 Done"]
    );
    rig.send(c10d, &super::super::tests::set(b"/w/a", b"1"));
    rig.send(c10d, &super::super::tests::set(b"/other", b"1"));
    assert_eq!(rig.lines(conn), ["1 Changed /w/a=1"]);
    let writes = [Write::Set { key: key("/w/b"), value: b"2" }, Write::Delete { key: key("/w/a") }];
    let txn =
        ClientFrame::Txn { compares: List::new(&[]), then: List::new(&writes), otherwise: List::new(&[]) };
    assert_eq!(rig.wanted(conn, 2, &txn), ["2 Outcome true", "1 Changed /w/b=2,/w/a=-"]);
    let back = ClientFrame::WatchKey { key: key("/w/a"), from_revision: 1 };
    assert_eq!(rig.wanted(conn, 3, &back), ["3 Done", "3 Changed /w/a=1,/w/a=-"]);
    assert_eq!(
        rig.wanted(conn, 4, &ClientFrame::Cancel { request: 1 }),
        ["1 WatchOver { why: Cancelled, oldest: 0 }", "4 Outcome true"]
    );
    assert_eq!(rig.wanted(conn, 5, &ClientFrame::Set { key: key("/w/c"), value: b"" }), ["5 Done"]);
}

#[test]
fn a_watcher_that_does_not_read_is_told_later_and_no_memory_is_kept_for_it() {
    let limits = ServerLimits { unsent_bytes_high: 100, ..ServerLimits::default() };
    let mut rig = Rig::new(limits);
    let (slow, writer) = (rig.open(0, "slow"), rig.greeted(1));
    rig.ask(slow, 1, &ClientFrame::WatchKey { key: key("/k"), from_revision: 0 });
    rig.got(slow);
    rig.window = 0;
    for round in 0..50_u64 {
        let value = round.to_string();
        rig.send(writer, &super::super::tests::set(b"/k", value.as_bytes()));
    }
    assert!(rig.server.unsent(slow).len() < 300, "{} bytes are kept", rig.server.unsent(slow).len());
    rig.window = usize::MAX;
    rig.feed(Input::Sent { conn: slow, bytes: 0 });
    let mut reported = Vec::new();
    for _ in 0..200 {
        rig.pump(slow);
        reported.extend(rig.lines(slow));
    }
    let values: Vec<&str> = reported
        .iter()
        .flat_map(|line| line.strip_prefix("1 Changed ").expect("a change").split(','))
        .map(|change| change.strip_prefix("/k=").expect("of the key"))
        .collect();
    assert_eq!(values, (0..50).map(|round| round.to_string()).collect::<Vec<_>>());
}

#[test]
fn leases_end_in_time_by_word_and_with_their_session() {
    let mut rig = rig();
    let (owner, other) = (rig.open(0, "owner"), rig.open(1, "other"));
    for (id, name) in [(1, "/1"), (2, "/2"), (3, "/3")] {
        rig.ask(owner, id, &ClientFrame::Set { key: key(name), value: b"" });
    }
    rig.got(owner);
    assert_eq!(rig.wanted(owner, 4, &ClientFrame::LeaseGrant { ttl_ms: 1000 }), ["4 Number 1"]);
    assert_eq!(rig.wanted(owner, 5, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["5 Number 2"]);
    assert_eq!(rig.wanted(owner, 6, &ClientFrame::LeaseGrant { ttl_ms: 0 }), ["6 Number 3"]);
    for (lease, name) in [(1, b"/1"), (2, b"/2"), (3, b"/3")] {
        let keys: [&[u8]; 1] = [name];
        let attach = ClientFrame::LeaseAttach { lease, keys: Keys::scoped(b"", &keys) };
        assert_eq!(rig.wanted(owner, 6 + lease, &attach), [format!("{} Done", 6 + lease)]);
    }
    assert_eq!(rig.wanted(owner, 10, &ClientFrame::LeaseRenew { lease: 9 }), ["10 Error UnknownLease 9 0 "]);
    rig.after(Duration::from_millis(600));
    assert_eq!(rig.wanted(owner, 11, &ClientFrame::LeaseRenew { lease: 1 }), ["11 Done"]);
    rig.after(Duration::from_millis(600));
    assert_eq!(rig.lines(owner), [""; 0]);
    rig.after(Duration::from_millis(400));
    assert_eq!(rig.lines(owner), ["4 LeaseOver { lease: 1, why: Deadline }"]);
    assert_eq!(rig.wanted(owner, 12, &ClientFrame::LeaseRevoke { lease: 2 }), ["12 Number 1"]);
    assert_eq!(rig.wanted(other, 1, &ClientFrame::WatchKey { key: key("/3"), from_revision: 0 }), ["1 Done"]);
    rig.feed(Input::Lost { conn: owner, os_error: 0 });
    assert_eq!(rig.lines(other), ["1 Changed /3=-"]);
    assert_eq!(rig.server.stats().keys, 0);
}

#[test]
fn a_session_is_resumed_with_what_was_missed_and_nothing_twice() {
    let mut rig = rig();
    let first = rig.connect(0);
    rig.send(first, &opening(0, &hello(0, 0, [0; 16], 5000, "n")));
    let welcome = rig.got(first);
    let body = &welcome[HEADER_BYTES..];
    let Ok(Some(ServerFrame::Welcome { incarnation, session, token, .. })) =
        ServerFrame::parse(0x8001, body, &ServerLimits::default().native_frame)
    else {
        panic!("no Welcome")
    };
    rig.send(first, &encoded(1, 0, &ClientFrame::Add { key: key("/n"), delta: 1 }));
    rig.send(first, &encoded(2, 0, &ClientFrame::Get { timeout_ms: 60_000, key: key("/late") }));
    rig.feed(Input::Lost { conn: first, os_error: 104 });
    let other = rig.open(1, "other");
    rig.ask(other, 1, &ClientFrame::Set { key: key("/late"), value: b"v" });
    assert_eq!(rig.server.stats().sessions, 2, "it lives through its grace");

    let forger = rig.connect(2);
    rig.send(forger, &opening(0, &hello(session, incarnation, [9; 16], 5000, "n")));
    assert_eq!(rig.lines(forger), ["0 Error SessionForged 0 0 "]);
    let stale = rig.connect(3);
    rig.send(stale, &opening(0, &hello(session, incarnation + 1, token, 5000, "n")));
    assert_eq!(rig.lines(stale), ["0 Error SessionEnded 0 0 "]);

    let second = rig.connect(4);
    rig.send(second, &opening(0, &hello(session, incarnation, token, 5000, "n")));
    rig.send(second, &encoded(1, 0, &ClientFrame::Add { key: key("/n"), delta: 1 }));
    assert_eq!(rig.lines(second), ["0 Welcome resumed=true", "1 Number 1", "2 Value v", "1 Number 1"]);
    let third = rig.connect(5);
    rig.send(third, &opening(2, &hello(session, incarnation, token, 5000, "n")));
    assert_eq!(rig.lines(third), ["0 Welcome resumed=true"]);
    assert_eq!(rig.lines(second), ["0 SessionOver { why: Superseded }"]);
    assert_eq!(rig.closed[&second], CloseReason::SessionOver(Why::Superseded));
    rig.send(third, &encoded(1, 2, &ClientFrame::Add { key: key("/n"), delta: 1 }));
    assert_eq!(rig.lines(third), ["1 Error RequestForgotten 3 0 "]);
    rig.feed(Input::Lost { conn: third, os_error: 104 });
    rig.after(Duration::from_millis(5000));
    assert!(rig.has_ended(session, Why::Connection), "{:?}", rig.events);
}

#[test]
fn an_answer_that_has_no_room_is_not_made() {
    let session = crate::limits::SessionLimits { body_bytes_max: 4096, ..Default::default() };
    let mut rig = Rig::new(ServerLimits { session, ..ServerLimits::default() });
    let conn = rig.open(0, "n");
    let value = std::vec![b'v'; 1500];
    rig.ask(conn, 1, &ClientFrame::Set { key: key("/k"), value: &value });
    rig.got(conn);
    let keys: [&[u8]; 3] = [b"/k"; 3];
    let all = ClientFrame::MultiGet { timeout_ms: 0, keys: Keys::scoped(b"", &keys) };
    assert_eq!(rig.wanted(conn, 2, &all), ["2 Error TooLong 4500 4096 "]);
    let look = Batched(ClientFrame::CompareSet { key: key("/k"), expected: b"x", desired: b"y" });
    let batch = [look, look, Batched(ClientFrame::Add { key: key("/n"), delta: 1 })];
    let reported = rig.wanted(conn, 3, &ClientFrame::Batch { requests: List::new(&batch) });
    assert!(reported[0].ends_with(",TooLong,1"), "{reported:?}");
}

#[test]
fn a_long_frame_on_a_slow_way_is_a_sign_of_life() {
    let mut rig = rig();
    let conn = rig.open(0, "slow");
    let value = std::vec![b'v'; 4000];
    let frame = encoded(1, 0, &ClientFrame::Set { key: key("/k"), value: &value });
    for chunk in frame.chunks(200) {
        rig.after(Duration::from_millis(2000));
        rig.send(conn, chunk);
    }
    assert_eq!(rig.lines(conn), ["1 Done"], "though it took forty seconds");
}

#[test]
fn what_is_pushed_to_one_who_hangs_is_no_sign_of_its_life() {
    let mut rig = rig();
    let (hangs, alive) = (rig.open(0, "hangs"), rig.open(1, "alive"));
    let watch = ClientFrame::WatchKey { key: key("/a"), from_revision: 0 };
    assert_eq!(rig.wanted(hangs, 1, &watch), ["1 Done"]);
    for round in 1..=5 {
        rig.after(Duration::from_millis(2999));
        assert_eq!(
            rig.wanted(alive, round, &ClientFrame::Set { key: key("/a"), value: b"v" }),
            [format!("{round} Done")]
        );
        assert_eq!(rig.lines(hangs), ["1 Changed /a=v"]);
    }
    rig.after(Duration::from_millis(10));
    assert_eq!(rig.lines(hangs), ["0 SessionOver { why: Heartbeat }"]);
}

#[test]
fn silence_ends_a_session_and_heartbeats_do_not() {
    let mut rig = rig();
    let (quiet, alive) = (rig.open(0, "quiet"), rig.open(1, "alive"));
    for round in 0..5 {
        rig.after(Duration::from_millis(2999));
        rig.send(alive, &encoded(0, 0, &ClientFrame::Heartbeat { nonce: round }));
        assert_eq!(rig.lines(alive), [format!("0 HeartbeatEcho {{ nonce: {round} }}")]);
    }
    rig.after(Duration::from_millis(10));
    assert_eq!(rig.lines(quiet), ["0 SessionOver { why: Heartbeat }"]);
    assert_eq!(rig.closed[&quiet], CloseReason::SessionOver(Why::Heartbeat));
    assert!(!rig.closed.contains_key(&alive));
}

#[test]
fn no_deadline_passes_while_the_server_does_not_run() {
    let mut rig = rig();
    let (conn, waits) = (rig.open(0, "n"), rig.open(1, "waits"));
    rig.send(waits, &encoded(1, 0, &ClientFrame::Get { key: key("/k"), timeout_ms: 20_000 }));
    rig.after(Duration::from_secs(1));
    // The processes of the server and of the clients stop for an hour. The first input comes a moment after that.
    rig.is_stopped_for(Duration::from_secs(3600));
    rig.after(Duration::from_millis(100));
    for conn in [conn, waits] {
        rig.send(conn, &encoded(0, 0, &ClientFrame::Heartbeat { nonce: 1 }));
        assert_eq!(rig.lines(conn), ["0 HeartbeatEcho { nonce: 1 }"]);
    }
    // The wait has as much time left as before, and heartbeats count again.
    rig.after(Duration::from_millis(14_900));
    rig.send(waits, &encoded(0, 0, &ClientFrame::Heartbeat { nonce: 2 }));
    rig.lines(waits);
    rig.after(Duration::from_millis(14_900));
    assert_eq!(rig.closed[&conn], CloseReason::SessionOver(Why::Heartbeat));
    assert!(rig.lines(waits)[0].starts_with("1 Error TimedOut"));
}

#[test]
fn what_is_no_request_is_answered_and_the_connection_goes_on() {
    let mut rig = rig();
    let conn = rig.open(0, "n");
    let mut unknown = encoded(1, 0, &ClientFrame::NumKeys {});
    unknown[4] = 0xee;
    rig.send(conn, &unknown);
    assert_eq!(rig.lines(conn), ["1 Error UnknownRequest 238 0 "]);
    let mut cut = encoded(2, 0, &ClientFrame::Delete { key: key("/abc") });
    cut.truncate(HEADER_BYTES + 4);
    cut[0] = 4;
    rig.send(conn, &cut);
    assert_eq!(rig.lines(conn), ["2 Error Malformed 23 0 "]);
    let long = std::vec![b'k'; 9000];
    assert_eq!(
        rig.wanted(conn, 3, &ClientFrame::Delete { key: Key::raw(&long) }),
        ["3 Error TooLong 9000 8192 "]
    );
    assert_eq!(rig.wanted(conn, 4, &ClientFrame::NumKeys {}), ["4 Number 0"]);
    rig.send(conn, &encoded(5, 99, &ClientFrame::NumKeys {}));
    assert_eq!(rig.lines(conn), ["0 Error FalseAcknowledgement 99 4 "]);
    assert_eq!(rig.closed[&conn], CloseReason::SessionRefused(FaultCode::FalseAcknowledgement));
    let conn = rig.open(1, "n");
    rig.send(conn, &encoded(0, 0, &hello(0, 0, [0; 16], 0, "n")));
    assert_eq!(rig.lines(conn), ["0 Error UnexpectedFrame 1 0 "]);
    let conn = rig.open(2, "n");
    rig.send(conn, &encoded(0, 0, &ClientFrame::NumKeys {}));
    assert_eq!(rig.lines(conn), ["0 Error UnexpectedFrame 0 0 "]);
}

#[test]
fn a_barrier_releases_all_breaks_at_once_and_names_the_absent() {
    let mut rig = rig();
    let (a, b) = (rig.open(0, "a"), rig.open(1, "b"));
    let arrive = |name: &'static str, timeout_ms, participants| ClientFrame::Barrier {
        key: Key::raw(b"step"),
        generation: 0,
        name: name.as_bytes(),
        timeout_ms,
        participants,
    };
    let two = Participants::Count(2);
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    let listed = Participants::Names(Keys::scoped(b"", &names));
    assert_eq!(rig.wanted(a, 1, &arrive("a", 1000, two)), [""; 0]);
    assert_eq!(rig.server.stats().waiting, 1);
    assert_eq!(rig.wanted(b, 1, &arrive("b", 1000, two)), ["1 BarrierOver 1 Released"]);
    assert_eq!(rig.server.stats().waiting, 0);
    assert_eq!(rig.lines(a), ["1 BarrierOver 1 Released"]);
    assert_eq!(rig.wanted(a, 2, &arrive("a", 1000, two)), [""; 0]);
    assert!(
        rig.wanted(b, 2, &arrive("b", 1000, Participants::Count(3)))[0]
            .starts_with("2 Error BarrierConflict 2 0 a")
    );
    assert_eq!(
        rig.wanted(a, 3, &ClientFrame::Cancel { request: 2 }),
        ["2 Error Cancelled 0 0 a", "3 Outcome true"]
    );
    rig.ask(a, 4, &arrive("a", 1000, listed));
    rig.ask(b, 4, &arrive("b", 9000, listed));
    rig.after(Duration::from_millis(1000));
    for conn in [a, b] {
        let reported = rig.lines(conn);
        assert_eq!(reported.len(), 1);
        assert!(
            reported[0].starts_with("4 BarrierOver 2 TimedOut { absent_count: 1, absent: [\"c\"]"),
            "{reported:?}"
        );
    }
    let c = rig.open(2, "c");
    rig.ask(a, 5, &arrive("a", 1000, listed));
    rig.feed(Input::Lost { conn: c, os_error: 104 });
    let reported = rig.lines(a);
    assert!(
        reported[0].starts_with("5 BarrierOver 3 Broken") && reported[0].contains("Connection"),
        "{reported:?}"
    );
    rig.ask(a, 6, &arrive("a", 1000, two));
    assert_eq!(
        rig.wanted(b, 6, &ClientFrame::BarrierCancel { key: Key::raw(b"step"), name: b"operator" }),
        ["6 Outcome true"]
    );
    assert!(rig.lines(a)[0].starts_with("6 BarrierOver 4 Cancelled"));
}
