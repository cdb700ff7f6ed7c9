use super::*;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use rendezvous_core::rng::Rng;

fn line(pid: u32, scope: &str, expires: f64, signal: i32) -> String {
    format!(
        "{{\"version\": 1, \"pid\": {pid}, \"scope_id\": \"{scope}\", \"expiration_time\": {expires:?}, \"signal\": {signal}}}\n"
    )
}

fn reported(lines: &[String]) -> Watchdog {
    let mut watchdog = Watchdog::default();
    watchdog.read(lines.concat().as_bytes(), &mut |_| true);
    assert_eq!(watchdog.next_refusal(), None);
    watchdog
}

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn expired(pid: u32, scope: &str, expires: f64, signal: i32) -> ExpiredTimer {
    // They are set at time 0.
    let (scope, expires) = (scope.into(), at(expires));
    ExpiredTimer { pid, local_rank: None, scope, expires, span: expires, signal }
}

#[test]
fn a_timer_expires_at_its_time_and_not_before() {
    let mut watchdog = reported(&[line(7, "train.py#12", 1_700_000_060.5, 9)]);
    assert_eq!((watchdog.due(), watchdog.len()), (Some(at(1_700_000_060.5)), 1));
    assert_eq!(watchdog.next_expired(at(1_700_000_060.4)), None);
    let timer = expired(7, "train.py#12", 1_700_000_060.5, 9);
    assert_eq!(watchdog.next_expired(at(1_700_000_060.5)), Some(timer));
    assert_eq!((watchdog.next_expired(Duration::MAX), watchdog.is_empty()), (None, true));
}

#[test]
fn what_pytorchs_client_writes_is_understood() {
    let mut watchdog = Watchdog::default();
    let lines = "{\"version\": 1, \"pid\": 3, \"scope_id\": \"<x>\", \"expiration_time\": 1700000000.1234567, \"signal\": 9}\n\
                 {\"version\": 1, \"pid\": 3, \"scope_id\": \"<x>\", \"expiration_time\": -1, \"signal\": 0}\n";
    watchdog.read(lines.as_bytes(), &mut |_| true);
    assert_eq!((watchdog.len(), watchdog.next_refusal()), (0, None), "set, and taken back");
}

#[test]
fn what_our_client_writes_is_understood() {
    let scope = "step \"1\"\n\u{e4}";
    let set = |expires| timer_line(3, scope, expires, 6).expect("it is short");
    let mut watchdog = reported(&[set(Some(at(1_700_000_000.25)))]);
    assert_eq!(watchdog.next_expired(Duration::MAX), Some(expired(3, scope, 1_700_000_000.25, 6)));
    let watchdog = reported(&[set(Some(Duration::MAX)), set(None)]);
    assert!(watchdog.is_empty(), "set, and taken back");
    assert_eq!(timer_line(3, &"x".repeat(LINE_BYTES_MAX), None, 9), None);
}

#[test]
fn timers_are_by_process_and_scope() {
    let mut watchdog = reported(&[
        line(1, "a", 10.0, 9),
        line(1, "b", 20.0, 9),
        line(2, "a", 30.0, 9),
        line(1, "a", 40.0, 9),
        line(2, "b", -1.0, 0),
    ]);
    assert_eq!((watchdog.len(), watchdog.due()), (3, Some(at(20.0))), "set anew, it replaces the one before");
    watchdog.read(line(1, "b", -1.0, 0).as_bytes(), &mut |_| true);
    assert_eq!(watchdog.due(), Some(at(30.0)));
    watchdog.forget(2);
    watchdog.forget(99);
    assert_eq!((watchdog.len(), watchdog.due()), (1, Some(at(40.0))));
    watchdog.clear();
    assert_eq!((watchdog.len(), watchdog.due()), (0, None));
}

#[test]
fn the_first_with_a_signal_decides_and_all_of_its_process_are_gone() {
    let mut watchdog = reported(&[
        line(1, "silent", 10.0, 0),
        line(1, "later", 12.0, 15),
        line(1, "first", 11.0, 10),
        line(1, "not yet", 99.0, 9),
        line(2, "only told", 5.0, -1),
    ]);
    assert_eq!(watchdog.next_expired(at(20.0)), Some(expired(2, "only told", 5.0, 0)));
    assert_eq!(watchdog.next_expired(at(20.0)), Some(expired(1, "first", 11.0, 10)));
    assert_eq!((watchdog.next_expired(at(200.0)), watchdog.len()), (None, 0));
}

#[test]
fn only_those_who_are_admitted_set_timers() {
    let mut request = Vec::new();
    let mut watchdog = Watchdog::default();
    let lines =
        [line(1, "a", 9.0, 9), line(2, "a", 9.0, 9), line(1, "b", 9.0, 9), line(2, "a", -1.0, 0)].concat();
    watchdog.read(lines.as_bytes(), &mut |pid| {
        request.push(pid);
        pid == 1
    });
    assert_eq!((request, watchdog.len()), (vec![1, 2], 2), "once for each process");
}

#[test]
fn lines_come_in_pieces() {
    let text = [line(1, "größe", 10.0, 9), line(2, "b", 20.0, 9)].concat();
    for size in 1..text.len() {
        let mut watchdog = Watchdog::default();
        text.as_bytes().chunks(size).for_each(|chunk| watchdog.read(chunk, &mut |_| true));
        assert_eq!((watchdog.len(), watchdog.next_refusal()), (2, None), "{size}");
    }
}

#[test]
fn what_is_no_timer_harms_none() {
    let good = line(1, "good", 10.0, 9);
    for wrong in [
        "x",
        "{}",
        "[1]",
        "null",
        "{\"pid\": 1}",
        "{\"pid\": 0, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": -4, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 4294967296, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": 7, \"expiration_time\": 1, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": \"1\", \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": NaN, \"signal\": 9}",
        "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 65}",
        "{\"pid\": 1, \"scope_id\": \"a\", \"expiration_time\": 1, \"signal\": 9",
        "\u{0}\u{1}",
    ] {
        let mut watchdog = Watchdog::default();
        watchdog.read(format!("{wrong}\n{good}").as_bytes(), &mut |_| true);
        assert_eq!(watchdog.next_refusal(), Some(Refusal::Malformed), "{wrong}");
        assert_eq!((watchdog.len(), watchdog.next_refusal()), (1, None), "{wrong}");
    }
}

#[test]
fn a_line_without_an_end_takes_no_room() {
    let mut watchdog = Watchdog::default();
    for _ in 0..1000 {
        watchdog.read(&[b'x'; 1024], &mut |_| true);
        assert!(watchdog.partial.capacity() <= 2 * LINE_BYTES_MAX);
    }
    watchdog.read(format!("\n{}", line(1, "a", 1.0, 9)).as_bytes(), &mut |_| true);
    assert_eq!((watchdog.next_refusal(), watchdog.next_refusal()), (Some(Refusal::TooLong), None));
    assert_eq!(watchdog.len(), 1, "the next line is whole");
    // The longest valid line.
    let scope = "s".repeat(LINE_BYTES_MAX - (line(2, "", 1.0, 9).len() - 1));
    watchdog.read(line(2, &scope, 1.0, 9).as_bytes(), &mut |_| true);
    assert_eq!((watchdog.next_refusal(), watchdog.len()), (None, 2));
    watchdog.read(line(3, &(scope + "s"), 1.0, 9).as_bytes(), &mut |_| true);
    assert_eq!((watchdog.next_refusal(), watchdog.len()), (Some(Refusal::TooLong), 2));
}

#[test]
fn half_a_line_does_not_take_the_next_one_with_it() {
    let good = line(1, "a {\\\"version\\\"", 1.0, 9);
    for half in ["{\"pid\": 1,", "{\"version\": 1, \"pid\": 7, \"sco", "x"] {
        let mut watchdog = Watchdog::default();
        watchdog.read(half.as_bytes(), &mut |_| true);
        watchdog.read(line(2, "b", 1.0, 9).as_bytes(), &mut |_| true);
        watchdog.read(good.as_bytes(), &mut |_| true);
        assert_eq!((watchdog.next_refusal(), watchdog.len()), (Some(Refusal::Malformed), 2), "{half}");
    }
}

#[test]
fn there_is_a_bound() {
    let mut watchdog = Watchdog::default();
    for number in 0..=TIMERS_MAX {
        let pid = u32::try_from(number % 1000 + 1).expect("small");
        watchdog.read(line(pid, &format!("{number}"), 10.0, 9).as_bytes(), &mut |_| true);
    }
    assert_eq!((watchdog.len(), watchdog.next_refusal()), (TIMERS_MAX, Some(Refusal::TooMany)));
    watchdog.read(line(1, "0", -1.0, 0).as_bytes(), &mut |_| true);
    watchdog.read(line(1, "new", 10.0, 9).as_bytes(), &mut |_| true);
    assert_eq!((watchdog.len(), watchdog.next_refusal()), (TIMERS_MAX, None), "there is room again");
}

/// Compares with a list of all timers that is searched linearly.
#[test]
fn thousands_of_timers_are_as_a_plain_list_has_them() {
    let mut rng = Rng::new(7);
    let mut watchdog = Watchdog::default();
    let mut plain: Vec<(u32, String, f64, i32)> = Vec::new();
    let mut now = 1000.0;
    for _ in 0..20_000 {
        let mut pick = |below: u64| u32::try_from(rng.below(below)).expect("small");
        let (pid, scope, what) = (pick(200) + 1, format!("s{}", pick(20)), pick(100));
        let (expires, signal) =
            (now + f64::from(pick(5000)) / 16.0, i32::try_from(pick(4)).expect("small") * 5);
        let known = |timer: &(u32, String, f64, i32)| timer.0 == pid && timer.1 == scope;
        match what {
            0..60 => {
                watchdog.read(line(pid, &scope, expires, signal).as_bytes(), &mut |_| true);
                plain.retain(|timer| !known(timer));
                plain.push((pid, scope, expires, signal));
            }
            60..90 => {
                watchdog.read(line(pid, &scope, -1.0, 0).as_bytes(), &mut |_| true);
                plain.retain(|timer| !known(timer));
            }
            90..92 => {
                watchdog.forget(pid);
                plain.retain(|timer| timer.0 != pid);
            }
            _ => now += 8.0,
        }
        while let Some(timer) = watchdog.next_expired(at(now)) {
            let of_it: Vec<_> = plain.iter().filter(|other| other.0 == timer.pid && other.2 <= now).collect();
            let first = of_it.iter().filter(|other| other.3 > 0).map(|other| at(other.2)).min();
            assert_eq!(timer.signal > 0, first.is_some());
            assert_eq!(Some(timer.expires), first.or_else(|| of_it.iter().map(|other| at(other.2)).min()));
            plain.retain(|other| other.0 != timer.pid);
        }
        assert!(plain.iter().all(|timer| timer.2 > now));
        assert_eq!(watchdog.len(), plain.len());
        assert_eq!(watchdog.due(), plain.iter().map(|timer| at(timer.2)).min());
    }
    assert!(plain.len() > 100, "there was something to compare");
}

#[test]
fn a_pause_of_the_agent_costs_no_timer_its_time() {
    let mut watchdog = reported(&[line(1, "a", 10.0, 9), line(1, "b", 30.0, 9), line(2, "a", 20.0, 9)]);
    let looks = |watchdog: &mut Watchdog, millis| {
        watchdog.wake(Instant::from_millis(millis), at(1.0));
        watchdog.rest(Instant::from_millis(millis));
    };
    looks(&mut watchdog, 5000);
    looks(&mut watchdog, 6400);
    assert_eq!(watchdog.due(), Some(at(10.0)), "a look that is a little late is no pause");
    looks(&mut watchdog, 26_400);
    assert_eq!(watchdog.due(), Some(at(30.0)), "twenty seconds longer");
    let timer = ExpiredTimer { span: at(10.0), ..expired(1, "a", 30.0, 9) };
    assert_eq!(timer.to_string(), "timer a (set for 10.0 s by pid 1)");
    assert_eq!(watchdog.next_expired(at(39.0)), Some(timer));
    assert_eq!((watchdog.due(), watchdog.len()), (Some(at(40.0)), 1));
    watchdog.forget(2);
    looks(&mut watchdog, 27_000);
    // No check is needed while no timer runs.
    watchdog.wake(Instant::from_millis(99_000), at(20.0));
    watchdog.read(line(3, "a", 50.0, 9).as_bytes(), &mut |_| true);
    watchdog.rest(Instant::from_millis(99_000));
    assert_eq!(watchdog.due(), Some(at(50.0)));
    assert_eq!(watchdog.next_expired(at(50.0)).map(|timer| timer.span), Some(at(30.0)));
}
