//! Signs: keys that say of workers that they live, and vanish with their sessions. Ours; PyTorch's workers have none, and
//! neither has whoever uses a store that knows no sessions.

use crate::rpc::membership::change::Departed;
use crate::rpc::name::WorkerName;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

/// Beneath it are the signs, `<name>/<address>`.
pub const PREFIX: &str = "rdzv/alive/";
/// What a sign says while its worker is in the group.
pub const HERE: &[u8] = b"here";
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
pub struct Sign {
    /// Whose.
    pub name: WorkerName,
    /// Where it takes calls: who comes back under the name has another one.
    pub address: Box<str>,
}

impl Sign {
    /// Its key, beneath the group's prefix.
    #[must_use]
    pub fn key(&self) -> Box<str> {
        format!("{PREFIX}{}", self.text()).into()
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

/// What the signs of a group tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    /// Those that are there, in order.
    here: Vec<Sign>,
    going: VecDeque<Sign>,
    lost: VecDeque<Sign>,
}

fn keep(signs: &mut VecDeque<Sign>, sign: Sign) {
    if signs.contains(&sign) {
        return;
    }
    if signs.len() == LOST_MAX {
        signs.pop_front();
    }
    signs.push_back(sign);
}

fn take(signs: &mut VecDeque<Sign>, sign: &Sign) -> Option<Sign> {
    let place = signs.iter().position(|known| known == sign)?;
    signs.remove(place)
}

impl Signs {
    /// A sign changed; whose vanished so that it tells of a death.
    pub(super) fn changed(&mut self, key: &str, value: Option<&[u8]>) -> Option<Sign> {
        let sign = Sign::parse(key)?;
        match (self.here.binary_search(&sign), value) {
            (Err(place), Some(HERE)) if self.here.len() < SIGNS_MAX => self.here.insert(place, sign.clone()),
            (Ok(place), None | Some(GOING)) => drop(self.here.remove(place)),
            _ => {}
        }
        match value {
            Some(GOING) => keep(&mut self.going, sign),
            Some(_) => drop((take(&mut self.lost, &sign), take(&mut self.going, &sign))),
            None if take(&mut self.going, &sign).is_some() => {}
            None => {
                keep(&mut self.lost, sign.clone());
                return Some(sign);
            }
        }
        None
    }

    /// All signs that there are; whose vanished unseen, so that it tells of a death.
    pub(super) fn all(&mut self, all: &[(Box<str>, Box<[u8]>)]) -> Vec<Sign> {
        let mut there: Vec<Sign> = all.iter().filter_map(|(key, _)| Sign::parse(key)).collect();
        there.sort_unstable();
        let is_gone = |sign: &&Sign| there.binary_search(sign).is_err();
        let gone: Vec<Sign> = self.here.iter().filter(is_gone).cloned().collect();
        for (key, value) in all {
            // What is there tells of no death.
            let _ = self.changed(key, Some(value));
        }
        gone.iter().filter_map(|sign| self.changed(&sign.text(), None)).collect()
    }

    /// That these vanished is no death, nor if it is told again.
    pub(super) fn went(&mut self, signs: Vec<Sign>) {
        for sign in signs {
            take(&mut self.lost, &sign);
            keep(&mut self.going, sign);
        }
    }

    /// Whether the sign of the worker there has vanished.
    pub(super) fn are_lost(&self, place: &Departed) -> bool {
        self.lost.iter().any(|sign| sign.name == place.worker.name && sign.address == place.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_that_vanish_unseen_tell_of_deaths() {
        let mut signs = Signs::default();
        let told = |keys: &[(&str, &[u8])]| {
            keys.iter()
                .map(|&(key, value)| (key.into(), value.into()))
                .collect::<Vec<(Box<str>, Box<[u8]>)>>()
        };
        assert_eq!(signs.all(&told(&[("a/1", HERE), ("b/2", HERE), ("c/3", HERE), ("d/4", HERE)])), []);
        assert_eq!((signs.changed("d/4", Some(GOING)), signs.changed("e/5", Some(HERE))), (None, None));
        // One vanished, one came back elsewhere, one went, and one goes.
        let gone = signs.all(&told(&[("a/1", HERE), ("b/9", HERE), ("c/3", GOING)]));
        let gone: Vec<Box<str>> = gone.iter().map(Sign::text).collect();
        assert_eq!(gone.iter().map(|text| &**text).collect::<Vec<_>>(), ["b/2", "e/5"]);
        let here: Vec<Box<str>> = signs.here.iter().map(Sign::text).collect();
        assert_eq!(here.iter().map(|text| &**text).collect::<Vec<_>>(), ["a/1", "b/9"]);
        assert_eq!(signs.all(&told(&[("a/1", HERE), ("b/9", HERE)])), []);
    }

    #[test]
    fn a_sign_that_vanishes_tells_of_a_death_unless_its_worker_said_that_it_goes() {
        let mut signs = Signs::default();
        let sign = Sign { name: "a".parse().expect("a name"), address: "[::1]:7".into() };
        assert_eq!(&*sign.key(), "rdzv/alive/a/[::1]:7");
        let key = "a/[::1]:7";
        assert_eq!(signs.changed(key, Some(HERE)), None);
        for _ in 0..2 {
            assert_eq!(signs.changed(key, None), Some(sign.clone()));
            assert_eq!(signs.lost.len(), 1);
        }
        // It came back at the same address, and goes.
        assert_eq!(signs.changed(key, Some(HERE)), None);
        assert!(signs.lost.is_empty());
        assert_eq!((signs.changed(key, Some(GOING)), signs.changed(key, None)), (None, None));
        // Of one that was never seen to come.
        assert_eq!(signs.changed("a/b:1", None).map(|sign| sign.address), Some("b:1".into()));
        for other in ["", "a", "a*/b:1"] {
            assert_eq!(signs.changed(other, None), None);
        }
        for port in 0..2 * LOST_MAX {
            signs.changed(&format!("a/h:{port}"), None);
        }
        assert_eq!(signs.lost.len(), LOST_MAX);
    }
}
