//! Processors to which a worker is bound, with PyTorch's four bindings. The topology of the host is read from `/sys`.
//!
//! PyTorch uses the NUMA node of the accelerator whose number is the local rank. Here the workers are distributed over
//! the nodes in the order of their local ranks, in equal parts: with two nodes and eight workers, 0 to 3 are on the
//! first. That matches the position of the accelerators on the usual hosts, and works without any.

use core::fmt::Write;
use rendezvous_core::opaque::opaque_debug;
use rendezvous_core::prelude::*;
use rendezvous_core::sorted::{SortedMap, sort_by};

/// Processors of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NumaBinding {
    /// All processors of its node.
    Node,
    /// All processors of all nodes on the socket of its node.
    Socket,
    /// Its own share of the cores of its node.
    Exclusive,
    /// Cores of its node that share a cache. Workers get different ones as long as there are enough.
    CoreComplex,
}

/// Error of binding a worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumaError {
    /// A file about the topology is missing or invalid.
    #[error("{path} is missing or invalid")]
    Unreadable {
        /// Path of the file.
        path: String,
    },
    /// No processor may be used.
    #[error("no node has a processor that may be used")]
    NoProcessors,
    /// A node has fewer cores than workers.
    #[error("NUMA node {node} has {cores} cores for {workers} workers")]
    TooFewCores {
        /// Number of the node.
        node: u32,
        /// Number of its cores.
        cores: usize,
        /// Number of the workers on it.
        workers: usize,
    },
}

/// Set of processors, by number.
pub type Cpus = SortedMap<u32, ()>;

/// A host, as its files describe it.
pub struct Host<'a> {
    /// Returns the content of a file, by its absolute path.
    pub read: &'a dyn Fn(&str) -> Option<String>,
    /// Processors that may be used.
    pub allowed: Cpus,
}

opaque_debug!(Host<'_>);

/// Parses a list of numbers in the kernel's format, `0-3,8`. `None` if it is invalid.
pub fn parse_list(text: &str) -> Option<Cpus> {
    /// Larger than the number of processors of any host.
    const MAX: u32 = 1 << 16;
    let mut numbers = Cpus::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MAX {
            return None;
        }
        add(&mut numbers, first..=last);
    }
    Some(numbers)
}

/// Returns the list in the same format, which `numactl` accepts.
pub fn write_list(numbers: &Cpus) -> String {
    let mut text = String::new();
    let mut rest = numbers.keys().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while let Some(next) = rest.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a string does not fail.
        let _ = match last {
            _ if last == first => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

/// Returns the processors of each of `workers` workers, by local rank.
///
/// # Errors
/// See [`NumaError`].
pub fn bind(binding: NumaBinding, workers: u32, host: &Host<'_>) -> Result<Vec<Cpus>, NumaError> {
    let mut nodes = Vec::new();
    for &node in host.list("/sys/devices/system/node/online")?.keys() {
        let all = host.list(&format!("/sys/devices/system/node/node{node}/cpulist"))?;
        let cpus = collected(all.keys().filter(|&cpu| host.allowed.contains_key(cpu)));
        if !cpus.is_empty() {
            nodes.push((node, cpus));
        }
    }
    if nodes.is_empty() {
        return Err(NumaError::NoProcessors);
    }
    let count = workers as usize;
    let node_of = |worker: usize| worker * nodes.len() / count.max(1);
    let mut bound = Vec::new();
    for worker in 0..count {
        let node_index = node_of(worker);
        let (node, cpus) = &nodes[node_index];
        // Its index among the workers of its node.
        let first = (0..worker).rfind(|other| node_of(*other) != node_index).map_or(0, |other| other + 1);
        let beside = (first..count).take_while(|other| node_of(*other) == node_index).count();
        bound.push(match binding {
            NumaBinding::Node => cpus.clone(),
            NumaBinding::Socket => host.of_socket(cpus, &nodes)?,
            NumaBinding::Exclusive => {
                let cores: Vec<Cpus> = host.grouped(cpus, |cpu| host.siblings(cpu))?;
                if cores.len() < beside {
                    return Err(NumaError::TooFewCores { node: *node, cores: cores.len(), workers: beside });
                }
                collected(share(&cores, worker - first, beside).iter().flat_map(Cpus::keys))
            }
            NumaBinding::CoreComplex => {
                let complexes = host.grouped(cpus, |cpu| host.cache(cpu))?;
                // The largest first; among equals, those with the lowest numbers.
                let mut order: Vec<usize> = (0..complexes.len()).collect();
                let size = |index: usize| complexes[index].len();
                sort_by(&mut order, |&a, &b| (size(b), a) < (size(a), b));
                complexes[order[(worker - first) % order.len()]].clone()
            }
        });
    }
    Ok(bound)
}

fn add(cpus: &mut Cpus, more: impl Iterator<Item = u32>) {
    for cpu in more {
        cpus.insert(cpu, ());
    }
}

fn collected<'c>(cpus: impl Iterator<Item = &'c u32>) -> Cpus {
    let mut all = Cpus::new();
    add(&mut all, cpus.copied());
    all
}

/// Returns one share of `all` equal ones. If the cores do not divide evenly, the first shares have one more.
fn share(cores: &[Cpus], which: usize, all: usize) -> &[Cpus] {
    let (each, more) = (cores.len() / all, cores.len() % all);
    let first = which * each + which.min(more);
    &cores[first..first + each + usize::from(which < more)]
}

impl Host<'_> {
    fn list(&self, path: &str) -> Result<Cpus, NumaError> {
        let unreadable = || NumaError::Unreadable { path: path.into() };
        (self.read)(path).as_deref().and_then(parse_list).ok_or_else(unreadable)
    }

    fn of_socket(&self, cpus: &Cpus, nodes: &[(u32, Cpus)]) -> Result<Cpus, NumaError> {
        let socket_of = |cpus: &Cpus| {
            let cpu = cpus.first().map_or(0, |(&cpu, ())| cpu);
            self.list(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))
        };
        let socket = socket_of(cpus)?;
        let mut all = Cpus::new();
        for (_, others) in nodes {
            if socket_of(others)? == socket {
                add(&mut all, others.keys().copied());
            }
        }
        Ok(all)
    }

    fn siblings(&self, cpu: u32) -> Result<Cpus, NumaError> {
        self.list(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    }

    /// Returns the processors that share the outermost data cache with this one.
    fn cache(&self, cpu: u32) -> Result<Cpus, NumaError> {
        let mut outermost = None;
        for index in 0..16 {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
            let Some(kind) = (self.read)(&format!("{folder}/type")) else { break };
            let level: Option<u32> =
                (self.read)(&format!("{folder}/level")).and_then(|level| level.trim().parse().ok());
            if matches!(kind.trim(), "Unified" | "Data")
                && level > outermost.as_ref().map(|(level, _)| *level)
            {
                outermost = level.map(|level| (level, folder));
            }
        }
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
        let (_, folder) = outermost.ok_or(NumaError::Unreadable { path: folder })?;
        self.list(&format!("{folder}/shared_cpu_list"))
    }

    /// Groups the processors by what they have in common, in the order of their lowest numbers.
    fn grouped(
        &self,
        cpus: &Cpus,
        common: impl Fn(u32) -> Result<Cpus, NumaError>,
    ) -> Result<Vec<Cpus>, NumaError> {
        let mut groups = SortedMap::<u32, Cpus>::new();
        for &cpu in cpus.keys() {
            let key = common(cpu)?.first().map_or(cpu, |(&first, ())| first);
            groups.entry(key, Cpus::new).insert(cpu, ());
        }
        Ok(groups.into_iter().map(|(_, group)| group).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    /// Two sockets of two nodes of four cores. The second processor of a core has a number 16 higher. Two cores share a
    /// cache.
    fn read(path: &str) -> Option<String> {
        if let Some(node) = path.strip_prefix("/sys/devices/system/node/node") {
            let first: u32 = node.strip_suffix("/cpulist")?.parse::<u32>().ok().filter(|node| *node < 4)? * 4;
            return Some(format!("{first}-{},{}-{}\n", first + 3, first + 16, first + 19));
        }
        if path == "/sys/devices/system/node/online" {
            return Some("0-3\n".to_string());
        }
        let (cpu, file) = path.strip_prefix("/sys/devices/system/cpu/cpu")?.split_once('/')?;
        let core = cpu.parse::<u32>().ok()? % 16;
        let pair = core / 2 * 2;
        Some(match file {
            "topology/physical_package_id" => format!("{}\n", core / 8),
            "topology/thread_siblings_list" => format!("{core},{}\n", core + 16),
            "cache/index0/type" => "Data\n".to_string(),
            "cache/index1/type" => "Instruction\n".to_string(),
            "cache/index2/type" => "Unified\n".to_string(),
            "cache/index0/level" => "1\n".to_string(),
            "cache/index1/level" => "9\n".to_string(),
            "cache/index2/level" => "3\n".to_string(),
            "cache/index0/shared_cpu_list" => format!("{core}\n"),
            "cache/index2/shared_cpu_list" => format!("{pair}-{},{}-{}\n", pair + 1, pair + 16, pair + 17),
            _ => return None,
        })
    }

    fn bound(binding: NumaBinding, workers: u32, allowed: &str) -> Result<Vec<String>, NumaError> {
        let host = Host { read: &read, allowed: parse_list(allowed).expect("a list") };
        Ok(bind(binding, workers, &host)?.iter().map(write_list).collect())
    }

    #[test]
    fn each_way_is_as_it_is_told() {
        use NumaBinding::{CoreComplex, Exclusive, Node, Socket};
        let all = "0-31";
        for (binding, workers, allowed, wanted) in [
            (Node, 2, all, &["0-3,16-19", "8-11,24-27"][..]),
            (Node, 4, all, &["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
            (Node, 2, "0-7", &["0-3", "4-7"]),
            (Node, 3, "2", &["2", "2", "2"]),
            (Socket, 2, all, &["0-7,16-23", "8-15,24-31"]),
            (Exclusive, 3, "0-3,16-19", &["0-1,16-17", "2,18", "3,19"]),
            (Exclusive, 4, "0-7", &["0-1", "2-3", "4-5", "6-7"]),
            (CoreComplex, 3, "0-3,16-19", &["0-1,16-17", "2-3,18-19", "0-1,16-17"]),
            (CoreComplex, 2, "1-3", &["2-3", "1"]),
        ] {
            let bound = bound(binding, workers, allowed).expect("there is enough");
            assert_eq!(bound, wanted, "{binding:?} {workers} {allowed}");
        }
    }

    #[test]
    fn what_cannot_be_is_told() {
        let error = bound(NumaBinding::Exclusive, 5, "0-3").expect_err("too few").to_string();
        assert_eq!(error, "NUMA node 0 has 4 cores for 5 workers");
        assert_eq!(bound(NumaBinding::Node, 1, "99"), Err(NumaError::NoProcessors));
        let host = Host { read: &|_| None, allowed: collected([0].iter()) };
        let error = bind(NumaBinding::Node, 1, &host).expect_err("no such file").to_string();
        assert_eq!(error, "/sys/devices/system/node/online is missing or invalid");
    }

    #[test]
    fn lists_are_read_and_written() {
        for list in ["", "0", "0-3", "0,2,4", "0-1,5,7-9"] {
            assert_eq!(write_list(&parse_list(list).expect("a list")), list);
        }
        assert_eq!(parse_list(" 3 , 1-2\n").map(|list| write_list(&list)).as_deref(), Some("1-3"));
        for list in ["a", "1-", "-1", "0-99999999", "1;2"] {
            assert_eq!(parse_list(list), None, "{list}");
        }
    }
}
