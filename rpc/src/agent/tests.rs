//! Workers of a group in one thread and virtual time, over one store, with calls that arrive late.

mod leaving;
mod liveness;
mod living;
mod simulation;

use super::*;
use crate::device::DeviceKind;
use crate::device_map::NodeDevices;
use crate::membership::Liveness;
use crate::membership::keys;
use crate::membership::token::TokenTimes;
use alloc::collections::BTreeMap;
use alloc::string::String;
use rendezvous_core::rng::Rng;

extern crate std;

const NAMES: [&str; 6] = ["a", "b", "c", "d-1", "e", "f:2"];
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
enum Happening {
    /// A step reaches the store.
    Apply(usize, StoreStep),
    /// A wait at the store ends.
    WaitEnds(usize, Box<str>),
    /// A call reaches an address.
    Arrives(usize, ControlCall),
    /// An input reaches a worker.
    Input(usize, Input),
    Spawn(&'static str, Option<u16>),
    Kill(usize),
}

struct Node {
    name: &'static str,
    address: Box<str>,
    agent: Agent,
    is_alive: bool,
    was_killed: bool,
    /// Keys that are deleted with its session.
    session_keys: Vec<Box<str>>,
    /// Whether it is paused: it accepts connections, and does nothing.
    is_frozen: bool,
    /// Calls that wait in its socket while it is paused, with the times when their callers give up.
    held: Vec<(Instant, usize, ControlCall)>,
    joined_at: Option<Instant>,
    /// Members that it knew when it became one.
    met: Vec<String>,
    events: Vec<String>,
    /// Calls that ended because their callee has ended, and when.
    ended_calls: Vec<(Instant, String)>,
    /// Workers that left and complete the requests that they have.
    parted: Vec<String>,
    /// Callees of its program's pending calls, for which it waits when it leaves.
    busy_at: Vec<WorkerInfo>,
    over: Option<Result<(), MembershipError>>,
}

struct World {
    rng: Rng,
    now: Instant,
    agenda: BTreeMap<(Instant, u64), Happening>,
    order: u64,
    store: BTreeMap<Box<str>, Box<[u8]>>,
    waits: Vec<(usize, Box<str>)>,
    nodes: Vec<Node>,
    /// Calls that arrived and have no response: caller, number, callee's number, callee.
    open: Vec<(u64, usize, u64, usize)>,
    /// Responses to callers that are not workers of this world.
    answers: Vec<(u64, Result<(), String>)>,
    /// Whether the store has sessions.
    has_signs: Signing,
    /// Address that no worker can call.
    unreachable: Box<str>,
    addressing: Addressing,
}

/// Addresses of workers that rejoin.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Addressing {
    Stored,
    WhereTheyWere,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Signing {
    Native,
    None,
}

impl Signing {
    fn liveness(self) -> Liveness {
        match self {
            Self::Native => Liveness::Keys,
            Self::None => Liveness::Unknown,
        }
    }
}

fn worker(name: &str) -> WorkerInfo {
    let id = NAMES.iter().position(|known| *known == name).expect("a name");
    WorkerInfo { name: name.parse().expect("a name"), id: u16::try_from(id).expect("few") }
}

impl World {
    fn new(seed: u64, has_signs: Signing) -> Self {
        Self {
            rng: Rng::new(seed),
            now: Instant::from_millis(1000),
            agenda: BTreeMap::new(),
            order: 0,
            store: BTreeMap::new(),
            waits: Vec::new(),
            nodes: Vec::new(),
            open: Vec::new(),
            answers: Vec::new(),
            has_signs,
            unreachable: "".into(),
            addressing: Addressing::Stored,
        }
    }

    fn at(&mut self, at: Instant, happening: Happening) {
        self.order += 1;
        self.agenda.insert((at.max(self.now), self.order), happening);
    }

    fn send(&mut self, happening: Happening) {
        let millis = 1 + self.rng.below(4);
        self.at(self.now + Duration::from_millis(millis), happening);
    }

    fn spawn(&mut self, name: &'static str, world_size: Option<u16>) -> usize {
        let before = self.nodes.iter().find(|node| node.name == name);
        let address = match before.filter(|_| self.addressing == Addressing::WhereTheyWere) {
            Some(node) => node.address.clone(),
            None => format!("{name}@{}", self.nodes.len()).into(),
        };
        let member = Member { worker: worker(name), address, devices: NodeDevices::default() };
        self.spawn_as(name, member, world_size)
    }

    fn spawn_as(&mut self, name: &'static str, member: Member, world_size: Option<u16>) -> usize {
        let (location, address) = (self.nodes.len(), member.address.clone());
        let options = MemberOptions {
            member,
            accelerator: DeviceKind::CUDA,
            timeout: TIMEOUT,
            times: TokenTimes::default(),
            liveness: self.has_signs.liveness(),
            nonce: self.rng.next_u64(),
        };
        let agent = Agent::new(self.now, options, world_size).expect("a worker of the group");
        let liveness_key = agent.liveness_key();
        self.nodes.push(Node {
            name,
            address,
            agent,
            is_alive: true,
            was_killed: false,
            session_keys: Vec::new(),
            is_frozen: false,
            held: Vec::new(),
            joined_at: None,
            met: Vec::new(),
            events: Vec::new(),
            ended_calls: Vec::new(),
            parted: Vec::new(),
            busy_at: Vec::new(),
            over: None,
        });
        if self.has_signs == Signing::Native {
            for (key, value) in self.store.clone() {
                if let Some(key) = key.strip_prefix(liveness_key::PREFIX) {
                    self.input(location, Input::LivenessKey(key.into(), Some(value)));
                }
            }
            self.set_sign(&liveness_key, Some(liveness_key::here(worker(name).id).as_bytes()));
        }
        self.drain(location);
        location
    }

    fn set_sign(&mut self, liveness_key: &LivenessKey, value: Option<&[u8]>) {
        let key = liveness_key.key();
        match value {
            Some(value) => drop(self.store.insert(key.clone(), value.into())),
            None => drop(self.store.remove(&key)),
        }
        let short: Box<str> = key.strip_prefix(liveness_key::PREFIX).expect("a liveness key").into();
        // In order, as over one connection of each worker.
        for location in 0..self.nodes.len() {
            let input = Input::LivenessKey(short.clone(), value.map(Box::from));
            self.at(self.now + Duration::from_millis(2), Happening::Input(location, input));
        }
    }

    fn drain(&mut self, location: usize) {
        while let Some(output) = self.nodes[location].agent.poll_output() {
            match output {
                Output::Store(step) => self.send(Happening::Apply(location, step)),
                Output::Call(call) => self.send(Happening::Arrives(location, call)),
                Output::Decline(ticket) => {
                    if let Some(at) = self.open.iter().position(|(known, ..)| *known == ticket) {
                        let (_, caller, number, _) = self.open.swap_remove(at);
                        self.send(Happening::Input(caller, Input::Ended(number, Err(NoAnswer::Dead))));
                    }
                }
                Output::Respond(ticket, answer) => {
                    let Some(at) = self.open.iter().position(|(known, ..)| *known == ticket) else {
                        self.answers.push((ticket, answer.map(drop).map_err(String::from)));
                        continue;
                    };
                    let (_, caller, number, _) = self.open.swap_remove(at);
                    let answer = answer.map_err(NoAnswer::Unknown);
                    self.send(Happening::Input(caller, Input::Ended(number, answer)));
                }
                Output::Drain if self.nodes[location].busy_at.is_empty() => {
                    self.send(Happening::Input(location, Input::Drained));
                }
                Output::Drain | Output::EndCalls(_) | Output::AdmitAgain => {}
                Output::CutCalls(_) => {
                    let callees = core::mem::take(&mut self.nodes[location].busy_at);
                    self.at(self.now, Happening::Input(location, Input::Cut(callees)));
                }
                Output::PartWith(to) => self.nodes[location].parted.push(to.worker.name.to_string()),
                Output::EndCallsTo(to, why) => {
                    let reported = (self.now, format!("{}: {why}", to.worker.name));
                    self.nodes[location].ended_calls.push(reported);
                }
                Output::MarkLeaving if self.has_signs == Signing::Native => {
                    let liveness_key = self.nodes[location].agent.liveness_key();
                    self.set_sign(&liveness_key, Some(liveness_key::GOING));
                }
                Output::MarkLeaving => {}
                Output::Joined => {
                    let node = &mut self.nodes[location];
                    node.joined_at = Some(self.now);
                    let names = node.agent.members().iter().map(|member| member.worker.name.to_string());
                    node.met = names.collect();
                }
                Output::Event(event) => {
                    let text = match event {
                        GroupEvent::Joined(worker) => format!("+{}", worker.name),
                        GroupEvent::Left(worker) => format!("-{}", worker.name),
                        GroupEvent::PeerDied { worker, .. } => format!("x{}", worker.name),
                        GroupEvent::WatchLost { why } => format!("blind: {why}"),
                    };
                    self.nodes[location].events.push(text);
                }
                Output::Over(end) => {
                    self.nodes[location].over = Some(end);
                    self.end(location);
                }
            }
        }
        if let Some(at) = self.nodes[location].agent.poll_timeout().filter(|_| self.nodes[location].is_alive)
        {
            self.at(at, Happening::Input(location, Input::Tick));
        }
    }

    fn end_session(&mut self, location: usize) {
        for key in core::mem::take(&mut self.nodes[location].session_keys) {
            self.store.remove(&key);
        }
        let liveness_key = self.nodes[location].agent.liveness_key();
        self.set_sign(&liveness_key, None);
    }

    /// The process has ended.
    fn end(&mut self, location: usize) {
        if !core::mem::take(&mut self.nodes[location].is_alive) {
            return;
        }
        if self.has_signs == Signing::Native {
            self.end_session(location);
        }
        let (departed, open) =
            core::mem::take(&mut self.open).into_iter().partition(|(.., at)| *at == location);
        self.open = open;
        let departed: Vec<(u64, usize, u64, usize)> = departed;
        for (_, caller, number, _) in departed {
            self.send(Happening::Input(caller, Input::Ended(number, Err(NoAnswer::Dead))));
        }
    }

    fn input(&mut self, location: usize, input: Input) {
        let is_of_the_dead = !self.nodes[location].is_alive || self.nodes[location].is_frozen;
        if !is_of_the_dead {
            self.nodes[location].agent.handle(self.now, input);
            self.drain(location);
        }
    }

    /// Returns a worker's response to a caller that claims to be `from` and announces a change.
    fn reported(&mut self, location: usize, from: &WorkerInfo, change: &Change) -> Result<(), String> {
        let number = 1_000_000 + self.answers.len() as u64;
        let payload = encode_change(change).into();
        let called = Called { from: from.clone(), handler: CHANGE_HANDLER.into(), payload };
        self.input(location, Input::Called(number, called));
        self.run_for(10_000);
        let answer = self.answers.iter().find(|(known, _)| *known == number).expect("it is answered");
        answer.1.clone()
    }

    fn value(&self, key: &str) -> Box<[u8]> {
        self.store.get(key).cloned().unwrap_or_default()
    }

    fn set(&mut self, key: Box<str>, value: Box<[u8]>) {
        let (woken, waits) = core::mem::take(&mut self.waits).into_iter().partition(|(_, of)| *of == key);
        self.waits = waits;
        self.store.insert(key, value);
        let woken: Vec<(usize, Box<str>)> = woken;
        for (location, _) in woken {
            self.send(Happening::Input(location, Input::Stored(Reply::Released)));
        }
    }

    fn apply(&mut self, location: usize, step: StoreStep) {
        if let StoreStep::Wait { key, until } = &step
            && !self.store.contains_key(key)
        {
            self.waits.push((location, key.clone()));
            return self.at(*until, Happening::WaitEnds(location, key.clone()));
        }
        if let (StoreStep::SetForSession { key, .. }, Signing::Native) = (&step, self.has_signs) {
            self.nodes[location].session_keys.push(key.clone());
        }
        let reply = self.execute(step);
        self.send(Happening::Input(location, Input::Stored(reply)));
    }

    fn execute(&mut self, step: StoreStep) -> Reply {
        match step {
            StoreStep::CompareSet { key, expected, desired } => {
                if *self.value(&key) == *expected.as_bytes() {
                    self.set(key, desired.as_bytes().into());
                    Reply::Value(desired.as_bytes().into())
                } else {
                    Reply::Value(self.value(&key))
                }
            }
            StoreStep::Set { key, value } | StoreStep::SetForSession { key, value } => {
                self.set(key, value);
                Reply::Done
            }
            StoreStep::Get { key } => Reply::Value(self.value(&key)),
            StoreStep::Peek { keys } => Reply::Values(keys.iter().map(|key| self.value(key)).collect()),
            StoreStep::Delete { keys } => {
                keys.iter().for_each(|key| drop(self.store.remove(key)));
                Reply::Done
            }
            StoreStep::Forget { key, expected } => {
                if *self.value(&key) == *expected.as_bytes() {
                    self.store.remove(&key);
                }
                Reply::Done
            }
            StoreStep::Add { key, delta } => {
                let known = String::from_utf8_lossy(&self.value(&key)).parse::<i64>().unwrap_or_default();
                self.set(key, (known + delta).to_string().as_bytes().into());
                Reply::Number(known + delta)
            }
            StoreStep::Wait { .. } => Reply::Released,
        }
    }

    fn arrive(&mut self, from: usize, call: ControlCall) {
        let number = call.number;
        let target = self.nodes.iter().position(|node| node.address == call.to.address && node.is_alive);
        let Some(at) = target.filter(|_| call.to.address != self.unreachable) else {
            return self.send(Happening::Input(from, Input::Ended(number, Err(NoAnswer::Dead))));
        };
        if self.nodes[at].is_frozen {
            let (until, why) = (call.until.min(self.now + Duration::from_secs(10)), "no greeting");
            let answer = Err(NoAnswer::Unknown(why.into()));
            self.nodes[at].held.push((until, from, call));
            return self.at(until, Happening::Input(from, Input::Ended(number, answer)));
        }
        let participant = self.nodes[from].agent.me.worker.clone();
        if let Err((_, message)) = self.nodes[at].agent.admit(&participant) {
            let answer = Err(NoAnswer::Unknown(message));
            return self.send(Happening::Input(from, Input::Ended(number, answer)));
        }
        self.order += 1;
        self.open.push((self.order, from, number, at));
        let called = Called { from: participant, handler: call.handler.into(), payload: call.payload };
        self.input(at, Input::Called(self.order, called));
        let late = Err(NoAnswer::Unknown("the deadline passed".into()));
        self.at(call.until, Happening::Input(from, Input::Ended(number, late)));
    }

    fn step(&mut self, happening: Happening) {
        match happening {
            Happening::Apply(location, step) => self.apply(location, step),
            Happening::WaitEnds(location, key) => {
                if let Some(at) = self.waits.iter().position(|wait| *wait == (location, key.clone())) {
                    self.waits.remove(at);
                    self.send(Happening::Input(location, Input::Stored(Reply::TimedOut)));
                }
            }
            Happening::Arrives(from, call) if self.nodes[from].is_alive => self.arrive(from, call),
            Happening::Arrives(..) => {}
            Happening::Input(location, input) => self.input(location, input),
            Happening::Spawn(name, size) => {
                if !self.nodes.iter().any(|node| node.name == name && node.is_alive) {
                    self.spawn(name, size);
                }
            }
            Happening::Kill(location) => {
                self.nodes[location].was_killed = true;
                self.end(location);
            }
        }
    }

    fn run_for(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        while let Some((&key, _)) = self.agenda.first_key_value().filter(|((at, _), _)| *at <= until) {
            let happening = self.agenda.remove(&key).expect("it is there");
            self.now = key.0;
            self.step(happening);
        }
        self.now = until;
    }

    fn living(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&location| self.nodes[location].is_alive).collect()
    }

    fn error(&self, location: usize) -> String {
        let Some(Err(error)) = &self.nodes[location].over else { panic!("worker {location} did not fail") };
        error.to_string()
    }
}

#[test]
fn a_static_group_begins_together_and_ends_together() {
    for seed in 0..50 {
        let liveness_watcher = if seed % 2 == 0 { Signing::None } else { Signing::Native };
        let mut world = World::new(seed, liveness_watcher);
        for name in NAMES {
            world.spawn(name, Some(6));
        }
        world.run_for(1000);
        for node in &world.nodes {
            assert!(node.joined_at.is_some(), "{} of seed {seed}", node.name);
            assert_eq!(node.agent.members().len(), 6);
            assert_eq!(node.agent.callee("d-1").map(|member| member.worker.id), Ok(3));
            assert_eq!(node.agent.callee_by_id(5).map(|member| &*member.worker.name), Ok("f:2"));
            let unknown = node.agent.callee("x").expect_err("unknown").to_string();
            assert_eq!(unknown, "there is no worker x in the group");
        }
        for location in 0..5 {
            world.input(location, Input::Leave);
        }
        world.run_for(10_000);
        assert_eq!(world.living().len(), 6, "all wait for the one that calls still");
        world.input(5, Input::Leave);
        world.run_for(1000);
        assert!(world.nodes.iter().all(|node| node.over == Some(Ok(()))), "seed {seed}");
    }
}

#[test]
fn nobody_begins_where_the_leader_did_not_hear_from_all() {
    let mut world = World::new(1, Signing::None);
    for name in NAMES {
        world.spawn(name, Some(6));
    }
    // All have joined, and one cannot be reached any more.
    while world.nodes[2].agent.life == Life::Joining {
        world.run_for(1);
    }
    world.end(2);
    world.run_for(100_000);
    assert!(world.nodes.iter().all(|node| node.joined_at.is_none()));
    assert_eq!(world.error(0), "5 of 6 workers called a (id 0) in 60.0 s; missing: c (id 2)");
    assert_eq!(
        world.error(1),
        "a (id 0), which all workers must call before the group starts: 5 of 6 workers called a (id 0) in 60.0 s; missing: c (id 2)"
    );
}

#[test]
fn who_calls_the_leader_twice_counts_once() {
    let mut world = World::new(1, Signing::None);
    for name in ["a", "b", "c"] {
        world.spawn(name, Some(3));
    }
    while world.nodes[2].agent.life == Life::Joining {
        world.run_for(1);
    }
    world.end(2);
    world.run_for(1000);
    let again = Called { from: worker("b"), handler: READY_HANDLER.into(), payload: Box::default() };
    world.input(0, Input::Called(1_000_000, again));
    assert_eq!(world.nodes[0].agent.life, Life::Meeting);
    world.run_for(100_000);
    assert_eq!(world.error(0), "2 of 3 workers called a (id 0) in 60.0 s; missing: c (id 2)");
}

#[test]
fn a_sign_that_vanishes_ends_a_group_that_has_not_begun_and_calls_in_one_that_has() {
    let mut world = World::new(2, Signing::Native);
    for name in NAMES {
        world.spawn(name, Some(6));
    }
    while world.nodes[2].agent.life == Life::Joining {
        world.run_for(1);
    }
    world.end(2);
    world.run_for(30);
    let message = "c (id 2) died while the group was starting: its session with the store's server ended";
    assert_eq!(world.error(0), message);

    let mut world = World::new(3, Signing::Native);
    for name in NAMES {
        world.spawn(name, Some(6));
    }
    world.run_for(1000);
    let died_at = world.now;
    world.end(2);
    world.run_for(10);
    for location in [0, 1, 3, 4, 5] {
        let node = &world.nodes[location];
        assert_eq!(node.events, ["xc"]);
        let [(at, message)] = &node.ended_calls[..] else { panic!("{:?}", node.ended_calls) };
        assert_eq!(message, "c: its session with the store's server ended");
        assert!(at.since(died_at) < Duration::from_millis(10));
        let error = node.agent.callee("c").expect_err("dead").to_string();
        assert_eq!(error, "c (id 2) is dead: its session with the store's server ended");
    }
    // A graceful end needs all members.
    world.input(0, Input::Leave);
    world.run_for(100);
    assert_eq!(
        world.error(0),
        "c (id 2) died while the group was ending: its session with the store's server ended"
    );
}

#[test]
fn a_newcomer_whose_address_nobody_can_call_is_told_so_and_leaves_nothing() {
    let mut world = World::new(4, Signing::None);
    world.spawn("a", None);
    world.run_for(1000);
    world.unreachable = "b@1".into();
    world.spawn("b", None);
    world.run_for(10_000);
    assert_eq!(world.error(1), "a (id 0) did not answer: it cannot call b (id 1) at b@1: no worker is there");
    assert_eq!(world.nodes[0].events, Vec::<String>::new());
    assert_eq!(&*world.value(keys::ALL_WORKERS), b"a-0,");
    let left: Vec<&str> = world.store.keys().map(|key| &**key).filter(|key| key.contains('b')).collect();
    assert_eq!(left, ["Token_for_b_join"], "the store knows no sessions");
}

#[test]
fn who_takes_a_members_name_or_number_is_not_of_the_group() {
    let claim = |name: &str, id| WorkerInfo { name: name.parse().expect("a name"), id };
    let mut world = World::new(5, Signing::None);
    for name in ["a", "b"] {
        world.spawn(name, Some(2));
    }
    assert_eq!(world.nodes[0].agent.admit(&claim("x", 1)), Ok(()), "no member is known yet");
    world.run_for(2000);
    let agent = &world.nodes[0].agent;
    assert_eq!(agent.admit(&claim("b", 1)), Ok(()));
    for (claimed, message) in [
        (claim("b", 2), "b (id 2) claims to be b (id 1)"),
        (claim("x", 1), "x (id 1) claims to be b (id 1)"),
        (claim("x", 9), "x (id 9) is not a member of this group"),
    ] {
        assert_eq!(agent.admit(&claimed), Err((Refusal::Unknown, message.into())));
    }

    let mut world = World::new(5, Signing::None);
    world.spawn("a", None);
    world.spawn("b", None);
    world.run_for(2000);
    assert_eq!(world.nodes[0].agent.admit(&claim("new", 9)), Ok(()));
    let location = world.spawn_as(
        "a",
        Member { worker: worker("a"), address: "else".into(), devices: NodeDevices::default() },
        None,
    );
    world.run_for(10_000);
    assert_eq!(world.error(location), "RPC worker name a is not unique.");
    let taken = Member { worker: claim("z", 1), address: "else".into(), devices: NodeDevices::default() };
    let location = world.spawn_as("b", taken, None);
    world.run_for(10_000);
    assert_eq!(world.error(location), "RPC worker id 1 is not unique: b has it.");
}

#[test]
fn a_shut_down_worker_answers_nobody_and_calls_that_do_not_end_are_ended() {
    let mut world = World::new(6, Signing::None);
    world.spawn("a", None);
    world.run_for(1000);
    let agent = &mut world.nodes[0].agent;
    agent.handle(world.now, Input::Leave);
    assert_eq!((agent.life, agent.poll_output()), (Life::Draining, Some(Output::Drain)));
    let at = agent.poll_timeout().expect("a deadline");
    agent.handle(at, Input::Tick);
    let message = "this worker is leaving its group, and the timeout of its calls has passed".into();
    assert_eq!((agent.life, agent.poll_output()), (Life::Leaving, Some(Output::CutCalls(message))));
    agent.handle(at, Input::Abandon);
    let outputs: Vec<Output> = core::iter::from_fn(|| agent.poll_output()).collect();
    assert_eq!(outputs.last(), Some(&Output::Over(Err(MembershipError::Abandoned))));
    for handler in HANDLERS {
        let called = Called { from: worker("b"), handler: handler.into(), payload: Box::default() };
        agent.handle(at, Input::Called(7, called));
        assert_eq!(agent.poll_output(), Some(Output::Decline(7)));
    }
    let message = "this worker was shut down".into();
    assert_eq!(agent.callee("a").map(drop), Err(NotCallable::Over { message }));
    let message = "the worker is not in a group any more".into();
    assert_eq!(agent.admit(&worker("b")), Err((Refusal::Over, message)));
}

fn state_of(name: &str, address: &str) -> WorkerLocation {
    WorkerLocation { worker: worker(name), address: address.into() }
}

fn newcomer(name: &str, id: u16, address: &str) -> Option<Member> {
    let worker = WorkerInfo { name: name.parse().expect("a name"), id };
    Some(Member { worker, address: address.into(), devices: NodeDevices::default() })
}

#[test]
fn who_was_heard_before_a_static_group_was_complete_is_asked_for_again() {
    let mut world = World::new(14, Signing::None);
    world.spawn("a", Some(2));
    world.spawn("b", Some(2));
    let ready = |from: &str, number| {
        let called = Called { from: worker(from), handler: READY_HANDLER.into(), payload: Box::default() };
        Input::Called(number, called)
    };
    // A worker that is not a member, and one with the name of a member and another number.
    world.input(0, ready("e", 1_000_001));
    let (mut outputs, now) = (Vec::new(), world.now);
    while world.nodes[0].agent.life == Life::Joining {
        world.run_for(1);
    }
    let message = "e (id 4) is not a member of this group";
    assert_eq!(world.answers, [(1_000_001, Err(message.into()))]);
    let agent = &mut world.nodes[0].agent;
    agent.handle(now, ready("e", 2));
    agent.handle(now, Input::Abandon);
    outputs.extend(core::iter::from_fn(|| agent.poll_output()));
    assert_eq!(outputs[0], Output::Respond(2, Err(message.into())));
    assert_eq!(outputs.iter().filter(|output| **output == Output::AdmitAgain).count(), 1);

    let member = newcomer("a", 0, "a@0").expect("a member");
    let options = MemberOptions {
        member,
        accelerator: DeviceKind::CUDA,
        timeout: TIMEOUT,
        times: TokenTimes::default(),
        liveness: Liveness::Unknown,
        nonce: 7,
    };
    let mut world = World::new(15, Signing::None);
    let mut agent = Agent::new(world.now, options, Some(1)).expect("a worker");
    let mut asked_again = 0;
    while agent.life != Life::Member {
        match agent.poll_output().expect("it goes on") {
            Output::Store(step) => {
                let reply = world.execute(step);
                agent.handle(world.now, Input::Stored(reply));
            }
            other => panic!("{other:?}"),
        }
    }
    while let Some(output) = agent.poll_output() {
        asked_again += usize::from(output == Output::AdmitAgain);
    }
    assert_eq!(asked_again, 1);
}

#[test]
fn what_is_no_call_of_a_members_changes_nothing() {
    let mut world = World::new(7, Signing::None);
    world.spawn("a", None);
    world.run_for(1000);
    let newcomer = Member { worker: worker("c"), address: "c".into(), devices: NodeDevices::default() };
    let of_another = encode_change(&Change { joined: Some(newcomer), left: Vec::new() });
    let departed = WorkerLocation { worker: worker("a"), address: "a@0".into() };
    let of_stranger = encode_change(&Change { joined: None, left: [departed].to_vec() });
    let departed = WorkerLocation { worker: worker("e"), address: "e@0".into() };
    let of_nobody = encode_change(&Change { joined: None, left: [departed].to_vec() });
    for (handler, payload, answer) in [
        ("rdzv/none", Vec::new(), Err("there is no handler rdzv/none")),
        (CHANGE_HANDLER, of_another, Err("b (id 1) announces c (id 2)")),
        (CHANGE_HANDLER, of_stranger, Err("b (id 1) removes a (id 0), which is alive")),
        (CHANGE_HANDLER, of_nobody, Ok(&b""[..])),
        (READY_HANDLER, Vec::new(), Err("b (id 1) is not a member of this group")),
        (REACH_HANDLER, Vec::new(), Ok(b"\x01")),
    ] {
        let called = Called { from: worker("b"), handler: handler.into(), payload: payload.into() };
        let agent = &mut world.nodes[0].agent;
        agent.handle(world.now, Input::Called(7, called));
        let answer = answer.map(Box::from).map_err(Box::from);
        let outputs: Vec<Output> = core::iter::from_fn(|| agent.poll_output()).collect();
        assert!(outputs.contains(&Output::Respond(7, answer)));
        // It reads whether it was removed.
        for output in outputs {
            if let Output::Store(step) = output {
                let reply = world.execute(step);
                world.nodes[0].agent.handle(world.now, Input::Stored(reply));
            }
        }
        let agent = &mut world.nodes[0].agent;
        assert_eq!((agent.poll_output(), agent.life, agent.members().len()), (None, Life::Member, 1));
    }
    let agent = &mut world.nodes[0].agent;
    let called = Called { from: worker("b"), handler: CHANGE_HANDLER.into(), payload: b"x"[..].into() };
    agent.handle(world.now, Input::Called(8, called));
    assert!(matches!(agent.poll_output(), Some(Output::Respond(8, Err(_)))));
}
