use super::callee::{Callee, CalleeEvent, Ending};
use super::caller::tests::connected;
use super::caller::{Caller, CallerEvent, NewCall};
mod flow;
mod leaving;
mod life;

use super::*;
use crate::limits::RpcLimits;
use crate::name::WorkerInfo;
use crate::wire::{CalleeFrame, CallerFrame, DATA_BYTES_MAX, Header, Message, encode_frame};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use rendezvous_core::rng::Rng;
use rendezvous_core::time::{Duration, Instant};
use rendezvous_core::wire::sink::Sink;

const NOW: Instant = Instant::from_millis(1000);

fn worker(name: &str, id: u16) -> WorkerInfo {
    WorkerInfo { name: name.parse().expect("a name"), id }
}

/// Byte of a payload at this offset.
fn byte_at(call: u64, offset: u64) -> u8 {
    (call.wrapping_mul(31) ^ offset.wrapping_mul(7) ^ (offset >> 9)).to_le_bytes()[0]
}

/// Both ends, connected by two byte buffers.
struct Pair {
    now: Instant,
    caller: Caller,
    callee: Callee,
    there: Vec<u8>,
    back: Vec<u8>,
    /// Load that the callee adds to its pongs, and the number of pings.
    load: Option<PoolLoad>,
    pings: usize,
    /// Events of both ends, in order.
    log: Vec<String>,
    /// Requests that the callee refused.
    refused: Vec<(Box<str>, Status)>,
    /// Payloads as they arrived.
    got: BTreeMap<(bool, u64), Vec<u8>>,
}

impl Pair {
    fn with(limits: RpcLimits) -> Self {
        let (a, b) = (worker("a", 1), worker("b", 2));
        Self {
            now: NOW,
            caller: connected(&a, &b, b"group", limits),
            callee: Callee::new(NOW, b, b"group", limits),
            there: Vec::new(),
            back: Vec::new(),
            load: None,
            pings: 0,
            log: Vec::new(),
            refused: Vec::new(),
            got: BTreeMap::new(),
        }
    }

    fn open() -> Self {
        Self::open_with(RpcLimits::default())
    }

    fn open_with(limits: RpcLimits) -> Self {
        let mut pair = Self::with(limits);
        pair.run();
        assert_eq!(pair.take_log(), ["claimed a (id 1)"]);
        pair
    }

    fn write(write: &ToWrite, into: &mut Vec<u8>) {
        match write {
            ToWrite::Bytes(bytes) => into.extend_from_slice(bytes),
            ToWrite::Part { header, call, offset, bytes } => {
                into.extend_from_slice(header);
                into.extend((*offset..offset + u64::from(*bytes)).map(|at| byte_at(*call, at)));
            }
        }
    }

    /// Passes one write of the caller to the other end, in pieces of up to `chunk` bytes. Returns whether there was
    /// one.
    fn step_there(&mut self, chunk: usize) -> bool {
        let Some(write) = self.caller.poll_write() else { return self.hear_caller(b"") };
        self.hear_caller(b"");
        Self::write(&write, &mut self.there);
        let bytes = core::mem::take(&mut self.there);
        for chunk in bytes.chunks(chunk) {
            self.hear_callee(chunk);
        }
        true
    }

    fn step_back(&mut self, chunk: usize) -> bool {
        let Some(write) = self.callee.poll_write() else { return self.hear_callee(b"") };
        self.hear_callee(b"");
        Self::write(&write, &mut self.back);
        let bytes = core::mem::take(&mut self.back);
        for chunk in bytes.chunks(chunk) {
            self.hear_caller(chunk);
        }
        true
    }

    fn hear_callee(&mut self, mut bytes: &[u8]) -> bool {
        let mut any = false;
        while let Some(event) = self.callee.next_event(self.now, &mut bytes) {
            any = true;
            self.log.push(match event {
                CalleeEvent::Claimed(peer) => {
                    self.callee.admit();
                    format!("claimed {peer}")
                }
                CalleeEvent::Request { call, handler, payload_bytes, kind, deadline } => {
                    let deadline = deadline.map_or(0, |at| at.since(self.now).as_millis());
                    format!("request {call} {handler} {payload_bytes} {kind:?} {deadline}")
                }
                CalleeEvent::Bytes(call, bytes) => {
                    self.got.entry((true, call)).or_default().extend_from_slice(bytes);
                    continue;
                }
                CalleeEvent::Refused(handler, status) => {
                    self.refused.push((handler, status));
                    continue;
                }
                CalleeEvent::Complete(call) => format!("complete {call}"),
                CalleeEvent::Over(call, ending) => format!("over {call} {ending:?}"),
                CalleeEvent::Responded(call) => format!("answered {call}"),
                CalleeEvent::Pinged => {
                    self.pings += 1;
                    if let Some(load) = self.load {
                        self.callee.exhausted(load);
                    }
                    continue;
                }
                CalleeEvent::PeerLeaving => "caller leaves".into(),
                CalleeEvent::Drained => "callee drained".into(),
                CalleeEvent::Ended(why) => format!("callee ended: {why}"),
                CalleeEvent::Unread => "callee unread".into(),
            });
        }
        assert!(bytes.is_empty());
        any
    }

    fn hear_caller(&mut self, mut bytes: &[u8]) -> bool {
        let mut any = false;
        while let Some(event) = self.caller.next_event(self.now, &mut bytes) {
            any = true;
            self.log.push(match event {
                CallerEvent::Answer(call, bytes) => format!("answer {call} {bytes}"),
                CallerEvent::Bytes(call, bytes) => {
                    self.got.entry((false, call)).or_default().extend_from_slice(bytes);
                    continue;
                }
                CallerEvent::Done(call) => format!("done {call}"),
                CallerEvent::Failed(call, error) => format!("failed {call}: {error}"),
                CallerEvent::HangUp(why) => format!("caller hangs up: {why}"),
                CallerEvent::Connect => "caller connects".into(),
            });
        }
        assert!(bytes.is_empty());
        any
    }

    /// Runs until there is no progress.
    fn run(&mut self) {
        while self.step_there(usize::MAX) | self.step_back(usize::MAX) {}
    }

    fn take_log(&mut self) -> Vec<String> {
        core::mem::take(&mut self.log)
    }

    fn call(&mut self, handler: &str, payload_bytes: u64) -> Result<u64, CallFailure> {
        self.begin(NewCall { handler, payload_bytes, deadline: None, kind: CallKind::Responded })
    }

    fn begin(&mut self, call: NewCall<'_>) -> Result<u64, CallFailure> {
        self.caller.begin(self.now, call).map_err(|error| error.why)
    }

    fn expect(&mut self, log: &[&str]) {
        self.run();
        assert_eq!(self.take_log(), log);
    }
}

#[test]
fn a_call_is_answered() {
    let mut pair = Pair::open();
    assert_eq!(pair.call("add", 3), Ok(1));
    pair.expect(&["request 1 add 3 Responded 0", "complete 1"]);
    assert_eq!(pair.got[&(true, 1)], [byte_at(1, 0), byte_at(1, 1), byte_at(1, 2)]);
    assert!(pair.callee.answer(1, 5) && !pair.callee.answer(1, 5));
    pair.expect(&["answer 1 5", "answered 1", "done 1"]);
    assert_eq!(pair.got[&(false, 1)].len(), 5);
    assert_eq!((pair.caller.in_flight(), pair.callee.in_flight(), pair.caller.poll_timeout()), (0, 0, None));
    // Neither has a payload.
    assert_eq!(pair.call("ping", 0), Ok(2));
    pair.expect(&["request 2 ping 0 Responded 0", "complete 2"]);
    pair.callee.answer(2, 0);
    pair.expect(&["answered 2", "answer 2 0", "done 2"]);
}

#[test]
fn a_long_payload_holds_up_nobody() {
    let mut pair = Pair::open();
    let long = 5 * u64::from(DATA_BYTES_MAX) + 1;
    pair.call("long", long).expect("made");
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    pair.call("short", 2).expect("made");
    for _ in 0..3 {
        pair.step_there(usize::MAX);
    }
    assert_eq!(
        pair.take_log(),
        ["request 1 long 5242881 Responded 0", "request 2 short 2 Responded 0", "complete 2"]
    );
    pair.callee.answer(2, long);
    pair.run();
    let expected: Vec<u8> = (0..long).map(|at| byte_at(1, at)).collect();
    assert!(pair.got[&(true, 1)] == expected);
    let expected: Vec<u8> = (0..long).map(|at| byte_at(2, at)).collect();
    assert!(pair.got[&(false, 2)] == expected);
    assert_eq!(pair.take_log(), ["answer 2 5242881", "complete 1", "answered 2", "done 2"]);
}

/// A payload of a gigabyte is not buffered: each part is named, and handed out from where it is stored.
#[test]
fn a_gigabyte_is_not_copied() {
    let mut pair = Pair::open();
    pair.call("all", 1 << 30).expect("made");
    let buffer = vec![7; DATA_BYTES_MAX as usize];
    let (mut parts, mut received) = (0, 0_u64);
    while let Some(write) = pair.caller.poll_write() {
        let mut bytes = match &write {
            ToWrite::Bytes(bytes) => &bytes[..],
            ToWrite::Part { header, offset, bytes, .. } => {
                assert_eq!(*offset, parts * u64::from(DATA_BYTES_MAX));
                parts += 1;
                assert!(pair.callee.next_event(NOW, &mut &header[..]).is_none());
                &buffer[..*bytes as usize]
            }
        };
        let lies = bytes.as_ptr_range();
        while let Some(event) = pair.callee.next_event(NOW, &mut bytes) {
            if let CalleeEvent::Bytes(1, part) = event {
                assert!(lies.contains(&part.as_ptr()), "it is handed out where it lies");
                received += part.len() as u64;
            }
        }
    }
    assert_eq!((parts, received), (1024, 1 << 30));
}

#[test]
fn who_gives_up_hears_no_more_of_it() {
    let mut pair = Pair::open();
    pair.call("a", 2 * u64::from(DATA_BYTES_MAX)).expect("made");
    pair.call("b", 0).expect("made");
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    let cancelled = [1, 1, 9].map(|id| pair.caller.cancel(id));
    assert_eq!(cancelled, [true, false, false]);
    pair.take_log();
    pair.expect(&["failed 1: a at b (id 2): it was cancelled", "over 1 Cancelled"]);
    assert!(!pair.callee.answer(1, 3), "the caller does not wait for it");
    // The response and the cancel frame cross each other.
    pair.callee.answer(2, 3);
    let crossing = core::iter::from_fn(|| pair.callee.poll_write()).collect::<Vec<_>>();
    pair.caller.cancel(2);
    crossing.iter().for_each(|write| Pair::write(write, &mut pair.back));
    let back = core::mem::take(&mut pair.back);
    pair.hear_caller(&back);
    pair.expect(&["failed 2: b at b (id 2): it was cancelled", "answered 2"]);
    assert_eq!((pair.caller.in_flight(), pair.callee.in_flight()), (0, 0));
}

#[test]
fn a_late_call_says_that_no_handler_thread_was_free() {
    let at = |millis: u64| NOW + Duration::from_millis(millis);
    let mut pair = Pair::open();
    let call = |millis: u64| NewCall {
        handler: "h",
        payload_bytes: 0,
        deadline: Some(at(millis)),
        kind: CallKind::Responded,
    };
    pair.begin(call(400)).expect("made");
    pair.begin(call(420)).expect("made");
    pair.begin(call(2000)).expect("made");
    pair.run();
    pair.take_log();
    // Asked once for the two calls that end soon, as late as is useful.
    pair.load = Some(PoolLoad { threads: 2, waiting: 7 });
    pair.now = at(300);
    assert_eq!(pair.caller.poll_timeout(), Some(pair.now));
    pair.caller.tick(pair.now);
    pair.expect(&[]);
    assert_eq!(pair.pings, 1);
    assert_eq!(pair.caller.poll_timeout(), Some(at(400)));
    pair.now = at(400);
    pair.caller.tick(pair.now);
    let late =
        "no answer in 400 ms: all of its handler threads (2) were busy, and requests (7) waited for one";
    pair.expect(&[&format!("failed 1: h at b (id 2): {late}"), "over 1 Cancelled"]);
    assert_eq!(pair.pings, 2);
    // Threads are free again, and the earlier report does not count any more.
    pair.load = None;
    pair.now = at(420);
    pair.caller.tick(pair.now);
    let late = late.replace("400 ms", "420 ms");
    pair.expect(&[&format!("failed 2: h at b (id 2): {late}"), "over 2 Cancelled"]);
    pair.now = at(1500);
    pair.caller.tick(pair.now);
    pair.expect(&[]);
    assert_eq!(pair.pings, 3);
    pair.now = at(2000);
    pair.caller.tick(pair.now);
    pair.expect(&["failed 3: h at b (id 2): no answer in 2.0 s", "over 3 Cancelled"]);
    // For a one-way call, and for one without a deadline, the load is not requested.
    pair.begin(NewCall { kind: CallKind::OneWay, ..call(4000) }).expect("made");
    assert_eq!(pair.caller.poll_timeout(), Some(at(4000)));
    pair.run();
    pair.begin(NewCall { deadline: None, ..call(0) }).expect("made");
    pair.run();
    assert_eq!(pair.caller.poll_timeout(), Some(at(6500)), "only whether it lives");
}

#[test]
fn deadlines_pass_at_both_ends() {
    let mut pair = Pair::open();
    let deadline = Some(NOW + Duration::from_millis(500));
    let call = NewCall { handler: "slow", payload_bytes: 0, deadline, kind: CallKind::Responded };
    pair.begin(call).expect("made");
    pair.expect(&["request 1 slow 0 Responded 501", "complete 1"]);
    assert_eq!(
        pair.caller.poll_timeout(),
        Some(NOW + Duration::from_millis(375)),
        "it is asked for its load"
    );
    pair.caller.tick(NOW + Duration::from_millis(499));
    pair.expect(&[]);
    pair.caller.tick(NOW + Duration::from_millis(500));
    pair.expect(&["failed 1: slow at b (id 2): no answer in 500 ms", "over 1 Cancelled"]);
    // If the callee notices first, the caller gets the same error.
    pair.begin(call).expect("made");
    pair.run();
    pair.take_log();
    assert_eq!(pair.callee.poll_timeout(), Some(NOW + Duration::from_millis(501)));
    pair.now = NOW + Duration::from_millis(501);
    pair.callee.tick(pair.now);
    pair.expect(&["over 2 Deadline", "failed 2: slow at b (id 2): no answer in 501 ms"]);
    let late = NewCall { deadline: Some(NOW), ..call };
    let error = pair.begin(late).expect_err("too late");
    assert_eq!(error.to_string(), "not sent in 0 ms");
}

#[test]
fn nobody_answers_a_notice() {
    let mut pair = Pair::open();
    let notice = NewCall { handler: "note", payload_bytes: 3, deadline: None, kind: CallKind::OneWay };
    pair.begin(notice).expect("made");
    pair.begin(NewCall { payload_bytes: 0, ..notice }).expect("made");
    pair.expect(&[
        "done 2",
        "request 1 note 3 OneWay 0",
        "request 2 note 0 OneWay 0",
        "complete 2",
        "done 1",
        "complete 1",
    ]);
    assert!(!pair.callee.answer(1, 0) && !pair.callee.fail(2, Status::Failed, "no"));
    pair.expect(&[]);
    assert_eq!((pair.caller.in_flight(), pair.callee.in_flight()), (0, 0));
}

#[test]
fn failures_are_told_in_the_callees_words() {
    let mut pair = Pair::open();
    for (status, message, reported) in [
        (Status::Failed, "no", "failed 1: f at b (id 2): the handler failed: no"),
        (Status::NoHandler, "", "failed 2: f at b (id 2): there is no such handler"),
        (Status::Other(77), "odd", "failed 3: f at b (id 2): reason 77: odd"),
    ] {
        let call = pair.call("f", 0).expect("made");
        pair.run();
        pair.take_log();
        assert!(pair.callee.fail(call, status, message));
        pair.run();
        assert_eq!(pair.take_log().last().map(String::as_str), Some(reported));
    }
    let call = pair.call("f", 0).expect("made");
    pair.run();
    pair.callee.fail(call, Status::Failed, &"\u{e4}".repeat(60_000));
    pair.run();
    let reported = pair.take_log().pop().expect("an end");
    let mark = "\u{e4} [cut: 120000 bytes, at most 16384]";
    assert!(reported.len() < 17_000 && reported.ends_with(mark), "{} bytes", reported.len());
    // A response may come before the request is complete.
    let call = pair.call("f", 3 * u64::from(DATA_BYTES_MAX)).expect("made");
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    pair.callee.fail(call, Status::Failed, "enough");
    pair.step_back(usize::MAX);
    assert_eq!(pair.caller.poll_write(), None, "the rest is not sent");
}

#[test]
fn what_a_worker_said_of_its_load_long_ago_explains_no_late_call() {
    let at = |millis: u64| NOW + Duration::from_millis(millis);
    let mut pair = Pair::open();
    let call = |millis: u64| NewCall {
        handler: "h",
        payload_bytes: 0,
        deadline: Some(at(millis)),
        kind: CallKind::Responded,
    };
    pair.begin(call(400)).expect("made");
    pair.begin(call(401)).expect("made");
    pair.load = Some(PoolLoad { threads: 2, waiting: 7 });
    pair.now = at(300);
    pair.caller.tick(pair.now);
    pair.run();
    assert_eq!((pair.pings, pair.take_log().len()), (1, 4));
    // It responds no more. The calls that end soon share its report.
    pair.begin(call(1300)).expect("made");
    for millis in [400, 401, 1050, 1300] {
        pair.now = at(millis);
        pair.caller.tick(pair.now);
        pair.hear_caller(b"");
    }
    let busy = "all of its handler threads (2) were busy, and requests (7) waited for one";
    assert_eq!(
        pair.take_log(),
        [
            &format!("failed 1: h at b (id 2): no answer in 400 ms: {busy}"),
            &format!("failed 2: h at b (id 2): no answer in 401 ms: {busy}"),
            "failed 3: h at b (id 2): no answer in 1.0 s",
        ]
    );
}

#[test]
fn no_more_is_under_way_than_may_be() {
    let limits = RpcLimits { requests_max: 2, bytes_max: 10, payload_bytes_max: 20, ..RpcLimits::default() };
    let mut pair = Pair::open_with(limits);
    pair.call("f", 15).expect("one alone may be long");
    // The others wait: for bytes, and for one of the two calls to end.
    for bytes in [1, 9, 0] {
        pair.call("f", bytes).expect("made");
    }
    pair.expect(&["request 1 f 15 Responded 0", "complete 1"]);
    pair.callee.answer(1, 0);
    pair.expect(&[
        "answered 1",
        "answer 1 0",
        "done 1",
        "request 2 f 1 Responded 0",
        "request 3 f 9 Responded 0",
        "complete 2",
        "complete 3",
    ]);
    let error = pair.call("f", 21).expect_err("too long");
    assert_eq!(error.to_string(), "a payload of 21 bytes is over the limit of 20");
    for bytes in [0, 1025] {
        let error = pair.call(&"x".repeat(bytes), 1).expect_err("no name");
        let expected = format!("the name of a handler has {bytes} bytes: from 1 to 1024");
        assert_eq!(error.to_string(), expected);
    }
    pair.run();
    pair.take_log();
    pair.callee.answer(2, 21);
    pair.expect(&[
        "answered 2",
        "failed 2: f at b (id 2): the payload is over the limit: a response of 21 bytes, of at most 20",
        "request 4 f 0 Responded 0",
        "complete 4",
    ]);
}

#[test]
fn a_caller_that_sends_more_is_cut_off() {
    let limits = RpcLimits { requests_max: 1, ..RpcLimits::default() };
    let mut pair = Pair::open_with(limits);
    let request = CallerFrame::Request { deadline_ms: 0, payload_bytes: 0, handler: b"f" };
    pair.hear_callee(&[encoded(1, &request), encoded(2, &request)].concat());
    assert_eq!(
        pair.take_log(),
        [
            "request 1 f 0 Responded 0",
            "complete 1",
            "over 1 Lost",
            "callee ended: more requests or bytes are under way than were allowed",
        ]
    );
    assert_eq!(pair.callee.poll_write(), None);
}

#[test]
fn nobody_speaks_under_anothers_name() {
    let limits = RpcLimits::default();
    let (a, b, c) = (worker("a", 1), worker("b", 2), worker("c", 3));
    let group = b"group";
    for (caller, callee, message) in [
        (
            connected(&a, &c, group, limits),
            Callee::new(NOW, b.clone(), group, limits),
            "refused: another worker is at this address: this is b (id 2)",
        ),
        (
            connected(&a, &worker("b", 3), group, limits),
            Callee::new(NOW, b.clone(), group, limits),
            "refused: another worker is at this address: this is b (id 2)",
        ),
        (
            connected(&a, &b, b"other", limits),
            Callee::new(NOW, b.clone(), group, limits),
            "refused: it belongs to another group",
        ),
    ] {
        let mut pair = Pair { caller, callee, ..Pair::with(limits) };
        pair.run();
        let log = pair.take_log();
        assert!(log.contains(&format!("caller hangs up: {message}")), "{log:?}");
        assert!(log.contains(&format!("callee ended: {message}")), "{log:?}");
    }
    // The driver decides which callers are admitted.
    let mut pair = Pair::with(limits);
    let Some(ToWrite::Bytes(hello)) = pair.caller.poll_write() else { panic!("a greeting") };
    let mut bytes = &hello[..];
    assert_eq!(pair.callee.next_event(NOW, &mut bytes), Some(CalleeEvent::Claimed(a)));
    assert_eq!(pair.callee.next_event(NOW, &mut bytes), None);
    pair.callee.refuse(Refusal::Unknown, "no worker a here");
    pair.expect(&[
        "callee ended: refused: the caller is not a known member: no worker a here",
        "caller hangs up: refused: the caller is not a known member: no worker a here",
    ]);
    // The caller detects a worker that responds for another.
    let mut pair = Pair::with(limits);
    let welcome =
        CalleeFrame::Welcome { version: 1, callee: b"c", callee_id: 3, requests_max: 1, bytes_max: 1 };
    pair.hear_caller(&encoded(0, &welcome));
    assert_eq!(pair.take_log(), ["caller hangs up: c (id 3) answered at the address of b (id 2)"]);
    let hello = |version_min, caller| CallerFrame::Hello {
        version_min,
        version_max: 9,
        group,
        caller,
        caller_id: 1,
        callee: b"b",
        callee_id: 2,
    };
    for (hello, message) in [
        (hello(2, b"a"), "callee ended: refused: no version in common"),
        (hello(1, b"a*"), "callee ended: the greeting names no worker"),
    ] {
        let mut pair = Pair::with(limits);
        pair.hear_callee(&[b"RRPC", &encoded(0, &hello)[..]].concat());
        assert_eq!(pair.take_log(), [message]);
    }
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

fn encoded(id: u64, frame: &impl Message) -> Vec<u8> {
    let mut out = Bytes(Vec::new());
    encode_frame(&mut out, id, frame).expect("short");
    out.0
}

#[test]
fn frames_out_of_their_place_end_the_connection() {
    let data = |id, bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).expect("short");
        [&Header::of_data(id, length).to_bytes()[..], bytes].concat()
    };
    let request = |id, payload_bytes| {
        encoded(id, &CallerFrame::Request { deadline_ms: 0, payload_bytes, handler: b"f" })
    };
    for (bytes, message) in [
        (request(1, 0), "a frame of kind 0x0002 is not expected here"),
        (data(1, b"x"), "a frame of kind 0x0010 is not expected here"),
    ] {
        let mut pair = Pair::with(RpcLimits::default());
        pair.hear_callee(&[b"RRPC", &bytes[..]].concat());
        assert_eq!(pair.take_log(), [format!("callee ended: {message}")]);
    }
    for (bytes, message) in [
        (data(1, b"x"), "a frame of kind 0x0010 is not expected here"),
        ([request(1, 2), data(1, b"xyz")].concat(), "call 1 has more bytes than it announced"),
        ([request(2, 0), request(2, 0)].concat(), "a frame of kind 0x0002 is not expected here"),
        (request(0, 0), "a frame of kind 0x0002 is not expected here"),
        (
            encoded(
                0,
                &CallerFrame::Hello {
                    version_min: 1,
                    version_max: 1,
                    group: b"",
                    caller: b"a",
                    caller_id: 1,
                    callee: b"b",
                    callee_id: 2,
                },
            ),
            "a frame of kind 0x0001 is not expected here",
        ),
        (
            b"\xff\xff\xff\xff\x02\0\0\0\x01\0\0\0\0\0\0\0".to_vec(),
            "a body of 4294967295 bytes is over the limit of kind 0x0002",
        ),
    ] {
        let mut pair = Pair::open();
        pair.hear_callee(&bytes);
        assert_eq!(pair.take_log().pop(), Some(format!("callee ended: {message}")));
    }
    let answer =
        |payload_bytes| encoded(1, &CalleeFrame::Response { status: 0, payload_bytes, message: b"" });
    for (bytes, message) in [
        (data(1, b"x"), "a frame of kind 0x0010 is not expected here"),
        (data(2, b"x"), "a frame of kind 0x0010 is not expected here"),
        ([answer(1), data(1, b"xy")].concat(), "call 1 has more bytes than it announced"),
        ([answer(1), answer(1)].concat(), "a frame of kind 0x8002 is not expected here"),
        (
            encoded(9, &CalleeFrame::Response { status: 0, payload_bytes: 0, message: b"" }),
            "a frame of kind 0x8002 is not expected here",
        ),
    ] {
        let mut pair = Pair::open();
        pair.call("f", 0).expect("made");
        pair.hear_caller(&bytes);
        assert_eq!(pair.take_log().pop(), Some(format!("caller hangs up: {message}")));
    }
    // Additions of a later version are ignored.
    let mut pair = Pair::open();
    pair.hear_callee(b"\x02\0\0\0\x99\0\x01\0\x01\0\0\0\0\0\0\0hi");
    pair.hear_caller(b"\x02\0\0\0\x99\x80\x01\0\x01\0\0\0\0\0\0\0hi");
    pair.call("f", 0).expect("made");
    pair.expect(&["request 1 f 0 Responded 0", "complete 1"]);
}

/// Random calls of all kinds, in pieces of any size: each ends once, with the bytes that were sent.
#[test]
fn every_call_ends_once_and_brings_its_bytes() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let limits = RpcLimits { requests_max: 6, bytes_max: 3_000_000, ..RpcLimits::default() };
        let mut pair = Pair::open_with(limits);
        let (mut open, mut sizes) = (Vec::new(), BTreeMap::new());
        let (mut made, mut ended) = (Vec::new(), Vec::new());
        for step in 0..200 {
            let size = [0, 1, 100, 3000, 9000][usize::try_from(rng.below(5)).expect("few")];
            let size = if rng.below(40) == 0 { 1_200_000 } else { size };
            match rng.below(10) {
                0..3 if step < 150 => {
                    let kind = if rng.below(4) == 0 { CallKind::OneWay } else { CallKind::Responded };
                    let deadline =
                        (rng.below(5) == 0).then(|| pair.now + Duration::from_millis(1 + rng.below(30)));
                    let call = NewCall { handler: "f", payload_bytes: size, deadline, kind };
                    if let Ok(id) = pair.begin(call) {
                        made.push(id);
                        sizes.insert((true, id), size);
                    }
                }
                3 => {
                    if let Some(&id) = made.get(usize::try_from(rng.below(made.len() as u64)).expect("few")) {
                        pair.caller.cancel(id);
                    }
                }
                4 | 5 if !open.is_empty() => {
                    let id = open.swap_remove(usize::try_from(rng.below(open.len() as u64)).expect("few"));
                    if rng.below(4) == 0 {
                        pair.callee.fail(id, Status::Failed, "chance");
                    } else if pair.callee.answer(id, size) {
                        sizes.insert((false, id), size);
                    }
                }
                6 => {
                    pair.now = pair.now + Duration::from_millis(rng.below(20));
                    pair.caller.tick(pair.now);
                    pair.callee.tick(pair.now);
                }
                7 | 8 => _ = pair.step_there(1 + usize::try_from(rng.below(20_000)).expect("few")),
                _ => _ = pair.step_back(1 + usize::try_from(rng.below(20_000)).expect("few")),
            }
            look(&mut pair, &mut open, &mut ended);
        }
        if rng.below(3) == 0 {
            pair.caller.abort(&ConnectionError::Closed);
            pair.callee.lost(ConnectionError::Closed);
        } else {
            pair.caller.goodbye();
            for _ in 0..20 {
                pair.run();
                look(&mut pair, &mut open, &mut ended);
                for id in open.drain(..) {
                    pair.callee.answer(id, 0);
                }
            }
        }
        pair.run();
        look(&mut pair, &mut open, &mut ended);
        ended.sort_unstable();
        assert_eq!(ended, made, "seed {seed}");
        assert_eq!((pair.caller.in_flight(), pair.callee.in_flight()), (0, 0), "seed {seed}");
        for ((there, id), bytes) in &pair.got {
            let expected = sizes.get(&(*there, *id)).copied().unwrap_or_default();
            assert!(bytes.len() as u64 <= expected, "seed {seed}: {there} {id}");
            assert!(
                bytes.iter().zip(0..).all(|(&byte, at)| byte == byte_at(*id, at)),
                "seed {seed}: {there} {id}"
            );
        }
    }
}

/// Collects the events of both ends: the calls that can be responded to, and those that have ended.
fn look(pair: &mut Pair, open: &mut Vec<u64>, ended: &mut Vec<u64>) {
    for line in pair.take_log() {
        let mut message = line.split([' ', ':']);
        let (what, id) = (message.next().unwrap_or_default(), message.next().and_then(|id| id.parse().ok()));
        match (what, id) {
            ("complete", Some(id)) => open.push(id),
            ("done", Some(id)) | ("failed", Some(id)) => ended.push(id),
            ("over", Some(id)) => open.retain(|known| *known != id),
            _ => {}
        }
    }
}

#[test]
fn endings_and_reasons_have_their_numbers() {
    for number in 0..8 {
        assert_eq!(Status::from_number(number).number(), number);
        assert_eq!(Refusal::from_number(number).number(), number);
    }
    assert_ne!(Ending::Cancelled, Ending::Lost);
}
