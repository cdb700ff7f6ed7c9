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
    intake.leave(id, payload_bytes, payload_bytes, false)
}

const NOTHING: InFlight =
    InFlight { awaited: Load { requests: 0, bytes: 0 }, incomplete: 0, is_exempt: false };

fn may_read(intake: &mut FairIntake, id: QuotaId, in_flight: InFlight) -> bool {
    intake.may_read(id, in_flight) != MayRead::No
}

#[test]
fn a_caller_with_its_quota_of_requests_that_it_does_not_wait_for_is_held_up_alone() {
    let mut intake = FairIntake::new(limits());
    let (one, two) = (intake.open(), intake.open());
    (0..4).for_each(|_| enter(&mut intake, one, 1));
    assert!(!may_read(&mut intake, one, NOTHING) && may_read(&mut intake, two, NOTHING));
    // Those that its caller waits for do not count.
    assert!(may_read(&mut intake, one, InFlight { awaited: Load { requests: 1, bytes: 1 }, ..NOTHING }));
    assert!(!may_read(&mut intake, one, InFlight { incomplete: 1, ..NOTHING }));
    assert!(!may_read(&mut intake, one, NOTHING));
    assert!(!intake.take_capacity());
    assert_eq!(
        (leave(&mut intake, one, 1), leave(&mut intake, one, 1)),
        (Released::AsBefore, Released::AsBefore)
    );
    assert_eq!(
        (leave(&mut intake, one, 1), intake.take_capacity(), intake.take_capacity()),
        (Released::Again, true, false)
    );
    assert!(may_read(&mut intake, one, NOTHING));
    // The same for bytes.
    enter(&mut intake, one, 399);
    assert!(!may_read(&mut intake, one, NOTHING));
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
    assert!(!may_read(&mut intake, many[0], NOTHING) && may_read(&mut intake, newcomer, NOTHING));
    enter(&mut intake, newcomer, 100);
    assert!(!may_read(&mut intake, newcomer, NOTHING));
    // It has little again, though the others have as much as before.
    assert_eq!(leave(&mut intake, newcomer, 100), Released::Again);
    assert!(may_read(&mut intake, newcomer, NOTHING));
    assert_eq!(leave(&mut intake, many[1], 0), Released::AsBefore);
    assert_eq!(leave(&mut intake, many[1], 0), Released::Again);
    assert!(may_read(&mut intake, many[0], NOTHING));
    assert_eq!(intake.held(), (19, 0));
}

/// The payload itself fills the worker: only its rest frees capacity.
#[test]
fn a_caller_whose_payload_is_under_way_is_read_on_below_its_quota_though_the_worker_is_full() {
    let mut intake = FairIntake::new(limits());
    let one = intake.open();
    (0..4).for_each(|_| enter(&mut intake, one, 1));
    enter(&mut intake, one, 10_000);
    let in_flight =
        InFlight { awaited: Load { requests: 1, bytes: 10_000 }, incomplete: 1, is_exempt: false };
    assert!(!may_read(&mut intake, one, in_flight), "it has its quota");
    assert_eq!(
        [(); 3].map(|()| leave(&mut intake, one, 1)),
        [Released::AsBefore, Released::AsBefore, Released::Again]
    );
    assert!(!may_read(&mut intake, one, InFlight { incomplete: 0, ..in_flight }), "the worker is full");
    assert!(may_read(&mut intake, one, in_flight));
}

#[test]
fn incomplete_requests_of_one_connection_after_the_other_are_exempt_when_the_worker_is_full() {
    let mut intake = FairIntake::new(limits());
    let (one, two) = (intake.open(), intake.open());
    let awaited = Load { requests: 2, bytes: 1 << 41 };
    let in_flight = InFlight { awaited, incomplete: 1, is_exempt: false };
    let counted = [one, two].map(|id| {
        let counted = intake.enter(id, 1 << 40);
        intake.arrived(1 << 40, counted, 6_000)
    });
    assert_eq!(intake.may_read(one, in_flight), MayRead::Exempt);
    let exempt = InFlight { is_exempt: true, ..in_flight };
    assert_eq!((intake.may_read(one, exempt), intake.may_read(two, in_flight)), (MayRead::Yes, MayRead::No));
    // Other requests of that connection that end change nothing. Nor does it that its payload is complete, for which its
    // handler still holds the bytes.
    enter(&mut intake, one, 1);
    assert_eq!(leave(&mut intake, one, 1), Released::AsBefore);
    assert_eq!(intake.may_read(one, InFlight { incomplete: 0, ..in_flight }), MayRead::No);
    assert_eq!((intake.may_read(two, in_flight), intake.take_capacity()), (MayRead::No, false));
    let now = intake.arrived(1 << 40, counted[1], 20_000);
    assert_eq!(intake.leave(one, 1 << 40, counted[0], true), Released::Again);
    assert_eq!((intake.take_capacity(), intake.may_read(two, in_flight)), (true, MayRead::Exempt));
    assert_eq!(intake.leave(two, 1 << 40, now, true), Released::Again);
    assert_eq!(intake.held(), (0, 0));
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
    assert!(may_read(&mut intake, other, InFlight { awaited, ..NOTHING }));
    // What arrives counts.
    let now = intake.arrived(1 << 40, counted[0], 9500);
    assert_eq!((now, intake.held()), (9600, (3, 10_000)));
    assert!(!may_read(&mut intake, other, InFlight { awaited, ..NOTHING }));
    assert_eq!(intake.leave(announcing[0], 1 << 40, now, false), Released::Again);
    assert_eq!(intake.leave(announcing[1], 1 << 40, counted[1], false), Released::AsBefore);
    assert_eq!((leave(&mut intake, other, 300), intake.held()), (Released::Again, (0, 0)));
    assert_eq!(intake.enter(other, 50), 50, "never more than was announced");
}
