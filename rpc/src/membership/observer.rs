//! Observer of a group that is not its member. It reads the keys alone, so it sees PyTorch's groups as well.
//!
//! The observer reads the keys periodically, and at once when it is notified of a change. It writes nothing.

use super::change::WorkerLocation;
use super::keys::{self, RosterError};
use super::{Reply, StoreStep};
use crate::device_map::GroupKind;
use crate::name::{WorkerInfo, WorkerName};
use alloc::collections::VecDeque;
use rendezvous_core::prelude::*;

/// Number of names of a static group that are read at a time.
const NAMES_AT_ONCE: u16 = 64;
/// Time that a worker has to write its address: PyTorch's workers write their names first, and so do those of static
/// groups.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two reads of a missing address.
const ADDRESS_PAUSE: Duration = Duration::from_millis(50);

/// Events of an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The first worker has joined; the group is of this kind.
    Begun(GroupKind),
    /// A worker has joined; its address is empty if it has not written one in time. If it rejoined at another address,
    /// [`Observation::Left`] came before.
    Joined(WorkerLocation),
    /// A worker has left.
    Left(WorkerInfo),
}

/// Errors of an observer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObserverError {
    /// The list of members is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The kind of the group is neither static nor dynamic.
    #[error("{} holds {value:?}, which is neither true nor false", keys::IS_STATIC)]
    Kind {
        /// Value of the key.
        value: Box<str>,
    },
    /// The store failed.
    #[error("the store failed: {message}")]
    Store {
        /// Message of the store.
        message: Box<str>,
    },
}

/// Actions for the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObserverOutput {
    /// Execute this step and report the reply.
    Store(StoreStep),
    /// Deliver this event.
    Observation(Observation),
    /// The observer has failed. It emits nothing more.
    Failed(ObserverError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObserverState {
    /// Reads the kind of the group.
    Asking,
    /// Reads the list of a dynamic group.
    Reading,
    /// Reads the names of a static group, from this number on.
    Naming(u16),
    /// Reads the addresses of the workers.
    Locating,
    /// Waits until the next read.
    Resting(Instant),
    Over,
}

/// State machine of an observer.
#[derive(Clone, Debug)]
pub struct Observer {
    state: ObserverState,
    pause: Duration,
    kind: Option<GroupKind>,
    /// Whether the keys have changed since the current read began.
    is_stale: bool,
    found: Vec<WorkerInfo>,
    seen: Vec<WorkerLocation>,
    /// Workers that have a name but no address, each with the time after which it is reported without one.
    unlocated: Vec<(WorkerInfo, Instant)>,
    outputs: VecDeque<ObserverOutput>,
}

impl Observer {
    /// Creates an observer that reads the keys at this interval.
    pub fn new(pause: Duration) -> Self {
        let mut observer = Self {
            state: ObserverState::Asking,
            pause,
            kind: None,
            is_stale: false,
            found: Vec::new(),
            seen: Vec::new(),
            unlocated: Vec::new(),
            outputs: VecDeque::new(),
        };
        observer.ask();
        observer
    }

    /// Workers seen so far, in the order of their numbers.
    pub fn seen(&self) -> &[WorkerLocation] {
        &self.seen
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<ObserverOutput> {
        self.outputs.pop_front()
    }

    /// Time of the next [`Observer::tick`]; `None` if none is needed.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            ObserverState::Resting(at) => Some(at),
            _ => None,
        }
    }

    /// Processes the passage of time.
    pub fn tick(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.look();
        }
    }

    /// Reads the keys again: a watch on them has reported a change.
    pub fn keys_changed(&mut self) {
        if matches!(self.state, ObserverState::Resting(_)) {
            self.look();
        } else {
            self.is_stale = true;
        }
    }

    fn look(&mut self) {
        self.is_stale = false;
        self.found.clear();
        self.state = match self.kind {
            None => ObserverState::Asking,
            Some(GroupKind::Dynamic) => ObserverState::Reading,
            Some(GroupKind::Static) => ObserverState::Naming(0),
        };
        self.ask();
    }

    fn ask(&mut self) {
        let step = match self.state {
            ObserverState::Asking => StoreStep::Get { key: keys::IS_STATIC.into() },
            ObserverState::Reading => StoreStep::Get { key: keys::ALL_WORKERS.into() },
            ObserverState::Naming(from) => {
                let ids = from..from.saturating_add(NAMES_AT_ONCE);
                StoreStep::Peek { keys: ids.map(keys::name_of).collect() }
            }
            ObserverState::Locating => StoreStep::Peek {
                keys: self.found.iter().map(|worker| keys::address_of(&worker.name)).collect(),
            },
            ObserverState::Resting(_) | ObserverState::Over => return,
        };
        self.outputs.push_back(ObserverOutput::Store(step));
    }

    fn rest(&mut self, now: Instant) {
        let pause = if self.unlocated.is_empty() { self.pause } else { self.pause.min(ADDRESS_PAUSE) };
        self.state = ObserverState::Resting(now + pause);
        if self.is_stale {
            self.look();
        }
    }

    /// Processes the reply to the last step.
    pub fn handle(&mut self, now: Instant, reply: Reply) {
        if let Err(error) = self.take(now, reply) {
            self.state = ObserverState::Over;
            self.outputs.push_back(ObserverOutput::Failed(error));
        }
    }

    fn take(&mut self, now: Instant, reply: Reply) -> Result<(), ObserverError> {
        match (self.state, reply) {
            (ObserverState::Over | ObserverState::Resting(_), _) => {}
            (_, Reply::Failed(message)) => return Err(ObserverError::Store { message }),
            (ObserverState::Asking, Reply::Value(value)) if value.is_empty() => self.rest(now),
            (ObserverState::Asking, Reply::Value(value)) => {
                let kind = match &*value {
                    b"true" => GroupKind::Static,
                    b"false" => GroupKind::Dynamic,
                    other => {
                        return Err(ObserverError::Kind { value: String::from_utf8_lossy(other).into() });
                    }
                };
                self.kind = Some(kind);
                self.outputs.push_back(ObserverOutput::Observation(Observation::Begun(kind)));
                self.look();
            }
            (ObserverState::Reading, Reply::Value(value)) => {
                self.found = keys::parse_roster(&value)?;
                self.locate(now);
            }
            (ObserverState::Naming(from), Reply::Values(values)) => {
                let named = (from..).zip(&values).filter_map(|(id, value)| {
                    let name = WorkerName::new(core::str::from_utf8(value).ok()?).ok()?;
                    Some(WorkerInfo { name, id })
                });
                let before = self.found.len();
                self.found.extend(named);
                if self.found.len() > before && from.checked_add(NAMES_AT_ONCE).is_some() {
                    self.state = ObserverState::Naming(from + NAMES_AT_ONCE);
                    self.ask();
                } else {
                    self.locate(now);
                }
            }
            (ObserverState::Locating, Reply::Values(values)) if values.len() == self.found.len() => {
                self.compare(now, &values);
                self.rest(now);
            }
            _ => return Err(ObserverError::Store { message: "its reply does not match the request".into() }),
        }
        Ok(())
    }

    fn locate(&mut self, now: Instant) {
        WorkerInfo::sort(&mut self.found);
        if self.found.is_empty() {
            self.compare(now, &[]);
            return self.rest(now);
        }
        self.state = ObserverState::Locating;
        self.ask();
    }

    fn compare(&mut self, now: Instant, addresses: &[Box<[u8]>]) {
        let mut found: Vec<WorkerLocation> = core::mem::take(&mut self.found)
            .into_iter()
            .zip(addresses)
            .map(|(worker, address)| WorkerLocation {
                worker,
                address: String::from_utf8_lossy(address).into(),
            })
            .collect();
        let before = core::mem::take(&mut self.unlocated);
        let (seen, unlocated) = (&self.seen, &mut self.unlocated);
        // A worker that leaves deletes its address and its entry in the list, and the two are read one after the other. Until
        // the entry is gone it counts as present.
        for new in found.iter_mut().filter(|new| new.address.is_empty()) {
            if let Some(known) = seen.iter().find(|one| one.worker == new.worker) {
                new.address = known.address.clone();
            }
        }
        found.retain(|new| {
            if !new.address.is_empty() || seen.iter().any(|one| one.worker == new.worker) {
                return true;
            }
            let known = before.iter().find(|(worker, _)| *worker == new.worker);
            let until = known.map_or(now + ADDRESS_TIMEOUT, |&(_, until)| until);
            if now < until {
                unlocated.push((new.worker.clone(), until));
            }
            now >= until
        });
        // An address that is written late belongs to the same worker.
        let is_same = |one: &WorkerLocation, other: &WorkerLocation| {
            one.worker == other.worker && (one.address == other.address || one.address.is_empty())
        };
        for departed in self.seen.iter().filter(|one| !found.iter().any(|other| is_same(one, other))) {
            self.outputs.push_back(ObserverOutput::Observation(Observation::Left(departed.worker.clone())));
        }
        for new in found.iter().filter(|other| !self.seen.iter().any(|one| is_same(one, other))) {
            self.outputs.push_back(ObserverOutput::Observation(Observation::Joined(new.clone())));
        }
        self.seen = found;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::string::ToString;

    const PAUSE: Duration = Duration::from_millis(500);

    struct Scene {
        observer: Observer,
        store: BTreeMap<Box<str>, Vec<u8>>,
        now: Instant,
        steps: usize,
    }

    impl Scene {
        fn new() -> Self {
            let now = Instant::from_millis(1000);
            Self { observer: Observer::new(PAUSE), store: BTreeMap::new(), now, steps: 0 }
        }

        fn set(&mut self, key: &str, value: &str) {
            self.store.insert(key.into(), value.as_bytes().to_vec());
        }

        /// Events until it rests.
        fn see(&mut self) -> String {
            let mut event = Vec::new();
            while let Some(output) = self.observer.poll_output() {
                let read = |key: &str| self.store.get(key).cloned().unwrap_or_default().into();
                match output {
                    ObserverOutput::Store(step) => {
                        self.steps += 1;
                        let reply = match step {
                            StoreStep::Get { key } => Reply::Value(read(&key)),
                            StoreStep::Peek { keys } => {
                                Reply::Values(keys.iter().map(|key| read(key)).collect())
                            }
                            other => panic!("an observer changes nothing: {other:?}"),
                        };
                        self.observer.handle(self.now, reply);
                    }
                    ObserverOutput::Observation(Observation::Begun(kind)) => event.push(format!("{kind:?}")),
                    ObserverOutput::Observation(Observation::Joined(seen)) => {
                        event.push(format!("+{} {}", seen.worker.name, seen.address));
                    }
                    ObserverOutput::Observation(Observation::Left(worker)) => {
                        event.push(format!("-{}", worker.name))
                    }
                    ObserverOutput::Failed(error) => event.push(error.to_string()),
                }
            }
            event.join(", ")
        }

        fn later(&mut self) -> String {
            self.now = self.observer.poll_timeout().expect("it looks again");
            self.observer.tick(self.now);
            self.see()
        }
    }

    #[test]
    fn who_comes_and_goes_in_a_dynamic_group_is_seen() {
        let mut scene = Scene::new();
        assert_eq!(scene.see(), "", "there is no group yet");
        scene.set(keys::IS_STATIC, "false");
        assert_eq!(scene.later(), "Dynamic");
        scene.set(keys::ALL_WORKERS, "b-1,a-x-0,");
        scene.set("addrs/b", "h:1");
        assert_eq!(scene.later(), "+b h:1");
        let (looked, pause) = (scene.now, ADDRESS_PAUSE);
        assert_eq!(
            (scene.later().as_str(), scene.now),
            ("", looked + pause),
            "it looks soon for the address"
        );
        scene.set("addrs/a-x", "h:0");
        assert_eq!(scene.later(), "+a-x h:0");
        assert_eq!(scene.observer.seen().len(), 2);
        scene.set(keys::ALL_WORKERS, "a-x-0,");
        scene.observer.keys_changed();
        assert_eq!(scene.see(), "-b", "at once after a notification");
        scene.set("addrs/a-x", "h:9");
        assert_eq!(scene.later(), "-a-x, +a-x h:9", "it came back elsewhere");
        scene.set(keys::ALL_WORKERS, "");
        assert_eq!(scene.later(), "-a-x");
    }

    #[test]
    fn a_worker_that_leaves_is_reported_once_although_its_address_is_deleted_first() {
        let mut scene = Scene::new();
        scene.set(keys::IS_STATIC, "false");
        scene.set(keys::ALL_WORKERS, "a-0,");
        scene.set("addrs/a", "h:0");
        assert_eq!(scene.see(), "Dynamic, +a h:0");
        scene.store.remove("addrs/a");
        assert_eq!(scene.later(), "", "it is still in the list");
        scene.set(keys::ALL_WORKERS, "");
        assert_eq!(scene.later(), "-a");
    }

    #[test]
    fn a_worker_that_writes_no_address_is_reported_without_one_a_little_later() {
        let mut scene = Scene::new();
        scene.set(keys::IS_STATIC, "false");
        scene.set(keys::ALL_WORKERS, "a-0,");
        assert_eq!(scene.see(), "Dynamic");
        let began = scene.now;
        let event = loop {
            let event = scene.later();
            if !event.is_empty() {
                break event;
            }
        };
        assert_eq!((event.as_str(), scene.now), ("+a ", began + ADDRESS_TIMEOUT));
        scene.set("addrs/a", "h:0");
        assert_eq!((scene.later().as_str(), &*scene.observer.seen()[0].address), ("", "h:0"));
        assert_eq!(scene.observer.poll_timeout(), Some(scene.now + PAUSE), "it looks as often as ever");
    }

    #[test]
    fn what_changes_while_one_looks_is_looked_at_again() {
        let mut scene = Scene::new();
        scene.set(keys::IS_STATIC, "false");
        scene.observer.keys_changed();
        let before = scene.steps;
        assert_eq!(scene.see(), "Dynamic");
        assert_eq!(scene.steps - before, 2, "the kind, and the list once");
        let Some(ObserverOutput::Store(_)) = ({
            scene.observer.keys_changed();
            scene.observer.poll_output()
        }) else {
            panic!("it looks")
        };
        scene.observer.keys_changed();
        scene.observer.handle(scene.now, Reply::Value(Box::default()));
        assert!(scene.observer.poll_timeout().is_none(), "it looks once more");
    }

    #[test]
    fn the_members_of_a_static_group_are_seen_by_their_numbers() {
        let mut scene = Scene::new();
        scene.set(keys::IS_STATIC, "true");
        for id in 0..130_u16 {
            scene.set(&keys::name_of(id), &format!("w{id}"));
            scene.set(&keys::address_of(&format!("w{id}")), "h");
        }
        assert!(scene.see().starts_with("Static, +w0 h, +w1 h, "));
        assert_eq!(scene.observer.seen().len(), 130);
    }

    #[test]
    fn what_is_no_group_is_told() {
        for (key, value, message) in [
            (keys::IS_STATIC, "maybe", "rpcIsStaticGroup holds \"maybe\", which is neither true nor false"),
            (
                keys::ALL_WORKERS,
                "a*-1,",
                "Dynamic, the list of workers at names/_ALL_WORKER_INFOS holds \"a*-1\", which is not a worker",
            ),
        ] {
            let mut scene = Scene::new();
            scene.set(keys::IS_STATIC, "false");
            scene.set(key, value);
            assert_eq!(scene.see(), message);
            assert_eq!(scene.observer.poll_timeout(), None);
        }
        for reply in [Reply::Failed("gone".into()), Reply::Done] {
            let mut observer = Observer::new(PAUSE);
            observer.poll_output();
            observer.handle(Instant::from_millis(0), reply);
            let Some(ObserverOutput::Failed(ObserverError::Store { .. })) = observer.poll_output() else {
                panic!("it failed")
            };
        }
    }
}
