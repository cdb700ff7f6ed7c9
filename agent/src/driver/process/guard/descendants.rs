//! Children of the guard, and how signals are sent to them.

use super::memory::Slot;
use super::stat::Stat;
use super::system::{ShortPath, check, close, decimal, each_number, open, read};
use libc::{c_int, pid_t};

/// Fills `memory` with the children of this process, which has one thread. Children beyond its length are left out, and
/// so may be those that change meanwhile: each end of a child triggers another check.
pub(super) fn list<'a>(memory: &'a mut [pid_t], slots: &[Slot]) -> &'a [pid_t] {
    // SAFETY: it has no arguments and cannot fail.
    let guard_pid = unsafe { libc::getpid() };
    let mut list = PidList { memory, count: 0 };
    if by_thread(guard_pid, &mut list).is_err() {
        list.count = 0;
        if by_parent(guard_pid, &mut list).is_err() {
            // Only the workers are known without `/proc`.
            list.count = 0;
            slots.iter().filter(|slot| slot.lives()).for_each(|slot| list.add(slot.pid));
        }
    }
    let PidList { memory, count } = list;
    memory.get(..count).unwrap_or(&[])
}

struct PidList<'a> {
    memory: &'a mut [pid_t],
    count: usize,
}

impl PidList<'_> {
    fn add(&mut self, pid: pid_t) {
        if let Some(index) = self.memory.get_mut(self.count) {
            *index = pid;
            self.count = self.count.wrapping_add(1);
        }
    }
}

/// Reads the kernel's list of a thread's children. Some kernels are built without it.
fn by_thread(guard_pid: pid_t, list: &mut PidList<'_>) -> Result<(), c_int> {
    let path = ShortPath::new().text(b"/proc/self/task/").number(guard_pid).text(b"/children");
    let fd = open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY)?;
    // The file contains numbers, each followed by a space. The last one may be cut at the end of the buffer.
    let mut memory = [0_u8; 1024];
    let mut kept = 0;
    let ended = loop {
        match read(fd, memory.get_mut(kept..).unwrap_or(&mut [])) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                let filled = kept.wrapping_add(count);
                let whole = memory.get(..filled).unwrap_or(&[]);
                let end = whole.iter().rposition(|byte| *byte == b' ').map_or(0, |at| at.wrapping_add(1));
                for field in whole.get(..end).unwrap_or(&[]).split(|byte| *byte == b' ') {
                    if let Some(pid) = decimal(field) {
                        list.add(pid);
                    }
                }
                memory.copy_within(end..filled, 0);
                kept = filled.wrapping_sub(end);
            }
            Err(error) => break Err(error),
        }
    };
    close(fd);
    ended
}

/// Searches all processes for those whose parent is this process.
fn by_parent(guard_pid: pid_t, list: &mut PidList<'_>) -> Result<(), c_int> {
    each_number(c"/proc", &mut |_, pid| {
        if Stat::of(pid).is_ok_and(|stat| stat.parent == guard_pid) {
            list.add(pid);
        }
    })
}

/// Returns the process group of a child. Each worker has a session of its own, so every descendant of the guard is in a
/// group created by a descendant, and a signal to such a group reaches no other process.
pub(super) fn group_of(child: pid_t) -> Option<pid_t> {
    // SAFETY: passes numbers only.
    let (group, guard_pid) = unsafe { (libc::getpgid(child), libc::getpgrp()) };
    (group > 1 && group != guard_pid).then_some(group)
}

/// Sends a signal to a process group of descendants of the guard.
pub(super) fn signal_group(group: pid_t, signal: c_int) {
    // SAFETY: passes numbers only. It fails if the last member has ended, or if none of them may be signalled.
    unsafe { libc::kill(group.wrapping_neg(), signal) };
}

/// Sends a signal to a child.
pub(super) fn signal_child(child: pid_t, signal: c_int) {
    // SAFETY: passes numbers only. Only the guard reaps its children, so the ID still belongs to the child.
    check(unsafe { libc::kill(child, signal) }).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::vec::Vec;

    /// Returns the children that a listing method finds, in a process with one thread.
    fn found(method: fn(pid_t, &mut PidList<'_>) -> Result<(), c_int>, guard_pid: pid_t) -> Vec<pid_t> {
        let mut memory = [0; 512];
        let mut list = PidList { memory: &mut memory, count: 0 };
        method(guard_pid, &mut list).expect("the system tells");
        let count = list.count;
        memory[..count].to_vec()
    }

    #[test]
    fn children_are_found_both_ways() {
        let mut children: Vec<_> = (0..200)
            .map(|_| Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat"))
            .collect();
        let pids: Vec<pid_t> = children.iter().map(|child| child.id().cast_signed()).collect();
        // SAFETY: it has no arguments and cannot fail.
        let by_parent = found(by_parent, unsafe { libc::getpid() });
        // SAFETY: as above. This thread has started them.
        let by_thread = found(by_thread, unsafe { libc::gettid() });
        for child in &mut children {
            child.kill().expect("it runs");
            child.wait().expect("a child of ours");
        }
        for pid in pids {
            assert!(by_parent.contains(&pid), "{pid} is among {by_parent:?}");
            assert!(by_thread.contains(&pid), "{pid} is among {by_thread:?}");
        }
    }
}
