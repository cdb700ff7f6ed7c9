//! Networks in CIDR notation.

use crate::prelude::*;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// Network, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

/// Text that is not a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a network such as 10.0.0.0/8 or fd00::/8, nor an address, nor `loopback`")]
pub struct NetworkError(Box<str>);

impl Network {
    /// Networks of the host itself.
    pub const LOOPBACK: [Self; 2] = [
        Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix_bits: 8 },
        Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix_bits: 128 },
    ];

    /// Parses networks that are separated by commas; `loopback` stands for [`Network::LOOPBACK`].
    ///
    /// # Errors
    /// The first one that is wrong.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, NetworkError> {
        let mut networks = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "loopback" => networks.extend(Self::LOOPBACK),
                word => networks.push(word.parse()?),
            }
        }
        Ok(networks)
    }

    /// Returns whether an address belongs to the network. An IPv4 address counts the same when it is mapped into IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        bits >= u32::from(self.prefix_bits)
    }

    /// Returns whether all clients that can reach a listener at this address belong to the network.
    pub const fn has_all_clients_of(&self, listener: IpAddr) -> bool {
        // Clients with an IPv4 address may reach a listener with an IPv6 address.
        self.prefix_bits == 0 && (self.address.is_ipv4() || listener.is_ipv6())
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.into());
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Ok(bits_max), |bits| bits.parse().map_err(|_| wrong()))?;
        if prefix_bits > bits_max {
            return Err(wrong());
        }
        Ok(Self { address, prefix_bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_and_no_others() {
        let contains = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3/8", "10.0.0.0", "9.255.255.255"),
            ("192.168.7.128/25", "192.168.7.255", "192.168.7.127"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::1", "::1", "::2"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "fe80::1", "1.2.3.4"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn a_list_has_commas_and_a_word_for_this_host() {
        let list = Network::parse_list("10.0.0.0/8, loopback,::1").unwrap();
        let shown: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.0/8", "127.0.0.0/8", "::1/128", "::1/128"]);
        let error = Network::parse_list("loopback,here").unwrap_err().to_string();
        assert!(error.starts_with("\"here\" is not a network"), "{error}");
    }

    #[test]
    fn what_is_not_a_network_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "::/129",
            "10.0.0/8",
            "10.0.0.0/",
            "10.0.0.0/x",
            "10.0.0.0/-1",
            "host",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError(text.into())), "{text}");
        }
    }
}
