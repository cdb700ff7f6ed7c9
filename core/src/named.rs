//! Enumerations whose values have names.

/// Defines an enumeration, the list of its values and the name of each.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$item_doc:meta])* $item:ident: $text:literal,)* }) => {
        $(#[$doc])*
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            /// All values.
            pub const ALL: [Self; [$(Self::$item),*].len()] = [$(Self::$item),*];

            /// Returns the name in logs, errors and events.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$item => $text,)*
                }
            }
        }
    };
}

pub use named;
