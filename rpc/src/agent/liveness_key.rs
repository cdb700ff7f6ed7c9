//! Liveness keys: keys of live workers that are deleted with the workers' sessions. Not in PyTorch, and not in stores
//! without sessions.

use crate::membership::change::WorkerLocation;
use crate::membership::keys::{self, HERE};
use crate::name::WorkerName;
use alloc::collections::VecDeque;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::sort_by;

/// Prefix of the liveness keys, `<name>/<address>`.
pub const PREFIX: &str = keys::LIVENESS;
/// Value while the worker is leaving: its deletion after that is not a death.
pub const GOING: &[u8] = b"going";
/// Description of a death that was detected by a deleted liveness key.
pub(super) const VANISHED: &str = "its session with the store's server ended";

/// Maximum number of liveness keys that are tracked: the maximum number of members.
const SIGNS_MAX: usize = 1 << 16;
/// Maximum number of deleted keys that are remembered for members that are not known yet.
const LOST_MAX: usize = 256;

/// Liveness key of one worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LivenessKey {
    /// Name of the worker.
    pub name: WorkerName,
    /// Address at which it accepts calls. A worker that restarts under the same name has another one.
    pub address: Box<str>,
}

impl LivenessKey {
    /// Returns the key without the group's prefix.
    pub fn key(&self) -> Box<str> {
        keys::liveness_of(&self.name, &self.address)
    }

    fn is_of(&self, location: &WorkerLocation) -> bool {
        self.name == location.worker.name && self.address == location.address
    }

    fn text(&self) -> Box<str> {
        format!("{}/{}", self.name, self.address).into()
    }

    /// Parses a key without [`PREFIX`].
    fn parse(key: &str) -> Option<Self> {
        let (name, address) = key.split_once('/')?;
        Some(Self { name: WorkerName::new(name).ok()?, address: address.into() })
    }
}

/// Returns the value while the worker with this number is in the group.
pub fn here(id: u16) -> Box<str> {
    format!("{HERE}{id}").into()
}

/// Returns the worker's number if this is the value of a worker that is in the group.
fn id_in(value: &[u8]) -> Option<u16> {
    core::str::from_utf8(value).ok()?.strip_prefix(HERE)?.parse().ok()
}

/// A deleted liveness key whose worker has died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vanished {
    pub(super) liveness_key: LivenessKey,
    /// Number of the worker, if the key was seen before.
    pub(super) id: Option<u16>,
}

/// State of the liveness keys of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct LivenessWatcher {
    /// Keys of workers in the group, sorted, each with its worker's number.
    here: Vec<(LivenessKey, u16)>,
    going: VecDeque<LivenessKey>,
    /// Keys that were marked as leaving and deleted after that.
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

    /// Processes a change of a key; returns it if its deletion is a death.
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

    /// Processes a complete list of the keys; returns those whose deletion was not seen and is a death.
    pub(super) fn all(&mut self, all: &[(Box<str>, Box<[u8]>)]) -> Vec<Vanished> {
        let mut there: Vec<LivenessKey> = all.iter().filter_map(|(key, _)| LivenessKey::parse(key)).collect();
        sort_by(&mut there, |a, b| a < b);
        let is_dead = |(liveness_key, _): &&(LivenessKey, u16)| there.binary_search(liveness_key).is_err();
        let departed: Vec<LivenessKey> =
            self.here.iter().filter(is_dead).map(|(liveness_key, _)| liveness_key.clone()).collect();
        for (key, value) in all {
            // A key that exists is not a death.
            let _ = self.changed(key, Some(value));
        }
        departed.iter().filter_map(|liveness_key| self.changed(&liveness_key.text(), None)).collect()
    }

    /// Records that these keys were deleted without a death, also if they are reported again.
    pub(super) fn went(&mut self, liveness_watcher: Vec<Vanished>) {
        for Vanished { liveness_key, .. } in liveness_watcher {
            take(&mut self.lost, &liveness_key);
            keep(&mut self.going, liveness_key);
        }
    }

    /// Whether the liveness key of the worker there was deleted.
    pub(super) fn are_lost(&self, location: &WorkerLocation) -> bool {
        self.lost.iter().any(|liveness_key| liveness_key.is_of(location))
    }

    /// Whether the worker there has a liveness key that is not marked as leaving.
    pub(super) fn show(&self, location: &WorkerLocation) -> bool {
        self.here.iter().any(|(liveness_key, _)| liveness_key.is_of(location))
    }

    /// Whether the worker there has marked its key as leaving.
    pub(super) fn has_left(&self, location: &WorkerLocation) -> bool {
        self.going.iter().chain(&self.departed).any(|liveness_key| liveness_key.is_of(location))
    }

    /// Whether any worker with this name has a liveness key.
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
        // One key was deleted, one worker rejoined elsewhere, one left, and one is leaving.
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
        // It rejoins at the same address, and leaves.
        assert_eq!(liveness_watcher.changed(key, Some(HERE)), None);
        assert!(liveness_watcher.lost.is_empty());
        assert_eq!(liveness_watcher.changed(key, Some(GOING)), None);
        assert!(liveness_watcher.has_left(&location("a")) && !liveness_watcher.show(&location("a")));
        assert_eq!(
            (liveness_watcher.changed(key, None), liveness_watcher.has_left(&location("a"))),
            (None, true)
        );
        // The key of a worker that was never seen.
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
