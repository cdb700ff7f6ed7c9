//! Result of a join, and the address of the ranks' store.

use super::integer::{NotAnInteger, parse_integer};
use alloc::string::String;

/// Key under which rank 0 publishes its address.
pub const MASTER_ADDR_KEY: &[u8] = b"MASTER_ADDR";
/// Key under which rank 0 publishes its port, in decimal.
pub const MASTER_PORT_KEY: &[u8] = b"MASTER_PORT";

/// Address of the store of a job's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousStoreInfo {
    /// The host as it was given, never the result of a lookup.
    pub master_addr: String,
    /// The port.
    pub master_port: u16,
}

/// The published values are not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreInfoError {
    /// The host is not UTF-8.
    #[error("MASTER_ADDR is not UTF-8")]
    Address,
    /// The port is not a number.
    #[error("MASTER_PORT: {0}")]
    Port(#[from] NotAnInteger),
    /// The port is too large, or negative.
    #[error("MASTER_PORT must have value from 0 to 65535 but was {port}.")]
    PortRange {
        /// The published number.
        port: i64,
    },
}

impl RendezvousStoreInfo {
    /// Parses the values of [`MASTER_ADDR_KEY`] and [`MASTER_PORT_KEY`].
    ///
    /// # Errors
    /// A value is invalid.
    pub fn from_values(master_addr: &[u8], master_port: &[u8]) -> Result<Self, StoreInfoError> {
        let master_addr = core::str::from_utf8(master_addr).map_err(|_| StoreInfoError::Address)?;
        let port = parse_integer(&String::from_utf8_lossy(master_port))?;
        let master_port = u16::try_from(port).map_err(|_| StoreInfoError::PortRange { port })?;
        Ok(Self { master_addr: master_addr.into(), master_port })
    }
}

/// Result of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousInfo<S> {
    /// The store that the nodes of the round share.
    pub store: S,
    /// This node's rank among the nodes.
    pub rank: i64,
    /// Number of nodes.
    pub world_size: i64,
    /// Address of the store of the job's ranks.
    pub bootstrap_store_info: RendezvousStoreInfo,
    /// Number of the store's round, where each round has a store of its own; 0 is the first.
    pub round: Option<u64>,
    /// This node's position in the round, from backends whose server knows the workers.
    pub position: Option<RoundPosition>,
}

/// A node's position in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPosition {
    /// Global rank of the node's first worker.
    pub rank_first: u64,
    /// Number of workers of all nodes.
    pub world_size: u64,
    /// Address of node 0, as that node gave it.
    pub leader: String,
    /// Prefix of the round's keys at its server, with a slash at the end, for clients that use the keys over another
    /// connection.
    pub key_prefix: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn values_are_read_as_they_are_written() {
        let info = RendezvousStoreInfo::from_values(b"node-0", b"29500").expect("an address");
        assert_eq!(info, RendezvousStoreInfo { master_addr: "node-0".into(), master_port: 29500 });
        for (address, port, text) in [
            (&b"\xff"[..], &b"1"[..], "MASTER_ADDR is not UTF-8"),
            (b"h", b"x", "MASTER_PORT: invalid literal for int() with base 10: 'x'"),
            (b"h", b"65536", "MASTER_PORT must have value from 0 to 65535 but was 65536."),
        ] {
            assert_eq!(RendezvousStoreInfo::from_values(address, port).expect_err("none").to_string(), text);
        }
    }
}
