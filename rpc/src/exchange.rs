//! Encoding of the devices that the members of a group exchange.

use super::device::{Device, DeviceError};
use super::device_map::{DeviceMap, NodeDevices};
use super::name::{NameError, WorkerInfo, WorkerName};
use crate::limits::{CARD, DEVICE_PAIRS_MAX};
use crate::wire::Encoded;
use rendezvous_core::limits::FrameLimits;
use rendezvous_core::prelude::*;
use rendezvous_core::wire::native::{Body, BodyError, Field, List};

/// Format number of cards and changes, the only one.
pub(crate) const FORMAT: u16 = 1;

/// Error of another worker's card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The format is unknown.
    #[error("the card has the format {0}, and {FORMAT} is known")]
    Format(u16),
    /// The card is over the maximum length.
    #[error("a card of {0} bytes is over the limit")]
    TooLong(usize),
    /// A field is invalid.
    #[error("the card is malformed: {0}")]
    Body(#[from] BodyError),
    /// It is missing.
    #[error("the card is missing")]
    NoCard,
    /// A text in it is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A name in it is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A device in it is invalid.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A map in it has more pairs than any host has devices.
    #[error("a device map of {0} pairs is over the limit of {DEVICE_PAIRS_MAX}")]
    Pairs(usize),
}

/// Names of a device of the caller, and of the corresponding one of the callee.
type PairText<'a> = (&'a [u8], &'a [u8]);
/// Name of a callee, and the device map for it.
type MapText<'a> = (&'a [u8], List<'a, PairText<'a>>);

/// Encodes the card of a worker.
pub fn encode_card(worker: &WorkerInfo, said: &NodeDevices) -> Vec<u8> {
    let devices: Vec<String> = said.devices.iter().map(ToString::to_string).collect();
    let names: Vec<&[u8]> = devices.iter().map(String::as_bytes).collect();
    let texts: Vec<Vec<(String, String)>> = said
        .maps
        .iter()
        .map(|(_, map)| map.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect())
        .collect();
    let pairs: Vec<Vec<PairText<'_>>> = texts
        .iter()
        .map(|pairs| pairs.iter().map(|(from, to)| (from.as_bytes(), to.as_bytes())).collect())
        .collect();
    let callees = said.maps.iter().map(|(to, _)| to.as_bytes());
    let maps: Vec<MapText<'_>> = callees.zip(pairs.iter().map(|pairs| List::new(pairs))).collect();
    let mut card = Encoded::default();
    FORMAT.write(&mut card);
    worker.id.write(&mut card);
    worker.name.as_bytes().write(&mut card);
    said.count.write(&mut card);
    List::new(&names).write(&mut card);
    List::new(&maps).write(&mut card);
    card.0
}

/// Returns the fields after the format number; those after the known ones are ignored.
pub(crate) fn body_of<'a>(bytes: &'a [u8], limits: &'a FrameLimits) -> Result<Body<'a>, ExchangeError> {
    if bytes.len() > limits.frame_bytes_max {
        return Err(ExchangeError::TooLong(bytes.len()));
    }
    let mut body = Body::new(bytes, limits);
    match u16::read(&mut body)? {
        FORMAT => Ok(body),
        other => Err(ExchangeError::Format(other)),
    }
}

/// Decodes a card. Its maps may violate every rule: [`Group::check`](super::device_map::Group::check) reports that.
///
/// # Errors
/// The bytes are not a valid card.
pub fn decode_card(bytes: &[u8]) -> Result<(WorkerInfo, NodeDevices), ExchangeError> {
    let mut body = body_of(bytes, &CARD)?;
    let (id, worker, count) = (u16::read(&mut body)?, <&[u8]>::read(&mut body)?, u32::read(&mut body)?);
    let (devices, maps) = (List::<&[u8]>::read(&mut body)?, List::<MapText<'_>>::read(&mut body)?);
    let worker = WorkerInfo { name: name(worker)?, id };
    let devices = devices.iter().map(device).collect::<Result<_, _>>()?;
    let read_map = |(to, pairs): MapText<'_>| {
        let count = pairs.len();
        if count > DEVICE_PAIRS_MAX {
            return Err(ExchangeError::Pairs(count));
        }
        let pairs = pairs.iter().map(|(from, to)| Ok((device(from)?, device(to)?)));
        let pairs = pairs.collect::<Result<Vec<_>, ExchangeError>>()?;
        Ok::<_, ExchangeError>((name(to)?, DeviceMap::unchecked(pairs)))
    };
    let maps = maps.iter().map(read_map).collect::<Result<_, _>>()?;
    Ok((worker, NodeDevices { count, maps, devices }))
}

pub(crate) fn text(bytes: &[u8]) -> Result<&str, ExchangeError> {
    core::str::from_utf8(bytes).map_err(|_| ExchangeError::Text)
}

pub(crate) fn name(bytes: &[u8]) -> Result<WorkerName, ExchangeError> {
    Ok(WorkerName::new(text(bytes)?)?)
}

fn device(bytes: &[u8]) -> Result<Device, ExchangeError> {
    Ok(text(bytes)?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_map::tests::any_node;
    use alloc::format;
    use proptest::prelude::*;

    fn worker() -> WorkerInfo {
        WorkerInfo { name: "w:1".parse().expect("a name"), id: 513 }
    }

    #[test]
    fn a_card_has_these_bytes() {
        let zero = "cuda:0".parse().expect("a device");
        let maps = [("v".parse().expect("a name"), DeviceMap::unchecked([(zero, Device::Cpu)]))];
        let said = NodeDevices { count: 2, maps: maps.into_iter().collect(), devices: alloc::vec![zero] };
        let bytes = encode_card(&worker(), &said);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "0100", // format
            "0102", // id
            "0300000000000000",
            "773a31",           // name
            "02000000",         // count
            "0100000000000000", // devices
            "0e000000",
            "0600000000000000",
            "637564613a30",     // cuda:0
            "0100000000000000", // maps
            "2e000000",
            "0100000000000000",
            "76",               // to
            "0100000000000000", // pairs
            "19000000",
            "0600000000000000",
            "637564613a30",
            "0300000000000000",
            "637075",
        ];
        assert_eq!(hex, expected.concat());
        assert_eq!(decode_card(&bytes), Ok((worker(), said)));
    }

    #[test]
    fn what_is_no_card_is_refused() {
        let bytes = encode_card(&worker(), &NodeDevices::default());
        for end in 0..bytes.len() {
            let error = decode_card(&bytes[..end]).expect_err("cut short");
            assert!(matches!(error, ExchangeError::Body(_)), "{end}: {error}");
        }
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(decode_card(&other), Err(ExchangeError::Format(2)));
        let mut other = bytes.clone();
        other[12] = b'*';
        assert!(matches!(decode_card(&other), Err(ExchangeError::Name(_))));
        other[12] = 0xff;
        assert_eq!(decode_card(&other), Err(ExchangeError::Text));
        let mut longer = bytes;
        longer.extend_from_slice(b"later versions tell more");
        assert_eq!(decode_card(&longer), Ok((worker(), NodeDevices::default())));
        longer.resize(8 * 1024 * 1024 + 1, 0);
        assert_eq!(decode_card(&longer), Err(ExchangeError::TooLong(longer.len())));
    }

    #[test]
    fn a_map_has_a_bounded_number_of_pairs() {
        let card = |count: usize| {
            let pairs = alloc::vec![(&b"cuda:1"[..], &b"cpu"[..]); count];
            let maps = [(&b"v"[..], List::new(&pairs))];
            let mut card = Encoded(encode_card(&worker(), &NodeDevices::default()));
            // In place of its empty list of maps.
            card.0.truncate(card.0.len() - 8);
            List::new(&maps).write(&mut card);
            card.0
        };
        let (_, said) = decode_card(&card(DEVICE_PAIRS_MAX)).expect("a card");
        assert_eq!(said.maps.get("v").map(|map| map.iter().count()), Some(1));
        let error = decode_card(&card(DEVICE_PAIRS_MAX + 1)).expect_err("too many").to_string();
        assert_eq!(error, "a device map of 1025 pairs is over the limit of 1024");
    }

    proptest! {
        #[test]
        fn cards_are_read_as_they_were_written(said in any_node(), id: u16) {
            let worker = WorkerInfo { id, ..worker() };
            prop_assert_eq!(decode_card(&encode_card(&worker, &said)), Ok((worker, said)));
        }

        #[test]
        fn no_bytes_are_too_much(bytes: Vec<u8>, at: prop::sample::Index, byte: u8) {
            let _ = decode_card(&bytes);
            let mut spoilt = encode_card(&worker(), &NodeDevices::default());
            let at = at.index(spoilt.len());
            spoilt[at] = byte;
            let _ = decode_card(&spoilt);
        }
    }
}
