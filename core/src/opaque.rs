//! `Debug` for types with parts that cannot be shown, such as functions.

/// Implements `Debug` as the name of the type.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($($name:ident $(<$life:lifetime>)?),*) => {$(
        impl core::fmt::Debug for $name $(<$life>)? {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

pub use opaque_debug;
