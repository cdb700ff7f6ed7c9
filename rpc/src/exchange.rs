//! Encoding of the devices that the members of a group exchange.

use super::device::{Device, DeviceError};
use super::device_map::{DeviceMap, NodeDevices};
use super::name::{NameError, WorkerInfo, WorkerName};
use crate::wire::card::{Card, CardError, DeviceName, DevicePair, MapEntry};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use rendezvous_core::limits::DEVICE_PAIRS_MAX;
use rendezvous_core::wire::native::List;
use rendezvous_core::wire::sink::{Fill, Length};

/// Error of another worker's card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// It cannot be decoded.
    #[error(transparent)]
    Card(#[from] CardError),
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

/// Encodes the card of a worker.
#[must_use]
pub fn encode_card(worker: &WorkerInfo, said: &NodeDevices) -> Vec<u8> {
    let devices: Vec<String> = said.devices.iter().map(ToString::to_string).collect();
    let names: Vec<DeviceName<'_>> = devices.iter().map(|text| DeviceName(text.as_bytes())).collect();
    let texts: Vec<(&str, Vec<(String, String)>)> = said
        .maps
        .iter()
        .map(|(to, map)| {
            let texts = map.iter().map(|(from, to)| (from.to_string(), to.to_string()));
            (to.as_str(), texts.collect())
        })
        .collect();
    let pairs: Vec<Vec<DevicePair<'_>>> = texts
        .iter()
        .map(|(_, pairs)| {
            let pairs = pairs.iter();
            pairs.map(|(from, to)| DevicePair { from: from.as_bytes(), to: to.as_bytes() }).collect()
        })
        .collect();
    let maps: Vec<MapEntry<'_>> = texts
        .iter()
        .zip(&pairs)
        .map(|((to, _), pairs)| MapEntry { to: to.as_bytes(), pairs: List::new(pairs) })
        .collect();
    let card = Card {
        id: worker.id,
        name: worker.name.as_bytes(),
        device_count: said.count,
        devices: List::new(&names),
        maps: List::new(&maps),
    };
    let mut length = Length::default();
    card.write(&mut length);
    let mut bytes = alloc::vec![0; length.0];
    card.write(&mut Fill::new(&mut bytes));
    bytes
}

/// Decodes a card. Its maps may violate every rule: [`Group::check`](super::device_map::Group::check) reports that.
///
/// # Errors
/// The bytes are not a valid card.
pub fn decode_card(bytes: &[u8]) -> Result<(WorkerInfo, NodeDevices), ExchangeError> {
    let card = Card::read(bytes)?;
    let worker = WorkerInfo { name: name(card.name)?, id: card.id };
    let devices = card.devices.iter().map(|named| device(named.0)).collect::<Result<_, _>>()?;
    let read_map = |entry: MapEntry<'_>| {
        let count = entry.pairs.len();
        if count > DEVICE_PAIRS_MAX {
            return Err(ExchangeError::Pairs(count));
        }
        let pairs = entry.pairs.iter().map(|pair| Ok((device(pair.from)?, device(pair.to)?)));
        let pairs = pairs.collect::<Result<Vec<_>, ExchangeError>>()?;
        Ok::<_, ExchangeError>((name(entry.to)?, DeviceMap::unchecked(pairs)))
    };
    let maps = card.maps.iter().map(read_map).collect::<Result<_, _>>()?;
    Ok((worker, NodeDevices { count: card.device_count, maps, devices }))
}

fn text(bytes: &[u8]) -> Result<&str, ExchangeError> {
    core::str::from_utf8(bytes).map_err(|_| ExchangeError::Text)
}

fn name(bytes: &[u8]) -> Result<WorkerName, ExchangeError> {
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
            assert!(matches!(error, ExchangeError::Card(CardError::Body(_))), "{end}: {error}");
        }
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(decode_card(&other), Err(ExchangeError::Card(CardError::Format(2))));
        let mut other = bytes.clone();
        other[12] = b'*';
        assert!(matches!(decode_card(&other), Err(ExchangeError::Name(_))));
        other[12] = 0xff;
        assert_eq!(decode_card(&other), Err(ExchangeError::Text));
        let mut longer = bytes;
        longer.extend_from_slice(b"later versions tell more");
        assert_eq!(decode_card(&longer), Ok((worker(), NodeDevices::default())));
        longer.resize(8 * 1024 * 1024 + 1, 0);
        let too_long = CardError::TooLong(longer.len());
        assert_eq!(decode_card(&longer), Err(ExchangeError::Card(too_long)));
    }

    #[test]
    fn a_map_has_a_bounded_number_of_pairs() {
        let card = |count: usize| {
            let pairs = alloc::vec![DevicePair { from: b"cuda:1", to: b"cpu" }; count];
            let maps = [MapEntry { to: b"v", pairs: List::new(&pairs) }];
            let (devices, maps) = (List::new(&[]), List::new(&maps));
            let card = Card { id: 1, name: b"w", device_count: 2, devices, maps };
            let mut length = Length::default();
            card.write(&mut length);
            let mut bytes = alloc::vec![0; length.0];
            card.write(&mut Fill::new(&mut bytes));
            bytes
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
