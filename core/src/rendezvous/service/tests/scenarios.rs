//! Behaviour that users see, one behaviour per test.

use super::*;

fn is_closed(world: &World, run_id: &str) -> bool {
    world.service.run(run_id).is_some_and(|run| run.phase.is_closed())
}

#[test]
fn the_maximum_completes_at_once() {
    let mut world = World::new(settings(2, 3));
    assert_eq!(world.join("b"), "b seated");
    assert_eq!(world.join("a"), "a seated");
    assert_eq!(world.join("c"), "c seated; open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
    assert_eq!(world.service.poll_timeout(), None);
}

#[test]
fn a_round_has_a_number_above_those_that_its_nodes_were_in() {
    let mut world = World::new(settings(2, 2));
    let from = |world: &World, node: &str, round_min| Join { round_min, ..world.request(node) };
    // Two nodes that were in rounds 6 and 3 at an earlier server.
    let join = from(&world, "a", 7);
    world.join_as("a", join);
    let join = from(&world, "b", 4);
    assert_eq!(world.join_as("b", join), "b seated; open 7; a is 0/2 in 7; b is 1/2 in 7");
    assert_eq!(world.service.status(RUN).map(|status| status.round), Some(7));
    // A node that was in a later round joins while this one is live; the live round keeps its number.
    world.die("b");
    assert_eq!(world.service.last_round(RUN).map(|last| last.round), Some(7));
    let join = from(&world, "c", 20);
    world.join_as("c", join);
    assert_eq!(world.join("a"), "a seated; open 20; a is 0/2 in 20; c is 1/2 in 20");
    world.die("c");
    world.join("c");
    // The keys of each round are deleted when the second round after it opens, whatever the numbers are.
    assert_eq!(world.join("a"), "a seated; delete 7; open 21; a is 0/2 in 21; c is 1/2 in 21");
    // An impossibly high number is reduced, so that numbers remain for all further rounds.
    world.die("c");
    let join = from(&world, "d", u64::MAX);
    world.join_as("d", join);
    let formed = world.join("a");
    assert!(formed.ends_with("a is 0/2 in 9007199254740992; d is 1/2 in 9007199254740992"), "{formed}");
    world.die("d");
    let join = from(&world, "e", ROUND_MIN_MAX + 1);
    world.join_as("e", join);
    let formed = world.join("a");
    assert!(formed.ends_with("a is 0/2 in 9007199254740993; e is 1/2 in 9007199254740993"), "{formed}");
}

#[test]
fn workers_are_numbered_over_all_nodes() {
    let mut world = World::new(settings(3, 3));
    for (node, workers) in [("a", 2), ("b", 8), ("c", 1)] {
        let join = Join { local_world_size: workers, ..world.request(node) };
        world.service.handle(world.now, Input::Join { participant: id(node), join }).expect("joins");
    }
    let mut reported = Vec::new();
    while let Some(output) = world.service.poll_output() {
        if let Output::Notify { event: Event::RoundFormed(round), .. } = output {
            assert_eq!((round.rank_zero.to_string().as_str(), round.world_size), ("a", 3));
            assert_eq!((&*round.namespace.run_id, round.namespace.round), ("j", 0));
            reported.push((round.rank, round.worker_offset, round.worker_count));
        }
    }
    assert_eq!(reported, [(0, 0, 11), (1, 2, 11), (2, 10, 11)]);
    let last = world.service.last_round(RUN).expect("a round");
    let (round, members) = (last.round, &last.members);
    let members: Vec<String> = members
        .iter()
        .map(|member| format!("{} {} {}", member.node, member.local_world_size, member.worker_offset))
        .collect();
    assert_eq!((round, members.join(", ").as_str()), (0, "a 2 0, b 8 2, c 1 10"));
}

#[test]
fn a_fixed_last_call_runs_from_the_minimum() {
    let mut world = World::new(settings(2, 4));
    world.join_all("a b");
    assert_eq!(world.pass(secs(29)), "");
    assert_eq!(world.join("c"), "c seated");
    assert_eq!(world.pass(secs(1)), "open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
}

#[test]
fn a_last_call_may_run_from_the_last_arrival() {
    let mut world =
        World::new(RunSettings { last_call: LastCall::FromLastArrival(secs(30)), ..settings(2, 4) });
    world.join_all("a b");
    world.pass(secs(29));
    world.join("c");
    assert_eq!(world.pass(secs(29)), "");
    assert_eq!(world.pass(secs(1)), "open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
}

#[test]
fn without_a_last_call_the_minimum_is_enough() {
    let mut world = World::new(RunSettings { last_call: LastCall::None, ..settings(2, 4) });
    assert_eq!(world.join_all("a b"), "b seated; open 0; a is 0/2 in 0; b is 1/2 in 0");
}

#[test]
fn a_last_call_ends_before_the_first_one_gives_up() {
    let mut world = World::new(settings(2, 4));
    let join = Join { join_timeout: secs(10), ..world.request("a") };
    world.join_as("a", join);
    world.join("b");
    assert_eq!(world.service.poll_timeout(), Some(Instant::ORIGIN + secs(10)));
    assert_eq!(world.pass(secs(10)), "open 0; a is 0/2 in 0; b is 1/2 in 0");
}

#[test]
fn a_last_call_is_taken_back_when_the_minimum_is_lost() {
    let mut world = World::new(settings(2, 4));
    world.join_all("a b");
    world.pass(secs(20));
    assert_eq!(world.die("b"), "");
    assert_eq!(world.status(), "Gathering 0 1/0/0/0/0");
    assert_eq!(world.pass(secs(20)), "");
    world.join("c");
    assert_eq!(world.pass(secs(29)), "");
    assert_eq!(world.pass(secs(1)), "open 0; a is 0/2 in 0; c is 1/2 in 0");
}

#[test]
fn a_late_arrival_does_not_overtake_the_end_of_the_last_call() {
    let mut world = World::new(settings(1, 2));
    world.join("a");
    world.now = world.now + secs(31);
    assert_eq!(world.join("b"), "open 0; a is 0/1 in 0; b seated; a gets 1 waiting");
}

#[test]
fn a_join_that_times_out_names_the_present_and_the_missing_nodes() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b c");
    world.die("b");
    assert_eq!(world.join("a"), "a seated");
    assert_eq!(
        world.pass(secs(600)),
        "a fails: round 1 was not formed: 1 of at least 3 nodes were there (a); missing of the \
         last round: b (was lost: the connection ended), c (has not rejoined)"
    );
    assert_eq!(world.status(), "Gathering 1 0/0/0/1/0");
    assert_eq!(world.leave("a"), "error: participant 97 is in no run");
}

#[test]
fn scale_up_keeps_rank_0_where_it_is() {
    let mut world = World::new(settings(1, 3));
    world.join_all("b");
    world.pass(secs(30));
    assert_eq!(world.join("a"), "a seated; b gets 1 waiting");
    assert_eq!(world.service.status(RUN).map_or(0, |status| status.counts.waiting), 1);
    // Only one node is notified, and only of the first new node.
    assert_eq!(world.join("c"), "c seated");
    assert_eq!(world.join("b"), "b seated; fence 0; open 1; b is 0/3 in 1; a is 1/3 in 1; c is 2/3 in 1");
}

#[test]
fn nodes_are_notified_when_no_node_waits_any_more() {
    let mut world = World::new(settings(1, 3));
    world.join("a");
    world.pass(secs(30));
    world.join("b");
    assert_eq!(world.leave("b"), "a gets 0 waiting");
    assert_eq!(world.join("b"), "b seated; a gets 1 waiting");
    assert_eq!(
        world.pass(secs(600)),
        "b fails: round 1 was not formed: 1 of at least 1 nodes were there (b), and round 0 was \
         still live; missing of the last round: a (has not rejoined); a gets 0 waiting"
    );
}

#[test]
fn when_rank_0_dies_the_next_survivor_is_rank_0() {
    let mut world = World::new(settings(2, 3));
    world.join_all("a b c");
    assert_eq!(
        world.die("a"),
        "b gets node a (rank 0 of round 0) was lost: the connection ended; \
         c gets node a (rank 0 of round 0) was lost: the connection ended"
    );
    // The new node's name sorts first, but it gets the free rank: rank 0 needs a node that has the job's state.
    assert_eq!(world.join("aa"), "aa seated; b gets 1 waiting; c gets 1 waiting");
    assert_eq!(world.join("c"), "c seated; fence 0; b is out of 0: 1 of at least 2 nodes are left in it");
    assert_eq!(world.join("b"), "b seated; open 1; b is 0/3 in 1; aa is 1/3 in 1; c is 2/3 in 1");
}

#[test]
fn the_last_rounds_survivors_form_the_next_at_once() {
    let mut world = World::new(RunSettings { minimum_to_continue: 1, ..settings(3, 4) });
    world.join_all("a b c");
    assert_eq!(world.pass(secs(30)), "open 0; a is 0/3 in 0; b is 1/3 in 0; c is 2/3 in 0");
    world.die("b");
    assert_eq!(world.join("c"), "c seated; a gets 1 waiting");
    assert_eq!(world.join("a"), "a seated; fence 0; open 1; a is 0/2 in 1; c is 1/2 in 1");
}

#[test]
fn without_fast_quorum_the_last_call_waits_for_the_restarted() {
    let mut world = World::new(RunSettings { fast_quorum: FastQuorum::Disabled, ..settings(2, 3) });
    world.join_all("a b c");
    world.die("c");
    world.join("a");
    assert_eq!(world.join("b"), "b seated");
    assert_eq!(world.join("c"), "c seated; open 1; a is 0/3 in 1; b is 1/3 in 1; c is 2/3 in 1");
}

#[test]
fn a_fixed_size_run_ends_its_round_with_the_first_death() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b c");
    assert_eq!(
        world.die("b"),
        "a gets node b (rank 1 of round 0) was lost: the connection ended; \
         c gets node b (rank 1 of round 0) was lost: the connection ended; \
         fence 0; a is out of 0: 2 of at least 3 nodes are left in it; \
         c is out of 0: 2 of at least 3 nodes are left in it"
    );
    world.join_all("a c");
    assert_eq!(world.join("b2"), "b2 seated; open 1; a is 0/3 in 1; b2 is 1/3 in 1; c is 2/3 in 1");
}

#[test]
fn a_node_that_comes_back_ends_a_round_that_needs_it() {
    let mut world = World::new(settings(2, 2));
    world.join_all("a b");
    assert_eq!(world.join("b"), "b seated; fence 0; a is out of 0: 1 of at least 2 nodes are left in it");
    assert_eq!(world.join("a"), "a seated; open 1; a is 0/2 in 1; b is 1/2 in 1");
}

#[test]
fn leaving_is_neither_a_loss_nor_the_end() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b c");
    assert_eq!(world.leave("a"), "");
    assert_eq!(world.leave("b"), "");
    assert!(!is_closed(&world, RUN));
    assert_eq!(world.status(), "Complete 0 0/0/1/0/0");
    assert_eq!(world.leave("c"), "fence 0");
    assert_eq!(world.join("d"), "d seated");
    assert_eq!(world.status(), "Gathering 1 1/0/0/0/0");
}

#[test]
fn leaving_while_the_round_forms_frees_the_slot() {
    let mut world = World::new(settings(2, 3));
    world.join_all("a b");
    assert_eq!(world.leave("a"), "");
    assert_eq!(world.status(), "Gathering 0 1/0/0/0/0");
    assert_eq!(world.leave("b"), "");
    assert_eq!(world.status(), "unknown");
}

#[test]
fn overflow_parks_and_gets_a_slot_when_a_node_dies() {
    let mut world = World::new(settings(2, 2));
    world.join_all("a b");
    assert_eq!(world.join("c"), "c stands by after 0");
    assert_eq!(world.join("d"), "d stands by after 1");
    assert_eq!(world.service.status(RUN).map_or(0, |status| status.counts.waiting), 0);
    // Its timeout does not run while it is a spare, and the live round is not interrupted.
    assert_eq!(world.pass(secs(6000)), "");
    assert_eq!(
        world.die("a"),
        "b gets node a (rank 0 of round 0) was lost: the connection ended; fence 0; \
         b is out of 0: 1 of at least 2 nodes are left in it; c seated"
    );
    assert_eq!(world.join("b"), "b seated; open 1; b is 0/2 in 1; c is 1/2 in 1");
}

#[test]
fn spares_never_take_the_slot_of_a_node_that_rejoins() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b c");
    world.join_all("d e f");
    assert!(world.die("c").ends_with("d seated"));
    assert_eq!(world.join("g"), "g stands by after 2");
    assert_eq!(world.join("b"), "b seated");
    assert_eq!(world.join("a"), "a seated; open 1; a is 0/3 in 1; b is 1/3 in 1; d is 2/3 in 1");
    assert_eq!(world.status(), "Complete 1 0/0/3/0/3");
}

#[test]
fn a_node_that_found_no_slot_precedes_later_nodes() {
    let mut world = World::new(settings(1, 2));
    world.join_all("a b c");
    world.die("b");
    // A free slot does not interrupt the round until a node asks for one; then the first node in the queue gets it.
    assert_eq!(world.join("d"), "c seated; d stands by after 1; a gets 1 waiting");
}

#[test]
fn a_round_may_be_left_to_stand_by() {
    let mut world = World::new(settings(1, 2));
    world.join_all("a b");
    assert_eq!(world.standby("b"), "b stands by after 0");
    assert_eq!(world.status(), "Complete 0 0/0/1/0/1");
    assert_eq!(world.join("a"), "a seated; fence 0; b seated; open 1; a is 0/2 in 1; b is 1/2 in 1");
}

#[test]
fn the_survivors_that_do_not_come_back_are_left_behind() {
    let mut world = World::new(settings(2, 3));
    world.join_all("a b c");
    world.die("b");
    world.join("a");
    assert_eq!(world.status(), "Gathering 1 1/0/0/1/0");
    world.join("d");
    assert_eq!(world.pass(secs(30)), "c left behind by 1; open 1; a is 0/2 in 1; d is 1/2 in 1");
    assert_eq!(world.join("c"), "c seated; a gets 1 waiting; d gets 1 waiting");
}

#[test]
fn no_last_call_still_waits_for_those_on_their_way_back() {
    let mut world = World::new(RunSettings { last_call: LastCall::None, ..settings(2, 5) });
    world.join_all("a b");
    world.join("c");
    world.join("d");
    assert_eq!(world.join("a"), "a seated; fence 0; b is out of 0: 1 of at least 2 nodes are left in it");
    assert_eq!(
        world.join("b"),
        "b seated; open 1; a is 0/4 in 1; b is 1/4 in 1; c is 2/4 in 1; d is 3/4 in 1"
    );
}

#[test]
fn closed_is_final_and_tells_everybody() {
    let mut world = World::new(settings(1, 2));
    world.join_all("a b c");
    world.leave("b");
    world.join("d");
    assert_eq!(world.status(), "Complete 0 0/1/1/0/1");
    assert_eq!(
        world.close("a"),
        "a gets closed; c fails: the rendezvous 'j' is closed (by node a); \
         d fails: The rendezvous 'j' is closed, terminating pending rendezvous."
    );
    assert_eq!(world.close("a"), "");
    assert_eq!(world.join("e"), "error: the rendezvous 'j' is closed (by node a)");
    assert_eq!(world.standby("e"), "error: the rendezvous 'j' is closed (by node a)");
    // The live round goes on until its last node has left it; a node that asks to rejoin is removed.
    assert_eq!(world.status(), "Draining 0 0/0/1/0/0");
    assert_eq!(world.join("a"), "fence 0; error: the rendezvous 'j' is closed (by node a)");
    assert_eq!(world.status(), "Closed 1 0/0/0/0/0");
    assert_eq!(world.join("a"), "error: the rendezvous 'j' is closed (by node a)");
    assert!(is_closed(&world, RUN));
}

#[test]
fn a_node_that_finds_the_run_closed_is_no_longer_waited_for() {
    let mut world = World::new(settings(2, 3));
    world.join_all("a b c");
    world.close("z");
    // Its workers failed, and it asked for another round. The nodes whose workers are done wait for it.
    let departed = "gets node b (rank 1 of round 0) was lost: it wanted another round, and the run is closed";
    assert_eq!(world.join("b"), format!("a {departed}; c {departed}; error: the rendezvous 'j' is closed"));
    assert_eq!(world.status(), "Draining 0 0/0/2/0/0");
    world.leave("a");
    assert_eq!(world.status(), "Draining 0 0/0/1/0/0");
}

#[test]
fn a_node_that_gives_up_on_another_round_is_no_longer_waited_for() {
    let departed = "gets node b (rank 1 of round 0) was lost: it wanted another round, and gave that up";
    let back = || {
        let mut world = World::new(settings(2, 4));
        world.join_all("a b c d");
        assert!(world.join("b").contains("a gets 1 waiting"));
        world
    };
    let reported = back().leave("b");
    assert!(reported.contains(&format!("a {departed}; c {departed}; d {departed}")), "{reported}");
    let reported = back().pass(secs(600));
    assert!(reported.contains(&format!("a {departed}; c {departed}; d {departed}")), "{reported}");
}

#[test]
fn a_run_that_ends_amid_a_restart_tells_each_node_a_few_things() {
    for (many, most) in [(100, 200), (400, 800)] {
        let mut world = World::new(settings(2, many));
        let names: Vec<String> = (0..many).map(|node| format!("n{node}")).collect();
        names.iter().for_each(|name| drop(world.join(name)));
        names.iter().take(many as usize / 2).for_each(|name| drop(world.join(name)));
        let reported = world.fail("n1", "code 1").split("; ").count();
        assert!(reported <= most, "{reported} things for {many} nodes");
    }
}

#[test]
fn the_cause_of_a_failed_job_is_reported_even_if_the_run_was_closed_before() {
    let mut world = World::new(settings(2, 2));
    world.join_all("a b");
    assert_eq!(world.close("z"), "a gets closed; b gets closed");
    assert_eq!(
        world.fail("a", "worker 0: code 1"),
        "a gets that worker 0: code 1; b gets that worker 0: code 1"
    );
    // The first message is kept.
    assert_eq!(world.fail("b", "worker 1: code 2"), "");
    assert_eq!(world.join("c"), "error: the rendezvous 'j' is closed: worker 0: code 1");
    let mut world = World::new(settings(2, 3));
    world.join("a");
    assert_eq!(
        world.fail("a", "worker 0: code 1"),
        "a fails: the rendezvous 'j' is closed (by node a): worker 0: code 1"
    );
}

#[test]
fn closing_while_the_round_forms_ends_every_join() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b");
    assert_eq!(
        world.close("x"),
        "a fails: the rendezvous 'j' is closed; b fails: the rendezvous 'j' is closed"
    );
    assert_eq!(world.status(), "Closed 0 0/0/0/0/0");
    assert_eq!(world.service.poll_timeout(), None);
    let mut world = World::new(settings(3, 3));
    assert_eq!(world.close("x"), "");
    assert_eq!(world.join("a"), "error: the rendezvous 'j' is closed");
}

#[test]
fn settings_that_differ_are_refused_with_both_names() {
    let mut world = World::new(settings(2, 4));
    world.join("a");
    world.settings = settings(2, 5);
    assert_eq!(
        world.join("b"),
        "error: node b has min:max nodes 2:5, but the run 'j' was begun by node a with 2:4"
    );
    world.leave("a");
    assert_eq!(world.join("b"), "b seated");
}

#[test]
fn a_second_process_of_the_same_name_replaces_the_first() {
    let mut world = World::new(settings(2, 3));
    world.join_all("a b c");
    let join = world.request("b");
    assert_eq!(
        world.join_as("B", join),
        "b replaced by B; \
         a gets node b (rank 1 of round 0) was lost: another one joined under its name; \
         c gets node b (rank 1 of round 0) was lost: another one joined under its name; \
         B seated; a gets 1 waiting; c gets 1 waiting"
    );
    assert_eq!(world.die("b"), "");
    world.join("c");
    assert_eq!(world.join("a"), "a seated; open 1; a is 0/3 in 1; B is 1/3 in 1; c is 2/3 in 1");
    // While the round forms, the new process inherits the slot.
    let mut world = World::new(settings(2, 2));
    world.join("a");
    let join = world.request("a");
    assert_eq!(world.join_as("A", join), "a replaced by A; A seated");
    assert_eq!(world.join("b"), "b seated; open 0; A is 0/2 in 0; b is 1/2 in 0");
    // It does so ahead of queued nodes, which joined before the new process but after the node.
    world.join_all("c d");
    world.die("b");
    let join = world.request("a");
    let reported = world.join_as("a", join);
    assert_eq!(reported, "A replaced by a; a seated; open 1; a is 0/2 in 1; c is 1/2 in 1");
}

#[test]
fn a_node_that_died_and_rejoins_has_its_last_rank() {
    let mut world = World::new(settings(3, 3));
    world.join_all("c");
    world.join_all("b a");
    world.die("a");
    world.join_all("b c");
    assert_eq!(world.join("a"), "a seated; open 1; a is 0/3 in 1; b is 1/3 in 1; c is 2/3 in 1");
}

#[test]
fn one_participant_is_one_node_of_one_run() {
    let mut world = World::new(settings(2, 3));
    world.join("a");
    assert_eq!(world.join("a"), "error: node a has asked to join the run 'j' and is not yet answered");
    let join = Join { run_id: "k".into(), ..world.request("a") };
    assert_eq!(
        world.join_as("a", join),
        "error: participant 97 is node a of the run 'j' and cannot join under another name or another run"
    );
    let join = world.request("z");
    assert!(world.join_as("a", join).starts_with("error: participant 97 is node a of the run 'j'"));
    assert_eq!(world.leave("z"), "error: participant 122 is in no run");
    assert_eq!(world.die("z"), "");
    assert_eq!(
        world.service.node_state(id("a")).map(|(run_id, index)| (&**run_id, index)),
        Some((RUN, NodeState::Joining))
    );
    assert_eq!(world.service.status("k"), None);
}

#[test]
fn runs_do_not_meet() {
    let mut world = World::new(settings(1, 1));
    world.join("a");
    let join = Join { run_id: "k".into(), ..world.request("a") };
    assert_eq!(world.join_as("z", join), "z seated; open 0; z is 0/1 in 0");
    world.close("a");
    assert!(is_closed(&world, RUN) && !is_closed(&world, "k"));
}

#[test]
fn a_host_that_fails_again_and_again_is_kept_out() {
    let cool_down = CoolDown { failures: 2, window: secs(60), pause: secs(10), pause_max: secs(60) };
    let mut world = World::new(RunSettings { cool_down: Some(cool_down), ..settings(2, 3) });
    world.join("b");
    for _ in 0..2 {
        assert_eq!(world.join("a"), "a seated");
        world.die("a");
        world.pass(secs(1));
    }
    assert_eq!(
        world.join("a"),
        "error: host a failed 2 times in a row and is kept out of the run 'j' for another 9.0 s"
    );
    world.pass(secs(9));
    assert_eq!(world.join("a"), "a seated");
    // Leaving is no failure.
    world.leave("a");
    assert_eq!(world.join("a"), "a seated");
}

#[test]
fn a_run_of_one_that_crashes_in_a_loop_cools_down_too() {
    let cool_down = CoolDown { failures: 2, window: secs(60), pause: secs(10), pause_max: secs(60) };
    let mut world = World::new(RunSettings { cool_down: Some(cool_down), ..settings(1, 1) });
    for _ in 0..2 {
        world.join("a");
        world.die("a");
    }
    assert!(world.join("a").starts_with("error: host a failed 2 times in a row"));
}

#[test]
fn a_rounds_keys_are_fenced_when_it_ends_and_deleted_two_rounds_later() {
    let mut world = World::new(settings(1, 1));
    assert_eq!(world.join("a"), "a seated; open 0; a is 0/1 in 0");
    assert_eq!(world.join("a"), "a seated; fence 0; open 1; a is 0/1 in 1");
    assert_eq!(world.join("a"), "a seated; fence 1; delete 0; open 2; a is 0/1 in 2");
    // A round's number is never used again, whichever node joins.
    assert_eq!(world.die("a"), "fence 2");
    assert_eq!(world.join("b"), "b seated; delete 1; open 3; b is 0/1 in 3");
}

#[test]
fn the_ranks_follow_the_policy_of_the_run() {
    let label = RankOrder::Label("rack".into());
    for (rank_order, expected) in [
        (RankOrder::Sticky, "n1 n2 n10"),
        (RankOrder::Host, "n1 n2 n10"),
        (RankOrder::NodeRank, "n10 n2 n1"),
        (label, "n2 n10 n1"),
    ] {
        let mut world = World::new(RunSettings { rank_order, ..settings(3, 3) });
        for (node, node_rank, rack) in [("n2", Some(1), "r2"), ("n10", Some(0), "r9"), ("n1", None, "r10")] {
            let labels = alloc::vec![(Box::from("rack"), Box::from(rack))];
            let join = Join { node_rank, labels, ..world.request(node) };
            world.join_as(node, join);
        }
        let members = &world.service.last_round(RUN).expect("a round").members;
        let names: Vec<String> = members.iter().map(|member| member.node.to_string()).collect();
        assert_eq!(names.join(" "), expected);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_kept() {
    let mut world = World::new(settings(2, 3));
    let base = world.request("a");
    let cases = [
        (Join { run_id: "".into(), ..base.clone() }, "The run id must be a non-empty string."),
        (
            Join { settings: settings(0, 3), ..base.clone() },
            "The minimum number of nodes (0) must be greater than zero.",
        ),
        (
            Join { settings: settings(3, 2), ..base.clone() },
            "The maximum number of nodes (2) must be greater than or equal to the minimum number of nodes (3).",
        ),
        (
            Join { join_timeout: Duration::ZERO, ..base.clone() },
            "The join timeout (0:00:00) must be positive.",
        ),
        (
            Join { local_world_size: 0, ..base.clone() },
            "The number of local workers of a node must be greater than zero.",
        ),
        (
            Join { node: NodeName::plain(""), ..base.clone() },
            "The name of a node must be a non-empty string.",
        ),
        (
            Join { run_id: "j.0/x".into(), ..base.clone() },
            "The run id 'j.0/x' must not contain a dot, digits and a slash in a row: its keys would be among \
             those of a round of another run.",
        ),
    ];
    for (join, expected) in cases {
        assert_eq!(world.join_as("a", join), format!("error: {expected}"));
    }
    assert_eq!(world.status(), "unknown");
}

#[test]
fn everything_has_a_limit() {
    let limits = RendezvousLimits {
        runs_max: 1,
        run_id_bytes_max: 4,
        failure_bytes_max: 4,
        nodes_per_run_max: 2,
        node_name_bytes_max: 4,
        labels_max: 1,
        label_bytes_max: 4,
        ..RendezvousLimits::default()
    };
    let mut world = World::new(settings(2, 9));
    world.service = Rendezvous::new(limits);
    let base = world.request("a");
    let label = |name: &str, value: &str| (Box::from(name), Box::from(value));
    let over = |what: &str, given: usize, limit: usize| {
        format!("error: {what}: {given} is over the limit of {limit}")
    };
    let long = Join { run_id: "jjjjj".into(), ..base.clone() };
    assert_eq!(world.join_as("a", long), over("bytes of a run id", 5, 4));
    let long = Join { node: NodeName::process("hosts", 1, 0), ..base.clone() };
    assert_eq!(world.join_as("a", long), over("bytes of a node's host", 5, 4));
    let many = Join { labels: alloc::vec![label("a", ""), label("b", "")], ..base.clone() };
    assert_eq!(world.join_as("a", many), over("labels of a node", 2, 1));
    let long = Join { labels: alloc::vec![label("ab", "cde")], ..base };
    assert_eq!(world.join_as("a", long), over("bytes of a node's labels", 5, 4));
    world.join_all("a b");
    assert_eq!(world.join("c"), over("nodes of one run", 3, 2));
    let other = Join { run_id: "k".into(), ..world.request("z") };
    assert_eq!(world.join_as("z", other), over("runs", 2, 1));
    // A replacement needs no free slot, and a refused node takes none: when a node leaves, there is a free slot.
    let join = world.request("b");
    assert_eq!(world.join_as("B", join), "b replaced by B; B seated");
    world.leave("a");
    assert_eq!(world.join("c"), "c seated");
}

#[test]
fn long_lists_of_names_are_cut_and_counted() {
    let mut world = World::new(settings(40, 40));
    for at in 0..20 {
        world.join(&format!("n{at:02}"));
    }
    let reported = world.pass(secs(600));
    let first = reported.split("; ").next().unwrap_or_default();
    assert!(first.contains("20 of at least 40 nodes were there (n00, n01"), "{first}");
    assert!(first.contains(", n15 and 4 more)"), "{first}");
}

#[test]
fn the_state_of_a_run_is_explained() {
    let mut world = World::new(settings(2, 3));
    assert!(world.service.run(RUN).is_none());
    world.join("a");
    let view = world.service.run(RUN).and_then(Run::view).expect("a run");
    let (_, reason) = decide(world.now, &view);
    assert_eq!(reason.to_string(), "1 of at least 2 nodes are there");
}

#[test]
fn ten_thousand_nodes_cost_ten_thousand_messages() {
    let nodes = 10_000_u32;
    let mut world = World::new(settings(nodes, nodes));
    let outputs = |world: &mut World| core::iter::from_fn(|| world.service.poll_output()).count();
    let join_all = |world: &mut World| {
        for node in 0..nodes {
            let join = Join { node: NodeName::process("h", node, 0), ..world.request("") };
            let participant = ParticipantId(u64::from(node));
            world.service.handle(world.now, Input::Join { participant, join }).expect("joins");
        }
    };
    join_all(&mut world);
    // One slot and one round for each node, the keys, and a log entry.
    assert_eq!(outputs(&mut world), 20_000 + 2);
    let why = Why::HostSilent;
    world.service.handle(world.now, Input::Ended { participant: ParticipantId(0), why }).expect("ends");
    // The loss and the end of the round for each node, the fence, and a log entry.
    assert_eq!(outputs(&mut world), 2 * 9_999 + 2);
    join_all(&mut world);
    assert_eq!(outputs(&mut world), 20_000 + 2);
}

#[test]
fn a_round_that_ends_in_a_closed_run_lets_everybody_go() {
    let mut world = World::new(settings(2, 2));
    world.join_all("a b");
    world.close("a");
    assert!(world.die("a").ends_with("fence 0; b is out of 0: 1 of at least 2 nodes are left in it"));
    assert_eq!(world.service.node_state(id("b")), None);
    assert_eq!(world.leave("b"), "error: participant 98 is in no run");
    assert_eq!(world.status(), "Closed 1 0/0/0/0/0");
}
