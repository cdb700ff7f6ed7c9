extern crate alloc;

use super::*;
use crate::limits::FrameLimits;
use crate::rng::Rng;
use crate::store::op::{Key, Keys, Pairs, Request};
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

type Conn = ClientConn<4>;

const GET: Call<'static> = Call::Store(Request::Get { key: Key::scoped(b"/", b"foo") }, WaitMode::Wait);
const GET_ONCE: Call<'static> = Call::Store(Request::Get { key: Key::scoped(b"/", b"foo") }, WaitMode::Once);
const ADD: Call<'static> =
    Call::Store(Request::Add { key: Key::scoped(b"/", b"n"), delta: 1 }, WaitMode::Wait);
const POP: Call<'static> = Call::Store(Request::QueuePop { key: Key::scoped(b"/", b"q") }, WaitMode::Wait);

const WAIT_FOO: &str = "06 0100000000000000 0400000000000000 2f666f6f";
const CHECK_FOO: &str = "05 0100000000000000 0400000000000000 2f666f6f";
const GET_FOO: &str = "03 0400000000000000 2f666f6f";
const ZEROS: &str = "0000000000000000";
const BAR: &str = "0300000000000000 626172";

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).expect("ascii"), 16).expect("hex"))
        .collect()
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn conn() -> Conn {
    Conn::new(ClientLimits::default(), 0)
}

fn begin(conn: &mut Conn, id: u64, call: &Call<'_>, mode: GetMode) -> String {
    let mut bytes = Vec::new();
    conn.begin(CallId(id), call, mode, &mut bytes).expect("begins");
    hex_of(&bytes)
}

/// Feeds bytes in pieces of the given sizes, and returns the events, with the chunks of one value joined.
fn feed(conn: &mut Conn, bytes: &[u8], mut part: impl FnMut() -> usize) -> Result<Vec<String>, Violation> {
    let mut reported: Vec<String> = Vec::new();
    let mut value: Option<Vec<u8>> = None;
    let mut rest = bytes;
    loop {
        let (mut now, remaining) = rest.split_at(part().min(rest.len()));
        rest = remaining;
        while let Some(event) = conn.receive(&mut now)? {
            if let Event::ValueChunk { bytes, .. } = event {
                value.as_mut().expect("a value began").extend_from_slice(bytes);
                continue;
            }
            if let Some(value) = value.take() {
                reported.push(format!("= {:?}", String::from_utf8_lossy(&value)));
            }
            match event {
                Event::ValueStart { id, bytes } => {
                    reported.push(format!("{} value {bytes}", id.0));
                    value = Some(Vec::new());
                }
                Event::Count { id, count } => reported.push(format!("{} count {count}", id.0)),
                Event::Proceed { id } => reported.push(format!("{} proceed", id.0)),
                Event::Done { id, outcome } => reported.push(format!("{} {outcome:?}", id.0)),
                Event::Greeted => reported.push("greeted".into()),
                Event::ValueChunk { .. } => {}
            }
        }
        assert!(now.is_empty(), "bytes are used up");
        if rest.is_empty() {
            if let Some(value) = value {
                reported.push(format!("= {:?} …", String::from_utf8_lossy(&value)));
            }
            return Ok(reported);
        }
    }
}

/// Step of a scenario.
enum Act {
    /// Received bytes, and their events, which do not depend on how the bytes are split.
    Got(&'static str, &'static [&'static str]),
    /// The call proceeds, and sends these bytes.
    Sends(&'static str),
    /// The call is cancelled.
    GiveUp(GiveUp),
    /// Another call starts, and sends these bytes.
    Begin(u64, Call<'static>, &'static str),
}

use Act::{Begin, Got, Sends};

/// Runs a scenario for call 1, with the received bytes whole, one by one, and split in two at every point.
fn check(call: Call<'static>, mode: GetMode, sends: &str, acts: &[Act]) {
    let longest = acts.iter().map(|act| if let Got(hex, _) = act { hex.len() } else { 0 }).max().unwrap_or(0);
    for cut in 0..=longest {
        let mut conn = conn();
        assert_eq!(begin(&mut conn, 1, &call, mode), hex_of(&bytes_of(sends)));
        for act in acts {
            match act {
                Got(hex, expected) => {
                    let mut first = true;
                    let part = || match cut {
                        0 => 1,
                        _ if core::mem::take(&mut first) => cut,
                        _ => usize::MAX,
                    };
                    let reported = feed(&mut conn, &bytes_of(hex), part).expect("allowed");
                    assert_eq!(reported, *expected, "{hex} cut at {cut}");
                }
                Sends(hex) => {
                    let mut bytes = Vec::new();
                    conn.proceed(CallId(1), &call, &mut bytes).expect("proceeds");
                    assert_eq!(hex_of(&bytes), hex_of(&bytes_of(hex)));
                }
                Act::GiveUp(expected) => assert_eq!(conn.give_up(CallId(1)), *expected),
                Begin(id, call, hex) => {
                    assert_eq!(begin(&mut conn, *id, call, mode), hex_of(&bytes_of(hex)));
                }
            }
        }
        assert!(conn.is_idle(), "cut at {cut}");
    }
}

const PIPELINED: GetMode = GetMode::Pipelined;
const SEND_CANCEL: GiveUp = GiveUp::Send([0x0c], Effect::None);

fn join(parts: &[&str]) -> String {
    parts.concat()
}

#[test]
fn greeting_is_one_write_and_its_echo_makes_a_store() {
    let mut conn = Conn::new(ClientLimits::default(), 0x3aea);
    // The golden trace `torch_client_connect`, with the nonce of this client.
    assert_eq!(hex_of(&conn.greet()), "00cef7853c0deb3a0000");
    assert_eq!(feed(&mut conn, &bytes_of("eb3a0000"), || 1), Ok(vec!["greeted".into()]));
    let mut conn = Conn::new(ClientLimits::default(), 0x3aea);
    conn.greet();
    let violation = Violation { due: Due::Echo(0x3aeb), seen: 0x5054_5448 };
    assert_eq!(feed(&mut conn, b"HTTP/1.1 400", || 12), Err(violation));
}

#[test]
fn get_of_a_key_that_is_there() {
    // The golden trace `torch_client_get`: the same bytes, in one write instead of two.
    let sends = join(&[WAIT_FOO, GET_FOO]);
    check(
        GET,
        PIPELINED,
        &sends,
        &[Got("00 0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"])],
    );
}

#[test]
fn get_of_an_empty_value() {
    let sends = join(&[WAIT_FOO, GET_FOO]);
    check(
        GET,
        PIPELINED,
        &sends,
        &[
            Got("00 0000000000000000", &["1 proceed"]),
            Sends("0c 05 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("01 00 0000000000000000", &["1 value 0", "= \"\"", "1 Value"]),
        ],
    );
}

#[test]
fn get_of_a_key_that_is_set_later() {
    let sends = join(&[WAIT_FOO, GET_FOO]);
    let again = "0c 05 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f";
    let value = Got("01 00 0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"]);
    // The reply to GET, and later that to WAIT; or both in one segment.
    check(GET, PIPELINED, &sends, &[Got(ZEROS, &[]), Got("00", &["1 proceed"]), Sends(again), value]);
    let value = Got("01 00 0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"]);
    check(GET, PIPELINED, &sends, &[Got("000000000000000000", &["1 proceed"]), Sends(again), value]);
}

#[test]
fn get_of_a_key_that_comes_and_goes_waits_on() {
    let sends = join(&[WAIT_FOO, GET_FOO]);
    check(
        GET,
        PIPELINED,
        &sends,
        &[
            Got("000000000000000000", &["1 proceed"]),
            Sends("0c 05 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("01 01 0000000000000000", &["1 proceed"]),
            Sends("06 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("00 0100000000000000 78", &["1 value 1", "= \"x\"", "1 Value"]),
        ],
    );
    // Set between CHECK and GET.
    check(
        GET,
        PIPELINED,
        &sends,
        &[
            Got("000000000000000000", &["1 proceed"]),
            Sends("0c 05 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("01 01 0100000000000000 78", &["1 value 1", "= \"x\"", "1 Value"]),
        ],
    );
}

#[test]
fn get_given_up_with_its_answers_under_way() {
    let sends = join(&[WAIT_FOO, GET_FOO]);
    let cancel = || Act::GiveUp(SEND_CANCEL);
    let add = || Begin(2, ADD, "04 0200000000000000 2f6e 0100000000000000");
    let sum = "0500000000000000";
    // Every stream that a server may send, with the call cancelled at every point. The next call is sent behind the
    // cancel, and gets its own reply.
    for stream in [[ZEROS, "01"].concat(), [ZEROS, "00", "01"].concat(), ["00", BAR, "01"].concat()] {
        let stream = bytes_of(&stream);
        for before in 0..9.min(stream.len()) {
            let mut conn = conn();
            begin(&mut conn, 1, &GET, PIPELINED);
            assert_eq!(feed(&mut conn, &stream[..before], || 1), Ok(vec![]));
            assert_eq!(conn.give_up(CallId(1)), SEND_CANCEL);
            begin(&mut conn, 2, &ADD, PIPELINED);
            let rest = [&stream[before..], &bytes_of(sum)].concat();
            for size in 1..=rest.len() {
                let mut conn = clone_of(&conn);
                let reported = feed(&mut conn, &rest, || size);
                assert_eq!(reported, Ok(vec!["2 Number(5)".into()]), "{} by {size}", hex_of(&rest));
                assert!(conn.is_idle());
            }
        }
    }
    // `torch_client_get_missing_timeout`, with the GET in flight.
    check(GET, PIPELINED, &sends, &[Got(ZEROS, &[]), cancel(), Got("01", &[])]);
    check(
        GET,
        PIPELINED,
        &sends,
        &[cancel(), add(), Got(ZEROS, &[]), Got("010500000000000000", &["2 Number(5)"])],
    );
}

fn clone_of(conn: &Conn) -> Conn {
    let mut twin = Conn::new(conn.limits, conn.nonce);
    for entry in &conn.entries {
        twin.entries.push_back(*entry).expect("the table is not full");
    }
    (twin.part, twin.head, twin.head_bytes) = (conn.part, conn.head, conn.head_bytes);
    (twin.reply_bytes, twin.stale) = (conn.reply_bytes, conn.stale);
    twin
}

#[test]
fn wait_and_its_timeout() {
    let names: &[&[u8]] = &[b"k1", b"foo", b"k2"];
    let wait = Call::Store(Request::Wait { keys: Keys::scoped(b"/", names) }, WaitMode::Wait);
    // `torch_client_wait_timeout`
    let sends =
        "06 0300000000000000 0300000000000000 2f6b31 0400000000000000 2f666f6f 0300000000000000 2f6b32";
    check(wait, PIPELINED, sends, &[Act::GiveUp(SEND_CANCEL), Got("01", &[])]);
    check(wait, PIPELINED, sends, &[Act::GiveUp(SEND_CANCEL), Got("0001", &[])]);
    check(wait, PIPELINED, sends, &[Got("00", &["1 Released"])]);
    // A wait after a released one clears the registration that the server may have kept.
    let again =
        Begin(2, GET, "0c 06 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f");
    check(
        wait,
        PIPELINED,
        sends,
        &[
            Got("00", &["1 Released"]),
            again,
            Got("01 00 0300000000000000 626172", &["2 value 3", "= \"bar\"", "2 Value"]),
            Begin(3, GET, "06 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("00 0300000000000000 626172", &["3 value 3", "= \"bar\"", "3 Value"]),
        ],
    );
}

#[test]
fn looking_once() {
    let sends = join(&[CHECK_FOO, GET_FOO]);
    check(GET_ONCE, PIPELINED, &sends, &[Got("01 0000000000000000", &["1 Missing"])]);
    check(
        GET_ONCE,
        PIPELINED,
        &sends,
        &[Got("00 0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"])],
    );
    check(GET_ONCE, PIPELINED, &sends, &[Got("00 0000000000000000", &["1 value 0", "= \"\"", "1 Value"])]);
    let wait = Call::Store(Request::Wait { keys: Keys::one(Key::raw(b"/foo")) }, WaitMode::Once);
    check(wait, PIPELINED, CHECK_FOO, &[Got("00", &["1 Released"])]);
    check(wait, PIPELINED, CHECK_FOO, &[Got("01", &["1 Missing"])]);
    let barrier = Call::Store(Request::Barrier { key: Key::raw(b"/b1"), world_size: 2 }, WaitMode::Once);
    let sends = "12 0300000000000000 2f6231 0200000000000000 0c";
    check(barrier, PIPELINED, sends, &[Got("01", &["1 Missing"])]);
    check(barrier, PIPELINED, sends, &[Got("0001", &["1 Released"])]);
    let pop = Call::Store(Request::QueuePop { key: Key::raw(b"/q") }, WaitMode::Once);
    // `torch_client_queue_pop_noblock` and `…_empty_noblock`
    let sends = "0f 0200000000000000 2f71";
    let item = &["1 value 5", "= \"item2\"", "1 Value"];
    check(pop, PIPELINED, sends, &[Got("01 00000000000000 0500000000000000 6974656d32", item)]);
    check(pop, PIPELINED, sends, &[Got(ZEROS, &["1 QueueEmpty"])]);
}

#[test]
fn the_slow_way_to_get() {
    let value = || Got("01 0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"]);
    let get = "0c 03 0400000000000000 2f666f6f";
    check(GET, GetMode::WaitThenGet, WAIT_FOO, &[Got("00", &["1 proceed"]), Sends(get), value()]);
    check(
        GET,
        GetMode::WaitThenGet,
        WAIT_FOO,
        &[
            Got("00", &["1 proceed"]),
            Sends(get),
            Got("01 0000000000000000", &["1 proceed"]),
            Sends("05 0100000000000000 0400000000000000 2f666f6f 03 0400000000000000 2f666f6f"),
            Got("00 0000000000000000", &["1 value 0", "= \"\"", "1 Value"]),
        ],
    );
    check(GET_ONCE, GetMode::WaitThenGet, CHECK_FOO, &[Got("01", &["1 Missing"])]);
    check(
        GET_ONCE,
        GetMode::WaitThenGet,
        CHECK_FOO,
        &[
            Got("00", &["1 proceed"]),
            Sends(GET_FOO),
            Got("0300000000000000 626172", &["1 value 3", "= \"bar\"", "1 Value"]),
        ],
    );
}

#[test]
fn several_values() {
    // `torch_client_multi_get`
    let names: &[&[u8]] = &[b"m1", b"m2"];
    let keys = Keys::scoped(b"/", names);
    let list = "0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32";
    let all = &["1 value 1", "= \"x\"", "1 value 2", "= \"yy\"", "1 Values(2)"];
    let call = |wait_mode| Call::Store(Request::MultiGet { keys }, wait_mode);
    check(
        call(WaitMode::Wait),
        PIPELINED,
        &join(&["06", list]),
        &[
            Got("00", &["1 proceed"]),
            Sends("0c 0a 0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32"),
            Got("01 0100000000000000 78 0200000000000000 7979", all),
        ],
    );
    check(
        call(WaitMode::Once),
        PIPELINED,
        &join(&["05", list]),
        &[
            Got("00", &["1 proceed"]),
            Sends("0a 0200000000000000 0300000000000000 2f6d31 0300000000000000 2f6d32"),
            Got("0100000000000000 78 0200000000000000 7979", all),
        ],
    );
    check(call(WaitMode::Once), PIPELINED, &join(&["05", list]), &[Got("01", &["1 Missing"])]);
    // `torch_client_multi_get_empty`: the second request is not needed.
    let none = Call::Store(Request::MultiGet { keys: Keys::scoped(b"/", &[]) }, WaitMode::Wait);
    check(none, PIPELINED, "06 0000000000000000", &[Got("00", &["1 Values(0)"])]);
    let list_keys = Call::Store(Request::ListKeys, WaitMode::Wait);
    check(list_keys, PIPELINED, "11", &[Got(ZEROS, &["1 Values(0)"])]);
    check(
        list_keys,
        PIPELINED,
        "11",
        &[Got(
            "0200000000000000 0200000000000000 2f61 0000000000000000",
            &["1 count 2", "1 value 2", "= \"/a\"", "1 value 0", "= \"\"", "1 Values(2)"],
        )],
    );
}

#[test]
fn blocking_pop_waits_and_waits_again_when_the_item_is_stolen() {
    let (pop, wait) = ("0f 0200000000000000 2f71", "06 0100000000000000 0200000000000000 2f71");
    let clear_and_pop = "0c 0f 0200000000000000 2f71";
    let item = || {
        let reported = &["1 value 5", "= \"item1\"", "1 Value"];
        Got("01 0200000000000000 0500000000000000 6974656d31", reported)
    };
    check(
        POP,
        PIPELINED,
        pop,
        &[
            Got(ZEROS, &["1 proceed"]),
            Sends(wait),
            Got("00", &["1 proceed"]),
            Sends(clear_and_pop),
            Got("01 0000000000000000", &["1 proceed"]),
            Sends(wait),
            Got("00", &["1 proceed"]),
            Sends(clear_and_pop),
            item(),
        ],
    );
    check(
        POP,
        PIPELINED,
        pop,
        &[Got(ZEROS, &["1 proceed"]), Sends(wait), Act::GiveUp(SEND_CANCEL), Got("0001", &[])],
    );
    check(POP, PIPELINED, pop, &[Got(ZEROS, &["1 proceed"]), Act::GiveUp(GiveUp::Nothing)]);
}

/// WAIT returns at once, because the key has a value.
#[test]
fn blocking_pop_of_a_key_with_a_value_does_not_go_on_until_its_deadline() {
    let (pop, wait) = ("0f 0200000000000000 2f71", "06 0100000000000000 0200000000000000 2f71");
    let mut acts = Vec::new();
    for _ in 1..FAILED_POPS_MAX {
        acts.extend([Got(ZEROS, &["1 proceed"]), Sends(wait), Got("00", &["1 proceed"])]);
        acts.push(Sends("0c 0f 0200000000000000 2f71"));
        // CANCEL_WAIT is answered first.
        acts.push(Got("01", &[]));
    }
    acts.push(Got(ZEROS, &["1 NoItem"]));
    check(POP, PIPELINED, pop, &acts);
}

#[test]
fn native_barrier() {
    // `torch_client_barrier_1of1` and `torch_client_barrier_timeout`
    let barrier = Call::Store(Request::Barrier { key: Key::raw(b"/b1"), world_size: 1 }, WaitMode::Wait);
    let sends = "12 0300000000000000 2f6231 0100000000000000";
    check(
        barrier,
        PIPELINED,
        sends,
        &[Got("00", &["1 Released"]), Begin(2, barrier, sends), Got("00", &["2 Released"])],
    );
    let stays_counted = GiveUp::Send([0x0c], Effect::Kept);
    check(barrier, PIPELINED, sends, &[Act::GiveUp(stays_counted), Got("01", &[])]);
}

#[test]
fn writes_are_confirmed_by_an_echo() {
    let key = Key::scoped(b"/pre/", b"k");
    let pairs: &[(&[u8], &[u8])] = &[(b"k", b"v")];
    for (request, sends) in [
        // `torch_client_prefix_set` and `…_qpush`
        (Request::Set { key, value: b"v" }, "01 0600000000000000 2f7072652f6b 0100000000000000 76"),
        (Request::Append { key, value: b"v" }, "09 0600000000000000 2f7072652f6b 0100000000000000 76"),
        (Request::QueuePush { key, value: b"v" }, "0e 0600000000000000 2f7072652f6b 0100000000000000 76"),
        (
            Request::MultiSet { pairs: Pairs::scoped(b"/pre/", pairs) },
            "0b 0100000000000000 0600000000000000 2f7072652f6b 0100000000000000 76",
        ),
    ] {
        let call = Call::Store(request, WaitMode::Wait);
        check(call, PIPELINED, &join(&[sends, "0d 01000000"]), &[Got("01000000", &["1 Applied"])]);
    }
    check(Call::Ping, PIPELINED, "0d 01000000", &[Got("01000000", &["1 Alive"])]);
}

#[test]
fn plain_calls_pipeline_and_are_answered_in_order() {
    let compare = Request::CompareSet { key: Key::raw(b"c"), expected: b"", desired: b"" };
    let compare = Call::Store(compare, WaitMode::Wait);
    let check_foo = Call::Store(Request::Check { keys: Keys::one(Key::raw(b"/foo")) }, WaitMode::Wait);
    let num_keys = Call::Store(Request::NumKeys, WaitMode::Wait);
    check(
        ADD,
        PIPELINED,
        "04 0200000000000000 2f6e 0100000000000000",
        &[
            Begin(2, compare, "02 0100000000000000 63 0000000000000000 0000000000000000"),
            Begin(3, check_foo, CHECK_FOO),
            Begin(4, num_keys, "07"),
            Got(
                "ffffffffffffffff 0000000000000000 01 0700000000000000",
                &["1 Number(-1)", "2 value 0", "= \"\"", "2 Value", "3 NotReady", "4 Number(7)"],
            ),
        ],
    );
}

#[test]
fn a_call_that_may_block_is_alone_and_the_table_is_bounded() {
    let mut buffer = Vec::new();
    let mut conn = conn();
    begin(&mut conn, 1, &ADD, PIPELINED);
    begin(&mut conn, 2, &GET, PIPELINED);
    for call in [GET, ADD] {
        assert_eq!(conn.begin(CallId(3), &call, PIPELINED, &mut buffer), Err(BeginError::Busy));
    }
    assert_eq!(conn.give_up(CallId(2)), SEND_CANCEL);
    begin(&mut conn, 3, &ADD, PIPELINED);
    begin(&mut conn, 4, &GET, PIPELINED);
    assert_eq!(conn.give_up(CallId(4)), SEND_CANCEL);
    assert_eq!(conn.begin(CallId(5), &ADD, PIPELINED, &mut buffer), Err(BeginError::Full));
    assert_eq!(conn.pending(), 4);
    let all = "0500000000000000 0000000000000000 01 0600000000000000 0000000000000000 0001";
    let reported = feed(&mut conn, &bytes_of(all), || 3);
    assert_eq!(reported, Ok(vec!["1 Number(5)".into(), "3 Number(6)".into()]));
    assert!(conn.is_idle());
}

#[test]
fn a_call_that_does_not_begin_leaves_no_trace() {
    let mut conn = conn();
    let mut buffer = [0; 18];
    let mut buffer = Fill::new(&mut buffer);
    assert_eq!(conn.begin(CallId(1), &ADD, PIPELINED, &mut buffer), Err(BeginError::Space(19)));
    let limits = FrameLimits {
        key_bytes_max: 3,
        value_bytes_max: 2,
        keys_max: 2,
        all_key_bytes_max: 5,
        ..FrameLimits::default()
    };
    let mut small = Conn::new(ClientLimits { frame: limits, ..ClientLimits::default() }, 0);
    let key = Key::scoped(b"/", b"k");
    let (three, two): (&[&[u8]], &[&[u8]]) = (&[b"a", b"b", b"c"], &[b"abc", b"def"]);
    let pairs: &[(&[u8], &[u8])] = &[(b"abc", b""), (b"def", b"")];
    for (request, error) in [
        (Request::Get { key: Key::raw(b"long") }, LimitError::Key { bytes: 4, bytes_max: 3 }),
        (Request::Set { key, value: b"long" }, LimitError::Value { bytes: 4, bytes_max: 2 }),
        (
            Request::CompareSet { key, expected: b"", desired: b"abc" },
            LimitError::Value { bytes: 3, bytes_max: 2 },
        ),
        (Request::Wait { keys: Keys::scoped(b"", three) }, LimitError::Keys { count: 3, count_max: 2 }),
        (Request::Wait { keys: Keys::scoped(b"", two) }, LimitError::KeyBytes { bytes: 6, bytes_max: 5 }),
        (
            Request::MultiSet { pairs: Pairs::scoped(b"", pairs) },
            LimitError::KeyBytes { bytes: 6, bytes_max: 5 },
        ),
    ] {
        let call = Call::Store(request, WaitMode::Wait);
        let begun = small.begin(CallId(1), &call, PIPELINED, &mut Vec::new());
        assert_eq!(begun, Err(BeginError::Limit(error)));
    }
    assert!(conn.is_idle() && small.is_idle());
    assert_eq!(buffer.space(), 18);
    assert_eq!(conn.proceed(CallId(1), &ADD, &mut buffer), Err(BeginError::Unknown));
    assert_eq!(conn.give_up(CallId(1)), GiveUp::Nothing);
    assert_eq!(begin(&mut conn, 2, &Call::Ping, PIPELINED), "0d01000000");
}

#[test]
fn what_no_server_may_send_is_named() {
    let check_foo = Call::Store(Request::Check { keys: Keys::one(Key::raw(b"/foo")) }, WaitMode::Wait);
    let wait = Call::Store(Request::Wait { keys: Keys::one(Key::raw(b"/foo")) }, WaitMode::Wait);
    let barrier = Call::Store(Request::Barrier { key: Key::raw(b"/b"), world_size: 2 }, WaitMode::Once);
    let set = Call::Store(Request::Set { key: Key::raw(b"/k"), value: b"" }, WaitMode::Wait);
    let list = Call::Store(Request::ListKeys, WaitMode::Wait);
    let gib = 1 << 30;
    for (call, answer, due, seen) in [
        (check_foo, "02", Due::CheckAnswer, 2),
        (wait, "01", Due::StopWaiting, 1),
        (wait, "ff", Due::StopWaiting, 255),
        (barrier, "0000", Due::WaitCanceled, 0),
        (barrier, "02", Due::StopWaiting, 2),
        (set, "02000000", Due::Echo(1), 2),
        (GET, "01 0000000000000000", Due::StopWaiting, 1),
        (GET, "00 0000000000000080", Due::Length(gib), 1 << 63),
        (GET, "0000000000000000 01", Due::Length(gib), 1 << 56),
        (GET_ONCE, "00 0100004000000000", Due::Length(gib), gib + 1),
        (POP, "ffffffffffffffff", Due::Count(i64::MAX as u64), u64::MAX),
        (list, "ffffffffffffffff", Due::Count(gib / 8), u64::MAX),
        (ADD, "0000000000000000 07", Due::Silence, 7),
    ] {
        for size in [1, 100] {
            let mut conn = conn();
            begin(&mut conn, 1, &call, PIPELINED);
            let reported = feed(&mut conn, &bytes_of(answer), || size);
            assert_eq!(reported, Err(Violation { due, seen }), "{call:?} {answer}");
        }
    }
    let mut conn = conn();
    begin(&mut conn, 1, &wait, PIPELINED);
    assert_eq!(conn.give_up(CallId(1)), SEND_CANCEL);
    let reported = feed(&mut conn, &bytes_of("0000"), || 1);
    assert_eq!(reported, Err(Violation { due: Due::WaitCanceled, seen: 0 }));
}

#[test]
fn the_sum_of_an_answer_is_bounded() {
    let limits = ClientLimits { reply_bytes_max: 10, ..ClientLimits::default() };
    let mut conn = Conn::new(limits, 0);
    let names: &[&[u8]] = &[b"a", b"b"];
    let multi_get = Call::Store(Request::MultiGet { keys: Keys::scoped(b"/", names) }, WaitMode::Wait);
    begin(&mut conn, 1, &multi_get, PIPELINED);
    assert_eq!(feed(&mut conn, &[0], || 1), Ok(vec!["1 proceed".into()]));
    conn.proceed(CallId(1), &multi_get, &mut Vec::new()).expect("proceeds");
    let reported = feed(&mut conn, &bytes_of("01 0600000000000000 616161616161 0500000000000000"), || 100);
    assert_eq!(reported, Err(Violation { due: Due::Length(4), seen: 5 }));
}

#[test]
fn giving_up_what_is_answered_at_once_costs_the_connection() {
    for (call, answer, expected) in [
        (ADD, "", GiveUp::Close(Effect::Possible)),
        (GET_ONCE, "", GiveUp::Close(Effect::None)),
        (GET, "00 0300000000000000 62", GiveUp::Close(Effect::None)),
        (POP, "", GiveUp::Close(Effect::Possible)),
    ] {
        let mut conn = conn();
        begin(&mut conn, 1, &call, PIPELINED);
        feed(&mut conn, &bytes_of(answer), || 100).expect("allowed");
        assert_eq!(conn.give_up(CallId(1)), expected);
        assert_eq!(conn.lose(), None, "the caller has cancelled it");
    }
}

#[test]
fn the_end_of_a_connection_says_what_it_can() {
    use {Finding::DropsOnMissing, Finding::Responded, Phase::Receiving, Phase::Waiting};
    let missing = Responded(Outcome::Missing);
    for (call, answer, phase, effect, finding) in [
        (GET, "", Waiting, Effect::None, DropsOnMissing),
        (GET, "00", Waiting, Effect::None, DropsOnMissing),
        (GET, ZEROS, Waiting, Effect::None, Finding::None),
        (GET, "00 0300000000000000", Receiving, Effect::None, Finding::None),
        (GET_ONCE, "", Waiting, Effect::None, Finding::None),
        (GET_ONCE, "01", Receiving, Effect::None, missing),
        (GET_ONCE, "00", Receiving, Effect::None, Finding::None),
        (GET_ONCE, "01 00", Receiving, Effect::None, Finding::None),
        (ADD, "", Waiting, Effect::Possible, Finding::None),
        (ADD, "00", Receiving, Effect::Possible, Finding::None),
    ] {
        let mut conn = conn();
        begin(&mut conn, 1, &call, PIPELINED);
        feed(&mut conn, &bytes_of(answer), || 100).expect("allowed");
        assert_eq!(conn.lose(), Some(Loss { id: CallId(1), phase, effect, finding }), "{call:?} {answer}");
        assert_eq!(conn.lose(), None);
    }
}

#[test]
fn random_runs_of_calls_survive_any_cutting() {
    let names: &[&[u8]] = &[b"a", b"b"];
    let set = Call::Store(Request::Set { key: Key::raw(b"/k"), value: b"v" }, WaitMode::Wait);
    let list = Call::Store(Request::ListKeys, WaitMode::Wait);
    let checked = Call::Store(Request::Check { keys: Keys::scoped(b"/", names) }, WaitMode::Wait);
    let try_pop = Call::Store(Request::QueuePop { key: Key::raw(b"/q") }, WaitMode::Once);
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let (mut whole, mut cut) = (conn(), conn());
        for _ in 0..3 {
            // A sequence of plain calls, possibly followed by one that may block, and the replies of a server.
            let (mut answers, mut expected) = (Vec::new(), Vec::new());
            for id in 0..1 + rng.below(4) {
                let value = vec![b'x'; usize::try_from(rng.below(40)).expect("small")];
                let framed = |value: &[u8]| [&(value.len() as u64).to_le_bytes(), value].concat();
                let reported = [
                    format!("{id} value {}", value.len()),
                    format!("= {:?}", String::from_utf8_lossy(&value)),
                ];
                let (call, answer, events) = match rng.below(6) {
                    0 => {
                        let sum = rng.next_u64();
                        let reported = format!("{id} Number({})", sum.cast_signed());
                        (ADD, sum.to_le_bytes().to_vec(), vec![reported])
                    }
                    1 => (set, (whole.nonce + 1).to_le_bytes().to_vec(), vec![format!("{id} Applied")]),
                    2 => (checked, vec![1], vec![format!("{id} NotReady")]),
                    3 => {
                        let answer = [1_u64.to_le_bytes().to_vec(), framed(&value)].concat();
                        (try_pop, answer, [&reported[..], &[format!("{id} Value")]].concat())
                    }
                    4 => {
                        let answer = [1_u64.to_le_bytes().to_vec(), framed(&value)].concat();
                        let count = [format!("{id} count 1")];
                        (list, answer, [&count[..], &reported, &[format!("{id} Values(1)")]].concat())
                    }
                    _ => {
                        let answer = [vec![0], framed(&value)].concat();
                        (GET_ONCE, answer, [&reported[..], &[format!("{id} Value")]].concat())
                    }
                };
                assert_eq!(begin(&mut whole, id, &call, PIPELINED), begin(&mut cut, id, &call, PIPELINED));
                answers.extend(answer);
                expected.extend(events);
            }
            assert_eq!(feed(&mut whole, &answers, || usize::MAX), Ok(expected.clone()), "seed {seed}");
            let pieces = || usize::try_from(rng.below(12)).expect("small");
            assert_eq!(feed(&mut cut, &answers, pieces), Ok(expected), "seed {seed}");
        }
        assert!(whole.is_idle() && cut.is_idle());
    }
}

#[test]
fn random_bytes_never_upset_the_machine() {
    for seed in 0..3000 {
        let mut rng = Rng::new(seed);
        let mut conn = conn();
        let call = [GET, GET_ONCE, POP, ADD][usize::try_from(rng.below(4)).expect("small")];
        begin(&mut conn, 1, &call, PIPELINED);
        let bytes: Vec<u8> =
            (0..40).map(|_| [0, 0, 0, 1, 2, 255][usize::try_from(rng.below(6)).expect("small")]).collect();
        let reported = feed(&mut conn, &bytes, || 1 + usize::try_from(rng.below(9)).expect("small"));
        // Whatever was received, at most one call was answered, and only if its reply was complete.
        if let Ok(reported) = reported {
            assert!(
                reported.iter().filter(|event| event.starts_with("1 ") && !event.contains("value")).count()
                    <= 1
            );
        }
    }
}

/// The whole table: for every call, each step that it can reach, each reply to such a step, and the transition.
#[test]
fn what_follows_each_reply() {
    let key = Key::raw(b"/k");
    let keys = Keys::one(key);
    let requests = [
        Request::Set { key, value: b"" },
        Request::CompareSet { key, expected: b"", desired: b"" },
        Request::Get { key },
        Request::Add { key, delta: 1 },
        Request::Check { keys },
        Request::Wait { keys },
        Request::MultiGet { keys },
        Request::QueuePop { key },
        Request::Barrier { key, world_size: 2 },
        Request::ListKeys,
        Request::CancelWait,
    ];
    let replies = [
        Reply::Echo,
        Reply::Number(7),
        Reply::Ready,
        Reply::NotReady,
        Reply::Value,
        Reply::Empty,
        Reply::ReadyEmpty,
        Reply::Values(2),
        Reply::Released,
        Reply::Canceled,
        Reply::NothingQueued,
    ];
    let mut table = String::new();
    for request in requests {
        let mut seen: Vec<Vec<String>> = Vec::new();
        for (wait_mode, mode) in [
            (WaitMode::Wait, GetMode::Pipelined),
            (WaitMode::Wait, GetMode::WaitThenGet),
            (WaitMode::Once, GetMode::Pipelined),
            (WaitMode::Once, GetMode::WaitThenGet),
        ] {
            let call = Call::Store(request, wait_mode);
            let (mut steps, mut at, mut lines) = (vec![first_step(&call, mode)], 0, Vec::new());
            while let Some(&step) = steps.get(at) {
                at += 1;
                for reply in replies {
                    let next = after(call.operation(), wait_mode, mode, step, reply);
                    if let Some(After::Next(next)) = next
                        && !steps.contains(&next)
                    {
                        steps.push(next);
                    }
                    if let Some(next) = next {
                        lines.push(format!("  {step:?} {reply:?} -> {next:?}\n"));
                    }
                }
            }
            if !seen.contains(&lines) {
                table += &format!("{:?} {wait_mode:?} {mode:?}\n{}", call.operation(), lines.concat());
                seen.push(lines);
            }
        }
    }
    assert_eq!(table, include_str!("steps.snapshot"), "\n{table}");
}
