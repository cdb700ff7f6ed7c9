//! The registry of backends and schemes, and the servers that all handlers of a context share.

use super::handler::{CreateHandler, HandlerError, RendezvousHandler};
use super::hosting::HostedServers;
use super::rdzv_backend::RdzvBackend;
use super::static_backend::StaticBackend;
use super::url::{BUILT_IN, BuiltInScheme, UrlHandler, UrlOptions, UrlRendezvous};
use crate::driver::prelude::*;
use crate::node::server::Event;
use crate::opaque::opaque_debug;
use crate::rendezvous::parameters::RendezvousParameters;
use crate::rendezvous::rdzv_settings::RDZV_BACKEND;
use crate::rendezvous::registry::{Creator, Identity, Registry, RegistryError, check_backend};
use crate::rendezvous::static_settings::STATIC_BACKEND;
use crate::rendezvous::url::{RendezvousUrl, UrlError};

struct Registered(Arc<dyn CreateHandler>);

impl Creator for Registered {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }
}

/// Backends, URL schemes, and the store servers that this process hosts. None of it is global.
pub struct Context {
    backends: Mutex<Registry<Registered>>,
    schemes: Mutex<Registry<Arc<dyn UrlHandler>>>,
    servers: Arc<HostedServers>,
}

opaque_debug!(Context);

impl Default for Context {
    fn default() -> Self {
        let context = Self { backends: Mutex::default(), schemes: Mutex::default(), servers: Arc::default() };
        let servers = || Arc::clone(&context.servers);
        // Cannot fail: the registry is empty, so these names are free.
        context.register_backend(STATIC_BACKEND, Arc::new(StaticBackend::new(servers()))).ok();
        context.register_backend(RDZV_BACKEND, Arc::new(RdzvBackend::new(servers()))).ok();
        for (scheme, meet) in BUILT_IN {
            context.register_url_scheme(scheme, Arc::new(BuiltInScheme { meet, servers: servers() })).ok();
        }
        context
    }
}

impl Context {
    /// Registers the creator of handlers of `backend`. Registering the same creator again changes nothing.
    ///
    /// # Errors
    /// The name is empty, or another creator has it.
    pub fn register_backend(
        &self,
        backend: &str,
        creator: Arc<dyn CreateHandler>,
    ) -> Result<(), RegistryError> {
        self.backends.locked().register_backend(backend, Registered(creator))
    }

    /// Sets the observer of the servers that this context hosts from now on. The first one stays. It must not block.
    pub fn observe_servers(&self, observer: impl Fn(&Event) + Send + Sync + 'static) {
        self.servers.observe(observer);
    }

    /// Returns the names of the backends, sorted.
    pub fn backends(&self) -> Vec<String> {
        self.backends.locked().names().map(ToString::to_string).collect()
    }

    /// Checks that a backend of this name is registered.
    ///
    /// # Errors
    /// No backend has this name.
    pub fn check_backend(&self, backend: &str) -> Result<(), RegistryError> {
        self.backends.locked().find_backend(backend).map(drop)
    }

    /// Creates a handler of the backend that the parameters name.
    ///
    /// # Errors
    /// No such backend is registered, its creator fails, or the handler reports the name of another backend.
    pub fn create_handler(
        &self,
        parameters: &RendezvousParameters,
    ) -> Result<Box<dyn RendezvousHandler>, HandlerError> {
        // The registry is unlocked here: a foreign creator may be slow, and may register other backends.
        let creator = Arc::clone(&self.backends.locked().find_backend(&parameters.backend)?.0);
        let handler = creator.create(parameters)?;
        check_backend(handler.backend(), &parameters.backend)?;
        Ok(handler)
    }

    /// Registers the handler of the URLs of `scheme`.
    ///
    /// # Errors
    /// The scheme has a handler already.
    pub fn register_url_scheme(
        &self,
        scheme: &str,
        handler: Arc<dyn UrlHandler>,
    ) -> Result<(), RegistryError> {
        self.schemes.locked().register_scheme(scheme, handler)
    }

    /// Begins a rendezvous by URL; [`UrlRendezvous::next`] waits for the other ranks.
    ///
    /// # Errors
    /// The URL is malformed, it names a rank or a world size that the options name too, or its scheme has no handler.
    /// Anything else that the URL lacks is an error of [`UrlRendezvous::next`].
    pub fn rendezvous(&self, url: &str, options: UrlOptions) -> Result<Box<dyn UrlRendezvous>, HandlerError> {
        let url = RendezvousUrl::parse(url, options.rank, options.world_size, &options.environment)?;
        let handler = self.schemes.locked().find(url.scheme()).cloned();
        let handler = handler.ok_or_else(|| UrlError::NoHandler { scheme: url.scheme().into() })?;
        handler.begin(url, options)
    }
}

#[cfg(test)]
mod tests;
