//! More runs than the service keeps.

use super::*;
use crate::rng::Rng;
use alloc::collections::BTreeMap;

fn world(runs_max: usize) -> World {
    let mut world = World::new(settings(1, 1));
    world.service = Rendezvous::new(RendezvousLimits { runs_max, ..RendezvousLimits::default() });
    world
}

impl World {
    fn join_run(&mut self, run_id: &str, node: &str) -> String {
        let join = Join { run_id: run_id.into(), ..self.request(node) };
        self.join_as(node, join)
    }

    fn close_run(&mut self, run_id: &str) -> String {
        self.give(Input::Close { participant: id("z"), run_id: run_id.into() })
    }

    fn knows(&self, run_ids: &str) -> String {
        run_ids
            .split(' ')
            .filter(|run_id| self.service.status(run_id).is_some())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[test]
fn the_run_that_was_closed_first_makes_room_and_then_the_one_that_was_left_first() {
    let mut world = world(4);
    world.join_run("open1", "a");
    world.leave("a");
    world.join_run("open2", "a");
    world.leave("a");
    world.join_run("closed1", "a");
    world.close_run("closed1");
    assert_eq!(world.close_run("closed2"), "", "though it never had a node");
    // The first one was closed before, but still has a node.
    assert_eq!(world.close_run("closed3"), "forget closed2");
    assert_eq!(world.leave("a"), "fence 0");
    assert_eq!(world.join_run("new1", "b"), "forget closed3; b seated; open 0; b is 0/1 in 0");
    assert_eq!(world.join_run("new2", "c"), "delete 0; forget closed1; c seated; open 1; c is 0/1 in 1");
    // Its time without nodes is counted from the last time that it had one.
    world.join_run("open1", "a");
    world.leave("a");
    assert_eq!(world.join_run("new3", "d"), "delete 0; forget open2; d seated; open 1; d is 0/1 in 1");
    assert_eq!(
        world.join_run("new4", "e"),
        "delete 0; delete 1; forget open1; e seated; open 2; e is 0/1 in 2"
    );
    let refused = "error: runs: 5 is over the limit of 4";
    assert_eq!((world.join_run("new5", "f"), world.close_run("new5")), (refused.into(), refused.into()));
    assert_eq!(world.knows("open1 open2 closed1 closed2 new1 new2 new3 new4 new5"), "new1 new2 new3 new4");
    world.leave("c");
    assert_eq!(world.join_run("new5", "f"), "delete 1; forget new2; f seated; open 2; f is 0/1 in 2");
}

#[test]
fn closed_is_final_until_it_is_forgotten_and_numbers_are_for_ever() {
    let mut world = world(1);
    world.join_run("j", "a");
    world.leave("a");
    world.close_run("j");
    assert_eq!(world.join_run("j", "b"), "error: the rendezvous 'j' is closed");
    assert_eq!(world.close_run("k"), "delete 0; forget j");
    assert_eq!(world.join_run("j", "b"), "forget k; b seated; open 1; b is 0/1 in 1");
    // Two rounds later the keys of its first round are deleted, and none that it never had.
    assert_eq!(world.join_run("j", "b"), "b seated; fence 1; open 2; b is 0/1 in 2");
    assert_eq!(world.join_run("j", "b"), "b seated; fence 2; delete 1; open 3; b is 0/1 in 3");
}

/// Nodes join many runs and leave them again, with a limit of a few runs; a checker tracks which node is in which
/// run.
#[test]
fn no_run_with_a_node_is_forgotten_and_no_key_outlives_its_run() {
    const RUNS_MAX: usize = 4;
    let (mut forgotten, mut refused) = (0, 0);
    for seed in 0..100 {
        let (mut rng, mut world) = (Rng::new(seed), world(RUNS_MAX));
        // For each run, the rounds whose keys are kept, and the highest round number so far.
        let (mut kept, mut highest) = (BTreeMap::<String, Vec<u64>>::new(), BTreeMap::<String, u64>::new());
        let mut run_of: BTreeMap<String, String> = BTreeMap::new();
        for _ in 0..300 {
            let mut pick = |bound| usize::try_from(rng.below(bound)).unwrap_or(0);
            let (run_id, node) =
                (format!("run{}", pick(8)), String::from(["a", "b", "c", "d", "e"][pick(5)]));
            let draw = pick(100);
            let local = run_of.get(&node).cloned();
            let before = world.service.runs.len();
            let input = match (local, draw) {
                (None, 0..60) => {
                    let mut join = Join { run_id: run_id.as_str().into(), ..world.request(&node) };
                    join.settings = settings(1, 2);
                    Input::Join { participant: id(&node), join }
                }
                (Some(_), 0..60) => Input::Leave { participant: id(&node) },
                (_, 60..80) => Input::Close { participant: id("z"), run_id: run_id.as_str().into() },
                _ => Input::Ended { participant: id(&node), why: Why::HostSilent },
            };
            world.now = world.now + secs(40);
            while world.service.poll_timeout().is_some_and(|due| due <= world.now) {
                world.service.handle(world.now, Input::Tick).expect("time passes");
            }
            if let Err(error) = world.service.handle(world.now, input) {
                let busy: alloc::collections::BTreeSet<_> = run_of.values().collect();
                if let InputError::LimitExceeded { .. } = error {
                    assert_eq!((before, busy.len()), (RUNS_MAX, RUNS_MAX), "seed {seed}: {error}");
                    refused += 1;
                }
            }
            while let Some(output) = world.service.poll_output() {
                match output {
                    Output::RoundOpened(keys) => {
                        let last = highest.insert((*keys.run_id).into(), keys.round);
                        assert!(last.is_none_or(|last| last < keys.round), "seed {seed}: {keys:?} once more");
                        kept.entry((*keys.run_id).into()).or_default().push(keys.round);
                    }
                    Output::Delete(keys) => {
                        let rounds = kept.get_mut(&*keys.run_id).expect("it had rounds");
                        assert_eq!(rounds.remove(0), keys.round, "seed {seed}");
                    }
                    Output::Forgotten(run_id) => {
                        assert!(kept.remove(&*run_id).is_none_or(|rounds| rounds.is_empty()), "seed {seed}");
                        assert!(!run_of.values().any(|local| **local == *run_id), "seed {seed}: {run_id}");
                        forgotten += 1;
                    }
                    _ => {}
                }
            }
            run_of = ["a", "b", "c", "d", "e"]
                .iter()
                .filter_map(|node| {
                    let (run_id, _) = world.service.node_state(id(node))?;
                    Some((String::from(*node), String::from(&**run_id)))
                })
                .collect();
            assert!(world.service.runs.len() <= RUNS_MAX && kept.len() <= RUNS_MAX, "seed {seed}");
            let idle = world.service.runs.iter().filter(|(_, run)| run.nodes() == 0).count();
            assert_eq!(idle, world.service.idle_runs.len(), "seed {seed}");
        }
    }
    assert!(forgotten > 1000 && refused > 20, "{forgotten} forgotten, {refused} refused");
}

/// Returns a world that remembers `bytes` bytes, with a pause for a host after its first failure.
fn world_of_bytes(bytes: usize) -> World {
    let cool_down = CoolDown { failures: 1, window: secs(600), pause: secs(600), pause_max: secs(600) };
    let mut world = World::new(RunSettings { cool_down: Some(cool_down), ..settings(2, 9) });
    let limits = RendezvousLimits { remembered_bytes_max: bytes, ..RendezvousLimits::default() };
    world.service = Rendezvous::new(limits);
    world
}

#[test]
fn runs_without_nodes_are_kept_within_their_bytes() {
    let mut world = world_of_bytes(64 << 10);
    let message = "m".repeat(1024);
    for number in 0..10_000 {
        let run_id = format!("{number:0>1024}");
        let participant = id("z");
        world.give(Input::Fail {
            participant,
            run_id: run_id.as_str().into(),
            message: message.as_str().into(),
        });
        assert!(world.service.remembered_bytes <= 64 << 10);
        assert!(world.service.status(&run_id).is_some(), "the last one is remembered");
    }
    assert!((10..30).contains(&world.service.runs.len()), "{}", world.service.runs.len());
}

#[test]
fn failures_of_hosts_are_kept_within_their_bytes() {
    let mut world = world_of_bytes(1 << 10);
    world.join_all("k l");
    for number in 0..100 {
        let node = format!("h{number}");
        assert!(!world.join(&node).starts_with("error"), "{node}");
        world.die(&node);
        assert!(world.service.remembered_bytes <= 1 << 10);
        if number == 0 {
            assert!(world.join(&node).starts_with("error: host h0"));
        }
    }
    assert!(!world.join("h0").starts_with("error"), "its failure is forgotten");
    assert!(world.service.status(RUN).is_some(), "a run with nodes is not forgotten");
}

#[test]
fn what_is_no_longer_remembered_is_not_counted() {
    let mut world = world_of_bytes(64 << 10);
    world.join_run("j", "a");
    assert_eq!(world.service.remembered_bytes, 0, "its session is charged for it");
    world.leave("a");
    world.close_run("k");
    assert_ne!(world.service.remembered_bytes, 0);
    world.join_run("j", "a");
    let of_k = world.service.remembered_bytes;
    world.close_run("l");
    assert_eq!(world.service.remembered_bytes, 2 * of_k, "as long a name");
}

#[test]
fn a_run_that_has_just_been_closed_is_not_forgotten_at_once() {
    let mut world = world_of_bytes(16 << 10);
    let long = |number: u32| format!("{number:0>1000}");
    for number in 0..20 {
        world.join_run(&long(number), "a");
        world.leave("a");
    }
    world.join_run("job", "k");
    world.close_run("job");
    world.leave("k");
    assert!(world.service.remembered_bytes <= 20 << 10, "one run more at most");
    assert!(world.join_run("job", "l").starts_with("error"), "it is closed for a late node");
}

#[test]
fn a_run_remembers_a_thousand_failed_hosts_and_none_when_it_is_closed() {
    let mut world = world_of_bytes(64 << 20);
    world.join_all("k l");
    for number in 0..1100 {
        let node = format!("h{number}");
        world.join(&node);
        world.die(&node);
        world.pass(Duration::from_millis(1));
    }
    let of_hosts = world.service.remembered_bytes;
    assert!((1..80 * 200).contains(&of_hosts), "{of_hosts}");
    assert!(world.join("h1099").starts_with("error: host h1099"));
    assert!(!world.join("h75").starts_with("error"), "its failure is forgotten");
    world.close_run(RUN);
    world.leave("h75");
    world.leave("k");
    world.leave("l");
    assert!(world.service.remembered_bytes < 10_000, "{}", world.service.remembered_bytes);
}

#[test]
fn nodes_of_the_last_round_that_are_gone_are_kept_within_their_bytes() {
    let mut world = world_of_bytes(8 << 10);
    world.settings = RunSettings { minimum_to_continue: 1, ..settings(100, 100) };
    let run_ids = ["r0", "r1", "r2"];
    for run_id in run_ids {
        for number in 0..100 {
            let node = format!("n{number}");
            world.join_run(run_id, &format!("{run_id}{node}"));
        }
        assert_eq!(world.service.last_round(run_id).map(|last| last.members.len()), Some(100));
        assert!(world.service.remembered_bytes <= 8 << 10);
        for number in 1..100 {
            world.leave(&format!("{run_id}n{number}"));
            assert!(world.service.remembered_bytes <= 8 << 10);
        }
    }
    for run_id in run_ids {
        let last = world.service.last_round(run_id).expect("one node is left");
        assert_eq!(last.world_size, 100);
        assert!((1..40).contains(&last.members.len()), "{}", last.members.len());
        assert!(last.members.capacity() < 100, "{}", last.members.capacity());
        let first = &last.members[0];
        assert_eq!((first.rank, &*first.address), (0, format!("{run_id}n0").as_bytes()));
    }
}

#[test]
fn runs_without_nodes_are_forgotten_before_nodes_that_are_gone_and_those_of_the_largest_run_first() {
    let mut world = world_of_bytes(64 << 10);
    world.settings = RunSettings { minimum_to_continue: 1, ..settings(2, 30) };
    let (join, die) = (
        |world: &mut World, run_id: &str, count: u32| {
            (0..count).for_each(|number| drop(world.join_run(run_id, &format!("{run_id}{number}"))));
        },
        |world: &mut World, run_id: &str, count: u32| {
            (0..count).for_each(|number| drop(world.die(&format!("{run_id}{number}"))));
        },
    );
    let known = |world: &World, run_id| world.service.last_round(run_id).map_or(0, |last| last.members.len());
    // Closed runs fill the limit.
    (0..100).for_each(|number| drop(world.close_run(&format!("c{number}"))));
    let full = world.service.runs.len();
    assert!(full < 100);
    join(&mut world, "a", 30);
    die(&mut world, "a", 18);
    assert!(world.service.runs.len() < full);
    assert_eq!(known(&world, "a"), 30, "closed runs make room for the nodes that died");
    // Large runs forget their own before that.
    let runs = world.service.runs.len();
    die(&mut world, "a", 29);
    assert!(known(&world, "a") < 20, "{}", known(&world, "a"));
    assert_eq!(world.service.runs.len(), runs);
    // Without runs that have no nodes, a small one is spared.
    let mut world = world_of_bytes(16 << 10);
    world.settings = RunSettings { minimum_to_continue: 1, cool_down: None, ..settings(2, 30) };
    let run_ids: Vec<String> = (0..40).map(|number| format!("r{number}n")).collect();
    run_ids.iter().for_each(|run_id| join(&mut world, run_id, 30));
    die(&mut world, &run_ids[0], 1);
    run_ids[1..].iter().for_each(|run_id| die(&mut world, run_id, 4));
    assert_eq!(known(&world, &run_ids[0]), 30);
    assert!(run_ids[1..].iter().any(|run_id| known(&world, run_id) == 26));
}

#[test]
fn a_run_that_is_closed_makes_another_one_without_nodes_be_forgotten_and_no_node_that_is_gone() {
    let mut world = world_of_bytes(64 << 10);
    world.settings = RunSettings { cool_down: None, minimum_to_continue: 1, ..settings(1, 9) };
    world.join_run("live", "a");
    world.settings = RunSettings { cool_down: None, minimum_to_continue: 1, ..settings(3, 3) };
    ["b", "c", "d"].into_iter().for_each(|node| drop(world.join_run("of three", node)));
    world.die("c");
    for number in 0..100 {
        world.settings = settings(1, 1);
        world.join_run(&format!("open{number}"), "e");
        world.leave("e");
    }
    let runs = world.service.runs.len();
    assert!(runs < 100);
    // The only closed run would be the first to be forgotten, but it is the one that is being closed.
    world.close_run(&"n".repeat(1000));
    assert!(world.service.runs.len() <= runs);
    assert_eq!(world.service.last_round("of three").map(|last| last.members.len()), Some(3));
}

#[test]
fn a_run_goes_on_without_the_nodes_that_it_forgot() {
    let mut world = world_of_bytes(0);
    world.settings = RunSettings { minimum_to_continue: 2, ..settings(2, 4) };
    world.join_all("a b c d");
    world.standby("e");
    world.die("b");
    let members = &world.service.last_round(RUN).expect("a round").members;
    let ranks: Vec<_> = members.iter().map(|member| (member.rank, member.node.host())).collect();
    assert_eq!(ranks, [(0, "a"), (2, "c"), (3, "d")]);
    world.join_all("a c");
    assert_eq!(
        world.join("d"),
        "d seated; e seated; open 1; a is 0/4 in 1; e is 1/4 in 1; c is 2/4 in 1; d is 3/4 in 1",
        "a spare for the node that is forgotten"
    );
}

#[test]
fn nodes_that_are_forgotten_are_missing_without_a_name() {
    for (dead, missing) in [("c", "b (has not rejoined) and 1 more"), ("b c", "2 no longer known by name")] {
        let mut world = world_of_bytes(0);
        world.settings = settings(3, 3);
        world.join_all("a b c");
        dead.split(' ').for_each(|node| drop(world.die(node)));
        world.join("a");
        let failed = world.pass(secs(600));
        assert!(failed.ends_with(&format!("(a); missing of the last round: {missing}")), "{failed}");
    }
}

#[test]
fn a_node_that_has_died_and_is_back_is_not_missing() {
    let mut world = World::new(settings(3, 3));
    world.join_all("a b c");
    world.die("b");
    let back = world.request("b");
    world.join_as("B", back);
    let failed = world.pass(secs(600));
    assert!(
        failed.ends_with("(b); missing of the last round: a (has not rejoined), c (has not rejoined)"),
        "{failed}"
    );
}
