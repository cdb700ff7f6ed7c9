//! Signs: keys that say of workers that they live, and vanish with their sessions. Ours; PyTorch's workers have none, and
//! neither has whoever uses a store that knows no sessions.

use crate::membership::change::WorkerLocation;
use crate::membership::keys::{self, HERE};
use crate::name::WorkerName;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

/// Beneath it are the signs, `<name>/<address>`.
pub const PREFIX: &str = keys::LIVENESS;
/// What it says when the worker goes: that it vanishes then is no death.
pub const GOING: &[u8] = b"going";
/// What is known of a death that a sign told of.
pub(super) const VANISHED: &str = "its session with the store's server ended";

/// How many signs are kept in mind: as many as a group has members.
const SIGNS_MAX: usize = 1 << 16;
/// How many signs that vanished are kept in mind, for members that are not known yet.
const LOST_MAX: usize = 256;

/// One worker's sign.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LivenessKey {
    /// Whose.
    pub name: WorkerName,
    /// Where it takes calls: who comes back under the name has another one.
    pub address: Box<str>,
}

impl LivenessKey {
    /// Its key, beneath the group's prefix.
    #[must_use]
    pub fn key(&self) -> Box<str> {
        keys::liveness_of(&self.name, &self.address)
    }

    fn is_of(&self, location: &WorkerLocation) -> bool {
        self.name == location.worker.name && self.address == location.address
    }

    fn text(&self) -> Box<str> {
        format!("{}/{}", self.name, self.address).into()
    }

    /// The sign with this key, which is told without [`PREFIX`].
    fn parse(key: &str) -> Option<Self> {
        let (name, address) = key.split_once('/')?;
        Some(Self { name: WorkerName::new(name).ok()?, address: address.into() })
    }
}

/// What a sign says while the worker with this number is in the group.
#[must_use]
pub fn here(id: u16) -> Box<str> {
    format!("{HERE}{id}").into()
}

/// The worker's number, where this is what a sign says while its worker is in the group.
fn id_in(value: &[u8]) -> Option<u16> {
    core::str::from_utf8(value).ok()?.strip_prefix(HERE)?.parse().ok()
}

/// A sign that vanished so that it tells of a death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vanished {
    pub(super) liveness_key: LivenessKey,
    /// The worker's number, where the sign was seen before.
    pub(super) id: Option<u16>,
}

/// What the signs of a group tell.
#[derive(Clone, Debug, Default)]
pub(super) struct LivenessWatcher {
    /// Those that are there, in order, each with its worker's number.
    here: Vec<(LivenessKey, u16)>,
    going: VecDeque<LivenessKey>,
    /// Those that said so, and vanished.
    departed: VecDeque<LivenessKey>,
    lost: VecDeque<LivenessKey>,
}

fn keep(liveness_watcher: &mut VecDeque<LivenessKey>, liveness_key: LivenessKey) {
    if liveness_watcher.contains(&liveness_key) {
        return;
    }
    if liveness_watcher.len() == LOST_MAX {
        liveness_watcher.pop_front();
    }
    liveness_watcher.push_back(liveness_key);
}

fn take(liveness_watcher: &mut VecDeque<LivenessKey>, liveness_key: &LivenessKey) -> Option<LivenessKey> {
    let location = liveness_watcher.iter().position(|known| known == liveness_key)?;
    liveness_watcher.remove(location)
}

impl LivenessWatcher {
    fn location(&self, liveness_key: &LivenessKey) -> Result<usize, usize> {
        self.here.binary_search_by(|(known, _)| known.cmp(liveness_key))
    }

    /// A sign changed; the one that vanished so that it tells of a death.
    pub(super) fn changed(&mut self, key: &str, value: Option<&[u8]>) -> Option<Vanished> {
        let liveness_key = LivenessKey::parse(key)?;
        let mut known = None;
        match (self.location(&liveness_key), value.map(id_in)) {
            (Err(location), Some(Some(id))) if self.here.len() < SIGNS_MAX => {
                self.here.insert(location, (liveness_key.clone(), id));
            }
            (Ok(location), None | Some(None)) => known = Some(self.here.remove(location).1),
            _ => {}
        }
        match value {
            Some(GOING) => keep(&mut self.going, liveness_key),
            Some(_) => {
                for kept in [&mut self.lost, &mut self.going, &mut self.departed] {
                    take(kept, &liveness_key);
                }
            }
            None if take(&mut self.going, &liveness_key).is_some() => keep(&mut self.departed, liveness_key),
            None => {
                keep(&mut self.lost, liveness_key.clone());
                return Some(Vanished { liveness_key, id: known });
            }
        }
        None
    }

    /// All signs that there are; those that vanished unseen, so that they tell of deaths.
    pub(super) fn all(&mut self, all: &[(Box<str>, Box<[u8]>)]) -> Vec<Vanished> {
        let mut there: Vec<LivenessKey> = all.iter().filter_map(|(key, _)| LivenessKey::parse(key)).collect();
        there.sort_unstable();
        let is_dead = |(liveness_key, _): &&(LivenessKey, u16)| there.binary_search(liveness_key).is_err();
        let departed: Vec<LivenessKey> =
            self.here.iter().filter(is_dead).map(|(liveness_key, _)| liveness_key.clone()).collect();
        for (key, value) in all {
            // What is there tells of no death.
            let _ = self.changed(key, Some(value));
        }
        departed.iter().filter_map(|liveness_key| self.changed(&liveness_key.text(), None)).collect()
    }

    /// That these vanished is no death, nor if it is told again.
    pub(super) fn went(&mut self, liveness_watcher: Vec<Vanished>) {
        for Vanished { liveness_key, .. } in liveness_watcher {
            take(&mut self.lost, &liveness_key);
            keep(&mut self.going, liveness_key);
        }
    }

    /// Whether the sign of the worker there has vanished.
    pub(super) fn are_lost(&self, location: &WorkerLocation) -> bool {
        self.lost.iter().any(|liveness_key| liveness_key.is_of(location))
    }

    /// Whether the worker there has a sign, and does not say that it goes.
    pub(super) fn show(&self, location: &WorkerLocation) -> bool {
        self.here.iter().any(|(liveness_key, _)| liveness_key.is_of(location))
    }

    /// Whether the worker there has said that it goes.
    pub(super) fn has_left(&self, location: &WorkerLocation) -> bool {
        self.going.iter().chain(&self.departed).any(|liveness_key| liveness_key.is_of(location))
    }

    /// Whether a worker of this name has a sign.
    pub(super) fn show_another(&self, name: &WorkerName) -> bool {
        self.here.iter().any(|(liveness_key, _)| liveness_key.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[u8] = b"here:7";

    #[test]
    fn signs_that_vanish_unseen_tell_of_deaths() {
        let mut liveness_watcher = LivenessWatcher::default();
        let event = |keys: &[(&str, &[u8])]| {
            keys.iter()
                .map(|&(key, value)| (key.into(), value.into()))
                .collect::<Vec<(Box<str>, Box<[u8]>)>>()
        };
        assert_eq!(
            liveness_watcher.all(&event(&[("a/1", HERE), ("b/2", HERE), ("c/3", HERE), ("d/4", HERE)])),
            []
        );
        assert_eq!(
            (liveness_watcher.changed("d/4", Some(GOING)), liveness_watcher.changed("e/5", Some(HERE))),
            (None, None)
        );
        // One vanished, one came back elsewhere, one went, and one goes.
        let departed = liveness_watcher.all(&event(&[("a/1", HERE), ("b/9", HERE), ("c/3", GOING)]));
        let departed: Vec<Box<str>> = departed.iter().map(|departed| departed.liveness_key.text()).collect();
        assert_eq!(departed.iter().map(|text| &**text).collect::<Vec<_>>(), ["b/2", "e/5"]);
        let here: Vec<Box<str>> =
            liveness_watcher.here.iter().map(|(liveness_key, _)| liveness_key.text()).collect();
        assert_eq!(here.iter().map(|text| &**text).collect::<Vec<_>>(), ["a/1", "b/9"]);
        assert_eq!(liveness_watcher.all(&event(&[("a/1", HERE), ("b/9", HERE)])), []);
    }

    #[test]
    fn a_sign_that_vanishes_tells_of_a_death_unless_its_worker_said_that_it_goes() {
        let mut liveness_watcher = LivenessWatcher::default();
        let liveness_key = LivenessKey { name: "a".parse().expect("a name"), address: "[::1]:7".into() };
        assert_eq!(&*liveness_key.key(), "rdzv/alive/a/[::1]:7");
        let key = "a/[::1]:7";
        assert_eq!(liveness_watcher.changed(key, Some(HERE)), None);
        let location = |name: &str| WorkerLocation {
            worker: crate::name::WorkerInfo { name: name.parse().expect("a name"), id: 7 },
            address: "[::1]:7".into(),
        };
        assert!(
            liveness_watcher.show(&location("a"))
                && !liveness_watcher.show(&location("b"))
                && liveness_watcher.show_another(&liveness_key.name)
        );
        for id in [Some(7), None] {
            assert_eq!(
                liveness_watcher.changed(key, None),
                Some(Vanished { liveness_key: liveness_key.clone(), id })
            );
            assert_eq!(liveness_watcher.lost.len(), 1);
        }
        assert!(!liveness_watcher.show(&location("a")) && !liveness_watcher.show_another(&liveness_key.name));
        // It came back at the same address, and goes.
        assert_eq!(liveness_watcher.changed(key, Some(HERE)), None);
        assert!(liveness_watcher.lost.is_empty());
        assert_eq!(liveness_watcher.changed(key, Some(GOING)), None);
        assert!(liveness_watcher.has_left(&location("a")) && !liveness_watcher.show(&location("a")));
        assert_eq!(
            (liveness_watcher.changed(key, None), liveness_watcher.has_left(&location("a"))),
            (None, true)
        );
        // Of one that was never seen to come.
        assert_eq!(
            liveness_watcher.changed("a/b:1", None).map(|departed| departed.liveness_key.address),
            Some("b:1".into())
        );
        for other in ["", "a", "a*/b:1"] {
            assert_eq!(liveness_watcher.changed(other, None), None);
        }
        for port in 0..2 * LOST_MAX {
            liveness_watcher.changed(&format!("a/h:{port}"), None);
        }
        assert_eq!(liveness_watcher.lost.len(), LOST_MAX);
    }
}
