//! Names of things that live in tables.

use core::fmt;

/// One connection of a server or a client: a table index and the generation of that place in the table, so that a
/// late input for a connection that is gone cannot reach its successor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// Place in the owner's table.
    pub index: u32,
    /// How often that place was given away before.
    pub generation: u32,
}

/// Who waits at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaiterId {
    /// A connection: its protocol has one answer a wait, and no name for it.
    Conn(ConnId),
    /// A request that has a place in its owner's table. The place is taken until its wait has ended.
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
