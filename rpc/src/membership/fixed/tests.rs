use super::*;
use crate::device_map::NodeDevices;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use core::fmt::Write;

const NOW: Instant = Instant::from_millis(5);

fn member(name: &str, id: u16) -> Member {
    let worker = WorkerInfo { name: name.parse().expect("a name"), id };
    Member { worker, address: format!("h:{name}").into(), devices: NodeDevices::default() }
}

fn group(member: Member, world_size: u16) -> FixedGroup {
    FixedGroup::new(NOW, member, world_size, DeviceKind::CUDA, Duration::from_secs(60)).expect("fits")
}

type Store = BTreeMap<String, Vec<u8>>;

/// Executes a step; `None` if it waits for a key that does not exist.
fn drive(store: &mut Store, step: &StoreStep) -> Option<Reply> {
    let read = |store: &Store, key: &str| store.get(key).cloned().unwrap_or_default();
    Some(match step {
        StoreStep::CompareSet { key, expected, desired } => {
            if read(store, key) == expected.as_bytes() {
                store.insert(key.to_string(), desired.as_bytes().to_vec());
            }
            Reply::Value(read(store, key).into())
        }
        StoreStep::Set { key, value } | StoreStep::SetForSession { key, value } => {
            store.insert(key.to_string(), value.to_vec());
            Reply::Done
        }
        StoreStep::Get { key } => Reply::Value(read(store, key).into()),
        StoreStep::Peek { keys } => Reply::Values(keys.iter().map(|key| read(store, key).into()).collect()),
        StoreStep::Delete { keys } => {
            keys.iter().for_each(|key| drop(store.remove(&**key)));
            Reply::Done
        }
        StoreStep::Forget { .. } => unreachable!("a static group has no token"),
        StoreStep::Add { key, delta } => {
            let sum = String::from_utf8(read(store, key)).expect("digits").parse().unwrap_or(0_i64) + delta;
            store.insert(key.to_string(), sum.to_string().into_bytes());
            Reply::Number(sum)
        }
        StoreStep::Wait { key, .. } => store.contains_key(&**key).then_some(Reply::Released)?,
    })
}

/// Runs all groups until there is no progress. Waits end only by the store.
fn run(groups: &mut [FixedGroup], store: &mut Store) -> Vec<Vec<Output>> {
    let mut reported: Vec<Vec<Output>> = groups.iter().map(|_| Vec::new()).collect();
    let mut steps: Vec<Option<StoreStep>> = groups.iter().map(|_| None).collect();
    loop {
        let mut continues = false;
        for (location, group) in groups.iter_mut().enumerate() {
            match group.poll_output() {
                Some(Output::Store(step)) => steps[location] = Some(step),
                Some(other) => reported[location].push(other),
                None => {}
            }
            if let Some(reply) = steps[location].as_ref().and_then(|step| drive(store, step)) {
                steps[location] = None;
                group.handle(NOW, reply);
                continues = true;
            }
        }
        if !continues {
            return reported;
        }
    }
}

#[test]
fn all_come_and_all_go() {
    let mut store = Store::new();
    let mut groups: Vec<FixedGroup> = (0..3).map(|id| group(member(&format!("w{id}"), id), 3)).collect();
    assert_eq!(run(&mut groups, &mut store), [[Output::Joined], [Output::Joined], [Output::Joined]]);
    for group in &groups {
        let members: Vec<String> =
            group.members().iter().map(|member| format!("{} at {}", member.worker, member.address)).collect();
        assert_eq!(members, ["w0 (id 0) at h:w0", "w1 (id 1) at h:w1", "w2 (id 2) at h:w2"]);
    }
    for (key, value) in [("rpcIsStaticGroup", "true"), ("names/1", "w1"), ("addrs/w1", "h:w1")] {
        assert_eq!(store.get(key).map(Vec::as_slice), Some(value.as_bytes()), "{key}");
    }
    groups[0].leave(NOW);
    assert_eq!(run(&mut groups, &mut store), [const { Vec::new() }; 3], "the first waits for the others");
    groups[1].leave(NOW);
    groups[2].leave(NOW);
    // The first one's step is its wait, which it has handed out already.
    groups[0].handle(NOW, Reply::TimedOut);
    let reported = run(&mut groups, &mut store);
    assert_eq!(reported[1..], [[Output::Left], [Output::Left]]);
    assert!(matches!(reported[0][..], [Output::Left] | [Output::Failed(_)]));
}

#[test]
fn who_does_not_come_is_named() {
    let mut store = Store::new();
    let mut groups = [group(member("a", 0), 20), group(member("b", 3), 20)];
    assert_eq!(run(&mut groups, &mut store), [const { Vec::new() }; 2]);
    let late = NOW + Duration::from_secs(60);
    groups[0].handle(late, Reply::TimedOut);
    let Some(Output::Store(step)) = groups[0].poll_output() else { panic!("it looks") };
    groups[0].handle(late, drive(&mut store, &step).expect("it is there"));
    let Some(Output::Failed(error)) = groups[0].poll_output() else { panic!("it fails") };
    assert_eq!(
        error.to_string(),
        "2 of 20 workers joined in 60.0 s; missing: 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 and 2 more"
    );
    assert_eq!(groups[0].state, FixedState::Over);
}

#[test]
fn who_was_counted_twice_stands_for_nobody_else() {
    let mut store = Store::new();
    // It died after it was counted, and joined again.
    store.insert("rdzv/came".into(), b"1".to_vec());
    let mut groups = [group(member("a", 0), 2)];
    assert_eq!(run(&mut groups, &mut store), [const { Vec::new() }; 1]);
    assert_eq!(groups[0].state, FixedState::Missing);
    let mut others = [group(member("b", 1), 2)];
    assert_eq!(run(&mut others, &mut store), [[Output::Joined]]);
    groups[0].handle(NOW, Reply::Released);
    assert_eq!(run(&mut groups, &mut store), [[Output::Joined]]);
}

#[test]
fn who_is_busy_at_the_end_is_named() {
    let mut store = Store::new();
    let mut groups = [group(member("a", 0), 2), group(member("b", 1), 2)];
    run(&mut groups, &mut store);
    groups[0].leave(NOW);
    run(&mut groups, &mut store);
    groups[0].handle(NOW, Reply::TimedOut);
    let reported = run(&mut groups, &mut store);
    let Some(Output::Failed(error)) = reported[0].first() else { panic!("{reported:?}") };
    assert_eq!(
        error.to_string(),
        "1 of 2 workers finished their calls in 60.0 s; still busy, or dead: b (id 1)"
    );
}

#[test]
fn names_and_numbers_are_unique() {
    let mut store = Store::new();
    let mut groups = [group(member("a", 0), 3), group(member("b", 1), 3), group(member("a", 2), 3)];
    for reported in run(&mut groups, &mut store) {
        let [Output::Failed(error)] = &reported[..] else { panic!("{reported:?}") };
        assert_eq!(
            error.to_string(),
            "RPC worker name a is not unique. Workers 0 and 2 share the same name."
        );
    }
    assert!(groups.iter().all(|group| group.members().is_empty()));
    let mut again = [group(member("c", 1), 3)];
    let reported = run(&mut again, &mut store);
    let [Output::Failed(error)] = &reported[0][..] else { panic!("{reported:?}") };
    assert_eq!(error.to_string(), "RPC worker id 1 is not unique: b has it.");
    let error =
        FixedGroup::new(NOW, member("a", 3), 3, DeviceKind::CUDA, Duration::ZERO).expect_err("no such");
    assert_eq!(error.to_string(), "The rank (3) must be less than the world size (3).");
}

#[test]
fn workers_who_count_differently_are_told_at_once() {
    let mut store = Store::new();
    let mut groups = [group(member("w0", 0), 3), group(member("w1", 1), 2)];
    let reported = run(&mut groups, &mut store);
    assert_eq!(reported[0], [], "it waits for the others");
    let [Output::Failed(error)] = &reported[1][..] else { panic!("{reported:?}") };
    assert_eq!(error.to_string(), "world_size argument 2 doesn't match pg size 3");
    assert!(!store.contains_key("rdzv/cards/1") && !store.contains_key("names/1"), "it has not come");
}

#[test]
fn everybody_finds_the_same_fault() {
    let mut store = Store::new();
    let mut bad = member("b", 1);
    bad.devices.devices = ["cuda:0".parse().expect("a device")].into();
    let mut groups = [group(member("a", 0), 2), group(bad, 2)];
    for reported in run(&mut groups, &mut store) {
        let [Output::Failed(error)] = &reported[..] else { panic!("{reported:?}") };
        assert_eq!(
            error.to_string(),
            "Node b has devices with invalid indices: devices = [cuda:0], device count = 0"
        );
    }
    store.insert("rdzv/cards/0".into(), b"\x02\0".to_vec());
    let mut again = [group(member("a", 0), 1)];
    again[0].state = FixedState::Collecting;
    again[0].handle(NOW, Reply::Values(Vec::from([store["rdzv/cards/0"].clone().into()])));
    let Some(Output::Failed(error)) = again[0].output.take() else { panic!("no card") };
    assert_eq!(error.to_string(), "invalid card of worker 0: the card has the format 2, and 1 is known");
}

#[test]
fn kinds_of_groups_do_not_mix_and_stores_may_fail() {
    let mut store = Store::from([("rpcIsStaticGroup".to_string(), b"false".to_vec())]);
    let reported = run(&mut [group(member("a", 0), 1)], &mut store);
    let [Output::Failed(error)] = &reported[0][..] else { panic!("{reported:?}") };
    assert_eq!(
        error.to_string(),
        "RPC group mixes statically and dynamically initialized members which is not supported. Static group property \
         is initialized as false and is trying to be set as true"
    );
    for reply in [Reply::Failed("gone".into()), Reply::Number(1)] {
        let mut group = group(member("a", 0), 1);
        group.handle(NOW, reply);
        assert!(matches!(group.output, Some(Output::Failed(MembershipError::Store { .. }))));
        assert_eq!(group.state, FixedState::Over);
    }
}

#[test]
fn the_table_of_states_and_events_is_as_written_down() {
    use FixedEvent as E;
    use FixedState as S;
    let states = [
        S::Checking,
        S::Sizing,
        S::Naming,
        S::Addressing,
        S::Contested,
        S::Readdressing,
        S::Carding,
        S::Counting,
        S::Announcing,
        S::Waiting,
        S::Collecting,
        S::Missing,
        S::Member,
        S::MarkingDone,
        S::Leaving,
        S::Closing,
        S::Staying,
        S::Surveying,
        S::Over,
    ];
    let mut table = String::new();
    for state in states {
        for event in [E::Done, E::Last, E::Waited, E::Taken, E::Incomplete, E::Complete, E::Leave, E::End] {
            let next = state.on(event).map_or("-".into(), |next| format!("{next:?}"));
            writeln!(table, "{state:?} {event:?} -> {next}").expect("a string");
        }
    }
    assert_eq!(table, include_str!("transitions.snapshot"), "\n{table}");
}
