//! World of members of RPC groups: many workers join, leave, die, rejoin and freeze over one store, with members of
//! PyTorch among them.

use super::harness::history::CheckError;
use super::harness::key_store::{Executed, KeyStore};
use super::harness::sim_rng::SimRng;
use super::harness::timeline::{Timeline, checked};
use super::{Counts, Failure, Kind as WorldKind, Options, Report};
use rendezvous_core::time::{Duration, Instant};
use rendezvous_rpc::device::DeviceKind;
use rendezvous_rpc::device_map::NodeDevices;
use rendezvous_rpc::exchange::encode_card;
use rendezvous_rpc::membership::change::{Change, WorkerLocation};
use rendezvous_rpc::membership::changing::{ChangingGroup, Input, MemberPresence, NoAnswer, Phase};
use rendezvous_rpc::membership::error::MembershipError;
use rendezvous_rpc::membership::keys::{self, Aim};
use rendezvous_rpc::membership::token::{TokenState, TokenTimes};
use rendezvous_rpc::membership::{Liveness, Member, MemberOptions, Output, Reply, StoreStep};
use rendezvous_rpc::name::WorkerInfo;
use std::collections::BTreeSet;

const NOW: Instant = Instant::from_millis(1000);
const NAMES: [&str; 7] = ["a", "b", "c", "d", "e-1", "f", "g:2"];
const AUDITOR: &str = "z";
/// Two names are those of PyTorch's members.
const TORCH: [&str; 2] = ["t", "u"];
/// Time until which faults are injected.
const MISHAPS_UNTIL: Instant = Instant::from_millis(90_000);
/// A member that is notified of a newcomer calls it.
const UNREACHED: &str = "it cannot call the newcomer";
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
    /// A frozen worker continues, unless it was frozen again.
    Thaw(usize),
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
    /// Outputs of other workers that wait in its sockets while it is frozen, with their senders.
    held: Vec<(usize, Output)>,
    is_twin: bool,
    /// How the last phase ended, and when it began.
    began: Instant,
    tries: u64,
    failure: Option<MembershipError>,
}

struct World {
    sim: Timeline<Event>,
    store: KeyStore,
    nodes: Vec<Node>,
    /// Addresses of workers for whose sake a notification was refused.
    spared: BTreeSet<Box<str>>,
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

fn member(name: &str, id: u16, address: &str) -> Member {
    let worker = WorkerInfo { name: name.parse().expect("a name"), id };
    Member { worker, address: address.into(), devices: NodeDevices::default() }
}

impl World {
    fn after(&mut self, millis: u64, event: Event) {
        self.sim.after(Duration::from_millis(millis), event);
    }

    fn send(&mut self, event: Event) {
        let millis = self.sim.sim_rng.between(1, 15);
        self.after(millis, event);
    }

    fn spawn(&mut self, name: &'static str) {
        let location = self.nodes.len();
        let address: Box<str> = format!("{name}@{location}").into();
        let options = MemberOptions {
            member: member(name, id(name), &address),
            accelerator: DeviceKind::CUDA,
            timeout: Duration::from_secs(200),
            times: TokenTimes::default(),
            liveness: Liveness::Unknown,
            nonce: self.sim.sim_rng.seed(),
        };
        let kind = Kind::Ours(Box::new(ChangingGroup::new(self.sim.now, options)));
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
            held: Vec::new(),
            is_twin: false,
            began: self.sim.now,
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
                    let spent = self.sim.now.since(self.nodes[location].began).as_secs();
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
                        self.sim.at(at, Event::Tick(location));
                    }
                    return;
                }
            }
        }
    }

    fn input(&mut self, location: usize, input: Input) {
        let now = self.sim.now;
        let Kind::Ours(group) = &mut self.nodes[location].kind else { return };
        let seizes = group.token().state() == TokenState::Waking;
        group.handle(now, input);
        let Kind::Ours(group) = &self.nodes[location].kind else { return };
        self.seizures += u64::from(!seizes && group.token().state() == TokenState::Waking);
        self.drain(location);
    }

    fn apply(&mut self, location: usize, step: StoreStep) {
        if let StoreStep::CompareSet { key, expected, .. } = &step {
            self.nodes[location].tries += u64::from(&**key == keys::TOKEN && expected.is_empty());
        }
        match self.store.execute(location, step) {
            Executed::Waits(key, until) => self.sim.at(until, Event::WaitEnds(location, key)),
            Executed::Replied(reply) => {
                for waiting in self.store.take_released() {
                    self.send(Event::Reply(waiting, Reply::Released));
                }
                self.send(Event::Reply(location, reply));
            }
        }
    }

    /// An output reaches the process at an address, if there is one that serves.
    fn arrive(&mut self, from: usize, output: Output) {
        let (Output::CheckAlive(to, _) | Output::Ask(to) | Output::Notify(to, _)) = &output else { return };
        let (to, name) = (to.clone(), to.worker.name.clone());
        let target = self.nodes.iter().position(|node| node.address == to.address && node.is_alive);
        if let Some(at) = target.filter(|&at| self.is_frozen(at)) {
            self.nodes[at].held.push((from, output));
            return;
        }
        if self.waits_for_check(target, from, &output) {
            return self.send(Event::Arrives(from, output));
        }
        let back = match (target, output) {
            (None, Output::CheckAlive(..)) => Input::Suspected(name, MemberPresence::Unsettled),
            (None, Output::Ask(_)) => Input::MemberAnswered(name, Err(NoAnswer::Dead)),
            (Some(at), Output::CheckAlive(..)) => {
                let is_settled = self.is_settled(at);
                let member_presence =
                    if is_settled { MemberPresence::Settled } else { MemberPresence::Unsettled };
                Input::Suspected(name, member_presence)
            }
            (Some(_), Output::Ask(_)) => {
                let card = encode_card(&to.worker, &NodeDevices::default());
                Input::MemberAnswered(name, Ok(card.into()))
            }
            (Some(at), Output::Notify(_, change)) => {
                let refusal = self.refusal(at, from, &change);
                self.spared.extend(refusal.clone());
                let is_removed = change.left.iter().any(|left| left.address == to.address);
                let is_heard = change.joined.is_some() || self.knows(at, self.nodes[from].name);
                if is_removed || (is_heard && refusal.is_none()) {
                    self.input(at, Input::Changed(change));
                }
                Input::Announced(name, refusal.map_or(Ok(()), |why| Err(NoAnswer::Unknown(why))))
            }
            _ => Input::Announced(name, Err(NoAnswer::Dead)),
        };
        self.send(Event::Back(from, back));
    }

    /// Whether the response depends on a member that reads in the store whether it was removed.
    fn waits_for_check(&self, target: Option<usize>, from: usize, output: &Output) -> bool {
        let checks = |at: usize| {
            let node = &self.nodes[at];
            matches!(&node.kind, Kind::Ours(group) if group.checks_removal()) && !self.is_frozen(at)
        };
        match (target, output) {
            (Some(at), Output::CheckAlive(..)) => checks(at),
            (Some(at), Output::Notify(_, change)) => (0..self.nodes.len()).any(|other| {
                let is_struck = |left: &WorkerLocation| left.address == self.nodes[other].address;
                let is_asked = self.nodes[other].is_alive && other != at && other != from;
                is_asked && checks(other) && change.left.iter().any(is_struck)
            }),
            _ => false,
        }
    }

    fn is_frozen(&self, location: usize) -> bool {
        self.nodes[location].frozen_until > self.sim.now
    }

    fn is_settled(&self, location: usize) -> bool {
        match &self.nodes[location].kind {
            Kind::Ours(group) => group.is_settled(),
            Kind::Torch(state) => *state == Torch::Member,
        }
    }

    /// Whether a worker accepts changes from this one.
    fn knows(&self, at: usize, name: &str) -> bool {
        match &self.nodes[at].kind {
            Kind::Ours(group) => group.members().get(name).is_some(),
            Kind::Torch(_) => true,
        }
    }

    /// The verification by which a worker refuses a notification (`agent::changes`), in one instant.
    fn refusal(&self, at: usize, from: usize, change: &Change) -> Option<Box<str>> {
        let Kind::Ours(group) = &self.nodes[at].kind else { return None };
        let process = |address: &str| {
            (0..self.nodes.len()).find(|&at| *self.nodes[at].address == *address && self.nodes[at].is_alive)
        };
        if self.is_settled(at) && change.left.iter().any(|left| left.address == self.nodes[at].address) {
            return Some("it is alive itself".into());
        }
        let newcomer = change.joined.as_ref();
        let is_reached =
            |newcomer: &Member| process(&newcomer.address).is_some_and(|newcomer| !self.is_frozen(newcomer));
        if newcomer.is_some_and(|newcomer| !is_reached(newcomer)) {
            return Some(UNREACHED.into());
        }
        let replaces = |member: &Member| {
            newcomer.is_some_and(|newcomer| {
                (newcomer.worker.name == member.worker.name || newcomer.worker.id == member.worker.id)
                    && newcomer.location() != member.location()
            })
        };
        group.members().iter().find_map(|member| {
            let is_struck = change.left.iter().any(|left| left.is(member));
            let alive = process(&member.address).filter(|&alive| alive != at && alive != from)?;
            let stays = (is_struck && !self.is_frozen(alive) && self.is_settled(alive))
                || (!is_struck && replaces(member));
            stays.then(|| member.address.clone())
        })
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
                    self.store.set(&keys::address_of(name), address.as_bytes());
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
                if next == Torch::Member && self.sim.now < MISHAPS_UNTIL {
                    let stays = 1000 + self.below(20_000);
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
            if thaws > self.sim.now {
                self.sim.at(thaws, event);
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
                if self.store.end_wait(location, &key) {
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
                let again = 200 + self.below(8000);
                self.after(again, Event::Spawn(self.nodes[location].name));
            }
            Event::Twin(name) => {
                let location = self.nodes.len();
                self.spawn(name);
                self.nodes[location].is_twin = true;
            }
            Event::Freeze(location, until) => {
                let node = &mut self.nodes[location];
                node.frozen_until = node.frozen_until.max(until);
                node.was_frozen = true;
                self.sim.at(until, Event::Thaw(location));
            }
            Event::Thaw(location) if self.is_frozen(location) => {}
            Event::Thaw(location) => {
                // It reads its sockets in any order, and each of them from its beginning.
                let mut held = core::mem::take(&mut self.nodes[location].held);
                while !held.is_empty() {
                    let senders: Vec<usize> = held.iter().map(|&(from, _)| from).collect();
                    let from = self.sim.sim_rng.pick(&senders);
                    let first = senders.iter().position(|&other| other == from).expect("a sender");
                    let (from, output) = held.remove(first);
                    self.arrive(from, output);
                }
            }
            Event::Leave(location) => match self.nodes[location].kind {
                Kind::Ours(_) => {
                    (self.nodes[location].tries, self.nodes[location].began) = (0, self.sim.now);
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
        let mut died = None;
        for node in self.nodes.iter_mut().filter(|node| node.is_twin && node.is_alive) {
            if let Kind::Ours(group) = &node.kind
                && group.token().is_held()
                && group.phase() == Phase::Asking
            {
                node.is_alive = false;
                self.twins_deaths += 1;
                died = Some(node.name);
            }
        }
        let is_namesake = |node: &Node| node.is_alive && Some(node.name) == died;
        if let Some(location) = self.nodes.iter().position(is_namesake)
            && self.freezes
            && self.below(2) == 0
        {
            // If it does not respond in time, it is removed in place of the twin.
            let thaws = self.sim.now + Duration::from_millis(5000 + self.below(20_000));
            self.now(Event::Freeze(location, thaws));
        }
    }

    /// Checks that at most one has the token; a worker that was frozen may not know yet that it has lost it.
    fn check(&self) {
        let holds = |node: &&Node| {
            node.is_alive
                && !node.was_frozen
                && match &node.kind {
                    Kind::Ours(group) => group.token().is_held(),
                    Kind::Torch(state) => matches!(state, Torch::Reading(_) | Torch::Writing(_)),
                }
        };
        let holders: Vec<&str> = self.nodes.iter().filter(holds).map(|node| node.name).collect();
        assert!(holders.len() <= 1, "{holders:?} hold the token");
        for node in self.nodes.iter().filter(|node| node.failure.is_some()) {
            let error = node.failure.as_ref().expect("it failed");
            let is_excused = self.freezes
                && match error {
                    MembershipError::TokenLost | MembershipError::Evicted { .. } => node.was_frozen,
                    MembershipError::Unanswered { message, .. } if **message == *UNREACHED => node.was_frozen,
                    // It did not respond in time, and was removed; then it responded to another member.
                    MembershipError::Unanswered { message, .. } => {
                        self.nodes.iter().any(|other| other.address == *message && other.was_frozen)
                    }
                    _ => false,
                };
            let is_twin = node.is_twin && matches!(error, MembershipError::NotUnique { .. });
            assert!(is_excused || is_twin, "{}: {error}", node.name);
        }
    }

    /// Executes an event that is not scheduled.
    fn now(&mut self, event: Event) {
        self.sim.note(format_args!("{event:?}"));
        self.step(event);
    }

    fn mishap(&mut self) {
        let places: Vec<usize> = (0..self.nodes.len())
            .filter(|&location| {
                self.nodes[location].is_alive && matches!(self.nodes[location].kind, Kind::Ours(_))
            })
            .collect();
        if places.is_empty() {
            return;
        }
        let location = self.sim.sim_rng.pick(&places);
        let is_busy = match &self.nodes[location].kind {
            Kind::Ours(group) => !matches!(group.phase(), Phase::Member | Phase::Over),
            Kind::Torch(_) => false,
        };
        match self.below(4) {
            1 if !is_busy && self.below(4) == 0 => self.now(Event::Twin(self.nodes[location].name)),
            // Most die while they are joining or leaving.
            0 | 1 if is_busy || self.below(3) == 0 => self.now(Event::Kill(location)),
            2 if self.freezes => {
                let thaws = self.sim.now + Duration::from_millis(1000 + self.below(14_000));
                self.now(Event::Freeze(location, thaws));
            }
            _ if !is_busy => {
                self.now(Event::Leave(location));
                let again = 500 + self.below(9000);
                self.after(again, Event::Spawn(self.nodes[location].name));
            }
            _ => {}
        }
    }

    fn run(&mut self, until: Instant) -> Result<(), CheckError> {
        while let Some(event) = self.sim.next(until)? {
            self.sim.note(format_args!("{event:?}"));
            self.step(event);
        }
        self.sim.now = until;
        Ok(())
    }

    /// Simulates one life of a group.
    fn live(&mut self, torch_is_there: bool) -> Result<(), CheckError> {
        for name in NAMES {
            let at = self.below(3000);
            self.after(at, Event::Spawn(name));
            for _ in 0..4 {
                let at = self.below(80_000);
                self.after(at, Event::Spawn(name));
            }
        }
        for name in TORCH.into_iter().filter(|_| torch_is_there) {
            for _ in 0..5 {
                let at = self.below(80_000);
                self.after(at, Event::TorchJoins(name));
            }
        }
        while self.sim.now < MISHAPS_UNTIL {
            let next = self.sim.now + Duration::from_millis(20 + self.below(700));
            self.run(next)?;
            self.mishap();
        }
        // The others must also remove what a process with the name of a live one left when it died.
        let is_member = |node: &&Node| {
            node.is_alive && matches!(&node.kind, Kind::Ours(group) if group.phase() == Phase::Member)
        };
        if let Some(name) = self.nodes.iter().find(is_member).map(|node| node.name) {
            self.now(Event::Twin(name));
        }
        // A worker that is joining arrives, or is found dead by the next one.
        let settled = MISHAPS_UNTIL + Duration::from_secs(200);
        self.run(settled)?;
        // The auditor may find a member that does not respond.
        let members: Vec<&'static str> = self.nodes.iter().filter(is_member).map(|node| node.name).collect();
        if self.freezes && !members.is_empty() {
            let name = self.sim.sim_rng.pick(&members);
            self.now(Event::Twin(name));
            self.run(settled + Duration::from_secs(2))?;
        }
        self.spawn(AUDITOR);
        self.run(settled + Duration::from_secs(60))?;
        self.check_end();
        Ok(())
    }

    fn check_end(&self) {
        let listed = keys::parse_roster(&self.store.get(keys::ALL_WORKERS)).expect("a list");
        let listed: BTreeSet<String> = listed.iter().map(|worker| worker.name.to_string()).collect();
        let is_member = |node: &&Node| {
            node.is_alive
                && match &node.kind {
                    Kind::Ours(group) => {
                        assert_eq!(group.phase(), Phase::Member, "{} is on its way still", node.name);
                        true
                    }
                    Kind::Torch(state) => {
                        assert!(
                            matches!(state, Torch::Member),
                            "{} is on its way still: {state:?}",
                            node.name
                        );
                        true
                    }
                }
        };
        let living: BTreeSet<String> =
            self.nodes.iter().filter(is_member).map(|node| node.name.to_string()).collect();
        assert_eq!(listed, living, "who is listed lives, and who lives is listed");
        assert_eq!(&*self.store.get(keys::TOKEN), b"", "the token is free");
        for node in self.nodes.iter().filter(|node| node.is_alive) {
            if let Kind::Ours(group) = &node.kind {
                // A worker that resumed after it had been removed from the list, and before all were notified, is
                // kept by those to which it responded. It ends, which they detect as they detect a death.
                let has_ended = |member: &&Member| {
                    let was_evicted = |other: &Node| {
                        other.address == member.address
                            && matches!(other.failure, Some(MembershipError::Evicted { .. }))
                    };
                    self.spared.contains(&member.address) && self.nodes.iter().any(was_evicted)
                };
                let known = group.members().iter().filter(|member| !has_ended(member));
                let known: BTreeSet<String> = known.map(|member| member.worker.name.to_string()).collect();
                assert_eq!(known, living, "what {} knows", node.name);
            }
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.sim.sim_rng.between(0, bound - 1)
    }
}

/// Runs one seed: with members of PyTorch, with freezes, or with neither.
pub(super) fn play(seed: u64, options: &Options) -> Result<Report, Failure> {
    let (torch_is_there, freezes) = [(false, false), (true, false), (false, true)][(seed % 3) as usize];
    let mut world = World {
        sim: Timeline::new(NOW, SimRng::new(seed, 0), options),
        store: KeyStore::default(),
        nodes: Vec::new(),
        spared: BTreeSet::new(),
        joins: 0,
        seizures: 0,
        freezes,
        deaths: 0,
        twins_deaths: 0,
    };
    let played = checked(|| world.live(torch_is_there));
    let World { sim, nodes, joins, deaths, seizures, twins_deaths, .. } = world;
    let was_evicted = |node: &&Node| matches!(node.failure, Some(MembershipError::Evicted { .. }));
    let evictions = nodes.iter().filter(was_evicted).count() as u64;
    let counts: Counts = vec![
        ("joins", joins),
        ("deaths", deaths),
        ("seizures", seizures),
        ("deaths of twins", twins_deaths),
        ("evictions", evictions),
    ];
    sim.finish(seed, WorldKind::Membership, played.map(|()| counts))
}
