use super::*;
use alloc::vec;

const FEW: IntakeLimits = IntakeLimits {
    requests_max: 2,
    bytes_max: 100,
    unawaited_requests_max: 2,
    unawaited_bytes_max: 100,
    reserved_requests: 0,
    reserved_bytes: 0,
    answer_bytes_max: 100,
    late_answer_bytes_max: 100,
};
const LIMITS: InboxLimits = InboxLimits { calls_max: 2, requests: FEW, changes_max: 2 };

/// Takes all items of an iteration.
fn poll<T>(inbox: &mut Inbox<T>) -> Vec<T> {
    inbox.begin_iteration();
    core::iter::from_fn(|| inbox.take()).collect()
}

#[test]
fn that_it_is_a_member_is_told_first_and_that_it_has_ended_last() {
    let mut inbox = Inbox::of_newcomer(LIMITS);
    assert_eq!((inbox.put_request(1, "early"), inbox.changed("came")), (Put::Quiet, Put::Quiet));
    assert_eq!(poll(&mut inbox), Vec::<&str>::new(), "it is no member yet");
    assert_eq!(inbox.joined("joined"), Put::Wakes);
    assert_eq!(inbox.changed("went"), Put::Quiet, "the loop knows");
    assert_eq!(poll(&mut inbox), ["joined", "early", "came", "went"]);
    assert_eq!(inbox.parted(), Put::Wakes);
    assert!(inbox.has_parted());
    let call = inbox.begin().expect("capacity");
    assert_eq!(inbox.put_request(1, "late"), Put::Quiet);
    assert_eq!((inbox.take_requests(), inbox.first_call()), (vec!["late"], Some(call)));
    assert_eq!((inbox.put_answer(call, "no answer"), inbox.over("over")), (Put::Quiet, Put::Quiet));
    assert!(!inbox.has_parted());
    for refused in [inbox.over("twice"), inbox.put_request(0, "twice"), inbox.changed("twice")] {
        assert_eq!(refused, Put::Refused("twice"));
    }
    assert_eq!(inbox.begin(), Err(NotBegun::Over));
    assert_eq!(poll(&mut inbox), ["no answer", "over"]);
}

#[test]
fn who_does_not_become_a_member_hears_that_alone() {
    let mut inbox = Inbox::of_newcomer(LIMITS);
    assert_eq!(inbox.put_request(1, "early"), Put::Quiet);
    assert_eq!(inbox.take_requests(), ["early"]);
    assert_eq!((inbox.over("none"), inbox.parted()), (Put::Wakes, Put::Quiet));
    assert_eq!(poll(&mut inbox), ["none"]);
}

#[test]
fn a_turn_has_what_came_before_it() {
    let mut inbox = Inbox::of_member(LIMITS);
    assert_eq!(inbox.put_request(1, 1), Put::Wakes);
    inbox.begin_iteration();
    assert_eq!(inbox.put_request(1, 2), Put::Wakes, "for the next turn");
    assert_eq!((inbox.take(), inbox.take()), (Some(1), None));
    inbox.begin_iteration();
    assert_eq!((inbox.take(), inbox.take()), (Some(2), None));
    // Items that one iteration leaves are for the next one.
    assert_eq!(inbox.put_request(1, 3), Put::Wakes);
    inbox.begin_iteration();
    assert_eq!(poll(&mut inbox), [3]);
}

#[test]
fn what_is_taken_out_of_a_turn_lets_nothing_into_it() {
    let mut inbox = Inbox::of_member(LIMITS);
    for (number, item) in [(0, "lost"), (1, "kept")] {
        inbox.changed(item);
        inbox.put_request(number, "asked");
    }
    inbox.begin_iteration();
    inbox.changed("late");
    assert_eq!(inbox.take_requests(), ["asked", "asked"]);
    assert_eq!((inbox.take(), inbox.take()), (Some("kept"), None));
    assert_eq!(poll(&mut inbox), ["late"]);
}

#[test]
fn a_call_that_was_not_made_is_not_told() {
    let mut inbox = Inbox::of_member(LIMITS);
    let (call, other) = (inbox.begin().expect("capacity"), inbox.begin().expect("capacity"));
    // Its worker ends meanwhile, and ends all pending calls.
    inbox.put_answer(call, "no member");
    inbox.put_answer(other, "no member");
    inbox.begin_iteration();
    inbox.forget(call);
    inbox.over("over");
    assert_eq!((inbox.take(), inbox.take()), (Some("no member"), None));
    assert_eq!(poll(&mut inbox), ["over"]);
}

#[test]
fn a_call_is_told_once_and_by_its_deadline() {
    let (mut inbox, at) = (Inbox::of_member(LIMITS), Instant::from_millis);
    let (first, second) = (inbox.begin().expect("capacity"), inbox.begin().expect("capacity"));
    assert_eq!(inbox.begin(), Err(NotBegun::TooMany { calls_max: 2 }));
    assert_eq!(inbox.poll_timeout(), None);
    inbox.set_deadline(second, at(30));
    inbox.set_deadline(first, at(20));
    assert_eq!((inbox.poll_timeout(), inbox.late_call(at(19))), (Some(at(20)), None));
    assert_eq!(inbox.late_call(at(20)), Some(first));
    assert_eq!((inbox.put_answer(first, 'a'), inbox.put_answer(first, 'b')), (Put::Wakes, Put::Refused('b')));
    assert_eq!(inbox.begin(), Err(NotBegun::TooMany { calls_max: 2 }), "its result was not taken");
    assert_eq!(poll(&mut inbox), ['a']);
    inbox.forget(second);
    assert_eq!((inbox.poll_timeout(), inbox.first_call()), (None, None));
    let third = inbox.begin().expect("capacity");
    assert!(third > second);
    // A call that has ended has no deadline any more.
    assert_eq!(inbox.put_answer(third, 'c'), Put::Wakes);
    inbox.set_deadline(third, at(40));
    assert_eq!(inbox.poll_timeout(), None);
}

#[test]
fn requests_wait_while_there_is_room_and_the_oldest_changes_are_lost() {
    let mut inbox = Inbox::of_member(LIMITS);
    assert_eq!((inbox.put_request(100, 1), inbox.put_request(0, 2)), (Put::Wakes, Put::Full(2)), "bytes");
    assert_eq!(poll(&mut inbox), [1]);
    assert_eq!((inbox.put_request(1, 3), inbox.put_request(1, 4)), (Put::Wakes, Put::Quiet));
    assert_eq!(inbox.put_request(1, 5), Put::Full(5));
    for change in [6, 7, 8] {
        assert_eq!(inbox.changed(change), Put::Quiet);
    }
    assert_eq!((poll(&mut inbox), inbox.changes_lost()), (vec![3, 4, 7, 8], 1));
}

#[test]
fn a_worker_that_has_ended_is_asked_nothing_and_its_loop_lives() {
    let mut inbox = Inbox::of_member(LIMITS);
    assert_eq!((inbox.over('o'), inbox.put_request(1, 'r')), (Put::Wakes, Put::Refused('r')));
    assert_eq!(poll(&mut inbox), ['o']);
}

#[test]
fn when_the_loop_is_gone_nothing_is_taken_any_more() {
    let mut inbox = Inbox::of_newcomer(LIMITS);
    inbox.begin().expect("capacity");
    assert_eq!(inbox.put_request(1, 'r'), Put::Quiet);
    assert_eq!(inbox.close(), ['r']);
    assert_eq!((inbox.joined('j'), inbox.over('o')), (Put::Refused('j'), Put::Refused('o')));
    assert_eq!((inbox.put_request(1, 'r'), inbox.put_answer(1, 'a')), (Put::Closed('r'), Put::Refused('a')));
    assert_eq!((inbox.begin(), poll(&mut inbox)), (Err(NotBegun::Over), Vec::new()));
}
