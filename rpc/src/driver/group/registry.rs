//! Registry of the backends of RPC groups, by name.
//!
//! A backend has two functions: one creates options, one creates an agent from them. The registry calls the first. The
//! second needs a store, which its caller creates, so the registry only selects the backend.

use super::{RpcInitError, RpcWorker};
use crate::name::WorkerInfo;
use crate::options::{INIT_METHOD, OptionsError, RPC_TIMEOUT, RpcOptions};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use rendezvous_core::driver::cancel::CancelToken;
use rendezvous_core::driver::store::Store;
use rendezvous_core::time::Duration;

/// Backend of this library, which is the default.
pub const DEFAULT_BACKEND: &str = "tcp";

/// Parameters of an agent in addition to its options.
#[derive(Debug)]
pub struct InitRequest {
    /// Store in which the members of the group find each other; no other data has its prefix.
    pub store: Store,
    /// Name and number of this member.
    pub worker: WorkerInfo,
    /// Number of members of the group; `None` for a dynamic group.
    pub world_size: Option<u16>,
    /// Token that ends the call that creates the agent.
    pub token: CancelToken,
}

/// Backend of RPC groups.
pub trait RpcBackend: Send + Sync {
    /// Creates options. `base` has the timeout and the URL of the rendezvous; `extra_options` are the backend's own
    /// options as text.
    ///
    /// # Errors
    /// An option is invalid.
    fn construct_options(
        &self,
        base: BaseOptions<'_>,
        extra_options: &[(&str, &str)],
    ) -> Result<RpcOptions, OptionsError>;

    /// Creates a member's agent, which is in the group when this returns.
    ///
    /// # Errors
    /// It is not in the group, and nothing is left of it.
    fn init_backend(
        &self,
        request: InitRequest,
        options: RpcOptions,
    ) -> Result<Arc<dyn RpcWorker>, RpcInitError>;
}

/// Options that every backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseOptions<'a> {
    /// Timeout of a call; zero for no limit.
    pub rpc_timeout: Duration,
    /// URL of the rendezvous.
    pub init_method: &'a str,
}

impl Default for BaseOptions<'_> {
    fn default() -> Self {
        Self { rpc_timeout: RPC_TIMEOUT, init_method: INIT_METHOD }
    }
}

impl BaseOptions<'_> {
    /// Creates options of this kind with these values.
    ///
    /// # Errors
    /// The URL is empty.
    pub fn options(&self, kind: &str) -> Result<RpcOptions, OptionsError> {
        let mut options = RpcOptions::new(kind);
        options.set_rpc_timeout(self.rpc_timeout);
        options.set_init_method(self.init_method)?;
        Ok(options)
    }
}

/// Creates options of the backend `tcp`: `num_worker_threads`, and comma-separated names in `transports` and
/// `channels`. PyTorch's TensorPipe ignores unknown options; here they are refused, so that typing errors are found.
///
/// # Errors
/// An option is unknown or invalid.
pub fn tcp_options(
    base: BaseOptions<'_>,
    extra_options: &[(&str, &str)],
) -> Result<RpcOptions, OptionsError> {
    let mut options = base.options(DEFAULT_BACKEND)?;
    for &(option, value) in extra_options {
        let names = || value.split(',').filter(|name| !name.is_empty()).collect::<Vec<_>>();
        match option {
            "num_worker_threads" => {
                options.set_worker_threads(value.parse().map_err(|_| OptionsError::Value {
                    backend: DEFAULT_BACKEND.into(),
                    option: option.into(),
                    value: value.into(),
                })?)?
            }
            "transports" => options.set_transports(&names())?,
            "channels" => options.set_channels(&names())?,
            _ => {
                return Err(OptionsError::Unknown { backend: DEFAULT_BACKEND.into(), option: option.into() });
            }
        }
    }
    Ok(options)
}

/// Error of the registry, or of creating an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The name is taken, even if by the same backend.
    #[error("RPC backend {name}: already registered")]
    AlreadyRegistered {
        /// The name.
        name: Box<str>,
    },
    /// The name is empty.
    #[error("RPC backend names must be non-empty")]
    Unnamed,
    /// The name is not registered.
    #[error("Argument backend must be a member of BackendType, got {name}; registered are {known:?}")]
    NotRegistered {
        /// The name.
        name: Box<str>,
        /// The registered names.
        known: Vec<Box<str>>,
    },
    /// No backend creates options of this kind.
    #[error("Could not infer backend for options {options}")]
    CannotInfer {
        /// The options.
        options: Box<str>,
    },
    /// The options are another backend's.
    #[error("`rpc_backend_options` must be options of `{name}`. {options}")]
    OtherOptions {
        /// The backend.
        name: Box<str>,
        /// The options.
        options: Box<str>,
    },
    /// This context has an agent in this process already.
    #[error("RPC is already initialized")]
    AlreadyInitialized,
    /// The backend refused the options.
    #[error(transparent)]
    Options(#[from] OptionsError),
}

/// Registered backend and its name.
#[derive(Clone)]
struct Registered {
    name: Arc<str>,
    backend: Arc<dyn RpcBackend>,
}

impl Registered {
    /// Whether the backend's default options have the kind of these.
    fn makes(&self, options: &RpcOptions) -> bool {
        let made = self.backend.construct_options(BaseOptions::default(), &[]);
        made.is_ok_and(|made| made.kind() == options.kind())
    }
}

/// Registered backends of a context.
#[derive(Clone, Default)]
pub(super) struct RpcBackendRegistry {
    /// The newest first.
    backends: Vec<Registered>,
}

impl RpcBackendRegistry {
    /// Registers a backend.
    ///
    /// # Errors
    /// The name is taken, even if by the same backend.
    pub(super) fn register(&mut self, name: &str, backend: Arc<dyn RpcBackend>) -> Result<(), BackendError> {
        if name.is_empty() {
            return Err(BackendError::Unnamed);
        }
        if self.names().any(|known| known == name) {
            return Err(BackendError::AlreadyRegistered { name: name.into() });
        }
        self.backends.insert(0, Registered { name: name.into(), backend });
        Ok(())
    }

    /// Returns the names of the backends, the newest first.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.backends.iter().map(|known| &*known.name)
    }

    fn registered(&self, name: &str) -> Result<&Registered, BackendError> {
        self.backends.iter().find(|known| *known.name == *name).ok_or_else(|| BackendError::NotRegistered {
            name: name.into(),
            known: self.names().map(Box::from).collect(),
        })
    }

    /// Returns the backend with this name.
    ///
    /// # Errors
    /// The name is not registered.
    pub(super) fn find(&self, name: &str) -> Result<&Arc<dyn RpcBackend>, BackendError> {
        Ok(&self.registered(name)?.backend)
    }

    /// Returns backend and options of a new member, either or both of which may be omitted. Without a name, it is the
    /// newest backend whose options have the kind of these.
    ///
    /// # Errors
    /// The name is not registered, no backend creates such options, or they are another backend's.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
        options: Option<RpcOptions>,
    ) -> Result<(&Arc<dyn RpcBackend>, RpcOptions), BackendError> {
        let Some(options) = options else {
            let backend = self.find(name.unwrap_or(DEFAULT_BACKEND))?;
            let options = backend.construct_options(BaseOptions::default(), &[])?;
            return Ok((backend, options));
        };
        let found = match name {
            Some(name) => Some(self.registered(name)?).filter(|known| known.makes(&options)),
            None => self.backends.iter().find(|known| known.makes(&options)),
        };
        match (found, name) {
            (Some(found), _) => Ok((&found.backend, options)),
            (None, Some(name)) => {
                Err(BackendError::OtherOptions { name: name.into(), options: text(&options) })
            }
            (None, None) => Err(BackendError::CannotInfer { options: text(&options) }),
        }
    }
}

fn text(options: &RpcOptions) -> Box<str> {
    options.to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend that creates options of a kind, and no agents.
    struct Stub(&'static str);

    impl RpcBackend for Stub {
        fn construct_options(
            &self,
            base: BaseOptions<'_>,
            extra_options: &[(&str, &str)],
        ) -> Result<RpcOptions, OptionsError> {
            if self.0 == "tcp" {
                return tcp_options(base, extra_options);
            }
            let mut options = base.options(self.0)?;
            options.set_extra(Box::new(extra_options.len()));
            Ok(options)
        }

        fn init_backend(
            &self,
            request: InitRequest,
            _: RpcOptions,
        ) -> Result<Arc<dyn RpcWorker>, RpcInitError> {
            Err(RpcInitError::Rank { rank: request.worker.id.into() })
        }
    }

    fn registry() -> RpcBackendRegistry {
        let mut registry = RpcBackendRegistry::default();
        let tcp: Arc<dyn RpcBackend> = Arc::new(Stub("tcp"));
        registry.register("tcp", tcp).expect("free");
        registry
    }

    #[test]
    fn a_name_has_one_backend_and_the_newest_comes_first() {
        let mut registry = registry();
        let ucx: Arc<dyn RpcBackend> = Arc::new(Stub("ucx"));
        registry.register("UCX", ucx.clone()).expect("free");
        let error = registry.register("UCX", ucx.clone()).expect_err("taken, though by the same");
        assert_eq!(error.to_string(), "RPC backend UCX: already registered");
        assert_eq!(registry.register("", ucx.clone()), Err(BackendError::Unnamed));
        registry.register("ucx", ucx).expect("names are exact");
        assert_eq!(registry.names().collect::<Vec<_>>(), ["ucx", "UCX", "tcp"]);
        let error = registry.find("Ucx").map(drop).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "Argument backend must be a member of BackendType, got Ucx; registered are [\"ucx\", \"UCX\", \"tcp\"]"
        );
    }

    #[test]
    fn options_are_made_by_their_backend() {
        let mut registry = registry();
        registry.register("UCX", Arc::new(Stub("ucx"))).expect("free");
        let construct = |name: &str, base: BaseOptions<'_>, extra_options: &[(&str, &str)]| {
            registry.find(name).expect("registered").construct_options(base, extra_options)
        };
        let base = BaseOptions { rpc_timeout: Duration::from_secs(7), init_method: "tcp://h:1" };
        let options = construct("UCX", base, &[("a", "b"), ("c", "d")]).expect("made");
        assert_eq!((options.extra_options::<usize>(), options.init_method()), (Some(&2), "tcp://h:1"));
        assert_eq!(options.rpc_timeout(), Some(Duration::from_secs(7)));
        let extra_options = [("num_worker_threads", "3"), ("transports", "uv,shm"), ("channels", "")];
        let options = construct("tcp", BaseOptions::default(), &extra_options).expect("made");
        assert_eq!((options.worker_threads(), options.channels()), (3, Some(&[][..])));
        assert_eq!(options.transports(), Some(&["uv".into(), "shm".into()][..]));
        for (extra_options, message) in [
            (("threads", "3"), "RPC backend tcp: unknown option threads"),
            (("num_worker_threads", "many"), "RPC backend tcp: option num_worker_threads cannot be many"),
            (("num_worker_threads", "0"), "num_worker_threads must be from 1 to 1024, got 0"),
        ] {
            let error = construct("tcp", BaseOptions::default(), &[extra_options]).expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        let nowhere = BaseOptions { init_method: "", ..BaseOptions::default() };
        construct("UCX", nowhere, &[]).expect_err("no way to meet");
        assert!(registry.find("x").is_err());
    }

    #[test]
    fn backend_and_options_follow_from_each_other() {
        let mut registry = registry();
        let chosen = |registry: &RpcBackendRegistry, name: Option<&str>, options| {
            registry.choose(name, options).map(|(backend, options)| {
                let is_it = |known: &&Registered| Arc::ptr_eq(&known.backend, backend);
                let known = registry.backends.iter().find(is_it).expect("registered");
                (known.name.to_string(), options.kind().to_string())
            })
        };
        assert_eq!(chosen(&registry, None, None), Ok(("tcp".into(), "tcp".into())));
        let error =
            chosen(&registry, None, Some(RpcOptions::new("ucx"))).expect_err("no backend makes these");
        assert_eq!(
            error.to_string(),
            "Could not infer backend for options <ucx: rpc_timeout=60.0, init_method='env://', \
             num_worker_threads=16, device_maps={}, devices=[]>"
        );
        registry.register("UCX", Arc::new(Stub("ucx"))).expect("free");
        registry.register("also", Arc::new(Stub("tcp"))).expect("free");
        assert_eq!(chosen(&registry, None, Some(RpcOptions::new("ucx"))), Ok(("UCX".into(), "ucx".into())));
        assert_eq!(
            chosen(&registry, None, Some(RpcOptions::new("tcp"))),
            Ok(("also".into(), "tcp".into())),
            "the newest of those that make them"
        );
        assert_eq!(chosen(&registry, Some("tcp"), None), Ok(("tcp".into(), "tcp".into())));
        let error = chosen(&registry, Some("tcp"), Some(RpcOptions::new("ucx"))).expect_err("another's");
        assert!(
            error.to_string().starts_with("`rpc_backend_options` must be options of `tcp`. <ucx: "),
            "{error}"
        );
        chosen(&registry, Some("none"), Some(RpcOptions::new("ucx"))).expect_err("unknown");
    }
}
