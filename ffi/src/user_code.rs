//! Functions of the program that the library calls, and their data.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

/// Function that destroys the data of user code.
pub(crate) type Destroy = unsafe extern "C" fn(user_data: *mut c_void);

/// Functions of the program, such as a vtable, with their `user_data`. That stays the program's until the library owns it;
/// then it is destroyed with this.
pub(crate) struct UserCode<F> {
    functions: F,
    pub(crate) user_data: *mut c_void,
    destroyer: OnceLock<Destroy>,
}

// SAFETY: the header says on which threads the functions are called, and that any thread may destroy the data.
unsafe impl<F> Send for UserCode<F> {}
// SAFETY: the header says which functions several threads call at a time; the library does not follow `user_data`.
unsafe impl<F> Sync for UserCode<F> {}

impl<F> UserCode<F> {
    /// Wraps functions whose data is still the program's.
    pub(crate) const fn new(functions: F, user_data: *mut c_void) -> Self {
        Self { functions, user_data, destroyer: OnceLock::new() }
    }

    /// Takes ownership of the data.
    pub(crate) fn adopt(&self, destroy: Option<Destroy>) {
        if let Some(destroy) = destroy {
            self.destroyer.set(destroy).ok();
        }
    }

    /// Wraps functions whose data is the library's from now on.
    pub(crate) fn owned(functions: F, user_data: *mut c_void, destroy: Option<Destroy>) -> Self {
        let code = Self::new(functions, user_data);
        code.adopt(destroy);
        code
    }
}

impl<F> Deref for UserCode<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.functions
    }
}

impl<F> Drop for UserCode<F> {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroyer.get() {
            // SAFETY: the program supplied it for this, and no call of its functions is in progress or follows.
            unsafe { destroy(self.user_data) };
        }
    }
}

impl<F> fmt::Debug for UserCode<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("user code")
    }
}
