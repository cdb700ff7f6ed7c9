//! Cancel tokens.

use crate::argument::{out_pointer, reference};
use crate::fault::{Fault, rdzv_error};
use crate::guard;
use crate::status::rdzv_status;
use rendezvous_core::driver::cancel::CancelToken;

/// Token that ends blocking calls. Once cancelled it stays cancelled: the calls in progress that use it
/// return `RDZV_CANCELLED`, and later ones return it at once, so a cancel is never too early. Any thread may
/// use it at any time.
#[derive(Debug)]
pub struct rdzv_cancel_token(CancelToken);

/// Creates a token that is not cancelled. On success the caller owns `*out` and frees it with
/// `rdzv_cancel_token_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_cancel_token_new(
    out: *mut *mut rdzv_cancel_token,
    error: *mut *mut rdzv_error,
) -> rdzv_status {
    // SAFETY: the pointers are NULL or valid as the header requires; NULL is refused.
    unsafe {
        guard::call(error, &mut || {
            let token = rdzv_cancel_token(CancelToken::new());
            out_pointer(out, "out")?.put(Box::into_raw(Box::new(token)));
            Ok(())
        })
    }
}

/// Cancels a token for good. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdzv_cancel_token_cancel(token: *const rdzv_cancel_token) {
    // SAFETY: NULL or valid, as the header requires.
    unsafe { guard::read(token, (), |token| token.0.cancel()) };
}

/// Frees a token without cancelling it. Options and handles that were given the token keep what they need.
/// NULL is ignored.
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
