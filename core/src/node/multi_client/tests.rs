extern crate std;
use super::*;
use crate::error::Effect;
use crate::node::server::{self, Server};
use crate::store::op::{Key, Keys, Request};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::{format, vec};
use core::net::{IpAddr, Ipv4Addr};

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const MS: fn(u64) -> Instant = Instant::from_millis;
const SECOND: Duration = Duration::from_secs(1);
const ADD: Call<'static> = Call::Store(Request::Add { key: Key::raw(b"/n"), delta: 1 }, WaitMode::Wait);
const GET: Call<'static> = Call::Store(Request::Get { key: Key::raw(b"/k") }, WaitMode::Wait);
const WAIT: Call<'static> = Call::Store(Request::Wait { keys: Keys::one(Key::raw(b"/k")) }, WaitMode::Wait);
const NUM_KEYS: Call<'static> = Call::Store(Request::NumKeys, WaitMode::Wait);

const ADD_SENT: &str = "0402000000000000002f6e0100000000000000";
const WAIT_SENT: &str = "06010000000000000002000000000000002f6b";
const GET_SENT: &str = "06010000000000000002000000000000002f6b0302000000000000002f6b";

/// Client whose network is the test. Its actions are returned as text.
struct Scripted {
    client: MultiClient,
    conns: BTreeMap<u32, ConnId>,
}

impl Scripted {
    fn new(connections_max: usize, idle_connections_max: usize) -> Self {
        let limits = ClientLimits { connections_max, idle_connections_max, ..ClientLimits::default() };
        let options = MultiClientOptions { limits, ..MultiClientOptions::default() };
        Self { client: MultiClient::new(options, 7), conns: BTreeMap::new() }
    }

    fn submit(&mut self, at_ms: u64, call: Call<'_>) -> CallId {
        self.client.submit(MS(at_ms), &call, SECOND).expect("within the limits")
    }

    /// Drains the outputs. Bytes to transmit are sent and returned as hex.
    fn outputs(&mut self) -> Vec<String> {
        let mut reported = Vec::new();
        while let Some(output) = self.client.poll_output() {
            reported.push(match output {
                Output::Resolve => String::from("resolve"),
                Output::Connect(conn, address) => {
                    self.conns.insert(conn.generation, conn);
                    format!("{} connect {}", conn.generation, address.port())
                }
                Output::Disconnect(conn) => format!("{} disconnect", conn.generation),
                Output::Transmit(conn) => {
                    let bytes = self.client.unsent(conn);
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    let count = bytes.len();
                    self.client.handle(MS(0), Input::Sent(conn, count));
                    format!("{} sends {hex}", conn.generation)
                }
                Output::Completed(id, operation, Ok(answer)) => {
                    let values: Vec<_> =
                        answer.values.iter().map(|one| String::from_utf8_lossy(one)).collect();
                    format!("{} {operation:?} {:?} {values:?}", id.0, answer.outcome)
                }
                Output::Completed(id, operation, Err(failed)) => {
                    let Failure { kind, phase, elapsed, cause, effect } = failed.failure;
                    let elapsed = elapsed.as_millis();
                    format!("{} {operation:?} {kind:?} {phase:?} {elapsed} {cause:?} {effect:?}", id.0)
                }
            });
        }
        reported
    }

    fn input(&mut self, at_ms: u64, conn: u32, input: fn(ConnId) -> Input<'static>) {
        let conn = self.conns[&conn];
        self.client.handle(MS(at_ms), input(conn));
    }

    fn receives(&mut self, at_ms: u64, conn: u32, hex: &str) {
        let bytes: Vec<u8> = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).expect("ascii"), 16).expect("hex"))
            .collect();
        self.client.handle(MS(at_ms), Input::Received(self.conns[&conn], &bytes));
    }

    /// Ends the look-up.
    fn resolve(&mut self, at_ms: u64) -> Vec<String> {
        self.client.handle(MS(at_ms), Input::Resolved(&[ADDRESS]));
        self.outputs()
    }

    /// Takes a connection that was just opened through its greeting.
    fn connect(&mut self, at_ms: u64, conn: u32) {
        if !self.conns.contains_key(&conn) {
            self.resolve(at_ms);
        }
        self.input(at_ms, conn, Input::Connected);
        let reported = self.outputs();
        let greeting = reported.last().expect("a greeting").clone();
        let nonce = greeting.strip_prefix(&format!("{conn} sends 00cef7853c0d")).expect("a greeting");
        self.receives(at_ms, conn, nonce);
    }

    fn tick(&mut self, at_ms: u64) -> Vec<String> {
        self.client.handle(MS(at_ms), Input::Tick);
        self.outputs()
    }
}

const RESET: fn(ConnId) -> Input<'static> = |conn| Input::Ended(conn, Cause::Os(104));
const CLOSED: fn(ConnId) -> Input<'static> = |conn| Input::Ended(conn, Cause::Closed);

#[test]
fn calls_that_are_answered_at_once_share_a_connection() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, ADD);
    world.submit(0, NUM_KEYS);
    assert_eq!(world.outputs(), ["resolve"]);
    world.connect(1, 1);
    assert_eq!(world.outputs(), [format!("1 sends {ADD_SENT}07")]);
    world.submit(2, ADD);
    assert_eq!(world.outputs(), [format!("1 sends {ADD_SENT}")]);
    world.receives(3, 1, "0500000000000000060000");
    assert_eq!(world.outputs(), ["1 Add Number(5) []"]);
    world.receives(3, 1, "00000000000700000000000000");
    assert_eq!(world.outputs(), ["2 NumKeys Number(6) []", "3 Add Number(7) []"]);
    assert_eq!((world.client.pending(), world.client.connections()), (0, 1));
    assert_eq!(world.client.poll_timeout(), None);
}

#[test]
fn connections_share_a_look_up_and_further_ones_need_none_until_one_fails() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.submit(0, GET);
    assert_eq!(world.outputs(), ["resolve"]);
    assert_eq!(world.resolve(1), ["1 connect 0", "2 connect 0"]);
    for conn in [1, 2] {
        world.connect(2, conn);
        assert_eq!(world.outputs(), [format!("{conn} sends {GET_SENT}")]);
    }
    world.submit(3, ADD);
    assert_eq!(world.outputs(), ["3 connect 0"], "the address is known");
    world.input(4, 3, |conn| Input::ConnectFailed(conn, ErrorKind::Refused, Cause::Os(111)));
    assert_eq!(world.outputs(), ["3 Add Refused Connecting 1 Os(111) None"]);
    world.submit(5, ADD);
    world.submit(5, GET);
    assert_eq!(world.outputs(), ["resolve"], "the name may lead elsewhere by now");
    world.client.handle(MS(6), Input::Unresolved(ErrorKind::Unresolved, Cause::Resolver(-2)));
    let mut ended = world.outputs();
    ended.sort();
    let unresolved = "Unresolved Resolving 1 Resolver(-2) None";
    assert_eq!(ended, [format!("4 Add {unresolved}"), format!("5 Get {unresolved}")]);
}

#[test]
fn calls_that_may_block_have_connections_of_their_own_and_surplus_ones_close() {
    let mut world = Scripted::new(4, 1);
    for _ in 0..2 {
        world.submit(0, GET);
    }
    world.submit(0, ADD);
    assert_eq!(world.outputs(), ["resolve"]);
    let mut sent = Vec::new();
    for conn in 1..=3 {
        world.connect(1, conn);
        sent.extend(world.outputs());
    }
    assert_eq!(sent.iter().filter(|reported| reported.contains(GET_SENT)).count(), 2, "{sent:?}");
    assert_eq!(sent.iter().filter(|reported| reported.contains(ADD_SENT)).count(), 1, "{sent:?}");
    let adding = sent.iter().find(|reported| reported.contains(ADD_SENT)).expect("sent")[..1]
        .parse()
        .expect("a digit");
    world.receives(2, adding, "0100000000000000");
    assert_eq!(world.outputs(), ["3 Add Number(1) []"]);
    for conn in (1..=3).filter(|&conn| conn != adding) {
        world.receives(3, conn, "0001000000000000007a");
    }
    let reported = world.outputs();
    assert_eq!(
        reported.iter().filter(|reported| reported.ends_with(r#"Get Value ["z"]"#)).count(),
        2,
        "{reported:?}"
    );
    assert_eq!(
        reported.iter().filter(|reported| reported.ends_with("disconnect")).count(),
        2,
        "{reported:?}"
    );
    assert_eq!(world.client.connections(), 1);
}

#[test]
fn beyond_the_limit_calls_wait_their_turn() {
    let mut world = Scripted::new(3, 3);
    for _ in 0..4 {
        world.submit(0, WAIT);
    }
    assert_eq!(world.outputs(), ["resolve"]);
    for conn in [1, 2] {
        world.connect(1, conn);
        assert_eq!(world.outputs(), [format!("{conn} sends {WAIT_SENT}")]);
    }
    world.receives(2, 1, "00");
    assert_eq!(world.outputs(), ["1 Wait Released []".into(), format!("1 sends 0c{WAIT_SENT}")]);
    world.receives(2, 2, "00");
    assert_eq!(world.outputs(), ["2 Wait Released []".into(), format!("2 sends 0c{WAIT_SENT}")]);
    world.receives(3, 2, "0100");
    world.receives(3, 1, "0100");
    assert_eq!(world.outputs(), ["4 Wait Released []", "3 Wait Released []"]);
}

#[test]
fn waits_leave_a_connection_to_the_calls_that_end_them() {
    // A limit of one connection has the same effect as two.
    for connections_max in [1, 2] {
        let mut world = Scripted::new(connections_max, 2);
        world.submit(0, WAIT);
        world.submit(0, GET);
        assert_eq!(world.outputs(), ["resolve"]);
        world.connect(1, 1);
        assert_eq!(world.outputs(), [format!("1 sends {WAIT_SENT}")]);
        world.submit(2, NUM_KEYS);
        assert_eq!(world.outputs(), ["2 connect 0"]);
        world.connect(3, 2);
        assert_eq!(world.outputs(), ["2 sends 07"]);
        world.receives(4, 2, "0100000000000000");
        assert_eq!(
            world.outputs(),
            ["3 NumKeys Number(1) []"],
            "an idle connection is not for a second wait"
        );
        world.receives(5, 1, "00");
        let reported = world.outputs();
        assert_eq!(reported[0], "1 Wait Released []");
        assert!(reported[1].ends_with(GET_SENT) && reported.len() == 2, "{reported:?}");
    }
}

#[test]
fn a_call_that_looks_once_needs_no_turn_among_those_that_wait() {
    let mut world = Scripted::new(2, 2);
    world.submit(0, WAIT);
    world.submit(0, WAIT);
    assert_eq!(world.outputs(), ["resolve"]);
    world.connect(1, 1);
    world.outputs();
    world.submit(2, Call::Store(Request::MultiGet { keys: Keys::one(Key::raw(b"/k")) }, WaitMode::Once));
    assert_eq!(world.outputs(), ["2 connect 0"]);
    world.connect(3, 2);
    assert_eq!(world.outputs(), ["2 sends 05010000000000000002000000000000002f6b"]);
    world.receives(4, 2, "01");
    assert_eq!(world.outputs(), ["3 MultiGet TimedOut Waiting 2 NotReleased None"]);
}

/// Drains the outputs of a client that can open no more connections, and returns the results of its calls.
fn without_descriptors(world: &mut Scripted, at_ms: u64) -> (usize, Vec<String>) {
    let (mut dials, mut reported) = (0, Vec::new());
    while let Some(output) = world.client.poll_output() {
        match output {
            Output::Resolve => world.client.handle(MS(at_ms), Input::Resolved(&[ADDRESS])),
            Output::Connect(conn, _) => {
                dials += 1;
                assert!(dials < 100, "at one moment");
                world.client.handle(MS(at_ms), Input::ConnectFailed(conn, ErrorKind::Io, Cause::Os(24)));
            }
            Output::Completed(id, operation, result) => {
                let failure = result.expect_err("there is no connection").failure;
                reported.push(format!("{} {operation:?} {:?} {:?}", id.0, failure.kind, failure.cause));
            }
            other => panic!("{other:?}"),
        }
    }
    (dials, reported)
}

#[test]
fn calls_that_need_a_further_connection_fail_with_what_prevents_it() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, WAIT);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    // Behind the blocking call they would wait as long as it does.
    world.submit(2, ADD);
    world.submit(2, NUM_KEYS);
    let reported = without_descriptors(&mut world, 2);
    assert_eq!(reported, (1, vec!["2 Add Io Os(24)".into(), "3 NumKeys Io Os(24)".into()]));
    // Each call that needs a connection of its own costs one attempt.
    world.submit(3, GET);
    world.submit(3, ADD);
    world.submit(3, GET);
    let (dials, mut reported) = without_descriptors(&mut world, 3);
    reported.sort();
    assert_eq!(
        (dials, reported),
        (3, vec!["4 Get Io Os(24)".into(), "5 Add Io Os(24)".into(), "6 Get Io Os(24)".into()])
    );
    assert_eq!((world.client.pending(), world.client.connections()), (1, 1));
    world.receives(4, 1, "00");
    assert_eq!(world.outputs(), ["1 Wait Released []"]);
    world.submit(5, ADD);
    assert_eq!(world.outputs(), [format!("1 sends 0c{ADD_SENT}")], "what there is goes on");
}

#[test]
fn a_failed_dial_costs_no_call_that_another_will_serve() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, WAIT);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    let first = world.submit(2, GET);
    world.submit(2, GET);
    assert_eq!(world.outputs(), ["2 connect 0", "3 connect 0"]);
    world.client.cancel(MS(3), first);
    world.outputs();
    world.input(4, 2, |conn| Input::ConnectFailed(conn, ErrorKind::Refused, Cause::Os(111)));
    assert_eq!(world.outputs(), [""; 0]);
    world.connect(5, 3);
    assert_eq!(world.outputs(), [format!("3 sends {GET_SENT}")]);
}

#[expect(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
#[test]
fn very_many_queued_calls_end_in_one_turn() {
    const CALLS: usize = 100_000;
    let mut world = Scripted::new(4, 4);
    for _ in 0..CALLS {
        world.submit(0, WAIT);
    }
    world.outputs();
    let began = std::time::Instant::now();
    let reported = world.tick(1000);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!((reported.len(), world.client.pending()), (CALLS, 0));
}

#[test]
fn a_deadline_while_nobody_listens_tells_the_last_cause() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.outputs();
    assert_eq!(world.resolve(1), ["1 connect 0"]);
    world.input(2, 1, |conn| Input::ConnectFailed(conn, ErrorKind::Refused, Cause::Os(111)));
    assert_eq!(world.outputs(), [""; 0]);
    let pause = world.client.poll_timeout().expect("a pause");
    assert!(pause > MS(20) && pause < MS(90), "{pause:?}");
    assert_eq!(world.tick(100), ["resolve"]);
    assert_eq!(world.tick(1000), ["1 Get Refused Connecting 1000 Os(111) None"]);
    assert_eq!(world.client.pending(), 0);
}

#[test]
fn a_deadline_cancels_the_wait_and_keeps_the_connection() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.outputs();
    world.connect(1, 1);
    assert_eq!(world.outputs(), [format!("1 sends {GET_SENT}")]);
    world.receives(2, 1, "0000000000000000");
    assert_eq!(world.client.poll_timeout(), Some(MS(1000)));
    let timed_out = "1 Get TimedOut Waiting 1000 NotReleased None";
    assert_eq!(world.tick(1000), ["1 sends 0c", timed_out]);
    world.submit(1001, ADD);
    assert_eq!(world.outputs(), [format!("1 sends {ADD_SENT}")], "behind the cancel");
    world.receives(1002, 1, "010900000000000000");
    assert_eq!(world.outputs(), ["2 Add Number(9) []"]);
    let id = world.submit(1003, WAIT);
    world.outputs();
    world.client.cancel(MS(1004), id);
    assert_eq!(world.outputs(), ["1 sends 0c", "3 Wait Cancelled Waiting 1 Unknown None"]);
    world.client.cancel(MS(1005), id);
    assert_eq!(world.outputs(), [""; 0], "it is over already");
}

#[test]
fn an_overdue_answer_ends_the_connection_when_nobody_else_waits_on_it() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, ADD);
    world.outputs();
    world.connect(1, 1);
    world.submit(500, NUM_KEYS);
    world.outputs();
    assert_eq!(world.tick(1000), ["1 Add TimedOut Waiting 1000 NoAnswer Possible"]);
    world.submit(1001, ADD);
    assert_eq!(world.outputs(), ["2 connect 0"], "the silent connection gets no more calls");
    world.receives(1002, 1, "01000000000000000700000000000000");
    assert_eq!(world.outputs(), ["2 NumKeys Number(7) []", "1 disconnect"]);
}

#[test]
fn what_only_reads_is_begun_again_once_and_what_writes_is_not() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, NUM_KEYS);
    world.submit(0, ADD);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    world.input(2, 1, RESET);
    assert_eq!(
        world.outputs(),
        ["1 disconnect", "2 Add ServerGone Waiting 2 Os(104) Possible", "2 connect 0"]
    );
    world.connect(3, 2);
    assert_eq!(world.outputs(), ["2 sends 07"]);
    world.input(4, 2, CLOSED);
    assert_eq!(world.outputs(), ["2 disconnect", "1 NumKeys ServerGone Waiting 4 Closed None"]);
    // If the server does not come back, the loss says more than the refused connection.
    world.submit(5, NUM_KEYS);
    world.outputs();
    world.connect(5, 3);
    world.outputs();
    world.input(6, 3, CLOSED);
    world.outputs();
    world.input(8, 4, |conn| Input::ConnectFailed(conn, ErrorKind::Refused, Cause::Os(111)));
    assert_eq!(world.outputs(), ["3 NumKeys ServerGone Waiting 3 Closed None"]);
}

#[test]
fn a_call_of_which_nothing_was_sent_is_begun_again_whatever_it_is() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, NUM_KEYS);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    world.receives(1, 1, "0100000000000000");
    world.outputs();
    world.submit(2, ADD);
    // The driver could not send before it noticed the end.
    world.input(2, 1, CLOSED);
    let reported = world.outputs();
    assert_eq!(reported.last().map(String::as_str), Some("2 connect 0"), "{reported:?}");
    world.connect(3, 2);
    assert_eq!(world.outputs(), [format!("2 sends {ADD_SENT}")]);
}

#[test]
fn a_server_that_drops_on_missing_keys_is_asked_the_slow_way() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    world.input(2, 1, CLOSED);
    assert_eq!(world.outputs(), ["1 disconnect", "2 connect 0"]);
    world.connect(3, 2);
    assert_eq!(world.outputs(), [format!("2 sends {WAIT_SENT}")]);
    world.receives(4, 2, "00");
    assert_eq!(world.outputs(), ["2 sends 0c0302000000000000002f6b"]);
    world.receives(5, 2, "0101000000000000007a");
    assert_eq!(world.outputs(), [r#"1 Get Value ["z"]"#]);
    world.submit(6, GET);
    assert_eq!(world.outputs(), [format!("2 sends {WAIT_SENT}")], "it was learned");
}

#[test]
fn the_slow_way_is_learned_once_it_has_worked() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.outputs();
    world.connect(1, 1);
    world.outputs();
    world.input(2, 1, CLOSED);
    world.outputs();
    world.connect(3, 2);
    assert_eq!(world.outputs(), [format!("2 sends {WAIT_SENT}")]);
    // The server closes the connection in the middle of the answer. It may have closed the first one for the same
    // reason.
    world.receives(4, 2, "00");
    world.outputs();
    world.receives(4, 2, "0101");
    world.input(5, 2, CLOSED);
    assert_eq!(world.outputs(), ["2 disconnect", "1 Get ServerGone Receiving 5 Closed None"]);
    world.submit(6, GET);
    world.outputs();
    world.connect(7, 3);
    assert_eq!(world.outputs(), [format!("3 sends {GET_SENT}")]);
}

#[test]
fn a_stranger_is_told_from_a_store() {
    let mut world = Scripted::new(4, 4);
    world.submit(0, GET);
    world.outputs();
    world.resolve(1);
    world.input(1, 1, Input::Connected);
    world.outputs();
    world.receives(2, 1, "485454502f");
    let reported = world.outputs();
    assert_eq!(reported[0], "1 disconnect");
    assert!(reported[1].starts_with("1 Get WrongProtocol Greeting 2 Violation"), "{reported:?}");
    // A peer may also violate the protocol later.
    world.submit(3, WAIT);
    world.outputs();
    world.connect(4, 2);
    world.outputs();
    world.receives(5, 2, "07");
    let reported = world.outputs();
    assert!(reported[1].starts_with("2 Wait WrongProtocol Receiving 2 Violation"), "{reported:?}");
    assert_eq!(world.client.connections(), 0);
}

#[test]
fn limits_are_told_before_anything_is_sent() {
    let limits = ClientLimits { operations_max: 1, ..ClientLimits::default() };
    let mut client = MultiClient::new(MultiClientOptions { limits, ..MultiClientOptions::default() }, 1);
    let long = vec![b'k'; 8193];
    let call = Call::Store(Request::Get { key: Key::raw(&long) }, WaitMode::Wait);
    let refused = client.submit(MS(0), &call, SECOND);
    assert_eq!(refused, Err(LimitError::Key { bytes: 8193, bytes_max: 8192 }));
    assert_eq!(client.poll_output(), None);
    client.submit(MS(0), &ADD, SECOND).expect("one");
    assert_eq!(client.submit(MS(0), &ADD, SECOND), Err(LimitError::Operations { count: 1 }));
}

/// A client and a real server machine in one thread, over a network that cuts, delays and resets.
struct World {
    now: Instant,
    rng: Rng,
    client: MultiClient,
    server: Server,
    /// Bytes in transit to the server and back.
    wires: BTreeMap<ConnId, (Vec<u8>, Vec<u8>)>,
    completed: BTreeMap<CallId, Result<Answer, FailedCall>>,
    generation: u32,
    names: BTreeMap<ConnId, ConnId>,
}

impl World {
    fn new(seed: u64) -> Self {
        let limits = ClientLimits { connections_max: 6, idle_connections_max: 2, ..ClientLimits::default() };
        let options = MultiClientOptions { limits, ..MultiClientOptions::default() };
        Self {
            now: MS(0),
            rng: Rng::new(seed),
            client: MultiClient::new(options, seed),
            server: Server::new(
                crate::limits::ServerLimits::default(),
                server::ServerInstance::from_seed(seed),
            ),
            wires: BTreeMap::new(),
            completed: BTreeMap::new(),
            generation: 0,
            names: BTreeMap::new(),
        }
    }

    fn serve(&mut self, input: server::Input<'_>) {
        self.server.handle(self.now, input).expect("a connection that is there");
    }

    fn cut(&mut self, length: usize) -> usize {
        usize::try_from(1 + self.rng.below(length as u64)).expect("small")
    }

    /// Carries out the outputs of both machines. Returns whether there was any.
    fn outputs(&mut self) -> bool {
        let mut busy = false;
        while let Some(output) = self.client.poll_output() {
            busy = true;
            match output {
                Output::Resolve => self.client.handle(self.now, Input::Resolved(&[ADDRESS])),
                Output::Connect(conn, _) if self.rng.below(8) == 0 => {
                    let refused = Input::ConnectFailed(conn, ErrorKind::Refused, Cause::Os(111));
                    self.client.handle(self.now, refused);
                }
                Output::Connect(conn, _) => {
                    self.generation += 1;
                    let index = (0..).find(|index| self.names.values().all(|name| name.index != *index));
                    let name = ConnId { index: index.expect("a free place"), generation: self.generation };
                    self.names.insert(conn, name);
                    self.wires.insert(conn, (Vec::new(), Vec::new()));
                    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
                    self.serve(server::Input::Accepted { conn: name, peer });
                    self.client.handle(self.now, Input::Connected(conn));
                }
                Output::Transmit(_) => {}
                Output::Disconnect(conn) => self.cut_off(conn),
                Output::Completed(id, _, result) => {
                    assert!(self.completed.insert(id, result).is_none(), "{id:?} completed twice");
                }
            }
        }
        while let Some(output) = self.server.poll_output() {
            busy = true;
            if let server::Output::Close { conn: name, .. } = output {
                let conn = self.names.iter().find(|(_, one)| **one == name).map(|(conn, _)| *conn);
                if let Some(conn) = conn {
                    self.names.remove(&conn);
                    self.wires.remove(&conn);
                    self.client.handle(self.now, Input::Ended(conn, Cause::Closed));
                }
            }
        }
        busy
    }

    fn cut_off(&mut self, conn: ConnId) {
        self.wires.remove(&conn);
        if let Some(name) = self.names.remove(&conn) {
            self.serve(server::Input::Lost { conn: name, os_error: 104 });
        }
    }

    /// Moves some bytes on a random connection.
    fn network(&mut self) -> bool {
        let conns: Vec<ConnId> = self.wires.keys().copied().collect();
        let mut busy = false;
        for conn in conns {
            let Some(&name) = self.names.get(&conn) else { continue };
            let unsent = self.client.unsent(conn).to_vec();
            if !unsent.is_empty() {
                busy = true;
                let taken = self.cut(unsent.len());
                self.wires.get_mut(&conn).expect("a wire").0.extend_from_slice(&unsent[..taken]);
                self.client.handle(self.now, Input::Sent(conn, taken));
            }
            let unsent = self.server.unsent(name).to_vec();
            if !unsent.is_empty() {
                busy = true;
                let taken = self.cut(unsent.len());
                self.wires.get_mut(&conn).expect("a wire").1.extend_from_slice(&unsent[..taken]);
                self.serve(server::Input::Sent { conn: name, bytes: taken });
            }
            let Some((there, back)) = self.wires.get_mut(&conn) else { continue };
            let (there, back) = (core::mem::take(there), core::mem::take(back));
            if !there.is_empty() {
                busy = true;
                let taken = self.cut(there.len());
                self.serve(server::Input::Received { conn: name, bytes: &there[..taken] });
                self.wires.get_mut(&conn).expect("a wire").0.splice(0..0, there[taken..].iter().copied());
            }
            if !back.is_empty() {
                busy = true;
                let taken = self.cut(back.len());
                self.wires.get_mut(&conn).expect("a wire").1.splice(0..0, back[taken..].iter().copied());
                self.client.handle(self.now, Input::Received(conn, &back[..taken]));
            }
            self.outputs();
        }
        busy
    }

    /// Runs until nothing moves, then advances the time to the next timer.
    fn run(&mut self) {
        for _ in 0..10_000 {
            let moved = self.outputs();
            if self.network() || moved {
                continue;
            }
            let Some(next) = self.client.poll_timeout() else { return };
            self.now = self.now.max(next);
            self.client.handle(self.now, Input::Tick);
        }
        panic!("it never comes to rest");
    }
}

#[test]
fn against_a_real_server_every_call_is_answered_once_and_counts_once() {
    let (mut all_taken, mut all_read, mut all_failed) = (0, 0, 0);
    for seed in 0..150 {
        let mut world = World::new(seed);
        let mut adds = Vec::new();
        let (mut gets, mut pushes, mut pops) = (Vec::new(), Vec::new(), Vec::new());
        let key = Key::raw(b"/later");
        let queue = Key::raw(b"/q");
        let store = |request| Call::Store(request, WaitMode::Wait);
        for round in 0..12 {
            let now = world.now;
            let mut submit =
                |call: Call<'_>| world.client.submit(now, &call, SECOND).expect("within the limits");
            adds.push(submit(ADD));
            gets.push(submit(store(Request::Get { key })));
            pops.push(submit(store(Request::QueuePop { key: queue })));
            pushes.push(submit(store(Request::QueuePush { key: queue, value: b"item" })));
            if round == 6 {
                submit(store(Request::Set { key, value: b"value" }));
            }
            for _ in 0..world.rng.below(12) {
                world.outputs();
                world.network();
            }
            if world.rng.below(4) == 0
                && let Some(&conn) = world.wires.keys().next()
            {
                world.cut_off(conn);
                let now = world.now;
                world.client.handle(now, Input::Ended(conn, Cause::Os(104)));
            }
        }
        world.run();
        assert_eq!(world.client.pending(), 0, "seed {seed}");

        let done = |id: &CallId| world.completed[id].is_ok();
        let possible = |id: &CallId| {
            world.completed[id].as_ref().is_err_and(|one| one.failure.effect == Effect::Possible)
        };
        let sums: BTreeSet<i64> = adds
            .iter()
            .filter_map(|id| match world.completed[id] {
                Ok(Answer { outcome: Outcome::Number(sum), .. }) => Some(sum),
                _ => None,
            })
            .collect();
        let answered = adds.iter().filter(|id| done(id)).count();
        let maybe = adds.iter().filter(|id| possible(id)).count();
        assert_eq!(sums.len(), answered, "seed {seed}: two adds had the same sum");
        assert!(sums.last().is_none_or(|&sum| sum <= (answered + maybe) as i64), "seed {seed}: {sums:?}");
        for id in &gets {
            match &world.completed[id] {
                Ok(answer) => assert_eq!(answer.values, [b"value"], "seed {seed}"),
                Err(failed) => assert!(
                    matches!(
                        failed.failure.kind,
                        ErrorKind::TimedOut | ErrorKind::ServerGone | ErrorKind::Refused
                    ),
                    "seed {seed}: {failed:?}"
                ),
            }
        }
        all_read += gets.iter().filter(|id| done(id)).count();
        all_failed += world.completed.values().filter(|result| result.is_err()).count();
        let taken = pops.iter().filter(|id| done(id)).count();
        all_taken += taken;
        let pushed = pushes.iter().filter(|id| done(id) || possible(id)).count();
        assert!(taken <= pushed, "seed {seed}: {taken} items of {pushed}");
    }
    // The network let most calls through, but not all.
    assert!(all_read > 600 && all_taken > 600 && all_failed > 150, "{all_read} {all_taken} {all_failed}");
}
