//! Who makes agents of RPC groups: backends by their names, as a context knows them.
//!
//! A backend is two handlers: one makes options, one makes an agent of them. The registry calls the first; the second gets
//! a store, which whoever asks for an agent has made, so the registry only says which backend it is to be.

use super::name::WorkerInfo;
use super::options::{OptionsError, RpcOptions};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use rendezvous_core::time::Duration;

/// The backend that comes with the library, and that is meant when nobody names one.
pub const DEFAULT_BACKEND: &str = "tcp";

/// What an agent is made of, beside its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitRequest<S, C> {
    /// Where the members of the group find each other; nothing else is beneath its prefix.
    pub store: S,
    /// Who this member is.
    pub worker: WorkerInfo,
    /// How many members the group has; `None`: they come and go.
    pub world_size: Option<u16>,
    /// Whether anybody wants it still.
    pub call: C,
}

/// A backend.
pub trait RpcBackend {
    /// A handle of a store, as agents take it.
    type Store;
    /// A call that somebody may cancel.
    type Call;
    /// What it makes.
    type Agent;
    /// Why it could not.
    type Error;

    /// Makes options. `base` has the timeout and the way to meet; `extra_options` are options of the backend's own, as texts.
    ///
    /// # Errors
    /// An option makes no sense.
    fn construct_options(
        &self,
        base: BaseOptions<'_>,
        extra_options: &[(&str, &str)],
    ) -> Result<RpcOptions, OptionsError>;

    /// Makes a member's agent, which is of the group when this returns.
    ///
    /// # Errors
    /// It is not, and nothing is left of it.
    fn init_backend(
        &self,
        request: InitRequest<Self::Store, Self::Call>,
        options: RpcOptions,
    ) -> Result<Self::Agent, Self::Error>;
}

/// What every backend is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseOptions<'a> {
    /// How long a call may take; zero: as long as it likes.
    pub rpc_timeout: Duration,
    /// How the group meets.
    pub init_method: &'a str,
}

impl Default for BaseOptions<'_> {
    fn default() -> Self {
        Self { rpc_timeout: super::options::RPC_TIMEOUT, init_method: super::options::INIT_METHOD }
    }
}

impl BaseOptions<'_> {
    /// Options of this kind with these in them.
    ///
    /// # Errors
    /// There is no way to meet.
    pub fn options(&self, kind: &str) -> Result<RpcOptions, OptionsError> {
        let mut options = RpcOptions::new(kind);
        options.set_rpc_timeout(self.rpc_timeout);
        options.set_init_method(self.init_method)?;
        Ok(options)
    }
}

/// Options of the backend `tcp`: `num_worker_threads`, and names after commas in `transports` and `channels`. PyTorch's
/// own passes over what it does not know; here it is refused, so that a slip of the pen is seen.
///
/// # Errors
/// An option is unknown or makes no sense.
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

/// What the registry refuses, and what keeps an agent from being made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The name is taken, be it by the same backend.
    #[error("RPC backend {name}: already registered")]
    AlreadyRegistered {
        /// The name.
        name: Box<str>,
    },
    /// A backend needs a name.
    #[error("RPC backend names must be non-empty")]
    Unnamed,
    /// Nobody has the name.
    #[error("Argument backend must be a member of BackendType, got {name}; registered are {known:?}")]
    NotRegistered {
        /// The name.
        name: Box<str>,
        /// Those that there are.
        known: Vec<Box<str>>,
    },
    /// No backend makes options of this kind.
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
    /// This process has an agent in this context.
    #[error("RPC is already initialized")]
    AlreadyInitialized,
    /// The backend made no options.
    #[error(transparent)]
    Options(#[from] OptionsError),
}

/// A backend and its name: a member of PyTorch's enumeration. It stays what it is when others are registered.
pub struct BackendType<B: ?Sized> {
    name: Arc<str>,
    backend: Arc<B>,
}

impl<B: ?Sized> BackendType<B> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend.
    #[must_use]
    pub const fn backend(&self) -> &Arc<B> {
        &self.backend
    }
}

impl<B: ?Sized> Clone for BackendType<B> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), backend: self.backend.clone() }
    }
}

impl<B: ?Sized> fmt::Display for BackendType<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendType.{}", self.name)
    }
}

impl<B: ?Sized> fmt::Debug for BackendType<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The backends of a context.
#[derive(Debug)]
pub struct RpcBackendRegistry<B: ?Sized> {
    /// The newest first.
    backends: Vec<BackendType<B>>,
}

impl<B: ?Sized> Clone for RpcBackendRegistry<B> {
    fn clone(&self) -> Self {
        Self { backends: self.backends.clone() }
    }
}

impl<B: ?Sized> Default for RpcBackendRegistry<B> {
    fn default() -> Self {
        Self { backends: Vec::new() }
    }
}

impl<B: RpcBackend + ?Sized> RpcBackendRegistry<B> {
    /// Registers a backend.
    ///
    /// # Errors
    /// The name is taken, be it by the same backend.
    pub fn register(&mut self, name: &str, backend: Arc<B>) -> Result<BackendType<B>, BackendError> {
        if name.is_empty() {
            return Err(BackendError::Unnamed);
        }
        if self.is_registered(name) {
            return Err(BackendError::AlreadyRegistered { name: name.into() });
        }
        let member = BackendType { name: name.into(), backend };
        self.backends.insert(0, member.clone());
        Ok(member)
    }

    /// Whether somebody has the name.
    #[must_use]
    pub fn is_registered(&self, name: &str) -> bool {
        self.backends.iter().any(|known| known.name() == name)
    }

    /// The backends, the newest first.
    pub fn iter(&self) -> impl Iterator<Item = &BackendType<B>> {
        self.backends.iter()
    }

    /// The backend with this name.
    ///
    /// # Errors
    /// Nobody has it.
    pub fn find(&self, name: &str) -> Result<&BackendType<B>, BackendError> {
        self.iter().find(|known| known.name() == name).ok_or_else(|| BackendError::NotRegistered {
            name: name.into(),
            known: self.iter().map(|known| known.name().into()).collect(),
        })
    }

    /// Makes options of a backend.
    ///
    /// # Errors
    /// Nobody has the name, or the backend refuses an option.
    pub fn construct_options(
        &self,
        name: &str,
        base: BaseOptions<'_>,
        extra_options: &[(&str, &str)],
    ) -> Result<RpcOptions, BackendError> {
        Ok(self.find(name)?.backend.construct_options(base, extra_options)?)
    }

    /// The first backend, the newest before the others, whose options are of the kind of these.
    ///
    /// # Errors
    /// There is none.
    pub fn infer(&self, options: &RpcOptions) -> Result<&BackendType<B>, BackendError> {
        self.iter()
            .find(|known| known.makes(options))
            .ok_or_else(|| BackendError::CannotInfer { options: text(options) })
    }

    /// The backend and the options of a new member, of which either or both may be left out.
    ///
    /// # Errors
    /// Nobody has the name, no backend makes such options, or they are another backend's.
    pub fn choose(
        &self,
        name: Option<&str>,
        options: Option<RpcOptions>,
    ) -> Result<(&BackendType<B>, RpcOptions), BackendError> {
        match (name, options) {
            (None, Some(options)) => Ok((self.infer(&options)?, options)),
            (Some(name), Some(options)) => {
                let backend = self.find(name)?;
                if backend.makes(&options) {
                    return Ok((backend, options));
                }
                Err(BackendError::OtherOptions { name: name.into(), options: text(&options) })
            }
            (name, None) => {
                let backend = self.find(name.unwrap_or(DEFAULT_BACKEND))?;
                let options = backend.backend.construct_options(BaseOptions::default(), &[])?;
                Ok((backend, options))
            }
        }
    }
}

impl<B: RpcBackend + ?Sized> BackendType<B> {
    /// Whether what it makes when nobody tells anything is of the kind of these options.
    fn makes(&self, options: &RpcOptions) -> bool {
        let made = self.backend.construct_options(BaseOptions::default(), &[]);
        made.is_ok_and(|made| made.kind() == options.kind())
    }
}

fn text(options: &RpcOptions) -> Box<str> {
    let text: String = options.to_string();
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    type Any = dyn RpcBackend<Store = &'static str, Call = (), Agent = String, Error = String>;

    /// A backend that makes options of a kind, and agents that are sentences.
    struct Stub(&'static str);

    impl RpcBackend for Stub {
        type Store = &'static str;
        type Call = ();
        type Agent = String;
        type Error = String;

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
            request: InitRequest<&'static str, ()>,
            options: RpcOptions,
        ) -> Result<String, String> {
            if request.worker.id == 9 {
                return Err("no room".into());
            }
            Ok(format!("{} in {} of {:?}: {options}", request.worker, request.store, request.world_size))
        }
    }

    fn registry() -> RpcBackendRegistry<Any> {
        let mut registry = RpcBackendRegistry::default();
        let tcp: Arc<Any> = Arc::new(Stub("tcp"));
        registry.register("tcp", tcp).expect("free");
        registry
    }

    #[test]
    fn a_name_has_one_backend_and_the_newest_comes_first() {
        let mut registry = registry();
        let ucx: Arc<Any> = Arc::new(Stub("ucx"));
        let member = registry.register("UCX", ucx.clone()).expect("free");
        assert_eq!(
            (member.to_string(), format!("{member:?}")),
            ("BackendType.UCX".into(), "BackendType.UCX".into())
        );
        let error = registry.register("UCX", ucx.clone()).expect_err("taken, though by the same");
        assert_eq!(error.to_string(), "RPC backend UCX: already registered");
        assert_eq!(registry.register("", ucx.clone()).map(drop), Err(BackendError::Unnamed));
        registry.register("ucx", ucx).expect("names are exact");
        let names: Vec<&str> = registry.iter().map(BackendType::name).collect();
        assert_eq!(names, ["ucx", "UCX", "tcp"]);
        assert!(registry.is_registered("UCX") && !registry.is_registered("Ucx"));
        let error = registry.find("Ucx").map(drop).expect_err("nobody");
        assert_eq!(
            error.to_string(),
            "Argument backend must be a member of BackendType, got Ucx; registered are [\"ucx\", \"UCX\", \"tcp\"]"
        );
    }

    #[test]
    fn options_are_made_by_their_backend() {
        let mut registry = registry();
        registry.register("UCX", Arc::new(Stub("ucx"))).expect("free");
        let base = BaseOptions { rpc_timeout: Duration::from_secs(7), init_method: "tcp://h:1" };
        let options = registry.construct_options("UCX", base, &[("a", "b"), ("c", "d")]).expect("made");
        assert_eq!((options.extra_options::<usize>(), options.init_method()), (Some(&2), "tcp://h:1"));
        assert_eq!(options.rpc_timeout(), Some(Duration::from_secs(7)));
        let extra_options = [("num_worker_threads", "3"), ("transports", "uv,shm"), ("channels", "")];
        let options =
            registry.construct_options("tcp", BaseOptions::default(), &extra_options).expect("made");
        assert_eq!((options.worker_threads(), options.channels()), (3, Some(&[][..])));
        assert_eq!(options.transports(), Some(&["uv".into(), "shm".into()][..]));
        for (extra_options, message) in [
            (("threads", "3"), "RPC backend tcp: unknown option threads"),
            (("num_worker_threads", "many"), "RPC backend tcp: option num_worker_threads cannot be many"),
            (("num_worker_threads", "0"), "num_worker_threads must be from 1 to 1024, got 0"),
        ] {
            let error = registry
                .construct_options("tcp", BaseOptions::default(), &[extra_options])
                .expect_err(message);
            assert_eq!(error.to_string(), message);
        }
        let nowhere = BaseOptions { init_method: "", ..BaseOptions::default() };
        registry.construct_options("UCX", nowhere, &[]).expect_err("no way to meet");
        registry.construct_options("x", BaseOptions::default(), &[]).expect_err("nobody");
    }

    #[test]
    fn backend_and_options_follow_from_each_other() {
        let mut registry = registry();
        let chosen = |registry: &RpcBackendRegistry<Any>, name: Option<&str>, options| {
            registry
                .choose(name, options)
                .map(|(backend, options)| (backend.name().to_string(), options.kind().to_string()))
        };
        assert_eq!(chosen(&registry, None, None), Ok(("tcp".into(), "tcp".into())));
        let error = chosen(&registry, None, Some(RpcOptions::new("ucx"))).expect_err("nobody makes these");
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
        chosen(&registry, Some("none"), Some(RpcOptions::new("ucx"))).expect_err("nobody");
    }

    #[test]
    fn agents_are_made_by_their_backend() {
        let registry = registry();
        let (backend, options) = registry.choose(None, None).expect("the one that there is");
        let worker = |id| WorkerInfo { name: "w".parse().expect("a name"), id };
        let request = InitRequest { store: "s", worker: worker(1), world_size: None, call: () };
        let agent = backend.backend().init_backend(request, options).expect("made");
        assert!(agent.starts_with("w (id 1) in s of None: <tcp: "), "{agent}");
        let request = InitRequest { store: "s", worker: worker(9), world_size: Some(2), call: () };
        assert_eq!(backend.backend().init_backend(request, RpcOptions::new("tcp")), Err("no room".into()));
    }
}
