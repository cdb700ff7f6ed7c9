use super::*;
use alloc::string::{String, ToString};
use proptest::prelude::*;

fn device(text: &str) -> Device {
    text.parse().expect("a device")
}

fn name(text: &str) -> WorkerName {
    text.parse().expect("a name")
}

/// Parses `0>1 1>0`: numbers are CUDA devices; nothing is checked.
fn map(text: &str) -> DeviceMap {
    let one = |text: &str| device(if text == "c" { "cpu" } else { text });
    let pair = |pair: &str| {
        let (from, to) = pair.split_once('>').expect("a pair");
        let named = |end: &str| if end == "c" { one("c") } else { one(&alloc::format!("cuda:{end}")) };
        (named(from), named(to))
    };
    DeviceMap::unchecked(text.split_whitespace().map(pair))
}

fn node(count: u32, maps: &[(&str, &str)], devices: &[&str]) -> NodeDevices {
    let maps = maps.iter().map(|(to, pairs)| (name(to), map(pairs))).collect();
    NodeDevices { count, maps, devices: devices.iter().map(|text| device(text)).collect() }
}

fn group(kind: GroupKind, nodes: &[(&str, NodeDevices)]) -> Group {
    let nodes = nodes.iter().map(|(text, said)| (name(text), said.clone())).collect();
    Group { kind, accelerator: DeviceKind::CUDA, nodes }
}

#[test]
fn a_map_is_one_to_one() {
    let (zero, one, two) = (device("cuda:0"), device("cuda:1"), device("cuda:2"));
    let error = DeviceMap::new([(zero, one), (two, one)]).expect_err("two to one");
    assert_eq!(
        error.to_string(),
        "`device_map` only supports 1-to-1 mapping, trying to map cuda:2 and cuda:0 to cuda:1"
    );
    // As in a dictionary, the later of two pairs counts.
    let replaced = DeviceMap::new([(zero, one), (zero, two), (one, one)]).expect("one to one");
    assert_eq!(replaced, map("0>2 1>1"));
    let mut maps = DeviceMaps::default();
    let w = name("w");
    maps.set(&w, &DeviceMap::new([(zero, one)]).expect("one to one")).expect("the first");
    maps.set(&w, &DeviceMap::new([(zero, one), (one, zero)]).expect("one to one")).expect("no other word");
    maps.set(&w, &DeviceMap::new([(two, two)]).expect("one to one")).expect("another one");
    let other = DeviceMap::new([(device("cuda:3"), device("cuda:3")), (one, one)]).expect("one to one");
    let error = maps.set(&w, &other);
    assert_eq!(
        error.expect_err("one to two").to_string(),
        "`set_device_map` only supports 1-to-1 mapping, trying to map cuda:1 to cuda:1 and cuda:0"
    );
    assert_eq!(
        maps.to_string(),
        "{'w': {cuda:0: cuda:1, cuda:1: cuda:0, cuda:2: cuda:2}}",
        "nothing was added"
    );
}

/// Each fault alone, with PyTorch's message.
#[test]
fn faults_have_their_words() {
    use GroupKind::{Dynamic, Static};
    let plain = || node(2, &[], &[]);
    for (nodes, message) in [
        (
            [("a", node(4, &[], &["cuda:1", "cuda:1"])), ("b", plain())],
            "Node a has duplicated devices: devices = [cuda:1, cuda:1]",
        ),
        (
            [("a", plain()), ("b", node(2, &[], &["cpu", "cuda:2"]))],
            "Node b has devices with invalid indices: devices = [cpu, cuda:2], device count = 2",
        ),
        (
            [("a", plain()), ("b", node(2, &[], &["xpu:0"]))],
            "Node b has devices with invalid indices: devices = [xpu:0], device count = 2",
        ),
        (
            [("a", node(2, &[("c", "0>1")], &[])), ("b", plain())],
            "Node a has invalid target node names in its device maps: \
             device maps = {'c': {cuda:0: cuda:1}}, node names = ['a', 'b']",
        ),
        (
            [("a", node(2, &[("b", "0>1 1>1")], &[])), ("b", plain())],
            "Node a has duplicated target devices in its device map for b: \
             device map = {cuda:0: cuda:1, cuda:1: cuda:1}",
        ),
        (
            [("a", node(2, &[("b", "0>1")], &["cuda:1"])), ("b", plain())],
            "Node a has unexpected source devices in its device map for b: \
             device map = {cuda:0: cuda:1}, devices = [cuda:1]",
        ),
        (
            [("a", node(2, &[("b", "2>1")], &[])), ("b", plain())],
            "Node a has source devices with invalid indices in its device map for b: \
             device map = {cuda:2: cuda:1}, device count = 2",
        ),
        (
            [("a", node(2, &[("b", "0>1")], &[])), ("b", node(2, &[], &["cuda:0"]))],
            "Node a has unexpected target devices in its device map for b: \
             device map = {cuda:0: cuda:1}, devices = [cuda:0]",
        ),
        (
            [("a", node(2, &[("b", "0>2")], &[])), ("b", plain())],
            "Node a has target devices with invalid indices in its device map for b: \
             device map = {cuda:0: cuda:2}, device count = 2",
        ),
    ] {
        let error = group(Static, &nodes).check().expect_err(message);
        assert_eq!(error.to_string(), message);
        let in_dynamic = group(Dynamic, &nodes).check();
        if matches!(error, DeviceMapError::InvalidTargetNames { .. }) {
            assert_eq!(in_dynamic, Ok(()), "it may still come");
        } else {
            assert_eq!(in_dynamic, Err(error));
        }
    }
}

#[test]
fn the_first_fault_is_the_one_of_the_order() {
    // All at once: each is found when those before it are corrected.
    let mut bad = node(1, &[("b", "0>9 3>9"), ("z", "0>0")], &["cuda:5", "cuda:5"]);
    let mut b = node(1, &[], &["cuda:0"]);
    let mut found = Vec::new();
    let mut look = |bad: &NodeDevices, b: &NodeDevices| {
        let error =
            group(GroupKind::Static, &[("a", bad.clone()), ("b", b.clone())]).check().expect_err("bad");
        let debug = alloc::format!("{error:?}");
        let side = match &error {
            DeviceMapError::Unexpected { side, .. } | DeviceMapError::Invalid { side, .. } => {
                side.to_string()
            }
            _ => String::new(),
        };
        found.push(debug.split_whitespace().next().unwrap_or_default().to_string() + &side);
    };
    look(&bad, &b);
    bad.devices.pop();
    look(&bad, &b);
    bad.devices = alloc::vec![device("cuda:0")];
    look(&bad, &b);
    bad.maps = [(name("b"), map("0>9 3>9"))].into_iter().collect();
    look(&bad, &b);
    bad.maps = [(name("b"), map("0>9 3>8"))].into_iter().collect();
    look(&bad, &b);
    bad.devices.clear();
    look(&bad, &b);
    bad.maps = [(name("b"), map("0>9"))].into_iter().collect();
    look(&bad, &b);
    b.devices.clear();
    look(&bad, &b);
    bad.maps = [(name("b"), map("0>0 c>c"))].into_iter().collect();
    assert_eq!(group(GroupKind::Static, &[("a", bad), ("b", b)]).check(), Ok(()));
    assert_eq!(
        found,
        [
            "DuplicatedDevices",
            "InvalidDevices",
            "InvalidTargetNames",
            "DuplicatedTargets",
            "Unexpectedsource",
            "Invalidsource",
            "Unexpectedtarget",
            "Invalidtarget"
        ]
    );
}

#[test]
fn without_a_count_there_are_only_hosts() {
    let a = node(0, &[("b", "c>c")], &["cpu"]);
    assert_eq!(group(GroupKind::Static, &[("a", a), ("b", NodeDevices::default())]).check(), Ok(()));
    let a = node(0, &[("b", "0>c")], &[]);
    group(GroupKind::Static, &[("a", a), ("b", NodeDevices::default())]).check().expect_err("no device");
}

#[test]
fn answers_go_the_opposite_way() {
    let nodes = [
        ("a", node(4, &[("b", "0>1 c>c"), ("c", "2>3")], &[])),
        ("b", node(4, &[("a", "3>2")], &[])),
        ("c", node(4, &[("a", "0>0")], &["cuda:3", "cuda:0"])),
    ];
    let group = group(GroupKind::Static, &nodes);
    group.check().expect("fits");
    assert_eq!(group.reverse_maps("a").to_string(), "{'b': {cuda:2: cuda:3}, 'c': {cuda:0: cuda:0}}");
    assert_eq!(group.reverse_maps("b").to_string(), "{'a': {cpu: cpu, cuda:1: cuda:0}}");
    assert_eq!(group.reverse_maps("nobody").to_string(), "{}");
    assert_eq!(group.devices("a"), [device("cuda:0"), device("cuda:2")]);
    assert_eq!(group.devices("b"), [device("cuda:1"), device("cuda:3")], "the host is none of them");
    assert_eq!(group.devices("c"), [device("cuda:0"), device("cuda:3")], "as listed, sorted");
    assert_eq!(group.devices("nobody"), []);
}

pub(crate) fn any_device() -> impl Strategy<Value = Device> {
    prop_oneof![
        1 => Just(Device::Cpu),
        8 => (0..4_i64).prop_map(|index| Device::new(DeviceKind::CUDA, index).expect("small")),
        1 => Just(device("xpu:1")),
    ]
}

fn any_map() -> impl Strategy<Value = DeviceMap> {
    prop::collection::vec((any_device(), any_device()), 0..4).prop_map(DeviceMap::unchecked)
}

pub(crate) fn any_node() -> impl Strategy<Value = NodeDevices> {
    let maps =
        prop::collection::btree_map(prop::sample::select(alloc::vec!["a", "b", "c", "d"]), any_map(), 0..3);
    let devices = prop::collection::vec(any_device(), 0..3);
    (0..5_u32, maps, devices).prop_map(|(count, maps, devices)| {
        let maps = maps.into_iter().map(|(to, map)| (name(to), map)).collect();
        NodeDevices { count, maps, devices }
    })
}

proptest! {
    /// Inverting what `new` accepts twice returns the same map; maps without an inverse are refused.
    #[test]
    fn a_map_that_is_taken_can_be_turned(pairs in prop::collection::vec((any_device(), any_device()), 0..6)) {
        let plain = DeviceMap::unchecked(pairs.clone());
        match DeviceMap::new(pairs) {
            Ok(taken) => {
                prop_assert_eq!(&taken, &plain);
                prop_assert_eq!(taken.inverted().inverted(), taken);
            }
            Err(_) => prop_assert_ne!(plain.inverted().inverted(), plain),
        }
    }

    /// In a group without faults, each device of a map is one of its worker's devices.
    #[test]
    fn a_group_without_faults_has_all_that_it_names(nodes in prop::collection::vec(any_node(), 1..4)) {
        let nodes = ["a", "b", "c"].into_iter().zip(nodes).map(|(text, said)| (name(text), said)).collect();
        let group = Group { kind: GroupKind::Static, accelerator: DeviceKind::CUDA, nodes };
        if group.check().is_ok() {
            for (node, said) in group.nodes.iter() {
                let devices = group.devices(node);
                prop_assert!(devices.iter().is_sorted_by_key(|device| device.index()));
                for (to, map) in said.maps.iter() {
                    let (current_options, theirs) = (group.devices(node), group.devices(to));
                    let there = |device: Device, list: &[Device]| device == Device::Cpu || list.contains(&device);
                    prop_assert!(map.sources().all(|device| there(device, &current_options)));
                    prop_assert!(map.targets().all(|device| there(device, &theirs)));
                    let back = group.reverse_maps(to);
                    prop_assert_eq!(back.get(node), Some(&map.inverted()));
                }
            }
        }
    }
}

#[test]
fn lists_and_maps_are_written_as_python_writes_them() {
    let empty: [String; 2] = [DeviceMap::default().to_string(), DeviceMaps::default().to_string()];
    assert_eq!(empty, ["{}", "{}"]);
    let maps: DeviceMaps = [(name("worker1"), map("0>1 c>0"))].into_iter().collect();
    assert_eq!(maps.to_string(), "{'worker1': {cpu: cuda:0, cuda:0: cuda:1}}");
}
