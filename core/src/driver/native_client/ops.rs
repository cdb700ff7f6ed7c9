//! Operations that only the store of a native server has, and the calls that every
//! [`Store`](crate::driver::store::Store) over such a server is made of.

use super::batch::Txn;
use super::calls::{check, frame_of, settle};
use super::{
    EncodedRequest, KeysPage, Loss, NativeClient, NativeError, NativeRequest, NativeResponse, OwnedFrame,
    TxnResult, Versioned, wrong_response,
};
use crate::driver::call_error::Refusal;
use crate::driver::prelude::*;
use crate::driver::take::Take;
use crate::driver::timeout::Timeout;
use crate::error::Operation;
use crate::limits::FrameLimits;
use crate::store::call::{Call, Outcome};
use crate::store::op::{Key, Request};
use crate::wire::native::{ClientFrame, ServerFrame};

impl NativeClient {
    /// Performs [`NativeRequest::Read`].
    ///
    /// # Errors
    /// Some key was not set in time, or the reason why the values are not known.
    pub fn read(&self, keys: &[&[u8]], timeout: Timeout) -> Result<Vec<Versioned>, NativeError> {
        let response = self.request(&NativeRequest::Read { keys }, timeout)?;
        let NativeResponse::Values(values) = response else { wrong_response() };
        Ok(values)
    }

    /// Performs [`NativeRequest::ListPage`].
    ///
    /// # Errors
    /// The reason why they are not known.
    pub fn list_page(
        &self,
        prefix: &[u8],
        after: &[u8],
        count_max: u32,
        timeout: Timeout,
    ) -> Result<KeysPage, NativeError> {
        let response = self.request(&NativeRequest::ListPage { prefix, after, count_max }, timeout)?;
        let NativeResponse::Page(page) = response else { wrong_response() };
        Ok(page)
    }

    /// Performs [`NativeRequest::Txn`]: if all its tests hold, applies its writes, otherwise those of its other
    /// branch.
    ///
    /// # Errors
    /// The reason why the result is not known. [`crate::error::Failure::effect`] says whether the transaction may
    /// have been committed. It is never applied in part.
    pub fn commit(&self, txn: &Txn, timeout: Timeout) -> Result<TxnResult, NativeError> {
        let response = self.request(&NativeRequest::Txn(txn), timeout)?;
        let NativeResponse::Txn(result) = response else { wrong_response() };
        Ok(result)
    }

    /// Performs a store call, with the semantics of the c10d protocol. Keys are whole.
    pub(in crate::driver) fn perform(
        &self,
        call: &Call<'_>,
        span: Duration,
        token: &CancelToken,
        take: &mut dyn Take,
    ) -> Result<Outcome, Refusal> {
        self.drive(call, span, token, take)
            .map_err(|loss| Refusal { message: loss.message(), failure: loss.failure })
    }

    fn drive(
        &self,
        call: &Call<'_>,
        span: Duration,
        token: &CancelToken,
        take: &mut dyn Take,
    ) -> Result<Outcome, Loss> {
        check(call, &self.inner.options.limits)?;
        let ask = |encoded| self.exchange(encoded, None, token);
        let limits = &self.inner.answer_limits;
        if let Call::Store(Request::ListKeys, _) = call {
            let mut listing = Listing::default();
            loop {
                let answer = ask(listing.page(span))?;
                if let Some(outcome) = listing.take_page(&answer, limits, take)? {
                    return Ok(outcome);
                }
            }
        }
        let frame = frame_of(call, span).ok_or_else(Loss::no_operation)?;
        let scope = call.keys().0.map_or(&b""[..], |key| key.pieces()[0]);
        settle(call, ask(EncodedRequest::new(call.operation(), &frame, span)), limits, scope, take)
    }
}

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
