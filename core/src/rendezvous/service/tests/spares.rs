//! Nodes that ask to be spares: when they get a slot, and that they do not interrupt live rounds.

use super::*;
use alloc::collections::BTreeSet;

#[test]
fn a_spare_by_choice_interrupts_no_round_and_fills_the_gap() {
    let mut world = World::new(settings(2, 4));
    assert_eq!(world.standby("s"), "s stands by after 0");
    world.join_all("a b c");
    assert_eq!(
        world.join("d"),
        "d seated; open 0; a is 0/4 in 0; b is 1/4 in 0; c is 2/4 in 0; d is 3/4 in 0"
    );
    world.die("c");
    assert_eq!(world.status(), "Complete 0 0/0/3/0/1");
    world.join("a");
    world.join("b");
    assert_eq!(
        world.join("d"),
        "d seated; s seated; open 1; a is 0/4 in 1; b is 1/4 in 1; s is 2/4 in 1; d is 3/4 in 1"
    );
}

#[test]
fn spares_make_the_minimum_when_no_other_node_joins() {
    let mut world = World::new(settings(2, 2));
    world.standby("s");
    assert_eq!(world.pass(secs(60)), "");
    world.join("a");
    assert_eq!(world.pass(secs(30)), "s seated; open 0; a is 0/2 in 0; s is 1/2 in 0");
    // Without a spare in it, although the minimum was reached with one.
    let mut world = World::new(settings(2, 2));
    world.standby("s");
    assert_eq!(world.join_all("a b"), "b seated; open 0; a is 0/2 in 0; b is 1/2 in 0");
}

#[test]
fn a_spare_takes_the_place_of_a_missing_node_only() {
    let mut world = World::new(settings(2, 4));
    world.standby("s");
    world.join_all("a b");
    // There is room for it, but the round is complete without it.
    assert_eq!(world.pass(secs(30)), "open 0; a is 0/2 in 0; b is 1/2 in 0");
    assert_eq!(world.status(), "Complete 0 0/0/2/0/1");
    // The round does not grow either when its nodes form it again.
    world.join("a");
    assert!(world.join("b").ends_with("open 1; a is 0/2 in 1; b is 1/2 in 1"));
    assert!(world.die("b").ends_with("fence 1; a is out of 1: 1 of at least 2 nodes are left in it"));
    assert_eq!(world.join("a"), "a seated; s seated; delete 0; open 2; a is 0/2 in 2; s is 1/2 in 2");
}

#[test]
fn a_spare_restores_the_size_of_a_round_that_may_shrink() {
    let mut world = World::new(RunSettings { minimum_to_continue: 1, ..settings(1, 4) });
    world.join_all("a b c");
    assert!(world.pass(secs(30)).contains("open 0"));
    world.standby("s");
    world.standby("t");
    assert_eq!(world.die("c").matches("gets").count(), 2);
    world.join("a");
    let formed = "b seated; s seated; fence 0; open 1; a is 0/3 in 1; b is 1/3 in 1; s is 2/3 in 1";
    assert_eq!(notified_of(&world.join("b")), notified_of(formed));
    assert_eq!(world.status(), "Complete 1 0/0/3/0/1");
}

/// Splits the outputs of one update, in which the order is arbitrary.
fn notified_of(lines: &str) -> BTreeSet<&str> {
    lines.split("; ").collect()
}

#[test]
fn a_spare_neither_begins_a_run_without_last_call_nor_shortens_the_last_call() {
    let mut world = World::new(RunSettings { last_call: LastCall::None, ..settings(2, 2) });
    world.standby("s");
    assert_eq!(world.join("a"), "a seated");
    assert_eq!(world.pass(secs(599)), "");
    assert_eq!(world.join("b"), "b seated; open 0; a is 0/2 in 0; b is 1/2 in 0");
    // A spare completes the round before a join times out.
    let mut world = World::new(RunSettings { last_call: LastCall::None, ..settings(2, 2) });
    world.standby("s");
    world.join("a");
    assert_eq!(world.pass(secs(600)), "s seated; open 0; a is 0/2 in 0; s is 1/2 in 0");

    let mut world = World::new(settings(2, 3));
    world.standby("s");
    world.join("a");
    assert_eq!(world.pass(secs(29)), "");
    // The last call is that of the two members, as it would be without the spare.
    assert_eq!(world.join("b"), "b seated");
    assert_eq!(world.pass(secs(29)), "");
    assert_eq!(world.pass(secs(1)), "open 0; a is 0/2 in 0; b is 1/2 in 0");
}

#[test]
fn a_node_that_found_no_slot_is_no_spare() {
    let mut world = World::new(RunSettings { minimum_to_continue: 1, ..settings(1, 2) });
    world.join_all("a b");
    world.standby("s");
    assert_eq!(world.join("c"), "c stands by after 1");
    world.die("b");
    assert!(world.join("a").ends_with("open 1; a is 0/2 in 1; c is 1/2 in 1"));
}

#[test]
fn a_spare_may_leave_or_die_without_events() {
    let mut world = World::new(settings(2, 2));
    world.join_all("a b c d");
    assert_eq!(world.leave("c"), "");
    assert_eq!(world.die("d"), "");
    assert_eq!(world.status(), "Complete 0 0/0/2/0/0");
}

/// A round that reaches the maximum consists of its members. A spare that leaves in the meantime does not delay the
/// round, and no node is notified of it. The same holds for a node that found no slot.
#[test]
fn the_maximum_is_reached_while_a_spare_leaves() {
    for goes in [World::leave, World::die] {
        let mut world = World::new(settings(3, 3));
        assert_eq!(world.standby("s"), "s stands by after 0");
        world.join_all("a b");
        // With the spare there are enough nodes, and the last call runs.
        assert_eq!(world.status(), "LastCall 0 2/0/0/0/1");
        assert_eq!(goes(&mut world, "s"), "");
        assert_eq!(world.status(), "Gathering 0 2/0/0/0/0");
        assert_eq!(world.join("c"), "c seated; open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
        assert_eq!(world.join("d"), "d stands by after 0");
        assert_eq!(goes(&mut world, "d"), "");
        assert_eq!(world.status(), "Complete 0 0/0/3/0/0");
        assert_eq!((world.pass(secs(600)).as_str(), world.service.poll_timeout()), ("", None));

        // The other way round: the maximum first, at the same moment.
        let mut world = World::new(settings(2, 3));
        world.standby("s");
        world.join_all("a b");
        assert_eq!(world.join("c"), "c seated; open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
        assert_eq!(goes(&mut world, "s"), "");
        assert_eq!(world.status(), "Complete 0 0/0/3/0/0");
    }
}

#[test]
fn what_becomes_of_a_spare_is_no_news_of_a_later_round() {
    let mut world = World::new(settings(1, 2));
    world.join_all("a b");
    world.standby("b");
    world.join("c");
    assert!(world.join("a").ends_with("open 1; a is 0/2 in 1; c is 1/2 in 1"));
    assert_eq!(world.die("b"), "");
    let members = &world.service.last_round(RUN).expect("a round").members;
    assert!(members.iter().all(|member| member.member_state == MemberState::Present), "{members:?}");
}
