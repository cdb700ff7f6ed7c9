//! Calls of a worker that leaves, and calls of others to it.

use super::*;

/// A worker that leaves has finished its own calls, and the requests of others continue.
fn who_leaves_is_parted_with_and_calls_to_it_go_on() {
    for liveness_watcher in [Signing::None, Signing::Native] {
        let mut world = World::new(8, liveness_watcher);
        for name in ["a", "b", "c"] {
            world.spawn(name, None);
            world.run_for(2000);
        }
        world.input(1, Input::Leave);
        world.run_for(30_000);
        assert_eq!(world.nodes[1].over, Some(Ok(())));
        for location in [0, 2] {
            let node = &world.nodes[location];
            assert_eq!((node.parted.join(" ").as_str(), node.ended_calls.len()), ("b", 0), "{}", node.name);
            assert_eq!(node.events.last().map(String::as_str), Some("-b"), "{}", node.name);
            assert!(node.agent.callee("b").is_err());
        }
    }
}

#[test]
fn calls_to_who_leaves_are_not_ended() {
    who_leaves_is_parted_with_and_calls_to_it_go_on();
}

/// A worker leaves though its own calls do not end, and reports their callees.
fn who_cuts_its_calls_says_so() {
    for size in [None, Some(3)] {
        for calls in [&[][..], &["c", "b", "c"][..]] {
            let mut world = World::new(8, Signing::Native);
            for name in ["a", "b", "c"] {
                world.spawn(name, size);
            }
            world.run_for(5000);
            world.nodes[0].busy_at = calls.iter().map(|name| worker(name)).collect();
            for location in 0..3 {
                world.input(location, Input::Leave);
            }
            world.run_for(59_000);
            assert_eq!(world.nodes[0].over.is_some(), calls.is_empty(), "{size:?}: it waits for its calls");
            world.run_for(30_000);
            let over = world.nodes[0].over.clone().expect("it has left").map_err(|error| error.to_string());
            let message = "the worker has left its group, and its timeout passed before these workers responded: b \
                         (id 1), c (id 2)";
            let expected = if calls.is_empty() { Ok(()) } else { Err(message.into()) };
            assert_eq!(over, expected, "{size:?}");
            for location in [1, 2] {
                assert_eq!(world.nodes[location].over, Some(Ok(())), "{size:?}");
            }
            assert!(world.nodes.iter().all(|node| !node.events.iter().any(|event| event.starts_with('x'))));
        }
    }
}

#[test]
fn a_leave_that_cut_calls_names_whom_they_were_for() {
    who_cuts_its_calls_says_so();
    let many =
        |count: u16| Callees::of((0..count).rev().map(|id| WorkerInfo { id, ..worker("a") }).collect());
    assert_eq!(many(2).to_string(), "a (id 0), a (id 1)");
    assert_eq!((many(40).listed.len(), many(40).count), (16, 40));
    assert!(many(40).to_string().ends_with("a (id 15) and 24 more"));
}

/// It has not agreed to a newcomer, and gets no more events of it.
#[test]
fn who_ends_while_it_is_told_of_a_newcomer_is_gone_to_it() {
    let mut world = World::new(6, Signing::None);
    world.spawn("a", None);
    world.run_for(1000);
    let (now, agent) = (world.now, &mut world.nodes[0].agent);
    let change = Change { joined: newcomer("b", 1, "b@1"), left: Vec::new() };
    let called =
        Called { from: worker("b"), handler: CHANGE_HANDLER.into(), payload: encode_change(&change).into() };
    agent.handle(now, Input::Called(7, called));
    agent.handle(now, Input::Abandon);
    assert!(core::iter::from_fn(|| agent.poll_output()).any(|output| output == Output::Decline(7)));

    let refused = |why| ConnectionError::Refused { why, message: Box::default() };
    let remote = |status| CallFailure::Remote { status, message: Box::default() };
    for (why, is_dead) in [
        (CallFailure::ConnectionLost(refused(Refusal::Over)), true),
        (CallFailure::Unsent(refused(Refusal::Over)), true),
        (CallFailure::ConnectionLost(refused(Refusal::Unknown)), false),
        (CallFailure::Unsent(ConnectionError::NoGreeting(TIMEOUT)), false),
        (CallFailure::Leaving, true),
        (remote(Status::Leaving), true),
        (remote(Status::Failed), false),
    ] {
        let error = why.of(CHANGE_HANDLER, &worker("a"));
        assert_eq!(
            (no_answer(&error) == NoAnswer::Dead, indicates_death(&error)),
            (is_dead, is_dead),
            "{error}"
        );
    }
}
