//! Accounting of accepted requests: of all callers together, and of each connection.

use crate::limits::IntakeLimits;
use alloc::vec::Vec;

/// Counter of accepted requests that have not ended.
#[derive(Clone, Copy, Debug)]
pub struct Intake {
    limits: IntakeLimits,
    held: Load,
}

/// Number of requests, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of requests.
    pub requests: u64,
    /// Sum of their payloads in bytes.
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

/// Whether the end of a request frees capacity that connections wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// There was capacity before, or there is none.
    AsBefore,
    /// A connection that was held up may be read again.
    Again,
}

impl Intake {
    /// Creates a counter without requests.
    pub const fn new(limits: IntakeLimits) -> Self {
        Self { limits, held: Load { requests: 0, bytes: 0 } }
    }

    /// Whether more requests may be accepted.
    pub const fn has_capacity(&self) -> bool {
        let limit = Load { requests: self.limits.requests_max, bytes: self.limits.bytes_max };
        self.held.is_below(limit)
    }

    /// A request with a payload of this many bytes begins.
    pub const fn enter(&mut self, payload_bytes: u64) {
        self.held.add(payload_bytes);
    }

    /// A request with a payload of this many bytes has ended.
    pub const fn leave(&mut self, payload_bytes: u64) -> Released {
        let had_capacity = self.has_capacity();
        self.held.subtract(payload_bytes);
        if !had_capacity && self.has_capacity() { Released::Again } else { Released::AsBefore }
    }

    /// The bytes of a request have changed from `before` to `now`.
    const fn count(&mut self, before: u64, now: u64) {
        self.held.bytes = self.held.bytes.saturating_sub(before).saturating_add(now);
    }

    /// Number of accepted requests, and their bytes.
    pub const fn held(&self) -> (u64, u64) {
        (self.held.requests, self.held.bytes)
    }
}

/// Index of a connection's quota. That of a closed connection is reused when its last request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaId(usize);

impl QuotaId {
    /// Returns a small number, from 1 on.
    pub const fn index(self) -> usize {
        self.0 + 1
    }
}

/// Pending requests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests that the caller waits for, and those that are incomplete.
    pub awaited: Load,
    /// Whether an accepted request is incomplete.
    pub is_receiving: bool,
}

#[derive(Clone, Copy, Debug)]
struct Quota {
    held: Load,
    is_open: bool,
    /// Held up until the load is below this.
    resumes_below: Option<Load>,
}

/// Accepted requests of a worker, and the quota of each connection.
///
/// - When the worker has no capacity, connections are not read, with two exceptions. A connection below a small reserve
///   is read, so that a caller with few requests is served however many others there are. A connection with an
///   incomplete payload is read, so that the request that occupies capacity can end. Beyond twice the limit, a connection
///   above the reserve has requests refused as they begin and as more of them arrives.
/// - Of a payload, the bytes that have arrived count against the limit, and a small reserve of those that have not: a
///   caller that announces much and sends nothing holds up no others.
/// - Requests that their caller does not wait for are one-way calls, and calls that it gave up while a handler had
///   them. They count until their handlers have finished. A connection that has reached its quota of these is not read,
///   and no other connection is affected.
#[derive(Debug)]
pub struct FairIntake {
    limits: IntakeLimits,
    total: Intake,
    quotas: Vec<Quota>,
    free: Vec<usize>,
    /// Bytes of responses that callers have not read.
    unread_bytes: u64,
    has_capacity_again: bool,
}

impl FairIntake {
    /// Creates an intake without requests.
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

    /// Adds a connection.
    pub fn open(&mut self) -> QuotaId {
        let quota = Quota { held: Load::default(), is_open: true, resumes_below: None };
        let slot = self.free.pop().unwrap_or(self.quotas.len());
        match self.quotas.get_mut(slot) {
            Some(free) => *free = quota,
            None => self.quotas.push(quota),
        }
        QuotaId(slot)
    }

    /// The connection has ended.
    pub fn close(&mut self, id: QuotaId) {
        if let Some(quota) = self.quotas.get_mut(id.0).filter(|quota| quota.is_open) {
            (quota.is_open, quota.resumes_below) = (false, None);
            if quota.held.requests == 0 {
                self.free.push(id.0);
            }
        }
    }

    /// A request with a payload of this many bytes begins. Returns how many of them count against the shared limit,
    /// before any has arrived.
    pub fn enter(&mut self, id: QuotaId, payload_bytes: u64) -> u64 {
        let counted = self.counted(payload_bytes, 0);
        self.total.enter(counted);
        if let Some(quota) = self.quotas.get_mut(id.0) {
            quota.held.add(payload_bytes);
        }
        counted
    }

    /// Returns how many bytes of a payload count against the shared limit when this many have arrived.
    const fn counted(&self, payload_bytes: u64, arrived: u64) -> u64 {
        let counted = arrived.saturating_add(self.limits.reserved_bytes);
        if counted < payload_bytes { counted } else { payload_bytes }
    }

    /// More of a payload has arrived. `counted` is what counted of it before; returns what counts of it now.
    pub const fn arrived(&mut self, payload_bytes: u64, counted: u64, arrived: u64) -> u64 {
        let now = self.counted(payload_bytes, arrived);
        self.total.count(counted, now);
        now
    }

    /// Whether a request of which more has arrived is to be refused, because the worker holds more than twice as many bytes as
    /// it accepts, and the connection more than the reserve.
    pub fn is_beyond(&self, id: QuotaId) -> bool {
        let (_, held) = self.total.held();
        held > self.limits.bytes_max.saturating_mul(2)
            && self.quotas.get(id.0).is_some_and(|quota| quota.held.bytes > self.limits.reserved_bytes)
    }

    /// A request with a payload of this many bytes has ended, of which `counted` counted.
    pub fn leave(&mut self, id: QuotaId, payload_bytes: u64, counted: u64) -> Released {
        let mut released = self.total.leave(counted);
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

    /// Whether a connection may be read. If not, [`FairIntake::leave`] returns when to check again.
    pub fn may_read(&mut self, id: QuotaId, InFlight { awaited, is_receiving }: InFlight) -> bool {
        let limits = &self.limits;
        let (requests, bytes) = (limits.unawaited_requests_max, limits.unawaited_bytes_max);
        let over = |requests, bytes| Load {
            requests: awaited.requests.saturating_add(requests),
            bytes: awaited.bytes.saturating_add(bytes),
        };
        let Some(quota) = self.quotas.get_mut(id.0) else { return true };
        if !quota.held.is_below(over(requests, bytes)) {
            // Reading resumes for half of the quota at once, and not for each request.
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

    /// Whether [`Released::Again`] was returned since the last call.
    pub const fn take_capacity(&mut self) -> bool {
        core::mem::replace(&mut self.has_capacity_again, false)
    }

    /// Number of accepted requests, and those of their bytes that count.
    pub const fn held(&self) -> (u64, u64) {
        self.total.held()
    }

    /// The unread bytes of a connection's responses have changed from `before` to `now`.
    pub const fn count_unread(&mut self, before: u64, now: u64) {
        self.unread_bytes = self.unread_bytes.saturating_sub(before).saturating_add(now);
    }

    /// Whether a handler may start for a caller with this many unread bytes of responses.
    pub const fn begins(&self, unread_bytes: u64) -> bool {
        unread_bytes == 0 || self.unread_bytes < self.limits.answer_bytes_max
    }

    /// Whether a response of this many bytes is kept though its handler has returned before.
    pub const fn keeps_late_answer(&self, bytes: u64) -> bool {
        self.unread_bytes.saturating_add(bytes) <= self.limits.late_answer_bytes_max
    }

    /// Number of bytes of responses that callers have not read.
    pub const fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }
}

#[cfg(test)]
mod tests;
