//! How much a worker has taken in: of all its callers together, and of each of them.

use alloc::vec::Vec;
use rendezvous_core::limits::IntakeLimits;

/// Counts what is taken in and not yet done with.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    limits: IntakeLimits,
    held: Load,
}

/// Requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// How many there are.
    pub requests: u64,
    /// Their payloads together, in bytes.
    pub bytes: u64,
}

impl Load {
    const fn add(&mut self, payload_bytes: u64) {
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(payload_bytes);
    }

    const fn subtract(&mut self, payload_bytes: u64) {
        self.requests = self.requests.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(payload_bytes);
    }

    const fn is_below(self, limit: Self) -> bool {
        self.requests < limit.requests && self.bytes < limit.bytes
    }
}

/// Whether something that is done with makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// There was room before, or there is none.
    AsBefore,
    /// A connection that was held up may be read again.
    Again,
}

impl Intake {
    /// Nothing is taken in.
    #[must_use]
    pub const fn new(limits: IntakeLimits) -> Self {
        Self { limits, held: Load { requests: 0, bytes: 0 } }
    }

    /// Whether more may be taken in.
    #[must_use]
    pub const fn has_capacity(&self) -> bool {
        let limit = Load { requests: self.limits.requests_max, bytes: self.limits.bytes_max };
        self.held.is_below(limit)
    }

    /// A request with a payload of so many bytes begins.
    pub const fn enter(&mut self, payload_bytes: u64) {
        self.held.add(payload_bytes);
    }

    /// It is done with.
    pub const fn leave(&mut self, payload_bytes: u64) -> Released {
        let had_capacity = self.has_capacity();
        self.held.subtract(payload_bytes);
        if !had_capacity && self.has_capacity() { Released::Again } else { Released::AsBefore }
    }

    /// Requests and bytes that are taken in.
    #[must_use]
    pub const fn held(&self) -> (u64, u64) {
        (self.held.requests, self.held.bytes)
    }
}

/// The number of a connection's quota. That of a closed connection is used again when its last request is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaId(usize);

impl QuotaId {
    /// A small number, from 1 on.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 + 1
    }
}

/// What a connection has under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests that their caller waits for, and those that are not complete.
    pub awaited: Load,
    /// Whether a request that was taken in is not complete.
    pub is_receiving: bool,
}

#[derive(Clone, Copy, Debug)]
struct Quota {
    held: Load,
    is_open: bool,
    /// Held up until it is below that.
    resumes_below: Option<Load>,
}

/// What a worker has taken in, and the quota of each connection.
///
/// - When the worker has no room, connections are not read, but for those that have nearly nothing there: so a caller with
///   little is served however much others ask, and those with a payload under way, so that what holds the room can be
///   done with. There may be more than the limit by what each connection may have under way.
/// - Requests that their caller does not wait for are notices, and calls that it gave up while a handler had them. They
///   count until their handlers are done with them. A connection that has its quota of these is not read, and no other
///   connection suffers for it.
#[derive(Debug)]
pub struct FairIntake {
    limits: IntakeLimits,
    total: Intake,
    quotas: Vec<Quota>,
    free: Vec<usize>,
    /// Answers that callers have not taken, in bytes.
    unread_bytes: u64,
    has_capacity_again: bool,
}

impl FairIntake {
    /// Nothing is taken in.
    #[must_use]
    pub const fn new(limits: IntakeLimits) -> Self {
        Self {
            limits,
            total: Intake::new(limits),
            quotas: Vec::new(),
            free: Vec::new(),
            unread_bytes: 0,
            has_capacity_again: false,
        }
    }

    /// A connection begins.
    pub fn open(&mut self) -> QuotaId {
        let quota = Quota { held: Load::default(), is_open: true, resumes_below: None };
        let slot = self.free.pop().unwrap_or(self.quotas.len());
        match self.quotas.get_mut(slot) {
            Some(free) => *free = quota,
            None => self.quotas.push(quota),
        }
        QuotaId(slot)
    }

    /// The connection ended.
    pub fn close(&mut self, id: QuotaId) {
        if let Some(quota) = self.quotas.get_mut(id.0).filter(|quota| quota.is_open) {
            (quota.is_open, quota.resumes_below) = (false, None);
            if quota.held.requests == 0 {
                self.free.push(id.0);
            }
        }
    }

    /// A request with a payload of so many bytes begins.
    pub fn enter(&mut self, id: QuotaId, payload_bytes: u64) {
        self.total.enter(payload_bytes);
        if let Some(quota) = self.quotas.get_mut(id.0) {
            quota.held.add(payload_bytes);
        }
    }

    /// It is done with.
    pub fn leave(&mut self, id: QuotaId, payload_bytes: u64) -> Released {
        let mut released = self.total.leave(payload_bytes);
        if let Some(quota) = self.quotas.get_mut(id.0) {
            quota.held.subtract(payload_bytes);
            if quota.resumes_below.is_some_and(|limit| quota.held.is_below(limit)) {
                quota.resumes_below = None;
                released = Released::Again;
            }
            if !quota.is_open && quota.held.requests == 0 {
                self.free.push(id.0);
            }
        }
        self.has_capacity_again |= released == Released::Again;
        released
    }

    /// Whether a connection may be read. If not, [`FairIntake::leave`] tells when to ask again.
    pub fn may_read(&mut self, id: QuotaId, InFlight { awaited, is_receiving }: InFlight) -> bool {
        let limits = &self.limits;
        let (requests, bytes) = (limits.unawaited_requests_max, limits.unawaited_bytes_max);
        let over = |requests, bytes| Load {
            requests: awaited.requests.saturating_add(requests),
            bytes: awaited.bytes.saturating_add(bytes),
        };
        let Some(quota) = self.quotas.get_mut(id.0) else { return true };
        if !quota.held.is_below(over(requests, bytes)) {
            // Half of it is read again at once, and not each request by itself.
            quota.resumes_below = Some(over(requests.div_ceil(2), bytes.div_ceil(2)));
            return false;
        }
        let reserved = Load { requests: limits.reserved_requests, bytes: limits.reserved_bytes };
        if is_receiving || self.total.has_capacity() || quota.held.is_below(reserved) {
            return true;
        }
        quota.resumes_below = Some(reserved);
        false
    }

    /// Whether [`Released::Again`] was told since this was asked.
    pub const fn take_capacity(&mut self) -> bool {
        core::mem::replace(&mut self.has_capacity_again, false)
    }

    /// Requests and bytes that are taken in.
    #[must_use]
    pub const fn held(&self) -> (u64, u64) {
        self.total.held()
    }

    /// Of answers that a connection has for its caller, so many bytes were not taken before, and are not now.
    pub const fn count_unread(&mut self, before: u64, now: u64) {
        self.unread_bytes = self.unread_bytes.saturating_sub(before).saturating_add(now);
    }

    /// Whether a handler may begin for a caller that has not taken so many bytes of its answers.
    #[must_use]
    pub const fn begins(&self, unread_bytes: u64) -> bool {
        unread_bytes == 0 || self.unread_bytes < self.limits.answer_bytes_max
    }

    /// Whether an answer of so many bytes is kept that comes when its handler has returned.
    #[must_use]
    pub const fn keeps_late_answer(&self, bytes: u64) -> bool {
        self.unread_bytes.saturating_add(bytes) <= self.limits.late_answer_bytes_max
    }

    /// Answers that callers have not taken, in bytes.
    #[must_use]
    pub const fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }
}

#[cfg(test)]
mod tests;
