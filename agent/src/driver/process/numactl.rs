//! Binding of workers to processors by the program `numactl`, as torchrun does it.

use super::find::{FindError, find_program};
use crate::numa::{Cpus, Host, NumaBinding, NumaError, bind, parse_list, write_list};
use rendezvous_core::prelude::*;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Error of binding workers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumactlError {
    /// The program is missing.
    #[error("it needs the program numactl: {0}")]
    Program(#[from] FindError),
    /// The processors of a worker are not known.
    #[error(transparent)]
    Numa(#[from] NumaError),
}

/// Returns the path of `numactl`, which is searched for in the folders of `path_env`, and its arguments for each worker.
///
/// # Errors
/// See [`NumactlError`].
pub fn numactl(
    binding: NumaBinding,
    workers: u32,
    path_env: Option<&OsStr>,
) -> Result<(PathBuf, Vec<Vec<OsString>>), NumactlError> {
    let program = find_program("numactl".as_ref(), path_env)?;
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let host = Host { read: &read, allowed: allowed(read("/proc/self/status").as_deref()) };
    let bound = bind(binding, workers, &host)?;
    let arguments = bound
        .iter()
        .map(|cpus| Vec::from(["numactl".into(), format!("--physcpubind={}", write_list(cpus)).into()]));
    Ok((program, arguments.collect()))
}

/// Returns the processors that this process may run on.
fn allowed(status: Option<&str>) -> Cpus {
    let line = status.and_then(|status: &str| {
        status.lines().find_map(|line| parse_list(line.strip_prefix("Cpus_allowed_list:")?))
    });
    line.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_processors_are_those_of_the_process() {
        let status = "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-2,7\nMems_allowed_list:\t0\n";
        assert_eq!(write_list(&allowed(Some(status))), "0-2,7");
        assert_eq!(write_list(&allowed(None)), "");
    }
}
