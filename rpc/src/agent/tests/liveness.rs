//! Liveness keys: members that are paused, deaths while a static group forms and ends, and workers that join one for
//! the second time.

use super::*;
use crate::membership::change::WorkerLocation;

/// Creates a world in which these workers are members.
fn group(names: &[&'static str], size: Option<u16>) -> World {
    let mut world = World::new(21, Signing::Native);
    for name in names {
        world.spawn(name, size);
        if size.is_none() {
            world.run_for(2000);
        }
    }
    world.run_for(2000);
    assert!(world.nodes.iter().all(|node| node.agent.life == Life::Member));
    world
}

/// Pauses a worker for so long that its session ends.
fn freeze(world: &mut World, location: usize) {
    world.nodes[location].is_frozen = true;
    world.end_session(location);
    world.run_for(100);
}

/// Continues a paused worker, which reads the calls in its socket.
fn thaw(world: &mut World, location: usize) {
    world.nodes[location].is_frozen = false;
    for (until, from, call) in core::mem::take(&mut world.nodes[location].held) {
        if world.now < until {
            world.send(Happening::Arrives(from, call));
        }
    }
}

fn location(world: &World, node: usize) -> WorkerLocation {
    world.nodes[node].agent.me.location()
}

#[test]
fn a_member_that_stands_still_and_lost_its_session_holds_up_no_newcomer() {
    let mut world = group(&["a", "b"], None);
    freeze(&mut world, 1);
    assert_eq!(world.nodes[0].events, ["+b", "xb"]);
    let began = world.now;
    let c = world.spawn("c", None);
    // Its name and number can be used again.
    world.run_for(3000);
    let b = world.spawn("b", None);
    world.run_for(1000);
    for newcomer in [c, b] {
        let joined = world.nodes[newcomer].joined_at.expect("a member");
        assert!(joined.since(began) < Duration::from_secs(4), "{}", world.nodes[newcomer].name);
    }
    assert_eq!(world.nodes[b].met, ["a", "b", "c"]);
    assert_eq!(world.nodes[0].events, ["+b", "xb", "+c", "+b"]);
    assert_eq!(world.nodes[0].agent.callee("b").map(Member::location), Ok(location(&world, b)));
}

/// A second process with its name took the token and died, so the member is asked, and does not respond.
#[test]
fn a_paused_member_that_was_removed_learns_of_it_when_it_continues() {
    for has_signs in [Signing::None, Signing::Native] {
        for others in [&["a", "b"][..], &["b"][..]] {
            let mut world = World::new(24, has_signs);
            for name in others {
                world.spawn(name, None);
                world.run_for(2000);
            }
            let b = others.len() - 1;
            let twin = world.spawn("b", None);
            while !world.nodes[twin]
                .agent
                .calls
                .iter()
                .any(|(_, purpose)| matches!(purpose, Purpose::Card(_)))
            {
                world.run_for(1);
            }
            world.step(Happening::Kill(twin));
            world.nodes[b].is_frozen = true;
            let c = world.spawn("c", None);
            while world.nodes[c].joined_at.is_none() {
                world.run_for(100);
            }
            assert!(world.nodes[c].agent.members().get("b").is_none());
            thaw(&mut world, b);
            world.run_for(1000);
            let by_c = "the group continues without this worker: c could not reach it at its address";
            assert_eq!(world.error(b), by_c, "{has_signs:?} {others:?}");
            assert!(world.nodes[..b].iter().all(|node| node.events == ["+b", "xb", "+c"]));
        }
    }
}

/// A worker that died with the token had notified a paused member, which reads that after its successor's notification.
#[test]
fn the_notification_of_a_dead_newcomer_does_not_replace_the_living_one() {
    let mut world = group(&["a", "b"], None);
    let before = world.nodes[1].agent.me.clone();
    world.step(Happening::Kill(1));
    world.run_for(100);
    let after = world.spawn("b", None);
    world.run_for(2000);
    assert_eq!(world.nodes[0].agent.callee("b").map(Member::location), Ok(location(&world, after)));
    let change = Change { joined: Some(before), left: Vec::new() };
    // The one cannot be called, and the other is alive: the first of the two responses decides.
    let refusal = world.reported(0, &worker("b"), &change).expect_err("it is refused");
    assert!(refusal.contains("cannot call b (id 1) at b@1") || refusal.contains("b@2, which is alive"));
    assert_eq!(world.nodes[0].agent.callee("b").map(Member::location), Ok(location(&world, after)));
}

#[test]
fn a_member_without_a_session_that_answers_stays() {
    let mut world = group(&["a", "b"], None);
    world.end_session(1);
    world.run_for(100);
    let c = world.spawn("c", None);
    let other =
        world.spawn_as("b", Member { address: "b@9".into(), ..world.nodes[1].agent.me.clone() }, None);
    world.run_for(3000);
    assert_eq!(world.nodes[c].met, ["a", "b", "c"]);
    assert_eq!(world.error(other), "RPC worker name b is not unique.");
}

#[test]
fn who_leaves_strikes_out_the_dead_and_does_not_wait_for_them() {
    let mut world = group(&["a", "b", "c"], None);
    freeze(&mut world, 1);
    world.input(0, Input::Leave);
    world.run_for(500);
    assert_eq!(world.nodes[0].over, Some(Ok(())));
    assert_eq!(world.nodes[2].events, ["xb", "-a"]);
    assert_eq!(*world.value(keys::ALL_WORKERS), *b"c-2,");
    let left: Vec<&Box<str>> =
        world.store.keys().filter(|key| key.contains("_b") || key.contains("/b")).collect();
    assert_eq!(left, Vec::<&Box<str>>::new());
}

#[test]
fn a_death_while_a_static_group_meets_is_told_to_all_who_wait() {
    let mut world = World::new(22, Signing::Native);
    let (a, b) = (world.spawn("a", Some(3)), world.spawn("b", Some(3)));
    world.run_for(1000);
    world.step(Happening::Kill(b));
    world.run_for(100);
    let message = "b (id 1) died while the group was forming: its session with the store's server ended";
    assert_eq!(world.error(a), message);
    let c = world.spawn("c", Some(3));
    world.run_for(100);
    let message = "a (id 0), which all workers must call before the group starts: no worker is there";
    assert_eq!(world.error(c), message, "nor does a worker that joins later");
}

#[test]
fn a_static_group_that_has_begun_takes_nobody_twice() {
    for is_killed in [true, false] {
        let mut world = group(&["a", "b", "c"], Some(3));
        if is_killed {
            world.step(Happening::Kill(1));
            world.run_for(100);
        }
        let again = world.spawn("b", Some(3));
        world.run_for(1000);
        assert_eq!(
            world.error(again),
            "RPC worker name b is not unique: the static group has formed with b (id 1) at b@1, and \
             cannot accept a replacement; restart all its workers with another key prefix"
        );
        let expected: &[&str] = if is_killed { &["xb"] } else { &[] };
        assert_eq!(world.nodes[0].events, expected, "the refused one is not reported dead");
        if !is_killed {
            (0..3).for_each(|location| world.input(location, Input::Leave));
            world.run_for(1000);
            assert!(world.nodes[..3].iter().all(|node| node.over == Some(Ok(()))));
        }
    }
}

#[test]
fn a_living_worker_keeps_its_name_while_a_static_group_meets_and_a_dead_one_does_not() {
    let mut world = World::new(23, Signing::Native);
    world.spawn("a", Some(2));
    world.run_for(1000);
    let other = world.spawn("a", Some(2));
    world.run_for(1000);
    let message = "RPC worker name a is not unique: a (id 0) has joined the static group already, at a@0";
    assert_eq!(world.error(other), message);
    assert_eq!(world.nodes[0].agent.life, Life::Joining);
    // It dies before any other worker has joined, and rejoins.
    world.step(Happening::Kill(0));
    world.run_for(100);
    let (again, b) = (world.spawn("a", Some(2)), world.spawn("b", Some(2)));
    world.run_for(1000);
    for location in [again, b] {
        assert_eq!(world.nodes[location].agent.life, Life::Member, "{:?}", world.nodes[location].over);
    }
}

/// b calls a, which fails because c died, before b is notified of c's death.
#[test]
fn a_worker_that_failed_for_a_death_is_not_named_as_dead_itself() {
    for is_late in [true, false] {
        let mut world = group(&["a", "b", "c"], Some(3));
        world.input(0, Input::Leave);
        world.run_for(100);
        let [a, b, c] = [0, 1, 2].map(|node| location(&world, node));
        let (now, agent) = (world.now, &mut world.nodes[1].agent);
        agent.handle(now, Input::Lost(a.clone()));
        let call = core::iter::from_fn(|| agent.poll_output()).find_map(|output| match output {
            Output::Call(call) => Some(call.number),
            _ => None,
        });
        agent.handle(now, Input::Ended(call.expect("it asks"), Err(NoAnswer::Dead)));
        agent.handle(now, Input::Leave);
        agent.handle(now, Input::Drained);
        assert_eq!(agent.life, Life::Leaving);
        let died = |agent: &mut Agent| {
            core::iter::from_fn(|| agent.poll_output()).find_map(|output| match output {
                Output::Over(Err(MembershipError::PeerDied { worker, .. })) => Some(worker),
                _ => None,
            })
        };
        if is_late {
            // It hangs, and has not failed: then it is considered dead nevertheless.
            assert_eq!(agent.poll_timeout(), Some(now + LIVENESS_GRACE));
            agent.handle(now + LIVENESS_GRACE, Input::Tick);
            assert_eq!(died(agent), Some(a.worker));
            continue;
        }
        agent.handle(now, Input::LivenessKey("c/c@2".into(), None));
        assert_eq!(died(agent), Some(c.worker));
        assert_ne!(b.worker, a.worker);
        // The value of a's key when it fails for the same reason.
        let agent = &mut world.nodes[0].agent;
        agent.handle(now, Input::LivenessKey("c/c@2".into(), None));
        assert!(core::iter::from_fn(|| agent.poll_output()).any(|output| output == Output::MarkLeaving));
    }
}

#[test]
fn who_went_by_its_own_word_did_not_die() {
    let mut world = group(&["a", "b", "c"], Some(3));
    let a = location(&world, 0);
    for value in [Some(liveness_key::GOING), None] {
        world.input(1, Input::LivenessKey("a/a@0".into(), value.map(Box::from)));
    }
    world.nodes[0].is_alive = false;
    world.input(1, Input::Lost(a));
    world.run_for(5000);
    assert_eq!(world.nodes[1].events, Vec::<String>::new());
}
