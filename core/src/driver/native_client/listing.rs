//! Listing of a store's keys, page by page, for blocking clients and for sessions of a loop.

use super::session_driver::EncodedRequest;
use super::{Loss, OwnedFrame};
use crate::driver::take::Take;
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::store::call::Outcome;
use crate::store::op::Key;
use crate::time::Duration;
use crate::wire::native::{ClientFrame, ServerFrame};
use alloc::vec::Vec;

/// Number of keys that one response lists.
const PAGE_KEYS: u32 = 4096;

/// Listing of a store's keys, page by page.
#[derive(Debug, Default)]
pub(in crate::driver) struct Listing {
    after: Vec<u8>,
    count: u64,
}

impl Listing {
    /// Returns the request for the next page.
    pub(in crate::driver) fn page(&self, span: Duration) -> EncodedRequest {
        let (prefix, after) = (Key::raw(b""), Key::raw(self.after.as_slice()));
        let frame = ClientFrame::ListKeys { prefix, after, count_max: PAGE_KEYS };
        EncodedRequest::new(Operation::ListKeys, &frame, span)
    }

    /// Handles a page. Returns `None` if another page follows.
    pub(in crate::driver) fn take_page(
        &mut self,
        answer: &OwnedFrame,
        limits: &FrameLimits,
        take: &mut dyn Take,
    ) -> Result<Option<Outcome>, Loss> {
        let Some(ServerFrame::KeyList { more, keys }) = answer.frame(limits) else {
            return Err(Loss::of_wrong_answer(Operation::ListKeys));
        };
        let mut last = None;
        for key in keys.iter() {
            let whole = key.pieces().concat();
            take.whole(&whole);
            self.count += 1;
            last = Some(whole);
        }
        match last {
            Some(last) if more => self.after = last,
            _ => return Ok(Some(Outcome::Values(self.count))),
        }
        Ok(None)
    }
}
