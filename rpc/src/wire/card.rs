//! A worker's card: who it is and which devices it has, as the members of a group hand it to each other.

use rendezvous_core::limits::{CARD, UPDATE};
use rendezvous_core::wire::native::{Body, BodyError, Field, List};
use rendezvous_core::wire::sink::Sink;

/// The only format that there is.
pub const CARD_FORMAT: u16 = 1;

/// A card, in borrowed bytes. Names and devices are texts; what they hold is for the reader to judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card<'a> {
    /// The worker's number.
    pub id: u16,
    /// Its name.
    pub name: &'a [u8],
    /// How many devices it has.
    pub device_count: u32,
    /// The devices that it uses.
    pub devices: List<'a, DeviceName<'a>>,
    /// Its device maps.
    pub maps: List<'a, MapEntry<'a>>,
}

/// A device by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName<'a>(pub &'a [u8]);

/// A map for one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapEntry<'a> {
    /// Who is called.
    pub to: &'a [u8],
    /// Devices of the caller's, and where they go.
    pub pairs: List<'a, DevicePair<'a>>,
}

/// A device of the caller's, and the one of the callee's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "as its name says")]
pub struct DevicePair<'a> {
    pub from: &'a [u8],
    pub to: &'a [u8],
}

/// What is wrong with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// It is of another format.
    #[error("the card has the format {0}, and {CARD_FORMAT} is known")]
    Format(u16),
    /// It is longer than any.
    #[error("a card of {0} bytes is over the limit")]
    TooLong(usize),
    /// Its fields are wrong.
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
    /// Writes it.
    pub fn write(&self, out: &mut impl Sink) {
        CARD_FORMAT.write(out);
        self.id.write(out);
        self.name.write(out);
        self.device_count.write(out);
        self.devices.write(out);
        self.maps.write(out);
    }

    /// Reads it; what stands behind its fields is passed over.
    ///
    /// # Errors
    /// It is none.
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

/// A change of a group, as one member tells it to the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update<'a> {
    /// The card of the worker that came, if one did.
    pub card: Option<&'a [u8]>,
    /// Where it takes calls.
    pub address: &'a [u8],
    /// Who went.
    pub departures: List<'a, Departure<'a>>,
}

/// A worker that went.
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
    /// Writes it.
    pub fn write(&self, out: &mut impl Sink) {
        CARD_FORMAT.write(out);
        self.card.write(out);
        self.address.write(out);
        self.departures.write(out);
    }

    /// Reads it; what stands behind its fields is passed over.
    ///
    /// # Errors
    /// It is none.
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
