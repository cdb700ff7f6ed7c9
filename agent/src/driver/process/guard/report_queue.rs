//! Reports of the guard, in order, until the socket accepts them.

use super::memory::{ReportEntry, Slot, Stage};
use super::packet::{Report, report, send};
use super::system::close;
use libc::c_int;
use std::os::fd::RawFd;

/// Slot of a report that concerns no worker in the table.
pub(super) const NO_SLOT: usize = usize::MAX;

/// Ring buffer of reports.
pub(super) struct ReportQueue {
    entries: &'static mut [ReportEntry],
    first: usize,
    count: usize,
    socket: RawFd,
}

impl ReportQueue {
    pub(super) const fn new(entries: &'static mut [ReportEntry], socket: RawFd) -> Self {
        Self { entries, first: 0, count: 0, socket }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of free entries.
    pub(super) const fn memory(&self) -> usize {
        self.entries.len().saturating_sub(self.count)
    }

    /// Returns the index of the entry at an offset from the first.
    fn index(&self, offset: usize) -> usize {
        let index = self.first.wrapping_add(offset);
        if index < self.entries.len() { index } else { index.wrapping_sub(self.entries.len()) }
    }

    /// Appends a report. The caller makes sure that there is room.
    pub(super) fn add(&mut self, report: Report, slot: usize) {
        let last = self.index(self.count.wrapping_sub(1));
        // The second of two such reports in a row reentries the first.
        if self.count > 0
            && matches!(report.kind, report::EMPTY | report::SURVIVORS)
            && let Some(last) = self.entries.get_mut(last).filter(|last| last.report.kind == report.kind)
        {
            last.report = report;
            return;
        }
        if self.memory() > 0 {
            let index = self.index(self.count);
            if let Some(index) = self.entries.get_mut(index) {
                *index = ReportEntry { report, slot };
                self.count = self.count.wrapping_add(1);
            }
        }
    }

    /// Moves the last report, an exit, before the exits that began later: the first cause comes first.
    pub(super) fn put_in_order(&mut self) {
        let mut offset = self.count.wrapping_sub(1);
        while offset > 0 && self.count > 0 {
            let (before, last) = (self.index(offset.wrapping_sub(1)), self.index(offset));
            let (Some(earlier), Some(later)) = (self.entries.get(before), self.entries.get(last)) else {
                return;
            };
            if earlier.report.kind != report::EXITED || earlier.report.at_ns <= later.report.at_ns {
                return;
            }
            self.entries.swap(before, last);
            offset = offset.wrapping_sub(1);
        }
    }

    /// Sends as many reports as the socket accepts. Slots whose exit report was sent become free.
    pub(super) fn send(&mut self, slots: &mut [Slot]) -> Result<(), c_int> {
        while self.count > 0 {
            let Some(ReportEntry { report, slot }) = self.entries.get(self.first).copied() else {
                return Ok(());
            };
            let slot = slots.get_mut(slot);
            let pidfd = slot.as_ref().map_or(-1, |slot| slot.pidfd);
            let beside = [pidfd];
            let beside: &[RawFd] = if report.kind == report::STARTED && pidfd >= 0 { &beside } else { &[] };
            let sent = match send(self.socket, &report, beside) {
                Err(libc::ETOOMANYREFS) => send(self.socket, &report, &[]),
                sent => sent,
            };
            match sent {
                Ok(()) => {}
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return Ok(()),
                Err(error) => return Err(error),
            }
            self.first = self.index(1);
            self.count = self.count.wrapping_sub(1);
            if let Some(slot) = slot.filter(|_| report.kind == report::EXITED) {
                free(slot);
            }
        }
        Ok(())
    }
}

fn free(slot: &mut Slot) {
    // The slot owns them, and neither is watched any more.
    for fd in [slot.pidfd, slot.lifeline].into_iter().filter(|fd| *fd >= 0) {
        close(fd);
    }
    (slot.pidfd, slot.lifeline) = (-1, -1);
    slot.stage = Stage::Free;
}
