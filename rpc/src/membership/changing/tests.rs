use super::*;
use crate::device::DeviceKind;
use crate::device_map::DeviceMaps;
use crate::membership::token::TokenTimes;
use crate::membership::{Liveness, Member};
use alloc::string::{String, ToString};

extern crate std;

const NOW: Instant = Instant::from_millis(1000);

fn member(name: &str, id: u16, address: &str) -> Member {
    let worker = WorkerInfo { name: name.parse().expect("a name"), id };
    Member { worker, address: address.into(), devices: NodeDevices::default() }
}

fn options(name: &str, id: u16) -> MemberOptions {
    MemberOptions {
        member: member(name, id, &alloc::format!("h:{name}")),
        accelerator: DeviceKind::CUDA,
        timeout: Duration::from_secs(60),
        times: TokenTimes::default(),
        liveness: Liveness::Unknown,
        nonce: 7,
    }
}

/// All outputs as text, each with its result.
struct Script {
    group: ChangingGroup,
    now: Instant,
}

impl Script {
    fn new(options: MemberOptions) -> Self {
        Self { group: ChangingGroup::new(NOW, options), now: NOW }
    }

    fn out(&mut self) -> String {
        match self.group.poll_output() {
            None => "-".into(),
            Some(Output::Store(step)) => step_text(&step),
            Some(Output::CheckAlive(of, _)) => alloc::format!("doubt {} at {}", of.worker, of.address),
            Some(Output::Ask(of)) => alloc::format!("ask {} at {}", of.worker, of.address),
            Some(Output::Notify(to, change)) => {
                let joined = change.joined.map_or("-".into(), |member| member.worker.to_string());
                let left: Vec<String> = change.left.iter().map(|left| left.worker.to_string()).collect();
                alloc::format!("tell {}: joined {joined}, left {left:?}", to.worker)
            }
            Some(Output::Failed(error)) => alloc::format!("failed: {error}"),
            Some(other) => alloc::format!("{other:?}"),
        }
    }

    fn expect(&mut self, outputs: &[&str]) -> &mut Self {
        for wanted in outputs {
            assert_eq!(self.out(), *wanted);
        }
        assert_eq!(self.out(), "-");
        self
    }

    fn input(&mut self, input: Input) -> &mut Self {
        self.group.handle(self.now, input);
        self
    }

    fn value(&mut self, value: &str) -> &mut Self {
        self.input(Input::Stored(Reply::Value(value.as_bytes().into())))
    }

    fn done(&mut self) -> &mut Self {
        self.input(Input::Stored(Reply::Done))
    }

    fn answer(&mut self, of: &Member) -> &mut Self {
        let card = crate::exchange::encode_card(&of.worker, &of.devices);
        self.input(Input::MemberAnswered(of.worker.name.clone(), Ok(card.into())))
    }

    fn reported(&mut self, name: &str, answer: Result<(), NoAnswer>) -> &mut Self {
        self.input(Input::Announced(name.parse().expect("a name"), answer))
    }

    /// Up to the read of the list of members.
    fn queue(&mut self) -> &mut Self {
        self.expect(&["compare rpcIsStaticGroup:  -> false"]).value("false");
        let beat = |number: u64| alloc::format!("{:016x}:{number}", Rng::new(7).next_u64());
        let alive = "Token_for_w_join_alive";
        self.expect(&[&alloc::format!("compare {alive}:  -> {}", beat(1))]).value(&beat(1));
        self.expect(&["compare RpcGroupManagementToken:  -> Token_for_w_join"]).value("Token_for_w_join");
        self.expect(&[&alloc::format!("compare {alive}: {} -> {}", beat(1), beat(2))]).value(&beat(2));
        self.expect(&["delete Token_for_w_join"]).done();
        self.expect(&["get names/_ALL_WORKER_INFOS"])
    }

    /// Up to being the only member.
    fn join_alone(&mut self) -> &mut Self {
        self.queue().value("").expect(&["peek "]).input(Input::Stored(Reply::Values(Vec::new())));
        self.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
        self.expect(&["compare names/_ALL_WORKER_INFOS:  -> w-3,"]).value("w-3,");
        self.expect(&["delete "]).done().unlock().expect(&["Joined"])
    }

    /// From the return of the token on.
    fn unlock(&mut self) -> &mut Self {
        let beat = alloc::format!("{:016x}:2", Rng::new(7).next_u64());
        self.expect(&["set Token_for_w_join = Done for the session"]).done();
        self.expect(&["compare RpcGroupManagementToken: Token_for_w_join -> "]).value("");
        self.expect(&[&alloc::format!("forget Token_for_w_join_alive: {beat}")]).done()
    }
}

pub(super) fn step_text(step: &StoreStep) -> String {
    match step {
        StoreStep::CompareSet { key, expected, desired } => {
            alloc::format!("compare {key}: {expected} -> {desired}")
        }
        StoreStep::Set { key, value } => alloc::format!("set {key} = {}", String::from_utf8_lossy(value)),
        StoreStep::SetForSession { key, value } => {
            alloc::format!("set {key} = {} for the session", String::from_utf8_lossy(value))
        }
        StoreStep::Get { key } => alloc::format!("get {key}"),
        StoreStep::Peek { keys } => alloc::format!("peek {}", keys.join(" ")),
        StoreStep::Delete { keys } => alloc::format!("delete {}", keys.join(" ")),
        StoreStep::Forget { key, expected } => alloc::format!("forget {key}: {expected}"),
        StoreStep::Add { key, delta } => alloc::format!("add {key} {delta}"),
        StoreStep::Wait { key, .. } => alloc::format!("wait {key}"),
    }
}

/// The keys of PyTorch's protocol, in its order, with this library's between them.
#[test]
fn the_first_member_and_the_last() {
    let mut w = Script::new(options("w", 0));
    w.queue().value("").expect(&["peek "]).input(Input::Stored(Reply::Values(Vec::new())));
    w.expect(&["set names/0 = w"]).done();
    w.expect(&["set addrs/w = h:w"]).done();
    w.expect(&["compare names/_ALL_WORKER_INFOS:  -> w-0,"]).value("w-0,");
    w.expect(&["delete "]).done().unlock().expect(&["Joined"]);
    assert_eq!((w.group.phase(), w.group.members().len(), w.group.poll_timeout()), (Phase::Member, 1, None));
    w.input(Input::Leave);
    let Some(Output::Store(claim)) = w.group.poll_output() else { panic!("a claim") };
    let StoreStep::CompareSet { key, desired, .. } = claim else { panic!("a claim") };
    assert_eq!(&*key, "Token_for_w_leave_alive");
    w.value(&desired).expect(&["compare RpcGroupManagementToken:  -> Token_for_w_leave"]);
    w.value("Token_for_w_leave");
    let Some(Output::Store(StoreStep::CompareSet { desired, .. })) = w.group.poll_output() else {
        panic!("a beat")
    };
    w.value(&desired).expect(&["delete Token_for_w_leave"]).done();
    w.expect(&["get names/_ALL_WORKER_INFOS"]).value("w-0,");
    w.expect(&["get addrs/w"]).value("h:w");
    w.expect(&["compare names/_ALL_WORKER_INFOS: w-0, -> "]).value("");
    w.expect(&["delete names/0 addrs/w Token_for_w_join Token_for_w_leave"]).done();
    w.expect(&["set Token_for_w_leave = Done for the session"]).done();
    w.expect(&["compare RpcGroupManagementToken: Token_for_w_leave -> "]).value("");
    assert!(w.out().starts_with("forget Token_for_w_leave_alive: "));
    w.done().expect(&["Left"]);
}

#[test]
fn the_dead_are_struck_out_and_the_living_are_told() {
    let mut w = Script::new(options("w", 3));
    w.queue().value("a-0,w-3,c-2,d-4,").expect(&["peek addrs/a addrs/w addrs/c addrs/d"]);
    let values = ["h:a", "h:old", "", "h:d"].map(|text| text.as_bytes().into());
    w.input(Input::Stored(Reply::Values(values.into())));
    w.expect(&["ask a (id 0) at h:a", "ask w (id 3) at h:old", "ask d (id 4) at h:d"]);
    w.answer(&member("a", 0, "h:a")).answer(&member("d", 4, "h:d")).expect(&[]);
    w.input(Input::MemberAnswered("w".parse().expect("a name"), Err(NoAnswer::Dead)));
    w.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,w-3,c-2,d-4, -> a-0,d-4,w-3,"]).value("a-0,d-4,w-3,");
    let of_c = "delete names/2 addrs/c Token_for_c_join Token_for_c_leave";
    w.expect(&[of_c]).done();
    w.expect(&[
        "tell a (id 0): joined w (id 3), left [\"w (id 3)\", \"c (id 2)\"]",
        "tell d (id 4): joined w (id 3), left [\"w (id 3)\", \"c (id 2)\"]",
    ]);
    // One dies while it is notified, and the others are notified of that.
    w.reported("a", Ok(())).reported("d", Err(NoAnswer::Dead));
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,d-4,w-3, -> a-0,w-3,"]).value("a-0,w-3,");
    let of_both = "delete names/2 addrs/c names/4 addrs/d Token_for_c_join Token_for_c_leave Token_for_d_join \
                   Token_for_d_leave";
    w.expect(&[of_both]).done();
    w.expect(&["tell a (id 0): joined w (id 3), left [\"w (id 3)\", \"c (id 2)\", \"d (id 4)\"]"]);
    w.reported("a", Ok(())).unlock().expect(&["Joined"]);
    let names: Vec<&str> = w.group.members().iter().map(|member| &*member.worker.name).collect();
    assert_eq!(names, ["a", "w"]);
    assert!(w.group.members.get("a").is_some() && w.group.members.get("d").is_none());

    let newcomer = Change { joined: Some(member("n", 9, "h:n")), left: Vec::new() };
    w.input(Input::Changed(newcomer.clone()));
    assert_eq!(w.group.poll_output(), Some(Output::Changed(newcomer)));
    assert_eq!(w.group.group().nodes.len(), 3);
}

/// It was paused, and did not respond. The store decides whether it was removed.
#[test]
fn a_member_that_is_notified_of_its_removal_reads_whether_it_is_listed() {
    const EVICTED: &str =
        "failed: the group continues without this worker: n could not reach it at its address";
    for (listed, address, end) in [
        ("n-9,", "", EVICTED),
        // A store that cannot delete keeps the address.
        ("n-9,", "h:w", EVICTED),
        // Another worker has its name.
        ("w-3,n-9,", "h:other", EVICTED),
        ("w-3,n-9,", "h:w", "-"),
        // The store was restarted without its data.
        ("", "", "-"),
        ("", "h:w", "-"),
    ] {
        let mut w = Script::new(options("w", 3));
        w.join_alone();
        let left = [member("w", 3, "h:w").location()].to_vec();
        w.input(Input::Changed(Change { joined: Some(member("n", 9, "h:n")), left }));
        w.expect(&["peek names/_ALL_WORKER_INFOS addrs/w"]);
        assert!(!w.group.is_settled());
        let values = [listed, address].map(|text| text.as_bytes().into());
        w.input(Input::Stored(Reply::Values(values.into())));
        assert_eq!(w.out(), end);
        assert_eq!(w.group.is_settled(), end == "-");
    }
    let mut w = Script::new(options("w", 3));
    w.join_alone();
    w.input(Input::Changed(Change { joined: None, left: [member("w", 3, "h:w").location()].to_vec() }));
    w.expect(&["peek names/_ALL_WORKER_INFOS addrs/w"]);
    w.input(Input::Stored(Reply::Failed("server gone".into()))).expect(&[]);
    assert!(w.group.is_settled());
}

/// A worker that has taken the token from b, whose heartbeat stopped. The list has a and a worker b.
fn who_took_the_token_from_the_dead() -> Script {
    let mut w = Script::new(options("w", 3));
    w.expect(&["compare rpcIsStaticGroup:  -> false"]).value("false");
    let beat = |number: u64| alloc::format!("{:016x}:{number}", Rng::new(7).next_u64());
    w.out();
    w.value(&beat(1)).expect(&["compare RpcGroupManagementToken:  -> Token_for_w_join"]);
    for number in 2..5 {
        w.value("Token_for_b_leave").expect(&["wait Token_for_b_leave"]);
        w.now = w.now + Duration::from_millis(2_500);
        w.input(Input::Stored(Reply::TimedOut)).out();
        w.value(&beat(number)).expect(&["get Token_for_b_leave_alive"]).value("b:1");
        if number < 4 {
            w.expect(&["compare RpcGroupManagementToken:  -> Token_for_w_join"]);
        }
    }
    let doom = alloc::format!("doomed:{:016x}", Rng::new(7).next_u64());
    w.expect(&[&alloc::format!("compare Token_for_b_leave_alive: b:1 -> {doom}")]).value(&doom);
    w.expect(&["set Token_for_b_leave = Done"]).done();
    w.expect(&["compare RpcGroupManagementToken: Token_for_b_leave -> Token_for_w_join"])
        .value("Token_for_w_join");
    w.out();
    w.value(&beat(5)).expect(&[&alloc::format!("forget Token_for_b_leave_alive: {doom}")]).done();
    w.expect(&["delete Token_for_w_join"]).done();
    w.expect(&["get names/_ALL_WORKER_INFOS"]).value("a-0,b-1,").expect(&["peek addrs/a addrs/b"]);
    w.input(Input::Stored(Reply::Values(Vec::from([b"h:a"[..].into(), b"h:b"[..].into()]))));
    w.expect(&["doubt b (id 1) at h:b", "ask a (id 0) at h:a"]).answer(&member("a", 0, "h:a")).expect(&[]);
    w
}

/// It may be frozen, and respond much later; but it was removed, and is notified of that.
#[test]
fn whoever_lost_the_token_is_struck_out_if_it_does_not_say_that_it_is_a_member() {
    for is_answered in [true, false] {
        let mut w = who_took_the_token_from_the_dead();
        if is_answered {
            w.input(Input::Suspected("b".parse().expect("a name"), MemberPresence::Unsettled));
        } else {
            assert!(w.group.poll_timeout() <= Some(w.now + SUSPICION_TIMEOUT));
            w.now = w.now + SUSPICION_TIMEOUT;
            w.input(Input::Tick);
            let Some(Output::Store(StoreStep::CompareSet { desired, .. })) = w.group.poll_output() else {
                panic!("a heartbeat")
            };
            w.value(&desired);
        }
        w.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
        w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,b-1, -> a-0,w-3,"]).value("a-0,w-3,");
        let of_b = "delete names/1 addrs/b Token_for_b_join Token_for_b_leave";
        w.expect(&[of_b]).done();
        w.expect(&[
            "tell b (id 1): joined w (id 3), left [\"b (id 1)\"]",
            "tell a (id 0): joined w (id 3), left [\"b (id 1)\"]",
        ]);
        // Its response is not waited for.
        w.reported("a", Ok(()));
        assert_eq!(w.group.phase(), Phase::Unlocking);
    }
}

/// Another worker had joined under its name, and died with the token.
#[test]
fn a_member_in_whose_name_somebody_else_lost_the_token_stays() {
    let mut w = who_took_the_token_from_the_dead();
    w.input(Input::Suspected("b".parse().expect("a name"), MemberPresence::Settled));
    w.expect(&["ask b (id 1) at h:b"]).answer(&member("b", 1, "h:b"));
    w.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,b-1, -> a-0,b-1,w-3,"]).value("a-0,b-1,w-3,");
    w.expect(&["delete "]).done();
    let reported =
        ["a (id 0)", "b (id 1)"].map(|name| alloc::format!("tell {name}: joined w (id 3), left []"));
    w.expect(&reported.each_ref().map(|text| &**text));
    // Nor does it strike it out when it undoes the join.
    w.reported("a", Err(NoAnswer::Unknown("it is busy".into())));
    w.expect(&["get names/_ALL_WORKER_INFOS"]).value("a-0,b-1,w-3,");
    w.expect(&["get addrs/w"]).value("h:w");
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,b-1,w-3, -> a-0,b-1,"]);
}

#[test]
fn names_and_numbers_are_unique_among_the_living() {
    for (listed, other, message) in [
        ("w-3,", member("w", 3, ""), "failed: RPC worker name w is not unique."),
        ("w-5,", member("w", 5, ""), "failed: RPC worker name w is not unique."),
        ("b-3,", member("b", 3, ""), "failed: RPC worker id 3 is not unique: b has it."),
        ("b-4,", member("c", 4, ""), "failed: c (id 4) responded at the address of b (id 4)"),
    ] {
        let mut w = Script::new(options("w", 3));
        w.queue().value(listed);
        assert!(w.out().starts_with("peek addrs/"));
        w.input(Input::Stored(Reply::Values(Vec::from([b"h:other"[..].into()]))));
        assert!(w.out().starts_with("ask "));
        let name = if other.worker.name.as_str() == "c" {
            "b".parse().expect("a name")
        } else {
            other.worker.name.clone()
        };
        let card = crate::exchange::encode_card(&other.worker, &other.devices);
        w.input(Input::MemberAnswered(name, Ok(card.into())));
        // The token is returned before anything was written.
        w.unlock().expect(&[message]);
    }
}

#[test]
fn kinds_of_groups_do_not_mix() {
    let mut w = Script::new(options("w", 3));
    w.expect(&["compare rpcIsStaticGroup:  -> false"]).value("true").expect(&[
        "failed: RPC group mixes statically and dynamically initialized members which is not supported. Static group \
         property is initialized as true and is trying to be set as false",
    ]);
}

#[test]
fn maps_are_looked_at_before_anything_is_written() {
    let mut local = options("w", 3);
    let map = crate::device_map::DeviceMap::unchecked([(
        crate::device::Device::Cpu,
        "cuda:0".parse().expect("a device"),
    )]);
    local.member.devices.maps = [("a".parse().expect("a name"), map)].into_iter().collect::<DeviceMaps>();
    let mut w = Script::new(local);
    w.queue().value("a-0,").expect(&["peek addrs/a"]);
    w.input(Input::Stored(Reply::Values(Vec::from([b"h:a"[..].into()])))).expect(&["ask a (id 0) at h:a"]);
    w.answer(&member("a", 0, "h:a"))
        .unlock()
        .expect(&["failed: Node w has target devices with invalid indices in its device map for a: \
         device map = {cpu: cuda:0}, device count = 0"]);
}

#[test]
fn who_cannot_be_told_makes_the_newcomer_take_everything_back() {
    let mut w = Script::new(options("w", 3));
    w.queue().value("a-0,b-1,").expect(&["peek addrs/a addrs/b"]);
    w.input(Input::Stored(Reply::Values(Vec::from([b"h:a"[..].into(), b"h:b"[..].into()]))));
    w.expect(&["ask a (id 0) at h:a", "ask b (id 1) at h:b"]);
    w.answer(&member("a", 0, "h:a")).answer(&member("b", 1, "h:b"));
    w.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,b-1, -> a-0,b-1,w-3,"]).value("a-0,b-1,w-3,");
    w.expect(&["delete "]).done();
    w.out();
    w.out();
    w.reported("a", Ok(())).reported("b", Err(NoAnswer::Unknown("it is busy".into())));
    w.expect(&["get names/_ALL_WORKER_INFOS"]).value("a-0,b-1,w-3,");
    w.expect(&["get addrs/w"]).value("h:w");
    w.expect(&["compare names/_ALL_WORKER_INFOS: a-0,b-1,w-3, -> a-0,b-1,"]).value("a-0,b-1,");
    w.expect(&["delete names/3 addrs/w Token_for_w_join Token_for_w_leave"]).done();
    // Members that may know of it are notified of its end, without a wait for the responses.
    for name in ["a (id 0)", "b (id 1)"] {
        assert_eq!(w.out(), alloc::format!("tell {name}: joined -, left [\"w (id 3)\"]"));
    }
    w.unlock().expect(&["failed: b (id 1) did not answer: it is busy"]);
}

#[test]
fn a_list_that_others_change_is_read_again_but_not_for_ever() {
    let mut w = Script::new(options("w", 3));
    w.queue();
    for round in 0..=RACES_MAX {
        w.value("").expect(&["peek "]).input(Input::Stored(Reply::Values(Vec::new())));
        w.expect(&["set names/3 = w"]).done().expect(&["set addrs/w = h:w"]).done();
        w.expect(&["compare names/_ALL_WORKER_INFOS:  -> w-3,"]).value("x-1,");
        w.expect(&["get names/_ALL_WORKER_INFOS"]);
        assert_eq!(w.group.phase(), if round < RACES_MAX { Phase::Reading } else { Phase::Rereading });
    }
}

#[test]
fn a_store_that_fails_ends_it() {
    let mut w = Script::new(options("w", 3));
    w.queue().input(Input::Stored(Reply::Failed("server gone".into())));
    w.expect(&["failed: the store failed: server gone"]);
    let mut w = Script::new(options("w", 3));
    w.queue().input(Input::Stored(Reply::Number(3)));
    w.expect(&["failed: the store failed: its reply does not match the request"]);
}

#[test]
fn who_is_cancelled_while_it_waits_for_the_token_leaves_nothing() {
    let mut w = Script::new(options("w", 3));
    w.expect(&["compare rpcIsStaticGroup:  -> false"]).value("false");
    let beat = alloc::format!("{:016x}:1", Rng::new(7).next_u64());
    w.out();
    w.value(&beat).out();
    w.value("Token_for_x_join").expect(&["wait Token_for_x_join"]);
    w.input(Input::Cancel).expect(&[]);
    w.input(Input::Stored(Reply::Released))
        .expect(&["compare RpcGroupManagementToken:  -> Token_for_w_join"]);
    w.value("Token_for_x_join").expect(&[&alloc::format!("forget Token_for_w_join_alive: {beat}")]);
    w.done().expect(&["failed: joining was cancelled"]);
}
