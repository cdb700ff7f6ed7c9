//! Lives from a seed: workers join, leave, die and rejoin, and what each then knows is checked.

use super::*;

/// Checks for events that a graceful end must not have, and that all are notified of a death.
fn check_events(world: &World) {
    for node in &world.nodes {
        for event in node.events.iter().filter(|event| event.starts_with('x')) {
            let has_died = world.nodes.iter().any(|other| event[1..] == *other.name && other.was_killed);
            assert!(has_died, "{} heard {event} of one that left", node.name);
        }
        for (_, ended) in &node.ended_calls {
            let has_died = |other: &Node| {
                other.was_killed && ended.strip_prefix(other.name).is_some_and(|why| why.starts_with(": "))
            };
            assert!(world.nodes.iter().any(has_died), "{} ended calls to one that left: {ended}", node.name);
        }
    }
}

/// Returns the members that follow from a worker's events since it joined. Only an absent worker may join, and only a
/// present one may leave or die.
fn known_by_events(node: &Node) -> Vec<&str> {
    let mut known: Vec<&str> = node.met.iter().map(|name| &**name).collect();
    for event in &node.events {
        let (what, name) = event.split_at(1);
        match (what, known.iter().position(|other| *other == name)) {
            ("+", None) => known.push(name),
            ("-" | "x", Some(location)) => drop(known.remove(location)),
            _ => panic!("{} knew {:?} and was told {:?}", node.name, node.met, node.events),
        }
    }
    known.sort_unstable();
    known
}

/// Prints the seed when a check fails.
struct Culprit(u64, Signing);

impl Drop for Culprit {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("seed {}, signs: {:?}", self.0, self.1);
        }
    }
}

/// Simulates workers that join, leave, die and rejoin.
fn live(seed: u64, has_signs: Signing) -> (usize, usize) {
    let mut world = World::new(seed, has_signs);
    if seed % 2 == 1 {
        world.addressing = Addressing::WhereTheyWere;
    }
    for name in NAMES {
        for _ in 0..5 {
            let millis = world.rng.below(40_000);
            let at = world.now + Duration::from_millis(millis);
            world.at(at, Happening::Spawn(name, None));
        }
    }
    let mut deaths = 0;
    for _ in 0..120 {
        let millis = 20 + world.rng.below(700);
        world.run_for(millis);
        let living = world.living();
        let Ok(bound) = u64::try_from(living.len()) else { continue };
        let Some(&location) = living.get(usize::try_from(world.rng.below(bound.max(1))).expect("few")) else {
            continue;
        };
        match world.rng.below(5) {
            0 => {
                deaths += 1;
                world.step(Happening::Kill(location));
            }
            1 if world.nodes[location].agent.life == Life::Member => world.input(location, Input::Leave),
            2 if world.nodes[location].agent.life == Life::Joining && world.rng.below(3) == 0 => {
                world.input(location, Input::Cancel);
            }
            _ => {}
        }
    }
    world.run_for(150_000);
    // A worker that joins finds the dead.
    for name in NAMES {
        world.step(Happening::Spawn(name, None));
    }
    world.run_for(150_000);
    let living = world.living();
    assert_eq!(living.len(), NAMES.len(), "all are there in the end");
    for &location in &living {
        let node = &world.nodes[location];
        assert_eq!(node.agent.life, Life::Member, "{}", node.name);
        assert!(node.agent.deaths.is_empty(), "{}: {:?}", node.name, node.agent.deaths);
        for &other in &living {
            let member = node.agent.callee(world.nodes[other].name).expect("it can be called");
            assert_eq!(member.address, world.nodes[other].address, "{} knows another one", node.name);
        }
        assert_eq!(known_by_events(node), NAMES, "{}: {:?}", node.name, node.events);
    }
    for node in &world.nodes {
        known_by_events(node);
    }
    for node in world.nodes.iter().filter(|node| node.over.is_some()) {
        let is_fine = match node.over.as_ref().expect("it is over") {
            Ok(()) | Err(MembershipError::Cancelled) => true,
            // Its notification crossed the end of a worker that had agreed.
            Err(error) => panic!("{}: {error}", node.name),
        };
        assert!(is_fine);
    }
    assert!(world.open.is_empty(), "each call was answered");
    check_events(&world);
    (world.nodes.iter().filter(|node| node.joined_at.is_some()).count(), deaths)
}

#[test]
fn workers_come_go_and_die_and_everybody_knows_who_is_there() {
    let (mut joins, mut deaths) = (0, 0);
    for seed in 0..60 {
        for liveness_watcher in [Signing::None, Signing::Native] {
            let _culprit = Culprit(seed, liveness_watcher);
            let reported = live(seed, liveness_watcher);
            (joins, deaths) = (joins + reported.0, deaths + reported.1);
        }
    }
    // What never happened was not tested.
    assert!(joins > 1000 && deaths > 600, "{joins} {deaths}");
}
