//! The identity of this process among the processes of its host.

use super::host_name::host_name;
use crate::rendezvous::static_claim::Claim;
use alloc::format;

/// Returns this process's claim on a node rank.
pub(super) fn process_claim() -> Claim {
    let pid = std::process::id();
    Claim { host: host_name(), pid, started: start_time(pid).unwrap_or(0) }
}

/// Returns when a process of this host started, in clock ticks since boot; `None` when there is no such process.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    /// Index of the start time among the fields after the process name. The name may contain spaces and parentheses.
    const POSITION: usize = 19;
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = core::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    rest.split_whitespace().nth(POSITION)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_keeps_its_start_time() {
        let local = process_claim();
        assert!(local.started > 0 && start_time(local.pid) == Some(local.started), "{local:?}");
        assert_eq!(start_time(u32::MAX), None);
    }
}
