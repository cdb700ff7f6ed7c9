//! Verification of deaths and of replaced members.

use super::*;

/// One worker announces that a member was removed, and another one asks that member before it has read the store.
#[test]
fn a_member_that_checks_its_removal_responds_when_it_has() {
    for (listed, is_removed) in [("a-0,b-1,", false), ("b-1,", true), ("", false)] {
        let mut world = World::new(9, Signing::None);
        for name in ["a", "b"] {
            world.spawn(name, None);
            world.run_for(2000);
        }
        world.set(keys::ALL_WORKERS.into(), listed.as_bytes().into());
        let (now, agent) = (world.now, &mut world.nodes[0].agent);
        let change = Change { joined: newcomer("c", 2, "c@7"), left: [state_of("a", "a@0")].to_vec() };
        for (number, from, handler, payload) in
            [(1, "c", CHANGE_HANDLER, encode_change(&change)), (2, "b", REACH_HANDLER, Vec::new())]
        {
            let called = Called { from: worker(from), handler: handler.into(), payload: payload.into() };
            agent.handle(now, Input::Called(number, called));
        }
        let outputs: Vec<Output> = core::iter::from_fn(|| agent.poll_output()).collect();
        let message = "c (id 2) removes a (id 0), which is alive";
        let [Output::Respond(1, refusal), Output::Store(step)] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!(*refusal, Err(message.into()));
        let reply = world.execute(step.clone());
        let agent = &mut world.nodes[0].agent;
        agent.handle(now, Input::Stored(reply));
        let outputs: Vec<Output> = core::iter::from_fn(|| agent.poll_output()).collect();
        let answer = if is_removed { Output::Decline(2) } else { Output::Respond(2, Ok(b"\x01"[..].into())) };
        assert!(outputs.contains(&answer), "{listed}: {outputs:?}");
        assert_eq!(agent.life == Life::Over, is_removed, "{listed}");
    }
}

/// Without the token, no worker can replace a live member.
fn nobody_strikes_out_the_living() {
    let mut world = World::new(9, Signing::None);
    for name in ["a", "b", "c", "e"] {
        world.spawn(name, None);
        world.run_for(2000);
    }
    let before: Vec<Vec<String>> = world.nodes.iter().map(|node| node.events.clone()).collect();
    // An address at which a worker responds.
    let evil = "e@3";
    let x = WorkerInfo { name: "x".parse().expect("a name"), id: 1 };
    for (location, from, change, message) in [
        (
            0,
            worker("b"),
            Change { joined: newcomer("b", 1, evil), left: Vec::new() },
            "b (id 1) replaces b (id 1) at b@1, which is alive",
        ),
        (
            0,
            worker("b"),
            Change { joined: newcomer("b", 1, evil), left: [state_of("b", "b@1")].to_vec() },
            "b (id 1) removes b (id 1) at b@1, which is alive",
        ),
        (
            0,
            x.clone(),
            Change { joined: newcomer("x", 1, evil), left: Vec::new() },
            "x (id 1) replaces b (id 1) at b@1, which is alive",
        ),
        (
            1,
            worker("b"),
            Change { joined: newcomer("b", 1, evil), left: Vec::new() },
            "b (id 1) replaces b (id 1), which is alive",
        ),
        (
            0,
            worker("b"),
            Change { joined: None, left: [state_of("a", "a@0")].to_vec() },
            "b (id 1) removes a (id 0), which is alive",
        ),
        (
            0,
            worker("b"),
            Change { joined: None, left: [state_of("c", "")].to_vec() },
            "b (id 1) removes c (id 2) at c@2, which is alive",
        ),
        (
            0,
            worker("b"),
            Change { joined: None, left: [state_of("b", "b@1")].to_vec() },
            "b (id 1) removes b (id 1) at b@1, which is alive",
        ),
    ] {
        assert_eq!(world.reported(location, &from, &change), Err(message.into()));
    }
    for (node, before) in world.nodes.iter().zip(before) {
        assert_eq!((node.agent.life, node.agent.members().len()), (Life::Member, 4), "{}", node.name);
        assert_eq!(node.events, before);
    }
    // No worker is there any more, though that was not reported: the name is free.
    world.step(Happening::Kill(1));
    let change = Change { joined: newcomer("x", 1, evil), left: Vec::new() };
    assert_eq!(world.reported(0, &x, &change), Ok(()));
    assert_eq!(world.nodes[0].events, ["+b", "+c", "+e", "xb", "+x"]);
    assert_eq!(world.nodes[0].agent.members().by_id(1).map(|member| &*member.worker.name), Some("x"));

    let mut world = World::new(9, Signing::None);
    for name in ["a", "b"] {
        world.spawn(name, Some(2));
    }
    world.run_for(2000);
    let change = Change { joined: None, left: [state_of("b", "b@1")].to_vec() };
    assert_eq!(world.reported(0, &worker("b"), &change), Err("rdzv/change: the group is static".into()));
    assert_eq!(world.nodes[0].events, Vec::<String>::new());
}

#[test]
fn a_living_member_is_struck_out_by_nobody() {
    nobody_strikes_out_the_living();
}

#[test]
fn who_comes_back_where_it_was_is_a_member_to_all() {
    for liveness_watcher in [Signing::None, Signing::Native] {
        let mut world = World::new(5, liveness_watcher);
        world.addressing = Addressing::WhereTheyWere;
        for name in ["a", "b", "c"] {
            world.spawn(name, None);
            world.run_for(2000);
        }
        for round in 0..2 {
            let last = world.nodes.len() - 1;
            world.step(Happening::Kill(if round == 0 { 2 } else { last }));
            world.run_for(500);
            let back = world.spawn("c", None);
            world.run_for(30_000);
            assert!(
                world.nodes[back].joined_at.is_some(),
                "{liveness_watcher:?}: {:?}",
                world.nodes[back].over
            );
        }
        for (location, events) in [(0, "+b +c xc +c xc +c"), (1, "+c xc +c xc +c")] {
            assert_eq!(world.nodes[location].events.join(" "), events, "{liveness_watcher:?}");
            assert_eq!(world.nodes[location].agent.callee("c").map(|member| &*member.address), Ok("c@2"));
        }
    }
}

#[test]
fn who_leaves_calls_one_that_came_back_where_it_was() {
    let mut world = World::new(5, Signing::Native);
    for name in ["a", "c"] {
        world.spawn(name, None);
        world.run_for(2000);
    }
    world.step(Happening::Kill(1));
    world.run_for(500);
    let agent = &mut world.nodes[0].agent;
    agent.handle(world.now, Input::Leave);
    agent.handle(world.now, Input::Drained);
    assert_eq!(agent.callee("c").map(drop).map_err(|error| error.to_string().contains("dead")), Err(true));
    let change = Change { joined: newcomer("c", 2, "c@1"), left: [state_of("c", "c@1")].to_vec() };
    let called =
        Called { from: worker("c"), handler: CHANGE_HANDLER.into(), payload: encode_change(&change).into() };
    agent.handle(world.now, Input::Called(1, called));
    let calls = core::iter::from_fn(|| agent.poll_output());
    let call =
        calls.filter_map(|output| if let Output::Call(call) = output { Some(call) } else { None }).last();
    agent.handle(world.now, Input::Ended(call.expect("it tries the way").number, Ok(b"\0"[..].into())));
    assert_eq!(agent.callee("c").map(|member| &*member.address), Ok("c@1"));
}

/// A second process with a live member's name takes the token, and dies.
#[test]
fn a_member_in_whose_name_somebody_else_died_with_the_token_stays() {
    for liveness_watcher in [Signing::None, Signing::Native] {
        let mut world = World::new(6, liveness_watcher);
        for name in ["a", "b"] {
            world.spawn(name, None);
            world.run_for(2000);
        }
        let die_with_token = |world: &mut World| {
            let twin = world.spawn("b", None);
            let phase = |world: &World| match &world.nodes[twin].agent.membership {
                Membership::Changing(group) => group.phase(),
                Membership::Fixed(_) => panic!("of a dynamic group"),
            };
            while phase(world) != changing::Phase::Asking {
                world.run_for(1);
            }
            world.step(Happening::Kill(twin));
        };
        // Then one worker joins, and then one leaves.
        die_with_token(&mut world);
        let c = world.spawn("c", None);
        world.run_for(120_000);
        assert!(world.nodes[c].joined_at.is_some(), "{liveness_watcher:?}: {:?}", world.nodes[c].over);
        assert_eq!(&*world.value(keys::ALL_WORKERS), b"a-0,b-1,c-2,", "{liveness_watcher:?}");
        die_with_token(&mut world);
        world.input(c, Input::Leave);
        world.run_for(120_000);
        assert_eq!(world.nodes[c].over, Some(Ok(())), "{liveness_watcher:?}");
        assert_eq!(&*world.value(keys::ALL_WORKERS), b"a-0,b-1,", "{liveness_watcher:?}");
        assert_eq!((&*world.value("names/1"), &*world.value("addrs/b")), (&b"b"[..], &b"b@1"[..]));
        assert_eq!(world.nodes[0].events, ["+b", "+c", "-c"], "{liveness_watcher:?}");
        assert_eq!((world.nodes[1].agent.life, world.nodes[1].over.is_none()), (Life::Member, true));
    }
}

#[test]
fn what_is_told_twice_happens_once_and_who_came_back_had_died() {
    let mut world = World::new(10, Signing::None);
    for name in ["a", "b", "c"] {
        world.spawn(name, None);
        world.run_for(2000);
    }
    world.step(Happening::Kill(1));
    let new = newcomer("b", 1, "c@2");
    let first = Change { joined: new.clone(), left: [state_of("b", "b@1")].to_vec() };
    let second = Change { joined: new, left: [state_of("b", "b@1"), state_of("d-1", "d@7")].to_vec() };
    for change in [first, second] {
        assert_eq!(world.reported(0, &worker("b"), &change), Ok(()));
    }
    assert_eq!(world.nodes[0].events, ["+b", "+c", "xb", "+b"]);
}

/// A newcomer withdraws before the call to it has ended.
fn who_takes_itself_back_is_no_ghost() {
    let mut world = World::new(11, Signing::None);
    world.spawn("a", None);
    world.run_for(1000);
    let (now, agent) = (world.now, &mut world.nodes[0].agent);
    let reported = |joined, left| {
        let payload = encode_change(&Change { joined, left }).into();
        Called { from: worker("b"), handler: CHANGE_HANDLER.into(), payload }
    };
    agent.handle(now, Input::Called(1, reported(newcomer("b", 1, "b@1"), Vec::new())));
    let Some(Output::Call(call)) = agent.poll_output() else { panic!("it tries the way") };
    agent.handle(now, Input::Called(2, reported(None, [state_of("b", "b@1")].to_vec())));
    assert_eq!(agent.poll_output(), Some(Output::Respond(1, Err("the newcomer has withdrawn".into()))));
    assert_eq!(agent.poll_output(), Some(Output::Respond(2, Ok(Box::default()))));
    agent.handle(now, Input::Ended(call.number, Ok(b"\0"[..].into())));
    assert_eq!((agent.poll_output(), agent.members().len()), (None, 1));
}

#[test]
fn a_newcomer_that_takes_itself_back_is_not_taken_in() {
    who_takes_itself_back_is_no_ghost();
}

#[test]
fn whoever_cannot_be_called_is_asked_once_more_and_is_dead_if_nobody_is_there() {
    for size in [None, Some(3)] {
        let mut world = World::new(12, Signing::None);
        for name in ["a", "b", "c"] {
            world.spawn(name, size);
        }
        world.run_for(5000);
        let before = world.nodes[0].events.len();
        let location = |world: &World, at: usize| world.nodes[at].agent.me.location();
        let (b, c) = (location(&world, 1), location(&world, 2));
        // A broken connection is no proof, and an address without a member concerns none.
        for location in [b, state_of("b", "elsewhere"), location(&world, 0)] {
            world.input(0, Input::Lost(location));
            world.run_for(100);
        }
        assert_eq!(world.nodes[0].events[before..], Vec::<String>::new());
        world.step(Happening::Kill(2));
        world.run_for(100);
        assert_eq!(world.nodes[0].events[before..], Vec::<String>::new());
        for _ in 0..2 {
            world.input(0, Input::Lost(c.clone()));
        }
        world.run_for(100);
        assert_eq!(world.nodes[0].events[before..], ["xc"]);
        let error = world.nodes[0].agent.callee("c").expect_err("dead").to_string();
        assert_eq!(error, "c (id 2) is dead: no worker is at its address");
        world.input(0, Input::Leave);
        world.run_for(100);
        if size.is_some() {
            let message = "c (id 2) died while the group was ending: no worker is at its address";
            assert_eq!(world.error(0), message, "it does not wait for the dead");
        }
    }
}

#[test]
fn a_sign_that_vanished_unseen_tells_of_a_death() {
    let mut world = World::new(13, Signing::Native);
    for name in ["a", "b", "c"] {
        world.spawn(name, None);
        world.run_for(2000);
    }
    let there: Vec<(Box<str>, Box<[u8]>)> = [("a/a@0", b"here:0"), ("c/c@2", b"here:2")]
        .map(|(key, value)| (key.into(), value[..].into()))
        .into();
    world.input(0, Input::LivenessKeys(there));
    assert_eq!(world.nodes[0].events, ["+b", "+c", "xb"]);
}

#[test]
fn whose_sign_vanished_unseen_while_a_static_group_ends_has_ended() {
    let mut world = World::new(13, Signing::Native);
    for name in ["a", "b"] {
        world.spawn(name, Some(2));
    }
    world.run_for(2000);
    world.input(0, Input::Leave);
    world.run_for(100);
    assert_eq!(world.nodes[0].agent.life, Life::Leaving);
    // The mark was lost, and the end is reported twice: with all keys, and by itself.
    world.input(0, Input::LivenessKeys([("a/a@0".into(), b"here:0"[..].into())].into()));
    world.input(0, Input::LivenessKey("b/b@1".into(), None));
    assert_eq!(world.nodes[0].agent.life, Life::Leaving, "{:?}", world.nodes[0].over);
    world.input(1, Input::Leave);
    world.run_for(2000);
    assert_eq!((&world.nodes[0].over, &world.nodes[1].over), (&Some(Ok(())), &Some(Ok(()))));
    assert_eq!(world.nodes[0].events, Vec::<String>::new());
}

#[test]
fn a_death_that_is_told_of_before_its_worker_is_known_counts() {
    let mut world = World::new(8, Signing::None);
    for name in ["a", "b"] {
        world.spawn(name, Some(2));
    }
    // The key of the other worker is deleted while this one is still joining.
    world.input(0, Input::LivenessKey("b/b@1".into(), None));
    world.run_for(2000);
    let message = "b (id 1) died while the group was starting: its session with the store's server ended";
    assert_eq!(world.error(0), message);
}

#[test]
fn who_sees_no_signs_any_more_hears_of_it_once_and_goes_on() {
    let mut world = World::new(9, Signing::Native);
    for name in ["a", "b", "c"] {
        world.spawn(name, Some(3));
    }
    // One worker loses the watch while joining, another one as a member.
    world.input(0, Input::LivenessLost("early".into()));
    world.run_for(2000);
    for _ in 0..2 {
        world.input(1, Input::LivenessLost("late".into()));
    }
    world.run_for(10);
    let events = |world: &World| world.nodes.iter().map(|node| node.events.join(" ")).collect::<Vec<_>>();
    assert_eq!(events(&world), ["blind: early", "blind: late", ""]);
    for location in 0..3 {
        assert_eq!(world.nodes[location].agent.callee("b").map(|member| &*member.worker.name), Ok("b"));
        world.input(location, Input::Leave);
    }
    world.run_for(2000);
    for node in &world.nodes {
        assert_eq!(node.over, Some(Ok(())), "{}", node.name);
    }
    world.input(2, Input::LivenessLost("too late".into()));
    assert_eq!(events(&world)[2], "");
}
