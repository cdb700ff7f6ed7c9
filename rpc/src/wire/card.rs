//! Card of a worker: name, number and devices, as the members of a group exchange them.

use rendezvous_core::limits::{CARD, UPDATE};
use rendezvous_core::wire::native::{Body, BodyError, Field, List};
use rendezvous_core::wire::sink::Sink;

/// Format number, the only one.
pub const CARD_FORMAT: u16 = 1;

/// Card in borrowed bytes. Names and devices are texts, which the reader must validate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card<'a> {
    /// Number of the worker.
    pub id: u16,
    /// Name of the worker.
    pub name: &'a [u8],
    /// Number of its devices.
    pub device_count: u32,
    /// Devices that it uses.
    pub devices: List<'a, DeviceName<'a>>,
    /// Device maps for the workers that it calls.
    pub maps: List<'a, MapEntry<'a>>,
}

/// Name of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName<'a>(pub &'a [u8]);

/// Device map for one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapEntry<'a> {
    /// Name of the callee.
    pub to: &'a [u8],
    /// Pairs of a caller's and a callee's device.
    pub pairs: List<'a, DevicePair<'a>>,
}

/// Device of the caller, and the corresponding one of the callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as its name says")]
pub struct DevicePair<'a> {
    pub from: &'a [u8],
    pub to: &'a [u8],
}

/// Error of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// The format is unknown.
    #[error("the card has the format {0}, and {CARD_FORMAT} is known")]
    Format(u16),
    /// The card is over the maximum length.
    #[error("a card of {0} bytes is over the limit")]
    TooLong(usize),
    /// A field is invalid.
    #[error("the card is malformed: {0}")]
    Body(#[from] BodyError),
}

impl<'a> Field<'a> for DeviceName<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.0.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Field::read(body).map(Self)
    }
}

impl<'a> Field<'a> for DevicePair<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.from.write(out);
        self.to.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self { from: Field::read(body)?, to: Field::read(body)? })
    }
}

impl<'a> Field<'a> for MapEntry<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.to.write(out);
        self.pairs.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self { to: Field::read(body)?, pairs: Field::read(body)? })
    }
}

impl<'a> Card<'a> {
    /// Encodes the card.
    pub fn write(&self, out: &mut impl Sink) {
        CARD_FORMAT.write(out);
        self.id.write(out);
        self.name.write(out);
        self.device_count.write(out);
        self.devices.write(out);
        self.maps.write(out);
    }

    /// Decodes a card; bytes after its fields are ignored.
    ///
    /// # Errors
    /// The bytes are not a valid card.
    pub fn read(bytes: &'a [u8]) -> Result<Self, CardError> {
        if bytes.len() > CARD.frame_bytes_max {
            return Err(CardError::TooLong(bytes.len()));
        }
        let mut body = Body::new(bytes, &CARD);
        let format = u16::read(&mut body)?;
        if format != CARD_FORMAT {
            return Err(CardError::Format(format));
        }
        Ok(Self {
            id: Field::read(&mut body)?,
            name: Field::read(&mut body)?,
            device_count: Field::read(&mut body)?,
            devices: Field::read(&mut body)?,
            maps: Field::read(&mut body)?,
        })
    }
}

/// Change of a group, as one member reports it to the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update<'a> {
    /// Card of the worker that joined, if one did.
    pub card: Option<&'a [u8]>,
    /// Address at which it accepts calls.
    pub address: &'a [u8],
    /// Workers that left.
    pub departures: List<'a, Departure<'a>>,
}

/// Worker that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as their names say")]
pub struct Departure<'a> {
    pub id: u16,
    pub name: &'a [u8],
    pub address: &'a [u8],
}

impl<'a> Field<'a> for Departure<'a> {
    fn write(&self, out: &mut impl Sink) {
        self.id.write(out);
        self.name.write(out);
        self.address.write(out);
    }

    fn read(body: &mut Body<'a>) -> Result<Self, BodyError> {
        Ok(Self { id: Field::read(body)?, name: Field::read(body)?, address: Field::read(body)? })
    }
}

impl<'a> Update<'a> {
    /// Encodes the change.
    pub fn write(&self, out: &mut impl Sink) {
        CARD_FORMAT.write(out);
        self.card.write(out);
        self.address.write(out);
        self.departures.write(out);
    }

    /// Decodes a change; bytes after its fields are ignored.
    ///
    /// # Errors
    /// The bytes are not a valid change.
    pub fn read(bytes: &'a [u8]) -> Result<Self, CardError> {
        if bytes.len() > UPDATE.frame_bytes_max {
            return Err(CardError::TooLong(bytes.len()));
        }
        let mut body = Body::new(bytes, &UPDATE);
        let format = u16::read(&mut body)?;
        if format != CARD_FORMAT {
            return Err(CardError::Format(format));
        }
        Ok(Self {
            card: Field::read(&mut body)?,
            address: Field::read(&mut body)?,
            departures: Field::read(&mut body)?,
        })
    }
}
