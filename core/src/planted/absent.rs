//! Replacement of the module without the feature: no bug is planted, and the compiler removes each check for one.

#[allow(dead_code, unreachable_pub, reason = "the list is shared with the module that plants bugs")]
mod bug;

pub use bug::Bug;

/// Returns whether this bug is planted, which is never the case.
#[inline(always)]
pub const fn has(_: Bug) -> bool {
    false
}
