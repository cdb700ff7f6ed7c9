//! `--numa-binding`: workers are run by `numactl`, each on processors of its own node.

use super::surroundings::{self, system_file};
use super::usage::Usage;
use clap::ValueEnum;
use rendezvous_agent::driver::process::find_program;
use rendezvous_agent::numa::{Host, NumaBinding, bind, parse_list, write_list};
use std::ffi::OsString;
use std::path::PathBuf;

/// What a worker is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Binding {
    /// All processors of its NUMA node
    Node,
    /// All processors of its node's socket
    Socket,
    /// Its own share of the cores of its node
    Exclusive,
    /// Cores of its node that share a cache
    CoreComplex,
}

impl From<Binding> for NumaBinding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::Node => Self::Node,
            Binding::Socket => Self::Socket,
            Binding::Exclusive => Self::Exclusive,
            Binding::CoreComplex => Self::CoreComplex,
        }
    }
}

/// The program that binds, and its arguments for each worker.
pub(super) fn bindings(binding: Binding, workers: u32) -> Result<(PathBuf, Vec<Vec<OsString>>), Usage> {
    let usage = |error: &dyn std::fmt::Display| Usage(format!("--numa-binding: {error}"));
    let numactl = find_program("numactl".as_ref(), surroundings::variable("PATH").as_deref())
        .map_err(|error| usage(&format!("it needs the program numactl: {error}")))?;
    let host = Host { read: &system_file, allowed: allowed(system_file("/proc/self/status").as_deref()) };
    let bound = bind(binding.into(), workers, &host).map_err(|error| usage(&error))?;
    let arguments = bound
        .iter()
        .map(|cpus| vec![OsString::from("numactl"), format!("--physcpubind={}", write_list(cpus)).into()]);
    Ok((numactl, arguments.collect()))
}

/// The processors that this process may run on.
fn allowed(status: Option<&str>) -> std::collections::BTreeSet<u32> {
    let line = status.and_then(|status| {
        status.lines().find_map(|line| parse_list(line.strip_prefix("Cpus_allowed_list:")?))
    });
    line.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_among_what_the_system_tells() {
        let status = "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-2,7\nMems_allowed_list:\t0\n";
        assert_eq!(allowed(Some(status)), [0, 1, 2, 7].into());
        assert_eq!(allowed(None), [].into());
    }
}
