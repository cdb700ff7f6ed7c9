//! Device maps: which device of one worker corresponds to which of another, the rules for the maps of a group, and the
//! maps and lists that follow from them.
//!
//! A map gives the callee's device for data on a device of the caller; responses use the opposite direction. Errors
//! have PyTorch's text in one line. Collections are printed as Python writes lists and dictionaries, with devices by
//! their names: `{'worker1': {cuda:0: cuda:1}}`, where Python would write `device(type='cuda', index=0)` for each.

use super::device::{Device, DeviceKind};
use super::name::WorkerName;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::{SortedMap, sort_by};

/// Map from devices of the caller to devices of the callee. No two map to the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMap(SortedMap<Device, Device>);

/// Error of a map that is not one to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Two devices map to the same one.
    #[error("`device_map` only supports 1-to-1 mapping, trying to map {from} and {first} to {to}")]
    ManyToOne {
        /// The later device.
        from: Device,
        /// The earlier device.
        first: Device,
        /// Target of both.
        to: Device,
    },
    /// One device maps to two.
    #[error("`set_device_map` only supports 1-to-1 mapping, trying to map {from} to {to} and {first}")]
    OneToMany {
        /// The device.
        from: Device,
        /// The new target.
        to: Device,
        /// The existing target.
        first: Device,
    },
}

impl DeviceMap {
    /// Creates a map of these pairs. Of two with the same first device the later one counts, as in a dictionary.
    ///
    /// # Errors
    /// Two devices map to the same one.
    pub fn new(pairs: impl IntoIterator<Item = (Device, Device)>) -> Result<Self, MapError> {
        let Self(last) = Self::unchecked(pairs);
        let mut back: SortedMap<Device, Device> = SortedMap::new();
        for (&from, &to) in last.iter() {
            if let Some(first) = back.insert(to, from) {
                return Err(MapError::ManyToOne { from, first, to });
            }
        }
        Ok(Self(last))
    }

    /// Creates a map from a message of another worker without checking the rules: [`Group::check`] checks them.
    pub(super) fn unchecked(pairs: impl IntoIterator<Item = (Device, Device)>) -> Self {
        let mut map = SortedMap::new();
        for (from, to) in pairs {
            map.insert(from, to);
        }
        Self(map)
    }

    /// Adds the pairs of another map. The result may not be one to one: like PyTorch, [`Group::check`] reports that
    /// when the group forms.
    ///
    /// # Errors
    /// A device would map to two; then nothing is added.
    pub fn merge(&mut self, other: &Self) -> Result<(), MapError> {
        for (from, to) in other.iter() {
            if let Some(&first) = self.0.get(&from).filter(|&&first| first != to) {
                return Err(MapError::OneToMany { from, to, first });
            }
        }
        for (from, to) in other.iter() {
            self.0.insert(from, to);
        }
        Ok(())
    }

    /// Returns the pairs in the order of their first devices.
    pub fn iter(&self) -> impl Iterator<Item = (Device, Device)> {
        self.0.iter().map(|(&from, &to)| (from, to))
    }

    /// Returns the caller's devices.
    pub fn sources(&self) -> impl Iterator<Item = Device> {
        self.0.keys().copied()
    }

    /// Returns the callee's devices.
    pub fn targets(&self) -> impl Iterator<Item = Device> {
        self.0.values().copied()
    }

    /// Returns the inverse map.
    #[must_use]
    pub fn inverted(&self) -> Self {
        Self(self.iter().map(|(from, to)| (to, from)).collect())
    }
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (from, to)) in self.iter().enumerate() {
            write!(f, "{}{from}: {to}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

/// Device maps of one worker, by callee.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMaps(SortedMap<WorkerName, DeviceMap>);

impl DeviceMaps {
    /// Adds a map for a worker; see [`DeviceMap::merge`].
    ///
    /// # Errors
    /// A device would map to two.
    pub fn set(&mut self, to: &WorkerName, map: &DeviceMap) -> Result<(), MapError> {
        if let Some(known) = self.0.get_mut(to) {
            return known.merge(map);
        }
        self.0.insert(to.clone(), map.clone());
        Ok(())
    }

    /// Returns the map for a worker.
    pub fn get(&self, to: &str) -> Option<&DeviceMap> {
        self.0.get(to)
    }

    /// Returns workers and their maps, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkerName, &DeviceMap)> {
        self.0.iter()
    }
}

impl FromIterator<(WorkerName, DeviceMap)> for DeviceMaps {
    fn from_iter<I: IntoIterator<Item = (WorkerName, DeviceMap)>>(maps: I) -> Self {
        let mut all = Self::default();
        for (to, map) in maps {
            all.0.insert(to, map);
        }
        all
    }
}

impl fmt::Display for DeviceMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (name, map)) in self.iter().enumerate() {
            write!(f, "{}{name:?}: {map}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

/// Devices of a worker, as it states them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// Number of its devices of the group's kind, as its program states it; it is not verified.
    pub count: u32,
    /// Its maps.
    pub maps: DeviceMaps,
    /// Devices that it uses; empty if that follows from the maps.
    pub devices: Vec<Device>,
}

/// Whether workers may join a group after it has formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupKind {
    /// They may not: a fixed number of workers start together.
    Static,
    /// Workers join and leave.
    Dynamic,
}

/// Devices of all workers of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Whether workers with unknown names may still join.
    pub kind: GroupKind,
    /// Kind of device that is counted.
    pub accelerator: DeviceKind,
    /// The workers.
    pub nodes: SortedMap<WorkerName, NodeDevices>,
}

/// Side of a device map. Displayed as PyTorch names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Side {
    /// Devices of the caller.
    #[error("source")]
    Source,
    /// Devices of the callee.
    #[error("target")]
    Target,
}

/// Device maps and devices of a group that do not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are those of the messages")]
pub enum DeviceMapError {
    /// A list has a device twice.
    #[error("Node {node} has duplicated devices: devices = {devices:?}")]
    DuplicatedDevices { node: WorkerName, devices: Vec<Device> },
    /// A list has a device that does not exist.
    #[error("Node {node} has devices with invalid indices: devices = {devices:?}, device count = {count}")]
    InvalidDevices { node: WorkerName, devices: Vec<Device>, count: u32 },
    /// A map is for an unknown worker.
    #[error(
        "Node {node} has invalid target node names in its device maps: \
         device maps = {maps}, node names = {names:?}"
    )]
    InvalidTargetNames { node: WorkerName, maps: DeviceMaps, names: Vec<WorkerName> },
    /// Two devices map to the same one.
    #[error("Node {node} has duplicated target devices in its device map for {target}: device map = {map}")]
    DuplicatedTargets { node: WorkerName, target: WorkerName, map: DeviceMap },
    /// A map begins or ends at a device that is not in the list of the worker there.
    #[error(
        "Node {node} has unexpected {side} devices in its device map for {target}: \
         device map = {map}, devices = {devices:?}"
    )]
    Unexpected { node: WorkerName, target: WorkerName, side: Side, map: DeviceMap, devices: Vec<Device> },
    /// A map begins or ends at a device that does not exist.
    #[error(
        "Node {node} has {side} devices with invalid indices in its device map for {target}: \
         device map = {map}, device count = {count}"
    )]
    Invalid { node: WorkerName, target: WorkerName, side: Side, map: DeviceMap, count: u32 },
}

impl DeviceMapError {
    /// Worker whose devices or maps they are.
    pub const fn node(&self) -> &WorkerName {
        match self {
            Self::DuplicatedDevices { node, .. }
            | Self::InvalidDevices { node, .. }
            | Self::InvalidTargetNames { node, .. }
            | Self::DuplicatedTargets { node, .. }
            | Self::Unexpected { node, .. }
            | Self::Invalid { node, .. } => node,
        }
    }
}

impl Group {
    /// Checks maps and devices of the group. All workers that check the same group find the same error.
    ///
    /// # Errors
    /// The first error: those of lists before those of maps, in the order of the workers' names.
    pub fn check(&self) -> Result<(), DeviceMapError> {
        for (node, said) in self.nodes.iter() {
            let (node, devices, count) = (node.clone(), said.devices.clone(), said.count);
            if has_duplicates(devices.clone()) {
                return Err(DeviceMapError::DuplicatedDevices { node, devices });
            }
            if !self.are_there(devices.iter().copied(), count) {
                return Err(DeviceMapError::InvalidDevices { node, devices, count });
            }
        }
        self.nodes.iter().try_for_each(|(node, said)| self.check_maps(node, said))
    }

    fn check_maps(&self, node: &WorkerName, said: &NodeDevices) -> Result<(), DeviceMapError> {
        let is_known = |name: &WorkerName| self.nodes.contains_key(name);
        if self.kind == GroupKind::Static && !said.maps.0.keys().all(is_known) {
            let (maps, names) = (said.maps.clone(), self.nodes.keys().cloned().collect());
            return Err(DeviceMapError::InvalidTargetNames { node: node.clone(), maps, names });
        }
        for (target, map) in said.maps.iter() {
            if has_duplicates(map.targets().collect()) {
                let (node, target, map) = (node.clone(), target.clone(), map.clone());
                return Err(DeviceMapError::DuplicatedTargets { node, target, map });
            }
            for (side, owner) in [(Side::Source, Some(said)), (Side::Target, self.nodes.get(target))] {
                let Some(owner) = owner else { continue };
                let mut wanted = map.iter().map(|(from, to)| if side == Side::Source { from } else { to });
                let (count, has_list) = (owner.count, !owner.devices.is_empty());
                let are_known = match has_list {
                    true => wanted.all(|device| owner.devices.contains(&device)),
                    false => self.are_there(wanted, count),
                };
                if are_known {
                    continue;
                }
                let (node, target, map) = (node.clone(), target.clone(), map.clone());
                let devices = owner.devices.clone();
                return Err(match has_list {
                    true => DeviceMapError::Unexpected { node, target, side, map, devices },
                    false => DeviceMapError::Invalid { node, target, side, map, count },
                });
            }
        }
        Ok(())
    }

    fn are_there(&self, mut devices: impl Iterator<Item = Device>, count: u32) -> bool {
        devices.all(|device| match device {
            Device::Cpu => true,
            Device::Indexed(kind, index) => kind == self.accelerator && u32::from(index) < count,
        })
    }

    /// Returns the maps for responses to the workers that call this one: the inverse of their maps.
    pub fn reverse_maps(&self, of: &str) -> DeviceMaps {
        let calls = |(node, said): (&WorkerName, &NodeDevices)| {
            said.maps.get(of).map(|map| (node.clone(), map.inverted()))
        };
        self.nodes.iter().filter_map(calls).collect()
    }

    /// Returns the devices that a worker uses, sorted by their indices: those that it lists, or else all at which its
    /// maps begin and maps to it end, without the host.
    pub fn devices(&self, of: &str) -> Vec<Device> {
        let Some(node) = self.nodes.get(of) else { return Vec::new() };
        let mut devices: Vec<Device> = if node.devices.is_empty() {
            let reverse = self.reverse_maps(of);
            let mapped = node.maps.iter().chain(reverse.iter()).flat_map(|(_, map)| map.sources());
            mapped.filter(|&device| device != Device::Cpu).collect()
        } else {
            node.devices.clone()
        };
        sort_by_index(&mut devices);
        devices.dedup();
        devices
    }
}

fn sort_by_index(devices: &mut [Device]) {
    sort_by(devices, |a, b| (a.index(), a) < (b.index(), b));
}

fn has_duplicates(mut devices: Vec<Device>) -> bool {
    sort_by_index(&mut devices);
    devices.windows(2).any(|pair| pair.first() == pair.last())
}

#[cfg(test)]
pub(crate) mod tests;
