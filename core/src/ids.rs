//! Ids of entries in tables.

use core::fmt;

/// Id of a connection of a server or client: a table index and the generation of that entry, so that a late input
/// for a closed connection cannot reach the next connection with the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Index in the owner's table.
    pub index: u32,
    /// Number of earlier connections with the same index.
    pub generation: u32,
}

/// Id of a waiter at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaiterId {
    /// A c10d connection: its protocol has one reply per wait, and no id for it.
    Conn(ConnId),
    /// A request, by its index in its owner's table. The index stays in use until the wait has ended.
    Request(u32),
}

impl From<ConnId> for WaiterId {
    fn from(conn: ConnId) -> Self {
        Self::Conn(conn)
    }
}

impl fmt::Debug for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}.{}", self.index, self.generation)
    }
}
