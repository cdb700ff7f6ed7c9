use super::*;

#[test]
fn there_is_room_until_a_limit_is_reached_and_again_below_it() {
    let mut intake = Intake::new(IntakeLimits { requests_max: 2, bytes_max: 100, ..IntakeLimits::default() });
    intake.enter(99);
    assert!(intake.has_capacity());
    intake.enter(50);
    assert!(!intake.has_capacity());
    assert_eq!((intake.leave(50), intake.has_capacity()), (Released::Again, true));
    intake.enter(1);
    assert_eq!((intake.leave(99), intake.leave(1)), (Released::Again, Released::AsBefore));
    assert_eq!(intake.held(), (0, 0));
}

fn limits() -> IntakeLimits {
    IntakeLimits {
        requests_max: 20,
        bytes_max: 10_000,
        unawaited_requests_max: 4,
        unawaited_bytes_max: 400,
        reserved_requests: 2,
        reserved_bytes: 100,
        answer_bytes_max: 1000,
        late_answer_bytes_max: 2000,
    }
}

/// A request begins whose payload arrives at once.
fn enter(intake: &mut FairIntake, id: QuotaId, payload_bytes: u64) {
    let counted = intake.enter(id, payload_bytes);
    intake.arrived(payload_bytes, counted, payload_bytes);
}

fn leave(intake: &mut FairIntake, id: QuotaId, payload_bytes: u64) -> Released {
    intake.leave(id, payload_bytes, payload_bytes)
}

const NOTHING: InFlight = InFlight { awaited: Load { requests: 0, bytes: 0 }, is_receiving: false };

#[test]
fn a_caller_with_its_quota_of_requests_that_it_does_not_wait_for_is_held_up_alone() {
    let mut intake = FairIntake::new(limits());
    let (one, two) = (intake.open(), intake.open());
    (0..4).for_each(|_| enter(&mut intake, one, 1));
    assert!(!intake.may_read(one, NOTHING) && intake.may_read(two, NOTHING));
    // Those that its caller waits for do not count.
    assert!(intake.may_read(one, InFlight { awaited: Load { requests: 1, bytes: 1 }, ..NOTHING }));
    assert!(!intake.may_read(one, InFlight { is_receiving: true, ..NOTHING }));
    assert!(!intake.may_read(one, NOTHING));
    assert!(!intake.take_capacity());
    assert_eq!(
        (leave(&mut intake, one, 1), leave(&mut intake, one, 1)),
        (Released::AsBefore, Released::AsBefore)
    );
    assert_eq!(
        (leave(&mut intake, one, 1), intake.take_capacity(), intake.take_capacity()),
        (Released::Again, true, false)
    );
    assert!(intake.may_read(one, NOTHING));
    // The same for bytes.
    enter(&mut intake, one, 399);
    assert!(!intake.may_read(one, NOTHING));
    assert_eq!(
        (leave(&mut intake, one, 1), leave(&mut intake, one, 399)),
        (Released::AsBefore, Released::Again)
    );
}

#[test]
fn a_caller_with_little_there_is_read_when_others_have_filled_the_worker() {
    let mut intake = FairIntake::new(limits());
    let many: Vec<QuotaId> = (0..7).map(|_| intake.open()).collect();
    many.iter().for_each(|&id| (0..3).for_each(|_| enter(&mut intake, id, 0)));
    let newcomer = intake.open();
    assert!(!intake.may_read(many[0], NOTHING) && intake.may_read(newcomer, NOTHING));
    enter(&mut intake, newcomer, 100);
    assert!(!intake.may_read(newcomer, NOTHING));
    // It has little again, though the others have as much as before.
    assert_eq!(leave(&mut intake, newcomer, 100), Released::Again);
    assert!(intake.may_read(newcomer, NOTHING));
    assert_eq!(leave(&mut intake, many[1], 0), Released::AsBefore);
    assert_eq!(leave(&mut intake, many[1], 0), Released::Again);
    assert!(intake.may_read(many[0], NOTHING));
    assert_eq!(intake.held(), (19, 0));
}

/// The payload itself fills the worker: only its rest frees capacity.
#[test]
fn a_caller_whose_payload_is_under_way_is_read_on_below_its_quota_though_the_worker_is_full() {
    let mut intake = FairIntake::new(limits());
    let one = intake.open();
    (0..4).for_each(|_| enter(&mut intake, one, 1));
    enter(&mut intake, one, 10_000);
    let in_flight = InFlight { awaited: Load { requests: 1, bytes: 10_000 }, is_receiving: true };
    assert!(!intake.may_read(one, in_flight), "it has its quota");
    assert_eq!(
        [(); 3].map(|()| leave(&mut intake, one, 1)),
        [Released::AsBefore, Released::AsBefore, Released::Again]
    );
    assert!(!intake.may_read(one, InFlight { is_receiving: false, ..in_flight }), "the worker is full");
    assert!(intake.may_read(one, in_flight));
}

#[test]
fn a_quota_is_used_again_when_its_connection_ended_and_its_last_request_is_done_with() {
    let mut intake = FairIntake::new(limits());
    let (one, two) = (intake.open(), intake.open());
    assert_eq!((one.index(), two.index()), (1, 2));
    enter(&mut intake, one, 7);
    intake.close(one);
    intake.close(one);
    let three = intake.open();
    assert_eq!((three.index(), intake.held()), (3, (1, 7)));
    leave(&mut intake, one, 7);
    assert_eq!((intake.open(), intake.held()), (one, (0, 0)));
    intake.close(two);
    assert_eq!(intake.open(), two);
}

#[test]
fn unread_answers_hold_back_only_those_who_have_some() {
    let mut intake = FairIntake::new(limits());
    assert!(intake.begins(500) && intake.keeps_late_answer(2000) && !intake.keeps_late_answer(2001));
    intake.count_unread(0, 700);
    intake.count_unread(0, 300);
    assert!(!intake.begins(1) && intake.begins(0));
    assert!(intake.keeps_late_answer(1000) && !intake.keeps_late_answer(1001));
    intake.count_unread(700, 699);
    assert!(intake.begins(1));
}

#[test]
fn what_is_announced_and_does_not_come_holds_up_no_others() {
    let mut intake = FairIntake::new(limits());
    let announcing: Vec<QuotaId> = (0..2).map(|_| intake.open()).collect();
    let other = intake.open();
    let counted: Vec<u64> = announcing.iter().map(|&id| intake.enter(id, 1 << 40)).collect();
    assert_eq!((&counted[..], intake.held()), (&[100, 100][..], (2, 200)));
    // It holds more than the reserve.
    enter(&mut intake, other, 300);
    let awaited = Load { requests: 1, bytes: 300 };
    assert!(intake.may_read(other, InFlight { awaited, ..NOTHING }));
    // What arrives counts.
    let now = intake.arrived(1 << 40, counted[0], 9500);
    assert_eq!((now, intake.held()), (9600, (3, 10_000)));
    assert!(!intake.may_read(other, InFlight { awaited, ..NOTHING }));
    assert_eq!(intake.leave(announcing[0], 1 << 40, now), Released::Again);
    assert_eq!(intake.leave(announcing[1], 1 << 40, counted[1]), Released::AsBefore);
    assert_eq!((leave(&mut intake, other, 300), intake.held()), (Released::Again, (0, 0)));
    assert_eq!(intake.enter(other, 50), 50, "never more than was announced");
}

#[test]
fn beyond_twice_the_limit_connections_above_the_reserve_are_refused() {
    let mut intake = FairIntake::new(limits());
    let (one, two, small) = (intake.open(), intake.open(), intake.open());
    let counted = [one, two].map(|id| intake.enter(id, 1 << 40));
    let of_one = intake.arrived(1 << 40, counted[0], 9_900);
    let of_two = intake.arrived(1 << 40, counted[1], 9_900);
    assert_eq!((intake.held().1, intake.is_beyond(one)), (20_000, false));
    enter(&mut intake, small, 100);
    assert!(intake.is_beyond(one) && intake.is_beyond(two) && !intake.is_beyond(small));
    enter(&mut intake, small, 1);
    assert!(intake.is_beyond(small), "its requests count together");
    intake.leave(two, 1 << 40, of_two);
    assert!(!intake.is_beyond(one) && !intake.is_beyond(small));
    intake.leave(one, 1 << 40, of_one);
}
