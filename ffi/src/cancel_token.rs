//! Cancel tokens.

use crate::prelude::*;
use rendezvous_core::driver::cancel::CancelToken;

/// Token that ends blocking calls. Once cancelled it stays cancelled: the calls in progress that use it
/// return `RDZV_CANCELLED`, and later ones return it at once, so a cancel is never too early. Any thread
/// may use it at any time.
#[derive(Debug)]
pub struct rdzv_cancel_token(pub(crate) CancelToken);

/// Creates a token that is not cancelled; the caller frees it with `rdzv_cancel_token_free`. Never NULL:
/// the process is aborted if it is out of memory.
#[unsafe(no_mangle)]
pub extern "C" fn rdzv_cancel_token_new() -> *mut rdzv_cancel_token {
    guard::quiet(std::ptr::null_mut(), || boxed(rdzv_cancel_token(CancelToken::new())))
}

/// Cancels a token for good. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_cancel_token_cancel(token: *const rdzv_cancel_token) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(token, (), |token| token.0.cancel()) };
}

/// Frees a token without cancelling it. Handles that were given the token keep what they need. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_cancel_token_free(token: *mut rdzv_cancel_token) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::free(token) };
}

/// Returns the token of an argument.
///
/// # Errors
///
/// The argument is NULL.
pub(crate) unsafe fn token_of(token: *const rdzv_cancel_token) -> Result<CancelToken, Fault> {
    // SAFETY: NULL or valid, as the caller says.
    Ok(unsafe { reference(token, "token")? }.0.clone())
}

/// Returns the token of an option; NULL is one that is never cancelled.
pub(crate) unsafe fn token_or_none(token: *const rdzv_cancel_token) -> CancelToken {
    // SAFETY: NULL or valid, as the caller says.
    unsafe { token.as_ref() }.map_or_else(CancelToken::new, |token| token.0.clone())
}
