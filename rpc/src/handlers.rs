//! Handlers of a worker, by name.

use crate::limits::RPC_FRAME;
use crate::name::WorkerName;
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
    /// A list of callers is invalid.
    #[error(
        "{got:?} is not a list of callers: names of workers, separated by commas, of which each may end with `*` for \
         any rest; without a list, every member may call"
    )]
    Callers {
        /// The invalid item.
        got: Box<str>,
    },
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

/// Reason why a handler is not called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCall {
    /// The handler does not exist.
    Unknown,
    /// The caller is not in the handler's list of callers.
    Denied,
}

/// Callers that may call a handler: names of workers, separated by commas. A name that ends with `*` stands for all that
/// begin so. The default is every member of the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers(Option<Box<str>>);

impl Callers {
    /// Parses a list. An empty text is no list: it may come from a setting that is missing, and would open the handler.
    ///
    /// # Errors
    /// The list is empty, or an item is not the name of a worker.
    pub fn parse(list: &str) -> Result<Self, HandlerError> {
        let is_legal = |item: &&str| {
            let name = item.strip_suffix('*').unwrap_or(item);
            (name.is_empty() && *item == "*") || WorkerName::new(name).is_ok()
        };
        match items(list).find(|item| !is_legal(item)) {
            Some(got) => Err(HandlerError::Callers { got: got.into() }),
            None => Ok(Self(Some(list.into()))),
        }
    }

    /// Whether the worker with this name may call.
    pub fn allows(&self, name: &str) -> bool {
        let is_it = |item: &str| match item.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == item,
        };
        self.0.as_deref().is_none_or(|list| items(list).any(is_it))
    }
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim)
}

/// Table of handlers by name.
#[derive(Debug)]
pub struct Handlers<H>(Named<(Callers, H)>);

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

    /// Registers a handler, which these callers may call.
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn register(
        &mut self,
        owner: Owner,
        name: &str,
        callers: Callers,
        handler: H,
    ) -> Result<(), HandlerError> {
        if name.is_empty() || name.len() > HANDLER_BYTES_MAX {
            return Err(HandlerError::Name(name.len()));
        }
        if owner == Owner::Program && !is_of_the_program(name) {
            return Err(HandlerError::Reserved(name.into()));
        }
        if self.0.contains(name.as_bytes()) {
            return Err(HandlerError::AlreadyRegistered(name.into()));
        }
        self.0.insert(name.as_bytes(), (callers, handler));
        Ok(())
    }

    /// Removes a handler.
    pub fn remove(&mut self, owner: Owner, name: &str) -> Option<H> {
        let is_others = owner == Owner::Program && !is_of_the_program(name);
        if is_others { None } else { self.0.remove(name.as_bytes()).map(|(_, handler)| handler) }
    }

    /// Returns the handler with this name, if the caller with this name may call it.
    ///
    /// # Errors
    /// The reason why the call is refused.
    pub fn find(&self, name: &str, caller: &str) -> Result<&H, NoCall> {
        let (callers, handler) = self.0.get(name.as_bytes()).ok_or(NoCall::Unknown)?;
        if callers.allows(caller) { Ok(handler) } else { Err(NoCall::Denied) }
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
            let event = handlers.register(owner, name, Callers::default(), name.len()).err();
            assert_eq!(event.map(|error| error.to_string()).as_deref(), message);
        }
        let find = |name| handlers.find(name, "a").ok();
        assert_eq!((find("add"), find("rdzv/x"), find("sub")), (Some(&3), Some(&6), None));
        assert_eq!(handlers.remove(Owner::Program, "rdzv/x"), None);
        assert_eq!(handlers.remove(Owner::Program, "add"), Some(3));
        assert_eq!(
            (handlers.remove(Owner::Program, "add"), handlers.remove(Owner::Library, "rdzv/x")),
            (None, Some(6))
        );
    }

    #[test]
    fn callers_are_names_and_beginnings_of_names() {
        for (list, name, is_allowed) in [
            ("ps", "ps", true),
            ("ps", "ps1", false),
            ("ps, trainer*", "trainer7", true),
            ("ps,trainer*", "trainer", true),
            ("ps,trainer*", "train", false),
            ("*", "x", true),
        ] {
            let callers = Callers::parse(list).expect("a list");
            assert_eq!(callers.allows(name), is_allowed, "{list} {name}");
        }
        assert!(Callers::default().allows("anyone"));
        for (list, got) in
            [("", ""), ("ps,", ""), (",", ""), ("a b", "a b"), ("a*b", "a*b"), ("**", "**"), (" ", "")]
        {
            assert_eq!(Callers::parse(list), Err(HandlerError::Callers { got: got.into() }), "{list}");
        }
    }

    #[test]
    fn a_handler_is_found_by_its_callers_only() {
        let mut handlers = Handlers::new();
        let callers = Callers::parse("trainer*").expect("a list");
        handlers.register(Owner::Program, "push", callers, ()).expect("a name");
        assert_eq!(handlers.find("push", "trainer0"), Ok(&()));
        assert_eq!(handlers.find("push", "ps"), Err(NoCall::Denied));
        assert_eq!(handlers.find("pusj", "ps"), Err(NoCall::Unknown));
    }
}
