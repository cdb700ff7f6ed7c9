//! State that a callee keeps for a caller that makes no progress.

use super::*;

const STALL: Duration = Duration::from_secs(60);

impl Pair {
    /// Time passes at the callee, which ticks at any time.
    fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        while let Some(at) = self.callee.poll_timeout().filter(|at| *at <= until) {
            self.now = at;
            self.callee.tick(at);
        }
        self.now = until;
        self.callee.tick(until);
    }
}

#[test]
fn a_request_of_which_nothing_more_comes_is_given_up_and_its_caller_is_told() {
    let mut pair = Pair::open();
    let long = 3 * u64::from(DATA_BYTES_MAX);
    pair.call("f", long).expect("made");
    let notice = NewCall { handler: "g", payload_bytes: long, deadline: None, kind: CallKind::OneWay };
    pair.begin(notice).expect("made");
    // The frames of both, a part of the first one, and then one of the second.
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    pair.pass(STALL);
    pair.step_there(usize::MAX);
    assert_eq!(pair.take_log().len(), 2, "two requests");
    // They continue as long as bytes arrive between two checks. A ping does not count.
    pair.pass(STALL);
    assert!(!pair.hear_callee(b""));
    pair.hear_callee(&encoded(0, &CallerFrame::Ping { nonce: 1 }));
    pair.pass(STALL);
    pair.hear_callee(b"");
    assert_eq!(pair.take_log(), ["over 1 Stalled", "over 2 Stalled"]);
    assert_eq!((pair.callee.in_flight(), pair.callee.poll_timeout()), (0, None));
    pair.step_back(usize::MAX);
    assert_eq!(
        pair.take_log(),
        ["failed 1: f at b (id 2): the rest of the request did not arrive: no byte came in 60.0 s"]
    );
    // Later bytes are ignored.
    pair.expect(&["done 2"]);
}

#[test]
fn a_part_that_comes_byte_by_byte_goes_on() {
    let mut pair = Pair::open();
    pair.call("f", 10).expect("made");
    let mut bytes = Vec::new();
    while let Some(write) = pair.caller.poll_write() {
        Pair::write(&write, &mut bytes);
    }
    let (first, rest) = bytes.split_at(bytes.len() - 10);
    pair.hear_callee(first);
    for byte in rest {
        pair.pass(STALL);
        pair.hear_callee(&[*byte]);
    }
    assert_eq!(pair.take_log(), ["request 1 f 10 Responded 0", "complete 1"]);
    assert_eq!(pair.callee.poll_timeout(), None);
}

/// Parts of payloads are interleaved: on a slow connection, one round takes longer than the interval of the checks.
#[test]
fn a_request_whose_turn_does_not_come_is_not_stalled_while_others_come() {
    let mut pair = Pair::open();
    for _ in 0..4 {
        pair.call("f", 3 * u64::from(DATA_BYTES_MAX)).expect("made");
    }
    while pair.step_there(usize::MAX) {
        pair.pass(STALL);
        pair.step_back(usize::MAX);
    }
    let log = pair.take_log();
    let has_stalled = log.iter().any(|line| line.contains("Stalled"));
    assert!(!has_stalled && log.iter().filter(|line| line.starts_with("complete")).count() == 4, "{log:?}");
}

#[test]
fn a_connection_that_was_not_read_has_its_time_anew() {
    let mut pair = Pair::open();
    pair.call("f", u64::from(DATA_BYTES_MAX) + 1).expect("made");
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    pair.take_log();
    pair.pass(STALL);
    // Held up for all but the last second before a check.
    assert!(pair.callee.hold_up(pair.now));
    pair.pass(STALL.saturating_sub(Duration::from_secs(1)));
    pair.callee.go_on();
    pair.pass(Duration::from_secs(1));
    // Not read for so long because it did not read itself.
    let ping = encoded(0, &CallerFrame::Ping { nonce: 1 });
    while pair.callee.is_read() {
        pair.hear_callee(&ping);
    }
    pair.pass(STALL.saturating_sub(Duration::from_secs(1)));
    while pair.callee.poll_write().is_some() {}
    pair.pass(Duration::from_secs(1));
    pair.hear_callee(b"");
    assert!(pair.take_log().is_empty(), "it was not read");
    pair.pass(STALL);
    pair.hear_callee(b"");
    assert_eq!(pair.take_log(), ["over 1 Stalled"]);
}

#[test]
fn a_frame_of_which_nothing_more_comes_ends_the_connection() {
    let mut pair = Pair::open();
    pair.call("f", 0).expect("made");
    let Some(ToWrite::Bytes(bytes)) = pair.caller.poll_write() else { panic!("a frame") };
    let (first, rest) = bytes.split_at(bytes.len() - 2);
    pair.hear_callee(first);
    pair.pass(STALL);
    pair.hear_callee(&rest[..1]);
    pair.pass(STALL);
    assert!(pair.take_log().is_empty(), "it goes on");
    pair.pass(STALL);
    pair.hear_callee(b"");
    assert_eq!(pair.take_log(), ["callee ended: no byte of the rest of a frame came in 60.0 s"]);
}

#[test]
fn where_the_process_stood_still_the_caller_has_its_time_anew() {
    let mut pair = Pair::open();
    pair.call("f", u64::from(DATA_BYTES_MAX) + 1).expect("made");
    pair.step_there(usize::MAX);
    pair.step_there(usize::MAX);
    pair.pass(STALL);
    pair.now = pair.now + STALL * 3;
    pair.callee.tick(pair.now);
    pair.expect(&["request 1 f 1048577 Responded 0", "complete 1"]);
}

#[test]
fn answers_that_are_not_taken_are_counted_until_they_are_or_their_call_ends() {
    let limits = RpcLimits { answer_bytes_max: 10, late_answer_bytes_max: 20, ..RpcLimits::default() };
    let mut pair = Pair::open_with(limits);
    for _ in 0..4 {
        pair.call("f", 0).expect("made");
    }
    pair.step_there(usize::MAX);
    assert!(pair.callee.keeps_late_answer(u64::MAX), "one alone may be longer");
    pair.callee.answer(1, 9);
    assert!(pair.callee.begins() && pair.callee.keeps_late_answer(11) && !pair.callee.keeps_late_answer(12));
    pair.callee.answer(2, 8);
    assert!(!pair.callee.begins());
    pair.callee.fail(3, Status::Failed, "no");
    assert_eq!(pair.callee.unread_bytes(), 17);
    pair.caller.cancel(2);
    pair.step_there(usize::MAX);
    assert_eq!((pair.callee.unread_bytes(), pair.callee.begins()), (9, true));
    pair.run();
    assert_eq!(pair.callee.unread_bytes(), 0);
    pair.callee.answer(4, 30);
    assert_eq!(pair.callee.unread_bytes(), 30);
    pair.callee.lost(ConnectionError::Closed);
    assert_eq!((pair.callee.unread_bytes(), pair.callee.begins()), (0, true));
}

#[test]
fn a_text_is_cut_at_a_character_and_says_so() {
    let whole = "x".repeat(16 * 1024);
    assert_eq!(cut_failure_text(&whole), whole);
    let cut = cut_failure_text(&"é".repeat(10_000)).into_owned();
    assert!(cut.len() <= 16 * 1024 && cut.len() > 16 * 1024 - 2, "{}", cut.len());
    assert!(cut.ends_with("é [cut: 20000 bytes, at most 16384]"), "{cut}");
}
