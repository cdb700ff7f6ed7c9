//! Signs: keys that say of workers that they live, and vanish with their sessions. Ours; PyTorch's workers have none, and
//! neither has whoever uses a store that knows no sessions.

use crate::membership::change::Departed;
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
        keys::liveness_of(&self.name, &self.address)
    }

    fn is_of(&self, place: &Departed) -> bool {
        self.name == place.worker.name && self.address == place.address
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
    pub(super) sign: Sign,
    /// The worker's number, where the sign was seen before.
    pub(super) id: Option<u16>,
}

/// What the signs of a group tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    /// Those that are there, in order, each with its worker's number.
    here: Vec<(Sign, u16)>,
    going: VecDeque<Sign>,
    /// Those that said so, and vanished.
    gone: VecDeque<Sign>,
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
    fn place(&self, sign: &Sign) -> Result<usize, usize> {
        self.here.binary_search_by(|(known, _)| known.cmp(sign))
    }

    /// A sign changed; the one that vanished so that it tells of a death.
    pub(super) fn changed(&mut self, key: &str, value: Option<&[u8]>) -> Option<Vanished> {
        let sign = Sign::parse(key)?;
        let mut known = None;
        match (self.place(&sign), value.map(id_in)) {
            (Err(place), Some(Some(id))) if self.here.len() < SIGNS_MAX => {
                self.here.insert(place, (sign.clone(), id));
            }
            (Ok(place), None | Some(None)) => known = Some(self.here.remove(place).1),
            _ => {}
        }
        match value {
            Some(GOING) => keep(&mut self.going, sign),
            Some(_) => {
                for kept in [&mut self.lost, &mut self.going, &mut self.gone] {
                    take(kept, &sign);
                }
            }
            None if take(&mut self.going, &sign).is_some() => keep(&mut self.gone, sign),
            None => {
                keep(&mut self.lost, sign.clone());
                return Some(Vanished { sign, id: known });
            }
        }
        None
    }

    /// All signs that there are; those that vanished unseen, so that they tell of deaths.
    pub(super) fn all(&mut self, all: &[(Box<str>, Box<[u8]>)]) -> Vec<Vanished> {
        let mut there: Vec<Sign> = all.iter().filter_map(|(key, _)| Sign::parse(key)).collect();
        there.sort_unstable();
        let is_gone = |(sign, _): &&(Sign, u16)| there.binary_search(sign).is_err();
        let gone: Vec<Sign> = self.here.iter().filter(is_gone).map(|(sign, _)| sign.clone()).collect();
        for (key, value) in all {
            // What is there tells of no death.
            let _ = self.changed(key, Some(value));
        }
        gone.iter().filter_map(|sign| self.changed(&sign.text(), None)).collect()
    }

    /// That these vanished is no death, nor if it is told again.
    pub(super) fn went(&mut self, signs: Vec<Vanished>) {
        for Vanished { sign, .. } in signs {
            take(&mut self.lost, &sign);
            keep(&mut self.going, sign);
        }
    }

    /// Whether the sign of the worker there has vanished.
    pub(super) fn are_lost(&self, place: &Departed) -> bool {
        self.lost.iter().any(|sign| sign.is_of(place))
    }

    /// Whether the worker there has a sign, and does not say that it goes.
    pub(super) fn show(&self, place: &Departed) -> bool {
        self.here.iter().any(|(sign, _)| sign.is_of(place))
    }

    /// Whether the worker there has said that it goes.
    pub(super) fn said_goodbye(&self, place: &Departed) -> bool {
        self.going.iter().chain(&self.gone).any(|sign| sign.is_of(place))
    }

    /// Whether a worker of this name has a sign.
    pub(super) fn show_another(&self, name: &WorkerName) -> bool {
        self.here.iter().any(|(sign, _)| sign.name == *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &[u8] = b"here:7";

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
        let gone: Vec<Box<str>> = gone.iter().map(|gone| gone.sign.text()).collect();
        assert_eq!(gone.iter().map(|text| &**text).collect::<Vec<_>>(), ["b/2", "e/5"]);
        let here: Vec<Box<str>> = signs.here.iter().map(|(sign, _)| sign.text()).collect();
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
        let place = |name: &str| Departed {
            worker: crate::name::WorkerInfo { name: name.parse().expect("a name"), id: 7 },
            address: "[::1]:7".into(),
        };
        assert!(signs.show(&place("a")) && !signs.show(&place("b")) && signs.show_another(&sign.name));
        for id in [Some(7), None] {
            assert_eq!(signs.changed(key, None), Some(Vanished { sign: sign.clone(), id }));
            assert_eq!(signs.lost.len(), 1);
        }
        assert!(!signs.show(&place("a")) && !signs.show_another(&sign.name));
        // It came back at the same address, and goes.
        assert_eq!(signs.changed(key, Some(HERE)), None);
        assert!(signs.lost.is_empty());
        assert_eq!(signs.changed(key, Some(GOING)), None);
        assert!(signs.said_goodbye(&place("a")) && !signs.show(&place("a")));
        assert_eq!((signs.changed(key, None), signs.said_goodbye(&place("a"))), (None, true));
        // Of one that was never seen to come.
        assert_eq!(signs.changed("a/b:1", None).map(|gone| gone.sign.address), Some("b:1".into()));
        for other in ["", "a", "a*/b:1"] {
            assert_eq!(signs.changed(other, None), None);
        }
        for port in 0..2 * LOST_MAX {
            signs.changed(&format!("a/h:{port}"), None);
        }
        assert_eq!(signs.lost.len(), LOST_MAX);
    }
}
