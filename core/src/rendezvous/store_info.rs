//! What a node learns when it has joined, and where the ranks of a job find their store.

use super::integer::{NotAnInteger, parse_integer};
use alloc::string::String;

/// The key under which rank 0 publishes its address.
pub const MASTER_ADDR_KEY: &[u8] = b"MASTER_ADDR";
/// The key under which rank 0 publishes its port, as decimal text.
pub const MASTER_PORT_KEY: &[u8] = b"MASTER_PORT";

/// Where the ranks of a job find their store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousStoreInfo {
    /// The address as it was given, never the result of a look-up.
    pub master_addr: String,
    /// The port.
    pub master_port: u16,
}

/// What stands under the two keys and is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreInfoError {
    /// The address is no text.
    #[error("MASTER_ADDR is not UTF-8")]
    Address,
    /// The port is no number.
    #[error("MASTER_PORT: {0}")]
    Port(#[from] NotAnInteger),
    /// The port is too large, or negative.
    #[error("MASTER_PORT must have value from 0 to 65535 but was {port}.")]
    PortRange {
        /// The number.
        port: i64,
    },
}

impl RendezvousStoreInfo {
    /// What the values under [`MASTER_ADDR_KEY`] and [`MASTER_PORT_KEY`] say.
    ///
    /// # Errors
    /// They say nothing of that sort.
    pub fn from_values(master_addr: &[u8], master_port: &[u8]) -> Result<Self, StoreInfoError> {
        let master_addr = core::str::from_utf8(master_addr).map_err(|_| StoreInfoError::Address)?;
        let port = parse_integer(&String::from_utf8_lossy(master_port))?;
        let master_port = u16::try_from(port).map_err(|_| StoreInfoError::PortRange { port })?;
        Ok(Self { master_addr: master_addr.into(), master_port })
    }
}

/// What a node learns when it has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousInfo<S> {
    /// The store that the nodes of this rendezvous share.
    pub store: S,
    /// This node's rank among them.
    pub rank: i64,
    /// How many they are.
    pub world_size: i64,
    /// Where the ranks of the job find their store.
    pub bootstrap_store_info: RendezvousStoreInfo,
    /// Which round the store is of, where each has its own; 0 is the first.
    pub round: Option<u64>,
    /// Where this node stands in the round, of backends whose server knows the workers.
    pub position: Option<RoundPosition>,
}

/// Where a node stands in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPosition {
    /// The global rank of the node's first worker.
    pub rank_first: u64,
    /// How many workers all nodes have.
    pub world_size: u64,
    /// Where node 0 is reached, as that said.
    pub leader: String,
    /// What the keys of the round begin with at its server, with a slash at the end, for whoever shares them over another
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
