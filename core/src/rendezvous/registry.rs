//! Registries of backends and of URL schemes, by name.
use crate::prelude::*;

/// Identity of a creator: equal for all handles of the same creator.
pub type Identity = (usize, usize);

/// Something that can be registered under a name.
pub trait Creator {
    /// Returns its name in errors.
    fn name(&self) -> &str;
    /// Returns its identity.
    fn identity(&self) -> Identity;
}

/// Error of a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The backend's name is empty.
    #[error("The rendezvous backend name must be a non-empty string.")]
    BackendEmpty,
    /// Another creator has the name.
    #[error(
        "The rendezvous backend '{backend}' cannot be registered with '{new}' as it is already registered with \
         '{old}'."
    )]
    Conflict {
        /// Name of the backend.
        backend: Box<str>,
        /// Name of the creator that was registered later.
        new: Box<str>,
        /// Name of the creator that was registered first.
        old: Box<str>,
    },
    /// No backend has the name.
    #[error("The rendezvous backend '{backend}' is not registered. Did you forget to call `register`?")]
    NotRegistered {
        /// Name of the backend.
        backend: Box<str>,
    },
    /// PyTorch has the backend, this library has not.
    #[error(
        "The rendezvous backend '{backend}' is not built in: it needs an etcd server, and this library has no client for \
         one. Use 'rdzv' (rdzv run takes 'c10d' for it) or 'static' instead."
    )]
    NotBuiltIn {
        /// Name of the backend.
        backend: Box<str>,
    },
    /// A handler reports the name of another backend.
    #[error("The rendezvous backend '{got}' does not match the requested backend '{wanted}'.")]
    Mismatch {
        /// Name that the handler reports.
        got: Box<str>,
        /// Name that was requested.
        wanted: Box<str>,
    },
    /// The scheme has a handler already, even if it is the same one.
    #[error("Rendezvous handler for {scheme}:// already registered")]
    SchemeTaken {
        /// The scheme.
        scheme: Box<str>,
    },
}

/// Backends or URL schemes by name, sorted.
#[derive(Debug)]
pub struct Registry<C>(Vec<(Box<str>, C)>);

impl<C> Default for Registry<C> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<C> Registry<C> {
    /// Registers the handler of the URLs of a scheme. Schemes in URLs are in lower case.
    ///
    /// # Errors
    /// The scheme has a handler already.
    pub fn register_scheme(&mut self, scheme: &str, handler: C) -> Result<(), RegistryError> {
        if self.find(scheme).is_some() {
            return Err(RegistryError::SchemeTaken { scheme: scheme.into() });
        }
        self.insert(scheme, handler);
        Ok(())
    }

    /// Returns the creator of handlers of this backend.
    ///
    /// # Errors
    /// The backend is not registered.
    pub fn find_backend(&self, backend: &str) -> Result<&C, RegistryError> {
        self.find(backend).ok_or_else(|| match backend {
            "" => RegistryError::BackendEmpty,
            "etcd" | "etcd-v2" => RegistryError::NotBuiltIn { backend: backend.into() },
            _ => RegistryError::NotRegistered { backend: backend.into() },
        })
    }

    /// Returns the entry of this name.
    pub fn find(&self, name: &str) -> Option<&C> {
        self.0.iter().find(|(known, _)| **known == *name).map(|(_, entry)| entry)
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    fn insert(&mut self, name: &str, entry: C) {
        let index = self.0.partition_point(|(known, _)| **known < *name);
        self.0.insert(index, (name.into(), entry));
    }
}

impl<C: Creator> Registry<C> {
    /// Registers a creator of handlers of a backend; registering the same one again changes nothing.
    ///
    /// # Errors
    /// The name is empty, or another creator has it.
    pub fn register_backend(&mut self, backend: &str, creator: C) -> Result<(), RegistryError> {
        match self.find(backend) {
            _ if backend.is_empty() => Err(RegistryError::BackendEmpty),
            Some(old) if old.identity() != creator.identity() => Err(RegistryError::Conflict {
                backend: backend.into(),
                new: creator.name().into(),
                old: old.name().into(),
            }),
            Some(_) => Ok(()),
            None => {
                self.insert(backend, creator);
                Ok(())
            }
        }
    }
}

/// Checks that a new handler is of the requested backend.
///
/// # Errors
/// It is of another backend.
pub fn check_backend(got: &str, wanted: &str) -> Result<(), RegistryError> {
    if got == wanted {
        return Ok(());
    }
    Err(RegistryError::Mismatch { got: got.into(), wanted: wanted.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[derive(Debug, PartialEq)]
    struct Maker(&'static str, usize);

    impl Creator for Maker {
        fn name(&self) -> &str {
            self.0
        }
        fn identity(&self) -> Identity {
            (self.1, 0)
        }
    }

    #[test]
    fn a_name_has_one_creator() {
        let mut backends = Registry::default();
        let error = backends.register_backend("", Maker("a", 1)).expect_err("no name");
        assert_eq!(error.to_string(), "The rendezvous backend name must be a non-empty string.");
        backends.register_backend("x", Maker("a", 1)).expect("free");
        backends.register_backend("x", Maker("a", 1)).expect("the same again");
        let error = backends.register_backend("x", Maker("b", 2)).expect_err("taken");
        assert_eq!(
            error.to_string(),
            "The rendezvous backend 'x' cannot be registered with 'b' as it is already registered with 'a'."
        );
        backends.register_backend("w", Maker("b", 2)).expect("free");
        assert_eq!(backends.find_backend("x"), Ok(&Maker("a", 1)));
        assert_eq!(backends.names().collect::<Vec<_>>(), ["w", "x"]);
        let error = backends.find_backend("y").expect_err("none");
        assert_eq!(
            error.to_string(),
            "The rendezvous backend 'y' is not registered. Did you forget to call `register`?"
        );
    }

    #[test]
    fn a_backend_that_lies_about_its_name() {
        check_backend("x", "x").expect("true");
        let error = check_backend("y", "x").expect_err("a lie");
        assert_eq!(error.to_string(), "The rendezvous backend 'y' does not match the requested backend 'x'.");
    }

    #[test]
    fn a_scheme_is_registered_once() {
        let mut schemes = Registry::default();
        schemes.register_scheme("own", 1).expect("free");
        let error = schemes.register_scheme("own", 1).expect_err("taken, though by the same");
        assert_eq!(error.to_string(), "Rendezvous handler for own:// already registered");
        assert_eq!((schemes.find("own"), schemes.find("other")), (Some(&1), None));
    }
}
