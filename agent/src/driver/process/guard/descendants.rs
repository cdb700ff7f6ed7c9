//! Which processes are directly beneath the guard, and how they are told something.

use super::memory::Slot;
use super::stat::Stat;
use super::system::{ShortPath, check, close, decimal, each_number, open, read};
use libc::{c_int, pid_t};

/// Fills `memory` with the children of this process, which has one thread. What has no room is left out, and so may be what
/// changes meanwhile: each end makes the guard look again.
pub(super) fn list<'a>(memory: &'a mut [pid_t], slots: &[Slot]) -> &'a [pid_t] {
    // SAFETY: it has no arguments and cannot fail.
    let guard_pid = unsafe { libc::getpid() };
    let mut list = Filling { memory, count: 0 };
    if by_thread(guard_pid, &mut list).is_err() {
        list.count = 0;
        if by_parent(guard_pid, &mut list).is_err() {
            // Nobody can be found but the workers, whom the guard knows.
            list.count = 0;
            slots.iter().filter(|slot| slot.lives()).for_each(|slot| list.add(slot.pid));
        }
    }
    let Filling { memory, count } = list;
    memory.get(..count).unwrap_or(&[])
}

struct Filling<'a> {
    memory: &'a mut [pid_t],
    count: usize,
}

impl Filling<'_> {
    fn add(&mut self, pid: pid_t) {
        if let Some(index) = self.memory.get_mut(self.count) {
            *index = pid;
            self.count = self.count.wrapping_add(1);
        }
    }
}

/// The system's own list of a thread's children. Not every system has it.
fn by_thread(guard_pid: pid_t, list: &mut Filling<'_>) -> Result<(), c_int> {
    let path = ShortPath::new().text(b"/proc/self/task/").number(guard_pid).text(b"/children");
    let fd = open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY)?;
    // Numbers with a space behind each; one may be cut by the end of the room.
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

/// All processes of the system, as far as this one is their parent.
fn by_parent(guard_pid: pid_t, list: &mut Filling<'_>) -> Result<(), c_int> {
    each_number(c"/proc", &mut |_, pid| {
        if Stat::of(pid).is_ok_and(|stat| stat.parent == guard_pid) {
            list.add(pid);
        }
    })
}

/// The process group of a child. Every process beneath the guard is in a group that was made beneath it, for each worker
/// has a session of its own; so a signal to such a group reaches nobody else.
pub(super) fn group_of(child: pid_t) -> Option<pid_t> {
    // SAFETY: numbers only.
    let (group, guard_pid) = unsafe { (libc::getpgid(child), libc::getpgrp()) };
    (group > 1 && group != guard_pid).then_some(group)
}

/// Sends a signal to a process group whose members are beneath the guard.
pub(super) fn signal_group(group: pid_t, signal: c_int) {
    // SAFETY: numbers only; it fails when the last member is gone, and when none of them may be signalled.
    unsafe { libc::kill(group.wrapping_neg(), signal) };
}

/// Sends a signal to a child.
pub(super) fn signal_child(child: pid_t, signal: c_int) {
    // SAFETY: numbers only. Nobody but the guard waits for its children, so the number is still the child's.
    check(unsafe { libc::kill(child, signal) }).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::vec::Vec;

    /// The children that a way to list them finds, as a process with one thread sees them.
    fn found(method: fn(pid_t, &mut Filling<'_>) -> Result<(), c_int>, guard_pid: pid_t) -> Vec<pid_t> {
        let mut memory = [0; 512];
        let mut list = Filling { memory: &mut memory, count: 0 };
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
        // SAFETY: as above. This is the thread that has started them.
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
