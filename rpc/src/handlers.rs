//! Handlers of a worker, by name.

use crate::limits::RPC_FRAME;
use alloc::boxed::Box;
use rendezvous_core::ordered::Named;

/// Maximum length of a handler's name, in bytes.
pub const HANDLER_BYTES_MAX: usize = 1024;

const _: () = assert!(HANDLER_BYTES_MAX as u64 <= RPC_FRAME.value_bytes_max);

/// Prefix of the names of the library's own handlers.
pub const RESERVED_PREFIX: &str = "rdzv/";

/// Whether a handler is one of the program.
pub fn is_of_the_program(name: &str) -> bool {
    !name.starts_with(RESERVED_PREFIX)
}

/// Reason why a handler is not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// The name is empty or too long.
    #[error("the name of a handler has {0} bytes; from 1 to {HANDLER_BYTES_MAX} are allowed")]
    Name(usize),
    /// The name is reserved for the library.
    #[error("the name of a handler must not begin with {RESERVED_PREFIX}: {0}")]
    Reserved(Box<str>),
    /// Another handler has the name.
    #[error("there is a handler {0} already")]
    AlreadyRegistered(Box<str>),
}

/// Owner of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The program.
    Program,
    /// The library: the name begins with [`RESERVED_PREFIX`].
    Library,
}

/// Table of handlers by name.
#[derive(Debug)]
pub struct Handlers<H>(Named<H>);

impl<H> Default for Handlers<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Handlers<H> {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self(Named::new())
    }

    /// Registers a handler.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register(&mut self, owner: Owner, name: &str, handler: H) -> Result<(), HandlerError> {
        if name.is_empty() || name.len() > HANDLER_BYTES_MAX {
            return Err(HandlerError::Name(name.len()));
        }
        if owner == Owner::Program && !is_of_the_program(name) {
            return Err(HandlerError::Reserved(name.into()));
        }
        if self.0.contains(name.as_bytes()) {
            return Err(HandlerError::AlreadyRegistered(name.into()));
        }
        self.0.insert(name.as_bytes(), handler);
        Ok(())
    }

    /// Removes a handler.
    pub fn remove(&mut self, owner: Owner, name: &str) -> Option<H> {
        let is_others = owner == Owner::Program && !is_of_the_program(name);
        if is_others { None } else { self.0.remove(name.as_bytes()) }
    }

    /// Returns the handler with this name.
    pub fn get(&self, name: &str) -> Option<&H> {
        self.0.get(name.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_name_is_one_handlers_and_some_are_the_librarys() {
        let mut handlers = Handlers::new();
        let long = "x".repeat(1025);
        for (owner, name, message) in [
            (Owner::Program, "add", None),
            (Owner::Program, "add", Some("there is a handler add already")),
            (Owner::Program, "rdzv/x", Some("the name of a handler must not begin with rdzv/: rdzv/x")),
            (Owner::Library, "rdzv/x", None),
            (Owner::Program, "", Some("the name of a handler has 0 bytes; from 1 to 1024 are allowed")),
            (Owner::Program, &long, Some("the name of a handler has 1025 bytes; from 1 to 1024 are allowed")),
        ] {
            let event = handlers.register(owner, name, name.len()).err();
            assert_eq!(event.map(|error| error.to_string()).as_deref(), message);
        }
        assert_eq!(
            (handlers.get("add"), handlers.get("rdzv/x"), handlers.get("sub")),
            (Some(&3), Some(&6), None)
        );
        assert_eq!(handlers.remove(Owner::Program, "rdzv/x"), None);
        assert_eq!(handlers.remove(Owner::Program, "add"), Some(3));
        assert_eq!(
            (handlers.remove(Owner::Program, "add"), handlers.remove(Owner::Library, "rdzv/x")),
            (None, Some(6))
        );
    }
}
