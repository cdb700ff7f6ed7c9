//! Frames of the library's own protocols: each kind has a number, a name and fields, which are defined once.

use super::sink::Sink;

/// Frame without its header.
pub trait Message {
    /// Returns the kind of the frame.
    fn kind(&self) -> u16;

    /// Writes the fields.
    fn write_body(&self, out: &mut dyn Sink);
}

/// Defines the frames of one end of a connection: an enum, its parser, and its [`Message`]. The names of the parts that it
/// uses must be in scope: `Body`, `BodyError`, `Field`, `FrameLimits`, `Message`, `Sink` and `Size`. A kind that is
/// followed by `batchable` may stand in a batch.
#[doc(hidden)]
#[macro_export]
macro_rules! define_frames {
    (
        $(#[$doc:meta])* $name:ident<'a> {
            $(
                $(#[$kind_doc:meta])* $kind:literal $size:ident $variant:ident { $($field:ident: $type:ty),* }
                $($batchable:ident)?
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs, reason = "the document of the protocol describes the fields")]
        pub enum $name<'a> {
            $($(#[$kind_doc])* $variant { $($field: $type),* },)*
        }

        impl<'a> $name<'a> {
            /// Number, name and field names of each kind, in the order of the numbers.
            pub const KINDS: &'static [(u16, &'static str, &'static [&'static str])] =
                &[$(($kind, stringify!($variant), &[$(stringify!($field)),*])),*];

            /// Returns the size class of a kind; `None` for an unknown kind.
            pub const fn size_of(kind: u16) -> Option<Size> {
                match kind {
                    $($kind => Some(Size::$size),)*
                    _ => None,
                }
            }

            /// Returns whether a frame of this kind may stand in a batch.
            pub const fn is_batchable(kind: u16) -> bool {
                match kind {
                    $($kind => false $(|| !stringify!($batchable).is_empty())?,)*
                    _ => false,
                }
            }

            /// Parses the body of a frame; returns `None` for an unknown kind. Additional bytes after the known
            /// fields are ignored.
            ///
            /// # Errors
            /// The error in the body.
            pub fn parse(kind: u16, bytes: &'a [u8], limits: &'a FrameLimits) -> Result<Option<Self>, BodyError> {
                #[allow(unused_mut, unused_variables, reason = "some kinds have no fields")]
                let mut body = Body::new(bytes, limits);
                Self::read_kind(kind, &mut body)
            }

            #[allow(unused_variables, reason = "some kinds have no fields")]
            fn read_kind(kind: u16, body: &mut Body<'a>) -> Result<Option<Self>, BodyError> {
                Ok(Some(match kind {
                    $($kind => Self::$variant { $($field: Field::read(body)?),* },)*
                    _ => return Ok(None),
                }))
            }
        }

        impl Message for $name<'_> {
            fn kind(&self) -> u16 {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }

            #[allow(unused_variables, reason = "some kinds have no fields")]
            fn write_body(&self, out: &mut dyn Sink) {
                match self {
                    $(Self::$variant { $($field),* } => { $($field.write(out);)* })*
                }
            }
        }
    };
}

pub use define_frames;
