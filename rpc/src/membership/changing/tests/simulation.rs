//! Many workers that join, leave, die, rejoin and freeze, over one store, with members of PyTorch among them, in one
//! thread and virtual time. A failure prints its seed.

use super::*;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;

const SEEDS: u64 = 100;
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e-1", "f", "g:2"];
const AUDITOR: &str = "z";
/// Two names are those of PyTorch's members.
const TORCH: [&str; 2] = ["t", "u"];
/// Time until which faults are injected.
const MISHAPS_UNTIL: Instant = Instant::from_millis(90_000);
const END: Instant = Instant::from_millis(400_000);

#[derive(Clone, Debug)]
enum Event {
    /// A step reaches the store.
    Apply(usize, StoreStep),
    /// The store's reply reaches the worker.
    Reply(usize, Reply),
    /// A wait ends.
    WaitEnds(usize, Box<str>),
    /// A request or notification reaches an address.
    Arrives(usize, Output),
    /// Its result reaches the sender.
    Back(usize, Input),
    Tick(usize),
    Spawn(&'static str),
    Kill(usize),
    /// A second process with a live name; it dies with the token, if it gets so far.
    Twin(&'static str),
    Freeze(usize, Instant),
    Leave(usize),
    TorchJoins(&'static str),
}

/// A member of PyTorch, as far as the token concerns it (elastic semantics, 8.5): it tries, waits for the key that it
/// read, changes the list, and returns the token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Torch {
    Trying(Aim),
    Reading(Aim),
    Writing(Aim),
    Emptying(Aim),
    MarkingDone(Aim),
    Member,
    Dead,
}

#[derive(Debug)]
enum Kind {
    Ours(Box<ChangingGroup>),
    Torch(Torch),
}

#[derive(Debug)]
struct Node {
    name: &'static str,
    address: Box<str>,
    kind: Kind,
    is_alive: bool,
    frozen_until: Instant,
    was_frozen: bool,
    is_twin: bool,
    /// How the last phase ended, and when it began.
    began: Instant,
    tries: u64,
    failure: Option<MembershipError>,
}

struct World {
    rng: Rng,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    order: u64,
    store: BTreeMap<Box<str>, Box<[u8]>>,
    waits: Vec<(usize, Box<str>)>,
    nodes: Vec<Node>,
    joins: u64,
    seizures: u64,
    freezes: bool,
    deaths: u64,
    twins_deaths: u64,
}

fn id(name: &str) -> u16 {
    let location =
        NAMES.iter().chain(&TORCH).chain([&AUDITOR]).position(|known| *known == name).expect("a name");
    u16::try_from(location).expect("few")
}

impl World {
    fn after(&mut self, millis: u64, event: Event) {
        self.order += 1;
        self.events.insert((self.now + Duration::from_millis(millis), self.order), event);
    }

    fn latency(&mut self) -> u64 {
        1 + self.rng.below(15)
    }

    fn send(&mut self, event: Event) {
        let millis = self.latency();
        self.after(millis, event);
    }

    fn spawn(&mut self, name: &'static str) {
        let location = self.nodes.len();
        let address: Box<str> = format!("{name}@{location}").into();
        let options = ChangingOptions {
            member: member(name, id(name), &address),
            accelerator: DeviceKind::CUDA,
            timeout: Duration::from_secs(200),
            times: TokenTimes::default(),
            liveness: Liveness::Unknown,
            nonce: self.rng.next_u64(),
        };
        let kind = Kind::Ours(Box::new(ChangingGroup::new(self.now, options)));
        self.add(name, address, kind);
        self.drain(location);
    }

    fn add(&mut self, name: &'static str, address: Box<str>, kind: Kind) {
        self.nodes.push(Node {
            name,
            address,
            kind,
            is_alive: true,
            frozen_until: Instant::ORIGIN,
            was_frozen: false,
            is_twin: false,
            began: self.now,
            tries: 0,
            failure: None,
        });
    }

    /// Executes the worker's outputs until it waits for time to pass.
    fn drain(&mut self, location: usize) {
        loop {
            let Kind::Ours(group) = &mut self.nodes[location].kind else { return };
            let output = group.poll_output();
            let timeout = group.poll_timeout();
            match output {
                Some(Output::Store(step)) => self.send(Event::Apply(location, step)),
                Some(output @ (Output::CheckAlive(..) | Output::Ask(_) | Output::Notify(..))) => {
                    self.send(Event::Arrives(location, output))
                }
                Some(Output::Joined) => {
                    self.joins += 1;
                    let tries = core::mem::take(&mut self.nodes[location].tries);
                    let spent = self.now.since(self.nodes[location].began).as_secs();
                    assert!(
                        tries <= 25 + 4 * spent,
                        "{} spins: {tries} tries in {spent} s",
                        self.nodes[location].name
                    );
                    assert!(spent < 190, "{} took {spent} s", self.nodes[location].name);
                }
                Some(Output::Changed(_)) => {}
                Some(Output::Left) => self.nodes[location].is_alive = false,
                Some(Output::Failed(error)) => {
                    self.nodes[location].is_alive = false;
                    self.nodes[location].failure = Some(error);
                }
                None => {
                    if let Some(at) = timeout {
                        self.order += 1;
                        self.events.insert((at.max(self.now), self.order), Event::Tick(location));
                    }
                    return;
                }
            }
        }
    }

    fn input(&mut self, location: usize, input: Input) {
        let now = self.now;
        let Kind::Ours(group) = &mut self.nodes[location].kind else { return };
        let seizes = group.token.state() == TokenState::Waking;
        group.handle(now, input);
        let Kind::Ours(group) = &self.nodes[location].kind else { return };
        self.seizures += u64::from(!seizes && group.token.state() == TokenState::Waking);
        self.drain(location);
    }

    fn set(&mut self, key: &str, value: &[u8]) {
        self.store.insert(key.into(), value.into());
        let (woken, waits) = core::mem::take(&mut self.waits).into_iter().partition(|(_, of)| **of == *key);
        self.waits = waits;
        let woken: Vec<(usize, Box<str>)> = woken;
        for (location, _) in woken {
            self.send(Event::Reply(location, Reply::Released));
        }
    }

    fn read(&self, key: &str) -> Box<[u8]> {
        self.store.get(key).cloned().unwrap_or_default()
    }

    fn apply(&mut self, location: usize, step: StoreStep) {
        let reply = match step {
            StoreStep::CompareSet { key, expected, desired } => {
                self.nodes[location].tries += u64::from(&*key == keys::TOKEN && expected.is_empty());
                // As PyTorch's server: for an absent key it returns the expected value.
                let known = self.store.get(&key).cloned();
                if known.as_deref().unwrap_or_default() == expected.as_bytes() {
                    self.set(&key, desired.as_bytes());
                    Reply::Value(desired.as_bytes().into())
                } else {
                    Reply::Value(known.unwrap_or_else(|| expected.as_bytes().into()))
                }
            }
            StoreStep::Set { key, value } | StoreStep::SetForSession { key, value } => {
                self.set(&key, &value);
                Reply::Done
            }
            StoreStep::Get { key } => Reply::Value(self.read(&key)),
            StoreStep::Peek { keys } => Reply::Values(keys.iter().map(|key| self.read(key)).collect()),
            StoreStep::Delete { keys } => {
                keys.iter().for_each(|key| drop(self.store.remove(key)));
                Reply::Done
            }
            StoreStep::Forget { key, expected } => {
                if *self.read(&key) == *expected.as_bytes() {
                    self.store.remove(&key);
                }
                Reply::Done
            }
            StoreStep::Add { .. } => unreachable!("a dynamic group counts nothing"),
            StoreStep::Wait { key, .. } if self.store.contains_key(&key) => Reply::Released,
            StoreStep::Wait { key, until } => {
                self.waits.push((location, key.clone()));
                self.order += 1;
                self.events.insert((until.max(self.now), self.order), Event::WaitEnds(location, key));
                return;
            }
        };
        self.send(Event::Reply(location, reply));
    }

    /// An output reaches the process at an address, if there is one that serves.
    fn arrive(&mut self, from: usize, output: Output) {
        let (Output::CheckAlive(to, _) | Output::Ask(to) | Output::Notify(to, _)) = &output else { return };
        let (to, name) = (to.clone(), to.worker.name.clone());
        let target = self.nodes.iter().position(|node| node.address == to.address && node.is_alive);
        if let Some(at) = target.filter(|&at| self.nodes[at].frozen_until > self.now) {
            let thaws = self.nodes[at].frozen_until;
            self.order += 1;
            self.events.insert((thaws, self.order), Event::Arrives(from, output));
            return;
        }
        let back = match (target, output) {
            (None, Output::CheckAlive(..)) => Input::Suspected(name, MemberPresence::Unsettled),
            (None, Output::Ask(_)) => Input::MemberAnswered(name, Err(NoAnswer::Dead)),
            (Some(at), Output::CheckAlive(..)) => {
                let is_settled = match &self.nodes[at].kind {
                    Kind::Ours(group) => group.phase() == Phase::Member,
                    Kind::Torch(state) => *state == Torch::Member,
                };
                let member_presence =
                    if is_settled { MemberPresence::Settled } else { MemberPresence::Unsettled };
                Input::Suspected(name, member_presence)
            }
            (Some(_), Output::Ask(_)) => {
                let card = crate::exchange::encode_card(&to.worker, &NodeDevices::default());
                Input::MemberAnswered(name, Ok(card.into()))
            }
            (Some(at), Output::Notify(_, change)) => {
                self.input(at, Input::Changed(change));
                Input::Announced(name, Ok(()))
            }
            _ => Input::Announced(name, Err(NoAnswer::Dead)),
        };
        self.send(Event::Back(from, back));
    }

    fn torch(&mut self, location: usize, reply: &Reply) {
        let Kind::Torch(state) = self.nodes[location].kind else { return };
        let name = self.nodes[location].name;
        let local = |aim| keys::token(name, aim);
        let step = match (state, reply) {
            (Torch::Trying(aim), Reply::Value(value)) if **value == *local(aim).as_bytes() => {
                self.nodes[location].kind = Kind::Torch(Torch::Reading(aim));
                StoreStep::Get { key: keys::ALL_WORKERS.into() }
            }
            (Torch::Trying(_), Reply::Value(value)) => {
                let key = String::from_utf8_lossy(value).into();
                StoreStep::Wait { key, until: END }
            }
            (Torch::Trying(aim), Reply::Released) => {
                StoreStep::CompareSet { key: keys::TOKEN.into(), expected: "".into(), desired: local(aim) }
            }
            (Torch::Reading(aim), Reply::Value(value)) => {
                let me = member(name, id(name), "").worker;
                let mut listed = keys::parse_roster(value).expect("a list");
                listed.retain(|worker| *worker != me);
                listed.extend((aim == Aim::Join).then_some(me));
                if aim == Aim::Join {
                    let address = self.nodes[location].address.clone();
                    self.set(&keys::address_of(name), address.as_bytes());
                }
                self.nodes[location].kind = Kind::Torch(Torch::Writing(aim));
                let value = keys::roster_text(&listed).as_bytes().into();
                StoreStep::Set { key: keys::ALL_WORKERS.into(), value }
            }
            (Torch::Writing(aim), Reply::Done) => {
                // It notifies all others that it considers alive.
                let worker = member(name, id(name), "").worker;
                let address = self.nodes[location].address.clone();
                let change = match aim {
                    Aim::Join => Change { joined: Some(member(name, id(name), &address)), left: Vec::new() },
                    Aim::Leave => {
                        Change { joined: None, left: [WorkerLocation { worker, address }].to_vec() }
                    }
                };
                for at in 0..self.nodes.len() {
                    if self.nodes[at].is_alive && at != location {
                        self.input(at, Input::Changed(change.clone()));
                    }
                }
                self.nodes[location].kind = Kind::Torch(Torch::Emptying(aim));
                StoreStep::Set { key: keys::TOKEN.into(), value: b""[..].into() }
            }
            (Torch::Emptying(aim), Reply::Done) => {
                self.nodes[location].kind = Kind::Torch(Torch::MarkingDone(aim));
                StoreStep::Set { key: local(aim), value: keys::DONE.as_bytes().into() }
            }
            (Torch::MarkingDone(aim), Reply::Done) => {
                let next = if aim == Aim::Join { Torch::Member } else { Torch::Dead };
                self.nodes[location].kind = Kind::Torch(next);
                self.nodes[location].is_alive = next == Torch::Member;
                if next == Torch::Member && self.now < MISHAPS_UNTIL {
                    let stays = 1000 + self.rng.below(20_000);
                    self.after(stays, Event::Leave(location));
                }
                return;
            }
            (state, reply) => unreachable!("{state:?} {reply:?}"),
        };
        self.send(Event::Apply(location, step));
    }

    fn torch_tries(&mut self, location: usize, aim: Aim) {
        self.nodes[location].kind = Kind::Torch(Torch::Trying(aim));
        let desired = keys::token(self.nodes[location].name, aim);
        self.send(Event::Apply(
            location,
            StoreStep::CompareSet { key: keys::TOKEN.into(), expected: "".into(), desired },
        ));
    }

    fn step(&mut self, event: Event) {
        let of = match &event {
            Event::Reply(at, _) | Event::Back(at, _) | Event::Tick(at) | Event::Leave(at) => Some(*at),
            _ => None,
        };
        if let Some(at) = of {
            let thaws = self.nodes[at].frozen_until;
            if !self.nodes[at].is_alive {
                return;
            }
            if thaws > self.now {
                self.order += 1;
                self.events.insert((thaws, self.order), event);
                return;
            }
        }
        match event {
            Event::Apply(location, step) => self.apply(location, step),
            Event::Reply(location, reply) => match self.nodes[location].kind {
                Kind::Ours(_) => self.input(location, Input::Stored(reply)),
                Kind::Torch(_) => self.torch(location, &reply),
            },
            Event::WaitEnds(location, key) => {
                if let Some(at) = self.waits.iter().position(|(of, known)| *of == location && *known == key) {
                    self.waits.remove(at);
                    self.send(Event::Reply(location, Reply::TimedOut));
                }
            }
            Event::Arrives(from, output) => self.arrive(from, output),
            Event::Back(location, input) => self.input(location, input),
            Event::Tick(location) => self.input(location, Input::Tick),
            Event::Spawn(name) => {
                let lives = self.nodes.iter().any(|node| node.name == name && node.is_alive);
                if !lives {
                    self.spawn(name);
                }
            }
            Event::Kill(location) => {
                self.deaths += u64::from(self.nodes[location].is_alive);
                self.nodes[location].is_alive = false;
                let again = 200 + self.rng.below(8000);
                self.after(again, Event::Spawn(self.nodes[location].name));
            }
            Event::Twin(name) => {
                let location = self.nodes.len();
                self.spawn(name);
                self.nodes[location].is_twin = true;
            }
            Event::Freeze(location, until) => {
                self.nodes[location].frozen_until = until;
                self.nodes[location].was_frozen = true;
            }
            Event::Leave(location) => match self.nodes[location].kind {
                Kind::Ours(_) => {
                    (self.nodes[location].tries, self.nodes[location].began) = (0, self.now);
                    self.input(location, Input::Leave);
                }
                Kind::Torch(Torch::Member) => self.torch_tries(location, Aim::Leave),
                Kind::Torch(_) => {}
            },
            Event::TorchJoins(name) => {
                if !self.nodes.iter().any(|node| node.name == name && node.is_alive) {
                    let location = self.nodes.len();
                    self.add(name, format!("{name}@{location}").into(), Kind::Torch(Torch::Dead));
                    self.torch_tries(location, Aim::Join);
                }
            }
        }
        self.kill_twins();
        self.check();
    }

    /// Before any of them learns that its name is taken.
    fn kill_twins(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_twin && node.is_alive) {
            if let Kind::Ours(group) = &node.kind
                && group.token.is_held()
                && group.phase() == Phase::Asking
            {
                node.is_alive = false;
                self.twins_deaths += 1;
            }
        }
    }

    /// Checks that at most one has the token; a worker that was frozen may not know yet that it has lost it.
    fn check(&self) {
        let holds = |node: &&Node| {
            node.is_alive
                && !node.was_frozen
                && match &node.kind {
                    Kind::Ours(group) => group.token.is_held(),
                    Kind::Torch(state) => matches!(state, Torch::Reading(_) | Torch::Writing(_)),
                }
        };
        let holders: Vec<&str> = self.nodes.iter().filter(holds).map(|node| node.name).collect();
        assert!(holders.len() <= 1, "{holders:?} hold the token");
        for node in self.nodes.iter().filter(|node| node.failure.is_some()) {
            let error = node.failure.as_ref().expect("it failed");
            let is_excused = self.freezes
                && matches!(error, MembershipError::TokenLost | MembershipError::Evicted { .. })
                && node.was_frozen;
            let is_twin = node.is_twin && matches!(error, MembershipError::NotUnique { .. });
            assert!(is_excused || is_twin, "{}: {error}", node.name);
        }
    }

    fn mishap(&mut self) {
        let places: Vec<usize> = (0..self.nodes.len())
            .filter(|&location| {
                self.nodes[location].is_alive && matches!(self.nodes[location].kind, Kind::Ours(_))
            })
            .collect();
        let Ok(bound) = u64::try_from(places.len()) else { return };
        let Some(&location) = places.get(usize::try_from(self.rng.below(bound)).expect("few")) else {
            return;
        };
        let is_busy = match &self.nodes[location].kind {
            Kind::Ours(group) => !matches!(group.phase(), Phase::Member | Phase::Over),
            Kind::Torch(_) => false,
        };
        match self.rng.below(4) {
            1 if !is_busy && self.rng.below(4) == 0 => self.step(Event::Twin(self.nodes[location].name)),
            // Most die while they are joining or leaving.
            0 | 1 if is_busy || self.rng.below(3) == 0 => self.step(Event::Kill(location)),
            2 if self.freezes => {
                let thaws = self.now + Duration::from_millis(1000 + self.rng.below(14_000));
                self.step(Event::Freeze(location, thaws));
            }
            _ if !is_busy => {
                self.step(Event::Leave(location));
                let again = 500 + self.rng.below(9000);
                self.after(again, Event::Spawn(self.nodes[location].name));
            }
            _ => {}
        }
    }

    fn run(&mut self, until: Instant) {
        while let Some((&(at, order), _)) = self.events.first_key_value().filter(|((at, _), _)| *at <= until)
        {
            let event = self.events.remove(&(at, order)).expect("it is there");
            self.now = at;
            self.step(event);
        }
        self.now = until;
    }
}

/// Simulates one life of a group; returns counts of what happened.
fn live(seed: u64, torch_is_there: bool, freezes: bool) -> [u64; 4] {
    let mut world = World {
        rng: Rng::new(seed),
        now: NOW,
        events: BTreeMap::new(),
        order: 0,
        store: BTreeMap::new(),
        waits: Vec::new(),
        nodes: Vec::new(),
        joins: 0,
        seizures: 0,
        freezes,
        deaths: 0,
        twins_deaths: 0,
    };
    for name in NAMES {
        let at = world.rng.below(3000);
        world.after(at, Event::Spawn(name));
        for _ in 0..4 {
            let at = world.rng.below(80_000);
            world.after(at, Event::Spawn(name));
        }
    }
    for name in TORCH.into_iter().filter(|_| torch_is_there) {
        for _ in 0..5 {
            let at = world.rng.below(80_000);
            world.after(at, Event::TorchJoins(name));
        }
    }
    while world.now < MISHAPS_UNTIL {
        let next = world.now + Duration::from_millis(20 + world.rng.below(700));
        world.run(next);
        world.mishap();
    }
    // The others must also remove what a process with the name of a live one left when it died.
    let is_member = |node: &&Node| {
        node.is_alive && matches!(&node.kind, Kind::Ours(group) if group.phase() == Phase::Member)
    };
    if let Some(name) = world.nodes.iter().find(is_member).map(|node| node.name) {
        world.step(Event::Twin(name));
    }
    // A worker that is joining arrives, or is found dead by the next one.
    let settled = MISHAPS_UNTIL + Duration::from_secs(200);
    world.run(settled);
    world.spawn(AUDITOR);
    world.run(settled + Duration::from_secs(60));

    let listed = keys::parse_roster(&world.read(keys::ALL_WORKERS)).expect("a list");
    let listed: BTreeSet<String> = listed.iter().map(|worker| worker.name.to_string()).collect();
    let is_member = |node: &&Node| {
        node.is_alive
            && match &node.kind {
                Kind::Ours(group) => {
                    assert_eq!(group.phase(), Phase::Member, "{} is on its way still", node.name);
                    true
                }
                Kind::Torch(state) => {
                    assert!(matches!(state, Torch::Member), "{} is on its way still: {state:?}", node.name);
                    true
                }
            }
    };
    let living: BTreeSet<String> =
        world.nodes.iter().filter(is_member).map(|node| node.name.to_string()).collect();
    assert_eq!(listed, living, "who is listed lives, and who lives is listed");
    assert_eq!(&*world.read(keys::TOKEN), b"", "the token is free");
    for node in world.nodes.iter().filter(|node| node.is_alive) {
        if let Kind::Ours(group) = &node.kind {
            let known: BTreeSet<String> =
                group.members().iter().map(|member| member.worker.name.to_string()).collect();
            assert_eq!(known, living, "what {} knows", node.name);
        }
    }
    [world.joins, world.deaths, world.seizures, world.twins_deaths]
}

#[test]
fn workers_come_go_die_and_freeze_and_the_group_goes_on() {
    let mut reported = [0; 4];
    for seed in 0..SEEDS {
        for (torch_is_there, freezes) in [(false, false), (true, false), (false, true)] {
            let _culprit = Culprit(seed, torch_is_there, freezes);
            let more = live(seed, torch_is_there, freezes);
            reported.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    // What never happened was not tested.
    let [joins, deaths, seizures, twins_deaths] = reported;
    assert!(joins > 20 * SEEDS && deaths > 10 * SEEDS && seizures > SEEDS, "{reported:?}");
    assert!(twins_deaths > SEEDS, "{reported:?}");
}
