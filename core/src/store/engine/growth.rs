//! Growth of the store by several writes together, found before the first of them is applied.

use super::native::Extras;
use super::slot::SlotId;
use super::value::Value;
use super::{ApplyError, Engine, contiguous_key, leases, number};
use crate::limits::KEY_COST_BYTES;
use crate::ordered::Named;
use crate::prelude::*;
use crate::store::op::Key;
use crate::store::txn::Write;
use core::ops::Bound;

/// State of a key as the writes leave it.
struct Planned {
    /// The value, or what ADD reads of it.
    value: Value,
    /// Charge of the value.
    value_bytes: u64,
    has_queue: bool,
    has_waiters: bool,
    is_leased: bool,
}

/// The keys that the writes concern, as far as they have been looked at.
#[derive(Default)]
struct Plan {
    keys: Named<Planned>,
    /// Keys that were written since the last removal of a prefix that covers them. A removal looks only at these: the
    /// others have neither a value nor a queue any more. `None` before the first removal.
    written: Option<Named<()>>,
}

impl Planned {
    fn is_present(&self) -> bool {
        !matches!(self.value, Value::Absent)
    }

    /// Returns what the key is charged, but for its queued items.
    fn charge(&self, key_bytes: usize) -> i64 {
        let is_named = self.is_present() || self.has_queue || self.has_waiters;
        let name_bytes = if is_named { key_bytes as u64 + KEY_COST_BYTES } else { 0 };
        let leased_bytes = if self.is_leased { leases::cost(key_bytes) } else { 0 };
        (name_bytes + self.value_bytes + leased_bytes).cast_signed()
    }

    /// Notes that the value was set, which ends the waits for the key.
    const fn replaced(&mut self, value_bytes: u64) {
        (self.value_bytes, self.has_waiters) = (value_bytes, false);
    }

    fn delete(&mut self) {
        if self.is_present() {
            // A key without a value belongs to no lease.
            (self.value, self.value_bytes, self.is_leased) = (Value::Absent, 0, false);
        }
    }
}

impl Engine {
    /// Checks that each ADD finds a number, and that there is capacity for what all writes together add.
    ///
    /// # Errors
    /// The reason that they cannot be applied; the key is that of an ADD.
    #[cold]
    pub(super) fn check_growth_of<'w>(
        &mut self,
        writes: impl Iterator<Item = Write<'w>> + Clone,
    ) -> Result<(), (ApplyError, Option<Key<'w>>)> {
        let (mut plan, mut growth) = (Plan::default(), 0);
        let mut ahead = writes.clone().map(|write| write.key());
        for (number, write) in writes.enumerate() {
            self.slots.read_ahead(number, &mut || ahead.next());
            self.count_work(1);
            growth += self.plan(&mut plan, &write)?;
        }
        self.check_growth(u64::try_from(growth).unwrap_or(0)).map_err(|error| (error, None))
    }

    /// Applies a write to the plan. Returns by how many bytes the charges grow.
    fn plan<'w>(&mut self, plan: &mut Plan, write: &Write<'w>) -> Result<i64, (ApplyError, Option<Key<'w>>)> {
        let (Write::Set { key, .. }
        | Write::Delete { key }
        | Write::Add { key, .. }
        | Write::Append { key, .. }) = *write
        else {
            let Write::DeletePrefix { prefix } = *write else { return Ok(0) };
            return Ok(self.plan_removal(plan, prefix));
        };
        let head = |bytes: &'w [u8]| &bytes[..bytes.len().min(number::TEXT_BYTES_MAX)];
        let name = contiguous_key(key, &mut self.joined);
        let (slots, extras) = (&self.slots, self.extras.as_deref());
        if let Some(written) = &mut plan.written {
            written.insert(name, ());
        }
        let one = plan.keys.entry(name, || Self::stored(slots, extras, name));
        let before = one.charge(name.len());
        match *write {
            Write::Set { value, .. } => {
                one.value = Value::Bytes(head(value).to_vec());
                one.replaced(value.len() as u64);
            }
            Write::Append { value: more, .. } => {
                let length = match one.value {
                    Value::Number(number) => itoa::Buffer::new().format(number).len() as u64,
                    _ => one.value_bytes,
                };
                if one.value.len() < number::TEXT_BYTES_MAX {
                    one.value.append(head(more), self.slots.meter());
                }
                one.replaced(length + more.len() as u64);
            }
            Write::Add { delta, .. } => {
                let number = one.value.as_number().ok_or((ApplyError::NotANumber, Some(key)))?;
                one.value = Value::Number(number.wrapping_add(delta));
                one.replaced(number::DIGITS_MAX as u64);
            }
            Write::Delete { .. } | Write::DeletePrefix { .. } => one.delete(),
        }
        Ok(one.charge(name.len()) - before)
    }

    /// Removes the keys with a prefix, and their queues, from the plan. Fenced keys stay.
    fn plan_removal(&mut self, plan: &mut Plan, prefix: Key<'_>) -> i64 {
        let prefix = contiguous_key(prefix, &mut self.joined);
        let stored: Vec<SlotId> = self.slots.ordered().with_prefix(prefix, Bound::Included(prefix)).collect();
        let (slots, extras) = (&self.slots, self.extras.as_deref());
        let Plan { keys, written } = plan;
        let written = written.get_or_insert_with(|| {
            let mut all = Named::new();
            keys.iter().for_each(|(name, _)| _ = all.insert(name, ()));
            all
        });
        for id in stored {
            let name = &*slots[id].key;
            let is_fenced = self.fences.as_deref().is_some_and(|fences| fences.find(name).is_some());
            if !is_fenced && !keys.contains(name) {
                keys.insert(name, Self::stored(slots, extras, name));
                written.insert(name, ());
            }
        }
        let mut growth = 0;
        // No written key is fenced.
        while let Some(name) = written.pop_prefix(prefix) {
            self.work.set(self.work.get() + 1);
            let Some(one) = keys.get_mut(&name) else { continue };
            let before = one.charge(name.len());
            if core::mem::take(&mut one.has_queue) {
                let items = slots.find(&name).map_or(0, |id| slots.queue_bytes(id));
                growth -= items.cast_signed();
            }
            one.delete();
            growth += one.charge(name.len()) - before;
        }
        growth
    }

    fn stored(slots: &super::slots::Slots, extras: Option<&Extras>, name: &[u8]) -> Planned {
        let is_leased = extras.is_some_and(|extras| extras.is_leased(name));
        let Some(slot) = slots.find(name).map(|id| &slots[id]) else {
            let value = Value::Absent;
            return Planned { value, value_bytes: 0, has_queue: false, has_waiters: false, is_leased };
        };
        let value = match &slot.value {
            Value::Absent => Value::Absent,
            Value::Number(number) => Value::Number(*number),
            value => Value::Bytes(value.as_ref().head(&mut [0; number::TEXT_BYTES_MAX]).to_vec()),
        };
        Planned {
            value,
            value_bytes: slot.value.len() as u64,
            has_queue: slot.queue.is_some(),
            has_waiters: !slot.waiters.is_empty(),
            is_leased,
        }
    }
}

#[cfg(test)]
mod tests;
