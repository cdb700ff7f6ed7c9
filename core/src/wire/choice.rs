//! Enumerations on the wire.

/// Defines an enumeration of `u16` values. Values that this version does not know are kept, because later versions
/// may define them.
#[doc(hidden)]
#[macro_export]
macro_rules! open_choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$item_doc:meta])* $number:literal $item:ident: $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
            /// A value that this version does not know.
            Other(u16),
        }

        impl $name {
            /// The values that this version knows.
            pub const ALL: &'static [Self] = &[$(Self::$item),*];

            /// Returns the number on the wire.
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$item => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// Returns the value with this number.
            pub const fn from_number(number: u16) -> Self {
                match number {
                    $($number => Self::$item,)*
                    other => Self::Other(other),
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(Self::$item => f.write_str($text),)*
                    Self::Other(number) => write!(f, "reason {number}"),
                }
            }
        }

        impl<'a> $crate::wire::native::Field<'a> for $name {
            fn write(&self, out: &mut dyn $crate::wire::sink::Sink) {
                $crate::wire::native::Field::write(&self.number(), out);
            }

            fn read(body: &mut $crate::wire::native::Body<'a>) -> Result<Self, $crate::wire::native::BodyError> {
                <u16 as $crate::wire::native::Field>::read(body).map(Self::from_number)
            }
        }
    };
}

pub use open_choice;
